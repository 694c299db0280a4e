//! The one thread that writes.
//!
//! It takes all changes that wait, makes them in one transaction, syncs once where any of
//! them has to last, and answers. While it syncs, the next ones queue up; so the busier it
//! is, the more changes share a sync, and nobody waits for the sake of company.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use rusqlite::{Connection, config::DbConfig};
use tokio::sync::{mpsc, oneshot};

use super::{fault::Fault, memory::Memory, tables::Tables};
use crate::{
    job::Event,
    store::{Change, ChangeError, Changed, Refused, StoreError},
};

/// The most changes that share a sync.
const BATCH: usize = 256;

/// From how much text on no change is added to those that share a sync, in bytes.
const BATCH_TEXT: usize = 4 << 20;

/// After how many changes the length of the log is looked at, or as much text: a change
/// writes a few pages.
const LOG_WATCHED: u64 = 256;

/// From how many pages on the log is copied into the database: 16 MiB.
const LOG_COPIED: u64 = 4_096;

/// For how long whoever still reads from the log is waited for, once it is twice as
/// long, so that it can be begun anew. Then the log grows
/// on, and they are waited for again when it has grown by as much: a backup reads for
/// long.
const LOG_PATIENCE: Duration = Duration::from_millis(200);

/// How much of the log is kept once it is copied, in bytes.
pub(super) const LOG_KEPT: i64 = 64 << 20;

/// What the writer is asked for.
pub(super) enum Order {
    /// To make a change.
    Change(Submitted),
    /// To make what waits, and end.
    Close,
}

/// A change and who waits for it.
pub(super) struct Submitted {
    pub(super) change: Box<Change>,
    pub(super) answer: oneshot::Sender<Result<Changed, ChangeError>>,
}

/// What the writer has done.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) batches: AtomicU64,
    pub(super) syncs: AtomicU64,
    pub(super) changes: AtomicU64,
    pub(super) largest_batch: AtomicU64,
    pub(super) undone: AtomicU64,
    pub(super) copies: AtomicU64,
    pub(super) log_pages: AtomicU64,
}

pub(super) struct Writer {
    connection: Connection,
    file: PathBuf,
    /// For how long a lock is waited for that another process has.
    patience: Duration,
    memory: Memory,
    /// Whether what is committed is on the disk then.
    is_synced: bool,
    /// When another process has last written, as SQLite tells it.
    others: i64,
    counters: Arc<Counters>,
    /// What was written since the length of the log was looked at, in changes.
    unwatched: u64,
    /// From how many pages on the log is copied.
    log_copied: u64,
    /// From how many pages on it is copied next.
    copied_from: u64,
    /// From how many pages on its readers are awaited next.
    awaited_from: u64,
    /// Why nothing is written any more.
    broken: Option<StoreError>,
}

/// Why a batch came to nothing.
enum Failed {
    /// It did not begin, nor would another.
    Begin(StoreError),
    /// One of it failed, and all was undone.
    Undone(StoreError),
}

impl Writer {
    pub(super) fn new(
        connection: Connection,
        file: PathBuf,
        patience: Duration,
        counters: Arc<Counters>,
    ) -> Self {
        Self {
            connection,
            file,
            patience,
            memory: Memory::default(),
            is_synced: true,
            others: 0,
            counters,
            unwatched: 0,
            log_copied: LOG_COPIED,
            copied_from: LOG_COPIED,
            awaited_from: 2 * LOG_COPIED,
            broken: None,
        }
    }

    /// Makes changes until it is told to close, or nobody is left who could.
    pub(super) fn run(
        mut self,
        mut orders: mpsc::UnboundedReceiver<Order>,
    ) -> Result<(), StoreError> {
        let mut batch = Vec::new();
        while let Some(order) = orders.blocking_recv() {
            let mut text = 0;
            let mut next = Some(order);
            while let Some(order) = next {
                match order {
                    // What was sent before is still there to be received.
                    Order::Close => orders.close(),
                    Order::Change(submitted) => {
                        text += text_of(&submitted.change);
                        batch.push(submitted);
                    }
                }
                let is_full = batch.len() >= BATCH || text >= BATCH_TEXT;
                next = if is_full { None } else { orders.try_recv().ok() };
            }
            self.make(&mut batch);
        }
        self.close()
    }

