//! What a host costs that stays: a call of a tool over stdio, a crowd that follows one
//! output, and the host itself while it has nothing to do. The first and the last are of
//! the real process.
//!
//! A job records 64 MiB by default, and the crowd follows more than that. So its host is a
//! process of this program, which embeds what `backlot serve` runs, with more recorded.

use std::{
    env, fs,
    io::{BufRead as _, BufReader, Write as _},
    net::SocketAddr,
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use backlot::{
    Config, Holding, HoldingConfig, JobsConfig, Serve,
    backlot_jobs::{DataFolder, output::Limits},
};
use backlot_surface::{Client, wire::SpawnRequest};
use backlot_tests::{backlot as built, cache, kinds, program};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task::JoinSet,
};

mod report;

#[path = "../../host/jobs/benches/page/mod.rs"]
#[allow(clippy::unwrap_used, reason = "a benchmark ends where something is missing")]
mod page;

use page::Page;
use report::{
    Report,
    Target::{self, AtMost},
    median, mib_s, percentile, us,
};

/// How many tools are called each way.
const CALLS: usize = 500;
/// How often the store has waited for the disk when a call is answered: for the job, and for
/// its end. That its end was told is written afterwards.
const WRITES: usize = 2;
/// How many follow an output, and how much it is.
const FOLLOWERS: usize = 1_000;
const OUTPUT: u64 = 100 << 20;
/// What a host that begins does, and for how long it is then watched.
const SETTLES: Duration = Duration::from_secs(6);
const WATCHED: Duration = Duration::from_secs(20);

fn main() -> Result<()> {
    // Components are compiled by processes of this program.
    backlot::wasm::compile_if_asked();
    let args: Vec<String> = env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    if let ["host", data] = words.as_slice() {
        return host(Path::new(data));
    }
    let is_asked = |part| words.is_empty() || words.contains(&part);
    let mut report = Report::begin("daemon", "what a host costs that stays")?;
    // On the disk that the target folder is on, for a temporary folder may be none.
    let beside = env::current_exe()?;
    let folder = tempfile::tempdir_in(beside.parent().context("a program has a folder")?)?;
    if is_asked("calls") {
        calls(&mut report, folder.path())?;
    }
    if is_asked("crowd") {
        crowd(&mut report, folder.path())?;
    }
    if is_asked("idle") {
        idle(&mut report, folder.path())?;
    }
    report.end()?;
    Ok(())
}

/// Calls a kind that does nothing, in a host of the agent's own and over one that stays,
/// with as many bare syncs in between.
fn calls(report: &mut Report, folder: &Path) -> Result<()> {
    for (name, target) in [("embedded", true), ("bridged", false)] {
        let data = folder.join(name);
        let _host = match name {
            "bridged" => Some(Started::serve(&data)?),
            _ => None,
        };
        let mut agent = Agent::start(&data)?;
        for _ in 0..100 {
            agent.call()?;
        }
        let mut page = Page::new(&data);
        let (mut calls, mut syncs, mut one) = (Vec::new(), Vec::new(), Vec::new());
        for turn in 0..CALLS {
            let begun = Instant::now();
            agent.call()?;
            calls.push(us(begun.elapsed()));
            let turn = (turn * WRITES) as u64;
            let bare: Vec<f64> = (0..WRITES as u64).map(|at| page.sync_us(turn + at)).collect();
            syncs.push(bare.iter().sum());
            one.extend(bare);
        }
        let (p50, p99) = (median(&calls), percentile(&calls, 99.0));
        let bound = percentile(&syncs, 99.0) + 1_000.0;
        let (limit, bound) = match target {
            true => (AtMost(1_000.0), AtMost(bound)),
            false => (Target::None, Target::None),
        };
        report.figure(&format!("{name}_us"), &format!("tools/call, {name}"), p50, "us", limit);
        let label = format!("  the slowest in a hundred, {name}");
        report.figure(&format!("{name}_p99_us"), &label, p99, "us", bound);
        let key = format!("{name}_sync_us");
        report.figure(&key, "  fdatasync of one page meanwhile", median(&one), "us", Target::None);
        let label = format!("  {WRITES} of them, the slowest in a hundred");
        let slow = percentile(&syncs, 99.0);
        report.figure(&format!("{name}_syncs_p99_us"), &label, slow, "us", Target::None);
    }
    Ok(())
}

