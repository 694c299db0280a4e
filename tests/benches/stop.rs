//! How long a stop takes: from asking to the terminal record.
//!
//! A cooperative guest ends as soon as it hears of it; one that computes and
//! never listens is dropped once its bounds have passed.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Result;
use backlot::{
    Config, Host,
    registry::{Caller, Kill, Mode, Registry, Start, Status, Step, StopBounds, TaskId},
    wasm::{Component, ComponentProducer, Limits, OpenGrant},
};
use backlot_tests::kind;

mod report;

use report::{
    Report,
    Target::{self, AtMost},
    ms, percentile,
};

const RUNS: usize = 500;
const BOUND: Duration = Duration::from_millis(20);

fn main() -> Result<()> {
    let about = format!("ask → terminal, {RUNS} runs each");
    let mut report = Report::begin("stop", &about)?;
    let host = Host::start(Config::default())?;
    let registry = host.registry();
    let _surface = registry.attach_surface("bench");
    let (ticker, faulty) = host.runtime().block_on(async {
        anyhow::Ok((host.load_file(&kind("ticker")).await?, host.load_file(&kind("faulty")).await?))
    })?;
    // Asked from a thread of its own, as a surface would.
    host.runtime().block_on(async {
        let sleeps = Work::new(&ticker, r#"{"count":2,"every_ms":3600000}"#);
        figures(
            &mut report,
            "cooperative",
            "a guest that sleeps",
            AtMost(2.0),
            &sleeps.stops(registry).await?,
        );

        let spins = Work::new(&faulty, r#"{"mode":"spin"}"#);
        let threads = host.runtime().metrics().num_workers();
        let mut busy = Vec::new();
        for _ in 0..threads {
            busy.push(spins.start(registry).await?);
        }
        let label = "the same, every thread computing";
        figures(&mut report, "beside_busy", label, Target::None, &sleeps.stops(registry).await?);
        for id in busy {
            registry.kill(&id, &Caller::Operator, Kill { mode: Mode::Force, reason: None }).await?;
        }

        let target = AtMost(ms(BOUND) + 10.0);
        let label = "a guest that computes";
        figures(&mut report, "spins", label, target, &spins.stops(registry).await?);
        let agrees = Work::new(&faulty, r#"{"mode":"stubborn-spin"}"#);
        let label = "one that agrees and computes";
        figures(&mut report, "agrees_and_spins", label, target, &agrees.stops(registry).await?);
        anyhow::Ok(())
    })?;
    report.end()?;
    Ok(())
}

fn figures(report: &mut Report, key: &str, label: &str, target: Target, times_ms: &[f64]) {
    let mut figure = |name: &str, percent, target| {
        let key = format!("{key}_{name}_ms");
        let time = percentile(times_ms, percent);
        report.figure(&key, &format!("{label}, {name}"), time, "ms", target);
    };
    figure("p50", 50.0, Target::None);
    figure("p99", 99.0, target);
    figure("max", 100.0, Target::None);
}

/// A task that has to be stopped.
struct Work {
    producer: Arc<ComponentProducer>,
    input: &'static str,
}

impl Work {
    fn new(component: &Component, input: &'static str) -> Self {
        let bounds = StopBounds { ask: BOUND, grace: BOUND };
        let producer = component.producer(OpenGrant::none(), Limits::default());
        Self { producer: Arc::new(producer.with_bounds(bounds)), input }
    }

    async fn start(&self, registry: &Registry) -> Result<TaskId> {
        let start = Start {
            label: "bench".to_owned(),
            input: self.input.to_owned(),
            owner: None,
            step: Step::default(),
        };
        Ok(registry.start(self.producer.clone(), start).await?)
    }

    /// Returns how long each of the runs took to stop, in milliseconds.
    async fn stops(&self, registry: &Registry) -> Result<Vec<f64>> {
        let mut times_ms = Vec::with_capacity(RUNS);
        for _ in 0..RUNS {
            let id = self.start(registry).await?;
            // Past the first turn of the guest, which belongs to the start.
            tokio::time::sleep(Duration::from_millis(2)).await;
            let asked = Instant::now();
            registry.kill(&id, &Caller::Operator, Kill::default()).await?;
            let ended = registry.wait(&id, &Caller::Operator, Duration::from_secs(30)).await?;
            times_ms.push(ms(asked.elapsed()));
            anyhow::ensure!(ended.status == Status::Killed, "{ended:?}");
        }
        Ok(times_ms)
    }
}
