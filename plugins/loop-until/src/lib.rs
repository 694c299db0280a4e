//! Runs a kind again and again, until a check on what came of it passes.
//!
//! The first run of a loop checks its input and ends at once. Then come rounds: a
//! run of the kind, where another kind is the check a run of that as well, and
//! where rounds are to be apart a run of the loop itself, which sleeps. The result
//! is that of the run that has passed the check, or of the check that has passed.

mod rounds;

use backlot_sdk::{
    Completed, Descriptor, Ended, Error, Final, Next, Producer, Refusal, Request, Stepped, Task,
};
use rounds::{Loop, Pause, State};
use std::time::Duration;

/// What a run of the loop itself does.
enum LoopUntil {
    /// Tells what will be done, which was checked.
    Begin(Loop),
    /// Lets time pass, and hands on what it was given.
    Pause(Pause),
}

impl Producer for LoopUntil {
    type Input = Loop;
    type Form = Final;
    const DESCRIPTOR: Descriptor = Descriptor::new(
        "loop-until",
        "Runs a kind again and again, until a check on what came of it passes",
    )
    .input_schema(include_str!("input.schema.json"));

    fn start(input: Loop, request: &Request) -> Result<Self, Refusal> {
        if request.job.is_none() {
            // As a task alone it would complete, and no round would have been run.
            let why = "its rounds are run as a job, and this is a task alone; start it as a job";
            return Err(Refusal::Unavailable(why.to_owned()));
        }
        match (&request.state, input) {
            (Some(_), Loop { pause: Some(pause), .. }) => Ok(Self::Pause(pause)),
            (_, input) => match input.flaw() {
                None => Ok(Self::Begin(input)),
                Some(flaw) => Err(Refusal::InvalidInput(flaw)),
            },
        }
    }

    async fn run(&self, task: &Task<Final>) -> Result<Completed, Error> {
        match self {
            Self::Begin(input) => Ok(Completed::with_output(format!("{input}\n"))),
            Self::Pause(Pause { ms, output }) => {
                task.sleep(Duration::from_millis(*ms)).await?;
                Ok(Completed::with_output(output))
            }
        }
    }
}

impl Stepped for LoopUntil {
    fn after(request: &Request, ended: &Ended) -> Next {
        match request.state_as::<State>() {
            Ok(None) if !ended.is_completed() => Next::end(),
            Ok(None) => match Loop::parse(&request.input) {
                Ok(input) => State::first(input).begin(Ok("")),
                Err(Refusal::InvalidInput(why) | Refusal::Unavailable(why)) => Next::fail(why),
            },
            Ok(Some(state)) => state.after(ended),
            Err(error) => Next::fail(format!("the state of the loop cannot be read: {error}")),
        }
    }

    fn render(state: &str) -> Option<String> {
        Some(serde_json::from_str::<State>(state).ok()?.place())
    }
}

backlot_sdk::export!(stepped final: LoopUntil);
