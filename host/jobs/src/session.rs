//! Sessions: whom jobs work for, and what is written down for them.
//!
//! A session has entries. A change of a job is an entry as well, one that updates the
//! entry that the job was spawned by; it may be stored before that one, and
//! [`project`] puts the two together.

use std::collections::HashMap;

use backlot_registry::SessionId;
use serde::{Deserialize, Serialize};

use crate::{
    id::JobId,
    job::{Job, Phase, Status},
    serial,
};

/// A session: somebody that jobs work for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    /// Its name.
    #[serde(with = "serial::session")]
    pub id: SessionId,
    /// Which session of that name it is. One that is deleted and opened anew is
    /// another, and has nothing to do with what was left of the first.
    pub incarnation: u64,
    /// When it was opened, in milliseconds since the Unix epoch.
    pub created_ms: u64,
}

/// What one entry of a session says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its id, which whoever writes it chooses.
    pub id: String,
    /// The entry that it updates, if it updates one.
    pub target: Option<String>,
    /// What it says.
    pub body: Body,
    /// When it was written, in milliseconds since the Unix epoch.
    pub at_ms: u64,
}

/// What an entry says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Body {
    /// Something in the host's own words.
    Text(String),
    /// Where a job stands.
    Job(JobCard),
}

/// Where a job stands, as the entry that it was spawned by shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobCard {
    /// The job.
    pub job: JobId,
    /// The line that it is shown under.
    pub label: String,
    /// Where it stands.
    pub status: Status,
    /// Which attempt.
    pub attempt: u32,
    /// What there is to hear of its ending.
    pub summary: Option<String>,
}

/// An entry with what has become of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Projected {
    /// The entry.
    pub entry: Entry,
    /// The last update of it, if there is any.
    pub update: Option<Body>,
}

impl Entry {
    /// Returns the entry that tells where a job stands, under the one that it was
    /// spawned by; `None` where it was spawned by none.
    pub(crate) fn of(job: &Job, now_ms: u64) -> Option<Self> {
        let status = job.status();
        // A job may wait before a run and after it.
        let again = match &job.phase {
            Phase::Queued { last: Some(_), .. } => ".again",
            _ => "",
        };
        // Told again, it is the same entry.
        let id = format!("{}.{}.{}.{status}{again}", job.id, job.attempt, job.step);
        Self::telling(job, id, status, job.summary(), now_ms)
    }

    /// Returns the entry that tells that nothing came of a job.
    pub(crate) fn of_none(job: &Job) -> Option<Self> {
        let (id, why) = (format!("{}.none", job.id), "could not be launched");
        Self::telling(job, id, Status::Failed, Some(why), job.updated_ms)
    }

    fn telling(
        job: &Job,
        id: String,
        status: Status,
        summary: Option<&str>,
        at_ms: u64,
    ) -> Option<Self> {
        let body = Body::Job(JobCard {
            job: job.id,
            label: job.spec.label.clone(),
            status,
            attempt: job.attempt,
            summary: summary.map(Into::into),
        });
        Some(Self { id, target: Some(job.spec.entry.clone()?), body, at_ms })
    }
}

/// Returns the entries that update none, in order, each with the last update of it,
/// wherever that was stored. Updates of entries that are not there wait for them.
pub fn project(entries: &[Entry]) -> Vec<Projected> {
    let mut updates = HashMap::new();
    for entry in entries {
        if let Some(target) = &entry.target {
            updates.insert(target.as_str(), &entry.body);
        }
    }
    let originals = entries.iter().filter(|entry| entry.target.is_none());
    let project = |entry: &Entry| Projected {
        entry: entry.clone(),
        update: updates.get(entry.id.as_str()).map(|body| (*body).clone()),
    };
    originals.map(project).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(id: &str, target: Option<&str>, text: &str) -> Entry {
        let body = Body::Text(text.into());
        Entry { id: id.into(), target: target.map(Into::into), body, at_ms: 0 }
    }

    #[test]
    fn j17_an_update_may_be_stored_before_its_target() {
        let entries = [
            entry("u1", Some("a"), "working"),
            entry("a", None, "spawned"),
            entry("b", None, "other"),
            entry("u2", Some("a"), "completed"),
            entry("u3", Some("later"), "lost?"),
        ];
        let shown = project(&entries);
        assert_eq!(shown.len(), 2);
        assert_eq!(shown[0].entry.id, "a");
        assert_eq!(shown[0].update, Some(Body::Text("completed".into())));
        assert_eq!(shown[1].update, None);
        let whole = project(&[&entries[..], &[entry("later", None, "here")]].concat());
        assert_eq!(whole[2].update, Some(Body::Text("lost?".into())));
    }
}
