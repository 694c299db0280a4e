//! Models: what is cancelled, what changes under them, and how much they are told.

use std::fs;

use backlot_tests::{Agent, Asks, Data, Remote, Response, Site, kind, text, waiting};
use serde_json::{Value, json};

use super::{QUIET, long, sockets, until};

/// C76 on stdio: whatever is cancelled, once or twice, in time or not.
#[test]
fn c76_a_cancelled_wait_is_over_and_its_task_is_not() {
    let data = Data::new();
    let (_host, site) = data.serve_at_a_port(&["--expose", "*"]);
    let mut agent = Agent::start(&data, &["--session", "editor"]);
    let task = agent.spawn("ticker", &long());
    let cancel = |agent: &mut Agent, id: Value| {
        agent.notify("notifications/cancelled", &json!({"requestId": id, "reason": "enough"}));
    };
    // An id that there never was, one that is over, and that of a start.
    for id in [json!(9_999), json!("no such"), json!(1), json!(2)] {
        cancel(&mut agent, id);
    }
    // More of them than may be under way at a time, so that each has left its place.
    for _ in 0..100 {
        let waits = agent.send("tools/call", &waiting(&task));
        for _ in 0..2 {
            cancel(&mut agent, waits.into());
        }
    }
    agent.ask("ping", json!({}));
    assert!(agent.look(&task).contains("still working"), "{}", agent.look(&task));
    // What was cancelled is not answered.
    assert_eq!(agent.heard(), [""; 0]);
    // The call of a kind's own tool takes its job along.
    let arguments = long();
    let called = agent.send("tools/call", &json!({"name": "ticker", "arguments": arguments}));
    let of_call = || {
        let jobs = site.get("/v1/jobs")["jobs"].clone();
        let id = jobs[0]["id"].as_str().unwrap().to_owned();
        (id != task).then_some(id)
    };
    until("it was started", || of_call().is_some());
    cancel(&mut agent, called.into());
    assert_eq!(site.end(&of_call().unwrap())["status"], "cancelled");
    agent.ask("ping", json!({}));
    assert_eq!(agent.heard(), [""; 0]);
    assert_eq!(site.get(&format!("/v1/jobs/{task}"))["status"], "working");
}

/// C76 over HTTP: by a notification, and by closing the response.
#[test]
fn c76_a_response_that_is_closed_ends_the_wait_and_not_the_task() {
    let data = Data::new();
    let (host, site) = data.serve_at_a_port(&["--expose", "*"]);
    let mut old = Remote::begin(&site);
    let mut new = Remote::stateless(&site);
    let task = old.spawn("ticker", &long());
    let (id, response) = old.send("tools/call", &waiting(&task));
    for id in [json!(id), json!(id), json!(9_999), json!("no such")] {
        old.notify("notifications/cancelled", &json!({"requestId": id}));
    }
    // It has no answer, and an end.
    let rest = Response::read(response).unwrap().bytes();
    assert!(!String::from_utf8_lossy(&rest).contains("\"result\""));
    let waits: Vec<_> = (0..100).map(|_| new.send("tools/call", &waiting(&task)).1).collect();
    until("they wait", || sockets(host.id()) >= 100);
    drop(waits);
    until("nothing is left of them", || sockets(host.id()) < QUIET);
    for agent in [&mut old as &mut dyn Asks, &mut new] {
        assert!(agent.look(&task).contains("still working"));
    }
    // `tasks/cancel` is what stops a task.
    let created = new.ask("tools/call", json!({"name": "ticker", "arguments": long()}));
    let id = created["result"]["taskId"].as_str().unwrap_or_else(|| panic!("{created}"));
    let cancelled = new.ask("tasks/cancel", json!({"taskId": id}));
    assert!(cancelled["result"].is_object(), "{cancelled}");
    let job = id.split('.').next().unwrap();
    assert_eq!(site.end(job)["status"], "cancelled");
    assert_eq!(new.ask("tasks/get", json!({"taskId": id}))["result"]["status"], "cancelled");
    assert_eq!(site.get(&format!("/v1/jobs/{task}"))["status"], "working");
}

/// Puts a component into a folder in one step, as whoever installs one should.
fn put(folder: &std::path::Path, name: &str, bytes: &[u8]) {
    let new = folder.join(format!(".{name}.new"));
    fs::write(&new, bytes).unwrap();
    fs::rename(new, folder.join(format!("{name}.wasm"))).unwrap();
}

