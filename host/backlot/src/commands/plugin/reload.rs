//! `backlot plugin reload`: files are looked at anew, by this program and by hosts.

use std::{
    io,
    path::{Path, PathBuf},
};

use backlot_wasm::{KindError, kind_files, kind_of, path_of_kind};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_NOW, utimensat};

use super::{Stopped, cannot_list, folder, host, kind, short, unknown};
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
        // A host that watches takes what has changed, and a time is a change.
        let touched = loaded.map_err(|error| render::chain(&error)).and_then(|component| {
            let cannot = |error| format!("{} cannot be given a new time: {error}", path.display());
            touch(path).map_err(cannot).map(|()| component)
        });
        let done = match touched {
            Ok(component) => {
                let about = component.description();
                if !args.json && !common.quiet {
                    let line = format!("{}: {}\n", about.kind, short(&about.digest));
                    print(console, line).await?;
                }
                let digest = Some(about.digest.to_string());
                wire::Plugin::done(&about.kind, "serving", digest, Vec::new())
            }
            Err(why) => {
                console.err.say(&render::complaint(&why)).await;
                wire::Plugin::broken(kind.ok(), why, Vec::new())
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

/// Gives a file a new time, unless it is a link: what that leads to is somebody else's.
fn touch(path: &Path) -> io::Result<()> {
    let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
    let times = Timestamps { last_access: now, last_modification: now };
    Ok(utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?)
}
