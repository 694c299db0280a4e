//! Where jobs are kept.
//!
//! What a change does is decided here, once for every store, over [`Rows`]; a store
//! gives the rows within a transaction, makes them durable, and answers. So a store
//! knows no rule, and no rule can be raced.

use std::{path::PathBuf, sync::Arc};

use backlot_registry::{BoxFuture, Cause, SessionId};

use crate::{
    id::{JobId, Prefix, RunId},
    job::{self, Event, Job, Lost, Next, Phase, Run, Spec, Stage, Status, Wait},
    session::{Entry, Session},
};

pub mod contract;
mod faulty;
mod memory;
mod sqlite;

pub use self::{
    faulty::FaultyStore,
    memory::MemoryStore,
    sqlite::{SqliteOptions, SqliteStats, SqliteStore, restore},
};

/// Keeps jobs, sessions and entries.
///
/// Two stores may be open on the same data; each change is made as a whole, one after
/// the other, whichever of them makes it.
pub trait Store: Send + Sync + 'static {
    /// Makes a change by [`Change::apply`], in one transaction.
    ///
    /// Once it resolves with `Ok`, the change outlives a crash of the machine, and
    /// every read that begins then sees it. Once it resolves with an error, nothing
    /// has changed. Dropping the future does not take the change back.
    ///
    /// A change that need not last ([`Change::need_last`]) outlives a crash of the process,
    /// and one of the machine only with a later change that does.
    fn change(&self, change: Change) -> BoxFuture<'_, Result<Changed, ChangeError>>;

    /// Returns a job.
    fn job(&self, id: JobId) -> BoxFuture<'_, Result<Option<Job>, StoreError>>;

    /// Returns a job if it works for that session as it is now.
    fn job_of(
        &self,
        id: JobId,
        session: SessionId,
    ) -> BoxFuture<'_, Result<Option<Job>, StoreError>>;

    /// Returns the ids that begin so, at most two of them.
    fn find(&self, prefix: Prefix) -> BoxFuture<'_, Result<Vec<JobId>, StoreError>>;

    /// Returns jobs, the newest first, without their inputs and results.
    fn list(&self, query: Query) -> BoxFuture<'_, Result<Page, StoreError>>;

    /// Returns the runs of a job that others have followed, in order.
    fn past_runs(&self, id: JobId) -> BoxFuture<'_, Result<Vec<Run>, StoreError>>;

    /// Returns the jobs whose ending is owed, to that session or to all, the oldest
    /// ending first, at most `limit`: those after the one that ended at a time, in
    /// milliseconds since the Unix epoch, where there is one to begin after. Those of
    /// sessions that were deleted owe nothing.
    fn owed(
        &self,
        session: Option<SessionId>,
        after: Option<(u64, JobId)>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<Job>, StoreError>>;

    /// Returns the jobs whose webhook is still to be told of their ending, without their
    /// inputs and results, at most `limit`: those that are due first come first. Those
    /// whose webhook is of a receiver that is excepted are left out, as
    /// [`Webhook::receiver`](crate::Webhook::receiver) has it, and those that were given
    /// up.
    fn calls(
        &self,
        except: Vec<String>,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<Job>, StoreError>>;

    /// Returns a session.
    fn session(&self, id: SessionId) -> BoxFuture<'_, Result<Option<Session>, StoreError>>;

    /// Returns the entries of a session in the order in which they were stored, with
    /// their numbers, from after the one with that number; 0 begins with the first.
    fn entries(
        &self,
        session: SessionId,
        after: u64,
        limit: usize,
    ) -> BoxFuture<'_, Result<Vec<(u64, Entry)>, StoreError>>;

    /// Returns how many jobs there are of each status.
    fn census(&self) -> BoxFuture<'_, Result<Census, StoreError>>;
}

/// Which jobs are listed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query {
    /// Those that work for that session as it is now; all when `None`.
    pub session: Option<SessionId>,
    /// Those that stand so; all when empty.
    pub status: Vec<Status>,
    /// Those before that place in the listing, as [`Page::next`] says it.
    pub before: Option<u64>,
    /// At most so many.
    pub limit: usize,
}

/// A part of a listing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Page {
    /// The jobs, the newest first, without their inputs and results.
    pub jobs: Vec<Job>,
    /// Where the next page begins; `None` on the last.
    pub next: Option<u64>,
}

