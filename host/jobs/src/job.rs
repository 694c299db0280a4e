//! The life of a job, on one screen.
//!
//! [`next`] is the only place where a job changes. Stores call it inside the
//! transaction that writes what it returns, so whoever loses a race is told so
//! there, and by nothing else.

use std::{fmt, sync::Arc};

use backlot_registry::{Cause, Kind, SessionId};
use serde::{Deserialize, Serialize};

use crate::{
    id::{DeliveryId, JobId, RunId},
    retry::RetryPolicy,
    schedule::Schedule,
    serial, text,
};

/// Durable work: one or more runs, over attempts and steps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// Its id.
    pub id: JobId,
    /// What it was spawned with. Nothing changes it.
    #[serde(with = "serial::shared")]
    pub spec: Arc<Spec>,
    /// How many jobs are above it, and itself; 1 for that of a session that is no job's.
    pub depth: u32,
    /// Where it stands in its life.
    pub phase: Phase,
    /// What its current run was started with, or its next will be.
    pub stage: Stage,
    /// Which attempt this is; the first is 1.
    pub attempt: u32,
    /// Which step the current run is; the first is 0.
    pub step: u32,
    /// How many runs have followed since the spawn or the last retry.
    pub continuations: u32,
    /// Where the work stands, in words that only its kind knows.
    pub state: Option<String>,
    /// What the runs of this attempt run.
    pub code: Vec<Code>,
    /// The stop that was asked for.
    pub stop: Option<StopRequest>,
    /// What its last run said of itself when it ended.
    pub detail: Option<String>,
    /// The ending that somebody still has to hear of.
    pub debt: Option<DeliveryId>,
    /// The ending that its webhook still has to be told of, or could not be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<Box<Call>>,
    /// How often it has ended.
    pub endings: u32,
    /// When it was spawned, in milliseconds since the Unix epoch.
    pub created_ms: u64,
    /// When it last changed. Never before it was spawned.
    pub updated_ms: u64,
}

/// What a job is spawned with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spec {
    /// What sort of job it is.
    #[serde(with = "serial::kind")]
    pub kind: Kind,
    /// The input of its first run.
    pub input: String,
    /// The one line that it is shown under.
    pub label: String,
    /// The session that it works for.
    #[serde(with = "serial::session")]
    pub parent: SessionId,
    /// Which session of that name: one that was deleted and opened anew is another.
    pub incarnation: u64,
    /// What its runs ask to be granted, in the launcher's own words.
    pub grant: Option<String>,
    /// The configuration that it was spawned under, in the host's own words.
    pub inherit: Option<String>,
    /// The run of the parent that spawned it.
    pub parent_run: Option<String>,
    /// The entry of the parent's session that its changes are told under.
    pub entry: Option<String>,
    /// Under which a second spawn gets this job instead of another.
    pub key: Option<String>,
    /// How many attempts it may have; the first counts.
    pub max_attempts: u32,
    /// What is tried again without being asked.
    pub retry: Option<RetryPolicy>,
    /// The digest of the one version that all its runs are to run.
    pub pinned: Option<String>,
    /// When it is to start.
    pub schedule: Option<Schedule>,
    /// Whether its ending is owed to its parent.
    pub announced: bool,
    /// Where its endings are told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook: Option<Webhook>,
    /// The trace that it belongs to, and the span that it was spawned in, as W3C's
    /// `traceparent` has them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<String>,
}

/// Where the endings of a job are told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Webhook {
    /// At a URL that was named when it was spawned.
    Url(String),
    /// Where its host has those told that name no URL.
    Host,
}

impl Webhook {
    /// Returns whose it is: the host that the URL names, by which those are told apart
    /// that must not wait for one another. That of the job's host has no name here.
    pub fn receiver(&self) -> String {
        let Self::Url(url) = self else { return String::new() };
        let rest = url.split_once("://").map_or(url.as_str(), |(_, rest)| rest);
        let server = rest.split(['/', '\\', '?', '#']).next().unwrap_or_default();
        let server = server.rsplit_once('@').map_or(server, |(_, server)| server);
        let host = match server.rsplit_once(':') {
            // The colons of an address in brackets are its own.
            Some((host, port)) if !port.contains(']') => host,
            _ => server,
        };
        host.to_ascii_lowercase()
    }
}

/// An ending that a webhook is to be told of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// Names what is told. It is the same however often that is tried.
    pub delivery: DeliveryId,
    /// How often it was tried.
    pub tries: u32,
    /// When it is tried next, in milliseconds since the Unix epoch; never again where it
    /// was given up.
    pub due_ms: Option<u64>,
    /// Why the last try failed, in a line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// Where a job stands, with what belongs to that.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// It has no run: it waits for a place, or for its time.
    Queued {
        /// What it waits for.
        wait: Wait,
        /// Its place among those that wait: lower ones come first.
        place: u64,
        /// The run before.
        last: Option<Run>,
    },
    /// A run is under way, or being launched.
    Working {
        /// The run.
        run: Run,
    },
    /// It has no run: a person has been asked.
    InputRequired {
        /// What was asked.
        question: Question,
        /// The run that led to it.
        last: Run,
    },
    /// It has ended. Only a retry changes that, and only where it failed.
    Ended {
        /// How.
        ended: Ended,
        /// The last run; none where it never had one.
        last: Option<Run>,
    },
}

