//! J23: jobs that wait for a place.

use std::time::Duration;

use backlot_jobs::{How, JobId, Refused, Scope, Spawn, SpawnError, Status, StopReply};

use crate::world::*;

/// Ends runs as they start, and returns their jobs in order.
async fn order(host: &Host, jobs: usize) -> Vec<JobId> {
    let mut order = Vec::new();
    for _ in 0..jobs {
        let run = host.runs.next().await;
        order.push(run.job.id);
        run.complete("");
        host.ended(run.job.id).await;
    }
    order
}

#[tokio::test(start_paused = true)]
async fn j23_past_the_cap_jobs_wait_in_order() {
    for host in hosts_with(room_for(1, 9)).await {
        let (_, run) = host.start().await;
        let mut waiting = Vec::new();
        for _ in 0..5 {
            let job = host.spawn(queued()).await;
            assert_eq!(job.status(), Status::Queued);
            waiting.push(job.id);
        }
        settle_down().await;
        assert_eq!(host.runs.launches(), 1);
        run.complete("done");
        assert_eq!(order(&host, 5).await, waiting);
    }
}

#[tokio::test(start_paused = true)]
async fn j23_the_order_outlives_a_restart() {
    for host in hosts_with(room_for(1, 9)).await {
        let (_, _run) = host.start().await;
        let mut waiting = Vec::new();
        for _ in 0..5 {
            waiting.push(host.spawn(queued()).await.id);
        }
        let host = host.crash().await;
        assert_eq!(host.recovered.queued, 5);
        assert_eq!(order(&host, 5).await, waiting);
    }
}

#[tokio::test(start_paused = true)]
async fn j23_sessions_have_their_turns() {
    for host in hosts_with(room_for(9, 2)).await {
        let sessions = ["a", "b", "c"].map(backlot_registry::SessionId::from);
        for session in &sessions {
            host.manager.open_session(session.clone()).await.unwrap();
        }
        let spawn = |session| Spawn { queue: true, ..work_of(session) };
        let (_, first) = host.start_with(spawn(&sessions[0])).await;
        let (_, second) = host.start_with(spawn(&sessions[0])).await;
        // The first has asked for far more than the others, and long before them.
        for _ in 0..10 {
            host.spawn(spawn(&sessions[0])).await;
        }
        for session in [&sessions[1], &sessions[1], &sessions[2]] {
            host.spawn(spawn(session)).await;
        }
        first.complete("");
        let mut live = [second];
        let mut turns = Vec::new();
        for _ in 0..4 {
            let run = host.runs.next().await;
            turns.push(run.job.spec.parent.as_str().to_owned());
            let oldest = std::mem::replace(&mut live[0], run);
            oldest.complete("");
            host.ended(oldest.job.id).await;
        }
        assert_eq!(turns, ["b", "c", "a", "b"]);
    }
}

#[tokio::test(start_paused = true)]
async fn j23_a_session_at_its_cap_holds_up_nobody_else() {
    for host in hosts_with(room_for(1, 2)).await {
        host.manager.open_session("other".into()).await.unwrap();
        host.start().await;
        host.spawn(queued()).await;
        let theirs = host.spawn(Spawn { queue: true, ..work_of(&"other".into()) }).await;
        assert_eq!(theirs.status(), Status::Working);
    }
}

#[tokio::test(start_paused = true)]
async fn j23_a_job_that_waits_is_stopped_without_a_run() {
    for host in hosts_with(room_for(1, 1)).await {
        let (_, run) = host.start().await;
        let first = host.spawn(queued()).await;
        let second = host.spawn(queued()).await;
        let reply = host.stop(first.id, How::Ask).await;
        assert!(matches!(reply, StopReply::Cancelled(_)), "{reply:?}");
        run.complete("done");
        assert_eq!(host.runs.next().await.job.id, second.id);
        assert_eq!((host.runs.stops(), host.runs.launches()), (vec![], 2));
    }
}

