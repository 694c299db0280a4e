//! Whose a job is: two sessions on one host and one folder, by every way in.

use backlot_tests::{Agent, Asks as _, Data, Remote, Response, Site, text, waiting};
use serde_json::{Value, json};

use super::{long, until};

/// C44: what one session has started is told to it alone, also when it was away.
#[test]
fn c44_endings_and_lists_are_the_owners_alone() {
    let data = Data::new();
    let (_host, site) = data.serve_at_a_port(&[]);
    let (a, b) = (data.token(&site, "a", "user"), data.token(&site, "b", "user"));
    let ticks = json!({"count": 20, "every_ms": 100});
    let mut others = vec![Agent::start(&data, &["--session", "b"])];
    others[0].ask("logging/setLevel", json!({"level": "debug"}));
    let remote = Remote::begin(&b);
    let (heard, seen) = (remote.listen(), b.events("/v1/events", None));
    // By stdio and by HTTP; and A goes away before the end.
    let mut agent = Agent::start(&data, &["--session", "a"]);
    let tasks = [agent.spawn("ticker", &ticks), Remote::begin(&a).spawn("ticker", &ticks)];
    assert_eq!(agent.leave().code, Some(0));
    others.push(Agent::start(&data, &["--session", "b"]));
    for task in &tasks {
        assert_eq!(site.end(task)["status"], "completed");
    }
    // B comes back as somebody new, asks for what there is, and does work of its own.
    others.push(Agent::start(&data, &["--session", "b"]));
    let mut again = Remote::begin(&b);
    let own = again.spawn("noop", &Value::Null);
    assert_eq!(b.end(&own)["status"], "completed");
    let mut told = again.call("task_status", json!({})).to_string();
    for agent in &mut others {
        told.push_str(&agent.call("task_status", json!({})).to_string());
        told.push_str(&agent.ask("tools/list", json!({})).to_string());
        told.push_str(&json!(agent.heard()).to_string());
    }
    for path in ["jobs", "tasks", "sessions/b/owed", "sessions/b/entries"] {
        told.push_str(&b.get(&format!("/v1/{path}")).to_string());
    }
    assert!(told.contains(&own), "{told}");
    // Up to the end of its own, which came after all of that.
    let is_last = |data: &Value| data["id"] == *own && data["live"] == false;
    for event in seen {
        told.push_str(&event.data);
        if event.name == "job" && is_last(&event.json()) {
            break;
        }
    }
    for task in &tasks {
        assert!(!told.contains(task), "{task}: {told}");
    }
    // A gets both on its return, in whichever way, and once.
    let mut back = Agent::start(&data, &["--session", "a"]);
    let first = text(&back.call("task_status", json!({})));
    assert!(first.contains("[task-notification]"), "{first}");
    for task in &tasks {
        assert!(first.contains(task), "{first}");
        assert!(back.look(task).contains("line 20"));
    }
    // That it was told is written down once it was, and holds for every way in from then on.
    let owed = || a.get("/v1/sessions/a/owed")["jobs"].clone();
    until("A has been told", || owed().as_array().is_none_or(Vec::is_empty));
    let second = text(&Remote::begin(&a).call("task_status", json!({})));
    assert!(!second.contains("[task-notification]"), "{second}");
    drop(heard);
}

/// Sends a request, and returns what it is answered with, without the names in it.
fn answered(site: &Site, request: &str, names: &[&str]) -> String {
    let mut asked = site.request(request);
    if !request.starts_with("GET") {
        asked = asked.json(&match request {
            _ if request.ends_with("/answer") => json!({"answer": "1"}),
            _ if request.ends_with("/entries") => json!({"id": "x", "text": "x"}),
            _ if request.ends_with("/settle") => json!({"ids": []}),
            _ => json!({}),
        });
    }
    let response: Response = asked.send();
    let head = response.status;
    let mut body = String::from_utf8(response.bytes()).unwrap();
    for name in names {
        body = body.replace(name, "NAME");
    }
    format!("{head} {body}")
}

