//! The sandbox: what is not granted does not exist.

use std::{
    ffi::OsStr,
    fs,
    os::unix::ffi::OsStrExt as _,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use backlot::{registry::Status, wasm::Grant};
use backlot_tests::{Process, Task, TestHost, With, arguments, program};

fn folder(host: &Path, guest: &str, access: &str) -> Grant {
    let dir = format!("{}::{guest}:{access}", host.display()).parse().unwrap();
    Grant { dirs: vec![dir], ..Grant::default() }
}

async fn probe(host: &TestHost, grant: Grant, args: &[&str]) -> Task {
    let probe = host.program("probe").await;
    let with = With { grant, ..With::default() };
    host.try_task(&probe, &arguments(args), with).await.unwrap()
}

/// Everything in a folder, with what would show that it was touched.
fn listing(folder: &Path) -> Vec<String> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let about = entry.metadata().unwrap();
        all.push(format!("{:?} {:?} {:?}", entry.path(), about.len(), about.modified().unwrap()));
    }
    all.sort();
    all
}

/// C21: links and `..` do not leave the granted folder.
#[tokio::test]
async fn c21_links_and_dots_do_not_leave_the_granted_folder() {
    let outer = tempfile::tempdir().unwrap();
    let granted = outer.path().join("granted");
    fs::create_dir_all(granted.join("sub")).unwrap();
    fs::create_dir(outer.path().join("empty")).unwrap();
    fs::write(outer.path().join("outside.txt"), "secret").unwrap();
    fs::write(granted.join("inside.txt"), "inside").unwrap();
    // What a host may have put there itself is refused as well.
    std::os::unix::fs::symlink("/etc", granted.join("etc")).unwrap();
    std::os::unix::fs::symlink("../outside.txt", granted.join("out")).unwrap();
    let outside = || {
        let mut all = listing(outer.path());
        all.retain(|line| !line.contains("granted"));
        all
    };
    let before = outside();
    let host = TestHost::start();
    let task = probe(&host, folder(&granted, "/granted", "rw"), &["escape", "/granted"]).await;
    let output = task.output().await;
    assert_eq!(task.now().status, Status::Completed, "only the calls fail: {:?}", task.now());
    assert!(!output.contains("ESCAPED"), "{output}");
    assert_eq!(output.lines().count(), 33, "{output}");
    let paths = ["paths", "/granted/etc/hostname", "/granted/out", "/granted/inside.txt"];
    let output = probe(&host, folder(&granted, "/granted", "ro"), &paths).await.output().await;
    assert_eq!(output.matches("refused").count(), 2, "{output}");
    assert!(output.contains("read /granted/inside.txt: 6 bytes"), "{output}");
    assert_eq!(outside(), before, "nothing outside changes");
}

