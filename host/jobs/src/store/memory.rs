//! A store that forgets everything when it is dropped: for tests, and for hosts that
//! want nothing kept.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    ops::Bound,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use backlot_registry::{BoxFuture, SessionId};

use super::{
    Census, Change, ChangeError, Changed, Head, Load, Of, Page, Query, Rows, Store, StoreError,
    family_of,
};
use crate::{
    id::{JobId, Prefix},
    job::{Job, Phase, Run, Spec, Wait, Webhook},
    session::{Entry, Session},
};

/// Jobs in memory. Clones are one store.
#[derive(Clone, Debug, Default)]
pub struct MemoryStore(Arc<Mutex<Tables>>);

#[derive(Debug, Default)]
struct Tables {
    jobs: HashMap<JobId, Row>,
    /// By when they were spawned.
    spawned: BTreeMap<u64, JobId>,
    of_session: HashMap<SessionId, BTreeSet<u64>>,
    live: HashMap<SessionId, usize>,
    queued: BTreeMap<SessionId, BTreeSet<(u64, JobId)>>,
    /// By when they ended.
    ended: BTreeSet<(u64, u64, JobId)>,
    owed: BTreeSet<(u64, u64, JobId)>,
    /// By when they are due.
    calls: BTreeSet<(u64, u64, JobId)>,
    keys: HashMap<(SessionId, u64, String), JobId>,
    last_sequence: u64,
    last_place: u64,
    sessions: HashMap<SessionId, Session>,
    entries: HashMap<SessionId, Entries>,
}

#[derive(Debug)]
struct Row {
    sequence: u64,
    job: Job,
    past: Vec<Run>,
}

#[derive(Debug, Default)]
struct Entries {
    all: Vec<Entry>,
    numbers: HashMap<String, u64>,
}

impl MemoryStore {
    /// Returns an empty store.
    pub fn new() -> Self {
        Self::default()
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        // Nothing panics while it holds the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ready<T: Send + 'static>(value: T) -> BoxFuture<'static, Result<T, StoreError>> {
        Box::pin(async { Ok(value) })
    }
}

