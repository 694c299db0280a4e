//! What a job costs that is spawned over HTTP, beside the library's own call: over
//! SQLite with durable commits, a launcher that does nothing, and TCP with a token. The
//! client is in this process, on the same cores. Run with
//! `cargo bench -p backlot-surface --bench http`.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a benchmark ends where something is missing"
)]

use std::{
    collections::{HashMap, hash_map::Entry},
    env,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

// The workspace's benchmarks report alike; the crate depends on none of them.
#[path = "../../../tests/benches/report/mod.rs"]
mod report;

use backlot_jobs::{
    Config, DataFolder, Job, JobId, LaunchError, Launched, Launcher, Limits, Manager, Reports,
    RunEnding, RunId, RunOutcome, Spawn, SqliteOptions, SqliteStore, Stop, Stopped, World,
};
use backlot_registry::{
    Announcer, BoxFuture, Catalog, Changes, Config as RegistryConfig, Environment, Kind, KindView,
    Registry,
};
use backlot_surface::{
    Api, Door, Failure, Feed, Guard, HostGauges, HostSide, KindChange, Metrics, Reason, Tokens,
    mcp, serve,
    wire::{HostAbout, JobView, SpawnRequest},
};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::{
    Method, Request, StatusCode,
    client::conn::http1::{self, SendRequest},
    header::{AUTHORIZATION, CONTENT_TYPE, HOST},
};
use hyper_util::rt::TokioIo;
use report::{
    Report,
    Target::{self, AtLeast, AtMost},
    median, percentile, us,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Notify, oneshot},
};

const CONNECTIONS: usize = 64;
/// How many jobs are spawned on all connections together, and how often that is done.
const JOBS: usize = 16_000;
const ROUNDS: usize = 3;
/// How many are spawned one after the other, each way.
const TURNS: usize = 1_500;
const LIMITS: Limits =
    Limits { per_session: 20_000, total: 20_000, depth: 1, queued: 10_000, ..Limits::NONE };
const SESSION: &str = "chat";
const INPUT: &str = r#"{"path":"src"}"#;

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

/// Tells the surface what becomes of jobs, as a host does, and whoever waits for it that
/// one has ended.
#[derive(Default)]
struct Ends {
    feed: Feed,
    metrics: Metrics,
    waiters: Mutex<HashMap<JobId, Option<oneshot::Sender<()>>>>,
}

impl Ends {
    async fn of(&self, id: JobId) {
        let ended = {
            let mut waiters = self.waiters.lock().unwrap();
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
        ended.await.unwrap();
    }
}

impl Reports for Ends {
    fn on_spawned(&self, job: &Job) {
        self.metrics.spawned(job);
    }

    fn on_job_update(&self, job: &Job) {
        self.metrics.changed(job);
        self.feed.changed(job);
        if job.ended().is_none() {
            return;
        }
        match self.waiters.lock().unwrap().entry(job.id) {
            Entry::Occupied(entry) => {
                if let Some(waiter) = entry.remove() {
                    let _ = waiter.send(());
                }
            }
            // Its spawn has not returned yet.
            Entry::Vacant(entry) => _ = entry.insert(None),
        }
    }
}

/// A host that has no kinds, and takes every spawn.
struct Side {
    manager: Manager,
    announcer: Announcer,
}

impl HostSide for Side {
    fn spawn(&self, request: SpawnRequest) -> BoxFuture<'_, Result<Job, Failure>> {
        Box::pin(async move {
            let kind = Kind::new(request.kind.as_deref().unwrap_or_default());
            let kind = kind.map_err(|error| Failure::new(Reason::Invalid, error.to_string()))?;
            let session = request.session.unwrap_or_default();
            let spawn = Spawn {
                announced: false,
                ..Spawn::new(kind, session.into(), request.input.unwrap_or_default())
            };
            Ok(self.manager.spawn(spawn).await?)
        })
    }

