//! One store, one task: how a component becomes a task's work.
//!
//! A start makes a store, instantiates the component in it and calls `run`.
//! From then on the store belongs to the driver, which is the task's `done`.

use std::{
    path::{Path, PathBuf},
    pin::pin,
    sync::Arc,
};

use backlot_registry::{
    Agreed, BoxFuture, Control, Form, Generation, Kind, OnDrop, Outcome, Producer, Refusal,
    Request, Run, StopBounds, StopRefusal, TaskHost, Usage,
};
use tokio::runtime::Handle;
use tokio_util::task::AbortOnDropHandle;
use wasmtime::{
    Store,
    component::{Accessor, TypedFunc},
};

use crate::{
    audit,
    command::CommandInput,
    component::{Component, Entry, Loaded, Running},
    contract::{Exports, Manner},
    driver::{HangUp, Metered, Seat, drive},
    engine::{Engine, Polled},
    grant::OpenGrant,
    limits::{self, Bytes, Exceeded, Limits},
    link::{Call, Link},
    policy::{Ask, Manifest, Rules, Sources},
    store::{Guest, Recipe, Stdio},
    terms::Terms,
    text, trap,
    work_folder::{self, OpenWorkFolder, WorkFolderError},
};

/// A component with what one start binds to it: the producer of one task, or of
/// many that are granted the same.
#[derive(Clone, Debug)]
pub struct ComponentProducer {
    component: Component,
    terms: Terms,
}

impl Component {
    /// Returns a producer that runs the component with this grant and these limits.
    pub fn producer(&self, grant: OpenGrant, limits: Limits) -> ComponentProducer {
        self.on_terms(Terms::given(grant, limits))
    }

    /// Returns a producer that runs the component on the terms that a policy, its
    /// manifest and what a start asks for come to.
    ///
    /// # Errors
    ///
    /// A refusal that says which line would allow what is asked for.
    pub fn decided(
        &self,
        rules: &Rules,
        manifest: Option<&Manifest>,
        ask: &Ask,
        sources: &Sources,
    ) -> Result<ComponentProducer, Refusal> {
        Ok(self.on_terms(Terms::decided(rules, manifest, ask, sources)?))
    }

    /// Returns a producer that runs the component on these terms.
    pub(crate) fn on_terms(&self, terms: Terms) -> ComponentProducer {
        ComponentProducer { component: self.clone(), terms }
    }
}

impl ComponentProducer {
    /// Returns what its tasks may use.
    pub fn limits(&self) -> &Limits {
        &self.terms.limits
    }

    /// Returns the producer with a place for the work folder that its limits may give: a
    /// folder that is there, and that nobody but its tasks changes.
    pub fn with_work_folder(self, path: impl Into<PathBuf>) -> Self {
        let work_folder = Some(path.into().into());
        Self { terms: Terms { work_folder, ..self.terms }, ..self }
    }

    /// Returns the producer with bounds of its own for the stop ladder.
    pub fn with_bounds(self, bounds: StopBounds) -> Self {
        Self { terms: Terms { bounds: Some(bounds), ..self.terms }, ..self }
    }
}

impl Producer for ComponentProducer {
    fn kind(&self) -> &Kind {
        &self.component.0.kind
    }

    fn form(&self) -> Form {
        self.component.0.form()
    }

    fn run(&self, request: Request, host: TaskHost) -> BoxFuture<'_, Result<Run, Refusal>> {
        Box::pin(async move {
            let home = self.component.0.engine.runtime();
            let component = Arc::clone(&self.component.0);
            let start = start(component, self.terms.clone(), request, host);
            // Guests block the pool of the runtime they are polled on, so they
            // stay on theirs from the first instruction.
            if Handle::try_current().is_ok_and(|here| here.id() == home.id()) {
                return start.await;
            }
            match AbortOnDropHandle::new(home.spawn(start)).await {
                Ok(started) => started,
                Err(error) => Err(Refusal::Broken(error.to_string())),
            }
        })
    }

    fn generation(&self) -> Option<Generation> {
        Some(self.component.0.generation.clone())
    }

    fn grant(&self) -> Option<Arc<[String]>> {
        self.terms.lines.clone()
    }

    fn cap(&self) -> Option<usize> {
        self.terms.cap
    }

    fn stop_bounds(&self) -> Option<StopBounds> {
        self.terms.bounds
    }
}