    /// Makes the changes of a batch, and answers each.
    fn make(&mut self, batch: &mut Vec<Submitted>) {
        if batch.is_empty() {
            return;
        }
        let changes: Vec<&Change> = batch.iter().map(|submitted| &*submitted.change).collect();
        let answers = match self.together(&changes) {
            Ok(changed) => changed.into_iter().map(|it| it.map_err(ChangeError::from)).collect(),
            Err(Failed::Begin(error)) => {
                changes.iter().map(|_| Err(error.clone().into())).collect()
            }
            Err(Failed::Undone(error)) => {
                let is_full = matches!(error, StoreError::Full { .. });
                if is_full {
                    // A log that is begun anew need not grow.
                    self.begin_log_anew();
                }
                if changes.len() == 1 && !is_full {
                    vec![Err(error.into())]
                } else {
                    self.counters.undone.fetch_add(1, Relaxed);
                    // One of them is at fault, or there is room for some and not for all.
                    changes.iter().map(|change| self.alone(change)).collect::<Vec<_>>()
                }
            }
        };
        self.unwatched += changes.iter().map(|change| weight_of(change)).sum::<u64>();
        for (submitted, answer) in batch.drain(..).zip(answers) {
            // Whoever asked may be gone; the change stays.
            let _ = submitted.answer.send(answer);
        }
        self.copy_log();
    }

    fn alone(&mut self, change: &Change) -> Result<Changed, ChangeError> {
        match self.together(&[change]) {
            Ok(mut changed) => match changed.pop() {
                Some(changed) => changed.map_err(ChangeError::from),
                None => Ok(Changed::Nothing),
            },
            Err(Failed::Begin(error) | Failed::Undone(error)) => Err(error.into()),
        }
    }

    /// Makes changes in one transaction. What is refused of it has changed nothing.
    fn together(&mut self, changes: &[&Change]) -> Result<Vec<Result<Changed, Refused>>, Failed> {
        if let Some(error) = &self.broken {
            return Err(Failed::Begin(error.clone()));
        }
        let begun = self.set_synced(changes.iter().any(|change| change.need_last()));
        begun.and_then(|()| self.begin()).map_err(|fault| Failed::Begin(self.at_fault(&fault)))?;
        match self.apply(changes) {
            Ok(changed) => {
                self.counters.batches.fetch_add(1, Relaxed);
                self.counters.syncs.fetch_add(u64::from(self.is_synced), Relaxed);
                self.counters.changes.fetch_add(changes.len() as u64, Relaxed);
                self.counters.largest_batch.fetch_max(changes.len() as u64, Relaxed);
                Ok(changed)
            }
            Err(error) => {
                self.memory.forget();
                // A full disk has undone it already.
                if !self.connection.is_autocommit()
                    && let Err(error) = self.connection.execute_batch("ROLLBACK")
                {
                    // What would be written now, nobody could tell.
                    self.broken = Some(Fault::from(error).at(&self.file));
                }
                Err(Failed::Undone(error))
            }
        }
    }

    fn apply(&mut self, changes: &[&Change]) -> Result<Vec<Result<Changed, Refused>>, StoreError> {
        self.heed_others().map_err(|fault| self.at_fault(&fault))?;
        let mut tables = Tables {
            connection: &self.connection,
            memory: &mut self.memory,
            file: &self.file,
            is_damaged: false,
        };
        let changed = each(changes, &mut tables);
        let is_damaged = tables.is_damaged;
        let committed = changed.and_then(|changed| {
            let commit = || self.connection.prepare_cached("COMMIT")?.execute([]).map(drop);
            match commit() {
                Ok(()) => Ok(changed),
                Err(error) => Err(Fault::from(error).at(&self.file)),
            }
        });
        if let Err(error) = &committed
            && is_damaged
        {
            self.broken = Some(error.clone());
        }
        committed
    }

