//! What clients are told, until it is written down that they were.
//!
//! An answer that tells of endings has a [`Receipt`]. Whoever hands the answer over says so
//! to the request's [`Handover`], and what was told is settled then. An answer that is never
//! handed over settles nothing, and what it would have told is told again.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    fmt, mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use backlot_jobs::{Delivery, DeliveryId, Job, JobId, Manager, StoreError, message, output::Part};
use backlot_registry::SessionId;
use rmcp::model::Extensions;
use tokio::task::{JoinHandle, yield_now};
use tokio_util::task::TaskTracker;

/// How many endings come with one answer; the others come with the next. It keeps an answer
/// within what a client takes.
const ENDINGS: usize = 25;

/// How often it is read what is owed while that changes; then what was read last is told.
const ATTEMPTS: usize = 3;

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
pub struct Claims(Arc<Mutex<Claimed>>);

#[derive(Debug, Default)]
struct Claimed {
    /// By whom and since when.
    by: HashMap<DeliveryId, (u64, Instant)>,
    /// How many claimants there were.
    claimants: u64,
}

/// For how long what one answer tells is told by no other. A client that takes no answer for
/// so long is not to keep from others what they are owed.
const CLAIM_TIME: Duration = Duration::from_secs(60);

impl Claims {
    /// Returns somebody new who may claim.
    fn claimant(&self) -> u64 {
        let mut claimed = self.lock();
        claimed.claimants += 1;
        claimed.claimants
    }

    /// Marks endings as told that nobody else is telling, so many at most, and returns those.
    fn claim(
        &self,
        by: u64,
        ids: impl Iterator<Item = DeliveryId>,
        most: usize,
    ) -> HashSet<DeliveryId> {
        let (mut claimed, now) = (self.lock(), Instant::now());
        let mut is_free = |id: &DeliveryId| match claimed.by.get(id) {
            Some((_, since)) if now.duration_since(*since) < CLAIM_TIME => false,
            _ => claimed.by.insert(id.clone(), (by, now)).is_none_or(|(before, _)| before != by),
        };
        ids.filter(|id| is_free(id)).take(most).collect()
    }

    fn release(&self, by: u64, ids: &HashSet<DeliveryId>) {
        let mut claimed = self.lock();
        for id in ids {
            if claimed.by.get(id).is_some_and(|(holder, _)| *holder == by) {
                claimed.by.remove(id);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Claimed> {
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
        let (manager, claims) = (&self.0.manager, &self.0.claims);
        for attempt in 1..=ATTEMPTS {
            let (endings, owed) = match receipt.ahead.take() {
                Some(ahead) => ahead.read(receipt.in_hand.len()).await,
                None => (manager.endings(), manager.owed(&session).await),
            };
            // One that cannot be read is still owed, and the answer is not to fail for it.
            let owed = owed.inspect_err(|error| {
                tracing::warn!(%session, "what is owed to a session cannot be read: {error}");
            });
            let jobs: Vec<Job> = owed.ok()??.jobs;
            let debts = jobs.iter().filter_map(|job| job.debt.clone());
            let claimed = claims.claim(receipt.claimant, debts, ENDINGS);
            // What was settled after it was read, and before it was claimed, is told already.
            if manager.endings() != endings && attempt < ATTEMPTS {
                claims.release(receipt.claimant, &claimed);
                continue;
            }
            let is_claimed = |job: &Job| job.debt.as_ref().is_some_and(|it| claimed.contains(it));
            let jobs: Vec<Job> = jobs.into_iter().filter(is_claimed).collect();
            receipt.ids.extend(claimed);
            return (!jobs.is_empty()).then(|| message(&jobs));
        }
        None
    }

    /// Returns the receipt of an answer to somebody of a session; of none where what is told
    /// settles nothing.
    pub(super) fn receipt(&self, session: Option<&SessionId>) -> Receipt {
        Receipt {
            told: self.clone(),
            claimant: self.0.claims.claimant(),
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
    /// Returns what was owed, and how many endings there have been where that is still so:
    /// those that the answer is about came since.
    async fn read(self, own: usize) -> (u64, Result<Option<Delivery>, StoreError>) {
        let read = self.read.await.unwrap_or(Err(StoreError::Closed));
        (self.endings + own as u64, read)
    }
}

/// What follows once an answer was handed over. Dropped, nothing does.
pub(super) struct Receipt {
    told: Told,
    /// As whom it claims what it tells.
    claimant: u64,
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
            self.ids.extend(self.told.0.claims.claim(self.claimant, std::iter::once(debt), 1));
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
        self.told.0.claims.release(self.claimant, &self.ids);
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
    fn what_one_claims_others_do_not_until_it_is_released() {
        let claims = Claims::default();
        let ids: Vec<DeliveryId> =
            (1..=5).map(|bits| DeliveryId::new(JobId::from_bits(bits), 1)).collect();
        let (one, other) = (claims.claimant(), claims.claimant());
        let claim = |by, most| claims.claim(by, ids.iter().cloned(), most);
        let mine = claim(one, 2);
        assert_eq!(mine.len(), 2);
        // Those that are taken count for nobody else's most.
        let theirs = claim(other, 2);
        assert_eq!((theirs.len(), mine.is_disjoint(&theirs)), (2, true));
        assert_eq!(claim(one, 9).len(), 1);
        // Nobody releases what is another's.
        claims.release(one, &theirs);
        assert!(claim(one, 9).is_empty());
        claims.release(other, &theirs);
        assert_eq!(claim(one, 9), theirs);
    }

    #[test]
    fn a_claim_that_is_held_for_long_keeps_nobody() {
        let claims = Claims::default();
        let id = DeliveryId::new(JobId::from_bits(1), 1);
        let claim = |by| claims.claim(by, std::iter::once(id.clone()), 1);
        let (one, other) = (claims.claimant(), claims.claimant());
        let mine = claim(one);
        assert!(claim(other).is_empty());
        let long_ago = Instant::now().checked_sub(CLAIM_TIME).unwrap();
        claims.lock().by.insert(id.clone(), (one, long_ago));
        assert_eq!(claim(other), mine);
        // The first to let go does not let go of what is another's by now.
        claims.release(one, &mine);
        assert!(claim(one).is_empty());
    }

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
