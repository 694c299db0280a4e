//! The extension `io.modelcontextprotocol/tasks`: a call of a kind's own tool that is
//! answered with a task, which the client then looks at.
//!
//! A task of the protocol is one life of a job: from its spawn or a retry that somebody
//! asked for to its end, since a task that has ended never changes again. Its id is the
//! job's, which is random, and the number of that life. It is there for as long as its job.

use backlot_jobs::{Ending, Failure as Failed, How, Job, JobId, Phase};
use rmcp::{
    ErrorData,
    model::{
        CreateTaskResult, DetailedTask, ElicitResult, ErrorCode, GetTaskResult, InputResponses,
        JsonObject, Task, TaskPayload, TaskStatus,
    },
};
use serde_json::Value;

use super::{
    answer::{self, Answer},
    asking,
    foreground::Call,
    server::Server,
    tools::line,
};
use crate::error::Failure;

/// How often a client is to look, in milliseconds. What it waits for takes seconds.
const POLL_MS: u64 = 1_000;
/// How much a status says of itself, in characters.
const SAYING: usize = 400;

/// Returns the answer to a call whose job goes on as a task.
pub(super) async fn created(server: &Server, job: &Job) -> CreateTaskResult {
    CreateTaskResult::new(task(server, job, life(job)).await)
}

/// Returns which life of the job this is; the first is 0.
fn life(job: &Job) -> u32 {
    match &job.phase {
        Phase::Ended { .. } => job.endings.saturating_sub(1),
        _ => job.endings,
    }
}

fn unknown() -> ErrorData {
    ErrorData::invalid_params("there is no such task", None)
}

/// Returns a job, and which of its lives an id names.
async fn find(server: &Server, call: &Call, id: &str) -> Result<(Job, u32), ErrorData> {
    let (job, number) = id.split_once('.').ok_or_else(unknown)?;
    let (job, number): (JobId, u32) =
        (job.parse().map_err(|_| unknown())?, number.parse().map_err(|_| unknown())?);
    let job = server.api().manager.get(job, &call.asker.caller).await;
    let job = job.map_err(|error| match error {
        backlot_jobs::LookError::Store(error) => internal(&Failure::from(error)),
        _ => unknown(),
    })?;
    // One way to write an id.
    let is_one = number <= life(&job) && id == format!("{}.{number}", job.id);
    is_one.then_some((job, number)).ok_or_else(unknown)
}

fn internal(failure: &Failure) -> ErrorData {
    ErrorData::internal_error(failure.message.clone(), None)
}

/// Answers `tasks/get`.
pub(super) async fn get(
    server: &Server,
    call: &Call,
    id: &str,
) -> Result<GetTaskResult, ErrorData> {
    let (job, number) = find(server, call, id).await?;
    let task = task(server, &job, number).await;
    if number < life(&job) {
        let payload = ended_before(server, call, &job, number).await?;
        return Ok(GetTaskResult::new(DetailedTask::new(task, payload)));
    }
    let payload = match &job.phase {
        Phase::Queued { .. } | Phase::Working { .. } => TaskPayload::Working,
        Phase::InputRequired { .. } => {
            TaskPayload::InputRequired { input_requests: asking::requests(&job, &key(&job), None) }
        }
        Phase::Ended { ended, .. } => {
            let mut receipt = server.receipt(call);
            receipt.reports(&job);
            call.handover.keep(receipt);
            match ended.ending {
                Ending::Cancelled => TaskPayload::Cancelled,
                Ending::Failed(Failed::Launch | Failed::Interrupted) => {
                    TaskPayload::Failed { error: failed(&answer::state(&job, None)) }
                }
                Ending::Completed | Ending::Failed(Failed::Work) => {
                    let result = server.result(&job).await.map_err(|it| internal(&it))?;
                    completed(answer::of_ended(&job, &result))
                }
            }
        }
    };
    Ok(GetTaskResult::new(DetailedTask::new(task, payload)))
}

/// Returns how an earlier life of a job ended. Only what has failed was tried again.
async fn ended_before(
    server: &Server,
    call: &Call,
    job: &Job,
    number: u32,
) -> Result<TaskPayload, ErrorData> {
    let runs = server.api().manager.runs(job.id, &call.asker.caller).await;
    let runs = runs.map_err(|error| internal(&error.into()))?;
    // Where attempts follow each other by themselves, a life has several.
    let attempt = job.spec.retry.is_none().then_some(number + 1);
    let run = runs.iter().rev().find(|run| Some(run.attempt) == attempt);
    let why = run.and_then(|run| run.outcome.as_deref()).unwrap_or("failed");
    let text = format!(
        "This attempt of task {} {}. It was tried again since, as another one.",
        job.id,
        line(why, SAYING)
    );
    Ok(completed(Answer::error(text).about(job)))
}

