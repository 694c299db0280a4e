//! Jobs that wait: for a place, for their time, or for one more attempt.

use std::{
    collections::{BTreeSet, HashMap},
    ops::Bound,
    sync::Weak,
    time::Duration,
};

use backlot_registry::SessionId;
use tokio::time::timeout;

use crate::{
    id::JobId,
    job::{Job, Phase, Spec, Status, Wait},
    manager::{Inner, new_run},
    store::{Change, ChangeError, Refused, Spawned, StoreError, family_of},
};

/// The longest that is slept at a time: a machine that sleeps stops timers, and then
/// this is how late it is noticed that a time has come.
const LOOK: Duration = Duration::from_secs(30);
/// A time that does not come, and that every store can hold.
pub(crate) const NEVER: u64 = i64::MAX as u64;
/// Of how many families it is known which session had its turn last.
const SERVED: usize = 64;
/// How long a store that cannot be written is left alone.
const PAUSE: Duration = Duration::from_secs(1);

/// The jobs that wait, as far as this manager knows; the store has the last word.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    /// What each waits for: whether it is a schedule, and its time; 0 for a place alone.
    all: HashMap<JobId, (bool, u64)>,
    /// Those that start themselves, by time.
    starts: BTreeSet<(u64, JobId)>,
    /// Schedules, by time.
    schedules: BTreeSet<(u64, JobId)>,
    /// The sessions whose jobs were started last, the latest first, one of a family.
    served: Vec<SessionId>,
}

impl Waiting {
    pub(crate) fn insert(&mut self, job: JobId, wait: &Wait) {
        self.remove(job);
        let (is_schedule, due_ms) = (matches!(wait, Wait::Cron { .. }), wait.due_ms());
        self.all.insert(job, (is_schedule, due_ms));
        self.by_time(is_schedule).insert((due_ms, job));
    }

