//! What is left of a store: after a crash, after it was closed, and in backups.

use super::*;

/// Copies what is on the disk at this moment, as a crash would leave it.
fn crash(file: &Path, parts: &[&str]) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    for part in parts {
        let name = format!("jobs.db{part}");
        fs::copy(file.with_file_name(&name), folder.path().join(&name)).unwrap();
    }
    let file = at(&folder);
    (folder, file)
}

#[tokio::test]
async fn c67_what_was_acknowledged_is_there_after_a_crash() {
    let folder = tempfile::tempdir().unwrap();
    let file = at(&folder);
    let store = open(&file);
    make(&store, opening("chat", 1)).await;
    for id in 1..=20 {
        make(&store, spawning(id)).await;
        let parts: &[&str] = if id % 2 == 0 { &["", "-wal", "-shm"] } else { &["", "-wal"] };
        let newest: Vec<u128> = (1..=id).rev().collect();
        let (_kept, left) = crash(&file, parts);
        // A reader comes first, and finds nobody who has looked after the log.
        assert_eq!(ids(&read(&left)).await, newest);
        let again = open(&left);
        assert_eq!(ids(&again).await, newest);
        make(&again, spawning(1_000)).await;
    }
}

#[cfg(unix)]
#[tokio::test]
async fn nobody_else_may_read_a_store_its_log_or_a_copy_of_it() {
    use std::os::unix::fs::PermissionsExt as _;

    let folder = tempfile::tempdir().unwrap();
    let file = at(&folder);
    let store = open(&file);
    make(&store, opening("chat", 1)).await;
    store.backup_to(&folder.path().join("copy.db")).await.unwrap();
    restore(&folder.path().join("copy.db"), &folder.path().join("restored.db")).unwrap();
    let modes: BTreeMap<String, u32> = fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
            (entry.file_name().into_string().unwrap(), mode)
        })
        .collect();
    let names: Vec<&str> = modes.keys().map(String::as_str).collect();
    assert_eq!(names, ["copy.db", "jobs.db", "jobs.db-shm", "jobs.db-wal", "restored.db"]);
    assert!(modes.values().all(|mode| *mode == 0o600), "{modes:?}");
}

#[tokio::test]
async fn a_store_that_is_closed_is_one_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = some(&folder, 3).await;
    assert_eq!(files(folder.path()).keys().collect::<Vec<_>>(), ["jobs.db"]);
    let store = open(&file);
    let waiting: Vec<_> = (10..30).map(|id| store.change(spawning(id))).collect();
    store.close().await.unwrap();
    // What was asked for before is made.
    for changed in join_all(waiting).await {
        changed.unwrap();
    }
    let late = store.change(spawning(4)).await.unwrap_err();
    assert!(matches!(late, ChangeError::Store(StoreError::Closed)), "{late:?}");
    assert!(matches!(store.job(JobId::from_bits(1)).await, Err(StoreError::Closed)));
    store.close().await.unwrap();
    drop(store);
    let store = open(&file);
    assert_eq!(ids(&store).await.len(), 23);
    drop(store.change(spawning(5)));
    drop(store);
    assert_eq!(files(folder.path()).keys().collect::<Vec<_>>(), ["jobs.db"]);
    assert_eq!(ids(&open(&file)).await.len(), 24);
}

#[tokio::test]
async fn j23_a_place_is_not_given_again_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let file = some(&folder, 0).await;
    let mut last = 0;
    for id in 1..5 {
        let store = open(&file);
        let new = Spawned { due_ms: NOW_MS + 1, ..spawned(id, "chat") };
        let changed = make(&store, Change::Spawn(Box::new(new))).await;
        let Changed::Job { job, .. } = changed else { panic!("{changed:?}") };
        let backlot_jobs::Phase::Queued { place, .. } = job.phase else { panic!("{job:?}") };
        assert!(place > last, "{place} after {last}");
        last = place;
        let stop = StopRequest { by: "me".into(), why: None, at_ms: 0, after_step: false };
        make(&store, happening(id, Event::StopRequested { stop })).await;
        make(&store, Change::Remove { job: JobId::from_bits(id) }).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c65_a_backup_is_of_one_moment_while_the_store_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let file = some(&folder, 300).await;
    let store = Arc::new(open(&file));
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let writers: Vec<_> = (1..=8)
        .map(|writer| {
            let (store, stopped) = (store.clone(), stopped.clone());
            tokio::spawn(async move {
                let mut id = writer * 1_000_000;
                while !*stopped.borrow() {
                    id += 1;
                    make(&store, spawning(id)).await;
                    make(&store, happening(id, ended(Ending::Completed, None))).await;
                }
                id
            })
        })
        .collect();
    for number in 0..5 {
        let copy = folder.path().join(format!("copy {number}.db"));
        let before = store.census().await.unwrap().ended;
        store.backup_to(&copy).await.unwrap();
        let copied = read(&copy);
        let census = copied.census().await.unwrap();
        assert!(census.ended >= before, "{census:?} after {before}");
        let query =
            Query { status: vec![Status::Completed], limit: usize::MAX, ..Query::default() };
        assert_eq!(copied.list(query).await.unwrap().jobs.len() as u64, census.ended);
        assert!(!folder.path().join(format!("copy {number}.db-wal")).exists());
    }
    stop.send(true).unwrap();
    for writer in writers {
        assert!(writer.await.unwrap() > 0);
    }
    let error = store.backup_to(&folder.path().join("copy 0.db")).await.unwrap_err();
    assert!(error.to_string().contains("is not overwritten"), "{error}");
    let nowhere = folder.path().join("nowhere/copy.db");
    store.backup_to(&nowhere).await.unwrap_err();
    drop(store);
    let left = files(folder.path());
    assert_eq!(left.len(), 6, "{:?}", left.keys());
}

