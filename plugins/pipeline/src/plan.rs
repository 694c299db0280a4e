//! The steps of a pipeline, and what follows each of them.
//!
//! Pure: where the job stands and what a run has come to go in, what follows comes
//! out.

use backlot_sdk::{Ended, Input, Next, Refusal, Request, Template};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fmt;

/// How many steps there may be: well below the number of runs that a host lets
/// follow each other.
const STEPS: usize = 32;
/// How long a question may be, in bytes: what a host takes.
const PROMPT_BYTES: usize = 64 << 10;
/// How long a plan may be, in bytes: a host takes a state of 1 MiB, which has a
/// question in it as well, and that may take six times its length there.
const PLAN_BYTES: usize = 512 << 10;
/// What the output of the step before is called in an input.
const OUTPUT: &str = "output";

/// The steps, as the input lists them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Plan {
    steps: Vec<Step>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
enum Step {
    Run {
        kind: String,
        /// Without one the output of the step before is the input.
        input: Option<Template>,
        label: Option<String>,
    },
    Ask {
        prompt: String,
        schema: Option<Value>,
        label: Option<String>,
    },
}

/// A step as it is written, which may be neither.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    input: Option<Template>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ask: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    schema: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    label: Option<String>,
}

/// Where a job stands: everything that its next runs need.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct State {
    /// The number of the step, from 1.
    step: usize,
    /// How many there are.
    of: usize,
    /// What a person is asked, with its places filled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    asked: Option<String>,
    current: Step,
    /// The steps after it.
    rest: Vec<Step>,
}

/// The kind itself, whose runs only begin the plan and tell what a person answered.
const OWN: &str = "pipeline";

impl Plan {
    /// Reads a plan, and says what is wrong with it.
    pub(crate) fn parse(text: &str) -> Result<Self, Refusal> {
        let plan: Self = Input::parse(text)?;
        match plan.flaw() {
            None => Ok(plan),
            Some(flaw) => Err(Refusal::InvalidInput(flaw)),
        }
    }

    fn flaw(&self) -> Option<String> {
        // As it is written in a state, which may take more than in the input.
        let bytes = serde_json::to_string(self).map_or(0, |plan| plan.len());
        let count = self.steps.len();
        if !(1..=STEPS).contains(&count) {
            return Some(format!("`steps` has {count} steps, wanted 1 to {STEPS}"));
        }
        if bytes > PLAN_BYTES {
            return Some(format!(
                "it has {bytes} bytes, and a pipeline has at most {PLAN_BYTES}; have a step read \
                 what is large"
            ));
        }
        if self.steps.iter().any(|step| matches!(step, Step::Run { kind, .. } if kind == OWN)) {
            return Some(format!("a {OWN} is no step of a {OWN}: write its steps in its place"));
        }
        if self.steps[0].has_place() {
            return Some("`steps[0]` has {{output}} in it, and no step is before it".to_owned());
        }
        None
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.steps.iter().map(Step::name).collect();
        let s = if names.len() == 1 { "" } else { "s" };
        write!(f, "{} step{s}: {}", names.len(), names.join(", "))
    }
}

impl Step {
    fn name(&self) -> &str {
        match self {
            Self::Run { label: Some(label), .. } | Self::Ask { label: Some(label), .. } => label,
            Self::Run { kind, .. } => kind,
            Self::Ask { .. } => "ask",
        }
    }

    fn has_place(&self) -> bool {
        match self {
            Self::Run { input, .. } => input.as_ref().is_some_and(|input| input.names(OUTPUT)),
            Self::Ask { prompt, .. } => Template::from(&**prompt).names(OUTPUT),
        }
    }

    fn needs_output(&self) -> bool {
        self.has_place() || matches!(self, Self::Run { input: None, .. })
    }
}

impl TryFrom<Written> for Step {
    type Error = &'static str;

    fn try_from(step: Written) -> Result<Self, &'static str> {
        match step {
            Written { kind: Some(kind), input, ask: None, schema: None, label } => {
                Ok(Self::Run { kind, input, label })
            }
            Written { kind: None, input: None, ask: Some(prompt), schema, label } => {
                Ok(Self::Ask { prompt, schema, label })
            }
            Written { kind: None, ask: None, .. } => {
                Err("a step has a `kind` to run, or something to `ask`; it has neither")
            }
            Written { kind: Some(_), .. } => {
                Err("a step that runs a kind asks nothing, and has no `schema`")
            }
            Written { .. } => Err("a step that asks a person has no `input`"),
        }
    }
}

