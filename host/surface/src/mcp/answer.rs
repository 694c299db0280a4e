//! What a call answers: words for the model, and what a program takes from them.
//!
//! # Rich results
//!
//! A kind whose result is a JSON object with a list `content` of content blocks (`text`,
//! `image`, `audio`, `resource`, `resource_link`, as the protocol has them) answers a call
//! of its tool with those blocks, and with the object's `structuredContent` and `isError`
//! where it has them. Any other JSON object is structured content by itself.

use std::fmt::Write as _;

use backlot_jobs::{Ending, Job, Phase, Status, Wait};
use rmcp::model::{CallToolResult, ContentBlock, JsonObject, MetaObject};
use serde_json::{Value, json};

use super::{
    output::{Portion, TEXT_BYTES},
    tools::{line, name_of},
};
use crate::{error::Failure, wire::DO_NOT_REDO};

/// What says of an answer which task it is about, in its `_meta`, for programs.
const TASK_KEY: &str = "backlot/task";

/// The longest JSON that is told as text and as structured content, in bytes. What is longer
/// is told once, as text, which every client has.
const TWICE: usize = 4 << 10;
/// The longest result with blocks, in bytes: pictures are no text, and large.
const RICH: usize = 1 << 20;
/// How much of a label, and of what is said of progress and endings, is told in characters.
const LABEL: usize = 80;
const SAYING: usize = 400;

/// What a call answers.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Answer {
    blocks: Vec<ContentBlock>,
    structured: Option<Value>,
    is_error: bool,
    facts: Option<Value>,
}

impl Answer {
    pub(super) fn text(text: impl Into<String>) -> Self {
        Self { blocks: vec![ContentBlock::text(text)], ..Self::default() }
    }

    pub(super) fn error(text: impl Into<String>) -> Self {
        Self { is_error: true, ..Self::text(text) }
    }

    pub(super) fn of_failure(failure: &Failure) -> Self {
        let reply = failure.reply();
        let hint = reply.hint.map_or_else(String::new, |hint| format!(" ({hint})"));
        Self::error(format!("{}{hint}", reply.detail))
    }

    /// Says which task the answer is about.
    #[must_use]
    pub(super) fn about(self, job: &Job) -> Self {
        let facts = json!({
            "task_id": job.id,
            "kind": job.spec.kind.as_str(),
            "status": job.status(),
            "attempt": job.attempt,
        });
        Self { facts: Some(facts), ..self }
    }

    /// Says where what was told goes on.
    #[must_use]
    pub(super) fn up_to(mut self, portion: &Portion) -> Self {
        if let Some(Value::Object(facts)) = &mut self.facts {
            facts.insert("next_offset".to_owned(), portion.next.into());
            facts.insert("truncated".to_owned(), portion.is_cut.into());
        }
        self
    }

    /// Says of a list what it has.
    #[must_use]
    pub(super) fn listing(self, facts: Value) -> Self {
        Self { facts: Some(facts), ..self }
    }

    /// Returns it as it goes over the wire, with what its session is owed besides.
    pub(super) fn into_result(self, owed: Option<String>) -> CallToolResult {
        let mut result = CallToolResult::success(self.blocks);
        result.content.extend(owed.map(ContentBlock::text));
        result.structured_content = self.structured;
        result.is_error = Some(self.is_error);
        result.meta = self.facts.map(|facts| {
            let mut meta = JsonObject::new();
            meta.insert(TASK_KEY.to_owned(), facts);
            MetaObject::from(meta)
        });
        result
    }
}

/// Returns how the call of a kind's own tool is answered once its job has ended. A result
/// that was cut is given as a portion.
pub(super) fn of_ended(job: &Job, portion: &Portion) -> Answer {
    let Some(ended) = job.ended() else { return Answer::text(headline(job)).about(job) };
    let rest = if portion.is_cut { format!("\n{}", goes_on(job, portion)) } else { String::new() };
    let answer = match ended.ending {
        Ending::Completed if portion.is_cut => Answer::text(format!("{}{rest}", portion.text)),
        Ending::Completed => of_result(&portion.text),
        Ending::Failed(_) | Ending::Cancelled if portion.text.trim().is_empty() => {
            Answer::error(state(job, None))
        }
        Ending::Failed(_) | Ending::Cancelled => {
            let state = state(job, None);
            Answer::error(format!("{state}\nIt put out:\n{}{rest}", portion.text))
        }
    };
    answer.about(job).up_to(portion)
}

