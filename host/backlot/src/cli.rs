//! The command line's own language, and the way from it to a command.

use std::{path::PathBuf, process::ExitCode, time::Duration};

use backlot_wasm::{DirGrant, EnvGrant, NetGrant};
use clap::{Args, Parser, Subcommand};

use crate::{commands, exit::Exit};

/// Run WebAssembly components as background work, sandboxed and stoppable.
#[derive(Debug, Parser)]
#[command(name = "backlot", version, propagate_version = true, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
    #[command(flatten)]
    pub(crate) common: Common,
}

#[derive(Debug, Args)]
pub(crate) struct Common {
    /// The folder whose <kind>.wasm files are the kinds
    #[arg(long, global = true, value_name = "DIR", env = "BACKLOT_PLUGINS")]
    pub(crate) plugins: Option<PathBuf>,
    /// Say less: no progress and no final line, only errors
    #[arg(long, short, global = true, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// Say more; twice for the host's own debug log
    #[arg(long, short, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(Box<Run>),
    Check(Check),
}

/// Run a kind or a component file, and stream its output
///
/// Output goes to stdout as it is made; a program's stderr, the guest's log,
/// progress and the final line go to stderr. Nothing is granted by default: no
/// folder, no environment variable, no network, no stdin.
///
/// The first Ctrl-C (or SIGTERM) asks the task to stop and gives it the grace
/// period; the second ends it at once.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes: 0 completed, 1 failed, 2 usage, 3 refused before starting, 4 killed.

Examples:
  backlot run grep --input '{\"pattern\":\"fn main\",\"path\":\"/src\"}' --dir .::/src:ro
  backlot run ./tool.wasm --deadline 60s --memory 64MiB -- --verbose file.txt

With --json, stdout is JSON lines, one event each:
  {\"event\":\"started\",\"id\":..,\"kind\":..}
  {\"event\":\"output\",\"stream\":\"stdout\"|\"stderr\"|\"log\",\"offset\":..,\"text\":..}
  {\"event\":\"dropped\",\"stream\":..,\"bytes\":..}
  {\"event\":\"ended\",\"task\":{..}} or {\"event\":\"refused\",\"error\":..,\"exit\":..}
Offsets count bytes. Text has U+FFFD for what is not UTF-8.")]
pub(crate) struct Run {
    /// A kind of the plugin folder, or the path of a component file
    #[arg(value_name = "KIND|FILE.wasm")]
    pub(crate) target: String,
    /// The input: text, @FILE for a file's content, or - for stdin. A program
    /// reads it from its own stdin
    #[arg(long, value_name = "TEXT|@FILE|-", allow_hyphen_values = true)]
    pub(crate) input: Option<String>,
    /// The line that the task is shown under
    #[arg(long, value_name = "TEXT")]
    pub(crate) label: Option<String>,
    /// A folder that the task may read, or with :rw also change
    #[arg(long = "dir", value_name = "HOST[::GUEST][:ro|rw]")]
    pub(crate) dirs: Vec<DirGrant>,
    /// An environment variable that the task sees
    #[arg(long, value_name = "NAME=VALUE")]
    pub(crate) env: Vec<EnvGrant>,
    /// A peer that the task may connect to over TCP, and so over HTTP
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) net: Vec<NetGrant>,
    /// How much linear memory the task may use [default: 256MiB]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) memory: Option<u64>,
    /// How long the task may take [default: no limit]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) deadline: Option<Duration>,
    /// How much CPU time the task may use [default: no limit]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) cpu: Option<Duration>,
    /// How long the task may take to wind down once it has agreed to stop
    /// [default: 5s]
    #[arg(long, value_name = "DURATION", value_parser = grace)]
    pub(crate) grace: Option<Duration>,
    /// Print JSON lines instead of the bare output
    #[arg(long)]
    pub(crate) json: bool,
    /// Arguments for a program
    #[arg(last = true, value_name = "ARGS")]
    pub(crate) args: Vec<String>,
}

/// Tell what component files are, and what they need
///
/// Prints form, contract version, descriptor, exports, imports and what may need
/// to be granted. A file that cannot be run is refused with what was found, what
/// was wanted and the fix. Exit codes: 0 all can be run, 2 usage, 3 refused.
#[derive(Debug, Args)]
pub(crate) struct Check {
    /// Component files
    #[arg(required = true, value_name = "FILE.wasm")]
    pub(crate) files: Vec<PathBuf>,
    /// Print one JSON document: {"files":[{"file":..,"ok":true,..}]}
    #[arg(long)]
    pub(crate) json: bool,
}

/// Runs the command line of this process and returns its exit code.
///
/// # Panics
///
/// Never on what a person or a machine can do wrong.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and versions are errors to clap, and go to stdout. A closed
            // pipe is no reason to complain.
            let _ = error.print();
            return match error.use_stderr() {
                true => Exit::Usage.into(),
                false => ExitCode::SUCCESS,
            };
        }
    };
    log_to_stderr(cli.common.verbose);
    // The commands have a runtime of their own: guests may block every thread
    // of theirs, and a Ctrl-C must still be heard.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let exit = match runtime {
        Ok(runtime) => {
            let exit = runtime.block_on(commands::dispatch(cli));
            // A read of stdin may still block a thread.
            runtime.shutdown_background();
            exit
        }
        Err(error) => {
            crate::render::error(&anyhow::Error::new(error).context("cannot start"));
            Exit::Failed
        }
    };
    exit.into()
}

