//! The command line's own language, and the way from it to a command.

use std::{
    convert::Infallible,
    env,
    ffi::OsString,
    io::{self, IsTerminal as _, Write as _},
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use backlot_wasm::{DirGrant, EnvGrant, GrantError, Origin, Peer, Policy, Profile, Range};
use clap::{Args, Parser, Subcommand};

mod daemon;
mod jobs;
mod token;

pub(crate) use self::{
    daemon::{Mcp, Serve, Shutdown, Status},
    jobs::{Answer, AsJob, Backup, Files, Logs, Prune, Ps, Restore, Retry, Rm, Show, Stop, Wait},
    token::{TokenAdd, TokenCommand, TokenLs, TokenRm, TokenVerb},
};
use crate::{
    commands::{self, Verb},
    config::{self, Config},
    console::{Console, Writer},
    exit::Exit,
    policy::{PolicyFileError, read_policy},
    render,
    settings::Settings,
};

/// How long the process stays for a stderr that nobody reads, once it has
/// nothing else to do: a reader that reads at all takes what is left in a moment.
const FLUSH: Duration = Duration::from_millis(500);

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
    /// The folder whose <kind>.wasm files are the kinds [env: BACKLOT_PLUGINS]
    #[arg(long, global = true, value_name = "DIR")]
    plugins: Option<PathBuf>,
    /// What the host is made for: fast starts, or dense crowds
    #[arg(
        long,
        global = true,
        value_name = "fast|dense",
        default_value_t,
        hide_default_value = true
    )]
    profile: Profile,
    /// The folder that compiled code is kept in [env: BACKLOT_CACHE]
    #[arg(long, global = true, value_name = "DIR")]
    cache: Option<PathBuf>,
    /// Use no compiled code that was kept, and keep none
    #[arg(long, global = true, conflicts_with = "cache")]
    no_cache: bool,
    /// The operator's policy: what tasks of which kind may reach and use
    /// [env: BACKLOT_POLICY] [default: backlot/backlot.toml in the person's
    /// configuration folder, if it is there]
    #[arg(long, global = true, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// The folder with everything that outlives a host: jobs, their output and files
    /// [env: BACKLOT_DATA] [default: backlot in the person's folder for state]
    #[arg(long, global = true, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Say less: no progress and no final line, only errors
    #[arg(long, short, global = true, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// Say more; twice for the host's own debug log
    #[arg(long, short, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
}

impl Common {
    /// Returns the configuration of a host with room for that many instances.
    pub(crate) fn config(&self, instances: u32) -> Config {
        let mut config =
            Config { instances: Some(instances), profile: self.profile, ..Config::default() };
        if let Some(plugins) = self.named_plugins() {
            config.plugins = plugins;
        }
        if let Some(cache) = named(self.cache.as_deref(), "BACKLOT_CACHE") {
            config.cache = Some(cache);
        }
        if self.no_cache {
            config.cache = None;
        }
        config
    }

    /// Returns the configuration of a host that starts tasks, with the policy.
    pub(crate) fn config_with_policy(&self, instances: u32) -> Result<Config, PolicyFileError> {
        Ok(Config { policy: self.policy()?, ..self.config(instances) })
    }

    /// Returns the plugin folder that a flag or the environment names, if one does.
    pub(crate) fn named_plugins(&self) -> Option<PathBuf> {
        named(self.plugins.as_deref(), "BACKLOT_PLUGINS")
    }

    /// Returns the data folder, unless there is no home to have one in.
    pub(crate) fn data(&self) -> Option<PathBuf> {
        self.data.clone().or_else(backlot_jobs::default_data_folder)
    }

    /// Returns the file that has the policy, if there is one.
    pub(crate) fn policy_file(&self) -> Option<PathBuf> {
        named(self.policy.as_deref(), "BACKLOT_POLICY").or_else(config::default_policy)
    }

    /// Reads how a host is set up that stays. Without a file that is as by default.
    pub(crate) fn settings(&self) -> Result<Settings, PolicyFileError> {
        self.policy_file().map_or_else(|| Ok(Settings::default()), |file| Settings::read(&file))
    }

