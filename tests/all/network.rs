//! The network: what is granted is reached, by the addresses that were granted.

use std::{
    net::IpAddr,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use backlot::{
    Config,
    wasm::{Ask, Clocks, Egress, Grant, Lookup, Policy, Random, Resolver, Sources},
};
use backlot_tests::{Process, Task, TestHost, With, arguments, program};

use crate::servers::{Server, echo, header, sink};

async fn run(host: &TestHost, name: &str, grant: &Grant, args: &[&str]) -> Task {
    let component = host.program(name).await;
    let with = With { grant: grant.clone(), ..With::default() };
    host.try_task(&component, &arguments(args), with).await.unwrap()
}

fn tcp(peers: &[impl AsRef<str>]) -> Grant {
    let tcp = peers.iter().map(|peer| peer.as_ref().parse().unwrap()).collect();
    Grant { tcp, ..Grant::default() }
}

fn http(servers: &[String]) -> Grant {
    Grant {
        http: servers.iter().map(|server| server.parse().unwrap()).collect(),
        ..Grant::default()
    }
}

/// A host for which every name stands for these addresses, each lookup for the next.
fn host(addresses: &'static [&'static str]) -> (TestHost, Arc<AtomicUsize>) {
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&asked);
    let resolver = Resolver::Function(Arc::new(move |_| {
        let turn = counter.fetch_add(1, Ordering::Relaxed).min(addresses.len() - 1);
        Ok(vec![addresses[turn].parse::<IpAddr>().unwrap()])
    }));
    (TestHost::with(Config { resolver, ..Config::default() }), asked)
}

/// Rebinding: whoever answers for a granted name may not point it at the host.
#[tokio::test]
async fn a_name_that_turns_to_a_private_address_leads_nowhere() {
    let server = Server::hello();
    let peer = format!("public.example:{}", server.port);
    let url = format!("http://{peer}/");
    let direct = format!("127.0.0.1:{}", server.port);
    for inward in [&["127.0.0.1"], &["::ffff:127.0.0.1"], &["64:ff9b::7f00:1"]] {
        let (host, _) = host(inward);
        let output = run(&host, "fetch", &tcp(&[&peer]), &[&url]).await.output().await;
        assert!(output.contains("HttpRequestDenied"), "{output}");
        let grant = http(&[format!("http://{peer}")]);
        let task = run(&host, "async_command", &grant, &["fetch", &url]).await;
        assert!(task.output().await.contains("HttpRequestDenied"), "{inward:?}");
        let log = task.log().await;
        assert!(log.contains("denied: public.example stands for "), "{log}");
        assert!(log.contains("; a name may not; grant it with --private RANGE"), "{log}");
        let dial = ["dial", peer.as_str(), direct.as_str()];
        let output = run(&host, "probe", &tcp(&[&peer]), &dial).await.output().await;
        assert_eq!(output.matches("refused").count(), 2, "{output}");
    }
    assert_eq!(server.count(), 0);
    // What was public when it was looked up is connected to as it was then.
    let (host, asked) = host(&["127.0.0.1", "10.0.0.1"]);
    let private = vec!["127.0.0.0/8".parse().unwrap()];
    let grant = Grant { private, ..http(&[format!("http://{peer}")]) };
    let output = run(&host, "fetch", &grant, &[&url]).await.output().await;
    assert_eq!(output, format!("200 {url}: hello\n"));
    assert_eq!(asked.load(Ordering::Relaxed), 1, "one lookup, so no second can lead elsewhere");
}

#[tokio::test]
async fn names_below_a_granted_one_are_reached_once_they_were_looked_up() {
    let server = Server::hello();
    let (host, _) = host(&["127.0.0.1"]);
    let private = vec!["127.0.0.0/8".parse().unwrap()];
    let grant = Grant { private, ..tcp(&[format!("*.corp.example:{}", server.port)]) };
    let direct = format!("127.0.0.1:{}", server.port);
    let below = format!("a.b.corp.example:{}", server.port);
    let itself = format!("corp.example:{}", server.port);
    let dial = ["dial", &direct, &itself, &below, &direct];
    let output = run(&host, "probe", &grant, &dial).await.output().await;
    let first: Vec<&str> = output.lines().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(first, ["refused", "refused", "connected", "connected"], "{output}");
}

