//! Webhooks against servers that are really there.

use std::{
    collections::VecDeque,
    io,
    net::IpAddr,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use backlot_jobs::{
    Config, FaultyStore, Hand, How, LaunchError, Launched, Launcher, MemoryStore, Phase, Run,
    RunEnding, RunId, RunOutcome, Spawn, Spec, Stage, StartAt, Status, Stop, Stopped, Store,
    Webhook, World,
};
use backlot_registry::{BoxFuture, Caller as Who, Cause, Kind};
use serde_json::Value;
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::{Notify, mpsc},
};

use super::*;

/// A wait that is over when it is looked at.
const SOON: Pace = Pace { first_ms: 20 };

/// How long what must come is waited for.
const PATIENCE: Duration = Duration::from_secs(20);

/// A request as a receiver gets it.
#[derive(Debug)]
struct Heard {
    line: String,
    headers: HashMap<String, String>,
    body: Vec<u8>,
}

impl Heard {
    fn id(&self) -> &str {
        &self.headers["webhook-id"]
    }

    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

/// What a receiver answers.
#[derive(Clone)]
enum Answer {
    Status(u16),
    Redirect(String),
    /// The status once that is notified.
    Held(Arc<Notify>, u16),
    Never,
}

/// A receiver on the loopback.
struct Receiver {
    port: u16,
    heard: mpsc::UnboundedReceiver<Heard>,
    connections: Arc<AtomicUsize>,
    _server: Server,
}

struct Server(JoinHandle<()>);

impl Drop for Server {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Receiver {
    /// Returns one that answers so, and to all after these as to the last.
    async fn answering(answers: impl IntoIterator<Item = Answer>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let answers = Arc::new(Mutex::new(answers.into_iter().collect::<VecDeque<_>>()));
        let connections = Arc::new(AtomicUsize::new(0));
        let (sender, heard) = mpsc::unbounded_channel();
        let counted = connections.clone();
        let server = tokio::spawn(async move {
            let mut served = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                counted.fetch_add(1, Ordering::SeqCst);
                served.spawn(serve(stream, answers.clone(), sender.clone()));
            }
        });
        Self { port, heard, connections, _server: Server(server) }
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}/told", self.port)
    }

    async fn next(&mut self) -> Heard {
        let heard = tokio::time::timeout(PATIENCE, self.heard.recv()).await;
        heard.expect("it is told").unwrap()
    }

    fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

async fn serve(
    mut stream: TcpStream,
    answers: Arc<Mutex<VecDeque<Answer>>>,
    sender: mpsc::UnboundedSender<Heard>,
) {
    let Ok(heard) = read(&mut stream).await else { return };
    let answer = {
        let mut answers = answers.lock().unwrap();
        let next = answers.front().cloned().unwrap();
        if answers.len() > 1 {
            answers.pop_front();
        }
        next
    };
    sender.send(heard).unwrap();
    let (status, more) = match answer {
        Answer::Status(status) => (status, String::new()),
        Answer::Redirect(to) => (302, format!("location: {to}\r\n")),
        Answer::Held(held, status) => {
            held.notified().await;
            (status, String::new())
        }
        Answer::Never => std::future::pending().await,
    };
    let answer = format!("HTTP/1.1 {status} Said\r\n{more}content-length: 0\r\n\r\n");
    // Who asked may have gone.
    let _ = stream.write_all(answer.as_bytes()).await;
}

async fn read(stream: &mut TcpStream) -> io::Result<Heard> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    let head = String::from_utf8(head).unwrap();
    let mut lines = head.lines();
    let line = lines.next().unwrap().to_owned();
    let headers: HashMap<String, String> = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
        .collect();
    let mut body = vec![0; headers["content-length"].parse().unwrap()];
    stream.read_exact(&mut body).await?;
    Ok(Heard { line, headers, body })
}

/// Ends each run as its input says, at once.
struct AsTold;

impl Launcher for AsTold {
    fn launch(&self, job: &Job, run: RunId) -> BoxFuture<'_, Result<Launched, LaunchError>> {
        let input = job.stage_input().to_owned();
        let ending = match input.as_str() {
            "fail" => RunEnding::Failed,
            _ => RunEnding::Completed,
        };
        let outcome = RunOutcome { run: Some(run), ending, detail: None, output: Some(input) };
        let ended = Box::pin(async { outcome });
        Box::pin(async { Ok(Launched { task: None, code: None, ended }) })
    }

    fn stop(&self, _: Stop) -> BoxFuture<'_, Result<Stopped, String>> {
        Box::pin(async { Ok(Stopped::Unknown) })
    }
}

