//! Readers of recorded output that wait where they have read to.
//!
//! Who follows an output asks again and again for what is behind the last answer. A
//! reader that is there already finds that at once; a new one would have to go through
//! what is before it.

use std::{
    collections::VecDeque,
    sync::{Mutex, PoisonError},
};

use backlot_jobs::{
    JobId,
    output::{Part, Recording},
};

/// Where a reader is: of which job, in which part, and behind how many bytes.
pub(super) type Place = (JobId, Part, u64);

/// How many readers are kept: a follower has one or two, and each has little more than
/// an open file.
const KEPT: usize = 64;

/// Readers by where they are, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Readers(Mutex<VecDeque<(Place, Recording)>>);

impl Readers {
    /// Takes the reader that is there, if there is one.
    pub(super) fn take(&self, place: Place) -> Option<Recording> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = kept.iter().position(|(at, _)| *at == place)?;
        kept.remove(found).map(|(_, reader)| reader)
    }

    /// Keeps a reader where it is.
    pub(super) fn keep(&self, place: Place, reader: Recording) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push_back((place, reader));
        let oldest = if kept.len() > KEPT { kept.pop_front() } else { None };
        drop(kept);
        // It closes a file.
        drop(oldest);
    }
}