/// What a queued job waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "for")]
pub enum Wait {
    /// One of the places for live jobs.
    Place,
    /// A time, in milliseconds since the Unix epoch.
    Time {
        /// When.
        due_ms: u64,
    },
    /// The end of a back-off; the next run is another attempt.
    Retry {
        /// When.
        due_ms: u64,
    },
    /// The next of many times: each spawns a job of its own.
    Cron {
        /// When.
        due_ms: u64,
    },
}

impl Wait {
    /// Returns the time before which it does not start; 0 where it waits for no time.
    pub fn due_ms(&self) -> u64 {
        match self {
            Self::Place => 0,
            Self::Time { due_ms } | Self::Retry { due_ms } | Self::Cron { due_ms } => *due_ms,
        }
    }
}

/// What a run is started with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stage {
    /// The kind of the run, where it is not the job's.
    #[serde(with = "serial::some_kind")]
    pub kind: Option<Kind>,
    /// Its input, where it is not the job's.
    pub input: Option<String>,
    /// Why it is started.
    #[serde(with = "serial::cause")]
    pub cause: Cause,
    /// Why the attempt before failed.
    pub last_failure: Option<String>,
    /// What a person answered.
    pub answer: Option<String>,
}

/// One run of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Its id.
    pub id: RunId,
    /// What ran.
    #[serde(with = "serial::kind")]
    pub kind: Kind,
    /// Why it was started.
    #[serde(with = "serial::cause")]
    pub cause: Cause,
    /// Which attempt it belongs to.
    pub attempt: u32,
    /// Which step it is.
    pub step: u32,
    /// The registry's id of the task that did it, once it was launched.
    pub task: Option<String>,
    /// What code it ran, once it was launched.
    pub code: Option<Code>,
    /// When it was claimed, in milliseconds since the Unix epoch.
    pub started_ms: u64,
    /// When it ended.
    pub ended_ms: Option<u64>,
    /// How it ended: `completed`, `failed: ..` or `cancelled`.
    pub outcome: Option<String>,
}

/// The version of a kind that runs of one attempt run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Code {
    /// The kind.
    #[serde(with = "serial::kind")]
    pub kind: Kind,
    /// Identifies the code.
    pub digest: String,
    /// Which version of the kind it was on the host that launched it.
    pub generation: u64,
}

/// What a person is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Question {
    /// In words.
    pub prompt: String,
    /// A JSON Schema for the answer; none where any text will do.
    pub schema: Option<String>,
}

/// A stop that was asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopRequest {
    /// Who asked.
    pub by: String,
    /// Why, in their words.
    pub why: Option<String>,
    /// When, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// Whether the current run may finish first.
    pub after_step: bool,
}

/// How a job ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// How.
    pub ending: Ending,
    /// The beginning of the result, or why there is none.
    pub summary: String,
    /// The result.
    pub result: Option<String>,
    /// When, in milliseconds since the Unix epoch.
    pub at_ms: u64,
}

/// How a job ended, in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// The work was finished.
    Completed,
    /// It was not.
    Failed(Failure),
    /// Somebody stopped it.
    Cancelled,
}

/// What sort of failure ended an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Failure {
    /// The work failed.
    Work,
    /// A run could not be launched.
    Launch,
    /// The host stopped or crashed under it.
    Interrupted,
}

/// Where a job stands, in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// It waits for a place or for its time.
    Queued,
    /// A run is under way.
    Working,
    /// A person has been asked.
    InputRequired,
    /// It is finished.
    Completed,
    /// It has failed.
    Failed,
    /// It was stopped.
    Cancelled,
}

impl Status {
    /// Every status, in the order of a life.
    pub const ALL: [Self; 6] = [
        Self::Queued,
        Self::Working,
        Self::InputRequired,
        Self::Completed,
        Self::Failed,
        Self::Cancelled,
    ];

    /// Returns whether it is an ending.
    pub fn is_terminal(self) -> bool {
        matches!(self, Self::Completed | Self::Failed | Self::Cancelled)
    }

    /// Returns whether it takes one of the places for live jobs.
    pub fn is_live(self) -> bool {
        matches!(self, Self::Working | Self::InputRequired)
    }

