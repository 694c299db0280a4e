//! The engine that all components of a host share.
//!
//! One wasmtime engine, one linker with everything that a component may
//! import, and one ticker that makes computing guests yield. What differs
//! between two tasks is in their stores.

use std::{
    fmt, io,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
    thread::{self, Thread},
    time::Duration,
};

use tokio::{
    runtime::Handle,
    sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit},
};
use wasmtime::component::Linker;

use crate::{
    cache::Cache,
    capacity::{Capacity, Machine},
    compile::{Bounds, CompileError},
    imports,
    limits::Exceeded,
    memory::GuestMemory,
    process::{Compiler, Events, given_up},
    profile::{ASIDES, Profile, settings},
    resolver::Resolver,
    schema::Checker,
    store::Guest,
    work_folder::WorkFolders,
};

/// How often a computing guest yields to others on its thread.
///
/// A millisecond bounds what one spinning guest costs the latency of the rest,
/// and its cost is one relaxed load for each loop of the guest.
const TICK: Duration = Duration::from_millis(1);
/// How often the ticker looks whether a parked guest has begun to compute: what
/// the first turn of a guest may take longer.
const PARKED_TICK: Duration = Duration::from_millis(5);
/// How many looks in a row are close together once a guest is asked to stop. It may
/// begin to compute at once, and the bound on its grace waits for its first turn.
const CLOSE_LOOKS: u32 = 50;
/// How many looks in a row find no guest before the ticker sleeps: half a second,
/// so that a run of short tasks wakes it once.
const EMPTY_LOOKS: u32 = 100;

/// How many components are compiled at a time: each takes all cores and much
/// memory, and a second turn is for what one of bad intent would hold up.
const COMPILES: usize = 2;

/// How many component files are in memory as a whole at a time.
const READS: usize = 4;

/// How many schemas that are not plain are read, or checked with, at a time, by all
/// kinds.
const SCHEMAS: usize = 4;

/// How an [`Engine`] is set up.
#[derive(Debug)]
pub struct EngineConfig {
    /// The runtime that stores are driven on. Guests block its blocking pool
    /// with file calls, so the host's own work belongs on another.
    pub runtime: Handle,
    /// What the engine is made for.
    pub profile: Profile,
    /// How many tasks can live at a time, where that is fewer than the machine
    /// holds.
    pub instances: Option<u32>,
    /// Memory over all guests, in bytes.
    pub guest_memory: u64,
    /// What the machine gives.
    pub machine: Machine,
    /// Who compiles components.
    pub compiler: Compiler,
    /// How many threads compiling may take; as many as there are cores when `None`. A
    /// host that compiles while tasks run leaves them a core.
    pub compile_threads: Option<usize>,
    /// Where compiled code is kept.
    pub cache: Option<Cache>,
    /// How names are looked up.
    pub resolver: Resolver,
}

impl EngineConfig {
    /// Returns the defaults on this machine: made for speed, with as many tasks
    /// as it holds.
    pub fn new(runtime: Handle) -> Self {
        let machine = Machine::look();
        Self {
            runtime,
            profile: Profile::default(),
            instances: None,
            guest_memory: machine.guest_memory(),
            machine,
            compiler: Compiler::default(),
            compile_threads: None,
            cache: None,
            resolver: Resolver::default(),
        }
    }

    /// Returns how many tasks the engine will hold.
    pub fn capacity(&self) -> Capacity {
        let held = Capacity::of(self.profile, &self.machine, self.guest_memory);
        self.instances.map_or(held, |instances| held.at_most(instances))
    }

    /// Returns what wasmtime is set up with, so that a program can measure
    /// itself against wasmtime alone.
    pub fn settings(&self) -> wasmtime::Config {
        settings(self.profile, Some(&self.capacity()))
    }
}

/// Why an engine could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// wasmtime refused the configuration; usually the address space is limited.
    #[error(
        "the WebAssembly engine could not be set up for {instances} instances; lower the number, or lift limits on address space (ulimit -v)"
    )]
    Engine {
        /// How many instances were asked for.
        instances: u32,
        /// What wasmtime said.
        source: wasmtime::Error,
    },
    /// The thread that makes guests yield could not be started.
    #[error("the engine's ticker thread could not be started")]
    Ticker(#[source] io::Error),
}

