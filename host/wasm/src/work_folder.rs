//! The work folder of a job: the folder that its tasks see as `/job`, and the quota of
//! what they may have in it.
//!
//! It is a file system of its own to the guest: nothing is moved or linked into it or
//! out of it, so what is in it came through its own descriptors. Those are marked, and
//! the calls that change something look for the mark.

use std::{
    collections::HashMap,
    io,
    path::{Component, Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use rustix::{fs::fstat, io::Errno};
use tokio::task::spawn_blocking;
use wasmtime_wasi::{FsPerms, OpenMode, filesystem::Dir};

use crate::{
    account::{Account, ENTRIES, FileId, Full, Turn},
    denial::Denials,
    limits::Bytes,
    policy::Sort,
};

/// The path under which a guest sees its work folder.
pub(crate) const GUEST_PATH: &str = "/job";

/// The mark of a descriptor in the work folder, beside its mode: every descriptor that is
/// opened with one that has it has it as well.
const MARK: OpenMode = OpenMode::from_bits_retain(1 << 8);

/// The account of a folder, which is one change's at a time. Whoever waits for it takes
/// no thread.
type Shared = Arc<tokio::sync::Mutex<Account>>;

/// The accounts of the work folders that are in use.
///
/// A folder has one, whoever uses it: a task can be over before the last of what it
/// writes is written, and the next one begin.
#[derive(Default)]
pub(crate) struct WorkFolders(Mutex<HashMap<FileId, Weak<tokio::sync::Mutex<Account>>>>);

/// A work folder that is open for one start.
pub(crate) struct OpenWorkFolder {
    dir: Dir,
    id: FileId,
    quota: u64,
    account: Shared,
}

/// Why a work folder could not be had.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WorkFolderError {
    /// It could not be opened, or not looked at.
    #[error("the work folder {} cannot be opened: {source}", path.display())]
    Io {
        /// The folder on the host.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// There is more in it than any task could have made.
    #[error(
        "the work folder {} has more than {ENTRIES} files and folders; take out what did not \
         come from the job", .0.display()
    )]
    Entries(PathBuf),
}

impl WorkFolders {
    /// Opens a folder, and looks at what is in it unless that is known.
    ///
    /// # Errors
    ///
    /// When it cannot be looked at, or has too much in it.
    pub(crate) async fn open(
        &self,
        path: &Path,
        quota: u64,
    ) -> Result<OpenWorkFolder, WorkFolderError> {
        let failed = |source: io::Error| match Errno::from_io_error(&source) {
            Some(Errno::DQUOT) => WorkFolderError::Entries(path.to_owned()),
            _ => WorkFolderError::Io { path: path.to_owned(), source },
        };
        let folder = path.to_owned();
        let (dir, id) = blocking(move || opened(&folder)).await.map_err(failed)?;
        let account = self.account(id);
        let mut measuring = Arc::clone(&account).lock_owned().await;
        if !measuring.is_measured() {
            let folder = Arc::clone(&dir.dir);
            blocking(move || measuring.measure(&folder)).await.map_err(failed)?;
        }
        Ok(OpenWorkFolder { dir, id, quota, account })
    }

    fn account(&self, id: FileId) -> Shared {
        let mut accounts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        accounts.retain(|_, account| account.strong_count() > 0);
        let account = accounts.get(&id).and_then(Weak::upgrade).unwrap_or_default();
        accounts.insert(id, Arc::downgrade(&account));
        account
    }
}

fn opened(path: &Path) -> io::Result<(Dir, FileId)> {
    let dir = cap_std::fs::Dir::open_ambient_dir(path, cap_std::ambient_authority())?;
    let stat = fstat(&dir)?;
    let mode = OpenMode::READ | OpenMode::WRITE | MARK;
    let dir = Dir::new(dir.into_std_file(), FsPerms::ReadWrite, mode, false);
    Ok((dir, (stat.st_dev, stat.st_ino)))
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    spawn_blocking(work).await.map_err(io::Error::other)?
}

