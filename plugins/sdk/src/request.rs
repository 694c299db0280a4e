//! What a run is given.

use crate::bindings::types;
use serde::de::DeserializeOwned;

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

impl Request {
    /// Returns the request of a job's first run with this input.
    ///
    /// The host makes requests; this one is for the tests of what is given one.
    pub fn new(input: impl Into<String>) -> Self {
        Self {
            task: "test-1".to_owned(),
            label: "test".to_owned(),
            input: input.into(),
            job: Some("test".to_owned()),
            attempt: 1,
            step: 0,
            cause: Cause::Spawn,
            state: None,
            last_failure: None,
            answer: None,
        }
    }

    /// Returns the state that an earlier run of the job left, read as JSON; `None`
    /// where none was left.
    ///
    /// [`Next::with_state`](crate::Next::with_state) writes one.
    pub fn state_as<T: DeserializeOwned>(&self) -> Result<Option<T>, serde_json::Error> {
        self.state.as_deref().map(serde_json::from_str).transpose()
    }
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
