//! What one store holds: the state behind a guest's imports.

use std::sync::{Arc, atomic::AtomicU64};

use backlot_registry::{Channel, TaskHost};
use tokio::sync::Semaphore;
use wasmtime::{Store, UpdateDeadline, component::ResourceTable};
use wasmtime_wasi::{WasiCtx, WasiCtxBuilder, WasiCtxView, WasiView, p2::pipe::MemoryInputPipe};

use crate::{
    engine::{Engine, LiveStore},
    grant::OpenGrant,
    imports::{files::OpenFiles, http::Http, stdio::SpoolStream},
    limits::Limits,
    link::Link,
    meter::Meter,
};

/// The state behind one guest's imports.
pub(crate) struct Guest {
    pub(crate) wasi: WasiCtx,
    pub(crate) table: ResourceTable,
    pub(crate) http: Http,
    pub(crate) grant: OpenGrant,
    pub(crate) files: OpenFiles,
    /// Turns at looking up names: enough for a client that tries two families.
    pub(crate) lookups: Arc<Semaphore>,
    pub(crate) meter: Meter,
    /// Where the driver and the guest meet; absent where there is no task.
    pub(crate) link: Option<Arc<Link>>,
    _live: LiveStore,
}

/// What the guest's standard streams are connected to.
pub(crate) enum Stdio {
    /// Nothing: reads end, writes are discarded.
    None,
    /// What the guest prints is its log.
    Log(TaskHost),
    /// What the guest prints is its output.
    Output { host: TaskHost, stdin: bytes::Bytes },
}

/// What a store is made from.
pub(crate) struct Recipe<'a> {
    pub(crate) grant: &'a OpenGrant,
    pub(crate) limits: Limits,
    pub(crate) args: &'a [String],
    pub(crate) stdio: Stdio,
    pub(crate) link: Option<Arc<Link>>,
    pub(crate) peak: Arc<AtomicU64>,
    pub(crate) live: LiveStore,
}

impl Recipe<'_> {
    /// Makes the store. It yields to others on its thread at each tick.
    pub(crate) fn store(self, engine: &Engine) -> Store<Guest> {
        let mut wasi = WasiCtxBuilder::new();
        match self.stdio {
            Stdio::None => {}
            Stdio::Log(host) => {
                wasi.stdout(SpoolStream::new(host.log(), Channel::Out));
                wasi.stderr(SpoolStream::new(host.log(), Channel::Err));
            }
            Stdio::Output { host, stdin } => {
                wasi.stdin(MemoryInputPipe::new(stdin));
                wasi.stdout(SpoolStream::new(host.output(), Channel::Out));
                wasi.stderr(SpoolStream::new(host.output(), Channel::Err));
            }
        }
        wasi.args(self.args);
        for variable in self.grant.env() {
            wasi.env(&variable.name, &variable.value);
        }
        self.grant.net().apply(&mut wasi);
        // Random bytes are made on the guests' threads, without a pause.
        wasi.max_random_size(1 << 20);
        let mut table = ResourceTable::new();
        table.set_max_capacity(self.limits.host_objects);
        let guest = Guest {
            wasi: wasi.build(),
            table,
            http: Http::new(self.grant.net().clone()),
            grant: self.grant.clone(),
            files: OpenFiles::new(self.limits.open_files),
            lookups: Arc::new(Semaphore::new(2)),
            meter: Meter::new(self.limits, Arc::clone(engine.memory()), self.peak),
            link: self.link,
            _live: self.live,
        };
        let mut store = Store::new(engine.wasmtime(), guest);
        store.limiter(|guest| &mut guest.meter);
        store.set_hostcall_fuel(self.limits.host_call);
        // A guest's own handles; each costs the host some tens of bytes.
        store.set_max_component_handles(10 * self.limits.host_objects);
        store.set_epoch_deadline(1);
        store.epoch_deadline_callback(|_| Ok(UpdateDeadline::Yield(1)));
        store
    }
}

impl WasiView for Guest {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView { ctx: &mut self.wasi, table: &mut self.table }
    }
}
