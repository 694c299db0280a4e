//! The versions of kinds in a plugin folder: the one that is used, and good ones from
//! before to go back to, in a hidden folder beside it.
//!
//! A file is written whole and then given its name, so that a host which watches the
//! folder finds a version or the one before it, and never half of one.

use std::{
    cmp::Reverse,
    fs::{self, File},
    io::{self, Write as _},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    time::SystemTime,
};

use backlot_registry::Kind;
use backlot_wasm::{digest_of, path_of_kind};

/// The hidden folder, in the plugin folder.
const SHELF: &str = ".backlot";
/// How many versions there are to be of a kind, the one that is used among them.
const VERSIONS: usize = 3;

/// A plugin folder that nobody else changes through this program meanwhile.
pub(crate) struct Shelf {
    folder: PathBuf,
    _locked: File,
}

/// A version that is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Kept {
    /// Counts the versions of the kind that were kept, from 1.
    pub(crate) number: u64,
    pub(crate) file: PathBuf,
    /// When it was put aside.
    pub(crate) since: SystemTime,
    /// `sha256:` and 64 hexadecimal digits.
    pub(crate) digest: String,
}

impl Shelf {
    /// Opens the shelf of a plugin folder; both are made if need be. Waits for others
    /// that have it open.
    pub(crate) fn open(folder: &Path) -> io::Result<Self> {
        let shelf = folder.join(SHELF);
        fs::create_dir_all(&shelf)?;
        let lock =
            File::options().write(true).create(true).truncate(false).open(shelf.join("lock"))?;
        lock.lock()?;
        Ok(Self { folder: folder.to_owned(), _locked: lock })
    }

    /// Puts a version in place of the one that is used, if there is one, which is kept.
    pub(crate) fn put(
        &self,
        kind: &Kind,
        component: &[u8],
        manifest: Option<&str>,
    ) -> io::Result<()> {
        let path = path_of_kind(&self.folder, kind);
        let beside = path.with_extension("toml");
        let holds = |path: &Path, bytes: Option<&[u8]>| content(path).as_deref() == bytes;
        if holds(&path, Some(component)) && holds(&beside, manifest.map(str::as_bytes)) {
            return Ok(());
        }
        self.keep(kind, Aside::Copied)?;
        match manifest {
            // The manifest first: a new version is on its own terms from its first task on.
            Some(manifest) => {
                self.write(&beside, manifest.as_bytes())?;
                self.write(&path, component)
            }
            // The manifest last: one that asks for little is not without it meanwhile.
            None => {
                self.write(&path, component)?;
                remove(&beside)
            }
        }
    }

    /// Takes the version that is used away, and keeps it. Tells whether there was one.
    pub(crate) fn take_away(&self, kind: &Kind) -> io::Result<bool> {
        let was = self.keep(kind, Aside::Moved)?;
        remove(&path_of_kind(&self.folder, kind).with_extension("toml"))?;
        Ok(was)
    }

    /// Puts a version that is kept back in place of the one that is used, which is kept.
    /// What is put there is what was read of it, and not what its files hold by now.
    pub(crate) fn put_back(
        &self,
        kind: &Kind,
        kept: &Kept,
        component: &[u8],
        manifest: Option<&str>,
    ) -> io::Result<()> {
        // Out of the way first: its number may be given anew, and it is not to push
        // another one out.
        let aside = |path: &Path, there: bool| {
            let away = path.with_extension(format!("{}-back", ending(path)));
            let (from, to) = if there { (path, &*away) } else { (&*away, path) };
            match fs::rename(from, to) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(away),
                moved => moved.map(|()| away),
            }
        };
        let files = [kept.file.clone(), kept.file.with_extension("toml")];
        let mut away = Vec::new();
        for file in &files {
            away.push(aside(file, true)?);
        }
        match self.put(kind, component, manifest) {
            Ok(()) => away.iter().try_for_each(|path| remove(path)),
            Err(error) => {
                for file in &files {
                    let _ = aside(file, false);
                }
                Err(error)
            }
        }
    }

    /// Keeps the version that is used, and lets go of what is too many.
    fn keep(&self, kind: &Kind, aside: Aside) -> io::Result<bool> {
        let path = path_of_kind(&self.folder, kind);
        match path.symlink_metadata() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            about => _ = about?,
        }
        // Reading a pipe would wait for its writer. A link to nothing is no use to anybody.
        if fs::metadata(&path).is_ok_and(|about| !about.is_file()) {
            return Err(io::Error::other(format!("{} is not a regular file", path.display())));
        }
        let folder = folder_of(&self.folder, kind);
        fs::create_dir_all(&folder)?;
        let kept = kept(&self.folder, kind)?;
        let number = kept.first().map_or(1, |last| last.number + 1);
        let to = folder.join(format!("{number}.wasm"));
        let same = |digest: &str| kept.iter().find(|it| it.digest == digest);
        match fs::read(&path) {
            // A version is kept once, as the last that it was.
            Ok(bytes) => {
                if let Some(again) = same(&digest_of(&bytes)) {
                    discard(again)?;
                }
                self.write(&to, &bytes)?;
                copy_if_there(&path.with_extension("toml"), &to.with_extension("toml"))?;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        if aside == Aside::Moved {
            fs::remove_file(&path)?;
        }
        let all = self::kept(&self.folder, kind)?;
        all.iter().skip(VERSIONS - 1).try_for_each(discard)?;
        Ok(true)
    }

    /// Writes a file whole, then gives it its name.
    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let folder = path.parent().unwrap_or(&self.folder);
        let mut draft = tempfile::Builder::new()
            .prefix(".draft-")
            // As readable as any file, less what this person's mask takes away.
            .permissions(fs::Permissions::from_mode(0o666))
            .tempfile_in(folder)?;
        draft.write_all(bytes)?;
        draft.as_file().sync_all()?;
        draft.persist(path).map_err(|error| error.error)?;
        Ok(())
    }
}

