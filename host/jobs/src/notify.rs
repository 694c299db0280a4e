//! What a model reads when jobs have ended that it spawned.

use std::fmt::Write as _;

use crate::{
    job::{Job, Status},
    look::short_ids,
    text,
};

/// What every such message begins with, so that a page can tell it from what a person
/// wrote.
pub const NOTIFICATION_PREFIX: &str = "[task-notification]";

/// How much of a summary a message has, in characters.
const SUMMARY: usize = 200;
/// How much of a label.
const LABEL: usize = 80;

/// Returns the message about those jobs: a line for each, and what to do about it.
pub fn message(jobs: &[Job]) -> String {
    let mut message = NOTIFICATION_PREFIX.to_owned();
    let ids = short_ids(&jobs.iter().map(|job| job.id).collect::<Vec<_>>());
    for (place, (job, id)) in jobs.iter().zip(&ids).enumerate() {
        // What a line break in an output or a label would end is folded, so no line is
        // another's.
        let label = text::line(&job.spec.label, LABEL).replace('"', "'");
        let status = job.status();
        // The first stands behind the prefix.
        message.push_str(if place == 0 { " " } else { "" });
        let _ = write!(message, "Task \"{label}\" ({id}) {status}.");
        if let Some(ended) = job.ended() {
            let summary = text::line(&ended.summary, SUMMARY);
            let is_whole = !summary.ends_with('…')
                && ended.result.as_ref().is_none_or(|result| result.trim() == summary);
            let _ = write!(message, " Result: {summary}");
            if !is_whole {
                let _ =
                    write!(message, " [truncated — call task_status({id}) for the full result]");
            }
        }
        message.push('\n');
    }
    if jobs.iter().any(|job| job.status() == Status::Failed) {
        message.push_str("(task_retry can resume a failed task from where it stopped)\n");
    }
    message.push_str(
        "(Tell the person what came of it. That work is over: do not do it again, nor check it, \
         unless they ask.)",
    );
    message
}
