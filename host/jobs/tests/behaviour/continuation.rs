//! J6, J7, J8, J22, C73: what follows a run, and a person who is asked.

use std::time::Duration;

use backlot_jobs::{
    ChangeError, Config, Ending, Failure, Following, Hand, How, Lost, NextStep, Refused,
    ResumeError, RunEnding, RunOutcome, Status, StopReply, Stopped,
};
use backlot_registry::Cause;
use tokio::sync::oneshot;

use crate::world::*;

#[tokio::test(start_paused = true)]
async fn j6_a_step_takes_the_place_of_the_run_that_ended() {
    for host in hosts().await {
        host.hook.say(Saying::Follow(Following::Proceed(NextStep {
            kind: Some(kind("other")),
            input: "second".into(),
            state: Some("half".into()),
        })));
        // What is launched is no write of its own then.
        host.runs.be_mute();
        let (job, first) = host.start().await;
        settle_down().await;
        let before = host.store.writes();
        first.complete("one");
        let second = host.runs.next().await;
        assert_eq!(host.store.writes(), before + 1, "run and state are one write");
        let job = host.job(job.id).await;
        assert_eq!(job.run(), Some(second.run));
        assert_eq!((job.attempt, job.step, job.continuations), (1, 1, 1));
        assert_eq!(job.state.as_deref(), Some("half"));
        assert_eq!((job.stage_kind(), job.stage_input()), (&kind("other"), "second"));
        assert_eq!(job.stage.cause, Cause::Step);
        assert_eq!(host.heard.finished(), []);
        second.complete("two");
        assert_eq!(host.ended(job.id).await.summary(), Some("two"));
    }
}

#[tokio::test(start_paused = true)]
async fn j6_a_step_without_a_state_keeps_the_old_one() {
    for host in hosts().await {
        host.hook.say(proceed_with("second", Some("half")));
        host.hook.say(proceed("third"));
        let (job, run) = host.start().await;
        run.complete("one");
        host.runs.next().await.complete("two");
        host.runs.next().await;
        assert_eq!(host.job(job.id).await.state.as_deref(), Some("half"));
    }
}

