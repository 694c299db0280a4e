//! The commands, one file per verb.

mod check;
mod run;

use crate::{
    cli::{Cli, Command},
    exit::Exit,
    render,
};

/// Runs the command and returns how it ended.
pub(crate) async fn dispatch(cli: Cli) -> Exit {
    let ended = match cli.command {
        Command::Run(run) => run::run(*run, &cli.common).await,
        Command::Check(check) => check::check(check).await,
    };
    ended.unwrap_or_else(|error| {
        render::error(&error);
        Exit::Failed
    })
}
