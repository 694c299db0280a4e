//! How a host that stays ends: in order, after a while, at once.

use std::time::{Duration, Instant};

use backlot_tests::{Agent, Asks as _, Data, text};
use serde_json::{Value, json};

use super::{document, long, spawn};

/// The jobs of C69: five, one of which does not stop.
fn five(data: &Data) -> Vec<String> {
    let mut jobs: Vec<String> = (0..4).map(|_| owed(data, "ticker", &long())).collect();
    jobs.push(owed(data, "faulty", &json!({"mode": "stubborn"})));
    jobs
}

/// Spawns a job whose ending is owed to a session.
fn owed(data: &Data, kind: &str, input: &Value) -> String {
    let input = input.to_string();
    let spawned = data.run(["run", "--detach", "--session", "editor", kind, "--input", &input]);
    assert_eq!(spawned.code, Some(0), "{spawned:?}");
    spawned.stdout.trim_end().to_owned()
}

/// C69: each has a saved ending before the host has ended, and is told once.
#[test]
fn c69_the_first_signal_saves_every_ending() {
    let data = Data::new();
    let host = data.serve([""; 0]);
    let jobs = five(&data);
    host.signal("TERM");
    let ended = host.wait();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let last = ended.stdout.lines().last().unwrap();
    assert_eq!(document(last), json!({"event": "ended", "written": true}));
    for job in &jobs {
        let job = data.json(["show", "--json", job]);
        assert_eq!(job["status"], "failed", "{job}");
        let summary = job["summary"].as_str().unwrap();
        assert!(summary.starts_with("host shutdown"), "{job}");
    }
    let mut host = data.start(["serve", "--json", "--listen", "none"]);
    let recovered = document(&host.line())["recovered"].clone();
    assert_eq!(recovered, json!({"interrupted": 0, "cancelled": 0, "queued": 0, "owed": 5}));
    // Whoever they work for is told of each, in one message and once.
    let mut agent = Agent::start(&data, &["--session", "editor"]);
    let told = text(&agent.call("task_stop", json!({"task_id": "0"})));
    assert_eq!(told.matches("[task-notification]").count(), 1, "{told}");
    assert!(jobs.iter().all(|job| told.contains(&job[..8])), "{told}");
    let again = text(&agent.call("task_stop", json!({"task_id": "0"})));
    assert!(!again.contains("[task-notification]"), "{again}");
}

/// C69: the second signal ends it fast, and the next host accounts for everything.
#[test]
fn c69_the_second_signal_ends_it_fast_and_leaves_what_can_be_recovered() {
    let data = Data::new();
    let mut host = data.serve([""; 0]);
    let jobs = five(&data);
    host.signal("TERM");
    // It is at the jobs from here on, one of which takes its whole grace.
    assert_eq!(document(&host.line())["event"], "ending");
    let since = Instant::now();
    host.signal("TERM");
    let ended = host.wait();
    assert_eq!(ended.code, Some(4), "{ended:?}");
    assert!(since.elapsed() < Duration::from_secs(3), "{:?}", since.elapsed());
    let mut next = data.start(["serve", "--json", "--listen", "none"]);
    let recovered = document(&next.line())["recovered"].clone();
    let count = |what: &str| recovered[what].as_u64().unwrap();
    // Those that the ladder has ended in time are told of, and the others are interrupted.
    assert_eq!(count("interrupted") + count("owed"), 5, "{recovered}");
    for job in &jobs {
        let job = data.json(["show", "--json", job]);
        assert_eq!(job["status"], "failed", "{job}");
        let summary = job["summary"].as_str().unwrap();
        let is_known = ["host shutdown", "interrupted by restart"];
        assert!(is_known.iter().any(|known| summary.starts_with(known)), "{job}");
    }
}

#[test]
fn jobs_have_their_time_before_they_are_stopped() {
    let data = Data::new();
    let mut host = data.serve(["--drain", "10m"]);
    let long = spawn(&data, "ticker", &long());
    let mut short = data.start([
        "run",
        "ticker",
        "--json",
        "--input",
        &json!({"count": 2, "every_ms": 600}).to_string(),
    ]);
    let short_id = backlot_tests::started(&mut short);
    let asked = data.run(["shutdown", "--no-wait", "--json"]);
    let reply = document(&asked.stdout);
    assert_eq!((&reply["drain_ms"], &reply["ended"]), (&json!(600_000), &json!(false)));
    assert_eq!(document(&host.line())["drain_ms"], 600_000);
    // Nothing is begun any more, and what runs goes on.
    let refused = data.run(["run", "--detach", "noop"]);
    assert_ne!(refused.code, Some(0), "{refused:?}");
    let short = short.wait();
    assert_eq!(short.code, Some(0), "{short:?}");
    assert_eq!(data.json(["show", "--json", &short_id])["status"], "completed");
    assert_eq!(data.json(["show", "--json", &long])["status"], "working");
    // Once it has ended as well the host has nothing to wait for.
    assert_eq!(data.run(["stop", &long]).code, Some(0));
    assert_eq!(host.wait_unread().code, Some(0));
    assert_eq!(data.json(["show", "--json", &long])["status"], "cancelled");
}

#[test]
fn jobs_are_stopped_when_their_time_is_over() {
    let data = Data::new();
    let host = data.serve([""; 0]);
    let id = spawn(&data, "ticker", &long());
    let ended = data.json(["shutdown", "--json", "--drain", "200ms"]);
    assert_eq!((&ended["ended"], &ended["drain_ms"]), (&json!(true), &json!(200)));
    assert_eq!(host.wait_unread().code, Some(0));
    assert_eq!(data.json(["show", "--json", &id])["summary"], "host shutdown");
}

#[test]
fn whoever_follows_a_job_hears_of_its_end() {
    let data = Data::new();
    let host = data.serve([""; 0]);
    let mut followed = data.start([
        "run",
        "ticker",
        "--json",
        "--input",
        &json!({"count": 2, "every_ms": 3_600_000}).to_string(),
    ]);
    backlot_tests::started(&mut followed);
    host.signal("TERM");
    assert_eq!(host.wait_unread().code, Some(0));
    let followed = followed.wait();
    assert_eq!(followed.code, Some(1), "{followed:?}");
    let last: Value = document(followed.stdout.lines().last().unwrap());
    assert!(last.to_string().contains("host shutdown"), "{last}");
}
