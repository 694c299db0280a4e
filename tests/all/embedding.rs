//! The library, as a program that embeds it meets it.

use std::process::Command;

use backlot_tests::{example, kind};

#[test]
fn a_program_brings_a_kind_of_its_own_in_rust() {
    let folder = tempfile::tempdir().unwrap();
    let ran = Command::new(example("embed")).env("XDG_CACHE_HOME", folder.path()).output().unwrap();
    assert_eq!(
        String::from_utf8_lossy(&ran.stdout),
        "countdown-1: completed\n3\n2\n1\ncountdown-2: killed\n\
         countdown did not start: invalid input: \"many\": invalid digit found in string\n"
    );
    assert!(ran.status.success() && ran.stderr.is_empty(), "{ran:?}");
}

#[test]
fn a_kind_is_swapped_three_times_under_its_tasks() {
    let shown = Command::new(example("swap")).arg(kind("ticker")).output().unwrap();
    let text = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.status.success(), "{text}{}", String::from_utf8_lossy(&shown.stderr));
    for line in [
        "the host: version 2 serves",
        "the host: not taken: ",
        "the host: version 3 serves",
        "ticker-1 is completed, version 1, 191 bytes of output",
        "ticker-3 is completed, version 2, 191 bytes of output",
        "ticker-4 is completed, version 3, 191 bytes of output",
    ] {
        assert!(text.contains(line), "{line} is missing: {text}");
    }
}
