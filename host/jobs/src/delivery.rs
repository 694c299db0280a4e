//! What is owed to whom: endings that somebody has still to hear of.
//!
//! An ending is owed from the write that ends the job until it is settled, and a retry
//! takes it back. So it is told at least once, under an id that stays the same; whoever
//! keeps the ids it has seen hears of it exactly once.

use std::sync::atomic::Ordering;

use backlot_registry::{Caller, SessionId};

use crate::{
    id::DeliveryId,
    job::{Event, Job, Lost},
    manager::{Inner, Manager},
    notify,
    store::{ChangeError, Refused, StoreError},
};

/// What is to be told to a session, all of it in one message.
#[derive(Clone, Debug, PartialEq)]
pub struct Delivery {
    /// Names what is told, for [`Manager::settle`].
    pub ids: Vec<DeliveryId>,
    /// The jobs, as they ended.
    pub jobs: Vec<Job>,
    /// The message, to be put in front of a model in the user's role.
    pub text: String,
}

/// How many endings one message has at most, so that it stays short.
const BATCH: usize = 100;

impl Manager {
    /// Returns what is owed to a session, or `None` if nothing is. It stays owed until it
    /// is settled.
    ///
    /// # Errors
    ///
    /// When the store cannot be read.
    pub async fn owed(&self, session: &SessionId) -> Result<Option<Delivery>, StoreError> {
        let jobs = self.inner.store.owed(Some(session.clone()), None, BATCH).await?;
        if jobs.is_empty() {
            return Ok(None);
        }
        let ids = jobs.iter().filter_map(|job| job.debt.clone()).collect();
        Ok(Some(Delivery { ids, text: notify::message(&jobs), jobs }))
    }

    /// Returns how often jobs have ended, or those that had ended have changed or gone. As
    /// long as it stays, what is owed stays as well, but for what other processes do: so
    /// whoever has read that need not read it again.
    pub fn endings(&self) -> u64 {
        self.inner.endings.load(Ordering::Acquire)
    }

    /// Settles what a session was told. What is not owed to it, or not any more, is left
    /// out. Returns how many were settled.
    ///
    /// # Errors
    ///
    /// When the store cannot be written; those before are settled.
    pub async fn settle(
        &self,
        session: &SessionId,
        ids: &[DeliveryId],
    ) -> Result<usize, StoreError> {
        let caller = Caller::Session(session.clone());
        let mut settled = 0;
        for delivery in ids {
            let Some((job, _)) = delivery.parts() else { continue };
            if self.inner.find(job, &caller).await?.is_none() {
                continue;
            }
            let event = Event::Settled { delivery: delivery.clone() };
            match self.inner.happen(job, event).await {
                Ok(_) => settled += 1,
                Err(ChangeError::Refused(_)) => {}
                Err(ChangeError::Store(error)) => return Err(error),
            }
        }
        Ok(settled)
    }

    /// Settles the ending of a job that whoever it works for has in hand: the very ending
    /// that this job shows. Without one that is owed, nothing happens.
    ///
    /// # Errors
    ///
    /// When the store cannot be written; the ending is told again then.
    pub async fn delivered(&self, job: &Job) -> Result<(), StoreError> {
        self.inner.delivered(job).await
    }
}

impl Inner {
    pub(crate) async fn delivered(&self, job: &Job) -> Result<(), StoreError> {
        let Some(delivery) = job.debt.clone() else { return Ok(()) };
        match self.happen(job.id, Event::Settled { delivery }).await {
            Ok(_) => {
                self.report(|| self.world.reports.on_result_delivered(job));
                Ok(())
            }
            // It was tried again, or told by somebody else.
            Err(ChangeError::Refused(Refused::Lost(Lost::NotOwed) | Refused::NoJob(_))) => Ok(()),
            Err(ChangeError::Refused(refused)) => {
                tracing::debug!("an ending was not settled: {refused}");
                Ok(())
            }
            Err(ChangeError::Store(error)) => Err(error),
        }
    }
}
