//! The files that kinds are loaded from.
//!
//! A path can name anything, and what it names can change at any time. So a file is
//! opened once, only what was opened is looked at, and the bytes that were read are
//! the bytes that run.

use std::{
    fs::{self, File},
    io::{self, Read as _},
    os::unix::fs::{FileExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use backlot_registry::{InvalidKind, Kind};

use crate::{
    cache::{FileStamp, digest_of},
    component::{Component, LoadError},
    engine::Engine,
    policy::{Denial, Manifest, PolicyError},
    process::{JobError, on_a_thread},
};

/// The largest component that is read, in bytes. Interpreters with their
/// standard libraries are around 20 to 40 MB.
const COMPONENT_BYTES: u64 = 128 << 20;
/// The largest manifest that is read, in bytes; one that is right is smaller.
const MANIFEST_BYTES: u64 = 1 << 20;
/// How the names of component files end.
const ENDING: &str = ".wasm";

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
    /// The file is being changed.
    #[error("{} is being written", path.display())]
    BeingWritten {
        /// The file.
        path: PathBuf,
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
    /// The manifest beside the file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    ReadManifest {
        /// The manifest.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The manifest beside the file is wrong.
    #[error(transparent)]
    Manifest(#[from] PolicyError),
    /// The policy does not let the component be of the kind.
    #[error(transparent)]
    NotAdmitted(#[from] Denial),
    /// The kind was unloaded or drained, and is left alone until it is loaded.
    #[error("{0} takes no tasks: it was unloaded or drained, and has to be loaded again")]
    Held(Kind),
    /// The process has no room to look at a file.
    #[error("nothing can be loaded now: {0}")]
    Unable(String),
}

impl KindError {
    /// Says that a kind is not in a plugin folder. Blocks.
    pub fn missing(folder: &Path, kind: Kind) -> Self {
        let (files, folder) = (kind_files(folder).unwrap_or_default(), folder.to_owned());
        let kinds = files.iter().filter_map(|file| kind_of(file).ok()).collect();
        match folder.exists() {
            true => Self::Unknown { kind, folder, kinds },
            false => Self::NoFolder { kind, folder },
        }
    }
}

impl From<JobError> for KindError {
    fn from(error: JobError) -> Self {
        let (JobError::Impossible(why) | JobError::TooCostly(why) | JobError::Broken(why)) = error;
        Self::Unable(why)
    }
}

/// A component file that was opened, as it was then.
#[derive(Debug)]
pub(crate) struct Opened {
    path: PathBuf,
    file: Arc<File>,
    pub(crate) stamp: FileStamp,
}

impl Opened {
    /// Opens a component file. Blocks.
    pub(crate) fn at(path: &Path) -> Result<Self, KindError> {
        let fail = |source| KindError::Read { path: path.to_owned(), source };
        // Opening a pipe would wait for its writer.
        let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
        let file = match File::options().read(true).custom_flags(flags).open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && path.is_symlink() => {
                return Err(fail(io::Error::new(error.kind(), "it is a link to nothing")));
            }
            opened => opened.map_err(fail)?,
        };
        let about = file.metadata().map_err(fail)?;
        if about.is_dir() {
            return Err(fail(io::Error::other("it is a folder")));
        }
        if !about.is_file() {
            return Err(fail(io::Error::other("it is not a regular file")));
        }
        if about.len() > COMPONENT_BYTES {
            return Err(KindError::TooLarge { path: path.to_owned(), limit: COMPONENT_BYTES });
        }
        let stamp = FileStamp::from(&about);
        Ok(Self { path: path.to_owned(), file: Arc::new(file), stamp })
    }

    /// Reads all of it, if it stays as it is meanwhile. Blocks.
    fn read(self) -> Result<Vec<u8>, KindError> {
        let Self { path, file, stamp } = self;
        let bytes = bounded(&path, &file, COMPONENT_BYTES)?;
        match file.metadata() {
            Ok(about) if FileStamp::from(&about) == stamp => Ok(bytes),
            Ok(_) => Err(KindError::BeingWritten { path }),
            Err(source) => Err(KindError::Read { path, source }),
        }
    }

    /// Loads the component that it holds as this version of its kind.
    pub(crate) async fn load(self, engine: &Engine, number: u64) -> Result<Component, KindError> {
        let (path, stamp, file) = (self.path.clone(), self.stamp, Arc::clone(&self.file));
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let loaded = match Component::recall(engine, &name, stamp, number).await {
            Some(loaded) => loaded,
            None => {
                let _turn = engine.read_turn().await;
                let bytes = on_a_thread(|| self.read()).await?;
                Component::load_read(engine, &name, bytes, stamp, number).await
            }
        };
        // Kept open, so that what runs can be had as it is when its name is another's.
        loaded
            .map(|component| component.read_from(file))
            .map_err(|source| KindError::Load { path, source })
    }
}

/// Loads the component in a file, whatever it is called.
///
/// # Errors
///
/// When the file cannot be read or run.
pub async fn load_file(engine: &Engine, path: &Path) -> Result<Component, KindError> {
    let owned = path.to_owned();
    on_a_thread(move || Opened::at(&owned)).await?.load(engine, 1).await
}

/// Loads the component in a file that is named after its kind.
///
/// # Errors
///
/// When it is not, or the file cannot be read or run.
pub async fn load_kind_file(engine: &Engine, path: &Path) -> Result<Component, KindError> {
    let kind =
        kind_of(path).map_err(|source| KindError::FileName { path: path.to_owned(), source })?;
    named(load_file(engine, path).await?, &kind, path)
}

/// Returns the component, if it is of that kind.
pub(crate) fn named(
    component: Component,
    kind: &Kind,
    path: &Path,
) -> Result<Component, KindError> {
    match &component.description().kind {
        found if found == kind => Ok(component),
        found => Err(KindError::OtherKind { path: path.to_owned(), found: found.clone() }),
    }
}

/// A component that can be run, with what it was read from.
#[derive(Debug)]
pub struct Checked {
    /// The component.
    pub component: Component,
    /// What its file held.
    pub bytes: Vec<u8>,
    /// What the manifest beside it held, if there is one.
    pub manifest: Option<String>,
}

/// Loads the component in a file and what it asks for, and keeps what was read: to be
/// put elsewhere as it was checked. A program is called `name`, or else by its file.
///
/// # Errors
///
/// When the file or the manifest beside it cannot be read, or is wrong.
pub async fn load_checked(
    engine: &Engine,
    path: &Path,
    name: Option<&Kind>,
) -> Result<Checked, KindError> {
    let owned = path.to_owned();
    let read = move || {
        let manifest = manifest_text(&owned)?;
        Ok::<_, KindError>((Opened::at(&owned)?.read()?, manifest))
    };
    let (bytes, manifest) = on_a_thread(read).await?;
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let name = name.map_or(&*stem, Kind::as_str);
    let component = Component::load(engine, name, bytes.clone(), 1)
        .await
        .map_err(|source| KindError::Load { path: path.to_owned(), source })?;
    Ok(Checked { component, bytes, manifest: manifest.map(|(text, _)| text) })
}

/// Why what a component was loaded from cannot be had again.
#[derive(Debug, thiserror::Error)]
pub enum BytesError {
    /// It was loaded from memory, and whoever did that has it.
    #[error("{0} was not loaded from a file")]
    NoFile(Kind),
    /// Its file cannot be read any more.
    #[error("the file that {kind} was loaded from cannot be read: {source}")]
    Read {
        /// The kind.
        kind: Kind,
        /// Why not.
        source: io::Error,
    },
    /// Its file was written over.
    #[error(
        "the file that {kind} was loaded from holds something else by now, wanted {digest}; load \
         the kind again, and put the next version in the place of this one instead of writing \
         over it"
    )]
    Changed {
        /// The kind.
        kind: Kind,
        /// What was loaded.
        digest: Arc<str>,
    },
    /// The process has no room to look at a file.
    #[error("nothing can be read now: {0}")]
    Unable(String),
}

impl From<JobError> for BytesError {
    fn from(error: JobError) -> Self {
        let (JobError::Impossible(why) | JobError::TooCostly(why) | JobError::Broken(why)) = error;
        Self::Unable(why)
    }
}

impl Component {
    /// Returns the bytes that the component was loaded from, to be kept where they can
    /// be loaded from again: with [`Component::load`], whatever the plugin folder has by
    /// then. It does not matter what has the name of its file by now.
    ///
    /// # Errors
    ///
    /// When it was loaded from no file, or that was written over.
    pub async fn bytes(&self) -> Result<Vec<u8>, BytesError> {
        let kind = self.description().kind.clone();
        let Some(file) = self.file().map(Arc::clone) else { return Err(BytesError::NoFile(kind)) };
        let digest = Arc::clone(&self.generation().digest);
        let _turn = self.0.engine.read_turn().await;
        on_a_thread(move || match from_start(&file, COMPONENT_BYTES) {
            Ok(bytes) if digest_of(&bytes) == *digest => Ok(bytes),
            Ok(_) => Err(BytesError::Changed { kind, digest }),
            Err(source) => Err(BytesError::Read { kind, source }),
        })
        .await
    }
}

/// Reads a file from its start up to a limit, wherever others have read to.
fn from_start(file: &File, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(file.metadata()?.len().min(limit)).unwrap_or_default()];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

/// Returns the files of a plugin folder that are meant to be kinds, in order. Hidden
/// ones are not: editors and copies in the making put those there.
///
/// # Errors
///
/// When the folder cannot be listed.
pub fn kind_files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name();
        let bytes = name.as_encoded_bytes();
        if bytes.ends_with(ENDING.as_bytes()) && !bytes.starts_with(b".") {
            files.push(name);
        }
    }
    // In the order of their kinds, which the ending would change.
    files.sort_by(|one, other| Path::new(one).file_stem().cmp(&Path::new(other).file_stem()));
    Ok(files.into_iter().map(|name| folder.join(name)).collect())
}

