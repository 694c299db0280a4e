//! C67: a store that fails and stalls.

use std::time::Duration;

use backlot_jobs::{Hand, Spawn, SpawnError, Status};

use crate::world::*;

const TEXT: &str = "no space is left for jobs.db: free some; nothing that was written is lost";

#[tokio::test(start_paused = true)]
async fn c67_an_ending_that_cannot_be_written_is_kept_until_it_is() {
    for host in hosts().await {
        let (job, run) = host.start().await;
        settle_down().await;
        host.store.fail_from(1, full());
        run.complete("done");
        pass(Duration::from_secs(3_600)).await;
        let health = host.manager.health().await.unwrap();
        assert_eq!((health.unwritten, health.trouble.as_deref()), (1, Some(TEXT)));
        assert_eq!(host.stands(job.id).await, Status::Working);
        assert_eq!(host.heard.finished(), [], "nothing is told before it is written");
        let failed = host.store.failed();
        assert!(failed < 1_000, "it does not loop: {failed}");
        host.store.heal();
        pass(Duration::from_secs(10)).await;
        let ended = host.job(job.id).await;
        assert_eq!((ended.status(), ended.summary()), (Status::Completed, Some("done")));
        assert_eq!(host.heard.finished(), [ended]);
        let health = host.manager.health().await.unwrap();
        assert_eq!((health.unwritten, health.trouble), (0, None));
    }
}

#[tokio::test(start_paused = true)]
async fn c67_a_spawn_that_cannot_be_written_starts_nothing() {
    for host in hosts().await {
        host.store.fail_nth(1, full());
        let error = host.manager.spawn(work()).await.unwrap_err();
        assert!(matches!(error, SpawnError::Store(_)));
        assert_eq!(error.to_string(), format!("nothing was started: {TEXT}"));
        assert_eq!(host.runs.launches(), 0);
        host.start().await;
    }
}

#[tokio::test(start_paused = true)]
async fn c67_a_launch_that_cannot_be_written_down_goes_on_and_ends() {
    for host in hosts().await {
        host.store.fail_nth(2, full());
        let (job, run) = host.start().await;
        settle_down().await;
        assert_eq!((host.store.failed(), host.stands(job.id).await), (1, Status::Working));
        run.complete("done");
        pass(Duration::from_secs(10)).await;
        assert_eq!(host.stands(job.id).await, Status::Completed);
    }
}

#[tokio::test(start_paused = true)]
async fn c67_a_store_that_stalls_keeps_nobody_from_reading() {
    for host in hosts().await {
        let (job, run) = host.start().await;
        settle_down().await;
        host.store.stall_from(1);
        run.complete("done");
        let manager = host.manager.clone();
        let spawn = tokio::spawn(async move { manager.spawn(work()).await });
        until(|| host.store.stalled() == 2).await;
        let before = tokio::time::Instant::now();
        assert_eq!(host.stands(job.id).await, Status::Working);
        let status = host.manager.status(job.id, &OPERATOR, Duration::ZERO, Hand::Model).await;
        assert_eq!(status.unwrap().status(), Status::Working);
        assert_eq!(host.owed().await, []);
        assert_eq!(host.manager.health().await.unwrap().census.working, 1);
        assert_eq!(before.elapsed(), Duration::ZERO);
        host.store.heal();
        spawn.await.unwrap().unwrap();
        assert_eq!(host.ended(job.id).await.status(), Status::Completed);
    }
}

#[tokio::test(start_paused = true)]
async fn c67_after_it_has_healed_all_is_as_it_should_be() {
    for host in hosts_with(room_for(4, 4)).await {
        let mut runs = Vec::new();
        for _ in 0..4 {
            runs.push(host.start().await.1);
        }
        let waiting = host.spawn(Spawn { queue: true, ..work() }).await;
        settle_down().await;
        host.store.fail_from(1, full());
        for run in &runs {
            run.complete("done");
        }
        host.manager.spawn(work()).await.unwrap_err();
        pass(Duration::from_secs(600)).await;
        assert_eq!(host.manager.health().await.unwrap().unwritten, 4);
        host.store.heal();
        pass(Duration::from_secs(10)).await;
        let health = host.manager.health().await.unwrap();
        assert_eq!((health.unwritten, health.census.working, health.census.ended), (0, 1, 4));
        assert_eq!(host.runs.next().await.job.id, waiting.id);
        assert_eq!((host.owed().await.len(), host.heard.finished().len()), (4, 4));
    }
}

#[tokio::test(start_paused = true)]
async fn c67_what_stalls_is_written_although_its_caller_has_gone() {
    for host in hosts().await {
        host.store.stall_nth(1);
        let spawn = host.manager.spawn(work());
        assert!(tokio::time::timeout(Duration::from_secs(9), spawn).await.is_err());
        assert_eq!(host.runs.launches(), 0);
        host.store.release();
        assert_eq!(host.runs.next().await.job.spec.parent, chat());
    }
}

#[tokio::test(start_paused = true)]
async fn c67_a_result_is_read_although_that_cannot_be_written_down() {
    for host in hosts().await {
        let (job, run) = host.start().await;
        run.complete("done");
        host.ended(job.id).await;
        let status = || host.manager.status(job.id, &OPERATOR, LONG, Hand::Model);
        host.store.fail_from(1, full());
        assert_eq!(status().await.unwrap().summary(), Some("done"));
        host.store.heal();
        assert_eq!(host.owed().await, [job.id], "it is told again");
        host.store.stall_from(1);
        let before = tokio::time::Instant::now();
        assert_eq!(status().await.unwrap().summary(), Some("done"));
        assert!(before.elapsed() <= Duration::from_secs(2));
        host.store.heal();
        settle_down().await;
        assert_eq!((host.owed().await, host.heard.delivered().len()), (vec![], 1));
    }
}

#[tokio::test(start_paused = true)]
async fn c67_what_follows_is_asked_once_the_job_can_be_read() {
    for host in hosts().await {
        host.hook.say(proceed("second"));
        let (job, run) = host.start().await;
        settle_down().await;
        host.store.fail_reads(full());
        run.complete("one");
        pass(Duration::from_secs(600)).await;
        assert_eq!(host.hook.asked().len(), 0);
        host.store.heal();
        pass(Duration::from_secs(10)).await;
        assert_eq!(host.runs.next().await.job.id, job.id);
        assert_eq!(host.manager.health().await.unwrap().unwritten, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn c67_a_store_that_cannot_be_read_is_an_error_and_no_empty_answer() {
    for host in hosts().await {
        let job = host.failed().await;
        host.store.fail_reads(full());
        let manager = &host.manager;
        let query = backlot_jobs::Query { limit: 9, ..Default::default() };
        let answers = [
            manager.get(job.id, &OPERATOR).await.is_err(),
            manager.list(&OPERATOR, query).await.is_err(),
            manager.owed(&chat()).await.is_err(),
            manager.health().await.is_err(),
            manager.entries(&chat(), 0, 9).await.is_err(),
            manager.find(&job.id.short(), &OPERATOR).await.is_err(),
            manager.retry(job.id, &OPERATOR, Hand::Model).await.is_err(),
            manager.delete_session(&chat(), "anna", Duration::ZERO).await.is_err(),
        ];
        assert_eq!(answers, [true; 8]);
        host.store.heal();
        assert_eq!(host.job(job.id).await, job);
    }
}
