//! The faults that need no awaiting.

use crate::bindings::backlot::producer::host;
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Traps without a message.
pub(crate) fn trap() -> ! {
    #[cfg(target_family = "wasm")]
    core::arch::wasm32::unreachable();
    #[cfg(not(target_family = "wasm"))]
    std::process::abort()
}

/// Computes for ever.
pub(crate) fn spin() -> ! {
    loop {
        black_box(0);
    }
}

/// Computes for a while.
pub(crate) fn spin_for(duration: Duration) {
    let begun = Instant::now();
    while begun.elapsed() < duration {
        black_box(0);
    }
}

/// Computes until a stop is asked for.
pub(crate) fn spin_until_asked() {
    while host::stop_requested().is_none() {
        spin_for(Duration::from_millis(1));
    }
}

/// Grows and touches memory until that is refused; returns how many MiB it got.
pub(crate) fn grow() -> usize {
    const MIB: usize = 1 << 20;
    let mut blocks: Vec<Vec<u8>> = Vec::new();
    loop {
        let mut block = Vec::new();
        // The list itself may be what no longer fits.
        if block.try_reserve_exact(MIB).is_err() || blocks.try_reserve(1).is_err() {
            return blocks.len();
        }
        // Other than zero, or the pages would not have to be there.
        block.resize(MIB, 0xa5);
        blocks.push(black_box(block));
    }
}

/// Recurses until the stack is used up.
#[allow(unconditional_recursion, reason = "that is what it is for")]
pub(crate) fn recurse(depth: u64, calls_host: bool) -> u64 {
    let frame = black_box([depth; 8]);
    if calls_host {
        host::report(&format!("depth {depth}"));
    }
    // Used after the call, so that the frame cannot be given up before it.
    recurse(depth + 1, calls_host) + black_box(frame)[0]
}
