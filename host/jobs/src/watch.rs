//! Whoever waits for something of a job.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use tokio::sync::Notify;

use crate::{
    id::JobId,
    job::{Job, Status},
};

/// What is held by those who wait, by job.
pub(crate) struct Watches<T>(Mutex<HashMap<JobId, Weak<T>>>);

impl<T> Default for Watches<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Default> Watches<T> {
    /// Returns what belongs to a job for as long as somebody holds it.
    pub(crate) fn of(&self, job: JobId) -> Arc<T> {
        let mut held = self.held();
        if let Some(watch) = held.get(&job).and_then(Weak::upgrade) {
            return watch;
        }
        // Whoever held the others may have gone without a change.
        if held.len() > 64 && held.len().is_power_of_two() {
            held.retain(|_, watch| watch.strong_count() > 0);
        }
        let watch = Arc::new(T::default());
        held.insert(job, Arc::downgrade(&watch));
        watch
    }

    /// Returns what belongs to a job, where somebody holds it.
    pub(crate) fn get(&self, job: JobId) -> Option<Arc<T>> {
        let mut held = self.held();
        let watch = held.get(&job)?.upgrade();
        if watch.is_none() {
            held.remove(&job);
        }
        watch
    }

    fn held(&self) -> MutexGuard<'_, HashMap<JobId, Weak<T>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What those are told who wait until a job has ended or asks. Whoever is told the end has
/// the job with that, and need not read it.
#[derive(Default)]
pub(crate) struct Awaited {
    told: Mutex<Told>,
    news: Notify,
}

#[derive(Default)]
struct Told {
    /// The job as it ended last, as far as that was told.
    ended: Option<Arc<Job>>,
    /// How often the job was to be looked at.
    looks: u64,
}

/// What has come.
pub(crate) enum News {
    /// The job has ended so.
    Ended(Arc<Job>),
    /// The job is to be looked at.
    Look,
}

impl Awaited {
    /// Tells how a job is now. What is told of one job may come in another order than it
    /// happened, so an end is forgotten only for one of a later attempt.
    pub(crate) fn tell(&self, job: &Job) {
        match job.status() {
            Status::Queued | Status::Working => return,
            Status::InputRequired => self.told().looks += 1,
            Status::Completed | Status::Failed | Status::Cancelled => {
                let mut told = self.told();
                if told.ended.as_ref().is_none_or(|ended| ended.attempt < job.attempt) {
                    told.ended = Some(Arc::new(job.clone()));
                }
            }
        }
        self.news.notify_waiters();
    }

    /// Tells that a job is gone, or stands otherwise than was told.
    pub(crate) fn look(&self) {
        self.told().looks += 1;
        self.news.notify_waiters();
    }

    /// Returns how often the job was to be looked at.
    pub(crate) fn looks(&self) -> u64 {
        self.told().looks
    }

    /// Waits for the end of that attempt or of a later one, or until the job was to be
    /// looked at more often than that.
    pub(crate) async fn news(&self, attempt: u32, looks: u64) -> News {
        loop {
            // Made before the look at what was told, so that nothing falls between.
            let news = self.news.notified();
            {
                let told = self.told();
                if let Some(ended) = told.ended.as_ref().filter(|job| job.attempt >= attempt) {
                    return News::Ended(ended.clone());
                }
                if told.looks != looks {
                    return News::Look;
                }
            }
            news.await;
        }
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;
    use crate::{
        job::Event,
        store::{
            MemoryStore,
            contract::{failed, happen, new_run, open, spawn, spawned},
        },
    };

    #[test]
    fn j19_waits_that_were_dropped_leave_next_to_nothing() {
        let watches = Watches::<Notify>::default();
        let held = watches.of(JobId::from_bits(0));
        for bits in 1..10_000 {
            drop(watches.of(JobId::from_bits(bits)));
        }
        assert!(Arc::ptr_eq(&held, &watches.of(JobId::from_bits(0))));
        let left = watches.held().len();
        assert!(left <= 129, "{left}");
        // One that nobody holds is dropped where it is looked for.
        drop(held);
        assert!(watches.get(JobId::from_bits(0)).is_none());
        assert!(watches.held().len() < left);
    }

    #[tokio::test]
    async fn an_end_is_told_in_whichever_order_it_is_heard_of() {
        let store = MemoryStore::new();
        open(&store, "chat", 1).await;
        let first = spawn(&store, spawned("chat")).await;
        let first_end = happen(&store, &first, failed(first.run())).await;
        let second = happen(&store, &first_end, Event::Retried { run: new_run() }).await;
        let second_end = happen(&store, &second, failed(second.run())).await;
        let awaited = Awaited::default();
        let ended = |attempt| match awaited.news(attempt, 0).now_or_never() {
            Some(News::Ended(job)) => Some(Arc::unwrap_or_clone(job)),
            Some(News::Look) => panic!("there is nothing to look at"),
            None => None,
        };
        awaited.tell(&second);
        assert_eq!(ended(1), None);
        awaited.tell(&first_end);
        assert_eq!((ended(1).as_ref(), ended(2)), (Some(&first_end), None));
        // Who looks later knows that attempt, and waits for its end.
        awaited.tell(&second_end);
        awaited.tell(&first_end);
        assert_eq!((ended(1).as_ref(), ended(2).as_ref()), (Some(&second_end), Some(&second_end)));
        awaited.look();
        assert!(matches!(awaited.news(2, 0).now_or_never(), Some(News::Ended(_))));
        assert!(matches!(awaited.news(3, 0).now_or_never(), Some(News::Look)));
        assert_eq!(awaited.looks(), 1);
    }
}
