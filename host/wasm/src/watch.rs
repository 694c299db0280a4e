//! Notices when a plugin folder changes, and has what changed taken.
//!
//! The system tells of changes where it can. In any case it is looked every two seconds
//! whether files and folders are what they were, which costs one wake-up of a thread and a
//! few system calls: so nothing is stale for longer than that, whatever the system forgot
//! to tell. Where it tells nothing, the folder is looked at anew each time.

use std::{
    collections::{BTreeMap, HashMap},
    fmt, fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Component, Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{self, Receiver, Sender},
    },
    thread,
    time::{Duration, SystemTime},
};

use backlot_registry::Kind;
use notify::{
    EventKind, RecommendedWatcher, RecursiveMode, Watcher as _,
    event::{AccessKind, AccessMode},
};
use rustix::{
    fd::OwnedFd,
    fs::statfs,
    time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    },
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::Notify,
    task::AbortHandle,
    time::{Instant, sleep, timeout_at},
};

use crate::{
    cache::FileStamp,
    plan::Look,
    reload::{Due, Plugins},
};

/// How long a file has to stay as it is to be taken: what writes in pieces is mostly
/// back sooner, and to a person it is at once.
const SETTLE: Duration = Duration::from_millis(40);
/// How long news of changes may go on coming before the folder is looked at.
const PATIENCE: Duration = Duration::from_millis(500);
/// How often it is looked without any news whether the folder is what it was.
const LOOK: Duration = Duration::from_secs(2);
/// How often it is where news cannot be had.
const POLL: Duration = Duration::from_secs(1);
/// How many folders are watched for the sake of one: its own, that of a link to it,
/// and those that links in it lead through.
const FOLDERS: usize = 64;
/// How many links one path may lead through, as for the kernel.
const LINKS: usize = 40;

/// Keeps the kinds of a folder what its files are, until it is dropped.
#[derive(Debug)]
pub struct Watch {
    shared: Arc<Shared>,
    /// Hears when the thread is about to end.
    over: Mutex<Receiver<()>>,
}

/// How changes are noticed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Watching {
    /// The system tells of them.
    Events,
    /// The folder is looked at every second.
    Polling {
        /// Why the system does not tell.
        why: String,
    },
}

impl fmt::Display for Watching {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Events => f.write_str("changes are noticed at once"),
            Self::Polling { why } => {
                write!(f, "changes are looked for every second: {why}")
            }
        }
    }
}

#[derive(Debug)]
struct Shared {
    stop: Notify,
    changed: Notify,
    watching: Mutex<Watching>,
}

impl Watch {
    /// Starts to watch on a thread of its own. The folder is looked at at once, and
    /// need not be there yet.
    ///
    /// # Errors
    ///
    /// When there is no thread to be had.
    pub fn start(plugins: Plugins) -> io::Result<Self> {
        Self::start_as(plugins, None)
    }

    /// Starts to watch without asking the system to tell of changes.
    ///
    /// # Errors
    ///
    /// As [`Watch::start`].
    pub fn start_polling(plugins: Plugins) -> io::Result<Self> {
        let why = "it was asked for".to_owned();
        Self::start_as(plugins, Some(why))
    }

    fn start_as(plugins: Plugins, polling: Option<String>) -> io::Result<Self> {
        let watching = polling.map_or(Watching::Events, |why| Watching::Polling { why });
        let shared = Arc::new(Shared {
            stop: Notify::new(),
            changed: Notify::new(),
            watching: Mutex::new(watching),
        });
        // Of its own, so that neither guests nor whoever embeds the host hold it up.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let watch = Arc::clone(&shared);
        let (end, over) = mpsc::channel();
        thread::Builder::new().name("backlot-watch".to_owned()).spawn(move || {
            // Also where it panics.
            let _end: Sender<()> = end;
            runtime.block_on(keep_up(&plugins, &watch));
            // A file that cannot be read may hold a thread up for ever.
            runtime.shutdown_background();
        })?;
        Ok(Self { shared, over: Mutex::new(over) })
    }

