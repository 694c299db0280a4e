//! Several terminals on one data folder: whoever comes first holds it, and runs the jobs
//! of those that come later.

use std::{fs, os::unix::net::UnixListener, time::Duration};

use backlot::backlot_jobs::Holder;
use backlot_tests::{Data, Ended, Process, kind, program, started};
use serde_json::{Value, json};

const THREE: &str = r#"{"count":3,"every_ms":1}"#;
const LONG: &str = r#"{"count":1000000,"every_ms":10}"#;
const FAIL: &str = r#"{"mode":"fail"}"#;

/// Checks that it was refused, by its exit code and in words.
#[track_caller]
fn check_refused(ended: &Ended, code: i32, says: &str) {
    assert_eq!(ended.code, Some(code), "{ended:?}");
    assert!(ended.stderr.contains(says), "wanted {says:?}: {ended:?}");
}

/// Returns the lines of JSON.
fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_second_run_is_a_job_of_the_first_and_is_followed() {
    let data = Data::new();
    let (_holder, _) = data.hold();
    let ended = data.run(["run", "ticker", "--input", THREE]);
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), "line 1\nline 2\nline 3\n"));
    assert!(ended.stderr.contains(" completed: line 1 line 2 line 3 ("), "{}", ended.stderr);

    let ended = data.run(["run", "ticker", "--json", "--input", THREE]);
    let events = lines(&ended.stdout);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(events[0]["event"], "started", "{events:?}");
    let text: String = events.iter().filter_map(|event| event["text"].as_str()).collect();
    assert_eq!(text, "line 1\nline 2\nline 3\n");
    let last = events.last().unwrap();
    assert_eq!((&last["event"], &last["task"]["status"]), (&json!("ended"), &json!("completed")));
    assert_eq!(last["task"]["output_bytes"], 21, "{last}");

    let ended = data.run(["run", "faulty", "--input", FAIL]);
    check_refused(&ended, 1, " failed: ");
    assert_eq!(data.json(["ps", "--json"])["jobs"].as_array().unwrap().len(), 4);
}

#[test]
fn ctrl_c_stops_the_job_of_its_own_terminal_alone() {
    let data = Data::new();
    let (holder, first) = data.hold();
    let mut second = data.start(["run", "ticker", "--json", "--input", LONG]);
    let job = started(&mut second);
    second.signal("INT");
    let ended = second.wait();
    assert_eq!(ended.code, Some(4), "{ended:?}");
    let job = data.json(["show", "--json", &job]);
    assert_eq!(job["status"], "cancelled", "{job}");
    assert_eq!((&job["stop"]["by"], &job["stop"]["why"]), (&json!("terminal"), &json!("SIGINT")));
    assert_eq!(data.json(["show", "--json", &first])["status"], "working");
    holder.signal("INT");
    let ended = holder.wait();
    assert_eq!(ended.code, Some(4), "{ended:?}");
    assert!(!ended.stderr.contains("other job"), "{}", ended.stderr);
}

#[test]
fn a_second_ctrl_c_ends_a_job_that_does_not_stop() {
    let data = Data::new();
    let (_holder, _) = data.hold();
    let input = r#"{"mode":"stubborn","every_ms":10}"#;
    let mut second = data.start(["run", "faulty", "--grace", "1h", "--input", input]);
    second.line();
    second.signal("INT");
    // It is being asked, which is written down.
    let stopping = || {
        let jobs = data.json(["ps", "--json", "--status", "working"]);
        let mut jobs = jobs["jobs"].as_array().unwrap().clone().into_iter();
        jobs.any(|job| job["kind"] == "faulty" && job["stop"].is_object())
    };
    while !stopping() {}
    second.signal("INT");
    let ended = second.wait();
    assert_eq!(ended.code, Some(4), "{ended:?}");
    assert!(ended.took < Duration::from_secs(10), "{ended:?}");
}

