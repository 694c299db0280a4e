//! What it costs to replace a kind: for the tasks that run it, for the host, and for
//! whoever waits for the new version.
//!
//! Compiling is apart. Every version is compiled before, so that a swap finds its code
//! in the cache; and what compiles cost tasks that are started meanwhile is a figure of
//! its own.
//!
//! The swaps are measured in a process of their own, which has compiled nothing, since
//! memory that was in use once is not the same afterwards.

use std::{
    collections::BTreeSet,
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use backlot::{
    Config, Host, Reload,
    registry::{
        Caller, Catalog as _, Change, Changes, Generation, Kill, Kind, Mode, Producer, Registry,
        Start, Status, Step, TaskId,
    },
    wasm::{Ask, Compiler, Limits, OpenGrant, compile_if_asked},
};
use backlot_tests::{kind, same_but_new};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{runtime::Runtime, task::JoinSet};

mod report;

use report::{
    Report,
    Target::{self, AtMost},
    ms, percentile, us,
};

/// How many tasks live while their kind is replaced. They are of the first versions.
const TASKS: usize = 1_000;
const FIRST_VERSIONS: u32 = 10;
const SWAPS: u32 = 500;
/// The swap after which memory is looked at for the first time.
const SETTLED: u32 = 50;
/// How many threads a load goes through: it looks, opens, recalls, reads, maps, and has
/// the component describe itself.
const THREADS: usize = 6;
/// How often a watched file is replaced.
const WATCHED: u32 = 40;
/// How many compiles are asked for at a time; the host does fewer.
const COMPILES: usize = 4;
/// How often a task is started beside them.
const STARTS: usize = 3_000;
const PACE: Duration = Duration::from_millis(1);

/// A guest that writes a line and sleeps until tomorrow.
const PARKED: &str = r#"{"count":2,"every_ms":86400000}"#;
const SHORT: &str = r#"{"count":1,"every_ms":0}"#;

fn main() -> Result<()> {
    compile_if_asked();
    let args: Vec<String> = env::args().skip(1).collect();
    if let [word, folder] = args.as_slice()
        && word == "swaps"
    {
        println!("{}", swaps(Path::new(folder))?);
        return Ok(());
    }
    let about =
        format!("{SWAPS} swaps under {TASKS} tasks, {WATCHED} of a watched file, and compiles");
    let mut report = Report::begin("reload", &about)?;
    let place = Place::new()?;
    let outside = outside()?;
    let begun = Instant::now();
    outside.block_on(place.compile_all())?;
    let each = ms(begun.elapsed()) / f64::from(Place::versions());
    report.figure("compile_ms", "compile of each version", each, "ms", Target::None);
    swap_figures(&mut report, &place)?;
    watch_figures(&mut report, &outside.block_on(place.watched())?);
    beside_figures(&mut report, &outside)?;
    report.end()?;
    Ok(())
}

fn outside() -> Result<Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

/// A plugin folder with one kind, and a cache with the code of every version of it.
struct Place {
    _folder: Option<TempDir>,
    root: PathBuf,
    ticker: Vec<u8>,
}

impl Place {
    fn new() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let mut place = Self::at(folder.path())?;
        fs::create_dir(place.root.join("plugins"))?;
        place.write(0)?;
        place._folder = Some(folder);
        Ok(place)
    }

    fn at(root: &Path) -> Result<Self> {
        Ok(Self { _folder: None, root: root.to_owned(), ticker: fs::read(kind("ticker"))? })
    }

    fn versions() -> u32 {
        FIRST_VERSIONS + SWAPS + WATCHED
    }

    fn host(&self, reload: Reload) -> Result<Host> {
        Ok(Host::start(Config {
            plugins: self.root.join("plugins"),
            cache: Some(self.root.join("cache")),
            reload,
            ..Config::default()
        })?)
    }

    /// Replaces the kind as careful programs do, by a version that is not live yet.
    fn write(&self, version: u32) -> Result<()> {
        let draft = self.root.join("draft");
        fs::write(&draft, same_but_new(&self.ticker, version))?;
        Ok(fs::rename(draft, self.root.join("plugins/ticker.wasm"))?)
    }

    /// Puts the code of every version into the cache.
    async fn compile_all(&self) -> Result<()> {
        let config = Config {
            cache: Some(self.root.join("cache")),
            // They are known, and a process for each would take longer.
            compiler: Compiler::Inside,
            ..Config::default()
        };
        let host = Arc::new(Host::start(config)?);
        let next = Arc::new(AtomicUsize::new(0));
        let mut workers = JoinSet::new();
        for _ in 0..COMPILES {
            let (host, next) = (host.clone(), next.clone());
            let (ticker, root) = (self.ticker.clone(), self.root.clone());
            workers.spawn(async move {
                loop {
                    let version = u32::try_from(next.fetch_add(1, Ordering::Relaxed))?;
                    if version >= Self::versions() {
                        return anyhow::Ok(());
                    }
                    let path = root.join(format!("version-{version}.wasm"));
                    fs::write(&path, same_but_new(&ticker, version))?;
                    host.load_file(&path).await?;
                    fs::remove_file(path)?;
                }
            });
        }
        while let Some(worker) = workers.join_next().await {
            worker??;
        }
        Ok(())
    }

    /// Returns how long it took each time from a new file to its version being live.
    async fn watched(&self) -> Result<Vec<Duration>> {
        self.write(0)?;
        let host = self.host(Reload::Watch)?;
        host.load_kind("ticker").await?;
        let mut changes = host.catalog().changes();
        let mut times = Vec::new();
        for version in FIRST_VERSIONS + SWAPS..Self::versions() {
            // Not in step with the looks of the watch.
            tokio::time::sleep(Duration::from_millis(u64::from(version % 7) * 31 + 100)).await;
            let begun = Instant::now();
            self.write(version)?;
            loop {
                match changes.next().await.context("the catalogue is gone")? {
                    Change::Swapped { .. } => break,
                    Change::Refused { why, .. } => anyhow::bail!("refused: {why}"),
                    _ => {}
                }
            }
            times.push(begun.elapsed());
        }
        host.shutdown().await;
        Ok(times)
    }
}

