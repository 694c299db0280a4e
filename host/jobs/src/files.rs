//! What guests leave in a job's folder: listed, opened, measured and removed.
//!
//! Guests name and nest files as they like, and can make links to anywhere. So no link
//! is followed here, every name is looked up in a folder that is open, and how deep a
//! tree goes costs neither stack nor many descriptors.

use std::{
    collections::BTreeMap,
    ffi::{CStr, OsStr},
    fs::File,
    io,
    ops::ControlFlow,
    os::{
        fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::{Component, Path, PathBuf},
    rc::Rc,
};

use rustix::{
    fs::{
        AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, chmod, fstat, open, openat,
        openat2, renameat, statat, unlinkat,
    },
    io::Errno,
};

/// How many entries are looked at for one listing. Who has more than that is not served
/// by a list, and must not keep the host busy with one.
const LOOKED_AT: usize = 100_000;
/// The longest path that is listed or opened, in bytes: what a system call takes.
const PATH_BYTES: usize = 4095;
/// How far below an open folder others are opened by path, in bytes.
const REACH: usize = 1 << 10;

/// A file that a job has left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileEntry {
    /// Its path in the work folder.
    pub path: PathBuf,
    /// Its size.
    pub bytes: u64,
    /// When it was changed last, in milliseconds of Unix time. Guests can set it.
    pub modified_ms: i64,
}

/// Files of a work folder, by path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// The files.
    pub files: Vec<FileEntry>,
    /// Whether there may be others, since there are too many, they lie too deep, or a
    /// folder cannot be read.
    pub has_more: bool,
}

/// Returns the first files of a work folder by path, at most that many. Links, pipes and
/// the like are none. A folder that is not there has none.
///
/// # Errors
///
/// When the work folder cannot be read.
pub fn files(work: &Path, max: usize) -> io::Result<Listing> {
    let mut first = BTreeMap::new();
    let mut has_more = false;
    let mut looked_at = 0;
    let walked = walk(work, |found| {
        looked_at += 1;
        if looked_at > LOOKED_AT {
            has_more = true;
            return Ok(ControlFlow::Break(()));
        }
        match found {
            Found::Entry { path, about, .. }
                if FileType::from_raw_mode(about.st_mode) == FileType::RegularFile =>
            {
                let path = path();
                if path.as_os_str().len() > PATH_BYTES {
                    has_more = true;
                } else {
                    first.insert(path, (size(about), modified_ms(about)));
                }
                if first.len() > max {
                    first.pop_last();
                    has_more = true;
                }
            }
            Found::Entry { .. } => {}
            Found::Unreadable(_) => has_more = true,
        }
        Ok(ControlFlow::Continue(()))
    });
    walked?;
    let entry = |(path, (bytes, modified_ms))| FileEntry { path, bytes, modified_ms };
    Ok(Listing { files: first.into_iter().map(entry).collect(), has_more })
}

fn size(about: &Stat) -> u64 {
    u64::try_from(about.st_size).unwrap_or(0)
}

fn modified_ms(about: &Stat) -> i64 {
    let nanoseconds = i64::try_from(about.st_mtime_nsec).unwrap_or(0);
    about.st_mtime.saturating_mul(1000).saturating_add(nanoseconds / 1_000_000)
}

/// Returns how many bytes of the disk a folder takes with all that is in it. One that is
/// not there takes none.
///
/// # Errors
///
/// When a folder in it cannot be read.
pub fn usage(folder: &Path) -> io::Result<u64> {
    let mut bytes = 0_u64;
    walk(folder, |found| match found {
        Found::Entry { about, .. } => {
            // Blocks are of 512 bytes, whatever the file system's are.
            let blocks = u64::try_from(about.st_blocks).unwrap_or(0);
            bytes = bytes.saturating_add(blocks.saturating_mul(512));
            Ok(ControlFlow::Continue(()))
        }
        Found::Unreadable(error) => Err(error.into()),
    })?;
    Ok(bytes)
}