/// C79: what clients are offered follows the plugin folder.
#[test]
fn c79_clients_are_told_once_of_every_real_change() {
    const SAYS: &[u8] = b"How many lines to write.";
    const SAYS_NOW: &[u8] = b"How many lines to print.";
    let data = Data::new();
    let plugins = data.outer().join("plugins");
    fs::create_dir(&plugins).unwrap();
    let [noop, faulty, ticker] = ["noop", "faulty", "ticker"].map(|it| fs::read(kind(it)).unwrap());
    put(&plugins, "ticker", &ticker);
    let (host, site) = data.serve_at_a_port_with(&["--expose", "*"], |command| {
        command.env("BACKLOT_PLUGINS", &plugins);
    });
    let mut stdio = Agent::start(&data, &[]);
    assert_eq!(stdio.begun["result"]["capabilities"]["tools"]["listChanged"], true);
    let mut remote = Remote::begin(&site);
    let mut told = remote.listen();
    let mut place = ticker.windows(SAYS.len()).position(|it| it == SAYS);
    let mut changed = ticker.clone();
    while let Some(at) = place {
        changed[at..at + SAYS.len()].copy_from_slice(SAYS_NOW);
        place = changed.windows(SAYS.len()).position(|it| it == SAYS);
    }
    let is_change = |message: &Value| message["method"] == "notifications/tools/list_changed";
    let verbs = ["spawn_task", "task_status", "task_retry", "task_stop"];
    let changes: [(&dyn Fn(), &[&str]); 4] = [
        (&|| put(&plugins, "noop", &noop), &["noop", "ticker"]),
        (&|| put(&plugins, "faulty", &faulty), &["faulty", "noop", "ticker"]),
        (&|| put(&plugins, "ticker", &changed), &["faulty", "noop", "ticker"]),
        (&|| fs::remove_file(plugins.join("noop.wasm")).unwrap(), &["faulty", "ticker"]),
    ];
    for (change, kinds) in changes {
        // The same again, which is no change to anybody.
        put(&plugins, "ticker", &fs::read(plugins.join("ticker.wasm")).unwrap());
        change();
        let heard = stdio.heard().into_iter().chain(std::iter::from_fn(|| Some(stdio.message())));
        assert!(heard.take(1).all(|message| is_change(&message)));
        assert!(is_change(&told.next().unwrap().json()));
        let tools = [&verbs[..], kinds].concat();
        assert_eq!(stdio.tools(), tools);
        assert_eq!(remote.tools(), tools);
    }
    let listed = stdio.ask("tools/list", json!({})).to_string();
    let says_now = std::str::from_utf8(SAYS_NOW).unwrap();
    assert!(listed.contains(says_now), "{listed}");
    // What was removed is told so, by each name that it had.
    for agent in [&mut stdio as &mut dyn Asks, &mut remote] {
        let removed = agent.ask("tools/call", json!({"name": "noop", "arguments": {}}));
        assert_eq!(removed["error"]["code"], -32602, "{removed}");
        assert!(removed["error"]["message"].as_str().unwrap().contains("no tool \"noop\""));
        let spawned = agent.call("spawn_task", json!({"kind": "noop"}));
        assert_eq!(spawned["isError"], true, "{spawned}");
        assert!(text(&spawned).contains("noop"), "{spawned}");
    }
    // There was nothing besides.
    assert_eq!(stdio.heard(), [""; 0]);
    host.signal("TERM");
    assert_eq!(told.rest(), []);
    assert_eq!(host.wait().code, Some(0));
}

/// The longest answer that a model gets, in bytes.
const ANSWER: usize = 128 << 10;

/// Calls a tool, and returns its result, which has a bound.
fn bounded(agent: &mut dyn Asks, arguments: Value) -> Value {
    let result = agent.call("task_status", arguments);
    let bytes = result.to_string().len();
    assert!(bytes < ANSWER, "{bytes}");
    // It is not said once more in another form.
    assert_eq!(result.get("structuredContent").cloned().unwrap_or_default(), Value::Null);
    result
}

/// Returns what a result says of a task's output, without what is said about it.
fn said(result: &Value) -> String {
    let told = text(result);
    let (_, said) = told.split_once(":\n").unwrap_or_else(|| panic!("{told}"));
    // The heading is the first line that ends so, and what follows says how to read on.
    let said = said.split_once("\n[cut here: ").map_or(said, |(said, _)| said);
    said.to_owned()
}

fn spawned(site: &Site, agent: &mut dyn Asks, kind: &str, input: &Value) -> String {
    let task = agent.spawn(kind, input);
    assert_eq!(site.end(&task)["status"], "completed");
    task
}

