//! Hosts that are killed at any moment, as by `kill -9`, and what is left of their jobs.

mod ledger;
mod steps;
mod traffic;

use std::{
    collections::BTreeMap,
    env,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use backlot::backlot_jobs::{DataFolder, JobId, Query, SqliteOptions, SqliteStore, Store as _};
use backlot_surface::{
    Client,
    wire::{JobView, ListQuery, LookQuery, OutputQuery, PruneRequest, StopHow, StopRequest},
};
use backlot_tests::{Process, kinds};
use futures::future::join_all;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::sleep;

use self::{
    ledger::{Asked, Ledger},
    traffic::{Asker, Rng, SESSIONS},
};

/// How many ask at once.
const ASKERS: u64 = 6;
/// The latest moment of a kill, in milliseconds after the start or the first request.
const LATEST_MS: u64 = 300;

/// Kills a host over and over on one folder, each time under random traffic, and checks
/// that nothing that was acknowledged is lost, changed or done twice.
///
/// `BACKLOT_ROUNDS` says how often, and `BACKLOT_SEED` chooses what is asked.
#[tokio::test(flavor = "multi_thread")]
async fn crash_rounds() {
    let rounds = number("BACKLOT_ROUNDS").unwrap_or(50);
    let seed = Seed(number("BACKLOT_SEED").unwrap_or_else(now_ms));
    let mut crashes = Crashes::new(seed.0);
    for round in 0..rounds {
        crashes.round(round).await;
    }
    let told = crashes.end().await;
    println!("{rounds} rounds with seed {}; {told} endings were told", seed.0);
}

/// Tells which seed it was that failed.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("BACKLOT_SEED={} does it again, or nearly", self.0);
        }
    }
}

/// One folder and what is known of it.
struct Crashes {
    data: TempDir,
    folder: DataFolder,
    ledger: Mutex<Ledger>,
    rng: Rng,
}

impl Crashes {
    fn new(seed: u64) -> Self {
        let data = TempDir::new().unwrap();
        let folder = DataFolder::open(data.path()).unwrap();
        Self { data, folder, ledger: Mutex::default(), rng: Rng::new(seed) }
    }

    async fn round(&mut self, round: u64) {
        // Also while it recovers.
        if self.rng.one_in(8) {
            let process = self.spawn_host(&format!("early {round}"));
            sleep(Duration::from_millis(self.rng.below(120))).await;
            process.kill();
            self.check_between().await;
        }
        let host = self.start(&format!("host {round}")).await;
        self.check(&host).await;
        if round % 20 == 19 {
            self.settle_all(&host.client).await;
            self.prune_all(&host.client).await;
        }
        let killed = AtomicBool::new(false);
        let Host { process, client, .. } = host;
        let seed = self.rng.below(u64::MAX);
        let askers = (0..ASKERS).map(|number| Asker {
            client: &client,
            ledger: &self.ledger,
            killed: &killed,
            rng: Rng::new(seed ^ number),
            name: format!("{round}-{number}"),
            count: 0,
        });
        let asked = join_all(askers.map(|mut asker| async move { asker.ask_on().await }));
        let moment = Duration::from_millis(self.rng.below(LATEST_MS));
        let kill = async {
            sleep(moment).await;
            killed.store(true, Ordering::Release);
            process.kill();
        };
        tokio::join!(asked, kill);
        self.check_between().await;
    }

    /// Ends everything in order, and checks that nothing is owed to anybody.
    async fn end(self) -> usize {
        let host = self.start("the last").await;
        self.check(&host).await;
        let live = self.list(&host.client).await.into_iter().filter(|view| {
            let is_live = !view.status.is_terminal();
            is_live && view.id != host.job
        });
        for view in live {
            let stop = StopRequest { how: StopHow::Force, ..StopRequest::default() };
            self.ledger().stopping(view.id);
            let reply = host.client.stop(&view.id.to_string(), &stop).await.unwrap();
            self.ledger().stopped(&reply);
            let query = LookQuery { wait_ms: Some(20_000), hand: None };
            let ended = host.client.job(&view.id.to_string(), &query).await.unwrap();
            assert!(ended.status.is_terminal(), "a stop does not end it: {ended:?}");
        }
        self.settle_all(&host.client).await;
        let mut views = self.list(&host.client).await;
        views.retain(|view| view.id != host.job);
        let told = self.ledger().check_told(&views);
        host.process.signal("TERM");
        let ended = host.process.wait();
        assert_eq!(ended.code, Some(4), "{ended:?}");
        self.check_between().await;
        told
    }

