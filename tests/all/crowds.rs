//! Crowds: thousands of tasks at once, many of them faulty, and what is left of them.

use std::{
    collections::HashMap,
    fs,
    sync::{Arc, Mutex},
    time::Duration,
};

use backlot::{
    registry::{Caller, Refusal, Snapshot, StartError, Status, TaskId},
    wasm::{Component, Grant, Limits},
};
use backlot_tests::{TestHost, With, arguments};
use tokio::{
    sync::{Semaphore, watch},
    task::JoinSet,
};

const TASKS: usize = 10_000;
/// How many of them live at a time.
const ALIVE: usize = 1_000;

/// One way in which a task of the crowd goes, and how that has to end.
struct Way {
    component: Component,
    input: String,
    limits: Limits,
    ends: fn(&Snapshot) -> bool,
}

fn detail(ended: &Snapshot) -> &str {
    ended.detail.as_deref().unwrap_or_default()
}

/// The ways of the crowd: two good ones for each that is faulty.
async fn ways(host: &TestHost) -> (Vec<Way>, Vec<Way>) {
    let faulty = host.kind("faulty").await;
    let ticker = host.kind("ticker").await;
    let noop = host.kind("noop").await;
    let probe = host.program("probe").await;
    let way = |component: &Component, input: &str, ends| Way {
        component: component.clone(),
        input: input.to_owned(),
        limits: Limits::default(),
        ends,
    };
    let good = vec![
        way(&noop, "", |ended| ended.status == Status::Completed),
        way(&ticker, r#"{"count":3,"every_ms":5}"#, |ended| {
            ended.status == Status::Completed && ended.output_bytes == 21
        }),
        way(&probe, &arguments(&["both", "2"]), |ended| {
            ended.status == Status::Completed && ended.output_bytes == 24
        }),
    ];
    let mut bad = vec![
        way(&faulty, r#"{"mode":"trap","ms":1}"#, |ended| {
            ended.status == Status::Failed && detail(ended).starts_with("trap in done: ")
        }),
        way(&faulty, r#"{"mode":"panic"}"#, |ended| {
            ended.status == Status::Failed && detail(ended).starts_with("trap in done: ")
        }),
        way(&faulty, r#"{"mode":"spin"}"#, |ended| {
            ended.status == Status::Failed && detail(ended).starts_with("CPU time limit of 5ms")
        }),
        // It is never started, so it never ends.
        way(&faulty, r#"{"mode":"refuse-input","text":"no"}"#, |_| false),
        way(&faulty, r#"{"mode":"grow"}"#, |ended| {
            ended.status == Status::Failed && detail(ended).contains("memory limit of 4 MiB")
        }),
        way(&faulty, r#"{"mode":"flood","bytes":100000,"stop_at":"trap"}"#, |ended| {
            ended.status == Status::Failed
                && detail(ended).starts_with("trap in done: ")
                && ended.output_bytes == 100_000
        }),
    ];
    bad[2].limits.cpu = Some(Duration::from_millis(5));
    bad[4].limits.memory = 4 << 20;
    (good, bad)
}

