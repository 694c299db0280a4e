//! Who sends what is wrong, too much or nothing, or reads nothing, hurts nobody else, and
//! the host's memory has a bound.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    thread,
};

use backlot_tests::{Agent, Asks as _, Data, Events, Process, Remote, Site};
use serde_json::{Value, json};

use super::{QUIET, long, sockets, until};

/// How much a host may hold more than it did, whatever it is sent: what is under way in
/// large bodies at a time, and as much of what becomes of that.
const BOUND: u64 = 256 << 20;

/// Checks that somebody who means well is served.
#[track_caller]
fn check_served(site: &Site) {
    let mut agent = Remote::begin(site);
    let job = agent.spawn("ticker", &json!({"count": 1, "every_ms": 0}));
    assert_eq!(site.end(&job)["status"], "completed");
    assert!(agent.look(&job).contains("line 1"));
}

/// What is no message of the protocol, with the code that it is answered with.
const BAD: [(&str, i64); 12] = [
    ("{", -32700),
    ("nonsense", -32700),
    ("\"\\ud800\"", -32700),
    ("[]", -32600),
    ("7", -32600),
    ("null", -32600),
    (r#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#, -32600),
    (r#"{"jsonrpc":"1.0","id":1,"method":"ping"}"#, -32600),
    (r#"{"jsonrpc":"2.0","id":1,"method":7}"#, -32600),
    (r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":[]}"#, -32602),
    (r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":7}}"#, -32602),
    (
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","arguments":7}}"#,
        -32602,
    ),
];

/// Calls whose arguments have wrong types, names or values.
fn bad_calls() -> Vec<Value> {
    let call = |name: &str, arguments: Value| json!({"name": name, "arguments": arguments});
    vec![
        call("spawn_task", json!({})),
        call("spawn_task", json!({"kind": 7})),
        call("spawn_task", json!({"kind": "noop", "wait_seconds": "soon"})),
        call("spawn_task", json!({"kind": "noop", "wait_seconds": -1})),
        call("spawn_task", json!({"kind": "noop", "attempts": 1u64 << 40})),
        call("spawn_task", json!({"kind": "noop", "no_such": 1})),
        call("spawn_task", json!({"kind": "no-such"})),
        call("spawn_task", json!({"kind": "ticker", "input": {"count": "x"}})),
        call("task_status", json!({"task_id": []})),
        call("task_status", json!({"task_id": "g"})),
        call("task_status", json!({"before": "x"})),
        call("task_stop", json!({})),
        call("task_retry", json!({"task_id": Value::Null})),
    ]
}

#[test]
fn what_is_no_message_is_told_so_and_the_client_goes_on() {
    let data = Data::new();
    let (_host, site) = data.serve_at_a_port(&[]);
    let mut agent = Agent::start(&data, &[]);
    let remote = Remote::begin(&site);
    for (text, code) in BAD {
        agent.process.say(text);
        let answer = agent.message();
        assert_eq!(answer["error"]["code"], code, "{text}: {answer}");
        let request = site
            .request("POST /mcp")
            .header("accept", "application/json, text/event-stream")
            .header("mcp-session-id", remote.session());
        let response = request.body("application/json", text).send();
        assert_eq!(response.status, 400, "{text}: {}", response.head);
        assert_eq!(response.json()["error"]["code"], code, "{text}");
        assert!(agent.ask("ping", json!({})).get("error").is_none());
    }
    let mut remote = remote;
    for params in bad_calls() {
        for answer in
            [agent.ask("tools/call", params.clone()), remote.ask("tools/call", params.clone())]
        {
            assert_eq!(answer["result"]["isError"], true, "{params}: {answer}");
        }
    }
    for (method, params) in [("no/such", json!({})), ("tools/call", json!({"name": "no_such"}))] {
        for answer in [agent.ask(method, params.clone()), remote.ask(method, params.clone())] {
            assert!(answer["error"]["code"].is_i64(), "{method}: {answer}");
        }
    }
    let documents = ["{", "[]", "7", "", r#"{"kind":7}"#, r#"{"kind":"noop","no":1}"#, "{} {}"];
    for text in documents {
        let refused = site.request("POST /v1/jobs").body("application/json", text).send();
        assert!((400..500).contains(&refused.status), "{text}: {}", refused.head);
        assert!(refused.json()["code"].is_string(), "{text}");
    }
    check_served(&site);
}

#[test]
fn huge_bodies_are_refused_and_take_no_memory() {
    const MIB: usize = 1 << 20;
    let data = Data::new();
    let (host, site) = data.serve_at_a_port(&[]);
    check_served(&site);
    let before = host.resident();
    let too_large = |mut stream: TcpStream| {
        // It may be cut off in the middle of what it sends.
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer).into_owned();
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 413 "), "{answer}");
        !answer.is_empty()
    };
    // One that says how long it is gets its answer before anything is sent.
    for path in ["/v1/jobs", "/mcp"] {
        let request = site.request(&format!("POST {path}")).body("application/json", "");
        assert!(too_large(request.header("content-length", "1000000000000").leave()));
    }
    // Others send for as long as they are let, many at a time.
    let sending: Vec<_> = ["/v1/jobs", "/mcp"]
        .into_iter()
        .cycle()
        .take(16)
        .map(|path| {
            let site = site.clone();
            thread::spawn(move || {
                let request = site.request(&format!("POST {path}")).body("application/json", "");
                let request = request.without("content-length");
                let mut stream = request.header("transfer-encoding", "chunked").leave();
                let chunk = [&b"100000\r\n"[..], &vec![b' '; MIB], b"\r\n"].concat();
                (0..64).take_while(|_| stream.write_all(&chunk).is_ok()).count()
            })
        })
        .collect();
    check_served(&site);
    for sent in sending {
        // It is the buffers in between that take more than is let in.
        assert!(sent.join().unwrap() < 64);
    }
    // A line of stdio has the same bound.
    let mut agent = Agent::start(&data, &[]);
    agent.process.say(&" ".repeat(64 * MIB));
    assert_eq!(agent.message()["error"]["code"], -32600);
    assert!(agent.ask("ping", json!({})).get("error").is_none());
    let after = host.resident();
    assert!(after < before + BOUND, "{before} {after}");
    check_served(&site);
}

/// Clients that send a byte now and then, and never end a request.
#[test]
fn slow_clients_keep_nobody_and_are_let_go_of() {
    let data = Data::new();
    let (host, site) = data.serve_at_a_port(&[]);
    check_served(&site);
    let before = host.resident();
    let mut slow: Vec<TcpStream> = (0..400).map(|_| site.connect()).collect();
    slow.extend((0..100).map(|_| {
        site.request("POST /v1/jobs")
            .body("application/json", "")
            .header("content-length", "9")
            .leave()
    }));
    until("they are let in", || sockets(host.id()) >= 500);
    for byte in b"GET /v1/" {
        for stream in &mut slow {
            stream.write_all(&[*byte]).unwrap();
        }
        check_served(&site);
    }
    let after = host.resident();
    assert!(after < before + (100 << 20), "{before} {after}");
    // The host does not wait for them for ever.
    until("they are let go of", || sockets(host.id()) < QUIET);
    drop(slow);
    check_served(&site);
}

#[test]
fn a_thousand_idle_readers_cost_little_and_hear_of_what_comes() {
    const READERS: usize = 1_000;
    let data = Data::new();
    let (host, site) = data.serve_at_a_port(&[]);
    let job = site.spawn("ticker", &long());
    let path = format!("/v1/jobs/{job}/stream");
    let before = host.resident();
    let mut readers: Vec<Events> = (0..READERS)
        .map(|place| site.events(if place % 2 == 0 { &path } else { "/v1/events" }, None))
        .collect();
    for reader in &mut readers {
        assert!(["status", "snapshot"].contains(&reader.next().unwrap().name.as_str()));
    }
    let computed = host.computed();
    let grown = host.resident().saturating_sub(before);
    assert!(grown < 200 << 20, "{grown}");
    check_served(&site);
    // What they cost is what they are told, and that is little.
    let spent = host.computed() - computed;
    assert!(spent.as_secs() < 20, "{spent:?}");
    site.post(&format!("/v1/jobs/{job}/stop"), &json!({}));
    for reader in &mut readers {
        let told = reader.find(|event| {
            let document = event.json();
            document["id"] == *job && document["status"] == "cancelled"
        });
        assert!(told.is_some());
    }
}

#[test]
fn a_reader_that_never_reads_holds_up_nobody() {
    const BYTES: u64 = 50_000_000;
    let data = Data::new();
    let (host, site) = data.serve_at_a_port(&[]);
    check_served(&site);
    let before = host.resident();
    let job = site.spawn("faulty", &json!({"mode": "flood", "bytes": BYTES}));
    let never: Vec<TcpStream> = (0..50)
        .map(|place| {
            let path = match place % 4 {
                0 => format!("/v1/jobs/{job}/output?max=100000000&wait_ms=60000"),
                1 => "/v1/events".to_owned(),
                _ => format!("/v1/jobs/{job}/stream"),
            };
            site.request(&format!("GET {path}")).leave()
        })
        .collect();
    let mut agent = Agent::start(&data, &["--session", "mcp"]);
    // A model's client that asks and asks, and reads nothing.
    for _ in 0..1_000 {
        agent.process.say(&json!({"jsonrpc": "2.0", "id": "x", "method": "ping"}).to_string());
    }
    let ended = site.end(&job);
    assert_eq!(ended["status"], "completed");
    let seen = site.events(&format!("/v1/jobs/{job}/stream"), None).rest();
    let length: u64 =
        seen.iter().filter_map(|it| it.json()["text"].as_str().map(|text| text.len() as u64)).sum();
    assert!(length >= BYTES, "{length}");
    let after = host.resident();
    assert!(after < before + BOUND, "{before} {after}");
    check_served(&site);
    drop(never);
}

#[test]
fn slow_followers_of_a_job_that_has_ended_do_not_each_keep_its_result() {
    const FOLLOWERS: usize = 400;
    let data = Data::new();
    let (host, site) = data.serve_at_a_port(&[]);
    // More output than the system takes for a connection.
    let input = json!({"bytes": 20_000_000}).to_string();
    let pour = json!({"file": backlot_tests::program("pour"), "input": input});
    let job = site.post("/v1/jobs", &pour)["id"].as_str().unwrap().to_owned();
    let result = site.end(&job)["result"].as_str().map_or(0, str::len);
    assert!(FOLLOWERS * result > 300 << 20, "the result has {result} bytes");
    let before = host.resident();
    let path = format!("/v1/jobs/{job}/stream");
    let mut followers: Vec<Events> = (0..FOLLOWERS).map(|_| site.events(&path, None)).collect();
    for follower in &mut followers {
        assert_eq!(follower.next().unwrap().name, "output");
    }
    let grown = host.resident().saturating_sub(before);
    assert!(grown < BOUND, "{grown}");
    check_served(&site);
}

#[test]
fn clients_that_vanish_in_the_middle_leave_nothing() {
    let data = Data::new();
    let (host, site) = data.serve_at_a_port(&[]);
    check_served(&site);
    let job = site.spawn("faulty", &json!({"mode": "flood", "bytes": 20_000_000}));
    site.end(&job);
    let mut agent = Remote::begin(&site);
    let live = agent.spawn("ticker", &long());
    let before = host.resident();
    for round in 0..50 {
        // In the middle of a request, of a response, of a stream, and of a wait.
        let body = json!({"kind": "noop", "label": "x".repeat(round)}).to_string();
        let spawn = site.request("POST /v1/jobs").body("application/json", &body.as_bytes()[..9]);
        drop(spawn.header("content-length", &body.len().to_string()).leave());
        let path = format!("GET /v1/jobs/{job}/output?max=100000000");
        let mut response = site.request(&path).leave();
        response.read_exact(&mut [0; 64]).unwrap();
        drop(response);
        let mut events = site.events(&format!("/v1/jobs/{job}/stream"), None);
        events.next().unwrap();
        drop(events);
        drop(site.request(&format!("GET /v1/jobs/{live}?wait_ms=60000")).leave());
        drop(agent.send("tools/call", &backlot_tests::waiting(&live)));
        drop(agent.listen());
    }
    until("nothing is left of them", || sockets(host.id()) < QUIET);
    let after = host.resident();
    assert!(after < before + BOUND, "{before} {after}");
    assert!(agent.look(&live).contains("working"));
    // A request of which half has come was never asked.
    let jobs = site.get("/v1/jobs")["jobs"].clone();
    assert!(jobs.as_array().unwrap().iter().all(|job| job["kind"] != "noop"), "{jobs}");
    // Whoever has its stdio cut the same way leaves as little.
    for _ in 0..5 {
        let mut agent = Agent::start(&data, &["--session", "mcp"]);
        agent.send("tools/call", &backlot_tests::waiting(&live));
        Process::kill(agent.process);
    }
    until("nothing is left of those", || sockets(host.id()) < QUIET);
    check_served(&site);
}
