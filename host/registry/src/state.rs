//! The life of a task, on one screen.
//!
//! [`next`] is the only place where a task state is made. Everything else
//! sends it events. It is also where it is decided who ended a task, so that
//! every surface tells the same.

use std::{fmt, time::Duration};

use crate::{Ending, Form, text};

/// Where a task stands, with what belongs to that state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// The work is under way.
    Running,
    /// The work is under way and about to end, because it was stopped.
    Stopping(Stop),
    /// The work was finished.
    Completed(Ended),
    /// The work was given up because a person or the owner stopped it.
    Killed(Ended),
    /// The work broke, or the host shut down.
    Failed(Ended),
}

/// Why a task is being stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stop {
    /// Who stops it.
    pub cause: StopCause,
    /// The reason that was given.
    pub reason: Option<String>,
}

/// How a task ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// One line for status displays.
    pub detail: Option<String>,
    /// Who stopped the task, if somebody did before it ended.
    pub cause: Option<StopCause>,
    /// When it ended, in milliseconds since the Unix epoch.
    pub at_ms: u64,
}

/// Who stops a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StopCause {
    /// Somebody killed it.
    Person,
    /// Its owner was disposed.
    Owner,
    /// The host shuts down.
    Shutdown,
}

/// What happens to a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The work agreed to stop, or it is stopped without being heard.
    Stopped(Stop),
    /// The work reached quiescence and said how it ended.
    Settled {
        /// How it ended.
        ending: Ending,
        /// The work's own line about it.
        detail: Option<String>,
        /// When, in milliseconds since the Unix epoch.
        at_ms: u64,
    },
    /// The work panicked.
    Panicked {
        /// What it panicked with.
        message: String,
        /// When, in milliseconds since the Unix epoch.
        at_ms: u64,
    },
    /// The work was dropped before it reached quiescence.
    Dropped {
        /// Which rung of the stop ladder dropped it.
        rung: Rung,
        /// How the kind hands over its output.
        form: Form,
        /// When, in milliseconds since the Unix epoch.
        at_ms: u64,
    },
}

/// Which rung of the stop ladder dropped the work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rung {
    /// The work agreed to be dropped.
    Agreed,
    /// It did not answer within the bound.
    Unheard(Duration),
    /// It agreed, and did not end within the bound.
    Overdue(Duration),
    /// Somebody forced it.
    Forced,
    /// It refused while its owner or the host was going away.
    Refused(String),
    /// Its future could not even be dropped within the bound, because it blocks
    /// its thread. Only the record ends.
    Blocked(Duration),
    /// The runtime that drove it is gone.
    RuntimeGone,
}

/// Returns the state that follows.
///
/// # Errors
///
/// [`IllegalEvent`] where the event cannot happen. A terminal state is final,
/// so every event is illegal there.
pub fn next(state: &State, event: &Event) -> Result<State, IllegalEvent> {
    match (state, event) {
        (State::Running, Event::Stopped(stop)) => Ok(State::Stopping(stop.clone())),
        // Who stops a task on purpose outranks a shutdown, whose tasks may be retried.
        (State::Stopping(before), Event::Stopped(stop)) => Ok(State::Stopping(
            if before.cause == StopCause::Shutdown { stop } else { before }.clone(),
        )),
        (State::Running, Event::Settled { ending, detail, at_ms }) => {
            let ended = |detail| Ended { detail, cause: None, at_ms: *at_ms };
            Ok(match ending {
                Ending::Completed => State::Completed(ended(detail.clone())),
                Ending::Failed => State::Failed(ended(detail.clone())),
                Ending::Killed => State::Failed(ended(line([
                    Some("ended as killed, but nobody had stopped it".to_owned()),
                    detail.clone(),
                ]))),
            })
        }
        (State::Stopping(stop), Event::Settled { ending, detail, at_ms }) => Ok(match ending {
            Ending::Completed => State::Completed(stop.ended(detail.clone(), *at_ms)),
            Ending::Killed => {
                let detail = detail.clone().or_else(|| line([stop.said()]));
                stop.blame(line([detail]), *at_ms)
            }
            Ending::Failed => {
                State::Failed(stop.ended(line([stop.shutdown(), detail.clone()]), *at_ms))
            }
        }),
        (State::Running, Event::Panicked { message, at_ms }) => Ok(State::Failed(Ended {
            detail: Some(format!("panicked: {message}")),
            cause: None,
            at_ms: *at_ms,
        })),
        (State::Stopping(stop), Event::Panicked { message, at_ms }) => {
            let detail = line([stop.shutdown(), Some(format!("panicked: {message}"))]);
            Ok(State::Failed(stop.ended(detail, *at_ms)))
        }
        // A runtime goes with its host.
        (State::Running, Event::Dropped { rung: Rung::RuntimeGone, form, at_ms }) => {
            let stop = Stop { cause: StopCause::Shutdown, reason: None };
            Ok(stop
                .blame(line([Rung::RuntimeGone.said(), lost(&Rung::RuntimeGone, *form)]), *at_ms))
        }
        (State::Stopping(stop), Event::Dropped { rung, form, at_ms }) => {
            let said = match (stop.cause, rung) {
                // Shutting down says as much.
                (StopCause::Shutdown, Rung::Agreed) => None,
                _ => rung.said(),
            };
            let detail = line([said, stop.said(), lost(rung, *form)]);
            Ok(match rung {
                Rung::Refused(_) => {
                    State::Failed(stop.ended(line([stop.shutdown(), detail]), *at_ms))
                }
                _ => stop.blame(detail, *at_ms),
            })
        }
        (state, event) => Err(IllegalEvent { state: state.status(), event: event.name() }),
    }
}

