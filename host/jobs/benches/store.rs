//! What keeping jobs in SQLite costs. Run with `cargo bench -p backlot-jobs`.
//!
//! The store lies in the target folder, for the figures are those of its disk. Every
//! figure is printed beside what it is held against; none is asserted, because a
//! loaded machine proves nothing. `BACKLOT_BENCH_ENDED` is how many jobs are in the
//! store that is compared with an empty one.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a benchmark ends where something is missing"
)]

use std::{
    env, fs,
    hint::black_box,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

// The workspace's benchmarks report alike; the crate depends on none of them.
#[path = "../../../tests/benches/report/mod.rs"]
mod report;

mod page;

use backlot_jobs::{
    Change, Changed, Ending, Event, Job, JobId, Limits, Query, Report as Ended, RunId, Session,
    Spawned, Spec, SqliteOptions, SqliteStats, SqliteStore, Store,
};
use backlot_registry::Kind;
use page::Page;
use report::{
    Report,
    Target::{self, AtLeast, AtMost},
    median, percentile, us,
};

const CALLERS: usize = 64;
const ENDED: usize = 1_000_000;
const LIMITS: Limits =
    Limits { per_session: 10_000, total: 10_000, depth: 1, queued: 10_000, ..Limits::NONE };
const SESSIONS: usize = 1_000;

fn session(number: usize) -> String {
    format!("chat-{number}")
}

fn spawned(parent: &str, announced: bool) -> Spawned {
    Spawned {
        id: JobId::random().unwrap(),
        run: RunId::random().unwrap(),
        spec: Spec {
            kind: Kind::new("noop").unwrap(),
            input: r#"{"path":"src","pattern":"fn main"}"#.into(),
            label: "look for the entry points".into(),
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
            announced,
            webhook: None,
            trace: None,
        },
        state: None,
        due_ms: 0,
        queue: false,
        limits: LIMITS,
        now_ms: 1_700_000_000_000,
    }
}

async fn spawn(store: &SqliteStore, parent: &str, announced: bool) -> Job {
    let change = Change::Spawn(Box::new(spawned(parent, announced)));
    match store.change(change).await.unwrap() {
        Changed::Job { job, .. } => *job,
        other => panic!("{other:?}"),
    }
}

async fn happen(store: &SqliteStore, job: &Job, event: Event) -> Job {
    let change = Change::Happen { job: job.id, event, limits: LIMITS, now_ms: job.created_ms + 1 };
    match store.change(change).await.unwrap() {
        Changed::Job { job, .. } => *job,
        other => panic!("{other:?}"),
    }
}

fn finished(job: &Job) -> Event {
    let report = Ended {
        ending: Ending::Completed,
        result: Some("12 lines".into()),
        detail: None,
        state: None,
        again_ms: None,
        told: false,
    };
    Event::Finished { run: job.run(), report }
}

/// Spawns jobs and ends them, by so many callers at once, and returns how long that
/// took.
async fn lifecycles(
    store: &Arc<SqliteStore>,
    callers: usize,
    jobs: usize,
    announced: bool,
) -> Duration {
    let begun = Instant::now();
    let work = |caller: usize| {
        let store = store.clone();
        tokio::spawn(async move {
            for turn in 0..jobs / callers {
                let parent = session((caller + turn * callers) % SESSIONS);
                let job = spawn(&store, &parent, announced).await;
                let job = happen(&store, &job, finished(&job)).await;
                if let Some(delivery) = job.debt.clone() {
                    happen(&store, &job, Event::Settled { delivery }).await;
                }
            }
        })
    };
    for task in (0..callers).map(work).collect::<Vec<_>>() {
        task.await.unwrap();
    }
    begun.elapsed()
}

fn since(before: SqliteStats, after: SqliteStats) -> f64 {
    (after.changes - before.changes) as f64 / (after.batches - before.batches) as f64
}

async fn throughput(report: &mut Report, store: &Arc<SqliteStore>) {
    lifecycles(store, CALLERS, 20_000, false).await;
    for (name, announced, changes) in [("quiet", false, 2), ("owed", true, 3)] {
        let jobs = 100_000;
        let before = store.stats();
        let took = lifecycles(store, CALLERS, jobs, announced).await;
        let label = format!("{CALLERS} callers, {changes} changes for a job ({name})");
        let rate = jobs as f64 / took.as_secs_f64();
        let target = if announced { Target::None } else { AtLeast(10_000.0) };
        report.figure(&format!("{name}_jobs_s"), &label, rate, "jobs/s", target);
        let shared = since(before, store.stats());
        let label = "  changes that share a sync";
        report.figure(&format!("{name}_batch"), label, shared, "changes", Target::None);
    }
    let stats = store.stats();
    report.note(&format!(
        "{} changes in {} batches, {} at most; the log was copied {} times",
        stats.changes, stats.batches, stats.largest_batch, stats.copies
    ));
    let log = stats.longest_log as f64 / f64::from(1 << 20);
    report.figure("longest_log_mib", "the longest log", log, "MiB", AtMost(64.0));
}

/// How long it takes to answer what is asked for most, in microseconds.
#[derive(Default)]
struct Asked {
    /// A sync of a page that the store has nothing to do with, for the disk is shared.
    sync: Vec<f64>,
    spawn: Vec<f64>,
    end: Vec<f64>,
    job: Vec<f64>,
    listing: Vec<f64>,
}

async fn asked(store: &SqliteStore, ids: &[JobId], page: &mut Page, turns: usize) -> Asked {
    let mut asked = Asked::default();
    for turn in 0..turns {
        asked.sync.push(page.sync_us(turn as u64));
        let parent = session(turn % SESSIONS);
        let begun = Instant::now();
        let job = spawn(store, &parent, false).await;
        asked.spawn.push(us(begun.elapsed()));
        let begun = Instant::now();
        happen(store, &job, finished(&job)).await;
        asked.end.push(us(begun.elapsed()));
    }
    for turn in 0..turns {
        let id = ids[turn * 7919 % ids.len()];
        let begun = Instant::now();
        black_box(store.job(id).await.unwrap().unwrap());
        asked.job.push(us(begun.elapsed()));
        let session = Some(session(turn * 31 % SESSIONS).as_str().into());
        let query = Query { session, limit: 20, ..Query::default() };
        let begun = Instant::now();
        assert_eq!(black_box(store.list(query).await.unwrap()).jobs.len(), 20);
        asked.listing.push(us(begun.elapsed()));
    }
    asked
}

/// Returns the ids of jobs of all ages.
async fn ids(store: &SqliteStore) -> Vec<JobId> {
    let mut ids = Vec::new();
    for prefix in 0..20_000_u32 {
        let digits = format!("{:04x}", prefix * 3 % 65_536);
        ids.extend(store.find(digits.parse().unwrap()).await.unwrap());
    }
    ids
}

async fn open(folder: &Path, name: &str) -> Arc<SqliteStore> {
    let store = SqliteStore::open(&folder.join(name), SqliteOptions::default()).unwrap();
    for number in 0..SESSIONS {
        let session =
            Session { id: session(number).as_str().into(), incarnation: 1, created_ms: 0 };
        store.change(Change::Open { session, limit: usize::MAX }).await.unwrap();
    }
    Arc::new(store)
}

async fn compare(report: &mut Report, folder: &Path) {
    let ended = env::var("BACKLOT_BENCH_ENDED").ok().and_then(|count| count.parse().ok());
    let ended = ended.unwrap_or(ENDED);
    let mut page = Page::new(folder);
    let empty = open(folder, "few.db").await;
    // So that a listing has what it returns.
    lifecycles(&empty, CALLERS, 40 * SESSIONS, false).await;
    let full = open(folder, "many.db").await;
    lifecycles(&full, 512, ended, false).await;
    let size = fs::metadata(folder.join("many.db")).unwrap().len() as f64 / ended as f64;
    report.figure("job_bytes", "of the database, for a job", size, "bytes", Target::None);
    let few = asked(&empty, &ids(&empty).await, &mut page, 4_000).await;
    let many = asked(&full, &ids(&full).await, &mut page, 4_000).await;
    let sync = [median(&few.sync), median(&many.sync)];
    report.figure("sync_us", "fdatasync of one page meanwhile", sync[0], "us", Target::None);
    report.figure("sync_full_us", "  and in the full one", sync[1], "us", Target::None);
    for (key, label, few, many) in [
        ("spawn", "spawn by one caller", &few.spawn, &many.spawn),
        ("end", "ending by one caller", &few.end, &many.end),
        ("job", "status by a random id", &few.job, &many.job),
        ("list", "a session's list, 20 of it", &few.listing, &many.listing),
    ] {
        let (few, p99, many) = (median(few), percentile(few, 99.0), median(many));
        report.figure(&format!("{key}_us"), label, few, "us", Target::None);
        report.figure(&format!("{key}_p99_us"), "  p99", p99, "us", Target::None);
        if matches!(key, "spawn" | "end") {
            let label = "  over a sync of one page";
            report.figure(&format!("{key}_syncs"), label, few / sync[0], "×", AtMost(2.0));
        }
        let label = format!("  with {ended} ended jobs, over that");
        report.figure(&format!("{key}_full"), &label, many / few, "×", AtMost(2.0));
    }
    let begun = Instant::now();
    black_box(full.census().await.unwrap());
    report.figure("census_us", "census of all of them", us(begun.elapsed()), "us", Target::None);
    let copy = folder.join("copy.db");
    let is_done = Arc::new(AtomicBool::new(false));
    let work = {
        let (full, is_done) = (full.clone(), is_done.clone());
        tokio::spawn(async move {
            let mut jobs = 0;
            while !is_done.load(Relaxed) {
                lifecycles(&full, CALLERS, 1_024, false).await;
                jobs += 1_024;
            }
            jobs
        })
    };
    let begun = Instant::now();
    full.backup_to(&copy).await.unwrap();
    let took = begun.elapsed();
    is_done.store(true, Relaxed);
    let jobs = work.await.unwrap();
    report.figure("backup_s", "a backup of them", took.as_secs_f64(), "s", Target::None);
    let rate = f64::from(jobs) / took.as_secs_f64();
    report.figure("backup_jobs_s", "  and jobs done meanwhile", rate, "jobs/s", Target::None);
    let log = full.stats().longest_log as f64 / f64::from(1 << 20);
    report.figure("backup_log_mib", "  the longest log with it", log, "MiB", Target::None);
    let begun = Instant::now();
    full.close().await.unwrap();
    report.figure("close_us", "closing it", us(begun.elapsed()), "us", Target::None);
    let begun = Instant::now();
    drop(SqliteStore::open(&folder.join("many.db"), SqliteOptions::default()).unwrap());
    report.figure("open_us", "opening it", us(begun.elapsed()), "us", Target::None);
}

fn main() {
    let mut report = Report::begin("store", "what keeping jobs in SQLite costs").unwrap();
    let target: PathBuf = env::current_exe().unwrap();
    let folder = tempfile::tempdir_in(target.parent().unwrap()).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_time()
        .build()
        .unwrap();
    runtime.block_on(async {
        let store = open(folder.path(), "jobs.db").await;
        throughput(&mut report, &store).await;
        store.close().await.unwrap();
        compare(&mut report, folder.path()).await;
    });
    report.end().unwrap();
}