/// Has many follow one output over TCP while it is written, and looks at what the host
/// needs for it.
fn crowd(report: &mut Report, folder: &Path) -> Result<()> {
    let number = |name, default| {
        let said = env::var(name).ok().and_then(|said| said.parse().ok());
        said.unwrap_or(default)
    };
    // For a look at less of it.
    let followers = number("BACKLOT_BENCH_FOLLOWERS", FOLLOWERS as u64);
    let bytes = number("BACKLOT_BENCH_OUTPUT", OUTPUT);
    let data = folder.join("crowd");
    let mut command = Command::new(env::current_exe()?);
    command.arg("host").arg(&data);
    let mut host = Started::start(command)?;
    let address: SocketAddr = host.line()?.parse()?;
    let token = fs::read_to_string(host.line()?)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let before = memory(host.id(), "VmRSS:")?;
    let took = runtime.block_on(async {
        let client = Client::connect(&DataFolder::open(&data)?.socket_address()).await?;
        let spawn = SpawnRequest {
            file: Some(program("pour")),
            input: Some(json!({"bytes": bytes}).to_string()),
            session: Some("bench".to_owned()),
            // Once all are there.
            after_ms: Some(3_000),
            ..SpawnRequest::default()
        };
        client.open_session("bench").await?;
        let job = client.spawn(&spawn).await?.id;
        let request = format!(
            "GET /v1/jobs/{job}/stream HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {}\r\n\
             connection: close\r\n\r\n",
            token.trim()
        );
        let mut crowd = JoinSet::new();
        for _ in 0..followers {
            crowd.spawn(follow(address, request.clone()));
        }
        let begun = Instant::now() + Duration::from_secs(3);
        while let Some(seen) = crowd.join_next().await {
            let seen = seen??;
            ensure!(seen == bytes, "a follower has got {seen} bytes of {bytes}");
        }
        anyhow::Ok(begun.elapsed())
    })?;
    let peak = memory(host.id(), "VmHWM:")?;
    let label = format!("{followers} followers of {} MiB: peak RSS", bytes >> 20);
    report.figure("crowd_peak_mib", &label, peak, "MiB", AtMost(200.0));
    report.figure("crowd_before_mib", "  before they came", before, "MiB", Target::None);
    let rate = mib_s(followers * bytes, took);
    report.figure("crowd_mib_s", "  all together", rate, "MiB/s", Target::None);
    Ok(())
}

/// Follows an output to its end, and returns how many bytes of it have come, each where it
/// belongs.
async fn follow(address: SocketAddr, request: String) -> Result<u64> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(request.as_bytes()).await?;
    let mut lines = Lines::default();
    let mut piece = vec![0; 32 << 10];
    loop {
        match stream.read(&mut piece).await? {
            0 => break,
            read => lines.take(&piece[..read])?,
        }
    }
    ensure!(lines.has_ended, "a stream was cut after {} bytes of output", lines.reached);
    Ok(lines.reached)
}

/// What a follower has seen, line by line. What the transfer adds are lines as well.
#[derive(Default)]
struct Lines {
    /// How a line begins, and how long it is so far.
    head: Vec<u8>,
    length: u64,
    /// The id of the event that is being read.
    id: Option<u64>,
    /// Up to where all output has come.
    reached: u64,
    has_ended: bool,
}

impl Lines {
    /// How much of a line is looked at, in bytes: room for where a piece of output is.
    const HEAD: usize = 40;

    fn take(&mut self, mut bytes: &[u8]) -> Result<()> {
        // A search by words first: lines are long, and all of them are read many times.
        while bytes.contains(&b'\n') {
            let end = bytes.iter().position(|byte| *byte == b'\n').unwrap_or_default();
            self.add(&bytes[..end]);
            self.end()?;
            bytes = &bytes[end + 1..];
        }
        self.add(bytes);
        Ok(())
    }

    fn add(&mut self, bytes: &[u8]) {
        let room = Self::HEAD.saturating_sub(self.head.len()).min(bytes.len());
        self.head.extend_from_slice(&bytes[..room]);
        self.length += bytes.len() as u64;
    }

