//! Which hosts have a kind: a lock that each of them shares as long as it can run it.
//!
//! So that whoever takes a kind away can wait until nobody runs it any more, also in
//! other processes. A lock goes with its process, however that ends. It is seen by the
//! hosts of one user on one machine.

use std::{
    env,
    fs::{self, File, Metadata},
    io,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use backlot_registry::Kind;
use rustix::process::geteuid;
use sha2::{Digest as _, Sha256};

/// Says that this process can run tasks of a kind, until it is dropped.
#[derive(Debug)]
pub(crate) struct Mark {
    _locked: File,
}

impl Mark {
    /// Sets the mark of a kind of a plugin folder. Blocks for a moment at most.
    ///
    /// # Errors
    ///
    /// When there is no place for it that is this user's alone.
    pub(crate) fn set(folder: &Path, kind: &Kind) -> io::Result<Self> {
        let file = open(folder, kind)?;
        file.lock_shared()?;
        Ok(Self { _locked: file })
    }
}

/// Waits until no host of this user can run tasks of a kind of a plugin folder: each has
/// let go of it, and its last task has ended. Blocks.
///
/// # Errors
///
/// When there is no place for the lock that is this user's alone.
pub fn wait_until_unused(folder: &Path, kind: &Kind) -> io::Result<()> {
    open(folder, kind)?.lock()
}

/// Opens the file that is locked.
fn open(folder: &Path, kind: &Kind) -> io::Result<File> {
    let place = place()?;
    // By what the folder is called when all links are followed, so that another of that
    // name is the same one to whoever waits.
    let folder = fs::canonicalize(folder).or_else(|_| std::path::absolute(folder))?;
    let digest = Sha256::digest(folder.as_os_str().as_encoded_bytes());
    let folder: String = digest[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed())
        .open(place.join(format!("{kind}-{folder}.lock")))
}

/// Returns the folder of the locks, which nobody else can write to.
fn place() -> io::Result<PathBuf> {
    let user = geteuid().as_raw();
    let given = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|it| it.is_absolute());
    let place = match given.filter(|folder| folder.is_dir()) {
        Some(folder) => folder.join("backlot"),
        None => env::temp_dir().join(format!("backlot-{user}")),
    };
    match fs::DirBuilder::new().mode(0o700).create(&place) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let about = fs::symlink_metadata(&place)?;
    match is_own(&about, user) {
        true => Ok(place),
        false => Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("{} is not this user's alone", place.display()),
        )),
    }
}

fn is_own(about: &Metadata, user: u32) -> bool {
    about.is_dir() && about.uid() == user && about.mode() & 0o077 == 0
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread, time::Duration};

    use super::*;

    #[test]
    fn whoever_waits_is_woken_by_the_last_mark() {
        let folder = tempfile::tempdir().unwrap();
        let kind = Kind::new("waited-for").unwrap();
        let (one, other) =
            (Mark::set(folder.path(), &kind).unwrap(), Mark::set(folder.path(), &kind).unwrap());
        let (sender, woken) = mpsc::channel();
        let path = folder.path().to_owned();
        thread::spawn(move || {
            wait_until_unused(&path, &Kind::new("waited-for").unwrap()).unwrap();
            sender.send(()).unwrap();
        });
        drop(one);
        assert!(woken.recv_timeout(Duration::from_millis(50)).is_err());
        // Another kind and another folder are others.
        wait_until_unused(folder.path(), &Kind::new("other").unwrap()).unwrap();
        wait_until_unused(&folder.path().join("below"), &kind).unwrap();
        drop(other);
        woken.recv_timeout(Duration::from_secs(10)).unwrap();
    }
}
