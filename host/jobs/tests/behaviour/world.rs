//! A host around a manager whose runs, hooks and clock do what a test tells them.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    future::pending,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, AtomicI64, Ordering},
        mpsc,
    },
    time::Duration,
};

use backlot_jobs::{
    Change, Changed, Code, Config, Continue, Event, FaultyStore, Following, Gone, Hand, How, Job,
    JobId, LaunchError, Launched, Launcher, Limits, Manager, MemoryStore, NextStep, OpenError,
    Question, Recovered, Reports, Resolved, Resolver, RunEnding, RunId, RunOutcome, Spawn, Status,
    Stop, StopReply, Stopped, Store, StoreError, World,
};
use backlot_registry::{BoxFuture, Caller, Clock, Kind, SessionId};
use tokio::{sync::oneshot, time::Instant};

use crate::bridge::Bridge;

pub(crate) const LONG: Duration = Duration::from_secs(1_000_000);
pub(crate) const OPERATOR: Caller = Caller::Operator;
/// What the clock says at the beginning: 2026-11-30 04:30:00 UTC.
pub(crate) const DAWN_MS: u64 = 1_796_013_000_000;

/// Every store that the promises are held against, empty.
pub(crate) fn stores() -> Vec<Arc<dyn Store>> {
    vec![Arc::new(MemoryStore::new()), Bridge::new()]
}

/// A host on each store.
pub(crate) async fn hosts() -> Vec<Host> {
    hosts_with(Config::default()).await
}

pub(crate) async fn hosts_with(config: Config) -> Vec<Host> {
    let mut hosts = Vec::new();
    for store in stores() {
        hosts.push(Host::on(store, config.clone()).await);
    }
    hosts
}

/// A configuration with room for so many live jobs of a session, and of all.
pub(crate) fn room_for(per_session: usize, total: usize) -> Config {
    let config = Config::default();
    let limits = Limits { per_session, total, per_family: per_session, ..config.limits };
    Config { limits, ..config }
}

/// A manager, and everything around it. Its session is `chat`.
pub(crate) struct Host {
    pub(crate) manager: Manager,
    pub(crate) recovered: Recovered,
    pub(crate) store: FaultyStore,
    pub(crate) runs: Arc<Runs>,
    pub(crate) hook: Arc<Hook>,
    pub(crate) heard: Arc<Heard>,
    pub(crate) kinds: Arc<Kinds>,
    pub(crate) clock: Arc<TestClock>,
    under: Arc<dyn Store>,
    config: Config,
}

impl Host {
    pub(crate) async fn on(under: Arc<dyn Store>, config: Config) -> Self {
        let host = Self::open(under, config, Arc::new(TestClock::new())).await.unwrap();
        host.manager.open_session(chat()).await.unwrap();
        host
    }

    /// Opens a manager on a store, with a world that is new except for the clock.
    pub(crate) async fn open(
        under: Arc<dyn Store>,
        config: Config,
        clock: Arc<TestClock>,
    ) -> Result<Self, OpenError> {
        let store = FaultyStore::new(under.clone());
        Self::open_through(Arc::new(store.clone()), store, under, config, clock).await
    }

    /// Opens a manager on a store that stands before the faulty one.
    pub(crate) async fn open_through(
        front: Arc<dyn Store>,
        store: FaultyStore,
        under: Arc<dyn Store>,
        config: Config,
        clock: Arc<TestClock>,
    ) -> Result<Self, OpenError> {
        let (runs, hook, heard) = (Runs::new(), Arc::new(Hook::default()), Arc::default());
        let (kinds, passed) = (Arc::new(Kinds::default()), clock.clone());
        let world = World {
            resolver: kinds.clone(),
            launcher: runs.clone(),
            follow: hook.clone(),
            reports: Arc::<Heard>::clone(&heard),
            clock: clock.clone(),
            elapsed: Arc::new(move || passed.elapsed()),
        };
        let (manager, recovered) = Manager::open(front, world, config.clone()).await?;
        Ok(Self { manager, recovered, store, runs, hook, heard, kinds, clock, under, config })
    }

