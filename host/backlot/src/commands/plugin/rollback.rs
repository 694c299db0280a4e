//! `backlot plugin rollback`: a kind goes back to a version from before.

use backlot_registry::Kind;
use backlot_wasm::{KindError, load_checked};

use super::{Stopped, cannot_change, digests, host, place, short, tell};
use crate::{
    cli::{Common, PluginRollback},
    console::Console,
    exit::Exit,
    shelf::{Kept, Shelf, kept},
    wire,
};

pub(super) async fn rollback(
    args: PluginRollback,
    common: &Common,
    console: &Console,
) -> Result<Exit, Stopped> {
    let (kind, folder) = place(common, &args.kind)?;
    let fail = |error| cannot_change(&folder, &error);
    let host = host(common)?;
    let shelf = Shelf::open(&folder).map_err(fail)?;
    let chosen = choose(kept(&folder, &kind).map_err(fail)?, &kind, args.to.as_deref())?;
    // It was good once, on a host that may have been another.
    let checked = load_checked(host.engine(), &chosen.file, Some(&kind)).await?;
    let found = checked.component.description();
    if found.kind != kind {
        let (path, found) = (chosen.file, found.kind.clone());
        return Err(KindError::OtherKind { path, found }.into());
    }
    let digest = found.digest.to_string();
    host.policy().rules(&kind).admits(&digest).map_err(KindError::from)?;
    // The bytes that were checked are the bytes that are put back.
    shelf.put_back(&kind, &chosen, &checked.bytes, checked.manifest.as_deref()).map_err(fail)?;

    let kept = kept(&folder, &kind).map_err(fail)?;
    let line = format!("{kind}: back to {}", short(&digest));
    let done = wire::Plugin::done(&kind, "serving", Some(digest), digests(&kept));
    tell(console, common, args.json, &done, &line).await?;
    Ok(Exit::Completed)
}

/// Returns the version with that digest or the beginning of it, or else the last one.
fn choose(kept: Vec<Kept>, kind: &Kind, to: Option<&str>) -> Result<Kept, Stopped> {
    let list = match kept.is_empty() {
        true => "no other version is kept; `backlot plugin load` keeps what it replaces".to_owned(),
        false => {
            let digests: Vec<&str> = kept.iter().map(|kept| short(&kept.digest)).collect();
            format!("it has {}", digests.join(", "))
        }
    };
    let Some(to) = to else {
        let none = || Stopped::refused(format!("{kind} has nothing to go back to: {list}"));
        return kept.into_iter().next().ok_or_else(none);
    };
    let digits = to.strip_prefix("sha256:").unwrap_or(to);
    let is_meant = |kept: &Kept| {
        kept.digest.strip_prefix("sha256:").is_some_and(|digest| digest.starts_with(digits))
    };
    let mut meant = kept.into_iter().filter(is_meant);
    match (meant.next(), meant.next(), digits.is_empty()) {
        (Some(one), None, false) => Ok(one),
        (Some(_), ..) => {
            Err(Stopped::refused(format!("`{to}` is more than one version of {kind}: {list}")))
        }
        (None, ..) => Err(Stopped::refused(format!("{kind} has no version `{to}`: {list}"))),
    }
}
