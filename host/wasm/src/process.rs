//! Work that may cost any amount, done by a process that the kernel limits.
//!
//! A compiler cannot be interrupted, nor can what checks a JSON Schema, and a few
//! kilobytes keep either busy for ever. So a process of the same program does such
//! work, and is what ends when it costs too much. The program that does so is any
//! that calls [`compile_if_asked`] first thing.

use std::{
    env,
    io::{self, Read as _, Write as _},
    os::unix::process::{CommandExt as _, ExitStatusExt as _, parent_id},
    path::{Path, PathBuf},
    process::{self, Child, ChildStdin, Command, ExitStatus, Stdio},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::{self, Receiver, RecvTimeoutError, Sender},
    },
    thread,
    time::{Duration, Instant},
};

use rustix::process::{
    Pid, Resource, Rlimit, Signal, getrlimit, kill_process_group, nice,
    set_parent_process_death_signal, setrlimit,
};
use tokio::sync::oneshot;

use crate::{compile, limits::Bytes, schema, text, threads};

/// The first argument of a process that is asked to work.
const ASKED: &str = "--backlot-compile";
/// How much more time may pass than is billed, on a machine that is busy.
const BUSY: u32 = 4;
/// How much of what a process says is kept, in bytes.
const SAID: u64 = 4 << 10;
/// The variable that a program may need to find its libraries.
const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";
/// The variable that says how many threads a compiler uses.
const THREADS: &str = "RAYON_NUM_THREADS";
/// How often a process is looked at that has said all and not ended.
const LOOK: Duration = Duration::from_millis(5);
/// The exit code of a process that has found the work to be impossible.
const IMPOSSIBLE: i32 = 1;

/// Whether this program works when it is asked to.
static CAN_BE_ASKED: AtomicBool = AtomicBool::new(false);

/// Who compiles components, and checks what their schemas make costly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Compiler {
    /// This process, for components that are known: nothing bounds what a hostile
    /// one takes.
    Inside,
    /// A process of this program, which calls [`compile_if_asked`] first thing.
    Program(PathBuf),
}

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

/// Compiles, or checks a schema, if this process is one that was started to, and does
/// not return then. A program that calls it before it does anything else has that done
/// by processes of its own, where a hostile component harms nobody.
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
            IMPOSSIBLE
        }
    })
}

/// What a process does that is asked to work.
fn answer(args: &[String]) -> Result<(), String> {
    let [work, asker, cpu_secs, memory, args @ ..] = args else {
        return Err("it is asked for nothing".to_owned());
    };
    let number = |text: &str| text.parse::<u64>().map_err(|_| format!("no number: {text}"));
    confine(number(asker)?, number(cpu_secs)?, number(memory)?);
    let mut input = Vec::new();
    io::stdin().lock().read_to_end(&mut input).map_err(|error| error.to_string())?;
    let output = match work.as_str() {
        compile::WORK => compile::answer(args, &input)?,
        schema::WORK => schema::answer(args, &input)?,
        other => return Err(format!("it is asked for {other}")),
    };
    io::stdout().lock().write_all(&output).map_err(|error| error.to_string())
}

/// Takes from this process what it does not need. Limits that are lower already
/// stay as they are.
fn confine(asker: u64, cpu_secs: u64, memory: u64) {
    let limit = |what, soft: u64, hard: u64| {
        let limit = Rlimit { current: Some(soft), maximum: Some(hard) };
        if getrlimit(what).maximum.is_none_or(|maximum| maximum > hard) {
            let _ = setrlimit(what, limit);
        }
    };
    limit(Resource::Data, memory, memory);
    // The softer one tells what it is about.
    limit(Resource::Cpu, cpu_secs, cpu_secs + 1);
    limit(Resource::Core, 0, 0);
    // Tasks that run come first, and stay when there is no memory for all.
    let _ = nice(10);
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    // Nobody is left to take the answer once the thread that asked is gone.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    if u64::from(parent_id()) != asker {
        process::exit(IMPOSSIBLE);
    }
}

/// What a process is to do, and may take.
pub(crate) struct Job<'a> {
    /// The name of the work.
    pub(crate) work: &'a str,
    pub(crate) args: &'a [&'a str],
    /// What it reads, one part after the other.
    pub(crate) input: &'a [&'a [u8]],
    pub(crate) cpu_secs: u64,
    /// How many threads it is to use; as many as there are cores when `None`.
    pub(crate) threads: Option<usize>,
    /// In bytes.
    pub(crate) memory: u64,
    /// The longest answer that is taken, in bytes.
    pub(crate) answer: u64,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum JobError {
    /// The work is impossible, says the process.
    Impossible(String),
    /// It takes more than it may, of what is named.
    TooCostly(String),
    /// The process could not be run, or broke.
    Broken(String),
}

/// The wish to give up a job, from anywhere. Dropping it is to give up.
pub(crate) struct GiveUp(Sender<Event>);

