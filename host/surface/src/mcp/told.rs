//! What clients are told, until it is written down that they were.
//!
//! An answer that tells of endings has a [`Receipt`]. Whoever hands the answer over says so
//! to the request's [`Handover`], and what was told is settled then. An answer that is never
//! handed over settles nothing, and what it would have told is told again.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    fmt, mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use backlot_jobs::{Delivery, DeliveryId, Job, JobId, Manager, StoreError, message, output::Part};
use backlot_registry::SessionId;
use rmcp::model::Extensions;
use tokio::task::{JoinHandle, yield_now};
use tokio_util::task::TaskTracker;

/// How many endings come with one answer; the others come with the next. It keeps an answer
/// within what a client takes.
const ENDINGS: usize = 25;

/// How many places are remembered up to which output was told. A place that is forgotten
/// has its output told again, from the beginning.
const PLACES: usize = 1_024;

/// What the clients of a server were told, and is not written down yet. Cheap to clone.
#[derive(Clone)]
pub(super) struct Told(Arc<Inner>);

struct Inner {
    manager: Manager,
    claims: Claims,
    state: Mutex<State>,
    /// What is being written down.
    settling: TaskTracker,
}

/// The endings in answers that are under way, or being settled, to whichever client: what one
/// is told, the others of its session are not. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Claims(Arc<Mutex<HashSet<DeliveryId>>>);

impl Claims {
    /// Marks the endings as told that nobody else is telling, and returns those.
    fn claim(&self, ids: impl Iterator<Item = DeliveryId>) -> HashSet<DeliveryId> {
        let mut claimed = self.lock();
        ids.filter(|id| claimed.insert(id.clone())).collect()
    }

