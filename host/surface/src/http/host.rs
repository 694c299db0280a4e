//! The host, and what is done to all of its jobs.

use std::time::Duration;

use axum::{Json, extract::State, http::StatusCode};

use super::{
    Surface,
    ask::{Operating, Sent},
    to_the_end,
};
use crate::{
    error::Failure,
    wire::{BackupRequest, HealthReply, PruneReply, PruneRequest},
};

pub(super) async fn health(
    State(surface): State<Surface>,
    _: Operating,
) -> Result<Json<HealthReply>, Failure> {
    let health = surface.api.manager.health().await?;
    Ok(Json(HealthReply::of(surface.api.host.about(), health)))
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
