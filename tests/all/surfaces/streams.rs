//! Live streams: nothing is missing, nothing comes twice, nothing is forged.

use std::thread;

use backlot_tests::{Data, Event, Events, Process, Response, Site, program};
use serde_json::{Value, json};

use super::{lines, long, until};

/// Returns the bytes that an event has of a job's output; none where it has none.
fn bytes(event: &Event) -> Vec<u8> {
    match (event.name.as_str(), event.json()) {
        ("output", piece) => match &piece["text"] {
            Value::String(text) => text.clone().into_bytes(),
            _ => decoded(piece["base64"].as_str().unwrap()),
        },
        _ => Vec::new(),
    }
}

/// Returns what base64 stands for.
fn decoded(text: &str) -> Vec<u8> {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let value = |digit: u8| DIGITS.iter().position(|it| *it == digit).unwrap() as u32;
    let mut bytes = Vec::new();
    for four in text.trim_end_matches('=').as_bytes().chunks(4) {
        let bits = four.iter().fold(0, |bits, digit| bits << 6 | value(*digit));
        let bits = bits << (6 * (4 - four.len()));
        bytes.extend_from_slice(&bits.to_be_bytes()[1..four.len()]);
    }
    bytes
}

/// Returns all that events have of a job's output, of one of its streams.
fn of_stream(events: &[Event], stream: &str) -> Vec<u8> {
    let of_stream = |event: &&Event| event.json()["stream"] == stream;
    events.iter().filter(of_stream).flat_map(bytes).collect()
}

fn output(events: &[Event]) -> Vec<u8> {
    events.iter().flat_map(bytes).collect()
}

fn of_job(job: &str) -> String {
    format!("/v1/jobs/{job}/stream")
}

/// Spawns a plain program, and returns its job.
fn run(site: &Site, args: &[&str], input: &str) -> String {
    let request = json!({"file": program("probe"), "args": args, "input": input});
    site.post("/v1/jobs", &request)["id"].as_str().unwrap().to_owned()
}

/// C06: nobody reads, or somebody has read once and never again.
#[test]
fn c06_chatty_output_without_a_reader_ends() {
    let data = Data::new();
    let (_host, site) = data.serve_at_a_port(&[]);
    let numbered = |name: &str| (1..=10_000).map(|n| format!("{name} {n}\n")).collect::<String>();
    for has_reader in [false, true] {
        let job = run(&site, &["both", "10000"], "");
        let reader = has_reader.then(|| {
            let mut events = site.events(&of_job(&job), None);
            events.find(|event| event.name == "output").unwrap();
            events
        });
        assert_eq!(site.end(&job)["status"], "completed");
        let told = site.events(&of_job(&job), None).rest();
        for (stream, name) in [("stdout", "out"), ("stderr", "err")] {
            let seen = of_stream(&told, stream);
            assert!(seen == numbered(name).as_bytes(), "{name}: {} bytes", seen.len());
        }
        drop(reader);
    }
}

/// Somebody who follows a job and comes back after each break, as a page does.
struct Follower {
    job: String,
    seen: Vec<u8>,
    /// What has come since the last event that one can come back to.
    open: Vec<u8>,
    last: Option<String>,
}

impl Follower {
    fn new(job: &str) -> Self {
        Self { job: job.to_owned(), seen: Vec::new(), open: Vec::new(), last: None }
    }

    fn connect(&mut self, site: &Site) -> Events {
        self.open.clear();
        site.events(&of_job(&self.job), self.last.as_deref())
    }

    /// Takes an event, and returns whether it was the last of the job.
    fn take(&mut self, event: &Event) -> bool {
        self.open.extend(bytes(event));
        if let Some(id) = &event.id {
            self.seen.append(&mut self.open);
            self.last = Some(id.clone());
        }
        event.name == "ended"
    }

    /// Reads so many events, or to the job's end, which is told by `true`.
    fn read(&mut self, site: &Site, most: usize) -> bool {
        let mut events = self.connect(site);
        for _ in 0..most {
            let event = events.next().unwrap();
            if self.take(&event) {
                return true;
            }
        }
        false
    }
}

fn ticks(count: u64) -> String {
    (1..=count).map(|number| format!("line {number}\n")).collect()
}

