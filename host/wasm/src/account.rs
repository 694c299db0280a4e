//! The account of a work folder: what is in it, counted exactly.
//!
//! Whatever changes the folder takes its turn at the account, and looks at the files
//! before and after; so nothing has to be estimated, and what fails half-way is counted
//! for what it was. Files and links count by their length, holes included. A file with
//! several names counts once, and one without any counts as long as it is open.

use std::{
    collections::HashSet,
    ffi::CString,
    fs::File,
    io,
    os::{fd::OwnedFd, unix::fs::FileExt as _},
    path::Path,
    sync::{Arc, Weak},
};

use cap_primitives::fs::{
    DirOptions, FollowSymlinks, Metadata, MetadataExt as _, OpenOptions, create_dir, hard_link,
    open, open_dir, remove_dir, remove_file, rename, stat, symlink,
};
use rustix::{
    fs::{AtFlags, FileType, Mode, OFlags, Stat, fstat, openat, statat},
    io::Errno,
};
use tokio::sync::OwnedMutexGuard;

/// How many files, folders and links there may be. Each takes up to 4 KiB of the disk
/// that no length tells of, 256 MiB at most, and an inode; and looking at all of them,
/// which a start does, takes a fraction of a second.
pub(crate) const ENTRIES: u64 = 65_536;

/// How many folders may be in one another, the work folder included. Whoever copies or
/// removes it need not fear for its stack or its descriptors.
const DEPTH: usize = 128;

/// How many open files are noted before those are looked for that are none any more.
const OPEN: usize = 256;

/// A file as the system tells it from others: its device and its inode.
pub(crate) type FileId = (u64, u64);

/// What is in a work folder.
#[derive(Debug, Default)]
pub(crate) struct Account {
    bytes: u64,
    entries: u64,
    open: Vec<(FileId, Weak<File>)>,
    /// Files that lost their last name while they were open, with their lengths.
    nameless: Vec<(FileId, u64)>,
    is_measured: bool,
}

/// Why a work folder takes no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Full {
    Bytes,
    Entries,
}

/// Where bytes are written.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    At(u64),
    End,
}

/// Whether opening a path creates a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Creates {
    Nothing,
    WhatIsMissing,
    /// And fails where there is something.
    New,
}

/// The turn of whoever changes the folder. Others wait until it is dropped. Its calls
/// block.
pub(crate) struct Turn {
    pub(crate) account: OwnedMutexGuard<Account>,
    /// The work folder itself.
    pub(crate) folder: FileId,
    /// How many bytes there may be.
    pub(crate) quota: u64,
    /// Why something was refused, if it was for want of room.
    pub(crate) full: Option<Full>,
}