fn swap_figures(report: &mut Report, place: &Place) -> Result<()> {
    let child = Command::new(env::current_exe()?)
        .arg("swaps")
        .arg(&place.root)
        .stderr(Stdio::inherit())
        .output()?;
    anyhow::ensure!(child.status.success(), "swapping: {}", child.status);
    let found: Value = serde_json::from_slice(&child.stdout)?;
    let mut figure = |name: &str, label: &str, unit: &str, target: Target| {
        let value = found[name].as_f64().with_context(|| format!("{name} is missing"))?;
        report.figure(name, label, value, unit, target);
        anyhow::Ok(())
    };
    figure("swap_p50_ms", "load of a changed file, code cached, p50", "ms", Target::None)?;
    figure("swap_p99_ms", "load of a changed file, code cached, p99", "ms", AtMost(10.0))?;
    let label = format!("{THREADS} threads, each after the other, p50");
    figure("threads_p50_ms", &label, "ms", Target::None)?;
    let label = format!("{THREADS} threads, each after the other, p99");
    figure("threads_p99_ms", &label, "ms", Target::None)?;
    figure("disturbed", "tasks that a swap disturbed", "tasks", AtMost(0.0))?;
    figure("not_served", "swaps whose version did not serve", "swaps", AtMost(0.0))?;
    figure("generations", "live versions once the tasks ended", "", AtMost(1.0))?;
    figure("versions", "versions whose code is mapped then", "", AtMost(1.0))?;
    figure("code_mappings", "mappings of code above one version's", "maps", Target::None)?;
    figure("rss_mib", "RSS growth over all swaps", "MiB", AtMost(20.0))?;
    let label = format!("RSS growth from swap {SETTLED} to {SWAPS}");
    figure("rss_settled_mib", &label, "MiB", AtMost(20.0))?;
    figure("rss_ended_mib", "RSS once the tasks ended, above before", "MiB", Target::None)?;
    let label = format!("more descriptors from swap {SETTLED} on");
    figure("descriptors", &label, "", AtMost(0.0))?;
    let label = format!("more threads from swap {SETTLED} on");
    figure("threads", &label, "", AtMost(0.0))?;
    Ok(())
}

