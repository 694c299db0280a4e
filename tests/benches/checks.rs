//! What checks cost: the policy with every start, and the network's rules with every
//! request of a guest.
//!
//! A start that a policy decides on stands beside one whose grant was opened before, and
//! a request beside one of the same guest on wasmtime-wasi-http alone. The machine may
//! be shared and noisy, so they are measured in turn, and the differences of a round are
//! what counts.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;
use backlot::{
    Config, Host,
    registry::{Caller, Kind, Producer, Registry, Start, Status, Step},
    wasm::{Ask, Grant, Limits, LimitsAsk, OpenGrant, Policy},
};
use backlot_tests::{arguments, kind, program};

mod bare_http;
mod report;

use bare_http::BareHttp;
use report::{
    Report,
    Target::{self, AtMost},
    median, us,
};

/// Rounds of starts, and how many of each sort there are in one.
const ROUNDS: usize = 401;
const STARTS: u32 = 100;
/// Rounds of requests, and how many one guest makes.
const REQUEST_ROUNDS: usize = 51;
const REQUESTS: u32 = 100;
/// How many kinds the policy has sections for.
const KINDS: usize = 50;

fn main() -> Result<()> {
    let about = format!(
        "starts with a policy of {KINDS} kinds, and requests of a guest; medians of {ROUNDS} and \
         {REQUEST_ROUNDS} rounds"
    );
    let mut report = Report::begin("checks", &about)?;
    let folder = tempfile::tempdir()?;
    fs::copy(kind("noop"), folder.path().join("noop.wasm"))?;
    fs::write(folder.path().join("noop.toml"), MANIFEST)?;
    let config = Config {
        plugins: folder.path().to_owned(),
        policy: Policy::parse(&policy(), "backlot.toml", folder.path())?,
        ..Config::default()
    };
    let host = Host::start(config)?;
    let _surface = host.registry().attach_surface("bench");
    let starts = Starts::new(&host)?;
    let requests = Requests::new(&host)?;
    // The benchmark itself is a task of the runtime that it measures, as an embedding
    // program's would be.
    let work = async move { anyhow::Ok((starts.rounds().await?, requests.rounds().await?)) };
    let (starts, requests) =
        host.runtime().block_on(async { host.runtime().spawn(work).await? })?;
    start_figures(&mut report, &starts);
    request_figures(&mut report, &requests);
    report.end()?;
    Ok(())
}

/// What the manifest of the no-op asks for.
const MANIFEST: &str = "http = ['https://api.example.com', 'https://*.example.org']\n\
                        memory = '64MiB'\n";

/// Returns a policy with sections of many kinds, that of the no-op among them.
fn policy() -> String {
    let section = |name: &str| {
        format!(
            "[kind.{name}]\nhttp = ['https://*.example.com', 'https://*.example.org']\n\
             tcp = ['db.example.com:5432']\nlookup = 'listed'\nmemory = '128MiB'\n"
        )
    };
    let others: String = (1..KINDS).map(|number| section(&format!("kind-{number}"))).collect();
    format!("[defaults]\nmemory = '256MiB'\n{others}{}", section("noop"))
}

/// The no-op, started in three ways.
struct Starts {
    registry: Registry,
    given: Arc<dyn Producer>,
    plain: Arc<dyn Producer>,
    narrowed: Arc<dyn Producer>,
}

/// How long a start took in each way, in microseconds.
struct StartRound {
    given: f64,
    plain: f64,
    narrowed: f64,
}

impl Starts {
    fn new(host: &Host) -> Result<Self> {
        let component = host.runtime().block_on(host.load_kind("noop"))?;
        let noop = Kind::new("noop")?;
        let narrow = Ask {
            http: Some(vec!["https://api.example.com".parse()?]),
            limits: LimitsAsk { memory: Some(32 << 20), ..LimitsAsk::default() },
            ..Ask::default()
        };
        let of = |ask| Arc::new(host.catalog().producer(noop.clone(), ask));
        Ok(Self {
            registry: host.registry().clone(),
            given: Arc::new(component.producer(OpenGrant::none(), Limits::default())),
            plain: of(Ask::default()),
            narrowed: of(narrow),
        })
    }

    async fn rounds(&self) -> Result<Vec<StartRound>> {
        let mut rounds = Vec::new();
        for round in 0..=ROUNDS {
            // In turn from either end, so that none is always after the same other.
            let ways = [&self.given, &self.plain, &self.narrowed];
            let mut each = [0.0; 3];
            for at in if round % 2 == 0 { [0, 1, 2] } else { [2, 1, 0] } {
                each[at] = self.each(ways[at]).await?;
            }
            let [given, plain, narrowed] = each;
            rounds.push(StartRound { given, plain, narrowed });
        }
        // The first round warms caches and pools.
        rounds.remove(0);
        Ok(rounds)
    }

    async fn each(&self, producer: &Arc<dyn Producer>) -> Result<f64> {
        let begun = Instant::now();
        for _ in 0..STARTS {
            run(&self.registry, producer, String::new()).await?;
        }
        Ok(us(begun.elapsed()) / f64::from(STARTS))
    }
}

