//! What a run's ending comes to: the decision, without anything being done.

use crate::{
    config::Config,
    id::RunId,
    job::{Ending, Event, Failure, Job, Phase, Report},
    retry,
    text::{self, shorten},
    world::{Following, RunEnding, RunOutcome},
};

/// Tells whether what follows a run is asked: only about the run that the job is on, only
/// if it came to an end of its own, and never once somebody wants the job to stop.
pub(crate) fn is_asked(job: &Job, outcome: &RunOutcome, has_steps: bool) -> bool {
    let is_current = outcome.run.is_some() && job.run() == outcome.run;
    let is_own = matches!(outcome.ending, RunEnding::Completed | RunEnding::Failed);
    has_steps && is_current && is_own && job.stop.is_none()
}

/// What the moment adds to a decision.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    /// The time of day, in milliseconds since the Unix epoch.
    pub(crate) now_ms: u64,
    /// From 0 to 1: what is left to chance.
    pub(crate) chance: f64,
    /// The run that follows, if one does.
    pub(crate) next: RunId,
}

/// Returns what happens to the job now that a run of it has ended so.
///
/// `following` is what was answered where it was asked.
pub(crate) fn plan(
    job: &Job,
    outcome: &RunOutcome,
    has_steps: bool,
    following: Option<Result<Following, String>>,
    config: &Config,
    moment: Moment,
) -> Event {
    // It ends what was looked at, and nothing that has come since.
    let observed = outcome.run.or_else(|| job.last_run().map(|run| run.id));
    let own = || own_ending(job, outcome, has_steps, config);
    let failed = |detail: String| Report {
        ending: Ending::Failed(Failure::Work),
        result: None,
        detail: Some(detail),
        ..own()
    };
    let report = match following {
        None => own(),
        Some(Err(why)) => failed(why),
        Some(Ok(Following::End { state, failure: None })) => Report { state, ..own() },
        Some(Ok(Following::End { state, failure: Some(why) })) => Report { state, ..failed(why) },
        Some(Ok(Following::Proceed(_) | Following::Ask { .. }))
            if job.continuations >= config.max_continuations =>
        {
            failed(format!(
                "it went on for {} runs without an end, which is the most since its spawn or \
                 last retry",
                config.max_continuations
            ))
        }
        Some(Ok(following)) => {
            let (Phase::Working { run }, line) = (&job.phase, text::outcome(&own())) else {
                return Event::Finished { run: observed, report: own() };
            };
            return match following {
                Following::Proceed(step) => {
                    Event::Advanced { run: run.id, outcome: line, next: moment.next, step }
                }
                Following::Ask { question, state } => {
                    Event::Asked { run: run.id, outcome: line, question, state }
                }
                Following::End { .. } => Event::Finished { run: observed, report: own() },
            };
        }
    };
    let again_ms = retry::again_ms(job, report.ending, moment.now_ms, moment.chance);
    Event::Finished { run: observed, report: Report { again_ms, ..report } }
}

/// Returns how the job ends where the run's own ending decides.
fn own_ending(job: &Job, outcome: &RunOutcome, has_steps: bool, config: &Config) -> Report {
    let is_stopped = job.stop.is_some();
    let ending = match outcome.ending {
        // A step that completes after a stop is not the whole; a job of one run is.
        RunEnding::Completed if is_stopped && has_steps => Ending::Cancelled,
        RunEnding::Completed => Ending::Completed,
        RunEnding::Failed => Ending::Failed(Failure::Work),
        RunEnding::Interrupted if is_stopped => Ending::Cancelled,
        RunEnding::Interrupted => Ending::Failed(Failure::Interrupted),
        RunEnding::Cancelled => Ending::Cancelled,
    };
    Report {
        ending,
        result: outcome.output.as_deref().map(|output| shorten(output, config.result_bytes)),
        detail: outcome.detail.clone(),
        state: None,
        again_ms: None,
        told: false,
    }
}
