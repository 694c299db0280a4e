//! Connections: how many there are, how they end, and a host that ends.

use std::time::Duration;

use backlot_jobs::{RunEnding, Status};
use backlot_surface::{
    Client, ClientError,
    wire::{ListQuery, LookQuery, OutputQuery},
};
use tokio::{
    io::AsyncWriteExt as _,
    time::{Instant, sleep},
};

use crate::harness::{Host, of_kind, read_all, until};

#[tokio::test]
async fn where_nobody_listens_there_is_no_host() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let missing = Client::connect(&socket).await.unwrap_err();
    assert!(matches!(&missing, ClientError::NoHost { path } if *path == socket));
    assert_eq!(missing.exit(), 3);
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    let dead = Client::connect(&socket).await.unwrap_err();
    assert!(matches!(dead, ClientError::NoHost { .. }));
    std::fs::remove_file(&socket).unwrap();
    std::fs::write(&socket, "").unwrap();
    let file = Client::connect(&socket).await.unwrap_err();
    // What is no socket refuses, as one that nobody listens at does.
    assert!(matches!(file, ClientError::NoHost { .. }), "{file}");
}

#[tokio::test(start_paused = true)]
async fn a_client_outlives_the_connections_that_it_had() {
    let mut host = Host::start().await;
    let client = host.client().await;
    for pause in [0, 4, 10, 60] {
        sleep(Duration::from_secs(pause)).await;
        client.jobs(&ListQuery::default()).await.unwrap();
    }
    host.close().await;
    let gone = client.jobs(&ListQuery::default()).await.unwrap_err();
    assert!(matches!(gone, ClientError::NoHost { .. }), "{gone}");
}

#[tokio::test]
async fn many_ask_one_client_at_once() {
    let host = Host::start().await;
    let client = host.client().await;
    let request = of_kind("park");
    let spawns = (0..32).map(|_| client.spawn(&request));
    let spawned = futures::future::try_join_all(spawns).await.unwrap();
    let looks = spawned.iter().map(|job| {
        let id = job.id.to_string();
        let client = &client;
        async move { client.job(&id, &LookQuery::default()).await }
    });
    let looked = futures::future::try_join_all(looks).await.unwrap();
    for (spawned, looked) in spawned.iter().zip(&looked) {
        assert_eq!(spawned.id, looked.id);
    }
}

#[tokio::test]
async fn two_clients_see_one_host() {
    let host = Host::start().await;
    let (one, other) = (host.client().await, host.client().await);
    let job = one.spawn(&of_kind("park")).await.unwrap();
    let id = job.id.to_string();
    let query = LookQuery { wait_ms: Some(60_000), hand: None };
    let stop = Default::default();
    let (seen, stopped) = tokio::join!(one.job(&id, &query), other.stop(&id, &stop));
    stopped.unwrap();
    assert_eq!(seen.unwrap().status, Status::Cancelled);
}

#[tokio::test]
async fn a_spawn_goes_on_without_the_one_who_asked() {
    let host = Host::start().await;
    let client = host.client().await;
    let gate = std::sync::Arc::new(tokio::sync::Notify::new());
    *host.script.gate.lock().unwrap() = Some(gate.clone());
    let request = of_kind("park");
    tokio::select! {
        _ = client.spawn(&request) => panic!("it is held back"),
        () = until("the request", || !host.script.requests.lock().unwrap().is_empty()) => {}
    }
    // By then the host has noticed that nobody is there any more.
    for _ in 0..3 {
        host.client().await.health().await.unwrap();
    }
    gate.notify_one();
    let spawned = tokio::time::timeout(Duration::from_secs(10), async {
        loop {
            if let [job] = &client.jobs(&ListQuery::default()).await.unwrap().jobs[..] {
                break job.status;
            }
        }
    });
    assert_eq!(spawned.await.unwrap(), Status::Working);
}

#[tokio::test(start_paused = true)]
async fn who_waits_is_answered_when_the_host_ends() {
    let mut host = Host::start().await;
    let (one, other) = (host.client().await, host.client().await);
    let job = host.spawn("park").await;
    let id = job.id.to_string();
    let look = LookQuery { wait_ms: Some(60_000), hand: None };
    let follow = OutputQuery { wait_ms: Some(60_000), ..OutputQuery::default() };
    let begun = Instant::now();
    let script = host.script.clone();
    let close = async {
        until("the follower", || script.followers(job.id) == 1).await;
        host.close().await;
    };
    let (looked, followed, ()) =
        tokio::join!(one.job(&id, &look), other.output(&id, &follow), close);
    assert_eq!(looked.unwrap().status, Status::Working);
    assert!(!followed.unwrap().ended);
    // Nor are connections waited for that nobody asks anything on.
    assert_eq!(begun.elapsed().as_secs(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_host_does_not_wait_for_who_never_reads() {
    let mut host = Host::start().await;
    let job = host.spawn("park").await;
    let work = host.folder.work(job.id);
    std::fs::create_dir_all(&work).unwrap();
    std::fs::write(work.join("large"), vec![0; 8 << 20]).unwrap();
    let mut stream = host.stream().await;
    let request = format!("GET /v1/jobs/{}/files/large HTTP/1.1\r\nhost: x\r\n\r\n", job.id);
    stream.write_all(request.as_bytes()).await.unwrap();
    stream.readable().await.unwrap();
    let begun = Instant::now();
    host.close().await;
    assert!(begun.elapsed() <= Duration::from_secs(6), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn one_too_many_is_told_so() {
    let host = Host::start().await;
    let job = host.spawn("park").await;
    let follow =
        format!("GET /v1/jobs/{}/output?wait_ms=60000 HTTP/1.1\r\nhost: x\r\n\r\n", job.id);
    let mut followers = Vec::new();
    // The connection of `spawn` may still be there.
    while host.script.followers(job.id) < 255 {
        let mut stream = host.stream().await;
        stream.write_all(follow.as_bytes()).await.unwrap();
        followers.push(stream);
        let wanted = followers.len().min(255);
        until("the follower", || host.script.followers(job.id) >= wanted).await;
    }
    let mut refused = None;
    for _ in 0..3 {
        let mut stream = host.stream().await;
        stream.write_all(b"GET /v1/health HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        stream.readable().await.unwrap();
        let mut head = [0; 12];
        stream.try_read(&mut head).unwrap();
        if &head == b"HTTP/1.1 503" {
            let rest = read_all(&mut stream).await;
            assert!(rest.contains("\"code\":\"busy\""), "{rest}");
            refused = Some(());
            break;
        }
        followers.push(stream);
    }
    refused.expect("the 257th connection is turned away");
    // Once others are gone there is room again.
    drop(followers);
    until("their end", || host.script.followers(job.id) == 0).await;
    let client = host.client().await;
    let ended = host.end(&job, RunEnding::Completed, "").await;
    assert_eq!(client.job(&ended.id.to_string(), &LookQuery::default()).await.unwrap().id, job.id);
}
