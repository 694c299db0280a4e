//! Which names there are, and which there are after a crash.

use std::{collections::BTreeMap, path::Path};

use super::{rng::Rng, state::FileId};

type Names = BTreeMap<String, FileId>;

#[derive(Default)]
pub(super) struct Folder {
    now: Names,
    durable: Names,
    /// What was created and deleted since it was durable, in order.
    pending: Vec<(String, Option<FileId>)>,
}

impl Folder {
    pub(super) fn find(&self, name: &str) -> Option<FileId> {
        self.now.get(name).copied()
    }

    pub(super) fn create(&mut self, name: &str, file: FileId) {
        self.now.insert(name.to_owned(), file);
        self.pending.push((name.to_owned(), Some(file)));
    }

    pub(super) fn delete(&mut self, name: &str) {
        self.now.remove(name);
        self.pending.push((name.to_owned(), None));
    }

    /// Makes durable what a name stands for, or that it stands for nothing.
    pub(super) fn sync(&mut self, name: &str) {
        self.pending.retain(|(pending, _)| pending != name);
        put(&mut self.durable, name, self.now.get(name).copied());
    }

    /// Makes durable all names that are in the folder of one.
    pub(super) fn sync_around(&mut self, name: &str) {
        let folder = Path::new(name).parent();
        let around = |other: &&(String, _)| Path::new(&other.0).parent() == folder;
        let names: Vec<_> = self.pending.iter().filter(around).map(|(n, _)| n.clone()).collect();
        for name in names {
            self.sync(&name);
        }
    }

    /// Makes durable the names that a file has.
    pub(super) fn sync_names_of(&mut self, file: FileId) {
        let names = self.now.iter().filter(|(_, known)| **known == file);
        let names: Vec<_> = names.map(|(name, _)| name.clone()).collect();
        for name in names {
            self.sync(&name);
        }
    }

    /// Tells whether a file has a name, or may have one after a crash.
    pub(super) fn knows(&self, file: FileId) -> bool {
        self.durable.values().any(|known| *known == file)
            || self.now.values().any(|known| *known == file)
            || self.pending.iter().any(|(_, known)| *known == Some(file))
    }

    /// Leaves what is durable, and of each name's later lot as much as chance has it.
    pub(super) fn crash(&mut self, rng: Option<&mut Rng>) {
        let mut left = std::mem::take(&mut self.durable);
        if let Some(rng) = rng {
            let mut lots: BTreeMap<&str, Vec<Option<FileId>>> = BTreeMap::new();
            for (name, file) in &self.pending {
                lots.entry(name).or_default().push(*file);
            }
            for (name, lot) in lots {
                if let Some(last) = rng.within(0, lot.len()).checked_sub(1) {
                    put(&mut left, name, lot[last]);
                }
            }
        }
        self.pending.clear();
        self.now.clone_from(&left);
        self.durable = left;
    }
}

fn put(names: &mut Names, name: &str, file: Option<FileId>) {
    match file {
        Some(file) => names.insert(name.to_owned(), file),
        None => names.remove(name),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Folder) -> Vec<&str> {
        folder.now.keys().map(String::as_str).collect()
    }

    #[test]
    fn a_name_is_forgotten_unless_it_was_synced() {
        let mut folder = Folder::default();
        folder.create("/a/synced", FileId(1));
        folder.create("/a/not", FileId(2));
        folder.sync("/a/synced");
        folder.crash(None);
        assert_eq!(names(&folder), ["/a/synced"]);
        assert!(!folder.knows(FileId(2)));
    }

    #[test]
    fn a_deletion_is_forgotten_unless_the_folder_was_synced() {
        let mut folder = Folder::default();
        for (name, file) in [("/a/gone", 1), ("/a/back", 2), ("/b/elsewhere", 3)] {
            folder.create(name, FileId(file));
            folder.sync(name);
        }
        folder.delete("/b/elsewhere");
        folder.delete("/a/gone");
        folder.sync_around("/a/anything");
        folder.delete("/a/back");
        assert!(names(&folder).is_empty());
        folder.crash(None);
        assert_eq!(names(&folder), ["/a/back", "/b/elsewhere"]);
    }

    #[test]
    fn chance_keeps_any_of_the_lots_that_a_name_had() {
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..50 {
            let mut folder = Folder::default();
            folder.create("a", FileId(1));
            folder.sync("a");
            folder.delete("a");
            folder.create("a", FileId(2));
            folder.crash(Some(&mut Rng::new(seed)));
            seen.insert(folder.find("a"));
        }
        assert_eq!(seen, [None, Some(FileId(1)), Some(FileId(2))].into());
    }
}
