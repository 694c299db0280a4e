//! R17 to R19: owners, the registry and producers that go.

use std::time::Duration;

use backlot_registry::{
    Agreed, Form, Killed, OnDrop, Outcome, Start, StartError, Status, StopCause, StopRefusal,
};

use tokio::time::Instant;

use crate::support::{Answering, Beginning, Fake, Host, OPERATOR, session, settle_down, until};

#[tokio::test(start_paused = true)]
async fn r17_disposing_an_owner_ends_its_tasks_and_drops_their_records() {
    let host = Host::new();
    let notices = host.notices();
    let (owner, other) = (host.owner("agent", "session"), host.owner("other", "session"));
    let (ended, work) = host.start_owned(&owner).await;
    work.end(Outcome::completed());
    host.settled(&ended).await;
    let (live, work) = host.start_owned(&owner).await;
    let (stays, _stays) = host.start_owned(&other).await;

    let mut disposing = Box::pin(owner.dispose());
    assert!(futures::poll!(&mut disposing).is_pending());
    until(|| host.status(&live) == Status::Stopping).await;
    let start = Start { owner: Some(owner.clone()), ..Start::default() };
    let error = host.registry.start(host.fake.clone(), start).await.unwrap_err();
    assert!(matches!(error, StartError::OwnerGone { .. }), "{error}");
    assert!(futures::poll!(&mut disposing).is_pending(), "it awaits the end");
    work.end(Outcome::killed());
    disposing.await;

    assert!(work.is_gone());
    assert!(!host.is_known(&ended) && !host.is_known(&live));
    assert_eq!(host.status(&stays), Status::Running);
    assert_eq!(host.registry.list(&session("session")).len(), 1);
    assert_eq!(notices.next().snapshot.id, ended);
    let notice = notices.next().snapshot;
    assert_eq!((notice.id, notice.status), (live, Status::Killed));
    assert_eq!(notice.stopped_by, Some(StopCause::Owner));
    owner.dispose().await;
}

#[tokio::test(start_paused = true)]
async fn r17_a_task_that_refuses_during_the_teardown_is_forced_and_failed() {
    let host = Host::new();
    let notices = host.notices();
    *host.fake.on_drop.lock().unwrap() = OnDrop::MayOrphan;
    let owner = host.owner("agent", "session");
    let (_, work) = host.start_owned(&owner).await;
    work.answer(Answering::Refuse(StopRefusal::NotNow("writing".to_owned())));
    owner.dispose().await;
    assert!(work.is_gone());
    let notice = notices.next().snapshot;
    assert_eq!(notice.status, Status::Failed);
    assert_eq!(
        notice.detail.unwrap(),
        "forced: refused to stop (writing); output not yet handed over is lost"
    );
    assert_eq!(host.registry.health().orphans, 1);

    // What is released by the drop orphans nothing.
    *host.fake.on_drop.lock().unwrap() = OnDrop::ReleasesAll;
    let owner = host.owner("agent", "session");
    let (_, work) = host.start_owned(&owner).await;
    work.answer(Answering::Panic);
    owner.dispose().await;
    assert!(work.is_gone());
    assert_eq!(host.registry.health().orphans, 1);
}

#[tokio::test(start_paused = true)]
async fn r17_work_that_breaks_during_the_teardown_says_how() {
    let host = Host::new();
    let notices = host.notices();
    let owner = host.owner("agent", "session");
    let (_, work) = host.start_owned(&owner).await;
    work.answer(Answering::Refuse(StopRefusal::Crashed("trap".to_owned())));
    let ((), ()) = tokio::join!(owner.dispose(), async {
        until(|| work.asked().len() == 1).await;
        settle_down().await;
        work.end(Outcome::failed("trap in cancel"));
    });
    let notice = notices.next().snapshot;
    assert_eq!((notice.status, notice.detail.as_deref()), (Status::Failed, Some("trap in cancel")));
}