/// How many jobs there are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// Waiting for a place or their time.
    pub queued: u64,
    /// The earliest time that a queued job waits for, in milliseconds since the Unix
    /// epoch; 0 where one waits for a place alone.
    pub next_due_ms: Option<u64>,
    /// With a run under way.
    pub working: u64,
    /// Waiting for a person.
    pub input_required: u64,
    /// Ended.
    pub ended: u64,
    /// Ended, and the ending is owed to somebody.
    pub owed: u64,
}

/// What is to change.
#[derive(Clone, Debug)]
pub enum Change {
    /// Opens a session, unless it is open.
    Open {
        /// The session.
        session: Session,
        /// How many there may be below the one that it is below.
        limit: usize,
    },
    /// Spawns a job.
    Spawn(Box<Spawned>),
    /// Takes a job back whose first run could not be launched. Its row, with all that
    /// goes with it, was never there.
    TakeBack {
        /// The job.
        job: JobId,
        /// Its first run.
        run: RunId,
    },
    /// Has something happen to a job.
    Happen {
        /// The job.
        job: JobId,
        /// What happens.
        event: Event,
        /// How many jobs may be live.
        limits: Limits,
        /// The time of day, in milliseconds since the Unix epoch.
        now_ms: u64,
    },
    /// Starts the queued job whose turn it is, if there is a place.
    StartNext {
        /// The run that it gets.
        run: RunId,
        /// How many jobs may be live.
        limits: Limits,
        /// The sessions that had their turns last, the latest first, one of a family.
        after: Vec<SessionId>,
        /// The time of day, in milliseconds since the Unix epoch.
        now_ms: u64,
    },
    /// Spawns what a cron schedule says is due, and has the job that says so wait for
    /// the next time.
    Fire {
        /// The job with the schedule.
        job: JobId,
        /// The next time.
        next_due_ms: u64,
        /// The job that it spawns.
        spawned: Box<Spawned>,
    },
    /// Writes an entry into a session, unless one of that id is there.
    Append {
        /// The session.
        session: SessionId,
        /// The entry.
        entry: Entry,
    },
    /// Deletes a session with its entries, its jobs, and what is below those.
    Delete {
        /// The session.
        session: SessionId,
    },
    /// Deletes a job that has ended, with what is below it.
    Remove {
        /// The job.
        job: JobId,
    },
    /// Deletes jobs that have ended, the oldest first: those that ended before a time,
    /// and those that are more than are kept. What is owed to somebody stays, and what a
    /// webhook is still to be told of.
    Prune {
        /// When they ended, in milliseconds since the Unix epoch.
        before_ms: u64,
        /// How many are kept.
        keep: u64,
        /// At most so many.
        limit: usize,
    },
}

/// A job that is spawned.
#[derive(Clone, Debug)]
pub struct Spawned {
    /// Its id.
    pub id: JobId,
    /// Its first run, if it starts at once.
    pub run: RunId,
    /// What it is spawned with. Its incarnation is filled in.
    pub spec: Spec,
    /// Where the work stands at its beginning.
    pub state: Option<String>,
    /// When it is due, in milliseconds since the Unix epoch; 0 at once.
    pub due_ms: u64,
    /// Whether it waits where there is no place for it.
    pub queue: bool,
    /// How many jobs may be live, and how deep.
    pub limits: Limits,
    /// The time of day, in milliseconds since the Unix epoch.
    pub now_ms: u64,
}

/// How many jobs may be live at a time, and how deep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Those that work for one session.
    pub per_session: usize,
    /// Those that work for a session and for those below it, as [`family_of`] has it: what
    /// whoever has that session can take of all.
    pub per_family: usize,
    /// All.
    pub total: usize,
    /// How many jobs may be above one another.
    pub depth: u32,
    /// How many may wait for a place or their time, in all.
    pub queued: usize,
    /// How many of those may be of a session and those below it.
    pub queued_per_family: usize,
    /// How many sessions may be below one.
    pub sessions_per_family: usize,
}

impl Limits {
    /// No limit at all.
    pub const NONE: Self = Self {
        per_session: usize::MAX,
        per_family: usize::MAX,
        total: usize::MAX,
        depth: u32::MAX,
        queued: usize::MAX,
        queued_per_family: usize::MAX,
        sessions_per_family: usize::MAX,
    };
}