    fn reload(&self) -> BoxFuture<'_, Result<(), Failure>> {
        Box::pin(async { Ok(()) })
    }

    fn kinds_are_known(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }

    fn change_kind(&self, _: Kind, _: KindChange) -> BoxFuture<'_, Result<(), Failure>> {
        Box::pin(async { Ok(()) })
    }

    fn shutdown(&self, drain: Option<Duration>) -> Duration {
        drain.unwrap_or_default()
    }

    fn backup(&self, _: PathBuf) -> BoxFuture<'_, Result<(), Failure>> {
        Box::pin(async { Ok(()) })
    }

    fn recorded(&self, _: JobId) -> Arc<Notify> {
        Arc::default()
    }

    fn about(&self) -> HostAbout {
        HostAbout { pid: 7, program: "bench".into(), ..HostAbout::default() }
    }

    fn gauges(&self) -> HostGauges {
        HostGauges::default()
    }
}

impl Catalog for Side {
    fn kinds(&self) -> Vec<KindView> {
        Vec::new()
    }

    fn kind(&self, _: &Kind) -> Option<KindView> {
        None
    }

    fn changes(&self) -> Changes {
        self.announcer.listen()
    }
}

/// A connection that is kept, and what is sent on it.
struct Connection {
    sender: SendRequest<Full<Bytes>>,
    address: SocketAddr,
    token: Arc<str>,
    body: Bytes,
}

impl Connection {
    async fn open(address: SocketAddr, token: &Arc<str>) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let body = serde_json::json!({
            "kind": "noop", "session": SESSION, "input": INPUT, "announce": false,
        });
        Self { sender, address, token: token.clone(), body: body.to_string().into() }
    }

    /// Spawns a job, and returns its id once the whole answer is there.
    async fn spawn(&mut self) -> JobId {
        let request = Request::builder()
            .method(Method::POST)
            .uri("/v1/jobs")
            .header(HOST, self.address.to_string())
            .header(AUTHORIZATION, format!("Bearer {}", self.token))
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(self.body.clone()))
            .unwrap();
        let answer = self.sender.send_request(request).await.unwrap();
        let status = answer.status();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(status, StatusCode::CREATED, "{}", String::from_utf8_lossy(&body));
        let job: JobView = serde_json::from_slice(&body).unwrap();
        job.id
    }
}

/// A host, and how it is asked.
struct Host {
    manager: Manager,
    ends: Arc<Ends>,
    store: Arc<SqliteStore>,
    address: SocketAddr,
    token: Arc<str>,
}

