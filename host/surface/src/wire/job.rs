//! A job as it is shown, and what is asked of one.

use backlot_jobs::{
    Call, DeliveryId, Failure as Failed, How, Job, JobId, Phase, RetryPolicy, Run, RunId, Schedule,
    Status, Wait, Webhook,
};
use backlot_registry::Cause;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::{
    at_most,
    schema::{FailureName, Id, JobStatus},
};
use crate::error::Failure;

/// What is said beside jobs that are live, to whoever could do the same once more.
pub const DO_NOT_REDO: &str = "still working — do not redo its work";

/// A job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobView {
    /// Its id.
    #[schema(value_type = Id)]
    pub id: JobId,
    /// What sort of job it is.
    pub kind: String,
    /// The line that it is shown under.
    pub label: String,
    /// Where it stands, in a word.
    #[schema(value_type = JobStatus)]
    pub status: Status,
    /// Whether it takes one of the places for live jobs.
    pub live: bool,
    /// What is to be kept in mind of one that does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Where it stands in the words of its kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<String>,
    /// What there is to hear of its ending, in a line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
    /// What its last run said of itself when it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// Which attempt this is; the first is 1.
    pub attempt: u32,
    /// How many it may have.
    pub max_attempts: u32,
    /// Which step it is at; the first is 0.
    pub step: u32,
    /// How many runs have followed since the spawn or the last retry.
    pub continuations: u32,
    /// The session that it works for.
    pub session: String,
    /// The session that its runs belong to.
    pub own_session: String,
    /// The run that is under way, or the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<RunView>,
    /// What the runs of this attempt run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub code: Vec<CodeView>,
    /// The digest of the one version that all its runs are to run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pinned: Option<String>,
    /// What a person is asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub question: Option<QuestionView>,
    /// The stop that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop: Option<StopView>,
    /// What it waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits_for: Option<WaitView>,
    /// When it was to start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedule: Option<ScheduleView>,
    /// The key under which it is spawned once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// What is tried again without being asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetryView>,
    /// The ending that somebody still has to hear of.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub owed: Option<DeliveryId>,
    /// Where its endings are told: a URL, or `host` for where its host has such told that
    /// name none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webhook: Option<String>,
    /// What that still has to be told, or could not be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub call: Option<CallView>,
    /// When it was spawned.
    pub created_ms: u64,
    /// When it last changed.
    pub updated_ms: u64,
    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished_ms: Option<u64>,
    /// The input of its first run. This and what follows is in the answer about one job
    /// alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<String>,
    /// The result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<String>,
    /// Where the work stands, in words that only its kind knows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// What its runs ask to be granted, in the host's own words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grant: Option<String>,
    /// Its runs in order, the last one included.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub runs: Vec<RunView>,
}

impl JobView {
    /// Returns the view of a job with how far it is, as lists have it.
    pub fn brief(job: &Job, progress: Option<String>) -> Self {
        let live = job.status().is_live();
        let (question, waits_for) = match &job.phase {
            Phase::InputRequired { question, .. } => (Some(QuestionView::of(question)), None),
            Phase::Queued { wait, .. } => (None, Some(WaitView::of(wait))),
            Phase::Working { .. } | Phase::Ended { .. } => (None, None),
        };
        let spec = &*job.spec;
        Self {
            id: job.id,
            kind: spec.kind.to_string(),
            label: spec.label.clone(),
            status: job.status(),
            live,
            note: live.then(|| DO_NOT_REDO.to_owned()),
            progress,
            summary: job.summary().map(Into::into),
            detail: job.detail.clone(),
            attempt: job.attempt,
            max_attempts: spec.max_attempts,
            step: job.step,
            continuations: job.continuations,
            session: spec.parent.to_string(),
            own_session: job.id.session().to_string(),
            run: job.last_run().map(RunView::of),
            code: job.code.iter().map(CodeView::of).collect(),
            pinned: spec.pinned.clone(),
            question,
            stop: job.stop.as_ref().map(StopView::of),
            waits_for,
            schedule: spec.schedule.as_ref().map(ScheduleView::of),
            key: spec.key.clone(),
            retry: spec.retry.as_ref().map(RetryView::of),
            owed: job.debt.clone(),
            webhook: spec.webhook.as_ref().map(|webhook| match webhook {
                Webhook::Url(url) => url.clone(),
                Webhook::Host => "host".to_owned(),
            }),
            call: job.call.as_deref().map(CallView::of),
            created_ms: job.created_ms,
            // The clock may have been set back between two hosts.
            updated_ms: job.updated_ms.max(job.created_ms),
            finished_ms: job.ended().map(|ended| ended.at_ms.max(job.created_ms)),
            input: None,
            result: None,
            state: None,
            grant: None,
            runs: Vec::new(),
        }
    }