impl Store for MemoryStore {
    fn change(&self, change: Change) -> BoxFuture<'_, Result<Changed, ChangeError>> {
        let changed = change.apply(&mut *self.tables());
        Box::pin(async { changed })
    }

    fn job(&self, id: JobId) -> BoxFuture<'_, Result<Option<Job>, StoreError>> {
        Self::ready(self.tables().jobs.get(&id).map(|row| row.job.clone()))
    }

    fn job_of(
        &self,
        id: JobId,
        session: SessionId,
    ) -> BoxFuture<'_, Result<Option<Job>, StoreError>> {
        let tables = self.tables();
        let job = tables.jobs.get(&id).map(|row| &row.job);
        let own = job.filter(|job| job.spec.parent == session && tables.is_current(job));
        Self::ready(own.cloned())
    }

    fn find(&self, prefix: Prefix) -> BoxFuture<'_, Result<Vec<JobId>, StoreError>> {
        let within = prefix.first()..=prefix.last();
        let tables = self.tables();
        Self::ready(tables.jobs.keys().filter(|id| within.contains(id)).take(2).copied().collect())
    }

    fn list(&self, query: Query) -> BoxFuture<'_, Result<Page, StoreError>> {
        Self::ready(self.tables().page(&query))
    }

    fn past_runs(&self, id: JobId) -> BoxFuture<'_, Result<Vec<Run>, StoreError>> {
        Self::ready(self.tables().jobs.get(&id).map(|row| row.past.clone()).unwrap_or_default())
    }

    fn owed(
        &self,
        session: Option<SessionId>,
        after: Option<(u64, JobId)>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<Job>, StoreError>> {
        let tables = self.tables();
        let after = after.map(|(ended_ms, id)| {
            let sequence = tables.jobs.get(&id).map_or(0, |row| row.sequence);
            (ended_ms, sequence, id)
        });
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let owed = tables.owed.range((from, Bound::Unbounded));
        let owed = owed.filter_map(|(_, _, id)| tables.jobs.get(id));
        let owed = owed.map(|row| &row.job).filter(|job| {
            session.as_ref().is_none_or(|session| job.spec.parent == *session)
                && tables.is_current(job)
        });
        Self::ready(owed.take(limit).cloned().collect())
    }

    fn calls(
        &self,
        except: Vec<String>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<Job>, StoreError>> {
        let tables = self.tables();
        let jobs = tables.calls.iter().filter_map(|(_, _, id)| tables.jobs.get(id));
        let jobs = jobs.map(|row| &row.job).filter(|job| {
            let receiver = job.spec.webhook.as_ref().map(Webhook::receiver);
            receiver.is_some_and(|receiver| !except.contains(&receiver))
        });
        Self::ready(jobs.take(limit).map(brief).collect())
    }

    fn session(&self, id: SessionId) -> BoxFuture<'_, Result<Option<Session>, StoreError>> {
        Self::ready(self.tables().sessions.get(&id).cloned())
    }

    fn entries(
        &self,
        session: SessionId,
        after: u64,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<(u64, Entry)>, StoreError>> {
        let tables = self.tables();
        let all = tables.entries.get(&session).map_or(&[][..], |entries| &entries.all);
        let from = usize::try_from(after).unwrap_or(usize::MAX);
        let numbered = (1..).zip(all).skip(from).take(limit);
        Self::ready(numbered.map(|(number, entry)| (number, entry.clone())).collect())
    }

    fn census(&self) -> BoxFuture<'_, Result<Census, StoreError>> {
        let tables = self.tables();
        let mut census = Census::default();
        for row in tables.jobs.values() {
            match &row.job.phase {
                Phase::Queued { wait, .. } => {
                    census.queued += 1;
                    let due = census.next_due_ms.map_or(wait.due_ms(), |it| it.min(wait.due_ms()));
                    census.next_due_ms = Some(due);
                }
                Phase::Working { .. } => census.working += 1,
                Phase::InputRequired { .. } => census.input_required += 1,
                Phase::Ended { .. } => census.ended += 1,
            }
            census.owed += u64::from(row.job.debt.is_some() && tables.is_current(&row.job));
        }
        Self::ready(census)
    }
}

impl Tables {
    /// Tells whether the session that a job works for is the one that spawned it.
    fn is_current(&self, job: &Job) -> bool {
        match JobId::of_session(&job.spec.parent) {
            Some(parent) => self.jobs.contains_key(&parent),
            None => self
                .sessions
                .get(&job.spec.parent)
                .is_some_and(|session| session.incarnation == job.spec.incarnation),
        }
    }

    fn load_of(&self, of: Of<'_>) -> Load {
        let is_meant = |session: &SessionId| match of {
            Of::Session(own) => session == own,
            Of::Family(family) => family_of(session) == family,
            Of::Host => true,
        };
        let live = self.live.iter().filter(|(session, _)| is_meant(session));
        let queued = self.queued.iter().filter(|(session, _)| is_meant(session));
        Load {
            live: live.map(|(_, live)| live).sum(),
            queued: queued.map(|(_, queued)| queued.len()).sum(),
        }
    }

    fn page(&self, query: &Query) -> Page {
        let before = query.before.unwrap_or(u64::MAX);
        let sequences: Box<dyn Iterator<Item = u64>> = match &query.session {
            None => Box::new(self.spawned.range(..before).rev().map(|(sequence, _)| *sequence)),
            Some(session) => match self.of_session.get(session) {
                None => Box::new(std::iter::empty()),
                Some(all) => Box::new(all.range(..before).rev().copied()),
            },
        };
        let mut page = Page::default();
        let mut last = None;
        for sequence in sequences {
            let row = self.spawned.get(&sequence).and_then(|id| self.jobs.get(id));
            let Some(Row { job, .. }) = row else { continue };
            let is_asked = query.status.is_empty() || query.status.contains(&job.status());
            if !is_asked || (query.session.is_some() && !self.is_current(job)) {
                continue;
            }
            if page.jobs.len() == query.limit {
                page.next = last;
                break;
            }
            last = Some(sequence);
            page.jobs.push(brief(job));
        }
        page
    }

