//! Spawning a job.

use std::{
    collections::HashSet,
    sync::{MutexGuard, PoisonError},
};

use backlot_registry::{Kind, SessionId};
use tokio::sync::oneshot;

use crate::{
    id::{JobId, NoRandom, RunId},
    job::{Failure, Job, Spec, Webhook},
    manager::{Inner, Manager, guarded, new_run},
    retry::{InvalidPolicy, RetryPolicy},
    schedule::{InvalidSchedule, Schedule},
    store::{Change, ChangeError, Changed, Refused, Spawned, StoreError},
    text,
    waiting::NEVER,
    world::{LaunchError, Resolved},
};

/// What a spawn asks for.
#[derive(Clone, Debug)]
pub struct Spawn {
    /// What sort of job it is.
    pub kind: Kind,
    /// The input of its first run.
    pub input: String,
    /// The session that it works for, which must be open.
    pub parent: SessionId,
    /// The one line that it is shown under; what the resolver says where it is `None`.
    pub label: Option<String>,
    /// Where the work stands at its beginning, in words that only its kind knows.
    pub state: Option<String>,
    /// What its runs ask to be granted, in the launcher's own words.
    pub grant: Option<String>,
    /// The run of the parent that spawns it.
    pub parent_run: Option<String>,
    /// The entry of the parent's session that its changes are told under.
    pub entry: Option<String>,
    /// A key under which it is spawned once.
    pub key: Option<String>,
    /// How many attempts it may have; as many as the host allows where it is `None`.
    pub max_attempts: Option<u32>,
    /// What is tried again without being asked.
    pub retry: Option<RetryPolicy>,
    /// The digest of the one version that all its runs are to run.
    pub pinned: Option<String>,
    /// When it is to start.
    pub start: StartAt,
    /// Whether it waits where there is no place for it, and lets those go first that wait
    /// already. Where it does not, it is refused or takes a place that is free at that
    /// moment, also before those that wait: whoever asked is there, and wants to know now.
    pub queue: bool,
    /// Whether its ending is owed to its parent. Where somebody follows it to its end,
    /// as a person at a terminal does, it is not.
    pub announced: bool,
    /// Where its endings are told, as a URL. That of the host, where it is `None` and
    /// [`Config::has_webhook`](crate::Config::has_webhook) says so.
    pub webhook: Option<String>,
    /// The trace that it belongs to, as [`Spec::trace`] has it.
    pub trace: Option<String>,
}

/// When a job is to start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum StartAt {
    /// At once.
    #[default]
    Now,
    /// After so many milliseconds.
    After(u64),
    /// At a time, in milliseconds since the Unix epoch; at once where that is over.
    At(u64),
    /// Whenever a cron expression says so, in local time.
    Cron(String),
}

impl Spawn {
    /// Returns the spawn of a job of that kind for a session, to which its ending is owed.
    pub fn new(kind: Kind, parent: SessionId, input: impl Into<String>) -> Self {
        Self {
            kind,
            input: input.into(),
            parent,
            label: None,
            state: None,
            grant: None,
            parent_run: None,
            entry: None,
            key: None,
            max_attempts: None,
            retry: None,
            pinned: None,
            start: StartAt::Now,
            queue: false,
            announced: true,
            webhook: None,
            trace: None,
        }
    }
}

