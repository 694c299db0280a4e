//! R21: the stop ladder, and that every stop has an end.

use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

use backlot_registry::{
    Agreed, BoxFuture, Config, Control, Environment, Form, Kill, Killed, Kind, Mode, OnDrop,
    Outcome, Producer, Refusal, Request, Run, Start, Status, Step, StopBounds, StopRefusal,
    TaskHost,
};
use tokio::time::Instant;

use crate::support::{Answering, Host, OPERATOR, settle_down};

const LOST: &str = "; output not yet handed over is lost";

#[tokio::test(start_paused = true)]
async fn c47_work_that_ignores_a_stop_is_dropped_after_the_grace() {
    let host = Host::new();
    let (id, work) = host.start().await;
    let begun = Instant::now();
    assert_eq!(host.kill(&id).await, Ok(Killed::Requested));
    assert_eq!(host.status(&id), Status::Stopping);
    let ended = host.wait(&id).await;
    assert_eq!(begun.elapsed(), Duration::from_secs(5));
    assert!(work.is_gone());
    assert_eq!(ended.status, Status::Killed);
    assert_eq!(
        ended.detail.unwrap(),
        format!("forced: did not end within 5s of being asked{LOST}")
    );
}

#[tokio::test(start_paused = true)]
async fn r21_work_that_cannot_be_asked_is_dropped_after_the_first_bound() {
    let host = Host::new();
    let (id, work) = host.start().await;
    work.answer(Answering::Never);
    let begun = Instant::now();
    let reason = Some("late".to_owned());
    let kill = Kill { mode: Mode::Ask, reason };
    assert_eq!(host.registry.kill(&id, &OPERATOR, kill).await, Ok(Killed::Requested));
    assert_eq!(begun.elapsed(), Duration::from_secs(1));
    host.settled(&id).await;
    assert!(work.is_gone());
    assert_eq!(host.status(&id), Status::Killed);
    assert_eq!(
        host.detail(&id),
        format!("forced: could not be asked within 1s; reason: late{LOST}")
    );
}

