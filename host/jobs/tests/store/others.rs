//! Others who use the file: what they do never shows as an error, unless it goes on
//! for ever.

use super::*;

/// Holds the lock on writing until it is dropped.
struct Lock(Connection);

impl Lock {
    fn of(file: &Path) -> Self {
        let raw = Connection::open(file).unwrap();
        raw.execute_batch("BEGIN IMMEDIATE").unwrap();
        Self(raw)
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        self.0.execute_batch("ROLLBACK").unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c65_another_writer_is_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let file = some(&folder, 1).await;
    let store = open(&file);
    for turn in 0..3 {
        let lock = Lock::of(&file);
        let changes = (0..64).map(|id| store.change(spawning(100 * (turn + 1) + id)));
        let mut changes = Box::pin(join_all(changes));
        // Reads go on.
        assert_eq!(ids(&store).await.len() as u128, 1 + turn * 64);
        assert!(futures::poll!(&mut changes).is_pending());
        drop(lock);
        for changed in changes.await {
            changed.unwrap();
        }
    }
    assert_eq!(ids(&store).await.len(), 1 + 3 * 64);
}

#[tokio::test]
async fn c65_another_writer_that_never_ends_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = some(&folder, 1).await;
    let options = SqliteOptions { busy: Duration::from_millis(20), ..SqliteOptions::default() };
    let store = SqliteStore::open(&file, options).unwrap();
    let lock = Lock::of(&file);
    let error = store.change(spawning(2)).await.unwrap_err();
    assert!(matches!(error, ChangeError::Store(StoreError::Io { .. })), "{error:?}");
    assert!(error.to_string().contains("another process keeps it locked"), "{error}");
    drop(lock);
    make(&store, spawning(2)).await;
    assert_eq!(ids(&store).await, [2, 1]);
}

#[tokio::test]
async fn one_change_that_cannot_be_made_fails_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let file = some(&folder, 3).await;
    let raw = Connection::open(&file).unwrap();
    raw.execute("UPDATE job SET life = '{' WHERE seq = 2", []).unwrap();
    drop(raw);
    let store = open(&file);
    // The first waits for the lock, and all others for the first.
    let lock = Lock::of(&file);
    let bad = ended(Ending::Completed, None);
    let changes = [
        spawning(10),
        spawning(11),
        spawning(12),
        happening(11, bad.clone()),
        happening(99, bad.clone()),
        happening(2, bad),
        spawning(13),
    ];
    let changes: Vec<_> = changes.into_iter().map(|change| store.change(change)).collect();
    drop(lock);
    let mut results = join_all(changes).await;
    let damaged = results.remove(5).unwrap_err();
    assert!(matches!(results.remove(4), Err(ChangeError::Refused(_))));
    assert!(matches!(damaged, ChangeError::Store(StoreError::Damaged { .. })), "{damaged}");
    for changed in results {
        changed.unwrap();
    }
    let job = store.job(JobId::from_bits(11)).await.unwrap().unwrap();
    assert_eq!(job.status(), Status::Completed);
    let census = store.census().await.unwrap();
    assert_eq!((census.working, census.ended), (3, 4));
    // What was undone is not counted as live either.
    let limits = Limits { per_session: 4, ..LIMITS };
    let new = |id| Change::Spawn(Box::new(Spawned { limits, ..spawned(id, "chat") }));
    make(&store, new(20)).await;
    assert!(matches!(store.change(new(21)).await, Err(ChangeError::Refused(_))));
}

#[tokio::test]
async fn changes_that_wait_share_a_sync() {
    let folder = tempfile::tempdir().unwrap();
    let file = some(&folder, 1).await;
    let store = open(&file);
    let lock = Lock::of(&file);
    let changes: Vec<_> = (100..200).map(|id| store.change(spawning(id))).collect();
    drop(lock);
    for changed in join_all(changes).await {
        changed.unwrap();
    }
    let stats = store.stats();
    assert_eq!((stats.changes, stats.undone), (100, 0));
    assert!(stats.batches <= 3 && stats.largest_batch >= 34, "{stats:?}");
}

#[tokio::test]
async fn a_reader_sees_what_another_process_writes() {
    let folder = tempfile::tempdir().unwrap();
    let file = some(&folder, 1).await;
    let store = open(&file);
    let reader = read(&file);
    assert_eq!(ids(&reader).await, [1]);
    make(&store, spawning(2)).await;
    assert_eq!(ids(&reader).await, [2, 1]);
    let error = reader.change(spawning(3)).await.unwrap_err();
    assert!(matches!(error, ChangeError::Store(StoreError::ReadOnly { .. })), "{error:?}");
    store.close().await.unwrap();
    assert_eq!(ids(&reader).await, [2, 1]);
    let again = open(&file);
    make(&again, spawning(3)).await;
    assert_eq!(ids(&reader).await, [3, 2, 1]);
}

#[tokio::test]
async fn what_another_process_wrote_is_not_remembered_otherwise() {
    let folder = tempfile::tempdir().unwrap();
    let file = some(&folder, 1).await;
    let (one, other) = (open(&file), open(&file));
    make(&one, spawning(2)).await;
    for turn in 0..4 {
        let (writer, reader) = if turn % 2 == 0 { (&other, &one) } else { (&one, &other) };
        let state = format!("turn {turn}");
        let run = RunId::from_bits(2);
        make(writer, happening(2, Event::Rewritten { run, state: state.clone() })).await;
        let stop = StopRequest { by: "me".into(), why: None, at_ms: 0, after_step: true };
        let changed = make(reader, happening(2, Event::StopRequested { stop })).await;
        let Changed::Job { job, .. } = changed else { panic!("{changed:?}") };
        assert_eq!(job.state, Some(state));
    }
}

#[tokio::test]
async fn two_that_make_the_store_at_once_have_one() {
    let folder = tempfile::tempdir().unwrap();
    let file = at(&folder);
    let (ready, readied) = mpsc::channel();
    let threads: Vec<_> = (0..8)
        .map(|id| {
            let (file, ready) = (file.clone(), ready.clone());
            std::thread::spawn(move || {
                ready.send(()).unwrap();
                (id, open(&file))
            })
        })
        .collect();
    for _ in &threads {
        readied.recv().unwrap();
    }
    let stores: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    for (id, store) in &stores {
        make(store, opening(&format!("chat {id}"), 1)).await;
    }
    for (id, _) in &stores {
        let session = format!("chat {id}");
        assert!(stores[0].1.session(session.as_str().into()).await.unwrap().is_some());
    }
    drop(stores);
    assert_eq!(files(folder.path()).keys().collect::<Vec<_>>(), ["jobs.db"]);
}
