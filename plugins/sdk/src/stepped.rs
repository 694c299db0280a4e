//! What follows a run of a durable job.

use crate::bindings::{exported_steps, types};
use crate::error::one_line;
use crate::request::Request;
use serde::Serialize;

/// A producer that decides what follows each run of its jobs.
///
/// A job is a series of runs under one id. When a run has completed or failed,
/// the kind that the job was begun with is asked what follows, whichever kind ran:
/// the end, another run, or a question to a person. The job's state is all that it
/// knows beyond the run itself, since both functions are called in fresh instances
/// without any capability. So a job goes on after a crash of the host as if
/// nothing had been.
///
/// ```no_run
/// use backlot_sdk::{
///     Completed, Descriptor, Ended, Error, Final, Next, Producer, Refusal, Request, Stepped,
///     Task, Text,
/// };
/// use serde::{Deserialize, Serialize};
///
/// /// Counts the lines that grep finds, once a person has agreed.
/// struct Review {
///     answer: Option<String>,
/// }
///
/// #[derive(Serialize, Deserialize)]
/// enum State {
///     Searching,
///     Asked { lines: usize },
/// }
///
/// impl Producer for Review {
///     type Input = Text;
///     type Form = Final;
///     const DESCRIPTOR: Descriptor = Descriptor::new("review", "Searches, and asks a person");
///
///     fn start(_: Text, request: &Request) -> Result<Self, Refusal> {
///         Ok(Self { answer: request.answer.clone() })
///     }
///
///     async fn run(&self, _: &Task<Final>) -> Result<Completed, Error> {
///         Ok(Completed::with_output(self.answer.clone().unwrap_or_default()))
///     }
/// }
///
/// impl Stepped for Review {
///     fn after(request: &Request, ended: &Ended) -> Next {
///         if !ended.is_completed() {
///             return Next::end();
///         }
///         match request.state_as() {
///             Ok(None) => Next::run_kind("grep", &request.input).with_state(&State::Searching),
///             Ok(Some(State::Searching)) => {
///                 let lines = ended.output.as_deref().unwrap_or_default().lines().count();
///                 Next::ask(format!("{lines} lines were found. Is that right?"))
///                     .with_state(&State::Asked { lines })
///             }
///             Ok(Some(State::Asked { .. })) => Next::end(),
///             Err(error) => Next::fail(error.to_string()),
///         }
///     }
///
///     fn render(state: &str) -> Option<String> {
///         Some(match serde_json::from_str(state).ok()? {
///             State::Searching => "searching".to_owned(),
///             State::Asked { lines } => format!("{lines} lines, to be agreed to"),
///         })
///     }
/// }
///
/// backlot_sdk::export!(stepped final: Review);
/// # fn main() {}
/// ```
pub trait Stepped {
    /// Decides what follows a run that has ended, given what the run was given and
    /// what it came to.
    ///
    /// It is not asked after a run that was stopped. After a failed run it mostly
    /// ends the job, which a person can then retry: the same run is made again,
    /// with the same input and state.
    fn after(request: &Request, ended: &Ended) -> Next;

    /// Puts a state into words for a person, such as `step 2/3 (verify)`; says
    /// nothing by default.
    fn render(_state: &str) -> Option<String> {
        None
    }
}

/// What a run of a job has come to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ended {
    /// How it ended.
    pub ending: Ending,
    /// One line, such as `exit code: 3`.
    pub detail: Option<String>,
    /// All that it has put out, also of a kind that does so while it runs. What is
    /// no text, or more than 1 MiB of it, is not here, and the detail says so.
    pub output: Option<String>,
}

impl Ended {
    /// Returns what a run came to that has completed with this output.
    ///
    /// The host tells what runs came to; this is for the tests of what is told.
    pub fn completed(output: impl Into<String>) -> Self {
        Self { ending: Ending::Completed, detail: None, output: Some(output.into()) }
    }

    /// Returns what a run came to that has failed, as [`completed`](Self::completed)
    /// does.
    pub fn failed(detail: impl Into<String>) -> Self {
        Self { ending: Ending::Failed, detail: Some(detail.into()), output: Some(String::new()) }
    }

    /// Returns the output, or a line that says why it is not here.
    pub fn text(&self) -> Result<&str, String> {
        let why = || format!("its output cannot be handed on: {}", self.words());
        self.output.as_deref().ok_or_else(why)
    }

    /// Returns the detail, or where there is none how the run has ended.
    pub fn words(&self) -> &str {
        match (&self.detail, self.ending) {
            (Some(detail), _) => detail,
            (None, Ending::Completed) => "completed",
            (None, Ending::Killed) => "killed",
            (None, Ending::Failed) => "failed",
        }
    }

    /// Tells whether the work was finished.
    pub fn is_completed(&self) -> bool {
        self.ending == Ending::Completed
    }
}

/// How a run has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The work was finished.
    Completed,
    /// The work was given up because a stop was asked for.
    Killed,
    /// The work broke.
    Failed,
}

