//! Kinds that are replaced while they work.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use backlot::{
    Config, Reload,
    registry::{
        Caller, Catalog as _, Change, Changes, Generation, Kind, KindState, Producer, Start,
        StartError, Status, Step,
    },
    wasm::{Ask, Plugins, Watching},
};
use backlot_tests::{Memory, Process, Task, TestHost, arguments, kind, same_but_new, ver};
use tempfile::TempDir;
use tokio::time::timeout;

/// How soon a change has to be live.
pub(crate) const BOUND: Duration = Duration::from_secs(3);

/// A host over a plugin folder of its own.
pub(crate) struct Fixture {
    pub(crate) host: TestHost,
    pub(crate) folder: TempDir,
    pub(crate) changes: Changes,
}

impl Fixture {
    /// Returns a host whose folder has `ver` A, which is loaded.
    pub(crate) async fn watched() -> Self {
        Self::with(Reload::Watch).await
    }

    pub(crate) async fn with(reload: Reload) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("plugins")).unwrap();
        fs::write(folder.path().join("plugins/ver.wasm"), ver('A')).unwrap();
        let plugins = folder.path().join("plugins");
        let host = TestHost::with(Config { plugins, reload, ..Config::default() });
        host.host.load_kind("ver").await.unwrap();
        let changes = host.host.catalog().changes();
        Self { host, folder, changes }
    }

    pub(crate) fn at(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    pub(crate) fn plugins(&self) -> &Plugins {
        self.host.host.plugins()
    }

    /// Writes a file as careful programs do.
    pub(crate) fn replace(&self, path: &str, bytes: &[u8]) {
        let draft = self.at("draft");
        fs::write(&draft, bytes).unwrap();
        fs::rename(draft, self.at(path)).unwrap();
    }

    /// Waits for a change that `pick` picks something of.
    pub(crate) async fn change<T>(&mut self, pick: impl Fn(Change) -> Option<T>) -> T {
        let picked = async {
            loop {
                let change = self.changes.next().await.unwrap();
                if let Some(picked) = pick(change) {
                    return picked;
                }
            }
        };
        timeout(BOUND, picked).await.unwrap()
    }

    /// Waits until the kind is swapped.
    pub(crate) async fn swapped(&mut self) -> Generation {
        let pick = |change| match change {
            Change::Swapped { generation, .. } => Some(generation),
            _ => None,
        };
        self.change(pick).await
    }

    /// Waits until a version is refused, and returns why.
    pub(crate) async fn refused(&mut self) -> String {
        let pick = |change| match change {
            Change::Refused { why, .. } => Some(why),
            Change::Swapped { generation, .. } => panic!("{generation:?} was taken"),
            _ => None,
        };
        self.change(pick).await
    }

    pub(crate) async fn closed(&mut self) -> KindState {
        let pick = |change| match change {
            Change::Closed { state, .. } => Some(state),
            _ => None,
        };
        self.change(pick).await
    }

    pub(crate) async fn freed(&mut self) -> Generation {
        let pick = |change| match change {
            Change::Freed { generation, .. } => Some(generation),
            _ => None,
        };
        self.change(pick).await
    }

    pub(crate) fn producer(&self) -> Arc<dyn Producer> {
        let ver = Kind::new("ver").unwrap();
        let catalog = self.host.host.catalog();
        Arc::new(catalog.producer(ver, Ask::default()))
    }

    pub(crate) async fn try_start(&self, pause: &str, times: &str) -> Result<Task, StartError> {
        let input = arguments(&[pause, times]);
        let start = Start { label: "ver".into(), input, owner: None, step: Step::default() };
        let id = self.host.registry().start(self.producer(), start).await?;
        Ok(self.host.task_by(id))
    }

    /// Starts a task that prints its letter until it is stopped.
    pub(crate) async fn forever(&self) -> Task {
        let task = self.try_start("20", "1000000").await.unwrap();
        task.until("\n").await;
        task
    }

    /// Returns what a task prints that is started now.
    pub(crate) async fn prints(&self) -> String {
        self.try_start("0", "1").await.unwrap().output().await.trim().to_owned()
    }

    pub(crate) async fn refuses(&self) -> String {
        match self.try_start("0", "1").await {
            Err(error) => error.to_string(),
            Ok(_) => panic!("it was started"),
        }
    }
}

