//! Kinds that are changed by many at once, by those who give up, and by files that are
//! none.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use backlot::{
    Config, Reload,
    registry::{Catalog as _, Change, Kind, KindState, KindView, Start, StartError, Status},
    wasm::{Ask, Policy},
};
use backlot_tests::{Memory, TestHost, kind, same_but_new, ver};
use tokio::time::{sleep, timeout};

use crate::reloading::{BOUND, Fixture, printed_only};

/// How long a storm may take to be over.
const LONG: Duration = Duration::from_secs(30);

fn ver_kind() -> Kind {
    Kind::new("ver").unwrap()
}

impl Fixture {
    fn view(&self) -> KindView {
        self.host.host.catalog().kind(&ver_kind()).unwrap()
    }

    /// Returns the numbers of the versions that are kept, newest first.
    fn kept(&self) -> Vec<u64> {
        let earlier = self.view().earlier;
        earlier.iter().filter(|it| it.kept).map(|it| it.generation.number).collect()
    }

    /// Waits until new tasks print that letter.
    async fn until_prints(&self, letter: char) {
        // Subscribed before the first try, so that no change falls between.
        let mut changes = self.host.host.catalog().changes();
        let seen = async {
            loop {
                if let Ok(task) = self.try_start("0", "1").await
                    && task.output().await.trim() == letter.to_string()
                {
                    return;
                }
                changes.next().await.unwrap();
            }
        };
        let seen = timeout(LONG, seen).await;
        assert!(seen.is_ok(), "it prints no {letter}: {:?}", self.view());
    }
}

#[tokio::test]
async fn a_load_that_is_given_up_is_no_reason_to_leave_the_file() {
    let fixture = Fixture::with(Reload::Asked).await;
    let plugins = fixture.plugins().clone();
    let program = ver('B');
    for round in 0..20_u32 {
        // What is new has to be compiled, which takes its time.
        fixture.replace("plugins/ver.wasm", &same_but_new(&program, rand(round)));
        let patience = Duration::from_millis(u64::from(round));
        let given_up = match round % 2 {
            0 => timeout(patience, plugins.load(&ver_kind())).await.is_err(),
            _ => timeout(patience, plugins.reload()).await.is_err(),
        };
        if given_up {
            let reloaded = plugins.reload().await.unwrap();
            assert_eq!(reloaded.swapped.len(), 1, "round {round}: {reloaded:?}");
        }
        assert_eq!(fixture.prints().await, "B");
    }
}

#[tokio::test]
async fn a_removal_that_is_given_up_is_found_again() {
    let fixture = Fixture::with(Reload::Asked).await;
    let plugins = fixture.plugins().clone();
    plugins.reload().await.unwrap();
    // Somebody else has the turn, so the removal waits for it.
    fixture.replace("plugins/ver.wasm", &same_but_new(&ver('B'), rand(0)));
    let load = tokio::spawn({
        let plugins = plugins.clone();
        async move { plugins.load(&ver_kind()).await.map(drop) }
    });
    sleep(Duration::from_millis(30)).await;
    fs::remove_file(fixture.at("plugins/ver.wasm")).unwrap();
    let given_up = timeout(Duration::from_millis(5), plugins.reload()).await;
    // The load may have been over already, or have found nothing any more.
    let _ = load.await.unwrap();
    if given_up.is_err() {
        assert_eq!(plugins.reload().await.unwrap().removed, [ver_kind()]);
    }
    assert_eq!(fixture.view().state, KindState::Unloaded);
}

#[tokio::test]
async fn an_unloaded_kind_stays_so_whatever_was_under_way() {
    let fixture = Fixture::with(Reload::Asked).await;
    let plugins = fixture.plugins().clone();
    let of = ver_kind();
    let mut unloaded = 0;
    for round in 0..50 {
        fixture.replace("plugins/ver.wasm", &ver('B'));
        // A load is under way, further and further.
        let unload = async {
            sleep(Duration::from_micros(round * 20)).await;
            plugins.unload(&of).await.unwrap();
        };
        let (loaded, ()) = tokio::join!(plugins.load(&of), unload);
        loaded.unwrap();
        // Otherwise the load was the later of the two.
        if fixture.view().state == KindState::Unloaded {
            unloaded += 1;
            fixture.replace("plugins/ver.wasm", &ver('C'));
            assert!(plugins.reload().await.unwrap().swapped.is_empty(), "round {round}");
        }
        plugins.load(&of).await.unwrap();
    }
    assert!(unloaded > 0);
}

