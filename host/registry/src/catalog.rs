//! The kinds that a host offers, as surfaces see them.
//!
//! Whoever loads producers implements [`Catalog`]; whoever shows kinds to people and
//! programs reads it, and needs to know nothing of components.

use std::{fmt, sync::Arc};

use tokio::sync::broadcast::{self, error::RecvError};

use crate::{Form, Generation, Kind};

/// The kinds that a host offers now.
pub trait Catalog: Send + Sync + 'static {
    /// Returns the kinds, in the order of their names: those that can be started, and
    /// those that could be before or whose tasks still run.
    fn kinds(&self) -> Vec<KindView>;

    /// Returns one kind.
    fn kind(&self, kind: &Kind) -> Option<KindView>;

    /// Returns what changes from now on, each change after it has taken effect.
    fn changes(&self) -> Changes;
}

/// One kind at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KindView {
    /// Its name.
    pub kind: Kind,
    /// Whether tasks of it can be started.
    pub state: KindState,
    /// The version that tasks started now will run.
    pub current: Option<GenerationView>,
    /// Versions before it, newest first: those that are kept to go back to, and those
    /// that tasks still run.
    pub earlier: Vec<GenerationView>,
    /// Why the version that was offered last was not taken, if it was not.
    pub trouble: Option<String>,
}

impl KindView {
    /// Returns how many tasks of the kind live.
    pub fn tasks(&self) -> usize {
        self.current.iter().chain(&self.earlier).map(|generation| generation.tasks).sum()
    }
}

/// Whether tasks of a kind can be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KindState {
    /// They can.
    Serving,
    /// They cannot, and those that run go on: the kind is being drained.
    Draining,
    /// They cannot: the kind was unloaded, or its file is gone.
    Unloaded,
    /// They cannot yet: the first version is being loaded.
    Loading,
    /// They cannot: no version of the kind was ever good.
    Broken,
}

impl fmt::Display for KindState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Serving => "serving",
            Self::Draining => "draining",
            Self::Unloaded => "unloaded",
            Self::Loading => "loading",
            Self::Broken => "broken",
        })
    }
}

/// One version of a kind at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GenerationView {
    /// Its number and digest.
    pub generation: Generation,
    /// The version of the contract that it implements; programs implement none.
    pub contract: Option<&'static str>,
    /// When it was loaded, in milliseconds since the Unix epoch.
    pub loaded_at_ms: u64,
    /// How many tasks run it.
    pub tasks: usize,
    /// Whether it is kept to go back to.
    pub kept: bool,
    /// What it says of itself.
    pub descriptor: Arc<KindDescriptor>,
}

/// What a version of a kind says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KindDescriptor {
    /// One line that says what the kind does.
    pub summary: String,
    /// The JSON Schema (draft 2020-12) of its input; absent when any text will do.
    pub input_schema: Option<String>,
    /// How its tasks hand over their output.
    pub form: Form,
}

/// Something that has happened to a kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Tasks that are started from now on run this version, whether it is new or one
    /// from before.
    Swapped {
        /// The kind.
        kind: Kind,
        /// The version.
        generation: Generation,
    },
    /// A version was offered and not taken; what was is still there.
    Refused {
        /// The kind, as the file's name has it.
        kind: Kind,
        /// Why.
        why: String,
    },
    /// No more tasks are started.
    Closed {
        /// The kind.
        kind: Kind,
        /// Why: draining or unloaded.
        state: KindState,
    },
    /// The code of a version was let go of: nothing runs it any more.
    Freed {
        /// The kind.
        kind: Kind,
        /// The version.
        generation: Generation,
    },
    /// So many changes were missed by this receiver, which was too slow; looking at
    /// the catalogue again tells what is.
    Missed(u64),
}

/// Receives what changes.
#[derive(Debug)]
pub struct Changes(broadcast::Receiver<Change>);

impl Changes {
    /// Waits for the next change; `None` once there is no catalogue any more.
    pub async fn next(&mut self) -> Option<Change> {
        match self.0.recv().await {
            Ok(change) => Some(change),
            Err(RecvError::Lagged(missed)) => Some(Change::Missed(missed)),
            Err(RecvError::Closed) => None,
        }
    }
}

/// Tells everybody who listens what has changed.
#[derive(Clone, Debug)]
pub struct Announcer(broadcast::Sender<Change>);

/// How many changes wait for a slow receiver. A folder of some hundred kinds that is
/// replaced as a whole fits.
const QUEUE: usize = 1024;

impl Default for Announcer {
    fn default() -> Self {
        Self(broadcast::Sender::new(QUEUE))
    }
}

impl Announcer {
    /// Tells of a change that has taken effect.
    pub fn tell(&self, change: Change) {
        // Nobody may be listening.
        let _ = self.0.send(change);
    }

    /// Returns what is told from now on.
    pub fn listen(&self) -> Changes {
        Changes(self.0.subscribe())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_receiver_that_is_too_slow_is_told_how_much_it_missed() {
        let announcer = Announcer::default();
        let mut changes = announcer.listen();
        for number in 1..=QUEUE as u64 + 3 {
            let generation = Generation { number, digest: "sha256:00".into() };
            announcer.tell(Change::Freed { kind: Kind::new("a").unwrap(), generation });
        }
        assert_eq!(changes.next().await, Some(Change::Missed(3)));
        assert!(matches!(
            changes.next().await,
            Some(Change::Freed { generation: Generation { number: 4, .. }, .. })
        ));
        drop(announcer);
        for _ in 1..QUEUE {
            changes.next().await.unwrap();
        }
        assert_eq!(changes.next().await, None);
    }
}
