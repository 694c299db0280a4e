//! What a host bears: 10,000 no-op component tasks, 64 at a time, with guests on
//! one thread and on two.
//!
//! A no-op that is started from the guests' runtime is done before `start`
//! returns, so its latency is what it costs. One that is started from another
//! runtime stands in line with 63 others, and its latency is mostly that line.
//!
//! The machine may be shared and noisy, so the hosts take turns.

use std::{
    env,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use backlot::{
    Config, Host,
    registry::{Caller, Producer, Registry, Start, Status, Step, SurfaceGuard},
    wasm::{Limits, OpenGrant},
};
use backlot_tests::kind;
use tokio::{
    runtime::{Handle, Runtime},
    task::JoinSet,
};

mod bare;
mod report;

use bare::Bare;
use report::{
    Report,
    Target::{self, AtLeast},
    median, percentile, us,
};

const TASKS: usize = 10_000;
const AT_A_TIME: usize = 64;
const ROUNDS: usize = 7;

fn main() -> Result<()> {
    let about = format!(
        "{TASKS} no-op components, {AT_A_TIME} at a time, medians of {ROUNDS} rounds; latencies \
         are from start to done"
    );
    let mut report = Report::begin("load", &about)?;
    let outside = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let sides = [Side::with_threads(1, &outside)?, Side::with_threads(2, &outside)?];
    if let Some(threads) = env::args().nth(1).and_then(|text| text.parse::<usize>().ok()) {
        // Nothing but tasks, for a profiler to look at.
        let side = sides.get(threads - 1).context("there are one and two threads")?;
        for _ in 0..50 {
            outside.block_on(spell(&side.host.runtime(), side.task()))?;
        }
        return Ok(());
    }
    let bare = Arc::new(Bare::new(sides[0].host.runtime()).map_err(plain)?);
    let mut rounds: [Vec<Round>; 2] = Default::default();
    for _ in 0..=ROUNDS {
        for (side, rounds) in sides.iter().zip(&mut rounds) {
            let bare = bare.clone();
            let once = move || {
                let bare = bare.clone();
                async move { bare.once().await.map_err(plain) }
            };
            rounds.push(Round {
                inside: outside.block_on(spell(&side.host.runtime(), side.task()))?,
                outside: outside.block_on(spell(outside.handle(), side.task()))?,
                bare: outside.block_on(spell(&side.host.runtime(), once))?,
            });
        }
    }
    let [one, two] = &mut rounds;
    // The first round warms caches and pools.
    one.remove(0);
    two.remove(0);
    figures(&mut report, one, two);
    report.end()?;
    Ok(())
}

/// A host whose guests have so many threads, and its no-op.
struct Side {
    host: Host,
    producer: Arc<dyn Producer>,
    _surface: SurfaceGuard,
}

impl Side {
    fn with_threads(threads: usize, outside: &Runtime) -> Result<Self> {
        let host = Host::start(Config { threads: Some(threads), ..Config::default() })?;
        let component = outside.block_on(host.load_file(&kind("noop")))?;
        let producer = Arc::new(component.producer(OpenGrant::none(), Limits::default()));
        let surface = host.registry().attach_surface("bench");
        Ok(Self { host, producer, _surface: surface })
    }

    /// Returns what runs one task to its end.
    fn task(&self) -> impl Fn() -> Task + Clone + Send + 'static {
        let (registry, producer) = (self.host.registry().clone(), self.producer.clone());
        move || Box::pin(task(registry.clone(), producer.clone()))
    }
}

type Task = std::pin::Pin<Box<dyn Future<Output = Result<()>> + Send>>;

async fn task(registry: Registry, producer: Arc<dyn Producer>) -> Result<()> {
    let start = Start {
        label: "noop".to_owned(),
        input: String::new(),
        owner: None,
        step: Step::default(),
    };
    let id = registry.start(producer, start).await?;
    let ended = registry.wait(&id, &Caller::Operator, Duration::from_secs(30)).await?;
    anyhow::ensure!(ended.status == Status::Completed, "{ended:?}");
    Ok(())
}

