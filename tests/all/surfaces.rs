//! What programs, pages and models meet of a host: the real process over real sockets.

mod faults;
mod http;
mod mcp;
mod ownership;
mod streams;

use std::{
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

/// How long what has to come about is looked for.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long to the next look at what nobody tells of.
const LOOK: Duration = Duration::from_millis(20);

/// Fewer sockets than this a host has to which hardly anybody is connected: those that it
/// listens at, its own, and those of who has just left.
const QUIET: usize = 20;

/// What a job of `ticker` is given that runs for an hour.
fn long() -> Value {
    json!({"count": 2, "every_ms": 3_600_000})
}

/// What a job of `ticker` is given that writes all it has at once.
fn lines(count: u64) -> Value {
    json!({"count": count, "every_ms": 0})
}

/// Waits until something is so that nobody tells of.
#[track_caller]
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let since = Instant::now();
    while !is_so() {
        assert!(since.elapsed() < PATIENCE, "{what}: not so after {PATIENCE:?}");
        thread::sleep(LOOK);
    }
}

/// Returns how many sockets a process has open, those that it listens at included.
fn sockets(process: u32) -> usize {
    let links = std::fs::read_dir(format!("/proc/{process}/fd")).unwrap();
    // One may be gone by the time that it is looked at.
    let targets = links.filter_map(|link| std::fs::read_link(link.ok()?.path()).ok());
    targets.filter(|target| target.display().to_string().starts_with("socket:")).count()
}
