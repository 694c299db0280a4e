//! What this machine gives, without judging it.

use std::{
    fs, io,
    io::{Read as _, Write as _},
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{ChildStdout, Command, Stdio},
    time::Duration,
};

use backlot_jobs::DataFolder;
use backlot_wasm::{Cache, Capacity, Machine, Profile, address_space, kind_files, kind_of};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process_group};
use tokio::{task::spawn_blocking, time::timeout};

use crate::{
    commands::run,
    config::Config,
    host::{CACHE_BYTES, Host, raise_open_files},
    render,
};

/// How long rustc may take to tell where it is: it does so at once, unless what
/// answers to its name is something else.
const RUSTC: Duration = Duration::from_secs(2);
/// How much of rustc's answer is read, in bytes: the longest path.
const SYSROOT_BYTES: u64 = 4 << 10;

/// What there is to judge.
#[derive(Debug)]
pub(super) struct Facts {
    /// The kernel's limit on memory mappings; `None` where it cannot be read.
    pub(super) mappings: Option<u64>,
    /// What the host would be made for.
    pub(super) profile: Profile,
    /// How many tasks can live at a time with the profile `fast`.
    pub(super) fast: Capacity,
    /// How many tasks can live at a time with the profile `dense`.
    pub(super) dense: Capacity,
    /// As this process was started; a host raises what it may.
    pub(super) open_files: Rlimit,
    /// The address space of this process, in bytes.
    pub(super) address_space: Rlimit,
    pub(super) memory: Memory,
    /// The spill folder, and how much can still be written to it, in bytes.
    pub(super) spill: Folder<u64>,
    /// The folder for compiled code, and how much can still be written to it, in
    /// bytes; `None` where there is none.
    pub(super) cache: Option<Folder<u64, String>>,
    /// The data folder, and how much can still be written to it, in bytes; `None` where
    /// there is no home for one.
    pub(super) data: Option<Folder<u64, String>>,
    /// The plugin folder, and how many kinds it has files for.
    pub(super) plugins: Folder<usize>,
    /// The kernel's limits on watching files; `None` where they cannot be read.
    pub(super) inotify: Option<Inotify>,
    pub(super) toolchain: Toolchain,
    /// An engine with room for what `backlot run` starts.
    pub(super) small: Engine,
    /// An engine of the size that hosts have by default.
    pub(super) large: Engine,
}

/// Memory, in bytes.
#[derive(Debug)]
pub(super) struct Memory {
    pub(super) machine: u64,
    /// What this process may use of it by its control group.
    pub(super) group: Option<u64>,
    /// What guests may take together.
    pub(super) guests: u64,
}

/// A folder and what was found there.
#[derive(Debug)]
pub(super) struct Folder<T, E = io::Error> {
    pub(super) path: PathBuf,
    pub(super) found: Result<T, E>,
}

#[derive(Debug)]
pub(super) struct Inotify {
    pub(super) watches: u64,
    pub(super) instances: u64,
}

/// What plugin authors build with.
#[derive(Debug)]
pub(super) enum Toolchain {
    /// There is no rustc on the path.
    Missing,
    /// rustc did not tell where it is.
    Silent,
    /// rustc has no target for components.
    NoTarget {
        sysroot: PathBuf,
    },
    Ready {
        sysroot: PathBuf,
    },
}

/// What became of starting an engine.
#[derive(Debug)]
pub(super) struct Engine {
    pub(super) instances: u32,
    /// Why it could not be started.
    pub(super) started: Result<(), String>,
}

impl Facts {
    /// Looks at the machine as a host of that configuration would find it.
    pub(super) async fn gather(config: &Config, data: Option<PathBuf>) -> Self {
        let open_files = getrlimit(Resource::Nofile);
        raise_open_files();
        let machine = Machine::look();
        let guests = config.guest_memory.unwrap_or_else(|| machine.guest_memory());
        let [fast, dense] = Profile::ALL.map(|it| Capacity::of(it, &machine, guests));
        let large = if config.profile == Profile::Fast { &fast } else { &dense }.tasks;
        // First, as a host sees to it that a write past the file-size limit is an
        // error of that write.
        let small = Engine::start(config.clone(), run::INSTANCES);
        Self {
            profile: config.profile,
            mappings: machine.mappings,
            fast,
            dense,
            open_files,
            address_space: getrlimit(Resource::As),
            memory: Memory { machine: machine.installed, group: machine.group, guests },
            spill: Folder { path: config.spill.clone(), found: free(&config.spill) },
            cache: config.cache.clone().map(|path| Folder { found: cache(&path), path }),
            data: data.map(|path| Folder { found: data_folder(&path), path }),
            plugins: Folder { path: config.plugins.clone(), found: count(&config.plugins) },
            inotify: inotify(),
            toolchain: toolchain().await,
            small,
            large: Engine::start(config.clone(), large),
        }
    }
}