/// One round of one thing.
struct Spell {
    per_second: f64,
    each_us: Vec<f64>,
}

/// Does a thing as often as there are tasks, so many at a time.
async fn spell<F>(on: &Handle, once: impl Fn() -> F + Clone + Send + 'static) -> Result<Spell>
where
    F: Future<Output = Result<()>> + Send,
{
    let next = Arc::new(AtomicUsize::new(0));
    let mut workers = JoinSet::new();
    let begun = Instant::now();
    for _ in 0..AT_A_TIME {
        let (next, once) = (next.clone(), once.clone());
        let work = async move {
            let mut each_us = Vec::new();
            while next.fetch_add(1, Ordering::Relaxed) < TASKS {
                let begun = Instant::now();
                once().await?;
                each_us.push(us(begun.elapsed()));
                // What is done at once would otherwise keep the thread to itself.
                tokio::task::yield_now().await;
            }
            anyhow::Ok(each_us)
        };
        workers.spawn_on(work, on);
    }
    let mut each_us = Vec::with_capacity(TASKS);
    while let Some(worker) = workers.join_next().await {
        each_us.extend(worker??);
    }
    Ok(Spell { per_second: TASKS as f64 / begun.elapsed().as_secs_f64(), each_us })
}

struct Round {
    /// Started from a task of the guests' runtime.
    inside: Spell,
    /// Started from a runtime of its own.
    outside: Spell,
    /// wasmtime alone, on the guests' runtime.
    bare: Spell,
}

fn figures(report: &mut Report, one: &[Round], two: &[Round]) {
    let rate = |rounds: &[Round], pick: &dyn Fn(&Round) -> &Spell| {
        median(&rounds.iter().map(|round| pick(round).per_second).collect::<Vec<_>>())
    };
    let inside: &dyn Fn(&Round) -> &Spell = &|round| &round.inside;
    let outside: &dyn Fn(&Round) -> &Spell = &|round| &round.outside;
    let bare: &dyn Fn(&Round) -> &Spell = &|round| &round.bare;
    let (on_one, on_two) = (rate(one, inside), rate(two, inside));
    report.figure("two_threads_per_s", "two threads", on_two, "/s", AtLeast(30_000.0));
    report.figure("one_thread_per_s", "one thread", on_one, "/s", Target::None);
    report.figure("gain", "two threads / one thread", on_two / on_one, "×", AtLeast(1.0));
    let (bare_one, bare_two) = (rate(one, bare), rate(two, bare));
    report.figure("bare_two_per_s", "bare wasmtime, two threads", bare_two, "/s", Target::None);
    report.figure("bare_one_per_s", "bare wasmtime, one thread", bare_one, "/s", Target::None);
    let gain = bare_two / bare_one;
    report.figure("bare_gain", "bare wasmtime, two / one", gain, "×", Target::None);
    let (from_one, from_two) = (rate(one, outside), rate(two, outside));
    let label = "started from another runtime, two threads";
    report.figure("outside_two_per_s", label, from_two, "/s", Target::None);
    let label = "started from another runtime, one thread";
    report.figure("outside_one_per_s", label, from_one, "/s", Target::None);
    for (key, label, rounds, pick) in [
        ("two_threads", "two threads", two, inside),
        ("one_thread", "one thread", one, inside),
        ("outside_two", "from another runtime, two threads", two, outside),
    ] {
        let each_us: Vec<f64> =
            rounds.iter().flat_map(|round| pick(round).each_us.iter().copied()).collect();
        for percent in [50.0, 99.0] {
            let time = percentile(&each_us, percent);
            let key = format!("{key}_p{percent:.0}_us");
            report.figure(&key, &format!("{label}, p{percent:.0}"), time, "µs", Target::None);
        }
    }
}

/// wasmtime's error is a type of its own.
fn plain(error: wasmtime::Error) -> anyhow::Error {
    anyhow::anyhow!("{error:#}")
}
