//! Capacity: how many tasks a host holds, in both profiles, and what happens when
//! there is no more room.

use std::fs;

use backlot::{
    Config,
    registry::{Caller, Status},
    wasm::{Bound, Limits, Profile},
};
use backlot_tests::{Memory, TestHost, With, arguments};

const FOR_HOURS: &str = r#"{"count":2,"every_ms":3600000}"#;

fn dense() -> TestHost {
    TestHost::with(Config { profile: Profile::Dense, ..Config::default() })
}

fn mappings() -> usize {
    fs::read_to_string("/proc/self/maps").unwrap().lines().count()
}

#[tokio::test]
async fn a_dense_host_does_what_a_fast_one_does() {
    let host = dense();
    assert_eq!(host.host.engine().profile(), Profile::Dense);
    let faulty = host.kind("faulty").await;
    let probe = host.program("probe").await;

    let ticker = host.task(&host.kind("ticker").await, r#"{"count":3,"every_ms":1}"#).await;
    assert_eq!(ticker.output().await.lines().count(), 3);

    // A memory that grows is moved, and keeps what it held.
    let limits = Limits { memory: 64 << 20, ..Limits::default() };
    let with = || With { limits, ..With::default() };
    let grown = host.try_task(&faulty, r#"{"mode":"grow"}"#, with()).await.unwrap().end().await;
    assert!(grown.detail.unwrap().contains("memory limit of 64 MiB"));
    assert!((48 << 20..=64 << 20).contains(&grown.usage.unwrap().peak_memory));
    let read = host.task(&faulty, r#"{"mode":"flood","bytes":8388608}"#).await.end().await;
    assert_eq!(read.status, Status::Completed);

    // Bounds are checked without guards, and so is the depth of the stack.
    let deep = host.task(&faulty, r#"{"mode":"recurse"}"#).await.end().await;
    assert!(deep.detail.unwrap().contains("call stack exhausted"));
    let deep = host.task(&faulty, r#"{"mode":"recurse","calls_host":true}"#).await.end().await;
    assert!(deep.detail.unwrap().contains("call stack exhausted"));

    // What computes is stopped, what sleeps is dropped.
    let spinning = host.task(&faulty, r#"{"mode":"stubborn-spin"}"#).await;
    spinning.force("enough").await.unwrap();
    assert_eq!(spinning.end().await.status, Status::Killed);
    let asleep = host.task(&probe, &arguments(&["sleep", "600"])).await;
    asleep.kill("enough").await.unwrap();
    assert_eq!(asleep.end().await.status, Status::Killed);
    assert_eq!(host.host.engine().instances(), 0);
}

#[tokio::test]
async fn a_parked_task_takes_no_more_mappings_than_are_reckoned_with() {
    const TASKS: usize = 400;
    // Of the seven that are reckoned with in the pool, its stacks are there before.
    for (profile, each) in [(Profile::Fast, 4), (Profile::Dense, 3)] {
        let instances = Some(u32::try_from(2 * TASKS).unwrap());
        let host = TestHost::with(Config { profile, instances, ..Config::default() });
        let ticker = host.kind("ticker").await;
        // Slots and stacks that were used before are used again.
        for _ in 0..2 {
            let mut tasks = Vec::new();
            let mut counts = [0; 2];
            for count in &mut counts {
                for _ in 0..TASKS {
                    tasks.push(host.task(&ticker, FOR_HOURS).await);
                }
                *count = mappings();
            }
            let [some, twice] = counts;
            let taken = twice.saturating_sub(some);
            // A thread or an arena that comes up meanwhile has some as well.
            assert!(taken <= each * TASKS + 40, "{profile}: {taken} mappings for {TASKS} tasks");
            for task in tasks {
                task.force("enough").await.unwrap();
                task.end().await;
            }
        }
    }
}

#[tokio::test]
async fn a_host_at_its_capacity_says_what_bounds_it() {
    for profile in Profile::ALL {
        let config = Config { profile, instances: Some(2), ..Config::default() };
        let host = TestHost::with(config);
        assert_eq!(host.host.engine().capacity().tasks, 2);
        assert_eq!(host.host.engine().capacity().bound, Bound::Instances);
        let ticker = host.kind("ticker").await;
        let first = host.task(&ticker, FOR_HOURS).await;
        let _second = host.task(&ticker, FOR_HOURS).await;
        let full = host.try_task(&ticker, FOR_HOURS, With::default()).await;
        let Err(why) = full.map(|task| task.id) else { panic!("a third was started") };
        let why = why.to_string();
        assert!(why.contains("holds 2 live tasks") && why.contains("`instances`"), "{why}");
        // A kind can be loaded nevertheless, and room that was made is used.
        host.kind("noop").await;
        first.kill("room").await.unwrap();
        first.end().await;
        host.task(&ticker, FOR_HOURS).await;
    }
}

#[tokio::test]
async fn a_host_asked_for_more_than_the_machine_holds_takes_what_it_does() {
    let host = TestHost::with(Config { instances: Some(u32::MAX), ..Config::default() });
    let capacity = host.host.engine().capacity();
    assert!(capacity.tasks < 1_000_000, "{capacity:?}");
    assert_ne!(capacity.bound, Bound::Instances);
}

#[tokio::test]
async fn guests_may_declare_more_memory_than_there_is_and_not_hold_it() {
    // More than this process holds, and less than what the tasks declare.
    let some = Memory::now() + (128 << 20);
    let config = Config {
        profile: Profile::Dense,
        guest_memory: Some(some),
        instances: Some(2_000),
        ..Config::default()
    };
    let host = TestHost::with(config);
    let ticker = host.kind("ticker").await;
    let mut parked = Vec::new();
    while host.host.engine().guest_memory() <= some + (64 << 20) {
        parked.push(host.task(&ticker, FOR_HOURS).await);
    }
    // What wants to hold it as well is told, and harms nobody else.
    let faulty = host.kind("faulty").await;
    let limits = Limits { memory: 1 << 30, ..Limits::default() };
    let with = With { limits, ..With::default() };
    let greedy = host.try_task(&faulty, r#"{"mode":"grow"}"#, with).await.unwrap().end().await;
    assert_eq!(greedy.status, Status::Failed);
    let detail = greedy.detail.unwrap();
    assert!(detail.contains("for the memory of all guests"), "{detail}");
    assert!(Memory::now() < some + (64 << 20));
    for task in parked {
        assert_eq!(task.now().status, Status::Running);
    }
}

#[tokio::test]
async fn a_limit_that_no_engine_can_give_is_refused_by_name() {
    let host = TestHost::start();
    let noop = host.kind("noop").await;
    let limits = Limits { memory: 8 << 30, ..Limits::default() };
    let refused = host.try_task(&noop, "", With { limits, ..With::default() }).await;
    let Err(why) = refused.map(|task| task.id) else { panic!("it was started") };
    let why = why.to_string();
    assert!(why.contains("memory limit of 8 GiB") && why.contains("4 GiB"), "{why}");
    assert!(host.registry().list(&Caller::Operator).is_empty());
}

/// What ended guests have touched is kept in their slots to a small part only: a
/// host that has held many is not the heavier for it.
#[tokio::test]
async fn a_crowd_of_guests_leaves_little_behind() {
    const TASKS: u64 = 100;
    let instances = Some(u32::try_from(TASKS).unwrap());
    let host = TestHost::with(Config { instances, ..Config::default() });
    let probe = host.program("probe").await;
    let before = Memory::now();
    let mut tasks = Vec::new();
    for _ in 0..TASKS {
        tasks.push(host.task(&probe, &arguments(&["hold", "4"])).await);
    }
    for task in &tasks {
        task.until("held").await;
    }
    assert!(Memory::now() > before + TASKS * (4 << 20), "they hold what they say");
    for task in tasks {
        task.force("enough").await.unwrap();
        task.end().await;
    }
    let left = Memory::now().saturating_sub(before);
    assert!(left < TASKS * (512 << 10), "{} MiB are left", left >> 20);
}
