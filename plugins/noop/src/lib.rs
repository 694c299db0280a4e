//! Completes at once: the cost of a task that does nothing.

use backlot_sdk::{Completed, Descriptor, Error, Final, Producer, Refusal, Request, Task, Text};

struct Noop;

impl Producer for Noop {
    type Input = Text;
    type Form = Final;
    const DESCRIPTOR: Descriptor = Descriptor::new("noop", "Does nothing and completes at once");

    fn start(_: Text, _: &Request) -> Result<Self, Refusal> {
        Ok(Noop)
    }

    async fn run(&self, _: &Task<Final>) -> Result<Completed, Error> {
        Ok(Completed::new())
    }
}

backlot_sdk::export!(final: Noop);
