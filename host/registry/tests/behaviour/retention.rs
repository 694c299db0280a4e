//! R20: how long ended tasks are kept.

use std::time::Duration;

use backlot_registry::{Config, Outcome, Retention, Status};

use crate::support::{Host, OPERATOR, settle_down};

fn keeping(count: usize, age: Duration) -> Config {
    Config { retention: Retention { count, age }, ..Config::default() }
}

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

#[tokio::test(start_paused = true)]
async fn r20_the_oldest_records_go_when_there_are_too_many() {
    let host = Host::with(keeping(3, DAY));
    let (live, _work) = host.start().await;
    let mut ids = Vec::new();
    for _ in 0..5 {
        let id = host.ended().await;
        host.wait(&id).await;
        ids.push(id);
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    let known: Vec<_> = ids.iter().map(|id| host.is_known(id)).collect();
    assert_eq!(known, [false, false, true, true, true]);
    assert_eq!(host.status(&live), Status::Running, "a live task never goes");
    assert_eq!(host.registry.health().terminal, 3);
    assert_eq!(host.registry.list(&OPERATOR).len(), 4);
    assert_eq!(host.registry.health().untold_dropped, 0);
}

#[tokio::test(start_paused = true)]
async fn r20_an_end_that_nobody_was_told_of_goes_last_and_is_counted() {
    let host = Host::with(keeping(2, DAY));
    let untold = host.ended().await;
    tokio::time::advance(Duration::from_secs(1)).await;
    for _ in 0..4 {
        let told = host.ended().await;
        host.wait(&told).await;
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    assert!(host.is_known(&untold));
    assert_eq!(host.registry.health().untold_dropped, 0);
    for _ in 0..3 {
        host.ended().await;
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    assert!(!host.is_known(&untold));
    assert_eq!(host.registry.health().untold_dropped, 2);
}

#[tokio::test(start_paused = true)]
async fn r20_an_end_that_a_listener_took_is_told() {
    let host = Host::with(keeping(1, DAY));
    let notices = host.notices();
    for _ in 0..5 {
        let id = host.ended().await;
        assert_eq!(notices.next().snapshot.id, id);
    }
    assert_eq!(host.registry.health().untold_dropped, 0);
}

#[tokio::test(start_paused = true)]
async fn r20_records_go_when_they_are_too_old() {
    let host = Host::with(keeping(100, Duration::from_secs(60)));
    let (live, work) = host.start().await;
    let old = host.ended().await;
    tokio::time::advance(Duration::from_secs(59)).await;
    let young = host.ended().await;
    assert!(host.is_known(&old));
    tokio::time::advance(Duration::from_secs(1)).await;
    assert!(!host.is_known(&old), "whoever looks finds it gone, without a timer");
    assert!(host.is_known(&young));
    tokio::time::advance(Duration::from_secs(1_000)).await;
    assert!(!host.is_known(&young));
    assert_eq!(host.status(&live), Status::Running);
    work.end(Outcome::completed());
    host.settled(&live).await;
    tokio::time::advance(Duration::from_secs(61)).await;
    assert_eq!(host.registry.list(&OPERATOR), []);
    assert_eq!(host.registry.health().terminal, 0);
}

#[tokio::test(start_paused = true)]
async fn c68_a_jump_of_the_clock_expires_nothing() {
    let host = Host::with(keeping(100, Duration::from_secs(60)));
    let id = host.ended().await;
    host.clock.set(1_000_000_000_000);
    assert!(host.is_known(&id));
    host.clock.set(0);
    assert!(host.is_known(&id));
    tokio::time::advance(Duration::from_secs(61)).await;
    assert!(!host.is_known(&id));
}

#[tokio::test(start_paused = true)]
async fn c53_what_ended_tasks_wrote_goes_with_them() {
    let host = Host::with(keeping(10, DAY));
    for _ in 0..200 {
        let (id, work) = host.start().await;
        work.write(&"x".repeat(2_000));
        work.end(Outcome::completed());
        host.settled(&id).await;
    }
    settle_down().await;
    assert_eq!(host.registry.health().terminal, 10);
    assert_eq!(host.registry.health().output_memory, 10 * 2_000);
}

#[tokio::test(start_paused = true)]
async fn r20_a_wait_outlives_the_record() {
    let host = Host::with(keeping(0, DAY));
    let (id, work) = host.start().await;
    let waiting = host.wait(&id);
    let (ended, ()) = tokio::join!(waiting, async {
        settle_down().await;
        work.end(Outcome::completed());
    });
    assert_eq!(ended.status, Status::Completed);
    assert!(!host.is_known(&id));
}
