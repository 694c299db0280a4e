//! `backlot plugin`: a plugin folder that is looked at and changed.

use std::{fs, os::unix::fs::symlink, path::Path, process::Command};

use backlot_tests::{Ended, Process, kind, same_but_new};
use serde_json::{Value, json};
use tempfile::TempDir;

struct Fixture {
    folder: TempDir,
}

impl Fixture {
    /// Returns a folder with `noop` in `plugins`, and another version of it beside.
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("plugins")).unwrap();
        fs::copy(kind("noop"), folder.path().join("plugins/noop.wasm")).unwrap();
        let fixture = Self { folder };
        fs::write(fixture.at("new.wasm"), fixture.version(1)).unwrap();
        fixture
    }

    fn at(&self, path: &str) -> std::path::PathBuf {
        self.folder.path().join(path)
    }

    fn version(&self, number: u32) -> Vec<u8> {
        same_but_new(&fs::read(kind("noop")).unwrap(), number)
    }

    fn used(&self) -> Option<Vec<u8>> {
        fs::read(self.at("plugins/noop.wasm")).ok()
    }

    fn run(&self, args: &[&str]) -> Ended {
        let plugins = self.at("plugins");
        Process::start_with(args, |command| {
            command.env("BACKLOT_PLUGINS", plugins).current_dir(self.folder.path());
        })
        .wait()
    }

    fn json(&self, args: &[&str]) -> Value {
        let ended = self.run(&[args, &["--json"]].concat());
        assert_eq!(ended.stdout.lines().count(), 1, "{ended:?}");
        serde_json::from_str(&ended.stdout).unwrap()
    }

    /// Returns what is in the folder and above it, hidden things of the program's own
    /// left out.
    fn listing(&self) -> Vec<String> {
        fn list(folder: &Path, into: &mut Vec<String>) {
            for entry in fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.file_name().unwrap() == ".backlot" {
                    continue;
                }
                into.push(path.display().to_string());
                if path.is_dir() {
                    list(&path, into);
                }
            }
        }
        let mut all = Vec::new();
        list(self.folder.path(), &mut all);
        all.sort();
        all
    }
}

#[test]
fn a_component_is_put_in_place_of_its_kind_and_back() {
    let fixture = Fixture::new();
    let loaded = fixture.json(&["plugin", "load", "new.wasm"]);
    assert_eq!(loaded["kind"], "noop");
    assert_eq!(fixture.used().unwrap(), fixture.version(1));
    assert_eq!(loaded["kept"].as_array().unwrap().len(), 1);
    let again = fixture.run(&["plugin", "load", "new.wasm"]);
    assert!(again.stdout.contains(" as before"), "{again:?}");

    let back = fixture.json(&["plugin", "rollback", "noop"]);
    assert_eq!(back["digest"], loaded["kept"][0]);
    assert_eq!(fixture.used().unwrap(), fs::read(kind("noop")).unwrap());
    assert_eq!(back["kept"], json!([loaded["digest"]]));
    let listed = fixture.json(&["plugin", "ls"]);
    assert_eq!(listed["plugins"][0]["state"], "serving");
    assert_eq!(listed["plugins"][0]["digest"], back["digest"]);

    // By the beginning of its digest.
    let digits = &loaded["digest"].as_str().unwrap()[7..13];
    let to = fixture.json(&["plugin", "rollback", "noop", "--to", digits]);
    assert_eq!(to["digest"], loaded["digest"]);
    let refused = fixture.run(&["plugin", "rollback", "noop", "--to", "zz"]);
    assert_eq!(refused.code, Some(3));
    assert!(refused.stderr.contains("noop has no version `zz`: it has "), "{refused:?}");
}