impl Stop {
    /// Returns the terminal state of work that this stop ended.
    fn blame(&self, detail: Option<String>, at_ms: u64) -> State {
        match self.cause {
            StopCause::Person | StopCause::Owner => State::Killed(self.ended(detail, at_ms)),
            StopCause::Shutdown => {
                State::Failed(self.ended(line([self.shutdown(), detail]), at_ms))
            }
        }
    }

    fn ended(&self, detail: Option<String>, at_ms: u64) -> Ended {
        Ended { detail, cause: Some(self.cause), at_ms }
    }

    fn said(&self) -> Option<String> {
        self.reason.as_ref().map(|reason| format!("reason: {}", text::one_line(reason)))
    }

    fn shutdown(&self) -> Option<String> {
        (self.cause == StopCause::Shutdown).then(|| "host shutdown".to_owned())
    }
}

impl Rung {
    fn said(&self) -> Option<String> {
        match self {
            Self::Agreed => Some("stopped".to_owned()),
            Self::Unheard(bound) => Some(format!("forced: could not be asked within {bound:?}")),
            Self::Overdue(bound) => {
                Some(format!("forced: did not end within {bound:?} of being asked"))
            }
            Self::Forced => Some("forced on request".to_owned()),
            Self::Refused(why) => Some(format!("forced: refused to stop ({why})")),
            Self::Blocked(bound) => Some(format!(
                "forced: could not be dropped within {bound:?}; its work may still be going on"
            )),
            Self::RuntimeGone => Some("dropped with its runtime".to_owned()),
        }
    }
}

fn lost(rung: &Rung, form: Form) -> Option<String> {
    (form == Form::Stream && *rung != Rung::Agreed)
        .then(|| "output not yet handed over is lost".to_owned())
}

fn line(parts: impl IntoIterator<Item = Option<String>>) -> Option<String> {
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

/// An event came in a state where it cannot happen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{event}` cannot happen to a {state} task")]
pub struct IllegalEvent {
    /// The state.
    pub state: Status,
    /// The event's name.
    pub event: &'static str,
}

impl Event {
    fn name(&self) -> &'static str {
        match self {
            Self::Stopped { .. } => "stopped",
            Self::Settled { .. } => "settled",
            Self::Panicked { .. } => "panicked",
            Self::Dropped { .. } => "dropped",
        }
    }
}

impl State {
    /// Returns the plain name of the state.
    pub fn status(&self) -> Status {
        match self {
            Self::Running => Status::Running,
            Self::Stopping(_) => Status::Stopping,
            Self::Completed(_) => Status::Completed,
            Self::Killed(_) => Status::Killed,
            Self::Failed(_) => Status::Failed,
        }
    }

    /// Returns how the task ended, once it has.
    pub fn ended(&self) -> Option<&Ended> {
        match self {
            Self::Running | Self::Stopping(_) => None,
            Self::Completed(ended) | Self::Killed(ended) | Self::Failed(ended) => Some(ended),
        }
    }

    /// Says whether the task has ended.
    pub fn is_terminal(&self) -> bool {
        self.ended().is_some()
    }

    /// Returns who stops or stopped the task, if somebody does.
    pub fn cause(&self) -> Option<StopCause> {
        match self {
            Self::Running => None,
            Self::Stopping(stop) => Some(stop.cause),
            Self::Completed(ended) | Self::Killed(ended) | Self::Failed(ended) => ended.cause,
        }
    }
}

/// The plain name of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// The work is under way.
    Running,
    /// The work is about to end, because it was stopped.
    Stopping,
    /// The work was finished.
    Completed,
    /// The work was given up because a person or the owner stopped it.
    Killed,
    /// The work broke, or the host shut down.
    Failed,
}

