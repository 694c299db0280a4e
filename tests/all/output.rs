//! Output: streamed, bounded, whole.

use std::time::Duration;

use backlot::registry::Status;
use backlot_tests::TestHost;

#[tokio::test]
async fn output_is_readable_while_a_producer_sleeps() {
    let host = TestHost::start();
    let ticker = host.kind("ticker").await;
    let task = host.task(&ticker, r#"{"count":2,"every_ms":3600000,"text":"tick"}"#).await;
    assert_eq!(task.until("\n").await, "tick 1\n");
    assert_eq!(task.now().status, Status::Running);
    task.force("enough").await.unwrap();
}

#[tokio::test]
async fn a_final_kind_has_its_output_at_the_end_and_every_time() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a"), "abc").unwrap();
    let host = TestHost::start();
    let checksum = host.kind("checksum").await;
    let grant = format!("{}::/tree", folder.path().display());
    let with = backlot_tests::With {
        grant: backlot::wasm::Grant { dirs: vec![grant.parse().unwrap()], ..Default::default() },
        ..Default::default()
    };
    let task = host.try_task(&checksum, r#"{"path":"/tree"}"#, with).await.unwrap();
    let ended = task.end().await;
    assert_eq!(ended.status, Status::Completed, "{ended:?}");
    let first = task.read().await.text;
    assert!(
        first.starts_with("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad  "),
        "{first}"
    );
    assert_eq!(task.read().await.text, first);
}

/// C12: a character that is cut by a read boundary is one character.
#[tokio::test]
async fn c12_characters_survive_read_boundaries() {
    let host = TestHost::start();
    let faulty = host.kind("faulty").await;
    let program = host.probe(&["euro", "25", "20"]).await;
    let producer = host.task(&faulty, r#"{"mode":"split-chars","times":25,"every_ms":20}"#).await;
    for task in [program, producer] {
        let mut every = tokio::time::interval(Duration::from_millis(7));
        let mut seen = String::new();
        loop {
            every.tick().await;
            let read = task.read().await;
            seen.push_str(&read.text);
            if read.snapshot.status.is_terminal() && !read.more && read.text.is_empty() {
                break;
            }
        }
        assert_eq!(seen, "€✓🦀".repeat(25));
    }
}

#[tokio::test]
async fn what_does_not_fit_goes_and_is_told() {
    let mut config = backlot::Config::default();
    config.registry.spool.memory = 64 << 10;
    config.registry.spool.disk = 64 << 10;
    let host = TestHost::with(config);
    let task = host.probe(&["bytes", "1000000"]).await;
    let ended = task.end().await;
    assert_eq!(ended.status, Status::Completed, "a full spool never traps the guest");
    assert_eq!(ended.output_bytes, 1_000_000);
    assert!(ended.dropped_bytes >= 1_000_000 - (128 << 10), "{}", ended.dropped_bytes);
    let read = task.read().await;
    assert_eq!(read.dropped, ended.dropped_bytes);
    assert!(read.text.contains(&read.dropped.to_string()), "a text view has a notice");
}

#[tokio::test]
async fn a_flood_through_read_output_is_bounded_and_whole_where_it_fits() {
    let host = TestHost::start();
    let faulty = host.kind("faulty").await;
    let task = host.task(&faulty, r#"{"mode":"flood","bytes":20000000}"#).await;
    let ended = task.end().await;
    assert_eq!(
        (ended.status, ended.output_bytes, ended.dropped_bytes),
        (Status::Completed, 20_000_000, 0),
        "{ended:?}"
    );
    let mut seen = String::new();
    loop {
        let read = task.read().await;
        seen.push_str(&read.text);
        if !read.more {
            break;
        }
    }
    assert_eq!(seen.len(), 20_000_000);
    for (number, line) in seen.split_inclusive('\n').enumerate() {
        let whole = line.trim_end().rsplit(' ').next().and_then(|end| end.parse().ok());
        // The last line may be cut where the bytes were used up.
        assert!(whole == Some(number + 1) || !line.ends_with('\n'), "line {number}: {line}");
    }
}

#[tokio::test]
async fn a_guest_that_ignores_max_bytes_hurts_only_itself() {
    let host = TestHost::start();
    let faulty = host.kind("faulty").await;
    let other = host.probe(&["tick", "20", "20"]).await;
    let task = host.task(&faulty, r#"{"mode":"read-big","bytes":67108864}"#).await;
    let ended = task.end().await;
    assert!(ended.status.is_terminal());
    assert!(ended.output_bytes < 32 << 20, "{}", ended.output_bytes);
    assert_eq!(other.end().await.status, Status::Completed);
}

#[tokio::test]
async fn a_read_never_waits_for_a_guest_that_cannot_be_reached() {
    let host = TestHost::start();
    let faulty = host.kind("faulty").await;
    for input in [r#"{"mode":"spin"}"#, r#"{"mode":"block","s":600}"#, r#"{"mode":"read-spin"}"#] {
        let task = host.task(&faulty, input).await;
        let read = tokio::time::timeout(Duration::from_secs(2), task.read()).await;
        assert_eq!(read.expect("the read answers").snapshot.status, Status::Running, "{input}");
        task.force("enough").await.unwrap();
        assert_eq!(task.end().await.status, Status::Killed);
    }
}

#[tokio::test]
async fn what_a_producer_prints_is_its_log() {
    let host = TestHost::start();
    let faulty = host.kind("faulty").await;
    let task = host.task(&faulty, r#"{"mode":"panic","text":"out of luck"}"#).await;
    let ended = task.end().await;
    assert_eq!(ended.status, Status::Failed);
    assert!(ended.detail.unwrap().starts_with("trap in done: "), "the detail names the call");
    let log = task.log().await;
    assert!(log.contains("out of luck"), "{log}");
    assert_eq!(task.read().await.text, "");
}

#[tokio::test]
async fn a_log_is_bounded() {
    let host = TestHost::start();
    let faulty = host.kind("faulty").await;
    let task = host.task(&faulty, r#"{"mode":"flood-stderr","bytes":5000000}"#).await;
    assert_eq!(task.end().await.status, Status::Completed);
    assert!(task.log().await.len() <= 128 << 10);
}

/// A guest is polled when it may have executed, and only then.
#[tokio::test]
async fn a_parked_producer_costs_no_cpu_time() {
    let host = TestHost::start();
    let ticker = host.kind("ticker").await;
    let faulty = host.kind("faulty").await;
    let parked = host.task(&ticker, r#"{"count":2,"every_ms":3600000}"#).await;
    let blocked = host.task(&faulty, r#"{"mode":"block","s":3600}"#).await;
    parked.until("\n").await;
    let half_a_second = Duration::from_millis(500);
    tokio::time::sleep(half_a_second).await;
    let cpu = |task: &backlot_tests::Task| task.now().usage.unwrap().cpu;
    let before = (cpu(&parked), cpu(&blocked));
    tokio::time::sleep(half_a_second).await;
    assert_eq!((cpu(&parked), cpu(&blocked)), before);
    parked.force("enough").await.unwrap();
    blocked.force("enough").await.unwrap();
}
