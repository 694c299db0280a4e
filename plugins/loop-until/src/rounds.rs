//! The rounds of a loop, and what follows each of their runs.
//!
//! Pure: where the job stands and what a run has come to go in, what follows comes
//! out.

use backlot_sdk::{Ended, Input, Next, Refusal, Template};
use serde::{Deserialize, Serialize};
use std::fmt;

/// How many rounds there may be, and how many runs in all: a host lets 50 follow
/// each other.
const ROUNDS: u32 = 40;
const RUNS: u32 = 48;
/// The longest pause between two rounds, in milliseconds.
const PAUSE_MS: u64 = 60_000;
/// How long a loop may be, in bytes: a host takes a state of 1 MiB, which has little
/// else in it.
const LOOP_BYTES: usize = 1000 << 10;
/// What may be named in an input: the output of the run before, and the number of
/// the round.
const OUTPUT: &str = "output";
const ROUND: &str = "round";

/// The loop, as the input describes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Loop {
    kind: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    input: Option<Template>,
    until: Until,
    #[serde(default = "ten")]
    max: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    every_ms: Option<u64>,
    /// What a run of the loop itself does between two rounds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) pause: Option<Pause>,
}

/// Time that passes between two rounds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Pause {
    pub(crate) ms: u64,
    /// The output of the run before, where the next round has it in its input.
    pub(crate) output: String,
}

/// What ends the loop.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
enum Until {
    Contains(String),
    Equals(String),
    Completed,
    /// A run of another kind, which completes.
    Kind {
        kind: String,
        /// Without one the output of the round is the input.
        input: Option<Template>,
    },
}

/// A check as it is written, which may be none, or several.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Written {
    #[serde(skip_serializing_if = "Option::is_none")]
    contains: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    equals: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    completed: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    input: Option<Template>,
}

/// Where a job stands: everything that its next runs need.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct State {
    #[serde(rename = "loop")]
    input: Loop,
    /// The number of the round, from 1.
    round: u32,
    phase: Phase,
}

/// What runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Phase {
    /// The kind.
    Round,
    /// The kind that is the check.
    Check,
    /// Nothing, before the round.
    Pause,
}

fn ten() -> u32 {
    10
}

/// The kind itself, whose runs only begin the loop and wait between rounds.
const OWN: &str = "loop-until";

impl Loop {
    /// Reads a loop, and says what is wrong with it.
    pub(crate) fn parse(text: &str) -> Result<Self, Refusal> {
        let input: Self = Input::parse(text)?;
        match input.flaw() {
            None => Ok(input),
            Some(flaw) => Err(Refusal::InvalidInput(flaw)),
        }
    }

    /// Says what is wrong with it, beyond its form.
    pub(crate) fn flaw(&self) -> Option<String> {
        let Self { kind, until, max, every_ms, pause, .. } = self;
        let is_own = |kind: &str| kind == OWN;
        if is_own(kind) || matches!(until, Until::Kind { kind, .. } if is_own(kind)) {
            return Some(format!("a {OWN} repeats another kind, and is checked by another"));
        }
        if pause.is_some() {
            return Some("`pause` is for the loop itself; give `every_ms`".to_owned());
        }
        if !(1..=ROUNDS).contains(max) {
            return Some(format!("`max` is {max}, wanted 1 to {ROUNDS}"));
        }
        let runs = self.runs();
        if max * runs > RUNS {
            let most = RUNS / runs;
            return Some(format!(
                "`max` is {max}, wanted at most {most}: each round takes {runs} runs, and a job \
                 has at most {RUNS}"
            ));
        }
        if every_ms.is_some_and(|ms| !(1..=PAUSE_MS).contains(&ms)) {
            return Some(format!("`every_ms` is out of range, wanted 1 to {PAUSE_MS}"));
        }
        // As it is written in a state, which may take more than in the input.
        let bytes = serde_json::to_string(self).map_or(0, |input| input.len());
        (bytes > LOOP_BYTES).then(|| {
            format!(
                "it has {bytes} bytes, and a loop has at most {LOOP_BYTES}; have the kind read \
                 what is large"
            )
        })
    }

    /// Returns how many runs a round takes.
    fn runs(&self) -> u32 {
        let check = matches!(self.until, Until::Kind { .. });
        1 + u32::from(check) + u32::from(self.every_ms.is_some())
    }
}