impl From<Step> for Written {
    fn from(step: Step) -> Self {
        match step {
            Step::Run { kind, input, label } => {
                Self { kind: Some(kind), input, ask: None, schema: None, label }
            }
            Step::Ask { prompt, schema, label } => {
                Self { kind: None, input: None, ask: Some(prompt), schema, label }
            }
        }
    }
}

impl State {
    /// Returns where a job stands whose first step is due.
    pub(crate) fn first(Plan { mut steps }: Plan) -> Self {
        let of = steps.len();
        let current = steps.remove(0);
        Self { step: 1, of, asked: None, current, rest: steps }
    }

    /// Decides what follows the run of the current step.
    pub(crate) fn after(mut self, request: &Request, ended: &Ended) -> Next {
        if !ended.is_completed() {
            return self.fail(ended.words());
        }
        let output = match (&self.current, &request.answer) {
            (Step::Run { .. }, _) => ended.text(),
            (Step::Ask { .. }, Some(answer)) => Ok(&**answer),
            // The run that was to hand it on has failed, and the answer went with it.
            (Step::Ask { .. }, None) => return self.ask(),
        };
        if self.rest.is_empty() {
            return Next::end();
        }
        let next = self.rest.remove(0);
        let output = match output {
            Ok(output) => output,
            Err(why) if next.needs_output() => return self.fail(&why),
            Err(_) => "",
        };
        self.step += 1;
        self.current = next;
        self.begin(output)
    }

    /// Begins the current step, with the output of the one before.
    pub(crate) fn begin(mut self, output: &str) -> Next {
        let line = output.strip_suffix('\n').unwrap_or(output);
        match &self.current {
            Step::Run { kind, input, .. } => {
                let input = match input {
                    Some(input) => input.fill(&[(OUTPUT, line)]),
                    None => output.to_owned(),
                };
                Next::run_kind(kind, input).with_state(&self)
            }
            Step::Ask { prompt, .. } => {
                self.asked = Some(Template::from(&**prompt).fill(&[(OUTPUT, line)]));
                self.ask()
            }
        }
    }

    /// Asks the person what was to be asked.
    fn ask(self) -> Next {
        let prompt = self.asked.clone().unwrap_or_default();
        if prompt.len() > PROMPT_BYTES {
            let bytes = prompt.len();
            return self.fail(&format!(
                "its question has {bytes} bytes, and a person is asked at most {PROMPT_BYTES}"
            ));
        }
        let next = Next::ask(prompt).with_state(&self);
        match &self.current {
            Step::Ask { schema: Some(schema), .. } => next.with_schema(schema.to_string()),
            _ => next,
        }
    }

    fn fail(&self, why: &str) -> Next {
        Next::fail(format!("{}: {why}", self.place()))
    }

