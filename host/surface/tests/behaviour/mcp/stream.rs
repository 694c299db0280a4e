//! A connection: what is no message, what is cancelled, and how it ends.

use std::time::Duration;

use backlot_jobs::{RunEnding, output::Stream};
use backlot_registry::Form;
use backlot_surface::Principal;
use serde_json::{Value, json};
use tokio::{io::AsyncWriteExt as _, time::timeout};

use super::client::{Wire, kind, set_kinds, task_of, text};
use crate::harness::{Host, until};

/// Returns what comes next, which has to come at once.
async fn soon(wire: &mut Wire) -> Option<Value> {
    timeout(Duration::from_secs(10), wire.next()).await.unwrap()
}

#[tokio::test]
async fn what_is_no_message_is_answered_and_the_connection_goes_on() {
    let host = Host::start().await;
    let mut wire = Wire::user(&host.api).await;
    for (line, code) in [
        ("{", -32700),
        ("\u{1}\u{2}", -32700),
        ("[]", -32600),
        (r#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#, -32600),
        ("null", -32600),
        (r#"{"jsonrpc":"2.0"}"#, -32600),
        (r#"{"jsonrpc":"1.0","id":1,"method":"ping"}"#, -32600),
        (r#"{"jsonrpc":"2.0","id":{},"method":"ping"}"#, -32600),
        (r#"{"jsonrpc":"2.0","id":1,"method":7}"#, -32600),
        (r#"{"jsonrpc":"2.0","id":1,"method":"tools/call"}"#, -32602),
        (r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":{}}}"#, -32602),
        (r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":[1]}"#, -32602),
        (r#"{"jsonrpc":"2.0","id":1,"method":"no/such"}"#, -32601),
        (r#"{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"a:b"}}"#, -32601),
    ] {
        wire.send(line).await;
        let answer = soon(&mut wire).await.unwrap();
        assert_eq!(answer["error"]["code"], code, "{line}: {answer}");
    }
    // Bytes that are no text, empty lines, and the ends of lines of others.
    wire.write.write_all(b"\xff\xfe\n\n\r\n").await.unwrap();
    assert_eq!(soon(&mut wire).await.unwrap()["error"]["code"], -32700);
    wire.write
        .write_all(b"{\"jsonrpc\":\"2.0\",\"id\":\"a\",\"method\":\"ping\"}\r\n")
        .await
        .unwrap();
    assert_eq!(soon(&mut wire).await.unwrap()["id"], "a");
    // What nobody waits for is left.
    wire.notify("notifications/no_such", json!({"a": 1})).await;
    wire.notify("notifications/cancelled", json!({"requestId": "no such"})).await;
    wire.notify("notifications/cancelled", json!({"requestId": []})).await;
    wire.send(r#"{"jsonrpc":"2.0","id":99,"result":{}}"#).await;
    wire.ask("ping", json!({})).await;
    assert!(wire.heard.is_empty(), "{:?}", wire.heard);
}

#[tokio::test]
async fn a_message_that_is_too_long_is_passed_over() {
    let host = Host::start().await;
    let mut wire = Wire::user(&host.api).await;
    let piece = vec![b'x'; 1 << 20];
    for _ in 0..17 {
        wire.write.write_all(&piece).await.unwrap();
    }
    // It is told of before its end has come.
    assert_eq!(soon(&mut wire).await.unwrap()["error"]["code"], -32600);
    wire.write.write_all(&piece).await.unwrap();
    wire.send("").await;
    wire.ask("ping", json!({})).await;
}

#[tokio::test]
async fn who_says_something_else_first_can_still_begin() {
    let host = Host::start().await;
    let mut wire = Wire::connect(&host.api, Principal::user("ann", "chat".into()));
    wire.notify("notifications/initialized", json!({})).await;
    wire.send(r#"{"jsonrpc":"2.0","id":1,"result":{}}"#).await;
    wire.send("garbage").await;
    assert_eq!(soon(&mut wire).await.unwrap()["error"]["code"], -32700);
    assert!(wire.ask("ping", json!({})).await["result"].is_object());
    assert_eq!(wire.ask("tools/list", json!({})).await["error"]["code"], -32602);
    wire.notify("notifications/cancelled", json!({"requestId": 1})).await;
    let hello = json!({
        "protocolVersion": "1999-01-01",
        "capabilities": {},
        "clientInfo": {"name": "old", "version": "1"},
    });
    let answer = wire.ask("initialize", hello).await;
    assert_eq!(answer["result"]["protocolVersion"], "2025-11-25");
    assert!(answer["result"]["instructions"].as_str().unwrap().contains("[task-notification]"));
    assert_eq!(wire.tools().await.len(), 4);
}

#[tokio::test(start_paused = true)]
async fn c76_a_cancelled_wait_is_over_and_its_task_is_not() {
    let host = Host::start().await;
    let mut wire = Wire::user(&host.api).await;
    let id = task_of(&wire.call("spawn_task", json!({"kind": "park"})).await);
    let wait = json!({"name": "task_status", "arguments": {"task_id": id, "wait_seconds": 120}});
    let begun = tokio::time::Instant::now();
    let waiting = wire.request("tools/call", wait.clone()).await;
    wire.ask("ping", json!({})).await;
    // Twice, and once more when it is long over.
    for _ in 0..2 {
        wire.notify("notifications/cancelled", json!({"requestId": waiting})).await;
    }
    wire.ask("ping", json!({})).await;
    wire.notify("notifications/cancelled", json!({"requestId": waiting})).await;
    let looked = wire.call("task_status", json!({"task_id": id})).await;
    assert!(text(&looked).contains("still working"));
    assert_eq!(begun.elapsed(), Duration::ZERO);
    assert!(wire.heard.is_empty(), "{:?}", wire.heard);
    // Its place is free again.
    for _ in 0..70 {
        let waiting = wire.request("tools/call", wait.clone()).await;
        wire.notify("notifications/cancelled", json!({"requestId": waiting})).await;
    }
    assert!(wire.ask("ping", json!({})).await.get("error").is_none());
}

#[tokio::test(start_paused = true)]
async fn no_more_requests_are_under_way_than_a_connection_has_places() {
    let host = Host::start().await;
    let mut wire = Wire::user(&host.api).await;
    let id = task_of(&wire.call("spawn_task", json!({"kind": "park"})).await);
    let wait = json!({"name": "task_status", "arguments": {"task_id": id, "wait_seconds": 120}});
    let mut waiting = Vec::new();
    for _ in 0..64 {
        waiting.push(wire.request("tools/call", wait.clone()).await);
    }
    let refused = wire.ask("tools/call", wait.clone()).await;
    assert_eq!(refused["error"]["code"], -32000, "{refused}");
    // An id that is under way is nobody else's.
    let again = json!({"jsonrpc": "2.0", "id": waiting[0], "method": "ping"});
    wire.send(&again.to_string()).await;
    assert_eq!(wire.answer(waiting[0]).await["error"]["code"], -32600);
    host.script.end(id.parse().unwrap(), RunEnding::Completed, "done");
    for waiting in waiting {
        let answer = wire.answer(waiting).await;
        assert!(text(&answer["result"]).starts_with(&format!("Task {id} completed.")), "{answer}");
    }
    assert!(wire.ask("ping", json!({})).await.get("error").is_none());
}

#[tokio::test(start_paused = true)]
async fn c77_a_server_ends_when_its_client_is_gone() {
    let host = Host::start().await;
    let mut wire = Wire::user(&host.api).await;
    let id = task_of(&wire.call("spawn_task", json!({"kind": "park"})).await);
    let wait = json!({"name": "task_status", "arguments": {"task_id": id, "wait_seconds": 120}});
    let waiting = wire.request("tools/call", wait).await;
    wire.ask("ping", json!({})).await;
    let begun = tokio::time::Instant::now();
    wire.write.shutdown().await.unwrap();
    // What waits is answered with what there is, and that is all.
    let answer = wire.answer(waiting).await;
    assert!(text(&answer["result"]).contains("still working"), "{answer}");
    assert_eq!(wire.next().await, None);
    wire.serving.await.unwrap().unwrap();
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    assert!(host.script.is_under_way(id.parse().unwrap()));
}

#[tokio::test]
async fn c77_a_server_whose_client_says_nothing_ends_at_once() {
    let host = Host::start().await;
    let mut wire = Wire::connect(&host.api, Principal::operator("operator"));
    wire.write.shutdown().await.unwrap();
    assert_eq!(wire.next().await, None);
    wire.serving.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_last_line_may_lack_its_end() {
    let host = Host::start().await;
    let mut wire = Wire::user(&host.api).await;
    wire.write.write_all(br#"{"jsonrpc":"2.0","id":"z","method":"tools/list"}"#).await.unwrap();
    wire.write.shutdown().await.unwrap();
    assert_eq!(soon(&mut wire).await.unwrap()["id"], "z");
    assert_eq!(wire.next().await, None);
}

#[tokio::test(start_paused = true)]
async fn c90_a_wait_answers_when_the_host_ends() {
    let host = Host::start().await;
    let mut wire = Wire::user(&host.api).await;
    let id = task_of(&wire.call("spawn_task", json!({"kind": "park"})).await);
    let wait = json!({"name": "task_status", "arguments": {"task_id": id, "wait_seconds": 120}});
    let waiting = wire.request("tools/call", wait).await;
    wire.ask("ping", json!({})).await;
    drop(wire.close.take());
    let answer = wire.answer(waiting).await;
    assert!(text(&answer["result"]).contains("still working"), "{answer}");
    assert_eq!(wire.next().await, None);
    wire.serving.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_never_reads_is_waited_for_and_then_left() {
    let host = Host::start().await;
    set_kinds(&host, vec![kind("tick", None, Form::Stream)]);
    let mut wire = Wire::user(&host.api).await;
    let id = task_of(&wire.call("spawn_task", json!({"kind": "tick"})).await);
    host.record(id.parse().unwrap(), Stream::Stdout, &[b'x'; 40_000]);
    // More than the pair of streams holds, and nobody reads: what is asked waits to be read.
    let look = json!({"name": "task_status", "arguments": {"task_id": id, "after": 0}});
    let asking = async {
        loop {
            wire.request("tools/call", look.clone()).await;
        }
    };
    assert!(timeout(Duration::from_secs(5), asking).await.is_err());
    drop(wire.close.take());
    timeout(Duration::from_secs(5), wire.serving).await.unwrap().unwrap().unwrap();
    until("the job goes on", || host.script.is_under_way(id.parse().unwrap())).await;
}

#[tokio::test]
async fn what_was_told_last_is_settled_before_it_is_over() {
    let host = Host::start().await;
    let job = host.spawn("park").await;
    host.end(&job, RunEnding::Completed, "done").await;
    let mut wire = Wire::user(&host.api).await;
    let listing = wire.request("tools/call", json!({"name": "task_status"})).await;
    wire.write.shutdown().await.unwrap();
    assert!(text(&wire.answer(listing).await["result"]).contains("[task-notification]"));
    wire.serving.await.unwrap().unwrap();
    assert!(host.manager.owed(&"chat".into()).await.unwrap().is_none());
}

#[tokio::test]
async fn an_ending_that_several_connections_ask_for_at_once_is_told_by_one() {
    let host = Host::start().await;
    for round in 0..20 {
        let job = host.spawn("park").await;
        host.end(&job, RunEnding::Completed, "done").await;
        let mut wires = Vec::new();
        for _ in 0..4 {
            wires.push(Wire::user(&host.api).await);
        }
        let asked = wires.iter_mut().map(|wire| wire.call("task_status", json!({})));
        let answers = futures::future::join_all(asked).await;
        let told = answers.iter().filter(|it| text(it).contains("[task-notification]")).count();
        assert_eq!(told, 1, "round {round}");
    }
}

#[tokio::test]
async fn the_streams_of_others_are_not_disturbed() {
    let host = Host::start().await;
    let mut idle = Wire::user(&host.api).await;
    let mut torn = Wire::user(&host.api).await;
    torn.write.write_all(b"{\"jsonrpc\":\"2.0\",\"id\":").await.unwrap();
    drop((torn.write, torn.close));
    torn.serving.await.unwrap().unwrap();
    assert_eq!(idle.tools().await.len(), 4);
}