impl fmt::Display for Loop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, until, max, .. } = self;
        write!(f, "{kind}, at most {max} times, until ")?;
        match until {
            Until::Contains(text) => write!(f, "its output contains {text:?}"),
            Until::Equals(text) => write!(f, "its output is {text:?}"),
            Until::Completed => write!(f, "it completes"),
            Until::Kind { kind, .. } => write!(f, "{kind} completes"),
        }
    }
}

impl TryFrom<Written> for Until {
    type Error = &'static str;

    fn try_from(until: Written) -> Result<Self, &'static str> {
        match until {
            Written {
                contains: Some(text),
                equals: None,
                completed: None,
                kind: None,
                input: None,
            } => match text.is_empty() {
                true => Err("every output contains the empty text"),
                false => Ok(Self::Contains(text)),
            },
            Written {
                contains: None,
                equals: Some(text),
                completed: None,
                kind: None,
                input: None,
            } => Ok(Self::Equals(text)),
            Written {
                contains: None,
                equals: None,
                completed: Some(true),
                kind: None,
                input: None,
            } => Ok(Self::Completed),
            Written { contains: None, equals: None, completed: None, kind: Some(kind), input } => {
                Ok(Self::Kind { kind, input })
            }
            _ => Err(
                "one check ends a loop: `contains`, `equals`, `completed` (true), or `kind` with \
                 its `input`",
            ),
        }
    }
}

impl From<Until> for Written {
    fn from(until: Until) -> Self {
        let none = Self::default();
        match until {
            Until::Contains(text) => Self { contains: Some(text), ..none },
            Until::Equals(text) => Self { equals: Some(text), ..none },
            Until::Completed => Self { completed: Some(true), ..none },
            Until::Kind { kind, input } => Self { kind: Some(kind), input, ..none },
        }
    }
}

impl State {
    /// Returns where a job stands whose first round is due.
    pub(crate) fn first(input: Loop) -> Self {
        Self { input, round: 1, phase: Phase::Round }
    }

    /// Decides what follows a run.
    pub(crate) fn after(self, ended: &Ended) -> Next {
        match self.phase {
            Phase::Round => self.after_round(ended),
            Phase::Check if ended.is_completed() => Next::end(),
            Phase::Check => self.next_round(ended.text()),
            Phase::Pause if ended.is_completed() => self.begin(ended.text()),
            Phase::Pause => {
                Next::fail(format!("{}: the pause before it: {}", self.place(), ended.words()))
            }
        }
    }

    fn after_round(self, ended: &Ended) -> Next {
        let passes = match (&self.input.until, ended.text()) {
            (Until::Completed, _) => ended.is_completed(),
            _ if !ended.is_completed() => return self.fail(ended.words()),
            (Until::Contains(_) | Until::Equals(_), Err(why)) => return self.fail(&why),
            (Until::Contains(text), Ok(output)) => output.contains(&**text),
            (Until::Equals(text), Ok(output)) => output.trim() == text.trim(),
            (Until::Kind { .. }, output) => return self.check(output),
        };
        match passes {
            true => Next::end(),
            false => self.next_round(ended.text()),
        }
    }

    /// Runs the kind that is the check on a round's output.
    fn check(self, output: Result<&str, String>) -> Next {
        let Until::Kind { kind, input } = &self.input.until else { return Next::end() };
        let kind = kind.clone();
        let input = match (input, output) {
            (Some(input), output) => self.filled(input, output),
            (None, output) => output.map(str::to_owned),
        };
        match input {
            Ok(input) => {
                Next::run_kind(kind, input).with_state(&Self { phase: Phase::Check, ..self })
            }
            Err(why) => self.fail(&why),
        }
    }

    /// Begins the round after this one, with the output of the run before.
    fn next_round(self, output: Result<&str, String>) -> Next {
        if self.round >= self.input.max {
            let s = if self.round == 1 { "" } else { "s" };
            return Next::fail(format!("not met after {} round{s}", self.round));
        }
        let next = Self { round: self.round + 1, phase: Phase::Round, ..self };
        let Some(ms) = next.input.every_ms else { return next.begin(output) };
        let needed = next.input.input.as_ref().is_some_and(|input| input.names(OUTPUT));
        let output = match (needed, output) {
            (true, Ok(output)) => output.to_owned(),
            (true, Err(why)) => return next.fail(&why),
            (false, _) => String::new(),
        };
        let pause = Loop { pause: Some(Pause { ms, output }), ..next.input.clone() };
        match serde_json::to_string(&pause) {
            Ok(input) => Next::run(input).with_state(&Self { phase: Phase::Pause, ..next }),
            Err(error) => next.fail(&error.to_string()),
        }
    }

