//! What is read of a request: who asks, for what, and with what.

use std::{str, time::Duration};

use axum::{
    body::Body,
    extract::{FromRequest, FromRequestParts, Path, Query, Request},
    http::{HeaderMap, header::CONTENT_LENGTH, request::Parts},
};
use backlot_registry::{Caller, SessionId};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use serde::de::DeserializeOwned;
use serde_json::error::Category;
use tokio::time::timeout;

use crate::{
    access::{Principal, Role},
    error::{Failure, Reason},
    wire::check_session,
};

/// The header that narrows who asks to a session.
pub const SESSION_HEADER: &str = "backlot-session";

/// The most that is sent with a request, in bytes: an input, with room for what JSON
/// makes of it.
pub const BODY_BYTES: usize = 16 << 20;

/// How long what is sent may take. It comes from a program on the same machine.
const BODY_TIME: Duration = Duration::from_secs(30);

/// Who asks, and as whom it sees things: as who it is, or narrowed to a session.
pub(super) struct Who {
    pub(super) principal: Principal,
    pub(super) caller: Caller,
}

impl<S: Sync> FromRequestParts<S> for Who {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Failure> {
        // Whoever let it in has said who it is.
        let principal = parts.extensions.get::<Principal>().cloned();
        let principal = principal.ok_or_else(|| Failure::new(Reason::Forbidden, "who asks?"))?;
        let caller = caller(&principal, &parts.headers)?;
        Ok(Self { principal, caller })
    }
}

/// Returns as whom a principal asks. A header that cannot be read narrows to nothing: it
/// must not make an operator.
pub(crate) fn caller(principal: &Principal, headers: &HeaderMap) -> Result<Caller, Failure> {
    let bad = |why: &str| Failure::new(Reason::BadRequest, format!("`{SESSION_HEADER}`: {why}"));
    let mut values = headers.get_all(SESSION_HEADER).iter();
    let Some(value) = values.next() else { return principal.caller(None) };
    if values.next().is_some() {
        return Err(bad("several sessions are named, and one asks"));
    }
    let name = str::from_utf8(value.as_bytes()).map_err(|_| bad("it is not UTF-8"))?;
    check_session(name).map_err(|failure| bad(&failure.message))?;
    principal.caller(Some(name))
}

impl Who {
    /// Returns the name that is written down for who asks.
    pub(super) fn name(&self) -> String {
        match (self.principal.role(), &self.caller) {
            // The operator asks in the name of a session.
            (Role::Operator, Caller::Session(session)) => session.to_string(),
            _ => self.principal.name().to_owned(),
        }
    }

    /// Returns the name that is written down where it was said who asks. Only the operator
    /// says so of somebody else.
    pub(super) fn in_name_of(&self, said: Option<String>) -> String {
        match self.principal.role() {
            Role::Operator => said.unwrap_or_else(|| self.name()),
            Role::User | Role::Observer => self.name(),
        }
    }

    /// Returns the session if who asks may see it.
    pub(super) fn session(&self, name: &str) -> Result<SessionId, Failure> {
        match &self.caller {
            Caller::Operator => Ok(name.into()),
            Caller::Session(own) if own.as_str() == name => Ok(own.clone()),
            Caller::Session(_) | Caller::Anyone => Err(Failure::unknown_session(name)),
        }
    }
}

/// Who asks for something to change, and may.
pub(super) struct Changing(pub(super) Who);

impl<S: Sync> FromRequestParts<S> for Changing {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        let who = Who::from_request_parts(parts, state).await?;
        who.principal.may_change()?;
        Ok(Self(who))
    }
}

/// The operator, who asks for what is the operator's alone, and as nobody else.
pub(super) struct Operating;

impl<S: Sync> FromRequestParts<S> for Operating {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        let who = Who::from_request_parts(parts, state).await?;
        who.principal.may_operate()?;
        match who.caller {
            Caller::Operator => Ok(Self),
            Caller::Session(_) | Caller::Anyone => {
                Err(Failure::new(Reason::Forbidden, "only the operator may do that"))
            }
        }
    }
}

/// Somebody who sees all, and asks as nobody else.
pub(super) struct Overseeing;

impl<S: Sync> FromRequestParts<S> for Overseeing {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        let who = Who::from_request_parts(parts, state).await?;
        match who.caller {
            Caller::Operator => Ok(Self),
            Caller::Session(_) | Caller::Anyone => {
                Err(Failure::new(Reason::Forbidden, "only who sees all may see that"))
            }
        }
    }
}

/// The name in the address.
pub(super) struct Named(pub(super) String);

impl<S: Send + Sync> FromRequestParts<S> for Named {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        let named = Path::<String>::from_request_parts(parts, state).await;
        let Path(name) = named.map_err(|error| bad(&error.body_text()))?;
        Ok(Self(name))
    }
}

/// What stands behind the question mark.
pub(super) struct Asked<T>(pub(super) T);

impl<T: DeserializeOwned, S: Sync> FromRequestParts<S> for Asked<T> {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Failure> {
        let asked = Query::<T>::try_from_uri(&parts.uri);
        let Query(asked) = asked.map_err(|error| bad(&error.body_text()))?;
        Ok(Self(asked))
    }
}

fn bad(why: &str) -> Failure {
    Failure::new(Reason::BadRequest, why)
}

/// What is sent, as JSON. Nothing is as good as an object without fields.
pub(super) struct Sent<T>(pub(super) T);

impl<T: DeserializeOwned, S: Sync> FromRequest<S> for Sent<T> {
    type Rejection = Failure;

