//! The command line, as a person or a script meets it.

use std::{fs, time::Duration};

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

#[test]
fn exit_codes_tell_how_it_ended() {
    let probe = program("probe").display().to_string();
    assert_eq!(run(&[&probe, "--", "exit", "0"]).code, Some(0));
    let failed = run(&[&probe, "--", "exit", "1"]);
    assert_eq!((failed.code, failed.stdout.as_str()), (Some(1), "leaving\n"));
    assert!(failed.stderr.contains("exit code: 1"), "{}", failed.stderr);
    assert_eq!(run(&[&probe, "--", "trap"]).code, Some(1));
    assert_eq!(run(&["ticker", "--input", "{}"]).code, Some(3));
    assert_eq!(run(&["--no-such-flag"]).code, Some(2));
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
        (&["ticker", "--input", "@/no/such/file"], 2, "/no/such/file"),
        (&["ticker", "--input", "not json"], 3, "JSON"),
        (&["ticker", "--", "x"], 2, "--input"),
        (&[&hello, "--dir", &missing], 3, "missing"),
        (&[&hello, "--dir", &hello], 3, "cannot be opened"),
        (&[&hello, "--dir", "::"], 2, "HOST[::GUEST]"),
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
        serde_json::json!({"event":"started","id":"ticker-1","kind":"ticker","label":"two"})
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
    let checked = Process::run(["check".into(), kind("ticker"), program("hello")]);
    assert_eq!(checked.code, Some(0), "{}", checked.stderr);
    for line in [
        "  form       stream-producer",
        "  contract   backlot:producer@0.1.0",
        "  kind       ticker",
        "backlot:producer/output@0.1.0",
        "  form       command",
        "  exit codes 0 and 1",
        "  may need   environment variables: --env NAME=VALUE",
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
