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
        AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, chmod, fstat, openat,
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
const REACH: usize = 3 << 10;

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
pub fn list(work: &Path, max: usize) -> io::Result<Listing> {
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
/// [`OpenError::Outside`] for paths that could lead elsewhere; others when there is
/// no file, or it cannot be read.
pub fn open(work: &Path, path: &Path) -> Result<File, OpenError> {
    let fail = |source: Errno| match source {
        Errno::NOENT | Errno::NOTDIR => OpenError::Missing { path: path.to_owned() },
        // What is said to a link, and to a socket.
        Errno::LOOP | Errno::NXIO => OpenError::NotAFile { path: path.to_owned() },
        source => OpenError::Failed { path: path.to_owned(), source: source.into() },
    };
    let is_plain = path.components().all(|part| matches!(part, Component::Normal(_)));
    if !is_plain || path.as_os_str().is_empty() {
        return Err(OpenError::Outside { path: path.to_owned() });
    }
    let work = openat(CWD, work, FOLDER, Mode::empty()).map_err(fail)?;
    // What is no file is not waited for.
    let file = open_below(work.as_fd(), path, OFlags::RDONLY | OFlags::NONBLOCK).map_err(fail)?;
    let about = fstat(&file).map_err(fail)?;
    match FileType::from_raw_mode(about.st_mode) {
        FileType::RegularFile => Ok(File::from(file)),
        _ => Err(OpenError::NotAFile { path: path.to_owned() }),
    }
}

/// Why a file of a work folder is not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
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
        Err(Errno::ISDIR) => {}
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
    folder: Rc<OwnedFd>,
    path: PathBuf,
}

