//! The data folder: where jobs outlive the host, and which host they belong to.
//!
//! One host at a time holds it, by a lock of the operating system on a file that is
//! never removed. The lock ends with its process, however that ends, so what the file
//! says is only for people: whatever a host that is gone left in it, the next one gets
//! the lock. Readers take none.

use std::{
    env,
    ffi::OsString,
    fmt,
    fs::{self, File},
    io::{self, ErrorKind, Read as _},
    os::{
        fd::{AsRawFd as _, OwnedFd},
        unix::{
            ffi::OsStrExt as _,
            fs::{DirBuilderExt as _, FileExt as _},
        },
    },
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::{Duration, Instant, SystemTime},
};

use chrono::DateTime;
use rustix::{
    fs::{
        AtFlags, FileType, FlockOperation, Mode, OFlags, flock, fstat, open, openat, statat,
        unlinkat,
    },
    io::Errno,
    process::geteuid,
};
use serde::{Deserialize, Serialize};

/// How long a lock that is held is waited for. A process that was killed gives back
/// its memory first and its locks last, and whoever starts the next host at once is
/// not to be told about it; a person takes no notice of half a second.
const PATIENCE: Duration = Duration::from_millis(500);
const AGAIN: Duration = Duration::from_millis(10);
/// The longest path that a socket's address has room for, in bytes.
const ADDRESS_BYTES: usize = 107;
/// How much of a lock file is read: a line with a few words.
const LINE_BYTES: u64 = 4 << 10;

/// Returns where the data folder is when nothing was said: what `BACKLOT_DATA` names,
/// or else a folder for state in the person's own. `None` without a home.
pub fn default_data_folder() -> Option<PathBuf> {
    data_folder(|variable| env::var_os(variable))
}

fn data_folder(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let named = |name| variable(name).filter(|it| !it.is_empty()).map(PathBuf::from);
    // Relative ones are to be ignored, says the XDG Base Directory Specification.
    let home = |name| named(name).filter(|it| it.is_absolute());
    let state = || home("XDG_STATE_HOME").or_else(|| Some(home("HOME")?.join(".local/state")));
    named("BACKLOT_DATA").or_else(|| Some(state()?.join("backlot")))
}

/// A folder with everything that outlives a host: its jobs, their output and files.
///
/// It belongs to one user, and nobody else can write to it.
#[derive(Clone, Debug)]
pub struct DataFolder {
    path: PathBuf,
    folder: Arc<OwnedFd>,
}

