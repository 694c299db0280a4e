//! Plain programs as components: no SDK, no contract.

use std::time::Duration;

use backlot::registry::Status;
use backlot_tests::{TestHost, arguments};

#[tokio::test]
async fn a_program_that_knows_nothing_of_backlot_runs() {
    let host = TestHost::start();
    let hello = host.program("hello").await;
    let task = host.task(&hello, "").await;
    assert_eq!(task.output().await, "hello\n");
    let ended = task.now();
    assert_eq!((ended.status, ended.detail), (Status::Completed, None));
    assert_eq!(ended.kind.as_str(), "hello");
}

#[tokio::test]
async fn arguments_and_stdin_are_the_input() {
    let host = TestHost::start();
    let probe = host.program("probe").await;
    let task = host.task(&probe, r#"{"args":["cat"],"stdin":"line\n€"}"#).await;
    assert_eq!(task.output().await, "line\n€");
    let task = host.task(&probe, &arguments(&["env", "a b", "-c"])).await;
    let output = task.output().await;
    assert!(output.starts_with(r#"args ["env", "a b", "-c"]"#), "{output}");
}

/// C10: 0 is success, other codes are kept, and a trap is something else.
#[tokio::test]
async fn c10_exit_codes_and_traps_are_told_apart() {
    let host = TestHost::start();
    let probe = host.program("probe").await;
    let code = |code: u32| Some(format!("exit code: {code}"));
    let cases: &[(&[&str], Status, Option<String>, &str)] = &[
        (&["now"], Status::Completed, None, ""),
        (&["exit", "0"], Status::Completed, None, "leaving\n"),
        (&["exit", "1"], Status::Failed, code(1), "leaving\n"),
        // Without exit-with-code, success or not is all that a program can say.
        (&["exit", "7"], Status::Failed, code(1), "leaving\n"),
        (&["code", "0"], Status::Completed, None, "leaving\n"),
        (&["code", "1"], Status::Failed, code(1), "leaving\n"),
        (&["code", "7"], Status::Failed, code(7), "leaving\n"),
        (&["code", "255"], Status::Failed, code(255), "leaving\n"),
        // From a nested call, with output that was not flushed.
        (&["leave", "0"], Status::Completed, None, "leaving"),
        (&["leave", "1"], Status::Failed, code(1), "leaving"),
    ];
    for (args, status, detail, output) in cases {
        let task = host.task(&probe, &arguments(args)).await;
        let ended = task.end().await;
        assert_eq!((ended.status, &ended.detail), (*status, detail), "{args:?}");
        assert_eq!(task.read().await.text, *output, "{args:?}");
    }
    let task = host.task(&probe, &arguments(&["trap"])).await;
    let ended = task.end().await;
    let detail = ended.detail.unwrap();
    assert_eq!(ended.status, Status::Failed);
    assert!(detail.starts_with("trap in ") && !detail.contains("exit"), "{detail}");
    assert_eq!(task.read().await.text, "line 1\nline 2\nline 3\n");
}

/// C10: a producer says how it ended by its outcome, and an exit is none.
#[tokio::test]
async fn c10_a_producer_that_exits_has_not_completed() {
    let host = TestHost::start();
    let faulty = host.kind("faulty").await;
    for code in [0, 1] {
        let input = format!(r#"{{"mode":"exit","code":{code}}}"#);
        let ended = host.task(&faulty, &input).await.end().await;
        let detail = ended.detail.unwrap();
        assert_eq!(ended.status, Status::Failed, "{detail}");
        assert!(detail.contains(&format!("called exit with code {code}")), "{detail}");
    }
}

#[tokio::test]
async fn stdout_and_stderr_are_kept_apart_and_interleaved_for_reading() {
    use backlot::registry::{Caller, Channel, Stream};
    let host = TestHost::start();
    let task = host.probe(&["both", "3"]).await;
    let mut output =
        host.registry().observe(&task.id, &Caller::Operator, Stream::Output, 0).unwrap();
    let (mut out, mut err) = (Vec::new(), Vec::new());
    while let Some(piece) = output.next(64 << 10).await {
        match piece.channel {
            Channel::Out => out.extend_from_slice(&piece.bytes),
            Channel::Err => err.extend_from_slice(&piece.bytes),
        }
    }
    assert_eq!(String::from_utf8(out).unwrap(), "out 1\nout 2\nout 3\n");
    assert_eq!(String::from_utf8(err).unwrap(), "err 1\nerr 2\nerr 3\n");
    assert_eq!(task.output().await, "out 1\nout 2\nout 3\nerr 1\nerr 2\nerr 3\n");
}

/// C01: an epoch deadline alone does nothing while a guest is in a host sleep.
#[tokio::test]
async fn c01_a_kill_ends_a_program_that_is_blocked_in_a_sleep() {
    let host = TestHost::start();
    let before = host.host.engine().instances();
    let task = host.probe(&["sleep", "600"]).await;
    task.kill("test").await.unwrap();
    let ended = task.wait(Duration::from_secs(2)).await;
    assert_eq!(ended.status, Status::Killed);
    assert!(ended.detail.as_deref().unwrap_or_default().contains("test"), "{ended:?}");
    assert_eq!(host.host.engine().instances(), before);
}

/// C03: reads and a kill reach a task whose only call is still on the stack.
#[tokio::test]
async fn c03_reads_and_a_kill_reach_a_program_that_is_running() {
    let host = TestHost::start();
    let task = host.probe(&["tick", "600", "100"]).await;
    c03(&task, "line 1\n").await;
}

/// C03 for a producer, whose `done` is on the stack.
#[tokio::test]
async fn c03_reads_and_a_kill_reach_a_producer_that_is_running() {
    let host = TestHost::start();
    let ticker = host.kind("ticker").await;
    let task = host.task(&ticker, r#"{"count":600,"every_ms":100}"#).await;
    c03(&task, "line 1\n").await;
}

async fn c03(task: &backlot_tests::Task, first: &str) {
    let read_50_times = async || {
        let mut every = tokio::time::interval(Duration::from_millis(50));
        let mut seen = String::new();
        for _ in 0..50 {
            every.tick().await;
            let read = task.read().await;
            assert_eq!(read.snapshot.status, Status::Running, "a read ended the task");
            seen.push_str(&read.text);
        }
        seen
    };
    let (one, other) = tokio::join!(read_50_times(), read_50_times());
    let lines: usize = one.lines().count() + other.lines().count();
    assert!(lines >= 15, "output appears while the task runs: {lines} lines");
    assert!(one.contains(first) || other.contains(first));
    task.kill("enough").await.unwrap();
    assert_eq!(task.end().await.status, Status::Killed);
    for _ in 0..2 {
        let read = task.read().await;
        assert_eq!(read.snapshot.status, Status::Killed);
        assert!(!read.text.contains("cannot enter"), "{}", read.text);
    }
}

/// C04: after a trap no call goes into the dead instance, and new ones are fresh.
#[tokio::test]
async fn c04_a_trapped_instance_is_never_used_again() {
    use backlot::registry::Killed;
    let host = TestHost::start();
    let other = host.probe(&["tick", "100", "20"]).await;
    for _ in 0..2 {
        let task = host.probe(&["trap"]).await;
        let ended = task.end().await;
        assert_eq!(ended.status, Status::Failed);
        assert!(ended.detail.unwrap().contains("trap"), "the detail names it");
        assert_eq!(task.read().await.text, "line 1\nline 2\nline 3\n");
        assert_eq!(task.read().await.text, "");
        assert_eq!(task.kill("late").await.unwrap(), Killed::AlreadyTerminal);
        assert_eq!(task.wait(Duration::from_secs(1)).await.status, Status::Failed);
    }
    let fresh = host.probe(&["tick", "3", "1"]).await;
    assert_eq!(fresh.output().await, "line 1\nline 2\nline 3\n");
    assert_eq!(other.output().await.lines().count(), 100);
    assert_eq!(other.now().status, Status::Completed);
}

/// C06: output that nobody reads does not hold the guest up.
#[tokio::test]
async fn c06_chatty_output_without_a_reader_does_not_hang_the_guest() {
    let host = TestHost::start();
    let unread = host.probe(&["both", "10000"]).await;
    let read_once = host.probe(&["both", "10000"]).await;
    read_once.until("out 1\n").await;
    let first = read_once.read().await.text;
    let numbered = |name: &str| (1..=10_000).map(|n| format!("{name} {n}\n")).collect::<String>();
    let want = numbered("out") + &numbered("err");
    for (task, first) in [(unread, String::new()), (read_once, first)] {
        let ended = task.wait(Duration::from_secs(5)).await;
        assert_eq!(ended.status, Status::Completed);
        let mut seen = first;
        loop {
            let read = task.read().await;
            seen.push_str(&read.text);
            if !read.more {
                break;
            }
        }
        assert!(seen == want, "all 20,000 lines are there, in order");
    }
}

/// C20: what is over at once or never is neither the other nor a panic.
#[tokio::test]
async fn c20_odd_waits_are_over_at_once_or_can_be_killed() {
    let host = TestHost::start();
    let largest = u64::MAX.to_string();
    let almost = (u64::MAX - 1).to_string();
    // Over WASI 0.2 and its pollables, and over WASI 0.3.
    for name in ["probe", "async_command"] {
        let program = host.program(name).await;
        // The host's clock is past its first nanosecond.
        for args in [["wait", "0"], ["wait-until", "0"], ["wait-until", "1"]] {
            let task = host.task(&program, &arguments(&args)).await;
            let ended = task.wait(Duration::from_secs(5)).await;
            assert_eq!(ended.status, Status::Completed, "{name} {args:?}: {ended:?}");
            assert_eq!(task.read().await.text, "over\n");
        }
        for (how, ns) in [
            ("wait", &largest),
            ("wait", &almost),
            ("wait-until", &largest),
            ("wait-until", &almost),
        ] {
            let what = format!("{name} {how} {ns}");
            let task = host.task(&program, &arguments(&[how, ns])).await;
            // Long enough for one that is over at once, as a wrapped sum would be.
            let waiting = task.wait(Duration::from_millis(200)).await;
            assert_eq!(waiting.status, Status::Running, "{what}: {waiting:?}");
            task.kill("enough").await.unwrap();
            let ended = task.wait(Duration::from_secs(2)).await;
            assert_eq!(ended.status, Status::Killed, "{what}: {ended:?}");
        }
    }
    assert_eq!(host.registry().health().producer_panics, 0);
    assert_eq!(host.host.engine().instances(), 0);
}

#[tokio::test]
async fn a_program_whose_run_is_async_runs() {
    let host = TestHost::start();
    let program = host.program("async_command").await;
    let task = host.task(&program, &arguments(&["sleep", "1"])).await;
    assert_eq!(task.output().await, "before\nafter\n");
    assert_eq!(task.now().status, Status::Completed);
    let task = host.task(&program, &arguments(&["sleep", "1", "fail"])).await;
    assert_eq!(task.end().await.detail.as_deref(), Some("exit code: 1"));
    let task = host.task(&program, &arguments(&["sleep", "3600000"])).await;
    assert_eq!(task.until("\n").await, "before\n");
    task.kill("enough").await.unwrap();
    assert_eq!(task.end().await.status, Status::Killed);
}

#[tokio::test]
async fn what_a_producer_in_blocking_style_prints_is_its_output() {
    let host = TestHost::start();
    let printed = host.program("printed").await;
    let task = host.task(&printed, "3").await;
    let output = task.output().await;
    assert!(output.starts_with("line 1\n"), "{output}");
    assert_eq!(output.lines().filter(|line| line.starts_with("line")).count(), 3);
    assert_eq!(task.now().status, Status::Completed);
    let task = host.task(&printed, "100000").await;
    task.until("line 2\n").await;
    assert!(task.read().await.text.contains("line 2\n"), "readable while it blocks");
    task.kill("enough").await.unwrap();
    let ended = task.wait(Duration::from_secs(1)).await;
    assert_eq!(ended.status, Status::Killed, "a stop does not wait for `cancel`");
}