/// Returns the session that one is below, by its name: what comes before the first `/`, or
/// the session itself.
pub fn family_of(session: &SessionId) -> &str {
    let name = session.as_str();
    name.split_once('/').map_or(name, |(family, _)| family)
}

/// What has changed.
#[derive(Clone, Debug, PartialEq)]
pub enum Changed {
    /// A job: how it is now, and how it was.
    Job {
        /// As it is now.
        job: Box<Job>,
        /// Where it stood before; `None` for one that is new.
        before: Option<Status>,
    },
    /// Nothing: the key of the spawn has a job already.
    Already(Box<Job>),
    /// Nothing: there was nothing to change.
    Nothing,
    /// A session is open.
    Session(Session),
    /// An entry was written, with that number.
    Entry(u64),
    /// Jobs are gone.
    Removed(Vec<Gone>),
}

/// A job that is gone.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Gone {
    /// Its id.
    pub job: JobId,
    /// The session that it worked for.
    pub parent: SessionId,
}

/// Why nothing has changed.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// It cannot be.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// The store could not write it.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Why a change cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// There is no such job.
    #[error("no job {0}")]
    NoJob(JobId),
    /// There is no such session.
    #[error("no session {0:?}: it was deleted, or never opened")]
    NoSession(String),
    /// The job is not where the event can happen to it.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// Too many jobs are live.
    #[error(
        "{scope} has {limit} live jobs, which is the cap: wait until one ends, stop one, or let \
         this one queue"
    )]
    Full {
        /// Who has them.
        scope: Scope,
        /// The cap.
        limit: usize,
    },
    /// Too many jobs wait.
    #[error("{scope} has {limit} jobs that wait, which is the cap: wait until some have started")]
    QueueFull {
        /// Who has them.
        scope: Scope,
        /// The cap.
        limit: usize,
    },
    /// There are too many sessions below one.
    #[error("{limit} sessions are below {family:?}, which is the cap: delete some, or use one")]
    ManySessions {
        /// The session that they are below.
        family: String,
        /// The cap.
        limit: usize,
    },
    /// The job would be too far below others.
    #[error("a job of this session would be {depth} jobs deep, and {max} is the most")]
    TooDeep {
        /// How deep it would be.
        depth: u32,
        /// The most.
        max: u32,
    },
    /// The key has a job that was spawned with something else.
    #[error("the key {key:?} has job {job} already, which was spawned with another kind or input")]
    KeyTaken {
        /// The key.
        key: String,
        /// Its job.
        job: JobId,
    },
    /// Only jobs that have ended can be removed.
    #[error("job {job} is {status}: stop it first")]
    Live {
        /// The job.
        job: JobId,
        /// Where it stands.
        status: Status,
    },
}

/// Whose jobs are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Those of a session.
    Session,
    /// Those of a session and of those below it.
    Family,
    /// Those of the host.
    Host,
}

impl std::fmt::Display for Scope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Session => "the session",
            Self::Family => "the session with those below it",
            Self::Host => "the host",
        })
    }
}

/// Why a store cannot be used, or not now.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// No room is left for it.
    #[error("no space is left for {}: free some; nothing that was written is lost", .path.display())]
    Full {
        /// The file.
        path: PathBuf,
    },
    /// It may only be read.
    #[error("{} cannot be written: {why}", .path.display())]
    ReadOnly {
        /// The file.
        path: PathBuf,
        /// What the system says.
        why: String,
    },
    /// It was damaged, or is not what it should be.
    #[error("{} is damaged or no store of jobs: {why}; it was left as it is: restore a backup, or move it away and start anew", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// A newer version wrote it.
    #[error("{} was written by a newer version (format {found}, this one knows {known}): use that version, or another data folder", .path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u32,
        /// The newest that is known.
        known: u32,
    },
    /// It could not be read or written.
    #[error("{}: {why}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system says.
        why: String,
    },
    /// It was closed, or what writes it is gone.
    #[error("the store is closed")]
    Closed,
}

/// The rows that a change reads and writes, within one transaction.
///
/// What was put is seen at once. When anything errs, all of it is undone.
pub trait Rows {
    /// Returns a job.
    fn job(&mut self, id: JobId) -> Result<Option<Job>, StoreError>;