    /// Returns how changes are noticed.
    pub fn watching(&self) -> Watching {
        self.shared.watching()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.shared.stop.notify_one();
        // For what it is at to be over, mostly at once; not for a folder that hangs.
        let over = self.over.get_mut().unwrap_or_else(PoisonError::into_inner);
        let _ = over.recv_timeout(PATIENCE);
    }
}

impl Shared {
    fn watching(&self) -> Watching {
        self.watching.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn poll(&self, why: String) {
        let mut watching = self.watching.lock().unwrap_or_else(PoisonError::into_inner);
        if *watching == Watching::Events {
            tracing::warn!(why, "the plugin folder is looked at every second");
            *watching = Watching::Polling { why };
        }
    }
}

/// Looks at the folder whenever it may have changed, until it is told to stop.
async fn keep_up(plugins: &Plugins, shared: &Arc<Shared>) {
    let mut events = Events::new(shared);
    let mut loads = Loads::default();
    let alarm = Alarm::new();
    let mut look = Look::Asked;
    loop {
        // Before the look, so that what changes after it is heard of, and seen.
        events.follow(plugins.folder(), shared);
        let glance = events.glance();
        let settling = match plugins.look(look).await {
            Ok((due, settling)) => {
                loads.begin(due);
                settling
            }
            // It is told where the folder is shown, and the next look may find it.
            Err(error) => {
                tracing::debug!(%error, "the plugin folder cannot be looked at");
                false
            }
        };
        look = Look::Watching;
        loop {
            let next = match shared.watching() {
                _ if settling => SETTLE,
                Watching::Events => LOOK,
                Watching::Polling { .. } => POLL,
            };
            tokio::select! {
                () = shared.stop.notified() => return,
                () = shared.changed.notified(), if !settling => quiet(shared).await,
                () = alarm.after(next) => {
                    let is_told = shared.watching() == Watching::Events;
                    if !settling && is_told && glance.holds() && plugins.is_as_seen() {
                        continue;
                    }
                }
            }
            break;
        }
    }
}

/// What folders were at one time.
struct Glance {
    folders: Vec<(PathBuf, FileStamp)>,
    /// Whether whatever changes after it shows.
    is_settled: bool,
}

impl Glance {
    /// Tells whether they are still that.
    fn holds(&self) -> bool {
        let is_same = |(path, then): &(PathBuf, FileStamp)| now(path) == Some(*then);
        self.is_settled && self.folders.iter().all(is_same)
    }
}

/// Returns what a folder is now.
fn now(path: &Path) -> Option<FileStamp> {
    fs::metadata(path).ok().map(|about| FileStamp::from(&about))
}

/// Wakes whoever waits once, when it is time. The runtime's own clock wakes a thread two or
/// three times on the way to what is far off.
struct Alarm(Option<AsyncFd<OwnedFd>>);

impl Alarm {
    fn new() -> Self {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let clock = timerfd_create(TimerfdClockId::Monotonic, flags).map_err(io::Error::from);
        #[expect(deprecated, reason = "the other form is unsafe, and the descriptor is owned")]
        let clock = clock.and_then(|it| AsyncFd::with_interest(it, Interest::READABLE));
        Self(clock.inspect_err(|error| tracing::debug!("there is no alarm: {error}")).ok())
    }

    async fn after(&self, time: Duration) {
        match &self.0 {
            Some(clock) if rings(clock, time).await.is_ok() => {}
            _ => sleep(time).await,
        }
    }
}

/// Waits until a clock that is set to a time from now has rung.
async fn rings(clock: &AsyncFd<OwnedFd>, time: Duration) -> io::Result<()> {
    let it_value = Timespec::try_from(time).map_err(io::Error::other)?;
    let once = Itimerspec { it_interval: Timespec::default(), it_value };
    // Whatever it was set to before is forgotten with that.
    timerfd_settime(clock.get_ref(), TimerfdTimerFlags::empty(), &once)?;
    let read = |clock: &OwnedFd| Ok(rustix::io::read(clock, &mut [0_u8; 8])?);
    clock.async_io(Interest::READABLE, read).await.map(drop)
}

/// Waits until no more news comes for a moment, or for too long.
async fn quiet(shared: &Shared) {
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        let moment = Instant::now() + SETTLE;
        if timeout_at(moment, shared.changed.notified()).await.is_err() {
            return;
        }
    }
}

