//! Tokens: made, listed and removed by the real process.

use std::{fs, os::unix::fs::PermissionsExt as _};

use backlot_surface::{Principal, Tokens};
use backlot_tests::{Data, Ended};
use serde_json::{Value, json};

/// Checks that it was refused, by its exit code and in words.
#[track_caller]
fn check_refused(ended: &Ended, code: i32, says: &str) {
    assert_eq!(ended.code, Some(code), "{ended:?}");
    assert!(ended.stderr.contains(says), "wanted {says:?}: {ended:?}");
}

#[test]
fn a_token_is_printed_once_and_is_good_at_once() {
    let data = Data::new();
    let tokens = Tokens::open(data.folder()).unwrap();
    let added = data.run(["token", "add", "ann"]);
    assert_eq!(added.code, Some(0), "{added:?}");
    assert_eq!(added.stderr, "ann: user for the session ann; the token is not shown again\n");
    let token = added.stdout.trim_end().to_owned();
    assert_eq!(tokens.authenticate(&token), Some(Principal::user("ann", "ann".into())));
    let quiet = data.run(["token", "add", "eve", "--role", "observer", "--quiet"]);
    assert_eq!((quiet.stderr.as_str(), quiet.code), ("", Some(0)));
    let expiring = ["token", "add", "ci", "--session", "builds", "--expires", "30d", "--json"];
    let expiring = data.json(expiring);
    let days = |view: &Value| {
        (view["expires_ms"].as_u64().unwrap() - view["created_ms"].as_u64().unwrap()) / 86_400_000
    };
    assert_eq!((&expiring["name"], &expiring["session"]), (&json!("ci"), &json!("builds")));
    assert!((29..=30).contains(&days(&expiring)), "{expiring}");

    let listed = data.run(["token", "ls"]);
    let lines: Vec<&str> = listed.stdout.lines().collect();
    assert!(lines[0].starts_with("ann\tuser\tann\t"), "{listed:?}");
    assert!(lines[1].starts_with("ci\tuser\tbuilds\t"), "{listed:?}");
    assert!(lines[2].starts_with("eve\tobserver\t*\t"), "{listed:?}");
    let listed = data.json(["token", "ls", "--json"]);
    assert_eq!(listed["tokens"].as_array().unwrap().len(), 3);
    for file in fs::read_dir(data.folder().path()).unwrap() {
        let path = file.unwrap().path();
        let kept = fs::read_to_string(&path).unwrap_or_default();
        assert!(!kept.contains(&token), "{} has the token", path.display());
    }
    let removed = data.run(["token", "rm", "ann", "ci"]);
    assert_eq!((removed.code, removed.stdout.as_str()), (Some(0), "ann\nci\n"), "{removed:?}");
    assert_eq!(tokens.authenticate(&token), None);
    assert_eq!(data.json(["token", "rm", "eve", "--json"]), json!({"removed": ["eve"]}));
    let none = data.run(["token", "ls"]);
    assert_eq!((none.code, none.stderr.as_str()), (Some(0), "backlot: no tokens\n"));
}

#[test]
fn what_cannot_be_a_token_is_refused() {
    let data = Data::new();
    assert_eq!(data.run(["token", "add", "ann"]).code, Some(0));
    check_refused(&data.run(["token", "add", "ann"]), 3, "there is a token ann already");
    for name in ["", "a b", "a/b", "ä", &"a".repeat(65)] {
        check_refused(&data.run(["token", "add", name]), 2, "is no name for a token");
    }
    let session = ["token", "add", "bob", "--role", "operator", "--session", "chat"];
    check_refused(&data.run(session), 2, "an operator's token is for no session");
    check_refused(
        &data.run(["token", "add", "bob", "--role", "root"]),
        2,
        "operator, user, observer",
    );
    check_refused(&data.run(["token", "add", "bob", "--expires", "0s"]), 2, "above 0");
    check_refused(&data.run(["token", "rm", "ann", "bob"]), 3, "there is no token \"bob\"");
    check_refused(&data.run(["token", "rm"]), 2, "required");
    let listed = data.json(["token", "ls", "--json"]);
    assert_eq!(listed["tokens"].as_array().unwrap().len(), 1, "{listed}");
    let refused = data.run(["token", "add", "ann", "--json"]);
    let told: Value = serde_json::from_str(&refused.stdout).unwrap();
    assert_eq!(told["error"]["code"], "refused", "{told}");
    let usage = data.run(["token", "add", "--json"]);
    let told: Value = serde_json::from_str(&usage.stdout).unwrap();
    assert_eq!((usage.code, &told["error"]["code"]), (Some(2), &json!("bad_request")));
}

#[test]
fn none_is_lost_when_processes_add_at_once() {
    let data = Data::new();
    let names: Vec<String> = (0..6).map(|number| format!("t{number}")).collect();
    let adding: Vec<_> = names.iter().map(|name| data.start(["token", "add", name])).collect();
    let tokens: Vec<String> = adding
        .into_iter()
        .map(|process| {
            let ended = process.wait();
            assert_eq!(ended.code, Some(0), "{ended:?}");
            ended.stdout.trim_end().to_owned()
        })
        .collect();
    let known = Tokens::open(data.folder()).unwrap();
    for (token, name) in tokens.iter().zip(&names) {
        assert_eq!(known.authenticate(token).unwrap().name(), name);
    }
}

#[test]
fn a_list_that_others_can_read_or_nobody_is_told_of() {
    let data = Data::new();
    data.run(["token", "add", "ann"]);
    let list = data.folder().path().join("tokens.json");
    let mode = |mode| fs::set_permissions(&list, fs::Permissions::from_mode(mode)).unwrap();
    mode(0o644);
    check_refused(&data.run(["token", "ls"]), 3, "others can read ");
    check_refused(&data.run(["token", "add", "bob"]), 3, "`chmod 600` it");
    mode(0o600);
    fs::write(&list, "{").unwrap();
    check_refused(&data.run(["token", "ls"]), 1, "is no list of tokens");
    check_refused(&data.run(["token", "rm", "ann"]), 1, "is no list of tokens");
    // Where no host has been, there is nothing to list, and nothing is made.
    let missing = data.outer().join("missing");
    let args = ["token", "ls", "--json", "--data", missing.to_str().unwrap()];
    assert_eq!(data.json(args), json!({"tokens": []}));
    assert!(!missing.exists());
}
