//! What becomes of jobs as a live stream: what there is, then what happens to it.
//!
//! The place in the feed is taken before the store is looked at, so nothing falls between
//! the two. What has happened meanwhile is then told again where it is news, and left out
//! where the store showed its job as it was later.

use std::sync::Arc;

use axum::{extract::State, http::HeaderMap, response::Response};
use backlot_jobs::{Query, Status};
use backlot_registry::{Caller, SessionId};
use bytes::Bytes;
use futures::stream::unfold;
use tokio::{sync::watch, time::sleep};

use super::{
    Surface,
    ask::{Asked, Who},
    stream::{self, HEARTBEAT},
};
use crate::{
    error::Failure,
    feed::{Place, Told, What},
    wire::{EventsQuery, JobView, NothingView, SnapshotView, check_session},
};

/// How many jobs are shown at a time, of those that there are.
const PAGE: usize = 100;
/// How many events are sent at a time.
const BATCH: usize = 64;

pub(super) async fn stream(
    State(surface): State<Surface>,
    who: Who,
    Asked(query): Asked<EventsQuery>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let session = match &query.session {
        Some(name) => {
            check_session(name)?;
            Some(who.session(name)?)
        }
        None => match &who.caller {
            Caller::Session(own) => Some(own.clone()),
            Caller::Operator | Caller::Anyone => None,
        },
    };
    let Some(place) = stream::Place::take(&surface) else { return Ok(stream::full()) };
    let last = stream::last_id(&headers, query.after.as_deref());
    let newest = surface.api.feed.watch();
    let begin = surface.api.feed.place();
    let stage = match last {
        None => Stage::Showing { before: None },
        Some(last) => match Place::parse(last) {
            Some(last) => Stage::Following { shown: last.number, at: last },
            // It is of no feed that there ever was.
            None => Stage::Lost,
        },
    };
    let status = query.status;
    let who = Watcher {
        surface,
        caller: who.caller,
        session,
        status,
        newest,
        begin,
        stage,
        _place: place,
    };
    Ok(stream::answer(unfold(who, Watcher::next)))
}

/// Somebody who is told what becomes of jobs.
struct Watcher {
    surface: Surface,
    caller: Caller,
    /// The session whose jobs are told of; none for those of all.
    session: Option<SessionId>,
    /// How those stand that are told of; none for any.
    status: Vec<Status>,
    newest: watch::Receiver<u64>,
    /// Where the feed was before the jobs were looked at.
    begin: Place,
    stage: Stage,
    _place: stream::Place,
}

/// What is sent next.
#[derive(Clone, Copy)]
enum Stage {
    /// That what was sent before is of no use.
    Lost,
    /// The jobs that there are, from some on.
    Showing { before: Option<u64> },
    /// What has happened behind a place. Up to that number the jobs may have been shown
    /// as they were later.
    Following { at: Place, shown: u64 },
    /// Nothing.
    Over,
}

impl Watcher {
    /// Returns what is to be sent next, or `None` at the end.
    async fn next(mut self) -> Option<(Bytes, Self)> {
        let bytes = loop {
            if self.surface.is_closing() && !matches!(self.stage, Stage::Over) {
                self.stage = Stage::Over;
                break stream::one("closing", None, &NothingView {});
            }
            match self.stage {
                Stage::Over => return None,
                Stage::Lost => {
                    self.begin = self.surface.api.feed.place();
                    self.stage = Stage::Showing { before: None };
                    break stream::one("reset", None, &NothingView {});
                }
                Stage::Showing { before } => match self.show(before).await {
                    Ok(shown) => break shown,
                    Err(failure) => {
                        tracing::warn!("a stream of events ends early: {failure}");
                        self.stage = Stage::Over;
                        break stream::one("error", None, &failure.reply());
                    }
                },
                Stage::Following { at, shown } => {
                    if let Some(bytes) = self.follow(at, shown).await {
                        break bytes;
                    }
                }
            }
        };
        Some((bytes, self))
    }

    /// Returns some of the jobs that have not ended.
    async fn show(&mut self, before: Option<u64>) -> Result<Bytes, Failure> {
        let shown = Status::ALL.into_iter().filter(|it| !it.is_terminal() && self.wants(*it));
        let status: Vec<Status> = shown.collect();
        let query = Query { session: self.session.clone(), status, before, limit: PAGE };
        let page = match query.status.is_empty() {
            true => Default::default(),
            false => self.surface.api.manager.list(&self.caller, query).await?,
        };
        let feed = &self.surface.api.feed;
        feed.shown(&page.jobs);
        let jobs = page.jobs.iter().map(|job| JobView::brief(job, None)).collect();
        let view = SnapshotView { jobs, more: page.next.is_some() };
        if page.next.is_some() {
            self.stage = Stage::Showing { before: page.next };
            return Ok(stream::one("snapshot", None, &view));
        }
        self.stage = Stage::Following { at: self.begin, shown: feed.place().number };
        // Who breaks off before that has not seen all, and begins anew.
        Ok(stream::one("snapshot", Some(&self.begin), &view))
    }

    /// Returns what has happened behind a place that is to be told, or nothing where that
    /// is to be looked for once more.
    async fn follow(&mut self, at: Place, shown: u64) -> Option<Bytes> {
        // Before the look, so that nothing falls between.
        self.newest.borrow_and_update();
        let Some(told) = self.surface.api.feed.since(at, BATCH) else {
            self.stage = Stage::Lost;
            return None;
        };
        let Some(last) = told.last() else {
            return self.wait(at).await;
        };
        self.stage = Stage::Following { at: at.at(last.number), shown };
        let mut events = Vec::new();
        for told in told.iter().filter(|told| self.is_told(told, shown)) {
            let name = match told.what {
                What::Changed(_) => "job",
                What::Removed => "removed",
            };
            let id = at.at(told.number);
            stream::written(&mut events, name, Some(&id), &told.data);
        }
        (!events.is_empty()).then(|| events.into())
    }

    /// Waits until something may have happened.
    async fn wait(&mut self, at: Place) -> Option<Bytes> {
        tokio::select! {
            changed = self.newest.changed() => {
                if changed.is_err() {
                    self.stage = Stage::Over;
                }
                None
            }
            // Who comes back begins behind what was of no interest, too.
            () = sleep(HEARTBEAT) => Some(format!("id: {at}\n\n").into()),
            () = self.surface.closing() => None,
        }
    }

    fn is_told(&self, told: &Arc<Told>, shown: u64) -> bool {
        let is_theirs = self.session.as_ref().is_none_or(|session| *session == told.session);
        let is_wanted = match told.what {
            What::Changed(status) => self.wants(status),
            What::Removed => true,
        };
        is_theirs && is_wanted && (told.number > shown || self.surface.api.feed.is_latest(told))
    }

    fn wants(&self, status: Status) -> bool {
        self.status.is_empty() || self.status.contains(&status)
    }
}