/// Ends a task and tells whether it printed nothing but the letter.
pub(crate) async fn printed_only(task: &Task, letter: char) {
    let more = task.until(&format!("{letter}\n{letter}\n")).await;
    assert!(more.chars().all(|it| it == letter || it == '\n'), "{more}");
    task.force("enough").await.unwrap();
    assert_eq!(task.end().await.status, Status::Killed);
    let rest = task.read().await.text;
    assert!(rest.chars().all(|it| it == letter || it == '\n'), "{rest}");
}

#[tokio::test]
async fn a_new_version_serves_new_tasks_and_running_ones_keep_theirs() {
    let mut fixture = Fixture::watched().await;
    let before = fixture.forever().await;
    // A handle from before follows.
    let producer = fixture.producer();
    fixture.replace("plugins/ver.wasm", &ver('B'));
    let generation = fixture.swapped().await;
    assert_eq!(generation.number, 2);

    let mut starts = Vec::new();
    for _ in 0..20 {
        starts.push(fixture.try_start("0", "1").await.unwrap());
    }
    let start = Start { label: "ver".into(), input: arguments(&["0", "1"]), ..Start::default() };
    let id = fixture.host.registry().start(producer, start).await.unwrap();
    starts.push(fixture.host.task_by(id));
    for task in starts {
        assert_eq!(task.output().await, "B\n");
        assert_eq!(task.now().generation.as_ref(), Some(&generation));
    }
    assert_eq!(before.now().generation.unwrap().number, 1);
    printed_only(&before, 'A').await;
    assert_eq!(fixture.freed().await.number, 1);
    let view = fixture.host.host.catalog().kind(&Kind::new("ver").unwrap()).unwrap();
    assert_eq!(view.current.unwrap().generation, generation);
    assert!(view.earlier.iter().all(|earlier| earlier.kept && earlier.tasks == 0));
}

#[tokio::test]
async fn half_written_files_are_never_taken() {
    let mut fixture = Fixture::watched().await;
    let running = fixture.forever().await;
    let path = fixture.at("plugins/ver.wasm");
    let build = ver('B');

    // Nothing, and the first half, left as they are.
    for part in [0, build.len() / 2] {
        fs::write(&path, &build[..part]).unwrap();
        let why = fixture.refused().await;
        assert!(why.contains("ver.wasm"), "{why}");
        assert_eq!(fixture.prints().await, "A");
        let view = fixture.host.host.catalog().kind(&Kind::new("ver").unwrap()).unwrap();
        assert_eq!((view.state, view.trouble), (KindState::Serving, Some(why.clone())));
        assert!(fixture.host.host.health().warnings.iter().any(|line| line.contains(&why)));
    }
    // In pieces that take their time: one switch, to all of it.
    fs::write(&path, "").unwrap();
    for piece in build.chunks(build.len() / 8 + 1) {
        fixture.refused().await;
        assert_eq!(fixture.prints().await, "A");
        let mut file = fs::OpenOptions::new().append(true).open(&path).unwrap();
        std::io::Write::write_all(&mut file, piece).unwrap();
    }
    assert_eq!(fixture.swapped().await.number, 2);
    assert_eq!(fixture.prints().await, "B");
    let view = fixture.host.host.catalog().kind(&Kind::new("ver").unwrap()).unwrap();
    assert_eq!(view.trouble, None);
    printed_only(&running, 'A').await;
}

/// C24: as slowly as a copy over a network.
#[tokio::test]
async fn c24_a_file_that_is_written_slowly_is_taken_once_and_whole() {
    let fixture = Fixture::watched().await;
    let running = fixture.forever().await;
    let catalog = fixture.host.host.catalog().clone();
    let mut changes = catalog.changes();
    let path = fixture.at("plugins/ver.wasm");
    let build = ver('B');
    let pause = async |ms| {
        // Whatever is seen meanwhile, what there was goes on.
        tokio::time::sleep(Duration::from_millis(ms)).await;
        assert_eq!(fixture.prints().await, "A");
        let view = catalog.kind(&Kind::new("ver").unwrap()).unwrap();
        assert_eq!(view.state, KindState::Serving);
        view.trouble
    };
    let mut file = fs::File::create(&path).unwrap();
    assert!(pause(500).await.is_some_and(|why| why.contains("empty")));
    for piece in build.chunks(build.len() / 8 + 1).take(7) {
        std::io::Write::write_all(&mut file, piece).unwrap();
        pause(200).await;
    }
    drop(file);
    fs::write(&path, "").unwrap();
    assert!(pause(1_000).await.is_some_and(|why| why.contains("empty")));
    fs::write(&path, &build[..build.len() / 2]).unwrap();
    assert!(pause(1_000).await.is_some_and(|why| why.contains("does not compile")));
    fs::write(&path, &build).unwrap();
    let swapped = async {
        loop {
            match changes.next().await.unwrap() {
                Change::Swapped { generation, .. } => return generation.number,
                Change::Closed { state, .. } => panic!("it was {state}"),
                _ => {}
            }
        }
    };
    assert_eq!(timeout(BOUND, swapped).await.unwrap(), 2, "one switch, to all of it");
    assert_eq!(fixture.prints().await, "B");
    let view = catalog.kind(&Kind::new("ver").unwrap()).unwrap();
    assert_eq!(view.trouble, None);
    printed_only(&running, 'A').await;
}

