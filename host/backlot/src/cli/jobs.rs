//! The verbs on jobs, as the command line has them.

use std::{path::PathBuf, time::Duration};

use backlot_jobs::Status;
use clap::{ArgGroup, Args, builder::NonEmptyStringValueParser};

use super::{duration, grace};

/// How a run is done as a job.
#[derive(Debug, Args)]
pub(crate) struct AsJob {
    /// Have the host of the data folder run it, and do not wait: prints the job's id
    #[arg(long, short)]
    pub(crate) detach: bool,
    /// Run it without a record: nothing is left of it, and the data folder is not touched
    #[arg(
        long,
        conflicts_with_all = ["detach", "session", "key", "attempts", "retry_on", "backoff",
            "after", "at", "cron", "queue", "pin", "webhook"]
    )]
    pub(crate) ephemeral: bool,
    /// The session that the job works for, to which its ending is then owed
    #[arg(long, value_name = "NAME")]
    pub(crate) session: Option<String>,
    /// A key under which the job is spawned once: again with the same, it is that job
    #[arg(long, value_name = "KEY")]
    pub(crate) key: Option<String>,
    /// How many attempts the job may have, the first one included [default: 3]
    #[arg(long, value_name = "N")]
    pub(crate) attempts: Option<u32>,
    /// Try again by itself what fails so: the work, its launch, or by the host's end
    #[arg(long, value_name = "work|launch|interrupted", value_delimiter = ',',
        value_parser = failure)]
    pub(crate) retry_on: Vec<backlot_jobs::Failure>,
    /// How long the first attempt is waited for; each wait is twice the one before
    /// [default: 1s]
    #[arg(long, value_name = "DURATION", value_parser = duration, requires = "retry_on")]
    pub(crate) backoff: Option<Duration>,
    /// Start it after that time
    #[arg(long, value_name = "DURATION", value_parser = duration,
        conflicts_with_all = ["at", "cron"])]
    pub(crate) after: Option<Duration>,
    /// Start it at that time, in UTC: 2027-01-31T04:30:00Z
    #[arg(long, value_name = "TIME", value_parser = time, conflicts_with = "cron")]
    pub(crate) at: Option<u64>,
    /// Start one whenever a cron expression says so, in local time
    #[arg(long, value_name = "EXPRESSION")]
    pub(crate) cron: Option<String>,
    /// Wait in line where too many jobs are live
    #[arg(long)]
    pub(crate) queue: bool,
    /// Have the host tell that URL how the job has ended, over and over until it has heard
    #[arg(long, value_name = "URL", requires = "detach",
        value_parser = NonEmptyStringValueParser::new())]
    pub(crate) webhook: Option<String>,
    /// Run the version that is current now in all attempts
    #[arg(long)]
    pub(crate) pin: bool,
}

/// List jobs, the newest first
///
/// Prints a line for each: its id, where it stands, its kind, how long ago it was spawned,
/// and its label with what there is to say of it. Reads the data folder itself where no
/// host holds it.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes: 0 listed, 1 it cannot be read, 2 usage.

Examples:
  backlot ps
  backlot ps --status failed --json | jq -r '.jobs[].id'

With --json, stdout is one JSON document:
  {\"jobs\":[{\"id\":..,\"kind\":..,\"label\":..,\"status\":..,\"attempt\":..,..}],\"next\":..}")]