/// Returns the kind that a file of a plugin folder is named after.
///
/// # Errors
///
/// When no kind can have that name.
pub fn kind_of(path: &Path) -> Result<Kind, InvalidKind> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    Kind::new(name.strip_suffix(ENDING).unwrap_or(&name))
}

/// Returns the file of a kind in a plugin folder. A kind is letters, digits and
/// hyphens, so it cannot leave the folder.
pub fn path_of_kind(folder: &Path, kind: &Kind) -> PathBuf {
    folder.join(format!("{kind}{ENDING}"))
}

/// Reads the manifest beside a component file, `grep.toml` beside `grep.wasm`, if there
/// is one. Blocks.
///
/// # Errors
///
/// When there is one that cannot be read or is wrong.
pub fn manifest_beside(component: &Path) -> Result<Option<Manifest>, KindError> {
    Ok(manifest_text(component)?.map(|(_, manifest)| manifest))
}

fn manifest_text(component: &Path) -> Result<Option<(String, Manifest)>, KindError> {
    let path = component.with_extension("toml");
    match small_text(&path, MANIFEST_BYTES) {
        Ok(text) => {
            let manifest = Manifest::parse(&text, &path.display().to_string())?;
            Ok(Some((text, manifest)))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound && !path.is_symlink() => Ok(None),
        Err(source) => Err(KindError::ReadManifest { path, source }),
    }
}

/// Reads a regular file that is text, up to a limit in bytes. Blocks.
///
/// # Errors
///
/// When it is none, or larger than that.
pub fn small_text(path: &Path, most: u64) -> io::Result<String> {
    // Opening a pipe would wait for its writer.
    let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    let about = file.metadata()?;
    if !about.is_file() {
        let what = if about.is_dir() { "it is a folder" } else { "it is not a regular file" };
        return Err(io::Error::other(what));
    }
    let mut bytes = Vec::new();
    // One byte more than the limit tells that there is more.
    file.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(io::Error::other(format!("it has more than {most} bytes")));
    }
    String::from_utf8(bytes).map_err(|_| io::Error::other("it is not UTF-8 text"))
}