/// C86: whoever comes and goes meanwhile.
#[test]
fn c86_no_line_is_missing_or_comes_twice() {
    const LINES: u64 = 2_000;
    let data = Data::new();
    let (_host, site) = data.serve_at_a_port(&[]);
    let job = site.spawn("ticker", &json!({"count": LINES, "every_ms": 1}));
    let readers = (1..=50).map(|cut| {
        let (site, mut follower) = (site.clone(), Follower::new(&job));
        thread::spawn(move || {
            // Each comes back for a while after as many events as no other.
            for _ in 0..10 {
                if follower.read(&site, cut) {
                    return follower.seen;
                }
            }
            assert!(follower.read(&site, usize::MAX));
            follower.seen
        })
    });
    let readers: Vec<_> = readers.collect();
    for (place, reader) in readers.into_iter().enumerate() {
        let seen = reader.join().unwrap();
        assert!(seen == ticks(LINES).as_bytes(), "{place}: {} bytes", seen.len());
    }
}

/// C86: a cut while much is written, and a host that is another one afterwards.
#[test]
fn c86_who_comes_back_to_the_next_host_goes_on_where_it_was() {
    let data = Data::new();
    let (host, site) = data.serve_at_a_port(&[]);
    let job = site.spawn("ticker", &json!({"count": 1_000_000, "every_ms": 1}));
    let mut follower = Follower::new(&job);
    assert!(!follower.read(&site, 3));
    let was = follower.seen.len();
    // Nobody is connected while it goes on.
    let path = format!("/v1/jobs/{job}/output?after={}&wait_ms=50000", was + 10_000);
    assert_ne!(site.get(&path)["pieces"], json!([]));
    assert!(!follower.read(&site, 3));
    assert!(follower.seen.len() > was);
    // What the host had handed out is there in the next.
    host.kill();
    let (_next, site) = data.serve_at_a_port(&[]);
    assert!(follower.read(&site, usize::MAX));
    let seen = String::from_utf8(follower.seen).unwrap();
    let count = seen.lines().count() as u64;
    assert_eq!(seen, ticks(count));
    assert_eq!(site.get(&format!("/v1/jobs/{job}"))["summary"], "interrupted by restart");
}

/// C86: what becomes of jobs, told to somebody who was there and to one who comes back.
#[test]
fn c86_no_change_of_a_job_is_missing() {
    let data = Data::new();
    let (_host, site) = data.serve_at_a_port(&[]);
    let live = site.spawn("ticker", &long());
    let mut events = site.events("/v1/events", None);
    let shown = events.next().unwrap();
    assert_eq!((shown.name.as_str(), &shown.json()["more"]), ("snapshot", &json!(false)));
    assert_eq!(shown.json()["jobs"][0]["id"], *live);
    let jobs: Vec<String> = (0..20).map(|_| site.spawn("noop", &Value::Null)).collect();
    let ends = |events: &mut Events| {
        let mut left = jobs.clone();
        let mut told = Vec::new();
        while !left.is_empty() {
            let event = events.next().unwrap();
            assert_eq!(event.name, "job", "{event:?}");
            if event.json()["live"] == false {
                // Each ends once.
                let place = left.iter().position(|job| event.json()["id"] == **job).unwrap();
                left.remove(place);
            }
            told.push(event);
        }
        told
    };
    let told = ends(&mut events);
    let mut again = site.events("/v1/events", shown.id.as_deref());
    assert_eq!(ends(&mut again), told);
    let mut middle = site.events("/v1/events", told[7].id.as_deref());
    for event in &told[8..] {
        assert_eq!(middle.next().as_ref(), Some(event));
    }
}

/// C86: over the limit one is told so, and a place that is free again is had.
#[test]
fn c86_a_stream_too_many_is_told_so() {
    const STREAMS: usize = 1_024;
    let data = Data::new();
    let (_host, site) = data.serve_at_a_port(&[]);
    let job = site.spawn("ticker", &long());
    let mut open: Vec<Events> = (0..STREAMS).map(|_| site.events(&of_job(&job), None)).collect();
    for path in [&of_job(&job), "/v1/events"] {
        let refused = site.request(&format!("GET {path}")).send();
        assert_eq!((refused.status, refused.header("retry-after").as_deref()), (503, Some("5")));
        assert_eq!(refused.json()["code"], "busy");
    }
    // Whoever has a place is served, and others are in what is no stream.
    assert_eq!(open[STREAMS - 1].next().unwrap().name, "status");
    assert_eq!(site.get(&format!("/v1/jobs/{job}"))["status"], "working");
    drop(open.pop());
    until("a place is free", || {
        site.request(&format!("GET {}", of_job(&job))).send().status == 200
    });
}