#[test]
fn the_first_stays_while_jobs_of_others_run_in_it() {
    let data = Data::new();
    let (mut first, _) = data.hold();
    let mut second = data.start(["run", "ticker", "--json", "--input", LONG]);
    started(&mut second);
    first.signal("INT");
    let said = first.error_line();
    assert!(said.starts_with("ticker-1 killed"), "{said}");
    assert_eq!(first.error_line(), "1 other job runs here and is waited for; Ctrl-C ends it",);
    second.signal("INT");
    assert_eq!(second.wait().code, Some(4));
    let ended = first.wait();
    assert_eq!(ended.code, Some(4), "as its own job ended: {ended:?}");
}

#[test]
fn another_ctrl_c_ends_the_jobs_of_others_and_they_are_told() {
    let data = Data::new();
    let (mut first, _) = data.hold();
    let mut second = data.start(["run", "ticker", "--json", "--input", LONG]);
    let job = started(&mut second);
    first.signal("INT");
    while !first.error_line().contains("1 other job") {}
    first.signal("INT");
    assert_eq!(first.wait().code, Some(4));
    let ended = second.wait();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("host shutdown"), "{}", ended.stderr);
    let job = data.json(["show", "--json", &job]);
    assert_eq!((&job["status"], &job["summary"]), (&json!("failed"), &json!("host shutdown")));
}

#[test]
fn a_detached_run_needs_a_host_that_stays() {
    let data = Data::new();
    let ended = data.run(["run", "ticker", "--detach", "--input", THREE]);
    check_refused(&ended, 3, "no host holds the data folder");
    assert_eq!(data.json(["ps", "--json"])["jobs"], json!([]));

    let (_holder, _) = data.hold();
    let ended = data.run(["run", "ticker", "--detach", "--input", THREE]);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{ended:?}");
    let id = ended.stdout.trim_end();
    assert_eq!(id.len(), 32, "{id:?}");
    let ended = data.run(["wait", id]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let detached = data.json(["run", "ticker", "--detach", "--json", "--input", THREE]);
    assert_eq!(detached["kind"], "ticker", "{detached}");
    assert_eq!(
        data.json(["wait", "--json", detached["id"].as_str().unwrap()])["status"],
        "completed"
    );
}

#[test]
fn a_key_has_one_job_whoever_asks_for_it() {
    let data = Data::new();
    let run = || data.run(["run", "ticker", "--key", "k", "--input", THREE]);
    let ended = run();
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), "line 1\nline 2\nline 3\n"));
    // What it wrote is shown again, by a process that has not run it.
    let again = run();
    assert_eq!((again.code, &again.stdout), (Some(0), &ended.stdout), "{again:?}");
    let (_holder, _) = data.hold();
    let again = run();
    assert_eq!((again.code, &again.stdout), (Some(0), &ended.stdout), "{again:?}");
    let ended = data.run(["run", "ticker", "--key", "k", "--input", LONG]);
    check_refused(&ended, 3, "which was spawned with another kind or input");
    assert_eq!(data.json(["ps", "--json"])["jobs"].as_array().unwrap().len(), 2);
}

/// Whoever is late asks a host that is about to leave, and must not lose by it.
#[test]
fn many_that_start_at_once_are_all_run() {
    let data = Data::new();
    for _ in 0..3 {
        let all: Vec<Process> = (0..16).map(|_| data.start(["run", "noop"])).collect();
        for process in all {
            let ended = process.wait();
            assert_eq!(ended.code, Some(0), "{ended:?}");
        }
    }
    let jobs = data.json(["ps", "--json", "--all", "--status", "completed"]);
    assert_eq!(jobs["jobs"].as_array().unwrap().len(), 48);
}

