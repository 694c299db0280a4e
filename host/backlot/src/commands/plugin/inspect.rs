//! `backlot plugin inspect`: all there is to tell of a kind.

use std::{fmt::Write as _, time::SystemTime};

use backlot_wasm::{explain, manifest_beside, path_of_kind};

use super::{Stopped, folder, host, kind, short, unknown};
use crate::{
    cli::{Common, PluginInspect},
    commands::{check, print},
    console::Console,
    exit::Exit,
    render,
    shelf::{Kept, kept},
    wire,
};

pub(super) async fn inspect(
    args: PluginInspect,
    common: &Common,
    console: &Console,
) -> Result<Exit, Stopped> {
    let kind = kind(&args.kind)?;
    let folder = folder(common);
    let path = path_of_kind(&folder, &kind);
    if path.symlink_metadata().is_err() {
        return Err(unknown(&folder, kind));
    }
    let host = host(common)?;
    let component = host.load_kind(kind.as_str()).await?;
    let manifest = manifest_beside(&path)?;
    let earlier = kept(&folder, &kind).unwrap_or_default();
    let reaches = explain(&host.policy().rules(&kind), manifest.as_ref());
    let about = component.description();
    if args.json {
        let inspected = wire::Inspected::of(&path, about, &earlier, &reaches);
        print(console, wire::line(&inspected)).await?;
        return Ok(Exit::Completed);
    }
    let mut text = check::text(&path, about);
    for (nth, kept) in earlier.iter().enumerate() {
        let name = if nth == 0 { "kept" } else { "" };
        let _ = writeln!(text, "  {name:<10} {} ({})", short(&kept.digest), age(kept));
    }
    for (nth, reach) in reaches.iter().enumerate() {
        let name = if nth == 0 { "may reach" } else { "" };
        let line = render::one_line(&format!("{}  <- {}", reach.what, reach.by));
        let _ = writeln!(text, "  {name:<10} {line}");
    }
    print(console, text).await?;
    Ok(Exit::Completed)
}

fn age(kept: &Kept) -> String {
    let age = SystemTime::now().duration_since(kept.since).unwrap_or_default();
    format!("{} ago", humantime::format_duration(std::time::Duration::from_secs(age.as_secs())))
}
