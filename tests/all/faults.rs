//! Data folders that cannot be used, or not any more: what is said of it, and that nothing
//! is made worse.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use backlot::backlot_jobs::{DataFolder, Status};
use backlot_surface::{
    Client, ClientError,
    wire::{LookQuery, SpawnRequest, StopOutcome, StopRequest},
};
use backlot_tests::{Data, Ended, Process, kinds, started};
use serde_json::json;
use tempfile::TempDir;
use tokio::time::sleep;

/// Returns what is in a folder, but for the lock, in which whoever tries says its name,
/// and for the memory that those share who read a database.
fn contents(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut contents = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let is_shared = path.extension().is_some_and(|end| end == "db-shm");
        if path.is_file() && !path.ends_with("lock") && !is_shared {
            contents.insert(path.clone(), fs::read(&path).unwrap());
        }
    }
    contents
}

/// Returns a folder with a job that has ended, which no host holds.
fn used() -> Data {
    let data = Data::new();
    assert_eq!(data.run(["run", "noop"]).code, Some(0));
    data
}

/// Checks that a command says what is wrong, with the file and the way out.
#[track_caller]
fn check_says(ended: &Ended, codes: &[i32], says: &[&str]) {
    assert!(ended.code.is_some_and(|code| codes.contains(&code)), "{ended:?}");
    for says in says {
        assert!(ended.stderr.contains(says), "wanted {says:?}: {ended:?}");
    }
}

/// Checks that neither who runs nor who looks gets anywhere, and that nothing changes.
#[track_caller]
fn check_damaged(data: &Data, says: &[&str]) {
    let before = contents(data.folder().path());
    let database = data.folder().database();
    let database = database.to_str().unwrap();
    let says = [&[database], says].concat();
    for args in [&["run", "noop"][..], &["prune"], &["retry", "0"]] {
        check_says(&data.run(args), &[1, 3], &says);
    }
    for args in [&["ps"][..], &["show", "0"], &["logs", "0"]] {
        check_says(&data.run(args), &[1], &says);
    }
    let told = data.run(["ps", "--json"]);
    assert!(told.stdout.starts_with("{\"error\":{\"code\":\""), "{told:?}");
    let after = contents(data.folder().path());
    assert!(before.keys().all(|path| after.contains_key(path)), "something was deleted");
    for (path, bytes) in after {
        // A log with nothing in it is made by whoever opens a database.
        let had = before.get(&path).map_or(&[][..], Vec::as_slice);
        assert_eq!(bytes, had, "{} was changed", path.display());
    }
}

/// C72: each damage is told with the file and the next step, and the file is left as it is.
#[test]
fn c72_a_damaged_record_is_told_of_and_left_as_it_is() {
    let data = used();
    fs::write(data.folder().database(), "").unwrap();
    check_damaged(&data, &["it is empty (0 bytes)", "restore"]);

    let data = used();
    let whole = fs::read(data.folder().database()).unwrap();
    fs::write(data.folder().database(), &whole[..whole.len() / 2]).unwrap();
    check_damaged(&data, &["restore"]);

    let data = used();
    let noise: Vec<u8> =
        (0..8_192_u32).map(|it| (it.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    fs::write(data.folder().database(), noise).unwrap();
    check_damaged(&data, &["restore"]);

    let data = used();
    let mut middle = fs::read(data.folder().database()).unwrap();
    let from = middle.len() / 3;
    middle[from..from + 4_096].fill(0xA5);
    fs::write(data.folder().database(), middle).unwrap();
    check_damaged(&data, &["restore"]);
}

#[test]
fn c72_a_record_of_a_newer_version_is_refused() {
    let data = used();
    let database = data.folder().database();
    let mut bytes = fs::read(&database).unwrap();
    // Where SQLite has the user version.
    bytes[60..64].copy_from_slice(&99_u32.to_be_bytes());
    fs::write(&database, bytes).unwrap();
    check_damaged(&data, &["99"]);
}

#[test]
fn c72_a_database_of_another_program_is_refused() {
    let data = used();
    let database = data.folder().database();
    let mut bytes = fs::read(&database).unwrap();
    // Where SQLite has the application id.
    bytes[68..72].copy_from_slice(b"othr");
    fs::write(&database, bytes).unwrap();
    check_damaged(&data, &["another program's database"]);
}

#[test]
fn what_is_not_a_folder_cannot_be_the_data_folder() {
    let outer = TempDir::new().unwrap();
    let file = outer.path().join("data");
    fs::write(&file, "mine").unwrap();
    for args in [&["run", "noop"][..], &["ps"], &["prune"]] {
        let ended = Process::start_with(args, |command| {
            command.env("BACKLOT_DATA", &file).env("BACKLOT_PLUGINS", kinds());
        });
        check_says(&ended.wait(), &[1, 3], &[file.to_str().unwrap(), "--data or BACKLOT_DATA"]);
    }
    assert_eq!(fs::read(&file).unwrap(), b"mine");
}

#[test]
fn who_only_looks_makes_nothing() {
    let outer = TempDir::new().unwrap();
    let missing = outer.path().join("data");
    let ended = Process::start_with(["ps", "--json"], |command| {
        command.env("BACKLOT_DATA", &missing);
    });
    let ended = ended.wait();
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), "{\"jobs\":[]}\n"), "{ended:?}");
    assert!(!missing.exists());
}

