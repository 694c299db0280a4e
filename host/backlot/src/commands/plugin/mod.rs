//! `backlot plugin`: the kinds of a plugin folder, looked at and changed.
//!
//! The folder says what is to be there. A host that watches it follows within moments,
//! with its tasks undisturbed; others find it so when they start.

mod drain;
mod inspect;
mod load;
mod ls;
mod reload;
mod rollback;
mod unload;

use std::{
    io,
    path::{Path, PathBuf},
};

use backlot_registry::Kind;
use backlot_wasm::KindError;

use crate::{
    cli::{Common, PluginCommand, PluginVerb},
    commands::{Verb, print},
    console::Console,
    exit::Exit,
    host::{Host, HostError},
    policy::PolicyFileError,
    render,
    shelf::Kept,
    wire,
};

/// How many instances the host has room for: nothing is run but `describe`.
const INSTANCES: u32 = 4;
/// How many digits of a digest tell people which it is.
const DIGITS: usize = 12;

pub(crate) async fn plugin(
    verb: PluginVerb,
    common: &Common,
    console: &Console,
) -> anyhow::Result<Exit> {
    let json = verb.verb.json();
    let answer = match verb.verb {
        PluginCommand::Ls(_) | PluginCommand::Reload(_) => Verb::Plugins,
        _ => Verb::Plugin,
    };
    let done = match verb.verb {
        PluginCommand::Ls(args) => return ls::ls(args, common, console).await,
        PluginCommand::Inspect(args) => inspect::inspect(args, common, console).await,
        PluginCommand::Load(args) => load::load(args, common, console).await,
        PluginCommand::Unload(args) => unload::unload(args, common, console).await,
        PluginCommand::Reload(args) => reload::reload(args, common, console).await,
        PluginCommand::Rollback(args) => rollback::rollback(args, common, console).await,
        PluginCommand::Drain(args) => drain::drain(args, common, console).await,
    };
    match done {
        Ok(exit) => Ok(exit),
        Err(Stopped::Refused(exit, why)) => {
            if json {
                print(console, answer.refusal(why.replace('\n', "; "))).await?;
            }
            for line in why.lines() {
                console.err.say(&render::complaint(line)).await;
            }
            Ok(exit)
        }
        Err(Stopped::Broken(error)) => Err(error),
    }
}

/// Why a verb did not do what it was asked for.
enum Stopped {
    /// For a reason that the person can do something about.
    Refused(Exit, String),
    /// Nobody can be told.
    Broken(anyhow::Error),
}

impl Stopped {
    fn refused(why: impl Into<String>) -> Self {
        Self::Refused(Exit::Refused, why.into())
    }
}

impl From<anyhow::Error> for Stopped {
    fn from(error: anyhow::Error) -> Self {
        Self::Broken(error)
    }
}

impl From<PolicyFileError> for Stopped {
    fn from(error: PolicyFileError) -> Self {
        Self::Refused(Exit::Usage, error.to_string())
    }
}

impl From<KindError> for Stopped {
    fn from(error: KindError) -> Self {
        let exit = if matches!(error, KindError::Name(_)) { Exit::Usage } else { Exit::Refused };
        Self::Refused(exit, render::chain(&error))
    }
}

impl From<HostError> for Stopped {
    fn from(error: HostError) -> Self {
        Self::refused(render::chain(&error))
    }
}

/// Reads the name of a kind. What is none is a slip of the command line.
fn kind(name: &str) -> Result<Kind, Stopped> {
    Ok(Kind::new(name).map_err(KindError::Name)?)
}

/// Starts a host to look at components with, under the person's policy.
fn host(common: &Common) -> Result<Host, Stopped> {
    let mut config = common.config(INSTANCES);
    config.policy = common.policy()?;
    Ok(Host::start(config)?)
}

fn folder(common: &Common) -> PathBuf {
    common.config(INSTANCES).plugins
}

/// Says that the plugin folder cannot be changed.
fn cannot_change(folder: &Path, error: &io::Error) -> Stopped {
    Stopped::refused(format!("cannot change the plugin folder {}: {error}", folder.display()))
}

/// Says that the plugin folder cannot be listed.
fn cannot_list(folder: &Path, error: &io::Error) -> Stopped {
    Stopped::refused(format!("cannot list the plugin folder {}: {error}", folder.display()))
}

/// Says that the kind is not in the plugin folder.
fn unknown(folder: &Path, kind: Kind) -> Stopped {
    KindError::missing(folder, kind).into()
}

/// Returns the kind of that name, and the plugin folder that it is to be looked for in.
fn place(common: &Common, name: &str) -> Result<(Kind, PathBuf), Stopped> {
    let (kind, folder) = (kind(name)?, folder(common));
    match folder.exists() {
        true => Ok((kind, folder)),
        false => Err(unknown(&folder, kind)),
    }
}

/// Returns a digest as people are shown it where there is little room.
fn short(digest: &str) -> &str {
    let digits = digest.strip_prefix("sha256:").unwrap_or(digest);
    digits.get(..DIGITS).unwrap_or(digits)
}

/// Tells what has become of a kind.
async fn tell(
    console: &Console,
    common: &Common,
    json: bool,
    done: &wire::Plugin,
    line: &str,
) -> Result<(), Stopped> {
    if json {
        print(console, wire::line(done)).await?;
    } else if !common.quiet {
        print(console, format!("{line}\n")).await?;
    }
    Ok(())
}

/// Returns the digests of what is kept, the last one first.
fn digests(kept: &[Kept]) -> Vec<String> {
    kept.iter().map(|kept| kept.digest.clone()).collect()
}
