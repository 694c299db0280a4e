//! What the registry costs. Run with `cargo bench -p backlot-registry`.
//!
//! Every figure is printed beside what it is held against; none is asserted,
//! because a loaded machine proves nothing.

use std::{
    hint::black_box,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

// The workspace's benchmarks report alike; the registry depends on none of them.
#[path = "../../../tests/benches/report/mod.rs"]
mod report;

use report::{
    Report,
    Target::{self, AtLeast, AtMost},
    mib_s, percentile,
};

use backlot_registry::{
    Agreed, BoxFuture, Caller, Config, Control, Environment, Form, Kill, Kind, OnDrop, Outcome,
    Producer, Refusal, Registry, Request, Retention, Run, Start, StopRefusal, Stream, TaskHost,
    TaskId,
};

const TERMINAL: usize = 1_000_000;
const LIVE: usize = 100_000;

/// Native work that does nothing: it ends at once, or never.
struct Noop {
    kind: Kind,
    control: Arc<Idle>,
    ends: bool,
}

struct Idle;

impl Control for Idle {
    fn cancel(&self, _reason: Option<String>) -> BoxFuture<'static, Result<Agreed, StopRefusal>> {
        Box::pin(async { Ok(Agreed::WindsDown) })
    }
}

impl Producer for Noop {
    fn kind(&self) -> &Kind {
        &self.kind
    }

    fn form(&self) -> Form {
        Form::Stream
    }

    fn run(&self, _request: Request, _host: TaskHost) -> BoxFuture<'_, Result<Run, Refusal>> {
        let done: BoxFuture<'static, Outcome> = if self.ends {
            Box::pin(async { Outcome::completed() })
        } else {
            Box::pin(std::future::pending())
        };
        let run = Run { control: self.control.clone(), done, on_drop: OnDrop::ReleasesAll };
        Box::pin(async { Ok(run) })
    }
}

fn noop(ends: bool) -> Arc<Noop> {
    Arc::new(Noop { kind: Kind::new("noop").unwrap(), control: Arc::new(Idle), ends })
}

fn registry(count: usize) -> Registry {
    let retention = Retention { count, age: Duration::from_secs(24 * 60 * 60) };
    let config = Config { retention, ..Config::default() };
    Registry::new(config, Environment::new(tokio::runtime::Handle::current()))
}

/// Returns the nanoseconds that one start takes, with the task run to its end.
async fn start_ns(registry: &Registry, producer: &Arc<Noop>, count: usize) -> f64 {
    let begun = Instant::now();
    for turn in 0..count {
        black_box(registry.start(producer.clone(), Start::default()).await.unwrap());
        if turn % 64 == 63 {
            tokio::task::yield_now().await;
        }
    }
    tokio::task::yield_now().await;
    per(begun, count)
}

async fn spawn_ns(count: usize) -> f64 {
    let begun = Instant::now();
    for turn in 0..count {
        black_box(tokio::spawn(async { black_box(Outcome::completed()) }));
        if turn % 64 == 63 {
            tokio::task::yield_now().await;
        }
    }
    tokio::task::yield_now().await;
    per(begun, count)
}

fn per(begun: Instant, count: usize) -> f64 {
    begun.elapsed().as_nanos() as f64 / count as f64
}

/// Returns numbers that look random and are the same every time.
fn numbers() -> impl FnMut(u64) -> u64 {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    move |below| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    }
}

async fn lifecycle(report: &mut Report) {
    let ends = noop(true);
    let mut best = (f64::MAX, f64::MAX);
    for _ in 0..5 {
        let empty = registry(usize::MAX);
        let _surface = empty.attach_surface("bench");
        best.0 = best.0.min(spawn_ns(100_000).await);
        best.1 = best.1.min(start_ns(&empty, &ends, 100_000).await);
    }
    let (spawn, start) = best;
    report.figure("spawn_ns", "bare tokio::spawn of a no-op", spawn, "ns", Target::None);
    report.figure("start_ns", "start of a no-op, run to its end", start, "ns", Target::None);
    report.figure("over_spawn_ns", "  over the spawn", start - spawn, "ns", AtMost(2000.0));

    let full = registry(usize::MAX);
    let _surface = full.attach_surface("bench");
    start_ns(&full, &ends, TERMINAL).await;
    let live = noop(false);
    start_ns(&full, &live, LIVE).await;
    let health = full.health();
    report.note(&format!(
        "below, it holds {} terminal and {} live tasks",
        health.terminal, health.live
    ));

    let mut number = numbers();
    let mut id =
        || TaskId { kind: ends.kind.clone(), number: 1 + number((TERMINAL + LIVE) as u64) };
    let mut get_ns = Vec::new();
    for _ in 0..100_000 {
        let id = id();
        let begun = Instant::now();
        black_box(full.get(&id, &Caller::Operator).unwrap());
        get_ns.push(begun.elapsed().as_nanos() as f64);
    }
    percentiles(report, "get", &get_ns);
    let mut kill_ns = Vec::new();
    for _ in 0..100_000 {
        let id = id();
        let begun = Instant::now();
        black_box(full.kill(&id, &Caller::Operator, Kill::default()).await.unwrap());
        kill_ns.push(begun.elapsed().as_nanos() as f64);
    }
    percentiles(report, "kill", &kill_ns);
    let in_full =
        (start_ns(&full, &ends, 100_000).await).min(start_ns(&full, &ends, 100_000).await);
    report.figure("start_in_full_ns", "start in it", in_full, "ns", Target::None);
    report.figure(
        "full_to_empty",
        "  over a start in an empty one",
        in_full / start,
        "×",
        AtMost(1.5),
    );
    let begun = Instant::now();
    let page = black_box(full.list_page(&Caller::Operator, 100, 500_000));
    let page_ns = begun.elapsed().as_nanos() as f64;
    let label = format!("a page of {} out of the middle", page.tasks.len());
    report.figure("page_ns", &label, page_ns, "ns", Target::None);
}

