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

/// Returns the median and the 99th percentile in nanoseconds.
fn percentiles(mut samples: Vec<u128>) -> (u128, u128) {
    samples.sort_unstable();
    (samples[samples.len() / 2], samples[samples.len() * 99 / 100])
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

async fn lifecycle() {
    let ends = noop(true);
    let mut best = (f64::MAX, f64::MAX);
    for _ in 0..5 {
        let empty = registry(usize::MAX);
        let _surface = empty.attach_surface("bench");
        best.0 = best.0.min(spawn_ns(100_000).await);
        best.1 = best.1.min(start_ns(&empty, &ends, 100_000).await);
    }
    let (spawn, start) = best;
    println!("bare tokio::spawn of a no-op      {spawn:8.0} ns");
    println!(
        "start of a no-op, run to its end  {start:8.0} ns   +{:.0} ns (at most 2000)",
        start - spawn
    );

    let full = registry(usize::MAX);
    let _surface = full.attach_surface("bench");
    start_ns(&full, &ends, TERMINAL).await;
    let live = noop(false);
    start_ns(&full, &live, LIVE).await;
    let health = full.health();
    println!("registry holds {} terminal and {} live tasks", health.terminal, health.live);

    let mut number = numbers();
    let mut id =
        || TaskId { kind: ends.kind.clone(), number: 1 + number((TERMINAL + LIVE) as u64) };
    let get = (0..100_000)
        .map(|_| {
            let id = id();
            let begun = Instant::now();
            black_box(full.get(&id, &Caller::Operator).unwrap());
            begun.elapsed().as_nanos()
        })
        .collect();
    let (p50, p99) = percentiles(get);
    println!("get of a random id                {p50:8} ns p50 {p99} ns p99 (at most 2000 p50)");
    let mut kill = Vec::new();
    for _ in 0..100_000 {
        let id = id();
        let begun = Instant::now();
        black_box(full.kill(&id, &Caller::Operator, Kill::default()).await.unwrap());
        kill.push(begun.elapsed().as_nanos());
    }
    let (p50, p99) = percentiles(kill);
    println!("kill of a random id               {p50:8} ns p50 {p99} ns p99 (at most 2000 p50)");
    let in_full =
        (start_ns(&full, &ends, 100_000).await).min(start_ns(&full, &ends, 100_000).await);
    println!(
        "start in the full registry        {in_full:8.0} ns   x {:.2} (at most 1.5)",
        in_full / start
    );
    let begun = Instant::now();
    let page = full.list_page(&Caller::Operator, 100, 500_000);
    println!(
        "a page of {} out of the middle   {:8} ns",
        page.tasks.len(),
        begun.elapsed().as_nanos()
    );
}

/// Starts with retention at its limit: every end drops the oldest record.
async fn turnover() {
    for count in [10_000, TERMINAL] {
        let registry = registry(count);
        let _surface = registry.attach_surface("bench");
        let ends = noop(true);
        start_ns(&registry, &ends, count).await;
        let start = start_ns(&registry, &ends, 200_000).await;
        println!("start that drops one of {count:9} {start:8.0} ns");
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

async fn output() {
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
        println!(
            "writing, {size:5} bytes at once       {:8.2} GiB/s (at least 1)",
            rate(total, begun) / 1024.0
        );
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
    println!(
        "eight observers of one writer     {:8.0} MiB/s each (at least 200), {dropped} bytes dropped",
        rate(TOTAL, begun)
    );
}

/// Returns MiB a second.
fn rate(bytes: usize, begun: Instant) -> f64 {
    bytes as f64 / f64::from(1 << 20) / begun.elapsed().as_secs_f64()
}

fn main() {
    let single = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    single.block_on(lifecycle());
    single.block_on(turnover());
    let multi = tokio::runtime::Builder::new_multi_thread().enable_time().build().unwrap();
    multi.block_on(output());
}
