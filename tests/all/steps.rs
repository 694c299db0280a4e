//! What follows a run of a job: kinds that decide it, and those that do it wrong.

use std::{fs, sync::Arc, time::Duration};

use backlot::{
    Config, Reload,
    registry::{Cause, Ending, Kind, Outcome, Producer, Request, Start, Status, Step},
    wasm::{
        AnswerError, Ask, BytesError, Component, Limits, Manifest, Next, OpenGrant, Pinned, Policy,
        StepsError, digest_of,
    },
};
use backlot_tests::{TestHost, arguments, kind, same_but_new, ver};
use serde_json::{Value, json};
use tokio::{task::JoinSet, time::timeout};

use crate::reloading::Fixture;

/// Longer than a component may take to say what follows.
const LATE: Duration = Duration::from_secs(30);

/// Returns a run of a job's first step.
fn request(task: &str, input: &str) -> Request {
    let step = Step { job: Some("job".into()), ..Step::default() };
    Request { task: task.parse().unwrap(), label: "test".into(), input: input.into(), step }
}

/// Does a job as whoever keeps jobs does, with the answers of a person. Returns what its
/// last run put out, with what there was to see of it meanwhile, or why it failed.
async fn job(
    host: &TestHost,
    name: &str,
    input: &str,
    mut answers: Vec<&str>,
) -> Result<(String, Vec<String>), String> {
    let decides = host.kind(name).await;
    let mut places = Vec::new();
    let mut run = request(&format!("{name}-1"), input);
    let mut of: Option<Kind> = None;
    loop {
        let component = match &of {
            Some(kind) => host.kind(kind.as_str()).await,
            None => decides.clone(),
        };
        let start = Start { input: run.input.clone(), step: run.step.clone(), ..Start::default() };
        let producer = component.producer(OpenGrant::none(), Limits::default());
        let task = host.task_of(Arc::new(producer), start).await;
        let ended = task.end().await;
        let output = task.read().await.text;
        let outcome = Outcome {
            ending: match ended.status {
                Status::Completed => Ending::Completed,
                _ => Ending::Failed,
            },
            detail: ended.detail.clone(),
            output: Some(output.clone()),
        };
        let next = decides.after(run.clone(), outcome).await.unwrap();
        (run.step.number, run.step.answer) = (run.step.number + 1, None);
        let state = match next {
            Next::End { failure: Some(failure), .. } => return Err(failure),
            Next::End { failure: None, .. } => return Ok((output, places)),
            Next::Proceed { kind, input, state } => {
                (of, run.input, run.step.cause) = (kind, input, Cause::Step);
                state
            }
            Next::Ask { prompt, schema, state } => {
                places.push(prompt);
                let answer = answers.remove(0);
                if let Some(schema) = schema {
                    host.host.engine().check_answer(&schema, answer).await.unwrap();
                }
                (of, run.input, run.step.cause) = (None, input.to_owned(), Cause::Answer);
                run.step.answer = Some(answer.to_owned());
                state
            }
        };
        if let Some(state) = state {
            places.extend(decides.render(&state).await.unwrap());
            run.step.state = Some(state);
        }
    }
}

#[tokio::test]
async fn a_pipeline_hands_on_what_came_of_each_step() {
    let host = TestHost::start();
    let input = json!({"steps": [
        {"kind": "ticker", "input": {"count": 2, "every_ms": 0, "text": "a"}},
        {"ask": "Go on after {{output}}?", "schema": {"type": "integer"}},
        {"kind": "ticker", "input": {"count": 1, "every_ms": 0, "text": "{{output}} \"is\""}},
    ]});
    let (output, places) = job(&host, "pipeline", &input.to_string(), vec!["42"]).await.unwrap();
    assert_eq!(output, "42 \"is\" 1\n");
    let steps =
        ["step 1/3 (ticker)", "Go on after a 1\na 2?", "step 2/3 (ask)", "step 3/3 (ticker)"];
    assert_eq!(places, steps);
}

