//! Jobs of several runs whose host is killed in any of them.

use std::{fs, path::PathBuf};

use backlot_tests::{Data, Process, kinds, program, started};
use serde_json::{Value, json};

/// A folder whose jobs mark in a file what they do.
struct Marks {
    data: Data,
    plugins: PathBuf,
}

impl Marks {
    fn new() -> Self {
        let data = Data::new();
        let plugins = data.outer().join("plugins");
        fs::create_dir(&plugins).unwrap();
        fs::create_dir(data.outer().join("work")).unwrap();
        fs::copy(program("probe"), plugins.join("mark.wasm")).unwrap();
        // Without their manifests, which ask for no folder.
        for kind in ["pipeline.wasm", "loop-until.wasm", "noop.wasm"] {
            fs::copy(kinds().join(kind), plugins.join(kind)).unwrap();
        }
        Self { data, plugins }
    }

    fn start(&self, args: &[&str]) -> Process {
        Process::start_with(args, |command| {
            command.env("BACKLOT_DATA", self.data.folder().path());
            command.env("BACKLOT_PLUGINS", &self.plugins);
        })
    }

    /// Starts a job whose runs may mark, and returns it with the id of the job.
    fn spawn(&self, kind: &str, input: &Value) -> (Process, String) {
        let work = format!("{}::/w:rw", self.data.outer().join("work").display());
        let input = input.to_string();
        let args = ["run", kind, "--json", "--session", "s", "--dir", &work, "--input", &input];
        let mut process = self.start(&args);
        let id = started(&mut process);
        (process, id)
    }

    /// Waits until this was marked.
    fn wait_for(&self, word: &str) {
        let begin = format!("{word} begin");
        while !self.marks().lines().any(|line| line == begin) {
            std::thread::yield_now();
        }
    }

    fn marks(&self) -> String {
        fs::read_to_string(self.data.outer().join("work/marks")).unwrap_or_default()
    }

    fn job(&self, id: &str) -> Value {
        self.data.json(["show", "--json", id])
    }
}

/// Returns the input of a run that marks a word for a while and prints it.
fn mark(word: &str) -> Value {
    json!({"args": ["mark", "/w/marks", word, "10", "20"], "stdin": ""})
}

/// Returns what a run marks that comes to its end.
fn whole(word: &str) -> Vec<String> {
    let mut lines = vec![format!("{word} begin")];
    lines.extend(std::iter::repeat_n(word.to_owned(), 10));
    lines.push(format!("{word} end"));
    lines
}

/// Checks that the words were marked one after the other, and the interrupted one once
/// before, as far as it came.
fn check_marks(marks: &str, words: &[&str], interrupted: &str) {
    let mut lines: Vec<&str> = marks.lines().collect();
    for word in words {
        let whole = whole(word);
        if *word == interrupted {
            let again = lines.iter().skip(1).position(|line| *line == whole[0]).unwrap() + 1;
            assert!(
                whole.starts_with(
                    &lines[..again].iter().map(|it| (*it).to_owned()).collect::<Vec<_>>()
                ),
                "{marks}"
            );
            lines.drain(..again);
        }
        assert!(lines.len() >= whole.len() && lines[..whole.len()] == whole, "{word}: {marks}");
        lines.drain(..whole.len());
    }
    assert!(lines.is_empty(), "{marks}");
}

/// Returns the attempts and steps of a job's runs.
fn places(job: &Value) -> Vec<(u64, u64)> {
    let runs = job["runs"].as_array().unwrap().iter();
    runs.map(|run| (run["attempt"].as_u64().unwrap(), run["step"].as_u64().unwrap())).collect()
}