/// Loads that are under way, the last one for each kind.
#[derive(Default)]
struct Loads(HashMap<Kind, AbortHandle>);

impl Loads {
    fn begin(&mut self, all: Vec<Due>) {
        self.0.retain(|_, load| !load.is_finished());
        for due in all {
            let kind = due.kind.clone();
            let load = tokio::spawn(due.follow());
            // What was being loaded is not what the file is any more.
            if let Some(before) = self.0.insert(kind, load.abort_handle()) {
                before.abort();
            }
        }
    }
}

/// What the system is asked to tell of.
struct Events {
    watcher: Option<RecommendedWatcher>,
    /// The folders, each as it was when it was asked about: another folder may have
    /// its name by now.
    folders: BTreeMap<PathBuf, (u64, u64)>,
}

impl Events {
    fn new(shared: &Arc<Shared>) -> Self {
        let none = Self { watcher: None, folders: BTreeMap::new() };
        if shared.watching() != Watching::Events {
            return none;
        }
        let heard = Arc::clone(shared);
        let hear = move |event: notify::Result<notify::Event>| {
            // What is only read is also told of, by whoever looks as well.
            if !event.is_ok_and(|event| event.kind.is_access() && !is_written(event.kind)) {
                heard.changed.notify_one();
            }
        };
        match notify::recommended_watcher(hear) {
            Ok(watcher) => Self { watcher: Some(watcher), ..none },
            Err(error) => {
                shared.poll(format!("the system tells of no changes: {error}"));
                none
            }
        }
    }

    /// Returns what the folders are that the system tells of.
    fn glance(&self) -> Glance {
        let time = SystemTime::now();
        let folders = self.folders.keys().filter_map(|path| Some((path.clone(), now(path)?)));
        let folders: Vec<_> = folders.collect();
        let is_whole = folders.len() == self.folders.len() && !folders.is_empty();
        let is_settled = is_whole && folders.iter().all(|(_, it)| it.is_settled(time));
        Glance { folders, is_settled }
    }

    /// Sees to it that the system tells of changes of that folder, of links to it and
    /// of what links in it lead to.
    fn follow(&mut self, folder: &Path, shared: &Shared) {
        let Some(watcher) = &mut self.watcher else { return };
        if let Some(kind) = silent(folder) {
            shared.poll(format!("{} is on {kind}, which may tell of none", folder.display()));
        }
        let wanted = folders(folder);
        self.folders.retain(|path, then| {
            let stays = wanted.get(path) == Some(then);
            if !stays {
                // It may be gone, and the watch with it.
                let _ = watcher.unwatch(path);
            }
            stays
        });
        for (path, now) in wanted {
            if self.folders.contains_key(&path) {
                continue;
            }
            match watcher.watch(&path, RecursiveMode::NonRecursive) {
                Ok(()) => _ = self.folders.insert(path, now),
                // It went between the look and the watch.
                Err(_) if !path.exists() => {}
                Err(error) => {
                    shared.poll(format!(
                        "{} cannot be watched: {}",
                        path.display(),
                        reason(&error)
                    ));
                }
            }
        }
    }
}

fn is_written(kind: EventKind) -> bool {
    kind == EventKind::Access(AccessKind::Close(AccessMode::Write))
}

/// Says why a folder cannot be watched, and what would help.
fn reason(error: &notify::Error) -> String {
    match &error.kind {
        notify::ErrorKind::MaxFilesWatch => {
            "the limit of this user on watches is reached; raise fs.inotify.max_user_watches"
                .to_owned()
        }
        _ => error.to_string(),
    }
}

