//! `backlot dev`: a component that is run anew whenever it changes.

use std::{
    cell::Cell,
    future::pending,
    io::{self, BufRead as _, BufReader},
    path::{Path, PathBuf},
    pin::Pin,
    process::{Child, Command, Stdio},
    rc::Rc,
    sync::Arc,
    time::Duration,
};

use anyhow::Context as _;
use backlot_registry::{Generation, Kind, Mode, StopBounds};
use backlot_wasm::{Component, Limits, load_checked, path_of_kind};
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};
use serde::Deserialize;
use tempfile::TempDir;
use tokio::{
    sync::Notify,
    task::spawn_blocking,
    time::{Instant, timeout},
};

use crate::{
    cli::{Common, Dev},
    commands::{
        follow::{Follow, Signals},
        start::{Refused, Wanted},
        warn,
    },
    console::Console,
    exit::Exit,
    host::Host,
    render,
};

/// How many instances the host has room for: one runs, and one that is being replaced.
const INSTANCES: u32 = 16;
/// How long nothing has to change for a change to be over: what saves several files
/// saves them within that.
const QUIET: Duration = Duration::from_millis(100);
/// How long changes may go on before what there is by then is taken.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long a task that was asked to stop is waited for beyond its grace.
const MARGIN: Duration = Duration::from_secs(2);

pub(crate) async fn dev(args: Dev, common: &Common, console: &Console) -> anyhow::Result<Exit> {
    let json = args.with.json;
    let mut signals = Signals::listen()?;
    let opened = tokio::select! {
        opened = Session::open(args, common, console) => opened,
        // Its input may never come.
        _ = signals.next() => return Ok(Exit::Completed),
    };
    let session = match opened {
        Ok(session) => session,
        Err(refused) => {
            tokio::select! {
                () = refused.tell(json, console) => {}
                _ = signals.next() => {}
            }
            return Ok(refused.exit);
        }
    };
    let ended = session.keep_up(&mut signals).await;
    tokio::select! {
        () = session.host.shutdown() => {}
        _ = signals.next() => {}
    }
    ended
}

/// A component under development, and the host that it runs on.
struct Session {
    host: Host,
    /// What the host takes for its plugin folder: the builds that could be run.
    folder: TempDir,
    source: Source,
    wanted: Wanted,
    changes: Changes,
    console: Console,
    json: bool,
    quiet: bool,
}

/// Where builds come from.
enum Source {
    /// A file that somebody else builds.
    File(PathBuf),
    /// A crate that is built here.
    Crate { manifest: PathBuf, release: bool, bin: Option<String> },
}

/// A task that is shown.
struct Shown {
    generation: Generation,
    task: Rc<Follow>,
    telling: Later<'static, anyhow::Result<Exit>>,
}

/// Something that is under way on this thread.
type Later<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

impl Session {
    async fn open(mut args: Dev, common: &Common, console: &Console) -> Result<Self, Refused> {
        let source = source(&args)?;
        let config = common.config_with_policy(INSTANCES);
        let mut config = config.map_err(|error| Refused::usage(error.to_string()))?;
        let folder = TempDir::new().map_err(|error| Refused::by(&error))?;
        config.plugins = folder.path().to_owned();
        let mut wanted = Wanted::of(&mut args.with, &config.policy)?;
        let host = Host::start(config).map_err(|error| Refused::by(&error))?;
        warn(console, &host, common).await;
        // Which kind it is, and so what its policy says, is known once it is built.
        let limit = Limits::default().input;
        wanted.read(&mut args.with, limit).await?;
        let changes = Changes::of(&source).map_err(|error| {
            Refused::usage(format!("cannot watch {}: {error}", args.target.display()))
        })?;
        let (json, quiet) = (args.with.json, common.quiet);
        Ok(Self { host, folder, source, wanted, changes, console: console.clone(), json, quiet })
    }