    /// Returns the view of a job with all that there is to it.
    pub fn whole(job: &Job, progress: Option<String>, runs: &[Run]) -> Self {
        Self {
            input: Some(job.spec.input.clone()),
            result: job.ended().and_then(|ended| ended.result.clone()),
            state: job.state.clone(),
            grant: job.spec.grant.clone(),
            runs: runs.iter().map(RunView::of).collect(),
            ..Self::brief(job, progress)
        }
    }
}

/// An ending that a webhook still has to be told of, or could not be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CallView {
    /// What the webhook knows it by: its `webhook-id`.
    #[schema(value_type = String)]
    pub id: DeliveryId,
    /// How often it was tried.
    pub tries: u32,
    /// When it is tried next; never again where it was given up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub due_ms: Option<u64>,
    /// Why the last try failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

impl CallView {
    fn of(call: &Call) -> Self {
        let Call { delivery, tries, due_ms, why } = call.clone();
        Self { id: delivery, tries, due_ms, why }
    }
}

/// One run of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RunView {
    /// Its id.
    #[schema(value_type = Id)]
    pub id: RunId,
    /// The registry's id of the task that does it, once it was launched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    /// What ran.
    pub kind: String,
    /// Why it was started.
    pub cause: CauseView,
    /// Which attempt it belongs to.
    pub attempt: u32,
    /// Which step it is.
    pub step: u32,
    /// Identifies the code that it ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Which version of its kind that was on the host that launched it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
    /// When it was claimed.
    pub started_ms: u64,
    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_ms: Option<u64>,
    /// How, in a line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<String>,
}

impl RunView {
    fn of(run: &Run) -> Self {
        Self {
            id: run.id,
            task: run.task.clone(),
            kind: run.kind.to_string(),
            cause: CauseView::of(run.cause),
            attempt: run.attempt,
            step: run.step,
            digest: run.code.as_ref().map(|code| code.digest.clone()),
            generation: run.code.as_ref().map(|code| code.generation),
            started_ms: run.started_ms,
            ended_ms: run.ended_ms.map(|ended_ms| ended_ms.max(run.started_ms)),
            outcome: run.outcome.clone(),
        }
    }
}

/// Why a run was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CauseView {
    /// Somebody spawned its job.
    Spawn,
    /// An earlier attempt failed.
    Retry,
    /// The step before asked for this one.
    Step,
    /// A person answered.
    Answer,
}

impl CauseView {
    fn of(cause: Cause) -> Self {
        match cause {
            Cause::Spawn => Self::Spawn,
            Cause::Retry => Self::Retry,
            Cause::Step => Self::Step,
            Cause::Answer => Self::Answer,
        }
    }
}

/// The version of a kind that runs of one attempt run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CodeView {
    /// The kind.
    pub kind: String,
    /// Identifies the code.
    pub digest: String,
    /// Which version of the kind it was on the host that launched it.
    pub generation: u64,
}

impl CodeView {
    fn of(code: &backlot_jobs::Code) -> Self {
        Self {
            kind: code.kind.to_string(),
            digest: code.digest.clone(),
            generation: code.generation,
        }
    }
}

/// What a person is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QuestionView {
    /// In words.
    pub prompt: String,
    /// A JSON Schema for the answer; none where any text will do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schema: Option<Value>,
}