#[tokio::test]
async fn hosts_in_forms_that_only_resolvers_understand_are_none() {
    let server = Server::hello();
    let port = server.port;
    let (host, asked) = host(&["127.0.0.1"]);
    let grant = Grant {
        http: vec![format!("http://127.0.0.1:{port}").parse().unwrap()],
        lookup: Lookup::Any,
        ..tcp(&[format!("localhost:{port}")])
    };
    for odd in [
        "2130706433",
        "0x7f000001",
        "0x7f.0.0.1",
        "0177.0.0.1",
        "127.1",
        "127.0.0.1.",
        "[::1%251]",
        "[::127.0.0.1]",
        "[::1]",
        "user@127.0.0.1",
        "localhost@127.0.0.1",
        "127.0.0.1@localhost",
    ] {
        let url = format!("http://{odd}:{port}/");
        for (program, args) in
            [("fetch", vec![url.as_str()]), ("async_command", vec!["fetch", url.as_str()])]
        {
            let task = run(&host, program, &grant, &args).await;
            let output = task.output().await;
            // Some are no authority to begin with, which is as good.
            assert!(!output.contains("hello") && !output.contains("olleh"), "{odd}: {output}");
        }
    }
    assert_eq!((server.count(), asked.load(Ordering::Relaxed)), (0, 0));
    // An IPv4 address in the dress of IPv6 is that address.
    let mapped = format!("http://[::ffff:127.0.0.1]:{port}/");
    let output = run(&host, "fetch", &grant, &[&mapped]).await.output().await;
    assert_eq!(output, format!("200 {mapped}: hello\n"));
}

#[tokio::test]
async fn a_server_is_granted_by_scheme_host_and_port_and_is_no_peer() {
    let (granted, other) = (Server::hello(), Server::hello());
    let host = TestHost::start();
    let grant = http(&[
        format!("http://localhost:{}", granted.port),
        format!("https://localhost:{}", other.port),
    ]);
    let urls = [granted.port, other.port].map(|port| format!("http://LocalHost:{port}/"));
    let task = run(&host, "fetch", &grant, &[&urls[0], &urls[1]]).await;
    let output = task.output().await;
    assert!(output.starts_with(&format!("200 {}: hello\n", urls[0])), "{output}");
    assert!(output.contains("HttpRequestDenied"), "another scheme: {output}");
    assert_eq!(header(&granted.request(), "host").unwrap(), &urls[0][7..urls[0].len() - 1]);
    let log = task.log().await;
    let line = format!("denied: http://localhost:{} is not granted; ", other.port);
    assert!(log.contains(&line) && log.contains("--http URL"), "{log}");
    let output = run(&host, "async_command", &grant, &["fetch", &urls[0]]).await.output().await;
    assert_eq!(output, "200 olleh \n");
    let dial = format!("localhost:{}", granted.port);
    let task = run(&host, "probe", &grant, &["dial", &dial]).await;
    assert!(task.output().await.starts_with("refused"));
    assert_eq!(other.count(), 0);
}

#[tokio::test]
async fn a_redirect_to_a_private_address_is_a_request_like_any_other() {
    let inner = Server::hello();
    let to = format!("location: http://127.0.0.1:{}/\r\n", inner.port);
    let outer = Server::start(move |_| vec![crate::servers::response(&to, "moved")]);
    let host = TestHost::start();
    let grant = http(&[format!("http://localhost:{}", outer.port)]);
    let url = format!("http://localhost:{}/", outer.port);
    let output = run(&host, "fetch", &grant, &["--follow", &url]).await.output().await;
    assert!(output.starts_with(&format!("200 {url}: moved\n")), "{output}");
    let refused = format!("refused http://127.0.0.1:{}/", inner.port);
    assert!(output.contains(&refused), "{output}");
    assert_eq!(inner.count(), 0);
}

#[tokio::test]
async fn datagrams_go_to_granted_peers_and_come_from_them() {
    let port = echo();
    let (peer, other) = (format!("127.0.0.1:{port}"), format!("127.0.0.1:{}", echo()));
    let host = TestHost::start();
    let grant = Grant { udp: vec![peer.parse().unwrap()], ..Grant::default() };
    for program in ["probe", "async_command"] {
        let output = run(&host, program, &grant, &["datagram", &peer, "5", "7"]).await;
        assert_eq!(output.output().await, "5 bytes, 5 back\n7 bytes, 7 back\n", "{program}");
        let output = run(&host, program, &grant, &["connected", &peer, "5"]).await;
        assert_eq!(output.output().await, "5 bytes, 5 back\n", "{program}");
        let task = run(&host, program, &grant, &["connected", &other, "5"]).await;
        let output = task.output().await;
        assert!(output.starts_with("refused"), "{program}: {output}");
        let task = run(&host, program, &grant, &["datagram", &other, "5"]).await;
        assert!(task.output().await.starts_with("refused 5 bytes"), "{program}");
        let log = task.log().await;
        assert!(log.contains(&format!("denied: udp {other} is not granted; ")), "{log}");
        let task = run(&host, program, &tcp(&[&peer]), &["datagram", &peer, "5"]).await;
        let output = task.output().await;
        assert!(!output.contains("back"), "a peer over TCP is none over UDP: {output}");
        assert!(task.log().await.contains("denied: udp is not granted; "), "{program}");
    }
}

