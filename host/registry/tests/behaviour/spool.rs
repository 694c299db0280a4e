//! R22 once more: a spool under random use, held against all that was written.

use std::sync::{Arc, atomic::Ordering};

use backlot_registry::{
    Channel, Config, Environment, Observer, Outcome, SpoolLimits, Stream, TaskId,
};
use futures::FutureExt;
use proptest::prelude::*;

use crate::{
    observe::Disk,
    support::{Host, OPERATOR, Work},
};

#[derive(Clone, Debug)]
enum Step {
    Write { error: bool, bytes: usize },
    Observe { observer: usize, max: usize },
    Read { max: usize },
    Full(bool),
    Broken(bool),
}

fn step() -> impl Strategy<Value = Step> {
    let bytes = prop_oneof![8 => 0..700_usize, 1 => 0..20_000_usize];
    prop_oneof![
        6 => (any::<bool>(), bytes).prop_map(|(error, bytes)| Step::Write { error, bytes }),
        4 => (0..3_usize, 0..3_000_usize)
            .prop_map(|(observer, max)| Step::Observe { observer, max }),
        2 => (0..3_000_usize).prop_map(|max| Step::Read { max }),
        1 => any::<bool>().prop_map(Step::Full),
        1 => prop::bool::weighted(0.3).prop_map(Step::Broken),
    ]
}

#[derive(Clone, Debug)]
struct Limits {
    memory: u64,
    disk: u64,
    total_memory: u64,
    total_disk: u64,
}

fn limits() -> impl Strategy<Value = Limits> {
    (
        prop_oneof![Just(0), 1..5_000_u64],
        prop_oneof![Just(0), 1..20_000_u64],
        prop_oneof![Just(1 << 20), 0..5_000_u64],
        prop_oneof![Just(1 << 20), 0..20_000_u64],
    )
        .prop_map(|(memory, disk, total_memory, total_disk)| Limits {
            memory,
            disk,
            total_memory,
            total_disk,
        })
}

/// A task and all that it has written, byte by byte with its channel.
struct Model {
    host: Host,
    disk: Disk,
    id: TaskId,
    work: Work,
    written: Vec<(u8, Channel)>,
    observers: Vec<(Observer, u64)>,
    /// Where the consuming reader is.
    read: u64,
    limits: Limits,
}

impl Model {
    async fn new(limits: Limits) -> Self {
        let disk = Disk::default();
        let environment = Environment {
            spill: Some(Arc::new(disk.clone())),
            ..Environment::new(tokio::runtime::Handle::current())
        };
        let Limits { memory, disk: on_disk, total_memory, total_disk } = limits;
        let spool = SpoolLimits {
            memory,
            disk: on_disk,
            total_memory,
            total_disk,
            ..SpoolLimits::default()
        };
        let host = Host::within(Config { spool, ..Config::default() }, environment);
        let (id, work) = host.start().await;
        let observers = (0..3)
            .map(|_| (host.registry.observe(&id, &OPERATOR, Stream::Output, 0).unwrap(), 0))
            .collect();
        Self { host, disk, id, work, written: Vec::new(), observers, read: 0, limits }
    }

    async fn take(&mut self, step: Step) {
        match step {
            Step::Write { error, bytes } => {
                let channel = if error { Channel::Err } else { Channel::Out };
                let from = self.written.len();
                let new: Vec<u8> = (from..from + bytes).map(letter).collect();
                self.work.host.output().write_as(channel, &new);
                self.written.extend(new.into_iter().map(|byte| (byte, channel)));
            }
            Step::Observe { observer, max } => {
                self.observe(observer, max);
            }
            Step::Read { max } => self.read(max).await,
            Step::Full(full) => self.disk.full.store(full, Ordering::SeqCst),
            Step::Broken(broken) => self.disk.broken.store(broken, Ordering::SeqCst),
        }
        let (snapshot, health) = (self.host.get(&self.id), self.host.registry.health());
        assert_eq!(snapshot.output_bytes, self.written.len() as u64);
        let held = snapshot.output_bytes - snapshot.dropped_bytes;
        assert!(held <= self.limits.memory.saturating_add(self.limits.disk));
        assert!(health.output_memory <= self.limits.memory.min(self.limits.total_memory));
        assert!(health.output_disk <= self.limits.disk.min(self.limits.total_disk));
        assert!(held <= health.output_memory + health.output_disk);
    }

    /// Has an observer take what is there, and says whether something was.
    fn observe(&mut self, observer: usize, max: usize) -> bool {
        let (observer, at) = &mut self.observers[observer];
        let Some(Some(piece)) = observer.next(max).now_or_never() else { return false };
        assert_eq!(piece.offset, *at + piece.dropped);
        assert!(piece.bytes.len() <= max.max(1));
        assert!(!piece.bytes.is_empty() || piece.dropped > 0);
        let from = usize::try_from(piece.offset).unwrap();
        for (byte, expected) in piece.bytes.iter().zip(&self.written[from..]) {
            assert_eq!((*byte, piece.channel), *expected);
        }
        *at = piece.offset + piece.bytes.len() as u64;
        assert!(*at <= self.written.len() as u64);
        true
    }

    async fn read(&mut self, max: usize) {
        let read = self.host.registry.read(&self.id, &OPERATOR, max).await.unwrap();
        let text = match read.dropped {
            0 => read.text.as_str(),
            _ => read.text.split_once('\n').unwrap().1,
        };
        assert!(text.len() <= max.max(4));
        let from = self.read + read.dropped;
        let until = from + text.len() as u64;
        let expected = &self.written[usize::try_from(from).unwrap()..][..text.len()];
        assert!(text.bytes().eq(expected.iter().map(|(byte, _)| *byte)));
        assert_eq!(read.more, until < self.written.len() as u64);
        self.read = until;
    }

    async fn close(mut self) {
        self.work.end(Outcome::completed());
        self.host.settled(&self.id).await;
        for observer in 0..self.observers.len() {
            while self.observe(observer, 1_000) {}
            let (observer, at) = &mut self.observers[observer];
            assert_eq!(*at, self.written.len() as u64);
            assert_eq!(observer.next(1_000).await, None);
        }
        while self.read < self.written.len() as u64 {
            self.read(1_000).await;
        }
    }
}

fn letter(at: usize) -> u8 {
    b'a' + u8::try_from(at * 7 / 5 % 26).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 500,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn r22_a_spool_tells_what_was_written_and_what_is_gone(
        limits in limits(),
        steps in proptest::collection::vec(step(), 1..120),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            let mut model = Model::new(limits).await;
            for step in steps {
                model.take(step).await;
            }
            model.close().await;
        });
    }
}
