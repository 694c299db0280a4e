//! Running work in the foreground for as long as its caller can bear it.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::{Caller, Producer, Registry, Snapshot, Start, StartError, TaskId, WaitError};

/// What became of work that was run in the foreground.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Foreground {
    /// It ended within the budget, which counts as told.
    Ended(Snapshot),
    /// It goes on under this id.
    Background(TaskId),
}

impl Registry {
    /// Starts work and waits for its end, but no longer than the budget, which
    /// the start counts towards. Work that takes longer simply goes on.
    ///
    /// When this future is dropped after the start, the work goes on as well.
    ///
    /// # Errors
    ///
    /// [`StartError`], as [`start`](Self::start) returns it.
    pub async fn run_within(
        &self,
        producer: Arc<dyn Producer>,
        start: Start,
        budget: Duration,
    ) -> Result<Foreground, StartError> {
        let begun = Instant::now();
        let caller = match &start.owner {
            Some(owner) => Caller::Session(owner.session().clone()),
            None => Caller::Anyone,
        };
        let id = self.start(producer, start).await?;
        let left = budget.saturating_sub(begun.elapsed());
        match self.wait(&id, &caller, left).await {
            Ok(snapshot) if snapshot.status.is_terminal() => Ok(Foreground::Ended(snapshot)),
            // Its record may be gone already with its owner; the id is still its name.
            Ok(_) | Err(WaitError::Unknown(_) | WaitError::Aborted { .. }) => {
                Ok(Foreground::Background(id))
            }
        }
    }
}
