//! A store in a SQLite database.
//!
//! One thread writes, and changes that come at the same time share a sync. Reads have
//! connections of their own and wait for nobody. Other processes may read and write
//! the same file.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError, atomic::Ordering::Relaxed},
    thread::JoinHandle,
    time::Duration,
};

use backlot_registry::{BoxFuture, SessionId};
use rusqlite::Connection;
use tokio::sync::{Semaphore, mpsc, oneshot};

use self::{
    fault::Fault,
    file::Reading,
    writer::{Counters, Order, Submitted, Writer},
};
use super::{Census, Change, ChangeError, Changed, Page, Query, Store, StoreError};
use crate::{
    id::{JobId, Prefix},
    job::{Job, Run},
    session::{Entry, Session},
};

mod backup;
mod fault;
mod file;
mod memory;
mod read;
mod record;
mod tables;
mod writer;

pub use self::backup::restore;

/// Jobs in a SQLite database.
///
/// Dropping it makes what waits, and blocks for that; [`SqliteStore::close`] does so
/// without blocking.
pub struct SqliteStore {
    orders: mpsc::UnboundedSender<Order>,
    thread: Arc<Mutex<Option<Thread>>>,
    readers: Arc<Readers>,
    counters: Arc<Counters>,
    /// Why nothing is written, where the store was opened for reading.
    read_only: Option<StoreError>,
}

/// The thread that writes. It ends with what came of its closing.
type Thread = JoinHandle<Result<(), StoreError>>;

/// How a database is used.
#[derive(Clone, Debug)]
pub struct SqliteOptions {
    /// How many reads are under way at a time.
    pub readers: usize,
    /// For how long a lock is waited for that another process has.
    pub busy: Duration,
    /// Up to which size a file is read through when it is opened, in bytes. Damage in a
    /// larger one shows when what is damaged is read.
    pub check_up_to: u64,
    /// The name under which another file system was registered with SQLite, for tests
    /// of what a crash leaves. None for that of the system.
    pub vfs: Option<String>,
}

impl Default for SqliteOptions {
    fn default() -> Self {
        Self { readers: 4, busy: Duration::from_secs(30), check_up_to: 64 << 20, vfs: None }
    }
}

/// What a store has done since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SqliteStats {
    /// Transactions that were written.
    pub batches: u64,
    /// Those of them that waited for the disk.
    pub syncs: u64,
    /// Changes that were made in them, or refused.
    pub changes: u64,
    /// The most changes that shared one.
    pub largest_batch: u64,
    /// Batches that were undone because of one change of them, and made one by one.
    pub undone: u64,
    /// How often the log was copied into the database.
    pub copies: u64,
    /// The longest that the log has been, in bytes. It is begun anew from 16 MiB on
    /// where nobody reads, and from 32 MiB on where many do in turn; only while one read
    /// goes on, such as a backup, does it grow beyond that.
    pub longest_log: u64,
}

impl SqliteStore {
    /// Opens a store, and makes it if there is no file of that name. It blocks, for as
    /// long as it takes to read [`SqliteOptions::check_up_to`].
    ///
    /// # Errors
    ///
    /// When the file is damaged, foreign, empty or newer, it is left as it is.
    pub fn open(path: &Path, options: SqliteOptions) -> Result<Self, StoreError> {
        let file = file_of(path, &options)?;
        let connection = file::open(&file, &options)?;
        let counters = Arc::new(Counters::default());
        let writer = Writer::new(connection, file.clone(), options.busy, counters.clone());
        let (orders, received) = mpsc::unbounded_channel();
        let thread = std::thread::Builder::new()
            .name("jobs-writer".to_owned())
            .spawn(move || writer.run(received))
            .map_err(|error| file::io_error(&file, &error))?;
        Ok(Self {
            orders,
            thread: Arc::new(Mutex::new(Some(thread))),
            readers: Arc::new(Readers::new(file, options, Reading::Shared)),
            counters,
            read_only: None,
        })
    }

