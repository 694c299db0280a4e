//! The numbers of tasks over the hosts of one data folder: what was `ticker-3` once is
//! never another task.
//!
//! A host takes many numbers of a kind at once, and writes that down before it uses the
//! first. One that ends in order gives back what it did not use; one that crashes leaves
//! a gap.

use std::{
    collections::BTreeMap,
    fmt,
    fs::{self, File},
    io::{self, ErrorKind, Write as _},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use backlot_registry::{Kind, TaskId};

/// How many numbers a host takes of a kind: more than it starts between two starts of its
/// own, and few of all that there are.
const TAKEN: u64 = 1_000_000;

/// Where the numbers of tasks begin, written down in a file. Clones are one.
#[derive(Clone)]
pub(crate) struct Numbers(Arc<Inner>);

struct Inner {
    path: PathBuf,
    /// The next number of each kind that this host has used.
    next: Mutex<BTreeMap<String, u64>>,
}

impl Numbers {
    /// Returns those of a file, which need not be there.
    pub(crate) fn new(path: PathBuf) -> Self {
        Self(Arc::new(Inner { path, next: Mutex::default() }))
    }

    /// Returns the first number of a kind for this host. Blocks, once for a kind.
    pub(crate) fn first(&self, kind: &Kind) -> u64 {
        let first = self.change(|numbers| {
            let next = numbers.entry(kind.to_string()).or_insert(1);
            let first = *next;
            *next = first.saturating_add(TAKEN);
            first
        });
        first.unwrap_or_else(|error| {
            let path = self.0.path.display();
            tracing::warn!(%kind, "task numbers may be used again after a crash: {path}: {error}");
            1
        })
    }

    /// Notes that a number was used.
    pub(crate) fn used(&self, task: &TaskId) {
        let mut used = self.0.next.lock().unwrap_or_else(PoisonError::into_inner);
        let next = used.entry(task.kind.to_string()).or_default();
        *next = (*next).max(task.number.saturating_add(1));
    }

    /// Gives back what was taken and not used. Blocks. Nothing is started any more.
    pub(crate) fn settle(&self) {
        let used = self.0.next.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if used.is_empty() {
            return;
        }
        if let Err(error) = self.change(|numbers| numbers.extend(used)) {
            // A gap does no harm.
            tracing::debug!("numbers that were not used are lost: {error}");
        }
    }

    fn change<T>(&self, change: impl FnOnce(&mut BTreeMap<String, u64>) -> T) -> io::Result<T> {
        let mut numbers = match fs::read(&self.0.path) {
            Ok(bytes) => serde_json::from_slice(&bytes)?,
            Err(error) if error.kind() == ErrorKind::NotFound => BTreeMap::new(),
            Err(error) => return Err(error),
        };
        let changed = change(&mut numbers);
        let folder = self.0.path.parent().unwrap_or(Path::new("."));
        let mut file = tempfile::Builder::new().prefix(".numbers-").tempfile_in(folder)?;
        file.write_all(&serde_json::to_vec(&numbers)?)?;
        file.as_file().sync_all()?;
        file.persist(&self.0.path).map_err(|error| error.error)?;
        File::open(folder)?.sync_all()?;
        Ok(changed)
    }
}

impl fmt::Debug for Numbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Numbers").field(&self.0.path).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c52_no_number_is_used_twice() {
        let folder = tempfile::tempdir().unwrap();
        let host = || Numbers::new(folder.path().join("numbers"));
        let (tick, tock) = (Kind::new("tick").unwrap(), Kind::new("tock").unwrap());
        let one = host();
        assert_eq!((one.first(&tick), one.first(&tock)), (1, 1));
        for number in [1, 3, 2] {
            one.used(&TaskId { kind: tick.clone(), number });
        }
        one.settle();
        let two = host();
        assert_eq!(two.first(&tick), 4);
        // It crashes.
        assert_eq!(host().first(&tick), 4 + TAKEN);
        // Nothing of it was used.
        assert_eq!(host().first(&tock), 1 + TAKEN);
    }

    #[test]
    fn what_cannot_be_read_is_not_written_over() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("numbers");
        fs::write(&path, "noise").unwrap();
        assert_eq!(Numbers::new(path.clone()).first(&Kind::new("tick").unwrap()), 1);
        assert_eq!(fs::read(&path).unwrap(), b"noise");
    }
}