/// Opens a file of a work folder to be read.
///
/// # Errors
///
/// [`OpenFileError::Outside`] for paths that could lead elsewhere; others when there is
/// no file, or it cannot be read.
pub fn open_file(work: &Path, path: &Path) -> Result<File, OpenFileError> {
    let fail = |source: Errno| match source {
        Errno::NOENT | Errno::NOTDIR => OpenFileError::Missing { path: path.to_owned() },
        // What `NO_SYMLINKS` says to a link.
        Errno::LOOP => OpenFileError::NotAFile { path: path.to_owned() },
        source => OpenFileError::Failed { path: path.to_owned(), source: source.into() },
    };
    let is_plain = path.components().all(|part| matches!(part, Component::Normal(_)));
    if !is_plain || path.as_os_str().is_empty() {
        return Err(OpenFileError::Outside { path: path.to_owned() });
    }
    let work = open(work, FOLDER, Mode::empty()).map_err(fail)?;
    // What is no file is not waited for.
    let file = open_below(work.as_fd(), path, OFlags::RDONLY | OFlags::NONBLOCK).map_err(fail)?;
    let about = fstat(&file).map_err(fail)?;
    match FileType::from_raw_mode(about.st_mode) {
        FileType::RegularFile => Ok(File::from(file)),
        _ => Err(OpenFileError::NotAFile { path: path.to_owned() }),
    }
}

/// Why a file of a work folder is not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenFileError {
    /// The path is not one inside the folder.
    #[error(
        "{path:?} is not a path of the job's files; they are named from the work folder on, without `..`"
    )]
    Outside {
        /// The path.
        path: PathBuf,
    },
    /// There is nothing of that name.
    #[error("the job has no file {path:?}; list its files to see those it has")]
    Missing {
        /// The path.
        path: PathBuf,
    },
    /// It is a folder or a link, or the like, or a link is on the way to it.
    #[error(
        "{path:?} is not a file of the job; folders cannot be read, and links are not followed"
    )]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// It cannot be read.
    #[error("the job's file {path:?} cannot be read: {source}")]
    Failed {
        /// The path.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
}

/// Removes a job's folder with all that is in it. One that is not there is removed
/// already. Nothing may write to it any more.
///
/// What is in folders is moved up to the top before they are removed, so a removal that
/// fails or is interrupted can leave folders with other names, and be tried again.
///
/// # Errors
///
/// The first thing that cannot be removed. What was removed before stays so.
pub fn remove(folder: &Path) -> Result<(), RemoveError> {
    let fail = |path: PathBuf| move |source: Errno| RemoveError { path, source: source.into() };
    let top = match open_any_folder(CWD, folder.as_os_str()) {
        Err(Errno::NOENT) => return Ok(()),
        other => other.map_err(fail(folder.to_owned()))?,
    };
    let mut moved = 0;
    // Entries that come while others go may be passed over, so it is read until there
    // are none.
    loop {
        let mut is_empty = true;
        for name in Names::of(&top).map_err(fail(folder.to_owned()))? {
            let path = |name: &CStr| folder.join(OsStr::from_bytes(name.to_bytes()));
            let name = name.map_err(fail(folder.to_owned()))?;
            is_empty = false;
            if let Removal::Full = remove_entry(top.as_fd(), &name).map_err(fail(path(&name)))? {
                empty(top.as_fd(), &name, &mut moved).map_err(fail(path(&name)))?;
            }
        }
        if is_empty {
            break;
        }
    }
    match unlinkat(CWD, folder, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(fail(folder.to_owned())(error)),
    }
}

/// A job's folder is still there, or part of it.
#[derive(Debug, thiserror::Error)]
#[error("{} cannot be removed: {source}; see to that, or remove it by hand", path.display())]
pub struct RemoveError {
    /// What could not be removed, or held that.
    pub path: PathBuf,
    /// The reason.
    pub source: io::Error,
}

/// Removes a folder of the top one. Folders in it that are not empty move to the top.
fn empty(top: BorrowedFd<'_>, name: &CStr, moved: &mut u64) -> Result<(), Errno> {
    let folder = open_any_folder(top, name)?;
    loop {
        let mut is_empty = true;
        for child in Names::of(&folder)? {
            let child = child?;
            is_empty = false;
            if let Removal::Full = remove_entry(folder.as_fd(), &child)? {
                // It must be writable to get another parent.
                open_any_folder(&folder, &*child)?;
                move_to(top, folder.as_fd(), &child, moved)?;
            }
        }
        if is_empty {
            break;
        }
    }
    match remove_entry(top, name)? {
        Removal::Done => Ok(()),
        Removal::Full => Err(Errno::NOTEMPTY),
    }
}

fn move_to(
    top: BorrowedFd<'_>,
    folder: BorrowedFd<'_>,
    name: &CStr,
    moved: &mut u64,
) -> Result<(), Errno> {
    loop {
        *moved += 1;
        match renameat(folder, name, top, format!(".removed-{moved}")) {
            // It is taken, at most once for each entry there.
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => {}
            other => return other,
        }
    }
}

enum Removal {
    Done,
    /// It is a folder that is not empty.
    Full,
}

