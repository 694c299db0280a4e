//! `backlot rm` and `backlot prune`: jobs that have ended are deleted.

use std::time::Duration;

use backlot_surface::wire::PruneRequest;
use serde::Serialize;

use super::{Told, reach};
use crate::{
    cli::{Common, Prune, Rm},
    commands::print,
    console::Console,
    exit::Exit,
    wire,
};

/// The document of `backlot rm --json`.
#[derive(Serialize)]
struct Removed {
    removed: Vec<String>,
}

pub(crate) async fn rm(args: Rm, common: &Common, console: &Console) -> anyhow::Result<Exit> {
    let acting = match reach::act(common, "backlot rm").await {
        Ok(acting) => acting,
        Err(told) => return Ok(told.tell(args.json, console).await),
    };
    let (mut removed, mut exit) = (Vec::new(), Exit::Completed);
    for digits in &args.jobs {
        match acting.client.remove(digits).await {
            Ok(_) => removed.push(digits.clone()),
            Err(error) => {
                let own = Told::from(error).tell(false, console).await;
                exit = if exit == Exit::Completed { own } else { exit };
            }
        }
    }
    if args.json {
        print(console, wire::line(&Removed { removed })).await?;
    } else {
        for id in removed {
            print(console, format!("{id}\n")).await?;
        }
    }
    if let Some(holding) = acting.holding {
        holding.end().await;
    }
    Ok(exit)
}

pub(crate) async fn prune(args: Prune, common: &Common, console: &Console) -> anyhow::Result<Exit> {
    let age_ms = args.older.map(|age: Duration| u64::try_from(age.as_millis()).unwrap_or(u64::MAX));
    let request = PruneRequest { keep: args.keep, age_ms };
    let acting = match reach::act(common, "backlot prune").await {
        Ok(acting) => acting,
        Err(told) => return Ok(told.tell(args.json, console).await),
    };
    let exit = match acting.client.prune(&request).await {
        Ok(reply) => {
            let text = match args.json {
                true => wire::line(&reply),
                false => format!("{} deleted\n", reply.removed),
            };
            print(console, text).await?;
            Exit::Completed
        }
        Err(error) => Told::from(error).tell(args.json, console).await,
    };
    if let Some(holding) = acting.holding {
        holding.end().await;
    }
    Ok(exit)
}