    /// Returns which step it is: `step 2/3 (grep)`.
    pub(crate) fn place(&self) -> String {
        format!("step {}/{} ({})", self.step, self.of, self.current.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use backlot_sdk::{Cause, Stepped};

    /// A job, driven as a host does.
    struct Job {
        first: String,
        request: Request,
        /// What comes next, as it was decided last.
        next: Next,
    }

    impl Job {
        /// Returns a job whose first run has ended.
        fn of(input: &str) -> Self {
            let request = Request::new(input);
            let next = crate::Pipeline::after(&request, &Ended::completed("plan\n"));
            Self { first: input.to_owned(), request, next }
        }

        /// Makes the next run, and asks what follows it.
        fn run(&mut self, ended: &Ended) -> &Next {
            let Next::Proceed { input, state, .. } = self.next.clone() else {
                panic!("no run follows: {:?}", self.next)
            };
            self.request.input = input;
            self.request.state = state.or(self.request.state.take());
            (self.request.cause, self.request.answer) = (Cause::Step, None);
            self.after(ended)
        }

        /// Has a person answer, and makes the run that follows.
        fn answer(&mut self, answer: &str) -> &Next {
            let Next::Ask { state, .. } = self.next.clone() else {
                panic!("nothing is asked: {:?}", self.next)
            };
            self.request.input = self.first.clone();
            self.request.state = state.or(self.request.state.take());
            (self.request.cause, self.request.answer) = (Cause::Answer, Some(answer.to_owned()));
            self.after(&Ended::completed(answer))
        }

        /// Makes the last run again.
        fn retry(&mut self, ended: &Ended) -> &Next {
            (self.request.cause, self.request.answer) = (Cause::Retry, None);
            self.after(ended)
        }

        fn after(&mut self, ended: &Ended) -> &Next {
            self.next = crate::Pipeline::after(&self.request, ended);
            &self.next
        }

        fn place(&self) -> Option<String> {
            let (Next::End { state, .. } | Next::Proceed { state, .. } | Next::Ask { state, .. }) =
                &self.next;
            crate::Pipeline::render(state.as_deref()?)
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
        match Plan::parse(input) {
            Err(Refusal::InvalidInput(why)) => why,
            other => panic!("{other:?}"),
        }
    }

    const THREE: &str = r#"{"steps":[
        {"kind":"grep","input":{"pattern":"fn","path":"/src"}},
        {"kind":"ticker","input":{"text":"found: {{output}}","count":[1]},"label":"tell"},
        {"kind":"noop"}]}"#;

    #[test]
    fn steps_follow_each_other_and_hand_on_their_output() {
        let mut job = Job::of(THREE);
        let first = (Some("grep"), r#"{"path":"/src","pattern":"fn"}"#);
        assert_eq!(proceeds(&job.next), first);
        assert_eq!(job.place().as_deref(), Some("step 1/3 (grep)"));
        let second = (Some("ticker"), r#"{"count":[1],"text":"found: a\nb"}"#);
        assert_eq!(proceeds(job.run(&Ended::completed("a\nb\n"))), second);
        assert_eq!(job.place().as_deref(), Some("step 2/3 (tell)"));
        // Without an input it is handed on as it is.
        assert_eq!(proceeds(job.run(&Ended::completed("x\n"))), (Some("noop"), "x\n"));
        assert_eq!(job.place().as_deref(), Some("step 3/3 (noop)"));
        assert_eq!(*job.run(&Ended::completed("")), Next::end());
    }

    #[test]
    fn a_text_is_an_input_as_it_is() {
        let mut job =
            Job::of(r#"{"steps":[{"kind":"a","input":"x"},{"kind":"b","input":"{{output}}!"}]}"#);
        assert_eq!(proceeds(&job.next), (Some("a"), "x"));
        assert_eq!(proceeds(job.run(&Ended::completed("\"y\"\n\n"))), (Some("b"), "\"y\"\n!"));
        // No step is before the first.
        assert_eq!(proceeds(&Job::of(r#"{"steps":[{"kind":"a"}]}"#).next), (Some("a"), ""));
    }

    #[test]
    fn a_step_that_fails_ends_the_job_and_is_made_again_by_a_retry() {
        let mut job = Job::of(THREE);
        job.run(&Ended::completed("a"));
        assert_eq!(failure(job.run(&Ended::failed("disk full"))), "step 2/3 (tell): disk full");
        assert_eq!(failure(job.retry(&Ended::failed("no"))), "step 2/3 (tell): no");
        assert_eq!(proceeds(job.retry(&Ended::completed("b"))), (Some("noop"), "b"));
        let mut silent = Ended::failed("");
        silent.detail = None;
        assert_eq!(failure(job.run(&silent)), "step 3/3 (noop): failed");
    }

    #[test]
    fn a_first_run_that_fails_is_the_end_and_may_be_made_again() {
        let mut job = Job::of(THREE);
        job.request = Request::new(THREE);
        assert_eq!(*job.after(&Ended::failed("host shutdown")), Next::end());
        assert_eq!(proceeds(job.retry(&Ended::completed("plan"))).0, Some("grep"));
    }

    #[test]
    fn an_output_that_cannot_be_handed_on_fails_only_where_it_is_needed() {
        let mut large = Ended::completed("");
        (large.output, large.detail) = (None, Some("its output has 2 MiB".to_owned()));
        let mut job = Job::of(THREE);
        let why = "step 1/3 (grep): its output cannot be handed on: its output has 2 MiB";
        assert_eq!(failure(job.run(&large)), why);
        let mut job = Job::of(r#"{"steps":[{"kind":"a"},{"kind":"b","input":"x"}]}"#);
        assert_eq!(proceeds(job.run(&large)), (Some("b"), "x"));
        assert_eq!(*job.run(&large), Next::end(), "the last is handed on to nobody");
    }

    #[test]
    fn the_answer_of_a_person_is_the_output_of_the_step() {
        let mut job = Job::of(
            r#"{"steps":[{"kind":"a"},{"ask":"Deploy {{output}}?","schema":{"type":"boolean"}},
                {"kind":"b","input":"go: {{output}}"}]}"#,
        );
        let Next::Ask { prompt, schema, .. } = job.run(&Ended::completed("v2\n")) else {
            panic!("it does not ask")
        };
        assert_eq!((&**prompt, schema.as_deref()), ("Deploy v2?", Some(r#"{"type":"boolean"}"#)));
        assert_eq!(job.place().as_deref(), Some("step 2/3 (ask)"));
        assert_eq!(proceeds(job.answer("true")), (Some("b"), "go: true"));
    }

    #[test]
    fn an_answer_that_was_lost_is_asked_for_again() {
        let mut job = Job::of(r#"{"steps":[{"ask":"Deploy?"},{"kind":"b"}]}"#);
        let asked = job.next.clone();
        assert!(matches!(&asked, Next::Ask { prompt, schema: None, .. } if prompt == "Deploy?"));
        job.answer("yes");
        assert_eq!(
            failure(job.after(&Ended::failed("host shutdown"))),
            "step 1/2 (ask): host shutdown"
        );
        assert_eq!(*job.retry(&Ended::completed("")), asked);
        assert_eq!(proceeds(job.answer("no")), (Some("b"), "no"));
    }

    #[test]
    fn a_question_that_is_too_long_fails() {
        let mut job = Job::of(r#"{"steps":[{"kind":"a"},{"ask":"{{output}}?"}]}"#);
        let why = failure(job.run(&Ended::completed("x".repeat(PROMPT_BYTES)))).to_owned();
        assert!(why.starts_with("step 2/2 (ask): its question has 65537 bytes"), "{why}");
    }

    #[test]
    fn a_plan_is_checked_before_anything_runs() {
        let runs = |count| {
            let steps = vec![r#"{"kind":"a"}"#; count].join(",");
            format!(r#"{{"steps":[{steps}]}}"#)
        };
        assert!(Plan::parse(&runs(STEPS)).is_ok());
        for count in [0, STEPS + 1] {
            assert!(refusal(&runs(count)).contains(&format!("has {count} steps, wanted 1 to 32")));
        }
        let one = |step: &str| refusal(&format!(r#"{{"steps":[{step}]}}"#));
        assert!(one(r#"{"kind":"a","input":["{{output}}"]}"#).contains("no step is before it"));
        assert!(one(r#"{"ask":"{{output}}?"}"#).contains("no step is before it"));
        assert!(one(r#"{"label":"x"}"#).contains("it has neither"));
        assert!(one(r#"{"kind":"pipeline"}"#).contains("no step of a pipeline"));
        assert!(one(r#"{"kind":"a","ask":"b"}"#).contains("asks nothing"));
        assert!(one(r#"{"ask":"b","input":1}"#).contains("has no `input`"));
        assert!(one(r#"{"kind":"a","inputs":1}"#).contains("unknown field `inputs`"));
        let large = format!(r#"{{"kind":"a","input":"{}"}}"#, "x".repeat(PLAN_BYTES));
        assert!(one(&large).contains("have a step read what is large"));
        assert!(refusal("{}").contains("missing field `steps`"));
    }

    #[test]
    fn a_plan_at_its_limit_leaves_room_for_a_question_in_the_state() {
        // Each of these is written as six bytes.
        let question = "\u{1}".repeat(PROMPT_BYTES - 1);
        let room = PLAN_BYTES - 200;
        let plan = format!(
            r#"{{"steps":[{{"kind":"a"}},{{"ask":"{{{{output}}}}?"}},{{"kind":"b","input":"{}"}}]}}"#,
            "y".repeat(room)
        );
        let mut job = Job::of(&plan);
        let Next::Ask { state: Some(state), .. } = job.run(&Ended::completed(question)) else {
            panic!("it does not ask")
        };
        assert!(state.len() <= 1 << 20, "{} bytes", state.len());
    }

    #[test]
    fn a_state_of_something_else_is_told() {
        let mut request = Request::new(THREE);
        request.state = Some("{}".to_owned());
        let next = crate::Pipeline::after(&request, &Ended::completed(""));
        assert!(failure(&next).starts_with("the state of the pipeline cannot be read"));
        assert_eq!(crate::Pipeline::render("{}"), None);
    }
}
