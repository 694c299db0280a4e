//! What a task has written: a spool that is bounded, whoever reads or does not.
//!
//! The newest bytes are in memory, older ones in a spill file, and the oldest
//! are gone and counted. Readers go by byte offset and copy nothing that is in
//! memory; a writer never waits for one.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use bytes::{Buf, Bytes, BytesMut};
use tokio::sync::Notify;

use crate::{Piece, contain::contain, contain::lock, spill::Ring, task::Shared};

/// Which of a task's channels bytes came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Channel {
    /// Standard output, and all output of work that knows no channels.
    Out,
    /// Standard error.
    Err,
}

/// How many bytes are handed on at once: large enough that locks and calls do
/// not show, small enough that what a piece pins in memory does not either.
const CHUNK: usize = 64 << 10;

/// How many changes of channel are remembered, at 16 bytes each. Bytes whose
/// channel would be forgotten are dropped: better gone and counted than taken
/// for what they are not.
const RUNS: usize = 64 << 10;

/// How much output a host holds, for all tasks together.
pub(crate) struct Totals {
    memory: AtomicU64,
    disk: AtomicU64,
    max_memory: u64,
    max_disk: u64,
}

impl Totals {
    pub(crate) fn new(max_memory: u64, max_disk: u64) -> Self {
        Self { memory: AtomicU64::new(0), disk: AtomicU64::new(0), max_memory, max_disk }
    }

    /// Returns the bytes in memory and on disk.
    pub(crate) fn used(&self) -> (u64, u64) {
        (self.memory.load(Ordering::Relaxed), self.disk.load(Ordering::Relaxed))
    }