    /// Reads the policy. Without a file there is none.
    pub(crate) fn policy(&self) -> Result<Policy, PolicyFileError> {
        self.policy_file().map_or_else(|| Ok(Policy::default()), |file| read_policy(&file))
    }
}

/// Returns the file or folder that a flag or a variable names. An empty variable names none.
fn named(flag: Option<&Path>, variable: &str) -> Option<PathBuf> {
    let variable = || env::var_os(variable).filter(|folder| !folder.is_empty());
    flag.map(Path::to_owned).or_else(|| variable().map(PathBuf::from))
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(Box<Run>),
    Serve(Box<Serve>),
    Status(Status),
    Shutdown(Shutdown),
    Mcp(Mcp),
    Ps(Ps),
    Show(Show),
    Logs(Logs),
    Wait(Wait),
    Stop(Stop),
    Retry(Retry),
    Answer(Answer),
    Files(Files),
    Rm(Rm),
    Prune(Prune),
    Backup(Backup),
    Restore(Restore),
    Dev(Box<Dev>),
    Kinds(Kinds),
    Check(Check),
    Doctor(Doctor),
    Plugin(PluginVerb),
    Token(TokenVerb),
    Policy(PolicyVerb),
    Completions(Completions),
    Man(Man),
}

/// Run a kind or a component file, and stream its output
///
/// Output goes to stdout as it is made; a program's stderr, the guest's log,
/// progress and the final line go to stderr. Nothing is granted by default: no
/// folder, no environment variable, no network, no stdin.
///
/// With a policy, a task gets all that it gives to the kind, and flags ask for
/// less: what a flag mentions is given as far as flags name it. With a manifest
/// beside the component (grep.toml beside grep.wasm) a task gets no more than that
/// asks for. What is asked for and not given is refused, with the line that would
/// allow it.
///
/// The first Ctrl-C (or SIGTERM) asks the task to stop and gives it the grace
/// period; the second ends it at once. One that comes after the task's end, or
/// the second, also ends a process whose output nobody reads; what was not read
/// is lost.
///
/// The first process on a data folder also runs the jobs of those that come while
/// it is there, and stays until they have ended; one more Ctrl-C ends them.
/// SIGTERM ends them without waiting.
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
    pub(crate) target: OsString,
    #[command(flatten)]
    pub(crate) with: With,
    #[command(flatten, next_help_heading = "Job")]
    pub(crate) as_job: AsJob,
}

/// Run a component, and run it anew whenever it changes
///
/// A crate is built first, and again whenever a file in its folder changes. What is built is
/// swapped in; the task that runs is asked to stop, and one of the new version is
/// started with the same input. A version that cannot be built or run changes nothing.
/// Ctrl-C ends it.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes: 0 ended by Ctrl-C, 2 usage, 3 refused before anything was started.

Examples:
  backlot dev . --input '{\"from\":3}'
  backlot dev ./tool.wasm -- --verbose

With --json, stdout is the JSON lines of `run`, those of one task after the other's.")]
pub(crate) struct Dev {
    /// A component file, or the folder of a crate that is built for wasm32-wasip2
    #[arg(value_name = "FILE.wasm|CRATE_DIR")]
    pub(crate) target: PathBuf,
    /// Build with optimisations
    #[arg(long)]
    pub(crate) release: bool,
    /// The program of the crate to run, where it has several
    #[arg(long, value_name = "NAME")]
    pub(crate) bin: Option<String>,
    #[command(flatten)]
    pub(crate) with: With,
}