#[tokio::test(start_paused = true)]
async fn j7_what_follows_is_asked_of_what_completed_or_failed() {
    let asked = [
        (RunEnding::Completed, 1, Status::Completed),
        (RunEnding::Failed, 1, Status::Failed),
        (RunEnding::Cancelled, 0, Status::Cancelled),
        (RunEnding::Interrupted, 0, Status::Failed),
    ];
    for (ending, times, status) in asked {
        for host in hosts().await {
            host.hook.say(Saying::Follow(Following::END));
            let (job, run) = host.start().await;
            run.end_so(ending);
            assert_eq!(host.ended(job.id).await.status(), status);
            assert_eq!(host.hook.asked().len(), times, "{ending:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn j7_an_outcome_that_names_no_run_ends_the_job() {
    for host in hosts().await {
        host.hook.say(proceed("second"));
        let (job, run) = host.start().await;
        let outcome = RunOutcome { run: None, ..completed(run.run, "one") };
        host.manager.run_finished(job.id, outcome).await;
        assert_eq!(host.stands(job.id).await, Status::Completed);
        assert_eq!((host.hook.asked().len(), host.runs.launches()), (0, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn j7_an_outcome_of_another_run_asks_nothing() {
    for host in hosts().await {
        host.hook.say(proceed("second"));
        let (job, first) = host.start().await;
        first.complete("one");
        let second = host.runs.next().await;
        host.manager.run_finished(job.id, completed(first.run, "one more time")).await;
        assert_eq!(host.hook.asked().len(), 1);
        assert_eq!(host.job(job.id).await.run(), Some(second.run));
    }
}

#[tokio::test(start_paused = true)]
async fn j7_a_job_that_waits_for_a_person_is_ended_and_not_continued() {
    for host in hosts().await {
        let job = host.asking().await;
        host.hook.say(proceed("second"));
        let outcome = outcome(job.last_run().unwrap().id, RunEnding::Failed);
        host.manager.run_finished(job.id, outcome).await;
        assert_eq!(host.stands(job.id).await, Status::Failed);
        assert_eq!((host.hook.asked().len(), host.runs.launches()), (1, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn j7_nothing_that_follows_may_still_say_why_and_where() {
    let said = [
        (None, Status::Completed, "one"),
        (Some("the check failed"), Status::Failed, "the check failed"),
    ];
    for (failure, status, summary) in said {
        for host in hosts().await {
            let failure = failure.map(Into::into);
            let state = Some("at its end".into());
            host.hook.say(Saying::Follow(Following::End { state, failure }));
            let (job, run) = host.start().await;
            run.complete("one");
            let ended = host.ended(job.id).await;
            assert_eq!((ended.status(), ended.summary()), (status, Some(summary)));
            assert_eq!(ended.state.as_deref(), Some("at its end"));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn j7_a_hook_that_fails_fails_the_job() {
    let broken = "what follows could not be told: it panicked";
    for (saying, why) in [(Saying::Fail("no such step"), "no such step"), (Saying::Panic, broken)] {
        let host = hosts().await.pop().unwrap();
        host.hook.say(saying);
        let (job, run) = host.start().await;
        run.complete("one");
        let ended = host.ended(job.id).await;
        assert_eq!((ended.status(), ended.summary()), (Status::Failed, Some(why)));
    }
}

#[tokio::test(start_paused = true)]
async fn j7_at_the_ceiling_a_job_fails_with_the_state_it_had() {
    for host in hosts_with(Config { max_continuations: 2, ..Config::default() }).await {
        let say_three = || {
            for state in ["one", "two", "three"] {
                host.hook.say(proceed_with("on", Some(state)));
            }
        };
        say_three();
        let (job, run) = host.start().await;
        run.complete("");
        host.runs.next().await.complete("");
        host.runs.next().await.complete("");
        let ended = host.ended(job.id).await;
        assert_eq!(
            ended.summary(),
            Some(
                "it went on for 2 runs without an end, which is the most since its spawn or last \
                 retry"
            )
        );
        assert_eq!(ended.state.as_deref(), Some("two"));
        // A retry counts anew.
        say_three();
        let (_, run) = host.retry(job.id).await;
        run.complete("");
        host.runs.next().await.complete("");
        host.runs.next().await;
        assert_eq!(host.job(job.id).await.continuations, 2);
    }
}

#[tokio::test(start_paused = true)]
async fn j8_a_step_that_is_not_launched_fails_the_job_and_is_told() {
    for host in hosts().await {
        host.hook.say(proceed("second"));
        host.runs.begin(Beginning::Start);
        host.runs.begin(Beginning::Unavailable("no memory"));
        let (job, run) = host.start().await;
        run.complete("one");
        let ended = host.ended(job.id).await;
        assert_eq!(ended.ended().unwrap().ending, Ending::Failed(Failure::Launch));
        assert_eq!(ended.summary(), Some("could not be launched: no memory"));
        assert_eq!(host.owed().await, [job.id]);
        assert_eq!(host.heard.finished(), [ended]);
    }
}

#[tokio::test(start_paused = true)]
async fn j8_a_step_that_cannot_be_written_in_time_fails_the_job() {
    for host in hosts().await {
        host.hook.say(proceed("second"));
        let (job, run) = host.start().await;
        settle_down().await;
        host.store.fail_from(1, full());
        run.complete("one");
        pass(host.manager.config().patience * 2).await;
        host.store.heal();
        pass(Duration::from_secs(10)).await;
        let ended = host.job(job.id).await;
        assert_eq!(ended.status(), Status::Failed);
        assert_eq!(
            ended.summary(),
            Some(
                "it could not go on: no space is left for jobs.db: free some; nothing that was \
                 written is lost"
            )
        );
        assert_eq!(ended.last_run().unwrap().id, run.run);
        assert_eq!((host.runs.launches(), host.owed().await), (1, vec![job.id]));
    }
}

#[tokio::test(start_paused = true)]
async fn j8_a_step_that_is_written_within_the_patience_goes_on() {
    for host in hosts().await {
        host.hook.say(proceed("second"));
        let (job, run) = host.start().await;
        settle_down().await;
        host.store.fail_from(1, full());
        run.complete("one");
        pass(host.manager.config().patience / 2).await;
        host.store.heal();
        pass(Duration::from_secs(10)).await;
        assert_eq!(host.job(job.id).await.run(), Some(host.runs.next().await.run));
    }
}

#[tokio::test(start_paused = true)]
async fn j8_a_step_that_is_not_won_is_not_launched() {
    for host in hosts().await {
        let (go, wait) = oneshot::channel();
        host.hook.say(Saying::After(wait, Box::new(proceed("second"))));
        let (job, run) = host.start().await;
        run.complete("one");
        until(|| !host.hook.asked().is_empty()).await;
        host.manager
            .run_finished(job.id, RunOutcome { run: None, ..failed(run.run, "gone") })
            .await;
        go.send(()).unwrap();
        settle_down().await;
        assert_eq!((host.stands(job.id).await, host.runs.launches()), (Status::Failed, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn j8_a_stop_that_races_a_step_wins() {
    for told in [Stopped::Unknown, Stopped::AlreadyFinished] {
        for host in hosts().await {
            let (go, wait) = oneshot::channel();
            host.hook.say(Saying::After(wait, Box::new(proceed("second"))));
            let (job, run) = host.start().await;
            run.complete("one");
            until(|| !host.hook.asked().is_empty()).await;
            host.runs.answer(Answering::Say(told));
            let manager = host.manager.clone();
            let stop = tokio::spawn(async move {
                manager.stop(job.id, &OPERATOR, How::Ask, "anna", None).await
            });
            until(|| !host.runs.stops().is_empty()).await;
            go.send(()).unwrap();
            let reply = stop.await.unwrap().unwrap();
            assert_eq!(host.stands(job.id).await, Status::Cancelled);
            assert!(matches!(reply, StopReply::Cancelled(_)), "{reply:?}");
            settle_down().await;
            assert_eq!(host.runs.launches(), 1);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn c71_what_follows_is_not_asked_after_a_stop() {
    for how in [How::AfterStep, How::Ask] {
        for host in hosts().await {
            host.hook.say(proceed("second"));
            let (job, run) = host.start().await;
            host.runs.answer(Answering::Say(match how {
                How::AfterStep => Stopped::AfterStep,
                _ => Stopped::Stopping,
            }));
            host.stop(job.id, how).await;
            // It completed before it noticed.
            run.complete("one");
            let ended = host.ended(job.id).await;
            assert_eq!(ended.status(), Status::Cancelled);
            assert_eq!((host.hook.asked().len(), host.runs.launches()), (0, 1));
        }
    }
}

/// Ends a job while its launch is under way, lets the launch succeed, and returns what
/// was stopped.
async fn end_while_launching(host: &Host, launch: impl AsyncFnOnce()) {
    let (go, wait) = oneshot::channel();
    host.runs.begin(Beginning::After(wait, Box::new(Beginning::Start)));
    let before = host.runs.launches();
    let end = async {
        until(|| host.runs.launches() > before).await;
        let (job, run) = host.runs.launched().pop().unwrap();
        let reply = host.stop(job.id, How::Ask).await;
        assert!(matches!(reply, StopReply::Cancelled(_)), "{reply:?}");
        go.send(()).unwrap();
        until(|| host.runs.stops().iter().filter(|stop| stop.run == run).count() > 1).await;
        settle_down().await;
        assert_eq!((host.stands(job.id).await, host.runs.live()), (Status::Cancelled, 0));
        assert_eq!(host.runs.next().await.run, run);
    };
    tokio::join!(launch(), end);
}

#[tokio::test(start_paused = true)]
async fn j8_a_run_that_was_launched_for_an_ended_job_is_stopped() {
    for is_mute in [false, true] {
        for host in hosts().await {
            if is_mute {
                host.runs.be_mute();
            }
            // A spawn.
            end_while_launching(&host, async || _ = host.manager.spawn(work()).await).await;
            // A retry.
            let job = host.failed().await;
            let retry = async || _ = host.manager.retry(job.id, &OPERATOR, Hand::Model).await;
            end_while_launching(&host, retry).await;
            // A step.
            let (_, run) = host.start().await;
            host.hook.say(proceed("second"));
            end_while_launching(&host, async || run.complete("one")).await;
            // An answer.
            let job = host.asking().await;
            let answer = async || {
                let answer = host.manager.answer(job.id, &OPERATOR, "yes".into(), Hand::Person);
                answer.await.unwrap();
            };
            end_while_launching(&host, answer).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn c73_a_question_is_no_ending() {
    for host in hosts().await {
        let job = host.asking().await;
        let said = host.manager.status(job.id, &OPERATOR, LONG, Hand::Model).await.unwrap();
        assert_eq!(said.status(), Status::InputRequired);
        assert_eq!((host.heard.finished(), host.heard.delivered()), (vec![], vec![]));
        assert_eq!(host.heard.updates_of(job.id).last(), Some(&Status::InputRequired));
        assert_eq!((host.owed().await, host.runs.live()), (vec![], 0));
        // It is there as long as it takes.
        pass(Duration::from_secs(1_000_000)).await;
        assert_eq!(host.stands(job.id).await, Status::InputRequired);
    }
}

#[tokio::test(start_paused = true)]
async fn j22_an_answer_starts_the_next_run_also_after_a_restart() {
    for host in hosts().await {
        let job = host.asking().await;
        let host = host.crash().await;
        assert_eq!(host.stands(job.id).await, Status::InputRequired);
        let manager = &host.manager;
        let answered = manager.answer(job.id, &OPERATOR, "yes".into(), Hand::Person).await;
        let run = host.runs.next().await;
        assert_eq!(answered.unwrap().run(), Some(run.run));
        assert_eq!(run.job.stage.answer.as_deref(), Some("yes"));
        assert_eq!(run.job.stage.cause, Cause::Answer);
        assert_eq!(run.job.stage_input(), "input");
        assert_eq!(run.job.state.as_deref(), Some("asked"));
        assert_eq!((run.job.attempt, run.job.step), (1, 1));
        run.complete("whole");
        assert_eq!(host.ended(job.id).await.summary(), Some("whole"));
    }
}

#[tokio::test(start_paused = true)]
async fn j22_of_two_answers_one_counts() {
    for host in hosts().await {
        let job = host.asking().await;
        let answer = |text: &str| host.manager.answer(job.id, &OPERATOR, text.into(), Hand::Person);
        let (first, second) = tokio::join!(answer("yes"), answer("no"));
        assert_eq!(usize::from(first.is_ok()) + usize::from(second.is_ok()), 1);
        assert_eq!((host.runs.launches(), host.runs.live()), (2, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn j22_an_answer_that_does_not_fit_changes_nothing() {
    for host in hosts().await {
        let job = host.asking().await;
        let answer = |text: &str| host.manager.answer(job.id, &OPERATOR, text.into(), Hand::Person);
        let error = answer("").await.unwrap_err();
        assert_eq!(error.to_string(), "the answer does not fit: \"go on?\" is to be answered");
        assert_eq!(host.job(job.id).await, job);
        answer("yes").await.unwrap();
        let error = answer("yes").await.unwrap_err();
        let asked = Lost::NotAsked { status: Status::Working };
        assert!(matches!(error, ResumeError::Refused(Refused::Lost(lost)) if lost == asked));
    }
}

#[tokio::test(start_paused = true)]
async fn j22_an_answer_whose_run_is_not_launched_fails_the_job() {
    for host in hosts().await {
        let job = host.asking().await;
        host.runs.begin(Beginning::Refuse("gone"));
        let answer = host.manager.answer(job.id, &OPERATOR, "yes".into(), Hand::Person);
        assert!(matches!(answer.await, Err(ResumeError::Launch(_))));
        assert_eq!(host.ended(job.id).await.status(), Status::Failed);
        // The answer is not lost with it.
        let (retried, _) = host.retry(job.id).await;
        assert_eq!(retried.stage.answer.as_deref(), Some("yes"));
    }
}

#[tokio::test(start_paused = true)]
async fn c73_a_job_that_waits_for_a_person_is_stopped_without_a_run() {
    for host in hosts().await {
        let job = host.asking().await;
        let reply = host.stop(job.id, How::Ask).await;
        assert!(matches!(reply, StopReply::Cancelled(_)), "{reply:?}");
        assert_eq!((host.runs.stops(), host.runs.launches()), (vec![], 1));
        let answer = host.manager.answer(job.id, &OPERATOR, "yes".into(), Hand::Person);
        assert!(matches!(answer.await, Err(ResumeError::Refused(_))));
    }
}

#[tokio::test(start_paused = true)]
async fn j6_the_state_is_rewritten_while_the_run_goes_on() {
    for host in hosts().await {
        let (job, run) = host.start().await;
        host.manager.rewrite(job.id, run.run, "learned".into()).await.unwrap();
        let now = host.job(job.id).await;
        assert_eq!((now.run(), now.state.as_deref()), (Some(run.run), Some("learned")));
        assert_eq!((now.attempt, now.step, host.runs.launches()), (1, 0, 1));
        run.fail("no");
        host.ended(job.id).await;
        let (retried, _) = host.retry(job.id).await;
        assert_eq!(retried.state.as_deref(), Some("learned"));
        let late = host.manager.rewrite(job.id, run.run, "late".into()).await.unwrap_err();
        assert!(matches!(late, ChangeError::Refused(Refused::Lost(Lost::Moved { .. }))));
    }
}

#[tokio::test(start_paused = true)]
async fn j7_a_hook_that_cannot_even_tell_whether_there_are_steps_has_failed() {
    for host in hosts().await {
        host.hook.say(Saying::Panic);
        host.hook.panic_at(Panics::HasSteps);
        let (job, run) = host.start().await;
        run.complete("one");
        let ended = host.ended(job.id).await;
        assert_eq!(ended.summary(), Some("what follows could not be told: it panicked"));
    }
}

#[tokio::test(start_paused = true)]
async fn j22_a_check_that_panics_changes_nothing() {
    for host in hosts().await {
        let job = host.asking().await;
        host.hook.panic_at(Panics::CheckAnswer);
        let answer = host.manager.answer(job.id, &OPERATOR, "yes".into(), Hand::Person).await;
        assert_eq!(answer.unwrap_err().to_string(), "the answer does not fit: its check panicked");
        assert_eq!(host.job(job.id).await, job);
    }
}

#[tokio::test(start_paused = true)]
async fn j22_an_answer_to_one_question_is_none_to_the_next() {
    for host in hosts().await {
        let job = host.asking().await;
        // While an answer is on its way to the store, the job goes on and asks another.
        host.store.stall_nth(1);
        let manager = host.manager.clone();
        let late = tokio::spawn(async move {
            manager.answer(job.id, &OPERATOR, "yes".into(), Hand::Person).await
        });
        until(|| host.store.stalled() == 1).await;
        host.hook.say(ask("delete all?"));
        host.manager.answer(job.id, &OPERATOR, "no".into(), Hand::Person).await.unwrap();
        host.runs.next().await.complete("asked again");
        host.until(job.id, Status::InputRequired).await;
        host.store.release();
        let lost = late.await.unwrap().unwrap_err();
        assert!(matches!(lost, ResumeError::Refused(Refused::Lost(Lost::Moved { .. }))), "{lost}");
        assert_eq!(host.stands(job.id).await, Status::InputRequired);
    }
}

#[tokio::test(start_paused = true)]
async fn j7_telling_of_an_end_does_not_wait_for_what_follows() {
    for host in hosts().await {
        host.hook.say(proceed("second"));
        let (job, run) = host.start().await;
        host.manager.run_finished(job.id, completed(run.run, "one")).await;
        let second = host.runs.next().await;
        assert_eq!(host.job(job.id).await.run(), Some(second.run));
        host.manager.run_finished(job.id, completed(second.run, "two")).await;
        assert_eq!(host.stands(job.id).await, Status::Completed);
        // Nobody waits for those runs any more.
        assert!(host.manager.close(Duration::from_secs(1)).await);
    }
}

#[tokio::test(start_paused = true)]
async fn c71_what_follows_is_not_asked_where_the_stop_came_after_the_look() {
    for host in hosts().await {
        host.hook.say(proceed("second"));
        let (job, run) = host.start().await;
        settle_down().await;
        // The run has ended, and the row that says of no stop is on its way.
        host.store.stall_read(1);
        run.complete("one");
        until(|| host.store.stalled() == 1).await;
        host.runs.answer(Answering::Say(Stopped::Stopping));
        host.stop(job.id, How::Ask).await;
        host.store.release();
        assert_eq!(host.ended(job.id).await.status(), Status::Cancelled);
        assert_eq!((host.hook.asked().len(), host.runs.launches()), (0, 1));
    }
}
