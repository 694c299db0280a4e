//! The disk itself: what SQLite asks of it, without the pointers it asks with.

use std::{
    collections::BTreeMap,
    ffi::c_int,
    ops::{Range, RangeInclusive},
    ptr,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU64, Ordering, fence},
    },
};

use rusqlite::ffi;
use tokio::sync::watch;

use super::{
    Counts, Fault, Op, Part,
    folder::Folder,
    image::Image,
    locks::{Level, Levels, Slots},
    rng::Rng,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FileId(pub(super) u64);

/// Whom a file is open to. No two are the same, in all the lives of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct HandleId(pub(super) u64);

/// The answer to a call, or the code that says why there is none.
pub(super) type Answer<T = ()> = Result<T, c_int>;

#[derive(Default)]
pub(super) struct Shared {
    state: Mutex<State>,
    /// Told of all that somebody may wait for: a stall that is reached or released, and
    /// the end of those who have files open.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    folder: Folder,
    files: BTreeMap<FileId, File>,
    open: BTreeMap<HandleId, Handle>,
    /// The number that was given last, to a file or a handle.
    last: u64,
    dark: bool,
    operations: u64,
    counts: BTreeMap<Part, Counts>,
    plan: Plan,
    holds: Vec<Arc<Hold>>,
}

/// What a test has asked for. The numbers are of the operations since the beginning.
#[derive(Default)]
struct Plan {
    failures: Vec<(Op, RangeInclusive<u64>, Fault)>,
    capacity: Option<u64>,
    cut: Option<u64>,
}

#[derive(Default)]
struct File {
    image: Image,
    levels: Levels,
    slots: Slots,
    /// Gone with the last who has mapped it, as is all that it held.
    regions: Weak<Regions>,
}

struct Handle {
    file: FileId,
    part: Part,
    /// The name around which the next sync makes names durable.
    syncs_around: Option<String>,
    /// The name that goes with the handle.
    deletes: Option<String>,
}

/// How a file is to be opened.
#[derive(Default)]
pub(super) struct Opening {
    pub(super) create: bool,
    pub(super) exclusive: bool,
    pub(super) delete_on_close: bool,
    pub(super) syncs_folder: bool,
}

/// A sync that is to stop on its way.
pub(super) struct Hold {
    nth: u64,
    stage: watch::Sender<Stage>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Planned,
    Reached,
    Released,
}

/// What connections to one database share. It is kept as long as one of them may look
/// at it, be it one from before a crash.
#[derive(Default)]
pub(super) struct Regions(Mutex<Vec<Arc<[AtomicU64]>>>);

/// What a test does.
impl Shared {
    pub(super) fn crash(&self, seed: Option<u64>) {
        let mut state = self.lock();
        let mut rng = seed.map(Rng::new);
        state.folder.crash(rng.as_mut());
        for file in state.files.values_mut() {
            file.image.crash(rng.as_mut());
            file.levels = Levels::default();
            file.slots = Slots::default();
            file.regions = Weak::new();
        }
        state.open.clear();
        state.collect();
        state.dark = false;
        self.changed.notify_all();
    }

    pub(super) fn cut_power_at(&self, nth: u64) {
        let mut state = self.lock();
        state.plan.cut = Some(state.operations.saturating_add(nth));
    }

    pub(super) fn operations(&self) -> u64 {
        self.lock().operations
    }

    pub(super) fn counts(&self, part: Part) -> Counts {
        self.lock().counts.get(&part).copied().unwrap_or_default()
    }

    pub(super) fn fail(&self, op: Op, nth: RangeInclusive<u64>, fault: Fault) {
        let mut state = self.lock();
        let done = state.done(op);
        let nth = done.saturating_add(*nth.start())..=done.saturating_add(*nth.end());
        state.plan.failures.push((op, nth, fault));
    }

    pub(super) fn bound(&self, bytes: u64) {
        self.lock().plan.capacity = Some(bytes);
    }

    pub(super) fn heal(&self) {
        self.lock().plan = Plan::default();
    }

    pub(super) fn hold(&self, nth: u64) -> Arc<Hold> {
        let mut state = self.lock();
        let nth = state.done(Op::Sync).saturating_add(nth);
        let hold = Arc::new(Hold { nth, stage: watch::Sender::new(Stage::Planned) });
        state.holds.push(Arc::clone(&hold));
        hold
    }

    pub(super) fn reached(&self, hold: &Hold) {
        let mut state = self.lock();
        while hold.stage() == Stage::Planned {
            state = self.wait(state);
        }
    }

    pub(super) fn release(&self, hold: &Arc<Hold>) {
        let mut state = self.lock();
        state.holds.retain(|other| !Arc::ptr_eq(other, hold));
        hold.stage.send_replace(Stage::Released);
        self.changed.notify_all();
    }
}

/// What SQLite does.
impl Shared {
    pub(super) fn open(&self, name: Option<&str>, opening: &Opening) -> Answer<HandleId> {
        let mut state = self.lock();
        let found = name.and_then(|name| state.folder.find(name));
        let exclusive = opening.create && opening.exclusive;
        let file = match found {
            _ if state.dark => return Err(ffi::SQLITE_CANTOPEN),
            Some(_) if exclusive => return Err(ffi::SQLITE_CANTOPEN),
            None if !opening.create && name.is_some() => return Err(ffi::SQLITE_CANTOPEN),
            Some(file) => file,
            None => {
                let file = FileId(state.number());
                state.files.insert(file, File::default());
                if let Some(name) = name {
                    state.folder.create(name, file);
                }
                file
            }
        };
        let owned = |needed: bool| name.filter(|_| needed).map(str::to_owned);
        let handle = Handle {
            file,
            part: Part::of(name),
            syncs_around: owned(opening.syncs_folder),
            deletes: owned(opening.delete_on_close),
        };
        let id = HandleId(state.number());
        state.open.insert(id, handle);
        Ok(id)
    }

    pub(super) fn close(&self, id: HandleId) {
        let mut state = self.lock();
        let Some(handle) = state.open.remove(&id) else { return };
        if let Some(file) = state.files.get_mut(&handle.file) {
            file.levels.lower(id, None);
            file.slots.free_all(id);
        }
        if let Some(name) = handle.deletes {
            state.folder.delete(&name);
        }
        state.collect();
    }

    pub(super) fn delete(&self, name: &str, and_sync: bool) -> Answer {
        let mut state = self.lock();
        if state.dark {
            return Err(ffi::SQLITE_IOERR_DELETE);
        }
        if state.folder.find(name).is_none() {
            return Err(ffi::SQLITE_IOERR_DELETE_NOENT);
        }
        self.operate(&mut state);
        state.folder.delete(name);
        if state.dark {
            return Err(ffi::SQLITE_IOERR_DELETE);
        }
        if and_sync {
            state.folder.sync_around(name);
        }
        state.collect();
        Ok(())
    }

    /// Returns how long a file is, if there is one.
    pub(super) fn look(&self, name: &str) -> Answer<Option<usize>> {
        let state = self.lock();
        if state.dark {
            return Err(ffi::SQLITE_IOERR_ACCESS);
        }
        let file = state.folder.find(name).and_then(|file| state.files.get(&file));
        Ok(file.map(|file| file.image.bytes().len()))
    }

    /// Fills what is given with what is there, and returns how much that is.
    pub(super) fn read(&self, id: HandleId, at: usize, into: &mut [u8]) -> Answer<usize> {
        let mut state = self.lock();
        let bytes = state.file(id)?.image.bytes();
        let bytes = bytes.get(at..).unwrap_or_default();
        let read = bytes.len().min(into.len());
        into[..read].copy_from_slice(&bytes[..read]);
        Ok(read)
    }

    pub(super) fn write(&self, id: HandleId, at: usize, bytes: &[u8]) -> Answer {
        let mut state = self.lock();
        self.begin(&mut state, id, Op::Write, bytes.len())?;
        let end = at.checked_add(bytes.len()).ok_or(ffi::SQLITE_FULL)?;
        state.make_room(id, end)?;
        state.file(id)?.image.write(at, bytes);
        state.unless_dark(ffi::SQLITE_IOERR_WRITE)
    }

    pub(super) fn resize(&self, id: HandleId, size: usize) -> Answer {
        let mut state = self.lock();
        self.begin(&mut state, id, Op::Write, 0)?;
        state.make_room(id, size)?;
        state.file(id)?.image.resize(size);
        state.unless_dark(ffi::SQLITE_IOERR_TRUNCATE)
    }

    pub(super) fn sync(&self, id: HandleId) -> Answer {
        let mut state = self.lock();
        self.begin(&mut state, id, Op::Sync, 0)?;
        state.unless_dark(ffi::SQLITE_IOERR_FSYNC)?;
        let mark = state.file(id)?.image.mark();
        let nth = state.done(Op::Sync);
        if let Some(hold) = state.holds.iter().find(|hold| hold.nth == nth).cloned() {
            hold.stage.send_replace(Stage::Reached);
            self.changed.notify_all();
            while hold.stage() != Stage::Released && state.is_alive(id) {
                state = self.wait(state);
            }
        }
        state.unless_dark(ffi::SQLITE_IOERR_FSYNC)?;
        state.file(id)?.image.sync(mark);
        state.sync_names(id);
        Ok(())
    }

    pub(super) fn size(&self, id: HandleId) -> Answer<usize> {
        Ok(self.lock().file(id)?.image.bytes().len())
    }

    pub(super) fn raise(&self, id: HandleId, level: Level) -> Answer {
        busy_unless(self.lock().file(id)?.levels.raise(id, level))
    }

    pub(super) fn lower(&self, id: HandleId, level: Option<Level>) -> Answer {
        self.lock().file(id)?.levels.lower(id, level);
        Ok(())
    }

    pub(super) fn is_reserved(&self, id: HandleId) -> Answer<bool> {
        Ok(self.lock().file(id)?.levels.is_reserved())
    }

    pub(super) fn regions(&self, id: HandleId) -> Answer<Arc<Regions>> {
        let mut state = self.lock();
        let file = state.file(id)?;
        Ok(file.regions.upgrade().unwrap_or_else(|| {
            let regions = Arc::default();
            file.regions = Arc::downgrade(&regions);
            regions
        }))
    }

    pub(super) fn share(&self, id: HandleId, slots: Range<usize>) -> Answer {
        busy_unless(self.lock().file(id)?.slots.share(id, slots))
    }

    pub(super) fn exclude(&self, id: HandleId, slots: Range<usize>) -> Answer {
        busy_unless(self.lock().file(id)?.slots.exclude(id, slots))
    }

    pub(super) fn free(&self, id: HandleId, slots: Range<usize>) -> Answer {
        self.lock().file(id)?.slots.free(id, slots);
        Ok(())
    }

    pub(super) fn free_all(&self, id: HandleId) {
        if let Ok(file) = self.lock().file(id) {
            file.slots.free_all(id);
        }
    }

    pub(super) fn barrier(&self) {
        fence(Ordering::SeqCst);
        drop(self.lock());
    }
}

impl Shared {
    /// Counts an operation, and fails it where that was asked for.
    fn begin(&self, state: &mut State, id: HandleId, op: Op, bytes: usize) -> Answer {
        state.file(id)?;
        let part = state.open.get(&id).map_or(Part::Scratch, |handle| handle.part);
        let counts = state.counts.entry(part).or_default();
        match op {
            Op::Write => counts.writes += 1,
            Op::Sync => counts.syncs += 1,
        }
        counts.bytes += bytes as u64;
        self.operate(state);
        let nth = state.done(op);
        let fails =
            |(of, range, _): &&(Op, RangeInclusive<u64>, Fault)| *of == op && range.contains(&nth);
        match state.plan.failures.iter().find(fails) {
            Some((_, _, fault)) => Err(fault.code(op)),
            None => Ok(()),
        }
    }

    /// Counts what changes the disk, which may be its last.
    fn operate(&self, state: &mut State) {
        state.operations += 1;
        if state.plan.cut == Some(state.operations) {
            state.dark = true;
            self.changed.notify_all();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Returns the file that is open to somebody, in case he is still there.
    fn file(&mut self, id: HandleId) -> Answer<&mut File> {
        self.unless_dark(ffi::SQLITE_IOERR)?;
        let handle = self.open.get(&id).ok_or(ffi::SQLITE_IOERR)?;
        self.files.get_mut(&handle.file).ok_or(ffi::SQLITE_IOERR)
    }

    fn is_alive(&self, id: HandleId) -> bool {
        !self.dark && self.open.contains_key(&id)
    }

    fn unless_dark(&self, code: c_int) -> Answer {
        if self.dark { Err(code) } else { Ok(()) }
    }

    /// Refuses to let a file grow beyond what there is room for.
    fn make_room(&self, id: HandleId, end: usize) -> Answer {
        let (Some(capacity), Some(handle)) = (self.plan.capacity, self.open.get(&id)) else {
            return Ok(());
        };
        let sizes = self.files.iter().map(|(id, file)| (*id, file.image.bytes().len() as u64));
        let (mut taken, mut grows) = (0, false);
        for (id, size) in sizes {
            let own = id == handle.file;
            grows |= own && end as u64 > size;
            taken += if own { size.max(end as u64) } else { size };
        }
        if grows && taken > capacity { Err(ffi::SQLITE_FULL) } else { Ok(()) }
    }

    /// Makes durable the names that a sync of the file brings with it.
    fn sync_names(&mut self, id: HandleId) {
        let Some(handle) = self.open.get_mut(&id) else { return };
        if let Some(name) = handle.syncs_around.take() {
            self.folder.sync_around(&name);
        }
        self.folder.sync_names_of(handle.file);
        self.collect();
    }

    /// Drops the files that nobody can come by.
    fn collect(&mut self) {
        let Self { files, folder, open, .. } = self;
        files.retain(|id, _| folder.knows(*id) || open.values().any(|handle| handle.file == *id));
    }

    fn done(&self, op: Op) -> u64 {
        let done = |counts: &Counts| match op {
            Op::Write => counts.writes,
            Op::Sync => counts.syncs,
        };
        self.counts.values().map(done).sum()
    }

    fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }
}

impl Hold {
    pub(super) async fn reached(&self) {
        // Its sender is this one, so it does not end before.
        _ = self.stage.subscribe().wait_for(|stage| *stage != Stage::Planned).await;
    }

    fn stage(&self) -> Stage {
        *self.stage.borrow()
    }
}

impl Regions {
    /// Returns where a region is, which is made of zeros where it is to be and is not.
    pub(super) fn find(&self, nth: usize, size: usize, make: bool) -> *mut u64 {
        let mut regions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        while make && regions.len() <= nth {
            let words = size.div_ceil(size_of::<u64>());
            regions.push((0..words).map(|_| AtomicU64::new(0)).collect());
        }
        regions.get(nth).map_or(ptr::null_mut(), |region| region.as_ptr().cast_mut().cast())
    }
}

impl Fault {
    fn code(self, op: Op) -> c_int {
        match (self, op) {
            (Self::Full, _) => ffi::SQLITE_FULL,
            (Self::ReadOnly, _) => ffi::SQLITE_READONLY,
            (Self::Io, Op::Write) => ffi::SQLITE_IOERR_WRITE,
            (Self::Io, Op::Sync) => ffi::SQLITE_IOERR_FSYNC,
        }
    }
}

fn busy_unless(had: bool) -> Answer {
    if had { Ok(()) } else { Err(ffi::SQLITE_BUSY) }
}