#[test]
fn another_plugin_folder_or_policy_is_refused_with_the_reason() {
    let data = Data::new();
    let (_holder, _) = data.hold();
    let other = data.outer().join("plugins");
    fs::create_dir(&other).unwrap();
    fs::copy(kind("noop"), other.join("noop.wasm")).unwrap();
    let other = other.to_str().unwrap();
    let ended = data.run(["run", "noop", "--plugins", other]);
    check_refused(&ended, 3, "holds the data folder, and its plugin folder is ");
    assert!(ended.stderr.contains(other), "{}", ended.stderr);
    assert!(ended.stderr.contains("or another data folder"), "{}", ended.stderr);

    let policy = data.outer().join("policy.toml");
    fs::write(&policy, "[kind.noop]\n").unwrap();
    let policy = policy.to_str().unwrap();
    let ended = data.run(["run", "noop", "--policy", policy]);
    check_refused(&ended, 3, &format!("its policy is none, not {policy}"));
    let ended = data.run(["run", "noop", "--json", "--policy", policy]);
    let event = &lines(&ended.stdout)[0];
    assert_eq!((&event["event"], &event["exit"]), (&json!("refused"), &json!(3)), "{event}");
}

#[test]
fn c61_a_second_host_is_refused_and_says_who_holds_the_folder() {
    let data = Data::new();
    let (holder, first) = data.hold();
    let before = fs::read(data.folder().lock()).unwrap();
    // Its socket does not answer, so whoever comes has to hold the folder itself.
    fs::remove_file(data.folder().socket()).unwrap();
    let ended = data.run(["run", "noop"]);
    check_refused(&ended, 3, &format!("(pid {})", holder.id()));
    assert_eq!(fs::read(data.folder().lock()).unwrap(), before);
    let job = data.json(["show", "--json", &first]);
    assert_eq!(job["status"], "working", "nothing was swept: {job}");
    let ended = data.run(["restore", "/nonexistent"]);
    check_refused(&ended, 3, &format!("(pid {})", holder.id()));
}

#[test]
fn c61_a_lock_that_names_a_living_process_holds_nothing() {
    let data = Data::new();
    let holder = Holder { pid: std::process::id(), ..Holder::this("backlot") };
    let line = serde_json::to_string(&holder).unwrap();
    fs::write(data.folder().lock(), line + "\n").unwrap();
    assert_eq!(data.run(["run", "noop"]).code, Some(0));
    fs::write(data.folder().lock(), "\0 neither a line nor a holder").unwrap();
    assert_eq!(data.run(["run", "noop"]).code, Some(0));
    assert_eq!(fs::read(data.folder().lock()).unwrap(), b"", "given free");
}

#[test]
fn c61_a_socket_that_nobody_listens_at_is_in_nobodys_way() {
    let data = Data::new();
    drop(UnixListener::bind(data.folder().socket()).unwrap());
    assert_eq!(data.json(["ps", "--json"])["jobs"], json!([]));
    assert_eq!(data.run(["run", "noop"]).code, Some(0));
    assert!(!data.folder().socket().exists());
    // What is no socket is somebody's, and stays.
    fs::write(data.folder().socket(), "mine").unwrap();
    let ended = data.run(["run", "noop"]);
    check_refused(&ended, 3, data.folder().socket().to_str().unwrap());
    assert_eq!(fs::read(data.folder().socket()).unwrap(), b"mine");
}

#[test]
fn c61_after_a_kill_the_next_starts_at_once() {
    let data = Data::new();
    for _ in 0..5 {
        let (holder, job) = data.hold();
        holder.kill();
        assert_eq!(data.run(["run", "noop"]).code, Some(0));
        let job = data.json(["show", "--json", &job]);
        let ending = (&job["status"], &job["summary"]);
        assert_eq!(ending, (&json!("failed"), &json!("interrupted by restart")));
    }
}

/// A folder with a job of each sort, for the verbs.
struct Jobs {
    data: Data,
    completed: String,
    failed: String,
    asking: String,
}