    /// Ends the host at once, with its runs, and starts another on the same data.
    pub(crate) async fn crash(self) -> Self {
        let Self { under, config, clock, manager, .. } = self;
        // What it was about to write is never written.
        drop(manager);
        Self::open(under, config, clock).await.unwrap()
    }

    /// The store without its faults.
    pub(crate) fn under(&self) -> Arc<dyn Store> {
        self.under.clone()
    }

    pub(crate) async fn spawn(&self, spawn: Spawn) -> Job {
        self.manager.spawn(spawn).await.unwrap()
    }

    /// Spawns a job, and returns it with its run.
    pub(crate) async fn start(&self) -> (Job, Work) {
        self.start_with(work()).await
    }

    pub(crate) async fn start_with(&self, spawn: Spawn) -> (Job, Work) {
        let job = self.spawn(spawn).await;
        (job, self.runs.next().await)
    }

    /// Spawns a job that fails.
    pub(crate) async fn failed(&self) -> Job {
        self.failed_with(work()).await
    }

    pub(crate) async fn failed_with(&self, spawn: Spawn) -> Job {
        let (job, run) = self.start_with(spawn).await;
        run.fail("it broke");
        self.ended(job.id).await
    }

    /// Spawns a job that ends by asking a person.
    pub(crate) async fn asking(&self) -> Job {
        self.hook.say(ask("go on?"));
        let (job, run) = self.start().await;
        run.complete("half");
        self.until(job.id, Status::InputRequired).await
    }

    pub(crate) async fn job(&self, id: JobId) -> Job {
        self.manager.get(id, &OPERATOR).await.unwrap()
    }

    pub(crate) async fn stands(&self, id: JobId) -> Status {
        self.job(id).await.status()
    }

    pub(crate) async fn is_known(&self, id: JobId) -> bool {
        self.under.job(id).await.unwrap().is_some()
    }

    /// Lets a job come to its end, without time passing and without anybody being told.
    pub(crate) async fn ended(&self, id: JobId) -> Job {
        self.when(id, |job| job.status().is_terminal()).await
    }

    pub(crate) async fn until(&self, id: JobId, status: Status) -> Job {
        self.when(id, |job| job.status() == status).await
    }

    pub(crate) async fn when(&self, id: JobId, mut condition: impl FnMut(&Job) -> bool) -> Job {
        for _ in 0..10_000 {
            let job = self.job(id).await;
            if condition(&job) {
                return job;
            }
            tokio::task::yield_now().await;
        }
        panic!("it did not come about: {:?}", self.job(id).await);
    }

    pub(crate) async fn stop(&self, id: JobId, how: How) -> StopReply {
        self.manager.stop(id, &OPERATOR, how, "anna", Some("no need".into())).await.unwrap()
    }

    pub(crate) async fn retry(&self, id: JobId) -> (Job, Work) {
        let job = self.manager.retry(id, &OPERATOR, Hand::Model).await.unwrap();
        (job, self.runs.next().await)
    }

    /// What is owed to `chat`, by job.
    pub(crate) async fn owed(&self) -> Vec<JobId> {
        let owed = self.manager.owed(&chat()).await.unwrap();
        owed.map(|owed| owed.jobs.iter().map(|job| job.id).collect()).unwrap_or_default()
    }

    /// Changes a job behind the manager's back, as another host would.
    pub(crate) async fn happen(&self, job: JobId, event: Event) -> Job {
        let now_ms = self.clock.epoch_ms();
        let limits = self.config.limits;
        let change = Change::Happen { job, event, limits, now_ms };
        match self.under.change(change).await.unwrap() {
            Changed::Job { job, .. } => *job,
            other => panic!("{other:?}"),
        }
    }
}

pub(crate) fn chat() -> SessionId {
    "chat".into()
}

pub(crate) fn session(id: &SessionId) -> Caller {
    Caller::Session(id.clone())
}

pub(crate) fn kind(name: &str) -> Kind {
    Kind::new(name).unwrap()
}

/// The spawn of a job of `chat`.
pub(crate) fn work() -> Spawn {
    Spawn::new(kind("work"), chat(), "input")
}

