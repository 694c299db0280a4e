//! What follows the runs of jobs, as the components say that the jobs were begun with.

use std::sync::Arc;

use backlot_jobs::{Continue, Following, Job, NextStep, Question, RunEnding, RunOutcome};
use backlot_registry::{BoxFuture, Ending, Outcome, Request, TaskId};
use backlot_wasm::{AnswerError, Next};

use super::{launcher::step_of, versions::Versions};

/// Asks components what follows.
pub(super) struct Steps {
    versions: Arc<Versions>,
}

impl Steps {
    pub(super) fn new(versions: Arc<Versions>) -> Self {
        Self { versions }
    }
}

impl Continue for Steps {
    fn has_steps(&self, job: &Job) -> bool {
        match self.versions.held(job.id, &job.spec.kind) {
            Some(pinned) => pinned.component().has_steps(),
            // Another kind ran, so somebody has asked for that.
            None => job.stage.kind.is_some(),
        }
    }

    fn after<'a>(
        &'a self,
        job: &'a Job,
        outcome: &'a RunOutcome,
    ) -> BoxFuture<'a, Result<Following, String>> {
        Box::pin(async move {
            let pinned = self.versions.of(job, &job.spec.kind).await;
            let pinned = pinned.map_err(|error| error.to_string())?;
            let request = request_of(job)?;
            let ended = Outcome {
                ending: match outcome.ending {
                    RunEnding::Completed => Ending::Completed,
                    RunEnding::Cancelled => Ending::Killed,
                    RunEnding::Failed | RunEnding::Interrupted => Ending::Failed,
                },
                detail: outcome.detail.clone(),
                output: outcome.output.clone(),
            };
            let next = pinned.component().after(request, ended).await;
            Ok(match next.map_err(|error| error.to_string())? {
                Next::End { state, failure } => Following::End { state, failure },
                Next::Proceed { kind, input, state } => {
                    Following::Proceed(NextStep { kind, input, state })
                }
                Next::Ask { prompt, schema, state } => {
                    Following::Ask { question: Question { prompt, schema }, state }
                }
            })
        })
    }

    fn render<'a>(&'a self, job: &'a Job) -> BoxFuture<'a, Option<String>> {
        Box::pin(async move {
            // An ending says all there is to say.
            if job.status().is_terminal() {
                return None;
            }
            let pinned = match self.versions.held(job.id, &job.spec.kind) {
                Some(pinned) => pinned,
                None => self.versions.of_record(job).await?,
            };
            pinned.component().render(job.state.as_deref()?).await.ok().flatten()
        })
    }

    fn check_answer<'a>(
        &'a self,
        question: &'a Question,
        answer: &'a str,
    ) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(async move {
            let Some(schema) = &question.schema else { return Ok(()) };
            let checked = self.versions.engine().check_answer(schema, answer).await;
            checked.map_err(|error| match error {
                AnswerError::Invalid(why) => why,
                unchecked @ AnswerError::Unchecked(_) => unchecked.to_string(),
            })
        })
    }
}

/// Returns what the job's current run was given.
fn request_of(job: &Job) -> Result<Request, String> {
    let run = job.last_run().ok_or("the job has had no run")?;
    let task: TaskId = match &run.task {
        Some(task) => task.parse().map_err(|_| format!("{task:?} is no task"))?,
        // It was not written down before it ended.
        None => TaskId { kind: run.kind.clone(), number: 0 },
    };
    Ok(Request {
        task,
        label: job.spec.label.clone(),
        input: job.stage_input().to_owned(),
        step: step_of(job),
    })
}
