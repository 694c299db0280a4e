//! A plugin folder and the kinds that come from it: looked at, planned, carried out.
//!
//! A version is loaded first and swapped in when it is good; what cannot be loaded is
//! told, and changes nothing. Loads of different kinds go on beside each other, so that
//! one that is slow to compile holds up no other.

use std::{
    collections::BTreeMap,
    fmt, fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use backlot_registry::{Catalog as _, Generation, Kind, KindState};
use futures::future::join_all;
use tokio::sync::Semaphore;
use tokio_util::task::{TaskTracker, task_tracker::TaskTrackerToken};

use crate::{
    cache::FileStamp,
    catalog::{ComponentCatalog, DrainError, REMEMBERED, RollbackError, Turn, UnknownKind},
    component::Component,
    engine::Engine,
    folder::{KindError, Opened, kind_files, kind_of, manifest_beside, named, path_of_kind},
    live::Mark,
    plan::{Known, Look, Plan, Seen, Stamp, Step},
    process::on_a_thread,
    text::chain,
};

/// How many files are open at a time, each with a thread that looks at it. More than
/// are compiled at a time, so that those whose code is kept pass by the others.
const AT_A_TIME: usize = 16;

/// A plugin folder. Clones are handles to one.
#[derive(Clone)]
pub struct Plugins(Arc<Inner>);

struct Inner {
    folder: PathBuf,
    engine: Engine,
    catalog: ComponentCatalog,
    state: Mutex<State>,
    /// Turns at opening a file.
    turns: Semaphore,
    /// What the first look has found to be done; closed once that look is over.
    first: TaskTracker,
}

#[derive(Default)]
struct State {
    known: BTreeMap<Kind, Known>,
    /// What the last look has found.
    seen: Vec<Seen>,
    strays: Vec<Stray>,
    trouble: Option<String>,
    /// Whether the folder was on a disk of this machine at the last look.
    is_near: bool,
}

/// A file of a plugin folder that can be no kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stray {
    /// The file.
    pub path: PathBuf,
    /// Why not.
    pub why: String,
}

/// What a look at a plugin folder has come to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reloaded {
    /// What is new or was replaced.
    pub swapped: Vec<(Kind, Generation)>,
    /// What was found changed and could not be taken, and why. What was there before
    /// still is.
    pub refused: Vec<(Kind, String)>,
    /// Kinds whose files are gone.
    pub removed: Vec<Kind>,
}

/// One step that a look at the folder has found to be due. Dropped before it is done,
/// it is found by the next look again.
pub(crate) struct Due {
    plugins: Plugins,
    pub(crate) kind: Kind,
    step: Step,
    /// Held until it is done, where the first look has found it.
    _first: Option<TaskTrackerToken>,
}

/// What became of one step.
enum Did {
    Swapped(Kind, Generation),
    Refused(Kind, String),
    Removed(Kind),
    Nothing,
}

impl Plugins {
    /// Returns the kinds of a folder, none of which is loaded yet.
    pub fn new(folder: PathBuf, engine: Engine, catalog: ComponentCatalog) -> Self {
        let turns = Semaphore::new(AT_A_TIME);
        let (state, first) = (Mutex::default(), TaskTracker::new());
        Self(Arc::new(Inner { folder, engine, catalog, state, turns, first }))
    }

    /// Returns the folder.
    pub fn folder(&self) -> &Path {
        &self.0.folder
    }

    /// Returns the catalogue that the kinds are put into.
    pub fn catalog(&self) -> &ComponentCatalog {
        &self.0.catalog
    }

    /// Returns the files that can be no kind, as of the last look.
    pub fn strays(&self) -> Vec<Stray> {
        self.state().strays.clone()
    }

    /// Says why the folder could not be looked at, if it could not.
    pub fn trouble(&self) -> Option<String> {
        self.state().trouble.clone()
    }

    /// Resolves once the folder was looked at, and all that the first look has found is done:
    /// each file was loaded, or found wrong. Where nobody looks that is never.
    pub async fn known(&self) {
        self.0.first.wait().await;
    }