/// Makes an instance and starts its work. Everything that can fail is over when
/// it returns; what it held is gone when it fails or is dropped.
async fn start(
    component: Arc<Loaded>,
    terms: Terms,
    request: Request,
    host: TaskHost,
) -> Result<Run, Refusal> {
    let Terms { grant, limits, lines, work_folder, .. } = terms;
    if request.input.len() > limits.input {
        return Err(Refusal::InvalidInput(format!(
            "it has {} bytes, and the limit is {}",
            request.input.len(),
            Bytes(limits.input as u64)
        )));
    }
    let engine = &component.engine;
    limits.check(engine.profile()).map_err(Refusal::NotGranted)?;
    component.check_input(&request.input).await?;
    let work = match limits.work_folder {
        Some(quota) => Some(open_work(engine, &grant, work_folder.as_deref(), quota).await?),
        None => None,
    };
    let live =
        engine.admit(component.mappings).map_err(|full| Refusal::Unavailable(full.to_string()))?;

    let is_command = matches!(component.entry, Entry::Command { .. });
    let secrets = grant.secrets().map_err(|error| Refusal::Unavailable(error.to_string()))?;
    let link = Arc::new(Link::new(host.clone(), is_command, secrets));
    // Before the guest can be denied anything.
    audit::grant(&host, &component.generation, lines.as_deref().unwrap_or_default(), &grant);
    let (stdio, args) = match &component.entry {
        Entry::Command { .. } => {
            let CommandInput { mut args, stdin } = CommandInput::from_text(&request.input)?;
            args.insert(0, component.kind.to_string());
            (Stdio::Output { host, stdin: stdin.into() }, args)
        }
        Entry::Producer { manner, .. } if manner.stdout_is_output => {
            (Stdio::Output { host, stdin: bytes::Bytes::new() }, Vec::new())
        }
        Entry::Producer { .. } => (Stdio::Log(host), Vec::new()),
    };
    let mut store = Recipe {
        grant: &grant,
        work,
        limits,
        args: &args,
        stdio,
        link: Some(Arc::clone(&link)),
        peak: Arc::clone(&link.peak_memory),
        live,
    }
    .store(engine);

    let started = {
        let entering = pin!(enter(&component, &mut store, &link, request));
        Metered::new(entering, &link, engine.polled()).await
    };
    let entered = match started {
        Ok(entered) => entered.map_err(|refusal| link.masked_refusal(refusal))?,
        Err(error) => {
            tracing::debug!(kind = %component.kind, ?error, "a start failed");
            let refusal = refusal(&component, &error, store.data(), link.call());
            return Err(link.masked_refusal(refusal));
        }
    };
    let reach = Reach {
        link: Arc::clone(&link),
        polled: component.engine.polled(),
        stops_by_drop: entered.stops_by_drop(),
        drains: entered.holds_output(),
    };
    let polled = component.engine.polled();
    let running = Running::of(component);
    Ok(Run {
        control: Arc::new(reach),
        done: Box::pin(drive(
            Seat { store, _running: running },
            entered,
            limits,
            polled,
            HangUp(link),
        )),
        on_drop: OnDrop::ReleasesAll,
    })
}

/// Opens the work folder of a start that is given one.
async fn open_work(
    engine: &Engine,
    grant: &OpenGrant,
    path: Option<&Path>,
    quota: u64,
) -> Result<OpenWorkFolder, Refusal> {
    let refused = |why: String| Refusal::NotGranted(why);
    let Some(path) = path else {
        return Err(refused(
            "it asks for a work folder, which only jobs have; start it as a job, or without one \
             (--work-folder 0)"
                .to_owned(),
        ));
    };
    if let Some(taken) = grant.dirs().iter().find(|dir| work_folder::is_taken_by(&dir.guest)) {
        return Err(refused(format!(
            "the folder {} is granted where the work folder is, which is {}; give it another guest \
             path",
            taken.line(),
            work_folder::GUEST_PATH
        )));
    }
    engine.work_folders().open(path, quota).await.map_err(|error| match error {
        WorkFolderError::Entries(_) => refused(error.to_string()),
        WorkFolderError::Io { .. } => Refusal::Unavailable(error.to_string()),
    })
}

