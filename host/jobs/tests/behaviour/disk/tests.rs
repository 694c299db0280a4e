//! The disk under a real SQLite: that it forgets, and that SQLite does not.

use std::{collections::BTreeSet, sync::mpsc, thread, time::Duration};

use rusqlite::{Connection, ErrorCode, ffi, types::FromSql};

use super::{Counts, Disk, Fault, Op, Part};

const PATH: &str = "/state/jobs.db";

/// How a database is kept.
#[derive(Clone, Copy, Debug)]
struct Mode {
    journal: &'static str,
    synchronous: &'static str,
}

const WAL: Mode = Mode { journal: "wal", synchronous: "full" };
const ROLLBACK: Mode = Mode { journal: "delete", synchronous: "extra" };

impl Mode {
    /// Opens the database, which checkpoints itself after every few transactions.
    fn open(self, disk: &Disk) -> rusqlite::Result<Connection> {
        let connection = disk.connect(PATH)?;
        connection.busy_timeout(Duration::ZERO)?;
        let Self { journal, synchronous } = self;
        let kept: String =
            connection
                .query_row(&format!("PRAGMA journal_mode = {journal}"), [], |row| row.get(0))?;
        assert_eq!(kept, journal);
        connection.execute_batch(&format!(
            "PRAGMA synchronous = {synchronous}; PRAGMA wal_autocheckpoint = 8; \
             CREATE TABLE IF NOT EXISTS entry (id INTEGER PRIMARY KEY, text BLOB); \
             CREATE TABLE IF NOT EXISTS total (entries INTEGER); \
             INSERT INTO total SELECT 0 WHERE NOT EXISTS (SELECT * FROM total);"
        ))?;
        Ok(connection)
    }
}

/// Commits an entry of several pages, and counts it elsewhere.
fn add(connection: &Connection, id: i64) -> rusqlite::Result<()> {
    let added = connection.execute_batch(&format!(
        "BEGIN IMMEDIATE; INSERT INTO entry VALUES ({id}, randomblob({size})); \
         UPDATE total SET entries = entries + 1; COMMIT;",
        size = 300 + id * 1_700 % 9_000,
    ));
    if added.is_err() && !connection.is_autocommit() {
        _ = connection.execute_batch("ROLLBACK");
    }
    added
}

fn one<T: FromSql>(connection: &Connection, sql: &str) -> T {
    connection.query_row(sql, [], |row| row.get(0)).unwrap()
}

/// Returns how many entries there are, which are the first ones, whole and counted.
fn entries(connection: &Connection) -> i64 {
    assert_eq!(one::<String>(connection, "PRAGMA integrity_check"), "ok");
    let entries = one::<i64>(connection, "SELECT count(*) FROM entry");
    assert_eq!(entries, one::<i64>(connection, "SELECT coalesce(max(id), 0) FROM entry"));
    assert_eq!(entries, one::<i64>(connection, "SELECT entries FROM total"));
    entries
}

fn code<T>(result: rusqlite::Result<T>) -> (ErrorCode, i32) {
    match result {
        Err(rusqlite::Error::SqliteFailure(error, _)) => (error.code, error.extended_code),
        Err(error) => panic!("not of SQLite: {error}"),
        Ok(_) => panic!("it went well"),
    }
}

/// Adds entries until there are enough or the power is gone. Returns how many were
/// acknowledged, and the connection that may be left.
fn run(disk: &Disk, mode: Mode, entries: i64) -> (i64, Option<Connection>) {
    let Ok(connection) = mode.open(disk) else { return (0, None) };
    let acknowledged = (1..=entries).take_while(|id| add(&connection, *id).is_ok()).count();
    (acknowledged as i64, Some(connection))
}