/// C80: a model reads on where it was, however much there is.
#[test]
fn c80_a_model_is_told_in_parts_and_misses_nothing() {
    const BYTES: u64 = 50_000_000;
    let data = Data::new();
    let (_host, site) = data.serve_at_a_port(&[]);
    let mut agent = Remote::begin(&site);
    let flood = json!({"mode": "flood", "bytes": BYTES});
    let flood = spawned(&site, &mut agent, "faulty", &flood);
    let (mut all, mut next) = (String::new(), 0);
    for _ in 0..60 {
        let result = bounded(&mut agent, json!({"task_id": flood}));
        let facts = &result["_meta"]["backlot/task"];
        assert_eq!(facts["truncated"], true, "{facts}");
        all.push_str(&said(&result));
        let moved = facts["next_offset"].as_u64().unwrap();
        assert_eq!(moved, all.len() as u64);
        assert!(moved > next);
        next = moved;
    }
    let whole: String = (1..).map(|it| format!("line {it}\n")).take(400_000).collect();
    assert!(whole.starts_with(&all));
    // From any place on, to the end.
    let mut after = BYTES - 100_000;
    loop {
        let result = bounded(&mut agent, json!({"task_id": flood, "after": after}));
        let facts = &result["_meta"]["backlot/task"];
        after = facts["next_offset"].as_u64().unwrap();
        if facts["truncated"] == false {
            break;
        }
    }
    assert!(after >= BYTES, "{after}");
    // The place of the session is where it was.
    let result = bounded(&mut agent, json!({"task_id": flood}));
    assert!(text(&result).contains(&format!("from offset {next} on")), "{result}");
}

/// C80: one line without an end, and a result that comes all at once.
#[test]
fn c80_what_comes_in_one_piece_is_told_in_parts() {
    const BYTES: usize = 5_000_000;
    let data = Data::new();
    let plugins = data.outer().join("plugins");
    fs::create_dir(&plugins).unwrap();
    put(&plugins, "probe", &fs::read(backlot_tests::program("probe")).unwrap());
    put(&plugins, "faulty", &fs::read(kind("faulty")).unwrap());
    let (_host, site) = data.serve_at_a_port_with(&[], |command| {
        command.env("BACKLOT_PLUGINS", &plugins);
    });
    let mut agent = Remote::begin(&site);
    let line = agent.call("spawn_task", json!({"kind": "probe", "args": ["pour", "10000000"]}));
    let line = line["_meta"]["backlot/task"]["task_id"].as_str().unwrap().to_owned();
    let task = agent.spawn("faulty", &json!({"mode": "final-output", "bytes": BYTES}));
    for (task, bytes) in [(&line, 10_000_000), (&task, BYTES)] {
        site.end(task);
        let waited = json!({"task_id": task, "wait_seconds": 100});
        let result = bounded(&mut agent, waited);
        let facts = &result["_meta"]["backlot/task"];
        assert_eq!(facts["truncated"], true, "{task} {facts}");
        // Where it is told to read on, to the end.
        let mut after = facts["next_offset"].as_u64().unwrap();
        let mut count = said(&result).len();
        while count < bytes {
            let result = bounded(&mut agent, json!({"task_id": task, "after": after}));
            let facts = &result["_meta"]["backlot/task"];
            count += said(&result).len();
            after = facts["next_offset"].as_u64().unwrap();
            if facts["truncated"] == false {
                break;
            }
        }
        assert_eq!((count, after), (bytes, bytes as u64), "{task}");
    }
}

/// C80: a list of very many.
#[test]
fn c80_a_list_of_thousands_has_pages() {
    const TASKS: usize = 5_000;
    let data = Data::new();
    let (_host, site) = data.serve_at_a_port(&[]);
    let spawning: Vec<_> = (0..8)
        .map(|_| {
            let site = site.clone();
            std::thread::spawn(move || {
                let later = json!({"kind": "noop", "after_ms": 3_600_000, "session": "mcp"});
                for _ in 0..TASKS / 8 {
                    site.post("/v1/jobs", &later);
                }
            })
        })
        .collect();
    for thread in spawning {
        thread.join().unwrap();
    }
    let mut agent = Agent::start(&data, &["--session", "mcp"]);
    let (mut arguments, mut seen) = (json!({}), std::collections::HashSet::new());
    loop {
        let page = bounded(&mut agent, arguments);
        let facts = &page["_meta"]["backlot/task"];
        for task in facts["tasks"].as_array().unwrap() {
            assert!(seen.insert(task["task_id"].as_str().unwrap().to_owned()), "{task} twice");
        }
        let Some(next) = facts["next_before"].as_u64() else { break };
        arguments = json!({"before": next});
    }
    assert_eq!(seen.len(), TASKS);
}