/// C45: on every verb, what is another's is what there is not.
#[test]
fn c45_what_is_anothers_is_answered_as_what_there_is_not() {
    const NONE: &str = "00000000000000000000000000000000";
    const OWNER: &str = "the-owner";
    let data = Data::new();
    let (_host, site) = data.serve_at_a_port(&["--expose", "*"]);
    let (a, b) = (data.token(&site, OWNER, "user"), data.token(&site, "b", "user"));
    let look = data.token(&site, "c", "observer");
    let task = a.spawn("ticker", &long());
    let mut owner = Agent::start(&data, &["--session", OWNER]);
    for other in [&b, &look] {
        for verb in [
            "GET /v1/jobs/ID",
            "GET /v1/jobs/ID?wait_ms=1000",
            "GET /v1/jobs/ID?hand=model",
            "GET /v1/jobs/ID/output",
            "GET /v1/jobs/ID/output?part=log",
            "GET /v1/jobs/ID/stream",
            "GET /v1/jobs/ID/files",
            "GET /v1/jobs/ID/files/a",
            "POST /v1/jobs/ID/stop",
            "POST /v1/jobs/ID/retry",
            "POST /v1/jobs/ID/answer",
            "DELETE /v1/jobs/ID",
        ] {
            let answer = |id: &str| answered(other, &verb.replace("ID", id), &[id]);
            let foreign = answer(&task);
            assert_eq!(foreign, answer(NONE), "{verb}");
            let is_forbidden = foreign.starts_with("403 ") && foreign.contains("\"forbidden\"");
            let is_unknown = foreign.starts_with("404 ") && foreign.contains("\"unknown_job\"");
            assert!(is_unknown || (is_forbidden && other.token() == look.token()), "{foreign}");
        }
    }
    // The tasks behind jobs have numbers, which anybody can count up.
    for number in 1..=50 {
        for verb in ["GET /v1/tasks/ID", "POST /v1/tasks/ID/stop"] {
            let answer = |id: &str| answered(&b, &verb.replace("ID", id), &[id]);
            let foreign = answer(&format!("ticker-{number}"));
            assert_eq!(foreign, answer("ticker-999"), "{verb}");
            assert!(foreign.starts_with("404 "), "{foreign}");
        }
    }
    for verb in [
        "GET /v1/sessions/NAME/entries",
        "POST /v1/sessions/NAME/entries",
        "GET /v1/sessions/NAME/owed",
        "POST /v1/sessions/NAME/settle",
        "PUT /v1/sessions/NAME",
        "DELETE /v1/sessions/NAME",
    ] {
        let answer = |name: &str| answered(&b, &verb.replace("NAME", name), &[name]);
        let foreign = answer(OWNER);
        assert_eq!(foreign, answer("nobody"), "{verb}");
        assert!(foreign.starts_with("404 "), "{verb}: {foreign}");
    }
    // By models, on stdio and over HTTP, in both revisions.
    let mut stdio = Agent::start(&data, &["--session", "b"]);
    let (mut remote, mut stateless) = (Remote::begin(&b), Remote::stateless(&b));
    for (tool, with) in [
        ("task_status", json!({})),
        ("task_status", json!({"wait_seconds": 9})),
        ("task_status", json!({"after": 0})),
        ("task_retry", json!({})),
        ("task_stop", json!({})),
        ("task_stop", json!({"force": true})),
    ] {
        let agents: [&mut dyn backlot_tests::Asks; 3] = [&mut stdio, &mut remote, &mut stateless];
        for agent in agents {
            let mut answer = |id: &str| {
                let mut arguments = with.clone();
                arguments["task_id"] = id.into();
                let result = agent.call(tool, arguments);
                assert_eq!(result["isError"], true, "{result}");
                result.to_string().replace(id, "ID")
            };
            assert_eq!(answer(&task), answer(NONE), "{tool}");
        }
    }
    for method in ["tasks/get", "tasks/cancel", "tasks/update"] {
        let mut answer = |id: &str| {
            let id = format!("{id}.0");
            let params = json!({"taskId": id, "inputResponses": {}});
            let mut answer = stateless.ask(method, params);
            assert_eq!(answer["error"]["code"], -32602, "{answer}");
            answer["id"].take();
            answer.to_string().replace(&id, "ID")
        };
        assert_eq!(answer(&task), answer(NONE), "{method}");
    }
    // Nobody is whom a header says, nor whom a request says that it is.
    for session in [OWNER, "nobody"] {
        let asked = b.request(&format!("GET /v1/jobs/{task}")).header("backlot-session", session);
        assert_eq!(asked.send().status, 404, "{session}");
        let asked = b.request("POST /mcp").header("backlot-session", session).json(&json!({}));
        assert_eq!(asked.send().status, 404, "{session}");
    }
    let params = json!({
        "name": "task_status",
        "arguments": {"task_id": task},
        "_meta": {"backlot/session": OWNER},
    });
    let mut claimed = Agent::start(&data, &["--session", "b"]);
    let answer = claimed.ask("tools/call", params);
    assert!(answer["error"].is_object() || answer["result"]["isError"] == true, "{answer}");
    assert!(!answer.to_string().contains("line 1"), "{answer}");
    // The owner has lost nothing, and its task works.
    let looked = owner.look(&task);
    assert!(looked.contains("working") && looked.contains("line 1"), "{looked}");
    assert_eq!(a.get(&format!("/v1/jobs/{task}"))["stop"], Value::Null);
    // What the operator has started belongs to no model's session.
    let id = site.spawn("ticker", &long());
    assert_eq!(b.request(&format!("GET /v1/jobs/{id}")).send().status, 404);
    assert_eq!(site.get(&format!("/v1/jobs/{task}"))["status"], "working");
}

