//! Compiled code that was kept, so that it need not be compiled again.
//!
//! Compiled code is trusted blindly by whoever loads it, so an entry is what it
//! says only if its checksum says so, on the very file that is then mapped, and
//! only in a folder that nobody else can write to. It is the folder that keeps those
//! out who mean harm; the checksum finds what was damaged, and is one that takes
//! little time, since every load sums up all of its entry. Whatever is wrong with an
//! entry makes it a miss. It is kept for one component, by digest, and for one way to
//! compile, by wasmtime's version and settings.
//!
//! A memo says which component a file holds, by all that changes when a file does,
//! so that a large file is not read to find out.

use std::{
    collections::hash_map::{DefaultHasher, RandomState},
    fmt,
    fs::{self, File, Metadata},
    hash::{BuildHasher as _, Hash as _, Hasher as _},
    io::{self, BufReader, Read as _, Write as _},
    os::{
        fd::{AsRawFd as _, OwnedFd},
        unix::fs::{DirBuilderExt as _, MetadataExt as _},
    },
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use rustix::{
    fs::{
        AtFlags, Dir, FileType, Mode, OFlags, Timespec, Timestamps, UTIME_NOW, fstat, futimens,
        open, openat, renameat, statat, unlinkat,
    },
    process::geteuid,
};
use sha2::{Digest as _, Sha256};
use xxhash_rust::xxh3::Xxh3;

/// What ends the file of an entry: a mark with the version of this format, the
/// digest of the component, the key of the engine and the checksum of all before.
const TRAILER: usize = MARK.len() + 32 + 8 + 16;
const MARK: &[u8; 8] = b"BACKLOT\x02";
/// How the names of files end.
const CODE: &str = "code";
const MEMO: &str = "memo";
const DRAFT: &str = "draft";
/// The largest entry that is looked at, in bytes.
const ENTRY_BYTES: u64 = 2 << 30;
/// How much of an entry is read at a time: what stays in a core's own cache until it
/// is summed up.
const PIECE: usize = 64 << 10;
/// How large a memo may be, in bytes: a few numbers and a digest.
const MEMO_BYTES: u64 = 512;
/// A file that was changed this recently may be changed again without its times
/// telling.
const SETTLED: Duration = Duration::from_secs(2);
/// What was left half-written this long ago will not be finished.
const ABANDONED: Duration = Duration::from_secs(3600);

/// The SHA-256 digest of a component.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct ComponentDigest([u8; 32]);

impl ComponentDigest {
    pub(crate) fn of(component: &[u8]) -> Self {
        Self(Sha256::digest(component).into())
    }

    fn from_hex(text: &str) -> Option<Self> {
        let mut digest = [0; 32];
        if text.len() != 64 || !text.is_ascii() {
            return None;
        }
        for (byte, place) in digest.iter_mut().zip((0..64).step_by(2)) {
            *byte = u8::from_str_radix(&text[place..place + 2], 16).ok()?;
        }
        Some(Self(digest))
    }
}

/// Returns the digest of a component as it is shown: `sha256:` and 64 hexadecimal digits.
pub fn digest_of(component: &[u8]) -> String {
    format!("sha256:{}", ComponentDigest::of(component))
}

impl fmt::Display for ComponentDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ComponentDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// A file as it was at one time.
///
/// What writes to it through a shared mapping may leave its times as they were, as no
/// other way to change a file does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileStamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl From<&Metadata> for FileStamp {
    fn from(about: &Metadata) -> Self {
        Self {
            device: about.dev(),
            inode: about.ino(),
            size: about.size(),
            modified: (about.mtime(), about.mtime_nsec()),
            changed: (about.ctime(), about.ctime_nsec()),
        }
    }
}

impl FileStamp {
    /// Returns one that differs from those with other numbers.
    #[cfg(test)]
    pub(crate) fn numbered(inode: u64) -> Self {
        Self { device: 0, inode, size: 0, modified: (0, 0), changed: (0, 0) }
    }

    /// Tells whether a later change of the file would show in its times.
    pub(crate) fn is_settled(&self, now: SystemTime) -> bool {
        let last = self.modified.max(self.changed).0;
        let Ok(last) = u64::try_from(last) else { return true };
        let then = SystemTime::UNIX_EPOCH + Duration::from_secs(last + 1);
        now.duration_since(then).is_ok_and(|since| since >= SETTLED)
    }

