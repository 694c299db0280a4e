//! A producer in blocking style: what it prints is its output, and a stop drops
//! it. Its input is how many lines to print, ten milliseconds apart.

use std::{thread, time::Duration};

use backlot_sdk::{Completed, Descriptor, Error, Printed, Producer, Refusal, Request, Task, Text};

struct Lines(u64);

impl Producer for Lines {
    type Input = Text;
    type Form = Printed;
    const DESCRIPTOR: Descriptor =
        Descriptor::new("printed", "Prints lines in blocking style").stops_by_drop();

    fn start(Text(input): Text, _: &Request) -> Result<Self, Refusal> {
        match input.trim().parse() {
            Ok(lines) => Ok(Self(lines)),
            Err(error) => Err(Refusal::InvalidInput(format!("not a number of lines: {error}"))),
        }
    }

    async fn run(&self, _: &Task<Printed>) -> Result<Completed, Error> {
        for line in 1..=self.0 {
            println!("line {line}");
            eprintln!("aside {line}");
            thread::sleep(Duration::from_millis(10));
        }
        Ok(Completed::new())
    }
}

backlot_sdk::export!(printed: Lines);
