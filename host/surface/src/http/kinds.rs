//! The kinds of the host: looked at by all, and changed by the operator.

use std::time::Duration;

use axum::{Json, extract::State, http::StatusCode};
use backlot_registry::Kind;
use tokio::{sync::Semaphore, time::timeout};

use super::{
    Surface,
    ask::{Named, Operating, Sent, Who},
    to_the_end,
};
use crate::{
    api::KindChange,
    error::{Failure, Reason},
    wire::{KindView, KindsReply, RollbackRequest},
};

/// How long the last task of a kind that is drained is waited for before the answer says
/// that it goes on: most kinds have none, and are done at once.
const DRAIN: Duration = Duration::from_secs(1);
/// How many kinds are drained at a time. Each waits for as long as its last task takes.
const DRAINS: usize = 64;

/// Returns the places for kinds that are being drained.
pub(super) fn drains() -> Semaphore {
    Semaphore::new(DRAINS)
}

pub(super) async fn list(State(surface): State<Surface>, _: Who) -> Json<KindsReply> {
    Json(all(&surface))
}

pub(super) async fn look(
    State(surface): State<Surface>,
    _: Who,
    Named(name): Named,
) -> Result<Json<KindView>, Failure> {
    view(&surface, &name).map(Json)
}

pub(super) async fn reload(
    State(surface): State<Surface>,
    _: Operating,
) -> Result<Json<KindsReply>, Failure> {
    let host = surface.api.host.clone();
    to_the_end(async move { host.reload().await }).await?;
    Ok(Json(all(&surface)))
}

pub(super) async fn load(
    State(surface): State<Surface>,
    _: Operating,
    Named(name): Named,
) -> Result<Json<KindView>, Failure> {
    // Its file may have come since the folder was looked at last.
    let kind = Kind::new(&name).map_err(|_| unknown(&name))?;
    change(&surface, kind, KindChange::Load).await
}

pub(super) async fn unload(
    State(surface): State<Surface>,
    _: Operating,
    Named(name): Named,
) -> Result<Json<KindView>, Failure> {
    let kind = known(&surface, &name)?;
    change(&surface, kind, KindChange::Unload).await
}

pub(super) async fn rollback(
    State(surface): State<Surface>,
    _: Operating,
    Named(name): Named,
    Sent(request): Sent<RollbackRequest>,
) -> Result<Json<KindView>, Failure> {
    let kind = known(&surface, &name)?;
    change(&surface, kind, KindChange::Rollback(request.to)).await
}

/// Drains a kind. Where its last task takes longer than a moment the answer comes before
/// that, and the kind can be looked at until it is unloaded.
pub(super) async fn drain(
    State(surface): State<Surface>,
    _: Operating,
    Named(name): Named,
) -> Result<(StatusCode, Json<KindView>), Failure> {
    let kind = known(&surface, &name)?;
    let place = surface.drains.clone().try_acquire_owned();
    let place = place.map_err(|_| Failure::new(Reason::Busy, "too many kinds are drained"))?;
    let host = surface.api.host.clone();
    let drained = tokio::spawn(async move {
        let _place = place;
        let drained = host.change_kind(kind.clone(), KindChange::Drain).await;
        if let Err(why) = &drained {
            tracing::info!(%kind, "a kind was not drained: {why}");
        }
        drained
    });
    let status = match timeout(DRAIN, drained).await {
        Ok(Ok(drained)) => drained.map(|()| StatusCode::OK)?,
        Ok(Err(error)) => {
            tracing::error!("a kind was not drained: {error}");
            return Err(Failure::new(Reason::Internal, "the host failed over it"));
        }
        Err(_) => StatusCode::ACCEPTED,
    };
    Ok((status, Json(view(&surface, &name)?)))
}

async fn change(
    surface: &Surface,
    kind: Kind,
    change: KindChange,
) -> Result<Json<KindView>, Failure> {
    let (host, changed) = (surface.api.host.clone(), kind.clone());
    to_the_end(async move { host.change_kind(changed, change).await }).await?;
    view(surface, kind.as_str()).map(Json)
}

fn all(surface: &Surface) -> KindsReply {
    let kinds = surface.api.catalog.kinds();
    KindsReply { kinds: kinds.iter().map(KindView::brief).collect() }
}

fn view(surface: &Surface, name: &str) -> Result<KindView, Failure> {
    let kind = Kind::new(name).ok().and_then(|kind| surface.api.catalog.kind(&kind));
    kind.as_ref().map(KindView::whole).ok_or_else(|| unknown(name))
}

/// Returns the kind of that name, if there is one.
fn known(surface: &Surface, name: &str) -> Result<Kind, Failure> {
    let kind = Kind::new(name).ok().filter(|kind| surface.api.catalog.kind(kind).is_some());
    kind.ok_or_else(|| unknown(name))
}

fn unknown(name: &str) -> Failure {
    let name: String = name.chars().take(64).collect();
    Failure::new(Reason::NoKind, format!("no kind {name:?}: list the kinds to see which there are"))
}
