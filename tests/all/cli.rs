//! The command line, as a person or a script meets it.

use std::{
    ffi::{OsStr, OsString},
    fs,
    os::unix::ffi::OsStrExt as _,
    time::Duration,
};

use backlot_tests::{Process, backlot, kind, program};

fn kinds() -> String {
    kind("grep").parent().unwrap().display().to_string()
}

/// Runs `backlot run` with the first-party kinds.
fn run(args: &[&str]) -> backlot_tests::Ended {
    let kinds = kinds();
    let mut all = vec!["run", "--plugins", &kinds];
    all.extend(args);
    Process::run(all)
}

fn start(args: &[&str]) -> Process {
    let kinds = kinds();
    let mut all = vec!["run", "--plugins", &kinds];
    all.extend(args);
    Process::start(all)
}

#[test]
fn a_kind_streams_its_output_and_ends_with_a_line_on_stderr() {
    let ended = run(&["ticker", "--input", r#"{"count":3,"every_ms":1}"#]);
    assert_eq!(ended.stdout, "line 1\nline 2\nline 3\n");
    assert!(ended.stderr.starts_with("ticker-1 completed in "), "{}", ended.stderr);
    assert!(ended.stderr.trim_end().ends_with(": 3 lines"), "{}", ended.stderr);
    assert_eq!(ended.code, Some(0));
}

#[test]
fn output_comes_as_it_is_made() {
    let mut process = start(&["ticker", "--input", r#"{"count":2,"every_ms":3600000}"#]);
    assert_eq!(process.line(), "line 1");
    process.signal("INT");
    let ended = process.wait();
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(4), ""));
    assert!(ended.stderr.contains("ticker-1 killed"), "{}", ended.stderr);
}

/// C10 at the command line: the process's own code says how the task ended, as the
/// help says; the program's code is in the last line.
#[test]
fn c10_exit_codes_tell_how_it_ended() {
    let probe = program("probe").display().to_string();
    for (args, code, says) in [
        (&["now"][..], 0, "probe-1 completed in "),
        (&["exit", "0"], 0, "probe-1 completed in "),
        (&["exit", "1"], 1, "exit code: 1"),
        (&["code", "0"], 0, "probe-1 completed in "),
        (&["code", "7"], 1, "exit code: 7"),
        (&["code", "255"], 1, "exit code: 255"),
        (&["leave", "0"], 0, "probe-1 completed in "),
        (&["trap"], 1, "trap in "),
    ] {
        let ended = run(&[&[probe.as_str(), "--"], args].concat());
        let last = ended.stderr.lines().last().unwrap();
        assert_eq!(ended.code, Some(code), "{args:?}: {last}");
        assert!(last.contains(says), "{args:?}: {last}");
    }
    assert_eq!(run(&[&probe, "--", "exit", "1"]).stdout, "leaving\n");
    assert_eq!(run(&[&probe, "--", "leave", "0"]).stdout, "leaving");
    assert_eq!(run(&["ticker", "--input", "{}"]).code, Some(3));
    assert_eq!(run(&["--no-such-flag"]).code, Some(2));
    let help = run(&["--help"]).stdout;
    let codes = "0 completed, 1 failed, 2 usage, 3 refused before starting, 4 killed";
    assert!(help.contains(codes), "{help}");
}

#[test]
fn whatever_is_wrong_is_one_clear_line_and_nothing_is_started() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str, content: &[u8]| {
        let path = folder.path().join(name);
        fs::write(&path, content).unwrap();
        path.display().to_string()
    };
    let text = path("text.wasm", b"hello");
    let empty = path("empty.wasm", b"");
    let core = path("core.wasm", b"\0asm\x01\0\0\0");
    let half = fs::read(program("hello")).unwrap();
    let half = path("half.wasm", &half[..half.len() / 2]);
    let none = path("none.wasm", &wat::parse_str("(component)").unwrap());
    let other = path("other.wasm", &wat::parse_str(
        r#"(component (instance $i) (export "backlot:producer/lifecycle@0.2.0" (instance $i)))"#,
    ).unwrap());
    let needs = path(
        "needs.wasm",
        &wat::parse_str(
            r#"(component (import "acme:secret/vault@1.0.0" (instance (export "open" (func))))
            (core module $m (func (export "run") (result i32) i32.const 0))
            (core instance $i (instantiate $m))
            (func $run (result (result)) (canon lift (core func $i "run")))
            (instance $e (export "run" (func $run)))
            (export "wasi:cli/run@0.2.0" (instance $e)))"#,
        )
        .unwrap(),
    );
    let hello = program("hello").display().to_string();
    let missing = folder.path().join("missing").display().to_string();
    let here = folder.path().display().to_string();
    let pipe = folder.path().join("pipe.wasm").display().to_string();
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let long = "x".repeat(100_000) + ".wasm";
    let cases: &[(&[&str], i32, &str)] = &[
        (&["nosuch"], 3, "it has checksum, faulty, grep"),
        (&["../../etc/passwd"], 3, "cannot read"),
        (&["No Such"], 3, "No Such"),
        (&[""], 3, "kind"),
        (&[&text], 3, "no WebAssembly"),
        (&[&empty], 3, "empty"),
        (&[&core], 3, "core WebAssembly module"),
        (&[&half], 3, "does not compile"),
        (&[&none], 3, "no exports"),
        (&[&other], 3, "found contract version 0.2.0, wanted 0.1.0"),
        (&[&needs], 3, "acme:secret/vault"),
        (&[&here], 3, "folder"),
        (&[&pipe], 3, "not a regular file"),
        (&[&long], 3, "…"),
        (&[&hello, "--memory", &long], 2, "…"),
        (&["ticker", "--input", "@/no/such/file"], 2, "/no/such/file"),
        (&["ticker", "--input", "not json"], 3, "JSON"),
        (&["ticker", "--", "x"], 2, "--input"),
        (&[&hello, "--dir", &missing], 3, "missing"),
        (&[&hello, "--dir", &hello], 3, "cannot be opened"),
        (&[&hello, "--dir", "::"], 2, "HOST[::GUEST]"),
        (&[&hello, "--dir", ".::ro"], 2, "HOST::GUEST:ro"),
        (&[&hello, "--dir", ".::/x:rw:ro"], 2, "once"),
        (&[&hello, "--dir", ".::/d", "--dir", "..::/d/"], 3, "/d"),
        (&[&hello, "--env", "NOVALUE"], 2, "NAME=VALUE"),
        (&[&hello, "--net", "example.com"], 2, "HOST:PORT"),
        (&[&hello, "--memory", "lots"], 2, "64MiB"),
        (&[&hello, "--memory", "1KiB"], 3, "memory limit of 1 KiB"),
        (&[&hello, "--deadline", "soon"], 2, "60s"),
        (&[&hello, "--label", "two\nlines"], 2, "label"),
    ];
    for (args, code, says) in cases {
        let ended = run(args);
        assert_eq!(ended.code, Some(*code), "{args:?}: {}", ended.stderr);
        assert!(ended.stderr.contains(says), "{args:?} does not say {says:?}: {}", ended.stderr);
        assert_eq!(ended.stdout, "", "{args:?}");
        assert!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
        assert!(ended.stderr.lines().all(|line| line.len() < 1100), "{args:?}");
        if *code == 3 {
            assert_eq!(ended.stderr.trim_end().lines().count(), 1, "{args:?}: {}", ended.stderr);
        }
    }
}

