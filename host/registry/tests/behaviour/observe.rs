//! R22: observers, and how much output is kept.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use backlot_registry::{
    Channel, Config, Environment, Outcome, SpillFile, SpillStore, SpoolLimits, Stream,
};

use crate::support::{Host, OPERATOR, settle_down};

/// Spill files in memory, on a disk that can be full or broken.
#[derive(Clone, Default)]
pub struct Disk {
    pub full: Arc<AtomicBool>,
    pub broken: Arc<AtomicBool>,
    pub panics: Arc<AtomicBool>,
}

struct File {
    disk: Disk,
    bytes: Vec<u8>,
}

impl SpillStore for Disk {
    fn create(&self) -> io::Result<Box<dyn SpillFile>> {
        Ok(Box::new(File { disk: self.clone(), bytes: Vec::new() }))
    }
}

impl SpillFile for File {
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        assert!(!self.disk.panics.load(Ordering::SeqCst), "in a spill file");
        let end = usize::try_from(offset).unwrap() + bytes.len();
        if self.disk.broken.load(Ordering::SeqCst) {
            return Err(io::Error::other("broken"));
        }
        if end > self.bytes.len() {
            if self.disk.full.load(Ordering::SeqCst) {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.bytes.resize(end, 0);
        }
        self.bytes[end - bytes.len()..end].copy_from_slice(bytes);
        Ok(())
    }

    fn read_at(&mut self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        if self.disk.broken.load(Ordering::SeqCst) {
            return Err(io::Error::other("broken"));
        }
        let from = usize::try_from(offset).unwrap();
        bytes.copy_from_slice(&self.bytes[from..from + bytes.len()]);
        Ok(())
    }
}

fn spilling(memory: u64, disk: u64) -> (Host, Disk) {
    let store = Disk::default();
    let environment = Environment {
        spill: Some(Arc::new(store.clone())),
        ..Environment::new(tokio::runtime::Handle::current())
    };
    let spool = SpoolLimits { memory, disk, ..SpoolLimits::default() };
    (Host::within(Config { spool, ..Config::default() }, environment), store)
}

/// Returns all that an observer sees until the end, and what it was told is gone.
async fn all(host: &Host, id: &backlot_registry::TaskId, from: u64, max: usize) -> (Vec<u8>, u64) {
    let mut observer = host.registry.observe(id, &OPERATOR, Stream::Output, from).unwrap();
    let (mut bytes, mut dropped) = (Vec::new(), 0);
    while let Some(piece) = observer.next(max).await {
        assert!(piece.bytes.len() <= max.max(1));
        assert_eq!(piece.offset, from + bytes.len() as u64 + dropped + piece.dropped);
        dropped += piece.dropped;
        bytes.extend_from_slice(&piece.bytes);
    }
    (bytes, dropped)
}

fn numbered(bytes: usize) -> Vec<u8> {
    (0..).flat_map(|number: u32| format!("{number}\n").into_bytes()).take(bytes).collect()
}

#[tokio::test(start_paused = true)]
async fn r22_observers_disturb_neither_each_other_nor_readers() {
    let host = Host::new();
    let (id, work) = host.start().await;
    let text = numbered(200_000);
    let observers = futures::future::join_all(
        [(0, 100), (5, 4096), (123_456, 1), (0, usize::MAX)]
            .map(|(from, max)| all(&host, &id, from, max)),
    );
    let writing = async {
        let mut read = String::new();
        for part in text.chunks(777) {
            work.host.output().write(part);
            settle_down().await;
            read += &host.read(&id).await;
        }
        work.end(Outcome::completed());
        read
    };
    let (seen, read) = tokio::join!(observers, writing);
    for ((bytes, dropped), from) in seen.iter().zip([0, 5, 123_456, 0]) {
        assert_eq!((bytes.as_slice(), *dropped), (&text[from..], 0));
    }
    assert_eq!(read.as_bytes(), text);
    assert_eq!(all(&host, &id, 0, 1000).await.0, text, "also long after the end");
}

/// Who watches for long does not have the work asked over and over.
#[tokio::test(start_paused = true)]
async fn r22_a_passive_observer_has_nothing_handed_over() {
    let host = Host::new();
    let (id, work) = host.start().await;
    work.hold_back("held back");
    let observe = || host.registry.observe(&id, &OPERATOR, Stream::Output, 0).unwrap();
    let mut passive = observe().passive();
    let mut next = Box::pin(passive.next(100));
    settle_down().await;
    assert!(futures::poll!(&mut next).is_pending());
    // Another has it handed over, and both see it.
    assert_eq!(observe().next(100).await.unwrap().bytes, "held back");
    assert_eq!(next.await.unwrap().bytes, "held back");
}