#[tokio::test(start_paused = true)]
async fn r21_work_that_agrees_to_be_dropped_is_dropped_at_once() {
    let host = Host::new();
    let (id, work) = host.start().await;
    work.answer(Answering::Agree(Agreed::DropNow));
    let begun = Instant::now();
    assert_eq!(host.kill(&id).await, Ok(Killed::Requested));
    host.settled(&id).await;
    assert_eq!(begun.elapsed(), Duration::ZERO);
    assert!(work.is_gone());
    assert_eq!((host.status(&id), host.detail(&id)), (Status::Killed, "stopped".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn r21_a_kind_can_have_bounds_of_its_own() {
    let host = Host::new();
    let bounds = StopBounds { ask: Duration::from_millis(10), grace: Duration::from_millis(200) };
    *host.fake.bounds.lock().unwrap() = Some(bounds);
    let (id, _work) = host.start().await;
    let begun = Instant::now();
    host.kill(&id).await.unwrap();
    host.wait(&id).await;
    assert_eq!(begun.elapsed(), bounds.grace);
    assert!(host.detail(&id).starts_with("forced: did not end within 200ms"));
    let (id, work) = host.start().await;
    work.answer(Answering::Never);
    let begun = Instant::now();
    host.kill(&id).await.unwrap();
    assert_eq!(begun.elapsed(), bounds.ask);
    assert!(
        host.wait(&id).await.detail.unwrap().starts_with("forced: could not be asked within 10ms")
    );
}

#[tokio::test(start_paused = true)]
async fn r21_disposals_keep_to_the_sum_of_the_bounds() {
    let host = Host::new();
    let owner = host.owner("agent", "session");
    let answers = [
        Answering::Never,
        Answering::Agree(Agreed::WindsDown),
        Answering::Refuse(StopRefusal::NotNow("writing".to_owned())),
        Answering::Refuse(StopRefusal::Crashed("trap".to_owned())),
        Answering::Panic,
    ];
    for answer in &answers {
        for owned in [false, true] {
            let (_, work) = if owned { host.start_owned(&owner).await } else { host.start().await };
            work.answer(answer.clone());
        }
    }
    let begun = Instant::now();
    owner.dispose().await;
    assert_eq!(begun.elapsed(), Duration::from_secs(5), "all are stopped at once");
    assert_eq!(host.fake.held(), answers.len());
    let begun = Instant::now();
    host.registry.dispose().await;
    assert_eq!(begun.elapsed(), Duration::from_secs(5));
    assert_eq!(host.fake.held(), 0);
    assert_eq!(host.registry.health().live, 0);
}

#[tokio::test(start_paused = true)]
async fn r21_work_that_blocks_its_thread_stalls_nobody() {
    // A runtime that nobody drives is what a blocked thread looks like from outside.
    let blocked = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let environment = Environment::new(blocked.handle().clone());
    let host = Host::within(Config::default(), environment);
    let owner = host.owner("agent", "session");
    let (asked, _asked) = host.start().await;
    let (forced, _forced) = host.start().await;
    host.start_owned(&owner).await;
    let (shut, _shut) = host.start().await;

    let begun = Instant::now();
    assert_eq!(host.kill(&asked).await, Ok(Killed::Requested));
    assert_eq!(begun.elapsed(), Duration::from_secs(3));
    assert_eq!((host.status(&asked), host.get(&asked).reported), (Status::Killed, true));
    assert_eq!(
        host.detail(&asked),
        format!("forced: could not be dropped within 3s; its work may still be going on{LOST}")
    );
    assert_eq!(host.force(&forced).await, Ok(Killed::Requested));
    assert_eq!(host.status(&forced), Status::Killed);
    let begun = Instant::now();
    owner.dispose().await;
    assert_eq!(begun.elapsed(), Duration::from_secs(8));
    host.registry.dispose().await;
    let ended = host.get(&shut);
    assert_eq!(ended.status, Status::Failed);
    assert!(ended.detail.unwrap().starts_with("host shutdown; forced: could not be dropped"));
    let health = host.registry.health();
    assert_eq!((health.orphans, health.live), (4, 0));

    // Once the thread gets on, the work is dropped, and the end stands.
    assert_eq!(host.fake.held(), 4);
    blocked.shutdown_background();
    assert_eq!(host.fake.held(), 0);
    assert_eq!(host.status(&asked), Status::Killed);
    assert_eq!(host.registry.health().orphans, 4);
}

#[tokio::test(start_paused = true)]
async fn r21_a_runtime_that_goes_away_ends_its_tasks() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let host = Host::within(Config::default(), Environment::new(runtime.handle().clone()));
    let notices = host.notices();
    let (id, work) = host.start().await;
    runtime.shutdown_background();
    assert!(work.is_gone());
    assert_eq!(host.status(&id), Status::Failed);
    assert_eq!(host.detail(&id), format!("host shutdown; dropped with its runtime{LOST}"));
    assert_eq!(notices.next().snapshot.id, id);
    assert_eq!(host.registry.health().live, 0);
}

#[tokio::test(start_paused = true)]
async fn r21_work_that_panics_in_its_drop_ends_all_the_same() {
    let host = Host::new();
    let (id, _work) = host.start().await;
    let bombed = host.registry.start(Arc::new(BombProducer), Start::default()).await.unwrap();
    assert_eq!(host.force(&bombed).await, Ok(Killed::Requested));
    assert_eq!(host.settled(&bombed).await.status, Status::Killed);
    // Its work and its control both panicked.
    assert_eq!(host.registry.health().producer_panics, 2);
    // Everything else works on.
    host.kill(&id).await.unwrap();
    host.start().await;
}

#[tokio::test(start_paused = true)]
async fn r21_what_may_go_on_after_a_drop_is_counted_as_an_orphan() {
    let host = Host::new();
    *host.fake.on_drop.lock().unwrap() = OnDrop::MayOrphan;
    let (id, _work) = host.start().await;
    host.force(&id).await.unwrap();
    host.settled(&id).await;
    assert_eq!(host.registry.health().orphans, 1);
    let (id, work) = host.start().await;
    work.end(Outcome::completed());
    host.settled(&id).await;
    assert_eq!(host.registry.health().orphans, 1, "work that ended is no orphan");
}

#[tokio::test(start_paused = true)]
async fn r21_work_that_ends_within_the_grace_is_not_forced() {
    let host = Host::new();
    let (id, work) = host.start().await;
    host.kill(&id).await.unwrap();
    tokio::time::advance(Duration::from_millis(4_999)).await;
    settle_down().await;
    assert_eq!(host.status(&id), Status::Stopping);
    work.end(Outcome { detail: Some("half".to_owned()), ..Outcome::killed() });
    host.settled(&id).await;
    assert_eq!((host.status(&id), host.detail(&id)), (Status::Killed, "half".to_owned()));
    tokio::time::advance(Duration::from_secs(10)).await;
    settle_down().await;
    assert_eq!(host.detail(&id), "half");
}

/// Starts work that panics when it is dropped.
struct BombProducer;

struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("in drop");
    }
}