impl Jobs {
    fn new() -> Self {
        let data = Data::new();
        let (holder, _) = data.hold();
        let spawn = |kind: &str, input: &str| {
            let job = data.json(["run", kind, "--detach", "--json", "--input", input]);
            let id = job["id"].as_str().unwrap().to_owned();
            data.run(["wait", &id]);
            id
        };
        let completed = spawn("ticker", THREE);
        let failed = spawn("faulty", FAIL);
        let asking = spawn(
            "pipeline",
            r#"{"steps":[{"ask":"Go on?"},{"kind":"ticker","input":{"count":1,"every_ms":0}}]}"#,
        );
        holder.signal("INT");
        assert_eq!(holder.wait().code, Some(4));
        Self { data, completed, failed, asking }
    }

    /// Does the same with a host and without one.
    fn each(&self, check: impl Fn(&Data)) {
        check(&self.data);
        let (holder, _) = self.data.hold();
        check(&self.data);
        holder.signal("INT");
        holder.wait();
    }
}

#[test]
fn jobs_are_looked_at_with_a_host_and_without_one() {
    let jobs = Jobs::new();
    jobs.each(|data| {
        let (id, short) = (&jobs.completed, &jobs.completed[..8]);
        let all = data.run(["ps"]);
        assert!(all.stdout.contains(&format!("{short}\tcompleted\tticker\t")), "{all:?}");
        let failed = data.json(["ps", "--json", "--status", "failed"]);
        assert_eq!(failed["jobs"][0]["id"], json!(jobs.failed), "{failed}");

        let show = data.run(["show", short]);
        assert!(show.stdout.contains("status       completed"), "{show:?}");
        assert!(show.stdout.ends_with("result\nline 1\nline 2\nline 3\n"), "{show:?}");
        let show = data.json(["show", short, "--json"]);
        assert_eq!(
            (&show["id"], &show["result"]),
            (&json!(id), &json!("line 1\nline 2\nline 3\n"))
        );

        let logs = data.run(["logs", short]);
        assert_eq!((logs.code, logs.stdout.as_str()), (Some(0), "line 1\nline 2\nline 3\n"));
        let logs = data.run(["logs", "--json", "--follow", id]);
        let text: String =
            lines(&logs.stdout).iter().filter_map(|line| line["text"].as_str()).collect();
        assert_eq!(text, "line 1\nline 2\nline 3\n", "{logs:?}");

        let wait = data.run(["wait", short]);
        assert_eq!(wait.stdout, format!("{short} completed: line 1 line 2 line 3\n"), "{wait:?}");
        let wait = data.run(["wait", "--json", id, &jobs.failed, &jobs.asking]);
        let statuses: Vec<Value> =
            lines(&wait.stdout).into_iter().map(|job| job["status"].clone()).collect();
        assert_eq!(statuses, ["completed", "failed", "input_required"]);
        assert_eq!(wait.code, Some(1), "{wait:?}");

        let files = data.json(["files", "--json", short]);
        assert_eq!(files["files"], json!([]), "{files}");
        check_refused(&data.run(["files", short, "report"]), 3, "report");
    });
}

/// What can be asked about one job.
const VERBS: [&[&str]; 9] = [
    &["show"],
    &["logs"],
    &["logs", "--follow"],
    &["wait"],
    &["files"],
    &["stop"],
    &["retry"],
    &["rm"],
    &["answer"],
];

