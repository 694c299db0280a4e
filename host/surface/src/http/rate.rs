//! How often somebody may do something: a bucket for each, of which what is taken flows
//! back steadily.

use std::{
    borrow::Borrow,
    collections::HashMap,
    hash::Hash,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// How many are remembered at a time. Those whose bucket is full are as good as unknown,
/// so it is only reached by so many who are all busy within seconds.
const REMEMBERED: usize = 4_096;

/// So many at once, and after that so many a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// How many at once, at least 1.
    pub burst: u32,
    /// How many a second, at least 1.
    pub per_second: u32,
}

impl Rate {
    /// How long it takes until one more flows back.
    fn step(self) -> Duration {
        Duration::from_secs(1) / self.per_second.max(1)
    }

    /// How long it takes until all have flowed back.
    fn whole(self) -> Duration {
        self.step() * self.burst.max(1)
    }
}

/// The buckets of all who do one thing.
#[derive(Debug)]
pub(super) struct Buckets<K> {
    rate: Rate,
    /// When each bucket will be full again, which says how full it is.
    full_at: Mutex<HashMap<K, Instant>>,
}

impl<K: Hash + Eq> Buckets<K> {
    pub(super) fn new(rate: Rate) -> Self {
        Self { rate, full_at: Mutex::default() }
    }

    /// Takes one out of somebody's bucket.
    ///
    /// # Errors
    ///
    /// After what time there is one again, where there is none.
    pub(super) fn take<Q>(&self, who: &Q, now: Instant) -> Result<(), Duration>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        let mut full_at = self.full_at.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = full_at.get_mut(who) {
            *at = self.next(*at, now)?;
            return Ok(());
        }
        if full_at.len() >= REMEMBERED {
            full_at.retain(|_, at| *at > now);
        }
        if full_at.len() >= REMEMBERED {
            return Err(self.rate.step());
        }
        full_at.insert(who.to_owned(), self.next(now, now)?);
        Ok(())
    }

    /// Returns when a bucket will be full that one is taken from now.
    fn next(&self, full_at: Instant, now: Instant) -> Result<Instant, Duration> {
        let next = full_at.max(now) + self.rate.step();
        let latest = now + self.rate.whole();
        match next.checked_duration_since(latest) {
            Some(early) if !early.is_zero() => Err(early),
            _ => Ok(next),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEN: Rate = Rate { burst: 10, per_second: 1 };

    fn later(now: Instant, ms: u64) -> Instant {
        now + Duration::from_millis(ms)
    }

    #[test]
    fn a_bucket_empties_and_fills_again() {
        let (buckets, now) = (Buckets::<String>::new(TEN), Instant::now());
        for _ in 0..10 {
            buckets.take("ann", now).unwrap();
        }
        assert_eq!(buckets.take("ann", now), Err(Duration::from_secs(1)));
        assert_eq!(buckets.take("ann", later(now, 400)), Err(Duration::from_millis(600)));
        // Somebody else has a bucket of their own.
        buckets.take("bob", now).unwrap();
        buckets.take("ann", later(now, 1_000)).unwrap();
        buckets.take("ann", later(now, 1_000)).unwrap_err();
        // However long nothing was taken, no more is in it than goes in.
        let much_later = later(now, 1_000_000);
        let taken = (0..100).filter(|_| buckets.take("ann", much_later).is_ok()).count();
        assert_eq!(taken, 10);
    }

    #[test]
    fn no_more_are_remembered_than_there_is_room_for() {
        let (buckets, now) = (Buckets::<u64>::new(TEN), Instant::now());
        for who in 0..REMEMBERED as u64 {
            buckets.take(&who, now).unwrap();
        }
        buckets.take(&u64::MAX, now).unwrap_err();
        assert_eq!(buckets.full_at.lock().unwrap().len(), REMEMBERED);
        buckets.take(&7, now).unwrap();
        buckets.take(&u64::MAX, later(now, 1_000)).unwrap();
        assert_eq!(buckets.full_at.lock().unwrap().len(), 2);
    }
}
