//! Clocks that tell a guest less than the host's do.
//!
//! They are not the only things that tell the time: files have times, and so do the
//! answers of servers.

use std::time::Duration;

use wasmtime_wasi::{HostMonotonicClock, HostWallClock, WasiCtxBuilder};

use crate::policy::Clocks;

/// What a coarse clock tells apart.
const STEP: Duration = Duration::from_millis(1);
const STEP_NS: u64 = 1_000_000;

/// Gives a guest the clocks that it may have.
pub(crate) fn apply(clocks: Clocks, wasi: &mut WasiCtxBuilder) {
    match clocks {
        Clocks::Precise => {}
        Clocks::Coarse => {
            wasi.wall_clock(CoarseWall(wasmtime_wasi::clocks::WallClock::new()));
            wasi.monotonic_clock(CoarseMonotonic::new());
        }
        Clocks::Hidden => {
            wasi.wall_clock(Standing);
            wasi.monotonic_clock(CoarseMonotonic::new());
        }
    }
}

struct CoarseWall(wasmtime_wasi::clocks::WallClock);

impl HostWallClock for CoarseWall {
    fn resolution(&self) -> Duration {
        STEP
    }

    fn now(&self) -> Duration {
        let now = self.0.now();
        Duration::new(now.as_secs(), now.subsec_millis() * 1_000_000)
    }
}

/// A clock that stands at the Unix epoch.
struct Standing;

impl HostWallClock for Standing {
    fn resolution(&self) -> Duration {
        STEP
    }

    fn now(&self) -> Duration {
        Duration::ZERO
    }
}

struct CoarseMonotonic(wasmtime_wasi::clocks::MonotonicClock);

impl CoarseMonotonic {
    fn new() -> Self {
        Self(wasmtime_wasi::clocks::MonotonicClock::new())
    }
}

impl HostMonotonicClock for CoarseMonotonic {
    fn resolution(&self) -> u64 {
        STEP_NS
    }

    fn now(&self) -> u64 {
        let now = self.0.now();
        now - now % STEP_NS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coarse_clocks_tell_whole_milliseconds_and_a_standing_one_nothing() {
        let wall = CoarseWall(wasmtime_wasi::clocks::WallClock::new());
        assert!(wall.now() > Duration::from_secs(1_000_000_000));
        assert_eq!(wall.now().subsec_nanos() % 1_000_000, 0);
        let monotonic = CoarseMonotonic::new();
        assert_eq!(monotonic.now() % STEP_NS, 0);
        assert_eq!(Standing.now(), Duration::ZERO);
    }
}
