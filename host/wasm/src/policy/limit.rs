//! The limits one by one: what each is called, and how it is written.

use std::time::Duration;

use crate::limits::{Bytes, Limits};

/// One of the [`Limits`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Limit {
    Memory,
    TableElements,
    Deadline,
    Cpu,
    FinalOutput,
    Input,
    HostCall,
    OpenFiles,
    HostObjects,
    WorkFolder,
}

/// What a limit counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    Bytes,
    Nanoseconds,
    Things,
}

/// Limits that a start asks for; `None` asks for none of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitsAsk {
    /// As [`Limits::memory`].
    pub memory: Option<u64>,
    /// As [`Limits::table_elements`].
    pub table_elements: Option<u64>,
    /// As [`Limits::deadline`].
    pub deadline: Option<Duration>,
    /// As [`Limits::cpu`].
    pub cpu: Option<Duration>,
    /// As [`Limits::final_output`].
    pub final_output: Option<usize>,
    /// As [`Limits::input`].
    pub input: Option<usize>,
    /// As [`Limits::host_call`].
    pub host_call: Option<usize>,
    /// As [`Limits::open_files`].
    pub open_files: Option<usize>,
    /// As [`Limits::host_objects`].
    pub host_objects: Option<usize>,
    /// As [`Limits::work_folder`]; 0 asks for none, also where the manifest asks for one.
    pub work_folder: Option<u64>,
}

/// The largest work folder where no policy says otherwise, in bytes. Several fit on
/// any disk, and a build or the sources of a project fit in it.
const WORK_FOLDER: u64 = 1 << 30;

/// A value of each limit that somebody gave one.
pub(super) type Each<T> = [Option<T>; Limit::ALL.len()];

impl Limit {
    pub(super) const ALL: [Self; 10] = [
        Self::Memory,
        Self::TableElements,
        Self::Deadline,
        Self::Cpu,
        Self::FinalOutput,
        Self::Input,
        Self::HostCall,
        Self::OpenFiles,
        Self::HostObjects,
        Self::WorkFolder,
    ];

    /// Returns its place among all of them.
    pub(super) fn at(self) -> usize {
        self as usize
    }