    /// Returns all of it and a digest, as a memo has them.
    fn line(&self, digest: &ComponentDigest) -> String {
        let Self { device, inode, size, modified, changed } = self;
        let (modified, changed) =
            (format!("{}.{}", modified.0, modified.1), format!("{}.{}", changed.0, changed.1));
        format!("backlot memo 1 {device} {inode} {size} {modified} {changed} {digest}")
    }
}

/// Why a folder is not used for compiled code.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// It cannot be made or opened.
    #[error("the compile cache {} cannot be used: {source}; name another folder with --cache", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Others could have put there what it has.
    #[error(
        "the compile cache {} is not trusted: {why}; remove it, or name another with --cache",
        path.display()
    )]
    NotTrusted {
        /// The folder.
        path: PathBuf,
        /// Who could.
        why: String,
    },
}

/// A folder of compiled code. It belongs to one user, and may be used by any number
/// of processes at a time.
#[derive(Debug)]
pub struct Cache {
    path: PathBuf,
    folder: OwnedFd,
    /// How much is kept, in bytes.
    limit: u64,
    /// Why something was not kept, the last time.
    trouble: Mutex<Option<String>>,
}

impl Cache {
    /// Opens a folder, which is made if it is missing, to keep up to `limit` bytes.
    ///
    /// # Errors
    ///
    /// When the folder cannot be used, or others than this user can write to it.
    pub fn open(path: &Path, limit: u64) -> Result<Self, CacheError> {
        let fail = |source: io::Error| CacheError::Folder { path: path.to_owned(), source };
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = match open(path, flags, Mode::empty()) {
            Ok(folder) => folder,
            // Why it could not be made says more.
            Err(error) => return Err(fail(made.err().unwrap_or_else(|| error.into()))),
        };
        let about = fstat(&folder).map_err(|error| fail(error.into()))?;
        let distrust = |why: String| CacheError::NotTrusted { path: path.to_owned(), why };
        if about.st_uid != geteuid().as_raw() {
            return Err(distrust(format!("it belongs to user {}", about.st_uid)));
        }
        if about.st_mode & 0o022 != 0 {
            let mode = about.st_mode & 0o7777;
            return Err(distrust(format!("others can write to it (mode {mode:04o})")));
        }
        Ok(Self { path: path.to_owned(), folder, limit, trouble: Mutex::default() })
    }

    /// Returns the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns why something was not kept, the last time that happened.
    pub fn trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the file with the compiled code of a component, if it is here and
    /// whole.
    pub(crate) fn find(&self, key: &Key) -> Option<File> {
        let name = key.file();
        let file = self.open_entry(&name, ENTRY_BYTES)?;
        match key.is_of(&file) {
            Ok(true) => {
                // What was used last is given up last.
                let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
                let _ = futimens(&file, &Timestamps { last_access: now, last_modification: now });
                Some(file)
            }
            // It is of no use to anybody, whoever wrote it.
            Ok(false) => {
                self.forget(key);
                None
            }
            Err(_) => None,
        }
    }

    /// Removes what is kept under a key.
    pub(crate) fn forget(&self, key: &Key) {
        let _ = unlinkat(&self.folder, key.file(), AtFlags::empty());
    }

    /// Keeps the compiled code of a component, where that is possible.
    pub(crate) fn keep(&self, key: &Key, code: &[u8]) {
        let trailer = key.trailer(code);
        if (code.len() + trailer.len()) as u64 > self.limit.min(ENTRY_BYTES) {
            return self.note("the compiled code is larger than what is kept");
        }
        let written = self.write(&key.file(), &[code, &trailer]);
        self.told(written);
        self.trim();
    }

    /// Returns which component a file holds, if it is known from before.
    pub(crate) fn recall(&self, stamp: &FileStamp) -> Option<ComponentDigest> {
        let mut memo = String::new();
        let file = self.open_entry(&memo_file(stamp), MEMO_BYTES)?;
        file.take(MEMO_BYTES).read_to_string(&mut memo).ok()?;
        let digest = ComponentDigest::from_hex(memo.trim_end().rsplit(' ').next()?)?;
        (memo == stamp.line(&digest)).then_some(digest)
    }

    /// Remembers which component a file holds, once it has settled.
    pub(crate) fn remember(&self, stamp: &FileStamp, digest: &ComponentDigest) {
        if stamp.is_settled(SystemTime::now()) && self.recall(stamp) != Some(*digest) {
            let written = self.write(&memo_file(stamp), &[stamp.line(digest).as_bytes()]);
            self.told(written);
        }
    }

