//! The host: what an embedding program starts and what the commands run on.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use backlot_registry::{self as registry, Environment, InvalidKind, Kind, Registry, SystemClock};
use backlot_wasm::{
    Cache, Capacity, Component, Engine, EngineConfig, EngineError, FileStamp, LoadError,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::fs::File;

use crate::{
    config::{Config, ConfigError},
    render,
    spill::TempSpill,
    threads::Threads,
};

/// The largest component that is read, in bytes. Interpreters with their
/// standard libraries are around 20 to 40 MB.
const COMPONENT_BYTES: u64 = 128 << 20;

/// How much compiled code is kept, in bytes: some hundred kinds, or some twenty
/// interpreters.
pub(crate) const CACHE_BYTES: u64 = 2 << 30;

/// A registry of live tasks, an engine for components, and a runtime of their
/// own for guests.
///
/// Dropping it ends what still runs. [`Host::shutdown`] ends it in order.
pub struct Host {
    // The first to be dropped.
    threads: Threads,
    registry: Registry,
    engine: Engine,
    plugins: PathBuf,
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
}

/// Why a kind or a component file could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum KindError {
    /// The name is not one that a kind can have.
    #[error(transparent)]
    Name(#[from] InvalidKind),
    /// There is no such kind.
    #[error("there is no kind `{kind}` in {}; {}", folder.display(), known(.kinds))]
    Unknown {
        /// The kind that was asked for.
        kind: Kind,
        /// The folder that was looked into.
        folder: PathBuf,
        /// The kinds that are there.
        kinds: Vec<Kind>,
    },
    /// There is no plugin folder.
    #[error(
        "there is no kind `{kind}`: the plugin folder {} is missing; build the kinds with \
         `just plugins`, or name another folder with --plugins",
        folder.display()
    )]
    NoFolder {
        /// The kind that was asked for.
        kind: Kind,
        /// The folder that is not there.
        folder: PathBuf,
    },
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The file cannot be a kind by its name.
    #[error("{}: {source}", path.display())]
    FileName {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: InvalidKind,
    },
    /// The file is larger than any component that is run.
    #[error("{} is larger than a component can be, which is {limit} bytes", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The size of the largest component that is run, in bytes.
        limit: u64,
    },
    /// The file is not a component that this host can run.
    #[error("{}: {source}", path.display())]
    Load {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: LoadError,
    },
    /// The file describes itself as another kind than its name says.
    #[error("{} describes itself as `{found}`; rename it to {found}.wasm", path.display())]
    OtherKind {
        /// The file.
        path: PathBuf,
        /// What it describes itself as.
        found: Kind,
    },
}

impl Host {
    /// Starts a host.
    ///
    /// # Errors
    ///
    /// When the configuration is not usable, or the machine does not give what
    /// it asks for.
    pub fn start(config: Config) -> Result<Self, HostError> {
        config.check()?;
        raise_open_files();
        let threads = Threads::start(config.threads).map_err(HostError::Threads)?;
        threads.survive_large_files().map_err(HostError::Threads)?;
        let mut engine = EngineConfig::new(threads.handle().clone());
        engine.profile = config.profile;
        engine.instances = config.instances;
        engine.compiler = config.compiler;
        let mut warnings = Vec::new();
        // Without a cache everything works, and takes longer.
        match config.cache.map(|folder| Cache::open(&folder, CACHE_BYTES)).transpose() {
            Ok(cache) => engine.cache = cache,
            Err(error) => warnings.push(render::chain(&error)),
        }
        if let Some(bytes) = config.guest_memory {
            engine.guest_memory = bytes;
        }
        let environment = Environment {
            clock: Arc::new(SystemClock),
            spill: Some(Arc::new(TempSpill { dir: config.spill })),
            runtime: threads.handle().clone(),
            first_number: Arc::new(|_| 1),
        };
        Ok(Self {
            registry: Registry::new(config.registry, environment),
            engine: Engine::new(engine)?,
            plugins: config.plugins,
            warnings,
            threads,
        })
    }

    /// Returns the registry of live tasks.
    pub fn registry(&self) -> &Registry {
        &self.registry
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
        let cache = self.engine.cache().and_then(Cache::trouble);
        Health {
            registry: self.registry.health(),
            tasks: self.engine.instances(),
            capacity: self.engine.capacity(),
            guest_memory: self.engine.guest_memory(),
            stuck_threads,
            warnings: self.warnings.iter().cloned().chain(cache).chain(stuck).collect(),
        }
    }