    /// Writes a new job, after all that are there.
    fn insert_job(&mut self, job: &Job) -> Result<(), StoreError>;

    /// Replaces what changes of a job.
    fn update_job(&mut self, job: &Job) -> Result<(), StoreError>;

    /// Deletes a job with its past runs.
    fn remove_job(&mut self, id: JobId) -> Result<(), StoreError>;

    /// Writes a past run of a job.
    fn append_run(&mut self, id: JobId, run: &Run) -> Result<(), StoreError>;

    /// Returns the job of that session, in that incarnation, that has the key.
    fn keyed(
        &mut self,
        session: &SessionId,
        incarnation: u64,
        key: &str,
    ) -> Result<Option<Job>, StoreError>;

    /// Returns how many of those jobs are live, and how many are queued.
    fn load(&mut self, of: Of<'_>) -> Result<Load, StoreError>;

    /// Returns a place after those of all jobs that have been queued.
    fn next_place(&mut self) -> Result<u64, StoreError>;

    /// Returns, of each session that has any, the queued job with the lowest place of
    /// those that are due and are no cron schedules; with how many of the session and of
    /// its family are live. In no order.
    fn heads(&mut self, now_ms: u64) -> Result<Vec<Head>, StoreError>;

    /// Returns the jobs that work for a session, whatever its incarnation.
    fn jobs_of(&mut self, session: &SessionId) -> Result<Vec<JobId>, StoreError>;

    /// Returns jobs that have ended and owe nothing, nor have a webhook to be told: those
    /// that ended before the time, and the oldest of those that are more than `keep`; at
    /// most `limit`.
    fn prunable(
        &mut self,
        before_ms: u64,
        keep: u64,
        limit: usize,
    ) -> Result<Vec<JobId>, StoreError>;

    /// Returns a session.
    fn session(&mut self, id: &SessionId) -> Result<Option<Session>, StoreError>;

    /// Returns how many sessions there are below one, but no more than `most`.
    fn sessions_below(&mut self, family: &str, most: usize) -> Result<usize, StoreError>;

    /// Writes a session that is not there.
    fn insert_session(&mut self, session: &Session) -> Result<(), StoreError>;

    /// Deletes a session, if it is there, and its entries.
    fn remove_session(&mut self, id: &SessionId) -> Result<(), StoreError>;

    /// Writes an entry unless one of that id is there, and returns the number of the
    /// one that is.
    fn append_entry(&mut self, session: &SessionId, entry: &Entry) -> Result<u64, StoreError>;
}

/// Whose jobs are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of<'a> {
    /// Those that work for a session.
    Session(&'a SessionId),
    /// Those that work for a session of that name, or for one below it.
    Family(&'a str),
    /// All.
    Host,
}

/// How many jobs there are of those that have not ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Those that are live.
    pub live: usize,
    /// Those that wait.
    pub queued: usize,
}

/// The first of a session's queued jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The job.
    pub job: JobId,
    /// Its session.
    pub session: SessionId,
    /// Its place.
    pub place: u64,
    /// How many jobs of its session are live.
    pub live: usize,
    /// How many jobs of its family are.
    pub family_live: usize,
}

impl Change {
    /// Tells whether the change has to outlive a crash of the machine from when it is made.
    /// What was launched need not: no run outlives such a crash, and which task it was is of
    /// use to those who look at it while it runs.
    pub fn need_last(&self) -> bool {
        !matches!(self, Self::Happen { event: Event::Launched { .. }, .. })
    }

