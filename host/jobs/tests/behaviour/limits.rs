//! J9, J27: how many jobs live, and how many that have ended are kept.

use std::time::Duration;

use backlot_jobs::{
    Hand, JobId, Refused, ResumeError, Scope, Spawn, SpawnError, Status, TreeError,
};
use futures::future::join_all;

use crate::world::*;

#[tokio::test(start_paused = true)]
async fn j9_spawns_at_once_do_not_pass_the_cap() {
    for host in hosts_with(room_for(3, 99)).await {
        let spawns = (0..20).map(|_| host.manager.spawn(work()));
        let (won, lost): (Vec<_>, Vec<_>) =
            join_all(spawns).await.into_iter().partition(Result::is_ok);
        assert_eq!((won.len(), lost.len(), host.runs.live()), (3, 17, 3));
        for lost in lost {
            assert_eq!(
                lost.unwrap_err().to_string(),
                "the session has 3 live jobs, which is the cap: wait until one ends, stop one, or \
                 let this one queue"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn j9_a_retry_takes_a_place_too() {
    for host in hosts_with(room_for(1, 99)).await {
        let failed = host.failed().await;
        let (_, run) = host.start().await;
        let retry = host.manager.retry(failed.id, &OPERATOR, Hand::Model).await;
        let full = Refused::Full { scope: Scope::Session, limit: 1 };
        assert!(matches!(retry, Err(ResumeError::Refused(refused)) if refused == full));
        let job = host.job(failed.id).await;
        assert_eq!((job.status(), job.attempt), (Status::Failed, 1));
        assert_eq!(host.owed().await, [failed.id], "it is owed as before");
        run.complete("done");
        host.ended(run.job.id).await;
        host.retry(failed.id).await;
    }
}

#[tokio::test(start_paused = true)]
async fn j9_the_cap_of_the_host_holds_over_sessions() {
    for host in hosts_with(room_for(2, 3)).await {
        host.manager.open_session("other".into()).await.unwrap();
        host.start().await;
        host.start().await;
        host.start_with(work_of(&"other".into())).await;
        let error = host.manager.spawn(work_of(&"other".into())).await.unwrap_err();
        let full = Refused::Full { scope: Scope::Host, limit: 3 };
        assert!(matches!(error, SpawnError::Refused(refused) if refused == full));
    }
}

#[tokio::test(start_paused = true)]
async fn j9_a_job_that_waits_for_a_person_keeps_its_place() {
    for host in hosts_with(room_for(1, 1)).await {
        let asking = host.asking().await;
        host.manager.spawn(work()).await.unwrap_err();
        host.manager.answer(asking.id, &OPERATOR, "yes".into(), Hand::Person).await.unwrap();
    }
}

async fn ended_after(host: &Host, spawn: Spawn) -> JobId {
    let (job, run) = host.start_with(spawn).await;
    run.complete("done");
    host.ended(job.id).await;
    pass(Duration::from_secs(1)).await;
    job.id
}

#[tokio::test(start_paused = true)]
async fn j27_what_is_old_or_too_many_is_pruned_but_never_what_is_owed() {
    for host in hosts().await {
        let quiet = || Spawn { announced: false, ..work() };
        let owed = ended_after(&host, work()).await;
        let first = ended_after(&host, quiet()).await;
        let second = ended_after(&host, quiet()).await;
        let third = ended_after(&host, quiet()).await;
        let (live, _run) = host.start().await;
        // Three of the four are kept by their number, and one is too old; but what is owed
        // stays, whatever it counts for.
        let gone = host.manager.prune(3, LONG).await.unwrap();
        assert_eq!(gone, []);
        let gone = host.manager.prune(2, LONG).await.unwrap();
        assert_eq!(gone, [first]);
        let gone = host.manager.prune(99, Duration::from_millis(1_500)).await.unwrap();
        assert_eq!(gone, [second]);
        assert!(host.is_known(owed).await && host.is_known(third).await);
        assert!(host.is_known(live.id).await);
        let removed = removed_by(&host);
        assert_eq!(removed, [vec![first], vec![second]]);
        let delivery = host.manager.owed(&chat()).await.unwrap().unwrap();
        host.manager.settle(&chat(), &delivery.ids).await.unwrap();
        assert_eq!(host.manager.prune(0, LONG).await.unwrap(), [owed, third]);
    }
}

fn removed_by(host: &Host) -> Vec<Vec<JobId>> {
    let removed = |report| match report {
        Report::Removed(jobs) => Some(jobs),
        _ => None,
    };
    host.heard.all().into_iter().filter_map(removed).collect()
}

#[tokio::test(start_paused = true)]
async fn j27_only_what_has_ended_is_removed() {
    let mut config = room_for(9, 9);
    config.limits.depth = 2;
    for host in hosts_with(config).await {
        let (job, run) = host.start().await;
        let (below, below_run) = host.start_with(work_of(&job.id.session())).await;
        let remove = async || host.manager.remove(job.id, &session(&chat())).await;
        let error = remove().await.unwrap_err();
        assert_eq!(error.to_string(), format!("job {} is working: stop it first", job.id));
        run.complete("done");
        host.ended(job.id).await;
        let live = Refused::Live { job: below.id, status: Status::Working };
        assert!(matches!(remove().await, Err(TreeError::Refused(refused)) if refused == live));
        below_run.complete("done");
        host.ended(below.id).await;
        assert_eq!(remove().await.unwrap(), [below.id, job.id]);
        assert!(matches!(remove().await, Err(TreeError::Refused(Refused::NoJob(_)))));
        assert_eq!(host.owed().await, []);
    }
}

#[tokio::test(start_paused = true)]
async fn j27_a_long_result_is_cut_where_it_is_kept() {
    let config = backlot_jobs::Config { result_bytes: 10, ..Default::default() };
    for host in hosts_with(config).await {
        let (job, run) = host.start().await;
        run.complete("0123456789abc");
        let ended = host.ended(job.id).await;
        assert_eq!(
            ended.ended().unwrap().result.as_deref(),
            Some("0123456789\n[the other 3 bytes are in its output]")
        );
    }
}
