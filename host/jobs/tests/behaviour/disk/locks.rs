//! Who holds which lock: those of a database file, and those of its shared memory.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use super::state::HandleId;

/// How much of a database file somebody has to himself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    Shared,
    Reserved,
    Pending,
    Exclusive,
}

#[derive(Default)]
pub(super) struct Levels(BTreeMap<HandleId, Level>);

impl Levels {
    /// Raises what somebody holds, and tells whether that could be.
    ///
    /// Who has reserved a file and cannot have it yet is pending: others that read go
    /// on, and none begins, so that it is had at last.
    pub(super) fn raise(&mut self, who: HandleId, wanted: Level) -> bool {
        let held = self.0.get(&who).copied();
        if held >= Some(wanted) {
            return true;
        }
        let others = self.0.iter().filter(|(other, _)| **other != who);
        let others = others.map(|(_, level)| *level).max();
        let reached = match wanted {
            Level::Shared if others < Some(Level::Pending) => wanted,
            Level::Reserved if others < Some(Level::Reserved) => wanted,
            Level::Exclusive if others.is_none() => wanted,
            Level::Exclusive if held == Some(Level::Reserved) => Level::Pending,
            _ => return false,
        };
        self.0.insert(who, reached);
        reached == wanted
    }

    /// Lowers what somebody holds, to nothing where no level is given.
    pub(super) fn lower(&mut self, who: HandleId, wanted: Option<Level>) {
        if self.0.get(&who).copied() <= wanted {
            return;
        }
        match wanted {
            Some(level) => self.0.insert(who, level),
            None => self.0.remove(&who),
        };
    }

    pub(super) fn is_reserved(&self) -> bool {
        self.0.values().any(|level| *level >= Level::Reserved)
    }
}

/// The eight locks of shared memory.
#[derive(Default)]
pub(super) struct Slots([Slot; 8]);

#[derive(Default)]
enum Slot {
    #[default]
    Free,
    Shared(BTreeSet<HandleId>),
    Exclusive(HandleId),
}

impl Slots {
    pub(super) fn share(&mut self, who: HandleId, slots: Range<usize>) -> bool {
        let slots = &mut self.0[slots];
        if slots.iter().any(|slot| matches!(slot, Slot::Exclusive(_))) {
            return false;
        }
        for slot in slots {
            match slot {
                Slot::Shared(sharers) => _ = sharers.insert(who),
                slot => *slot = Slot::Shared([who].into()),
            }
        }
        true
    }

    pub(super) fn exclude(&mut self, who: HandleId, slots: Range<usize>) -> bool {
        let slots = &mut self.0[slots];
        let free = slots.iter().all(|slot| matches!(slot, Slot::Free));
        if free {
            slots.fill_with(|| Slot::Exclusive(who));
        }
        free
    }

    pub(super) fn free(&mut self, who: HandleId, slots: Range<usize>) {
        for slot in &mut self.0[slots] {
            let free = match slot {
                Slot::Free => false,
                Slot::Shared(sharers) => sharers.remove(&who) && sharers.is_empty(),
                Slot::Exclusive(holder) => *holder == who,
            };
            if free {
                *slot = Slot::Free;
            }
        }
    }

    pub(super) fn free_all(&mut self, who: HandleId) {
        self.free(who, 0..self.0.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: HandleId = HandleId(1);
    const B: HandleId = HandleId(2);
    const C: HandleId = HandleId(3);

    #[test]
    fn many_read_while_one_prepares_to_write() {
        let mut levels = Levels::default();
        assert!(levels.raise(A, Level::Shared));
        assert!(!levels.is_reserved());
        assert!(levels.raise(A, Level::Reserved));
        assert!(levels.is_reserved());
        assert!(levels.raise(B, Level::Shared));
        assert!(!levels.raise(B, Level::Reserved));
        assert!(!levels.raise(B, Level::Exclusive));
    }

    #[test]
    fn who_is_pending_lets_nobody_begin_and_has_it_once_the_last_has_ended() {
        let mut levels = Levels::default();
        for who in [A, B] {
            assert!(levels.raise(who, Level::Shared));
        }
        assert!(levels.raise(A, Level::Reserved));
        assert!(!levels.raise(A, Level::Exclusive));
        assert!(!levels.raise(C, Level::Shared));
        levels.lower(B, None);
        assert!(levels.raise(A, Level::Exclusive));
        assert!(!levels.raise(B, Level::Shared));
        levels.lower(A, Some(Level::Shared));
        assert!(levels.raise(B, Level::Shared));
        assert!(!levels.is_reserved());
    }

    #[test]
    fn who_only_reads_does_not_become_pending() {
        let mut levels = Levels::default();
        for who in [A, B] {
            assert!(levels.raise(who, Level::Shared));
        }
        assert!(!levels.raise(A, Level::Exclusive));
        assert!(levels.raise(C, Level::Shared));
    }

    #[test]
    fn a_slot_is_shared_or_excluded_from() {
        let mut slots = Slots::default();
        assert!(slots.share(A, 3..4));
        assert!(slots.share(B, 3..4));
        assert!(!slots.exclude(C, 2..5), "one of them is shared");
        slots.free(A, 3..4);
        assert!(!slots.exclude(C, 3..4), "one sharer is left");
        slots.free_all(B);
        assert!(slots.exclude(C, 2..5));
        assert!(!slots.share(A, 4..5));
        slots.free(A, 4..5);
        assert!(!slots.share(A, 4..5), "it was not his to free");
        slots.free(C, 2..5);
        assert!(slots.share(A, 4..5));
    }
}
