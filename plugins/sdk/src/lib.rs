//! Write background work for Backlot as a WebAssembly component.
//!
//! A *producer* is a type that implements [`Producer`]: it says what it is
//! called, starts a piece of work from an input, and does it in an async
//! function. [`export!`] makes a component of it. One instance of the component
//! serves one task, so a producer may keep what it likes in itself; no other
//! task sees it.
//!
//! ```no_run
//! use backlot_sdk::{Completed, Descriptor, Error, Producer, Refusal, Request, Stream, Task};
//! use serde::Deserialize;
//! use std::time::Duration;
//!
//! #[derive(Deserialize)]
//! struct Countdown {
//!     from: u32,
//! }
//!
//! impl Producer for Countdown {
//!     type Input = Self;
//!     type Form = Stream;
//!     const DESCRIPTOR: Descriptor = Descriptor::new("countdown", "Counts down to zero")
//!         .input_schema(r#"{"type":"object","required":["from"],
//!             "properties":{"from":{"type":"integer","minimum":0}}}"#);
//!
//!     fn start(input: Self, _: &Request) -> Result<Self, Refusal> {
//!         Ok(input)
//!     }
//!
//!     async fn run(&self, task: &Task<Stream>) -> Result<Completed, Error> {
//!         for left in (0..=self.from).rev() {
//!             task.write_line(left.to_string()).await?;
//!             task.sleep(Duration::from_secs(1)).await?;
//!         }
//!         Ok(Completed::with_detail("lift-off"))
//!     }
//! }
//!
//! backlot_sdk::export!(stream: Countdown);
//! # fn main() {}
//! ```
//!
//! The crate that holds it is a `cdylib`, depends on `backlot-sdk` and `serde`,
//! and is built with `cargo build --target wasm32-wasip2`.
//!
//! # What an author should know
//!
//! - **The host reaches the guest at awaits only.** Output is collected and a
//!   stop is delivered while [`Producer::run`] is suspended. A loop that
//!   computes should call [`Task::checkpoint`] in every iteration: it costs next
//!   to nothing, and really yields once a few milliseconds have passed.
//! - **A stop is an error that `?` passes on.** [`Task::checkpoint`],
//!   [`Task::sleep`] and [`Task::write_all`] return [`Stopped`] once a stop was
//!   asked for, and a run that ends with it ends `killed`. A run that completes
//!   all the same has completed.
//! - **Sleep with [`Task::sleep`] or [`sleep()`]**, not with
//!   `std::thread::sleep`, which keeps the host out for as long as it lasts. The
//!   same goes for reading pipes and sockets through `std`. Files are fine.
//! - **A job goes on past its run.** A producer that implements [`Stepped`] says
//!   what follows each run of a durable job: another run, a question to a person,
//!   or the end.
//! - **A panic ends the task `failed`**, and its message goes to the host's log.
//!   For what can be expected to go wrong return an [`Error`].

#![warn(missing_docs)]

mod bindings;
mod error;
mod export;
mod input;
mod output;
mod producer;
mod request;
mod signal;
mod stepped;
mod task;
mod template;
mod turns;

pub use error::{Error, Stopped};
pub use input::{Input, Text};
pub use output::Output;
pub use producer::{
    Completed, Descriptor, Final, Form, Printed, Producer, Refusal, StopRefusal, Stream,
};
pub use request::{Cause, Request};
pub use stepped::{Ended, Ending, Next, Stepped};
pub use task::Task;
pub use template::Template;
pub use turns::{sleep, yield_now};

/// What [`export!`] expands to; not for use by hand.
#[doc(hidden)]
pub mod __private {
    pub use crate::bindings::{lifecycle, output, steps};
    pub use crate::export::{Exported, expect_form};
}
