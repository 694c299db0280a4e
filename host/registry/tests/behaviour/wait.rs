//! R13 and R14: waiting.

use std::{
    future::{pending, ready},
    time::Duration,
};

use backlot_registry::{Outcome, Status, WaitError};
use tokio::time::Instant;

use crate::support::{Host, LONG, OPERATOR, settle_down, until};

#[tokio::test(start_paused = true)]
async fn r13_a_wait_returns_the_end_and_counts_as_told() {
    let host = Host::new();
    let (id, work) = host.start().await;
    let waits = futures::future::join_all((0..5).map(|_| host.wait(&id)));
    let ending = async {
        until(|| host.registry.health().waiters == 5).await;
        work.end(Outcome::completed());
    };
    let (ended, ()) = tokio::join!(waits, ending);
    assert!(ended.iter().all(|task| task.status == Status::Completed && task.reported));
    assert_eq!(host.registry.health().waiters, 0);
    assert_eq!(host.wait(&id).await.status, Status::Completed, "also long after the end");
}

#[tokio::test(start_paused = true)]
async fn r13_at_its_timeout_a_wait_returns_the_live_task() {
    let host = Host::new();
    let (id, _work) = host.start().await;
    let begun = Instant::now();
    let live = host.registry.wait(&id, &OPERATOR, Duration::from_secs(1)).await.unwrap();
    assert_eq!(begun.elapsed(), Duration::from_secs(1));
    assert_eq!((live.status, live.reported), (Status::Running, false));
    assert_eq!(host.registry.health().waiters, 0);
}

#[tokio::test(start_paused = true)]
async fn r13_zero_asks_once_and_the_largest_timeout_is_no_trouble() {
    let host = Host::new();
    let (id, work) = host.start().await;
    let begun = Instant::now();
    let live = host.registry.wait(&id, &OPERATOR, Duration::ZERO).await.unwrap();
    assert_eq!((live.status, begun.elapsed()), (Status::Running, Duration::ZERO));
    let waiting = host.registry.wait(&id, &OPERATOR, Duration::MAX);
    let (ended, ()) = tokio::join!(waiting, async {
        settle_down().await;
        work.end(Outcome::completed());
    });
    assert_eq!(ended.unwrap().status, Status::Completed);
    let ended = host.registry.wait(&id, &OPERATOR, Duration::ZERO).await.unwrap();
    assert!(ended.reported);
}

#[tokio::test(start_paused = true)]
async fn r13_an_outer_deadline_is_not_the_waits_own() {
    let host = Host::new();
    let (id, _work) = host.start().await;
    let outer = tokio::time::timeout(Duration::from_secs(1), host.wait(&id)).await;
    assert!(outer.is_err(), "the wait itself returned nothing");
    assert_eq!(host.registry.health().waiters, 0, "and is detached");
}

#[tokio::test(start_paused = true)]
async fn r13_timeout_and_abort_detach_the_waiter_at_once() {
    let host = Host::new();
    let (id, _work) = host.start().await;
    for _ in 0..100 {
        host.registry.wait(&id, &OPERATOR, Duration::from_millis(1)).await.unwrap();
        host.registry.wait_or_abort(&id, &OPERATOR, LONG, ready(())).await.unwrap_err();
        let mut waiting = Box::pin(host.wait(&id));
        assert!(futures::poll!(&mut waiting).is_pending());
        assert_eq!(host.registry.health().waiters, 1);
    }
    assert_eq!(host.registry.health().waiters, 0);
}

#[tokio::test(start_paused = true)]
async fn r14_an_abort_ends_the_wait_and_not_the_task() {
    let host = Host::new();
    let (id, _work) = host.start().await;
    let abort = tokio::time::sleep(Duration::from_secs(1));
    let error = host.registry.wait_or_abort(&id, &OPERATOR, LONG, abort).await.unwrap_err();
    assert_eq!(error, WaitError::Aborted { id: id.clone() });
    assert_eq!((host.status(&id), host.get(&id).reported), (Status::Running, false));
}

#[tokio::test(start_paused = true)]
async fn r14_an_abort_after_the_end_still_delivers_it() {
    let host = Host::new();
    let (id, work) = host.start().await;
    let (abort, aborted) = tokio::sync::oneshot::channel::<()>();
    let mut waiting = Box::pin(host.registry.wait_or_abort(&id, &OPERATOR, LONG, aborted));
    assert!(futures::poll!(&mut waiting).is_pending());
    work.end(Outcome::completed());
    host.settled(&id).await;
    abort.send(()).unwrap();
    let ended = waiting.await.unwrap();
    assert_eq!((ended.status, ended.reported), (Status::Completed, true));

    let aborted = host.registry.wait_or_abort(&id, &OPERATOR, LONG, ready(())).await;
    assert_eq!(aborted.unwrap().status, Status::Completed, "nor can it be aborted later");
}

#[tokio::test(start_paused = true)]
async fn r14_a_wait_that_is_dropped_after_the_end_leaves_it_to_the_notice() {
    let host = Host::new();
    let notices = host.notices();
    let (id, work) = host.start().await;
    let mut waiting = Box::pin(host.registry.wait_or_abort(&id, &OPERATOR, LONG, pending::<()>()));
    assert!(futures::poll!(&mut waiting).is_pending());
    work.end(Outcome::completed());
    host.settled(&id).await;
    assert_eq!(host.registry.health().terminal, 0, "the end is owed to the waiter");
    drop(waiting);
    let notice = notices.next();
    assert_eq!((notice.snapshot.id, notice.snapshot.reported), (id.clone(), false));
    assert!(!host.get(&id).reported);
    assert_eq!(notices.until_now(&host).await, []);
}

#[tokio::test(start_paused = true)]
async fn c50_aborts_at_the_moment_of_the_end_lose_nothing() {
    let host = Host::new();
    let notices = host.notices();
    for round in 0..200 {
        let (id, work) = host.start().await;
        let abort = async {
            for _ in 0..round % 10 {
                tokio::task::yield_now().await;
            }
        };
        let waiting = host.registry.wait_or_abort(&id, &OPERATOR, LONG, abort);
        let ending = async {
            for _ in 0..round / 10 % 10 {
                tokio::task::yield_now().await;
            }
            work.end(Outcome::completed());
        };
        let (waited, ()) = tokio::join!(waiting, ending);
        host.settled(&id).await;
        let notice = notices.next();
        assert_eq!(notice.snapshot.id, id);
        assert_eq!(notice.snapshot.reported, waited.is_ok(), "delivered or owed, never neither");
    }
}
