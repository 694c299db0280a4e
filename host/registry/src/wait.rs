//! Waiting for the end of a task.
//!
//! Whoever waits is counted, so that the announcement of an end can wait until
//! one of them has taken it. The count goes down with the future, however that
//! ends.

use std::{
    future::{Future, pending},
    pin::pin,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use crate::{
    Caller, Registry, Snapshot, TaskId, Unknown,
    registry::Inner,
    task::{Task, Then},
};

/// Why a wait returned nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WaitError {
    /// There is no such task for this caller.
    #[error(transparent)]
    Unknown(#[from] Unknown),
    /// The wait was aborted. The task goes on.
    #[error("the wait for {id} was aborted; the task goes on")]
    Aborted {
        /// The task.
        id: TaskId,
    },
}

impl Registry {
    /// Returns the task as it ended, which counts as told; or as it stands when
    /// the timeout passes. A timeout of zero asks once.
    ///
    /// # Errors
    ///
    /// [`WaitError::Unknown`] if there is no such task for this caller.
    pub async fn wait(
        &self,
        id: &TaskId,
        caller: &Caller,
        timeout: Duration,
    ) -> Result<Snapshot, WaitError> {
        self.wait_or_abort(id, caller, timeout, pending::<()>()).await
    }

    /// Waits like [`wait`](Self::wait) until `abort` resolves.
    ///
    /// # Errors
    ///
    /// [`WaitError::Aborted`] if the task had not ended when `abort` resolved.
    pub async fn wait_or_abort(
        &self,
        id: &TaskId,
        caller: &Caller,
        timeout: Duration,
        abort: impl Future,
    ) -> Result<Snapshot, WaitError> {
        let task = self.inner.find(id, caller)?;
        let Some(waiter) = Waiter::attach(&self.inner, &task) else {
            return Ok(task.snapshot());
        };
        let aborted = {
            let mut settled = pin!(task.settled.notified());
            // Registered before the look, so that no wake-up falls between.
            settled.as_mut().enable();
            if timeout.is_zero() || task.is_terminal() {
                false
            } else {
                let late = pin!(self.inner.shared.sleep(timeout));
                let abort = pin!(abort);
                tokio::select! {
                    biased;
                    () = settled => false,
                    _ = abort => true,
                    () = late => false,
                }
            }
        };
        match waiter.take() {
            Some(ended) => Ok(ended),
            None if aborted => Err(WaitError::Aborted { id: id.clone() }),
            None => Ok(task.snapshot()),
        }
    }
}

/// One wait that is on its way. Dropping it detaches it.
struct Waiter<'a> {
    inner: &'a Inner,
    task: &'a Arc<Task>,
}

impl<'a> Waiter<'a> {
    /// Attaches a waiter. Of a task that has ended it takes the end right away,
    /// and returns `None`.
    fn attach(inner: &'a Inner, task: &'a Arc<Task>) -> Option<Self> {
        let then = {
            let mut body = task.body();
            if body.state.is_terminal() {
                Some(body.report())
            } else {
                body.waiters += 1;
                None
            }
        };
        match then {
            Some(then) => {
                inner.told(task, then);
                None
            }
            None => {
                inner.shared.counters.waiters.fetch_add(1, Ordering::Relaxed);
                Some(Self { inner, task })
            }
        }
    }

    /// Takes the end of the task if it has ended, and detaches the waiter.
    fn take(self) -> Option<Snapshot> {
        let then = {
            let mut body = self.task.body();
            if !body.state.is_terminal() {
                return None;
            }
            body.report()
        };
        self.inner.told(self.task, then);
        Some(self.task.snapshot())
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let then = {
            let mut body = self.task.body();
            body.waiters -= 1;
            // The last to go without the end leaves it to the announcement.
            if body.waiters == 0 { body.conclude() } else { Then::Nothing }
        };
        self.inner.shared.counters.waiters.fetch_sub(1, Ordering::Relaxed);
        if then == Then::Announce {
            self.inner.announce(self.task);
        }
    }
}
