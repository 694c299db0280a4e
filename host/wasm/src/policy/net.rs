//! Peers, servers and ranges of addresses: how they are written, and what each covers.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
};

/// Peers on the network: a host and ports, written `HOST:PORT`.
///
/// The host is a name, `*.NAME` for all names below one, an address or a range of
/// them (`10.0.0.0/8`, `[fd00::]`, `[fd00::/8]`). The port is a number, a range
/// (`8000-8999`) or `*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The host.
    pub host: PeerHost,
    /// Its ports.
    pub ports: Ports,
}

/// An HTTP server, written `SCHEME://HOST[:PORT]` with the hosts and ports of a [`Peer`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The scheme.
    pub scheme: Scheme,
    /// The host.
    pub host: PeerHost,
    /// Its ports; those of the scheme where none are written.
    pub ports: Ports,
}

/// Which hosts a rule is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerHost {
    /// One name, in lower case and without a dot at its end.
    Name(String),
    /// All names below one, at any depth; the name itself is not among them.
    Below(String),
    /// A range of addresses.
    Range(Range),
}

/// A range of addresses, written as an address or in CIDR notation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Range {
    base: IpAddr,
    prefix: u8,
}

/// A range of ports; it has no 0.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Ports {
    first: u16,
    last: u16,
}

/// How an HTTP server is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// In the clear.
    Http,
    /// Over TLS.
    Https,
}

/// Why a peer, a server or a range cannot be understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeerError {
    /// The text does not describe a peer.
    #[error("`{0}` is not a network grant: {1}; write HOST:PORT, or [ADDRESS]:PORT for IPv6")]
    Peer(String, &'static str),
    /// The text does not describe a server.
    #[error("`{0}` is not an HTTP server: {1}; write http://HOST[:PORT] or https://HOST[:PORT]")]
    Origin(String, &'static str),
    /// The text does not describe a range.
    #[error("`{0}` is not a range of addresses; write one like 10.0.0.0/8, fd00::/8 or 127.0.0.1")]
    Range(String),
}

/// Says what is special about an address that a name of the public network has no
/// business to stand for, if anything is.
///
/// Source: the IANA registries of special-purpose IPv4 and IPv6 addresses.
pub fn special(address: IpAddr) -> Option<&'static str> {
    match address.to_canonical() {
        IpAddr::V4(address) => special_v4(address),
        IpAddr::V6(address) => special_v6(address),
    }
}

fn special_v4(address: Ipv4Addr) -> Option<&'static str> {
    let [a, b, c, _] = address.octets();
    match (a, b, c) {
        (0, ..) => Some("this network"),
        (127, ..) => Some("loopback"),
        (10, ..) | (172, 16..=31, _) | (192, 168, _) => Some("private"),
        (100, 64..=127, _) => Some("shared"),
        (169, 254, _) => Some("link-local"),
        (224..=239, ..) => Some("multicast"),
        (192, 0, 0 | 2)
        | (192, 88, 99)
        | (198, 51, 100)
        | (203, 0, 113)
        | (198, 18..=19, _)
        | (240.., ..) => Some("reserved"),
        _ => None,
    }
}

fn special_v6(address: Ipv6Addr) -> Option<&'static str> {
    let segments = address.segments();
    let embedded = |high: u16, low: u16| {
        let [a, b] = high.to_be_bytes();
        let [c, d] = low.to_be_bytes();
        special_v4(Ipv4Addr::new(a, b, c, d))
    };
    match segments {
        [0, 0, 0, 0, 0, 0, 0, 0] => Some("this network"),
        [0, 0, 0, 0, 0, 0, 0, 1] => Some("loopback"),
        // An IPv4 address in another dress.
        [0, 0, 0, 0, 0, 0, high, low] | [0, 0, 0, 0, 0xffff, 0, high, low] => {
            embedded(high, low).or(Some("reserved"))
        }
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0x2002, high, low, ..] => embedded(high, low),
        // Teredo, 2001::/32, hides an address of a private network behind it.
        [0x2001, 0 | 0xdb8, ..]
        | [0x2001, 2, 0, ..]
        | [0x2001, 0x10..=0x1f, ..]
        | [0x100, 0, 0, 0 | 1, ..]
        | [0x3fff, 0..=0xfff, ..]
        | [0x5f00, ..] => Some("reserved"),
        [0x64, 0xff9b, 1, ..] | [0xfc00..=0xfdff | 0xfec0..=0xfeff, ..] => Some("private"),
        [0xfe80..=0xfebf, ..] => Some("link-local"),
        [0xff00..=0xffff, ..] => Some("multicast"),
        _ => None,
    }
}

