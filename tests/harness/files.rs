//! Where the things under test were built to.

use std::{env, path::PathBuf};

/// Returns the path of a first-party kind.
///
/// # Panics
///
/// When it was not built.
pub fn kind(name: &str) -> PathBuf {
    built(&format!("plugins/{name}.wasm"), "just plugins")
}

/// Returns the folder that the first-party kinds are in.
///
/// # Panics
///
/// When they were not built.
pub fn kinds() -> PathBuf {
    built("plugins", "just plugins")
}

/// Returns the path of a plain program of the tests.
///
/// # Panics
///
/// When it was not built.
pub fn program(name: &str) -> PathBuf {
    built(&format!("wasm32-wasip2/guest/{name}.wasm"), "just test")
}

/// Returns the path of the `backlot` binary of this build.
///
/// # Panics
///
/// When it was not built.
pub fn backlot() -> PathBuf {
    let beside = target().1.join("backlot");
    assert!(beside.exists(), "{} is missing: run `just test`", beside.display());
    beside
}

/// Returns the path of an example of this build.
///
/// # Panics
///
/// When it was not built.
pub fn example(name: &str) -> PathBuf {
    let path = target().1.join("examples").join(name);
    assert!(path.exists(), "{} is missing: run `just test`", path.display());
    path
}

/// Returns the folder where tests keep compiled code.
pub fn cache() -> PathBuf {
    target().0.join("test-cache")
}

fn built(path: &str, recipe: &str) -> PathBuf {
    let path = target().0.join(path);
    assert!(path.exists(), "{} is missing: run `{recipe}`", path.display());
    path
}

/// Returns the target folder and, in it, the folder of this build's profile.
fn target() -> (PathBuf, PathBuf) {
    // target/<profile>/deps/<this test>
    let test = env::current_exe().expect("a running test has a path");
    let profile = test.ancestors().nth(2).expect("tests run from a target folder");
    let target = profile.parent().expect("a profile folder has a parent");
    (target.to_owned(), profile.to_owned())
}
