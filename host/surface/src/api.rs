//! What a surface is of.

use std::{fmt, path::PathBuf, sync::Arc};

use backlot_jobs::{DataFolder, Job, JobId, Manager};
use backlot_registry::BoxFuture;
use tokio::sync::Notify;

use crate::{
    error::Failure,
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
}