    fn end(&mut self) -> Result<()> {
        let head = String::from_utf8_lossy(&self.head).into_owned();
        if self.reached == 0 && head.starts_with("HTTP/1.1 ") {
            ensure!(head.starts_with("HTTP/1.1 200 "), "{head}");
        }
        if let Some(id) = head.strip_prefix("id: ") {
            self.id = id.parse().ok();
        } else if let Some(offset) = head.strip_prefix("data: {\"offset\":") {
            let offset: u64 = offset.split(',').next().unwrap_or_default().parse()?;
            let to = self.id.take().context("output has an id")?;
            ensure!(offset == self.reached, "output at {offset} after {}", self.reached);
            ensure!(self.length > to - offset, "less than the output from {offset} to {to}");
            self.reached = to;
        }
        ensure!(!head.starts_with("event: dropped"), "output was dropped at {}", self.reached);
        self.has_ended |= head.starts_with("event: ended");
        self.head.clear();
        self.length = 0;
        Ok(())
    }
}

/// Looks at a host that has nothing to do.
fn idle(report: &mut Report, folder: &Path) -> Result<()> {
    let data = folder.join("idle");
    let host = Started::serve(&data)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(has_kinds(&data))?;
    // It is time itself that is to pass, with nothing to wait for.
    thread::sleep(SETTLES);
    let before = switches(host.id())?;
    thread::sleep(WATCHED);
    let after = switches(host.id())?;
    let mut woken = 0;
    for (thread, name, count) in &after {
        let then = before.iter().find(|(it, ..)| it == thread).map_or(0, |(.., then)| *then);
        if *count > then {
            report.note(&format!("{name} was woken {} times", count - then));
            woken += count - then;
        }
    }
    let seconds = WATCHED.as_secs();
    let label = format!("an idle host, woken in {seconds} s");
    report.figure("idle_woken", &label, woken as f64, "times", AtMost(seconds as f64));
    let resident = memory(host.id(), "VmRSS:")?;
    report.figure("idle_mib", "  resident", resident, "MiB", AtMost(40.0));
    for (key, name) in [("anonymous", "RssAnon:"), ("of_files", "RssFile:")] {
        let part = memory(host.id(), name)?;
        let label = format!("  of that {}", key.replace('_', " "));
        report.figure(&format!("idle_{key}_mib"), &label, part, "MiB", Target::None);
    }
    Ok(())
}

/// Waits until a host has loaded what its plugin folder has.
async fn has_kinds(data: &Path) -> Result<()> {
    let client = Client::connect(&DataFolder::open(data)?.socket_address()).await?;
    let names = fs::read_dir(kinds())?.map(|entry| entry.map(|it| it.path()));
    let names: Vec<_> = names.collect::<Result<_, _>>()?;
    let count = names.iter().filter(|it| it.extension() == Some("wasm".as_ref())).count();
    let begun = Instant::now();
    loop {
        let loaded = client.kinds().await?.kinds;
        if loaded.iter().filter(|kind| kind.current.is_some()).count() == count {
            return Ok(());
        }
        ensure!(begun.elapsed() < Duration::from_secs(120), "not all kinds are there");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Returns how often each thread of a process has been switched to, with its name.
fn switches(process: u32) -> Result<Vec<(String, String, u64)>> {
    let mut threads = Vec::new();
    for thread in fs::read_dir(format!("/proc/{process}/task"))? {
        let thread = thread?;
        // One may have ended since.
        let Ok(status) = fs::read_to_string(thread.path().join("status")) else { continue };
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
        let count = |name| field(name).and_then(|it| it.trim().parse::<u64>().ok());
        let switches = count("voluntary_ctxt_switches:").unwrap_or_default()
            + count("nonvoluntary_ctxt_switches:").unwrap_or_default();
        let name = field("Name:").unwrap_or_default().trim().to_owned();
        threads.push((thread.file_name().to_string_lossy().into_owned(), name, switches));
    }
    Ok(threads)
}

/// Returns how much memory of a sort a process has, in MiB.
fn memory(process: u32, name: &str) -> Result<f64> {
    let status = fs::read_to_string(format!("/proc/{process}/status"))?;
    let line =
        status.lines().find_map(|line| line.strip_prefix(name)).context("the system tells")?;
    let kib: f64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kib / 1024.0)
}

/// Hosts a data folder in this process until nobody reads what it prints.
fn host(data: &Path) -> Result<()> {
    const RECORD: u64 = 256 << 20;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut config = HoldingConfig::new(data, "bench");
        let mut host = Config { plugins: kinds(), ..Config::default() };
        // The guest is far faster than what follows it.
        host.registry.spool.disk = RECORD;
        let jobs = JobsConfig { record: Limits::total(RECORD), ..JobsConfig::new(data) };
        let listen = vec!["127.0.0.1:0".parse()?];
        config.host = host;
        config.jobs = jobs;
        config.serve = Serve { listen: Some(listen), ..Serve::default() };
        let holding = Holding::start(config).await?;
        let address = holding.about().addresses.first().context("it listens")?;
        println!("{}", address.trim_start_matches("http://"));
        println!("{}", holding.token().context("there is a token")?.display());
        let ends = tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new()));
        let _ = ends.await;
        holding.end().await;
        anyhow::Ok(())
    })
}