#[tokio::test]
async fn what_is_kept_to_go_back_to_is_lost_by_no_way_back() {
    let mut fixture = Fixture::watched().await;
    for letter in ['B', 'C', 'D'] {
        fixture.replace("plugins/ver.wasm", &ver(letter));
        fixture.swapped().await;
    }
    // What still runs would be had at once.
    while fixture.freed().await.number != 3 {}
    let catalog = fixture.host.host.catalog().clone();
    let of = ver_kind();
    assert_eq!(fixture.kept(), [3, 2]);
    for number in [Some(2), Some(3), None] {
        // Polled once, which takes the turn, and given up.
        let given_up = tokio::select! {
            biased;
            back = catalog.rollback(&of, number) => back.is_err(),
            () = std::future::ready(()) => true,
        };
        // Where its thread was quick it is over at once, and there is the way forward.
        if !given_up {
            catalog.rollback(&of, Some(4)).await.unwrap();
        }
        assert_eq!(fixture.view().current.unwrap().generation.number, 4);
        assert_eq!(fixture.kept(), [3, 2]);
    }
    catalog.rollback(&of, Some(3)).await.unwrap();
    assert_eq!(fixture.kept(), [4, 2]);
    catalog.rollback(&of, Some(2)).await.unwrap();
    assert_eq!(fixture.kept(), [4, 3]);
}

