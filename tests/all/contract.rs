//! The contract: a component that was built against another one is refused when it
//! is loaded, and told what to do.

use std::{fs, sync::Arc, time::Duration};

use backlot::{
    Config, Reload,
    registry::{Catalog as _, Change, Kind, KindState, Start, Status},
    wasm::Ask,
};
use backlot_tests::{Memory, Process, TestHost, With};
use tokio::time::timeout;

/// A producer in the text format, which ends as soon as it is started. Tests write
/// it with one thing changed.
const PRODUCER: &str = r#"(component
    (import "backlot:producer/types@0.1.0" (instance $types
        (type $manner (flags "stdout-is-output" "stops-by-drop"))
        (export "manner" (type $m (eq $manner)))
        (type $descriptor (record (field "kind" string) (field "summary" string)
            (field "input-schema" (option string)) (field "manner" $m)))
        (export "descriptor" (type (eq $descriptor)))
        (type $cause (enum "spawn" "retry" "step" "answer"))
        (export "cause" (type $c (eq $cause)))
        (type $request (record (field "task" string) (field "label" string)
            (field "input" string) (field "job" (option string)) (field "attempt" u32)
            (field "step" u32) (field "cause" $c) (field "state" (option string))
            (field "last-failure" (option string)) (field "answer" (option string))))
        (export "request" (type (eq $request)))
        (type $refusal (variant (case "invalid-input" string) (case "unavailable" string)))
        (export "refusal" (type (eq $refusal)))
        (type $stop-refusal (variant (case "not-now" string) (case "broken" string)))
        (export "stop-refusal" (type (eq $stop-refusal)))
        (type $ending (enum "completed" "killed" "failed"))
        (export "ending" (type $e (eq $ending)))
        (type $outcome (record (field "ending" $e) (field "detail" (option string))
            (field "output" (option string))))
        (export "outcome" (type (eq $outcome)))))
    (alias export $types "descriptor" (type $descriptor))
    (alias export $types "request" (type $request))
    (alias export $types "refusal" (type $refusal))
    (alias export $types "stop-refusal" (type $stop-refusal))
    (alias export $types "outcome" (type $outcome))
    (core module $m
        (memory (export "memory") 1)
        (global $end (mut i32) (i32.const 1024))
        (func (export "realloc") (param i32 i32 i32 i32) (result i32)
            global.get $end
            (global.set $end (i32.and (i32.const -8)
                (i32.add (global.get $end) (i32.add (local.get 3) (i32.const 15))))))
        (func (export "describe") (result i32) i32.const 8)
        (func (export "run") (param i32) (result i32) i32.const 64)
        (func (export "cancel") (param i32 i32 i32) (result i32) i32.const 64)
        (func (export "cancel-more") (param i32 i32 i32 i32) (result i32) i32.const 64)
        (func (export "done") (result i32) i32.const 64)
        (data (i32.const 8) "\80\00\00\00\04\00\00\00\80\00\00\00\04\00\00\00")
        (data (i32.const 128) "made"))
    (core instance $i (instantiate $m))
    (alias core export $i "memory" (core memory $memory))
    (alias core export $i "realloc" (core func $realloc))
    (func $describe (result $descriptor)
        (canon lift (core func $i "describe") (memory $memory)))
    (func $run (param "request" $request) (result (result (error $refusal)))
        (canon lift (core func $i "run") (memory $memory) (realloc $realloc)))
    (func $cancel (param "reason" (option string)) (result (result (error $stop-refusal)))
        (canon lift (core func $i "cancel") (memory $memory) (realloc $realloc)))
    (func $done async (result $outcome)
        (canon lift (core func $i "done") (memory $memory)))
    (instance $lifecycle
        (export "describe" (func $describe))
        (export "run" (func $run))
        (export "cancel" (func $cancel))
        (export "done" (func $done)))
    (export "backlot:producer/lifecycle@0.1.0" (instance $lifecycle)))"#;

/// Returns the producer with one part of its text replaced.
fn changed(from: &str, to: &str) -> Vec<u8> {
    assert_eq!(PRODUCER.matches(from).count(), 1, "{from}");
    wat::parse_str(PRODUCER.replace(from, to)).unwrap()
}

