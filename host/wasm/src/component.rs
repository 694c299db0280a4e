//! Components made ready to run: compiled, checked, linked and described.
//!
//! Everything about a component that can fail without a task fails here.

use std::{
    fmt,
    fs::File,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use backlot_registry::{Announcer, Change, Form, Generation, InvalidKind, Kind, Refusal};
use tokio::sync::{Notify, Semaphore};
use wasmtime::component::{ComponentExportIndex, InstancePre, types::ComponentItem};

use crate::{
    aside,
    cache::ComponentDigest,
    cache::FileStamp,
    capacity,
    check::{self, ComponentForm, NotRunnable},
    code::{self, Code, Dormant, Source},
    command,
    compile::CompileError,
    contract::{self, Indices, Manner, Signatures, Version},
    engine::Engine,
    live::Mark,
    profile::MEMORIES,
    schema::Schema,
    store::Guest,
    text, trap,
};

/// How long `describe` may take. It is pure, so a second is generous.
const DESCRIBE_DEADLINE: Duration = Duration::from_secs(1);

/// A component that is ready to run. Clones are handles to one compiled code.
#[derive(Clone)]
pub struct Component(pub(crate) Arc<Loaded>);

pub(crate) struct Loaded {
    pub(crate) engine: Engine,
    pub(crate) kind: Kind,
    pub(crate) generation: Generation,
    /// The memory mappings that an instance takes.
    pub(crate) mappings: u64,
    pub(crate) pre: InstancePre<Guest>,
    pub(crate) entry: Entry,
    description: Description,
    schema: Option<Schema>,
    code: (ComponentDigest, Source),
    /// What it was read from, where that was a file.
    file: OnceLock<Arc<File>>,
    /// The turn to be asked what follows a run. With one, a component that hangs
    /// holds up its own jobs, and those of no other.
    pub(crate) steps_turn: Semaphore,
    /// The last, so that whoever hears of its end finds the rest gone.
    pub(crate) life: Life,
}

/// Who runs a version, and who hears when its code is let go of.
#[derive(Default)]
pub(crate) struct Life {
    tasks: AtomicUsize,
    /// Starts that have yet to become tasks, or not.
    starts: AtomicUsize,
    /// Tells other processes that this one can run it.
    mark: OnceLock<Mark>,
    farewell: OnceLock<Farewell>,
}

/// Tells that the code of a version is gone.
pub(crate) struct Farewell {
    pub(crate) announcer: Announcer,
    pub(crate) kind: Kind,
    pub(crate) generation: Generation,
    /// Wakes whoever waits for its last task to end.
    pub(crate) idle: Arc<Notify>,
}

impl Drop for Farewell {
    fn drop(&mut self) {
        let (kind, generation) = (self.kind.clone(), self.generation.clone());
        self.announcer.tell(Change::Freed { kind, generation });
    }
}

/// A task that runs a version, which keeps it.
pub(crate) struct Running(Arc<Loaded>);

impl Running {
    pub(crate) fn of(loaded: Arc<Loaded>) -> Self {
        loaded.life.tasks.fetch_add(1, Ordering::Relaxed);
        Self(loaded)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.life.left(&self.0.life.tasks);
    }
}

/// A start of a version that is under way, which keeps it.
pub(crate) struct Starting(Arc<Loaded>);

impl Starting {
    pub(crate) fn of(loaded: Arc<Loaded>) -> Self {
        loaded.life.starts.fetch_add(1, Ordering::Relaxed);
        Self(loaded)
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        self.0.life.left(&self.0.life.starts);
    }
}

impl Life {
    /// Notes that one of those is over, and wakes whoever waits for the last.
    fn left(&self, of: &AtomicUsize) {
        if of.fetch_sub(1, Ordering::AcqRel) == 1
            && let Some(farewell) = self.farewell.get()
        {
            farewell.idle.notify_waiters();
        }
    }
}

/// Where the host enters a component.
pub(crate) enum Entry {
    Producer { indices: Indices, manner: Manner },
    Command { run: ComponentExportIndex },
}

/// What a component says of itself, and what can be seen of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// What form it has.
    pub form: ComponentForm,
    /// The version of the contract that it implements; programs implement none.
    pub contract: Option<&'static str>,
    /// The name of its kind.
    pub kind: Kind,
    /// One line that says what the kind does.
    pub summary: String,
    /// The JSON Schema of its input.
    pub input_schema: Option<String>,
    /// Whether what it prints is its output.
    pub stdout_is_output: bool,
    /// Whether a stop drops it without asking.
    pub stops_by_drop: bool,
    /// Whether it can end with exit codes other than 0 and 1.
    pub exit_codes: bool,
    /// Whether it decides what follows each run of its jobs.
    pub steps: bool,
    /// The interfaces that it imports, in the order of the component.
    pub imports: Vec<String>,
    /// The interfaces that it exports, in the order of the component.
    pub exports: Vec<String>,
    /// What it may need to be granted, a line each.
    pub needs: Vec<&'static str>,
    /// `sha256:` and 64 hexadecimal digits.
    pub digest: Arc<str>,
}

