//! A host of jobs whose runs end when a test says so, behind a socket.

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{Arc, Mutex, Weak},
    time::{Duration, Instant},
};

use backlot_jobs::{
    Code, Config, Continue, DataFolder, Following, Gone, How, Job, JobId, LaunchError, Launched,
    Launcher, Manager, MemoryStore, Question, Reports, RunEnding, RunId, RunOutcome, Spawn, Stop,
    Stopped, World,
    output::{Limits as RecordLimits, Recorder, Stream},
};
use backlot_registry::{
    Announcer, BoxFuture, Catalog, Change, Changes, Config as RegistryConfig, Environment, Kind,
    KindView, Registry,
};
use backlot_surface::{
    Api, Client, ClientError, Door, Failure, Feed, HostGauges, HostSide, KindChange, Metrics,
    Reason, mcp, serve,
    wire::{HostAbout, JobView, LookQuery, SpawnRequest, Target},
};
use tempfile::TempDir;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _},
    net::{UnixListener, UnixStream},
    sync::{Notify, oneshot},
    task::JoinHandle,
};

/// A host behind a socket. Kinds are what they are called: `park` runs until it is told
/// to end, `ask` asks a person after its first run, `wrong` is refused and `later` is
/// unavailable. A stop whose reason is `refuse` is refused.
pub(crate) struct Host {
    /// What surfaces are of.
    pub(crate) api: Api,
    pub(crate) script: Arc<Script>,
    pub(crate) manager: Manager,
    pub(crate) folder: DataFolder,
    pub(crate) registry: Registry,
    close: Option<oneshot::Sender<()>>,
    served: Option<JoinHandle<()>>,
    _scratch: TempDir,
}

impl Host {
    pub(crate) async fn start() -> Self {
        Self::start_with(Config::default()).await
    }

    pub(crate) async fn start_with(config: Config) -> Self {
        Self::start_behind(config, |_| Vec::new()).await
    }

    /// Starts one that can be asked at other doors as well.
    pub(crate) async fn start_behind(
        config: Config,
        others: impl FnOnce(&DataFolder) -> Vec<Door>,
    ) -> Self {
        let scratch = tempfile::tempdir().unwrap();
        let folder = DataFolder::open(&scratch.path().join("data")).unwrap();
        let script = Arc::new(Script::default());
        let follow: Arc<dyn Continue> = script.clone();
        let reports: Arc<dyn Reports> = script.clone();
        let world = World { follow, reports, ..World::new(script.clone()) };
        let store = Arc::new(MemoryStore::new());
        let (manager, _) = Manager::open(store, world, config).await.unwrap();
        let side = Side { manager: manager.clone(), script: script.clone() };
        let environment = Environment::new(tokio::runtime::Handle::current());
        let registry = Registry::new(RegistryConfig::default(), environment);
        let api = Api {
            manager: manager.clone(),
            folder: folder.clone(),
            registry: registry.clone(),
            catalog: script.clone(),
            feed: script.feed.clone(),
            metrics: script.metrics.clone(),
            mcp: mcp::Options::default(),
            claims: mcp::Claims::default(),
            host: Arc::new(side),
        };
        tokio::spawn(script.metrics.clone().follow(script.changes()));
        let listener = UnixListener::bind(folder.socket_address()).unwrap();
        let mut doors = others(&folder);
        doors.push(listener.into());
        let (close, closed) = oneshot::channel();
        let served = tokio::spawn(serve(doors, api.clone(), async {
            let _ = closed.await;
        }));
        for session in ["chat", "other"] {
            manager.open_session(session.into()).await.unwrap();
        }
        let (close, served) = (Some(close), Some(served));
        Self { api, script, manager, folder, registry, close, served, _scratch: scratch }
    }

    pub(crate) async fn client(&self) -> Client {
        Client::connect(&self.folder.socket_address()).await.unwrap()
    }

    pub(crate) async fn stream(&self) -> UnixStream {
        UnixStream::connect(self.folder.socket_address()).await.unwrap()
    }

    /// Spawns a job of that kind for the session `chat`.
    pub(crate) async fn spawn(&self, kind: &str) -> JobView {
        self.client().await.spawn(&of_kind(kind)).await.unwrap()
    }

    /// Ends the run of a job, and returns the job once it has ended.
    pub(crate) async fn end(&self, job: &JobView, ending: RunEnding, output: &str) -> JobView {
        self.script.end(job.id, ending, output);
        let query = LookQuery { wait_ms: Some(10_000), hand: None };
        self.client().await.job(&job.id.to_string(), &query).await.unwrap()
    }

    /// Records output of a job, and tells whoever follows it.
    pub(crate) fn record(&self, job: JobId, stream: Stream, bytes: &[u8]) {
        let mut recorder = Recorder::new(self.folder.job(job), RecordLimits::default());
        recorder.append(1, stream, 5, bytes);
        drop(recorder);
        self.script.recorded(job).notify_waiters();
    }

