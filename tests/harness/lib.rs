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

mod data;
mod files;
mod host;
mod memory;
mod process;
mod versions;

pub use self::{
    data::{Data, started},
    files::{backlot, cache, example, kind, kinds, program},
    host::{Task, TestHost, With, arguments},
    memory::Memory,
    process::{Ended, Process},
    versions::{same_but_new, ver},
};
