//! Room for what is on its way to the host in large bodies. All of it has a bound, and nobody
//! has more than half: who sends slowly keeps nobody else from sending.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

use super::BODY_BYTES;
use crate::error::{Failure, Reason};

/// How much may be on its way in large bodies at a time, in bytes: eight of the largest.
const ALL_BYTES: usize = 8 * BODY_BYTES;
/// How much of that may be one's own.
const OWN_BYTES: usize = ALL_BYTES / 2;
/// Up to which length a body is not counted, in bytes: so many come with each connection that
/// there can be.
const SMALL_BYTES: usize = 64 << 10;
/// In what a semaphore counts bytes, which has no room for so many permits.
const UNIT_BYTES: usize = 1 << 10;
/// How long it is waited until others have sent theirs.
const PATIENCE: Duration = Duration::from_secs(5);

/// The room for large bodies.
#[derive(Debug)]
pub(super) struct Rooms {
    all: Arc<Semaphore>,
    /// What each has of it who has any.
    own: Mutex<HashMap<String, Weak<Semaphore>>>,
}

/// Room that is taken, until it is dropped.
#[derive(Debug)]
pub(super) struct Room {
    _own: OwnedSemaphorePermit,
    _all: OwnedSemaphorePermit,
}

impl Rooms {
    pub(super) fn new() -> Self {
        Self { all: semaphore(ALL_BYTES), own: Mutex::default() }
    }

    /// Waits for room for a body of somebody. One that is small needs none.
    pub(super) async fn take(&self, who: &str, bytes: u64) -> Result<Option<Room>, Failure> {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        if bytes > BODY_BYTES {
            let message = format!("more than {BODY_BYTES} bytes are to be sent");
            return Err(Failure::new(Reason::TooLarge, message));
        }
        if bytes <= SMALL_BYTES {
            return Ok(None);
        }
        let units = u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX);
        let taken = async {
            // Whoever waits for his own to have come is in nobody's way.
            let own = self.of(who).acquire_many_owned(units).await.ok()?;
            let all = self.all.clone().acquire_many_owned(units).await.ok()?;
            Some(Room { _own: own, _all: all })
        };
        match timeout(PATIENCE, taken).await {
            Ok(Some(room)) => Ok(Some(room)),
            _ => Err(Failure::new(Reason::Busy, "too much is being sent to the host")),
        }
    }

    fn of(&self, who: &str) -> Arc<Semaphore> {
        let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(semaphore) = own.get(who).and_then(Weak::upgrade) {
            return semaphore;
        }
        own.retain(|_, semaphore| semaphore.strong_count() > 0);
        let semaphore = semaphore(OWN_BYTES);
        own.insert(who.to_owned(), Arc::downgrade(&semaphore));
        semaphore
    }
}

fn semaphore(bytes: usize) -> Arc<Semaphore> {
    Arc::new(Semaphore::new(bytes / UNIT_BYTES))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn nobody_has_more_than_half_of_the_room() {
        let rooms = Rooms::new();
        let largest = BODY_BYTES as u64;
        assert_eq!(rooms.take("ann", u64::MAX).await.unwrap_err().reason, Reason::TooLarge);
        let mut anns = Vec::new();
        for _ in 0..4 {
            anns.push(rooms.take("ann", largest).await.unwrap().unwrap());
        }
        assert!(rooms.take("ann", 1).await.unwrap().is_none());
        assert_eq!(rooms.take("ann", largest).await.unwrap_err().reason, Reason::Busy);
        // Also while others of hers wait.
        let (waiting, bob) = tokio::join!(rooms.take("ann", largest), rooms.take("bob", largest));
        assert_eq!(waiting.unwrap_err().reason, Reason::Busy);
        let mut bobs = vec![bob.unwrap().unwrap()];
        for _ in 0..3 {
            bobs.push(rooms.take("bob", largest).await.unwrap().unwrap());
        }
        assert_eq!(rooms.take("eve", largest).await.unwrap_err().reason, Reason::Busy);
        drop(anns.pop());
        assert!(rooms.take("ann", largest).await.unwrap().is_some());
        // Who has nothing under way any more is forgotten.
        drop((anns, bobs));
        let _eve = rooms.take("eve", largest).await.unwrap().unwrap();
        assert_eq!(rooms.own.lock().unwrap().len(), 1);
    }
}
