//! The commands beside `run` and `check`: `kinds`, `doctor`, `completions`, `man`.

use std::{
    ffi::OsStr,
    fs,
    os::unix::{
        ffi::OsStrExt as _,
        fs::{PermissionsExt as _, symlink},
    },
    path::Path,
    process::Command,
    time::Duration,
};

use backlot_tests::{Ended, Process, kind};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A plugin folder with two kinds and everything that is not one.
fn mixed() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::copy(kind("ticker"), at("ticker.wasm")).unwrap();
    symlink(kind("noop"), at("noop.wasm")).unwrap();
    // Neither of these is meant to be a kind.
    fs::write(at("README"), "text").unwrap();
    fs::write(at(".noop.new"), "text").unwrap();
    // Each of these is, and is broken.
    fs::copy(kind("noop"), at("another.wasm")).unwrap();
    symlink("nowhere", at("dangling.wasm")).unwrap();
    fs::create_dir(at("folder.wasm")).unwrap();
    fs::File::create(at("huge.wasm")).unwrap().set_len(1 << 40).unwrap();
    assert!(Command::new("mkfifo").arg(at("pipe.wasm")).status().unwrap().success());
    fs::write(at("text.wasm"), "text").unwrap();
    fs::write(at("Not\na kind.wasm"), "text").unwrap();
    fs::write(folder.path().join(OsStr::from_bytes(b"\xff.wasm")), "text").unwrap();
    folder
}

fn kinds(folder: &Path, args: &[&str]) -> Ended {
    let mut all = vec![OsStr::new("kinds"), OsStr::new("--plugins"), folder.as_os_str()];
    all.extend(args.iter().map(OsStr::new));
    Process::run(all)
}

fn json_of(ended: &Ended) -> Value {
    assert_eq!(ended.stdout.lines().count(), 1, "{}", ended.stdout);
    serde_json::from_str(&ended.stdout).unwrap()
}

#[test]
fn kinds_are_listed_with_tabs_in_a_pipe() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["ticker", "grep"] {
        fs::copy(kind(name), folder.path().join(format!("{name}.wasm"))).unwrap();
    }
    let listed = kinds(folder.path(), &[]);
    assert_eq!((listed.code, listed.stderr.as_str()), (Some(0), ""));
    let rows: Vec<Vec<&str>> =
        listed.stdout.lines().map(|line| line.split('\t').collect()).collect();
    assert_eq!(rows.len(), 2, "{}", listed.stdout);
    assert_eq!((rows[0][0], rows[0][1]), ("grep", "stream-producer"));
    assert_eq!((rows[1][0], rows[1][1]), ("ticker", "stream-producer"));
    assert!(rows.iter().all(|row| row.len() == 3 && !row[2].is_empty()), "{}", listed.stdout);
}

#[test]
fn broken_files_are_told_after_the_kinds_that_are_there() {
    let folder = mixed();
    let listed = kinds(folder.path(), &[]);
    assert_eq!(listed.code, Some(1), "{}", listed.stderr);
    let names: Vec<&str> =
        listed.stdout.lines().filter_map(|line| line.split('\t').next()).collect();
    assert_eq!(names, ["noop", "ticker"]);
    let reasons: Vec<&str> = listed.stderr.lines().collect();
    let wanted = [
        ("a kind.wasm", "is not a kind"),
        ("another.wasm", "rename it to noop.wasm"),
        ("dangling.wasm", "it is a link to nothing"),
        ("folder.wasm", "it is a folder"),
        ("huge.wasm", "larger than a component can be"),
        ("pipe.wasm", "it is not a regular file"),
        ("text.wasm", "text.wasm: "),
        ("\u{fffd}.wasm", "is not a kind"),
    ];
    assert_eq!(reasons.len(), wanted.len(), "{}", listed.stderr);
    for (line, (file, reason)) in reasons.iter().zip(wanted) {
        assert!(line.starts_with("backlot: ") && line.contains(file), "{file}: {line}");
        assert!(line.contains(reason), "{reason}: {line}");
    }
}

