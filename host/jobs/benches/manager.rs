//! What a job costs from its spawn to its end, over SQLite with durable commits and a
//! launcher that does nothing, and what a start costs that finds many. Run with
//! `cargo bench -p backlot-jobs --bench manager`.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a benchmark ends where something is missing"
)]

use std::{
    collections::{HashMap, hash_map::Entry},
    env, fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

// The workspace's benchmarks report alike; the crate depends on none of them.
#[path = "../../../tests/benches/report/mod.rs"]
mod report;

mod page;

use backlot_jobs::{
    Change, Config, Job, JobId, LaunchError, Launched, Launcher, Limits, Manager, Reports,
    RunEnding, RunId, RunOutcome, Session, Spawn, Spawned, Spec, SqliteOptions, SqliteStore,
    Status, Stop, Stopped, Store, World,
};
use backlot_registry::{BoxFuture, Kind};
use page::Page;
use report::{
    Report,
    Target::{self, AtLeast, AtMost},
    median, percentile, us,
};
use tokio::sync::oneshot;

const CALLERS: usize = 64;
const JOBS: usize = 60_000;
const WORKING: usize = 10_000;
const LIMITS: Limits =
    Limits { per_session: 20_000, total: 20_000, depth: 1, queued: 10_000, ..Limits::NONE };

/// Launches runs that have ended by then.
struct Noop;

impl Launcher for Noop {
    fn launch(&self, _: &Job, run: RunId) -> BoxFuture<'_, Result<Launched, LaunchError>> {
        Box::pin(async move {
            let ended = async move {
                RunOutcome {
                    run: Some(run),
                    ending: RunEnding::Completed,
                    detail: None,
                    output: Some("12 lines".into()),
                }
            };
            Ok(Launched { task: None, code: None, ended: Box::pin(ended) })
        })
    }

    fn stop(&self, _: Stop) -> BoxFuture<'_, Result<Stopped, String>> {
        Box::pin(async { Ok(Stopped::AlreadyFinished) })
    }
}

fn config() -> Config {
    Config { limits: LIMITS, ..Config::default() }
}

async fn manager(store: &Arc<SqliteStore>, ends: &Arc<Ends>) -> Manager {
    let shared: Arc<dyn Store> = store.clone();
    let world = World { reports: ends.clone(), ..World::new(Arc::new(Noop)) };
    let (manager, _) = Manager::open(shared, world, config()).await.unwrap();
    manager
}

/// Tells whoever waits for it that a job has ended.
#[derive(Default)]
struct Ends(Mutex<HashMap<JobId, Option<oneshot::Sender<Job>>>>);

impl Ends {
    fn tell(&self, job: &Job) {
        match self.0.lock().unwrap().entry(job.id) {
            Entry::Occupied(entry) => {
                let waiter = entry.remove().unwrap();
                let _ = waiter.send(job.clone());
            }
            // Its spawn has not returned yet.
            Entry::Vacant(entry) => _ = entry.insert(None),
        }
    }

    async fn of(&self, id: JobId) {
        let ended = {
            let mut waiters = self.0.lock().unwrap();
            match waiters.entry(id) {
                Entry::Occupied(entry) => {
                    entry.remove();
                    return;
                }
                Entry::Vacant(entry) => {
                    let (tell, ended) = oneshot::channel();
                    entry.insert(Some(tell));
                    ended
                }
            }
        };
        assert_eq!(ended.await.unwrap().status(), Status::Completed);
    }
}

impl Reports for Ends {
    fn on_finished(&self, job: &Job) {
        self.tell(job);
    }

    fn on_result_delivered(&self, job: &Job) {
        self.tell(job);
    }
}

