//! Floods: whatever a guest writes, and whoever reads or does not, the host holds a
//! bounded part of it and tells how much is gone.

use std::time::Duration;

use backlot::{
    registry::{Snapshot, Status},
    wasm::Limits,
};
use backlot_tests::{Memory, Process, Task, TestHost, With, arguments, program};

/// How much is written: three times what is kept, and far more than it may cost.
const FLOOD: u64 = 192 << 20;
/// What a task may cost beside its own linear memory. Its spool holds 1 MiB in
/// memory; the rest is room for one call of 16 MiB, the first use of code and
/// stacks, and an allocator that does not give back at once.
const COST: u64 = 48 << 20;
/// What a spool keeps by default, in memory and on disk.
const KEPT: u64 = 65 << 20;

/// Waits until the task has written that much, and ends it.
async fn flooded(task: &Task) -> Snapshot {
    loop {
        let now = task.wait(Duration::from_millis(10)).await;
        assert_eq!(now.status, Status::Running, "{now:?}");
        if now.output_bytes >= FLOOD {
            break;
        }
    }
    task.force("enough").await.unwrap();
    task.end().await
}

/// The reader gets what is kept, after the number of bytes that are not.
async fn tells_what_was_dropped(task: &Task, ended: &Snapshot) {
    let kept = ended.output_bytes - ended.dropped_bytes;
    assert!((KEPT - (2 << 20)..=KEPT).contains(&kept), "{kept} bytes were kept");
    let read = task.read().await;
    let notice = format!("[{} bytes of output were dropped here]\n", ended.dropped_bytes);
    assert!(read.text.starts_with(&notice), "{}", &read.text[..100]);
}

