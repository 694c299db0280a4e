//! The memory of this process, and of others. nextest gives each test a process of its own.

use std::fs;

/// The peak of what is resident, from one moment on.
pub struct Memory {
    before: u64,
}

impl Memory {
    /// Forgets the peak so far and measures from what is resident now.
    ///
    /// # Panics
    ///
    /// When the kernel does not tell.
    pub fn from_now() -> Self {
        // 5 resets the peak; see `man 5 proc`.
        fs::write("/proc/self/clear_refs", "5").expect("the peak can be reset");
        Self { before: Self::now() }
    }

    /// Returns what is resident now, in bytes.
    pub fn now() -> u64 {
        status("self", "VmRSS:")
    }

    /// Returns by how many bytes the peak is above what was resident at first.
    pub fn growth(&self) -> u64 {
        Self::peak().saturating_sub(self.before)
    }

    /// Returns the peak of what was resident since it was last forgotten, in bytes.
    pub fn peak() -> u64 {
        status("self", "VmHWM:")
    }
}

/// Returns how much of the memory of a process is resident, in bytes.
pub(crate) fn resident(process: u32) -> u64 {
    status(&process.to_string(), "VmRSS:")
}

fn status(process: &str, name: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status"));
    let status = status.expect("the process has a status");
    let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("it has the value");
    let kilobytes: u64 = line.trim().trim_end_matches(" kB").parse().expect("it is in kilobytes");
    kilobytes << 10
}