    /// Returns the key that it has in files.
    pub(super) fn key(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::TableElements => "table-elements",
            Self::Deadline => "deadline",
            Self::Cpu => "cpu",
            Self::FinalOutput => "final-output",
            Self::Input => "input",
            Self::HostCall => "host-call",
            Self::OpenFiles => "open-files",
            Self::HostObjects => "host-objects",
            Self::WorkFolder => "work-folder",
        }
    }

    /// Returns the limit of that key.
    pub(super) fn of_key(key: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|limit| limit.key() == key)
    }

    pub(super) fn unit(self) -> Unit {
        match self {
            Self::Memory | Self::FinalOutput | Self::Input | Self::HostCall | Self::WorkFolder => {
                Unit::Bytes
            }
            Self::Deadline | Self::Cpu => Unit::Nanoseconds,
            Self::TableElements | Self::OpenFiles | Self::HostObjects => Unit::Things,
        }
    }

    /// Tells whether no task could live where the limit is 0.
    pub(super) fn is_needed(self) -> bool {
        !matches!(self, Self::FinalOutput | Self::Input | Self::OpenFiles | Self::WorkFolder)
    }

    /// Tells whether a task has nothing of it unless its plugin or its start asks.
    pub(super) fn is_asked_for(self) -> bool {
        self == Self::WorkFolder
    }

    /// Returns how much a task gets at most where no policy says otherwise; `None` is no
    /// limit.
    pub(super) fn most(self) -> Option<u64> {
        match self {
            Self::WorkFolder => Some(WORK_FOLDER),
            _ => self.of(&Limits::default()),
        }
    }

    /// Returns what the limits say of it; `None` is no limit, or nothing of what
    /// [has to be asked for](Self::is_asked_for).
    pub(super) fn of(self, limits: &Limits) -> Option<u64> {
        match self {
            Self::Memory => Some(limits.memory),
            Self::TableElements => Some(limits.table_elements),
            Self::Deadline => limits.deadline.map(nanoseconds),
            Self::Cpu => limits.cpu.map(nanoseconds),
            Self::FinalOutput => Some(limits.final_output as u64),
            Self::Input => Some(limits.input as u64),
            Self::HostCall => Some(limits.host_call as u64),
            Self::OpenFiles => Some(limits.open_files as u64),
            Self::HostObjects => Some(limits.host_objects as u64),
            Self::WorkFolder => limits.work_folder,
        }
    }

    /// Returns what a start asks for.
    pub(super) fn asked(self, ask: &LimitsAsk) -> Option<u64> {
        let size = |size: Option<usize>| size.map(|size| size as u64);
        match self {
            Self::Memory => ask.memory,
            Self::TableElements => ask.table_elements,
            Self::Deadline => ask.deadline.map(nanoseconds),
            Self::Cpu => ask.cpu.map(nanoseconds),
            Self::FinalOutput => size(ask.final_output),
            Self::Input => size(ask.input),
            Self::HostCall => size(ask.host_call),
            Self::OpenFiles => size(ask.open_files),
            Self::HostObjects => size(ask.host_objects),
            Self::WorkFolder => ask.work_folder,
        }
    }

    /// Has the limits say that of it.
    pub(super) fn set(self, limits: &mut Limits, value: u64) {
        let size = usize::try_from(value).unwrap_or(usize::MAX);
        match self {
            Self::Memory => limits.memory = value,
            Self::TableElements => limits.table_elements = value,
            Self::Deadline => limits.deadline = Some(Duration::from_nanos(value)),
            Self::Cpu => limits.cpu = Some(Duration::from_nanos(value)),
            Self::FinalOutput => limits.final_output = size,
            Self::Input => limits.input = size,
            Self::HostCall => limits.host_call = size,
            Self::OpenFiles => limits.open_files = size,
            Self::HostObjects => limits.host_objects = size,
            Self::WorkFolder => limits.work_folder = (value > 0).then_some(value),
        }
    }

    /// Returns the value as people read it.
    pub(super) fn show(self, value: u64) -> String {
        match self.unit() {
            Unit::Bytes => Bytes(value).to_string(),
            Unit::Nanoseconds => {
                humantime::format_duration(Duration::from_nanos(value)).to_string()
            }
            Unit::Things => value.to_string(),
        }
    }

    /// Returns the value as files have it.
    pub(super) fn write(self, value: u64) -> String {
        match self.unit() {
            Unit::Things => value.to_string(),
            Unit::Bytes | Unit::Nanoseconds => {
                format!("\"{}\"", self.show(value).replace(" bytes", "B").replace(' ', ""))
            }
        }
    }
}

/// Returns the duration in nanoseconds; five centuries are as good as any more.
pub(super) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_limit_is_found_by_its_key_and_its_place() {
        for (nth, limit) in Limit::ALL.into_iter().enumerate() {
            assert_eq!((limit.at(), Limit::of_key(limit.key())), (nth, Some(limit)));
            let mut limits = Limits::default();
            limit.set(&mut limits, 7);
            assert_eq!(limit.of(&limits), Some(7));
            for other in Limit::ALL.into_iter().filter(|other| *other != limit) {
                assert_eq!(other.of(&limits), other.of(&Limits::default()));
            }
        }
        assert_eq!(Limit::of_key("memories"), None);
    }

    #[test]
    fn values_are_written_as_they_are_read() {
        assert_eq!(Limit::Memory.write(64 << 20), "\"64MiB\"");
        assert_eq!(Limit::Input.write(1000), "\"1000B\"");
        assert_eq!(Limit::Cpu.write(90_500_000_000), "\"1m30s500ms\"");
        assert_eq!(Limit::OpenFiles.write(3), "3");
        assert_eq!("1000B".parse::<bytesize::ByteSize>().map(|size| size.0), Ok(1000));
        assert_eq!(humantime::parse_duration("1m30s500ms"), Ok(Duration::from_millis(90_500)));
    }
}