    /// Returns the word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Working => "working",
            Self::InputRequired => "input_required",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl Job {
    /// Returns where it stands, in a word.
    pub fn status(&self) -> Status {
        match &self.phase {
            Phase::Queued { .. } => Status::Queued,
            Phase::Working { .. } => Status::Working,
            Phase::InputRequired { .. } => Status::InputRequired,
            Phase::Ended { ended, .. } => match ended.ending {
                Ending::Completed => Status::Completed,
                Ending::Failed(_) => Status::Failed,
                Ending::Cancelled => Status::Cancelled,
            },
        }
    }

    /// Returns the run that is under way.
    pub fn run(&self) -> Option<RunId> {
        match &self.phase {
            Phase::Working { run } => Some(run.id),
            _ => None,
        }
    }

    /// Returns the run that is under way, or the last one.
    pub fn last_run(&self) -> Option<&Run> {
        match &self.phase {
            Phase::Working { run } => Some(run),
            Phase::InputRequired { last, .. } => Some(last),
            Phase::Queued { last, .. } | Phase::Ended { last, .. } => last.as_ref(),
        }
    }

    /// Returns how it ended, if it has.
    pub fn ended(&self) -> Option<&Ended> {
        match &self.phase {
            Phase::Ended { ended, .. } => Some(ended),
            _ => None,
        }
    }

    /// Returns the kind of its current run, or of its next.
    pub fn stage_kind(&self) -> &Kind {
        self.stage.kind.as_ref().unwrap_or(&self.spec.kind)
    }

    /// Returns the input of its current run, or of its next.
    pub fn stage_input(&self) -> &str {
        self.stage.input.as_deref().unwrap_or(&self.spec.input)
    }

    /// Returns the digest that a run of that kind must have, if that is settled.
    pub fn digest_for(&self, kind: &Kind) -> Option<&str> {
        let pinned = self.spec.pinned.as_deref().filter(|_| *kind == self.spec.kind);
        let ran = || self.code.iter().find(|code| code.kind == *kind);
        pinned.or_else(|| ran().map(|code| code.digest.as_str()))
    }

    /// Returns what its webhook still has to be told, unless that was given up.
    pub fn due_call(&self) -> Option<&Call> {
        self.call.as_deref().filter(|call| call.due_ms.is_some())
    }

    /// Returns what there is to hear of its ending, in a line.
    pub fn summary(&self) -> Option<&str> {
        self.ended().map(|ended| ended.summary.as_str())
    }
}

/// What happens to a job.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Its turn or its time has come: the run is claimed, and launched once that is
    /// written.
    Started {
        /// The run.
        run: RunId,
    },
    /// A time of many has come; the job goes on waiting for the next.
    Fired {
        /// The next one.
        due_ms: u64,
    },
    /// A run was launched.
    Launched {
        /// The run.
        run: RunId,
        /// The registry's id of the task that does it.
        task: Option<String>,
        /// What it runs.
        code: Option<Code>,
    },
    /// A run of it has ended, and with it the job, or the attempt.
    Finished {
        /// The run; the current one where the outcome names none.
        run: Option<RunId>,
        /// How.
        report: Report,
    },
    /// A run of it has completed or failed, and another follows.
    Advanced {
        /// The run that ended.
        run: RunId,
        /// How, in a line.
        outcome: String,
        /// The run that follows.
        next: RunId,
        /// What it is started with.
        step: NextStep,
    },
    /// A run of it has ended, and a person is asked how to go on.
    Asked {
        /// The run that ended.
        run: RunId,
        /// How, in a line.
        outcome: String,
        /// What is asked.
        question: Question,
        /// Where the work stands; none keeps what was recorded.
        state: Option<String>,
    },
    /// The person has answered.
    Answered {
        /// The run that led to the question.
        asked: RunId,
        /// The run that follows.
        run: RunId,
        /// The answer.
        answer: String,
    },
    /// A failed job is tried again.
    Retried {
        /// The run of the new attempt.
        run: RunId,
    },
    /// Somebody wants it to stop.
    StopRequested {
        /// Who, why and how.
        stop: StopRequest,
    },
    /// The state is replaced while the run goes on.
    Rewritten {
        /// The run.
        run: RunId,
        /// The new state.
        state: String,
    },
    /// The telling of its ending was settled.
    Settled {
        /// Which ending.
        delivery: DeliveryId,
    },
    /// Its webhook was told of its ending.
    Called {
        /// Which ending.
        delivery: DeliveryId,
    },
    /// Its webhook could not be told of its ending.
    CallFailed {
        /// Which ending.
        delivery: DeliveryId,
        /// Why, in a line.
        why: String,
        /// When that is tried again, in milliseconds since the Unix epoch; never where it
        /// is given up.
        due_ms: Option<u64>,
    },
}

/// How a run ended that nothing follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// How the job ends with it.
    pub ending: Ending,
    /// The result.
    pub result: Option<String>,
    /// One line about it: why it failed, or how it was completed.
    pub detail: Option<String>,
    /// Where the work stands at its end; none keeps what was recorded.
    pub state: Option<String>,
    /// When a failed attempt is followed by another without being asked for.
    pub again_ms: Option<u64>,
    /// Whether whoever is owed the ending hears of it in hand.
    pub told: bool,
}

/// The run that follows another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NextStep {
    /// Its kind, where it is not the job's.
    pub kind: Option<Kind>,
    /// Its input.
    pub input: String,
    /// Where the work stands; none keeps what was recorded.
    pub state: Option<String>,
}

