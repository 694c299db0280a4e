//! What a parked task takes: memory and memory mappings, at 1,000 tasks and at
//! as many as a host takes, in both profiles.
//!
//! How many 20 GiB hold is only measured where mappings allow it: raise
//! `vm.max_map_count` to 4,000,000 before, on a machine with 24 GiB that does
//! nothing else.
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
    wasm::{Bound, Limits, OpenGrant, Profile},
};
use backlot_tests::kind;
use serde_json::{Value, json};

mod report;

use report::{Report, Target};

/// A guest that sleeps until tomorrow.
const PARKED: &str = r#"{"count":2,"every_ms":86400000}"#;
/// How long a guest's last output takes to be fetched, and more.
const SETTLES: Duration = Duration::from_secs(1);

/// How many a dense host holds at least with Linux's own limit on mappings.
const DENSE: f64 = 20_000.0;
/// The memory that is filled with tasks.
const MUCH: u64 = 20 << 30;

/// What is measured, each in a process of its own: a profile of the engine and how
/// many tasks are parked.
const RUNS: &[(Profile, &str)] = &[
    (Profile::Fast, "1000"),
    (Profile::Fast, "capacity"),
    (Profile::Dense, "1000"),
    (Profile::Dense, "capacity"),
    (Profile::Dense, "20 GiB"),
];

/// Returns the configuration of a host that so many are parked on.
fn config(profile: Profile, number: &str) -> Config {
    let guest_memory = (number == "20 GiB").then_some(MUCH);
    Config { profile, guest_memory, ..Config::default() }
}

fn main() -> Result<()> {
    let args: Vec<String> = env::args().skip(1).collect();
    if let [word, profile, number] = args.as_slice()
        && word == "park"
    {
        println!("{}", park(profile.parse()?, number)?);
        return Ok(());
    }
    let mut report =
        Report::begin("parked", "tasks that sleep, each profile in a process of its own")?;
    for (profile, number) in RUNS {
        figures(&mut report, *profile, number)?;
    }
    report.end()?;
    Ok(())
}

/// Measures in another process, and reports what that found.
fn figures(report: &mut Report, profile: Profile, number: &str) -> Result<()> {
    let child = Command::new(env::current_exe()?)
        .args(["park", profile.name(), number])
        .stderr(Stdio::inherit())
        .output()?;
    anyhow::ensure!(child.status.success(), "parking {number} in {profile}: {}", child.status);
    let found: Value = serde_json::from_slice(&child.stdout)?;
    if let Some(bound) = found["bound"].as_str() {
        report.note(&format!("{profile}, {number}: not measured, as it is bounded by {bound}"));
        return Ok(());
    }
    let of = |name: &str| found[name].as_f64().with_context(|| format!("{name} is missing"));
    let tasks = of("tasks")?;
    let mut targeted = |name: &str, label: &str, value: f64, unit: &str, target| {
        let key = format!("{profile}_{number}_{name}");
        report.figure(&key, &format!("{profile}, {number}: {label}"), value, unit, target);
    };
    let is_dense = profile == Profile::Dense && number == "capacity";
    let target = if is_dense { Target::AtLeast(DENSE) } else { Target::None };
    targeted("tasks", "tasks", tasks, "tasks", target);
    let mut figure = |name, label, value, unit| targeted(name, label, value, unit, Target::None);
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
fn park(profile: Profile, number: &str) -> Result<Value> {
    let host = Host::start(config(profile, number))?;
    let capacity = host.engine().capacity();
    if number == "20 GiB" && !matches!(capacity.bound, Bound::Memory(_)) {
        return Ok(json!({ "bound": capacity.bound.to_string() }));
    }
    let number = number.parse().ok();
    let tasks = number.unwrap_or(u64::from(capacity.tasks));
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
            "refusal": refusal.as_ref().map(ToString::to_string),
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
