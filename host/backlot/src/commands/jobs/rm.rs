//! `backlot rm` and `backlot prune`: jobs that have ended are deleted.

use std::time::Duration;

use backlot_surface::{
    Client,
    wire::{LookQuery, PruneRequest},
};
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
    #[serde(skip_serializing_if = "Vec::is_empty")]
    errors: Vec<wire::Problem>,
}

pub(crate) async fn rm(args: Rm, common: &Common, console: &Console) -> anyhow::Result<Exit> {
    let acting = match reach::act(common, "backlot rm", reach::Stays::ForAMoment).await {
        Ok(acting) => acting,
        Err(told) => return Ok(told.tell(args.json, console).await),
    };
    let (mut removed, mut errors) = (Vec::new(), Vec::new());
    let mut exit = Exit::Completed;
    for digits in &args.jobs {
        match remove(&acting.client, digits).await {
            Ok(id) => removed.push(id),
            Err(told) => {
                errors.push(told.problem());
                let own = told.tell(false, console).await;
                exit = if exit == Exit::Completed { own } else { exit };
            }
        }
    }
    if args.json {
        print(console, wire::line(&Removed { removed, errors })).await?;
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

/// Deletes a job and returns its id.
async fn remove(client: &Client, digits: &str) -> Result<String, Told> {
    let id = client.job(digits, &LookQuery::default()).await?.id.to_string();
    client.remove(&id).await?;
    Ok(id)
}

pub(crate) async fn prune(args: Prune, common: &Common, console: &Console) -> anyhow::Result<Exit> {
    let age_ms = args.older.map(|age: Duration| u64::try_from(age.as_millis()).unwrap_or(u64::MAX));
    let request = PruneRequest { keep: args.keep, age_ms };
    let acting = match reach::act(common, "backlot prune", reach::Stays::ForAMoment).await {
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
