//! Starts: everything that can fail is over before the work begins.

use std::time::Duration;

use backlot::registry::{Caller, Refusal, StartError, Status};
use backlot_tests::{TestHost, With};

fn refusal(started: Result<backlot_tests::Task, StartError>) -> Refusal {
    match started {
        Err(StartError::Refused { refusal, .. }) => refusal,
        Err(other) => panic!("another error: {other}"),
        Ok(task) => panic!("{} was started", task.id),
    }
}

#[tokio::test]
async fn a_refusal_leaves_nothing_behind() {
    let host = TestHost::start();
    let faulty = host.kind("faulty").await;
    let start = |input: &'static str| host.try_task(&faulty, input, With::default());
    assert!(
        matches!(refusal(start(r#"{"mode":"refuse-input","text":"bad"}"#).await), Refusal::InvalidInput(why) if why == "bad")
    );
    assert!(
        matches!(refusal(start(r#"{"mode":"refuse-unavailable","text":"off"}"#).await), Refusal::Unavailable(why) if why == "off")
    );
    let trapped = refusal(start(r#"{"mode":"run-trap"}"#).await);
    assert!(matches!(&trapped, Refusal::Broken(why) if why.contains("trap in run")), "{trapped}");
    assert!(host.registry().list(&Caller::Operator).is_empty());
    assert_eq!(host.host.engine().instances(), 0);
    assert_eq!(host.host.engine().guest_memory(), 0);
}

#[tokio::test]
async fn input_is_checked_against_the_schema_before_anything_runs() {
    let host = TestHost::start();
    let ticker = host.kind("ticker").await;
    for (input, names) in [
        ("", "JSON"),
        ("{", "JSON"),
        (r#"{"every_ms":1}"#, "count"),
        (r#"{"count":"x","every_ms":1}"#, "count"),
        (r#"{"count":-1,"every_ms":1}"#, "count"),
    ] {
        let why = refusal(host.try_task(&ticker, input, With::default()).await).to_string();
        assert!(why.contains("invalid input") && why.contains(names), "{input}: {why}");
    }
}

#[tokio::test]
async fn a_start_that_does_not_return_is_refused_at_its_deadline() {
    let mut config = backlot::Config::default();
    config.registry.start_deadline = Duration::from_millis(200);
    let host = TestHost::with(config);
    let faulty = host.kind("faulty").await;
    for input in [r#"{"mode":"run-spin"}"#, r#"{"mode":"run-block","s":600}"#] {
        let Err(error) = host.try_task(&faulty, input, With::default()).await else {
            panic!("{input} was started")
        };
        assert!(matches!(error, StartError::Deadline { .. }), "{error}");
    }
    assert!(host.registry().list(&Caller::Operator).is_empty());
    // The instance goes with the turn of the guest that was under way.
    let gone = async {
        while host.host.engine().instances() > 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(5), gone).await.expect("no instance is left");
}

/// C49: what ends at once is not left running.
#[tokio::test]
async fn c49_a_task_that_ends_at_once_does_not_stay_running() {
    let host = TestHost::start();
    let noop = host.kind("noop").await;
    for _ in 0..1_000 {
        let task = host.task(&noop, "").await;
        let listed = host.registry().get(&task.id, &Caller::Anyone).unwrap();
        assert_eq!(listed.id, task.id, "it is known as soon as it has an id");
        let ended = task.wait(Duration::from_secs(1)).await;
        assert_eq!(ended.status, Status::Completed);
        assert!(ended.finished_at_ms.unwrap() >= ended.started_at_ms);
    }
    let mut parallel = tokio::task::JoinSet::new();
    for _ in 0..100 {
        let producer =
            noop.producer(backlot::wasm::OpenGrant::none(), backlot::wasm::Limits::default());
        let registry = host.registry().clone();
        parallel.spawn(async move {
            let start = backlot::registry::Start {
                label: "now".to_owned(),
                input: String::new(),
                owner: None,
                step: backlot::registry::Step::default(),
            };
            let id = registry.start(std::sync::Arc::new(producer), start).await.unwrap();
            registry.wait(&id, &Caller::Operator, Duration::from_secs(1)).await.unwrap()
        });
    }
    while let Some(ended) = parallel.join_next().await {
        assert_eq!(ended.unwrap().status, Status::Completed);
    }
    assert_eq!(host.host.engine().instances(), 0);
}

/// C49: one that cannot be instantiated leaves no record.
#[tokio::test]
async fn c49_a_component_that_cannot_be_instantiated_leaves_no_record() {
    let host = TestHost::start();
    let wat = r#"(component
        (core module $m (func $start unreachable) (start $start)
            (func (export "run") (result i32) i32.const 0))
        (core instance $i (instantiate $m))
        (func $run (result (result)) (canon lift (core func $i "run")))
        (instance $e (export "run" (func $run)))
        (export "wasi:cli/run@0.2.0" (instance $e)))"#;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("traps.wasm");
    std::fs::write(&path, wat::parse_str(wat).unwrap()).unwrap();
    let component = host.host.load_file(&path).await.unwrap();
    let why = refusal(host.try_task(&component, "", With::default()).await).to_string();
    assert!(why.contains("cannot be instantiated") && why.contains("unreachable"), "{why}");
    assert!(host.registry().list(&Caller::Operator).is_empty());
    assert_eq!(host.host.engine().instances(), 0);
}
