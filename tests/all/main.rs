//! Tests of the whole: the host in process, and the real process.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails where something is not as it should be"
)]

mod access;
mod broken;
mod cache;
mod capacity;
mod cli;
mod commands;
mod contract;
mod endings;
mod limits;
mod output;
mod programs;
mod sandbox;
mod starting;
mod stopping;
