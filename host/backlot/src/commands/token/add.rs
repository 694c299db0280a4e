//! `backlot token add`: a token is made.

use backlot_surface::{NewToken, TokenView};
use serde::Serialize;

use super::{open, told};
use crate::{
    cli::{Common, TokenAdd},
    commands::{
        jobs::{Told, ps::now_ms, reach},
        print,
    },
    console::Console,
    exit::Exit,
    wire,
};

/// The document of `backlot token add --json`.
#[derive(Serialize)]
struct Added<'a> {
    #[serde(flatten)]
    view: &'a TokenView,
    token: &'a str,
}

pub(super) async fn add(
    args: TokenAdd,
    common: &Common,
    console: &Console,
) -> anyhow::Result<Exit> {
    let json = args.json;
    let (view, token) = match make(args, common) {
        Ok(made) => made,
        Err(told) => return Ok(told.tell(json, console).await),
    };
    let text = match json {
        true => wire::line(&Added { view: &view, token: &token }),
        false => format!("{token}\n"),
    };
    print(console, text).await?;
    if !json && !common.quiet {
        console.err.say(&gist(&view)).await;
    }
    Ok(Exit::Completed)
}

fn make(args: TokenAdd, common: &Common) -> Result<(TokenView, String), Told> {
    let expires_ms = args.expires.map(|after| {
        let after_ms = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
        now_ms().saturating_add(after_ms)
    });
    let TokenAdd { name, role, session, .. } = args;
    let tokens = open(&reach::folder(common)?)?;
    tokens.add(NewToken { name, role, session, expires_ms }).map_err(told)
}

/// Returns what people are told of a token that was made.
fn gist(view: &TokenView) -> String {
    let TokenView { name, role, session, .. } = view;
    let of = match session {
        Some(session) => format!("for the session {session}"),
        None => "for all sessions".to_owned(),
    };
    format!("{name}: {role} {of}; the token is not shown again")
}
