//! The host that stays: how it begins and ends, what it is asked, and agents on stdio.

mod agents;
mod endings;
mod units;

use std::{
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    time::Duration,
};

use backlot_tests::{Data, Process};
use serde_json::{Value, json};

/// Returns the document that a process has printed on one line.
fn document(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text:?}"))
}

/// Spawns a job in the host of the folder, and returns its id.
fn spawn(data: &Data, kind: &str, input: &Value) -> String {
    let spawned = data.run(["run", "--detach", kind, "--input", &input.to_string()]);
    assert_eq!(spawned.code, Some(0), "{spawned:?}");
    spawned.stdout.trim_end().to_owned()
}

/// What a job of `ticker` is given that runs for an hour.
fn long() -> Value {
    json!({"count": 2, "every_ms": 3_600_000})
}

#[test]
fn a_host_begins_is_found_and_ends() {
    let data = Data::new();
    let none = data.run(["status"]);
    assert_eq!((none.code, none.stdout.as_str()), (Some(3), ""));
    assert!(none.stderr.contains("no host runs on the data folder"), "{}", none.stderr);
    assert!(none.stderr.contains("`backlot serve` starts one"), "{}", none.stderr);
    let none = data.run(["status", "--json"]);
    assert_eq!(none.code, Some(3));
    assert_eq!(document(&none.stdout)["running"], false);
    assert_eq!(document(&none.stdout)["error"]["code"], "unavailable");
    let none = data.run(["shutdown"]);
    assert_eq!(none.code, Some(3), "{none:?}");

    let mut host = data.start(["serve", "--listen", "none", "--json"]);
    let serving = document(&host.line());
    assert_eq!(serving["event"], "serving");
    assert_eq!(serving["host"]["pid"], host.id());
    assert_eq!(serving["socket"], data.folder().socket().display().to_string());
    let id = spawn(&data, "ticker", &long());
    let status = data.json(["status", "--json"]);
    assert_eq!(status["running"], true);
    assert_eq!(status["host"]["pid"], host.id());
    assert_eq!(status["jobs"]["working"], 1);
    let told = data.run(["status"]);
    assert!(told.stdout.contains("\njobs       1 working\n"), "{}", told.stdout);
    assert!(told.stdout.contains(&format!("(pid {})", host.id())), "{}", told.stdout);

    let ended = data.json(["shutdown", "--json"]);
    assert_eq!((&ended["ended"], &ended["pid"]), (&json!(true), &json!(host.id())));
    // Whoever waited for that can have the folder.
    let job = data.json(["show", "--json", &id]);
    assert_eq!(job["summary"], "host shutdown");
    let events: Vec<Value> = host.wait_unread().stdout.lines().map(document).collect();
    assert_eq!(events[0]["event"], "ending");
    assert_eq!(events[1], json!({"event": "ended", "written": true}));
}

#[test]
fn commands_ask_the_host_that_runs() {
    let data = Data::new();
    let host = data.serve([""; 0]);
    let id = spawn(&data, "ticker", &json!({"count": 2, "every_ms": 50}));
    let followed = data.run(["logs", "--follow", &id]);
    assert_eq!(followed.stdout, "line 1\nline 2\n", "{followed:?}");
    let waited = data.run(["wait", &id]);
    assert_eq!(waited.code, Some(0), "{waited:?}");
    let ran =
        data.run(["run", "ticker", "--input", &json!({"count": 1, "every_ms": 1}).to_string()]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "line 1\n"), "{ran:?}");
    let long = spawn(&data, "ticker", &long());
    let listed = data.json(["ps", "--json", "--status", "working"]);
    assert_eq!(listed["jobs"][0]["id"], *long);
    let stopped = data.run(["stop", &long]);
    assert_eq!(stopped.code, Some(0), "{stopped:?}");
    assert_eq!(data.run(["wait", &long]).code, Some(4));
    assert_eq!(data.json(["rm", "--json", &id])["removed"], json!([id]));
    host.signal("INT");
    assert_eq!(host.wait_unread().code, Some(0));
}

#[test]
fn where_no_host_runs_a_command_says_what_starts_one() {
    let data = Data::new();
    let refused = data.run(["run", "--detach", "noop"]);
    assert_eq!(refused.code, Some(3));
    assert!(refused.stderr.contains("start a host with `backlot serve`"), "{}", refused.stderr);
}