    fn release(&self, ids: &HashSet<DeliveryId>) {
        let mut claimed = self.lock();
        for id in ids {
            claimed.remove(id);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<DeliveryId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Default)]
struct State {
    /// Up to where what a job puts out was told.
    places: HashMap<Whose, u64>,
    /// The same, in the order in which they came.
    order: VecDeque<Whose>,
}

/// To whom, and of which part of which job.
type Whose = (SessionId, JobId, Part);

impl State {
    fn move_place(&mut self, whose: Whose, to: u64) {
        if self.places.insert(whose.clone(), to).is_some() {
            return;
        }
        self.order.push_back(whose);
        if self.order.len() > PLACES
            && let Some(oldest) = self.order.pop_front()
        {
            self.places.remove(&oldest);
        }
    }
}

impl Told {
    pub(super) fn new(manager: Manager, claims: Claims) -> Self {
        let (state, settling) = (Mutex::default(), TaskTracker::new());
        Self(Arc::new(Inner { manager, claims, state, settling }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns up to where a part of what a job puts out was told to a session.
    pub(super) fn place(&self, session: &SessionId, job: JobId, part: Part) -> u64 {
        self.state().places.get(&(session.clone(), job, part)).copied().unwrap_or_default()
    }

    /// Notes up to where it was told.
    pub(super) fn move_place(&self, session: &SessionId, job: JobId, part: Part, to: u64) {
        self.state().move_place((session.clone(), job, part), to);
    }

    /// Waits until what was told is written down. Nothing more is told then.
    pub(super) async fn settled(&self) {
        self.0.settling.close();
        self.0.settling.wait().await;
    }

    /// Returns the message about what a session is owed, apart from what this answer or
    /// another one tells already.
    pub(super) async fn owed(&self, receipt: &mut Receipt) -> Option<String> {
        let session = receipt.session.clone()?;
        let ahead = match receipt.ahead.take() {
            Some(ahead) => ahead.owed(&self.0.manager, receipt.in_hand.len()).await,
            None => None,
        };
        let owed = match ahead {
            Some(owed) => owed,
            None => self.0.manager.owed(&session).await,
        };
        // One that cannot be read is still owed, and the answer is not to fail for it.
        let owed = owed.inspect_err(|error| {
            tracing::warn!(%session, "what is owed to a session cannot be read: {error}");
        });
        let jobs: Vec<Job> = owed.ok()??.jobs;
        let claimed =
            self.0.claims.claim(jobs.iter().take(ENDINGS).filter_map(|job| job.debt.clone()));
        let is_claimed = |job: &Job| job.debt.as_ref().is_some_and(|debt| claimed.contains(debt));
        let jobs: Vec<Job> = jobs.into_iter().filter(is_claimed).collect();
        receipt.ids.extend(claimed);
        (!jobs.is_empty()).then(|| message(&jobs))
    }

    /// Returns the receipt of an answer to somebody of a session; of none where what is told
    /// settles nothing.
    pub(super) fn receipt(&self, session: Option<&SessionId>) -> Receipt {
        Receipt {
            told: self.clone(),
            session: session.cloned(),
            ids: HashSet::new(),
            in_hand: Vec::new(),
            place: None,
            ahead: None,
        }
    }

    /// Begins to read what a session is owed, for an answer that is still to come.
    pub(super) fn look_ahead(&self, session: Option<&SessionId>) -> Option<Ahead> {
        let (manager, session) = (self.0.manager.clone(), session?.clone());
        // Before it is read, so that what changes meanwhile is known to.
        let endings = manager.endings();
        Some(Ahead { endings, read: tokio::spawn(async move { manager.owed(&session).await }) })
    }
}

/// What a session was owed when a call of it began. Mostly that is nothing, and still so when
/// the call is answered: then nobody waits for it to be read.
pub(super) struct Ahead {
    /// How many endings the manager had told before.
    endings: u64,
    read: JoinHandle<Result<Option<Delivery>, StoreError>>,
}

impl Ahead {
    /// Returns what is owed now, if nothing has ended since but so many jobs that the answer
    /// is about.
    async fn owed(
        self,
        manager: &Manager,
        own: usize,
    ) -> Option<Result<Option<Delivery>, StoreError>> {
        let is_as_it_was = manager.endings() == self.endings + own as u64;
        if is_as_it_was { self.read.await.ok() } else { None }
    }
}

/// What follows once an answer was handed over. Dropped, nothing does.
pub(super) struct Receipt {
    told: Told,
    session: Option<SessionId>,
    /// The endings that the answer tells of.
    ids: HashSet<DeliveryId>,
    /// The jobs whose endings the answer is about.
    in_hand: Vec<Job>,
    /// Up to where it tells the output of a job.
    place: Option<(JobId, u64)>,
    /// What was owed when the call began, where that was looked at.
    ahead: Option<Ahead>,
}

impl Receipt {
    /// Notes that the answer tells how a job has ended, where it has.
    pub(super) fn reports(&mut self, job: &Job) {
        let works_for_it = self.session.as_ref() == Some(&job.spec.parent);
        if let Some(debt) = job.debt.clone().filter(|_| works_for_it) {
            // Where another answer tells it as well, both do.
            self.ids.extend(self.told.0.claims.claim(std::iter::once(debt)));
            self.in_hand.push(job.clone());
        }
    }

    /// Notes that the answer tells the output of a job up to an offset.
    pub(super) fn tells_up_to(&mut self, job: JobId, offset: u64) {
        self.place = Some((job, offset));
    }

    /// Takes what was owed when the call began.
    pub(super) fn knows(&mut self, ahead: Option<Ahead>) {
        self.ahead = ahead;
    }

    /// Settles what was told.
    async fn settle(mut self) {
        // What was handed over goes first: whoever asked waits for that, and not for this.
        yield_now().await;
        let manager = self.told.0.manager.clone();
        let mut ids = self.ids.clone();
        for job in mem::take(&mut self.in_hand) {
            match manager.delivered(&job).await {
                Ok(()) => ids.retain(|id| job.debt.as_ref() != Some(id)),
                Err(error) => {
                    tracing::warn!(job = %job.id, "an ending in hand was not settled: {error}");
                }
            }
        }
        let Some(session) = self.session.clone() else { return };
        let ids: Vec<DeliveryId> = ids.into_iter().collect();
        if let Err(error) = manager.settle(&session, &ids).await {
            tracing::warn!(%session, "endings that were told were not settled: {error}");
        }
    }
}

impl Drop for Receipt {
    fn drop(&mut self) {
        self.told.0.claims.release(&self.ids);
    }
}

/// Where the answer to one request leaves its receipt, until the answer was handed over.
#[derive(Clone, Default)]
pub(super) struct Handover(Arc<Mutex<Vec<Receipt>>>);

impl Handover {
    /// Returns that of a request, wherever it came in.
    pub(super) fn of(extensions: &Extensions) -> Self {
        let parts = || extensions.get::<http::request::Parts>();
        let handover = extensions.get::<Self>();
        handover.or_else(|| parts()?.extensions.get::<Self>()).cloned().unwrap_or_default()
    }

    /// Keeps a receipt until the answer was handed over.
    pub(super) fn keep(&self, receipt: Receipt) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(receipt);
    }

    /// Says that the answer was handed over: what it told is settled.
    pub(super) fn given(&self) {
        let receipts = mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        if receipts.is_empty() {
            return;
        }
        for receipt in &receipts {
            if let (Some(session), Some((job, to))) = (&receipt.session, receipt.place) {
                receipt.told.move_place(session, job, Part::Output, to);
            }
        }
        // It is written whatever becomes of the connection.
        for receipt in receipts {
            let told = receipt.told.clone();
            told.0.settling.spawn(receipt.settle());
        }
    }
}

impl fmt::Debug for Handover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handover").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_places_are_forgotten() {
        let mut state = State::default();
        let job = |at: usize| JobId::from_bits(at as u128);
        let whose = |at| (SessionId::from("chat"), job(at), Part::Output);
        for at in 0..PLACES + 3 {
            state.move_place(whose(at), 1);
            state.move_place(whose(at), 2);
        }
        assert_eq!((state.places.len(), state.order.len()), (PLACES, PLACES));
        assert_eq!(state.places.get(&whose(2)), None);
        assert_eq!(state.places.get(&whose(3)), Some(&2));
    }
}
