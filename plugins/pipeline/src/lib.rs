//! Runs kinds one after the other, each with what came of the one before.
//!
//! The first run of a pipeline checks its input and ends at once. What follows is
//! decided after each run: the next step is a run of its kind, or a question to a
//! person, whose answer is handed on by a short run of the pipeline itself. The
//! result is that of the last step. A step that fails ends the job, and a retry
//! runs that step again.

mod plan;

use backlot_sdk::{
    Completed, Descriptor, Ended, Error, Final, Next, Producer, Refusal, Request, Stepped, Task,
    Text,
};
use plan::{Plan, State};

/// What a run of the pipeline itself does.
enum Pipeline {
    /// Tells the plan, which was checked.
    Begin(Plan),
    /// Hands on what a person answered.
    Answer(String),
}

impl Producer for Pipeline {
    type Input = Text;
    type Form = Final;
    const DESCRIPTOR: Descriptor = Descriptor::new(
        "pipeline",
        "Runs kinds one after the other, each with what came of the one before",
    )
    .input_schema(include_str!("input.schema.json"));

    fn start(input: Text, request: &Request) -> Result<Self, Refusal> {
        if request.job.is_none() {
            // As a task alone it would complete, and none of its steps would have run.
            let why = "its steps are run as a job, and this is a task alone; start it as a job";
            return Err(Refusal::Unavailable(why.to_owned()));
        }
        match request.state {
            None => Ok(Self::Begin(Plan::parse(&input.0)?)),
            Some(_) => Ok(Self::Answer(request.answer.clone().unwrap_or_default())),
        }
    }

    async fn run(&self, _: &Task<Final>) -> Result<Completed, Error> {
        Ok(match self {
            Self::Begin(plan) => Completed::with_output(format!("{plan}\n")),
            Self::Answer(answer) => Completed::with_output(answer),
        })
    }
}

impl Stepped for Pipeline {
    fn after(request: &Request, ended: &Ended) -> Next {
        match request.state_as::<State>() {
            Ok(None) if !ended.is_completed() => Next::end(),
            Ok(None) => match Plan::parse(&request.input) {
                Ok(plan) => State::first(plan).begin(""),
                Err(Refusal::InvalidInput(why) | Refusal::Unavailable(why)) => Next::fail(why),
            },
            Ok(Some(state)) => state.after(request, ended),
            Err(error) => Next::fail(format!("the state of the pipeline cannot be read: {error}")),
        }
    }

    fn render(state: &str) -> Option<String> {
        Some(serde_json::from_str::<State>(state).ok()?.place())
    }
}

backlot_sdk::export!(stepped final: Pipeline);