/// What a task is started with.
#[derive(Debug, Args)]
pub(crate) struct With {
    /// The input: text, @FILE for a file's content, or - for stdin. A program
    /// reads it from its own stdin
    #[arg(long, value_name = "TEXT|@FILE|-", allow_hyphen_values = true)]
    pub(crate) input: Option<OsString>,
    /// The line that the task is shown under
    #[arg(long, value_name = "TEXT")]
    pub(crate) label: Option<String>,
    /// A folder that the task may read, or with :rw also change
    #[arg(long = "dir", value_name = "HOST[::GUEST][:ro|rw]")]
    pub(crate) dirs: Vec<DirGrant>,
    /// An environment variable that the task sees
    // Judged by the command: clap would repeat what it cannot read.
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable)]
    pub(crate) env: Vec<Result<EnvGrant, GrantError>>,
    /// A peer that the task may connect to over TCP, and so over HTTP
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) net: Vec<Peer>,
    /// A peer that the task may exchange datagrams with
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) udp: Vec<Peer>,
    /// A server that the task may send HTTP requests to, and nothing else
    #[arg(long, value_name = "URL")]
    pub(crate) http: Vec<Origin>,
    /// Private or other special addresses that granted names may stand for
    #[arg(long, value_name = "RANGE")]
    pub(crate) private: Vec<Range>,
    /// How much linear memory the task may use [default: 256MiB]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) memory: Option<u64>,
    /// How many bytes a job may have in its work folder, which it sees as /job; 0 asks
    /// for none [default: what its manifest asks for]
    #[arg(long, value_name = "SIZE", value_parser = size_or_none)]
    pub(crate) work_folder: Option<u64>,
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

/// List the kinds of the plugin folder
///
/// Prints a line for each, with its name, its form and its summary: in columns
/// on a terminal, separated by tabs elsewhere. The folder's other *.wasm files
/// follow on stderr, a line each, with the reason why they cannot be run.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes: 0 all can be run, 1 some cannot, 2 usage, 3 nothing can be listed.

Examples:
  backlot kinds
  backlot kinds --plugins ./plugins | cut -f1

With --json, stdout is one JSON document:
  {\"folder\":..,\"kinds\":[{\"kind\":..,\"file\":..,\"ok\":true,\"form\":..,\"summary\":..,..},
                          {\"file\":..,\"ok\":false,\"error\":..}]}
A folder that cannot be listed has no kinds and an \"error\".")]
pub(crate) struct Kinds {
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
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

/// Tell whether this machine suits the host, and what to do where it does not
///
/// Looks at limits of the kernel and of this process, at memory, at the folders,
/// at the Rust toolchain, and starts an engine. Prints a line for each: ok, warn
/// or fail, what it is about, what was found and, after an arrow, the fix.
///
/// A warning is about what some will miss: many tasks at a time, much output, or
/// plugins of their own.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes: 0 nothing failed, 1 something failed, 2 usage.

Examples:
  backlot doctor
  backlot doctor --json | jq '.checks[] | select(.status != \"ok\")'

With --json, stdout is one JSON document:
  {\"ok\":true|false,\"checks\":[{\"name\":..,\"status\":\"ok\"|\"warn\"|\"fail\",\"value\":..,\"fix\":..|null}]}")]