#[test]
fn a_job_that_is_not_there_is_refused_with_a_host_and_without_one() {
    let jobs = Jobs::new();
    let (holder, _) = jobs.data.hold();
    // Of seventeen ids two begin with the same digit.
    for _ in 0..13 {
        assert_eq!(jobs.data.run(["run", "noop"]).code, Some(0));
    }
    holder.signal("INT");
    holder.wait();
    let all = jobs.data.json(["ps", "--json", "--all"]);
    let ids = all["jobs"].as_array().unwrap().iter().map(|job| job["id"].as_str().unwrap());
    let firsts: Vec<&str> = ids.map(|id| &id[..1]).collect();
    let is_shared =
        |first: &&&str| firsts.iter().filter(|other| **other == **first).nth(1).is_some();
    let shared = *firsts.iter().find(is_shared).unwrap();
    jobs.each(|data| {
        for verb in VERBS {
            for (digits, code, word, says) in [
                (shared, 2, "ambiguous", "several jobs begin with"),
                ("no-id", 3, "unknown_job", "no job no-id"),
            ] {
                let rest: &[&str] = if verb == ["answer"] { &["yes"] } else { &[] };
                let args = [verb, &["--json", digits], rest].concat();
                let ended = data.run(&args);
                check_refused(&ended, code, says);
                let said = &lines(&ended.stdout)[0];
                let is_told = said["error"]["code"] == word || said["removed"] == json!([]);
                assert!(is_told, "{args:?}: {ended:?}");
            }
        }
        check_refused(&data.run(["show", &"f".repeat(32)]), 3, "no job ffff");
    });
}

#[test]
fn an_empty_id_is_none() {
    for verb in VERBS {
        let rest: &[&str] = if verb == ["answer"] { &["yes"] } else { &[] };
        let ended = Process::run([verb, &[""], rest].concat());
        check_refused(&ended, 2, "a value is required for '<JOB>");
    }
}

#[test]
fn jobs_go_on_with_a_host_and_without_one() {
    for is_held in [false, true] {
        let jobs = Jobs::new();
        let data = &jobs.data;
        let holder = is_held.then(|| data.hold());
        let retry = data.run(["retry", &jobs.failed[..8]]);
        // Without a host it is followed to its end.
        assert_eq!(retry.code, Some(if is_held { 0 } else { 1 }), "{retry:?}");
        data.run(["wait", &jobs.failed]);
        let retry = data.run(["retry", "--json", &jobs.failed]);
        assert_eq!(retry.code, Some(if is_held { 0 } else { 1 }), "{retry:?}");
        data.run(["wait", &jobs.failed]);
        check_refused(&data.run(["retry", &jobs.failed]), 3, "has had 3 of 3 attempts");
        let refused = data.run(["retry", "--json", &jobs.completed]);
        check_refused(&refused, 3, "only a failed job can be retried");
        assert_eq!(lines(&refused.stdout)[0]["error"]["code"], "not_failed", "{refused:?}");

        check_refused(&data.run(["answer", &jobs.completed, "yes"]), 3, "waits for no answer");
        let answer = data.run(["answer", "--json", &jobs.asking, "yes"]);
        assert_eq!(answer.code, Some(0), "{answer:?}");
        let wait = data.run(["wait", &jobs.asking]);
        assert_eq!(wait.code, Some(0), "{wait:?}");
        assert_eq!(data.json(["show", "--json", &jobs.asking])["result"], "line 1\n");
        check_refused(&data.run(["answer", &jobs.asking, "yes"]), 3, "waits for no answer");
        drop(holder);
    }
}

