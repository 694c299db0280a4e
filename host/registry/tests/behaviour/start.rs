//! R1 to R6 and R24: ids, and what has to be right before work starts.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use backlot_registry::{
    Agreed, Cap, Caps, Config, Environment, Form, Outcome, Refusal, Start, StartError, Status,
};
use tokio::sync::oneshot;

use crate::support::{Answering, Beginning, Fake, Host, settle_down, until};

fn labelled(label: &str) -> Start {
    Start { label: label.to_owned(), ..Start::default() }
}

#[tokio::test(start_paused = true)]
async fn r1_numbers_count_per_kind_from_outside_and_are_never_reused() {
    let environment = Environment {
        first_number: Arc::new(|kind| if kind.as_str() == "work" { 40 } else { 1 }),
        ..Environment::new(tokio::runtime::Handle::current())
    };
    let host = Host::within(Config::default(), environment);
    let other = Fake::new("other", Form::Final);
    assert_eq!(host.start().await.0.to_string(), "work-40");
    assert_eq!(host.start_of(&other).await.0.to_string(), "other-1");

    // Neither a failed start nor a dropped record gives a number back.
    host.fake.begin(Beginning::Panic);
    host.registry.start(host.fake.clone(), Start::default()).await.unwrap_err();
    let owner = host.owner("agent", "session");
    let (id, _work) = host.start_owned(&owner).await;
    assert_eq!(id.to_string(), "work-42");
    host.fake.answer(Answering::Agree(Agreed::DropNow));
    owner.dispose().await;
    assert!(!host.is_known(&id));
    assert_eq!(host.start().await.0.to_string(), "work-43");
}

