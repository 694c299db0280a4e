//! What follows a run of a job, as its component decides it.
//!
//! A component says so in words of its own, which are checked here: whoever asks gets
//! what can be acted on, or an error that says what is wrong. Carrying it out is left
//! to whoever keeps the jobs.

use std::time::Duration;

use backlot_registry::{BoxFuture, Kind, Outcome, Refusal, Request};
use wasmtime::component::Accessor;

use crate::{
    aside::{self, AsideError},
    component::{Component, Entry},
    contract::{self, Exports},
    engine::Engine,
    limits::{Bytes, Limits},
    schema::Schema,
    store::Guest,
    text,
};

/// How long `after` or `render` may take. Both are pure, as `describe` is, and take
/// microseconds. They get more than that does, since here the end of it is the end of a
/// job, and the machine may be busy; not much more, since others wait for their turn.
const DEADLINE: Duration = Duration::from_secs(3);
/// How large a state may be, in bytes: it is written with every step.
const STATE_BYTES: usize = 1 << 20;
/// How long a question may be, in bytes.
const PROMPT_BYTES: usize = 64 << 10;

/// What follows a run of a job. A state that is absent keeps the one recorded last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// The job has ended.
    End {
        /// Where it stands.
        state: Option<String>,
        /// Why it has failed, although its last run may have completed: one line.
        failure: Option<String>,
    },
    /// The job goes on with another run.
    Proceed {
        /// The kind of the run; `None` for the component's own.
        kind: Option<Kind>,
        /// Its input.
        input: String,
        /// Where the job stands.
        state: Option<String>,
    },
    /// The job waits for a person.
    Ask {
        /// What the person is asked.
        prompt: String,
        /// The JSON Schema of the answer, which can be used; `None` when any text will do.
        schema: Option<String>,
        /// Where the job stands.
        state: Option<String>,
    },
}

/// Why it is not known what follows a run, or how a state reads.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StepsError {
    /// The component decides nothing.
    #[error("{0} does not export `steps`, so nothing follows its runs")]
    NoSteps(Kind),
    /// The component has trapped, or hit a limit.
    #[error("trap in {call}: {why}")]
    Trap {
        /// The function that was called.
        call: &'static str,
        /// What happened.
        why: String,
    },
    /// The component has not come back in time.
    #[error("{call} took longer than {limit:?}")]
    Late {
        /// The function that was called.
        call: &'static str,
        /// How long it may take.
        limit: Duration,
    },
    /// What the component returned cannot be acted on.
    #[error("after returned {0}")]
    Answer(String),
}

/// Why the answer to a question is not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnswerError {
    /// It is not what was asked for.
    #[error("{0}")]
    Invalid(String),
    /// It could not be checked; trying again may help.
    #[error("the answer could not be checked: {0}")]
    Unchecked(String),
}

impl Component {
    /// Tells whether the component decides what follows each run of its jobs.
    pub fn has_steps(&self) -> bool {
        self.description().steps
    }

    /// Asks what follows a run of a job that was begun with this kind, whichever kind
    /// ran, given what the run was given and what it came to.
    ///
    /// It is asked in a fresh instance without any capability, under a short deadline.
    ///
    /// # Errors
    ///
    /// When the component has no steps, traps, hangs, or returns what cannot be acted on.
    pub async fn after(&self, request: Request, ended: Outcome) -> Result<Next, StepsError> {
        let next = self
            .ask("after", |guest, store| Box::pin(guest.after(store, request, ended)))
            .await?
            .ok_or_else(|| StepsError::NoSteps(self.0.kind.clone()))?;
        let next = checked(next).map_err(StepsError::Answer)?;
        if let Next::Ask { schema: Some(schema), .. } = &next {
            Schema::of(schema, self.0.engine.checker()).await.map_err(|why| {
                StepsError::Answer(format!("a question with an invalid schema: {why}"))
            })?;
        }
        Ok(next)
    }

    /// Asks for a state in words, one line of at most a kilobyte; `None` when there is
    /// nothing to say.
    ///
    /// It is asked as [`Component::after`] is.
    ///
    /// # Errors
    ///
    /// When the component has no steps, traps or hangs.
    pub async fn render(&self, state: &str) -> Result<Option<String>, StepsError> {
        let state = state.to_owned();
        let words = self.ask("render", |guest, store| Box::pin(guest.render(store, state))).await?;
        Ok(words.map(|words| text::line(&words)).filter(|words| !words.is_empty()))
    }

    async fn ask<T: Send + 'static>(
        &self,
        call: &'static str,
        with: impl for<'a> FnOnce(
            &'a Exports,
            &'a Accessor<Guest>,
        ) -> BoxFuture<'a, wasmtime::Result<T>>
        + Send
        + 'static,
    ) -> Result<T, StepsError> {
        let component = &self.0;
        let Entry::Producer { indices, .. } = &component.entry else {
            return Err(StepsError::NoSteps(component.kind.clone()));
        };
        if !indices.has_steps() {
            return Err(StepsError::NoSteps(component.kind.clone()));
        }
        // The semaphore is never closed; without a turn it is only one more.
        let _turn = component.steps_turn.acquire().await;
        aside::call(&component.engine, &component.pre, indices, DEADLINE, with).await.map_err(
            |error| match error {
                AsideError::Trap(why) => StepsError::Trap { call, why },
                AsideError::Late(limit) => StepsError::Late { call, limit },
            },
        )
    }
}

