//! What a task may use, as plain numbers.

use std::{fmt, time::Duration};

const MIB: u64 = 1 << 20;
/// What a 32-bit memory can address, which is a slot of the pool.
pub(crate) const MEMORY: u64 = 4 << 30;

/// What one task may use. Every limit is enforced; the defaults suit work of
/// unknown origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Linear memory, over all memories of the component, in bytes.
    pub memory: u64,
    /// Table elements, over all tables of the component.
    pub table_elements: u64,
    /// Wall-clock time from the start to the end; off when `None`.
    pub deadline: Option<Duration>,
    /// CPU time; off when `None`.
    pub cpu: Option<Duration>,
    /// The final output that is kept, in bytes; the rest is cut off and told.
    pub final_output: usize,
    /// The input that is taken, in bytes.
    pub input: usize,
    /// What one call of the guest into the host, or one result, may make the
    /// host allocate, in bytes.
    pub host_call: usize,
    /// Files and folders that are open at a time.
    pub open_files: usize,
    /// Objects that the host keeps for the guest at a time: open files, sockets,
    /// streams, requests and the like.
    pub host_objects: usize,
    /// Bytes of the files in the task's work folder, which it sees as `/job`; without
    /// such a folder `None`. Only jobs have one.
    pub work_folder: Option<u64>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory: 256 * MIB,
            // What a slot of the pool holds; each element is a pointer on the host.
            table_elements: 100_000,
            deadline: None,
            cpu: None,
            final_output: 8 << 20,
            input: 8 << 20,
            // Room for a final output at its limit beside the rest of an outcome.
            host_call: 16 << 20,
            // A quarter of what a process may usually open.
            open_files: 256,
            // The largest, an HTTP body, holds 128 KiB; that many hold 128 MiB.
            host_objects: 1024,
            work_folder: None,
        }
    }
}

/// A limit that a task ran into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exceeded {
    Memory(u64),
    HostMemory(u64),
    Tables(u64),
    Deadline(Duration),
    Cpu(Duration),
    HostCall(u64),
    HostObjects(u64),
}

impl fmt::Display for Exceeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory(limit) => write!(f, "memory limit of {} reached", Bytes(*limit)),
            Self::HostMemory(limit) => write!(
                f,
                "the host's limit of {} for the memory of all guests reached",
                Bytes(*limit)
            ),
            Self::Tables(limit) => write!(f, "table limit of {limit} elements reached"),
            Self::Deadline(limit) => write!(f, "deadline of {limit:?} exceeded"),
            Self::HostObjects(limit) => write!(f, "limit of {limit} host objects reached"),
            Self::HostCall(limit) => {
                write!(f, "limit of {} for what one call may hand over exceeded", Bytes(*limit))
            }
            Self::Cpu(limit) => write!(f, "CPU time limit of {limit:?} exceeded"),
        }
    }
}

/// A number of bytes, shown in the largest unit that divides it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => write!(f, "0 bytes"),
            n if n % (1 << 30) == 0 => write!(f, "{} GiB", n >> 30),
            n if n % (1 << 20) == 0 => write!(f, "{} MiB", n >> 20),
            n if n % (1 << 10) == 0 => write!(f, "{} KiB", n >> 10),
            n => write!(f, "{n} bytes"),
        }
    }
}