#[tokio::test(start_paused = true)]
async fn r1_a_kind_runs_out_of_numbers_only_at_the_very_end() {
    let environment = Environment {
        first_number: Arc::new(|_| u64::MAX),
        ..Environment::new(tokio::runtime::Handle::current())
    };
    let host = Host::within(Config::default(), environment);
    assert_eq!(host.start().await.0.to_string(), "work-18446744073709551615");
    let error = host.registry.start(host.fake.clone(), Start::default()).await.unwrap_err();
    assert!(matches!(error, StartError::NumbersExhausted { .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn r2_a_label_is_one_line_of_at_most_a_kibibyte() {
    let host = Host::new();
    for (label, found) in
        [("a\nb", '\n'), ("a\rb", '\r'), ("\u{7}", '\u{7}'), ("\u{2028}", '\u{2028}')]
    {
        let error = host.registry.start(host.fake.clone(), labelled(label)).await.unwrap_err();
        assert!(matches!(error, StartError::InvalidLabel { found: it } if it == found), "{error}");
    }
    assert_eq!(host.fake.runs.load(Ordering::SeqCst), 0);

    let (id, work) = host.start_with(&host.fake, labelled(&"é".repeat(600))).await;
    let label = host.get(&id).label;
    assert_eq!(label, "é".repeat(510) + "…");
    assert_eq!(work.request.label, label);
}

#[tokio::test(start_paused = true)]
async fn r2_a_failed_check_leaves_nothing() {
    let config = Config { caps: Caps { total: Some(1), ..Caps::default() }, ..Config::default() };
    let mut host = Host::with(config);
    let notices = host.notices();
    let owner = host.owner("agent", "session");
    let stale = owner.clone();
    owner.dispose().await;

    let start = Start { owner: Some(stale), ..Start::default() };
    host.registry.start(host.fake.clone(), start).await.unwrap_err();
    host.registry.start(host.fake.clone(), labelled("\n")).await.unwrap_err();
    host.surface = None;
    host.registry.start(host.fake.clone(), Start::default()).await.unwrap_err();
    host.surface = Some(host.registry.attach_surface("test"));

    assert_eq!(host.fake.runs.load(Ordering::SeqCst), 0);
    assert!(host.registry.list(&crate::support::OPERATOR).is_empty());
    assert_eq!(host.registry.health().live, 0);
    // The one place is free, the first number is unused, and nobody was told of anything.
    assert_eq!(notices.until_now(&host).await, []);
    assert_eq!(host.start().await.0.to_string(), "work-2");
}

#[tokio::test(start_paused = true)]
async fn r3_without_a_surface_nothing_starts() {
    let mut host = Host::new();
    let second = host.registry.attach_surface("second");
    host.surface = None;
    let (id, _work) = host.start().await;
    drop(second);

    let error = host.registry.start(host.fake.clone(), Start::default()).await.unwrap_err();
    assert!(matches!(error, StartError::NoSurface));
    assert!(error.to_string().contains("Registry::attach_surface"), "{error}");
    assert_eq!(host.status(&id), Status::Running);

    let _surface = host.registry.attach_surface("third");
    host.start().await;
}

#[tokio::test(start_paused = true)]
async fn r4_only_the_live_instance_of_an_agent_can_own() {
    let host = Host::new();
    let first = host.owner("agent", "session");
    let (before, _work) = host.start_owned(&first).await;
    let second = host.owner("agent", "session");
    assert!(!first.is_same(&second));

    let start = Start { owner: Some(first.clone()), ..Start::default() };
    let error = host.registry.start(host.fake.clone(), start).await.unwrap_err();
    assert!(matches!(&error, StartError::OwnerGone { agent } if agent.as_str() == "agent"));
    host.start_owned(&second).await;

    // Disposing the replaced instance is no business of the new one.
    host.fake.answer(Answering::Agree(Agreed::DropNow));
    first.dispose().await;
    assert!(!host.is_known(&before));
    host.start_owned(&second).await;
    second.dispose().await;
    let start = Start { owner: Some(second), ..Start::default() };
    host.registry.start(host.fake.clone(), start).await.unwrap_err();
}

#[tokio::test(start_paused = true)]
async fn r5_a_run_that_fails_leaves_nothing() {
    let host = Host::new();
    let refusal = Refusal::InvalidInput("no pattern".to_owned());
    host.fake.begin(Beginning::Refuse(refusal.clone()));
    let error = host.registry.start(host.fake.clone(), Start::default()).await.unwrap_err();
    assert!(matches!(&error, StartError::Refused { refusal: it, .. } if *it == refusal));
    assert_eq!(error.to_string(), "work did not start: invalid input: no pattern");

    host.fake.begin(Beginning::Panic);
    let error = host.registry.start(host.fake.clone(), Start::default()).await.unwrap_err();
    assert_eq!(error.to_string(), "work did not start: it panicked: in run");
    assert_eq!(host.registry.health().producer_panics, 1);

    host.fake.begin(Beginning::Never);
    let begun = tokio::time::Instant::now();
    let error = host.registry.start(host.fake.clone(), Start::default()).await.unwrap_err();
    assert!(matches!(error, StartError::Deadline { .. }), "{error}");
    assert_eq!(begun.elapsed(), Duration::from_secs(5));

    assert_eq!(host.fake.runs.load(Ordering::SeqCst), 3, "each was called once");
    assert_eq!(host.fake.held(), 0);
    assert_eq!(host.registry.health().live, 0);
    assert!(host.registry.list(&crate::support::OPERATOR).is_empty());
}

#[tokio::test(start_paused = true)]
async fn r6_work_whose_owner_goes_while_it_starts_is_not_started() {
    let host = Host::new();
    let owner = host.owner("agent", "session");
    let (_signal, after) = oneshot::channel();
    host.fake.begin(Beginning::After(after));
    let start = Start { owner: Some(owner.clone()), ..Start::default() };
    let starting = host.registry.start(host.fake.clone(), start);
    let starting = async { starting.await.unwrap_err() };
    let disposing = async {
        until(|| host.fake.held() == 1).await;
        owner.dispose().await;
        assert_eq!(host.fake.held(), 0, "the disposal awaits the start");
    };
    let (error, ()) = tokio::join!(starting, disposing);
    assert!(matches!(error, StartError::OwnerGone { .. }), "{error}");
    assert_eq!(host.registry.health().live, 0);
}

#[tokio::test(start_paused = true)]
async fn r6_work_that_is_under_way_when_its_owner_goes_is_stopped_and_awaited() {
    let host = Host::new();
    let notices = host.notices();
    let owner = host.owner("agent", "session");
    let (signal, after) = oneshot::channel();
    host.fake.begin(Beginning::After(after));
    let start = Start { owner: Some(owner.clone()), ..Start::default() };
    let mut starting = Box::pin(host.registry.start(host.fake.clone(), start));
    assert!(futures::poll!(&mut starting).is_pending());

    // The work is ready and the owner is gone before the start is polled again.
    signal.send(()).unwrap();
    let mut disposing = Box::pin(owner.dispose());
    assert!(futures::poll!(&mut disposing).is_pending());
    assert!(futures::poll!(&mut starting).is_pending());
    let work = host.fake.work();
    until(|| work.asked().len() == 1).await;
    settle_down().await;
    assert!(futures::poll!(&mut starting).is_pending(), "the work is awaited");
    assert!(futures::poll!(&mut disposing).is_pending());

    work.end(Outcome::killed());
    let error = starting.await.unwrap_err();
    assert!(matches!(error, StartError::OwnerGone { .. }), "{error}");
    disposing.await;
    assert!(work.is_gone());
    assert_eq!(host.registry.health().live, 0);
    assert_eq!(notices.until_now(&host).await, [], "it never was a task");
}

#[tokio::test(start_paused = true)]
async fn r24_a_refusal_names_the_cap() {
    let caps = Caps { per_owner: Some(1), per_kind: Some(2), total: Some(3) };
    let host = Host::with(Config { caps, ..Config::default() });
    let owner = host.owner("agent", "session");
    let other = Fake::new("other", Form::Final);
    let refused = async |fake: &Arc<Fake>, start| match host
        .registry
        .start(fake.clone(), start)
        .await
        .unwrap_err()
    {
        StartError::Full { cap, limit } => (cap, limit),
        error => panic!("{error}"),
    };
    let owned = || Start { owner: Some(owner.clone()), ..Start::default() };

    let (first, work) = host.start_owned(&owner).await;
    assert_eq!(refused(&other, owned()).await, (Cap::Owner(owner.agent().clone()), 1));
    host.start().await;
    assert_eq!(refused(&host.fake, Start::default()).await, (Cap::Kind(first.kind.clone()), 2));
    host.start_of(&other).await;
    assert_eq!(refused(&other, Start::default()).await, (Cap::Total, 3));

    // An end gives all three places back, and nothing but an end does.
    work.end(Outcome::completed());
    host.settled(&first).await;
    host.start_owned(&owner).await;
    assert_eq!(refused(&other, Start::default()).await, (Cap::Total, 3));
    let full = StartError::Full { cap: Cap::Owner(owner.agent().clone()), limit: 1 };
    assert_eq!(
        full.to_string(),
        "the cap on tasks of agent agent is full with 1 live tasks: wait until one ends, kill one \
         or raise the cap"
    );
}

#[tokio::test(start_paused = true)]
async fn r24_a_failed_start_gives_its_place_back() {
    let host = Host::with(Config {
        caps: Caps { total: Some(1), ..Caps::default() },
        ..Config::default()
    });
    for beginning in [
        Beginning::Refuse(Refusal::Unavailable("now".to_owned())),
        Beginning::Panic,
        Beginning::Never,
    ] {
        host.fake.begin(beginning);
        host.registry.start(host.fake.clone(), Start::default()).await.unwrap_err();
    }
    host.start().await;
}

#[tokio::test(start_paused = true)]
async fn r24_a_failed_start_holds_no_disposal_up() {
    let host = Host::new();
    let owner = host.owner("agent", "session");
    host.fake.begin(Beginning::Panic);
    let start = Start { owner: Some(owner.clone()), ..Start::default() };
    host.registry.start(host.fake.clone(), start).await.unwrap_err();
    let begun = tokio::time::Instant::now();
    owner.dispose().await;
    assert_eq!(begun.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_producer_that_stands_for_another_starts_that_one() {
    let host = Host::new();
    let first = Fake::new("work", Form::Final);
    *host.fake.behind.lock().unwrap() = Ok(Some(first.clone()));
    let id = host.registry.start(host.fake.clone(), Start::default()).await.unwrap();
    first.work().end(Outcome::completed());
    assert_eq!(host.settled(&id).await.status, Status::Completed);
    assert_eq!(host.fake.runs.load(Ordering::SeqCst), 0);

    *host.fake.behind.lock().unwrap() = Err(Refusal::Unavailable("it was unloaded".to_owned()));
    let error = host.registry.start(host.fake.clone(), Start::default()).await.unwrap_err();
    assert_eq!(error.to_string(), "work did not start: unavailable: it was unloaded");
    assert_eq!(host.registry.health().live, 0);
}

#[tokio::test(start_paused = true)]
async fn r24_a_kind_may_have_a_cap_of_its_own() {
    let config =
        Config { caps: Caps { per_kind: Some(1), ..Caps::default() }, ..Config::default() };
    let host = Host::with(config);
    *host.fake.cap.lock().unwrap() = Some(2);
    let (_one, _two) = (host.start().await, host.start().await);
    let error = host.registry.start(host.fake.clone(), Start::default()).await.unwrap_err();
    let StartError::Full { cap: Cap::Kind(kind), limit: 2 } = error else { panic!("{error}") };
    assert_eq!(kind.as_str(), "work");
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_shows_what_was_granted_also_after_the_end() {
    let host = Host::new();
    let lines: Arc<[String]> = Arc::from(["dir /src:ro".to_owned()]);
    *host.fake.grant.lock().unwrap() = Some(lines.clone());
    let id = host.ended().await;
    assert_eq!(host.get(&id).grant, Some(lines));
}
