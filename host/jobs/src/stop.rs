//! Stopping jobs.

use backlot_registry::{Caller, SessionId};
use futures::future::join_all;
use tokio::time::{Instant, timeout_at};

use crate::{
    id::{JobId, RunId},
    job::{Ending, Event, Job, Lost, Report, Status, StopRequest},
    manager::{Inner, Manager, PAGE, guarded},
    store::{ChangeError, Query, Refused, StoreError},
    world::{How, Stop, Stopped},
};

/// What a stop came to.
#[derive(Clone, Debug, PartialEq)]
pub enum StopReply {
    /// It has ended with that.
    Cancelled(Job),
    /// Its run was asked to stop, or is being dropped; its end follows.
    Stopping(Job),
    /// It ends once its run has.
    AfterStep(Job),
    /// It had ended already, so nothing has changed.
    Already(Job),
}

impl StopReply {
    /// Returns the job.
    pub fn job(&self) -> &Job {
        match self {
            Self::Cancelled(job)
            | Self::Stopping(job)
            | Self::AfterStep(job)
            | Self::Already(job) => job,
        }
    }
}

/// Why a job was not stopped.
#[derive(Debug, thiserror::Error)]
pub enum StopError {
    /// There is no such job for this caller.
    #[error("no job {0}: list the jobs to see which there are")]
    Unknown(JobId),
    /// Its run has refused, and goes on; nothing follows it.
    #[error("its run goes on: {0}; nothing will follow it, and force ends it now")]
    Refused(String),
    /// The request could not be written, so nothing was stopped.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Every time it was to be stopped, it was on another run.
    #[error("the job went on faster than it could be stopped: try again")]
    Elusive,
}

/// How many runs of one job are chased. Each takes a retry or a step in the very moment
/// of the stop, and once a stop is stored no step follows any more.
const CHASES: usize = 8;

impl Manager {
    /// Stops a job. The request is stored before anything is asked, so that it is heeded
    /// also after a crash.
    ///
    /// # Errors
    ///
    /// When its run refuses, the request stays stored and nothing follows the run.
    pub async fn stop(
        &self,
        id: JobId,
        caller: &Caller,
        how: How,
        by: &str,
        why: Option<String>,
    ) -> Result<StopReply, StopError> {
        let inner = self.inner.clone();
        inner.find(id, caller).await?.ok_or(StopError::Unknown(id))?;
        let request = StopRequest {
            by: by.to_owned(),
            why,
            at_ms: inner.now_ms(),
            after_step: how == How::AfterStep,
        };
        let busy = self.inner.busy();
        let stopped = self.inner.runtime.spawn(async move {
            let _busy = busy;
            inner.stop(id, how, request).await
        });
        stopped.await.unwrap_or(Err(StopError::Elusive))
    }

    /// Stops all jobs of a session, and those of their own sessions, at any depth.
    /// Returns how many had not ended.
    ///
    /// # Errors
    ///
    /// The first that could not be stopped; the others are stopped all the same.
    pub async fn stop_tree(
        &self,
        session: &SessionId,
        how: How,
        by: &str,
        why: Option<String>,
    ) -> Result<usize, StopError> {
        let (mut stopped, mut failed) = (0, None);
        let live = self.inner.live_below(session.clone()).await?;
        // All at once, so that none waits for another's outcome.
        let stops = live.iter().map(|id| self.stop(*id, &Caller::Operator, how, by, why.clone()));
        for stop in join_all(stops).await {
            match stop {
                // It has ended, or was deleted, meanwhile.
                Ok(StopReply::Already(_)) | Err(StopError::Unknown(_)) => {}
                Ok(_) => stopped += 1,
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(stopped), Err)
    }
}

impl Inner {
    /// Returns the jobs below a session that have not ended, those of jobs included.
    pub(crate) async fn live_below(&self, session: SessionId) -> Result<Vec<JobId>, StoreError> {
        let mut live = Vec::new();
        let mut sessions = vec![session];
        while let Some(session) = sessions.pop() {
            let mut query = Query { session: Some(session), limit: PAGE, ..Query::default() };
            loop {
                let page = self.store.list(query.clone()).await?;
                for job in page.jobs {
                    if !job.status().is_terminal() {
                        live.push(job.id);
                    }
                    if job.depth < self.config.limits.depth {
                        sessions.push(job.id.session());
                    }
                }
                match page.next {
                    None => break,
                    next => query.before = next,
                }
            }
        }
        Ok(live)
    }