fn percentiles(report: &mut Report, call: &str, times_ns: &[f64]) {
    for (percent, target) in [(50.0, AtMost(2000.0)), (99.0, Target::None)] {
        let time = percentile(times_ns, percent);
        let label = format!("{call} of a random id, p{percent:.0}");
        report.figure(&format!("{call}_p{percent:.0}_ns"), &label, time, "ns", target);
    }
}

/// Starts with retention at its limit: every end drops the oldest record.
async fn turnover(report: &mut Report) {
    for count in [10_000, TERMINAL] {
        let registry = registry(count);
        let _surface = registry.attach_surface("bench");
        let ends = noop(true);
        start_ns(&registry, &ends, count).await;
        let start = start_ns(&registry, &ends, 200_000).await;
        let label = format!("start that drops one of {count}");
        report.figure(&format!("turnover_{count}_ns"), &label, start, "ns", Target::None);
    }
}

/// Work whose host the benchmark writes through.
struct Writer {
    kind: Kind,
    hosts: std::sync::mpsc::Sender<TaskHost>,
}

impl Producer for Writer {
    fn kind(&self) -> &Kind {
        &self.kind
    }

    fn form(&self) -> Form {
        Form::Stream
    }

    fn run(&self, _request: Request, host: TaskHost) -> BoxFuture<'_, Result<Run, Refusal>> {
        self.hosts.send(host).unwrap();
        let done = Box::pin(std::future::pending());
        let run = Run { control: Arc::new(Idle), done, on_drop: OnDrop::ReleasesAll };
        Box::pin(async { Ok(run) })
    }
}

async fn output(report: &mut Report) {
    let (hosts, started) = std::sync::mpsc::channel();
    let writer = Arc::new(Writer { kind: Kind::new("writer").unwrap(), hosts });
    let registry = registry(10);
    let _surface = registry.attach_surface("bench");
    for size in [64, 1 << 12, 1 << 16] {
        registry.start(writer.clone(), Start::default()).await.unwrap();
        let sink = started.recv().unwrap().output();
        let bytes = vec![b'x'; size];
        let total = if size < 1000 { 1 << 28 } else { 1 << 31 };
        let begun = Instant::now();
        for _ in 0..total / size {
            sink.write(&bytes);
        }
        let rate = mib_s(total as u64, begun.elapsed());
        let label = format!("writing, {size} bytes at once");
        report.figure(&format!("write_{size}_mib_s"), &label, rate, "MiB/s", AtLeast(1024.0));
    }

    // One writer, eight observers that see every byte of it.
    let id = registry.start(writer.clone(), Start::default()).await.unwrap();
    let sink = started.recv().unwrap().output();
    const TOTAL: usize = 1 << 30;
    let begun = Instant::now();
    let seen: Arc<[AtomicUsize; 8]> = Arc::default();
    let observers: Vec<_> = (0..8)
        .map(|index| {
            let mut observer = registry.observe(&id, &Caller::Operator, Stream::Output, 0).unwrap();
            let seen = seen.clone();
            tokio::spawn(async move {
                let (mut bytes, mut dropped) = (0, 0);
                while bytes + dropped < TOTAL {
                    let piece = observer.next(64 << 10).await.unwrap();
                    bytes += black_box(piece.bytes).len();
                    dropped += piece.dropped as usize;
                    seen[index].store(bytes + dropped, Relaxed);
                }
                dropped
            })
        })
        .collect();
    let bytes = vec![b'x'; 16 << 10];
    for turn in 0..TOTAL / bytes.len() {
        sink.write(&bytes);
        // Keeps the observers within what is in memory, so that they see it all.
        while (turn + 1) * bytes.len()
            > seen.iter().map(|at| at.load(Relaxed)).min().unwrap() + (512 << 10)
        {
            tokio::task::yield_now().await;
        }
    }
    let mut dropped = 0;
    for observer in observers {
        dropped += observer.await.unwrap();
    }
    let rate = mib_s(TOTAL as u64, begun.elapsed());
    let label = "eight observers of one writer, each";
    report.figure("eight_observers_mib_s", label, rate, "MiB/s", AtLeast(200.0));
    report.figure("eight_dropped_bytes", "  bytes dropped", dropped as f64, "bytes", Target::None);
}

fn main() {
    let mut report = Report::begin("registry", "what the registry costs with native work").unwrap();
    let single = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    single.block_on(lifecycle(&mut report));
    single.block_on(turnover(&mut report));
    let multi = tokio::runtime::Builder::new_multi_thread().enable_time().build().unwrap();
    multi.block_on(output(&mut report));
    report.end().unwrap();
}
