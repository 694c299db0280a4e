//! The output of a job, followed as it comes.

use backlot_jobs::{RunEnding, output::Stream};
use backlot_surface::wire::{Content, OutputQuery, OutputReply, PartName, StopRequest, StreamName};
use tokio::time::Instant;

use crate::harness::{Host, code, until};

fn after(after: u64) -> OutputQuery {
    OutputQuery { after, wait_ms: Some(60_000), ..OutputQuery::default() }
}

fn now(query: OutputQuery) -> OutputQuery {
    OutputQuery { wait_ms: None, ..query }
}

fn text(reply: &OutputReply) -> String {
    let texts = reply.pieces.iter().map(|piece| match &piece.content {
        Content::Text(text) => text.clone(),
        Content::Base64(bytes) => format!("{bytes:x?}"),
    });
    texts.collect()
}

#[tokio::test]
async fn output_is_read_part_by_part() {
    let host = Host::start().await;
    let client = host.client().await;
    let job = host.spawn("park").await;
    let id = job.id.to_string();
    let nothing = client.output(&id, &now(after(0))).await.unwrap();
    assert_eq!(nothing, OutputReply::default());
    host.record(job.id, Stream::Stdout, b"hello ");
    host.record(job.id, Stream::Log, b"a line");
    host.record(job.id, Stream::Stderr, b"world\xff");
    let read = client.output(&id, &now(after(0))).await.unwrap();
    assert_eq!((read.next, read.ended), (12, false));
    assert_eq!(read.pieces[0].content, Content::Text("hello ".into()));
    assert_eq!(read.pieces[0].stream, StreamName::Stdout);
    assert_eq!(read.pieces[1].content, Content::Base64(b"world\xff".to_vec()));
    assert_eq!((read.pieces[1].offset, read.pieces[1].run), (6, 1));
    let log = OutputQuery { part: PartName::Log, ..now(after(0)) };
    assert_eq!(text(&client.output(&id, &log).await.unwrap()), "a line");
    let few = OutputQuery { max: Some(4), ..now(after(1)) };
    let few = client.output(&id, &few).await.unwrap();
    assert_eq!((text(&few).as_str(), few.next), ("ello", 5));
}

#[tokio::test(start_paused = true)]
async fn who_follows_is_told_at_once_and_of_the_end() {
    let host = Host::start().await;
    let begun = Instant::now();
    let client = host.client().await;
    let job = host.spawn("park").await;
    let id = job.id.to_string();
    let mut next = 0;
    for word in ["one", "two", "three"] {
        let query = after(next);
        let follow = client.output(&id, &query);
        let record = async {
            until("the follower", || host.script.followers(job.id) > 0).await;
            host.record(job.id, Stream::Stdout, word.as_bytes());
        };
        let (reply, ()) = tokio::join!(follow, record);
        let reply = reply.unwrap();
        assert_eq!((text(&reply).as_str(), reply.ended), (word, false));
        next = reply.next;
    }
    let query = after(next);
    let follow = client.output(&id, &query);
    let end = async {
        until("the follower", || host.script.followers(job.id) > 0).await;
        host.script.end(job.id, RunEnding::Completed, "");
    };
    let (reply, ()) = tokio::join!(follow, end);
    assert_eq!(reply.unwrap(), OutputReply { pieces: vec![], next, ended: true });
    // What is there comes with the end in one.
    let whole = client.output(&id, &after(0)).await.unwrap();
    assert_eq!((text(&whole).as_str(), whole.ended), ("onetwothree", true));
    let part = client.output(&id, &OutputQuery { max: Some(3), ..after(0) }).await.unwrap();
    assert_eq!((text(&part).as_str(), part.ended), ("one", false));
    assert_eq!(begun.elapsed().as_secs(), 0);
}

#[tokio::test]
async fn who_follows_from_many_places_gets_what_is_there() {
    let host = Host::start().await;
    let client = host.client().await;
    let job = host.spawn("park").await;
    let id = job.id.to_string();
    let whole: String = (0..200).map(|number| format!("line {number}\n")).collect();
    for line in whole.split_inclusive('\n') {
        host.record(job.id, Stream::Stdout, line.as_bytes());
    }
    let mut read = String::new();
    let mut next = 0;
    while next < whole.len() as u64 {
        let some = OutputQuery { max: Some(100), ..now(after(next)) };
        let reply = client.output(&id, &some).await.unwrap();
        // Elsewhere in between, and the same once more.
        assert_eq!(client.output(&id, &some).await.unwrap(), reply);
        let first = OutputQuery { max: Some(4), ..now(after(0)) };
        assert_eq!(text(&client.output(&id, &first).await.unwrap()), "line");
        read.push_str(&text(&reply));
        next = reply.next;
    }
    assert_eq!(read, whole);
}