impl DataFolder {
    /// Opens a folder, which is made if it is missing. Takes no lock.
    ///
    /// # Errors
    ///
    /// When it cannot be made or opened, belongs to another user, or others can write
    /// to it.
    pub fn open(path: &Path) -> Result<Self, FolderError> {
        let path = absolute(path)?;
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&path);
        match Self::open_at(path.clone()) {
            // Why it could not be made says more.
            Err(FolderError::Missing { .. }) => {
                let missing = || ErrorKind::NotFound.into();
                Err(FolderError::of(path, made.err().unwrap_or_else(missing)))
            }
            other => other,
        }
    }

    /// Opens a folder for who only reads it: one that is missing is not made.
    ///
    /// # Errors
    ///
    /// Those of [`DataFolder::open`], and [`FolderError::Missing`].
    pub fn find(path: &Path) -> Result<Self, FolderError> {
        Self::open_at(absolute(path)?)
    }

    fn open_at(path: PathBuf) -> Result<Self, FolderError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = open(&path, flags, Mode::empty()).and_then(|folder| {
            let about = fstat(&folder)?;
            Ok((folder, about))
        });
        match opened {
            Ok((folder, about)) => {
                check_owner(&path, about.st_uid, about.st_mode, geteuid().as_raw())?;
                Ok(Self { path, folder: Arc::new(folder) })
            }
            Err(error) => Err(FolderError::of(path, error.into())),
        }
    }

    /// Takes the folder for this process until the guard is dropped, and says so in the
    /// lock file. Blocks for half a second when it is held.
    ///
    /// # Errors
    ///
    /// [`HoldError::Held`] when another host has it, and others when it cannot be
    /// written to or locked.
    pub fn hold(&self, about: &Holder) -> Result<Held, HoldError> {
        let lock = self.open_lock()?;
        let until = Instant::now() + PATIENCE;
        let fail = |source: Errno| HoldError::of(self.lock(), source.into());
        if !take(&lock, until).map_err(fail)? {
            return Err(HoldError::Held { folder: self.path.clone(), holder: Holder::of(&lock) });
        }
        // Who is told of a lock may remove its file, and the next host would make and
        // lock another. So the folder itself is locked as well, where that is possible.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = openat(&self.folder, ".", flags, Mode::empty()).map_err(fail)?;
        match take(&folder, until) {
            Ok(false) => {
                return Err(HoldError::Held { folder: self.path.clone(), holder: None });
            }
            Ok(true) => {}
            Err(error) => tracing::debug!(%error, "only the lock file is locked, not its folder"),
        }
        for part in [self.jobs(), self.components(), self.spill()] {
            let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&part);
            made.map_err(|source| HoldError::of(part, source))?;
        }
        if let Err(error) = about.write_to(&lock) {
            // It is for people. What counts is the lock.
            tracing::warn!(%error, lock = %self.lock().display(), "who holds the data folder is not written down");
        }
        Ok(Held { folder: self.clone(), lock, _whole: folder })
    }

    fn open_lock(&self) -> Result<File, HoldError> {
        let path = self.lock();
        // What is no file is not waited for.
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let mode = Mode::RUSR | Mode::WUSR;
        match openat(&self.folder, LOCK, flags | OFlags::CLOEXEC, mode).map(File::from) {
            Ok(lock) if lock.metadata().is_ok_and(|about| about.is_file()) => Ok(lock),
            Ok(_) | Err(Errno::ISDIR | Errno::LOOP | Errno::NXIO) => {
                Err(HoldError::NotALock { path })
            }
            Err(error) => Err(HoldError::of(path, error.into())),
        }
    }

    /// Returns the folder's path, which is absolute.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns where the jobs are recorded.
    pub fn database(&self) -> PathBuf {
        self.path.join("jobs.db")
    }

    /// Returns where the host listens. What binds or connects takes
    /// [`DataFolder::socket_address`].
    pub fn socket(&self) -> PathBuf {
        self.path.join(SOCKET)
    }

    /// Returns the file that is locked by the host.
    pub fn lock(&self) -> PathBuf {
        self.path.join(LOCK)
    }

    /// Returns where the components of live jobs are kept.
    pub fn components(&self) -> PathBuf {
        self.path.join("components")
    }

    /// Returns where the folders of all jobs are.
    pub fn jobs(&self) -> PathBuf {
        self.path.join("jobs")
    }

    /// Returns the folder of a job, whose id has to be a plain name.
    pub fn job(&self, id: impl fmt::Display) -> PathBuf {
        self.jobs().join(id.to_string())
    }

    /// Returns the folder that a job's guests work in, inside the job's own.
    pub fn work(&self, id: impl fmt::Display) -> PathBuf {
        self.job(id).join("work")
    }

    /// Returns where output goes that does not fit into memory.
    pub fn spill(&self) -> PathBuf {
        self.path.join("spill")
    }

    /// Returns a path to the socket that is short enough to bind or connect to.
    ///
    /// If the real one is too long, it leads through a descriptor, and means something
    /// only in this process and as long as this value or a clone of it is there.
    pub fn socket_address(&self) -> PathBuf {
        let socket = self.socket();
        if socket.as_os_str().as_bytes().len() <= ADDRESS_BYTES {
            return socket;
        }
        PathBuf::from(format!("/proc/self/fd/{}/{SOCKET}", self.folder.as_raw_fd()))
    }
}

const LOCK: &str = "lock";
const SOCKET: &str = "socket";

/// The right to write in a data folder. Dropping it gives the folder free.
///
/// Children of this process do not get it.
#[derive(Debug)]
pub struct Held {
    folder: DataFolder,
    lock: File,
    _whole: OwnedFd,
}

impl Held {
    /// Returns the folder that is held.
    pub fn folder(&self) -> &DataFolder {
        &self.folder
    }