/// A folder on a disk that is mounted for reading only can be looked at.
#[test]
fn a_folder_that_cannot_be_written_is_read_and_not_held() {
    let data = used();
    let path = data.folder().path().to_owned();
    let script = r#"
        [ "$UNSHARED" ] || exit 77
        mount --bind "$BACKLOT_DATA" "$BACKLOT_DATA"
        mount -o remount,bind,ro "$BACKLOT_DATA"
        exec "$@""#;
    let run = |args: &[&str]| {
        let process = Process::unshared(script, args, |command| {
            command.env("BACKLOT_DATA", &path).env("BACKLOT_PLUGINS", kinds());
        });
        process.wait()
    };
    let listed = run(&["ps"]);
    if listed.code == Some(77) {
        return;
    }
    assert_eq!(listed.code, Some(0), "{listed:?}");
    assert!(listed.stdout.contains("\tcompleted\tnoop\t"), "{listed:?}");
    for args in [&["run", "noop"][..], &["prune"]] {
        let says = [path.to_str().unwrap(), "Read-only file system", "--data or BACKLOT_DATA"];
        check_says(&run(args), &[1, 3], &says);
    }
}

/// C67: what ends while the disk is full is written once there is room, and nothing new
/// is begun meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn c67_a_full_disk_loses_no_ending() {
    let outer = TempDir::new().unwrap();
    let disk = outer.path().join("disk");
    fs::create_dir(&disk).unwrap();
    let script = r#"
        [ "$UNSHARED" ] || { echo no; exit 77; }
        mount -t tmpfs -o size=20m,mode=0700 tmpfs "$DISK"
        echo $$
        exec "$@""#;
    let input = json!({"count": 2, "every_ms": 3_600_000}).to_string();
    let args = ["run", "ticker", "--json", "--input", &input];
    let mut holder = Process::unshared(script, args, |command| {
        command.env("DISK", &disk).env("BACKLOT_DATA", disk.join("data"));
        command.env("BACKLOT_PLUGINS", kinds());
    });
    let pid = holder.line();
    if pid == "no" {
        return;
    }
    let first = started(&mut holder);
    // The disk is seen by that process alone.
    let seen = PathBuf::from(format!("/proc/{pid}/root{}", disk.display()));
    let folder = DataFolder::find(&seen.join("data")).unwrap();
    let client = Client::connect(&folder.socket_address()).await.unwrap();
    let spawn = |count: u64, every_ms: u64| SpawnRequest {
        kind: Some("ticker".to_owned()),
        input: Some(json!({"count": count, "every_ms": every_ms}).to_string()),
        session: Some("s".to_owned()),
        ..SpawnRequest::default()
    };
    // Its result has more pages than a spawn that fails may leave room for in the log.
    let running = client.spawn(&spawn(1_500, 1)).await.unwrap();
    let ballast = seen.join("ballast");
    let mut filled = fs::File::create(&ballast).unwrap();
    while std::io::Write::write_all(&mut filled, &[0; 4_096]).is_ok() {}

    // New work is refused before it begins.
    let mut refusal = None;
    for _ in 0..200 {
        match client.spawn(&spawn(1, 0)).await {
            // There was room in what is written already.
            Ok(_) => {}
            Err(ClientError::Failure(reply)) => {
                refusal = Some(reply);
                break;
            }
            Err(error) => panic!("the host is gone: {error}"),
        }
    }
    let refusal = refusal.unwrap();
    assert_eq!(refusal.code, "disk_full", "{refusal:?}");
    // What has ended meanwhile cannot be written, and that is shown.
    loop {
        let health = client.health().await.unwrap();
        if health.unwritten > 0 && health.trouble.is_some() {
            break;
        }
        sleep(Duration::from_millis(20)).await;
    }

    drop(filled);
    fs::remove_file(&ballast).unwrap();
    let query = LookQuery { wait_ms: Some(30_000), hand: None };
    let ended = client.job(&running.id.to_string(), &query).await.unwrap();
    assert_eq!(ended.status, Status::Completed, "{ended:?}");
    let after = client.spawn(&spawn(1, 0)).await.unwrap();
    let after = client.job(&after.id.to_string(), &query).await.unwrap();
    assert_eq!(after.status, Status::Completed, "{after:?}");
    let health = client.health().await.unwrap();
    assert_eq!((health.unwritten, health.trouble), (0, None));
    let owed = client.owed("s").await.unwrap();
    assert!(owed.jobs.iter().any(|job| job.id == running.id), "{owed:?}");
    let stopped = client.stop(&first, &StopRequest::default()).await.unwrap();
    assert_eq!(stopped.outcome, StopOutcome::Stopping);
    assert_eq!(holder.wait().code, Some(4));
}

