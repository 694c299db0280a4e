//! The real process, as a person or a script meets it.

use std::{
    ffi::OsStr,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    os::fd::OwnedFd,
    process::{Child, ChildStderr, ChildStdout, Command, Stdio},
    sync::mpsc,
    time::{Duration, Instant},
};

use tempfile::TempDir;

use crate::files;

/// What the kernel counts computing in, in milliseconds: it is told the same of every
/// machine.
const TICK_MS: u64 = 10;

/// A `backlot` process that has not ended yet.
pub struct Process {
    child: Ours,
    stdout: BufReader<ChildStdout>,
    stderr: BufReader<ChildStderr>,
    /// Where its jobs are, unless it was told otherwise; gone with it.
    data: TempDir,
}

/// What became of a process.
#[derive(Debug)]
pub struct Ended {
    /// Its exit code; `None` when a signal ended it.
    pub code: Option<i32>,
    /// What was left of its stdout.
    pub stdout: String,
    /// What was left of its stderr.
    pub stderr: String,
    /// How long the end took from when it was waited for.
    pub took: Duration,
}

impl Process {
    /// Starts `backlot` with these arguments, nothing on stdin.
    ///
    /// # Panics
    ///
    /// When it cannot be started.
    pub fn start<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> Self {
        Self::start_with(args, |_| {})
    }

    /// Starts `backlot` with what `change` makes of the command.
    ///
    /// # Panics
    ///
    /// When it cannot be started.
    pub fn start_with<A: AsRef<OsStr>>(
        args: impl IntoIterator<Item = A>,
        change: impl FnOnce(&mut Command),
    ) -> Self {
        let mut command = Command::new(files::backlot());
        command.args(args);
        Self::spawn(command, change)
    }

    /// Starts a shell whose script runs `backlot` with these arguments as `"$@"`.
    ///
    /// # Panics
    ///
    /// When it cannot be started.
    pub fn shell<A: AsRef<OsStr>>(script: &str, args: impl IntoIterator<Item = A>) -> Self {
        Self::shell_with(script, args, |_| {})
    }

    /// Starts a shell as by [`Process::shell`], with mounts that only it sees: then
    /// `UNSHARED` is set. Where this user may not have any, it is not.
    ///
    /// # Panics
    ///
    /// When it cannot be started.
    pub fn unshared<A: AsRef<OsStr>>(
        script: &str,
        args: impl IntoIterator<Item = A>,
        change: impl FnOnce(&mut Command),
    ) -> Self {
        const UNSHARE: &str = r#"
            alone() { unshare --mount --map-root-user "$@"; }
            if alone true 2>/dev/null; then UNSHARED=yes alone "$@"; else "$@"; fi"#;
        let mut command = Command::new("sh");
        command.args(["-c", UNSHARE, "sh", "sh", "-c", script, "sh"]);
        command.arg(files::backlot()).args(args);
        Self::spawn(command, |command| {
            command.env_remove("UNSHARED");
            change(command);
        })
    }

    fn spawn(mut command: Command, change: impl FnOnce(&mut Command)) -> Self {
        let data = TempDir::new().expect("a folder can be made");
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .env_remove("BACKLOT_PLUGINS")
            .env_remove("BACKLOT_POLICY")
            // Where the person whose tests these are has no policy.
            .env("XDG_CONFIG_HOME", "/nonexistent")
            .env("BACKLOT_CACHE", files::cache())
            .env("BACKLOT_DATA", data.path())
            .env_remove("BACKLOT_LISTEN")
            .env_remove("BACKLOT_LOG");
        change(&mut command);
        let mut child = command.spawn().expect("backlot starts");
        let stdout = BufReader::new(child.stdout.take().expect("stdout is a pipe"));
        let stderr = BufReader::new(child.stderr.take().expect("stderr is a pipe"));
        Self { child: Ours(child), stdout, stderr, data }
    }

    /// Runs `backlot` with these arguments to its end.
    pub fn run<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> Ended {
        Self::start(args).wait()
    }

    /// Runs `backlot` with these arguments and this on stdin.
    ///
    /// # Panics
    ///
    /// When stdin cannot be written.
    pub fn run_with_stdin<A: AsRef<OsStr>>(
        args: impl IntoIterator<Item = A>,
        stdin: &[u8],
    ) -> Ended {
        let mut process = Self::start_with(args, |command| {
            command.stdin(Stdio::piped());
        });
        let mut pipe = process.child.0.stdin.take().expect("stdin is a pipe");
        pipe.write_all(stdin).expect("backlot reads its stdin");
        drop(pipe);
        process.wait()
    }

