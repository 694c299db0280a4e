//! What a webhook is told of an ending.

use std::time::{Duration, UNIX_EPOCH};

use backlot_jobs::{Job, Status};
use backlot_surface::wire::JobView;
use serde::Serialize;

/// How much of a result is told, in bytes. All of it can be asked for.
const RESULT: usize = 64 << 10;

/// How much is told of what a job's last run said of itself, in bytes.
const DETAIL: usize = 4 << 10;

/// The end of the last year that has four digits, which is as far as RFC 3339 goes.
const LAST_MS: u64 = 253_402_300_799_999;

/// A message, in the form that Standard Webhooks recommends.
#[derive(Serialize)]
struct Message {
    r#type: &'static str,
    /// When it ended, in RFC 3339.
    timestamp: String,
    data: Data,
}

#[derive(Serialize)]
struct Data {
    #[serde(flatten)]
    job: JobView,
    /// Whether the result goes on.
    result_truncated: bool,
}

/// Returns what is told of a job that has ended.
///
/// # Errors
///
/// When it is no JSON, or the job has not ended.
pub(super) fn body(job: &Job) -> Result<Vec<u8>, String> {
    let ended = job.ended().ok_or("the job has not ended")?;
    let r#type = match job.status() {
        Status::Completed => "job.completed",
        Status::Cancelled => "job.cancelled",
        _ => "job.failed",
    };
    let result = ended.result.as_deref();
    let data = Data {
        job: JobView {
            detail: job.detail.as_deref().map(|detail| beginning(detail, DETAIL).to_owned()),
            result: result.map(|result| beginning(result, RESULT).to_owned()),
            // What is between the host and others.
            owed: None,
            webhook: None,
            call: None,
            ..JobView::brief(job, None)
        },
        result_truncated: result.is_some_and(|result| result.len() > RESULT),
    };
    let time = UNIX_EPOCH + Duration::from_millis(ended.at_ms.min(LAST_MS));
    let time = humantime::format_rfc3339_millis(time);
    let message = Message { r#type, timestamp: time.to_string(), data };
    serde_json::to_vec(&message).map_err(|error| error.to_string())
}

/// Returns the beginning of a text, cut on a character.
fn beginning(text: &str, bytes: usize) -> &str {
    &text[..text.floor_char_boundary(bytes)]
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use backlot_jobs::{Call, DeliveryId, Ended, Ending, Event, Failure, Report, RunId, Webhook};
    use serde_json::{Value, json};

    use super::*;
    use crate::webhooks::tests::working;

    fn told(ending: Ending, result: Option<&str>, at_ms: u64) -> Value {
        let report = Report {
            ending,
            result: result.map(Into::into),
            detail: Some("said".into()),
            state: None,
            again_ms: None,
            told: false,
        };
        let mut job = working();
        Arc::make_mut(&mut job.spec).webhook = Some(Webhook::Host);
        let finished = Event::Finished { run: None, report };
        let job = backlot_jobs::next(&job, &finished, at_ms).unwrap().job;
        assert!(job.call.is_some());
        serde_json::from_slice(&body(&job).unwrap()).unwrap()
    }

    #[test]
    fn a_message_says_which_job_has_ended_and_how() {
        let message = told(Ending::Completed, Some("4 files\n"), 1_700_000_000_123);
        assert_eq!(message["type"], "job.completed");
        assert_eq!(message["timestamp"], "2023-11-14T22:13:20.123Z");
        let data = message["data"].as_object().unwrap();
        assert_eq!(data["id"], "00000000000000000000000000000007");
        assert_eq!((&data["status"], &data["kind"]), (&json!("completed"), &json!("grep")));
        assert_eq!((&data["summary"], &data["detail"]), (&json!("4 files"), &json!("said")));
        assert_eq!(
            (&data["result"], &data["result_truncated"]),
            (&json!("4 files\n"), &json!(false))
        );
        assert_eq!(data["finished_ms"], 1_700_000_000_123_u64);
        for hidden in ["owed", "webhook", "call", "input", "runs"] {
            assert!(!data.contains_key(hidden), "{hidden}");
        }
        for (ending, word) in [
            (Ending::Failed(Failure::Work), "job.failed"),
            (Ending::Failed(Failure::Interrupted), "job.failed"),
            (Ending::Cancelled, "job.cancelled"),
        ] {
            let message = told(ending, None, 1);
            assert_eq!(message["type"], word);
            assert_eq!(message["data"]["result_truncated"], false);
        }
    }

    #[test]
    fn a_message_is_short_whatever_was_said() {
        let result = format!("{}é", "x".repeat(RESULT - 1));
        let message = told(Ending::Completed, Some(&result), 1);
        assert_eq!(message["data"]["result"].as_str().unwrap().len(), RESULT - 1);
        assert_eq!(message["data"]["result_truncated"], true);
        let (ending, summary) = (Ending::Completed, String::new());
        let ended = Ended { ending, summary, result: Some("r".repeat(1 << 20)), at_ms: u64::MAX };
        let delivery = DeliveryId::new(working().id, 1);
        let job = Job {
            phase: backlot_jobs::Phase::Ended { ended, last: None },
            detail: Some("d".repeat(1 << 20)),
            call: Some(Box::new(Call { delivery, tries: 0, due_ms: Some(1), why: None })),
            ..working()
        };
        let body = body(&job).unwrap();
        assert!(body.len() < RESULT + DETAIL + 1_024, "{}", body.len());
        let message: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(message["timestamp"], "9999-12-31T23:59:59.999Z");
    }

    #[test]
    fn what_has_not_ended_is_not_told() {
        body(&working()).unwrap_err();
        assert_eq!(working().run(), Some(RunId::from_bits(1)));
    }
}
