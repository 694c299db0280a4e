//! Where a host listens: which addresses it may, and what it says where it cannot.

use std::{
    fmt, io,
    net::{IpAddr, SocketAddr},
};

use tokio::net::{TcpListener, lookup_host};

/// What somebody should know who has a host listen there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Warning {
    /// Other machines may reach it, encrypted.
    Reachable(SocketAddr),
    /// Other machines may reach it, and whoever is between can read all, tokens too.
    Readable(SocketAddr),
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reachable(address) => {
                write!(f, "other machines can reach the host at {address}, with a token")
            }
            Self::Readable(address) => write!(
                f,
                "other machines can reach the host at {address} without encryption: whoever is \
                 on the way can read all of it, the tokens too"
            ),
        }
    }
}

/// An address that a host does not listen at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0} can be reached by other machines, and nothing would be encrypted: give a certificate with \
     --tls-cert and --tls-key, or listen at 127.0.0.1, or say --allow-plain-http if all that can read \
     the network may have the tokens"
)]
pub struct BindRefused(pub SocketAddr);

/// Decides whether a host may listen at an address. Who asks there always needs a token;
/// where other machines can, it also has to be encrypted, unless somebody has said that
/// plain HTTP is what they want.
///
/// # Errors
///
/// [`BindRefused`].
pub fn may_bind(
    address: SocketAddr,
    tls: bool,
    allow_plain: bool,
) -> Result<Option<Warning>, BindRefused> {
    match (is_loopback(address.ip()), tls, allow_plain) {
        (true, _, _) => Ok(None),
        (false, true, _) => Ok(Some(Warning::Reachable(address))),
        (false, false, true) => Ok(Some(Warning::Readable(address))),
        (false, false, false) => Err(BindRefused(address)),
    }
}

/// Tells whether only this machine can reach an address, also where it is an IPv4 address
/// that is written as an IPv6 one.
fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

/// Where a host listens for TCP connections.
#[derive(Debug)]
pub struct Bound {
    /// What listens: one for each address that was named, all at one port.
    pub listeners: Vec<TcpListener>,
    /// What is to be told of that.
    pub warnings: Vec<Warning>,
}

impl Bound {
    /// Returns the addresses.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.listeners.iter().filter_map(|listener| listener.local_addr().ok()).collect()
    }
}

/// Why a host does not listen there.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// It is no address.
    #[error(
        "cannot listen at {address:?}: {source}; name a host and a port, as in 127.0.0.1:7710 or [::1]:7710"
    )]
    Address {
        /// What was named.
        address: String,
        /// What the system says.
        source: io::Error,
    },
    /// It may not.
    #[error(transparent)]
    Refused(#[from] BindRefused),
    /// Somebody else listens there.
    #[error(
        "cannot listen at {0}: another program does, maybe another host; stop that one, or name another port"
    )]
    InUse(SocketAddr),
    /// The port is for others.
    #[error(
        "cannot listen at {0}: this user may not; ports below 1024 are for root, so name a higher one"
    )]
    Denied(SocketAddr),
    /// It is no address of this machine.
    #[error("cannot listen at {0}: this machine does not have that address")]
    NotOwn(SocketAddr),
    /// It does not work for another reason.
    #[error("cannot listen at {address}: {source}")]
    Failed {
        /// Where.
        address: SocketAddr,
        /// What the system says.
        source: io::Error,
    },
}

impl ListenError {
    fn of(address: SocketAddr, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::AddrInUse => Self::InUse(address),
            io::ErrorKind::PermissionDenied => Self::Denied(address),
            io::ErrorKind::AddrNotAvailable => Self::NotOwn(address),
            _ => Self::Failed { address, source },
        }
    }
}