/// A job after an event.
#[derive(Clone, Debug, PartialEq)]
pub struct Next {
    /// The job as it is now.
    pub job: Job,
    /// The run that is over, where another follows it.
    pub past: Option<Run>,
}

/// Why an event changed nothing: somebody else was there first, or it cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Lost {
    /// The job is not on that run any more.
    #[error("the job is {status} and not on that run any more")]
    Moved {
        /// Where it stands.
        status: Status,
        /// The run that it is on.
        run: Option<RunId>,
    },
    /// It has ended already.
    #[error("the job is {status} already")]
    Ended {
        /// How.
        status: Status,
    },
    /// Only what failed can be tried again.
    #[error("only a failed job can be retried, and this one is {status}{}", why_not(*.status))]
    NotFailed {
        /// Where it stands.
        status: Status,
    },
    /// All attempts were used.
    #[error("the job has had {used} of {max} attempts, the first one included")]
    Exhausted {
        /// How many it has had.
        used: u32,
        /// How many it may have.
        max: u32,
    },
    /// Nobody was asked anything.
    #[error("the job is {status} and waits for no answer")]
    NotAsked {
        /// Where it stands.
        status: Status,
    },
    /// It does not wait, or not for that.
    #[error("the job is {status} and does not wait to be started")]
    NotQueued {
        /// Where it stands.
        status: Status,
    },
    /// That ending is owed to nobody.
    #[error("that ending is not owed any more")]
    NotOwed,
}

fn why_not(status: Status) -> &'static str {
    match status {
        Status::Completed => ": it has its result",
        Status::Cancelled => ": it was stopped on purpose",
        _ => "",
    }
}

/// Returns the job as it is after the event. `now_ms` is the time of day, in
/// milliseconds since the Unix epoch; a job's own times never go back when it does.
///
/// # Errors
///
/// [`Lost`] where the event came too late or cannot be; the job stays as it is.
pub fn next(job: &Job, event: &Event, now_ms: u64) -> Result<Next, Lost> {
    let now_ms = now_ms.max(job.updated_ms);
    let mut new = Next { job: Job { updated_ms: now_ms, ..job.clone() }, past: None };
    match (&job.phase, event) {
        (Phase::Queued { wait: Wait::Cron { .. }, place, last }, Event::Fired { due_ms }) => {
            let (wait, last) = (Wait::Cron { due_ms: *due_ms }, last.clone());
            new.job.phase = Phase::Queued { wait, place: *place, last };
        }
        (Phase::Queued { wait, last, .. }, Event::Started { run })
            if !matches!(wait, Wait::Cron { .. }) =>
        {
            new.past = last.clone();
            if matches!(wait, Wait::Retry { .. }) {
                new.job.try_again(None);
            }
            new.job.begin(*run, now_ms);
        }
        (Phase::Working { run }, Event::Launched { run: launched, task, code })
            if run.id == *launched =>
        {
            let run = Run { task: task.clone(), code: code.clone(), ..run.clone() };
            new.job.phase = Phase::Working { run };
            new.job.code.retain(|held| Some(&held.kind) != code.as_ref().map(|code| &code.kind));
            new.job.code.extend(code.clone());
        }
        (Phase::Working { run }, Event::Rewritten { run: current, state })
            if run.id == *current =>
        {
            new.job.keep(Some(state));
        }
        (Phase::Working { run }, Event::Finished { run: ended, report })
            if ended.is_none_or(|ended| run.id == ended) =>
        {
            new.job.finish(run.clone(), report, now_ms);
        }
        // A person who is asked is not interrupted by a run, for there is none; what
        // ends the job then names no run.
        (Phase::InputRequired { last, .. }, Event::Finished { run, report })
            if run.is_none_or(|run| last.id == run) =>
        {
            new.job.finish(last.clone(), report, now_ms);
        }
        (
            Phase::Working { run },
            Event::Advanced { run: ended, outcome, .. } | Event::Asked { run: ended, outcome, .. },
        ) if run.id == *ended && job.stop.is_some() => {
            // A stop that races what would follow wins.
            new.job.cancel(Some(run.over(outcome, now_ms)), now_ms);
        }
        (Phase::Working { run }, Event::Advanced { run: ended, outcome, next, step })
            if run.id == *ended =>
        {
            new.past = Some(run.over(outcome, now_ms));
            new.job.go_on(step.clone());
            new.job.begin(*next, now_ms);
        }
        (Phase::Working { run }, Event::Asked { run: ended, outcome, question, state })
            if run.id == *ended =>
        {
            let (question, last) = (question.clone(), run.over(outcome, now_ms));
            new.job.phase = Phase::InputRequired { question, last };
            new.job.keep(state.as_ref());
        }
        (Phase::InputRequired { last, .. }, Event::Answered { asked, run, answer })
            if last.id == *asked =>
        {
            new.past = Some(last.clone());
            new.job.answer(answer.clone());
            new.job.begin(*run, now_ms);
        }
        (Phase::Ended { ended, last }, Event::Retried { run })
            if matches!(ended.ending, Ending::Failed(_)) =>
        {
            let (used, max) = (job.attempt, job.spec.max_attempts);
            if used >= max {
                return Err(Lost::Exhausted { used, max });
            }
            new.past = last.clone();
            new.job.try_again(Some(ended.summary.clone()));
            new.job.begin(*run, now_ms);
        }
        (Phase::Queued { last, .. }, Event::StopRequested { stop }) => {
            new.job.stop = Some(stop.clone());
            new.job.cancel(last.clone(), now_ms);
        }
        (Phase::InputRequired { last, .. }, Event::StopRequested { stop }) => {
            new.job.stop = Some(stop.clone());
            new.job.cancel(Some(last.clone()), now_ms);
        }
        (Phase::Working { .. }, Event::StopRequested { stop }) => {
            // Who asked first is told of; that the step need not be waited for is heeded.
            let first = job.stop.as_ref().unwrap_or(stop);
            let after_step = first.after_step && stop.after_step;
            new.job.stop = Some(StopRequest { after_step, ..first.clone() });
        }
        (Phase::Ended { .. }, Event::Settled { delivery })
            if job.debt.as_ref() == Some(delivery) =>
        {
            new.job.debt = None;
            new.job.updated_ms = job.updated_ms;
        }
        (Phase::Ended { .. }, Event::Called { delivery })
            if job.due_call().is_some_and(|call| call.delivery == *delivery) =>
        {
            new.job.call = None;
            new.job.updated_ms = job.updated_ms;
        }
        (Phase::Ended { .. }, Event::CallFailed { delivery, why, due_ms })
            if let Some(call) = job.due_call().filter(|call| call.delivery == *delivery) =>
        {
            let (tries, why) = (call.tries.saturating_add(1), Some(why.clone()));
            let delivery = delivery.clone();
            new.job.call = Some(Box::new(Call { delivery, tries, due_ms: *due_ms, why }));
            new.job.updated_ms = job.updated_ms;
        }
        (_, Event::Settled { .. } | Event::Called { .. } | Event::CallFailed { .. }) => {
            return Err(Lost::NotOwed);
        }
        (_, Event::Retried { .. }) => return Err(Lost::NotFailed { status: job.status() }),
        // It is another question by now.
        (Phase::InputRequired { .. }, Event::Answered { .. }) => {
            return Err(Lost::Moved { status: job.status(), run: None });
        }
        (_, Event::Answered { .. }) => return Err(Lost::NotAsked { status: job.status() }),
        (_, Event::Started { .. } | Event::Fired { .. }) => {
            return Err(Lost::NotQueued { status: job.status() });
        }
        (Phase::Ended { .. }, Event::StopRequested { .. }) => {
            return Err(Lost::Ended { status: job.status() });
        }
        (
            _,
            Event::Launched { .. }
            | Event::Rewritten { .. }
            | Event::Finished { .. }
            | Event::Advanced { .. }
            | Event::Asked { .. },
        ) => return Err(Lost::Moved { status: job.status(), run: job.run() }),
    }
    Ok(new)
}

