//! Which servers webhooks may be on: those of the public network, and those that the
//! operator lists.
//!
//! Whoever spawns a job names a URL that the host then calls, so that must not lead to
//! what only the host can reach. What counts is the address that the connection goes to.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    str::FromStr,
};

use backlot_wasm::{Peer, PeerError, PeerHost, Range, Resolver, chain, special};
use reqwest::Url;

use super::plan::Trouble;

/// Servers that are not of the public network and may be told all the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Allowed {
    /// Those at addresses of a range, whatever they are called.
    Range(Range),
    /// Those of a host at its ports. A name may then stand for any address.
    Server(Peer),
}

impl FromStr for Allowed {
    type Err = PeerError;

    /// Reads a range as `10.0.0.0/8` or `127.0.0.1`, and a server as `hooks.lan:8080`.
    fn from_str(text: &str) -> Result<Self, PeerError> {
        match (text.parse(), text.parse()) {
            (Ok(range), _) => Ok(Self::Range(range)),
            (_, Ok(server)) => Ok(Self::Server(server)),
            (Err(error), Err(_)) if text.contains('/') => Err(error),
            (Err(_), Err(error)) => Err(error),
        }
    }
}

impl fmt::Display for Allowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Range(range) => range.fmt(f),
            Self::Server(peer) => peer.fmt(f),
        }
    }
}

/// Lets calls through to where they may go.
#[derive(Debug)]
pub(super) struct Gate {
    allow: Vec<Allowed>,
    resolver: Resolver,
}

impl Gate {
    pub(super) fn new(allow: Vec<Allowed>, resolver: Resolver) -> Self {
        Self { allow, resolver }
    }

    /// Returns the addresses that a call may be sent to. The host of the URL is looked up
    /// here, once, so that none is used that was not looked at.
    pub(super) async fn addresses(&self, url: &Url) -> Result<Vec<SocketAddr>, Trouble> {
        let (host, port) = host_of(url)?;
        let found = match host {
            Host::Address(address) => vec![address],
            Host::Name(name) => {
                let found = self.resolver.look_up(name).await;
                found.map_err(|error| {
                    Trouble::Again(format!("{name} cannot be looked up: {}", chain(&error)))
                })?
            }
        };
        // Where one of them is not to be reached, whoever answers for the name is up to
        // something, or the operator has to list it.
        for address in &found {
            if let Some(special) = self.denied(host, port, *address) {
                // Which address it is would tell of the host's neighbours.
                let found = match host {
                    Host::Address(_) => format!("{address} is {special}"),
                    Host::Name(name) => format!("{name} stands for what is {special}"),
                };
                return Err(Trouble::Again(format!("{found}: an operator can allow it")));
            }
        }
        match found.is_empty() {
            true => Err(Trouble::Again(format!("{host} stands for no address"))),
            false => Ok(found.into_iter().map(|ip| SocketAddr::new(ip, port)).collect()),
        }
    }

    /// Says what is special about an address that is not to be reached.
    fn denied(&self, host: Host<'_>, port: u16, address: IpAddr) -> Option<&'static str> {
        let special = special(address)?;
        let is_allowed = self.allow.iter().any(|allowed| match allowed {
            Allowed::Range(range) => range.contains(address),
            Allowed::Server(Peer { host: rule, ports }) => {
                ports.contains(port) && (rule.has(address) || host.is_of(rule))
            }
        });
        (!is_allowed).then_some(special)
    }
}

/// The host of a URL.
#[derive(Clone, Copy, Debug)]
enum Host<'a> {
    Address(IpAddr),
    Name(&'a str),
}

impl Host<'_> {
    fn is_of(self, rule: &PeerHost) -> bool {
        match self {
            Self::Address(_) => false,
            Self::Name(name) => rule.is_named(name.strip_suffix('.').unwrap_or(name)),
        }
    }
}

impl fmt::Display for Host<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Name(name) => f.write_str(name),
        }
    }
}

/// Returns the URL of a webhook.
pub(super) fn url_of(text: &str) -> Result<Url, Trouble> {
    let url = Url::parse(text).map_err(|error| Trouble::Never(format!("it is no URL: {error}")))?;
    host_of(&url)?;
    Ok(url)
}

/// Tells why nothing can ever be told at a URL, if it can be told by that alone.
pub(crate) fn never(text: &str) -> Option<String> {
    match url_of(text) {
        Err(Trouble::Never(why) | Trouble::Again(why)) => Some(why),
        Ok(_) => None,
    }
}

/// Returns the host and port of a URL. Forms of addresses that only resolvers understand
/// (`127.1`) were made plain when it was parsed.
fn host_of(url: &Url) -> Result<(Host<'_>, u16), Trouble> {
    let never = |why: &str| Trouble::Never(why.to_owned());
    if !matches!(url.scheme(), "http" | "https") {
        return Err(never("its URL is neither of http nor of https"));
    }
    let host = url.host_str().ok_or_else(|| never("its URL names no host"))?;
    let port = url.port_or_known_default().ok_or_else(|| never("its URL names no port"))?;
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    Ok((bare.parse().map_or(Host::Name(host), Host::Address), port))
}

#[cfg(test)]
mod tests {
    use std::{io, sync::Arc};

    use super::*;