    /// Removes the socket that a host left behind, if there is one.
    ///
    /// # Errors
    ///
    /// [`HoldError::NotASocket`] if something else is there, which stays, and others
    /// when it cannot be removed.
    pub fn clear_socket(&self) -> Result<(), HoldError> {
        let folder = &*self.folder.folder;
        let path = self.folder.socket();
        let removed = match statat(folder, SOCKET, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(about) if FileType::from_raw_mode(about.st_mode) != FileType::Socket => {
                return Err(HoldError::NotASocket { path });
            }
            Ok(_) => unlinkat(folder, SOCKET, AtFlags::empty()),
            Err(error) => Err(error),
        };
        match removed {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(HoldError::of(path, error.into())),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // Nobody holds it from here on. If the line stays, that harms nobody either.
        let _ = self.lock.set_len(0);
    }
}

/// Who holds a data folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// The number of its process.
    pub pid: u32,
    /// What it is, with its version.
    pub program: String,
    /// Since when, in milliseconds of Unix time.
    pub since_ms: u64,
}

impl Holder {
    /// Returns this process, under the name of a program, from now on.
    pub fn this(program: impl Into<String>) -> Self {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let since_ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        Self { pid: std::process::id(), program: program.into(), since_ms }
    }

    /// Returns who wrote to a lock file, if that can be told.
    fn of(lock: &File) -> Option<Self> {
        let mut text = Vec::new();
        lock.take(LINE_BYTES).read_to_end(&mut text).ok()?;
        // A line may be followed by what is left of a longer one.
        serde_json::from_slice(text.split(|byte| *byte == b'\n').next()?).ok()
    }

    /// Writes over what is there before it cuts the rest, since that needs no room on
    /// the disk.
    fn write_to(&self, lock: &File) -> io::Result<()> {
        let mut line = serde_json::to_vec(self)?;
        line.push(b'\n');
        lock.write_all_at(&line, 0)?;
        lock.set_len(line.len() as u64)
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (pid {})", self.program.escape_debug(), self.pid)?;
        let since = i64::try_from(self.since_ms).ok().and_then(DateTime::from_timestamp_millis);
        since.map_or(Ok(()), |since| write!(f, " since {}", since.format("%Y-%m-%d %H:%M:%S UTC")))
    }
}

/// Why a folder cannot be the data folder.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// There is none.
    #[error("there is no data folder {}: no host has run there; start one, or name another folder with --data or BACKLOT_DATA", path.display())]
    Missing {
        /// The folder.
        path: PathBuf,
    },
    /// What is there, or on the way, is something else.
    #[error("the data folder {} cannot be used: {} is not a folder; move it away, or name another folder with --data or BACKLOT_DATA", path.display(), blocker.display())]
    NotAFolder {
        /// The folder.
        path: PathBuf,
        /// What is no folder.
        blocker: PathBuf,
    },
    /// This user may not make or open it.
    #[error("the data folder {} cannot be used: {source}; let user {} make and read it, or name another folder with --data or BACKLOT_DATA", path.display(), geteuid().as_raw())]
    Denied {
        /// The folder.
        path: PathBuf,
        /// What was said.
        source: io::Error,
    },
    /// It belongs to somebody else.
    #[error("the data folder {} belongs to user {owner}, and this is user {user}; run as user {owner}, or name another folder with --data or BACKLOT_DATA", path.display())]
    NotOwn {
        /// The folder.
        path: PathBuf,
        /// Whose it is.
        owner: u32,
        /// Who asks.
        user: u32,
    },
    /// Others could put something there.
    #[error("others can write to the data folder {} (mode {mode:04o}); see that what is in it is yours, then `chmod go-w` it", path.display())]
    Open {
        /// The folder.
        path: PathBuf,
        /// What may be done with it.
        mode: u32,
    },
    /// It cannot be made or opened for another reason.
    #[error("the data folder {} cannot be used: {source}; see to that, or name another folder with --data or BACKLOT_DATA", path.display())]
    Failed {
        /// The folder.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
}

impl FolderError {
    fn of(path: PathBuf, source: io::Error) -> Self {
        match source.kind() {
            ErrorKind::NotFound => Self::Missing { path },
            ErrorKind::NotADirectory | ErrorKind::AlreadyExists => {
                let is_other = |it: &&Path| fs::metadata(it).is_ok_and(|about| !about.is_dir());
                let blocker = path.ancestors().find(is_other).unwrap_or(&path).to_owned();
                Self::NotAFolder { path, blocker }
            }
            ErrorKind::PermissionDenied => Self::Denied { path, source },
            _ => Self::Failed { path, source },
        }
    }
}

