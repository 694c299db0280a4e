//! What a task costs: a no-op component from its start to its end, beside a
//! bare wasmtime loop and beside the start of a process.
//!
//! The machine may be shared and noisy, so the three are measured in turn,
//! round by round, and the ratios of a round are what counts.

use std::{
    process::{Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use backlot::{
    Config, Host,
    registry::{Caller, Producer, Registry, Start, Status, Step},
    wasm::{Limits, OpenGrant},
};
use backlot_tests::kind;

mod bare;
mod report;

use report::{
    Report,
    Target::{self, AtLeast, AtMost},
    median, us,
};

const ROUNDS: usize = 9;
/// How long each of the three runs in a round.
const SPELL: Duration = Duration::from_millis(300);

fn main() -> Result<()> {
    let only = std::env::args().nth(1).filter(|name| !name.starts_with('-'));
    let about = format!("start → done of a no-op component, medians of {ROUNDS} rounds");
    let mut report = Report::begin("start", &about)?;
    let host = Host::start(Config::default())?;
    let rounds = host.runtime().block_on(async {
        // The benchmark itself is a task of the runtime that it measures, as an
        // embedding program's would be.
        let bare = bare::Bare::new(host.runtime()).map_err(plain)?;
        let component = host.load_file(&kind("noop")).await?;
        let producer: Arc<dyn Producer> =
            Arc::new(component.producer(OpenGrant::none(), Limits::default()));
        let registry = host.registry().clone();
        let work = async move {
            let _surface = registry.attach_surface("bench");
            if only.as_deref() == Some("profile") {
                // Nothing but tasks, for a profiler to look at.
                for _ in 0..20 {
                    tasks(&registry, &producer).await?;
                }
            }
            let mut rounds = Vec::new();
            for _ in 0..=ROUNDS {
                rounds.push(Round {
                    task: tasks(&registry, &producer).await?,
                    wasmtime: instances(&bare).await?,
                    process: processes()?,
                });
            }
            anyhow::Ok(rounds)
        };
        host.runtime().spawn(work).await?
    })?;
    // The first round warms caches and pools.
    figures(&mut report, &rounds[1..]);
    report.end()?;
    Ok(())
}

/// Runs of one thing for a spell.
struct Spell {
    since: Instant,
    runs: u32,
}

impl Spell {
    fn begin() -> Self {
        Self { since: Instant::now(), runs: 0 }
    }

    fn goes_on(&mut self) -> bool {
        self.runs += 1;
        self.since.elapsed() < SPELL
    }

    /// Returns how long each run took on average.
    fn each(&self) -> Duration {
        self.since.elapsed() / self.runs
    }
}

async fn tasks(registry: &Registry, producer: &Arc<dyn Producer>) -> Result<Duration> {
    let mut spell = Spell::begin();
    loop {
        let start = Start {
            label: "noop".to_owned(),
            input: String::new(),
            owner: None,
            step: Step::default(),
        };
        let id = registry.start(Arc::clone(producer), start).await?;
        let ended = registry.wait(&id, &Caller::Operator, Duration::from_secs(9)).await?;
        anyhow::ensure!(ended.status == Status::Completed, "{ended:?}");
        if !spell.goes_on() {
            return Ok(spell.each());
        }
    }
}

async fn instances(bare: &bare::Bare) -> Result<Duration> {
    let mut spell = Spell::begin();
    loop {
        bare.once().await.map_err(plain)?;
        if !spell.goes_on() {
            return Ok(spell.each());
        }
    }
}

fn processes() -> Result<Duration> {
    let mut spell = Spell::begin();
    loop {
        spawn_and_wait()?;
        if !spell.goes_on() {
            return Ok(spell.each());
        }
    }
}

/// wasmtime's error is a type of its own.
fn plain(error: wasmtime::Error) -> anyhow::Error {
    anyhow::anyhow!("{error:#}")
}

fn spawn_and_wait() -> Result<()> {
    let status = Command::new("/bin/true")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .context("/bin/true cannot be started")?;
    anyhow::ensure!(status.success(), "/bin/true failed");
    Ok(())
}

struct Round {
    task: Duration,
    wasmtime: Duration,
    process: Duration,
}

fn figures(report: &mut Report, rounds: &[Round]) {
    let middle =
        |pick: &dyn Fn(&Round) -> f64| median(&rounds.iter().map(pick).collect::<Vec<_>>());
    let task = middle(&|round| us(round.task));
    report.figure("noop_us", "through the registry", task, "µs", AtMost(25.0));
    let wasmtime = middle(&|round| us(round.wasmtime));
    report.figure("bare_wasmtime_us", "bare wasmtime loop", wasmtime, "µs", Target::None);
    let process = middle(&|round| us(round.process));
    report.figure("process_us", "spawn and await /bin/true", process, "µs", Target::None);
    let over = middle(&|round| us(round.task) / us(round.wasmtime));
    report.figure("ratio_to_bare", "through the registry / bare", over, "×", AtMost(1.3));
    let under = middle(&|round| us(round.process) / us(round.task));
    let label = "/bin/true / through the registry";
    report.figure("times_faster_than_process", label, under, "×", AtLeast(12.0));
}