#[tokio::test]
async fn a_kind_that_is_unloaded_while_it_drains_has_still_to_be_empty() {
    let mut fixture = Fixture::watched().await;
    let task = fixture.forever().await;
    let plugins = fixture.plugins().clone();
    let drain = tokio::spawn(async move { plugins.drain(&ver_kind()).await });
    assert_eq!(fixture.closed().await, KindState::Draining);
    fixture.plugins().unload(&ver_kind()).await.unwrap();
    assert_eq!(fixture.closed().await, KindState::Unloaded);
    // Somebody else's last task ends, which is looked at.
    fs::copy(kind("noop"), fixture.at("plugins/noop.wasm")).unwrap();
    let noop = Kind::new("noop").unwrap();
    fixture.plugins().load(&noop).await.unwrap();
    let producer = fixture.host.host.catalog().producer(noop, Ask::default());
    let start = Start { label: "noop".into(), ..Start::default() };
    fixture.host.task_of(Arc::new(producer), start).await.end().await;
    let more = timeout(Duration::from_millis(100), fixture.closed());
    assert!(more.await.is_err() && !drain.is_finished(), "a task runs");
    printed_only(&task, 'A').await;
    timeout(BOUND, drain).await.unwrap().unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_task_of_a_kind_lives_once_it_is_drained() {
    let fixture = Arc::new(Fixture::with(Reload::Asked).await);
    for _ in 0..40 {
        let starts: Vec<_> = (0..8)
            .map(|_| {
                let fixture = Arc::clone(&fixture);
                tokio::spawn(async move { fixture.try_start("1", "3").await.ok() })
            })
            .collect();
        tokio::task::yield_now().await;
        timeout(BOUND, fixture.plugins().drain(&ver_kind())).await.unwrap().unwrap();
        for start in starts {
            if let Some(task) = start.await.unwrap() {
                // Its guest is gone, and its end is about to be told.
                let now = task.now();
                assert_eq!(now.output_bytes, "A\nA\nA\n".len() as u64, "{now:?}");
                assert_eq!(task.end().await.status, Status::Completed);
            }
        }
        fixture.plugins().load(&ver_kind()).await.unwrap();
    }
}

#[tokio::test]
async fn a_file_that_was_never_good_leaves_nothing_when_it_goes() {
    let mut fixture = Fixture::watched().await;
    let before = fixture.host.host.catalog().kinds().len();
    fs::write(fixture.at("plugins/bad.wasm"), "text").unwrap();
    fixture.refused().await;
    fs::remove_file(fixture.at("plugins/bad.wasm")).unwrap();
    fixture.closed().await;
    assert_eq!(fixture.host.host.catalog().kinds().len(), before);
    assert!(fixture.host.host.health().warnings.is_empty());

    for number in 0..1_000 {
        let path = fixture.at(&format!("plugins/draft-{number}.wasm"));
        fs::write(&path, "text").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o0)).unwrap();
        fs::remove_file(path).unwrap();
    }
    fixture.replace("plugins/ver.wasm", &ver('B'));
    fixture.until_prints('B').await;
    let gone = async {
        while fixture.host.host.catalog().kinds().len() > before {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(BOUND, gone).await.unwrap();
}

/// Each is read as a whole before it is found to be none.
#[tokio::test]
async fn many_large_files_at_once_are_not_held_at_once() {
    let mut fixture = Fixture::watched().await;
    let memory = Memory::from_now();
    let count = 12;
    for number in 0..count {
        let draft = fs::File::create(fixture.at("draft")).unwrap();
        draft.set_len(120 << 20).unwrap();
        fs::rename(fixture.at("draft"), fixture.at(&format!("plugins/sparse-{number}.wasm")))
            .unwrap();
    }
    let mut refused = BTreeSet::new();
    let all = async {
        while refused.len() < count {
            if let Some(Change::Refused { kind, .. }) = fixture.changes.next().await {
                refused.insert(kind);
            }
        }
    };
    timeout(LONG, all).await.unwrap();
    assert!(memory.growth() < 1 << 30, "{} MiB", memory.growth() >> 20);
}

#[tokio::test]
async fn files_that_are_none_are_told_and_hold_nothing_up() {
    let mut fixture = Fixture::watched().await;
    let at = |name: &str| fixture.at("plugins").join(name);
    assert!(Command::new("mkfifo").arg(at("fifo.wasm")).status().unwrap().success());
    let _socket = std::os::unix::net::UnixListener::bind(at("socket.wasm")).unwrap();
    symlink("/dev/zero", at("zero.wasm")).unwrap();
    symlink("loop.wasm", at("loop.wasm")).unwrap();
    symlink("/proc/self/mem", at("mem.wasm")).unwrap();
    // The same beside components that are fine.
    for name in ["fifo-beside", "loop-beside", "zero-beside", "huge-beside", "folder-beside"] {
        fs::write(at(&format!("{name}.wasm")), ver('X')).unwrap();
    }
    assert!(Command::new("mkfifo").arg(at("fifo-beside.toml")).status().unwrap().success());
    symlink("loop-beside.toml", at("loop-beside.toml")).unwrap();
    symlink("/dev/zero", at("zero-beside.toml")).unwrap();
    fs::File::create(at("huge-beside.toml")).unwrap().set_len(1 << 30).unwrap();
    fs::create_dir(at("folder-beside.toml")).unwrap();
    let names = [
        "fifo",
        "socket",
        "zero",
        "loop",
        "mem",
        "fifo-beside",
        "loop-beside",
        "zero-beside",
        "huge-beside",
        "folder-beside",
    ];
    let mut left: BTreeSet<&str> = names.into();
    let all = async {
        while !left.is_empty() {
            match fixture.changes.next().await {
                Some(Change::Refused { kind, why }) => {
                    assert!(why.contains(kind.as_str()), "{kind}: {why}");
                    left.remove(kind.as_str());
                }
                Some(Change::Swapped { kind, .. }) => panic!("{kind} was taken"),
                _ => {}
            }
        }
    };
    timeout(LONG, all).await.unwrap();
    fixture.replace("plugins/ver.wasm", &ver('B'));
    fixture.swapped().await;
    assert_eq!(fixture.prints().await, "B");
}

/// A file that never stays as it is, and folders that come and go.
#[tokio::test]
async fn a_restless_folder_holds_up_no_other_kind() {
    let fixture = Fixture::watched().await;
    let stop = Arc::new(AtomicBool::new(false));
    let restless = thread::spawn({
        let (stop, path) = (Arc::clone(&stop), fixture.at("plugins/restless.wasm"));
        let closed = fixture.at("plugins/closed.wasm");
        move || {
            fs::write(&closed, "x").unwrap();
            for mode in [0o000, 0o644].into_iter().cycle() {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                fs::write(&path, "x").unwrap();
                fs::set_permissions(&closed, fs::Permissions::from_mode(mode)).unwrap();
                thread::sleep(Duration::from_millis(1));
            }
        }
    });
    for letter in 'B'..='F' {
        fixture.replace("plugins/ver.wasm", &ver(letter));
        fixture.until_prints(letter).await;
    }
    stop.store(true, Ordering::Relaxed);
    restless.join().unwrap();
    for _ in 0..100 {
        fs::rename(fixture.at("plugins"), fixture.at("away")).unwrap();
        fs::create_dir(fixture.at("plugins")).unwrap();
        fs::write(fixture.at("plugins/ver.wasm"), ver('X')).unwrap();
        fs::remove_dir_all(fixture.at("plugins")).unwrap();
        fs::rename(fixture.at("away"), fixture.at("plugins")).unwrap();
    }
    fixture.replace("plugins/ver.wasm", &ver('Y'));
    fixture.until_prints('Y').await;
}

#[tokio::test]
async fn a_granted_folder_that_is_made_anew_is_the_one_that_tasks_get() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let text = format!("[kind.grep]\ndirs = ['{}::/in:ro']", data.display());
    let policy = Policy::parse(&text, "p.toml", folder.path()).unwrap();
    let plugins = kind("grep").parent().unwrap().to_owned();
    let host = TestHost::with(Config { plugins, policy, ..Config::default() });
    host.host.load_kind("grep").await.unwrap();
    let grep = async || {
        let producer = host.host.catalog().producer(Kind::new("grep").unwrap(), Ask::default());
        let input = r#"{"pattern":"needle","path":"/in"}"#.into();
        let start = Start { label: "search".into(), input, ..Start::default() };
        let id = host.registry().start(Arc::new(producer), start).await?;
        Ok::<_, StartError>(host.task_by(id).output().await)
    };
    let missing = grep().await.unwrap_err().to_string();
    assert!(missing.contains(&*data.to_string_lossy()), "{missing}");
    for name in ["one", "two"] {
        fs::create_dir(&data).unwrap();
        fs::write(data.join(name), "needle").unwrap();
        let found = grep().await.unwrap();
        assert!(found.contains(name), "{found}");
        fs::remove_dir_all(&data).unwrap();
    }
    assert!(grep().await.unwrap_err().to_string().contains("not granted"));
}