    /// Starts a host with a job of its own, and waits until it answers.
    async fn start(&self, name: &str) -> Host {
        let since_ms = now_ms();
        let mut process = self.spawn_host(name);
        let started: Value = serde_json::from_str(&process.line()).unwrap();
        assert_eq!(started["event"], "started", "{started}");
        let client = Client::connect(&self.folder.socket_address()).await.unwrap();
        let job = started["job"].as_str().unwrap();
        let view = client.job(job, &LookQuery::default()).await.unwrap();
        self.ledger().spawned(&view.label, &view);
        Host { process, client, since_ms, job: view.id }
    }

    fn spawn_host(&self, name: &str) -> Process {
        let input = json!({"count": 2, "every_ms": 3_600_000, "text": name}).to_string();
        self.ledger().spawning(Asked {
            label: format!("ticker {input}"),
            session: "local".to_owned(),
            announced: false,
            key: None,
            attempts: None,
            lines: None,
        });
        Process::start_with(["run", "ticker", "--json", "--input", &input], |command| {
            command.env("BACKLOT_DATA", self.data.path()).env("BACKLOT_PLUGINS", kinds());
        })
    }

    /// Checks what a host that has just started found.
    async fn check(&self, host: &Host) {
        let views = self.list(&host.client).await;
        self.ledger().check_all(&views, Some(host.since_ms));
        let is_there = |id: &JobId| views.iter().any(|view| view.id == *id);
        let mut touched = self.ledger().take_touched();
        touched.retain(is_there);
        for id in &touched {
            let view = host.client.job(&id.to_string(), &LookQuery::default()).await.unwrap();
            let output = output(&host.client, *id).await;
            self.ledger().saw(&view);
            self.ledger().check_whole(&view, &output);
        }
        // What a host does for itself is left alone: it would leave with that.
        touched.retain(|id| *id != host.job);
        touched.into_iter().for_each(|id| self.ledger().touch(id));
    }

    /// Checks what a host that was killed has left, before the next one comes.
    async fn check_between(&self) {
        let database = self.folder.database();
        if !database.exists() {
            return;
        }
        let store = SqliteStore::open_read_only(&database, SqliteOptions::default()).unwrap();
        let mut views = Vec::new();
        let mut query = Query { limit: 1_000, ..Query::default() };
        loop {
            let page = store.list(query.clone()).await.unwrap();
            views.extend(page.jobs.iter().map(|job| JobView::brief(job, None)));
            match page.next {
                None => break,
                next => query.before = next,
            }
        }
        self.ledger().check_all(&views, None);
    }

    async fn list(&self, client: &Client) -> Vec<JobView> {
        let mut views = Vec::new();
        let mut query = ListQuery { limit: Some(1_000), ..ListQuery::default() };
        loop {
            let page = client.jobs(&query).await.unwrap();
            views.extend(page.jobs);
            match page.next {
                None => return views,
                next => query.before = next,
            }
        }
    }

    /// Hears and settles all that is owed to the sessions.
    async fn settle_all(&self, client: &Client) {
        for session in SESSIONS {
            loop {
                let owed = client.owed(session).await.unwrap();
                if owed.ids.is_empty() {
                    break;
                }
                for (id, view) in owed.ids.iter().zip(&owed.jobs) {
                    assert_eq!(view.session, session, "told to somebody else: {view:?}");
                    self.ledger().told(id, view);
                    self.ledger().settling(id);
                }
                client.settle(session, owed.ids.clone()).await.unwrap();
                owed.ids.into_iter().for_each(|id| self.ledger().settled(id));
            }
        }
    }

    async fn prune_all(&self, client: &Client) {
        self.ledger().pruning();
        client.prune(&PruneRequest { keep: Some(0), age_ms: None }).await.unwrap();
        self.ledger().pruned();
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap()
    }
}

/// A host that answers.
struct Host {
    process: Process,
    client: Client,
    /// When its process was started.
    since_ms: u64,
    /// What it does for itself, without which it would leave.
    job: JobId,
}

/// Returns what each run of a job has written.
async fn output(client: &Client, id: JobId) -> BTreeMap<u32, Vec<u8>> {
    let mut written: BTreeMap<u32, Vec<u8>> = BTreeMap::new();
    let mut query = OutputQuery::default();
    loop {
        let reply = client.output(&id.to_string(), &query).await.unwrap();
        if reply.pieces.is_empty() {
            return written;
        }
        for piece in &reply.pieces {
            assert_eq!(piece.dropped, 0, "output of {id} is lost");
            written.entry(piece.run).or_default().extend(piece.content.bytes());
        }
        query.after = reply.next;
    }
}

fn number(variable: &str) -> Option<u64> {
    let text = env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is {text:?}, and no number")))
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    u64::try_from(since.as_millis()).unwrap()
}