#[tokio::test]
async fn a_pipeline_ends_with_the_step_that_fails() {
    let host = TestHost::start();
    let input = json!({"steps": [{"kind": "noop"}, {"kind": "faulty", "input": {"mode": "fail"}}]});
    let failed = job(&host, "pipeline", &input.to_string(), vec![]).await.unwrap_err();
    assert_eq!(failed, "step 2/2 (faulty): as the input asked");
}

#[tokio::test]
async fn a_loop_goes_on_until_its_check_passes() {
    let host = TestHost::start();
    let input = json!({
        "kind": "ticker", "input": {"count": 1, "every_ms": 0, "text": "{{output}} {{round}}"},
        "until": {"contains": "3 1"}, "every_ms": 1,
    });
    let (output, places) = job(&host, "loop-until", &input.to_string(), vec![]).await.unwrap();
    assert_eq!(output, " 1 1 2 1 3 1\n");
    let rounds = ["round 1/10", "round 2/10", "round 2/10", "round 3/10", "round 3/10"];
    assert_eq!(places, rounds, "with a pause before each but the first");
    let input =
        json!({"kind": "noop", "until": {"kind": "faulty", "input": {"mode": "fail"}}, "max": 2});
    let failed = job(&host, "loop-until", &input.to_string(), vec![]).await.unwrap_err();
    assert_eq!(failed, "not met after 2 rounds");
}

#[tokio::test]
async fn kinds_that_run_others_are_refused_outside_of_a_job() {
    let host = TestHost::start();
    for (name, input) in [
        ("pipeline", json!({"steps": [{"kind": "noop"}]})),
        ("loop-until", json!({"kind": "noop", "until": {"completed": true}})),
    ] {
        let component = host.kind(name).await;
        assert!(component.has_steps());
        let refused = host.try_task(&component, &input.to_string(), <_>::default()).await;
        let why = refused.err().unwrap().to_string();
        assert!(why.contains("start it as a job"), "{why}");
    }
}

async fn after(faulty: &Component, input: Value) -> Result<Next, StepsError> {
    let input = input.to_string();
    timeout(LATE, faulty.after(request("faulty-1", &input), Outcome::completed())).await.unwrap()
}

#[tokio::test]
async fn what_a_component_answers_is_checked() {
    let host = TestHost::start();
    let faulty = host.kind("faulty").await;
    for (input, says) in [
        (json!({"mode": "after-trap"}), "trap in after: "),
        (json!({"mode": "after-report"}), "trap in after: it has no task"),
        (json!({"mode": "after-proceed", "bytes": (8 << 20) + 1}), "after returned an input of "),
        // More than may be handed over in one call.
        (json!({"mode": "after-proceed", "bytes": 17 << 20}), "trap in after: limit of 16 MiB"),
        (json!({"mode": "after-proceed", "state_bytes": (1 << 20) + 1}), "after returned a state"),
        (json!({"mode": "after-proceed", "kind": "../grep"}), "after returned a kind that"),
        (json!({"mode": "after-ask", "bytes": 0}), "after returned a question without words"),
        (json!({"mode": "after-ask", "bytes": 70_000}), "after returned a question of 70000"),
        (json!({"mode": "after-ask", "schema": "{"}), "after returned a question with an invalid"),
    ] {
        let error = after(&faulty, input.clone()).await.unwrap_err().to_string();
        assert!(error.starts_with(says) && error.len() < 500, "{input}: {error}");
    }
    let trapped = faulty.render("trap").await.unwrap_err().to_string();
    assert!(trapped.starts_with("trap in render: "), "{trapped}");

    let failure = after(&faulty, json!({"mode": "after-end", "failure": "a\nb"})).await;
    assert_eq!(failure, Ok(Next::End { state: None, failure: Some("a b".to_owned()) }));
    let ask = after(&faulty, json!({"mode": "after-ask", "schema": "true"})).await;
    let schema = Some("true".to_owned());
    assert_eq!(ask, Ok(Next::Ask { prompt: "x".to_owned(), schema, state: None }));
    let line = faulty.render(&"y\n".repeat(10_000)).await.unwrap().unwrap();
    assert!(line.len() < 1_100 && !line.contains('\n'), "{line}");
    assert_eq!(host.host.engine().instances(), 0);
}

