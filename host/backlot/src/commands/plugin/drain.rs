//! `backlot plugin drain`: a kind takes no more tasks, and its last one is waited for.

use std::time::Instant;

use backlot_wasm::wait_until_unused;
use tokio::{task::spawn_blocking, time::timeout};

use super::{Stopped, cannot_change, digests, place, tell, unknown};
use crate::{
    cli::{Common, PluginDrain},
    console::Console,
    exit::Exit,
    render,
    shelf::{Shelf, kept},
    wire,
};

pub(super) async fn drain(
    args: PluginDrain,
    common: &Common,
    console: &Console,
) -> Result<Exit, Stopped> {
    let (kind, folder) = place(common, &args.kind)?;
    let fail = |error| cannot_change(&folder, &error);
    let since = Instant::now();
    {
        // Let go of at once: others may change the folder while tasks end.
        let shelf = Shelf::open(&folder).map_err(fail)?;
        let was = shelf.take_away(&kind).map_err(fail)?;
        if !was && kept(&folder, &kind).map_err(fail)?.is_empty() {
            return Err(unknown(&folder, kind));
        }
    }
    if !common.quiet && !args.json {
        console.err.say(&format!("{kind}: takes no more tasks; waiting for the last")).await;
    }
    let unused = {
        let (folder, kind) = (folder.clone(), kind.clone());
        // It goes on until the process ends, where it is not waited for any more.
        spawn_blocking(move || wait_until_unused(&folder, &kind))
    };
    let waited = match args.timeout {
        Some(limit) => timeout(limit, unused).await.ok(),
        None => Some(unused.await),
    };
    match waited {
        Some(Ok(Ok(()))) => {}
        Some(Ok(Err(error))) => {
            return Err(Stopped::refused(format!("cannot wait for the tasks of {kind}: {error}")));
        }
        Some(Err(panic)) => return Err(Stopped::Broken(panic.into())),
        None => {
            let limit = args.timeout.unwrap_or_default();
            return Err(Stopped::Refused(
                Exit::Failed,
                format!("a host still runs tasks of {kind} after {limit:?}; it takes no new ones"),
            ));
        }
    }
    let kept = kept(&folder, &kind).map_err(fail)?;
    let took = since.elapsed().as_secs_f64();
    let line = render::one_line(&format!("{kind}: drained in {took:.2}s"));
    let done = wire::Plugin::done(&kind, "unloaded", None, digests(&kept));
    tell(console, common, args.json, &done, &line).await?;
    Ok(Exit::Completed)
}
