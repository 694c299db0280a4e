//! Misbehaves on demand: the producer that tests of the host are built on.
//!
//! The input is `{"mode": "...", ...}`. It uses the contract directly, not the
//! SDK, since the SDK would keep most of these from happening. A parameter with
//! a value in this list is optional.
//!
//! Starting:
//! - `refuse-input {text = ".."}`: refuses the input as invalid.
//! - `refuse-unavailable {text = ".."}`: refuses because something is missing.
//! - `run-trap`: traps in `run`.
//! - `run-spin`: never returns from `run`.
//! - `run-block {s}`: sleeps blocked in `run`, then completes at once.
//!
//! Ending:
//! - `now`: completes at once.
//! - `fail {detail = ".."}`: ends failed.
//! - `killed-unasked`: ends killed although nobody asked.
//! - `final-output {bytes}`: completes with that much final output.
//! - `long-detail {bytes}`: completes with that long a detail.
//! - `trap {lines = 3, ms = 100}`: writes lines, waits, traps in `done`.
//! - `panic {text = ".."}`: panics in `done`.
//! - `exit {code = 0}`: exits the whole instance in `done`, as a program would.
//! - `never`: parks for ever and awaits nothing of the host's.
//! - `return-then-spin {ms = 50}`: `done` resolves; the guest sleeps, then spins.
//! - `return-then-trap {ms = 50}`: `done` resolves; the guest sleeps, then traps.
//! - `return-then-sleep {s}`: `done` resolves; the guest goes on sleeping.
//!
//! Stopping:
//! - `sleep {s, deaf = false}`: a WASI 0.3 sleep; a deaf one sleeps through a stop.
//! - `block {s}`: a blocking WASI 0.2 sleep in `done`.
//! - `spin`: computes for ever without awaiting or looking.
//! - `looker`: computes without awaiting, looks for a stop, and ends killed.
//! - `late-looker`: looks until it sees a stop, and then spins.
//! - `stubborn {every_ms = 0}`: agrees to a stop and goes on for ever; writes a
//!   line every so often, if that is not 0.
//! - `stubborn-spin`: agrees to a stop and then spins in `done`.
//! - `cancel-errs {how = "not-now", times = for ever}`: refuses to stop so many
//!   times, with `not-now` or `broken`, and ends killed after that.
//! - `cancel-slow {ms}`: `cancel` computes that long, then agrees.
//! - `cancel-spin`: never returns from `cancel`.
//! - `cancel-trap`: traps in `cancel`.
//!
//! Output:
//! - `flood {bytes = for ever, stop_at = "return"}`: numbered lines as fast as
//!   the host takes them, then `return`, `fail` or `trap`.
//! - `flood-stdout {bytes = for ever}`: the same with `println!`, never awaiting.
//! - `flood-stderr {bytes = for ever}`: the same with `eprintln!`.
//! - `flood-reports {count = for ever}`: progress reports, never awaiting.
//! - `report {text}`: reports one text as it is, then sleeps until it is stopped.
//! - `split-chars {times, every_ms = 20}`: writes `€✓🦀`, one byte at a time.
//! - `read-big {bytes}`: `read-output` ignores `max-bytes`.
//! - `read-spin`: never returns from `read-output`.
//! - `read-trap {after_done = false}`: traps in `read-output`; or only when that
//!   is called after `done`, with a line waiting.
//!
//! Resources:
//! - `grow {tolerant = false}`: grows and touches memory until that is refused,
//!   then traps, or completes and tells how far it came.
//! - `recurse {calls_host = false}`: recurses without end.
//! - `fifo {path}`: opens a path and reads it to its end, blocking.
//! - `fs {tries: [{op, path, to = ""}]}`: tries each, and writes what came of
//!   it. `op` is one of `stat list read write append mkdir remove`, or of
//!   `rename link symlink`, which make `to` out of `path`.
//! - `env`: writes arguments, environment and working folder.
//! - `net {connect = [], listen = [], resolve = []}`: tries each `host:port`.
//!
//! Attempts and versions:
//! - `mark {s, path = "/job/marks.txt", every_ms = 200, failing = 0}`: appends
//!   `attempt=<n> t=<ms>` to a file; the first so many attempts fail at the end.
//! - `version {s, every_ms = 200}`: writes the value that `FAULTY_VERSION` had
//!   when this was built, `A` without one.
//!
//! Following a run: these complete at once, and misbehave in `after`. Other modes
//! end the job with what the run came to.
//! - `after-trap`: traps.
//! - `after-spin`: never returns.
//! - `after-report`: reports progress, although nothing runs.
//! - `after-end {failure = none}`: ends the job.
//! - `after-proceed {kind = its own, bytes = 1, state_bytes = 0}`: wants a run with
//!   an input and a state of those lengths.
//! - `after-ask {bytes = 1, schema = none}`: asks a question of that length.
//!
//! A state is rendered as it is, but `trap` traps and `spin` never returns.

#![allow(
    clippy::panic,
    clippy::match_same_arms,
    reason = "it is made to misbehave, each mode for a reason of its own"
)]

mod faults;
mod mode;
mod tries;
mod work;

use mode::{Mode, Refusing};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::time::Duration;

