//! J25, C68: jobs that start when their time has come.

use std::time::Duration;

use backlot_jobs::{How, Job, Query, Spawn, SpawnError, StartAt, Status};

use crate::world::*;

const MINUTE: Duration = Duration::from_secs(60);

fn at(start: StartAt) -> Spawn {
    Spawn { start, ..work() }
}

/// Every minute, wherever the machine of the test is.
fn every_minute() -> Spawn {
    at(StartAt::Cron("* * * * *".into()))
}

async fn jobs(host: &Host) -> Vec<Job> {
    let query = Query { limit: 100, ..Query::default() };
    host.manager.list(&OPERATOR, query).await.unwrap().jobs
}

#[tokio::test(start_paused = true)]
async fn j25_a_job_starts_after_a_delay() {
    for host in hosts().await {
        let job = host.spawn(at(StartAt::After(90_000))).await;
        assert_eq!(job.status(), Status::Queued);
        pass(MINUTE).await;
        assert_eq!(host.runs.launches(), 0);
        pass(MINUTE / 2).await;
        assert_eq!(host.runs.next().await.job.id, job.id);
        assert_eq!(host.job(job.id).await.attempt, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn j25_a_job_starts_at_a_time_and_at_once_where_that_is_over() {
    for host in hosts().await {
        let job = host.spawn(at(StartAt::At(DAWN_MS - 1))).await;
        assert_eq!(job.status(), Status::Working);
        host.runs.next().await;
        let job = host.spawn(at(StartAt::At(DAWN_MS + 60_000))).await;
        pass(MINUTE).await;
        assert_eq!(host.runs.next().await.job.id, job.id);
    }
}

#[tokio::test(start_paused = true)]
async fn j25_a_time_that_was_missed_is_made_up_for_after_the_restart() {
    for host in hosts().await {
        let job = host.spawn(at(StartAt::After(60_000))).await;
        let (under, clock) = (host.under(), host.clock.clone());
        drop(host);
        pass(60 * MINUTE).await;
        let host = Host::open(under, Default::default(), clock).await.unwrap();
        assert_eq!(host.runs.next().await.job.id, job.id);
    }
}

#[tokio::test(start_paused = true)]
async fn j25_each_time_of_a_schedule_spawns_a_job_of_its_own() {
    for under in stores() {
        // Its clock begins with it, at the beginning of a minute.
        let host = Host::on(under, Default::default()).await;
        let template = host.spawn(every_minute()).await;
        for _ in 0..3 {
            pass(MINUTE).await;
            let run = host.runs.next().await;
            assert_ne!(run.job.id, template.id);
            assert_eq!(run.job.spec.schedule, None);
            run.complete("done");
        }
        pass(MINUTE / 2).await;
        let jobs = jobs(&host).await;
        assert_eq!(jobs.len(), 4);
        assert_eq!(host.stands(template.id).await, Status::Queued);
        assert_eq!(host.owed().await.len(), 3);
        assert_eq!(host.runs.launches(), 3);
    }
}

#[tokio::test(start_paused = true)]
async fn j25_times_that_were_missed_run_once() {
    for host in hosts().await {
        let template = host.spawn(every_minute()).await;
        let (under, clock) = (host.under(), host.clock.clone());
        drop(host);
        pass(100 * MINUTE).await;
        let host = Host::open(under, Default::default(), clock).await.unwrap();
        host.runs.next().await;
        settle_down().await;
        assert_eq!((host.runs.launches(), jobs(&host).await.len()), (1, 2));
        pass(MINUTE).await;
        assert_eq!(host.runs.launches(), 2);
        assert_eq!(host.stands(template.id).await, Status::Queued);
    }
}

#[tokio::test(start_paused = true)]
async fn j25_one_job_comes_of_a_time_however_often_it_is_tried() {
    for under in stores() {
        // Its clock begins with it, at the beginning of a minute.
        let host = Host::on(under, Default::default()).await;
        host.spawn(every_minute()).await;
        settle_down().await;
        // Written, but its host does not live to hear of it.
        host.store.stall_answer(1);
        pass(MINUTE).await;
        assert_eq!((host.runs.launches(), jobs(&host).await.len()), (0, 2));
        let host = host.crash().await;
        pass(MINUTE / 2).await;
        let fired: Vec<Job> =
            jobs(&host).await.into_iter().filter(|job| job.spec.key.is_some()).collect();
        assert_eq!(fired.len(), 1);
        assert_eq!(fired[0].summary(), Some("interrupted by restart"));
    }
}

#[tokio::test(start_paused = true)]
async fn j25_a_schedule_that_is_stopped_spawns_nothing_more() {
    for host in hosts().await {
        let template = host.spawn(every_minute()).await;
        pass(MINUTE).await;
        let run = host.runs.next().await;
        host.stop(template.id, How::Ask).await;
        pass(100 * MINUTE).await;
        assert_eq!(host.runs.launches(), 1);
        assert_eq!(host.stands(template.id).await, Status::Cancelled);
        assert_eq!(host.stands(run.job.id).await, Status::Working, "that one is its own");
    }
}

#[tokio::test(start_paused = true)]
async fn j25_a_schedule_waits_for_a_place_like_all() {
    for host in hosts_with(room_for(1, 1)).await {
        let (_, run) = host.start().await;
        host.spawn(every_minute()).await;
        pass(3 * MINUTE).await;
        assert_eq!(host.runs.launches(), 1);
        run.complete("done");
        let first = host.runs.next().await;
        first.complete("done");
        let second = host.runs.next().await;
        assert!(first.job.created_ms < second.job.created_ms);
    }
}

#[tokio::test(start_paused = true)]
async fn j25_what_is_no_time_is_refused() {
    for host in hosts().await {
        let spawn = at(StartAt::Cron("whenever".into()));
        let error = host.manager.spawn(spawn).await.unwrap_err();
        assert!(matches!(error, SpawnError::Schedule(_)), "{error}");
        assert_eq!(jobs(&host).await, []);
    }
}

#[tokio::test(start_paused = true)]
async fn c68_a_clock_that_is_set_starts_nothing_early_and_nothing_late() {
    for hours in [-1, 1] {
        for host in hosts().await {
            let job = host.spawn(at(StartAt::After(90_000))).await;
            pass(MINUTE).await;
            host.clock.set_by(hours * 3_600_000);
            pass(MINUTE / 2 - Duration::from_millis(1)).await;
            assert_eq!(host.runs.launches(), 0, "{hours}");
            pass(Duration::from_millis(1)).await;
            assert_eq!(host.runs.next().await.job.id, job.id);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn c68_a_clock_that_is_set_prunes_nothing_and_turns_no_time_round() {
    for hours in [-1, 1] {
        for host in hosts().await {
            let (job, run) = host.start_with(Spawn { announced: false, ..work() }).await;
            host.clock.set_by(hours * 3_600_000);
            run.complete("done");
            let ended = host.ended(job.id).await;
            let (began, at) = (ended.last_run().unwrap().started_ms, ended.ended().unwrap().at_ms);
            assert!(ended.created_ms <= began && began <= at && at <= ended.updated_ms);
            assert_eq!(host.manager.prune(99, MINUTE).await.unwrap(), []);
            pass(2 * MINUTE).await;
            assert_eq!(host.manager.prune(99, MINUTE).await.unwrap(), [job.id]);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn j25_a_time_that_never_comes_is_waited_for() {
    for host in hosts().await {
        for start in [StartAt::After(u64::MAX), StartAt::At(u64::MAX)] {
            let job = host.spawn(at(start)).await;
            pass(1_000 * MINUTE).await;
            assert_eq!(host.stands(job.id).await, Status::Queued);
        }
        assert_eq!(host.runs.launches(), 0);
    }
}
