//! R10: who sees which tasks.

use std::time::Duration;

use backlot_registry::{
    Caller, Form, Kill, KillError, Mode, Outcome, Start, Status, Stream, TaskId, Unknown, WaitError,
};

use crate::support::{Fake, Host, OPERATOR, session, settle_down};

#[tokio::test(start_paused = true)]
async fn r10_a_foreign_task_is_answered_like_an_unknown_one() {
    let host = Host::new();
    let owner = host.owner("agent", "mine");
    let (owned, work) = host.start_owned(&owner).await;
    work.write("secret");
    let (unowned, _unowned) = host.start().await;
    let missing: TaskId = "work-999".parse().unwrap();
    let registry = &host.registry;

    for caller in [Caller::Anyone, session("theirs")] {
        for id in [&owned, &missing] {
            let unknown = Unknown { id: id.clone() };
            assert_eq!(registry.get(id, &caller), Err(unknown.clone()));
            assert_eq!(registry.read(id, &caller, 100).await, Err(unknown.clone()));
            assert_eq!(
                registry.observe(id, &caller, Stream::Output, 0).unwrap_err(),
                unknown.clone()
            );
            for mode in [Mode::Ask, Mode::Force] {
                let kill = Kill { mode, reason: None };
                assert_eq!(
                    registry.kill(id, &caller, kill).await,
                    Err(KillError::Unknown(unknown.clone()))
                );
            }
            assert_eq!(
                registry.wait(id, &caller, Duration::ZERO).await,
                Err(WaitError::Unknown(unknown))
            );
        }
        registry.get(&unowned, &caller).unwrap();
    }
    settle_down().await;
    assert_eq!(host.status(&owned), Status::Running);
    assert_eq!(work.asked(), []);
    for caller in [session("mine"), OPERATOR] {
        registry.get(&owned, &caller).unwrap();
        registry.wait(&owned, &caller, Duration::ZERO).await.unwrap();
    }
    assert_eq!(registry.read(&owned, &session("mine"), 100).await.unwrap().text, "secret");
}

#[tokio::test(start_paused = true)]
async fn r10_a_list_holds_the_callers_tasks_and_the_unowned_ones() {
    let host = Host::new();
    let (mine, theirs) = (host.owner("a", "mine"), host.owner("b", "theirs"));
    let other = Fake::new("other", Form::Final);
    let mut works = Vec::new();
    for turn in 0..3 {
        for owner in [Some(&mine), None, Some(&theirs)] {
            let start = Start {
                label: format!("{turn} of {:?}", owner.map(|owner| owner.session().as_str())),
                owner: owner.cloned(),
                ..Start::default()
            };
            let fake = if turn == 1 { &other } else { &host.fake };
            works.push(host.start_with(fake, start).await);
        }
    }
    works[0].1.end(Outcome::completed());
    host.settled(&works[0].0).await;
    let ids = |caller: &Caller| -> Vec<String> {
        host.registry.list(caller).iter().map(|task| task.id.to_string()).collect()
    };
    assert_eq!(
        ids(&session("mine")),
        ["work-1", "work-2", "other-1", "other-2", "work-4", "work-5"]
    );
    assert_eq!(ids(&Caller::Anyone), ["work-2", "other-2", "work-5"]);
    assert_eq!(ids(&session("nobody's")), ["work-2", "other-2", "work-5"]);
    assert_eq!(ids(&OPERATOR).len(), 9);
    assert!(host.registry.list(&session("mine")).iter().all(|it| !it.label.contains("theirs")));
}

#[tokio::test(start_paused = true)]
async fn r10_pages_follow_each_other_over_what_changes_between_them() {
    let host = Host::new();
    let owner = host.owner("agent", "mine");
    let mut works = Vec::new();
    for turn in 0..7 {
        works.push(if turn % 2 == 0 { host.start().await } else { host.start_owned(&owner).await });
    }
    let first = host.registry.list_page(&session("mine"), 3, 0);
    let numbers = |tasks: &[backlot_registry::Snapshot]| -> Vec<u64> {
        tasks.iter().map(|task| task.id.number).collect()
    };
    assert_eq!(numbers(&first.tasks), [1, 2, 3]);
    // The task that the page ended with goes; the next page begins where it should.
    let gone = host.owner("gone", "mine");
    works.push(host.start_owned(&gone).await);
    let second = host.registry.list_page(&session("mine"), 3, first.next.unwrap());
    assert_eq!(numbers(&second.tasks), [4, 5, 6]);
    works.last().unwrap().1.answer(crate::support::Answering::EndAndAgree(Outcome::killed()));
    gone.dispose().await;
    let third = host.registry.list_page(&session("mine"), 3, second.next.unwrap());
    assert_eq!((numbers(&third.tasks), third.next), (vec![7], None));
    let all = host.registry.list_page(&session("mine"), 7, 0);
    assert_eq!((all.tasks.len(), all.next), (7, None));
    assert_eq!(host.registry.list_page(&session("mine"), 0, 0).tasks.len(), 0);
}