    /// Opens a store for reading, beside a process that writes it, or where none does.
    /// It blocks.
    ///
    /// What a process that was killed left in its log is read as well. Where nothing can
    /// be written at all, that takes the `-shm` file that lies beside the log, or that
    /// there is no log.
    ///
    /// # Errors
    ///
    /// When there is no such file, and as [`SqliteStore::open`].
    pub fn open_read_only(path: &Path, options: SqliteOptions) -> Result<Self, StoreError> {
        let file = file_of(path, &options)?;
        let reading = file::open_to_read(&file, &options)?;
        let why = "it was opened for reading alone".to_owned();
        Ok(Self {
            // Nobody receives.
            orders: mpsc::unbounded_channel().0,
            thread: Arc::default(),
            read_only: Some(StoreError::ReadOnly { path: file.clone(), why }),
            readers: Arc::new(Readers::new(file, options, reading)),
            counters: Arc::default(),
        })
    }

    /// Writes all there is at this moment into a new file, which is complete by itself.
    /// Changes go on meanwhile.
    ///
    /// # Errors
    ///
    /// When there is a file of that name, and when the copy cannot be written or is not
    /// whole; there is none then.
    pub async fn backup_to(&self, path: &Path) -> Result<(), StoreError> {
        let to = backup::absolute(path)?;
        let readers = self.readers.clone();
        // It takes long, so it is no part of what reads share.
        let copy = move || {
            let from = readers.connect()?;
            backup::copy(&from, &readers.file, &to)
        };
        blocking(copy).await?
    }

    /// Makes what waits, copies the log into the database, and lets go of it. Whatever
    /// is asked of it later is refused as [`StoreError::Closed`].
    ///
    /// # Errors
    ///
    /// When the log cannot be copied. Nothing is lost then; it is copied next time.
    pub async fn close(&self) -> Result<(), StoreError> {
        self.readers.close();
        // The writer may be gone already.
        let _ = self.orders.send(Order::Close);
        let thread = self.thread.clone();
        blocking(move || join(&thread)).await?
    }

    /// Returns what it has done since it was opened.
    pub fn stats(&self) -> SqliteStats {
        let Counters { batches, syncs, changes, largest_batch, undone, copies, log_pages } =
            &*self.counters;
        SqliteStats {
            batches: batches.load(Relaxed),
            syncs: syncs.load(Relaxed),
            changes: changes.load(Relaxed),
            largest_batch: largest_batch.load(Relaxed),
            undone: undone.load(Relaxed),
            copies: copies.load(Relaxed),
            longest_log: log_pages.load(Relaxed) * (PAGE + FRAME_HEADER),
        }
    }

    fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Connection) -> Result<T, Fault> + Send + 'static,
    ) -> BoxFuture<'_, Result<T, StoreError>> {
        Box::pin(self.readers.clone().read(read))
    }
}

/// The size of a page that SQLite chooses for a new database.
const PAGE: u64 = 4_096;

/// What the log has of each page beside it.
const FRAME_HEADER: u64 = 24;

impl Drop for SqliteStore {
    fn drop(&mut self) {
        self.readers.close();
        let _ = self.orders.send(Order::Close);
        // Nobody is left to hear of an error, and nothing that was answered is lost.
        if let Err(error) = join(&self.thread) {
            tracing::warn!(%error, "the store of jobs was not closed cleanly");
        }
    }
}

impl std::fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqliteStore").field("file", &self.readers.file).finish_non_exhaustive()
    }
}

fn file_of(path: &Path, options: &SqliteOptions) -> Result<PathBuf, StoreError> {
    // A relative path that begins with `file:` would be taken for an address.
    if options.vfs.is_some() { Ok(path.to_owned()) } else { backup::absolute(path) }
}

fn join(thread: &Mutex<Option<Thread>>) -> Result<(), StoreError> {
    let thread = thread.lock().unwrap_or_else(PoisonError::into_inner).take();
    thread.map_or(Ok(()), |thread| thread.join().unwrap_or(Err(StoreError::Closed)))
}

