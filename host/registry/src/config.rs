//! What the registry is told from outside: bounds, caps, clock and spill files.

use std::{
    io,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use crate::Kind;

/// The bounds of a registry. Each default carries its reason.
#[derive(Clone, Debug)]
pub struct Config {
    /// The bounds of the stop ladder, for kinds that name none of their own.
    pub bounds: StopBounds,
    /// How long a producer's `run` may take.
    pub start_deadline: Duration,
    /// How many tasks may be live at once.
    pub caps: Caps,
    /// How long the records of ended tasks are kept.
    pub retention: Retention,
    /// How much output is kept.
    pub spool: SpoolLimits,
    /// How many notices may wait for one completion listener. What comes on
    /// top is missed, counted and logged.
    pub notice_queue: usize,
    /// How long an announcement waits for somebody who waits for the task to
    /// take its end.
    pub report_delay: Duration,
    /// How long a read waits for the work to hand over its output. A guest that
    /// computes cannot be reached meanwhile.
    pub drain: Duration,
    /// How often an observer that has seen everything asks the work for more.
    pub follow: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            bounds: StopBounds::default(),
            // Compiling is over by then; instantiating takes microseconds.
            start_deadline: Duration::from_secs(5),
            caps: Caps::default(),
            retention: Retention::default(),
            spool: SpoolLimits::default(),
            // A burst of endings of a host at its default retention fits.
            notice_queue: 10_000,
            // A waiter that is alive takes the end within microseconds.
            report_delay: Duration::from_secs(1),
            // Long against the microseconds of a guest at an await, short to a person.
            drain: Duration::from_millis(100),
            // Fluent to the eye, and far apart against what a drain costs.
            follow: Duration::from_millis(25),
        }
    }
}

/// The bounds of the stop ladder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StopBounds {
    /// How long the work may take to answer whether it stops.
    pub ask: Duration,
    /// How long work that has agreed may take to end.
    pub grace: Duration,
}

impl StopBounds {
    /// Returns how long both may take.
    pub(crate) fn whole(&self) -> Duration {
        self.ask.saturating_add(self.grace)
    }
}

impl Default for StopBounds {
    fn default() -> Self {
        Self { ask: Duration::from_secs(1), grace: Duration::from_secs(5) }
    }
}

/// How many tasks may be live at once; `None` is no cap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caps {
    /// For each owner.
    pub per_owner: Option<usize>,
    /// For each kind.
    pub per_kind: Option<usize>,
    /// Overall.
    pub total: Option<usize>,
}

/// How long the records of ended tasks are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// How many records are kept; the oldest go first.
    pub count: usize,
    /// How long after its end a record is kept.
    pub age: Duration,
}

impl Default for Retention {
    fn default() -> Self {
        Self { count: 10_000, age: Duration::from_secs(24 * 60 * 60) }
    }
}

/// How much output is kept, in bytes.
///
/// Whatever the limit, the oldest bytes of the task that exceeds it go and are
/// counted; a limit of 0 keeps nothing in that place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpoolLimits {
    /// In memory, for each task.
    pub memory: u64,
    /// In a spill file, for each task. Needs a [`SpillStore`].
    pub disk: u64,
    /// In memory, for all tasks together.
    pub total_memory: u64,
    /// In spill files, for all tasks together.
    pub total_disk: u64,
    /// In memory, for the log of each task.
    pub log: u64,
}

impl Default for SpoolLimits {
    fn default() -> Self {
        Self {
            memory: 1 << 20,
            disk: 64 << 20,
            // A quarter of a small machine, and a folder that a laptop bears.
            total_memory: 256 << 20,
            total_disk: 4 << 30,
            log: 64 << 10,
        }
    }
}

/// What the registry needs of the process around it.
#[derive(Clone)]
pub struct Environment {
    /// Tells the time that snapshots show.
    pub clock: Arc<dyn Clock>,
    /// Makes the files that output spills to; without one it stays in memory.
    pub spill: Option<Arc<dyn SpillStore>>,
    /// Drives the tasks.
    pub runtime: tokio::runtime::Handle,
    /// Returns the number of the first task of a kind. Asked once for each kind.
    pub first_number: Arc<dyn Fn(&Kind) -> u64 + Send + Sync>,
}

impl Environment {
    /// Returns an environment with the system's clock, without spill files,
    /// whose numbers begin with 1.
    pub fn new(runtime: tokio::runtime::Handle) -> Self {
        Self { clock: Arc::new(SystemClock), spill: None, runtime, first_number: Arc::new(|_| 1) }
    }
}

/// Tells the time of day.
///
/// Only what snapshots show comes from it. Every duration is measured on
/// tokio's clock, so a jump of this one does no harm.
pub trait Clock: Send + Sync {
    /// Returns the milliseconds since the Unix epoch.
    fn epoch_ms(&self) -> u64;
}

/// The clock of the system.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn epoch_ms(&self) -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }
}

/// Makes files for output that does not fit in memory.
pub trait SpillStore: Send + Sync {
    /// Returns a new, empty file, which is gone once it is dropped.
    ///
    /// # Errors
    ///
    /// Any; the output of the task then stays in memory.
    fn create(&self) -> io::Result<Box<dyn SpillFile>>;
}

/// A file that output spills to.
pub trait SpillFile: Send {
    /// Writes all the bytes at an offset, which may be the end of the file.
    ///
    /// # Errors
    ///
    /// Any, such as a full disk; the file then grows no further.
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Fills the buffer from an offset. Reads only what was written.
    ///
    /// # Errors
    ///
    /// Any; what the file held is then told as dropped.
    fn read_at(&mut self, offset: u64, bytes: &mut [u8]) -> io::Result<()>;
}