    /// Looks at the folder and takes what has changed, as it is. Resolves when all of
    /// it is done.
    ///
    /// # Errors
    ///
    /// When the folder cannot be listed. The kinds that were loaded from it stay.
    pub async fn reload(&self) -> Result<Reloaded, KindError> {
        let (due, _) = self.look(Look::Asked).await?;
        let mut reloaded = Reloaded::default();
        for did in join_all(due.into_iter().map(Due::carry_out)).await {
            match did {
                Did::Swapped(kind, generation) => reloaded.swapped.push((kind, generation)),
                Did::Refused(kind, why) => reloaded.refused.push((kind, why)),
                Did::Removed(kind) => reloaded.removed.push(kind),
                Did::Nothing => {}
            }
        }
        Ok(reloaded)
    }

    /// Returns what tasks of a kind run that are started now, loaded from its file if
    /// it was not or the file has changed.
    ///
    /// # Errors
    ///
    /// When there is no such kind, its file cannot be run, or the kind was unloaded or
    /// drained and not loaded again.
    pub async fn current(&self, kind: &Kind) -> Result<Component, KindError> {
        let path = path_of_kind(&self.0.folder, kind);
        let at_once = self.state().is_near.then(|| stamp_at_once(&path)).flatten();
        let stamp = match at_once {
            Some(stamp) => stamp,
            None => {
                let look = path.clone();
                let look = move || Ok::<_, KindError>(is_there(&look).then(|| stamp(&look)));
                let missing = || KindError::missing(&self.0.folder, kind.clone());
                on_a_thread(look).await?.ok_or_else(missing)?
            }
        };
        let known = self.state().known.get(kind).copied();
        match self.0.catalog.current(kind) {
            Some(component) if known == Some(Known::Tried(stamp)) => Ok(component),
            _ => {
                let turn = self.0.catalog.turn(kind).await;
                // With the turn: whoever had it before may have unloaded the kind.
                if self.state().known.get(kind) == Some(&Known::Held) {
                    return Err(KindError::Held(kind.clone()));
                }
                self.take(turn, kind, &path).await
            }
        }
    }

    /// Loads a kind from its file, also if it was unloaded, or was tried before.
    ///
    /// # Errors
    ///
    /// When there is no such kind, or its file cannot be run; what was current before
    /// still is.
    pub async fn load(&self, kind: &Kind) -> Result<Component, KindError> {
        let path = self.path(kind).await?;
        self.take(self.0.catalog.turn(kind).await, kind, &path).await
    }

    /// Starts no more tasks of a kind, and does not load it again by itself. Tasks that
    /// run go on.
    ///
    /// # Errors
    ///
    /// When there is no such kind.
    pub async fn unload(&self, kind: &Kind) -> Result<(), UnknownKind> {
        self.hold(kind).await?.close(KindState::Unloaded, "it was unloaded".to_owned());
        Ok(())
    }

    /// Starts no more tasks of a kind, waits until none runs any more, and unloads it as
    /// [`Plugins::unload`] does.
    ///
    /// # Errors
    ///
    /// When there is no such kind, or it is loaded again meanwhile.
    pub async fn drain(&self, kind: &Kind) -> Result<(), DrainError> {
        let turn = self.hold(kind).await?;
        self.0.catalog.drain_in(turn).await
    }

    /// Has a kind go back to a good version from before, as
    /// [`ComponentCatalog::rollback`] does. Its file stays as it is, and is taken once it
    /// changes.
    ///
    /// # Errors
    ///
    /// As that.
    pub async fn rollback(
        &self,
        kind: &Kind,
        number: Option<u64>,
    ) -> Result<Generation, RollbackError> {
        let (turn, earlier) = self.0.catalog.earlier(kind, number).await?;
        if let Some(mark) = self.mark(kind).await {
            earlier.component.0.bear(mark);
        }
        let path = path_of_kind(&self.0.folder, kind);
        // Where that cannot be looked at, what is there is news to the next look.
        let now = on_a_thread(move || Ok::<_, KindError>(stamp(&path))).await;
        {
            let mut state = self.state();
            // With the turn, and only now that nothing can be given up any more.
            if state.known.get(kind) == Some(&Known::Held) {
                let known = match now.unwrap_or(Stamp::NOTHING) {
                    Stamp { component: None, .. } => Known::Gone,
                    now => Known::Tried(now),
                };
                state.known.insert(kind.clone(), known);
            }
        }
        Ok(turn.put_back(earlier))
    }