    /// Makes the change.
    ///
    /// # Errors
    ///
    /// [`Refused`] before anything was written, or what the rows said, after which the
    /// transaction must be undone.
    pub fn apply(&self, rows: &mut dyn Rows) -> Result<Changed, ChangeError> {
        match self {
            Self::Open { session, limit } => open(rows, session, *limit),
            Self::Spawn(spawned) => spawn(rows, spawned),
            Self::TakeBack { job, run } => take_back(rows, *job, *run),
            Self::Happen { job, event, limits, now_ms } => {
                let job = find(rows, *job)?;
                happen(rows, &job, event, limits, *now_ms)
            }
            Self::StartNext { run, limits, after, now_ms } => {
                start_next(rows, *run, limits, after, *now_ms)
            }
            Self::Fire { job, next_due_ms, spawned } => fire(rows, *job, *next_due_ms, spawned),
            Self::Append { session, entry } => {
                must_be_open(rows, session)?;
                Ok(Changed::Entry(rows.append_entry(session, entry)?))
            }
            Self::Delete { session } => {
                let mut gone = Vec::new();
                delete_session(rows, session, &mut gone)?;
                Ok(Changed::Removed(gone))
            }
            Self::Remove { job } => remove(rows, *job),
            Self::Prune { before_ms, keep, limit } => {
                let mut gone = Vec::new();
                for id in rows.prunable(*before_ms, *keep, *limit)? {
                    if live_below(rows, &id.session())?.is_some() {
                        continue;
                    }
                    if let Some(job) = rows.job(id)? {
                        delete_job(rows, id, &job.spec.parent, &mut gone)?;
                    }
                }
                Ok(Changed::Removed(gone))
            }
        }
    }
}

fn open(rows: &mut dyn Rows, session: &Session, limit: usize) -> Result<Changed, ChangeError> {
    if let Some(open) = rows.session(&session.id)? {
        return Ok(Changed::Session(open));
    }
    let family = family_of(&session.id);
    if family != session.id.as_str() && rows.sessions_below(family, limit)? >= limit {
        return Err(Refused::ManySessions { family: family.to_owned(), limit }.into());
    }
    rows.insert_session(session)?;
    Ok(Changed::Session(session.clone()))
}

/// Returns how deep jobs of a session are, and its incarnation.
fn must_be_open(rows: &mut dyn Rows, session: &SessionId) -> Result<(u32, u64), ChangeError> {
    let missing = || Refused::NoSession(session.as_str().to_owned());
    match JobId::of_session(session) {
        // A job is there once, and its session with it.
        Some(job) => Ok((rows.job(job)?.ok_or_else(missing)?.depth + 1, 0)),
        None => Ok((1, rows.session(session)?.ok_or_else(missing)?.incarnation)),
    }
}

fn spawn(rows: &mut dyn Rows, spawned: &Spawned) -> Result<Changed, ChangeError> {
    let (depth, incarnation) = must_be_open(rows, &spawned.spec.parent)?;
    let Spawned { limits, now_ms, .. } = *spawned;
    let spec = Spec { incarnation, ..spawned.spec.clone() };
    if let Some(key) = &spec.key
        && let Some(job) = rows.keyed(&spec.parent, incarnation, key)?
    {
        if job.spec.kind == spec.kind && job.spec.input == spec.input {
            return Ok(Changed::Already(Box::new(job)));
        }
        return Err(Refused::KeyTaken { key: key.clone(), job: job.id }.into());
    }
    if depth > limits.depth {
        return Err(Refused::TooDeep { depth, max: limits.depth }.into());
    }
    let is_cron = matches!(spec.schedule, Some(crate::schedule::Schedule::Cron(_)));
    let wait = match spawned.due_ms {
        due_ms if is_cron => Some(Wait::Cron { due_ms }),
        due_ms if due_ms > now_ms => Some(Wait::Time { due_ms }),
        _ => match room(rows, &spec.parent, &limits) {
            // Who could wait does not overtake those who do.
            Ok(()) if spawned.queue && is_turn_of_another(rows, &limits, now_ms)? => {
                Some(Wait::Place)
            }
            Ok(()) => None,
            Err(ChangeError::Refused(Refused::Full { .. })) if spawned.queue => Some(Wait::Place),
            Err(error) => return Err(error),
        },
    };
    let mut job = Job {
        id: spawned.id,
        spec: Arc::new(spec),
        depth,
        phase: Phase::Queued { wait: Wait::Place, place: 0, last: None },
        stage: Stage {
            kind: None,
            input: None,
            cause: Cause::Spawn,
            last_failure: None,
            answer: None,
        },
        attempt: 1,
        step: 0,
        continuations: 0,
        state: spawned.state.clone(),
        code: Vec::new(),
        stop: None,
        detail: None,
        debt: None,
        call: None,
        endings: 0,
        created_ms: now_ms,
        updated_ms: now_ms,
    };
    match wait {
        None => {
            let started = Event::Started { run: spawned.run };
            job = job::next(&job, &started, now_ms).map_err(Refused::from)?.job;
        }
        Some(wait) => {
            must_fit_the_queue(rows, &job.spec.parent, &limits)?;
            let place = rows.next_place()?;
            job.phase = Phase::Queued { wait, place, last: None };
        }
    }
    rows.insert_job(&job)?;
    tell(rows, &job, now_ms)?;
    Ok(Changed::Job { job: Box::new(job), before: None })
}