impl Drop for GiveUp {
    fn drop(&mut self) {
        // Nobody listens once the job is done.
        let _ = self.0.send(Event::GivenUp);
    }
}

/// What the one who waits for a process waits for.
pub(crate) struct Events {
    received: Mutex<Receiver<Event>>,
    sender: Sender<Event>,
}

enum Event {
    OutputEnded,
    GivenUp,
}

/// Returns the way to give up a job, and what the job is run with.
pub(crate) fn given_up() -> (GiveUp, Events) {
    let (sender, receiver) = mpsc::channel();
    (GiveUp(sender.clone()), Events { received: Mutex::new(receiver), sender })
}

/// Does work that blocks on a thread that does nothing else meanwhile. It is the one that a
/// process is started by, so it has to stay, and it is none of those that guests run on.
pub(crate) async fn on_a_thread<T, E>(
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, E>
where
    T: Send + 'static,
    E: From<JobError> + Send + 'static,
{
    let (done, result) = oneshot::channel();
    let work = move || {
        // Whoever asked may be gone by now.
        let _ = done.send(work());
    };
    let given = threads::give(Box::new(work));
    given.map_err(|error| JobError::Broken(format!("there is no thread for it: {error}")))?;
    result.await.unwrap_or_else(|_| Err(JobError::Broken("it has panicked".to_owned()).into()))
}

impl Job<'_> {
    /// Has a process of a program do the work. Blocks until it is done, costs too
    /// much or is given up.
    pub(crate) fn run(&self, program: &Path, events: &Events) -> Result<Vec<u8>, JobError> {
        let broken = |error: io::Error| JobError::Broken(format!("{}: {error}", program.display()));
        let library_path = env::var_os(LIBRARY_PATH).map(|path| (LIBRARY_PATH, path));
        let threads = self.threads.map(|threads| (THREADS, threads.to_string()));
        let mut child = Command::new(program)
            // So that all that comes of it can be ended.
            .process_group(0)
            .arg(ASKED)
            .arg(self.work)
            .args([process::id().into(), self.cpu_secs, self.memory].map(|it: u64| it.to_string()))
            .args(self.args)
            .env_clear()
            .envs(library_path)
            .envs(threads)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(broken)?;
        let patience = Duration::from_secs(self.cpu_secs) * BUSY;
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(stdin), Some(stdout), Some(stderr)) = pipes else {
            return Err(broken(io::Error::other("it has no pipes")));
        };
        let child = Arc::new(Mutex::new(child));
        thread::scope(|scope| {
            // Where there are no threads to be had, the process must not stay.
            let spawn = |name: &str| thread::Builder::new().name(format!("backlot-{name}"));
            let guard = KillOnDrop(Arc::clone(&child));
            let input = self.input;
            let writer = spawn("input").spawn_scoped(scope, move || write(stdin, input));
            let said = spawn("said").spawn_scoped(scope, move || {
                let mut said = Vec::new();
                let _ = stderr.take(SAID).read_to_end(&mut said);
                text::line(&String::from_utf8_lossy(&said))
            });
            let watched = Arc::clone(&child);
            let watch =
                spawn("watch").spawn_scoped(scope, move || watch(&watched, events, patience));
            let (Ok(_), Ok(said), Ok(watch)) = (writer, said, watch) else {
                drop(guard);
                let _ = events.sender.send(Event::GivenUp);
                return Err(broken(io::Error::other("there are no threads for it")));
            };
            let mut answer = Vec::new();
            let read = stdout.take(self.answer + 1).read_to_end(&mut answer);
            let _ = events.sender.send(Event::OutputEnded);
            let end = watch.join().unwrap_or_else(|_| Err(io::Error::other("nobody has waited")));
            let said = said.join().unwrap_or_default();
            if answer.len() as u64 > self.answer {
                return Err(JobError::TooCostly(format!("{} of output", Bytes(self.answer))));
            }
            match end.map_err(broken)? {
                Some(status) if status.success() => read.map(|_| answer).map_err(broken),
                Some(status) => Err(self.why(status, said)),
                None => Err(JobError::TooCostly(format!("{} s", patience.as_secs()))),
            }
        })
    }

    /// Says why a process has failed.
    fn why(&self, status: ExitStatus, said: String) -> JobError {
        let signal = status.signal();
        let is = |one: Signal| signal == Some(one.as_raw());
        if is(Signal::XCPU) {
            return JobError::TooCostly(format!("{} s of CPU time", self.cpu_secs));
        }
        // What the kernel does to whoever has most when there is none left.
        if is(Signal::KILL) {
            return JobError::TooCostly("the memory or time that there is".to_owned());
        }
        // What Rust does when it is given no memory.
        if is(Signal::ABORT) && said.contains("memory allocation") {
            return JobError::TooCostly(format!("{} of memory", Bytes(self.memory)));
        }
        match status.code() {
            // What the kernel says where it gives none.
            Some(IMPOSSIBLE) if said.contains("Cannot allocate memory") => {
                JobError::TooCostly(format!("{} of memory", Bytes(self.memory)))
            }
            Some(IMPOSSIBLE) => JobError::Impossible(said),
            _ if said.is_empty() => JobError::Broken(format!("it ended with {status}")),
            _ => JobError::Broken(format!("it ended with {status}: {said}")),
        }
    }
}

