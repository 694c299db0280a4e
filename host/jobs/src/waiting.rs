//! Jobs that wait: for a place, for their time, or for one more attempt.

use std::{
    sync::{Arc, Weak, atomic::Ordering},
    time::Duration,
};

use tokio::time::sleep;

use crate::{
    id::JobId,
    job::{Job, Phase, Spec, Wait},
    manager::{Inner, new_run},
    store::{Change, ChangeError, Refused, Spawned, StoreError},
};

/// The longest that is slept at a time: a machine that sleeps stops timers, and then
/// this is how late it is noticed that a time has come.
const LOOK: Duration = Duration::from_secs(30);
/// A time that does not come, and that every store can hold.
const NEVER: u64 = i64::MAX as u64;
/// How long a store that cannot be written is left alone.
const PAUSE: Duration = Duration::from_secs(1);

impl Inner {
    /// Notes that a job waits.
    pub(crate) fn wait_for(&self, job: &Job) {
        let Phase::Queued { wait, .. } = &job.phase else { return };
        let due_ms = wait.due_ms();
        {
            let mut waiting = self.waiting();
            waiting.retain(|(_, other)| *other != job.id);
            waiting.insert((due_ms, job.id));
        }
        self.turn.notify_one();
    }

    /// Starts jobs whose turn or time has come, until the manager is closed or gone.
    pub(crate) async fn start_those_due(me: Weak<Self>) {
        loop {
            let Some(inner) = me.upgrade() else { return };
            if inner.is_closed.load(Ordering::Acquire) {
                return;
            }
            let pause = match inner.start_all().await {
                Ok(()) => inner.until_next(),
                Err(error) => {
                    tracing::warn!("jobs that wait cannot be started: {error}");
                    inner.note_trouble(Some(error.to_string()));
                    PAUSE
                }
            };
            inner.rest(pause).await;
        }
    }

    /// Sleeps until there may be something to start. A handle that is kept meanwhile would
    /// keep the manager, so it wakes now and then to see whether it is wanted.
    async fn rest(self: Arc<Self>, pause: Duration) {
        let turn = self.turn.notified();
        tokio::select! {
            () = turn => {}
            () = sleep(pause) => {}
        }
    }

    /// Returns how long nothing is due.
    fn until_next(&self) -> Duration {
        let now_ms = self.now_ms();
        // Those that are due by now wait for a place, and whoever leaves one tells.
        let next = self.waiting().range((now_ms + 1, JobId::from_bits(0))..).next().copied();
        let left = next.map_or(LOOK, |(due_ms, _)| Duration::from_millis(due_ms - now_ms));
        left.min(LOOK)
    }

    async fn start_all(&self) -> Result<(), StoreError> {
        self.fire_all().await?;
        while self.is_any_due() {
            let run = match new_run() {
                Ok(run) => run,
                Err(error) => {
                    tracing::error!("{error}");
                    return Ok(());
                }
            };
            let (limits, now_ms) = (self.config.limits, self.now_ms());
            let changed = self.store.change(Change::StartNext { run, limits, now_ms }).await;
            match changed {
                Ok(changed) => match self.tell(changed) {
                    Some(job) => self.launch(job, run, None),
                    None => return Ok(()),
                },
                Err(ChangeError::Store(error)) => return Err(error),
                Err(ChangeError::Refused(refused)) => {
                    // Somebody has stopped it between the look and the start.
                    tracing::debug!("a job did not start: {refused}");
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn is_any_due(&self) -> bool {
        let now_ms = self.now_ms();
        self.waiting().first().is_some_and(|(due_ms, _)| *due_ms <= now_ms)
    }

    /// Spawns what cron schedules say is due. Times that were missed are made up for by
    /// one.
    async fn fire_all(&self) -> Result<(), StoreError> {
        let now_ms = self.now_ms();
        let due: Vec<JobId> = {
            let waiting = self.waiting();
            let due = waiting.iter().take_while(|(due_ms, _)| *due_ms <= now_ms);
            due.filter(|(due_ms, _)| *due_ms > 0).map(|(_, job)| *job).collect()
        };
        for id in due {
            let Some(job) = self.store.job(id).await? else {
                self.waiting().retain(|(_, waiting)| *waiting != id);
                continue;
            };
            if let Phase::Queued { wait: Wait::Cron { due_ms }, .. } = job.phase {
                self.fire(&job, due_ms, now_ms).await?;
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
                {
                    let mut waiting = self.waiting();
                    waiting.retain(|(_, waiting)| *waiting != job.id);
                    waiting.insert((next_due_ms, job.id));
                }
                if let Some(spawned) = self.tell(changed)
                    && spawned.run() == Some(run)
                {
                    self.launch(spawned, run, None);
                }
                Ok(())
            }
            Err(ChangeError::Refused(Refused::NoJob(_) | Refused::Lost(_))) => {
                self.waiting().retain(|(_, waiting)| *waiting != job.id);
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