/// Replaces a kind under its tasks, and returns what came of it.
fn swaps(folder: &Path) -> Result<Value> {
    let place = Place::at(folder)?;
    let host = place.host(Reload::Asked)?;
    let _surface = host.registry().attach_surface("bench");
    outside()?.block_on(async {
        let ticker = Kind::new("ticker")?;
        let registry = host.registry();
        let producer: Arc<dyn Producer> =
            Arc::new(host.catalog().producer(ticker.clone(), Ask::default()));
        host.plugins().load(&ticker).await?;
        let one = Taken::now()?;
        let mut tasks = Vec::new();
        for version in 0..FIRST_VERSIONS {
            place.write(version)?;
            let generation = host.plugins().load(&ticker).await?.generation().clone();
            for _ in 0..TASKS / FIRST_VERSIONS as usize {
                tasks.push((start(registry, &producer, PARKED).await?, generation.clone()));
            }
        }
        let before = Taken::now()?;
        let mut settled = Taken::now()?;
        let (mut times, mut threads) = (Vec::new(), Vec::new());
        let mut not_served = 0;
        for swap in 1..=SWAPS {
            place.write(FIRST_VERSIONS + swap - 1)?;
            threads.push(ms(threads_in_turn()?));
            let begun = Instant::now();
            let component = host.plugins().load(&ticker).await?;
            times.push(ms(begun.elapsed()));
            let id = start(registry, &producer, SHORT).await?;
            let ended = registry.wait(&id, &Caller::Operator, Duration::from_secs(9)).await?;
            let serves = ended.status == Status::Completed
                && ended.generation.as_ref() == Some(component.generation());
            not_served += usize::from(!serves);
            if swap == SETTLED {
                settled = Taken::now()?;
            }
        }
        let after = Taken::now()?;
        let mut changes = host.catalog().changes();
        let mut disturbed = 0;
        let mut leaving = BTreeSet::new();
        for (id, generation) in &tasks {
            disturbed += usize::from(!is_undisturbed(registry, id, generation).await?);
            leaving.insert(generation.number);
        }
        freed(&mut changes, leaving).await?;
        let view = host.catalog().kind(&ticker).context("the kind is there")?;
        let live = view.earlier.iter().filter(|earlier| earlier.tasks > 0).count();
        let generations = live + usize::from(view.current.is_some());
        let ended = Taken::now()?;
        let above = |now: &Taken, then: &Taken| now.rss_mib - then.rss_mib;
        Ok(json!({
            "swap_p50_ms": percentile(&times, 50.0),
            "swap_p99_ms": percentile(&times, 99.0),
            "threads_p50_ms": percentile(&threads, 50.0),
            "threads_p99_ms": percentile(&threads, 99.0),
            "disturbed": disturbed,
            "not_served": not_served,
            "generations": generations,
            "versions": ended.versions,
            "code_mappings": ended.code_mappings - one.code_mappings,
            "rss_mib": above(&after, &before),
            "rss_settled_mib": above(&after, &settled),
            "rss_ended_mib": above(&ended, &before),
            "descriptors": after.descriptors - settled.descriptors,
            "threads": after.threads - settled.threads,
        }))
    })
}

/// Starts and awaits as many threads as a load goes through, and returns how long that
/// took: what the machine takes of a swap whatever is done on them.
fn threads_in_turn() -> Result<Duration> {
    let begun = Instant::now();
    for _ in 0..THREADS {
        thread::spawn(|| {}).join().map_err(|_| anyhow::anyhow!("a thread panicked"))?;
    }
    Ok(begun.elapsed())
}

async fn start(registry: &Registry, producer: &Arc<dyn Producer>, input: &str) -> Result<TaskId> {
    let start = Start {
        label: "swapped".to_owned(),
        input: input.to_owned(),
        owner: None,
        step: Step::default(),
    };
    Ok(registry.start(Arc::clone(producer), start).await?)
}

/// Tells whether a task runs what it was started with, has said what it had to say, and
/// ends when it is asked to.
async fn is_undisturbed(registry: &Registry, id: &TaskId, generation: &Generation) -> Result<bool> {
    let now = registry.get(id, &Caller::Operator)?;
    let read = registry.read(id, &Caller::Operator, usize::MAX).await?;
    let kill = Kill { mode: Mode::Ask, reason: None };
    registry.kill(id, &Caller::Operator, kill).await?;
    let ended = registry.wait(id, &Caller::Operator, Duration::from_secs(9)).await?;
    Ok(!now.status.is_terminal()
        && now.generation.as_ref() == Some(generation)
        && read.text == "line 1\n"
        && ended.status == Status::Killed)
}

/// Waits until the code of all these versions is let go of, which is a moment after the
/// last task of each has ended.
async fn freed(changes: &mut Changes, mut leaving: BTreeSet<u64>) -> Result<()> {
    while !leaving.is_empty() {
        let next = tokio::time::timeout(Duration::from_secs(9), changes.next()).await;
        let next = next.with_context(|| format!("the versions {leaving:?} are kept"))?;
        if let Change::Freed { generation, .. } = next.context("the catalogue is gone")? {
            leaving.remove(&generation.number);
        }
    }
    Ok(())
}

/// What this process takes of the machine.
struct Taken {
    rss_mib: f64,
    threads: i64,
    descriptors: i64,
    code_mappings: i64,
    /// How many versions these mappings are of.
    versions: i64,
}

