//! R11: reading output.

use std::time::Duration;

use backlot_registry::{Channel, Config, Ending, Form, Outcome, SpoolLimits, Status};

use crate::support::{Answering, Fake, Host, OPERATOR, settle_down};

#[tokio::test(start_paused = true)]
async fn r11_a_read_consumes_what_came_since_the_last() {
    let host = Host::new();
    let (id, work) = host.start().await;
    assert_eq!(host.read(&id).await, "");
    work.write("one ");
    work.host.output().write_as(Channel::Err, b"two ");
    assert_eq!(host.read(&id).await, "one two ");
    assert_eq!(host.read(&id).await, "");
    work.write("three");
    assert_eq!(host.read(&id).await, "three");
}

#[tokio::test(start_paused = true)]
async fn r11_two_readers_get_disjoint_ordered_pieces() {
    let host = Host::new();
    let (id, work) = host.start().await;
    let text: String = (0..10_000).map(|number| format!("{number}\n")).collect();
    let reader = |bytes: usize| {
        let (registry, id) = (host.registry.clone(), id.clone());
        async move {
            let mut pieces = Vec::new();
            loop {
                let read = registry.read(&id, &OPERATOR, bytes).await.unwrap();
                if read.text.is_empty() && read.snapshot.status.is_terminal() {
                    return pieces;
                }
                pieces.push(read.text);
                tokio::task::yield_now().await;
            }
        }
    };
    let writer = async {
        for part in text.as_bytes().chunks(97) {
            work.host.output().write(part);
            tokio::task::yield_now().await;
        }
        work.end(Outcome::completed());
    };
    let (one, other, ()) = tokio::join!(reader(50), reader(71), writer);
    // Each piece of the numbered lines is found where the text has it, once.
    let mut joined: Vec<(usize, String)> = Vec::new();
    let (mut one, mut other) = (one.into_iter().peekable(), other.into_iter().peekable());
    let mut at = 0;
    while at < text.len() {
        let next = [&mut one, &mut other].into_iter().find_map(|pieces| {
            pieces.next_if(|piece| piece.is_empty() || text[at..].starts_with(piece.as_str()))
        });
        let piece = next.expect("one of the readers has what comes next");
        joined.push((at, piece.clone()));
        at += piece.len();
    }
    assert!(one.all(|piece| piece.is_empty()) && other.all(|piece| piece.is_empty()));
    assert!(joined.len() > 100);
}

#[tokio::test(start_paused = true)]
async fn r11_no_character_is_split() {
    let host = Host::new();
    let (id, work) = host.start().await;
    let text = "10 € und 🦀, é\n".repeat(20);
    let mut read = String::new();
    for byte in text.as_bytes() {
        work.host.output().write(&[*byte]);
        read += &host.read(&id).await;
    }
    assert_eq!(read, text);

    // However little a reader takes at once, it takes whole characters.
    for bytes in [0, 1, 2, 3, 5, 7] {
        work.write(&text);
        let mut read = String::new();
        loop {
            let part = host.registry.read(&id, &OPERATOR, bytes).await.unwrap();
            read += &part.text;
            if !part.more {
                break;
            }
            assert!(!part.text.is_empty());
        }
        assert_eq!(read, text);
    }
}

#[tokio::test(start_paused = true)]
async fn r11_no_character_is_split_after_the_end_either() {
    let host = Host::new();
    let (id, work) = host.start().await;
    work.write("€€€🦀");
    work.end(Outcome::completed());
    host.settled(&id).await;
    let mut read = Vec::new();
    for _ in 0..4 {
        read.push(host.registry.read(&id, &OPERATOR, 4).await.unwrap().text);
    }
    assert_eq!(read, ["€", "€", "€", "🦀"]);
}

#[tokio::test(start_paused = true)]
async fn c12_an_incomplete_tail_shows_once_at_the_end() {
    let host = Host::new();
    let (id, work) = host.start().await;
    work.host.output().write(b"5 \xE2\x82");
    let read = host.registry.read(&id, &OPERATOR, 100).await.unwrap();
    assert_eq!((read.text.as_str(), read.more), ("5 ", false));
    work.end(Outcome::completed());
    host.settled(&id).await;
    assert_eq!(host.read(&id).await, "\u{FFFD}");
    assert_eq!(host.read(&id).await, "");
}

#[tokio::test(start_paused = true)]
async fn r11_bytes_that_are_no_text_are_replaced() {
    let host = Host::new();
    let (id, work) = host.start().await;
    work.host.output().write(b"a\xFFb\xC3\x28c\xE2\x82");
    work.write("d");
    assert_eq!(host.read(&id).await, "a\u{FFFD}b\u{FFFD}(c\u{FFFD}d");
}

#[tokio::test(start_paused = true)]
async fn r11_the_tail_is_still_there_once_after_the_end() {
    let host = Host::new();
    let (id, work) = host.start().await;
    work.write("begin ");
    work.end(Outcome {
        ending: Ending::Completed,
        detail: None,
        output: Some("and end".to_owned()),
    });
    host.settled(&id).await;
    assert!(work.is_gone());
    assert_eq!(host.read(&id).await, "begin and end");
    assert_eq!(host.read(&id).await, "");
}