#[tokio::test]
async fn lookups_are_those_of_listed_names_all_or_none() {
    let (host, _) = host(&["1.2.3.4"]);
    let grant = |lookup| Grant { lookup, ..tcp(&["*.example.com:1"]) };
    for (lookup, listed, any) in
        [(Lookup::None, false, false), (Lookup::Listed, true, false), (Lookup::Any, true, true)]
    {
        for (name, told) in [("a.example.com", listed), ("example.org", any)] {
            let task = run(&host, "probe", &grant(lookup), &["resolve", name]).await;
            let output = task.output().await;
            assert_eq!(output == format!("{name}: 1.2.3.4\n"), told, "{lookup:?}: {output}");
            let log = task.log().await;
            assert_eq!(log.contains(&format!("the lookup of {name} is not granted")), !told);
            let task = run(&host, "async_command", &grant(lookup), &["resolve", name]).await;
            let output = task.output().await;
            assert_eq!(output.contains("(1, 2, 3, 4)"), told, "{lookup:?}: {output}");
        }
    }
}

#[tokio::test]
async fn requests_are_counted_and_end_with_their_limit() {
    let server = Server::hello();
    let url = format!("http://localhost:{}/", server.port);
    let host = TestHost::start();
    let egress = Egress { requests: Some(2), bytes: None };
    let grant = Grant { egress, ..http(&[format!("http://localhost:{}", server.port)]) };
    let task = run(&host, "fetch", &grant, &[&url, &url, &url, &url]).await;
    let output = task.output().await;
    assert_eq!(output.matches("200 ").count(), 2, "{output}");
    assert_eq!(output.matches("HttpRequestDenied").count(), 2, "{output}");
    assert_eq!(server.count(), 2);
    let log = task.log().await;
    assert_eq!(log.matches("denied: a request after the 2 that this task may make").count(), 1);
}

/// What a guest sends is counted on every way that it has.
#[tokio::test]
async fn bytes_are_counted_on_every_way_and_end_with_their_limit() {
    let server = Server::hello();
    let (port, counts) = sink();
    let datagrams = echo();
    let host = TestHost::start();
    let egress = Egress { bytes: Some(10 << 10), requests: None };
    let grant = Grant {
        egress,
        udp: vec![format!("127.0.0.1:{datagrams}").parse().unwrap()],
        ..tcp(&[format!("127.0.0.1:{port}"), format!("127.0.0.1:{}", server.port)])
    };
    let told = "denied: sending more than the 10 KiB that this task may send; grant more";

    let url = format!("http://127.0.0.1:{}/", server.port);
    for (program, post) in [("fetch", vec!["--post"]), ("async_command", vec!["post", &url])] {
        let (few, many) = match program {
            "fetch" => (vec!["--post", "9000", &url], vec!["--post", "20000", &url, &url]),
            _ => ([post.clone(), vec!["9000"]].concat(), [post, vec!["20000"]].concat()),
        };
        let output = run(&host, program, &grant, &few).await.output().await;
        assert!(output.starts_with("200"), "{program}: {output}");
        let request = server.request();
        assert!(request.len() > 9_000, "{program}: {request}");
        let task = run(&host, program, &grant, &many).await;
        let output = task.output().await;
        assert!(!output.contains("200 http"), "{program}: {output}");
        assert!(output.contains("refused"), "{program}: {output}");
        assert_eq!(task.log().await.matches(told).count(), 1, "{program}");
        assert!(server.request().len() < 11 << 10, "{program}");
    }
    let path = format!("http://127.0.0.1:{}/{}", server.port, "x".repeat(11 << 10));
    let output = run(&host, "fetch", &grant, &[&path]).await.output().await;
    assert!(output.contains("HttpRequestDenied"), "a path is sent as well: {output}");

    let peer = format!("127.0.0.1:{port}");
    for program in ["probe", "async_command"] {
        let output = run(&host, program, &grant, &["send", &peer, "10240"]).await.output().await;
        assert!(output.contains("10240"), "{program}: {output}");
        assert_eq!(counts.recv().unwrap(), 10_240, "{program}");
        let task = run(&host, program, &grant, &["send", &peer, "20480"]).await;
        let output = task.output().await;
        let is_told = output.contains("refused after 10240") || output.contains("AccessDenied");
        assert!(is_told, "{program}: {output}");
        assert_eq!(task.log().await.matches(told).count(), 1, "{program}");
        assert_eq!(counts.recv().unwrap(), 10_240, "{program}");
    }
    let peer = format!("127.0.0.1:{datagrams}");
    for program in ["probe", "async_command"] {
        let args = ["datagram", peer.as_str(), "1024", "1024"];
        let output = run(&host, program, &grant, &args).await.output().await;
        assert_eq!(output.matches("1024 back").count(), 2, "{program}: {output}");
        let egress = Egress { bytes: Some(1_500), requests: None };
        let grant = Grant { egress, ..grant.clone() };
        let args = ["datagram", peer.as_str(), "1024", "1024", "10"];
        let task = run(&host, program, &grant, &args).await;
        let output = task.output().await;
        assert_eq!(output.matches("1024 back").count(), 1, "{program}: {output}");
        assert_eq!(output.matches("refused").count(), 2, "it stays over: {output}");
        assert_eq!(task.log().await.matches("denied: sending more").count(), 1, "{program}");
    }
}

