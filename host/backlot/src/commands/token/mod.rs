//! `backlot token`: who may ask a host over the network.
//!
//! The data folder's files are changed themselves. A host that runs looks at them with
//! each request, so it need not be told.

mod add;
mod ls;
mod rm;

use backlot_jobs::DataFolder;
use backlot_surface::{Failure, TokenError, Tokens};

use super::jobs::Told;
use crate::{
    cli::{Common, TokenCommand, TokenVerb},
    console::Console,
    exit::Exit,
};

pub(crate) async fn token(
    verb: TokenVerb,
    common: &Common,
    console: &Console,
) -> anyhow::Result<Exit> {
    match verb.verb {
        TokenCommand::Add(args) => add::add(args, common, console).await,
        TokenCommand::Ls(args) => ls::ls(args, common, console).await,
        TokenCommand::Rm(args) => rm::rm(args, common, console).await,
    }
}

/// Opens the tokens of a data folder.
fn open(folder: &DataFolder) -> Result<Tokens, Told> {
    Tokens::open(folder).map_err(told)
}

fn told(error: TokenError) -> Told {
    Failure::from(error).into()
}
