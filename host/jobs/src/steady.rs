//! A time of day that does not jump.
//!
//! The system's clock may be set at any moment. Durations that are written down, such
//! as the end of a back-off, must pass as they were meant all the same.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use backlot_registry::Clock;

/// By how much the system's clock may be off before it counts as set, in milliseconds.
/// What a time server corrects is far less, and is followed.
const SLEW_MS: u64 = 2_000;

/// Tells the time of day as it was when this was made, and what has passed since.
pub(crate) struct SteadyClock {
    wall: Arc<dyn Clock>,
    elapsed: Arc<dyn Fn() -> Duration + Send + Sync>,
    /// What the time of day was at the beginning of what has elapsed, and the last time
    /// that was told.
    anchor: Mutex<(u64, u64)>,
}

impl SteadyClock {
    pub(crate) fn new(
        wall: Arc<dyn Clock>,
        elapsed: Arc<dyn Fn() -> Duration + Send + Sync>,
    ) -> Self {
        let origin = wall.epoch_ms().saturating_sub(millis(elapsed()));
        Self { wall, elapsed, anchor: Mutex::new((origin, 0)) }
    }

    /// Returns the milliseconds since the Unix epoch. Never goes back.
    pub(crate) fn now_ms(&self) -> u64 {
        let (wall, elapsed) = (self.wall.epoch_ms(), millis((self.elapsed)()));
        let mut anchor = self.anchor.lock().unwrap_or_else(PoisonError::into_inner);
        let (origin, last) = &mut *anchor;
        let steady = origin.saturating_add(elapsed);
        if steady.abs_diff(wall) <= SLEW_MS {
            *origin = wall.saturating_sub(elapsed);
        }
        *last = origin.saturating_add(elapsed).max(*last);
        *last
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[derive(Default)]
    struct Set(AtomicU64);

    impl Clock for Set {
        fn epoch_ms(&self) -> u64 {
            self.0.load(Ordering::Relaxed)
        }
    }

    #[test]
    fn c68_a_clock_that_is_set_moves_nothing() {
        let (wall, passed) = (Arc::new(Set::default()), Arc::new(AtomicU64::new(0)));
        wall.0.store(1_000_000_000, Ordering::Relaxed);
        let elapsed = {
            let passed = passed.clone();
            Arc::new(move || Duration::from_millis(passed.load(Ordering::Relaxed)))
        };
        let clock = SteadyClock::new(wall.clone(), elapsed);
        let pass = |ms| {
            passed.fetch_add(ms, Ordering::Relaxed);
            wall.0.fetch_add(ms, Ordering::Relaxed);
        };
        pass(500);
        assert_eq!(clock.now_ms(), 1_000_000_500);
        // An hour back, and two forth.
        wall.0.fetch_sub(3_600_000, Ordering::Relaxed);
        pass(500);
        assert_eq!(clock.now_ms(), 1_000_001_000);
        wall.0.fetch_add(7_200_000, Ordering::Relaxed);
        pass(500);
        assert_eq!(clock.now_ms(), 1_000_001_500);
        wall.0.fetch_sub(3_600_000, Ordering::Relaxed);
        // What is corrected bit by bit is followed, and never back.
        wall.0.fetch_sub(400, Ordering::Relaxed);
        assert_eq!(clock.now_ms(), 1_000_001_500);
        pass(1_000);
        assert_eq!(clock.now_ms(), 1_000_002_100);
    }
}
