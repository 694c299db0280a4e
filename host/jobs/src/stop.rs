//! Stopping jobs.

use std::{
    collections::HashMap,
    sync::{MutexGuard, PoisonError},
};

use backlot_registry::{Caller, SessionId};
use futures::future::join_all;
use tokio::time::{Instant, timeout_at};

use crate::{
    drive::unless_refused,
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
    /// The request could not be written, and there was no run to stop without that, or it
    /// could have waited. Nothing was stopped.
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
    /// also after a crash. Where the store cannot be written, a run is stopped all the
    /// same, unless its step was to be waited for; nothing follows it, and the request is
    /// written once that can be, or forgotten with a crash.
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
        self.inner.find(id, caller).await?.ok_or(StopError::Unknown(id))?;
        let (inner, by) = (self.inner.clone(), by.to_owned());
        self.inner.apart(async move { inner.stop(id, how, &by, why).await }).await
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
        let (inner, session, by) = (self.inner.clone(), session.clone(), by.to_owned());
        self.inner.apart(async move { inner.stop_tree(&session, how, &by, why).await }).await
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

    /// Does something on the runtime, so that it comes to its end although whoever asked
    /// for it goes away halfway.
    pub(crate) async fn apart<T, E>(
        &self,
        work: impl Future<Output = Result<T, E>> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<StopError> + Send + 'static,
    {
        let busy = self.busy();
        let done = self.runtime.spawn(async move {
            let _busy = busy;
            work.await
        });
        // The runtime has ended.
        done.await.unwrap_or_else(|_| Err(StopError::from(StoreError::Closed).into()))
    }

    pub(crate) async fn stop_tree(
        &self,
        session: &SessionId,
        how: How,
        by: &str,
        why: Option<String>,
    ) -> Result<usize, StopError> {
        let (mut stopped, mut failed) = (0, None);
        let live = self.live_below(session.clone()).await?;
        // All at once, so that none waits for another's outcome.
        let stops = live.iter().map(|id| self.stop(*id, how, by, why.clone()));
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

    pub(crate) async fn stop(
        &self,
        id: JobId,
        how: How,
        by: &str,
        why: Option<String>,
    ) -> Result<StopReply, StopError> {
        let (by, at_ms) = (by.to_owned(), self.now_ms());
        let request = StopRequest { by, why, at_ms, after_step: how == How::AfterStep };
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
                Err(ChangeError::Store(error)) if request.after_step => return Err(error.into()),
                Err(ChangeError::Store(error)) => {
                    return self.stop_unwritten(id, how, request, error).await;
                }
            };
            let Some(run) = job.run() else { return Ok(StopReply::Cancelled(job)) };
            if let Some(reply) = self.stop_run(job, run, how, &request).await? {
                return Ok(reply);
            }
        }
        Err(StopError::Elusive)
    }

    /// Stops the run of a job although that cannot be written now. What is owed is written
    /// later.
    async fn stop_unwritten(
        &self,
        id: JobId,
        how: How,
        request: StopRequest,
        error: StoreError,
    ) -> Result<StopReply, StopError> {
        let job = self.store.job(id).await?.ok_or(StopError::Unknown(id))?;
        // What waits stays where it is for as long as nothing can be written.
        let Some(run) = job.run() else { return Err(error.into()) };
        tracing::warn!(job = %id, "it is stopped before that is written: {error}");
        self.unwritten_stops().entry(id).or_insert((job.attempt, request.clone()));
        let stop = Stop { job: id, run, how, request: Some(request.clone()) };
        let asked = self.ask_to_stop(stop).await;
        let (Some(inner), attempt) = (self.me.upgrade(), job.attempt) else {
            return Err(StoreError::Closed.into());
        };
        let (busy, is_asked) = (self.busy(), matches!(asked, Ok(Stopped::Stopping) | Err(_)));
        self.runtime.spawn(async move {
            let _busy = busy;
            let stored = inner.write_stop(id, attempt, &request).await;
            inner.unwritten_stops().remove(&id);
            let Some(job) = stored else { return };
            // It went on in that very moment, or nobody knew whether it goes on.
            if let Some(now) = job.run()
                && (now != run || !is_asked)
                && let Err(error) = inner.stop_run(job, now, how, &request).await
            {
                tracing::warn!(job = %id, "it was not stopped: {error}");
            }
        });
        match asked {
            Ok(_) => Ok(StopReply::Stopping(job)),
            Err(why) => Err(StopError::Refused(why)),
        }
    }

    /// Writes a stop of an attempt, however long that takes. Returns the job unless it has
    /// ended, or was tried again, before.
    pub(crate) async fn write_stop(
        &self,
        id: JobId,
        attempt: u32,
        stop: &StopRequest,
    ) -> Option<Job> {
        let written = self.insist(|| async {
            let job = self.store.job(id).await?;
            if job.is_none_or(|job| job.attempt != attempt || job.status().is_terminal()) {
                return Ok(None);
            }
            unless_refused(self.happen(id, Event::StopRequested { stop: stop.clone() }).await)
        });
        written.await.flatten()
    }

    /// Writes the stop of a job that could not be written when it was asked for, if there
    /// is one, before anything follows.
    pub(crate) async fn write_owed_stop(&self, job: &Job) {
        let owed = self.owed_stop(job);
        if let Some(stop) = owed {
            self.write_stop(job.id, job.attempt, &stop).await;
        }
    }

    /// Returns the stop of a job that is not written yet.
    pub(crate) fn owed_stop(&self, job: &Job) -> Option<StopRequest> {
        let unwritten = self.unwritten_stops();
        let (_, stop) = unwritten.get(&job.id).filter(|(attempt, _)| *attempt == job.attempt)?;
        Some(stop.clone())
    }

    fn unwritten_stops(&self) -> MutexGuard<'_, HashMap<JobId, (u32, StopRequest)>> {
        self.unwritten_stops.lock().unwrap_or_else(PoisonError::into_inner)
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
