//! Over HTTP: sessions of the transport, streams, and what comes of a client that goes away.

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    body::{Body, BodyDataStream},
    http::{Request, Response, StatusCode},
};
use backlot_jobs::RunEnding;
use backlot_registry::Form;
use backlot_surface::{Api, Principal, mcp, serve};
use futures::StreamExt as _;
use http_body_util::BodyExt as _;
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;
use serde_json::{Value, json};
use tokio::{
    io::AsyncWriteExt as _,
    net::{UnixListener, UnixStream},
    sync::{Notify, watch},
    time::timeout,
};

use super::client::{exposing, kind, meta_2026, owes, set_kinds, task_of, text, texts};
use crate::harness::{Host, until};

/// What answers under `/mcp`, and what closes it.
struct Site {
    router: Router,
    close: watch::Sender<bool>,
}

impl Site {
    fn of(api: &Api) -> Self {
        let (close, closing) = watch::channel(false);
        Self { router: mcp::router(api.clone(), closing), close }
    }

    async fn send(&self, principal: &Principal, request: Request<Body>) -> Response<Body> {
        let (mut parts, body) = request.into_parts();
        parts.extensions.insert(principal.clone());
        let request = Request::from_parts(parts, body);
        TowerToHyperService::new(self.router.clone()).call(request).await.unwrap()
    }
}

fn ann() -> Principal {
    Principal::user("ann", "chat".into())
}

fn bob() -> Principal {
    Principal::user("bob", "other".into())
}

/// Returns a request with the headers that every client sends.
fn request(method: &str, headers: &[(&str, &str)], body: impl Into<Body>) -> Request<Body> {
    let mut request = Request::builder()
        .method(method)
        .uri("/mcp")
        .header("host", "any.example")
        .header("accept", "application/json, text/event-stream")
        .header("content-type", "application/json");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(body.into()).unwrap()
}

fn message(id: u64, method: &str, params: &Value) -> String {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string()
}

/// Returns the messages in what was read of a stream of events.
fn messages(read: &str) -> Vec<Value> {
    let data = read.lines().filter_map(|line| line.strip_prefix("data:"));
    data.filter_map(|data| serde_json::from_str(data.trim()).ok()).collect()
}

/// Reads an answer to its end, and returns the message with that id.
async fn answer(response: Response<Body>, id: u64) -> Value {
    let status = response.status();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    let body = String::from_utf8_lossy(&body).into_owned();
    let found = messages(&body).into_iter().find(|message| message["id"] == id);
    found.unwrap_or_else(|| panic!("{status}: {body}"))
}

/// Returns the next message of a stream.
async fn next(stream: &mut BodyDataStream) -> Option<Value> {
    loop {
        let piece = timeout(Duration::from_secs(10), stream.next()).await.unwrap()?.unwrap();
        if let Some(message) = messages(&String::from_utf8_lossy(&piece)).into_iter().next() {
            return Some(message);
        }
    }
}

/// Begins a session of the transport, and returns its id.
async fn initialized(site: &Site, principal: &Principal) -> String {
    let hello = json!({
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    });
    let hello = request("POST", &[], message(1, "initialize", &hello));
    let response = site.send(principal, hello).await;
    assert_eq!(response.status(), StatusCode::OK);
    let id = response.headers()["mcp-session-id"].to_str().unwrap().to_owned();
    assert_eq!(answer(response, 1).await["result"]["protocolVersion"], "2025-11-25");
    let ready = json!({"jsonrpc": "2.0", "method": "notifications/initialized"}).to_string();
    let ready = request("POST", &[("mcp-session-id", &id)], ready);
    assert_eq!(site.send(principal, ready).await.status(), StatusCode::ACCEPTED);
    id
}

/// Calls a tool within a session of the transport, and returns its result.
async fn call(site: &Site, session: &str, tool: &str, arguments: Value) -> Value {
    let params = json!({"name": tool, "arguments": arguments});
    let headers = [("mcp-session-id", session)];
    let response =
        site.send(&ann(), request("POST", &headers, message(7, "tools/call", &params))).await;
    answer(response, 7).await["result"].clone()
}