    /// Builds and runs what there is, again and again, until a signal comes. What runs
    /// goes on while the next version is built.
    async fn keep_up(&self, signals: &mut Signals) -> anyhow::Result<Exit> {
        let _surface = self.host.registry().attach_surface("backlot dev");
        let mut shown: Option<Shown> = None;
        let mut building: Option<Later<'_, Result<Component, String>>> =
            Some(Box::pin(self.build()));
        loop {
            tokio::select! {
                built = under_way(building.as_mut()) => {
                    building = None;
                    match built {
                        // What was changed makes no difference to what runs.
                        Ok(component) if runs(shown.as_ref(), &component) => {}
                        Ok(component) => {
                            if let Some(before) = shown.take() {
                                tokio::select! {
                                    () = self.stop(before, "there is a new version") => {}
                                    _ = signals.next() => return Ok(Exit::Completed),
                                }
                            }
                            shown = self.start(&component).await;
                        }
                        Err(why) => self.complain(&why).await,
                    }
                }
                told = under_way(shown.as_mut().map(|shown| &mut shown.telling)) => {
                    shown = None;
                    told?;
                }
                () = self.changes.next() => building = Some(Box::pin(self.build())),
                _ = signals.next() => return self.leave(shown, signals).await,
            }
            if shown.is_none() && building.is_none() {
                self.say("waiting for changes").await;
            }
        }
    }

    /// Builds the component, puts it where the host finds it, and loads it.
    async fn build(&self) -> Result<Component, String> {
        let file = match &self.source {
            Source::File(file) => file.clone(),
            Source::Crate { manifest, release, bin } => {
                self.say("building").await;
                cargo(manifest, *release, bin.as_deref()).await.map_err(|it| format!("{it:#}"))?
            }
        };
        let checked =
            load_checked(self.host.engine(), &file, None).await.map_err(|it| render::chain(&it))?;
        let kind = checked.component.description().kind.clone();
        self.put(&kind, &checked.bytes, self.manifest(&file, checked.manifest)?)
            .map_err(|error| format!("cannot keep the build: {error}"))?;
        let component =
            self.host.plugins().load(&kind).await.map_err(|error| render::chain(&error))?;
        let generation = component.generation();
        let digest = generation.digest.get(7..19).unwrap_or(&generation.digest);
        self.say(&format!("{kind}, version {} ({digest})", generation.number)).await;
        Ok(component)
    }

    /// Returns the manifest of a build: the one beside it, or else the one of the crate.
    fn manifest(&self, file: &Path, beside: Option<String>) -> Result<Option<String>, String> {
        let Source::Crate { manifest, .. } = &self.source else { return Ok(beside) };
        let stem = file.file_stem().unwrap_or_default();
        let own = manifest.with_file_name(stem).with_extension("toml");
        match std::fs::read_to_string(&own) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(beside),
            Err(error) => Err(format!("cannot read {}: {error}", own.display())),
        }
    }

    fn put(&self, kind: &Kind, component: &[u8], manifest: Option<String>) -> io::Result<()> {
        let path = path_of_kind(self.folder.path(), kind);
        let beside = path.with_extension("toml");
        match manifest {
            Some(manifest) => std::fs::write(beside, manifest)?,
            None => match std::fs::remove_file(beside) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                removed => removed?,
            },
        }
        std::fs::write(path, component)
    }

    async fn start(&self, component: &Component) -> Option<Shown> {
        let about = component.description();
        let ask = self.wanted.ask.clone();
        let producer = self.host.catalog().producer(about.kind.clone(), ask);
        match self.wanted.start(&self.host, about, Arc::new(producer)).await {
            Ok(id) => {
                let registry = self.host.registry();
                let task = Follow::new(registry, &self.console, id, self.json, self.quiet);
                let task = Rc::new(task);
                let told = Rc::clone(&task);
                let telling = async move {
                    tokio::select! {
                        told = told.tell() => told,
                        never = told.progress() => match never {},
                    }
                };
                let generation = component.generation().clone();
                Some(Shown { generation, task, telling: Box::pin(telling) })
            }
            Err(refused) => {
                refused.tell(self.json, &self.console).await;
                None
            }
        }
    }

    /// Asks a task to stop and shows it to its end, which the stop ladder bounds.
    async fn stop(&self, shown: Shown, why: &str) {
        let Shown { task, mut telling, .. } = shown;
        task.stop(Mode::Ask, why).await;
        let grace = self.wanted.ask.grace.unwrap_or_else(|| StopBounds::default().grace);
        if timeout(grace + MARGIN, &mut telling).await.is_err() {
            task.stop(Mode::Force, why).await;
            // What it wrote last may have no reader.
            let _ = timeout(MARGIN, telling).await;
        }
    }

    /// Ends what runs: the first signal has asked for it, a second one forces it.
    async fn leave(&self, shown: Option<Shown>, signals: &mut Signals) -> anyhow::Result<Exit> {
        let Some(shown) = shown else { return Ok(Exit::Completed) };
        let task = Rc::clone(&shown.task);
        tokio::select! {
            () = self.stop(shown, "backlot dev is left") => {}
            name = signals.next() => { task.stop(Mode::Force, name).await; }
        }
        Ok(Exit::Completed)
    }

    async fn say(&self, what: &str) {
        if !self.quiet {
            self.console.err.say(&format!("dev: {}", render::one_line(what))).await;
        }
    }

    async fn complain(&self, why: &str) {
        for line in why.lines() {
            self.console.err.say(&render::complaint(line)).await;
        }
    }
}