impl Taken {
    fn now() -> Result<Self> {
        let status = fs::read_to_string("/proc/self/status")?;
        let field = |name: &str| -> Result<i64> {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let number = line.and_then(|line| line.split_whitespace().next());
            Ok(number.context("the system does not tell what a process takes")?.parse()?)
        };
        let maps = fs::read_to_string("/proc/self/maps")?;
        // Entries of the cache that are mapped, also such as were given up meanwhile.
        let code: Vec<&str> = maps
            .lines()
            .filter(|line| line.contains(".code"))
            .filter_map(|line| line.split_whitespace().nth(5))
            .collect();
        Ok(Self {
            rss_mib: field("VmRSS:")? as f64 / 1024.0,
            threads: field("Threads:")?,
            descriptors: i64::try_from(fs::read_dir("/proc/self/fd")?.count())?,
            code_mappings: i64::try_from(code.len())?,
            versions: i64::try_from(code.into_iter().collect::<BTreeSet<_>>().len())?,
        })
    }
}

fn watch_figures(report: &mut Report, times: &[Duration]) {
    let times: Vec<f64> = times.iter().copied().map(ms).collect();
    for percent in [50.0, 99.0] {
        let key = format!("watched_p{percent:.0}_ms");
        let label = format!("file written → new version live, p{percent:.0}");
        report.figure(&key, &label, percentile(&times, percent), "ms", AtMost(300.0));
    }
}

/// Measures starts alone, and then beside compiles of other components.
fn beside_figures(report: &mut Report, outside: &Runtime) -> Result<()> {
    // Without a cache, so that every load is a compile.
    let host = Arc::new(Host::start(Config { cache: None, ..Config::default() })?);
    let noop = outside.block_on(host.load_file(&kind("noop")))?;
    let producer: Arc<dyn Producer> = Arc::new(noop.producer(OpenGrant::none(), Limits::default()));
    let _surface = host.registry().attach_surface("bench");
    let alone = outside.block_on(starts(host.registry(), &producer, || false))?;
    let compiles = Arc::new(Compiles::default());
    let compiler = {
        let (host, compiles) = (host.clone(), compiles.clone());
        thread::spawn(move || compiles.go_on(&host))
    };
    // As long as it takes that each of those that go on has ended once.
    let goes_on = || compiles.done.load(Ordering::Relaxed) < COMPILES && !compiler.is_finished();
    let beside = outside.block_on(starts(host.registry(), &producer, goes_on));
    compiles.end.store(true, Ordering::Relaxed);
    compiler.join().map_err(|_| anyhow::anyhow!("the compiling thread panicked"))??;
    let beside = beside?;
    for percent in [50.0, 99.0] {
        let at = |times: &[f64]| percentile(times, percent);
        let key = format!("alone_p{percent:.0}_us");
        let label = format!("no-op start → done alone, p{percent:.0}");
        report.figure(&key, &label, at(&alone), "µs", Target::None);
        let key = format!("beside_compiles_p{percent:.0}_us");
        let label = format!("no-op start → done beside compiles, p{percent:.0}");
        report.figure(&key, &label, at(&beside), "µs", AtMost(5_000.0));
    }
    let done = compiles.done.load(Ordering::Relaxed);
    report.note(&format!("{} starts beside {done} compiles, one a millisecond", beside.len()));
    Ok(())
}

/// Compiles that go on until they are to end.
#[derive(Default)]
struct Compiles {
    done: AtomicUsize,
    end: AtomicBool,
}

impl Compiles {
    fn go_on(&self, host: &Host) -> Result<()> {
        let path = kind("grep");
        outside()?.block_on(async {
            let compile = async || {
                while !self.end.load(Ordering::Relaxed) {
                    host.load_file(&path).await?;
                    self.done.fetch_add(1, Ordering::Relaxed);
                }
                anyhow::Ok(())
            };
            tokio::try_join!(compile(), compile(), compile(), compile())?;
            Ok(())
        })
    }
}

/// Starts tasks at a pace, as often as was said and for as long as it goes on, and
/// returns how long each took to be done, in microseconds.
async fn starts(
    registry: &Registry,
    producer: &Arc<dyn Producer>,
    goes_on: impl Fn() -> bool,
) -> Result<Vec<f64>> {
    let mut times = Vec::new();
    while times.len() < STARTS || goes_on() {
        tokio::time::sleep(PACE).await;
        let begun = Instant::now();
        let id = start(registry, producer, "").await?;
        let ended = registry.wait(&id, &Caller::Operator, Duration::from_secs(9)).await?;
        times.push(us(begun.elapsed()));
        anyhow::ensure!(ended.status == Status::Completed, "{ended:?}");
    }
    Ok(times)
}