/// C21: names that only the host can make, and what the kernel's links lead to.
#[tokio::test]
async fn c21_names_and_links_of_the_host_harm_nobody() {
    let outer = tempfile::tempdir().unwrap();
    let granted = outer.path().join("granted");
    fs::create_dir_all(granted.join("odd")).unwrap();
    fs::write(outer.path().join("outside.txt"), "secret").unwrap();
    fs::write(granted.join("inside.txt"), "inside").unwrap();
    fs::write(granted.join("n".repeat(255)), "long").unwrap();
    fs::write(granted.join("odd").join(OsStr::from_bytes(b"not \xff text")), "odd").unwrap();
    fs::write(granted.join("odd/fine"), "fine").unwrap();
    let links = [
        ("root", "/proc/self/root/etc/hostname"),
        ("cwd", "/proc/self/cwd/Cargo.toml"),
        ("fd", "/proc/self/fd/1"),
        ("above", "../granted/../outside.txt"),
        ("loop", "loop"),
        ("chain", "above"),
        ("dangling", "nowhere"),
        ("into", "odd/../inside.txt"),
    ];
    for (name, target) in links {
        std::os::unix::fs::symlink(target, granted.join(name)).unwrap();
    }
    let long = format!("/g/{}", "n".repeat(255));
    let longer = format!("/g/{}", "n".repeat(256));
    let deep = format!("/g/{}inside.txt", "odd/../".repeat(1_000));
    let mut paths = vec!["paths".to_owned(), long, longer, deep, "/g/odd/fine".into()];
    paths.extend(["/g/odd/not \u{fffd} text", "/g/inside.txt/", "/g/\n", "/g/."].map(String::from));
    paths.extend(links.map(|(name, _)| format!("/g/{name}")));
    let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
    let host = TestHost::start();
    let grant = folder(&granted, "/g", "ro");
    let output = probe(&host, grant.clone(), &paths).await.output().await;
    let read: Vec<&str> = output
        .lines()
        .filter_map(|line| line.strip_prefix("read /g/"))
        .map(|line| &line[line.len().min(255)..])
        .collect();
    assert_eq!(output.matches("refused ").count() + read.len(), paths.len() - 1, "{output}");
    assert!(!output.contains("refused /g/odd/fine") && !output.contains("refused /g/into"));
    assert!(output.contains(&format!("{}: 4 bytes", "n".repeat(255))), "{output}");
    // The long names, what is fine, and a link that stays within.
    assert_eq!(read.len(), 3, "{output}");
    // A listing with a name that is no text fails, or leaves it out; no task ends of it.
    let task = probe(&host, grant.clone(), &["list", "/g/odd"]).await;
    let listed = task.output().await;
    assert_eq!(task.now().status, Status::Completed, "{:?}", task.now());
    assert!(listed.starts_with("refused") || listed.contains("fine"), "{listed}");
    let listed = probe(&host, grant, &["list", "/g"]).await.output().await;
    assert!(listed.contains("inside.txt") && listed.contains("chain"), "{listed}");
}

/// C21: by no call of either version of WASI.
#[tokio::test]
async fn c21_no_call_changes_what_is_granted_for_reading() {
    let host = TestHost::start();
    for program in ["probe", "async_command"] {
        let changes = async |one: &str, other: &str| {
            let outer = tempfile::tempdir().unwrap();
            let at = |path: &str| outer.path().join(path);
            for folder in ["one/sub", "other"] {
                fs::create_dir_all(at(folder)).unwrap();
            }
            fs::write(at("one/a"), "a").unwrap();
            fs::write(at("other/b"), "b").unwrap();
            std::os::unix::fs::symlink("a", at("one/link")).unwrap();
            let all = || {
                let about = [at("one"), at("other")].map(|path| fs::metadata(path).unwrap());
                let times = about.map(|about| format!("{:?}", about.modified().unwrap()));
                (listing(&at("one")), listing(&at("other")), times)
            };
            let before = all();
            let mut grant = folder(&at("one"), "/one", one);
            grant.dirs.extend(folder(&at("other"), "/other", other).dirs);
            let component = host.program(program).await;
            let with = With { grant, ..With::default() };
            let task = host.try_task(&component, &arguments(&["changes"]), with).await.unwrap();
            let output = task.output().await;
            assert_eq!(task.now().status, Status::Completed, "{output}");
            (output, before, all())
        };
        let (output, before, after) = changes("ro", "ro").await;
        assert!(output.lines().count() >= 27, "{program}: {output}");
        let done: Vec<&str> = output.lines().filter(|line| line.contains("Ok(")).collect();
        assert_eq!(done, [""; 0], "{program}: {output}");
        assert_eq!(before, after, "{program}");
        // Nor where the other folder may be written to.
        let (output, before, after) = changes("ro", "rw").await;
        let done: Vec<&str> = output.lines().filter(|line| line.contains("Ok(")).collect();
        assert_eq!(done, [""; 0], "{program}: {output}");
        assert_eq!(before, after, "{program}");
        // Nor does the one that may be written to take from, or lend to, the other.
        let (output, before, after) = changes("rw", "ro").await;
        for call in ["rename out", "rename in", "rename over", "link out", "link in"] {
            let line = output.lines().find(|line| line.starts_with(&format!("{call}: "))).unwrap();
            assert!(line.contains("Err("), "{program}: {line}");
        }
        assert_eq!((before.1, &before.2[1]), (after.1, &after.2[1]), "{program}");
        // And all that is so where both may be.
        let (output, before, after) = changes("rw", "rw").await;
        assert!(output.matches("Ok(").count() >= 10, "{program}: {output}");
        assert_ne!(before, after, "{program}");
    }
}

