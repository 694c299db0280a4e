//! The four verbs: start, look, retry, stop.

use backlot_jobs::{Hand, How, Job, Query, Status, output::Part};
use rmcp::model::{CallToolRequestParams, CallToolResponse};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{
    answer::{self, Answer},
    arguments::{self, RetryArguments, SpawnArguments, StatusArguments, StopArguments},
    asking,
    foreground::{self, Call, Waited},
    output::{self, NEW_BYTES, TEXT_BYTES},
    server::{Done, Server, Unanswered},
    tools::{Verb, compact, line},
};
use crate::{
    error::{Failure, Reason},
    http::to_the_end,
    wire::{RetryView, SpawnRequest, StopHow, StopOutcome, StopRequest},
};

/// How many tasks a page of a list has: about as much as a screen.
const PAGE: usize = 20;
/// How much of a kind's schema is told with an input that does not fit, in bytes.
const SCHEMA: usize = 4 << 10;
/// How an output is told again that was told.
const ALL_AGAIN: &str = " task_status with after 0 tells it from the beginning.";

pub(super) async fn spawn(
    server: &Server,
    call: &Call,
    request: CallToolRequestParams,
) -> Result<Done, Unanswered> {
    let (job, given, wait) = match &request.request_state {
        // The task is there already, and has asked something.
        Some(state) => {
            let (job, given) = asking::again(server, call, &request, state, |_| true).await?;
            let asked: Option<SpawnArguments> = read(Verb::Spawn, &request).ok();
            (job, given, arguments::wait(asked.and_then(|asked| asked.wait_seconds)))
        }
        None => {
            let asked: SpawnArguments = read(Verb::Spawn, &request)?;
            let wait = arguments::wait(asked.wait_seconds);
            let kind = asked.kind.clone();
            server.knows(&kind).await;
            let spawned = match spawn_request(asked, call) {
                Ok(request) => server.spawn(call, request).await,
                Err(failure) => Err(failure),
            };
            let job = spawned.map_err(|failure| with_schema(server, &kind, failure))?;
            (job, request.input_responses.unwrap_or_default(), wait)
        }
    };
    let waited = match wait.is_zero() && given.is_empty() {
        // It may have ended all the same.
        true => Waited::Job(Box::new(job)),
        false => foreground::wait(server, call, job, wait, given).await?,
    };
    answered(server, call, waited, async |job| {
        Ok(match job.status().is_terminal() {
            true => answer::looked(job, None, "Result", &server.result(job).await?),
            false if job.status() == Status::InputRequired => {
                Answer::text(answer::state(job, None)).about(job)
            }
            false => answer::spawned(job),
        })
    })
    .await
}

fn spawn_request(asked: SpawnArguments, call: &Call) -> Result<SpawnRequest, Failure> {
    let attempts = asked.attempts.map(u32::try_from).transpose();
    let attempts = attempts.map_err(|_| Failure::invalid("`attempts` is too large"))?;
    let input = asked.input.filter(|input| !input.is_null()).map(|input| match input {
        Value::String(text) => text,
        json => json.to_string(),
    });
    Ok(SpawnRequest {
        kind: Some(asked.kind),
        input,
        args: asked.args.unwrap_or_default(),
        label: asked.label.map(|label| line(&label, 256)),
        key: asked.key,
        attempts,
        retry: asked.retry.unwrap_or_default().then(RetryView::default),
        queue: asked.queue.unwrap_or_default(),
        traceparent: call.trace.clone(),
        ..SpawnRequest::default()
    })
}

/// Returns why nothing was spawned, with what would have been right.
fn with_schema(server: &Server, kind: &str, failure: Failure) -> Failure {
    let catalog = &server.api().catalog;
    match failure.reason {
        Reason::Refused => {
            let view = kind.parse().ok().and_then(|kind| catalog.kind(&kind));
            let schema = view.and_then(|view| view.current?.descriptor.input_schema.clone());
            // As short as it can be.
            let schema = schema.and_then(|schema| Some(compact(&schema)?.to_string()));
            match schema.filter(|schema| schema.len() <= SCHEMA) {
                Some(schema) => {
                    failure.with_hint(format!("nothing was started; `input` has to fit {schema}"))
                }
                None => failure,
            }
        }
        Reason::UnknownKind => failure.with_hint("the description of spawn_task names the kinds"),
        Reason::Full => {
            let hint = "wait until one has ended, or give `queue` to have it wait for its turn";
            failure.with_hint(hint)
        }
        _ => failure,
    }
}