/// The engine that all components of a host share. Clones are handles to it.
#[derive(Clone)]
pub struct Engine(Arc<Inner>);

struct Inner {
    wasmtime: wasmtime::Engine,
    linker: Linker<Guest>,
    runtime: Handle,
    memory: Arc<GuestMemory>,
    work_folders: WorkFolders,
    profile: Profile,
    capacity: Capacity,
    compiler: Compiler,
    compiler_memory: u64,
    /// How many threads one compiler may take.
    compiler_threads: Option<usize>,
    cache: Option<Cache>,
    resolver: Resolver,
    /// Turns at compiling.
    compile_turns: Arc<Semaphore>,
    /// Turns at components as they are in their files.
    read_turns: Semaphore,
    /// Turns at schemas that are not plain.
    schema_turns: Arc<Semaphore>,
    /// Stores of tasks that live now.
    tasks: AtomicUsize,
    /// Stores of components that are asked to describe themselves.
    asides: AtomicUsize,
    /// Turns at such a store.
    aside_turns: Arc<Semaphore>,
    /// The memory mappings that they take.
    mappings: AtomicU64,
    /// Guests that are being polled now.
    polled: AtomicUsize,
    /// Looks of the ticker that are still to be close together.
    close_looks: AtomicU32,
    /// The ticker sleeps until it is woken.
    asleep: AtomicBool,
    ticker: OnceLock<Thread>,
}

impl Engine {
    /// Sets up an engine.
    ///
    /// # Errors
    ///
    /// When wasmtime refuses the configuration or a thread cannot be started.
    pub fn new(config: EngineConfig) -> Result<Self, EngineError> {
        let capacity = config.capacity();
        let fail = |source| EngineError::Engine { instances: capacity.tasks, source };
        let settings = settings(config.profile, Some(&capacity));
        let wasmtime = wasmtime::Engine::new(&settings).map_err(fail)?;
        let linker = imports::linker(&wasmtime).map_err(fail)?;
        // As few as the threads that there are for all of them.
        let compiles = config.compile_threads.unwrap_or(COMPILES).clamp(1, COMPILES);
        let inner = Arc::new(Inner {
            wasmtime,
            linker,
            runtime: config.runtime,
            memory: Arc::new(GuestMemory::new(config.guest_memory)),
            work_folders: WorkFolders::default(),
            profile: config.profile,
            capacity,
            compiler: config.compiler,
            // So that it can also run what is compiled.
            compiler_memory: config.machine.memory() / 2,
            cache: config.cache,
            resolver: config.resolver,
            compiler_threads: config.compile_threads.map(|all| (all / compiles).max(1)),
            compile_turns: Arc::new(Semaphore::new(compiles)),
            read_turns: Semaphore::new(READS),
            schema_turns: Arc::new(Semaphore::new(SCHEMAS)),
            tasks: AtomicUsize::new(0),
            asides: AtomicUsize::new(0),
            aside_turns: Arc::new(Semaphore::new(ASIDES as usize)),
            mappings: AtomicU64::new(0),
            polled: AtomicUsize::new(0),
            close_looks: AtomicU32::new(0),
            asleep: AtomicBool::new(false),
            ticker: OnceLock::new(),
        });
        let weak = Arc::downgrade(&inner);
        let ticker = thread::Builder::new()
            .name("backlot-ticker".to_owned())
            .spawn(move || tick(&weak))
            .map_err(EngineError::Ticker)?;
        // Nobody else sets it: the cell is filled once, here.
        let _ = inner.ticker.set(ticker.thread().clone());
        Ok(Self(inner))
    }

    /// Returns what the engine is made for.
    pub fn profile(&self) -> Profile {
        self.0.profile
    }

    /// Returns how many instances live now.
    pub fn instances(&self) -> usize {
        self.0.stores(Ordering::Relaxed)
    }

    /// Returns how many tasks can live at a time, and why not more.
    pub fn capacity(&self) -> Capacity {
        self.0.capacity
    }

