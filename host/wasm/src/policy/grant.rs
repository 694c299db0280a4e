//! What a task may reach: grants as values, and how they are written down.
//!
//! The default grants nothing.

use std::{fmt, path::PathBuf, str::FromStr};

use crate::policy::net::{Origin, Peer, Range};

/// What a task may reach beyond its own memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grant {
    /// Folders of the host that the guest sees.
    pub dirs: Vec<DirGrant>,
    /// Environment variables that the guest sees.
    pub env: Vec<EnvGrant>,
    /// Peers that the guest may connect to over TCP, and so over HTTP.
    pub tcp: Vec<Peer>,
    /// Peers that the guest may exchange datagrams with.
    pub udp: Vec<Peer>,
    /// Servers that the guest may send HTTP requests to.
    pub http: Vec<Origin>,
    /// Private and other special addresses that the names above may stand for.
    pub private: Vec<Range>,
    /// Which names the guest may look up.
    pub lookup: Lookup,
    /// What the guest's clocks tell.
    pub clocks: Clocks,
    /// Where the guest's random numbers come from.
    pub random: Random,
    /// How much the guest may send.
    pub egress: Egress,
    /// Secrets that the host puts into the guest's requests.
    pub secrets: Vec<SecretGrant>,
}

/// One folder of the host, as the guest sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirGrant {
    /// The folder on the host.
    pub host: PathBuf,
    /// The path below it where the guest's own begins; empty for the folder itself.
    /// It is followed without leaving the folder, whatever links it has.
    pub below: PathBuf,
    /// The path under which the guest sees it.
    pub guest: String,
    /// What the guest may do in it.
    pub access: Access,
}

/// What a guest may do in a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    /// Read and list.
    ReadOnly,
    /// Read, list, create, change and delete.
    ReadWrite,
}

/// One environment variable.
#[derive(Clone, PartialEq, Eq)]
pub struct EnvGrant {
    /// The variable's name.
    pub name: String,
    /// The variable's value; often a secret, so `Debug` leaves it out.
    pub value: String,
}

impl fmt::Debug for EnvGrant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EnvGrant").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Which names a guest may look up. A lookup carries data out, whatever comes of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lookup {
    /// None. Names of HTTP servers are looked up by the host all the same.
    None,
    /// Those of the peers that are granted.
    #[default]
    Listed,
    /// Any.
    Any,
}

/// What a guest's clocks tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Clocks {
    /// What the host's tell.
    #[default]
    Precise,
    /// The same, down to the millisecond.
    Coarse,
    /// No time of day: that clock stands at the Unix epoch. Durations are coarse.
    Hidden,
}

/// Where a guest's random numbers come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Random {
    /// The system.
    #[default]
    System,
    /// A generator with that seed, so that a run can be repeated. Not secure.
    Seeded(u64),
}

/// How much a guest may send over the network; `None` is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Egress {
    /// Bytes over all connections and requests: what is handed to the network,
    /// headers of requests included.
    pub bytes: Option<u64>,
    /// HTTP requests.
    pub requests: Option<u64>,
}

/// A secret of the host that stands in requests of a guest without being in it.
///
/// The guest has a placeholder as the value of a variable. In the header and in
/// requests to the servers named here the host puts the secret in its place.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretGrant {
    /// The name of the secret.
    pub name: String,
    /// The variable whose value is the placeholder.
    pub variable: String,
    /// The header that it may stand in, in lower case.
    pub header: String,
    /// The servers that it may go to.
    pub to: Vec<Origin>,
    /// The secret itself; `Debug` leaves it out.
    pub value: String,
}

impl fmt::Debug for SecretGrant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SecretGrant")
            .field("name", &self.name)
            .field("variable", &self.variable)
            .field("header", &self.header)
            .field("to", &self.to)
            .finish_non_exhaustive()
    }
}