/// C87: whatever a guest writes is what arrives, and no event is anything else.
#[test]
fn c87_what_a_guest_writes_forges_nothing() {
    let data = Data::new();
    let (_host, site) = data.serve_at_a_port(&[]);
    let long = format!("{}\n", "x".repeat(1 << 20));
    let written = [
        "\n",
        "\r",
        "\r\n",
        "\n\n\r\r",
        "data: forged\n\n",
        "\n\nevent: ended\ndata: {}\n\n",
        "event: x\n",
        ": a comment\n:\n",
        "id: 9\nretry: 1\n",
        "\0\u{1}\u{7f}",
        "\u{2028}\u{2029}\u{85}\u{feff}",
        &long,
        "no end",
    ]
    .concat();
    let of_nothing = run(&site, &["cat"], "");
    let job = run(&site, &["cat"], &written);
    // Characters that come a byte at a time, while somebody reads.
    let cut = run(&site, &["euro", "25", "2"], "");
    let whole = "€✓🦀".repeat(25);
    for (job, written) in [(&of_nothing, ""), (&job, &written), (&cut, &whole)] {
        let at_once = site.events(&of_job(job), None).rest();
        assert_eq!(site.end(job)["status"], "completed");
        for told in [at_once, site.events(&of_job(job), None).rest()] {
            assert!(output(&told) == written.as_bytes(), "{} bytes", output(&told).len());
            let (last, before) = told.split_last().unwrap();
            assert_eq!(last.name, "ended");
            assert!(before.iter().all(|it| ["output", "status"].contains(&it.name.as_str())));
        }
        assert!(data.run(["logs", job]).stdout == *written);
    }
}

/// The exit codes of commands that follow a job, by how it ends (C88).
const ENDINGS: [(&str, i32); 3] = [("return", 0), ("fail", 1), ("trap", 1)];

/// C88: by the command line and by a stream, from the beginning, near the end and after it.
#[test]
fn c88_who_follows_a_job_to_its_end_sees_everything() {
    const BYTES: u64 = 5_000_000;
    let data = Data::new();
    let (_host, site) = data.serve_at_a_port(&[]);
    for (stop_at, code) in ENDINGS {
        let input = json!({"mode": "flood", "bytes": BYTES, "stop_at": stop_at});
        let text = input.to_string();
        let attached = data.start(["run", "faulty", "--input", &text]);
        let job = site.spawn("faulty", &input);
        let early = {
            let (site, path) = (site.clone(), of_job(&job));
            thread::spawn(move || site.events(&path, None).rest())
        };
        let logs = data.start(["logs", "--follow", &job]);
        // Once most of it is there, and the end is near.
        let path = format!("/v1/jobs/{job}/output?after={}&wait_ms=50000&max=1", BYTES - 100_000);
        site.get(&path);
        let late = site.events(&of_job(&job), None).rest();
        assert_eq!(site.end(&job)["live"], false);
        let after = site.events(&of_job(&job), None).rest();
        let whole = output(&after);
        assert!(whole.len() as u64 >= BYTES, "{}", whole.len());
        assert!(whole.starts_with(b"line 1\nline 2\n"));
        for told in [&early.join().unwrap(), &late, &after] {
            assert!(output(told) == whole, "{stop_at}: {} bytes", output(told).len());
            assert_eq!(told.last().unwrap().name, "ended", "{stop_at}");
        }
        let whole = String::from_utf8(whole).unwrap();
        let (attached, logs) = (attached.wait(), logs.wait());
        assert_eq!(attached.code, Some(code), "{stop_at}: {}", attached.stderr);
        assert!(attached.stdout == whole, "{stop_at}: {} bytes", attached.stdout.len());
        assert!(logs.stdout == whole, "{stop_at}: {} bytes", logs.stdout.len());
        assert_eq!(data.run(["wait", &job]).code, Some(code), "{stop_at}");
    }
}