#[test]
fn a_pipeline_goes_on_at_the_step_in_which_its_host_was_killed() {
    let words = ["a", "ab", "abc"];
    for (killed, word) in (1..).zip(words) {
        let it = Marks::new();
        let steps = json!({"steps": [
            {"kind": "mark", "input": mark("a")},
            {"kind": "mark", "input": mark("{{output}}b")},
            {"kind": "mark", "input": mark("{{output}}c")},
        ]});
        let (process, id) = it.spawn("pipeline", &steps);
        it.wait_for(word);
        process.kill();
        let job = it.job(&id);
        assert_eq!((&job["status"], &job["step"]), (&json!("working"), &json!(killed)), "{job}");
        assert_eq!(job["progress"], "no host runs it any more", "{job}");

        let retried = it.start(&["retry", &id]).wait();
        assert_eq!(retried.code, Some(0), "{retried:?}");
        let job = it.job(&id);
        assert_eq!((&job["status"], &job["result"]), (&json!("completed"), &json!("abc\n")));
        assert_eq!(job["attempt"], 2, "{job}");
        let before = (0..=killed).map(|step| (1, step));
        let after = (killed..=3).map(|step| (2, step));
        assert_eq!(places(&job), before.chain(after).collect::<Vec<_>>(), "{job}");
        let interrupted = &job["runs"][usize::try_from(killed).unwrap()];
        assert_eq!(interrupted["outcome"], "failed: interrupted by restart", "{job}");
        check_marks(&it.marks(), &words, word);
    }
}

#[test]
fn a_question_outlives_the_host_that_asked_it() {
    let it = Marks::new();
    let steps = json!({"steps": [
        {"kind": "mark", "input": mark("a")},
        {"ask": "Go on from {{output}}?", "schema": {"type": "boolean"}},
        {"kind": "mark", "input": mark("{{output}}")},
    ]});
    let (mut process, id) = it.spawn("pipeline", &steps);
    while !process.error_line().contains("asks: Go on from a?") {}
    process.kill();
    // A host that comes and goes leaves it alone.
    assert_eq!(it.start(&["run", "noop"]).wait().code, Some(0));
    let job = it.job(&id);
    assert_eq!(job["status"], "input_required", "{job}");
    assert_eq!(job["question"]["prompt"], "Go on from a?", "{job}");
    let refused = it.start(&["answer", &id, "maybe"]).wait();
    assert_eq!(refused.code, Some(3), "{refused:?}");
    let answered = it.start(&["answer", &id, "true"]).wait();
    assert_eq!(answered.code, Some(0), "{answered:?}");
    let job = it.job(&id);
    assert_eq!((&job["status"], &job["attempt"]), (&json!("completed"), &json!(1)), "{job}");
    assert_eq!(places(&job), [(1, 0), (1, 1), (1, 2), (1, 3)], "{job}");
}

#[test]
fn a_loop_goes_on_in_the_round_in_which_its_host_was_killed() {
    let words = ["r1", "r2", "r3"];
    for (killed, word) in (1..).zip(words) {
        let it = Marks::new();
        let rounds = json!({
            "kind": "mark", "input": mark("r{{round}}"), "until": {"contains": "r3"}, "max": 5,
        });
        let (process, id) = it.spawn("loop-until", &rounds);
        it.wait_for(word);
        process.kill();
        let retried = it.start(&["retry", &id]).wait();
        assert_eq!(retried.code, Some(0), "{retried:?}");
        let job = it.job(&id);
        assert_eq!((&job["status"], &job["result"]), (&json!("completed"), &json!("r3\n")));
        let before = (0..=killed).map(|step| (1, step));
        let after = (killed..=3).map(|step| (2, step));
        assert_eq!(places(&job), before.chain(after).collect::<Vec<_>>(), "{job}");
        check_marks(&it.marks(), &words, word);
    }
}

/// What was interrupted is failed, told once, and never run again by itself.
#[tokio::test(flavor = "multi_thread")]
async fn c58_a_crash_runs_nothing_again() {
    let it = Marks::new();
    let count = 10;
    for round in 0..count {
        let word = format!("m{round}");
        let input = json!({"args": ["mark", "/w/marks", &word, "1000", "5"], "stdin": ""});
        let steps = json!({"steps": [{"kind": "mark", "input": input}]});
        let (process, id) = it.spawn("pipeline", &steps);
        it.wait_for(&word);
        process.kill();
        let marks = it.marks();
        // In some rounds two hosts more, one right after the other.
        for _ in 0..=round % 2 {
            assert_eq!(it.start(&["run", "noop"]).wait().code, Some(0));
        }
        let job = it.job(&id);
        assert_eq!(
            (&job["status"], &job["summary"]),
            (&json!("failed"), &json!("interrupted by restart"))
        );
        assert!(job["finished_ms"].is_u64() && job["runs"].as_array().unwrap().len() == 2, "{job}");
        assert_eq!(it.marks(), marks, "it was run again");
    }
    let (holder, _) = it.data.hold();
    let client = it.data.client().await;
    let owed = client.owed("s").await.unwrap();
    assert_eq!(owed.ids.len(), count, "each is told once: {owed:?}");
    assert_eq!(client.settle("s", owed.ids).await.unwrap().settled, count);
    holder.kill();
    let (_holder, _) = it.data.hold();
    let owed = it.data.client().await.owed("s").await.unwrap();
    assert_eq!(owed.ids, [], "{owed:?}");
}

