//! R7 to R9: how a task ends, and what a snapshot shows of it.

use std::sync::Arc;

use backlot_registry::{Ending, Form, Generation, Outcome, Status, StopCause, Usage};

use crate::support::{Answering, Fake, Host, OPERATOR, settle_down};

#[tokio::test(start_paused = true)]
async fn r7_what_ends_as_killed_without_being_stopped_has_failed() {
    let host = Host::new();
    let (id, work) = host.start().await;
    work.end(Outcome::killed());
    assert_eq!(host.settled(&id).await.status, Status::Failed);
    assert_eq!(host.detail(&id), "ended as killed, but nobody had stopped it");
}

#[tokio::test(start_paused = true)]
async fn r7_a_terminal_state_is_final() {
    let host = Host::new();
    let id = host.ended().await;
    let before = host.get(&id);
    host.kill(&id).await.unwrap();
    host.force(&id).await.unwrap();
    settle_down().await;
    let after = host.get(&id);
    assert_eq!(after.status, Status::Completed);
    assert_eq!(after.finished_at_ms, before.finished_at_ms);
    assert_eq!(after.detail, before.detail);
    assert_eq!(after.stopped_by, None);
}

#[tokio::test(start_paused = true)]
async fn c46_a_late_word_of_ended_work_changes_nothing() {
    let host = Host::new();
    let (id, work) = host.start().await;
    work.write("in time");
    work.end(Outcome::completed());
    host.settled(&id).await;
    work.host.report("late");
    work.write("late");
    work.host.log().write(b"late");
    assert_eq!(host.get(&id).detail, None);
    assert_eq!(host.get(&id).output_bytes, 7);
    assert_eq!(host.read(&id).await, "in time");
}

#[tokio::test(start_paused = true)]
async fn r8_a_record_ends_with_done_whatever_that_does() {
    let host = Host::new();
    for (outcome, status) in [
        (Outcome::completed(), Status::Completed),
        (Outcome::failed("exit code: 3"), Status::Failed),
        (
            Outcome { ending: Ending::Completed, detail: Some("4 lines".to_owned()), output: None },
            Status::Completed,
        ),
    ] {
        let (id, work) = host.start().await;
        settle_down().await;
        assert_eq!(host.status(&id), Status::Running);
        work.end(outcome.clone());
        let ended = host.settled(&id).await;
        assert_eq!((ended.status, ended.detail), (status, outcome.detail));
        assert!(work.is_gone(), "what the work held is released by then");
    }
    let (id, work) = host.start().await;
    work.panic("out of\nluck");
    assert_eq!(host.settled(&id).await.status, Status::Failed);
    assert_eq!(host.detail(&id), "panicked: out of luck");
    assert_eq!(host.registry.health().producer_panics, 1);
}

#[tokio::test(start_paused = true)]
async fn c49_what_ends_at_once_is_never_seen_running_for_long() {
    let host = Host::new();
    for _ in 0..1_000 {
        let (id, work) = host.start().await;
        work.end(Outcome::completed());
        let ended = host.wait(&id).await;
        assert!(ended.finished_at_ms >= Some(ended.started_at_ms));
    }
    assert_eq!(host.registry.health().live, 0);
}

#[tokio::test(start_paused = true)]
async fn r9_a_snapshot_shows_all_there_is() {
    let host = Host::new();
    let generation = Generation { number: 2, digest: Arc::from("sha256:00") };
    *host.fake.generation.lock().unwrap() = Some(generation.clone());
    let owner = host.owner("agent", "session");
    let (id, work) = host.start_owned(&owner).await;
    work.write("four");
    work.host.report("half\tway");
    let live = host.get(&id);
    assert_eq!(live.id, id);
    assert_eq!(live.kind.as_str(), "work");
    assert_eq!(live.owner_session.as_ref(), Some(owner.session()));
    assert_eq!((live.status, live.detail.as_deref()), (Status::Running, Some("half way")));
    assert_eq!((live.started_at_ms, live.finished_at_ms), (1_000, None));
    assert!(!live.reported);
    assert_eq!(live.generation, Some(generation));
    assert_eq!(live.usage.map(|usage| usage.peak_memory), Some(64));
    assert_eq!((live.output_bytes, live.dropped_bytes), (4, 0));

    host.clock.set(1_500);
    work.end(Outcome::failed("exit code: 3"));
    let ended = host.settled(&id).await;
    assert_eq!((ended.status, ended.detail.as_deref()), (Status::Failed, Some("exit code: 3")));
    assert_eq!(ended.finished_at_ms, Some(1_500));
    assert_eq!(ended.usage, Some(Usage { peak_memory: 64, cpu: live.usage.unwrap().cpu }));
    // The view from before is a value of its own.
    assert_eq!(live.status, Status::Running);
}

#[tokio::test(start_paused = true)]
async fn r9_times_never_go_backwards() {
    let host = Host::new();
    let (id, work) = host.start().await;
    host.clock.set(3);
    work.end(Outcome::completed());
    assert_eq!(host.settled(&id).await.finished_at_ms, Some(1_000));
    host.clock.set(u64::MAX);
    let id = host.ended().await;
    assert_eq!(host.get(&id).finished_at_ms, Some(u64::MAX));
}

#[tokio::test(start_paused = true)]
async fn r9_a_detail_is_one_line_of_bounded_length() {
    let host = Host::new();
    let (id, work) = host.start().await;
    work.host.report(&"é".repeat(10_000));
    assert!(host.detail(&id).len() <= 1024);
    work.end(Outcome::failed("x\n".repeat(10_000)));
    host.settled(&id).await;
    assert!(host.detail(&id).len() <= 1024);
    assert!(!host.detail(&id).contains('\n'));
}

#[tokio::test(start_paused = true)]
async fn promise_5_who_ended_it_is_told_honestly() {
    let host = Host::new();
    let owner = host.owner("agent", "session");

    // A guest's own end after a stop stands.
    let (id, work) = host.start().await;
    host.kill(&id).await.unwrap();
    work.end(Outcome { detail: Some("was done".to_owned()), ..Outcome::completed() });
    let ended = host.settled(&id).await;
    assert_eq!((ended.status, ended.stopped_by), (Status::Completed, Some(StopCause::Person)));

    let (person, work) = host.start().await;
    host.kill(&person).await.unwrap();
    work.end(Outcome::killed());
    assert_eq!(host.settled(&person).await.status, Status::Killed);

    let notices = host.notices();
    let (owned, work) = host.start_owned(&owner).await;
    work.answer(Answering::EndAndAgree(Outcome::killed()));
    owner.dispose().await;
    let notice = notices.next();
    assert_eq!(notice.snapshot.id, owned);
    assert_eq!(notice.snapshot.status, Status::Killed);
    assert_eq!(notice.snapshot.stopped_by, Some(StopCause::Owner));

    let fake = Fake::new("other", Form::Final);
    let (shut, work) = host.start_of(&fake).await;
    work.answer(Answering::EndAndAgree(Outcome::killed()));
    host.registry.dispose().await;
    let ended = host.registry.get(&shut, &OPERATOR).unwrap();
    assert_eq!((ended.status, ended.detail.as_deref()), (Status::Failed, Some("host shutdown")));
    assert_eq!(ended.stopped_by, Some(StopCause::Shutdown));
}
