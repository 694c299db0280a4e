//! Who asks, and what they may: the one fence of every surface.
//!
//! Whoever asks is a [`Principal`], by the socket or the token that they come with. What a
//! principal sees is a [`Caller`], and jobs and tasks compare that with whom they belong
//! to: what is somebody else's is not there. What it may change is said here.

use std::fmt;

use backlot_registry::{Caller, SessionId};
use serde::{Deserialize, Serialize};

use crate::{
    error::{Failure, Reason},
    wire::{SpawnRequest, check_session},
};

/// What somebody may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Sees all, and may do all.
    Operator,
    /// Sees what belongs to its session, and may change that.
    User,
    /// Sees what belongs to its session, or all where it has none, and changes nothing.
    Observer,
}

impl Role {
    /// Every role.
    pub const ALL: [Self; 3] = [Self::Operator, Self::User, Self::Observer];

    /// Returns the word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Operator => "operator",
            Self::User => "user",
            Self::Observer => "observer",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    name: String,
    role: Role,
    session: Option<SessionId>,
}

impl Principal {
    /// Returns one who sees all and may do all.
    pub fn operator(name: impl Into<String>) -> Self {
        Self { name: name.into(), role: Role::Operator, session: None }
    }

    /// Returns one who works in a session, and in those below it.
    pub fn user(name: impl Into<String>, session: SessionId) -> Self {
        Self { name: name.into(), role: Role::User, session: Some(session) }
    }

    /// Returns one who looks on: at a session and those below it, or at all.
    pub fn observer(name: impl Into<String>, session: Option<SessionId>) -> Self {
        Self { name: name.into(), role: Role::Observer, session }
    }

    /// Returns the name that is written down for what it does.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns what it may do.
    pub fn role(&self) -> Role {
        self.role
    }

    /// Returns the session that it is kept to; none for one who sees all.
    pub fn session(&self) -> Option<&SessionId> {
        self.session.as_ref()
    }

    /// Returns as whom it sees things: as who it is, or narrowed to a session.
    ///
    /// # Errors
    ///
    /// When the session cannot be, or, as if it was not there, when it is not the
    /// principal's own nor below it.
    pub fn caller(&self, narrowed: Option<&str>) -> Result<Caller, Failure> {
        match (narrowed, &self.session) {
            (None, None) => Ok(Caller::Operator),
            (None, Some(own)) => Ok(Caller::Session(own.clone())),
            (Some(name), _) => self.reaches(name).map(Caller::Session),
        }
    }

    /// Returns the session of that name, where the principal may see it.
    fn reaches(&self, name: &str) -> Result<SessionId, Failure> {
        check_session(name)?;
        match &self.session {
            Some(own) if !is_within(name, own.as_str()) => Err(Failure::unknown_session(name)),
            _ => Ok(name.into()),
        }
    }

    /// Refuses who may only look.
    ///
    /// # Errors
    ///
    /// [`Reason::Forbidden`] for an observer.
    pub fn may_change(&self) -> Result<(), Failure> {
        match self.role {
            Role::Operator | Role::User => Ok(()),
            Role::Observer => {
                Err(Failure::new(Reason::Forbidden, format!("{} may only look", self.name)))
            }
        }
    }

    /// Refuses all but the operator.
    ///
    /// # Errors
    ///
    /// [`Reason::Forbidden`] for everybody else.
    pub fn may_operate(&self) -> Result<(), Failure> {
        match self.role {
            Role::Operator => Ok(()),
            Role::User | Role::Observer => {
                Err(Failure::new(Reason::Forbidden, "only the operator may do that"))
            }
        }
    }

