//! The operator's policy, as a person or a script meets it.

use std::{
    ffi::OsStr,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use backlot_tests::{Ended, Process, kind, program};
use serde_json::Value;
use tempfile::TempDir;

/// A folder with a policy and what that grants.
struct Place(TempDir);

impl Place {
    fn with(policy: &str) -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        fs::create_dir_all(place.at("data/deep")).unwrap();
        fs::write(place.at("data/deep/a.txt"), "needle\n").unwrap();
        fs::write(place.at("secret.txt"), "needle\n").unwrap();
        fs::write(place.at("backlot.toml"), policy).unwrap();
        place
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn run(&self, args: &[&str]) -> Ended {
        let policy = self.at("backlot.toml");
        let kinds = kinds();
        let own = [OsStr::new("--policy"), policy.as_os_str(), OsStr::new("--plugins")];
        let args = args.iter().map(OsStr::new);
        Process::run(own.into_iter().chain([kinds.as_os_str()]).chain(args))
    }

    /// Searches the folder that the task sees under that path.
    fn grep(&self, path: &str, flags: &[&str]) -> Ended {
        let input = format!(r#"{{"pattern":"needle","path":"{path}"}}"#);
        self.run(&[&["run", "grep", "--input", &input], flags].concat())
    }
}

fn kinds() -> PathBuf {
    kind("grep").parent().unwrap().to_owned()
}

const DATA: &str = "[kind.grep]\ndirs = [\"data::/in:ro\"]\n";

#[test]
fn a_task_gets_what_the_policy_gives_to_its_kind() {
    let place = Place::with(DATA);
    let ended = place.grep("/in", &[]);
    assert_eq!((ended.code, ended.stdout.contains("needle")), (Some(0), true), "{}", ended.stderr);
    // The same by the variable, and by the person's own configuration.
    let input = r#"{"pattern":"needle","path":"/in"}"#;
    let config = place.at("config/backlot");
    fs::create_dir_all(&config).unwrap();
    fs::write(config.join("backlot.toml"), "[kind.grep]\ndirs = ['../../data::/in']").unwrap();
    for (name, value) in
        [("BACKLOT_POLICY", place.at("backlot.toml")), ("XDG_CONFIG_HOME", place.at("config"))]
    {
        let plugins = kinds();
        let args = ["run", "grep", "--input", input, "--plugins"].map(OsStr::new);
        let ended = Process::start_with(args.into_iter().chain([plugins.as_os_str()]), |command| {
            command.env(name, value);
        })
        .wait();
        assert_eq!(ended.code, Some(0), "{name}: {}", ended.stderr);
    }
    // A policy in the working directory is nobody's.
    let plugins = kinds();
    let args = ["run", "grep", "--input", input, "--plugins"].map(OsStr::new);
    let ended = Process::start_with(args.into_iter().chain([plugins.as_os_str()]), |command| {
        command.current_dir(place.0.path());
    })
    .wait();
    assert_eq!(ended.code, Some(3), "{}", ended.stdout);
}

#[test]
fn a_start_narrows_and_never_widens() {
    let place = Place::with(DATA);
    let deep = format!("{}::/d", place.at("data/deep").display());
    let ended = place.grep("/d", &["--dir", &deep]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(place.grep("/in", &["--dir", &deep]).code == Some(3), "the rest is not there");

    let at = format!("{}:2 ([kind.grep] dirs)", place.at("backlot.toml").display());
    let data = place.at("data").display().to_string();
    let above = place.0.path().display().to_string();
    for (dir, says) in [
        (
            format!("{above}::/d"),
            format!("{at} does not list {above}; add \"{above}::/d:ro\" there"),
        ),
        (format!("{data}/..::/d"), format!("{at} does not list {above}")),
        (format!("{data}::/d:rw"), format!("{at} grants {data} for reading only; write :rw there")),
    ] {
        let ended = place.grep("/d", &["--dir", &dir]);
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(3), ""), "{dir}");
        assert!(ended.stderr.contains(&says), "{says}\n{}", ended.stderr);
        assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
    }
    let ended = place.grep("/in", &["--memory", "1GiB"]);
    assert_eq!(ended.code, Some(3));
    assert!(ended.stderr.contains("add memory = \"1GiB\" to [kind.grep]"), "{}", ended.stderr);
}

/// C21: what a start narrows a folder to is in that folder.
#[test]
fn c21_a_start_narrows_a_folder_to_nothing_outside_of_it() {
    let place = Place::with(DATA);
    fs::create_dir_all(place.at("database")).unwrap();
    fs::write(place.at("database/a.txt"), "needle\n").unwrap();
    symlink("..", place.at("data/up")).unwrap();
    symlink(place.at("database"), place.at("data/out")).unwrap();
    symlink("../database", place.at("data/deep/out")).unwrap();
    symlink("/proc/self/root", place.at("data/root")).unwrap();
    symlink("deep", place.at("data/same")).unwrap();
    let database = place.at("database").display().to_string();
    let data = place.at("data").display().to_string();
    for (below, code) in [
        (format!("{data}/up"), 3),
        (format!("{data}/up/database"), 3),
        (format!("{data}/out"), 3),
        (format!("{data}/deep/out"), 3),
        (format!("{data}/deep/../deep/out"), 3),
        (format!("{data}/root{database}"), 3),
        (format!("{data}/../database"), 3),
        (format!("{data}base"), 3),
        (format!("{data}/deep/../../database"), 3),
        (format!("{data}/a.txt"), 3),
        (format!("{data}/missing"), 3),
        // Links and dots that stay within are fine.
        (format!("{data}/same"), 0),
        (format!("{data}/deep/../deep"), 0),
        (format!("{data}//deep/."), 0),
    ] {
        let ended = place.grep("/d", &["--dir", &format!("{below}::/d")]);
        assert_eq!(ended.code, Some(code), "{below}: {}{}", ended.stdout, ended.stderr);
        assert_eq!(ended.stdout.contains("needle"), code == 0, "{below}: {}", ended.stdout);
        assert!(ended.stderr.lines().count() == 1 || code == 0, "{below}: {}", ended.stderr);
    }
    // The granted folder is swapped for a link between two starts.
    fs::rename(place.at("data"), place.at("away")).unwrap();
    let ended = place.grep("/in", &[]);
    assert_eq!(ended.code, Some(3), "{}", ended.stderr);
    assert!(ended.stderr.contains(&data), "{}", ended.stderr);
}

#[test]
fn a_manifest_bounds_what_its_plugin_gets() {
    let place = Place::with("");
    fs::copy(program("probe"), place.at("probe.wasm")).unwrap();
    fs::write(place.at("probe.toml"), "env = [\"ONE\"]\n").unwrap();
    let probe = place.at("probe.wasm").display().to_string();
    let env = |name: &str| {
        let value = format!("{name}=1");
        Process::run(["run", &probe, "--env", &value, "--", "env"])
    };
    let ended = env("ONE");
    assert_eq!((ended.code, ended.stdout.contains("ONE=1")), (Some(0), true), "{}", ended.stderr);
    let ended = env("TWO");
    let says = format!("{}:1 (env) does not list TWO", place.at("probe.toml").display());
    assert_eq!((ended.code, ended.stderr.contains(&says)), (Some(3), true), "{}", ended.stderr);

    fs::write(place.at("probe.toml"), "evn = []\nmemory = 0\n").unwrap();
    let ended = env("ONE");
    assert_eq!((ended.code, ended.stderr.lines().count()), (Some(3), 2), "{}", ended.stderr);
    assert!(ended.stderr.contains("did you mean `env`?"), "{}", ended.stderr);
}

#[test]
fn only_a_listed_digest_is_run() {
    let digest = format!("sha256:{}", "0".repeat(64));
    let place = Place::with(&format!("[kind.noop]\ndigest = [\"{digest}\"]"));
    let ended = place.run(&["run", "noop"]);
    assert_eq!(ended.code, Some(3), "{}", ended.stderr);
    assert!(ended.stderr.contains("may not be loaded as `noop`"), "{}", ended.stderr);
    assert!(ended.stderr.contains(":2 ([kind.noop] digest) does not list it"), "{}", ended.stderr);
}

/// A component names itself, and what a kind is given is not for whoever takes its name.
#[test]
fn a_file_that_is_named_otherwise_is_not_the_kind() {
    let place = Place::with(DATA);
    fs::copy(kind("grep"), place.at("harmless.wasm")).unwrap();
    fs::copy(kind("grep"), place.at("grep.wasm")).unwrap();
    let input = r#"{"pattern":"needle","path":"/in"}"#;
    let run = |file: &str| {
        let file = place.at(file).display().to_string();
        place.run(&["run", &file, "--input", input])
    };
    let ended = run("harmless.wasm");
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(3), ""), "{}", ended.stderr);
    assert!(ended.stderr.contains("describes itself as `grep`"), "{}", ended.stderr);
    assert_eq!(run("grep.wasm").code, Some(0));
}

