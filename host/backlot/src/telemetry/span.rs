//! Spans of jobs and runs, made of what is recorded.
//!
//! The rule: a job's trace is its caller's where it was spawned with a `traceparent`, and
//! one whose id is the job's own id where it was not. From its spawn to its first ending it
//! is one span, a child of the caller's. A job that has failed and is tried again, because
//! somebody asked for it, ends once more: from then to its next ending it is another span, a
//! child of the first, so that a trace has one root and no span is told twice. Attempts that
//! follow by a policy are no endings, and belong to the same span. A run is a child of the
//! span of the ending that it led towards.
//!
//! The ids of spans are digests of those of jobs and runs, so whoever goes on with a job,
//! in another process, goes on with its trace. A caller that does not record its trace gets
//! no spans of it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use backlot_jobs::{Job, JobId, Run, RunId, Status};
use backlot_registry::Kind;
use backlot_surface::wire::TraceParent;
use opentelemetry::{
    InstrumentationScope, KeyValue,
    trace::{SpanContext, SpanId, SpanKind, Status as SpanStatus, TraceFlags, TraceState},
};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};
use sha2::{Digest as _, Sha256};

/// The longest text in an attribute, in bytes. What runs say of themselves is a line.
const TEXT: usize = 512;

/// A job at one moment, as far as its trace is concerned.
#[derive(Clone, Debug)]
pub(super) struct Moment {
    pub(super) job: JobId,
    /// The run that is under way, or the last one.
    pub(super) last: Option<Run>,
    /// Whether somebody wants it to stop.
    pub(super) is_stopped: bool,
    kind: Kind,
    session: String,
    parent: Option<TraceParent>,
    status: Status,
    attempt: u32,
    step: u32,
    endings: u32,
    detail: Option<String>,
    /// Why it failed.
    why: Option<String>,
    created_ms: u64,
    updated_ms: u64,
}

impl Moment {
    /// Returns the moment of a job, unless nobody records its trace.
    pub(super) fn of(job: &Job) -> Option<Self> {
        // What is none was not refused by a host that knew less.
        let parent: Option<TraceParent> =
            job.spec.trace.as_deref().and_then(|text| text.parse().ok());
        if parent.is_some_and(|parent| !parent.is_sampled) {
            return None;
        }
        let status = job.status();
        Some(Self {
            job: job.id,
            last: job.last_run().cloned(),
            is_stopped: job.stop.is_some(),
            kind: job.spec.kind.clone(),
            session: job.spec.parent.to_string(),
            parent,
            status,
            attempt: job.attempt,
            step: job.step,
            endings: job.endings,
            detail: job.detail.as_deref().map(bounded),
            why: job.summary().filter(|_| status == Status::Failed).map(bounded),
            created_ms: job.created_ms,
            updated_ms: job.updated_ms,
        })
    }

    /// Tells whether a run is under way.
    pub(super) fn is_working(&self) -> bool {
        self.status == Status::Working
    }

    /// Tells whether it has ended.
    pub(super) fn is_over(&self) -> bool {
        self.status.is_terminal()
    }

    /// Tells whether a run is under way, or the last one.
    pub(super) fn is_on(&self, run: RunId) -> bool {
        self.last.as_ref().is_some_and(|last| last.id == run)
    }

    /// Returns since when it leads towards its next ending, or led towards its last, as far
    /// as that can be told from the job as it is.
    pub(super) fn since_ms(&self) -> u64 {
        match (self.ending(), &self.last) {
            (2.., Some(last)) => last.started_ms,
            _ => self.created_ms,
        }
    }

    /// Returns the number of its last ending, or of its next where it goes on.
    fn ending(&self) -> u32 {
        self.endings + u32::from(!self.is_over())
    }

    fn trace(&self) -> u128 {
        // An id that is all zeros is none, and one of so many is.
        self.parent.map_or(self.job.bits().max(1), |parent| parent.trace)
    }

    fn context(&self, span: SpanId) -> SpanContext {
        let trace = self.trace().into();
        SpanContext::new(trace, span, TraceFlags::SAMPLED, false, TraceState::NONE)
    }