/// Why a grant cannot be understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrantError {
    /// The text does not describe a folder.
    #[error("`{0}` is not a folder grant: {1}; write HOST[::GUEST][:ro|rw]")]
    Dir(String, &'static str),
    /// The text does not describe a variable. Nothing of it is repeated: any
    /// part can be the secret.
    #[error("a variable grant cannot be read: {0}; write NAME=VALUE")]
    Env(&'static str),
}

impl FromStr for DirGrant {
    type Err = GrantError;

    /// Reads `HOST[::GUEST][:ro|rw]`. The guest sees the folder under the same
    /// path unless another is given, and may only read unless `rw` is given.
    fn from_str(text: &str) -> Result<Self, GrantError> {
        let fail = |why| GrantError::Dir(text.to_owned(), why);
        let (paths, access) = suffix(text).unwrap_or((text, Access::ReadOnly));
        // `HOST::ro` leaves out the path between, and not the colon before it.
        let (host, guest) = match paths.strip_suffix(':') {
            Some(host) if paths.len() < text.len() => (host, ""),
            _ => paths.split_once("::").unwrap_or((paths, paths)),
        };
        if host.is_empty() {
            return Err(fail("the host folder is missing"));
        }
        if guest.is_empty() {
            return Err(fail("the guest path is missing (HOST:ro or HOST::GUEST:ro)"));
        }
        if suffix(host).or(suffix(guest)).is_some() {
            return Err(fail("`:ro` or `:rw` stands once, at the end"));
        }
        if text.contains('\0') {
            return Err(fail("paths have no NUL"));
        }
        // `/d` and `/d/` are one folder.
        let guest = match guest.trim_end_matches('/') {
            "" => "/",
            guest => guest,
        };
        Ok(Self { host: host.into(), below: PathBuf::new(), guest: guest.to_owned(), access })
    }
}

/// Returns what stands before the access, and the access.
fn suffix(text: &str) -> Option<(&str, Access)> {
    match text.rsplit_once(':')? {
        (paths, "ro") => Some((paths, Access::ReadOnly)),
        (paths, "rw") => Some((paths, Access::ReadWrite)),
        _ => None,
    }
}

impl FromStr for EnvGrant {
    type Err = GrantError;

    fn from_str(text: &str) -> Result<Self, GrantError> {
        match text.split_once('=') {
            None => Err(GrantError::Env("the `=` is missing")),
            Some(("", _)) => Err(GrantError::Env("the name is missing")),
            Some(_) if text.contains('\0') => Err(GrantError::Env("variables have no NUL")),
            Some((name, value)) => Ok(Self { name: name.to_owned(), value: value.to_owned() }),
        }
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ReadOnly => "ro",
            Self::ReadWrite => "rw",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dir(text: &str) -> (String, String, Access) {
        let grant: DirGrant = text.parse().unwrap();
        (grant.host.display().to_string(), grant.guest, grant.access)
    }

    #[test]
    fn folders_are_read_only_and_keep_their_path_unless_told_otherwise() {
        assert_eq!(dir("/a"), ("/a".into(), "/a".into(), Access::ReadOnly));
        assert_eq!(dir(".::/src:ro"), (".".into(), "/src".into(), Access::ReadOnly));
        assert_eq!(dir("/a:rw"), ("/a".into(), "/a".into(), Access::ReadWrite));
        assert_eq!(dir("/a::/b:rw"), ("/a".into(), "/b".into(), Access::ReadWrite));
        assert_eq!(dir("/odd:name"), ("/odd:name".into(), "/odd:name".into(), Access::ReadOnly));
    }

    #[test]
    fn a_guest_path_is_the_same_with_a_slash_at_its_end() {
        assert_eq!(dir("/a::/d/").1, "/d");
        assert_eq!(dir("/a//:rw").1, "/a");
        assert_eq!(dir("/a::/").1, "/");
        assert_eq!(dir("/::/d//:ro"), ("/".into(), "/d".into(), Access::ReadOnly));
    }

    #[test]
    fn malformed_folders_say_what_is_missing() {
        let no_guest = "the guest path is missing (HOST:ro or HOST::GUEST:ro)";
        let twice = "`:ro` or `:rw` stands once, at the end";
        for (text, why) in [
            ("", "the host folder is missing"),
            ("::/b", "the host folder is missing"),
            ("::ro", "the host folder is missing"),
            ("/a::", no_guest),
            ("/a::ro", no_guest),
            ("/a:::rw", no_guest),
            ("/a::/b:rw:ro", twice),
            ("/a:ro:ro", twice),
            ("/a:rw::/b", twice),
            ("/a:rw::/b:ro", twice),
            ("/a::/b\0", "paths have no NUL"),
        ] {
            assert_eq!(text.parse::<DirGrant>(), Err(GrantError::Dir(text.into(), why)));
        }
    }

    #[test]
    fn variables_keep_everything_after_the_first_equals_sign() {
        let grant: EnvGrant = "A=b=c".parse().unwrap();
        assert_eq!((grant.name.as_str(), grant.value.as_str()), ("A", "b=c"));
        assert!("A".parse::<EnvGrant>().is_err());
        assert!("=secret".parse::<EnvGrant>().is_err());
    }

    #[test]
    fn a_value_shows_in_no_error_and_no_debug_output() {
        let grant: EnvGrant = "TOKEN=hunter2".parse().unwrap();
        assert!(!format!("{grant:?}").contains("hunter2"));
        for text in ["hunter2", "=hunter2", "A\0=hunter2"] {
            let error = text.parse::<EnvGrant>().unwrap_err().to_string();
            assert!(!error.contains("hunter2") && error.contains("NAME=VALUE"), "{error}");
        }
    }
}