/// Why a data folder cannot be held, or what is in it not replaced.
#[derive(Debug, thiserror::Error)]
pub enum HoldError {
    /// Another host has it.
    #[error("the data folder {} is in use by {}; stop that host, or name another folder with --data or BACKLOT_DATA", folder.display(), name(holder.as_ref()))]
    Held {
        /// The folder.
        folder: PathBuf,
        /// Who has it, if that can be told.
        holder: Option<Holder>,
    },
    /// This user may not write there, or nobody may.
    #[error("{} cannot be written: {source}; a host needs a data folder that user {} can write to: see to that, or name another folder with --data or BACKLOT_DATA", path.display(), geteuid().as_raw())]
    NotWritable {
        /// What is to be written.
        path: PathBuf,
        /// What was said.
        source: io::Error,
    },
    /// What has the name of the lock is no file.
    #[error("{} is to be the lock of the data folder, and is not a file; move it away", path.display())]
    NotALock {
        /// What is there.
        path: PathBuf,
    },
    /// What has the name of the socket is none.
    #[error("{} is to be the socket of the host, and something else has that name; move it away", path.display())]
    NotASocket {
        /// What is there.
        path: PathBuf,
    },
    /// It failed for another reason.
    #[error("the data folder cannot be held: {}: {source}; see to that, or name a folder on a local disk with --data or BACKLOT_DATA", path.display())]
    Failed {
        /// What was at fault.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
}

impl HoldError {
    fn of(path: PathBuf, source: io::Error) -> Self {
        match source.kind() {
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
                Self::NotWritable { path, source }
            }
            _ => Self::Failed { path, source },
        }
    }
}

fn name(holder: Option<&Holder>) -> String {
    holder.map_or_else(|| "another process".to_owned(), Holder::to_string)
}

fn absolute(path: &Path) -> Result<PathBuf, FolderError> {
    std::path::absolute(path)
        .map_err(|source| FolderError::Failed { path: path.to_owned(), source })
}

fn check_owner(path: &Path, owner: u32, mode: u32, user: u32) -> Result<(), FolderError> {
    let path = || path.to_owned();
    match () {
        () if owner != user => Err(FolderError::NotOwn { path: path(), owner, user }),
        () if mode & 0o022 != 0 => Err(FolderError::Open { path: path(), mode: mode & 0o7777 }),
        () => Ok(()),
    }
}

