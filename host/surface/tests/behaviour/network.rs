//! A host over TCP: who gets in, as whom, and what nobody can do to the others.

use std::{net::SocketAddr, time::Duration};

use backlot_jobs::{Config, RunEnding};
use backlot_surface::{
    BODY_BYTES, Door, Guard, NewToken, Rate, Role, Tokens,
    wire::{ErrorReply, LookQuery},
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    time::{Instant, sleep, timeout},
};

use crate::harness::{Host, read_all, until};

/// A host that is asked over the network.
pub(crate) struct Network {
    pub(crate) host: Host,
    pub(crate) address: SocketAddr,
    pub(crate) tokens: Tokens,
    /// The operator's token.
    pub(crate) operator: String,
}

impl Network {
    pub(crate) async fn start() -> Self {
        Self::start_with(|guard| guard, |listener, guard| Door::Tcp { listener, tls: None, guard })
            .await
    }

    pub(crate) async fn start_with(
        guarded: impl FnOnce(Guard) -> Guard,
        door: impl FnOnce(TcpListener, Guard) -> Door,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut opened = None;
        let host = Host::start_behind(Config::default(), |folder| {
            let tokens = Tokens::open(folder).unwrap();
            tokens.ensure_operator().unwrap();
            opened = Some(tokens.clone());
            vec![door(listener, guarded(Guard::new(tokens)))]
        })
        .await;
        let tokens = opened.unwrap();
        let operator = tokens.operator_token().unwrap().unwrap();
        Self { host, address, tokens, operator }
    }

    /// Makes a token for the session `chat`.
    fn token(&self, name: &str, role: Role) -> String {
        let session = Some("chat".to_owned());
        let new = NewToken { name: name.to_owned(), role, session, expires_ms: None };
        self.tokens.add(new).unwrap().1
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// Sends a request with those headers, and returns the answer.
    async fn ask(&self, request: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        let mut stream = self.connect().await;
        let mut text = format!("{request} HTTP/1.1\r\nconnection: close\r\n");
        for (name, value) in headers {
            text += &format!("{name}: {value}\r\n");
        }
        if !body.is_empty() {
            text += &format!("content-length: {}\r\n", body.len());
        }
        // A host that has answered reads no more.
        let _ = stream.write_all(format!("{text}\r\n{body}").as_bytes()).await;
        Answer::read(&read_all(&mut stream).await)
    }

    /// Asks as one who means well does.
    async fn with_token(&self, request: &str, token: &str, body: &str) -> Answer {
        let (host, token) = (self.address.to_string(), format!("Bearer {token}"));
        let json = ("content-type", "application/json");
        self.ask(request, &[("host", &host), ("authorization", &token), json], body).await
    }

    /// Asks on a connection that goes on, and returns the status.
    async fn status_on(&self, stream: &mut TcpStream, token: &str) -> u16 {
        let address = self.address;
        let request = format!(
            "GET /v1/jobs HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {token}\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        let answer = Answer::read(&String::from_utf8(head).unwrap());
        let length: usize = answer.header("content-length").unwrap().parse().unwrap();
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await.unwrap();
        answer.status
    }
}

/// What was answered.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    head: String,
    pub(crate) body: String,
}

impl Answer {
    #[track_caller]
    pub(crate) fn read(text: &str) -> Self {
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((text, ""));
        let status = head.split(' ').nth(1).and_then(|it| it.parse().ok());
        let status = status.unwrap_or_else(|| panic!("no answer: {text:?}"));
        Self { status, head: head.to_ascii_lowercase(), body: body.to_owned() }
    }

    fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }

    /// Checks that it is a problem of that status and word, and opens nothing to pages.
    #[track_caller]
    fn check(&self, status: u16, word: &str) {
        let problem: ErrorReply = serde_json::from_str(&self.body).unwrap();
        let found = (self.status, problem.code.as_str());
        assert_eq!(found, (status, word), "{self:?}");
        assert!(!self.head.contains("access-control"), "{self:?}");
    }
}

