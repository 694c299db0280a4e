//! What a surface is of.

use std::{fmt, path::PathBuf, sync::Arc, time::Duration};

use backlot_jobs::{DataFolder, Job, JobId, Manager};
use backlot_registry::{BoxFuture, Catalog, Kind, Registry};
use tokio::sync::Notify;

use crate::{
    error::Failure,
    feed::Feed,
    mcp,
    metrics::Metrics,
    wire::{HostAbout, SpawnRequest},
};

/// What a surface is of: the jobs of a host, and what only the host itself can do. Cheap
/// to clone.
#[derive(Clone)]
pub struct Api {
    /// The jobs.
    pub manager: Manager,
    /// Where their output and files are.
    pub folder: DataFolder,
    /// The tasks that live.
    pub registry: Registry,
    /// The kinds there are.
    pub catalog: Arc<dyn Catalog>,
    /// What becomes of the jobs.
    pub feed: Feed,
    /// What is counted.
    pub metrics: Metrics,
    /// How the host is shown to models.
    pub mcp: mcp::Options,
    /// What models are being told by one of the surfaces, and not by the others meanwhile.
    pub claims: mcp::Claims,
    /// The host.
    pub host: Arc<dyn HostSide>,
}

impl fmt::Debug for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Api").field("folder", &self.folder).finish_non_exhaustive()
    }
}

/// What only the host itself can do.
pub trait HostSide: Send + Sync + 'static {
    /// Spawns a job, and returns it once its first run is under way, or it waits.
    ///
    /// The request has passed [`SpawnRequest::check`]. A caller that is narrowed to a
    /// session has that session in it. The future is driven to its end, also where who
    /// asked goes away.
    ///
    /// # Errors
    ///
    /// [`Failure`], with nothing left.
    fn spawn(&self, request: SpawnRequest) -> BoxFuture<'_, Result<Job, Failure>>;

    /// Looks at the plugin folder, and takes what has changed in it. Returns once that is
    /// done; what came of it is in the catalogue.
    ///
    /// # Errors
    ///
    /// [`Failure`] when the folder cannot be read.
    fn reload(&self) -> BoxFuture<'_, Result<(), Failure>>;

    /// Resolves once the host knows which kinds there are: each file that the plugin folder
    /// had when it was started is loaded, or found wrong. The catalogue has them then.
    fn kinds_are_known(&self) -> BoxFuture<'_, ()>;

    /// Changes whether, and as which version, tasks of a kind are started.
    ///
    /// # Errors
    ///
    /// [`Failure`], with nothing changed.
    fn change_kind(&self, kind: Kind, change: KindChange) -> BoxFuture<'_, Result<(), Failure>>;

    /// Ends the host in order, without waiting for that: as if its process had been told
    /// to terminate. Jobs that run may go on for so long, or else as the host is set up;
    /// returns how long that is.
    fn shutdown(&self, drain: Option<Duration>) -> Duration;

    /// Returns what does not work as it should and keeps nothing from working, a line each.
    fn warnings(&self) -> Vec<String> {
        Vec::new()
    }

    /// Writes a copy of all that is recorded to a path, which is absolute.
    ///
    /// # Errors
    ///
    /// [`Failure`] when it cannot be written there.
    fn backup(&self, to: PathBuf) -> BoxFuture<'_, Result<(), Failure>>;

    /// Returns what is notified, by [`Notify::notify_waiters`], whenever output of the
    /// job was recorded, for as long as it is held.
    ///
    /// All that a run wrote is recorded before its job has ended.
    fn recorded(&self, job: JobId) -> Arc<Notify>;

    /// Returns which host this is.
    fn about(&self) -> HostAbout;

    /// Returns what the host alone can measure.
    fn gauges(&self) -> HostGauges;
}

/// What a host measures of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostGauges {
    /// How many tasks of components can live at a time.
    pub task_capacity: u64,
    /// How many live.
    pub tasks: u64,
    /// The linear memory that guests have, in bytes.
    pub guest_memory: u64,
}

/// What is done to a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KindChange {
    /// Its file is loaded, also where the kind was unloaded or drained.
    Load,
    /// No more tasks are started; those that run go on, and once none does the kind is
    /// unloaded, which is when this is done.
    Drain,
    /// No more tasks are started until its file changes, and it is let go of.
    Unload,
    /// Tasks are started of the version that was current before, or of that number.
    Rollback(Option<u64>),
}
