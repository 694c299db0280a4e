//! What a run is given.

use crate::bindings::types;

/// What a run is given, besides its parsed input.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Request {
    /// The task's id, `<kind>-N`.
    pub task: String,
    /// The one line that the task is shown under.
    pub label: String,
    /// The input as it was given.
    pub input: String,
    /// The durable job that this run belongs to, if there is one.
    pub job: Option<String>,
    /// Which attempt this is; the first is 1.
    pub attempt: u32,
    /// Which step of the job this is; the first is 0.
    pub step: u32,
    /// Why the run was started.
    pub cause: Cause,
    /// What an earlier run of the job left for this one.
    pub state: Option<String>,
    /// Why the attempt before failed, when the cause is [`Cause::Retry`].
    pub last_failure: Option<String>,
    /// What the person answered, when the cause is [`Cause::Answer`].
    pub answer: Option<String>,
}

/// Why a run was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Somebody started the task or job.
    Spawn,
    /// An earlier attempt failed and is tried again.
    Retry,
    /// The step before asked for this one.
    Step,
    /// A person answered the question that the job was waiting on.
    Answer,
}

impl From<types::Request> for Request {
    fn from(request: types::Request) -> Self {
        Self {
            task: request.task,
            label: request.label,
            input: request.input,
            job: request.job,
            attempt: request.attempt,
            step: request.step,
            cause: request.cause.into(),
            state: request.state,
            last_failure: request.last_failure,
            answer: request.answer,
        }
    }
}

impl From<types::Cause> for Cause {
    fn from(cause: types::Cause) -> Self {
        match cause {
            types::Cause::Spawn => Self::Spawn,
            types::Cause::Retry => Self::Retry,
            types::Cause::Step => Self::Step,
            types::Cause::Answer => Self::Answer,
        }
    }
}