impl Engine {
    fn start(config: Config, instances: u32) -> Self {
        if getrlimit(Resource::As)
            .current
            .is_some_and(|limit| limit < address_space(config.profile, instances))
        {
            // Trying it with no room left can end the process in the middle.
            let started = Err("not tried: the address space is limited".to_owned());
            return Self { instances, started };
        }
        let config = Config { instances: Some(instances), ..config };
        let started = Host::start(config).map_err(|error| render::chain(&error));
        let compiles =
            |host: Host| host.engine().try_compiler().map_err(|error| render::chain(&error));
        Self { instances, started: started.and_then(compiles) }
    }
}

fn number(path: impl AsRef<Path>) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn inotify() -> Option<Inotify> {
    Some(Inotify {
        watches: number("/proc/sys/fs/inotify/max_user_watches")?,
        instances: number("/proc/sys/fs/inotify/max_user_instances")?,
    })
}

/// Returns how much can be written to the folder for compiled code, if it is one
/// that is trusted.
fn cache(folder: &Path) -> Result<u64, String> {
    Cache::open(folder, CACHE_BYTES).map_err(|error| render::chain(&error))?;
    free(folder).map_err(|error| format!("{} cannot be written to: {error}", folder.display()))
}

/// Returns how much can be written to the data folder, which is made if need be.
fn data_folder(folder: &Path) -> Result<u64, String> {
    DataFolder::open(folder).map_err(|error| render::chain(&error))?;
    free(folder).map_err(|error| format!("{} cannot be written to: {error}", folder.display()))
}

/// Returns how much can be written to a folder, once something was.
fn free(folder: &Path) -> io::Result<u64> {
    tempfile::tempfile_in(folder)?.write_all(b"x")?;
    let space = rustix::fs::statvfs(folder)?;
    Ok(space.f_bavail.saturating_mul(space.f_frsize))
}

fn count(folder: &Path) -> io::Result<usize> {
    Ok(kind_files(folder)?.iter().filter(|file| kind_of(file).is_ok()).count())
}

/// Asks rustc where it is, and looks there for the target of components.
async fn toolchain() -> Toolchain {
    let child = Command::new("rustc")
        .args(["--print", "sysroot"])
        // It is asked, and not to bring anything.
        .env("RUSTUP_AUTO_INSTALL", "0")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        // So that all of it can be ended.
        .process_group(0)
        .spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Toolchain::Missing,
        Err(_) => return Toolchain::Silent,
    };
    let answer = async {
        let stdout = child.stdout.take()?;
        // A thread that is not waited for: the process ends with or without it.
        timeout(RUSTC, spawn_blocking(|| sysroot(stdout))).await.ok()?.ok()?
    };
    let sysroot = answer.await;
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let _ = kill_process_group(group, Signal::KILL);
    }
    let _ = child.wait();
    match sysroot {
        Some(sysroot) if sysroot.join("lib/rustlib/wasm32-wasip2").is_dir() => {
            Toolchain::Ready { sysroot }
        }
        Some(sysroot) => Toolchain::NoTarget { sysroot },
        None => Toolchain::Silent,
    }
}

fn sysroot(stdout: ChildStdout) -> Option<PathBuf> {
    let mut answer = String::new();
    stdout.take(SYSROOT_BYTES).read_to_string(&mut answer).ok()?;
    let sysroot = answer.trim_end();
    let is_one_path = Path::new(sysroot).is_absolute() && !sysroot.contains('\n');
    is_one_path.then(|| PathBuf::from(sysroot))
}
