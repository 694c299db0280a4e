//! R20: how long ended tasks are kept.

use std::{sync::Arc, time::Duration};

use backlot_registry::{Config, Environment, Outcome, Refusal, Retention, Start, Status};

use crate::support::{Beginning, Host, OPERATOR, settle_down};

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

/// C52 for what lives in memory: an id that is gone never comes to be another task.
#[tokio::test(start_paused = true)]
async fn c52_an_old_id_is_never_another_tasks() {
    let host = Host::with(keeping(2, DAY));
    let owner = host.owner("agent", "session");
    let (live, _work) = host.start().await;
    let mut old = vec![live];
    for turn in 0..50 {
        let (id, work) = match turn % 2 {
            0 => host.start().await,
            _ => host.start_owned(&owner).await,
        };
        assert!(id.number > old.last().unwrap().number, "{id} comes after {old:?}");
        work.write(&format!("of {id}"));
        work.end(Outcome::completed());
        host.settled(&id).await;
        old.push(id);
    }
    owner.dispose().await;
    let (id, work) = host.start().await;
    work.write("of the last");
    assert!(!old.contains(&id));
    for id in &old[1..] {
        match host.registry.read(id, &OPERATOR, usize::MAX).await {
            Ok(read) => assert_eq!(read.text, format!("of {id}")),
            Err(unknown) => assert_eq!(unknown.id, *id),
        }
    }
    assert!(old[1..].iter().filter(|id| host.is_known(id)).count() <= 2);
    // A start that came to nothing may leave a gap, and never a number twice.
    host.fake.begin(Beginning::Refuse(Refusal::Unavailable("off".to_owned())));
    host.registry.start(host.fake.clone(), Start::default()).await.unwrap_err();
    assert!(host.start().await.0.number > id.number);
}

/// C52 over processes: the next one goes on where the last has ended, so what is
/// known from before is unknown, and not another's.
#[tokio::test(start_paused = true)]
async fn c52_an_id_of_another_process_is_unknown() {
    let first = Host::new();
    let mut before = Vec::new();
    for _ in 0..3 {
        before.push(first.ended().await);
    }
    let next = before.last().unwrap().number + 1;
    let environment = Environment {
        first_number: Arc::new(move |_| next),
        ..Environment::new(tokio::runtime::Handle::current())
    };
    let second = Host::within(Config::default(), environment);
    let (id, work) = second.start().await;
    work.write("of the second process");
    assert!(!before.contains(&id));
    for old in &before {
        assert!(!second.is_known(old));
        assert!(second.registry.read(old, &OPERATOR, 9).await.is_err());
        assert!(second.force(old).await.is_err());
    }
    assert_eq!(second.status(&id), Status::Running);
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