impl QuestionView {
    fn of(question: &backlot_jobs::Question) -> Self {
        let schema = question.schema.as_deref().map(|schema| {
            // One that cannot be read is shown as it is.
            serde_json::from_str(schema).unwrap_or_else(|_| Value::String(schema.to_owned()))
        });
        Self { prompt: question.prompt.clone(), schema }
    }
}

/// A stop that was asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StopView {
    /// Who asked.
    pub by: String,
    /// Why, in their words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// When.
    pub at_ms: u64,
    /// Whether the current run may finish first.
    pub after_step: bool,
}

impl StopView {
    fn of(stop: &backlot_jobs::StopRequest) -> Self {
        Self {
            by: stop.by.clone(),
            why: stop.why.clone(),
            at_ms: stop.at_ms,
            after_step: stop.after_step,
        }
    }
}

/// What a queued job waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WaitView {
    /// What.
    pub r#for: WaitFor,
    /// When, where it is a time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub due_ms: Option<u64>,
}

/// What a queued job waits for, in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum WaitFor {
    /// One of the places for live jobs.
    Place,
    /// A time.
    Time,
    /// The end of a back-off.
    Retry,
    /// The next of many times.
    Cron,
}

impl WaitView {
    fn of(wait: &Wait) -> Self {
        let (r#for, due_ms) = match wait {
            Wait::Place => (WaitFor::Place, None),
            Wait::Time { due_ms } => (WaitFor::Time, Some(*due_ms)),
            Wait::Retry { due_ms } => (WaitFor::Retry, Some(*due_ms)),
            Wait::Cron { due_ms } => (WaitFor::Cron, Some(*due_ms)),
        };
        Self { r#for, due_ms }
    }
}

/// When a job was to start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ScheduleView {
    /// At a time.
    AtMs(u64),
    /// Whenever a cron expression says so.
    Cron(String),
}

impl ScheduleView {
    fn of(schedule: &Schedule) -> Self {
        match schedule {
            Schedule::At(at_ms) => Self::AtMs(*at_ms),
            Schedule::Cron(expression) => Self::Cron(expression.clone()),
        }
    }
}

/// What is tried again without being asked, and when. What is left out is as usual.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RetryView {
    /// The failures after which it is: `work`, `launch`, `interrupted`.
    #[schema(value_type = Vec<FailureName>)]
    pub on: Vec<Failed>,
    /// How long the first attempt is waited for.
    pub first_ms: u64,
    /// By how much each wait is longer than the one before.
    pub factor: f64,
    /// The longest wait.
    pub max_ms: u64,
    /// How much of a wait is left to chance, from 0 to 1.
    #[schema(minimum = 0, maximum = 1)]
    pub jitter: f64,
}

impl Default for RetryView {
    fn default() -> Self {
        Self::of(&RetryPolicy::default())
    }
}

impl RetryView {
    /// Returns a policy as it is shown.
    pub fn of(policy: &RetryPolicy) -> Self {
        let RetryPolicy { on, first_ms, factor, max_ms, jitter } = policy.clone();
        Self { on, first_ms, factor, max_ms, jitter }
    }

    /// Returns the policy, which may be one that cannot be followed.
    pub fn policy(&self) -> RetryPolicy {
        let Self { on, first_ms, factor, max_ms, jitter } = self.clone();
        RetryPolicy { on, first_ms, factor, max_ms, jitter }
    }
}

/// A part of a listing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Page {
    /// The jobs, the newest first.
    pub jobs: Vec<JobView>,
    /// What the next page is `before`; none on the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

/// Asks for a job to be stopped.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct StopRequest {
    /// How.
    pub how: StopHow,
    /// In whose name the operator asks. Where it is left out, and for everybody else, that
    /// of who is connected.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 256)]
    pub by: Option<String>,
    /// Why.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 4096)]
    pub why: Option<String>,
}

/// The longest name of who asks, in bytes.
const BY: usize = 256;
/// The longest reason, in bytes. A line of it is shown.
const WHY: usize = 4 << 10;

impl StopRequest {
    /// Checks what the types cannot say.
    ///
    /// # Errors
    ///
    /// When a text is too long.
    pub fn check(&self) -> Result<(), Failure> {
        at_most("by", self.by.as_deref(), BY)?;
        at_most("why", self.why.as_deref(), WHY)
    }
}

