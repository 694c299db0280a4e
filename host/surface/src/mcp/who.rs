//! Who calls a tool, and for which session.

use backlot_registry::{Caller, SessionId};
use rmcp::{ErrorData, model::RequestMetaObject};
use serde_json::Value;

use crate::{
    access::{Principal, Role},
    api::Api,
    error::{Failure, Reason},
};

/// What names a session in a request's `_meta`: one below the principal's own.
pub(super) const SESSION_KEY: &str = "backlot/session";

/// The session that the operator works for over this protocol where none is named.
const OPERATORS: &str = "mcp";

/// Who calls.
#[derive(Clone, Debug)]
pub(super) struct Asker {
    pub(super) principal: Principal,
    /// As whom it sees things.
    pub(super) caller: Caller,
    /// The session that is worked for; none where somebody looks on at all of them.
    pub(super) session: Option<SessionId>,
}

impl Asker {
    /// Returns who calls, by the connection's principal and a request's `_meta`.
    pub(super) fn of(principal: &Principal, meta: &RequestMetaObject) -> Result<Self, Failure> {
        let named = match meta.get(SESSION_KEY) {
            None => None,
            Some(Value::String(name)) => Some(name.as_str()),
            Some(_) => return Err(Failure::invalid(format!("`{SESSION_KEY}` is no text"))),
        };
        let is_operator = principal.role() == Role::Operator && principal.session().is_none();
        let caller = principal.caller(named.or(is_operator.then_some(OPERATORS)))?;
        let session = match &caller {
            Caller::Session(session) => Some(session.clone()),
            Caller::Operator | Caller::Anyone => None,
        };
        Ok(Self { principal: principal.clone(), caller, session })
    }

    /// Returns the session if the caller is the model, or whoever it is, that the session's
    /// jobs work for: what that one is told is settled.
    pub(super) fn owed(&self) -> Option<&SessionId> {
        self.session.as_ref().filter(|_| self.principal.may_change().is_ok())
    }

    /// Tells whether the session is a job's own, and has no tools: what bounds recursion.
    ///
    /// # Errors
    ///
    /// When that cannot be told, which is no reason to give it tools.
    pub(super) async fn is_a_job(&self, api: &Api) -> Result<bool, ErrorData> {
        let Some(session) = &self.session else { return Ok(false) };
        let job = api.manager.job_of(session).await;
        job.map(|job| job.is_some()).map_err(|error| {
            let why = format!("whether this session is a task's own cannot be told: {error}");
            ErrorData::internal_error(why, None)
        })
    }

    /// Returns the name that is written down for what the caller does.
    pub(super) fn name(&self) -> String {
        match (self.principal.role(), &self.session) {
            (Role::Operator, Some(session)) => session.to_string(),
            _ => self.principal.name().to_owned(),
        }
    }

    /// Returns the session to spawn for.
    pub(super) fn spawns_for(&self) -> Result<String, Failure> {
        self.principal.may_change()?;
        let session = self.session.as_ref().map(ToString::to_string);
        session.ok_or_else(|| Failure::new(Reason::Forbidden, "there is no session to work for"))
    }
}

#[cfg(test)]
mod tests {
    use rmcp::model::JsonObject;
    use serde_json::json;

    use super::*;

    fn session(principal: &Principal, meta: &Value) -> Result<Option<String>, Reason> {
        let meta: JsonObject = meta.as_object().cloned().unwrap_or_default();
        let asker = Asker::of(principal, &meta.into()).map_err(|failure| failure.reason)?;
        Ok(asker.session.map(|session| session.to_string()))
    }

    #[test]
    fn whom_a_call_is_for() {
        let operator = Principal::operator("operator");
        let user = Principal::user("ann", "chat".into());
        let observer = Principal::observer("eve", None);
        let named = |name: &str| json!({ SESSION_KEY: name });
        let some = |name: &str| Ok(Some(name.to_owned()));
        assert_eq!(session(&operator, &json!({})), some("mcp"));
        assert_eq!(session(&operator, &named("any")), some("any"));
        assert_eq!(session(&user, &json!({})), some("chat"));
        assert_eq!(session(&user, &named("chat/7")), some("chat/7"));
        assert_eq!(session(&user, &named("other")), Err(Reason::UnknownSession));
        assert_eq!(session(&user, &json!({ SESSION_KEY: 7 })), Err(Reason::Invalid));
        assert_eq!(session(&observer, &json!({})), Ok(None));
    }

    #[test]
    fn who_looks_on_is_owed_nothing() {
        let owed = |principal: Principal| {
            let asker = Asker::of(&principal, &RequestMetaObject::new()).unwrap();
            asker.owed().is_some()
        };
        assert!(owed(Principal::operator("operator")));
        assert!(owed(Principal::user("ann", "chat".into())));
        assert!(!owed(Principal::observer("eve", Some("chat".into()))));
        assert!(!owed(Principal::observer("eve", None)));
    }
}
