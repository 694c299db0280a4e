//! The output of a job as a live stream: all of it in order, then the end.
//!
//! A follower holds one chunk of what it sends, and reads the next once its connection has
//! taken that. So one that does not read costs what it holds, and keeps nobody else from
//! going on.

use std::{pin::Pin, sync::Arc};

use axum::{extract::State, http::HeaderMap, response::Response};
use backlot_jobs::{
    JobId, LookError, Status,
    output::{Part, Recording},
};
use backlot_registry::Caller;
use bytes::Bytes;
use futures::{FutureExt as _, stream::unfold};
use tokio::{
    sync::{Notify, futures::OwnedNotified},
    time::sleep,
};

use super::{
    Surface,
    ask::{Asked, Named, Who},
    chunks::{self, Chunk},
    jobs::blocking,
    stream::{self, BEAT, HEARTBEAT, Place},
};
use crate::{
    error::{Failure, Reason},
    wire::{JobView, NothingView, RemovedView, StreamQuery},
};

pub(super) async fn stream(
    State(surface): State<Surface>,
    who: Who,
    Named(digits): Named,
    Asked(query): Asked<StreamQuery>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let id = surface.api.manager.find(&digits, &who.caller).await?;
    let after = match stream::last_id(&headers, None) {
        None => query.after,
        Some(last) => last.parse().map_err(|_| {
            Failure::new(Reason::BadRequest, "`last-event-id` is no id of this stream's events")
        })?,
    };
    let Some(place) = Place::take(&surface) else { return Ok(stream::full()) };
    let follower = Follower::new(surface, who.caller, id, query.part.into(), after, place);
    Ok(stream::answer(unfold(follower, Follower::next)))
}

/// Somebody who follows the output of a job.
struct Follower {
    surface: Surface,
    caller: Caller,
    job: JobId,
    part: Part,
    /// How many bytes were sent, or were before those that are.
    after: u64,
    /// Where the job stood when it was looked at last.
    status: Option<Status>,
    /// What is to be told of that, behind the output before it.
    stands: Option<Bytes>,
    /// The job as it ended, and no more of it than is told: its result may be large, and
    /// whoever reads slowly is here for long.
    ended: Option<Box<JobView>>,
    recorded: Signal,
    changed: Signal,
    /// Whether the job may have changed since it was looked at.
    is_changed: bool,
    /// Whether something may have been recorded that was not read.
    has_news: bool,
    is_done: bool,
    reader: Option<Recording>,
    _place: Place,
}

impl Follower {
    fn new(
        surface: Surface,
        caller: Caller,
        job: JobId,
        part: Part,
        after: u64,
        place: Place,
    ) -> Self {
        let recorded = Signal::of(surface.api.host.recorded(job));
        let changed = Signal::of(surface.api.manager.watch(job));
        Self {
            surface,
            caller,
            job,
            part,
            after,
            status: None,
            stands: None,
            ended: None,
            recorded,
            changed,
            is_changed: true,
            has_news: true,
            is_done: false,
            reader: None,
            _place: place,
        }
    }

    /// Returns what is to be sent next, or `None` at the end.
    async fn next(mut self) -> Option<(Bytes, Self)> {
        if self.is_done {
            return None;
        }
        let bytes = match self.find().await {
            Ok(bytes) => bytes,
            Err(failure) => {
                self.is_done = true;
                tracing::warn!(job = %self.job, "a stream of output ends early: {failure}");
                stream::one("error", None, &failure.reply())
            }
        };
        Some((bytes, self))
    }

    async fn find(&mut self) -> Result<Bytes, Failure> {
        loop {
            if self.surface.is_closing() {
                return Ok(self.last("closing", &NothingView {}));
            }
            if (self.is_changed || self.changed.has_come())
                && let Some(event) = self.look().await?
            {
                return Ok(event);
            }
            self.has_news |= self.recorded.has_come();
            if self.has_news {
                if let Some(chunk) = self.read().await? {
                    self.after = chunk.next;
                    return Ok(chunk.events);
                }
                self.has_news = false;
            }
            if let Some(event) = self.stands.take() {
                return Ok(event);
            }
            if let Some(job) = self.ended.take() {
                return Ok(self.last("ended", &*job));
            }
            tokio::select! {
                () = self.recorded.come() => self.has_news = true,
                () = self.changed.come() => self.is_changed = true,
                () = sleep(HEARTBEAT) => return Ok(Bytes::from_static(BEAT)),
                () = self.surface.closing() => {}
            }
        }
    }

    /// Looks at the job, and returns what there is to tell of it.
    async fn look(&mut self) -> Result<Option<Bytes>, Failure> {
        self.is_changed = false;
        let job = match self.surface.api.manager.get(self.job, &self.caller).await {
            Ok(job) => job,
            Err(LookError::Unknown(_)) => {
                let gone = RemovedView { id: self.job };
                return Ok(Some(self.last("removed", &gone)));
            }
            Err(error) => return Err(error.into()),
        };
        let status = job.status();
        let before = self.status.replace(status);
        // All that its runs wrote was recorded before that.
        self.has_news = true;
        if status.is_terminal() {
            self.stands = None;
            self.ended = Some(Box::new(JobView::brief(&job, None)));
            return Ok(None);
        }
        self.ended = None;
        let event = || stream::one("status", None, &JobView::brief(&job, None));
        match before {
            // Whoever has just come is told first where it stands.
            None => Ok(Some(event())),
            Some(before) if before == status => Ok(None),
            Some(_) => {
                self.stands = Some(event());
                Ok(None)
            }
        }
    }

    /// Returns what was recorded behind what was sent, if there is something.
    async fn read(&mut self) -> Result<Option<Chunk>, Failure> {
        let chunks = self.surface.chunks.clone();
        let place = (self.job, self.part, self.after);
        if let Some(chunk) = chunks.get(place) {
            return Ok(Some(chunk));
        }
        let _turn = chunks.turn(self.job, self.part).await;
        // Whoever had its turn before may have been here as well.
        if let Some(chunk) = chunks.get(place) {
            return Ok(Some(chunk));
        }
        let new = || Recording::new(self.surface.api.folder.job(self.job));
        let mut reader = self.reader.take().unwrap_or_else(new);
        let (part, after, is_over) = (self.part, self.after, self.ended.is_some());
        let read = blocking(move || {
            let read = chunks::read(&mut reader, part, after, is_over);
            let read = read.map_err(|error| Failure::io("the output cannot be read", &error))?;
            Ok((reader, read))
        });
        let (reader, read) = read.await?;
        self.reader = Some(reader);
        chunks.keep(place, &read);
        Ok(read.into_iter().next())
    }

    /// Returns the last event.
    fn last(&mut self, name: &str, data: &impl serde::Serialize) -> Bytes {
        self.is_done = true;
        stream::one(name, None, data)
    }
}

/// Something that comes again and again, and is not missed while nobody waits for it.
struct Signal {
    of: Arc<Notify>,
    next: Pin<Box<OwnedNotified>>,
}

impl Signal {
    fn of(of: Arc<Notify>) -> Self {
        let next = next(&of);
        Self { of, next }
    }

    /// Tells whether it has come since it was asked last.
    fn has_come(&mut self) -> bool {
        self.come().now_or_never().is_some()
    }

    /// Waits until it has come since then.
    async fn come(&mut self) {
        self.next.as_mut().await;
        self.next = next(&self.of);
    }
}

fn next(of: &Arc<Notify>) -> Pin<Box<OwnedNotified>> {
    let mut next = Box::pin(of.clone().notified_owned());
    next.as_mut().enable();
    next
}