/// A host that tells webhooks.
struct Host {
    manager: Manager,
    webhooks: Webhooks,
    store: Arc<dyn Store>,
    folder: Arc<TempDir>,
    setup: Setup,
}

#[derive(Clone)]
struct Setup {
    options: WebhookOptions,
    patience: Duration,
}

impl Setup {
    fn new(allow: &[&str]) -> Self {
        let allow = allow.iter().map(|text| text.parse().unwrap()).collect();
        let options = WebhookOptions { allow, default: None };
        Self { options, patience: PATIENCE }
    }

    async fn start(self) -> Host {
        let folder = Arc::new(tempfile::tempdir().unwrap());
        self.start_on(Arc::new(MemoryStore::new()), folder).await
    }

    async fn start_on(self, store: Arc<dyn Store>, folder: Arc<TempDir>) -> Host {
        let has_webhook = self.options.default.is_some();
        let config = Config { has_webhook, ..Config::default() };
        let world = World::new(Arc::new(AsTold));
        let (manager, _) = Manager::open(store.clone(), world, config).await.unwrap();
        manager.open_session("chat".into()).await.unwrap();
        let resolver = Resolver::Function(Arc::new(directory));
        let caller = Caller::new(folder.path().to_owned(), self.options.clone(), resolver);
        let caller = caller.with_patience(self.patience);
        let webhooks = Webhooks::start_with(manager.clone(), caller, SOON);
        Host { manager, webhooks, store, folder, setup: self }
    }
}

/// Every name of the tests is this machine, called by the public.
fn directory(name: &str) -> io::Result<Vec<IpAddr>> {
    match name.ends_with(".test") {
        true => Ok(vec![IpAddr::from([127, 0, 0, 1])]),
        false => Err(io::Error::other("no such name")),
    }
}

/// A host that may tell the loopback.
async fn host() -> Host {
    Setup::new(&["127.0.0.0/8"]).start().await
}

impl Host {
    async fn spawn(&self, input: &str, url: &str) -> Job {
        let webhook = Some(url.to_owned());
        self.manager.spawn(Spawn { webhook, ..spawn(input) }).await.unwrap()
    }

    async fn job(&self, id: JobId) -> Job {
        self.manager.get(id, &Who::Operator).await.unwrap()
    }

    /// Waits until a job is so.
    async fn when(&self, id: JobId, mut condition: impl FnMut(&Job) -> bool) -> Job {
        let watch = self.manager.watch(id);
        let waited = async {
            loop {
                let changed = watch.notified();
                let job = self.job(id).await;
                if condition(&job) {
                    return job;
                }
                changed.await;
            }
        };
        tokio::time::timeout(PATIENCE, waited).await.expect("it comes about")
    }

    async fn told(&self, id: JobId) -> Job {
        self.when(id, |job| job.status().is_terminal() && job.call.is_none()).await
    }

    /// Waits until a call has failed, and returns why.
    async fn untold(&self, id: JobId) -> Call {
        let is_untold = |job: &Job| job.call.as_ref().is_some_and(|call| call.tries > 0);
        *self.when(id, is_untold).await.call.unwrap()
    }

    /// Ends at once, as by a crash, and starts anew on what is there.
    async fn crash(self) -> Self {
        let Self { manager, webhooks, store, folder, setup } = self;
        webhooks.end().await;
        drop(manager);
        setup.start_on(store, folder).await
    }
}

fn spawn(input: &str) -> Spawn {
    Spawn::new(Kind::new("work").unwrap(), "chat".into(), input)
}

/// A job that works, for tests of what is said of it.
pub(super) fn working() -> Job {
    let kind = Kind::new("grep").unwrap();
    let cause = Cause::Spawn;
    let run = Run {
        id: RunId::from_bits(1),
        kind: kind.clone(),
        cause,
        attempt: 1,
        step: 0,
        task: None,
        code: None,
        started_ms: 0,
        ended_ms: None,
        outcome: None,
    };
    Job {
        id: JobId::from_bits(7),
        spec: Arc::new(Spec {
            kind,
            input: "{}".into(),
            label: "find it".into(),
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
        }),
        depth: 1,
        phase: Phase::Working { run },
        stage: Stage { kind: None, input: None, cause, last_failure: None, answer: None },
        attempt: 1,
        step: 0,
        continuations: 0,
        state: None,
        code: Vec::new(),
        stop: None,
        detail: None,
        debt: None,
        call: None,
        endings: 0,
        created_ms: 0,
        updated_ms: 0,
    }
}