/// Tells whether a guest that is granted a folder under that path would look there for
/// what is in its work folder.
pub(crate) fn is_taken_by(guest: &str) -> bool {
    let names = Path::new(guest).components().filter(|part| !matches!(part, Component::CurDir));
    names.filter(|part| *part != Component::RootDir).eq(Path::new("job").components())
}

/// Returns the mode of what is opened with a descriptor of that mode.
pub(crate) fn marked_as(parent: OpenMode, mode: OpenMode) -> OpenMode {
    mode | parent & MARK
}

/// The work folder of one task. Cheap to clone.
#[derive(Clone)]
pub(crate) struct WorkFolder(Arc<Inner>);

struct Inner {
    open: OpenWorkFolder,
    denials: Denials,
    is_told: [AtomicBool; 2],
}

impl WorkFolder {
    pub(crate) fn new(open: OpenWorkFolder, denials: Denials) -> Self {
        Self(Arc::new(Inner { open, denials, is_told: Default::default() }))
    }

    /// Returns the folder itself.
    pub(crate) fn dir(&self) -> &Dir {
        &self.0.open.dir
    }

    /// Tells whether a descriptor of that mode is in the folder.
    pub(crate) fn has(mode: OpenMode) -> bool {
        mode.contains(MARK)
    }

    /// Changes something, on a thread where it may block, when nobody else does. Once it
    /// has begun it comes to its end, also when nobody waits for that.
    pub(crate) async fn turn<T: Send + 'static>(
        &self,
        change: impl FnOnce(&mut Turn) -> T + Send + 'static,
    ) -> io::Result<T> {
        let Inner { open, .. } = &*self.0;
        let account = Arc::clone(&open.account).lock_owned().await;
        let mut turn = Turn { account, folder: open.id, quota: open.quota, full: None };
        let (came, full) = blocking(move || {
            let came = change(&mut turn);
            Ok((came, turn.full))
        })
        .await?;
        if let Some(full) = full {
            self.tell(full);
        }
        Ok(came)
    }

    /// Tells that the folder is full, once for each reason: programs try again.
    fn tell(&self, full: Full) {
        let Inner { open, denials, is_told } = &*self.0;
        let [bytes, entries] = is_told;
        match full {
            Full::Bytes if !bytes.swap(true, Ordering::Relaxed) => {
                let quota = Bytes(open.quota);
                denials.tell(Sort::WorkFolder, &format!("more than {quota} in {GUEST_PATH}"));
            }
            Full::Entries if !entries.swap(true, Ordering::Relaxed) => {
                let what = format!("more than {ENTRIES} files and folders in {GUEST_PATH}");
                if let Some(link) = denials.audit(Sort::WorkFolder, &what) {
                    link.note(&format!("denied: {what}; no work folder has more"));
                }
            }
            Full::Bytes | Full::Entries => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_taken_for_the_work_folder_however_its_path_is_written() {
        for taken in ["/job", "job", "//job/", "./job", "/./job/."] {
            assert!(is_taken_by(taken), "{taken}");
        }
        for other in ["/", "/job/in", "/jobs", "/a/job", ".job", ""] {
            assert!(!is_taken_by(other), "{other}");
        }
    }

    #[tokio::test]
    async fn a_folder_has_one_account_however_it_is_reached() {
        let outer = tempfile::tempdir().unwrap();
        let (path, link) = (outer.path().join("job"), outer.path().join("link"));
        std::fs::create_dir(&path).unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let folders = WorkFolders::default();
        let one = folders.open(&path, 1).await.unwrap();
        let other = folders.open(&link, 2).await.unwrap();
        assert!(Arc::ptr_eq(&one.account, &other.account));
        assert_eq!((one.quota, other.quota), (1, 2));
        drop((one, other));
        std::fs::write(path.join("file"), "x").unwrap();
        folders.open(&path, 1).await.unwrap();
        assert_eq!(folders.0.lock().unwrap().len(), 1);
        let missing = folders.open(&outer.path().join("missing"), 1).await.err().unwrap();
        assert!(missing.to_string().contains("missing cannot be opened"), "{missing}");
    }
}