/// Tells whether the task that is shown runs that version.
fn runs(shown: Option<&Shown>, component: &Component) -> bool {
    shown.is_some_and(|shown| shown.generation == *component.generation())
}

/// Says where builds come from.
fn source(args: &Dev) -> Result<Source, Refused> {
    let target = &args.target;
    let about = std::fs::metadata(target)
        .map_err(|error| Refused::usage(format!("cannot read {}: {error}", target.display())))?;
    if !about.is_dir() {
        if args.release || args.bin.is_some() {
            return Err(Refused::usage("--release and --bin are for crates, and this is a file"));
        }
        return Ok(Source::File(target.clone()));
    }
    let manifest = target.join("Cargo.toml");
    match manifest.is_file() {
        true => Ok(Source::Crate { manifest, release: args.release, bin: args.bin.clone() }),
        false => Err(Refused::usage(format!("there is no crate in {}", target.display()))),
    }
}

/// Builds a crate and returns the component that it is. What the build says goes to
/// stderr as it is said.
async fn cargo(manifest: &Path, release: bool, bin: Option<&str>) -> anyhow::Result<PathBuf> {
    let mut cargo = Command::new("cargo");
    cargo
        .args(["build", "--quiet", "--target", "wasm32-wasip2"])
        .arg("--message-format=json-render-diagnostics")
        .arg("--manifest-path")
        .arg(manifest)
        .args(release.then_some("--release"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    if let Some(bin) = bin {
        cargo.args(["--bin", bin]);
    }
    let mut building = Building(cargo.spawn().context("cannot start cargo")?);
    let stdout = building.0.stdout.take().context("cargo has no stdout")?;
    let manifest = std::fs::canonicalize(manifest)?;
    let read = spawn_blocking(move || {
        let mut built = Vec::new();
        for line in BufReader::new(stdout).lines() {
            if let Ok(artifact) = serde_json::from_str::<Artifact>(&line?)
                && artifact.manifest_path == manifest
            {
                built.extend(artifact.filenames.into_iter().filter(|it| is_component(it)));
            }
        }
        io::Result::Ok(built)
    });
    let mut built = read.await??;
    anyhow::ensure!(building.0.wait()?.success(), "the build has failed");
    match built.len() {
        0 => anyhow::bail!(
            "the crate builds no component; give it a `main`, or `crate-type = [\"cdylib\"]`; of a \
             workspace name the folder of one crate"
        ),
        1 => Ok(built.remove(0)),
        _ => {
            let names: Vec<_> = built.iter().filter_map(|it| it.file_stem()?.to_str()).collect();
            anyhow::bail!("the crate builds {}; name one with --bin", names.join(", "))
        }
    }
}

/// What cargo says of something that it has built, as far as it matters here.
#[derive(Deserialize)]
struct Artifact {
    manifest_path: PathBuf,
    filenames: Vec<PathBuf>,
}

/// A build that is ended when it is not waited for any more.
struct Building(Child);

impl Drop for Building {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn is_component(file: &Path) -> bool {
    file.extension().is_some_and(|ending| ending == "wasm")
}

/// Resolves with what is under way, if anything is.
async fn under_way<T>(later: Option<&mut Later<'_, T>>) -> T {
    match later {
        Some(later) => later.await,
        None => pending().await,
    }
}

/// Tells when the source of builds changes.
struct Changes {
    changed: Arc<Notify>,
    /// A change was heard of, and more may be on their way.
    heard: Cell<bool>,
    _watcher: RecommendedWatcher,
}

/// Tells whether a file is one that builds come from.
type Matters = Box<dyn Fn(&Path) -> bool + Send>;

impl Changes {
    fn of(source: &Source) -> notify::Result<Self> {
        let changed = Arc::new(Notify::new());
        let heard = Arc::clone(&changed);
        let (folder, mode, matters): (_, _, Matters) = match source {
            Source::File(file) => {
                let file = std::path::absolute(file)?;
                let folder = file.parent().unwrap_or(&file).to_owned();
                let beside = file.with_extension("toml");
                let is_it = move |path: &Path| path == file || path == beside;
                (folder, RecursiveMode::NonRecursive, Box::new(is_it))
            }
            Source::Crate { manifest, .. } => {
                let manifest = std::fs::canonicalize(manifest)?;
                let folder = manifest.parent().unwrap_or(&manifest).to_owned();
                let of = folder.clone();
                (
                    folder,
                    RecursiveMode::Recursive,
                    Box::new(move |path: &Path| is_source(&of, path)),
                )
            }
        };
        let mut watcher =
            notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
                let Ok(event) = event else { return heard.notify_one() };
                let changes = !matches!(event.kind, EventKind::Access(_));
                if changes && event.paths.iter().any(|path| matters(path)) {
                    heard.notify_one();
                }
            })?;
        watcher.watch(&folder, mode)?;
        Ok(Self { changed, heard: Cell::new(false), _watcher: watcher })
    }

    /// Waits for a change, and until nothing more changes. Dropping the future loses
    /// nothing.
    async fn next(&self) {
        if !self.heard.get() {
            self.changed.notified().await;
            self.heard.set(true);
        }
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end && timeout(QUIET, self.changed.notified()).await.is_ok() {}
        self.heard.set(false);
    }
}

/// Tells whether a file of a crate is one that it is built from.
fn is_source(folder: &Path, path: &Path) -> bool {
    let Ok(below) = path.strip_prefix(folder) else { return false };
    let mut parts = below.components().map(|part| part.as_os_str().as_encoded_bytes());
    // Cargo makes `target` under another name, with six letters more, and then renames it.
    let is_target = |part: &[u8]| part.starts_with(b"target") && matches!(part.len(), 6 | 12);
    let is_made = |part: &[u8]| part.starts_with(b".") || part.ends_with(b"~") || is_target(part);
    // The folder itself changes when something is made in it.
    !parts.any(is_made) && below != Path::new("Cargo.lock") && below != Path::new("")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_build_makes_is_no_source() {
        let source = |path: &str| is_source(Path::new("/c"), Path::new(path));
        for path in ["/c/src/lib.rs", "/c/Cargo.toml", "/c/targets/a.rs", "/c/wit/world.wit"] {
            assert!(source(path), "{path}");
        }
        for path in [
            "/c",
            "/c/target/x",
            "/c/targetq7Xb2k",
            "/c/Cargo.lock",
            "/c/.git/index",
            "/c/src/.lib.rs.swp",
            "/d/x",
        ] {
            assert!(!source(path), "{path}");
        }
    }
}
