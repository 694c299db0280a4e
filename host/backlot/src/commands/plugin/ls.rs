//! `backlot plugin ls`: the kinds of the plugin folder, and their versions.

use std::{
    io::{self, IsTerminal as _},
    path::Path,
    pin::pin,
};

use backlot_wasm::{KindError, kind_files, kind_of};
use futures::{StreamExt as _, stream};

use super::{INSTANCES, digests, short};
use crate::{
    cli::{Common, PluginLs},
    commands::{print, warn},
    console::Console,
    exit::Exit,
    host::Host,
    render,
    shelf::kept,
    wire,
};

/// How many files are loaded at a time. Each is in memory as a whole.
const AT_A_TIME: usize = 4;

pub(super) async fn ls(args: PluginLs, common: &Common, console: &Console) -> anyhow::Result<Exit> {
    let mut config = common.config(INSTANCES);
    let folder = config.plugins.clone();
    let prepared = common.policy().map_err(|error| (Exit::Usage, error.to_string()));
    let prepared = prepared.and_then(|policy| {
        config.policy = policy;
        let cannot = |error: io::Error| {
            format!("cannot list the plugin folder {}: {error}", folder.display())
        };
        kind_files(&folder).map_err(|error| (Exit::Refused, cannot(error)))
    });
    let prepared = prepared.and_then(|files| match Host::start(config) {
        Ok(host) => Ok((host, files)),
        Err(error) => Err((Exit::Refused, render::chain(&error))),
    });
    let (host, files) = match prepared {
        Ok(prepared) => prepared,
        Err((exit, why)) => {
            if args.json {
                let error = Some(why.replace('\n', "; "));
                let folder = Some(folder.display().to_string());
                let none = wire::Plugins { folder, plugins: Vec::new(), error };
                print(console, wire::line(&none)).await?;
            }
            for line in why.lines() {
                console.err.say(&render::complaint(line)).await;
            }
            return Ok(exit);
        }
    };
    let mut plugins = Vec::with_capacity(files.len());
    {
        let mut loads = pin!(
            stream::iter(&files)
                .map(async |path| {
                    let kind = kind_of(path)
                        .map_err(|source| KindError::FileName { path: path.clone(), source })?;
                    let loaded = host.plugins().load(&kind).await;
                    Ok::<_, KindError>((kind, loaded))
                })
                .buffered(AT_A_TIME)
        );
        while let Some(loaded) = loads.next().await {
            plugins.push(match loaded {
                Ok((kind, loaded)) => {
                    let kept = digests(&kept(&folder, &kind).unwrap_or_default());
                    match loaded {
                        Ok(component) => wire::Plugin::of(component.description(), kept),
                        Err(error) => {
                            let kind = Some(kind.to_string());
                            wire::Plugin::broken(kind, render::chain(&error), kept)
                        }
                    }
                }
                Err(error) => wire::Plugin::broken(None, render::chain(&error), Vec::new()),
            });
        }
    }
    plugins.extend(unloaded(&folder, &plugins));
    let all = plugins.iter().all(wire::Plugin::is_ok);
    if args.json {
        let folder = Some(folder.display().to_string());
        print(console, wire::line(&wire::Plugins { folder, plugins, error: None })).await?;
    } else {
        show(&plugins, console).await?;
    }
    warn(console, &host, common).await;
    Ok(if all { Exit::Completed } else { Exit::Failed })
}

/// Returns the kinds that are not used and have versions that are kept.
fn unloaded(folder: &Path, used: &[wire::Plugin]) -> Vec<wire::Plugin> {
    let entries = std::fs::read_dir(folder.join(".backlot")).into_iter().flatten().flatten();
    let mut kinds: Vec<_> = entries
        .filter_map(|entry| backlot_registry::Kind::new(entry.file_name().to_str()?).ok())
        .filter(|kind| used.iter().all(|it| it.kind() != Some(kind.as_str())))
        .collect();
    kinds.sort();
    let unloaded = kinds.into_iter().filter_map(|kind| {
        let kept = kept(folder, &kind).ok().filter(|kept| !kept.is_empty())?;
        Some(wire::Plugin::done(&kind, "unloaded", None, digests(&kept)))
    });
    unloaded.collect()
}

async fn show(plugins: &[wire::Plugin], console: &Console) -> anyhow::Result<()> {
    let rows: Vec<[String; 5]> = plugins
        .iter()
        .filter_map(|it| {
            Some([
                it.kind()?.to_owned(),
                it.state().to_owned(),
                it.digest().map_or("-", short).to_owned(),
                it.contract().unwrap_or("-").to_owned(),
                it.kept().iter().map(|digest| short(digest)).collect::<Vec<_>>().join(","),
            ])
        })
        .collect();
    let wide = io::stdout().is_terminal();
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or_default();
    let widths = [width(0), width(1), width(2), width(3)];
    for row in &rows {
        let [kind, state, digest, contract, kept] = row;
        let kept = if kept.is_empty() { "-" } else { kept };
        let [a, b, c, d] = widths;
        let line = match wide {
            true => format!("{kind:<a$}  {state:<b$}  {digest:<c$}  {contract:<d$}  {kept}\n"),
            false => format!("{kind}\t{state}\t{digest}\t{contract}\t{kept}\n"),
        };
        if !print(console, line).await? {
            return Ok(());
        }
    }
    for why in plugins.iter().filter_map(wire::Plugin::error) {
        console.err.say(&render::complaint(why)).await;
    }
    Ok(())
}