#[test]
fn c61_a_folder_that_another_host_holds_is_refused_by_its_number() {
    let data = Data::new();
    let host = data.serve([""; 0]);
    let refused = data.run(["serve", "--listen", "none", "--json"]);
    assert_eq!(refused.code, Some(3), "{refused:?}");
    let why = document(&refused.stdout)["error"]["message"].as_str().unwrap().to_owned();
    assert!(why.contains("is in use by") && why.contains(&format!("(pid {})", host.id())), "{why}");
    // It is as it was.
    assert_eq!(data.json(["status", "--json"])["host"]["pid"], host.id());
}

#[test]
fn a_host_that_may_not_listen_begins_nothing() {
    let data = Data::new();
    let host = data.serve([""; 0]);
    let id = spawn(&data, "ticker", &long());
    // Whoever holds the folder next finds its job interrupted.
    host.kill();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let refused = data.run(["serve", "--listen", &address]);
    assert_eq!(refused.code, Some(3), "{refused:?}");
    assert!(refused.stderr.contains("another program does"), "{}", refused.stderr);
    let tokens = data.folder().path().join("tokens.json");
    std::fs::write(&tokens, "{").unwrap();
    let refused = data.run(["serve", "--listen", "127.0.0.1:0"]);
    assert!(!refused.stderr.contains("serves the data folder"), "{}", refused.stderr);
    assert_eq!(data.json(["show", "--json", &id])["status"], "working");
    drop(taken);
    std::fs::remove_file(&tokens).unwrap();
    let _host = data.serve([""; 0]);
    assert_eq!(data.json(["show", "--json", &id])["status"], "failed");
}

