//! Random lives of a registry, held against what must be true of every one.

use std::{
    collections::{HashMap, HashSet},
    future::Future,
    pin::Pin,
    time::Duration,
};

use backlot_registry::{
    Agreed, Caps, Config, Kill, KillError, Killed, Mode, Outcome, Owner, Snapshot, Start,
    StartError, Status, StopRefusal, TaskId, WaitError,
};
use proptest::prelude::*;

use crate::support::{Answering, Host, LONG, Notices, OPERATOR, Work, settle_down};

/// One step. Numbers choose among what there is.
#[derive(Clone, Debug)]
enum Step {
    Start {
        owned: bool,
        answering: u8,
    },
    Write {
        task: usize,
        bytes: u8,
    },
    End {
        task: usize,
        how: u8,
    },
    Report {
        task: usize,
    },
    Read {
        task: usize,
        bytes: usize,
    },
    Kill {
        task: usize,
        force: bool,
    },
    Wait {
        task: usize,
        timeout_ms: u64,
    },
    Abort {
        task: usize,
    },
    /// Polls or drops a future that is on its way.
    Poll {
        pending: usize,
    },
    Drop {
        pending: usize,
    },
    DisposeOwner,
    Pass {
        ms: u64,
    },
    Yield,
}

fn step() -> impl Strategy<Value = Step> {
    let task = 0..8_usize;
    prop_oneof![
        4 => (any::<bool>(), 0..5_u8).prop_map(|(owned, answering)| Step::Start { owned, answering }),
        4 => (task.clone(), any::<u8>()).prop_map(|(task, bytes)| Step::Write { task, bytes }),
        3 => (task.clone(), 0..4_u8).prop_map(|(task, how)| Step::End { task, how }),
        1 => task.clone().prop_map(|task| Step::Report { task }),
        3 => (task.clone(), 0..300_usize).prop_map(|(task, bytes)| Step::Read { task, bytes }),
        3 => (task.clone(), any::<bool>()).prop_map(|(task, force)| Step::Kill { task, force }),
        4 => (task.clone(), prop_oneof![Just(0), 1..3_000_u64, Just(u64::MAX)])
            .prop_map(|(task, timeout_ms)| Step::Wait { task, timeout_ms }),
        1 => task.prop_map(|task| Step::Abort { task }),
        4 => (0..8_usize).prop_map(|pending| Step::Poll { pending }),
        2 => (0..8_usize).prop_map(|pending| Step::Drop { pending }),
        1 => Just(Step::DisposeOwner),
        2 => (0..2_000_u64).prop_map(|ms| Step::Pass { ms }),
        4 => Just(Step::Yield),
    ]
}

/// A call that is on its way.
type Call = Pin<Box<dyn Future<Output = Returned>>>;

enum Returned {
    Waited(TaskId, Result<Snapshot, WaitError>),
    Killed(TaskId, Result<Killed, KillError>),
}

struct Life {
    host: Host,
    notices: Notices,
    owner: Owner,
    tasks: Vec<(TaskId, Work)>,
    calls: Vec<Call>,
    /// What was written to each task, and what was read of it.
    written: HashMap<TaskId, Vec<u8>>,
    read: HashMap<TaskId, Vec<u8>>,
    /// How each task was first seen to have ended.
    ended: HashMap<TaskId, Snapshot>,
    /// Whose end somebody got.
    told: HashSet<TaskId>,
    unknown: HashSet<TaskId>,
}

const CAP: usize = 6;

impl Life {
    fn new() -> Self {
        let caps = Caps { total: Some(CAP), ..Caps::default() };
        let host = Host::with(Config { caps, ..Config::default() });
        let notices = host.notices();
        let owner = host.owner("agent", "session");
        Self {
            host,
            notices,
            owner,
            tasks: Vec::new(),
            calls: Vec::new(),
            written: HashMap::new(),
            read: HashMap::new(),
            ended: HashMap::new(),
            told: HashSet::new(),
            unknown: HashSet::new(),
        }
    }