    fn told(&self, written: io::Result<()>) {
        if let Err(error) = written {
            self.note(&error.to_string());
        }
    }

    fn note(&self, why: &str) {
        let trouble = format!("the compile cache {} keeps nothing: {why}", self.path.display());
        tracing::warn!("{trouble}");
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = Some(trouble);
    }

    fn open_entry(&self, name: &str, limit: u64) -> Option<File> {
        // What is no file is not waited for.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = File::from(openat(&self.folder, name, flags, Mode::empty()).ok()?);
        let about = file.metadata().ok()?;
        // The folder may have been open to others at some time.
        let is_own = about.uid() == geteuid().as_raw() && about.mode() & 0o022 == 0;
        (about.is_file() && is_own && about.len() <= limit).then_some(file)
    }

    /// Writes a file as a whole: others see it when it is complete, or never.
    fn write(&self, name: &str, parts: &[&[u8]]) -> io::Result<()> {
        // In containers that share the folder, processes have the same numbers. So
        // the name is random, and a file that has it already is not written to.
        let draft = format!("{:016x}.{DRAFT}", RandomState::new().hash_one(name));
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let written =
            openat(&self.folder, &draft, flags, mode).map_err(io::Error::from).and_then(|file| {
                let mut file = File::from(file);
                parts.iter().try_for_each(|part| file.write_all(part))?;
                Ok(renameat(&self.folder, &draft, &self.folder, name)?)
            });
        if written.is_err() {
            let _ = unlinkat(&self.folder, &draft, AtFlags::empty());
        }
        written
    }

    /// Gives up what was not used for the longest time until what is kept is within
    /// the limit, and what was left half-written. Files of others stay.
    fn trim(&self) {
        let mut kept = self.files();
        kept.sort_by_key(|file| file.used);
        let now = SystemTime::now();
        let mut size: u64 = kept.iter().map(|file| file.size).sum();
        for Kept { name, used, size: freed } in kept {
            let unfinished = name.ends_with(DRAFT);
            let idle = now.duration_since(used).unwrap_or_default();
            if size > self.limit && !unfinished || unfinished && idle > ABANDONED {
                let _ = unlinkat(&self.folder, &name, AtFlags::empty());
                size -= freed;
            }
        }
    }

    fn files(&self) -> Vec<Kept> {
        let Ok(folder) = Dir::read_from(&self.folder) else { return Vec::new() };
        folder
            .flatten()
            .filter_map(|entry| {
                let name = entry.file_name().to_str().ok()?.to_owned();
                if !is_own_name(&name) {
                    return None;
                }
                let about = statat(&self.folder, &name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
                if !FileType::from_raw_mode(about.st_mode).is_file() {
                    return None;
                }
                let secs = u64::try_from(about.st_mtime).unwrap_or(0);
                let nanos = u32::try_from(about.st_mtime_nsec).unwrap_or(0);
                let used = SystemTime::UNIX_EPOCH + Duration::new(secs, nanos);
                // What it takes on the disk.
                let size = u64::try_from(about.st_blocks).unwrap_or(0) * 512;
                Some(Kept { name, used, size })
            })
            .collect()
    }
}

/// A file of the cache.
struct Kept {
    name: String,
    used: SystemTime,
    size: u64,
}

/// Tells whether a file has a name that only this cache gives.
fn is_own_name(name: &str) -> bool {
    let is_hex = |part: &str, lengths: std::ops::RangeInclusive<usize>| {
        lengths.contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    let Some((stem, end)) = name.rsplit_once('.') else { return false };
    match (end, stem.split_once('-')) {
        (CODE, Some((component, engine))) => is_hex(component, 64..=64) && is_hex(engine, 16..=16),
        (MEMO, Some((device, inode))) => is_hex(device, 1..=16) && is_hex(inode, 1..=16),
        (DRAFT, None) => is_hex(stem, 16..=16),
        _ => false,
    }
}

fn memo_file(stamp: &FileStamp) -> String {
    format!("{:x}-{:x}.{MEMO}", stamp.device, stamp.inode)
}

/// What compiled code is kept under.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Key {
    component: ComponentDigest,
    /// wasmtime's version and settings, and the machine that is compiled for.
    engine: u64,
}

impl Key {
    pub(crate) fn new(engine: &wasmtime::Engine, component: ComponentDigest) -> Self {
        let mut hasher = DefaultHasher::new();
        engine.precompile_compatibility_hash().hash(&mut hasher);
        Self { component, engine: hasher.finish() }
    }

