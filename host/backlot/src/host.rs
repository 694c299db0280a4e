//! The host: what an embedding program starts and what the commands run on.

use std::{io, num::NonZero, path::Path, sync::Arc, thread::available_parallelism};

use backlot_registry::{
    self as registry, Caps, Catalog as _, Environment, Kind, KindState, Registry, SystemClock,
};
use backlot_wasm::{
    self as wasm, Ask, Cache, Capacity, Component, ComponentCatalog, Engine, EngineConfig,
    EngineError, KindError, KindProducer, Plugins, Policy, Watch, Watching,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::{
    config::{Config, ConfigError, Reload},
    numbers::Numbers,
    policy::sources,
    render,
    spill::TempSpill,
    threads::Threads,
};

/// How much compiled code is kept, in bytes: some hundred kinds, or some twenty
/// interpreters.
pub(crate) const CACHE_BYTES: u64 = 2 << 30;

/// A registry of live tasks, an engine for components, and a runtime of their
/// own for guests.
///
/// Dropping it ends what still runs. [`Host::shutdown`] ends it in order.
pub struct Host {
    // The first to be dropped: nothing is loaded any more.
    watch: Option<Watch>,
    threads: Threads,
    registry: Registry,
    engine: Engine,
    plugins: Plugins,
    warnings: Vec<String>,
}

/// How a host is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// How the registry is doing: its tasks, waits, output and listeners.
    pub registry: registry::Health,
    /// Tasks of components that live now.
    pub tasks: usize,
    /// How many can, and why not more.
    pub capacity: Capacity,
    /// The linear memory that they have, in bytes. What they never touched of it
    /// takes no room on the machine.
    pub guest_memory: u64,
    /// Threads that have been in one file call of a guest for a second or more, as
    /// far as earlier looks tell. They are lost to the host until the call returns,
    /// also when its task has ended.
    pub stuck_threads: usize,
    /// What does not work as it should and keeps nothing from working, a line each.
    pub warnings: Vec<String>,
}

