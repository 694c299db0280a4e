//! The files of a tree that git would search, in git's order.
//!
//! The walker of the `ignore` crate finds the ignore files above its start with
//! `canonicalize`, which WASI does not have, so this one takes the rules from
//! that crate and does the walking itself.

use ignore::gitignore::{Gitignore, GitignoreBuilder};
use ignore::overrides::Override;
use std::ffi::OsString;
use std::fs::{self, DirEntry};
use std::io;
use std::path::{Path, PathBuf};
use std::vec;

/// An iterator over files, sorted as git sorts paths: byte by byte.
pub(crate) struct Walk {
    /// The rules of the folders above the start, the topmost first.
    above: Vec<Gitignore>,
    /// The folders that are being walked, the innermost last.
    folders: Vec<Folder>,
    /// A start that is a file.
    file: Option<PathBuf>,
    /// What could not be listed and was not told yet.
    failed: Option<io::Error>,
    globs: Override,
    /// Whether the start lies in a git repository. Another repository inside of
    /// it is none of its files then.
    in_repository: bool,
}

struct Folder {
    path: PathBuf,
    rules: Gitignore,
    entries: vec::IntoIter<Entry>,
}

struct Entry {
    name: OsString,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Folder,
    File,
}

impl Walk {
    /// Returns a walk over the files below `start`, or over `start` itself if
    /// it is a file; only what `globs` lets through.
    pub(crate) fn new(start: &Path, globs: Override) -> Self {
        let mut above = Vec::new();
        let mut in_repository = start.join(".git").exists();
        for folder in start.ancestors().skip(1) {
            if in_repository {
                break;
            }
            above.push(rules_in(folder));
            in_repository = folder.join(".git").exists();
        }
        above.reverse();
        let mut walk =
            Self { above, folders: Vec::new(), file: None, failed: None, globs, in_repository };
        if start.is_dir() {
            walk.enter(start.to_owned());
        } else {
            walk.file = Some(start.to_owned());
        }
        walk
    }

    fn enter(&mut self, path: PathBuf) {
        match list(&path) {
            Ok(entries) => self.folders.push(Folder { rules: rules_in(&path), entries, path }),
            Err(error) => {
                let text = format!("{}: {error}", path.display());
                self.failed = Some(io::Error::new(error.kind(), text));
            }
        }
    }

    fn is_excluded(&self, path: &Path, kind: Kind) -> bool {
        let is_folder = kind == Kind::Folder;
        if self.globs.matched(path, is_folder).is_ignore() {
            return true;
        }
        // The innermost rule that says anything decides.
        let innermost_first = self.folders.iter().map(|folder| &folder.rules).rev();
        innermost_first
            .chain(self.above.iter().rev())
            .map(|rules| rules.matched(path, is_folder))
            .find(|verdict| !verdict.is_none())
            .is_some_and(|verdict| verdict.is_ignore())
    }
}

impl Iterator for Walk {
    type Item = io::Result<PathBuf>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(error) = self.failed.take() {
                return Some(Err(error));
            }
            let Some(folder) = self.folders.last_mut() else {
                let file = self.file.take()?;
                if self.globs.matched(&file, false).is_ignore() {
                    return None;
                }
                return Some(Ok(file));
            };
            let Some(entry) = folder.entries.next() else {
                self.folders.pop();
                continue;
            };
            let path = folder.path.join(&entry.name);
            if self.is_excluded(&path, entry.kind) {
                continue;
            }
            match entry.kind {
                Kind::File => return Some(Ok(path)),
                Kind::Folder if self.in_repository && path.join(".git").exists() => {}
                Kind::Folder => self.enter(path),
            }
        }
    }
}

/// Returns the files and folders in a folder, sorted.
fn list(folder: &Path) -> io::Result<vec::IntoIter<Entry>> {
    let mut entries = Vec::new();
    for entry in fs::read_dir(folder)? {
        entries.extend(Entry::of(&entry?)?);
    }
    entries.sort_by(|a, b| a.sort_key().cmp(b.sort_key()));
    Ok(entries.into_iter())
}

