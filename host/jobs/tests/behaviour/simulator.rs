//! Whole lives by chance: many short plans of what people, runs, hooks, stores and
//! crashes do to a manager, and what must hold whatever they do.
//!
//! Everything around the manager yields at moments of its own, so that what is done at
//! the same time meets in ever other orders. What fails is told with its seed and the
//! shortest plan that still fails.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque},
    fmt,
    future::pending,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use backlot_jobs::{
    Census, Change, ChangeError, Changed, Config, Continue, DeliveryId, Ended, Entry, Failure,
    FaultyStore, Following, Hand, How, Job, JobId, LaunchError, Launched, Launcher, Limits,
    Manager, MemoryStore, NextStep, Page, Phase, Prefix, Query, Question, Recovered, Reports,
    RetryPolicy, Run, RunEnding, RunId, RunOutcome, Session, Spawn, StartAt, Status, Stop,
    StopReply, Stopped, Store, StoreError, Wait, World,
};
use backlot_registry::{BoxFuture, Kind, SessionId};
use futures::FutureExt as _;
use tokio::{
    sync::{oneshot, watch},
    task::{JoinSet, yield_now},
};

use crate::{
    bridge::Bridge,
    world::{OPERATOR, TestClock, completed, failed, full, kind, outcome},
};

const LIMITS: Limits = Limits { per_session: 2, total: 3, depth: 1, queued: 6, ..Limits::NONE };
const SESSIONS: [&str; 2] = ["a", "b"];

#[test]
fn whatever_happens_jobs_are_what_they_promise_1() {
    simulate(Ground::memory, 0..500);
}

#[test]
fn whatever_happens_jobs_are_what_they_promise_2() {
    simulate(Ground::memory, 1_000_000..1_000_500);
}

#[test]
fn whatever_happens_jobs_are_what_they_promise_3() {
    simulate(Ground::memory, 2_000_000..2_000_500);
}

#[test]
fn whatever_happens_jobs_are_what_they_promise_4() {
    simulate(Ground::memory, 3_000_000..3_000_500);
}

#[test]
fn whatever_happens_jobs_are_what_they_promise_on_a_disk_that_forgets_1() {
    simulate(Ground::disk, 4_000_000..4_000_150);
}

#[test]
fn whatever_happens_jobs_are_what_they_promise_on_a_disk_that_forgets_2() {
    simulate(Ground::disk, 5_000_000..5_000_150);
}

/// What outlives a host.
enum Ground {
    Memory(MemoryStore),
    /// A SQLite database on a disk that keeps what was synced, and no more for certain.
    Disk(Arc<Bridge>),
}

impl Ground {
    fn memory() -> Self {
        Self::Memory(MemoryStore::new())
    }

    fn disk() -> Self {
        Self::Disk(Bridge::new())
    }

    fn store(&self) -> Arc<dyn Store> {
        match self {
            Self::Memory(store) => Arc::new(store.clone()),
            Self::Disk(bridge) => bridge.clone(),
        }
    }

    /// Loses the power, where there is any to lose, and checks that nothing else is lost.
    fn crash(&self, shared: &Shared) {
        let Self::Disk(bridge) = self else { return };
        let seed = shared.chance().below(1 << 32);
        let before = written(&**bridge);
        bridge.crash(seed.is_multiple_of(2).then_some(seed));
        let after = written(&**bridge);
        if before != after {
            shared.violated(format!("a crash has lost something: {before:?}, and now {after:?}"));
        }
    }
}

/// Returns all that is written, with what each job has gone through.
fn written(store: &dyn Store) -> Vec<String> {
    // It answers when it is asked.
    fn at_once<T>(answer: BoxFuture<'_, Result<T, StoreError>>) -> T {
        answer.now_or_never().unwrap().unwrap()
    }

    let query = Query { limit: usize::MAX, ..Query::default() };
    let mut written = Vec::new();
    for job in at_once(store.list(query)).jobs {
        let whole = at_once(store.job(job.id)).map(lasting);
        written.push(format!("{whole:?} {:?}", at_once(store.past_runs(job.id))));
    }
    for session in SESSIONS {
        let open = at_once(store.session(session.into()));
        written.push(format!("{open:?}"));
    }
    written
}

/// Returns a job without what need not outlive a crash of the machine: what it was that runs.
fn lasting(mut job: Job) -> Job {
    if let Phase::Working { run } = &mut job.phase {
        (run.task, run.code) = (None, None);
        job.code.clear();
    }
    job
}

fn simulate(ground: fn() -> Ground, seeds: std::ops::Range<u64>) {
    // More where somebody asks for more.
    let times = std::env::var("SIMULATED_TIMES").ok().and_then(|it| it.parse().ok());
    let seeds = seeds.start..seeds.start + times.unwrap_or(seeds.end - seeds.start);
    for seed in seeds {
        let plan = plan(&mut Chance::new(seed));
        if let Err(why) = live(ground(), seed, &plan) {
            let (plan, why) = shortest(ground, seed, plan, why);
            // It fails with that seed or with one of the next.
            let plan: Vec<String> = plan.iter().map(|step| format!("\n  {step:?}")).collect();
            panic!("seed {seed}: {why}\nby this plan:{}", plan.concat());
        }
    }
}