    /// Returns the span of the job towards its last ending.
    pub(super) fn root_span(&self, since_ms: u64) -> SpanData {
        let ending = self.ending();
        let (parent, is_remote) = match (ending, self.parent) {
            (2.., _) => (root_id(self.job, 1), false),
            (_, Some(parent)) => (parent.span.into(), true),
            (_, None) => (SpanId::INVALID, false),
        };
        let mut attributes = vec![
            KeyValue::new("backlot.job.id", self.job.to_string()),
            KeyValue::new("backlot.job.kind", self.kind.to_string()),
            KeyValue::new("backlot.job.session", self.session.clone()),
            KeyValue::new("backlot.job.status", self.status.as_str()),
            KeyValue::new("backlot.job.ending", i64::from(ending)),
            KeyValue::new("backlot.attempt", i64::from(self.attempt)),
            KeyValue::new("backlot.step", i64::from(self.step)),
        ];
        attributes
            .extend(self.detail.clone().map(|detail| KeyValue::new("backlot.job.detail", detail)));
        SpanData {
            parent_span_is_remote: is_remote,
            ..span(Span {
                name: format!("job {}", self.kind),
                context: self.context(root_id(self.job, ending)),
                parent,
                start_ms: since_ms,
                end_ms: self.updated_ms,
                attributes,
                status: match self.status {
                    Status::Completed => SpanStatus::Ok,
                    Status::Failed => SpanStatus::error(self.why.clone().unwrap_or_default()),
                    _ => SpanStatus::Unset,
                },
            })
        }
    }

    /// Returns the span of its last run, if it has ended.
    pub(super) fn last_run_span(&self) -> Option<SpanData> {
        self.last.as_ref().and_then(|run| self.run_span(run))
    }

    /// Returns the span of one of its runs, if it has ended.
    pub(super) fn run_span(&self, run: &Run) -> Option<SpanData> {
        let end_ms = run.ended_ms?;
        let outcome = run.outcome.as_deref().unwrap_or_default();
        let (word, detail) = match outcome.split_once(": ") {
            Some((word, detail)) => (word, Some(bounded(detail))),
            None => (outcome, None),
        };
        let mut attributes = vec![
            KeyValue::new("backlot.job.id", self.job.to_string()),
            KeyValue::new("backlot.job.kind", self.kind.to_string()),
            KeyValue::new("backlot.run.id", run.id.to_string()),
            KeyValue::new("backlot.run.kind", run.kind.to_string()),
            KeyValue::new("backlot.run.status", word.to_owned()),
            KeyValue::new("backlot.attempt", i64::from(run.attempt)),
            KeyValue::new("backlot.step", i64::from(run.step)),
        ];
        if let Some(code) = &run.code {
            attributes.push(KeyValue::new("backlot.component.digest", code.digest.clone()));
        }
        if let Some(detail) = &detail {
            attributes.push(KeyValue::new("backlot.run.detail", detail.clone()));
        }
        Some(span(Span {
            name: format!("run {}", run.kind),
            context: self.context(run_id(run.id)),
            parent: root_id(self.job, self.ending()),
            start_ms: run.started_ms,
            end_ms,
            attributes,
            status: match word {
                "completed" => SpanStatus::Ok,
                "failed" => SpanStatus::error(detail.unwrap_or_default()),
                _ => SpanStatus::Unset,
            },
        }))
    }
}

/// What differs from span to span.
struct Span {
    name: String,
    context: SpanContext,
    parent: SpanId,
    start_ms: u64,
    end_ms: u64,
    attributes: Vec<KeyValue>,
    status: SpanStatus,
}

fn span(span: Span) -> SpanData {
    let scope = InstrumentationScope::builder("backlot");
    SpanData {
        span_context: span.context,
        parent_span_id: span.parent,
        parent_span_is_remote: false,
        span_kind: SpanKind::Internal,
        name: span.name.into(),
        start_time: time(span.start_ms),
        end_time: time(span.end_ms.max(span.start_ms)),
        attributes: span.attributes,
        dropped_attributes_count: 0,
        events: SpanEvents::default(),
        links: SpanLinks::default(),
        status: span.status,
        instrumentation_scope: scope.with_version(env!("CARGO_PKG_VERSION")).build(),
    }
}

fn time(ms: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(ms)
}

/// Returns the id of the span of a job towards one of its endings.
fn root_id(job: JobId, ending: u32) -> SpanId {
    derived(&[b"job", &job.bits().to_be_bytes(), &ending.to_be_bytes()])
}

/// Returns the id of the span of a run.
fn run_id(run: RunId) -> SpanId {
    derived(&[b"run", &run.bits().to_be_bytes()])
}

fn derived(parts: &[&[u8]]) -> SpanId {
    let mut digest = Sha256::new();
    for part in parts {
        digest.update(part);
    }
    let digest = digest.finalize();
    let id = digest.iter().take(8).fold(0, |id: u64, byte| id << 8 | u64::from(*byte));
    // 0 is no id.
    id.max(1).into()
}