/// C21: a folder that is swapped for a link while a guest walks it.
#[tokio::test]
async fn c21_a_folder_that_is_swapped_for_a_link_lets_nobody_out() {
    let outer = tempfile::tempdir().unwrap();
    let granted = outer.path().join("granted");
    fs::create_dir_all(granted.join("real")).unwrap();
    fs::create_dir(outer.path().join("secrets")).unwrap();
    fs::write(outer.path().join("secrets/file"), "secret").unwrap();
    fs::write(granted.join("real/file"), "public, and longer").unwrap();
    let link = granted.join("link");
    let (real, away) = (granted.join("real"), granted.join("away"));
    std::os::unix::fs::symlink("../secrets", &link).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let swapping = std::thread::spawn({
        let (stop, link) = (Arc::clone(&stop), link.clone());
        move || {
            while !stop.load(Ordering::Relaxed) {
                fs::rename(&real, &away).unwrap();
                fs::rename(&link, &real).unwrap();
                fs::rename(&real, &link).unwrap();
                fs::rename(&away, &real).unwrap();
            }
        }
    });
    let host = TestHost::start();
    let mut args = vec!["paths"];
    args.extend(std::iter::repeat_n("/granted/real/file", 2_000));
    let output = probe(&host, folder(&granted, "/granted", "ro"), &args).await.output().await;
    stop.store(true, Ordering::Relaxed);
    swapping.join().unwrap();
    assert_eq!(output.lines().count(), 2_000);
    assert!(!output.contains(": 6 bytes"), "the secret was read");
    assert!(output.contains(": 18 bytes"), "the public file was read at times");
}

#[tokio::test]
async fn a_folder_that_is_granted_for_reading_cannot_be_changed() {
    let granted = tempfile::tempdir().unwrap();
    fs::write(granted.path().join("a"), "a").unwrap();
    let before = listing(granted.path());
    let host = TestHost::start();
    let faulty = host.kind("faulty").await;
    let with = With { grant: folder(granted.path(), "/g", "ro"), ..With::default() };
    let input = r#"{"mode":"fs","tries":[
        {"op":"read","path":"/g/a"},{"op":"write","path":"/g/a"},{"op":"append","path":"/g/a"},
        {"op":"write","path":"/g/b"},{"op":"mkdir","path":"/g/c"},{"op":"remove","path":"/g/a"},
        {"op":"rename","path":"/g/a","to":"/g/d"},{"op":"link","path":"/g/a","to":"/g/e"},
        {"op":"symlink","path":"a","to":"/g/f"}]}"#;
    let task = host.try_task(&faulty, input, with).await.unwrap();
    let output = task.output().await;
    assert_eq!(output.lines().count(), 9, "{output}");
    assert_eq!(listing(granted.path()), before, "{output}");
}

/// C23: no environment and no network unless granted.
#[tokio::test]
async fn c23_a_guest_sees_no_environment_and_no_network() {
    let host = TestHost::start();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let peers = [format!("127.0.0.1:{port}"), format!("localhost:{port}"), "[::1]:80".to_owned()];
    let dial: Vec<&str> = std::iter::once("dial").chain(peers.iter().map(String::as_str)).collect();

    let output = probe(&host, Grant::default(), &["env"]).await.output().await;
    assert!(!output.contains("\nenv "), "{output}");
    let output = probe(&host, Grant::default(), &dial).await.output().await;
    assert_eq!(output.matches("refused").count(), 3, "{output}");

    let grant = Grant {
        env: vec!["ONE=1".parse().unwrap()],
        tcp: vec![format!("127.0.0.1:{port}").parse().unwrap()],
        ..Grant::default()
    };
    let output = probe(&host, grant.clone(), &["env"]).await.output().await;
    assert_eq!(
        output.lines().filter(|line| line.starts_with("env ")).collect::<Vec<_>>(),
        ["env ONE=1"]
    );
    let output = probe(&host, grant, &dial).await.output().await;
    assert!(output.contains(&format!("connected 127.0.0.1:{port}")), "{output}");
    assert_eq!(output.matches("refused").count(), 2, "only the granted peer: {output}");

    let by_name =
        Grant { tcp: vec![format!("localhost:{port}").parse().unwrap()], ..Grant::default() };
    let output = probe(&host, by_name, &dial).await.output().await;
    assert!(output.contains(&format!("connected localhost:{port}")), "{output}");
}

