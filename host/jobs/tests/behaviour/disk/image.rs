//! The bytes of a file: as they are read, as they are durable, and what lies between.

use std::{collections::VecDeque, ops::Range};

use super::rng::Rng;

#[derive(Default)]
pub(super) struct Image {
    now: Vec<u8>,
    durable: Vec<u8>,
    pending: VecDeque<Change>,
    /// How many changes are durable.
    synced: u64,
}

/// A moment in the life of an image. What was written before it can be made durable.
#[derive(Clone, Copy)]
pub(super) struct Mark(u64);

enum Change {
    Write { at: usize, bytes: Vec<u8> },
    Resize { size: usize },
}

impl Image {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.now
    }

    pub(super) fn write(&mut self, at: usize, bytes: &[u8]) {
        self.change(Change::Write { at, bytes: bytes.to_vec() });
    }

    pub(super) fn resize(&mut self, size: usize) {
        self.change(Change::Resize { size });
    }

    pub(super) fn mark(&self) -> Mark {
        Mark(self.synced + self.pending.len() as u64)
    }

    /// Makes durable what was written before the mark.
    pub(super) fn sync(&mut self, mark: Mark) {
        while self.synced < mark.0
            && let Some(change) = self.pending.pop_front()
        {
            change.apply(&mut self.durable);
            self.synced += 1;
        }
    }

    /// Leaves what is durable, and of later writes as much as chance has it.
    pub(super) fn crash(&mut self, rng: Option<&mut Rng>) {
        if let Some(rng) = rng {
            self.durable = self.torn(rng);
        }
        self.synced += self.pending.len() as u64;
        self.pending.clear();
        self.now.clone_from(&self.durable);
    }

    fn change(&mut self, change: Change) {
        change.apply(&mut self.now);
        self.pending.push_back(change);
    }

    /// Returns what a disk may have that was told to sync none of the later writes.
    ///
    /// A cache gives sectors to the disk one by one and at any time, so each is what it
    /// was after some write. The size of the file goes its own way, by which a file may
    /// be longer than what was written to it. A file that is cut loses its end at once.
    fn torn(&self, rng: &mut Rng) -> Vec<u8> {
        let sector = [512, 4096][rng.within(0, 1)];
        // So that there are disks that have nearly all of it, and some with very little.
        let eagerness = rng.within(0, 4);
        let kept = |rng: &mut Rng, low, high| {
            if rng.within(1, 4) <= eagerness { high } else { rng.within(low, high) }
        };

        let mut sizes = vec![self.durable.len()];
        for change in &self.pending {
            sizes.push(change.size(sizes[sizes.len() - 1]));
        }
        let resized = kept(rng, 0, self.pending.len());
        let longest = sizes.iter().copied().max().unwrap_or(0);

        let mut torn = self.durable.clone();
        torn.resize(longest, 0);
        for start in (0..longest).step_by(sector) {
            let range = start..longest.min(start + sector);
            let changes: Vec<_> =
                (1..).zip(&self.pending).filter(|(_, change)| change.touches(&range)).collect();
            let cuts = |(_, (_, change)): &(usize, &(usize, &Change))| change.is_resize();
            let mut cuts = changes.iter().enumerate().filter(cuts);
            let low = cuts.clone().rfind(|(_, (nth, _))| *nth <= resized).map_or(0, |(i, _)| i + 1);
            let high = cuts.find(|(_, (nth, _))| *nth > resized).map_or(changes.len(), |(i, _)| i);
            for (_, change) in &changes[..kept(rng, low, high)] {
                change.apply_within(&mut torn, &range);
            }
        }
        torn.resize(sizes[resized], 0);
        torn
    }
}

impl Change {
    fn apply(&self, bytes: &mut Vec<u8>) {
        bytes.resize(self.size(bytes.len()), 0);
        let all = 0..bytes.len();
        self.apply_within(bytes, &all);
    }