// What `next` is made of.
impl Job {
    /// Puts it on a new run of its stage.
    fn begin(&mut self, id: RunId, now_ms: u64) {
        let run = Run {
            id,
            kind: self.stage_kind().clone(),
            cause: self.stage.cause,
            attempt: self.attempt,
            step: self.step,
            task: None,
            code: None,
            started_ms: now_ms,
            ended_ms: None,
            outcome: None,
        };
        self.phase = Phase::Working { run };
        self.debt = None;
        self.call = None;
        self.detail = None;
    }

    /// Ends it with a run, or puts it aside until it is tried again.
    fn finish(&mut self, run: Run, report: &Report, now_ms: u64) {
        self.keep(report.state.as_ref());
        self.detail = report.detail.clone();
        let summary = text::summary(report);
        let last = run.over(&text::outcome(report), now_ms);
        let again = report.again_ms.filter(|_| {
            matches!(report.ending, Ending::Failed(_))
                && self.stop.is_none()
                && self.attempt < self.spec.max_attempts
        });
        if let Some(due_ms) = again {
            self.stage.last_failure = Some(summary);
            let wait = Wait::Retry { due_ms };
            // The store has its place.
            self.phase = Phase::Queued { wait, place: 0, last: Some(last) };
            return;
        }
        let ended =
            Ended { ending: report.ending, summary, result: report.result.clone(), at_ms: now_ms };
        self.end(ended, Some(last), report.told);
    }

    /// Ends it because somebody has stopped it.
    fn cancel(&mut self, last: Option<Run>, now_ms: u64) {
        let why = self.stop.as_ref().and_then(|stop| stop.why.as_deref());
        let summary = text::cancelled(why);
        let ended = Ended { ending: Ending::Cancelled, summary, result: None, at_ms: now_ms };
        self.end(ended, last, true);
    }

