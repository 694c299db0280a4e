//! Compiled code: kept, found again, distrusted, and never more than it may cost.

use std::{
    fs, io,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
    process::Command,
    sync::mpsc,
    thread,
    time::{Duration, Instant, SystemTime},
};

use backlot::{
    Config, Host,
    registry::Status,
    wasm::{Compiler, Component, FileStamp},
};
use backlot_tests::{Process, TestHost, backlot, kind};
use tempfile::TempDir;

/// A folder with a compiler that counts, a cache and a component file.
struct Fixture {
    folder: TempDir,
}

impl Fixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let compiler = folder.path().join("compiler");
        let script = format!(
            "#!/bin/sh\necho x >> {}\nexec {} \"$@\"\n",
            folder.path().join("compiled").display(),
            backlot().display()
        );
        fs::write(&compiler, script).unwrap();
        fs::set_permissions(&compiler, fs::Permissions::from_mode(0o755)).unwrap();
        let fixture = Self { folder };
        fixture.put("noop");
        fixture
    }

    /// Puts a kind into the component file, which then seems to be old.
    fn put(&self, name: &str) {
        fs::copy(kind(name), self.component()).unwrap();
        self.age();
    }

    /// Lets the component file seem to be as old as the program that runs. Its
    /// change time is the kernel's, so this is not enough for a memo.
    fn age(&self) {
        let then = SystemTime::now() - Duration::from_secs(60);
        fs::File::open(self.component()).unwrap().set_modified(then).unwrap();
    }

    fn component(&self) -> PathBuf {
        self.folder.path().join("it.wasm")
    }

    fn cache(&self) -> PathBuf {
        self.folder.path().join("cache")
    }

    fn config(&self) -> Config {
        Config {
            cache: Some(self.cache()),
            compiler: Compiler::Program(self.folder.path().join("compiler")),
            instances: Some(4),
            ..Config::default()
        }
    }

    /// How often something was compiled.
    fn compiled(&self) -> usize {
        fs::read_to_string(self.folder.path().join("compiled")).unwrap_or_default().lines().count()
    }

    /// Loads the component in a host of its own, and returns its kind.
    async fn load(&self) -> String {
        let host = Host::start(self.config()).unwrap();
        let component = host.load_file(&self.component()).await.unwrap();
        component.description().kind.to_string()
    }

    /// Returns the entries of compiled code.
    fn entries(&self) -> Vec<PathBuf> {
        let files = fs::read_dir(self.cache()).unwrap().map(|entry| entry.unwrap().path());
        files.filter(|path| path.extension().is_some_and(|end| end == "code")).collect()
    }
}

#[tokio::test]
async fn what_was_compiled_once_is_found_by_the_next_host() {
    let fixture = Fixture::new();
    for _ in 0..3 {
        assert_eq!(fixture.load().await, "noop");
        assert_eq!(fixture.compiled(), 1);
    }
    fixture.put("ticker");
    assert_eq!(fixture.load().await, "ticker");
    assert_eq!(fixture.compiled(), 2);
    assert_eq!(fixture.entries().len(), 2);
}

/// A file that has settled is not even read: its code is found by what the file was.
#[tokio::test]
async fn a_file_that_has_not_changed_is_recalled_without_being_read() {
    let fixture = Fixture::new();
    let host = Host::start(fixture.config()).unwrap();
    // It was built before the tests were, and so has settled.
    let path = kind("checksum");
    let stamp = FileStamp::from(&fs::metadata(&path).unwrap());
    let recall = async || Component::recall(host.engine(), "checksum", stamp, 1).await;
    assert!(recall().await.is_none(), "it was never loaded");
    let loaded = host.load_file(&path).await.unwrap();
    let recalled = recall().await.unwrap().unwrap();
    assert_eq!(recalled.description(), loaded.description());
    assert_eq!(fixture.compiled(), 1);
    // A memo of what is no longer kept leads nowhere.
    fs::remove_file(&fixture.entries()[0]).unwrap();
    assert!(recall().await.is_none());
}

#[tokio::test]
async fn the_profiles_do_not_take_each_others_code() {
    let fixture = Fixture::new();
    for profile in backlot::wasm::Profile::ALL {
        let host = TestHost::with(Config { profile, ..fixture.config() });
        let component = host.host.load_file(&fixture.component()).await.unwrap();
        assert_eq!(host.task(&component, "").await.end().await.status, Status::Completed);
    }
    assert_eq!(fixture.entries().len(), 2);
}