#[tokio::test]
async fn a_producer_in_the_text_format_runs() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("made.wasm");
    fs::write(&path, wat::parse_str(PRODUCER).unwrap()).unwrap();
    let host = TestHost::start();
    let made = host.host.load_kind_file(&path).await.unwrap();
    assert_eq!(host.task(&made, "").await.end().await.status, Status::Completed);
}

/// Returns the producer with a schema of its input.
fn with_schema(schema: &str) -> Vec<u8> {
    // The descriptor is at 8: the schema is its third field, an option at 24.
    let described = format!(
        r#"\00\00\00\04\00\00\00\01\00\00\00\00\10\00\00{}")
        (data (i32.const 4096) "{}")"#,
        u32::try_from(schema.len()).unwrap().to_le_bytes().map(|it| format!("\\{it:02x}")).concat(),
        schema.replace('\\', "\\\\").replace('"', "\\\""),
    );
    let text = PRODUCER
        .replace(r#"\00\00\00\04\00\00\00")"#, &described)
        .replace("(memory (export \"memory\") 1)", "(memory (export \"memory\") 2)")
        .replace("(i32.const 1024)", "(i32.const 100000)");
    wat::parse_str(text).unwrap()
}

/// A schema whose references double at each of so many levels.
fn doubling(levels: usize, last: &str, around: &str) -> String {
    let defs: Vec<String> = (0..levels)
        .map(|n| {
            let next = format!(r##"{{"\u0024ref":"#/$defs/a{}"}}"##, n + 1);
            format!(r#""a{n}":{{"allOf":[{next},{next}]}}"#)
        })
        .collect();
    format!(
        r##"{{{around}"$ref":"#/$defs/a0","$defs":{{{},"a{levels}":{last}}}}}"##,
        defs.join(",")
    )
}

/// A schema is a guest's own words as well: whatever reading it or checking an input
/// with it would take, the host takes none of it.
#[tokio::test]
async fn a_schema_that_takes_for_ever_or_too_much_harms_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("made.wasm");
    let host = TestHost::start();
    let load = async |schema: &str| {
        fs::write(&path, with_schema(schema)).unwrap();
        host.host.load_file(&path).await
    };
    let patterns: Vec<String> = (0..900)
        .map(|nth| format!(r#"{{"patternProperties":{{"{nth}(\\pL{{9}}|\\PL{{9}})":true}}}}"#))
        .collect();
    let chain: Vec<String> =
        (0..300).map(|nth| format!(r##""a{nth}":{{"$ref":"#/$defs/a{}"}}"##, nth + 1)).collect();
    let chain = format!(
        r##"{{"$ref":"#/$defs/a0","$defs":{{{},"a300":{{"items":{{"$ref":"#/$defs/a0"}}}}}}}}"##,
        chain.join(",")
    );
    for endless in [
        doubling(40, "{}", r#""unevaluatedProperties":false,"#),
        format!(r#"{{"allOf":[{}]}}"#, patterns.join(",")),
    ] {
        let since = std::time::Instant::now();
        let loaded = load(&endless).await.map(drop).map_err(|error| error.to_string());
        assert!(loaded.as_ref().is_err_and(|why| why.contains("input-schema")), "{loaded:?}");
        assert!(since.elapsed() < Duration::from_secs(20));
    }
    let deep = format!("{}{}", "[".repeat(120), "]".repeat(120));
    // The words for all that is wrong would be gigabytes.
    let wordy = r#"{"anyOf":[{"additionalProperties":{"items":{"type":"string"}}}]}"#.to_owned();
    let wrong = format!("{{\"{}\":[{}0]}}", "k".repeat(60_000), "0,".repeat(30_000));
    let patterns: Vec<String> = (0..16)
        .map(|n| format!(r#"{{"not":{{"pattern":"[ab]*b[ab]{{{}}}[c-z]"}}}}"#, n + 900))
        .collect();
    let patterns = format!(r#"{{"allOf":[{}]}}"#, patterns.join(","));
    let long = format!("\"{}\"", "ab".repeat(100_000));
    let memory = Memory::from_now();
    for (costly, input, says) in [
        (doubling(60, r#"{"type":"string"}"#, ""), r#""x""#, "unavailable: its schema"),
        (chain, &*deep, ""),
        (wordy, &*wrong, "invalid input: it does not match its schema"),
        (patterns, &*long, ""),
    ] {
        let made = load(&costly).await.unwrap();
        let since = std::time::Instant::now();
        let refused = host.try_task(&made, input, With::default()).await.map(|task| task.id);
        match refused {
            // It is slow, and within its bounds.
            Ok(_) => assert_eq!(says, ""),
            Err(why) => assert!(why.to_string().contains(says), "{why}"),
        }
        assert!(since.elapsed() < Duration::from_secs(10));
    }
    assert!(memory.growth() < 128 << 20, "{} bytes", memory.growth());
    // A plain one is checked at once, and so is one with references.
    for schema in [
        r#"{"type":"object","properties":{"n":{"type":"integer"}}}"#,
        r##"{"properties":{"n":{"$ref":"#/$defs/n"}},"$defs":{"n":{"type":"integer"}}}"##,
    ] {
        let made = load(schema).await.unwrap();
        assert_eq!(host.task(&made, r#"{"n":1}"#).await.end().await.status, Status::Completed);
        let refused = host.try_task(&made, r#"{"n":"x"}"#, With::default()).await;
        let Err(why) = refused.map(|task| task.id) else { panic!("it was started") };
        assert!(why.to_string().contains("invalid input: at /n"), "{why}");
    }
    assert_eq!(host.host.engine().instances(), 0);
}

/// What a component may have that others have not: what it is called, the component,
/// and words of what is said of it.
type Deviation = (&'static str, Vec<u8>, &'static [&'static str]);

/// Returns the producer with each of the things that versions of a contract differ in.
fn deviations() -> Vec<Deviation> {
    let import = |text: &str| changed("(component\n", &format!("(component {text}\n"));
    vec![
        (
            "no done",
            changed("(export \"done\" (func $done))", ""),
            &["no function `done`", "backlot:producer/lifecycle@0.1.0", "async func() -> outcome"],
        ),
        (
            "a cancel with one parameter more",
            wat::parse_str(
                PRODUCER
                    .replace("(func $cancel (param", "(func $cancel (param \"force\" bool) (param")
                    .replace("(core func $i \"cancel\")", "(core func $i \"cancel-more\")"),
            )
            .unwrap(),
            &["`cancel`", "func(reason: option<string>)", "expected 1", "found 2"],
        ),
        (
            "an ending more",
            changed(r#""completed" "killed" "failed""#, r#""completed" "killed" "failed" "lost""#),
            &["`done`", "async func() -> outcome", "enum", "3", "4"],
        ),
        (
            "an ending with another name",
            changed(r#""completed" "killed" "failed""#, r#""completed" "killed" "broken""#),
            &["`done`", "async func() -> outcome", "failed", "broken"],
        ),
        (
            "a field less",
            changed("(field \"label\" string)", ""),
            &["`run`", "func(request: request)", "record"],
        ),
        (
            "another version",
            changed("backlot:producer/lifecycle@0.1.0", "backlot:producer/lifecycle@0.2.0"),
            &["found contract version 0.2.0", "wanted 0.1.0", "backlot:producer@0.1.0"],
        ),
        (
            "an import of nobody's",
            import(r#"(import "acme:secret/vault@1.0.0" (instance (export "open" (func))))"#),
            &["acme:secret/vault@1.0.0", "this host offers", "backlot:producer/host@0.1.0"],
        ),
        (
            "an import of another version",
            import(
                r#"(import "backlot:producer/host@0.2.0"
                    (instance (export "stop-requested" (func (result bool)))))"#,
            ),
            &["backlot:producer/host@0.2.0", "backlot:producer/host@0.1.0"],
        ),
        (
            "a function that the host does not have",
            import(
                r#"(import "backlot:producer/host@0.1.0"
                    (instance (export "pause" (func))))"#,
            ),
            &["backlot:producer/host@0.1.0", "pause"],
        ),
        (
            "a function of another type",
            import(
                r#"(import "backlot:producer/host@0.1.0"
                    (instance (export "report" (func (param "detail" u32)))))"#,
            ),
            &["backlot:producer/host@0.1.0", "report", "string", "u32"],
        ),
    ]
}

/// C32: what differs is told when the component is loaded, not when it is started.
#[tokio::test]
async fn c32_a_component_built_against_another_contract_is_refused_when_it_is_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let host = TestHost::start();
    let path = folder.path().join("made.wasm");
    for (what, bytes, says) in deviations() {
        fs::write(&path, bytes).unwrap();
        let error = match host.host.load_kind_file(&path).await {
            Ok(_) => panic!("{what}: it was loaded"),
            Err(error) => error.to_string(),
        };
        for word in says {
            assert!(error.contains(word), "{what} does not say {word:?}: {error}");
        }
        assert!(!error.contains('\n'), "{what}: {error}");
    }
    assert_eq!(host.host.engine().instances(), 0, "nothing was run");
}

/// C32: as an update of a good version, which stays, whoever asks for it.
#[tokio::test]
async fn c32_an_update_for_another_contract_leaves_the_version_before() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::create_dir(at("plugins")).unwrap();
    let replace = |bytes: &[u8]| {
        fs::write(at("draft"), bytes).unwrap();
        fs::rename(at("draft"), at("plugins/made.wasm")).unwrap();
    };
    let made = Kind::new("made").unwrap();
    for reload in [Reload::Asked, Reload::Watch] {
        replace(&wat::parse_str(PRODUCER).unwrap());
        let host = TestHost::with(Config { plugins: at("plugins"), reload, ..Config::default() });
        let plugins = host.host.plugins().clone();
        let before = plugins.load(&made).await.unwrap().generation().clone();
        let mut changes = host.host.catalog().changes();
        for (what, bytes, says) in deviations() {
            replace(&bytes);
            if reload == Reload::Asked {
                plugins.load(&made).await.unwrap_err();
            }
            let why = match timeout(Duration::from_secs(5), changes.next()).await {
                Ok(Some(Change::Refused { why, .. })) => why,
                other => panic!("{what}: {other:?}"),
            };
            for word in says {
                assert!(why.contains(word), "{what} does not say {word:?}: {why}");
            }
            let view = host.host.catalog().kind(&made).unwrap();
            assert_eq!(view.current.unwrap().generation, before, "{what}");
            assert_eq!((view.state, view.trouble), (KindState::Serving, Some(why)), "{what}");
            let producer = host.host.catalog().producer(made.clone(), Ask::default());
            let start = Start { label: what.into(), ..Start::default() };
            let task = host.task_of(Arc::new(producer), start).await;
            let ended = task.end().await;
            assert_eq!((ended.status, ended.generation), (Status::Completed, Some(before.clone())));
        }
    }
}

/// C36: a kind is a name, also where a component says it of itself.
#[tokio::test]
async fn c36_a_kind_that_is_a_path_is_refused_wherever_it_is_named() {
    let outer = tempfile::tempdir().unwrap();
    let folder = outer.path().join("plugins");
    fs::create_dir(&folder).unwrap();
    let path = folder.join("made.wasm");
    let host = TestHost::start();
    for name in ["../x", "/etc", "a/b ", "a\\5cb", "..\\00x", "\\0a..x"] {
        let bytes = changed("(i32.const 128) \"made\"", &format!("(i32.const 128) \"{name}\""));
        fs::write(&path, bytes).unwrap();
        for loaded in [host.host.load_file(&path).await, host.host.load_kind_file(&path).await] {
            let error = loaded.unwrap_err().to_string();
            assert!(error.contains("an invalid kind"), "{name}: {error}");
        }
    }
    let plugins = folder.display().to_string();
    let listed = Process::run(["kinds", "--plugins", &plugins]);
    assert_eq!((listed.code, listed.stdout.as_str()), (Some(1), ""), "{}", listed.stderr);
    let checked = Process::run(["check", &path.display().to_string()]);
    assert_eq!((checked.code, checked.stdout.as_str()), (Some(3), ""), "{}", checked.stderr);
    let left: Vec<_> = fs::read_dir(outer.path()).unwrap().map(|it| it.unwrap().path()).collect();
    assert_eq!(left, [folder], "nothing was made beside the folder");
}