/// C81: a client of HTTP whose host was restarted begins anew, and finds its tasks.
#[test]
fn c81_the_owner_finds_its_tasks_after_a_restart() {
    for is_killed in [false, true] {
        let data = Data::new();
        let (host, site) = data.serve_at_a_port(&[]);
        let (a, b) = (data.token(&site, "a", "user"), data.token(&site, "b", "user"));
        let mut agent = Remote::begin(&a);
        let live = agent.spawn("ticker", &long());
        let done = agent.spawn("ticker", &json!({"count": 3, "every_ms": 1}));
        assert!(agent.wait(&done).contains("completed"));
        // A wait is under way as well.
        let (_, waiting) = agent.send("tools/call", &waiting(&live));
        match is_killed {
            true => host.kill(),
            false => {
                host.signal("TERM");
                assert_eq!(host.wait().code, Some(0));
            }
        }
        drop(waiting);
        let (_next, site) = data.serve_at_a_port(&[]);
        let at = |of: &Site| site.with_token(of.token());
        let (a, b) = (at(&a), at(&b));
        // The session of the transport is gone, and says so, so that a client begins anew.
        for method in ["POST", "GET", "DELETE"] {
            let request = a.request(&format!("{method} /mcp"));
            let request = request.header("mcp-session-id", agent.session());
            let accepts = "application/json, text/event-stream";
            let ping = json!({"jsonrpc": "2.0", "id": 1, "method": "ping"});
            let gone = request.header("accept", accepts).json(&ping).send();
            assert_eq!(gone.status, 404, "{method}: {}", gone.head);
        }
        let mut again = Remote::begin(&a);
        let listed = text(&again.call("task_status", json!({})));
        for task in [&live, &done] {
            assert!(listed.contains(task), "{listed}");
        }
        let why = if is_killed { "interrupted by restart" } else { "host shutdown" };
        assert!(again.look(&live).contains(why), "{}", again.look(&live));
        let read = again.call("task_status", json!({"task_id": done, "after": 0}));
        assert!(text(&read).contains("line 1\nline 2\nline 3"), "{read}");
        let mut other = Remote::begin(&b);
        let listed = text(&other.call("task_status", json!({})));
        assert!(!listed.contains(&live) && !listed.contains(&done), "{listed}");
        let foreign = other.call("task_status", json!({"task_id": live}));
        assert_eq!(foreign["isError"], true, "{foreign}");
    }
}

/// Who takes all that there is for one, however many sessions he has for it, leaves others
/// what they need.
#[test]
fn who_takes_what_there_is_leaves_as_much_to_others() {
    const AT_ONCE: usize = 8;
    const ENOUGH: usize = 10_000;
    let data = Data::new();
    let (_host, site) = data.serve_at_a_port(&[]);
    let (greedy, other) = (data.token(&site, "a", "user"), data.token(&site, "b", "user"));
    let later = json!({"kind": "noop", "after_ms": 3_600_000});
    let spawn = move |site: &Site, session: &str| {
        let request = site.request("POST /v1/jobs").header("backlot-session", session);
        request.json(&later).send()
    };
    let taking: Vec<_> = (0..AT_ONCE)
        .map(|thread| {
            let (greedy, spawn) = (greedy.clone(), spawn.clone());
            std::thread::spawn(move || {
                let session = format!("a/{thread}");
                let spawn = || spawn(&greedy, &session);
                let mut spawned = std::iter::repeat_with(spawn).take(ENOUGH).enumerate();
                let (taken, refused) = spawned.find(|(_, it)| it.status != 201).expect("an end");
                assert_eq!((refused.status, &refused.json()["code"]), (429, &json!("queue_full")));
                taken
            })
        })
        .collect();
    let taken: usize = taking.into_iter().map(|thread| thread.join().unwrap()).sum();
    assert_eq!(taken, 5_000);
    let open = |number: usize| {
        let session = format!("a/{number}");
        let path = format!("PUT /v1/sessions/a%2F{number}");
        greedy.request(&path).header("backlot-session", &session).json(&json!({})).send()
    };
    let mut opened = (AT_ONCE..ENOUGH).map(|number| (number, open(number)));
    let (number, refused) = opened.find(|(_, it)| it.status != 200).expect("an end");
    assert_eq!((number, refused.status, &refused.json()["code"]), (1_000, 429, &json!("full")));
    assert_eq!(spawn(&greedy, "a").json()["code"], "queue_full");
    assert_eq!(spawn(&other, "b").status, 201);
    assert_eq!(spawn(&other, "b/1").status, 201);
    assert_eq!(other.end(&other.spawn("noop", &Value::Null))["status"], "completed");
}