    fn file(&self) -> String {
        format!("{}-{:016x}.{CODE}", self.component, self.engine)
    }

    /// Returns what stands behind the code in its file, but for the checksum.
    fn mark(&self) -> Vec<u8> {
        [MARK.as_slice(), &self.component.0, &self.engine.to_le_bytes()].concat()
    }

    /// Returns all that stands behind the code in its file.
    fn trailer(&self, code: &[u8]) -> Vec<u8> {
        let mut sum = Xxh3::new();
        sum.update(code);
        self.closed(sum)
    }

    /// Tells whether a file is a whole entry of this key.
    fn is_of(&self, file: &File) -> io::Result<bool> {
        let Some(length) = file.metadata()?.len().checked_sub(TRAILER as u64) else {
            return Ok(false);
        };
        let mut sum = Xxh3::new();
        let mut code = BufReader::with_capacity(PIECE, file.take(length));
        io::copy(&mut code, &mut sum)?;
        let mut trailer = Vec::with_capacity(TRAILER);
        let rest = code.into_inner().into_inner();
        rest.take(TRAILER as u64).read_to_end(&mut trailer)?;
        Ok(trailer == self.closed(sum))
    }

    /// Returns what stands behind code of which this is the sum.
    fn closed(&self, mut sum: Xxh3) -> Vec<u8> {
        let mark = self.mark();
        sum.update(&mark);
        [mark.as_slice(), &sum.digest128().to_le_bytes()].concat()
    }
}

/// Returns the path under which this process reaches a file that it has open, also
/// when another took its name.
pub(crate) fn path_of(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use tempfile::TempDir;

    use super::*;

    const MUCH: u64 = 1 << 30;

    struct Fixture {
        folder: TempDir,
        cache: Cache,
    }

    fn fixture() -> Fixture {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(&folder.path().join("cache"), MUCH).unwrap();
        Fixture { folder, cache }
    }

    fn key(component: &[u8]) -> Key {
        Key { component: ComponentDigest::of(component), engine: 7 }
    }

    impl Fixture {
        fn entry(&self, key: &Key) -> PathBuf {
            self.cache.path().join(key.file())
        }

        fn has(&self, key: &Key) -> bool {
            self.cache.find(key).is_some()
        }
    }

    #[test]
    fn what_was_kept_is_found_under_its_own_key() {
        let fixture = fixture();
        assert!(!fixture.has(&key(b"a")));
        fixture.cache.keep(&key(b"a"), b"code of a");
        let file = fixture.cache.find(&key(b"a")).unwrap();
        assert!(fs::read(path_of(&file)).unwrap().starts_with(b"code of a"));
        assert!(fixture.has(&key(b"a")));
        assert!(!fixture.has(&key(b"b")), "another component");
        assert!(!fixture.has(&Key { engine: 8, ..key(b"a") }), "another engine");
        assert_eq!(fixture.cache.trouble(), None);
    }

    #[test]
    fn c30_an_entry_that_is_not_whole_or_not_its_own_is_a_miss_and_goes() {
        let fixture = fixture();
        let (one, other) = (key(b"one"), key(b"other"));
        fixture.cache.keep(&other, b"code of the other");
        let foreign = fs::read(fixture.entry(&other)).unwrap();
        fixture.cache.keep(&one, b"code of the one");
        let whole = fs::read(fixture.entry(&one)).unwrap();
        let newer = Key { engine: 8, ..one }.trailer(b"code of the one");
        let mut damages: Vec<Vec<u8>> = vec![
            Vec::new(),
            b"text".to_vec(),
            fs::read("/bin/ls").unwrap(),
            foreign,
            [b"code of the one".as_slice(), &newer].concat(),
            [whole.as_slice(), b"x"].concat(),
        ];
        damages.extend((0..whole.len()).map(|length| whole[..length].to_vec()));
        damages.extend((0..whole.len()).map(|place| {
            let mut flipped = whole.clone();
            flipped[place] ^= 1;
            flipped
        }));
        for damage in damages {
            fs::write(fixture.entry(&one), &damage).unwrap();
            assert!(!fixture.has(&one), "{} bytes were taken", damage.len());
            assert!(!fixture.entry(&one).exists(), "it stays and is looked at for ever");
        }
        assert!(fixture.has(&other));
    }

    #[test]
    fn an_entry_of_the_format_before_is_a_miss() {
        let fixture = fixture();
        let key = key(b"a");
        let mark = [b"BACKLOT\x01".as_slice(), &key.component.0, &key.engine.to_le_bytes()];
        let code = [b"code of a".as_slice(), &mark.concat()].concat();
        let sum = Sha256::digest(&code);
        fs::write(fixture.entry(&key), [code.as_slice(), &sum].concat()).unwrap();
        assert!(!fixture.has(&key));
        fixture.cache.keep(&key, b"code of a");
        assert!(fixture.has(&key));
    }

    #[test]
    fn an_entry_of_many_pieces_is_found_and_damage_in_each_of_them() {
        let fixture = fixture();
        let code: Vec<u8> = (0..3 * PIECE + 7).map(|at| (at % 251) as u8).collect();
        for place in (0..code.len()).step_by(PIECE / 2 + 1) {
            fixture.cache.keep(&key(b"a"), &code);
            assert!(fixture.has(&key(b"a")));
            let mut entry = fs::read(fixture.entry(&key(b"a"))).unwrap();
            entry[place] ^= 0x80;
            fs::write(fixture.entry(&key(b"a")), entry).unwrap();
            assert!(!fixture.has(&key(b"a")), "byte {place} is another");
        }
    }

    #[test]
    fn an_entry_that_is_no_file_is_a_miss_and_nobody_waits_for_it() {
        let fixture = fixture();
        let fifo = FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, fixture.entry(&key(b"a")), fifo, Mode::RUSR, 0)
            .unwrap();
        assert!(!fixture.has(&key(b"a")));
        fixture.cache.keep(&key(b"b"), b"code");
        symlink(fixture.entry(&key(b"b")), fixture.entry(&key(b"c"))).unwrap();
        assert!(!fixture.has(&key(b"c")));
    }