    async fn take(&mut self, step: Step) {
        match step {
            Step::Start { owned, answering } => self.start(owned, answering).await,
            Step::Write { task, bytes } => self.write(task, bytes),
            Step::End { task, how } => {
                let Some((_, work)) = self.pick(task) else { return };
                match how {
                    0 => work.end(Outcome::completed()),
                    1 => work.end(Outcome::killed()),
                    2 => work.end(Outcome::failed("exit code: 3")),
                    _ => work.panic("boom"),
                }
            }
            Step::Report { task } => {
                if let Some((_, work)) = self.pick(task) {
                    work.host.report("half way");
                }
            }
            Step::Read { task, bytes } => self.read(task, bytes).await,
            Step::Kill { task, force } => {
                let Some((id, _)) = self.pick(task) else { return };
                let (registry, id) = (self.host.registry.clone(), id.clone());
                let mode = if force { Mode::Force } else { Mode::Ask };
                let kill = Kill { mode, reason: None };
                self.calls.push(Box::pin(async move {
                    let killed = registry.kill(&id, &OPERATOR, kill).await;
                    Returned::Killed(id, killed)
                }));
            }
            Step::Wait { task, timeout_ms } => {
                let Some((id, _)) = self.pick(task) else { return };
                let (registry, id) = (self.host.registry.clone(), id.clone());
                self.calls.push(Box::pin(async move {
                    let timeout = Duration::from_millis(timeout_ms);
                    let waited = registry.wait(&id, &OPERATOR, timeout).await;
                    Returned::Waited(id, waited)
                }));
            }
            Step::Abort { task } => {
                let Some((id, _)) = self.pick(task) else { return };
                let (registry, id) = (self.host.registry.clone(), id.clone());
                self.calls.push(Box::pin(async move {
                    let abort = tokio::time::sleep(Duration::from_millis(700));
                    let waited = registry.wait_or_abort(&id, &OPERATOR, LONG, abort).await;
                    Returned::Waited(id, waited)
                }));
            }
            Step::Poll { pending } => self.poll(pending),
            Step::Drop { pending } => {
                if !self.calls.is_empty() {
                    let index = pending % self.calls.len();
                    drop(self.calls.swap_remove(index));
                }
            }
            Step::DisposeOwner => {
                self.look();
                self.owner.dispose().await;
                let gone = self.tasks.iter().map(|(id, _)| id).filter(|id| !self.host.is_known(id));
                self.unknown.extend(gone.cloned());
                self.owner = self.host.owner("agent", "session");
            }
            Step::Pass { ms } => {
                // In steps that let drivers get on: one that does not for seconds
                // is taken for blocked, which is another story.
                for _ in 0..ms.div_ceil(400) {
                    tokio::time::advance(Duration::from_millis(ms.min(400))).await;
                    settle_down().await;
                }
            }
            Step::Yield => settle_down().await,
        }
    }

    fn pick(&self, task: usize) -> Option<&(TaskId, Work)> {
        // The newest are the liveliest.
        self.tasks.len().checked_sub(1 + task).and_then(|index| self.tasks.get(index))
    }

    async fn start(&mut self, owned: bool, answering: u8) {
        self.host.fake.answer(match answering {
            0 => Answering::Agree(Agreed::WindsDown),
            1 => Answering::Agree(Agreed::DropNow),
            2 => Answering::Refuse(StopRefusal::NotNow("busy".to_owned())),
            3 => Answering::Never,
            _ => Answering::EndAndAgree(Outcome::killed()),
        });
        let start = Start { owner: owned.then(|| self.owner.clone()), ..Start::default() };
        let live = self.host.registry.health().live;
        match self.host.registry.start(self.host.fake.clone(), start).await {
            Ok(id) => {
                assert!(live < CAP);
                assert!(self.tasks.iter().all(|(known, _)| *known != id), "an id is used once");
                self.tasks.push((id, self.host.fake.work()));
            }
            Err(StartError::Full { .. }) => assert_eq!(live, CAP),
            Err(error) => panic!("{error}"),
        }
    }

    fn write(&mut self, task: usize, bytes: u8) {
        let Some((id, work)) = self.pick(task) else { return };
        let id = id.clone();
        // What is written after the end goes nowhere.
        let live = self.host.registry.get(&id, &OPERATOR).is_ok_and(|it| !it.status.is_terminal());
        let sink = work.host.output();
        let written = self.written.entry(id).or_default();
        let from = written.len();
        let new: Vec<u8> =
            (from..from + usize::from(bytes)).map(|at| b'a' + (at % 26) as u8).collect();
        sink.write(&new);
        if live {
            written.extend(new);
        }
    }

    async fn read(&mut self, task: usize, bytes: usize) {
        let Some((id, _)) = self.pick(task) else { return };
        let id = id.clone();
        let Ok(read) = self.host.registry.read(&id, &OPERATOR, bytes).await else {
            assert!(self.unknown.contains(&id));
            return;
        };
        assert_eq!(read.dropped, 0);
        if read.snapshot.status.is_terminal() {
            assert!(read.snapshot.reported);
            self.told.insert(id.clone());
        }
        self.read.entry(id).or_default().extend(read.text.into_bytes());
    }