fn log_to_stderr(verbose: u8) {
    use tracing_subscriber::EnvFilter;
    let default = match verbose {
        0 => "error",
        1 => "warn,backlot=info,backlot_registry=info,backlot_wasm=info",
        _ => "warn,backlot=debug,backlot_registry=debug,backlot_wasm=debug",
    };
    let filter = EnvFilter::try_from_env("BACKLOT_LOG").unwrap_or_else(|_| EnvFilter::new(default));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_target(false)
        .init();
}

fn size(text: &str) -> Result<u64, String> {
    match text.parse::<bytesize::ByteSize>() {
        // What is past all numbers is read as the largest one.
        Ok(size) if size.0 == u64::MAX => Err("the size is too large".to_owned()),
        Ok(size) if size.0 == 0 => Err("a size above 0 is needed".to_owned()),
        Ok(size) => Ok(size.0),
        Err(_) => Err("write a size such as 64MiB, 1GiB or 65536".to_owned()),
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    match grace(text)? {
        Duration::ZERO => Err("a duration above 0 is needed".to_owned()),
        duration => Ok(duration),
    }
}

fn grace(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text)
        .map_err(|_| "write a duration such as 500ms, 60s or 2m".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn sizes_and_durations_are_read_as_people_write_them() {
        assert_eq!(size("64MiB"), Ok(64 << 20));
        assert_eq!(size("1GiB"), Ok(1 << 30));
        assert_eq!(size("65536"), Ok(65536));
        assert_eq!(duration("60s"), Ok(Duration::from_secs(60)));
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(grace("0s"), Ok(Duration::ZERO));
        for bad in ["", "x", "-1", "0", "1.5.2MiB", "99999999999999999999999GiB"] {
            assert!(size(bad).is_err(), "{bad} was taken as a size");
        }
        for bad in ["", "5", "x", "-1s", "0s"] {
            assert!(duration(bad).is_err(), "{bad} was taken as a duration");
        }
    }

    #[test]
    fn what_follows_two_dashes_is_the_programs_own() {
        let cli = Cli::parse_from(["backlot", "run", "a.wasm", "--", "--json", "-x"]);
        let Command::Run(run) = cli.command else { panic!("another command") };
        assert_eq!(run.args, ["--json", "-x"]);
        assert!(!run.json);
    }
}
