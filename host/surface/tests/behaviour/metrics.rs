//! What is counted and measured, as those read it who watch hosts.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use backlot_jobs::RunEnding;
use backlot_registry::{
    Change, Form, Generation, GenerationView, Kind, KindDescriptor, KindState, KindView,
};
use backlot_surface::wire::{HandView, ListQuery};

use crate::harness::{Host, of_kind, raw};

/// Asks for the metrics in a form, and returns head and body.
async fn page(host: &Host, more: &str) -> (String, String) {
    let request = format!("GET /metrics HTTP/1.1\r\nhost: h\r\nconnection: close\r\n{more}\r\n");
    let answer = raw(host, request.as_bytes()).await;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

const OPEN: &str = "accept: application/openmetrics-text; version=1.0.0, text/plain;q=0.5\r\n";

/// Returns every sample by its name and labels.
fn samples(body: &str) -> BTreeMap<String, f64> {
    let lines = body.lines().filter(|line| !line.starts_with('#'));
    let sample = |line: &str| {
        let (name, value) = line.rsplit_once(' ').unwrap();
        (name.to_owned(), value.parse().unwrap())
    };
    let read: Vec<(String, f64)> = lines.map(sample).collect();
    let count = read.len();
    let read: BTreeMap<String, f64> = read.into_iter().collect();
    assert_eq!(read.len(), count, "a sample is there twice: {body}");
    read
}

async fn samples_of(host: &Host) -> BTreeMap<String, f64> {
    samples(&page(host, "").await.1)
}

fn view(kind: &str, state: KindState, tasks: usize) -> KindView {
    let descriptor = KindDescriptor { summary: "s".into(), input_schema: None, form: Form::Stream };
    let generation = GenerationView {
        generation: Generation { number: 1, digest: "sha256:00".into() },
        contract: None,
        loaded_at_ms: 1,
        tasks,
        kept: false,
        descriptor: Arc::new(descriptor),
    };
    KindView {
        kind: Kind::new(kind).unwrap(),
        state,
        current: Some(generation),
        earlier: Vec::new(),
        trouble: None,
    }
}

#[tokio::test]
async fn the_metrics_and_what_they_mean() {
    let host = Host::start().await;
    let (head, body) = page(&host, "").await;
    assert!(head.contains("content-type: text/plain; version=0.0.4; charset=utf-8"), "{head}");
    let told = body.lines().filter_map(|line| line.strip_prefix("# "));
    let told = told.map(|line| line.strip_prefix("HELP ").unwrap_or(line));
    let told: Vec<&str> = told.collect();
    let expected = "\
backlot_jobs Jobs by where they stand; queued ones wait for a place or their time
TYPE backlot_jobs gauge
backlot_jobs_owed Jobs whose ending is owed to somebody
TYPE backlot_jobs_owed gauge
backlot_changes_unwritten Changes of jobs that could not be written yet and are tried again
TYPE backlot_changes_unwritten gauge
backlot_report_panics_total Reports of changes that panicked
TYPE backlot_report_panics_total counter
backlot_job_spawns_total Jobs that were spawned, also those whose first run could not be launched
TYPE backlot_job_spawns_total counter
backlot_job_endings_total Endings of jobs; one that is tried again ends again
TYPE backlot_job_endings_total counter
backlot_job_retries_total Attempts after the first, by the kind of their first run
TYPE backlot_job_retries_total counter
backlot_run_duration_seconds How long runs took, from when they were claimed to their end
TYPE backlot_run_duration_seconds histogram
backlot_output_recorded_bytes_total Output of runs that was taken to be recorded
TYPE backlot_output_recorded_bytes_total counter
backlot_task_capacity Tasks of components that can live at a time
TYPE backlot_task_capacity gauge
backlot_tasks_live Tasks of components that live
TYPE backlot_tasks_live gauge
backlot_guest_memory_bytes Linear memory that guests have; what they never touched takes no room
TYPE backlot_guest_memory_bytes gauge
backlot_output_memory_bytes Output of tasks that is held in memory
TYPE backlot_output_memory_bytes gauge
backlot_output_spilled_bytes Output of tasks that is held in files
TYPE backlot_output_spilled_bytes gauge
backlot_kinds Kinds of work by whether tasks of them can be started
TYPE backlot_kinds gauge
backlot_tasks Tasks that live, by kind
TYPE backlot_tasks gauge
backlot_kind_reloads_total Versions of kinds that became current
TYPE backlot_kind_reloads_total counter
backlot_kind_reloads_refused_total Versions of kinds that were offered and not taken
TYPE backlot_kind_reloads_refused_total counter
backlot_http_requests_total Requests that were answered, by address and status
TYPE backlot_http_requests_total counter
backlot_http_streams Streams of events that are open
TYPE backlot_http_streams gauge
process_start_time_seconds When the process was started, since the Unix epoch
TYPE process_start_time_seconds gauge
process_resident_memory_bytes Memory of the process that is resident
TYPE process_resident_memory_bytes gauge
process_open_fds File descriptors that are open
TYPE process_open_fds gauge";
    assert_eq!(told.join("\n"), expected, "\n{}", told.join("\n"));
    let samples = samples(&body);
    assert!(samples["process_resident_memory_bytes"] > 1e6, "{samples:?}");
    assert!(samples["process_open_fds"] > 3.0, "{samples:?}");
    assert!(samples["process_start_time_seconds"] > 1e9, "{samples:?}");
}

#[tokio::test]
async fn the_same_in_the_form_of_openmetrics() {
    let host = Host::start().await;
    let (head, body) = page(&host, OPEN).await;
    let kind = "content-type: application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert!(head.contains(kind), "{head}");
    assert!(body.ends_with("# EOF\n"), "{body}");
    assert!(body.contains("# UNIT backlot_run_duration_seconds seconds\n"), "{body}");
    let plain = samples_of(&host).await;
    let open = samples(&body);
    // The two differ in how they write labels.
    let names = |samples: &BTreeMap<String, f64>| -> BTreeSet<String> {
        let name = |name: &String| name.split('{').next().unwrap().to_owned();
        // Each request is counted once it is answered.
        samples.keys().map(name).filter(|name| !name.contains("_http_requests")).collect()
    };
    assert_eq!(names(&open), names(&plain));
}

#[tokio::test]
async fn jobs_are_counted_once_by_kind_and_ending() {
    let host = Host::start().await;
    let client = host.client().await;
    let done = host.spawn("park").await;
    host.end(&done, RunEnding::Completed, "out").await;
    let failing = host.spawn("park").await;
    host.end(&failing, RunEnding::Failed, "").await;
    client.retry(&failing.id.to_string(), HandView::Person).await.unwrap();
    host.end(&failing, RunEnding::Failed, "").await;
    let asking = host.spawn("ask").await;
    host.end(&asking, RunEnding::Completed, "").await;
    host.spawn("park").await;
    client.spawn(&of_kind("wrong")).await.unwrap_err();

    let samples = samples_of(&host).await;
    let expected = [
        (r#"backlot_jobs{status="working"}"#, 1.0),
        (r#"backlot_jobs{status="queued"}"#, 0.0),
        (r#"backlot_jobs{status="input_required"}"#, 1.0),
        (r#"backlot_jobs{status="ended"}"#, 2.0),
        ("backlot_jobs_owed", 2.0),
        (r#"backlot_job_spawns_total{kind="park"}"#, 3.0),
        (r#"backlot_job_spawns_total{kind="ask"}"#, 1.0),
        (r#"backlot_job_spawns_total{kind="wrong"}"#, 1.0),
        (r#"backlot_job_spawns_total{kind="other"}"#, 0.0),
        (r#"backlot_job_endings_total{kind="park",status="completed"}"#, 1.0),
        (r#"backlot_job_endings_total{kind="park",status="failed"}"#, 2.0),
        (r#"backlot_job_endings_total{kind="park",status="cancelled"}"#, 0.0),
        (r#"backlot_job_endings_total{kind="ask",status="completed"}"#, 0.0),
        (r#"backlot_job_retries_total{kind="park"}"#, 1.0),
        (r#"backlot_job_retries_total{kind="ask"}"#, 0.0),
        (r#"backlot_run_duration_seconds_count{kind="park"}"#, 3.0),
        (r#"backlot_run_duration_seconds_bucket{kind="park",le="+Inf"}"#, 3.0),
        (r#"backlot_run_duration_seconds_count{kind="ask"}"#, 1.0),
        (r#"backlot_run_duration_seconds_count{kind="wrong"}"#, 0.0),
        ("backlot_task_capacity", 100.0),
        ("backlot_tasks_live", 3.0),
        ("backlot_guest_memory_bytes", 65_536.0),
    ];
    for (name, value) in expected {
        assert_eq!(samples.get(name), Some(&value), "{name}: {samples:#?}");
    }
}

#[tokio::test]
async fn requests_are_counted_by_address_and_not_by_what_it_names() {
    let host = Host::start().await;
    let job = host.spawn("park").await;
    let client = host.client().await;
    for id in [job.id.to_string(), "0".repeat(32), "zz".to_owned()] {
        let _ = client.job(&id, &Default::default()).await;
    }
    client.jobs(&ListQuery::default()).await.unwrap();
    for path in ["/", "/v1/made/up", "/v1/jobs/1/2/3"] {
        raw(
            &host,
            format!("GET {path} HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n").as_bytes(),
        )
        .await;
    }
    let samples = samples_of(&host).await;
    let requests: Vec<(&str, f64)> = samples
        .iter()
        .filter_map(|(name, value)| {
            Some((name.strip_prefix("backlot_http_requests_total")?, *value))
        })
        .collect();
    assert_eq!(
        requests,
        [
            (r#"{route="/v1/jobs",status="2xx"}"#, 2.0),
            (r#"{route="/v1/jobs/{id}",status="2xx"}"#, 1.0),
            (r#"{route="/v1/jobs/{id}",status="4xx"}"#, 2.0),
            (r#"{route="other",status="4xx"}"#, 3.0),
        ]
    );
}

#[tokio::test]
async fn kinds_their_tasks_and_their_reloads() {
    let host = Host::start().await;
    let generation = Generation { number: 1, digest: "sha256:00".into() };
    let kind = Kind::new("a").unwrap();
    let kinds = || {
        vec![
            view("a", KindState::Serving, 2),
            view("b", KindState::Serving, 0),
            view("c", KindState::Broken, 0),
        ]
    };
    let swapped = || Change::Swapped { kind: kind.clone(), generation: generation.clone() };
    host.script.set_kinds(kinds(), swapped());
    host.script.set_kinds(kinds(), swapped());
    host.script.set_kinds(kinds(), Change::Refused { kind: kind.clone(), why: "bad".into() });
    host.script.set_kinds(kinds(), Change::Freed { kind, generation });
    let samples = loop {
        let samples = samples_of(&host).await;
        // Changes come one after the other, and this is the last that is counted.
        if samples["backlot_kind_reloads_refused_total"] > 0.0 {
            break samples;
        }
    };
    let expected = [
        ("backlot_kind_reloads_total", 2.0),
        ("backlot_kind_reloads_refused_total", 1.0),
        (r#"backlot_kinds{state="serving"}"#, 2.0),
        (r#"backlot_kinds{state="broken"}"#, 1.0),
        (r#"backlot_kinds{state="draining"}"#, 0.0),
        (r#"backlot_tasks{kind="a"}"#, 2.0),
        (r#"backlot_tasks{kind="c"}"#, 0.0),
    ];
    for (name, value) in expected {
        assert_eq!(samples.get(name), Some(&value), "{name}: {samples:#?}");
    }
}

#[tokio::test]
async fn who_is_kept_to_a_session_sees_none_of_it() {
    let host = Host::start().await;
    let (head, body) = page(&host, "backlot-session: chat\r\n").await;
    assert!(head.starts_with("HTTP/1.1 403 "), "{head}");
    assert!(!body.contains("backlot_"), "{body}");
}
