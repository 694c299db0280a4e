//! The list of tokens: what is kept of each, and who it is.

use std::collections::HashSet;

use backlot_registry::SessionId;
use data_encoding::HEXLOWER;
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq as _;

use super::{OPERATOR, TokenError, file::Kept};
use crate::{
    access::{Principal, Role},
    wire::check_session,
};

/// How many tokens there can be. Each is compared with each request, which at this number
/// takes some ten microseconds.
const MOST: usize = 1_000;
/// The longest name, in bytes.
const NAME_BYTES: usize = 64;

/// All tokens.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct List {
    tokens: Vec<Entry>,
}

impl List {
    /// Reads the list; an empty one where there is none.
    pub(super) fn read(kept: &Kept) -> Result<Self, TokenError> {
        let Some(bytes) = kept.read()? else { return Ok(Self::default()) };
        let damaged = |why: String| TokenError::Damaged { path: kept.path().to_owned(), why };
        let list: Self =
            serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string()))?;
        list.check().map_err(damaged)?;
        Ok(list)
    }

    pub(super) fn write(&self, kept: &Kept) -> Result<(), TokenError> {
        let damaged = |why: String| TokenError::Damaged { path: kept.path().to_owned(), why };
        let mut json =
            serde_json::to_vec_pretty(self).map_err(|error| damaged(error.to_string()))?;
        json.push(b'\n');
        kept.replace(&json)
    }

    /// Checks what the types cannot say.
    fn check(&self) -> Result<(), String> {
        let mut names = HashSet::new();
        for entry in &self.tokens {
            let name = &entry.name;
            check_name(name).map_err(|error| error.to_string())?;
            if !names.insert(name.as_str()) {
                return Err(format!("there are several tokens {name}"));
            }
            check_role(entry.role, entry.session.as_deref())
                .map_err(|error| format!("{name}: {error}"))?;
            if entry.role == Role::User && entry.session.is_none() {
                return Err(format!("{name} is a user's, and has no session"));
            }
        }
        Ok(())
    }

    /// Returns the token of that digest, unless it has expired.
    pub(super) fn find(&self, digest: &[u8; 32], now_ms: u64) -> Option<&Entry> {
        let mut found = None;
        // All are looked at, each as a whole: how long it takes tells nothing of what is
        // nearly right.
        for entry in &self.tokens {
            if bool::from(entry.sha256.0.ct_eq(digest)) {
                found = Some(entry);
            }
        }
        found.filter(|entry| !entry.has_expired(now_ms))
    }

    pub(super) fn add(&mut self, entry: Entry) -> Result<(), TokenError> {
        if self.tokens.iter().any(|other| other.name == entry.name) {
            return Err(TokenError::Taken(entry.name));
        }
        if self.tokens.len() >= MOST {
            return Err(TokenError::Full(self.tokens.len()));
        }
        self.tokens.push(entry);
        Ok(())
    }

    /// Adds a token in place of the one of its name.
    pub(super) fn replace(&mut self, entry: Entry) {
        self.tokens.retain(|other| other.name != entry.name);
        self.tokens.push(entry);
    }

    pub(super) fn remove(&mut self, names: &[String]) -> Result<(), TokenError> {
        let missing = |name: &&String| !self.tokens.iter().any(|entry| entry.name == **name);
        if let Some(name) = names.iter().find(missing) {
            return Err(TokenError::Unknown(name.chars().take(NAME_BYTES).collect()));
        }
        self.tokens.retain(|entry| !names.contains(&entry.name));
        Ok(())
    }

    pub(super) fn views(&self, now_ms: u64) -> Vec<TokenView> {
        let mut views: Vec<_> = self.tokens.iter().map(|entry| entry.view(now_ms)).collect();
        views.sort_by(|one, other| one.name.cmp(&other.name));
        views
    }
}

/// A token, as it is kept.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Entry {
    name: String,
    sha256: TokenDigest,
    role: Role,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    session: Option<String>,
    created_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    expires_ms: Option<u64>,
}

