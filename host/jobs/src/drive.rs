//! One live job, from the launch of a run to the end of the last that follows it.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures::FutureExt as _;
use tokio::{
    sync::oneshot,
    time::{Instant, sleep},
};

use crate::{
    continuation::{Moment, is_asked, plan},
    id::{JobId, RunId},
    job::{Ending, Event, Failure, Job, Lost, Phase, Report, Status},
    manager::{Inner, Manager, chance, new_run},
    retry,
    store::{ChangeError, Refused, StoreError},
    world::{Following, How, LaunchError, Launched, RunEnding, RunOutcome, Stop},
};

/// How long a change that a store did not write waits to be tried again, at first and at
/// most.
const AGAIN: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

impl Manager {
    /// Tells that a run of a job has ended, for launchers that learn of it by themselves:
    /// the future that [`Launched`] has does the same. Returns once it is written.
    ///
    /// An outcome that names no run ends the attempt that the job is on, and nothing
    /// follows it. What comes too late changes nothing.
    pub async fn run_finished(&self, job: JobId, outcome: RunOutcome) {
        let inner = self.inner.clone();
        // Whoever tells it may go away; the outcome stays.
        let told = self.inner.runtime.spawn(async move {
            let Some(read) = inner.insist(|| inner.store.job(job)).await else { return };
            if let Some(read) = read
                && let Some((next, run)) = inner.ended(read, outcome).await
            {
                inner.drive(next, run, None).await;
            }
        });
        // It is the runtime's if it panics.
        let _ = told.await;
    }
}

/// What a launch came to, for whoever asked for it.
pub(crate) type FirstLaunch = oneshot::Sender<Result<(), LaunchError>>;

impl Inner {
    /// Drives a job that is on a run which was not launched yet, on a task of its own.
    ///
    /// Where somebody waits for the launch, a launch that fails is theirs to deal with.
    pub(crate) fn launch(&self, job: Job, run: RunId, first: Option<FirstLaunch>) {
        let Some(inner) = self.me.upgrade() else { return };
        let driving = inner.driving();
        self.runtime.spawn(async move {
            inner.drive(job, run, first).await;
            drop(driving);
        });
    }

    async fn drive(self: Arc<Self>, mut job: Job, mut run: RunId, mut first: Option<FirstLaunch>) {
        loop {
            let outcome = match self.launched(&job, run).await {
                Ok(launched) => {
                    if let Some(first) = first.take() {
                        // Whoever asked may have gone.
                        let _ = first.send(Ok(()));
                    }
                    self.outcome(&job, run, launched).await
                }
                Err(error) => {
                    if let Some(first) = first.take() {
                        // Where nobody deals with it any more, it is dealt with here.
                        if let Err(Err(error)) = first.send(Err(error)) {
                            self.launch_failed(&job, run, &error, false).await;
                        }
                        return;
                    }
                    self.launch_failed(&job, run, &error, false).await;
                    return;
                }
            };
            match self.ended(job, outcome).await {
                None => return,
                Some((next, next_run)) => (job, run) = (next, next_run),
            }
            if self.is_closed.load(Ordering::Acquire) {
                self.finish(job.id, Some(run), shut_down(&job, self.now_ms())).await;
                return;
            }
        }
    }

    /// Launches the run. A launcher that panics has not launched it.
    async fn launched(&self, job: &Job, run: RunId) -> Result<Launched, LaunchError> {
        let launch = async { self.world.launcher.launch(job, run).await };
        match std::panic::AssertUnwindSafe(launch).catch_unwind().await {
            Ok(launched) => launched,
            Err(_) => Err(LaunchError::Unavailable("the launcher panicked".to_owned())),
        }
    }

