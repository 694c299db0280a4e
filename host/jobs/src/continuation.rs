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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use backlot_registry::{Cause, Kind};

    use super::*;
    use crate::{
        RetryPolicy,
        id::JobId,
        job::{NextStep, Question, Run, Spec, Stage, StopRequest},
    };

    const RUN: RunId = RunId::from_bits(1);
    const NEXT: RunId = RunId::from_bits(2);
    const OLD: RunId = RunId::from_bits(3);
    const MOMENT: Moment = Moment { now_ms: 1_000, chance: 0.0, next: NEXT };

    fn working() -> Job {
        let kind = Kind::new("work").unwrap();
        let run = Run {
            id: RUN,
            kind: kind.clone(),
            cause: Cause::Spawn,
            attempt: 1,
            step: 0,
            task: None,
            code: None,
            started_ms: 0,
            ended_ms: None,
            outcome: None,
        };
        let spec = Spec {
            kind,
            input: String::new(),
            label: String::new(),
            parent: "chat".into(),
            incarnation: 0,
            grant: None,
            inherit: None,
            parent_run: None,
            entry: None,
            key: None,
            max_attempts: 3,
            retry: None,
            pinned: None,
            schedule: None,
            announced: true,
            webhook: None,
            trace: None,
        };
        Job {
            id: JobId::from_bits(7),
            spec: Arc::new(spec),
            depth: 1,
            phase: Phase::Working { run },
            stage: Stage {
                kind: None,
                input: None,
                cause: Cause::Spawn,
                last_failure: None,
                answer: None,
            },
            attempt: 1,
            step: 0,
            continuations: 0,
            state: None,
            code: Vec::new(),
            stop: None,
            detail: None,
            debt: None,
            call: None,
            endings: 0,
            created_ms: 0,
            updated_ms: 0,
        }
    }

    fn asking() -> Job {
        let job = working();
        let Phase::Working { run } = &job.phase else { panic!("it works") };
        let question = Question { prompt: "?".into(), schema: None };
        Job { phase: Phase::InputRequired { question, last: run.clone() }, ..job }
    }

    fn stopped() -> Job {
        let stop = StopRequest { by: "anna".into(), why: None, at_ms: 0, after_step: true };
        Job { stop: Some(stop), ..working() }
    }

    fn outcome(run: Option<RunId>, ending: RunEnding) -> RunOutcome {
        RunOutcome { run, ending, detail: Some("detail".into()), output: Some("output".into()) }
    }

    #[test]
    fn j7_who_is_asked_about() {
        use RunEnding::{Cancelled, Completed, Failed, Interrupted};
        let table = [
            (working(), Some(RUN), Completed, true, true),
            (working(), Some(RUN), Failed, true, true),
            (working(), Some(RUN), Cancelled, true, false),
            (working(), Some(RUN), Interrupted, true, false),
            (working(), Some(RUN), Completed, false, false),
            (working(), Some(OLD), Completed, true, false),
            (working(), None, Completed, true, false),
            (stopped(), Some(RUN), Completed, true, false),
            (asking(), Some(RUN), Completed, true, false),
            (asking(), None, Completed, true, false),
        ];
        for (job, run, ending, has_steps, expected) in table {
            let asked = is_asked(&job, &outcome(run, ending), has_steps);
            assert_eq!(asked, expected, "{:?} {run:?} {ending:?} {has_steps}", job.status());
        }
    }

    fn planned(
        job: &Job,
        outcome: &RunOutcome,
        has_steps: bool,
        following: Option<Result<Following, String>>,
    ) -> Event {
        plan(job, outcome, has_steps, following, &Config::default(), MOMENT)
    }

    #[test]
    fn j7_a_runs_own_ending_is_the_jobs_where_nothing_follows() {
        use RunEnding::{Cancelled, Completed, Failed, Interrupted};
        let (work, interrupted) = (Failure::Work, Failure::Interrupted);
        let table = [
            (working(), Completed, false, Ending::Completed),
            (working(), Failed, false, Ending::Failed(work)),
            (working(), Cancelled, false, Ending::Cancelled),
            (working(), Interrupted, false, Ending::Failed(interrupted)),
            (stopped(), Completed, false, Ending::Completed),
            (stopped(), Completed, true, Ending::Cancelled),
            (stopped(), Failed, true, Ending::Failed(work)),
            (stopped(), Interrupted, false, Ending::Cancelled),
            (stopped(), Cancelled, true, Ending::Cancelled),
        ];
        for (job, ending, has_steps, expected) in table {
            let outcome = outcome(Some(RUN), ending);
            let event = planned(&job, &outcome, has_steps, None);
            let Event::Finished { run, report } = event else { panic!("{event:?}") };
            assert_eq!((run, report.ending), (Some(RUN), expected), "{ending:?} {has_steps}");
            assert_eq!(report.result.as_deref(), Some("output"));
            assert_eq!((report.state, report.again_ms, report.told), (None, None, false));
        }
    }

    #[test]
    fn j3_an_ending_names_the_run_that_was_looked_at() {
        let table = [
            (working(), Some(RUN), Some(RUN)),
            (working(), Some(OLD), Some(OLD)),
            (working(), None, Some(RUN)),
            (asking(), None, Some(RUN)),
        ];
        for (job, told, expected) in table {
            let event = planned(&job, &outcome(told, RunEnding::Failed), false, None);
            assert!(matches!(&event, Event::Finished { run, .. } if *run == expected), "{event:?}");
        }
    }

    #[test]
    fn j7_what_follows_decides() {
        let step = NextStep { kind: None, input: "next".into(), state: Some("s".into()) };
        let question = Question { prompt: "?".into(), schema: None };
        let outcome = outcome(Some(RUN), RunEnding::Completed);
        let after = |following| planned(&working(), &outcome, true, Some(following));
        let line = "completed: detail".to_owned();

        let event = after(Ok(Following::Proceed(step.clone())));
        assert_eq!(event, Event::Advanced { run: RUN, outcome: line.clone(), next: NEXT, step });
        let state = Some("s".to_owned());
        let event = after(Ok(Following::Ask { question: question.clone(), state: state.clone() }));
        assert_eq!(event, Event::Asked { run: RUN, outcome: line, question, state: state.clone() });

        let ended = |event| match event {
            Event::Finished { run: Some(RUN), report } => {
                (report.ending, report.result, report.detail, report.state)
            }
            other => panic!("{other:?}"),
        };
        let text = |text: &str| Some(text.to_owned());
        let completed = (Ending::Completed, text("output"), text("detail"), state.clone());
        let end = |failure| Ok(Following::End { state: state.clone(), failure });
        assert_eq!(ended(after(end(None))), completed);
        let failed = Ending::Failed(Failure::Work);
        assert_eq!(ended(after(end(text("no")))), (failed, None, text("no"), state.clone()));
        assert_eq!(ended(after(Err("why".into()))), (failed, None, text("why"), None));
    }

    #[test]
    fn j7_the_ceiling_ends_what_would_go_on_and_nothing_else() {
        let job = Job { continuations: 50, ..working() };
        let outcome = outcome(Some(RUN), RunEnding::Completed);
        let step = NextStep { kind: None, input: String::new(), state: Some("s".into()) };
        let question = Question { prompt: "?".into(), schema: None };
        let state = Some("s".into());
        for following in [Following::Proceed(step), Following::Ask { question, state }] {
            let event = planned(&job, &outcome, true, Some(Ok(following)));
            let Event::Finished { report, .. } = event else { panic!("{event:?}") };
            assert_eq!((report.ending, report.state), (Ending::Failed(Failure::Work), None));
        }
        let event = planned(&job, &outcome, true, Some(Ok(Following::END)));
        assert!(
            matches!(&event, Event::Finished { report, .. } if report.ending == Ending::Completed)
        );
    }

    #[test]
    fn j29_a_failure_is_tried_again_where_the_policy_names_it() {
        let retry = Some(RetryPolicy::default());
        let spec = Spec { retry, ..(*working().spec).clone() };
        let job = Job { spec: Arc::new(spec), ..working() };
        let last = Job { attempt: 3, ..job.clone() };
        use RunEnding::{Completed, Failed, Interrupted};
        let table = [
            (&job, Failed, None, Some(2_000)),
            (&job, Interrupted, None, None),
            (&job, Completed, None, None),
            (&job, Completed, Some(Err("why".to_owned())), Some(2_000)),
            (&last, Failed, None, None),
        ];
        for (job, ending, following, expected) in table {
            let event = planned(job, &outcome(Some(RUN), ending), true, following);
            let Event::Finished { report, .. } = event else { panic!("{event:?}") };
            assert_eq!(report.again_ms, expected, "{ending:?}, attempt {}", job.attempt);
        }
    }
}
