//! The tasks of the host's registry.

use std::{sync::Arc, time::Duration};

use backlot_registry::{
    Agreed, BoxFuture, Control, Form, Kind, OnDrop, Outcome, Owner, Producer, Refusal, Request,
    Run, Start, StopRefusal, SurfaceGuard, TaskHost, TaskId,
};
use backlot_surface::wire::{
    StopMode, StoppedBy, TaskStatus, TaskStopOutcome, TaskStopRequest, TasksQuery,
};

use crate::harness::{Host, code};

/// Work that goes on until it is dropped, and refuses to be asked where it is stubborn.
struct Endless {
    kind: Kind,
    is_stubborn: bool,
}

impl Producer for Endless {
    fn kind(&self) -> &Kind {
        &self.kind
    }

    fn form(&self) -> Form {
        Form::Final
    }

    fn run(&self, _: Request, _: TaskHost) -> BoxFuture<'_, Result<Run, Refusal>> {
        let control = Arc::new(Stop { is_stubborn: self.is_stubborn });
        let done: BoxFuture<'static, Outcome> = Box::pin(std::future::pending());
        Box::pin(async { Ok(Run { control, done, on_drop: OnDrop::ReleasesAll }) })
    }
}

struct Stop {
    is_stubborn: bool,
}

impl Control for Stop {
    fn cancel(&self, _: Option<String>) -> BoxFuture<'static, Result<Agreed, StopRefusal>> {
        let answer = match self.is_stubborn {
            true => Err(StopRefusal::NotNow("in the middle".into())),
            false => Ok(Agreed::DropNow),
        };
        Box::pin(async { answer })
    }
}

async fn start(host: &Host, is_stubborn: bool, owner: Option<Owner>) -> (TaskId, SurfaceGuard) {
    let surface = host.registry.attach_surface("test");
    let producer = Arc::new(Endless { kind: Kind::new("endless").unwrap(), is_stubborn });
    let start = Start { label: "for ever".into(), owner, ..Start::default() };
    (host.registry.start(producer, start).await.unwrap(), surface)
}

#[tokio::test]
async fn tasks_are_listed_looked_at_and_stopped() {
    let host = Host::start().await;
    let client = host.client().await;
    assert!(client.tasks(&TasksQuery::default()).await.unwrap().tasks.is_empty());
    let mut started = Vec::new();
    for _ in 0..3 {
        started.push(start(&host, false, None).await);
    }
    let mut listed = Vec::new();
    let mut query = TasksQuery { after: 0, limit: Some(2) };
    loop {
        let page = client.tasks(&query).await.unwrap();
        listed.extend(page.tasks.into_iter().map(|task| task.id));
        match page.next {
            None => break,
            Some(next) => query.after = next,
        }
    }
    let ids: Vec<String> = started.iter().map(|(id, _)| id.to_string()).collect();
    assert_eq!(listed, ids);
    let task = client.task(&ids[0]).await.unwrap();
    assert_eq!((task.status, task.label.as_str()), (TaskStatus::Running, "for ever"));
    let request = TaskStopRequest { reason: Some("enough".into()), ..Default::default() };
    let stopped = client.stop_task(&ids[0], &request).await.unwrap();
    assert_eq!(stopped.outcome, TaskStopOutcome::Stopping);
    assert_eq!(stopped.task.unwrap().stopped_by, Some(StoppedBy::Person));
    let operator = backlot_registry::Caller::Operator;
    host.registry.wait(&started[0].0, &operator, Duration::from_secs(10)).await.unwrap();
    let again = client.stop_task(&ids[0], &request).await.unwrap();
    assert_eq!(again.outcome, TaskStopOutcome::Already);
    for unknown in ["endless-9", "endless", "-1", "ENDLESS-1", "endless-01"] {
        assert_eq!(code(client.task(unknown).await), "unknown_task");
        assert_eq!(code(client.stop_task(unknown, &request).await), "unknown_task");
    }
}

#[tokio::test]
async fn a_task_that_refuses_goes_on_until_it_is_forced() {
    let host = Host::start().await;
    let client = host.client().await;
    let (id, _surface) = start(&host, true, None).await;
    let id = id.to_string();
    assert_eq!(code(client.stop_task(&id, &TaskStopRequest::default()).await), "goes_on");
    assert_eq!(client.task(&id).await.unwrap().status, TaskStatus::Running);
    let force = TaskStopRequest { mode: StopMode::Force, reason: None };
    let stopped = client.stop_task(&id, &force).await.unwrap();
    assert_eq!(stopped.outcome, TaskStopOutcome::Stopping);
    let long = TaskStopRequest { reason: Some("a".repeat(5_000)), ..force };
    assert_eq!(code(client.stop_task(&id, &long).await), "invalid");
}

#[tokio::test]
async fn a_session_sees_no_tasks_of_others() {
    let host = Host::start().await;
    let owner = host.registry.register_owner("agent".into(), "chat".into());
    let (id, _surface) = start(&host, false, Some(owner)).await;
    let id = id.to_string();
    let own = host.client().await.for_session("chat");
    assert_eq!(own.task(&id).await.unwrap().session.as_deref(), Some("chat"));
    let other = host.client().await.for_session("other");
    assert_eq!(code(other.task(&id).await), "unknown_task");
    assert_eq!(code(other.stop_task(&id, &TaskStopRequest::default()).await), "unknown_task");
    assert!(other.tasks(&TasksQuery::default()).await.unwrap().tasks.is_empty());
    assert_eq!(own.task(&id).await.unwrap().status, TaskStatus::Running);
}
