//! The tasks of the host's registry: listed, looked at and stopped.
//!
//! What a task writes is read by its job. The registry's own cursor consumes what it
//! reads, which belongs to whoever runs the task, so it is not offered here.

use axum::{Json, extract::State};
use backlot_registry::{Kill, KillError, TaskId};

use super::{
    Surface,
    ask::{Asked, Changing, Named, Sent, Who},
    to_the_end,
};
use crate::{
    error::{Failure, Reason},
    wire::{TaskStopOutcome, TaskStopReply, TaskStopRequest, TaskView, TasksQuery, TasksReply},
};

/// How many tasks a page has where nothing was said, and at most.
const PAGE: usize = 100;
const PAGE_MOST: usize = 1_000;

pub(super) async fn list(
    State(surface): State<Surface>,
    who: Who,
    Asked(query): Asked<TasksQuery>,
) -> Json<TasksReply> {
    let most = query.limit.unwrap_or(PAGE).clamp(1, PAGE_MOST);
    Json(TasksReply::of(surface.api.registry.list_page(&who.caller, most, query.after)))
}

pub(super) async fn look(
    State(surface): State<Surface>,
    who: Who,
    Named(name): Named,
) -> Result<Json<TaskView>, Failure> {
    let task = surface.api.registry.get(&id(&name)?, &who.caller);
    task.map(TaskView::of).map(Json).map_err(|_| unknown(&name))
}

pub(super) async fn stop(
    State(surface): State<Surface>,
    Changing(who): Changing,
    Named(name): Named,
    Sent(request): Sent<TaskStopRequest>,
) -> Result<Json<TaskStopReply>, Failure> {
    request.check()?;
    let id = id(&name)?;
    let registry = surface.api.registry;
    let kill = Kill { mode: request.mode.into(), reason: request.reason };
    let stop = async move {
        let killed = registry.kill(&id, &who.caller, kill).await;
        let killed = killed.map_err(|error| match error {
            KillError::Unknown(_) => unknown(&name),
            KillError::Refused { .. } | KillError::Crashed { .. } => {
                Failure::new(Reason::GoesOn, error.to_string())
            }
        })?;
        // It may have been forgotten meanwhile.
        let task = registry.get(&id, &who.caller).ok().map(TaskView::of);
        Ok(TaskStopReply { outcome: TaskStopOutcome::of(killed), task })
    };
    to_the_end(stop).await.map(Json)
}

/// Returns the id of that text. What is none is no task's.
fn id(name: &str) -> Result<TaskId, Failure> {
    name.parse().map_err(|_| unknown(name))
}

fn unknown(name: &str) -> Failure {
    let name: String = name.chars().take(96).collect();
    let message = format!("no task {name}: list the tasks to see which there are");
    Failure::new(Reason::UnknownTask, message)
}