/// Why a component could not be made ready.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// It is not a component that this host can run.
    #[error(transparent)]
    NotRunnable(#[from] NotRunnable),
    /// There is no compiled code of it.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// It imports what this host does not offer.
    #[error("the component cannot be linked: {}; this host offers WASI 0.2 and 0.3 with wasi:http, and {}", trap::line(.0), contract::hosts())]
    Link(wasmtime::Error),
    /// A function of the contract has another type.
    #[error("{0}; rebuild the component against the interface of that name and version")]
    Type(String),
    /// `describe` did not return a descriptor.
    #[error("`describe` failed: {0}")]
    Describe(String),
    /// `describe` returned a descriptor that cannot be used.
    #[error("`describe` returned {0}")]
    Descriptor(String),
}

impl Component {
    /// Compiles, checks, links and describes the component in `bytes`.
    ///
    /// `name` is what a program is called, by its file; producers name
    /// themselves. `number` counts the versions of the kind. Compiling runs on a
    /// thread where it may block.
    ///
    /// # Errors
    ///
    /// A [`LoadError`] that says what was found, what was wanted, and the fix.
    pub async fn load(
        engine: &Engine,
        name: &str,
        bytes: impl Into<Arc<[u8]>>,
        number: u64,
    ) -> Result<Self, LoadError> {
        Self::load_bytes(engine, name, bytes.into(), None, number).await
    }

    /// Loads the component in `bytes`, as [`Component::load`] does, that were read
    /// from a file after its stamp was taken. [`Component::recall`] then knows it.
    ///
    /// # Errors
    ///
    /// As [`Component::load`].
    pub async fn load_read(
        engine: &Engine,
        name: &str,
        bytes: impl Into<Arc<[u8]>>,
        stamp: FileStamp,
        number: u64,
    ) -> Result<Self, LoadError> {
        Self::load_bytes(engine, name, bytes.into(), Some(stamp), number).await
    }

    async fn load_bytes(
        engine: &Engine,
        name: &str,
        bytes: Arc<[u8]>,
        stamp: Option<FileStamp>,
        number: u64,
    ) -> Result<Self, LoadError> {
        check::preamble(&bytes)?;
        let code = code::of(engine, bytes, stamp).await?;
        Self::of_code(engine, name, code, number).await
    }

    /// Loads the component that a file held when it was loaded before, by this
    /// process or another, if the file has not changed and its code was kept.
    ///
    /// # Errors
    ///
    /// As [`Component::load`], but for those of bytes that do not compile.
    pub async fn recall(
        engine: &Engine,
        name: &str,
        stamp: FileStamp,
        number: u64,
    ) -> Option<Result<Self, LoadError>> {
        let code = code::recall(engine, stamp).await?;
        Some(Self::of_code(engine, name, code, number).await)
    }

    async fn of_code(
        engine: &Engine,
        name: &str,
        code: Code,
        number: u64,
    ) -> Result<Self, LoadError> {
        let Code { component, digest, source } = code;
        let code = (digest, source);
        let digest = format!("sha256:{digest}");
        let generation = Generation { number, digest: digest.into() };

        let seen = Seen::of(engine, &component);
        let (form, version) = check::form(&seen.exports)?;
        seen.typecheck(engine, &component, form, version)?;
        let pre = engine.linker().instantiate_pre(&component).map_err(LoadError::Link)?;
        match version {
            None => Self::of_command(engine, name, seen, pre, generation, code),
            Some(version) => {
                Self::of_producer(engine, form, version, seen, pre, generation, code).await
            }
        }
    }