#[tokio::test]
async fn a_webhook_is_told_with_a_signature_that_can_be_checked() {
    let mut receiver = Receiver::answering([Answer::Status(204)]).await;
    let host = host().await;
    let job = host.spawn("4 files", &receiver.url()).await;
    let heard = receiver.next().await;
    assert_eq!(heard.line, "POST /told HTTP/1.1");
    assert_eq!(heard.headers["content-type"], "application/json");
    assert_eq!(heard.id(), DeliveryId::new(job.id, 1).to_string());
    let at: u64 = heard.headers["webhook-timestamp"].parse().unwrap();
    assert!(at.abs_diff(host.manager.now_ms() / 1_000) < 60, "{at}");
    let secret = WebhookSecret::of_folder(host.folder.path()).unwrap();
    let signature = secret.signature(heard.id(), at, &heard.body);
    assert_eq!(heard.headers["webhook-signature"], signature);
    let message = heard.json();
    assert_eq!(message["type"], "job.completed");
    assert_eq!(message["data"]["id"], job.id.to_string());
    assert_eq!(message["data"]["result"], "4 files");
    let told = host.told(job.id).await;
    assert!(told.debt.is_some(), "its session is told apart");
    assert_eq!(receiver.connections(), 1);
}

#[tokio::test]
async fn what_failed_and_what_was_cancelled_is_told() {
    let mut receiver = Receiver::answering([Answer::Status(200)]).await;
    let host = host().await;
    let failed = host.spawn("fail", &receiver.url()).await;
    let heard = receiver.next().await;
    assert_eq!(
        (heard.json()["type"].as_str(), heard.json()["data"]["id"].as_str()),
        (Some("job.failed"), Some(failed.id.to_string().as_str()))
    );
    let (start, webhook) = (StartAt::After(3_600_000), Some(receiver.url()));
    let later = Spawn { start, webhook, ..spawn("late") };
    let later = host.manager.spawn(later).await.unwrap();
    let why = Some("no need".to_owned());
    host.manager.stop(later.id, &Who::Operator, How::Ask, "anna", why).await.unwrap();
    let heard = receiver.next().await.json();
    assert_eq!(
        (&heard["type"], &heard["data"]["summary"]),
        (&"job.cancelled".into(), &"no need".into())
    );
    host.told(later.id).await;
    // A retry is another ending, and another message.
    host.manager.retry(failed.id, &Who::Operator, Hand::Model).await.unwrap();
    assert_eq!(receiver.next().await.id(), DeliveryId::new(failed.id, 2).to_string());
}

#[tokio::test]
async fn what_was_not_heard_is_told_again_under_the_same_id() {
    let answers = [500, 404, 503, 200].map(Answer::Status);
    let mut receiver = Receiver::answering(answers).await;
    let host = host().await;
    let job = host.spawn("done", &receiver.url()).await;
    let first = receiver.next().await;
    for _ in 0..3 {
        let again = receiver.next().await;
        assert_eq!((again.id(), &again.body), (first.id(), &first.body));
    }
    host.told(job.id).await;
    assert_eq!(receiver.connections(), 4);
}

#[tokio::test]
async fn the_next_host_tells_what_this_one_could_not() {
    let held = Arc::new(Notify::new());
    let answers = [Answer::Status(500), Answer::Held(held.clone(), 200), Answer::Status(200)];
    let mut receiver = Receiver::answering(answers).await;
    let host = host().await;
    let job = host.spawn("done", &receiver.url()).await;
    let first = receiver.next().await;
    // The receiver has it, but that is never noted.
    let second = receiver.next().await;
    assert_eq!(second.id(), first.id());
    let host = host.crash().await;
    let third = receiver.next().await;
    assert_eq!((third.id(), &third.body), (first.id(), &first.body));
    assert_eq!(third.headers["webhook-signature"].len(), first.headers["webhook-signature"].len());
    host.told(job.id).await;
    let host = host.crash().await;
    assert_eq!(host.manager.calls(Vec::new(), 10).await.unwrap(), []);
}

