//! How fast output flows: from the guest through its `read-output` or its stdout
//! into the task's spool, and from there to observers.
//!
//! A writer never waits for an observer: what one was too slow for comes from the
//! spill file, and what fell off that is told as dropped. So a rate counts the
//! bytes that were seen, and the share that was dropped stands beside it.

use std::{hint::black_box, sync::Arc, time::Duration, time::Instant};

use anyhow::{Context as _, Result};
use backlot::{
    Config, Host,
    registry::{Caller, Observer, Producer, Registry, Start, Status, Step, Stream},
    wasm::{Limits, OpenGrant},
};
use backlot_tests::{arguments, program};

mod report;

use report::{
    Report,
    Target::{self, AtLeast},
    median, mib_s,
};

/// What the guest writes in one run.
const BYTES: u64 = 1 << 30;
/// What an observer asks for at once.
const PIECE: usize = 256 << 10;
const ROUNDS: usize = 5;

fn main() -> Result<()> {
    let about = format!("{} MiB of one task, medians of {ROUNDS} rounds", BYTES >> 20);
    let mut report = Report::begin("output", &about)?;
    let host = Host::start(Config::default())?;
    let load = |name| host.runtime().block_on(host.load_file(&program(name)));
    let producer = |name| {
        let component = load(name)?;
        anyhow::Ok(Arc::new(component.producer(OpenGrant::none(), Limits::default())))
    };
    let _surface = host.registry().attach_surface("bench");
    let pour = Work {
        producer: producer("pour")?,
        input: format!(r#"{{"bytes":{BYTES}}}"#),
        registry: host.registry().clone(),
    };
    let print = Work {
        producer: producer("probe")?,
        input: arguments(&["pour", &BYTES.to_string()]),
        registry: host.registry().clone(),
    };
    if let Some(observers) = std::env::args().nth(1).and_then(|text| text.parse().ok()) {
        // Nothing but output, for a profiler to look at.
        for _ in 0..20 {
            let seen = host.runtime().block_on(pour.observed_by(observers))?;
            println!("{:.0} MiB/s, {:.1} % dropped", seen.slowest_mib_s, seen.dropped_percent);
        }
        return Ok(());
    }
    let mut rounds = Vec::new();
    for _ in 0..=ROUNDS {
        rounds.push(host.runtime().block_on(async {
            anyhow::Ok([
                pour.observed_by(1).await?,
                pour.observed_by(8).await?,
                print.observed_by(1).await?,
                print.observed_by(8).await?,
            ])
        })?);
    }
    // The first round warms caches and pools.
    rounds.remove(0);
    let things = [
        ("one", "read-output, one observer", AtLeast(700.0)),
        ("eight", "read-output, the slowest of eight", AtLeast(200.0)),
        ("stdout_one", "stdout of a program, one observer", AtLeast(700.0)),
        ("stdout_eight", "stdout of a program, the slowest of eight", AtLeast(200.0)),
    ];
    for (at, (key, label, target)) in things.into_iter().enumerate() {
        let middle = |pick: &dyn Fn(&Seen) -> f64| {
            median(&rounds.iter().map(|round| pick(&round[at])).collect::<Vec<_>>())
        };
        let rate = middle(&|seen| seen.slowest_mib_s);
        report.figure(&format!("{key}_mib_s"), label, rate, "MiB/s", target);
        let dropped = middle(&|seen| seen.dropped_percent);
        let key = format!("{key}_dropped_percent");
        report.figure(&key, "  dropped before it was seen", dropped, "%", Target::None);
    }
    report.end()?;
    Ok(())
}

/// A task that writes.
struct Work {
    producer: Arc<dyn Producer>,
    input: String,
    registry: Registry,
}

/// What observers of a task saw of it.
struct Seen {
    slowest_mib_s: f64,
    dropped_percent: f64,
}

impl Work {
    /// Runs the task, observed to its end by so many.
    async fn observed_by(&self, observers: usize) -> Result<Seen> {
        let start = Start {
            label: "bench".to_owned(),
            input: self.input.clone(),
            owner: None,
            step: Step::default(),
        };
        let registry = &self.registry;
        let begun = Instant::now();
        let id = registry.start(self.producer.clone(), start).await?;
        let mut watching = Vec::new();
        for _ in 0..observers {
            let observer = registry.observe(&id, &Caller::Operator, Stream::Output, 0)?;
            watching.push(tokio::spawn(observe(observer, begun)));
        }
        let mut slowest_mib_s = f64::INFINITY;
        let mut all_dropped = 0;
        for watcher in watching {
            let (seen, dropped, time) = watcher.await?;
            anyhow::ensure!(seen + dropped == BYTES, "{seen} seen and {dropped} dropped");
            slowest_mib_s = slowest_mib_s.min(mib_s(seen, time));
            all_dropped += dropped;
        }
        let ended = registry.wait(&id, &Caller::Operator, Duration::from_secs(30)).await?;
        anyhow::ensure!(ended.status == Status::Completed, "{ended:?}");
        let written = u64::try_from(observers).context("a few")? * BYTES;
        Ok(Seen { slowest_mib_s, dropped_percent: all_dropped as f64 / written as f64 * 100.0 })
    }
}

/// Returns the bytes that were seen, those that were dropped, and the time it took.
async fn observe(mut observer: Observer, begun: Instant) -> (u64, u64, Duration) {
    let (mut seen, mut dropped) = (0, 0);
    while let Some(piece) = observer.next(PIECE).await {
        seen += black_box(piece.bytes).len() as u64;
        dropped += piece.dropped;
    }
    (seen, dropped, begun.elapsed())
}
