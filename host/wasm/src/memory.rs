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
    /// Tells what this process holds; `None` where it cannot be told.
    resident: Option<File>,
}

impl GuestMemory {
    pub(crate) fn new(limit: u64) -> Self {
        Self {
            limit,
            declared: AtomicU64::new(0),
            pressed: AtomicBool::new(false),
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
                let fits = || self.resident().is_some_and(|held| held + bytes <= self.limit);
                (sum <= self.limit || fits()).then_some(sum)
            })
            .is_ok()
    }

    pub(crate) fn give_back(&self, bytes: u64) {
        self.declared.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Looks whether more is held than there is to give, for `must_go`. Costs a
    /// comparison until guests have declared more than that.
    pub(crate) fn look(&self) {
        let over =
            self.declared() > self.limit && self.resident().is_some_and(|held| held > self.limit);
        self.pressed.store(over, Ordering::Relaxed);
    }

    /// Tells whether a guest with that much memory has to end, so that others can
    /// go on: one at each look, of those that have more than their share among
    /// `guests`.
    pub(crate) fn must_go(&self, bytes: u64, guests: usize) -> bool {
        self.pressed.load(Ordering::Relaxed)
            && bytes > self.limit / (guests.max(1) as u64)
            && self.pressed.swap(false, Ordering::Relaxed)
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
    fn under_pressure_one_that_is_larger_than_its_share_goes_at_each_look() {
        let memory = GuestMemory::new(LITTLE);
        memory.declared.store(LITTLE + 1, Ordering::Relaxed);
        assert!(!memory.must_go(LITTLE, 2), "nobody has looked");
        memory.look();
        assert!(!memory.must_go(LITTLE / 2, 2), "it has its share and no more");
        assert!(memory.must_go(LITTLE / 2 + 1, 2));
        assert!(!memory.must_go(LITTLE, 2), "one has gone, and nobody has looked again");
        memory.look();
        assert!(memory.must_go(LITTLE, 2));
    }
}
