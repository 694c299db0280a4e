//! HTTP: who gets in, where it listens, and what answers have at most.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener},
    os::unix::fs::PermissionsExt as _,
};

use backlot_tests::{Data, Process, Response, Site};
use serde_json::{Value, json};

use super::{QUIET, long, sockets, until};

/// Returns every method and path that the host says it answers, and some others.
fn routes(site: &Site) -> Vec<String> {
    let description = site.get("/v1/openapi.json");
    let mut routes = Vec::new();
    for (path, methods) in description["paths"].as_object().unwrap() {
        let path = path.replace("{id}", "0").replace("{kind}", "noop").replace("{path}", "a");
        let methods = methods.as_object().unwrap().keys();
        routes.extend(methods.map(|method| format!("{} {path}", method.to_uppercase())));
    }
    assert!(routes.len() > 30, "{routes:?}");
    for other in ["GET /", "GET /mcp", "POST /mcp", "DELETE /mcp", "OPTIONS /v1/jobs", "PUT /no"] {
        routes.push(other.to_owned());
    }
    routes
}

/// Checks that somebody was turned away, with nothing that opens it to pages.
#[track_caller]
fn check_refused(response: Response, status: u16, code: &str, what: &str) {
    let (found, head) = (response.status, response.head.to_lowercase());
    assert_eq!(found, status, "{what}: {head}");
    assert!(!head.contains("access-control"), "{what}: {head}");
    if !what.starts_with("HEAD") {
        assert_eq!(response.json()["code"], code, "{what}: {head}");
    }
}

/// C83: on every route, whatever a page of a stranger can send.
#[test]
fn c83_a_page_of_a_stranger_drives_nothing() {
    let data = Data::new();
    let (host, site) = data.serve_at_a_port(&[]);
    let port = site.address().port();
    for route in routes(&site) {
        let request = || site.request(&route).json(&json!({}));
        for name in ["evil.test", "localhost.evil.test", "evil.test:80"] {
            for name in [name.to_owned(), format!("{}:{port}", name.replace(":80", ""))] {
                let what = format!("{route} at {name}");
                check_refused(request().header("host", &name).send(), 403, "foreign", &what);
            }
        }
        for origin in ["http://evil.test", "https://evil.test", "null", "http://localhost"] {
            let what = format!("{route} from {origin}");
            let asked = request().header("access-control-request-method", "POST");
            check_refused(asked.header("origin", origin).send(), 403, "foreign", &what);
        }
    }
    // All of that has changed nothing.
    assert_eq!(site.get("/v1/jobs")["jobs"], json!([]));
    assert_eq!(site.get("/v1/health")["host"]["pid"], host.id());
}

/// C83: what changes something is JSON with a token, and no look does.
#[test]
fn c83_what_changes_something_is_json_with_a_token() {
    let data = Data::new();
    let (_host, site) = data.serve_at_a_port(&[]);
    let spawn = json!({"kind": "ticker", "input": long().to_string()}).to_string();
    let request = || site.request("POST /v1/jobs");
    for media in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"] {
        let sent = request().body(media, spawn.clone()).send();
        check_refused(sent, 415, "media_type", media);
        let sent = site.request("POST /mcp").body(media, "{}").send();
        check_refused(sent, 415, "media_type", media);
    }
    let unsaid = request().body("", spawn.clone()).without("content-type").send();
    check_refused(unsaid, 415, "media_type", "none");
    let document: Value = serde_json::from_str(&spawn).unwrap();
    for path in ["/v1/jobs", "/mcp"] {
        let sent = site.request(&format!("POST {path}")).without("authorization");
        check_refused(sent.json(&document).send(), 401, "unauthorized", path);
    }
    // A preflight opens nothing, also where the page is one of the host's own.
    let own = format!("http://{}", site.address());
    let preflight = site
        .request("OPTIONS /v1/jobs")
        .without("authorization")
        .header("origin", &own)
        .header("access-control-request-method", "POST");
    check_refused(preflight.send(), 401, "unauthorized", "a preflight");
    assert_eq!(site.get("/v1/jobs")["jobs"], json!([]));
    // The names of loopback, at the right port, are the host's.
    for name in ["localhost", "127.0.0.1", "[::1]"] {
        let name = format!("{name}:{}", site.address().port());
        let asked = request().header("host", &name).header("origin", &format!("http://{name}"));
        let spawned = asked.json(&document).send();
        assert_eq!(spawned.status, 201, "{name}: {}", spawned.head);
        assert!(!spawned.head.to_lowercase().contains("access-control"), "{}", spawned.head);
    }
    let jobs = site.get("/v1/jobs")["jobs"].clone();
    let job = jobs[0]["id"].as_str().unwrap();
    for path in ["stop", "retry", "answer"] {
        let asked = site.request(&format!("GET /v1/jobs/{job}/{path}")).send();
        check_refused(asked, 405, "no_method", path);
    }
    for path in ["prune", "shutdown", "reload", "backup"] {
        let asked = site.request(&format!("GET /v1/{path}")).send();
        check_refused(asked, 405, "no_method", path);
    }
    assert_eq!(site.get("/v1/jobs")["jobs"].as_array().unwrap().len(), 3);
    assert_eq!(site.get(&format!("/v1/jobs/{job}"))["status"], "working");
}

