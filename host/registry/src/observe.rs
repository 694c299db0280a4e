//! Observing a task's output by byte offset, without consuming it.

use std::{fmt, pin::pin, sync::Arc};

use bytes::Bytes;

use crate::{Caller, Channel, Form, Registry, TaskId, Unknown, task::Task};

/// What of a task is observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stream {
    /// What the task was started for.
    Output,
    /// What it says about its work on the side.
    Log,
}

/// Bytes that follow each other and came from one channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Where the first byte stands among all that the task has written.
    pub offset: u64,
    /// The channel. Where a task has changed it very often, the oldest changes
    /// are forgotten and the bytes are told as of one.
    pub channel: Channel,
    /// The bytes.
    pub bytes: Bytes,
    /// How many bytes before them were dropped unseen.
    pub dropped: u64,
}

/// Follows a task's output from one offset on. Any number may follow a task;
/// none disturbs another, the task or its readers.
pub struct Observer {
    task: Arc<Task>,
    stream: Stream,
    offset: u64,
    is_passive: bool,
}

impl Registry {
    /// Returns an observer of the task's output or log from that offset on.
    ///
    /// # Errors
    ///
    /// [`Unknown`] if there is no such task for this caller.
    pub fn observe(
        &self,
        id: &TaskId,
        caller: &Caller,
        stream: Stream,
        from_offset: u64,
    ) -> Result<Observer, Unknown> {
        let task = self.inner.find(id, caller)?;
        Ok(Observer { task, stream, offset: from_offset, is_passive: false })
    }
}

impl Observer {
    /// Returns it as one that never has the work hand over its output, and waits until it
    /// does so by itself, or for somebody else. It costs nothing while there is none.
    #[must_use]
    pub fn passive(self) -> Self {
        Self { is_passive: true, ..self }
    }

    /// Returns the offset of the next byte.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the next bytes, at most that many, as soon as there are some;
    /// `None` once the task has ended and all was returned. At least one byte
    /// is allowed for.
    ///
    /// A piece without bytes tells only of what was dropped. Dropping the future
    /// loses nothing.
    pub async fn next(&mut self, max_bytes: usize) -> Option<Piece> {
        let task = self.task.clone();
        loop {
            // A task that has ended without a spool has nothing to show.
            let spool = task.live_spool(self.stream)?;
            let mut changed = pin!(spool.changed.notified());
            // Registered before the look, so that no wake-up falls between.
            changed.as_mut().enable();
            // Whether it is closed is asked first: what was written before it
            // was closed is then seen.
            let closed = spool.is_closed();
            if let Some(piece) = spool.piece(self.offset, max_bytes.max(1)) {
                self.offset = piece.offset + piece.bytes.len() as u64;
                return Some(piece);
            }
            if closed {
                return None;
            }
            tokio::select! {
                biased;
                () = changed => {}
                () = self.pull() => {}
            }
        }
    }

    /// Has the work hand over its output, and resolves when it is time to ask
    /// again. Waits for ever where the work writes by itself.
    async fn pull(&self) {
        let task = &self.task;
        let drain =
            if self.stream == Stream::Output && task.form == Form::Stream && !self.is_passive {
                task.drain()
            } else {
                None
            };
        match drain {
            None => std::future::pending().await,
            Some(drain) => {
                if drain.await.is_err() {
                    task.shared.count_panic();
                }
                task.shared.sleep(task.shared.config.follow).await;
            }
        }
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observer")
            .field("task", &self.task.id)
            .field("stream", &self.stream)
            .field("offset", &self.offset)
            .finish()
    }
}
