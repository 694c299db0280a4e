//! Durable work over live tasks.
//!
//! A [`Job`] is work with a record: it can be tried again, continued over several
//! runs, paused for a person, stopped at any moment, and found again after a crash.
//! Each of its runs is a live task somewhere; this crate starts and stops them through
//! traits, and knows no more of them.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod id;
mod job;
mod retry;
mod schedule;
mod serial;
mod session;
mod store;
mod text;

pub use id::{DeliveryId, InvalidId, JobId, NoRandom, Prefix, RunId, SHORT};
pub use job::{
    Code, Ended, Ending, Event, Failure, Job, Lost, Next, NextStep, Phase, Question, Report, Run,
    Spec, Stage, Status, StopRequest, Wait, next,
};
pub use retry::{InvalidPolicy, RetryPolicy};
pub use schedule::{InvalidSchedule, Schedule};
pub use session::{Body, Entry, JobCard, Projected, Session, project};
pub use store::{
    Census, Change, ChangeError, Changed, Head, Limits, MemoryStore, Page, Query, Refused, Rows,
    Scope, Spawned, Store, StoreError,
};