#[tokio::test]
async fn a_backup_takes_the_place_of_what_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let file = some(&folder, 3).await;
    let copy = folder.path().join("copy.db");
    open(&file).backup_to(&copy).await.unwrap();
    let store = open(&file);
    make(&store, spawning(4)).await;
    let error = restore(&copy, &file).unwrap_err();
    assert!(error.to_string().contains("stop the host"), "{error}");
    assert_eq!(ids(&store).await, [4, 3, 2, 1]);
    drop(store);
    for turn in 1..=2 {
        let before = fs::read(&file).unwrap();
        restore(&copy, &file).unwrap();
        assert_eq!(ids(&read(&file)).await, [3, 2, 1]);
        let kept = folder.path().join(format!("jobs.db.before-restore-{turn}"));
        assert!(fs::read(&kept).unwrap() == before);
    }
    let kept = folder.path().join("jobs.db.before-restore-1");
    assert_eq!(ids(&read(&kept)).await, [4, 3, 2, 1]);
    // Also where there is nothing yet, and where what is there is damaged.
    let (new, damaged) = (folder.path().join("new.db"), folder.path().join("damaged.db"));
    fs::write(&damaged, "noise").unwrap();
    fs::write(folder.path().join("damaged.db-wal"), "more").unwrap();
    for file in [&new, &damaged] {
        restore(&copy, file).unwrap();
        assert_eq!(ids(&open(file)).await, [3, 2, 1]);
    }
    let left = files(folder.path());
    assert_eq!(left["damaged.db.before-restore-1"], b"noise");
    assert_eq!(left["damaged.db.before-restore-1-wal"], b"more");
}

#[tokio::test]
async fn what_a_crash_left_in_the_log_is_restored_and_kept() {
    let folder = tempfile::tempdir().unwrap();
    let file = some(&folder, 1).await;
    let store = open(&file);
    make(&store, spawning(2)).await;
    let (_kept, from) = crash(&file, &["", "-wal"]);
    let (to_folder, to) = crash(&file, &["", "-wal"]);
    restore(&from, &to).unwrap();
    assert_eq!(ids(&open(&to)).await, [2, 1]);
    let kept = to_folder.path().join("jobs.db.before-restore-1");
    assert_eq!(ids(&read(&kept)).await, [2, 1]);
}

#[tokio::test]
async fn what_is_no_store_is_not_restored() {
    let folder = tempfile::tempdir().unwrap();
    let file = some(&folder, 2).await;
    let bad = |name: &str| folder.path().join(name);
    fs::write(bad("empty"), "").unwrap();
    fs::write(bad("noise"), "noise".repeat(1_000)).unwrap();
    let half = fs::read(&file).unwrap();
    fs::write(bad("half"), &half[..half.len() / 2]).unwrap();
    let raw = Connection::open(bad("foreign")).unwrap();
    raw.execute_batch("CREATE TABLE t (a)").unwrap();
    fs::copy(&file, bad("newer")).unwrap();
    let raw = Connection::open(bad("newer")).unwrap();
    raw.pragma_update(None, "user_version", 7).unwrap();
    drop(raw);
    let before = files(folder.path());
    for name in ["empty", "noise", "half", "foreign", "newer", "missing"] {
        let error = restore(&bad(name), &file).unwrap_err();
        assert!(error.to_string().contains(name), "{error}");
        let is_newer = matches!(error, StoreError::Newer { found: 7, .. });
        assert_eq!(is_newer, name == "newer", "{error:?}");
    }
    assert!(files(folder.path()) == before);
    assert_eq!(ids(&open(&file)).await, [2, 1]);
}

#[tokio::test]
async fn another_file_system_is_used_by_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let vfs = Some("unix-excl".to_owned());
    let options = SqliteOptions { vfs, ..SqliteOptions::default() };
    let open = || SqliteStore::open(&at(&folder), options.clone()).unwrap();
    let store = open();
    make(&store, opening("chat", 1)).await;
    make(&store, spawning(1)).await;
    assert_eq!(ids(&store).await, [1]);
    // It is that one, which lets no other process in.
    assert!(!folder.path().join("jobs.db-shm").exists());
    drop(store);
    assert_eq!(ids(&open()).await, [1]);
    let unknown = SqliteOptions { vfs: Some("no such".into()), ..SqliteOptions::default() };
    SqliteStore::open(&at(&folder), unknown).unwrap_err();
}