pub(crate) fn work_of(parent: &SessionId) -> Spawn {
    Spawn::new(kind("work"), parent.clone(), "input")
}

pub(crate) fn queued() -> Spawn {
    Spawn { queue: true, ..work() }
}

pub(crate) fn full() -> StoreError {
    StoreError::Full { path: "jobs.db".into() }
}

/// Lets everything else run as far as it gets without time passing.
pub(crate) async fn settle_down() {
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
}

/// Lets everything else run until the condition holds. It must come to hold without
/// time passing.
pub(crate) async fn until(mut condition: impl FnMut() -> bool) {
    for _ in 0..10_000 {
        if condition() {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("it did not come about");
}

pub(crate) async fn pass(time: Duration) {
    tokio::time::sleep(time).await;
    settle_down().await;
}

/// A clock that goes with the time of the test, and can be set.
pub(crate) struct TestClock {
    began: Instant,
    set_by_ms: AtomicI64,
}

impl TestClock {
    pub(crate) fn new() -> Self {
        Self { began: Instant::now(), set_by_ms: AtomicI64::new(0) }
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// Sets the time of day forth or back.
    pub(crate) fn set_by(&self, ms: i64) {
        self.set_by_ms.fetch_add(ms, Ordering::SeqCst);
    }
}

impl Clock for TestClock {
    fn epoch_ms(&self) -> u64 {
        let now_ms = DAWN_MS + self.elapsed().as_millis() as u64;
        now_ms.saturating_add_signed(self.set_by_ms.load(Ordering::SeqCst))
    }
}

/// How a launch goes.
pub(crate) enum Beginning {
    Start,
    /// The run has ended before it is told of.
    Ends(RunOutcome),
    Refuse(&'static str),
    Unavailable(&'static str),
    /// Goes so once the receiver resolves.
    After(oneshot::Receiver<()>, Box<Beginning>),
    Never,
    Panic,
}

/// What a stop is answered.
pub(crate) enum Answering {
    /// As it is.
    Truly,
    Say(Stopped),
    Refuse(&'static str),
    /// So, once the receiver resolves.
    After(oneshot::Receiver<()>, Box<Answering>),
    Panic,
}

/// Starts runs that are handed to the test.
pub(crate) struct Runs {
    me: Weak<Self>,
    state: Mutex<RunsState>,
    started: Mutex<mpsc::Receiver<Work>>,
    hand: mpsc::Sender<Work>,
}

#[derive(Default)]
struct RunsState {
    beginnings: VecDeque<Beginning>,
    answers: VecDeque<Answering>,
    launched: Vec<(Job, RunId)>,
    live: HashMap<RunId, (JobId, oneshot::Sender<RunOutcome>)>,
    known: HashSet<RunId>,
    stops: Vec<Stop>,
    detail: Option<String>,
    code: Option<Code>,
    is_mute: bool,
}

impl Runs {
    fn new() -> Arc<Self> {
        let (hand, started) = mpsc::channel();
        let started = Mutex::new(started);
        Arc::new_cyclic(|me| Self { me: me.clone(), state: Mutex::default(), started, hand })
    }

    fn state(&self) -> MutexGuard<'_, RunsState> {
        self.state.lock().unwrap()
    }

    /// Says how the next launch goes that nothing was said of.
    pub(crate) fn begin(&self, beginning: Beginning) {
        self.state().beginnings.push_back(beginning);
    }

    /// Says what the next stop is answered that nothing was said of.
    pub(crate) fn answer(&self, answer: Answering) {
        self.state().answers.push_back(answer);
    }

    /// Launched runs tell neither their task nor their code.
    pub(crate) fn be_mute(&self) {
        self.state().is_mute = true;
    }

    pub(crate) fn report_detail(&self, detail: &str) {
        self.state().detail = Some(detail.to_owned());
    }

    pub(crate) fn run_code(&self, code: Code) {
        self.state().code = Some(code);
    }

    /// Returns the run that was started next.
    pub(crate) async fn next(&self) -> Work {
        for _ in 0..10_000 {
            if let Ok(work) = self.started.lock().unwrap().try_recv() {
                return work;
            }
            tokio::task::yield_now().await;
        }
        panic!("nothing was started");
    }

    /// Every launch that was asked for, with the job as it was handed over.
    pub(crate) fn launched(&self) -> Vec<(Job, RunId)> {
        self.state().launched.clone()
    }

    pub(crate) fn launches(&self) -> usize {
        self.state().launched.len()
    }

    /// Every stop that was asked for.
    pub(crate) fn stops(&self) -> Vec<Stop> {
        self.state().stops.clone()
    }

    /// The runs of a job that are under way.
    pub(crate) fn live_of(&self, id: JobId) -> Vec<RunId> {
        let state = self.state();
        state.live.iter().filter(|(_, (job, _))| *job == id).map(|(run, _)| *run).collect()
    }

    pub(crate) fn live(&self) -> usize {
        self.state().live.len()
    }

    /// Ends a run, if it is under way.
    fn end(&self, run: RunId, outcome: RunOutcome) {
        let live = self.state().live.remove(&run);
        if let Some((_, end)) = live {
            // Nobody may follow it any more.
            let _ = end.send(outcome);
        }
    }
}

impl Launcher for Runs {
    fn launch(&self, job: &Job, run: RunId) -> BoxFuture<'_, Result<Launched, LaunchError>> {
        let mut state = self.state();
        state.launched.push((job.clone(), run));
        let mut beginning = state.beginnings.pop_front().unwrap_or(Beginning::Start);
        drop(state);
        let job = job.clone();
        Box::pin(async move {
            while let Beginning::After(gate, then) = beginning {
                gate.await.unwrap();
                beginning = *then;
            }
            let ended: BoxFuture<'static, RunOutcome> = match beginning {
                Beginning::Start => {
                    let (end, ended) = oneshot::channel();
                    let mut state = self.state();
                    state.live.insert(run, (job.id, end));
                    state.known.insert(run);
                    drop(state);
                    let work = Work { job: job.clone(), run, runs: self.me.clone() };
                    self.hand.send(work).unwrap();
                    // Once its host is gone nothing is heard of it.
                    Box::pin(async {
                        match ended.await {
                            Ok(outcome) => outcome,
                            Err(_) => pending().await,
                        }
                    })
                }
                Beginning::Ends(outcome) => {
                    self.state().known.insert(run);
                    Box::pin(async { outcome })
                }
                Beginning::Refuse(why) => return Err(LaunchError::Refused(why.into())),
                Beginning::Unavailable(why) => return Err(LaunchError::Unavailable(why.into())),
                Beginning::Never => pending().await,
                Beginning::Panic => panic!("the launcher is broken"),
                Beginning::After(..) => unreachable!(),
            };
            let state = self.state();
            let task = (!state.is_mute).then(|| format!("task-{}", state.known.len()));
            Ok(Launched { task, code: state.code.clone(), ended })
        })
    }

    fn stop(&self, stop: Stop) -> BoxFuture<'_, Result<Stopped, String>> {
        let mut state = self.state();
        state.stops.push(stop.clone());
        let mut answer = state.answers.pop_front().unwrap_or(Answering::Truly);
        drop(state);
        Box::pin(async move {
            while let Answering::After(gate, then) = answer {
                gate.await.unwrap();
                answer = *then;
            }
            match answer {
                Answering::Say(stopped) => Ok(stopped),
                Answering::Refuse(why) => Err(why.into()),
                Answering::Panic => panic!("the stopper is broken"),
                Answering::After(..) => unreachable!(),
                Answering::Truly => {
                    let state = self.state();
                    let is_live = state.live.contains_key(&stop.run);
                    let is_known = state.known.contains(&stop.run);
                    drop(state);
                    Ok(match (is_live, stop.how) {
                        (true, How::AfterStep) => Stopped::AfterStep,
                        (true, _) => {
                            self.end(stop.run, outcome(stop.run, RunEnding::Cancelled));
                            Stopped::Stopping
                        }
                        (false, _) if is_known => Stopped::AlreadyFinished,
                        (false, _) => Stopped::Unknown,
                    })
                }
            }
        })
    }

    fn detail(&self, job: JobId, run: RunId) -> Option<String> {
        let state = self.state();
        let is_its = state.live.get(&run).is_some_and(|(of, _)| *of == job);
        state.detail.clone().filter(|_| is_its)
    }
}

/// A run that is under way, in the hands of a test.
pub(crate) struct Work {
    /// The job as it was launched.
    pub(crate) job: Job,
    pub(crate) run: RunId,
    runs: Weak<Runs>,
}

impl Work {
    pub(crate) fn complete(&self, output: &str) {
        self.end(completed(self.run, output));
    }

    pub(crate) fn fail(&self, why: &str) {
        self.end(failed(self.run, why));
    }

    pub(crate) fn end(&self, outcome: RunOutcome) {
        self.runs.upgrade().unwrap().end(self.run, outcome);
    }

    /// Ends the run in one of the other ways.
    pub(crate) fn end_so(&self, ending: RunEnding) {
        self.end(outcome(self.run, ending));
    }
}

pub(crate) fn outcome(run: RunId, ending: RunEnding) -> RunOutcome {
    RunOutcome { run: Some(run), ending, detail: None, output: None }
}

pub(crate) fn completed(run: RunId, output: &str) -> RunOutcome {
    RunOutcome { output: Some(output.into()), ..outcome(run, RunEnding::Completed) }
}

pub(crate) fn failed(run: RunId, why: &str) -> RunOutcome {
    RunOutcome { detail: Some(why.into()), ..outcome(run, RunEnding::Failed) }
}

/// What a hook says.
pub(crate) enum Saying {
    Follow(Following),
    Fail(&'static str),
    Panic,
    /// So, once the receiver resolves.
    After(oneshot::Receiver<()>, Box<Saying>),
}

pub(crate) fn proceed(input: &str) -> Saying {
    proceed_with(input, None)
}

pub(crate) fn proceed_with(input: &str, state: Option<&str>) -> Saying {
    Saying::Follow(Following::Proceed(NextStep {
        kind: None,
        input: input.into(),
        state: state.map(Into::into),
    }))
}

pub(crate) fn ask(prompt: &str) -> Saying {
    let question = Question { prompt: prompt.into(), schema: None };
    Saying::Follow(Following::Ask { question, state: Some("asked".into()) })
}

/// Says what follows a run, as told; nothing does where it was told nothing. Jobs have
/// steps once it was told anything.
#[derive(Default)]
pub(crate) struct Hook(Mutex<HookState>);

#[derive(Default)]
struct HookState {
    has_steps: bool,
    sayings: VecDeque<Saying>,
    asked: Vec<(Job, RunOutcome)>,
    /// What it panics at.
    panics: Vec<Panics>,
}

/// What a hook can panic at.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Panics {
    HasSteps,
    Render,
    CheckAnswer,
}

impl Hook {
    fn state(&self) -> MutexGuard<'_, HookState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn say(&self, saying: Saying) {
        let mut state = self.state();
        state.has_steps = true;
        state.sayings.push_back(saying);
    }

    pub(crate) fn panic_at(&self, what: Panics) {
        self.state().panics.push(what);
    }

    /// Every job and outcome that it was asked about.
    pub(crate) fn asked(&self) -> Vec<(Job, RunOutcome)> {
        self.state().asked.clone()
    }

    fn hear(&self, job: &Job, outcome: &RunOutcome) -> Option<Saying> {
        let mut state = self.state();
        state.asked.push((job.clone(), outcome.clone()));
        state.sayings.pop_front()
    }

    fn must_not(&self, what: Panics) {
        assert!(!self.state().panics.contains(&what), "the hook is broken");
    }
}

impl Continue for Hook {
    fn has_steps(&self, _: &Job) -> bool {
        self.must_not(Panics::HasSteps);
        self.state().has_steps
    }

    fn after<'a>(
        &'a self,
        job: &'a Job,
        outcome: &'a RunOutcome,
    ) -> BoxFuture<'a, Result<Following, String>> {
        Box::pin(async {
            let mut saying = self.hear(job, outcome);
            while let Some(Saying::After(gate, then)) = saying {
                gate.await.unwrap();
                saying = Some(*then);
            }
            match saying {
                None => Ok(Following::END),
                Some(Saying::Follow(following)) => Ok(following),
                Some(Saying::Fail(why)) => Err(why.into()),
                Some(Saying::Panic) => panic!("the hook is broken"),
                Some(Saying::After(..)) => unreachable!(),
            }
        })
    }

    fn render<'a>(&'a self, job: &'a Job) -> BoxFuture<'a, Option<String>> {
        self.must_not(Panics::Render);
        Box::pin(async { job.state.as_ref().map(|state| format!("at {state}")) })
    }

    fn check_answer<'a>(
        &'a self,
        question: &'a Question,
        answer: &'a str,
    ) -> BoxFuture<'a, Result<(), String>> {
        self.must_not(Panics::CheckAnswer);
        Box::pin(async move {
            match answer {
                "" => Err(format!("{:?} is to be answered", question.prompt)),
                _ => Ok(()),
            }
        })
    }
}