    /// Has the surface close, and returns once it has.
    pub(crate) async fn close(&mut self) {
        drop(self.close.take());
        if let Some(served) = self.served.take() {
            served.await.unwrap();
        }
    }
}

pub(crate) fn of_kind(kind: &str) -> SpawnRequest {
    let (kind, session) = (Some(kind.to_owned()), Some("chat".to_owned()));
    SpawnRequest { kind, session, ..SpawnRequest::default() }
}

/// Returns the word for what went wrong.
pub(crate) fn code<T: std::fmt::Debug>(asked: Result<T, ClientError>) -> String {
    match asked.unwrap_err() {
        ClientError::Failure(reply) => reply.code,
        other => panic!("{other}"),
    }
}

/// Sends bytes on a connection of their own, and returns all that comes back.
pub(crate) async fn raw(host: &Host, request: &[u8]) -> String {
    let mut stream = host.stream().await;
    // A host that has answered reads no more.
    let _ = stream.write_all(request).await;
    read_all(&mut stream).await
}

/// Returns all that comes before the connection ends.
pub(crate) async fn read_all(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut all = Vec::new();
    let mut piece = [0; 4096];
    loop {
        match stream.read(&mut piece).await {
            // What was not read is lost with the connection, and the other end is told.
            Ok(0) | Err(_) => return String::from_utf8_lossy(&all).into_owned(),
            Ok(read) => all.extend_from_slice(&piece[..read]),
        }
    }
}

/// A live stream that is being read.
pub(crate) struct Events {
    stream: UnixStream,
    /// What has come, without what the transfer adds.
    text: String,
    raw: Vec<u8>,
    is_over: bool,
}

/// An event of a live stream.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Told {
    pub(crate) name: String,
    /// The id that stands after it.
    pub(crate) id: Option<String>,
    pub(crate) data: serde_json::Value,
}

impl Host {
    /// Opens a live stream.
    pub(crate) async fn events(&self, path: &str, headers: &str) -> Events {
        let mut stream = self.stream().await;
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\n{headers}\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut raw = Vec::new();
        let end = loop {
            if let Some(end) = raw.windows(4).position(|it| it == b"\r\n\r\n") {
                break end + 4;
            }
            let read = stream.read_buf(&mut raw).await.unwrap();
            assert!(read > 0, "{}", String::from_utf8_lossy(&raw));
        };
        let head = String::from_utf8(raw.drain(..end).collect()).unwrap();
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}{}", String::from_utf8_lossy(&raw));
        assert!(head.contains("content-type: text/event-stream\r\n"), "{head}");
        Events { stream, text: String::new(), raw, is_over: false }
    }
}

impl Events {
    /// Returns the next event, or `None` at the end of the stream.
    pub(crate) async fn next(&mut self) -> Option<Told> {
        loop {
            let block = self.block().await?;
            let mut told = Told::default();
            for line in block.lines() {
                match line.split_once(": ") {
                    Some(("id", id)) => told.id = Some(id.to_owned()),
                    Some(("event", name)) => told.name = name.to_owned(),
                    Some(("data", data)) => told.data = serde_json::from_str(data).unwrap(),
                    _ => assert_eq!(line, ":", "{block:?}"),
                }
            }
            if !told.name.is_empty() {
                return Some(told);
            }
        }
    }

    /// Returns what comes before the next blank line.
    pub(crate) async fn block(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.text.find("\n\n") {
                let block = self.text[..end].to_owned();
                self.text.drain(..end + 2);
                return Some(block);
            }
            if !self.more().await {
                assert_eq!(self.text, "", "the stream ends within an event");
                return None;
            }
        }
    }

    /// Takes a part of the transfer, and returns whether there was one.
    async fn more(&mut self) -> bool {
        while !self.is_over {
            if let Some(line) = self.raw.windows(2).position(|it| it == b"\r\n") {
                let digits = str::from_utf8(&self.raw[..line]).unwrap();
                let length = usize::from_str_radix(digits, 16).unwrap();
                let (begin, end) = (line + 2, line + 2 + length);
                if self.raw.len() >= end + 2 {
                    self.text.push_str(str::from_utf8(&self.raw[begin..end]).unwrap());
                    self.raw.drain(..end + 2);
                    self.is_over = length == 0;
                    return !self.is_over;
                }
            }
            if self.stream.read_buf(&mut self.raw).await.unwrap() == 0 {
                panic!("the stream was cut");
            }
        }
        false
    }

    /// Returns all events up to the end of the stream.
    pub(crate) async fn rest(&mut self) -> Vec<Told> {
        let mut all = Vec::new();
        while let Some(told) = self.next().await {
            all.push(told);
        }
        all
    }
}

