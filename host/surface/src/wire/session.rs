//! Sessions, what is written down for them, and what is owed to them.

use backlot_jobs::{Body, Delivery, DeliveryId, Entry, JobCard, JobId, Session, Status};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    JobView, at_most,
    schema::{Id, JobStatus},
    spawn::SESSION,
};
use crate::error::Failure;

/// A session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SessionView {
    /// Its name.
    pub id: String,
    /// When it was opened.
    pub created_ms: u64,
}

impl SessionView {
    pub(crate) fn of(session: &Session) -> Self {
        Self { id: session.id.to_string(), created_ms: session.created_ms }
    }
}

/// Checks the name of a session that is to be opened.
pub(crate) fn check_session(name: &str) -> Result<(), Failure> {
    at_most("session", Some(name), SESSION)?;
    match name.is_empty() || name.chars().any(char::is_control) {
        true => Err(Failure::invalid(format!("{name:?} cannot be the name of a session"))),
        false => Ok(()),
    }
}

/// Entries of a session, and where to go on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EntriesReply {
    /// The entries, in the order in which they were written.
    pub entries: Vec<EntryView>,
    /// What to read `after` next.
    pub next: u64,
}

/// What was written down for a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EntryView {
    /// Its number.
    pub number: u64,
    /// Its id, which whoever wrote it chose.
    pub id: String,
    /// The entry that it updates, if it updates one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// What it says, where that is text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Where a job stands, where it says that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job: Option<JobCardView>,
    /// When it was written.
    pub at_ms: u64,
}

impl EntryView {
    pub(crate) fn of((number, entry): (u64, Entry)) -> Self {
        let (text, job) = match entry.body {
            Body::Text(text) => (Some(text), None),
            Body::Job(card) => (None, Some(JobCardView::of(card))),
        };
        Self { number, id: entry.id, target: entry.target, text, job, at_ms: entry.at_ms }
    }
}

/// Where a job stands, as a session is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JobCardView {
    /// The job.
    #[schema(value_type = Id)]
    pub id: JobId,
    /// The line that it is shown under.
    pub label: String,
    /// Where it stands.
    #[schema(value_type = JobStatus)]
    pub status: Status,
    /// Which attempt.
    pub attempt: u32,
    /// What there is to hear of its ending.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
}

impl JobCardView {
    fn of(card: JobCard) -> Self {
        let JobCard { job, label, status, attempt, summary } = card;
        Self { id: job, label, status, attempt, summary }
    }
}

/// Asks for an entry to be written, unless one of that id is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EntryRequest {
    /// Its id.
    #[schema(min_length = 1, max_length = 256)]
    pub id: String,
    /// The entry that it updates.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 256)]
    pub target: Option<String>,
    /// What it says.
    #[schema(max_length = 65536)]
    pub text: String,
}

/// The longest id of an entry, in bytes.
const ENTRY: usize = 256;
/// The longest text of an entry, in bytes: they are read and sent by the hundred.
const ENTRY_TEXT: usize = 64 << 10;

impl EntryRequest {
    /// Checks what the types cannot say.
    ///
    /// # Errors
    ///
    /// When an id is too long, or empty.
    pub fn check(&self) -> Result<(), Failure> {
        at_most("id", Some(&self.id), ENTRY)?;
        at_most("target", self.target.as_deref(), ENTRY)?;
        at_most("text", Some(&self.text), ENTRY_TEXT)?;
        match self.id.is_empty() {
            true => Err(Failure::invalid("`id` is empty")),
            false => Ok(()),
        }
    }
}

/// An entry is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EntryReply {
    /// Its number.
    pub number: u64,
}

/// What is owed to a session: endings that it has to hear of.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DeliveryReply {
    /// Names what is told, to be settled. Empty where nothing is owed.
    #[schema(value_type = Vec<String>)]
    pub ids: Vec<DeliveryId>,
    /// The message, to be put in front of a model in the user's role.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// The jobs, as they ended.
    pub jobs: Vec<JobView>,
}