#[tokio::test(start_paused = true)]
async fn r22_channels_are_kept_apart() {
    let host = Host::new();
    let (id, work) = host.start().await;
    for (channel, text) in [
        (Channel::Out, "one "),
        (Channel::Out, "two "),
        (Channel::Err, "bad "),
        (Channel::Out, "three"),
    ] {
        work.host.output().write_as(channel, text.as_bytes());
    }
    work.host.log().write(b"aside");
    work.end(Outcome::completed());
    host.settled(&id).await;
    let mut observer = host.registry.observe(&id, &OPERATOR, Stream::Output, 0).unwrap();
    let mut pieces = Vec::new();
    while let Some(piece) = observer.next(100).await {
        pieces.push((
            piece.offset,
            piece.channel,
            String::from_utf8(piece.bytes.to_vec()).unwrap(),
        ));
    }
    assert_eq!(
        pieces,
        [
            (0, Channel::Out, "one two ".to_owned()),
            (8, Channel::Err, "bad ".to_owned()),
            (12, Channel::Out, "three".to_owned()),
        ]
    );
    let mut log = host.registry.observe(&id, &OPERATOR, Stream::Log, 0).unwrap();
    assert_eq!(&log.next(100).await.unwrap().bytes[..], b"aside");
    assert_eq!(log.next(100).await, None);
    assert_eq!(host.read(&id).await, "one two bad three");
}

#[tokio::test(start_paused = true)]
async fn r22_what_does_not_fit_in_memory_is_spilled() {
    let (host, _disk) = spilling(1_000, 1 << 20);
    let (id, work) = host.start().await;
    let text = numbered(300_000);
    for part in text.chunks(321) {
        work.host.output().write(part);
    }
    work.end(Outcome::completed());
    host.settled(&id).await;
    assert_eq!(all(&host, &id, 0, 5_000).await, (text.clone(), 0));
    assert!(host.registry.health().output_memory <= 1_000);
    assert_eq!(host.read(&id).await.as_bytes(), text);
}

#[tokio::test(start_paused = true)]
async fn r22_the_oldest_goes_when_the_file_is_full_and_is_told() {
    let (host, _disk) = spilling(1_000, 10_000);
    let (id, work) = host.start().await;
    let text = numbered(300_000);
    for part in text.chunks(321) {
        work.host.output().write(part);
    }
    work.end(Outcome::completed());
    host.settled(&id).await;
    let (bytes, dropped) = all(&host, &id, 7, 5_000).await;
    assert_eq!(dropped + 7, host.get(&id).dropped_bytes);
    assert_eq!(bytes, text[usize::try_from(dropped).unwrap() + 7..]);
    assert!((10_000..=11_000).contains(&bytes.len()), "{}", bytes.len());
    assert_eq!(host.registry.health().output_disk, 10_000);
}

#[tokio::test(start_paused = true)]
async fn r22_a_full_disk_costs_only_the_oldest() {
    let (host, disk) = spilling(1_000, 1 << 20);
    let (id, work) = host.start().await;
    let text = numbered(300_000);
    for (turn, part) in text.chunks(500).enumerate() {
        disk.full.store(turn >= 100, Ordering::SeqCst);
        work.host.output().write(part);
    }
    work.end(Outcome::completed());
    host.settled(&id).await;
    let (bytes, dropped) = all(&host, &id, 0, 5_000).await;
    assert!(bytes.len() > 45_000, "the file goes on as large as it is: {}", bytes.len());
    assert_eq!(bytes, text[usize::try_from(dropped).unwrap()..]);
    assert_eq!(dropped + bytes.len() as u64, 300_000);
}

#[tokio::test(start_paused = true)]
async fn r22_a_broken_spill_file_costs_what_it_held() {
    for panics in [false, true] {
        let (host, disk) = spilling(1_000, 1 << 20);
        let (id, work) = host.start().await;
        let text = numbered(20_000);
        work.host.output().write(&text[..10_000]);
        if panics { &disk.panics } else { &disk.broken }.store(true, Ordering::SeqCst);
        work.host.output().write(&text[10_000..]);
        work.end(Outcome::completed());
        host.settled(&id).await;
        let (bytes, dropped) = all(&host, &id, 0, 5_000).await;
        assert_eq!((bytes.as_slice(), dropped), (&text[19_000..], 19_000));
        assert_eq!(host.registry.health().output_disk, 0);
    }
    // Also when it breaks while it is read.
    let (host, disk) = spilling(1_000, 1 << 20);
    let (id, work) = host.start().await;
    let text = numbered(20_000);
    work.host.output().write(&text);
    disk.broken.store(true, Ordering::SeqCst);
    let read = host.registry.read(&id, &OPERATOR, usize::MAX).await.unwrap();
    assert!(read.dropped >= 19_000);
    assert!(read.text.ends_with(std::str::from_utf8(&text[19_300..]).unwrap()));
}