    /// Has the file of a kind left alone, and returns the turn to close the kind.
    async fn hold(&self, kind: &Kind) -> Result<Turn, UnknownKind> {
        if self.0.catalog.kind(kind).is_none() {
            return Err(UnknownKind(kind.clone()));
        }
        let turn = self.0.catalog.turn(kind).await;
        // With the turn: whoever had it before may have noted something else.
        self.state().known.insert(kind.clone(), Known::Held);
        Ok(turn)
    }

    /// Returns the kinds that the folder has files for, in order.
    pub fn kinds(&self) -> Vec<Kind> {
        let files = kind_files(&self.0.folder).unwrap_or_default();
        files.iter().filter_map(|path| kind_of(path).ok()).collect()
    }

    /// Looks at the folder and decides what is to be done. Tells also whether another
    /// look is to come soon.
    pub(crate) async fn look(&self, look: Look) -> Result<(Vec<Due>, bool), KindError> {
        let first = (!self.0.first.is_closed()).then(|| self.0.first.token());
        let found = self.look_as(look, first.as_ref()).await;
        // A folder that cannot be looked at has no kinds.
        self.0.first.close();
        found
    }

    async fn look_as(
        &self,
        look: Look,
        first: Option<&TaskTrackerToken>,
    ) -> Result<(Vec<Due>, bool), KindError> {
        let folder = self.0.folder.clone();
        let seen = on_a_thread(move || {
            let is_near = is_near(&folder);
            let seen = see(&folder).map_err(|source| KindError::Read { path: folder, source })?;
            Ok((seen, is_near))
        })
        .await;
        let mut state = self.state();
        let ((seen, strays), is_near) = match seen {
            Ok(seen) => seen,
            Err(error) => {
                // It may come back, and what it had is no worse for that.
                state.trouble = Some(chain(&error));
                state.seen = Vec::new();
                state.is_near = false;
                return Err(error);
            }
        };
        state.trouble = None;
        state.strays = strays;
        state.is_near = is_near;
        if state.known.len() > REMEMBERED {
            state.known.retain(|_, known| *known != Known::Gone);
        }
        let plan = Plan::of(&seen, &state.known, look);
        let is_settling = plan.is_settling();
        state.seen = seen;
        let mut due = Vec::new();
        for (kind, step) in plan.0 {
            match step.leaves() {
                Some(known) => _ = state.known.insert(kind.clone(), known),
                None => continue,
            }
            if !matches!(step, Step::Settle(_)) {
                due.push(Due { plugins: self.clone(), kind, step, _first: first.cloned() });
            }
        }
        Ok((due, is_settling))
    }

    /// Tells whether the files that the last look has found are as they were, and nothing
    /// is due for them. Whether there are others only the folder tells. Nothing is opened,
    /// so that nobody is told of it who watches the folder. Blocks.
    pub(crate) fn is_as_seen(&self) -> bool {
        let seen = self.state().seen.clone();
        let is_same = |it: &Seen| stamp(&path_of_kind(&self.0.folder, &it.kind)) == it.stamp;
        seen.iter().all(is_same) && {
            let state = self.state();
            Plan::of(&seen, &state.known, Look::Watching).is_done()
        }
    }

