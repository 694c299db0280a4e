//! What an operator may have to account for: one structured line each, under a target
//! of its own (`backlot::audit`).

use backlot_registry::{Generation, Kind, KindState, SessionId, TaskHost, TaskId};

use crate::grant::{OpenDir, OpenGrant};

const TARGET: &str = "backlot::audit";

/// A version of a kind was made the current one.
pub(crate) fn swap(kind: &Kind, now: &Generation, before: Option<&Generation>) {
    tracing::info!(
        target: TARGET,
        event = if before.is_some() { "swap" } else { "load" },
        %kind,
        generation = now.number,
        digest = %now.digest,
        before = before.map(|before| before.number),
    );
}

/// A version of a kind was offered and not taken.
pub(crate) fn refusal(kind: &Kind, why: &str) {
    tracing::warn!(target: TARGET, event = "refusal", %kind, why);
}

/// No more tasks of a kind are started.
pub(crate) fn closed(kind: &Kind, state: KindState, why: &str) {
    tracing::info!(target: TARGET, event = "close", %kind, %state, why);
}

/// A task is being started, with what it is granted: the lines that its snapshot shows,
/// and the folders of the host, which that keeps to itself.
pub(crate) fn grant(
    host: &TaskHost,
    generation: &Generation,
    lines: &[String],
    folders: &OpenGrant,
) {
    let task = host.task();
    tracing::info!(
        target: TARGET,
        event = "grant",
        %task,
        kind = %task.kind,
        generation = generation.number,
        digest = %generation.digest,
        owner = host.owner_session().map(tracing::field::display),
        grant = lines.join("; "),
        folders = folders.dirs().iter().map(OpenDir::line).collect::<Vec<_>>().join("; "),
    );
}

/// A start was not granted what it asked for.
pub(crate) fn denied_start(kind: &Kind, owner: Option<&SessionId>, why: &str) {
    let owner = owner.map(tracing::field::display);
    tracing::info!(target: TARGET, event = "denial", %kind, owner, what = "a start", why);
}

/// A task was denied something, and which part of a grant is about that.
pub(crate) fn denial(task: &TaskId, what: &str, key: &str, rule: &str) {
    tracing::info!(
        target: TARGET,
        event = "denial",
        %task,
        kind = %task.kind,
        what,
        key,
        rule,
    );
}

/// A task was denied so much beyond what was told one by one.
pub(crate) fn more_denials(task: &TaskId, count: u64) {
    tracing::info!(
        target: TARGET,
        event = "denials",
        %task,
        kind = %task.kind,
        count,
    );
}
