//! Looking at jobs: one, many, and until they have changed.

use std::{sync::Arc, time::Duration};

use backlot_registry::{Caller, SessionId};
use futures::future::join_all;
use tokio::time::{Instant, timeout, timeout_at};

use crate::{
    id::{JobId, Prefix, SHORT},
    job::{Job, Run, Status},
    manager::{Manager, PAGE, guarded},
    resume::Hand,
    store::{Page, Query, StoreError},
    watch::News,
};

/// Why a job cannot be looked at.
#[derive(Debug, thiserror::Error)]
pub enum LookError {
    /// There is no such job for this caller.
    #[error("no job {0}: list the jobs to see which there are")]
    Unknown(String),
    /// Several ids begin so.
    #[error("several jobs begin with {0}: give more digits")]
    Ambiguous(String),
    /// The store cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Manager {
    /// Returns a job as it is now.
    ///
    /// # Errors
    ///
    /// [`LookError::Unknown`] if there is no such job for this caller.
    pub async fn get(&self, id: JobId, caller: &Caller) -> Result<Job, LookError> {
        let job = self.inner.find(id, caller).await?;
        job.ok_or_else(|| LookError::Unknown(id.to_string()))
    }

    /// Returns a job, once it has ended or waits for a person, or as it is after the time:
    /// no longer than [`Config::max_wait`](crate::Config::max_wait).
    ///
    /// Where whoever the job works for has its ending in hand with that, the ending is
    /// settled, as far as the store can write it.
    ///
    /// # Errors
    ///
    /// [`LookError::Unknown`] if there is no such job for this caller.
    pub async fn status(
        &self,
        id: JobId,
        caller: &Caller,
        wait: Duration,
        hand: Hand,
    ) -> Result<Job, LookError> {
        self.wait_for(id, None, caller, wait, hand).await
    }

    /// Returns a job as [`Manager::status`] does, for whoever has just spawned it or made it
    /// go on: while its run goes on, it is not read to wait for it.
    ///
    /// # Errors
    ///
    /// As [`Manager::status`].
    pub async fn outcome(
        &self,
        job: Job,
        caller: &Caller,
        wait: Duration,
        hand: Hand,
    ) -> Result<Job, LookError> {
        self.wait_for(job.id, Some(job), caller, wait, hand).await
    }

    async fn wait_for(
        &self,
        id: JobId,
        mut known: Option<Job>,
        caller: &Caller,
        wait: Duration,
        hand: Hand,
    ) -> Result<Job, LookError> {
        // Who has a job in hand that works for somebody else is told by the look.
        let is_own = |job: &Job| match caller {
            Caller::Operator => true,
            Caller::Session(session) => *session == job.spec.parent,
            Caller::Anyone => false,
        };
        let is_driven = |job: &Job| job.run().is_some_and(|run| self.inner.is_driven(run));
        let wait = wait.min(self.inner.config.max_wait);
        let deadline = Instant::now() + wait;
        // Before the look, so that no change falls between.
        let awaited = self.inner.awaited.of(id);
        let job = loop {
            let looks = awaited.looks();
            let job = match known.take().filter(|job| is_own(job) && is_driven(job)) {
                Some(job) => job,
                None => self.get(id, caller).await?,
            };
            let status = job.status();
            if status.is_terminal() || status == Status::InputRequired || wait.is_zero() {
                break job;
            }
            match timeout_at(deadline, awaited.news(job.attempt, looks)).await {
                Ok(News::Ended(job)) => break Arc::unwrap_or_clone(job),
                Ok(News::Look) => {}
                Err(_) => break self.get(id, caller).await?,
            }
        };
        if hand == Hand::Model && job.debt.is_some() {
            self.settle_apart(job.clone()).await;
        }
        Ok(job)
    }

    /// Settles an ending that is in hand with this. A store that cannot write, or not
    /// now, keeps nobody from reading; what is not settled is told again.
    async fn settle_apart(&self, job: Job) {
        let (inner, busy) = (self.inner.clone(), self.inner.busy());
        let settled = self.inner.runtime.spawn(async move {
            let _busy = busy;
            if let Err(error) = inner.delivered(&job).await {
                tracing::warn!(job = %job.id, "an ending in hand was not settled: {error}");
            }
        });
        // It goes on all the same.
        let _ = timeout(self.inner.config.outcome_wait, settled).await;
    }

    /// Returns a part of the jobs that the caller may see, the newest first, without
    /// their inputs and results. Nothing is settled by it.
    ///
    /// # Errors
    ///
    /// When the store cannot be read.
    pub async fn list(&self, caller: &Caller, query: Query) -> Result<Page, StoreError> {
        match caller {
            Caller::Operator => self.inner.store.list(query).await,
            Caller::Anyone => Ok(Page::default()),
            Caller::Session(session) if query.session.as_ref().is_some_and(|it| it != session) => {
                Ok(Page::default())
            }
            Caller::Session(session) => {
                let query = Query { session: Some(session.clone()), ..query };
                self.inner.store.list(query).await
            }
        }
    }