/// Returns where a job stands and what it has put out, under a heading. A result that has
/// blocks is told as those.
pub(super) fn looked(job: &Job, progress: Option<&str>, what: &str, portion: &Portion) -> Answer {
    let mut text = state(job, progress);
    let object = serde_json::from_str::<JsonObject>(&portion.text);
    let rich = object.ok().filter(|_| job.ended().is_some()).and_then(|it| rich(&it));
    let blocks = match rich {
        Some(rich) => rich.blocks,
        None => {
            if !portion.text.is_empty() {
                let _ = write!(text, "\n{what}:\n{}", portion.text);
            }
            if portion.is_cut {
                let _ = write!(text, "\n{}", goes_on(job, portion));
            }
            Vec::new()
        }
    };
    let mut answer = Answer::text(text).about(job).up_to(portion);
    answer.blocks.extend(blocks);
    answer
}

/// Returns a whole result as it is told.
fn of_result(text: &str) -> Answer {
    let object = serde_json::from_str::<JsonObject>(text).ok();
    match object {
        Some(object) => rich(&object).unwrap_or_else(|| {
            let structured = (text.len() <= TWICE).then_some(Value::Object(object));
            Answer { structured, ..Answer::text(text) }
        }),
        None => Answer::text(text),
    }
}

/// Returns a result that has blocks.
fn rich(object: &JsonObject) -> Option<Answer> {
    let blocks: Vec<ContentBlock> = serde_json::from_value(object.get("content")?.clone()).ok()?;
    let texts = blocks.iter().filter_map(|block| Some(block.as_text()?.text.len()));
    if texts.sum::<usize>() > TEXT_BYTES {
        return None;
    }
    let structured = object.get("structuredContent").cloned();
    if structured.as_ref().is_some_and(|it| it.to_string().len() > TEXT_BYTES) {
        return None;
    }
    let is_error = object.get("isError").and_then(Value::as_bool).unwrap_or_default();
    Some(Answer { blocks, structured, is_error, facts: None })
}

/// Tells whether a whole result may be longer than a text: it has blocks.
pub(super) fn is_rich(result: &str) -> bool {
    let is_object = || serde_json::from_str::<JsonObject>(result).ok();
    result.len() <= RICH && is_object().is_some_and(|object| rich(&object).is_some())
}

/// Returns how a job that goes on in the background is told of to whoever called its kind.
pub(super) fn promoted(job: &Job) -> Answer {
    let (id, tool) = (job.id, name_of(&job.spec.kind));
    let goes_on = match &job.phase {
        Phase::InputRequired { .. } => state(job, None),
        _ => format!("This takes longer, and goes on in the background as task {id}."),
    };
    let text = format!(
        "{goes_on}\nYou are told when it ends, with the answer of a later call: go on with \
         something else, do not call {tool} again for the same, and do not ask again and again. \
         If you cannot go on without the result, call task_status with task_id {id} and \
         wait_seconds; task_stop stops it."
    );
    Answer::text(text).about(job)
}

/// Returns how a job that was just spawned is told of.
pub(super) fn spawned(job: &Job) -> Answer {
    let (id, kind) = (job.id, &job.spec.kind);
    let text = match job.status() {
        Status::Working | Status::InputRequired => format!(
            "Task {id} ({kind}) was started and works in the background. You are told when it \
             ends, with the answer of a later call: go on with something else, do not ask again \
             and again, and do not do its work yourself."
        ),
        Status::Queued => format!(
            "{} It starts by itself when its turn comes, and you are told when it ends.",
            headline(job)
        ),
        Status::Completed | Status::Failed | Status::Cancelled => state(job, None),
    };
    Answer::text(text).about(job)
}