    fn of_command(
        engine: &Engine,
        name: &str,
        seen: Seen,
        pre: InstancePre<Guest>,
        generation: Generation,
        code: (ComponentDigest, Source),
    ) -> Result<Self, LoadError> {
        let run = check::command(&seen.exports)
            .and_then(|export| pre.component().get_export_index(None, export))
            .and_then(|instance| pre.component().get_export_index(Some(&instance), "run"))
            .ok_or_else(|| LoadError::Type("`wasi:cli/run` has no `run`".to_owned()))?;
        let kind = command::kind(name).map_err(invalid_kind)?;
        let description = Description {
            stdout_is_output: true,
            stops_by_drop: true,
            exit_codes: seen.exit_codes,
            summary: format!("the program {name}"),
            ..seen.description(ComponentForm::Command, kind.clone(), &generation)
        };
        Ok(Self(Arc::new(Loaded {
            engine: engine.clone(),
            kind,
            generation,
            mappings: mappings(engine, &pre),
            pre,
            entry: Entry::Command { run },
            description,
            schema: None,
            code,
            file: OnceLock::new(),
            steps_turn: Semaphore::new(1),
            life: Life::default(),
        })))
    }

    async fn of_producer(
        engine: &Engine,
        form: ComponentForm,
        version: Version,
        seen: Seen,
        pre: InstancePre<Guest>,
        generation: Generation,
        code: (ComponentDigest, Source),
    ) -> Result<Self, LoadError> {
        let of_type = |error: wasmtime::Error| LoadError::Type(trap::line(&error));
        let indices = version.indices(&pre, form).map_err(of_type)?;
        let descriptor = aside::call(engine, &pre, &indices, DESCRIBE_DEADLINE, |guest, store| {
            Box::pin(guest.describe(store))
        })
        .await
        .map_err(|error| LoadError::Describe(error.to_string()))?;
        let kind = Kind::new(&descriptor.kind).map_err(invalid_kind)?;
        let manner = descriptor.manner;
        if manner.stdout_is_output && indices.has_output() {
            return Err(LoadError::Descriptor(format!(
                "`stdout-is-output`, although the component exports `{}`; keep one of them",
                version.names().output
            )));
        }
        let schema = match &descriptor.input_schema {
            Some(schema) => {
                Some(Schema::of(schema, engine.checker()).await.map_err(|why| {
                    LoadError::Descriptor(format!("an invalid input-schema: {why}"))
                })?)
            }
            None => None,
        };
        let description = Description {
            contract: Some(version.names().version),
            summary: text::line(&descriptor.summary),
            input_schema: descriptor.input_schema,
            stdout_is_output: manner.stdout_is_output,
            stops_by_drop: manner.stops_by_drop,
            ..seen.description(form, kind.clone(), &generation)
        };
        Ok(Self(Arc::new(Loaded {
            engine: engine.clone(),
            kind,
            generation,
            mappings: mappings(engine, &pre),
            pre,
            entry: Entry::Producer { indices, manner },
            description,
            schema,
            code,
            file: OnceLock::new(),
            steps_turn: Semaphore::new(1),
            life: Life::default(),
        })))
    }

    /// Returns what the component says of itself, and what can be seen of it.
    pub fn description(&self) -> &Description {
        &self.0.description
    }

    /// Returns which version of its kind it is.
    pub fn generation(&self) -> &Generation {
        &self.0.generation
    }

    /// Puts its code aside, so that it can be had again once nothing runs it.
    pub(crate) fn dormant(&self) -> wasmtime::Result<Dormant> {
        let (digest, source) = &self.0.code;
        Dormant::of(self.0.pre.component(), *digest, source, self.0.file.get().cloned())
    }

    /// Makes a component ready again whose code was put aside.
    pub(crate) async fn wake(
        engine: &Engine,
        name: &str,
        dormant: &Dormant,
        number: u64,
    ) -> Result<Self, LoadError> {
        let code = dormant.wake(engine).await?;
        let component = Self::of_code(engine, name, code, number).await?;
        match dormant.file() {
            Some(file) => Ok(component.read_from(file)),
            None => Ok(component),
        }
    }

    /// Notes the file that the component was read from.
    pub(crate) fn read_from(self, file: Arc<File>) -> Self {
        // It was made just now, so there is none yet.
        let _ = self.0.file.set(file);
        self
    }

