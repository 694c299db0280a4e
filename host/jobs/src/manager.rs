//! The manager: what its parts share, and how it begins and ends.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use backlot_registry::Caller;
use futures::{FutureExt as _, future::join_all};
use tokio::{
    runtime::Handle,
    sync::Notify,
    time::{Instant, timeout, timeout_at},
};

use crate::{
    config::Config,
    drive::Driven,
    id::{self, JobId, NoRandom, RunId},
    job::{Event, Job, Status, StopRequest},
    recovery::Plan,
    steady::SteadyClock,
    store::{Census, Change, ChangeError, Changed, Query, Refused, Store, StoreError},
    waiting::Waiting,
    watch::{Awaited, Watches},
    world::World,
};

/// The jobs of a host. A cheap handle; all clones are one manager.
///
/// A manager reports endings, it does not deliver them, and it interrupts nobody. Once
/// the last handle is dropped, runs that end are not written down any more, and the next
/// manager finds their jobs interrupted; [`Manager::close`] ends it in order.
#[derive(Clone)]
pub struct Manager {
    pub(crate) inner: Arc<Inner>,
    _hold: Arc<Hold>,
}

/// Ends the manager when the last of its handles is dropped. What goes on inside has the
/// rest of it, but no hold on it.
struct Hold(Arc<Inner>);

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.is_closed.store(true, Ordering::Release);
        self.0.is_ending.store(true, Ordering::Release);
        self.0.turn.notify_one();
        self.0.give_up();
    }
}

/// What a manager found when it was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Jobs that had a run when the last host ended, and failed or wait to be tried again.
    pub interrupted: usize,
    /// Jobs that somebody wanted to stop when the last host ended, and that were.
    pub cancelled: usize,
    /// Jobs that wait for a place or for their time.
    pub queued: usize,
    /// Endings from before that are owed to somebody, and were reported again.
    pub owed: usize,
}

/// How a manager is doing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// Jobs by where they stand.
    pub census: Census,
    /// Changes that could not be written yet and are tried again.
    pub unwritten: usize,
    /// Why the last one could not be.
    pub trouble: Option<String>,
    /// Reports that panicked.
    pub report_panics: u64,
}

/// Why a manager could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The store cannot be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The machine gives no random numbers.
    #[error(transparent)]
    Random(#[from] NoRandom),
}

pub(crate) struct Inner {
    pub(crate) me: Weak<Inner>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) world: World,
    pub(crate) config: Config,
    pub(crate) clock: SteadyClock,
    pub(crate) runtime: Handle,
    /// Whoever waits for a job to change, by job.
    watched: Watches<Notify>,
    /// Whoever waits for a job to end, by job.
    pub(crate) awaited: Watches<Awaited>,
    pub(crate) waiting: Mutex<Waiting>,
    /// Wakes what starts jobs that wait.
    pub(crate) turn: Arc<Notify>,
    /// Wakes what tells webhooks of endings.
    pub(crate) calls: Notify,
    /// The runs that were launched, until their end has been dealt with.
    pub(crate) driven: Mutex<HashMap<RunId, Driven>>,
    /// The stops that could not be written yet, by job, and the attempt that each is of.
    pub(crate) unwritten_stops: Mutex<HashMap<JobId, (u32, StopRequest)>>,
    /// The jobs whose spawn has not returned yet.
    pub(crate) first_launches: Mutex<HashSet<JobId>>,
    busy: Arc<Busy>,
    unwritten: Mutex<(usize, Option<String>)>,
    /// Whether nothing is launched any more.
    is_closed: AtomicBool,
    /// Whether what was launched meanwhile is not to go on either.
    is_ending: AtomicBool,
    /// Whether what cannot be written is not tried again any more.
    has_given_up: AtomicBool,
    giving_up: Notify,
    report_panics: AtomicU64,
    /// How often jobs have ended, or those that had ended have changed or gone.
    pub(crate) endings: AtomicU64,
}

