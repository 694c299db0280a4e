//! `backlot plugin reload`: files are looked at anew, by this program and by hosts.

use std::{
    fs::{File, FileTimes},
    path::{Path, PathBuf},
    time::SystemTime,
};

use backlot_wasm::{KindError, kind_files, kind_of, path_of_kind};

use super::{Stopped, cannot_change, cannot_list, folder, host, kind, short, unknown};
use crate::{
    cli::{Common, PluginReload},
    commands::{print, warn},
    console::Console,
    exit::Exit,
    render, wire,
};

pub(super) async fn reload(
    args: PluginReload,
    common: &Common,
    console: &Console,
) -> Result<Exit, Stopped> {
    let folder = folder(common);
    let files = match &args.kind {
        Some(name) => vec![file(&folder, name)?],
        None => kind_files(&folder).map_err(|error| cannot_list(&folder, &error))?,
    };
    let host = host(common)?;
    let mut kinds = Vec::new();
    for path in &files {
        let kind = kind_of(path).map(|kind| kind.to_string());
        let loaded = match kind_of(path) {
            Ok(kind) => host.plugins().load(&kind).await,
            Err(source) => Err(KindError::FileName { path: path.clone(), source }),
        };
        let done = match &loaded {
            Ok(component) => {
                // A host that watches takes what has changed, and a time is a change.
                touch(path).map_err(|error| cannot_change(&folder, &error))?;
                let about = component.description();
                if !args.json && !common.quiet {
                    let line = format!("{}: {}\n", about.kind, short(&about.digest));
                    print(console, line).await?;
                }
                let digest = Some(about.digest.to_string());
                wire::Plugin::done(&about.kind, "serving", digest, Vec::new())
            }
            Err(error) => {
                console.err.say(&render::error(error)).await;
                wire::Plugin::broken(kind.ok(), render::chain(error), Vec::new())
            }
        };
        kinds.push(done);
    }
    let all = kinds.iter().all(wire::Plugin::is_ok);
    if args.json {
        let folder = Some(folder.display().to_string());
        print(console, wire::line(&wire::Plugins { folder, plugins: kinds, error: None })).await?;
    }
    warn(console, &host, common).await;
    Ok(if all { Exit::Completed } else { Exit::Failed })
}

fn file(folder: &Path, name: &str) -> Result<PathBuf, Stopped> {
    let kind = kind(name)?;
    let path = path_of_kind(folder, &kind);
    match path.symlink_metadata() {
        Ok(_) => Ok(path),
        Err(_) => Err(unknown(folder, kind)),
    }
}

fn touch(path: &Path) -> std::io::Result<()> {
    let file = File::options().write(true).open(path)?;
    file.set_times(FileTimes::new().set_modified(SystemTime::now()))
}
