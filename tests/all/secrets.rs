//! Secrets: a guest uses them and never has them.

use std::{fs, time::Duration};

use backlot::{
    registry::{StartError, Stream},
    wasm::{Grant, SecretGrant},
};
use backlot_tests::{Task, TestHost, With, arguments};

use crate::servers::{Server, header, response};

const SECRET: &str = "hunter2-hunter2";
const MASK: &str = "***************";

fn grant(port: u16, header: &str) -> Grant {
    let secret = SecretGrant {
        name: "token".to_owned(),
        variable: "TOKEN".to_owned(),
        header: header.to_owned(),
        to: vec![format!("http://localhost:{port}").parse().unwrap()],
        value: SECRET.to_owned(),
    };
    Grant { secrets: vec![secret], ..Grant::default() }
}

fn with_peers(grant: Grant, peers: &[u16]) -> Grant {
    let tcp =
        peers.iter().flat_map(|port| [format!("localhost:{port}"), format!("127.0.0.1:{port}")]);
    Grant { tcp: tcp.map(|peer| peer.parse().unwrap()).collect(), ..grant }
}

async fn run(host: &TestHost, name: &str, grant: &Grant, args: &[&str]) -> Task {
    let component = host.program(name).await;
    let with = With { grant: grant.clone(), ..With::default() };
    host.try_task(&component, &arguments(args), with).await.unwrap()
}

fn backwards(text: &str) -> String {
    text.chars().rev().collect()
}

/// A server that says the header back: in a header, and in a body whose chunks
/// split it, with trailers behind it.
fn parrot() -> Server {
    Server::start(|request| {
        let said = header(request, "authorization").unwrap_or("nothing");
        let (first, second) = said.split_at(said.len() / 2);
        let mut pieces = vec![format!(
            "HTTP/1.1 200 OK\r\nx-echo: {said}\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n"
        )];
        for part in ["<", first, second, ">"] {
            pieces.push(format!("{:x}\r\n{part}\r\n", part.len()));
        }
        pieces.push("0\r\n\r\n".to_owned());
        pieces
    })
}

#[tokio::test]
async fn a_secret_goes_to_its_server_and_does_not_come_back() {
    let server = parrot();
    let host = TestHost::start();
    let grant = with_peers(grant(server.port, "authorization"), &[server.port]);
    let url = format!("http://localhost:{}/", server.port);
    let with = "Authorization=Bearer $TOKEN";
    // Backwards, so that nothing but the way in can have hidden it.
    for (program, args) in [
        ("fetch", vec!["--reversed", "--with", with, &url]),
        ("async_command", vec!["fetch", &url, with]),
    ] {
        let output = run(&host, program, &grant, &args).await.output().await;
        let sent = server.request();
        assert_eq!(header(&sent, "authorization"), Some(&*format!("Bearer {SECRET}")), "{sent}");
        assert!(output.contains(&backwards(&format!("<Bearer {MASK}>"))), "{program}: {output}");
        assert!(output.contains(&backwards(&format!("Bearer {MASK}"))), "{program}: {output}");
        assert!(!output.contains(&backwards(SECRET)), "{program}: {output}");
    }
}