    /// Where the names of the tests lead.
    fn directory(name: &str) -> io::Result<Vec<IpAddr>> {
        let addresses: &[&str] = match name {
            "public.test" => &["1.1.1.1", "2606:4700::1111"],
            "inward.test" | "hooks.lan" | "hooks.lan." => &["10.1.2.3"],
            "both.test" => &["1.1.1.1", "127.0.0.1"],
            "dressed.test" => &["::ffff:127.0.0.1"],
            "embedded.test" => &["64:ff9b::7f00:1"],
            "metadata.test" => &["169.254.169.254"],
            "nothing.test" => &[],
            _ => return Err(io::Error::other("no such name")),
        };
        Ok(addresses.iter().map(|address| address.parse().unwrap()).collect())
    }

    async fn asked(allow: &[&str], url: &str) -> Result<Vec<String>, String> {
        let allow = allow.iter().map(|text| text.parse().unwrap()).collect();
        let gate = Gate::new(allow, Resolver::Function(Arc::new(directory)));
        let found = match url_of(url) {
            Ok(url) => gate.addresses(&url).await,
            Err(trouble) => Err(trouble),
        };
        match found {
            Ok(found) => Ok(found.iter().map(ToString::to_string).collect()),
            Err(Trouble::Again(why) | Trouble::Never(why)) => Err(why),
        }
    }

    #[tokio::test]
    async fn the_public_network_may_be_told() {
        let found = asked(&[], "https://public.test/x").await.unwrap();
        assert_eq!(found, ["1.1.1.1:443", "[2606:4700::1111]:443"]);
        assert_eq!(asked(&[], "http://8.8.8.8:8080").await.unwrap(), ["8.8.8.8:8080"]);
        assert_eq!(asked(&[], "http://[2606:4700::1]").await.unwrap(), ["[2606:4700::1]:80"]);
    }

    #[tokio::test]
    async fn what_only_the_host_can_reach_is_denied_in_every_dress() {
        for url in [
            "http://127.0.0.1",
            "http://127.1",
            "http://2130706433/",
            "http://0x7f.1",
            "http://0177.0.0.1",
            "http://0.0.0.0",
            "http://[::1]",
            "http://[::]",
            "http://[::ffff:10.0.0.1]",
            "http://[::ffff:a9fe:a9fe]/latest/meta-data",
            "http://[64:ff9b::10.0.0.1]",
            "http://[2002:7f00:1::]",
            "http://[fd00::1]",
            "http://[fe80::1]",
            "http://169.254.169.254/latest/meta-data",
            "http://100.64.0.1",
            "http://192.168.1.1",
            "http://①②⑦.0.0.1",
            "https://inward.test",
            "https://both.test",
            "https://dressed.test",
            "https://embedded.test",
            "https://metadata.test",
            "http://user@127.0.0.1",
            "http:\\\\127.0.0.1",
        ] {
            let why = asked(&[], url).await.unwrap_err();
            assert!(why.contains("an operator can allow it"), "{url}: {why}");
            assert!(!why.contains("10.1.2.3"), "{why}");
        }
    }

    #[tokio::test]
    async fn an_operator_allows_ranges_and_servers() {
        let loopback = asked(&["127.0.0.0/8"], "http://127.0.0.1:8080").await;
        assert_eq!(loopback.unwrap(), ["127.0.0.1:8080"]);
        assert_eq!(asked(&["127.0.0.0/8"], "http://both.test").await.unwrap().len(), 2);
        asked(&["10.0.0.0/8"], "http://127.0.0.1").await.unwrap_err();
        let lan = asked(&["hooks.lan:8080"], "http://HOOKS.lan:8080").await;
        assert_eq!(lan.unwrap(), ["10.1.2.3:8080"]);
        asked(&["hooks.lan:8080"], "http://hooks.lan.:8080").await.unwrap();
        asked(&["hooks.lan:8080"], "http://hooks.lan:8081").await.unwrap_err();
        asked(&["hooks.lan:8080"], "http://inward.test:8080").await.unwrap_err();
        asked(&["[::1]:80"], "http://[::1]").await.unwrap();
        asked(&["::1"], "http://[::1]").await.unwrap();
    }

    #[tokio::test]
    async fn what_is_no_server_is_told_so() {
        for (url, why) in [
            ("told", "it is no URL"),
            ("ftp://example.com", "neither of http nor of https"),
            ("file:///etc/passwd", "neither of http nor of https"),
            ("https://", "it is no URL"),
            ("https://missing.test", "missing.test cannot be looked up"),
            ("https://nothing.test", "stands for no address"),
        ] {
            let found = asked(&[], url).await.unwrap_err();
            assert!(found.contains(why), "{url}: {found}");
        }
    }

    #[test]
    fn what_is_allowed_is_shown_as_it_is_written() {
        for text in ["10.0.0.0/8", "127.0.0.1", "fd00::/8", "hooks.lan:8080", "10.0.0.0/8:80"] {
            assert_eq!(text.parse::<Allowed>().map(|it| it.to_string()), Ok(text.to_owned()));
        }
        for text in ["", "10.0.0.1/8", "hooks.lan", "*"] {
            text.parse::<Allowed>().unwrap_err();
        }
    }

    #[test]
    fn what_is_no_url_is_known_before_it_is_asked() {
        for bad in ["https://a.test:99999/", "https://[::1/", "ftp://a.test/", "http://", "a.test"]
        {
            assert!(never(bad).is_some(), "{bad}");
        }
        for good in ["https://a.test/x?y", "http://127.0.0.1:1/"] {
            assert_eq!(never(good), None, "{good}");
        }
    }
}