impl Peer {
    /// Tells whether every peer of `other` is one of these.
    pub fn covers(&self, other: &Self) -> bool {
        self.host.covers(&other.host) && self.ports.covers(other.ports)
    }
}

impl Peer {
    /// Returns the peers that are both these and those.
    pub(crate) fn common(&self, other: &Self) -> Option<Self> {
        let host = self.host.common(&other.host)?;
        Some(Self { host, ports: self.ports.common(other.ports)? })
    }

    /// Tells whether every server of `origin` is one of these: who may connect to
    /// a peer may speak HTTP to it.
    pub(crate) fn covers_origin(&self, origin: &Origin) -> bool {
        self.host.covers(&origin.host) && self.ports.covers(origin.ports)
    }

    /// Returns the servers of `origin` that are among these.
    pub(crate) fn common_with_origin(&self, origin: &Origin) -> Option<Origin> {
        let host = self.host.common(&origin.host)?;
        Some(Origin { scheme: origin.scheme, host, ports: self.ports.common(origin.ports)? })
    }
}

impl Origin {
    /// Returns the servers that are both these and those.
    pub(crate) fn common(&self, other: &Self) -> Option<Self> {
        if self.scheme != other.scheme {
            return None;
        }
        let host = self.host.common(&other.host)?;
        Some(Self { scheme: self.scheme, host, ports: self.ports.common(other.ports)? })
    }

    /// Tells whether every server of `other` is one of these.
    pub fn covers(&self, other: &Self) -> bool {
        self.scheme == other.scheme
            && self.host.covers(&other.host)
            && self.ports.covers(other.ports)
    }
}

impl PeerHost {
    /// Tells whether every host of `other` is one of these.
    pub fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Name(name), Self::Name(other)) => name == other,
            (Self::Below(name), Self::Name(other)) => is_below(other, name),
            (Self::Below(name), Self::Below(other)) => name == other || is_below(other, name),
            (Self::Range(range), Self::Range(other)) => range.covers(*other),
            (Self::Name(_) | Self::Below(_), _) | (Self::Range(_), _) => false,
        }
    }

    /// Returns the hosts that are both these and those. Of two rules one covers the
    /// other, or they have nothing in common.
    pub(crate) fn common(&self, other: &Self) -> Option<Self> {
        match () {
            () if self.covers(other) => Some(other.clone()),
            () if other.covers(self) => Some(self.clone()),
            () => None,
        }
    }

    /// Tells whether names are meant, not addresses.
    pub(crate) fn is_names(&self) -> bool {
        !matches!(self, Self::Range(_))
    }

    /// Tells whether the host is this machine, whatever the network says.
    pub(crate) fn is_loopback(&self) -> bool {
        match self {
            Self::Name(name) | Self::Below(name) => {
                name == "localhost" || name.ends_with(".localhost")
            }
            Self::Range(range) => LOOPBACK.into_iter().any(|loopback| loopback.covers(*range)),
        }
    }

    /// Tells whether the host of that name is meant. A name has no dot at its end.
    pub fn is_named(&self, name: &str) -> bool {
        match self {
            Self::Name(own) => own.eq_ignore_ascii_case(name),
            Self::Below(own) => is_below(&name.to_ascii_lowercase(), own),
            Self::Range(_) => false,
        }
    }

    /// Tells whether the host with that address is meant.
    pub fn has(&self, address: IpAddr) -> bool {
        matches!(self, Self::Range(range) if range.contains(address))
    }
}

