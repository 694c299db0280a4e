//! Two versions of the contract in one host: what was built against either runs
//! beside the other, and what is neither is refused.

use std::{sync::Arc, time::Duration};

use backlot_registry::{
    Caller, Config, Environment, Kill, Killed, Kind, Outcome, Registry, Request, Snapshot, Start,
    Status, Step, TaskId,
};
use tokio::runtime::Handle;

use super::{CONTRACT_VERSION, Version};
use crate::{
    Component, ComponentForm, Engine, EngineConfig, Limits, LoadError, Next, NotRunnable,
    OpenGrant, StepsError,
};

/// A component built against the version 0.1, which is frozen.
const V0_1: &str = include_str!("tests/v0_1.wat");
/// One built against the next.
const NEXT: &str = include_str!("tests/next.wat");

fn engine() -> Engine {
    let config = EngineConfig { instances: Some(8), ..EngineConfig::new(Handle::current()) };
    Engine::new(config).unwrap()
}

async fn load(engine: &Engine, text: &str) -> Result<Component, LoadError> {
    Component::load(engine, "made", wat::parse_str(text).unwrap(), 1).await
}

async fn start(registry: &Registry, component: &Component, input: &str) -> TaskId {
    let producer = Arc::new(component.producer(OpenGrant::none(), Limits::default()));
    let start = Start { label: "test".into(), input: input.into(), ..Start::default() };
    registry.start(producer, start).await.unwrap()
}

async fn end(registry: &Registry, id: &TaskId) -> Snapshot {
    let ended = registry.wait(id, &Caller::Operator, Duration::from_secs(30)).await.unwrap();
    assert!(ended.status.is_terminal(), "{id} is still {}", ended.status);
    ended
}

async fn output(registry: &Registry, id: &TaskId) -> String {
    registry.read(id, &Caller::Operator, usize::MAX).await.unwrap().text
}

/// Returns why a component is refused that is another in one place.
async fn refusal(text: &str, from: &str, to: &str) -> String {
    assert_eq!(text.matches(from).count(), 1, "{from}");
    let engine = engine();
    let refused = load(&engine, &text.replace(from, to)).await.unwrap_err().to_string();
    assert_eq!(engine.instances(), 0, "nothing was run");
    refused
}

#[tokio::test]
async fn components_of_both_versions_run_side_by_side() {
    let engine = engine();
    let (past, soon) = (load(&engine, V0_1).await.unwrap(), load(&engine, NEXT).await.unwrap());
    for (component, version, kind) in [(&past, "0.1.0", "past"), (&soon, "0.2.0", "soon")] {
        let about = component.description();
        assert_eq!((about.contract, about.kind.as_str()), (Some(version), kind));
        assert_eq!(about.form, ComponentForm::SteppedProducer);
    }
    assert_eq!(past.description().summary, "speaks of old");
    assert_eq!(soon.description().summary, "speaks of new");

    let registry = Registry::new(Config::default(), Environment::new(Handle::current()));
    let _surface = registry.attach_surface("test");
    let waits = [start(&registry, &past, "x").await, start(&registry, &soon, "x").await];
    let ends = [start(&registry, &past, "").await, start(&registry, &soon, "").await];
    // A field, a case and a parameter more are put into words, or left out.
    for (id, kind, detail) in
        [(&ends[0], "past", None), (&ends[1], "soon", Some("skipped; warning: no input"))]
    {
        let ended = end(&registry, id).await;
        assert_eq!((ended.status, ended.detail.as_deref()), (Status::Completed, detail));
        assert_eq!(output(&registry, id).await, kind);
    }
    for (id, kind, report) in [(&waits[0], "past", "at work"), (&waits[1], "soon", "5 %: at work")]
    {
        assert_eq!(output(&registry, id).await, kind, "read from a guest that waits");
        let running = registry.get(id, &Caller::Operator).unwrap();
        assert_eq!((running.status, running.detail.as_deref()), (Status::Running, Some(report)));
        let kill = Kill { reason: Some("enough".into()), ..Kill::default() };
        let killed = registry.kill(id, &Caller::Operator, kill).await.unwrap();
        assert_eq!(killed, Killed::Requested);
        let ended = end(&registry, id).await;
        assert_eq!((ended.status, ended.detail.as_deref()), (Status::Killed, Some("enough")));
    }
    assert_eq!(engine.instances(), 0);
}

#[tokio::test]
async fn components_of_both_versions_decide_what_follows_a_run() {
    let engine = engine();
    for (text, kind) in [(V0_1, "past"), (NEXT, "soon")] {
        let component = load(&engine, text).await.unwrap();
        assert!(component.has_steps() && component.description().steps);
        let request = |input: &str| Request {
            task: format!("{kind}-1").parse().unwrap(),
            label: "test".into(),
            input: input.into(),
            step: Step::default(),
        };
        let next = component.after(request("x"), Outcome::completed()).await.unwrap();
        let (kind, input) = (Some(Kind::new(kind).unwrap()), "x".to_owned());
        assert_eq!(next, Next::Proceed { kind, input, state: None });
        let trapped = component.after(request(""), Outcome::failed("x")).await.unwrap_err();
        assert!(trapped.to_string().starts_with("trap in after: wasm trap: wasm `unreachable`"));
        assert_eq!(component.render("step\n2/3").await.unwrap().as_deref(), Some("step 2/3"));
        assert_eq!(component.render(" ").await.unwrap(), None);
    }
    assert_eq!(engine.instances(), 0);
}

