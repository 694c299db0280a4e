//! `backlot token rm`: tokens are of no use any more.

use serde::Serialize;

use super::{open, told};
use crate::{
    cli::{Common, TokenRm},
    commands::{
        jobs::{Told, reach},
        print,
    },
    console::Console,
    exit::Exit,
    wire,
};

/// The document of `backlot token rm --json`.
#[derive(Serialize)]
struct Removed {
    removed: Vec<String>,
}

pub(super) async fn rm(args: TokenRm, common: &Common, console: &Console) -> anyhow::Result<Exit> {
    if let Err(told) = remove(&args.names, common) {
        return Ok(told.tell(args.json, console).await);
    }
    let text = match args.json {
        true => wire::line(&Removed { removed: args.names }),
        false => args.names.iter().map(|name| format!("{name}\n")).collect(),
    };
    print(console, text).await?;
    Ok(Exit::Completed)
}

fn remove(names: &[String], common: &Common) -> Result<(), Told> {
    open(&reach::found(common)?)?.remove(names).map_err(told)
}
