//! Live streams: output as it comes, and what becomes of jobs.

use std::time::Duration;

use axum::{body::Body, http::Request};
use backlot_jobs::{JobId, RunEnding, output::Stream};
use backlot_surface::{
    router,
    wire::{
        AnswerRequest, HandView, ListQuery, OutputQuery, SpawnRequest, StopRequest, TasksQuery,
    },
};
use bytes::Bytes;
use data_encoding::BASE64;
use http_body_util::BodyExt as _;
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;
use tokio::time::{Instant, timeout};

use crate::harness::{Events, Host, Told, of_kind, raw, until};

/// Returns the bytes of output among events, each of which has to begin where the one
/// before it ended.
fn output(told: &[Told], mut after: u64) -> Vec<u8> {
    let mut all = Vec::new();
    for told in told.iter().filter(|told| told.name == "output") {
        let bytes = match (&told.data["text"], &told.data["base64"]) {
            (serde_json::Value::String(text), _) => text.as_bytes().to_vec(),
            (_, base64) => BASE64.decode(base64.as_str().unwrap().as_bytes()).unwrap(),
        };
        after += bytes.len() as u64;
        if let Some(id) = &told.id {
            assert_eq!(*id, after.to_string());
        }
        all.extend(bytes);
    }
    all
}

fn names(told: &[Told]) -> Vec<&str> {
    told.iter().map(|told| told.name.as_str()).collect()
}

fn of_output(id: JobId) -> String {
    format!("/v1/jobs/{id}/stream")
}

fn last(id: &str) -> String {
    format!("Last-Event-ID: {id}\r\n")
}

#[tokio::test]
async fn output_comes_as_it_is_written_and_then_the_end() {
    let host = Host::start().await;
    let job = host.spawn("park").await;
    let mut events = host.events(&of_output(job.id), "").await;
    let status = events.next().await.unwrap();
    assert_eq!((status.name.as_str(), &status.data["status"]), ("status", &"working".into()));
    for (word, id) in [("one", "3"), ("two", "6")] {
        host.record(job.id, Stream::Stdout, word.as_bytes());
        let told = events.next().await.unwrap();
        assert_eq!((told.name.as_str(), told.id.as_deref()), ("output", Some(id)));
        assert_eq!(told.data["text"], word);
        assert_eq!(told.data["stream"], "stdout");
    }
    host.record(job.id, Stream::Log, b"not this");
    host.end(&job, RunEnding::Completed, "done").await;
    let rest = events.rest().await;
    assert_eq!(names(&rest), ["ended"]);
    assert_eq!(rest[0].data["status"], "completed");
    assert_eq!(rest[0].data["id"], job.id.to_string());
    let log = host.events(&format!("{}?part=log", of_output(job.id)), "").await.rest().await;
    assert_eq!(output(&log, 0), b"not this");
}

/// Whatever is written, what arrives is exactly that, and no event of another name.
#[tokio::test]
async fn c87_line_ends_in_output_forge_nothing() {
    let host = Host::start().await;
    let job = host.spawn("park").await;
    let long = format!("{}\n", "x".repeat(1 << 20));
    let written: Vec<&[u8]> = vec![
        b"\n",
        b"\r",
        b"\r\n",
        b"\n\n",
        b"data: forged\n\n",
        b"\n\nevent: ended\ndata: {}\n\n",
        b":\n: a comment\n",
        b"id: 9\nretry: 1\n",
        b"\0\x01\x7f",
        "\u{2028}\u{2029}\u{85}\u{feff}".as_bytes(),
        b"\xff\xfe\xc3",
        b"\xa9",
        long.as_bytes(),
        b"",
    ];
    for bytes in &written {
        host.record(job.id, Stream::Stdout, bytes);
    }
    host.end(&job, RunEnding::Completed, "").await;
    let told = host.events(&of_output(job.id), "").await.rest().await;
    assert_eq!(output(&told, 0), written.concat());
    let (end, before) = told.split_last().unwrap();
    assert!(before.iter().all(|told| told.name == "output"));
    assert_eq!(end.name, "ended");
}