pub(super) async fn status(
    server: &Server,
    call: &Call,
    request: CallToolRequestParams,
) -> Result<Done, Unanswered> {
    let asked: StatusArguments = read(Verb::Status, &request)?;
    let Some(digits) = asked.task_id.as_deref().filter(|id| !id.is_empty()) else {
        let answer = list(server, call, asked.before).await?;
        return Ok(Done::new(server, call, answer));
    };
    let id = server.api().manager.find(digits, &call.asker.caller).await.map_err(Failure::from)?;
    let given = match &request.request_state {
        Some(state) => asking::again(server, call, &request, state, |job| job.id == id).await?.1,
        None => request.input_responses.unwrap_or_default(),
    };
    let wait = arguments::wait(asked.wait_seconds);
    let waited = match wait.is_zero() && given.is_empty() {
        true => {
            let job = server.api().manager.get(id, &call.asker.caller).await;
            Waited::Job(Box::new(job.map_err(Failure::from)?))
        }
        false => foreground::wait(server, call, id, wait, given).await?,
    };
    let job = match waited {
        Waited::Job(job) => job,
        waited => {
            return answered(server, call, waited, async |job| {
                Ok(Answer::text(answer::state(job, None)).about(job))
            })
            .await;
        }
    };
    look(server, call, &job, asked.after).await
}

/// Tells where a job stands, and what it has put out from an offset on, or since the last
/// look.
async fn look(
    server: &Server,
    call: &Call,
    job: &Job,
    after: Option<u64>,
) -> Result<Done, Unanswered> {
    let api = server.api();
    let mut receipt = server.receipt(call);
    receipt.reports(job);
    let progress = api.manager.progress(std::slice::from_ref(job)).await.pop().flatten();
    let progress = progress.as_deref();
    let is_over = job.status().is_terminal();
    if output::is_stream(&*api.catalog, job) {
        // Who looks on has no place of its own.
        let (folder, part) = (&api.folder, Part::Output);
        let last = call.asker.owed().map(|session| server.told().place(session, job.id, part));
        let from = after.or(last).unwrap_or_default();
        let portion = output::recorded(folder, job.id, part, from, NEW_BYTES, is_over).await?;
        if !portion.text.is_empty() || from > 0 || !is_over {
            if after.is_none() {
                receipt.tells_up_to(job.id, portion.next);
            }
            let answer = match (portion.text.is_empty(), from) {
                (false, 0) => answer::looked(job, progress, "Output", &portion),
                (false, from) => {
                    let what = format!("Output from offset {from} on");
                    answer::looked(job, progress, &what, &portion)
                }
                (true, _) => {
                    let hint = if is_over { ALL_AGAIN } else { "" };
                    let text = format!("{}\nNo output is new.{hint}", answer::state(job, progress));
                    Answer::text(text).about(job).up_to(&portion)
                }
            };
            return Ok(Done::Answer(answer, receipt));
        }
    }
    let answer = match (job.ended().and_then(|ended| ended.result.as_deref()), after) {
        (Some(result), Some(after)) => {
            let portion = output::part_of(result, after, TEXT_BYTES);
            answer::looked(job, progress, "Result", &portion)
        }
        (Some(_), None) => answer::looked(job, progress, "Result", &server.result(job).await?),
        (None, _) => Answer::text(answer::state(job, progress)).about(job),
    };
    Ok(Done::Answer(answer, receipt))
}

