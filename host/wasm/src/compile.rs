//! Compiling, out of harm's way.
//!
//! A component of a few kilobytes can keep a compiler busy for minutes and make it
//! take gigabytes, and a compiler cannot be interrupted. So a process of its own
//! compiles, under limits of the kernel's, and is what ends when they are hit. The
//! program that does so is any that calls [`compile_if_asked`] first thing.

use std::{
    env,
    io::{self, Read as _, Write as _},
    os::unix::process::ExitStatusExt as _,
    path::{Path, PathBuf},
    process::{self, Child, Command, ExitStatus, Stdio},
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::Duration,
};

use rustix::process::{Resource, Rlimit, Signal, nice, setrlimit};

use crate::{
    limits::Bytes,
    profile::{Profile, settings},
    text, trap,
};

/// The first argument of a process that is asked to compile.
const ASKED: &str = "--backlot-compile";
/// What a compiler may take, in bytes. An interpreter of 20 MB takes 400 MB.
const MEMORY: u64 = 1 << 30;
/// CPU time that every component has, in seconds, and that each of its megabytes
/// adds. That is about five times what an interpreter needs, and a hundred times
/// what most do.
const CPU_SECS: u64 = 10;
const CPU_SECS_PER_MIB: u64 = 4;
/// How much more time may pass than is billed, on a machine that is busy.
const BUSY: u32 = 4;
/// The largest compiled code that is taken, in bytes: a compiler may not take more.
const CODE: u64 = MEMORY;
/// How much of what a compiler says is kept, in bytes.
const SAID: u64 = 4 << 10;

/// Who compiles components.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Compiler {
    /// This process, for components that are known: nothing bounds what a hostile
    /// one takes.
    Inside,
    /// A process of this program, which calls [`compile_if_asked`] first thing.
    Program(PathBuf),
}

/// Why there is no compiled code.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    /// It is not a component, or one that uses what this host does not have.
    #[error("the component does not compile: {0}")]
    Invalid(String),
    /// It takes more to compile than a component may.
    #[error("the component takes too much to compile: more than {0}")]
    TooCostly(String),
    /// The compiler could not be run.
    #[error("the compiler could not be run: {0}")]
    Compiler(String),
}

/// Whether this program compiles when it is asked to.
static CAN_BE_ASKED: AtomicBool = AtomicBool::new(false);

impl Default for Compiler {
    /// Returns this program, if it has called [`compile_if_asked`], or else this
    /// process.
    fn default() -> Self {
        match CAN_BE_ASKED.load(Ordering::Relaxed) {
            // Also when another program has taken its name by now.
            true => Self::Program("/proc/self/exe".into()),
            false => Self::Inside,
        }
    }
}

/// Compiles if this process is one that was started to, and does not return then.
/// A program that calls it before it does anything else has its components compiled
/// in processes of its own, where a hostile one harms nobody.
pub fn compile_if_asked() {
    let mut args = env::args_os().skip(1);
    if args.next().is_none_or(|first| first != ASKED) {
        CAN_BE_ASKED.store(true, Ordering::Relaxed);
        return;
    }
    let args: Vec<String> = args.map(|arg| arg.to_string_lossy().into_owned()).collect();
    process::exit(match answer(&args) {
        Ok(()) => 0,
        Err(why) => {
            let _ = write!(io::stderr(), "{why}");
            1
        }
    })
}

/// What a process does that is asked to compile.
fn answer(args: &[String]) -> Result<(), String> {
    let [profile, cpu_secs] = args else { return Err("it is asked for nothing".to_owned()) };
    let profile: Profile = profile.parse().map_err(|_| format!("no profile `{profile}`"))?;
    let cpu_secs: u64 = cpu_secs.parse().map_err(|_| format!("no time `{cpu_secs}`"))?;
    let plain = |error: io::Error| error.to_string();
    let limit = |what, soft: u64, hard: u64| {
        let limit = Rlimit { current: Some(soft), maximum: Some(hard) };
        setrlimit(what, limit).map_err(|error| error.to_string())
    };
    // Lower ones that are there already stay.
    let _ = limit(Resource::Data, MEMORY, MEMORY);
    let _ = limit(Resource::Cpu, cpu_secs, cpu_secs + 1);
    let _ = limit(Resource::Core, 0, 0);
    // Tasks that run come first.
    let _ = nice(10);
    let mut component = Vec::new();
    io::stdin().lock().read_to_end(&mut component).map_err(plain)?;
    // A compiler finds an invalid function when it comes to it, and goes on with all
    // others. What is valid with every feature may yet not be for this engine.
    wasmparser::Validator::new_with_features(wasmparser::WasmFeatures::all())
        .validate_all(&component)
        .map_err(|error| error.to_string())?;
    let code = wasmtime::Engine::new(&settings(profile, None))
        .and_then(|engine| engine.precompile_component(&component))
        .map_err(|error| trap::line(&error))?;
    io::stdout().lock().write_all(&code).map_err(plain)
}