impl Control for Bomb {
    fn cancel(&self, _reason: Option<String>) -> BoxFuture<'static, Result<Agreed, StopRefusal>> {
        Box::pin(async { Ok(Agreed::DropNow) })
    }
}

impl Producer for BombProducer {
    fn kind(&self) -> &Kind {
        static KIND: LazyLock<Kind> = LazyLock::new(|| Kind::new("bomb").unwrap());
        &KIND
    }

    fn form(&self) -> Form {
        Form::Final
    }

    fn run(&self, _: Request, _: TaskHost) -> BoxFuture<'_, Result<Run, Refusal>> {
        let bomb = Bomb;
        let done = Box::pin(async move {
            let _bomb = bomb;
            std::future::pending().await
        });
        let run = Run { control: Arc::new(Bomb), done, on_drop: OnDrop::ReleasesAll };
        Box::pin(async move { Ok(run) })
    }
}

/// Work that has told its outcome, and is only letting go of what it held.
struct Told;

impl Control for Told {
    fn cancel(&self, _reason: Option<String>) -> BoxFuture<'static, Result<Agreed, StopRefusal>> {
        Box::pin(std::future::pending())
    }

    fn outcome(&self) -> Option<Outcome> {
        Some(Outcome::completed())
    }
}

struct ToldProducer;

impl Producer for ToldProducer {
    fn kind(&self) -> &Kind {
        static KIND: LazyLock<Kind> = LazyLock::new(|| Kind::new("told").unwrap());
        &KIND
    }

    fn form(&self) -> Form {
        Form::Final
    }

    fn run(&self, _: Request, _: TaskHost) -> BoxFuture<'_, Result<Run, Refusal>> {
        let done = Box::pin(std::future::pending());
        let run = Run { control: Arc::new(Told), done, on_drop: OnDrop::ReleasesAll };
        Box::pin(async move { Ok(run) })
    }
}

#[tokio::test(start_paused = true)]
async fn r21_an_outcome_that_was_told_stands_against_every_rung() {
    let host = Host::new();
    for mode in [Mode::Ask, Mode::Force] {
        let start = Start {
            label: "told".to_owned(),
            input: String::new(),
            owner: None,
            step: Step::default(),
        };
        let id = host.registry.start(Arc::new(ToldProducer), start).await.unwrap();
        let kill = Kill { mode, reason: None };
        assert_eq!(host.registry.kill(&id, &OPERATOR, kill).await, Ok(Killed::Requested));
        let ended = host.registry.wait(&id, &OPERATOR, Duration::from_secs(9)).await.unwrap();
        assert_eq!(ended.status, Status::Completed, "{ended:?}");
    }
}
