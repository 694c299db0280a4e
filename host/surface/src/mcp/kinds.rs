//! Kinds that are tools of their own: called, waited for, and promoted where they take long.

use std::time::Duration;

use backlot_jobs::{How, Job};
use rmcp::{ErrorData, model::CallToolRequestParams};
use tokio::time::timeout;

use super::{
    answer::{self, Answer},
    asking,
    foreground::{self, Call, Waited},
    server::{Done, Server, Unanswered, unknown_tool},
    tasks,
    told::Ahead,
    tools::{Offer, is_exposed, kind_of},
};
use crate::{api::Api, wire::SpawnRequest};

/// How long what is called has to end, or to ask, before a client that takes tasks is given
/// one: what is quick costs it no second request then, and nobody notices the wait.
const MOMENT: Duration = Duration::from_millis(150);

/// How long what has to know which kinds there are waits for a host that has just been
/// started. Kinds whose code is kept are there in well under a second; one that compiles for
/// longer is told of as a change of the tools, and clients give up after a minute.
const KNOWN: Duration = Duration::from_secs(10);

/// Waits until the host knows which kinds there are, but not for too long.
pub(super) async fn known(api: &Api) {
    // What is there by then is what there is.
    let _ = timeout(KNOWN, api.host.kinds_are_known()).await;
}

/// Calls a kind. What takes longer than a moment is a task where the client takes them.
pub(super) async fn call(
    server: &Server,
    call: &Call,
    request: CallToolRequestParams,
    takes_tasks: bool,
) -> Result<Done, Unanswered> {
    let (api, name) = (server.api(), &*request.name);
    let unknown = || Unanswered::Error(unknown_tool(name));
    let kind = kind_of(name).filter(|kind| is_exposed(kind, &api.mcp)).ok_or_else(unknown)?;
    server.knows(kind.as_str()).await;
    let view = api.catalog.kind(&kind).ok_or_else(unknown)?;
    let offer = Offer::of(&view).ok_or_else(unknown)?;
    let mut ahead = None;
    let (job, given) = match &request.request_state {
        Some(state) => {
            asking::again(server, call, &request, state, |job| job.spec.kind == kind).await?
        }
        None => {
            let (input, args) = match offer.input(request.arguments.unwrap_or_default()) {
                Ok(input) => input,
                Err(why) => return Ok(Done::new(server, call, Answer::error(why))),
            };
            let spawn = SpawnRequest {
                kind: Some(kind.to_string()),
                input: Some(input),
                args,
                traceparent: call.trace.clone(),
                ..SpawnRequest::default()
            };
            let given = request.input_responses.unwrap_or_default();
            ahead = server.told().look_ahead(call.asker.owed());
            (server.spawn(call, spawn).await?, given)
        }
    };
    let time = if takes_tasks { MOMENT.min(api.mcp.foreground) } else { api.mcp.foreground };
    let id = job.id;
    match foreground::wait(server, call, job, time, given).await? {
        Waited::Job(job) if takes_tasks && !job.status().is_terminal() => {
            Ok(Done::Other(tasks::created(server, &job).await.into()))
        }
        Waited::Job(job) => told_of(server, call, &job, ahead).await,
        Waited::Ask(job, why) => match asking::required(&job, why.as_deref()) {
            Some(required) => Ok(Done::Other(required.into())),
            None => told_of(server, call, &job, ahead).await,
        },
        Waited::Cancelled => {
            // Nobody has heard of the job yet, so nobody else would stop it.
            let (caller, by) = (&call.asker.caller, call.asker.name());
            let why = Some("the call was cancelled".to_owned());
            if let Err(error) = api.manager.stop(id, caller, How::Ask, &by, why).await {
                tracing::warn!(job = %id, "the job of a cancelled call goes on: {error}");
            }
            Err(Unanswered::Error(ErrorData::internal_error("the call was cancelled", None)))
        }
    }
}

/// Returns how a call is answered by the job as it is then.
async fn told_of(
    server: &Server,
    call: &Call,
    job: &Job,
    ahead: Option<Ahead>,
) -> Result<Done, Unanswered> {
    let mut receipt = server.receipt(call);
    receipt.knows(ahead);
    let answer = match job.status().is_terminal() {
        true => {
            receipt.reports(job);
            answer::of_ended(job, &server.result(job).await?)
        }
        false => answer::promoted(job),
    };
    Ok(Done::Answer(answer, receipt))
}
