//! A kind as a producer: what tasks run is decided when each of them is started.

use std::sync::Arc;

use backlot_registry::{
    BoxFuture, Form, Kind, Producer, Refusal, Request, Run, StopBounds, TaskHost,
};

use crate::{
    catalog::ComponentCatalog, grant::OpenGrant, instance::ComponentProducer, limits::Limits,
};

/// The producer of a kind of a catalogue, whatever version of it is current by the time
/// that a task is started.
#[derive(Clone, Debug)]
pub struct KindProducer {
    catalog: ComponentCatalog,
    kind: Kind,
    grant: OpenGrant,
    limits: Limits,
    bounds: Option<StopBounds>,
}

impl ComponentCatalog {
    /// Returns the producer of a kind, with this grant and these limits. The kind need
    /// not be loaded yet.
    pub fn producer(&self, kind: Kind, grant: OpenGrant, limits: Limits) -> KindProducer {
        KindProducer { catalog: self.clone(), kind, grant, limits, bounds: None }
    }
}

impl KindProducer {
    /// Returns the producer with bounds of its own for the stop ladder.
    pub fn with_bounds(self, bounds: StopBounds) -> Self {
        Self { bounds: Some(bounds), ..self }
    }

    fn now(&self) -> Result<ComponentProducer, Refusal> {
        let component = self.catalog.serving(&self.kind)?;
        let producer = component.producer(self.grant.clone(), self.limits);
        Ok(match self.bounds {
            Some(bounds) => producer.with_bounds(bounds),
            None => producer,
        })
    }
}

impl Producer for KindProducer {
    fn kind(&self) -> &Kind {
        &self.kind
    }

    fn form(&self) -> Form {
        self.catalog.serving(&self.kind).map_or(Form::Stream, |component| component.0.form())
    }

    fn resolve(&self) -> Result<Option<Arc<dyn Producer>>, Refusal> {
        Ok(Some(Arc::new(self.now()?)))
    }

    fn run(&self, request: Request, host: TaskHost) -> BoxFuture<'_, Result<Run, Refusal>> {
        Box::pin(async move { self.now()?.run(request, host).await })
    }
}