#[test]
fn jobs_are_stopped_and_deleted_with_a_host_and_without_one() {
    for is_held in [false, true] {
        let jobs = Jobs::new();
        let data = &jobs.data;
        let holder = is_held.then(|| data.hold());
        let stop = data.run(["stop", "--reason", "enough", &jobs.asking[..8]]);
        let said = format!("{} cancelled\n", &jobs.asking[..8]);
        assert_eq!((stop.code, &stop.stdout), (Some(0), &said), "{stop:?}");
        let stop = data.run(["stop", "--json", &jobs.asking]);
        let reply = &lines(&stop.stdout)[0];
        assert_eq!(
            (&reply["outcome"], &reply["job"]["summary"]),
            (&json!("already"), &json!("enough"))
        );

        if is_held {
            let job = data.json(["run", "ticker", "--detach", "--json", "--input", LONG]);
            let id = job["id"].as_str().unwrap();
            check_refused(&data.run(["rm", id]), 3, "is working: stop it first");
            let stop = data.run(["stop", "--json", id]);
            assert_eq!(lines(&stop.stdout)[0]["outcome"], "stopping", "{stop:?}");
            let wait = data.run(["wait", id]);
            assert_eq!(wait.code, Some(4), "{wait:?}");
        }
        let rm = data.run(["rm", &jobs.completed[..8]]);
        assert_eq!((rm.code, rm.stdout.trim_end()), (Some(0), &*jobs.completed), "{rm:?}");
        check_refused(&data.run(["show", &jobs.completed]), 3, "no job");
        let rm = data.json(["rm", "--json", &jobs.failed]);
        assert_eq!(rm, json!({"removed": [jobs.failed]}));
        check_refused(&data.run(["logs", &jobs.failed]), 3, "no job");
        let prune = data.json(["prune", "--json", "--keep", "0"]);
        assert!(prune["removed"].as_u64().unwrap() >= 1, "{prune}");
        let prune = data.run(["prune", "--keep", "0"]);
        assert_eq!(prune.stdout, "0 deleted\n", "{prune:?}");
        let left = data.json(["ps", "--json", "--all"]);
        assert_eq!(left["jobs"].as_array().unwrap().len(), usize::from(is_held), "{left}");
        drop(holder);
    }
}

#[test]
fn the_record_is_copied_and_put_back_with_a_host_and_without_one() {
    for is_held in [false, true] {
        let jobs = Jobs::new();
        let data = &jobs.data;
        let copy = data.outer().join("copy.db");
        let copy = copy.to_str().unwrap();
        let holder = is_held.then(|| data.hold());
        let backup = data.run(["backup", copy]);
        assert_eq!((backup.code, backup.stdout.trim_end()), (Some(0), copy), "{backup:?}");
        let again = data.run(["backup", copy]);
        assert_eq!(again.code, Some(1), "{again:?}");
        assert!(again.stderr.contains(copy), "{again:?}");
        assert_eq!(data.run(["rm", &jobs.completed]).code, Some(0));
        if let Some((holder, _)) = holder {
            check_refused(&data.run(["restore", copy]), 3, &format!("(pid {})", holder.id()));
            holder.signal("INT");
            holder.wait();
        }
        let restore = data.run(["restore", copy]);
        assert_eq!(restore.code, Some(0), "{restore:?}");
        assert_eq!(data.json(["show", "--json", &jobs.completed])["status"], "completed");
        let restore = data.run(["restore", "/nonexistent"]);
        assert_eq!(restore.code, Some(1), "{restore:?}");
        assert!(restore.stderr.contains("/nonexistent"), "{restore:?}");
    }
}

/// Many that try one job again at once make one attempt of it.
#[test]
fn c63_one_of_many_retries_wins() {
    let data = Data::new();
    let (_holder, _) = data.hold();
    let marks = data.outer().join("marks");
    fs::create_dir(&marks).unwrap();
    let dir = format!("{}::/w:rw", marks.display());
    let probe = program("probe").display().to_string();
    // It fails until there is a folder, and then takes an hour.
    let work = ["--", "mark", "/w/in/marks", "mark", "1", "3600000"];
    let job =
        data.json([&["run", &probe, "--detach", "--json", "--dir", &dir], &work[..]].concat());
    let id = job["id"].as_str().unwrap();
    assert_eq!(data.run(["wait", id]).code, Some(1));
    fs::create_dir(marks.join("in")).unwrap();
    let all: Vec<Process> = (0..20).map(|_| data.start(["retry", "--json", id])).collect();
    let ended: Vec<Ended> = all.into_iter().map(Process::wait).collect();
    let (won, lost): (Vec<&Ended>, Vec<&Ended>) =
        ended.iter().partition(|ended| ended.code == Some(0));
    assert_eq!((won.len(), lost.len()), (1, 19), "{ended:?}");
    assert_eq!(lines(&won[0].stdout)[0]["attempt"], 2);
    for ended in lost {
        check_refused(ended, 3, "only a failed job can be retried, and this one is working");
    }
    let stop = data.run(["stop", "--force", id]);
    assert_eq!(stop.code, Some(0), "{stop:?}");
    assert_eq!(data.run(["wait", id]).code, Some(4));
    let job = data.json(["show", "--json", id]);
    assert_eq!(job["runs"].as_array().unwrap().len(), 2, "{job}");
    assert_eq!(fs::read_to_string(marks.join("in/marks")).unwrap(), "mark begin\n");
    check_refused(&data.run(["retry", id]), 3, "it was stopped on purpose");
}

