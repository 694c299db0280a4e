//! What a manager needs of the world around it.
//!
//! A manager neither runs nor delivers anything: runs are started and stopped by a
//! [`Launcher`], what follows a run is said by a [`Continue`], and what is to be heard
//! goes to [`Reports`]. Each is small, and none is called under a lock.

use std::{fmt, sync::Arc, time::Duration};

use backlot_registry::{BoxFuture, Clock, Kind, SessionId, SystemClock};

use crate::{
    id::{JobId, RunId},
    job::{Code, Job, NextStep, Question, StopRequest},
    store::Gone,
};

/// Everything that a manager needs of the world around it. Cheap to clone.
#[derive(Clone)]
pub struct World {
    /// Says what a kind is called and runs with.
    pub resolver: Arc<dyn Resolver>,
    /// Starts and stops runs.
    pub launcher: Arc<dyn Launcher>,
    /// Says what follows a run.
    pub follow: Arc<dyn Continue>,
    /// Hears what has become of jobs.
    pub reports: Arc<dyn Reports>,
    /// Tells the time of day.
    pub clock: Arc<dyn Clock>,
    /// Tells the time since some moment, on a clock that nobody sets and that counts
    /// what the machine sleeps.
    pub elapsed: Arc<dyn Fn() -> Duration + Send + Sync>,
}

impl World {
    /// Returns a world with that launcher, in which every kind is what it is called, one
    /// run is all there is to a job, and nobody listens.
    pub fn new(launcher: Arc<dyn Launcher>) -> Self {
        Self {
            resolver: Arc::new(Plain),
            launcher,
            follow: Arc::new(Plain),
            reports: Arc::new(Plain),
            clock: Arc::new(SystemClock),
            elapsed: Arc::new(since_boot),
        }
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World").finish_non_exhaustive()
    }
}

/// Answers what a kind is called for a session, and with what configuration its jobs run.
pub trait Resolver: Send + Sync + 'static {
    /// Resolves the kind for a spawn.
    ///
    /// # Errors
    ///
    /// In words, when there is no such kind for that session; nothing is spawned then.
    fn resolve<'a>(
        &'a self,
        session: &'a SessionId,
        kind: &'a Kind,
    ) -> BoxFuture<'a, Result<Resolved, String>>;
}

/// What a kind is called, and what its jobs run with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resolved {
    /// The label of jobs that are spawned without one; the kind where it is `None`.
    pub label: Option<String>,
    /// The configuration as it is now. Jobs keep it, whatever becomes of it.
    pub inherit: Option<String>,
}

/// Starts runs and stops them.
pub trait Launcher: Send + Sync + 'static {
    /// Starts a run of a job: its stage, by [`Job::stage_kind`] and [`Job::stage_input`].
    ///
    /// Once it has resolved with `Ok`, the run is under way.
    ///
    /// # Errors
    ///
    /// Says why nothing is under way.
    fn launch(&self, job: &Job, run: RunId) -> BoxFuture<'_, Result<Launched, LaunchError>>;

    /// Stops a run, and returns what it did.
    ///
    /// # Errors
    ///
    /// In words, when the run goes on and has refused.
    fn stop(&self, stop: Stop) -> BoxFuture<'_, Result<Stopped, String>>;

    /// Returns the last line of progress that a run has reported.
    fn detail(&self, job: JobId, run: RunId) -> Option<String> {
        let _ = (job, run);
        None
    }
}

/// A run that is under way.
pub struct Launched {
    /// The registry's id of the task that does it.
    pub task: Option<String>,
    /// What it runs.
    pub code: Option<Code>,
    /// Resolves when it has ended. Whoever launched it goes on with it whether or not this
    /// is polled.
    pub ended: BoxFuture<'static, RunOutcome>,
}

/// Why a run was not launched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LaunchError {
    /// It never will be: the input, or what it asks for, is wrong.
    #[error("{0}")]
    Refused(String),
    /// It was not now.
    #[error("{0}")]
    Unavailable(String),
}

/// Which run is to be stopped, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stop {
    /// The job.
    pub job: JobId,
    /// The run.
    pub run: RunId,
    /// How.
    pub how: How,
    /// Who asked, and why.
    pub request: Option<StopRequest>,
}

/// How a run is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// Once it has ended by itself.
    AfterStep,
    /// It is asked, and has its grace.
    Ask,
    /// At once.
    Force,
}

/// What became of a stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// The run goes on to its own end; only where [`How::AfterStep`] was asked for.
    AfterStep,
    /// It ends, and its end is told as any.
    Stopping,
    /// It had ended; its end is on its way.
    AlreadyFinished,
    /// There is no such run, or not yet.
    Unknown,
}