impl Entry {
    pub(super) fn operator(digest: &[u8; 32], now_ms: u64) -> Self {
        Self {
            name: OPERATOR.to_owned(),
            sha256: TokenDigest(*digest),
            role: Role::Operator,
            session: None,
            created_ms: now_ms,
            expires_ms: None,
        }
    }

    pub(super) fn principal(&self) -> Principal {
        let session: Option<SessionId> = self.session.as_deref().map(Into::into);
        match (self.role, session) {
            (Role::Operator, _) => Principal::operator(&self.name),
            (Role::User, Some(session)) => Principal::user(&self.name, session),
            // A list has no user without a session, and such a one changes nothing.
            (Role::User | Role::Observer, session) => Principal::observer(&self.name, session),
        }
    }

    fn has_expired(&self, now_ms: u64) -> bool {
        self.expires_ms.is_some_and(|expires_ms| expires_ms <= now_ms)
    }

    pub(super) fn view(&self, now_ms: u64) -> TokenView {
        TokenView {
            name: self.name.clone(),
            role: self.role,
            session: self.session.clone(),
            created_ms: self.created_ms,
            expires_ms: self.expires_ms,
            expired: self.has_expired(now_ms),
        }
    }
}

/// The SHA-256 of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
struct TokenDigest([u8; 32]);

impl TryFrom<String> for TokenDigest {
    type Error = &'static str;

    fn try_from(hex: String) -> Result<Self, Self::Error> {
        let bytes = HEXLOWER.decode(hex.as_bytes()).ok();
        let bytes = bytes.and_then(|bytes| bytes.try_into().ok());
        bytes.map(Self).ok_or("a SHA-256 has 64 hexadecimal digits")
    }
}

impl From<TokenDigest> for String {
    fn from(digest: TokenDigest) -> Self {
        HEXLOWER.encode(&digest.0)
    }
}

/// What is asked for of a token that is to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewToken {
    /// Its name, which is also the name of who has it.
    pub name: String,
    /// What it may do.
    pub role: Role,
    /// The session that it is kept to. For a user it is that of its name where it is left
    /// out, an observer without one sees all, and an operator has none.
    pub session: Option<String>,
    /// From when on it is of no use, in milliseconds of Unix time.
    pub expires_ms: Option<u64>,
}

impl NewToken {
    pub(super) fn entry(self, digest: &[u8; 32], now_ms: u64) -> Result<Entry, TokenError> {
        let Self { name, role, session, expires_ms } = self;
        check_name(&name)?;
        let session = session.or_else(|| (role == Role::User).then(|| name.clone()));
        check_role(role, session.as_deref())?;
        let sha256 = TokenDigest(*digest);
        Ok(Entry { name, sha256, role, session, created_ms: now_ms, expires_ms })
    }
}

/// What is told of a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenView {
    /// Its name.
    pub name: String,
    /// What it may do.
    pub role: Role,
    /// The session that it is kept to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// When it was made.
    pub created_ms: u64,
    /// From when on it is of no use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_ms: Option<u64>,
    /// Whether that is now.
    pub expired: bool,
}

fn check_name(name: &str) -> Result<(), TokenError> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    match name.len() {
        1..=NAME_BYTES if name.bytes().all(plain) => Ok(()),
        _ => Err(TokenError::Name(name.chars().take(NAME_BYTES + 1).collect())),
    }
}

