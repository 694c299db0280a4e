//! Exit codes: the one table from endings and errors to numbers.

use std::process::ExitCode;

use backlot_registry::Status;

/// How a command ends, as a process tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// The work was completed: 0.
    Completed,
    /// The work failed, or something went wrong on the way: 1.
    Failed,
    /// The command line cannot be understood: 2.
    Usage,
    /// The work was refused before it started: 3.
    Refused,
    /// The work was stopped: 4.
    Killed,
}

impl Exit {
    /// Returns the process's exit code.
    pub fn code(self) -> u8 {
        match self {
            Self::Completed => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::Refused => 3,
            Self::Killed => 4,
        }
    }

    /// Returns the exit of a command that followed a task to its end.
    pub(crate) fn of(status: Status) -> Self {
        match status {
            Status::Completed => Self::Completed,
            Status::Killed => Self::Killed,
            // A task that is still live when its command ends was not completed.
            Status::Failed | Status::Running | Status::Stopping => Self::Failed,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}
