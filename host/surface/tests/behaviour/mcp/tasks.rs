//! Calls that are answered with tasks.

use backlot_jobs::RunEnding;
use backlot_registry::Form;
use backlot_surface::Principal;
use serde_json::{Value, json};

use super::client::{Wire, exposing, kind, owes, set_kinds, text, texts, with_tasks};
use crate::harness::{Host, until};

/// Connects, and calls a kind; returns the task that is the answer.
async fn called(host: &Host, name: &str) -> (Wire, Value) {
    set_kinds(host, vec![kind(name, None, Form::Final)]);
    let mut wire = Wire::user_2026(&exposing(host, &["*"]), &with_tasks());
    let params = json!({"name": name, "arguments": {"input": "x"}});
    let answer = wire.ask("tools/call", params).await;
    (wire, answer["result"].clone())
}

async fn get(wire: &mut Wire, id: &Value) -> Value {
    wire.ask("tasks/get", json!({"taskId": id})).await["result"].clone()
}

/// Waits until a task is in a state, and returns it.
async fn once(wire: &mut Wire, id: &Value, status: &str) -> Value {
    for _ in 0..1_000 {
        let task = get(wire, id).await;
        if task["status"] == status {
            return task;
        }
        tokio::task::yield_now().await;
    }
    panic!("{id} is not {status}");
}

