//! Start, look, retry, stop.

use backlot_jobs::{Query, RunEnding, output::Stream};
use backlot_registry::{Caller, Form};
use backlot_surface::Principal;
use serde_json::{Value, json};

use super::client::{
    Wire, exposing, kind, meta_2026, owes, set_kinds, task_of, text, texts, without,
};
use crate::harness::{Host, until};

#[tokio::test]
async fn the_tools_as_models_read_of_them() {
    let host = Host::start().await;
    let schema = r#"{ "type": "object", "properties": {"pattern": {"type": "string"}} }"#;
    set_kinds(
        &host,
        vec![kind("grep", Some(schema), Form::Final), kind("tick", None, Form::Stream)],
    );
    let mut wire = Wire::user(&exposing(&host, &["tick"])).await;
    let tools = wire.tools().await;
    let names: Vec<_> = tools.iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["spawn_task", "task_status", "task_retry", "task_stop", "tick"]);
    let spawn = &tools[0];
    let description = spawn["description"].as_str().unwrap();
    assert!(
        description.ends_with(
            "Kinds of work:\n\
             - grep: Does grep. Input: {\"properties\":{\"pattern\":{\"type\":\"string\"}},\"type\":\"object\"}.\n\
             - tick: Does tick. Its output comes piece by piece."
        ),
        "{description}"
    );
    assert_eq!(spawn["inputSchema"]["properties"]["kind"]["enum"], json!(["grep", "tick"]));
    // What models read is part of the product: whoever changes it sees the whole of it.
    let expected: Vec<Value> = serde_json::from_str(include_str!("tools.json")).unwrap();
    assert_eq!(tools, expected, "\n{}", serde_json::to_string_pretty(&tools).unwrap());
    for tool in &tools {
        assert_eq!(tool["inputSchema"]["type"], "object");
        assert_eq!(tool["inputSchema"]["additionalProperties"], false);
        assert!(tool["title"].is_string());
        assert!(tool["description"].as_str().unwrap().len() < 2_000);
    }
    let hints = |place: usize| tools[place]["annotations"].clone();
    assert_eq!(
        hints(1),
        json!({
            "title": "Look at tasks",
            "readOnlyHint": true,
            "destructiveHint": false,
            "idempotentHint": true,
        })
    );
    assert_eq!(hints(3)["destructiveHint"], true);
}