impl Status {
    /// Says whether it is final.
    pub fn is_terminal(self) -> bool {
        match self {
            Self::Running | Self::Stopping => false,
            Self::Completed | Self::Killed | Self::Failed => true,
        }
    }

    /// Returns the name in lower case, as every surface shows it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Stopping => "stopping",
            Self::Completed => "completed",
            Self::Killed => "killed",
            Self::Failed => "failed",
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn states() -> Vec<(&'static str, State)> {
        let stopping = |cause, reason: Option<&str>| {
            State::Stopping(Stop { cause, reason: reason.map(str::to_owned) })
        };
        let ended = || Ended { detail: Some("before".to_owned()), cause: None, at_ms: 1 };
        vec![
            ("running", State::Running),
            ("person", stopping(StopCause::Person, Some("late"))),
            ("owner", stopping(StopCause::Owner, None)),
            ("shutdown", stopping(StopCause::Shutdown, None)),
            ("completed", State::Completed(ended())),
            ("killed", State::Killed(ended())),
            ("failed", State::Failed(ended())),
        ]
    }

    fn events() -> Vec<(&'static str, Event)> {
        let stopped =
            |cause, reason: &str| Event::Stopped(Stop { cause, reason: Some(reason.to_owned()) });
        let settled = |ending, detail: Option<&str>| Event::Settled {
            ending,
            detail: detail.map(str::to_owned),
            at_ms: 7,
        };
        let dropped = |rung| Event::Dropped { rung, form: Form::Final, at_ms: 7 };
        let bound = Duration::from_secs(5);
        vec![
            ("stopped by person", stopped(StopCause::Person, "new")),
            ("stopped by owner", stopped(StopCause::Owner, "new")),
            ("stopped by shutdown", stopped(StopCause::Shutdown, "new")),
            ("settled completed", settled(Ending::Completed, Some("4 lines"))),
            ("settled killed", settled(Ending::Killed, None)),
            ("settled killed, own detail", settled(Ending::Killed, Some("half"))),
            ("settled failed", settled(Ending::Failed, Some("exit code: 3"))),
            ("panicked", Event::Panicked { message: "boom".to_owned(), at_ms: 7 }),
            ("dropped: agreed", dropped(Rung::Agreed)),
            ("dropped: unheard", dropped(Rung::Unheard(Duration::from_secs(1)))),
            ("dropped: overdue", dropped(Rung::Overdue(bound))),
            ("dropped: forced", dropped(Rung::Forced)),
            ("dropped: refused", dropped(Rung::Refused("busy".to_owned()))),
            ("dropped: blocked", dropped(Rung::Blocked(bound))),
            ("dropped: runtime gone", dropped(Rung::RuntimeGone)),
        ]
    }

    fn show(result: &Result<State, IllegalEvent>) -> String {
        match result {
            Ok(State::Running) => "running".to_owned(),
            Ok(State::Stopping(Stop { cause, reason })) => {
                format!("stopping for {cause:?}, {}", reason.as_deref().unwrap_or("-"))
            }
            Ok(state) => {
                let ended = state.ended().unwrap();
                assert_eq!(ended.at_ms, 7);
                let detail = ended.detail.as_deref().unwrap_or("-");
                match ended.cause {
                    Some(cause) => format!("{} by {cause:?}: {detail}", state.status()),
                    None => format!("{}: {detail}", state.status()),
                }
            }
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn r7_every_event_in_every_state() {
        let mut table = String::new();
        for (name, state) in states() {
            table += &format!("{name}\n");
            for (event_name, event) in events() {
                table += &format!("  {event_name} -> {}\n", show(&next(&state, &event)));
            }
        }
        assert!(table == include_str!("state.table.txt"), "state.table.txt should be:\n{table}");
    }

    #[test]
    fn r7_a_terminal_state_is_final() {
        for (_, state) in states().into_iter().filter(|(_, state)| state.is_terminal()) {
            for (_, event) in events() {
                next(&state, &event).unwrap_err();
            }
        }
    }

    #[test]
    fn a_dropped_stream_kind_says_that_output_is_lost() {
        let stopping = State::Stopping(Stop { cause: StopCause::Person, reason: None });
        let detail = |rung, form| {
            let state = next(&stopping, &Event::Dropped { rung, form, at_ms: 7 }).unwrap();
            state.ended().unwrap().detail.clone().unwrap()
        };
        assert_eq!(
            detail(Rung::Forced, Form::Stream),
            "forced on request; output not yet handed over is lost"
        );
        assert_eq!(detail(Rung::Forced, Form::Final), "forced on request");
        assert_eq!(detail(Rung::Agreed, Form::Stream), "stopped");
    }
}
