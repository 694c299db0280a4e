//! Sessions, what is written down for them, and what is owed to them.

use std::time::{Duration, SystemTime};

use axum::{Json, extract::State};
use backlot_jobs::{Body, Entry};

use super::{
    Surface,
    ask::{Asked, Changing, Named, Sent, Who},
    to_the_end,
};
use crate::{
    error::Failure,
    wire::{
        DeleteQuery, DeliveryReply, EntriesQuery, EntriesReply, EntryReply, EntryRequest,
        EntryView, PruneReply, SessionView, SettleReply, SettleRequest, check_session,
    },
};

/// How many entries are read where nothing was said, and at most.
const ENTRIES: usize = 100;
const ENTRIES_MOST: usize = 1_000;
/// How many are read at a time, and in how many bytes of text no more are read.
const ENTRIES_READ: usize = 64;
const ENTRIES_BYTES: usize = 4 << 20;
/// How long jobs have to stop where nothing was said: some of them have a grace.
const GRACE: Duration = Duration::from_secs(10);

pub(super) async fn open(
    State(surface): State<Surface>,
    Changing(who): Changing,
    Named(name): Named,
) -> Result<Json<SessionView>, Failure> {
    check_session(&name)?;
    let session = who.session(&name)?;
    let opened = surface.api.manager.open_session(session).await?;
    Ok(Json(SessionView::of(&opened)))
}

pub(super) async fn remove(
    State(surface): State<Surface>,
    Changing(who): Changing,
    Named(name): Named,
    Asked(query): Asked<DeleteQuery>,
) -> Result<Json<PruneReply>, Failure> {
    let session = who.session(&name)?;
    let manager = surface.api.manager;
    let grace = query.grace_ms.map_or(GRACE, Duration::from_millis);
    let grace = grace.min(manager.config().max_wait);
    let by = who.name();
    let delete = async move { Ok(manager.delete_session(&session, &by, grace).await?) };
    let removed = to_the_end(delete).await?;
    Ok(Json(PruneReply { removed: removed.len() }))
}

pub(super) async fn entries(
    State(surface): State<Surface>,
    who: Who,
    Named(name): Named,
    Asked(query): Asked<EntriesQuery>,
) -> Result<Json<EntriesReply>, Failure> {
    let session = who.session(&name)?;
    let most = query.limit.unwrap_or(ENTRIES).clamp(1, ENTRIES_MOST);
    let (mut entries, mut next, mut bytes) = (Vec::new(), query.after, 0);
    while entries.len() < most && bytes < ENTRIES_BYTES {
        let read = ENTRIES_READ.min(most - entries.len());
        let read = surface.api.manager.entries(&session, next, read).await?;
        let Some((last, _)) = read.last() else { break };
        next = *last;
        for (number, entry) in read {
            bytes += match &entry.body {
                Body::Text(text) => text.len(),
                Body::Job(_) => 0,
            };
            entries.push(EntryView::of((number, entry)));
        }
    }
    Ok(Json(EntriesReply { entries, next }))
}

pub(super) async fn append(
    State(surface): State<Surface>,
    Changing(who): Changing,
    Named(name): Named,
    Sent(request): Sent<EntryRequest>,
) -> Result<Json<EntryReply>, Failure> {
    request.check()?;
    let session = who.session(&name)?;
    let EntryRequest { id, target, text } = request;
    let entry = Entry { id, target, body: Body::Text(text), at_ms: now_ms() };
    let number = surface.api.manager.append(&session, entry).await?;
    Ok(Json(EntryReply { number }))
}

pub(super) async fn owed(
    State(surface): State<Surface>,
    who: Who,
    Named(name): Named,
) -> Result<Json<DeliveryReply>, Failure> {
    let session = who.session(&name)?;
    let owed = surface.api.manager.owed(&session).await?;
    Ok(Json(owed.map(DeliveryReply::of).unwrap_or_default()))
}

pub(super) async fn settle(
    State(surface): State<Surface>,
    Changing(who): Changing,
    Named(name): Named,
    Sent(request): Sent<SettleRequest>,
) -> Result<Json<SettleReply>, Failure> {
    let session = who.session(&name)?;
    let manager = surface.api.manager.clone();
    let settle = async move { Ok(manager.settle(&session, &request.ids).await?) };
    // Also where who asked goes away, so that whoever else is told of them knows.
    let settled = to_the_end(settle).await?;
    Ok(Json(SettleReply { settled }))
}

fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}