fn write(mut stdin: ChildStdin, input: &[&[u8]]) {
    // It may end before it has read all of it.
    let _ = input.iter().try_for_each(|part| stdin.write_all(part));
}

/// Ends a process that nobody waits for any more.
struct KillOnDrop(Arc<Mutex<Child>>);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let mut child = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(child.try_wait(), Ok(None)) {
            end(&mut child);
        }
    }
}

/// Ends a process and what it has started.
fn end(child: &mut Child) {
    if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let _ = kill_process_group(group, Signal::KILL);
    }
    let _ = child.wait();
}

/// Waits for a process, and ends it if it does not end in time or is not wanted any
/// more. Tells how it ended by itself.
fn watch(
    child: &Mutex<Child>,
    events: &Events,
    patience: Duration,
) -> io::Result<Option<ExitStatus>> {
    let received = events.received.lock().unwrap_or_else(PoisonError::into_inner);
    let child = || child.lock().unwrap_or_else(PoisonError::into_inner);
    let deadline = Instant::now() + patience;
    let mut next = deadline;
    loop {
        let left = next.saturating_duration_since(Instant::now());
        match received.recv_timeout(left) {
            // It mostly ends at once then.
            Ok(Event::OutputEnded) => next = Instant::now(),
            Err(RecvTimeoutError::Timeout) if Instant::now() < deadline => {
                if let Some(status) = child().try_wait()? {
                    return Ok(Some(status));
                }
                next = deadline.min(Instant::now() + LOOK);
            }
            Ok(Event::GivenUp) | Err(_) => {
                end(&mut child());
                return Ok(None);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job<'a>(input: &'a [&'a [u8]], cpu_secs: u64) -> Job<'a> {
        Job {
            work: "compile",
            args: &[],
            input,
            cpu_secs,
            threads: None,
            memory: 1 << 30,
            answer: 1 << 20,
        }
    }

    fn run(program: &Path, cpu_secs: u64) -> JobError {
        let (_keep, events) = given_up();
        job(&[&[0; 1 << 20]], cpu_secs).run(program, &events).unwrap_err()
    }

    fn script(text: &str) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("program");
        std::fs::write(&program, format!("#!/bin/sh\n{text}\n")).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&program, mode).unwrap();
        (folder, program)
    }

    #[test]
    fn what_a_process_ended_by_is_told() {
        let ended = |raw, said: &str| job(&[], 10).why(ExitStatus::from_raw(raw), said.to_owned());
        assert_eq!(ended(1 << 8, "bad magic"), JobError::Impossible("bad magic".to_owned()));
        assert_eq!(ended(24, ""), JobError::TooCostly("10 s of CPU time".to_owned()));
        let said = "memory allocation of 8 bytes failed";
        assert_eq!(ended(6, said), JobError::TooCostly("1 GiB of memory".to_owned()));
        assert!(matches!(ended(11, ""), JobError::Broken(why) if why.contains("signal: 11")));
        assert!(matches!(ended(6, "a bug"), JobError::Broken(why) if why.contains("a bug")));
    }

    #[test]
    fn a_program_that_is_not_there_is_told() {
        let error = run(Path::new("/no/such/program"), 1);
        assert!(
            matches!(&error, JobError::Broken(why) if why.contains("/no/such/program: No such")),
            "{error:?}"
        );
        assert_eq!(run(Path::new("/bin/false"), 1), JobError::Impossible(String::new()));
    }

    #[test]
    fn a_process_that_does_not_end_is_ended() {
        let (_folder, program) = script("exec sleep 1000");
        assert_eq!(run(&program, 0), JobError::TooCostly("0 s".to_owned()));
    }

    #[test]
    fn a_process_that_is_given_up_is_ended() {
        let (_folder, program) = script("exec sleep 1000");
        let (give_up, events) = given_up();
        let waiting = thread::spawn(move || job(&[], 1_000).run(&program, &events));
        drop(give_up);
        assert!(waiting.join().unwrap().is_err());
    }

    #[test]
    fn a_process_that_says_all_and_stays_is_ended_with_what_it_has_started() {
        let (folder, program) = script("sleep 1000 & exec >&- 2>&-; wait");
        assert_eq!(run(&program, 0), JobError::TooCostly("0 s".to_owned()));
        drop(folder);
        // A child of its own holds its output open.
        let (_folder, program) = script("sleep 1000 & exit 3");
        assert!(matches!(run(&program, 0), JobError::TooCostly(_) | JobError::Broken(_)));
    }

    #[test]
    fn an_answer_that_is_too_long_is_not_taken() {
        let (_folder, program) = script("exec cat /dev/zero");
        assert_eq!(run(&program, 100), JobError::TooCostly("1 MiB of output".to_owned()));
    }
}