    /// Starts a shell as by [`Process::shell`], with what `change` makes of the command.
    ///
    /// # Panics
    ///
    /// When it cannot be started.
    pub fn shell_with<A: AsRef<OsStr>>(
        script: &str,
        args: impl IntoIterator<Item = A>,
        change: impl FnOnce(&mut Command),
    ) -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh"]).arg(files::backlot()).args(args);
        Self::spawn(command, change)
    }

    /// Writes a line to its stdin, which has to be a pipe.
    ///
    /// # Panics
    ///
    /// When it reads no more.
    pub fn say(&mut self, line: &str) {
        let pipe = self.child.0.stdin.as_mut().expect("stdin is a pipe");
        pipe.write_all(format!("{line}\n").as_bytes()).expect("backlot reads its stdin");
    }

    /// Closes its stdin.
    pub fn close_stdin(&mut self) {
        drop(self.child.0.stdin.take());
    }

    /// Returns its process id.
    pub fn id(&self) -> u32 {
        self.child.0.id()
    }

    /// Returns how much of its memory is resident, in bytes.
    ///
    /// # Panics
    ///
    /// When it is gone.
    pub fn resident(&self) -> u64 {
        crate::memory::resident(self.id())
    }

    /// Returns how long its threads have computed so far.
    ///
    /// # Panics
    ///
    /// When it is gone.
    pub fn computed(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.id()));
        let stat = stat.expect("the process is there");
        // Its name, in brackets, may have spaces.
        let (_, values) = stat.rsplit_once(") ").expect("it has a name");
        let ticks = values.split(' ').skip(11).take(2).map(|it| it.parse::<u64>().unwrap_or(0));
        Duration::from_millis(ticks.sum::<u64>() * TICK_MS)
    }

    /// Waits for the next line of stdout.
    ///
    /// # Panics
    ///
    /// When there is none.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("stdout is text");
        assert!(!line.is_empty(), "stdout ended");
        line.trim_end_matches('\n').to_owned()
    }

    /// Waits for the next line of stderr.
    ///
    /// # Panics
    ///
    /// When there is none.
    pub fn error_line(&mut self) -> String {
        let mut line = String::new();
        self.stderr.read_line(&mut line).expect("stderr is text");
        assert!(!line.is_empty(), "stderr ended");
        line.trim_end_matches('\n').to_owned()
    }

    /// Waits until there is something on stdout, which stays there.
    ///
    /// # Panics
    ///
    /// When it cannot be read.
    pub fn some_stdout(&mut self) {
        self.stdout.fill_buf().expect("stdout can be read");
    }

    /// Waits until there is something on stderr, which stays there.
    ///
    /// # Panics
    ///
    /// When it cannot be read.
    pub fn some_stderr(&mut self) {
        self.stderr.fill_buf().expect("stderr can be read");
    }

    /// Closes the reading end of stdout, as `head` does.
    pub fn close_stdout(&mut self) {
        self.stdout = BufReader::new(empty_pipe().into());
    }

    /// Closes the reading end of stderr.
    pub fn close_stderr(&mut self) {
        self.stderr = BufReader::new(empty_pipe().into());
    }

    /// Sends a signal by its name, such as `INT`.
    ///
    /// # Panics
    ///
    /// When the process is gone.
    pub fn signal(&self, name: &str) {
        assert!(send(name, self.child.0.id()), "the process is gone");
    }

    /// Ends it as `kill -9` does, and returns once it is gone.
    ///
    /// # Panics
    ///
    /// When it cannot be killed.
    pub fn kill(mut self) {
        self.child.0.kill().expect("a process can be killed");
        self.child.0.wait().expect("the process can be waited for");
    }

    /// Waits for the end without reading anything before it.
    ///
    /// # Panics
    ///
    /// When the process is still there after ten seconds.
    pub fn wait_unread(self) -> Ended {
        let since = Instant::now();
        let Self { mut child, stdout, stderr, data } = self;
        let id = child.0.id();
        let (ended, end) = mpsc::channel();
        std::thread::spawn(move || {
            let waited = child.0.wait();
            // Nobody listens once the test has failed.
            let _ = ended.send((child, waited));
        });
        let waited = end.recv_timeout(Duration::from_secs(10));
        if waited.is_err() {
            send("KILL", id);
        }
        let (child, waited) =
            waited.expect("the process ends although nobody reads what it writes");
        waited.expect("the process can be waited for");
        let took = since.elapsed();
        Ended { took, ..Self { child, stdout, stderr, data }.wait() }
    }

    /// Waits for the end.
    ///
    /// # Panics
    ///
    /// When the process cannot be waited for.
    pub fn wait(mut self) -> Ended {
        let since = Instant::now();
        let errors = std::thread::spawn(move || {
            let mut stderr = Vec::new();
            self.stderr.read_to_end(&mut stderr).map(|_| stderr)
        });
        let mut stdout = Vec::new();
        self.stdout.read_to_end(&mut stdout).expect("stdout can be read");
        let stderr = errors.join().expect("the reader ends").expect("stderr can be read");
        let status = self.child.0.wait().expect("the process can be waited for");
        Ended {
            code: status.code(),
            stdout: String::from_utf8_lossy(&stdout).into_owned(),
            stderr: String::from_utf8_lossy(&stderr).into_owned(),
            took: since.elapsed(),
        }
    }
}

/// A process that does not outlive its test.
struct Ours(Child);

impl Drop for Ours {
    fn drop(&mut self) {
        // It has ended already, as a rule.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Sends a signal, and tells whether there was a process to take it.
fn send(name: &str, process: u32) -> bool {
    let sent = Command::new("kill").args(["-s", name, &process.to_string()]).status();
    sent.expect("kill starts").success()
}

/// Returns a reader that is at its end, to stand in for one that is closed.
fn empty_pipe() -> OwnedFd {
    std::io::pipe().expect("a pipe can be made").0.into()
}