/// Cuts the power in each operation of a run, and hands the disk to a check with what
/// had been acknowledged, which returns how many entries it leaves. The connection is
/// still there when the power comes back.
fn at_each_cut(mode: Mode, seeds: &[Option<u64>], check: impl Fn(&Disk, i64) -> i64) {
    const ENTRIES: i64 = 12;
    let whole = Disk::new();
    assert_eq!(run(&whole, mode, ENTRIES).0, ENTRIES);
    let operations = whole.operations();
    assert!(operations > 50, "{mode:?} took {operations} operations");
    for nth in 1..=operations {
        for seed in seeds {
            let disk = Disk::new();
            disk.cut_power_at(nth);
            let (acknowledged, mut connection) = run(&disk, mode, ENTRIES);
            if disk.operations() < nth {
                connection = None; // What is left of the run is what closing does.
            }
            assert!(disk.connect(PATH).is_err(), "the power is still there");
            match seed {
                None => disk.crash(),
                Some(seed) => disk.crash_keeping(seed ^ (nth << 32)),
            }
            let left = check(&disk, acknowledged);
            // Whoever was there when the power went does no harm by going.
            drop(connection);
            assert_eq!(entries(&mode.open(&disk).unwrap()), left);
        }
    }
}

const SEEDS: [Option<u64>; 6] = [None, Some(1), Some(2), Some(3), Some(4), Some(5)];

fn nothing_acknowledged_is_lost(mode: Mode, seeds: &[Option<u64>]) {
    at_each_cut(mode, seeds, |disk, acknowledged| {
        let connection = mode.open(disk).unwrap();
        let kept = entries(&connection);
        // The one under way when the power went may have got there.
        assert!((acknowledged..=acknowledged + 1).contains(&kept), "{kept} of {acknowledged}");
        add(&connection, kept + 1).unwrap();
        disk.crash();
        assert_eq!(entries(&mode.open(disk).unwrap()), kept + 1);
        kept + 1
    });
}

#[test]
fn a_log_loses_nothing_at_any_cut() {
    nothing_acknowledged_is_lost(WAL, &SEEDS);
}

#[test]
fn a_journal_whose_deletion_is_synced_loses_nothing_at_any_cut() {
    nothing_acknowledged_is_lost(ROLLBACK, &SEEDS[..3]);
}

#[test]
fn a_journal_that_is_cut_or_overwritten_loses_nothing_at_any_cut() {
    for journal in ["truncate", "persist"] {
        nothing_acknowledged_is_lost(Mode { journal, synchronous: "full" }, &SEEDS[..2]);
    }
}

#[test]
fn what_is_not_synced_is_lost_though_it_was_acknowledged() {
    let disk = Disk::new();
    drop(WAL.open(&disk).unwrap());
    let mode = Mode { synchronous: "off", ..WAL };
    let (acknowledged, connection) = run(&disk, mode, 5);
    assert_eq!((acknowledged, entries(connection.as_ref().unwrap())), (5, 5));
    disk.crash();
    assert_eq!(entries(&WAL.open(&disk).unwrap()), 0);
}

#[test]
fn the_sync_is_what_keeps_a_commit_and_not_the_closing() {
    for (synchronous, expected) in [("full", 1), ("normal", 0)] {
        let disk = Disk::new();
        drop(WAL.open(&disk).unwrap());
        let connection = Mode { synchronous, ..WAL }.open(&disk).unwrap();
        add(&connection, 1).unwrap();
        disk.crash();
        assert_eq!(entries(&WAL.open(&disk).unwrap()), expected, "{synchronous}");
    }
}

#[test]
fn a_deleted_journal_comes_back_unless_the_folder_was_synced() {
    for (synchronous, expected) in [("extra", 1), ("full", 0)] {
        let disk = Disk::new();
        drop(ROLLBACK.open(&disk).unwrap());
        let connection = Mode { synchronous, ..ROLLBACK }.open(&disk).unwrap();
        add(&connection, 1).unwrap();
        disk.crash();
        assert_eq!(entries(&ROLLBACK.open(&disk).unwrap()), expected, "{synchronous}");
    }
}