/// Some of every kind: those that look, change, and are not there.
const ROUTES: &[&str] = &[
    "GET /",
    "GET /v1/jobs",
    "POST /v1/jobs",
    "GET /v1/jobs/0",
    "DELETE /v1/jobs/0",
    "GET /v1/jobs/0/output",
    "GET /v1/jobs/0/files/a",
    "POST /v1/jobs/0/stop",
    "PUT /v1/sessions/chat",
    "POST /v1/prune",
    "GET /v1/health",
    "GET /v1/live",
    "GET /v1/ready",
    "POST /mcp",
    "GET /mcp",
    "PATCH /nothing",
    "OPTIONS /v1/jobs",
    "OPTIONS *",
];

#[tokio::test]
async fn c83_a_page_drives_nothing() {
    let network = Network::start().await;
    let (own, good) = (network.address.to_string(), format!("Bearer {}", network.operator));
    let good = ("authorization", good.as_str());
    let json = ("content-type", "application/json");
    let preflight = ("access-control-request-method", "POST");
    for route in ROUTES {
        let port = network.address.port();
        let rebound = format!("evil.test:{port}");
        let below = format!("localhost.evil.test:{port}");
        for host in ["evil.test", &rebound, &below, "localhost"] {
            let answer = network.ask(route, &[("host", host), good, json], "{}").await;
            answer.check(403, "foreign");
        }
        for origin in ["http://evil.test", "null", "http://localhost", &format!("http://{below}")] {
            let headers = [("host", own.as_str()), ("origin", origin), good, json, preflight];
            network.ask(route, &headers, "{}").await.check(403, "foreign");
        }
        let headers = [good, json];
        network.ask(route, &headers, "{}").await.check(400, "bad_request");
        let twice = [("host", own.as_str()), ("host", own.as_str()), good, json];
        network.ask(route, &twice, "{}").await.check(400, "bad_request");
    }
    assert!(network.host.script.requests.lock().unwrap().is_empty());
}

#[tokio::test]
async fn c83_what_changes_something_is_json_with_a_token() {
    let network = Network::start().await;
    let (own, good) = (network.address.to_string(), format!("Bearer {}", network.operator));
    let host = ("host", own.as_str());
    let good = ("authorization", good.as_str());
    let spawn = r#"{"kind":"park","session":"chat"}"#;
    for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"] {
        let headers = [host, good, ("content-type", kind)];
        network.ask("POST /v1/jobs", &headers, spawn).await.check(415, "media_type");
        network.ask("POST /mcp", &headers, "{}").await.check(415, "media_type");
    }
    network.ask("POST /v1/jobs", &[host, good], spawn).await.check(415, "media_type");
    let json = ("content-type", "application/json");
    network.ask("POST /v1/jobs", &[host, json], spawn).await.check(401, "unauthorized");
    assert!(network.host.script.requests.lock().unwrap().is_empty());
    // A look changes nothing, whatever stands behind its question mark.
    let job = network.host.spawn("park").await.id;
    let stop = format!("GET /v1/jobs/{job}/stop");
    network.ask(&stop, &[host, good], "").await.check(405, "no_method");
    // What a page of this host's own asks is answered, at each of its names.
    for name in ["localhost", "127.0.0.1", "[::1]"] {
        let name = format!("{name}:{}", network.address.port());
        let origin = format!("http://{name}");
        let headers = [("host", name.as_str()), ("origin", &origin), good, json];
        let answer = network.ask("POST /v1/jobs", &headers, spawn).await;
        assert_eq!(answer.status, 201, "{answer:?}");
        assert!(!answer.head.contains("access-control"), "{answer:?}");
    }
}

#[tokio::test]
async fn who_has_no_token_is_told_how_to_come_in() {
    let network = Network::start().await;
    let own = network.address.to_string();
    let host = ("host", own.as_str());
    let none = network.ask("GET /v1/jobs", &[host], "").await;
    none.check(401, "unauthorized");
    assert!(none.header("www-authenticate").unwrap().starts_with("bearer"), "{none:?}");
    let token = network.token("ann", Role::User);
    let in_address = format!("GET /v1/jobs?token={token}&access_token={token}");
    let refused = network.ask(&in_address, &[host], "").await;
    refused.check(401, "unauthorized");
    let wrong = format!("bl_{}", "A".repeat(43));
    let basic = format!("Basic {token}");
    let good = format!("Bearer {token}");
    for bad in [&format!("Bearer {wrong}"), &basic, &token, &good[..good.len() - 1]] {
        let refused = network.ask("GET /v1/jobs", &[host, ("authorization", bad)], "").await;
        refused.check(401, "unauthorized");
        assert!(!format!("{refused:?}").contains(&bad[10..]), "{refused:?}");
    }
    // Not even where there is nothing, and it is nothing there that is open.
    network.ask("GET /nothing", &[host], "").await.check(401, "unauthorized");
    for open in ["GET /v1/live", "GET /v1/ready"] {
        let answer = network.ask(open, &[host], "").await;
        assert_ne!(answer.status, 401, "{answer:?}");
    }
    network.ask("POST /v1/live", &[host], "").await.check(401, "unauthorized");
    let answer = network.with_token("GET /v1/jobs", &token, "").await;
    assert_eq!(answer.status, 200, "{answer:?}");
}

