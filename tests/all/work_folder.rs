//! The work folder of a job: whatever a guest does, its quota holds.

use std::{fs, path::Path, sync::Arc};

use backlot::{
    Config,
    registry::{Producer, Start, StartError, Status},
    wasm::{Ask, Grant, Limits, LimitsAsk, Manifest, Pinned, Policy},
};
use backlot_tests::{Process, TestHost, arguments, program};
use tempfile::TempDir;

const KIB: u64 = 1 << 10;
/// What the tasks of these tests may have.
const QUOTA: u64 = 64 * KIB;
/// What a program of WASI 0.2 says of a write that fails, whatever the host says.
const LOST: &str = "I/O error (os error 29)";

/// A program of either version of WASI in a work folder, beside a folder that it may
/// write to without a bound.
struct Fixture {
    host: TestHost,
    outer: TempDir,
}

impl Fixture {
    fn new() -> Self {
        let outer = tempfile::tempdir().unwrap();
        for folder in ["job", "other"] {
            fs::create_dir(outer.path().join(folder)).unwrap();
        }
        Self { host: TestHost::start(), outer }
    }

    fn job(&self) -> std::path::PathBuf {
        self.outer.path().join("job")
    }

    fn other(&self) -> std::path::PathBuf {
        self.outer.path().join("other")
    }

    /// Does the steps, and returns what the program and the host said of them.
    async fn said(&self, program: &str, steps: &[String]) -> (String, String) {
        let component = self.host.program(program).await;
        let dir = format!("{}::/other:rw", self.other().display()).parse().unwrap();
        let grant = Grant { dirs: vec![dir], ..Grant::default() }.open().unwrap();
        let limits = Limits { work_folder: Some(QUOTA), ..Limits::default() };
        let producer = component.producer(grant, limits).with_work_folder(self.job());
        let steps: Vec<&str> = steps.iter().map(String::as_str).collect();
        let input = arguments(&[&["files"], steps.as_slice()].concat());
        let start = Start { input, ..Start::default() };
        let task = self.host.task_of(Arc::new(producer), start).await;
        let output = task.output().await;
        assert_eq!(task.now().status, Status::Completed, "only the calls fail: {output}");
        assert!(self.held() <= QUOTA, "{} bytes: {output}", self.held());
        (output, task.log().await)
    }

    /// Does the steps, and checks what came of each. `full` stands for what says that
    /// the quota is reached.
    async fn check(&self, program: &str, steps: &[(&str, &str)]) {
        let (full, apart) = match program {
            // Rust's library says so of every error of a stream.
            "probe" => ([LOST, "Quota exceeded (os error 19)", "quota"], "(os error 75)"),
            _ => (["ErrorCode::Quota"; 3], "ErrorCode::CrossDevice"),
        };
        let each: Vec<String> = steps.iter().map(|(step, _)| (*step).to_owned()).collect();
        let (said, _) = self.said(program, &each).await;
        for ((step, wanted), line) in steps.iter().zip(said.lines()) {
            let came = line.strip_prefix(step).and_then(|line| line.strip_prefix(": "));
            let came = came.unwrap_or_else(|| panic!("{step}: {said}"));
            let is_so = match *wanted {
                "full" => full.contains(&came),
                "apart" => came.ends_with(apart),
                "refused" => came != "ok",
                wanted => came == wanted,
            };
            assert!(is_so, "{program}: {line}, wanted {wanted}\n{said}");
        }
        assert_eq!(said.lines().count(), steps.len(), "{said}");
    }

    /// Returns how many bytes there are in the work folder, with those that have no name.
    fn held(&self) -> u64 {
        fn below(folder: &Path) -> u64 {
            let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
            let size = |path: std::path::PathBuf| match path.symlink_metadata().unwrap() {
                about if about.is_dir() => below(&path),
                about => about.len(),
            };
            entries.map(size).sum()
        }
        below(&self.job())
    }
}

