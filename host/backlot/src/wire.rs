//! The shapes that `--json` prints. They change only with a new major version;
//! fields may be added.

use std::path::Path;

use backlot_jobs::{DataFolder, Recovered};
use backlot_registry::{Channel, Kind, Snapshot};
use backlot_surface::wire::{ErrorReply, HealthReply, HostAbout, JobView};
use backlot_wasm::{Description, Reach};
use serde::Serialize;

use crate::{holding::Holding, shelf::Kept};

/// Returns the value as a line of JSON.
pub(crate) fn line(value: &impl Serialize) -> String {
    match serde_json::to_string(value) {
        Ok(json) => json + "\n",
        Err(error) => {
            // What is printed is text, numbers and lists of them.
            tracing::error!(%error, "an answer cannot be written as JSON");
            String::new()
        }
    }
}

/// Why a verb on jobs or tokens did nothing.
#[derive(Debug, Serialize)]
pub(crate) struct Refusal {
    error: Problem,
}

impl Refusal {
    pub(crate) fn of(reply: &ErrorReply) -> Self {
        Self { error: Problem::of(reply) }
    }
}

/// What went wrong.
#[derive(Debug, Serialize)]
pub(crate) struct Problem {
    code: String,
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
}

impl Problem {
    pub(crate) fn of(reply: &ErrorReply) -> Self {
        let ErrorReply { code, detail, hint, .. } = reply;
        Self { code: code.clone(), message: detail.clone(), hint: hint.clone() }
    }
}

/// One line of `backlot run --json`.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub(crate) enum Event {
    Started {
        id: String,
        kind: String,
        label: String,
        /// The job that it is a run of.
        #[serde(skip_serializing_if = "Option::is_none")]
        job: Option<String>,
    },
    Output {
        stream: StreamName,
        offset: u64,
        text: String,
    },
    Dropped {
        stream: StreamName,
        bytes: u64,
    },
    Ended {
        task: Task,
    },
    Refused {
        error: String,
        exit: u8,
    },
}

/// One line of `backlot serve --json`.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub(crate) enum HostEvent<'a> {
    Serving {
        host: &'a HostAbout,
        data: String,
        socket: String,
        recovered: Found,
    },
    Ending {
        why: &'a str,
        drain_ms: u64,
    },
    Ended {
        /// Whether all endings were.
        written: bool,
    },
}

impl<'a> HostEvent<'a> {
    pub(crate) fn serving(holding: &'a Holding) -> Self {
        let folder = holding.jobs().folder();
        let Recovered { interrupted, cancelled, queued, owed } = *holding.recovered();
        Self::Serving {
            host: holding.about(),
            data: folder.path().display().to_string(),
            socket: folder.socket().display().to_string(),
            recovered: Found { interrupted, cancelled, queued, owed },
        }
    }
}

/// The jobs that a host found.
#[derive(Debug, Serialize)]
pub(crate) struct Found {
    interrupted: usize,
    cancelled: usize,
    queued: usize,
    owed: usize,
}

/// The document of `backlot status --json`.
#[derive(Debug, Serialize)]
pub(crate) struct HostStatus<'a> {
    running: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    socket: Option<String>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    health: Option<&'a HealthReply>,
    /// Why nothing is told of a host.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    refusal: Option<Refusal>,
}

impl<'a> HostStatus<'a> {
    pub(crate) fn running(folder: &DataFolder, health: &'a HealthReply) -> Self {
        Self {
            running: true,
            data: Some(folder.path().display().to_string()),
            socket: Some(folder.socket().display().to_string()),
            health: Some(health),
            refusal: None,
        }
    }

    pub(crate) fn none(data: Option<&Path>, refusal: Refusal) -> Self {
        let data = data.map(|data| data.display().to_string());
        Self { running: false, data, socket: None, health: None, refusal: Some(refusal) }
    }
}

/// The document of `backlot shutdown --json`.
#[derive(Debug, Serialize)]
pub(crate) struct HostEnd {
    pub(crate) pid: u32,
    pub(crate) drain_ms: u64,
    pub(crate) ended: bool,
}

/// Where a piece of output comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum StreamName {
    Stdout,
    Stderr,
    Log,
}

impl StreamName {
    pub(crate) fn of(channel: Channel) -> Self {
        match channel {
            Channel::Out => Self::Stdout,
            Channel::Err => Self::Stderr,
        }
    }
}