impl Turn {
    /// Opens a path, and truncates what it opens if it is a file. The options create and
    /// truncate nothing.
    pub(crate) fn open(
        &mut self,
        dir: &File,
        path: &Path,
        options: &OpenOptions,
        creates: Creates,
        truncates: bool,
    ) -> io::Result<File> {
        // What is there is opened as it is: only so it is known what was created.
        let opened = match creates {
            Creates::New => self.create(dir, path, options.clone().create_new(true)),
            Creates::WhatIsMissing => match open(dir, path, options) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    self.create(dir, path, options.clone().create(true))
                }
                opened => opened,
            },
            Creates::Nothing => open(dir, path, options),
        }?;
        if truncates && FileType::from_raw_mode(fstat(&opened)?.st_mode).is_file() {
            self.set_size(&opened, 0)?;
        }
        Ok(opened)
    }

    fn create(&mut self, dir: &File, path: &Path, options: &OpenOptions) -> io::Result<File> {
        self.has_entry()?;
        let created = open(dir, path, options)?;
        self.account.entries += 1;
        Ok(created)
    }

    /// Notes a file that a guest has open from now on.
    pub(crate) fn opened(&mut self, file: &Arc<File>) -> io::Result<()> {
        self.account.opened(id_of(&fstat(file)?), file);
        Ok(())
    }

    /// Writes all of it, or nothing where it does not fit.
    pub(crate) fn write(&mut self, file: &File, place: Place, bytes: &[u8]) -> io::Result<u64> {
        let before = fstat(file)?;
        // Nobody else writes meanwhile, so the end is where it is.
        let at = match place {
            Place::At(at) => at,
            Place::End => length(&before),
        };
        let size = bytes.len() as u64;
        if !bytes.is_empty() {
            self.has_room(at.saturating_add(size).saturating_sub(length(&before)))?;
        }
        let written = file.write_all_at(bytes, at);
        self.account.resized(&before, length(&fstat(file)?));
        written.map(|()| size)
    }

    /// Makes a file longer or shorter.
    pub(crate) fn set_size(&mut self, file: &File, size: u64) -> io::Result<()> {
        let before = fstat(file)?;
        self.has_room(size.saturating_sub(length(&before)))?;
        let set = file.set_len(size);
        self.account.resized(&before, length(&fstat(file)?));
        set
    }

    /// Makes a folder.
    pub(crate) fn create_dir(&mut self, dir: &File, path: &Path) -> io::Result<()> {
        self.has_entry()?;
        if self.depth(dir, path)? > DEPTH {
            return Err(Errno::NAMETOOLONG.into());
        }
        create_dir(dir, path, &DirOptions::new())?;
        self.account.entries += 1;
        Ok(())
    }

    /// Removes an empty folder.
    pub(crate) fn remove_dir(&mut self, dir: &File, path: &Path) -> io::Result<()> {
        remove_dir(dir, path)?;
        self.account.entries = self.account.entries.saturating_sub(1);
        Ok(())
    }

    /// Makes a link to a path.
    pub(crate) fn symlink(&mut self, target: &Path, dir: &File, path: &Path) -> io::Result<()> {
        self.has_entry()?;
        let length = target.as_os_str().len() as u64;
        self.has_room(length)?;
        symlink(target, dir, path)?;
        self.account.entries += 1;
        self.account.bytes += length;
        Ok(())
    }

    /// Gives a file one more name.
    pub(crate) fn hard_link(
        &mut self,
        (dir, path): (&File, &Path),
        (new_dir, new_path): (&File, &Path),
    ) -> io::Result<()> {
        self.has_entry()?;
        hard_link(dir, path, new_dir, new_path)?;
        self.account.entries += 1;
        Ok(())
    }

    /// Takes a name from a file or a link.
    pub(crate) fn unlink(&mut self, dir: &File, path: &Path) -> io::Result<()> {
        let gone = stat(dir, path, FollowSymlinks::No)?;
        remove_file(dir, path)?;
        self.account.unnamed(&gone);
        Ok(())
    }

    /// Gives a file or a folder another name, in place of what has it.
    pub(crate) fn rename(
        &mut self,
        (dir, path): (&File, &Path),
        (new_dir, new_path): (&File, &Path),
    ) -> io::Result<()> {
        let moved = stat(dir, path, FollowSymlinks::No)?;
        if moved.is_dir() {
            self.has_depth((dir, path), (new_dir, new_path))?;
        }
        let replaced = stat(new_dir, new_path, FollowSymlinks::No).ok();
        rename(dir, path, new_dir, new_path)?;
        // Between two names of one file nothing happens.
        if let Some(replaced) =
            replaced.filter(|it| (it.dev(), it.ino()) != (moved.dev(), moved.ino()))
        {
            self.account.unnamed(&replaced);
        }
        Ok(())
    }

    fn has_depth(
        &self,
        (dir, path): (&File, &Path),
        (new_dir, new_path): (&File, &Path),
    ) -> io::Result<()> {
        let depth = self.depth(new_dir, new_path)?;
        // What does not go down gets no deeper, and need not be looked at.
        if depth <= self.depth(dir, path)? {
            return Ok(());
        }
        let levels = Contents::of(&open_dir(dir, path)?)?.levels;
        match depth + levels - 1 > DEPTH {
            true => Err(Errno::NAMETOOLONG.into()),
            false => Ok(()),
        }
    }

    /// Returns how many folders there are down to one at that path, with the work folder
    /// and itself.
    fn depth(&self, dir: &File, path: &Path) -> io::Result<usize> {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let mut here = enter(open_dir(dir, parent.unwrap_or(Path::new(".")))?, c".")?;
        for depth in 2..=DEPTH + 1 {
            if id_of(&fstat(&here)?) == self.folder {
                return Ok(depth);
            }
            here = enter(&here, c"..")?;
        }
        Err(Errno::NAMETOOLONG.into())
    }

    fn has_room(&mut self, growth: u64) -> io::Result<()> {
        if growth == 0 {
            return Ok(());
        }
        if self.account.bytes.saturating_add(growth) > self.quota {
            self.account.forget_closed();
        }
        match self.account.bytes.saturating_add(growth) > self.quota {
            true => Err(self.refuse(Full::Bytes)),
            false => Ok(()),
        }
    }

    fn has_entry(&mut self) -> io::Result<()> {
        match self.account.entries >= ENTRIES {
            true => Err(self.refuse(Full::Entries)),
            false => Ok(()),
        }
    }

    fn refuse(&mut self, full: Full) -> io::Error {
        self.full = Some(full);
        Errno::DQUOT.into()
    }
}