/// Calls a tool without any session, and returns the response.
async fn call_2026(site: &Site, tool: &str, arguments: Value) -> Response<Body> {
    let meta = meta_2026(&json!({}));
    let params = json!({"name": tool, "arguments": arguments, "_meta": meta});
    let headers =
        [("mcp-protocol-version", "2026-07-28"), ("mcp-method", "tools/call"), ("mcp-name", tool)];
    site.send(&ann(), request("POST", &headers, message(7, "tools/call", &params))).await
}

#[tokio::test]
async fn a_task_is_started_and_told_of_in_either_revision() {
    let host = Host::start().await;
    let site = Site::of(&host.api);
    let session = initialized(&site, &ann()).await;
    let id = task_of(&call(&site, &session, "spawn_task", json!({"kind": "park"})).await);
    host.script.end(id.parse().unwrap(), RunEnding::Completed, "done");
    owes(&host, "chat", 1).await;
    // What is owed does not hang on how somebody asks.
    let listed = answer(call_2026(&site, "task_status", json!({})).await, 7).await;
    assert_eq!(texts(&listed["result"]).len(), 2, "{listed}");
    owes(&host, "chat", 0).await;
    let looked = call(&site, &session, "task_status", json!({"task_id": id})).await;
    assert!(text(&looked).ends_with("Result:\ndone"), "{looked}");
}

#[tokio::test]
async fn an_answer_that_nobody_reads_settles_nothing() {
    let host = Host::start().await;
    let site = Site::of(&host.api);
    let job = host.spawn("park").await;
    host.end(&job, RunEnding::Completed, "done").await;
    drop(call_2026(&site, "task_status", json!({})).await);
    let session = initialized(&site, &ann()).await;
    let listed = call(&site, &session, "task_status", json!({})).await;
    assert_eq!(texts(&listed).len(), 2, "{listed}");
}