/// Of the exports, `output` and `steps` may each be there without the other.
#[tokio::test]
async fn a_component_with_one_final_output_may_have_steps() {
    let engine = engine();
    let output = "(export \"backlot:producer/output@0.1.0\" (instance $output))";
    assert_eq!(V0_1.matches(output).count(), 1);
    let component = load(&engine, &V0_1.replace(output, "")).await.unwrap();
    let about = component.description();
    assert_eq!(about.form.to_string(), "stepped-final-producer");
    assert!(about.steps && component.has_steps());
    assert_eq!(component.render("x").await.unwrap().as_deref(), Some("x"));

    let steps = "(export \"backlot:producer/steps@0.1.0\" (instance $steps))";
    assert_eq!(V0_1.matches(steps).count(), 1);
    let component = load(&engine, &V0_1.replace(steps, "")).await.unwrap();
    assert!(!component.has_steps());
    let told = component.render("x").await.unwrap_err();
    assert_eq!(told, StepsError::NoSteps(Kind::new("past").unwrap()));
}

#[tokio::test]
async fn a_function_of_another_type_is_told_in_the_words_of_its_version() {
    let ending = r#""failed" "skipped""#;
    let done = refusal(NEXT, ending, r#""failed""#).await;
    for word in ["`done`", "lifecycle@0.2.0", "async func() -> outcome"] {
        assert!(done.contains(word), "{done}");
    }
    // What another version has more does not make it right here.
    let cancel = "(param \"reason\" (option string))";
    let grace = "(param \"grace-ms\" (option u64))";
    let next = refusal(NEXT, grace, "(param \"grace-ms\" (option s64))").await;
    for word in ["`cancel`", "lifecycle@0.2.0", "grace-ms: option<u64>"] {
        assert!(next.contains(word), "{next}");
    }
    let both = format!("{cancel} {grace}");
    let old =
        V0_1.replace("\"cancel\") (param i32 i32 i32)", "\"cancel\") (param i32 i32 i32 i32 i64)");
    let old = refusal(&old, cancel, &both).await;
    for word in ["`cancel`", "lifecycle@0.1.0", "func(reason: option<string>) ->", "found 2"] {
        assert!(old.contains(word), "{old}");
    }
    let after = refusal(NEXT, r#"(case "end" $closing)"#, "").await;
    for word in ["`after`", "steps@0.2.0", "func(request: request, ended: outcome) -> next"] {
        assert!(after.contains(word), "{after}");
    }
}

#[tokio::test]
async fn what_claims_another_version_than_it_was_built_against_is_refused() {
    let engine = engine();
    for (text, claims) in [
        (V0_1.replace("@0.1.0", "@0.2.0"), "lifecycle@0.2.0"),
        (NEXT.replace("@0.2.0", "@0.1.0"), "lifecycle@0.1.0"),
    ] {
        let refused = load(&engine, &text).await.unwrap_err();
        assert!(matches!(&refused, LoadError::Type(why) if why.contains(claims)), "{refused}");
    }
    assert_eq!(engine.instances(), 0, "nothing was run");
}

#[tokio::test]
async fn a_component_of_two_versions_is_refused() {
    let output = "(export \"backlot:producer/output@0.1.0\"";
    let mixed = refusal(V0_1, output, "(export \"backlot:producer/output@0.2.0\"").await;
    assert!(mixed.contains("`backlot:producer/output@0.2.0` beside"), "{mixed}");
    assert!(mixed.contains("`backlot:producer/lifecycle@0.1.0`"), "{mixed}");
}

#[tokio::test]
async fn a_version_that_nobody_speaks_is_refused_with_those_that_are() {
    let text = V0_1.replace("@0.1.0", "@0.3.0");
    let refused = load(&engine(), &text).await.unwrap_err();
    assert!(matches!(&refused, LoadError::NotRunnable(NotRunnable::ContractVersion { .. })));
    let said = refused.to_string();
    assert!(said.contains("version 0.3.0, wanted 0.1.0 or 0.2.0"), "{said}");
}

#[tokio::test]
async fn an_import_of_a_version_that_nobody_speaks_is_refused_with_those_that_are() {
    let host = "(import \"backlot:producer/host@0.2.0\"";
    let refused = refusal(NEXT, host, "(import \"backlot:producer/host@0.3.0\"").await;
    for word in ["host@0.3.0", "backlot:producer/host@0.1.0 and backlot:producer/host@0.2.0"] {
        assert!(refused.contains(word), "{refused}");
    }
}

#[test]
fn each_version_has_its_own_names_and_the_newest_is_the_one_released() {
    for version in Version::ALL {
        let names = version.names();
        for name in [names.host, names.lifecycle, names.output, names.steps] {
            assert!(name.ends_with(&format!("@{}", names.version)), "{name}");
        }
        assert_eq!(Version::named(names.version), Some(*version));
    }
    assert_eq!(CONTRACT_VERSION, "0.1.0");
}
