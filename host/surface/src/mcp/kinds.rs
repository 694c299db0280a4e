//! Kinds that are tools of their own: called, waited for, and promoted where they take long.

use backlot_jobs::{How, Job};
use backlot_registry::Kind;
use rmcp::{ErrorData, model::CallToolRequestParams};

use super::{
    answer::{self, Answer},
    asking,
    foreground::{self, Call, Waited},
    server::{Done, Server, Unanswered, unknown_tool},
    tasks,
    tools::Offer,
};
use crate::wire::SpawnRequest;

/// Calls a kind. Where the client takes tasks, it is given one at once.
pub(super) async fn call(
    server: &Server,
    call: &Call,
    request: CallToolRequestParams,
    takes_tasks: bool,
) -> Result<Done, Unanswered> {
    let (api, name) = (server.api(), &*request.name);
    let unknown = || Unanswered::Error(unknown_tool(name));
    let kind = Kind::new(name).ok().filter(|_| api.mcp.exposes(name)).ok_or_else(unknown)?;
    let view = api.catalog.kind(&kind).ok_or_else(unknown)?;
    let offer = Offer::of(&view).ok_or_else(unknown)?;
    let job = match &request.request_state {
        Some(state) => {
            let responses = request.input_responses.as_ref();
            asking::again(server, call, state, responses, Some(&kind)).await?
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
            server.spawn(call, spawn).await?
        }
    };
    if takes_tasks {
        return Ok(Done::Other(tasks::created(server, &job).await.into()));
    }
    match foreground::wait(server, call, job.id, api.mcp.foreground).await? {
        Waited::Job(job) => told_of(server, call, &job).await,
        Waited::Ask(job) => match asking::required(&job) {
            Some(required) => Ok(Done::Other(required.into())),
            None => told_of(server, call, &job).await,
        },
        Waited::Cancelled => {
            // Nobody has heard of the job yet, so nobody else would stop it.
            let (caller, by) = (&call.asker.caller, call.asker.name());
            let why = Some("the call was cancelled".to_owned());
            if let Err(error) = api.manager.stop(job.id, caller, How::Ask, &by, why).await {
                tracing::warn!(job = %job.id, "the job of a cancelled call goes on: {error}");
            }
            Err(Unanswered::Error(ErrorData::internal_error("the call was cancelled", None)))
        }
    }
}

/// Returns how a call is answered by the job as it is then.
async fn told_of(server: &Server, call: &Call, job: &Job) -> Result<Done, Unanswered> {
    let mut receipt = server.receipt(call);
    let answer = match job.status().is_terminal() {
        true => {
            receipt.reports(job);
            answer::of_ended(job, &server.result(job).await?)
        }
        false => answer::promoted(job),
    };
    Ok(Done::Answer(answer, receipt))
}
