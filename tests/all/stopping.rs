//! Stops: asked for, refused, forced, and always bounded.

use std::time::{Duration, Instant};

use backlot::registry::{KillError, Killed, Status, StopBounds};
use backlot_tests::{Task, TestHost, With};

use crate::SHORT;

async fn faulty(host: &TestHost, input: &str) -> Task {
    let faulty = host.kind("faulty").await;
    let with = With { bounds: Some(SHORT), ..With::default() };
    host.try_task(&faulty, input, with).await.unwrap()
}

#[tokio::test]
async fn a_cooperative_producer_stops_by_itself() {
    let host = TestHost::start();
    let ticker = host.kind("ticker").await;
    let task = host.task(&ticker, r#"{"count":1000,"every_ms":3600000}"#).await;
    assert_eq!(task.kill("enough").await.unwrap(), Killed::Requested);
    let ended = task.end().await;
    assert_eq!(ended.status, Status::Killed);
    assert!(!ended.detail.unwrap_or_default().contains("forced"));
    assert_eq!(task.read().await.text, "line 1\n", "the tail is still there");
}

#[tokio::test]
async fn a_refused_stop_leaves_the_task_untouched_and_names_force() {
    let host = TestHost::start();
    let task = faulty(&host, r#"{"mode":"cancel-errs","times":1}"#).await;
    let error = task.kill("enough").await.unwrap_err();
    assert!(error.to_string().contains("force"), "{error}");
    assert_eq!(task.now().status, Status::Running);
    assert!(!task.now().reported);
    assert_eq!(task.kill("again").await.unwrap(), Killed::Requested);
    assert_eq!(task.end().await.status, Status::Killed);
}

#[tokio::test]
async fn force_ends_a_task_that_refuses_to_stop() {
    let host = TestHost::start();
    let task = faulty(&host, r#"{"mode":"cancel-errs","how":"broken"}"#).await;
    assert!(task.kill("enough").await.is_err());
    assert_eq!(task.force("really").await.unwrap(), Killed::Requested);
    let ended = task.end().await;
    assert_eq!(ended.status, Status::Killed);
    let detail = ended.detail.unwrap();
    assert!(detail.contains("forced") && detail.contains("really"), "{detail}");
}

/// C47: `stopping` lasts at most the grace period.
#[tokio::test]
async fn c47_a_stop_is_bounded_for_a_producer_that_ignores_it() {
    let host = TestHost::start();
    let task = faulty(&host, r#"{"mode":"stubborn","every_ms":10}"#).await;
    task.until("\n").await;
    let asked = Instant::now();
    assert_eq!(task.kill("enough").await.unwrap(), Killed::Requested);
    assert_eq!(task.now().status, Status::Stopping);
    assert_eq!(task.kill("again").await.unwrap(), Killed::Requested, "harmless");
    let ended = task.end().await;
    assert!(asked.elapsed() < Duration::from_secs(5), "{:?}", asked.elapsed());
    assert_eq!(ended.status, Status::Killed);
    let detail = ended.detail.unwrap();
    assert!(detail.contains("forced") && detail.contains("enough"), "{detail}");
    assert_eq!(host.host.engine().instances(), 0, "no guest code runs after");
}

#[tokio::test]
async fn c47_disposing_an_owner_is_bounded_too() {
    let host = TestHost::start();
    let owner = host.owner("a");
    let faulty = host.kind("faulty").await;
    for input in [r#"{"mode":"stubborn"}"#, r#"{"mode":"spin"}"#, r#"{"mode":"cancel-errs"}"#] {
        let with = With { bounds: Some(SHORT), owner: Some(owner.clone()), ..With::default() };
        host.try_task(&faulty, input, with).await.unwrap();
    }
    let since = Instant::now();
    owner.dispose().await;
    assert!(since.elapsed() < Duration::from_secs(5), "{:?}", since.elapsed());
    assert_eq!(host.host.engine().instances(), 0);
}

#[tokio::test]
async fn a_guest_that_can_be_neither_asked_nor_looks_is_dropped_within_the_bound() {
    let host = TestHost::start();
    for input in [
        r#"{"mode":"spin"}"#,
        r#"{"mode":"block","s":600}"#,
        r#"{"mode":"cancel-spin"}"#,
        r#"{"mode":"cancel-slow","ms":60000}"#,
    ] {
        let task = faulty(&host, input).await;
        let asked = Instant::now();
        assert_eq!(task.kill("enough").await.unwrap(), Killed::Requested, "{input}");
        let ended = task.end().await;
        assert!(asked.elapsed() < Duration::from_secs(5), "{input}: {:?}", asked.elapsed());
        assert_eq!(ended.status, Status::Killed, "{input}");
        assert!(ended.detail.clone().unwrap().contains("forced"), "{input}: {ended:?}");
    }
}

#[tokio::test]
async fn a_computing_guest_that_looks_has_been_asked_and_gets_the_grace() {
    let host = TestHost::start();
    let task = faulty(&host, r#"{"mode":"looker"}"#).await;
    assert_eq!(task.kill("enough").await.unwrap(), Killed::Requested);
    let ended = task.end().await;
    assert_eq!(ended.status, Status::Killed);
    assert!(!ended.detail.unwrap_or_default().contains("forced"), "it stopped by itself");

    let task = faulty(&host, r#"{"mode":"late-looker"}"#).await;
    assert_eq!(task.kill("enough").await.unwrap(), Killed::Requested);
    let ended = task.end().await;
    assert_eq!(ended.status, Status::Killed);
    assert!(ended.detail.unwrap().contains("forced"), "it got the grace, and no more");
}

#[tokio::test]
async fn a_guest_that_agrees_and_then_spins_is_dropped_after_the_grace() {
    let host = TestHost::start();
    let task = faulty(&host, r#"{"mode":"stubborn-spin"}"#).await;
    assert_eq!(task.kill("enough").await.unwrap(), Killed::Requested);
    let ended = task.end().await;
    assert_eq!(ended.status, Status::Killed);
    assert!(ended.detail.unwrap().contains("forced"));
}

#[tokio::test]
async fn a_slow_cancel_that_agrees_in_time_counts() {
    let host = TestHost::start();
    let task = faulty(&host, r#"{"mode":"cancel-slow","ms":50}"#).await;
    assert_eq!(task.kill("enough").await.unwrap(), Killed::Requested);
    let ended = task.end().await;
    assert_eq!(ended.status, Status::Killed);
    assert!(!ended.detail.unwrap_or_default().contains("forced"));
}

/// C19 b: the contract rules that the trap ends the task, and the kill is loud.
#[tokio::test]
async fn c19_a_trap_in_cancel_fails_the_kill_and_the_task() {
    let host = TestHost::start();
    let task = faulty(&host, r#"{"mode":"cancel-trap"}"#).await;
    let error = task.kill("enough").await.unwrap_err();
    assert!(!matches!(error, KillError::Unknown(_)), "{error}");
    let ended = task.end().await;
    assert_eq!(ended.status, Status::Failed);
    assert!(ended.detail.unwrap().starts_with("trap in cancel: "));
    assert_eq!(task.force("late").await.unwrap(), Killed::AlreadyTerminal);
}

#[tokio::test]
async fn the_hosts_shutdown_fails_what_it_stops() {
    let host = TestHost::start();
    let ticker = host.kind("ticker").await;
    let task = host.task(&ticker, r#"{"count":1000,"every_ms":3600000}"#).await;
    let (told, heard) = std::sync::mpsc::channel();
    // Disposal closes the listeners first, so the end is seen by a waiter.
    let waiting = tokio::spawn({
        let task = task.clone();
        async move { told.send(task.wait(Duration::from_secs(20)).await) }
    });
    task.until("\n").await;
    host.registry().dispose().await;
    waiting.await.unwrap().unwrap();
    let ended = heard.recv().unwrap();
    assert_eq!(ended.status, Status::Failed);
    assert!(ended.detail.unwrap().contains("host shutdown"));
}

#[tokio::test]
async fn bounds_beyond_any_clock_are_waited_for_like_others() {
    let host = TestHost::start();
    let ticker = host.kind("ticker").await;
    let bounds = Some(StopBounds { ask: Duration::MAX, grace: Duration::MAX });
    let start = async || {
        let with = With { bounds, ..With::default() };
        let input = r#"{"count":1000,"every_ms":3600000}"#;
        host.try_task(&ticker, input, with).await.unwrap()
    };
    let task = start().await;
    assert_eq!(task.kill("enough").await.unwrap(), Killed::Requested);
    assert_eq!(task.end().await.status, Status::Killed);
    let task = start().await;
    assert_eq!(task.force("enough").await.unwrap(), Killed::Requested);
    assert_eq!(task.end().await.status, Status::Killed);
    let _task = start().await;
    tokio::time::timeout(Duration::from_secs(20), host.registry().dispose()).await.unwrap();
}

/// C46 a: a kill that crosses the natural end never changes a terminal state.
#[tokio::test]
async fn c46_a_kill_that_crosses_the_end_leaves_one_terminal_state() {
    let host = TestHost::start();
    let ticker = host.kind("ticker").await;
    for round in 0..200_u64 {
        let task = host.task(&ticker, r#"{"count":2,"every_ms":10}"#).await;
        tokio::time::sleep(Duration::from_millis(5 + round % 11)).await;
        let killed = task.kill("crossing").await.unwrap();
        let first = task.end().await;
        match (killed, first.status) {
            (Killed::AlreadyTerminal, status) => assert_eq!(status, Status::Completed),
            (Killed::Requested, status) => {
                assert!(matches!(status, Status::Killed | Status::Completed), "{status}");
            }
        }
        assert_eq!(task.kill("late").await.unwrap(), Killed::AlreadyTerminal);
        let again = task.now();
        assert_eq!(
            (again.status, again.detail, again.finished_at_ms),
            (first.status, first.detail, first.finished_at_ms)
        );
    }
}