#[test]
fn a_crash_may_keep_what_it_was_not_told_to() {
    let kept: BTreeSet<i64> = (0..60)
        .map(|seed| {
            let disk = Disk::new();
            drop(WAL.open(&disk).unwrap());
            let mode = Mode { synchronous: "normal", ..WAL };
            // Less than what makes it checkpoint, which syncs.
            let (acknowledged, _connection) = run(&disk, mode, 2);
            assert_eq!(acknowledged, 2);
            disk.crash_keeping(seed);
            entries(&WAL.open(&disk).unwrap())
        })
        .collect();
    assert!(kept.contains(&0) && kept.contains(&2), "{kept:?}");
}

#[test]
fn a_file_that_was_never_synced_is_gone_after_a_crash() {
    let disk = Disk::new();
    let mode = Mode { journal: "memory", synchronous: "off" };
    let (acknowledged, _connection) = run(&disk, mode, 1);
    assert_eq!(acknowledged, 1);
    disk.crash();
    let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_WRITE;
    let opened = Connection::open_with_flags_and_vfs(PATH, flags, disk.vfs());
    assert_eq!(code(opened).0, ErrorCode::CannotOpen);
}

#[test]
fn whoever_was_there_before_a_crash_gets_an_error_and_does_no_harm() {
    for mode in [WAL, ROLLBACK] {
        let disk = Disk::new();
        let before = mode.open(&disk).unwrap();
        add(&before, 1).unwrap();
        before.execute_batch("BEGIN IMMEDIATE; INSERT INTO entry VALUES (2, 'half')").unwrap();
        disk.crash();
        let after = mode.open(&disk).unwrap();
        assert_eq!(code(before.execute_batch("COMMIT")).0, ErrorCode::SystemIoFailure);
        assert_eq!(code(add(&before, 2)).0, ErrorCode::SystemIoFailure);
        let count = before.query_row("SELECT count(*) FROM total", [], |row| row.get::<_, i64>(0));
        assert_eq!(code(count).0, ErrorCode::SystemIoFailure);
        add(&after, 2).unwrap();
        drop(before);
        add(&after, 3).unwrap();
        assert_eq!(entries(&after), 3);
        disk.crash();
        assert_eq!(entries(&mode.open(&disk).unwrap()), 3);
    }
}

#[test]
fn a_reader_sees_each_commit_and_keeps_the_view_it_began_with() {
    let disk = Disk::new();
    let (writer, reader) = (WAL.open(&disk).unwrap(), WAL.open(&disk).unwrap());
    for id in 1..=20 {
        add(&writer, id).unwrap();
        assert_eq!(entries(&reader), id);
    }
    reader.execute_batch("BEGIN").unwrap();
    assert_eq!(entries(&reader), 20);
    for id in 21..=40 {
        add(&writer, id).unwrap();
    }
    assert_eq!(entries(&reader), 20);
    reader.execute_batch("COMMIT").unwrap();
    assert_eq!(entries(&reader), 40);
}

#[test]
fn two_who_write_exclude_each_other() {
    for mode in [WAL, ROLLBACK] {
        let disk = Disk::new();
        let (one, other) = (mode.open(&disk).unwrap(), mode.open(&disk).unwrap());
        one.execute_batch("BEGIN IMMEDIATE").unwrap();
        assert_eq!(code(other.execute_batch("BEGIN IMMEDIATE")).0, ErrorCode::DatabaseBusy);
        assert_eq!(entries(&other), 0);
        one.execute_batch("COMMIT").unwrap();
        other.execute_batch("BEGIN IMMEDIATE; COMMIT").unwrap();
    }
}