    /// Returns the job whose id begins with those digits, if it is the only one that the
    /// caller may see.
    ///
    /// # Errors
    ///
    /// When there is none, or several.
    pub async fn find(&self, digits: &str, caller: &Caller) -> Result<JobId, LookError> {
        let unknown = || LookError::Unknown(digits.chars().take(64).collect());
        let prefix: Prefix = digits.parse().map_err(|_| unknown())?;
        let found = self.inner.store.find(prefix).await?;
        match (found.as_slice(), caller) {
            ([], _) => Err(unknown()),
            ([id], caller) => match self.get(*id, caller).await {
                Err(LookError::Unknown(_)) => Err(unknown()),
                got => Ok(got?.id),
            },
            (_, Caller::Operator) => Err(LookError::Ambiguous(digits.to_owned())),
            // Of what others have nothing is told, also not that there is something.
            (_, caller) => {
                let mut query = Query { limit: PAGE, ..Query::default() };
                let mut found = None;
                loop {
                    let page = self.list(caller, query.clone()).await?;
                    for job in page.jobs.iter().filter(|job| prefix.holds(job.id)) {
                        if found.replace(job.id).is_some() {
                            return Err(LookError::Ambiguous(digits.to_owned()));
                        }
                    }
                    match page.next {
                        None => return found.ok_or_else(unknown),
                        next => query.before = next,
                    }
                }
            }
        }
    }

    /// Returns the runs of a job: those that others have followed, and the last.
    ///
    /// # Errors
    ///
    /// [`LookError::Unknown`] if there is no such job for this caller.
    pub async fn runs(&self, id: JobId, caller: &Caller) -> Result<Vec<Run>, LookError> {
        let job = self.get(id, caller).await?;
        let mut runs = self.inner.store.past_runs(id).await?;
        runs.extend(job.last_run().cloned());
        Ok(runs)
    }

    /// Returns where jobs stand in the words of their kinds, such as `step 2/3 (verify)`,
    /// and what their runs report.
    pub async fn progress(&self, jobs: &[Job]) -> Vec<Option<String>> {
        let world = &self.inner.world;
        let progress = jobs.iter().map(|job| async move {
            let stands = match &job.state {
                Some(_) => guarded(async { world.follow.render(job).await }).await.flatten(),
                None => None,
            };
            let detail = async { job.run().and_then(|run| world.launcher.detail(job.id, run)) };
            let says = guarded(detail).await.flatten();
            match (stands, says.or_else(|| job.detail.clone())) {
                (Some(stands), Some(says)) => Some(format!("{stands}: {says}")),
                (stands, says) => stands.or(says),
            }
        });
        join_all(progress).await
    }

    /// Tells whether a session is that of a job, and which job's.
    ///
    /// # Errors
    ///
    /// When that cannot be told. That is no `None`: whoever cannot tell gives a session
    /// nothing to spawn jobs with.
    pub async fn job_of(&self, session: &SessionId) -> Result<Option<Job>, LookError> {
        let Some(id) = JobId::of_session(session) else { return Ok(None) };
        // Where the job is gone, its session is still none to spawn from.
        let job = self.inner.store.job(id).await?;
        job.map(Some).ok_or_else(|| LookError::Unknown(id.to_string()))
    }
}

impl Prefix {
    /// Tells whether an id begins so.
    pub fn holds(&self, id: JobId) -> bool {
        (self.first()..=self.last()).contains(&id)
    }
}

/// Returns the shortest beginnings, of [`SHORT`] digits or more, that tell the ids apart.
pub fn short_ids(ids: &[JobId]) -> Vec<String> {
    let mut sorted: Vec<String> = ids.iter().map(JobId::to_string).collect();
    sorted.sort_unstable();
    sorted.dedup();
    let common = |one: &str, other: &str| {
        one.bytes().zip(other.bytes()).take_while(|(one, other)| one == other).count()
    };
    let shorten = |id: &JobId| {
        let text = id.to_string();
        let place = sorted.binary_search(&text).unwrap_or_default();
        let before = place.checked_sub(1).and_then(|it| sorted.get(it));
        let around = before.into_iter().chain(sorted.get(place + 1));
        let digits = around.map(|other| common(&text, other) + 1).max().unwrap_or_default();
        text[..digits.clamp(SHORT, text.len())].to_owned()
    };
    ids.iter().map(shorten).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_ids_tell_each_other_apart() {
        let id = |text: &str| -> JobId { format!("{text:0<32}").parse().unwrap() };
        let ids = [id("aaaaaaaaaa1"), id("b"), id("aaaaaaaaaa2"), id("b")];
        assert_eq!(short_ids(&ids), ["aaaaaaaaaa1", "b0000000", "aaaaaaaaaa2", "b0000000"]);
        assert_eq!(short_ids(&[]), Vec::<String>::new());
    }
}
