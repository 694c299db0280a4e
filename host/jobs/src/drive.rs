//! One live job, from the launch of a run to the end of the last that follows it.

use std::{
    collections::HashMap,
    sync::{MutexGuard, PoisonError, Weak},
    time::Duration,
};

use futures::FutureExt as _;
use tokio::{sync::oneshot, time::Instant};

use crate::{
    continuation::{Moment, is_asked, plan},
    id::{JobId, RunId},
    job::{Code, Ending, Event, Failure, Job, Lost, Phase, Report, Status},
    manager::{Inner, Manager, chance, guarded, new_run},
    retry,
    store::{ChangeError, Refused, StoreError},
    world::{Following, How, LaunchError, Launched, RunEnding, RunOutcome, Stop, Stopped},
};

/// How long a change that a store did not write waits to be tried again, at first and at
/// most.
const AGAIN: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

impl Manager {
    /// Tells that a run of a job has ended, for launchers that learn of it by themselves:
    /// the future that [`Launched`] has does the same, and is not waited for any more.
    /// Returns once it is written.
    ///
    /// An outcome that names no run ends the attempt that the job is on, and nothing
    /// follows it. What comes too late changes nothing.
    pub async fn run_finished(&self, job: JobId, outcome: RunOutcome) {
        let (inner, busy) = (self.inner.clone(), self.inner.busy());
        // Whoever tells it may go away; the outcome stays.
        let told = self.inner.runtime.spawn(async move {
            let _busy = busy;
            let Some(read) = inner.insist(|| inner.store.job(job)).await else { return };
            let run = outcome.run.or(read.as_ref().and_then(Job::run));
            if let Some(read) = read
                && let Some((next, run)) = inner.ended(read, outcome).await
            {
                inner.launch(next, run, None);
            }
            match run {
                Some(run) => inner.forget(run),
                // Its job has ended without it, or is gone; whatever ran for it is over.
                None => inner.forget_all_of(job),
            }
        });
        // It is the runtime's if it panics.
        let _ = told.await;
    }

    /// Replaces what is recorded of where a job stands, while the run goes on that has
    /// learned it, and returns the job.
    ///
    /// # Errors
    ///
    /// When the job is not on that run any more, or it cannot be written.
    pub async fn rewrite(&self, id: JobId, run: RunId, state: String) -> Result<Job, ChangeError> {
        self.inner.happen(id, Event::Rewritten { run, state }).await
    }
}

/// What a launch came to, for whoever asked for it.
pub(crate) type FirstLaunch = oneshot::Sender<Result<(), LaunchError>>;

/// A run that was launched.
pub(crate) struct Driven {
    job: JobId,
    /// Whether somebody wants it to stop, as far as this manager knows.
    is_stopped: bool,
    /// Dropped once its end was told by others.
    _over: oneshot::Sender<()>,
}

/// Why nothing is launched any more.
const CLOSED: &str = "host shutdown";

/// Follows a job over its runs, for as long as there is a manager.
async fn drive(me: Weak<Inner>, mut job: Job, mut run: RunId, mut first: Option<FirstLaunch>) {
    // Held for as long as a run of it is known to be driven: who sees that it is, and waits
    // then, is told of its end, also of one that was told just before.
    let _awaited = match me.upgrade() {
        Some(inner) => inner.awaited.of(job.id),
        None => return,
    };
    loop {
        let Some(inner) = me.upgrade() else { return };
        if inner.is_closed() && first.is_none() {
            inner.interrupt(&job, run).await;
            return;
        }
        let launched = match inner.is_closed() {
            true => Err(LaunchError::Unavailable(CLOSED.to_owned())),
            false => {
                let launcher = inner.world.launcher.clone();
                // However long it takes, it keeps no manager.
                drop(inner);
                let launch = guarded(async { launcher.launch(&job, run).await }).await;
                launch.unwrap_or(Err(LaunchError::Unavailable("the launcher panicked".to_owned())))
            }
        };
        // Where the manager is gone, its runs are their launcher's.
        let Some(inner) = me.upgrade() else { return };
        let launched = match launched {
            Ok(launched) => launched,
            Err(error) => {
                // Where nobody deals with it, it is dealt with here.
                let unheard = match first.take() {
                    None => Some(error),
                    Some(first) => first.send(Err(error)).err().and_then(Result::err),
                };
                match unheard {
                    // Nothing is launched by a host that ends.
                    Some(_) if inner.is_closed() => inner.interrupt(&job, run).await,
                    Some(error) => _ = inner.launch_failed(&job, run, &error, false).await,
                    None => {}
                }
                return;
            }
        };
        if let Some(first) = first.take() {
            // Whoever asked may have gone.
            let _ = first.send(Ok(()));
        }
        let Launched { task, code, ended } = launched;
        let mut ended = Box::pin(guarded(ended));
        let over = inner.follow(job.id, run);
        let at_once = (&mut ended).now_or_never();
        let goes_on = inner.note_launch(job.id, run, task, code, at_once.is_some()).await;
        if !goes_on {
            inner.forget(run);
            return;
        }
        drop(inner);
        let outcome = match at_once {
            Some(outcome) => outcome,
            None => tokio::select! {
                biased;
                outcome = ended => outcome,
                _ = over => return,
            },
        };
        let Some(inner) = me.upgrade() else { return };
        let outcome = outcome.unwrap_or_else(|| RunOutcome {
            run: Some(run),
            ending: RunEnding::Failed,
            detail: Some("the launcher lost the run: it panicked".to_owned()),
            output: None,
        });
        let next = inner.ended(job, outcome).await;
        inner.forget(run);
        match next {
            None => return,
            Some((next, next_run)) => (job, run) = (next, next_run),
        }
    }
}