/// Listens for TCP connections at a host and a port: at each address that the host has,
/// all of which have to be such that it may. Port 0 is one that is free.
///
/// # Errors
///
/// [`ListenError`], with nothing that listens.
pub async fn listen_tcp(address: &str, tls: bool, allow_plain: bool) -> Result<Bound, ListenError> {
    let named = |source| ListenError::Address { address: address.to_owned(), source };
    let mut addresses: Vec<SocketAddr> = Vec::new();
    for found in lookup_host(address).await.map_err(named)? {
        if !addresses.contains(&found) {
            addresses.push(found);
        }
    }
    if addresses.is_empty() {
        return Err(named(io::Error::other("there is no such host")));
    }
    let mut bound = Bound { listeners: Vec::new(), warnings: Vec::new() };
    // First what may be, then what is done: no address listens where another may not.
    for address in &addresses {
        bound.warnings.extend(may_bind(*address, tls, allow_plain)?);
    }
    let is_only = addresses.len() == 1;
    let mut port = None;
    let mut last = None;
    for mut address in addresses {
        address.set_port(port.unwrap_or(address.port()));
        match TcpListener::bind(address).await.map_err(|error| ListenError::of(address, error)) {
            Ok(listener) => {
                port = listener.local_addr().ok().map(|it| it.port());
                bound.listeners.push(listener);
            }
            // A name can stand for addresses of a family that this machine does not have.
            Err(error @ (ListenError::NotOwn(_) | ListenError::Failed { .. })) if !is_only => {
                last = Some(error);
            }
            Err(error) => return Err(error),
        }
    }
    match last {
        Some(error) if bound.listeners.is_empty() => Err(error),
        _ => Ok(bound),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_be_reached_by_other_machines_is_encrypted_or_wanted_so() {
        let decided = |address: &str, tls, plain| {
            let address = address.parse().unwrap();
            match may_bind(address, tls, plain) {
                Ok(None) => "yes",
                Ok(Some(Warning::Reachable(warned))) if warned == address => "reachable",
                Ok(Some(Warning::Readable(warned))) if warned == address => "readable",
                Ok(Some(_)) => "another is warned of",
                Err(refused) => {
                    assert_eq!(refused, BindRefused(address));
                    "no"
                }
            }
        };
        for own in ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
            for (tls, plain) in [(false, false), (false, true), (true, false), (true, true)] {
                assert_eq!(decided(own, tls, plain), "yes", "{own}");
            }
        }
        for open in [
            "0.0.0.0:1",
            "[::]:1",
            "10.0.0.1:1",
            "8.8.8.8:1",
            "[fe80::1]:1",
            "[2001:db8::1]:1",
            "[::ffff:10.0.0.1]:1",
        ] {
            assert_eq!(decided(open, false, false), "no", "{open}");
            assert_eq!(decided(open, false, true), "readable", "{open}");
            assert_eq!(decided(open, true, false), "reachable", "{open}");
            assert_eq!(decided(open, true, true), "reachable", "{open}");
        }
    }

    #[tokio::test]
    async fn c84_an_address_that_others_reach_is_refused_and_nothing_listens() {
        for open in ["0.0.0.0:0", "[::]:0"] {
            let refused = listen_tcp(open, false, false).await.unwrap_err();
            assert!(matches!(refused, ListenError::Refused(_)), "{refused}");
            assert!(refused.to_string().contains("--allow-plain-http"), "{refused}");
        }
        let bound = listen_tcp("0.0.0.0:0", false, true).await.unwrap();
        let [warning] = &bound.warnings[..] else { panic!("{bound:?}") };
        assert!(warning.to_string().contains("without encryption"), "{warning}");
    }

    #[tokio::test]
    async fn a_port_that_is_in_use_is_named() {
        let first = listen_tcp("127.0.0.1:0", false, false).await.unwrap();
        assert!(first.warnings.is_empty());
        let [address] = first.addresses()[..] else { panic!("{first:?}") };
        let refused = listen_tcp(&address.to_string(), false, false).await.unwrap_err();
        assert!(matches!(refused, ListenError::InUse(at) if at == address), "{refused}");
        assert!(refused.to_string().contains(&address.to_string()), "{refused}");
    }

    #[tokio::test]
    async fn a_name_stands_for_all_its_addresses() {
        let bound = listen_tcp("localhost:0", false, false).await.unwrap();
        let addresses = bound.addresses();
        assert!(!addresses.is_empty());
        let port = addresses[0].port();
        assert!(addresses.iter().all(|it| it.port() == port && it.ip().is_loopback()));
    }

    #[tokio::test]
    async fn what_is_no_address_is_said_to_be_none() {
        for bad in ["", "127.0.0.1", "nonsense", "127.0.0.1:99999", ":::"] {
            let refused = listen_tcp(bad, false, false).await.unwrap_err();
            assert!(matches!(refused, ListenError::Address { .. }), "{bad}: {refused}");
        }
        // It is for documents, and no machine has it.
        let refused = listen_tcp("192.0.2.1:0", true, false).await.unwrap_err();
        assert!(matches!(refused, ListenError::NotOwn(_)), "{refused}");
    }
}