#[test]
fn kinds_as_json_are_one_document_with_the_broken_ones() {
    let folder = mixed();
    let listed = kinds(folder.path(), &["--json"]);
    assert_eq!((listed.code, listed.stderr.as_str()), (Some(1), ""));
    let document = json_of(&listed);
    assert_eq!(document["folder"], folder.path().display().to_string());
    let kinds = document["kinds"].as_array().unwrap();
    assert_eq!(kinds.len(), 10, "{document}");
    for kind in kinds {
        let file = kind["file"].as_str().unwrap();
        match kind["ok"].as_bool().unwrap() {
            true => {
                assert!(file.ends_with(&format!("/{}.wasm", kind["kind"].as_str().unwrap())));
                assert!(kind["digest"].is_string() && kind.get("error").is_none(), "{kind}");
            }
            false => assert!(kind["error"].is_string() && kind.get("kind").is_none(), "{kind}"),
        }
    }
}

#[test]
fn a_folder_that_cannot_be_listed_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing");
    let listed = kinds(&missing, &[]);
    assert_eq!((listed.code, listed.stdout.as_str()), (Some(3), ""));
    assert_eq!(listed.stderr.lines().count(), 1, "{}", listed.stderr);
    assert!(listed.stderr.contains("missing is missing; build the kinds"), "{}", listed.stderr);

    let listed = kinds(&kind("noop"), &["--json"]);
    assert_eq!(listed.code, Some(3));
    let document = json_of(&listed);
    assert_eq!(document["kinds"], json!([]));
    assert!(document["error"].as_str().unwrap().contains("cannot list"), "{document}");

    let listed = kinds(folder.path(), &[]);
    assert_eq!((listed.code, listed.stdout.as_str()), (Some(0), ""));
    assert!(listed.stderr.contains("has no kinds"), "{}", listed.stderr);
    let listed = kinds(folder.path(), &["-q"]);
    assert_eq!((listed.code, listed.stderr.as_str()), (Some(0), ""));
}

#[test]
fn the_variable_names_the_folder_that_is_listed() {
    let folder = tempfile::tempdir().unwrap();
    fs::copy(kind("noop"), folder.path().join("noop.wasm")).unwrap();
    let listed = Process::start_with(["kinds"], |command| {
        command.env("BACKLOT_PLUGINS", folder.path());
    })
    .wait();
    assert!(listed.stdout.starts_with("noop\t"), "{}", listed.stdout);
}

#[test]
fn run_tells_a_link_to_nothing_from_a_kind_that_is_not_there() {
    let folder = mixed();
    let plugins = folder.path().as_os_str();
    let of = |kind: &str| {
        Process::run([OsStr::new("run"), OsStr::new("--plugins"), plugins, OsStr::new(kind)])
    };
    let ended = of("dangling");
    assert_eq!(ended.code, Some(3));
    assert!(ended.stderr.contains("it is a link to nothing"), "{}", ended.stderr);
    let ended = of("absent");
    assert_eq!(ended.code, Some(3));
    assert!(ended.stderr.contains("there is no kind `absent`"), "{}", ended.stderr);
}

#[test]
fn the_doctor_tells_of_every_check_and_its_exit_code_agrees() {
    let ended = Process::run(["doctor", "--json"]);
    let document = json_of(&ended);
    let checks = document["checks"].as_array().unwrap();
    let names: Vec<&str> = checks.iter().filter_map(|check| check["name"].as_str()).collect();
    assert_eq!(
        names,
        [
            "live tasks",
            "memory mappings",
            "open files",
            "address space",
            "memory",
            "spill folder",
            "compile cache",
            "data folder",
            "plugin folder",
            "inotify",
            "toolchain",
            "engine"
        ]
    );
    let failed = checks.iter().any(|check| check["status"] == "fail");
    assert_eq!(document["ok"], !failed);
    assert_eq!(ended.code, Some(i32::from(failed)), "{document}");
    for check in checks {
        assert_eq!(check["fix"].is_null(), check["status"] == "ok", "{check}");
    }
    let lines = Process::run(["doctor"]).stdout;
    assert_eq!(lines.lines().count(), checks.len(), "{lines}");
    for (line, check) in lines.lines().zip(checks) {
        assert!(line.starts_with(check["status"].as_str().unwrap()), "{line}");
        assert_eq!(line.contains("  → "), !check["fix"].is_null(), "{line}");
    }
}