pub(crate) struct Doctor {
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

/// Look at the kinds of the plugin folder, and change them
///
/// The folder says what is to be there. A host that watches it follows within moments:
/// tasks that run keep the version they were started with, tasks started from then on
/// run the new one, and what cannot be run changes nothing. Good versions that are
/// replaced are kept, to go back to.
#[derive(Debug, Args)]
pub(crate) struct PluginVerb {
    #[command(subcommand)]
    pub(crate) verb: PluginCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum PluginCommand {
    Ls(PluginLs),
    Inspect(PluginInspect),
    Load(PluginLoad),
    Unload(PluginUnload),
    Reload(PluginReload),
    Rollback(PluginRollback),
    Drain(PluginDrain),
}

impl PluginCommand {
    pub(crate) fn json(&self) -> bool {
        match self {
            Self::Ls(args) => args.json,
            Self::Inspect(args) => args.json,
            Self::Load(args) => args.json,
            Self::Unload(args) => args.json,
            Self::Reload(args) => args.json,
            Self::Rollback(args) => args.json,
            Self::Drain(args) => args.json,
        }
    }
}

/// List the kinds, their versions and what is wrong with them
///
/// Prints a line for each: its name, whether it is serving, broken or unloaded, the
/// beginning of its digest, the version of its contract, and the digests that are kept
/// to go back to. What is wrong follows on stderr.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes: 0 none is broken, 1 some are, 2 usage, 3 nothing can be listed.

Examples:
  backlot plugin ls
  backlot plugin ls --json | jq -r '.plugins[] | select(.state != \"serving\").kind'

With --json, stdout is one JSON document:
  {\"folder\":..,\"plugins\":[{\"kind\":..,\"state\":\"serving\",\"digest\":..,\"contract\":..,\"kept\":[..],..},
                          {\"kind\":..,\"state\":\"broken\",\"error\":..}]}")]
pub(crate) struct PluginLs {
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

/// Tell all there is to tell of a kind
///
/// Prints what `check` tells of its file, the versions that are kept, and what a task
/// of it could reach and which line gives it.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes: 0 told, 1 it could not be written, 2 usage, 3 there is no such kind, or it cannot be
run.

Examples:
  backlot plugin inspect grep
  backlot plugin inspect grep --json | jq .input_schema")]
pub(crate) struct PluginInspect {
    /// The kind
    pub(crate) kind: String,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

/// Put a component into the plugin folder, in place of the one of its kind
///
/// The component is checked first: what cannot be run, or is not admitted by the
/// policy, changes nothing. The manifest beside it comes along. The version that is
/// replaced is kept.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes: 0 it is there, 1 it could not be told, 2 usage, 3 refused, and nothing has changed.

Examples:
  backlot plugin load target/wasm32-wasip2/release/grep.wasm")]
pub(crate) struct PluginLoad {
    /// The component file
    #[arg(value_name = "FILE.wasm")]
    pub(crate) file: PathBuf,
    /// Print one JSON document: {"kind":..,"state":..,"digest":..,"kept":[..]}
    #[arg(long)]
    pub(crate) json: bool,
}

/// Take a kind out of the plugin folder; tasks that run go on
///
/// Its version is kept, and comes back with `rollback`.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes: 0 it is out, 1 it could not be told, 2 usage, 3 there is no such kind, or the folder
cannot be changed.

Examples:
  backlot plugin unload grep")]
pub(crate) struct PluginUnload {
    /// The kind
    pub(crate) kind: String,
    /// Print one JSON document: {"kind":..,"state":..,"digest":..,"kept":[..]}
    #[arg(long)]
    pub(crate) json: bool,
}

/// Look at a kind anew, or at all of them, and have hosts do so
///
/// Hosts that watch the folder do it by themselves when a file changes; this is for
/// files whose changes they were not told of, and tells what cannot be taken.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes: 0 all can be run, 1 some cannot, 2 usage, 3 nothing could be looked at.

Examples:
  backlot plugin reload
  backlot plugin reload grep")]
pub(crate) struct PluginReload {
    /// The kind [default: all]
    pub(crate) kind: Option<String>,
    /// Print one JSON document, as `ls` does
    #[arg(long)]
    pub(crate) json: bool,
}

/// Go back to a version from before
///
/// That is the one that was replaced or unloaded last, unless another is named. The one
/// that is replaced by it is kept.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes: 0 it is back, 1 it could not be told, 2 usage, 3 there is nothing to go back to, or it
cannot be run any more.

Examples:
  backlot plugin rollback grep
  backlot plugin rollback grep --to 3f2a90")]
pub(crate) struct PluginRollback {
    /// The kind
    pub(crate) kind: String,
    /// The digest of the version, or the beginning of it
    #[arg(long, value_name = "DIGEST")]
    pub(crate) to: Option<String>,
    /// Print one JSON document: {"kind":..,"state":..,"digest":..,"kept":[..]}
    #[arg(long)]
    pub(crate) json: bool,
}

/// Take a kind out of the plugin folder, and wait until its last task has ended
///
/// Waits for all hosts of this user on this machine that can still run it: those that
/// watch the folder let go of it at once, and others when they end.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes: 0 none runs it any more, 1 some still do after the timeout, 2 usage, 3 there is no such
kind, or the folder cannot be changed.

Examples:
  backlot plugin drain grep --timeout 10m && backlot plugin load ./grep.wasm")]
pub(crate) struct PluginDrain {
    /// The kind
    pub(crate) kind: String,
    /// How long to wait [default: no limit]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) timeout: Option<Duration>,
    /// Print one JSON document: {"kind":..,"state":..,"digest":..,"kept":[..]}
    #[arg(long)]
    pub(crate) json: bool,
}

/// Check the operator's policy, or explain what it gives
#[derive(Debug, Args)]
pub(crate) struct PolicyVerb {
    #[command(subcommand)]
    pub(crate) verb: PolicyCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum PolicyCommand {
    Check(PolicyCheck),
    Explain(PolicyExplain),
}

/// Tell all that is wrong with a policy
///
/// Prints what the policy has, or each problem with its line: unknown keys, bad
/// values, and what is said in one place and taken back in another.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes: 0 nothing is wrong, 1 it could not be written, 2 something is wrong.

Examples:
  backlot policy check
  backlot policy check ./backlot.toml")]
pub(crate) struct PolicyCheck {
    /// The policy [default: the one that --policy names, or the person's own]
    #[arg(value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
}

/// Tell what a task of a kind could reach, and which line gives it
///
/// Prints a line for each folder, variable, peer, server, secret, limit and bound,
/// and after an arrow the line of the policy and of the manifest that give it. What
/// one of the two gives and the other takes away is there with a `no`.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes: 0 explained, 1 it could not be written, 2 usage or a policy that is wrong, 3 there is
no such kind, or its manifest is wrong.

Examples:
  backlot policy explain grep
  backlot policy explain fetch --policy ./backlot.toml --json | jq -r '.reaches[].what'

With --json, stdout is one JSON document:
  {\"kind\":..,\"reaches\":[{\"what\":..,\"by\":..}]}
What cannot be explained has no reaches and an \"error\".")]
pub(crate) struct PolicyExplain {
    /// The kind
    pub(crate) kind: String,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

/// Print a script that completes command lines in a shell
#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes: 0 printed, 1 it could not be written, 2 usage.

Examples:
  backlot completions bash > ~/.local/share/bash-completion/completions/backlot
  backlot completions zsh > ~/.zfunc/_backlot
  backlot completions fish > ~/.config/fish/completions/backlot.fish")]
pub(crate) struct Completions {
    /// The shell
    pub(crate) shell: clap_complete::Shell,
}

/// Print the manual page
#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes: 0 printed, 1 it could not be written, 2 usage.

Examples:
  backlot man > ~/.local/share/man/man1/backlot.1
  backlot man | man -l -")]
pub(crate) struct Man {}

/// Runs the command line of this process and returns its exit code.
///
/// # Panics
///
/// Never on what a person or a machine can do wrong.
pub fn main() -> ExitCode {
    backlot_wasm::compile_if_asked();
    match Cli::try_parse() {
        Ok(cli) => start(cli).map_or_else(|error| cannot_start(&error), ExitCode::from),
        Err(error) => misunderstood(&error),
    }
}

fn start(cli: Cli) -> io::Result<Exit> {
    let console = Console::open()?;
    log_to(&console.err, cli.common.verbose);
    // The commands have a runtime of their own: guests may block every thread
    // of theirs, and a Ctrl-C must still be heard.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let exit = runtime.block_on(async {
        let exit = commands::dispatch(cli, &console).await;
        console.err.flush(FLUSH).await;
        exit
    });
    // A read of stdin may still block a thread.
    runtime.shutdown_background();
    Ok(exit)
}

fn cannot_start(error: &io::Error) -> ExitCode {
    let _ = writeln!(io::stderr(), "backlot: cannot start: {error}");
    Exit::Failed.into()
}

/// Tells why the command line was not understood, or what it asked clap for:
/// help and versions are errors to clap. A closed pipe is no reason to complain.
fn misunderstood(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    let text = error.to_string();
    let words: Vec<OsString> = env::args_os().skip(1).collect();
    if let Some(verb) = asked_for_json(&words) {
        let _ = write!(io::stdout(), "{}", verb.refusal(gist(&text)));
    }
    let bounded: Vec<String> =
        text.lines().map(|line| render::cut(render::LINE_BYTES, line)).collect();
    let _ = match text.lines().eq(&bounded) {
        // With colours, where they show.
        true => error.print(),
        false => writeln!(io::stderr(), "{}", bounded.join("\n")),
    };
    Exit::Usage.into()
}

/// Returns the command whose answer is wanted as JSON, as far as the words of a
/// command line tell that could not be parsed.
fn asked_for_json(words: &[OsString]) -> Option<Verb> {
    let own = words.split(|word| word == "--").next()?;
    if !own.iter().any(|word| word == "--json") {
        return None;
    }
    own.iter().find_map(|word| match word.to_str()? {
        "run" | "dev" => Some(Verb::Run),
        "ps" | "show" | "logs" | "wait" | "stop" | "retry" | "answer" | "files" | "rm"
        | "prune" | "serve" | "shutdown" | "token" => Some(Verb::Job),
        "status" => Some(Verb::Status),
        "kinds" => Some(Verb::Kinds),
        "doctor" => Some(Verb::Doctor),
        "check" => Some(Verb::Check),
        "plugin" if own.iter().any(|word| word == "ls" || word == "reload") => Some(Verb::Plugins),
        "plugin" => Some(Verb::Plugin),
        "policy" => Some(Verb::Policy),
        _ => None,
    })
}

/// Returns what an error of clap's says, in one line and without the usage.
fn gist(text: &str) -> String {
    let text = text.strip_prefix("error: ").unwrap_or(text);
    let first = text.split("\n\n").next().unwrap_or_default();
    let words: Vec<&str> = first.split_whitespace().collect();
    render::one_line(&words.join(" "))
}

fn log_to(stderr: &Writer, verbose: u8) {
    use tracing_subscriber::EnvFilter;
    let default = match verbose {
        0 => "error",
        1 => "warn,backlot=info,backlot_registry=info,backlot_wasm=info",
        _ => "warn,backlot=debug,backlot_registry=debug,backlot_wasm=debug",
    };
    // What the library for MCP tells of connections that end is told of each that does, and is
    // none of the operator's concern.
    let default = format!("{default},rmcp=off");
    let filter = EnvFilter::try_from_env("BACKLOT_LOG").unwrap_or_else(|_| EnvFilter::new(default));
    let plain = env::var_os("NO_COLOR").is_some_and(|set| !set.is_empty());
    let stderr = stderr.clone();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(io::stderr().is_terminal() && !plain)
        .with_writer(move || stderr.clone())
        .with_target(false)
        .init();
}

/// Reads a variable, and keeps what is wrong with it for later.
fn variable(text: &str) -> Result<Result<EnvGrant, GrantError>, Infallible> {
    Ok(text.parse())
}

fn size(text: &str) -> Result<u64, String> {
    match size_or_none(text)? {
        0 => Err("a size above 0 is needed".to_owned()),
        size => Ok(size),
    }
}

fn size_or_none(text: &str) -> Result<u64, String> {
    match text.parse::<bytesize::ByteSize>() {
        // What is past all numbers is read as the largest one.
        Ok(size) if size.0 == u64::MAX => Err("the size is too large".to_owned()),
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
        assert_eq!(size_or_none("0"), Ok(0));
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
        assert_eq!(run.with.args, ["--json", "-x"]);
        assert!(!run.with.json);
    }

    #[test]
    fn whether_json_was_asked_for_is_told_from_the_words() {
        let asked = |line: &str| {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            asked_for_json(&words)
        };
        assert_eq!(asked("run --json --bad"), Some(Verb::Run));
        assert_eq!(asked("--json check"), Some(Verb::Check));
        assert_eq!(asked("kinds --bad --json"), Some(Verb::Kinds));
        assert_eq!(asked("doctor --json run"), Some(Verb::Doctor));
        assert_eq!(asked("policy explain --json"), Some(Verb::Policy));
        assert_eq!(asked("plugin load --json"), Some(Verb::Plugin));
        assert_eq!(asked("plugin --json ls --bad"), Some(Verb::Plugins));
        assert_eq!(asked("completions --json"), None);
        assert_eq!(asked("run --bad a.wasm -- --json"), None);
        assert_eq!(asked("--json"), None);
    }

    #[test]
    fn the_gist_of_an_error_leaves_out_the_usage() {
        assert_eq!(gist("error: a b:\n  <C>\n\nUsage: backlot"), "a b: <C>");
    }
}