/// Returns the plan without what it fails without.
fn shortest(
    ground: fn() -> Ground,
    seed: u64,
    mut plan: Vec<Step>,
    mut why: String,
) -> (Vec<Step>, String) {
    let mut at = plan.len();
    while at > 0 {
        at -= 1;
        let mut shorter = plan.clone();
        shorter.remove(at);
        // With a step less, all that is left to chance falls out differently.
        let still = (seed..seed + 8).find_map(|seed| live(ground(), seed, &shorter).err());
        if let Some(still) = still {
            (plan, why) = (shorter, still);
            at = at.min(plan.len());
        }
    }
    (plan, why)
}

/// A small generator of numbers: that of Steele, Lea and Flood.
struct Chance(u64);

impl Chance {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }

    fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    fn of<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize].clone()
    }
}

/// One thing that is done. Jobs and runs are counted off among those that there are.
#[derive(Clone, Debug)]
enum Step {
    Spawn {
        session: usize,
        has_steps: bool,
        queue: bool,
        key: Option<u64>,
        tries: bool,
        later: bool,
    },
    Launch(Launching),
    Follow(Follow),
    End {
        run: usize,
        ending: RunEnding,
        telling: Telling,
    },
    Stale {
        job: usize,
        run: usize,
        ending: RunEnding,
    },
    Stop {
        job: usize,
        how: How,
    },
    Retry {
        job: usize,
        times: usize,
        hand: Hand,
    },
    Answer {
        job: usize,
        times: usize,
    },
    Status {
        job: usize,
        hand: Hand,
    },
    Settle {
        session: usize,
    },
    Rewrite {
        job: usize,
    },
    Delete {
        session: usize,
    },
    Remove {
        job: usize,
    },
    Prune {
        keep: u64,
    },
    Fail {
        nth: u64,
    },
    FailFrom {
        nth: u64,
    },
    Stall {
        nth: u64,
    },
    StallAnswer {
        nth: u64,
    },
    Heal,
    Release,
    Yield(u64),
    Pass(u64),
    Crash,
    Close,
}

/// How the next launch goes.
#[derive(Clone, Copy, Debug)]
enum Launching {
    Refuse,
    Unavailable,
    /// Once everything slow is released.
    Slow,
    Panic,
}

#[derive(Clone, Copy, Debug)]
enum Follow {
    Proceed,
    Ask,
    EndFailed,
    Fail,
    Panic,
}

/// How a run's end is told.
#[derive(Clone, Copy, Debug)]
enum Telling {
    Future,
    Finished,
    FinishedTwice,
    WithoutRun,
    Lost,
}

fn plan(chance: &mut Chance) -> Vec<Step> {
    let steps = 5 + chance.below(40);
    (0..steps).map(|_| step(chance)).collect()
}

fn step(chance: &mut Chance) -> Step {
    let job = chance.below(8) as usize;
    let session = chance.below(2) as usize;
    let hand = chance.of(&[Hand::Model, Hand::Person]);
    let endings = [
        RunEnding::Completed,
        RunEnding::Completed,
        RunEnding::Failed,
        RunEnding::Failed,
        RunEnding::Cancelled,
        RunEnding::Interrupted,
    ];
    let ending = chance.of(&endings);
    let nth = 1 + chance.below(3);
    match chance.below(100) {
        0..20 => Step::Spawn {
            session,
            has_steps: chance.one_in(2),
            queue: chance.one_in(2),
            key: chance.one_in(5).then(|| chance.below(2)),
            tries: chance.one_in(4),
            later: chance.one_in(10),
        },
        20..24 => Step::Launch(chance.of(&[
            Launching::Refuse,
            Launching::Unavailable,
            Launching::Slow,
            Launching::Slow,
            Launching::Panic,
        ])),
        24..34 => Step::Follow(chance.of(&[
            Follow::Proceed,
            Follow::Proceed,
            Follow::Proceed,
            Follow::Ask,
            Follow::Ask,
            Follow::EndFailed,
            Follow::Fail,
            Follow::Panic,
        ])),
        34..52 => Step::End {
            run: chance.below(4) as usize,
            ending,
            telling: chance.of(&[
                Telling::Future,
                Telling::Future,
                Telling::Future,
                Telling::Finished,
                Telling::FinishedTwice,
                Telling::WithoutRun,
                Telling::Lost,
            ]),
        },
        52..54 => Step::Stale { job, run: chance.below(6) as usize, ending },
        54..62 => {
            Step::Stop { job, how: chance.of(&[How::AfterStep, How::Ask, How::Ask, How::Force]) }
        }
        62..69 => Step::Retry { job, times: 1 + chance.below(3) as usize, hand },
        69..73 => Step::Answer { job, times: 1 + chance.below(2) as usize },
        73..75 => Step::Status { job, hand },
        75 => Step::Settle { session },
        76 => Step::Rewrite { job },
        77 => Step::Delete { session },
        78 => Step::Remove { job },
        79 => Step::Prune { keep: chance.below(4) },
        80 => Step::Fail { nth },
        81 => Step::FailFrom { nth },
        82 => Step::Stall { nth },
        83 => Step::StallAnswer { nth },
        84..87 => Step::Heal,
        87..89 => Step::Release,
        89..94 => Step::Yield(chance.below(40)),
        94..97 => Step::Pass(chance.of(&[10, 1_500, 20_000])),
        97..99 => Step::Crash,
        _ => Step::Close,
    }
}