#[test]
fn what_cannot_be_run_changes_nothing() {
    let fixture = Fixture::new();
    let before = fixture.used();
    fs::write(fixture.at("half.wasm"), &fixture.version(1)[..1000]).unwrap();
    fs::write(fixture.at("bad.toml"), "dir = 1").unwrap();
    fs::copy(fixture.at("new.wasm"), fixture.at("bad.wasm")).unwrap();
    for (file, why) in [
        ("half.wasm", "does not compile"),
        ("missing.wasm", "cannot read missing.wasm"),
        ("bad.wasm", "bad.toml:1: a manifest has no key `dir`"),
    ] {
        let refused = fixture.run(&["plugin", "load", file]);
        assert_eq!((refused.code, refused.stdout.as_str()), (Some(3), ""), "{file}");
        assert!(refused.stderr.contains(why), "{refused:?}");
        let told = fixture.json(&["plugin", "load", file]);
        assert_eq!(told["state"], "refused");
        assert!(told["error"].as_str().unwrap().contains(why), "{told}");
    }
    // Nor does what the policy does not admit.
    let digest = format!("sha256:{}", "0".repeat(64));
    fs::write(fixture.at("p.toml"), format!("[kind.noop]\ndigest = [\"{digest}\"]")).unwrap();
    let refused = fixture.run(&["plugin", "load", "new.wasm", "--policy", "p.toml"]);
    assert_eq!(refused.code, Some(3));
    assert!(refused.stderr.contains("p.toml:2 ([kind.noop] digest) does not list it"));
    assert_eq!(fixture.used(), before);
    let none = fixture.run(&["plugin", "rollback", "noop"]);
    assert!(none.stderr.contains("noop has nothing to go back to"), "{none:?}");
}

#[test]
fn an_unloaded_kind_is_listed_and_comes_back_with_its_manifest() {
    let fixture = Fixture::new();
    fs::write(fixture.at("plugins/noop.toml"), "env = [\"A\"]").unwrap();
    let unloaded = fixture.json(&["plugin", "unload", "noop"]);
    assert_eq!((&unloaded["state"], fixture.used()), (&json!("unloaded"), None));
    assert!(!fixture.at("plugins/noop.toml").exists());
    let run = fixture.run(&["run", "noop"]);
    assert_eq!(run.code, Some(3));
    assert!(run.stderr.contains("there is no kind `noop`"), "{run:?}");
    let listed = fixture.run(&["plugin", "ls"]);
    let line: Vec<&str> = listed.stdout.trim_end().split('\t').collect();
    assert_eq!(line[..4], ["noop", "unloaded", "-", "-"], "{listed:?}");
    assert_eq!(fixture.run(&["plugin", "unload", "noop"]).code, Some(3));
    assert_eq!(fixture.run(&["plugin", "rollback", "noop"]).code, Some(0));
    assert_eq!(fs::read_to_string(fixture.at("plugins/noop.toml")).unwrap(), "env = [\"A\"]");
    assert_eq!(fixture.run(&["run", "noop"]).code, Some(0));
}

#[test]
fn what_is_no_file_is_left_where_it_is() {
    let fixture = Fixture::new();
    let made = Command::new("mkfifo").arg(fixture.at("plugins/pipe.wasm")).status().unwrap();
    assert!(made.success());
    symlink(fixture.at("plugins/pipe.wasm"), fixture.at("plugins/link.wasm")).unwrap();
    for kind in ["pipe", "link"] {
        let refused = fixture.run(&["plugin", "unload", kind]);
        assert_eq!(refused.code, Some(3), "{refused:?}");
        assert!(refused.stderr.contains(&format!("{kind}.wasm is not a regular file")));
    }
    // Nor is it replaced.
    fs::rename(fixture.at("plugins/pipe.wasm"), fixture.at("plugins/other.wasm")).unwrap();
    fs::remove_file(fixture.at("plugins/noop.wasm")).unwrap();
    fs::rename(fixture.at("plugins/other.wasm"), fixture.at("plugins/noop.wasm")).unwrap();
    let refused = fixture.run(&["plugin", "load", "new.wasm"]);
    assert_eq!(refused.code, Some(3), "{refused:?}");
    assert!(refused.stderr.contains("noop.wasm is not a regular file"), "{refused:?}");
    // A link is taken away, and what it leads to stays.
    symlink(kind("noop"), fixture.at("plugins/linked.wasm")).unwrap();
    assert_eq!(fixture.run(&["plugin", "unload", "linked"]).code, Some(0));
    assert!(kind("noop").exists());
}