/// Knows every kind but `unknown`, under a configuration that can be changed.
#[derive(Default)]
pub(crate) struct Kinds {
    pub(crate) inherit: Mutex<Option<String>>,
    pub(crate) is_broken: AtomicBool,
}

impl Resolver for Kinds {
    fn resolve<'a>(
        &'a self,
        _: &'a SessionId,
        kind: &'a Kind,
    ) -> BoxFuture<'a, Result<Resolved, String>> {
        assert!(!self.is_broken.load(Ordering::SeqCst), "the resolver is broken");
        Box::pin(async move {
            if kind.as_str() == "unknown" {
                return Err("there is no such kind".into());
            }
            let inherit = self.inherit.lock().unwrap().clone();
            Ok(Resolved { label: Some(format!("some {kind}")), inherit })
        })
    }
}

/// One report.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Report {
    Finished(Job),
    Delivered(Job),
    Update(Job),
    Removed(Vec<JobId>),
}

/// Keeps every report.
#[derive(Default)]
pub(crate) struct Heard {
    reports: Mutex<Vec<Report>>,
    is_broken: AtomicBool,
}

impl Heard {
    pub(crate) fn all(&self) -> Vec<Report> {
        self.reports.lock().unwrap().clone()
    }

    /// The endings that were reported as not heard yet.
    pub(crate) fn finished(&self) -> Vec<Job> {
        let finished = |report| match report {
            Report::Finished(job) => Some(job),
            _ => None,
        };
        self.all().into_iter().filter_map(finished).collect()
    }

