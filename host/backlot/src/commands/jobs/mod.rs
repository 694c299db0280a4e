//! The verbs on jobs: one file for each, or for two that differ in a word.
//!
//! Each asks the host that holds the data folder. Where none does, those that only look
//! read the folder, and those that change something hold it meanwhile.

pub(super) mod answer;
pub(super) mod backup;
pub(super) mod files;
pub(super) mod follow;
pub(super) mod logs;
pub(super) mod ps;
pub(super) mod reach;
pub(super) mod rm;
pub(super) mod run;
pub(super) mod show;
pub(super) mod stop;
pub(super) mod wait;

use std::error::Error;

use backlot_surface::{
    ClientError, Failure, Reason,
    wire::{ErrorReply, JobView},
};

use crate::{console::Console, exit::Exit, render, wire};

/// Why a verb did nothing, or not all of it.
#[derive(Debug)]
pub(super) struct Told {
    reply: Box<ErrorReply>,
    exit: Exit,
    /// Whether the host could not be asked, or has not answered.
    is_gone: bool,
}

impl Told {
    pub(in crate::commands) fn new(reason: Reason, why: impl Into<String>) -> Self {
        Failure::new(reason, why).into()
    }

    /// Returns what is told of an error on this side.
    pub(in crate::commands) fn by(error: &(impl Error + ?Sized)) -> Self {
        Self::new(Reason::Io, render::chain(error))
    }

    pub(in crate::commands) fn exit(&self) -> Exit {
        self.exit
    }

    /// Tells whether the host could not be asked, or has not answered.
    pub(in crate::commands) fn is_of_a_host_that_is_gone(&self) -> bool {
        self.is_gone
    }

    /// Returns what programs are told of it.
    pub(super) fn problem(&self) -> wire::Problem {
        wire::Problem::of(&self.reply)
    }

    /// Returns what programs are told where that is all there is to tell.
    pub(in crate::commands) fn refusal(&self) -> wire::Refusal {
        wire::Refusal::of(&self.reply)
    }

    /// Returns what it says, in a line.
    pub(in crate::commands) fn line(&self) -> String {
        let ErrorReply { detail, hint, .. } = &*self.reply;
        match hint {
            Some(hint) => format!("{detail}; {hint}"),
            None => detail.clone(),
        }
    }

    /// Tells it, and returns the exit code that tells it too.
    pub(super) async fn tell(&self, json: bool, console: &Console) -> Exit {
        if json {
            let _ = console.out.write(wire::line(&wire::Refusal::of(&self.reply))).await;
        }
        for line in self.line().lines() {
            console.err.say(&render::complaint(line)).await;
        }
        self.exit
    }
}

impl From<Failure> for Told {
    fn from(failure: Failure) -> Self {
        Self {
            exit: exit_of(failure.reason.exit()),
            reply: Box::new(failure.reply()),
            is_gone: false,
        }
    }
}

impl From<ClientError> for Told {
    fn from(error: ClientError) -> Self {
        let exit = exit_of(error.exit());
        match error {
            ClientError::Failure(reply) => Self { reply, exit, is_gone: false },
            other => Self { exit, is_gone: true, ..Self::by(&other) },
        }
    }
}

/// Returns what is answered to a command line that cannot be understood.
pub(super) fn misunderstood(error: String) -> wire::Refusal {
    wire::Refusal::of(&Failure::new(Reason::BadRequest, error).reply())
}

fn exit_of(code: u8) -> Exit {
    match code {
        0 => Exit::Completed,
        2 => Exit::Usage,
        3 => Exit::Refused,
        4 => Exit::Killed,
        _ => Exit::Failed,
    }
}

/// Returns how a command ends that followed a job.
fn exit_with(job: &JobView) -> Exit {
    match job.status {
        backlot_jobs::Status::Completed => Exit::Completed,
        backlot_jobs::Status::Cancelled => Exit::Killed,
        _ => Exit::Failed,
    }
}

/// Returns what there is to say of a job, in a line.
fn gist(job: &JobView) -> String {
    let id = job.id.short();
    let mut line = format!("{id} {}", job.status);
    let waits = job.question.as_ref().map(|question| question.prompt.as_str());
    if let Some(said) = waits.or(job.summary.as_deref()).or(job.progress.as_deref()) {
        line = format!("{line}: {}", render::one_line(said));
    }
    line
}