/// Returns the addresses that a process listens at.
fn listening(process: u32) -> Vec<SocketAddr> {
    const LISTENS: &str = "0A";
    let links = fs::read_dir(format!("/proc/{process}/fd")).unwrap();
    let own: Vec<String> = links
        .filter_map(|link| Some(fs::read_link(link.ok()?.path()).ok()?.display().to_string()))
        .collect();
    let mut found = Vec::new();
    for table in ["tcp", "tcp6"] {
        // Where a machine has no IPv6 it has no table of it.
        let Ok(text) = fs::read_to_string(format!("/proc/{process}/net/{table}")) else { continue };
        for line in text.lines().skip(1) {
            let words: Vec<&str> = line.split_whitespace().collect();
            if words[3] == LISTENS && own.contains(&format!("socket:[{}]", words[9])) {
                let (address, port) = words[1].split_once(':').unwrap();
                let port = u16::from_str_radix(port, 16).unwrap();
                // Each word of the address is in the order of the machine.
                let word = |at: usize| u32::from_str_radix(&address[at..at + 8], 16).unwrap();
                let address = match address.len() {
                    8 => IpAddr::V4(Ipv4Addr::from(word(0).to_ne_bytes())),
                    _ => {
                        let words: Vec<u8> =
                            (0..4).flat_map(|at| word(8 * at).to_ne_bytes()).collect();
                        IpAddr::from(<[u8; 16]>::try_from(words).unwrap())
                    }
                };
                found.push(SocketAddr::new(address, port));
            }
        }
    }
    found
}

/// C84: where nothing else is said, only this machine gets in.
#[test]
fn c84_a_host_listens_on_loopback_unless_told_otherwise() {
    let data = Data::new();
    let (host, site) = data.serve_at_a_port(&[]);
    assert_eq!(listening(host.id()), [site.address()]);
    assert!(site.address().ip().is_loopback());
    let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(data.folder().path()), 0o700);
    assert_eq!(mode(&data.folder().socket()) & 0o077, 0);
    assert_eq!(mode(&data.folder().path().join("operator-token")), 0o600);
    // The default is the same but for its port, which somebody else may have.
    let other = Data::new();
    let mut default = other.start(["serve", "--json"]);
    let line: Value = serde_json::from_str(&default.line()).unwrap();
    match line["event"] == "serving" {
        true => {
            assert_eq!(line["host"]["addresses"], json!(["http://127.0.0.1:7420"]));
            assert_eq!(listening(default.id()), ["127.0.0.1:7420".parse().unwrap()]);
        }
        false => {
            let why = line["error"]["message"].as_str().unwrap();
            assert!(why.contains("cannot listen at 127.0.0.1:7420"), "{line}");
        }
    }
}

/// C84: an address that others reach, however it is named.
#[test]
fn c84_an_address_that_others_reach_is_refused_however_it_is_named() {
    let data = Data::new();
    let file = data.outer().join("b.toml");
    fs::write(&file, "[serve]\nlisten = '0.0.0.0:0'\n").unwrap();
    let by_file = file.display().to_string();
    for (args, variable, code) in [
        (&["serve", "--listen", "0.0.0.0:0"][..], None, 3),
        (&["serve", "--listen", "[::]:0"], None, 3),
        (&["serve", "--listen", "127.0.0.1:0,0.0.0.0:0"], None, 3),
        (&["serve", "--listen", "[::ffff:0.0.0.0]:0"], None, 3),
        (&["serve"], Some("0.0.0.0:0"), 3),
        (&["serve", "--policy", &by_file], None, 3),
        // A name stands for whatever somebody has it stand for.
        (&["serve", "--listen", "box.example:0"], None, 2),
        (&["serve"], Some("box.example:0"), 2),
    ] {
        let refused = data.start_with(args, |command| {
            if let Some(address) = variable {
                command.env("BACKLOT_LISTEN", address);
            }
        });
        let refused = refused.wait_unread();
        assert_eq!(refused.code, Some(code), "{args:?} {variable:?}: {refused:?}");
        let why = if code == 3 { "can be reached by other machines" } else { "is no address" };
        assert!(refused.stderr.contains(why), "{args:?} {variable:?}: {refused:?}");
        assert!(!data.folder().socket().exists());
    }
}

