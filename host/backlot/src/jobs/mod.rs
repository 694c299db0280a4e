//! The jobs of a host: durable work whose runs are tasks of its registry.
//!
//! Here the two meet: a run of a job is started as a task on the terms that its kind has,
//! its output is recorded in the data folder, and what follows it is asked of the
//! component that the job was begun with.

use std::{
    collections::HashSet,
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use backlot_jobs::{
    Census, DataFolder, FolderError, Gone, Held, HoldError, Holder, Job, JobId, Manager, OpenError,
    Query, Recovered, Reports, SqliteOptions, SqliteStore, Status, Store, StoreError, World, files,
    output::Limits,
};
use backlot_registry::{SessionId, SystemClock};
use backlot_surface::{Feed, Metrics};
use tokio::sync::{Notify, futures::Notified};

use self::{
    keeping::{Clearing, Keeping},
    launcher::TaskLauncher,
    record::Records,
    steps::Steps,
    sweep::Found,
    versions::Versions,
};
use crate::{
    host::Host,
    numbers::Numbers,
    telemetry::{StartError, TelemetryError, TelemetryOptions, Traces},
    webhooks::WebhookOptions,
};

mod grant;
mod keeping;
mod launcher;
mod record;
mod spawn;
mod steps;
mod sweep;
mod versions;

pub(crate) use self::grant::Recorded;

/// How the jobs of a host are set up.
#[derive(Clone, Debug)]
pub struct JobsConfig {
    /// The folder with everything that outlives the host.
    pub data: PathBuf,
    /// What the manager is set up with.
    pub manager: backlot_jobs::Config,
    /// How much of each job's output and log is recorded.
    pub record: Limits,
    /// How many bytes of output and files jobs have together. Past it the oldest that have
    /// ended are deleted.
    pub keep_bytes: u64,
    /// How webhooks are told of endings. It takes a [`Holding`](crate::Holding).
    pub webhooks: WebhookOptions,
    /// Where traces of the jobs go; nowhere where it is `None`.
    pub telemetry: Option<TelemetryOptions>,
}

impl JobsConfig {
    /// Returns the defaults for a data folder.
    pub fn new(data: impl Into<PathBuf>) -> Self {
        Self {
            data: data.into(),
            manager: backlot_jobs::Config::default(),
            record: Limits::default(),
            // A folder that a laptop bears.
            keep_bytes: 8 << 30,
            webhooks: WebhookOptions::default(),
            telemetry: None,
        }
    }
}

/// Why the jobs of a host could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum JobsError {
    /// The data folder cannot be used.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The data folder cannot be held, or another host holds it.
    #[error(transparent)]
    Hold(#[from] HoldError),
    /// The store cannot be opened.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// What is in the store could not be recovered.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Traces of the jobs cannot be told.
    #[error(transparent)]
    Telemetry(#[from] TelemetryError),
}

impl From<StartError> for JobsError {
    fn from(error: StartError) -> Self {
        match error {
            StartError::Telemetry(error) => Self::Telemetry(error),
            StartError::Store(error) => Self::Store(error),
        }
    }
}

/// The jobs of a host, over a data folder that it alone writes to.
///
/// The tasks of runs belong to the host's registry, so [`Jobs::shutdown`] comes before
/// the host's own.
pub struct Jobs {
    manager: Manager,
    launcher: Arc<TaskLauncher>,
    versions: Arc<Versions>,
    records: Arc<Records>,
    store: Arc<SqliteStore>,
    record: Limits,
    changed: Arc<Notify>,
    feed: Feed,
    metrics: Metrics,
    traces: Option<Traces>,
    _keeping: Keeping,
    is_leaving: AtomicBool,
    numbers: Option<Numbers>,
    // The last to be dropped: somebody else may have the folder then.
    held: Held,
}

impl Jobs {
    /// Takes the data folder and opens its jobs. Those that were working when the last
    /// host ended have failed by the time that this returns.
    ///
    /// Must be called on a tokio runtime, which then drives them.
    ///
    /// # Errors
    ///
    /// When the folder is held by another host, or what is in it cannot be used; nothing
    /// has changed then.
    pub async fn open(host: &Host, config: JobsConfig) -> Result<(Self, Recovered), JobsError> {
        let held = Self::hold(&config)?;
        Self::open_held(host, config, held, None).await
    }

    /// Takes the data folder, in which nothing is changed by that.
    pub(crate) fn hold(config: &JobsConfig) -> Result<Held, JobsError> {
        let holder = Holder::this(concat!("backlot ", env!("CARGO_PKG_VERSION")));
        Ok(DataFolder::open(&config.data)?.hold(&holder)?)
    }

    /// Opens the jobs of a host that holds their folder, and whose tasks are counted on from
    /// those before it.
    pub(crate) async fn open_held(
        host: &Host,
        config: JobsConfig,
        held: Held,
        numbers: Option<Numbers>,
    ) -> Result<(Self, Recovered), JobsError> {
        let folder = held.folder().clone();
        // Before any job can be spawned, so that none of a new one is among them.
        let at = folder.clone();
        let found = tokio::task::spawn_blocking(move || Found::look(at)).await;
        let found = found.map_err(|_| StoreError::Closed)?;
        let database = folder.database();
        let opened = move || SqliteStore::open(&database, SqliteOptions::default());
        let opened = tokio::task::spawn_blocking(opened).await;
        let store = Arc::new(opened.unwrap_or(Err(StoreError::Closed))?);
        let versions = Arc::new(Versions::new(host, folder.components()));
        let metrics = Metrics::default();
        let records = Arc::new(Records::new(folder.clone(), config.record, metrics.clone()));
        let launcher =
            Arc::new(TaskLauncher::new(host, versions.clone(), records.clone(), numbers.clone()));
        let changed = Arc::new(Notify::new());
        let feed = Feed::default();
        let clearing = Arc::new(Clearing::default());
        let shared: Arc<dyn Store> = store.clone();
        // Before anything is recovered, which is told as well.
        let traces = match &config.telemetry {
            Some(options) => Some(Traces::start(options, &shared).await?),
            None => None,
        };
        let world = World {
            follow: Arc::new(Steps::new(versions.clone())),
            reports: Arc::new(Kept {
                versions: Arc::downgrade(&versions),
                folder: folder.clone(),
                changed: changed.clone(),
                feed: feed.clone(),
                metrics: metrics.clone(),
                traces: traces.clone(),
                clearing: clearing.clone(),
            }),
            ..World::new(launcher.clone())
        };
        let limits = within(most(host, &config.manager), config.manager.limits);
        let manager = backlot_jobs::Config { limits, ..config.manager };
        let (manager, recovered) = Manager::open(shared, world, manager).await?;
        let keeping = Keeping::start(manager.clone(), folder.jobs(), config.keep_bytes, clearing);
        let jobs = Self {
            manager,
            launcher,
            versions,
            records,
            store,
            record: config.record,
            changed,
            feed,
            metrics,
            traces,
            _keeping: keeping,
            numbers,
            is_leaving: AtomicBool::new(false),
            held,
        };
        jobs.sweep(found).await?;
        Ok((jobs, recovered))
    }

    /// Returns the manager of the jobs.
    pub fn manager(&self) -> &Manager {
        &self.manager
    }

    /// Returns the data folder.
    pub fn folder(&self) -> &DataFolder {
        self.held.folder()
    }

    /// Returns the right to write in the data folder.
    pub fn held(&self) -> &Held {
        &self.held
    }

    /// Returns the store.
    pub fn store(&self) -> &Arc<SqliteStore> {
        &self.store
    }

    /// Returns what is notified whenever output of a job was recorded.
    pub fn recorded(&self, job: JobId) -> Arc<Notify> {
        self.records.watch(job)
    }

    /// Returns what resolves once a job has changed since it was made.
    pub fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }

    /// Returns what tells what becomes of the jobs.
    pub fn feed(&self) -> &Feed {
        &self.feed
    }

    /// Returns what is counted of the jobs.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Returns how much of each job is recorded.
    pub fn record_limits(&self) -> Limits {
        self.record
    }

    /// Returns the registry's id of the task that does a job's run.
    pub fn task_of(&self, job: &Job) -> Option<backlot_registry::TaskId> {
        job.run().and_then(|run| self.launcher.task(run))
    }

    /// Deletes a session with all that belongs to it.
    ///
    /// # Errors
    ///
    /// As [`Manager::delete_session`].
    pub async fn delete_session(
        &self,
        session: &SessionId,
        by: &str,
        bound: Duration,
    ) -> Result<Vec<JobId>, backlot_jobs::TreeError> {
        let removed = self.manager.delete_session(session, by, bound).await?;
        self.launcher.forget(session).await;
        Ok(removed)
    }

    /// Clears away what nothing names any more: of the folders that were found those whose
    /// jobs are gone, and versions that no job runs.
    async fn sweep(&self, found: Found) -> Result<(), StoreError> {
        let (mut jobs, mut digests) = (HashSet::new(), HashSet::new());
        let mut query = Query { limit: 1_000, ..Query::default() };
        loop {
            let page = self.store.list(query.clone()).await?;
            for job in &page.jobs {
                jobs.insert(job.id.to_string());
                if !job.status().is_terminal() {
                    digests.extend(job.code.iter().map(|code| code.digest.clone()));
                }
                // It can be tried again as long as it is there.
                digests.extend(job.spec.pinned.clone());
            }
            match page.next {
                None => break,
                next => query.before = next,
            }
        }
        let versions = self.versions.clone();
        let swept = tokio::task::spawn_blocking(move || {
            versions.sweep(&digests);
            found.sweep(&jobs);
        });
        // It goes on by itself; what it does not reach is there the next time.
        drop(swept);
        Ok(())
    }

    /// Returns how many jobs there are by where they stand.
    ///
    /// # Errors
    ///
    /// When the store cannot be read.
    pub async fn census(&self) -> Result<Census, StoreError> {
        self.store.census().await
    }

    /// Refuses whatever would begin a run from now on; those that are under way go on.
    pub fn refuse(&self) {
        self.is_leaving.store(true, Ordering::Release);
        self.manager.refuse();
    }

    /// Ends every run by the stop ladder, and writes down how each has ended. Jobs that
    /// were working fail with `host shutdown`, and can be tried again. Returns whether all
    /// was written within the bound. Traces of them have two more seconds to be told.
    pub async fn shutdown(&self, host: &Host, bound: Duration) -> bool {
        self.refuse();
        host.registry().dispose().await;
        let written = self.manager.close(bound).await;
        if let Some(numbers) = self.numbers.clone() {
            let settled = tokio::task::spawn_blocking(move || numbers.settle());
            // It is the runtime's if it panics.
            let _ = settled.await;
        }
        if let Some(traces) = &self.traces {
            traces.end().await;
        }
        written
    }
}

/// Returns how many jobs may be live: no more than the host holds tasks, so that what waits
/// goes on waiting and is not started in vain.
fn most(host: &Host, config: &backlot_jobs::Config) -> usize {
    let holds = usize::try_from(host.engine().capacity().tasks).unwrap_or(usize::MAX);
    let allowed = host.policy().tasks().unwrap_or(usize::MAX);
    config.limits.total.min(holds).min(allowed).max(1)
}

/// Returns limits for a host that holds so many jobs. However few that are, whoever has many
/// sessions takes no more than half of them, or than he may with one.
fn within(total: usize, limits: backlot_jobs::Limits) -> backlot_jobs::Limits {
    let share = (total / 2).max(limits.per_session);
    backlot_jobs::Limits { total, per_family: limits.per_family.min(share), ..limits }
}

/// Lets go of what belongs to jobs once they do not need it.
struct Kept {
    versions: Weak<Versions>,
    folder: DataFolder,
    changed: Arc<Notify>,
    feed: Feed,
    metrics: Metrics,
    traces: Option<Traces>,
    clearing: Arc<Clearing>,
}

impl Reports for Kept {
    fn on_spawned(&self, job: &Job) {
        self.metrics.spawned(job);
    }

    fn on_job_update(&self, job: &Job) {
        self.metrics.changed(job);
        if let Some(traces) = &self.traces {
            traces.changed(job);
        }
        self.changed.notify_waiters();
        self.feed.changed(job);
        if job.status() != Status::Working
            && let Some(versions) = self.versions.upgrade()
        {
            versions.release(job.id);
        }
    }

    fn on_removed(&self, gone: &[Gone]) {
        self.metrics.removed(gone);
        if let Some(traces) = &self.traces {
            traces.removed(gone);
        }
        self.feed.removed(gone);
        let folders: Vec<PathBuf> = gone.iter().map(|gone| self.folder.job(gone.job)).collect();
        let clearing = self.clearing.begin();
        tokio::task::spawn_blocking(move || {
            let _clearing = clearing;
            for folder in folders {
                if let Err(error) = files::remove(&folder) {
                    tracing::warn!("what a job has left cannot be deleted: {error}");
                }
            }
        });
    }
}

/// Locks what nobody leaves half done.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The clock that records are stamped by.
const CLOCK: SystemClock = SystemClock;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_has_many_sessions_takes_half_of_whatever_the_host_holds() {
        let usual = backlot_jobs::Config::default().limits;
        let share = |total| within(total, usual).per_family;
        assert_eq!((share(1_024), share(200)), (512, 100));
        // With one session it would be as much.
        assert_eq!((share(100), share(8)), (usual.per_session, usual.per_session));
        assert_eq!(within(8, usual).total, 8);
    }
}
