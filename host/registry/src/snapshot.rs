//! What a task looks like from outside.

use std::sync::Arc;

use crate::{Generation, Kind, SessionId, Status, StopCause, TaskId, Usage};

/// A view of one task at one moment; a value of its own, never live state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The task's id.
    pub id: TaskId,
    /// The task's kind.
    pub kind: Kind,
    /// The one line that the task is shown under.
    pub label: String,
    /// The session of the owner; absent for an unowned task.
    pub owner_session: Option<SessionId>,
    /// Where the task stands.
    pub status: Status,
    /// While the task lives, its last report; afterwards, how it ended.
    pub detail: Option<String>,
    /// When it was started, in milliseconds since the Unix epoch.
    pub started_at_ms: u64,
    /// When it ended, in milliseconds since the Unix epoch; never before it was started.
    pub finished_at_ms: Option<u64>,
    /// Whether a read, wait or kill has told the end to somebody, or is about
    /// to. Notices of the end are then redundant.
    pub reported: bool,
    /// Who stops or stopped the task, if somebody did before it ended.
    pub stopped_by: Option<StopCause>,
    /// What the task has used, where its producer can tell.
    pub usage: Option<Usage>,
    /// The version of the producer that it runs.
    pub generation: Option<Generation>,
    /// What it may reach and use, a line each, where its producer can tell.
    pub grant: Option<Arc<[String]>>,
    /// How many bytes of output the task has produced.
    pub output_bytes: u64,
    /// How many of those are no longer kept.
    pub dropped_bytes: u64,
}