#[test]
fn a_host_is_asked_over_http_with_the_token_that_it_made() {
    let data = Data::new();
    let mut host = data.start(["serve", "--listen", "127.0.0.1:0", "--json"]);
    let address = document(&host.line())["host"]["addresses"][0].as_str().unwrap().to_owned();
    assert!(address.starts_with("http://127.0.0.1:"), "{address}");
    let file = data.folder().path().join("operator-token");
    let token = std::fs::read_to_string(&file).unwrap();
    let ask = |token: &str| {
        let at = address.strip_prefix("http://").unwrap();
        let mut stream = TcpStream::connect(at).unwrap();
        let head = format!("Host: {at}\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n");
        write!(stream, "GET /v1/health HTTP/1.1\r\n{head}\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer.lines().next().unwrap_or_default().to_owned()
    };
    assert_eq!(ask(token.trim()), "HTTP/1.1 200 OK");
    assert_eq!(ask("wrong"), "HTTP/1.1 401 Unauthorized");
    assert_eq!(data.json(["status", "--json"])["host"]["addresses"][0], address);
    host.signal("TERM");
    let ended = host.wait_unread();
    assert_eq!(ended.code, Some(0));
    // Where it is, and not what it is.
    assert!(ended.stderr.contains(&file.display().to_string()), "{}", ended.stderr);
    assert!(!ended.stderr.contains(token.trim()), "{}", ended.stderr);
}

#[test]
fn c84_an_address_that_others_reach_is_refused_before_anything_is_taken() {
    let data = Data::new();
    let refused = data.run(["serve", "--listen", "0.0.0.0:0"]);
    assert_eq!(refused.code, Some(3), "{refused:?}");
    assert!(refused.stderr.contains("can be reached by other machines"), "{}", refused.stderr);
    assert!(!data.folder().socket().exists());
}

#[test]
fn settings_that_are_wrong_are_told_with_their_line() {
    let data = Data::new();
    let file = data.outer().join("b.toml");
    std::fs::write(&file, "[serve]\nlisten = 'none'\ndrian = '1s'\n").unwrap();
    let policy = ["--policy".as_ref(), file.as_os_str()];
    let refused = data.run(["serve".as_ref()].into_iter().chain(policy));
    assert_eq!(refused.code, Some(2), "{refused:?}");
    let wanted = "b.toml:3: [serve] has no key `drian`; did you mean `drain`?";
    assert!(refused.stderr.contains(wanted), "{}", refused.stderr);
    let checked = data.run(["policy".as_ref(), "check".as_ref(), file.as_os_str()]);
    assert_eq!(checked.code, Some(2));
    assert!(checked.stderr.contains(wanted), "{}", checked.stderr);
}

/// A file that says where to listen takes nothing from tasks.
#[test]
fn a_file_without_a_policy_is_none() {
    let data = Data::new();
    let file = data.outer().join("b.toml");
    std::fs::write(&file, "[serve]\nlisten = 'none'\n").unwrap();
    let settings = file.display().to_string();
    let with = |args: &[&str]| {
        let args = args.iter().map(|arg| (*arg).to_owned());
        data.start(args.chain(["--policy".to_owned(), settings.clone()]))
    };
    let mut host = with(&["serve", "--json"]);
    let serving = document(&host.line());
    assert_eq!(serving["host"]["policy"], Value::Null, "{serving}");
    assert_eq!(serving["host"]["addresses"], Value::Null, "{serving}");
    // One who has the file and one who has none ask the same host.
    let folder = format!("{}::/d:rw", data.outer().display());
    // It has no manifest, so that it may ask for anything.
    let input = json!({"mode": "flood", "bytes": 10}).to_string();
    let granted = ["run", "faulty", "--dir", &folder, "--input", &input];
    for ended in [with(&granted).wait(), data.run(granted)] {
        assert_eq!(ended.code, Some(0), "{ended:?}");
    }
    let checked = with(&["policy", "check"]).wait();
    assert!(checked.stdout.contains("no policy"), "{checked:?}");
}

/// C93 for what a host that stays prints.
#[test]
fn c93_a_pipe_that_nobody_reads_ends_no_host() {
    let data = Data::new();
    let mut host = data.serve(["--verbose"]);
    host.close_stdout();
    host.close_stderr();
    let id = spawn(&data, "ticker", &json!({"count": 1, "every_ms": 1}));
    assert_eq!(data.run(["wait", &id]).code, Some(0));
    for verb in [&["status"][..], &["status", "--json"]] {
        let mut asked = data.start(verb);
        asked.close_stdout();
        assert_eq!(asked.wait().code, Some(0), "{verb:?}");
    }
    let ended = data.json(["shutdown", "--json"]);
    assert_eq!(ended["ended"], true);
    assert_eq!(host.wait_unread().code, Some(0));
}

/// Whoever runs a job of its own is a host as well, and can be asked to end.
#[test]
fn a_run_that_holds_the_folder_can_be_asked_to_end() {
    let data = Data::new();
    let (holder, id) = data.hold();
    let asked = data.run(["shutdown"]);
    assert_eq!(asked.code, Some(0), "{asked:?}");
    assert_eq!(holder.wait_unread().code, Some(4));
    assert_eq!(data.json(["show", "--json", &id])["status"], "cancelled");
}

/// Returns how often the threads of a process have gone to sleep, less those that look at
/// the plugin folder, which they do every two seconds in any case.
fn sleeps(host: &Process) -> u64 {
    const WATCHING: [&str; 3] = ["backlot-watch", "notify-rs", "tokio-rt-worker"];
    let mut sleeps = 0;
    for thread in std::fs::read_dir(format!("/proc/{}/task", host.id())).unwrap() {
        // One may have ended since.
        let Ok(status) = std::fs::read_to_string(thread.unwrap().path().join("status")) else {
            continue;
        };
        let value = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        if !WATCHING.iter().any(|watching| value("Name:").trim().starts_with(watching)) {
            sleeps += value("voluntary_ctxt_switches:").trim().parse::<u64>().unwrap();
        }
    }
    sleeps
}

/// Nothing wakes up again and again in a host that has nothing to do.
#[test]
fn an_idle_host_sleeps() {
    // Guests' time is kept for a moment after the last of them was there.
    const SETTLED: Duration = Duration::from_secs(3);
    const LOOKED: u64 = 5;
    let data = Data::new();
    let host = data.serve([""; 0]);
    // It is time itself that is to pass, with nothing to wait for.
    std::thread::sleep(SETTLED);
    let before = sleeps(&host);
    std::thread::sleep(Duration::from_secs(LOOKED));
    let woken = sleeps(&host) - before;
    assert!(woken <= 2 * LOOKED + 2, "{woken} times in {LOOKED} s");
}