#[tokio::test]
async fn every_replacement_is_noticed_and_not_just_the_first() {
    let mut fixture = Fixture::watched().await;
    for letter in 'B'..='F' {
        fixture.replace("plugins/ver.wasm", &ver(letter));
        fixture.swapped().await;
        assert_eq!(fixture.prints().await, letter.to_string());
    }
    let running = fixture.forever().await;
    fs::remove_file(fixture.at("plugins/ver.wasm")).unwrap();
    assert_eq!(fixture.closed().await, KindState::Unloaded);
    let refused = fixture.refuses().await;
    assert!(refused.contains("ver takes no tasks: its file") && refused.contains("is gone"));
    fs::write(fixture.at("plugins/ver.wasm"), ver('G')).unwrap();
    fixture.swapped().await;
    assert_eq!(fixture.prints().await, "G");

    // The folder goes, and what was loaded from it stays; it comes back with news.
    fs::rename(fixture.at("plugins"), fixture.at("away")).unwrap();
    assert_eq!(fixture.prints().await, "G");
    fixture.replace("away/ver.wasm", &ver('H'));
    fs::rename(fixture.at("away"), fixture.at("plugins")).unwrap();
    fixture.swapped().await;
    assert_eq!(fixture.prints().await, "H");
    // And is watched as before.
    fixture.replace("plugins/ver.wasm", &ver('I'));
    fixture.swapped().await;
    assert_eq!(fixture.prints().await, "I");
    printed_only(&running, 'F').await;
}

#[tokio::test]
async fn running_tasks_notice_neither_updates_nor_removal() {
    let mut fixture = Fixture::watched().await;
    let tasks = [fixture.forever().await, fixture.forever().await, fixture.forever().await];
    fixture.replace("plugins/ver.wasm", &ver('B'));
    fixture.swapped().await;
    printed_only(&tasks[0], 'A').await;
    fixture.replace("plugins/ver.wasm", b"garbage");
    fixture.refused().await;
    // In between they are looked at and read as ever.
    let looked = async |task: &Task| {
        task.until("A\nA\n").await;
        let now = task.now();
        assert_eq!((now.status, now.generation.unwrap().number), (Status::Running, 1));
        let read = task.read().await.text;
        assert!(read.chars().all(|it| it == 'A' || it == '\n'), "{read}");
    };
    looked(&tasks[1]).await;
    fs::set_permissions(fixture.at("plugins/ver.wasm"), fs::Permissions::from_mode(0o0)).unwrap();
    fixture.refused().await;
    looked(&tasks[2]).await;
    fs::remove_file(fixture.at("plugins/ver.wasm")).unwrap();
    fixture.closed().await;
    looked(&tasks[1]).await;
    fs::rename(fixture.at("plugins"), fixture.at("away")).unwrap();
    looked(&tasks[2]).await;
    tasks[1].until("A\nA\n").await;
    printed_only(&tasks[1], 'A').await;
    let generations: Vec<u64> = fixture.host.host.catalog().kinds()[0]
        .earlier
        .iter()
        .filter(|earlier| earlier.tasks > 0)
        .map(|earlier| earlier.generation.number)
        .collect();
    assert_eq!(generations, [1]);
    printed_only(&tasks[2], 'A').await;
    while fixture.freed().await.number != 1 {}
}

