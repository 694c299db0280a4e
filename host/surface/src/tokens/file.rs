//! Files with secrets: for this user alone, and replaced as a whole.

use std::{
    fs::{self, File},
    io::{self, ErrorKind, Read as _, Write as _},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    fs::{FlockOperation, Mode, OFlags, flock, open},
    io::Errno,
    process::geteuid,
};

use super::TokenError;

/// The most that is read of a file, in bytes: more than all tokens there can be need.
const FILE_BYTES: u64 = 1 << 20;
/// How long it is waited for whoever changes the tokens, which takes some milliseconds, or
/// as long as a slow disk has to sync.
const PATIENCE: Duration = Duration::from_secs(10);
const AGAIN: Duration = Duration::from_millis(10);

/// A file with secrets, which may be there or not.
pub(super) struct Kept {
    path: PathBuf,
}

impl Kept {
    pub(super) fn at(path: PathBuf) -> Self {
        Self { path }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns what tells whether the file is still what it was, where it is there.
    pub(super) fn stamp(&self) -> Result<Option<Stamp>, TokenError> {
        match fs::symlink_metadata(&self.path) {
            Ok(about) => Ok(Some(Stamp::of(&about))),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(TokenError::io(&self.path)(error)),
        }
    }

    /// Reads the file, where it is there and nobody else can.
    pub(super) fn read(&self) -> Result<Option<Vec<u8>>, TokenError> {
        // What is no file is neither followed nor waited for.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let not_own = || TokenError::NotOwn { path: self.path.clone() };
        let file = match open(&self.path, flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP | Errno::NXIO) => return Err(not_own()),
            Err(error) => return Err(TokenError::io(&self.path)(error.into())),
        };
        let about = file.metadata().map_err(TokenError::io(&self.path))?;
        if !about.is_file() || about.uid() != geteuid().as_raw() {
            return Err(not_own());
        }
        if about.mode() & 0o077 != 0 {
            let mode = about.mode() & 0o7777;
            return Err(TokenError::Exposed { path: self.path.clone(), mode });
        }
        let mut bytes = Vec::new();
        let read = file.take(FILE_BYTES).read_to_end(&mut bytes);
        read.map_err(TokenError::io(&self.path))?;
        Ok(Some(bytes))
    }

    /// Puts a new file in its place, of which there is all or nothing also after a crash.
    /// One does it at a time.
    pub(super) fn replace(&self, bytes: &[u8]) -> Result<(), TokenError> {
        let new = self.path.with_extension("new");
        let replaced = write_new(&new, bytes).and_then(|()| fs::rename(&new, &self.path));
        if replaced.is_err() {
            // It would only be in the way of people.
            let _ = fs::remove_file(&new);
        }
        replaced.and_then(|()| self.sync_folder()).map_err(TokenError::io(&self.path))
    }

    /// Removes the file, if it is there.
    pub(super) fn remove(&self) -> Result<(), TokenError> {
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            removed => {
                removed.and_then(|()| self.sync_folder()).map_err(TokenError::io(&self.path))
            }
        }
    }

    fn sync_folder(&self) -> io::Result<()> {
        self.path.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
    }
}

/// Writes a file that was not there, for this user alone.
fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    // One that a crash has left is of no use, and may be another's.
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
    let mut file = File::from(open(path, flags | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR)?);
    file.write_all(bytes)?;
    file.sync_all()
}

/// Which file it is, and in which state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    inode: u64,
    bytes: u64,
    mode: u32,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    /// That of a file that could not be looked at. There is no inode 0.
    pub(super) const UNSEEN: Self =
        Self { inode: 0, bytes: 0, mode: 0, modified: (0, 0), changed: (0, 0) };

    fn of(about: &fs::Metadata) -> Self {
        Self {
            inode: about.ino(),
            bytes: about.len(),
            mode: about.mode(),
            modified: (about.mtime(), about.mtime_nsec()),
            changed: (about.ctime(), about.ctime_nsec()),
        }
    }
}

/// The right to change the tokens, until it is dropped.
pub(super) struct Lock {
    _file: File,
}

impl Lock {
    pub(super) fn take(path: PathBuf) -> Result<Self, TokenError> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = open(&path, flags | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR)
            .map_err(|error| TokenError::io(&path)(error.into()))?;
        let until = Instant::now() + PATIENCE;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Self { _file: file.into() }),
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) if Instant::now() < until => thread::sleep(AGAIN),
                Err(Errno::WOULDBLOCK) => return Err(TokenError::Locked { path }),
                Err(error) => return Err(TokenError::io(&path)(error.into())),
            }
        }
    }
}
