//! What nothing names any more: folders of jobs that are not in the store, and versions
//! that no job runs.
//!
//! A store may be one that was put back, or a new one where the last was moved away. So a
//! job's folder is not deleted for not being known: it is put aside, and deleted when it
//! has been there for long.

use std::{
    collections::HashSet,
    fs, io,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _},
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use backlot_jobs::{DataFolder, files};

/// How long what was put aside is kept.
const KEPT_FOR: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// The folders of jobs that there are, before any other can be made.
pub(super) struct Found {
    folder: DataFolder,
    names: Vec<String>,
}

impl Found {
    /// Looks which there are. Blocks.
    pub(super) fn look(folder: DataFolder) -> Self {
        let entries = fs::read_dir(folder.jobs());
        let names = entries.into_iter().flatten().flatten();
        let names = names.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        Self { folder, names }
    }

    /// Puts those aside that no job has, and deletes what was put aside long ago. Blocks.
    pub(super) fn sweep(&self, jobs: &HashSet<String>) {
        let aside = self.folder.path().join("strays");
        for name in self.names.iter().filter(|name| !jobs.contains(*name)) {
            if let Err(error) = put_aside(&self.folder.job(name), &aside, name) {
                tracing::warn!("the folder {name} of a job that is not there: {error}");
            }
        }
        let Ok(entries) = fs::read_dir(&aside) else { return };
        for entry in entries.flatten() {
            if is_old(&entry.path()).unwrap_or(false)
                && let Err(error) = files::remove(&entry.path())
            {
                tracing::warn!("what was put aside long ago cannot be deleted: {error}");
            }
        }
    }
}

fn put_aside(from: &Path, aside: &Path, name: &str) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(aside)?;
    let to = free(aside, name);
    tracing::warn!("no job has the folder {}: it is in {} now", from.display(), to.display());
    fs::rename(from, to)
}

/// Returns a path there that nothing has.
fn free(aside: &Path, name: &str) -> PathBuf {
    let mut to = aside.join(name);
    let mut number = 1;
    while to.symlink_metadata().is_ok() {
        to = aside.join(format!("{name}.{number}"));
        number += 1;
    }
    to
}

/// Tells whether something was put where it is long ago: being renamed changes it, too.
fn is_old(path: &Path) -> io::Result<bool> {
    let changed = path.symlink_metadata()?.ctime();
    let changed = UNIX_EPOCH + Duration::from_secs(u64::try_from(changed).unwrap_or_default());
    Ok(SystemTime::now().duration_since(changed).is_ok_and(|age| age > KEPT_FOR))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_job_has_is_put_aside_and_nothing_that_came_later() {
        let outer = tempfile::tempdir().unwrap();
        let folder = DataFolder::open(&outer.path().join("data")).unwrap();
        let make = |name: &str| {
            fs::create_dir_all(folder.job(name)).unwrap();
            fs::write(folder.job(name).join("output.0"), name).unwrap();
        };
        make("known");
        make("stray");
        let found = Found::look(folder.clone());
        make("later");
        found.sweep(&HashSet::from(["known".to_owned()]));
        assert!(folder.job("known").exists() && folder.job("later").exists());
        assert!(!folder.job("stray").exists());
        let aside = folder.path().join("strays");
        assert_eq!(fs::read_to_string(aside.join("stray/output.0")).unwrap(), "stray");
        // Another of that name does not take its place.
        make("stray");
        Found::look(folder.clone()).sweep(&HashSet::from(["known".to_owned(), "later".to_owned()]));
        assert!(aside.join("stray").exists() && aside.join("stray.1").exists());
    }
}