#[test]
fn without_a_log_a_reader_holds_up_who_commits_and_lets_him_go_first_then() {
    let disk = Disk::new();
    let open = || ROLLBACK.open(&disk).unwrap();
    let (writer, reader, late) = (open(), open(), open());
    reader.execute_batch("BEGIN").unwrap();
    assert_eq!(entries(&reader), 0);
    writer.execute_batch("BEGIN IMMEDIATE; UPDATE total SET entries = 7").unwrap();
    assert_eq!(code(writer.execute_batch("COMMIT")).0, ErrorCode::DatabaseBusy);
    let read = late.query_row("SELECT entries FROM total", [], |row| row.get::<_, i64>(0));
    assert_eq!(code(read).0, ErrorCode::DatabaseBusy);
    reader.execute_batch("COMMIT").unwrap();
    writer.execute_batch("COMMIT").unwrap();
    assert_eq!(one::<i64>(&late, "SELECT entries FROM total"), 7);
}

#[test]
fn many_threads_add_up() {
    const THREADS: i64 = 4;
    const EACH: i64 = 50;
    for mode in [WAL, ROLLBACK] {
        let disk = Disk::new();
        drop(mode.open(&disk).unwrap());
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    let connection = disk.connect(PATH).unwrap();
                    connection.busy_timeout(Duration::from_secs(100)).unwrap();
                    connection.execute_batch("PRAGMA wal_autocheckpoint = 8").unwrap();
                    for _ in 0..EACH {
                        let add = "BEGIN IMMEDIATE; INSERT INTO entry (text) VALUES (1); \
                                   UPDATE total SET entries = entries + 1; COMMIT";
                        connection.execute_batch(add).unwrap();
                    }
                });
            }
        });
        assert_eq!(entries(&mode.open(&disk).unwrap()), THREADS * EACH, "{mode:?}");
    }
}

#[test]
fn what_fails_says_why_and_goes_well_once_healed() {
    let cases = [
        (Op::Write, Fault::Full, ErrorCode::DiskFull, ffi::SQLITE_FULL),
        (Op::Write, Fault::Io, ErrorCode::SystemIoFailure, ffi::SQLITE_IOERR_WRITE),
        (Op::Write, Fault::ReadOnly, ErrorCode::ReadOnly, ffi::SQLITE_READONLY),
        (Op::Sync, Fault::Full, ErrorCode::DiskFull, ffi::SQLITE_FULL),
        (Op::Sync, Fault::Io, ErrorCode::SystemIoFailure, ffi::SQLITE_IOERR_FSYNC),
    ];
    for mode in [WAL, ROLLBACK] {
        for (op, fault, kind, extended) in cases {
            let disk = Disk::new();
            let connection = mode.open(&disk).unwrap();
            add(&connection, 1).unwrap();
            disk.fail_from(op, 1, fault);
            for _ in 0..3 {
                assert_eq!(code(add(&connection, 2)), (kind, extended), "{mode:?} {op:?}");
            }
            disk.heal();
            add(&connection, 2).unwrap();
            disk.crash();
            assert_eq!(entries(&mode.open(&disk).unwrap()), 2);
        }
    }
}

#[test]
fn one_failure_is_one_and_is_the_one_that_was_named() {
    let disk = Disk::new();
    let connection = WAL.open(&disk).unwrap();
    // A checkpoint syncs too, and fails without failing the commit that it follows.
    connection.execute_batch("PRAGMA wal_autocheckpoint = 0").unwrap();
    disk.fail_nth(Op::Sync, 3, Fault::Io);
    let results: Vec<bool> =
        [1, 2, 3, 3, 4].into_iter().map(|id| add(&connection, id).is_ok()).collect();
    assert_eq!(results, [true, true, false, true, true]);
    assert_eq!(entries(&connection), 4);
}

#[test]
fn a_full_disk_is_full_for_all_until_there_is_room() {
    let disk = Disk::new();
    let connection = WAL.open(&disk).unwrap();
    disk.capacity(100_000);
    let added = (1..).take_while(|id| add(&connection, *id).is_ok()).count() as i64;
    assert!((3..40).contains(&added), "{added}");
    assert_eq!(code(add(&connection, added + 1)).0, ErrorCode::DiskFull);
    assert_eq!(entries(&connection), added);
    disk.capacity(1_000_000);
    add(&connection, added + 1).unwrap();
    disk.crash();
    assert_eq!(entries(&WAL.open(&disk).unwrap()), added + 1);
}

