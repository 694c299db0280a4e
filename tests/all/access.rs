//! Access: ids are predictable, the fence is the isolation.

use std::{sync::mpsc, time::Duration};

use backlot::registry::{Caller, Kill, Mode, SessionId, Status, Stream, TaskId};
use backlot_tests::{TestHost, With};

/// C45: ownership is checked on every verb, not just on list.
#[tokio::test]
async fn c45_ownership_is_checked_on_every_verb() {
    let host = TestHost::start();
    let ticker = host.kind("ticker").await;
    let a = host.owner("a");
    let with = With { owner: Some(a.clone()), ..With::default() };
    let input = r#"{"count":2,"every_ms":3600000}"#;
    let task = host.try_task(&ticker, input, with).await.unwrap();
    task.until("line 1\n").await;
    let registry = host.registry();
    let zero = Duration::ZERO;
    for caller in [Caller::Session(SessionId::new("b")), Caller::Anyone] {
        assert!(registry.list(&caller).is_empty());
        for number in 1..=50 {
            let id: TaskId = format!("ticker-{number}").parse().unwrap();
            let kill = Kill { mode: Mode::Force, reason: None };
            // A foreign id and an unknown one get the same words.
            let want = format!("{}", registry.get(&id, &caller).unwrap_err());
            assert_eq!(want.replace(&id.to_string(), "ID"), {
                let unknown: TaskId = "ticker-999".parse().unwrap();
                let words = registry.get(&unknown, &caller).unwrap_err().to_string();
                words.replace("ticker-999", "ID")
            });
            assert_eq!(registry.read(&id, &caller, 9).await.unwrap_err().to_string(), want);
            assert_eq!(registry.wait(&id, &caller, zero).await.unwrap_err().to_string(), want);
            assert_eq!(registry.kill(&id, &caller, kill).await.unwrap_err().to_string(), want);
            for stream in [Stream::Output, Stream::Log] {
                assert!(registry.observe(&id, &caller, stream, 0).is_err());
            }
        }
    }
    let mine = Caller::Session(SessionId::new("a"));
    assert_eq!(registry.get(&task.id, &mine).unwrap().status, Status::Running);
    let read = registry.read(&task.id, &mine, usize::MAX).await.unwrap();
    assert_eq!(read.text, "line 1\n", "the owner's cursor has not moved");
    assert_eq!(registry.list(&mine).len(), 1);

    let unowned = host.task(&ticker, input).await;
    for caller in [mine, Caller::Session(SessionId::new("b")), Caller::Anyone, Caller::Operator] {
        assert!(registry.get(&unowned.id, &caller).is_ok(), "unowned tasks are open to all");
    }
    a.dispose().await;
    assert!(registry.get(&task.id, &Caller::Operator).is_err(), "gone with its owner");
    unowned.force("enough").await.unwrap();
}

/// C44: of a task with an owner only its session hears, also when it was away.
#[tokio::test]
async fn c44_notices_and_lists_go_to_the_owners_session_only() {
    let host = TestHost::start();
    let registry = host.registry();
    let (tell, told) = mpsc::channel();
    let _listener = registry.on_task_done("surface", move |notice| {
        Ok(tell.send((notice.snapshot.clone(), notice.owner.clone()))?)
    });
    let ticker = host.kind("ticker").await;
    let (a, b) = (host.owner("a"), host.owner("b"));
    let with =
        |owner: &backlot::registry::Owner| With { owner: Some(owner.clone()), ..With::default() };
    let [session_a, session_b] = ["a", "b"].map(|name| Caller::Session(SessionId::new(name)));
    let hears_nothing = |caller: &Caller, id: &TaskId| {
        assert!(registry.list(caller).iter().all(|task| task.id != *id));
        assert!(registry.list_page(caller, 10, 0).tasks.iter().all(|task| task.id != *id));
        assert!(registry.get(id, caller).is_err());
        assert!(registry.observe(id, caller, Stream::Output, 0).is_err());
    };

    let task = host.try_task(&ticker, r#"{"count":20,"every_ms":10}"#, with(&a)).await.unwrap();
    let other = host.try_task(&ticker, r#"{"count":2,"every_ms":10}"#, with(&b)).await.unwrap();
    hears_nothing(&session_b, &task.id);
    // A goes away before the end, and B comes back as somebody new.
    drop(a);
    drop(b);
    let b_again = host.owner("b");
    assert_eq!(task.end().await.status, Status::Completed);
    assert_eq!(other.end().await.status, Status::Completed);
    for caller in [&session_b, &Caller::Anyone] {
        hears_nothing(caller, &task.id);
        assert!(registry.wait(&task.id, caller, Duration::ZERO).await.is_err());
        assert!(registry.read(&task.id, caller, 9).await.is_err());
    }
    hears_nothing(&session_a, &other.id);
    assert_eq!(registry.list(&session_b).len(), 1, "its own");

    // A notice names the session and the very instance that it is for.
    for _ in 0..2 {
        let (snapshot, owner) = told.recv_timeout(Duration::from_secs(20)).unwrap();
        let session = if snapshot.id == task.id { "a" } else { "b" };
        assert_eq!(snapshot.owner_session, Some(SessionId::new(session)));
        let owner = owner.unwrap();
        assert_eq!(owner.session(), &SessionId::new(session));
        assert!(!owner.is_same(&b_again), "whoever comes later did not start it");
    }
    assert!(told.try_recv().is_err(), "each end is told once");
    // A gets it on return.
    let _a_again = host.owner("a");
    let ended = registry.wait(&task.id, &session_a, Duration::ZERO).await.unwrap();
    assert_eq!(ended.status, Status::Completed);
    let read = registry.read(&task.id, &session_a, usize::MAX).await.unwrap();
    assert_eq!(read.text.lines().count(), 20);
}
