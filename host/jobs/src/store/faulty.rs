//! A store that fails and stalls on demand: for tests of whatever stands on a store.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use backlot_registry::{BoxFuture, SessionId};
use tokio::sync::watch;

use super::{Census, Change, ChangeError, Changed, Page, Query, Store, StoreError};
use crate::{
    id::{JobId, Prefix},
    job::{Job, Run},
    session::{Entry, Session},
};

/// A store around another, whose writes fail or stall where a test says so. Clones are
/// one store.
///
/// Writes are counted from where the fault is asked for: the first is the next. Each
/// fault is as the contract of [`Store::change`] allows: what fails has changed nothing,
/// and what stalls is written even if nobody waits for it any more.
#[derive(Clone)]
pub struct FaultyStore {
    store: Arc<dyn Store>,
    state: Arc<Mutex<State>>,
    /// How often stalled writes were let go.
    released: Arc<watch::Sender<u64>>,
}

#[derive(Default)]
struct State {
    reads: u64,
    writes: u64,
    failed: u64,
    stalled: usize,
    faults: Vec<Fault>,
    /// The reads that stall.
    slow_reads: Vec<u64>,
    /// Why all reads fail, if they do.
    unreadable: Option<StoreError>,
}

struct Fault {
    /// The first write that it strikes, and the last.
    from: u64,
    to: u64,
    what: What,
}

#[derive(Clone)]
enum What {
    Fail(StoreError),
    /// Before anything is written.
    Stall,
    /// After it was written, and before that is said.
    StallAnswer,
}

impl FaultyStore {
    /// Returns a store that is as good as that one until it is told otherwise.
    pub fn new(store: Arc<dyn Store>) -> Self {
        let released = Arc::new(watch::Sender::new(0));
        Self { store, state: Arc::default(), released }
    }

    /// Fails the `n`th write.
    pub fn fail_nth(&self, n: u64, error: StoreError) {
        self.strike(n, n, What::Fail(error));
    }

    /// Fails all writes from the `n`th on, until the store is healed.
    pub fn fail_from(&self, n: u64, error: StoreError) {
        self.strike(n, u64::MAX, What::Fail(error));
    }

    /// Stalls the `n`th write before it changes anything, until stalled writes are
    /// released.
    pub fn stall_nth(&self, n: u64) {
        self.strike(n, n, What::Stall);
    }

    /// Stalls all writes from the `n`th on, until the store is healed.
    pub fn stall_from(&self, n: u64) {
        self.strike(n, u64::MAX, What::Stall);
    }

    /// Makes the `n`th write, and says so once stalled writes are released.
    pub fn stall_answer(&self, n: u64) {
        self.strike(n, n, What::StallAnswer);
    }

    /// Fails all reads, until the store is healed.
    pub fn fail_reads(&self, error: StoreError) {
        self.state().unreadable = Some(error);
    }

    /// Makes the `n`th read, and says what it found once what stalls is released; by then
    /// it may be old.
    pub fn stall_read(&self, n: u64) {
        let mut state = self.state();
        let read = state.reads.saturating_add(n);
        state.slow_reads.push(read);
    }

    /// Lets go on what has stalled.
    pub fn release(&self) {
        self.released.send_modify(|times| *times += 1);
    }

    /// Takes every fault back, and lets go on what has stalled.
    pub fn heal(&self) {
        let mut state = self.state();
        state.faults.clear();
        state.slow_reads.clear();
        state.unreadable = None;
        drop(state);
        self.release();
    }

    /// Returns how many reads there were.
    pub fn reads(&self) -> u64 {
        self.state().reads
    }

    /// Returns how many writes were begun, those that failed included.
    pub fn writes(&self) -> u64 {
        self.state().writes
    }

    /// Returns how many writes have failed.
    pub fn failed(&self) -> u64 {
        self.state().failed
    }

    /// Returns how many writes and reads stall now.
    pub fn stalled(&self) -> usize {
        self.state().stalled
    }