    /// Returns the linear memory that all guests have now, in bytes. What they never
    /// touched of it takes no room on the machine.
    pub fn guest_memory(&self) -> u64 {
        self.0.memory.declared()
    }

    /// Returns where compiled code is kept.
    pub fn cache(&self) -> Option<&Cache> {
        self.0.cache.as_ref()
    }

    /// Returns where costly work on schemas is done.
    pub(crate) fn checker(&self) -> Checker {
        Checker {
            compiler: self.0.compiler.clone(),
            memory: self.0.compiler_memory,
            turns: Arc::clone(&self.0.schema_turns),
        }
    }

    /// Has a component compiled, within what a compiler may take. Blocks.
    pub(crate) fn compile(
        &self,
        component: &[u8],
        events: &Events,
    ) -> Result<Vec<u8>, CompileError> {
        let inner = &self.0;
        let bounds = Bounds { memory: inner.compiler_memory, threads: inner.compiler_threads };
        inner.compiler.compile(inner.profile, component, &bounds, events)
    }

    /// Waits for a turn at compiling.
    pub(crate) async fn compile_turn(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.0.compile_turns).acquire_owned().await.ok()
    }

    /// Waits for a turn at a component file that has to be read and compiled.
    pub(crate) async fn read_turn(&self) -> Option<SemaphorePermit<'_>> {
        self.0.read_turns.acquire().await.ok()
    }

    /// Compiles the least component there is, to see whether that works on this
    /// machine. Blocks.
    ///
    /// # Errors
    ///
    /// When it does not.
    pub fn try_compiler(&self) -> Result<(), CompileError> {
        const EMPTY: &[u8] = b"\0asm\x0d\0\x01\0";
        let (_give_up, events) = given_up();
        self.compile(EMPTY, &events).map(drop)
    }

    pub(crate) fn wasmtime(&self) -> &wasmtime::Engine {
        &self.0.wasmtime
    }

    pub(crate) fn linker(&self) -> &Linker<Guest> {
        &self.0.linker
    }

    pub(crate) fn runtime(&self) -> &Handle {
        &self.0.runtime
    }

    pub(crate) fn resolver(&self) -> &Resolver {
        &self.0.resolver
    }

    pub(crate) fn memory(&self) -> &Arc<GuestMemory> {
        &self.0.memory
    }

    pub(crate) fn work_folders(&self) -> &WorkFolders {
        &self.0.work_folders
    }

    pub(crate) fn polled(&self) -> Polled {
        Polled(Arc::clone(&self.0))
    }

    /// Counts the store of one more task, which takes so many mappings, until the
    /// value is dropped.
    ///
    /// # Errors
    ///
    /// When there is no room for it.
    pub(crate) fn admit(&self, mappings: u64) -> Result<LiveStore, Full> {
        let inner = &self.0;
        let before = inner.tasks.fetch_add(1, Ordering::SeqCst);
        let mapped = inner.mappings.fetch_add(mappings, Ordering::Relaxed);
        // Gives back what was taken when it is not returned.
        let taken = LiveStore { engine: Arc::clone(inner), mappings, turn: None };
        if before >= inner.capacity.tasks as usize
            || mapped.saturating_add(mappings) > inner.capacity.mappings
        {
            return Err(Full { tasks: before, capacity: inner.capacity });
        }
        inner.wake_ticker();
        Ok(taken)
    }

    /// Counts a store that is no task's. It has its turn beside any number of
    /// tasks, so that a kind can be replaced on a host that is full.
    pub(crate) async fn admit_aside(&self, mappings: u64) -> LiveStore {
        let inner = &self.0;
        // The semaphore is never closed; without a turn the store is only one more.
        let turn = Arc::clone(&inner.aside_turns).acquire_owned().await.ok();
        inner.asides.fetch_add(1, Ordering::SeqCst);
        inner.mappings.fetch_add(mappings, Ordering::Relaxed);
        let taken = LiveStore { engine: Arc::clone(inner), mappings, turn: Some(turn) };
        inner.wake_ticker();
        taken
    }
}