#[tokio::test(start_paused = true)]
async fn r22_totals_bound_all_tasks_together() {
    let store = Disk::default();
    let environment = Environment {
        spill: Some(Arc::new(store)),
        ..Environment::new(tokio::runtime::Handle::current())
    };
    let spool = SpoolLimits {
        memory: 1_000,
        disk: 10_000,
        total_memory: 2_500,
        total_disk: 25_000,
        log: 100,
    };
    let host = Host::within(Config { spool, ..Config::default() }, environment);
    let text = numbered(30_000);
    let mut works = Vec::new();
    for _ in 0..5 {
        let (id, work) = host.start().await;
        for part in text.chunks(100) {
            work.host.output().write(part);
        }
        work.host.log().write(&text);
        let health = host.registry.health();
        assert!(health.output_memory <= 2_500 && health.output_disk <= 25_000, "{health:?}");
        works.push((id, work));
    }
    // Who came first keeps what it has; what is held of the others is the newest.
    for (turn, (id, work)) in works.iter().enumerate() {
        work.end(Outcome::completed());
        host.settled(id).await;
        let (bytes, dropped) = all(&host, id, 0, 5_000).await;
        assert_eq!(dropped + bytes.len() as u64, 30_000);
        assert_eq!(bytes, text[usize::try_from(dropped).unwrap()..]);
        assert!(turn > 1 || bytes.len() > 10_000);
    }
    drop(works);
    host.registry.dispose().await;
    let Host { registry, .. } = host;
    drop(registry);
}

#[tokio::test(start_paused = true)]
async fn r22_a_limit_of_zero_keeps_nothing() {
    let spool = SpoolLimits { memory: 0, ..SpoolLimits::default() };
    let host = Host::with(Config { spool, ..Config::default() });
    let (id, work) = host.start().await;
    work.write("gone");
    let mut observer = host.registry.observe(&id, &OPERATOR, Stream::Output, 1).unwrap();
    let piece = observer.next(10).await.unwrap();
    assert_eq!((piece.offset, piece.bytes.len(), piece.dropped), (4, 0, 3));
    let read = host.registry.read(&id, &OPERATOR, 10).await.unwrap();
    assert_eq!((read.dropped, read.text.as_str()), (4, "[4 bytes of output were dropped here]\n"));
    work.end(Outcome::completed());
    host.settled(&id).await;
    assert_eq!(observer.next(10).await, None);
}

#[tokio::test(start_paused = true)]
async fn c07_a_flood_stays_within_its_bounds() {
    let spool = SpoolLimits { memory: 1 << 16, ..SpoolLimits::default() };
    let host = Host::with(Config { spool, ..Config::default() });
    let (id, work) = host.start().await;
    for _ in 0..20_000 {
        work.host.output().write_as(Channel::Err, &[b'x'; 64]);
    }
    work.host.output().write(&vec![b'y'; 64 << 20]);
    let snapshot = host.get(&id);
    assert_eq!(snapshot.output_bytes, 20_000 * 64 + (64 << 20));
    assert_eq!(host.registry.health().output_memory, 1 << 16);
    assert_eq!(snapshot.output_bytes - snapshot.dropped_bytes, 1 << 16);
}

#[tokio::test(start_paused = true)]
async fn r22_a_change_of_channel_with_every_byte_is_bounded() {
    let host = Host::new();
    let (id, work) = host.start().await;
    for turn in 0..100_001_u32 {
        let channel = if turn % 2 == 0 { Channel::Out } else { Channel::Err };
        work.host.output().write_as(channel, b"x");
    }
    work.end(Outcome::completed());
    host.settled(&id).await;
    let mut observer = host.registry.observe(&id, &OPERATOR, Stream::Output, 0).unwrap();
    let (mut dropped, mut held) = (0, 0);
    while let Some(piece) = observer.next(usize::MAX).await {
        // What is given out is never taken for what it is not.
        let channel = if piece.offset % 2 == 0 { Channel::Out } else { Channel::Err };
        assert_eq!((piece.channel, piece.bytes.len()), (channel, 1));
        dropped += piece.dropped;
        held += 1;
    }
    assert_eq!((dropped + held, held), (100_001, 64 << 10));
}

#[tokio::test(start_paused = true)]
async fn r22_an_observer_has_the_work_hand_over_its_output() {
    let host = Host::new();
    let (id, work) = host.start().await;
    work.hold_back("first");
    let mut observer = host.registry.observe(&id, &OPERATOR, Stream::Output, 0).unwrap();
    assert_eq!(&observer.next(100).await.unwrap().bytes[..], b"first");
    let (piece, ()) = tokio::join!(observer.next(100), async {
        settle_down().await;
        work.hold_back("second");
    });
    assert_eq!(&piece.unwrap().bytes[..], b"second");
}

#[tokio::test(start_paused = true)]
async fn r22_a_dropped_next_loses_nothing() {
    let host = Host::new();
    let (id, work) = host.start().await;
    let mut observer = host.registry.observe(&id, &OPERATOR, Stream::Output, 0).unwrap();
    for turn in 0..10 {
        let waited = tokio::time::timeout(Duration::from_millis(1), observer.next(100)).await;
        assert!(waited.is_err());
        work.write(&turn.to_string());
        assert_eq!(observer.next(100).await.unwrap().offset, turn);
    }
    work.end(Outcome::completed());
    assert_eq!(observer.next(100).await, None);
    assert_eq!(observer.next(100).await, None);
    assert_eq!(observer.offset(), 10);
}
