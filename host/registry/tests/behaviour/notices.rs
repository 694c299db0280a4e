//! R15 and R16: telling of ends.

use std::{
    sync::{Arc, Mutex, mpsc},
    time::Duration,
};

use backlot_registry::{Agreed, Config, Outcome, Status};

use tokio::time::Instant;

use crate::support::{Answering, Host, LONG, OPERATOR, settle_down, until};

#[tokio::test(start_paused = true)]
async fn r15_every_end_is_told_once_with_its_owner() {
    let host = Host::new();
    let (one, other) = (host.notices(), host.notices());
    let owner = host.owner("agent", "session");
    let _same_name = host.owner("other", "session");
    let (owned, work) = host.start_owned(&owner).await;
    work.end(Outcome::failed("exit code: 3"));
    host.settled(&owned).await;
    let unowned = host.ended().await;
    // Nothing that happens to an ended task tells of it again.
    host.kill(&owned).await.unwrap();
    host.read(&owned).await;
    host.wait(&owned).await;
    for notices in [&one, &other] {
        let notice = notices.next();
        assert_eq!(notice.snapshot.id, owned);
        assert_eq!(notice.snapshot.status, Status::Failed);
        assert_eq!(notice.snapshot.detail.as_deref(), Some("exit code: 3"));
        assert!(!notice.snapshot.reported);
        assert!(notice.owner.unwrap().is_same(&owner));
        let notice = notices.next();
        assert_eq!(notice.snapshot.id, unowned);
        assert!(notice.owner.is_none());
    }
    assert_eq!(one.until_now(&host).await, []);
}

#[tokio::test(start_paused = true)]
async fn c42_an_end_that_somebody_was_told_of_says_so() {
    let host = Host::new();
    let notices = host.notices();
    let (waited, work) = host.start().await;
    let ((), ended) = tokio::join!(
        async {
            until(|| host.registry.health().waiters == 1).await;
            work.end(Outcome::completed());
        },
        host.wait(&waited)
    );
    assert_eq!(ended.id, waited);
    let (killed, work) = host.start().await;
    work.answer(Answering::EndAndAgree(Outcome::killed()));
    host.kill(&killed).await.unwrap();
    host.settled(&killed).await;
    let (looked, work) = host.start().await;
    work.end(Outcome::completed());
    host.settled(&looked).await;
    host.registry.list(&OPERATOR);
    for (id, reported) in [(waited, true), (killed, true), (looked, false)] {
        let notice = notices.next().snapshot;
        assert_eq!((notice.id, notice.reported), (id, reported));
    }
}

#[tokio::test(start_paused = true)]
async fn r15_a_listener_may_call_the_registry() {
    let host = Host::new();
    let (sender, heard) = mpsc::channel();
    let registry = Arc::new(Mutex::new(Some(host.registry.clone())));
    let within = registry.clone();
    let _guard = host.registry.on_task_done("caller", move |notice| {
        let within = within.lock().unwrap();
        let registry = within.as_ref().unwrap();
        let listed = registry.list(&OPERATOR).len();
        let id = &notice.snapshot.id;
        let runtime = tokio::runtime::Builder::new_current_thread().build()?;
        let read = runtime.block_on(registry.read(id, &OPERATOR, 100))?;
        let _guard = registry.on_task_done("nested", |_| Ok(()));
        sender.send((listed, read.text))?;
        Ok(())
    });
    let (_, work) = host.start().await;
    work.write("text");
    work.end(Outcome::completed());
    settle_down().await;
    let heard = heard.recv_timeout(Duration::from_secs(20)).unwrap();
    assert_eq!(heard, (1, "text".to_owned()));
    registry.lock().unwrap().take();
}

#[tokio::test(start_paused = true)]
async fn c56_a_listener_that_fails_harms_nobody_else() {
    let host = Host::new();
    let before = host.notices();
    let _fails = host.registry.on_task_done("fails", |_| Err("no".into()));
    let _panics = host.registry.on_task_done("panics", |_| panic!("in a listener"));
    let (unblock, blocked) = mpsc::channel::<()>();
    let blocked = Mutex::new(blocked);
    let _blocks = host.registry.on_task_done("blocks", move |_| {
        let _ = blocked.lock().unwrap().recv();
        Ok(())
    });
    let after = host.notices();
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.push(host.ended().await);
    }
    for notices in [&before, &after] {
        for id in &ids {
            assert_eq!(notices.next().snapshot.id, *id);
        }
    }
    assert!(ids.iter().all(|id| host.status(id) == Status::Completed));
    while host.registry.health().listener_failures < 10 {
        std::thread::yield_now();
    }
    drop(unblock);
    // C55: everything still works.
    let (id, _work) = host.start().await;
    host.kill(&id).await.unwrap();
    assert_eq!(host.registry.list(&OPERATOR).len(), 6);
}