#[tokio::test]
async fn c88_all_is_told_before_the_end() {
    let host = Host::start().await;
    let job = host.spawn("park").await;
    let lines: Vec<String> = (0..50).map(|it| format!("{}{it:09}\n", "x".repeat(99_990))).collect();
    let whole = lines.concat();
    let mut early = host.events(&of_output(job.id), "").await;
    early.next().await.unwrap();
    let write = async {
        for line in &lines[..40] {
            host.record(job.id, Stream::Stdout, line.as_bytes());
        }
        // Just before the end, when most of it is still to be sent to who was there.
        let late = host.events(&of_output(job.id), "").await;
        for line in &lines[40..] {
            host.record(job.id, Stream::Stdout, line.as_bytes());
        }
        host.end(&job, RunEnding::Failed, "").await;
        late
    };
    let (early, mut late) = tokio::join!(early.rest(), write);
    let late = late.rest().await;
    let after = host.events(&of_output(job.id), "").await.rest().await;
    for told in [early, late, after] {
        let got = output(&told, 0);
        assert_eq!((got.len(), got == whole.as_bytes()), (5_000_000, true));
        assert_eq!(told.last().unwrap().name, "ended");
        assert_eq!(told.last().unwrap().data["status"], "failed");
    }
}

/// Whoever begins, breaks off and comes back at any moment gets every byte once.
#[tokio::test]
async fn c86_there_is_no_hole_wherever_one_comes_back() {
    let host = Host::start().await;
    let job = host.spawn("park").await;
    let lines: Vec<String> = (0..400).map(|it| format!("tick {it} größe\n")).collect();
    let write = async {
        for (place, line) in lines.iter().enumerate() {
            // Characters are cut, and another stream says something meanwhile.
            let cut = line.len() - 4;
            host.record(job.id, Stream::Stdout, &line.as_bytes()[..cut]);
            if place % 3 == 0 {
                host.record(job.id, Stream::Stderr, b"!");
            }
            host.record(job.id, Stream::Stdout, &line.as_bytes()[cut..]);
            tokio::task::yield_now().await;
        }
        host.end(&job, RunEnding::Completed, "").await;
    };
    let read = async |cut: usize| {
        let (mut all, mut id) = (Vec::new(), "0".to_owned());
        loop {
            let mut events = host.events(&of_output(job.id), &last(&id)).await;
            let mut held = Vec::new();
            let mut seen = 0;
            while let Some(told) = events.next().await {
                seen += 1;
                let is_end = told.name == "ended";
                // What stands before an id is had, and what comes after it comes again.
                held.push(told.clone());
                if let Some(next) = told.id {
                    all.append(&mut held);
                    id = next;
                }
                if is_end {
                    return all;
                }
                if seen >= cut && held.is_empty() {
                    break;
                }
            }
        }
    };
    let readers = (1..40).map(read);
    let (read, ()) = tokio::join!(futures::future::join_all(readers), write);
    let of = |told: &[Told], stream: &str| {
        let of = told.iter().filter(|told| told.data["stream"] == stream);
        let texts = of.map(|told| told.data["text"].as_str().unwrap_or("?").to_owned());
        texts.collect::<String>()
    };
    for told in read {
        assert_eq!(of(&told, "stdout"), lines.concat());
        assert_eq!(of(&told, "stderr"), "!".repeat(134));
    }
}