/// What is known over all lives.
#[derive(Default)]
struct Ledger {
    violations: Vec<String>,
    /// The jobs that somebody was told of, in order.
    told: Vec<JobId>,
    /// Those that may be gone.
    deletable: HashSet<JobId>,
    /// How often sessions are being deleted now, and whatever has ended is.
    deleting: [usize; 2],
    pruning: usize,
    /// The attempts that were stopped, and who asked was told so.
    stopped: HashSet<(JobId, u32)>,
    launched: HashSet<RunId>,
    /// Runs that have ended, and nobody will ever be told.
    lost: HashSet<RunId>,
    /// Every run that has ended, and of which job.
    over: Vec<(JobId, RunId)>,
    /// The endings that were reported, by their deliveries.
    reported: HashMap<DeliveryId, Ended>,
    /// How each job stood when it was last looked at.
    seen: BTreeMap<JobId, Job>,
    /// How often jobs had been launched when they were found cancelled and at rest.
    cancelled: HashMap<JobId, usize>,
    launches: HashMap<JobId, usize>,
    /// How long the lives before have lasted.
    lived: Duration,
}

/// What a whole simulation shares.
#[derive(Clone)]
struct Shared {
    ledger: Arc<Mutex<Ledger>>,
    chance: Arc<Mutex<Chance>>,
}

impl Shared {
    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn chance(&self) -> MutexGuard<'_, Chance> {
        self.chance.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn violated(&self, what: impl fmt::Display) {
        self.ledger().violations.push(what.to_string());
    }

    /// Lets others go first, or not.
    async fn jitter(&self) {
        let times = self.chance().below(4);
        for _ in 0..times {
            yield_now().await;
        }
    }
}

/// Runs, what follows them, and who hears of it: of one life.
struct Life {
    shared: Shared,
    state: Mutex<LifeState>,
    released: watch::Sender<u64>,
}

#[derive(Default)]
struct LifeState {
    launchings: VecDeque<Launching>,
    follows: VecDeque<Follow>,
    live: BTreeMap<RunId, (JobId, oneshot::Sender<RunOutcome>)>,
    order: Vec<RunId>,
    known: HashSet<RunId>,
    /// Runs that were asked to stop and have their grace.
    doomed: Vec<RunId>,
    /// Ends that are told in another way than by the run's own future.
    silent: Vec<oneshot::Sender<RunOutcome>>,
    reported: HashSet<DeliveryId>,
}

impl Life {
    fn new(shared: Shared) -> Arc<Self> {
        Arc::new(Self { shared, state: Mutex::default(), released: watch::Sender::new(0) })
    }

    fn state(&self) -> MutexGuard<'_, LifeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn release(&self) {
        self.released.send_modify(|times| *times += 1);
    }

    fn nth_live(&self, nth: usize) -> Option<(JobId, RunId)> {
        let state = self.state();
        let live: Vec<_> = state.order.iter().filter(|run| state.live.contains_key(run)).collect();
        let run = **live.get(nth % live.len().max(1))?;
        Some((state.live[&run].0, run))
    }

    fn live_of(&self, job: JobId) -> Vec<RunId> {
        let state = self.state();
        state.live.iter().filter(|(_, (of, _))| *of == job).map(|(run, _)| *run).collect()
    }

    /// Takes a run from those that are under way.
    fn take(&self, run: RunId) -> Option<oneshot::Sender<RunOutcome>> {
        let (job, end) = self.state().live.remove(&run)?;
        self.shared.ledger().over.push((job, run));
        Some(end)
    }

    fn end(&self, run: RunId, ending: RunEnding) {
        if let Some(end) = self.take(run) {
            // Nobody may follow it any more.
            let _ = end.send(told(run, ending));
        }
    }

    fn begin(&self, job: &Job, run: RunId) -> BoxFuture<'static, RunOutcome> {
        let (end, ended) = oneshot::channel();
        let mut state = self.state();
        if state.live.values().any(|(of, _)| *of == job.id) {
            self.shared.violated(format!("two runs of {} at once", job.id));
        }
        state.live.insert(run, (job.id, end));
        state.order.push(run);
        state.known.insert(run);
        Box::pin(async {
            match ended.await {
                Ok(outcome) => outcome,
                Err(_) => pending().await,
            }
        })
    }
}

fn told(run: RunId, ending: RunEnding) -> RunOutcome {
    match ending {
        RunEnding::Completed => completed(run, "output"),
        RunEnding::Failed => failed(run, "why"),
        other => outcome(run, other),
    }
}