/// A third of them trap, panic, spin, refuse, grow or flood. Each gets the one ending
/// that is right for it, the others complete, and nothing is left.
#[tokio::test]
async fn ten_thousand_tasks_of_which_a_third_are_faulty_all_end_as_they_should() {
    let mut config = backlot::Config::default();
    // All of them can be looked at in the end.
    config.registry.retention.count = TASKS;
    config.registry.notice_queue = TASKS;
    let host = Arc::new(TestHost::with(config));
    let told = Arc::new(Mutex::new(HashMap::<TaskId, u32>::new()));
    let (count, mut counted) = watch::channel(0);
    let _listener = host.registry().on_task_done("test", {
        let told = Arc::clone(&told);
        move |notice| {
            *told.lock().unwrap().entry(notice.snapshot.id.clone()).or_default() += 1;
            count.send_modify(|count| *count += 1);
            Ok(())
        }
    });
    let (good, bad) = ways(&host).await;
    let (good, bad) = (Arc::new(good), Arc::new(bad));
    let places = Arc::new(Semaphore::new(ALIVE));
    let mut crowd = JoinSet::new();
    for nth in 0..TASKS {
        let place = Arc::clone(&places).acquire_owned().await.unwrap();
        let (host, good, bad) = (Arc::clone(&host), Arc::clone(&good), Arc::clone(&bad));
        crowd.spawn(async move {
            let way = match nth % 3 {
                0 => &bad[nth / 3 % bad.len()],
                _ => &good[nth % good.len()],
            };
            let with = With { limits: way.limits, ..With::default() };
            let ended = match host.try_task(&way.component, &way.input, with).await {
                Ok(task) => Some(task.wait(Duration::from_secs(100)).await),
                Err(StartError::Refused { refusal: Refusal::InvalidInput(why), .. }) => {
                    assert_eq!(why, "no");
                    None
                }
                Err(other) => panic!("{}: {other}", way.input),
            };
            drop(place);
            match ended {
                Some(ended) => assert!((way.ends)(&ended), "{}: {ended:?}", way.input),
                None => assert!(way.input.contains("refuse")),
            }
        });
    }
    while let Some(ended) = crowd.join_next().await {
        ended.unwrap();
    }
    let refused = (0..TASKS).filter(|nth| nth % 3 == 0 && nth / 3 % bad.len() == 3).count();
    let all = counted.wait_for(|count| *count >= TASKS - refused);
    tokio::time::timeout(Duration::from_secs(20), all).await.unwrap().unwrap();
    let told = told.lock().unwrap();
    assert_eq!(told.len(), TASKS - refused);
    assert!(told.values().all(|times| *times == 1), "each end is told once");
    let listed = host.registry().list(&Caller::Operator);
    assert_eq!(listed.len(), TASKS - refused);
    assert!(listed.iter().all(|task| task.status.is_terminal() && told.contains_key(&task.id)));
    let health = host.registry().health();
    assert_eq!((health.live, health.missed_notices, health.producer_panics), (0, 0, 0));
    assert_eq!((host.host.engine().instances(), host.host.engine().guest_memory()), (0, 0));
}

/// Opening a FIFO blocks a thread until the other end is opened, and killing the
/// task would not free it. There are fewer threads than these tasks.
#[tokio::test]
async fn six_hundred_tasks_that_open_a_fifo_hold_nobody_up() {
    let granted = tempfile::tempdir().unwrap();
    // One for those that read and one for those that write, or they would free each other.
    for name in ["read", "written"] {
        let made = std::process::Command::new("mkfifo").arg(granted.path().join(name)).status();
        assert!(made.unwrap().success());
    }
    let file = granted.path().join("file");
    fs::write(&file, "content").unwrap();
    let host = TestHost::start();
    let probe = host.program("probe").await;
    let faulty = host.kind("faulty").await;
    let with = || {
        let dir = format!("{}::/g:rw", granted.path().display()).parse().unwrap();
        With { grant: Grant { dirs: vec![dir], ..Grant::default() }, ..With::default() }
    };
    // Another task's read, and the disk work of the host on either runtime.
    let nobody_is_held_up = async || {
        let reads = async {
            let args = arguments(&["paths", "/g/file"]);
            let task = host.try_task(&probe, &args, with()).await.unwrap();
            assert_eq!(task.output().await, "read /g/file: 7 bytes\n");
            assert_eq!(tokio::fs::read(&file).await.unwrap(), b"content");
            let file = file.clone();
            let on_theirs = host.host.runtime().spawn_blocking(move || fs::read(file));
            assert_eq!(on_theirs.await.unwrap().unwrap(), b"content");
        };
        let second = Duration::from_secs(1);
        assert!(tokio::time::timeout(second, reads).await.is_ok(), "it took over a second");
    };
    let tries =
        |op: &str| format!(r#"{{"mode":"fs","tries":[{{"op":"{op}","path":"/g/written"}}]}}"#);
    let mut opening = Vec::new();
    for nth in 0..600 {
        let (component, input) = match nth % 4 {
            0 => (&probe, arguments(&["open", "/g/read"])),
            1 => (&faulty, r#"{"mode":"fifo","path":"/g/read"}"#.to_owned()),
            2 => (&faulty, tries("write")),
            _ => (&faulty, tries("append")),
        };
        opening.push(host.try_task(component, &input, with()).await.unwrap());
    }
    nobody_is_held_up().await;
    for task in &opening {
        task.force("enough").await.unwrap();
    }
    nobody_is_held_up().await;
    for task in &opening {
        assert!(task.end().await.status.is_terminal());
    }
    assert_eq!(host.host.engine().instances(), 0);
}