fn take_back(rows: &mut dyn Rows, id: JobId, run: RunId) -> Result<Changed, ChangeError> {
    let job = find(rows, id)?;
    if job.run() != Some(run) || job.attempt > 1 || job.step > 0 {
        return Err(Refused::Lost(Lost::Moved { status: job.status(), run: job.run() }).into());
    }
    // Under the entry that it was spawned by it is told to work.
    if let Some(entry) = Entry::of_none(&job) {
        rows.append_entry(&job.spec.parent, &entry)?;
    }
    let mut gone = Vec::new();
    delete_job(rows, id, &job.spec.parent, &mut gone)?;
    Ok(Changed::Removed(gone))
}

fn happen(
    rows: &mut dyn Rows,
    job: &Job,
    event: &Event,
    limits: &Limits,
    now_ms: u64,
) -> Result<Changed, ChangeError> {
    let before = job.status();
    let Next { job: mut new, past } = job::next(job, event, now_ms).map_err(Refused::from)?;
    // Whatever brings a job to life takes a place.
    if new.status().is_live() && !before.is_live() {
        room(rows, &job.spec.parent, limits)?;
    }
    if let Phase::Queued { place: place @ 0, .. } = &mut new.phase {
        *place = rows.next_place()?;
    }
    if new.debt.is_some() && job.debt.is_none() && !is_heard(rows, job)? {
        new.debt = None;
    }
    if let Some(past) = past {
        rows.append_run(job.id, &past)?;
    }
    rows.update_job(&new)?;
    let is_news = before != new.status() || job.run() != new.run();
    if is_news {
        tell(rows, &new, now_ms)?;
    }
    Ok(Changed::Job { job: Box::new(new), before: Some(before) })
}

/// Tells whether the session that a job works for is still the one that spawned it.
fn is_heard(rows: &mut dyn Rows, job: &Job) -> Result<bool, StoreError> {
    Ok(match JobId::of_session(&job.spec.parent) {
        Some(parent) => rows.job(parent)?.is_some(),
        None => rows
            .session(&job.spec.parent)?
            .is_some_and(|session| session.incarnation == job.spec.incarnation),
    })
}

/// Writes where the job stands under the entry that it was spawned by.
fn tell(rows: &mut dyn Rows, job: &Job, now_ms: u64) -> Result<(), StoreError> {
    if let Some(entry) = Entry::of(job, now_ms)
        && is_heard(rows, job)?
    {
        rows.append_entry(&job.spec.parent, &entry)?;
    }
    Ok(())
}

fn start_next(
    rows: &mut dyn Rows,
    run: RunId,
    limits: &Limits,
    after: &[SessionId],
    now_ms: u64,
) -> Result<Changed, ChangeError> {
    if rows.load(Of::Host)?.live >= limits.total {
        return Ok(Changed::Nothing);
    }
    match fairest(&rows.heads(now_ms)?, limits, after) {
        None => Ok(Changed::Nothing),
        Some(id) => {
            let job = find(rows, id)?;
            happen(rows, &job, &Event::Started { run }, limits, now_ms)
        }
    }
}

/// Returns the job whose turn it is: of the family with the fewest live jobs, and there of
/// the session with the fewest, so that nobody has more turns for having more sessions. Those
/// with as few have their turns one after the other, by their names, however many jobs each
/// has waiting; where nobody had a turn yet, it is the one that has waited longest.
pub(crate) fn fairest(heads: &[Head], limits: &Limits, after: &[SessionId]) -> Option<JobId> {
    // What comes behind the last one by its name is before all that are not.
    let turn = |name: &str, last: &str| (name <= last, name.to_owned());
    let has_room =
        |head: &&Head| head.live < limits.per_session && head.family_live < limits.per_family;
    let place = |head: &&Head| {
        let family = family_of(&head.session);
        let last = after.first().map(|last| turn(family, family_of(last)));
        let own = after.iter().find(|session| family_of(session) == family);
        let own = own.map(|own| turn(head.session.as_str(), own.as_str()));
        (head.family_live, last, head.live, own, head.place)
    };
    heads.iter().filter(has_room).min_by_key(place).map(|head| head.job)
}