impl Launcher for Life {
    fn launch(&self, job: &Job, run: RunId) -> BoxFuture<'_, Result<Launched, LaunchError>> {
        if job.run() != Some(run) {
            self.shared.violated(format!("{} was launched on a run that it is not on", job.id));
        }
        {
            let mut ledger = self.shared.ledger();
            *ledger.launches.entry(job.id).or_default() += 1;
            if !ledger.launched.insert(run) {
                ledger.violations.push(format!("{run} was launched twice"));
            }
        }
        let job = job.clone();
        Box::pin(async move {
            self.shared.jitter().await;
            let launching = self.state().launchings.pop_front();
            match launching {
                Some(Launching::Refuse) => return Err(LaunchError::Refused("no".into())),
                Some(Launching::Unavailable) => {
                    return Err(LaunchError::Unavailable("not now".into()));
                }
                Some(Launching::Panic) => std::panic::resume_unwind(Box::new("launch")),
                Some(Launching::Slow) => {
                    let _ = self.released.subscribe().changed().await;
                }
                None => {}
            }
            let ended = self.begin(&job, run);
            self.shared.jitter().await;
            let is_told = self.shared.chance().one_in(2);
            Ok(Launched { task: is_told.then(|| "task".into()), code: None, ended })
        })
    }

    fn stop(&self, stop: Stop) -> BoxFuture<'_, Result<Stopped, String>> {
        Box::pin(async move {
            self.shared.jitter().await;
            let (is_live, is_known) = {
                let state = self.state();
                (state.live.contains_key(&stop.run), state.known.contains(&stop.run))
            };
            let fate = self.shared.chance().below(6);
            let stopped = match (is_live, stop.how, fate) {
                (true, How::AfterStep, _) => Ok(Stopped::AfterStep),
                (true, How::Ask, 0) => Err("not now".to_owned()),
                // It ends later, or as it likes.
                (true, How::Ask, 1) => {
                    self.state().doomed.push(stop.run);
                    Ok(Stopped::Stopping)
                }
                (true, ..) => {
                    self.end(stop.run, RunEnding::Cancelled);
                    Ok(Stopped::Stopping)
                }
                (false, _, 0) => Ok(Stopped::Unknown),
                (false, ..) if is_known => Ok(Stopped::AlreadyFinished),
                (false, ..) => Ok(Stopped::Unknown),
            };
            self.shared.jitter().await;
            stopped
        })
    }
}

impl Continue for Life {
    fn has_steps(&self, job: &Job) -> bool {
        job.spec.kind.as_str() == "steps"
    }

    fn after<'a>(
        &'a self,
        job: &'a Job,
        outcome: &'a RunOutcome,
    ) -> BoxFuture<'a, Result<Following, String>> {
        if self.shared.ledger().stopped.contains(&(job.id, job.attempt)) {
            self.shared.violated(format!("{} was asked what follows after a stop", job.id));
        }
        if !matches!(outcome.ending, RunEnding::Completed | RunEnding::Failed) {
            self.shared.violated(format!("{} was asked what follows {outcome:?}", job.id));
        }
        Box::pin(async move {
            self.shared.jitter().await;
            let follow = self.state().follows.pop_front();
            match follow {
                None => Ok(Following::END),
                Some(Follow::Proceed) => Ok(Following::Proceed(NextStep {
                    kind: None,
                    input: "next".into(),
                    state: Some(format!("after {}", job.step)),
                })),
                Some(Follow::Ask) => Ok(Following::Ask {
                    question: Question { prompt: "?".into(), schema: None },
                    state: None,
                }),
                Some(Follow::EndFailed) => {
                    Ok(Following::End { state: None, failure: Some("no good".into()) })
                }
                Some(Follow::Fail) => Err("no rule".into()),
                Some(Follow::Panic) => std::panic::resume_unwind(Box::new("hook")),
            }
        })
    }

    fn render<'a>(&'a self, _: &'a Job) -> BoxFuture<'a, Option<String>> {
        Box::pin(async { None })
    }

    fn check_answer<'a>(
        &'a self,
        _: &'a Question,
        _: &'a str,
    ) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(async {
            self.shared.jitter().await;
            Ok(())
        })
    }
}

impl Reports for Life {
    fn on_finished(&self, job: &Job) {
        let (Some(delivery), Some(ended)) = (job.debt.clone(), job.ended().cloned()) else {
            return self.shared.violated(format!("reported without an ending: {job:?}"));
        };
        if job.status() == Status::Cancelled {
            self.shared.violated(format!("{} is cancelled, and owed", job.id));
        }
        if !self.state().reported.insert(delivery.clone()) {
            self.shared.violated(format!("{delivery} was reported twice"));
        }
        let before = self.shared.ledger().reported.insert(delivery.clone(), ended.clone());
        if before.is_some_and(|before| before.at_ms != ended.at_ms || before.ending != ended.ending)
        {
            self.shared.violated(format!("{delivery} names two endings"));
        }
    }
}

/// A store whose every answer takes its time.
struct Shaken {
    store: FaultyStore,
    shared: Shared,
}

impl Shaken {
    fn shake<'a, T: Send + 'a>(
        &'a self,
        call: impl FnOnce(&'a FaultyStore) -> BoxFuture<'a, T> + Send + 'a,
    ) -> BoxFuture<'a, T> {
        Box::pin(async move {
            self.shared.jitter().await;
            let answer = call(&self.store).await;
            self.shared.jitter().await;
            answer
        })
    }
}

