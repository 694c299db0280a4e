//! A SQLite store for tests whose time is paused.
//!
//! Such time moves on whenever all that a test does waits for something else, as it does
//! for the threads of a database. Here nobody waits: a call blocks, and is answered when
//! it returns. The file is on a [`Disk`], so that a sync costs nothing and a crash is had
//! for the asking.

use std::{
    future::ready,
    sync::{Arc, LazyLock, Mutex, PoisonError},
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
};

use backlot_jobs::{
    Census, Change, ChangeError, Changed, Entry, Job, JobId, Page, Prefix, Query, Run, Session,
    SqliteOptions, SqliteStore, Store, StoreError,
};
use backlot_registry::{BoxFuture, SessionId};
use futures::FutureExt as _;
use tokio::{runtime::Runtime, task::unconstrained};

use crate::disk::Disk;

/// Has the threads on which databases are read.
static ASIDE: LazyLock<Runtime> = LazyLock::new(|| {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap()
});

/// A store in a SQLite database on a disk of its own.
pub(crate) struct Bridge {
    disk: Disk,
    store: Mutex<Arc<SqliteStore>>,
}

impl Bridge {
    pub(crate) fn new() -> Arc<Self> {
        let disk = Disk::new();
        let store = Mutex::new(open(&disk));
        Arc::new(Self { disk, store })
    }

    /// Loses the power, and opens what is left. The seed tells what has remained of what
    /// was not synced; nothing where it is `None`.
    pub(crate) fn crash(&self, seed: Option<u64>) {
        match seed {
            None => self.disk.crash(),
            Some(seed) => self.disk.crash_keeping(seed),
        }
        let mut store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        *store = open(&self.disk);
    }

    /// Returns how often what is written was put on the disk.
    pub(crate) fn syncs(&self) -> u64 {
        self.disk.syncs()
    }

    fn store(&self) -> Arc<SqliteStore> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn open(disk: &Disk) -> Arc<SqliteStore> {
    let vfs = Some(disk.vfs().to_owned());
    let options = SqliteOptions { vfs, readers: 1, ..SqliteOptions::default() };
    Arc::new(SqliteStore::open("/data/jobs.db".as_ref(), options).unwrap())
}

/// Waits on this thread for a call, and returns its answer.
fn done<T: Send + 'static>(call: BoxFuture<'_, T>) -> BoxFuture<'static, T> {
    let _aside = ASIDE.enter();
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    // What a task may do before others have their turn is no matter to who blocks them.
    let mut call = unconstrained(call);
    loop {
        match call.poll_unpin(&mut context) {
            Poll::Ready(answer) => return Box::pin(ready(answer)),
            Poll::Pending => thread::park(),
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl Store for Bridge {
    fn change(&self, change: Change) -> BoxFuture<'_, Result<Changed, ChangeError>> {
        done(self.store().change(change))
    }

    fn job(&self, id: JobId) -> BoxFuture<'_, Result<Option<Job>, StoreError>> {
        done(self.store().job(id))
    }

    fn job_of(
        &self,
        id: JobId,
        session: SessionId,
    ) -> BoxFuture<'_, Result<Option<Job>, StoreError>> {
        done(self.store().job_of(id, session))
    }

    fn find(&self, prefix: Prefix) -> BoxFuture<'_, Result<Vec<JobId>, StoreError>> {
        done(self.store().find(prefix))
    }

    fn list(&self, query: Query) -> BoxFuture<'_, Result<Page, StoreError>> {
        done(self.store().list(query))
    }

    fn past_runs(&self, id: JobId) -> BoxFuture<'_, Result<Vec<Run>, StoreError>> {
        done(self.store().past_runs(id))
    }

    fn owed(
        &self,
        session: Option<SessionId>,
        after: Option<(u64, JobId)>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<Job>, StoreError>> {
        done(self.store().owed(session, after, limit))
    }

    fn calls(
        &self,
        except: Vec<String>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<Job>, StoreError>> {
        done(self.store().calls(except, limit))
    }

    fn session(&self, id: SessionId) -> BoxFuture<'_, Result<Option<Session>, StoreError>> {
        done(self.store().session(id))
    }

    fn entries(
        &self,
        session: SessionId,
        after: u64,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<(u64, Entry)>, StoreError>> {
        done(self.store().entries(session, after, limit))
    }

    fn census(&self) -> BoxFuture<'_, Result<Census, StoreError>> {
        done(self.store().census())
    }
}