/// How many jobs are read at a time.
pub(crate) const PAGE: usize = 1_000;

impl Manager {
    /// Opens a manager on a store, and recovers: there is no manager before every job
    /// that was working has ended, so nothing can be accepted before that.
    ///
    /// Must be called on a tokio runtime, which then drives the runs.
    ///
    /// # Errors
    ///
    /// When the store cannot be read or written; nothing was launched then.
    pub async fn open(
        store: Arc<dyn Store>,
        world: World,
        config: Config,
    ) -> Result<(Self, Recovered), OpenError> {
        let clock = SteadyClock::new(world.clock.clone(), world.elapsed.clone());
        let inner = Arc::new_cyclic(|me| Inner {
            me: me.clone(),
            store,
            world,
            config,
            clock,
            runtime: Handle::current(),
            watched: Watches::default(),
            awaited: Watches::default(),
            waiting: Mutex::default(),
            turn: Arc::default(),
            calls: Notify::new(),
            driven: Mutex::default(),
            unwritten_stops: Mutex::default(),
            first_launches: Mutex::default(),
            busy: Arc::default(),
            unwritten: Mutex::default(),
            is_closed: AtomicBool::new(false),
            is_ending: AtomicBool::new(false),
            has_given_up: AtomicBool::new(false),
            giving_up: Notify::new(),
            report_panics: AtomicU64::new(0),
            endings: AtomicU64::new(0),
        });
        let recovered = inner.recover().await?;
        if inner.config.starts_waiting {
            inner.runtime.spawn(Inner::start_those_due(inner.me.clone()));
        }
        let _hold = Arc::new(Hold(inner.clone()));
        Ok((Self { inner, _hold }, recovered))
    }

    /// Returns how the manager is doing.
    ///
    /// # Errors
    ///
    /// When the store cannot be read.
    pub async fn health(&self) -> Result<Health, StoreError> {
        let (unwritten, trouble) = self.inner.unwritten().clone();
        Ok(Health {
            census: self.inner.store.census().await?,
            unwritten,
            trouble,
            report_panics: self.inner.report_panics.load(Ordering::Relaxed),
        })
    }

    /// Returns what it was set up with.
    pub fn config(&self) -> &Config {
        &self.inner.config
    }

    /// Returns the time of day as jobs see it, in milliseconds since the Unix epoch.
    pub fn now_ms(&self) -> u64 {
        self.inner.now_ms()
    }

    /// Returns what is notified, by [`Notify::notify_waiters`], whenever the job changes,
    /// for as long as it is held.
    pub fn watch(&self, job: JobId) -> Arc<Notify> {
        self.inner.watch(job)
    }

    /// Refuses whatever would launch a run from now on. Those that are under way go on,
    /// and their jobs end with them.
    pub fn refuse(&self) {
        self.inner.is_closed.store(true, Ordering::Release);
        self.inner.turn.notify_one();
    }

    /// Tells whether it refuses whatever would launch a run.
    pub fn is_refusing(&self) -> bool {
        self.inner.is_closed()
    }

    /// Ends it: no more runs are launched, and until the bound has passed it is waited for
    /// those that are under way to end, and for their endings to be written. Whoever owns
    /// the runs ends them. Returns whether all was written.
    pub async fn close(&self, bound: Duration) -> bool {
        let inner = &self.inner;
        inner.is_ending.store(true, Ordering::Release);
        self.refuse();
        let deadline = Instant::now() + bound;
        loop {
            let rested = inner.busy.at_rest.notified();
            if inner.busy.count.load(Ordering::Acquire) == 0 {
                return true;
            }
            if timeout_at(deadline, rested).await.is_err() {
                inner.give_up();
                return false;
            }
        }
    }
}