#[tokio::test]
async fn nothing_listens_and_nothing_is_looked_up_without_a_grant() {
    let host = TestHost::start();
    let faulty = host.kind("faulty").await;
    let input = r#"{"mode":"net","connect":["127.0.0.1:9"],"listen":["127.0.0.1:0"],
        "resolve":["localhost:80","example.com:80"]}"#;
    let output = host.task(&faulty, input).await.output().await;
    assert_eq!(output.lines().count(), 4, "{output}");
    assert!(!output.to_lowercase().contains(" ok"), "{output}");
    let grant = Grant { tcp: vec!["127.0.0.1:9".parse().unwrap()], ..Grant::default() };
    let with = With { grant, ..With::default() };
    let output = host.try_task(&faulty, input, with).await.unwrap().output().await;
    assert!(!output.to_lowercase().contains(" ok"), "a peer is no permit to listen: {output}");
}

/// Opening a FIFO would block a thread until somebody opens the other end.
#[tokio::test]
async fn fifos_sockets_and_devices_are_refused() {
    let granted = tempfile::tempdir().unwrap();
    let made = std::process::Command::new("mkfifo").arg(granted.path().join("fifo")).status();
    assert!(made.unwrap().success());
    let _socket = std::os::unix::net::UnixListener::bind(granted.path().join("socket")).unwrap();
    std::os::unix::fs::symlink("fifo", granted.path().join("link")).unwrap();
    let host = TestHost::start();
    for name in ["fifo", "socket", "link"] {
        let task =
            probe(&host, folder(granted.path(), "/g", "rw"), &["open", &format!("/g/{name}")])
                .await;
        let ended = task.wait(Duration::from_secs(5)).await;
        assert_eq!(ended.status, Status::Completed, "{name}: {ended:?}");
        let output = task.read().await.text;
        assert!(output.starts_with("refused"), "{output}");
    }
    let faulty = host.kind("faulty").await;
    let with = With { grant: folder(granted.path(), "/g", "rw"), ..With::default() };
    let task = host.try_task(&faulty, r#"{"mode":"fifo","path":"/g/fifo"}"#, with).await.unwrap();
    assert!(task.wait(Duration::from_secs(5)).await.status.is_terminal());
    let devices =
        probe(&host, folder(Path::new("/dev"), "/dev", "rw"), &["paths", "/dev/null", "/dev/zero"])
            .await;
    let output = devices.output().await;
    assert_eq!(output.matches("refused").count(), 2, "{output}");
}

/// C23 over HTTP: a request reaches a granted peer, and nobody else.
#[tokio::test]
async fn c23_http_reaches_granted_peers_only() {
    use std::io::{Read as _, Write as _};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = std::thread::spawn(move || {
        let (mut peer, _) = listener.accept().unwrap();
        let mut request = Vec::new();
        let mut piece = [0; 1024];
        while !request.windows(4).any(|end| end == b"\r\n\r\n") {
            let read = peer.read(&mut piece).unwrap();
            request.extend_from_slice(&piece[..read]);
        }
        peer.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: close\r\n\r\nhello")
            .unwrap();
        String::from_utf8(request).unwrap()
    });
    let host = TestHost::start();
    let fetch = host.program("fetch").await;
    let urls = [
        format!("http://localhost:{port}/path?query"),
        format!("http://127.0.0.1:{port}/"),
        "http://localhost:1/".to_owned(),
        format!("http://user@127.0.0.1:{port}/"),
    ];
    let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
    let ungranted = host.task(&fetch, &arguments(&urls)).await.output().await;
    assert_eq!(ungranted.matches("refused").count(), 4, "{ungranted}");
    let grant =
        Grant { tcp: vec![format!("localhost:{port}").parse().unwrap()], ..Grant::default() };
    let with = With { grant, ..With::default() };
    let output = host.try_task(&fetch, &arguments(&urls), with).await.unwrap().output().await;
    assert!(output.starts_with(&format!("200 {}: hello\n", urls[0])), "{output}");
    assert_eq!(output.matches("refused").count(), 3, "{output}");
    let request = server.join().unwrap();
    assert!(request.starts_with("GET /path?query HTTP/1.1\r\n"), "{request}");
    assert!(request.to_lowercase().contains(&format!("host: localhost:{port}\r\n")), "{request}");
}

/// A listing that nobody reads must not keep one of everybody's threads.
#[tokio::test]
async fn listings_that_are_not_read_hold_no_threads() {
    let granted = tempfile::tempdir().unwrap();
    for name in ["file", "other", "third"] {
        fs::write(granted.path().join(name), name).unwrap();
    }
    let host = TestHost::start();
    let program = host.program("async_command").await;
    let start = async |args: &[&str]| {
        let with = With { grant: folder(granted.path(), "/g", "ro"), ..With::default() };
        host.try_task(&program, &arguments(args), with).await.unwrap()
    };
    assert_eq!(start(&["list"]).await.output().await, "file\nother\nthird\n");
    let holder = start(&["hold", "600"]).await;
    assert_eq!(holder.output().await, "held 600, opened true\n", "{:?}", holder.now());
}

#[tokio::test]
async fn the_times_of_a_fifo_cannot_be_set_and_nothing_blocks() {
    let granted = tempfile::tempdir().unwrap();
    let made = std::process::Command::new("mkfifo").arg(granted.path().join("fifo")).status();
    assert!(made.unwrap().success());
    fs::write(granted.path().join("file"), "").unwrap();
    let old = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1);
    let file = fs::File::options().write(true).open(granted.path().join("file")).unwrap();
    file.set_modified(old).unwrap();
    let host = TestHost::start();
    let program = host.program("async_command").await;
    for (name, worked) in [("fifo", false), ("file", true)] {
        let with = With { grant: folder(granted.path(), "/g", "rw"), ..With::default() };
        let task = host.try_task(&program, &arguments(&["touch", name]), with).await.unwrap();
        let ended = task.wait(Duration::from_secs(5)).await;
        assert_eq!(ended.status, Status::Completed, "{name}: {ended:?}");
        assert_eq!(task.read().await.text.starts_with("Ok"), worked, "{name}");
    }
    assert!(fs::metadata(granted.path().join("file")).unwrap().modified().unwrap() > old);
}

/// The last descriptors are the host's, whatever guests do: without any it could
/// load nothing and spill nothing.
#[test]
fn guests_do_not_take_the_last_descriptors() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a"), "a").unwrap();
    let run = |args: &[&str]| {
        let script = r#"ulimit -n 200; exec "$@""#;
        let granted = format!("{}::/g", folder.path().display());
        let program = program("probe");
        let mut all =
            vec!["run", program.to_str().unwrap(), "--dir", &granted, "--net", "127.0.0.1:1", "--"];
        all.extend(args);
        let ended = Process::shell(script, all).wait();
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        ended.stdout
    };
    assert_eq!(run(&["sockets", "40"]), "made 40\n");
    let refused = run(&["sockets", "150"]);
    assert!(refused.contains("new-socket-limit"), "{refused}");
    assert_eq!(run(&["hoard", "/g/a", "40"]), "opened 40\n");
    let refused = run(&["hoard", "/g/a", "150"]);
    assert!(refused.starts_with("refused: "), "{refused}");
}