#[tokio::test]
async fn no_way_of_writing_goes_past_the_quota() {
    let fixture = Fixture::new();
    let ways = [
        ("write:/job/a:65536", "ok"),
        ("write:/job/a:65537", "full"),
        ("append:/job/a:1", "full"),
        ("at:/job/a:65536:1", "full"),
        ("at:/job/a:0:65536", "ok"),
        ("stream:/job/a:65500:200", "full"),
        ("stream:/job/a:0:65536", "ok"),
        ("size:/job/a:65537", "full"),
        ("size:/job/b:1", "refused"),
        ("write:/job/b:1", "full"),
        ("zeroes:/job/b:1", "full"),
        ("at:/job/b:1099511627776:1", "full"),
        ("splice:/job/a:/job/b", "full"),
        ("splice:/other/none:/job/b", "refused"),
        ("symlink:a:/job/l", "full"),
        ("size:/job/a:65000", "ok"),
        ("zeroes:/job/b:536", "ok"),
        ("append:/job/b:1", "full"),
        ("truncate:/job/a", "ok"),
        ("read:/job/a", "0 bytes"),
        ("size:/job/a:65000", "ok"),
        ("write:/other/large:1000000", "ok"),
        ("at:/other/large:2000000:1", "ok"),
        ("size:/other/large:9000000", "ok"),
    ];
    fixture.check("probe", &ways).await;
    let fixture = Fixture::new();
    let ways = [
        ("write:/job/a:0:65536", "ok"),
        ("write:/job/a:0:65537", "full"),
        ("append:/job/a:1", "full"),
        ("write:/job/a:65536:1", "full"),
        ("write:/job/a:1000:64000", "ok"),
        ("size:/job/a:65537", "full"),
        ("write:/job/b:1099511627776:1", "full"),
        ("append:/job/b:1", "full"),
        ("symlink:a:/job/l", "full"),
        ("size:/job/a:40000", "ok"),
        ("both:/job/b:20000", "full"),
        ("truncate:/job/b", "ok"),
        ("both:/job/b:12768", "ok"),
        ("append:/job/b:1", "full"),
        ("truncate:/job/a", "ok"),
        ("read:/job/a", "0 bytes"),
        ("size:/job/a:40000", "ok"),
        ("write:/other/large:0:1000000", "ok"),
        ("append:/other/large:1000000", "ok"),
        ("size:/other/large:9000000", "ok"),
    ];
    fixture.check("async_command", &ways).await;
}

#[tokio::test]
async fn what_is_removed_is_given_back_once_nobody_has_it_open() {
    for (program, write) in
        [("probe", "write:/job/a:60000"), ("async_command", "write:/job/a:0:60000")]
    {
        let fixture = Fixture::new();
        let steps = [
            (write, "ok"),
            ("link:/job/a:/job/b", "ok"),
            ("append:/job/b:5000", "ok"),
            ("append:/job/a:1000", "full"),
            ("remove:/job/a", "ok"),
            (write, "full"),
            ("read:/job/a", "0 bytes"),
            ("rename:/job/a:/job/b", "ok"),
            (write, "ok"),
            ("hold:/job/a", "ok"),
            ("remove:/job/a", "ok"),
            (write, "full"),
            ("held:5536", "ok"),
            ("held:1", "full"),
            ("drop", "ok"),
            (write, "ok"),
            ("mkdir:/job/d", "ok"),
            ("rename:/job/a:/job/d/a", "ok"),
            ("rename:/job/d:/job/e", "ok"),
            ("append:/job/e/a:5536", "ok"),
            ("append:/job/e/a:1", "full"),
            ("remove:/job/e/a", "ok"),
            ("rmdir:/job/e", "ok"),
            (write, "ok"),
        ];
        fixture.check(program, &steps).await;
    }
}

#[tokio::test]
async fn nothing_is_moved_or_linked_into_the_work_folder_or_out_of_it() {
    for (program, write) in
        [("probe", "write:/job/a:1000"), ("async_command", "write:/job/a:0:1000")]
    {
        let fixture = Fixture::new();
        fs::write(fixture.other().join("large"), vec![0; 100_000]).unwrap();
        fs::write(fixture.outer.path().join("outside"), "outside").unwrap();
        let steps = [
            (write, "ok"),
            ("rename:/other/large:/job/large", "apart"),
            ("link:/other/large:/job/large", "apart"),
            ("rename:/job/a:/other/a", "apart"),
            ("link:/job/a:/other/a", "apart"),
            ("rename:/other/large:/other/larger", "ok"),
            ("link:/other/larger:/other/large", "ok"),
            ("symlink:/etc:/job/etc", "refused"),
            ("symlink:../outside:/job/out", "ok"),
            ("truncate:/job/out", "refused"),
            ("read:/job/out", "refused"),
            ("symlink:a:/job/link", "ok"),
            ("exclusive:/job/a", "refused"),
            ("exclusive:/job/new", "ok"),
            ("append:/job/link:64525", "ok"),
            ("append:/job/link:1", "full"),
        ];
        fixture.check(program, &steps).await;
        assert_eq!(fs::read_to_string(fixture.outer.path().join("outside")).unwrap(), "outside");
    }
}

