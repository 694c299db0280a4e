//! A host around the registry, and work that does what a test tells it.

use std::{
    future::pending,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
        mpsc,
    },
    time::Duration,
};

use backlot_registry::{
    AgentId, Agreed, BoxFuture, Caller, Clock, Config, Control, Environment, Form, Generation,
    Kill, Kind, ListenerGuard, Mode, Notice, OnDrop, Outcome, Owner, Producer, Refusal, Registry,
    Request, Run, SessionId, Snapshot, Start, Status, StopBounds, StopRefusal, SurfaceGuard,
    TaskHost, TaskId, Usage,
};
use tokio::sync::oneshot;

pub const LONG: Duration = Duration::from_secs(1_000_000);
pub const OPERATOR: Caller = Caller::Operator;

/// A registry with a surface, and a producer of each form.
pub struct Host {
    pub registry: Registry,
    pub surface: Option<SurfaceGuard>,
    pub clock: Arc<TestClock>,
    pub fake: Arc<Fake>,
}

impl Host {
    pub fn new() -> Self {
        Self::with(Config::default())
    }

    pub fn with(config: Config) -> Self {
        let runtime = tokio::runtime::Handle::current();
        Self::within(config, Environment::new(runtime))
    }

    pub fn within(config: Config, environment: Environment) -> Self {
        let clock = Arc::new(TestClock(AtomicU64::new(1_000)));
        let registry = Registry::new(config, Environment { clock: clock.clone(), ..environment });
        let surface = Some(registry.attach_surface("test"));
        Self { registry, surface, clock, fake: Fake::new("work", Form::Stream) }
    }

    pub async fn start(&self) -> (TaskId, Work) {
        self.start_with(&self.fake, Start { label: "label".to_owned(), ..Start::default() }).await
    }

    pub async fn start_owned(&self, owner: &Owner) -> (TaskId, Work) {
        let start = Start { owner: Some(owner.clone()), ..Start::default() };
        self.start_with(&self.fake, start).await
    }

    pub async fn start_of(&self, fake: &Arc<Fake>) -> (TaskId, Work) {
        self.start_with(fake, Start::default()).await
    }

    pub async fn start_with(&self, fake: &Arc<Fake>, start: Start) -> (TaskId, Work) {
        let id = self.registry.start(fake.clone(), start).await.unwrap();
        (id, fake.work())
    }

    pub fn owner(&self, agent: &str, session: &str) -> Owner {
        self.registry.register_owner(AgentId::from(agent), SessionId::from(session))
    }

    pub fn get(&self, id: &TaskId) -> Snapshot {
        self.registry.get(id, &OPERATOR).unwrap()
    }

    pub fn status(&self, id: &TaskId) -> Status {
        self.get(id).status
    }

    pub fn detail(&self, id: &TaskId) -> String {
        self.get(id).detail.unwrap_or_default()
    }

    pub fn is_known(&self, id: &TaskId) -> bool {
        self.registry.get(id, &OPERATOR).is_ok()
    }

    /// Lets the task come to its end without anybody being told of it.
    pub async fn settled(&self, id: &TaskId) -> Snapshot {
        until(|| self.get(id).status.is_terminal()).await;
        self.get(id)
    }

    pub async fn ended(&self) -> TaskId {
        let (id, work) = self.start().await;
        work.end(Outcome::completed());
        self.settled(&id).await;
        id
    }

    pub async fn kill(
        &self,
        id: &TaskId,
    ) -> Result<backlot_registry::Killed, backlot_registry::KillError> {
        self.registry.kill(id, &OPERATOR, Kill::default()).await
    }

    pub async fn force(
        &self,
        id: &TaskId,
    ) -> Result<backlot_registry::Killed, backlot_registry::KillError> {
        let kill = Kill { mode: Mode::Force, reason: None };
        self.registry.kill(id, &OPERATOR, kill).await
    }

    pub async fn wait(&self, id: &TaskId) -> Snapshot {
        self.registry.wait(id, &OPERATOR, LONG).await.unwrap()
    }

    pub async fn read(&self, id: &TaskId) -> String {
        self.registry.read(id, &OPERATOR, usize::MAX).await.unwrap().text
    }

    pub fn notices(&self) -> Notices {
        Notices::subscribe(&self.registry)
    }
}

pub fn session(name: &str) -> Caller {
    Caller::Session(SessionId::from(name))
}

