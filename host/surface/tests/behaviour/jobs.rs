//! Jobs over their lives, as a client sees them.

use backlot_jobs::{Config, RunEnding, Status};
use backlot_surface::{
    ClientError,
    wire::{
        AnswerRequest, BackupRequest, DO_NOT_REDO, Expects, HandView, ListQuery, LookQuery,
        PruneRequest, RetryView, SpawnRequest, StopHow, StopOutcome, StopRequest, WaitFor,
    },
};

use crate::harness::{Host, code, of_kind};

fn look() -> LookQuery {
    LookQuery::default()
}

fn waiting(wait_ms: u64) -> LookQuery {
    LookQuery { wait_ms: Some(wait_ms), hand: None }
}

#[tokio::test]
async fn a_job_is_spawned_looked_at_and_ends() {
    let host = Host::start().await;
    let client = host.client().await;
    let request = SpawnRequest { input: Some("work".into()), ..of_kind("park") };
    let spawned = client.spawn(&request).await.unwrap();
    assert_eq!(spawned.status, Status::Working);
    assert_eq!(spawned.note.as_deref(), Some(DO_NOT_REDO));
    assert_eq!(spawned.progress.as_deref(), Some("half way"));
    let id = spawned.id.to_string();
    let whole = client.job(&id[..10], &look()).await.unwrap();
    assert_eq!(whole.input.as_deref(), Some("work"));
    assert_eq!(whole.runs.len(), 1);
    assert_eq!(whole.session, "chat");

    let (ended, ()) =
        tokio::join!(async { client.job(&id, &waiting(60_000)).await.unwrap() }, async {
            host.script.end(spawned.id, RunEnding::Completed, "the result");
        },);
    assert_eq!(ended.status, Status::Completed);
    assert_eq!(ended.result.as_deref(), Some("the result"));
    assert_eq!(ended.summary.as_deref(), Some("the result"));
    assert!(!ended.live && ended.note.is_none() && ended.finished_ms.is_some());
    // A person who looks tells the session nothing.
    assert!(ended.owed.is_some());
    let owed = client.owed("chat").await.unwrap();
    assert_eq!(owed.ids, [ended.owed.unwrap()]);
}

