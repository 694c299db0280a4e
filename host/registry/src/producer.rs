//! What the registry asks of the side that does the work.
//!
//! A [`Producer`] starts work of one kind. It hands back a [`Run`]: a future
//! that resolves at quiescence, and a [`Control`] to reach the work meanwhile.
//! The registry owns that future, so it can always end a task by dropping it.
//! Components and native Rust stand behind the same traits; the registry never
//! learns which.

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use crate::{Kind, SessionId, StopBounds, TaskHost, TaskId};

/// A boxed future, as object-safe traits need it.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Starts work of one kind.
///
/// One value may start many tasks. What differs between two starts beyond the
/// [`Request`], such as grants and limits, is bound into the value.
pub trait Producer: Send + Sync + 'static {
    /// Returns the name of the kind, the prefix of its task ids.
    fn kind(&self) -> &Kind;

    /// Returns how tasks of this kind hand over their output.
    fn form(&self) -> Form;

    /// Starts the work.
    ///
    /// Once it resolves with a [`Run`], the work is under way and the task
    /// exists. Once it has resolved with an error, panicked or been dropped,
    /// nothing is left running and nothing is held. The registry calls it once
    /// for a task and bounds it by the start deadline.
    ///
    /// # Errors
    ///
    /// Any [`Refusal`]; the caller of `start` gets it unchanged.
    fn run(&self, request: Request, host: TaskHost) -> BoxFuture<'_, Result<Run, Refusal>>;

    /// Returns the producer that a task started now is to run, where this one only
    /// stands for it; `None` for this one.
    ///
    /// A start asks once, before anything else, and from then on speaks with what it
    /// got. So what stands behind a name can be replaced at any moment, and no task
    /// is half of one version and half of another.
    ///
    /// `owner` is the session of whom the task is to belong to.
    ///
    /// # Errors
    ///
    /// A [`Refusal`] when there is none now.
    fn resolve(&self, owner: Option<&SessionId>) -> Result<Option<Arc<dyn Producer>>, Refusal> {
        let _ = owner;
        Ok(None)
    }

    /// Returns the version that its tasks run.
    fn generation(&self) -> Option<Generation> {
        None
    }

    /// Returns what its tasks may reach and use, a line each, where it is fixed.
    fn grant(&self) -> Option<Arc<[String]>> {
        None
    }

    /// Returns how many tasks of its kind may be live at once, where that differs
    /// from the registry's own cap.
    fn cap(&self) -> Option<usize> {
        None
    }

    /// Returns the bounds of the stop ladder where they differ from the
    /// registry's own.
    fn stop_bounds(&self) -> Option<StopBounds> {
        None
    }
}

/// Work that is under way.
pub struct Run {
    /// Reaches the work while it runs.
    pub control: Arc<dyn Control>,
    /// Resolves at quiescence: when the work has ended and what it held is
    /// released. A panic in it counts as a failure. Dropping it is the last
    /// rung of the stop ladder.
    pub done: BoxFuture<'static, Outcome>,
    /// What dropping `done` releases.
    pub on_drop: OnDrop,
}

/// What dropping the `done` future of a [`Run`] releases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnDrop {
    /// Everything: nothing of the work can go on afterwards.
    ReleasesAll,
    /// The future only: work that it started elsewhere may go on, and is
    /// logged as a possible orphan.
    MayOrphan,
}

/// Reaches work that is under way.
pub trait Control: Send + Sync + 'static {
    /// Asks the work to stop, forwarding the reason unchanged.
    ///
    /// Resolves as soon as the work has answered; `done` tells when it has
    /// ended. The registry bounds it by [`StopBounds::ask`], and it goes on to
    /// the last rung when the bound passes. Dropping the future does not take
    /// the question back. Must be idempotent.
    ///
    /// # Errors
    ///
    /// A [`StopRefusal`] leaves the work as it was.
    fn cancel(&self, reason: Option<String>) -> BoxFuture<'static, Result<Agreed, StopRefusal>>;

    /// Moves the output that the work has ready into the task's spool.
    ///
    /// Called before a read, which waits for it a bounded time. Work that
    /// writes to its spool directly need not implement it. Dropping the future
    /// must not lose output.
    fn drain(&self) -> Option<BoxFuture<'static, ()>> {
        None
    }

    /// Returns the outcome that the work has told before it was dropped, if it
    /// had done all but let go of what it held.
    ///
    /// Asked once, when the work was dropped by the last rung of the stop ladder:
    /// what was told stands.
    fn outcome(&self) -> Option<Outcome> {
        None
    }

    /// Returns what the work has used so far.
    fn usage(&self) -> Option<Usage> {
        None
    }
}

