//! Endings: told honestly, told once.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use backlot::registry::{Caller, ListenerGuard, Status, TaskId};
use backlot_tests::{Task, TestHost};
use tokio::sync::watch;

#[tokio::test]
async fn a_producers_own_words_are_the_detail() {
    let host = TestHost::start();
    let faulty = host.kind("faulty").await;
    let ended = host.task(&faulty, r#"{"mode":"fail","detail":"no luck"}"#).await.end().await;
    assert_eq!((ended.status, ended.detail.as_deref()), (Status::Failed, Some("no luck")));
}

#[tokio::test]
async fn killed_that_nobody_asked_for_is_failed() {
    let host = TestHost::start();
    let faulty = host.kind("faulty").await;
    let ended = host.task(&faulty, r#"{"mode":"killed-unasked"}"#).await.end().await;
    assert_eq!(ended.status, Status::Failed);
}

#[tokio::test]
async fn every_trap_names_the_call_that_was_in_flight() {
    let host = TestHost::start();
    let faulty = host.kind("faulty").await;
    let task = host.task(&faulty, r#"{"mode":"trap","ms":50}"#).await;
    let ended = task.end().await;
    assert!(ended.detail.unwrap().starts_with("trap in done: "));
    assert_eq!(task.read().await.text.lines().count(), 3, "what was drained is kept");
    let task = host.task(&faulty, r#"{"mode":"read-trap"}"#).await;
    let _ = task.read().await;
    let ended = task.end().await;
    assert_eq!(ended.status, Status::Failed);
    assert!(ended.detail.unwrap().starts_with("trap in read-output: "));
}

/// C19 a: an outcome that has reached the host stands.
#[tokio::test]
async fn c19_an_outcome_that_reached_the_host_stands() {
    let host = TestHost::start();
    let faulty = host.kind("faulty").await;
    for input in [r#"{"mode":"read-trap","after_done":true}"#, r#"{"mode":"return-then-trap"}"#] {
        let ended = host.task(&faulty, input).await.end().await;
        assert_eq!(ended.status, Status::Completed, "{input}: {ended:?}");
    }
}

#[tokio::test]
async fn a_guest_that_goes_on_after_its_outcome_is_let_go() {
    let host = TestHost::start();
    let faulty = host.kind("faulty").await;
    for input in [r#"{"mode":"return-then-spin"}"#, r#"{"mode":"return-then-sleep","s":600}"#] {
        let ended = host.task(&faulty, input).await.wait(Duration::from_secs(10)).await;
        assert_eq!(ended.status, Status::Completed, "{input}: {ended:?}");
    }
    assert_eq!(host.host.engine().instances(), 0);
}

#[tokio::test]
async fn an_output_in_the_outcome_of_a_stream_kind_is_appended_once() {
    let host = TestHost::start();
    let faulty = host.kind("faulty").await;
    let task = host.task(&faulty, r#"{"mode":"final-output","bytes":10}"#).await;
    assert_eq!(task.output().await.len(), 10);
    assert_eq!(task.read().await.text, "");
}

/// What a listener has heard: whose end, and whether somebody had it already.
struct Told {
    notices: watch::Receiver<Vec<(TaskId, bool)>>,
    _guard: ListenerGuard,
}

impl Told {
    fn listen(host: &TestHost) -> Self {
        let (heard, notices) = watch::channel(Vec::new());
        let guard = host.registry().on_task_done("test", move |notice| {
            let snapshot = &notice.snapshot;
            heard.send_modify(|told| told.push((snapshot.id.clone(), snapshot.reported)));
            Ok(())
        });
        Self { notices, _guard: guard }
    }

    /// Waits until the end of each of these was told.
    async fn all(&mut self, ids: &[TaskId]) {
        let told = self
            .notices
            .wait_for(|told| ids.iter().all(|wanted| told.iter().any(|(id, _)| id == wanted)));
        let told = tokio::time::timeout(Duration::from_secs(20), told).await;
        assert!(told.is_ok_and(|told| told.is_ok()), "an end was not told in 20 s");
    }

    /// Returns all that was told until the end of a task which ends now. A
    /// listener hears in order, so what comes twice has come by then.
    async fn until_now(&mut self, host: &TestHost) -> Vec<(TaskId, bool)> {
        let noop = host.kind("noop").await;
        let last = host.task(&noop, "").await.id;
        self.all(std::slice::from_ref(&last)).await;
        let told = self.notices.borrow().clone();
        told.into_iter().filter(|(id, _)| *id != last).collect()
    }
}

fn ids(tasks: &[Task]) -> Vec<TaskId> {
    tasks.iter().map(|task| task.id.clone()).collect()
}

/// C42: the end of a task is told once, and as news only to who has not heard it.
#[tokio::test]
async fn c42_the_end_of_a_task_is_told_once() {
    let host = TestHost::start();
    let mut told = Told::listen(&host);
    let ticker = host.kind("ticker").await;
    let short = r#"{"count":2,"every_ms":20}"#;

    let mut waited = Vec::new();
    let mut waits = tokio::task::JoinSet::new();
    for _ in 0..6 {
        let task = host.task(&ticker, r#"{"count":2,"every_ms":500}"#).await;
        waits.spawn({
            let task = task.clone();
            async move { task.end().await }
        });
        waited.push(task);
    }
    while let Some(ended) = waits.join_next().await {
        assert!(ended.unwrap().reported);
    }
    let mut looked_at = Vec::new();
    for _ in 0..6 {
        looked_at.push(host.task(&ticker, short).await);
    }
    told.all(&ids(&looked_at)).await;
    for task in &looked_at {
        assert!(task.now().status.is_terminal());
        assert!(host.registry().list(&Caller::Operator).iter().any(|other| other.id == task.id));
        assert!(!task.now().reported, "looking is not hearing");
    }
    let mut killed = Vec::new();
    for round in 0..6 {
        let task = host.task(&ticker, short).await;
        tokio::time::sleep(Duration::from_millis(17 + round)).await;
        task.kill("crossing").await.unwrap();
        task.end().await;
        killed.push(task);
    }
    let heard = told.until_now(&host).await;
    for (tasks, reported) in [(&waited, true), (&looked_at, false)] {
        for task in tasks {
            let notices: Vec<_> = heard.iter().filter(|(id, _)| *id == task.id).collect();
            assert_eq!(notices, [&(task.id.clone(), reported)]);
        }
    }
    for task in &killed {
        assert_eq!(heard.iter().filter(|(id, _)| *id == task.id).count(), 1, "{}", task.id);
    }
}

/// C56: a listener that fails, panics or blocks harms nobody else.
#[tokio::test]
async fn c56_a_failing_listener_harms_nobody_else() {
    let host = TestHost::start();
    let mut first = Told::listen(&host);
    let release = Arc::new((Mutex::new(false), std::sync::Condvar::new()));
    let held = Arc::clone(&release);
    let _errs = host.registry().on_task_done("errs", |_| Err("as the test asked".into()));
    let _panics = host.registry().on_task_done("panics", |_| panic!("as the test asked"));
    let _blocks = host.registry().on_task_done("blocks", move |_| {
        let mut open = held.0.lock().unwrap();
        while !*open {
            open = held.1.wait(open).unwrap();
        }
        Ok(())
    });
    let mut third = Told::listen(&host);
    let noop = host.kind("noop").await;
    let mut tasks = Vec::new();
    for _ in 0..5 {
        tasks.push(host.task(&noop, "").await);
    }
    for told in [&mut first, &mut third] {
        told.all(&ids(&tasks)).await;
        let heard = told.until_now(&host).await;
        assert_eq!(heard.iter().filter(|(id, _)| ids(&tasks).contains(id)).count(), 5);
    }
    for task in &tasks {
        assert_eq!(task.now().status, Status::Completed);
    }
    assert!(host.registry().health().listener_failures >= 10);
    *release.0.lock().unwrap() = true;
    release.1.notify_all();
}

/// C55: a panic in one path leaves everything else working.
#[tokio::test]
async fn c55_one_panic_does_not_brick_the_registry() {
    let host = TestHost::start();
    let _panics = host.registry().on_task_done("panics", |_| panic!("as the test asked"));
    let noop = host.kind("noop").await;
    let before = host.task(&noop, "").await;
    before.end().await;
    let absurd = backlot::registry::Start {
        label: "\n".repeat(1 << 20),
        input: String::new(),
        owner: None,
        step: backlot::registry::Step::default(),
    };
    let producer =
        noop.producer(backlot::wasm::OpenGrant::none(), backlot::wasm::Limits::default());
    assert!(host.registry().start(Arc::new(producer), absurd).await.is_err());
    let ticker = host.kind("ticker").await;
    let task = host.task(&ticker, r#"{"count":2,"every_ms":10}"#).await;
    assert_eq!(task.wait(Duration::MAX).await.status, Status::Completed);
    assert_eq!(host.registry().list(&Caller::Operator).len(), 2);
    assert_eq!(task.read().await.text, "line 1\nline 2\n");
    task.kill("late").await.unwrap();
}

/// C50: a wait is neither early nor endless.
#[tokio::test]
async fn c50_a_wait_is_neither_early_nor_endless() {
    let host = TestHost::start();
    let faulty = host.kind("faulty").await;
    let since = std::time::Instant::now();
    let task = host.task(&faulty, r#"{"mode":"sleep","s":3}"#).await;
    let ten = Duration::from_secs(10);
    let (a, b, c, d, e) = tokio::join!(
        task.wait(ten),
        task.wait(ten),
        task.wait(ten),
        task.wait(ten),
        task.wait(ten)
    );
    let took = since.elapsed();
    for ended in [a, b, c, d, e] {
        assert_eq!(ended.status, Status::Completed);
    }
    assert!((2_900..4_500).contains(&took.as_millis()), "{took:?}");
    assert!(task.wait(ten).await.status.is_terminal(), "at once when it has ended");

    let task = host.task(&faulty, r#"{"mode":"sleep","s":60}"#).await;
    let since = std::time::Instant::now();
    assert_eq!(task.wait(Duration::from_secs(1)).await.status, Status::Running);
    assert!((1_000..1_200).contains(&since.elapsed().as_millis()), "{:?}", since.elapsed());
    task.kill("enough").await.unwrap();
    let unknown: TaskId = "faulty-99".parse().unwrap();
    assert!(host.registry().wait(&unknown, &Caller::Operator, ten).await.is_err());
}

#[tokio::test]
async fn c50_an_aborted_wait_never_loses_the_end() {
    let host = TestHost::start();
    let mut told = Told::listen(&host);
    let ticker = host.kind("ticker").await;
    let mut owed = Vec::new();
    for round in 0..200_u64 {
        let task = host.task(&ticker, r#"{"count":2,"every_ms":4}"#).await;
        let abort = tokio::time::sleep(Duration::from_micros(3_000 + 15 * round));
        let ten = Duration::from_secs(10);
        let waited = host.registry().wait_or_abort(&task.id, &Caller::Operator, ten, abort).await;
        if waited.is_err() {
            owed.push(task.id.clone());
        }
    }
    // Neither delivered nor told would never come.
    told.all(&owed).await;
    assert_eq!(host.registry().health().waiters, 0);
}
