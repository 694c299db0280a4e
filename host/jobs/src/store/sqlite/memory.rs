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
    store::{Load, Of, family_of},
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
    /// How many jobs have not ended.
    pub(super) loads: Option<Loads>,
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
            if status.is_terminal() {
                self.is_ended_new = true;
                self.ended = self.ended.map(|count| match is_more {
                    true => count + 1,
                    false => count.saturating_sub(1),
                });
            } else if let Some(loads) = &mut self.loads {
                match is_more {
                    true => loads.add(session, status, 1),
                    false => loads.take(session, status),
                }
            }
        }
    }
}

/// How many jobs have not ended, of whom.
#[derive(Debug, Default)]
pub(super) struct Loads {
    /// Of sessions and families that have any.
    sessions: HashMap<SessionId, Load>,
    families: HashMap<String, Load>,
    all: Load,
}

impl Loads {
    pub(super) fn of(&self, of: Of<'_>) -> Load {
        let load = match of {
            Of::Session(session) => self.sessions.get(session),
            Of::Family(family) => self.families.get(family),
            Of::Host => Some(&self.all),
        };
        load.copied().unwrap_or_default()
    }

    /// Counts jobs that stand so, which have not ended.
    pub(super) fn add(&mut self, session: &SessionId, status: Status, count: usize) {
        let family = self.families.entry(family_of(session).to_owned()).or_default();
        let own = self.sessions.entry(session.clone()).or_default();
        for load in [own, family, &mut self.all] {
            *counter(load, status) += count;
        }
    }

    /// Counts one no more.
    fn take(&mut self, session: &SessionId, status: Status) {
        let family = family_of(session);
        let (own, above) = (self.sessions.get_mut(session), self.families.get_mut(family));
        for load in [own, above, Some(&mut self.all)].into_iter().flatten() {
            let counter = counter(load, status);
            *counter = counter.saturating_sub(1);
        }
        if self.of(Of::Session(session)) == Load::default() {
            self.sessions.remove(session);
        }
        if self.of(Of::Family(family)) == Load::default() {
            self.families.remove(family);
        }
    }
}

fn counter(load: &mut Load, status: Status) -> &mut usize {
    if status.is_live() { &mut load.live } else { &mut load.queued }
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