#[tokio::test]
async fn denials_are_told_in_the_log_with_a_hint_and_have_a_bound() {
    let host = TestHost::start();
    let fetch = host.program("fetch").await;
    let policy = Policy::parse("[kind.fetch]\nhttp = []", "p.toml", Path::new("/")).unwrap();
    let rules = policy.rules(&fetch.description().kind);
    let urls: Vec<String> = (1..=30).map(|port| format!("http://10.0.0.1:{port}/")).collect();
    let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
    let start = backlot::registry::Start {
        label: "denied".to_owned(),
        input: arguments(&urls),
        owner: None,
        step: backlot::registry::Step::default(),
    };
    let producer = fetch.decided(&rules, None, &Ask::default(), &Sources::default()).unwrap();
    let task = host.task_of(Arc::new(producer), start).await;
    let output = task.output().await;
    assert_eq!(output.matches("HttpRequestDenied").count(), 30, "{output}");
    let log = task.log().await;
    assert!(log.starts_with(
        "denied: http://10.0.0.1:1 is not granted; list it at p.toml:2 ([kind.fetch] http)\n"
    ));
    assert_eq!(log.lines().count(), 21, "{log}");
    assert!(log.ends_with("\ndenied: 10 more\n"), "{log}");
}

#[test]
fn denials_are_told_to_the_audit() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("file"), "").unwrap();
    let program = program("probe");
    let granted = format!("{}::/g", folder.path().display());
    let run = |args: &[&str]| {
        let mut all = vec!["run", program.to_str().unwrap(), "--dir", &granted];
        all.extend(["--net", "127.0.0.1:1", "--"]);
        all.extend(args);
        let audit = |command: &mut std::process::Command| {
            command.env("BACKLOT_LOG", "backlot::audit=info");
        };
        Process::start_with(all, audit).wait().stderr
    };
    let said = run(&["dial", "10.0.0.1:80"]);
    let event = r#"event="denial" task=probe-1 kind=probe what="tcp 10.0.0.1:80 is not granted" key="tcp" rule="grant it with --net HOST:PORT""#;
    assert!(said.contains(event), "{said}");
    let said = run(&["paths", "/g/../../etc/hostname", "/g/file"]);
    assert!(said.contains("dirs") && said.contains("hostname"), "{said}");
    assert!(!said.contains("/g/file"), "{said}");
}

#[tokio::test]
async fn clocks_and_random_numbers_are_what_the_grant_says() {
    let host = TestHost::start();
    for program in ["probe", "async_command"] {
        let chance = async |clocks, random| {
            let grant = Grant { clocks, random, ..Grant::default() };
            run(&host, program, &grant, &["chance"]).await.output().await
        };
        let numbers = |said: &str, name: &str| -> Vec<u64> {
            let line = said.lines().find_map(|line| line.strip_prefix(name)).unwrap().to_owned();
            line.split_whitespace().map(|number| number.parse().unwrap()).collect()
        };
        let random = |said: &str| said.split_once("random ").unwrap().1.to_owned();
        let precise = chance(Clocks::Precise, Random::System).await;
        assert!(numbers(&precise, "wall ")[0] > 1_700_000_000, "{precise}");
        let coarse = chance(Clocks::Coarse, Random::Seeded(7)).await;
        assert!(numbers(&coarse, "wall ")[0] > 1_700_000_000, "{coarse}");
        assert_eq!(numbers(&coarse, "wall ")[1] % 1_000_000, 0, "{coarse}");
        assert_eq!(numbers(&coarse, "monotonic ")[0] % 1_000_000, 0, "{coarse}");
        let hidden = chance(Clocks::Hidden, Random::Seeded(7)).await;
        assert_eq!(numbers(&hidden, "wall "), [0, 0], "{hidden}");
        assert_eq!(numbers(&hidden, "monotonic ")[0] % 1_000_000, 0, "{hidden}");
        assert_eq!(random(&coarse), random(&hidden), "the same seed");
        let other = chance(Clocks::Precise, Random::Seeded(8)).await;
        assert_ne!(random(&coarse), random(&other));
        assert_ne!(random(&precise), random(&chance(Clocks::Precise, Random::System).await));
    }
}
