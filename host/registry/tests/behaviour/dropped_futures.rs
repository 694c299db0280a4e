//! R25: futures that are dropped did nothing, or do it all.

use backlot_registry::{Caps, Config, Outcome, Start, Status};
use tokio::sync::oneshot;

use crate::support::{Answering, Beginning, Host, OPERATOR, settle_down, until};

#[tokio::test(start_paused = true)]
async fn r25_a_start_that_is_dropped_on_its_way_did_nothing() {
    let host = Host::with(Config {
        caps: Caps { total: Some(1), ..Caps::default() },
        ..Config::default()
    });
    let (_signal, after) = oneshot::channel();
    host.fake.begin(Beginning::After(after));
    let mut starting = Box::pin(host.registry.start(host.fake.clone(), Start::default()));
    assert!(futures::poll!(&mut starting).is_pending());
    assert_eq!((host.fake.held(), host.registry.health().live), (1, 1));
    // The place is taken at the check.
    host.registry.start(host.fake.clone(), Start::default()).await.unwrap_err();
    drop(starting);
    assert_eq!((host.fake.held(), host.registry.health().live), (0, 0));
    assert!(host.registry.list(&OPERATOR).is_empty());
    host.start().await;
}

#[tokio::test(start_paused = true)]
async fn r25_a_start_that_was_never_polled_did_nothing() {
    let host = Host::new();
    drop(host.registry.start(host.fake.clone(), Start::default()));
    assert_eq!((host.fake.held(), host.registry.health().live), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn r25_a_kill_that_is_dropped_goes_on() {
    let host = Host::new();
    let (id, work) = host.start().await;
    let mut killing = Box::pin(host.kill(&id));
    assert!(futures::poll!(&mut killing).is_pending());
    drop(killing);
    until(|| host.status(&id) == Status::Stopping).await;
    assert_eq!(work.asked().len(), 1);
    assert!(!host.get(&id).reported, "nobody heard of it");
    work.end(Outcome::killed());
    assert_eq!(host.settled(&id).await.status, Status::Killed);

    // Also when the question is on its way already.
    let (id, work) = host.start().await;
    work.answer(Answering::Never);
    let mut killing = Box::pin(host.kill(&id));
    assert!(futures::poll!(&mut killing).is_pending());
    until(|| work.asked().len() == 1).await;
    drop(killing);
    host.wait(&id).await;
    assert!(host.detail(&id).starts_with("forced: could not be asked within 1s"));
}

#[tokio::test(start_paused = true)]
async fn r25_a_kill_that_was_never_polled_did_nothing() {
    let host = Host::new();
    let (id, work) = host.start().await;
    drop(host.kill(&id));
    settle_down().await;
    assert_eq!((work.asked().len(), host.status(&id)), (0, Status::Running));
}

#[tokio::test(start_paused = true)]
async fn r25_a_disposal_that_is_dropped_is_finished_by_the_next() {
    let host = Host::new();
    let owner = host.owner("agent", "session");
    let (id, work) = host.start_owned(&owner).await;
    let mut disposing = Box::pin(owner.dispose());
    assert!(futures::poll!(&mut disposing).is_pending());
    drop(disposing);
    until(|| work.asked().len() == 1).await;
    work.end(Outcome::killed());
    host.settled(&id).await;
    owner.dispose().await;
    assert!(!host.is_known(&id));
    owner.dispose().await;
}