/// How a job is stopped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum StopHow {
    /// Its run is asked, and has its grace.
    #[default]
    Ask,
    /// At once.
    Force,
    /// Once its run has ended by itself.
    AfterStep,
}

impl From<StopHow> for How {
    fn from(how: StopHow) -> Self {
        match how {
            StopHow::Ask => Self::Ask,
            StopHow::Force => Self::Force,
            StopHow::AfterStep => Self::AfterStep,
        }
    }
}

/// What a stop came to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StopReply {
    /// In a word.
    pub outcome: StopOutcome,
    /// The job.
    pub job: JobView,
}

/// What a stop came to, in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum StopOutcome {
    /// The job has ended with it.
    Cancelled,
    /// Its run ends, and its end follows.
    Stopping,
    /// It ends once its run has.
    AfterStep,
    /// It had ended already.
    Already,
}

impl StopOutcome {
    /// Returns the word for a reply.
    pub fn of(reply: &backlot_jobs::StopReply) -> Self {
        match reply {
            backlot_jobs::StopReply::Cancelled(_) => Self::Cancelled,
            backlot_jobs::StopReply::Stopping(_) => Self::Stopping,
            backlot_jobs::StopReply::AfterStep(_) => Self::AfterStep,
            backlot_jobs::StopReply::Already(_) => Self::Already,
        }
    }
}