fn found(document: &Value, name: &str) -> (String, String, String) {
    let check = document["checks"].as_array().unwrap().iter().find(|it| it["name"] == name);
    let text = |field: &str| check.unwrap()[field].as_str().unwrap_or_default().to_owned();
    (text("status"), text("value"), text("fix"))
}

#[test]
fn the_doctor_sees_lowered_limits() {
    let script = r#"ulimit -n 64; ulimit -v 4000000; exec "$@""#;
    let ended = Process::shell(script, ["doctor", "--json"]).wait();
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    let document = json_of(&ended);
    assert_eq!(document["ok"], false);
    let (status, value, fix) = found(&document, "open files");
    assert_eq!((status.as_str(), value.as_str()), ("warn", "64"));
    assert!(fix.contains("raise the hard limit to 4096"), "{fix}");
    let (status, value, fix) = found(&document, "address space");
    assert_eq!(status, "fail");
    assert!(value.starts_with("3.8 GiB; an engine for 16 tasks needs "), "{value}");
    assert!(fix.contains("`ulimit -v unlimited`"), "{fix}");
    let (status, value, _) = found(&document, "engine");
    assert_eq!(status, "fail");
    assert!(value.contains("not tried"), "{value}");

    // Enough for what the command line starts, and not for a host of the default
    // size, which then holds fewer tasks.
    let script = r#"ulimit -S -v 150000000; ulimit -S -n 100; exec "$@""#;
    let ended = Process::shell(script, ["doctor", "--json"]).wait();
    let document = json_of(&ended);
    let (status, value, fix) = found(&document, "live tasks");
    assert_eq!(status, "warn", "{document}");
    assert!(value.starts_with("22 fast, bounded by address space"), "{value}");
    assert!(fix.contains("`ulimit -v unlimited`"), "{fix}");
    assert_eq!(found(&document, "address space").0, "warn", "{document}");
    // The soft limit is raised.
    assert_eq!(found(&document, "open files").0, "ok", "{document}");
    assert_eq!(found(&document, "engine").0, "ok", "{document}");
}

#[test]
fn a_process_of_few_descriptors_still_runs_a_task() {
    let script = r#"ulimit -n 64; exec "$@""#;
    let ended = Process::shell(script, ["run", "noop"]).wait();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
}

#[test]
fn the_doctor_judges_the_folders_that_are_used() {
    let folder = tempfile::tempdir().unwrap();
    fs::copy(kind("noop"), folder.path().join("noop.wasm")).unwrap();
    let ended = Process::start_with(["doctor", "--json"], |command| {
        command.env("TMPDIR", folder.path().join("missing"));
        command.env("BACKLOT_PLUGINS", folder.path());
    })
    .wait();
    let document = json_of(&ended);
    assert_eq!(ended.code, Some(1));
    let (status, value, fix) = found(&document, "spill folder");
    assert!(status == "fail" && value.contains("missing") && fix.contains("TMPDIR"), "{value}");
    let (status, value, _) = found(&document, "plugin folder");
    assert_eq!((status, value), ("ok".into(), format!("{}, 1 kind", folder.path().display())));
}

#[test]
fn the_doctor_waits_for_no_rustc() {
    let folder = tempfile::tempdir().unwrap();
    let with_rustc = |script: &str| {
        let rustc = folder.path().join("rustc");
        fs::write(&rustc, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&rustc, fs::Permissions::from_mode(0o755)).unwrap();
        let ended = Process::start_with(["doctor", "--json"], |command| {
            command.env("PATH", folder.path());
        })
        .wait();
        let (status, value, _) = found(&json_of(&ended), "toolchain");
        (status, value, ended.took)
    };
    let here = folder.path().display();
    let (status, value, _) = with_rustc(&format!("echo {here}"));
    assert_eq!((status, value), ("warn".into(), format!("{here} without wasm32-wasip2")));

    fs::create_dir_all(folder.path().join("lib/rustlib/wasm32-wasip2")).unwrap();
    let (status, value, _) = with_rustc(&format!("echo {here}"));
    assert_eq!((status, value), ("ok".into(), format!("{here} with wasm32-wasip2")));

    let (status, value, _) = with_rustc("exit 1");
    assert_eq!((status.as_str(), value.as_str()), ("warn", "rustc does not tell where it is"));

    // With its children, or this test would wait for them: they hold its stdout.
    let (status, _, took) = with_rustc("/bin/sleep 600; echo late");
    assert_eq!(status, "warn");
    assert!(took < Duration::from_secs(10), "{took:?}");

    let (status, _, took) = with_rustc("while :; do echo /x; done");
    assert_eq!(status, "warn");
    assert!(took < Duration::from_secs(10), "{took:?}");

    fs::remove_file(folder.path().join("rustc")).unwrap();
    let ended = Process::start_with(["doctor", "--json"], |command| {
        command.env("PATH", folder.path());
    })
    .wait();
    let (status, value, _) = found(&json_of(&ended), "toolchain");
    assert_eq!((status.as_str(), value.as_str()), ("warn", "there is no rustc on the path"));
}