/// How a run has ended, as its launcher tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunOutcome {
    /// Which run; the one that the job is on where that cannot be told.
    pub run: Option<RunId>,
    /// How.
    pub ending: RunEnding,
    /// One line about it.
    pub detail: Option<String>,
    /// Its output as text; for a stream kind the whole of it, where it can be had.
    pub output: Option<String>,
}

/// How a run has ended, in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunEnding {
    /// The work was finished.
    Completed,
    /// The work failed.
    Failed,
    /// Somebody stopped it.
    Cancelled,
    /// The host stopped it, for reasons of its own.
    Interrupted,
}

/// Says what follows a run that has completed or failed.
pub trait Continue: Send + Sync + 'static {
    /// Tells whether jobs of that kind may have several runs. Where they do not, the
    /// first run's ending is the job's.
    fn has_steps(&self, job: &Job) -> bool;

    /// Says what follows. Asked about runs of the current attempt that completed or
    /// failed, never about one that was cancelled.
    ///
    /// # Errors
    ///
    /// In words; the job fails with them.
    fn after<'a>(
        &'a self,
        job: &'a Job,
        outcome: &'a RunOutcome,
    ) -> BoxFuture<'a, Result<Following, String>>;

    /// Puts where a job stands into words, such as `step 2/3 (verify)`.
    fn render<'a>(&'a self, job: &'a Job) -> BoxFuture<'a, Option<String>>;

    /// Checks an answer against what was asked.
    ///
    /// # Errors
    ///
    /// In words for the person who gave it.
    fn check_answer<'a>(
        &'a self,
        question: &'a Question,
        answer: &'a str,
    ) -> BoxFuture<'a, Result<(), String>>;
}

/// What follows a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Following {
    /// Nothing: the job ends as the run did, or failed where there is a failure.
    End {
        /// Where the work stands at its end; none keeps what was recorded.
        state: Option<String>,
        /// Why it failed, although its last run may have completed.
        failure: Option<String>,
    },
    /// Another run.
    Proceed(NextStep),
    /// A question to a person.
    Ask {
        /// The question.
        question: Question,
        /// Where the work stands; none keeps what was recorded.
        state: Option<String>,
    },
}

impl Following {
    /// The end that the run's own is.
    pub const END: Self = Self::End { state: None, failure: None };
}

/// Hears what has become of jobs. Each is called after what it tells of was written.
/// What has to be heard is owed until it is settled, so a report that is lost in a crash
/// comes again.
pub trait Reports: Send + Sync + 'static {
    /// A job is there that was not. Its update is told after that.
    fn on_spawned(&self, job: &Job) {
        let _ = job;
    }

    /// A job has ended, and whoever it works for has not heard of it. The job is as it
    /// was when it ended, whatever has become of it since.
    fn on_finished(&self, job: &Job) {
        let _ = job;
    }

    /// Whoever a job works for has its ending in hand.
    fn on_result_delivered(&self, job: &Job) {
        let _ = job;
    }

    /// A job has changed.
    fn on_job_update(&self, job: &Job) {
        let _ = job;
    }

    /// Jobs are gone, with all that is kept of them.
    fn on_removed(&self, gone: &[Gone]) {
        let _ = gone;
    }
}

/// Returns the time since the machine was started.
fn since_boot() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let (secs, nanos) = (u64::try_from(now.tv_sec), u32::try_from(now.tv_nsec));
    Duration::new(secs.unwrap_or_default(), nanos.unwrap_or_default())
}

/// A world where nothing is said of kinds, runs and endings.
struct Plain;

impl Resolver for Plain {
    fn resolve<'a>(
        &'a self,
        _: &'a SessionId,
        _: &'a Kind,
    ) -> BoxFuture<'a, Result<Resolved, String>> {
        Box::pin(async { Ok(Resolved::default()) })
    }
}

impl Continue for Plain {
    fn has_steps(&self, _: &Job) -> bool {
        false
    }

    fn after<'a>(
        &'a self,
        _: &'a Job,
        _: &'a RunOutcome,
    ) -> BoxFuture<'a, Result<Following, String>> {
        Box::pin(async { Ok(Following::END) })
    }

    fn render<'a>(&'a self, _: &'a Job) -> BoxFuture<'a, Option<String>> {
        Box::pin(async { None })
    }

    fn check_answer<'a>(
        &'a self,
        _: &'a Question,
        _: &'a str,
    ) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(async { Ok(()) })
    }
}

impl Reports for Plain {}