    /// Writes down what was launched, stops it if its job has ended meanwhile, and
    /// returns how it ended.
    async fn outcome(&self, job: &Job, run: RunId, launched: Launched) -> RunOutcome {
        let Launched { task, code, ended } = launched;
        let mut ended = std::panic::AssertUnwindSafe(ended).catch_unwind();
        let at_once = (&mut ended).now_or_never();
        let is_news = task.is_some() || code.is_some();
        if is_news {
            let event = Event::Launched { run, task, code };
            self.look(job.id, run, self.happen(job.id, event).await).await;
        } else if at_once.is_none() {
            let read = self.store.job(job.id).await.map_err(ChangeError::from);
            let read = read.and_then(|read| Ok(read.ok_or(Refused::NoJob(job.id))?));
            self.look(job.id, run, read).await;
        }
        let outcome = match at_once {
            Some(outcome) => outcome,
            None => ended.await,
        };
        outcome.unwrap_or_else(|_| RunOutcome {
            run: Some(run),
            ending: RunEnding::Failed,
            detail: Some("the launcher lost the run: it panicked".to_owned()),
            output: None,
        })
    }

    /// Stops a run that was launched for nothing: its job has ended, or went on without
    /// it, or is wanted to stop by somebody whom it was not there to hear.
    async fn look(&self, id: JobId, run: RunId, read: Result<Job, ChangeError>) {
        let request = match read {
            Ok(job) if job.run() != Some(run) => job.stop,
            Ok(job) => match job.stop {
                Some(stop) if !stop.after_step => Some(stop),
                _ => return,
            },
            Err(ChangeError::Refused(_)) => None,
            Err(ChangeError::Store(error)) => {
                // The run goes on; that it was launched is told by its end.
                tracing::warn!(job = %id, "what was launched could not be written: {error}");
                return;
            }
        };
        let stop = Stop { job: id, run, how: How::Ask, request };
        if let Err(why) = self.world.launcher.stop(stop).await {
            tracing::warn!(job = %id, "a run whose job has ended does not stop: {why}");
        }
    }

    /// Ends a job whose run could not be launched. Returns it as it is then, unless
    /// somebody else has ended it.
    pub(crate) async fn launch_failed(
        &self,
        job: &Job,
        run: RunId,
        error: &LaunchError,
        told: bool,
    ) -> Option<Job> {
        let ending = Ending::Failed(Failure::Launch);
        let again_ms = match error {
            // It would be refused again.
            LaunchError::Refused(_) => None,
            LaunchError::Unavailable(_) => {
                retry::again_ms(job, ending, self.now_ms(), chance().unwrap_or_default())
            }
        };
        let report = Report {
            ending,
            result: None,
            detail: Some(format!("could not be launched: {error}")),
            state: None,
            again_ms,
            told,
        };
        self.finish(job.id, Some(run), report).await
    }

    /// Ends a job, however long it takes to be written. Returns it as it is then, unless
    /// somebody else has ended it.
    pub(crate) async fn finish(
        &self,
        job: JobId,
        run: Option<RunId>,
        report: Report,
    ) -> Option<Job> {
        let event = Event::Finished { run, report };
        let written = self.insist(|| async {
            match self.happen(job, event.clone()).await {
                Ok(job) => Ok(Some(job)),
                Err(ChangeError::Refused(refused)) => {
                    tracing::debug!(%job, "an ending came too late: {refused}");
                    Ok(None)
                }
                Err(ChangeError::Store(error)) => Err(error),
            }
        });
        written.await.flatten()
    }