    /// Says whether what is committed from now on is to be on the disk then, with all that was
    /// committed before. It cannot be said within a transaction.
    fn set_synced(&mut self, is_synced: bool) -> Result<(), Fault> {
        if self.is_synced != is_synced {
            let level = if is_synced { "FULL" } else { "NORMAL" };
            self.connection.pragma_update(None, "synchronous", level)?;
            self.is_synced = is_synced;
        }
        Ok(())
    }

    /// Begins a transaction that writes, and waits for others that do.
    fn begin(&mut self) -> Result<(), Fault> {
        let begun = Instant::now();
        loop {
            match self.connection.prepare_cached("BEGIN IMMEDIATE")?.execute([]) {
                Ok(_) => return Ok(()),
                Err(error) => {
                    let fault = Fault::from(error);
                    if !fault.is_busy() || begun.elapsed() >= self.patience {
                        return Err(fault);
                    }
                    // There are locks that SQLite itself does not wait for.
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        }
    }

    /// Forgets what is remembered when another process has written since.
    fn heed_others(&mut self) -> Result<(), Fault> {
        let mut statement = self.connection.prepare_cached("PRAGMA data_version")?;
        let others = statement.query_row([], |row| row.get(0))?;
        if std::mem::replace(&mut self.others, others) != others {
            self.memory.forget();
        }
        Ok(())
    }

    fn at_fault(&mut self, fault: &Fault) -> StoreError {
        let error = fault.at(&self.file);
        if fault.is_of_file() {
            self.broken = Some(error.clone());
        }
        error
    }

    /// Copies the log into the database when it is long, so that it can be begun anew.
    fn copy_log(&mut self) {
        if self.unwatched < LOG_WATCHED {
            return;
        }
        self.unwatched = 0;
        // A copy that is not made now is made later, and a damaged file shows elsewhere.
        let Ok(pages) = self.checkpoint("NOOP") else { return };
        self.counters.log_pages.fetch_max(pages, Relaxed);
        if pages < self.log_copied {
            (self.copied_from, self.awaited_from) = (self.log_copied, 2 * self.log_copied);
        }
        if pages < self.copied_from {
            return;
        }
        self.counters.copies.fetch_add(1, Relaxed);
        if pages >= self.awaited_from {
            self.awaited_from = pages + 2 * self.log_copied;
            self.begin_log_anew();
        } else {
            let _ = self.checkpoint("PASSIVE");
        }
        // Where somebody reads from it, it goes on.
        self.copied_from = pages + self.log_copied / 4;
    }

    /// Copies all of the log into the database, and has what is written next begin it
    /// anew, unless somebody reads from it for long.
    fn begin_log_anew(&self) {
        let _ = self.connection.busy_timeout(LOG_PATIENCE);
        let _ = self.checkpoint("RESTART");
        let _ = self.connection.busy_timeout(self.patience);
    }

    /// Returns how many pages the log has.
    fn checkpoint(&self, how: &str) -> Result<u64, rusqlite::Error> {
        let sql = format!("PRAGMA wal_checkpoint({how})");
        let mut statement = self.connection.prepare_cached(&sql)?;
        let pages = statement.query_row([], |row| row.get::<_, i64>(1))?;
        Ok(u64::try_from(pages).unwrap_or_default())
    }

    /// Copies all of the log into the database, so that one file is all there is.
    fn close(self) -> Result<(), StoreError> {
        if let Some(error) = self.broken {
            return Err(error);
        }
        let tell = |error: rusqlite::Error| Fault::from(error).at(&self.file);
        self.connection.busy_timeout(LOG_PATIENCE).map_err(tell)?;
        self.checkpoint("TRUNCATE").map_err(tell)?;
        self.connection
            .set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, false)
            .map_err(tell)?;
        self.connection.close().map_err(|(_, error)| tell(error))
    }
}

fn each(
    changes: &[&Change],
    tables: &mut Tables<'_>,
) -> Result<Vec<Result<Changed, Refused>>, StoreError> {
    let mut changed = Vec::with_capacity(changes.len());
    for change in changes {
        changed.push(match change.apply(tables) {
            Ok(changed) => Ok(changed),
            Err(ChangeError::Refused(refused)) => Err(refused),
            Err(ChangeError::Store(error)) => return Err(error),
        });
    }
    tables.finish()?;
    Ok(changed)
}

/// Returns how many changes of the usual size a change is like.
fn weight_of(change: &Change) -> u64 {
    match change {
        Change::Delete { .. } | Change::Remove { .. } | Change::Prune { .. } => LOG_WATCHED,
        change => 1 + text_of(change) as u64 / (16 << 10),
    }
}

/// Returns how much of a change may be long, in bytes.
fn text_of(change: &Change) -> usize {
    let length = |text: &Option<String>| text.as_ref().map_or(0, String::len);
    match change {
        Change::Spawn(spawned) | Change::Fire { spawned, .. } => {
            spawned.spec.input.len() + length(&spawned.state) + length(&spawned.spec.inherit)
        }
        Change::Happen { event, .. } => match event {
            Event::Finished { report, .. } => length(&report.result) + length(&report.state),
            Event::Advanced { step, .. } => step.input.len() + length(&step.state),
            Event::Rewritten { state, .. } => state.len(),
            Event::Answered { answer, .. } => answer.len(),
            _ => 0,
        },
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use backlot_registry::Kind;

    use super::{
        super::{SqliteOptions, file},
        *,
    };
    use crate::{
        id::{JobId, RunId},
        job::{Ending, Report, Spec, Status},
        session::{Body, Entry, Session},
        store::{Limits, Spawned},
    };

    const LIMITS: Limits =
        Limits { per_session: 100, total: 100, depth: 1, queued: 0, ..Limits::NONE };

    fn spawning(id: u128, input: String) -> Change {
        let spec = Spec {
            kind: Kind::new("grep").unwrap(),
            input,
            label: "look".into(),
            parent: "chat".into(),
            incarnation: 0,
            grant: None,
            inherit: None,
            parent_run: None,
            entry: None,
            key: None,
            max_attempts: 3,
            retry: None,
            pinned: None,
            schedule: None,
            announced: true,
            webhook: None,
            trace: None,
        };
        Change::Spawn(Box::new(Spawned {
            id: JobId::from_bits(id),
            run: RunId::from_bits(id),
            spec,
            state: None,
            due_ms: 0,
            queue: false,
            limits: LIMITS,
            now_ms: 1,
        }))
    }

    fn ending(id: u128) -> Change {
        let report = Report {
            ending: Ending::Completed,
            result: Some("done".into()),
            detail: None,
            state: None,
            again_ms: None,
            told: false,
        };
        let event = Event::Finished { run: None, report };
        Change::Happen { job: JobId::from_bits(id), event, limits: LIMITS, now_ms: 2 }
    }

    /// A store that may have so many pages more than it has, as if its disk had no room.
    fn writer(file: &std::path::Path) -> Writer {
        let connection = file::open(file, &SqliteOptions::default()).unwrap();
        Writer::new(connection, file.to_owned(), Duration::ZERO, Arc::default())
    }

    fn limit(writer: &Writer, more: i64) {
        let pages: i64 =
            writer.connection.pragma_query_value(None, "page_count", |row| row.get(0)).unwrap();
        let set = |row: &rusqlite::Row<'_>| row.get::<_, i64>(0);
        writer
            .connection
            .pragma_update_and_check(None, "max_page_count", pages + more, set)
            .unwrap();
    }

    fn make(writer: &mut Writer, changes: Vec<Change>) -> Vec<Result<Changed, ChangeError>> {
        let (mut batch, mut answers) = (Vec::new(), Vec::new());
        for change in changes {
            let (answer, answered) = oneshot::channel();
            batch.push(Submitted { change: Box::new(change), answer });
            answers.push(answered);
        }
        writer.make(&mut batch);
        answers.into_iter().map(|mut answer| answer.try_recv().unwrap()).collect()
    }

    #[test]
    fn c67_a_full_disk_refuses_what_is_new_and_loses_no_ending() {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = writer(&folder.path().join("jobs.db"));
        let session = Session { id: "chat".into(), incarnation: 1, created_ms: 1 };
        let mut changes = vec![Change::Open { session, limit: usize::MAX }];
        changes.extend((1..=3).map(|id| spawning(id, String::new())));
        assert!(make(&mut writer, changes).iter().all(Result::is_ok));
        limit(&writer, 3);
        let large = || "x".repeat(100_000);
        let changes = vec![ending(1), spawning(4, large()), ending(2), spawning(5, large())];
        let mut answers = make(&mut writer, changes);
        for answer in [answers.remove(3), answers.remove(1)] {
            let error = answer.unwrap_err();
            assert!(matches!(error, ChangeError::Store(StoreError::Full { .. })), "{error:?}");
            assert!(error.to_string().contains("no space is left for"), "{error}");
        }
        for answer in answers {
            let Changed::Job { job, .. } = answer.unwrap() else { panic!("no job") };
            assert_eq!(job.status(), Status::Completed);
        }
        // Once there is room again, all goes on.
        limit(&writer, 1_000);
        let changes = vec![spawning(4, large()), ending(4), ending(3)];
        assert!(make(&mut writer, changes).iter().all(Result::is_ok));
        let ended = "SELECT count(*) FROM job WHERE ended_ms IS NOT NULL";
        let count = |sql| writer.connection.query_row(sql, [], |row| row.get::<_, i64>(0));
        assert_eq!(count(ended).unwrap(), 4);
        assert_eq!(count("SELECT ended FROM store").unwrap(), 4);
        writer.close().unwrap();
    }

    /// Makes the log longer by so many pages, and lets the writer look at it.
    fn lengthen(writer: &mut Writer, pages: u64) {
        let session = Session { id: "chat".into(), incarnation: 1, created_ms: 1 };
        let body = Body::Text("x".repeat(4_096 * 4));
        for _ in 0..pages / 4 {
            let id = JobId::random().unwrap().to_string();
            let entry = Entry { id, target: None, body: body.clone(), at_ms: 1 };
            let session_id = session.id.clone();
            writer.unwatched = LOG_WATCHED;
            let changes = vec![
                Change::Open { session: session.clone(), limit: usize::MAX },
                Change::Append { session: session_id, entry },
            ];
            assert!(make(writer, changes).iter().all(Result::is_ok));
        }
    }

    #[test]
    fn the_log_is_begun_anew_although_others_read() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("jobs.db");
        let mut writer = writer(&file);
        writer.log_copied = 64;
        let longest = |writer: &Writer| writer.counters.log_pages.swap(0, Relaxed);
        lengthen(&mut writer, 400);
        let alone = longest(&writer);
        assert!((64..96).contains(&alone), "{alone} pages");
        // One that reads on has it grow.
        let reader = Connection::open(&file).unwrap();
        reader.execute_batch("BEGIN; SELECT count(*) FROM entry").unwrap();
        lengthen(&mut writer, 400);
        let grown = longest(&writer);
        assert!(grown > 400, "{grown} pages");
        drop(reader);
        lengthen(&mut writer, 200);
        longest(&writer);
        // Many that read in turn, so that there is always one, do not.
        let (is_over, counters) = (Arc::new(AtomicBool::new(false)), writer.counters.clone());
        let reads = {
            let is_over = is_over.clone();
            std::thread::spawn(move || {
                let readers = [(); 2].map(|()| Connection::open(&file).unwrap());
                let begin = "BEGIN; SELECT count(*) FROM session";
                let mut turn = 0;
                readers[0].execute_batch(begin).unwrap();
                while !is_over.load(Relaxed) {
                    turn += 1;
                    readers[turn % 2].execute_batch(begin).unwrap();
                    readers[(turn - 1) % 2].execute_batch("COMMIT").unwrap();
                    // It reads while some are written, unless the writer waits for it.
                    let (begun, batches) = (Instant::now(), counters.batches.load(Relaxed));
                    while counters.batches.load(Relaxed) < batches + 5
                        && begun.elapsed() < LOG_PATIENCE / 10
                    {
                        std::thread::yield_now();
                    }
                }
                turn
            })
        };
        lengthen(&mut writer, 600);
        is_over.store(true, Relaxed);
        assert!(reads.join().unwrap() > 10);
        let shared = longest(&writer);
        assert!(shared < 400, "{shared} pages");
    }
}
