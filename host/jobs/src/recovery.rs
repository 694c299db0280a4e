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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        RetryPolicy,
        id::RunId,
        job::{StopRequest, next},
        store::MemoryStore,
    };

    /// Returns a job that works, by way of its spawn.
    async fn working(retry: Option<RetryPolicy>) -> Job {
        use backlot_registry::Kind;

        use crate::store::{Change, Changed, Limits, Spawned, Store as _};

        let store = MemoryStore::new();
        let session = crate::Session { id: "chat".into(), incarnation: 1, created_ms: 0 };
        store.change(Change::Open { session, limit: usize::MAX }).await.unwrap();
        let spec = crate::Spec {
            kind: Kind::new("work").unwrap(),
            input: String::new(),
            label: String::new(),
            parent: "chat".into(),
            incarnation: 0,
            grant: None,
            inherit: None,
            parent_run: None,
            entry: None,
            key: None,
            max_attempts: 2,
            retry,
            pinned: None,
            schedule: None,
            announced: true,
            webhook: None,
            trace: None,
        };
        let spawned = Spawned {
            id: JobId::from_bits(7),
            run: RunId::from_bits(1),
            spec,
            state: None,
            due_ms: 0,
            queue: false,
            limits: Limits { per_session: 1, total: 1, depth: 1, queued: 1, ..Limits::NONE },
            now_ms: 0,
        };
        let changed = store.change(Change::Spawn(Box::new(spawned))).await.unwrap();
        let Changed::Job { job, .. } = changed else { panic!("{changed:?}") };
        *job
    }

    fn planned(job: &Job) -> Plan {
        let mut plan = Plan::default();
        plan.add(job, 1_000, 0.0);
        plan
    }

    #[tokio::test]
    async fn j14_what_worked_has_ended_and_what_waits_goes_on_waiting() {
        let job = working(None).await;
        let on = vec![Failure::Interrupted];
        let tried_again = working(Some(RetryPolicy { on, ..RetryPolicy::default() })).await;
        let used_up = Job { attempt: 2, ..tried_again.clone() };
        let stop = StopRequest { by: "anna".into(), why: None, at_ms: 0, after_step: true };
        let stopped = Job { stop: Some(stop.clone()), ..tried_again.clone() };
        let why = StopRequest { why: Some("no need".into()), ..stop };
        let stopped_why = Job { stop: Some(why), ..job.clone() };
        let interrupted = Ending::Failed(Failure::Interrupted);
        let table = [
            (&job, interrupted, Some(INTERRUPTED), None),
            (&tried_again, interrupted, Some(INTERRUPTED), Some(2_000)),
            (&used_up, interrupted, Some(INTERRUPTED), None),
            (&stopped, Ending::Cancelled, None, None),
            (&stopped_why, Ending::Cancelled, Some("no need"), None),
        ];
        for (job, ending, detail, again_ms) in table {
            let Plan { events, waiting } = planned(job);
            let [(id, Event::Finished { run, report })] = &events[..] else { panic!("{events:?}") };
            assert_eq!((*id, *run, waiting.len()), (job.id, job.run(), 0));
            let said = (report.ending, report.detail.as_deref(), report.again_ms);
            assert_eq!(said, (ending, detail, again_ms));
            // It can be carried out.
            next(job, &events[0].1, 1_000).unwrap();
        }
    }

    #[tokio::test]
    async fn j14_a_question_and_an_ending_are_left_alone() {
        let job = working(None).await;
        let Phase::Working { run } = job.phase.clone() else { panic!("it works") };
        let question = crate::Question { prompt: "?".into(), schema: None };
        let asking = Job { phase: Phase::InputRequired { question, last: run }, ..job.clone() };
        let ended = next(&job, &planned(&job).events[0].1, 1_000).unwrap().job;
        for job in [asking, ended] {
            assert_eq!(planned(&job), Plan::default(), "{}", job.status());
        }
        for wait in [Wait::Place, Wait::Time { due_ms: 9 }, Wait::Cron { due_ms: 9 }] {
            let phase = Phase::Queued { wait: wait.clone(), place: 1, last: None };
            let plan = planned(&Job { phase, ..job.clone() });
            assert_eq!(plan, Plan { events: Vec::new(), waiting: vec![(job.id, wait)] });
        }
    }
}
