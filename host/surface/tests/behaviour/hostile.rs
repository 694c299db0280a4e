//! Requests that nobody means well with.

use backlot_surface::{
    BODY_BYTES,
    wire::{ErrorReply, SpawnRequest},
};
use tokio::{io::AsyncWriteExt as _, time::Instant};

use crate::harness::{Host, code, of_kind, raw, read_all};

/// Returns a request with that body, after which the connection ends.
fn post(path: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
    )
    .into()
}

/// Checks that an answer is a problem of that status and word.
#[track_caller]
fn check(answer: &str, status: u16, word: &str) {
    assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.to_lowercase().contains("content-type: application/problem+json"), "{head}");
    let problem: ErrorReply = serde_json::from_str(body).unwrap();
    assert_eq!((problem.status, problem.code.as_str()), (status, word), "{body}");
    assert!(!problem.title.is_empty() && !problem.detail.is_empty(), "{body}");
}

#[tokio::test]
async fn what_there_is_not_is_said_in_json() {
    let host = Host::start().await;
    let get = async |path: &str| {
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        raw(&host, request.as_bytes()).await
    };
    for path in ["/", "/v1", "/v2/jobs", "/v1/jobs/", "/v1/jobs/a/b", "/v1/nothing", "//"] {
        check(&get(path).await, 404, "no_route");
    }
    check(&get("/v1/prune").await, 405, "no_method");
    check(&raw(&host, &post("/v1/health", "")).await, 405, "no_method");
    let head = b"HEAD /v1/jobs/a?hand=model HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    assert!(raw(&host, head).await.starts_with("HTTP/1.1 405 "));
    for path in ["/v1/jobs/%ff", "/v1/jobs?limit=x", "/v1/jobs?limt=1", "/v1/jobs?status=done"] {
        check(&get(path).await, 400, "bad_request");
    }
    for digits in ["xyz", "%20", "..", &"a".repeat(33), "ABC"] {
        check(&get(&format!("/v1/jobs/{digits}")).await, 404, "unknown_job");
    }
}

#[tokio::test]
async fn what_is_sent_is_not_trusted() {
    let host = Host::start().await;
    let sent = async |body: &str| raw(&host, &post("/v1/jobs", body)).await;
    for body in ["{", "nonsense", "{} {}", "\u{feff}{}", "{\"kind\":\"a\",}"] {
        check(&sent(body).await, 400, "bad_request");
    }
    for body in ["", "{}", "[]", "null", "7", r#"{"kind":7}"#, r#"{"kind":"a","file":"/b"}"#] {
        check(&sent(body).await, 422, "invalid");
    }
    let unknown = sent(r#"{"kind":"a","grants":{}}"#).await;
    check(&unknown, 422, "invalid");
    assert!(unknown.contains("unknown field `grants`"), "{unknown}");
    let deep = format!(r#"{{"kind":{}"#, r#"{"a":"#.repeat(100_000));
    check(&sent(&deep).await, 422, "invalid");
    let stop = raw(&host, &post("/v1/jobs/a/stop", r#"{"how":"kill"}"#)).await;
    check(&stop, 422, "invalid");
    assert!(host.script.requests.lock().unwrap().is_empty());
}

#[tokio::test]
async fn more_than_is_taken_is_refused() {
    let host = Host::start().await;
    // By what it says of itself, before anything of it has come.
    let length = BODY_BYTES + 1;
    let head = format!("POST /v1/jobs HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n");
    check(&raw(&host, head.as_bytes()).await, 413, "too_large");
    // By what comes, where it says nothing.
    let mut chunked =
        b"POST /v1/jobs HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n".to_vec();
    for _ in 0..17 {
        chunked.extend_from_slice(b"100000\r\n");
        chunked.extend(std::iter::repeat_n(b' ', 1 << 20));
        chunked.extend_from_slice(b"\r\n");
    }
    check(&raw(&host, &chunked).await, 413, "too_large");
    // The client does not even try.
    let large = SpawnRequest { input: Some("a".repeat(BODY_BYTES)), ..of_kind("park") };
    assert_eq!(code(host.client().await.spawn(&large).await), "too_large");
    // What just fits is taken.
    let fits = SpawnRequest { input: Some("a".repeat(BODY_BYTES - 100)), ..of_kind("park") };
    let job = host.client().await.spawn(&fits).await.unwrap();
    let whole = host.client().await.job(&job.id.to_string(), &Default::default()).await.unwrap();
    assert_eq!(whole.input, fits.input);
}

#[tokio::test(start_paused = true)]
async fn who_dawdles_is_cut_off() {
    let host = Host::start().await;
    // A head that does not end, and nothing at all.
    for begun in [&b"GET /v1/health HTTP/1.1\r\nhost:"[..], b""] {
        let mut stream = host.stream().await;
        stream.write_all(begun).await.unwrap();
        let since = Instant::now();
        read_all(&mut stream).await;
        assert!(since.elapsed().as_secs() <= 20, "{:?}", since.elapsed());
    }
    // A body that does not come.
    let mut stream = host.stream().await;
    let head = b"POST /v1/jobs HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{";
    stream.write_all(head).await.unwrap();
    check(&read_all(&mut stream).await, 408, "too_slow");
}

#[tokio::test]
async fn what_is_no_request_is_answered_with_a_refusal() {
    let host = Host::start().await;
    let huge = format!("GET /{} HTTP/1.1\r\nhost: x\r\n\r\n", "a".repeat(200_000));
    let many = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(10_000));
    let smuggled =
        "POST /v1/jobs HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n{}";
    for request in ["nonsense\r\n\r\n", "\0\0\0\0\r\n\r\n", &huge, &many, smuggled] {
        let answer = raw(&host, request.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 4") || answer.is_empty(), "{answer}");
    }
    // And the host goes on.
    host.client().await.health().await.unwrap();
}