    #[test]
    fn c30_a_folder_that_others_can_write_to_is_not_trusted() {
        let fixture = fixture();
        for mode in [0o777, 0o770, 0o702] {
            fs::set_permissions(fixture.cache.path(), fs::Permissions::from_mode(mode)).unwrap();
            let error = Cache::open(fixture.cache.path(), MUCH).unwrap_err();
            assert!(error.to_string().contains(&format!("mode {mode:04o}")), "{error}");
        }
        fs::set_permissions(fixture.cache.path(), fs::Permissions::from_mode(0o755)).unwrap();
        Cache::open(fixture.cache.path(), MUCH).unwrap();
    }

    #[test]
    fn a_folder_is_made_for_this_user_alone_and_what_is_none_is_told() {
        let fixture = fixture();
        let mode = fs::metadata(fixture.cache.path()).unwrap().mode();
        assert_eq!(mode & 0o7777, 0o700);
        let file = fixture.folder.path().join("file");
        fs::write(&file, "").unwrap();
        for no_folder in [file.clone(), file.join("below"), "/proc/none".into()] {
            let error = Cache::open(&no_folder, MUCH).unwrap_err();
            assert!(error.to_string().contains(&no_folder.display().to_string()), "{error}");
        }
    }

    #[test]
    fn an_entry_that_others_could_have_written_is_a_miss() {
        let fixture = fixture();
        fixture.cache.keep(&key(b"a"), b"code");
        let set = |mode| {
            let entry = fixture.entry(&key(b"a"));
            fs::set_permissions(entry, fs::Permissions::from_mode(mode)).unwrap();
        };
        for mode in [0o666, 0o620, 0o602] {
            set(mode);
            assert!(!fixture.has(&key(b"a")), "mode {mode:o}");
        }
        set(0o600);
        assert!(fixture.has(&key(b"a")));
    }

    #[test]
    fn c30_what_cannot_be_written_is_told_and_leaves_nothing_behind() {
        let fixture = fixture();
        // A folder that was removed takes no files, from root neither.
        fs::remove_dir(fixture.cache.path()).unwrap();
        fixture.cache.keep(&key(b"a"), b"code");
        let trouble = fixture.cache.trouble().unwrap();
        assert!(trouble.contains("keeps nothing: No such file"), "{trouble}");
    }