/// Returns a text as far as it may be an attribute.
fn bounded(text: &str) -> String {
    text[..text.floor_char_boundary(TEXT)].to_owned()
}

#[cfg(test)]
pub(super) mod tests {
    use backlot_jobs::Code;
    use backlot_registry::Cause;

    use super::*;

    /// Returns a moment of a job that was spawned at 5, with a run that started at ten times
    /// its number.
    pub(in super::super) fn moment(status: Status, run: Option<u128>, endings: u32) -> Moment {
        let kind = Kind::new("grep").unwrap();
        let of = |number: u128| Run {
            id: RunId::from_bits(number),
            kind: kind.clone(),
            cause: Cause::Spawn,
            attempt: 1,
            step: 0,
            task: None,
            code: Some(Code { kind: kind.clone(), digest: "sha256:00".into(), generation: 1 }),
            started_ms: 10 * number as u64,
            ended_ms: (status != Status::Working).then_some(100),
            outcome: (status != Status::Working).then(|| "failed: no such file".into()),
        };
        Moment {
            job: JobId::from_bits(7),
            last: run.map(of),
            is_stopped: false,
            kind: kind.clone(),
            session: "chat".into(),
            parent: None,
            status,
            attempt: 1,
            step: 0,
            endings,
            detail: Some("detail".into()),
            why: (status == Status::Failed).then(|| "no such file".into()),
            created_ms: 5,
            updated_ms: 100,
        }
    }

    fn attribute(span: &SpanData, name: &str) -> String {
        let found = span.attributes.iter().find(|it| it.key.as_str() == name);
        found.map(|it| it.value.to_string()).unwrap_or_default()
    }

    #[test]
    fn a_job_of_its_own_is_a_trace_of_its_own() {
        let moment = moment(Status::Failed, Some(2), 1);
        let (root, run) = (moment.root_span(5), moment.last_run_span().unwrap());
        assert_eq!(root.name, "job grep");
        assert_eq!(root.span_context.trace_id().to_string(), moment.job.to_string());
        assert_eq!(root.parent_span_id, SpanId::INVALID);
        assert_eq!((root.start_time, root.end_time), (time(5), time(100)));
        assert_eq!(root.status, SpanStatus::error("no such file"));
        assert_eq!(attribute(&root, "backlot.job.session"), "chat");
        assert_eq!(attribute(&root, "backlot.job.detail"), "detail");
        assert_eq!(run.name, "run grep");
        assert_eq!(run.span_context.trace_id(), root.span_context.trace_id());
        assert_eq!(run.parent_span_id, root.span_context.span_id());
        assert_eq!((run.start_time, run.end_time), (time(20), time(100)));
        assert_eq!(run.status, SpanStatus::error("no such file"));
        assert_eq!(attribute(&run, "backlot.component.digest"), "sha256:00");
        assert_eq!(attribute(&run, "backlot.run.status"), "failed");
    }

    #[test]
    fn a_job_of_a_caller_is_a_part_of_its_trace() {
        let parent = TraceParent { trace: 3, span: 4, is_sampled: true };
        let moment = Moment { parent: Some(parent), ..moment(Status::Completed, Some(2), 1) };
        let root = moment.root_span(5);
        assert_eq!(root.span_context.trace_id(), 3.into());
        assert_eq!(root.parent_span_id, 4.into());
        assert!(root.parent_span_is_remote);
        assert_eq!(root.status, SpanStatus::Ok);
    }

    #[test]
    fn what_follows_an_ending_is_a_child_of_the_first() {
        let first = moment(Status::Failed, Some(1), 1).root_span(5);
        let again = moment(Status::Failed, Some(2), 2).root_span(20);
        let last = moment(Status::Completed, Some(3), 3).root_span(30);
        let id = |span: &SpanData| span.span_context.span_id();
        assert_eq!(again.parent_span_id, id(&first));
        assert_eq!(last.parent_span_id, id(&first));
        assert!(id(&first) != id(&again) && id(&again) != id(&last) && id(&first) != id(&last));
        // A run that others have followed belongs to the ending that is to come.
        let going = moment(Status::Queued, Some(2), 1).last_run_span().unwrap();
        assert_eq!(going.parent_span_id, id(&again));
        assert_eq!(moment(Status::Working, Some(2), 1).last_run_span(), None);
    }

    #[test]
    fn texts_are_cut_on_a_character() {
        assert_eq!(bounded("é".repeat(TEXT).as_str()).len(), TEXT);
        assert_eq!(bounded(&format!("a{}", "é".repeat(TEXT))).len(), TEXT - 1);
    }
}