fn is_below(name: &str, above: &str) -> bool {
    name.strip_suffix(above).is_some_and(|rest| rest.len() > 1 && rest.ends_with('.'))
}

/// The addresses of this machine for itself.
const LOOPBACK: [Range; 2] = [
    Range { base: IpAddr::V4(Ipv4Addr::new(127, 0, 0, 0)), prefix: 8 },
    Range { base: IpAddr::V6(Ipv6Addr::LOCALHOST), prefix: 128 },
];

/// The first addresses of what [`special`] knows of IPv4.
const SPECIAL_V4: [[u8; 4]; 15] = [
    [0, 0, 0, 0],
    [127, 0, 0, 0],
    [10, 0, 0, 0],
    [172, 16, 0, 0],
    [192, 168, 0, 0],
    [100, 64, 0, 0],
    [169, 254, 0, 0],
    [192, 0, 0, 0],
    [192, 0, 2, 0],
    [192, 88, 99, 0],
    [198, 51, 100, 0],
    [203, 0, 113, 0],
    [198, 18, 0, 0],
    [224, 0, 0, 0],
    [240, 0, 0, 0],
];

/// The first segments of what [`special`] knows of IPv6, but for addresses that
/// stand for one of IPv4.
const SPECIAL_V6: [[u16; 3]; 13] = [
    [0x2001, 2, 0],
    [0x2001, 0x10, 0],
    [0x5f00, 0, 0],
    [0, 0, 0],
    [0x64, 0xff9b, 1],
    [0x2001, 0xdb8, 0],
    [0x100, 0, 0],
    [0x3fff, 0, 0],
    [0x2001, 0, 0],
    [0xfc00, 0, 0],
    [0xfe80, 0, 0],
    [0xfec0, 0, 0],
    [0xff00, 0, 0],
];

impl Range {
    /// Tells whether any address in the range is special.
    pub(crate) fn has_special(self) -> bool {
        // A special range begins in this one, or this one within a special range.
        let v4 = SPECIAL_V4.into_iter().flat_map(|octets| {
            let [a, b, c, d] = octets.map(u16::from);
            let (high, low) = (a << 8 | b, c << 8 | d);
            [
                IpAddr::from(octets),
                IpAddr::from([0, 0, 0, 0, 0, 0, high, low]),
                IpAddr::from([0, 0, 0, 0, 0xffff, 0, high, low]),
                IpAddr::from([0x64, 0xff9b, 0, 0, 0, 0, high, low]),
                IpAddr::from([0x2002, high, low, 0, 0, 0, 0, 0]),
            ]
        });
        let v6 = SPECIAL_V6.into_iter().map(|[a, b, c]| IpAddr::from([a, b, c, 0, 0, 0, 0, 0]));
        special(self.base).is_some() || v4.chain(v6).any(|address| self.holds(address))
    }

    /// Tells whether the address is in the range as it is written.
    fn holds(self, address: IpAddr) -> bool {
        match (self.base, address) {
            (IpAddr::V4(base), IpAddr::V4(address)) => {
                (base.to_bits() ^ address.to_bits()).leading_zeros() >= u32::from(self.prefix)
            }
            (IpAddr::V6(base), IpAddr::V6(address)) => {
                (base.to_bits() ^ address.to_bits()).leading_zeros() >= u32::from(self.prefix)
            }
            _ => false,
        }
    }

    /// Tells whether the address is in the range. One that stands for an IPv4
    /// address is that.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.holds(address.to_canonical())
    }

    /// Tells whether every address of `other` is in this range.
    pub fn covers(&self, other: Self) -> bool {
        self.prefix <= other.prefix && self.contains(other.base)
    }

    /// Returns the address, where the range is one.
    pub fn address(&self) -> Option<IpAddr> {
        (self.prefix == width(self.base)).then_some(self.base)
    }
}

