//! The library, as a program that embeds it meets it.

use std::process::Command;

use backlot_tests::example;

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