    /// Refuses a spawn that the principal may not ask for. What it is for is settled by
    /// [`Principal::caller`].
    ///
    /// What is on the host's machine is the operator's to give: everybody else runs kinds
    /// and not files, and asks for grants only where a policy judges them.
    ///
    /// # Errors
    ///
    /// [`Reason::Forbidden`].
    pub fn may_spawn(&self, request: &SpawnRequest, has_policy: bool) -> Result<(), Failure> {
        self.may_change()?;
        if self.role == Role::Operator {
            return Ok(());
        }
        let refused = |what: &str, hint: &str| {
            let failure = Failure::new(Reason::Forbidden, format!("{} {what}", self.name));
            Err(failure.with_hint(hint))
        };
        if request.file.is_some() {
            let hint = "name a kind; the operator can put the component into the plugin folder";
            return refused("may not run a file of the host's", hint);
        }
        if request.grant.reaches_out() && !has_policy {
            let hint = "whoever runs the host can allow it with a policy (`backlot policy --help`)";
            return refused("may ask for no grants: the host has no policy that judges them", hint);
        }
        if let (Some(much), false) = (request.grant.much(), has_policy) {
            let what = format!("may ask for no more {much}: the host has no policy that judges it");
            let hint = "ask for less, or leave it out";
            return refused(&what, hint);
        }
        Ok(())
    }
}

/// Tells whether a session is another, or below it: `chat/7` is below `chat`.
fn is_within(name: &str, own: &str) -> bool {
    name.strip_prefix(own).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Grant;

    #[test]
    fn a_principal_sees_its_own_and_what_is_below() {
        let user = Principal::user("ann", "chat".into());
        let session = |name: &str| Ok(Caller::Session(name.into()));
        assert_eq!(user.caller(None), session("chat"));
        assert_eq!(user.caller(Some("chat")), session("chat"));
        assert_eq!(user.caller(Some("chat/7")), session("chat/7"));
        for foreign in ["chat7", "cha", "other", "other/chat", "/chat"] {
            let refused = user.caller(Some(foreign)).unwrap_err();
            assert_eq!(refused.reason, Reason::UnknownSession, "{foreign}");
        }
        assert_eq!(user.caller(Some("")).unwrap_err().reason, Reason::Invalid);
        let operator = Principal::operator("operator");
        assert_eq!(operator.caller(None), Ok(Caller::Operator));
        assert_eq!(operator.caller(Some("any")), session("any"));
        assert_eq!(Principal::observer("eve", None).caller(None), Ok(Caller::Operator));
    }

    #[test]
    fn what_each_role_may_do() {
        let may = |principal: &Principal, request: &SpawnRequest, has_policy| {
            let spawns = principal.may_spawn(request, has_policy).is_ok();
            (principal.may_operate().is_ok(), principal.may_change().is_ok(), spawns)
        };
        let operator = Principal::operator("operator");
        let user = Principal::user("ann", "chat".into());
        let observer = Principal::observer("eve", Some("chat".into()));
        let plain = SpawnRequest::default();
        let file = SpawnRequest { file: Some("/a.wasm".into()), ..SpawnRequest::default() };
        let grant = Grant { dirs: vec!["/".into()], ..Grant::default() };
        let reaching = SpawnRequest { grant, ..SpawnRequest::default() };
        let grant = Grant { memory: Some(1), ..Grant::default() };
        let limited = SpawnRequest { grant, ..SpawnRequest::default() };
        for request in [&plain, &file, &reaching, &limited] {
            assert_eq!(may(&operator, request, false), (true, true, true));
            assert_eq!(may(&observer, request, true), (false, false, false));
        }
        for request in [&plain, &limited] {
            assert_eq!(may(&user, request, false), (false, true, true));
        }
        assert_eq!(may(&user, &file, true), (false, true, false));
        assert_eq!(may(&user, &reaching, false), (false, true, false));
        assert_eq!(may(&user, &reaching, true), (false, true, true));
        for grant in [
            Grant { memory: Some(257 << 20), ..Grant::default() },
            Grant { work_folder: Some(u64::MAX), ..Grant::default() },
            Grant { grace_ms: Some(60_001), ..Grant::default() },
        ] {
            let much = SpawnRequest { grant, ..SpawnRequest::default() };
            assert_eq!(may(&user, &much, false), (false, true, false), "{much:?}");
            assert_eq!(may(&user, &much, true), (false, true, true), "{much:?}");
            assert_eq!(may(&operator, &much, false), (true, true, true), "{much:?}");
        }
    }
}
