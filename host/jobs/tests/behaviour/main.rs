//! What durable work promises, and the disk on which it is held to that.

#![deny(unsafe_code)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails where something is not as it should be"
)]

mod disk;