/// Why nothing was spawned. Nothing is left of it either.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// The resolver knows no such kind for the session.
    #[error("{kind}: {why}")]
    Unresolved {
        /// The kind.
        kind: Kind,
        /// What the resolver said.
        why: String,
    },
    /// A job must have one attempt at least.
    #[error("{asked} attempts: the first one counts, so from 1 to {max} are possible")]
    Attempts {
        /// What was asked for.
        asked: u32,
        /// The most.
        max: u32,
    },
    /// The retry policy cannot be followed.
    #[error(transparent)]
    Policy(#[from] InvalidPolicy),
    /// The schedule cannot be followed.
    #[error(transparent)]
    Schedule(#[from] InvalidSchedule),
    /// It may not be.
    #[error(transparent)]
    Refused(Refused),
    /// Its first run could not be launched.
    #[error("could not be launched: {0}")]
    Launch(LaunchError),
    /// The store could not write it.
    #[error("nothing was started: {0}")]
    Store(#[from] StoreError),
    /// The machine gives no random numbers.
    #[error(transparent)]
    Random(#[from] NoRandom),
    /// The manager was closed.
    #[error("the host is shutting down")]
    Closed,
}

impl From<ChangeError> for SpawnError {
    fn from(error: ChangeError) -> Self {
        match error {
            ChangeError::Refused(refused) => Self::Refused(refused),
            ChangeError::Store(error) => Self::Store(error),
        }
    }
}

/// The longest label, in characters.
const LABEL: usize = 256;

impl Manager {
    /// Spawns a job, and returns it once its first run is under way, or it waits.
    ///
    /// Where the key of the spawn has a job already, that is returned. Dropping the
    /// future takes nothing back: the job is spawned, or nothing is left of it.
    ///
    /// # Errors
    ///
    /// [`SpawnError`], with nothing left.
    pub async fn spawn(&self, spawn: Spawn) -> Result<Job, SpawnError> {
        let (inner, busy) = (self.inner.clone(), self.inner.busy());
        // Whoever asked may go away halfway, and then nobody would clean up.
        let spawned = self.inner.runtime.spawn(async move {
            let _busy = busy;
            inner.spawn(spawn).await
        });
        spawned.await.unwrap_or(Err(SpawnError::Closed))
    }
}

impl Inner {
    async fn spawn(&self, spawn: Spawn) -> Result<Job, SpawnError> {
        loop {
            if self.is_closed() {
                return Err(SpawnError::Closed);
            }
            let spawned = self.spawned(spawn.clone()).await?;
            let starting = self.starting(spawned.id);
            let run = spawned.run;
            match self.store.change(Change::Spawn(Box::new(spawned))).await? {
                // Its own spawn may yet take it back; then the key is free again.
                Changed::Already(job) => match self.started(job.id).await? {
                    Some(job) => return Ok(job),
                    None => continue,
                },
                changed => {
                    let job = self.tell(changed).ok_or(SpawnError::Closed)?;
                    let launched = self.launch_first(job, run).await;
                    drop(starting);
                    return launched;
                }
            }
        }
    }

    /// Notes that the first launch of a job is to come or under way.
    fn starting(&self, id: JobId) -> Starting<'_> {
        self.first_launches().insert(id);
        Starting(self, id)
    }

    fn first_launches(&self) -> MutexGuard<'_, HashSet<JobId>> {
        self.first_launches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a job once its first launch is not under way any more; `None` where it was
    /// taken back.
    async fn started(&self, id: JobId) -> Result<Option<Job>, StoreError> {
        let watch = self.watch(id);
        loop {
            let changed = watch.notified();
            if !self.first_launches().contains(&id) {
                return self.store.job(id).await;
            }
            changed.await;
        }
    }

    /// Launches the first run of a job that has one.
    async fn launch_first(&self, job: Job, run: RunId) -> Result<Job, SpawnError> {
        if job.run() != Some(run) {
            return Ok(job);
        }
        let id = job.id;
        let (first, launched) = oneshot::channel();
        self.launch(job.clone(), run, Some(first));
        match launched.await {
            Ok(Ok(())) => Ok(job),
            Ok(Err(error)) => self.take_back(job, &error).await,
            Err(_) => {
                tracing::error!(job = %id, "the launch of a job was lost");
                Err(SpawnError::Closed)
            }
        }
    }

    /// Checks what is asked for, and says what it comes to.
    async fn spawned(&self, spawn: Spawn) -> Result<Spawned, SpawnError> {
        let now_ms = self.now_ms();
        let max = self.config.max_attempts;
        let asked = spawn.max_attempts.unwrap_or(max);
        if !(1..=max).contains(&asked) {
            return Err(SpawnError::Attempts { asked, max });
        }
        if let Some(policy) = &spawn.retry {
            policy.check()?;
        }
        let (schedule, due_ms) = match spawn.start {
            StartAt::Now => (None, 0),
            StartAt::After(ms) => {
                let due_ms = now_ms.saturating_add(ms).min(NEVER);
                (Some(Schedule::At(due_ms)), due_ms)
            }
            StartAt::At(due_ms) => (Some(Schedule::At(due_ms)), due_ms.min(NEVER)),
            StartAt::Cron(expression) => {
                let schedule = Schedule::Cron(expression);
                let due_ms = schedule.next_after(now_ms)?;
                (Some(schedule), due_ms)
            }
        };
        let unresolved = |why| SpawnError::Unresolved { kind: spawn.kind.clone(), why };
        let resolve = async { self.world.resolver.resolve(&spawn.parent, &spawn.kind).await };
        let resolved = guarded(resolve).await.unwrap_or(Err("the resolver panicked".to_owned()));
        let Resolved { label, inherit } = resolved.map_err(unresolved)?;
        let label = spawn.label.or(label).unwrap_or_else(|| spawn.kind.to_string());
        let of_host = (spawn.announced && self.config.has_webhook).then_some(Webhook::Host);
        let spec = Spec {
            kind: spawn.kind,
            input: spawn.input,
            label: text::line(&label, LABEL),
            parent: spawn.parent,
            incarnation: 0,
            grant: spawn.grant,
            inherit,
            parent_run: spawn.parent_run,
            entry: spawn.entry,
            key: spawn.key,
            max_attempts: asked,
            retry: spawn.retry,
            pinned: spawn.pinned,
            schedule,
            announced: spawn.announced,
            webhook: spawn.webhook.map(Webhook::Url).or(of_host),
            trace: spawn.trace,
        };
        Ok(Spawned {
            id: JobId::random()?,
            run: new_run()?,
            spec,
            state: spawn.state,
            due_ms,
            queue: spawn.queue,
            limits: self.config.limits,
            now_ms,
        })
    }

    /// Takes a job back whose first run could not be launched, unless its policy tries
    /// that again.
    async fn take_back(&self, job: Job, error: &LaunchError) -> Result<Job, SpawnError> {
        let Some(run) = job.run() else { return Ok(job) };
        let is_tried_again = job.spec.retry.as_ref().is_some_and(|policy| {
            policy.on.contains(&Failure::Launch) && job.spec.max_attempts > 1
        });
        if is_tried_again && matches!(error, LaunchError::Unavailable(_)) {
            let ended = self.launch_failed(&job, run, error, false).await;
            return ended.ok_or_else(|| SpawnError::Launch(error.clone()));
        }
        let take_back = Change::TakeBack { job: job.id, run };
        match self.store.change(take_back).await {
            Ok(changed) => _ = self.tell(changed),
            // It was stopped meanwhile, and is told of.
            Err(ChangeError::Refused(_)) => {}
            // It has to end in any case.
            Err(ChangeError::Store(_)) => {
                self.launch_failed(&job, run, error, true).await;
            }
        }
        Err(SpawnError::Launch(error.clone()))
    }
}

/// The first launch of a job, which may be taken back with it.
struct Starting<'a>(&'a Inner, JobId);

impl Drop for Starting<'_> {
    fn drop(&mut self) {
        self.0.first_launches().remove(&self.1);
        self.0.wake(self.1);
    }
}
