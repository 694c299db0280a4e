//! This process as the host of a data folder: it runs the folder's jobs, and answers at
//! its socket.

use std::{
    io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use backlot_jobs::{DataFolder, HoldError, Job, JobId, Recovered};
use backlot_registry::{BoxFuture, Catalog as _, Kind, SurfaceGuard};
use backlot_surface::{
    Api, BindRefused, Door, Failure, Guard, HostGauges, HostSide, KindChange, ListenError, Reason,
    TlsError, TokenError, Tokens, Warning, listen_tcp, may_bind, mcp, tls_config,
    wire::{HostAbout, SpawnRequest},
};
use backlot_wasm::{DrainError, Engine, Plugins, RollbackError, chain};
use rustls::ServerConfig;
use tokio::{
    net::{TcpListener, UnixListener},
    sync::{Notify, oneshot},
    task::JoinHandle,
};

use crate::{
    config::Config,
    host::{Host, HostError},
    jobs::{Jobs, JobsConfig, JobsError},
    numbers::Numbers,
    service::Inherited,
    settings::Serve,
    webhooks::Webhooks,
};

/// How long endings are waited for to be written once all runs have ended.
const WRITE: Duration = Duration::from_secs(10);
/// How long whoever is connected is waited for: longer than the second in which models'
/// streams are answered before they end, so that they end and are not cut.
const PART: Duration = Duration::from_secs(3);

/// The host of a data folder, in this process. Dropping it ends what runs, and the next
/// host finds it interrupted; [`Holding::end`] ends it in order.
pub struct Holding {
    jobs: Arc<Jobs>,
    host: Arc<Host>,
    recovered: Recovered,
    about: HostAbout,
    api: Api,
    asked_to_end: Arc<Asked>,
    warnings: Vec<String>,
    token: Option<PathBuf>,
    /// Whether the socket in the data folder was made by this process.
    is_own_socket: bool,
    stop: Option<oneshot::Sender<()>>,
    server: JoinHandle<()>,
    webhooks: Option<Webhooks>,
    _surface: SurfaceGuard,
}

/// Why this process is not the host of a data folder.
#[derive(Debug, thiserror::Error)]
pub enum HoldingError {
    /// The host could not be started.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The folder or what is in it cannot be used, or another host holds it.
    #[error(transparent)]
    Jobs(#[from] JobsError),
    /// It may or can not listen there.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// What it was to prove its name with is no use.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The tokens cannot be used.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// It cannot be called so.
    #[error(transparent)]
    Name(#[from] Failure),
    /// A socket that was handed over cannot be used.
    #[error("a socket that the service manager made: {0}")]
    Inherited(#[from] io::Error),
    /// The socket could not be made.
    #[error("the socket {}: {source}", .path.display())]
    Socket {
        /// Its path.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
}

impl From<BindRefused> for HoldingError {
    fn from(refused: BindRefused) -> Self {
        Self::Listen(refused.into())
    }
}

impl HoldingError {
    /// Tells whether another host holds the folder.
    pub fn is_held(&self) -> bool {
        matches!(self, Self::Jobs(JobsError::Hold(HoldError::Held { .. })))
    }
}

/// How a process is set up as the host of a data folder.
#[derive(Debug)]
pub struct HoldingConfig {
    /// The host.
    pub host: Config,
    /// Its jobs, and the data folder.
    pub jobs: JobsConfig,
    /// The file that has the policy.
    pub policy: Option<PathBuf>,
    /// What it is, for whoever asks who shows its tasks.
    pub name: String,
    /// How it is shown to models.
    pub mcp: mcp::Options,
    /// Where it listens beside the socket in the data folder, and how it ends.
    pub serve: Serve,
    /// Sockets that others made for it.
    pub inherited: Inherited,
}

impl HoldingConfig {
    /// Returns the defaults for a data folder: a host that listens nowhere else.
    pub fn new(data: impl Into<PathBuf>, name: impl Into<String>) -> Self {
        Self {
            host: Config::default(),
            jobs: JobsConfig::new(data),
            policy: None,
            name: name.into(),
            mcp: mcp::Options::default(),
            serve: Serve { listen: Some(Vec::new()), ..Serve::default() },
            inherited: Inherited::default(),
        }
    }
}

impl Holding {
    /// Takes a data folder, recovers its jobs, and answers at its socket from then on.
    ///
    /// Must be called on a tokio runtime.
    ///
    /// # Errors
    ///
    /// [`HoldingError`], with nothing changed.
    pub async fn start(config: HoldingConfig) -> Result<Self, HoldingError> {
        let HoldingConfig { host, mut jobs, policy, name, mcp, serve, inherited } = config;
        let plugins = absolute(host.plugins.clone());
        // One that says nothing of tasks judges nothing.
        let policy = policy.filter(|_| host.policy.is_some());
        // What does not fit into memory is as safe as the rest there, and as private.
        let spill = jobs.data.join("spill");
        let numbers = Numbers::new(jobs.data.join("numbers"));
        let resolver = host.resolver.clone();
        let host = Host::start_counting(Config { spill, ..host }, Some(numbers.clone()))?;
        let host = Arc::new(host);
        let surface = host.registry().attach_surface(name);
        let webhooks = std::mem::take(&mut jobs.webhooks);
        // Who is there for a moment leaves calls to the next, who may be set up for them.
        let makes_calls = jobs.manager.starts_waiting;
        jobs.manager.has_webhook = webhooks.default.is_some();
        let held = Jobs::hold(&jobs)?;
        // Before any job can be started: where it may not listen there is no host, and what
        // was begun would be interrupted.
        let Listeners { mut doors, addresses, warnings, token } =
            Listeners::open(held.folder(), &serve, inherited.tcp).await?;
        let (jobs, recovered) = Jobs::open_held(&host, jobs, held, Some(numbers)).await?;
        let jobs = Arc::new(jobs);
        let (sockets, is_own_socket) = sockets(&jobs, inherited.unix)?;
        doors.extend(sockets.into_iter().map(Door::Unix));
        let about = HostAbout {
            pid: std::process::id(),
            program: concat!("backlot ", env!("CARGO_PKG_VERSION")).to_owned(),
            plugins: Some(plugins.display().to_string()),
            policy: policy.map(|policy| absolute(policy).display().to_string()),
            addresses,
            since_ms: jobs.manager().now_ms(),
        };
        let webhooks = makes_calls.then(|| {
            let (manager, folder) = (jobs.manager().clone(), jobs.folder().path().to_owned());
            Webhooks::start(manager, folder, webhooks, resolver)
        });
        let asked_to_end = Arc::new(Asked { drain: Mutex::new(serve.drain), ..Asked::default() });
        let side = Side {
            jobs: jobs.clone(),
            host: Arc::downgrade(&host),
            plugins: host.plugins().clone(),
            engine: host.engine().clone(),
            asked_to_end: asked_to_end.clone(),
            about: about.clone(),
            warnings: warnings.clone(),
            looks: AtomicBool::new(host.watching().is_some()),
        };
        let api = Api {
            manager: jobs.manager().clone(),
            folder: jobs.folder().clone(),
            registry: host.registry().clone(),
            catalog: Arc::new(host.catalog().clone()),
            feed: jobs.feed().clone(),
            metrics: jobs.metrics().clone(),
            mcp,
            claims: mcp::Claims::default(),
            host: Arc::new(side),
        };
        // It ends with the catalogue.
        tokio::spawn(jobs.metrics().clone().follow(host.catalog().changes()));
        let (stop, stopped) = oneshot::channel();
        let stopped = async {
            // Also when whoever could say so is gone.
            let _ = stopped.await;
        };
        let server = tokio::spawn(backlot_surface::serve(doors, api.clone(), stopped));
        Ok(Self {
            jobs,
            host,
            recovered,
            about,
            api,
            asked_to_end,
            warnings,
            token,
            is_own_socket,
            stop: Some(stop),
            server,
            webhooks,
            _surface: surface,
        })
    }

    /// Returns the jobs.
    pub fn jobs(&self) -> &Arc<Jobs> {
        &self.jobs
    }

    /// Returns the host.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// Returns what was found when it was started.
    pub fn recovered(&self) -> &Recovered {
        &self.recovered
    }

    /// Returns which host this is.
    pub fn about(&self) -> &HostAbout {
        &self.about
    }

    /// Returns what there is to say of where it listens, a line each.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Returns the file with the operator's token, where it listens at a port.
    pub fn token(&self) -> Option<&Path> {
        self.token.as_deref()
    }

    /// Returns what its surfaces are of.
    pub fn api(&self) -> &Api {
        &self.api
    }

    /// Waits until somebody who is connected and may do so asks for the host's end.
    pub async fn asked_to_end(&self) {
        self.asked_to_end.wait().await;
    }

    /// Returns what tells of that.
    pub(crate) fn asked(&self) -> Arc<Asked> {
        self.asked_to_end.clone()
    }

    /// Returns how long jobs that run may go on when the host ends: as long as whoever
    /// asked for its end has said, or else as it is set up.
    pub fn drain_time(&self) -> Duration {
        *lock(&self.asked_to_end.drain)
    }

    /// Begins nothing from now on, and waits until no job runs any more, or for that long.
    /// `tell` is told how many still do, at first and whenever that changes.
    pub async fn drain(&self, bound: Duration, mut tell: impl FnMut(u64)) {
        self.jobs.refuse();
        let drained = async {
            let mut told = None;
            loop {
                // Made before the look, so that no change falls between.
                let changed = self.jobs.changed();
                match self.jobs.census().await {
                    Ok(census) if census.working == 0 => return,
                    Ok(census) if told.replace(census.working) != Some(census.working) => {
                        tell(census.working);
                    }
                    Ok(_) => {}
                    // They have their time as well where they cannot be counted.
                    Err(error) => tracing::warn!("what runs cannot be counted: {error}"),
                }
                changed.await;
            }
        };
        let _ = tokio::time::timeout(bound, drained).await;
    }

    /// Ends every run by the stop ladder, writes down how each has ended, and gives the
    /// folder free. Returns whether all was written.
    pub async fn end(mut self) -> bool {
        // What is not told is left to the next host, as are the endings that follow now.
        if let Some(webhooks) = self.webhooks.take() {
            webhooks.end().await;
        }
        let written = self.jobs.shutdown(&self.host, WRITE).await;
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        let _ = tokio::time::timeout(PART, &mut self.server).await;
        self.server.abort();
        if self.is_own_socket {
            // Nobody finds what is not there any more.
            let _ = self.jobs.held().clear_socket();
        }
        if let Err(error) = self.jobs.store().close().await {
            tracing::warn!("the store was not closed in order: {error}");
        }
        written
    }
}

/// The ports where a host listens.
struct Listeners {
    doors: Vec<Door>,
    /// Their addresses, as URLs.
    addresses: Vec<String>,
    warnings: Vec<String>,
    /// The file with the operator's token, where one is asked for.
    token: Option<PathBuf>,
}

impl Listeners {
    async fn open(
        folder: &DataFolder,
        serve: &Serve,
        inherited: Vec<std::net::TcpListener>,
    ) -> Result<Self, HoldingError> {
        // First what may fail for what was said, then what leaves something behind.
        let tls = serve.tls.as_ref().map(|tls| tls_config(&tls.cert, &tls.key)).transpose()?;
        let (mut tcp, warnings) = bind(serve, tls.is_some()).await?;
        let mut warnings: Vec<String> = warnings.iter().map(ToString::to_string).collect();
        for listener in inherited {
            let address = listener.local_addr().and_then(|address| {
                listener.set_nonblocking(true)?;
                tcp.push(TcpListener::from_std(listener)?);
                Ok(address)
            });
            let warning = may_bind(address?, tls.is_some(), serve.allow_plain_http)?;
            warnings.extend(warning.map(|warning| warning.to_string()));
        }
        let mut listeners =
            Self { doors: Vec::new(), addresses: Vec::new(), warnings, token: None };
        if !tcp.is_empty() {
            listeners.add(tcp, folder, serve, tls.as_ref())?;
        }
        Ok(listeners)
    }

    /// Adds ports, where whoever asks needs a token.
    fn add(
        &mut self,
        ports: Vec<TcpListener>,
        folder: &DataFolder,
        serve: &Serve,
        tls: Option<&Arc<ServerConfig>>,
    ) -> Result<(), HoldingError> {
        let tokens = Tokens::open(folder)?;
        self.token = Some(tokens.ensure_operator()?);
        let guard = Guard::new(tokens).with_names(serve.hosts.iter().map(String::as_str))?;
        let scheme = if tls.is_some() { "https" } else { "http" };
        for listener in ports {
            self.addresses.push(format!("{scheme}://{}", listener.local_addr()?));
            self.doors.push(Door::Tcp { listener, tls: tls.cloned(), guard: guard.clone() });
        }
        Ok(())
    }
}

/// Makes the ports that somebody named, all or none of them.
async fn bind(
    serve: &Serve,
    has_tls: bool,
) -> Result<(Vec<TcpListener>, Vec<Warning>), ListenError> {
    let (mut listeners, mut warnings) = (Vec::new(), Vec::new());
    for address in serve.listen.iter().flatten() {
        let bound = listen_tcp(&address.to_string(), has_tls, serve.allow_plain_http).await?;
        listeners.extend(bound.listeners);
        warnings.extend(bound.warnings);
    }
    Ok((listeners, warnings))
}

/// Returns the sockets in the file system, that of the data folder among them, and whether
/// it was made for this.
fn sockets(
    jobs: &Jobs,
    inherited: Vec<std::os::unix::net::UnixListener>,
) -> Result<(Vec<UnixListener>, bool), HoldingError> {
    let socket = jobs.folder().socket();
    let mut is_own = true;
    let mut sockets = Vec::with_capacity(inherited.len() + 1);
    for listener in inherited {
        is_own &= listener.local_addr()?.as_pathname() != Some(&socket);
        listener.set_nonblocking(true)?;
        sockets.push(UnixListener::from_std(listener)?);
    }
    if is_own {
        sockets.push(listen(jobs)?);
    }
    Ok((sockets, is_own))
}

/// Makes the socket, for this user alone.
fn listen(jobs: &Jobs) -> Result<UnixListener, HoldingError> {
    let held = jobs.held();
    held.clear_socket().map_err(JobsError::from)?;
    let path = held.folder().socket_address();
    // Nobody else gets into the folder to connect before the mode is set.
    let listener = UnixListener::bind(&path).and_then(|listener| {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
        Ok(listener)
    });
    listener.map_err(|source| HoldingError::Socket { path: held.folder().socket(), source })
}

fn absolute(path: PathBuf) -> PathBuf {
    std::path::absolute(&path).unwrap_or(path)
}

/// Whether somebody has asked for the host's end.
#[derive(Default)]
pub(crate) struct Asked {
    notify: Notify,
    drain: Mutex<Duration>,
}

impl Asked {
    /// Waits until somebody has. One who waits hears of it.
    pub(crate) async fn wait(&self) {
        self.notify.notified().await;
    }
}

fn lock(drain: &Mutex<Duration>) -> MutexGuard<'_, Duration> {
    drain.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What only the host can do for its surface.
struct Side {
    jobs: Arc<Jobs>,
    /// It goes with whoever holds the folder, however long others hold on to this.
    host: Weak<Host>,
    plugins: Plugins,
    engine: Engine,
    asked_to_end: Arc<Asked>,
    about: HostAbout,
    /// What there is to say of where it listens.
    warnings: Vec<String>,
    /// Whether somebody looks at the plugin folder, or has.
    looks: AtomicBool,
}

impl HostSide for Side {
    fn spawn(&self, request: SpawnRequest) -> BoxFuture<'_, Result<Job, Failure>> {
        Box::pin(async move {
            self.check(&request)?;
            self.jobs.spawn(request).await
        })
    }

    fn reload(&self) -> BoxFuture<'_, Result<(), Failure>> {
        Box::pin(async move {
            let reloaded = self.plugins.reload().await;
            reloaded.map_err(|error| Failure::new(Reason::Io, chain(&error)))?;
            Ok(())
        })
    }

    fn kinds_are_known(&self) -> BoxFuture<'_, ()> {
        // A host that does not watch the folder knows the kinds that were started so far. It
        // looks once for whoever wants to know them all; what changes later is for `reload`.
        if !self.looks.swap(true, Ordering::Relaxed) {
            let plugins = self.plugins.clone();
            tokio::spawn(async move {
                if let Err(error) = plugins.reload().await {
                    tracing::warn!("the plugin folder was not looked at: {}", chain(&error));
                }
            });
        }
        Box::pin(self.plugins.known())
    }

    fn change_kind(&self, kind: Kind, change: KindChange) -> BoxFuture<'_, Result<(), Failure>> {
        Box::pin(async move {
            match change {
                KindChange::Load => {
                    let loaded = self.plugins.load(&kind).await;
                    loaded.map_err(|error| Failure::new(Reason::Refused, chain(&error)))?;
                }
                KindChange::Drain => {
                    let drained = self.plugins.drain(&kind).await;
                    drained.map_err(|error| {
                        let reason = match &error {
                            DrainError::UnknownKind(_) => Reason::UnknownKind,
                            DrainError::Reopened(_) => Reason::Changed,
                        };
                        Failure::new(reason, error.to_string())
                    })?;
                }
                KindChange::Unload => {
                    let unloaded = self.plugins.unload(&kind).await;
                    unloaded
                        .map_err(|error| Failure::new(Reason::UnknownKind, error.to_string()))?;
                }
                KindChange::Rollback(number) => {
                    let went_back = self.plugins.rollback(&kind, number).await;
                    went_back.map_err(|error| {
                        let reason = match &error {
                            RollbackError::UnknownKind(_) => Reason::UnknownKind,
                            RollbackError::NoneKept { .. }
                            | RollbackError::NotKept { .. }
                            | RollbackError::Load { .. } => Reason::Refused,
                        };
                        Failure::new(reason, error.to_string())
                    })?;
                }
            }
            Ok(())
        })
    }

    fn shutdown(&self, drain: Option<Duration>) -> Duration {
        let bound = {
            let mut bound = lock(&self.asked_to_end.drain);
            *bound = drain.unwrap_or(*bound);
            *bound
        };
        // Kept for whoever waits next, where nobody does yet.
        self.asked_to_end.notify.notify_one();
        bound
    }

    fn warnings(&self) -> Vec<String> {
        let of_host = self.host.upgrade().map(|host| host.health().warnings);
        self.warnings.iter().cloned().chain(of_host.into_iter().flatten()).collect()
    }

    fn backup(&self, to: PathBuf) -> BoxFuture<'_, Result<(), Failure>> {
        Box::pin(async move { Ok(self.jobs.store().backup_to(&to).await?) })
    }

    fn recorded(&self, job: JobId) -> Arc<Notify> {
        self.jobs.recorded(job)
    }

    fn about(&self) -> HostAbout {
        self.about.clone()
    }

    fn gauges(&self) -> HostGauges {
        HostGauges {
            task_capacity: self.engine.capacity().tasks.into(),
            tasks: self.engine.instances() as u64,
            guest_memory: self.engine.guest_memory(),
        }
    }
}

impl Side {
    /// Refuses what was meant for another host.
    fn check(&self, request: &SpawnRequest) -> Result<(), Failure> {
        let Some(expects) = &request.expects else { return Ok(()) };
        let about = &self.about;
        let other = |what: &str, wanted: Option<&PathBuf>, found: Option<&String>| {
            // Whoever names none takes the host's.
            let Some(wanted) = wanted.map(|path| path.display().to_string()) else {
                return Ok(());
            };
            if Some(&wanted) == found {
                return Ok(());
            }
            let found = found.map_or("none", String::as_str);
            Err(Failure::new(
                Reason::OtherHost,
                format!(
                    "process {} holds the data folder, and its {what} is {found}, not {wanted}",
                    about.pid,
                ),
            ))
        };
        other("plugin folder", expects.plugins.as_ref(), about.plugins.as_ref())?;
        other("policy", expects.policy.as_ref(), about.policy.as_ref())
    }
}