#[tokio::test]
async fn what_earlier_attempts_left_counts() {
    let fixture = Fixture::new();
    fixture.check("probe", &[("mkdir:/job/d", "ok"), ("write:/job/d/a:60000", "ok")]).await;
    let more = [("write:/job/b:0:5537", "full"), ("write:/job/b:0:5536", "ok")];
    fixture.check("async_command", &more).await;
    // More than there may be, as the quota was larger then: what is there can be removed.
    fs::write(fixture.job().join("large"), vec![0; 10_000]).unwrap();
    let component = fixture.host.program("probe").await;
    let input = arguments(&["files", "append:/job/b:1", "remove:/job/d/a", "append:/job/b:1"]);
    let limits = Limits { work_folder: Some(QUOTA), ..Limits::default() };
    let grant = Grant::default().open().unwrap();
    let producer = component.producer(grant, limits).with_work_folder(fixture.job());
    let start = Start { input, ..Start::default() };
    let output = fixture.host.task_of(Arc::new(producer), start).await.output().await;
    let came: Vec<&str> = output.lines().map(|line| line.rsplit(": ").next().unwrap()).collect();
    assert_eq!(came, [LOST, "ok", "ok"], "{output}");
}

#[tokio::test]
async fn a_full_folder_is_told_once_and_the_task_goes_on() {
    let fixture = Fixture::new();
    let steps = ["write:/job/a:70000", "write:/job/b:70000", "write:/other/b:1"];
    let (said, log) = fixture.said("probe", &steps.map(str::to_owned)).await;
    assert!(said.ends_with("write:/other/b:1: ok\n"), "{said}");
    let denied = "denied: more than 64 KiB in /job; ask for more with --work-folder SIZE";
    let told: Vec<&str> = log.lines().filter(|line| line.starts_with("denied")).collect();
    assert_eq!(told, [denied], "{log}");
}

#[tokio::test]
async fn files_and_folders_are_bounded_as_well() {
    let fixture = Fixture::new();
    let at = fixture.job();
    fs::create_dir(at.join("d")).unwrap();
    for nth in 0..65_530 {
        fs::write(at.join(format!("d/{nth}")), "").unwrap();
    }
    let steps = [
        ("many:/job/n:9", "5 and Quota exceeded (os error 19)"),
        ("mkdir:/job/e", "full"),
        ("link:/job/n1:/job/e", "full"),
        ("write:/job/n1:10", "ok"),
        ("remove:/job/n1", "ok"),
        ("mkdir:/job/e", "ok"),
        ("rename:/job/n2:/job/n3", "ok"),
        ("mkdir:/job/f", "ok"),
        ("mkdir:/job/g", "full"),
    ];
    fixture.check("probe", &steps).await;
    let more = [("exclusive:/job/n", "full"), ("rmdir:/job/f", "ok"), ("exclusive:/job/n", "ok")];
    fixture.check("async_command", &more).await;
    fs::write(at.join("more"), "").unwrap();
    let limits = Limits { work_folder: Some(QUOTA), ..Limits::default() };
    let probe = fixture.host.program("probe").await;
    let producer = probe.producer(Grant::default().open().unwrap(), limits).with_work_folder(at);
    let refused = refusal(&fixture.host, producer).await;
    assert!(refused.contains("has more than 65536 files and folders"), "{refused}");
}

async fn refusal(host: &TestHost, producer: impl Producer) -> String {
    let start = Start { input: arguments(&["now"]), ..Start::default() };
    match host.registry().start(Arc::new(producer), start).await {
        Err(StartError::Refused { refusal, .. }) => refusal.to_string(),
        other => panic!("not refused: {other:?}"),
    }
}

#[tokio::test]
async fn a_start_that_is_given_a_work_folder_needs_a_place_for_it() {
    let fixture = Fixture::new();
    let probe = fixture.host.program("probe").await;
    let limits = Limits { work_folder: Some(QUOTA), ..Limits::default() };
    let open = |guest: &str| {
        let dir = format!("{}::{guest}:ro", fixture.other().display()).parse().unwrap();
        Grant { dirs: vec![dir], ..Grant::default() }.open().unwrap()
    };
    let nowhere = refusal(&fixture.host, probe.producer(open("/d"), limits)).await;
    assert!(nowhere.contains("a work folder, which only jobs have"), "{nowhere}");
    let taken = probe.producer(open("job/"), limits).with_work_folder(fixture.job());
    let taken = refusal(&fixture.host, taken).await;
    assert!(
        taken.contains("::job:ro is granted where the work folder is, which is /job"),
        "{taken}"
    );
    let missing = probe.producer(open("/d"), limits);
    let missing = missing.with_work_folder(fixture.outer.path().join("missing"));
    let missing = refusal(&fixture.host, missing).await;
    assert!(missing.contains("missing cannot be opened"), "{missing}");
    // Without one, the path is nothing to it, and `/job` may be any folder.
    let free = probe.producer(open("/job"), Limits::default());
    let start = Start { input: arguments(&["files", "mkdir:/job/d"]), ..Start::default() };
    let producer = Arc::new(free.with_work_folder("/missing"));
    let output = fixture.host.task_of(producer, start).await.output().await;
    assert!(output.starts_with("mkdir:/job/d: "), "{output}");
}