    fn end(&mut self, ended: Ended, last: Option<Run>, told: bool) {
        self.endings += 1;
        // Who stopped it knows.
        let owed = self.spec.announced && !told && ended.ending != Ending::Cancelled;
        let delivery = DeliveryId::new(self.id, self.endings);
        // Who stopped it is not whom a webhook tells.
        self.call = self.spec.webhook.is_some().then(|| {
            let (delivery, due_ms) = (delivery.clone(), Some(ended.at_ms));
            Box::new(Call { delivery, tries: 0, due_ms, why: None })
        });
        self.debt = owed.then_some(delivery);
        self.phase = Phase::Ended { ended, last };
    }

    /// Makes the next run one more attempt at the stage that failed.
    fn try_again(&mut self, failure: Option<String>) {
        self.attempt += 1;
        self.continuations = 0;
        self.code.clear();
        self.stage.cause = Cause::Retry;
        self.stage.last_failure = failure.or(self.stage.last_failure.take());
        self.stop = None;
    }

    fn go_on(&mut self, step: NextStep) {
        self.step += 1;
        self.continuations += 1;
        self.keep(step.state.as_ref());
        self.stage = Stage {
            kind: step.kind.filter(|kind| *kind != self.spec.kind),
            input: Some(step.input),
            cause: Cause::Step,
            last_failure: None,
            answer: None,
        };
    }

    fn answer(&mut self, answer: String) {
        self.step += 1;
        self.continuations += 1;
        // An answer is for the kind that asked, which knows the rest from the state.
        self.stage = Stage {
            kind: None,
            input: None,
            cause: Cause::Answer,
            last_failure: None,
            answer: Some(answer),
        };
    }

    fn keep(&mut self, state: Option<&String>) {
        if let Some(state) = state {
            self.state = Some(state.clone());
        }
    }
}

