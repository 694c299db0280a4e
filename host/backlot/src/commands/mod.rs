//! The commands, one file per verb.

mod check;
mod run;

use crate::{
    cli::{Cli, Command},
    console::Console,
    exit::Exit,
    render, wire,
};

/// What can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Run,
    Check,
}

impl Verb {
    /// Returns the JSON with which it answers a command line that cannot be
    /// understood, or checks no file at all.
    pub(crate) fn refusal(self, error: String) -> String {
        match self {
            Self::Run => wire::line(&wire::Event::Refused { error, exit: Exit::Usage.code() }),
            Self::Check => wire::line(&wire::Report { files: Vec::new(), error: Some(error) }),
        }
    }
}

/// Runs the command and returns how it ended.
pub(crate) async fn dispatch(cli: Cli, console: &Console) -> Exit {
    let ended = match cli.command {
        Command::Run(run) => run::run(*run, &cli.common, console).await,
        Command::Check(check) => check::check(check, console).await,
    };
    ended.unwrap_or_else(|error| {
        console.err.note(&render::complaint(&format!("{error:#}")));
        Exit::Failed
    })
}