#[test]
fn a_policy_that_is_wrong_stops_every_start() {
    let wrong = "[kind.grep]\ndrs = []\nmemory = 0\n";
    let place = Place::with(wrong);
    for args in [
        &["run", "noop"][..],
        &["policy", "check"],
        &["policy", "check", place.at("backlot.toml").to_str().unwrap()],
        &["policy", "explain", "grep"],
    ] {
        let ended = place.run(args);
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""), "{args:?}");
        let lines: Vec<&str> = ended.stderr.lines().collect();
        let file = place.at("backlot.toml");
        assert_eq!(lines.len(), 2, "{args:?}: {}", ended.stderr);
        assert!(lines[0].contains(&format!("{}:2: ", file.display())), "{}", lines[0]);
        assert!(lines[1].contains(&format!("{}:3: memory is 0", file.display())), "{}", lines[1]);
    }
    let ended = place.run(&["run", "noop", "--json"]);
    let event: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!((event["event"].as_str(), event["exit"].as_u64()), (Some("refused"), Some(2)));
    assert!(event["error"].as_str().unwrap().contains("memory is 0"), "{event}");
    let gone = place.at("gone.toml").display().to_string();
    let ended = Process::run(["run", "noop", "--policy", &gone]);
    assert_eq!((ended.code, ended.stderr.contains("cannot read")), (Some(2), true));
}

