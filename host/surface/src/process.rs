//! What the system says of this process.

use std::fs;

/// What is known of this process; the system need not say all of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Process {
    /// When it was started, in seconds since the Unix epoch.
    pub(crate) started_s: Option<u64>,
    /// How much of its memory is resident, in bytes.
    pub(crate) resident_bytes: Option<u64>,
    /// How many file descriptors it has open.
    pub(crate) open_files: Option<u64>,
}

impl Process {
    /// Looks at it. It may take some milliseconds where many files are open.
    pub(crate) fn look() -> Self {
        let read = |path: &str| fs::read_to_string(path).ok();
        Self {
            started_s: read("/proc/self/stat")
                .zip(read("/proc/stat"))
                .and_then(|(own, system)| started(&own, &system)),
            resident_bytes: read("/proc/self/status").and_then(|status| resident(&status)),
            // The one that is open for the look is not among them.
            open_files: fs::read_dir("/proc/self/fd")
                .ok()
                .map(|open| (open.count() as u64).saturating_sub(1)),
        }
    }
}

/// What the kernel counts time by towards programs: a hundredth of a second on every
/// machine that it runs on.
const TICKS_PER_SECOND: u64 = 100;

fn started(own: &str, system: &str) -> Option<u64> {
    // The name of the program stands in parentheses and may be anything.
    let (_, fields) = own.rsplit_once(')')?;
    // The third field is the first behind the name; the start is the 22nd.
    let ticks: u64 = fields.split_ascii_whitespace().nth(22 - 3)?.parse().ok()?;
    let booted = system.lines().find_map(|line| line.strip_prefix("btime "))?;
    Some(booted.trim().parse::<u64>().ok()? + ticks / TICKS_PER_SECOND)
}

fn resident(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

#[cfg(test)]
mod tests {
    use std::time::{SystemTime, UNIX_EPOCH};

    use super::*;

    #[test]
    fn what_the_system_says_is_read() {
        let own = "7 (a) b (c) S 1 7 7 0 -1 4194560 96 0 0 0 0 0 0 0 20 0 1 0 12345 3 4 5";
        assert_eq!(started(own, "cpu 1 2\nbtime 1000\nprocesses 3\n"), Some(1_123));
        assert_eq!(started("7 (a", "btime 1000"), None);
        assert_eq!(started(own, "cpu 1 2"), None);
        assert_eq!(resident("VmPeak:\t 9 kB\nVmRSS:\t    2 kB\n"), Some(2_048));
        assert_eq!(resident("VmPeak:\t 9 kB\n"), None);
    }

    #[test]
    fn this_process_is_there() {
        let process = Process::look();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let started = process.started_s.unwrap();
        assert!(started <= now + 1 && started + 24 * 60 * 60 > now, "{started} {now}");
        assert!(process.resident_bytes.unwrap() > 1 << 20);
        assert!(process.open_files.unwrap() >= 3);
    }
}