impl Store for Shaken {
    fn change(&self, change: Change) -> BoxFuture<'_, Result<Changed, ChangeError>> {
        self.shake(|store| store.change(change))
    }

    fn job(&self, id: JobId) -> BoxFuture<'_, Result<Option<Job>, StoreError>> {
        self.shake(move |store| store.job(id))
    }

    fn job_of(
        &self,
        id: JobId,
        session: SessionId,
    ) -> BoxFuture<'_, Result<Option<Job>, StoreError>> {
        self.shake(move |store| store.job_of(id, session))
    }

    fn find(&self, prefix: Prefix) -> BoxFuture<'_, Result<Vec<JobId>, StoreError>> {
        self.shake(move |store| store.find(prefix))
    }

    fn list(&self, query: Query) -> BoxFuture<'_, Result<Page, StoreError>> {
        self.shake(|store| store.list(query))
    }

    fn past_runs(&self, id: JobId) -> BoxFuture<'_, Result<Vec<Run>, StoreError>> {
        self.shake(move |store| store.past_runs(id))
    }

    fn owed(
        &self,
        session: Option<SessionId>,
        after: Option<(u64, JobId)>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<Job>, StoreError>> {
        self.shake(move |store| store.owed(session, after, limit))
    }

    fn calls(
        &self,
        except: Vec<String>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<Job>, StoreError>> {
        self.shake(move |store| store.calls(except, limit))
    }

    fn session(&self, id: SessionId) -> BoxFuture<'_, Result<Option<Session>, StoreError>> {
        self.shake(|store| store.session(id))
    }

    fn entries(
        &self,
        session: SessionId,
        after: u64,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<(u64, Entry)>, StoreError>> {
        self.shake(move |store| store.entries(session, after, limit))
    }

    fn census(&self) -> BoxFuture<'_, Result<Census, StoreError>> {
        self.shake(|store| store.census())
    }
}

/// A manager in one life, between a start and a crash.
struct Host {
    manager: Manager,
    life: Arc<Life>,
    store: FaultyStore,
    under: Arc<dyn Store>,
    shared: Shared,
    doing: JoinSet<()>,
}

/// Lives through the plan, and tells what did not hold.
fn live(ground: Ground, seed: u64, plan: &[Step]) -> Result<(), String> {
    let shared = Shared {
        ledger: Arc::default(),
        chance: Arc::new(Mutex::new(Chance::new(seed.wrapping_add(1 << 40)))),
    };
    let lived = catch_unwind(AssertUnwindSafe(|| {
        let mut rest = VecDeque::from(plan.to_vec());
        // A life ends with its runtime, and with that all that goes on.
        while in_a_life(&ground, &shared, async |host| host.live(&mut rest).await) {}
        in_a_life(&ground, &shared, async |host| host.is_at_rest().await);
    }));
    let violations = std::mem::take(&mut shared.ledger().violations);
    match (violations.first(), lived) {
        (Some(violation), _) => Err(violation.clone()),
        (None, Err(panic)) => {
            let text = panic.downcast_ref::<String>().cloned();
            Err(text.unwrap_or_else(|| "it panicked".to_owned()))
        }
        (None, Ok(())) => Ok(()),
    }
}

fn in_a_life<T>(ground: &Ground, shared: &Shared, live: impl AsyncFnOnce(&mut Host) -> T) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    let lived = runtime.block_on(async {
        let began = tokio::time::Instant::now();
        let lived = live(&mut Host::open(ground.store(), shared).await).await;
        shared.ledger().lived += began.elapsed();
        lived
    });
    drop(runtime);
    ground.crash(shared);
    lived
}

impl Host {
    async fn open(under: Arc<dyn Store>, shared: &Shared) -> Self {
        let store = FaultyStore::new(under.clone());
        let front = Arc::new(Shaken { store: store.clone(), shared: shared.clone() });
        let life = Life::new(shared.clone());
        let clock = Arc::new(TestClock::new());
        clock.set_by(shared.ledger().lived.as_millis() as i64);
        let passed = clock.clone();
        let world = World {
            follow: life.clone(),
            reports: life.clone(),
            clock,
            elapsed: Arc::new(move || passed.elapsed()),
            ..World::new(life.clone())
        };
        let config = Config {
            limits: LIMITS,
            max_continuations: 3,
            patience: Duration::from_secs(5),
            ..Config::default()
        };
        let (manager, recovered): (_, Recovered) =
            Manager::open(front, world, config).await.unwrap();
        let shared = shared.clone();
        let host = Self { manager, life, store, under, shared, doing: JoinSet::new() };
        let jobs = host.jobs().await;
        if jobs.iter().any(|job| job.status() == Status::Working) {
            host.shared.violated("a job works without a run after a start");
        }
        let owed = jobs.iter().filter_map(|job| job.debt.as_ref());
        let unheard = owed.filter(|debt| !host.life.state().reported.contains(debt)).count();
        if unheard > 0 || recovered.owed + recovered.interrupted < host.reported() {
            host.shared.violated(format!("{unheard} endings were not reported at the start"));
        }
        for session in SESSIONS {
            host.manager.open_session(session.into()).await.unwrap();
        }
        host
    }