fn completed(answer: Answer) -> TaskPayload {
    let result = serde_json::to_value(answer.into_result(None));
    let result = match result {
        Ok(Value::Object(result)) => result,
        _ => JsonObject::new(),
    };
    TaskPayload::Completed { result }
}

fn failed(why: &str) -> JsonObject {
    let mut error = JsonObject::new();
    error.insert("code".to_owned(), ErrorCode::INTERNAL_ERROR.0.into());
    error.insert("message".to_owned(), why.into());
    error
}

/// Names the question of a job among those that it ever asks.
fn key(job: &Job) -> String {
    match &job.phase {
        Phase::InputRequired { question, last } => {
            format!("{}-{}", asking::key(question), last.id)
        }
        _ => String::new(),
    }
}

/// Answers `tasks/update`: hands the person's answer to the job. What answers nothing that
/// is asked now is left, and the question stays where a person declined it.
pub(super) async fn update(
    server: &Server,
    call: &Call,
    id: &str,
    responses: &InputResponses,
) -> Result<(), ErrorData> {
    let (job, number) = find(server, call, id).await?;
    let Phase::InputRequired { question, .. } = &job.phase else { return Ok(()) };
    let Some(response) = responses.get(&key(&job)).filter(|_| number == life(&job)) else {
        return Ok(());
    };
    let given: ElicitResult = serde_json::from_value(response.clone()).map_err(|error| {
        ErrorData::invalid_params(format!("the response cannot be read: {error}"), None)
    })?;
    let Some(answer) = asking::answer_of(question, &given) else { return Ok(()) };
    let answered = asking::hand_over(server, call, job.id, answer).await;
    answered.map_err(|failure| ErrorData::invalid_params(failure.message, None)).map(|_| ())
}

/// Answers `tasks/cancel`: stops the job, unless that life of it is over.
pub(super) async fn cancel(server: &Server, call: &Call, id: &str) -> Result<(), ErrorData> {
    let (job, number) = find(server, call, id).await?;
    if number < life(&job) || job.status().is_terminal() {
        return Ok(());
    }
    let refuse = |failure: Failure| ErrorData::invalid_params(failure.message, None);
    call.asker.principal.may_change().map_err(refuse)?;
    let (caller, by) = (&call.asker.caller, call.asker.name());
    let why = Some("its client cancelled it".to_owned());
    let stopped = server.api().manager.stop(job.id, caller, How::Ask, &by, why).await;
    stopped.map_err(|error| internal(&error.into())).map(|_| ())
}

/// Returns what is said of a life of a job at any time.
async fn task(server: &Server, job: &Job, number: u32) -> Task {
    let status = match &job.phase {
        _ if number < life(job) => TaskStatus::Completed,
        Phase::Queued { .. } | Phase::Working { .. } => TaskStatus::Working,
        Phase::InputRequired { .. } => TaskStatus::InputRequired,
        Phase::Ended { ended, .. } => match ended.ending {
            Ending::Cancelled => TaskStatus::Cancelled,
            Ending::Failed(Failed::Launch | Failed::Interrupted) => TaskStatus::Failed,
            Ending::Completed | Ending::Failed(Failed::Work) => TaskStatus::Completed,
        },
    };
    let id = format!("{}.{number}", job.id);
    let updated_ms = job.updated_ms.max(job.created_ms);
    let mut task = Task::new(id, status, time(job.created_ms), time(updated_ms));
    task.poll_interval_ms = Some(POLL_MS);
    if let Some(ended) = job.ended() {
        // It is kept for so long at least, unless many others end.
        let kept = server.api().manager.config().keep_for.as_millis();
        let kept = u64::try_from(kept).unwrap_or(u64::MAX);
        let lived = ended.at_ms.saturating_sub(job.created_ms);
        task.ttl_ms = Some(kept.saturating_add(lived));
    }
    let says = match job.summary() {
        Some(summary) => Some(summary.to_owned()),
        None => server.api().manager.progress(std::slice::from_ref(job)).await.pop().flatten(),
    };
    task.status_message = says.filter(|_| number == life(job)).map(|says| line(&says, SAYING));
    task
}

/// Returns a time as ISO 8601 has it.
fn time(ms: u64) -> String {
    // The days of the civil calendar, counted from 1 March of the year 0, so that a leap day
    // is the last of its year.
    let (days, of_day) = (ms / 86_400_000 + 719_468, ms % 86_400_000);
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    let (hour, minute) = (of_day / 3_600_000, of_day / 60_000 % 60);
    let (second, ms) = (of_day / 1_000 % 60, of_day % 1_000);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        assert_eq!(time(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(time(951_782_399_999), "2000-02-28T23:59:59.999Z");
        assert_eq!(time(951_782_400_000), "2000-02-29T00:00:00.000Z");
        assert_eq!(time(1_795_996_799_001), "2026-11-29T23:59:59.001Z");
        assert_eq!(time(4_107_542_400_000), "2100-03-01T00:00:00.000Z");
    }
}