/// C30: each time it is compiled again and works, and never runs what was compiled
/// from another component.
#[tokio::test]
async fn c30_a_damaged_or_foreign_entry_is_a_miss() {
    let fixture = Fixture::new();
    fixture.put("ticker");
    fixture.load().await;
    let foreign = fs::read(&fixture.entries()[0]).unwrap();
    fs::remove_file(&fixture.entries()[0]).unwrap();
    fixture.put("noop");
    fixture.load().await;
    let [entry] = fixture.entries().try_into().unwrap();
    let whole = fs::read(&entry).unwrap();
    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 0x10;
    let damages = [
        whole[..whole.len() / 2].to_vec(),
        Vec::new(),
        b"not code at all\n".to_vec(),
        fs::read("/bin/ls").unwrap(),
        foreign,
        flipped,
    ];
    for (nth, damage) in damages.into_iter().enumerate() {
        fs::write(&entry, damage).unwrap();
        assert_eq!(fixture.load().await, "noop");
        assert_eq!(fixture.compiled(), 3 + nth, "the damaged entry was taken");
        assert_eq!(fs::read(&entry).unwrap().len(), whole.len(), "and is whole again");
    }
}

#[tokio::test]
async fn c30_a_file_that_is_replaced_is_not_taken_for_what_it_was() {
    let fixture = Fixture::new();
    assert_eq!(fixture.load().await, "noop");
    // As large and as old as the other, and in its place.
    let noop = fs::read(kind("noop")).unwrap();
    let mut other = fs::read(kind("ticker")).unwrap();
    let size = noop.len().max(other.len());
    // A custom section of the length that is missing.
    let pad = |bytes: &mut Vec<u8>, size: usize| {
        let rest = size + 16 - bytes.len();
        bytes.push(0);
        let length = u32::try_from(rest - 6).unwrap();
        bytes.extend((0..5).map(|nth| {
            let low = u8::try_from((length >> (7 * nth)) & 0x7f).unwrap();
            if nth < 4 { low | 0x80 } else { low }
        }));
        bytes.push(0);
        bytes.resize(size + 16, 0);
    };
    let mut noop = noop;
    pad(&mut noop, size);
    pad(&mut other, size);
    let then = SystemTime::now() - Duration::from_secs(600);
    for (bytes, name) in [(&noop, "noop"), (&other, "ticker"), (&noop, "noop")] {
        fs::write(fixture.component(), bytes).unwrap();
        fs::File::open(fixture.component()).unwrap().set_modified(then).unwrap();
        for _ in 0..2 {
            assert_eq!(fixture.load().await, name);
        }
    }
}

#[tokio::test]
async fn c30_a_cache_that_cannot_be_used_costs_time_and_is_told() {
    let fixture = Fixture::new();
    // Others could have put there what it has.
    fs::create_dir(fixture.cache()).unwrap();
    fs::set_permissions(fixture.cache(), fs::Permissions::from_mode(0o777)).unwrap();
    for times in 1..=2 {
        let host = Host::start(fixture.config()).unwrap();
        host.load_file(&fixture.component()).await.unwrap();
        assert_eq!(fixture.compiled(), times);
        let warnings = host.health().warnings;
        assert!(warnings[0].contains("not trusted") && warnings.len() == 1, "{warnings:?}");
    }
    assert_eq!(fixture.entries().len(), 0, "nothing is written there either");
    // A file stands in its place.
    fs::remove_dir(fixture.cache()).unwrap();
    fs::write(fixture.cache(), "a file").unwrap();
    let host = Host::start(fixture.config()).unwrap();
    host.load_file(&fixture.component()).await.unwrap();
    assert!(host.health().warnings[0].contains(&fixture.cache().display().to_string()));
}

/// C30: the disk under the cache is full.
#[test]
fn c30_a_full_disk_under_the_cache_costs_time_and_is_told() {
    let folder = tempfile::tempdir().unwrap();
    // The mount is seen by the process alone. Who may not mount is given a folder
    // that takes no files.
    let script = r#"
        [ "$UNSHARED" ] && mount -t tmpfs -o size=64k,mode=700 none "$CACHE" || CACHE=/proc/self
        exec "$@" --cache "$CACHE""#;
    let run = |args: &[&str]| {
        let mut all = vec!["run", "noop"];
        all.extend(args);
        Process::unshared(script, all, |command| {
            command.env("CACHE", folder.path());
        })
        .wait()
    };
    let ended = run(&[]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert!(ended.stderr.contains("backlot: warning: the compile cache "), "{}", ended.stderr);
    let quiet = run(&["--quiet"]);
    assert_eq!((quiet.code, quiet.stderr.as_str()), (Some(0), ""));
}

#[test]
fn the_command_line_names_the_cache_or_none() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("a/b");
    let run = |args: &[&str]| {
        let args = ["run", "noop", "--quiet"].iter().chain(args);
        let ended = Process::start_with(args, |command| {
            command.env("BACKLOT_CACHE", &cache);
        })
        .wait();
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    };
    run(&["--no-cache"]);
    assert!(!cache.exists());
    run(&[]);
    assert_eq!(fs::metadata(&cache).unwrap().permissions().mode() & 0o777, 0o700);
    let other = folder.path().join("other");
    run(&["--cache", other.to_str().unwrap()]);
    assert!(fs::read_dir(&other).unwrap().count() > 0);
    let both = Process::run(["run", "noop", "--no-cache", "--cache", "x"]);
    assert_eq!(both.code, Some(2));
}

