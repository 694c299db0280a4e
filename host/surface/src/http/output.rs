//! The output of a job, as it comes.

use std::{io, pin::pin, time::Duration};

use axum::{Json, extract::State};
use backlot_jobs::{
    Hand, Job, Status,
    output::{Part, Recording},
};
use backlot_registry::Caller;
use tokio::time::{Instant, sleep, sleep_until};

use super::{
    Surface,
    ask::{Asked, Named, Who},
    jobs::blocking,
};
use crate::{
    error::Failure,
    wire::{OutputQuery, OutputReply, joined, unfinished},
};

/// How much is read where nothing was said, and at most, in bytes.
const READ: usize = 256 << 10;
const READ_MOST: usize = 4 << 20;
/// How often a job that waits for a person is looked at. Nothing is recorded then, and
/// nothing but its end is waited for.
const LOOK: Duration = Duration::from_secs(1);

pub(super) async fn read(
    State(surface): State<Surface>,
    who: Who,
    Named(digits): Named,
    Asked(query): Asked<OutputQuery>,
) -> Result<Json<OutputReply>, Failure> {
    let manager = &surface.api.manager;
    let id = manager.find(&digits, &who.caller).await?;
    let wait = Duration::from_millis(query.wait_ms.unwrap_or_default());
    let deadline = Instant::now() + wait.min(manager.config().max_wait);
    let part = query.part.into();
    let most = query.max.unwrap_or(READ).clamp(1, READ_MOST);
    let recorded = surface.api.host.recorded(id);
    let new = || Recording::new(surface.api.folder.job(id));
    let mut reader = surface.readers.take((id, part, query.after)).unwrap_or_else(new);
    let reply = loop {
        // Both are made before the look, so that nothing falls between.
        let mut news = pin!(recorded.notified());
        news.as_mut().enable();
        let job = manager.get(id, &who.caller).await?;
        let is_over = job.status().is_terminal();
        let after = query.after;
        let (used, reply) = blocking(move || {
            let reply = portion(&mut reader, part, after, most, is_over)
                .map_err(|error| Failure::io("the output cannot be read", &error))?;
            Ok((reader, reply))
        })
        .await?;
        reader = used;
        let is_due = !reply.pieces.is_empty() || reply.ended;
        if is_due || Instant::now() >= deadline {
            break reply;
        }
        tokio::select! {
            () = news => {}
            () = changed(&surface, &job, &who.caller) => {}
            () = sleep_until(deadline) => {}
            () = surface.closing() => break reply,
        }
    };
    surface.readers.keep((id, part, reply.next), reader);
    Ok(Json(reply))
}

/// Waits until a job may have ended.
async fn changed(surface: &Surface, job: &Job, caller: &Caller) {
    let manager = &surface.api.manager;
    match job.status() {
        Status::InputRequired => sleep(LOOK).await,
        // What went wrong with it shows in the look that follows.
        _ => _ = manager.status(job.id, caller, manager.config().max_wait, Hand::Person).await,
    }
}

/// Returns what there is of a part behind an offset. The beginning of a character whose
/// rest is still to come is left for the next time.
pub(super) fn portion(
    reader: &mut Recording,
    part: Part,
    after: u64,
    most: usize,
    is_over: bool,
) -> io::Result<OutputReply> {
    let mut read = reader.read(part, after, most)?;
    let mut has_more = |next| reader.read(part, next, 1).map(|more| !more.pieces.is_empty());
    if is_over {
        let ended = !has_more(read.next)?;
        return Ok(OutputReply { pieces: joined(read.pieces), next: read.next, ended });
    }
    let is_only = read.pieces.len() == 1;
    if let Some(last) = read.pieces.last_mut() {
        let cut = unfinished(&last.bytes);
        let is_all = is_only && cut == last.bytes.len();
        // Where the rest is there and does not fit, this has to go first.
        if cut > 0 && !(is_all && has_more(read.next)?) {
            last.bytes.truncate(last.bytes.len() - cut);
            read.next -= cut as u64;
        }
    }
    Ok(OutputReply { pieces: joined(read.pieces), next: read.next, ended: false })
}
