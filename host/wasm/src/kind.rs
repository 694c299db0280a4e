//! A kind as a producer: what tasks run, and on which terms, is decided when each of
//! them is started. Where several runs are to be of one version, that is pinned, and the
//! terms alone are decided anew.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use backlot_registry::{
    BoxFuture, Form, Generation, Kind, Producer, Refusal, Request, Run, SessionId, StopBounds,
    TaskHost,
};

use crate::{
    audit,
    catalog::ComponentCatalog,
    component::{Component, Starting},
    instance::ComponentProducer,
    policy::{Ask, Manifest},
    terms,
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
    work_folder: Option<Arc<Path>>,
}

/// One version of a kind, with what its plugin asked for when it was loaded. As long as
/// it is there, so is the version's code. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Pinned {
    component: Component,
    manifest: Option<Manifest>,
}

impl Pinned {
    /// Returns a version that was loaded from what was kept of it.
    pub fn new(component: Component, manifest: Option<Manifest>) -> Self {
        Self { component, manifest }
    }

    /// Returns the version's component.
    pub fn component(&self) -> &Component {
        &self.component
    }

    /// Returns what its plugin asked for.
    pub fn manifest(&self) -> Option<&Manifest> {
        self.manifest.as_ref()
    }
}

/// The producer of one version of a kind, with what the policy gives by the time that a
/// task is started. Cheap to clone.
#[derive(Clone, Debug)]
pub struct PinnedProducer {
    catalog: ComponentCatalog,
    pinned: Pinned,
    ask: Arc<Ask>,
    work_folder: Option<Arc<Path>>,
}

impl ComponentCatalog {
    /// Returns the version of a kind that tasks run which are started now.
    ///
    /// # Errors
    ///
    /// A refusal that says why there is none.
    pub fn pinned(&self, kind: &Kind) -> Result<Pinned, Refusal> {
        let serving = self.serving(kind)?;
        Ok(Pinned::new(serving.component.clone(), serving.manifest().cloned()))
    }

    /// Returns the producer of one version of a kind, for starts that ask for that much:
    /// they get of it what the policy and the version's own manifest give. What has
    /// become of the kind since does not matter, so that what was begun can be ended.
    pub fn producer_of(&self, pinned: Pinned, ask: Ask) -> PinnedProducer {
        PinnedProducer { catalog: self.clone(), pinned, ask: Arc::new(ask), work_folder: None }
    }

    /// Returns the producer of a kind, for starts that ask for that much. The kind need
    /// not be loaded yet.
    pub fn producer(&self, kind: Kind, ask: Ask) -> KindProducer {
        let ask = (ask != Ask::default()).then(|| Arc::new(ask));
        KindProducer { catalog: self.clone(), kind, ask, work_folder: None }
    }
}

/// What one start runs. As long as it is there, its kind has not been drained.
struct Resolved {
    producer: Arc<ComponentProducer>,
    _starting: Starting,
}

impl Resolved {
    fn new(
        producer: Arc<ComponentProducer>,
        work_folder: Option<&Path>,
        starting: Starting,
    ) -> Self {
        let producer = match work_folder {
            Some(path) => Arc::new(Arc::unwrap_or_clone(producer).with_work_folder(path)),
            None => producer,
        };
        Self { producer, _starting: starting }
    }
}

impl KindProducer {
    /// Returns the producer with a place for the work folder that a start may be given: a
    /// folder that is there, and that nobody but its tasks changes. Where none is given,
    /// it is left alone.
    pub fn with_work_folder(self, path: impl Into<PathBuf>) -> Self {
        Self { work_folder: Some(path.into().into()), ..self }
    }

    fn now(&self, owner: Option<&SessionId>) -> Result<Resolved, Refusal> {
        let (serving, starting) = self.catalog.starting(&self.kind)?;
        let producer = match &self.ask {
            None => serving.plain(self.catalog.sources()),
            Some(ask) => serving.narrowed(ask, self.catalog.sources()).map(Arc::new),
        };
        if let Err(Refusal::NotGranted(why)) = &producer {
            audit::denied_start(&self.kind, owner, why);
        }
        Ok(Resolved::new(producer?, self.work_folder.as_deref(), starting))
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

impl PinnedProducer {
    /// Returns the producer with a place for the work folder that a start may be given: a
    /// folder that is there, and that nobody but its tasks changes. Where none is given,
    /// it is left alone.
    pub fn with_work_folder(self, path: impl Into<PathBuf>) -> Self {
        Self { work_folder: Some(path.into().into()), ..self }
    }

    /// Returns how many bytes the work folder of a start may have, by the policy as it is
    /// now; `None` where it is given none, or would be refused.
    pub fn work_folder(&self) -> Option<u64> {
        let Pinned { component, manifest } = &self.pinned;
        let rules = self.catalog.policy().rules(&component.0.kind);
        let sources = self.catalog.sources();
        let decision = terms::decision(&rules, manifest.as_ref(), &self.ask, sources).ok()?;
        decision.limits.work_folder
    }

    fn now(&self, owner: Option<&SessionId>) -> Result<Resolved, Refusal> {
        let Pinned { component, manifest } = &self.pinned;
        let rules = self.catalog.policy().rules(&component.0.kind);
        // The policy may be another one than when it was loaded first.
        let admitted = rules.admits(&component.generation().digest);
        let producer = admitted.map_err(|denial| terms::refusal(&denial)).and_then(|()| {
            component.decided(&rules, manifest.as_ref(), &self.ask, self.catalog.sources())
        });
        if let Err(Refusal::NotGranted(why)) = &producer {
            audit::denied_start(&component.0.kind, owner, why);
        }
        let starting = Starting::of(Arc::clone(&component.0));
        Ok(Resolved::new(Arc::new(producer?), self.work_folder.as_deref(), starting))
    }
}

impl Producer for PinnedProducer {
    fn kind(&self) -> &Kind {
        &self.pinned.component.0.kind
    }

    fn form(&self) -> Form {
        self.pinned.component.0.form()
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

    fn generation(&self) -> Option<Generation> {
        Some(self.pinned.component.generation().clone())
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