pub(crate) struct Ps {
    /// Only jobs that stand so
    #[arg(long, value_name = "STATUS", value_delimiter = ',', value_parser = status)]
    pub(crate) status: Vec<Status>,
    /// Only jobs of that session
    #[arg(long, value_name = "NAME")]
    pub(crate) session: Option<String>,
    /// At most so many
    #[arg(long, short = 'n', value_name = "N", default_value_t = 20, conflicts_with = "all")]
    pub(crate) limit: usize,
    /// All there are
    #[arg(long, short)]
    pub(crate) all: bool,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

/// Tell all there is to tell of a job
///
/// Where it stands, its attempts and runs with the versions that they ran, what it asks,
/// and its result. Reads the data folder itself where no host holds it.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes: 0 told, 1 it cannot be read, 2 usage, 3 there is no such job.

Examples:
  backlot show 1f3a
  backlot show 1f3a --json | jq -r .result

With --json, stdout is one JSON document.")]
pub(crate) struct Show {
    /// The job's id, or its first digits
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub(crate) job: String,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

/// Print what a job's runs have written
///
/// Output goes to stdout, what programs wrote to stderr and the log go to stderr. What is
/// no longer kept is told of.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes: 0 printed, 1 it cannot be read, 2 usage, 3 there is no such job.

Examples:
  backlot logs 1f3a
  backlot logs -f 1f3a

With --json, stdout is JSON lines, one piece each:
  {\"event\":\"output\",\"stream\":..,\"run\":..,\"offset\":..,\"text\":..} or \"base64\" for what is no text
  {\"event\":\"dropped\",\"stream\":..,\"bytes\":..}")]
pub(crate) struct Logs {
    /// The job's id, or its first digits
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub(crate) job: String,
    /// Go on until the job has ended
    #[arg(long, short)]
    pub(crate) follow: bool,
    /// Only the job's log: what its runs note, and what the host notes of them
    #[arg(long)]
    pub(crate) log: bool,
    /// Print JSON lines
    #[arg(long)]
    pub(crate) json: bool,
}

/// Wait until jobs have ended
///
/// Returns when all have ended, when one waits for a person, or after the time.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes: 0 all were completed, 1 one has failed, waits for a person or has not ended in time,
2 usage, 3 there is no such job, 4 one was cancelled.

Examples:
  backlot wait 1f3a
  backlot wait 1f3a 77c0 --timeout 10m

With --json, stdout is a JSON line for each job.")]
pub(crate) struct Wait {
    /// The jobs' ids, or their first digits
    #[arg(required = true, value_name = "JOB",
        value_parser = NonEmptyStringValueParser::new())]
    pub(crate) jobs: Vec<String>,
    /// How long to wait [default: as long as it takes]
    #[arg(long, value_name = "DURATION", value_parser = grace)]
    pub(crate) timeout: Option<Duration>,
    /// Print JSON lines
    #[arg(long)]
    pub(crate) json: bool,
}

/// Stop jobs
///
/// A run is asked to stop and has its grace; a job that waits is cancelled at once. That
/// a stop was asked for is written down first, so that nothing is started again, also
/// after a crash.
#[derive(Debug, Args)]
#[command(
    group = ArgGroup::new("how").args(["force", "after_step"]),
    after_help = "\
Exit codes: 0 stopped or stopping, 1 a run refused to stop, 2 usage, 3 there is no such job.

Examples:
  backlot stop 1f3a
  backlot stop --after-step 1f3a --reason 'enough for today'

With --json, stdout is a JSON line for each job:
  {\"outcome\":\"cancelled\"|\"stopping\"|\"after_step\"|\"already\",\"job\":{..}}")]
pub(crate) struct Stop {
    /// The jobs' ids, or their first digits
    #[arg(required = true, value_name = "JOB",
        value_parser = NonEmptyStringValueParser::new())]
    pub(crate) jobs: Vec<String>,
    /// Do not ask: end the run now
    #[arg(long, short)]
    pub(crate) force: bool,
    /// Let the current run come to its end, and nothing follow it
    #[arg(long)]
    pub(crate) after_step: bool,
    /// Why; the run is told
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
    /// Print JSON lines
    #[arg(long)]
    pub(crate) json: bool,
}

/// Try a failed job again
///
/// It goes on at the step that failed, with the newest version of its kind unless it was
/// pinned. Where no host holds the data folder, it is run here and followed to its end.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes: 0 it runs, or was completed here; 1 it has failed here; 2 usage; 3 it cannot be retried;
4 it was cancelled here.

Examples:
  backlot retry 1f3a

