//! R12: killing a task.

use std::time::Duration;

use backlot_registry::{
    Agreed, Kill, KillError, Killed, Mode, Outcome, Status, StopCause, StopRefusal,
};

use crate::support::{Answering, Host, OPERATOR, settle_down};

fn ask(reason: &str) -> Kill {
    Kill { mode: Mode::Ask, reason: Some(reason.to_owned()) }
}

#[tokio::test(start_paused = true)]
async fn r12_ask_makes_the_task_stopping_and_tells_the_reason() {
    let host = Host::new();
    let (id, work) = host.start().await;
    let killed = host.registry.kill(&id, &OPERATOR, ask("wrong\nfolder")).await.unwrap();
    assert_eq!(killed, Killed::Requested);
    let snapshot = host.get(&id);
    assert_eq!((snapshot.status, snapshot.reported), (Status::Stopping, true));
    assert_eq!(snapshot.stopped_by, Some(StopCause::Person));
    assert_eq!(work.asked(), [Some("wrong\nfolder".to_owned())], "it arrives unchanged");
    work.end(Outcome::killed());
    assert_eq!(host.settled(&id).await.status, Status::Killed);
    assert_eq!(host.detail(&id), "reason: wrong folder");
}

#[tokio::test(start_paused = true)]
async fn r12_a_refused_ask_leaves_the_task_untouched() {
    let host = Host::new();
    let (id, work) = host.start().await;
    let before = host.get(&id);
    for refusal in [StopRefusal::NotNow("writing".to_owned()), StopRefusal::Broken("no".to_owned())]
    {
        work.answer(Answering::Refuse(refusal.clone()));
        let error = host.kill(&id).await.unwrap_err();
        assert_eq!(error, KillError::Refused { id: id.clone(), why: refusal });
        assert!(error.to_string().contains("force"), "{error}");
        assert_eq!(host.get(&id), before);
    }
    work.answer(Answering::Panic);
    let error = host.kill(&id).await.unwrap_err();
    let why = StopRefusal::Broken("panicked: in cancel".to_owned());
    assert_eq!(error, KillError::Refused { id: id.clone(), why });
    assert_eq!(host.get(&id), before);
    assert_eq!(host.registry.health().producer_panics, 1);

    // It can still be asked, and then agrees.
    work.answer(Answering::Agree(Agreed::WindsDown));
    assert_eq!(host.kill(&id).await, Ok(Killed::Requested));
    assert_eq!(work.asked().len(), 4);
}

#[tokio::test(start_paused = true)]
async fn r12_work_that_breaks_when_asked_ends_by_its_own_word() {
    let host = Host::new();
    let (id, work) = host.start().await;
    let why = StopRefusal::Crashed("trap in cancel".to_owned());
    work.answer(Answering::Refuse(why.clone()));
    let error = host.kill(&id).await.unwrap_err();
    assert_eq!(error, KillError::Crashed { id: id.clone(), why });
    assert!(!host.get(&id).reported);
    work.end(Outcome::failed("trap in cancel"));
    assert_eq!(host.settled(&id).await.status, Status::Failed);
    assert_eq!(host.detail(&id), "trap in cancel");
}

#[tokio::test(start_paused = true)]
async fn r12_a_kill_of_an_ended_task_reports_it() {
    let host = Host::new();
    for force in [false, true] {
        let id = host.ended().await;
        assert!(!host.get(&id).reported);
        let killed = if force { host.force(&id).await } else { host.kill(&id).await };
        assert_eq!(killed, Ok(Killed::AlreadyTerminal));
        let snapshot = host.get(&id);
        assert_eq!((snapshot.status, snapshot.reported), (Status::Completed, true));
    }
}

#[tokio::test(start_paused = true)]
async fn r12_a_second_kill_is_harmless() {
    let host = Host::new();
    let (id, work) = host.start().await;
    for _ in 0..3 {
        assert_eq!(host.kill(&id).await, Ok(Killed::Requested));
    }
    assert_eq!(work.asked().len(), 1, "it is asked once");
    assert_eq!(host.status(&id), Status::Stopping);
}