async fn list(server: &Server, call: &Call, before: Option<u64>) -> Result<Answer, Failure> {
    let manager = &server.api().manager;
    let query = Query { before, limit: PAGE, ..Query::default() };
    let page = manager.list(&call.asker.caller, query).await?;
    let progress = manager.progress(&page.jobs).await;
    let mut text = match (page.jobs.is_empty(), before) {
        (true, None) => "There are no tasks.".to_owned(),
        (true, Some(_)) => "There are no more tasks.".to_owned(),
        (false, _) => "Tasks, the newest first:".to_owned(),
    };
    for (job, progress) in page.jobs.iter().zip(&progress) {
        text.push('\n');
        text.push_str(&answer::listed(job, progress.as_deref()));
    }
    if let Some(next) = page.next {
        text.push_str(&format!("\n[there are more: task_status with before {next} lists them]"));
    }
    let tasks = page.jobs.iter().map(|job| json!({"task_id": job.id, "status": job.status()}));
    let mut facts = json!({"tasks": tasks.collect::<Value>()});
    if let Some(next) = page.next {
        facts["next_before"] = next.into();
    }
    Ok(Answer::text(text).listing(facts))
}

pub(super) async fn retry(
    server: &Server,
    call: &Call,
    request: CallToolRequestParams,
) -> Result<Done, Unanswered> {
    let asked: RetryArguments = read(Verb::Retry, &request)?;
    let (manager, caller) = (&server.api().manager, &call.asker.caller);
    let id = manager.find(&asked.task_id, caller).await.map_err(Failure::from)?;
    let job = manager.retry(id, caller, Hand::Model).await.map_err(Failure::from)?;
    let text = format!(
        "Task {} goes on from where it stopped: attempt {} of {}. You are told when it ends.",
        job.id, job.attempt, job.spec.max_attempts
    );
    Ok(Done::new(server, call, Answer::text(text).about(&job)))
}

pub(super) async fn stop(
    server: &Server,
    call: &Call,
    request: CallToolRequestParams,
) -> Result<Done, Unanswered> {
    let asked: StopArguments = read(Verb::Stop, &request)?;
    let how = if asked.force.unwrap_or_default() { StopHow::Force } else { StopHow::Ask };
    let stop = StopRequest { how, by: Some(call.asker.name()), why: asked.reason };
    stop.check()?;
    let (manager, caller) = (server.api().manager.clone(), call.asker.caller.clone());
    let id = manager.find(&asked.task_id, &caller).await.map_err(Failure::from)?;
    let StopRequest { how, by, why } = stop;
    let by = by.unwrap_or_default();
    let reply =
        to_the_end(async move { Ok(manager.stop(id, &caller, How::from(how), &by, why).await?) })
            .await?;
    let job = reply.job();
    let text = match StopOutcome::of(&reply) {
        StopOutcome::Cancelled => format!("Task {id} was stopped."),
        StopOutcome::Stopping => format!(
            "Task {id} was asked to stop and winds down; it is not going to be announced. If it \
             goes on all the same, task_stop with force ends it."
        ),
        StopOutcome::AfterStep => format!("Task {id} stops once its current step has ended."),
        StopOutcome::Already => {
            format!("Task {id} had ended already: {}", answer::state(job, None))
        }
    };
    Ok(Done::new(server, call, Answer::text(text).about(job)))
}

/// Answers with what came of waiting.
async fn answered(
    server: &Server,
    call: &Call,
    waited: Waited,
    answer: impl AsyncFnOnce(&Job) -> Result<Answer, Failure>,
) -> Result<Done, Unanswered> {
    let job = match waited {
        Waited::Job(job) => job,
        Waited::Ask(job, why) => match asking::required(&job, why.as_deref()) {
            Some(required) => return Ok(Done::Other(CallToolResponse::from(required))),
            None => job,
        },
        Waited::Cancelled => {
            let error = rmcp::ErrorData::internal_error("the call was cancelled", None);
            return Err(Unanswered::Error(error));
        }
    };
    let mut receipt = server.receipt(call);
    receipt.reports(&job);
    Ok(Done::Answer(answer(&job).await?, receipt))
}

/// Reads the arguments of a call.
fn read<T: DeserializeOwned>(verb: Verb, request: &CallToolRequestParams) -> Result<T, Failure> {
    let arguments = request.arguments.clone().unwrap_or_default();
    arguments::read(verb, arguments).map_err(Failure::invalid)
}
