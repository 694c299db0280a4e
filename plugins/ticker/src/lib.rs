//! Writes numbered lines at a steady pace.

use backlot_sdk::{Completed, Descriptor, Error, Producer, Refusal, Request, Stream, Task};
use serde::Deserialize;
use std::time::Duration;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Ticker {
    count: u64,
    every_ms: u64,
    #[serde(default = "line")]
    text: String,
}

fn line() -> String {
    "line".to_owned()
}

impl Producer for Ticker {
    type Input = Self;
    type Form = Stream;
    const DESCRIPTOR: Descriptor =
        Descriptor::new("ticker", "Writes numbered lines at a steady pace")
            .input_schema(include_str!("input.schema.json"));

    fn start(input: Self, _: &Request) -> Result<Self, Refusal> {
        Ok(input)
    }

    async fn run(&self, task: &Task<Stream>) -> Result<Completed, Error> {
        for number in 1..=self.count {
            if number > 1 {
                self.pause(task).await?;
            }
            task.write_line(format!("{} {number}", self.text)).await?;
        }
        Ok(Completed::with_detail(format!("{} lines", self.count)))
    }
}

impl Ticker {
    async fn pause(&self, task: &Task<Stream>) -> Result<(), Error> {
        // Without a pause a sleep would only cost a round trip to the host.
        match self.every_ms {
            0 => task.checkpoint().await?,
            ms => task.sleep(Duration::from_millis(ms)).await?,
        }
        Ok(())
    }
}

backlot_sdk::export!(stream: Ticker);