impl Inner {
    /// Drives a job that is on a run which was not launched yet, on a task of its own.
    ///
    /// Where somebody waits for the launch, a launch that fails is theirs to deal with.
    pub(crate) fn launch(&self, job: Job, run: RunId, first: Option<FirstLaunch>) {
        let (me, busy) = (self.me.clone(), self.busy());
        self.runtime.spawn(async move {
            let _busy = busy;
            drive(me, job, run, first).await;
        });
    }

    fn driven(&self) -> MutexGuard<'_, HashMap<RunId, Driven>> {
        self.driven.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a run was launched. What is returned resolves once its end was told by
    /// others.
    fn follow(&self, job: JobId, run: RunId) -> oneshot::Receiver<()> {
        let (_over, over) = oneshot::channel();
        self.driven().insert(run, Driven { job, is_stopped: false, _over });
        over
    }

    /// Waits for a run's end no more. Whoever waits for what becomes of it looks, unless its
    /// end was told.
    pub(crate) fn forget(&self, run: RunId) {
        let forgotten = self.driven().remove(&run);
        if let Some(driven) = forgotten {
            self.have_looked(driven.job);
        }
    }

    /// Has whoever waits for a job look at it.
    pub(crate) fn have_looked(&self, job: JobId) {
        if let Some(awaited) = self.awaited.get(job) {
            awaited.look();
        }
    }

    /// Tells whether a run was launched whose end was not dealt with yet.
    pub(crate) fn is_driven(&self, run: RunId) -> bool {
        self.driven().contains_key(&run)
    }

    fn forget_all_of(&self, job: JobId) {
        self.driven().retain(|_, driven| driven.job != job);
        self.have_looked(job);
    }

    /// Notes that the run of a job is wanted to stop.
    pub(crate) fn heed_stop(&self, job: &Job) {
        if let (Some(_), Some(run)) = (&job.stop, job.run())
            && let Some(driven) = self.driven().get_mut(&run)
        {
            driven.is_stopped = true;
        }
    }

    fn is_stopped(&self, run: RunId) -> bool {
        self.driven().get(&run).is_some_and(|driven| driven.is_stopped)
    }

    /// Drops the runs of jobs that are gone: nobody is left who could stop them.
    pub(crate) fn drop_runs_of(&self, jobs: &[JobId]) {
        let runs: Vec<(JobId, RunId)> = {
            let driven = self.driven();
            let runs = driven.iter().filter(|(_, driven)| jobs.contains(&driven.job));
            runs.map(|(run, driven)| (driven.job, *run)).collect()
        };
        let Some(inner) = self.me.upgrade().filter(|_| !runs.is_empty()) else { return };
        self.runtime.spawn(async move {
            for (job, run) in runs {
                let stop = Stop { job, run, how: How::Force, request: None };
                match inner.ask_to_stop(stop).await {
                    Ok(Stopped::Stopping | Stopped::AfterStep) => {}
                    // What its end was is of no matter.
                    Ok(Stopped::AlreadyFinished | Stopped::Unknown) => inner.forget(run),
                    Err(why) => tracing::warn!(%job, "a run of a deleted job goes on: {why}"),
                }
            }
        });
    }

