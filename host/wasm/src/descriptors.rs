//! The descriptors of this process that guests may not take: without any, the host
//! cannot spill output, load a component or be reached.

use std::{io, os::fd::AsRawFd as _};

use rustix::{
    io::fcntl_dupfd_cloexec,
    process::{Resource, getrlimit},
};

/// Descriptors that are left to the host.
pub(crate) const RESERVED: u64 = 128;

/// Tells whether guests may take another descriptor. The kernel always gives the
/// lowest that is free, so which one it would give tells how many are in use.
pub(crate) fn are_left() -> bool {
    match fcntl_dupfd_cloexec(io::stderr(), 0) {
        Ok(next) => is_for_guests(next.as_raw_fd()),
        // None are left at all, or there is no stderr to ask with.
        Err(error) => error != rustix::io::Errno::MFILE,
    }
}

/// Tells whether a descriptor is one that guests may have.
pub(crate) fn is_for_guests(descriptor: i32) -> bool {
    let Some(limit) = getrlimit(Resource::Nofile).current else { return true };
    // Of few descriptors the host keeps half.
    let reserved = RESERVED.min(limit / 2);
    u64::try_from(descriptor).is_ok_and(|descriptor| descriptor < limit - reserved)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_descriptors_are_not_for_guests() {
        let limit = getrlimit(Resource::Nofile).current.unwrap();
        let last = i32::try_from(limit - RESERVED).unwrap();
        assert!(is_for_guests(0) && is_for_guests(last - 1));
        assert!(!is_for_guests(last));
        assert!(are_left());
    }
}
