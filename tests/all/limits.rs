//! Limits: every one is enforced, and named by the ending that it causes.

use std::time::{Duration, Instant};

use backlot::{registry::Status, wasm::Limits};
use backlot_tests::{Memory, Task, TestHost, With, arguments};

fn limited(limits: Limits) -> With {
    With { limits, ..With::default() }
}

#[tokio::test]
async fn limits_as_large_as_numbers_can_be_are_none() {
    let host = TestHost::start();
    let probe = host.program("probe").await;
    let limits = Limits {
        deadline: Some(Duration::MAX),
        cpu: Some(Duration::MAX),
        final_output: usize::MAX,
        input: usize::MAX,
        host_call: usize::MAX,
        open_files: usize::MAX,
        host_objects: usize::MAX,
        ..Limits::default()
    };
    let with = limited(limits);
    let task = host.try_task(&probe, &arguments(&["tick", "2", "10"]), with).await.unwrap();
    assert_eq!(task.output().await, "line 1\nline 2\n");
    assert_eq!(task.now().status, Status::Completed);
}

#[tokio::test]
async fn memory_is_limited_and_the_limit_is_named() {
    let host = TestHost::start();
    let other = host.probe(&["tick", "50", "20"]).await;
    let faulty = host.kind("faulty").await;
    let probe = host.program("probe").await;
    let limits = Limits { memory: 32 << 20, ..Limits::default() };
    for (component, input) in
        [(&faulty, r#"{"mode":"grow"}"#.to_owned()), (&probe, arguments(&["grow"]))]
    {
        let task = host.try_task(component, &input, limited(limits)).await.unwrap();
        let ended = task.end().await;
        assert_eq!(ended.status, Status::Failed);
        let detail = ended.detail.unwrap();
        assert!(detail.contains("memory limit of 32 MiB"), "{detail}");
        let peak = ended.usage.unwrap().peak_memory;
        assert!((16 << 20..=32 << 20).contains(&peak), "{peak}");
    }
    assert_eq!(other.end().await.status, Status::Completed);
    assert_eq!(host.host.engine().guest_memory(), 0);
}

/// C14: with the defaults, alone and in a crowd, and nobody else is held up.
#[tokio::test]
async fn c14_growth_is_limited_for_each_and_for_all_and_disturbs_nobody() {
    const ALL: u64 = 1 << 30;
    let config = backlot::Config { guest_memory: Some(ALL), ..backlot::Config::default() };
    let host = TestHost::with(config);
    let faulty = host.kind("faulty").await;
    let probe = host.program("probe").await;

    let ended = host.task(&faulty, r#"{"mode":"grow"}"#).await.end().await;
    assert_eq!(ended.status, Status::Failed);
    let detail = ended.detail.unwrap();
    assert!(detail.contains("memory limit of 256 MiB"), "{detail}");
    assert!(ended.usage.unwrap().peak_memory <= 256 << 20);

    let memory = Memory::from_now();
    let tick = host.task(&probe, &arguments(&["tick", "100", "10"])).await;
    let mut growing = Vec::new();
    for nth in 0..20 {
        growing.push(match nth % 2 {
            0 => host.task(&faulty, r#"{"mode":"grow"}"#).await,
            _ => host.task(&probe, &arguments(&["grow"])).await,
        });
    }
    for task in &growing {
        let ended = task.end().await;
        assert_eq!(ended.status, Status::Failed, "{ended:?}");
        let detail = ended.detail.unwrap();
        let named = detail.contains("memory limit of 256 MiB")
            || detail.contains("limit of 1 GiB for the memory of all guests");
        assert!(named, "{detail}");
        assert!(ended.usage.unwrap().peak_memory <= 256 << 20);
    }
    assert_eq!(tick.output().await.lines().count(), 100);
    assert_eq!(tick.now().status, Status::Completed);
    // What the guests may have, and some for the host.
    let growth = memory.growth();
    assert!(growth < ALL + (128 << 20), "{growth} bytes");
    assert_eq!(host.host.engine().guest_memory(), 0);
    assert_eq!(host.host.engine().instances(), 0);
}

#[tokio::test]
async fn a_guest_that_lives_with_the_limit_goes_on() {
    let host = TestHost::start();
    let faulty = host.kind("faulty").await;
    let limits = Limits { memory: 32 << 20, ..Limits::default() };
    let task = host
        .try_task(&faulty, r#"{"mode":"grow","tolerant":true}"#, limited(limits))
        .await
        .unwrap();
    assert_eq!(task.end().await.status, Status::Completed);
}

#[tokio::test]
async fn a_component_that_needs_more_than_the_limit_is_refused_by_name() {
    let host = TestHost::start();
    let noop = host.kind("noop").await;
    let limits = Limits { memory: 64 << 10, ..Limits::default() };
    let Err(error) = host.try_task(&noop, "", limited(limits)).await else {
        panic!("it was started")
    };
    assert!(error.to_string().contains("memory limit of 64 KiB"), "{error}");
}

#[tokio::test]
async fn memory_of_all_guests_is_limited() {
    let config = backlot::Config { guest_memory: Some(64 << 20), ..backlot::Config::default() };
    let host = TestHost::with(config);
    let faulty = host.kind("faulty").await;
    let mut tasks = Vec::new();
    for _ in 0..5 {
        tasks.push(host.task(&faulty, r#"{"mode":"grow"}"#).await);
    }
    for task in tasks {
        let ended = task.end().await;
        assert_eq!(ended.status, Status::Failed);
        assert!(ended.detail.unwrap().contains("64 MiB"));
    }
    assert_eq!(host.host.engine().guest_memory(), 0);
}

/// C01 with a limit: the deadline ends a guest that is blocked in a sleep.
#[tokio::test]
async fn c01_a_deadline_ends_a_sleep_and_is_named() {
    let host = TestHost::start();
    let probe = host.program("probe").await;
    let limits = Limits { deadline: Some(Duration::from_secs(2)), ..Limits::default() };
    let since = Instant::now();
    let task = host.try_task(&probe, &arguments(&["sleep", "600"]), limited(limits)).await.unwrap();
    let ended = task.wait(Duration::from_secs(3)).await;
    assert!(since.elapsed() >= Duration::from_secs(2));
    assert_eq!(ended.status, Status::Failed);
    assert_eq!(ended.detail.as_deref(), Some("deadline of 2s exceeded"));
    assert_eq!(host.host.engine().instances(), 0);
}

#[tokio::test]
async fn cpu_time_is_limited_and_sleep_is_free() {
    let host = TestHost::start();
    let faulty = host.kind("faulty").await;
    let limits = Limits { cpu: Some(Duration::from_millis(200)), ..Limits::default() };
    let task = host.try_task(&faulty, r#"{"mode":"spin"}"#, limited(limits)).await.unwrap();
    let ended = task.end().await;
    assert_eq!(ended.status, Status::Failed);
    assert!(ended.detail.unwrap().starts_with("CPU time limit of 200ms exceeded"));
    let cpu = ended.usage.unwrap().cpu;
    assert!((200..400).contains(&cpu.as_millis()), "{cpu:?}");
    let ticker = host.kind("ticker").await;
    let task =
        host.try_task(&ticker, r#"{"count":200,"every_ms":2}"#, limited(limits)).await.unwrap();
    assert_eq!(task.end().await.status, Status::Completed);
}

/// C16: with and without a call of the host at each level, alone and in a crowd.
#[tokio::test]
async fn c16_recursion_ends_the_task_and_not_the_host() {
    let host = TestHost::start();
    let faulty = host.kind("faulty").await;
    let probe = host.program("probe").await;
    let tick = host.task(&probe, &arguments(&["tick", "100", "10"])).await;
    let deep = [
        (&faulty, r#"{"mode":"recurse"}"#.to_owned()),
        (&faulty, r#"{"mode":"recurse","calls_host":true}"#.to_owned()),
        (&probe, arguments(&["deep"])),
        (&probe, arguments(&["deep", "print"])),
    ];
    let exhausted = async |task: &Task| {
        let ended = task.end().await;
        assert_eq!(ended.status, Status::Failed, "{ended:?}");
        let detail = ended.detail.unwrap();
        assert!(detail.contains("call stack exhausted"), "{detail}");
    };
    for (component, input) in &deep {
        exhausted(&host.task(component, input).await).await;
    }
    let mut tasks = Vec::new();
    for (component, input) in deep.iter().cycle().take(50) {
        tasks.push(host.task(component, input).await);
    }
    for task in &tasks {
        exhausted(task).await;
    }
    assert_eq!(tick.output().await.lines().count(), 100);
    assert_eq!(host.host.engine().instances(), 0);
}

#[tokio::test]
async fn input_is_limited() {
    let host = TestHost::start();
    let probe = host.program("probe").await;
    let limits = Limits { input: 100, ..Limits::default() };
    let Err(error) = host.try_task(&probe, &arguments(&[&"x".repeat(100)]), limited(limits)).await
    else {
        panic!("it was started")
    };
    assert!(error.to_string().contains("100 bytes"), "{error}");
}

#[tokio::test]
async fn a_final_output_is_cut_at_its_limit_and_the_rest_is_counted() {
    let host = TestHost::start();
    let faulty = host.kind("faulty").await;
    let limits = Limits { final_output: 1 << 10, ..Limits::default() };
    let task = host
        .try_task(&faulty, r#"{"mode":"final-output","bytes":5000}"#, limited(limits))
        .await
        .unwrap();
    let ended = task.end().await;
    assert_eq!(ended.status, Status::Completed);
    assert!(ended.detail.unwrap().contains("3976 bytes dropped"));
    assert_eq!(task.read().await.text.len(), 1 << 10);
}

#[tokio::test]
async fn a_result_past_the_host_call_limit_ends_the_task_with_the_limit_named() {
    let host = TestHost::start();
    let faulty = host.kind("faulty").await;
    let task = host.task(&faulty, r#"{"mode":"final-output","bytes":67108864}"#).await;
    let ended = task.end().await;
    assert_eq!(ended.status, Status::Failed);
    let detail = ended.detail.unwrap();
    assert!(detail.contains("16 MiB"), "{detail}");
}

#[tokio::test]
async fn usage_is_in_the_snapshot() {
    let host = TestHost::start();
    let task = host.probe(&["bytes", "100000"]).await;
    let ended = task.end().await;
    let usage = ended.usage.unwrap();
    assert!(usage.cpu > Duration::ZERO && usage.peak_memory >= 64 << 10, "{usage:?}");
    assert_eq!(ended.output_bytes, 100_000);
    let generation = ended.generation.unwrap();
    assert_eq!(generation.number, 1);
    assert!(generation.digest.starts_with("sha256:") && generation.digest.len() == 71);
}

#[tokio::test]
async fn tables_are_limited_and_the_limit_is_named() {
    let wat = r#"(component
        (core module $m
            (table $t 1 funcref)
            (func (export "run") (result i32)
                (loop $more
                    (br_if $more (i32.ne (i32.const -1)
                        (table.grow $t (ref.null func) (i32.const 1000)))))
                unreachable))
        (core instance $i (instantiate $m))
        (func $run (result (result)) (canon lift (core func $i "run")))
        (instance $e (export "run" (func $run)))
        (export "wasi:cli/run@0.2.0" (instance $e)))"#;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tables.wasm");
    std::fs::write(&path, wat::parse_str(wat).unwrap()).unwrap();
    let host = TestHost::start();
    let component = host.host.load_file(&path).await.unwrap();
    let limits = Limits { table_elements: 5_000, ..Limits::default() };
    let ended = host.try_task(&component, "", limited(limits)).await.unwrap().end().await;
    assert_eq!(ended.status, Status::Failed);
    let detail = ended.detail.unwrap();
    assert!(detail.contains("table limit of 5000 elements"), "{detail}");
}

/// C14: many tables share the limit of one, and too many are refused by name.
#[tokio::test]
async fn c14_many_tables_are_limited_together() {
    let many = |count: u32| {
        let tables: String = (0..count).map(|n| format!("(table $t{n} 1 funcref)")).collect();
        let grow: String = (0..count)
            .map(|n| {
                format!(
                    "(br_if $end (i32.eq (i32.const -1)
                        (table.grow $t{n} (ref.null func) (i32.const 10000))))"
                )
            })
            .collect();
        wat::parse_str(format!(
            r#"(component
                (core module $m {tables}
                    (func (export "run") (result i32)
                        (block $end {grow} (return (i32.const 0)))
                        unreachable))
                (core instance $i (instantiate $m))
                (func $run (result (result)) (canon lift (core func $i "run")))
                (instance $e (export "run" (func $run)))
                (export "wasi:cli/run@0.2.0" (instance $e)))"#
        ))
        .unwrap()
    };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tables.wasm");
    let host = TestHost::start();
    std::fs::write(&path, many(30)).unwrap();
    let component = host.host.load_file(&path).await.unwrap();
    let ended = host.task(&component, "").await.end().await;
    assert_eq!(ended.status, Status::Failed);
    let detail = ended.detail.unwrap();
    assert!(detail.contains("table limit of 100000 elements"), "{detail}");
    // Ten times that do not take more together than one may.
    let mut tasks = Vec::new();
    for _ in 0..10 {
        tasks.push(host.task(&component, "").await);
    }
    for task in tasks {
        assert_eq!(task.end().await.status, Status::Failed);
    }
    std::fs::write(&path, many(33)).unwrap();
    let error = host.host.load_file(&path).await.unwrap_err().to_string();
    assert!(error.contains("33") && error.contains("32"), "{error}");
}

#[tokio::test]
async fn open_files_are_limited_and_only_that_call_fails() {
    let granted = tempfile::tempdir().unwrap();
    std::fs::write(granted.path().join("file"), "").unwrap();
    let host = TestHost::start();
    let probe = host.program("probe").await;
    let start = async |count: &str| {
        let dir = format!("{}::/g", granted.path().display()).parse().unwrap();
        let grant = backlot::wasm::Grant { dirs: vec![dir], ..Default::default() };
        let limits = Limits { open_files: 20, ..Limits::default() };
        let with = With { grant, limits, ..With::default() };
        let task =
            host.try_task(&probe, &arguments(&["hoard", "/g/file", count]), with).await.unwrap();
        task.output().await
    };
    assert_eq!(start("20").await, "opened 20\n");
    assert!(start("21").await.starts_with("refused"));
}

#[tokio::test]
async fn objects_that_the_host_keeps_are_limited_and_the_limit_is_named() {
    let host = TestHost::start();
    let fetch = host.program("fetch").await;
    let task = host.task(&fetch, &arguments(&["--hoard"])).await;
    let ended = task.end().await;
    assert_eq!(ended.status, Status::Failed);
    let detail = ended.detail.unwrap();
    assert!(detail.contains("limit of 1024 host objects"), "{detail}");
}

/// A component of an odd shape is refused by name, and takes nobody's place.
#[tokio::test]
async fn a_component_with_too_many_instances_is_refused_when_it_is_loaded() {
    let instances: String =
        (0..70).map(|n| format!("(core instance $i{n} (instantiate $m))")).collect();
    let wat = format!(
        r#"(component
            (core module $m (memory 1) (func (export "run") (result i32) i32.const 0))
            {instances}
            (func $run (result (result)) (canon lift (core func $i0 "run")))
            (instance $e (export "run" (func $run)))
            (export "wasi:cli/run@0.2.0" (instance $e)))"#
    );
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("many.wasm");
    std::fs::write(&path, wat::parse_str(wat).unwrap()).unwrap();
    let host = TestHost::start();
    let error = host.host.load_file(&path).await.unwrap_err().to_string();
    assert!(error.contains("70"), "{error}");
}