    #[test]
    fn what_was_not_used_for_the_longest_time_is_given_up_first() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cache");
        let cache = Cache::open(&path, 100 << 10).unwrap();
        let code = vec![7; 30 << 10];
        let keys = [key(b"1"), key(b"2"), key(b"3"), key(b"4")];
        let foreign = ["README", "chapter-1.draft", "videos.code", "a-b.memo", "cafe.draft"];
        for name in foreign {
            fs::write(path.join(name), vec![0; 200 << 10]).unwrap();
            let old = SystemTime::now() - Duration::from_secs(100_000);
            File::open(path.join(name)).unwrap().set_modified(old).unwrap();
        }
        for (age, key) in [40, 30, 20].into_iter().zip(&keys) {
            cache.keep(key, &code);
            let then = SystemTime::now() - Duration::from_secs(age);
            File::open(path.join(key.file())).unwrap().set_modified(then).unwrap();
        }
        assert!(cache.find(&keys[0]).is_some(), "and is now the last that was used");
        cache.keep(&keys[3], &code);
        let has: Vec<bool> = keys.iter().map(|key| path.join(key.file()).exists()).collect();
        assert_eq!(has, [true, false, true, true]);
        // `a-b.memo` could be one of its own.
        for name in foreign.iter().filter(|name| **name != "a-b.memo") {
            assert!(path.join(name).exists(), "{name} is of somebody else");
        }
        cache.keep(&key(b"5"), &vec![0; 101 << 10]);
        assert!(cache.trouble().unwrap().contains("larger than what is kept"));
    }

    #[test]
    fn what_was_left_half_written_goes_once_it_is_old() {
        let fixture = fixture();
        let draft = |name: &str, age: u64| {
            let path = fixture.cache.path().join(format!("{name:0>16}.{DRAFT}"));
            fs::write(&path, "half").unwrap();
            let then = SystemTime::now() - Duration::from_secs(age);
            File::open(&path).unwrap().set_modified(then).unwrap();
            path
        };
        let (old, new) = (draft("1", 4_000), draft("2", 1));
        fixture.cache.keep(&key(b"a"), b"code");
        assert!(!old.exists() && new.exists());
    }

    /// A stamp of a file that has not changed for long.
    fn stamp(inode: u64) -> FileStamp {
        FileStamp { device: 1, inode, size: 10, modified: (100, 5), changed: (100, 6) }
    }

    #[test]
    fn a_memo_is_of_one_file_as_it_was() {
        let fixture = fixture();
        let digest = ComponentDigest::of(b"a");
        fixture.cache.remember(&stamp(1), &digest);
        assert_eq!(fixture.cache.recall(&stamp(1)), Some(digest));
        for changed in [
            stamp(2),
            FileStamp { device: 2, ..stamp(1) },
            FileStamp { size: 11, ..stamp(1) },
            FileStamp { modified: (100, 6), ..stamp(1) },
            FileStamp { changed: (101, 6), ..stamp(1) },
        ] {
            assert_eq!(fixture.cache.recall(&changed), None);
        }
        // The memo of another file, in its place.
        let memo = |inode| fixture.cache.path().join(memo_file(&stamp(inode)));
        fs::copy(memo(1), memo(3)).unwrap();
        assert_eq!(fixture.cache.recall(&stamp(3)), None);
        for damage in ["", "x", "backlot memo 1 1 1 10 100.5 100.6 zz"] {
            fs::write(memo(1), damage).unwrap();
            assert_eq!(fixture.cache.recall(&stamp(1)), None);
        }
    }

    #[test]
    fn a_file_that_may_still_change_is_not_remembered() {
        let fixture = fixture();
        let path = fixture.folder.path().join("new.wasm");
        fs::write(&path, "new").unwrap();
        let new = FileStamp::from(&fs::metadata(&path).unwrap());
        fixture.cache.remember(&new, &ComponentDigest::of(b"new"));
        assert_eq!(fixture.cache.recall(&new), None);
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(100);
        let after = |secs| stamp(1).is_settled(now + Duration::from_secs(secs));
        assert!(!after(0) && !after(2) && after(3) && after(3_600));
        // The clock was set back.
        assert!(!stamp(1).is_settled(now - Duration::from_secs(3_600)));
    }

    #[test]
    fn digests_are_read_as_they_are_shown() {
        let digest = ComponentDigest::of(b"a");
        assert_eq!(ComponentDigest::from_hex(&digest.to_string()), Some(digest));
        for bad in ["", "00", &"g".repeat(64), &"€".repeat(22)] {
            assert_eq!(ComponentDigest::from_hex(bad), None);
        }
    }
}
