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
    wasm::{EngineConfig, Limits, OpenGrant},
};
use backlot_tests::kind;

const ROUNDS: usize = 9;
/// How long each of the three runs in a round.
const SPELL: Duration = Duration::from_millis(300);

fn main() -> Result<()> {
    let only = std::env::args().nth(1).filter(|name| !name.starts_with('-'));
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
    report(&rounds[1..])
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

fn report(rounds: &[Round]) -> Result<()> {
    let middle = |pick: &dyn Fn(&Round) -> f64| {
        let mut values: Vec<f64> = rounds.iter().map(pick).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let us = |time: Duration| time.as_secs_f64() * 1e6;
    let task = middle(&|round| us(round.task));
    let wasmtime = middle(&|round| us(round.wasmtime));
    let process = middle(&|round| us(round.process));
    let over_bare = middle(&|round| us(round.task) / us(round.wasmtime));
    let under_process = middle(&|round| us(round.process) / us(round.task));
    println!("start → done of a no-op component, medians of {} rounds", rounds.len());
    println!("  through the registry         {task:>8.1} µs");
    println!("  bare wasmtime loop           {wasmtime:>8.1} µs   × {over_bare:.2} of it");
    println!("  spawn and await /bin/true    {process:>8.1} µs   {under_process:.1} times faster");
    let json = serde_json::json!({
        "noop_us": task,
        "bare_wasmtime_us": wasmtime,
        "process_us": process,
        "ratio_to_bare": over_bare,
        "times_faster_than_process": under_process,
    });
    let folder = std::env::current_exe()?
        .ancestors()
        .nth(3)
        .context("benchmarks run from a target folder")?
        .join("bench");
    std::fs::create_dir_all(&folder)?;
    std::fs::write(folder.join("start.json"), json.to_string() + "\n")?;
    Ok(())
}

/// The same component without Backlot: a store, an instance, `run`, `done`.
mod bare {
    use super::{EngineConfig, kind};
    use wasmtime::{
        Result, Store, UpdateDeadline,
        component::{Component, HasSelf, InstancePre, Linker, ResourceTable},
    };
    use wasmtime_wasi::{WasiCtx, WasiCtxView, WasiView};

    wasmtime::component::bindgen!({
        path: "../wit",
        world: "producer",
        exports: { default: async | store },
        require_store_data_send: true,
    });
    use self::{
        backlot::producer::{host, types},
        exports::backlot::producer::lifecycle,
    };

    pub(super) struct Bare {
        engine: wasmtime::Engine,
        pre: InstancePre<Guest>,
        lifecycle: lifecycle::GuestIndices,
    }

    struct Guest {
        wasi: WasiCtx,
        table: ResourceTable,
    }

    impl WasiView for Guest {
        fn ctx(&mut self) -> WasiCtxView<'_> {
            WasiCtxView { ctx: &mut self.wasi, table: &mut self.table }
        }
    }

    impl host::Host for Guest {
        fn stop_requested(&mut self) -> Option<Option<String>> {
            None
        }
        fn report(&mut self, _detail: String) {}
    }

    impl host::HostWithStore<Guest> for HasSelf<Guest> {
        async fn cancelled(_: &wasmtime::component::Accessor<Guest, Self>) -> Option<String> {
            std::future::pending().await
        }
    }

    impl Bare {
        pub(super) fn new(runtime: tokio::runtime::Handle) -> Result<Self> {
            let settings = EngineConfig::new(runtime).settings();
            let engine = wasmtime::Engine::new(&settings)?;
            let mut linker = Linker::new(&engine);
            wasmtime_wasi::p2::add_to_linker_async(&mut linker)?;
            wasmtime_wasi::p3::add_to_linker(&mut linker)?;
            host::add_to_linker::<Guest, HasSelf<Guest>>(&mut linker, |guest| guest)?;
            let component = Component::from_file(&engine, kind("noop"))?;
            let pre = linker.instantiate_pre(&component)?;
            let lifecycle = lifecycle::GuestIndices::new(&pre)?;
            Ok(Self { engine, pre, lifecycle })
        }

        pub(super) async fn once(&self) -> Result<()> {
            let guest = Guest { wasi: WasiCtx::builder().build(), table: ResourceTable::new() };
            let mut store = Store::new(&self.engine, guest);
            store.set_epoch_deadline(1);
            store.epoch_deadline_callback(|_| Ok(UpdateDeadline::Yield(1)));
            let instance = self.pre.instantiate_async(&mut store).await?;
            let guest = self.lifecycle.load(&mut store, &instance)?;
            let request = types::Request {
                task: "noop-1".to_owned(),
                label: "noop".to_owned(),
                input: String::new(),
                job: None,
                attempt: 1,
                step: 0,
                cause: types::Cause::Spawn,
                state: None,
                last_failure: None,
                answer: None,
            };
            let outcome = store
                .run_concurrent(async |accessor| {
                    guest.call_run(accessor, request).await?.map_err(|refusal| {
                        wasmtime::format_err!("the no-op was refused: {refusal:?}")
                    })?;
                    guest.call_done(accessor).await
                })
                .await??;
            match outcome.ending {
                types::Ending::Completed => Ok(()),
                _ => Err(wasmtime::format_err!("{outcome:?}")),
            }
        }
    }
}
