//! What a start finds, and what becomes of it: the decision, without anything being
//! done.
//!
//! No run outlives its host. So what was working was interrupted, and whoever waits for
//! it has to hear that; what waits goes on waiting.

use crate::{
    id::JobId,
    job::{Ending, Event, Failure, Job, Phase, Report, Wait},
    retry,
};

/// What becomes of the jobs that a start finds.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Plan {
    /// What happens to jobs that have no run any more.
    pub(crate) events: Vec<(JobId, Event)>,
    /// Those that wait, and for what.
    pub(crate) waiting: Vec<(JobId, Wait)>,
}

/// Why a job failed whose host stopped or crashed.
pub(crate) const INTERRUPTED: &str = "interrupted by restart";

impl Plan {
    /// Decides about one more job. `chance`, from 0 to 1, spreads what is tried again.
    pub(crate) fn add(&mut self, job: &Job, now_ms: u64, chance: f64) {
        match &job.phase {
            Phase::Working { run } => {
                let ending = match job.stop {
                    Some(_) => Ending::Cancelled,
                    None => Ending::Failed(Failure::Interrupted),
                };
                let why = job.stop.as_ref().and_then(|stop| stop.why.clone());
                let report = Report {
                    ending,
                    result: None,
                    detail: match ending {
                        Ending::Cancelled => why,
                        _ => Some(INTERRUPTED.to_owned()),
                    },
                    state: None,
                    again_ms: retry::again_ms(job, ending, now_ms, chance),
                    told: false,
                };
                self.events.push((job.id, Event::Finished { run: Some(run.id), report }));
            }
            Phase::Queued { wait, .. } => self.waiting.push((job.id, wait.clone())),
            // A person may still answer.
            Phase::InputRequired { .. } | Phase::Ended { .. } => {}
        }
    }
}
