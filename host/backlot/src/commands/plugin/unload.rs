//! `backlot plugin unload`: a kind takes no more tasks.

use super::{Stopped, cannot_change, digests, place, tell, unknown};
use crate::{
    cli::{Common, PluginUnload},
    console::Console,
    exit::Exit,
    shelf::{Shelf, kept},
    wire,
};

pub(super) async fn unload(
    args: PluginUnload,
    common: &Common,
    console: &Console,
) -> Result<Exit, Stopped> {
    let (kind, folder) = place(common, &args.kind)?;
    let fail = |error| cannot_change(&folder, &error);
    let shelf = Shelf::open(&folder).map_err(fail)?;
    if !shelf.take_away(&kind).map_err(fail)? {
        return Err(unknown(&folder, kind));
    }
    let kept = kept(&folder, &kind).map_err(fail)?;
    let line = format!("{kind}: unloaded; `backlot plugin rollback {kind}` brings it back");
    let done = wire::Plugin::done(&kind, "unloaded", None, digests(&kept));
    tell(console, common, args.json, &done, &line).await?;
    Ok(Exit::Completed)
}
