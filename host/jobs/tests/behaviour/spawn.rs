//! J11, J24: spawning, and what is left of it where it fails.

use std::time::Duration;

use backlot_jobs::{Query, Refused, Spawn, SpawnError, Status};
use futures::future::join_all;
use tokio::sync::oneshot;

use crate::world::*;

async fn count(host: &Host) -> usize {
    let query = Query { limit: 100, ..Query::default() };
    host.manager.list(&OPERATOR, query).await.unwrap().jobs.len()
}

fn keyed(input: &str) -> Spawn {
    Spawn { key: Some("k".into()), input: input.into(), ..work() }
}

#[tokio::test(start_paused = true)]
async fn j11_nothing_is_left_of_a_spawn_whose_run_is_not_launched() {
    for host in hosts_with(room_for(1, 1)).await {
        for beginning in [Beginning::Refuse("no"), Beginning::Unavailable("no"), Beginning::Panic] {
            host.runs.begin(beginning);
            let error = host.manager.spawn(work()).await.unwrap_err();
            assert!(matches!(error, SpawnError::Launch(_)), "{error}");
            assert_eq!(count(&host).await, 0);
        }
        assert_eq!((host.owed().await, host.heard.finished()), (vec![], vec![]));
        // The place is free.
        host.start().await;
    }
}

#[tokio::test(start_paused = true)]
async fn j11_a_spawn_cleans_up_although_its_caller_has_gone() {
    for host in hosts().await {
        let (go, wait) = oneshot::channel();
        host.runs.begin(Beginning::After(wait, Box::new(Beginning::Refuse("no"))));
        let spawn = host.manager.spawn(work());
        assert!(tokio::time::timeout(Duration::from_secs(1), spawn).await.is_err());
        assert_eq!(count(&host).await, 1);
        go.send(()).unwrap();
        settle_down().await;
        assert_eq!(count(&host).await, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn j11_a_spawn_goes_on_although_its_caller_has_gone() {
    for host in hosts().await {
        let (go, wait) = oneshot::channel();
        host.runs.begin(Beginning::After(wait, Box::new(Beginning::Start)));
        let spawn = host.manager.spawn(work());
        assert!(tokio::time::timeout(Duration::from_secs(1), spawn).await.is_err());
        go.send(()).unwrap();
        let run = host.runs.next().await;
        run.complete("done");
        assert_eq!(host.ended(run.job.id).await.status(), Status::Completed);
        assert_eq!(host.owed().await, [run.job.id]);
    }
}

#[tokio::test(start_paused = true)]
async fn j11_a_spawn_that_cannot_be_taken_back_has_failed() {
    for host in hosts().await {
        host.runs.begin(Beginning::Refuse("no"));
        host.store.fail_nth(2, full());
        let error = host.manager.spawn(work()).await.unwrap_err();
        assert!(matches!(error, SpawnError::Launch(_)), "{error}");
        let query = Query { limit: 100, ..Query::default() };
        let jobs = host.manager.list(&OPERATOR, query).await.unwrap().jobs;
        assert_eq!(jobs[0].status(), Status::Failed);
        assert_eq!(host.owed().await, [], "whoever spawned it knows");
    }
}

#[tokio::test(start_paused = true)]
async fn j24_one_job_comes_of_a_key() {
    for host in hosts().await {
        let spawns = (0..20).map(|_| host.manager.spawn(keyed("input")));
        let jobs = join_all(spawns).await;
        let ids: Vec<_> = jobs.into_iter().map(|job| job.unwrap().id).collect();
        assert!(ids.iter().all(|id| *id == ids[0]));
        assert_eq!((host.runs.launches(), count(&host).await), (1, 1));
        host.runs.next().await.complete("done");
        host.ended(ids[0]).await;
        let host = host.crash().await;
        let again = host.spawn(keyed("input")).await;
        assert_eq!((again.id, again.summary()), (ids[0], Some("done")));
        assert_eq!(host.runs.launches(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn j24_a_key_is_for_one_input_and_one_session() {
    for host in hosts().await {
        let (job, _run) = host.start_with(keyed("input")).await;
        let error = host.manager.spawn(keyed("another")).await.unwrap_err();
        let taken = Refused::KeyTaken { key: "k".into(), job: job.id };
        assert!(matches!(error, SpawnError::Refused(refused) if refused == taken));
        host.manager.open_session("other".into()).await.unwrap();
        let theirs = Spawn { parent: "other".into(), ..keyed("input") };
        assert_ne!(host.spawn(theirs).await.id, job.id);
    }
}

#[tokio::test(start_paused = true)]
async fn j24_a_key_is_free_again_where_nothing_came_of_it() {
    for host in hosts().await {
        host.runs.begin(Beginning::Refuse("no"));
        host.manager.spawn(keyed("input")).await.unwrap_err();
        let (job, _run) = host.start_with(keyed("input")).await;
        assert_eq!(job.status(), Status::Working);
    }
}

#[tokio::test(start_paused = true)]
async fn a_label_is_one_line_and_the_resolvers_where_none_is_given() {
    for host in hosts().await {
        let (job, _run) = host.start().await;
        assert_eq!(job.spec.label, "some work");
        let label = format!("a\nb\u{1b}[2J{}", "c".repeat(10_000));
        let (job, _run) = host.start_with(Spawn { label: Some(label), ..work() }).await;
        assert!(job.spec.label.starts_with("a b [2Jccc"));
        assert_eq!(job.spec.label.chars().count(), 257);
    }
}

#[tokio::test(start_paused = true)]
async fn j24_whoever_comes_second_is_not_given_a_job_that_is_taken_back() {
    for host in hosts().await {
        let (go, wait) = oneshot::channel();
        host.runs.begin(Beginning::After(wait, Box::new(Beginning::Refuse("no"))));
        let (first, second, ()) = tokio::join!(
            host.manager.spawn(keyed("input")),
            host.manager.spawn(keyed("input")),
            async {
                settle_down().await;
                go.send(()).unwrap();
            },
        );
        assert!(matches!(first, Err(SpawnError::Launch(_))));
        // It has spawned its own.
        let second = second.unwrap();
        assert_eq!(host.runs.next().await.job.id, second.id);
        assert_eq!((host.stands(second.id).await, count(&host).await), (Status::Working, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn j11_a_resolver_that_panics_starts_nothing() {
    for host in hosts().await {
        host.kinds.is_broken.store(true, std::sync::atomic::Ordering::SeqCst);
        let error = host.manager.spawn(work()).await.unwrap_err();
        assert_eq!(error.to_string(), "work: the resolver panicked");
        assert_eq!(count(&host).await, 0);
    }
}
