//! The versions of kinds that jobs run.
//!
//! All runs of an attempt are of one version of each kind. So a version that may have to
//! run again is kept in the data folder by its digest, whatever becomes of the plugin
//! folder, and of this process.

use std::{
    collections::{HashMap, HashSet},
    fs::{self, File},
    io::{self, Write as _},
    path::{Path, PathBuf},
    sync::Mutex,
    time::{Duration, SystemTime},
};

use backlot_jobs::{Job, JobId, LaunchError};
use backlot_registry::{Kind, Refusal};
use backlot_wasm::{Component, Engine, Manifest, Pinned, Plugins, chain, digest_of};

use super::lock;
use crate::host::Host;

/// The versions of kinds that jobs run, and those that are kept for them.
pub(super) struct Versions {
    engine: Engine,
    plugins: Plugins,
    folder: PathBuf,
    /// What the runs of live jobs run, with the code mapped.
    held: Mutex<HashMap<JobId, Vec<Pinned>>>,
    /// The last that was looked at for a job that does not run.
    looked_at: Mutex<Option<(String, Pinned)>>,
    /// The digests that are known to be kept.
    kept: Mutex<HashSet<String>>,
}

impl Versions {
    pub(super) fn new(host: &Host, folder: PathBuf) -> Self {
        Self {
            engine: host.engine().clone(),
            plugins: host.plugins().clone(),
            folder,
            held: Mutex::default(),
            looked_at: Mutex::default(),
            kept: Mutex::default(),
        }
    }

    pub(super) fn engine(&self) -> &Engine {
        &self.engine
    }

    pub(super) fn plugins(&self) -> &Plugins {
        &self.plugins
    }

    /// Returns the version that a run of that kind is to run: the one that runs of the
    /// attempt before it did, or else the newest.
    pub(super) async fn of(&self, job: &Job, kind: &Kind) -> Result<Pinned, LaunchError> {
        if let Some(pinned) = self.held(job.id, kind) {
            return Ok(pinned);
        }
        let pinned = match job.digest_for(kind) {
            Some(digest) => self.of_digest(kind, digest).await?,
            None => self.newest(kind).await?,
        };
        lock(&self.held).entry(job.id).or_default().push(pinned.clone());
        Ok(pinned)
    }

    /// Returns the version of a kind that a live job runs, if it has run one by now.
    pub(super) fn held(&self, job: JobId, kind: &Kind) -> Option<Pinned> {
        let held = lock(&self.held);
        let mut versions = held.get(&job)?.iter();
        versions.find(|pinned| pinned.component().description().kind == *kind).cloned()
    }

    /// Lets go of what a job has run.
    pub(super) fn release(&self, job: JobId) {
        let released = lock(&self.held).remove(&job);
        // Outside the lock: code may be unmapped with it.
        drop(released);
    }

    /// Returns the version of its own kind that a job's record names, where it is not run
    /// now.
    pub(super) async fn of_record(&self, job: &Job) -> Option<Pinned> {
        let digest = job.digest_for(&job.spec.kind)?;
        if let Some((last, pinned)) = &*lock(&self.looked_at)
            && last == digest
        {
            return Some(pinned.clone());
        }
        let pinned = self.of_digest(&job.spec.kind, digest).await.ok()?;
        *lock(&self.looked_at) = Some((digest.to_owned(), pinned.clone()));
        Some(pinned)
    }

    pub(super) async fn newest(&self, kind: &Kind) -> Result<Pinned, LaunchError> {
        let refused = |error: &dyn std::error::Error| LaunchError::Refused(chain(error));
        self.plugins.current(kind).await.map_err(|error| refused(&error))?;
        self.plugins.catalog().pinned(kind).map_err(|refusal| match refusal {
            Refusal::Unavailable(why) => LaunchError::Unavailable(why),
            other => LaunchError::Refused(other.to_string()),
        })
    }

    async fn of_digest(&self, kind: &Kind, digest: &str) -> Result<Pinned, LaunchError> {
        if let Ok(pinned) = self.plugins.catalog().pinned(kind)
            && *pinned.component().generation().digest == *digest
        {
            return Ok(pinned);
        }
        let (file, digest) = (self.file(digest), digest.to_owned());
        let read = move || read(&file, &digest);
        let read = tokio::task::spawn_blocking(read).await;
        let (bytes, manifest) = match read {
            Ok(read) => read?,
            Err(error) => return Err(LaunchError::Unavailable(error.to_string())),
        };
        // It was numbered by another host, or by this one for the folder that it came from.
        let component = Component::load(&self.engine, kind.as_str(), bytes, 0).await;
        let component = component.map_err(|error| LaunchError::Refused(chain(&error)))?;
        Ok(Pinned::new(component, manifest))
    }