/// Launches runs that end when they are told to.
#[derive(Default)]
pub(crate) struct Script {
    runs: Mutex<HashMap<JobId, (RunId, oneshot::Sender<RunOutcome>)>>,
    recorded: Mutex<HashMap<JobId, Weak<Notify>>>,
    /// What becomes of the jobs.
    pub(crate) feed: Feed,
    /// What is counted.
    pub(crate) metrics: Metrics,
    /// The kinds that there are.
    kinds: Mutex<Vec<KindView>>,
    announcer: Announcer,
    /// What was done to kinds.
    pub(crate) kind_changes: Mutex<Vec<(Kind, KindChange)>>,
    /// Notified when the host was asked to end.
    pub(crate) ending: Notify,
    /// Where backups went.
    pub(crate) backups: Mutex<Vec<PathBuf>>,
    /// What was asked for.
    pub(crate) requests: Mutex<Vec<SpawnRequest>>,
    /// Holds drains back until it is notified, where there is one.
    pub(crate) drained: Mutex<Option<Arc<Notify>>>,
    /// Has the kinds be known only once it is notified, where there is one.
    pub(crate) loading: Mutex<Option<Arc<Notify>>>,
    /// Holds spawns back until it is notified, where there is one.
    pub(crate) gate: Mutex<Option<Arc<Notify>>>,
}

impl Script {
    pub(crate) fn end(&self, job: JobId, ending: RunEnding, output: &str) {
        let (run, end) = self.runs.lock().unwrap().remove(&job).unwrap();
        let (detail, output) = (Some(format!("{ending:?}")), Some(output.to_owned()));
        let _ = end.send(RunOutcome { run: Some(run), ending, detail, output });
    }

    /// Tells whether a run of a job is under way.
    pub(crate) fn is_under_way(&self, job: JobId) -> bool {
        self.runs.lock().unwrap().contains_key(&job)
    }

    /// Returns the only job that has a run under way.
    pub(crate) fn only(&self) -> JobId {
        let runs = self.runs.lock().unwrap();
        assert_eq!(runs.len(), 1);
        *runs.keys().next().unwrap()
    }

    /// Returns how many runs are under way.
    pub(crate) fn under_way(&self) -> usize {
        self.runs.lock().unwrap().len()
    }

    fn recorded(&self, job: JobId) -> Arc<Notify> {
        let mut recorded = self.recorded.lock().unwrap();
        if let Some(notify) = recorded.get(&job).and_then(Weak::upgrade) {
            return notify;
        }
        let notify = Arc::new(Notify::new());
        recorded.insert(job, Arc::downgrade(&notify));
        notify
    }

    /// Returns how many follow the output of a job.
    pub(crate) fn followers(&self, job: JobId) -> usize {
        self.recorded.lock().unwrap().get(&job).map_or(0, Weak::strong_count)
    }
}

impl Launcher for Script {
    fn launch(&self, job: &Job, run: RunId) -> BoxFuture<'_, Result<Launched, LaunchError>> {
        let (id, kind) = (job.id, job.spec.kind.clone());
        Box::pin(async move {
            match kind.as_str() {
                "wrong" => return Err(LaunchError::Refused("the input is wrong".into())),
                "later" => return Err(LaunchError::Unavailable("not now".into())),
                _ => {}
            }
            let (end, ended) = oneshot::channel();
            self.runs.lock().unwrap().insert(id, (run, end));
            let lost = RunOutcome {
                run: Some(run),
                ending: RunEnding::Interrupted,
                detail: None,
                output: None,
            };
            let ended = Box::pin(async move { ended.await.unwrap_or(lost) });
            let code = Some(Code { kind, digest: "d1".into(), generation: 1 });
            Ok(Launched { task: Some("task-1".into()), code, ended })
        })
    }

    fn stop(&self, stop: Stop) -> BoxFuture<'_, Result<Stopped, String>> {
        Box::pin(async move {
            if stop.request.is_some_and(|request| request.why.as_deref() == Some("refuse")) {
                return Err("it is stubborn".into());
            }
            if stop.how == How::AfterStep {
                return Ok(Stopped::AfterStep);
            }
            if !self.runs.lock().unwrap().contains_key(&stop.job) {
                return Ok(Stopped::Unknown);
            }
            self.end(stop.job, RunEnding::Cancelled, "");
            Ok(Stopped::Stopping)
        })
    }

    fn detail(&self, _: JobId, _: RunId) -> Option<String> {
        Some("half way".into())
    }
}

impl Continue for Script {
    fn has_steps(&self, job: &Job) -> bool {
        job.spec.kind.as_str() == "ask"
    }

