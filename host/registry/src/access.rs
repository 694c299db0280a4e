//! Who may see which tasks.
//!
//! Ids are predictable, so the comparison of sessions is the isolation. To a
//! caller who may not see it, a task does not exist.

use std::sync::Arc;

use crate::{Registry, SessionId, Snapshot, TaskId, registry::Inner, task::Task};

/// Who asks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Caller {
    /// Somebody without a session: sees unowned tasks.
    Anyone,
    /// Somebody of that session: sees its tasks and the unowned ones.
    Session(SessionId),
    /// Whoever runs the host: sees all.
    Operator,
}

impl Caller {
    pub(crate) fn may_see(&self, task: &Task) -> bool {
        match (self, &task.owner) {
            (Self::Operator, _) | (_, None) => true,
            (Self::Session(session), Some(owner)) => session == owner.session(),
            (Self::Anyone, Some(_)) => false,
        }
    }
}

/// There is no such task, or the caller may not see it; the two are told apart nowhere.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no task {id}: list the tasks to see which there are")]
pub struct Unknown {
    /// The id that was asked for.
    pub id: TaskId,
}

/// One page of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// The tasks, in the order of their start.
    pub tasks: Vec<Snapshot>,
    /// Where the next page begins: pass it as `after`. `None` on the last page.
    pub next: Option<u64>,
}

impl Registry {
    /// Returns a view of the task. Neither consumes anything nor counts as told.
    ///
    /// # Errors
    ///
    /// [`Unknown`] if there is no such task for this caller.
    pub fn get(&self, id: &TaskId, caller: &Caller) -> Result<Snapshot, Unknown> {
        Ok(self.inner.find(id, caller)?.snapshot())
    }

    /// Returns all tasks that the caller may see, in the order of their start.
    pub fn list(&self, caller: &Caller) -> Vec<Snapshot> {
        self.list_page(caller, usize::MAX, 0).tasks
    }

    /// Returns up to `limit` of the tasks that the caller may see, from where
    /// `after` says; 0 begins with the first.
    pub fn list_page(&self, caller: &Caller, limit: usize, after: u64) -> Page {
        let (tasks, more) = self.inner.with_swept_table(|table| table.page(caller, limit, after));
        let next = if more { tasks.last().map(|task| task.sequence()) } else { None };
        // Built outside the lock: a snapshot asks the producer for its usage.
        Page { tasks: tasks.iter().map(|task| task.snapshot()).collect(), next }
    }
}

impl Inner {
    /// Returns the task if the caller may see it.
    pub(crate) fn find(&self, id: &TaskId, caller: &Caller) -> Result<Arc<Task>, Unknown> {
        self.with_swept_table(|table| table.get(id))
            .filter(|task| caller.may_see(task))
            .ok_or_else(|| Unknown { id: id.clone() })
    }
}
