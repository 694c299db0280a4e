//! `backlot run`: one task in the foreground, from its start to its exit code.

use std::{
    ffi::OsStr,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use backlot_registry::TaskId;
use backlot_wasm::{
    Ask, Component, ComponentForm, ComponentProducer, KindError, Policy, manifest_beside,
};

use crate::{
    cli::{Common, Run},
    commands::{
        follow::{Follow, Signals},
        jobs,
        start::{Refused, Wanted},
        warn,
    },
    console::Console,
    exit::Exit,
    host::Host,
    policy::sources,
};

/// How many instances the host has room for: one runs.
pub(super) const INSTANCES: u32 = 16;

/// Runs it as a job, or without a record where that is asked for.
pub(crate) async fn run(args: Run, common: &Common, console: &Console) -> anyhow::Result<Exit> {
    match args.as_job.ephemeral {
        true => Box::pin(ephemeral(args, common, console)).await,
        false => Box::pin(jobs::run::run(args, common, console)).await,
    }
}

async fn ephemeral(args: Run, common: &Common, console: &Console) -> anyhow::Result<Exit> {
    let json = args.with.json;
    let mut signals = Signals::listen()?;
    let prepared = tokio::select! {
        prepared = prepare(args, common, console) => prepared,
        name = signals.next() => Err(Refused {
            why: format!("stopped by {name} before it started"),
            exit: Exit::Killed,
        }),
    };
    let (host, id) = match prepared {
        Ok(prepared) => prepared,
        Err(refused) => {
            tokio::select! {
                () = refused.tell(json, console) => {}
                _ = signals.next() => {}
            }
            return Ok(refused.exit);
        }
    };
    let follow = Follow::new(host.registry(), console, id, json, common.quiet);
    let ended = Box::pin(follow.to_the_end(&mut signals)).await;
    tokio::select! {
        () = host.shutdown() => {}
        _ = signals.next() => {}
    }
    ended
}

/// Loads, grants and starts what the command line asks for.
async fn prepare(
    mut args: Run,
    common: &Common,
    console: &Console,
) -> Result<(Host, TaskId), Refused> {
    let config = common.config_with_policy(INSTANCES);
    let config = config.map_err(|error| Refused::usage(error.to_string()))?;
    let mut wanted = Wanted::of(&mut args.with, &config.policy)?;
    let folder = config.plugins.clone();
    let host = Host::start(config).map_err(|error| Refused::by(&error))?;
    let (component, file) = load(&host, &folder, &args.target).await?;
    warn(console, &host, common).await;
    let producer = decided(host.policy(), &component, &file, &wanted.ask)?;
    wanted.read(&mut args.with, producer.limits().input).await?;
    let _surface = host.registry().attach_surface("backlot run");
    let id = wanted.start(&host, component.description(), Arc::new(producer)).await?;
    Ok((host, id))
}

/// Decides what a task of the component gets, whose file that is.
pub(super) fn decided(
    policy: &Policy,
    component: &Component,
    file: &Path,
    ask: &Ask,
) -> Result<ComponentProducer, Refused> {
    let about = component.description();
    // What a policy gives to a kind is for the file that a person knows by that name,
    // not for any that says so of itself.
    let is_named = about.form == ComponentForm::Command
        || file.file_stem().is_some_and(|stem| stem == about.kind.as_str());
    if policy.is_some() && !is_named {
        let other = KindError::OtherKind { path: file.to_owned(), found: about.kind.clone() };
        return Err(Refused::by(&other));
    }
    let rules = policy.rules(&about.kind);
    rules.admits(&about.digest).map_err(|error| Refused::by(&error))?;
    let manifest = manifest_beside(file)
        .map_err(|error| Refused { why: error.to_string(), exit: Exit::Refused })?;
    // What is asked for a job of steps is for the kinds of those.
    let ask = match &manifest {
        Some(manifest) if component.has_steps() => &ask.clone().as_far_as(manifest),
        _ => ask,
    };
    component
        .decided(&rules, manifest.as_ref(), ask, &sources(policy))
        .map_err(|error| Refused::by(&error))
}

/// Loads a component file, or a kind where the target does not look like one, and
/// returns it with the file.
pub(super) async fn load(
    host: &Host,
    folder: &Path,
    target: &OsStr,
) -> Result<(Component, PathBuf), Refused> {
    let path = Path::new(target);
    let is_path =
        target.as_bytes().contains(&b'/') || path.extension().is_some_and(|end| end == "wasm");
    let (loaded, file) = match target.to_str() {
        Some(kind) if !is_path => (host.load_kind(kind).await, folder.join(format!("{kind}.wasm"))),
        _ => (host.load_file(path).await, path.to_owned()),
    };
    loaded.map(|component| (component, file)).map_err(|error| Refused::by(&error))
}