impl Account {
    /// Tells whether it knows what is in the folder.
    pub(crate) fn is_measured(&self) -> bool {
        self.is_measured
    }

    /// Looks at all that is in the folder. Blocks.
    ///
    /// Errors when there is more than there may be, as [`Errno::DQUOT`].
    pub(crate) fn measure(&mut self, folder: &File) -> io::Result<()> {
        let Contents { bytes, entries, .. } = Contents::of(folder)?;
        *self = Self { bytes, entries, is_measured: true, ..Self::default() };
        Ok(())
    }

    fn opened(&mut self, id: FileId, file: &Arc<File>) {
        // A file without a name that nobody has open is gone, and its inode may be this
        // one's by now.
        if !self.nameless.is_empty() && !self.is_open(id) {
            self.forget_closed();
        }
        if self.open.len() >= OPEN.max(self.open.capacity() / 2) {
            self.open.retain(|(_, file)| file.strong_count() > 0);
        }
        self.open.push((id, Arc::downgrade(file)));
    }

    fn is_open(&self, id: FileId) -> bool {
        self.open.iter().any(|(open, file)| *open == id && file.strong_count() > 0)
    }

    fn resized(&mut self, before: &Stat, after: u64) {
        self.bytes = (self.bytes + after).saturating_sub(length(before));
        let id = id_of(before);
        if let Some((_, length)) = self.nameless.iter_mut().find(|(nameless, _)| *nameless == id) {
            *length = after;
        }
    }

    /// Notes that something has a name less.
    fn unnamed(&mut self, gone: &Metadata) {
        self.entries = self.entries.saturating_sub(1);
        if gone.is_dir() || gone.nlink() > 1 {
            return;
        }
        let id = (gone.dev(), gone.ino());
        match self.is_open(id) {
            true => self.nameless.push((id, gone.len())),
            false => self.bytes = self.bytes.saturating_sub(gone.len()),
        }
    }

    /// Gives back what files had that lost their names, as far as nobody has them open.
    fn forget_closed(&mut self) {
        let nameless = std::mem::take(&mut self.nameless);
        let (open, closed): (Vec<_>, Vec<_>) =
            nameless.into_iter().partition(|(id, _)| self.is_open(*id));
        self.nameless = open;
        let given_back = closed.iter().map(|(_, length)| length).sum();
        self.bytes = self.bytes.saturating_sub(given_back);
    }
}

fn id_of(stat: &Stat) -> FileId {
    (stat.st_dev, stat.st_ino)
}

fn length(stat: &Stat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or_default()
}

