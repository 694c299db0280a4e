//! Sessions and what belongs to them: opening, writing, deleting, and what is pruned.

use std::time::Duration;

use backlot_registry::{Caller, SessionId};
use futures::future::try_join_all;
use tokio::time::{Instant, timeout_at};

use crate::{
    id::{self, JobId, NoRandom},
    manager::{Inner, Manager, PAGE},
    session::{Entry, Session},
    stop::StopError,
    store::{Change, ChangeError, Changed, Refused, StoreError},
    world::How,
};

/// Why something about a session was not done.
#[derive(Debug, thiserror::Error)]
pub enum TreeError {
    /// Only jobs have sessions of such names.
    #[error("{0:?} is the name of a job's own session: choose another")]
    Reserved(String),
    /// There is no such job or session, or it cannot be.
    #[error(transparent)]
    Refused(Refused),
    /// A job of it could not be stopped.
    #[error(transparent)]
    Stop(#[from] StopError),
    /// The store could not read or write.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The machine gives no random numbers.
    #[error(transparent)]
    Random(#[from] NoRandom),
}

impl From<ChangeError> for TreeError {
    fn from(error: ChangeError) -> Self {
        match error {
            ChangeError::Refused(refused) => Self::Refused(refused),
            ChangeError::Store(error) => Self::Store(error),
        }
    }
}

impl Manager {
    /// Opens a session, unless it is open. Jobs can be spawned for it then.
    ///
    /// # Errors
    ///
    /// When its name is that of a job's own session, or it cannot be written.
    pub async fn open_session(&self, id: SessionId) -> Result<Session, TreeError> {
        if JobId::of_session(&id).is_some() {
            return Err(TreeError::Reserved(id.as_str().to_owned()));
        }
        // Most are open already, and looking costs less than writing.
        if let Some(open) = self.inner.store.session(id.clone()).await? {
            return Ok(open);
        }
        // Every store can hold 63 bits.
        let incarnation = (id::random()? as u64) >> 1;
        let session = Session { id, incarnation, created_ms: self.inner.now_ms() };
        let limit = self.inner.config.limits.sessions_per_family;
        match self.inner.store.change(Change::Open { session: session.clone(), limit }).await? {
            Changed::Session(open) => Ok(open),
            _ => Ok(session),
        }
    }

    /// Writes an entry into a session, unless one of that id is there, and returns its
    /// number.
    ///
    /// # Errors
    ///
    /// When there is no such session, or it cannot be written.
    pub async fn append(&self, session: &SessionId, entry: Entry) -> Result<u64, TreeError> {
        let append = Change::Append { session: session.clone(), entry };
        match self.inner.store.change(append).await? {
            Changed::Entry(number) => Ok(number),
            _ => Ok(0),
        }
    }

    /// Returns the entries of a session in order, with their numbers, from after the one
    /// with that number.
    ///
    /// # Errors
    ///
    /// When the store cannot be read.
    pub async fn entries(
        &self,
        session: &SessionId,
        after: u64,
        limit: usize,
    ) -> Result<Vec<(u64, Entry)>, StoreError> {
        self.inner.store.entries(session.clone(), after, limit).await
    }

    /// Deletes a session with all that belongs to it, at any depth. Its jobs are stopped
    /// first, and their runs have ended, or the bound has passed. Dropping the future
    /// does not keep it from being deleted.
    ///
    /// # Errors
    ///
    /// When a job refuses to stop, or the store cannot be written: then the session is
    /// still there.
    pub async fn delete_session(
        &self,
        session: &SessionId,
        by: &str,
        bound: Duration,
    ) -> Result<Vec<JobId>, TreeError> {
        let (inner, session, by) = (self.inner.clone(), session.clone(), by.to_owned());
        self.inner.apart(async move { inner.delete_session(&session, &by, bound).await }).await
    }

    /// Deletes a job that has ended.
    ///
    /// # Errors
    ///
    /// When it has not ended, or the caller may not see it.
    pub async fn remove(&self, id: JobId, caller: &Caller) -> Result<Vec<JobId>, TreeError> {
        if self.inner.find(id, caller).await?.is_none() {
            return Err(TreeError::Refused(Refused::NoJob(id)));
        }
        self.inner.removed(Change::Remove { job: id }).await
    }

    /// Deletes jobs that have ended: those that ended longer ago than `age`, and the
    /// oldest of those that are more than `keep`. What is owed to somebody stays. Dropping
    /// the future does not end it halfway.
    ///
    /// # Errors
    ///
    /// When the store cannot be written; those before are gone.
    pub async fn prune(&self, keep: u64, age: Duration) -> Result<Vec<JobId>, TreeError> {
        let age_ms = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
        let inner = self.inner.clone();
        self.inner.apart(async move { inner.prune(keep, age_ms).await }).await
    }
}

impl Inner {
    async fn delete_session(
        &self,
        session: &SessionId,
        by: &str,
        bound: Duration,
    ) -> Result<Vec<JobId>, TreeError> {
        let why = Some("its session is deleted".to_owned());
        self.stop_tree(session, How::Ask, by, why.clone()).await?;
        let deadline = Instant::now() + bound;
        let live = self.live_below(session.clone()).await?;
        let ends = live.iter().map(|id| self.ends(*id, by, why.clone(), deadline));
        try_join_all(ends).await?;
        self.removed(Change::Delete { session: session.clone() }).await
    }

    /// Waits for a job that was stopped to end, and forces it once it is late.
    async fn ends(
        &self,
        id: JobId,
        by: &str,
        why: Option<String>,
        deadline: Instant,
    ) -> Result<(), TreeError> {
        if self.ends_by(id, deadline).await? {
            return Ok(());
        }
        match self.stop(id, How::Force, by, why).await {
            // It is gone already.
            Err(StopError::Unknown(_)) => return Ok(()),
            stopped => _ = stopped?,
        }
        // What is dropped ends within moments.
        let deadline = Instant::now() + self.config.outcome_wait;
        self.ends_by(id, deadline).await?;
        Ok(())
    }

    async fn prune(&self, keep: u64, age_ms: u64) -> Result<Vec<JobId>, TreeError> {
        let before_ms = self.now_ms().saturating_sub(age_ms);
        let mut gone = Vec::new();
        loop {
            // In parts, so that what others write need not wait for all of it.
            let prune = Change::Prune { before_ms, keep, limit: PAGE };
            let removed = self.removed(prune).await?;
            let is_all = removed.len() < PAGE;
            gone.extend(removed);
            if is_all {
                return Ok(gone);
            }
        }
    }

    async fn removed(&self, change: Change) -> Result<Vec<JobId>, TreeError> {
        let changed = self.store.change(change).await?;
        let gone = match &changed {
            Changed::Removed(gone) => gone.iter().map(|gone| gone.job).collect(),
            _ => Vec::new(),
        };
        self.tell(changed);
        Ok(gone)
    }

    /// Waits until a job has ended or is gone, and returns whether it was in time.
    pub(crate) async fn ends_by(&self, id: JobId, deadline: Instant) -> Result<bool, StoreError> {
        let watch = self.watch(id);
        loop {
            let changed = watch.notified();
            if self.store.job(id).await?.is_none_or(|job| job.status().is_terminal()) {
                return Ok(true);
            }
            if timeout_at(deadline, changed).await.is_err() {
                return Ok(false);
            }
        }
    }
}