    /// The endings that were reported as in hand.
    pub(crate) fn delivered(&self) -> Vec<Job> {
        let delivered = |report| match report {
            Report::Delivered(job) => Some(job),
            _ => None,
        };
        self.all().into_iter().filter_map(delivered).collect()
    }

    pub(crate) fn updates_of(&self, id: JobId) -> Vec<Status> {
        let update = |report| match report {
            Report::Update(job) if job.id == id => Some(job.status()),
            _ => None,
        };
        self.all().into_iter().filter_map(update).collect()
    }

    /// From now on it panics, once it has kept the report.
    pub(crate) fn break_down(&self) {
        self.is_broken.store(true, Ordering::SeqCst);
    }

    fn hear(&self, report: Report) {
        self.reports.lock().unwrap().push(report);
        assert!(!self.is_broken.load(Ordering::SeqCst), "the listener is broken");
    }
}

impl Reports for Heard {
    fn on_finished(&self, job: &Job) {
        self.hear(Report::Finished(job.clone()));
    }

    fn on_result_delivered(&self, job: &Job) {
        self.hear(Report::Delivered(job.clone()));
    }

    fn on_job_update(&self, job: &Job) {
        self.hear(Report::Update(job.clone()));
    }

    fn on_removed(&self, gone: &[Gone]) {
        self.hear(Report::Removed(gone.iter().map(|gone| gone.job).collect()));
    }
}