    /// Keeps a version, so that it can be run whatever happens. Returns once it is on the
    /// disk.
    pub(super) async fn keep(&self, pinned: &Pinned) -> Result<(), LaunchError> {
        let digest = pinned.component().generation().digest.to_string();
        if lock(&self.kept).contains(&digest) {
            return Ok(());
        }
        let file = self.file(&digest);
        if !is_there(&file) {
            let bytes = pinned.component().bytes().await;
            let bytes = bytes.map_err(|error| LaunchError::Unavailable(chain(&error)))?;
            self.put(file, bytes, pinned.manifest().map(|it| it.text().to_owned())).await?;
        }
        lock(&self.kept).insert(digest);
        Ok(())
    }

    /// Keeps a component that was read from a file of its own.
    pub(super) async fn put(
        &self,
        file: PathBuf,
        bytes: Vec<u8>,
        manifest: Option<String>,
    ) -> Result<(), LaunchError> {
        let shown = file.display().to_string();
        let written = tokio::task::spawn_blocking(move || {
            if let Some(manifest) = manifest {
                write(&file.with_extension("toml"), manifest.as_bytes())?;
            }
            // The last, so that what is there is whole.
            write(&file, &bytes)
        });
        let written = written.await.unwrap_or_else(|error| Err(io::Error::other(error)));
        written
            .map_err(|error| LaunchError::Unavailable(format!("{shown} cannot be kept: {error}")))
    }

    /// Deletes the versions that are not named. Blocks.
    pub(super) fn sweep(&self, named: &HashSet<String>) {
        let Ok(entries) = fs::read_dir(&self.folder) else { return };
        for entry in entries.flatten() {
            let path = entry.path();
            let stem = path.file_stem().map(|stem| format!("sha256:{}", stem.display()));
            if stem.is_some_and(|digest| named.contains(&digest)) || !is_unused(&path) {
                continue;
            }
            if let Err(error) = fs::remove_file(&path) {
                tracing::warn!(path = %path.display(), "cannot be deleted: {error}");
            }
        }
    }

    /// Returns the file that has the version of a digest.
    pub(super) fn file(&self, digest: &str) -> PathBuf {
        let name = digest.strip_prefix("sha256:").unwrap_or(digest);
        self.folder.join(format!("{name}.wasm"))
    }
}

/// How long a version that nobody names is kept after it was asked for: far longer than it
/// takes until a job is written down that names it.
const UNNAMED: Duration = Duration::from_secs(60 * 60);

/// Tells whether a version is kept, which is then kept for a while longer.
pub(super) fn is_there(file: &Path) -> bool {
    File::options().write(true).open(file).is_ok_and(|file| {
        // What cannot be noted is deleted sooner, and the job that needs it says so.
        file.set_modified(SystemTime::now()).is_ok()
    })
}

fn is_unused(file: &Path) -> bool {
    let modified = file.metadata().and_then(|about| about.modified());
    modified.is_ok_and(|at| at.elapsed().is_ok_and(|age| age > UNNAMED))
}

/// Reads a version that was kept, if it is what it was.
fn read(file: &Path, digest: &str) -> Result<(Vec<u8>, Option<Manifest>), LaunchError> {
    let lost = |why: String| {
        LaunchError::Refused(format!(
            "the version {digest} that the job runs cannot be had from {}: {why}",
            file.display()
        ))
    };
    let bytes = fs::read(file).map_err(|error| lost(error.to_string()))?;
    if digest_of(&bytes) != digest {
        return Err(lost("it is damaged".to_owned()));
    }
    let beside = file.with_extension("toml");
    let manifest = match fs::read_to_string(&beside) {
        Ok(text) => {
            let source = beside.display().to_string();
            Some(Manifest::parse(&text, &source).map_err(|error| lost(error.to_string()))?)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(lost(error.to_string())),
    };
    Ok((bytes, manifest))
}

/// Writes a file whole before it has its name.
fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut file = tempfile::Builder::new().prefix(".new-").tempfile_in(folder)?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    File::open(folder)?.sync_all()
}
