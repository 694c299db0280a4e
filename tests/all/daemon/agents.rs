//! Agents on stdio: `backlot mcp`, in its own process or before a host.

use std::{
    fs,
    time::{Duration, Instant},
};

use backlot_tests::{Agent, Asks as _, Data, LEAVE, kind, waiting};
use serde_json::{Value, json};

use super::document;

fn long() -> Value {
    json!({"count": 100_000, "every_ms": 100})
}

/// C77: a client that is not there at all.
#[test]
fn c77_nothing_on_stdin_ends_it() {
    for has_host in [false, true] {
        let data = Data::new();
        let host = has_host.then(|| data.serve([""; 0]));
        let ended = data.run(["mcp"]);
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), ""), "{ended:?}");
        drop(host);
    }
}

/// C77: a client that is gone in the middle of a call, with work under way.
#[test]
fn c77_a_client_that_is_gone_ends_it_and_its_work_is_recorded() {
    let data = Data::new();
    let mut agent = Agent::start(&data, &["--session", "editor"]);
    let task = agent.spawn("ticker", &long());
    // Also while a call waits.
    agent.send("tools/call", &waiting(&task));
    let ended = agent.leave();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.took < LEAVE, "{:?}", ended.took);
    // As at every host's end, and it can be tried again.
    let job = data.json(["show", "--json", &task]);
    assert_eq!((&job["status"], &job["summary"]), (&json!("failed"), &json!("host shutdown")));
    assert_eq!(job["session"].as_str().unwrap().split('/').next(), Some("editor"), "{job}");
}

/// C77 before a host: its work goes on there.
#[test]
fn c77_the_work_of_a_client_that_is_gone_goes_on_in_the_host() {
    let data = Data::new();
    let _host = data.serve([""; 0]);
    let mut agent = Agent::start(&data, &["--session", "editor"]);
    let task = agent.spawn("ticker", &long());
    agent.send("tools/call", &waiting(&task));
    let ended = agent.leave();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.took < LEAVE, "{:?}", ended.took);
    assert_eq!(data.json(["show", "--json", &task])["status"], "working");
    // It is found again in its session, and in no other.
    let mut again = Agent::start(&data, &["--session", "editor"]);
    let found = again.call("task_status", json!({"task_id": task}));
    assert!(found.to_string().contains("working"), "{found}");
    let mut other = Agent::start(&data, &[]);
    let foreign = other.call("task_status", json!({"task_id": task}));
    assert_eq!(foreign["isError"], true, "{foreign}");
}

/// C77: a client that is killed, which closes all that it had open.
#[test]
fn c77_a_client_that_is_killed_ends_it() {
    for has_host in [false, true] {
        let data = Data::new();
        let host = has_host.then(|| data.serve([""; 0]));
        let mut agent = Agent::start(&data, &["--session", "editor"]);
        let task = agent.spawn("ticker", &long());
        agent.send("tools/call", &waiting(&task));
        agent.process.close_stdout();
        agent.process.close_stderr();
        let ended = agent.leave();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        assert!(ended.took < LEAVE, "{:?}", ended.took);
        let status = data.json(["show", "--json", &task])["status"].clone();
        assert_eq!(status, if has_host { "working" } else { "failed" });
        drop(host);
    }
}

/// C74: whatever goes wrong around it, stdout has messages alone.
#[test]
fn c74_stdout_has_messages_and_nothing_else() {
    for has_host in [false, true] {
        let data = Data::new();
        let plugins = data.outer().join("plugins");
        fs::create_dir(&plugins).unwrap();
        for name in ["noop", "faulty", "ticker"] {
            fs::copy(kind(name), plugins.join(format!("{name}.wasm"))).unwrap();
        }
        fs::write(plugins.join("bad.wasm"), "no component").unwrap();
        let host = has_host.then(|| {
            let mut host = data.start_with(["serve", "--json", "--listen", "none"], |command| {
                command.env("BACKLOT_PLUGINS", &plugins);
            });
            host.line();
            host
        });
        let mut agent = Agent::start_with(&data, &["-vv"], |command| {
            command.env("BACKLOT_PLUGINS", &plugins).env("BACKLOT_LOG", "trace");
        });
        let noisy = [
            ("faulty", json!({"mode": "trap", "ms": 1})),
            ("faulty", json!({"mode": "panic"})),
            ("faulty", json!({"mode": "flood-stdout", "bytes": 10_000})),
            ("faulty", json!({"mode": "flood-stderr", "bytes": 10_000})),
            ("ticker", json!({"count": 3, "every_ms": 1})),
        ];
        let tasks = noisy.map(|(kind, input)| agent.spawn(kind, &input));
        for task in &tasks {
            agent.wait(task);
        }
        // A kind is replaced meanwhile.
        fs::copy(kind("noop"), plugins.join("noop.wasm")).unwrap();
        agent.process.say("this is no message");
        let listed = agent.ask("tools/list", json!({}));
        assert!(listed["result"]["tools"].is_array(), "{listed}");
        let ended = agent.leave();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        for line in ended.stdout.lines() {
            assert_eq!(document(line)["jsonrpc"], "2.0", "{line}");
        }
        // It was said, and elsewhere.
        assert!(ended.stderr.contains("session mcp-"), "{}", ended.stderr);
        drop(host);
    }
}

/// An agent keeps its work where the host is replaced.
#[test]
fn an_agent_goes_on_with_the_next_host() {
    let data = Data::new();
    let host = data.serve([""; 0]);
    let mut agent = Agent::start(&data, &["--session", "editor"]);
    let task = agent.spawn("ticker", &long());
    let arguments = json!({"task_id": task, "wait_seconds": 100});
    let open = agent.send("tools/call", &json!({"name": "task_status", "arguments": arguments}));
    host.kill();
    let lost = agent.answer(open);
    assert!(lost["error"]["message"].as_str().unwrap().contains("the host is gone"), "{lost}");
    let _next = data.serve([""; 0]);
    let found = agent.call("task_status", json!({"task_id": task}));
    assert!(found.to_string().contains("interrupted by restart"), "{found}");
    let ended = agent.leave();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stderr.contains("the host is gone"), "{}", ended.stderr);
}

/// Where no other host comes, the agent's own process is the next.
#[test]
fn an_agent_goes_on_without_a_host() {
    let data = Data::new();
    let host = data.serve([""; 0]);
    let mut agent = Agent::start(&data, &["--session", "editor"]);
    host.signal("TERM");
    assert_eq!(host.wait_unread().code, Some(0));
    let since = Instant::now();
    agent.spawn("noop", &Value::Null);
    assert!(since.elapsed() < Duration::from_secs(30));
    assert_eq!(data.json(["status", "--json"])["host"]["pid"], agent.process.id());
    assert_eq!(agent.leave().code, Some(0));
}

/// C93 for an agent that reads no more.
#[test]
fn c93_a_client_that_reads_no_more_ends_it() {
    for has_host in [false, true] {
        let data = Data::new();
        let host = has_host.then(|| data.serve([""; 0]));
        let mut agent = Agent::start(&data, &[]);
        agent.process.close_stdout();
        agent.send("tools/list", &json!({}));
        let ended = agent.process.wait();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        drop(host);
    }
}

#[test]
fn a_session_that_cannot_be_is_refused() {
    let data = Data::new();
    let ended = data.run(["mcp", "--session", ""]);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(2), ""), "{ended:?}");
}