/// Whether the version that is used stays where it is while it is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Aside {
    Copied,
    Moved,
}

/// Returns what a regular file holds, if it is one that can be read. Reading a pipe would
/// wait for its writer.
pub(crate) fn content(path: &Path) -> Option<Vec<u8>> {
    fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
    fs::read(path).ok()
}

/// Returns the versions of a kind that are kept, the last one first.
pub(crate) fn kept(folder: &Path, kind: &Kind) -> io::Result<Vec<Kept>> {
    let entries = match fs::read_dir(folder_of(folder, kind)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut kept = Vec::new();
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_suffix(".wasm")?.parse().ok());
        if let Some(number) = number {
            let since = entry.metadata()?.modified()?;
            let digest = digest_of(&fs::read(entry.path())?);
            kept.push(Kept { number, file: entry.path(), since, digest });
        }
    }
    kept.sort_by_key(|kept| Reverse(kept.number));
    Ok(kept)
}

fn folder_of(folder: &Path, kind: &Kind) -> PathBuf {
    folder.join(SHELF).join(kind.as_str())
}

fn ending(path: &Path) -> &str {
    path.extension().and_then(|ending| ending.to_str()).unwrap_or_default()
}

fn discard(kept: &Kept) -> io::Result<()> {
    remove(&kept.file.with_extension("toml"))?;
    remove(&kept.file)
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

fn copy_if_there(from: &Path, to: &Path) -> io::Result<()> {
    match fs::copy(from, to) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => remove(to),
        copied => copied.map(|_| ()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind() -> Kind {
        Kind::new("a").unwrap()
    }

    fn digests(folder: &Path) -> Vec<String> {
        kept(folder, &kind()).unwrap().into_iter().map(|kept| kept.digest).collect()
    }

    #[test]
    fn the_last_versions_are_kept_each_once() {
        let folder = tempfile::tempdir().unwrap();
        let shelf = Shelf::open(folder.path()).unwrap();
        assert!(!shelf.take_away(&kind()).unwrap());
        for version in ["1", "2", "3", "4", "3", "3"] {
            shelf.put(&kind(), version.as_bytes(), None).unwrap();
        }
        assert_eq!(fs::read_to_string(folder.path().join("a.wasm")).unwrap(), "3");
        assert_eq!(digests(folder.path()), [digest_of(b"4"), digest_of(b"3")]);
        assert!(shelf.take_away(&kind()).unwrap());
        assert!(!folder.path().join("a.wasm").exists());
        assert_eq!(digests(folder.path()), [digest_of(b"3"), digest_of(b"4")]);
    }

    #[test]
    fn what_asks_for_little_is_not_without_its_manifest_meanwhile() {
        let folder = tempfile::tempdir().unwrap();
        let shelf = Shelf::open(folder.path()).unwrap();
        // Nothing can be put in place of a folder, so it ends halfway.
        fs::create_dir(folder.path().join("a.wasm")).unwrap();
        fs::write(folder.path().join("a.toml"), "env = []").unwrap();
        shelf.put(&kind(), b"1", None).unwrap_err();
        assert!(folder.path().join("a.toml").exists());
    }

    #[test]
    fn a_version_comes_back_with_its_manifest() {
        let folder = tempfile::tempdir().unwrap();
        let shelf = Shelf::open(folder.path()).unwrap();
        let at = |name: &str| fs::read_to_string(folder.path().join(name)).ok();
        shelf.put(&kind(), b"1", Some("env = []")).unwrap();
        shelf.put(&kind(), b"2", None).unwrap();
        assert_eq!((at("a.wasm"), at("a.toml")), (Some("2".into()), None));
        let back = |component: &[u8], manifest| {
            let last = kept(folder.path(), &kind()).unwrap().remove(0);
            assert_eq!(fs::read(&last.file).unwrap(), component);
            shelf.put_back(&kind(), &last, component, manifest).unwrap();
        };
        back(b"1", Some("env = []"));
        assert_eq!((at("a.wasm"), at("a.toml")), (Some("1".into()), Some("env = []".into())));
        assert_eq!(digests(folder.path()), [digest_of(b"2")]);
        back(b"2", None);
        assert_eq!((at("a.wasm"), at("a.toml")), (Some("2".into()), None));
        assert_eq!(digests(folder.path()), [digest_of(b"1")]);
        let names: Vec<_> = fs::read_dir(folder.path().join(".backlot/a")).unwrap().collect();
        assert_eq!(names.len(), 2, "the version and its manifest: {names:?}");
    }
}