impl Host {
    async fn start(folder: &Path) -> Self {
        let data = DataFolder::open(&folder.join("data")).unwrap();
        let database = folder.join("jobs.db");
        let store = Arc::new(SqliteStore::open(&database, SqliteOptions::default()).unwrap());
        let ends = Arc::new(Ends::default());
        let reports: Arc<dyn Reports> = ends.clone();
        let world = World { reports, ..World::new(Arc::new(Noop)) };
        let config = Config { limits: LIMITS, ..Config::default() };
        let (manager, _) = Manager::open(store.clone(), world, config).await.unwrap();
        manager.open_session(SESSION.into()).await.unwrap();
        let environment = Environment::new(tokio::runtime::Handle::current());
        let side = Arc::new(Side { manager: manager.clone(), announcer: Announcer::default() });
        let tokens = Tokens::open(&data).unwrap();
        tokens.ensure_operator().unwrap();
        let token = tokens.operator_token().unwrap().unwrap().into();
        let api = Api {
            manager: manager.clone(),
            folder: data,
            registry: Registry::new(RegistryConfig::default(), environment),
            catalog: side.clone(),
            feed: ends.feed.clone(),
            metrics: ends.metrics.clone(),
            mcp: mcp::Options::default(),
            claims: mcp::Claims::default(),
            host: side,
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let door = Door::Tcp { listener, tls: None, guard: Guard::new(tokens) };
        tokio::spawn(serve(vec![door], api, std::future::pending()));
        Self { manager, ends, store, address, token }
    }

    /// Spawns a job as the library has it, and returns its id.
    async fn spawn(&self) -> JobId {
        let kind = Kind::new("noop").unwrap();
        let spawn = Spawn { announced: false, ..Spawn::new(kind, SESSION.into(), INPUT) };
        self.manager.spawn(spawn).await.unwrap().id
    }

    async fn open(&self) -> Connection {
        Connection::open(self.address, &self.token).await
    }
}

/// How long a spawn takes each way, in microseconds, turn by turn. What follows on it is
/// over before the next one.
async fn one_by_one(host: &Host) -> (Vec<f64>, Vec<f64>) {
    let mut connection = host.open().await;
    let (mut bare, mut asked) = (Vec::new(), Vec::new());
    for _ in 0..TURNS {
        let begun = Instant::now();
        let id = host.spawn().await;
        bare.push(us(begun.elapsed()));
        host.ends.of(id).await;
        let begun = Instant::now();
        let id = connection.spawn().await;
        asked.push(us(begun.elapsed()));
        host.ends.of(id).await;
    }
    (bare, asked)
}

/// Spawns jobs on many connections at once, and returns how many in a second.
async fn crowd(host: &Arc<Host>) -> f64 {
    let mut connections = Vec::new();
    for _ in 0..CONNECTIONS {
        connections.push(host.open().await);
    }
    let begun = Instant::now();
    let work = connections.into_iter().map(|mut connection| {
        let ends = host.ends.clone();
        tokio::spawn(async move {
            let mut ids = Vec::new();
            for _ in 0..JOBS / CONNECTIONS {
                ids.push(connection.spawn().await);
            }
            (ids, ends)
        })
    });
    let mut spawned = Vec::new();
    for task in work.collect::<Vec<_>>() {
        spawned.push(task.await.unwrap());
    }
    let took = begun.elapsed();
    for (ids, ends) in spawned {
        for id in ids {
            ends.of(id).await;
        }
    }
    (JOBS / CONNECTIONS * CONNECTIONS) as f64 / took.as_secs_f64()
}

/// Spawns jobs by the library from as many callers, and returns how many in a second.
async fn bare_crowd(host: &Arc<Host>) -> f64 {
    let begun = Instant::now();
    let work = (0..CONNECTIONS).map(|_| {
        let host = host.clone();
        tokio::spawn(async move {
            let mut ids = Vec::new();
            for _ in 0..JOBS / CONNECTIONS {
                ids.push(host.spawn().await);
            }
            ids
        })
    });
    let mut spawned = Vec::new();
    for task in work.collect::<Vec<_>>() {
        spawned.extend(task.await.unwrap());
    }
    let took = begun.elapsed();
    for id in spawned {
        host.ends.of(id).await;
    }
    (JOBS / CONNECTIONS * CONNECTIONS) as f64 / took.as_secs_f64()
}

async fn costs(report: &mut Report, folder: &Path) {
    let host = Arc::new(Host::start(folder).await);
    // Warms what is warm in a host that has run for a moment.
    crowd(&host).await;
    let measured = host.clone();
    // On a thread of the runtime, as whoever serves others is.
    let both = tokio::spawn(async move { one_by_one(&measured).await });
    let (bare, asked) = both.await.unwrap();
    let (bare_us, asked_us) = (median(&bare), median(&asked));
    report.figure("bare_us", "a spawn by the library", bare_us, "us", Target::None);
    report.figure("post_us", "POST /v1/jobs to 201, durable", asked_us, "us", Target::None);
    let label = "  in spawns by the library";
    report.figure("post_spawns", label, asked_us / bare_us, "", AtMost(2.0));
    for (key, label, all) in [("bare", "library", &bare), ("post", "POST", &asked)] {
        let slow = percentile(all, 99.0);
        let label = format!("  the slowest in a hundred, {label}");
        report.figure(&format!("{key}_p99_us"), &label, slow, "us", Target::None);
    }
    let (mut asked, mut bare) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        asked.push(crowd(&host).await);
        bare.push(bare_crowd(&host).await);
    }
    let label = format!("{CONNECTIONS} connections, POST /v1/jobs");
    report.figure("posts_s", &label, median(&asked), "requests/s", AtLeast(5_000.0));
    let label = format!("  {CONNECTIONS} callers of the library");
    report.figure("spawns_s", &label, median(&bare), "spawns/s", Target::None);
    host.manager.close(Duration::from_secs(10)).await;
    host.store.close().await.unwrap();
}

fn main() {
    let about = "what a job costs that is spawned over HTTP";
    let mut report = Report::begin("http", about).unwrap();
    let program = env::current_exe().unwrap();
    let folder = tempfile::tempdir_in(program.parent().unwrap()).unwrap();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(costs(&mut report, folder.path()));
    report.end().unwrap();
}