/// C93 for what a host is asked: a reader that has enough ends the command, and nothing else.
#[test]
fn c93_a_reader_that_has_enough_ends_no_job() {
    let data = Data::new();
    let (_host, site) = data.serve_at_a_port(&[]);
    let done = site.spawn("ticker", &lines(10_000));
    let live = site.spawn("ticker", &json!({"count": 1_000_000, "every_ms": 1}));
    site.end(&done);
    let piped = |args: &[&str], reader: &str| {
        let script = format!(r#"{{ "$@"; echo "code $?" >&2; }} | {reader}"#);
        let ended = Process::shell_with(&script, args, |command| data.name_to(command)).wait();
        let (errors, code) = ended.stderr.trim_end().rsplit_once("code ").unwrap();
        let code: i32 = code.parse().unwrap();
        assert!(matches!(code, 0 | 141), "{args:?} | {reader}: {code} {errors}");
        for word in ["panicked", "RUST_BACKTRACE", "Broken pipe", "os error"] {
            assert!(!errors.contains(word), "{args:?} | {reader}: {errors}");
        }
        ended.stdout
    };
    assert_eq!(piped(&["logs", &done], "head -1"), "line 1\n");
    assert_eq!(piped(&["logs", "--json", &done], "true"), "");
    assert_eq!(piped(&["ps", "--json"], "true"), "");
    assert_eq!(piped(&["ps"], "true"), "");
    assert_eq!(piped(&["show", "--json", &done], "head -c 1"), "{");
    assert_eq!(piped(&["logs", "--follow", &live], "grep -m1 'line 7'"), "line 7\n");
    assert_eq!(site.get(&format!("/v1/jobs/{live}"))["status"], "working");
    // What was not written is still there to be read.
    assert_eq!(data.run(["logs", &done]).stdout, ticks(10_000));
}

/// C90: whoever is connected when the host is told to end.
#[test]
fn c90_open_streams_and_waits_end_with_the_host() {
    use backlot_tests::{Agent, Asks as _, Remote, text, waiting};

    let data = Data::new();
    let (host, site) = data.serve_at_a_port(&["--expose", "*"]);
    // It stays, so that the host waits for nothing but the stop of a job that obeys.
    let mut stdio = Agent::start(&data, &["--session", "editor"]);
    let mut remote = Remote::begin(&site);
    let job = remote.spawn("ticker", &long());
    let task = stdio.spawn("ticker", &long());
    let mut of_jobs = site.events("/v1/events", None);
    let mut of_output = site.events(&of_job(&job), None);
    assert_eq!(of_jobs.next().unwrap().name, "snapshot");
    assert_eq!(of_output.next().unwrap().name, "status");
    let told = remote.listen();
    let (listening, subscribed) = Remote::stateless(&site)
        .send("subscriptions/listen", &json!({"notifications": {"toolsListChanged": true}}));
    let mut subscribed = Response::read(subscribed).unwrap().events();
    let acknowledged = subscribed.next().unwrap().json();
    assert_eq!(acknowledged["method"], "notifications/subscriptions/acknowledged");
    let wait = site.request(&format!("GET /v1/jobs/{job}?wait_ms=60000")).leave();
    let (called, call) = remote.send("tools/call", &waiting(&job));
    let asked = stdio.send("tools/call", &waiting(&task));
    // A wait has begun where the host has answered what was asked after it.
    site.get("/v1/health");
    stdio.ask("tools/list", json!({}));
    host.signal("TERM");
    let ended = host.wait();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    // Five seconds, and as many in which jobs may wind down.
    assert!(ended.took.as_secs() < 10, "{:?}", ended.took);
    let last = |events: Events| events.rest().pop().map(|event| event.name);
    assert_eq!(last(of_jobs).as_deref(), Some("closing"));
    let last = last(of_output).unwrap();
    assert!(["closing", "ended"].contains(&last.as_str()), "{last}");
    // These have nothing to say at the end but that it is one.
    told.rest();
    let answers: Vec<Value> = subscribed.map(|event| event.json()).collect();
    assert!(answers.iter().any(|it| it["id"] == listening), "{answers:?}");
    assert_eq!(Response::read(wait).unwrap().json()["id"], *job);
    let called = backlot_tests::answer(Response::read(call).unwrap(), called);
    assert!(text(&called["result"]).contains(&job), "{called}");
    let answer = stdio.answer(asked);
    assert!(text(&answer["result"]).contains(&task), "{answer}");
}