#[tokio::test(start_paused = true)]
async fn r11_final_output_is_the_same_every_time() {
    let host = Host::new();
    let fake = Fake::new("final", Form::Final);
    let (id, work) = host.start_of(&fake).await;
    assert_eq!(host.read(&id).await, "");
    work.end(Outcome { output: Some("result".to_owned()), ..Outcome::completed() });
    host.settled(&id).await;
    for _ in 0..2 {
        let read = host.registry.read(&id, &OPERATOR, 100).await.unwrap();
        assert_eq!((read.text.as_str(), read.more, read.dropped), ("result", false, 0));
        let read = host.registry.read(&id, &OPERATOR, 4).await.unwrap();
        assert_eq!((read.text.as_str(), read.more), ("resu", true));
    }
    let (id, work) = host.start_of(&fake).await;
    work.end(Outcome::completed());
    host.settled(&id).await;
    assert_eq!(host.read(&id).await, "");
}

#[tokio::test(start_paused = true)]
async fn r11_a_read_that_tells_of_the_end_counts_as_told() {
    let host = Host::new();
    let (id, work) = host.start().await;
    work.write("a");
    let read = host.registry.read(&id, &OPERATOR, 100).await.unwrap();
    assert!(!read.snapshot.reported);
    work.end(Outcome::completed());
    host.settled(&id).await;
    host.registry.list(&OPERATOR);
    assert!(!host.get(&id).reported, "a look is not a report");
    let read = host.registry.read(&id, &OPERATOR, 100).await.unwrap();
    assert_eq!((read.snapshot.status, read.snapshot.reported), (Status::Completed, true));
    assert!(host.get(&id).reported);
}

#[tokio::test(start_paused = true)]
async fn r11_what_was_dropped_is_told() {
    let spool = SpoolLimits { memory: 10, ..SpoolLimits::default() };
    let host = Host::with(Config { spool, ..Config::default() });
    let (id, work) = host.start().await;
    work.write("0123456789abcde");
    let read = host.registry.read(&id, &OPERATOR, 100).await.unwrap();
    assert_eq!(read.dropped, 5);
    assert_eq!(read.text, "[5 bytes of output were dropped here]\n56789abcde");
    let snapshot = host.get(&id);
    assert_eq!((snapshot.output_bytes, snapshot.dropped_bytes), (15, 5));

    // What a reader has seen is not dropped for it.
    work.write("xyz");
    let read = host.registry.read(&id, &OPERATOR, 100).await.unwrap();
    assert_eq!((read.text.as_str(), read.dropped), ("xyz", 0));

    // A character that the drop has cut counts as dropped.
    work.write("€€€€");
    let read = host.registry.read(&id, &OPERATOR, 100).await.unwrap();
    assert_eq!(
        (read.text.as_str(), read.dropped),
        ("[3 bytes of output were dropped here]\n€€€", 3)
    );
}

#[tokio::test(start_paused = true)]
async fn r11_a_read_asks_the_work_for_its_output_first() {
    let host = Host::new();
    let (id, work) = host.start().await;
    work.hold_back("held back");
    assert_eq!(host.read(&id).await, "held back");
    work.never_drain();
    work.write("there");
    let begun = tokio::time::Instant::now();
    assert_eq!(host.read(&id).await, "there");
    assert_eq!(begun.elapsed(), Duration::from_millis(100), "work that computes hangs nobody");
}

#[tokio::test(start_paused = true)]
async fn r11_a_dropped_read_consumes_nothing() {
    let host = Host::new();
    let (id, work) = host.start().await;
    work.write("text");
    work.never_drain();
    let mut reading = Box::pin(host.registry.read(&id, &OPERATOR, 100));
    assert!(futures::poll!(&mut reading).is_pending());
    drop(reading);
    settle_down().await;
    assert_eq!(host.read(&id).await, "text");
}

#[tokio::test(start_paused = true)]
async fn r11_what_was_handed_over_survives_a_forced_end() {
    let host = Host::new();
    let (id, work) = host.start().await;
    work.write("handed over");
    work.answer(Answering::Never);
    host.force(&id).await.unwrap();
    host.settled(&id).await;
    assert_eq!(host.detail(&id), "forced on request; output not yet handed over is lost");
    assert_eq!(host.read(&id).await, "handed over");
}

#[tokio::test(start_paused = true)]
async fn c07_final_output_is_bounded_too() {
    let spool = SpoolLimits { memory: 100, ..SpoolLimits::default() };
    let host = Host::with(Config { spool, ..Config::default() });
    let fake = Fake::new("final", Form::Final);
    let (id, work) = host.start_of(&fake).await;
    work.end(Outcome { output: Some("x".repeat(1_000_000)), ..Outcome::completed() });
    host.settled(&id).await;
    for _ in 0..2 {
        let read = host.registry.read(&id, &OPERATOR, usize::MAX).await.unwrap();
        assert_eq!(read.dropped, 999_900);
        assert_eq!(read.text.len(), 100 + "[999900 bytes of output were dropped here]\n".len());
    }
    assert_eq!(host.registry.health().output_memory, 100);
}
