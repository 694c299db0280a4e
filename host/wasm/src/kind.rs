//! A kind as a producer: what tasks run, and on which terms, is decided when each of
//! them is started.

use std::sync::Arc;

use backlot_registry::{BoxFuture, Form, Kind, Producer, Refusal, Request, Run, TaskHost};

use crate::{audit, catalog::ComponentCatalog, instance::ComponentProducer, policy::Ask};

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

impl KindProducer {
    fn now(&self) -> Result<Arc<ComponentProducer>, Refusal> {
        let serving = self.catalog.serving(&self.kind)?;
        let producer = match &self.ask {
            None => serving.plain(self.catalog.sources()),
            Some(ask) => serving.narrowed(ask, self.catalog.sources()).map(Arc::new),
        };
        if let Err(Refusal::NotGranted(why)) = &producer {
            audit::denied_start(&self.kind, why);
        }
        producer
    }
}

impl Producer for KindProducer {
    fn kind(&self) -> &Kind {
        &self.kind
    }

    fn form(&self) -> Form {
        self.catalog.serving(&self.kind).map_or(Form::Stream, |serving| serving.component.0.form())
    }

    fn resolve(&self) -> Result<Option<Arc<dyn Producer>>, Refusal> {
        Ok(Some(self.now()?))
    }

    fn run(&self, request: Request, host: TaskHost) -> BoxFuture<'_, Result<Run, Refusal>> {
        Box::pin(async move { self.now()?.run(request, host).await })
    }
}