/// Reads a file up to a limit, whatever size it claims to have.
fn bounded(path: &Path, file: &File, limit: u64) -> Result<Vec<u8>, KindError> {
    let mut bytes = Vec::new();
    // One byte more than the limit tells that there is more by now.
    file.take(limit + 1)
        .read_to_end(&mut bytes)
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
    use std::io::Write as _;

    use super::*;

    #[test]
    fn a_file_is_read_up_to_the_limit_whatever_size_it_claims() {
        let read = |path: &Path, limit| {
            let file = File::open(path).unwrap();
            bounded(path, &file, limit)
        };
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"12345").unwrap();
        assert_eq!(read(file.path(), 5).unwrap(), b"12345");
        assert!(matches!(read(file.path(), 4), Err(KindError::TooLarge { limit: 4, .. })));
        // It has more than the size that it tells, which is 0.
        let growing = Path::new("/proc/self/status");
        assert!(matches!(read(growing, 4), Err(KindError::TooLarge { .. })));
    }

    #[test]
    fn a_file_that_changes_while_it_is_read_is_not_taken() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"12345").unwrap();
        let opened = Opened::at(file.path()).unwrap();
        file.write_all(b"6").unwrap();
        assert!(matches!(opened.read(), Err(KindError::BeingWritten { .. })));
        assert_eq!(Opened::at(file.path()).unwrap().read().unwrap(), b"123456");
    }

    #[test]
    fn drafts_and_other_files_are_no_kinds() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["b.wasm", "a-b.wasm", ".a.wasm", "a.wasm~", "a.wasm.tmp", "4913", "Bad.wasm"] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        let files = kind_files(folder.path()).unwrap();
        let names: Vec<_> = files.iter().map(|file| file.file_name().unwrap()).collect();
        assert_eq!(names, ["Bad.wasm", "a-b.wasm", "b.wasm"]);
        assert!(kind_of(&files[0]).is_err());
        assert_eq!(path_of_kind(folder.path(), &kind_of(&files[1]).unwrap()), files[1]);
    }

    #[test]
    fn a_manifest_may_be_missing_but_not_broken() {
        let folder = tempfile::tempdir().unwrap();
        let wasm = folder.path().join("a.wasm");
        assert!(manifest_beside(&wasm).unwrap().is_none());
        std::os::unix::fs::symlink("nowhere", folder.path().join("a.toml")).unwrap();
        assert!(matches!(manifest_beside(&wasm), Err(KindError::ReadManifest { .. })));
        fs::remove_file(folder.path().join("a.toml")).unwrap();
        fs::write(folder.path().join("a.toml"), "dir = 1").unwrap();
        let error = manifest_beside(&wasm).unwrap_err().to_string();
        assert!(error.contains("a.toml:1: a manifest has no key `dir`"), "{error}");
    }
}