/// A task at one moment.
#[derive(Debug, Serialize)]
pub(crate) struct Task {
    id: String,
    kind: String,
    label: String,
    status: String,
    detail: Option<String>,
    started_at_ms: u64,
    finished_at_ms: Option<u64>,
    output_bytes: u64,
    dropped_bytes: u64,
    cpu_ms: Option<f64>,
    peak_memory_bytes: Option<u64>,
    generation: Option<u64>,
    digest: Option<String>,
    /// What it may reach and use, a line each.
    grant: Option<Vec<String>>,
}

impl Task {
    pub(crate) fn of(snapshot: &Snapshot) -> Self {
        Self {
            id: snapshot.id.to_string(),
            kind: snapshot.kind.to_string(),
            label: snapshot.label.clone(),
            status: snapshot.status.to_string(),
            detail: snapshot.detail.clone(),
            started_at_ms: snapshot.started_at_ms,
            finished_at_ms: snapshot.finished_at_ms,
            output_bytes: snapshot.output_bytes,
            dropped_bytes: snapshot.dropped_bytes,
            cpu_ms: snapshot.usage.map(|usage| usage.cpu.as_secs_f64() * 1e3),
            peak_memory_bytes: snapshot.usage.map(|usage| usage.peak_memory),
            generation: snapshot.generation.as_ref().map(|generation| generation.number),
            digest: snapshot.generation.as_ref().map(|generation| generation.digest.to_string()),
            grant: snapshot.grant.as_ref().map(|lines| lines.to_vec()),
        }
    }
}

impl Task {
    /// Returns a job's last run as a task.
    pub(crate) fn of_job(job: &JobView, output_bytes: u64, dropped_bytes: u64) -> Self {
        let run = job.run.as_ref();
        let status = match job.status {
            backlot_jobs::Status::Cancelled => "killed",
            other => other.as_str(),
        };
        Self {
            id: run.and_then(|run| run.task.clone()).unwrap_or_default(),
            kind: run.map_or_else(|| job.kind.clone(), |run| run.kind.clone()),
            label: job.label.clone(),
            status: status.to_owned(),
            detail: job.detail.clone(),
            started_at_ms: run.map_or(job.created_ms, |run| run.started_ms),
            finished_at_ms: job.finished_ms,
            output_bytes,
            dropped_bytes,
            cpu_ms: None,
            peak_memory_bytes: None,
            generation: run.and_then(|run| run.generation),
            digest: run.and_then(|run| run.digest.clone()),
            grant: None,
        }
    }
}

/// The document of `backlot kinds --json`.
#[derive(Debug, Serialize)]
pub(crate) struct Kinds {
    /// The plugin folder; missing where the command line was not understood.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) folder: Option<String>,
    pub(crate) kinds: Vec<File>,
    /// Why no file was looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
}

impl Kinds {
    pub(crate) fn refused(folder: Option<&Path>, error: String) -> Self {
        let folder = folder.map(|folder| folder.display().to_string());
        Self { folder, kinds: Vec::new(), error: Some(error) }
    }
}

/// The document of `backlot doctor --json`.
#[derive(Debug, Serialize)]
pub(crate) struct Checkup {
    pub(crate) ok: bool,
    pub(crate) checks: Vec<Check>,
    /// Why nothing was looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
}

impl Checkup {
    pub(crate) fn refused(error: String) -> Self {
        Self { ok: false, checks: Vec::new(), error: Some(error) }
    }
}

/// What was found about one thing that the host needs.
#[derive(Debug, Serialize)]
pub(crate) struct Check {
    pub(crate) name: &'static str,
    pub(crate) status: &'static str,
    pub(crate) value: String,
    pub(crate) fix: Option<String>,
}

/// The document of `backlot policy explain --json`.
#[derive(Debug, Serialize)]
pub(crate) struct Explained {
    /// The kind; missing where nothing was explained.
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<String>,
    reaches: Vec<Reached>,
    /// Why nothing was explained.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// What a task could reach, and who says so.
#[derive(Debug, Serialize)]
struct Reached {
    what: String,
    by: String,
}

impl Reached {
    fn of(reach: &Reach) -> Self {
        Self { what: reach.what.clone(), by: reach.by.clone() }
    }
}

impl Explained {
    pub(crate) fn of(kind: &Kind, reaches: &[Reach]) -> Self {
        let reaches = reaches.iter().map(Reached::of).collect();
        Self { kind: Some(kind.to_string()), reaches, error: None }
    }

    pub(crate) fn refused(error: String) -> Self {
        Self { kind: None, reaches: Vec::new(), error: Some(error) }
    }
}

/// The document of `backlot check --json`.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) files: Vec<File>,
    /// Why no file was looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
}

