//! The host itself: whether it lives and takes work, and its end.

use backlot_surface::wire::{LiveReply, ReadyReply, ShutdownReply, ShutdownRequest};

use crate::harness::{Host, code, of_kind, raw};

#[tokio::test]
async fn a_host_tells_whether_it_takes_work() {
    let host = Host::start().await;
    // Also to who is narrowed to a session.
    let client = host.client().await.for_session("chat");
    assert_eq!(client.live().await.unwrap(), LiveReply { live: true });
    assert_eq!(client.ready().await.unwrap(), ReadyReply { ready: true });
    host.manager.refuse();
    assert_eq!(client.live().await.unwrap(), LiveReply { live: true });
    assert_eq!(code(client.ready().await), "closed");
}

#[tokio::test]
async fn the_operator_ends_the_host() {
    let host = Host::start().await;
    let session = host.client().await.for_session("chat");
    let request = ShutdownRequest { drain_ms: Some(7) };
    assert_eq!(code(session.shutdown(&request).await), "forbidden");
    let reply = host.client().await.shutdown(&request).await.unwrap();
    assert_eq!(reply, ShutdownReply { pid: 7, drain_ms: 7 });
    host.script.ending.notified().await;
}

/// Returns the status and the id of a job that is spawned with those headers and that body.
async fn spawned(host: &Host, headers: &str, body: &str) -> (u16, String) {
    let length = body.len();
    let request = format!(
        "POST /v1/jobs HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}\
         content-length: {length}\r\n\r\n{body}"
    );
    let answer = raw(host, request.as_bytes()).await;
    let status = answer[9..12].parse().unwrap();
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    let body: serde_json::Value = serde_json::from_str(body).unwrap();
    (status, body["id"].as_str().unwrap_or_default().to_owned())
}

#[tokio::test]
async fn a_header_is_as_good_as_a_key() {
    let host = Host::start().await;
    let body = serde_json::to_string(&of_kind("park")).unwrap();
    let (status, first) = spawned(&host, "Idempotency-Key: once\r\n", &body).await;
    assert_eq!(status, 201);
    // The clock is the host's own.
    let begun = host.manager.now_ms();
    crate::harness::until("the next millisecond", || host.manager.now_ms() > begun).await;
    for (headers, body) in [
        ("Idempotency-Key: once\r\n", body.clone()),
        ("", body.replacen('{', r#"{"key":"once","#, 1)),
        ("Idempotency-Key: once\r\n", body.replacen('{', r#"{"key":"once","#, 1)),
    ] {
        assert_eq!(spawned(&host, headers, &body).await, (200, first.clone()));
    }
    let (status, other) = spawned(&host, "Idempotency-Key: twice\r\n", &body).await;
    assert_eq!(status, 201);
    assert_ne!(first, other);
    let keyed = body.replacen('{', r#"{"key":"twice","#, 1);
    for bad in [
        ("Idempotency-Key: once\r\n", &keyed),
        ("Idempotency-Key: \r\n", &body),
        ("Idempotency-Key: gr\u{f6}\u{df}e\r\n", &body),
        ("Idempotency-Key: a\r\nIdempotency-Key: a\r\n", &body),
        (&format!("Idempotency-Key: {}\r\n", "a".repeat(1025)), &body),
    ] {
        assert_eq!(spawned(&host, bad.0, bad.1).await.0, 422, "{bad:?}");
    }
}

#[tokio::test]
async fn a_job_keeps_the_trace_that_it_was_asked_for_in() {
    let host = Host::start().await;
    let body = serde_json::to_string(&of_kind("park")).unwrap();
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let own = "00-1af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let with_own = body.replacen('{', &format!(r#"{{"traceparent":"{own}","#), 1);
    let traced = format!("traceparent: {trace}\r\n");
    for (headers, body, kept) in [
        (&traced, &body, Some(trace)),
        (&traced, &with_own, Some(own)),
        // What cannot be read is none, as the specification says.
        (&"traceparent: 00-0-0-0\r\n".to_owned(), &body, None),
        (&format!("{traced}{traced}"), &body, None),
        (&String::new(), &body, None),
    ] {
        assert_eq!(spawned(&host, headers, body).await.0, 201);
        let asked = host.script.requests.lock().unwrap().pop().unwrap();
        assert_eq!(asked.traceparent.as_deref(), kept);
    }
    let bad = body.replacen('{', r#"{"traceparent":"00","#, 1);
    assert_eq!(spawned(&host, "", &bad).await.0, 422);
}