#[tokio::test]
async fn links_to_one_component_share_its_code() {
    let fixture = Fixture::new();
    fixture.load().await;
    let link = fixture.folder.path().join("linked.wasm");
    symlink(fixture.component(), &link).unwrap();
    let host = Host::start(fixture.config()).unwrap();
    host.load_file(&link).await.unwrap();
    assert_eq!(fixture.compiled(), 1);
}

/// A component of some kilobytes whose compilation takes minutes: nested loops, and
/// every local alive in all of them.
fn costly(depth: u32) -> Vec<u8> {
    const LOCALS: u32 = 100;
    let opened: String = (0..depth)
        .map(|nth| {
            let (from, to) = (nth % LOCALS, nth * 31 % LOCALS);
            format!("loop (local.set {to} (i32.add (local.get {from}) (i32.const 1)))\n")
        })
        .collect();
    let closed: String =
        (0..depth).map(|nth| format!("(br_if 0 (local.get {})) end\n", nth % LOCALS)).collect();
    let locals = "i32 ".repeat(LOCALS as usize);
    let wat = format!("(component (core module (func (local {locals}) {opened} {closed})))");
    wat::parse_str(wat).unwrap()
}

fn write(folder: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder.join(name);
    fs::write(&path, bytes).unwrap();
    path
}

#[tokio::test]
async fn compiling_is_bounded_and_holds_up_nobody_else() {
    let fixture = Fixture::new();
    let host = Host::start(fixture.config()).unwrap();
    let bomb = write(fixture.folder.path(), "bomb.wasm", &costly(3_000));
    let harmless = kind("checksum");
    let mut refused = Box::pin(host.load_file(&bomb));
    // It is loaded while the other is being compiled.
    tokio::select! {
        early = &mut refused => panic!("{early:?}"),
        loaded = host.load_file(&harmless) => drop(loaded.unwrap()),
    }
    let why = refused.await.unwrap_err().to_string();
    assert!(why.contains("takes too much to compile: more than 10 s of CPU time"), "{why}");
}

/// A process that is killed takes its compiler with it.
#[test]
fn a_compiler_does_not_outlive_who_asked() {
    let folder = tempfile::tempdir().unwrap();
    let bomb = write(folder.path(), "bomb.wasm", &costly(3_000));
    // What the process starts holds the pipe open as well, and so its end is seen.
    let pipe = folder.path().join("held");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let script = format!("exec 9>'{}'; exec \"$@\"", pipe.display());
    let process = Process::shell(&script, [Path::new("check"), &bomb]);
    let held = fs::File::open(&pipe).unwrap();
    until_it_compiles(process.id());
    process.signal("KILL");
    process.wait();
    let (all, gone) = mpsc::channel();
    thread::spawn(move || all.send(io::read_to_string(held)));
    assert!(gone.recv_timeout(Duration::from_secs(9)).is_ok(), "a compiler is still there");
}

/// Looks until a process has another one compile, which then has threads for it. The
/// kernel tells of no such event.
fn until_it_compiles(process: u32) {
    let compiles = || {
        let tasks = fs::read_dir(format!("/proc/{process}/task")).unwrap();
        let lists = tasks.flatten().map(|task| fs::read_to_string(task.path().join("children")));
        let lists: String = lists.flatten().collect();
        lists.split_whitespace().any(|compiler| {
            fs::read_dir(format!("/proc/{compiler}/task")).is_ok_and(|tasks| tasks.count() > 1)
        })
    };
    let since = Instant::now();
    while !compiles() {
        assert!(since.elapsed() < Duration::from_secs(9), "it compiles nothing");
        thread::sleep(Duration::from_millis(1));
    }
}

#[tokio::test]
async fn a_compiler_that_fails_is_told_and_is_no_ones_end() {
    let fixture = Fixture::new();
    let compiler = |text: &str| {
        let path = fixture.folder.path().join("compiler");
        fs::write(path, format!("#!/bin/sh\n{text}\n")).unwrap();
    };
    let load = async || {
        let host = Host::start(fixture.config()).unwrap();
        host.load_file(&fixture.component()).await.map(|_| ()).unwrap_err().to_string()
    };
    compiler("kill -SEGV $$");
    assert!(load().await.contains("the compiler could not be run: it ended with signal: 11"));
    compiler("exit 0");
    assert!(load().await.contains("the compiler could not be run"), "no code is not taken");
    compiler("echo not code; exit 0");
    assert!(load().await.contains("the compiler could not be run"), "text is not taken");
    assert_eq!(fixture.entries().len(), 0, "and not kept");
}