/// A process that does not outlive the benchmark.
struct Started {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Started {
    fn start(mut command: Command) -> Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn()?;
        let input = child.stdin.take().context("stdin is a pipe")?;
        let output = BufReader::new(child.stdout.take().context("stdout is a pipe")?);
        Ok(Self { child, input, output })
    }

    /// Starts a host that stays, at a port as well, and returns once it serves.
    fn serve(data: &Path) -> Result<Self> {
        let mut command = backlot(data);
        command.args(["serve", "--json", "--listen", "127.0.0.1:0", "--expose", "noop"]);
        let mut started = Self::start(command)?;
        let line = started.line()?;
        ensure!(line.starts_with(r#"{"event":"serving""#), "it does not serve: {line}");
        Ok(started)
    }

    fn id(&self) -> u32 {
        self.child.id()
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        ensure!(self.output.read_line(&mut line)? > 0, "a process ended early");
        Ok(line.trim_end().to_owned())
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the command of the real program over a data folder.
fn backlot(data: &Path) -> Command {
    let mut command = Command::new(built());
    command
        .env("BACKLOT_DATA", data)
        .env("BACKLOT_CACHE", cache())
        .env("BACKLOT_PLUGINS", kinds())
        .env("XDG_CONFIG_HOME", "/nonexistent")
        .env_remove("BACKLOT_POLICY")
        .env_remove("BACKLOT_LISTEN")
        .env_remove("BACKLOT_LOG");
    command
}

/// An agent that speaks the revision with `initialize` over stdio.
struct Agent {
    process: Started,
    asked: u64,
}

impl Agent {
    fn start(data: &Path) -> Result<Self> {
        let mut command = backlot(data);
        command.args(["mcp", "--expose", "noop"]);
        let mut agent = Self { process: Started::start(command)?, asked: 0 };
        let client = json!({"name": "bench", "version": "1"});
        agent.ask(
            "initialize",
            &json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client}),
        )?;
        writeln!(
            agent.process.input,
            r#"{{"jsonrpc":"2.0","method":"notifications/initialized"}}"#
        )?;
        // The kind is there once its folder was looked at.
        let begun = Instant::now();
        while agent.ask("tools/call", &json!({"name": "noop", "arguments": {}}))?["result"]
            .is_null()
        {
            ensure!(begun.elapsed() < Duration::from_secs(60), "there is no tool for the kind");
            thread::sleep(Duration::from_millis(20));
        }
        Ok(agent)
    }

    fn ask(&mut self, method: &str, params: &Value) -> Result<Value> {
        self.asked += 1;
        let id = self.asked;
        let request = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        writeln!(self.process.input, "{request}")?;
        loop {
            let message: Value = serde_json::from_str(&self.process.line()?)?;
            // What is told meanwhile is passed over.
            if message["id"] == id && message.get("method").is_none() {
                return Ok(message);
            }
        }
    }

    fn call(&mut self) -> Result<()> {
        let answer = self.ask("tools/call", &json!({"name": "noop", "arguments": {}}))?;
        ensure!(
            answer["result"].is_object() && answer["result"]["isError"] != true,
            "the call failed: {answer}"
        );
        Ok(())
    }
}
