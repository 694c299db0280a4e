//! Webhooks: jobs whose endings are told to a server of their owner's.
//!
//! What is to be told is in the store from the write that ended the job until it was told
//! or given up. Here it is told: by a few calls at a time, none of which waits for another
//! server's, over and over until it was. A host that ends, or crashes, leaves what it did
//! not tell, or did not note, to the next; so a receiver may hear of an ending twice, under
//! the same id.

use std::{collections::HashMap, path::PathBuf, sync::Arc, time::Duration};

use backlot_jobs::{Call, DeliveryId, Job, JobId, Manager, StoreError};
use backlot_wasm::Resolver;
use reqwest::Url;
use tokio::{
    task::{Id, JoinHandle, JoinSet},
    time::sleep,
};

use self::{
    caller::Caller,
    plan::{Next, Pace},
};

mod caller;
mod gate;
mod message;
mod plan;
mod secret;

pub(crate) use self::gate::never;
pub use self::{gate::Allowed, secret::WebhookSecret};

/// How webhooks are told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WebhookOptions {
    /// Which servers may be told that are not of the public network.
    pub allow: Vec<Allowed>,
    /// Where endings of jobs are told that are announced and name no webhook.
    pub default: Option<Url>,
}

/// How many calls are under way at a time: each holds a connection and some hundred
/// kilobytes, for 15 seconds at most.
const CALLS: usize = 8;

/// How many of them go to one host, so that one that is slow does not hold up the others.
const CALLS_TO_ONE: usize = 2;

/// How long a store that cannot be read or written is left alone, at first and at most.
const TROUBLE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Tells webhooks, until it is dropped.
pub(crate) struct Webhooks(JoinHandle<()>);

impl Webhooks {
    /// Tells those of a manager's jobs from now on, with the secret of a data folder.
    pub(crate) fn start(
        manager: Manager,
        folder: PathBuf,
        options: WebhookOptions,
        resolver: Resolver,
    ) -> Self {
        Self::start_with(manager, Caller::new(folder, options, resolver), Pace::default())
    }

    fn start_with(manager: Manager, caller: Caller, pace: Pace) -> Self {
        Self(tokio::spawn(make_calls(manager, Arc::new(caller), pace)))
    }

    /// Ends it at once, also in the middle of calls.
    pub(crate) async fn end(mut self) {
        self.0.abort();
        // It was aborted, or had ended because there is no store any more.
        let _ = (&mut self.0).await;
    }
}

