//! Endings that webhooks are to be told of.
//!
//! A call is due from the write that ends the job until it was made or given up, and a
//! retry takes it back. Whoever makes calls says what came of each, so one whose maker
//! crashed is made again, under the same id. Nothing is sent here.

use crate::{
    id::{DeliveryId, JobId},
    job::{Event, Job},
    manager::{Inner, Manager},
    store::{ChangeError, StoreError},
    text,
};

/// How much is kept of why a call failed, in characters: a line of a terminal or two.
const WHY: usize = 200;

impl Manager {
    /// Returns the jobs whose webhook is still to be told of their ending, as listings
    /// have them, at most `limit`, those that are due first first, also where that time
    /// has not come yet. Receivers that are excepted have theirs left out, as
    /// [`Webhook::receiver`](crate::Webhook::receiver) has it.
    ///
    /// # Errors
    ///
    /// When the store cannot be read.
    pub async fn calls(&self, except: Vec<String>, limit: usize) -> Result<Vec<Job>, StoreError> {
        self.inner.store.calls(except, limit).await
    }

    /// Returns a job with all there is to it, if its webhook is still to be told of that
    /// ending.
    ///
    /// # Errors
    ///
    /// When the store cannot be read.
    pub async fn called_for(
        &self,
        job: JobId,
        delivery: &DeliveryId,
    ) -> Result<Option<Job>, StoreError> {
        let job = self.inner.store.job(job).await?;
        Ok(job.filter(|job| job.due_call().is_some_and(|call| call.delivery == *delivery)))
    }

    /// Waits until there may be another call. One that came since this was last waited for
    /// ends the wait at once. One waits for it at a time.
    pub async fn another_call(&self) {
        self.inner.calls.notified().await;
    }

    /// Writes down that a webhook was told. Returns whether that was still to be.
    ///
    /// # Errors
    ///
    /// When the store cannot be written; the call is due still.
    pub async fn call_made(&self, job: JobId, delivery: &DeliveryId) -> Result<bool, StoreError> {
        self.inner.note_call(job, Event::Called { delivery: delivery.clone() }).await
    }

    /// Writes down that a webhook could not be told, and when that is tried again, in
    /// milliseconds since the Unix epoch; never where that is `None`. Returns whether it
    /// was still to be told.
    ///
    /// # Errors
    ///
    /// When the store cannot be written; the call is due still.
    pub async fn call_failed(
        &self,
        job: JobId,
        delivery: &DeliveryId,
        why: &str,
        due_ms: Option<u64>,
    ) -> Result<bool, StoreError> {
        let (delivery, why) = (delivery.clone(), text::line(why, WHY));
        self.inner.note_call(job, Event::CallFailed { delivery, why, due_ms }).await
    }
}

impl Inner {
    async fn note_call(&self, job: JobId, event: Event) -> Result<bool, StoreError> {
        match self.happen(job, event).await {
            Ok(_) => Ok(true),
            // It was tried again or deleted meanwhile, or told by somebody else.
            Err(ChangeError::Refused(refused)) => {
                tracing::debug!(%job, "what came of a call is not noted: {refused}");
                Ok(false)
            }
            Err(ChangeError::Store(error)) => Err(error),
        }
    }
}