/// C84: who wants it all the same is warned, and nobody gets in without a token.
#[test]
fn c84_an_address_that_others_reach_is_warned_of_and_takes_a_token() {
    let data = Data::new();
    let args = ["serve", "--json", "--listen", "0.0.0.0:0", "--allow-plain-http"];
    let mut host = data.start(args);
    let serving: Value = serde_json::from_str(&host.line()).unwrap();
    let address = serving["host"]["addresses"][0].as_str().unwrap();
    let port = address.rsplit_once(':').unwrap().1.parse().unwrap();
    let token = fs::read_to_string(data.folder().path().join("operator-token")).unwrap();
    let site = Site::new(SocketAddr::from(([127, 0, 0, 1], port)), token.trim());
    let refused = site.request("GET /v1/jobs").without("authorization").send();
    check_refused(refused, 401, "unauthorized", "no token");
    assert_eq!(site.get("/v1/jobs")["jobs"], json!([]));
    host.signal("TERM");
    let ended = host.wait();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.stderr.contains("other machines can reach the host"), "{}", ended.stderr);
    assert!(!ended.stderr.contains(token.trim()), "{}", ended.stderr);
}

/// C84: a port that somebody else has.
#[test]
fn c84_a_port_in_use_is_told_and_nothing_is_taken() {
    let data = Data::new();
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = other.local_addr().unwrap();
    let refused = data.run(["serve", "--listen", &address.to_string()]);
    assert_eq!(refused.code, Some(3), "{refused:?}");
    let why = format!("cannot listen at {address}: another program does");
    assert!(refused.stderr.contains(&why), "{}", refused.stderr);
    assert!(!data.folder().socket().exists());
    drop(other);
    let (host, _) = data.serve_at_a_port(&[]);
    host.signal("TERM");
    assert_eq!(host.wait_unread().code, Some(0));
}

/// C80 for programs: what is long comes in parts, each bounded, and nothing is missing.
#[test]
fn c80_answers_are_bounded_and_go_on() {
    const BYTES: usize = 50_000_000;
    const PART: usize = 4 << 20;
    const JOBS: usize = 5_000;
    let data = Data::new();
    let (host, site) = data.serve_at_a_port(&[]);
    let flood = site.spawn("faulty", &json!({"mode": "flood", "bytes": BYTES}));
    let line = site.post(
        "/v1/jobs",
        &json!({"file": backlot_tests::program("probe"), "args": ["pour", "10000000"]}),
    );
    let line = line["id"].as_str().unwrap().to_owned();
    // Many that wait for an hour, by some who spawn at once.
    let spawning: Vec<_> = (0..8)
        .map(|_| {
            let site = site.clone();
            std::thread::spawn(move || {
                for _ in 0..JOBS / 8 {
                    site.post("/v1/jobs", &json!({"kind": "noop", "after_ms": 3_600_000}));
                }
            })
        })
        .collect();
    for (job, least) in [(&flood, BYTES), (&line, 10_000_000)] {
        assert_eq!(site.end(job)["status"], "completed");
        let (mut after, mut bytes, mut parts) = (0, 0, 0);
        loop {
            let path = format!("/v1/jobs/{job}/output?after={after}&max=1000000000");
            let answer = site.request(&format!("GET {path}")).send().bytes();
            // JSON makes it longer, by a bound.
            assert!(answer.len() < 2 * PART, "{}", answer.len());
            let read: Value = serde_json::from_slice(&answer).unwrap();
            for piece in read["pieces"].as_array().unwrap() {
                assert_eq!(piece["offset"], json!(after + bytes_since(&mut bytes, piece)));
            }
            parts += 1;
            after = read["next"].as_u64().unwrap();
            bytes = 0;
            if read["ended"] == true {
                break;
            }
        }
        assert!(after as usize >= least, "{after}");
        assert!(parts > 2, "{parts}");
    }
    for thread in spawning {
        thread.join().unwrap();
    }
    let (mut before, mut jobs) = (String::new(), 0);
    loop {
        let path = format!("/v1/jobs?limit=1000000{before}");
        let answer = site.request(&format!("GET {path}")).send().bytes();
        assert!(answer.len() < 2 << 20, "{}", answer.len());
        let page: Value = serde_json::from_slice(&answer).unwrap();
        jobs += page["jobs"].as_array().unwrap().len();
        match page["next"].as_u64() {
            Some(next) => before = format!("&before={next}"),
            None => break,
        }
    }
    assert_eq!(jobs, JOBS + 2);
    assert!(host.resident() < 400 << 20, "{}", host.resident());
}

/// Returns how many bytes of a part were before this piece of it.
fn bytes_since(bytes: &mut u64, piece: &Value) -> u64 {
    let before = *bytes;
    *bytes += piece["text"].as_str().unwrap().len() as u64;
    before
}

/// C90: a host with nothing to wait for ends at once, whoever is connected and says nothing.
#[test]
fn c90_who_is_connected_and_says_nothing_keeps_no_host() {
    let data = Data::new();
    let (host, site) = data.serve_at_a_port(&[]);
    let silent: Vec<_> = (0..2 * QUIET).map(|_| site.connect()).collect();
    let half = site.request("POST /v1/jobs").header("content-length", "100").leave();
    until("they were let in", || sockets(host.id()) > QUIET);
    host.signal("TERM");
    let ended: backlot_tests::Ended = Process::wait_unread(host);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    drop((silent, half));
}
