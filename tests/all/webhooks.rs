//! Webhooks of jobs of the real process: told by whichever host can.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpListener,
    sync::mpsc,
    thread,
    time::Duration,
};

use backlot::{Config, Holding, HoldingConfig, JobsConfig, WebhookOptions, WebhookSecret};
use backlot_tests::{Data, cache, kinds};
use serde_json::{Value, json};

/// How long what must come is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

/// What came to a receiver: the request line and headers, and the body.
#[derive(Debug)]
struct Heard {
    head: String,
    body: Vec<u8>,
}

impl Heard {
    fn header(&self, name: &str) -> &str {
        crate::servers::header(&self.head, name).unwrap_or_else(|| panic!("{}", self.head))
    }
}

/// Starts a receiver that takes whatever it is told, and returns its URL.
fn receiver() -> (String, mpsc::Receiver<Heard>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (tell, heard) = mpsc::channel();
    thread::spawn(move || {
        for peer in listener.incoming() {
            let mut peer = BufReader::new(peer.unwrap());
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") {
                if peer.read_line(&mut head).unwrap() == 0 {
                    break;
                }
            }
            let length = crate::servers::header(&head, "content-length").unwrap();
            let mut body = vec![0; length.parse().unwrap()];
            peer.read_exact(&mut body).unwrap();
            let answer = b"HTTP/1.1 204 Told\r\nconnection: close\r\n\r\n";
            peer.get_mut().write_all(answer).unwrap();
            if tell.send(Heard { head, body }).is_err() {
                return;
            }
        }
    });
    (format!("http://127.0.0.1:{port}/told"), heard)
}

/// Shows a job over and over until it is so.
fn when(data: &Data, id: &str, condition: impl Fn(&Value) -> bool) -> Value {
    let begun = std::time::Instant::now();
    loop {
        let job = data.json(["show", "--json", id]);
        if condition(&job) {
            return job;
        }
        assert!(begun.elapsed() < PATIENCE, "{job}");
        // There is nothing that a person could wait for: a call is no change of the job.
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_webhook_is_told_by_the_next_host_what_this_one_may_not_tell() {
    let data = Data::new();
    let (url, heard) = receiver();
    let (holder, _) = data.hold();
    let input = json!({"count": 2, "every_ms": 1}).to_string();
    let args = ["run", "ticker", "--detach", "--json", "--webhook", &url, "--input", &input];
    let spawned = data.json(args);
    assert_eq!(spawned["webhook"], url.as_str());
    let id = spawned["id"].as_str().unwrap();
    // This one was not told that the loopback may be.
    let job = when(&data, id, |job| job["call"]["tries"] == 1);
    assert_eq!(job["call"]["id"], format!("{id}.1"));
    let shown = data.run(["show", id]).stdout;
    assert!(shown.contains(&format!("webhook      {url}\n")), "{shown}");
    let why = "tried once: 127.0.0.1 is loopback: an operator can allow it";
    assert!(shown.contains(why), "{shown}");
    heard.try_recv().unwrap_err();
    // What it owes outlives it, however it ends; and whoever has the folder pays.
    holder.kill();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let holding = runtime.block_on(async {
        let host = Config {
            plugins: kinds(),
            instances: Some(8),
            cache: Some(cache()),
            ..Config::default()
        };
        let allow = vec!["127.0.0.0/8".parse().unwrap()];
        let webhooks = WebhookOptions { allow, default: None };
        let jobs = JobsConfig { webhooks, ..JobsConfig::new(data.folder().path()) };
        let new = HoldingConfig::new(data.folder().path(), "test");
        Holding::start(HoldingConfig { host, jobs, ..new }).await.unwrap()
    });
    let told = heard.recv_timeout(PATIENCE).unwrap();
    assert!(told.head.starts_with("POST /told HTTP/1.1\r\n"), "{}", told.head);
    assert_eq!(told.header("webhook-id"), format!("{id}.1"));
    let secret = WebhookSecret::of_folder(data.folder().path()).unwrap();
    let at = told.header("webhook-timestamp").parse().unwrap();
    let signature = secret.signature(told.header("webhook-id"), at, &told.body);
    assert_eq!(told.header("webhook-signature"), signature);
    let message: Value = serde_json::from_slice(&told.body).unwrap();
    assert_eq!((&message["type"], &message["data"]["id"]), (&json!("job.completed"), &json!(id)));
    when(&data, id, |job| job["call"].is_null());
    let shown = data.run(["show", id]).stdout;
    assert!(shown.contains(&format!("webhook      {url}\n             told\n")), "{shown}");
    // One that it runs itself is told at once.
    let args = ["run", "ticker", "--detach", "--json", "--webhook", &url, "--input", &input];
    let second = data.json(args);
    let told = heard.recv_timeout(PATIENCE).unwrap();
    assert_eq!(told.header("webhook-id"), format!("{}.1", second["id"].as_str().unwrap()));
    assert!(runtime.block_on(holding.end()));
    assert!(heard.try_recv().is_err(), "each is told once");
}

#[test]
fn a_webhook_takes_a_host_that_stays() {
    let data = Data::new();
    let ended = data.run(["run", "ticker", "--webhook", "https://example.com"]);
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.stderr.contains("--detach"), "{ended:?}");
}
