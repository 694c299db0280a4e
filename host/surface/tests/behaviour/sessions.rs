//! Sessions, what is written down for them and what is owed to them.

use backlot_jobs::{DeliveryId, NOTIFICATION_PREFIX, RunEnding};
use backlot_surface::wire::{DeleteQuery, EntriesQuery, EntryRequest, LookQuery, SpawnRequest};

use crate::harness::{Host, code, of_kind};

fn entry(id: &str, text: &str) -> EntryRequest {
    EntryRequest { id: id.into(), target: None, text: text.into() }
}

#[tokio::test]
async fn a_session_is_opened_written_and_deleted() {
    let host = Host::start().await;
    let client = host.client().await;
    let name = "a session/with größe";
    let opened = client.open_session(name).await.unwrap();
    assert_eq!(opened.id, name);
    assert_eq!(client.open_session(name).await.unwrap(), opened);
    let first = client.append(name, &entry("e1", "hello")).await.unwrap().number;
    assert_eq!(client.append(name, &entry("e1", "again")).await.unwrap().number, first);
    client.append(name, &entry("e2", "bye")).await.unwrap();
    let one = EntriesQuery { after: 0, limit: Some(1) };
    let page = client.entries(name, &one).await.unwrap();
    assert_eq!(page.entries[0].text.as_deref(), Some("hello"));
    let rest = EntriesQuery { after: page.next, limit: None };
    let page = client.entries(name, &rest).await.unwrap();
    assert_eq!((page.entries.len(), page.entries[0].id.as_str()), (1, "e2"));
    let end = EntriesQuery { after: page.next, limit: None };
    assert_eq!(client.entries(name, &end).await.unwrap().next, page.next);

    let request = SpawnRequest { session: Some(name.into()), ..of_kind("park") };
    let job = client.spawn(&request).await.unwrap();
    let removed = client.delete_session(name, &DeleteQuery::default()).await.unwrap();
    assert_eq!(removed.removed, 1);
    let looked = client.job(&job.id.to_string(), &LookQuery::default()).await;
    assert_eq!(code(looked), "unknown_job");
    assert_eq!(code(client.append(name, &entry("e3", "late")).await), "unknown_session");
}

#[tokio::test]
async fn a_page_of_entries_is_bounded_in_bytes() {
    let host = Host::start().await;
    let client = host.client().await;
    client.open_session("chat").await.unwrap();
    let text = "a".repeat(64 << 10);
    for nth in 0..100 {
        client.append("chat", &entry(&format!("e{nth}"), &text)).await.unwrap();
    }
    let one_more = text + "a";
    assert_eq!(code(client.append("chat", &entry("long", &one_more)).await), "invalid");
    let all = EntriesQuery { after: 0, limit: Some(1_000) };
    let first = client.entries("chat", &all).await.unwrap();
    assert_eq!(first.entries.len(), 64);
    let rest = EntriesQuery { after: first.next, limit: Some(1_000) };
    let rest = client.entries("chat", &rest).await.unwrap();
    assert_eq!((rest.entries.len(), rest.entries[35].id.as_str()), (36, "e99"));
}

#[tokio::test]
async fn names_that_cannot_be_are_refused() {
    let host = Host::start().await;
    let client = host.client().await;
    let long = "a".repeat(300);
    let own = host.spawn("park").await.own_session;
    for name in [long.as_str(), "a\nb", own.as_str()] {
        assert_eq!(code(client.open_session(name).await), "invalid");
    }
    assert_eq!(code(client.append("chat", &entry("", "no id")).await), "invalid");
}

#[tokio::test]
async fn what_is_owed_is_told_until_it_is_settled() {
    let host = Host::start().await;
    let client = host.client().await.for_session("chat");
    let job = host.spawn("park").await;
    assert!(client.owed("chat").await.unwrap().text.is_none());
    host.end(&job, RunEnding::Completed, "four files").await;
    let owed = client.owed("chat").await.unwrap();
    assert_eq!(owed.jobs[0].id, job.id);
    let text = owed.text.clone().unwrap();
    assert!(text.starts_with(NOTIFICATION_PREFIX) && text.contains("four files"), "{text}");
    assert_eq!(client.owed("chat").await.unwrap(), owed);
    // What is not owed is not settled.
    let other = vec![DeliveryId::from_text("x"), DeliveryId::new(job.id, 9)];
    assert_eq!(client.settle("chat", other).await.unwrap().settled, 0);
    assert_eq!(client.settle("chat", owed.ids.clone()).await.unwrap().settled, 1);
    assert_eq!(client.settle("chat", owed.ids).await.unwrap().settled, 0);
    assert!(client.owed("chat").await.unwrap().ids.is_empty());
}
