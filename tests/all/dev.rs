//! `backlot dev`: a component that is run anew whenever it changes.

use std::{
    fs::{self, File},
    process::Command,
};

use backlot_tests::{Process, ver};

#[test]
fn a_file_is_run_anew_when_it_changes() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ver.wasm");
    fs::write(&file, ver('A')).unwrap();
    let mut dev = Process::start(["dev", file.to_str().unwrap(), "--", "20", "1000000"]);
    assert_eq!(dev.line(), "A");
    // What cannot be run changes nothing.
    fs::write(&file, "text").unwrap();
    assert!(dev.error_line().starts_with("dev: ver, version 1 ("));
    assert!(dev.error_line().contains("found no WebAssembly"));
    assert_eq!(dev.line(), "A");
    // What is as it was changes nothing either.
    fs::write(&file, ver('A')).unwrap();
    assert!(dev.error_line().starts_with("dev: ver, version 1 ("));
    fs::write(&file, ver('B')).unwrap();
    while dev.line() != "B" {}
    assert_eq!(dev.line(), "B");
    dev.signal("INT");
    let ended = dev.wait();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(!ended.stdout.contains('A'), "{ended:?}");
    for line in ["dev: ver, version 2 (", "reason: there is a new version"] {
        assert_eq!(ended.stderr.matches(line).count(), 1, "{line}: {ended:?}");
    }
}

#[test]
fn a_signal_ends_it_also_while_its_input_does_not_come() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    fs::write(at("ver.wasm"), ver('A')).unwrap();
    assert!(Command::new("mkfifo").arg(at("input")).status().unwrap().success());
    let dev = Process::start(["dev", &at("ver.wasm"), "--input", &format!("@{}", at("input"))]);
    // Opened once the other side is, which then waits for what is never written.
    let _input = File::options().write(true).open(at("input")).unwrap();
    dev.signal("INT");
    let ended = dev.wait();
    assert_eq!(ended.code, Some(0), "{ended:?}");
}

#[test]
fn a_crate_is_built_and_run_anew_when_its_sources_change() {
    let folder = tempfile::tempdir().unwrap();
    let at = |path: &str| folder.path().join(path);
    fs::create_dir(at("src")).unwrap();
    let manifest = "[package]\nname = \"greeter\"\nversion = \"0.1.0\"\nedition = \"2024\"\n";
    fs::write(at("Cargo.toml"), format!("{manifest}[workspace]\n")).unwrap();
    let write = |main: &str| fs::write(at("src/main.rs"), main).unwrap();
    write(r#"fn main() { println!("one") }"#);
    let mut dev = Process::start_with(["dev", folder.path().to_str().unwrap()], |command| {
        // The target folder of these tests is theirs.
        command.env("CARGO_TARGET_DIR", at("target"));
    });
    assert_eq!(dev.line(), "one");
    write(r#"fn main() { println!("two" }"#);
    write(r#"fn main() { println!("three") }"#);
    assert_eq!(dev.line(), "three");
    dev.signal("INT");
    let ended = dev.wait();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stderr.contains("dev: building"), "{ended:?}");
}

#[test]
fn what_is_neither_is_a_slip_of_the_command_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let missing = format!("{path}/missing");
    for (args, why) in [
        (vec!["dev", path], "there is no crate in "),
        (vec!["dev", &missing], "cannot read "),
        (vec!["dev", "--release", "/bin/sh"], "--release and --bin are for crates"),
    ] {
        let refused = Process::run(&args);
        assert_eq!(refused.code, Some(2), "{refused:?}");
        assert!(refused.stderr.contains(why), "{refused:?}");
    }
}