/// Does a job from its spawn until its end is written and told.
async fn life(manager: &Manager, ends: &Ends, announced: bool) {
    let spawn = Spawn {
        announced,
        ..Spawn::new(Kind::new("noop").unwrap(), "chat".into(), r#"{"path":"src"}"#)
    };
    let job = manager.spawn(spawn).await.unwrap();
    ends.of(job.id).await;
}

async fn many(manager: &Manager, ends: &Arc<Ends>, jobs: usize, announced: bool) -> Duration {
    let begun = Instant::now();
    let work = |_| {
        let (manager, ends) = (manager.clone(), ends.clone());
        tokio::spawn(async move {
            for _ in 0..jobs / CALLERS {
                life(&manager, &ends, announced).await;
            }
        })
    };
    for task in (0..CALLERS).map(work).collect::<Vec<_>>() {
        task.await.unwrap();
    }
    begun.elapsed()
}

async fn costs(report: &mut Report, folder: &Path) {
    let store =
        Arc::new(SqliteStore::open(&folder.join("jobs.db"), SqliteOptions::default()).unwrap());
    let ends = Arc::new(Ends::default());
    let manager = manager(&store, &ends).await;
    manager.open_session("chat".into()).await.unwrap();
    many(&manager, &ends, 10_000, false).await;
    let mut page = Page::new(folder);
    let syncs: Vec<f64> = (0..200).map(|turn| page.sync_us(turn)).collect();
    let sync = median(&syncs);
    report.figure("sync_us", "fdatasync of one page", sync, "us", Target::None);
    for (name, announced) in [("quiet", false), ("owed", true)] {
        let before = store.stats();
        let took = many(&manager, &ends, JOBS, announced).await;
        let after = store.stats();
        let rate = JOBS as f64 / took.as_secs_f64();
        let target = if announced { Target::None } else { AtLeast(10_000.0) };
        let label = format!("{CALLERS} callers, spawn to end ({name})");
        report.figure(&format!("{name}_jobs_s"), &label, rate, "jobs/s", target);
        let syncs = (after.syncs - before.syncs) as f64;
        report.figure(
            &format!("{name}_syncs"),
            "  syncs for 1,000 jobs",
            syncs * 1e3 / JOBS as f64,
            "",
            Target::None,
        );
    }
    let (caller, folder_of) = ((manager.clone(), ends.clone()), folder.to_owned());
    // On a thread of the runtime, as whoever serves others is.
    let both = tokio::spawn(async move {
        let (manager, ends) = caller;
        let (mut lives, mut syncs) = (Vec::new(), Vec::new());
        let mut page = Page::new(&folder_of);
        for turn in 0..1_000 {
            // Side by side, for the device is shared.
            syncs.push(page.sync_us(turn));
            let begun = Instant::now();
            life(&manager, &ends, false).await;
            lives.push(us(begun.elapsed()));
        }
        (lives, syncs)
    });
    let (lives, syncs) = both.await.unwrap();
    let (one, sync) = (median(&lives), median(&syncs));
    report.figure("one_us", "one caller, spawn to end", one, "us", Target::None);
    report.figure("beside_us", "  fdatasync of one page meanwhile", sync, "us", Target::None);
    let label = "  a transition, in syncs (two for a job)";
    report.figure("one_syncs", label, one / 2.0 / sync, "", AtMost(2.0));
    report.figure(
        "one_p99_us",
        "  the slowest in a hundred",
        percentile(&lives, 99.0),
        "us",
        Target::None,
    );
    let bytes = fs::metadata(folder.join("jobs.db")).unwrap().len() as f64;
    let jobs = store.census().await.unwrap().ended as f64;
    report.figure("bytes", "database for a job", bytes / jobs, "bytes", Target::None);
    manager.close(Duration::from_secs(10)).await;
    store.close().await.unwrap();
}

async fn recovery(report: &mut Report, folder: &Path) {
    let path = folder.join("crashed.db");
    let store = Arc::new(SqliteStore::open(&path, SqliteOptions::default()).unwrap());
    let session = Session { id: "chat".into(), incarnation: 1, created_ms: 0 };
    store.change(Change::Open { session, limit: usize::MAX }).await.unwrap();
    let spawns = (0..WORKING).map(|_| store.change(Change::Spawn(Box::new(spawned()))));
    for spawned in futures::future::join_all(spawns).await {
        spawned.unwrap();
    }
    let begun = Instant::now();
    let shared: Arc<dyn Store> = store.clone();
    let world = World::new(Arc::new(Noop));
    let (_manager, recovered) = Manager::open(shared, world, config()).await.unwrap();
    let took = begun.elapsed();
    assert_eq!(recovered.interrupted, WORKING);
    report.figure(
        "recover_ms",
        "recovering 10,000 jobs that were working",
        us(took) / 1e3,
        "ms",
        AtMost(1_000.0),
    );
}

fn spawned() -> Spawned {
    Spawned {
        id: JobId::random().unwrap(),
        run: RunId::random().unwrap(),
        spec: Spec {
            kind: Kind::new("noop").unwrap(),
            input: r#"{"path":"src"}"#.into(),
            label: "noop".into(),
            parent: "chat".into(),
            incarnation: 1,
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
        now_ms: 1_700_000_000_000,
    }
}

fn main() {
    let mut report = Report::begin("jobs", "what a job costs from its spawn to its end").unwrap();
    let target: PathBuf = env::current_exe().unwrap();
    let folder = tempfile::tempdir_in(target.parent().unwrap()).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_time()
        .build()
        .unwrap();
    runtime.block_on(async {
        costs(&mut report, folder.path()).await;
        recovery(&mut report, folder.path()).await;
    });
    report.end().unwrap();
}
