//! The kinds of the host.

use std::sync::Arc;

use backlot_registry::{
    Change, Form, Generation, GenerationView, Kind, KindDescriptor, KindState, KindView,
};
use backlot_surface::{KindChange, wire::KindStateName};
use tokio::sync::Notify;

use crate::harness::{Host, code, raw};

fn grep() -> Kind {
    Kind::new("grep").unwrap()
}

fn have_kind(host: &Host, state: KindState) {
    let descriptor = KindDescriptor {
        summary: "finds lines".into(),
        input_schema: Some(r#"{"type":"object"}"#.into()),
        form: Form::Stream,
    };
    let generation = Generation { number: 1, digest: "sha256:00".into() };
    let current = GenerationView {
        generation: generation.clone(),
        contract: None,
        loaded_at_ms: 5,
        tasks: 0,
        kept: true,
        descriptor: Arc::new(descriptor),
    };
    let view =
        KindView { kind: grep(), state, current: Some(current), earlier: vec![], trouble: None };
    host.script.set_kinds(vec![view], Change::Swapped { kind: grep(), generation });
}

#[tokio::test]
async fn kinds_are_looked_at_by_all() {
    let host = Host::start().await;
    assert!(host.client().await.kinds().await.unwrap().kinds.is_empty());
    have_kind(&host, KindState::Serving);
    for client in [host.client().await, host.client().await.for_session("chat")] {
        let kinds = client.kinds().await.unwrap().kinds;
        assert_eq!(kinds[0].kind, "grep");
        assert_eq!(kinds[0].input_schema, None);
        let kind = client.kind("grep").await.unwrap();
        assert_eq!(kind.state, KindStateName::Serving);
        assert_eq!(kind.input_schema.unwrap()["type"], "object");
        for unknown in ["grepp", "GREP", "a b", &"a".repeat(500)] {
            assert_eq!(code(client.kind(unknown).await), "no_kind");
        }
    }
}

#[tokio::test]
async fn kinds_are_changed_by_the_operator_alone() {
    let host = Host::start().await;
    have_kind(&host, KindState::Serving);
    let changes = [
        KindChange::Load,
        KindChange::Drain,
        KindChange::Unload,
        KindChange::Rollback(None),
        KindChange::Rollback(Some(3)),
    ];
    let session = host.client().await.for_session("chat");
    for change in changes {
        assert_eq!(code(session.change_kind("grep", change).await), "forbidden");
    }
    assert_eq!(code(session.reload().await), "forbidden");
    assert!(host.script.kind_changes.lock().unwrap().is_empty());
    let client = host.client().await;
    for change in changes {
        assert_eq!(client.change_kind("grep", change).await.unwrap().kind, "grep");
    }
    let told: Vec<KindChange> =
        host.script.kind_changes.lock().unwrap().iter().map(|(_, change)| *change).collect();
    assert_eq!(told, changes);
    assert_eq!(client.reload().await.unwrap().kinds.len(), 1);
    for change in [KindChange::Drain, KindChange::Unload, KindChange::Rollback(None)] {
        assert_eq!(code(client.change_kind("other", change).await), "no_kind");
    }
}

#[tokio::test(start_paused = true)]
async fn a_drain_that_takes_long_goes_on_after_its_answer() {
    let host = Host::start().await;
    have_kind(&host, KindState::Draining);
    let gate = Arc::new(Notify::new());
    *host.script.drained.lock().unwrap() = Some(gate.clone());
    let request = b"POST /v1/kinds/grep/drain HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    let answer = raw(&host, request).await;
    assert!(answer.starts_with("HTTP/1.1 202 "), "{answer}");
    assert!(answer.contains("\"state\":\"draining\""), "{answer}");
    gate.notify_one();
    // One that is done at once is told so.
    gate.notify_one();
    let answer = raw(&host, request).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}
