//! What becomes of jobs, as it happens, for whoever listens.

use std::sync::Arc;

use backlot_jobs::{Job, JobId};
use tokio::sync::broadcast::{self, error::RecvError};

/// How many events wait for a slow listener. It is some seconds of a busy host.
const QUEUE: usize = 4096;

/// Tells whoever listens what becomes of jobs. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Feed(broadcast::Sender<Event>);

/// Something has happened to jobs.
#[derive(Clone, Debug)]
pub enum Event {
    /// A job has changed, and is so now.
    Changed(Arc<Job>),
    /// Jobs are gone.
    Removed(Arc<[JobId]>),
    /// So many events were missed by this listener, which was too slow.
    Missed(u64),
}

impl Default for Feed {
    fn default() -> Self {
        Self(broadcast::Sender::new(QUEUE))
    }
}

impl Feed {
    /// Tells that a job has changed.
    pub fn changed(&self, job: &Job) {
        // The copy is spared where nobody listens.
        if self.0.receiver_count() > 0 {
            let _ = self.0.send(Event::Changed(Arc::new(job.clone())));
        }
    }

    /// Tells that jobs are gone.
    pub fn removed(&self, jobs: &[JobId]) {
        if self.0.receiver_count() > 0 {
            let _ = self.0.send(Event::Removed(jobs.into()));
        }
    }

    /// Returns what is told from now on.
    pub fn listen(&self) -> Listener {
        Listener(self.0.subscribe())
    }
}

/// Receives what becomes of jobs.
#[derive(Debug)]
pub struct Listener(broadcast::Receiver<Event>);

impl Listener {
    /// Waits for the next event; `None` once there is no host any more.
    pub async fn next(&mut self) -> Option<Event> {
        match self.0.recv().await {
            Ok(event) => Some(event),
            Err(RecvError::Lagged(missed)) => Some(Event::Missed(missed)),
            Err(RecvError::Closed) => None,
        }
    }
}
