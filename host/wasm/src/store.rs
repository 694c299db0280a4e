//! What one store holds: the state behind a guest's imports.

use std::sync::{Arc, atomic::AtomicU64};

use backlot_registry::{Channel, Stream, TaskHost};
use wasmtime::{Store, UpdateDeadline, component::ResourceTable};
use wasmtime_wasi::{WasiCtx, WasiCtxBuilder, WasiCtxView, WasiView, p2::pipe::MemoryInputPipe};

use crate::{
    engine::{Engine, LiveStore},
    grant::OpenGrant,
    imports::{files::OpenFiles, http::Http, sockets, stdio::SpoolStream},
    limits::Limits,
    link::Link,
    meter::Meter,
    network::Network,
    secret::Outlet,
    work_folder::{OpenWorkFolder, WorkFolder},
};

/// The state behind one guest's imports.
pub(crate) struct Guest {
    pub(crate) wasi: WasiCtx,
    pub(crate) table: ResourceTable,
    pub(crate) http: Http,
    /// The network as the guest may use it, and with it the grant.
    pub(crate) network: Arc<Network>,
    pub(crate) files: OpenFiles,
    pub(crate) work: Option<WorkFolder>,
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
    pub(crate) work: Option<OpenWorkFolder>,
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
        let secrets = self.link.as_ref().and_then(|link| link.secrets().cloned());
        let outlet = |host: &TaskHost, stream, channel| {
            SpoolStream::new(Outlet::new(host, secrets.as_deref(), stream, channel))
        };
        match self.stdio {
            Stdio::None => {}
            Stdio::Log(host) => {
                wasi.stdout(outlet(&host, Stream::Log, Channel::Out));
                wasi.stderr(outlet(&host, Stream::Log, Channel::Err));
            }
            Stdio::Output { host, stdin } => {
                wasi.stdin(MemoryInputPipe::new(stdin));
                wasi.stdout(outlet(&host, Stream::Output, Channel::Out));
                wasi.stderr(outlet(&host, Stream::Output, Channel::Err));
            }
        }
        wasi.args(self.args);
        self.grant.apply(&mut wasi);
        for (name, placeholder) in secrets.iter().flat_map(|secrets| secrets.variables()) {
            wasi.env(name, placeholder);
        }
        let denials = self.grant.denials(self.link.clone());
        let work = self.work.map(|open| WorkFolder::new(open, denials.clone()));
        let resolver = engine.resolver().clone();
        let network = Arc::new(Network::new(self.grant.clone(), resolver, denials));
        sockets::open(&network, &mut wasi);
        // Random bytes are made on the guests' threads, without a pause.
        wasi.max_random_size(1 << 20);
        let mut table = ResourceTable::new();
        table.set_max_capacity(self.limits.host_objects);
        let guest = Guest {
            wasi: wasi.build(),
            table,
            http: Http::new(Arc::clone(&network), secrets),
            network,
            files: OpenFiles::new(self.limits.open_files),
            work,
            meter: Meter::new(self.limits, Arc::clone(engine.memory()), self.peak),
            link: self.link,
            _live: self.live,
        };
        let mut store = Store::new(engine.wasmtime(), guest);
        store.limiter(|guest| &mut guest.meter);
        store.set_hostcall_fuel(self.limits.host_call);
        // A guest's own handles; each costs the host some tens of bytes.
        store.set_max_component_handles(self.limits.host_objects.saturating_mul(10));
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
