//! A task of the registry as it is shown, and how one is stopped.

use backlot_registry::{Killed, Mode, Page, Snapshot, Status, StopCause, Usage};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{GenerationName, at_most};
use crate::error::Failure;

/// A task: one live run, of a job or of something else.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TaskView {
    /// Its id: its kind and a number.
    pub id: String,
    /// What runs.
    pub kind: String,
    /// The line that it is shown under.
    pub label: String,
    /// The session that it belongs to; none where it is nobody's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// Where it stands.
    pub status: TaskStatus,
    /// What it said of itself last, or how it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// When it was started.
    pub started_ms: u64,
    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished_ms: Option<u64>,
    /// Whether somebody was told of its end.
    pub reported: bool,
    /// Who stops or stopped it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stopped_by: Option<StoppedBy>,
    /// What it has used, where that can be told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<UsageView>,
    /// The version of its kind that it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation: Option<GenerationName>,
    /// What it may reach and use, a line each, where that can be told.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub grant: Vec<String>,
    /// How many bytes of output it has written.
    pub output_bytes: u64,
    /// How many of those are no longer kept.
    pub dropped_bytes: u64,
}

impl TaskView {
    /// Returns the view of a task.
    pub fn of(task: Snapshot) -> Self {
        Self {
            id: task.id.to_string(),
            kind: task.kind.to_string(),
            label: task.label,
            session: task.owner_session.map(|session| session.to_string()),
            status: TaskStatus::of(task.status),
            detail: task.detail,
            started_ms: task.started_at_ms,
            finished_ms: task.finished_at_ms,
            reported: task.reported,
            stopped_by: task.stopped_by.map(StoppedBy::of),
            usage: task.usage.map(UsageView::of),
            generation: task.generation.map(GenerationName::of),
            grant: task.grant.map(|lines| lines.to_vec()).unwrap_or_default(),
            output_bytes: task.output_bytes,
            dropped_bytes: task.dropped_bytes,
        }
    }
}

/// Where a task stands, in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TaskStatus {
    /// It is under way.
    Running,
    /// It is under way and about to end, because it was stopped.
    Stopping,
    /// It was finished.
    Completed,
    /// It was given up because somebody stopped it.
    Killed,
    /// It broke, or the host shut down.
    Failed,
}

impl TaskStatus {
    fn of(status: Status) -> Self {
        match status {
            Status::Running => Self::Running,
            Status::Stopping => Self::Stopping,
            Status::Completed => Self::Completed,
            Status::Killed => Self::Killed,
            Status::Failed => Self::Failed,
        }
    }
}

/// Who stopped a task, in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum StoppedBy {
    /// Somebody asked for it.
    Person,
    /// Whoever it belonged to is gone.
    Owner,
    /// The host shut down.
    Shutdown,
}

impl StoppedBy {
    fn of(cause: StopCause) -> Self {
        match cause {
            StopCause::Person => Self::Person,
            StopCause::Owner => Self::Owner,
            StopCause::Shutdown => Self::Shutdown,
        }
    }
}

/// What a task has used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UsageView {
    /// CPU time.
    pub cpu_ms: u64,
    /// The most memory at a time, in bytes.
    pub peak_memory: u64,
}

impl UsageView {
    fn of(usage: Usage) -> Self {
        let cpu_ms = u64::try_from(usage.cpu.as_millis()).unwrap_or(u64::MAX);
        Self { cpu_ms, peak_memory: usage.peak_memory }
    }
}

/// A part of the tasks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TasksReply {
    /// The tasks, in the order of their start.
    pub tasks: Vec<TaskView>,
    /// What the next part is `after`; none on the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

impl TasksReply {
    pub(crate) fn of(page: Page) -> Self {
        Self { tasks: page.tasks.into_iter().map(TaskView::of).collect(), next: page.next }
    }
}

/// Asks for a task to be stopped.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TaskStopRequest {
    /// How.
    pub mode: StopMode,
    /// Why; the task is told.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 4096)]
    pub reason: Option<String>,
}

/// The longest reason, in bytes. A line of it is shown.
const REASON: usize = 4 << 10;