#[tokio::test(start_paused = true)]
async fn who_follows_is_answered_when_the_time_is_over() {
    let host = Host::start().await;
    let client = host.client().await;
    let job = host.spawn("park").await;
    let id = job.id.to_string();
    let begun = Instant::now();
    let quiet = client.output(&id, &after(0)).await.unwrap();
    assert_eq!(quiet, OutputReply::default());
    assert_eq!(begun.elapsed().as_secs(), 60);
    let forever = OutputQuery { wait_ms: Some(u64::MAX), ..after(0) };
    let begun = Instant::now();
    client.output(&id, &forever).await.unwrap();
    assert_eq!(begun.elapsed(), host.manager.config().max_wait);
}

#[tokio::test]
async fn a_character_that_is_being_written_is_waited_for() {
    let host = Host::start().await;
    let client = host.client().await;
    let job = host.spawn("park").await;
    let id = job.id.to_string();
    host.record(job.id, Stream::Stdout, b"a\xf0\x9f");
    let begun = client.output(&id, &after(0)).await.unwrap();
    assert_eq!((text(&begun).as_str(), begun.next), ("a", 1));
    // The rest alone is nothing yet.
    assert_eq!(client.output(&id, &now(after(1))).await.unwrap().next, 1);
    host.record(job.id, Stream::Stdout, b"\x98\x80b");
    let rest = client.output(&id, &after(1)).await.unwrap();
    assert_eq!((text(&rest).as_str(), rest.next), ("😀b", 6));
    // However little is asked for, it goes on.
    let mut read = Vec::new();
    let mut next = 0;
    while next < 6 {
        let one = OutputQuery { max: Some(1), ..now(after(next)) };
        let reply = client.output(&id, &one).await.unwrap();
        assert!(reply.next > next);
        read.extend(reply.pieces.iter().flat_map(|piece| piece.content.bytes().to_vec()));
        next = reply.next;
    }
    assert_eq!(read, "a😀b".as_bytes());
    // What never comes is not waited for.
    host.record(job.id, Stream::Stdout, b"\xf0");
    host.script.end(job.id, RunEnding::Completed, "");
    let query = after(6);
    let mut end = client.output(&id, &query).await.unwrap();
    while !end.ended {
        end = client.output(&id, &query).await.unwrap();
    }
    assert_eq!(text(&end), "[f0]");
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_job_that_asks_is_noticed() {
    let host = Host::start().await;
    let begun = Instant::now();
    let client = host.client().await;
    let job = host.spawn("ask").await;
    let id = job.id.to_string();
    host.end(&job, RunEnding::Completed, "").await;
    let query = after(0);
    let other = host.client().await;
    let stop = StopRequest::default();
    let (reply, stopped) = tokio::join!(client.output(&id, &query), other.stop(&id, &stop));
    stopped.unwrap();
    assert!(reply.unwrap().ended);
    assert!(begun.elapsed().as_secs() < 3, "{:?}", begun.elapsed());
}

#[tokio::test]
async fn two_follow_one_job() {
    let host = Host::start().await;
    let (one, other) = (host.client().await, host.client().await);
    let job = host.spawn("park").await;
    let id = job.id.to_string();
    let query = after(0);
    let record = async {
        until("both", || host.script.followers(job.id) == 2).await;
        host.record(job.id, Stream::Stdout, b"news");
    };
    let (one, other, ()) = tokio::join!(one.output(&id, &query), other.output(&id, &query), record);
    assert_eq!(text(&one.unwrap()), "news");
    assert_eq!(text(&other.unwrap()), "news");
}

#[tokio::test]
async fn a_follower_that_goes_away_is_let_go_of() {
    let host = Host::start().await;
    let client = host.client().await;
    let job = host.spawn("park").await;
    let id = job.id.to_string();
    let query = after(0);
    tokio::select! {
        _ = client.output(&id, &query) => panic!("there is nothing"),
        () = until("the follower", || host.script.followers(job.id) == 1) => {}
    }
    until("its end", || host.script.followers(job.id) == 0).await;
    // The client itself goes on.
    assert_eq!(client.output(&id, &now(after(0))).await.unwrap().next, 0);
}

#[tokio::test]
async fn a_job_that_is_removed_ends_its_followers() {
    let host = Host::start().await;
    let client = host.client().await;
    let job = host.spawn("park").await;
    let id = job.id.to_string();
    let query = after(0);
    let delete = async {
        until("the follower", || host.script.followers(job.id) == 1).await;
        let other = host.client().await;
        other.delete_session("chat", &Default::default()).await.unwrap();
    };
    let (reply, ()) = tokio::join!(client.output(&id, &query), delete);
    // It may see the end before the removal.
    match reply {
        Ok(reply) => assert!(reply.ended),
        gone => assert_eq!(code(gone), "unknown_job"),
    }
}