    fn reported(&self) -> usize {
        self.life.state().reported.len()
    }

    /// Lives until the plan is over or a crash comes, and tells which.
    async fn live(&mut self, rest: &mut VecDeque<Step>) -> bool {
        while let Some(step) = rest.pop_front() {
            match step {
                Step::Crash => return true,
                Step::Close => {
                    let runs: Vec<RunId> = self.life.state().live.keys().copied().collect();
                    for run in runs {
                        self.life.end(run, RunEnding::Interrupted);
                    }
                    self.manager.close(Duration::from_secs(5)).await;
                    return true;
                }
                step => self.take(step).await,
            }
            self.shared.jitter().await;
            self.observe().await;
        }
        self.come_to_rest().await;
        false
    }

    async fn take(&mut self, step: Step) {
        let (manager, shared, life) =
            (self.manager.clone(), self.shared.clone(), self.life.clone());
        match step {
            Step::Spawn { session, has_steps, queue, key, tries, later } => {
                let session: SessionId = SESSIONS[session].into();
                let kind: Kind = kind(if has_steps { "steps" } else { "plain" });
                let on = vec![Failure::Work, Failure::Launch, Failure::Interrupted];
                let policy = RetryPolicy { on, jitter: 0.0, ..RetryPolicy::default() };
                let spawn = Spawn {
                    queue,
                    key: key.map(|key| format!("{kind} {key}")),
                    retry: tries.then_some(policy),
                    start: if later { StartAt::After(1_000) } else { StartAt::Now },
                    ..Spawn::new(kind, session, "input")
                };
                self.doing.spawn(async move {
                    if let Ok(job) = manager.spawn(spawn).await {
                        let mut ledger = shared.ledger();
                        if !ledger.told.contains(&job.id) {
                            ledger.told.push(job.id);
                        }
                    }
                });
            }
            Step::Launch(launching) => life.state().launchings.push_back(launching),
            Step::Follow(follow) => life.state().follows.push_back(follow),
            Step::End { run, ending, telling } => self.end(run, ending, telling),
            Step::Stale { job, run, ending } => {
                let Some(job) = self.nth_job(job) else { return };
                let over = shared.ledger().over.clone();
                let of: Vec<_> = over.iter().filter(|(of, _)| *of == job).collect();
                // The last one may be yet to be told, and waited for.
                let Some((_, run)) = of.get(run).filter(|_| run + 1 < of.len()) else { return };
                let outcome = told(*run, ending);
                self.doing.spawn(async move { manager.run_finished(job, outcome).await });
            }
            Step::Stop { job, how } => {
                let Some(job) = self.nth_job(job) else { return };
                self.doing.spawn(async move {
                    let stopped = manager.stop(job, &OPERATOR, how, "somebody", None).await;
                    match stopped {
                        Err(_) | Ok(StopReply::Already(_)) => {}
                        Ok(stopped) => {
                            let job = stopped.job();
                            shared.ledger().stopped.insert((job.id, job.attempt));
                        }
                    }
                });
            }
            Step::Retry { job, times, hand } => {
                let Some(job) = self.nth_job(job) else { return };
                for _ in 0..times {
                    let manager = manager.clone();
                    self.doing.spawn(async move {
                        let _ = manager.retry(job, &OPERATOR, hand).await;
                    });
                }
            }
            Step::Answer { job, times } => {
                let Some(job) = self.nth_job(job) else { return };
                for _ in 0..times {
                    let manager = manager.clone();
                    self.doing.spawn(async move {
                        let _ = manager.answer(job, &OPERATOR, "yes".into(), Hand::Person).await;
                    });
                }
            }
            Step::Status { job, hand } => {
                let Some(job) = self.nth_job(job) else { return };
                let wait = Duration::from_secs(1);
                self.doing.spawn(async move {
                    let _ = manager.status(job, &OPERATOR, wait, hand).await;
                });
            }
            Step::Settle { session } => {
                let session: SessionId = SESSIONS[session].into();
                self.doing.spawn(async move {
                    if let Ok(Some(owed)) = manager.owed(&session).await {
                        let _ = manager.settle(&session, &owed.ids).await;
                    }
                });
            }
            Step::Rewrite { job } => {
                let Some(job) = self.nth_job(job) else { return };
                self.doing.spawn(async move {
                    if let Ok(job) = manager.get(job, &OPERATOR).await
                        && let Some(run) = job.run()
                    {
                        let _ = manager.rewrite(job.id, run, "learned".into()).await;
                    }
                });
            }
            Step::Delete { session } => {
                let name: SessionId = SESSIONS[session].into();
                // One that does not live to its end may have deleted all the same.
                shared.ledger().deleting[session] += 1;
                self.doing.spawn(async move {
                    let bound = Duration::from_secs(1);
                    if let Ok(gone) = manager.delete_session(&name, "somebody", bound).await {
                        shared.ledger().deletable.extend(gone);
                    }
                    shared.ledger().deleting[session] -= 1;
                    let _ = manager.open_session(name).await;
                });
            }
            Step::Remove { job } => {
                let Some(job) = self.nth_job(job) else { return };
                shared.ledger().deletable.insert(job);
                self.doing.spawn(async move {
                    let _ = manager.remove(job, &OPERATOR).await;
                });
            }
            Step::Prune { keep } => {
                shared.ledger().pruning += 1;
                self.doing.spawn(async move {
                    if let Ok(gone) = manager.prune(keep, Duration::from_secs(1_000)).await {
                        shared.ledger().deletable.extend(gone);
                    }
                    shared.ledger().pruning -= 1;
                });
            }
            Step::Fail { nth } => self.store.fail_nth(nth, full()),
            Step::FailFrom { nth } => self.store.fail_from(nth, full()),
            Step::Stall { nth } => self.store.stall_nth(nth),
            Step::StallAnswer { nth } => self.store.stall_answer(nth),
            Step::Heal => self.store.heal(),
            Step::Release => life.release(),
            Step::Yield(times) => {
                for _ in 0..times {
                    yield_now().await;
                }
            }
            Step::Pass(ms) => tokio::time::sleep(Duration::from_millis(ms)).await,
            Step::Crash | Step::Close => {}
        }
    }