#[tokio::test]
async fn an_end_waits_for_no_receiver() {
    let mut receiver = Receiver::answering([Answer::Never]).await;
    let host = host().await;
    let job = host.spawn("done", &receiver.url()).await;
    receiver.next().await;
    let Host { webhooks, manager, .. } = host;
    webhooks.end().await;
    let call = *manager.get(job.id, &Who::Operator).await.unwrap().call.unwrap();
    assert_eq!((call.tries, call.why), (0, None));
}

#[tokio::test]
async fn what_only_the_host_can_reach_is_never_connected_to() {
    let receiver = Receiver::answering([Answer::Status(200)]).await;
    let host = Setup::new(&[]).start().await;
    for url in [
        receiver.url(),
        format!("http://localhost.test:{}", receiver.port),
        format!("http://[::ffff:127.0.0.1]:{}", receiver.port),
        format!("http://127.1:{}", receiver.port),
    ] {
        let job = host.spawn("done", &url).await;
        let call = host.untold(job.id).await;
        assert!(call.due_ms.is_some(), "an operator may allow it by then");
        let why = call.why.unwrap();
        assert!(why.ends_with(" is loopback: an operator can allow it"), "{url}: {why}");
    }
    assert_eq!(receiver.connections(), 0);
}

#[tokio::test]
async fn a_name_is_told_where_it_was_looked_up() {
    let mut receiver = Receiver::answering([Answer::Status(200)]).await;
    let allowed = format!("hooks.test:{}", receiver.port);
    let host = Setup::new(&[&allowed]).start().await;
    let job = host.spawn("done", &format!("http://hooks.test:{}/x", receiver.port)).await;
    assert_eq!(receiver.next().await.headers["host"], allowed);
    host.told(job.id).await;
    let other = host.spawn("done", &format!("http://other.test:{}/x", receiver.port)).await;
    host.untold(other.id).await;
    assert_eq!(receiver.connections(), 1);
}

#[tokio::test]
async fn nothing_is_said_to_a_server_that_proves_nothing() {
    // It speaks no TLS.
    let mut receiver = Receiver::answering([Answer::Status(200)]).await;
    let host = host().await;
    let job = host.spawn("done", &receiver.url().replace("http:", "https:")).await;
    assert!(host.untold(job.id).await.due_ms.is_some());
    receiver.heard.try_recv().unwrap_err();
}

#[tokio::test]
async fn no_redirect_is_followed() {
    let inside = Receiver::answering([Answer::Status(200)]).await;
    let redirect = Answer::Redirect(inside.url());
    let mut receiver = Receiver::answering([redirect, Answer::Status(200)]).await;
    let host = host().await;
    let job = host.spawn("done", &receiver.url()).await;
    receiver.next().await;
    let why = host.untold(job.id).await.why.unwrap();
    assert_eq!(why, "it answered 302, and no redirect is followed");
    host.told(job.id).await;
    assert_eq!(inside.connections(), 0);
}

#[tokio::test]
async fn a_receiver_that_is_gone_is_given_up() {
    let mut receiver = Receiver::answering([Answer::Status(410)]).await;
    let host = host().await;
    let job = host.spawn("done", &receiver.url()).await;
    receiver.next().await;
    let call = host.untold(job.id).await;
    assert_eq!((call.tries, call.due_ms), (1, None));
    assert_eq!(call.why.as_deref(), Some("it answered 410: it is gone"));
    let nowhere = host.spawn("done", "ftp://example.com").await;
    assert_eq!(host.untold(nowhere.id).await.due_ms, None);
}

#[tokio::test]
async fn a_receiver_that_does_not_answer_is_given_its_time() {
    let mut receiver = Receiver::answering([Answer::Never]).await;
    let setup = Setup { patience: Duration::from_millis(50), ..Setup::new(&["127.0.0.1"]) };
    let host = setup.start().await;
    let job = host.spawn("done", &receiver.url()).await;
    receiver.next().await;
    let call = host.untold(job.id).await;
    assert!(call.due_ms.is_some());
    assert_eq!(call.why.as_deref(), Some("it did not answer within 50ms"));
}

#[tokio::test]
async fn a_receiver_that_is_slow_holds_up_nobody_else() {
    let mut slow = Receiver::answering([Answer::Never]).await;
    let mut quick = Receiver::answering([Answer::Status(200)]).await;
    let host = host().await;
    for _ in 0..20 {
        host.spawn("done", &slow.url()).await;
    }
    for _ in 0..CALLS_TO_ONE {
        slow.next().await;
    }
    for turn in 0..5 {
        let url = format!("http://quick{turn}.test:{}", quick.port);
        let job = host.spawn("done", &url).await;
        quick.next().await;
        host.told(job.id).await;
    }
    assert_eq!(slow.connections(), CALLS_TO_ONE);
}