impl From<IpAddr> for Range {
    fn from(address: IpAddr) -> Self {
        let base = address.to_canonical();
        Self { base, prefix: width(base) }
    }
}

fn width(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}

impl Ports {
    /// Returns all ports.
    pub fn any() -> Self {
        Self { first: 1, last: u16::MAX }
    }

    /// Tells whether the port is one of them.
    pub fn contains(self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }

    /// Returns the ports that are both these and those.
    pub(crate) fn common(self, other: Self) -> Option<Self> {
        let (first, last) = (self.first.max(other.first), self.last.min(other.last));
        (first <= last).then_some(Self { first, last })
    }

    /// Tells whether every port of `other` is one of these.
    pub fn covers(self, other: Self) -> bool {
        self.first <= other.first && other.last <= self.last
    }
}

impl From<u16> for Ports {
    fn from(port: u16) -> Self {
        Self { first: port, last: port }
    }
}

impl Scheme {
    /// Returns the port that servers have where none is named.
    pub fn port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }
}

impl FromStr for Peer {
    type Err = PeerError;

    fn from_str(text: &str) -> Result<Self, PeerError> {
        let fail = |why| PeerError::Peer(text.to_owned(), why);
        let (host, ports) = text.rsplit_once(':').ok_or_else(|| fail("the port is missing"))?;
        Ok(Self { host: host_of(host).map_err(fail)?, ports: ports_of(ports).map_err(fail)? })
    }
}

impl FromStr for Origin {
    type Err = PeerError;

    fn from_str(text: &str) -> Result<Self, PeerError> {
        let fail = |why| PeerError::Origin(text.to_owned(), why);
        let (scheme, rest) = text.split_once("://").ok_or_else(|| fail("the scheme is missing"))?;
        let scheme = match scheme {
            "http" => Scheme::Http,
            "https" => Scheme::Https,
            _ => return Err(fail("the scheme is neither http nor https")),
        };
        if rest.contains('@') {
            return Err(fail("it has a user name"));
        }
        // A range of addresses has a slash of its own.
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (host, ports) = match rest.rsplit_once(':') {
            Some((host, ports)) if !ports.contains(']') => (host, ports_of(ports).map_err(fail)?),
            _ => (rest, scheme.port().into()),
        };
        let host = host_of(host).map_err(|why| match host.split_once('/') {
            Some((host, _)) if host_of(host).is_ok() => fail("it has a path"),
            _ => fail(why),
        })?;
        Ok(Self { scheme, host, ports })
    }
}

impl FromStr for Range {
    type Err = PeerError;

    fn from_str(text: &str) -> Result<Self, PeerError> {
        range_of(text).ok_or_else(|| PeerError::Range(text.to_owned()))
    }
}

fn range_of(text: &str) -> Option<Range> {
    let Some((base, prefix)) = text.split_once('/') else {
        return text.parse().ok().map(|address: IpAddr| Range::from(address));
    };
    let base: IpAddr = base.parse().ok()?;
    // Without a sign, which a number may have and a prefix may not.
    let prefix = prefix.bytes().all(|b| b.is_ascii_digit()).then(|| prefix.parse().ok())??;
    let range = Range { base, prefix };
    let masked = match base {
        IpAddr::V4(base) => IpAddr::from(
            base & Ipv4Addr::from_bits(!u32::MAX.checked_shr(prefix.into()).unwrap_or(0)),
        ),
        IpAddr::V6(base) => IpAddr::from(
            base & Ipv6Addr::from_bits(!u128::MAX.checked_shr(prefix.into()).unwrap_or(0)),
        ),
    };
    // Bits behind the prefix are a slip: of the length, or of the address.
    (prefix <= width(base) && masked == base).then_some(range)
}

