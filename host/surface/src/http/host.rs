//! The host, and what is done to all of its jobs.

use std::time::Duration;

use axum::{Json, extract::State, http::StatusCode};
use backlot_registry::KindState;

use super::{
    Surface,
    ask::{Operating, Sent},
    to_the_end,
};
use crate::{
    error::{Failure, Reason},
    wire::{
        BackupRequest, HealthReply, LiveReply, PruneReply, PruneRequest, ReadyReply, ShutdownReply,
        ShutdownRequest,
    },
};

/// Tells that the host answers. Nothing is looked at for it.
pub(super) async fn live() -> Json<LiveReply> {
    Json(LiveReply { live: true })
}

/// Tells whether the host takes work.
pub(super) async fn ready(State(surface): State<Surface>) -> Result<Json<ReadyReply>, Failure> {
    let manager = &surface.api.manager;
    if surface.is_closing() || manager.is_refusing() {
        return Err(Failure::new(Reason::Closed, "the host is shutting down"));
    }
    let trouble = manager.health().await?.trouble;
    match trouble {
        None => Ok(Json(ReadyReply { ready: true })),
        Some(why) => {
            Err(Failure::new(Reason::Unavailable, format!("changes cannot be written: {why}")))
        }
    }
}

/// Has the host end, and does not wait for that.
pub(super) async fn shutdown(
    State(surface): State<Surface>,
    _: Operating,
    Sent(request): Sent<ShutdownRequest>,
) -> (StatusCode, Json<ShutdownReply>) {
    let host = surface.api.host;
    let drain = host.shutdown(request.drain_ms.map(Duration::from_millis));
    let drain_ms = u64::try_from(drain.as_millis()).unwrap_or(u64::MAX);
    (StatusCode::ACCEPTED, Json(ShutdownReply { pid: host.about().pid, drain_ms }))
}

pub(super) async fn health(
    State(surface): State<Surface>,
    _: Operating,
) -> Result<Json<HealthReply>, Failure> {
    let health = surface.api.manager.health().await?;
    let kinds = surface.api.catalog.kinds();
    let serving = kinds.iter().filter(|kind| kind.state == KindState::Serving).count();
    let host = surface.api.host;
    Ok(Json(HealthReply::of(host.about(), health).with(serving, host.warnings())))
}

pub(super) async fn prune(
    State(surface): State<Surface>,
    _: Operating,
    Sent(request): Sent<PruneRequest>,
) -> Result<Json<PruneReply>, Failure> {
    let manager = surface.api.manager;
    let keep = request.keep.unwrap_or(manager.config().keep);
    let age = request.age_ms.map_or(manager.config().keep_for, Duration::from_millis);
    let removed = to_the_end(async move { Ok(manager.prune(keep, age).await?) }).await?;
    Ok(Json(PruneReply { removed: removed.len() }))
}

pub(super) async fn backup(
    State(surface): State<Surface>,
    _: Operating,
    Sent(request): Sent<BackupRequest>,
) -> Result<StatusCode, Failure> {
    request.check()?;
    let host = surface.api.host;
    to_the_end(async move { host.backup(request.to).await }).await?;
    Ok(StatusCode::NO_CONTENT)
}
