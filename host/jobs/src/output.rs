//! The recorded output of jobs: read after a restart, and by other processes.
//!
//! A job's folder has segment files, which only grow: `output.0`, `output.1` and so on
//! for what its producers wrote, `log.0` and so on for what is told about them. Output
//! and log are apart, each with a bound of its own, so that a flood of one does not push
//! out the other, and who wants one does not read through both. Of each there are at
//! most two segments. When both are full the older is dropped, and readers are told how
//! many bytes are gone.
//!
//! Bytes are counted from the job's beginning, over all its runs, in each of the two
//! parts. What could not be written is counted too, so it shows as dropped.
//!
//! What was appended survives the end of the process, however that ends; a power cut
//! survives only what was appended before [`Recorder::sync`].

mod recorder;
mod recording;
mod segment;

pub use recorder::{RecordLimits, Recorder};
pub use recording::{Portion, RecordedPiece, Recording};

/// What bytes of a record are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stream {
    /// Standard output, and all output of work that knows no channels.
    Stdout,
    /// Standard error.
    Stderr,
    /// A line of the producer's log.
    Log,
    /// What the host notes.
    Note,
}

impl Stream {
    const ALL: [Self; 4] = [Self::Stdout, Self::Stderr, Self::Log, Self::Note];

    /// Returns the part that has this stream.
    pub fn part(self) -> Part {
        match self {
            Self::Stdout | Self::Stderr => Part::Output,
            Self::Log | Self::Note => Part::Log,
        }
    }
}

/// One of the two parts of what is recorded. Each counts its own bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// What producers wrote.
    Output,
    /// What is told about them.
    Log,
}

impl Part {
    const ALL: [Self; 2] = [Self::Output, Self::Log];

    /// Returns the name of a segment of this part.
    fn file(self, number: u64) -> String {
        format!("{}.{number}", self.name())
    }

    /// Returns the number of a segment of this part, if that is one's name.
    fn number(self, file: &str) -> Option<u64> {
        let number: u64 = file.strip_prefix(self.name())?.strip_prefix('.')?.parse().ok()?;
        (self.file(number) == file).then_some(number)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Output => "output",
            Self::Log => "log",
        }
    }
}