    /// Loads the file of a kind and swaps it in, or notes why not.
    async fn take(&self, turn: Turn, kind: &Kind, path: &Path) -> Result<Component, KindError> {
        let _open = self.0.turns.acquire().await;
        // Before the file is opened: whoever takes it away then waits for what comes of it.
        let mark = self.mark(kind).await;
        let (stamp, opened) = {
            let path = path.to_owned();
            on_a_thread(move || {
                // Before the file is opened: what replaces it after that is news then.
                let stamp = stamp(&path);
                let opened = Opened::at(&path).and_then(|it| Ok((it, manifest_beside(&path)?)));
                Ok::<_, KindError>((stamp, opened))
            })
            .await?
        };
        self.state().known.insert(kind.clone(), Known::Tried(stamp));
        let (plugins, step) = (self.clone(), Step::Replace(stamp));
        let due = Due { plugins, kind: kind.clone(), step, _first: None };
        let loaded = match opened {
            Ok((opened, manifest)) => opened
                .load(&self.0.engine, turn.number())
                .await
                .map(|component| (component, manifest)),
            Err(error) => Err(error),
        };
        let named = loaded.and_then(|(component, manifest)| {
            let component = named(component, kind, path)?;
            turn.rules().admits(&component.generation().digest)?;
            Ok((component, manifest))
        });
        // The next look finds a file that is being written as it is by then.
        if !matches!(named, Err(KindError::BeingWritten { .. })) {
            due.done();
        }
        match named {
            Ok((component, manifest)) => match turn.serves(&component, manifest.as_ref()) {
                Some(current) => {
                    turn.same();
                    Ok(current)
                }
                None => {
                    if let Some(mark) = mark {
                        component.0.bear(mark);
                    }
                    turn.swap(component.clone(), manifest);
                    Ok(component)
                }
            },
            Err(error) => {
                if !matches!(error, KindError::BeingWritten { .. }) {
                    turn.refuse(chain(&error));
                }
                Err(error)
            }
        }
    }

    /// Tells other processes that this one can run the kind, as far as that can be told.
    async fn mark(&self, kind: &Kind) -> Option<Mark> {
        let (folder, of) = (self.0.folder.clone(), kind.clone());
        let set = on_a_thread(move || {
            Mark::set(&folder, &of).map_err(|source| KindError::Read { path: folder, source })
        });
        let told = |error| tracing::debug!(%kind, %error, "nobody can wait for its end");
        set.await.map_err(told).ok()
    }

