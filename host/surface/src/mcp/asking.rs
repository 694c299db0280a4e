//! Asking the person what a job asks.
//!
//! Up to revision 2025-11-25 the client is sent a request in the middle of a call. From
//! 2026-07-28 on the call is answered with what is asked, and is made again with the answer.
//! Where a client has no forms to show, the answer says what is asked, and who answers it.

use std::{collections::BTreeMap, time::Duration};

use backlot_jobs::{Hand, Job, JobId, LookError, Phase, Question, RunId};
use rmcp::{
    ErrorData, RoleServer,
    model::{
        CallToolRequestParams, ElicitRequest, ElicitRequestParams, ElicitResult, ElicitationAction,
        ElicitationSchema, InputRequest, InputRequests, InputRequiredResult, InputResponses,
        JsonObject, ProtocolVersion,
    },
    service::RequestContext,
};
use serde_json::{Value, json};

use super::{
    foreground::Call,
    server::{Server, Unanswered},
};
use crate::error::{Failure, Reason};

/// How long a person has for one answer within a call. The question stays afterwards.
const PATIENCE: Duration = Duration::from_secs(300);

/// Names the question in what is asked where it has no name of its own, and the property that is its answer where that is
/// no object.
const ANSWER: &str = "answer";
/// The longest name that a question has of its own, in bytes.
const NAME: usize = 64;

/// How the person can be asked within a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// By a request to the client.
    Request,
    /// By the answer to the call.
    Answer,
    /// Not at all: the client has no forms to show.
    None,
}

impl Way {
    pub(super) fn of(context: &RequestContext<RoleServer>) -> Self {
        let capabilities = context.client_capabilities();
        let shows_forms = capabilities
            .and_then(|it| it.elicitation)
            .is_some_and(|it| it.form.is_some() || it.url.is_none());
        match (shows_forms, has_no_sessions(context)) {
            (false, _) => Self::None,
            (true, false) => Self::Request,
            (true, true) => Self::Answer,
        }
    }
}

/// Tells whether a request is of a revision without `initialize`.
pub(super) fn has_no_sessions(context: &RequestContext<RoleServer>) -> bool {
    let version = context.protocol_version();
    version.is_some_and(|version| version.as_str() >= ProtocolVersion::V_2026_07_28.as_str())
}

/// What a person did with a question.
pub(super) enum Reply {
    Answered,
    /// What they answered does not fit: why, in words for them. The question stays.
    Unfit(String),
    /// They did not answer it, and it stays.
    Declined,
}

/// Asks the person by a request to the client, and hands the answer to the job. They are told
/// why what they answered before does not fit.
pub(super) async fn request(
    server: &Server,
    call: &Call,
    job: &Job,
    why: Option<&str>,
) -> Result<Reply, Failure> {
    let Phase::InputRequired { question, .. } = &job.phase else { return Ok(Reply::Answered) };
    let asked = call.peer.create_elicitation_with_timeout(form(job, question, why), Some(PATIENCE));
    let asked = tokio::select! {
        biased;
        asked = asked => asked,
        () = server.leaving() => return Ok(Reply::Declined),
        () = call.cancelled.cancelled() => return Ok(Reply::Declined),
    };
    match asked {
        Ok(given) => reply(server, call, job.id, question, &given).await,
        Err(error) => {
            tracing::debug!(job = %job.id, "a person was not asked: {error}");
            Ok(Reply::Declined)
        }
    }
}

/// Hands the job what was answered with a call, where that has an answer to its question.
/// Each is used once.
pub(super) async fn given(
    server: &Server,
    call: &Call,
    job: &Job,
    given: &mut InputResponses,
) -> Result<Option<Reply>, Failure> {
    let Phase::InputRequired { question, .. } = &job.phase else { return Ok(None) };
    let Some(given) = given.remove(&key(question)) else { return Ok(None) };
    match serde_json::from_value::<ElicitResult>(given) {
        Ok(given) => reply(server, call, job.id, question, &given).await.map(Some),
        Err(error) => Ok(Some(Reply::Unfit(format!("the response cannot be read: {error}")))),
    }
}

async fn reply(
    server: &Server,
    call: &Call,
    id: JobId,
    question: &Question,
    given: &ElicitResult,
) -> Result<Reply, Failure> {
    if given.action != ElicitationAction::Accept {
        return Ok(Reply::Declined);
    }
    let Some(answer) = answer_of(question, given) else {
        return Ok(Reply::Unfit(format!("there is no `{ANSWER}`")));
    };
    match hand_over(server, call, id, answer).await {
        Ok(_) => Ok(Reply::Answered),
        Err(failure) if failure.reason == Reason::BadAnswer => Ok(Reply::Unfit(failure.message)),
        Err(failure) => Err(failure),
    }
}