#[tokio::test(start_paused = true)]
async fn j23_the_queue_has_an_end() {
    let mut config = room_for(1, 1);
    config.limits.queued = 2;
    for host in hosts_with(config).await {
        host.start().await;
        host.spawn(queued()).await;
        host.spawn(queued()).await;
        let error = host.manager.spawn(queued()).await.unwrap_err();
        let full = Refused::QueueFull { scope: Scope::Host, limit: 2 };
        assert!(matches!(error, SpawnError::Refused(refused) if refused == full));
    }
}

#[tokio::test(start_paused = true)]
async fn j23_a_job_of_the_queue_that_is_not_launched_fails_and_the_next_has_its_turn() {
    for host in hosts_with(room_for(1, 1)).await {
        let (_, run) = host.start().await;
        let first = host.spawn(queued()).await;
        let second = host.spawn(queued()).await;
        host.runs.begin(Beginning::Refuse("no such input"));
        run.complete("done");
        assert_eq!(host.runs.next().await.job.id, second.id);
        assert_eq!(host.stands(first.id).await, Status::Failed);
        assert!(host.owed().await.contains(&first.id));
    }
}

#[tokio::test(start_paused = true)]
async fn j23_the_queue_moves_on_after_the_store_was_full() {
    for host in hosts_with(room_for(1, 1)).await {
        let (_, run) = host.start().await;
        let waiting = host.spawn(queued()).await;
        settle_down().await;
        // The ending is written, and the start is not.
        host.store.fail_nth(2, full());
        run.complete("done");
        settle_down().await;
        assert_eq!(host.stands(waiting.id).await, Status::Queued);
        assert!(host.manager.health().await.unwrap().trouble.is_some());
        pass(Duration::from_secs(2)).await;
        assert_eq!(host.stands(waiting.id).await, Status::Working);
        assert_eq!(host.manager.health().await.unwrap().trouble, None);
    }
}

#[tokio::test(start_paused = true)]
async fn j23_whoever_could_wait_does_not_overtake_those_who_do() {
    for host in hosts_with(room_for(1, 1)).await {
        let (_, run) = host.start().await;
        let first = host.spawn(queued()).await;
        settle_down().await;
        // The place is free, but nobody was told yet.
        let report = backlot_jobs::Report {
            ending: backlot_jobs::Ending::Completed,
            result: None,
            detail: None,
            state: None,
            again_ms: None,
            told: true,
        };
        host.happen(run.job.id, backlot_jobs::Event::Finished { run: None, report }).await;
        let second = host.spawn(queued()).await;
        assert_eq!(second.status(), Status::Queued);
        assert_eq!(order(&host, 2).await, [first.id, second.id]);
    }
}

#[tokio::test(start_paused = true)]
async fn j23_one_who_has_much_waiting_does_not_hold_up_one_who_has_little() {
    for host in hosts_with(room_for(1, 1)).await {
        host.manager.open_session("other".into()).await.unwrap();
        let (_, run) = host.start().await;
        for _ in 0..50 {
            host.spawn(queued()).await;
        }
        let theirs = host.spawn(Spawn { queue: true, ..work_of(&"other".into()) }).await;
        run.complete("done");
        let order = order(&host, 3).await;
        assert!(order.contains(&theirs.id));
    }
}

#[tokio::test(start_paused = true)]
async fn j23_what_is_told_late_of_a_job_keeps_nobody_busy() {
    for host in hosts_with(room_for(1, 1)).await {
        let (_, first) = host.start().await;
        settle_down().await;
        // It is queued, but whoever queues it hears so only once it has ended.
        host.store.stall_answer(1);
        let manager = host.manager.clone();
        let spawn = tokio::spawn(async move { manager.spawn(queued()).await });
        until(|| host.store.stalled() == 1).await;
        let third = host.spawn(queued()).await;
        first.complete("");
        let second = order(&host, 1).await;
        host.store.release();
        assert_eq!(spawn.await.unwrap().unwrap().id, second[0]);
        assert_eq!(order(&host, 1).await, [third.id]);
        settle_down().await;
        let writes = host.store.writes();
        pass(Duration::from_secs(3_600)).await;
        assert_eq!(host.store.writes(), writes);
    }
}
