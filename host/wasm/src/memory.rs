//! The memory of all guests together.
//!
//! Most guests declare far more memory than they touch, so what they declare may
//! come to more than there is to give. Up to the limit nothing is looked at; past
//! it, what counts is what this process really holds: guests get more only while
//! that is below the limit, and one that is larger than its share is ended while
//! it is above.

use std::{
    fs::File,
    os::unix::fs::FileExt as _,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

/// The memory of all guests together.
#[derive(Debug)]
pub(crate) struct GuestMemory {
    limit: u64,
    /// What guests have declared, in bytes.
    declared: AtomicU64,
    /// Somebody has to go; the first who may takes it back.
    pressed: AtomicBool,
    /// What will be declared once the last who had to go is gone. Until then nobody
    /// else has to.
    awaited: AtomicU64,
    /// Tells what this process holds; `None` where it cannot be told.
    resident: Option<File>,
}

impl GuestMemory {
    pub(crate) fn new(limit: u64) -> Self {
        Self {
            limit,
            declared: AtomicU64::new(0),
            pressed: AtomicBool::new(false),
            awaited: AtomicU64::new(u64::MAX),
            resident: File::open("/proc/self/status").ok(),
        }
    }

    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    pub(crate) fn declared(&self) -> u64 {
        self.declared.load(Ordering::Relaxed)
    }

    /// Takes memory for a guest, if there is enough.
    pub(crate) fn take(&self, bytes: u64) -> bool {
        self.declared
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |declared| {
                let sum = declared.checked_add(bytes)?;
                let fits =
                    || self.resident().is_some_and(|held| held.saturating_add(bytes) <= self.limit);
                (sum <= self.limit || fits()).then_some(sum)
            })
            .is_ok()
    }

    pub(crate) fn give_back(&self, bytes: u64) {
        self.declared.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Looks whether more is held than there is to give, for `must_go`. Costs two
    /// comparisons until guests have declared more than that.
    pub(crate) fn look(&self) {
        let declared = self.declared();
        let is_gone = declared <= self.awaited.load(Ordering::Relaxed);
        if is_gone {
            self.awaited.store(u64::MAX, Ordering::Relaxed);
        }
        let over = is_gone
            && declared > self.limit
            && self.resident().is_some_and(|held| held > self.limit);
        self.pressed.store(over, Ordering::Relaxed);
    }

    /// Tells whether a guest with that much memory has to end, so that others can
    /// go on: one after the other is gone, of those that have more than their share
    /// among `guests`.
    pub(crate) fn must_go(&self, bytes: u64, guests: usize) -> bool {
        let goes = self.pressed.load(Ordering::Relaxed)
            && bytes > self.limit / (guests.max(1) as u64)
            && self.pressed.swap(false, Ordering::Relaxed);
        if goes {
            self.awaited.store(self.declared().saturating_sub(bytes), Ordering::Relaxed);
        }
        goes
    }

    /// Returns what this process holds, in bytes.
    fn resident(&self) -> Option<u64> {
        let mut text = [0; 4096];
        let length = self.resident.as_ref()?.read_at(&mut text, 0).ok()?;
        let text = String::from_utf8_lossy(&text[..length]);
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
        Some(kib << 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A limit that no process is below.
    const LITTLE: u64 = 64 << 10;
    /// A limit that this process is far below.
    const MUCH: u64 = 1 << 40;

    #[test]
    fn declared_memory_is_taken_up_to_the_limit_and_given_back() {
        let memory = GuestMemory::new(LITTLE);
        assert!(memory.take(LITTLE));
        assert!(!memory.take(1), "this process holds more than that");
        memory.give_back(LITTLE);
        assert_eq!(memory.declared(), 0);
        assert!(memory.take(LITTLE));
    }

    #[test]
    fn what_is_declared_may_be_more_than_there_is_while_little_is_held() {
        let memory = GuestMemory::new(MUCH);
        for _ in 0..8 {
            assert!(memory.take(MUCH / 2));
        }
        assert!(!memory.take(MUCH), "that much could never be held");
        assert!(!memory.take(u64::MAX));
        memory.look();
        assert!(!memory.must_go(MUCH, 2), "little is held");
    }

    #[test]
    fn under_pressure_those_that_are_larger_than_their_share_go_one_by_one() {
        let memory = GuestMemory::new(LITTLE);
        memory.declared.store(LITTLE + 1, Ordering::Relaxed);
        assert!(!memory.must_go(LITTLE, 2), "nobody has looked");
        memory.look();
        assert!(!memory.must_go(LITTLE / 2, 2), "it has its share and no more");
        assert!(memory.must_go(LITTLE / 2 + 1, 2));
        assert!(!memory.must_go(LITTLE, 2), "one has to go already");
        memory.look();
        assert!(!memory.must_go(LITTLE, 2), "it is not gone yet");
        memory.declared.store(2 * LITTLE, Ordering::Relaxed);
        memory.awaited.store(2 * LITTLE, Ordering::Relaxed);
        memory.look();
        assert!(memory.must_go(LITTLE, 2), "it is gone, and that was not enough");
    }
}
