//! `backlot plugin load`: a component becomes a kind of the plugin folder.

use backlot_wasm::{KindError, digest_of, load_checked, path_of_kind};

use super::{Stopped, cannot_change, digests, folder, host, short, tell};
use crate::{
    cli::{Common, PluginLoad},
    console::Console,
    exit::Exit,
    shelf::{Shelf, content, kept},
    wire,
};

pub(super) async fn load(
    args: PluginLoad,
    common: &Common,
    console: &Console,
) -> Result<Exit, Stopped> {
    let host = host(common)?;
    // The bytes that are checked are the bytes that are put there.
    let checked = load_checked(host.engine(), &args.file, None).await?;
    let kind = checked.component.description().kind.clone();
    let digest = checked.component.description().digest.to_string();
    host.policy().rules(&kind).admits(&digest).map_err(KindError::from)?;

    let folder = folder(common);
    let shelf = Shelf::open(&folder).map_err(|error| cannot_change(&folder, &error))?;
    let before = content(&path_of_kind(&folder, &kind)).map(|bytes| digest_of(&bytes));
    shelf
        .put(&kind, &checked.bytes, checked.manifest.as_deref())
        .map_err(|error| cannot_change(&folder, &error))?;
    let kept = kept(&folder, &kind).map_err(|error| cannot_change(&folder, &error))?;
    let line = match &before {
        Some(before) if *before == digest => format!("{kind}: {} as before", short(&digest)),
        Some(before) => format!("{kind}: {} instead of {}", short(&digest), short(before)),
        None => format!("{kind}: {}", short(&digest)),
    };
    let done = wire::Plugin::done(&kind, "serving", Some(digest), digests(&kept));
    tell(console, common, args.json, &done, &line).await?;
    Ok(Exit::Completed)
}