impl Inner {
    fn stores(&self, ordering: Ordering) -> usize {
        self.tasks.load(ordering) + self.asides.load(ordering)
    }

    /// Wakes the ticker if it sleeps. A wake-up is a system call, so only a
    /// ticker that sleeps gets one.
    fn wake_ticker(&self) {
        if self.asleep.load(Ordering::SeqCst)
            && self.asleep.swap(false, Ordering::SeqCst)
            && let Some(ticker) = self.ticker.get()
        {
            ticker.unpark();
        }
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("instances", &self.instances()).finish_non_exhaustive()
    }
}

/// The count of guests that are being polled. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Polled(Arc<Inner>);

impl Polled {
    /// Has guests looked after closely for a while, as one is asked to stop.
    pub(crate) fn look_closely(&self) {
        self.0.close_looks.store(CLOSE_LOOKS, Ordering::Relaxed);
        if let Some(ticker) = self.0.ticker.get() {
            ticker.unpark();
        }
    }

    /// Returns the limit that a guest with that much memory has to end by, so that
    /// others can go on.
    pub(crate) fn must_go(&self, memory: u64) -> Option<Exceeded> {
        let all = &self.0.memory;
        all.must_go(memory, self.0.stores(Ordering::Relaxed))
            .then(|| Exceeded::HostMemory(all.limit()))
    }

    /// Counts one guest for as long as `poll` runs.
    pub(crate) fn during<T>(&self, poll: impl FnOnce() -> T) -> T {
        /// Gives the count back also when a poll panics.
        struct Poll<'a>(&'a AtomicUsize);
        impl Drop for Poll<'_> {
            fn drop(&mut self) {
                self.0.fetch_sub(1, Ordering::Relaxed);
            }
        }
        self.0.polled.fetch_add(1, Ordering::Relaxed);
        let _poll = Poll(&self.0.polled);
        poll()
    }
}

/// One live store.
pub(crate) struct LiveStore {
    engine: Arc<Inner>,
    mappings: u64,
    /// The turn of a store that is no task's.
    turn: Option<Option<OwnedSemaphorePermit>>,
}

impl Drop for LiveStore {
    fn drop(&mut self) {
        self.engine.mappings.fetch_sub(self.mappings, Ordering::Relaxed);
        let counted = if self.turn.is_some() { &self.engine.asides } else { &self.engine.tasks };
        counted.fetch_sub(1, Ordering::Relaxed);
    }
}

/// There is no room for one more task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the host holds {tasks} live tasks, and no more fit: it is bounded by {}; end some, or raise that with {}",
    capacity.bound, capacity.raise()
)]
pub(crate) struct Full {
    tasks: usize,
    capacity: Capacity,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Wakes the ticker, which then finds its engine gone.
        if let Some(ticker) = self.ticker.get() {
            ticker.unpark();
        }
    }
}

/// Advances the epoch while guests compute, looks now and then while they are
/// parked, and sleeps once there have been none for a while.
fn tick(engine: &Weak<Inner>) {
    let mut empty_looks = 0;
    loop {
        let Some(inner) = engine.upgrade() else { return };
        let computing = inner.polled.load(Ordering::Relaxed) > 0;
        let empty = inner.stores(Ordering::Relaxed) == 0;
        let closely = inner
            .close_looks
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |looks| looks.checked_sub(1))
            .is_ok();
        if computing {
            inner.wasmtime.increment_epoch();
            inner.memory.look();
        }
        empty_looks = if empty { empty_looks + 1 } else { 0 };
        let mut sleeps = empty_looks > EMPTY_LOOKS;
        if sleeps {
            // Said first and looked again after, so that a store made meanwhile
            // is either seen here or wakes the ticker.
            inner.asleep.store(true, Ordering::SeqCst);
            sleeps = inner.stores(Ordering::SeqCst) == 0;
        }
        drop(inner);
        match () {
            () if computing || closely => thread::park_timeout(TICK),
            () if !sleeps => thread::park_timeout(PARKED_TICK),
            // The next store wakes it, and so does the end of its engine: an idle host
            // costs nothing.
            () => thread::park(),
        }
    }
}