/// Answers what a job asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AnswerRequest {
    /// The answer; JSON in a text where the question has a schema.
    pub answer: String,
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use backlot_jobs::{Code, Ending, Question, Spec, Stage};
    use backlot_registry::Kind;

    use super::*;
    use crate::wire::tests::check;

    fn kind(name: &str) -> Kind {
        Kind::new(name).unwrap()
    }

    fn run(id: u128) -> Run {
        Run {
            id: RunId::from_bits(id),
            kind: kind("grep"),
            cause: Cause::Spawn,
            attempt: 1,
            step: 0,
            task: None,
            code: None,
            started_ms: 20,
            ended_ms: None,
            outcome: None,
        }
    }

    fn job(phase: Phase) -> Job {
        Job {
            id: JobId::from_bits(7),
            spec: Arc::new(Spec {
                kind: kind("grep"),
                input: "{}".into(),
                label: "find it".into(),
                parent: "chat".into(),
                incarnation: 5,
                grant: None,
                inherit: None,
                parent_run: None,
                entry: None,
                key: None,
                max_attempts: 3,
                retry: None,
                pinned: None,
                schedule: None,
                announced: true,
                webhook: None,
                trace: None,
            }),
            depth: 1,
            phase,
            stage: Stage {
                kind: None,
                input: None,
                cause: Cause::Spawn,
                last_failure: None,
                answer: None,
            },
            attempt: 1,
            step: 0,
            continuations: 0,
            state: None,
            code: Vec::new(),
            stop: None,
            detail: None,
            debt: None,
            call: None,
            endings: 0,
            created_ms: 10,
            updated_ms: 20,
        }
    }

    #[test]
    fn a_job_that_works() {
        let working = job(Phase::Working { run: run(1) });
        check(
            &JobView::brief(&working, Some("step 1/3".into())),
            r#"
{
  "id": "00000000000000000000000000000007",
  "kind": "grep",
  "label": "find it",
  "status": "working",
  "live": true,
  "note": "still working — do not redo its work",
  "progress": "step 1/3",
  "attempt": 1,
  "max_attempts": 3,
  "step": 0,
  "continuations": 0,
  "session": "chat",
  "own_session": "job-00000000000000000000000000000007",
  "run": {
    "id": "00000000000000000000000000000001",
    "kind": "grep",
    "cause": "spawn",
    "attempt": 1,
    "step": 0,
    "started_ms": 20
  },
  "created_ms": 10,
  "updated_ms": 20
}"#,
        );
    }

    #[test]
    fn a_job_that_has_ended_with_all_there_is_to_it() {
        let code = Code { kind: kind("grep"), digest: "d1".into(), generation: 2 };
        let last = Run {
            cause: Cause::Answer,
            attempt: 2,
            step: 1,
            task: Some("grep-9".into()),
            code: Some(code.clone()),
            // A clock was set back.
            ended_ms: Some(15),
            outcome: Some("failed: exit code: 2".into()),
            ..run(2)
        };
        let ended = backlot_jobs::Ended {
            ending: Ending::Failed(Failed::Work),
            summary: "exit code: 2".into(),
            result: Some("half of it\n".into()),
            at_ms: 5,
        };
        let mut job = job(Phase::Ended { ended, last: Some(last.clone()) });
        let spec = Arc::make_mut(&mut job.spec);
        spec.key = Some("k".into());
        spec.grant = Some("/src:ro".into());
        spec.retry = Some(RetryPolicy::default());
        spec.pinned = Some("d1".into());
        spec.schedule = Some(Schedule::At(12));
        job.attempt = 2;
        job.step = 1;
        job.continuations = 1;
        job.state = Some("verify".into());
        job.code = vec![code];
        job.stop = Some(backlot_jobs::StopRequest {
            by: "operator".into(),
            why: Some("enough".into()),
            at_ms: 19,
            after_step: true,
        });
        job.detail = Some("exit code: 2".into());
        job.debt = Some(DeliveryId::new(job.id, 1));
        Arc::make_mut(&mut job.spec).webhook = Some(Webhook::Url("https://a.test/t".into()));
        job.call = Some(Box::new(Call {
            delivery: DeliveryId::new(job.id, 1),
            tries: 2,
            due_ms: Some(30),
            why: Some("it answered 500".into()),
        }));
        job.updated_ms = 5;
        check(
            &JobView::whole(&job, None, &[run(1), last]),
            r#"
{
  "id": "00000000000000000000000000000007",
  "kind": "grep",
  "label": "find it",
  "status": "failed",
  "live": false,
  "summary": "exit code: 2",
  "detail": "exit code: 2",
  "attempt": 2,
  "max_attempts": 3,
  "step": 1,
  "continuations": 1,
  "session": "chat",
  "own_session": "job-00000000000000000000000000000007",
  "run": {
    "id": "00000000000000000000000000000002",
    "task": "grep-9",
    "kind": "grep",
    "cause": "answer",
    "attempt": 2,
    "step": 1,
    "digest": "d1",
    "generation": 2,
    "started_ms": 20,
    "ended_ms": 20,
    "outcome": "failed: exit code: 2"
  },
  "code": [
    {
      "kind": "grep",
      "digest": "d1",
      "generation": 2
    }
  ],
  "pinned": "d1",
  "stop": {
    "by": "operator",
    "why": "enough",
    "at_ms": 19,
    "after_step": true
  },
  "schedule": {
    "at_ms": 12
  },
  "key": "k",
  "retry": {
    "on": [
      "work",
      "launch"
    ],
    "first_ms": 1000,
    "factor": 2.0,
    "max_ms": 300000,
    "jitter": 0.2
  },
  "owed": "00000000000000000000000000000007.1",
  "webhook": "https://a.test/t",
  "call": {
    "id": "00000000000000000000000000000007.1",
    "tries": 2,
    "due_ms": 30,
    "why": "it answered 500"
  },
  "created_ms": 10,
  "updated_ms": 10,
  "finished_ms": 10,
  "input": "{}",
  "result": "half of it\n",
  "state": "verify",
  "grant": "/src:ro",
  "runs": [
    {
      "id": "00000000000000000000000000000001",
      "kind": "grep",
      "cause": "spawn",
      "attempt": 1,
      "step": 0,
      "started_ms": 20
    },
    {
      "id": "00000000000000000000000000000002",
      "task": "grep-9",
      "kind": "grep",
      "cause": "answer",
      "attempt": 2,
      "step": 1,
      "digest": "d1",
      "generation": 2,
      "started_ms": 20,
      "ended_ms": 20,
      "outcome": "failed: exit code: 2"
    }
  ]
}"#,
        );
    }

    #[test]
    fn a_call_that_was_given_up() {
        let mut job = job(Phase::Working { run: run(1) });
        Arc::make_mut(&mut job.spec).webhook = Some(Webhook::Host);
        let view = JobView::brief(&job, None);
        assert_eq!((view.webhook.as_deref(), view.call), (Some("host"), None));
        let delivery = DeliveryId::new(job.id, 1);
        let call = CallView::of(&Call { delivery, tries: 9, due_ms: None, why: None });
        check(&call, "{\n  \"id\": \"00000000000000000000000000000007.1\",\n  \"tries\": 9\n}");
    }

    #[test]
    fn what_a_job_waits_for() {
        let queued = |wait| job(Phase::Queued { wait, place: 3, last: None });
        let place = JobView::brief(&queued(Wait::Place), None);
        assert_eq!((place.live, place.note), (false, None));
        check(&place.waits_for.unwrap(), "{\n  \"for\": \"place\"\n}");
        let words = [
            (Wait::Time { due_ms: 5 }, "time"),
            (Wait::Retry { due_ms: 5 }, "retry"),
            (Wait::Cron { due_ms: 5 }, "cron"),
        ];
        for (wait, word) in words {
            let waits_for = JobView::brief(&queued(wait), None).waits_for.unwrap();
            check(&waits_for, &format!("{{\n  \"for\": \"{word}\",\n  \"due_ms\": 5\n}}"));
        }
        check(&ScheduleView::Cron("@hourly".into()), "{\n  \"cron\": \"@hourly\"\n}");
    }

    #[test]
    fn what_a_person_is_asked() {
        let asked = |schema: Option<&str>| {
            let question = Question { prompt: "go on?".into(), schema: schema.map(Into::into) };
            let view = JobView::brief(&job(Phase::InputRequired { question, last: run(1) }), None);
            assert!(view.live);
            view.question.unwrap()
        };
        check(&asked(None), "{\n  \"prompt\": \"go on?\"\n}");
        check(
            &asked(Some(r#"{"type":"boolean"}"#)),
            r#"
{
  "prompt": "go on?",
  "schema": {
    "type": "boolean"
  }
}"#,
        );
        assert_eq!(asked(Some("{")).schema, Some(Value::String("{".into())));
    }

    #[test]
    fn a_page() {
        check(&Page { jobs: Vec::new(), next: Some(9) }, "{\n  \"jobs\": [],\n  \"next\": 9\n}");
        check(&Page::default(), "{\n  \"jobs\": []\n}");
    }

    #[test]
    fn a_stop_and_an_answer() {
        let stop = StopRequest {
            how: StopHow::AfterStep,
            by: Some("ann".into()),
            why: Some("enough".into()),
        };
        check(
            &stop,
            r#"
{
  "how": "after_step",
  "by": "ann",
  "why": "enough"
}"#,
        );
        stop.check().unwrap();
        StopRequest { by: Some("a".repeat(BY + 1)), ..stop.clone() }.check().unwrap_err();
        StopRequest { why: Some("a".repeat(WHY + 1)), ..stop }.check().unwrap_err();
        assert_eq!(serde_json::from_str::<StopRequest>("{}").unwrap().how, StopHow::Ask);
        check(&StopHow::Force, r#""force""#);
        let words = [
            StopOutcome::Cancelled,
            StopOutcome::Stopping,
            StopOutcome::AfterStep,
            StopOutcome::Already,
        ];
        let written = serde_json::to_string(&words).unwrap();
        assert_eq!(written, r#"["cancelled","stopping","after_step","already"]"#);
        check(&AnswerRequest { answer: "true".into() }, "{\n  \"answer\": \"true\"\n}");
    }

    #[test]
    fn words_are_those_of_the_interface() {
        let causes = [CauseView::Spawn, CauseView::Retry, CauseView::Step, CauseView::Answer];
        let written = serde_json::to_string(&causes).unwrap();
        assert_eq!(written, r#"["spawn","retry","step","answer"]"#);
        let written = serde_json::to_string(&Status::ALL).unwrap();
        assert_eq!(
            written,
            r#"["queued","working","input_required","completed","failed","cancelled"]"#
        );
        let written = serde_json::to_string(&[Failed::Work, Failed::Launch, Failed::Interrupted]);
        assert_eq!(written.unwrap(), r#"["work","launch","interrupted"]"#);
    }
}