    pub(crate) fn remove(&mut self, job: JobId) {
        if let Some((is_schedule, due_ms)) = self.all.remove(&job) {
            self.by_time(is_schedule).remove(&(due_ms, job));
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Notes that a session had its turn.
    fn serve(&mut self, session: &SessionId) {
        self.served.retain(|served| family_of(served) != family_of(session));
        self.served.insert(0, session.clone());
        self.served.truncate(SERVED);
    }

    /// Returns a job that has only to find a place.
    fn due(&self, now_ms: u64) -> Option<JobId> {
        self.starts.first().filter(|(due_ms, _)| *due_ms <= now_ms).map(|(_, job)| *job)
    }

    /// Returns the schedules whose time has come.
    fn due_schedules(&self, now_ms: u64) -> Vec<JobId> {
        let due = self.schedules.iter().take_while(|(due_ms, _)| *due_ms <= now_ms);
        due.map(|(_, job)| *job).collect()
    }

    /// Returns the first time after now that something waits for.
    fn next_ms(&self, now_ms: u64) -> Option<u64> {
        let after = (Bound::Excluded((now_ms, JobId::from_bits(u128::MAX))), Bound::Unbounded);
        let next = |jobs: &BTreeSet<(u64, JobId)>| jobs.range(after).next().map(|(ms, _)| *ms);
        [next(&self.starts), next(&self.schedules)].into_iter().flatten().min()
    }

    fn by_time(&mut self, is_schedule: bool) -> &mut BTreeSet<(u64, JobId)> {
        if is_schedule { &mut self.schedules } else { &mut self.starts }
    }
}

impl Inner {
    /// Notes that a job waits.
    pub(crate) fn wait_for(&self, job: &Job) {
        let Phase::Queued { wait, .. } = &job.phase else { return };
        self.waiting().insert(job.id, wait);
        self.turn.notify_one();
    }

    /// Starts jobs whose turn or time has come, until the manager is closed or gone.
    pub(crate) async fn start_those_due(me: Weak<Self>) {
        let mut is_troubled = false;
        loop {
            let Some(inner) = me.upgrade() else { return };
            let busy = inner.busy();
            if inner.is_closed() {
                return;
            }
            let pause = match inner.start_all().await {
                Ok(()) => {
                    if std::mem::take(&mut is_troubled) {
                        inner.note_trouble(None);
                    }
                    inner.until_next()
                }
                Err(error) => {
                    tracing::warn!("jobs that wait cannot be started: {error}");
                    inner.note_trouble(Some(error.to_string()));
                    is_troubled = true;
                    PAUSE
                }
            };
            let turn = inner.turn.clone();
            // Whoever sleeps keeps no manager.
            drop((busy, inner));
            // Woken or not, it is looked.
            let _ = timeout(pause, turn.notified()).await;
        }
    }

    /// Returns how long nothing is due.
    fn until_next(&self) -> Duration {
        let now_ms = self.now_ms();
        // Those that are due by now wait for a place, and whoever leaves one tells.
        let next_ms = self.waiting().next_ms(now_ms);
        let left = next_ms.map_or(LOOK, |next_ms| Duration::from_millis(next_ms - now_ms));
        left.min(LOOK)
    }

    async fn start_all(&self) -> Result<(), StoreError> {
        self.fire_all().await?;
        loop {
            let now_ms = self.now_ms();
            let Some(due) = self.waiting().due(now_ms) else { return Ok(()) };
            if self.is_closed() {
                return Ok(());
            }
            let run = match new_run() {
                Ok(run) => run,
                Err(error) => {
                    tracing::error!("{error}");
                    return Ok(());
                }
            };
            let (limits, after) = (self.config.limits, self.waiting().served.clone());
            let start = Change::StartNext { run, limits, after, now_ms };
            match self.store.change(start).await {
                Ok(changed) => match self.tell(changed) {
                    Some(job) => {
                        self.waiting().serve(&job.spec.parent);
                        self.launch(job, run, None);
                    }
                    // There is no place, or nobody who waits for one.
                    None if self.still_waits(due).await? => return Ok(()),
                    None => self.waiting().remove(due),
                },
                Err(ChangeError::Store(error)) => return Err(error),
                Err(ChangeError::Refused(refused)) => {
                    tracing::debug!("a job did not start: {refused}");
                    return Ok(());
                }
            }
        }
    }

    /// Tells whether a job is queued. What has happened to it at the same time by others
    /// may have been told in another order than it happened.
    async fn still_waits(&self, id: JobId) -> Result<bool, StoreError> {
        let job = self.store.job(id).await?;
        Ok(job.is_some_and(|job| job.status() == Status::Queued))
    }

    /// Spawns what cron schedules say is due. Times that were missed are made up for by
    /// one.
    async fn fire_all(&self) -> Result<(), StoreError> {
        let now_ms = self.now_ms();
        let due = self.waiting().due_schedules(now_ms);
        for id in due {
            if self.is_closed() {
                return Ok(());
            }
            match self.store.job(id).await? {
                Some(job) if let Phase::Queued { wait: Wait::Cron { due_ms }, .. } = job.phase => {
                    self.fire(&job, due_ms, now_ms).await?;
                }
                _ => self.waiting().remove(id),
            }
        }
        Ok(())
    }

    async fn fire(&self, job: &Job, due_ms: u64, now_ms: u64) -> Result<(), StoreError> {
        let Some(schedule) = &job.spec.schedule else { return Ok(()) };
        let next_due_ms = match schedule.next_after(now_ms.max(due_ms)) {
            Ok(next) => next,
            Err(error) => {
                tracing::warn!(job = %job.id, "the schedule is over: {error}");
                // It stays where it can be seen, and is not looked at again.
                NEVER
            }
        };
        let (Ok(id), Ok(run)) = (JobId::random(), new_run()) else { return Ok(()) };
        let spec = Spec {
            schedule: None,
            // However often it is tried, one job comes of a time.
            key: Some(format!("{}@{due_ms}", job.id)),
            ..(*job.spec).clone()
        };
        let spawned = Spawned {
            id,
            run,
            spec,
            state: job.state.clone(),
            due_ms: 0,
            queue: true,
            limits: self.config.limits,
            now_ms,
        };
        let fire = Change::Fire { job: job.id, next_due_ms, spawned: Box::new(spawned) };
        match self.store.change(fire).await {
            Ok(changed) => {
                self.waiting().insert(job.id, &Wait::Cron { due_ms: next_due_ms });
                if let Some(spawned) = self.tell(changed)
                    && spawned.run() == Some(run)
                {
                    self.launch(spawned, run, None);
                }
                Ok(())
            }
            Err(ChangeError::Refused(Refused::NoJob(_) | Refused::Lost(_))) => {
                self.waiting().remove(job.id);
                Ok(())
            }
            Err(ChangeError::Refused(refused)) => {
                tracing::warn!(job = %job.id, "a scheduled job was not spawned: {refused}");
                Ok(())
            }
            Err(ChangeError::Store(error)) => Err(error),
        }
    }
}