#[test]
fn completions_and_the_manual_go_to_stdout() {
    for (shell, holds) in [
        ("bash", "complete -F _backlot"),
        ("zsh", "#compdef backlot"),
        ("fish", "complete -c backlot"),
        ("elvish", "edit:completion:arg-completer[backlot]"),
        ("powershell", "Register-ArgumentCompleter"),
    ] {
        let ended = Process::run(["completions", shell]);
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
        assert!(ended.stdout.contains(holds), "{shell}: {}", ended.stdout);
        assert!(ended.stdout.contains("doctor"), "{shell}: {}", ended.stdout);
    }
    let ended = Process::run(["completions", "tcsh"]);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""));
    let ended = Process::run(["man"]);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    assert!(ended.stdout.contains(".TH backlot 1"), "{}", ended.stdout);
    assert!(ended.stdout.contains(".SH \"BACKLOT DOCTOR\""), "{}", ended.stdout);
}

#[test]
fn a_closed_pipe_is_quiet_and_a_full_disk_is_not() {
    let kinds = kind("noop").parent().unwrap().display().to_string();
    let folder = tempfile::tempdir().unwrap();
    let closed = folder.path().join("closed").display().to_string();
    let unread = format!(
        r#"[ -p '{closed}' ] || mkfifo '{closed}'
        (read _ < '{closed}'; "$@"; echo "code $?" >&2) | (exec <&-; echo > '{closed}')"#
    );
    for args in
        [&["completions", "bash"][..], &["man"], &["doctor"], &["kinds", "--plugins", &kinds]]
    {
        // Nobody reads from the start: that the pipe is closed is told before.
        let ended = Process::shell(&unread, args).wait();
        assert_eq!(ended.stderr, "code 0\n", "{args:?}");
        let ended = Process::shell(r#"exec "$@" >/dev/full"#, args).wait();
        assert_eq!(ended.code, Some(1), "{args:?}");
        assert!(ended.stderr.contains("cannot write to stdout"), "{args:?}: {}", ended.stderr);
    }
}

#[test]
fn command_lines_that_cannot_be_understood_are_json_where_that_was_asked_for() {
    let ended = Process::run(["kinds", "--json", "--bad"]);
    assert_eq!(ended.code, Some(2));
    assert_eq!(json_of(&ended), json!({"kinds": [], "error": "unexpected argument '--bad' found"}));
    let ended = Process::run(["doctor", "--json", "extra"]);
    assert_eq!(ended.code, Some(2));
    assert_eq!(
        json_of(&ended),
        json!({"ok": false, "checks": [], "error": "unexpected argument 'extra' found"})
    );
    assert!(ended.stderr.contains("Usage"), "{}", ended.stderr);
}

#[test]
fn a_machine_without_room_is_told_by_kinds() {
    let script = r#"ulimit -v 4000000; exec "$@""#;
    let folder = kind("noop").parent().unwrap().display().to_string();
    let ended = Process::shell(script, ["kinds", "--json", "--plugins", &folder]).wait();
    assert_eq!(ended.code, Some(3), "{}", ended.stderr);
    assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
    assert!(json_of(&ended)["error"].as_str().unwrap().contains("ulimit -v"));
}

#[test]
fn every_commands_help_has_its_exit_codes() {
    for verb in
        ["run", "kinds", "check", "doctor", "policy check", "policy explain", "completions", "man"]
    {
        let ended = Process::run(verb.split(' ').chain(["--help"]));
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
        assert!(ended.stdout.contains("Exit codes: 0 "), "{verb}: {}", ended.stdout);
    }
}