#[tokio::test]
async fn a_component_that_hangs_holds_up_no_other() {
    let host = TestHost::start();
    let (faulty, pipeline) = (host.kind("faulty").await, host.kind("pipeline").await);
    let mut hung = JoinSet::new();
    // More than there are turns for all components together.
    for _ in 0..8 {
        let faulty = faulty.clone();
        hung.spawn(async move { after(&faulty, json!({"mode": "after-spin"})).await });
    }
    let input = json!({"steps": [{"kind": "noop"}]}).to_string();
    for _ in 0..100 {
        let next = pipeline.after(request("pipeline-1", &input), Outcome::completed());
        let next = timeout(Duration::from_secs(1), next).await.unwrap().unwrap();
        assert!(matches!(next, Next::Proceed { .. }));
    }
    // Each is given up in its time, or when nobody waits for it any more.
    let late = hung.join_next().await.unwrap().unwrap();
    assert!(matches!(late, Err(StepsError::Late { call: "after", .. })), "{late:?}");
    hung.shutdown().await;
    let late = timeout(LATE, faulty.render("spin")).await.unwrap().unwrap_err().to_string();
    assert!(late.starts_with("render took longer than "), "{late}");
    // What was given up goes with its next turn.
    let gone = async {
        while host.host.engine().instances() > 0 {
            tokio::task::yield_now().await;
        }
    };
    timeout(LATE, gone).await.unwrap();
}

#[tokio::test]
async fn what_has_no_steps_says_so() {
    let host = TestHost::start();
    for component in [host.kind("grep").await, host.program("hello").await] {
        assert!(!component.has_steps());
        let kind = component.description().kind.clone();
        let none = Err(StepsError::NoSteps(kind.clone()));
        let run = request(&format!("{kind}-1"), "");
        assert_eq!(component.after(run, Outcome::completed()).await, none);
    }
}

