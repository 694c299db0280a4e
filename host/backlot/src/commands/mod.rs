//! The commands, one file per verb.

mod check;
mod completions;
mod dev;
mod doctor;
mod follow;
mod jobs;
mod kinds;
mod man;
mod mcp;
mod plugin;
mod policy;
mod run;
mod serve;
mod shutdown;
mod start;
mod status;
mod token;

use anyhow::Context as _;
use bytes::Bytes;

use crate::{
    cli::{Cli, Command, Common, PolicyCommand},
    console::{Console, is_closed},
    exit::Exit,
    host::Host,
    render, wire,
};

/// What can be asked for as JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Run,
    /// A verb on jobs or tokens, or one that has a host begin or end.
    Job,
    Status,
    Kinds,
    Check,
    Doctor,
    Plugin,
    /// A verb of `plugin` that answers with a list.
    Plugins,
    Policy,
}

impl Verb {
    /// Returns the JSON with which it answers a command line that cannot be
    /// understood, or looks at nothing at all.
    pub(crate) fn refusal(self, error: String) -> String {
        let exit = Exit::Usage.code();
        match self {
            Self::Run => wire::line(&wire::Event::Refused { error, exit }),
            Self::Job => wire::line(&jobs::misunderstood(error)),
            Self::Status => wire::line(&wire::HostStatus::none(None, jobs::misunderstood(error))),
            Self::Kinds => wire::line(&wire::Kinds::refused(None, error)),
            Self::Check => wire::line(&wire::Report { files: Vec::new(), error: Some(error) }),
            Self::Doctor => wire::line(&wire::Checkup::refused(error)),
            Self::Plugin => wire::line(&wire::Plugin::refused(error)),
            Self::Plugins => wire::line(&wire::Plugins::refused(error)),
            Self::Policy => wire::line(&wire::Explained::refused(error)),
        }
    }
}

/// Runs the command and returns how it ended.
pub(crate) async fn dispatch(cli: Cli, console: &Console) -> Exit {
    let ended = match cli.command {
        Command::Run(run) => run::run(*run, &cli.common, console).await,
        Command::Serve(serve) => serve::serve(*serve, &cli.common, console).await,
        Command::Status(status) => status::status(status, &cli.common, console).await,
        Command::Shutdown(shutdown) => shutdown::shutdown(shutdown, &cli.common, console).await,
        Command::Mcp(args) => mcp::mcp(args, &cli.common, console).await,
        Command::Ps(ps) => jobs::ps::ps(ps, &cli.common, console).await,
        Command::Show(show) => jobs::show::show(show, &cli.common, console).await,
        Command::Logs(logs) => jobs::logs::logs(logs, &cli.common, console).await,
        Command::Wait(wait) => jobs::wait::wait(wait, &cli.common, console).await,
        Command::Stop(stop) => jobs::stop::stop(stop, &cli.common, console).await,
        Command::Retry(retry) => jobs::answer::retry(retry, &cli.common, console).await,
        Command::Answer(answer) => jobs::answer::answer(answer, &cli.common, console).await,
        Command::Files(files) => jobs::files::files(files, &cli.common, console).await,
        Command::Rm(rm) => jobs::rm::rm(rm, &cli.common, console).await,
        Command::Prune(prune) => jobs::rm::prune(prune, &cli.common, console).await,
        Command::Backup(backup) => jobs::backup::backup(backup, &cli.common, console).await,
        Command::Restore(restore) => jobs::backup::restore(restore, &cli.common, console).await,
        Command::Dev(dev) => dev::dev(*dev, &cli.common, console).await,
        Command::Kinds(kinds) => kinds::kinds(kinds, &cli.common, console).await,
        Command::Check(check) => check::check(check, &cli.common, console).await,
        Command::Doctor(doctor) => doctor::doctor(doctor, &cli.common, console).await,
        Command::Plugin(verb) => plugin::plugin(verb, &cli.common, console).await,
        Command::Token(verb) => token::token(verb, &cli.common, console).await,
        Command::Policy(policy) => match policy.verb {
            PolicyCommand::Check(check) => policy::check(check, &cli.common, console).await,
            PolicyCommand::Explain(explain) => {
                policy::explained(explain, &cli.common, console).await
            }
        },
        Command::Completions(completions) => completions::completions(completions, console).await,
        Command::Man(_) => man::man(console).await,
    };
    ended.unwrap_or_else(|error| {
        console.err.note(&render::complaint(&format!("{error:#}")));
        Exit::Failed
    })
}

/// Tells what does not work as it should on a host, unless nobody wants to hear.
async fn warn(console: &Console, host: &Host, common: &Common) {
    if !common.quiet {
        for warning in host.warnings() {
            console.err.say(&render::complaint(&format!("warning: {warning}"))).await;
        }
    }
}

/// Writes to stdout and returns whether anybody still reads.
async fn print(console: &Console, text: impl Into<Bytes>) -> anyhow::Result<bool> {
    match console.out.write(text).await {
        Ok(()) => Ok(true),
        Err(error) if is_closed(&error) => Ok(false),
        Err(error) => Err(error).context("cannot write to stdout"),
    }
}
