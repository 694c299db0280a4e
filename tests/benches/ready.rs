//! How soon a component is ready whose code was kept: the first load of a file in a
//! process that has just started, which finds the digest in a memo and the code in the
//! cache. The start of the host is apart.
//!
//! A kind is of the size of most plugins. The large component is made here, of the size
//! and with as much code as an interpreter with its library.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use backlot::{Config, Host};
use backlot_tests::kind;
use serde_json::{Value, json};

mod report;

use report::{
    Report,
    Target::{self, AtMost},
    median, ms, percentile,
};

const RUNS: usize = 25;
/// What the large component has: functions of so many calls each, and data.
const FUNCTIONS: usize = 12_000;
const CALLS: usize = 36;
const DATA: usize = 16 << 20;
/// How long a file has to be as it is for its digest to be remembered, and more.
const SETTLES: Duration = Duration::from_millis(3_500);

fn main() -> Result<()> {
    let args: Vec<String> = env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["load", file, cache] => {
            println!("{}", load(Path::new(file), Path::new(cache))?);
            return Ok(());
        }
        // Nothing but loads, for a profiler to look at.
        ["profile", file, cache] => {
            let host = host(Path::new(cache))?;
            for _ in 0..50 {
                host.runtime().block_on(host.load_file(Path::new(file)))?;
            }
            return Ok(());
        }
        _ => {}
    }
    let about = format!("first load of a kept component in {RUNS} new processes");
    let mut report = Report::begin("ready", &about)?;
    let folder = tempfile::tempdir()?;
    let cache = folder.path().join("cache");
    let at = |name: &str| folder.path().join(name);
    fs::copy(kind("noop"), at("noop.wasm"))?;
    let large = match env::var_os("BACKLOT_BENCH_LARGE") {
        Some(path) => fs::read(path)?,
        None => large()?,
    };
    fs::write(at("large.wasm"), large)?;
    let classes =
        [("small", at("noop.wasm"), AtMost(2.0)), ("large", at("large.wasm"), AtMost(20.0))];
    std::thread::sleep(SETTLES);
    // Compiles them.
    for (_, file, _) in &classes {
        run(file, &cache)?;
    }
    let mut found = [Vec::new(), Vec::new()];
    for _ in 0..RUNS {
        for ((_, file, _), found) in classes.iter().zip(&mut found) {
            found.push(run(file, &cache)?);
        }
    }
    for ((class, file, target), found) in classes.iter().zip(&found) {
        let code = code_bytes(&cache, file)?;
        let size = fs::metadata(file)?.len();
        let what = format!("{:.1} MB", size as f64 / 1e6);
        let loads: Vec<f64> = found.iter().map(|run| run.load_ms).collect();
        let key = format!("{class}_ready_ms");
        report.figure(&key, &format!("{what}: ready, median"), median(&loads), "ms", *target);
        // What it takes where nobody else has the machine.
        let label = format!("{what}: ready, the fastest");
        let fastest = percentile(&loads, 0.0);
        report.figure(&format!("{class}_fastest_ms"), &label, fastest, "ms", Target::None);
        let label = format!("{what}: ready, p90");
        let slow = percentile(&loads, 90.0);
        report.figure(&format!("{class}_ready_p90_ms"), &label, slow, "ms", Target::None);
        let starts: Vec<f64> = found.iter().map(|run| run.start_ms).collect();
        let label = format!("{what}: start of the host before");
        report.figure(&format!("{class}_start_ms"), &label, median(&starts), "ms", Target::None);
        let label = format!("{what}: its compiled code");
        report.figure(&format!("{class}_code_mb"), &label, code as f64 / 1e6, "MB", Target::None);
    }
    report.end()?;
    Ok(())
}

/// What one process took.
struct Run {
    start_ms: f64,
    load_ms: f64,
}

fn run(file: &Path, cache: &Path) -> Result<Run> {
    let child = Command::new(env::current_exe()?)
        .arg("load")
        .args([file, cache])
        .stderr(Stdio::inherit())
        .output()?;
    anyhow::ensure!(child.status.success(), "loading {}: {}", file.display(), child.status);
    let found: Value = serde_json::from_slice(&child.stdout)?;
    let of = |name: &str| found[name].as_f64().with_context(|| format!("{name} is missing"));
    Ok(Run { start_ms: of("start_ms")?, load_ms: of("load_ms")? })
}

fn host(cache: &Path) -> Result<Host> {
    Ok(Host::start(Config { cache: Some(cache.to_owned()), ..Config::default() })?)
}

/// Loads a file in this process, and returns how long that took.
fn load(file: &Path, cache: &Path) -> Result<Value> {
    let begun = Instant::now();
    let host = host(cache)?;
    let start_ms = ms(begun.elapsed());
    let begun = Instant::now();
    host.runtime().block_on(host.load_file(file))?;
    Ok(json!({ "start_ms": start_ms, "load_ms": ms(begun.elapsed()) }))
}

/// Returns how much code is kept of a component: the entry is the largest for a large
/// one, and the smallest for a small one.
fn code_bytes(cache: &Path, file: &Path) -> Result<u64> {
    let mut sizes = Vec::new();
    for entry in fs::read_dir(cache)? {
        let path: PathBuf = entry?.path();
        if path.extension().is_some_and(|end| end == "code") {
            sizes.push(fs::metadata(path)?.len());
        }
    }
    sizes.sort_unstable();
    let is_large = fs::metadata(file)?.len() > 1 << 20;
    let size = if is_large { sizes.last() } else { sizes.first() };
    size.copied().context("the cache is empty")
}

/// Returns a component of many functions and much data.
fn large() -> Result<Vec<u8>> {
    let mut functions = String::new();
    for number in 0..FUNCTIONS {
        functions.push_str("(func (type $t) ");
        for call in 0..CALLS {
            // No two are the same, so nothing is merged.
            let slot = (number * 31 + call * 7) % 64;
            functions.push_str(&format!(
                "(local.set 0 (call_indirect (type $t) (local.get 1) (local.get 0) \
                 (i32.const {slot})))"
            ));
        }
        functions.push_str("(local.get 0))");
    }
    let pages = (DATA >> 16) + 2;
    let data = "x".repeat(DATA);
    let wat = format!(
        r#"(component
            (core module $m
                (type $t (func (param i32 i32) (result i32)))
                (table 64 funcref)
                (memory {pages})
                (data (i32.const 0) "{data}")
                {functions}
                (func (export "run") (result i32) (i32.const 0)))
            (core instance $i (instantiate $m))
            (func $run (result (result)) (canon lift (core func $i "run")))
            (instance $e (export "run" (func $run)))
            (export "wasi:cli/run@0.2.0" (instance $e)))"#
    );
    Ok(wat::parse_str(wat)?)
}
