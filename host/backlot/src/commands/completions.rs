//! `backlot completions`: what a shell completes command lines with.

use clap::CommandFactory as _;

use crate::{
    cli::{Cli, Completions},
    commands::print,
    console::Console,
    exit::Exit,
};

pub(crate) async fn completions(args: Completions, console: &Console) -> anyhow::Result<Exit> {
    // Into memory, because clap panics where a write fails.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "backlot", &mut script);
    print(console, script).await?;
    Ok(Exit::Completed)
}