    /// Loads a kind from the plugin folder.
    ///
    /// # Errors
    ///
    /// When there is no such kind, or its file cannot be run.
    pub async fn load_kind(&self, name: &str) -> Result<Component, KindError> {
        let kind = Kind::new(name)?;
        // A kind is letters, digits and hyphens, so it cannot leave the folder.
        let path = self.plugins.join(format!("{kind}.wasm"));
        // A link to nothing is a file that cannot be read, and is told so.
        match tokio::fs::symlink_metadata(&path).await {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let folder = self.plugins.clone();
                return Err(match folder.exists() {
                    true => KindError::Unknown { kind, folder, kinds: self.kinds() },
                    false => KindError::NoFolder { kind, folder },
                });
            }
            _ => {}
        }
        self.load_kind_file(&path).await
    }

    /// Loads a file of a plugin folder, whose name is that of its kind.
    ///
    /// # Errors
    ///
    /// When it is not named after its kind, or cannot be read or run.
    pub async fn load_kind_file(&self, path: &Path) -> Result<Component, KindError> {
        let kind = kind_of(path)
            .map_err(|source| KindError::FileName { path: path.to_owned(), source })?;
        let component = self.load_file(path).await?;
        match &component.description().kind {
            found if *found == kind => Ok(component),
            found => Err(KindError::OtherKind { path: path.to_owned(), found: found.clone() }),
        }
    }

    /// Loads the component in a file.
    ///
    /// # Errors
    ///
    /// When the file cannot be read or run.
    pub async fn load_file(&self, path: &Path) -> Result<Component, KindError> {
        let (file, stamp) = open(path, COMPONENT_BYTES).await?;
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        let loaded = match Component::recall(&self.engine, &name, stamp, 1).await {
            Some(loaded) => loaded,
            None => {
                let bytes = read(path, file, COMPONENT_BYTES).await?;
                Component::load_read(&self.engine, &name, bytes, stamp, 1).await
            }
        };
        loaded.map_err(|source| KindError::Load { path: path.to_owned(), source })
    }

    /// Returns the kinds that the plugin folder has files for, in order.
    pub fn kinds(&self) -> Vec<Kind> {
        let files = kind_files(&self.plugins).unwrap_or_default();
        files.iter().filter_map(|path| kind_of(path).ok()).collect()
    }

    /// Stops every task by the stop ladder and lets go of everything.
    pub async fn shutdown(self) {
        self.registry.dispose().await;
    }
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

/// Returns the files of a plugin folder that are meant to be kinds, in order.
pub(crate) fn kind_files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let name = entry?.file_name();
        if name.as_encoded_bytes().ends_with(b".wasm") {
            files.push(name);
        }
    }
    // In the order of their kinds, which the ending would change.
    files.sort_by(|one, other| Path::new(one).file_stem().cmp(&Path::new(other).file_stem()));
    Ok(files.into_iter().map(|name| folder.join(name)).collect())
}

/// Returns the kind that a file of a plugin folder is named after.
pub(crate) fn kind_of(path: &Path) -> Result<Kind, InvalidKind> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    Kind::new(name.strip_suffix(".wasm").unwrap_or(&name))
}

/// Opens a component file. A path can name anything, and what it names can change
/// at any time, so only what was opened is looked at.
async fn open(path: &Path, limit: u64) -> Result<(File, FileStamp), KindError> {
    let fail = |source| KindError::Read { path: path.to_owned(), source };
    // Opening a pipe would wait for its writer.
    let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let opened = File::options().read(true).custom_flags(flags).open(path).await;
    let file = match opened {
        Err(error) if error.kind() == io::ErrorKind::NotFound && path.is_symlink() => {
            return Err(fail(io::Error::new(error.kind(), "it is a link to nothing")));
        }
        opened => opened.map_err(fail)?,
    };
    let about = file.metadata().await.map_err(fail)?;
    if about.is_dir() {
        return Err(fail(io::Error::other("it is a folder")));
    }
    if !about.is_file() {
        return Err(fail(io::Error::other("it is not a regular file")));
    }
    if about.len() > limit {
        return Err(KindError::TooLarge { path: path.to_owned(), limit });
    }
    Ok((file, FileStamp::from(&about)))
}

/// Reads a component file, bounded.
async fn read(path: &Path, file: File, limit: u64) -> Result<Vec<u8>, KindError> {
    use tokio::io::AsyncReadExt as _;
    let mut bytes = Vec::new();
    // One byte more than the limit tells that there is more by now.
    file.take(limit + 1)
        .read_to_end(&mut bytes)
        .await
        .map_err(|source| KindError::Read { path: path.to_owned(), source })?;
    match bytes.len() as u64 > limit {
        true => Err(KindError::TooLarge { path: path.to_owned(), limit }),
        false => Ok(bytes),
    }
}

fn known(kinds: &[Kind]) -> String {
    match kinds {
        [] => "it has no kinds; build them with `just plugins`, or name a folder with --plugins"
            .to_owned(),
        kinds => {
            let names: Vec<&str> = kinds.iter().map(Kind::as_str).collect();
            format!("it has {}", names.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_file_is_read_up_to_the_limit_whatever_size_it_claims() {
        let read = async |path: &Path, limit| {
            let (file, _) = open(path, limit).await?;
            read(path, file, limit).await
        };
        let mut file = tempfile::NamedTempFile::new().unwrap();
        io::Write::write_all(&mut file, b"12345").unwrap();
        assert_eq!(read(file.path(), 5).await.unwrap(), b"12345");
        assert!(matches!(read(file.path(), 4).await, Err(KindError::TooLarge { limit: 4, .. })));
        // It has more than the size that it tells, which is 0.
        let growing = Path::new("/proc/self/status");
        assert!(matches!(read(growing, 4).await, Err(KindError::TooLarge { .. })));
    }
}