#[tokio::test]
async fn a_session_is_its_principals_alone() {
    let host = Host::start().await;
    let site = Site::of(&host.api);
    let session = initialized(&site, &ann()).await;
    let ping = || message(3, "ping", &json!({}));
    for id in [session.as_str(), "no-such-session"] {
        for (method, body) in [("POST", ping()), ("GET", String::new()), ("DELETE", String::new())]
        {
            let request = request(method, &[("mcp-session-id", id)], body);
            let response = site.send(&bob(), request).await;
            assert_eq!(response.status(), StatusCode::NOT_FOUND, "{method} {id}");
        }
    }
    let headers = [("mcp-session-id", session.as_str())];
    let pong = site.send(&ann(), request("POST", &headers, ping())).await;
    assert!(answer(pong, 3).await["result"].is_object());
    // Ended by its own, it is gone for it as well.
    let ended = site.send(&ann(), request("DELETE", &headers, "")).await;
    assert!(ended.status().is_success(), "{}", ended.status());
    let gone = site.send(&ann(), request("POST", &headers, ping())).await;
    assert_eq!(gone.status(), StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn c81_who_begins_anew_finds_its_tasks_again() {
    let host = Host::start().await;
    let site = Site::of(&host.api);
    let session = initialized(&site, &ann()).await;
    let id = task_of(&call(&site, &session, "spawn_task", json!({"kind": "park"})).await);
    // The host was started anew: sessions of the transport are gone with it.
    let site = Site::of(&host.api);
    let headers = [("mcp-session-id", session.as_str())];
    let gone = site.send(&ann(), request("POST", &headers, message(3, "ping", &json!({})))).await;
    assert_eq!(gone.status(), StatusCode::NOT_FOUND);
    let session = initialized(&site, &ann()).await;
    assert!(text(&call(&site, &session, "task_status", json!({})).await).contains(&id));
}

#[tokio::test]
async fn sessions_are_bounded_and_the_one_unused_longest_ends() {
    let host = Host::start().await;
    let site = Site::of(&host.api);
    let other = initialized(&site, &bob()).await;
    let first = initialized(&site, &ann()).await;
    let second = initialized(&site, &ann()).await;
    let ping = async |principal: &Principal, session: &str| {
        let headers = [("mcp-session-id", session)];
        let ping = request("POST", &headers, message(3, "ping", &json!({})));
        site.send(principal, ping).await.status()
    };
    for _ in 0..62 {
        initialized(&site, &ann()).await;
    }
    assert_eq!(ping(&ann(), &first).await, StatusCode::OK);
    initialized(&site, &ann()).await;
    assert_eq!(ping(&ann(), &second).await, StatusCode::NOT_FOUND);
    assert_eq!(ping(&ann(), &first).await, StatusCode::OK);
    assert_eq!(ping(&bob(), &other).await, StatusCode::OK);
}

#[tokio::test]
async fn what_is_no_message_is_answered_with_why() {
    let host = Host::start().await;
    let site = Site::of(&host.api);
    let send = async |content: &str, body: String| {
        let mut request = request("POST", &[], body);
        request.headers_mut().insert("content-type", content.parse().unwrap());
        let response = site.send(&ann(), request).await;
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, serde_json::from_slice::<Value>(&body).unwrap_or_default())
    };
    let json = "application/json; charset=utf-8";
    for (body, code) in [("{", -32700), ("[]", -32600), ("7", -32600)] {
        let (status, answer) = send(json, body.into()).await;
        assert_eq!((status, answer["error"]["code"].as_i64()), (400, Some(code)), "{body}");
    }
    let (status, answer) = send(json, message(4, "tools/call", &json!({"name": 7}))).await;
    assert_eq!((status, &answer["id"], &answer["error"]["code"]), (400, &json!(4), &json!(-32602)));
    assert_eq!(send("text/plain", message(4, "ping", &json!({}))).await.0, 415);
    assert_eq!(send(json, " ".repeat((16 << 20) + 1)).await.0, 413);
    // Without a session, there is nothing to be told before it is begun.
    assert_eq!(send(json, message(4, "tools/list", &json!({}))).await.0, 400);
    let put = site.send(&ann(), request("PUT", &[], "")).await;
    assert_eq!(put.status(), StatusCode::METHOD_NOT_ALLOWED);
}

#[tokio::test]
async fn a_method_that_a_revision_has_no_more_is_not_there() {
    let host = Host::start().await;
    let site = Site::of(&host.api);
    let meta = json!({"_meta": meta_2026(&json!({}))});
    for method in ["initialize", "ping", "logging/setLevel", "no/such"] {
        let headers = [("mcp-protocol-version", "2026-07-28"), ("mcp-method", method)];
        let response =
            site.send(&ann(), request("POST", &headers, message(7, method, &meta))).await;
        assert_eq!(response.status(), StatusCode::NOT_FOUND, "{method}");
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let error: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!((&error["id"], &error["error"]["code"]), (&json!(7), &json!(-32601)));
    }
}

#[tokio::test]
async fn headers_are_held_against_the_arguments_that_a_kind_has_in_them() {
    let host = Host::start().await;
    let schema = json!({
        "type": "object",
        "properties": {"region": {"type": "string", "x-mcp-header": "Region"}},
    });
    let loading = Arc::new(Notify::new());
    *host.script.loading.lock().unwrap() = Some(loading.clone());
    let site = Site::of(&exposing(&host, &["*"]));
    let call = async |region: &'static str| {
        let params = json!({
            "name": "grep_all",
            "arguments": {"region": "north"},
            "_meta": meta_2026(&json!({})),
        });
        let headers = [
            ("mcp-protocol-version", "2026-07-28"),
            ("mcp-method", "tools/call"),
            ("mcp-name", "grep_all"),
            ("mcp-param-region", region),
        ];
        let call = message(3, "tools/call", &params);
        site.send(&ann(), request("POST", &headers, call)).await
    };
    // Also of a kind that is still being loaded.
    let (refused, ()) = tokio::join!(call("south"), async {
        until("it waits", || Arc::strong_count(&loading) == 3).await;
        let kinds = vec![kind("grep-all", Some(&schema.to_string()), Form::Final)];
        set_kinds(&host, kinds);
        *host.script.loading.lock().unwrap() = None;
        loading.notify_waiters();
    });
    assert_eq!(refused.status(), StatusCode::BAD_REQUEST);
    let (response, ()) = tokio::join!(call("north"), async {
        until("it was launched", || host.script.under_way() == 1).await;
        host.script.end(host.script.only(), RunEnding::Completed, "done");
    });
    assert_eq!(text(&answer(response, 3).await["result"]), "done");
}