#[tokio::test(start_paused = true)]
async fn r15_a_listener_that_is_too_slow_misses_what_its_queue_does_not_hold() {
    let host = Host::with(Config { notice_queue: 2, ..Config::default() });
    let (entered, has_entered) = mpsc::channel();
    let (unblock, blocked) = mpsc::channel::<()>();
    let blocked = Mutex::new(blocked);
    let (sender, heard) = mpsc::channel();
    let guard = host.registry.on_task_done("slow", move |notice| {
        entered.send(())?;
        let _ = blocked.lock().unwrap().recv();
        sender.send(notice.snapshot.id.number)?;
        Ok(())
    });
    host.ended().await;
    has_entered.recv_timeout(Duration::from_secs(20)).unwrap();
    for _ in 0..4 {
        host.ended().await;
    }
    assert_eq!(host.registry.health().missed_notices, 2);
    drop(unblock);
    let heard: Vec<_> =
        (0..3).map(|_| heard.recv_timeout(Duration::from_secs(20)).unwrap()).collect();
    assert_eq!(heard, [1, 2, 3]);
    drop(guard);
}

#[tokio::test(start_paused = true)]
async fn r15_dropping_the_guard_unsubscribes() {
    let host = Host::new();
    let mut notices = host.notices();
    let id = host.ended().await;
    assert_eq!(notices.next().snapshot.id, id);
    notices.guard = None;
    host.ended().await;
    assert!(notices.is_over());
}

// Real time: a thread has to get on while nobody else does.
#[tokio::test]
async fn r15_there_is_silence_after_the_disposal() {
    let host = Host::new();
    let notices = host.notices();
    let mut before = Vec::new();
    for _ in 0..100 {
        before.push(host.ended().await);
    }
    let (_, work) = host.start().await;
    work.answer(Answering::Agree(Agreed::DropNow));
    host.registry.dispose().await;
    for id in before {
        assert_eq!(notices.next().snapshot.id, id, "what was announced before is told");
    }
    assert!(notices.is_over(), "what the disposal ended is not");
    assert!(host.notices().is_over());
}

#[tokio::test(start_paused = true)]
async fn r18_a_listener_that_blocks_holds_no_disposal_up() {
    let host = Host::new();
    let (unblock, blocked) = mpsc::channel::<()>();
    let blocked = Mutex::new(blocked);
    let (sender, heard) = mpsc::channel();
    let _guard = host.registry.on_task_done("blocks", move |_| {
        sender.send(())?;
        let _ = blocked.lock().unwrap().recv();
        Ok(())
    });
    for _ in 0..3 {
        host.ended().await;
    }
    heard.recv_timeout(Duration::from_secs(20)).unwrap();
    let begun = Instant::now();
    host.registry.dispose().await;
    assert_eq!(begun.elapsed(), Duration::from_secs(1));
    assert_eq!(host.registry.health().missed_notices, 2);
    drop(unblock);
    heard.recv_timeout(Duration::from_secs(20)).unwrap_err();
}

#[tokio::test(start_paused = true)]
async fn r16_the_announcement_waits_until_a_waiter_has_the_end() {
    let host = Host::new();
    let notices = host.notices();
    let (id, work) = host.start().await;
    let mut one = Box::pin(host.wait(&id));
    let mut other = Box::pin(host.wait(&id));
    assert!(futures::poll!(&mut one).is_pending());
    assert!(futures::poll!(&mut other).is_pending());
    work.end(Outcome::completed());
    host.settled(&id).await;
    drop(one);
    settle_down().await;
    assert!(!host.get(&id).reported);
    assert!(other.await.reported);
    let notice = notices.next().snapshot;
    assert_eq!((notice.id, notice.reported), (id, true));
    assert_eq!(notices.until_now(&host).await, []);
}

#[tokio::test(start_paused = true)]
async fn r16_the_announcement_waits_a_second_at_most() {
    let host = Host::new();
    let notices = host.notices();
    let (id, work) = host.start().await;
    let mut waiting = Box::pin(host.registry.wait(&id, &OPERATOR, LONG));
    assert!(futures::poll!(&mut waiting).is_pending());
    work.end(Outcome::completed());
    host.settled(&id).await;
    tokio::time::advance(Duration::from_millis(999)).await;
    settle_down().await;
    assert_eq!(host.registry.health().terminal, 0, "not announced yet");
    tokio::time::advance(Duration::from_millis(2)).await;
    settle_down().await;
    let notice = notices.next().snapshot;
    assert_eq!((&notice.id, notice.reported), (&id, false));
    assert!(waiting.await.unwrap().reported, "the waiter gets it all the same");
    assert_eq!(notices.until_now(&host).await, [], "and it goes out once");
}