fn host_of(text: &str) -> Result<PeerHost, &'static str> {
    let range =
        "the range is no address, a slash and the length of a prefix, without bits behind it";
    if let Some(inner) = text.strip_prefix('[') {
        let inner = inner.strip_suffix(']').ok_or("the bracket is not closed")?;
        return match range_of(inner) {
            Some(range) if range.base.is_ipv6() || inner.contains(':') => {
                Ok(PeerHost::Range(range))
            }
            _ => Err("the brackets hold no IPv6 address or range"),
        };
    }
    match () {
        () if text.is_empty() => Err("the host is missing"),
        () if text.contains('/') => range_of(text).map(PeerHost::Range).ok_or(range),
        () if text.contains(':') => Err("an IPv6 address stands in brackets"),
        () => {
            if let Ok(address) = text.parse::<IpAddr>() {
                return Ok(PeerHost::Range(address.into()));
            }
            let (below, name) = match text.strip_prefix("*.") {
                Some(name) => (true, name),
                None => (false, text),
            };
            let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
            let is_label = |label: &str| {
                !label.is_empty()
                    && label.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
            };
            match () {
                () if !name.split('.').all(is_label) => Err("the host is a name or an address"),
                // Resolvers read such a name as an address, in forms of their own.
                () if name.split('.').next_back().is_some_and(is_number) => {
                    Err("the host is a name that ends in a number, or no whole address")
                }
                () if below => Ok(PeerHost::Below(name)),
                () => Ok(PeerHost::Name(name)),
            }
        }
    }
}

/// Reads one host as a guest writes it: a whole name, or a whole address.
///
/// Resolvers read more than that as an address (`127.1`, `0x7f000001`, `[fe80::1%2]`);
/// what they would make of it was granted to nobody, so here it is none.
pub(crate) fn host(text: &str) -> Option<PeerHost> {
    let host = match text.parse::<IpAddr>() {
        Ok(address) => return Some(PeerHost::Range(address.into())),
        Err(_) => host_of(text).ok()?,
    };
    let is_one = match &host {
        PeerHost::Name(name) => name.len() <= NAME_BYTES,
        PeerHost::Below(_) => false,
        PeerHost::Range(_) => !text.contains('/'),
    };
    is_one.then_some(host)
}

/// The longest name that there is.
const NAME_BYTES: usize = 253;

/// Tells whether the last part of a name makes the whole one a number to a resolver.
fn is_number(label: &str) -> bool {
    label.bytes().all(|b| b.is_ascii_digit())
        || label.strip_prefix("0x").is_some_and(|rest| rest.bytes().all(|b| b.is_ascii_hexdigit()))
}

fn ports_of(text: &str) -> Result<Ports, &'static str> {
    let port = |text: &str| match text.parse() {
        Ok(0) | Err(_) => Err("the port is a number from 1 to 65535"),
        // A number may have a sign, a port may not.
        Ok(_) if text.starts_with('+') => Err("the port is a number from 1 to 65535"),
        Ok(port) => Ok(port),
    };
    match text.split_once('-') {
        None if text == "*" => Ok(Ports::any()),
        None => port(text).map(Ports::from),
        Some((first, last)) => {
            let (first, last) = (port(first)?, port(last)?);
            if first > last {
                return Err("the last port comes before the first");
            }
            Ok(Ports { first, last })
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.ports)
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme, self.host)?;
        match self.ports == self.scheme.port().into() {
            true => Ok(()),
            false => write!(f, ":{}", self.ports),
        }
    }
}

impl fmt::Display for PeerHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Below(name) => write!(f, "*.{name}"),
            Self::Range(range) if range.base.is_ipv6() => write!(f, "[{range}]"),
            Self::Range(range) => write!(f, "{range}"),
        }
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address() {
            Some(address) => write!(f, "{address}"),
            None => write!(f, "{}/{}", self.base, self.prefix),
        }
    }
}