    /// Runs the kind, with the output of the run before.
    pub(crate) fn begin(self, output: Result<&str, String>) -> Next {
        let input = match &self.input.input {
            Some(input) => self.filled(input, output),
            None => Ok(String::new()),
        };
        match input {
            Ok(input) => {
                let kind = self.input.kind.clone();
                Next::run_kind(kind, input).with_state(&Self { phase: Phase::Round, ..self })
            }
            Err(why) => self.fail(&why),
        }
    }

    /// Fills the places of an input, if all that it names is there.
    fn filled(&self, input: &Template, output: Result<&str, String>) -> Result<String, String> {
        let output = match output {
            Err(why) if input.names(OUTPUT) => return Err(why),
            output => output.unwrap_or_default(),
        };
        let output = output.strip_suffix('\n').unwrap_or(output);
        Ok(input.fill(&[(OUTPUT, output), (ROUND, &self.round.to_string())]))
    }

    fn fail(&self, why: &str) -> Next {
        Next::fail(format!("{} ({}): {why}", self.place(), self.input.kind))
    }

    /// Returns which round it is: `round 3/10`.
    pub(crate) fn place(&self) -> String {
        format!("round {}/{}", self.round, self.input.max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use backlot_sdk::{Request, Stepped};

    /// A job, driven as a host does.
    struct Job {
        request: Request,
        /// What comes next, as it was decided last.
        next: Next,
        /// How many runs have followed others.
        runs: u32,
    }

    impl Job {
        /// Returns a job whose first run has ended.
        fn of(input: &str) -> Self {
            let request = Request::new(input);
            let next = crate::LoopUntil::after(&request, &Ended::completed("loop\n"));
            Self { request, next, runs: 0 }
        }

        /// Makes the next run, and asks what follows it.
        fn run(&mut self, ended: &Ended) -> &Next {
            let Next::Proceed { input, state, .. } = self.next.clone() else {
                panic!("no run follows: {:?}", self.next)
            };
            self.request.input = input;
            self.request.state = state.or(self.request.state.take());
            self.runs += 1;
            self.retry(ended)
        }

        /// Makes the last run again.
        fn retry(&mut self, ended: &Ended) -> &Next {
            self.next = crate::LoopUntil::after(&self.request, ended);
            &self.next
        }

        fn completes(&mut self, output: &str) -> &Next {
            self.run(&Ended::completed(output))
        }

        fn fails(&mut self, detail: &str) -> &Next {
            self.run(&Ended::failed(detail))
        }

        fn place(&self) -> Option<String> {
            match &self.next {
                Next::Proceed { state: Some(state), .. } => crate::LoopUntil::render(state),
                other => panic!("no run follows: {other:?}"),
            }
        }
    }

    fn proceeds(next: &Next) -> (Option<&str>, &str) {
        match next {
            Next::Proceed { kind, input, .. } => (kind.as_deref(), input),
            other => panic!("no run follows: {other:?}"),
        }
    }

    fn failure(next: &Next) -> &str {
        match next {
            Next::End { failure: Some(failure), .. } => failure,
            other => panic!("it has not failed: {other:?}"),
        }
    }

    fn refusal(input: &str) -> String {
        match Loop::parse(input) {
            Err(Refusal::InvalidInput(why)) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn rounds_follow_each_other_until_the_output_contains_a_text() {
        let mut job = Job::of(
            r#"{"kind":"a","input":{"n":"{{round}}: {{output}}"},"until":{"contains":"done"}}"#,
        );
        assert_eq!(proceeds(&job.next), (Some("a"), r#"{"n":"1: "}"#));
        assert_eq!(job.place().as_deref(), Some("round 1/10"));
        assert_eq!(proceeds(job.completes("x\n")), (Some("a"), r#"{"n":"2: x"}"#));
        assert_eq!(job.place().as_deref(), Some("round 2/10"));
        assert_eq!(*job.completes("all done\n"), Next::end());
    }

    #[test]
    fn an_output_is_what_it_should_be_less_space_around_it() {
        let mut job = Job::of(r#"{"kind":"a","until":{"equals":" ready\n"}}"#);
        assert_eq!(proceeds(job.completes("ready or not")), (Some("a"), ""));
        assert_eq!(*job.completes("\nready "), Next::end());
    }

    #[test]
    fn a_loop_that_never_passes_fails_at_its_end() {
        let mut job = Job::of(r#"{"kind":"a","until":{"contains":"x"},"max":2}"#);
        job.completes("");
        assert_eq!(failure(job.completes("")), "not met after 2 rounds");
        // A retry makes the last round again.
        assert_eq!(*job.retry(&Ended::completed("x")), Next::end());
        let mut job = Job::of(r#"{"kind":"a","until":{"completed":true},"max":1}"#);
        assert_eq!(failure(job.fails("x")), "not met after 1 round");
    }

    #[test]
    fn a_round_that_fails_ends_the_job_unless_that_is_the_check() {
        let mut job = Job::of(r#"{"kind":"a","until":{"contains":"x"}}"#);
        job.completes("");
        assert_eq!(failure(job.fails("disk full")), "round 2/10 (a): disk full");
        assert_eq!(job.retry(&Ended::completed("x")), &Next::end());

        let mut job = Job::of(r#"{"kind":"a","until":{"completed":true}}"#);
        assert_eq!(proceeds(job.fails("disk full")), (Some("a"), ""));
        assert_eq!(*job.completes(""), Next::end());
    }

    #[test]
    fn a_first_run_that_fails_is_the_end() {
        let request = Request::new(r#"{"kind":"a","until":{"completed":true}}"#);
        let next = crate::LoopUntil::after(&request, &Ended::failed("host shutdown"));
        assert_eq!(next, Next::end());
    }

    #[test]
    fn another_kind_is_the_check_and_tells_the_next_round() {
        let mut job = Job::of(
            r#"{"kind":"fix","input":"{{round}} {{output}}",
                "until":{"kind":"test","input":{"of":"{{output}}","n":"{{round}}"}}}"#,
        );
        assert_eq!(proceeds(&job.next), (Some("fix"), "1 "));
        let check = (Some("test"), r#"{"n":"1","of":"v1"}"#);
        assert_eq!(proceeds(job.completes("v1\n")), check);
        assert_eq!(job.place().as_deref(), Some("round 1/10"));
        let mut failed = Ended::failed("exit code: 1");
        failed.output = Some("2 tests failed\n".to_owned());
        assert_eq!(proceeds(job.run(&failed)), (Some("fix"), "2 2 tests failed"));
        assert_eq!(proceeds(job.completes("v2")).0, Some("test"));
        assert_eq!(*job.completes("ok"), Next::end());
        assert_eq!(job.runs, 4);
    }

    #[test]
    fn a_check_without_an_input_gets_the_output_as_it_is() {
        let mut job = Job::of(r#"{"kind":"a","until":{"kind":"b"},"max":1}"#);
        assert_eq!(proceeds(job.completes("v1\n")), (Some("b"), "v1\n"));
        assert_eq!(failure(job.fails("no")), "not met after 1 round");
        let mut job = Job::of(r#"{"kind":"a","until":{"kind":"b"}}"#);
        assert_eq!(failure(job.fails("disk full")), "round 1/10 (a): disk full");
    }

    #[test]
    fn rounds_are_apart_by_a_run_of_the_loop_itself() {
        let input = r#"{"kind":"a","input":"{{output}}","until":{"contains":"x"},"every_ms":50}"#;
        let mut job = Job::of(input);
        let (kind, pause) = proceeds(job.completes("one\n"));
        assert_eq!(kind, None);
        let paused: Loop = serde_json::from_str(pause).expect("a loop");
        assert_eq!(paused.pause, Some(Pause { ms: 50, output: "one\n".to_owned() }));
        assert_eq!(job.place().as_deref(), Some("round 2/10"));
        assert_eq!(proceeds(job.completes("one\n")), (Some("a"), "one"));
        job.completes("two");
        let failed = "round 3/10: the pause before it: host shutdown";
        assert_eq!(failure(job.fails("host shutdown")), failed);
        assert_eq!(proceeds(job.retry(&Ended::completed("two"))), (Some("a"), "two"));
        assert_eq!(*job.completes("x"), Next::end());
    }

    #[test]
    fn a_pause_hands_on_only_what_is_needed() {
        let mut job = Job::of(r#"{"kind":"a","until":{"contains":"x"},"every_ms":50}"#);
        let paused: Loop = serde_json::from_str(proceeds(job.completes("one")).1).expect("a loop");
        assert_eq!(paused.pause, Some(Pause { ms: 50, output: String::new() }));
    }

    #[test]
    fn an_output_that_cannot_be_handed_on_fails_only_where_it_is_needed() {
        let mut large = Ended::completed("");
        (large.output, large.detail) = (None, Some("2 MiB".to_owned()));
        let why = "round 1/3 (a): its output cannot be handed on: 2 MiB";
        for needs in [
            r#"{"kind":"a","until":{"contains":"x"},"max":3}"#,
            r#"{"kind":"a","until":{"kind":"b"},"max":3}"#,
            r#"{"kind":"a","until":{"kind":"b","input":"{{output}}"},"max":3}"#,
        ] {
            assert_eq!(failure(Job::of(needs).run(&large)), why, "{needs}");
        }
        let mut job = Job::of(r#"{"kind":"a","until":{"kind":"b","input":"{{round}}"}}"#);
        assert_eq!(proceeds(job.run(&large)), (Some("b"), "1"));
        let mut failed = large.clone();
        failed.ending = backlot_sdk::Ending::Failed;
        assert_eq!(proceeds(job.run(&failed)), (Some("a"), ""));
    }

    #[test]
    fn no_loop_takes_more_runs_than_a_job_has() {
        for (until, every, most) in [
            (r#"{"completed":true}"#, "", 40),
            (r#"{"kind":"b"}"#, "", 24),
            (r#"{"completed":true}"#, r#","every_ms":1"#, 24),
            (r#"{"kind":"b"}"#, r#","every_ms":1"#, 16),
        ] {
            let of = |max| format!(r#"{{"kind":"a","until":{until},"max":{max}{every}}}"#);
            assert!(Loop::parse(&of(most)).is_ok(), "{}", of(most));
            assert!(refusal(&of(most + 1)).contains("`max` is "), "{}", of(most + 1));
            let mut job = Job::of(&of(most));
            while let Next::Proceed { kind, .. } = &job.next {
                let fails = match (until, kind.as_deref()) {
                    (_, None) => false,
                    (r#"{"kind":"b"}"#, kind) => kind == Some("b"),
                    _ => true,
                };
                if fails {
                    job.fails("")
                } else {
                    job.completes("")
                };
            }
            assert_eq!(failure(&job.next), format!("not met after {most} rounds"));
            assert!(job.runs <= RUNS, "{} runs", job.runs);
        }
    }

    #[test]
    fn a_loop_is_checked_before_anything_runs() {
        let until = |until: &str| refusal(&format!(r#"{{"kind":"a","until":{until}}}"#));
        for wrong in [
            "{}",
            r#"{"contains":"a","equals":"b"}"#,
            r#"{"completed":false}"#,
            r#"{"input":"x"}"#,
            r#"{"contains":"a","input":"x"}"#,
        ] {
            assert!(until(wrong).contains("one check ends a loop"), "{wrong}: {}", until(wrong));
        }
        assert!(until(r#"{"contains":""}"#).contains("every output"));
        assert!(until(r#"{"matches":"x"}"#).contains("unknown field `matches`"));
        let with =
            |more: &str| refusal(&format!(r#"{{"kind":"a","until":{{"completed":true}},{more}}}"#));
        assert!(with(r#""max":0"#).contains("wanted 1 to 40"));
        assert!(with(r#""every_ms":0"#).contains("wanted 1 to 60000"));
        assert!(with(r#""every_ms":60001"#).contains("wanted 1 to 60000"));
        assert!(with(r#""pause":{"ms":1,"output":""}"#).contains("give `every_ms`"));
        let large = format!(r#""input":"{}""#, "x".repeat(LOOP_BYTES));
        assert!(with(&large).contains("have the kind read what is large"));
    }

    #[test]
    fn a_loop_says_what_it_will_do() {
        let says = |until: &str| match Loop::parse(&format!(r#"{{"kind":"a","until":{until}}}"#)) {
            Ok(input) => input.to_string(),
            Err(refusal) => panic!("{refusal:?}"),
        };
        let contains = says(r#"{"contains":"b\n"}"#);
        assert_eq!(contains, r#"a, at most 10 times, until its output contains "b\n""#);
        assert_eq!(says(r#"{"completed":true}"#), "a, at most 10 times, until it completes");
        assert_eq!(says(r#"{"kind":"b"}"#), "a, at most 10 times, until b completes");
    }
}