/// Returns the answer to a call that asks the person, and tells them why what they answered
/// before does not fit.
pub(super) fn required(job: &Job, why: Option<&str>) -> Option<InputRequiredResult> {
    let Phase::InputRequired { question, last } = &job.phase else { return None };
    let requests = requests(job, &key(question), why);
    Some(InputRequiredResult::new(Some(requests), Some(state(job.id, last.id))))
}

/// Returns what a job asks, under a key.
pub(super) fn requests(job: &Job, key: &str, why: Option<&str>) -> InputRequests {
    let Phase::InputRequired { question, .. } = &job.phase else { return BTreeMap::new() };
    let request = InputRequest::Elicitation(ElicitRequest::new(form(job, question, why)));
    BTreeMap::from([(key.to_owned(), request)])
}

/// Returns what a call is made again with: the job, which is its callers' alone, and the run
/// that has asked, which tells one question from another.
fn state(job: JobId, run: RunId) -> String {
    format!("{job}.{run}")
}

/// Returns the job that a call goes on with, which is made again after the person was asked,
/// and what was answered to its question. What was asked before is not asked any more, and an
/// answer to it is left.
///
/// # Errors
///
/// When no such state was given out to the caller of such a call.
pub(super) async fn again(
    server: &Server,
    call: &Call,
    request: &CallToolRequestParams,
    given_out: &str,
    is_of_call: impl FnOnce(&Job) -> bool,
) -> Result<(Job, InputResponses), Unanswered> {
    let unknown = || {
        let why = "there is no call that this `requestState` goes on with";
        Unanswered::Error(ErrorData::invalid_params(why, None))
    };
    let id = given_out.split_once('.').and_then(|(id, _)| id.parse::<JobId>().ok());
    let id = id.ok_or_else(unknown)?;
    let (manager, caller) = (&server.api().manager, &call.asker.caller);
    let refuse = |error: LookError| match error {
        LookError::Store(error) => Unanswered::Failure(error.into()),
        LookError::Unknown(_) | LookError::Ambiguous(_) => unknown(),
    };
    let job = manager.get(id, caller).await.map_err(refuse)?;
    let runs = manager.runs(id, caller).await.map_err(refuse)?;
    // As it was given out, to the letter.
    if !is_of_call(&job) || !runs.iter().any(|run| state(id, run.id) == given_out) {
        return Err(unknown());
    }
    let mut given = request.input_responses.clone().unwrap_or_default();
    match &job.phase {
        Phase::InputRequired { question, last } if state(id, last.id) == given_out => {
            let key = key(question);
            given.retain(|name, _| *name == key);
        }
        _ => given.clear(),
    }
    Ok((job, given))
}

/// Hands an answer to a job.
pub(super) async fn hand_over(
    server: &Server,
    call: &Call,
    id: JobId,
    answer: String,
) -> Result<Job, Failure> {
    call.asker.principal.may_change()?;
    let manager = &server.api().manager;
    Ok(manager.answer(id, &call.asker.caller, answer, Hand::Model).await?)
}

/// Returns what a person is shown.
fn form(job: &Job, question: &Question, why: Option<&str>) -> ElicitRequestParams {
    let mut message = format!("{} ({}) asks: {}", job.spec.label, job.spec.kind, question.prompt);
    if let Some(why) = why {
        message.push_str(&format!("\n\nIt is asked again: {why}"));
    }
    let requested_schema = schema(question).1;
    ElicitRequestParams::FormElicitationParams { meta: None, message, requested_schema }
}

/// Returns the schema of what is asked, where it is JSON, and the name that it gives the
/// question by an `$anchor`. That is for whoever asks and answers, and no part of the form.
fn asked(question: &Question) -> Option<(Value, Option<String>)> {
    let mut asked = serde_json::from_str::<Value>(question.schema.as_deref()?).ok()?;
    let anchor = asked.as_object_mut().and_then(|schema| schema.remove("$anchor"));
    let anchor = anchor.and_then(|it| it.as_str().filter(|it| is_name(it)).map(str::to_owned));
    Some((asked, anchor))
}

/// Tells whether that may be the name of a question, as JSON Schema has its anchors.
fn is_name(anchor: &str) -> bool {
    let may_begin = |c: char| c.is_ascii_alphabetic() || c == '_';
    anchor.len() <= NAME
        && anchor.starts_with(may_begin)
        && anchor.chars().all(|c| may_begin(c) || c.is_ascii_digit() || matches!(c, '-' | '.'))
}

/// Returns the key of a question in what is asked.
pub(super) fn key(question: &Question) -> String {
    asked(question).and_then(|(_, anchor)| anchor).unwrap_or_else(|| ANSWER.to_owned())
}