    fn end(&mut self, run: usize, ending: RunEnding, telling: Telling) {
        let Some((job, run)) = self.life.nth_live(run) else { return };
        let Some(end) = self.life.take(run) else { return };
        let outcome = match telling {
            Telling::Future => {
                let _ = end.send(told(run, ending));
                return;
            }
            Telling::Lost => {
                self.shared.ledger().lost.insert(run);
                self.life.state().silent.push(end);
                return;
            }
            Telling::Finished | Telling::FinishedTwice => told(run, ending),
            Telling::WithoutRun => RunOutcome { run: None, ..told(run, ending) },
        };
        match telling {
            Telling::FinishedTwice => _ = end.send(told(run, ending)),
            _ => self.life.state().silent.push(end),
        }
        let manager = self.manager.clone();
        self.doing.spawn(async move { manager.run_finished(job, outcome).await });
    }

    fn nth_job(&self, nth: usize) -> Option<JobId> {
        let ledger = self.shared.ledger();
        ledger.told.get(nth % ledger.told.len().max(1)).copied()
    }

    async fn jobs(&self) -> Vec<Job> {
        let query = Query { limit: usize::MAX, ..Query::default() };
        self.under.list(query).await.unwrap().jobs
    }

    /// Looks at all jobs, and at what has become of them since the last look.
    async fn observe(&self) {
        let jobs = self.jobs().await;
        let mut ledger = self.shared.ledger();
        let mut violated = Vec::new();
        for session in SESSIONS {
            let of = jobs.iter().filter(|job| job.spec.parent.as_str() == session);
            if of.filter(|job| job.status().is_live()).count() > LIMITS.per_session {
                violated.push(format!("too many jobs of {session} are live"));
            }
        }
        if jobs.iter().filter(|job| job.status().is_live()).count() > LIMITS.total {
            violated.push("too many jobs are live".to_owned());
        }
        let there: BTreeSet<JobId> = jobs.iter().map(|job| job.id).collect();
        let gone: Vec<JobId> =
            ledger.told.iter().filter(|id| !there.contains(id)).copied().collect();
        for id in gone {
            let parent = ledger.seen.get(&id).map(|job| job.spec.parent.clone());
            let mut deleting = SESSIONS.iter().zip(ledger.deleting).filter(|(_, times)| *times > 0);
            let is_deleted =
                deleting.any(|(name, _)| parent.as_ref().is_none_or(|it| it.as_str() == *name));
            if is_deleted || ledger.pruning > 0 {
                ledger.deletable.insert(id);
            }
            if !ledger.deletable.contains(&id) {
                violated.push(format!("{id} was told of and is gone"));
            }
        }
        for job in &jobs {
            if job.attempt > job.spec.max_attempts || job.continuations > 3 {
                violated.push(format!("too many runs: {job:?}"));
            }
            if job.status() == Status::Cancelled && job.debt.is_some() {
                violated.push(format!("cancelled, and owed: {job:?}"));
            }
            if let Some(before) = ledger.seen.get(&job.id) {
                violated.extend(changed(before, job));
            }
        }
        violated.extend(overtaken(&ledger.seen, &jobs));
        ledger.seen = jobs.into_iter().map(|job| (job.id, job)).collect();
        ledger.violations.extend(violated);
    }

