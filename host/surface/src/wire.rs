//! The shapes that are asked and answered, as JSON. They change only with a new version
//! of the interface; fields may be added to what is answered, and absent ones are left
//! out. Times are in milliseconds since the Unix epoch.
//!
//! What is asked is strict: a field that there is not is refused, with its name.

mod host;
mod job;
mod kind;
mod output;
mod query;
mod schema;
mod session;
mod spawn;
mod stream;
mod task;
mod trace;

pub use host::{
    BackupRequest, ErrorReply, FileName, FileView, FilesReply, HealthReply, HostAbout, JobCounts,
    LiveReply, PruneReply, PruneRequest, ReadyReply, ShutdownReply, ShutdownRequest,
};
pub use job::{
    AnswerRequest, CallView, CauseView, CodeView, DO_NOT_REDO, JobView, Page, QuestionView,
    RetryView, RunView, ScheduleView, StopHow, StopOutcome, StopReply, StopRequest, StopView,
    WaitFor, WaitView,
};
pub use kind::{
    FormName, GenerationName, KindStateName, KindView, KindsReply, RollbackRequest, VersionView,
};
pub use output::{Content, OutputPiece, OutputReply, StreamName};
pub(crate) use output::{joined, unfinished};
pub use query::{
    DeleteQuery, EntriesQuery, EventsQuery, FilesQuery, HandQuery, HandView, ListQuery, LookQuery,
    OutputQuery, PartName, StreamQuery, TasksQuery,
};
pub(crate) use session::check_session;
pub use session::{
    DeliveryReply, EntriesReply, EntryReply, EntryRequest, EntryView, JobCardView, SessionView,
    SettleReply, SettleRequest,
};
pub use spawn::{Expects, Grant, SpawnRequest, Target};
pub(crate) use spawn::{KEY, check_key};
pub use stream::{DroppedView, NothingView, RemovedView, SnapshotView};
pub use task::{
    StopMode, StoppedBy, TaskStatus, TaskStopOutcome, TaskStopReply, TaskStopRequest, TaskView,
    TasksReply, UsageView,
};
pub use trace::{InvalidTraceParent, TraceParent};

use crate::error::Failure;

/// Refuses a text that is longer than it can be.
fn at_most(field: &str, text: Option<&str>, bytes: usize) -> Result<(), Failure> {
    match text {
        Some(text) if text.len() > bytes => {
            let length = text.len();
            Err(Failure::invalid(format!("`{field}` has {length} bytes, and {bytes} are the most")))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use serde::{Serialize, de::DeserializeOwned};

    /// Checks how a value is written, and that it is read as it was.
    #[track_caller]
    pub(super) fn check<T: Serialize + DeserializeOwned + PartialEq + Debug>(
        value: &T,
        expected: &str,
    ) {
        let written = serde_json::to_string_pretty(value).unwrap();
        let expected = expected.trim();
        assert_eq!(written, expected, "\n{written}");
        assert_eq!(serde_json::from_str::<T>(&written).unwrap(), *value);
    }
}
