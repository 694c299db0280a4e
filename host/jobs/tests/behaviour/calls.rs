//! Endings that webhooks are told of, and what becomes of that when hosts end.

use std::time::Duration;

use backlot_jobs::{Call, Config, How, Job, JobId, Manager, Spawn, Status, Webhook};
use futures::FutureExt as _;

use crate::world::*;

fn called() -> Spawn {
    Spawn { webhook: Some("https://example.com/told".into()), announced: false, ..work() }
}

async fn due(manager: &Manager) -> Vec<JobId> {
    let due = manager.calls(Vec::new(), 100).await.unwrap();
    due.iter().map(|job| job.id).collect()
}

fn call_of(job: &Job) -> Call {
    *job.call.clone().expect("its webhook is to be told")
}

#[tokio::test(start_paused = true)]
async fn a_call_wakes_who_makes_it_and_is_made_once() {
    for host in hosts().await {
        let manager = &host.manager;
        assert!(manager.another_call().now_or_never().is_none());
        let (job, run) = host.start_with(called()).await;
        run.complete("done");
        manager.another_call().await;
        assert!(manager.another_call().now_or_never().is_none());
        let ended = host.ended(job.id).await;
        let call = call_of(&ended);
        assert_eq!((call.tries, call.due_ms), (0, Some(ended.ended().unwrap().at_ms)));
        assert_eq!(due(manager).await, [job.id]);
        let whole = manager.called_for(job.id, &call.delivery).await.unwrap().unwrap();
        assert_eq!(whole.ended().unwrap().result.as_deref(), Some("done"));
        let later = manager.now_ms() + 5_000;
        let why = "it answered\n500";
        assert!(manager.call_failed(job.id, &call.delivery, why, Some(later)).await.unwrap());
        let put_off = call_of(&host.job(job.id).await);
        assert_eq!((put_off.tries, put_off.due_ms), (1, Some(later)));
        assert_eq!(put_off.why.as_deref(), Some("it answered 500"));
        assert_eq!(put_off.delivery, call.delivery);
        assert!(manager.call_made(job.id, &call.delivery).await.unwrap());
        assert!(!manager.call_made(job.id, &call.delivery).await.unwrap());
        assert!(!manager.call_failed(job.id, &call.delivery, why, None).await.unwrap());
        assert_eq!(manager.called_for(job.id, &call.delivery).await.unwrap(), None);
        assert_eq!((host.job(job.id).await.call, due(manager).await), (None, vec![]));
    }
}

#[tokio::test(start_paused = true)]
async fn a_stop_of_what_has_no_run_owes_a_call() {
    for host in hosts_with(room_for(1, 1)).await {
        let (_working, _run) = host.start().await;
        let waiting = host.spawn(Spawn { queue: true, ..called() }).await;
        host.stop(waiting.id, How::Ask).await;
        assert_eq!(host.stands(waiting.id).await, Status::Cancelled);
        host.manager.another_call().await;
        assert_eq!(due(&host.manager).await, [waiting.id]);
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_start_ends_owes_a_call_and_what_was_due_stays_due() {
    for host in hosts().await {
        let (done, run) = host.start_with(called()).await;
        run.complete("done");
        let done = host.ended(done.id).await;
        pass(Duration::from_millis(10)).await;
        let (working, _run) = host.start_with(called()).await;
        let host = host.crash().await;
        host.manager.another_call().await;
        assert_eq!(due(&host.manager).await, [done.id, working.id]);
        assert_eq!(call_of(&host.job(done.id).await), call_of(&done));
        // As many hosts as it takes: the id stays.
        let host = host.crash().await;
        assert_eq!(due(&host.manager).await, [done.id, working.id]);
        assert_eq!(call_of(&host.job(done.id).await).delivery, call_of(&done).delivery);
    }
}

#[tokio::test(start_paused = true)]
async fn what_the_hosts_end_interrupts_owes_a_call() {
    for host in hosts().await {
        let (job, run) = host.start_with(called()).await;
        host.manager.refuse();
        run.end_so(backlot_jobs::RunEnding::Cancelled);
        let ended = host.ended(job.id).await;
        assert_eq!(ended.status(), Status::Failed);
        let host = host.crash().await;
        assert_eq!(due(&host.manager).await, [job.id]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_retry_takes_the_call_back() {
    for host in hosts().await {
        let failed = host.failed_with(called()).await;
        let first = call_of(&failed).delivery;
        let (job, run) = host.retry(failed.id).await;
        assert_eq!((job.call, due(&host.manager).await), (None, vec![]));
        assert_eq!(host.manager.called_for(job.id, &first).await.unwrap(), None);
        assert!(!host.manager.call_made(job.id, &first).await.unwrap());
        run.complete("done");
        let second = call_of(&host.ended(job.id).await);
        assert_ne!(second.delivery, first);
        assert!(!host.manager.call_made(job.id, &first).await.unwrap());
        assert_eq!(due(&host.manager).await, [job.id]);
    }
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_written_leaves_the_call_due() {
    for host in hosts().await {
        let failed = host.failed_with(called()).await;
        let delivery = call_of(&failed).delivery;
        host.store.fail_nth(1, full());
        host.manager.call_made(failed.id, &delivery).await.unwrap_err();
        assert_eq!(due(&host.manager).await, [failed.id]);
        assert!(host.manager.call_made(failed.id, &delivery).await.unwrap());
    }
}

#[tokio::test(start_paused = true)]
async fn a_host_with_a_webhook_is_told_of_what_is_announced_and_names_none() {
    for host in hosts_with(Config { has_webhook: true, ..Config::default() }).await {
        let spawns = [
            (work(), Some(Webhook::Host)),
            (Spawn { announced: false, ..work() }, None),
            (called(), Some(Webhook::Url("https://example.com/told".into()))),
        ];
        for (spawn, webhook) in spawns {
            let (job, run) = host.start_with(spawn).await;
            assert_eq!(job.spec.webhook, webhook);
            run.complete("done");
            assert_eq!(host.ended(job.id).await.call.is_some(), webhook.is_some());
        }
    }
}