#[test]
fn a_commit_waits_for_its_sync_and_is_seen_once_it_is_there() {
    let disk = Disk::new();
    let (writer, reader) = (WAL.open(&disk).unwrap(), WAL.open(&disk).unwrap());
    let stall = disk.stall_sync(1);
    let (said, heard) = mpsc::channel();
    let committing = thread::spawn(move || {
        add(&writer, 1).unwrap();
        said.send(()).unwrap();
    });
    stall.reached();
    assert_eq!(heard.try_recv(), Err(mpsc::TryRecvError::Empty));
    assert_eq!(entries(&reader), 0);
    assert_eq!(code(reader.execute_batch("BEGIN IMMEDIATE")).0, ErrorCode::DatabaseBusy);
    stall.release();
    committing.join().unwrap();
    heard.recv().unwrap();
    assert_eq!(entries(&reader), 1);
}

#[test]
fn a_crash_ends_a_stall_and_what_was_stalled_is_lost() {
    let disk = Disk::new();
    let writer = WAL.open(&disk).unwrap();
    add(&writer, 1).unwrap();
    let stall = disk.stall_sync(1);
    let committing = thread::spawn(move || code(add(&writer, 2)).0);
    stall.reached();
    disk.crash();
    assert_eq!(committing.join().unwrap(), ErrorCode::SystemIoFailure);
    assert_eq!(entries(&WAL.open(&disk).unwrap()), 1);
}

#[tokio::test]
async fn a_stall_can_be_awaited() {
    let disk = Disk::new();
    let writer = WAL.open(&disk).unwrap();
    let stall = disk.stall_sync(2);
    let committing = tokio::task::spawn_blocking(move || {
        add(&writer, 1).unwrap();
        add(&writer, 2).unwrap();
        entries(&writer)
    });
    stall.reached_async().await;
    drop(stall);
    assert_eq!(committing.await.unwrap(), 2);
}

#[test]
fn a_commit_to_a_log_is_one_sync_of_it_and_none_of_the_database() {
    let disk = Disk::new();
    let connection = WAL.open(&disk).unwrap();
    let before = [Part::Database, Part::Wal, Part::Journal].map(|part| disk.counts(part));
    let (syncs, writes, bytes) = (disk.syncs(), disk.writes(), disk.bytes());
    add(&connection, 1).unwrap();
    let [database, wal, journal] = before;
    assert_eq!(disk.counts(Part::Database), database);
    assert_eq!(disk.counts(Part::Journal), journal);
    assert_eq!(disk.counts(Part::Scratch), Counts::default());
    let after = disk.counts(Part::Wal);
    assert_eq!(after.syncs, wal.syncs + 1);
    assert!(after.bytes >= wal.bytes + 2 * 4096, "two pages at least");
    assert_eq!(disk.syncs() - syncs, 1);
    assert_eq!(disk.writes() - writes, after.writes - wal.writes);
    assert_eq!(disk.bytes() - bytes, after.bytes - wal.bytes);
}

#[test]
fn disks_are_apart_and_clones_are_not() {
    let (disk, other) = (Disk::new(), Disk::new());
    assert_ne!(disk.vfs(), other.vfs());
    let connection = WAL.open(&disk).unwrap();
    add(&connection, 1).unwrap();
    assert_eq!(entries(&WAL.open(&other).unwrap()), 0);
    assert_eq!(entries(&WAL.open(&disk.clone()).unwrap()), 1);
}

#[test]
fn a_connection_outlives_its_disk() {
    let disk = Disk::new();
    let vfs = disk.vfs().to_owned();
    let connection = WAL.open(&disk).unwrap();
    drop(disk);
    add(&connection, 1).unwrap();
    assert_eq!(entries(&connection), 1);
    let flags = rusqlite::OpenFlags::default();
    assert!(Connection::open_with_flags_and_vfs(PATH, flags, vfs.as_str()).is_err());
}
