//! J12, J13: stopping jobs.

use std::time::Duration;

use backlot_jobs::{
    Event, Hand, How, RetryPolicy, RunOutcome, Spawn, Status, StopError, StopReply, StopRequest,
    Stopped,
};
use tokio::sync::oneshot;

use crate::world::*;

#[tokio::test(start_paused = true)]
async fn j12_a_stop_is_written_before_anything_is_asked() {
    for host in hosts().await {
        let (job, _) = host.start().await;
        settle_down().await;
        let (_answer, wait) = oneshot::channel();
        host.runs.answer(Answering::After(wait, Box::new(Answering::Truly)));
        let manager = host.manager.clone();
        tokio::spawn(async move { manager.stop(job.id, &OPERATOR, How::Ask, "anna", None).await });
        until(|| !host.runs.stops().is_empty()).await;
        let request = host.job(job.id).await.stop;
        assert_eq!(request.as_ref().unwrap().by, "anna");
        assert_eq!(host.runs.stops()[0].request, request);
    }
}

#[tokio::test(start_paused = true)]
async fn c67_what_is_wanted_stopped_stops_although_that_cannot_be_written() {
    for how in [How::Ask, How::Force] {
        for host in hosts().await {
            let (job, _run) = host.start().await;
            settle_down().await;
            host.store.fail_from(1, full());
            let before = tokio::time::Instant::now();
            assert!(matches!(host.stop(job.id, how).await, StopReply::Stopping(_)));
            assert_eq!((host.runs.live(), before.elapsed()), (0, Duration::ZERO));
            pass(Duration::from_secs(60)).await;
            assert_eq!(host.stands(job.id).await, Status::Working);
            assert!(host.manager.health().await.unwrap().unwritten > 0);
            host.store.heal();
            pass(Duration::from_secs(10)).await;
            let job = host.job(job.id).await;
            assert_eq!((job.status(), job.summary()), (Status::Cancelled, Some("cancelled")));
            assert_eq!(job.stop.unwrap().by, "anna");
            assert_eq!(host.manager.health().await.unwrap().unwritten, 0);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn c67_nothing_follows_a_run_whose_stop_is_not_written_yet() {
    for tries in [false, true] {
        for host in hosts().await {
            host.hook.say(proceed("second"));
            let retry = tries.then(RetryPolicy::default);
            let (job, run) = host.start_with(Spawn { retry, ..work() }).await;
            settle_down().await;
            host.store.fail_from(1, full());
            host.runs.answer(Answering::Refuse("it is writing"));
            let stop = host.manager.stop(job.id, &OPERATOR, How::Ask, "anna", None);
            assert!(matches!(stop.await, Err(StopError::Refused(_))));
            match tries {
                true => run.fail("no"),
                false => run.complete("one"),
            }
            pass(Duration::from_secs(60)).await;
            host.store.heal();
            pass(Duration::from_secs(1_000)).await;
            assert!(host.stands(job.id).await.is_terminal());
            assert_eq!((host.hook.asked(), host.runs.launches()), (vec![], 1));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn c67_nothing_is_asked_where_a_stop_that_is_not_written_came_while_the_job_was_read() {
    for host in hosts().await {
        host.hook.say(proceed("second"));
        let (job, run) = host.start().await;
        settle_down().await;
        host.store.stall_read(1);
        run.complete("one");
        until(|| host.store.stalled() == 1).await;
        host.store.fail_from(1, full());
        host.stop(job.id, How::Force).await;
        host.store.release();
        pass(Duration::from_secs(10)).await;
        assert_eq!(host.hook.asked(), []);
        host.store.heal();
        pass(Duration::from_secs(10)).await;
        assert_eq!(host.stands(job.id).await, Status::Cancelled);
        assert_eq!((host.hook.asked(), host.runs.launches()), (vec![], 1));
    }
}

#[tokio::test(start_paused = true)]
async fn c67_a_stop_that_is_not_written_and_whose_run_nobody_knows_ends_the_job_later() {
    for answer in [Stopped::Unknown, Stopped::AlreadyFinished] {
        for host in hosts().await {
            let (job, _run) = host.start().await;
            settle_down().await;
            host.store.fail_from(1, full());
            for _ in 0..3 {
                host.runs.answer(Answering::Say(answer));
            }
            assert!(matches!(host.stop(job.id, How::Force).await, StopReply::Stopping(_)));
            host.store.heal();
            pass(Duration::from_secs(20)).await;
            assert_eq!(host.stands(job.id).await, Status::Cancelled);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn c67_what_can_wait_or_has_no_run_is_not_stopped_where_that_cannot_be_written() {
    for host in hosts_with(room_for(1, 1)).await {
        let (job, _run) = host.start().await;
        let waiting = host.spawn(queued()).await;
        settle_down().await;
        host.store.fail_from(1, full());
        for (id, how) in [(job.id, How::AfterStep), (waiting.id, How::Force)] {
            let error = host.manager.stop(id, &OPERATOR, how, "anna", None).await.unwrap_err();
            assert!(matches!(error, StopError::Store(_)), "{error}");
        }
        assert_eq!(host.runs.stops(), []);
    }
}

#[tokio::test(start_paused = true)]
async fn j12_what_the_stopper_did_is_what_is_told() {
    for host in hosts().await {
        let (job, run) = host.start().await;
        assert!(matches!(host.stop(job.id, How::AfterStep).await, StopReply::AfterStep(_)));
        assert_eq!(host.stands(job.id).await, Status::Working);
        // Another cannot wait.
        assert!(matches!(host.stop(job.id, How::Ask).await, StopReply::Stopping(_)));
        assert_eq!(host.ended(job.id).await.status(), Status::Cancelled);
        assert!(matches!(host.stop(job.id, How::Ask).await, StopReply::Already(_)));
        let how: Vec<_> = host.runs.stops().iter().map(|stop| (stop.run, stop.how)).collect();
        assert_eq!(how, [(run.run, How::AfterStep), (run.run, How::Ask)]);
    }
}

#[tokio::test(start_paused = true)]
async fn j12_after_this_step_the_job_of_one_run_has_its_own_ending() {
    for host in hosts().await {
        let (job, run) = host.start().await;
        host.stop(job.id, How::AfterStep).await;
        run.complete("whole");
        let ended = host.ended(job.id).await;
        assert_eq!((ended.status(), ended.summary()), (Status::Completed, Some("whole")));
    }
}

#[tokio::test(start_paused = true)]
async fn j12_an_outcome_that_is_on_its_way_is_waited_for() {
    for host in hosts().await {
        let (job, run) = host.start().await;
        host.runs.answer(Answering::Say(Stopped::AlreadyFinished));
        let (reply, ()) = tokio::join!(host.stop(job.id, How::Ask), async {
            pass(Duration::from_millis(500)).await;
            run.complete("done");
        });
        assert!(matches!(&reply, StopReply::Already(job) if job.summary() == Some("done")));
    }
}

#[tokio::test(start_paused = true)]
async fn j12_an_outcome_that_was_lost_is_recorded_by_the_stop() {
    for host in hosts().await {
        let (job, _run) = host.start().await;
        host.runs.answer(Answering::Say(Stopped::AlreadyFinished));
        let before = tokio::time::Instant::now();
        let reply = host.stop(job.id, How::Ask).await;
        assert!(matches!(&reply, StopReply::Cancelled(job) if job.summary() == Some("no need")));
        assert_eq!(before.elapsed(), host.manager.config().outcome_wait);
    }
}

#[tokio::test(start_paused = true)]
async fn j12_a_retry_that_comes_between_is_chased() {
    for host in hosts().await {
        let (job, first) = host.start().await;
        host.runs.answer(Answering::Say(Stopped::AlreadyFinished));
        let (reply, second) = tokio::join!(host.stop(job.id, How::Ask), async {
            until(|| !host.runs.stops().is_empty()).await;
            first.fail("no");
            host.ended(job.id).await;
            host.retry(job.id).await.1
        });
        // Either it saw the failure, or it has stopped the second run.
        match reply {
            StopReply::Already(job) => assert_eq!(job.attempt, 1),
            StopReply::Stopping(_) => {
                assert_eq!(host.runs.stops().last().unwrap().run, second.run);
                assert_eq!(host.ended(job.id).await.status(), Status::Cancelled);
            }
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn j12_a_run_that_nobody_knows_is_recorded_as_stopped() {
    for host in hosts().await {
        host.runs.begin(Beginning::Never);
        let manager = host.manager.clone();
        let spawn = tokio::spawn(async move { manager.spawn(work()).await });
        until(|| host.runs.launches() == 1).await;
        let (job, _) = host.runs.launched().pop().unwrap();
        let reply = host.stop(job.id, How::Ask).await;
        assert!(matches!(reply, StopReply::Cancelled(_)), "{reply:?}");
        assert_eq!(host.stands(job.id).await, Status::Cancelled);
        assert!(!spawn.is_finished());
    }
}

#[tokio::test(start_paused = true)]
async fn c69_a_run_whose_end_a_stop_has_recorded_is_not_waited_for_at_the_close() {
    for answer in [Stopped::Unknown, Stopped::AlreadyFinished] {
        for host in hosts().await {
            let (job, _run) = host.start().await;
            // Twice: what nobody knew may have come through since.
            host.runs.answer(Answering::Say(answer));
            host.runs.answer(Answering::Say(answer));
            let reply = host.stop(job.id, How::Force).await;
            assert!(matches!(reply, StopReply::Cancelled(_)), "{reply:?}");
            // Its end is told without its name, or not at all.
            let outcome = RunOutcome { run: None, ..completed(job.run().unwrap(), "late") };
            host.manager.run_finished(job.id, outcome).await;
            let before = tokio::time::Instant::now();
            assert!(host.manager.close(Duration::from_secs(60)).await, "{answer:?}");
            assert_eq!(before.elapsed(), Duration::ZERO);
            assert_eq!(host.stands(job.id).await, Status::Cancelled);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn c69_an_end_that_is_told_without_its_name_after_its_job_is_gone_is_heard() {
    for host in hosts().await {
        let (go, wait) = oneshot::channel();
        host.runs.begin(Beginning::After(wait, Box::new(Beginning::Start)));
        let manager = host.manager.clone();
        tokio::spawn(async move { manager.spawn(work()).await });
        until(|| host.runs.launches() == 1).await;
        let (job, _) = host.runs.launched().pop().unwrap();
        host.manager.delete_session(&chat(), "anna", Duration::ZERO).await.unwrap();
        host.runs.answer(Answering::Say(Stopped::Stopping));
        let stops = host.runs.stops().len();
        go.send(()).unwrap();
        until(|| host.runs.stops().len() > stops).await;
        settle_down().await;
        let outcome = RunOutcome { run: None, ..completed(job.run().unwrap(), "late") };
        host.manager.run_finished(job.id, outcome).await;
        assert!(host.manager.close(Duration::from_secs(60)).await);
    }
}

#[tokio::test(start_paused = true)]
async fn j12_a_refusal_is_told_and_nothing_follows_the_run() {
    for host in hosts().await {
        host.hook.say(proceed("second"));
        let (job, run) = host.start().await;
        host.runs.answer(Answering::Refuse("it is writing"));
        let error = host.manager.stop(job.id, &OPERATOR, How::Ask, "anna", None).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "its run goes on: it is writing; nothing will follow it, and force ends it now"
        );
        assert_eq!(host.stands(job.id).await, Status::Working);
        run.complete("one");
        assert_eq!(host.ended(job.id).await.status(), Status::Cancelled);
        assert_eq!(host.runs.launches(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn j13_a_cancellation_is_told_as_delivered() {
    for host in hosts().await {
        let (stopped, _) = host.start().await;
        host.stop(stopped.id, How::Ask).await;
        host.ended(stopped.id).await;
        // Also where the run says so by itself.
        let (own, run) = host.start().await;
        run.end_so(backlot_jobs::RunEnding::Cancelled);
        host.ended(own.id).await;
        assert_eq!((host.heard.finished(), host.owed().await), (vec![], vec![]));
        let delivered = host.heard.delivered();
        let told: Vec<_> = delivered.iter().map(|job| (job.id, job.status())).collect();
        let cancelled = Status::Cancelled;
        assert_eq!(told, [(stopped.id, cancelled), (own.id, cancelled)]);
    }
}

#[tokio::test(start_paused = true)]
async fn j12_who_stopped_it_first_is_kept() {
    for host in hosts().await {
        let (job, _run) = host.start().await;
        host.stop(job.id, How::AfterStep).await;
        let stop = StopRequest { by: "ben".into(), why: None, at_ms: 0, after_step: false };
        let job = host.happen(job.id, Event::StopRequested { stop }).await;
        let kept = job.stop.unwrap();
        assert_eq!((kept.by.as_str(), kept.after_step), ("anna", false));
    }
}

#[tokio::test(start_paused = true)]
async fn j12_a_retry_by_a_person_takes_back_the_stop() {
    for host in hosts().await {
        let (job, run) = host.start().await;
        host.stop(job.id, How::AfterStep).await;
        run.fail("no");
        host.ended(job.id).await;
        let retried = host.manager.retry(job.id, &OPERATOR, Hand::Person).await.unwrap();
        assert_eq!(retried.stop, None);
    }
}

#[tokio::test(start_paused = true)]
async fn j16_stop_tree_stops_what_is_below_at_any_depth() {
    let mut config = room_for(9, 99);
    config.limits.depth = 3;
    for host in hosts_with(config).await {
        let (top, _top) = host.start().await;
        let (middle, _middle) = host.start_with(work_of(&top.id.session())).await;
        let (bottom, _bottom) = host.start_with(work_of(&middle.id.session())).await;
        let later = Spawn { start: backlot_jobs::StartAt::After(1_000), ..work() };
        let later = host.spawn(later).await;
        let (done, run) = host.start().await;
        run.complete("done");
        host.ended(done.id).await;
        let other = "other".into();
        host.manager.open_session("other".into()).await.unwrap();
        let (others, _others) = host.start_with(work_of(&other)).await;

        let stopped = host.manager.stop_tree(&chat(), How::Ask, "anna", None).await.unwrap();
        assert_eq!(stopped, 4);
        for job in [top, middle, bottom, later] {
            assert_eq!(host.ended(job.id).await.status(), Status::Cancelled);
        }
        assert_eq!(host.stands(done.id).await, Status::Completed);
        assert_eq!(host.stands(others.id).await, Status::Working);
        assert_eq!(host.manager.stop_tree(&chat(), How::Ask, "anna", None).await.unwrap(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn j8_a_run_whose_launch_comes_through_just_before_its_job_is_stopped_is_stopped_too() {
    for how in [How::AfterStep, How::Ask] {
        for host in hosts().await {
            let (launch, launching) = oneshot::channel();
            host.runs.begin(Beginning::After(launching, Box::new(Beginning::Start)));
            let (answer, answering) = oneshot::channel();
            let unknown = Box::new(Answering::Say(Stopped::Unknown));
            host.runs.answer(Answering::After(answering, unknown));
            let (spawned, reply, ()) = tokio::join!(
                host.manager.spawn(work()),
                async {
                    until(|| host.runs.launches() == 1).await;
                    host.stop(host.runs.launched()[0].0.id, how).await
                },
                async {
                    until(|| !host.runs.stops().is_empty()).await;
                    // Nobody knew the run, but then it is there, and noted.
                    launch.send(()).unwrap();
                    settle_down().await;
                    answer.send(()).unwrap();
                },
            );
            let job = spawned.unwrap();
            settle_down().await;
            assert!(matches!(reply, StopReply::Cancelled(_)) || how == How::Ask, "{reply:?}");
            assert_eq!((host.stands(job.id).await, host.runs.live()), (Status::Cancelled, 0));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn j12_a_stopper_that_panics_has_refused() {
    for host in hosts().await {
        let (job, _run) = host.start().await;
        host.runs.answer(Answering::Panic);
        let error = host.manager.stop(job.id, &OPERATOR, How::Ask, "anna", None).await.unwrap_err();
        assert!(matches!(error, StopError::Refused(_)), "{error}");
        assert!(matches!(host.stop(job.id, How::Force).await, StopReply::Stopping(_)));
    }
}

#[tokio::test(start_paused = true)]
async fn j14_what_the_host_ends_after_a_stop_is_cancelled() {
    for host in hosts().await {
        let (job, run) = host.start().await;
        host.stop(job.id, How::AfterStep).await;
        run.end_so(backlot_jobs::RunEnding::Interrupted);
        assert_eq!(host.ended(job.id).await.status(), Status::Cancelled);
    }
}
