//! The two harnesses that tests and benchmarks stand on: the host in process,
//! and the real process.
//!
//! Kinds and programs are real components, built by `just plugins` and
//! `just test`.

#![allow(
    clippy::expect_used,
    clippy::panic,
    reason = "a harness fails its test where something is missing"
)]

mod agent;
mod data;
mod events;
mod files;
mod host;
mod memory;
mod process;
mod site;
mod versions;

pub use self::{
    agent::{Agent, Asks, LEAVE, Remote, answer, text, waiting},
    data::{Data, started},
    events::{Event, Events},
    files::{backlot, cache, example, kind, kinds, program},
    host::{Task, TestHost, With, arguments},
    memory::Memory,
    process::{Ended, Process},
    site::{Request, Response, Site},
    versions::{same_but_new, ver},
};