/// Does what blocks where it disturbs nobody.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, StoreError> {
    // It fails only where the runtime ends, or what it does panics.
    tokio::task::spawn_blocking(work).await.map_err(|_| StoreError::Closed)
}

/// The connections that read.
struct Readers {
    file: PathBuf,
    options: SqliteOptions,
    reading: Reading,
    idle: Mutex<Vec<Connection>>,
    free: Arc<Semaphore>,
}

impl Readers {
    fn new(file: PathBuf, options: SqliteOptions, reading: Reading) -> Self {
        let free = Arc::new(Semaphore::new(options.readers.max(1)));
        Self { file, options, reading, idle: Mutex::default(), free }
    }

    fn connect(&self) -> Result<Connection, StoreError> {
        self.reading.connect(&self.file, &self.options)
    }

    async fn read<T: Send + 'static>(
        self: Arc<Self>,
        read: impl FnOnce(&Connection) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, StoreError> {
        let permit = self.free.clone().acquire_owned().await.map_err(|_| StoreError::Closed)?;
        let work = move || {
            // The others are with those that have a permit.
            let idle = self.idle().pop();
            let connection = idle.map_or_else(|| self.connect(), Ok)?;
            let found = read(&connection).map_err(|fault| fault.at(&self.file));
            self.put_back(connection);
            drop(permit);
            found
        };
        blocking(work).await?
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put_back(&self, connection: Connection) {
        let mut idle = self.idle();
        if !self.free.is_closed() {
            idle.push(connection);
        }
    }

    fn close(&self) {
        let mut idle = self.idle();
        self.free.close();
        idle.clear();
    }
}

impl Store for SqliteStore {
    fn change(&self, change: Change) -> BoxFuture<'_, Result<Changed, ChangeError>> {
        let (answer, answered) = oneshot::channel();
        let change = Box::new(change);
        // It is handed over before anybody awaits it, so that nobody can take it back. A
        // bound would only have callers wait elsewhere, and lose what they wait with.
        let sent = match &self.read_only {
            Some(error) => Err(error.clone()),
            None => self
                .orders
                .send(Order::Change(Submitted { change, answer }))
                .map_err(|_| StoreError::Closed),
        };
        Box::pin(async {
            sent?;
            answered.await.unwrap_or_else(|_| Err(StoreError::Closed.into()))
        })
    }

    fn job(&self, id: JobId) -> BoxFuture<'_, Result<Option<Job>, StoreError>> {
        self.read(move |connection| read::job(connection, id))
    }

    fn job_of(
        &self,
        id: JobId,
        session: SessionId,
    ) -> BoxFuture<'_, Result<Option<Job>, StoreError>> {
        self.read(move |connection| read::job_of(connection, id, &session))
    }

    fn find(&self, prefix: Prefix) -> BoxFuture<'_, Result<Vec<JobId>, StoreError>> {
        self.read(move |connection| read::find(connection, prefix))
    }

    fn list(&self, query: Query) -> BoxFuture<'_, Result<Page, StoreError>> {
        self.read(move |connection| read::list(connection, &query))
    }

    fn past_runs(&self, id: JobId) -> BoxFuture<'_, Result<Vec<Run>, StoreError>> {
        self.read(move |connection| tables::past_runs(connection, id))
    }

    fn owed(
        &self,
        session: Option<SessionId>,
        after: Option<(u64, JobId)>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<Job>, StoreError>> {
        self.read(move |connection| read::owed(connection, session.as_ref(), after, limit))
    }

    fn calls(
        &self,
        except: Vec<String>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<Job>, StoreError>> {
        self.read(move |connection| read::calls(connection, &except, limit))
    }

    fn session(&self, id: SessionId) -> BoxFuture<'_, Result<Option<Session>, StoreError>> {
        self.read(move |connection| tables::session(connection, &id))
    }

    fn entries(
        &self,
        session: SessionId,
        after: u64,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<(u64, Entry)>, StoreError>> {
        self.read(move |connection| read::entries(connection, &session, after, limit))
    }

    fn census(&self) -> BoxFuture<'_, Result<Census, StoreError>> {
        self.read(read::census)
    }
}