/// Takes the lock on a descriptor, and returns whether it was free in time.
fn take(lock: impl std::os::fd::AsFd, until: Instant) -> Result<bool, Errno> {
    loop {
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(true),
            Err(Errno::WOULDBLOCK) if Instant::now() >= until => return Ok(false),
            Err(Errno::WOULDBLOCK) => thread::sleep(AGAIN),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead as _, BufReader, Read as _},
        os::unix::{
            fs::PermissionsExt as _,
            net::{UnixListener, UnixStream},
        },
        process::{Child, Command, Stdio},
    };

    use super::*;

    fn folder() -> (tempfile::TempDir, DataFolder) {
        let outer = tempfile::tempdir().unwrap();
        let folder = DataFolder::open(&outer.path().join("data")).unwrap();
        (outer, folder)
    }

    fn me() -> Holder {
        Holder::this("backlot 1.2.3")
    }

    #[test]
    fn the_default_is_what_the_environment_says() {
        let with = |variables: &[(&str, &str)]| {
            let value = |name: &str| variables.iter().find(|(it, _)| *it == name).map(|it| it.1);
            data_folder(|name| value(name).map(OsString::from)).map(|it| it.display().to_string())
        };
        let all = [("BACKLOT_DATA", "here"), ("XDG_STATE_HOME", "/state"), ("HOME", "/home/it")];
        assert_eq!(with(&all).as_deref(), Some("here"));
        assert_eq!(with(&all[1..]).as_deref(), Some("/state/backlot"));
        assert_eq!(with(&all[2..]).as_deref(), Some("/home/it/.local/state/backlot"));
        let home = ("HOME", "/home/it");
        let unset = [("BACKLOT_DATA", ""), ("XDG_STATE_HOME", ""), home];
        assert_eq!(with(&unset).as_deref(), Some("/home/it/.local/state/backlot"));
        let relative = [("XDG_STATE_HOME", "state"), home];
        assert_eq!(with(&relative).as_deref(), Some("/home/it/.local/state/backlot"));
        assert_eq!(with(&[("HOME", "")]), None);
    }

    #[test]
    fn a_new_folder_is_for_its_user_alone() {
        let outer = tempfile::tempdir().unwrap();
        let path = outer.path().join("above/data");
        let folder = DataFolder::open(&path).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode(&path), 0o700);
        assert_eq!(mode(path.parent().unwrap()), 0o700);
        let _held = folder.hold(&me()).unwrap();
        assert_eq!(mode(&folder.lock()), 0o600);
        assert_eq!(mode(&folder.jobs()), 0o700);
        assert_eq!(folder.job("j1"), path.join("jobs/j1"));
        assert_eq!(folder.work("j1"), path.join("jobs/j1/work"));
    }

    #[test]
    fn who_only_reads_makes_no_folder() {
        let outer = tempfile::tempdir().unwrap();
        let path = outer.path().join("data");
        assert!(matches!(DataFolder::find(&path), Err(FolderError::Missing { .. })));
        assert!(!path.exists());
        DataFolder::open(&path).unwrap();
        let found = DataFolder::find(&path).unwrap();
        assert!(!found.lock().exists());
    }

    #[test]
    fn what_others_could_have_written_is_refused() {
        let path = Path::new("/data");
        assert!(check_owner(path, 1, 0o40700, 1).is_ok());
        assert!(check_owner(path, 1, 0o40755, 1).is_ok());
        let told = |owner, mode| check_owner(path, owner, mode, 1).unwrap_err().to_string();
        assert_eq!(
            told(2, 0o40700),
            "the data folder /data belongs to user 2, and this is user 1; run as user 2, or name \
             another folder with --data or BACKLOT_DATA"
        );
        assert_eq!(
            told(1, 0o40770),
            "others can write to the data folder /data (mode 0770); see that what is in it is \
             yours, then `chmod go-w` it"
        );
        let (_outer, folder) = folder();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o702)).unwrap();
        assert!(matches!(
            DataFolder::open(folder.path()),
            Err(FolderError::Open { mode: 0o702, .. })
        ));
    }

    #[test]
    fn what_is_no_folder_is_named() {
        let outer = tempfile::tempdir().unwrap();
        let file = outer.path().join("file");
        fs::write(&file, "").unwrap();
        for path in [file.clone(), file.join("below/data")] {
            let error = DataFolder::open(&path).unwrap_err();
            let FolderError::NotAFolder { blocker, .. } = &error else { panic!("{error:?}") };
            assert_eq!(blocker, &file);
            assert!(matches!(DataFolder::find(&path), Err(FolderError::NotAFolder { .. })));
        }
    }

    #[test]
    fn what_cannot_be_written_says_who_has_to_be_let() {
        let path = || PathBuf::from("/data/lock");
        for errno in [Errno::ACCESS, Errno::ROFS, Errno::PERM] {
            let error = HoldError::of(path(), errno.into());
            assert!(matches!(error, HoldError::NotWritable { .. }), "{error:?}");
            let user = geteuid().as_raw();
            assert!(error.to_string().contains(&format!("user {user} can write to")), "{error}");
        }
        let denied = FolderError::of("/data".into(), Errno::ACCESS.into());
        assert!(matches!(denied, FolderError::Denied { .. }));
        let full = HoldError::of(path(), Errno::NOSPC.into());
        assert!(full.to_string().contains("No space left on device"), "{full}");
    }

    #[test]
    fn a_folder_is_held_by_one() {
        let (_outer, folder) = folder();
        let first = me();
        let held = folder.hold(&first).unwrap();
        let error = DataFolder::open(folder.path()).unwrap().hold(&me()).unwrap_err();
        let text = error.to_string();
        assert!(text.contains(&folder.path().display().to_string()), "{text}");
        let pid = std::process::id();
        assert!(text.contains(&format!("in use by backlot 1.2.3 (pid {pid}) since 2")), "{text}");
        let HoldError::Held { holder, .. } = error else { panic!("{error:?}") };
        assert_eq!(holder, Some(first));
        drop(held);
        assert_eq!(fs::read(folder.lock()).unwrap(), b"");
        folder.hold(&me()).unwrap();
    }

    #[test]
    fn a_lock_that_is_removed_holds_on() {
        let (_outer, folder) = folder();
        let _held = folder.hold(&me()).unwrap();
        fs::remove_file(folder.lock()).unwrap();
        let error = folder.hold(&me()).unwrap_err();
        assert!(matches!(error, HoldError::Held { holder: None, .. }), "{error:?}");
        assert!(error.to_string().contains("in use by another process"), "{error}");
    }

    #[test]
    fn what_a_lock_file_says_locks_nothing() {
        let (_outer, folder) = folder();
        let other = Holder { pid: 1, program: "init".repeat(100), since_ms: 1 };
        let stale = [serde_json::to_vec(&other).unwrap(), b"\xff{\n".to_vec(), vec![b' '; 10_000]];
        for stale in stale {
            fs::write(folder.lock(), stale).unwrap();
            let about = me();
            let _held = folder.hold(&about).unwrap();
            let text = fs::read_to_string(folder.lock()).unwrap();
            let line = serde_json::to_string(&about).unwrap();
            assert_eq!(text, format!("{line}\n"));
        }
        // One that cannot be made out does not keep it from being held either.
        let _held = folder.hold(&me()).unwrap();
        fs::write(folder.lock(), "{").unwrap();
        assert!(matches!(folder.hold(&me()), Err(HoldError::Held { holder: None, .. })));
    }

    #[test]
    fn a_lock_that_is_no_file_is_refused() {
        let (outer, folder) = folder();
        fs::create_dir(folder.lock()).unwrap();
        assert!(matches!(folder.hold(&me()), Err(HoldError::NotALock { .. })));
        fs::remove_dir(folder.lock()).unwrap();
        let elsewhere = outer.path().join("elsewhere");
        std::os::unix::fs::symlink(&elsewhere, folder.lock()).unwrap();
        assert!(matches!(folder.hold(&me()), Err(HoldError::NotALock { .. })));
        assert!(!elsewhere.exists());
    }

    #[test]
    fn a_killed_host_leaves_nothing_that_needs_cleaning() {
        let (_outer, folder) = folder();
        let mut child = other_host(&folder);
        let error = folder.hold(&me()).unwrap_err();
        let HoldError::Held { holder: Some(holder), .. } = &error else { panic!("{error:?}") };
        assert_eq!(holder.pid, child.id());
        child.kill().unwrap();
        // Not waited for first: it may be on its way still.
        let _held = folder.hold(&me()).unwrap();
        child.wait().unwrap();
    }

    fn other_host(folder: &DataFolder) -> Child {
        let mut child = Command::new(env::current_exe().unwrap())
            .args([
                "--exact",
                "folder::tests::holds_until_it_is_killed",
                "--ignored",
                "--nocapture",
            ])
            .env("HELD_FOLDER", folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().ends_with("is held")));
        child
    }

    #[test]
    #[ignore = "another test runs it, in a process of its own"]
    fn holds_until_it_is_killed() {
        let path = PathBuf::from(env::var_os("HELD_FOLDER").unwrap());
        let _held = DataFolder::open(&path).unwrap().hold(&me()).unwrap();
        println!("is held");
        io::stdin().read_to_end(&mut Vec::new()).unwrap();
    }

    #[test]
    fn a_child_does_not_keep_the_lock() {
        let (_outer, folder) = folder();
        let held = folder.hold(&me()).unwrap();
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        drop(held);
        folder.hold(&me()).unwrap();
        drop(child.stdin.take());
        child.wait().unwrap();
    }

    #[test]
    fn a_socket_is_cleared_and_nothing_else() {
        let (_outer, folder) = folder();
        let held = folder.hold(&me()).unwrap();
        held.clear_socket().unwrap();
        drop(UnixListener::bind(folder.socket_address()).unwrap());
        held.clear_socket().unwrap();
        assert!(!folder.socket().exists());
        fs::write(folder.socket(), "mine").unwrap();
        assert!(matches!(held.clear_socket(), Err(HoldError::NotASocket { .. })));
        assert_eq!(fs::read(folder.socket()).unwrap(), b"mine");
    }

    #[test]
    fn a_socket_can_be_reached_however_deep_it_lies() {
        let outer = tempfile::tempdir().unwrap();
        let short = DataFolder::open(outer.path()).unwrap();
        assert_eq!(short.socket_address(), short.socket());
        let deep = outer.path().join("a".repeat(100)).join("b".repeat(100));
        let folder = DataFolder::open(&deep).unwrap();
        let _listener = UnixListener::bind(folder.socket_address()).unwrap();
        assert!(folder.socket().exists());
        let other = DataFolder::find(&deep).unwrap();
        UnixStream::connect(other.socket_address()).unwrap();
    }
}