#[tokio::test]
async fn links_that_are_swapped_are_followed() {
    let mut fixture = Fixture::watched().await;
    for (folder, letter) in [("v1", 'B'), ("v2", 'C')] {
        fs::create_dir(fixture.at("plugins").join(folder)).unwrap();
        fs::write(fixture.at("plugins").join(folder).join("ver.wasm"), ver(letter)).unwrap();
    }
    let swap = |target: &str, link: PathBuf| {
        let draft = link.parent().unwrap().join("draft-of-a-link");
        symlink(target, &draft).unwrap();
        fs::rename(draft, link).unwrap();
    };
    swap("v1", fixture.at("plugins/..data"));
    swap("..data/ver.wasm", fixture.at("plugins/ver.wasm"));
    fixture.swapped().await;
    assert_eq!(fixture.prints().await, "B");
    swap("v2", fixture.at("plugins/..data"));
    fixture.swapped().await;
    assert_eq!(fixture.prints().await, "C");

    // The folder itself is a link that is pointed elsewhere.
    fs::create_dir(fixture.at("other")).unwrap();
    fs::write(fixture.at("other/ver.wasm"), ver('D')).unwrap();
    fs::rename(fixture.at("plugins"), fixture.at("first")).unwrap();
    swap("first", fixture.at("plugins"));
    swap("other", fixture.at("plugins"));
    fixture.swapped().await;
    assert_eq!(fixture.prints().await, "D");
    fixture.replace("other/ver.wasm", &ver('E'));
    fixture.swapped().await;
    assert_eq!(fixture.prints().await, "E");
}

/// C38: through two links, round in a circle, and out of the folder.
#[tokio::test]
async fn c38_links_are_followed_wherever_they_lead() {
    let mut fixture = Fixture::watched().await;
    for (folder, letter) in [("out/v1", 'B'), ("out/v2", 'C'), ("out/v3", 'D')] {
        fs::create_dir_all(fixture.at(folder)).unwrap();
        fs::write(fixture.at(folder).join("ver.wasm"), ver(letter)).unwrap();
    }
    let swap = |target: &str, link: PathBuf| {
        let draft = link.parent().unwrap().join("draft-of-a-link");
        symlink(target, &draft).unwrap();
        fs::rename(draft, link).unwrap();
    };
    // A file that is a link to one outside, by way of a link outside.
    swap("v1", fixture.at("out/now"));
    swap("../out/now/ver.wasm", fixture.at("plugins/ver.wasm"));
    fixture.swapped().await;
    assert_eq!(fixture.prints().await, "B");
    swap("v2", fixture.at("out/now"));
    fixture.swapped().await;
    assert_eq!(fixture.prints().await, "C");
    // What it leads to is written in place.
    fs::write(fixture.at("out/v2/ver.wasm"), ver('E')).unwrap();
    fixture.swapped().await;
    assert_eq!(fixture.prints().await, "E");
    // In a circle it leads nowhere, which is told, and what there was stays.
    swap("ver.wasm", fixture.at("plugins/ver.wasm"));
    let why = fixture.refused().await;
    assert!(why.contains("ver.wasm"), "{why}");
    assert_eq!(fixture.prints().await, "E");
    swap("../out/v3/ver.wasm", fixture.at("plugins/ver.wasm"));
    fixture.swapped().await;
    assert_eq!(fixture.prints().await, "D");

    // The folder is reached through two links, and each of them is pointed elsewhere.
    fs::rename(fixture.at("plugins"), fixture.at("real")).unwrap();
    swap("real", fixture.at("second"));
    swap("second", fixture.at("plugins"));
    fixture.replace("out/v3/ver.wasm", &ver('F'));
    fixture.swapped().await;
    assert_eq!(fixture.prints().await, "F");
    swap("out/v1", fixture.at("second"));
    fixture.swapped().await;
    assert_eq!(fixture.prints().await, "B");
    swap("out/v2", fixture.at("plugins"));
    fixture.swapped().await;
    assert_eq!(fixture.prints().await, "E");
    // In a circle it is none, which is told; what came from it stays, and it comes back.
    swap("plugins", fixture.at("plugins"));
    let told = async {
        while fixture.plugins().trouble().is_none() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(BOUND, told).await.unwrap();
    assert_eq!(fixture.prints().await, "E");
    swap("out/v3", fixture.at("plugins"));
    fixture.swapped().await;
    assert_eq!(fixture.prints().await, "F");
    assert_eq!(fixture.plugins().trouble(), None);
}

/// C39: in a process that may watch nothing, which is this test again.
#[test]
fn c39_a_host_that_may_watch_nothing_says_so_and_reloads() {
    const LIMIT: &str = "BACKLOT_TEST_LIMIT";
    if let Ok(limit) = std::env::var(LIMIT) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        return runtime.block_on(reloads_without_events(&limit));
    }
    for limit in ["max_inotify_watches", "max_inotify_instances"] {
        let script = r#"
            [ -n "$UNSHARED" ] || { echo "skipped: this user may have no namespaces"; exit 0; }
            echo 0 > "/proc/sys/user/$BACKLOT_TEST_LIMIT" ||
                { echo "skipped: limits are not to be set"; exit 0; }
            exec "$BACKLOT_TEST" --exact --nocapture \
                reloading::c39_a_host_that_may_watch_nothing_says_so_and_reloads"#;
        let ended = Process::unshared(script, [""; 0], |command| {
            command.env(LIMIT, limit).env("BACKLOT_TEST", std::env::current_exe().unwrap());
        })
        .wait();
        let said = format!("{}{}", ended.stdout, ended.stderr);
        assert_eq!(ended.code, Some(0), "{said}");
        match said.contains("skipped: ") {
            true => eprintln!("NOT TESTED: {said}"),
            false => assert!(said.contains("1 passed"), "{said}"),
        }
    }
}