    /// Counts a job in what is kept of all, or no more.
    fn index(&mut self, sequence: u64, job: &Job, is_there: bool) {
        let session = &job.spec.parent;
        let key = |at_ms| (at_ms, sequence, job.id);
        match &job.phase {
            Phase::Queued { wait, place, .. } => {
                let queued = self.queued.entry(session.clone()).or_default();
                let place = match wait {
                    // Never the head of a queue.
                    Wait::Cron { .. } => u64::MAX,
                    _ => *place,
                };
                match is_there {
                    true => queued.insert((place, job.id)),
                    false => queued.remove(&(place, job.id)),
                };
                if queued.is_empty() {
                    self.queued.remove(session);
                }
            }
            Phase::Working { .. } | Phase::InputRequired { .. } => {
                let live = self.live.entry(session.clone()).or_default();
                *live = shift(*live, is_there);
                if *live == 0 {
                    self.live.remove(session);
                }
            }
            Phase::Ended { ended, .. } => {
                match is_there {
                    true => self.ended.insert(key(ended.at_ms)),
                    false => self.ended.remove(&key(ended.at_ms)),
                };
                if job.debt.is_some() {
                    match is_there {
                        true => self.owed.insert(key(ended.at_ms)),
                        false => self.owed.remove(&key(ended.at_ms)),
                    };
                }
                if let Some(due_ms) = job.due_call().and_then(|call| call.due_ms) {
                    match is_there {
                        true => self.calls.insert(key(due_ms)),
                        false => self.calls.remove(&key(due_ms)),
                    };
                }
            }
        }
    }
}

impl Rows for Tables {
    fn job(&mut self, id: JobId) -> Result<Option<Job>, StoreError> {
        Ok(self.jobs.get(&id).map(|row| row.job.clone()))
    }

    fn insert_job(&mut self, job: &Job) -> Result<(), StoreError> {
        self.last_sequence += 1;
        let sequence = self.last_sequence;
        self.spawned.insert(sequence, job.id);
        self.of_session.entry(job.spec.parent.clone()).or_default().insert(sequence);
        if let Some(key) = key_of(job) {
            self.keys.insert(key, job.id);
        }
        self.index(sequence, job, true);
        self.jobs.insert(job.id, Row { sequence, job: job.clone(), past: Vec::new() });
        Ok(())
    }

    fn update_job(&mut self, job: &Job) -> Result<(), StoreError> {
        let Some(row) = self.jobs.get_mut(&job.id) else { return Ok(()) };
        let (sequence, old) = (row.sequence, std::mem::replace(&mut row.job, job.clone()));
        self.index(sequence, &old, false);
        self.index(sequence, job, true);
        Ok(())
    }

    fn remove_job(&mut self, id: JobId) -> Result<(), StoreError> {
        let Some(Row { sequence, job, .. }) = self.jobs.remove(&id) else { return Ok(()) };
        self.index(sequence, &job, false);
        self.spawned.remove(&sequence);
        if let Some(all) = self.of_session.get_mut(&job.spec.parent) {
            all.remove(&sequence);
            if all.is_empty() {
                self.of_session.remove(&job.spec.parent);
            }
        }
        if let Some(key) = key_of(&job) {
            self.keys.remove(&key);
        }
        Ok(())
    }

    fn append_run(&mut self, id: JobId, run: &Run) -> Result<(), StoreError> {
        if let Some(row) = self.jobs.get_mut(&id) {
            row.past.push(run.clone());
        }
        Ok(())
    }

    fn keyed(
        &mut self,
        session: &SessionId,
        incarnation: u64,
        key: &str,
    ) -> Result<Option<Job>, StoreError> {
        let id = self.keys.get(&(session.clone(), incarnation, key.to_owned()));
        Ok(id.and_then(|id| self.jobs.get(id)).map(|row| row.job.clone()))
    }

