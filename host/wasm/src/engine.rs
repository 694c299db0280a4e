//! The engine that all components of a host share.
//!
//! One wasmtime engine, one linker with everything that a component may
//! import, and one ticker that makes computing guests yield. What differs
//! between two tasks is in their stores.

use std::{
    fmt, io,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::{self, Thread},
    time::Duration,
};

use tokio::runtime::Handle;
use wasmtime::{Enabled, InstanceAllocationStrategy, PoolingAllocationConfig, component::Linker};

use crate::{imports, limits::GuestMemory, store::Guest};

/// How many core instances, memories and tables one component may have. Real
/// ones have a handful of each: their module, shims and adapters.
pub(crate) const CORE_INSTANCES: u32 = 64;
pub(crate) const MEMORIES: u32 = 8;
pub(crate) const TABLES: u32 = 32;

/// How often a computing guest yields to others on its thread.
///
/// A millisecond bounds what one spinning guest costs the latency of the rest,
/// and its cost is one relaxed load for each loop of the guest.
const TICK: Duration = Duration::from_millis(1);
/// How often the ticker looks whether a parked guest has begun to compute: what
/// the first turn of a guest may take longer.
const PARKED_TICK: Duration = Duration::from_millis(5);
/// How many looks in a row find no guest before the ticker sleeps: half a second,
/// so that a run of short tasks wakes it once.
const EMPTY_LOOKS: u32 = 100;

/// How an [`Engine`] is set up.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// The runtime that stores are driven on. Guests block its blocking pool
    /// with file calls, so the host's own work belongs on another.
    pub runtime: Handle,
    /// How many instances can live at a time.
    pub instances: u32,
    /// Linear memory over all guests, in bytes.
    pub guest_memory: u64,
}

impl EngineConfig {
    /// Returns the defaults: as many instances as memory mappings allow, and
    /// three quarters of the machine's memory for guests.
    pub fn new(runtime: Handle) -> Self {
        Self { runtime, instances: default_instances(), guest_memory: machine_memory() / 4 * 3 }
    }

    /// Returns what wasmtime is set up with, so that a program can measure
    /// itself against wasmtime alone.
    pub fn settings(&self) -> wasmtime::Config {
        settings(self)
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
    capacity: u32,
    /// Stores that live now.
    stores: AtomicUsize,
    /// Guests that are being polled now.
    polled: AtomicUsize,
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
        let fail = |source| EngineError::Engine { instances: config.instances, source };
        let wasmtime = wasmtime::Engine::new(&settings(&config)).map_err(fail)?;
        let linker = imports::linker(&wasmtime).map_err(fail)?;
        let inner = Arc::new(Inner {
            wasmtime,
            linker,
            runtime: config.runtime,
            memory: Arc::new(GuestMemory::new(config.guest_memory)),
            capacity: config.instances,
            stores: AtomicUsize::new(0),
            polled: AtomicUsize::new(0),
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

    /// Returns how many instances live now.
    pub fn instances(&self) -> usize {
        self.0.stores.load(Ordering::Relaxed)
    }

    /// Returns how many instances can live at a time.
    pub fn capacity(&self) -> u32 {
        self.0.capacity
    }

    /// Returns the linear memory that all guests hold now, in bytes.
    pub fn guest_memory(&self) -> u64 {
        self.0.memory.used()
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

    pub(crate) fn memory(&self) -> &Arc<GuestMemory> {
        &self.0.memory
    }

    pub(crate) fn polled(&self) -> Polled {
        Polled(Arc::clone(&self.0))
    }

    /// Counts one more live store until the value is dropped.
    pub(crate) fn count_store(&self) -> LiveStore {
        self.0.stores.fetch_add(1, Ordering::SeqCst);
        // A wake-up is a system call, so only a ticker that sleeps gets one.
        if self.0.asleep.load(Ordering::SeqCst)
            && self.0.asleep.swap(false, Ordering::SeqCst)
            && let Some(ticker) = self.0.ticker.get()
        {
            ticker.unpark();
        }
        LiveStore(Arc::clone(&self.0))
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
pub(crate) struct LiveStore(Arc<Inner>);

impl Drop for LiveStore {
    fn drop(&mut self) {
        self.0.stores.fetch_sub(1, Ordering::Relaxed);
    }
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
        let empty = inner.stores.load(Ordering::Relaxed) == 0;
        if computing {
            inner.wasmtime.increment_epoch();
        }
        empty_looks = if empty { empty_looks + 1 } else { 0 };
        let mut sleeps = empty_looks > EMPTY_LOOKS;
        if sleeps {
            // Said first and looked again after, so that a store made meanwhile
            // is either seen here or wakes the ticker.
            inner.asleep.store(true, Ordering::SeqCst);
            sleeps = inner.stores.load(Ordering::SeqCst) == 0;
        }
        drop(inner);
        thread::park_timeout(match () {
            () if computing => TICK,
            () if !sleeps => PARKED_TICK,
            // It is woken; the bound only lets it see that its engine is gone.
            () => Duration::from_secs(1),
        });
    }
}

fn settings(config: &EngineConfig) -> wasmtime::Config {
    let mut pool = PoolingAllocationConfig::new();
    // Reservations, not memory. A component of the usual shape has four core
    // instances, a memory and two tables; the floors let one of the largest
    // shape into a small pool.
    let of = |each: u32, floor: u32| config.instances.saturating_mul(each).max(floor);
    pool.total_component_instances(config.instances)
        .total_core_instances(of(5, CORE_INSTANCES))
        .total_memories(of(1, MEMORIES).saturating_add(MEMORIES))
        .total_tables(of(3, TABLES))
        // A guest has one stack at a time, and another while it is entered in
        // the middle of a blocking call.
        .total_stacks(config.instances.saturating_add(config.instances / 8).saturating_add(16))
        .max_core_instances_per_component(CORE_INSTANCES)
        .max_memories_per_component(MEMORIES)
        .max_tables_per_component(TABLES)
        .max_memories_per_module(MEMORIES)
        .max_tables_per_module(TABLES)
        .table_elements(100_000)
        // Keeping a small guest's pages beats unmapping them under the
        // process-wide lock at each teardown, by two to six times.
        .linear_memory_keep_resident(2 << 20)
        .table_keep_resident(64 << 10)
        .decommit_batch_size(64)
        .pagemap_scan(Enabled::Auto);
    let mut settings = wasmtime::Config::new();
    settings
        .wasm_component_model_async(true)
        // A failed grow of such a memory is told twice, and would be counted so.
        .wasm_custom_page_sizes(false)
        .epoch_interruption(true)
        // A trap's own text is what people are shown; frames go to the log.
        .wasm_backtrace_max_frames(std::num::NonZeroUsize::new(20))
        .allocation_strategy(InstanceAllocationStrategy::Pooling(pool));
    settings
}

/// Returns how many instances the kernel's limit on memory mappings allows. A
/// task takes eight to ten of them, and each stack of the pool two from the
/// start.
pub fn default_instances() -> u32 {
    let mappings = std::fs::read_to_string("/proc/sys/vm/max_map_count")
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(65_530_u32);
    // More than that does not fit the address space at 4 GiB a memory.
    (mappings / 13).clamp(16, 16_000)
}

/// Returns the machine's memory in bytes, or 4 GiB where it cannot be told.
fn machine_memory() -> u64 {
    let info = rustix::system::sysinfo();
    match info.totalram.saturating_mul(u64::from(info.mem_unit.max(1))) {
        0 => 4 << 30,
        bytes => bytes,
    }
}