/// Shows all that is in a folder, at any depth, to the function, until it has seen
/// enough. Only the folder itself may be reached by links. What goes while it walks is
/// left out.
fn walk(
    folder: &Path,
    mut show: impl FnMut(Found<'_>) -> io::Result<ControlFlow<()>>,
) -> io::Result<()> {
    let top = match openat(CWD, folder, FOLDER, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(()),
        other => other?,
    };
    let top = Rc::new(Base { folder: Rc::new(top), path: PathBuf::new() });
    let mut pending = vec![(top, PathBuf::new())];
    while let Some((base, path)) = pending.pop() {
        let at = if path.as_os_str().is_empty() { Path::new(".") } else { &path };
        let opened = open_below(base.folder.as_fd(), at, FOLDER);
        let (names, folder) = match opened.and_then(|it| Ok((Names::of(&it)?, Rc::new(it)))) {
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
                let (folder, path) = (Rc::clone(&folder), base.path.join(path));
                (Rc::new(Base { folder, path }), PathBuf::new())
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
            let from_top = || base.path.join(&below);
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

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::{
            fs::{MetadataExt as _, PermissionsExt as _, symlink},
            net::UnixListener,
        },
    };

    use rustix::fs::mkdirat;

    use super::*;

    /// Returns a folder beside which there is one with a file that nobody may touch.
    fn work() -> (tempfile::TempDir, PathBuf, PathBuf) {
        let outer = tempfile::tempdir().unwrap();
        let (job, other) = (outer.path().join("job"), outer.path().join("other"));
        fs::create_dir_all(job.join("work")).unwrap();
        fs::create_dir(&other).unwrap();
        fs::write(other.join("secret"), "secret").unwrap();
        (outer, job, other)
    }

    /// Makes folders in folders, deeper than any path can say, and a file in the last.
    fn nest(folder: &Path, depth: usize) {
        let mut at = openat(CWD, folder, FOLDER, Mode::empty()).unwrap();
        for _ in 0..depth {
            mkdirat(&at, "deeper", Mode::RWXU).unwrap();
            at = openat(&at, "deeper", FOLDER, Mode::empty()).unwrap();
        }
        let flags = OFlags::CREATE | OFlags::WRONLY;
        let file = File::from(openat(&at, "file", flags, Mode::RUSR).unwrap());
        io::Write::write_all(&mut &file, &[1; 100_000]).unwrap();
        file.sync_all().unwrap();
    }

    fn pipe(path: &Path) {
        rustix::fs::mknodat(CWD, path, FileType::Fifo, Mode::RWXU, 0).unwrap();
    }

    fn paths(listing: &Listing) -> Vec<&str> {
        listing.files.iter().map(|file| file.path.to_str().unwrap()).collect()
    }

    #[test]
    fn files_are_listed_by_path_and_links_are_none() {
        let (_outer, job, other) = work();
        let work = job.join("work");
        fs::create_dir_all(work.join("b/c")).unwrap();
        for name in ["b/c/z", "b/a", "z", "a"] {
            fs::write(work.join(name), name).unwrap();
        }
        symlink(&other, work.join("link")).unwrap();
        symlink(other.join("secret"), work.join("b/secret")).unwrap();
        symlink("..", work.join("b/loop")).unwrap();
        pipe(&work.join("pipe"));
        let listing = list(&work, 10).unwrap();
        assert_eq!(paths(&listing), ["a", "b/a", "b/c/z", "z"]);
        assert!(!listing.has_more);
        let about = fs::metadata(work.join("b/c/z")).unwrap();
        let entry = &listing.files[2];
        assert_eq!(entry.bytes, 5);
        assert_eq!(entry.modified_ms, about.mtime() * 1000 + about.mtime_nsec() / 1_000_000);
        let listing = list(&work, 2).unwrap();
        assert_eq!(paths(&listing), ["a", "b/a"]);
        assert!(listing.has_more);
        assert_eq!(list(&job.join("missing"), 2).unwrap(), Listing::default());
    }

    #[test]
    fn what_lies_deeper_than_a_path_can_say_is_told_of() {
        let (_outer, job, _) = work();
        let work = job.join("work");
        fs::write(work.join("file"), "").unwrap();
        nest(&work, 700);
        let listing = list(&work, 10).unwrap();
        assert_eq!(paths(&listing), ["file"]);
        assert!(listing.has_more);
    }

    #[test]
    fn usage_is_what_the_disk_gives_however_deep() {
        let (_outer, job, other) = work();
        let work = job.join("work");
        nest(&work, 700);
        symlink(&other, work.join("link")).unwrap();
        fs::write(other.join("large"), vec![1; 10_000_000]).unwrap();
        // One that takes no room, whatever it says.
        File::create(work.join("sparse")).unwrap().set_len(1 << 40).unwrap();
        let used = usage(&job).unwrap();
        // A folder may take a block.
        assert!((100_000..100_000 + 10_000_000).contains(&used), "{used}");
        assert_eq!(usage(&job.join("missing")).unwrap(), 0);
    }

    #[test]
    fn a_file_is_opened_where_it_is_and_nowhere_else() {
        let (_outer, job, other) = work();
        let work = job.join("work");
        fs::create_dir(work.join("folder")).unwrap();
        fs::write(work.join("folder/file"), "text").unwrap();
        symlink(&other, work.join("out")).unwrap();
        symlink("folder/file", work.join("in")).unwrap();
        symlink("folder", work.join("around")).unwrap();
        pipe(&work.join("pipe"));
        let _listener = UnixListener::bind(work.join("socket")).unwrap();
        let open = |path: &str| open(&work, Path::new(path));
        assert_eq!(io::read_to_string(open("folder/file").unwrap()).unwrap(), "text");
        let secret = other.join("secret").display().to_string();
        for path in ["", "..", "../../other/secret", "folder/../../x", "/etc/passwd", &secret] {
            assert!(matches!(open(path), Err(OpenError::Outside { .. })), "{path}");
        }
        for path in ["out/secret", "in", "around/file", "folder", ".", "pipe", "socket"] {
            let refused = open(path);
            assert!(
                matches!(refused, Err(OpenError::NotAFile { .. } | OpenError::Outside { .. })),
                "{path}: {refused:?}"
            );
        }
        for path in ["no", "folder/no", "folder/file/no", "folder/file/"] {
            assert!(matches!(open(path), Err(OpenError::Missing { .. })), "{path}");
        }
    }

    #[test]
    fn without_openat2_steps_lead_to_the_same() {
        let (_outer, job, other) = work();
        let work = job.join("work");
        fs::create_dir_all(work.join("a/b")).unwrap();
        fs::write(work.join("a/b/file"), "text").unwrap();
        fs::write(work.join("file"), "text").unwrap();
        symlink(&other, work.join("out")).unwrap();
        symlink(other.join("secret"), work.join("a/secret")).unwrap();
        let folder = openat(CWD, &work, FOLDER, Mode::empty()).unwrap();
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let steps = |path: &str| open_by_steps(folder.as_fd(), Path::new(path), flags);
        for path in ["a/b/file", "file", "a/b"] {
            let same = |it: &OwnedFd| fstat(it).unwrap().st_ino;
            let below = open_below(folder.as_fd(), Path::new(path), OFlags::RDONLY).unwrap();
            assert_eq!(same(&steps(path).unwrap()), same(&below), "{path}");
        }
        for path in ["out/secret", "a/secret"] {
            assert!(matches!(steps(path), Err(Errno::LOOP | Errno::NOTDIR)), "{path}");
        }
    }

    #[test]
    fn a_folder_is_removed_and_what_links_lead_to_is_not() {
        let (_outer, job, other) = work();
        let work = job.join("work");
        fs::create_dir_all(work.join("a/b/c")).unwrap();
        fs::write(work.join("a/b/c/file"), "").unwrap();
        fs::write(job.join(".removed-1"), "").unwrap();
        fs::create_dir_all(job.join(".removed-2/full")).unwrap();
        symlink(&other, work.join("a/b/out")).unwrap();
        symlink("..", work.join("a/b/c/up")).unwrap();
        fs::hard_link(other.join("secret"), work.join("hard")).unwrap();
        pipe(&work.join("pipe"));
        remove(&job).unwrap();
        assert!(!job.exists());
        assert_eq!(fs::read_to_string(other.join("secret")).unwrap(), "secret");
        remove(&job).unwrap();
    }

    #[test]
    fn a_folder_that_is_a_link_is_not_removed() {
        let (outer, _, other) = work();
        let link = outer.path().join("link");
        symlink(&other, &link).unwrap();
        let error = remove(&link).unwrap_err();
        assert_eq!(error.path, link);
        assert!(other.join("secret").exists());
    }

    #[test]
    fn a_folder_that_is_closed_to_all_is_removed() {
        let (_outer, job, _) = work();
        let work = job.join("work");
        fs::create_dir_all(work.join("a/b/c/d")).unwrap();
        fs::write(work.join("a/b/c/file"), "").unwrap();
        for closed in ["a/b/c", "a/b", "a", ""] {
            fs::set_permissions(work.join(closed), fs::Permissions::from_mode(0o000)).unwrap();
        }
        fs::set_permissions(&job, fs::Permissions::from_mode(0o500)).unwrap();
        remove(&job).unwrap();
        assert!(!job.exists());
    }

    #[test]
    fn a_folder_deeper_than_any_path_is_removed() {
        let (_outer, job, _) = work();
        // Who kept a descriptor for each level would run out of them, too.
        nest(&job.join("work"), 1_500);
        remove(&job).unwrap();
        assert!(!job.exists());
    }

    #[test]
    fn a_broad_folder_is_removed() {
        let (_outer, job, _) = work();
        for folder in 0..2 {
            let folder = job.join(format!("work/{folder}"));
            fs::create_dir(&folder).unwrap();
            for file in 0..1_000 {
                fs::write(folder.join(file.to_string()), "").unwrap();
            }
        }
        remove(&job).unwrap();
        assert!(!job.exists());
    }
}