/// Whatever is loaded by whom, the last that was written is served in the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_file_that_is_replaced_while_it_is_loaded_is_loaded_again() {
    let fixture = Fixture::watched().await;
    for round in 0..10 {
        let loads: Vec<_> = (0..4)
            .map(|_| {
                let plugins = fixture.plugins().clone();
                tokio::spawn(async move {
                    for _ in 0..10 {
                        // What is there at the time may be anything.
                        let _ = plugins.load(&ver_kind()).await;
                    }
                })
            })
            .collect();
        let mut last = 'A';
        for times in 0..30 {
            last = char::from(b'A' + (round * 7 + times) % 4);
            match times % 3 {
                // In place: who reads meanwhile has seen a mixture.
                0 => fs::write(fixture.at("plugins/ver.wasm"), ver(last)).unwrap(),
                _ => fixture.replace("plugins/ver.wasm", &ver(last)),
            }
        }
        for load in loads {
            load.await.unwrap();
        }
        fixture.until_prints(last).await;
    }
}

/// All at once, and half of them given up at any moment.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn states_stay_consistent_whoever_gives_up() {
    let fixture = Arc::new(Fixture::watched().await);
    let catalog = fixture.host.host.catalog().clone();
    let mut changes = catalog.changes();
    let stop = Arc::new(AtomicBool::new(false));
    // What the events tell, one after the other.
    let told = tokio::spawn({
        let stop = Arc::clone(&stop);
        async move {
            let (mut state, mut highest) = (KindState::Serving, 1);
            loop {
                match timeout(Duration::from_millis(500), changes.next()).await {
                    Ok(Some(Change::Swapped { generation, .. })) => {
                        assert!(generation.number <= highest + 1, "{generation:?} of {highest}");
                        highest = highest.max(generation.number);
                        state = KindState::Serving;
                    }
                    Ok(Some(Change::Closed { state: now, .. })) => state = now,
                    Ok(Some(Change::Missed(missed))) => panic!("{missed} were missed"),
                    Ok(None) => panic!("the catalogue is there"),
                    Err(_) if stop.load(Ordering::Relaxed) => return (state, highest),
                    Ok(Some(_)) | Err(_) => {}
                }
            }
        }
    });
    let actors: Vec<_> = (0..12_u32)
        .map(|actor| {
            let fixture = Arc::clone(&fixture);
            tokio::spawn(async move {
                let (plugins, catalog) = (fixture.plugins(), fixture.host.host.catalog());
                for round in 0..60 {
                    let dice = rand(actor * 1_000 + round);
                    let ms = Duration::from_millis(u64::from(dice >> 8) % 6);
                    let deed = async {
                        match dice % 7 {
                            0 => drop(plugins.load(&ver_kind()).await),
                            1 => drop(plugins.unload(&ver_kind()).await),
                            2 => drop(plugins.drain(&ver_kind()).await),
                            3 => drop(catalog.rollback(&ver_kind(), None).await),
                            4 => drop(plugins.reload().await),
                            5 => drop(catalog.unload(&ver_kind()).await),
                            _ => {
                                if let Ok(task) = fixture.try_start("1", "2").await {
                                    task.end().await;
                                }
                            }
                        }
                    };
                    let _ = timeout(ms, deed).await;
                    if actor == 0 && round % 5 == 0 {
                        let letter = char::from(b'A' + u8::try_from(dice >> 16 & 3).unwrap());
                        fixture.replace("plugins/ver.wasm", &ver(letter));
                    }
                }
            })
        })
        .collect();
    for actor in actors {
        timeout(LONG, actor).await.unwrap().unwrap();
    }
    stop.store(true, Ordering::Relaxed);
    let (state, highest) = timeout(LONG, told).await.unwrap().unwrap();
    let view = fixture.view();
    assert_eq!(view.state, state, "{view:?}");
    if let Some(current) = &view.current {
        assert!(current.generation.number <= highest);
    }
    assert!(fixture.kept().len() <= 2, "{view:?}");
    // It is none the worse for it.
    timeout(BOUND, fixture.plugins().drain(&ver_kind())).await.unwrap().unwrap();
    fixture.replace("plugins/ver.wasm", &ver('Z'));
    fixture.plugins().load(&ver_kind()).await.unwrap();
    assert_eq!(fixture.prints().await, "Z");
    assert_eq!(fixture.view().current.unwrap().generation.number, highest + 1);
    fixture.replace("plugins/ver.wasm", &ver('Y'));
    fixture.until_prints('Y').await;
}

