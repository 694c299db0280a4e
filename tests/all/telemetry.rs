//! Jobs as traces, as a collector of OpenTelemetry hears of them; and the metrics of a host.

use std::{
    collections::BTreeMap,
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    os::unix::net::UnixStream,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use backlot::{
    Config, Holding, HoldingConfig, Host, Jobs, JobsConfig, TelemetryOptions,
    backlot_jobs::{Hand, Job, JobId, Run, Spawn, Status},
    registry::{Caller, Kind, SurfaceGuard},
};
use backlot_tests::{Data, cache, kinds, started};
use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest,
    common::v1::{AnyValue, KeyValue, any_value::Value},
    trace::v1::{Span, status::StatusCode},
};
use prost::Message as _;
use serde_json::json;
use tempfile::TempDir;

/// Far longer than anything here takes.
const LONG: Duration = Duration::from_secs(60);
const ME: Caller = Caller::Operator;
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const CALLER: &str = "b7ad6b7169203331";

/// A collector on a port of its own. Its thread ends with the test.
struct Collector {
    port: u16,
    told: mpsc::Receiver<(String, Span)>,
}

impl Collector {
    /// Starts one that takes all that it is told.
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (tell, told) = mpsc::channel();
        thread::spawn(move || {
            for peer in listener.incoming() {
                let mut peer = peer.unwrap();
                let Some(body) = posted(&mut peer) else { continue };
                let request = ExportTraceServiceRequest::decode(body.as_slice()).unwrap();
                for resource in request.resource_spans {
                    let of = resource.resource.unwrap().attributes;
                    let service = attribute(&of, "service.name");
                    let spans = resource.scope_spans.into_iter().flat_map(|scope| scope.spans);
                    for span in spans {
                        if tell.send((service.clone(), span)).is_err() {
                            return;
                        }
                    }
                }
                let answer = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
                // Who has gone needs no answer.
                let _ = peer.write_all(answer.as_bytes());
            }
        });
        Self { port, told }
    }

    fn base(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Returns so many spans, by their ids.
    fn spans(&self, count: usize) -> BTreeMap<String, Span> {
        let mut spans = BTreeMap::new();
        for _ in 0..count {
            let (service, span) = self.told.recv_timeout(LONG / 3).unwrap();
            assert_eq!(service, "backlot");
            let told_before = spans.insert(hex(&span.span_id), span);
            assert_eq!(told_before, None, "a span is told twice");
        }
        spans
    }

    /// Returns the spans that were told by now and not looked at.
    fn others(&self) -> usize {
        self.told.try_iter().count()
    }
}

/// Reads what is posted for traces.
fn posted(peer: &mut TcpStream) -> Option<Vec<u8>> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        peer.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap().to_lowercase();
    assert!(head.starts_with("post /v1/traces "), "{head}");
    assert!(head.contains("content-type: application/x-protobuf\r\n"), "{head}");
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
    let mut body = vec![0; length.parse().unwrap()];
    peer.read_exact(&mut body).ok()?;
    Some(body)
}

fn hex(id: &[u8]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn attribute(attributes: &[KeyValue], name: &str) -> String {
    let found = attributes.iter().find(|it| it.key == name);
    match found.and_then(|it| it.value.clone()) {
        Some(AnyValue { value: Some(Value::StringValue(text)), .. }) => text,
        Some(AnyValue { value: Some(Value::IntValue(number)), .. }) => number.to_string(),
        _ => String::new(),
    }
}

fn code(span: &Span) -> StatusCode {
    span.status.as_ref().unwrap().code()
}

/// Returns the spans of a name, the first to begin first.
fn named<'a>(spans: &'a BTreeMap<String, Span>, name: &str) -> Vec<&'a Span> {
    let mut spans: Vec<&Span> = spans.values().filter(|span| span.name == name).collect();
    spans.sort_by_key(|span| span.end_time_unix_nano);
    spans
}

/// A host with jobs that are told to a collector.
struct Fixture {
    jobs: Jobs,
    host: Host,
    _surface: SurfaceGuard,
    _data: TempDir,
}

impl Fixture {
    async fn start(collector: &str) -> Self {
        let data = TempDir::new().unwrap();
        let config = Config {
            plugins: kinds(),
            instances: Some(64),
            cache: Some(cache()),
            ..Config::default()
        };
        let host = Host::start(config).unwrap();
        let surface = host.registry().attach_surface("test");
        let mut config = JobsConfig::new(data.path());
        config.telemetry = Some(TelemetryOptions::new(collector).unwrap());
        let (jobs, _) = Jobs::open(&host, config).await.unwrap();
        jobs.manager().open_session("me".into()).await.unwrap();
        Self { jobs, host, _surface: surface, _data: data }
    }