impl Engine {
    /// Checks the answer to a question against the question's schema. An answer that is
    /// JSON is checked as that; any other is checked as the JSON string with its text, so
    /// that a person need not put quotes around what is plainly text.
    ///
    /// # Errors
    ///
    /// What is wrong with the answer, without repeating it, or that it could not be
    /// checked.
    pub async fn check_answer(&self, schema: &str, answer: &str) -> Result<(), AnswerError> {
        let schema = Schema::of(schema, self.checker()).await.map_err(AnswerError::Unchecked)?;
        let is_json = serde_json::from_str::<serde::de::IgnoredAny>(answer).is_ok();
        let checked = match is_json {
            true => schema.check(answer).await,
            false => schema.check(&serde_json::Value::from(answer).to_string()).await,
        };
        checked.map_err(|refusal| match refusal {
            Refusal::InvalidInput(why) => AnswerError::Invalid(why),
            other => AnswerError::Unchecked(other.to_string()),
        })
    }
}

/// Returns what the component said is to follow, if it can be acted on; a schema has
/// yet to be read.
fn checked(next: contract::Next) -> Result<Next, String> {
    let state = |state: Option<String>| match state {
        Some(state) => bounded("a state", state, STATE_BYTES).map(Some),
        None => Ok(None),
    };
    Ok(match next {
        contract::Next::End { state: at, failure } => {
            Next::End { state: state(at)?, failure: failure.map(|why| failed(&why)) }
        }
        contract::Next::Proceed { kind, input, state: at } => Next::Proceed {
            kind: kind.map(|kind| Kind::new(&kind)).transpose().map_err(|error| {
                format!("a kind that there cannot be: {}", text::line(&error.to_string()))
            })?,
            // What a run takes by default: what is longer would be refused at its start.
            input: bounded("an input", input, Limits::default().input)?,
            state: state(at)?,
        },
        contract::Next::Ask { prompt, .. } if prompt.trim().is_empty() => {
            return Err("a question without words".to_owned());
        }
        contract::Next::Ask { prompt, schema, state: at } => Next::Ask {
            prompt: bounded("a question", prompt, PROMPT_BYTES)?,
            schema,
            state: state(at)?,
        },
    })
}

/// Returns why a job has failed, in a line that is not empty.
fn failed(why: &str) -> String {
    match text::line(why) {
        line if line.is_empty() => "it failed, and its component did not say why".to_owned(),
        line => line,
    }
}

fn bounded(what: &str, text: String, most: usize) -> Result<String, String> {
    match text.len() {
        length if length > most => {
            Err(format!("{what} of {length} bytes, and the limit is {}", Bytes(most as u64)))
        }
        _ => Ok(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proceed(kind: Option<&str>, input: usize, state: usize) -> Result<Next, String> {
        let kind = kind.map(str::to_owned);
        let (input, state) = ("i".repeat(input), Some("s".repeat(state)));
        checked(contract::Next::Proceed { kind, input, state })
    }

    fn ask(prompt: &str) -> Result<Next, String> {
        checked(contract::Next::Ask { prompt: prompt.to_owned(), schema: None, state: None })
    }

    fn end(failure: &str) -> Option<String> {
        let failure = Some(failure.to_owned());
        match checked(contract::Next::End { state: None, failure }) {
            Ok(Next::End { failure, .. }) => failure,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_can_be_acted_on_is_as_it_was_said() {
        assert_eq!(
            proceed(Some("grep"), 1, 1),
            Ok(Next::Proceed {
                kind: Some(Kind::new("grep").unwrap()),
                input: "i".to_owned(),
                state: Some("s".to_owned()),
            })
        );
        assert!(proceed(None, Limits::default().input, STATE_BYTES).is_ok());
        // Lines are a person's to read.
        let two_lines = "a\nb";
        assert!(matches!(ask(two_lines), Ok(Next::Ask { prompt, .. }) if prompt == two_lines));
        assert!(ask(&"p".repeat(PROMPT_BYTES)).is_ok());
    }

    #[test]
    fn what_is_too_large_or_no_kind_is_told() {
        let why = |next: Result<Next, String>| next.unwrap_err();
        let input = why(proceed(None, Limits::default().input + 1, 0));
        assert_eq!(input, "an input of 8388609 bytes, and the limit is 8 MiB");
        let state = why(proceed(None, 0, STATE_BYTES + 1));
        assert_eq!(state, "a state of 1048577 bytes, and the limit is 1 MiB");
        let kind = why(proceed(Some("No\nKind"), 0, 0));
        assert!(
            kind.starts_with("a kind that there cannot be: ") && !kind.contains('\n'),
            "{kind}"
        );
        assert_eq!(why(ask(" \n")), "a question without words");
        let prompt = why(ask(&"p".repeat(PROMPT_BYTES + 1)));
        assert_eq!(prompt, "a question of 65537 bytes, and the limit is 64 KiB");
    }

    #[test]
    fn a_failure_is_one_short_line_and_never_nothing() {
        assert_eq!(end("a\nb").as_deref(), Some("a b"));
        assert!(end(&"x".repeat(10_000)).is_some_and(|line| line.len() < 1_100));
        assert!(end(" ").is_some_and(|line| line.contains("did not say why")));
    }
}