/// Says why a component could not be started, and whether trying again may help.
fn refusal(component: &Loaded, error: &wasmtime::Error, guest: &Guest, call: Call) -> Refusal {
    let exceeded = guest.meter.exceeded(error);
    let why = trap::because(error, exceeded);
    match (call, exceeded) {
        (Call::Run, _) => Refusal::Broken(format!("trap in run: {why}")),
        (_, Some(Exceeded::Memory(_))) => {
            // wasmtime tells it in pages, which nobody but wasmtime thinks in.
            let need = component.pre.component().resources_required();
            let pages = need.and_then(|need| need.max_initial_memory_size).unwrap_or_default();
            let bytes = pages.saturating_mul(1 << 16);
            Refusal::NotGranted(match bytes <= limits::MEMORY {
                true => format!(
                    "cannot be instantiated: a memory of it begins with {}: {why}; raise the \
                     limit (--memory)",
                    Bytes(bytes)
                ),
                false => format!(
                    "cannot be instantiated: a memory of it begins with {}, and a task can have {}",
                    Bytes(bytes),
                    Bytes(limits::MEMORY)
                ),
            })
        }
        (_, Some(Exceeded::Tables(_))) => {
            Refusal::NotGranted(format!("cannot be instantiated: {why}"))
        }
        _ if trap::is_capacity(error) || exceeded.is_some() => {
            Refusal::Unavailable(format!("cannot be instantiated now: {why}"))
        }
        _ => Refusal::Broken(format!("cannot be instantiated: {why}")),
    }
}

/// An instance whose work has been started.
pub(crate) enum Entered {
    Producer { guest: Exports, manner: Manner },
    Command { run: TypedFunc<(), (Result<(), ()>,)> },
}

impl Entered {
    fn stops_by_drop(&self) -> bool {
        match self {
            Self::Producer { manner, .. } => manner.stops_by_drop,
            Self::Command { .. } => true,
        }
    }

    /// Tells whether the guest itself holds its output, and hands it over.
    pub(crate) fn holds_output(&self) -> bool {
        match self {
            Self::Producer { guest, .. } => guest.has_output(),
            Self::Command { .. } => false,
        }
    }
}

/// Instantiates the component and starts its work. The outer error is a trap or
/// a failed instantiation; the inner one is the guest's own refusal.
async fn enter(
    component: &Loaded,
    store: &mut Store<Guest>,
    link: &Link,
    request: Request,
) -> wasmtime::Result<Result<Entered, Refusal>> {
    link.enter(Call::Instantiate);
    let instance = component.pre.instantiate_async(&mut *store).await?;
    match &component.entry {
        Entry::Command { run } => {
            Ok(Ok(Entered::Command { run: instance.get_typed_func(&mut *store, run)? }))
        }
        Entry::Producer { indices, manner } => {
            let guest = indices.load(&mut *store, &instance)?;
            link.enter(Call::Run);
            let answer = store
                .run_concurrent(async |accessor: &Accessor<Guest>| {
                    guest.run(accessor, request).await
                })
                .await??;
            Ok(match answer {
                Ok(()) => Ok(Entered::Producer { guest, manner: *manner }),
                Err(refusal) => Err(bounded(refusal)),
            })
        }
    }
}

/// Bounds the words of a guest: they are shown to people in one line.
fn bounded(refusal: Refusal) -> Refusal {
    match refusal {
        Refusal::InvalidInput(why) => Refusal::InvalidInput(text::line(&why)),
        Refusal::Unavailable(why) => Refusal::Unavailable(text::line(&why)),
        other @ (Refusal::NotGranted(_) | Refusal::Broken(_)) => other,
    }
}

/// The registry's way to a running guest.
struct Reach {
    link: Arc<Link>,
    polled: Polled,
    stops_by_drop: bool,
    drains: bool,
}

impl Control for Reach {
    fn cancel(&self, reason: Option<String>) -> BoxFuture<'static, Result<Agreed, StopRefusal>> {
        if self.stops_by_drop {
            return Box::pin(async { Ok(Agreed::DropNow) });
        }
        self.polled.look_closely();
        let link = Arc::clone(&self.link);
        Box::pin(async move { link.ask(reason).await })
    }

    fn drain(&self) -> Option<BoxFuture<'static, ()>> {
        self.drains.then(|| {
            let link = Arc::clone(&self.link);
            Box::pin(async move { link.drain().await }) as BoxFuture<'static, ()>
        })
    }

    fn outcome(&self) -> Option<Outcome> {
        self.link.take_outcome()
    }

    fn usage(&self) -> Option<Usage> {
        Some(self.link.usage())
    }
}