async fn reloads_without_events(limit: &str) {
    let says = match limit {
        "max_inotify_watches" => "raise fs.inotify.max_user_watches",
        _ => "the system tells of no changes",
    };
    let mut fixture = Fixture::watched().await;
    fixture.replace("plugins/ver.wasm", &ver('B'));
    fixture.swapped().await;
    assert_eq!(fixture.prints().await, "B");
    let watching = fixture.host.host.watching().unwrap();
    assert!(matches!(&watching, Watching::Polling { .. }), "{watching:?}");
    let warnings = fixture.host.host.health().warnings;
    assert!(warnings.iter().any(|line| line.contains(says)), "{warnings:?}");
    fixture.replace("plugins/ver.wasm", &ver('C'));
    fixture.plugins().reload().await.unwrap();
    assert_eq!(fixture.prints().await, "C", "when it is asked to, at once");
}

#[tokio::test]
async fn a_host_that_is_told_of_nothing_looks_by_itself() {
    let mut fixture = Fixture::with(Reload::Poll).await;
    let watching = fixture.host.host.watching().unwrap();
    assert!(matches!(&watching, Watching::Polling { .. }), "{watching:?}");
    let said = watching.to_string();
    assert!(fixture.host.host.health().warnings.contains(&said));
    fixture.replace("plugins/ver.wasm", &ver('B'));
    fixture.swapped().await;
    assert_eq!(fixture.prints().await, "B");
}

#[tokio::test]
async fn a_broken_kind_is_replaced_like_any_other() {
    let mut fixture = Fixture::watched().await;
    // It traps as soon as it is instantiated.
    let broken = wat::parse_str(
        r#"(component
            (core module $m (func unreachable) (start 0) (func (export "run") (result i32) i32.const 0))
            (core instance $i (instantiate $m))
            (func $run (result (result)) (canon lift (core func $i "run")))
            (instance $run-interface (export "run" (func $run)))
            (export "wasi:cli/run@0.2.0" (instance $run-interface)))"#,
    )
    .unwrap();
    fixture.replace("plugins/ver.wasm", &broken);
    fixture.swapped().await;
    for _ in 0..3 {
        assert!(fixture.refuses().await.contains("cannot be instantiated"));
    }
    fixture.replace("plugins/ver.wasm", &ver('B'));
    fixture.swapped().await;
    assert_eq!(fixture.prints().await, "B");
}