impl TaskStopRequest {
    /// Checks what the types cannot say.
    ///
    /// # Errors
    ///
    /// When the reason is too long.
    pub fn check(&self) -> Result<(), Failure> {
        at_most("reason", self.reason.as_deref(), REASON)
    }
}

/// How a task is stopped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum StopMode {
    /// It is asked, and has its grace.
    #[default]
    Ask,
    /// At once.
    Force,
}

impl From<StopMode> for Mode {
    fn from(mode: StopMode) -> Self {
        match mode {
            StopMode::Ask => Self::Ask,
            StopMode::Force => Self::Force,
        }
    }
}

/// What the stop of a task came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TaskStopReply {
    /// In a word.
    pub outcome: TaskStopOutcome,
    /// The task, as long as it is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<TaskView>,
}

/// What the stop of a task came to, in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TaskStopOutcome {
    /// It ends.
    Stopping,
    /// It had ended already.
    Already,
}

impl TaskStopOutcome {
    pub(crate) fn of(killed: Killed) -> Self {
        match killed {
            Killed::Requested => Self::Stopping,
            Killed::AlreadyTerminal => Self::Already,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use backlot_registry::{Generation, Kind};

    use super::*;
    use crate::wire::tests::check;

    fn task() -> Snapshot {
        Snapshot {
            id: "grep-7".parse().unwrap(),
            kind: Kind::new("grep").unwrap(),
            label: "find it".into(),
            owner_session: None,
            status: Status::Running,
            detail: None,
            started_at_ms: 5,
            finished_at_ms: None,
            reported: false,
            stopped_by: None,
            usage: None,
            generation: None,
            grant: None,
            output_bytes: 3,
            dropped_bytes: 0,
        }
    }

    #[test]
    fn a_task_of_which_little_is_known() {
        check(
            &TasksReply { tasks: vec![TaskView::of(task())], next: None },
            r#"
{
  "tasks": [
    {
      "id": "grep-7",
      "kind": "grep",
      "label": "find it",
      "status": "running",
      "started_ms": 5,
      "reported": false,
      "output_bytes": 3,
      "dropped_bytes": 0
    }
  ]
}"#,
        );
    }

    #[test]
    fn a_task_that_was_stopped() {
        let usage = Usage { cpu: Duration::from_micros(7_500), peak_memory: 9 };
        let task = Snapshot {
            owner_session: Some("chat".into()),
            status: Status::Killed,
            detail: Some("enough".into()),
            finished_at_ms: Some(8),
            reported: true,
            stopped_by: Some(StopCause::Person),
            usage: Some(usage),
            generation: Some(Generation { number: 2, digest: "sha256:00".into() }),
            grant: Some(["memory 1 MiB".to_owned()].into()),
            dropped_bytes: 1,
            ..task()
        };
        let task = Some(TaskView::of(task));
        check(
            &TaskStopReply { outcome: TaskStopOutcome::of(Killed::AlreadyTerminal), task },
            r#"
{
  "outcome": "already",
  "task": {
    "id": "grep-7",
    "kind": "grep",
    "label": "find it",
    "session": "chat",
    "status": "killed",
    "detail": "enough",
    "started_ms": 5,
    "finished_ms": 8,
    "reported": true,
    "stopped_by": "person",
    "usage": {
      "cpu_ms": 7,
      "peak_memory": 9
    },
    "generation": {
      "number": 2,
      "digest": "sha256:00"
    },
    "grant": [
      "memory 1 MiB"
    ],
    "output_bytes": 3,
    "dropped_bytes": 1
  }
}"#,
        );
    }

    #[test]
    fn how_a_task_is_stopped() {
        let request = TaskStopRequest { mode: StopMode::Force, reason: Some("late".into()) };
        check(&request, "{\n  \"mode\": \"force\",\n  \"reason\": \"late\"\n}");
        request.check().unwrap();
        let long = TaskStopRequest { reason: Some("a".repeat(REASON + 1)), ..request };
        long.check().unwrap_err();
        assert_eq!(serde_json::from_str::<TaskStopRequest>("{}").unwrap().mode, StopMode::Ask);
    }
}