impl Entry {
    /// Returns the entry if it is to be walked: a folder or a file, not a link
    /// or a device, and nothing of git's own.
    fn of(entry: &DirEntry) -> io::Result<Option<Self>> {
        let kind = entry.file_type()?;
        let kind = match () {
            () if kind.is_dir() => Kind::Folder,
            () if kind.is_file() => Kind::File,
            () => return Ok(None),
        };
        let name = entry.file_name();
        Ok((name != ".git").then_some(Self { name, kind }))
    }

    /// Returns the name as it goes on in the paths that start with it, since
    /// those are what is in order: `a.b` before `a/b`.
    fn sort_key(&self) -> impl Iterator<Item = &u8> {
        let slash: &[u8] = match self.kind {
            Kind::Folder => b"/",
            Kind::File => b"",
        };
        self.name.as_encoded_bytes().iter().chain(slash)
    }
}

/// Returns the rules that a folder's `.gitignore` gives. In the folder of a
/// repository those of `.git/info/exclude` come first, so that they weigh less.
fn rules_in(folder: &Path) -> Gitignore {
    let mut rules = GitignoreBuilder::new(folder);
    // Files that are missing add nothing, and a line that is no pattern is
    // skipped, as git does.
    let _ = rules.add(folder.join(".git/info/exclude"));
    let _ = rules.add(folder.join(".gitignore"));
    rules.build().unwrap_or_else(|_| Gitignore::empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ignore::overrides::OverrideBuilder;

    /// Makes a tree of empty files, except for those given with a text.
    fn tree(files: &[&str]) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a temporary folder");
        for file in files {
            let (path, text) = file.split_once('=').unwrap_or((file, ""));
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
            fs::write(path, text).expect("a file");
        }
        root
    }

    fn walk(root: &tempfile::TempDir, start: &str, globs: &[&str]) -> Vec<String> {
        let start = root.path().join(start);
        let mut overrides = OverrideBuilder::new(&start);
        for glob in globs {
            overrides.add(glob).expect("a glob");
        }
        Walk::new(&start, overrides.build().expect("globs"))
            .map(|path| path.expect("readable"))
            .map(|path| path.strip_prefix(root.path()).expect("below").display().to_string())
            .collect()
    }

    #[test]
    fn paths_are_in_gits_order() {
        let root = tree(&["a/b", "a.b", "a-b", "a0", "B", ".c/d"]);
        assert_eq!(walk(&root, "", &[]), [".c/d", "B", "a-b", "a.b", "a/b", "a0"]);
    }

    #[test]
    fn ignore_files_hold_for_what_is_below_them() {
        let root = tree(&[
            ".gitignore=/target\n*.log\n!keep.log\nnot a [pattern\n",
            "target/x",
            "sub/target/x",
            "sub/.gitignore=!b.log\nown\n",
            "sub/a.log",
            "sub/b.log",
            "sub/own/x",
            "own",
            "keep.log",
        ]);
        let sub = ["sub/.gitignore", "sub/b.log", "sub/target/x"];
        let mut all = vec![".gitignore", "keep.log", "own"];
        all.extend(sub);
        assert_eq!(walk(&root, "", &[]), all);
        assert_eq!(walk(&root, "sub", &[]), sub, "rules from above hold too");
    }

    #[test]
    fn git_is_skipped_and_so_are_other_repositories_in_a_repository() {
        let root = tree(&[
            ".git/info/exclude=secret\n",
            ".git/config",
            "secret",
            "own",
            "other/.git/config",
            "other/file",
        ]);
        assert_eq!(walk(&root, "", &[]), ["own"]);
        assert_eq!(walk(&root, "other", &[]), ["other/file"]);
        let root = tree(&["one/.git/config", "one/file", "two/.git/config", "two/file"]);
        assert_eq!(walk(&root, "", &[]), ["one/file", "two/file"]);
    }

    #[test]
    fn globs_choose_among_what_is_not_ignored() {
        let root = tree(&[".gitignore=x.rs\n", "x.rs", "y.rs", "z.txt", "src/w.rs"]);
        assert_eq!(walk(&root, "", &["*.rs"]), ["src/w.rs", "y.rs"]);
        assert_eq!(walk(&root, "", &["!src"]), [".gitignore", "y.rs", "z.txt"]);
    }

    #[test]
    fn a_file_is_a_tree_of_one() {
        let root = tree(&[".gitignore=*\n", "a.rs"]);
        assert_eq!(walk(&root, "a.rs", &[]), ["a.rs"]);
    }
}