/// What is in a folder.
#[derive(Debug, Default, PartialEq, Eq)]
struct Contents {
    bytes: u64,
    entries: u64,
    /// How many folders are in one another, with the first.
    levels: usize,
}

impl Contents {
    /// Looks at all that there is, unless it is more than there may be.
    ///
    /// What others have put there can be of any depth. So this neither calls itself nor
    /// keeps the folders above open, and goes up as it came down.
    fn of(folder: &File) -> io::Result<Self> {
        let mut found = Self::default();
        let mut counted = HashSet::new();
        // The folders that lead here, each with those in it that are yet to be looked at.
        let mut above: Vec<(FileId, Vec<CString>)> = Vec::new();
        let mut here = enter(folder, c".")?;
        loop {
            let folders = found.look(&here, &mut counted)?;
            above.push((id_of(&fstat(&here)?), folders));
            found.levels = found.levels.max(above.len());
            here = loop {
                let Some((_, folders)) = above.last_mut() else { return Ok(found) };
                if let Some(next) = folders.pop() {
                    break enter(&here, &next)?;
                }
                above.pop();
                let Some((id, _)) = above.last() else { return Ok(found) };
                here = enter(&here, c"..")?;
                // Somebody else moves folders here.
                if id_of(&fstat(&here)?) != *id {
                    return Err(Errno::STALE.into());
                }
            };
        }
    }

    /// Looks at one folder, and returns those in it.
    fn look(&mut self, here: &OwnedFd, counted: &mut HashSet<FileId>) -> io::Result<Vec<CString>> {
        let mut folders = Vec::new();
        for entry in rustix::fs::Dir::read_from(here)? {
            let entry = entry?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            self.entries += 1;
            if self.entries > ENTRIES {
                return Err(Errno::DQUOT.into());
            }
            let about = statat(here, name, AtFlags::SYMLINK_NOFOLLOW)?;
            match FileType::from_raw_mode(about.st_mode) {
                FileType::Directory => folders.push(name.to_owned()),
                _ if about.st_nlink == 1 || counted.insert(id_of(&about)) => {
                    self.bytes += length(&about);
                }
                _ => {}
            }
        }
        Ok(folders)
    }
}

