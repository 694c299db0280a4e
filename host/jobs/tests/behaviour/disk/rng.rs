//! Numbers that are the same for the same seed, on every machine and in every version.

/// SplitMix64.
pub(super) struct Rng(u64);

impl Rng {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number from `low` to `high`, both of which it may be.
    pub(super) fn within(&mut self, low: usize, high: usize) -> usize {
        let choices = high.saturating_sub(low) as u64 + 1;
        low + (self.next() % choices) as usize
    }
}
