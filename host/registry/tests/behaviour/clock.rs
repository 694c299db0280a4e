//! C68: the clock of the system can jump; every duration is measured on another.

use std::time::Duration;

use backlot_registry::{Config, Killed, Outcome, Retention, StartError, Status};
use tokio::time::{Instant, sleep};

use crate::support::{Beginning, Host, OPERATOR};

const NOON: u64 = 1_000_000_000_000;
const HOUR: u64 = 60 * 60 * 1_000;

/// Runs the story with a clock that goes an hour forth, and with one that goes back.
/// The clock jumps two seconds after the beginning.
async fn with_jumps<F: Future<Output = ()>>(config: &Config, story: impl Fn(Host) -> F) {
    for then in [NOON + HOUR, NOON - HOUR, 0, u64::MAX] {
        let host = Host::with(config.clone());
        host.clock.set(NOON);
        let clock = host.clock.clone();
        tokio::join!(story(host), async move {
            sleep(Duration::from_secs(2)).await;
            clock.set(then);
        });
    }
}

#[tokio::test(start_paused = true)]
async fn c68_a_jump_of_the_clock_makes_no_wait_longer_or_shorter() {
    with_jumps(&Config::default(), async |host| {
        let (id, _work) = host.start().await;
        let begun = Instant::now();
        let live = host.registry.wait(&id, &OPERATOR, Duration::from_secs(5)).await.unwrap();
        assert_eq!((live.status, begun.elapsed()), (Status::Running, Duration::from_secs(5)));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn c68_a_jump_of_the_clock_makes_no_grace_longer_or_shorter() {
    with_jumps(&Config::default(), async |host| {
        let (id, work) = host.start().await;
        let begun = Instant::now();
        assert_eq!(host.kill(&id).await, Ok(Killed::Requested));
        let ended = host.wait(&id).await;
        assert_eq!((ended.status, begun.elapsed()), (Status::Killed, Duration::from_secs(5)));
        assert!(work.is_gone());
        assert!(ended.finished_at_ms.unwrap() >= ended.started_at_ms);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn c68_a_jump_of_the_clock_moves_no_deadline_of_a_start() {
    with_jumps(&Config::default(), async |host| {
        host.fake.begin(Beginning::Never);
        let begun = Instant::now();
        let late = host.registry.start(host.fake.clone(), Default::default()).await;
        assert!(matches!(late, Err(StartError::Deadline { .. })), "{late:?}");
        assert_eq!(begun.elapsed(), Duration::from_secs(5));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn c68_a_jump_of_the_clock_expires_no_record_and_keeps_none() {
    let retention = Retention { count: 100, age: Duration::from_secs(60) };
    with_jumps(&Config { retention, ..Config::default() }, async |host| {
        let mut ids = Vec::new();
        for _ in 0..5 {
            ids.push(host.ended().await);
        }
        sleep(Duration::from_secs(59)).await;
        assert!(ids.iter().all(|id| host.is_known(id)), "it expires nothing in bulk");
        sleep(Duration::from_secs(2)).await;
        assert!(!ids.iter().any(|id| host.is_known(id)), "and keeps nothing for ever");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn c68_a_jump_of_the_clock_leaves_running_work_alone() {
    with_jumps(&Config::default(), async |host| {
        let (id, work) = host.start().await;
        sleep(Duration::from_secs(3)).await;
        let live = host.get(&id);
        assert_eq!((live.status, live.started_at_ms), (Status::Running, NOON));
        work.write("after the jump");
        work.end(Outcome::completed());
        let ended = host.wait(&id).await;
        assert_eq!(ended.status, Status::Completed);
        // No span of time is ever shown as negative.
        assert!(ended.finished_at_ms.unwrap() >= ended.started_at_ms, "{ended:?}");
        assert_eq!(host.read(&id).await, "after the jump");
        let later = host.ended().await;
        let order: Vec<_> = host.registry.list(&OPERATOR).into_iter().map(|it| it.id).collect();
        assert_eq!(order, [id, later], "the order is that of the starts");
    })
    .await;
}