/// Lets everything else run until the condition holds. It must come to hold
/// without time passing.
pub async fn until(mut condition: impl FnMut() -> bool) {
    for _ in 0..10_000 {
        if condition() {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("it did not come about");
}

/// Lets everything else run as far as it gets without time passing.
pub async fn settle_down() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

/// A clock that stands until it is set.
pub struct TestClock(pub AtomicU64);

impl TestClock {
    pub fn set(&self, epoch_ms: u64) {
        self.0.store(epoch_ms, Ordering::SeqCst);
    }
}

impl Clock for TestClock {
    fn epoch_ms(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

/// How the next run of a fake begins.
pub enum Beginning {
    Start,
    Refuse(Refusal),
    Panic,
    /// Starts once the receiver resolves.
    After(oneshot::Receiver<()>),
    Never,
}

/// How work answers when it is asked to stop.
#[derive(Clone)]
pub enum Answering {
    Agree(Agreed),
    Refuse(StopRefusal),
    Never,
    Panic,
    /// Ends the work before it answers.
    End(Outcome),
    /// Ends the work, and agrees at the same moment.
    EndAndAgree(Outcome),
}

/// A producer whose work is handed to the test.
pub struct Fake {
    kind: Kind,
    form: Form,
    pub on_drop: Mutex<OnDrop>,
    pub beginning: Mutex<Beginning>,
    pub answering: Mutex<Answering>,
    pub bounds: Mutex<Option<StopBounds>>,
    pub generation: Mutex<Option<Generation>>,
    pub grant: Mutex<Option<Arc<[String]>>>,
    pub cap: Mutex<Option<usize>>,
    /// What stands behind it.
    pub behind: Mutex<Result<Option<Arc<dyn Producer>>, Refusal>>,
    /// How often `run` was called.
    pub runs: AtomicUsize,
    works: Mutex<mpsc::Receiver<Work>>,
    sender: mpsc::Sender<Work>,
    /// How many runs hold something.
    pub held: Arc<AtomicUsize>,
}

impl Fake {
    pub fn new(kind: &str, form: Form) -> Arc<Self> {
        let (sender, works) = mpsc::channel();
        Arc::new(Self {
            kind: Kind::new(kind).unwrap(),
            form,
            on_drop: Mutex::new(OnDrop::ReleasesAll),
            beginning: Mutex::new(Beginning::Start),
            answering: Mutex::new(Answering::Agree(Agreed::WindsDown)),
            bounds: Mutex::new(None),
            generation: Mutex::new(None),
            grant: Mutex::new(None),
            cap: Mutex::new(None),
            behind: Mutex::new(Ok(None)),
            runs: AtomicUsize::new(0),
            works: Mutex::new(works),
            sender,
            held: Arc::default(),
        })
    }

    pub fn begin(&self, beginning: Beginning) {
        *self.beginning.lock().unwrap() = beginning;
    }

    pub fn answer(&self, answering: Answering) {
        *self.answering.lock().unwrap() = answering;
    }

    /// Returns the work that was started last.
    pub fn work(&self) -> Work {
        self.works.lock().unwrap().try_recv().expect("work was started")
    }

    pub fn held(&self) -> usize {
        self.held.load(Ordering::SeqCst)
    }
}

impl Producer for Fake {
    fn kind(&self) -> &Kind {
        &self.kind
    }

    fn form(&self) -> Form {
        self.form
    }

    fn resolve(&self, _: Option<&SessionId>) -> Result<Option<Arc<dyn Producer>>, Refusal> {
        self.behind.lock().unwrap().clone()
    }

    fn generation(&self) -> Option<Generation> {
        self.generation.lock().unwrap().clone()
    }

    fn grant(&self) -> Option<Arc<[String]>> {
        self.grant.lock().unwrap().clone()
    }

    fn cap(&self) -> Option<usize> {
        *self.cap.lock().unwrap()
    }

    fn stop_bounds(&self) -> Option<StopBounds> {
        *self.bounds.lock().unwrap()
    }

    fn run(&self, request: Request, host: TaskHost) -> BoxFuture<'_, Result<Run, Refusal>> {
        self.runs.fetch_add(1, Ordering::SeqCst);
        let beginning = std::mem::replace(&mut *self.beginning.lock().unwrap(), Beginning::Start);
        let hold = Hold::new(&self.held);
        Box::pin(async move {
            match beginning {
                Beginning::Start => {}
                Beginning::Refuse(refusal) => return Err(refusal),
                Beginning::Panic => panic!("in run"),
                Beginning::After(signal) => signal.await.unwrap(),
                Beginning::Never => pending().await,
            }
            let (end, ended) = oneshot::channel();
            let control = Arc::new(FakeControl {
                answering: Mutex::new(self.answering.lock().unwrap().clone()),
                end: Mutex::new(Some(end)),
                asked: Mutex::default(),
                drained: Mutex::default(),
            });
            let work = Work { host, request, control: control.clone(), dropped: Arc::default() };
            let dropped = OnDropped(work.dropped.clone());
            let _ = self.sender.send(work);
            let done = Box::pin(async move {
                let _hold = hold;
                let _dropped = dropped;
                match ended.await {
                    Ok(End::Outcome(outcome)) => outcome,
                    Ok(End::Panic(message)) => panic!("{message}"),
                    Err(_) => pending().await,
                }
            });
            Ok(Run { control, done, on_drop: *self.on_drop.lock().unwrap() })
        })
    }
}

enum End {
    Outcome(Outcome),
    Panic(String),
}

/// The reins of one run.
pub struct Work {
    pub host: TaskHost,
    pub request: Request,
    control: Arc<FakeControl>,
    dropped: Arc<AtomicBool>,
}

impl Work {
    pub fn end(&self, outcome: Outcome) {
        self.control.end(End::Outcome(outcome));
    }

    pub fn panic(&self, message: &str) {
        self.control.end(End::Panic(message.to_owned()));
    }

    pub fn write(&self, text: &str) {
        self.host.output().write(text.as_bytes());
    }

    pub fn answer(&self, answering: Answering) {
        *self.control.answering.lock().unwrap() = answering;
    }

    /// Returns the reasons of the stops that it was asked for.
    pub fn asked(&self) -> Vec<Option<String>> {
        self.control.asked.lock().unwrap().clone()
    }

    /// Makes the work hand over its output only when it is drained.
    pub fn hold_back(&self, text: &str) {
        *self.control.drained.lock().unwrap() =
            Some(Drained::Write(self.host.clone(), text.to_owned()));
    }

    /// Makes every drain hang.
    pub fn never_drain(&self) {
        *self.control.drained.lock().unwrap() = Some(Drained::Never);
    }

    pub fn is_gone(&self) -> bool {
        self.dropped.load(Ordering::SeqCst)
    }
}

enum Drained {
    Write(TaskHost, String),
    Never,
}

struct FakeControl {
    answering: Mutex<Answering>,
    end: Mutex<Option<oneshot::Sender<End>>>,
    asked: Mutex<Vec<Option<String>>>,
    drained: Mutex<Option<Drained>>,
}

impl FakeControl {
    fn end(&self, end: End) {
        if let Some(sender) = self.end.lock().unwrap().take() {
            let _ = sender.send(end);
        }
    }
}

impl Control for FakeControl {
    fn cancel(&self, reason: Option<String>) -> BoxFuture<'static, Result<Agreed, StopRefusal>> {
        self.asked.lock().unwrap().push(reason);
        let answering = self.answering.lock().unwrap().clone();
        match answering {
            Answering::Agree(agreed) => Box::pin(async move { Ok(agreed) }),
            Answering::Refuse(refusal) => Box::pin(async move { Err(refusal) }),
            Answering::Never => Box::pin(pending()),
            Answering::Panic => panic!("in cancel"),
            Answering::End(outcome) => {
                self.end(End::Outcome(outcome));
                Box::pin(pending())
            }
            Answering::EndAndAgree(outcome) => {
                self.end(End::Outcome(outcome));
                Box::pin(async { Ok(Agreed::WindsDown) })
            }
        }
    }

    fn drain(&self) -> Option<BoxFuture<'static, ()>> {
        match &mut *self.drained.lock().unwrap() {
            None => None,
            Some(Drained::Never) => Some(Box::pin(pending())),
            Some(Drained::Write(host, text)) => {
                let (host, text) = (host.clone(), std::mem::take(text));
                Some(Box::pin(async move { host.output().write(text.as_bytes()) }))
            }
        }
    }

    fn usage(&self) -> Option<Usage> {
        Some(Usage { cpu: Duration::from_millis(3), peak_memory: 64 })
    }
}

/// Counts what is held.
struct Hold(Arc<AtomicUsize>);

impl Hold {
    fn new(held: &Arc<AtomicUsize>) -> Self {
        held.fetch_add(1, Ordering::SeqCst);
        Self(held.clone())
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

struct OnDropped(Arc<AtomicBool>);

impl Drop for OnDropped {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// The notices that a listener gets, in their order.
pub struct Notices {
    pub guard: Option<ListenerGuard>,
    notices: mpsc::Receiver<Notice>,
}

impl Notices {
    pub fn subscribe(registry: &Registry) -> Self {
        let (sender, notices) = mpsc::channel();
        let guard = registry.on_task_done("test", move |notice| {
            let _ = sender.send(notice.clone());
            Ok(())
        });
        Self { guard: Some(guard), notices }
    }

    /// Waits for the listener's thread, which needs nothing of this one.
    pub fn next(&self) -> Notice {
        self.notices.recv_timeout(Duration::from_secs(20)).expect("a notice comes")
    }

    /// Returns the ids of all notices until that of a task which ends now.
    pub async fn until_now(&self, host: &Host) -> Vec<TaskId> {
        let last = host.ended().await;
        let mut ids = Vec::new();
        loop {
            let id = self.next().snapshot.id;
            if id == last {
                return ids;
            }
            ids.push(id);
        }
    }

    /// Says whether the listener was unsubscribed and its thread has ended.
    pub fn is_over(&self) -> bool {
        matches!(
            self.notices.recv_timeout(Duration::from_secs(20)),
            Err(mpsc::RecvTimeoutError::Disconnected)
        )
    }
}
