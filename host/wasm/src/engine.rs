//! The engine that all components of a host share.
//!
//! One wasmtime engine, one linker with everything that a component may
//! import, and one ticker that makes computing guests yield. What differs
//! between two tasks is in their stores.

use std::{
    fmt, io,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    thread::{self, Thread},
    time::Duration,
};

use tokio::runtime::Handle;
use wasmtime::{Enabled, InstanceAllocationStrategy, PoolingAllocationConfig, component::Linker};

use crate::{imports, limits::GuestMemory, store::Guest};

/// How often a computing guest yields to others on its thread.
///
/// A millisecond bounds what one spinning guest costs the latency of the rest,
/// and its cost is one relaxed load for each loop of the guest.
const TICK: Duration = Duration::from_millis(1);

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
    /// Returns the defaults: as many instances as fit the kernel's usual limit of
    /// 65,530 memory mappings at ten a task, and three quarters of the
    /// machine's memory for guests.
    pub fn new(runtime: Handle) -> Self {
        Self { runtime, instances: 6_000, guest_memory: machine_memory() / 4 * 3 }
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

    /// Counts one more live store until the value is dropped.
    pub(crate) fn count_store(&self) -> LiveStore {
        if self.0.stores.fetch_add(1, Ordering::Relaxed) == 0
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

/// Advances the epoch while stores live, and sleeps while there are none.
fn tick(engine: &Weak<Inner>) {
    loop {
        let Some(inner) = engine.upgrade() else { return };
        let idle = inner.stores.load(Ordering::Relaxed) == 0;
        if !idle {
            inner.wasmtime.increment_epoch();
        }
        drop(inner);
        // The second bounds how long a lost wake-up could delay the first tick.
        thread::park_timeout(if idle { Duration::from_secs(1) } else { TICK });
    }
}

fn settings(config: &EngineConfig) -> wasmtime::Config {
    let mut pool = PoolingAllocationConfig::new();
    // A component brings a few core instances (its module, shims, adapters);
    // the other numbers are bounds a guest's shape has to fit, not reservations.
    pool.total_component_instances(config.instances)
        .total_core_instances(config.instances.saturating_mul(8))
        .total_memories(config.instances.saturating_mul(2))
        .total_tables(config.instances.saturating_mul(4))
        .total_stacks(config.instances.saturating_mul(2))
        .max_memories_per_module(4)
        .max_tables_per_module(8)
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
        .epoch_interruption(true)
        // A trap's own text is what people are shown; frames go to the log.
        .wasm_backtrace_max_frames(std::num::NonZeroUsize::new(20))
        .allocation_strategy(InstanceAllocationStrategy::Pooling(pool));
    settings
}

/// Returns the machine's memory in bytes, or 4 GiB where it cannot be told.
fn machine_memory() -> u64 {
    let info = rustix::system::sysinfo();
    match info.totalram.saturating_mul(u64::from(info.mem_unit.max(1))) {
        0 => 4 << 30,
        bytes => bytes,
    }
}