/// How an answer is found in what a person filled in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// The form is the answer.
    Whole,
    /// A field has it, as JSON.
    Field,
    /// A field has it as text.
    Text,
}

/// Returns the schema of the form: forms have fields of plain types, and a question may ask
/// for anything.
fn schema(question: &Question) -> (Shape, ElicitationSchema) {
    let asked = asked(question).map(|(schema, _)| schema);
    let field = |field: Value| {
        let form = json!({"type": "object", "properties": {ANSWER: field}, "required": [ANSWER]});
        serde_json::from_value::<ElicitationSchema>(form).ok()
    };
    if let Some(asked) = &asked {
        let is_object = asked.get("type").and_then(Value::as_str) == Some("object");
        let form = match is_object {
            true => serde_json::from_value(asked.clone()).ok().map(|form| (Shape::Whole, form)),
            false => field(asked.clone()).map(|form| (Shape::Field, form)),
        };
        if let Some(form) = form {
            return form;
        }
    }
    let description = match (asked, &question.schema) {
        (Some(schema), _) => format!("JSON that fits {schema}"),
        (None, Some(schema)) => format!("JSON that fits {schema}"),
        (None, None) => "Any text.".to_owned(),
    };
    let text = field(json!({"type": "string", "description": description}));
    (Shape::Text, text.unwrap_or_else(|| ElicitationSchema::new(BTreeMap::new())))
}

/// Returns the answer in what a person filled in; none where they did not.
pub(super) fn answer_of(question: &Question, given: &ElicitResult) -> Option<String> {
    if given.action != ElicitationAction::Accept {
        return None;
    }
    let content = given.content.clone().unwrap_or_else(|| JsonObject::new().into());
    match (schema(question).0, content.get(ANSWER)) {
        (Shape::Whole, _) => Some(content.to_string()),
        (Shape::Text, Some(Value::String(text))) => Some(text.clone()),
        (Shape::Field | Shape::Text, field) => Some(field?.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(schema: Option<&str>) -> Question {
        Question { prompt: "go on?".into(), schema: schema.map(Into::into) }
    }

    fn form_of(asked: Option<&str>) -> String {
        serde_json::to_string(&schema(&question(asked)).1).unwrap()
    }

    fn answer(asked: Option<&str>, content: Value) -> Option<String> {
        let given = ElicitResult::new(ElicitationAction::Accept).with_content(content);
        answer_of(&question(asked), &given)
    }

    #[test]
    fn a_question_is_a_form() {
        let boolean = r#"{"type":"boolean"}"#;
        assert_eq!(
            form_of(Some(boolean)),
            r#"{"type":"object","properties":{"answer":{"type":"boolean"}},"required":["answer"]}"#
        );
        assert_eq!(answer(Some(boolean), json!({"answer": true})), Some("true".into()));
        let object = r#"{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}"#;
        assert_eq!(form_of(Some(object)), object);
        assert_eq!(answer(Some(object), json!({"n": 3})), Some(r#"{"n":3}"#.into()));
    }

    #[test]
    fn what_no_form_has_is_text() {
        let list = r#"{"type":"array","items":{"type":"array"}}"#;
        for asked in [None, Some(list), Some("{")] {
            assert!(form_of(asked).contains(r#""answer":{"type":"string""#), "{asked:?}");
            assert_eq!(answer(asked, json!({"answer": "[[1]]"})), Some("[[1]]".into()));
        }
        assert_eq!(answer(None, json!({})), None);
    }

    #[test]
    fn a_question_is_named_by_its_anchor() {
        let keyed = |asked: &str| key(&question(Some(asked)));
        let object = r#"{"$anchor":"user_name","type":"object","properties":{}}"#;
        assert_eq!(keyed(object), "user_name");
        assert_eq!(form_of(Some(object)), r#"{"type":"object","properties":{}}"#);
        // It is in no part of the form, whatever that is made of.
        for asked in [r#"{"$anchor":"a-1.b","type":"string"}"#, r#"{"$anchor":"a-1.b"}"#] {
            assert_eq!(keyed(asked), "a-1.b");
            assert!(!form_of(Some(asked)).contains("anchor"), "{}", form_of(Some(asked)));
        }
        let long = format!(r#"{{"$anchor":"{}"}}"#, "a".repeat(65));
        for none in ["{", "true", r#"{"$anchor":7}"#, r#"{"$anchor":"1"}"#, &long] {
            assert_eq!(keyed(none), "answer", "{none}");
        }
        assert_eq!(key(&question(None)), "answer");
    }

    #[test]
    fn who_declines_has_not_answered() {
        for action in [ElicitationAction::Decline, ElicitationAction::Cancel] {
            let given = ElicitResult::new(action).with_content(json!({"answer": "yes"}));
            assert_eq!(answer_of(&question(None), &given), None);
        }
    }
}