/// C69: who ends the host in order finds every job ended, for that reason.
#[test]
fn c69_a_host_that_is_told_to_end_writes_down_how_its_jobs_ended() {
    let data = Data::new();
    let (holder, first) = data.hold();
    let spawn = |kind: &str, input: &str| {
        let args = ["run", kind, "--detach", "--json", "--session", "s", "--grace", "300ms"];
        let job = data.json([&args[..], &["--input", input]].concat());
        job["id"].as_str().unwrap().to_owned()
    };
    let mut ids: Vec<String> =
        (0..4).map(|_| spawn("ticker", r#"{"count":1000000,"every_ms":10}"#)).collect();
    ids.push(spawn("faulty", r#"{"mode":"stubborn"}"#));
    holder.signal("TERM");
    let ended = holder.wait();
    assert_eq!(ended.code, Some(4), "{ended:?}");
    assert!(ended.took < Duration::from_secs(10), "{ended:?}");
    for id in &ids {
        let job = data.json(["show", "--json", id]);
        assert_eq!(job["status"], "failed", "{job}");
        assert!(job["summary"].as_str().unwrap().starts_with("host shutdown"), "{job}");
        assert!(job["owed"].is_string() && job["finished_ms"].is_u64(), "{job}");
    }
    assert_eq!(data.json(["show", "--json", &first])["status"], "cancelled");
}

#[test]
fn c69_a_host_that_is_told_twice_ends_at_once() {
    let data = Data::new();
    let input = r#"{"mode":"stubborn","every_ms":10}"#;
    let args = ["run", "faulty", "--json", "--grace", "1h", "--input", input];
    let mut holder = data.start(args);
    let first = started(&mut holder);
    let args = ["run", "faulty", "--detach", "--json", "--grace", "1h", "--input", input];
    let second = data.json(args)["id"].as_str().unwrap().to_owned();
    holder.signal("TERM");
    while data.json(["show", "--json", &first])["stop"].is_null() {}
    holder.signal("TERM");
    let ended = holder.wait();
    assert_eq!(ended.code, Some(4), "{ended:?}");
    assert!(ended.took < Duration::from_secs(5), "{ended:?}");
    // What was not written is found by the next host.
    assert_eq!(data.run(["run", "noop"]).code, Some(0));
    let status = |id: &str| data.json(["show", "--json", id])["status"].clone();
    assert_eq!((status(&first), status(&second)), (json!("cancelled"), json!("failed")));
}
