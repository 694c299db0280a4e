//! Random numbers that can be had again.

use std::convert::Infallible;

use rand_core::TryRng;
use wasmtime_wasi::WasiCtxBuilder;

use crate::policy::Random;

/// Gives a guest the random numbers that it may have.
pub(crate) fn apply(random: Random, wasi: &mut WasiCtxBuilder) {
    let Random::Seeded(seed) = random else { return };
    // One generator seeds the others, so that they do not run alike.
    let mut seeds = SplitMix64(seed);
    wasi.secure_random(SplitMix64(seeds.step()));
    wasi.insecure_random(SplitMix64(seeds.step()));
    let [high, low] = [seeds.step(), seeds.step()];
    wasi.insecure_random_seed(u128::from(high) << 64 | u128::from(low));
}

/// Vigna's SplitMix64. Not secure: eight bytes of it tell all that follow.
struct SplitMix64(u64);

impl SplitMix64 {
    fn step(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

impl TryRng for SplitMix64 {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        // The upper half, which is as good as any.
        Ok((self.step() >> 32) as u32)
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        Ok(self.step())
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Infallible> {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.step().to_le_bytes()[..chunk.len()]);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_is_the_known_one() {
        // The first numbers of the reference implementation with the seed 1234567.
        let mut generator = SplitMix64(1_234_567);
        let first = [generator.step(), generator.step(), generator.step()];
        assert_eq!(
            first,
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]
        );
    }

    #[test]
    fn bytes_are_those_of_the_numbers() {
        let mut bytes = [0; 12];
        let Ok(()) = SplitMix64(7).try_fill_bytes(&mut bytes);
        let mut numbers = SplitMix64(7);
        assert_eq!(bytes[..8], numbers.step().to_le_bytes());
        assert_eq!(bytes[8..], numbers.step().to_le_bytes()[..4]);
    }
}
