//! The SQLite store and its file: what it makes of files that are not as they should
//! be, what is left of it after a crash, and how it gets on with others.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail where something is missing"
)]

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::{Arc, mpsc},
    time::Duration,
};

use backlot_jobs::{
    Body, Census, Change, ChangeError, Changed, DeliveryId, Ending, Entry, Event, Failure, JobId,
    Limits, NextStep, Query, Question, Report, RunId, Schedule, Session, Spawned, Spec,
    SqliteOptions, SqliteStore, Status, StopRequest, Store, StoreError, Webhook, restore,
};
use backlot_registry::Kind;
use futures::future::join_all;
use rusqlite::Connection;
use tempfile::TempDir;

#[path = "store/damage.rs"]
mod damage;
#[path = "store/format.rs"]
mod format;
#[path = "store/model.rs"]
mod model;
#[path = "store/others.rs"]
mod others;
#[path = "store/saved.rs"]
mod saved;

const LIMITS: Limits =
    Limits { per_session: 1_000, total: 1_000, depth: 3, queued: 1_000, ..Limits::NONE };
const NOW_MS: u64 = 1_700_000_000_000;

fn spawned(id: u128, parent: &str) -> Spawned {
    Spawned {
        id: JobId::from_bits(id),
        run: RunId::from_bits(id),
        spec: Spec {
            kind: Kind::new("grep").unwrap(),
            input: format!("input of {id}"),
            label: format!("job {id}"),
            parent: parent.into(),
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
        },
        state: None,
        due_ms: 0,
        queue: false,
        limits: LIMITS,
        now_ms: NOW_MS,
    }
}

fn spawning(id: u128) -> Change {
    Change::Spawn(Box::new(spawned(id, "chat")))
}

fn happening(id: u128, event: Event) -> Change {
    Change::Happen { job: JobId::from_bits(id), event, limits: LIMITS, now_ms: NOW_MS + 1 }
}

fn ended(ending: Ending, result: Option<&str>) -> Event {
    let report = Report {
        ending,
        result: result.map(Into::into),
        detail: None,
        state: None,
        again_ms: None,
        told: false,
    };
    Event::Finished { run: None, report }
}

fn opening(name: &str, incarnation: u64) -> Change {
    let session = Session { id: name.into(), incarnation, created_ms: NOW_MS };
    Change::Open { session, limit: usize::MAX }
}

fn at(folder: &TempDir) -> PathBuf {
    folder.path().join("jobs.db")
}

fn open(file: &Path) -> SqliteStore {
    SqliteStore::open(file, SqliteOptions::default()).unwrap()
}

fn open_error(file: &Path) -> StoreError {
    SqliteStore::open(file, SqliteOptions::default()).unwrap_err()
}

fn read(file: &Path) -> SqliteStore {
    SqliteStore::open_read_only(file, SqliteOptions::default()).unwrap()
}

async fn make(store: &SqliteStore, change: Change) -> Changed {
    store.change(change).await.unwrap()
}

/// Returns the ids of all jobs, the newest first.
async fn ids(store: &SqliteStore) -> Vec<u128> {
    let page = store.list(Query { limit: 10_000, ..Query::default() }).await.unwrap();
    page.jobs.iter().map(|job| job.id.bits()).collect()
}

/// Makes a store with some jobs, and returns its file.
async fn some(folder: &TempDir, jobs: u128) -> PathBuf {
    let file = at(folder);
    let store = open(&file);
    make(&store, opening("chat", 1)).await;
    let changes = (1..=jobs).flat_map(|id| {
        [spawning(id), happening(id, ended(Ending::Completed, Some(&"result ".repeat(100))))]
    });
    for changed in join_all(changes.map(|change| store.change(change))).await {
        changed.unwrap();
    }
    store.close().await.unwrap();
    file
}

/// Returns what is in a folder, without what readers and writers share while they are
/// there, and logs that hold nothing.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = fs::read_dir(folder).unwrap().map(|entry| {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        (name, fs::read(path).unwrap())
    });
    let says_nothing = |name: &str, bytes: &[u8]| {
        name.ends_with("-shm") || (name.ends_with("-wal") && bytes.is_empty())
    };
    files.filter(|(name, bytes)| !says_nothing(name, bytes)).collect()
}
