//! Access: ids are predictable, the fence is the isolation.

use std::time::Duration;

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
