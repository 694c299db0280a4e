//! The policy of the host, without the engine that the rest of its crate stands on.

#![allow(dead_code, reason = "the targets need part of what the host needs")]

#[path = "../../host/wasm/src/limits.rs"]
mod limits;
#[path = "../../host/wasm/src/policy/mod.rs"]
pub mod policy;

use policy::{Ask, Hints, Manifest, PolicyError, Rules, Sort, Sources, decide, explain};

/// How many lines one file is answered with: twenty problems, and how many more.
const LINES: usize = 21;
/// The longest of them, in bytes.
const LINE_BYTES: usize = 512;

/// Holds that what is wrong with a file is told in a few lines of bounded length, each
/// about a line that the file has.
pub fn told_well(error: &PolicyError, text: &str) {
    let lines = text.split('\n').count();
    assert!(!error.problems.is_empty());
    for problem in &error.problems {
        assert!((1..=lines).contains(&problem.line), "{problem}");
        assert!(problem.what.len() <= LINE_BYTES, "{problem}");
        assert!(!problem.what.contains(char::is_control), "{problem:?}");
    }
    assert!(error.to_string().lines().count() <= LINES);
}

/// Holds that whatever was read can be decided by and explained.
pub fn used_well(rules: &Rules, manifest: Option<&Manifest>) {
    let decided = decide(rules, manifest, &Ask::default(), &Sources::default());
    match &decided {
        Ok(decision) => {
            let _ = (decision.hints.of(Sort::Tcp), decision.hints.of(Sort::Secret));
        }
        Err(denial) => assert!(!denial.to_string().is_empty()),
    }
    assert!(!explain(rules, manifest).is_empty());
    let _ = Hints::default().of(Sort::Folder);
}