impl DeliveryReply {
    pub(crate) fn of(delivery: Delivery) -> Self {
        let jobs = delivery.jobs.iter().map(|job| JobView::brief(job, None)).collect();
        Self { ids: delivery.ids, text: Some(delivery.text), jobs }
    }
}

/// Says what a session was told.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SettleRequest {
    /// Names what it was told.
    #[schema(value_type = Vec<String>)]
    pub ids: Vec<DeliveryId>,
}

/// How much was settled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SettleReply {
    /// How many endings; what was not owed, or not any more, does not count.
    pub settled: usize,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::tests::check;

    #[test]
    fn a_session_and_what_is_written_down_for_it() {
        let session = Session { id: "chat".into(), incarnation: u64::MAX, created_ms: 5 };
        check(&SessionView::of(&session), "{\n  \"id\": \"chat\",\n  \"created_ms\": 5\n}");
        let entry = |body, target: Option<&str>| {
            let target = target.map(Into::into);
            EntryView::of((3, Entry { id: "e1".into(), target, body, at_ms: 5 }))
        };
        let card = JobCard {
            job: JobId::from_bits(7),
            label: "find it".into(),
            status: Status::Completed,
            attempt: 1,
            summary: Some("4 files".into()),
        };
        let entries =
            vec![entry(Body::Text("hello".into()), None), entry(Body::Job(card), Some("e0"))];
        check(
            &EntriesReply { entries, next: 3 },
            r#"
{
  "entries": [
    {
      "number": 3,
      "id": "e1",
      "text": "hello",
      "at_ms": 5
    },
    {
      "number": 3,
      "id": "e1",
      "target": "e0",
      "job": {
        "id": "00000000000000000000000000000007",
        "label": "find it",
        "status": "completed",
        "attempt": 1,
        "summary": "4 files"
      },
      "at_ms": 5
    }
  ],
  "next": 3
}"#,
        );
        check(&EntryReply { number: 3 }, "{\n  \"number\": 3\n}");
    }

    #[test]
    fn an_entry_is_asked_for() {
        let request = EntryRequest { id: "e1".into(), target: None, text: "hello".into() };
        check(&request, "{\n  \"id\": \"e1\",\n  \"text\": \"hello\"\n}");
        request.check().unwrap();
        EntryRequest { id: String::new(), ..request.clone() }.check().unwrap_err();
        EntryRequest { id: "a".repeat(257), ..request.clone() }.check().unwrap_err();
        EntryRequest { target: Some("a".repeat(257)), ..request.clone() }.check().unwrap_err();
        EntryRequest { text: "a".repeat(ENTRY_TEXT), ..request.clone() }.check().unwrap();
        EntryRequest { text: "a".repeat(ENTRY_TEXT + 1), ..request }.check().unwrap_err();
    }

    #[test]
    fn what_is_owed_and_settled() {
        check(&DeliveryReply::default(), "{\n  \"ids\": [],\n  \"jobs\": []\n}");
        let ids = vec![DeliveryId::new(JobId::from_bits(7), 1)];
        let text = "[task-notification] ..".to_owned();
        let delivery = Delivery { ids: ids.clone(), jobs: Vec::new(), text };
        check(
            &DeliveryReply::of(delivery),
            r#"
{
  "ids": [
    "00000000000000000000000000000007.1"
  ],
  "text": "[task-notification] ..",
  "jobs": []
}"#,
        );
        check(
            &SettleRequest { ids },
            "{\n  \"ids\": [\n    \"00000000000000000000000000000007.1\"\n  ]\n}",
        );
        check(&SettleReply { settled: 1 }, "{\n  \"settled\": 1\n}");
    }

    #[test]
    fn a_name_is_a_line_of_text() {
        check_session("chat with größe").unwrap();
        for bad in ["", "a\nb", "a\0", &"a".repeat(257)] {
            check_session(bad).unwrap_err();
        }
    }
}