    /// Returns the file that the component was read from, if it was one.
    pub(crate) fn file(&self) -> Option<&Arc<File>> {
        self.0.file.get()
    }
}

impl fmt::Debug for Component {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Component")
            .field("kind", &self.0.kind)
            .field("generation", &self.0.generation)
            .finish_non_exhaustive()
    }
}

impl Loaded {
    /// Returns how many tasks run it.
    pub(crate) fn tasks(&self) -> usize {
        self.life.tasks.load(Ordering::Relaxed)
    }

    /// Keeps a mark as long as it is there.
    pub(crate) fn bear(&self, mark: Mark) {
        // One is as good as another.
        let _ = self.life.mark.set(mark);
    }

    /// Tells whether no task runs it, and none is being started.
    pub(crate) fn is_idle(&self) -> bool {
        // In this order: a start is over only when it is a task.
        self.life.starts.load(Ordering::Acquire) == 0 && self.tasks() == 0
    }

    /// Has an announcer told when its code is let go of.
    pub(crate) fn say_farewell(&self, announcer: Announcer, idle: Arc<Notify>) {
        let (kind, generation) = (self.kind.clone(), self.generation.clone());
        // A version is put into one catalogue.
        let _ = self.life.farewell.set(Farewell { announcer, kind, generation, idle });
    }

    pub(crate) fn form(&self) -> Form {
        match &self.entry {
            Entry::Producer { indices, manner }
                if !indices.has_output() && !manner.stdout_is_output =>
            {
                Form::Final
            }
            Entry::Producer { .. } | Entry::Command { .. } => Form::Stream,
        }
    }

    /// Checks an input against the schema.
    pub(crate) async fn check_input(&self, input: &str) -> Result<(), Refusal> {
        match &self.schema {
            Some(schema) => schema.check(input).await,
            None => Ok(()),
        }
    }
}

/// What can be seen of a component without running it.
struct Seen {
    imports: Vec<String>,
    exports: Vec<String>,
    exit_codes: bool,
}

impl Seen {
    fn of(engine: &Engine, component: &wasmtime::component::Component) -> Self {
        let engine = engine.wasmtime();
        let ty = component.component_type();
        let mut exit_codes = false;
        let mut imports = Vec::new();
        for (name, item) in ty.imports(engine) {
            if name.starts_with("wasi:cli/exit@")
                && let ComponentItem::ComponentInstance(exit) = item.ty
            {
                exit_codes |= exit.get_export(engine, "exit-with-code").is_some();
            }
            imports.push(name.to_owned());
        }
        let exports = ty.exports(engine).map(|(name, _)| name.to_owned()).collect();
        Self { imports, exports, exit_codes }
    }

    /// Returns what is the same to say of every component; the rest it has to
    /// say itself.
    fn description(self, form: ComponentForm, kind: Kind, generation: &Generation) -> Description {
        Description {
            form,
            contract: None,
            kind,
            summary: String::new(),
            input_schema: None,
            stdout_is_output: false,
            stops_by_drop: false,
            exit_codes: false,
            steps: form.has_steps(),
            needs: check::needs(&self.imports),
            imports: self.imports,
            exports: self.exports,
            digest: Arc::clone(&generation.digest),
        }
    }

    /// Compares the types of the functions that the host calls with those it knows,
    /// before anything is linked, so that a difference is named.
    fn typecheck(
        &self,
        engine: &Engine,
        component: &wasmtime::component::Component,
        form: ComponentForm,
        version: Option<Version>,
    ) -> Result<(), LoadError> {
        let of = Signatures { engine: engine.wasmtime(), component };
        let checked = match (version, check::command(&self.exports)) {
            (Some(version), _) => version.typecheck(&of, form),
            (None, Some(run)) => of.check::<(), (Result<(), ()>,)>(run, "run", "func() -> result"),
            (None, None) => Ok(()),
        };
        checked.map_err(LoadError::Type)
    }
}

/// Returns the memory mappings that an instance takes.
pub(crate) fn mappings(engine: &Engine, pre: &InstancePre<Guest>) -> u64 {
    // Without an answer it is given modules from outside, which this host never does.
    let memories = pre.component().resources_required().map_or(MEMORIES, |it| it.num_memories);
    capacity::mappings_of(engine.profile(), memories)
}

fn invalid_kind(error: InvalidKind) -> LoadError {
    LoadError::Descriptor(format!("an invalid kind: {error}"))
}
