//! J14, C58, C59, C69: what a start finds, and what an end leaves.

use std::{sync::Arc, time::Duration};

use backlot_jobs::{
    Config, Ending, Failure, FaultyStore, Hand, How, OpenError, Recovered, RunEnding, Spawn,
    SpawnError, Status,
};

use crate::world::*;

#[tokio::test(start_paused = true)]
async fn j14_a_start_ends_what_was_working_before_anything_else() {
    for host in hosts_with(room_for(4, 4)).await {
        let (working, _run) = host.start().await;
        let (stopped, _stopped) = host.start().await;
        host.runs.answer(Answering::Say(backlot_jobs::Stopped::Stopping));
        host.stop(stopped.id, How::Ask).await;
        let asking = host.asking().await;
        let (done, run) = host.start().await;
        run.complete("done");
        host.ended(done.id).await;
        host.start().await;
        let waiting = host.spawn(queued()).await;

        let host = host.crash().await;
        let recovered = Recovered { interrupted: 2, cancelled: 1, queued: 1, owed: 1 };
        assert_eq!(host.recovered, recovered);
        let interrupted = host.job(working.id).await;
        assert_eq!(interrupted.status(), Status::Failed);
        assert_eq!(interrupted.summary(), Some("interrupted by restart"));
        let run = interrupted.last_run().unwrap();
        assert!(run.ended_ms.is_some() && interrupted.ended().unwrap().at_ms >= run.started_ms);
        assert_eq!(host.stands(stopped.id).await, Status::Cancelled);
        assert_eq!(host.stands(asking.id).await, Status::InputRequired);
        assert_eq!(host.stands(done.id).await, Status::Completed);
        // Each is told once, what was owed before included.
        let told: Vec<_> = host.heard.finished().iter().map(|job| job.id).collect();
        assert_eq!(told.len(), 3);
        assert!(told.contains(&working.id) && told.contains(&done.id));
        // The places are free, so who has waited has its turn.
        let run = host.runs.next().await;
        assert_eq!((run.job.id, host.runs.launches()), (waiting.id, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn c58_two_restarts_in_a_row_tell_of_one_ending() {
    for host in hosts().await {
        let (job, _run) = host.start().await;
        let host = host.crash().await;
        let first = host.heard.finished();
        let host = host.crash().await;
        let second = host.heard.finished();
        assert_eq!(first, second, "the same delivery");
        assert_eq!(first[0].debt.as_ref().unwrap().parts(), Some((job.id, 1)));
        assert_eq!((host.recovered.interrupted, host.recovered.owed), (0, 1));
        assert_eq!(host.runs.launches(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn c59_a_crash_between_the_claim_and_the_launch_of_a_retry_leaves_nothing_running() {
    for host in hosts().await {
        let job = host.failed().await;
        host.runs.begin(Beginning::Never);
        let manager = host.manager.clone();
        tokio::spawn(async move { manager.retry(job.id, &OPERATOR, Hand::Model).await });
        until(|| host.runs.launches() == 2).await;
        let host = host.crash().await;
        let job = host.job(job.id).await;
        assert_eq!((job.status(), job.attempt, job.endings), (Status::Failed, 2, 2));
        // The place is free, and one attempt is left.
        host.retry(job.id).await;
    }
}

#[tokio::test(start_paused = true)]
async fn c59_a_crash_between_the_ending_and_the_report_loses_nothing() {
    for host in hosts().await {
        let (job, run) = host.start().await;
        settle_down().await;
        host.store.stall_answer(1);
        run.complete("done");
        host.ended(job.id).await;
        assert_eq!(host.heard.finished(), []);
        let host = host.crash().await;
        assert_eq!(host.heard.finished(), [host.job(job.id).await]);
        assert_eq!(host.owed().await, [job.id]);
    }
}

#[tokio::test(start_paused = true)]
async fn j14_nothing_is_opened_on_a_store_that_cannot_be_written() {
    for host in hosts().await {
        let (job, _run) = host.start().await;
        let (under, clock) = (host.under(), host.clock.clone());
        drop(host);
        let store = FaultyStore::new(under.clone());
        store.fail_from(1, full());
        let open = || {
            let (front, config) = (Arc::new(store.clone()), Config::default());
            Host::open_through(front, store.clone(), under.clone(), config, clock.clone())
        };
        let Err(error) = open().await else { panic!("it was opened") };
        assert!(matches!(error, OpenError::Store(_)), "{error}");
        store.heal();
        let host = open().await.unwrap();
        assert_eq!((host.recovered.interrupted, host.stands(job.id).await), (1, Status::Failed));
    }
}

#[tokio::test(start_paused = true)]
async fn j14_many_jobs_are_recovered_whatever_their_number() {
    for host in hosts_with(room_for(10_000, 10_000)).await {
        let spawns = (0..2_345).map(|_| host.manager.spawn(work()));
        futures::future::join_all(spawns).await;
        let host = host.crash().await;
        assert_eq!(host.recovered.interrupted, 2_345);
        let health = host.manager.health().await.unwrap();
        assert_eq!((health.census.working, health.census.owed), (0, 2_345));
        // Those that are owed are no fewer.
        let host = host.crash().await;
        assert_eq!((host.recovered.owed, host.heard.finished().len()), (2_345, 2_345));
    }
}

#[tokio::test(start_paused = true)]
async fn c69_a_close_writes_the_endings_that_the_hosts_end_brings() {
    for host in hosts().await {
        let mut jobs = Vec::new();
        for _ in 0..5 {
            jobs.push(host.start().await);
        }
        for (_, run) in &jobs {
            run.end_so(RunEnding::Interrupted);
        }
        // Nothing has had time to look yet.
        assert!(host.manager.close(Duration::from_secs(5)).await);
        let host = host.crash().await;
        assert_eq!(host.recovered.interrupted, 0);
        for (job, _) in jobs {
            let job = host.job(job.id).await;
            assert_eq!((job.status(), job.endings), (Status::Failed, 1));
        }
        assert_eq!(host.heard.finished().len(), 5);
    }
}

#[tokio::test(start_paused = true)]
async fn c69_a_manager_that_was_closed_accepts_and_launches_nothing() {
    for host in hosts_with(room_for(2, 2)).await {
        let job = host.failed().await;
        let asking = host.asking().await;
        host.hook.say(proceed("second"));
        let (_, run) = host.start().await;
        let waiting = host.spawn(queued()).await;
        let launches = host.runs.launches();
        let close = host.manager.close(Duration::from_secs(5));
        let (is_written, ()) = tokio::join!(close, async { run.complete("one") });
        assert!(is_written);
        settle_down().await;
        let spawn = host.manager.spawn(work()).await;
        assert!(matches!(spawn, Err(SpawnError::Closed)));
        let retry = host.manager.retry(job.id, &OPERATOR, Hand::Model).await;
        assert_eq!(retry.unwrap_err().to_string(), "the host is shutting down");
        let answer = host.manager.answer(asking.id, &OPERATOR, "yes".into(), Hand::Person).await;
        assert_eq!(answer.unwrap_err().to_string(), "the host is shutting down");
        assert_eq!(host.runs.launches(), launches);
        assert_eq!(host.stands(waiting.id).await, Status::Queued);
        // The step that was due is not lost: a retry begins with it.
        let stepped = host.job(run.job.id).await;
        assert_eq!((stepped.status(), stepped.stage_input()), (Status::Failed, "second"));
        assert_eq!(stepped.ended().unwrap().ending, Ending::Failed(Failure::Interrupted));
        assert_eq!(stepped.summary(), Some("host shutdown"));
    }
}

#[tokio::test(start_paused = true)]
async fn c69_a_close_that_cannot_write_returns_in_time_and_says_so() {
    for host in hosts().await {
        let (job, run) = host.start().await;
        settle_down().await;
        host.store.fail_from(1, full());
        run.complete("done");
        settle_down().await;
        let before = tokio::time::Instant::now();
        assert!(!host.manager.close(Duration::from_secs(3)).await);
        assert_eq!(before.elapsed(), Duration::from_secs(3));
        // Nothing goes on trying, and the next start accounts for it.
        let writes = host.store.writes();
        pass(Duration::from_secs(100)).await;
        assert_eq!(host.store.writes(), writes);
        let host = host.crash().await;
        assert_eq!(host.job(job.id).await.summary(), Some("interrupted by restart"));
    }
}

#[tokio::test(start_paused = true)]
async fn c69_a_close_waits_for_what_can_be_written_in_time() {
    for host in hosts().await {
        let (job, run) = host.start().await;
        settle_down().await;
        host.store.fail_from(1, full());
        run.complete("done");
        settle_down().await;
        let (is_written, ()) = tokio::join!(host.manager.close(Duration::from_secs(60)), async {
            pass(Duration::from_secs(3)).await;
            host.store.heal();
        });
        assert!(is_written);
        assert_eq!(host.stands(job.id).await, Status::Completed);
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_that_was_being_launched_when_no_more_were_goes_on() {
    for host in hosts().await {
        let (go, wait) = tokio::sync::oneshot::channel();
        host.runs.begin(Beginning::After(wait, Box::new(Beginning::Start)));
        let manager = host.manager.clone();
        let spawn = tokio::spawn(async move { manager.spawn(work()).await });
        until(|| host.runs.launches() == 1).await;
        host.manager.refuse();
        go.send(()).unwrap();
        let job = spawn.await.unwrap().unwrap();
        settle_down().await;
        assert_eq!(host.stands(job.id).await, Status::Working);
        host.runs.next().await.complete("done");
        assert_eq!(host.ended(job.id).await.status(), Status::Completed);
    }
}

#[tokio::test(start_paused = true)]
async fn c69_a_run_that_was_being_launched_at_the_close_is_stopped() {
    for host in hosts().await {
        let (go, wait) = tokio::sync::oneshot::channel();
        host.runs.begin(Beginning::After(wait, Box::new(Beginning::Start)));
        let manager = host.manager.clone();
        let spawn = tokio::spawn(async move { manager.spawn(work()).await });
        until(|| host.runs.launches() == 1).await;
        let (is_written, ()) = tokio::join!(host.manager.close(Duration::from_secs(5)), async {
            settle_down().await;
            go.send(()).unwrap();
        });
        assert!(is_written);
        assert_eq!(host.runs.live(), 0);
        let job = spawn.await.unwrap().unwrap();
        assert!(host.stands(job.id).await.is_terminal());
    }
}

#[tokio::test(start_paused = true)]
async fn c69_what_happens_after_the_last_handle_is_gone_is_not_written() {
    for host in hosts().await {
        let (job, run) = host.start().await;
        settle_down().await;
        let (runs, under, clock) = (host.runs.clone(), host.under(), host.clock.clone());
        drop(host);
        run.complete("too late");
        settle_down().await;
        assert_eq!(under.job(job.id).await.unwrap().unwrap().status(), Status::Working);
        let host = Host::open(under, Config::default(), clock).await.unwrap();
        assert_eq!(host.job(job.id).await.summary(), Some("interrupted by restart"));
        drop(runs);
    }
}

#[tokio::test(start_paused = true)]
async fn c59_a_cap_that_has_shrunk_frees_its_places_too() {
    for under in stores() {
        let host = Host::on(under, room_for(3, 3)).await;
        let (one, _one) = host.start().await;
        let (_, _two) = host.start().await;
        let (under, clock) = (host.under(), host.clock.clone());
        drop(host);
        let host = Host::open(under, room_for(1, 1), clock).await.unwrap();
        assert_eq!(host.recovered.interrupted, 2);
        host.retry(one.id).await;
        let full = host.manager.spawn(work()).await.unwrap_err();
        assert!(matches!(full, SpawnError::Refused(_)), "{full}");
        let spawn = Spawn { queue: true, ..work() };
        assert_eq!(host.spawn(spawn).await.status(), Status::Queued);
    }
}
