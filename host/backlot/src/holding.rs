//! This process as the host of a data folder: it runs the folder's jobs, and answers at
//! its socket.

use std::{io, os::unix::fs::PermissionsExt as _, path::PathBuf, sync::Arc, time::Duration};

use backlot_jobs::{HoldError, Job, JobId, Recovered};
use backlot_registry::{BoxFuture, Kind, SurfaceGuard};
use backlot_surface::{
    Api, Failure, HostSide, KindChange, Reason, mcp, serve,
    wire::{HostAbout, SpawnRequest},
};
use backlot_wasm::{DrainError, Plugins, RollbackError, chain};
use tokio::{
    net::UnixListener,
    sync::{Notify, oneshot},
    task::JoinHandle,
};

use crate::{
    config::Config,
    host::{Host, HostError},
    jobs::{Jobs, JobsConfig, JobsError},
    numbers::Numbers,
};

/// How long endings are waited for to be written once all runs have ended.
const WRITE: Duration = Duration::from_secs(10);
/// How long whoever is connected is waited for.
const PART: Duration = Duration::from_secs(1);

/// The host of a data folder, in this process. Dropping it ends what runs, and the next
/// host finds it interrupted; [`Holding::end`] ends it in order.
pub struct Holding {
    jobs: Arc<Jobs>,
    host: Host,
    recovered: Recovered,
    asked_to_end: Arc<Notify>,
    stop: Option<oneshot::Sender<()>>,
    server: JoinHandle<()>,
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
    /// The socket could not be made.
    #[error("the socket {}: {source}", .path.display())]
    Socket {
        /// Its path.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
}

impl HoldingError {
    /// Tells whether another host holds the folder.
    pub fn is_held(&self) -> bool {
        matches!(self, Self::Jobs(JobsError::Hold(HoldError::Held { .. })))
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
    pub async fn start(
        config: Config,
        jobs: JobsConfig,
        policy: Option<PathBuf>,
        name: &str,
    ) -> Result<Self, HoldingError> {
        let plugins = absolute(config.plugins.clone());
        // What does not fit into memory is as safe as the rest there, and as private.
        let spill = jobs.data.join("spill");
        let numbers = Numbers::new(jobs.data.join("numbers"));
        let host = Host::start_counting(Config { spill, ..config }, Some(numbers.clone()))?;
        let surface = host.registry().attach_surface(name);
        let (jobs, recovered) = Jobs::open_counting(&host, jobs, Some(numbers)).await?;
        let jobs = Arc::new(jobs);
        let listener = listen(&jobs)?;
        let about = HostAbout {
            pid: std::process::id(),
            program: concat!("backlot ", env!("CARGO_PKG_VERSION")).to_owned(),
            plugins: Some(plugins.display().to_string()),
            policy: policy.map(|policy| absolute(policy).display().to_string()),
            since_ms: jobs.manager().now_ms(),
        };
        let asked_to_end = Arc::new(Notify::new());
        let side = Side {
            jobs: jobs.clone(),
            plugins: host.plugins().clone(),
            asked_to_end: asked_to_end.clone(),
            about,
        };
        let api = Api {
            manager: jobs.manager().clone(),
            folder: jobs.folder().clone(),
            registry: host.registry().clone(),
            catalog: Arc::new(host.catalog().clone()),
            feed: jobs.feed().clone(),
            mcp: mcp::Options::default(),
            host: Arc::new(side),
        };
        let (stop, stopped) = oneshot::channel();
        let server = tokio::spawn(async move {
            let stopped = async {
                // Also when whoever could say so is gone.
                let _ = stopped.await;
            };
            serve(vec![listener.into()], api, stopped).await;
        });
        Ok(Self {
            jobs,
            host,
            recovered,
            asked_to_end,
            stop: Some(stop),
            server,
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

    /// Waits until somebody who is connected and may do so asks for the host's end.
    pub async fn asked_to_end(&self) {
        self.asked_to_end.notified().await;
    }

    /// Ends every run by the stop ladder, writes down how each has ended, and gives the
    /// folder free. Returns whether all was written.
    pub async fn end(mut self) -> bool {
        let written = self.jobs.shutdown(&self.host, WRITE).await;
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        let _ = tokio::time::timeout(PART, &mut self.server).await;
        self.server.abort();
        // Nobody finds what is not there any more.
        let _ = self.jobs.held().clear_socket();
        if let Err(error) = self.jobs.store().close().await {
            tracing::warn!("the store was not closed in order: {error}");
        }
        written
    }
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

/// What only the host can do for its surface.
struct Side {
    jobs: Arc<Jobs>,
    plugins: Plugins,
    asked_to_end: Arc<Notify>,
    about: HostAbout,
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

    fn shutdown(&self) {
        // Kept for whoever waits next, where nobody does yet.
        self.asked_to_end.notify_one();
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
}

impl Side {
    /// Refuses what was meant for another host.
    fn check(&self, request: &SpawnRequest) -> Result<(), Failure> {
        let Some(expects) = &request.expects else { return Ok(()) };
        let about = &self.about;
        let other = |what: &str, wanted: Option<&PathBuf>, found: Option<&String>| {
            let shown = |path: Option<String>| path.unwrap_or_else(|| "none".to_owned());
            let wanted = wanted.map(|path| path.display().to_string());
            if wanted.as_ref() == found {
                return Ok(());
            }
            Err(Failure::new(
                Reason::OtherHost,
                format!(
                    "process {} holds the data folder, and its {what} is {}, not {}",
                    about.pid,
                    shown(found.cloned()),
                    shown(wanted)
                ),
            ))
        };
        other("plugin folder", expects.plugins.as_ref(), about.plugins.as_ref())?;
        other("policy", expects.policy.as_ref(), about.policy.as_ref())
    }
}