    /// Ends a job whose run is not launched because the host shuts down.
    async fn interrupt(&self, job: &Job, run: RunId) {
        let ending = Ending::Failed(Failure::Interrupted);
        let chance = chance().unwrap_or_default();
        let report = Report {
            ending,
            result: None,
            detail: Some(CLOSED.to_owned()),
            state: None,
            again_ms: retry::again_ms(job, ending, self.now_ms(), chance),
            told: false,
        };
        self.finish(job.id, Some(run), report).await;
    }

    /// Writes down what was launched, and stops it if its job has ended meanwhile, or went
    /// on without it, or is wanted to stop by somebody whom it was not there to hear.
    /// Returns whether its end is still to be heard of.
    async fn note_launch(
        &self,
        id: JobId,
        run: RunId,
        task: Option<String>,
        code: Option<Code>,
        has_ended: bool,
    ) -> bool {
        let is_news = task.is_some() || code.is_some();
        if !is_news && has_ended {
            return true;
        }
        let event = Event::Launched { run, task, code };
        let read = self.insist(|| async {
            match is_news {
                true => unless_refused(self.happen(id, event.clone()).await),
                false => self.store.job(id).await,
            }
        });
        let Some(read) = read.await else { return true };
        let is_on_it = read.as_ref().is_some_and(|job| job.run() == Some(run));
        let request = read.and_then(|job| job.stop.clone().or_else(|| self.owed_stop(&job)));
        let is_wanted = match &request {
            Some(stop) => stop.after_step,
            None => !self.is_ending(),
        };
        if is_on_it && is_wanted {
            return true;
        }
        // Who told its end by other ways may have done so before this was launched.
        self.stop_unwanted(id, run, request).await || is_on_it
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
        let written =
            self.insist(|| async { unless_refused(self.happen(job, event.clone()).await) });
        written.await.flatten()
    }

    /// Returns an outcome as that of a run which nobody has stopped but the host's end.
    fn as_closing(&self, outcome: RunOutcome) -> RunOutcome {
        let is_stopped = outcome.run.is_none_or(|run| self.is_stopped(run));
        if outcome.ending != RunEnding::Cancelled || is_stopped || !self.is_closed() {
            return outcome;
        }
        RunOutcome { ending: RunEnding::Interrupted, detail: Some(CLOSED.to_owned()), ..outcome }
    }

    /// Does what follows a run's end. Returns the job and its next run, which is to be
    /// launched, if there is one.
    async fn ended(&self, job: Job, outcome: RunOutcome) -> Option<(Job, RunId)> {
        self.write_owed_stop(&job).await;
        let outcome = self.as_closing(outcome);
        // A hook that panics at that is asked what follows, and has failed.
        let has_steps = guarded(async { self.world.follow.has_steps(&job) }).await;
        let has_steps = has_steps.unwrap_or(true);
        let mut job = job;
        // Somebody may want it to stop by now, and then nothing more is asked, and what
        // the host has ended counts as stopped. Else it stands as it did at the launch.
        if has_steps || outcome.ending == RunEnding::Interrupted {
            loop {
                job = self.insist(|| self.store.job(job.id)).await??;
                if job.stop.is_some() {
                    break;
                }
                // One that could not be written was asked for while that was read.
                if let Some(stop) = self.owed_stop(&job) {
                    self.write_stop(job.id, job.attempt, &stop).await;
                    job.stop = Some(stop);
                    break;
                }
                if !job.run().is_some_and(|run| self.is_stopped(run)) {
                    break;
                }
            }
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
        let after = guarded(async { self.world.follow.after(job, outcome).await }).await;
        after.unwrap_or(Err("what follows could not be told: it panicked".to_owned()))
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
        let owing = self.owing();
        let why = loop {
            // A stop that could not be written goes before it.
            self.write_owed_stop(job).await;
            match self.happen(job.id, event.clone()).await {
                Ok(job) => {
                    self.note_trouble(None);
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
            if !self.pause(wait).await {
                break CLOSED.to_owned();
            }
            wait = (wait * 2).min(AGAIN.1);
        };
        drop(owing);
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
            if !self.pause(wait).await {
                return None;
            }
            wait = (wait * 2).min(AGAIN.1);
        }
    }
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

/// Takes what came too late for nothing.
pub(crate) fn unless_refused(changed: Result<Job, ChangeError>) -> Result<Option<Job>, StoreError> {
    match changed {
        Ok(job) => Ok(Some(job)),
        Err(ChangeError::Refused(refused)) => {
            tracing::debug!("it came too late: {refused}");
            Ok(None)
        }
        Err(ChangeError::Store(error)) => Err(error),
    }
}