    fn strike(&self, from: u64, to: u64, what: What) {
        let mut state = self.state();
        let (from, to) = (state.writes.saturating_add(from), state.writes.saturating_add(to));
        state.faults.push(Fault { from, to, what });
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it holds the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read<'a, T: Send + 'a>(
        &'a self,
        read: impl FnOnce(&'a dyn Store) -> BoxFuture<'a, Result<T, StoreError>>,
    ) -> BoxFuture<'a, Result<T, StoreError>> {
        let mut state = self.state();
        state.reads += 1;
        if let Some(error) = state.unreadable.clone() {
            return Box::pin(async { Err(error) });
        }
        let is_slow = state.slow_reads.contains(&state.reads);
        state.stalled += usize::from(is_slow);
        drop(state);
        let read = read(&*self.store);
        if !is_slow {
            return read;
        }
        let mut released = self.released.subscribe();
        Box::pin(async move {
            let found = read.await;
            // The sender is as old as the store.
            let _ = released.changed().await;
            self.state().stalled -= 1;
            found
        })
    }

    /// Makes a change that stalls before or after it, on a task of its own: the change is
    /// made also where whoever wants it has gone.
    fn stall(
        &self,
        change: Change,
        is_after: bool,
    ) -> BoxFuture<'static, Result<Changed, ChangeError>> {
        let (this, mut released) = (self.clone(), self.released.subscribe());
        self.state().stalled += 1;
        let changed = tokio::spawn(async move {
            let written = match is_after {
                true => Some(this.store.change(change.clone()).await),
                false => None,
            };
            // The sender is as old as the store.
            let _ = released.changed().await;
            this.state().stalled -= 1;
            match written {
                Some(written) => written,
                None => this.store.change(change).await,
            }
        });
        Box::pin(async { changed.await.unwrap_or(Err(StoreError::Closed.into())) })
    }
}

impl State {
    /// Counts one more write, and returns what strikes it.
    fn strikes(&mut self) -> Option<What> {
        self.writes += 1;
        let strikes = |fault: &&Fault| (fault.from..=fault.to).contains(&self.writes);
        let what = self.faults.iter().find(strikes).map(|fault| fault.what.clone());
        if matches!(what, Some(What::Fail(_))) {
            self.failed += 1;
        }
        what
    }
}

impl fmt::Debug for FaultyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FaultyStore").finish_non_exhaustive()
    }
}

impl Store for FaultyStore {
    fn change(&self, change: Change) -> BoxFuture<'_, Result<Changed, ChangeError>> {
        let what = self.state().strikes();
        match what {
            None => self.store.change(change),
            Some(What::Fail(error)) => Box::pin(async { Err(error.into()) }),
            Some(What::Stall) => self.stall(change, false),
            Some(What::StallAnswer) => self.stall(change, true),
        }
    }

    fn job(&self, id: JobId) -> BoxFuture<'_, Result<Option<Job>, StoreError>> {
        self.read(move |store| store.job(id))
    }

    fn job_of(
        &self,
        id: JobId,
        session: SessionId,
    ) -> BoxFuture<'_, Result<Option<Job>, StoreError>> {
        self.read(move |store| store.job_of(id, session))
    }

    fn find(&self, prefix: Prefix) -> BoxFuture<'_, Result<Vec<JobId>, StoreError>> {
        self.read(move |store| store.find(prefix))
    }

    fn list(&self, query: Query) -> BoxFuture<'_, Result<Page, StoreError>> {
        self.read(move |store| store.list(query))
    }

    fn past_runs(&self, id: JobId) -> BoxFuture<'_, Result<Vec<Run>, StoreError>> {
        self.read(move |store| store.past_runs(id))
    }

    fn owed(
        &self,
        session: Option<SessionId>,
        after: Option<(u64, JobId)>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<Job>, StoreError>> {
        self.read(move |store| store.owed(session, after, limit))
    }

    fn calls(
        &self,
        except: Vec<String>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<Job>, StoreError>> {
        self.read(move |store| store.calls(except, limit))
    }

    fn session(&self, id: SessionId) -> BoxFuture<'_, Result<Option<Session>, StoreError>> {
        self.read(move |store| store.session(id))
    }

    fn entries(
        &self,
        session: SessionId,
        after: u64,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<(u64, Entry)>, StoreError>> {
        self.read(move |store| store.entries(session, after, limit))
    }

    fn census(&self) -> BoxFuture<'_, Result<Census, StoreError>> {
        self.read(move |store| store.census())
    }
}
