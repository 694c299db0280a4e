//! What a manager is set up with.

use std::time::Duration;

use crate::store::Limits;

/// What a manager is set up with. The defaults suit the jobs of some agents and people
/// on one machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// How many jobs may be live at a time, and how deep; a job of a job has depth 2.
    pub limits: Limits,
    /// How many attempts a job may have, the first included.
    pub max_attempts: u32,
    /// How many runs may follow since the spawn or the last retry.
    pub max_continuations: u32,
    /// The longest that a status is waited for.
    pub max_wait: Duration,
    /// How long an outcome that is on its way is waited for before it counts as lost.
    pub outcome_wait: Duration,
    /// How long a step that cannot be written is tried again before its job fails.
    pub patience: Duration,
    /// The longest result that is kept in the record, in bytes; what is cut is in the
    /// output.
    pub result_bytes: usize,
    /// How many jobs that have ended are kept.
    pub keep: u64,
    /// How long jobs that have ended are kept.
    pub keep_for: Duration,
    /// Whether the endings of jobs that are announced, and name no webhook, are told where
    /// the host has such told. What holds for a job is settled when it is spawned.
    pub has_webhook: bool,
    /// Whether jobs that wait are started when their turn or time comes. A manager that is
    /// there for a moment leaves that to the next.
    pub starts_waiting: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            limits: Limits {
                per_session: 64,
                // However many sessions somebody has, half is left to others.
                per_family: 512,
                total: 1_024,
                depth: 1,
                queued: 10_000,
                queued_per_family: 5_000,
                sessions_per_family: 1_000,
            },
            max_attempts: 3,
            max_continuations: 50,
            max_wait: Duration::from_secs(120),
            // An outcome is written within some milliseconds of a run's end.
            outcome_wait: Duration::from_secs(2),
            patience: Duration::from_secs(10),
            result_bytes: 1 << 20,
            keep: 10_000,
            keep_for: Duration::from_secs(30 * 24 * 60 * 60),
            has_webhook: false,
            starts_waiting: true,
        }
    }
}
