//! `backlot policy`: what the operator's policy says, and what is wrong with it.

use std::path::Path;

use backlot_registry::Kind;
use backlot_wasm::{KindError, Policy, Reach, explain, manifest_beside};

use crate::{
    cli::{Common, PolicyCheck, PolicyExplain},
    commands::{Verb, print},
    console::Console,
    exit::Exit,
    policy::{PolicyFileError, read_policy},
    render,
    settings::Settings,
    wire,
};

pub(crate) async fn check(
    args: PolicyCheck,
    common: &Common,
    console: &Console,
) -> anyhow::Result<Exit> {
    let Some(file) = args.file.or_else(|| common.policy_file()) else {
        let none = "there is no policy to check; name a file, or write one and name it with \
                    --policy FILE or BACKLOT_POLICY";
        console.err.say(&render::complaint(none)).await;
        return Ok(Exit::Usage);
    };
    // The same file says how a host is set up that stays.
    let read = read_policy(&file).and_then(|policy| Settings::read(&file).map(|_| policy));
    match read {
        Ok(policy) if !policy.is_some() => {
            let file = render::one_line(&file.display().to_string());
            print(console, format!("{file}: ok, and no policy: it is about the host alone\n"))
                .await?;
            Ok(Exit::Completed)
        }
        Ok(policy) => {
            print(console, summary(&file, &policy)).await?;
            Ok(Exit::Completed)
        }
        Err(error) => {
            complain(console, &error).await;
            Ok(Exit::Usage)
        }
    }
}

/// Tells all that is wrong with a policy or a manifest, a line each.
pub(super) async fn complain(console: &Console, error: &PolicyFileError) {
    for line in error.to_string().lines() {
        console.err.say(&render::complaint(line)).await;
    }
}

fn summary(file: &Path, policy: &Policy) -> String {
    let list = |names: Vec<&str>| match names.is_empty() {
        true => "none".to_owned(),
        false => render::one_line(&names.join(", ")),
    };
    let tasks = |tasks: Option<usize>| tasks.map_or("any number".to_owned(), |it| it.to_string());
    format!(
        "{}: ok\n  kinds            {}\n  secrets          {}\n  tasks            {}\n  \
         tasks per owner  {}\n",
        render::one_line(&file.display().to_string()),
        list(policy.kinds().map(Kind::as_str).collect()),
        list(policy.secrets().map(|(name, _)| name).collect()),
        tasks(policy.tasks()),
        tasks(policy.tasks_per_owner()),
    )
}

pub(crate) async fn explained(
    args: PolicyExplain,
    common: &Common,
    console: &Console,
) -> anyhow::Result<Exit> {
    match reaches(&args.kind, common) {
        Ok((_, reaches)) if !args.json => {
            print(console, table(&reaches)).await?;
            Ok(Exit::Completed)
        }
        Ok((kind, reaches)) => {
            print(console, wire::line(&wire::Explained::of(&kind, &reaches))).await?;
            Ok(Exit::Completed)
        }
        Err((exit, why)) => {
            if args.json {
                print(console, Verb::Policy.refusal(why.replace('\n', "; "))).await?;
            }
            for line in why.lines() {
                console.err.say(&render::complaint(line)).await;
            }
            Ok(exit)
        }
    }
}

/// Returns what a task of the kind could reach, or why that cannot be told.
fn reaches(kind: &str, common: &Common) -> Result<(Kind, Vec<Reach>), (Exit, String)> {
    let policy = common.policy().map_err(|error| (Exit::Usage, error.to_string()))?;
    let kind = Kind::new(kind).map_err(|error| (Exit::Usage, error.to_string()))?;
    let folder = common.config(0).plugins;
    let component = folder.join(format!("{kind}.wasm"));
    let manifest =
        manifest_beside(&component).map_err(|error| (Exit::Refused, error.to_string()))?;
    // A policy may be written before the kind is there.
    let is_known = manifest.is_some()
        || policy.kinds().any(|known| *known == kind)
        || component.symlink_metadata().is_ok();
    if !is_known {
        let unknown = KindError::missing(&folder, kind);
        return Err((Exit::Refused, unknown.to_string()));
    }
    let reaches = explain(&policy.rules(&kind), manifest.as_ref());
    Ok((kind, reaches))
}

/// Returns the lines in two columns.
fn table(reaches: &[Reach]) -> String {
    let shown = reaches.iter().map(|it| (render::one_line(&it.what), render::one_line(&it.by)));
    let shown: Vec<_> = shown.collect();
    let width = shown.iter().map(|(what, _)| what.chars().count()).max().unwrap_or_default();
    // A long one does not push all the others away.
    let width = width.min(48);
    shown.iter().map(|(what, by)| format!("{what:<width$}  <- {by}\n")).collect()
}