/// The document of `backlot plugin ls --json`, and of `reload`.
#[derive(Debug, Serialize)]
pub(crate) struct Plugins {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) folder: Option<String>,
    pub(crate) plugins: Vec<Plugin>,
    /// Why no kind was looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
}

impl Plugins {
    pub(crate) fn refused(error: String) -> Self {
        Self { folder: None, plugins: Vec::new(), error: Some(error) }
    }
}

/// A kind of a plugin folder, as it is or as a verb has left it.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Plugin {
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<String>,
    /// `serving`, `unloaded` or `broken`; `refused` where nothing was done.
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    contract: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    form: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    summary: Option<String>,
    /// The digests of the versions that are kept, the last one first.
    kept: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl Plugin {
    pub(crate) fn of(about: &Description, kept: Vec<String>) -> Self {
        Self {
            contract: about.contract,
            form: Some(about.form.to_string()),
            summary: Some(about.summary.clone()),
            ..Self::done(&about.kind, "serving", Some(about.digest.to_string()), kept)
        }
    }

    pub(crate) fn done(
        kind: &Kind,
        state: &'static str,
        digest: Option<String>,
        kept: Vec<String>,
    ) -> Self {
        Self { kind: Some(kind.to_string()), state, digest, kept, ..Self::default() }
    }

    pub(crate) fn broken(kind: Option<String>, why: String, kept: Vec<String>) -> Self {
        Self { kind, state: "broken", kept, error: Some(why), ..Self::default() }
    }

    pub(crate) fn refused(why: String) -> Self {
        Self { state: "refused", error: Some(why), ..Self::default() }
    }

    pub(crate) fn is_ok(&self) -> bool {
        self.error.is_none()
    }

    pub(crate) fn kind(&self) -> Option<&str> {
        self.kind.as_deref()
    }

    pub(crate) fn state(&self) -> &str {
        self.state
    }

    pub(crate) fn digest(&self) -> Option<&str> {
        self.digest.as_deref()
    }

    pub(crate) fn contract(&self) -> Option<&str> {
        self.contract
    }

    pub(crate) fn kept(&self) -> &[String] {
        &self.kept
    }

    pub(crate) fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }
}

/// The document of `backlot plugin inspect --json`.
#[derive(Debug, Serialize)]
pub(crate) struct Inspected {
    file: String,
    #[serde(flatten)]
    component: Component,
    /// The digests of the versions that are kept, the last one first.
    kept: Vec<String>,
    reaches: Vec<Reached>,
}

impl Inspected {
    pub(crate) fn of(file: &Path, about: &Description, kept: &[Kept], reaches: &[Reach]) -> Self {
        Self {
            file: file.display().to_string(),
            component: Component::of(about),
            kept: kept.iter().map(|kept| kept.digest.clone()).collect(),
            reaches: reaches.iter().map(Reached::of).collect(),
        }
    }
}

/// What became of loading a file.
#[derive(Debug, Serialize)]
pub(crate) struct File {
    pub(crate) file: String,
    pub(crate) ok: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub(crate) component: Option<Component>,
}

impl File {
    pub(crate) fn of(file: &Path, loaded: Result<&Description, String>) -> Self {
        Self {
            file: file.display().to_string(),
            ok: loaded.is_ok(),
            component: loaded.as_ref().ok().map(|about| Component::of(about)),
            error: loaded.err(),
        }
    }
}

/// A component, as `--json` shows it.
#[derive(Debug, Serialize)]
pub(crate) struct Component {
    form: String,
    contract: Option<&'static str>,
    kind: String,
    summary: String,
    input_schema: Option<serde_json::Value>,
    stdout_is_output: bool,
    stops_by_drop: bool,
    exit_codes: bool,
    steps: bool,
    digest: String,
    exports: Vec<String>,
    imports: Vec<String>,
    needs: Vec<&'static str>,
}

impl Component {
    fn of(about: &Description) -> Self {
        Self {
            form: about.form.to_string(),
            contract: about.contract,
            kind: about.kind.to_string(),
            summary: about.summary.clone(),
            input_schema: about
                .input_schema
                .as_deref()
                .and_then(|schema| serde_json::from_str(schema).ok()),
            stdout_is_output: about.stdout_is_output,
            stops_by_drop: about.stops_by_drop,
            exit_codes: about.exit_codes,
            steps: about.steps,
            digest: about.digest.to_string(),
            exports: about.exports.clone(),
            imports: about.imports.clone(),
            needs: about.needs.clone(),
        }
    }
}
