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
mod clients;
mod commands;
mod contract;
mod crashes;
mod crowds;
mod daemon;
mod dev;
mod embedding;
mod endings;
mod faults;
mod floods;
mod jobs;
mod large;
mod limits;
mod names;
mod network;
mod output;
mod pipes;
mod plugins;
mod policy;
mod programs;
mod reloading;
mod retention;
mod sandbox;
mod secrets;
mod servers;
mod starting;
mod steps;
mod stopping;
mod storms;
mod surfaces;
mod telemetry;
mod terminals;
mod tokens;
mod webhooks;
mod work_folder;

use std::time::Duration;

use backlot::registry::StopBounds;

/// Bounds that let a test see every rung of the stop ladder soon.
const SHORT: StopBounds =
    StopBounds { ask: Duration::from_millis(300), grace: Duration::from_millis(300) };