#[test]
fn input_comes_from_text_a_file_or_stdin() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("input");
    fs::write(&file, "from a file").unwrap();
    let probe = program("probe").display().to_string();
    let cat = |input: &str| Process::run(["run", &probe, "--input", input, "--", "cat"]);
    assert_eq!(cat("as text").stdout, "as text");
    assert_eq!(cat("-dash").stdout, "-dash");
    assert_eq!(cat(&format!("@{}", file.display())).stdout, "from a file");
    let piped = Process::run_with_stdin(["run", &probe, "--input", "-", "--", "cat"], b"piped");
    assert_eq!(piped.stdout, "piped");
    let silent = Process::run_with_stdin(["run", &probe, "--", "cat"], b"");
    assert_eq!((silent.stdout.as_str(), silent.code), ("", Some(0)), "no real stdin");
    let binary = Process::run_with_stdin(["run", &probe, "--input", "-"], b"\xff");
    assert_eq!(binary.code, Some(2));
    let huge = vec![b'x'; (8 << 20) + 1];
    fs::write(&file, huge).unwrap();
    assert_eq!(cat(&format!("@{}", file.display())).code, Some(2));
}

#[test]
fn the_hosts_environment_shows_nowhere() {
    let probe = program("probe").display().to_string();
    let ended =
        Process::start_with(["run", "-vv", &probe, "--env", "ONE=1", "--", "env"], |command| {
            command.env("SECRET_TOKEN", "abc-secret");
        })
        .wait();
    assert_eq!(
        ended.stdout.lines().filter(|line| line.starts_with("env ")).collect::<Vec<_>>(),
        ["env ONE=1"]
    );
    assert!(!ended.stdout.contains("abc-secret") && !ended.stderr.contains("abc-secret"));
}