#[tokio::test(start_paused = true)]
async fn c76_a_response_that_is_closed_ends_the_call() {
    let host = Host::start().await;
    set_kinds(&host, vec![kind("grep", None, Form::Final)]);
    let site = Site::of(&exposing(&host, &["*"]));
    let spawned = answer(call_2026(&site, "spawn_task", json!({"kind": "park"})).await, 7).await;
    let id = task_of(&spawned["result"]);
    // Nothing is told before the end, so the response is still to come.
    let wait = json!({"task_id": id, "wait_seconds": 120});
    let waited = timeout(Duration::from_secs(1), call_2026(&site, "task_status", wait)).await;
    assert!(waited.is_err());
    assert!(host.script.is_under_way(id.parse().unwrap()));
    // A call of a kind's own tool takes its job along.
    let called = timeout(Duration::from_secs(1), call_2026(&site, "grep", json!({}))).await;
    assert!(called.is_err());
    until("its job is stopped", || host.script.under_way() == 1).await;
    assert!(host.script.is_under_way(id.parse().unwrap()));
}

#[tokio::test]
async fn c76_a_connection_that_is_cut_ends_the_call() {
    let host = Host::start().await;
    set_kinds(&host, vec![kind("grep", None, Form::Final)]);
    let outer = tempfile::tempdir().unwrap();
    let address = outer.path().join("socket");
    let listener = UnixListener::bind(&address).unwrap();
    let served =
        tokio::spawn(serve(vec![listener.into()], exposing(&host, &["*"]), std::future::pending()));
    let params = json!({"name": "grep", "arguments": {}, "_meta": meta_2026(&json!({}))});
    let body = message(7, "tools/call", &params);
    let head = format!(
        "POST /mcp HTTP/1.1\r\nhost: any.example\r\naccept: application/json, text/event-stream\r\n\
         content-type: application/json\r\nmcp-protocol-version: 2026-07-28\r\n\
         mcp-method: tools/call\r\nmcp-name: grep\r\nbacklot-session: chat\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    );
    let mut stream = UnixStream::connect(&address).await.unwrap();
    stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
    until("it was launched", || host.script.under_way() == 1).await;
    drop(stream);
    until("its job is stopped", || host.script.under_way() == 0).await;
    served.abort();
}

#[tokio::test]
async fn c79_changed_tools_are_told_on_streams_that_are_open() {
    let host = Host::start().await;
    set_kinds(&host, vec![kind("grep", None, Form::Final)]);
    let site = Site::of(&host.api);
    let session = initialized(&site, &ann()).await;
    let headers = [("mcp-session-id", session.as_str())];
    let stream = site.send(&ann(), request("GET", &headers, "")).await;
    let mut old = stream.into_body().into_data_stream();
    let params = json!({
        "notifications": {"toolsListChanged": true},
        "_meta": meta_2026(&json!({})),
    });
    let headers = [("mcp-protocol-version", "2026-07-28"), ("mcp-method", "subscriptions/listen")];
    let listening = request("POST", &headers, message(9, "subscriptions/listen", &params));
    let mut new = site.send(&ann(), listening).await.into_body().into_data_stream();
    let acknowledged = next(&mut new).await.unwrap();
    assert_eq!(acknowledged["method"], "notifications/subscriptions/acknowledged");
    set_kinds(&host, vec![kind("grep", None, Form::Final), kind("new", None, Form::Final)]);
    for stream in [&mut old, &mut new] {
        let told = next(stream).await.unwrap();
        assert_eq!(told["method"], "notifications/tools/list_changed");
    }
}

#[tokio::test(start_paused = true)]
async fn c90_streams_and_waits_end_with_the_host() {
    let host = Host::start().await;
    let site = Site::of(&host.api);
    let session = initialized(&site, &ann()).await;
    let headers = [("mcp-session-id", session.as_str())];
    let stream = site.send(&ann(), request("GET", &headers, "")).await;
    let mut stream = stream.into_body().into_data_stream();
    let id = task_of(&call(&site, &session, "spawn_task", json!({"kind": "park"})).await);
    let wait = json!({"task_id": id, "wait_seconds": 120});
    let params = json!({"name": "task_status", "arguments": wait});
    let waiting = request("POST", &headers, message(8, "tools/call", &params));
    let waiting = site.send(&ann(), waiting).await;
    let begun = tokio::time::Instant::now();
    site.close.send_replace(true);
    let told = answer(waiting, 8).await;
    assert!(text(&told["result"]).contains("still working"), "{told}");
    while timeout(Duration::from_secs(9), stream.next()).await.unwrap().is_some() {}
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn a_person_is_asked_on_the_stream_of_the_call() {
    let host = Host::start().await;
    set_kinds(&host, vec![kind("ask", None, Form::Final)]);
    let site = Site::of(&exposing(&host, &["*"]));
    let hello = json!({
        "protocolVersion": "2025-11-25",
        "capabilities": {"elicitation": {}},
        "clientInfo": {"name": "test", "version": "1"},
    });
    let hello = request("POST", &[], message(1, "initialize", &hello));
    let response = site.send(&ann(), hello).await;
    let session = response.headers()["mcp-session-id"].to_str().unwrap().to_owned();
    answer(response, 1).await;
    let headers = [("mcp-session-id", session.as_str())];
    let params = json!({"name": "ask", "arguments": {}});
    let called = request("POST", &headers, message(2, "tools/call", &params));
    let mut stream = site.send(&ann(), called).await.into_body().into_data_stream();
    until("it was launched", || host.script.under_way() == 1).await;
    let job = host.script.only();
    host.script.end(job, RunEnding::Completed, "");
    let asked = next(&mut stream).await.unwrap();
    assert_eq!(asked["method"], "elicitation/create");
    let given = json!({"action": "accept", "content": {"answer": true}});
    let given = json!({"jsonrpc": "2.0", "id": asked["id"], "result": given}).to_string();
    let taken = site.send(&ann(), request("POST", &headers, given)).await;
    assert_eq!(taken.status(), StatusCode::ACCEPTED);
    until("it goes on", || host.script.under_way() == 1).await;
    host.script.end(job, RunEnding::Completed, "went on");
    let result = next(&mut stream).await.unwrap();
    assert_eq!(text(&result["result"]), "went on");
}

#[tokio::test]
async fn a_header_narrows_to_a_session() {
    let host = Host::start().await;
    host.spawn("park").await;
    let site = Site::of(&host.api);
    let listed = async |principal: Principal, session: &str| {
        let params = json!({"name": "task_status", "_meta": meta_2026(&json!({}))});
        let headers = [
            ("mcp-protocol-version", "2026-07-28"),
            ("mcp-method", "tools/call"),
            ("mcp-name", "task_status"),
            ("backlot-session", session),
        ];
        let body = message(7, "tools/call", &params);
        let response = site.send(&principal, request("POST", &headers, body)).await;
        match response.status() {
            StatusCode::OK => Ok(text(&answer(response, 7).await["result"])),
            status => Err(status),
        }
    };
    let operator = || Principal::operator("operator");
    assert!(listed(operator(), "chat").await.unwrap().contains("park"));
    assert_eq!(listed(operator(), "other").await.unwrap(), "There are no tasks.");
    assert_eq!(listed(bob(), "chat").await, Err(StatusCode::NOT_FOUND));
    assert_eq!(listed(operator(), "").await, Err(StatusCode::BAD_REQUEST));
}
