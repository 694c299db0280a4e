//! A client of the Model Context Protocol whose messages another process hands on: it has
//! the connection changed from HTTP to a line a message, as on stdin and stdout.

use std::future::pending;

use axum::{
    body::Body,
    extract::{Request, State},
    http::{
        StatusCode,
        header::{CONNECTION, UPGRADE},
    },
    response::{IntoResponse, Response},
};
use backlot_registry::Caller;
use hyper_util::rt::TokioIo;

use super::{
    Surface,
    ask::{SESSION_HEADER, Who},
    guard::Standing,
};
use crate::{
    access::{Principal, Role},
    error::{Failure, Reason},
    mcp,
};

/// What a connection is changed to.
pub(crate) const PROTOCOL: &str = "backlot-mcp";
/// How many there are at a time: each is an agent, and has a process beside the host.
pub(super) const BRIDGES: u32 = 64;

/// Changes the connection, and serves the client as the session that it is narrowed to.
pub(super) async fn open(
    State(surface): State<Surface>,
    who: Who,
    mut request: Request<Body>,
) -> Result<Response, Failure> {
    let principal = principal(&who)?;
    let wanted = request.headers().get(UPGRADE);
    if wanted.is_none_or(|wanted| wanted.as_bytes() != PROTOCOL.as_bytes()) {
        let why = format!("this is for connections that are changed to `{PROTOCOL}`");
        return Err(Failure::new(Reason::BadRequest, why));
    }
    let place = surface.bridges.clone().try_acquire_owned();
    let place = place.map_err(|_| Failure::new(Reason::Busy, "too many agents are connected"))?;
    let changed = hyper::upgrade::on(&mut request);
    let standing = request.extensions().get::<Standing>().cloned();
    tokio::spawn(async move {
        let stream = match changed.await {
            Ok(stream) => TokioIo::new(stream),
            Err(error) => return tracing::debug!("a connection was not changed: {error}"),
        };
        let (read, write) = tokio::io::split(stream);
        let api = surface.api.clone();
        // Who comes by the socket has no token that could be taken away.
        let lost = async {
            match &standing {
                Some(standing) => standing.lost().await,
                None => pending().await,
            }
        };
        let closing = async {
            tokio::select! {
                () = surface.closing() => {}
                () = lost => tracing::info!("an agent is let go of: its token is good no more"),
            }
        };
        let served = Box::pin(mcp::serve_stream(api, principal, read, write, closing)).await;
        if let Err(failure) = served {
            tracing::debug!("an agent was not served: {failure}");
        }
        drop(place);
    });
    Ok((StatusCode::SWITCHING_PROTOCOLS, [(CONNECTION, "upgrade"), (UPGRADE, PROTOCOL)])
        .into_response())
}

/// Returns whom the client is taken for: somebody who works in one session.
fn principal(who: &Who) -> Result<Principal, Failure> {
    let Caller::Session(session) = &who.caller else {
        let why = format!("name the session of the agent with `{SESSION_HEADER}`");
        return Err(Failure::new(Reason::BadRequest, why));
    };
    Ok(match who.principal.role() {
        Role::Operator => Principal::user(session.as_str(), session.clone()),
        Role::User => Principal::user(who.principal.name(), session.clone()),
        Role::Observer => Principal::observer(who.principal.name(), Some(session.clone())),
    })
}