impl Compiler {
    /// Compiles a component for an engine of that profile. Blocks.
    pub(crate) fn compile(
        &self,
        engine: &wasmtime::Engine,
        profile: Profile,
        component: &[u8],
    ) -> Result<Vec<u8>, CompileError> {
        match self {
            Self::Inside => engine
                .precompile_component(component)
                .map_err(|error| CompileError::Invalid(trap::line(&error))),
            Self::Program(path) => {
                let mib = component.len() as u64 >> 20;
                let cpu_secs = CPU_SECS + CPU_SECS_PER_MIB * mib;
                run(path, profile, component, cpu_secs)
            }
        }
    }
}

fn run(
    program: &Path,
    profile: Profile,
    component: &[u8],
    cpu_secs: u64,
) -> Result<Vec<u8>, CompileError> {
    let broken =
        |error: io::Error| CompileError::Compiler(format!("{}: {error}", program.display()));
    let mut child = Command::new(program)
        .args([ASKED, profile.name(), &cpu_secs.to_string()])
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(broken)?;
    let patience = Duration::from_secs(cpu_secs) * BUSY;
    let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (Some(mut stdin), Some(stdout), Some(stderr)) = pipes else {
        return Err(broken(io::Error::other("it has no pipes")));
    };
    thread::scope(|scope| {
        // It may end before it has read all of it.
        scope.spawn(move || stdin.write_all(component));
        let said = scope.spawn(move || {
            let mut said = Vec::new();
            let _ = stderr.take(SAID).read_to_end(&mut said);
            text::line(&String::from_utf8_lossy(&said))
        });
        let (done, waiting) = mpsc::channel();
        let watched = scope.spawn(move || watch(child, &waiting, patience));
        let mut code = Vec::new();
        let read = stdout.take(CODE).read_to_end(&mut code);
        drop(done);
        let end = watched.join().unwrap_or_else(|_| Err(io::Error::other("nobody has waited")));
        let said = said.join().unwrap_or_default();
        match end.map_err(broken)? {
            Some(status) if status.success() => read.map(|_| code).map_err(broken),
            Some(status) => Err(why(status, cpu_secs, said)),
            None => Err(CompileError::TooCostly(format!("{} s", patience.as_secs()))),
        }
    })
}

/// Waits for a process whose output has ended, and ends it if that does not come
/// to pass in time. Tells how it ended by itself.
fn watch(
    mut child: Child,
    output_ended: &mpsc::Receiver<()>,
    patience: Duration,
) -> io::Result<Option<ExitStatus>> {
    match output_ended.recv_timeout(patience) {
        Err(RecvTimeoutError::Timeout) => {
            child.kill()?;
            child.wait()?;
            Ok(None)
        }
        Ok(()) | Err(RecvTimeoutError::Disconnected) => child.wait().map(Some),
    }
}

/// Says why a compiler has failed.
fn why(status: ExitStatus, cpu_secs: u64, said: String) -> CompileError {
    let signal = status.signal();
    let is = |one: Signal| signal == Some(one.as_raw());
    if is(Signal::XCPU) {
        return CompileError::TooCostly(format!("{cpu_secs} s of CPU time"));
    }
    // What Rust does when it is given no memory.
    if is(Signal::ABORT) && said.contains("memory allocation") {
        return CompileError::TooCostly(format!("{} of memory", Bytes(MEMORY)));
    }
    match status.code() {
        Some(1) => CompileError::Invalid(said),
        _ if said.is_empty() => CompileError::Compiler(format!("it ended with {status}")),
        _ => CompileError::Compiler(format!("it ended with {status}: {said}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(raw: i32, said: &str) -> String {
        why(ExitStatus::from_raw(raw), 10, said.to_owned()).to_string()
    }

    #[test]
    fn what_a_compiler_ended_by_is_told() {
        assert_eq!(ended(1 << 8, "bad magic"), "the component does not compile: bad magic");
        let costly = "the component takes too much to compile: more than ";
        assert_eq!(ended(24, ""), format!("{costly}10 s of CPU time"));
        let said = "memory allocation of 8 bytes failed";
        assert_eq!(ended(6, said), format!("{costly}1 GiB of memory"));
        assert!(ended(11, "").starts_with("the compiler could not be run: it ended with signal"));
        assert!(ended(6, "a bug").contains("a bug"));
    }

    #[test]
    fn a_program_that_is_no_compiler_is_told_and_not_waited_for() {
        let component = vec![0; 1 << 20];
        for (program, part) in [
            ("/no/such/program", "/no/such/program: No such file"),
            ("/bin/false", "does not compile"),
        ] {
            let error = run(Path::new(program), Profile::Fast, &component, 1).unwrap_err();
            assert!(error.to_string().contains(part), "{error}");
        }
    }

    #[test]
    fn a_compiler_that_does_not_end_is_ended() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("sleeps");
        std::fs::write(&program, "#!/bin/sh\nexec sleep 1000\n").unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&program, mode).unwrap();
        let error = run(&program, Profile::Fast, &[0; 1 << 20], 0).unwrap_err();
        assert_eq!(error, CompileError::TooCostly("0 s".to_owned()));
    }
}
