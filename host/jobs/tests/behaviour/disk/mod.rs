//! A disk that forgets, fails and stalls, under a real SQLite.
//!
//! Every [`Disk`] is a VFS of its own, whose files are in memory. What was written is
//! there for all who read, and after [`Disk::crash`] only what was synced before is:
//!
//! - the bytes of a file are durable once it was synced;
//! - its name is durable once it was synced, and gone for good once it was deleted
//!   together with a sync of the folder. As with the VFS of Unix, the first sync of a
//!   journal or a log syncs the folder that it is in.
//!
//! After a crash every connection of before gets `SQLITE_IOERR` and nothing else, for
//! as long as it is kept. It may be dropped before or after a new one is opened.
//!
//! The order of things is that of their calls: an `nth` is counted from the call that
//! names it, and the next one is the first.

mod folder;
mod image;
mod locks;
mod rng;
mod state;
mod tests;
mod vfs;

use std::{ops::AddAssign, sync::Arc};

use rusqlite::Connection;

use self::{
    state::{Hold, Shared},
    vfs::Registration,
};

/// A simulated disk. Its clones are the same disk.
#[derive(Clone)]
pub(crate) struct Disk(Arc<Registration>);

/// What SQLite does to a file. Truncating one is writing to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Write,
    Sync,
}

/// What comes of an operation that is made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// `SQLITE_FULL`.
    Full,
    /// `SQLITE_IOERR_WRITE` for a write, `SQLITE_IOERR_FSYNC` for a sync.
    Io,
    /// `SQLITE_READONLY`.
    ReadOnly,
}

/// What a file is to a database, which its name tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Part {
    Database,
    Wal,
    Journal,
    /// What has no name, and is gone once it is closed.
    Scratch,
}

/// How often files were written to and synced, whether it went well or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) writes: u64,
    pub(crate) syncs: u64,
    /// What the writes would have written.
    pub(crate) bytes: u64,
}

impl Disk {
    pub(crate) fn new() -> Self {
        Self(Arc::new(vfs::register()))
    }

    /// Returns the name under which SQLite knows the disk.
    pub(crate) fn vfs(&self) -> &str {
        self.0.name()
    }

    pub(crate) fn connect(&self, path: &str) -> rusqlite::Result<Connection> {
        Connection::open_with_flags_and_vfs(path, rusqlite::OpenFlags::default(), self.vfs())
    }

    /// Forgets all that is not durable, and all who have a file open.
    pub(crate) fn crash(&self) {
        self.shared().crash(None);
    }

    /// Crashes as disks do, which have written some of what they were not told to: of
    /// each sector what it was after some write or other, and of each name what it was
    /// after some creation or deletion. The seed tells which, and how large sectors are.
    pub(crate) fn crash_keeping(&self, seed: u64) {
        self.shared().crash(Some(seed));
    }

    /// Loses the power in the midst of the nth operation: a write, a sync or a deletion.
    /// All that follows fails, until a crash tells what has remained.
    pub(crate) fn cut_power_at(&self, nth: u64) {
        self.shared().cut_power_at(nth);
    }

    /// Returns how many operations there were that [`Self::cut_power_at`] counts.
    pub(crate) fn operations(&self) -> u64 {
        self.shared().operations()
    }

    pub(crate) fn syncs(&self) -> u64 {
        self.total().syncs
    }

    pub(crate) fn writes(&self) -> u64 {
        self.total().writes
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.total().bytes
    }

    pub(crate) fn counts(&self, part: Part) -> Counts {
        self.shared().counts(part)
    }

    /// Makes the nth operation fail, and no other.
    pub(crate) fn fail_nth(&self, op: Op, nth: u64, fault: Fault) {
        self.shared().fail(op, nth..=nth, fault);
    }

    /// Makes the nth operation fail and all that follow it, until the disk is healed.
    pub(crate) fn fail_from(&self, op: Op, nth: u64, fault: Fault) {
        self.shared().fail(op, nth..=u64::MAX, fault);
    }

    /// Bounds what all files take together. Writing beyond it is `SQLITE_FULL`.
    pub(crate) fn capacity(&self, bytes: u64) {
        self.shared().bound(bytes);
    }

    /// Takes back every failure, the bound and the loss of power that are still to come.
    pub(crate) fn heal(&self) {
        self.shared().heal();
    }

    /// Stops the nth sync on its way, until it is released or the disk crashes. It makes
    /// durable what was written before it began.
    pub(crate) fn stall_sync(&self, nth: u64) -> Stall {
        Stall { shared: Arc::clone(self.shared()), hold: self.shared().hold(nth) }
    }

    fn total(&self) -> Counts {
        let mut total = Counts::default();
        for part in [Part::Database, Part::Wal, Part::Journal, Part::Scratch] {
            total += self.counts(part);
        }
        total
    }

    fn shared(&self) -> &Arc<Shared> {
        self.0.shared()
    }
}

impl Part {
    fn of(name: Option<&str>) -> Self {
        match name {
            None => Self::Scratch,
            Some(name) if name.ends_with("-wal") => Self::Wal,
            Some(name) if name.ends_with("-journal") => Self::Journal,
            Some(_) => Self::Database,
        }
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.writes += other.writes;
        self.syncs += other.syncs;
        self.bytes += other.bytes;
    }
}

/// A sync that does not end before it is let. Dropping it lets it.
pub(crate) struct Stall {
    shared: Arc<Shared>,
    hold: Arc<Hold>,
}

impl Stall {
    /// Waits on this thread until the sync has begun.
    pub(crate) fn reached(&self) {
        self.shared.reached(&self.hold);
    }

    /// Waits until the sync has begun, while other tasks go on.
    pub(crate) async fn reached_async(&self) {
        self.hold.reached().await;
    }

    pub(crate) fn release(&self) {
        self.shared.release(&self.hold);
    }
}

impl Drop for Stall {
    fn drop(&mut self) {
        self.release();
    }
}