    fn load(&mut self, of: Of<'_>) -> Result<Load, StoreError> {
        Ok(self.load_of(of))
    }

    fn next_place(&mut self) -> Result<u64, StoreError> {
        self.last_place += 1;
        Ok(self.last_place)
    }

    fn heads(&mut self, now_ms: u64) -> Result<Vec<Head>, StoreError> {
        let head = |(session, queued): (&SessionId, &BTreeSet<(u64, JobId)>)| {
            let due = queued.iter().find(|(_, id)| {
                let phase = self.jobs.get(id).map(|row| &row.job.phase);
                matches!(phase, Some(Phase::Queued { wait, .. })
                    if wait.due_ms() <= now_ms && !matches!(wait, Wait::Cron { .. }))
            });
            let (place, job) = *due?;
            let live = self.load_of(Of::Session(session)).live;
            let family_live = self.load_of(Of::Family(family_of(session))).live;
            Some(Head { job, session: session.clone(), place, live, family_live })
        };
        Ok(self.queued.iter().filter_map(head).collect())
    }

    fn jobs_of(&mut self, session: &SessionId) -> Result<Vec<JobId>, StoreError> {
        let all = self.of_session.get(session).into_iter().flatten();
        Ok(all.filter_map(|sequence| self.spawned.get(sequence)).copied().collect())
    }

    fn prunable(
        &mut self,
        before_ms: u64,
        keep: u64,
        limit: usize,
    ) -> Result<Vec<JobId>, StoreError> {
        let keep = usize::try_from(keep).unwrap_or(usize::MAX);
        let surplus = self.ended.len().saturating_sub(keep);
        let ended = self.ended.iter().enumerate();
        let due = ended.take_while(|(place, (at_ms, ..))| *place < surplus || *at_ms < before_ms);
        let due = due.map(|(_, (_, _, id))| *id);
        let owes = |id: &JobId| {
            let job = self.jobs.get(id).map(|row| &row.job);
            job.is_some_and(|job| job.debt.is_some() || job.due_call().is_some())
        };
        Ok(due.filter(|id| !owes(id)).take(limit).collect())
    }

    fn session(&mut self, id: &SessionId) -> Result<Option<Session>, StoreError> {
        Ok(self.sessions.get(id).cloned())
    }

    fn sessions_below(&mut self, family: &str, most: usize) -> Result<usize, StoreError> {
        let below = |id: &&SessionId| family_of(id) == family && id.as_str() != family;
        Ok(self.sessions.keys().filter(below).take(most).count())
    }

    fn insert_session(&mut self, session: &Session) -> Result<(), StoreError> {
        self.sessions.insert(session.id.clone(), session.clone());
        Ok(())
    }

    fn remove_session(&mut self, id: &SessionId) -> Result<(), StoreError> {
        self.sessions.remove(id);
        self.entries.remove(id);
        Ok(())
    }

    fn append_entry(&mut self, session: &SessionId, entry: &Entry) -> Result<u64, StoreError> {
        let entries = self.entries.entry(session.clone()).or_default();
        if let Some(number) = entries.numbers.get(&entry.id) {
            return Ok(*number);
        }
        entries.all.push(entry.clone());
        let number = entries.all.len() as u64;
        entries.numbers.insert(entry.id.clone(), number);
        Ok(number)
    }
}

fn key_of(job: &Job) -> Option<(SessionId, u64, String)> {
    let key = job.spec.key.clone()?;
    Some((job.spec.parent.clone(), job.spec.incarnation, key))
}

/// Returns one more or one less.
fn shift(count: usize, is_more: bool) -> usize {
    if is_more { count + 1 } else { count.saturating_sub(1) }
}

/// Returns a job as listings have it.
fn brief(job: &Job) -> Job {
    let mut job = job.clone();
    let spec = Spec { input: String::new(), ..(*job.spec).clone() };
    job.spec = Arc::new(spec);
    job.stage.input = None;
    if let Phase::Ended { ended, .. } = &mut job.phase {
        ended.result = None;
    }
    job
}
