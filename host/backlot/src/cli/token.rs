//! The verbs on tokens, as the command line has them.

use std::time::Duration;

use backlot_surface::Role;
use clap::{
    Args, Subcommand,
    builder::{PossibleValuesParser, TypedValueParser as _},
};

use super::duration;

/// Make, list and remove the tokens that programs ask a host with
///
/// Over the network nobody gets in without one. Whoever has a token is who it says: an
/// operator sees all and may do all, a user works in a session of its own, and an observer
/// changes nothing. The operator's first token is made when a host is started, and is in
/// the file `operator-token` of the data folder.
#[derive(Debug, Args)]
pub(crate) struct TokenVerb {
    #[command(subcommand)]
    pub(crate) verb: TokenCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TokenCommand {
    Add(TokenAdd),
    Ls(TokenLs),
    Rm(TokenRm),
}

/// Make a token, and print it once
///
/// It is good at once, also for a host that runs. What is kept of it is a hash, so that
/// nobody can print it again.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes: 0 made, 1 it could not be written down, 2 usage, 3 there is one of that name.

Examples:
  backlot token add ann
  backlot token add ci --session builds --expires 30d > ci.token
  backlot token add dashboard --role observer

With --json, stdout is one JSON document:
  {\"name\":..,\"role\":..,\"session\":..,\"created_ms\":..,\"expires_ms\":..,\"token\":..}")]
pub(crate) struct TokenAdd {
    /// Its name, which is written down for what is done with it
    pub(crate) name: String,
    /// What who has it may do
    #[arg(long, value_name = "ROLE", default_value = "user",
        value_parser = PossibleValuesParser::new(Role::ALL.map(Role::as_str)).try_map(role))]
    pub(crate) role: Role,
    /// The session that it is kept to, with those below it, such as ci/1 below ci. All that
    /// are alike up to the first / share half of the host's places and queue [default: a user's is
    /// the token's name, an observer's are all]
    #[arg(long, value_name = "NAME")]
    pub(crate) session: Option<String>,
    /// After what time it is of no use any more [default: never]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) expires: Option<Duration>,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

/// List the tokens
///
/// Prints a line for each: its name, its role, its session, how old it is, and when it
/// expires.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes: 0 listed, 1 they cannot be read, 2 usage, 3 they may not be used as they are.

Examples:
  backlot token ls
  backlot token ls --json | jq -r '.tokens[] | select(.expired).name'

With --json, stdout is one JSON document:
  {\"tokens\":[{\"name\":..,\"role\":..,\"session\":..,\"created_ms\":..,\"expires_ms\":..,\"expired\":..}]}")]
pub(crate) struct TokenLs {
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

/// Remove tokens
///
/// They are of no use from then on, also for a host that runs. Where one of them is not
/// there, none is removed. A host that is started without an operator's token makes
/// another, so that it can be replaced.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes: 0 removed, 1 that could not be written down, 2 usage, 3 there is no such token.

Examples:
  backlot token rm ann ci")]
pub(crate) struct TokenRm {
    /// Their names
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// Print one JSON document: {"removed":[..]}
    #[arg(long)]
    pub(crate) json: bool,
}

fn role(text: String) -> Result<Role, String> {
    let known = Role::ALL.into_iter().find(|role| role.as_str() == text);
    known.ok_or_else(|| format!("{text:?} is no role"))
}