/// Runs a task to its end.
async fn run(registry: &Registry, producer: &Arc<dyn Producer>, input: String) -> Result<()> {
    let start = Start { label: "checked".to_owned(), input, owner: None, step: Step::default() };
    let id = registry.start(Arc::clone(producer), start).await?;
    let ended = registry.wait(&id, &Caller::Operator, Duration::from_secs(60)).await?;
    anyhow::ensure!(ended.status == Status::Completed, "{ended:?}");
    Ok(())
}

fn start_figures(report: &mut Report, rounds: &[StartRound]) {
    let middle =
        |pick: &dyn Fn(&StartRound) -> f64| median(&rounds.iter().map(pick).collect::<Vec<_>>());
    let given = middle(&|round| round.given);
    report.figure("given_us", "start → done with an open grant", given, "µs", Target::None);
    let plain = middle(&|round| round.plain - round.given);
    let label = "more with a policy, all that there is";
    report.figure("policy_us", label, plain, "µs", AtMost(2.0));
    let narrowed = middle(&|round| round.narrowed - round.given);
    let label = "more with a policy, less asked for";
    report.figure("narrowed_us", label, narrowed, "µs", Target::None);
}

/// A guest that makes requests, on this host and on wasmtime-wasi-http alone.
struct Requests {
    registry: Registry,
    producer: Arc<dyn Producer>,
    bare: BareHttp,
    server: Server,
}

/// How long a request took, in microseconds.
struct RequestRound {
    host: f64,
    bare: f64,
}

impl Requests {
    fn new(host: &Host) -> Result<Self> {
        let server = Server::start()?;
        let component = host.runtime().block_on(host.load_file(&program("fetch")))?;
        let others = (0..9).map(|number| format!("https://{number}.example.com"));
        let rules = others.chain([server.url()]);
        let grant = Grant {
            http: rules.map(|rule| rule.parse()).collect::<Result<_, _>>()?,
            ..Grant::default()
        };
        let bare = BareHttp::new(host.runtime(), &program("fetch")).map_err(plain)?;
        Ok(Self {
            registry: host.registry().clone(),
            producer: Arc::new(component.producer(grant.open()?, Limits::default())),
            bare,
            server,
        })
    }

    async fn rounds(&self) -> Result<Vec<RequestRound>> {
        let mut rounds = Vec::new();
        for _ in 0..=REQUEST_ROUNDS {
            rounds.push(RequestRound { host: self.hosted().await?, bare: self.bare().await? });
        }
        // The first round warms caches and pools.
        rounds.remove(0);
        Ok(rounds)
    }

    fn urls(&self) -> Vec<String> {
        vec![format!("{}/", self.server.url()); REQUESTS as usize]
    }

    async fn hosted(&self) -> Result<f64> {
        let urls = self.urls();
        let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
        let begun = Instant::now();
        run(&self.registry, &self.producer, arguments(&urls)).await?;
        self.each(begun)
    }

    async fn bare(&self) -> Result<f64> {
        let urls = self.urls();
        let begun = Instant::now();
        self.bare.run(&urls).await.map_err(plain)?;
        self.each(begun)
    }

    /// Returns what each request took, if the server has had all of them.
    fn each(&self, begun: Instant) -> Result<f64> {
        let taken = us(begun.elapsed());
        let served = self.server.served.swap(0, Ordering::SeqCst);
        anyhow::ensure!(served == REQUESTS as usize, "{served} of {REQUESTS} requests came");
        Ok(taken / f64::from(REQUESTS))
    }
}

fn request_figures(report: &mut Report, rounds: &[RequestRound]) {
    let middle =
        |pick: &dyn Fn(&RequestRound) -> f64| median(&rounds.iter().map(pick).collect::<Vec<_>>());
    let bare = middle(&|round| round.bare);
    report.figure("bare_request_us", "request on wasmtime-wasi-http", bare, "µs", Target::None);
    let more = middle(&|round| round.host - round.bare);
    report.figure("request_us", "more on this host, ten rules", more, "µs", AtMost(20.0));
    let ratio = middle(&|round| round.host / round.bare);
    report.figure("request_ratio", "on this host / bare", ratio, "×", Target::None);
}

/// wasmtime's error is a type of its own.
fn plain(error: wasmtime::Error) -> anyhow::Error {
    anyhow::anyhow!("{error:#}")
}

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: close\r\n\r\nhello";

/// A server that answers each request over a connection of its own. Its thread ends with
/// the process.
struct Server {
    port: u16,
    served: Arc<AtomicUsize>,
}

impl Server {
    fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let served = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&served);
        thread::spawn(move || {
            for mut peer in listener.incoming().flatten() {
                if is_request(&mut peer) {
                    // Before the answer, as the guest may be done with that.
                    counter.fetch_add(1, Ordering::SeqCst);
                    // The guest tells of an answer that did not come.
                    let _ = peer.write_all(ANSWER);
                }
            }
        });
        Ok(Self { port, served })
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }
}

/// Reads a request to its end, and tells whether there was one.
fn is_request(peer: &mut TcpStream) -> bool {
    let mut request = Vec::new();
    let mut piece = [0; 4 << 10];
    while !request.ends_with(b"\r\n\r\n") {
        match peer.read(&mut piece) {
            Ok(read) if read > 0 => request.extend_from_slice(&piece[..read]),
            _ => return false,
        }
    }
    true
}