#[tokio::test(start_paused = true)]
async fn r17_a_teardown_joins_a_kill_that_is_on_its_way() {
    let host = Host::new();
    let notices = host.notices();
    let owner = host.owner("agent", "session");
    let (id, work) = host.start_owned(&owner).await;
    work.answer(Answering::Refuse(StopRefusal::NotNow("writing".to_owned())));
    let (killed, ()) = tokio::join!(host.kill(&id), owner.dispose());
    assert_eq!(killed, Ok(Killed::Requested), "it is stopped after all");
    assert_eq!(work.asked().len(), 1);
    let notice = notices.next().snapshot;
    assert_eq!((notice.status, notice.stopped_by), (Status::Failed, Some(StopCause::Owner)));
}

#[tokio::test(start_paused = true)]
async fn r18_a_disposed_registry_is_freed() {
    let host = Host::new();
    let owner = host.owner("agent", "session");
    let notices = host.notices();
    let (owned, owned_work) = host.start_owned(&owner).await;
    let (unowned, work) = host.start().await;
    work.answer(Answering::Agree(Agreed::DropNow));
    let disposing = host.registry.dispose();
    let ending = async {
        until(|| owned_work.asked().len() == 1).await;
        let error = host.registry.start(host.fake.clone(), Start::default()).await.unwrap_err();
        assert!(matches!(error, StartError::Disposed), "{error}");
        owned_work.end(Outcome::completed());
    };
    tokio::join!(disposing, ending);
    assert_eq!(host.status(&owned), Status::Completed);
    let ended = host.get(&unowned);
    assert_eq!((ended.status, ended.stopped_by), (Status::Failed, Some(StopCause::Shutdown)));
    assert_eq!(ended.detail.as_deref(), Some("host shutdown"));
    host.registry.dispose().await;

    // The owner, its task's reins, a guard and a surface live on, and hold nothing of it.
    let weak = host.registry.downgrade();
    let Host { registry, surface, .. } = host;
    drop(registry);
    assert!(weak.upgrade().is_none());
    owner.dispose().await;
    owned_work.write("late");
    drop((surface, notices));
}

#[tokio::test(start_paused = true)]
async fn r18_a_disposal_stops_the_starts_that_are_on_their_way() {
    for owned in [false, true] {
        let host = Host::new();
        let owner = owned.then(|| host.owner("agent", "session"));
        host.fake.begin(Beginning::Never);
        let start = Start { owner, ..Start::default() };
        let starting = host.registry.start(host.fake.clone(), start);
        let disposing = async {
            until(|| host.fake.held() == 1).await;
            host.registry.dispose().await;
            assert_eq!((host.fake.held(), host.registry.health().live), (0, 0));
        };
        let begun = Instant::now();
        let (error, ()) = tokio::join!(starting, disposing);
        assert!(matches!(error, Err(StartError::Disposed)));
        assert_eq!(begun.elapsed(), Duration::ZERO);
    }
}

#[tokio::test(start_paused = true)]
async fn r18_a_registry_that_is_dropped_drops_its_tasks() {
    let host = Host::new();
    let (_, work) = host.start().await;
    let Host { registry, .. } = host;
    drop(registry);
    until(|| work.is_gone()).await;
}

#[tokio::test(start_paused = true)]
async fn r19_a_producer_that_goes_changes_no_record() {
    let host = Host::new();
    let fake = Fake::new("gone", Form::Stream);
    let (live, work) = host.start_of(&fake).await;
    let (ended, other) = host.start_of(&fake).await;
    other.write("kept");
    other.end(Outcome::completed());
    host.settled(&ended).await;
    let before = host.registry.list(&OPERATOR);
    let weak = std::sync::Arc::downgrade(&fake);
    drop(fake);
    assert!(weak.upgrade().is_none(), "a task does not hold its producer");
    settle_down().await;
    assert_eq!(host.registry.list(&OPERATOR), before);
    assert_eq!(host.read(&ended).await, "kept");
    work.write("goes on");
    assert_eq!(host.read(&live).await, "goes on");

    // Another version of the kind goes on with the numbers.
    let (next, _next) = host.start_of(&Fake::new("gone", Form::Stream)).await;
    assert_eq!(next.to_string(), "gone-3");
    work.end(Outcome::completed());
    assert_eq!(host.wait(&live).await.status, Status::Completed);
}