#[tokio::test]
async fn a_kind_of_a_folder_gets_one_and_a_task_of_its_own_says_why_it_does_not() {
    let outer = tempfile::tempdir().unwrap();
    let (plugins, job) = (outer.path().join("plugins"), outer.path().join("job"));
    fs::create_dir(&plugins).unwrap();
    fs::create_dir(&job).unwrap();
    fs::copy(program("probe"), plugins.join("probe.wasm")).unwrap();
    fs::write(plugins.join("probe.toml"), "work-folder = '1KiB'").unwrap();
    let host = TestHost::with(Config { plugins: plugins.clone(), ..Config::default() });
    host.host.load_kind("probe").await.unwrap();
    let producer = |ask| host.host.catalog().producer("probe".parse().unwrap(), ask);
    let steps = arguments(&["files", "write:/job/a:1024", "append:/job/a:1"]);
    let start = Start { input: steps, ..Start::default() };
    let given = producer(Ask::default()).with_work_folder(&job);
    let output = host.task_of(Arc::new(given), start).await.output().await;
    assert!(output.contains("a:1024: ok") && output.contains(LOST), "{output}");
    let nowhere = refusal(&host, producer(Ask::default())).await;
    assert!(nowhere.contains("only jobs have"), "{nowhere}");
    let plugins = plugins.to_string_lossy();
    let run = |size: &str| {
        Process::run([
            "run",
            "probe",
            "--ephemeral",
            "--plugins",
            &plugins,
            "--work-folder",
            size,
            "--",
            "now",
        ])
    };
    assert_eq!(run("0").code, Some(0), "{}", run("0").stderr);
    let refused = run("1MiB");
    assert_eq!(refused.code, Some(3), "{}", refused.stderr);
    assert!(refused.stderr.contains("start it as a job, or without one"), "{}", refused.stderr);
}

#[tokio::test]
async fn a_kind_gets_what_its_manifest_its_start_and_the_policy_come_to() {
    let policy = "[kind.probe]\nwork-folder = '64KiB'\n[kind.none]\nwork-folder = 0";
    let policy = Policy::parse(policy, "p.toml", Path::new("/")).unwrap();
    let host = TestHost::with(Config { policy, ..Config::default() });
    let folder = tempfile::tempdir().unwrap();
    let probe = host.program("probe").await;
    let catalog = host.host.catalog();
    let producer = |manifest: &str, asked: Option<u64>| {
        let manifest = Manifest::parse(manifest, "m.toml").unwrap();
        let limits = LimitsAsk { work_folder: asked, ..LimitsAsk::default() };
        let ask = Ask { limits, ..Ask::default() };
        catalog.producer_of(Pinned::new(probe.clone(), Some(manifest)), ask)
    };
    assert_eq!(producer("", None).work_folder(), None);
    assert_eq!(producer("", Some(1000)).work_folder(), Some(1000));
    assert_eq!(producer("", Some(QUOTA + 1)).work_folder(), None, "it is refused");
    assert_eq!(producer("work-folder = '1MiB'", None).work_folder(), Some(QUOTA));
    assert_eq!(producer("work-folder = '1MiB'", Some(0)).work_folder(), None);
    let run = async |producer, steps: &[&str]| {
        let input = arguments(&[&["files"], steps].concat());
        let task = host.task_of(producer, Start { input, ..Start::default() }).await;
        (task.output().await, task.now().grant)
    };
    let at = folder.path();
    let given: Arc<dyn Producer> =
        Arc::new(producer("work-folder = '1MiB'", None).with_work_folder(at));
    let (said, grant) = run(given, &["write:/job/a:65536", "append:/job/a:1"]).await;
    assert!(said.contains("a:65536: ok") && said.contains(&format!("a:1: {LOST}")), "{said}");
    assert!(grant.unwrap().iter().any(|line| line == "work-folder 64 KiB"));
    let none: Arc<dyn Producer> = Arc::new(producer("", None).with_work_folder(at));
    let (said, _) = run(none, &["read:/job/a"]).await;
    assert!(!said.contains("bytes"), "{said}");
    let nowhere = refusal(&host, producer("work-folder = '1MiB'", None)).await;
    assert!(nowhere.contains("only jobs have"), "{nowhere}");
}