fn check_role(role: Role, session: Option<&str>) -> Result<(), TokenError> {
    match (role, session) {
        (Role::Operator, Some(_)) => Err(TokenError::OperatorSession),
        (_, Some(session)) if check_session(session).is_err() => {
            Err(TokenError::Session(session.chars().take(NAME_BYTES).collect()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new(name: &str, role: Role, session: Option<&str>) -> Result<Principal, TokenError> {
        let session = session.map(Into::into);
        let new = NewToken { name: name.into(), role, session, expires_ms: None };
        new.entry(&[7; 32], 5).map(|entry| entry.principal())
    }

    #[test]
    fn roles_and_sessions() {
        assert_eq!(new("a", Role::User, None).unwrap(), Principal::user("a", "a".into()));
        let chat = Principal::user("a", "chat/7".into());
        assert_eq!(new("a", Role::User, Some("chat/7")).unwrap(), chat);
        assert_eq!(new("a", Role::Observer, None).unwrap(), Principal::observer("a", None));
        let chat = Principal::observer("a", Some("chat".into()));
        assert_eq!(new("a", Role::Observer, Some("chat")).unwrap(), chat);
        assert_eq!(new("a", Role::Operator, None).unwrap(), Principal::operator("a"));
        let refused = new("a", Role::Operator, Some("chat"));
        assert!(matches!(refused, Err(TokenError::OperatorSession)));
        let long = "a".repeat(257);
        for session in ["", "a\n", &long] {
            let refused = new("a", Role::User, Some(session));
            assert!(matches!(refused, Err(TokenError::Session(_))), "{session}");
        }
    }

    #[test]
    fn names() {
        let longest = "a".repeat(64);
        for name in ["a", "ann.B-c_9", "..", &longest] {
            new(name, Role::Observer, None).unwrap();
        }
        for name in ["", "a b", "a/b", "ä", "a\n", "-\0", &format!("{longest}a")] {
            let refused = new(name, Role::Observer, None);
            assert!(matches!(refused, Err(TokenError::Name(_))), "{name}");
        }
    }

    #[test]
    fn a_list_is_as_it_was_written() {
        let mut list = List::default();
        list.replace(Entry::operator(&[1; 32], 5));
        let new =
            NewToken { name: "ann".into(), role: Role::User, session: None, expires_ms: Some(9) };
        list.add(new.clone().entry(&[2; 32], 6).unwrap()).unwrap();
        let again = list.add(new.entry(&[3; 32], 6).unwrap());
        assert!(matches!(again, Err(TokenError::Taken(name)) if name == "ann"));
        let json = serde_json::to_string_pretty(&list).unwrap();
        let (one, two) = ("01".repeat(32), "02".repeat(32));
        let expected = format!(
            r#"{{
  "tokens": [
    {{
      "name": "operator",
      "sha256": "{one}",
      "role": "operator",
      "created_ms": 5
    }},
    {{
      "name": "ann",
      "sha256": "{two}",
      "role": "user",
      "session": "ann",
      "created_ms": 6,
      "expires_ms": 9
    }}
  ]
}}"#
        );
        assert_eq!(json, expected);
        let read: List = serde_json::from_str(&json).unwrap();
        assert_eq!(serde_json::to_string_pretty(&read).unwrap(), json);
        let told: Vec<_> = read.views(9).into_iter().map(|it| (it.name, it.expired)).collect();
        assert_eq!(told, [("ann".to_owned(), true), ("operator".to_owned(), false)]);
        assert!(read.find(&[2; 32], 8).is_some());
        assert!(read.find(&[2; 32], 9).is_none());
        assert!(read.find(&[3; 32], 8).is_none());
    }

    #[test]
    fn of_several_that_are_removed_all_are_there() {
        let mut list = List::default();
        list.replace(Entry::operator(&[1; 32], 5));
        let refused = list.remove(&["operator".to_owned(), "b".to_owned()]);
        assert!(matches!(refused, Err(TokenError::Unknown(name)) if name == "b"));
        list.remove(&["operator".to_owned()]).unwrap();
        assert!(list.tokens.is_empty());
    }

    #[test]
    fn there_are_not_more_than_the_most() {
        let mut list = List::default();
        let entry =
            |number: usize| Entry { name: format!("t{number}"), ..Entry::operator(&[1; 32], 5) };
        for number in 0..MOST {
            list.add(entry(number)).unwrap();
        }
        assert!(matches!(list.add(entry(MOST)), Err(TokenError::Full(MOST))));
    }
}