    fn poll(&mut self, pending: usize) {
        if self.calls.is_empty() {
            return;
        }
        let index = pending % self.calls.len();
        let waker = futures::task::noop_waker();
        let mut context = std::task::Context::from_waker(&waker);
        if let std::task::Poll::Ready(returned) = self.calls[index].as_mut().poll(&mut context) {
            drop(self.calls.swap_remove(index));
            self.returned(returned);
        }
    }

    fn returned(&mut self, returned: Returned) {
        match returned {
            Returned::Waited(id, Ok(snapshot)) if snapshot.status.is_terminal() => {
                assert!(snapshot.reported);
                self.told.insert(id);
            }
            Returned::Waited(_, Ok(snapshot)) => assert!(snapshot.finished_at_ms.is_none()),
            Returned::Waited(id, Err(WaitError::Unknown(_))) => {
                assert!(self.unknown.contains(&id));
            }
            Returned::Waited(_, Err(WaitError::Aborted { .. })) => {}
            Returned::Killed(id, Ok(killed)) => {
                if let Ok(snapshot) = self.host.registry.get(&id, &OPERATOR) {
                    assert!(snapshot.reported, "a kill that succeeds counts as told");
                    assert_ne!(snapshot.status, Status::Running);
                    assert!(killed == Killed::Requested || snapshot.status.is_terminal());
                }
            }
            Returned::Killed(id, Err(KillError::Unknown(_))) => assert!(self.unknown.contains(&id)),
            Returned::Killed(_, Err(KillError::Refused { why, .. })) => {
                assert_eq!(why, StopRefusal::NotNow("busy".to_owned()));
            }
            Returned::Killed(_, Err(error)) => panic!("{error}"),
        }
    }

    /// Checks what must be true at any time.
    fn look(&mut self) {
        let mut live = 0;
        for (id, work) in &self.tasks {
            let Ok(snapshot) = self.host.registry.get(id, &OPERATOR) else {
                assert!(self.unknown.contains(id));
                continue;
            };
            if !snapshot.status.is_terminal() {
                assert!(!self.ended.contains_key(id), "an end is final");
                live += 1;
                continue;
            }
            assert!(work.is_gone(), "an ended task has let its work go");
            assert!(snapshot.finished_at_ms >= Some(snapshot.started_at_ms));
            let ended = self.ended.entry(id.clone()).or_insert_with(|| snapshot.clone());
            // Only whether it was told may change about it, and only one way.
            assert!(snapshot.reported || !ended.reported);
            ended.reported = snapshot.reported;
            assert_eq!(*ended, snapshot);
            if self.told.contains(id) {
                assert!(snapshot.reported);
            }
            // What was left of the stop is told.
            match snapshot.status {
                Status::Killed => assert!(snapshot.stopped_by.is_some()),
                Status::Running | Status::Stopping => unreachable!(),
                Status::Completed | Status::Failed => {}
            }
        }
        assert_eq!(self.host.registry.health().live, live, "caps hold what lives and no more");
        assert!(live <= CAP);
        assert!(self.host.registry.health().waiters <= self.calls.len() as u64);
    }

    /// Ends what still lives, and checks what must be true in the end.
    async fn close(mut self) {
        self.calls.clear();
        settle_down().await;
        assert_eq!(self.host.registry.health().waiters, 0, "no waiter is kept");
        let ids: Vec<_> = self.tasks.iter().map(|(id, _)| id.clone()).collect();
        for id in &ids {
            if self.host.is_known(id) {
                self.host.force(id).await.unwrap();
                self.host.wait(id).await;
                self.told.insert(id.clone());
            }
        }
        self.look();
        assert_eq!(self.host.registry.health().live, 0, "no cap is kept");
        assert_eq!(self.host.fake.held(), 0, "no work is kept");
        for id in &ids {
            if self.host.is_known(id) {
                let rest = self.host.read(id).await;
                let read = self.read.entry(id.clone()).or_default();
                read.extend(rest.into_bytes());
                let written = self.written.get(id).cloned().unwrap_or_default();
                assert_eq!(*read, written, "nothing of {id} is lost or doubled");
            }
        }
        let mut told = self.notices.until_now(&self.host).await;
        told.sort();
        let mut all = ids;
        all.sort();
        assert_eq!(told, all, "every end is announced once");
        let health = self.host.registry.health();
        assert_eq!((health.missed_notices, health.listener_failures), (0, 0));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_life_keeps_the_promises(steps in proptest::collection::vec(step(), 1..80)) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            let mut life = Life::new();
            for step in steps {
                life.take(step).await;
                life.look();
            }
            life.close().await;
        });
    }
}