#[tokio::test]
async fn who_comes_back_begins_behind_what_it_has() {
    let host = Host::start().await;
    let job = host.spawn("park").await;
    host.record(job.id, Stream::Stdout, b"hello world");
    host.end(&job, RunEnding::Completed, "").await;
    let read = async |query: &str, headers: &str| {
        let path = format!("{}{query}", of_output(job.id));
        host.events(&path, headers).await.rest().await
    };
    for after in 0..=11 {
        let told = read(&format!("?after={after}"), "").await;
        assert_eq!(output(&told, after), b"hello world"[after as usize..]);
        let told = read("?after=3", &last(&after.to_string())).await;
        assert_eq!(output(&told, after), b"hello world"[after as usize..]);
    }
    assert_eq!(names(&read("?after=99", "").await), ["ended"]);
    for bad in ["x", "-1", "1.5", ""] {
        let request = format!(
            "GET {} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{}\r\n",
            of_output(job.id),
            last(bad)
        );
        let answer = raw(&host, request.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    }
}

#[tokio::test]
async fn where_a_job_stands_is_told_as_it_changes() {
    let host = Host::start().await;
    let job = host.spawn("ask").await;
    let mut events = host.events(&of_output(job.id), "").await;
    assert_eq!(events.next().await.unwrap().data["status"], "working");
    host.record(job.id, Stream::Stdout, b"before");
    host.script.end(job.id, RunEnding::Completed, "");
    let told = events.next().await.unwrap();
    assert_eq!(output(&[told], 0), b"before");
    let asked = events.next().await.unwrap();
    assert_eq!((asked.name.as_str(), &asked.data["status"]), ("status", &"input_required".into()));
    assert_eq!(asked.data["question"]["prompt"], "go on?");
    let answer = AnswerRequest { answer: "true".into() };
    let client = host.client().await;
    client.answer(&job.id.to_string(), &answer, HandView::Person).await.unwrap();
    assert_eq!(events.next().await.unwrap().data["status"], "working");
    client.stop(&job.id.to_string(), &StopRequest::default()).await.unwrap();
    let rest = events.rest().await;
    assert_eq!(names(&rest), ["ended"]);
    assert_eq!(rest[0].data["status"], "cancelled");
}

#[tokio::test]
async fn the_stream_of_a_job_that_is_removed_ends() {
    let host = Host::start().await;
    let job = host.spawn("park").await;
    let mut events = host.events(&of_output(job.id), "").await;
    events.next().await.unwrap();
    host.client().await.delete_session("chat", &Default::default()).await.unwrap();
    // It may see the end before that.
    let rest = events.rest().await;
    assert_eq!(rest.len(), 1);
    assert!(matches!(rest[0].name.as_str(), "ended" | "removed"), "{rest:?}");
}

#[tokio::test(start_paused = true)]
async fn a_silent_stream_is_heard_of_now_and_then() {
    let host = Host::start().await;
    let job = host.spawn("park").await;
    let begun = Instant::now();
    let mut output = host.events(&of_output(job.id), "").await;
    output.next().await.unwrap();
    assert_eq!(output.block().await.unwrap(), ":");
    assert_eq!(begun.elapsed().as_secs(), 15);
    let mut events = host.events("/v1/events", "").await;
    let snapshot = events.next().await.unwrap();
    // The id is told again, so that it does not grow old.
    assert_eq!(events.block().await.unwrap(), format!("id: {}", snapshot.id.unwrap()));
    assert_eq!(output.block().await.unwrap(), ":");
    assert_eq!(begun.elapsed().as_secs(), 30);
}

#[tokio::test(start_paused = true)]
async fn c90_streams_get_a_last_event_when_the_host_ends() {
    let mut host = Host::start().await;
    let job = host.spawn("park").await;
    let mut streams = Vec::new();
    for path in [of_output(job.id), "/v1/events".to_owned()] {
        for _ in 0..10 {
            let mut events = host.events(&path, "").await;
            events.next().await.unwrap();
            streams.push(events);
        }
    }
    let begun = Instant::now();
    host.close().await;
    for events in &mut streams {
        assert_eq!(names(&events.rest().await), ["closing"]);
    }
    assert_eq!(begun.elapsed().as_secs(), 0);
}

/// Returns the jobs of a snapshot, and the id to come back with.
async fn snapshot(events: &mut Events) -> (Vec<String>, String) {
    let mut jobs = Vec::new();
    loop {
        let told = events.next().await.unwrap();
        assert_eq!(told.name, "snapshot", "{told:?}");
        let page = told.data["jobs"].as_array().unwrap();
        jobs.extend(page.iter().map(|job| job["id"].as_str().unwrap().to_owned()));
        if told.data["more"] == false {
            return (jobs, told.id.unwrap());
        }
        assert_eq!(told.id, None);
    }
}

#[tokio::test]
async fn c86_jobs_are_shown_and_then_what_becomes_of_them() {
    let host = Host::start().await;
    let first = host.spawn("park").await;
    let ended = host.spawn("park").await;
    host.end(&ended, RunEnding::Completed, "").await;
    let mut events = host.events("/v1/events", "").await;
    let (jobs, id) = snapshot(&mut events).await;
    assert_eq!(jobs, [first.id.to_string()]);
    let second = host.spawn("park").await;
    host.end(&second, RunEnding::Failed, "no").await;
    let mut told = Vec::new();
    while told.last().is_none_or(|told: &Told| told.data["status"] != "failed") {
        told.push(events.next().await.unwrap());
    }
    assert!(told.iter().all(|it| it.name == "job" && it.data["id"] == second.id.to_string()));
    assert_eq!(told.last().unwrap().data["detail"], "Failed");
    let statuses: Vec<&str> = told.iter().map(|it| it.data["status"].as_str().unwrap()).collect();
    assert!(statuses.is_sorted_by_key(|status| *status == "failed"), "{statuses:?}");
    // Who comes back gets exactly what came since.
    for (place, from) in told.iter().enumerate() {
        let mut again = host.events("/v1/events", &last(from.id.as_deref().unwrap())).await;
        for expected in &told[place + 1..] {
            assert_eq!(again.next().await.unwrap(), *expected);
        }
    }
    let mut again = host.events(&format!("/v1/events?after={id}"), "").await;
    assert_eq!(again.next().await.unwrap(), told[0]);
    host.client().await.remove(&second.id.to_string()).await.unwrap();
    let removed = events.next().await.unwrap();
    assert_eq!(removed.name, "removed");
    assert_eq!(removed.data, serde_json::json!({ "id": second.id.to_string() }));
}

/// However the stream is opened while jobs come and go, what it tells adds up to what is.
#[tokio::test]
async fn c86_no_change_falls_between_the_jobs_and_what_becomes_of_them() {
    let host = Host::start().await;
    let work = async {
        let client = host.client().await;
        for _ in 0..100 {
            let job = client.spawn(&of_kind("park")).await.unwrap();
            host.script.end(job.id, RunEnding::Completed, "");
        }
        host.spawn("park").await
    };
    let watch = async |delay: u32| {
        for _ in 0..delay * 20 {
            tokio::task::yield_now().await;
        }
        let mut events = host.events("/v1/events", "").await;
        let (jobs, _) = snapshot(&mut events).await;
        let mut live = std::collections::HashSet::<String>::from_iter(jobs);
        (events, move |told: &Told| {
            assert_eq!(told.name, "job");
            let id = told.data["id"].as_str().unwrap().to_owned();
            match told.data["live"].as_bool().unwrap() || told.data["status"] == "queued" {
                true => live.insert(id),
                false => live.remove(&id),
            };
            live.clone()
        })
    };
    let watchers = futures::future::join_all((0..50).map(watch));
    let (watchers, last) = tokio::join!(watchers, work);
    let marker = host.spawn("park").await.id.to_string();
    let expected = std::collections::HashSet::from([last.id.to_string(), marker.clone()]);
    for (mut events, mut hear) in watchers {
        loop {
            let told = events.next().await.unwrap();
            let live = hear(&told);
            if told.data["id"] == marker && told.data["run"]["task"] == "task-1" {
                // Some ends may be told after it.
                let mut live = live;
                while live != expected {
                    live = hear(&events.next().await.unwrap());
                }
                break;
            }
        }
    }
}

#[tokio::test]
async fn who_was_away_too_long_begins_anew() {
    let host = Host::start().await;
    let job = host.spawn("park").await;
    let mut events = host.events("/v1/events", "").await;
    let (_, id) = snapshot(&mut events).await;
    let shown = host.manager.get(job.id, &backlot_registry::Caller::Operator).await.unwrap();
    // One that does not read meanwhile is no better off than one that was away. What its
    // connection holds is not enough for all of that.
    for _ in 0..6_000 {
        host.script.feed.changed(&shown);
    }
    let mut told = events.next().await.unwrap();
    while told.name == "job" {
        told = events.next().await.unwrap();
    }
    assert_eq!((told.name.as_str(), told.id), ("reset", None));
    assert_eq!(snapshot(&mut events).await.0, [job.id.to_string()]);
    let mut again = host.events("/v1/events", &last(&id)).await;
    assert_eq!(again.next().await.unwrap().name, "reset");
    assert_eq!(snapshot(&mut again).await.0, [job.id.to_string()]);
}

/// What was told by the host before is not what this one has told under the same number.
#[tokio::test]
async fn who_comes_back_after_a_restart_begins_anew() {
    let before = Host::start().await;
    before.spawn("park").await;
    let mut events = before.events("/v1/events", "").await;
    let (_, id) = snapshot(&mut events).await;
    let host = Host::start().await;
    let job = host.spawn("park").await;
    for id in [id.as_str(), "", "7", "x-1", "\u{fc}"] {
        let mut again = host.events("/v1/events", &last(id)).await;
        assert_eq!(again.next().await.unwrap().name, "reset", "{id}");
        assert_eq!(snapshot(&mut again).await.0, [job.id.to_string()]);
    }
}

#[tokio::test]
async fn many_jobs_are_shown_in_parts() {
    let config = backlot_jobs::Config {
        limits: backlot_jobs::Limits { per_session: 500, ..backlot_jobs::Config::default().limits },
        ..Default::default()
    };
    let host = Host::start_with(config).await;
    let client = host.client().await;
    let mut spawned = Vec::new();
    for _ in 0..250 {
        spawned.push(client.spawn(&of_kind("park")).await.unwrap().id.to_string());
    }
    spawned.reverse();
    let (jobs, _) = snapshot(&mut host.events("/v1/events", "").await).await;
    assert_eq!(jobs, spawned);
    let (jobs, _) = snapshot(&mut host.events("/v1/events?status=failed", "").await).await;
    assert!(jobs.is_empty());
}

#[tokio::test]
async fn nobody_hears_of_what_is_anothers() {
    let host = Host::start().await;
    let foreign = host.spawn("park").await;
    let narrow = "backlot-session: other\r\n";
    let mut events = host.events("/v1/events", narrow).await;
    assert!(snapshot(&mut events).await.0.is_empty());
    let mut all = host.events("/v1/events", "").await;
    snapshot(&mut all).await;
    let mut failed = host.events("/v1/events?status=failed", "").await;
    snapshot(&mut failed).await;
    host.end(&foreign, RunEnding::Completed, "").await;
    host.client().await.remove(&foreign.id.to_string()).await.unwrap();
    let own = SpawnRequest { session: Some("other".into()), ..of_kind("park") };
    let own = host.client().await.spawn(&own).await.unwrap();
    host.end(&own, RunEnding::Failed, "").await;
    host.client().await.remove(&own.id.to_string()).await.unwrap();
    let mut heard = Vec::new();
    while heard.last().is_none_or(|told: &Told| told.name != "removed") {
        heard.push(events.next().await.unwrap());
    }
    assert!(heard.iter().all(|told| told.data["id"] == own.id.to_string()), "{heard:?}");
    // The operator hears of both, and of those that have failed where that was asked for.
    let mut heard = Vec::new();
    while heard.iter().filter(|told: &&Told| told.name == "removed").count() < 2 {
        heard.push(all.next().await.unwrap());
    }
    let first = failed.next().await.unwrap();
    assert_eq!(first.data["id"], foreign.id.to_string());
    assert_eq!(first.name, "removed");
    assert_eq!(failed.next().await.unwrap().data["status"], "failed");

    let request =
        |path: &str| format!("GET {path} HTTP/1.1\r\nhost: x\r\n{narrow}connection: close\r\n\r\n");
    let foreign = host.spawn("park").await;
    for path in [of_output(foreign.id), of_output(JobId::from_bits(7))] {
        let answer = raw(&host, request(&path).as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 404 ") && answer.contains("unknown_job"), "{answer}");
    }
    let answer = raw(&host, request("/v1/events?session=chat").as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 404 ") && answer.contains("unknown_session"), "{answer}");
}

#[tokio::test]
async fn one_stream_too_many_is_told_when_to_come_again() {
    let host = Host::start().await;
    let job = host.spawn("park").await;
    // Without connections, of which there are fewer.
    let service = TowerToHyperService::new(router(host.api.clone()));
    let open = async |path: String| {
        let request = Request::get(path).body(Body::empty()).unwrap();
        service.call(request).await.unwrap()
    };
    let mut streams = Vec::new();
    for _ in 0..512 {
        streams.push(open(of_output(job.id)).await);
        streams.push(open("/v1/events".into()).await);
    }
    assert!(streams.iter().all(|stream| stream.status() == 200));
    for path in [of_output(job.id), "/v1/events".into()] {
        let full = open(path).await;
        assert_eq!(full.status(), 503);
        assert_eq!(full.headers()["retry-after"], "5");
    }
    streams.pop();
    assert_eq!(open("/v1/events".into()).await.status(), 200);
}

#[tokio::test]
async fn who_goes_away_is_let_go_of() {
    let host = Host::start().await;
    let job = host.spawn("park").await;
    let mut events = host.events(&of_output(job.id), "").await;
    events.next().await.unwrap();
    assert!(host.script.followers(job.id) > 0);
    drop(events);
    until("its end", || host.script.followers(job.id) == 0).await;
}

/// One that reads once and never again holds up neither the others nor the job.
#[tokio::test]
async fn c06_who_never_reads_keeps_nobody() {
    let host = Host::start().await;
    let job = host.spawn("park").await;
    let mut silent = host.events(&of_output(job.id), "").await;
    silent.next().await.unwrap();
    let mut reading = host.events(&of_output(job.id), "").await;
    let line = vec![b'x'; 1 << 20];
    let write = async {
        for _ in 0..8 {
            host.record(job.id, Stream::Stdout, &line);
            tokio::task::yield_now().await;
        }
        host.end(&job, RunEnding::Completed, "").await;
    };
    let both = async { tokio::join!(reading.rest(), write).0 };
    let told = timeout(Duration::from_secs(60), both).await.unwrap();
    assert_eq!(output(&told, 0).len(), 8 << 20);
    drop(silent);
}

/// However much is asked for, an answer is bounded and tells where to go on; nothing is sent
/// twice.
#[tokio::test]
async fn c80_answers_are_bounded_and_go_on() {
    let host = Host::start().await;
    let job = host.spawn("park").await;
    let line = vec![b'x'; 10 << 20];
    host.record(job.id, Stream::Stdout, &line);
    host.end(&job, RunEnding::Completed, "").await;
    let (client, id) = (host.client().await, job.id.to_string());
    let mut query = OutputQuery { max: Some(usize::MAX), ..OutputQuery::default() };
    let (mut read, mut answers) = (0, 0);
    loop {
        let reply = client.output(&id, &query).await.unwrap();
        let bytes: usize = reply.pieces.iter().map(|piece| piece.content.bytes().len()).sum();
        assert!(bytes <= 4 << 20);
        (read, answers, query.after) = (read + bytes, answers + 1, reply.next);
        if reply.ended {
            break;
        }
    }
    assert_eq!((read, answers), (line.len(), 3));
    let told = host.events(&of_output(job.id), "").await.rest().await;
    assert_eq!(output(&told, 0).len(), line.len());
    let texts = told.iter().filter_map(|told| told.data["text"].as_str());
    assert!(texts.clone().all(|text| text.len() <= 32 << 10));
    assert!(client.tasks(&TasksQuery { after: 0, limit: Some(usize::MAX) }).await.is_ok());
    let page = ListQuery { limit: Some(usize::MAX), ..ListQuery::default() };
    assert_eq!(client.jobs(&page).await.unwrap().jobs.len(), 1);
}

/// A thousand who follow one output get all of it, those that are slower too.
#[tokio::test]
async fn a_thousand_follow_one_output() {
    let host = Host::start().await;
    let job = host.spawn("park").await;
    host.record(job.id, Stream::Stdout, &vec![b'-'; 4 << 20]);
    host.end(&job, RunEnding::Completed, "").await;
    let service = TowerToHyperService::new(router(host.api.clone()));
    let follow = async |place: usize| {
        let request = Request::get(of_output(job.id)).body(Body::empty()).unwrap();
        let mut body = service.call(request).await.unwrap().into_body();
        let (mut bytes, mut last) = (0, Bytes::new());
        while let Some(frame) = body.frame().await {
            last = frame.unwrap().into_data().unwrap();
            bytes += last.len();
            for _ in 0..place % 3 {
                tokio::task::yield_now().await;
            }
        }
        assert!(last.starts_with(b"event: ended\n"));
        bytes
    };
    let one = follow(0).await;
    assert!(one > 4 << 20);
    let all = futures::future::join_all((0..1_000).map(follow)).await;
    assert!(all.iter().all(|bytes| *bytes == one));
}
