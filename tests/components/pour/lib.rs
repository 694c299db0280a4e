//! A producer that does nothing but write: what output costs at most.

use backlot_sdk::{Completed, Descriptor, Error, Producer, Refusal, Request, Stream, Task};
use serde::Deserialize;

/// How much is written at once: what a producer that copies a file would.
const BLOCK: usize = 64 << 10;

#[derive(Deserialize)]
struct Pour {
    bytes: u64,
}

impl Producer for Pour {
    type Input = Self;
    type Form = Stream;
    const DESCRIPTOR: Descriptor =
        Descriptor::new("pour", "Writes so many bytes as fast as it can");

    fn start(input: Self, _: &Request) -> Result<Self, Refusal> {
        Ok(input)
    }

    async fn run(&self, task: &Task<Stream>) -> Result<Completed, Error> {
        let block = vec![b'x'; BLOCK];
        let mut left = self.bytes;
        while left > 0 {
            let now = usize::try_from(left).unwrap_or(BLOCK).min(BLOCK);
            task.write_all(&block[..now]).await?;
            left -= now as u64;
        }
        Ok(Completed::new())
    }
}

backlot_sdk::export!(stream: Pour);