#[test]
fn a_policy_is_checked_and_explained() {
    let policy = format!("[host]\ntasks = 5\n{DATA}memory = \"64MiB\"\nenv = [\"LANG\"]\n");
    let place = Place::with(&policy);
    let ended = place.run(&["policy", "check"]);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    assert!(
        ended.stdout.contains("backlot.toml: ok\n  kinds            grep\n"),
        "{}",
        ended.stdout
    );

    let ended = place.run(&["policy", "explain", "grep"]);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    let at = format!("<- {}", place.at("backlot.toml").display());
    let line = |begins: &str| {
        let found = ended.stdout.lines().find(|line| line.starts_with(begins));
        found.unwrap_or_else(|| panic!("{begins}\n{}", ended.stdout)).to_owned()
    };
    let dir = line(&format!("dir {}::/in:ro", place.at("data").display()));
    assert!(
        dir.contains(&format!("{at}:4 ([kind.grep] dirs), "))
            && dir.ends_with("grep.toml:2 (dirs)")
    );
    assert!(line("memory 64 MiB").contains(&format!("{at}:5 ")));
    assert!(line("no env LANG").ends_with("grep.toml does not ask for it"));
    assert!(line("tasks 5 of all kinds").contains(&format!("{at}:2 ([host] tasks)")));

    let ended = place.run(&["policy", "explain", "grep", "--json"]);
    let document: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(document["kind"], "grep");
    let reaches = document["reaches"].as_array().unwrap();
    assert!(reaches.iter().any(|reach| reach["what"] == "memory 64 MiB"), "{document}");

    let ended = place.run(&["policy", "explain", "grpe", "--json"]);
    assert_eq!(ended.code, Some(3));
    let document: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert!(document["error"].as_str().unwrap().contains("there is no kind `grpe`"), "{document}");
    let ended = Process::run(["policy", "check"]);
    assert_eq!(ended.code, Some(2));
    assert!(ended.stderr.contains("there is no policy to check"), "{}", ended.stderr);
}

/// Every plugin of the tree asks for what it needs, and for nothing else.
#[test]
fn every_plugin_of_the_tree_is_explained() {
    let folder = kinds();
    let first = |kind: &str| {
        let ended = Process::run([
            OsStr::new("policy"),
            OsStr::new("explain"),
            OsStr::new(kind),
            OsStr::new("--plugins"),
            folder.as_os_str(),
        ]);
        assert_eq!(ended.code, Some(0), "{kind}: {}", ended.stderr);
        let line = ended.stdout.lines().next().unwrap().to_owned();
        line.replace(&*Path::new(&folder).join("").to_string_lossy(), "")
    };
    for kind in ["grep", "checksum"] {
        let line = first(kind);
        let words = line.split("  ").map(str::trim).filter(|word| !word.is_empty());
        let words: Vec<&str> = words.collect();
        let at = format!("<- {kind}.toml:2 (dirs)");
        assert_eq!(words, ["dir *:ro, where a start asks for it", &at]);
    }
    for kind in ["ticker", "noop"] {
        assert!(
            first(kind).starts_with("lookup listed"),
            "{kind} asks for nothing: {}",
            first(kind)
        );
    }
    assert!(first("faulty").starts_with("what a start asks for"), "{}", first("faulty"));
}
