//! What durable work promises, and the disk on which it is held to that.

#![deny(unsafe_code)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails where something is not as it should be"
)]

mod bridge;
mod disk;
mod world;

mod calls;
mod continuation;
mod delivery;
mod finalize;
mod identity;
mod limits;
mod queue;
mod recovery;
mod retry;
mod schedule;
mod sessions;
mod simulator;
mod spawn;
mod status;
mod stop;
mod store;
mod stress;
