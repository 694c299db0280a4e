//! Files that are not as they should be: each is told of, and left as it is.

use super::*;

/// Checks that neither way of opening likes the file, and that it is left as it is.
fn refused(file: &Path, check: impl Fn(&StoreError) -> bool) {
    let folder = file.parent().unwrap();
    let before = files(folder);
    let both = [
        SqliteStore::open(file, SqliteOptions::default()),
        SqliteStore::open_read_only(file, SqliteOptions::default()),
    ];
    for opened in both {
        let error = opened.unwrap_err();
        assert!(check(&error), "{error:?}");
        let said = error.to_string();
        assert!(said.contains(file.to_str().unwrap()), "{said}");
        assert!(said.contains(": "), "{said}");
    }
    assert!(files(folder) == before, "it was changed");
}

fn is_damaged(error: &StoreError) -> bool {
    matches!(error, StoreError::Damaged { .. })
}

#[tokio::test]
async fn c72_an_empty_file_is_no_new_store() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(at(&folder), "").unwrap();
    refused(&at(&folder), |error| is_damaged(error) && error.to_string().contains("0 bytes"));
}

#[tokio::test]
async fn c72_a_file_that_is_cut_is_damaged() {
    let folder = tempfile::tempdir().unwrap();
    let file = some(&folder, 300).await;
    let whole = fs::read(&file).unwrap();
    assert!(whole.len() > 40 * 4096, "{}", whole.len());
    for length in [1, 15, 16, 99, 100, 511, 512, 4095, 4096, 4097, whole.len() / 2, whole.len() - 1]
    {
        fs::write(&file, &whole[..length]).unwrap();
        refused(&file, is_damaged);
    }
    fs::write(&file, &whole).unwrap();
    assert_eq!(ids(&open(&file)).await.len(), 300);
}

#[tokio::test]
async fn c72_a_file_with_noise_is_damaged() {
    let folder = tempfile::tempdir().unwrap();
    let file = some(&folder, 300).await;
    let whole = fs::read(&file).unwrap();
    let mut state = 7_u32;
    let mut noise = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    for from in [0, 4096, 3 * 4096 + 5, whole.len() / 4096 / 2 * 4096] {
        let mut bytes = whole.clone();
        bytes[from..from + 4096].fill_with(&mut noise);
        fs::write(&file, &bytes).unwrap();
        refused(&file, is_damaged);
    }
    fs::write(&file, "this is no database, though it is long enough for one".repeat(100)).unwrap();
    refused(&file, is_damaged);
}

#[tokio::test]
async fn c72_damage_that_shows_late_is_told_of_and_not_written_to() {
    let folder = tempfile::tempdir().unwrap();
    let file = some(&folder, 300).await;
    let mut bytes = fs::read(&file).unwrap();
    let half = bytes.len() / 4096 / 2 * 4096;
    bytes[half..].fill(0x5a);
    fs::write(&file, &bytes).unwrap();
    let unchecked = SqliteOptions { check_up_to: 0, ..SqliteOptions::default() };
    let store = SqliteStore::open(&file, unchecked).unwrap();
    let damaged = |error| matches!(error, ChangeError::Store(StoreError::Damaged { .. }));
    let mut errors = 0;
    for id in 1..=300 {
        let delivery = DeliveryId::new(JobId::from_bits(id), 1);
        if let Err(error) = store.change(happening(id, Event::Settled { delivery })).await {
            assert!(damaged(error));
            errors += 1;
        }
    }
    assert!(errors > 0);
    // Once it is known, nothing more is written.
    assert!(damaged(store.change(opening("other", 1)).await.unwrap_err()));
    assert!(matches!(store.close().await, Err(StoreError::Damaged { .. })));
    drop(store);
    assert!(fs::read(&file).unwrap() == bytes, "the file was changed");
}

#[tokio::test]
async fn c72_a_row_that_cannot_be_read_is_named_and_stops_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let file = some(&folder, 3).await;
    let raw = Connection::open(&file).unwrap();
    raw.execute("UPDATE job SET life = '{' WHERE seq = 2", []).unwrap();
    drop(raw);
    let store = open(&file);
    let error = store.job(JobId::from_bits(2)).await.unwrap_err();
    assert!(is_damaged(&error) && error.to_string().contains("job 2 cannot be read"), "{error}");
    assert!(is_damaged(&store.list(Query { limit: 9, ..Query::default() }).await.unwrap_err()));
    assert_eq!(store.job(JobId::from_bits(3)).await.unwrap().unwrap().id.bits(), 3);
    store.change(happening(2, ended(Ending::Completed, None))).await.unwrap_err();
    make(&store, spawning(4)).await;
    // It can be got rid of.
    let gone = make(&store, Change::Delete { session: "chat".into() }).await;
    assert!(matches!(gone, Changed::Removed(gone) if gone.len() == 4));
}