#[tokio::test]
async fn a_task_is_started_looked_at_and_told_of_once() {
    let host = Host::start().await;
    let mut wire = Wire::user(&host.api).await;
    let spawned = wire.call("spawn_task", json!({"kind": "park", "input": {"a": 1}})).await;
    assert_eq!(spawned["isError"], false);
    let id = task_of(&spawned);
    assert_eq!(
        without(&text(&spawned), &[&id]),
        "Task <A> (park) was started and works in the background. You are told when it ends, \
         with the answer of a later call: go on with something else, do not ask again and again, \
         and do not do its work yourself."
    );
    let request = host.script.requests.lock().unwrap()[0].clone();
    assert_eq!(request.input.as_deref(), Some(r#"{"a":1}"#));
    assert_eq!((request.session.as_deref(), request.announce), (Some("chat"), Some(true)));
    let looked = wire.call("task_status", json!({"task_id": &id[..8]})).await;
    assert_eq!(
        without(&text(&looked), &[&id]),
        "Task <A> is still working — do not redo its work.\n\
         Kind park, \"park\", attempt 1 of 3.\n\
         Progress: half way"
    );
    host.script.end(id.parse().unwrap(), RunEnding::Completed, "found\nit");
    let looked = wire.call("task_status", json!({"task_id": id, "wait_seconds": 60})).await;
    assert_eq!(
        without(&text(&looked), &[&id]),
        "Task <A> completed.\nKind park, \"park\", attempt 1 of 3.\nResult:\nfound\nit"
    );
    assert_eq!(
        looked["_meta"]["backlot/task"],
        json!({
            "task_id": id,
            "kind": "park",
            "status": "completed",
            "attempt": 1,
            "next_offset": 8,
            "truncated": false,
        })
    );
    // That was its ending, so there is no notification besides, then or later.
    owes(&host, "chat", 0).await;
    let listed = wire.call("task_status", json!({})).await;
    assert_eq!(
        without(&text(&listed), &[&id]),
        "Tasks, the newest first:\n- <A> park \"park\": completed. found it"
    );
}

#[tokio::test]
async fn whatever_is_asked_next_tells_what_has_ended() {
    let host = Host::start().await;
    let mut wire = Wire::user(&host.api).await;
    let first = task_of(&wire.call("spawn_task", json!({"kind": "park", "label": "one"})).await);
    let second = task_of(&wire.call("spawn_task", json!({"kind": "park", "label": "two"})).await);
    host.script.end(first.parse().unwrap(), RunEnding::Completed, "4 files");
    host.script.end(second.parse().unwrap(), RunEnding::Failed, "");
    owes(&host, "chat", 2).await;
    // A listing settles nothing by itself: what is owed comes besides.
    let listed = wire.call("task_status", json!({})).await;
    let blocks = texts(&listed);
    assert_eq!(blocks.len(), 2, "{blocks:?}");
    let told = without(&blocks[1], &[&first, &second]);
    assert!(told.starts_with("[task-notification] Task \""), "{told}");
    assert!(told.contains("Task \"one\" (<A:8>) completed. Result: 4 files\n"), "{told}");
    assert!(told.contains("Task \"two\" (<B:8>) failed."), "{told}");
    owes(&host, "chat", 0).await;
    assert_eq!(texts(&wire.call("task_status", json!({})).await).len(), 1);
}

#[tokio::test]
async fn calls_that_overlap_tell_an_ending_once() {
    let host = Host::start().await;
    let mut wire = Wire::user(&host.api).await;
    for _ in 0..20 {
        let id = task_of(&wire.call("spawn_task", json!({"kind": "park"})).await);
        host.script.end(id.parse().unwrap(), RunEnding::Completed, "done");
        owes(&host, "chat", 1).await;
        let mut asked = Vec::new();
        for _ in 0..4 {
            asked.push(wire.request("tools/call", json!({"name": "task_status"})).await);
        }
        let mut told = 0;
        for asked in asked {
            told += texts(&wire.answer(asked).await["result"]).len() - 1;
        }
        // Nor does the call that follows at once, while it is being written down.
        told += texts(&wire.call("task_status", json!({})).await).len() - 1;
        assert_eq!(told, 1);
    }
}

#[tokio::test]
async fn what_never_reached_anybody_is_told_again() {
    let host = Host::start().await;
    let job = host.spawn("park").await;
    host.end(&job, RunEnding::Completed, "done").await;
    let mut wire = Wire::user(&host.api).await;
    // It is cancelled while it is under way, so its answer is dropped.
    let gate = std::sync::Arc::new(tokio::sync::Notify::new());
    *host.script.gate.lock().unwrap() = Some(gate.clone());
    let id = wire
        .request("tools/call", json!({"name": "spawn_task", "arguments": {"kind": "park"}}))
        .await;
    until("it was asked for", || !host.script.requests.lock().unwrap()[1..].is_empty()).await;
    wire.notify("notifications/cancelled", json!({"requestId": id})).await;
    wire.ask("ping", json!({})).await;
    gate.notify_one();
    *host.script.gate.lock().unwrap() = None;
    until("it is launched all the same", || host.script.under_way() == 1).await;
    let owed = host.manager.owed(&"chat".into()).await.unwrap().unwrap();
    assert_eq!(owed.jobs.len(), 1);
    assert!(text(&wire.call("task_status", json!({})).await).contains("[task-notification]"));
    owes(&host, "chat", 0).await;
}

#[tokio::test(start_paused = true)]
async fn a_wait_ends_with_the_task_or_its_time() {
    let host = Host::start().await;
    let mut wire = Wire::user(&host.api).await;
    let id = task_of(&wire.call("spawn_task", json!({"kind": "park"})).await);
    let begun = tokio::time::Instant::now();
    let looked = wire.call("task_status", json!({"task_id": id, "wait_seconds": 5})).await;
    assert!(text(&looked).contains("still working"));
    assert_eq!(begun.elapsed().as_secs(), 5);
    // No more than two minutes, whatever was asked for.
    wire.call("task_status", json!({"task_id": id, "wait_seconds": 9_999})).await;
    assert_eq!(begun.elapsed().as_secs(), 125);
    let spawned = wire
        .request(
            "tools/call",
            json!({"name": "spawn_task", "arguments": {"kind": "park", "wait_seconds": 60}}),
        )
        .await;
    until("it was launched", || host.script.under_way() == 2).await;
    let query = Query { limit: 9, ..Query::default() };
    let all = host.manager.list(&Caller::Operator, query).await;
    let newest = all.unwrap().jobs.into_iter().find(|job| job.id.to_string() != id);
    host.script.end(newest.unwrap().id, RunEnding::Completed, "quick");
    let answer = wire.answer(spawned).await;
    assert!(text(&answer["result"]).ends_with("Result:\nquick"), "{answer}");
    owes(&host, "chat", 0).await;
}

#[tokio::test]
async fn new_output_comes_once_and_where_it_is_cut_it_goes_on() {
    let host = Host::start().await;
    set_kinds(&host, vec![kind("tick", None, Form::Stream)]);
    let mut wire = Wire::user(&host.api).await;
    let id = task_of(&wire.call("spawn_task", json!({"kind": "tick"})).await);
    let job = id.parse().unwrap();
    host.record(job, Stream::Stdout, b"one\n");
    let mut look = async |arguments: Value| {
        let result = wire.call("task_status", arguments).await;
        let text = text(&result);
        let (_, told) = text.split_once("attempt 1 of 3.\n").unwrap();
        let told = told.strip_prefix("Progress: half way\n").unwrap_or(told);
        (without(told, &[&id]), result["_meta"]["backlot/task"].clone())
    };
    assert_eq!(look(json!({"task_id": id})).await.0, "Output:\none\n");
    assert_eq!(look(json!({"task_id": id})).await.0, "No output is new.");
    host.record(job, Stream::Stdout, b"two\n");
    assert_eq!(look(json!({"task_id": id})).await.0, "Output from offset 4 on:\ntwo\n");
    // One that says from where moves nothing.
    assert_eq!(look(json!({"task_id": id, "after": 0})).await.0, "Output:\none\ntwo\n");
    // Many lines come in parts, and every byte once.
    let lines: Vec<u8> = (0..10_000).flat_map(|at| format!("line {at}\n").into_bytes()).collect();
    for piece in lines.chunks(10_000) {
        host.record(job, Stream::Stdout, piece);
    }
    host.script.end(job, RunEnding::Completed, "ignored");
    let mut all = String::new();
    loop {
        let (told, facts) = look(json!({"task_id": id})).await;
        assert!(told.len() < 40 << 10, "{}", told.len());
        let (_, output) = told.split_once(":\n").unwrap();
        match facts["truncated"].as_bool().unwrap() {
            true => {
                let next = &facts["next_offset"];
                let cut =
                    format!("\n[cut here: task_status with task_id <A> and after {next} reads on]");
                all.push_str(output.strip_suffix(&cut).unwrap());
            }
            false => {
                all.push_str(output);
                break;
            }
        }
    }
    assert_eq!(all.as_bytes(), lines);
    assert_eq!(
        look(json!({"task_id": id})).await.0,
        "No output is new. task_status with after 0 tells it from the beginning."
    );
}

#[tokio::test]
async fn c80_a_long_result_comes_in_parts_and_nothing_is_lost() {
    let host = Host::start().await;
    let mut wire = Wire::user(&host.api).await;
    let id = task_of(&wire.call("spawn_task", json!({"kind": "park"})).await);
    let long = "é".repeat(60_000);
    host.script.end(id.parse().unwrap(), RunEnding::Completed, &long);
    let (mut all, mut after) = (String::new(), 0);
    loop {
        let arguments = json!({"task_id": id, "wait_seconds": 9, "after": after});
        let result = wire.call("task_status", arguments).await;
        let told = text(&result);
        assert!(result.to_string().len() < 64 << 10, "{}", result.to_string().len());
        let (_, part) = told.split_once("Result:\n").unwrap();
        let part = part.split("\n[cut here").next().unwrap();
        all.push_str(part);
        let facts = &result["_meta"]["backlot/task"];
        after = facts["next_offset"].as_u64().unwrap();
        if facts["truncated"] == false {
            break;
        }
    }
    assert_eq!(all, long);
}

#[tokio::test]
async fn a_long_list_has_pages() {
    let host = Host::start().await;
    let mut wire = Wire::user(&host.api).await;
    for number in 0..45 {
        let label = format!("{number} {}", "x".repeat(300));
        wire.call("spawn_task", json!({"kind": "park", "label": label})).await;
    }
    let (mut seen, mut arguments) = (0, json!({}));
    loop {
        let result = wire.call("task_status", arguments).await;
        let facts = &result["_meta"]["backlot/task"];
        seen += facts["tasks"].as_array().unwrap().len();
        assert!(text(&result).len() < 16 << 10);
        let Some(next) = facts["next_before"].as_u64() else { break };
        assert!(text(&result).contains(&format!("task_status with before {next} lists them")));
        arguments = json!({"before": next});
    }
    assert_eq!(seen, 45);
}

#[tokio::test]
async fn what_has_failed_is_tried_again_and_nothing_else_is() {
    let host = Host::start().await;
    let mut wire = Wire::user(&host.api).await;
    let id = task_of(&wire.call("spawn_task", json!({"kind": "park", "attempts": 2})).await);
    let working = wire.call("task_retry", json!({"task_id": id})).await;
    assert_eq!(working["isError"], true);
    assert!(text(&working).contains("working"), "{working}");
    host.script.end(id.parse().unwrap(), RunEnding::Failed, "half");
    let failed = wire.call("task_status", json!({"task_id": id, "wait_seconds": 9})).await;
    assert_eq!(failed["isError"], false);
    assert_eq!(
        without(&text(&failed), &[&id]),
        "Task <A> failed: Failed\nKind park, \"park\", attempt 1 of 2.\n\
         task_retry can go on from where it stopped; one attempt is left.\nResult:\nhalf"
    );
    let again = wire.call("task_retry", json!({"task_id": id})).await;
    assert_eq!(
        without(&text(&again), &[&id]),
        "Task <A> goes on from where it stopped: attempt 2 of 2. You are told when it ends."
    );
    host.script.end(id.parse().unwrap(), RunEnding::Failed, "");
    let failed = wire.call("task_status", json!({"task_id": id, "wait_seconds": 9})).await;
    assert!(text(&failed).contains("It has had all its attempts."), "{failed}");
    let refused = wire.call("task_retry", json!({"task_id": id})).await;
    assert_eq!(refused["isError"], true);
    assert!(text(&refused).contains("(spawn the work anew"), "{refused}");
}

#[tokio::test]
async fn what_is_stopped_says_so_and_is_not_announced() {
    let host = Host::start().await;
    let mut wire = Wire::user(&host.api).await;
    let id = task_of(&wire.call("spawn_task", json!({"kind": "park"})).await);
    let refused = wire.call("task_stop", json!({"task_id": id, "reason": "refuse"})).await;
    assert_eq!(
        (refused["isError"].as_bool(), text(&refused).as_str()),
        (
            Some(true),
            "its run goes on: it is stubborn; nothing will follow it, and force ends it now"
        )
    );
    let id = task_of(&wire.call("spawn_task", json!({"kind": "park"})).await);
    let stopped = wire.call("task_stop", json!({"task_id": id, "reason": "enough"})).await;
    assert!(without(&text(&stopped), &[&id]).starts_with("Task <A> was "), "{stopped}");
    let looked = wire.call("task_status", json!({"task_id": id, "wait_seconds": 9})).await;
    assert!(text(&looked).starts_with(&format!("Task {id} was stopped: enough")), "{looked}");
    let again = wire.call("task_stop", json!({"task_id": id, "force": true})).await;
    assert!(without(&text(&again), &[&id]).starts_with("Task <A> had ended already: "), "{again}");
    assert_eq!(texts(&again).len(), 1);
}

#[tokio::test]
async fn wrong_arguments_are_answered_so_that_they_can_be_put_right() {
    let host = Host::start().await;
    let schema = r#"{"type":"object"}"#;
    set_kinds(&host, vec![kind("wrong", Some(schema), Form::Final)]);
    let mut wire = Wire::user(&host.api).await;
    let mut told = async |tool: &str, arguments: Value| {
        let result = wire.call(tool, arguments).await;
        assert_eq!(result["isError"], true, "{result}");
        text(&result)
    };
    assert_eq!(
        told("spawn_task", json!({})).await,
        "spawn_task was not called right, and nothing was done: missing field `kind`"
    );
    assert!(told("spawn_task", json!({"kind": "A B"})).await.starts_with("`kind`: \"A B\""));
    assert!(told("spawn_task", json!({"kind": "a", "knd": 1})).await.contains("`knd`"));
    assert_eq!(
        told("spawn_task", json!({"kind": "wrong", "input": "x"})).await,
        "could not be launched: the input is wrong (nothing was started; `input` has to fit \
         {\"type\":\"object\"})"
    );
    assert!(told("task_status", json!({"task_id": "nothing"})).await.starts_with("no job nothing"));
    assert!(told("task_stop", json!({"task_id": "00000000"})).await.starts_with("no job 00000000"));
    assert!(told("task_stop", json!({"task_id": 7})).await.contains("`task_id`: invalid type"));
    let unknown = wire.ask("tools/call", json!({"name": "no_such"})).await;
    assert_eq!(unknown["error"]["code"], -32602);
}

#[tokio::test]
async fn c45_what_is_somebody_elses_is_not_there() {
    let host = Host::start().await;
    let mut ann = Wire::user(&host.api).await;
    let id = task_of(&ann.call("spawn_task", json!({"kind": "park"})).await);
    let bob = Principal::user("bob", "other".into());
    let mut bob = Wire::initialized(&host.api, bob, json!({})).await;
    let nobody = "0".repeat(32);
    for (tool, with) in [
        ("task_status", json!({"wait_seconds": 1})),
        ("task_status", json!({"after": 0})),
        ("task_retry", json!({})),
        ("task_stop", json!({"force": true})),
    ] {
        let mut told = Vec::new();
        for id in [&id, &nobody] {
            let mut arguments = with.clone();
            arguments["task_id"] = json!(id);
            let result = bob.call(tool, arguments).await;
            told.push(result.to_string().replace(id, "ID"));
        }
        assert_eq!(told[0], told[1], "{tool}");
        assert!(told[0].contains("no job ID"), "{}", told[0]);
    }
    assert_eq!(text(&bob.call("task_status", json!({})).await), "There are no tasks.");
    // Nor does it come with what bob asks once it has ended.
    host.script.end(id.parse().unwrap(), RunEnding::Completed, "");
    ann.call("task_status", json!({"task_id": id, "wait_seconds": 9})).await;
    assert_eq!(text(&bob.call("task_status", json!({})).await), "There are no tasks.");
    // A session is named within one's own, and nowhere else.
    let named =
        json!({"name": "task_status", "arguments": {}, "_meta": {"backlot/session": "chat"}});
    assert_eq!(bob.ask("tools/call", named).await["error"]["code"], -32602);
}

#[tokio::test]
async fn a_session_below_ones_own_can_be_named() {
    let host = Host::start().await;
    host.manager.open_session("chat/7".into()).await.unwrap();
    let mut wire = Wire::user(&host.api).await;
    let named = |tool: &str, arguments: Value| json!({"name": tool, "arguments": arguments, "_meta": {"backlot/session": "chat/7"}});
    let spawned = wire.ask("tools/call", named("spawn_task", json!({"kind": "park"}))).await;
    let id = task_of(&spawned["result"]);
    assert_eq!(text(&wire.call("task_status", json!({})).await), "There are no tasks.");
    let listed = wire.ask("tools/call", named("task_status", json!({}))).await;
    assert!(text(&listed["result"]).contains(&id));
    // The operator has a session of its own, and may name any.
    host.manager.open_session("mcp".into()).await.unwrap();
    let mut operator =
        Wire::initialized(&host.api, Principal::operator("operator"), json!({})).await;
    assert_eq!(text(&operator.call("task_status", json!({})).await), "There are no tasks.");
    operator.call("spawn_task", json!({"kind": "park"})).await;
    let request = host.script.requests.lock().unwrap().last().cloned().unwrap();
    assert_eq!(request.session.as_deref(), Some("mcp"));
    let listed = operator.ask("tools/call", named("task_status", json!({}))).await;
    assert!(text(&listed["result"]).contains(&id));
}

#[tokio::test]
async fn who_looks_on_has_one_tool_and_settles_nothing() {
    let host = Host::start().await;
    let job = host.spawn("park").await;
    host.end(&job, RunEnding::Completed, "done").await;
    let observer = Principal::observer("eve", Some("chat".into()));
    let mut wire = Wire::initialized(&host.api, observer, json!({})).await;
    let tools = wire.tools().await;
    assert_eq!(tools.len(), 1);
    assert_eq!(tools[0]["name"], "task_status");
    let id = job.id.to_string();
    let looked = wire.call("task_status", json!({"task_id": id})).await;
    assert_eq!(texts(&looked).len(), 1);
    assert!(text(&looked).ends_with("Result:\ndone"));
    wire.ask("ping", json!({})).await;
    assert!(host.manager.owed(&"chat".into()).await.unwrap().is_some());
    for tool in ["spawn_task", "task_stop", "task_retry"] {
        let refused = wire.ask("tools/call", json!({"name": tool, "arguments": {}})).await;
        assert_eq!(refused["error"]["code"], -32602, "{tool}");
    }
}

#[tokio::test]
async fn j10_a_tasks_own_session_has_no_tools() {
    let host = Host::start().await;
    let job = host.spawn("park").await;
    for session in [job.own_session.clone(), format!("job-{}", "0".repeat(32))] {
        let own = Principal::user("task", session.as_str().into());
        let mut wire = Wire::initialized(&host.api, own, json!({})).await;
        let listed = wire.ask("tools/list", json!({})).await;
        let call = json!({"name": "spawn_task", "arguments": {"kind": "park"}});
        let called = wire.ask("tools/call", call).await;
        match session == job.own_session {
            true => {
                assert_eq!(listed["result"]["tools"], json!([]));
                let why = called["error"]["message"].as_str().unwrap();
                assert!(why.contains("do the work in the task itself"), "{why}");
            }
            // Whose it is cannot be told, which is no reason to give it tools.
            false => {
                assert_eq!(listed["error"]["code"], -32603);
                assert_eq!(called["error"]["code"], -32603);
            }
        }
    }
    assert_eq!(host.script.requests.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn a_question_is_told_with_who_answers_it() {
    let host = Host::start().await;
    let mut wire = Wire::user(&host.api).await;
    let id = task_of(&wire.call("spawn_task", json!({"kind": "ask"})).await);
    host.script.end(id.parse().unwrap(), RunEnding::Completed, "");
    let looked = wire.call("task_status", json!({"task_id": id, "wait_seconds": 60})).await;
    assert_eq!(
        without(&text(&looked), &[&id]),
        "Task <A> waits for a person's answer: do not redo its work.\n\
         Kind ask, \"ask\", attempt 1 of 3.\n\
         Progress: asked\n\
         The person is asked: go on?\n\
         The answer is JSON that fits {\"type\":\"boolean\"}\n\
         It is for the person to answer: where this client shows no form, with `backlot answer \
         <A>` at a terminal. Tell them, and do not answer in their place."
    );
}

#[tokio::test]
async fn a_client_without_initialize_has_the_same_verbs() {
    let host = Host::start().await;
    let mut wire = Wire::user_2026(&host.api, &json!({}));
    let about = wire.ask("server/discover", json!({})).await;
    let capabilities = &about["result"]["capabilities"];
    assert_eq!(capabilities["tools"]["listChanged"], true);
    assert!(capabilities["extensions"]["io.modelcontextprotocol/tasks"].is_object());
    assert_eq!(wire.tools().await.len(), 4);
    let id = task_of(&wire.call("spawn_task", json!({"kind": "park"})).await);
    host.script.end(id.parse().unwrap(), RunEnding::Completed, "done");
    let looked = wire.call("task_status", json!({"task_id": id, "wait_seconds": 9})).await;
    assert_eq!(looked["resultType"], "complete");
    assert!(text(&looked).ends_with("Result:\ndone"));
    // Without what it has to say with every request, it is told what is missing.
    wire.meta = Value::Null;
    let refused = wire.ask("tools/list", json!({})).await;
    assert_eq!(refused["error"]["code"], -32602);
    wire.meta = meta_2026(&json!({}));
    assert_eq!(wire.tools().await.len(), 4);
}