#[test]
fn names_are_never_paths() {
    let fixture = Fixture::new();
    let before = fixture.listing();
    let long = "a".repeat(300);
    for name in ["../../x", "..", "", ".", "/etc", "a/b", "a\\b", "%2e%2e%2f", "a\nb", &long] {
        for verb in ["inspect", "unload", "reload", "rollback", "drain"] {
            let refused = fixture.run(&["plugin", verb, name]);
            assert_eq!(refused.code, Some(2), "{verb} {name:?}: {refused:?}");
            assert!(refused.stderr.contains("is not a kind"), "{verb} {name:?}: {refused:?}");
        }
    }
    assert_eq!(fixture.listing(), before);
    for verb in ["inspect", "unload", "reload", "rollback", "drain"] {
        let unknown = fixture.run(&["plugin", verb, "nothing"]);
        assert_eq!(unknown.code, Some(3), "{verb}: {unknown:?}");
        assert!(unknown.stderr.contains("nothing"), "{verb}: {unknown:?}");
    }
}

#[test]
fn broken_files_are_listed_with_the_reason() {
    let fixture = Fixture::new();
    fs::write(fixture.at("plugins/text.wasm"), "text").unwrap();
    for args in [["plugin", "ls"], ["plugin", "reload"]] {
        let listed = fixture.run(&args);
        assert_eq!(listed.code, Some(1), "{listed:?}");
        assert!(listed.stdout.contains("noop"), "{listed:?}");
        assert!(listed.stderr.contains("text.wasm: found no WebAssembly"), "{listed:?}");
        let document = fixture.json(&args);
        let text = &document["plugins"][1];
        assert_eq!((&text["kind"], &text["state"]), (&json!("text"), &json!("broken")));
    }
    let missing = fixture.at("missing");
    for verb in ["ls", "reload"] {
        let none = Process::run(["plugin", verb, "--json", "--plugins", missing.to_str().unwrap()]);
        assert_eq!(none.code, Some(3));
        let document: Value = serde_json::from_str(&none.stdout).unwrap();
        assert_eq!(document["plugins"], json!([]));
        let error = document["error"].as_str().unwrap();
        assert!(error.starts_with("cannot list the plugin folder"), "{none:?}");
    }
}

#[test]
fn inspect_tells_the_component_its_versions_and_what_it_may_reach() {
    let fixture = Fixture::new();
    fixture.run(&["plugin", "load", "new.wasm"]);
    fs::write(fixture.at("p.toml"), "[kind.noop]\ntcp = [\"a.example:1\"]").unwrap();
    let args = ["plugin", "inspect", "noop", "--policy", "p.toml"];
    let text = fixture.run(&args).stdout;
    for part in ["contract   backlot:producer@0.1.0", "  kept  ", "tcp a.example:1  <- p.toml:2"] {
        assert!(text.contains(part), "{part} is missing: {text}");
    }
    let document = fixture.json(&args);
    assert_eq!(document["kept"].as_array().unwrap().len(), 1);
    assert_eq!(document["form"], "producer");
    let reaches = document["reaches"].as_array().unwrap();
    assert!(reaches.iter().any(|reach| reach["what"] == "tcp a.example:1"), "{reaches:?}");
}

#[test]
fn a_drain_waits_for_tasks_of_other_processes() {
    let fixture = Fixture::new();
    fs::copy(kind("ticker"), fixture.at("plugins/ticker.wasm")).unwrap();
    let plugins = fixture.at("plugins");
    let input = r#"{"count":100000,"every_ms":20}"#;
    let mut runs = Process::start_with(["run", "ticker", "--input", input], |command| {
        command.env("BACKLOT_PLUGINS", &plugins);
    });
    runs.line();
    let late = fixture.run(&["plugin", "drain", "ticker", "--timeout", "50ms"]);
    assert_eq!(late.code, Some(1), "{late:?}");
    assert!(late.stderr.contains("a host still runs tasks of ticker"), "{late:?}");
    let mut drains = Process::start_with(["plugin", "drain", "ticker"], |command| {
        command.env("BACKLOT_PLUGINS", &plugins);
    });
    drains.some_stderr();
    runs.signal("INT");
    assert_eq!(runs.wait().code, Some(4));
    let drained = drains.wait();
    assert_eq!(drained.code, Some(0));
    assert!(drained.stdout.starts_with("ticker: drained in "), "{drained:?}");
}