/// C07: on stdout, on stderr, and as output that is fetched.
#[tokio::test]
async fn c07_a_flood_that_nobody_reads_is_bounded_on_every_stream() {
    let host = TestHost::start();
    let probe = host.program("probe").await;
    let faulty = host.kind("faulty").await;
    for (component, input) in [
        (&probe, arguments(&["flood"])),
        (&probe, arguments(&["flood", "stderr"])),
        (&faulty, r#"{"mode":"flood"}"#.to_owned()),
    ] {
        let memory = Memory::from_now();
        let task = host.task(component, &input).await;
        let ended = flooded(&task).await;
        let growth = memory.growth();
        let guest = ended.usage.unwrap().peak_memory;
        assert!(growth < guest + COST, "{input}: {growth} bytes for a guest of {guest}");
        tells_what_was_dropped(&task, &ended).await;
    }
}

/// C07: 64 MiB that come in one call are refused with the limit named, and where
/// the limit is raised they are kept in part.
#[tokio::test]
async fn c07_one_call_that_hands_over_very_much_is_bounded() {
    const BYTES: u64 = 64 << 20;
    let host = TestHost::start();
    let faulty = host.kind("faulty").await;
    let read = format!(r#"{{"mode":"read-big","bytes":{BYTES}}}"#);
    let last = format!(r#"{{"mode":"final-output","bytes":{BYTES}}}"#);
    for input in [&read, &last] {
        let memory = Memory::from_now();
        let ended = host.task(&faulty, input).await.end().await;
        let growth = memory.growth();
        let guest = ended.usage.unwrap().peak_memory;
        assert!(guest >= BYTES, "it had them: {guest}");
        assert!(growth < guest + COST, "{input}: {growth} bytes for a guest of {guest}");
        assert_eq!((ended.status, ended.output_bytes), (Status::Failed, 0));
        let detail = ended.detail.unwrap();
        assert!(detail.contains("limit of 16 MiB for what one call may hand over"), "{detail}");
    }

    let limits = Limits { host_call: 128 << 20, ..Limits::default() };
    let with = || With { limits, ..With::default() };
    let memory = Memory::from_now();
    let task = host.try_task(&faulty, &read, with()).await.unwrap();
    let ended = flooded(&task).await;
    let (growth, guest) = (memory.growth(), ended.usage.unwrap().peak_memory);
    assert!(growth < guest + BYTES + COST, "{growth} bytes for a guest of {guest}");
    tells_what_was_dropped(&task, &ended).await;

    let memory = Memory::from_now();
    let task = host.try_task(&faulty, &last, with()).await.unwrap();
    let ended = task.end().await;
    let (growth, guest) = (memory.growth(), ended.usage.unwrap().peak_memory);
    assert!(growth < guest + BYTES + COST, "{growth} bytes for a guest of {guest}");
    assert_eq!((ended.status, ended.output_bytes), (Status::Completed, 8 << 20));
    let detail = ended.detail.unwrap();
    assert!(detail.contains(&format!("{} bytes dropped", BYTES - (8 << 20))), "{detail}");
}

/// A disk that is full ends no task, and what did not fit is told.
#[test]
fn a_full_disk_under_the_spill_folder_costs_old_output_and_nothing_else() {
    const BYTES: u64 = 20_000_000;
    let probe = program("probe").display().to_string();
    let bytes = BYTES.to_string();
    let args = ["run", "--ephemeral", &probe, "--", "bytes", &bytes];
    // In a mount namespace of its own a folder can be a disk of one megabyte.
    // Where that is not allowed, a limit on file sizes stands in for it.
    let full = r#"
        folder=$(mktemp -d); trap 'rmdir "$folder"' EXIT; export TMPDIR="$folder"
        small='mount -t tmpfs -o size=1m none "$TMPDIR" && exec "$@"'
        if unshare -rm sh -c "$small" sh true 2>/dev/null
        then small() { unshare -rm sh -c "$small" sh "$@"; }
        else small() { (ulimit -f 2000; exec "$@"); }
        fi
        small "$@" | (head -c 1; sleep 0.5; cat)"#;
    let ended = Process::shell(full, args).wait();
    let last = ended.stderr.lines().last().unwrap();
    assert!(last.contains("probe-1 completed"), "{}", ended.stderr);
    let (_, told) = last.split_once('(').unwrap();
    let told: u64 = told.split(' ').next().unwrap().parse().unwrap();
    assert_eq!(ended.stdout.len() as u64 + told, BYTES, "{last}");
    // All of it would have fitted on a disk with room.
    assert!(told > 0, "{last}");
    let end = &ended.stdout[ended.stdout.len() - 1_000_000..];
    assert!(numbered(BYTES).ends_with(end), "the newest megabyte is whole");
}

/// What the probe writes: so many bytes of numbered lines.
fn numbered(bytes: u64) -> String {
    let bytes = usize::try_from(bytes).unwrap();
    let mut all = String::new();
    for line in 1.. {
        all += &format!("line {line}\n");
        if all.len() >= bytes {
            break;
        }
    }
    all.truncate(bytes);
    all
}

/// A folder that takes no file is like a disk that was full from the start.
#[tokio::test]
async fn a_spill_folder_that_takes_nothing_costs_old_output_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    for spill in [folder.path().join("missing"), file, "/proc".into(), "/dev/full".into()] {
        let config = backlot::Config { spill: spill.clone(), ..backlot::Config::default() };
        let host = TestHost::with(config);
        let other = host.probe(&["tick", "20", "10"]).await;
        let task = host.probe(&["bytes", "5000000"]).await;
        let ended = task.end().await;
        assert_eq!(ended.status, Status::Completed, "{}", spill.display());
        // Its newest megabyte is in memory.
        assert_eq!(ended.dropped_bytes, 5_000_000 - (1 << 20));
        assert_eq!(task.read().await.dropped, ended.dropped_bytes);
        assert_eq!(other.output().await.lines().count(), 20);
    }
}

/// C09: at its cap and past it a task goes on, and ends as it would have.
#[tokio::test]
async fn c09_reaching_the_cap_on_output_does_not_trap_the_guest() {
    const CAP: u64 = 16 << 10;
    // In memory, on disk, and the two of them in parts. Nothing is kept at 0.
    for (cap, memory, disk) in [(CAP, CAP, 0), (CAP, 0, CAP), (CAP, CAP / 2, CAP / 2), (0, 0, 0)] {
        let mut config = backlot::Config::default();
        config.registry.spool.memory = memory;
        config.registry.spool.disk = disk;
        let host = TestHost::with(config);
        let probe = host.program("probe").await;
        let many = [CAP - 1, CAP, CAP + 1, 10 * CAP].map(|bytes| ("bytes", bytes));
        for (how, bytes) in many.into_iter().chain([("once", 2 * CAP)]) {
            let task = host.task(&probe, &arguments(&[how, &bytes.to_string()])).await;
            let ended = task.end().await;
            let what = format!("{how} {bytes} with {memory} and {disk}: {ended:?}");
            assert_eq!((ended.status, &ended.detail), (Status::Completed, &None), "{what}");
            assert_eq!(ended.output_bytes, bytes, "{what}");
            let kept = ended.output_bytes - ended.dropped_bytes;
            match (memory, disk) {
                // What moves to disk does so in pieces of an eighth.
                (1.., 1..) => assert!(kept <= cap && kept + CAP / 8 >= bytes.min(cap), "{what}"),
                _ => assert_eq!(kept, bytes.min(cap), "{what}"),
            }
            let read = task.read().await;
            assert_eq!(read.dropped, ended.dropped_bytes, "{what}");
            let text = match read.dropped {
                0 => read.text.as_str(),
                _ => read.text.split_once('\n').unwrap().1,
            };
            assert_eq!(text.len() as u64, kept, "{what}");
            assert!(numbered(bytes).ends_with(text), "{what}: not its end");
        }
    }
    // Unset, it is what the configuration documents.
    let unset = backlot::Config::default().registry.spool;
    assert_eq!((unset.memory, unset.disk), (1 << 20, 64 << 20));
    let host = TestHost::start();
    let ended = host.probe(&["bytes", &unset.disk.to_string()]).await.end().await;
    assert_eq!((ended.status, ended.dropped_bytes), (Status::Completed, 0));
}