#[tokio::test]
async fn elsewhere_the_placeholder_is_all_that_there_is() {
    let (server, other) = (parrot(), parrot());
    let host = TestHost::start();
    let peers = [server.port, other.port];
    let grant = with_peers(grant(server.port, "authorization"), &peers);
    let placeholder = |value: &str| {
        let random = value.strip_prefix("backlot-secret-token-").unwrap_or_default();
        random.len() == 32 && random.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    let to = |port| format!("http://localhost:{port}/");
    // Another server, another name of the same, another header, the path.
    let urls = [to(other.port), format!("http://127.0.0.1:{}/", server.port)];
    for url in &urls {
        let with = ["--with", "authorization=$TOKEN", url.as_str()];
        let task = run(&host, "fetch", &grant, &with).await;
        assert!(task.output().await.starts_with("200"), "{url}");
    }
    assert!(placeholder(header(&other.request(), "authorization").unwrap()));
    assert!(placeholder(header(&server.request(), "authorization").unwrap()));
    let with = ["--with", "x-other=$TOKEN", &to(server.port)];
    run(&host, "fetch", &grant, &with).await.output().await;
    assert!(placeholder(header(&server.request(), "x-other").unwrap()));
    // A guess is one of 2^128, and another start's placeholder is no better.
    let seen = run(&host, "probe", &grant, &["env"]).await.output().await;
    let (_, seen) = seen.split_once("env TOKEN=").unwrap();
    let stale = seen.lines().next().unwrap();
    assert!(placeholder(stale), "{seen}");
    let with = ["--with", &format!("authorization={stale}"), &to(server.port)];
    run(&host, "fetch", &grant, &with).await.output().await;
    assert_eq!(header(&server.request(), "authorization"), Some(stale));
}

/// Nothing could be found in a compressed answer, so none is asked for. A server
/// that compresses all the same is not covered.
#[tokio::test]
async fn a_server_that_gets_secrets_is_asked_not_to_compress() {
    let (server, other) = (Server::hello(), Server::hello());
    let host = TestHost::start();
    let grant = with_peers(grant(server.port, "authorization"), &[server.port, other.port]);
    let urls = [server.port, other.port].map(|port| format!("http://localhost:{port}/"));
    let args = ["--with", "accept-encoding=gzip, br", &urls[0], &urls[1]];
    let output = run(&host, "fetch", &grant, &args).await.output().await;
    assert_eq!(output.matches("200 ").count(), 2, "{output}");
    assert_eq!(header(&server.request(), "accept-encoding"), Some("identity"));
    assert_eq!(header(&other.request(), "accept-encoding"), Some("gzip, br"));
}

#[tokio::test]
async fn a_secret_that_fits_into_no_header_is_an_error_that_does_not_show_it() {
    let server = Server::hello();
    let host = TestHost::start();
    let mut grant = with_peers(grant(server.port, "authorization"), &[server.port]);
    grant.secrets[0].value = format!("{SECRET}\nx: y");
    let url = format!("http://localhost:{}/", server.port);
    let args = ["--with", "authorization=$TOKEN", &url];
    let output = run(&host, "fetch", &grant, &args).await.output().await;
    assert!(output.contains("the secret `token` cannot stand in a header"), "{output}");
    assert!(!output.contains("hunter"), "{output}");
    assert_eq!(server.count(), 0);
}

#[tokio::test]
async fn all_that_a_guest_says_is_looked_through() {
    let host = TestHost::start();
    let grant = grant(1, "authorization");
    let (first, second) = SECRET.split_at(4);
    let say = ["say", "a ", first, second, " b hunter2-", "hunter2", "c", "hunter2-"];
    let task = run(&host, "probe", &grant, &say).await;
    let said = format!("a {MASK} b {MASK}chunter2-");
    let ended = task.end().await;
    assert!(ended.status.is_terminal());
    let output = task.pieces(Stream::Output).await;
    let of = |channel| -> String {
        output.iter().filter(|(of, _)| *of == channel).map(|(_, text)| text.as_str()).collect()
    };
    assert_eq!(of(backlot::registry::Channel::Out), said);
    assert_eq!(of(backlot::registry::Channel::Err), said);

    let faulty = host.kind("faulty").await;
    let start = async |input: &str| {
        let with = With { grant: grant.clone(), ..With::default() };
        host.try_task(&faulty, input, with).await
    };
    let failed = start(&format!(r#"{{"mode":"fail","detail":"no {SECRET}"}}"#)).await.unwrap();
    assert_eq!(failed.end().await.detail.as_deref(), Some(&*format!("no {MASK}")));
    let panicked = start(&format!(r#"{{"mode":"panic","text":"{SECRET}!"}}"#)).await.unwrap();
    let log = panicked.log().await;
    assert!(log.contains(&format!("{MASK}!")) && !log.contains(SECRET), "{log}");
    let refused = start(&format!(r#"{{"mode":"refuse-input","text":"{SECRET}?"}}"#)).await;
    let Err(StartError::Refused { refusal, .. }) = refused else { panic!("it was not refused") };
    assert_eq!(refusal.to_string(), format!("invalid input: {MASK}?"));
    let reports = start(&format!(r#"{{"mode":"report","text":"at {SECRET}"}}"#)).await.unwrap();
    // No event tells of a report.
    while reports.now().detail.is_none() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(reports.now().detail.as_deref(), Some(&*format!("at {MASK}")));
    reports.force("enough").await.unwrap();
}

/// What `read-output` hands over is looked through as well.
#[tokio::test]
async fn held_output_is_looked_through() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("file"), format!("one {SECRET}\ntwo\n")).unwrap();
    let host = TestHost::start();
    let grep = host.kind("grep").await;
    let dir = format!("{}::/g:ro", folder.path().display()).parse().unwrap();
    let with = With { grant: Grant { dirs: vec![dir], ..grant(1, "x-key") }, ..With::default() };
    let input = r#"{"pattern":"one","path":"/g"}"#;
    let output = host.try_task(&grep, input, with).await.unwrap().output().await;
    assert!(output.contains(&format!("one {MASK}")) && !output.contains(SECRET), "{output}");
}

#[tokio::test]
async fn the_answers_of_other_servers_are_left_alone() {
    let other = Server::start(|_| vec![response("", SECRET)]);
    let host = TestHost::start();
    let grant = with_peers(grant(1, "authorization"), &[other.port]);
    let url = format!("http://localhost:{}/", other.port);
    let output = run(&host, "fetch", &grant, &["--reversed", &url]).await.output().await;
    assert!(output.contains(&backwards(SECRET)), "it does not come from the host: {output}");
}