    /// Lets everything come to rest, and looks whether all is in order.
    async fn come_to_rest(&mut self) {
        self.store.heal();
        {
            let mut state = self.life.state();
            state.launchings.clear();
            state.follows.clear();
        }
        let deadline = tokio::time::Instant::now() + Duration::from_secs(600);
        while !self.doing.is_empty() {
            self.life.release();
            let done = tokio::time::timeout(Duration::from_secs(1), self.doing.join_next()).await;
            if let Ok(Some(Err(panic))) = done {
                return self.shared.violated(format!("an operation panicked: {panic}"));
            }
            if tokio::time::Instant::now() > deadline {
                return self.shared.violated("an operation does not end");
            }
        }
        self.life.release();
        tokio::time::sleep(Duration::from_secs(30)).await;
        let doomed = std::mem::take(&mut self.life.state().doomed);
        for run in doomed {
            self.life.end(run, RunEnding::Cancelled);
        }
        tokio::time::sleep(Duration::from_secs(30)).await;
        self.observe().await;
        self.check_runs().await;
        // Whoever still works ends, and whoever waits has a turn.
        for _ in 0..60 {
            let runs: Vec<RunId> = self.life.state().live.keys().copied().collect();
            for run in runs {
                self.life.end(run, RunEnding::Completed);
            }
            for job in self.jobs().await {
                let is_lost = job.run().is_some_and(|run| self.shared.ledger().lost.contains(&run));
                if job.status() == Status::InputRequired || is_lost {
                    let _ = self.manager.stop(job.id, &OPERATOR, How::Force, "end", None).await;
                }
            }
            tokio::time::sleep(Duration::from_secs(2)).await;
            self.observe().await;
            if self.jobs().await.iter().all(|job| job.status().is_terminal()) {
                break;
            }
        }
        self.check_runs().await;
        for job in self.jobs().await {
            if !job.status().is_terminal() {
                self.shared.violated(format!("it does not end: {job:?}"));
            }
            if job.debt.as_ref().is_some_and(|debt| !self.life.state().reported.contains(debt)) {
                self.shared.violated(format!("its ending was never reported: {job:?}"));
            }
        }
        let health = self.manager.health().await.unwrap();
        if health.unwritten > 0 || health.trouble.is_some() {
            self.shared.violated(format!("all is well, but it says {health:?}"));
        }
        // What has ended unheard is waited for, unless somebody has recorded its end.
        let recorded: HashSet<RunId> =
            self.jobs().await.iter().filter_map(|job| Some(job.last_run()?.id)).collect();
        let is_unheard = |run: &RunId| !recorded.contains(run);
        let has_unheard = self.shared.ledger().lost.iter().any(is_unheard);
        if !self.manager.close(Duration::from_secs(60)).await && !has_unheard {
            self.shared.violated("it does not close");
        }
    }

    /// Every job that works has its run, and every run its job.
    async fn check_runs(&self) {
        let jobs = self.jobs().await;
        for job in &jobs {
            let live = self.life.live_of(job.id);
            let mut ledger = self.shared.ledger();
            let is_lost = job.run().is_some_and(|run| ledger.lost.contains(&run));
            let run: Vec<RunId> = job.run().into_iter().filter(|_| !is_lost).collect();
            if live != run {
                ledger.violations.push(format!("{live:?} run, and the job is {job:?}"));
            }
            if job.status() == Status::Cancelled {
                let launches = ledger.launches.get(&job.id).copied().unwrap_or_default();
                let before = *ledger.cancelled.entry(job.id).or_insert(launches);
                if before != launches {
                    ledger.violations.push(format!("launched although cancelled: {job:?}"));
                }
            }
        }
        let there: HashSet<JobId> = jobs.iter().map(|job| job.id).collect();
        for (job, _) in self.life.state().live.values() {
            if !there.contains(job) {
                self.shared.violated(format!("a run of {job} goes on, which is gone"));
            }
        }
    }

    /// Looks at what a start finds after all has come to rest.
    async fn is_at_rest(&mut self) {
        for job in self.jobs().await {
            if !job.status().is_terminal() {
                self.shared.violated(format!("it was at rest, and is not any more: {job:?}"));
            }
        }
        let launches = self.shared.ledger().launched.len();
        tokio::time::sleep(Duration::from_secs(600)).await;
        if launches != self.shared.ledger().launched.len() {
            self.shared.violated("something was launched after all had ended");
        }
    }
}

/// Tells what cannot become of a job.
fn changed(before: &Job, now: &Job) -> Option<String> {
    let (was, is) = (before.status(), now.status());
    let is_same = was == is && before.endings == now.endings && before.ended() == now.ended();
    let why = match was {
        Status::Completed | Status::Cancelled if !is_same => "an ending has changed",
        Status::Failed if !is_same && now.attempt <= before.attempt => {
            "a failure has changed without a retry"
        }
        _ if now.attempt < before.attempt => "attempts were taken back",
        _ if now.endings < before.endings => "an ending was taken back",
        _ if now.updated_ms < before.updated_ms => "time went back",
        _ => return None,
    };
    Some(format!("{why}: {before:?} {now:?}"))
}

/// Tells which job of a session started before another that had waited longer.
fn overtaken(seen: &BTreeMap<JobId, Job>, now: &[Job]) -> Vec<String> {
    let place = |job: &Job| match &job.phase {
        Phase::Queued { wait: Wait::Place, place, .. } => Some(*place),
        _ => None,
    };
    let waited = |job: &Job| seen.get(&job.id).and_then(place);
    let started = now.iter().filter(|job| job.status() == Status::Working);
    let overtaking = started.filter_map(|job| Some((job, waited(job)?)));
    let is_overtaken = |job: &Job, by: &Job, place_of: u64| {
        job.spec.parent == by.spec.parent
            && place(job).is_some_and(|place| place < place_of)
            && waited(job).is_some()
    };
    overtaking
        .filter(|(by, place)| now.iter().any(|job| is_overtaken(job, by, *place)))
        .map(|(by, _)| format!("started before its turn: {by:?}"))
        .collect()
}