/// Removes what is no folder, or an empty one.
fn remove_entry(folder: BorrowedFd<'_>, name: &CStr) -> Result<Removal, Errno> {
    match unlinkat(folder, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(Removal::Done),
        // Which of the two it is for a folder depends on the file system.
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(error) => return Err(error),
    }
    match unlinkat(folder, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(Removal::Done),
        Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(Removal::Full),
        Err(error) => Err(error),
    }
}

const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Opens a folder that is no link, and lets its owner do everything with it.
fn open_any_folder(at: impl AsFd, name: impl rustix::path::Arg) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = openat(at, name, flags, Mode::empty())?;
    if !Mode::from_raw_mode(fstat(&folder)?.st_mode).contains(Mode::RWXU) {
        // By name, it could be a link by now.
        chmod(format!("/proc/self/fd/{}", folder.as_raw_fd()), Mode::RWXU)?;
    }
    openat(&folder, ".", FOLDER, Mode::empty())
}

/// Opens what a path leads to, without a link on the way or at its end.
fn open_below(folder: BorrowedFd<'_>, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let ways = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    match openat2(folder, path, flags, Mode::empty(), ways) {
        // Sandboxes and old kernels do not have it.
        Err(Errno::NOSYS | Errno::PERM) => open_by_steps(folder, path, flags),
        other => other,
    }
}

fn open_by_steps(folder: BorrowedFd<'_>, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(Errno::INVAL);
    };
    let step = FOLDER | OFlags::NOFOLLOW;
    let mut at = openat(folder, ".", step, Mode::empty())?;
    for part in parent {
        at = openat(&at, part, step, Mode::empty())?;
    }
    openat(&at, name, flags, Mode::empty())
}

/// What a walk comes by.
enum Found<'a> {
    /// Something in a folder, with its path.
    Entry { path: &'a dyn Fn() -> PathBuf, about: &'a Stat },
    /// A folder that cannot be read.
    Unreadable(Errno),
}

/// An open folder that others are reached from.
struct Base {
    folder: OwnedFd,
    path: PathBuf,
}

/// Shows all that is in a folder, at any depth, to the function, until it has seen
/// enough. Only the folder itself may be reached by links. What goes while it walks is
/// left out.
fn walk(
    folder: &Path,
    mut show: impl FnMut(Found<'_>) -> io::Result<ControlFlow<()>>,
) -> io::Result<()> {
    let top = match open(folder, FOLDER, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(()),
        other => other?,
    };
    let top = Rc::new(Base { folder: top, path: PathBuf::new() });
    let mut pending = vec![(top, PathBuf::from("."))];
    while let Some((base, path)) = pending.pop() {
        let opened = open_below(base.folder.as_fd(), &path, FOLDER);
        let names = opened.and_then(|folder| Ok((Names::of(&folder)?, folder)));
        let (names, folder) = match names {
            Ok(opened) => opened,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => continue,
            Err(error) => match show(Found::Unreadable(error))? {
                ControlFlow::Continue(()) => continue,
                ControlFlow::Break(()) => return Ok(()),
            },
        };
        // Paths get long, and have to be short to be opened.
        let (base, path) = match path.as_os_str().len() > REACH {
            true => {
                let path = base.path.join(path);
                let folder = rustix::io::fcntl_dupfd_cloexec(&folder, 0)?;
                (Rc::new(Base { folder, path }), PathBuf::from("."))
            }
            false => (base, path),
        };
        for name in names {
            let name = name?;
            let about = match statat(&folder, &*name, AtFlags::SYMLINK_NOFOLLOW) {
                Err(Errno::NOENT) => continue,
                other => other?,
            };
            let below = path.join(OsStr::from_bytes(name.to_bytes()));
            let from_top = || {
                let path = base.path.join(&below);
                path.strip_prefix(".").map(Path::to_owned).unwrap_or(path)
            };
            let found = Found::Entry { path: &from_top, about: &about };
            if show(found)?.is_break() {
                return Ok(());
            }
            if FileType::from_raw_mode(about.st_mode) == FileType::Directory {
                pending.push((Rc::clone(&base), below));
            }
        }
    }
    Ok(())
}

/// The names in a folder, without those of itself and its parent.
struct Names(Dir);

impl Names {
    fn of(folder: impl AsFd) -> Result<Self, Errno> {
        Ok(Self(Dir::read_from(folder)?))
    }
}

impl Iterator for Names {
    type Item = Result<std::ffi::CString, Errno>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.0.read()? {
                Ok(entry) if matches!(entry.file_name().to_bytes(), b"." | b"..") => {}
                entry => return Some(entry.map(|entry| entry.file_name().to_owned())),
            }
        }
    }
}