#[tokio::test(start_paused = true)]
async fn r12_kills_at_once_join_one_answer() {
    let host = Host::new();
    let (id, work) = host.start().await;
    work.answer(Answering::Refuse(StopRefusal::NotNow("writing".to_owned())));
    let (one, other) = tokio::join!(host.kill(&id), host.kill(&id));
    assert_eq!(one, other);
    one.unwrap_err();
    work.answer(Answering::Agree(Agreed::WindsDown));
    let (one, other) = tokio::join!(host.kill(&id), host.kill(&id));
    assert_eq!((one, other), (Ok(Killed::Requested), Ok(Killed::Requested)));
    assert_eq!(work.asked().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn r12_force_goes_to_the_last_rung_at_once() {
    let host = Host::new();
    let begun = tokio::time::Instant::now();
    let (id, work) = host.start().await;
    let kill = Kill { mode: Mode::Force, reason: Some("stuck".to_owned()) };
    assert_eq!(host.registry.kill(&id, &OPERATOR, kill).await, Ok(Killed::Requested));
    host.settled(&id).await;
    assert!(work.is_gone());
    assert_eq!(work.asked(), [], "it is not asked");
    assert_eq!(host.status(&id), Status::Killed);
    assert_eq!(
        host.detail(&id),
        "forced on request; reason: stuck; output not yet handed over is lost"
    );
    assert!(host.get(&id).reported);

    // Also while it is being asked, and while it winds down.
    for answering in [Answering::Never, Answering::Agree(Agreed::WindsDown)] {
        let (id, work) = host.start().await;
        work.answer(answering);
        let (asked, forced) = tokio::join!(host.kill(&id), async {
            settle_down().await;
            host.force(&id).await
        });
        assert_eq!((asked, forced), (Ok(Killed::Requested), Ok(Killed::Requested)));
        host.settled(&id).await;
        assert!(work.is_gone() && host.detail(&id).starts_with("forced on request"));
    }
    assert_eq!(begun.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn c46_a_kill_that_crosses_the_natural_end_follows_the_end() {
    let host = Host::new();

    // The work ended before the kill was heard: its word stands, and the kill says so.
    let (id, work) = host.start().await;
    work.answer(Answering::End(Outcome::completed()));
    assert_eq!(host.kill(&id).await, Ok(Killed::AlreadyTerminal));
    let ended = host.settled(&id).await;
    assert_eq!((ended.status, ended.reported), (Status::Completed, true));
    assert_eq!(ended.stopped_by, None);

    // It heard the kill and ended because of it.
    let (id, work) = host.start().await;
    work.answer(Answering::End(Outcome::killed()));
    assert_eq!(host.kill(&id).await, Ok(Killed::Requested));
    assert_eq!(host.settled(&id).await.status, Status::Killed);

    // It agreed, and had finished nevertheless.
    let (id, work) = host.start().await;
    work.answer(Answering::EndAndAgree(Outcome::completed()));
    assert_eq!(host.kill(&id).await, Ok(Killed::Requested));
    let ended = host.settled(&id).await;
    assert_eq!((ended.status, ended.stopped_by), (Status::Completed, Some(StopCause::Person)));
}

#[tokio::test(start_paused = true)]
async fn r12_a_person_outranks_a_shutdown() {
    let host = Host::new();
    let (id, work) = host.start().await;
    let shutting = host.registry.dispose();
    let killing = async {
        settle_down().await;
        assert_eq!(host.get(&id).stopped_by, Some(StopCause::Shutdown));
        assert_eq!(host.kill(&id).await, Ok(Killed::Requested));
        work.end(Outcome::killed());
    };
    tokio::join!(shutting, killing);
    assert_eq!(host.status(&id), Status::Killed, "what a person kills is not retried");
}

#[tokio::test(start_paused = true)]
async fn r12_a_kill_that_joins_a_shutdown_is_the_persons() {
    let host = Host::new();
    let (id, work) = host.start().await;
    work.answer(Answering::Never);
    let (killed, ()) = tokio::join!(
        async {
            settle_down().await;
            assert_eq!(host.status(&id), Status::Running, "it is being asked");
            host.kill(&id).await
        },
        host.registry.dispose()
    );
    assert_eq!(killed, Ok(Killed::Requested));
    assert_eq!(work.asked().len(), 1);
    assert_eq!(host.status(&id), Status::Killed);
    assert!(host.detail(&id).starts_with("forced: could not be asked within 1s"));
}
