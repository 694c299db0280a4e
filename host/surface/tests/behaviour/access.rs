//! Who sees what: a header narrows whoever is connected to one session.

use backlot_jobs::RunEnding;
use backlot_surface::wire::{
    AnswerRequest, BackupRequest, DeleteQuery, EntriesQuery, EntryRequest, FileName, FilesQuery,
    HandView, ListQuery, LookQuery, OutputQuery, PruneRequest, SpawnRequest, StopRequest,
};

use crate::harness::{Host, code, of_kind, raw};

#[tokio::test]
async fn a_session_sees_its_own_jobs() {
    let host = Host::start().await;
    let client = host.client().await.for_session("chat");
    let named = SpawnRequest { session: None, ..of_kind("park") };
    let own = client.spawn(&named).await.unwrap();
    assert_eq!(own.session, "chat");
    let foreign = SpawnRequest { session: Some("other".into()), ..named };
    let foreign = host.client().await.spawn(&foreign).await.unwrap();
    let listed = async |session: Option<&str>| {
        let session = session.map(Into::into);
        let page = client.jobs(&ListQuery { session, ..ListQuery::default() }).await.unwrap();
        page.jobs.iter().map(|job| job.id).collect::<Vec<_>>()
    };
    assert_eq!(listed(None).await, [own.id]);
    assert_eq!(listed(Some("chat")).await, [own.id]);
    assert_eq!(listed(Some("other")).await, []);
    assert!(listed(None).await.iter().all(|id| *id != foreign.id));
    let stopped = client.stop(&own.id.to_string(), &StopRequest::default()).await.unwrap();
    assert_eq!(stopped.job.stop.unwrap().by, "chat");
}

/// Every answer to a session about a job or a session that it may not see is byte for
/// byte the one about what there is not.
#[tokio::test]
async fn c45_what_is_anothers_is_answered_as_what_there_is_not() {
    let host = Host::start().await;
    let foreign = host.spawn("park").await;
    let ended = host.end(&foreign, RunEnding::Failed, "secret").await;
    let foreign = ended.id.to_string();
    let missing = "0".repeat(32);
    let routes = |id: &str| {
        [
            format!("GET /v1/jobs/{id}"),
            format!("GET /v1/jobs/{id}?hand=model&wait_ms=1"),
            format!("GET /v1/jobs/{id}/output"),
            format!("POST /v1/jobs/{id}/stop"),
            format!("POST /v1/jobs/{id}/retry"),
            format!("DELETE /v1/jobs/{id}"),
            format!("GET /v1/jobs/{id}/files"),
            format!("GET /v1/jobs/{id}/files/a"),
            format!("GET /v1/jobs/{}", &id[..9]),
        ]
    };
    let asked = async |route: &str, id: &str| {
        let head = format!("{route} HTTP/1.1\r\nhost: x\r\nbacklot-session: other\r\n");
        let answer = raw(&host, format!("{head}connection: close\r\n\r\n").as_bytes()).await;
        let lines = answer.lines().filter(|line| !line.starts_with("date:"));
        let short = &id[..9];
        lines.collect::<Vec<_>>().join("\n").replace(id, "ID").replace(short, "ID")
    };
    for (theirs, nobodys) in routes(&foreign).iter().zip(&routes(&missing)) {
        let (theirs, nobodys) = (asked(theirs, &foreign).await, asked(nobodys, &missing).await);
        assert!(theirs.starts_with("HTTP/1.1 404 "), "{theirs}");
        assert_eq!(theirs, nobodys);
    }
    let answer = format!(
        "POST /v1/jobs/{foreign}/answer HTTP/1.1\r\nhost: x\r\nbacklot-session: other\r\n\
         connection: close\r\ncontent-length: 14\r\n\r\n{{\"answer\":\"1\"}}"
    );
    assert!(raw(&host, answer.as_bytes()).await.contains("unknown_job"));
    // None of it has done anything.
    let still = host.client().await.job(&foreign, &LookQuery::default()).await.unwrap();
    assert_eq!(still, ended);
}

#[tokio::test]
async fn c45_a_client_of_a_session_gets_the_same_words() {
    let host = Host::start().await;
    let foreign = host.spawn("park").await.id.to_string();
    let client = host.client().await.for_session("other");
    for id in [foreign.as_str(), &foreign[..8], &"0".repeat(32)] {
        let look = LookQuery::default();
        let answer = AnswerRequest { answer: "true".into() };
        let file = FileName::Path("a".into());
        assert_eq!(code(client.job(id, &look).await), "unknown_job");
        assert_eq!(code(client.output(id, &OutputQuery::default()).await), "unknown_job");
        assert_eq!(code(client.stop(id, &StopRequest::default()).await), "unknown_job");
        assert_eq!(code(client.retry(id, HandView::Model).await), "unknown_job");
        assert_eq!(code(client.answer(id, &answer, HandView::Model).await), "unknown_job");
        assert_eq!(code(client.remove(id).await), "unknown_job");
        assert_eq!(code(client.files(id, &FilesQuery::default()).await), "unknown_job");
        assert_eq!(code(client.file(id, &file).await), "unknown_job");
    }
    let entry = EntryRequest { id: "e".into(), target: None, text: "t".into() };
    for session in ["chat", "never"] {
        let spawn = SpawnRequest { session: Some(session.into()), ..of_kind("park") };
        assert_eq!(code(client.spawn(&spawn).await), "unknown_session");
        assert_eq!(code(client.open_session(session).await), "unknown_session");
        assert_eq!(code(client.append(session, &entry).await), "unknown_session");
        assert_eq!(
            code(client.entries(session, &EntriesQuery::default()).await),
            "unknown_session"
        );
        assert_eq!(code(client.owed(session).await), "unknown_session");
        assert_eq!(code(client.settle(session, Vec::new()).await), "unknown_session");
        assert_eq!(
            code(client.delete_session(session, &DeleteQuery::default()).await),
            "unknown_session"
        );
    }
}

#[tokio::test]
async fn what_is_of_all_jobs_is_the_operators() {
    let host = Host::start().await;
    let client = host.client().await.for_session("chat");
    let all = PruneRequest { keep: Some(0), age_ms: None };
    assert_eq!(code(client.prune(&all).await), "forbidden");
    assert_eq!(code(client.health().await), "forbidden");
    assert_eq!(code(client.backup(&BackupRequest { to: "/b".into() }).await), "forbidden");
    assert!(host.script.backups.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_session_that_cannot_be_read_is_no_operator() {
    let host = Host::start().await;
    for header in ["", "a\x01", "chat\r\nbacklot-session: other"] {
        let request = format!(
            "GET /v1/jobs HTTP/1.1\r\nhost: x\r\nconnection: close\r\nbacklot-session: {header}\r\n\r\n"
        );
        let answer = raw(&host, request.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 400 "), "{header:?}: {answer}");
    }
}