/// C34: a kind whose tasks crash is locked out neither before nor after it is replaced.
#[tokio::test]
async fn c34_a_kind_that_crashes_in_run_is_replaced_like_any_other() {
    let mut fixture = Fixture::watched().await;
    let faulty = fs::read(kind("faulty")).unwrap();
    fixture.replace("plugins/faulty.wasm", &faulty);
    fixture.swapped().await;
    let catalog = fixture.host.host.catalog().clone();
    let start = async |mode: &str| {
        let producer = catalog.producer(Kind::new("faulty").unwrap(), Ask::default());
        let input = format!(r#"{{"mode":"{mode}"}}"#);
        let start = Start { label: mode.into(), input, ..Start::default() };
        fixture.host.registry().start(Arc::new(producer), start).await
    };
    for number in [1, 2] {
        for _ in 0..3 {
            let error = start("run-trap").await.unwrap_err().to_string();
            assert!(error.contains("trap") || error.contains("unreachable"), "{error}");
        }
        let task = fixture.host.task_by(start("now").await.unwrap());
        let ended = task.end().await;
        assert_eq!(ended.status, Status::Completed);
        assert_eq!(ended.generation.unwrap().number, number);
        if number == 1 {
            let mut changes = catalog.changes();
            let draft = fixture.at("draft");
            fs::write(&draft, same_but_new(&faulty, 1)).unwrap();
            fs::rename(draft, fixture.at("plugins/faulty.wasm")).unwrap();
            let swapped = async {
                let two = |view: backlot::registry::KindView| view.current.unwrap();
                let of = Kind::new("faulty").unwrap();
                while two(catalog.kind(&of).unwrap()).generation.number != 2 {
                    changes.next().await.unwrap();
                }
            };
            timeout(Duration::from_secs(20), swapped).await.unwrap();
        }
    }
}

#[tokio::test]
async fn nothing_is_taken_by_a_host_that_does_not_watch_until_it_is_asked() {
    let mut fixture = Fixture::with(Reload::Asked).await;
    fixture.replace("plugins/ver.wasm", &ver('B'));
    fs::copy(kind("noop"), fixture.at("plugins/noop.wasm")).unwrap();
    fs::write(fixture.at("plugins/bad.wasm"), "text").unwrap();
    fs::write(fixture.at("plugins/Bad.wasm"), "text").unwrap();
    assert_eq!(fixture.prints().await, "A");
    let reloaded = fixture.plugins().reload().await.unwrap();
    let kinds: Vec<&str> = reloaded.swapped.iter().map(|(kind, _)| kind.as_str()).collect();
    assert_eq!(kinds, ["noop", "ver"]);
    assert_eq!(reloaded.refused.len(), 1, "{reloaded:?}");
    assert_eq!(fixture.plugins().strays().len(), 1);
    assert_eq!(fixture.prints().await, "B");
    assert_eq!(fixture.plugins().reload().await.unwrap(), Default::default(), "nothing is new");
    fs::remove_file(fixture.at("plugins/noop.wasm")).unwrap();
    let removed = fixture.plugins().reload().await.unwrap().removed;
    assert_eq!(removed.iter().map(Kind::as_str).collect::<Vec<_>>(), ["noop"]);
    fixture.closed().await;
}

#[tokio::test]
async fn a_touched_file_is_no_new_version() {
    let fixture = Fixture::with(Reload::Asked).await;
    fixture.plugins().reload().await.unwrap();
    fixture.replace("plugins/ver.wasm", &ver('A'));
    assert_eq!(fixture.plugins().reload().await.unwrap(), Default::default());
    let view = fixture.host.host.catalog().kind(&Kind::new("ver").unwrap()).unwrap();
    assert_eq!(view.current.unwrap().generation.number, 1);
}

#[tokio::test]
async fn good_versions_can_be_gone_back_to() {
    let mut fixture = Fixture::watched().await;
    let ver_kind = Kind::new("ver").unwrap();
    for letter in ['B', 'C', 'D'] {
        fixture.replace("plugins/ver.wasm", &ver(letter));
        fixture.swapped().await;
    }
    let catalog = fixture.host.host.catalog().clone();
    // Three good ones are kept, the current one among them.
    let error = catalog.rollback(&ver_kind, Some(1)).await.unwrap_err().to_string();
    assert_eq!(error, "ver has no version 1 to go back to; it has 3, 2");
    let running = fixture.forever().await;
    assert_eq!(catalog.rollback(&ver_kind, None).await.unwrap().number, 3);
    assert_eq!(fixture.prints().await, "C");
    assert_eq!(catalog.rollback(&ver_kind, None).await.unwrap().number, 2);
    assert_eq!(fixture.prints().await, "B");
    let error = catalog.rollback(&ver_kind, None).await.unwrap_err().to_string();
    assert_eq!(error, "ver has no earlier version to go back to; it has 3, 4");
    // What still runs needs not be made ready again.
    assert_eq!(catalog.rollback(&ver_kind, Some(4)).await.unwrap().number, 4);
    assert_eq!(fixture.prints().await, "D");
    printed_only(&running, 'D').await;

    // The file is as it was, so the watch leaves it; when it changes, it is news.
    catalog.rollback(&ver_kind, Some(2)).await.unwrap();
    fixture.plugins().reload().await.unwrap();
    assert_eq!(fixture.prints().await, "B");
    fixture.replace("plugins/ver.wasm", &ver('E'));
    while fixture.swapped().await.number != 5 {}
    assert_eq!(fixture.prints().await, "E");
    let unknown = catalog.rollback(&Kind::new("none").unwrap(), None).await.unwrap_err();
    assert!(unknown.to_string().contains("there is no kind `none`"));
}

#[tokio::test]
async fn an_unloaded_kind_takes_no_tasks_until_it_is_loaded() {
    let mut fixture = Fixture::watched().await;
    let running = fixture.forever().await;
    let ver_kind = Kind::new("ver").unwrap();
    fixture.plugins().unload(&ver_kind).await.unwrap();
    assert_eq!(fixture.closed().await, KindState::Unloaded);
    assert!(fixture.refuses().await.contains("ver takes no tasks: it was unloaded"));
    // Whatever becomes of its file.
    fixture.replace("plugins/ver.wasm", &ver('B'));
    fixture.plugins().reload().await.unwrap();
    assert!(fixture.refuses().await.contains("it was unloaded"));
    // Nor does it come back because somebody wants to start a task of it.
    let error = fixture.host.host.producer("ver", Ask::default()).await.unwrap_err().to_string();
    assert!(error.contains("ver takes no tasks: it was unloaded or drained"), "{error}");
    assert!(fixture.refuses().await.contains("it was unloaded"));
    fixture.plugins().load(&ver_kind).await.unwrap();
    assert_eq!(fixture.prints().await, "B");
    printed_only(&running, 'A').await;
    assert!(fixture.plugins().unload(&Kind::new("none").unwrap()).await.is_err());
}

#[tokio::test]
async fn a_kind_that_goes_back_after_it_was_unloaded_follows_its_file_again() {
    let mut fixture = Fixture::watched().await;
    let ver_kind = Kind::new("ver").unwrap();
    fixture.replace("plugins/ver.wasm", &ver('B'));
    assert_eq!(fixture.swapped().await.number, 2);
    fixture.plugins().unload(&ver_kind).await.unwrap();
    assert_eq!(fixture.plugins().rollback(&ver_kind, Some(1)).await.unwrap().number, 1);
    assert!(fixture.plugins().reload().await.unwrap().swapped.is_empty());
    assert_eq!(fixture.prints().await, "A");
    fixture.replace("plugins/ver.wasm", &ver('C'));
    while fixture.swapped().await.number != 3 {}
    assert_eq!(fixture.prints().await, "C");
}

#[tokio::test]
async fn a_kind_is_drained_when_its_last_task_has_ended() {
    let mut fixture = Fixture::watched().await;
    let old = fixture.forever().await;
    fixture.replace("plugins/ver.wasm", &ver('B'));
    fixture.swapped().await;
    let new = fixture.forever().await;
    let plugins = fixture.plugins().clone();
    let drain = tokio::spawn(async move { plugins.drain(&Kind::new("ver").unwrap()).await });
    assert_eq!(fixture.closed().await, KindState::Draining);
    assert!(fixture.refuses().await.contains("it is being drained"));
    assert!(fixture.host.host.producer("ver", Ask::default()).await.is_err());
    for (task, letter) in [(new, 'B'), (old, 'A')] {
        assert!(!drain.is_finished());
        printed_only(&task, letter).await;
    }
    timeout(BOUND, drain).await.unwrap().unwrap().unwrap();
    assert_eq!(fixture.closed().await, KindState::Unloaded);
    assert!(fixture.refuses().await.contains("it was drained"));

    // One that is loaded again meanwhile is open.
    fixture.plugins().load(&Kind::new("ver").unwrap()).await.unwrap();
    let task = fixture.forever().await;
    let plugins = fixture.plugins().clone();
    let drain = tokio::spawn(async move { plugins.drain(&Kind::new("ver").unwrap()).await });
    fixture.closed().await;
    fixture.plugins().load(&Kind::new("ver").unwrap()).await.unwrap();
    let error = timeout(BOUND, drain).await.unwrap().unwrap().unwrap_err();
    assert!(error.to_string().contains("loaded again"), "{error}");
    assert_eq!(fixture.prints().await, "B");
    task.force("enough").await.unwrap();
}

/// C40: memory, descriptors, threads and mappings stay what they were.
#[tokio::test]
async fn c40_many_swaps_leave_nothing_behind() {
    let mut fixture = Fixture::with(Reload::Asked).await;
    let noop = fs::read(kind("noop")).unwrap();
    let path = fixture.at("plugins/noop.wasm");
    let catalog = fixture.host.host.catalog().clone();
    let noop_kind = Kind::new("noop").unwrap();
    let mut held = None;
    for swap in 0..500_u32 {
        fs::write(&path, same_but_new(&noop, swap % 2)).unwrap();
        fixture.plugins().load(&noop_kind).await.unwrap();
        let producer = catalog.producer(noop_kind.clone(), Ask::default());
        let id = fixture.host.registry().start(Arc::new(producer), Start::default()).await;
        let id = id.unwrap();
        fixture.host.registry().wait(&id, &Caller::Operator, BOUND).await.unwrap();
        if swap > 0 {
            assert_eq!(fixture.freed().await.number, u64::from(swap));
        }
        if swap == 50 {
            held = Some((Memory::now(), held_by_the_kernel()));
        }
    }
    let (memory, held) = held.unwrap();
    let growth = Memory::now().saturating_sub(memory);
    assert!(growth < 20 << 20, "{growth} bytes");
    let now = held_by_the_kernel();
    // The thread of a load that is over may have yet to end.
    let is_flat = now.0 <= held.0 && now.1 <= held.1 + 16 && now.2 <= held.2 + 2;
    assert!(is_flat, "{held:?}, then {now:?}");
    let view = catalog.kind(&noop_kind).unwrap();
    assert_eq!(view.earlier.len(), 2);
}

/// Returns how many descriptors, mappings of compiled code and threads this process has.
fn held_by_the_kernel() -> (usize, usize, usize) {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let code = maps.lines().filter(|line| line.ends_with(".code")).count();
    let count = |path| fs::read_dir(path).unwrap().count();
    (count("/proc/self/fd"), code, count("/proc/self/task"))
}

#[tokio::test]
async fn one_bad_file_stops_neither_the_host_nor_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("a.wasm"), ver('A')).unwrap();
    fs::write(at("z.wasm"), ver('Z')).unwrap();
    fs::write(at("text.wasm"), "text").unwrap();
    fs::write(at("empty.wasm"), "").unwrap();
    fs::write(at("module.wasm"), b"\0asm\x01\0\0\0").unwrap();
    fs::write(at("nothing.wasm"), b"\0asm\x0d\0\x01\0").unwrap();
    fs::copy(kind("noop"), at("misnamed.wasm")).unwrap();
    symlink("nowhere", at("dangling.wasm")).unwrap();
    fs::File::create(at("noise.wasm")).unwrap().set_len(200 << 20).unwrap();
    fs::create_dir(at("folder.wasm")).unwrap();
    let config =
        Config { plugins: folder.path().to_owned(), reload: Reload::Watch, ..Config::default() };
    let host = TestHost::with(config);
    let catalog = host.host.catalog().clone();
    // Subscribed before the first look, so that no change falls between.
    let mut changes = catalog.changes();
    let bad = ["dangling", "empty", "folder", "misnamed", "module", "noise", "nothing", "text"];
    let settled = async {
        loop {
            let kinds = catalog.kinds();
            let of = |name: &str| kinds.iter().find(|view| view.kind.as_str() == name);
            let good = |name: &str| of(name).is_some_and(|view| view.current.is_some());
            let told = |name: &&str| {
                of(name).is_some_and(|view| {
                    view.state == KindState::Broken
                        && view.trouble.as_ref().is_some_and(|why| why.contains(*name))
                })
            };
            if good("a") && good("z") && bad.iter().all(told) {
                return;
            }
            changes.next().await.unwrap();
        }
    };
    timeout(Duration::from_secs(20), settled).await.unwrap();
    let warnings = host.host.health().warnings;
    for name in bad {
        assert!(warnings.iter().any(|line| line.starts_with(&format!("{name} cannot be run"))));
    }
    for (name, letter) in [("a", "A\n"), ("z", "Z\n")] {
        let kind = Kind::new(name).unwrap();
        let producer = catalog.producer(kind, Ask::default());
        let start = Start { input: arguments(&["0", "1"]), ..Start::default() };
        let id = host.registry().start(Arc::new(producer), start).await.unwrap();
        assert_eq!(host.task_by(id).output().await, letter);
    }
    let producer = catalog.producer(Kind::new("text").unwrap(), Ask::default());
    let error = host.registry().start(Arc::new(producer), Start::default()).await.unwrap_err();
    assert!(error.to_string().contains("found no WebAssembly"), "{error}");
}