/// How work has agreed to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Agreed {
    /// It winds down by itself and gets the grace period for it.
    WindsDown,
    /// It is to be dropped at once.
    DropNow,
}

/// Why work did not agree to stop.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StopRefusal {
    /// The work must not be interrupted now; asking again may help.
    #[error("not now: {0}")]
    NotNow(String),
    /// Stopping failed; only force can end the task.
    #[error("{0}")]
    Broken(String),
    /// The work broke while it was asked, and ends as failed.
    #[error("{0}")]
    Crashed(String),
}

/// How tasks of a kind hand over their output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Piece by piece while they run.
    Stream,
    /// Once, when they end.
    Final,
}

/// What a run is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The id of the task.
    pub task: TaskId,
    /// The one line that the task is shown under.
    pub label: String,
    /// The input, in the form that the kind defines.
    pub input: String,
    /// Where the run stands in a durable job.
    pub step: Step,
}

/// Where a run stands in the durable job that it may belong to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The job's id, if the run belongs to one.
    pub job: Option<String>,
    /// Which attempt this is; the first is 1.
    pub attempt: u32,
    /// Which step of the job this is; the first is 0.
    pub number: u32,
    /// Why the run was started.
    pub cause: Cause,
    /// What an earlier run of the job left for this one.
    pub state: Option<String>,
    /// Why the attempt before failed.
    pub last_failure: Option<String>,
    /// What a person answered to the job's question.
    pub answer: Option<String>,
}

impl Default for Step {
    /// Returns the first step of the first attempt of work that belongs to no job.
    fn default() -> Self {
        Self {
            job: None,
            attempt: 1,
            number: 0,
            cause: Cause::Spawn,
            state: None,
            last_failure: None,
            answer: None,
        }
    }
}

/// Why a run was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Somebody started it.
    Spawn,
    /// An earlier attempt failed.
    Retry,
    /// The step before asked for this one.
    Step,
    /// A person answered a question.
    Answer,
}

/// Why a producer did not start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The input cannot be worked on.
    #[error("invalid input: {0}")]
    InvalidInput(String),
    /// Something that the work needs is missing now.
    #[error("unavailable: {0}")]
    Unavailable(String),
    /// The start asks for more than it may have.
    #[error("not granted: {0}")]
    NotGranted(String),
    /// The producer broke while it was starting.
    #[error("could not start: {0}")]
    Broken(String),
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ending {
    /// The work was finished.
    Completed,
    /// The work was given up because a stop was asked for.
    Killed,
    /// The work broke.
    Failed,
}

/// What a run came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// How it ended.
    pub ending: Ending,
    /// One line for status displays, such as `exit code: 3`.
    pub detail: Option<String>,
    /// The final output; for a stream kind it is appended to the stream once.
    pub output: Option<String>,
}

impl Outcome {
    /// Returns the outcome of work that was finished, without detail or output.
    pub fn completed() -> Self {
        Self { ending: Ending::Completed, detail: None, output: None }
    }

    /// Returns the outcome of work that gave up because it was asked to stop.
    pub fn killed() -> Self {
        Self { ending: Ending::Killed, detail: None, output: None }
    }

    /// Returns the outcome of work that broke, with the line that says why.
    pub fn failed(detail: impl Into<String>) -> Self {
        Self { ending: Ending::Failed, detail: Some(detail.into()), output: None }
    }
}

/// One loaded version of a kind.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Generation {
    /// Counts the versions of the kind that the host has loaded, from 1.
    pub number: u64,
    /// Identifies the code, for components `sha256:` and 64 hexadecimal digits.
    pub digest: Arc<str>,
}

/// What a task has used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// CPU time spent on the task's behalf.
    pub cpu: Duration,
    /// The largest amount of memory held at one time, in bytes.
    pub peak_memory: u64,
}