    /// Applies what the change is to some of the bytes, all of which there are.
    fn apply_within(&self, target: &mut [u8], range: &Range<usize>) {
        match self {
            Self::Write { at, bytes } => {
                let start = range.start.max(*at);
                let end = range.end.min(at + bytes.len());
                if start < end {
                    target[start..end].copy_from_slice(&bytes[start - at..end - at]);
                }
            }
            Self::Resize { size } => {
                let start = range.start.max(*size);
                if start < range.end {
                    target[start..range.end].fill(0);
                }
            }
        }
    }

    fn touches(&self, range: &Range<usize>) -> bool {
        match self {
            Self::Write { at, bytes } => *at < range.end && range.start < at + bytes.len(),
            Self::Resize { size } => *size < range.end,
        }
    }

    /// Returns how long a file is afterwards that was so long before.
    fn size(&self, before: usize) -> usize {
        match self {
            Self::Write { at, bytes } => before.max(at + bytes.len()),
            Self::Resize { size } => *size,
        }
    }

    fn is_resize(&self) -> bool {
        matches!(self, Self::Resize { .. })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn synced(bytes: &[u8]) -> Image {
        let mut image = Image::default();
        image.write(0, bytes);
        image.sync(image.mark());
        image
    }

    #[test]
    fn what_was_not_synced_is_forgotten() {
        let mut image = synced(b"abcdef");
        image.write(1, b"XX");
        image.resize(4);
        assert_eq!(image.bytes(), b"aXXd");
        image.crash(None);
        assert_eq!(image.bytes(), b"abcdef");
    }

    #[test]
    fn a_sync_covers_what_was_written_before_it_began() {
        let mut image = Image::default();
        image.write(0, b"before");
        let mark = image.mark();
        image.write(0, b"after!");
        image.sync(mark);
        image.crash(None);
        assert_eq!(image.bytes(), b"before");
    }

    #[test]
    fn what_is_cut_off_does_not_come_back_by_growing() {
        let mut image = synced(b"abcdef");
        image.resize(2);
        image.write(4, b"!");
        assert_eq!(image.bytes(), b"ab\0\0!");
        image.sync(image.mark());
        image.crash(None);
        assert_eq!(image.bytes(), b"ab\0\0!");
    }

    #[test]
    fn each_sector_is_what_it_was_after_some_write() {
        let mut seen = BTreeSet::new();
        for seed in 0..200 {
            let mut image = synced(&[0; 8192]);
            image.write(0, &[1; 8192]);
            image.write(0, &[2; 8192]);
            image.crash(Some(&mut Rng::new(seed)));
            assert_eq!(image.bytes().len(), 8192);
            for sector in image.bytes().chunks(512) {
                assert!(sector.iter().all(|byte| *byte == sector[0]), "torn within a sector");
            }
            seen.insert([image.bytes()[0], image.bytes()[4096]]);
        }
        assert_eq!(seen.len(), 9, "{seen:?}");
    }

    #[test]
    fn a_cut_file_has_either_all_of_its_end_or_none() {
        let mut seen = BTreeSet::new();
        for seed in 0..200 {
            let mut image = synced(&[1; 4096]);
            image.resize(0);
            image.write(0, &[2; 4096]);
            image.crash(Some(&mut Rng::new(seed)));
            let values: BTreeSet<u8> = image.bytes().iter().copied().collect();
            assert!(!values.contains(&1) || values.len() == 1, "{values:?}");
            seen.insert((image.bytes().len(), values));
        }
        // Cut or not, and then as long as before with none, some or all of it written.
        assert_eq!(seen.len(), 5, "{seen:?}");
    }

    #[test]
    fn a_seed_says_what_remains() {
        let torn = |seed| {
            let mut image = synced(&[0; 100_000]);
            image.write(500, &[1; 90_000]);
            image.crash(Some(&mut Rng::new(seed)));
            image.now
        };
        assert_eq!(torn(7), torn(7));
        assert_ne!(torn(7), torn(8));
    }
}