    async fn from_request(request: Request, _: &S) -> Result<Self, Failure> {
        let declared = request.headers().get(CONTENT_LENGTH);
        let declared = declared.and_then(|it| it.to_str().ok()?.parse::<u64>().ok());
        if declared.is_some_and(|bytes| bytes > BODY_BYTES as u64) {
            return Err(too_large());
        }
        let read = timeout(BODY_TIME, bytes(request.into_body())).await;
        let body = read.unwrap_or_else(|_| {
            Err(Failure::new(Reason::TooSlow, "what was sent did not come in time"))
        })?;
        match body.is_empty() {
            true => parse(b"{}").map(Self),
            false => parse(&body).map(Self),
        }
    }
}

async fn bytes(body: Body) -> Result<bytes::Bytes, Failure> {
    match Limited::new(body, BODY_BYTES).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(too_large()),
        Err(error) => Err(bad(&format!("what was sent cannot be read: {error}"))),
    }
}

fn too_large() -> Failure {
    Failure::new(Reason::TooLarge, format!("more than {BODY_BYTES} bytes were sent"))
}

fn parse<T: DeserializeOwned>(json: &[u8]) -> Result<T, Failure> {
    // A list of the fields' values would do for serde as well.
    if json.trim_ascii_start().first() == Some(&b'[') {
        return Err(Failure::invalid("what was sent is a list, and an object is wanted"));
    }
    let mut from = serde_json::Deserializer::from_slice(json);
    let read = serde_path_to_error::deserialize(&mut from).map_err(|error| {
        let path = error.path().to_string();
        let error = error.into_inner();
        match (error.classify(), path.as_str()) {
            (Category::Data, ".") => Failure::invalid(error.to_string()),
            (Category::Data, path) => Failure::invalid(format!("`{path}`: {error}")),
            _ => bad(&format!("what was sent is not JSON: {error}")),
        }
    })?;
    from.end().map_err(|error| bad(&format!("what was sent is not JSON: {error}")))?;
    Ok(read)
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;
    use crate::wire::SpawnRequest;

    #[test]
    fn a_header_narrows_and_never_widens() {
        let caller = |values: &[&[u8]]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(SESSION_HEADER, HeaderValue::from_bytes(value).unwrap());
            }
            caller(&Principal::operator("operator"), &headers)
        };
        assert_eq!(caller(&[]), Ok(Caller::Operator));
        assert_eq!(caller(&[b"chat"]), Ok(Caller::Session("chat".into())));
        assert_eq!(caller(&["größe".as_bytes()]), Ok(Caller::Session("größe".into())));
        let long = [b'a'; 257];
        for bad in [&[&b""[..]][..], &[b"a\xff"], &[b"a", b"a"], &[b"a\tb"], &[&long]] {
            assert_eq!(caller(bad).unwrap_err().reason, Reason::BadRequest, "{bad:?}");
        }
    }

    #[tokio::test]
    async fn only_who_sees_all_oversees() {
        let oversees = async |principal: Principal, session: Option<&str>| {
            let mut request = Request::builder().extension(principal);
            if let Some(session) = session {
                request = request.header(SESSION_HEADER, session);
            }
            let (mut parts, ()) = request.body(()).unwrap().into_parts();
            let overseeing = Overseeing::from_request_parts(&mut parts, &()).await;
            overseeing.err().map(|failure| failure.reason)
        };
        let forbidden = Some(Reason::Forbidden);
        assert_eq!(oversees(Principal::operator("operator"), None).await, None);
        assert_eq!(oversees(Principal::operator("operator"), Some("chat")).await, forbidden);
        assert_eq!(oversees(Principal::observer("eve", None), None).await, None);
        assert_eq!(oversees(Principal::observer("eve", None), Some("chat")).await, forbidden);
        assert_eq!(
            oversees(Principal::observer("eve", Some("chat".into())), None).await,
            forbidden
        );
        assert_eq!(oversees(Principal::user("ann", "chat".into()), None).await, forbidden);
    }

    #[test]
    fn what_is_sent_is_read_strictly_and_told_where_it_is_wrong() {
        let told = |json: &str| {
            let failure = parse::<SpawnRequest>(json.as_bytes()).unwrap_err();
            format!("{}: {}", failure.reason.code(), failure.message)
        };
        parse::<SpawnRequest>(b"{} \n").unwrap();
        let unknown = told(r#"{"kind":"a","grant":{"dir":[]}}"#);
        assert!(
            unknown.starts_with("invalid: `grant.dir`: unknown field `dir`, expected"),
            "{unknown}"
        );
        assert_eq!(
            told(r#"{"attempts":-1}"#),
            "invalid: `attempts`: invalid value: integer `-1`, expected u32 at line 1 column 14"
        );
        assert!(told(r#"{"kind":"a","kind":"b"}"#).contains("duplicate field `kind`"));
        assert!(told("{} {}").starts_with("bad_request: what was sent is not JSON: trailing"));
        assert!(told("{").starts_with("bad_request: what was sent is not JSON: EOF"));
        assert_eq!(told("[]"), "invalid: what was sent is a list, and an object is wanted");
        assert!(told("7").starts_with("invalid: invalid type: integer `7`, expected struct"));
        let deep = format!(r#"{{"kind":{}{}}}"#, "[".repeat(1000), "]".repeat(1000));
        assert!(
            told(&deep).starts_with("invalid: `kind`: invalid type: sequence"),
            "{}",
            told(&deep)
        );
    }
}