/// What follows a run. A state that is absent keeps the one recorded last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// The job has ended.
    End {
        /// Where it stands.
        state: Option<String>,
        /// Why the job has failed, although its last run may have completed.
        failure: Option<String>,
    },
    /// The job goes on with another run.
    Proceed {
        /// The kind of the run; `None` for the producer's own.
        kind: Option<String>,
        /// Its input.
        input: String,
        /// Where the job stands.
        state: Option<String>,
    },
    /// The job waits until a person has answered. The run that follows is one of the
    /// producer's own kind, with the input that the job was begun with, and the
    /// answer in [`Request::answer`].
    Ask {
        /// What the person is asked.
        prompt: String,
        /// A JSON Schema (draft 2020-12) for the answer; any text will do without.
        schema: Option<String>,
        /// Where the job stands.
        state: Option<String>,
    },
}

impl Next {
    /// Returns the end of a job, which has come to what its last run has come to.
    pub fn end() -> Self {
        Self::End { state: None, failure: None }
    }

    /// Returns the end of a job that has failed, with one line that says why.
    pub fn fail(why: impl AsRef<str>) -> Self {
        Self::End { state: None, failure: Some(one_line(why.as_ref())) }
    }

    /// Returns another run of the producer's own kind.
    pub fn run(input: impl Into<String>) -> Self {
        Self::Proceed { kind: None, input: input.into(), state: None }
    }

    /// Returns a run of another kind.
    pub fn run_kind(kind: impl Into<String>, input: impl Into<String>) -> Self {
        Self::Proceed { kind: Some(kind.into()), input: input.into(), state: None }
    }

    /// Returns a question to a person.
    pub fn ask(prompt: impl Into<String>) -> Self {
        Self::Ask { prompt: prompt.into(), schema: None, state: None }
    }

    /// Adds where the job stands, written as JSON. A state that cannot be written
    /// fails the job instead.
    pub fn with_state(self, state: &impl Serialize) -> Self {
        let state = match serde_json::to_string(state) {
            Ok(state) => Some(state),
            Err(error) => return Self::fail(format!("the state cannot be written: {error}")),
        };
        match self {
            Self::End { failure, .. } => Self::End { state, failure },
            Self::Proceed { kind, input, .. } => Self::Proceed { kind, input, state },
            Self::Ask { prompt, schema, .. } => Self::Ask { prompt, schema, state },
        }
    }

    /// Adds a JSON Schema for the answer to a question; anything else stays what it
    /// is.
    pub fn with_schema(self, schema: impl Into<String>) -> Self {
        match self {
            Self::Ask { prompt, state, .. } => {
                Self::Ask { prompt, schema: Some(schema.into()), state }
            }
            other => other,
        }
    }
}

impl From<types::Outcome> for Ended {
    fn from(outcome: types::Outcome) -> Self {
        let types::Outcome { ending, detail, output } = outcome;
        let ending = match ending {
            types::Ending::Completed => Ending::Completed,
            types::Ending::Killed => Ending::Killed,
            types::Ending::Failed => Ending::Failed,
        };
        Self { ending, detail, output }
    }
}

impl From<Next> for exported_steps::Next {
    fn from(next: Next) -> Self {
        use exported_steps::{Closing, Continuation, Question};
        match next {
            Next::End { state, failure } => Self::End(Closing { state, failure }),
            Next::Proceed { kind, input, state } => {
                Self::Proceed(Continuation { kind, input, state })
            }
            Next::Ask { prompt, schema, state } => Self::Ask(Question { prompt, schema, state }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn a_state_is_read_as_it_was_written() {
        let mut request = Request::new("");
        assert_eq!(request.state_as::<(u32, String)>().ok(), Some(None));
        let state = (2, "left".to_owned());
        for next in [Next::end(), Next::fail("x"), Next::run("x"), Next::ask("x")] {
            let (Next::End { state: written, .. }
            | Next::Proceed { state: written, .. }
            | Next::Ask { state: written, .. }) = next.with_state(&state);
            request.state = written;
            assert_eq!(request.state_as().ok(), Some(Some(state.clone())));
        }
        assert!(request.state_as::<u32>().is_err());
    }

    #[test]
    fn a_state_that_cannot_be_written_fails_the_job() {
        // The names of fields are text.
        let state = BTreeMap::from([((1, 2), 3)]);
        let Next::End { failure: Some(why), .. } = Next::run("x").with_state(&state) else {
            panic!("it was written")
        };
        assert!(why.starts_with("the state cannot be written: "), "{why}");
    }

    #[test]
    fn a_run_is_told_by_its_detail_and_its_output_handed_on_if_it_is_here() {
        assert_eq!(Ended::completed("a\n").text(), Ok("a\n"));
        assert_eq!(Ended::failed("disk full").words(), "disk full");
        let silent = Ended { detail: None, output: None, ..Ended::completed("") };
        assert_eq!(silent.words(), "completed");
        let large = Ended { detail: Some("5 MiB of output".to_owned()), ..silent };
        let why = "its output cannot be handed on: 5 MiB of output";
        assert_eq!(large.text(), Err(why.to_owned()));
    }

    #[test]
    fn a_question_alone_has_a_schema() {
        let ask = Next::ask("Deploy?").with_schema("true").with_state(&1);
        let schema = Some("true".to_owned());
        let state = Some("1".to_owned());
        assert_eq!(ask, Next::Ask { prompt: "Deploy?".to_owned(), schema, state });
        assert_eq!(Next::end().with_schema("true"), Next::end());
    }
}
