//! What a surface promises to whoever connects to it, over a real socket.

#![deny(unsafe_code)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails where something is not as it should be"
)]

mod harness;

mod access;
mod connections;
mod description;
mod files;
mod host;
mod hostile;
mod jobs;
mod kinds;
mod mcp;
mod metrics;
mod network;
mod output;
mod sessions;
mod streams;
mod tasks;
mod tls;