#[tokio::test]
async fn a_call_is_a_task_from_its_beginning_to_its_result() {
    let host = Host::start().await;
    let (mut wire, created) = called(&host, "park").await;
    assert_eq!(created["resultType"], "task");
    assert_eq!((&created["status"], &created["ttlMs"]), (&json!("working"), &Value::Null));
    assert_eq!(created["pollIntervalMs"], 1_000);
    let job = host.script.only();
    let id = created["taskId"].clone();
    assert_eq!(id, format!("{job}.0"));
    let task = get(&mut wire, &id).await;
    assert_eq!((&task["status"], &task["statusMessage"]), (&json!("working"), &json!("half way")));
    host.script.end(job, RunEnding::Completed, r#"{"found":3}"#);
    let task = once(&mut wire, &id, "completed").await;
    assert_eq!(task["result"]["structuredContent"], json!({"found": 3}));
    assert_eq!(task["result"]["isError"], false);
    assert!(task["ttlMs"].as_u64().unwrap() > 1_000_000);
    // Looking again tells the same, and what was told is settled.
    assert_eq!(get(&mut wire, &id).await, task);
    owes(&host, "chat", 0).await;
    assert_eq!(texts(&wire.call("task_status", json!({})).await).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_ends_or_asks_within_a_moment_is_no_task() {
    let host = Host::start().await;
    set_kinds(&host, vec![kind("park", None, Form::Final), kind("ask", None, Form::Final)]);
    let mut capabilities = with_tasks();
    capabilities["elicitation"] = json!({});
    let mut wire = Wire::user_2026(&exposing(&host, &["*"]), &capabilities);
    let id = wire.request("tools/call", json!({"name": "park"})).await;
    until("it was launched", || host.script.under_way() == 1).await;
    host.script.end(host.script.only(), RunEnding::Completed, "done");
    assert_eq!(text(&wire.answer(id).await["result"]), "done");
    // What asks is answered with the question, and what then takes longer with a task.
    let id = wire.request("tools/call", json!({"name": "ask"})).await;
    until("it was launched", || host.script.under_way() == 1).await;
    let job = host.script.only();
    host.script.end(job, RunEnding::Completed, "");
    let asked = wire.answer(id).await["result"].clone();
    assert_eq!(asked["resultType"], "input_required");
    let again = json!({
        "name": "ask",
        "requestState": asked["requestState"],
        "inputResponses": {"answer": {"action": "accept", "content": {"answer": true}}},
    });
    let begun = tokio::time::Instant::now();
    let created = wire.ask("tools/call", again).await["result"].clone();
    assert_eq!(begun.elapsed().as_millis(), 150);
    assert_eq!((&created["resultType"], &created["status"]), (&json!("task"), &json!("working")));
    assert_eq!(created["taskId"], format!("{job}.0"));
    assert_eq!(created.get("requestState"), None);
}

#[tokio::test]
async fn a_retry_is_another_task_and_the_first_stays_as_it_ended() {
    let host = Host::start().await;
    let (mut wire, created) = called(&host, "park").await;
    let (job, first) = (host.script.only(), created["taskId"].clone());
    host.script.end(job, RunEnding::Failed, "half");
    let failed = once(&mut wire, &first, "completed").await;
    assert_eq!(failed["result"]["isError"], true);
    assert!(text(&failed["result"]).contains("failed: Failed"), "{failed}");
    let second = json!(format!("{job}.1"));
    let unknown = wire.ask("tasks/get", json!({"taskId": second})).await;
    assert_eq!(unknown["error"]["code"], -32602);
    wire.call("task_retry", json!({"task_id": job.to_string()})).await;
    assert_eq!(get(&mut wire, &second).await["status"], "working");
    let earlier = get(&mut wire, &first).await;
    assert_eq!(
        (&earlier["status"], &earlier["result"]["isError"]),
        (&json!("completed"), &json!(true))
    );
    assert!(text(&earlier["result"]).contains("failed: Failed"), "{earlier}");
    // What is over is not stopped, and what follows goes on.
    wire.ask("tasks/cancel", json!({"taskId": first})).await;
    assert_eq!(get(&mut wire, &second).await["status"], "working");
    wire.ask("tasks/cancel", json!({"taskId": second})).await;
    once(&mut wire, &second, "cancelled").await;
    assert_eq!(get(&mut wire, &first).await["status"], "completed");
}

#[tokio::test]
async fn what_the_host_broke_is_failed() {
    let host = Host::start().await;
    let (mut wire, created) = called(&host, "park").await;
    host.script.end(host.script.only(), RunEnding::Interrupted, "");
    let failed = once(&mut wire, &created["taskId"], "failed").await;
    assert_eq!(failed["error"]["code"], -32603);
}

#[tokio::test]
async fn a_question_is_answered_through_its_task() {
    let host = Host::start().await;
    let (mut wire, created) = called(&host, "ask").await;
    let (job, id) = (host.script.only(), created["taskId"].clone());
    host.script.end(job, RunEnding::Completed, "");
    let asked = once(&mut wire, &id, "input_required").await;
    let requests = asked["inputRequests"].as_object().unwrap();
    let (key, request) = requests.iter().next().unwrap();
    assert_eq!(request["method"], "elicitation/create");
    let update = async |wire: &mut Wire, key: &str, response: Value| {
        let mut responses = serde_json::Map::new();
        responses.insert(key.to_owned(), response);
        wire.ask("tasks/update", json!({"taskId": id, "inputResponses": responses})).await
    };
    let accept = |content: Value| json!({"action": "accept", "content": {"answer": content}});
    // Neither an answer to something else, nor no answer, nor one that does not fit.
    for (key, response, is_error) in [
        ("answer-other", accept(json!(true)), false),
        (key, json!({"action": "decline"}), false),
        (key, accept(json!(7)), true),
        (key, json!(7), true),
    ] {
        let answer = update(&mut wire, key, response).await;
        assert_eq!(answer.get("error").is_some(), is_error, "{answer}");
        assert_eq!(get(&mut wire, &id).await["status"], "input_required");
    }
    let answer = update(&mut wire, key, accept(json!(true))).await;
    assert_eq!(answer["result"], json!({"resultType": "complete"}));
    until("it goes on", || host.script.is_under_way(job)).await;
    host.script.end(job, RunEnding::Completed, "went on");
    assert_eq!(text(&once(&mut wire, &id, "completed").await["result"]), "went on");
    assert!(update(&mut wire, key, accept(json!(true))).await.get("error").is_none());
}

#[tokio::test]
async fn a_foreign_id_is_an_unknown_one() {
    let host = Host::start().await;
    let (mut wire, created) = called(&host, "park").await;
    let id = created["taskId"].as_str().unwrap().to_owned();
    let mut bob = Wire::connect(&host.api, Principal::user("bob", "other".into()));
    bob.meta = wire.meta.clone();
    let job = host.script.only().to_string();
    let odd = [
        id.clone(),
        format!("{}.0", "0".repeat(32)),
        job.clone(),
        format!("{job}.00"),
        format!("{job}.1"),
        format!("{job}.-1"),
        "grep-7".to_owned(),
        String::new(),
    ];
    for (method, with) in [
        ("tasks/get", json!({})),
        ("tasks/update", json!({"inputResponses": {}})),
        ("tasks/cancel", json!({})),
    ] {
        for id in &odd {
            let mut params = with.clone();
            params["taskId"] = json!(id);
            let answer = bob.ask(method, params.clone()).await;
            assert_eq!(
                answer["error"],
                json!({"code": -32602, "message": "there is no such task"}),
                "{method} {id}"
            );
            if *id != odd[0] {
                assert_eq!(wire.ask(method, params).await["error"], answer["error"], "{id}");
            }
        }
    }
    assert_eq!(get(&mut wire, &json!(id)).await["status"], "working");
}

#[tokio::test(start_paused = true)]
async fn who_does_not_take_tasks_is_given_none() {
    let host = Host::start().await;
    set_kinds(&host, vec![kind("park", None, Form::Final)]);
    let api = exposing(&host, &["*"]);
    let call = json!({"name": "park", "arguments": {}});
    // Neither who does not say so, nor who is of a revision that has none.
    let ann = Principal::user("ann", "chat".into());
    let mut plain = Wire::user_2026(&api, &json!({}));
    let mut old = Wire::initialized(&api, ann, with_tasks()).await;
    for wire in [&mut plain, &mut old] {
        let answer = wire.ask("tools/call", call.clone()).await;
        assert!(text(&answer["result"]).contains("goes on in the background"), "{answer}");
    }
    let refused = plain.ask("tasks/get", json!({"taskId": "x"})).await;
    assert_eq!(refused["error"]["code"], -32021);
}
