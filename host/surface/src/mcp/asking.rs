//! Asking the person what a job asks.
//!
//! Up to revision 2025-11-25 the client is sent a request in the middle of a call. From
//! 2026-07-28 on the call is answered with what is asked, and is made again with the answer.
//! Where a client has no forms to show, the answer says what is asked, and who answers it.

use std::{collections::BTreeMap, time::Duration};

use backlot_jobs::{Hand, Job, JobId, Phase, Question, RunId};
use backlot_registry::Kind;
use rmcp::{
    RoleServer,
    model::{
        ElicitRequest, ElicitRequestParams, ElicitResult, ElicitationAction, ElicitationSchema,
        InputRequest, InputRequests, InputRequiredResult, InputResponses, JsonObject,
        ProtocolVersion,
    },
    service::RequestContext,
};
use serde_json::{Value, json};

use super::{foreground::Call, server::Server};
use crate::error::{Failure, Reason};

/// How long a person has for one answer within a call. The question stays afterwards.
const PATIENCE: Duration = Duration::from_secs(300);

/// Names the question in what is asked, and the property that is its answer where that is
/// no object.
const ANSWER: &str = "answer";

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
    /// It was not answered, and stays.
    None,
}

/// Asks the person by a request to the client, and hands the answer to the job.
pub(super) async fn request(server: &Server, call: &Call, job: &Job) -> Result<Reply, Failure> {
    let Phase::InputRequired { question, .. } = &job.phase else { return Ok(Reply::Answered) };
    let asked = call.peer.create_elicitation_with_timeout(form(job, question), Some(PATIENCE));
    let asked = tokio::select! {
        biased;
        asked = asked => asked,
        () = server.leaving() => return Ok(Reply::None),
        () = call.cancelled.cancelled() => return Ok(Reply::None),
    };
    let given = match asked {
        Ok(given) => given,
        Err(error) => {
            tracing::debug!(job = %job.id, "a person was not asked: {error}");
            return Ok(Reply::None);
        }
    };
    match answer_of(question, &given) {
        Some(answer) => {
            hand_over(server, call, job.id, answer).await?;
            Ok(Reply::Answered)
        }
        None => Ok(Reply::None),
    }
}

/// Returns the answer to a call that asks the person.
pub(super) fn required(job: &Job) -> Option<InputRequiredResult> {
    let state = format!("{}.{}", job.id, asked_by(job)?);
    Some(InputRequiredResult::new(Some(requests(job, ANSWER)), Some(state)))
}

/// Returns what a job asks, under a key.
pub(super) fn requests(job: &Job, key: &str) -> InputRequests {
    let Phase::InputRequired { question, .. } = &job.phase else { return BTreeMap::new() };
    let request = InputRequest::Elicitation(ElicitRequest::new(form(job, question)));
    BTreeMap::from([(key.to_owned(), request)])
}

/// Returns the run that has asked what a job asks: it tells one question from another.
pub(super) fn asked_by(job: &Job) -> Option<RunId> {
    match &job.phase {
        Phase::InputRequired { last, .. } => Some(last.id),
        _ => None,
    }
}

/// Returns the job that a call goes on with, which is made again after the person was asked,
/// and hands it what they answered. Of a kind's own tool, it is a job of that kind.
///
/// # Errors
///
/// When there is no such job for the caller, or the answer does not fit.
pub(super) async fn again(
    server: &Server,
    call: &Call,
    state: &str,
    responses: Option<&InputResponses>,
    kind: Option<&Kind>,
) -> Result<Job, Failure> {
    let unknown = || Failure::new(Reason::UnknownJob, "there is no call that this goes on with");
    let (id, run) = state.split_once('.').ok_or_else(unknown)?;
    let id: JobId = id.parse().map_err(|_| unknown())?;
    let manager = &server.api().manager;
    let job = manager.get(id, &call.asker.caller).await.map_err(|_| unknown())?;
    if kind.is_some_and(|kind| *kind != job.spec.kind) {
        return Err(unknown());
    }
    let Phase::InputRequired { question, last } = &job.phase else { return Ok(job) };
    let given = responses.and_then(|responses| responses.get(ANSWER));
    let given = given.and_then(|it| serde_json::from_value::<ElicitResult>(it.clone()).ok());
    // An answer to another question is none to this one.
    let given = given.filter(|_| last.id.to_string() == run);
    match given.and_then(|given| answer_of(question, &given)) {
        Some(answer) => hand_over(server, call, id, answer).await,
        None => Ok(job),
    }
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
fn form(job: &Job, question: &Question) -> ElicitRequestParams {
    ElicitRequestParams::FormElicitationParams {
        meta: None,
        message: format!("{} ({}) asks: {}", job.spec.label, job.spec.kind, question.prompt),
        requested_schema: schema(question).1,
    }
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
    let asked = question.schema.as_deref();
    let asked = asked.and_then(|schema| serde_json::from_str::<Value>(schema).ok());
    let field = |field: Value| {
        let form = json!({"type": "object", "properties": {ANSWER: field}, "required": [ANSWER]});
        serde_json::from_value::<ElicitationSchema>(form).ok()
    };
    if let Some(asked) = asked {
        let is_object = asked.get("type").and_then(Value::as_str) == Some("object");
        let form = match is_object {
            true => serde_json::from_value(asked).ok().map(|form| (Shape::Whole, form)),
            false => field(asked).map(|form| (Shape::Field, form)),
        };
        if let Some(form) = form {
            return form;
        }
    }
    let description = match &question.schema {
        Some(schema) => format!("JSON that fits {schema}"),
        None => "Any text.".to_owned(),
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
    fn who_declines_has_not_answered() {
        for action in [ElicitationAction::Decline, ElicitationAction::Cancel] {
            let given = ElicitResult::new(action).with_content(json!({"answer": "yes"}));
            assert_eq!(answer_of(&question(None), &given), None);
        }
    }
}
