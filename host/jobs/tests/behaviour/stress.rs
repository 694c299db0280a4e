//! Many at once: threads that run at the same time, and a database in a file.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use backlot_jobs::{
    Config, Continue, Following, Hand, How, Job, JobId, LaunchError, Launched, Launcher, Limits,
    Manager, NextStep, Query, Question, Reports, RetryPolicy, RunEnding, RunId, RunOutcome, Spawn,
    SqliteStore, Status, Stop, Stopped, World,
};
use backlot_registry::BoxFuture;
use tokio::sync::oneshot;

use crate::world::{OPERATOR, chat, completed, failed, kind, outcome};

const CALLERS: u64 = 16;
/// For how long they go on.
const TIME: Duration = Duration::from_millis(1_500);

/// Runs that end by themselves after a few turns of others, or when they are stopped.
#[derive(Default)]
struct Busy {
    live: Arc<Mutex<Live>>,
    launched: Mutex<HashSet<RunId>>,
    reported: Mutex<HashSet<String>>,
    violations: Mutex<Vec<String>>,
    dice: AtomicU64,
}

/// The runs that are under way, each with its job and what stops it.
type Live = HashMap<RunId, (JobId, oneshot::Sender<()>)>;

impl Busy {
    /// Returns a number that differs from call to call.
    fn roll(&self, sides: u64) -> u64 {
        let rolled = self.dice.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        ((rolled ^ (rolled >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 33) % sides
    }

    fn violated(&self, what: String) {
        self.violations.lock().unwrap().push(what);
    }
}

impl Launcher for Busy {
    fn launch(&self, job: &Job, run: RunId) -> BoxFuture<'_, Result<Launched, LaunchError>> {
        let id = job.id;
        Box::pin(async move {
            if !self.launched.lock().unwrap().insert(run) {
                self.violated(format!("{run} was launched twice"));
            }
            if self.roll(9) == 0 {
                return Err(LaunchError::Unavailable("not now".into()));
            }
            let (stop, stopped) = oneshot::channel();
            let all = self.live.clone();
            {
                let mut live = all.lock().unwrap();
                if live.values().any(|(job, _)| *job == id) {
                    self.violated(format!("two runs of {id} at once"));
                }
                live.insert(run, (id, stop));
            }
            let (turns, fate) = (self.roll(20), self.roll(4));
            let ended = tokio::spawn(async move {
                let by_itself = async {
                    for _ in 0..turns {
                        tokio::task::yield_now().await;
                    }
                };
                let outcome = tokio::select! {
                    biased;
                    _ = stopped => outcome(run, RunEnding::Cancelled),
                    () = by_itself => match fate {
                        0 | 1 => completed(run, "done"),
                        2 => failed(run, "no"),
                        _ => outcome(run, RunEnding::Interrupted),
                    },
                };
                all.lock().unwrap().remove(&run);
                outcome
            });
            Ok(Launched { task: None, code: None, ended: Box::pin(async { ended.await.unwrap() }) })
        })
    }

    fn stop(&self, stop: Stop) -> BoxFuture<'_, Result<Stopped, String>> {
        let mut live = self.live.lock().unwrap();
        let is_known = self.launched.lock().unwrap().contains(&stop.run);
        // The end removes it, so that it counts as live until then.
        let stopped = match live.get_mut(&stop.run) {
            Some(_) if stop.how == How::AfterStep => Stopped::AfterStep,
            Some((_, end)) => {
                let _ = std::mem::replace(end, oneshot::channel().0).send(());
                Stopped::Stopping
            }
            None if is_known => Stopped::AlreadyFinished,
            None => Stopped::Unknown,
        };
        Box::pin(async move { Ok(stopped) })
    }
}

impl Continue for Busy {
    fn has_steps(&self, job: &Job) -> bool {
        job.spec.kind.as_str() == "steps"
    }

    fn after<'a>(
        &'a self,
        _: &'a Job,
        _: &'a RunOutcome,
    ) -> BoxFuture<'a, Result<Following, String>> {
        let question = Question { prompt: "?".into(), schema: None };
        let following = match self.roll(4) {
            0 => Following::END,
            1 => Following::Ask { question, state: None },
            _ => Following::Proceed(NextStep { kind: None, input: "next".into(), state: None }),
        };
        Box::pin(async { Ok(following) })
    }

    fn render<'a>(&'a self, _: &'a Job) -> BoxFuture<'a, Option<String>> {
        Box::pin(async { None })
    }

    fn check_answer<'a>(
        &'a self,
        _: &'a Question,
        _: &'a str,
    ) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(async { Ok(()) })
    }
}