fn enter(from: impl std::os::fd::AsFd, name: &std::ffi::CStr) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(from, name, flags, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const KIB: u64 = 1 << 10;

    struct Folder {
        folder: tempfile::TempDir,
        dir: File,
        account: Arc<tokio::sync::Mutex<Account>>,
    }

    impl Folder {
        fn new(with: impl FnOnce(&Path)) -> Self {
            let folder = tempfile::tempdir().unwrap();
            with(folder.path());
            let dir = File::open(folder.path()).unwrap();
            let mut account = Account::default();
            account.measure(&dir).unwrap();
            Self { folder, dir, account: Arc::new(account.into()) }
        }

        fn turn(&self) -> Turn {
            let account = Arc::clone(&self.account).try_lock_owned().unwrap();
            let folder = id_of(&fstat(&self.dir).unwrap());
            Turn { account, folder, quota: 64 * KIB, full: None }
        }

        /// Opens a file for writing, and creates it where it is missing.
        fn open(&self, name: &str) -> Arc<File> {
            let mut turn = self.turn();
            let mut options = OpenOptions::new();
            options.read(true).write(true);
            let creates = Creates::WhatIsMissing;
            let file = turn.open(&self.dir, Path::new(name), &options, creates, false).unwrap();
            let file = Arc::new(file);
            turn.opened(&file).unwrap();
            file
        }

        /// Returns what is counted, which has to be what is there.
        fn count(&self) -> (u64, u64) {
            let mut turn = self.turn();
            turn.account.forget_closed();
            let nameless: u64 = turn.account.nameless.iter().map(|(_, length)| length).sum();
            let there = Contents::of(&self.dir).unwrap();
            let counted = (turn.account.bytes - nameless, turn.account.entries);
            assert_eq!(counted, (there.bytes, there.entries));
            (turn.account.bytes, turn.account.entries)
        }
    }

    fn is_full<T: std::fmt::Debug>(came: io::Result<T>) {
        let error = came.unwrap_err();
        assert_eq!(Errno::from_io_error(&error), Some(Errno::DQUOT), "{error}");
    }

    #[test]
    fn what_was_there_counts_and_names_of_one_file_count_once() {
        let folder = Folder::new(|at| {
            fs::create_dir_all(at.join("a/b/c")).unwrap();
            fs::create_dir(at.join("a/d")).unwrap();
            fs::write(at.join("a/b/c/file"), [0; 1000]).unwrap();
            fs::hard_link(at.join("a/b/c/file"), at.join("a/d/same")).unwrap();
            fs::write(at.join("other"), [0; 10]).unwrap();
            std::os::unix::fs::symlink("other", at.join("link")).unwrap();
        });
        assert_eq!(folder.count(), (1015, 8));
    }

    /// Makes folders in one another, and returns the last but for so many.
    fn deep(at: &Path, folders: usize, above: usize) -> File {
        let mut here: Vec<OwnedFd> = vec![File::open(at).unwrap().into()];
        for _ in 0..folders {
            let last = here.last().unwrap();
            rustix::fs::mkdirat(last, "d", Mode::RWXU).unwrap();
            here.push(enter(last, c"d").unwrap());
        }
        File::from(here.swap_remove(folders - above))
    }

    #[test]
    fn folders_of_others_may_be_deep() {
        let folder = Folder::new(|at| drop(deep(at, 500, 0)));
        assert_eq!(folder.count(), (0, 500));
        assert_eq!(Contents::of(&folder.dir).unwrap().levels, 501);
        folder.turn().create_dir(&folder.dir, Path::new("d/d/e")).unwrap();
    }

    #[test]
    fn a_guest_makes_no_deep_folders_and_moves_none_down() {
        let folder = Folder::new(|_| {});
        let path = |name: &'static str| Path::new(name);
        let last = deep(folder.folder.path(), DEPTH - 2, 0);
        let is_deep = |came: io::Result<()>| {
            let error = came.unwrap_err();
            assert_eq!(Errno::from_io_error(&error), Some(Errno::NAMETOOLONG), "{error}");
        };
        folder.turn().create_dir(&last, path("e")).unwrap();
        is_deep(folder.turn().create_dir(&last, path("e/f")));
        is_deep(folder.turn().create_dir(&last, path("./e/../e/f/")));
        for made in ["a", "a/b", "a/b/c"] {
            folder.turn().create_dir(&folder.dir, path(made)).unwrap();
        }
        let dir = &folder.dir;
        is_deep(folder.turn().rename((dir, path("a/b")), (&last, path("b"))));
        folder.turn().rename((dir, path("a/b/c")), (&last, path("e"))).unwrap();
        folder.turn().rename((&last, path("e")), (dir, path("a/b/c"))).unwrap();
        folder.turn().rename((dir, path("a")), (dir, path("z"))).unwrap();
        assert_eq!(Contents::of(&folder.dir).unwrap().levels, DEPTH - 1);
    }

    #[test]
    fn growth_is_counted_by_length_and_what_does_not_fit_changes_nothing() {
        let folder = Folder::new(|_| {});
        let file = folder.open("file");
        let write = |place, size: u64| {
            folder.turn().write(&file, place, &vec![1; usize::try_from(size).unwrap()])
        };
        assert_eq!(write(Place::At(0), 10 * KIB).unwrap(), 10 * KIB);
        assert_eq!(write(Place::At(5 * KIB), 5 * KIB).unwrap(), 5 * KIB);
        assert_eq!(folder.count(), (10 * KIB, 1));
        assert_eq!(write(Place::End, KIB).unwrap(), KIB);
        // A hole counts.
        write(Place::At(63 * KIB), KIB).unwrap();
        assert_eq!(folder.count(), (64 * KIB, 1));
        is_full(write(Place::End, 1));
        is_full(write(Place::At(64 * KIB), 1));
        is_full(write(Place::At(u64::MAX), 1));
        is_full(folder.turn().set_size(&file, 64 * KIB + 1));
        assert_eq!(write(Place::At(0), 64 * KIB).unwrap(), 64 * KIB, "nothing grows");
        assert_eq!(write(Place::At(u64::MAX), 0).unwrap_or_default(), 0);
        assert_eq!(folder.count(), (64 * KIB, 1));
        folder.turn().set_size(&file, KIB).unwrap();
        folder.turn().set_size(&file, 2 * KIB).unwrap();
        assert_eq!(folder.count(), (2 * KIB, 1));
    }

    #[test]
    fn a_file_is_given_back_with_its_last_name_and_its_last_descriptor() {
        let folder = Folder::new(|_| {});
        let path = |name: &'static str| Path::new(name);
        let (dir, file) = (&folder.dir, folder.open("a"));
        folder.turn().set_size(&file, 60 * KIB).unwrap();
        folder.turn().hard_link((dir, path("a")), (dir, path("b"))).unwrap();
        assert_eq!(folder.count(), (60 * KIB, 2));
        folder.turn().rename((dir, path("a")), (dir, path("b"))).unwrap();
        assert_eq!(folder.count(), (60 * KIB, 2));
        folder.turn().unlink(dir, path("a")).unwrap();
        folder.turn().unlink(dir, path("b")).unwrap();
        assert_eq!(folder.count(), (60 * KIB, 0), "it is open");
        folder.turn().set_size(&file, 61 * KIB).unwrap();
        assert_eq!(folder.count(), (61 * KIB, 0));
        let other = folder.open("other");
        is_full(folder.turn().set_size(&other, 4 * KIB));
        drop(file);
        folder.turn().set_size(&other, 64 * KIB).unwrap();
        // The inode of what is gone is often that of what comes next.
        folder.turn().unlink(dir, path("other")).unwrap();
        drop(other);
        let next = folder.open("next");
        folder.turn().set_size(&next, 64 * KIB).unwrap();
        assert_eq!(folder.count(), (64 * KIB, 1));
        drop(next);
        let onto = folder.open("onto");
        folder.turn().rename((dir, path("onto")), (dir, path("next"))).unwrap();
        assert_eq!(folder.count(), (0, 1));
        drop(onto);
    }

    #[test]
    fn folders_links_and_files_are_entries_and_failures_are_none() {
        let folder = Folder::new(|_| {});
        let (dir, path) = (&folder.dir, |name: &'static str| Path::new(name));
        folder.turn().create_dir(dir, path("d")).unwrap();
        folder.turn().create_dir(dir, path("d")).unwrap_err();
        folder.turn().symlink(path("d"), dir, path("l")).unwrap();
        folder.turn().symlink(path("d"), dir, path("l")).unwrap_err();
        drop(folder.open("f"));
        drop(folder.open("f"));
        folder.turn().remove_dir(dir, path("f")).unwrap_err();
        folder.turn().unlink(dir, path("d")).unwrap_err();
        assert_eq!(folder.count(), (1, 3));
        let new = OpenOptions::new().write(true).to_owned();
        let open = |creates| folder.turn().open(dir, path("f"), &new, creates, true);
        open(Creates::New).unwrap_err();
        open(Creates::Nothing).unwrap();
        folder.turn().rename((dir, path("f")), (dir, path("l"))).unwrap();
        folder.turn().remove_dir(dir, path("d")).unwrap();
        assert_eq!(folder.count(), (0, 1));
        folder.turn().account.entries = ENTRIES;
        is_full(folder.turn().create_dir(dir, path("e")));
        is_full(folder.turn().symlink(path("d"), dir, path("e")));
        is_full(folder.turn().hard_link((dir, path("l")), (dir, path("e"))));
        let came = folder.turn().open(dir, path("e"), &new, Creates::WhatIsMissing, false);
        is_full(came);
        folder.turn().open(dir, path("l"), &new, Creates::WhatIsMissing, false).unwrap();
    }
}
