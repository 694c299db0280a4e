//! A kind as a producer: what tasks run, and on which terms, is decided when each of
//! them is started.

use std::sync::Arc;

use backlot_registry::{
    BoxFuture, Form, Generation, Kind, Producer, Refusal, Request, Run, SessionId, StopBounds,
    TaskHost,
};

use crate::{
    audit, catalog::ComponentCatalog, component::Starting, instance::ComponentProducer, policy::Ask,
};

/// The producer of a kind of a catalogue, in whatever version is current by the time
/// that a task is started, with what the policy and the manifest give of what is asked
/// for. Cheap to clone.
#[derive(Clone, Debug)]
pub struct KindProducer {
    catalog: ComponentCatalog,
    kind: Kind,
    /// `None` asks for all that there is.
    ask: Option<Arc<Ask>>,
}

impl ComponentCatalog {
    /// Returns the producer of a kind, for starts that ask for that much. The kind need
    /// not be loaded yet.
    pub fn producer(&self, kind: Kind, ask: Ask) -> KindProducer {
        let ask = (ask != Ask::default()).then(|| Arc::new(ask));
        KindProducer { catalog: self.clone(), kind, ask }
    }
}

/// What one start runs. As long as it is there, its kind has not been drained.
struct Resolved {
    producer: Arc<ComponentProducer>,
    _starting: Starting,
}

impl KindProducer {
    fn now(&self, owner: Option<&SessionId>) -> Result<Resolved, Refusal> {
        let (serving, starting) = self.catalog.starting(&self.kind)?;
        let producer = match &self.ask {
            None => serving.plain(self.catalog.sources()),
            Some(ask) => serving.narrowed(ask, self.catalog.sources()).map(Arc::new),
        };
        if let Err(Refusal::NotGranted(why)) = &producer {
            audit::denied_start(&self.kind, owner, why);
        }
        Ok(Resolved { producer: producer?, _starting: starting })
    }
}

impl Producer for KindProducer {
    fn kind(&self) -> &Kind {
        &self.kind
    }

    fn form(&self) -> Form {
        self.catalog.serving(&self.kind).map_or(Form::Stream, |serving| serving.component.0.form())
    }

    fn resolve(&self, owner: Option<&SessionId>) -> Result<Option<Arc<dyn Producer>>, Refusal> {
        Ok(Some(Arc::new(self.now(owner)?)))
    }

    fn run(&self, request: Request, host: TaskHost) -> BoxFuture<'_, Result<Run, Refusal>> {
        Box::pin(async move {
            let owner = host.owner_session().cloned();
            self.now(owner.as_ref())?.run(request, host).await
        })
    }
}

impl Producer for Resolved {
    fn kind(&self) -> &Kind {
        self.producer.kind()
    }

    fn form(&self) -> Form {
        self.producer.form()
    }

    fn run(&self, request: Request, host: TaskHost) -> BoxFuture<'_, Result<Run, Refusal>> {
        self.producer.run(request, host)
    }

    fn generation(&self) -> Option<Generation> {
        self.producer.generation()
    }

    fn grant(&self) -> Option<Arc<[String]>> {
        self.producer.grant()
    }

    fn cap(&self) -> Option<usize> {
        self.producer.cap()
    }

    fn stop_bounds(&self) -> Option<StopBounds> {
        self.producer.stop_bounds()
    }
}
