//! Going on with a job: one more attempt, or an answer to what it asks.

use std::sync::Arc;

use backlot_registry::Caller;
use tokio::sync::oneshot;

use crate::{
    id::{JobId, NoRandom},
    job::{Event, Job, Lost, Phase, Status},
    manager::{Inner, Manager, guarded, new_run},
    store::{ChangeError, Refused, StoreError},
    world::LaunchError,
};

/// Who asks for something, as far as who is told matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hand {
    /// Whoever the job works for: what it gets in hand is told.
    Model,
    /// Somebody else, such as a person: what it is told tells the one the job works for
    /// nothing.
    Person,
}

/// Why a job does not go on.
#[derive(Debug, thiserror::Error)]
pub enum ResumeError {
    /// There is no such job for this caller.
    #[error("no job {0}: list the jobs to see which there are")]
    Unknown(JobId),
    /// It cannot be, or there is no place for it.
    #[error(transparent)]
    Refused(Refused),
    /// The answer is not what was asked for.
    #[error("the answer does not fit: {0}")]
    Answer(String),
    /// Its run could not be launched; the job is failed.
    #[error("could not be launched: {0}")]
    Launch(LaunchError),
    /// The store could not write it.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The machine gives no random numbers.
    #[error(transparent)]
    Random(#[from] NoRandom),
    /// The manager was closed.
    #[error("the host is shutting down")]
    Closed,
}

impl From<ChangeError> for ResumeError {
    fn from(error: ChangeError) -> Self {
        match error {
            ChangeError::Refused(Refused::NoJob(job)) => Self::Unknown(job),
            ChangeError::Refused(refused) => Self::Refused(refused),
            ChangeError::Store(error) => Self::Store(error),
        }
    }
}

impl Manager {
    /// Tries a failed job again, at the stage that failed and with the state that it had.
    /// Returns it once the run is under way. It does not wait in the queue: it takes a
    /// place that is free at that moment, also before those that wait, or is refused.
    ///
    /// # Errors
    ///
    /// When it has not failed, has had its attempts, or there is no place for it, nothing
    /// has changed. When its run cannot be launched, it is failed again; who is told of
    /// that is a matter of `hand`.
    pub async fn retry(&self, id: JobId, caller: &Caller, hand: Hand) -> Result<Job, ResumeError> {
        let inner = self.inner.clone();
        inner.find(id, caller).await?.ok_or(ResumeError::Unknown(id))?;
        let run = new_run()?;
        inner.resume_apart(id, Event::Retried { run }, hand).await
    }

    /// Answers what a job asks, and returns it once its next run is under way.
    ///
    /// # Errors
    ///
    /// When nothing was asked, or the answer is not what was asked for, nothing has
    /// changed. When the run cannot be launched, the job is failed.
    pub async fn answer(
        &self,
        id: JobId,
        caller: &Caller,
        answer: String,
        hand: Hand,
    ) -> Result<Job, ResumeError> {
        let inner = self.inner.clone();
        let job = inner.find(id, caller).await?.ok_or(ResumeError::Unknown(id))?;
        let Phase::InputRequired { question, last } = &job.phase else {
            let status = job.status();
            return Err(ResumeError::Refused(Refused::Lost(Lost::NotAsked { status })));
        };
        let check = async { inner.world.follow.check_answer(question, &answer).await };
        let checked = guarded(check).await;
        checked.unwrap_or(Err("its check panicked".to_owned())).map_err(ResumeError::Answer)?;
        // What was checked is an answer to this question, and to no later one.
        let event = Event::Answered { asked: last.id, run: new_run()?, answer };
        inner.resume_apart(id, event, hand).await
    }
}

impl Inner {
    /// Resumes a job on a task of its own: whoever asked may go away halfway.
    async fn resume_apart(
        self: Arc<Self>,
        id: JobId,
        event: Event,
        hand: Hand,
    ) -> Result<Job, ResumeError> {
        let (inner, busy) = (self.clone(), self.busy());
        let resumed = self.runtime.spawn(async move {
            let _busy = busy;
            inner.resume(id, event, hand).await
        });
        resumed.await.unwrap_or(Err(ResumeError::Closed))
    }

    async fn resume(&self, id: JobId, event: Event, hand: Hand) -> Result<Job, ResumeError> {
        if self.is_closed() {
            return Err(ResumeError::Closed);
        }
        let job = self.happen(id, event).await?;
        let Some(run) = job.run() else { return Ok(job) };
        let (first, launched) = oneshot::channel();
        self.launch(job.clone(), run, Some(first));
        match launched.await {
            Ok(Ok(())) => Ok(job),
            Ok(Err(error)) => {
                match self.launch_failed(&job, run, &error, hand == Hand::Model).await {
                    // Its policy tries that again.
                    Some(job) if job.status() == Status::Queued => Ok(job),
                    _ => Err(ResumeError::Launch(error)),
                }
            }
            Err(_) => Err(ResumeError::Closed),
        }
    }
}