    /// Does what follows a run's end. Returns the job and its next run, which is to be
    /// launched, if there is one.
    async fn ended(&self, job: Job, outcome: RunOutcome) -> Option<(Job, RunId)> {
        if self.is_gone.load(Ordering::Acquire) {
            return None;
        }
        let has_steps = self.world.follow.has_steps(&job);
        let mut job = job;
        if has_steps {
            // Somebody may want it to stop by now, and then nothing more is asked.
            job = self.insist(|| self.store.job(job.id)).await??;
        }
        let is_late = outcome.run.is_some() && job.run() != outcome.run;
        if is_late && job.status() != Status::InputRequired {
            tracing::debug!(job = %job.id, "the outcome of a run that the job is not on is dropped");
            return None;
        }
        let following = match is_asked(&job, &outcome, has_steps) {
            true => Some(self.asked(&job, &outcome).await),
            false => None,
        };
        let (chance, next) = match (chance(), new_run()) {
            (Ok(chance), Ok(next)) => (chance, next),
            (Err(error), _) | (_, Err(error)) => {
                let report = failed(format!("it cannot go on: {error}"));
                self.finish(job.id, outcome.run, report).await;
                return None;
            }
        };
        let moment = Moment { now_ms: self.now_ms(), chance, next };
        let event = plan(&job, &outcome, has_steps, following, &self.config, moment);
        match event {
            Event::Finished { run, report } => {
                self.finish(job.id, run, report).await;
                None
            }
            event => self.go_on(&job, &outcome, event, next).await,
        }
    }

    /// Asks what follows. A hook that panics has failed.
    async fn asked(&self, job: &Job, outcome: &RunOutcome) -> Result<Following, String> {
        let after = async { self.world.follow.after(job, outcome).await };
        match std::panic::AssertUnwindSafe(after).catch_unwind().await {
            Ok(following) => following,
            Err(_) => Err("what follows could not be told: it panicked".to_owned()),
        }
    }

    /// Puts a job on its next run, or has it wait for a person. What cannot be written,
    /// or is not won, does not leave it on the run that ended.
    async fn go_on(
        &self,
        job: &Job,
        outcome: &RunOutcome,
        event: Event,
        next: RunId,
    ) -> Option<(Job, RunId)> {
        let deadline = Instant::now() + self.config.patience;
        let mut wait = AGAIN.0;
        let why = loop {
            match self.happen(job.id, event.clone()).await {
                Ok(job) => {
                    return matches!(&job.phase, Phase::Working { run } if run.id == next)
                        .then_some((job, next));
                }
                Err(ChangeError::Refused(
                    Refused::Lost(Lost::Moved { .. }) | Refused::NoJob(_),
                )) => {
                    return None;
                }
                Err(ChangeError::Refused(refused)) => break refused.to_string(),
                Err(ChangeError::Store(error)) => {
                    self.note_trouble(Some(error.to_string()));
                    if Instant::now() + wait > deadline {
                        break error.to_string();
                    }
                }
            }
            sleep(wait).await;
            wait = (wait * 2).min(AGAIN.1);
        };
        self.finish(job.id, outcome.run, failed(format!("it could not go on: {why}"))).await;
        None
    }

    /// Does something over and over until the store does it. `None` when the manager is
    /// closed before that.
    pub(crate) async fn insist<T, F>(&self, mut attempt: impl FnMut() -> F) -> Option<T>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        let owing = self.owing();
        let mut wait = AGAIN.0;
        loop {
            // Registered before the attempt, so that no closing falls between.
            let closing = self.closing.notified();
            if self.is_gone.load(Ordering::Acquire) {
                return None;
            }
            match attempt().await {
                Ok(done) => {
                    drop(owing);
                    self.note_trouble(None);
                    return Some(done);
                }
                Err(error) => {
                    tracing::warn!("not written yet: {error}");
                    self.note_trouble(Some(error.to_string()));
                }
            }
            tokio::select! {
                () = sleep(wait) => {}
                () = closing => return None,
            }
            wait = (wait * 2).min(AGAIN.1);
        }
    }
}

/// Returns the report of a job between two runs whose host shuts down.
fn shut_down(job: &Job, now_ms: u64) -> Report {
    let ending = Ending::Failed(Failure::Interrupted);
    let again_ms = retry::again_ms(job, ending, now_ms, chance().unwrap_or_default());
    Report { ending, again_ms, ..failed("host shutdown".to_owned()) }
}

/// Returns the report of a failure that is nobody's work.
fn failed(detail: String) -> Report {
    Report {
        ending: Ending::Failed(Failure::Work),
        result: None,
        detail: Some(detail),
        state: None,
        again_ms: None,
        told: false,
    }
}