/// Whatever a job was about when its host was killed, nothing is left running.
#[test]
fn c59_what_was_being_stopped_or_tried_again_is_accounted_for() {
    let it = Marks::new();
    let data = &it.data;
    // Being stopped: it is cancelled, and not failed.
    let (holder, _) = data.hold();
    let stubborn = r#"{"mode":"stubborn"}"#;
    let args = ["run", "faulty", "--detach", "--json", "--grace", "1h", "--input", stubborn];
    let job = data.json(args);
    let id = job["id"].as_str().unwrap();
    let stop = data.json(["stop", "--json", "--reason", "enough", id]);
    assert_eq!(stop["outcome"], "stopping", "{stop}");
    holder.kill();
    assert_eq!(data.run(["run", "noop"]).code, Some(0));
    let job = it.job(id);
    assert_eq!((&job["status"], &job["summary"]), (&json!("cancelled"), &json!("enough")), "{job}");

    // Just when the id was given.
    let (holder, _) = data.hold();
    let job = data.json([
        "run",
        "ticker",
        "--detach",
        "--json",
        "--input",
        r#"{"count":9,"every_ms":99}"#,
    ]);
    holder.kill();
    let id = job["id"].as_str().unwrap();
    assert_eq!(data.run(["run", "noop"]).code, Some(0));
    let interrupted = (json!("failed"), json!("interrupted by restart"));
    let job = it.job(id);
    assert_eq!((job["status"].clone(), job["summary"].clone()), interrupted, "{job}");

    // In another attempt, which counts.
    let (holder, _) = data.hold();
    let job = data.json(["retry", "--json", id]);
    assert_eq!((&job["status"], &job["attempt"]), (&json!("working"), &json!(2)), "{job}");
    holder.kill();
    assert_eq!(data.run(["run", "noop"]).code, Some(0));
    let job = it.job(id);
    assert_eq!((job["status"].clone(), job["summary"].clone()), interrupted, "{job}");
    assert_eq!(places(&job), [(1, 0), (2, 0)], "{job}");
    let left = data.json(["ps", "--json", "--all", "--status", "working,queued"]);
    assert_eq!(left["jobs"], json!([]));
}

/// A job in its back-off goes on after a crash, unless it was stopped there.
#[test]
fn c71_a_stop_in_a_back_off_holds_after_a_crash() {
    let data = Data::new();
    let (holder, _) = data.hold();
    let fail = r#"{"mode":"fail"}"#;
    let spawn = |backoff: &str| {
        let args = ["run", "faulty", "--detach", "--json", "--input", fail, "--retry-on", "work"];
        let job = data.json([&args[..], &["--backoff", backoff]].concat());
        job["id"].as_str().unwrap().to_owned()
    };
    let (stopped, due) = (spawn("1h"), spawn("1ms"));
    let is_waiting = || {
        let waiting = data.json(["ps", "--json", "--status", "queued"]);
        let mut waiting = waiting["jobs"].as_array().unwrap().clone().into_iter();
        waiting.any(|job| job["id"] == json!(stopped))
    };
    while !is_waiting() {}
    let stop = data.json(["stop", "--json", &stopped]);
    assert_eq!(stop["outcome"], "cancelled", "{stop}");
    holder.kill();
    let (_holder, _) = data.hold();
    let job = data.json(["show", "--json", &stopped]);
    assert_eq!((&job["status"], &job["attempt"]), (&json!("cancelled"), &json!(1)), "{job}");
    assert_eq!(data.run(["wait", &due]).code, Some(1));
    let job = data.json(["show", "--json", &due]);
    assert_eq!((&job["status"], &job["attempt"]), (&json!("failed"), &json!(3)), "{job}");
}