#[tokio::test]
async fn c72_another_programs_database_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let raw = Connection::open(at(&folder)).unwrap();
    raw.execute_batch("CREATE TABLE job (id INTEGER); PRAGMA user_version = 1").unwrap();
    drop(raw);
    let foreign = |error: &StoreError| {
        is_damaged(error) && error.to_string().contains("another program's database")
    };
    refused(&at(&folder), foreign);
}

#[tokio::test]
async fn c72_a_store_without_one_of_its_tables_is_damaged() {
    let folder = tempfile::tempdir().unwrap();
    let file = some(&folder, 1).await;
    let whole = fs::read(&file).unwrap();
    for (change, said) in [
        ("DROP INDEX job_owed", "`job_owed` is missing"),
        ("DROP INDEX job_owed; CREATE INDEX job_owed ON job (owed)", "`job_owed` is not as format"),
        ("DROP TABLE past_run", "`past_run` is missing"),
    ] {
        fs::write(&file, &whole).unwrap();
        Connection::open(&file).unwrap().execute_batch(change).unwrap();
        refused(&file, |error| is_damaged(error) && error.to_string().contains(said));
    }
}

#[tokio::test]
async fn c72_what_a_newer_version_wrote_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = some(&folder, 1).await;
    let raw = Connection::open(&file).unwrap();
    raw.pragma_update(None, "user_version", 3).unwrap();
    drop(raw);
    refused(&file, |error| matches!(error, StoreError::Newer { found: 3, known: 2, .. }));
    let raw = Connection::open(&file).unwrap();
    raw.pragma_update(None, "user_version", 0).unwrap();
    drop(raw);
    refused(&file, |error| is_damaged(error) && error.to_string().contains("no format 0"));
}

#[tokio::test]
async fn c72_a_log_without_its_file_is_not_played_into_a_new_one() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("jobs.db-wal"), "left").unwrap();
    refused(&at(&folder), |error| is_damaged(error) && error.to_string().contains("jobs.db-wal"));
}

#[tokio::test]
async fn c72_a_file_without_its_log_is_what_it_was_before() {
    let folder = tempfile::tempdir().unwrap();
    let file = some(&folder, 5).await;
    let store = open(&file);
    make(&store, spawning(6)).await;
    let copy = tempfile::tempdir().unwrap();
    fs::copy(&file, at(&copy)).unwrap();
    assert_eq!(ids(&open(&at(&copy))).await, [5, 4, 3, 2, 1]);
}

#[tokio::test]
async fn what_is_no_file_is_no_store() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(at(&folder)).unwrap();
    assert!(is_damaged(&open_error(&at(&folder))));
    let nowhere = folder.path().join("nowhere/jobs.db");
    let error = open_error(&nowhere);
    assert!(matches!(error, StoreError::Io { .. }), "{error:?}");
    assert!(error.to_string().contains("its folder must be there"), "{error}");
    let missing = folder.path().join("missing.db");
    let none = SqliteStore::open_read_only(&missing, SqliteOptions::default()).unwrap_err();
    assert!(none.to_string().contains("there is no store of jobs"), "{none}");
    assert!(!missing.exists());
}

#[tokio::test]
async fn c72_a_file_that_cannot_be_written_is_read() {
    use std::os::unix::fs::PermissionsExt as _;

    let folder = tempfile::tempdir().unwrap();
    let file = some(&folder, 2).await;
    fs::set_permissions(&file, fs::Permissions::from_mode(0o400)).unwrap();
    // Some users may write whatever they like.
    let may_write = fs::OpenOptions::new().write(true).open(&file).is_ok();
    match SqliteStore::open(&file, SqliteOptions::default()) {
        Ok(_) => assert!(may_write),
        Err(error) => {
            assert!(!may_write && matches!(error, StoreError::ReadOnly { .. }), "{error}");
        }
    }
    assert_eq!(ids(&read(&file)).await, [2, 1]);
}