impl Inner {
    /// Ends what was working, reports what is owed, and learns what waits.
    async fn recover(&self) -> Result<Recovered, OpenError> {
        let mut recovered = Recovered::default();
        let plan = self.look_at_all().await?;
        // Before the others end, so that nothing is reported twice at once.
        let mut after = None;
        loop {
            let owed = self.store.owed(None, after, PAGE).await?;
            for job in &owed {
                self.report(|| self.world.reports.on_finished(job));
            }
            recovered.owed += owed.len();
            let Some(last) = owed.last().filter(|_| owed.len() == PAGE) else { break };
            after = last.ended().map(|ended| (ended.at_ms, last.id));
        }
        recovered.queued = plan.waiting.len();
        for (id, wait) in &plan.waiting {
            self.waiting().insert(*id, wait);
        }
        for events in plan.events.chunks(PAGE) {
            // All at once, so that a store can write them at once.
            let written = events.iter().map(|(job, event)| self.happen(*job, event.clone()));
            for job in join_all(written).await {
                match job {
                    Ok(job) if job.status() == Status::Cancelled => recovered.cancelled += 1,
                    Ok(_) => recovered.interrupted += 1,
                    Err(ChangeError::Store(error)) => return Err(error.into()),
                    Err(ChangeError::Refused(refused)) => {
                        tracing::warn!("a job was recovered by somebody else: {refused}");
                    }
                }
            }
        }
        Ok(recovered)
    }

    async fn look_at_all(&self) -> Result<Plan, OpenError> {
        let now_ms = self.now_ms();
        let mut plan = Plan::default();
        let status = vec![Status::Queued, Status::Working];
        let mut query = Query { status, limit: PAGE, ..Query::default() };
        loop {
            let page = self.store.list(query.clone()).await?;
            for job in &page.jobs {
                plan.add(job, now_ms, chance()?);
            }
            match page.next {
                None => return Ok(plan),
                next => query.before = next,
            }
        }
    }

    /// Has something happen to a job: written first, then told.
    pub(crate) async fn happen(&self, job: JobId, event: Event) -> Result<Job, ChangeError> {
        let (limits, now_ms) = (self.config.limits, self.now_ms());
        let changed = self.store.change(Change::Happen { job, event, limits, now_ms }).await?;
        match self.tell(changed) {
            Some(job) => Ok(job),
            None => Err(Refused::NoJob(job).into()),
        }
    }

    /// Tells whoever listens what has changed, and returns the job that has.
    pub(crate) fn tell(&self, changed: Changed) -> Option<Job> {
        match changed {
            Changed::Job { job, before } => {
                self.tell_of(&job, before);
                Some(*job)
            }
            Changed::Removed(gone) => {
                if !gone.is_empty() {
                    let jobs: Vec<JobId> = gone.iter().map(|gone| gone.job).collect();
                    for job in &jobs {
                        self.waiting().remove(*job);
                        self.have_looked(*job);
                        self.wake(*job);
                    }
                    self.endings.fetch_add(1, Ordering::AcqRel);
                    self.drop_runs_of(&jobs);
                    self.report(|| self.world.reports.on_removed(&gone));
                    self.turn.notify_one();
                }
                None
            }
            Changed::Already(job) => Some(*job),
            Changed::Nothing | Changed::Session(_) | Changed::Entry(_) => None,
        }
    }

    fn tell_of(&self, job: &Job, before: Option<Status>) {
        let status = job.status();
        if before.is_none() {
            self.report(|| self.world.reports.on_spawned(job));
        }
        if before != Some(status) || status == Status::Working {
            self.report(|| self.world.reports.on_job_update(job));
        }
        let was_ended = before.is_some_and(Status::is_terminal);
        if was_ended || status.is_terminal() {
            self.endings.fetch_add(1, Ordering::AcqRel);
        }
        let was_live = before.is_some_and(Status::is_live);
        match (before, status) {
            (_, Status::Queued) => self.wait_for(job),
            (Some(Status::Queued), _) => self.waiting().remove(job.id),
            _ => {}
        }
        self.heed_stop(job);
        if status.is_terminal() && !was_ended {
            match job.debt.is_some() {
                true => self.report(|| self.world.reports.on_finished(job)),
                false => self.report(|| self.world.reports.on_result_delivered(job)),
            }
            if job.call.is_some() {
                self.calls.notify_one();
            }
        }
        if was_live && !status.is_live() && !self.waiting().is_empty() {
            self.turn.notify_one();
        }
        if let Some(awaited) = self.awaited.get(job.id) {
            awaited.tell(job);
        }
        self.wake(job.id);
    }