#[tokio::test]
async fn what_a_model_has_in_hand_is_settled() {
    let host = Host::start().await;
    let client = host.client().await;
    let job = host.spawn("park").await;
    let ended = host.end(&job, RunEnding::Completed, "done").await;
    assert!(ended.owed.is_some());
    let query = LookQuery { wait_ms: None, hand: Some(HandView::Model) };
    let told = client.job(&job.id.to_string(), &query).await.unwrap();
    assert_eq!(told.result.as_deref(), Some("done"));
    assert!(client.owed("chat").await.unwrap().ids.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_look_waits_as_long_as_it_is_asked_to_and_may() {
    let host = Host::start().await;
    let client = host.client().await;
    let job = host.spawn("park").await;
    let id = job.id.to_string();
    let waited = async |wait_ms| {
        let begun = tokio::time::Instant::now();
        let job = client.job(&id, &waiting(wait_ms)).await.unwrap();
        assert_eq!(job.status, Status::Working);
        begun.elapsed().as_secs()
    };
    assert_eq!(waited(0).await, 0);
    assert_eq!(waited(5_000).await, 5);
    assert_eq!(waited(u64::MAX).await, host.manager.config().max_wait.as_secs());
}

#[tokio::test]
async fn jobs_are_listed_page_by_page() {
    let host = Host::start().await;
    let client = host.client().await;
    let mut spawned = Vec::new();
    for _ in 0..3 {
        spawned.push(host.spawn("park").await.id);
    }
    let elsewhere = SpawnRequest { session: Some("other".into()), ..of_kind("park") };
    spawned.push(client.spawn(&elsewhere).await.unwrap().id);
    spawned.reverse();
    let mut listed = Vec::new();
    let mut query = ListQuery { limit: Some(3), ..ListQuery::default() };
    loop {
        let page = client.jobs(&query).await.unwrap();
        assert!(page.jobs.len() <= 3);
        assert!(page.jobs.iter().all(|job| job.input.is_none() && job.progress.is_some()));
        listed.extend(page.jobs.iter().map(|job| job.id));
        match page.next {
            None => break,
            next => query.before = next,
        }
    }
    assert_eq!(listed, spawned);
    let of = async |session: &str, status| {
        let session = Some(session.to_owned());
        let query = ListQuery { session, status, ..ListQuery::default() };
        client.jobs(&query).await.unwrap().jobs.len()
    };
    assert_eq!(of("chat", vec![]).await, 3);
    assert_eq!(of("chat", vec![Status::Working, Status::Failed]).await, 3);
    assert_eq!(of("chat", vec![Status::Failed]).await, 0);
    assert_eq!(of("none", vec![]).await, 0);
}

#[tokio::test]
async fn a_failed_job_is_tried_again_until_its_attempts_are_used() {
    let host = Host::start().await;
    let client = host.client().await;
    let request = SpawnRequest { attempts: Some(2), ..of_kind("park") };
    let job = client.spawn(&request).await.unwrap();
    let id = job.id.to_string();
    assert_eq!(code(client.retry(&id, HandView::Person).await), "not_failed");
    host.end(&job, RunEnding::Failed, "").await;
    let again = client.retry(&id, HandView::Person).await.unwrap();
    assert_eq!((again.status, again.attempt), (Status::Working, 2));
    let failed = host.end(&job, RunEnding::Failed, "").await;
    assert_eq!(failed.runs.len(), 2);
    let refused = client.retry(&id, HandView::Model).await.unwrap_err();
    assert_eq!(refused.exit(), 3);
    assert_eq!(code(Err::<(), _>(refused)), "exhausted");
}

#[tokio::test]
async fn a_job_asks_and_is_answered() {
    let host = Host::start().await;
    let client = host.client().await;
    let job = host.spawn("ask").await;
    let id = job.id.to_string();
    let answer = |text: &str| AnswerRequest { answer: text.into() };
    let early = client.answer(&id, &answer("true"), HandView::Person).await;
    assert_eq!(code(early), "not_asked");
    let asks = host.end(&job, RunEnding::Completed, "").await;
    assert_eq!(asks.status, Status::InputRequired);
    let question = asks.question.unwrap();
    assert_eq!(question.prompt, "go on?");
    assert_eq!(question.schema.unwrap()["type"], "boolean");
    let misfit = client.answer(&id, &answer("maybe"), HandView::Person).await;
    assert_eq!(code(misfit), "bad_answer");
    let goes_on = client.answer(&id, &answer("true"), HandView::Person).await.unwrap();
    assert_eq!((goes_on.status, goes_on.step), (Status::Working, 1));
    assert_eq!(goes_on.progress.as_deref(), Some("asked: half way"));
    let ended = host.end(&job, RunEnding::Completed, "done").await;
    assert_eq!(ended.status, Status::Completed);
    assert_eq!(ended.runs.len(), 2);
}

#[tokio::test]
async fn a_stop_says_what_it_came_to() {
    let host = Host::start().await;
    let client = host.client().await;
    let ask = StopRequest::default();
    let job = host.spawn("park").await;
    let id = job.id.to_string();
    let refuse = StopRequest { why: Some("refuse".into()), ..ask.clone() };
    assert_eq!(code(client.stop(&id, &refuse).await), "goes_on");
    let after = StopRequest { how: StopHow::AfterStep, ..ask.clone() };
    let reply = client.stop(&id, &after).await.unwrap();
    assert_eq!(reply.outcome, StopOutcome::AfterStep);
    // Who asked first is told of.
    let stop = reply.job.stop.unwrap();
    assert_eq!((stop.by.as_str(), stop.why.as_deref()), ("operator", Some("refuse")));
    let force = StopRequest { how: StopHow::Force, ..ask.clone() };
    assert_eq!(client.stop(&id, &force).await.unwrap().outcome, StopOutcome::Stopping);
    let ended = client.job(&id, &waiting(10_000)).await.unwrap();
    assert_eq!(ended.status, Status::Cancelled);
    assert_eq!(client.stop(&id, &ask).await.unwrap().outcome, StopOutcome::Already);

    let job = host.spawn("ask").await;
    host.end(&job, RunEnding::Completed, "").await;
    let by = StopRequest { by: Some("ann".into()), why: Some("enough".into()), ..ask };
    let reply = client.stop(&job.id.to_string(), &by).await.unwrap();
    assert_eq!(reply.outcome, StopOutcome::Cancelled);
    assert_eq!(reply.job.summary.as_deref(), Some("enough"));
    assert_eq!(reply.job.stop.unwrap().by, "ann");
}

#[tokio::test]
async fn what_cannot_be_spawned_is_refused_with_the_reason() {
    let mut config = Config::default();
    config.limits.per_session = 1;
    config.limits.queued = 1;
    let host = Host::start_with(config).await;
    let client = host.client().await;
    let spawn = async |request: SpawnRequest| client.spawn(&request).await;
    let no_session = SpawnRequest { session: Some("never".into()), ..of_kind("park") };
    assert_eq!(code(spawn(no_session).await), "unknown_session");
    assert_eq!(code(spawn(of_kind("wrong")).await), "refused");
    assert_eq!(code(spawn(of_kind("later")).await), "unavailable");
    assert_eq!(code(spawn(of_kind("No Kind")).await), "invalid");
    let many = SpawnRequest { attempts: Some(9), ..of_kind("park") };
    assert_eq!(code(spawn(many).await), "invalid");
    let cron = SpawnRequest { cron: Some("never".into()), ..of_kind("park") };
    assert_eq!(code(spawn(cron).await), "invalid");
    let expects = Some(Expects { plugins: Some("/other".into()), policy: None });
    assert_eq!(code(spawn(SpawnRequest { expects, ..of_kind("park") }).await), "other_host");
    // Nothing is left of any of them.
    assert!(client.jobs(&ListQuery::default()).await.unwrap().jobs.is_empty());

    let keyed = |input: &str| SpawnRequest {
        key: Some("once".into()),
        input: Some(input.into()),
        ..of_kind("park")
    };
    let first = spawn(keyed("a")).await.unwrap();
    assert_eq!(spawn(keyed("a")).await.unwrap().id, first.id);
    assert_eq!(code(spawn(keyed("b")).await), "key_taken");
    assert_eq!(code(spawn(of_kind("park")).await), "full");
    let own = SpawnRequest { session: Some(first.own_session.clone()), ..of_kind("park") };
    assert_eq!(code(spawn(own).await), "too_deep");
    let queued = SpawnRequest { queue: true, ..of_kind("park") };
    let waits = spawn(queued.clone()).await.unwrap();
    assert_eq!(waits.status, Status::Queued);
    assert_eq!(waits.waits_for.unwrap().r#for, WaitFor::Place);
    assert_eq!(code(spawn(queued).await), "queue_full");
}

#[tokio::test]
async fn a_job_starts_later_and_is_tried_again_by_itself() {
    let host = Host::start().await;
    let client = host.client().await;
    let request = SpawnRequest {
        after_ms: Some(3_600_000),
        retry: Some(RetryView { first_ms: 3_600_000, ..RetryView::default() }),
        ..of_kind("park")
    };
    let waits = client.spawn(&request).await.unwrap();
    let wait = waits.waits_for.unwrap();
    assert_eq!(wait.r#for, WaitFor::Time);
    assert!(wait.due_ms.unwrap() >= waits.created_ms + 3_600_000);
    assert_eq!(waits.retry.unwrap().first_ms, 3_600_000);

    let now = SpawnRequest { after_ms: None, ..request };
    let job = client.spawn(&now).await.unwrap();
    host.script.end(job.id, RunEnding::Failed, "");
    let id = job.id.to_string();
    let aside = loop {
        let job = client.job(&id, &look()).await.unwrap();
        if job.status != Status::Working {
            break job;
        }
    };
    assert_eq!(aside.waits_for.unwrap().r#for, WaitFor::Retry);
}

#[tokio::test]
async fn jobs_are_removed_and_pruned() {
    let host = Host::start().await;
    let client = host.client().await;
    let request = SpawnRequest { announce: Some(false), ..of_kind("park") };
    let mut ended = Vec::new();
    for _ in 0..3 {
        let job = client.spawn(&request).await.unwrap();
        ended.push(host.end(&job, RunEnding::Completed, "").await);
    }
    let live = host.spawn("park").await;
    assert_eq!(code(client.remove(&live.id.to_string()).await), "live");
    let first = ended[0].id.to_string();
    assert_eq!(client.remove(&first).await.unwrap().removed, 1);
    assert_eq!(code(client.job(&first, &look()).await), "unknown_job");
    let usual = client.prune(&PruneRequest::default()).await.unwrap();
    assert_eq!(usual.removed, 0);
    let all = PruneRequest { keep: Some(0), age_ms: None };
    assert_eq!(client.prune(&all).await.unwrap().removed, 2);
}

#[tokio::test]
async fn the_host_tells_how_it_is_and_makes_a_copy() {
    let host = Host::start().await;
    let client = host.client().await;
    host.spawn("park").await;
    let health = client.health().await.unwrap();
    assert_eq!((health.host.pid, health.host.program.as_str()), (7, "test"));
    assert_eq!((health.jobs.working, health.jobs.ended), (1, 0));
    client.backup(&BackupRequest { to: "/b.db".into() }).await.unwrap();
    assert_eq!(*host.script.backups.lock().unwrap(), ["/b.db"].map(std::path::PathBuf::from));
    assert_eq!(code(client.backup(&BackupRequest { to: "b.db".into() }).await), "invalid");
}

#[tokio::test]
async fn what_was_asked_reaches_the_host_whole() {
    let host = Host::start().await;
    let request = SpawnRequest {
        kind: None,
        file: Some("/tools/x.wasm".into()),
        input: Some("\u{1F600}\0\"".into()),
        args: vec!["--verbose".into()],
        label: Some("a label".into()),
        ..of_kind("park")
    };
    let job = host.client().await.spawn(&request).await.unwrap();
    assert_eq!(job.label, "a label");
    assert_eq!(*host.script.requests.lock().unwrap(), [request]);
}

#[tokio::test]
async fn an_error_is_a_message_with_a_hint() {
    let host = Host::start().await;
    let error = host.client().await.job("abc", &look()).await.unwrap_err();
    assert_eq!(error.to_string(), "no job abc: list the jobs to see which there are");
    assert_eq!(error.exit(), 3);
    assert!(matches!(error, ClientError::Failure(reply) if reply.hint.is_none()));
}