mod bindings {
    wit_bindgen::generate!({
        path: "../../wit",
        world: "backlot:producer/stepped-producer",
    });
}

use bindings::backlot::producer::types::{
    Descriptor, Manner, Outcome, Refusal, Request, StopRefusal,
};
use bindings::exports::backlot::producer::{lifecycle, output, steps};

struct Faulty;

thread_local! {
    static STATE: RefCell<State> = RefCell::default();
}

/// The one task of this instance.
#[derive(Default)]
struct State {
    work: Option<(Mode, Request)>,
    output: VecDeque<u8>,
    cancels: u32,
    done: bool,
}

impl lifecycle::Guest for Faulty {
    fn describe() -> Descriptor {
        if cfg!(feature = "describe-traps") {
            faults::trap();
        }
        if cfg!(feature = "describe-spins") {
            faults::spin();
        }
        Descriptor {
            kind: "faulty".to_owned(),
            summary: "Misbehaves in the way that the input names".to_owned(),
            input_schema: Some(include_str!("input.schema.json").to_owned()),
            manner: Manner::empty(),
        }
    }

    fn run(request: Request) -> Result<(), Refusal> {
        let mode = serde_json::from_str(&request.input)
            .map_err(|error| Refusal::InvalidInput(error.to_string()))?;
        match &mode {
            Mode::RefuseInput { text } => return Err(Refusal::InvalidInput(text.clone())),
            Mode::RefuseUnavailable { text } => return Err(Refusal::Unavailable(text.clone())),
            Mode::RunTrap => faults::trap(),
            Mode::RunSpin => faults::spin(),
            Mode::RunBlock { s } => std::thread::sleep(Duration::from_secs_f64(*s)),
            _ => {}
        }
        STATE.with_borrow_mut(|state| state.work = Some((mode, request)));
        Ok(())
    }

    fn cancel(_reason: Option<String>) -> Result<(), StopRefusal> {
        let (mode, cancels) = STATE.with_borrow_mut(|state| {
            state.cancels += 1;
            (state.work.as_ref().map(|(mode, _)| mode.clone()), state.cancels)
        });
        match mode {
            Some(Mode::CancelTrap) => faults::trap(),
            Some(Mode::CancelSpin) => faults::spin(),
            Some(Mode::CancelSlow { ms }) => faults::spin_for(Duration::from_millis(ms)),
            Some(Mode::CancelErrs { how, times }) if cancels <= times => {
                let text = format!("refusal {cancels}");
                return Err(match how {
                    Refusing::NotNow => StopRefusal::NotNow(text),
                    Refusing::Broken => StopRefusal::Broken(text),
                });
            }
            _ => {}
        }
        Ok(())
    }

    async fn done() -> Outcome {
        let work = STATE.with_borrow(|state| state.work.clone());
        let outcome = match work {
            Some((mode, request)) => work::work(mode, request).await,
            None => work::failed("nothing was started"),
        };
        STATE.with_borrow_mut(|state| state.done = true);
        outcome
    }
}

impl output::Guest for Faulty {
    fn read_output(max_bytes: u32) -> Vec<u8> {
        STATE.with_borrow_mut(|state| {
            match state.work.as_ref().map(|(mode, _)| mode) {
                Some(Mode::ReadTrap { after_done }) if state.done || !after_done => faults::trap(),
                Some(Mode::ReadTrap { .. }) => return Vec::new(),
                Some(Mode::ReadSpin) => faults::spin(),
                Some(Mode::ReadBig { bytes }) => return vec![b'x'; *bytes],
                _ => {}
            }
            let count = state.output.len().min(max_bytes as usize);
            state.output.drain(..count).collect()
        })
    }
}

impl steps::Guest for Faulty {
    fn after(request: Request, _: Outcome) -> steps::Next {
        let end = |failure| steps::Next::End(steps::Closing { state: None, failure });
        match serde_json::from_str(&request.input) {
            Ok(Mode::AfterTrap) => faults::trap(),
            Ok(Mode::AfterSpin) => faults::spin(),
            Ok(Mode::AfterReport) => {
                bindings::backlot::producer::host::report("nothing runs");
                end(None)
            }
            Ok(Mode::AfterEnd { failure }) => end(failure),
            Ok(Mode::AfterProceed { kind, bytes, state_bytes }) => {
                let (input, state) = ("x".repeat(bytes), Some("x".repeat(state_bytes)));
                steps::Next::Proceed(steps::Continuation { kind, input, state })
            }
            Ok(Mode::AfterAsk { bytes, schema }) => {
                let prompt = "x".repeat(bytes);
                steps::Next::Ask(steps::Question { prompt, schema, state: None })
            }
            Ok(_) => end(None),
            Err(error) => end(Some(error.to_string())),
        }
    }

    fn render(state: String) -> Option<String> {
        match &*state {
            "trap" => faults::trap(),
            "spin" => faults::spin(),
            _ => Some(state),
        }
    }
}

/// Adds to the output and returns how much of it is pending.
fn write(bytes: impl AsRef<[u8]>) -> usize {
    STATE.with_borrow_mut(|state| {
        state.output.extend(bytes.as_ref());
        state.output.len()
    })
}

bindings::export!(Faulty with_types_in bindings);