/// C01 at the command line: one signal ends a program in a blocking sleep.
#[test]
fn c01_a_signal_ends_a_program_that_sleeps() {
    let probe = program("probe").display().to_string();
    for signal in ["INT", "TERM"] {
        let mut process = start(&["--json", &probe, "--", "sleep", "600"]);
        assert!(process.line().contains(r#""event":"started""#));
        process.signal(signal);
        let ended = process.wait();
        assert_eq!(ended.code, Some(4), "{}", ended.stderr);
        assert!(ended.took < Duration::from_secs(2), "{:?}", ended.took);
    }
}

/// C47 at the command line: SIGTERM ends within the grace, a second one at once.
#[test]
fn c47_a_signal_is_bounded_for_a_producer_that_ignores_it() {
    let args = ["--json", "faulty", "--input", r#"{"mode":"stubborn"}"#];
    let mut process = start(&[&args[..], &["--grace", "300ms"]].concat());
    process.line();
    process.signal("TERM");
    let ended = process.wait();
    assert_eq!(ended.code, Some(4), "{}", ended.stderr);
    assert!(ended.stderr.contains("forced"), "{}", ended.stderr);
    assert!(ended.took < Duration::from_secs(5), "{:?}", ended.took);

    let mut process = start(&[&args[..], &["--grace", "600s"]].concat());
    process.line();
    process.signal("INT");
    // Two signals of one kind can merge while the first is pending.
    process.signal("TERM");
    let ended = process.wait();
    assert_eq!(ended.code, Some(4), "{}", ended.stderr);
    assert!(ended.took < Duration::from_secs(5), "{:?}", ended.took);
}

#[test]
fn a_closed_pipe_is_a_quiet_end() {
    for args in [
        &["ticker", "--input", r#"{"count":100000000,"every_ms":1}"#][..],
        &["ticker", "--json", "--input", r#"{"count":100000000,"every_ms":1}"#],
    ] {
        let mut process = start(args);
        process.line();
        process.close_stdout();
        let ended = process.wait();
        assert!(
            !ended.stderr.contains("panicked") && !ended.stderr.contains("error"),
            "{}",
            ended.stderr
        );
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        assert!(ended.took < Duration::from_secs(5), "{:?}", ended.took);
    }
}

/// C12 at the command line.
#[test]
fn c12_bytes_pass_through_whole() {
    let probe = program("probe").display().to_string();
    assert_eq!(run(&[&probe, "--", "euro", "50", "1"]).stdout, "€✓🦀".repeat(50));
    let ended = run(&["--json", &probe, "--", "euro", "20", "1"]);
    let text: String = ended
        .stdout
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).expect("each line is JSON"))
        .filter(|event| event["event"] == "output")
        .map(|event| event["text"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(text, "€✓🦀".repeat(20));
}

#[test]
fn json_is_one_event_a_line() {
    let ended =
        run(&["--json", "ticker", "--input", r#"{"count":2,"every_ms":1}"#, "--label", "two"]);
    let events: Vec<serde_json::Value> =
        ended.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(
        events[0],
        serde_json::json!({"event":"started","id":"ticker-1","kind":"ticker","label":"two","job":events[0]["job"]})
    );
    let last = &events.last().unwrap()["task"];
    assert_eq!(
        (&last["id"], &last["status"], &last["detail"]),
        (&"ticker-1".into(), &"completed".into(), &"2 lines".into())
    );
    assert_eq!(last["output_bytes"], 14);
    let refused = run(&["--json", "ticker", "--input", "{}"]);
    let event: serde_json::Value = serde_json::from_str(&refused.stdout).unwrap();
    assert_eq!((&event["event"], &event["exit"]), (&"refused".into(), &3.into()));
}

/// What a final kind hands over at its end is output like any other.
#[test]
fn final_output_shows_once_and_whole() {
    let folder = tempfile::tempdir().unwrap();
    let mut want = String::new();
    for nth in 0..500 {
        fs::write(folder.path().join(format!("{nth:03}")), "").unwrap();
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        want += &format!("{empty}  /d/{nth:03}\n");
    }
    let dir = format!("{}::/d:ro", folder.path().display());
    let args = ["checksum", "--input", r#"{"path":"/d"}"#, "--dir", &dir];
    let ended = run(&args);
    assert_eq!((ended.stdout, ended.code), (want.clone(), Some(0)));
    let ended = run(&[&args[..], &["--json"]].concat());
    assert_eq!(text_of(&events(&ended.stdout)), want);

    let ended = run(&["faulty", "--input", r#"{"mode":"final-output","bytes":3000000}"#]);
    assert_eq!(ended.stdout.len(), 3_000_000, "{}", ended.stderr);
    assert!(ended.stdout.bytes().all(|byte| byte == b'x'));
}

fn events(stdout: &str) -> Vec<serde_json::Value> {
    stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn text_of(events: &[serde_json::Value]) -> String {
    events.iter().filter_map(|event| event["text"].as_str()).collect()
}

/// stderr is for people: whatever becomes of it, stdout and the exit code stand.
#[test]
fn a_stderr_that_cannot_be_written_decides_nothing() {
    let probe = program("probe").display().to_string();
    let args = ["run", &probe, "--", "both", "3"];
    for script in [r#"exec "$@" 2>/dev/full"#, r#"exec "$@" 2>&-"#] {
        let ended = Process::shell(script, args).wait();
        assert_eq!((ended.stdout.as_str(), ended.code), ("out 1\nout 2\nout 3\n", Some(0)));
    }
    let mut process = Process::start(args);
    process.close_stderr();
    let ended = process.wait();
    assert_eq!((ended.stdout.as_str(), ended.code), ("out 1\nout 2\nout 3\n", Some(0)));
}

#[test]
fn a_stdout_that_cannot_be_written_is_a_failure() {
    let args = ["run", "--plugins", &kinds(), "ticker", "--input", r#"{"count":2,"every_ms":1}"#];
    let ended = Process::shell(r#"exec "$@" >/dev/full"#, args).wait();
    assert_eq!(ended.code, Some(1));
    assert!(ended.stderr.contains("cannot write to stdout"), "{}", ended.stderr);
}

#[test]
fn a_machine_without_room_refuses_in_one_line() {
    for verb in ["run", "check"] {
        let args = [verb, "--json", "hello.wasm"];
        let ended = Process::shell(r#"ulimit -v 4000000; exec "$@""#, args).wait();
        assert_eq!(ended.code, Some(3), "{}", ended.stderr);
        assert!(ended.stderr.contains("ulimit -v"), "{}", ended.stderr);
        assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
        let error = events(&ended.stdout)[0]["error"].as_str().unwrap().to_owned();
        assert!(ended.stderr.contains(&error), "{error}");
    }
}

/// Nobody reads what the task has left, as behind `less`.
#[test]
fn a_signal_ends_a_process_whose_task_has_ended_and_whose_reader_does_not_read() {
    for args in [
        &["faulty", "--input", r#"{"mode":"final-output","bytes":3000000}"#][..],
        &["faulty", "--input", r#"{"mode":"final-output","bytes":3000000}"#, "--json"],
    ] {
        let mut process = start(args);
        if args.contains(&"--json") {
            process.line();
        }
        process.some_stdout();
        process.signal("INT");
        let ended = process.wait_unread();
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        assert!(ended.took < Duration::from_secs(2), "{:?}", ended.took);
        assert!(ended.stderr.contains("faulty-1 completed"), "{}", ended.stderr);
    }
}

/// Whether it is stdout or stderr that is full, the second signal is the last.
#[test]
fn the_second_signal_ends_a_process_whose_reader_does_not_read() {
    for mode in ["flood", "flood-stderr"] {
        let mut process = start(&["faulty", "--input", &format!(r#"{{"mode":"{mode}"}}"#)]);
        match mode {
            "flood" => process.some_stdout(),
            _ => process.some_stderr(),
        }
        process.signal("INT");
        process.signal("TERM");
        let ended = process.wait_unread();
        assert_eq!(ended.code, Some(4), "{mode}: {}", ended.stderr);
        assert!(ended.took < Duration::from_secs(3), "{mode}: {:?}", ended.took);
    }
}

/// More than a host holds: what was shown and what is told as dropped is all.
#[test]
fn what_was_dropped_is_what_was_not_shown() {
    const BYTES: usize = 70_000_000;
    let probe = program("probe").display().to_string();
    let bytes = BYTES.to_string();
    let ended = run(&[&probe, "--", "bytes", &bytes]);
    let last = ended.stderr.lines().last().unwrap();
    let told = last
        .split_once('(')
        .map_or(0, |(_, rest)| rest.split(' ').next().unwrap().parse().unwrap());
    assert_eq!(ended.stdout.len() + told, BYTES, "{last}");

    let events = events(&run(&["--json", &probe, "--", "bytes", &bytes]).stdout);
    let dropped: u64 = events.iter().filter_map(|event| event["bytes"].as_u64()).sum();
    let total = &events.last().unwrap()["task"]["output_bytes"];
    assert_eq!(*total, text_of(&events).len() as u64 + dropped);
}

#[test]
fn what_was_dropped_of_the_log_is_told_where_it_is_missing() {
    const BYTES: usize = 2_000_000;
    let input = format!(r#"{{"mode":"flood-stderr","bytes":{BYTES}}}"#);
    let args = ["run", "-q", "--plugins", &kinds(), "faulty", "--input", &input];
    // A reader that lags behind.
    let script = r#""$@" 2>&1 >/dev/null | (head -c 1; sleep 0.5; cat)"#;
    let ended = Process::shell(script, args).wait();
    let mut told = 0;
    let mut shown = 0;
    for part in ended.stdout.split(" bytes of the log were dropped here\n") {
        match part.rsplit_once("backlot: ") {
            Some((text, bytes)) => {
                shown += text.len();
                told += bytes.parse::<usize>().unwrap();
            }
            None => shown += part.len(),
        }
    }
    assert!(told > 0);
    assert_eq!(shown + told, BYTES);
}

#[test]
fn a_variable_that_cannot_be_read_is_not_repeated() {
    for args in [&["--env", "hunter2"][..], &["--env", "=hunter2"], &["--env==hunter2"]] {
        let ended = run(&[args, &["ticker", "--json"]].concat());
        assert_eq!(ended.code, Some(2), "{args:?}: {}", ended.stderr);
        assert!(ended.stderr.contains("NAME=VALUE"), "{}", ended.stderr);
        assert!(!ended.stderr.contains("hunter2") && !ended.stdout.contains("hunter2"));
    }
}

#[test]
fn a_command_line_that_cannot_be_understood_is_json_where_that_was_asked_for() {
    let ended = Process::run(["run", "--json", "--bad", "ticker"]);
    let event: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(
        event,
        serde_json::json!({"event":"refused","error":"unexpected argument '--bad' found","exit":2})
    );
    assert_eq!(ended.code, Some(2));
    assert!(ended.stderr.contains("Usage"), "{}", ended.stderr);

    let ended = Process::run(["check", "--json"]);
    let report: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!((&report["files"], ended.code), (&serde_json::json!([]), Some(2)));
    assert!(report["error"].as_str().unwrap().contains("FILE.wasm"), "{report}");

    let long = "x".repeat(100_000) + ".wasm";
    for args in [["run", "--json", &long], ["run", "--json", &format!("--{long}")]] {
        let ended = Process::run(args);
        let event: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
        assert!(event["error"].as_str().unwrap().len() <= 1024, "{event}");
    }
}

#[test]
fn an_empty_variable_names_no_plugin_folder_and_a_missing_folder_is_named() {
    let ended = Process::start_with(["run", "faulty", "--input", r#"{"mode":"now"}"#], |command| {
        command.env("BACKLOT_PLUGINS", "");
    })
    .wait();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let ended = Process::start_with(["run", "faulty"], |command| {
        command.env("BACKLOT_PLUGINS", "/no/such/folder");
    })
    .wait();
    assert_eq!(ended.code, Some(3));
    assert!(ended.stderr.contains("folder /no/such/folder is missing"), "{}", ended.stderr);
}

#[test]
fn paths_need_not_be_text() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &[u8]| folder.path().join(OsStr::from_bytes(name));
    fs::copy(program("probe"), at(b"p\xff.wasm")).unwrap();
    fs::write(at(b"in\xff"), "from a file").unwrap();
    let mut input = OsString::from("@");
    input.push(at(b"in\xff"));
    let ended = Process::run([
        "run".into(),
        at(b"p\xff.wasm").into_os_string(),
        "--input".into(),
        input,
        "--".into(),
        "cat".into(),
    ]);
    assert_eq!((ended.stdout.as_str(), ended.code), ("from a file", Some(0)), "{}", ended.stderr);
}

#[test]
fn the_hosts_log_has_colours_only_on_a_terminal() {
    let ended = run(&["-vv", "faulty", "--input", r#"{"mode":"now"}"#]);
    assert!(ended.stderr.contains("DEBUG"), "{}", ended.stderr);
    assert!(!ended.stderr.contains('\x1b'), "{}", ended.stderr);
}

/// The search finds what git finds in this very tree.
#[test]
fn grep_finds_what_git_finds() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let git = std::process::Command::new("git")
        .args(["grep", "-In", "--untracked", "fn main"])
        .current_dir(root)
        .output()
        .unwrap();
    let want: Vec<String> =
        String::from_utf8(git.stdout).unwrap().lines().map(|line| format!("/src/{line}")).collect();
    let dir = format!("{}::/src:ro", root.display());
    let ended = run(&["grep", "--input", r#"{"pattern":"fn main","path":"/src"}"#, "--dir", &dir]);
    let mut found: Vec<&str> = ended.stdout.lines().collect();
    let mut want: Vec<&str> = want.iter().map(String::as_str).collect();
    found.sort_unstable();
    want.sort_unstable();
    assert!(!want.is_empty());
    assert_eq!(found, want);
}

#[test]
fn check_tells_what_a_component_is() {
    let checked =
        Process::run(["check".into(), kind("ticker"), program("hello"), kind("pipeline")]);
    assert_eq!(checked.code, Some(0), "{}", checked.stderr);
    for line in [
        "  form       stream-producer",
        "  contract   backlot:producer@0.1.0",
        "  kind       ticker",
        "backlot:producer/output@0.1.0",
        "  form       command",
        "  exit codes 0 and 1",
        "  may need   environment variables: --env NAME=VALUE",
        "  form       stepped-final-producer",
        "  steps      decides what follows each run of its jobs",
    ] {
        assert!(checked.stdout.contains(line), "{line:?} is missing:\n{}", checked.stdout);
    }
}

#[test]
fn check_refuses_what_cannot_be_run_and_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let bad = folder.path().join("bad.wasm");
    fs::write(&bad, "text").unwrap();
    let checked = Process::run(["check".into(), bad, folder.path().join("missing"), kind("grep")]);
    assert_eq!(checked.code, Some(3));
    assert_eq!(checked.stderr.lines().count(), 2, "{}", checked.stderr);
    assert!(checked.stdout.contains("  kind       grep"));
    let checked = Process::run([
        "check".into(),
        "--json".into(),
        kind("noop"),
        folder.path().join("missing"),
    ]);
    let report: serde_json::Value = serde_json::from_str(&checked.stdout).unwrap();
    assert_eq!(
        (&report["files"][0]["ok"], &report["files"][1]["ok"]),
        (&true.into(), &false.into())
    );
    assert_eq!(report["files"][0]["form"], "producer");
    assert_eq!(report["files"][0]["steps"], false);
}

#[test]
fn help_and_version_go_to_stdout() {
    for args in [&["--help"][..], &["--version"], &["run", "--help"], &["check", "--help"]] {
        let ended = Process::run(args);
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
        assert!(ended.stdout.contains("backlot"), "{}", ended.stdout);
    }
    assert!(backlot().is_file());
}

/// Unhandled, the signal of a file-size limit would end the host.
#[test]
fn a_write_past_the_file_size_limit_is_an_error_of_that_write() {
    let folder = tempfile::tempdir().unwrap();
    let script = r#"ulimit -f 4000; exec "$0" run --plugins "$1" faulty --dir "$2::/g:rw" --input \
        '{"mode":"flood","bytes":60000000}'"#;
    let ended = Process::start_with(["--version"], |command| {
        *command = std::process::Command::new("sh");
        command
            .args(["-c", script])
            .arg(backlot())
            .arg(kinds())
            .arg(folder.path())
            .env("BACKLOT_DATA", folder.path().join("data"))
            .stdin(std::process::Stdio::null())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped());
    })
    .wait();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.stderr.contains("completed"), "{}", ended.stderr);
}