/// Tells whether a job that waits could start now.
fn is_turn_of_another(
    rows: &mut dyn Rows,
    limits: &Limits,
    now_ms: u64,
) -> Result<bool, StoreError> {
    Ok(rows.load(Of::Host)?.queued > 0 && fairest(&rows.heads(now_ms)?, limits, &[]).is_some())
}

fn fire(
    rows: &mut dyn Rows,
    id: JobId,
    due_ms: u64,
    spawned: &Spawned,
) -> Result<Changed, ChangeError> {
    let job = find(rows, id)?;
    let limits = &spawned.limits;
    let moved = happen(rows, &job, &Event::Fired { due_ms }, limits, spawned.now_ms)?;
    match spawn(rows, spawned) {
        // Where nothing may be spawned now, the schedule goes on all the same.
        Err(ChangeError::Refused(_)) => Ok(moved),
        other => other,
    }
}

fn remove(rows: &mut dyn Rows, id: JobId) -> Result<Changed, ChangeError> {
    let job = find(rows, id)?;
    let status = job.status();
    if !status.is_terminal() {
        return Err(Refused::Live { job: id, status }.into());
    }
    if let Some((job, status)) = live_below(rows, &id.session())? {
        return Err(Refused::Live { job, status }.into());
    }
    let mut gone = Vec::new();
    delete_job(rows, id, &job.spec.parent, &mut gone)?;
    Ok(Changed::Removed(gone))
}

/// Deletes a job and the session that it ran in, with what is below that.
fn delete_job(
    rows: &mut dyn Rows,
    id: JobId,
    parent: &SessionId,
    gone: &mut Vec<Gone>,
) -> Result<(), StoreError> {
    delete_session(rows, &id.session(), gone)?;
    rows.remove_job(id)?;
    gone.push(Gone { job: id, parent: parent.clone() });
    Ok(())
}

/// Deletes a session with its entries, its jobs, and what is below those.
fn delete_session(
    rows: &mut dyn Rows,
    session: &SessionId,
    gone: &mut Vec<Gone>,
) -> Result<(), StoreError> {
    // The depth of jobs is bounded, and so is that of the calls.
    for job in rows.jobs_of(session)? {
        delete_job(rows, job, session, gone)?;
    }
    rows.remove_session(session)
}

/// Returns a job below a session that has not ended.
fn live_below(
    rows: &mut dyn Rows,
    session: &SessionId,
) -> Result<Option<(JobId, Status)>, StoreError> {
    for id in rows.jobs_of(session)? {
        if let Some(job) = rows.job(id)?
            && !job.status().is_terminal()
        {
            return Ok(Some((id, job.status())));
        }
        if let Some(found) = live_below(rows, &id.session())? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

fn find(rows: &mut dyn Rows, id: JobId) -> Result<Job, ChangeError> {
    Ok(rows.job(id)?.ok_or(Refused::NoJob(id))?)
}

/// Tells whether there is a place for one more live job.
fn room(rows: &mut dyn Rows, session: &SessionId, limits: &Limits) -> Result<(), ChangeError> {
    for (scope, of, limit) in [
        (Scope::Session, Of::Session(session), limits.per_session),
        (Scope::Family, Of::Family(family_of(session)), limits.per_family),
        (Scope::Host, Of::Host, limits.total),
    ] {
        if rows.load(of)?.live >= limit {
            return Err(Refused::Full { scope, limit }.into());
        }
    }
    Ok(())
}

/// Checks that one more job may wait.
fn must_fit_the_queue(
    rows: &mut dyn Rows,
    session: &SessionId,
    limits: &Limits,
) -> Result<(), ChangeError> {
    for (scope, of, limit) in [
        (Scope::Family, Of::Family(family_of(session)), limits.queued_per_family),
        (Scope::Host, Of::Host, limits.queued),
    ] {
        if rows.load(of)?.queued >= limit {
            return Err(Refused::QueueFull { scope, limit }.into());
        }
    }
    Ok(())
}