impl Reports for Busy {
    fn on_finished(&self, job: &Job) {
        let Some(debt) = &job.debt else { return self.violated(format!("not owed: {job:?}")) };
        if !self.reported.lock().unwrap().insert(debt.to_string()) {
            self.violated(format!("{debt} was reported twice"));
        }
    }
}

/// Does one thing or another to jobs that it and others know of.
async fn call(manager: &Manager, busy: &Busy, jobs: &Mutex<Vec<JobId>>) {
    let some = {
        let jobs = jobs.lock().unwrap();
        let newest = jobs.len().saturating_sub(20) as u64;
        jobs.get((newest + busy.roll(20)) as usize).copied()
    };
    let caller = &OPERATOR;
    match (busy.roll(8), some) {
        (0..=2, _) | (_, None) => {
            let steps = kind(if busy.roll(2) == 0 { "steps" } else { "plain" });
            let retry = RetryPolicy { first_ms: 20, ..RetryPolicy::default() };
            let spawn = Spawn {
                queue: busy.roll(2) == 0,
                retry: (busy.roll(3) == 0).then_some(retry),
                ..Spawn::new(steps, chat(), "input")
            };
            if let Ok(job) = manager.spawn(spawn).await {
                jobs.lock().unwrap().push(job.id);
            }
        }
        (3 | 4, Some(id)) => _ = manager.retry(id, caller, Hand::Person).await,
        (5, Some(id)) => _ = manager.stop(id, caller, How::Ask, "somebody", None).await,
        (6, Some(id)) => _ = manager.answer(id, caller, "yes".into(), Hand::Person).await,
        (_, Some(id)) => _ = manager.status(id, caller, Duration::ZERO, Hand::Person).await,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_at_once_leave_every_job_at_its_end_and_nothing_running() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("jobs.db");
    let store = Arc::new(SqliteStore::open(&file, Default::default()).unwrap());
    let busy = Arc::new(Busy::default());
    let world = World { follow: busy.clone(), reports: busy.clone(), ..World::new(busy.clone()) };
    let limits = Limits { per_session: 8, total: 8, depth: 1, queued: 50, ..Limits::NONE };
    let config = Config { limits, outcome_wait: Duration::from_millis(50), ..Config::default() };
    let (manager, _) = Manager::open(store.clone(), world, config).await.unwrap();
    manager.open_session(chat()).await.unwrap();

    let (jobs, began) = (Arc::new(Mutex::default()), Instant::now());
    let callers = (0..CALLERS).map(|_| {
        let (manager, busy, jobs) = (manager.clone(), busy.clone(), jobs.clone());
        tokio::spawn(async move {
            while began.elapsed() < TIME {
                call(&manager, &busy, &jobs).await;
            }
        })
    });
    for caller in callers.collect::<Vec<_>>() {
        caller.await.unwrap();
    }
    let known = jobs.lock().unwrap().len();
    assert!(known > 50, "only {known} jobs were spawned");

    manager.stop_tree(&chat(), How::Ask, "somebody", None).await.unwrap();
    // What had its place freed by that may have started since.
    while live(&manager).await > 0 {
        manager.stop_tree(&chat(), How::Force, "somebody", None).await.unwrap();
        tokio::task::yield_now().await;
    }
    assert!(manager.close(Duration::from_secs(20)).await, "it does not close");
    assert!(busy.live.lock().unwrap().is_empty());
    assert_eq!(*busy.violations.lock().unwrap(), Vec::<String>::new());
    let health = manager.health().await.unwrap();
    assert_eq!((health.unwritten, health.trouble, health.report_panics), (0, None, 0));

    let query = Query { limit: usize::MAX, ..Query::default() };
    let all = manager.list(&OPERATOR, query).await.unwrap().jobs;
    let there: HashSet<JobId> = all.iter().map(|job| job.id).collect();
    assert!(jobs.lock().unwrap().iter().all(|id| there.contains(id)), "a job is gone");
    for job in &all {
        assert!(job.status().is_terminal() && job.attempt <= job.spec.max_attempts, "{job:?}");
        assert!(job.status() != Status::Cancelled || job.debt.is_none(), "{job:?}");
        let reported = busy.reported.lock().unwrap();
        assert!(job.debt.as_ref().is_none_or(|debt| reported.contains(&debt.to_string())));
    }
    // It is one and the same to who comes later.
    drop(manager);
    store.close().await.unwrap();
    let again = SqliteStore::open_read_only(&file, Default::default()).unwrap();
    let query = Query { limit: usize::MAX, ..Query::default() };
    assert_eq!(backlot_jobs::Store::list(&again, query).await.unwrap().jobs, all);
}

/// Returns how many jobs have not ended.
async fn live(manager: &Manager) -> u64 {
    let census = manager.health().await.unwrap().census;
    census.queued + census.working + census.input_required
}
