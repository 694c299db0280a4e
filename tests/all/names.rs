//! Names and folders that are not what they should be.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
};

use backlot::{Config, KindError};
use backlot_tests::{Process, TestHost, kind};

/// Everything below a folder, with what would show that it was touched.
fn listing(folder: &Path) -> Vec<String> {
    let mut all = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let about = path.symlink_metadata().unwrap();
            all.push(format!("{path:?} {} {:?}", about.len(), about.modified().unwrap()));
            if about.is_dir() {
                folders.push(path);
            }
        }
    }
    all.sort();
    all
}

/// C36: a name is a name. As a path, each of these would lead to a kind that is there.
#[tokio::test]
async fn c36_names_are_never_used_as_paths() {
    let outer = tempfile::tempdir().unwrap();
    let plugins = outer.path().join("plugins");
    fs::create_dir_all(plugins.join("a")).unwrap();
    let absolute = outer.path().join("outside").display().to_string();
    let names = [
        "../outside",
        "../../x",
        "..",
        ".",
        "",
        "/etc",
        &absolute,
        "a/b",
        "a/../b",
        "./b",
        "a\\b",
        "%2e%2e%2foutside",
        "b\n",
        "\nb",
        "b ",
        "B",
        "b.wasm",
        "~",
        "*",
        "-",
    ];
    let places = ["b", "a/b", "../outside", "", ".", "..", "a\\b", "%2e%2e%2foutside", "b\n"];
    for place in places.iter().chain(&["\nb", "b ", "B", "b.wasm", "~", "*", "-"]) {
        fs::copy(kind("ticker"), plugins.join(format!("{place}.wasm"))).unwrap();
    }
    let before = listing(outer.path());

    let host = TestHost::with(Config { plugins: plugins.clone(), ..Config::default() });
    let long = "b".repeat(65);
    let library = ["b\0", "\0", "../outside\0", &long];
    for name in names.iter().chain(&library) {
        let refused = host.host.load_kind(name).await;
        assert!(matches!(refused, Err(KindError::Name(_))), "{name:?}: {refused:?}");
    }
    for name in names {
        let ended = Process::start_with(["policy", "explain", name, "--plugins", "."], |command| {
            command.current_dir(&plugins);
        })
        .wait();
        assert!(matches!(ended.code, Some(2 | 3)), "{name:?}: {}{}", ended.stdout, ended.stderr);
        assert_eq!(ended.stdout, "", "{name:?}");
        assert!(!ended.stderr.contains("panicked"), "{name:?}: {}", ended.stderr);
    }
    let found = host.host.load_kind("b").await.unwrap_err();
    assert!(matches!(found, KindError::OtherKind { .. }), "the folder is the right one: {found}");

    for name in names {
        let ended = Process::start_with(["run", name, "--plugins", "."], |command| {
            command.current_dir(&plugins);
        })
        .wait();
        // With a slash, or `.wasm` at its end, it is the path of a file by intent.
        let is_path = name.contains('/') || name.ends_with(".wasm");
        let says = match name {
            _ if !is_path => "is not a kind",
            "b.wasm" => "ticker",
            _ => "cannot read",
        };
        assert!(matches!(ended.code, Some(2 | 3)), "{name:?}: {}", ended.stderr);
        assert!(ended.stderr.contains(says), "{name:?}: {}", ended.stderr);
        assert_eq!(ended.stdout, "", "{name:?}");
        assert!(!ended.stderr.contains("panicked"), "{name:?}: {}", ended.stderr);
    }
    assert_eq!(listing(outer.path()), before, "nothing was made, changed or removed");
}

/// Whoever runs the tests may read everything, so the folder is none, or leads
/// nowhere.
#[tokio::test]
async fn a_plugin_folder_that_cannot_be_read_is_told_by_every_command() {
    let outer = tempfile::tempdir().unwrap();
    let at = |name: &str| outer.path().join(name);
    fs::copy(kind("noop"), at("file")).unwrap();
    symlink("nowhere", at("dangling")).unwrap();
    symlink("loop", at("loop")).unwrap();
    symlink(at("file"), at("link-to-a-file")).unwrap();
    fs::create_dir(at("closed")).unwrap();
    fs::set_permissions(at("closed"), fs::Permissions::from_mode(0o000)).unwrap();
    let mut folders: Vec<PathBuf> = vec![
        at("file"),
        at("dangling"),
        at("loop"),
        at("link-to-a-file"),
        at("missing"),
        at("file").join("below"),
        at(&"x".repeat(256)),
        outer.path().join("y/".repeat(3_000)),
    ];
    if fs::read_dir(at("closed")).is_err() {
        folders.push(at("closed"));
    }
    let before = listing(outer.path());
    for folder in &folders {
        let shown = folder.display().to_string();
        let what = &shown[..shown.len().min(200)];
        let says_why = |error: &str| {
            assert!(error.contains(what) || error.contains('…'), "{what}: {error}");
            assert!(!error.contains("panicked") && !error.contains("RUST_BACKTRACE"), "{error}");
            assert_eq!(error.trim_end().lines().count(), 1, "{error}");
        };
        let listed = Process::run(["kinds", "--plugins", &shown]);
        assert_eq!((listed.code, listed.stdout.as_str()), (Some(3), ""), "{what}");
        says_why(&listed.stderr);

        let ended = Process::run(["run", "--plugins", &shown, "noop"]);
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(3), ""), "{what}");
        says_why(&ended.stderr);

        let ended = Process::run(["doctor", "--json", "--plugins", &shown]);
        let checkup: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
        let checks = checkup["checks"].as_array().unwrap();
        let found = checks.iter().find(|it| it["name"] == "plugin folder").unwrap();
        assert_ne!(found["status"], "ok", "{what}: {found}");
        assert!(found["fix"].as_str().unwrap().contains("--plugins"), "{what}: {found}");
        says_why(found["value"].as_str().unwrap());

        let host = TestHost::with(Config { plugins: folder.clone(), ..Config::default() });
        let error = host.host.load_kind("noop").await.unwrap_err().to_string();
        assert!(error.contains(what), "{what}: {error}");
        assert!(host.host.kinds().is_empty(), "{what}");
    }
    assert_eq!(listing(outer.path()), before, "nothing was made");
}