    /// Calls code of others, which may panic without harm.
    pub(crate) fn report(&self, report: impl FnOnce()) {
        if catch_unwind(AssertUnwindSafe(report)).is_err() {
            self.report_panics.fetch_add(1, Ordering::Relaxed);
            tracing::error!("a report panicked; what it was to tell is written down");
        }
    }

    /// Returns the job if the caller may see it.
    pub(crate) async fn find(&self, id: JobId, caller: &Caller) -> Result<Option<Job>, StoreError> {
        match caller {
            Caller::Operator => self.store.job(id).await,
            Caller::Anyone => Ok(None),
            Caller::Session(session) => self.store.job_of(id, session.clone()).await,
        }
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.clock.now_ms()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    pub(crate) fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Acquire)
    }

    /// Counts something that has to come to its end before the manager is closed, until
    /// what is returned is dropped.
    pub(crate) fn busy(&self) -> Working {
        self.busy.count.fetch_add(1, Ordering::AcqRel);
        Working(self.busy.clone())
    }

    fn give_up(&self) {
        self.has_given_up.store(true, Ordering::Release);
        self.giving_up.notify_waiters();
    }

    /// Waits before something is tried again, and returns whether it still is to be.
    pub(crate) async fn pause(&self, time: Duration) -> bool {
        let given_up = self.giving_up.notified();
        if self.has_given_up.load(Ordering::Acquire) {
            return false;
        }
        timeout(time, given_up).await.is_err()
    }

    pub(crate) fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unwritten(&self) -> MutexGuard<'_, (usize, Option<String>)> {
        self.unwritten.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a change that has to be written, until the guard is dropped.
    pub(crate) fn owing(&self) -> Owing<'_> {
        self.unwritten().0 += 1;
        Owing(self)
    }

    pub(crate) fn note_trouble(&self, why: Option<String>) {
        self.unwritten().1 = why;
    }

    /// Returns what is notified whenever the job changes, for as long as it is held.
    pub(crate) fn watch(&self, job: JobId) -> Arc<Notify> {
        self.watched.of(job)
    }

    pub(crate) fn wake(&self, job: JobId) {
        if let Some(watch) = self.watched.get(job) {
            watch.notify_waiters();
        }
    }
}

/// A change that is not written yet.
pub(crate) struct Owing<'a>(&'a Inner);

impl Drop for Owing<'_> {
    fn drop(&mut self) {
        let mut unwritten = self.0.unwritten();
        unwritten.0 = unwritten.0.saturating_sub(1);
    }
}

/// How much is under way.
#[derive(Default)]
struct Busy {
    count: AtomicUsize,
    at_rest: Notify,
}

/// Something that is under way.
pub(crate) struct Working(Arc<Busy>);

impl Drop for Working {
    fn drop(&mut self) {
        if self.0.count.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.at_rest.notify_waiters();
        }
    }
}

/// Calls code of others. `None` when it panics.
pub(crate) async fn guarded<T>(call: impl Future<Output = T>) -> Option<T> {
    AssertUnwindSafe(call).catch_unwind().await.ok()
}

/// Returns a number from 0 to 1 by chance.
pub(crate) fn chance() -> Result<f64, NoRandom> {
    let bits = id::random()? as u32;
    Ok(f64::from(bits) / f64::from(u32::MAX))
}

/// Returns a new run's id.
pub(crate) fn new_run() -> Result<RunId, NoRandom> {
    RunId::random()
}

impl fmt::Debug for Manager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Manager").finish_non_exhaustive()
    }
}
