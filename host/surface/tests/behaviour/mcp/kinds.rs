//! Kinds that are tools of their own.

use std::{sync::Arc, time::Duration};

use backlot_jobs::{RunEnding, output::Stream};
use backlot_registry::{Form, KindState};
use backlot_surface::Principal;
use serde_json::{Value, json};
use tokio::{sync::Notify, time::Instant};

use super::client::{Wire, exposing, kind, owes, set_kinds, task_of, text, texts, without};
use crate::harness::{Host, until};

const SCHEMA: &str =
    r#"{"type":"object","properties":{"pattern":{"type":"string"}},"required":["pattern"]}"#;

/// Calls a tool, ends its job so, and returns the result.
async fn call(host: &Host, wire: &mut Wire, tool: &str, ending: RunEnding, output: &str) -> Value {
    let params = json!({"name": tool, "arguments": {"pattern": "x"}});
    let id = wire.request("tools/call", params).await;
    until("it was launched", || host.script.under_way() == 1).await;
    host.script.end(host.script.only(), ending, output);
    wire.answer(id).await["result"].clone()
}

#[tokio::test]
async fn a_kind_is_a_tool_with_its_own_schema() {
    let host = Host::start().await;
    let mut program = kind("tool", None, Form::Stream);
    program.current.as_mut().unwrap().contract = None;
    let mut broken = kind("grep-broken", None, Form::Final);
    broken.state = KindState::Broken;
    set_kinds(
        &host,
        vec![
            kind("grep", Some(SCHEMA), Form::Final),
            broken,
            kind("grep-list", Some(r#"{"type":"array"}"#), Form::Final),
            kind("hidden", None, Form::Final),
            program,
        ],
    );
    let mut wire = Wire::initialized(
        &exposing(&host, &["grep*", "tool"]),
        Principal::user("ann", "chat".into()),
        json!({}),
    )
    .await;
    let tools = wire.tools().await;
    let names: Vec<_> = tools[4..].iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["grep", "grep_list", "tool"]);
    let schema = |place: usize| tools[place]["inputSchema"].clone();
    assert_eq!(schema(4), serde_json::from_str::<Value>(SCHEMA).unwrap());
    assert_eq!(schema(5)["additionalProperties"], false);
    assert_eq!(schema(6)["properties"]["args"]["items"]["type"], "string");
    assert_eq!(
        tools[4]["description"],
        "Does grep.\n\nWhat takes longer than 20 seconds goes on in the background: the answer \
         then names a task, and you are told when it ends."
    );
    let input = |place: usize| {
        let request = host.script.requests.lock().unwrap()[place].clone();
        (request.input.unwrap(), request.args)
    };
    call(&host, &mut wire, "grep", RunEnding::Completed, "").await;
    assert_eq!(input(0), (r#"{"pattern":"x"}"#.to_owned(), Vec::new()));
    let params = json!({"name": "tool", "arguments": {"args": ["-v"], "input": "text"}});
    wire.request("tools/call", params).await;
    until("it was launched", || host.script.under_way() == 1).await;
    assert_eq!(input(1), ("text".to_owned(), vec!["-v".to_owned()]));
    let wrong = wire.call("grep_list", json!({"pattern": 1})).await;
    assert_eq!(wrong["isError"], true);
    assert_eq!(text(&wrong), "there is no `pattern`: grep_list takes `input`");
    for name in ["hidden", "grep_broken", "grep_none", "grep-list", "Grep"] {
        let refused = wire.ask("tools/call", json!({"name": name})).await;
        assert_eq!(refused["error"]["code"], -32602, "{name}");
    }
}

#[tokio::test]
async fn what_is_finished_in_time_is_the_answer_and_is_settled() {
    let host = Host::start().await;
    set_kinds(&host, vec![kind("grep", Some(SCHEMA), Form::Final)]);
    let api = exposing(&host, &["*"]);
    let mut wire = Wire::user(&api).await;
    let result = call(&host, &mut wire, "grep", RunEnding::Completed, "two\nlines").await;
    assert_eq!(result["content"], json!([{"type": "text", "text": "two\nlines"}]));
    assert_eq!(result["isError"], false);
    // JSON is structured as well, and twice only where it is small.
    let result = call(&host, &mut wire, "grep", RunEnding::Completed, r#"{"found": 3}"#).await;
    assert_eq!(result["structuredContent"], json!({"found": 3}));
    assert_eq!(text(&result), r#"{"found": 3}"#);
    let large = json!({"found": "x".repeat(20_000)}).to_string();
    let result = call(&host, &mut wire, "grep", RunEnding::Completed, &large).await;
    assert_eq!((result.get("structuredContent"), text(&result)), (None, large));
    let failed = call(&host, &mut wire, "grep", RunEnding::Failed, "half").await;
    assert_eq!(failed["isError"], true);
    let id = task_of(&failed);
    assert_eq!(
        without(&text(&failed), &[&id]),
        "Task <A> failed: Failed\nKind grep, \"grep\", attempt 1 of 3.\ntask_retry can go on from \
         where it stopped; 2 attempts are left.\nIt put out:\nhalf"
    );
    // All of them were told, so nothing is.
    owes(&host, "chat", 0).await;
    assert_eq!(texts(&wire.call("task_status", json!({})).await).len(), 1);
}

#[tokio::test]
async fn a_long_result_is_cut_and_says_how_it_goes_on() {
    let host = Host::start().await;
    set_kinds(
        &host,
        vec![kind("grep", Some(SCHEMA), Form::Final), kind("tick", Some(SCHEMA), Form::Stream)],
    );
    let mut wire = Wire::user(&exposing(&host, &["*"])).await;
    let long: String = (0..20_000).map(|at| format!("line {at}\n")).collect();
    for tool in ["grep", "tick"] {
        let params = json!({"name": tool, "arguments": {"pattern": "x"}});
        let id = wire.request("tools/call", params).await;
        until("it was launched", || host.script.under_way() == 1).await;
        let job = host.script.only();
        host.record(job, Stream::Stdout, long.as_bytes());
        host.script.end(job, RunEnding::Completed, &long);
        let result = wire.answer(id).await["result"].clone();
        let facts = result["_meta"]["backlot/task"].clone();
        assert_eq!(facts["truncated"], true);
        let told = text(&result);
        let (begin, goes_on) = told.split_once("\n[cut here: ").unwrap();
        assert!(begin.len() <= 48 << 10 && long.starts_with(begin));
        let after = facts["next_offset"].clone();
        assert_eq!(goes_on, format!("task_status with task_id {job} and after {after} reads on]"));
        let arguments = json!({"task_id": job.to_string(), "after": after});
        let rest = text(&wire.call("task_status", arguments).await);
        let place = usize::try_from(after.as_u64().unwrap()).unwrap();
        assert_eq!(place, begin.len(), "{tool}");
        assert!(rest.contains(&format!(":\n{}", &long[place..place + 10_000])), "{tool}");
    }
}

#[tokio::test]
async fn a_result_may_be_blocks() {
    let host = Host::start().await;
    set_kinds(&host, vec![kind("draw", Some(SCHEMA), Form::Final)]);
    let mut wire = Wire::user(&exposing(&host, &["*"])).await;
    let blocks = json!([
        {"type": "text", "text": "a picture"},
        {"type": "image", "data": "aGk=", "mimeType": "image/png"},
        {"type": "audio", "data": "aGk=", "mimeType": "audio/wav"},
        {"type": "resource", "resource": {"uri": "a:b", "mimeType": "text/plain", "text": "t"}},
        {"type": "resource_link", "uri": "a:c", "name": "c"},
    ]);
    let rich = json!({"content": blocks, "structuredContent": {"n": 1}, "isError": true});
    let result = call(&host, &mut wire, "draw", RunEnding::Completed, &rich.to_string()).await;
    assert_eq!(result["content"], blocks);
    assert_eq!(
        (&result["structuredContent"], &result["isError"]),
        (&json!({"n": 1}), &json!(true))
    );
    // Whoever looks later is shown the same.
    let looked = json!({"task_id": task_of(&result)});
    let looked = wire.call("task_status", looked).await;
    assert_eq!(looked["content"].as_array().unwrap()[1..], *blocks.as_array().unwrap());
    // What only looks like it is JSON like any other.
    let other = json!({"content": [{"type": "video"}]}).to_string();
    let result = call(&host, &mut wire, "draw", RunEnding::Completed, &other).await;
    assert_eq!(text(&result), other);
}

#[tokio::test(start_paused = true)]
async fn what_takes_longer_goes_on_in_the_background() {
    let host = Host::start().await;
    set_kinds(&host, vec![kind("grep", Some(SCHEMA), Form::Final)]);
    let mut wire = Wire::user(&exposing(&host, &["*"])).await;
    let begun = Instant::now();
    let promoted = wire.call("grep", json!({"pattern": "x"})).await;
    assert_eq!(begun.elapsed(), Duration::from_secs(20));
    assert_eq!(promoted["isError"], false);
    let id = task_of(&promoted);
    assert_eq!(
        without(&text(&promoted), &[&id]),
        "This takes longer, and goes on in the background as task <A>.\nYou are told when it ends, with the answer of a later call: go on with something else, do \
         not call grep again for the same, and do not ask again and again. If you cannot go on \
         without the result, call task_status with task_id <A> and wait_seconds; task_stop stops \
         it."
    );
    host.script.end(id.parse().unwrap(), RunEnding::Completed, "late");
    owes(&host, "chat", 1).await;
    let listed = wire.call("task_status", json!({})).await;
    assert!(texts(&listed)[1].contains("completed. Result: late"), "{listed}");
}

#[tokio::test(start_paused = true)]
async fn how_far_it_is_and_what_it_logs_is_told_meanwhile() {
    let host = Host::start().await;
    set_kinds(&host, vec![kind("grep", Some(SCHEMA), Form::Final)]);
    let mut wire = Wire::user(&exposing(&host, &["*"])).await;
    wire.ask("logging/setLevel", json!({"level": "info"})).await;
    let params =
        json!({"name": "grep", "arguments": {"pattern": "x"}, "_meta": {"progressToken": "p"}});
    let id = wire.request("tools/call", params).await;
    let progress = wire.next().await.unwrap();
    assert_eq!(progress["method"], "notifications/progress");
    assert_eq!(
        progress["params"],
        json!({"progressToken": "p", "progress": 1.0, "message": "half way"})
    );
    let job = host.script.only();
    host.record(job, Stream::Log, b"a line\n");
    let log = wire.next().await.unwrap();
    assert_eq!(log["method"], "notifications/message");
    assert_eq!(
        (&log["params"]["level"], &log["params"]["data"]),
        (&json!("info"), &json!("a line"))
    );
    // What comes last is told before the answer: line by line, once each, the last as it is.
    host.record(job, Stream::Log, b"two\n\nthree\nfo");
    host.record(job, Stream::Log, b"ur");
    host.script.end(job, RunEnding::Completed, "done");
    assert_eq!(text(&wire.answer(id).await["result"]), "done");
    let logger = json!(format!("task {}", job.short()));
    let lines = wire.heard.iter().filter(|it| it["params"]["logger"] == logger);
    let lines: Vec<_> = lines.map(|it| it["params"]["data"].clone()).collect();
    assert_eq!(lines, ["two", "three", "four"]);
    wire.heard.clear();
    let look = json!({"name": "task_status", "arguments": {"task_id": job, "wait_seconds": 9}});
    wire.ask("tools/call", look).await;
    assert!(wire.heard.is_empty(), "{:?}", wire.heard);
    // What is told besides that it has ended settles nothing; the answer did.
    owes(&host, "chat", 0).await;
}

#[tokio::test(start_paused = true)]
async fn c76_a_call_that_is_cancelled_takes_its_job_along() {
    let host = Host::start().await;
    set_kinds(&host, vec![kind("grep", Some(SCHEMA), Form::Final)]);
    let mut wire = Wire::user(&exposing(&host, &["*"])).await;
    let id = wire.request("tools/call", json!({"name": "grep", "arguments": {}})).await;
    until("it was launched", || host.script.under_way() == 1).await;
    let job = host.script.only();
    wire.notify("notifications/cancelled", json!({"requestId": id})).await;
    let looked = json!({"task_id": job.to_string(), "wait_seconds": 60});
    let looked = wire.call("task_status", looked).await;
    assert!(text(&looked).contains("was stopped: the call was cancelled"), "{looked}");
    // Once it goes on in the background, it is a task like any.
    let promoted = wire.request("tools/call", json!({"name": "grep", "arguments": {}})).await;
    let id = task_of(&wire.answer(promoted).await["result"]);
    wire.notify("notifications/cancelled", json!({"requestId": promoted})).await;
    let looked = wire.call("task_status", json!({"task_id": id})).await;
    assert!(text(&looked).contains("still working"));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_vanishes_leaves_its_job() {
    let host = Host::start().await;
    set_kinds(&host, vec![kind("grep", Some(SCHEMA), Form::Final)]);
    let mut wire = Wire::user(&exposing(&host, &["*"])).await;
    wire.request("tools/call", json!({"name": "grep", "arguments": {}})).await;
    until("it was launched", || host.script.under_way() == 1).await;
    let (job, serving) = (host.script.only(), wire.serving);
    drop((wire.write, wire.close));
    serving.await.unwrap().unwrap();
    assert!(host.script.is_under_way(job));
}

#[tokio::test]
async fn c79_a_client_is_told_once_of_every_real_change() {
    let host = Host::start().await;
    set_kinds(&host, vec![kind("grep", Some(SCHEMA), Form::Final)]);
    let api = exposing(&host, &["*"]);
    let mut old = Wire::user(&api).await;
    let mut new = Wire::user_2026(&api, &json!({}));
    let listening = json!({"notifications": {"toolsListChanged": true}});
    let listening = new.request("subscriptions/listen", listening).await;
    let acknowledged = new.next().await.unwrap();
    assert_eq!(acknowledged["method"], "notifications/subscriptions/acknowledged");
    assert_eq!(acknowledged["params"]["notifications"], json!({"toolsListChanged": true}));
    let other = SCHEMA.replace("pattern", "regex");
    let changes = [
        // Nothing that anybody sees.
        (vec![kind("grep", Some(SCHEMA), Form::Final)], false),
        (vec![kind("grep", Some(SCHEMA), Form::Final), kind("new", None, Form::Final)], true),
        (vec![kind("grep", Some(&other), Form::Final), kind("new", None, Form::Final)], true),
        (vec![kind("new", None, Form::Final)], true),
    ];
    for (kinds, is_real) in changes {
        set_kinds(&host, kinds);
        if is_real {
            for wire in [&mut old, &mut new] {
                let told = wire.next().await.unwrap();
                assert_eq!(told["method"], "notifications/tools/list_changed");
            }
        }
        // Nothing else comes.
        for wire in [&mut old, &mut new] {
            wire.tools().await;
            assert!(wire.heard.is_empty(), "{:?}", wire.heard);
        }
    }
    let removed = old.ask("tools/call", json!({"name": "grep", "arguments": {}})).await;
    assert_eq!(removed["error"]["code"], -32602);
    assert!(removed["error"]["message"].as_str().unwrap().contains("no tool \"grep\""));
    // Whoever listens no more is told no more, and the host's end ends what still listens.
    drop(new.close.take());
    let ended = new.answer(listening).await;
    assert!(ended["result"].is_object(), "{ended}");
}

#[tokio::test]
async fn an_ending_is_noted_in_the_log_and_is_owed_all_the_same() {
    let host = Host::start().await;
    let mut wire = Wire::user(&host.api).await;
    wire.ask("logging/setLevel", json!({"level": "debug"})).await;
    let id = task_of(&wire.call("spawn_task", json!({"kind": "park"})).await);
    host.script.end(id.parse().unwrap(), RunEnding::Completed, "done");
    let told = wire.next().await.unwrap();
    assert_eq!(told["method"], "notifications/message");
    assert!(told["params"]["data"].as_str().unwrap().starts_with("[task-notification] Task"));
    assert_eq!(texts(&wire.call("task_status", json!({})).await).len(), 2);
    // Who wants less is told less.
    owes(&host, "chat", 0).await;
    wire.ask("logging/setLevel", json!({"level": "error"})).await;
    let id = task_of(&wire.call("spawn_task", json!({"kind": "park"})).await);
    host.script.end(id.parse().unwrap(), RunEnding::Completed, "done");
    wire.call("task_status", json!({"task_id": id, "wait_seconds": 9})).await;
    assert!(wire.heard.is_empty(), "{:?}", wire.heard);
}

/// Answers the next question, which has to be what is asked, and returns it.
async fn elicited(wire: &mut Wire, result: Value) -> Value {
    let asked = wire.next().await.unwrap();
    assert_eq!(asked["method"], "elicitation/create", "{asked}");
    let answer = json!({"jsonrpc": "2.0", "id": asked["id"], "result": result});
    wire.send(&answer.to_string()).await;
    asked["params"].clone()
}

#[tokio::test(start_paused = true)]
async fn a_person_is_asked_in_the_middle_of_a_call() {
    let host = Host::start().await;
    set_kinds(&host, vec![kind("ask", None, Form::Final)]);
    let ann = Principal::user("ann", "chat".into());
    let capabilities = json!({"elicitation": {}});
    let mut wire = Wire::initialized(&exposing(&host, &["*"]), ann, capabilities).await;
    let id = wire.request("tools/call", json!({"name": "ask", "arguments": {}})).await;
    until("it was launched", || host.script.under_way() == 1).await;
    let job = host.script.only();
    host.script.end(job, RunEnding::Completed, "");
    let asked = elicited(&mut wire, json!({"action": "accept", "content": {"answer": true}})).await;
    assert_eq!(asked["message"], "ask (ask) asks: go on?");
    assert_eq!(
        asked["requestedSchema"],
        json!({
            "type": "object",
            "properties": {"answer": {"type": "boolean"}},
            "required": ["answer"],
        })
    );
    until("it goes on", || host.script.under_way() == 1).await;
    host.script.end(job, RunEnding::Completed, "went on");
    assert_eq!(text(&wire.answer(id).await["result"]), "went on");
    // Declined, the question stays and the answer says so.
    let id = wire.request("tools/call", json!({"name": "ask", "arguments": {}})).await;
    until("it was launched", || host.script.under_way() == 1).await;
    host.script.end(host.script.only(), RunEnding::Completed, "");
    elicited(&mut wire, json!({"action": "decline"})).await;
    let answer = wire.answer(id).await["result"].clone();
    assert!(text(&answer).contains("The person is asked: go on?"), "{answer}");
    // What does not fit is told, and asked for again.
    let look = json!({"task_id": task_of(&answer), "wait_seconds": 9});
    let id = wire.request("tools/call", json!({"name": "task_status", "arguments": look})).await;
    elicited(&mut wire, json!({"action": "accept", "content": {"answer": 7}})).await;
    let asked = elicited(&mut wire, json!({"action": "accept"})).await;
    assert_eq!(
        asked["message"],
        "ask (ask) asks: go on?\n\nIt is asked again: the answer does not fit: no boolean"
    );
    elicited(&mut wire, json!({"action": "accept", "content": {"answer": true}})).await;
    until("it goes on", || host.script.under_way() == 1).await;
    host.script.end(host.script.only(), RunEnding::Completed, "went on");
    assert!(text(&wire.answer(id).await["result"]).ends_with("\nResult:\nwent on"));
}

#[tokio::test(start_paused = true)]
async fn a_person_is_asked_by_the_answer_to_a_call() {
    let host = Host::start().await;
    set_kinds(&host, vec![kind("ask", None, Form::Final), kind("other", None, Form::Final)]);
    let mut wire = Wire::user_2026(&exposing(&host, &["*"]), &json!({"elicitation": {"form": {}}}));
    let id = wire.request("tools/call", json!({"name": "ask", "arguments": {}})).await;
    until("it was launched", || host.script.under_way() == 1).await;
    let job = host.script.only();
    host.script.end(job, RunEnding::Completed, "");
    let required = wire.answer(id).await["result"].clone();
    assert_eq!(required["resultType"], "input_required", "{required}");
    let request = &required["inputRequests"]["answer"];
    assert_eq!(request["method"], "elicitation/create");
    assert_eq!(request["params"]["message"], "ask (ask) asks: go on?");
    let state = required["requestState"].clone();
    let again = |tool: &str, content: Value| {
        json!({
            "name": tool,
            "arguments": {},
            "requestState": state,
            "inputResponses": {"answer": {"action": "accept", "content": content}},
        })
    };
    // What does not fit is told, and asked for again, as is what was not answered.
    let unfit = wire.ask("tools/call", again("ask", json!({"answer": 7}))).await["result"].clone();
    assert_eq!(unfit["requestState"], state, "{unfit}");
    let told = unfit["inputRequests"]["answer"]["params"]["message"].as_str().unwrap();
    assert!(told.ends_with("asked again: the answer does not fit: no boolean"), "{told}");
    for responses in [json!({}), json!({"other": {"action": "accept"}}), json!({"answer": 12345})] {
        let mut call = again("ask", json!({}));
        call["inputResponses"] = responses;
        let asked = wire.ask("tools/call", call).await["result"].clone();
        assert_eq!(asked["resultType"], "input_required", "{asked}");
    }
    // Who declines is not asked at once again, and the question stays.
    let mut declined = again("ask", json!({}));
    declined["inputResponses"]["answer"] = json!({"action": "decline"});
    let declined = wire.ask("tools/call", declined).await["result"].clone();
    assert!(text(&declined).contains("The person is asked: go on?"), "{declined}");
    // A state is taken to the letter, and for the call that it was given out to.
    let refuse = |answer: &Value| {
        assert_eq!(answer["error"]["code"], -32602, "{answer}");
        let why = "there is no call that this `requestState` goes on with";
        assert_eq!(answer["error"]["message"], why);
    };
    refuse(&wire.ask("tools/call", again("other", json!({"answer": true}))).await);
    let given_out = state.as_str().unwrap();
    let (id, run) = given_out.split_once('.').unwrap();
    for odd in [
        format!("{given_out}-TAMPERED"),
        format!("{id}.{}", "0".repeat(run.len())),
        format!("{}.{run}", id.to_uppercase()),
        id.to_owned(),
        String::new(),
    ] {
        let mut call = again("ask", json!({"answer": true}));
        call["requestState"] = json!(odd);
        refuse(&wire.ask("tools/call", call).await);
    }
    assert_eq!(host.script.under_way(), 0);
    let id = wire.request("tools/call", again("ask", json!({"answer": false}))).await;
    until("it goes on", || host.script.under_way() == 1).await;
    host.script.end(job, RunEnding::Completed, "went on");
    assert_eq!(text(&wire.answer(id).await["result"]), "went on");
    // It is one job, and what names it is nobody else's to use.
    assert_eq!(host.script.requests.lock().unwrap().len(), 1);
    let mut bob = Wire::connect(&exposing(&host, &["*"]), Principal::user("bob", "other".into()));
    bob.meta = wire.meta.clone();
    refuse(&bob.ask("tools/call", again("ask", json!({"answer": true}))).await);
}

#[tokio::test(start_paused = true)]
async fn what_is_answered_before_it_is_asked_is_taken_once() {
    let host = Host::start().await;
    set_kinds(&host, vec![kind("ask", None, Form::Final)]);
    let mut wire = Wire::user_2026(&exposing(&host, &["*"]), &json!({"elicitation": {"form": {}}}));
    let params = json!({
        "name": "ask",
        "inputResponses": {
            "answer": {"action": "accept", "content": {"answer": true}},
            "nobody": {"action": "accept", "content": {}},
        },
    });
    let id = wire.request("tools/call", params).await;
    until("it was launched", || host.script.under_way() == 1).await;
    let job = host.script.only();
    host.script.end(job, RunEnding::Completed, "");
    until("it goes on", || host.script.under_way() == 1).await;
    host.script.end(job, RunEnding::Completed, "went on");
    assert_eq!(text(&wire.answer(id).await["result"]), "went on");
}

#[tokio::test(start_paused = true)]
async fn a_host_that_was_just_started_is_waited_for() {
    let host = Host::start().await;
    let loading = Arc::new(Notify::new());
    *host.script.loading.lock().unwrap() = Some(loading.clone());
    // It is there before it can be started.
    let mut other = kind("other", None, Form::Final);
    (other.state, other.current) = (KindState::Unloaded, None);
    set_kinds(&host, vec![other]);
    let mut wire = Wire::user_2026(&exposing(&host, &["*"]), &json!({}));
    let begun = Instant::now();
    let listing = wire.request("tools/list", json!({})).await;
    let calling = wire.request("tools/call", json!({"name": "grep_all"})).await;
    let (name, arguments) = ("spawn_task", json!({"kind": "other"}));
    let spawning = wire.request("tools/call", json!({"name": name, "arguments": arguments})).await;
    // What has to do with no kind is answered.
    assert!(text(&wire.call("task_status", json!({})).await).starts_with("There are no tasks"));
    set_kinds(&host, vec![kind("grep-all", None, Form::Final), kind("other", None, Form::Final)]);
    loading.notify_waiters();
    let listed = wire.answer(listing).await["result"]["tools"].clone();
    let names: Vec<_> = listed.as_array().unwrap().iter().map(|it| it["name"].clone()).collect();
    assert_eq!(names[4..], ["grep_all", "other"]);
    assert!(wire.answer(spawning).await["result"]["content"].is_array());
    assert_eq!(begun.elapsed(), Duration::ZERO);
    until("it was launched", || host.script.under_way() == 2).await;
    wire.notify("notifications/cancelled", json!({"requestId": calling})).await;
    // Not for ever: what is there is what there is.
    let begun = Instant::now();
    assert_eq!(wire.tools().await.len(), 6);
    assert_eq!(begun.elapsed(), Duration::from_secs(10));
    let unknown = wire.ask("tools/call", json!({"name": "none"})).await;
    assert_eq!(unknown["error"]["code"], -32602);
}
