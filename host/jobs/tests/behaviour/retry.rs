//! J4, J5, J29, C63, C64: one more attempt, asked for or by policy.

use std::time::Duration;

use backlot_jobs::{
    Config, Failure, Hand, How, JobId, Lost, Refused, ResumeError, RetryPolicy, RunEnding, Spawn,
    SpawnError, Status, StopReply,
};
use backlot_registry::Cause;
use futures::future::join_all;

use crate::world::*;

async fn refused(host: &Host, id: JobId) -> Lost {
    match host.manager.retry(id, &OPERATOR, Hand::Model).await.unwrap_err() {
        ResumeError::Refused(Refused::Lost(lost)) => lost,
        other => panic!("{other}"),
    }
}

/// Tries again after a second, without chance.
fn policy() -> RetryPolicy {
    RetryPolicy { jitter: 0.0, ..RetryPolicy::default() }
}

fn trying_again() -> Spawn {
    Spawn { retry: Some(policy()), ..work() }
}

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn j4_twenty_retries_at_once_give_one_attempt() {
    for host in hosts().await {
        let job = host.failed().await;
        let retries = (0..20).map(|_| host.manager.retry(job.id, &OPERATOR, Hand::Model));
        let (won, lost): (Vec<_>, Vec<_>) =
            join_all(retries).await.into_iter().partition(Result::is_ok);
        assert_eq!((won.len(), lost.len()), (1, 19));
        for lost in lost {
            assert_eq!(
                lost.unwrap_err().to_string(),
                "only a failed job can be retried, and this one is working"
            );
        }
        let job = host.job(job.id).await;
        assert_eq!((job.status(), job.attempt), (Status::Working, 2));
        assert_eq!((host.runs.launches(), host.runs.live()), (2, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn j4_two_hosts_that_ask_at_once_get_one_attempt() {
    for under in stores() {
        let one = Host::on(under.clone(), Config::default()).await;
        let job = one.failed_with(Spawn { max_attempts: Some(2), ..work() }).await;
        let other = Host::on(under, Config::default()).await;
        let (first, second) = tokio::join!(
            one.manager.retry(job.id, &OPERATOR, Hand::Model),
            other.manager.retry(job.id, &OPERATOR, Hand::Model),
        );
        assert_eq!(usize::from(first.is_ok()) + usize::from(second.is_ok()), 1);
        assert_eq!(one.job(job.id).await.attempt, 2);
        assert_eq!(one.runs.live() + other.runs.live(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn j4_only_what_failed_is_tried_again() {
    for host in hosts_with(room_for(3, 3)).await {
        let (completed, run) = host.start().await;
        run.complete("done");
        host.ended(completed.id).await;
        assert_eq!(
            refused(&host, completed.id).await.to_string(),
            "only a failed job can be retried, and this one is completed: it has its result"
        );
        let (cancelled, _) = host.start().await;
        host.stop(cancelled.id, How::Ask).await;
        host.ended(cancelled.id).await;
        assert_eq!(
            refused(&host, cancelled.id).await.to_string(),
            "only a failed job can be retried, and this one is cancelled: it was stopped on purpose"
        );
        let asking = host.asking().await;
        let (working, _) = host.start().await;
        host.start().await;
        let queued = host.spawn(queued()).await;
        for job in [asking, working, queued] {
            let status = host.stands(job.id).await;
            assert_eq!(refused(&host, job.id).await, Lost::NotFailed { status });
        }
    }
}

#[tokio::test(start_paused = true)]
async fn c64_the_first_run_counts_also_after_a_restart() {
    for (asked, max) in [(Some(1), 1), (Some(2), 2), (Some(3), 3), (None, 3)] {
        for host in hosts().await {
            let mut host = host;
            let job = host.failed_with(Spawn { max_attempts: asked, ..work() }).await;
            for attempt in 2..=max {
                host = host.crash().await;
                let (retried, run) = host.retry(job.id).await;
                assert_eq!(retried.attempt, attempt);
                run.fail("again");
                host.ended(job.id).await;
            }
            assert_eq!(refused(&host, job.id).await, Lost::Exhausted { used: max, max });
            assert_eq!(host.job(job.id).await.attempt, max);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn c64_a_crash_uses_up_an_attempt_of_the_jobs_own_maximum() {
    for host in hosts().await {
        let mut host = host;
        let job = host.failed_with(Spawn { max_attempts: Some(2), ..work() }).await;
        host.retry(job.id).await;
        host = host.crash().await;
        assert_eq!(host.stands(job.id).await, Status::Failed);
        let lost = refused(&host, job.id).await;
        assert_eq!(lost.to_string(), "the job has had 2 of 2 attempts, the first one included");
    }
}

#[tokio::test(start_paused = true)]
async fn c64_no_attempt_and_too_many_are_refused() {
    for host in hosts().await {
        for asked in [0, 4] {
            let spawn = Spawn { max_attempts: Some(asked), ..work() };
            let error = host.manager.spawn(spawn).await.unwrap_err();
            assert!(matches!(error, SpawnError::Attempts { max: 3, .. }), "{error}");
        }
        assert_eq!(host.runs.launches(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn j5_a_retry_is_the_same_stage_with_what_went_wrong_beside_it() {
    for host in hosts().await {
        host.hook.say(proceed_with("second", Some("half")));
        let (job, run) = host.start().await;
        run.complete("one");
        host.runs.next().await.fail("out of paper");
        host.ended(job.id).await;
        host.retry(job.id).await;
        let (launched, run) = host.runs.launched().pop().unwrap();
        assert_eq!(launched.run(), Some(run));
        assert_eq!(launched.id.session(), job.id.session(), "the session is the job's own");
        assert_eq!(launched.stage_input(), "second");
        assert_eq!(launched.stage.cause, Cause::Retry);
        assert_eq!(launched.stage.last_failure.as_deref(), Some("out of paper"));
        assert_eq!(launched.state.as_deref(), Some("half"));
        assert_eq!((launched.attempt, launched.step), (2, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn j5_a_retry_that_is_not_launched_is_told_in_hand_to_the_model_that_asked() {
    for host in hosts().await {
        let job = host.failed().await;
        assert_eq!(host.owed().await, [job.id]);
        host.runs.begin(Beginning::Refuse("no such file"));
        let error = host.manager.retry(job.id, &OPERATOR, Hand::Model).await.unwrap_err();
        assert_eq!(error.to_string(), "could not be launched: no such file");
        let job = host.job(job.id).await;
        assert_eq!((job.status(), job.attempt), (Status::Failed, 2));
        assert_eq!(job.summary(), Some("could not be launched: no such file"));
        assert_eq!(host.owed().await, []);
        assert_eq!(host.heard.finished().len(), 1, "of the first attempt");
        assert_eq!(host.heard.delivered(), [job]);
    }
}

#[tokio::test(start_paused = true)]
async fn j5_a_retry_that_is_not_launched_is_announced_where_a_person_asked() {
    for host in hosts().await {
        let job = host.failed().await;
        host.runs.begin(Beginning::Panic);
        let error = host.manager.retry(job.id, &OPERATOR, Hand::Person).await.unwrap_err();
        assert_eq!(error.to_string(), "could not be launched: the launcher panicked");
        let job = host.job(job.id).await;
        assert_eq!(job.debt.as_ref().unwrap().parts(), Some((job.id, 2)));
        assert_eq!(host.owed().await, [job.id]);
        assert_eq!(host.heard.finished().last(), Some(&job));
    }
}

#[tokio::test(start_paused = true)]
async fn j29_what_fails_is_tried_again_by_policy_under_the_ceiling() {
    for host in hosts().await {
        let (job, run) = host.start_with(trying_again()).await;
        run.fail("one");
        let waiting = host.until(job.id, Status::Queued).await;
        assert_eq!((waiting.attempt, waiting.debt), (1, None));
        pass(SECOND - Duration::from_millis(1)).await;
        assert_eq!(host.runs.launches(), 1);
        pass(Duration::from_millis(1)).await;
        let second = host.runs.next().await;
        assert_eq!(second.job.stage.last_failure.as_deref(), Some("one"));
        assert_eq!((second.job.stage.cause, second.job.attempt), (Cause::Retry, 2));
        second.fail("two");
        // Twice as long.
        pass(2 * SECOND).await;
        host.runs.next().await.fail("three");
        let ended = host.ended(job.id).await;
        assert_eq!((ended.status(), ended.attempt), (Status::Failed, 3));
        let told: Vec<_> = host.heard.finished();
        assert_eq!(told, [ended], "only the last is told");
        pass(100 * SECOND).await;
        assert_eq!(host.runs.launches(), 3);
    }
}

#[tokio::test(start_paused = true)]
async fn j29_a_policy_says_which_failures() {
    for host in hosts().await {
        let on = |on: &[Failure]| Spawn {
            retry: Some(RetryPolicy { on: on.to_vec(), ..policy() }),
            ..work()
        };
        let (job, run) = host.start_with(on(&[Failure::Launch])).await;
        run.fail("no");
        assert_eq!(host.ended(job.id).await.status(), Status::Failed);
        let (job, run) = host.start_with(on(&[Failure::Work])).await;
        run.end_so(RunEnding::Interrupted);
        assert_eq!(host.ended(job.id).await.status(), Status::Failed);
        let (job, run) = host.start_with(on(&[Failure::Interrupted])).await;
        run.end_so(RunEnding::Interrupted);
        host.until(job.id, Status::Queued).await;
    }
}

#[tokio::test(start_paused = true)]
async fn j29_a_first_launch_is_tried_again_only_where_that_can_help() {
    for host in hosts().await {
        host.runs.begin(Beginning::Refuse("no such input"));
        let error = host.manager.spawn(trying_again()).await.unwrap_err();
        assert!(matches!(error, SpawnError::Launch(_)), "{error}");
        host.runs.begin(Beginning::Unavailable("no memory"));
        let job = host.spawn(trying_again()).await;
        assert_eq!(job.status(), Status::Queued);
        pass(SECOND).await;
        let run = host.runs.next().await;
        assert_eq!((run.job.id, run.job.attempt), (job.id, 2));
    }
}

#[tokio::test(start_paused = true)]
async fn j29_an_interrupted_job_is_tried_again_after_the_restart_if_its_policy_says_so() {
    for host in hosts().await {
        let on = RetryPolicy { on: vec![Failure::Interrupted], ..policy() };
        let (job, _) = host.start_with(Spawn { retry: Some(on), ..work() }).await;
        let host = host.crash().await;
        assert_eq!(host.stands(job.id).await, Status::Queued);
        assert_eq!(host.owed().await, []);
        pass(SECOND).await;
        let run = host.runs.next().await;
        assert_eq!(run.job.attempt, 2);
        assert_eq!(run.job.stage.last_failure.as_deref(), Some("interrupted by restart"));
    }
}

#[tokio::test(start_paused = true)]
async fn j29_a_back_off_outlives_a_restart() {
    for host in hosts().await {
        let (job, run) = host.start_with(trying_again()).await;
        run.fail("one");
        host.until(job.id, Status::Queued).await;
        let host = host.crash().await;
        assert_eq!(host.recovered.queued, 1);
        settle_down().await;
        assert_eq!(host.runs.launches(), 0);
        pass(SECOND).await;
        assert_eq!(host.runs.next().await.job.attempt, 2);
    }
}

#[tokio::test(start_paused = true)]
async fn c71_a_job_in_its_back_off_is_stopped_for_good() {
    for host in hosts().await {
        let (job, run) = host.start_with(trying_again()).await;
        run.fail("one");
        host.until(job.id, Status::Queued).await;
        let reply = host.stop(job.id, How::Ask).await;
        assert!(matches!(&reply, StopReply::Cancelled(job) if job.summary() == Some("no need")));
        pass(1_000 * SECOND).await;
        assert_eq!((host.runs.launches(), host.stands(job.id).await), (1, Status::Cancelled));
        assert_eq!(host.owed().await, []);
    }
}

#[tokio::test(start_paused = true)]
async fn c71_a_job_that_is_stopped_while_it_fails_is_not_tried_again() {
    for host in hosts().await {
        let (job, run) = host.start_with(trying_again()).await;
        host.stop(job.id, How::AfterStep).await;
        run.fail("one");
        assert_eq!(host.ended(job.id).await.status(), Status::Failed);
        pass(1_000 * SECOND).await;
        assert_eq!(host.runs.launches(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn c63_a_retry_and_a_stop_at_once_leave_nothing_running() {
    for host in hosts().await {
        let job = host.failed().await;
        let (retried, _) = tokio::join!(
            host.manager.retry(job.id, &OPERATOR, Hand::Model),
            host.manager.stop(job.id, &OPERATOR, How::Ask, "anna", None),
        );
        settle_down().await;
        match host.stands(job.id).await {
            Status::Cancelled => assert_eq!(host.runs.live(), 0),
            // The stop came before the retry, and there was nothing to stop.
            Status::Working => assert_eq!((retried.is_ok(), host.runs.live()), (true, 1)),
            other => panic!("{other}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn j29_a_retry_that_is_not_launched_waits_where_its_policy_says_so() {
    for host in hosts().await {
        let job = host
            .failed_with(Spawn {
                retry: Some(RetryPolicy { on: vec![Failure::Launch], ..policy() }),
                ..work()
            })
            .await;
        host.runs.begin(Beginning::Unavailable("no memory"));
        let retried = host.manager.retry(job.id, &OPERATOR, Hand::Model).await.unwrap();
        assert_eq!((retried.status(), retried.attempt), (Status::Queued, 2));
        // Twice the first wait, for it is the second attempt.
        pass(2 * SECOND).await;
        assert_eq!(host.runs.next().await.job.attempt, 3);
    }
}