    /// Takes up to that many bytes of disk and returns how many it took.
    pub(crate) fn take_disk(&self, wanted: u64) -> u64 {
        let mut granted = 0;
        // The closure always returns a value, so the update cannot fail.
        let _ = self.disk.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            granted = wanted.min(self.max_disk.saturating_sub(used));
            Some(used + granted)
        });
        granted
    }

    pub(crate) fn give_disk(&self, bytes: u64) {
        self.disk.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Takes memory, and returns by how much the total is exceeded now.
    fn take_memory(&self, bytes: u64) -> u64 {
        let before = self.memory.fetch_add(bytes, Ordering::Relaxed);
        (before + bytes).saturating_sub(self.max_memory)
    }

    fn give_memory(&self, bytes: u64) {
        self.memory.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// The output of one task.
pub(crate) struct Spool {
    shared: Arc<Shared>,
    memory_limit: u64,
    disk_limit: u64,
    /// How many bytes one piece of memory holds.
    chunk: usize,
    held: Mutex<Held>,
    closed: AtomicBool,
    /// The offset of the oldest byte that is held, also without the lock.
    start: AtomicU64,
    /// The offset after the newest byte, also without the lock.
    end: AtomicU64,
    /// Wakes readers when there is more, or the spool is closed.
    pub(crate) changed: Notify,
}

/// The bytes that are held: first those on disk, then the chunks, then the tail.
pub(crate) struct Held {
    disk: Disk,
    chunks: VecDeque<Chunk>,
    tail: BytesMut,
    /// How many bytes the chunks and the tail hold.
    memory: u64,
    end: u64,
    /// No byte before this offset is given out, although it may be held.
    floor: u64,
    /// Where each run of one channel begins.
    runs: VecDeque<(u64, Channel)>,
    /// Where the consuming reader goes on.
    pub(crate) cursor: u64,
}

struct Chunk {
    offset: u64,
    bytes: Bytes,
}

/// The place for what does not fit in memory.
enum Disk {
    Unused,
    Ring(Ring),
    /// There is none, or it failed.
    Gone,
}

impl Spool {
    pub(crate) fn new(shared: Arc<Shared>, memory_limit: u64, disk_limit: u64) -> Self {
        let disk = match &shared.environment.spill {
            Some(_) if disk_limit > 0 => Disk::Unused,
            _ => Disk::Gone,
        };
        // Without a place for it, what does not fit in memory is dropped.
        let disk_limit = if matches!(disk, Disk::Gone) { 0 } else { disk_limit };
        let quarter = usize::try_from(memory_limit / 4).unwrap_or(CHUNK);
        Self {
            shared,
            memory_limit,
            disk_limit,
            chunk: quarter.clamp(256, CHUNK),
            held: Mutex::new(Held {
                disk,
                chunks: VecDeque::new(),
                tail: BytesMut::new(),
                memory: 0,
                end: 0,
                floor: 0,
                runs: VecDeque::new(),
                cursor: 0,
            }),
            closed: AtomicBool::new(false),
            start: AtomicU64::new(0),
            end: AtomicU64::new(0),
            changed: Notify::const_new(),
        }
    }

    /// Returns how many bytes were dropped: the offset of the oldest one held.
    pub(crate) fn start(&self) -> u64 {
        self.start.load(Ordering::Acquire)
    }

    /// Returns how many bytes were written.
    pub(crate) fn end(&self) -> u64 {
        self.end.load(Ordering::Acquire)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Takes nothing any more. Waits for nobody: a writer that is at it finishes.
    /// Readers have to be woken, once no lock is held.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    pub(crate) fn write(&self, channel: Channel, mut bytes: &[u8]) {
        {
            let mut held = lock(&self.held);
            if self.is_closed() {
                return;
            }
            held.mark(channel);
            // What could not be kept in any case is not even copied.
            let room = self.memory_limit.saturating_add(self.disk_limit);
            let room = usize::try_from(room).unwrap_or(usize::MAX);
            if bytes.len() > room {
                let (lost, kept) = bytes.split_at(bytes.len() - room);
                held.skip(lost.len() as u64, &self.shared.totals);
                bytes = kept;
            }
            for piece in bytes.chunks(self.chunk) {
                held.append(piece, self.chunk);
                let over = self.shared.totals.take_memory(piece.len() as u64);
                let over = over.min(held.memory).max(held.memory.saturating_sub(self.memory_limit));
                self.evict(&mut held, over);
            }
            held.forget_runs();
            self.show(&held);
        }
        self.changed.notify_waiters();
    }

    /// Frees that much memory or a little more, oldest bytes first.
    fn evict(&self, held: &mut Held, mut over: u64) {
        while over > 0 {
            if held.chunks.is_empty() {
                held.freeze();
            }
            let Some(chunk) = held.chunks.front_mut() else { return };
            let freed = if matches!(held.disk, Disk::Gone) {
                let freed = over.min(chunk.bytes.len() as u64);
                chunk.offset += freed;
                chunk.bytes.advance(usize::try_from(freed).unwrap_or(chunk.bytes.len()));
                if chunk.bytes.is_empty() {
                    held.chunks.pop_front();
                }
                freed
            } else {
                // A whole chunk at a time: the file sees few and large writes.
                let Some(chunk) = held.chunks.pop_front() else { return };
                self.spill(held, &chunk.bytes);
                chunk.bytes.len() as u64
            };
            held.memory -= freed;
            self.shared.totals.give_memory(freed);
            over = over.saturating_sub(freed);
        }
    }

    /// Moves bytes to disk, as far as there is one that works.
    fn spill(&self, held: &mut Held, bytes: &[u8]) {
        if let Disk::Unused = held.disk {
            held.disk = self.open();
        }
        if let Disk::Ring(ring) = &mut held.disk
            && let Err(error) = ring.push(bytes, &self.shared.totals)
        {
            tracing::warn!(%error, lost = ring.len(), "a spill file failed; output stays in memory from here");
            held.drop_disk(&self.shared.totals);
        }
    }

    fn open(&self) -> Disk {
        let Some(store) = &self.shared.environment.spill else { return Disk::Gone };
        match contain(|| store.create()) {
            Ok(Ok(file)) => Disk::Ring(Ring::new(file, self.disk_limit)),
            Ok(Err(error)) => {
                tracing::warn!(%error, "no spill file could be made; output stays in memory");
                Disk::Gone
            }
            Err(panic) => {
                tracing::warn!(%panic, "no spill file could be made; output stays in memory");
                Disk::Gone
            }
        }
    }

    /// Returns the bytes from the offset on: at most that many, of one channel.
    /// `None` if there is nothing to tell yet.
    pub(crate) fn piece(&self, offset: u64, max_bytes: usize) -> Option<Piece> {
        let mut held = lock(&self.held);
        let piece = held.piece(offset, max_bytes, &self.shared.totals);
        self.show(&held);
        piece
    }

    /// Runs the function on what is held.
    pub(crate) fn with_held<T>(&self, read: impl FnOnce(&mut Held, &Totals) -> T) -> T {
        let mut held = lock(&self.held);
        let result = read(&mut held, &self.shared.totals);
        self.show(&held);
        result
    }

    fn show(&self, held: &Held) {
        self.start.store(held.start(), Ordering::Release);
        self.end.store(held.end, Ordering::Release);
    }
}

impl Drop for Spool {
    fn drop(&mut self) {
        let totals = &self.shared.totals;
        let held = self.held.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        totals.give_memory(held.memory);
        held.drop_disk(totals);
    }
}

impl Held {
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// Returns the offset of the oldest byte that is held.
    pub(crate) fn start(&self) -> u64 {
        let on_disk = match &self.disk {
            Disk::Ring(ring) => ring.len(),
            Disk::Unused | Disk::Gone => 0,
        };
        (self.middle() - on_disk).max(self.floor)
    }

    /// Returns the offset of the oldest byte in memory.
    fn middle(&self) -> u64 {
        self.end - self.memory
    }

    fn mark(&mut self, channel: Channel) {
        if self.runs.back().is_some_and(|(_, last)| *last == channel) {
            return;
        }
        self.runs.push_back((self.end, channel));
        if self.runs.len() > RUNS {
            self.runs.pop_front();
            self.floor = self.runs.front().map_or(self.floor, |(from, _)| *from);
        }
    }

    fn forget_runs(&mut self) {
        let start = self.start();
        while self.runs.get(1).is_some_and(|(from, _)| *from <= start) {
            self.runs.pop_front();
        }
    }

    fn append(&mut self, bytes: &[u8], chunk: usize) {
        if self.tail.len() + bytes.len() > chunk {
            self.freeze();
        }
        if bytes.len() == chunk {
            let bytes = Bytes::copy_from_slice(bytes);
            self.chunks.push_back(Chunk { offset: self.end, bytes });
        } else {
            // Most tasks say little. One that has filled a chunk fills the next.
            if self.tail.capacity() == 0 && !self.chunks.is_empty() {
                self.tail.reserve(chunk);
            }
            self.tail.extend_from_slice(bytes);
        }
        self.end += bytes.len() as u64;
        self.memory += bytes.len() as u64;
    }

    /// Makes a chunk of the tail.
    fn freeze(&mut self) {
        if !self.tail.is_empty() {
            let bytes = std::mem::take(&mut self.tail).freeze();
            self.chunks.push_back(Chunk { offset: self.end - bytes.len() as u64, bytes });
        }
    }

    /// Drops all that is held, and counts further bytes as dropped with it.
    fn skip(&mut self, bytes: u64, totals: &Totals) {
        totals.give_memory(self.memory);
        self.memory = 0;
        self.chunks.clear();
        self.tail.clear();
        if let Disk::Ring(ring) = &mut self.disk {
            ring.clear();
        }
        self.end += bytes;
    }

    fn drop_disk(&mut self, totals: &Totals) {
        if let Disk::Ring(ring) = std::mem::replace(&mut self.disk, Disk::Gone) {
            totals.give_disk(ring.size());
            // The file is foreign code.
            if let Err(panic) = contain(move || drop(ring)) {
                tracing::warn!(%panic, "a spill file panicked while it was dropped");
            }
        }
    }

    /// Returns the bytes from the offset on, as [`Spool::piece`] does.
    pub(crate) fn piece(
        &mut self,
        offset: u64,
        max_bytes: usize,
        totals: &Totals,
    ) -> Option<Piece> {
        let from = offset.max(self.start());
        if from >= self.end {
            // Nothing of what comes next is there, but what is gone can be told.
            return (from > offset).then(|| Piece {
                offset: from,
                channel: self.channel(from).0,
                bytes: Bytes::new(),
                dropped: from - offset,
            });
        }
        let (channel, until) = self.channel(from);
        let most = usize::try_from(until - from).unwrap_or(usize::MAX).min(max_bytes);
        let bytes = if from < self.middle() {
            match self.read_disk(from, most) {
                Ok(bytes) => bytes,
                Err(error) => {
                    tracing::warn!(%error, "a spill file failed; what it held is lost");
                    self.drop_disk(totals);
                    return self.piece(offset, max_bytes, totals);
                }
            }
        } else {
            self.read_memory(from, most)
        };
        Some(Piece { offset: from, channel, bytes, dropped: from - offset })
    }

    /// Returns the channel of the byte at the offset, and where its run ends.
    fn channel(&self, offset: u64) -> (Channel, u64) {
        let after = self.runs.partition_point(|(from, _)| *from <= offset);
        let channel = match after.checked_sub(1).and_then(|run| self.runs.get(run)) {
            Some((_, channel)) => *channel,
            None => Channel::Out,
        };
        (channel, self.runs.get(after).map_or(self.end, |(from, _)| *from))
    }

    fn read_disk(&mut self, from: u64, most: usize) -> std::io::Result<Bytes> {
        let before_end = self.middle() - from;
        let Disk::Ring(ring) = &mut self.disk else { return Ok(Bytes::new()) };
        let most = most.min(CHUNK).min(usize::try_from(before_end).unwrap_or(CHUNK));
        let mut buffer = vec![0; most];
        let count = ring.read(before_end, &mut buffer)?;
        buffer.truncate(count);
        Ok(buffer.into())
    }

    fn read_memory(&self, from: u64, most: usize) -> Bytes {
        let after = self.chunks.partition_point(|chunk| chunk.offset <= from);
        if let Some(chunk) = after.checked_sub(1).and_then(|index| self.chunks.get(index)) {
            let skip = usize::try_from(from - chunk.offset).unwrap_or(usize::MAX);
            if skip < chunk.bytes.len() {
                return chunk.bytes.slice(skip..chunk.bytes.len().min(skip.saturating_add(most)));
            }
        }
        let tail_offset = self.end - self.tail.len() as u64;
        let skip = usize::try_from(from - tail_offset).unwrap_or(usize::MAX);
        let until = self.tail.len().min(skip.saturating_add(most));
        Bytes::copy_from_slice(&self.tail[skip..until])
    }
}