    async fn stop(
        &self,
        id: JobId,
        how: How,
        request: StopRequest,
    ) -> Result<StopReply, StopError> {
        for _ in 0..CHASES {
            let stored = self.happen(id, Event::StopRequested { stop: request.clone() }).await;
            let job = match stored {
                Ok(job) => job,
                Err(ChangeError::Refused(Refused::Lost(Lost::Ended { .. }))) => {
                    let job = self.store.job(id).await?.ok_or(StopError::Unknown(id))?;
                    if job.status().is_terminal() {
                        return Ok(StopReply::Already(job));
                    }
                    continue;
                }
                Err(ChangeError::Refused(_)) => return Err(StopError::Unknown(id)),
                Err(ChangeError::Store(error)) => return Err(error.into()),
            };
            let Some(run) = job.run() else { return Ok(StopReply::Cancelled(job)) };
            if let Some(reply) = self.stop_run(job, run, how, &request).await? {
                return Ok(reply);
            }
        }
        Err(StopError::Elusive)
    }

    /// Stops the run that a job is on. `None` when the job is not on it any more.
    async fn stop_run(
        &self,
        job: Job,
        run: RunId,
        how: How,
        request: &StopRequest,
    ) -> Result<Option<StopReply>, StopError> {
        let watch = self.watch(job.id);
        let stop = Stop { job: job.id, run, how, request: Some(request.clone()) };
        match self.ask_to_stop(stop).await {
            Ok(Stopped::AfterStep) => Ok(Some(StopReply::AfterStep(job))),
            Ok(Stopped::Stopping) => Ok(Some(StopReply::Stopping(job))),
            Ok(Stopped::AlreadyFinished) => {
                let deadline = Instant::now() + self.config.outcome_wait;
                loop {
                    let changed = watch.notified();
                    match self.store.job(job.id).await? {
                        None => return Err(StopError::Unknown(job.id)),
                        Some(now) if now.run() != Some(run) => {
                            return Ok(match now.status() {
                                // Its run had ended, but the job has by this.
                                Status::Cancelled => Some(StopReply::Cancelled(now)),
                                status if status.is_terminal() => Some(StopReply::Already(now)),
                                _ => None,
                            });
                        }
                        Some(_) => {}
                    }
                    if timeout_at(deadline, changed).await.is_err() {
                        // The outcome was lost, not late, so nobody waits for it any more.
                        let reply = self.end_stopped(&job, run, request).await;
                        self.forget(run);
                        return Ok(reply);
                    }
                }
            }
            Ok(Stopped::Unknown) => {
                let Some(reply) = self.end_stopped(&job, run, request).await else {
                    return Ok(None);
                };
                // Its launch may have come through before that was written, when whoever
                // launched it saw no reason to stop it.
                if !self.stop_unwanted(job.id, run, Some(request.clone())).await {
                    // Its own end, if it had one, was told without its name, or never will be.
                    self.forget(run);
                }
                Ok(Some(reply))
            }
            Err(why) => Err(StopError::Refused(why)),
        }
    }

    /// Has the launcher stop a run. A launcher that panics has refused.
    pub(crate) async fn ask_to_stop(&self, stop: Stop) -> Result<Stopped, String> {
        let stopped = guarded(async { self.world.launcher.stop(stop).await }).await;
        stopped.unwrap_or(Err("the launcher panicked".to_owned()))
    }

    /// Stops a run that works for nobody: its job has ended, or goes on without it. What
    /// does not heed that is forced, for nobody else will. Returns whether it has yet to
    /// end.
    pub(crate) async fn stop_unwanted(
        &self,
        job: JobId,
        run: RunId,
        request: Option<StopRequest>,
    ) -> bool {
        let stop = Stop { job, run, how: How::Ask, request };
        let stopped = match self.ask_to_stop(stop.clone()).await {
            Err(_) => self.ask_to_stop(Stop { how: How::Force, ..stop }).await,
            stopped => stopped,
        };
        match stopped {
            Ok(stopped) => matches!(stopped, Stopped::Stopping | Stopped::AfterStep),
            Err(why) => {
                tracing::warn!(%job, "a run that is not wanted does not stop: {why}");
                true
            }
        }
    }

    /// Records the ending of a job whose run nobody will end.
    async fn end_stopped(&self, job: &Job, run: RunId, request: &StopRequest) -> Option<StopReply> {
        let report = Report {
            ending: Ending::Cancelled,
            result: None,
            detail: request.why.clone(),
            state: None,
            again_ms: None,
            told: true,
        };
        let ended = self.finish(job.id, Some(run), report).await?;
        Some(match ended.status() {
            Status::Cancelled => StopReply::Cancelled(ended),
            _ => StopReply::Already(ended),
        })
    }
}