    async fn spawn(&self, kind: &str, input: serde_json::Value, trace: Option<String>) -> JobId {
        let spawn = Spawn::new(Kind::new(kind).unwrap(), "me".into(), input.to_string());
        self.jobs.manager().spawn(Spawn { trace, ..spawn }).await.unwrap().id
    }

    async fn end(&self, id: JobId) -> Job {
        let job = self.jobs.manager().status(id, &ME, LONG, Hand::Person).await.unwrap();
        assert!(job.status().is_terminal(), "{job:?}");
        job
    }

    async fn runs(&self, id: JobId) -> Vec<Run> {
        self.jobs.manager().runs(id, &ME).await.unwrap()
    }

    async fn shutdown(&self) {
        assert!(self.jobs.shutdown(&self.host, LONG).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_a_trace_and_its_runs_are_spans() {
    let collector = Collector::start();
    let it = Fixture::start(&collector.base()).await;
    let steps = json!({"steps": [
        {"kind": "ticker", "input": {"count": 2, "every_ms": 1}},
        {"kind": "noop", "input": ""},
    ]});
    let id = it.spawn("pipeline", steps, None).await;
    let job = it.end(id).await;
    assert_eq!(job.status(), Status::Completed, "{job:?}");
    let runs = it.runs(id).await;
    it.shutdown().await;
    let spans = collector.spans(runs.len() + 1);
    assert_eq!(collector.others(), 0);
    let [root] = named(&spans, "job pipeline")[..] else { panic!("{spans:#?}") };
    assert!(spans.values().all(|span| hex(&span.trace_id) == id.to_string()));
    assert_eq!(hex(&root.parent_span_id), "");
    assert_eq!(root.start_time_unix_nano, job.created_ms * 1_000_000);
    assert_eq!(root.end_time_unix_nano, job.ended().unwrap().at_ms * 1_000_000);
    assert_eq!(code(root), StatusCode::Ok);
    assert_eq!(attribute(&root.attributes, "backlot.job.session"), "me");
    for run in &runs {
        let of = |span: &&Span| attribute(&span.attributes, "backlot.run.id") == run.id.to_string();
        let span = spans.values().find(of).unwrap();
        assert_eq!(span.name, format!("run {}", run.kind));
        assert_eq!(span.parent_span_id, root.span_id);
        assert_eq!(span.start_time_unix_nano, run.started_ms * 1_000_000);
        assert_eq!(span.end_time_unix_nano, run.ended_ms.unwrap() * 1_000_000);
        let digest = &run.code.as_ref().unwrap().digest;
        assert_eq!(attribute(&span.attributes, "backlot.component.digest"), *digest);
        assert_eq!(attribute(&span.attributes, "backlot.step"), run.step.to_string());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_job_that_is_tried_again_stays_in_its_callers_trace() {
    let collector = Collector::start();
    let it = Fixture::start(&collector.base()).await;
    let fail = json!({"mode": "fail", "detail": "no luck"});
    let id = it.spawn("faulty", fail, Some(format!("00-{TRACE}-{CALLER}-01"))).await;
    it.end(id).await;
    it.jobs.manager().retry(id, &ME, Hand::Person).await.unwrap();
    let job = it.end(id).await;
    assert_eq!((job.status(), job.attempt), (Status::Failed, 2), "{job:?}");
    it.shutdown().await;
    let spans = collector.spans(4);
    assert_eq!(collector.others(), 0);
    assert!(spans.values().all(|span| hex(&span.trace_id) == TRACE));
    let [first, again] = named(&spans, "job faulty")[..] else { panic!("{spans:#?}") };
    assert_eq!(hex(&first.parent_span_id), CALLER);
    assert_eq!(again.parent_span_id, first.span_id);
    let runs = named(&spans, "run faulty");
    let parents: Vec<_> = runs.iter().map(|run| &run.parent_span_id).collect();
    assert_eq!(parents, [&first.span_id, &again.span_id]);
    assert_eq!(again.start_time_unix_nano, runs[1].start_time_unix_nano);
    assert!(spans.values().all(|span| code(span) == StatusCode::Error));
    assert!(runs[0].status.as_ref().unwrap().message.contains("no luck"), "{runs:?}");
    assert_eq!(attribute(&again.attributes, "backlot.attempt"), "2");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_does_not_record_its_trace_gets_no_spans_of_it() {
    let collector = Collector::start();
    let it = Fixture::start(&collector.base()).await;
    let quiet = it.spawn("noop", json!(""), Some(format!("00-{TRACE}-{CALLER}-00"))).await;
    it.end(quiet).await;
    // What is no traceparent is as good as none.
    let own = it.spawn("noop", json!(""), Some("nonsense".to_owned())).await;
    it.end(own).await;
    it.shutdown().await;
    let spans = collector.spans(2);
    assert_eq!(collector.others(), 0);
    assert!(spans.values().all(|span| hex(&span.trace_id) == own.to_string()));
}

#[test]
fn a_host_that_is_started_anew_goes_on_with_the_trace_of_its_callers_shell() {
    let collector = Collector::start();
    let data = Data::new();
    let run = |args: &[&str], parent: &str| {
        backlot_tests::Process::start_with(args, |command| {
            command.env("BACKLOT_DATA", data.folder().path());
            command.env("BACKLOT_PLUGINS", kinds());
            command.env("OTEL_EXPORTER_OTLP_ENDPOINT", collector.base());
            command.env("TRACEPARENT", parent);
        })
    };
    let input = json!({"count": 2, "every_ms": 3_600_000}).to_string();
    let parent = format!("00-{TRACE}-{CALLER}-01");
    let mut holder = run(&["run", "ticker", "--json", "--input", &input], &parent);
    let job = started(&mut holder);
    holder.kill();
    assert_eq!(collector.others(), 0);
    let ended = run(&["run", "noop"], "nonsense").wait();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let spans = collector.spans(4);
    let [root] = named(&spans, "job ticker")[..] else { panic!("{spans:#?}") };
    let [run] = named(&spans, "run ticker")[..] else { panic!("{spans:#?}") };
    assert_eq!(attribute(&root.attributes, "backlot.job.id"), job);
    assert_eq!((hex(&root.trace_id).as_str(), hex(&root.parent_span_id).as_str()), (TRACE, CALLER));
    assert_eq!((&run.trace_id, &run.parent_span_id), (&root.trace_id, &root.span_id));
    assert_eq!((code(root), code(run)), (StatusCode::Error, StatusCode::Error));
    assert_eq!(root.status.as_ref().unwrap().message, "interrupted by restart");
    let [other] = named(&spans, "job noop")[..] else { panic!("{spans:#?}") };
    assert_eq!(hex(&other.trace_id), attribute(&other.attributes, "backlot.job.id"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_is_down_or_never_answers_costs_no_job_anything() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let down = TcpListener::bind("127.0.0.1:0").unwrap();
    let ports = [&silent, &down].map(|it| it.local_addr().unwrap().port());
    drop(down);
    for port in ports {
        let it = Fixture::start(&format!("http://127.0.0.1:{port}")).await;
        let mut ids = Vec::new();
        for _ in 0..20 {
            ids.push(it.spawn("noop", json!(""), None).await);
        }
        for id in ids {
            assert_eq!(it.end(id).await.status(), Status::Completed);
        }
        let begun = Instant::now();
        it.shutdown().await;
        // Two seconds are what it waits; the rest is for a machine that is busy.
        assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_measures_its_tasks_and_what_they_write() {
    let data = TempDir::new().unwrap();
    let host =
        Config { plugins: kinds(), instances: Some(64), cache: Some(cache()), ..Config::default() };
    let config = HoldingConfig { host, ..HoldingConfig::new(data.path(), "test") };
    let holding = Holding::start(config).await.unwrap();
    let manager = holding.jobs().manager();
    manager.open_session("me".into()).await.unwrap();
    let ticker = Kind::new("ticker").unwrap();
    let spawn = |count, every_ms| {
        let input = json!({"count": count, "every_ms": every_ms}).to_string();
        manager.spawn(Spawn::new(ticker.clone(), "me".into(), input))
    };
    let ended = spawn(3, 1).await.unwrap();
    let ended = manager.status(ended.id, &ME, LONG, Hand::Person).await.unwrap();
    assert_eq!(ended.status(), Status::Completed, "{ended:?}");
    let result = ended.ended().unwrap().result.clone().unwrap();
    spawn(2, 3_600_000).await.unwrap();
    let socket = holding.jobs().folder().socket_address();
    let asked = tokio::task::spawn_blocking(move || {
        let mut stream = UnixStream::connect(socket).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    });
    let page = asked.await.unwrap();
    let sample = |name: &str| -> f64 {
        let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{name} is missing: {page}")).parse().unwrap()
    };
    assert_eq!(sample("backlot_task_capacity"), 64.0);
    assert_eq!(sample("backlot_tasks_live"), 1.0);
    assert_eq!(sample(r#"backlot_tasks{kind="ticker"}"#), 1.0);
    assert!(sample("backlot_guest_memory_bytes") >= 65_536.0);
    // What the second has written by now is recorded as well.
    assert!(sample("backlot_output_recorded_bytes_total") >= result.len() as f64);
    assert_eq!(sample(r#"backlot_job_spawns_total{kind="ticker"}"#), 2.0);
    assert_eq!(sample(r#"backlot_job_endings_total{kind="ticker",status="completed"}"#), 1.0);
    assert_eq!(sample(r#"backlot_run_duration_seconds_count{kind="ticker"}"#), 1.0);
    assert!(holding.end().await);
}