impl Run {
    /// Returns the run as one that is over.
    fn over(&self, outcome: &str, now_ms: u64) -> Self {
        if self.ended_ms.is_some() {
            return self.clone();
        }
        Self { ended_ms: Some(now_ms), outcome: Some(outcome.to_owned()), ..self.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_MS: u64 = 7;

    fn run(number: u128) -> Run {
        Run {
            id: RunId::from_bits(number),
            kind: Kind::new("grep").unwrap(),
            cause: Cause::Spawn,
            attempt: 1,
            step: 0,
            task: None,
            code: None,
            started_ms: 1,
            ended_ms: None,
            outcome: None,
        }
    }

    fn over(number: u128) -> Run {
        Run { ended_ms: Some(5), outcome: Some("over".into()), ..run(number) }
    }

    fn job(phase: Phase) -> Job {
        let kind = Kind::new("grep").unwrap();
        let spec = Spec {
            kind: kind.clone(),
            input: "input".into(),
            label: "look".into(),
            parent: "chat".into(),
            incarnation: 1,
            grant: None,
            inherit: None,
            parent_run: None,
            entry: None,
            key: None,
            max_attempts: 2,
            retry: None,
            pinned: None,
            schedule: None,
            announced: true,
            webhook: None,
            trace: None,
        };
        let stage = Stage {
            kind: None,
            input: None,
            cause: Cause::Spawn,
            last_failure: None,
            answer: None,
        };
        Job {
            id: JobId::from_bits(1),
            spec: Arc::new(spec),
            depth: 1,
            phase,
            stage,
            attempt: 1,
            step: 0,
            continuations: 0,
            state: Some("old".into()),
            code: vec![Code { kind, digest: "sha".into(), generation: 1 }],
            stop: None,
            detail: Some("half".into()),
            debt: None,
            call: None,
            endings: 0,
            created_ms: 1,
            updated_ms: 5,
        }
    }

    fn ended(ending: Ending) -> Job {
        let (summary, result) = ("before".to_owned(), Some("result".to_owned()));
        let ended = Ended { ending, summary, result, at_ms: 5 };
        let endings = 1;
        Job { endings, ..job(Phase::Ended { ended, last: Some(over(1)) }) }
    }

    fn stopping(after_step: bool) -> StopRequest {
        StopRequest { by: "first".into(), why: Some("late".into()), at_ms: 4, after_step }
    }

    fn states() -> Vec<(&'static str, Job)> {
        let queued = |wait, last| job(Phase::Queued { wait, place: 3, last });
        let working = || job(Phase::Working { run: run(1) });
        let question = Question { prompt: "which?".into(), schema: None };
        let failed = ended(Ending::Failed(Failure::Work));
        let calling = |job: Job, due_ms: Option<u64>| {
            let spec = Spec { webhook: Some(Webhook::Host), ..(*job.spec).clone() };
            let delivery = DeliveryId::new(job.id, 1);
            let call = Call { delivery, tries: 2, due_ms, why: Some("late".into()) };
            let call = job.ended().is_some().then(|| Box::new(call));
            Job { spec: Arc::new(spec), call, ..job }
        };
        vec![
            ("queued for a place", queued(Wait::Place, None)),
            ("queued for a time", queued(Wait::Time { due_ms: 9 }, None)),
            ("queued for a retry", queued(Wait::Retry { due_ms: 9 }, Some(over(1)))),
            ("queued by cron", queued(Wait::Cron { due_ms: 9 }, None)),
            ("working", working()),
            ("working, to stop", Job { stop: Some(stopping(false)), ..working() }),
            ("working, to stop after the step", Job { stop: Some(stopping(true)), ..working() }),
            ("working, the last attempt", Job { attempt: 2, ..working() }),
            ("working, with a webhook", calling(working(), None)),
            ("asking", job(Phase::InputRequired { question, last: over(1) })),
            ("completed", ended(Ending::Completed)),
            ("failed", failed.clone()),
            ("failed, owed", Job { debt: Some(DeliveryId::new(failed.id, 1)), ..failed.clone() }),
            ("failed, a call due", calling(failed.clone(), Some(9))),
            ("failed, a call given up", calling(failed.clone(), None)),
            ("failed, the last attempt", Job { attempt: 2, ..failed }),
            ("cancelled", ended(Ending::Cancelled)),
        ]
    }

    fn events() -> Vec<(&'static str, Event)> {
        let id = RunId::from_bits;
        let report = |ending| Report {
            ending,
            result: Some("new result".into()),
            detail: Some("said".into()),
            state: Some("new".into()),
            again_ms: None,
            told: false,
        };
        let failed = report(Ending::Failed(Failure::Work));
        let finished = |run: Option<u128>, report| Event::Finished { run: run.map(id), report };
        let step = NextStep {
            kind: Some(Kind::new("checksum").unwrap()),
            input: "more".into(),
            state: None,
        };
        let advanced = |run| Event::Advanced {
            run: id(run),
            outcome: "completed".into(),
            next: id(8),
            step: step.clone(),
        };
        let asked = |run| Event::Asked {
            run: id(run),
            outcome: "completed".into(),
            question: Question { prompt: "and now?".into(), schema: None },
            state: Some("new".into()),
        };
        let stop = |after_step| StopRequest {
            by: "second".into(),
            why: Some("enough".into()),
            at_ms: 6,
            after_step,
        };
        let code = Code { kind: Kind::new("grep").unwrap(), digest: "other".into(), generation: 2 };
        let launched = |run| Event::Launched {
            run: id(run),
            task: Some("grep/1".into()),
            code: Some(code.clone()),
        };
        let delivery = |number| DeliveryId::new(JobId::from_bits(1), number);
        let settled = |number| Event::Settled { delivery: delivery(number) };
        let call_failed = |number, due_ms| Event::CallFailed {
            delivery: delivery(number),
            why: "refused".into(),
            due_ms,
        };
        vec![
            ("started", Event::Started { run: id(8) }),
            ("fired", Event::Fired { due_ms: 20 }),
            ("launched", launched(1)),
            ("launched, another run", launched(9)),
            ("completed", finished(Some(1), report(Ending::Completed))),
            (
                "completed, told",
                finished(Some(1), Report { told: true, ..report(Ending::Completed) }),
            ),
            ("completed, no run", finished(None, report(Ending::Completed))),
            ("completed, another run", finished(Some(9), report(Ending::Completed))),
            ("failed", finished(Some(1), failed.clone())),
            ("failed, again later", finished(Some(1), Report { again_ms: Some(30), ..failed })),
            ("cancelled", finished(Some(1), report(Ending::Cancelled))),
            ("advanced", advanced(1)),
            ("advanced, another run", advanced(9)),
            ("asked", asked(1)),
            ("asked, another run", asked(9)),
            ("answered", Event::Answered { asked: id(1), run: id(8), answer: "that".into() }),
            (
                "answered, another question",
                Event::Answered { asked: id(9), run: id(8), answer: "that".into() },
            ),
            ("retried", Event::Retried { run: id(8) }),
            ("stop", Event::StopRequested { stop: stop(false) }),
            ("stop after the step", Event::StopRequested { stop: stop(true) }),
            ("rewritten", Event::Rewritten { run: id(1), state: "new".into() }),
            ("rewritten, another run", Event::Rewritten { run: id(9), state: "new".into() }),
            ("settled", settled(1)),
            ("settled, another ending", settled(2)),
            ("called", Event::Called { delivery: delivery(1) }),
            ("called, another ending", Event::Called { delivery: delivery(2) }),
            ("call failed", call_failed(1, Some(40))),
            ("call failed, another ending", call_failed(2, Some(40))),
            ("call given up", call_failed(1, None)),
        ]
    }

    /// Shows where a job stands, and what about it is not as it was.
    fn show(old: &Job, result: &Result<Next, Lost>) -> String {
        let Next { job, past } = match result {
            Ok(next) => next,
            Err(lost) => return lost.to_string(),
        };
        let number = |run: &Run| run.id.bits();
        let mut shown = match &job.phase {
            Phase::Queued { wait, place, last } => {
                format!("queued for {wait:?} at {place} after {:?}", last.as_ref().map(number))
            }
            Phase::Working { run } => format!(
                "working on run {} of {}, attempt {}, step {}, by {:?}, as {:?}",
                number(run),
                run.kind,
                run.attempt,
                run.step,
                run.cause,
                run.task
            ),
            Phase::InputRequired { question, last } => {
                format!("asking {:?} after {}", question.prompt, number(last))
            }
            Phase::Ended { ended, last } => {
                assert_eq!(ended.at_ms, if old.ended().is_some() { 5 } else { NOW_MS });
                let (summary, result) = (&ended.summary, &ended.result);
                let last = last.as_ref().map(number);
                format!("{}: {summary}, {result:?}, after {last:?}", job.status())
            }
        };
        let mut add = |what: &str, was: String, is: String| {
            if was != is {
                shown += &format!("; {what} {is}");
            }
        };
        let optional = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".into());
        let outcome = |job: &Job| job.last_run().and_then(|run| run.outcome.clone());
        add("outcome", optional(&outcome(old)), optional(&outcome(job)));
        add(
            "past",
            String::new(),
            past.as_ref().map_or(String::new(), |run| {
                format!("{} {}", run.id.bits(), optional(&run.outcome))
            }),
        );
        add("attempt", old.attempt.to_string(), job.attempt.to_string());
        add("step", old.step.to_string(), job.step.to_string());
        add("continuations", old.continuations.to_string(), job.continuations.to_string());
        add("state", optional(&old.state), optional(&job.state));
        add("input", old.stage_input().into(), job.stage_input().into());
        add("failure", optional(&old.stage.last_failure), optional(&job.stage.last_failure));
        add("answer", optional(&old.stage.answer), optional(&job.stage.answer));
        add("detail", optional(&old.detail), optional(&job.detail));
        let code = |job: &Job| match &job.code[..] {
            [] => "-".to_owned(),
            code => code.iter().map(|code| code.digest.as_str()).collect(),
        };
        add("code", code(old), code(job));
        let stop = |job: &Job| match &job.stop {
            None => "-".to_owned(),
            Some(stop) if stop.after_step => format!("by {} after the step", stop.by),
            Some(stop) => format!("by {}", stop.by),
        };
        add("stop", stop(old), stop(job));
        let debt = |job: &Job| {
            job.debt.as_ref().map_or("-".to_owned(), |debt| {
                debt.parts().map_or_else(String::new, |(_, number)| number.to_string())
            })
        };
        add("debt", debt(old), debt(job));
        let call = |job: &Job| match job.call.as_deref() {
            None => "-".to_owned(),
            Some(Call { delivery, tries, due_ms, why }) => {
                let number = delivery.parts().map_or(0, |(_, number)| number);
                format!("{number} at {due_ms:?} after {tries}: {}", optional(why))
            }
        };
        add("call", call(old), call(job));
        add("endings", old.endings.to_string(), job.endings.to_string());
        add("updated", NOW_MS.to_string(), job.updated_ms.to_string());
        shown
    }

    #[test]
    fn j2_every_event_in_every_state() {
        let mut table = String::new();
        for (name, job) in states() {
            table += &format!("{name}\n");
            for (event_name, event) in events() {
                let shown = show(&job, &next(&job, &event, NOW_MS));
                table += &format!("  {event_name} -> {shown}\n");
            }
        }
        assert!(table == include_str!("job.table.txt"), "job.table.txt should be:\n{table}");
    }

    #[test]
    fn c68_no_time_of_a_job_goes_back() {
        for (_, job) in states() {
            for (_, event) in events() {
                if let Ok(Next { job: new, past }) = next(&job, &event, 2) {
                    assert_eq!(new.updated_ms, job.updated_ms);
                    let runs = [past.as_ref(), new.last_run()].into_iter().flatten();
                    let times =
                        runs.map(|run| run.ended_ms).chain([new.ended().map(|it| it.at_ms)]);
                    assert!(times.flatten().all(|at_ms| at_ms >= job.updated_ms), "{new:?}");
                }
            }
        }
    }

    #[test]
    fn j1_what_a_job_was_spawned_with_stays() {
        for (_, job) in states() {
            for (_, event) in events() {
                if let Ok(Next { job: new, .. }) = next(&job, &event, NOW_MS) {
                    assert_eq!((new.id, &new.spec, new.created_ms), (job.id, &job.spec, 1));
                    assert!(new.debt.is_none() || new.ended().is_some(), "{new:?}");
                    assert!(new.call.is_none() || new.ended().is_some(), "{new:?}");
                }
            }
        }
    }

    #[test]
    fn a_webhook_is_of_the_host_that_its_url_names() {
        let receiver = |url: &str| Webhook::Url(url.into()).receiver();
        for url in [
            "https://Example.com/told",
            "http://example.com:8443",
            "https://user:p@ss@example.com?a:b",
            "https://example.com\\x",
            "example.com#x",
        ] {
            assert_eq!(receiver(url), "example.com", "{url}");
        }
        assert_eq!(receiver("https://[::1]:80/x"), "[::1]");
        assert_eq!(receiver("https://[::1]/x"), "[::1]");
        assert_eq!((receiver(""), Webhook::Host.receiver()), (String::new(), String::new()));
    }
}