/// Returns where a job stands, in lines.
pub(super) fn state(job: &Job, progress: Option<&str>) -> String {
    let spec = &*job.spec;
    let mut lines = vec![
        headline(job),
        format!(
            "Kind {}, \"{}\", attempt {} of {}.",
            spec.kind,
            label(job),
            job.attempt,
            spec.max_attempts
        ),
    ];
    if let Some(progress) = progress.filter(|_| !job.status().is_terminal()) {
        lines.push(format!("Progress: {}", line(progress, SAYING)));
    }
    match &job.phase {
        Phase::InputRequired { question, .. } => {
            lines.push(format!("The person is asked: {}", line(&question.prompt, 4 * SAYING)));
            if let Some(schema) = &question.schema {
                lines.push(format!("The answer is JSON that fits {}", line(schema, 4 * SAYING)));
            }
            lines.push(format!(
                "It is for the person to answer: where this client shows no form, with `backlot \
                 answer {}` at a terminal. Tell them, and do not answer in their place.",
                job.id
            ));
        }
        Phase::Ended { ended, .. } if matches!(ended.ending, Ending::Failed(_)) => {
            let left = spec.max_attempts.saturating_sub(job.attempt);
            lines.push(match left {
                0 => "It has had all its attempts.".to_owned(),
                1 => "task_retry can go on from where it stopped; one attempt is left.".to_owned(),
                left => {
                    format!("task_retry can go on from where it stopped; {left} attempts are left.")
                }
            });
        }
        _ => {}
    }
    lines.join("\n")
}

/// Returns where a job stands, in a sentence.
fn headline(job: &Job) -> String {
    let id = job.id;
    match &job.phase {
        Phase::Queued { wait, .. } => {
            let why = match wait {
                Wait::Place => "for its turn",
                Wait::Time { .. } | Wait::Cron { .. } => "for its time",
                Wait::Retry { .. } => "to be tried again, after an attempt that failed",
            };
            format!("Task {id} waits {why}: do not redo its work.")
        }
        Phase::Working { .. } => format!("Task {id} is {DO_NOT_REDO}."),
        Phase::InputRequired { .. } => {
            format!("Task {id} waits for a person's answer: do not redo its work.")
        }
        Phase::Ended { ended, .. } => {
            // Why somebody stopped it is what there is to say of that.
            let why = job.stop.as_ref().and_then(|stop| stop.why.as_deref());
            let said = match ended.ending {
                Ending::Cancelled => why.unwrap_or(&ended.summary),
                Ending::Completed | Ending::Failed(_) => &ended.summary,
            };
            let summary = line(said, SAYING);
            match ended.ending {
                Ending::Completed => format!("Task {id} completed."),
                Ending::Failed(_) => format!("Task {id} failed: {summary}"),
                Ending::Cancelled => format!("Task {id} was stopped: {summary}"),
            }
        }
    }
}

/// Returns a job in a line of a list.
pub(super) fn listed(job: &Job, progress: Option<&str>) -> String {
    let status = job.status();
    let stands = match status {
        Status::Working => DO_NOT_REDO.to_owned(),
        Status::Queued | Status::InputRequired => format!("{status} — do not redo its work"),
        Status::Completed | Status::Failed | Status::Cancelled => status.to_string(),
    };
    let mut text = format!("- {} {} \"{}\": {stands}", job.id, job.spec.kind, label(job));
    // Where there is nothing to say, the summary is what became of it.
    let said = job.summary().or(progress).filter(|said| *said != status.as_str());
    if let Some(said) = said {
        let _ = write!(text, ". {}", line(said, SAYING / 2));
    }
    text
}

/// Returns how to read on where an answer was cut.
pub(super) fn goes_on(job: &Job, portion: &Portion) -> String {
    format!("[cut here: task_status with task_id {} and after {} reads on]", job.id, portion.next)
}

fn label(job: &Job) -> String {
    line(&job.spec.label, LABEL).replace('"', "'")
}