#[tokio::test]
async fn calls_under_way_are_few() {
    let job = |url: String| {
        let mut job = working();
        Arc::make_mut(&mut job.spec).webhook = Some(Webhook::Url(url));
        job
    };
    let mut under_way = UnderWay::default();
    for number in 0..CALLS as u32 {
        let job = job(format!("https://host{}.test/{number}", number / CALLS_TO_ONE as u32));
        let receiver = under_way.place_for(&job).unwrap();
        under_way.begin(receiver, DeliveryId::new(job.id, number), std::future::pending());
        if under_way.to("host0.test") == CALLS_TO_ONE {
            assert_eq!(under_way.place_for(&working()), None, "it has no webhook");
            assert!(under_way.full().contains(&"host0.test".to_owned()));
        }
    }
    assert!(under_way.is_full());
    assert_eq!(under_way.place_for(&job("https://other.test".into())), None);
    assert_eq!(under_way.full().len(), CALLS / CALLS_TO_ONE);
    assert!(under_way.holds(&DeliveryId::new(JobId::from_bits(7), 3)));
    assert!(!under_way.holds(&DeliveryId::new(JobId::from_bits(7), 99)));
}

#[tokio::test]
async fn a_job_that_is_deleted_meanwhile_is_told_no_more() {
    let held = Arc::new(Notify::new());
    let answers = [Answer::Held(held.clone(), 500), Answer::Status(200)];
    let mut receiver = Receiver::answering(answers).await;
    let host = host().await;
    let job = host.spawn("done", &receiver.url()).await;
    receiver.next().await;
    host.manager.remove(job.id, &Who::Operator).await.unwrap();
    held.notify_one();
    // Others are told as ever.
    let other = host.spawn("done", &receiver.url()).await;
    assert_eq!(receiver.next().await.id(), DeliveryId::new(other.id, 1).to_string());
    host.told(other.id).await;
    assert_eq!(host.manager.calls(Vec::new(), 10).await.unwrap(), []);
}

#[tokio::test]
async fn what_cannot_be_noted_is_not_told_over_and_over() {
    let held = Arc::new(Notify::new());
    let answers = [Answer::Held(held.clone(), 200), Answer::Status(200)];
    let mut receiver = Receiver::answering(answers).await;
    let store = FaultyStore::new(Arc::new(MemoryStore::new()));
    let folder = Arc::new(tempfile::tempdir().unwrap());
    let setup = Setup::new(&["127.0.0.0/8"]);
    let host = setup.start_on(Arc::new(store.clone()), folder).await;
    let job = host.spawn("done", &receiver.url()).await;
    receiver.next().await;
    store.fail_nth(1, StoreError::Full { path: "jobs.db".into() });
    held.notify_one();
    host.told(job.id).await;
    assert_eq!((store.failed(), receiver.connections()), (1, 1));
}

#[tokio::test]
async fn a_host_has_those_told_that_name_no_webhook() {
    let mut receiver = Receiver::answering([Answer::Status(200)]).await;
    let mut setup = Setup::new(&["127.0.0.0/8"]);
    setup.options.default = Some(receiver.url().parse().unwrap());
    let host = setup.start().await;
    let quiet = Spawn { announced: false, ..spawn("done") };
    let quiet = host.manager.spawn(quiet).await.unwrap();
    let job = host.manager.spawn(spawn("done")).await.unwrap();
    assert_eq!(receiver.next().await.json()["data"]["id"], job.id.to_string());
    host.told(job.id).await;
    let quiet = host.when(quiet.id, |job| job.status().is_terminal()).await;
    assert_eq!((quiet.status(), quiet.call, receiver.connections()), (Status::Completed, None, 1));
    // The next host may have none; it may also be set up anew.
    let Host { manager, webhooks, store, folder, .. } = host;
    webhooks.end().await;
    let job = manager.spawn(spawn("done")).await.unwrap();
    drop(manager);
    let host = Setup::new(&[]).start_on(store, folder).await;
    let call = host.untold(job.id).await;
    assert!(call.due_ms.is_some());
    assert_eq!(call.why.as_deref(), Some("this host has no webhook of its own any more"));
}