#[test]
fn c64_attempts_are_counted_one_way() {
    for (asked, max) in [(Some("1"), 1), (Some("2"), 2), (Some("3"), 3), (None, 3)] {
        let data = Data::new();
        let mut args = vec!["run", "faulty", "--input", FAIL];
        args.extend(asked.iter().flat_map(|asked| ["--attempts", asked]));
        assert_eq!(data.run(args).code, Some(1));
        let jobs = data.json(["ps", "--json"]);
        let id = jobs["jobs"][0]["id"].as_str().unwrap();
        for attempt in 2..=max {
            // The last is ended by a crash.
            if attempt == max {
                let retry = data.start(["retry", id]);
                retry.kill();
                assert_eq!(data.run(["run", "noop"]).code, Some(0));
            } else {
                assert_eq!(data.run(["retry", id]).code, Some(1));
            }
        }
        let job = data.json(["show", "--json", id]);
        let attempt = job["attempt"].as_u64().unwrap();
        // A kill may come before the retry was asked for.
        for _ in attempt..max {
            assert_eq!(data.run(["retry", id]).code, Some(1));
        }
        let says = format!("has had {max} of {max} attempts, the first one included");
        check_refused(&data.run(["retry", id]), 3, &says);
        let (_holder, _) = data.hold();
        check_refused(&data.run(["retry", id]), 3, &says);
        let show = data.run(["show", id]);
        assert!(show.stdout.contains(&format!("attempt      {max} of {max}")), "{show:?}");
    }
    let data = Data::new();
    for (asked, says) in [("0", "`attempts` is 0"), ("4", "from 1 to 3")] {
        let ended = data.run(["run", "noop", "--attempts", asked]);
        check_refused(&ended, 2, says);
    }
}

/// Ids of jobs are random; those of tasks are counted on, whatever has become of the
/// records of those before.
#[test]
fn c52_ids_are_not_used_again_after_a_restart_a_crash_or_pruning() {
    let data = Data::new();
    let task = || {
        let ended = data.run(["run", "noop", "--json"]);
        let first = ended.stdout.lines().next().unwrap().to_owned();
        let started: Value = serde_json::from_str(&first).unwrap();
        (started["id"].as_str().unwrap().to_owned(), started["job"].as_str().unwrap().to_owned())
    };
    let mut tasks = Vec::new();
    let mut jobs = Vec::new();
    for _ in 0..3 {
        let (task, job) = task();
        tasks.push(task);
        jobs.push(job);
    }
    assert_eq!(tasks, ["noop-1", "noop-2", "noop-3"]);
    assert_eq!(data.run(["prune", "--keep", "0"]).code, Some(0));
    let (after, job) = task();
    assert_eq!(after, "noop-4");
    jobs.push(job);
    let (holder, _) = data.hold();
    holder.signal("KILL");
    holder.wait();
    let (after, job) = task();
    assert_eq!(after, "noop-5", "the crash was none of this kind");
    assert!(!jobs.contains(&job));
    // What is gone is unknown, and is nobody else's.
    assert_eq!(data.run(["logs", &jobs[0]]).code, Some(3));
}