    fn after<'a>(
        &'a self,
        job: &'a Job,
        _: &'a RunOutcome,
    ) -> BoxFuture<'a, Result<Following, String>> {
        let schema = Some(r#"{"type":"boolean"}"#.to_owned());
        let question = Question { prompt: "go on?".into(), schema };
        let is_first = job.step == 0;
        Box::pin(async move {
            Ok(match is_first {
                true => Following::Ask { question, state: Some("asked".into()) },
                false => Following::END,
            })
        })
    }

    fn render<'a>(&'a self, job: &'a Job) -> BoxFuture<'a, Option<String>> {
        Box::pin(async move { job.state.clone() })
    }

    fn check_answer<'a>(
        &'a self,
        _: &'a Question,
        answer: &'a str,
    ) -> BoxFuture<'a, Result<(), String>> {
        let fits = matches!(answer, "true" | "false");
        Box::pin(async move { if fits { Ok(()) } else { Err("no boolean".into()) } })
    }
}

impl Reports for Script {
    fn on_spawned(&self, job: &Job) {
        self.metrics.spawned(job);
    }

    fn on_job_update(&self, job: &Job) {
        self.metrics.changed(job);
        self.feed.changed(job);
    }

    fn on_removed(&self, gone: &[Gone]) {
        self.metrics.removed(gone);
        self.feed.removed(gone);
    }
}

impl Script {
    /// Has those kinds be all there are, and tells of the change.
    pub(crate) fn set_kinds(&self, kinds: Vec<KindView>, change: Change) {
        *self.kinds.lock().unwrap() = kinds;
        self.announcer.tell(change);
    }
}

impl Catalog for Script {
    fn kinds(&self) -> Vec<KindView> {
        self.kinds.lock().unwrap().clone()
    }

    fn kind(&self, kind: &Kind) -> Option<KindView> {
        self.kinds.lock().unwrap().iter().find(|view| view.kind == *kind).cloned()
    }

    fn changes(&self) -> Changes {
        self.announcer.listen()
    }
}

/// What the host itself does.
struct Side {
    manager: Manager,
    script: Arc<Script>,
}

impl HostSide for Side {
    fn spawn(&self, request: SpawnRequest) -> BoxFuture<'_, Result<Job, Failure>> {
        Box::pin(async move {
            self.script.requests.lock().unwrap().push(request.clone());
            if request.expects.is_some() {
                return Err(Failure::new(Reason::OtherHost, "this one has other plugins"));
            }
            let gate = self.script.gate.lock().unwrap().clone();
            if let Some(gate) = gate {
                gate.notified().await;
            }
            let kind = match request.target()? {
                Target::Kind(kind) => kind,
                Target::File(_) => Kind::new("file").unwrap(),
            };
            let parent = request.session.clone().unwrap_or_else(|| "chat".into());
            let input = request.input.clone().unwrap_or_default();
            let mut spawn = Spawn::new(kind, parent.into(), input);
            spawn.start = request.start()?;
            spawn.retry = request.retry_policy();
            spawn.announced = request.is_announced();
            spawn.label = request.label;
            spawn.key = request.key;
            spawn.max_attempts = request.attempts;
            spawn.queue = request.queue;
            Ok(self.manager.spawn(spawn).await?)
        })
    }

    fn reload(&self) -> BoxFuture<'_, Result<(), Failure>> {
        Box::pin(async { Ok(()) })
    }

    fn kinds_are_known(&self) -> BoxFuture<'_, ()> {
        let loading = self.script.loading.lock().unwrap().clone();
        Box::pin(async move {
            if let Some(loading) = loading {
                loading.notified().await;
            }
        })
    }

    fn change_kind(&self, kind: Kind, change: KindChange) -> BoxFuture<'_, Result<(), Failure>> {
        self.script.kind_changes.lock().unwrap().push((kind, change));
        let gate = self.script.drained.lock().unwrap().clone();
        Box::pin(async move {
            if let Some(gate) = gate.filter(|_| change == KindChange::Drain) {
                gate.notified().await;
            }
            Ok(())
        })
    }

    fn shutdown(&self, drain: Option<Duration>) -> Duration {
        self.script.ending.notify_one();
        drain.unwrap_or_default()
    }

    fn backup(&self, to: PathBuf) -> BoxFuture<'_, Result<(), Failure>> {
        self.script.backups.lock().unwrap().push(to);
        Box::pin(async { Ok(()) })
    }

    fn recorded(&self, job: JobId) -> Arc<Notify> {
        self.script.recorded(job)
    }

    fn about(&self) -> HostAbout {
        HostAbout { pid: 7, program: "test".into(), ..HostAbout::default() }
    }

    fn gauges(&self) -> HostGauges {
        HostGauges { task_capacity: 100, tasks: 3, guest_memory: 65_536 }
    }
}

/// Waits until something holds that nothing tells of. No time passes meanwhile where it
/// is paused.
pub(crate) async fn until(what: &str, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(10), "{what} did not come to be");
        tokio::task::yield_now().await;
    }
}