#[tokio::test]
async fn a_host_that_is_dropped_while_it_loads_is_gone_at_once() {
    let folder = tempfile::tempdir().unwrap();
    for number in 0..50 {
        // None of them has been compiled before.
        let build = same_but_new(&ver('A'), rand(number));
        fs::write(folder.path().join(format!("ver-{number}.wasm")), build).unwrap();
    }
    for ms in [0, 50, 500] {
        let plugins = folder.path().to_owned();
        let config = Config { plugins, reload: Reload::Watch, cache: None, ..Config::default() };
        let host = TestHost::with(config);
        sleep(Duration::from_millis(ms)).await;
        let since = Instant::now();
        drop(host);
        assert!(since.elapsed() < BOUND, "{:?}", since.elapsed());
    }
}

#[tokio::test]
async fn a_host_with_a_thousand_broken_files_starts_and_works() {
    let folder = tempfile::tempdir().unwrap();
    for number in 0..1_000 {
        fs::write(folder.path().join(format!("bad-{number}.wasm")), "text").unwrap();
    }
    fs::write(folder.path().join("ver.wasm"), ver('A')).unwrap();
    let plugins = folder.path().to_owned();
    let host = TestHost::with(Config { plugins, reload: Reload::Watch, ..Config::default() });
    let threads = || fs::read_dir("/proc/self/task").unwrap().count();
    let all = async {
        let mut most = 0;
        while host.host.catalog().kinds().iter().filter(|it| it.trouble.is_some()).count() < 1_000 {
            most = most.max(threads());
            sleep(Duration::from_millis(1)).await;
        }
        most
    };
    let most = timeout(LONG, all).await.unwrap();
    // Sixteen are open at a time, each with a thread or two that may have yet to end; it
    // was one for nearly each file.
    assert!(most < threads() + 100, "{most} threads");
    host.host.load_kind("ver").await.unwrap();
}

/// Returns a number that is another one in every run and for every seed.
fn rand(seed: u32) -> u32 {
    use std::hash::{BuildHasher as _, RandomState};
    u32::try_from(RandomState::new().hash_one(seed) >> 32).unwrap()
}
