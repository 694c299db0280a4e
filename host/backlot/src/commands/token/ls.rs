//! `backlot token ls`: the tokens there are.

use std::io::{self, IsTerminal as _};

use backlot_jobs::{DataFolder, FolderError};
use backlot_surface::TokenView;
use serde::Serialize;

use super::{open, told};
use crate::{
    cli::{Common, TokenLs},
    commands::{
        jobs::{
            Told,
            ps::{age, now_ms},
            reach,
        },
        print,
    },
    console::Console,
    exit::Exit,
    render, wire,
};

/// The document of `backlot token ls --json`.
#[derive(Serialize)]
struct Listed {
    tokens: Vec<TokenView>,
}

pub(super) async fn ls(args: TokenLs, common: &Common, console: &Console) -> anyhow::Result<Exit> {
    let tokens = match list(common) {
        Ok(tokens) => tokens,
        Err(told) => return Ok(told.tell(args.json, console).await),
    };
    if args.json {
        print(console, wire::line(&Listed { tokens })).await?;
        return Ok(Exit::Completed);
    }
    let (is_terminal, now_ms) = (io::stdout().is_terminal(), now_ms());
    for token in &tokens {
        if !print(console, line(token, now_ms, is_terminal)).await? {
            return Ok(Exit::Completed);
        }
    }
    if tokens.is_empty() && !common.quiet {
        console.err.say(&render::complaint("no tokens")).await;
    }
    Ok(Exit::Completed)
}

/// Returns the tokens. Where no host has ever run there are none, and nothing is made.
fn list(common: &Common) -> Result<Vec<TokenView>, Told> {
    let path = reach::path(common)?;
    let folder = match DataFolder::find(&path) {
        Ok(folder) => folder,
        Err(FolderError::Missing { .. }) => return Ok(Vec::new()),
        Err(error) => return Err(reach::unusable(&error)),
    };
    open(&folder)?.list().map_err(told)
}

/// Returns the line of a token: in columns on a terminal, separated by tabs elsewhere.
fn line(token: &TokenView, now_ms: u64, is_terminal: bool) -> String {
    let TokenView { name, role, .. } = token;
    let session = render::one_line(token.session.as_deref().unwrap_or("*"));
    let made = age(now_ms.saturating_sub(token.created_ms));
    let expires = match token.expires_ms {
        None => "never expires".to_owned(),
        Some(_) if token.expired => "has expired".to_owned(),
        Some(at_ms) => format!("expires in {}", age(at_ms.saturating_sub(now_ms))),
    };
    match is_terminal {
        true => format!("{name:16}  {:8}  {session:16}  {made:>4}  {expires}\n", role.as_str()),
        false => format!("{name}\t{role}\t{session}\t{made}\t{expires}\n"),
    }
}

#[cfg(test)]
mod tests {
    use backlot_surface::Role;

    use super::*;

    #[test]
    fn a_line_has_what_people_look_for() {
        let mut token = TokenView {
            name: "ann".into(),
            role: Role::User,
            session: Some("chat".into()),
            created_ms: 1_000,
            expires_ms: None,
            expired: false,
        };
        let told = |token: &TokenView| line(token, 61_000, false);
        assert_eq!(told(&token), "ann\tuser\tchat\t1m\tnever expires\n");
        token.expires_ms = Some(61_000 + 7_200_000);
        assert_eq!(told(&token), "ann\tuser\tchat\t1m\texpires in 2h\n");
        (token.expires_ms, token.expired, token.session) = (Some(60_000), true, None);
        assert_eq!(told(&token), "ann\tuser\t*\t1m\thas expired\n");
        let columns = line(&token, 61_000, true);
        assert_eq!(columns, "ann               user      *                   1m  has expired\n");
    }
}
