//! What the writer remembers of what it wrote, so that it need not be read again.
//!
//! All of it may be forgotten at any time: when a transaction was undone, and when
//! another process has written.

use std::collections::HashMap;

use backlot_registry::SessionId;

use crate::{
    id::JobId,
    job::{Job, Phase, Status},
    session::Session,
};

/// How many jobs are remembered, in each of two halves.
const HALF: usize = 2_048;

/// Jobs that have more text than this are not remembered, in bytes.
const LARGE: usize = 8 << 10;

/// A job with its place in the table.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) sequence: i64,
    pub(super) job: Job,
}

/// What the writer remembers.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// Those in the older half go when the newer is full.
    newer: HashMap<JobId, Held>,
    older: HashMap<JobId, Held>,
    sessions: HashMap<SessionId, Session>,
    /// Of sessions that have any.
    pub(super) live: HashMap<SessionId, usize>,
    pub(super) live_in_all: Option<usize>,
    pub(super) queued: Option<usize>,
    /// How many jobs have ended, and whether that was written.
    pub(super) ended: Option<u64>,
    pub(super) is_ended_new: bool,
}

impl Memory {
    /// Forgets everything.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }

    /// Returns a job.
    pub(super) fn job(&self, id: JobId) -> Option<&Held> {
        self.newer.get(&id).or_else(|| self.older.get(&id))
    }

    /// Remembers a job, unless it is large.
    pub(super) fn keep(&mut self, sequence: i64, job: &Job) {
        if size_of(job) > LARGE {
            self.drop_job(job.id);
            return;
        }
        if self.newer.len() >= HALF {
            self.older = std::mem::take(&mut self.newer);
        }
        self.newer.insert(job.id, Held { sequence, job: job.clone() });
    }

    /// Forgets a job.
    pub(super) fn drop_job(&mut self, id: JobId) {
        self.newer.remove(&id);
        self.older.remove(&id);
    }

    /// Returns a session.
    pub(super) fn session(&self, id: &SessionId) -> Option<&Session> {
        self.sessions.get(id)
    }

    /// Remembers a session.
    pub(super) fn keep_session(&mut self, session: &Session) {
        if self.sessions.len() >= HALF {
            self.sessions.clear();
        }
        self.sessions.insert(session.id.clone(), session.clone());
    }

    /// Forgets a session.
    pub(super) fn drop_session(&mut self, id: &SessionId) {
        self.sessions.remove(id);
    }

    /// Counts a job of a session that was there, or was not, and is there now, or not
    /// any more.
    pub(super) fn count(&mut self, session: &SessionId, old: Option<Status>, new: Option<Status>) {
        if old == new {
            return;
        }
        for (status, is_more) in [(old, false), (new, true)] {
            let Some(status) = status else { continue };
            if status.is_live() {
                self.live_in_all = self.live_in_all.map(|count| shift(count, is_more));
                if let Some(count) = self.live.get_mut(session) {
                    *count = shift(*count, is_more);
                }
            } else if status.is_terminal() {
                self.is_ended_new = true;
                self.ended = self.ended.map(|count| match is_more {
                    true => count + 1,
                    false => count.saturating_sub(1),
                });
            } else {
                self.queued = self.queued.map(|count| shift(count, is_more));
            }
        }
        // Those that have none are read anew, so that only sessions with work are held.
        if self.live.get(session) == Some(&0) {
            self.live.remove(session);
        }
    }
}

/// Returns one more or one less.
fn shift(count: usize, is_more: bool) -> usize {
    if is_more { count + 1 } else { count.saturating_sub(1) }
}

/// Returns about how much text a job has.
fn size_of(job: &Job) -> usize {
    let length = |text: &Option<String>| text.as_ref().map_or(0, String::len);
    let spec = &job.spec;
    let in_phase = match &job.phase {
        Phase::InputRequired { question, .. } => question.prompt.len() + length(&question.schema),
        Phase::Ended { ended, .. } => length(&ended.result),
        Phase::Queued { .. } | Phase::Working { .. } => 0,
    };
    spec.input.len()
        + length(&spec.grant)
        + length(&spec.inherit)
        + length(&job.stage.input)
        + length(&job.stage.answer)
        + length(&job.stage.last_failure)
        + length(&job.state)
        + in_phase
}