/// Why a host could not be started.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// The configuration is not usable.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The threads that guests run on could not be started.
    #[error("the threads that guests run on could not be started")]
    Threads(#[source] io::Error),
    /// The engine could not be set up.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The thread that watches the plugin folder could not be started.
    #[error("the thread that watches the plugin folder could not be started")]
    Watch(#[source] io::Error),
}

impl Host {
    /// Starts a host.
    ///
    /// # Errors
    ///
    /// When the configuration is not usable, or the machine does not give what
    /// it asks for.
    pub fn start(config: Config) -> Result<Self, HostError> {
        Self::start_counting(config, None)
    }

    /// Starts a host whose tasks are counted on from those of hosts before it.
    pub(crate) fn start_counting(
        config: Config,
        numbers: Option<Numbers>,
    ) -> Result<Self, HostError> {
        config.check()?;
        raise_open_files();
        let threads = Threads::start(config.threads).map_err(HostError::Threads)?;
        threads.survive_large_files().map_err(HostError::Threads)?;
        let mut engine = EngineConfig::new(threads.handle().clone());
        engine.profile = config.profile;
        engine.instances = config.instances;
        engine.compiler = config.compiler;
        if config.reload != Reload::Asked {
            // What is compiled while tasks run leaves them a core.
            let cores = available_parallelism().map_or(1, NonZero::get);
            engine.compile_threads = Some(cores.saturating_sub(1).max(1));
        }
        engine.resolver = config.resolver;
        let mut warnings = Vec::new();
        // Without a cache everything works, and takes longer.
        match config.cache.map(|folder| Cache::open(&folder, CACHE_BYTES)).transpose() {
            Ok(cache) => engine.cache = cache,
            Err(error) => warnings.push(render::chain(&error)),
        }
        if let Some(bytes) = config.guest_memory {
            engine.guest_memory = bytes;
        }
        let mut registry = config.registry;
        cap(&mut registry, &config.policy);
        let environment = Environment {
            clock: Arc::new(SystemClock),
            spill: Some(Arc::new(TempSpill { dir: config.spill })),
            runtime: threads.handle().clone(),
            first_number: match numbers {
                Some(numbers) => Arc::new(move |kind| numbers.first(kind)),
                None => Arc::new(|_| 1),
            },
        };
        let engine = Engine::new(engine)?;
        let catalog = ComponentCatalog::new(
            engine.clone(),
            Arc::new(SystemClock),
            config.policy.clone(),
            sources(&config.policy),
        );
        let plugins = Plugins::new(config.plugins, engine.clone(), catalog);
        let watch = match config.reload {
            Reload::Asked => None,
            Reload::Watch => Some(Watch::start(plugins.clone())),
            Reload::Poll => Some(Watch::start_polling(plugins.clone())),
        };
        Ok(Self {
            watch: watch.transpose().map_err(HostError::Watch)?,
            registry: Registry::new(registry, environment),
            engine,
            plugins,
            warnings,
            threads,
        })
    }

    /// Returns the registry of live tasks.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Returns what tasks may reach and use, by their kinds.
    pub fn policy(&self) -> &Policy {
        self.catalog().policy()
    }

    /// Returns the engine for components.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Returns the runtime that guests are driven on. A program that starts many
    /// short tasks does so from a task of this runtime, and saves the way between
    /// two.
    pub fn runtime(&self) -> tokio::runtime::Handle {
        self.threads.handle().clone()
    }

    /// Returns how the host is doing.
    pub fn health(&self) -> Health {
        let stuck_threads = self.threads.stuck();
        let stuck = (stuck_threads > 0).then(|| {
            format!("{stuck_threads} threads are stuck in file calls of guests, and lost meanwhile")
        });
        Health {
            registry: self.registry.health(),
            tasks: self.engine.instances(),
            capacity: self.engine.capacity(),
            guest_memory: self.engine.guest_memory(),
            stuck_threads,
            warnings: [self.warnings(), self.plugin_warnings()]
                .into_iter()
                .flatten()
                .chain(stuck)
                .collect(),
        }
    }

    /// Returns what of the host itself does not work as it should, a line each.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let cache = self.engine.cache().and_then(Cache::trouble);
        self.warnings.iter().cloned().chain(cache).collect()
    }

    /// Returns what is wrong with the plugin folder and what came from it, a line each.
    fn plugin_warnings(&self) -> Vec<String> {
        let watching = match self.watching() {
            Some(polling @ Watching::Polling { .. }) => Some(polling.to_string()),
            Some(Watching::Events) | None => None,
        };
        let strays = self.plugins.strays();
        let strays = strays.iter().map(|it| format!("{}: {}", it.path.display(), it.why));
        let kinds = self.catalog().kinds();
        let kinds = kinds.into_iter().filter_map(|view| {
            let why = view.trouble?;
            Some(match view.state {
                KindState::Serving => format!("{} was not replaced: {why}", view.kind),
                _ => format!("{} cannot be run: {why}", view.kind),
            })
        });
        self.plugins.trouble().into_iter().chain(watching).chain(kinds).chain(strays).collect()
    }

    /// Returns the kinds that are loaded.
    pub fn catalog(&self) -> &ComponentCatalog {
        self.plugins.catalog()
    }

    /// Returns the plugin folder and what comes from it.
    pub fn plugins(&self) -> &Plugins {
        &self.plugins
    }

    /// Returns how changes of the plugin folder are noticed, where it is watched.
    pub fn watching(&self) -> Option<Watching> {
        self.watch.as_ref().map(Watch::watching)
    }

    /// Loads a kind from the plugin folder, unless it is loaded as its file is now.
    ///
    /// # Errors
    ///
    /// When there is no such kind, its file cannot be run, or the kind was unloaded or
    /// drained; [`Plugins::load`] brings it back.
    pub async fn load_kind(&self, name: &str) -> Result<Component, KindError> {
        self.plugins.current(&Kind::new(name)?).await
    }

    /// Returns the producer of a kind of the plugin folder, which is loaded unless it is
    /// already. Tasks run the version that is current when they are started, with what
    /// the policy and the manifest give of what is asked for.
    ///
    /// # Errors
    ///
    /// As [`Host::load_kind`].
    pub async fn producer(&self, name: &str, ask: Ask) -> Result<KindProducer, KindError> {
        let kind = Kind::new(name)?;
        if self.catalog().current(&kind).is_none() {
            self.plugins.current(&kind).await?;
        }
        Ok(self.catalog().producer(kind, ask))
    }

    /// Loads a file that is named after its kind, as those of a plugin folder are, and
    /// leaves the catalogue as it is.
    ///
    /// # Errors
    ///
    /// When it is not named after its kind, or cannot be read or run.
    pub async fn load_kind_file(&self, path: &Path) -> Result<Component, KindError> {
        wasm::load_kind_file(&self.engine, path).await
    }

    /// Loads the component in a file, and leaves the catalogue as it is.
    ///
    /// # Errors
    ///
    /// When the file cannot be read or run.
    pub async fn load_file(&self, path: &Path) -> Result<Component, KindError> {
        wasm::load_file(&self.engine, path).await
    }

    /// Returns the kinds that the plugin folder has files for, in order.
    pub fn kinds(&self) -> Vec<Kind> {
        self.plugins.kinds()
    }

    /// Stops every task by the stop ladder and lets go of everything.
    pub async fn shutdown(self) {
        self.registry.dispose().await;
    }
}

/// Lowers the caps to those of the policy. Those of single kinds come with their terms.
fn cap(config: &mut registry::Config, policy: &Policy) {
    let least = |one: Option<usize>, other: Option<usize>| one.into_iter().chain(other).min();
    let caps = config.caps;
    config.caps = Caps {
        per_owner: least(caps.per_owner, policy.tasks_per_owner()),
        per_kind: least(caps.per_kind, policy.tasks_per_kind()),
        total: least(caps.total, policy.tasks()),
    };
}

/// Raises this process's limit on open files as far as it may. The limit that most
/// processes start with is low for the sake of programs that this is none of.
pub(crate) fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        // Where it cannot be raised, fewer tasks fit, and that is told.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_lowers_caps_and_raises_none() {
        let text = "[host]\ntasks = 9\n[defaults]\ntasks = 3";
        let policy = Policy::parse(text, "p.toml", Path::new("/")).unwrap();
        let capped = |per_kind, total| {
            let caps = Caps { per_owner: None, per_kind, total };
            let mut config = registry::Config { caps, ..registry::Config::default() };
            cap(&mut config, &policy);
            (config.caps.total, config.caps.per_kind)
        };
        assert_eq!(capped(None, None), (Some(9), Some(3)));
        assert_eq!(capped(Some(5), Some(2)), (Some(2), Some(3)));
        assert_eq!(capped(Some(1), Some(2)), (Some(2), Some(1)));
        let mut config = registry::Config::default();
        cap(&mut config, &Policy::default());
        assert_eq!(config.caps, Caps::default());
    }
}