With --json, stdout is the job.")]
pub(crate) struct Retry {
    /// The job's id, or its first digits
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub(crate) job: String,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

/// Answer what a job asks
///
/// Where no host holds the data folder, the job goes on here and is followed to its end.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes: 0 it goes on, or was completed here; 1 it has failed here; 2 usage; 3 it asks nothing, or
the answer does not fit; 4 it was cancelled here.

Examples:
  backlot answer 1f3a yes
  backlot answer 1f3a '{\"replicas\": 3}'

With --json, stdout is the job.")]
pub(crate) struct Answer {
    /// The job's id, or its first digits
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub(crate) job: String,
    /// The answer; JSON where the question has a schema
    #[arg(allow_hyphen_values = true)]
    pub(crate) answer: String,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

/// List the files that a job has left, or print one
#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes: 0 listed or printed, 1 it cannot be read, 2 usage, 3 there is no such job or file.

Examples:
  backlot files 1f3a
  backlot files 1f3a report.pdf > report.pdf

With --json, stdout is one JSON document: {\"files\":[{\"path\":..,\"bytes\":..,\"modified_ms\":..}],..}")]
pub(crate) struct Files {
    /// The job's id, or its first digits
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub(crate) job: String,
    /// The file to print
    pub(crate) path: Option<PathBuf>,
    /// Print one JSON document
    #[arg(long, conflicts_with = "path")]
    pub(crate) json: bool,
}

/// Delete jobs that have ended, with their output and files
#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes: 0 deleted, 1 they cannot be, 2 usage, 3 there is no such job, or it has not ended.

Examples:
  backlot rm 1f3a 77c0

With --json, stdout is one JSON document: {\"removed\":[..],\"errors\":[..]}")]
pub(crate) struct Rm {
    /// The jobs' ids, or their first digits
    #[arg(required = true, value_name = "JOB",
        value_parser = NonEmptyStringValueParser::new())]
    pub(crate) jobs: Vec<String>,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

/// Delete what has ended long ago, or is more than is kept
///
/// An ending that somebody has still to hear of is never deleted. A host does this by
/// itself, with the defaults.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes: 0 done, 1 it could not be, 2 usage.

Examples:
  backlot prune
  backlot prune --keep 0

With --json, stdout is one JSON document: {\"removed\":N}")]
pub(crate) struct Prune {
    /// How many are kept [default: 10000]
    #[arg(long, value_name = "N")]
    pub(crate) keep: Option<u64>,
    /// How long they are kept [default: 30 days]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) older: Option<Duration>,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

/// Copy the record of all jobs into a file, also while a host runs them
///
/// Output and files of jobs are not in it.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes: 0 it is there, 1 it could not be written, 2 usage.

Examples:
  backlot backup /mnt/backups/jobs-2026-11-30.db")]
pub(crate) struct Backup {
    /// The file, which must not be there yet
    pub(crate) to: PathBuf,
}

/// Put a backup in place of the record of all jobs
///
/// No host may hold the data folder. What was there is kept beside it.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes: 0 it is there, 1 it could not be, 2 usage, 3 a host holds the data folder.

Examples:
  backlot restore /mnt/backups/jobs-2026-11-30.db")]
pub(crate) struct Restore {
    /// The backup
    pub(crate) from: PathBuf,
}

fn failure(text: &str) -> Result<backlot_jobs::Failure, String> {
    match text {
        "work" => Ok(backlot_jobs::Failure::Work),
        "launch" => Ok(backlot_jobs::Failure::Launch),
        "interrupted" => Ok(backlot_jobs::Failure::Interrupted),
        _ => Err("it is `work`, `launch` or `interrupted`".to_owned()),
    }
}

fn status(text: &str) -> Result<Status, String> {
    let known = Status::ALL.iter().copied().find(|status| status.as_str() == text);
    known.ok_or_else(|| {
        let words: Vec<&str> = Status::ALL.iter().map(|status| status.as_str()).collect();
        format!("it is one of {}", words.join(", "))
    })
}

/// Reads a time as milliseconds since the Unix epoch.
fn time(text: &str) -> Result<u64, String> {
    let time = humantime::parse_rfc3339_weak(text).map_err(|error| error.to_string())?;
    let since = time.duration_since(std::time::UNIX_EPOCH).map_err(|error| error.to_string())?;
    u64::try_from(since.as_millis()).map_err(|error| error.to_string())
}