    /// Returns the file of a kind, if there is one.
    async fn path(&self, kind: &Kind) -> Result<PathBuf, KindError> {
        let path = path_of_kind(&self.0.folder, kind);
        let look = path.clone();
        match on_a_thread(move || Ok::<_, KindError>(is_there(&look))).await? {
            true => Ok(path),
            false => Err(KindError::missing(&self.0.folder, kind.clone())),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every change is whole before anything can panic.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Due {
    /// Does it, unless something else has been done about the kind meanwhile.
    pub(crate) async fn follow(self) {
        // What came of it is in the catalogue, and was told there.
        let _ = self.carry_out().await;
    }

    async fn carry_out(self) -> Did {
        let (plugins, kind) = (self.plugins.clone(), self.kind.clone());
        let path = path_of_kind(plugins.folder(), &kind);
        let turn = plugins.catalog().turn(&kind).await;
        // Whoever had the turn before may have unloaded it, or loaded what is newer.
        if !self.is_due() {
            return Did::Nothing;
        }
        if self.step == Step::Remove {
            self.done();
            if turn.forget() {
                plugins.state().known.remove(&kind);
            } else {
                let why = format!("its file {} is gone", path.display());
                turn.close(KindState::Unloaded, why);
            }
            return Did::Removed(kind);
        }
        let before = plugins.catalog().kind(&kind).and_then(|view| view.current);
        let taken = plugins.take(turn, &kind, &path).await;
        self.done();
        match taken {
            Err(error) => Did::Refused(kind, chain(&error)),
            Ok(component) => {
                let generation = component.generation().clone();
                match before.is_some_and(|before| before.generation == generation) {
                    true => Did::Nothing,
                    false => Did::Swapped(kind, generation),
                }
            }
        }
    }

    /// Tells whether what is known of the file is what the look has left.
    fn is_due(&self) -> bool {
        let known = self.step.leaves();
        known.is_some() && self.plugins.state().known.get(&self.kind).copied() == known
    }

    fn done(mut self) {
        self.step = Step::Keep;
    }
}

impl Drop for Due {
    fn drop(&mut self) {
        if self.is_due() {
            let known = Known::Changing(Stamp::NOTHING);
            self.plugins.state().known.insert(self.kind.clone(), known);
        }
    }
}

impl fmt::Debug for Plugins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plugins").field("folder", &self.0.folder).finish_non_exhaustive()
    }
}

/// Looks at the files of a folder. Blocks.
fn see(folder: &Path) -> io::Result<(Vec<Seen>, Vec<Stray>)> {
    let mut seen = Vec::new();
    let mut strays = Vec::new();
    for path in kind_files(folder)? {
        match kind_of(&path) {
            Ok(kind) => seen.push(Seen { kind, stamp: stamp(&path) }),
            Err(why) => strays.push(Stray { path, why: why.to_string() }),
        }
    }
    Ok((seen, strays))
}

/// Tells whether there is a file, or what cannot be looked at. A link to nothing is a file
/// that cannot be read, and is told so. Blocks.
fn is_there(path: &Path) -> bool {
    fs::symlink_metadata(path)
        .map_or_else(|error| error.kind() != io::ErrorKind::NotFound, |_| true)
}

/// The file systems that answer from this machine, by the numbers that statfs(2) lists: ext,
/// XFS, Btrfs, F2FS, ZFS, tmpfs and what containers have over those. Others may have to ask
/// somebody who does not answer.
const NEAR: [u64; 7] =
    [0xEF53, 0x5846_5342, 0x9123_683E, 0xF2F5_2010, 0x2FC1_2FC1, 0x0102_1994, 0x794C_7630];

/// Tells whether a folder is on a disk of this machine. Blocks.
fn is_near(folder: &Path) -> bool {
    rustix::fs::statfs(folder).is_ok_and(|about| NEAR.contains(&(about.f_type as u64)))
}

/// Returns what a component file in a folder that is near and the manifest beside it are
/// now: a matter of microseconds. `None` where more has to be asked, such as for a link,
/// which may lead anywhere.
fn stamp_at_once(path: &Path) -> Option<Stamp> {
    let of = |path: &Path| match fs::symlink_metadata(path) {
        Ok(about) if about.is_symlink() => None,
        Ok(about) => Some(Some(FileStamp::from(&about))),
        Err(error) => (error.kind() == io::ErrorKind::NotFound).then_some(None),
    };
    let component = Some(of(path)??);
    Some(Stamp { component, manifest: of(&path.with_extension("toml"))? })
}

/// Returns what a component file and the manifest beside it are now. Blocks.
fn stamp(path: &Path) -> Stamp {
    let of = |path: &Path| fs::metadata(path).ok().map(|about| FileStamp::from(&about));
    Stamp { component: of(path), manifest: of(&path.with_extension("toml")) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn what_is_looked_at_at_once_is_what_a_thread_would_see() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kind.wasm");
        assert_eq!(stamp_at_once(&path), None);
        fs::write(&path, b"one").unwrap();
        assert_eq!(stamp_at_once(&path), Some(stamp(&path)));
        let (manifest, elsewhere) = (path.with_extension("toml"), folder.path().join("else"));
        fs::write(&elsewhere, b"").unwrap();
        symlink(&elsewhere, &manifest).unwrap();
        assert_eq!(stamp_at_once(&path), None, "a link may lead anywhere");
        fs::rename(&elsewhere, &manifest).unwrap();
        let both = stamp_at_once(&path);
        assert!(both.is_some_and(|both| both == stamp(&path) && both.manifest.is_some()));
        // Whose numbers are read by a kernel from memory, and are none of a disk.
        assert!(!is_near(Path::new("/proc")));
        assert!(!is_near(&folder.path().join("none")));
    }
}