impl Drop for Webhooks {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn make_calls(manager: Manager, caller: Arc<Caller>, pace: Pace) {
    let mut under_way = UnderWay::default();
    loop {
        let wait = match begin_those_due(&manager, &caller, pace, &mut under_way).await {
            Ok(wait) => wait,
            Err(StoreError::Closed) => return,
            Err(error) => {
                tracing::warn!("which webhooks are to be told cannot be read: {error}");
                TROUBLE.1
            }
        };
        tokio::select! {
            () = manager.another_call() => {}
            () = under_way.one_ended() => {}
            () = sleep(wait) => {}
        }
    }
}

/// Begins the calls that are due and have a place. Returns how long the next is waited for.
async fn begin_those_due(
    manager: &Manager,
    caller: &Arc<Caller>,
    pace: Pace,
    under_way: &mut UnderWay,
) -> Result<Duration, StoreError> {
    loop {
        let mut next = Duration::from_millis(plan::LONGEST_MS);
        if under_way.is_full() {
            return Ok(next);
        }
        // Those under way are due still, so that it takes one more to see another.
        let due = manager.calls(under_way.full(), CALLS + 1).await?;
        let (now_ms, mut has_begun) = (manager.now_ms(), false);
        for job in due {
            let Some(Call { delivery, due_ms: Some(due_ms), .. }) = job.due_call() else {
                continue;
            };
            if under_way.holds(delivery) {
                continue;
            }
            let wait = plan::until(*due_ms, now_ms);
            if !wait.is_zero() {
                next = next.min(wait);
            } else if let Some(receiver) = under_way.place_for(&job) {
                let call = tell(manager.clone(), caller.clone(), pace, job.id, delivery.clone());
                under_way.begin(receiver, delivery.clone(), call);
                has_begun = true;
            }
        }
        if !has_begun {
            return Ok(next);
        }
    }
}

/// Makes a call, and writes down what came of it.
async fn tell(manager: Manager, caller: Arc<Caller>, pace: Pace, id: JobId, delivery: DeliveryId) {
    let job = match manager.called_for(id, &delivery).await {
        Ok(Some(job)) => job,
        // It was tried again or deleted since.
        Ok(None) => return,
        Err(error) => {
            tracing::warn!(job = %id, "it cannot be read, to tell its webhook: {error}");
            return sleep(TROUBLE.0).await;
        }
    };
    let (Some(call), Some(ended)) = (job.due_call(), job.ended()) else { return };
    let tried = caller.call(&job, &delivery, manager.now_ms()).await;
    let next = plan::after(pace, tried, call, ended.at_ms, manager.now_ms(), chance());
    match &next {
        Next::Made => {}
        Next::Again { why, .. } => tracing::info!(job = %id, "its webhook was not told: {why}"),
        Next::GivenUp { why } => {
            tracing::warn!(job = %id, tries = call.tries + 1, "its webhook is not told: {why}");
        }
    }
    let mut wait = TROUBLE.0;
    loop {
        let noted = match &next {
            Next::Made => manager.call_made(id, &delivery).await,
            Next::Again { why, due_ms } => {
                manager.call_failed(id, &delivery, why, Some(*due_ms)).await
            }
            Next::GivenUp { why } => manager.call_failed(id, &delivery, why, None).await,
        };
        match noted {
            Ok(_) | Err(StoreError::Closed) => return,
            // It keeps its place meanwhile, so that it is not made over and over.
            Err(error) => tracing::warn!(job = %id, "what came of a call is not noted: {error}"),
        }
        sleep(wait).await;
        wait = (wait * 2).min(TROUBLE.1);
    }
}

/// The calls that are under way.
#[derive(Default)]
struct UnderWay {
    calls: JoinSet<()>,
    /// The receiver of each, and what it is told.
    known: HashMap<Id, (String, DeliveryId)>,
}

impl UnderWay {
    fn is_full(&self) -> bool {
        self.calls.len() >= CALLS
    }

    fn holds(&self, delivery: &DeliveryId) -> bool {
        self.known.values().any(|(_, held)| held == delivery)
    }

    fn to(&self, receiver: &str) -> usize {
        self.known.values().filter(|(held, _)| held == receiver).count()
    }

    /// Returns the receivers that have no place left.
    fn full(&self) -> Vec<String> {
        let mut full: Vec<String> = self.known.values().map(|(held, _)| held.clone()).collect();
        full.retain(|receiver| self.to(receiver) >= CALLS_TO_ONE);
        full.sort_unstable();
        full.dedup();
        full
    }

    /// Returns the receiver of a job's endings, if there is a place for one more call.
    fn place_for(&self, job: &Job) -> Option<String> {
        let receiver = job.spec.webhook.as_ref()?.receiver();
        (!self.is_full() && self.to(&receiver) < CALLS_TO_ONE).then_some(receiver)
    }

    fn begin(
        &mut self,
        receiver: String,
        delivery: DeliveryId,
        call: impl Future<Output = ()> + Send + 'static,
    ) {
        let call = self.calls.spawn(call);
        self.known.insert(call.id(), (receiver, delivery));
    }

    /// Waits until one has ended. Without any it waits for ever.
    async fn one_ended(&mut self) {
        match self.calls.join_next_with_id().await {
            None => std::future::pending().await,
            Some(Ok((id, ()))) => _ = self.known.remove(&id),
            Some(Err(error)) => {
                tracing::error!("a call has panicked: {error}");
                self.known.remove(&error.id());
                // It is due still, and would perhaps do so at once again.
                sleep(TROUBLE.0).await;
            }
        }
    }
}

/// Returns a number from 0 to 1 by chance.
fn chance() -> f64 {
    // Without any, what failed together is tried again together.
    f64::from(getrandom::u32().unwrap_or_default()) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests;