/// Returns the folders whose changes are changes of what a plugin folder shows, each
/// with what tells it from others of the same name.
fn folders(folder: &Path) -> BTreeMap<PathBuf, (u64, u64)> {
    let mut folders = Folders::default();
    folders.through(folder, LINKS);
    folders.add(folder);
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    for link in entries.filter(|entry| entry.file_type().is_ok_and(|it| it.is_symlink())) {
        folders.through(&link.path(), LINKS);
    }
    folders.0
}

#[derive(Default)]
struct Folders(BTreeMap<PathBuf, (u64, u64)>);

impl Folders {
    /// Adds the folders that hold the links which a path leads through, and the one
    /// that holds what it leads to.
    fn through(&mut self, path: &Path, links: usize) {
        let mut walked = PathBuf::new();
        let mut rest = path.components();
        while let Some(step) = rest.next() {
            let above = walked.clone();
            walked.push(step);
            let Component::Normal(_) = step else { continue };
            match fs::read_link(&walked) {
                Ok(target) if links > 0 => {
                    self.add(or_here(&above));
                    return self.through(&above.join(target).join(rest.as_path()), links - 1);
                }
                _ if !walked.exists() => {
                    // Where it will be, if it comes back.
                    return self.add(or_here(&above));
                }
                _ => {}
            }
        }
        if let Some(parent) = path.parent() {
            self.add(or_here(parent));
        }
    }

    fn add(&mut self, folder: &Path) {
        if self.0.len() < FOLDERS
            && let Ok(about) = fs::metadata(folder)
            && about.is_dir()
        {
            self.0.insert(folder.to_owned(), (about.dev(), about.ino()));
        }
    }
}

fn or_here(path: &Path) -> &Path {
    match path.as_os_str().is_empty() {
        true => Path::new("."),
        false => path,
    }
}

/// Returns the name of the file system of a folder, if it is one that others can
/// change without this system being told.
fn silent(folder: &Path) -> Option<&'static str> {
    let kind = statfs(folder).ok()?.f_type;
    // Source: statfs(2), and linux/magic.h.
    match u32::try_from(kind & 0xffff_ffff).ok()? {
        0x6969 => Some("NFS"),
        0xfe53_4d42 | 0xff53_4d42 | 0x517b => Some("SMB"),
        0x6573_5546 => Some("FUSE"),
        0x0102_1997 => Some("9P"),
        0x00c3_6400 => Some("Ceph"),
        0x786f_4256 => Some("a shared folder of VirtualBox"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn what_links_lead_through_is_watched() {
        let root = tempfile::tempdir().unwrap();
        let at = |path: &str| root.path().join(path);
        for folder in ["real/v1", "store/x"] {
            fs::create_dir_all(at(folder)).unwrap();
        }
        fs::write(at("real/v1/a.wasm"), "").unwrap();
        symlink("v1", at("real/..data")).unwrap();
        symlink("..data/a.wasm", at("real/a.wasm")).unwrap();
        fs::write(at("store/x/b.wasm"), "").unwrap();
        symlink(at("store/x/b.wasm"), at("real/b.wasm")).unwrap();
        symlink("real", at("plugins")).unwrap();
        let watched = folders(&at("plugins"));
        for folder in ["", "plugins", "store/x"] {
            let folder = root.path().join(folder);
            let same = |path: &Path| fs::canonicalize(path).unwrap();
            assert!(
                watched.keys().any(|it| same(it) == same(&folder)),
                "{} is not among {watched:?}",
                folder.display()
            );
        }
        assert!(watched.contains_key(&at("real/v1")), "{watched:?}");
    }

    #[test]
    fn links_that_lead_nowhere_or_round_and_round_end() {
        let root = tempfile::tempdir().unwrap();
        symlink("b", root.path().join("a")).unwrap();
        symlink("a", root.path().join("b")).unwrap();
        symlink("gone/x", root.path().join("c")).unwrap();
        assert!(folders(root.path()).len() <= 3);
        let missing = folders(&root.path().join("not/there/yet"));
        assert_eq!(missing.keys().collect::<Vec<_>>(), [root.path()]);
    }
}
