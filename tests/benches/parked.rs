//! What a parked task takes: memory and memory mappings, at 1,000 tasks and at
//! as many as a host takes.
//!
//! Each configuration is measured in a process of its own, since memory that was
//! in use once is not the same afterwards.

use std::{
    env, fs,
    process::{Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use backlot::{
    Config, Host,
    registry::{Start, Step},
    wasm::{Limits, OpenGrant},
};
use backlot_tests::kind;
use serde_json::{Value, json};

mod report;

use report::{Report, Target};

/// A guest that sleeps until tomorrow.
const PARKED: &str = r#"{"count":2,"every_ms":86400000}"#;
/// How long a guest's last output takes to be fetched, and more.
const SETTLES: Duration = Duration::from_secs(1);

/// How many tasks are parked.
#[derive(Clone, Copy)]
enum Number {
    Of(u64),
    Capacity,
}

/// What is measured, each in a process of its own: a profile of the engine and
/// how many tasks are parked.
const RUNS: &[(&str, Number)] = &[("fast", Number::Of(1_000)), ("fast", Number::Capacity)];

/// Returns the configuration that a profile stands for.
fn config(profile: &str) -> Result<Config> {
    match profile {
        "fast" => Ok(Config::default()),
        other => anyhow::bail!("there is no profile {other}"),
    }
}

fn main() -> Result<()> {
    let args: Vec<String> = env::args().skip(1).collect();
    if let [word, profile, number] = args.as_slice()
        && word == "park"
    {
        println!("{}", park(profile, number.parse().ok())?);
        return Ok(());
    }
    let mut report =
        Report::begin("parked", "tasks that sleep, each profile in a process of its own")?;
    for (profile, number) in RUNS {
        let number = match number {
            Number::Of(number) => number.to_string(),
            Number::Capacity => "capacity".to_owned(),
        };
        figures(&mut report, profile, &number)?;
    }
    report.end()?;
    Ok(())
}

/// Measures in another process, and reports what that found.
fn figures(report: &mut Report, profile: &str, number: &str) -> Result<()> {
    let child = Command::new(env::current_exe()?)
        .args(["park", profile, number])
        .stderr(Stdio::inherit())
        .output()?;
    anyhow::ensure!(child.status.success(), "parking {number} in {profile}: {}", child.status);
    let found: Value = serde_json::from_slice(&child.stdout)?;
    let of = |name: &str| found[name].as_f64().with_context(|| format!("{name} is missing"));
    let tasks = of("tasks")?;
    let mut figure = |name: &str, label: &str, value: f64, unit: &str| {
        let key = format!("{profile}_{number}_{name}");
        report.figure(&key, &format!("{profile}, {number}: {label}"), value, unit, Target::None);
    };
    figure("tasks", "tasks", tasks, "tasks");
    figure("rss_kib", "RSS of each", of("rss_kib")? / tasks, "KiB");
    // RSS counts a page of a component's initial memory for each task that maps it.
    figure("pss_kib", "  shared pages counted once", of("pss_kib")? / tasks, "KiB");
    figure("mappings", "mappings of each", of("mappings")? / tasks, "maps");
    figure("idle_mappings", "mappings without a task", of("idle_mappings")?, "maps");
    figure("all_mappings", "mappings with all tasks", of("all_mappings")?, "maps");
    figure("start_us", "start of each", of("start_us")?, "µs");
    if let Some(refusal) = found["refusal"].as_str() {
        report.note(&format!("one more: {refusal}"));
    }
    Ok(())
}

/// Parks so many tasks, or as many as there is room for, and returns what they take.
fn park(profile: &str, number: Option<u64>) -> Result<Value> {
    let host = Host::start(config(profile)?)?;
    let capacity = u64::from(host.engine().capacity());
    let tasks = number.unwrap_or(capacity);
    let registry = host.registry().clone();
    let _surface = registry.attach_surface("bench");
    host.runtime().block_on(async {
        let component = host.load_file(&kind("ticker")).await?;
        let producer = Arc::new(component.producer(OpenGrant::none(), Limits::default()));
        let start = || Start {
            label: "parked".to_owned(),
            input: PARKED.to_owned(),
            owner: None,
            step: Step::default(),
        };
        let idle = Taken::now()?;
        let begun = Instant::now();
        for at in 0..tasks {
            let started = registry.start(producer.clone(), start()).await;
            started.with_context(|| format!("task {at} of {tasks}"))?;
        }
        let start_us = report::us(begun.elapsed()) / tasks as f64;
        tokio::time::sleep(SETTLES).await;
        let full = Taken::now()?;
        let refusal = match number {
            Some(_) => None,
            None => registry.start(producer.clone(), start()).await.err(),
        };
        Ok(json!({
            "tasks": tasks,
            "rss_kib": full.rss_kib.saturating_sub(idle.rss_kib),
            "pss_kib": full.pss_kib.saturating_sub(idle.pss_kib),
            "mappings": full.mappings.saturating_sub(idle.mappings),
            "idle_mappings": idle.mappings,
            "all_mappings": full.mappings,
            "start_us": start_us,
            "refusal": refusal.map(|error| error.to_string()),
        }))
    })
}

/// What this process takes of the machine.
struct Taken {
    rss_kib: u64,
    pss_kib: u64,
    mappings: u64,
}

impl Taken {
    fn now() -> Result<Self> {
        let rollup = fs::read_to_string("/proc/self/smaps_rollup")?;
        let kib = |name: &str| -> Result<u64> {
            let size = rollup
                .lines()
                .find_map(|line| line.strip_prefix(name))
                .and_then(|size| size.split_whitespace().next())
                .context("the system does not tell the memory of a process")?;
            Ok(size.parse()?)
        };
        let mappings = fs::read_to_string("/proc/self/maps")?.lines().count() as u64;
        Ok(Self { rss_kib: kib("Rss:")?, pss_kib: kib("Pss:")?, mappings })
    }
}
