//! What a task may reach: grants as values, and how they are written down.
//!
//! Pure: nothing here opens a folder or a connection. The default grants nothing.

use std::{fmt, net::IpAddr, path::PathBuf, str::FromStr};

/// What a task may reach beyond its own memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grant {
    /// Folders of the host that the guest sees.
    pub dirs: Vec<DirGrant>,
    /// Environment variables that the guest sees.
    pub env: Vec<EnvGrant>,
    /// TCP peers that the guest may connect to.
    pub net: Vec<NetGrant>,
}

/// One folder of the host, as the guest sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirGrant {
    /// The folder on the host.
    pub host: PathBuf,
    /// The path under which the guest sees it.
    pub guest: String,
    /// What the guest may do in it.
    pub access: Access,
}

/// What a guest may do in a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

/// One TCP peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetGrant {
    /// A host name in lower case, or an address without brackets.
    pub host: String,
    /// The port; 0 is refused.
    pub port: u16,
}

impl NetGrant {
    /// Returns the peer's address where the grant names one.
    pub fn address(&self) -> Option<IpAddr> {
        self.host.parse().ok()
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
    /// The text does not describe a peer.
    #[error("`{0}` is not a network grant: {1}; write HOST:PORT, or [ADDRESS]:PORT for IPv6")]
    Net(String, &'static str),
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
        Ok(Self { host: PathBuf::from(host), guest: guest.to_owned(), access })
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

impl FromStr for NetGrant {
    type Err = GrantError;

    fn from_str(text: &str) -> Result<Self, GrantError> {
        let fail = |why| GrantError::Net(text.to_owned(), why);
        let (host, port) = text.rsplit_once(':').ok_or_else(|| fail("the port is missing"))?;
        let port = match port.parse() {
            Ok(0) | Err(_) => return Err(fail("the port is a number from 1 to 65535")),
            Ok(port) => port,
        };
        let host = match host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            Some(address) => match address.parse::<std::net::Ipv6Addr>() {
                Ok(address) => address.to_string(),
                Err(_) => return Err(fail("the brackets hold no IPv6 address")),
            },
            None if host.contains(':') => return Err(fail("an IPv6 address stands in brackets")),
            None => host.to_ascii_lowercase(),
        };
        let named = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':');
        match () {
            () if host.is_empty() => Err(fail("the host is missing")),
            () if !host.chars().all(named) => Err(fail("the host is a name or an address")),
            () => Ok(Self { host, port }),
        }
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

    #[test]
    fn peers_are_a_host_and_a_port() {
        let net = |text: &str| text.parse::<NetGrant>().map(|grant| (grant.host, grant.port));
        assert_eq!(net("Example.COM:443"), Ok(("example.com".into(), 443)));
        assert_eq!(net("127.0.0.1:80"), Ok(("127.0.0.1".into(), 80)));
        assert_eq!(net("[::1]:80"), Ok(("::1".into(), 80)));
        for bad in
            ["", "a", ":80", "a:0", "a:65536", "::1:80", "[a]:80", "a b:1", "http://a:1", "*:80"]
        {
            assert!(net(bad).is_err(), "{bad} was taken");
        }
    }
}