#[tokio::test]
async fn a_token_is_its_principal() {
    let network = Network::start().await;
    let (ann, eve) = (network.token("ann", Role::User), network.token("eve", Role::Observer));
    let spawn = r#"{"kind":"park"}"#;
    let spawned = network.with_token("POST /v1/jobs", &ann, spawn).await;
    assert_eq!(spawned.status, 201, "{spawned:?}");
    let job: Value = serde_json::from_str(&spawned.body).unwrap();
    assert_eq!(job["session"], "chat");
    let id = job["id"].as_str().unwrap();
    let stop = format!("POST /v1/jobs/{id}/stop");
    network.with_token(&stop, &eve, "{}").await.check(403, "forbidden");
    network.with_token("POST /v1/jobs", &eve, spawn).await.check(403, "forbidden");
    let seen = network.with_token(&format!("GET /v1/jobs/{id}"), &eve, "").await;
    assert_eq!(seen.status, 200, "{seen:?}");
    network.with_token("POST /v1/prune", &ann, "{}").await.check(403, "forbidden");
    let other = NewToken {
        name: "bob".into(),
        role: Role::User,
        session: Some("other".into()),
        expires_ms: None,
    };
    let (_, bob) = network.tokens.add(other).unwrap();
    network.with_token(&stop, &bob, "{}").await.check(404, "unknown_job");
    // Nobody but the operator stops in another's name.
    let stopped = network.with_token(&stop, &ann, r#"{"by":"operator"}"#).await;
    let stopped: Value = serde_json::from_str(&stopped.body).unwrap();
    assert_eq!(stopped["job"]["stop"]["by"], "ann", "{stopped}");
}

#[tokio::test]
async fn a_token_that_is_removed_or_has_expired_is_no_good_on_any_connection() {
    let network = Network::start().await;
    let token = network.token("ann", Role::User);
    let mut stream = network.connect().await;
    assert_eq!(network.status_on(&mut stream, &token).await, 200);
    // As the command line does it, beside the host.
    let beside = Tokens::open(&network.host.folder).unwrap();
    beside.remove(&["ann".to_owned()]).unwrap();
    assert_eq!(network.status_on(&mut stream, &token).await, 401);
    let new = NewToken { name: "old".into(), role: Role::User, session: None, expires_ms: Some(1) };
    let (_, old) = beside.add(new).unwrap();
    network.with_token("GET /v1/jobs", &old, "").await.check(401, "unauthorized");
    assert_eq!(network.status_on(&mut stream, &network.operator).await, 200);
}

#[tokio::test(start_paused = true)]
async fn what_goes_on_ends_when_its_token_is_removed_or_expires() {
    let network = Network::start().await;
    let job = network.host.spawn("park").await;
    let output = format!("GET /v1/jobs/{}/stream", job.id);
    let agent = "GET /v1/mcp";
    let upgraded = "upgrade\r\nupgrade: backlot-mcp";
    for (nth, request) in [output.as_str(), "GET /v1/events", agent].into_iter().enumerate() {
        let names = [format!("ann{nth}"), format!("eve{nth}")];
        let (connection, status) = match request == agent {
            true => (upgraded, b"HTTP/1.1 101"),
            false => ("close", b"HTTP/1.1 200"),
        };
        let mut open = Vec::new();
        for name in &names {
            let token = network.token(name, Role::User);
            let mut stream = network.connect().await;
            let head = format!(
                "{request} HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {token}\r\n\
                 backlot-session: chat\r\nconnection: {connection}\r\n\r\n",
                network.address
            );
            stream.write_all(head.as_bytes()).await.unwrap();
            let mut begin = [0; 12];
            stream.read_exact(&mut begin).await.unwrap();
            assert_eq!(&begin, status);
            open.push(stream);
        }
        let [gone, kept] = &mut open[..] else { panic!("two were opened") };
        network.tokens.remove(&names[..1]).unwrap();
        let begun = Instant::now();
        let within = timeout(Duration::from_secs(60), read_whatever(gone)).await;
        within.unwrap_or_else(|_| panic!("{request} goes on"));
        assert!(begun.elapsed() <= Duration::from_secs(16), "{request}: {:?}", begun.elapsed());
        // Nobody else's does.
        timeout(Duration::from_secs(60), read_whatever(kept)).await.unwrap_err();
    }
}

/// Reads to the end of a connection, also where that is none in order.
async fn read_whatever(stream: &mut TcpStream) {
    while let Ok(1..) = stream.read(&mut [0; 1 << 10]).await {}
}

#[tokio::test]
async fn who_fails_too_often_is_slowed_and_nobody_else() {
    let network = Network::start().await;
    let own = network.address.to_string();
    let mut slowed = None;
    for _ in 0..100 {
        let answer = network.ask("GET /v1/jobs", &[("host", &own)], "").await;
        if answer.status == 429 {
            slowed = Some(answer);
            break;
        }
        answer.check(401, "unauthorized");
    }
    let slowed = slowed.expect("a hundred at once are too many");
    slowed.check(429, "too_many");
    assert_eq!(slowed.header("retry-after"), Some("1"));
    let answer = network.with_token("GET /v1/jobs", &network.operator, "").await;
    assert_eq!(answer.status, 200, "{answer:?}");
}

#[tokio::test]
async fn who_asks_too_often_is_told_to_come_back() {
    let rate = Rate { burst: 2, per_second: 1 };
    let door = |listener, guard| Door::Tcp { listener, tls: None, guard };
    let network = Network::start_with(|guard| guard.with_rate(rate), door).await;
    let ann = network.token("ann", Role::User);
    let mut stream = network.connect().await;
    let mut statuses = Vec::new();
    for _ in 0..20 {
        statuses.push(network.status_on(&mut stream, &ann).await);
    }
    assert_eq!(statuses[..2], [200, 200]);
    assert!(statuses.contains(&429), "{statuses:?}");
    // It is ann who does, not the connection.
    assert_eq!(network.status_on(&mut stream, &network.operator).await, 200);
}

#[tokio::test]
async fn more_than_is_taken_is_refused_before_it_is_read() {
    let network = Network::start().await;
    let (address, operator) = (network.address, &network.operator);
    let head = format!(
        "POST /v1/jobs HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\
         authorization: Bearer {operator}\r\ncontent-type: application/json\r\n"
    );
    let mut stream = network.connect().await;
    let length = format!("{head}content-length: {}\r\n\r\n", BODY_BYTES + 1);
    stream.write_all(length.as_bytes()).await.unwrap();
    Answer::read(&read_all(&mut stream).await).check(413, "too_large");
    // What says nothing of its length is stopped where it is too long.
    let mut stream = network.connect().await;
    let (mut reader, mut writer) = stream.split();
    let send = async {
        let chunked = format!("{head}transfer-encoding: chunked\r\n\r\n");
        let mut sent = writer.write_all(chunked.as_bytes()).await;
        let piece = [&b"100000\r\n"[..], &vec![b' '; 1 << 20], b"\r\n"].concat();
        for _ in 0..20 {
            if sent.is_ok() {
                sent = writer.write_all(&piece).await;
            }
        }
    };
    let ((), answer) = tokio::join!(send, read_all(&mut reader));
    // The connection may have ended under it before the answer was read.
    assert!(answer.is_empty() || Answer::read(&answer).status == 413, "{answer}");
    let answer = network.with_token("GET /v1/jobs", operator, "").await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert!(network.host.script.requests.lock().unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn who_dawdles_is_cut_off() {
    let network = Network::start().await;
    for begun in [&b"GET /v1/health HTTP/1.1\r\nhost:"[..], b""] {
        let mut stream = network.connect().await;
        stream.write_all(begun).await.unwrap();
        let since = Instant::now();
        read_all(&mut stream).await;
        assert!(since.elapsed().as_secs() <= 20, "{:?}", since.elapsed());
    }
    let (address, operator) = (network.address, &network.operator);
    let mut stream = network.connect().await;
    let head = format!(
        "POST /v1/jobs HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {operator}\r\n\
         content-type: application/json\r\ncontent-length: 9\r\n\r\n{{"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    Answer::read(&read_all(&mut stream).await).check(408, "too_slow");
}

/// A client that asks for much and reads nothing is given up, and what it held with it.
#[tokio::test(start_paused = true)]
async fn who_never_reads_is_given_up() {
    const BYTES: usize = 64 << 20;
    let network = Network::start().await;
    let job = network.host.spawn("park").await.id;
    let work = network.host.folder.work(job);
    std::fs::create_dir_all(&work).unwrap();
    std::fs::File::create(work.join("large")).unwrap().set_len(BYTES as u64).unwrap();
    let mut stream = network.connect().await;
    let (address, operator) = (network.address, &network.operator);
    let request = format!(
        "GET /v1/jobs/{job}/files/large HTTP/1.1\r\nhost: {address}\r\n\
         authorization: Bearer {operator}\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    stream.readable().await.unwrap();
    // Longer than its patience, and than the host needs to notice.
    for _ in 0..200 {
        sleep(Duration::from_secs(1)).await;
    }
    let mut read = 0;
    let mut piece = vec![0; 1 << 20];
    while let Ok(some @ 1..) = stream.read(&mut piece).await {
        read += some;
    }
    assert!(read < BYTES, "all of it came");
}

/// As many as follow something at once, and more than there are places for.
#[tokio::test]
async fn a_thousand_follow_and_the_places_are_bounded() {
    const PLACES: usize = 2_048;
    // Both ends are in this process.
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let network = Network::start().await;
    let host = &network.host;
    let job = host.spawn("park").await;
    let (address, operator) = (network.address, &network.operator);
    let follow = format!(
        "GET /v1/jobs/{}/output?wait_ms=60000 HTTP/1.1\r\nhost: {address}\r\n\
         authorization: Bearer {operator}\r\n\r\n",
        job.id
    );
    let mut connections = Vec::new();
    for _ in 0..1_000 {
        let mut stream = network.connect().await;
        stream.write_all(follow.as_bytes()).await.unwrap();
        connections.push(stream);
    }
    until("the followers", || host.script.followers(job.id) == 1_000).await;
    let answer = network.with_token("GET /v1/jobs", operator, "").await;
    assert_eq!(answer.status, 200, "{answer:?}");
    // The rest is taken by some who ask nothing.
    while connections.len() < PLACES {
        connections.push(network.connect().await);
    }
    let one_too_many = network.with_token("GET /v1/jobs", operator, "").await;
    one_too_many.check(503, "busy");
    assert_eq!(one_too_many.header("retry-after"), Some("1"));
    // Who comes by the socket has other places.
    host.client().await.health().await.unwrap();
    // All who follow are told of the end.
    host.end(&job, RunEnding::Completed, "").await;
    for stream in connections.iter_mut().take(1_000) {
        let mut head = [0; 12];
        stream.read_exact(&mut head).await.unwrap();
        assert_eq!(&head, b"HTTP/1.1 200");
    }
    drop(connections);
    let look = LookQuery::default();
    host.client().await.job(&job.id.to_string(), &look).await.unwrap();
    let mut again = network.connect().await;
    assert_eq!(network.status_on(&mut again, operator).await, 200);
}

#[tokio::test(start_paused = true)]
async fn a_host_that_ends_answers_who_waits_and_leaves_the_port() {
    let mut network = Network::start().await;
    let job = network.host.spawn("park").await;
    let (address, operator) = (network.address, network.operator.clone());
    let follow = format!(
        "GET /v1/jobs/{}/output?wait_ms=60000 HTTP/1.1\r\nhost: {address}\r\n\
         authorization: Bearer {operator}\r\n\r\n",
        job.id
    );
    let mut waiting = network.connect().await;
    waiting.write_all(follow.as_bytes()).await.unwrap();
    let _silent = network.connect().await;
    let script = network.host.script.clone();
    until("the follower", || script.followers(job.id) == 1).await;
    let begun = Instant::now();
    network.host.close().await;
    assert_eq!(Answer::read(&read_all(&mut waiting).await).status, 200);
    assert!(begun.elapsed() < Duration::from_secs(6), "{:?}", begun.elapsed());
    TcpStream::connect(address).await.unwrap_err();
}