#[tokio::test]
async fn an_answer_is_json_or_else_a_text() {
    let host = TestHost::start();
    let check =
        async |schema: &str, answer: &str| host.host.engine().check_answer(schema, answer).await;
    for (schema, answer) in [
        (r#"{"type":"boolean"}"#, "true"),
        (r#"{"enum":["yes","no"]}"#, "yes"),
        (r#"{"enum":["yes","no"]}"#, "\"yes\""),
        (r#"{"type":"string","maxLength":4}"#, "a\n\"b"),
        (r#"{"type":"string"}"#, ""),
    ] {
        assert_eq!(check(schema, answer).await, Ok(()), "{schema} {answer}");
    }
    let invalid = check(r#"{"type":"boolean"}"#, "hunter2").await.unwrap_err();
    assert!(matches!(&invalid, AnswerError::Invalid(why) if !why.contains("hunter2")), "{invalid}");
    assert!(matches!(check("{", "x").await, Err(AnswerError::Unchecked(_))));
}

/// Returns what a version prints when it is run once.
async fn prints(host: &TestHost, producer: impl Producer) -> String {
    let start = Start { input: arguments(&["0", "1"]), ..Start::default() };
    host.task_of(Arc::new(producer), start).await.output().await.trim().to_owned()
}

#[tokio::test]
async fn a_pinned_version_is_run_and_kept_whatever_its_kind_has_become() {
    let fixture = Fixture::with(Reload::Asked).await;
    let catalog = fixture.host.host.catalog();
    let kind = Kind::new("ver").unwrap();
    let pinned = catalog.pinned(&kind).unwrap();
    assert_eq!(pinned.manifest(), None);
    fixture.replace("plugins/ver.wasm", &ver('B'));
    fixture.plugins().reload().await.unwrap();
    assert_eq!(prints(&fixture.host, catalog.producer(kind.clone(), Ask::default())).await, "B");
    let of = |pinned: &Pinned| catalog.producer_of(pinned.clone(), Ask::default());
    assert_eq!(prints(&fixture.host, of(&pinned)).await, "A");
    // Its bytes are those that were loaded, although others have the name by now.
    let bytes = pinned.component().bytes().await.unwrap();
    assert_eq!(digest_of(&bytes), *pinned.component().generation().digest);

    fixture.plugins().rollback(&kind, None).await.unwrap();
    let back = catalog.pinned(&kind).unwrap();
    assert_eq!(back.component().bytes().await.unwrap(), bytes);
    fixture.plugins().unload(&kind).await.unwrap();
    assert!(catalog.pinned(&kind).is_err());
    assert_eq!(prints(&fixture.host, of(&pinned)).await, "A");

    // From what was kept, as after a restart.
    let engine = fixture.host.host.engine();
    let kept = Component::load(engine, "ver", bytes, 7).await.unwrap();
    assert!(matches!(kept.bytes().await, Err(BytesError::NoFile(of)) if of == kind));
    assert_eq!(prints(&fixture.host, of(&Pinned::new(kept, None))).await, "A");
}

#[tokio::test]
async fn a_version_that_is_woken_again_can_still_be_kept() {
    let fixture = Fixture::with(Reload::Asked).await;
    let kind = Kind::new("ver").unwrap();
    fixture.replace("plugins/ver.wasm", &ver('B'));
    fixture.plugins().reload().await.unwrap();
    // Nothing runs A any more, so that its code has to be mapped again.
    fixture.plugins().rollback(&kind, Some(1)).await.unwrap();
    let back = fixture.host.host.catalog().pinned(&kind).unwrap();
    assert_eq!(back.component().bytes().await.unwrap(), ver('A'));
}

#[tokio::test]
async fn a_file_that_was_written_over_is_no_copy_of_what_runs() {
    let fixture = Fixture::with(Reload::Asked).await;
    let pinned = fixture.host.host.catalog().pinned(&Kind::new("ver").unwrap()).unwrap();
    fs::write(fixture.at("plugins/ver.wasm"), same_but_new(&ver('A'), 1)).unwrap();
    let changed = pinned.component().bytes().await.unwrap_err();
    assert!(matches!(changed, BytesError::Changed { .. }), "{changed}");
    let said = changed.to_string();
    assert!(said.contains("ver") && said.contains("instead of writing over it"), "{said}");
}

#[tokio::test]
async fn a_pinned_version_gets_what_policy_and_its_own_manifest_give() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a.txt"), "needle\n").unwrap();
    let data = folder.path().display();
    let grep = fs::read(kind("grep")).unwrap();
    let with = |policy: &str| {
        let policy = Policy::parse(policy, "p.toml", folder.path()).unwrap();
        let plugins = kind("grep").parent().unwrap().to_owned();
        TestHost::with(Config { plugins, policy, ..Config::default() })
    };
    let dirs = format!("[kind.grep]\ndirs = ['{data}::/in:ro']");
    let host = with(&dirs);
    let component = host.kind("grep").await;
    let search = async |manifest: &str| {
        let manifest = Manifest::parse(manifest, "grep.toml").unwrap();
        let pinned = Pinned::new(component.clone(), Some(manifest.clone()));
        assert_eq!(pinned.manifest().map(Manifest::text), Some(manifest.text()));
        let producer = host.host.catalog().producer_of(pinned, Ask::default());
        let input = r#"{"pattern":"needle","path":"/in"}"#.into();
        let start = Start { input, ..Start::default() };
        host.registry().start(Arc::new(producer), start).await
    };
    let found = host.task_by(search(r#"dirs = ["*:ro"]"#).await.unwrap()).output().await;
    assert_eq!(found, "/in/a.txt:1:needle\n");
    let refused = search("dirs = []").await.unwrap_err().to_string();
    assert!(refused.contains("`/in` cannot be searched"), "{refused}");

    // The policy may list other versions by now.
    let host = with(&format!("[kind.grep]\ndigest = ['sha256:{}']", "0".repeat(64)));
    let kept = Component::load(host.host.engine(), "grep", grep, 1).await.unwrap();
    let producer = host.host.catalog().producer_of(Pinned::new(kept, None), Ask::default());
    let refused = host.registry().start(Arc::new(producer), Start::default()).await.unwrap_err();
    let refused = refused.to_string();
    assert!(refused.contains("may not be loaded as `grep`"), "{refused}");
}