impl fmt::Debug for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.first, self.last) {
            (1, u16::MAX) => f.write_str("*"),
            (first, last) if first == last => write!(f, "{first}"),
            (first, last) => write!(f, "{first}-{last}"),
        }
    }
}

impl fmt::Debug for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Http => "http",
            Self::Https => "https",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(text: &str) -> Peer {
        text.parse().unwrap()
    }

    fn origin(text: &str) -> Origin {
        text.parse().unwrap()
    }

    #[test]
    fn peers_are_shown_as_they_are_written() {
        for text in [
            "example.com:443",
            "*.example.com:8000-8999",
            "127.0.0.1:80",
            "10.0.0.0/8:*",
            "[::1]:80",
            "[fd00::/8]:5432",
            "0.0.0.0/0:53",
        ] {
            assert_eq!(peer(text).to_string(), text);
        }
        assert_eq!(peer("Example.COM.:443").to_string(), "example.com:443");
        assert_eq!(peer("[::ffff:127.0.0.1]:80").to_string(), "127.0.0.1:80");
    }

    #[test]
    fn malformed_peers_are_refused() {
        for bad in [
            "",
            "a",
            ":80",
            "a:0",
            "a:65536",
            "a:+1",
            "::1:80",
            "[a]:80",
            "a b:1",
            "http://a:1",
            "*:80",
            "*.:80",
            "a..b:1",
            "a:2-1",
            "a:1-",
            "a:-1",
            "10.0.0.0/33:1",
            "10.0.0.1/8:1",
            "10.0.0.0/+8:1",
            "10.1:80",
            "127.1:80",
            "0x7f.1:80",
            "2130706433:80",
            "0x7f000001:80",
            "[10.0.0.1]:80",
            "[::1:80",
            "a.*.b:1",
            "[fd00::1/8]:1",
        ] {
            assert!(bad.parse::<Peer>().is_err(), "{bad} was taken");
        }
    }

    #[test]
    fn servers_have_the_port_of_their_scheme_unless_told_otherwise() {
        assert!(origin("https://a.example").ports.contains(443));
        assert!(origin("http://a.example/").ports.contains(80));
        assert!(origin("http://[::1]:8080").ports.contains(8080));
        assert!(origin("http://[::1]").ports.contains(80));
        for text in ["https://a.example", "http://10.0.0.0/8:*", "https://[fd00::/8]:8443"] {
            assert_eq!(origin(text).to_string(), text);
        }
        for bad in ["a.example", "ftp://a", "https://", "https://a/b", "https://u@a", "http://a:x"]
        {
            assert!(bad.parse::<Origin>().is_err(), "{bad} was taken");
        }
        let error = "https://a.example/v1".parse::<Origin>().unwrap_err().to_string();
        assert!(error.contains("it has a path"), "{error}");
    }

    #[test]
    fn a_rule_covers_what_is_in_it_and_nothing_else() {
        let covers = |one: &str, other: &str| peer(one).covers(&peer(other));
        assert!(covers("*.b.c:*", "a.b.c:1-9") && covers("*.b.c:1", "*.a.b.c:1"));
        assert!(!covers("*.b.c:1", "b.c:1") && !covers("*.b.c:1", "xb.c:1"));
        assert!(
            covers("10.0.0.0/8:1", "10.1.0.0/16:1") && !covers("10.1.0.0/16:1", "10.0.0.0/8:1")
        );
        assert!(!covers("0.0.0.0/0:1", "[::]:1") && !covers("0.0.0.0/0:1", "a:1"));
        assert!(!covers("a:80", "a:80-81"));
        assert!(!origin("http://a").covers(&origin("https://a")));
        assert!(origin("https://*.a:*").covers(&origin("https://b.a:8443")));
    }

    #[test]
    fn names_and_addresses_are_told_apart() {
        let below = peer("*.example.com:1").host;
        assert!(below.is_named("API.Example.com") && !below.is_named("example.com"));
        assert!(!below.is_named(".example.com") && !below.is_named("notexample.com"));
        let range = peer("10.0.0.0/8:1").host;
        assert!(range.has("::ffff:10.1.2.3".parse().unwrap()) && !range.is_named("10.1.2.3"));
        assert!(!range.has("11.0.0.0".parse().unwrap()));
    }

    #[test]
    fn what_two_rules_have_in_common_is_what_both_cover() {
        let common = |one: &str, other: &str| {
            let common = peer(one).common(&peer(other)).map(|peer| peer.to_string());
            assert_eq!(common, peer(other).common(&peer(one)).map(|peer| peer.to_string()));
            common.unwrap_or_default()
        };
        assert_eq!(common("*.b.c:1-9", "a.b.c:5-20"), "a.b.c:5-9");
        assert_eq!(common("10.0.0.0/8:*", "10.1.0.0/16:80"), "10.1.0.0/16:80");
        assert_eq!(common("a:1", "a:2"), "");
        assert_eq!(common("a:1", "10.0.0.0/8:1"), "");
        let with = |text: &str| {
            let common = peer("*.a:1-500").common_with_origin(&origin(text));
            common.map(|origin| origin.to_string()).unwrap_or_default()
        };
        assert_eq!(
            (with("https://b.a"), with("https://b.a:8443")),
            ("https://b.a".into(), "".into())
        );
        assert_eq!(origin("http://a").common(&origin("https://a")), None);
    }

    #[test]
    fn a_range_that_touches_special_addresses_is_known() {
        for text in [
            "10.0.0.0/8",
            "0.0.0.0/0",
            "10.1.2.3",
            "172.0.0.0/8",
            "::/0",
            "fd00::/8",
            "::1",
            "2002:800::/21",
            "2000::/3",
            "::ffff:7f00:1",
        ] {
            assert!(text.parse::<Range>().unwrap().has_special(), "{text}");
        }
        for text in ["1.1.1.1", "8.0.0.0/8", "2606:4700::/32", "172.32.0.0/11", "2002:101::/32"] {
            assert!(!text.parse::<Range>().unwrap().has_special(), "{text}");
        }
        assert!(
            peer("127.1.0.0/16:1").host.is_loopback() && peer("a.localhost:1").host.is_loopback()
        );
        assert!(
            !peer("126.0.0.0/7:1").host.is_loopback()
                && !peer("localhost.com:1").host.is_loopback()
        );
    }

    #[test]
    fn special_addresses_are_known_in_every_dress() {
        for (address, is) in [
            ("127.0.0.1", "loopback"),
            ("::1", "loopback"),
            ("::ffff:127.0.0.1", "loopback"),
            ("::127.0.0.1", "loopback"),
            ("64:ff9b::7f00:1", "loopback"),
            ("2002:7f00:1::", "loopback"),
            ("10.0.0.1", "private"),
            ("172.31.0.1", "private"),
            ("192.168.1.1", "private"),
            ("fd12::1", "private"),
            ("fec0::1", "private"),
            ("169.254.169.254", "link-local"),
            ("fe80::1", "link-local"),
            ("100.64.0.1", "shared"),
            ("0.0.0.0", "this network"),
            ("::", "this network"),
            ("255.255.255.255", "reserved"),
            ("224.0.0.1", "multicast"),
            ("ff02::1", "multicast"),
            ("192.0.2.1", "reserved"),
            ("2001:db8::1", "reserved"),
            ("2001::1", "reserved"),
            ("2001:2::1", "reserved"),
            ("2001:1f::1", "reserved"),
            ("5f00::1", "reserved"),
            ("100:0:0:1::1", "reserved"),
            ("::ffff:0:10.0.0.1", "private"),
            ("192.88.99.1", "reserved"),
        ] {
            assert_eq!(special(address.parse().unwrap()), Some(is), "{address}");
        }
        for address in ["1.1.1.1", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "2002:101:101::"]
        {
            assert_eq!(special(address.parse().unwrap()), None, "{address}");
        }
    }
}
