//! What a guest may reach on the network.
//!
//! [`Rules`] decide and know nothing of the time; a [`Network`] is one guest's: it
//! looks names up, remembers what they stood for, counts what is sent, and tells
//! what it denies.
//!
//! An address is granted by a rule that has it. A rule that has a name grants what
//! the name stands for, as long as that is an address of the public network: whoever
//! answers for a name must not be able to point it at the host or its neighbours.

use std::{
    collections::VecDeque,
    fmt,
    net::{IpAddr, SocketAddr},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use tokio::sync::Semaphore;
use wasmtime_wasi::sockets::SocketAddrUse;

use crate::{
    denial::Denials,
    grant::OpenGrant,
    limits::Bytes,
    policy::Sort,
    policy::{self, Egress, Grant, Lookup, Origin, Peer, PeerHost, Range, Scheme},
    resolver::Resolver,
};

/// How many pairs of a name and its address are remembered for one guest.
const LEARNT: usize = 256;
/// How many names one guest looks up at a time: enough for a client that tries two
/// families.
const LOOKUPS: usize = 2;

/// One host, as a guest has written it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Host {
    /// A name, in lower case and without a dot at its end.
    Name(String),
    /// An address; one that stands for an IPv4 address is that.
    Address(IpAddr),
}

impl Host {
    /// Reads a whole name or address; IPv6 addresses may have brackets.
    pub(crate) fn read(text: &str) -> Option<Self> {
        match policy::host(text)? {
            PeerHost::Name(name) => Some(Self::Name(name)),
            PeerHost::Range(range) => range.address().map(Self::Address),
            PeerHost::Below(_) => None,
        }
    }

    fn is_of(&self, rule: &PeerHost) -> bool {
        match self {
            Self::Name(name) => rule.is_named(name),
            Self::Address(address) => rule.has(*address),
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Address(IpAddr::V4(address)) => write!(f, "{address}"),
            Self::Address(IpAddr::V6(address)) => write!(f, "[{address}]"),
        }
    }
}

/// Tells whether the rule means that server.
pub(crate) fn is_server(rule: &Origin, scheme: Scheme, host: &Host, port: u16) -> bool {
    rule.scheme == scheme && rule.ports.contains(port) && host.is_of(&rule.host)
}

/// What a grant says of the network.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    tcp: Vec<Peer>,
    udp: Vec<Peer>,
    http: Vec<Origin>,
    private: Vec<Range>,
    lookup: Lookup,
    egress: Egress,
}

/// How a peer is talked to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    Tcp,
    Udp,
}

/// What rules say of a peer's address.
#[derive(Debug, PartialEq, Eq)]
enum Verdict<'a> {
    Granted,
    /// It is granted if one of these names stands for it now.
    IfNamed(Vec<&'a str>),
    Denied,
}

impl Rules {
    /// Takes from a grant what it says of the network.
    pub(crate) fn of(grant: &mut Grant) -> Self {
        Self {
            tcp: std::mem::take(&mut grant.tcp),
            udp: std::mem::take(&mut grant.udp),
            http: std::mem::take(&mut grant.http),
            private: std::mem::take(&mut grant.private),
            lookup: grant.lookup,
            egress: grant.egress,
        }
    }

    /// Tells whether any peer of that sort is granted.
    pub(crate) fn has(&self, transport: Transport) -> bool {
        !self.peers(transport).is_empty()
    }

    fn peers(&self, transport: Transport) -> &[Peer] {
        match transport {
            Transport::Tcp => &self.tcp,
            Transport::Udp => &self.udp,
        }
    }

    /// Says what is special about an address that a name must not stand for.
    fn withheld(&self, name: &str, address: IpAddr) -> Option<&'static str> {
        let special = policy::special(address)?;
        let is_own = address.is_loopback() && is_localhost(name);
        let is_private = self.private.iter().any(|range| range.contains(address));
        (!is_own && !is_private).then_some(special)
    }

    /// Says whether a peer may be talked to, with what the guest has learnt.
    fn verdict(
        &self,
        transport: Transport,
        peer: SocketAddr,
        learnt: &VecDeque<(Box<str>, IpAddr)>,
    ) -> Verdict<'_> {
        let ip = peer.ip().to_canonical();
        let on_port =
            || self.peers(transport).iter().filter(|rule| rule.ports.contains(peer.port()));
        if on_port().any(|rule| rule.host.has(ip)) {
            return Verdict::Granted;
        }
        let is_learnt = learnt.iter().any(|(name, address)| {
            *address == ip
                && self.withheld(name, ip).is_none()
                && on_port().any(|rule| rule.host.is_named(name))
        });
        if is_learnt {
            return Verdict::Granted;
        }
        let names: Vec<&str> = on_port()
            .filter_map(|rule| match &rule.host {
                PeerHost::Name(name) => Some(name.as_str()),
                // Which of them the guest has looked up is in what it has learnt.
                PeerHost::Below(_) | PeerHost::Range(_) => None,
            })
            .filter(|name| self.withheld(name, ip).is_none())
            .collect();
        match names.is_empty() {
            true => Verdict::Denied,
            false => Verdict::IfNamed(names),
        }
    }

    /// Tells whether the guest may look up the name.
    fn may_look_up(&self, name: &str) -> bool {
        match self.lookup {
            Lookup::None => false,
            Lookup::Listed => self.is_listed(name),
            Lookup::Any => true,
        }
    }

    fn is_listed(&self, name: &str) -> bool {
        self.tcp.iter().chain(&self.udp).any(|rule| rule.host.is_named(name))
    }

    /// Says why an answer to a lookup is kept from the guest, if it is: it could
    /// do nothing with it but learn of the host's neighbours.
    fn kept(&self, name: &str, address: IpAddr) -> Option<&'static str> {
        let is_granted = self.tcp.iter().chain(&self.udp).any(|rule| rule.host.has(address));
        if is_granted { None } else { self.withheld(name, address) }
    }

    /// Tells whether requests may go to the server.
    fn may_request(&self, scheme: Scheme, host: &Host, port: u16) -> bool {
        self.http.iter().any(|rule| is_server(rule, scheme, host, port))
            || self.tcp.iter().any(|rule| rule.ports.contains(port) && host.is_of(&rule.host))
    }

    /// Says why a request for that name may not go to one of its addresses.
    fn unreachable(
        &self,
        scheme: Scheme,
        name: &str,
        port: u16,
        address: IpAddr,
    ) -> Option<&'static str> {
        match self.may_request(scheme, &Host::Address(address), port) {
            true => None,
            false => self.withheld(name, address),
        }
    }
}

/// Tells whether a name is one of those that stand for the host itself (RFC 6761).
fn is_localhost(name: &str) -> bool {
    name == "localhost" || name.ends_with(".localhost")
}

/// The network as one guest may use it.
pub(crate) struct Network {
    grant: OpenGrant,
    resolver: Resolver,
    denials: Denials,
    /// Names that the guest has looked up, and what they stood for, oldest first.
    learnt: Mutex<VecDeque<(Box<str>, IpAddr)>>,
    /// Turns at looking up names.
    turns: Semaphore,
    bytes: Allowance,
    requests: Allowance,
}

/// Why a name was not looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LookupError {
    /// It is no name.
    Invalid,
    /// It is not granted, or what it stands for is not.
    Denied,
    /// Nobody knows it.
    Unknown,
}

/// Why a request is not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestError {
    /// The server is not granted, or what it stands for is not.
    Denied,
    /// Nobody knows the server's name.
    Unknown,
}

impl Network {
    /// Returns the network of one guest.
    pub(crate) fn new(grant: OpenGrant, resolver: Resolver, denials: Denials) -> Self {
        let egress = grant.rules().egress;
        Self {
            grant,
            resolver,
            denials,
            learnt: Mutex::default(),
            turns: Semaphore::new(LOOKUPS),
            bytes: Allowance::new(egress.bytes),
            requests: Allowance::new(egress.requests),
        }
    }

    pub(crate) fn grant(&self) -> &OpenGrant {
        &self.grant
    }

    pub(crate) fn denials(&self) -> &Denials {
        &self.denials
    }

    fn rules(&self) -> &Rules {
        self.grant.rules()
    }

    /// Tells whether the guest may use an address in that way.
    pub(crate) async fn may_use(&self, address: SocketAddr, used: SocketAddrUse) -> bool {
        match used {
            SocketAddrUse::TcpConnect => self.may_reach(Transport::Tcp, address).await,
            SocketAddrUse::UdpSend => self.may_reach(Transport::Udp, address).await,
            // Anybody can send a datagram, so nothing is looked up or told for one.
            SocketAddrUse::UdpReceive => {
                let verdict = self.rules().verdict(Transport::Udp, address, &self.learnt());
                verdict == Verdict::Granted
            }
            // The bind that the system does on its own before it connects or sends.
            SocketAddrUse::TcpBind | SocketAddrUse::UdpBind => {
                address.ip().is_unspecified() && address.port() == 0
            }
            SocketAddrUse::TcpListen | SocketAddrUse::TcpAccept => false,
        }
    }

    async fn may_reach(&self, transport: Transport, peer: SocketAddr) -> bool {
        let verdict = self.rules().verdict(transport, peer, &self.learnt());
        let found = match verdict {
            Verdict::Granted => true,
            Verdict::Denied => false,
            Verdict::IfNamed(names) => self.is_one_of(&names, peer.ip().to_canonical()).await,
        };
        if !found {
            let (sort, name) = match transport {
                Transport::Tcp => (Sort::Tcp, "tcp"),
                Transport::Udp => (Sort::Udp, "udp"),
            };
            self.denials.tell(sort, &format!("{name} {peer} is not granted"));
        }
        found
    }

    /// Tells whether one of the names stands for the address now.
    async fn is_one_of(&self, names: &[&str], address: IpAddr) -> bool {
        for name in names {
            match self.resolve(name).await {
                Ok(found) if found.contains(&address) => {
                    self.learn(name, &[address]);
                    return true;
                }
                Ok(_) => {}
                Err(error) => {
                    tracing::debug!(name, %error, "a granted name cannot be resolved");
                }
            }
        }
        false
    }

    async fn resolve(&self, name: &str) -> std::io::Result<Vec<IpAddr>> {
        // Never closed, so a permit comes when one is free.
        let _turn = self.turns.acquire().await;
        self.resolver.look_up(name).await
    }

    /// Looks a name up for the guest.
    pub(crate) async fn look_up(&self, text: &str) -> Result<Vec<IpAddr>, LookupError> {
        let rules = self.rules();
        let name = match Host::read(text) {
            Some(Host::Name(name)) => name,
            // It stands for itself, whoever asks; there is nothing to look up.
            Some(Host::Address(address)) if rules.has(Transport::Tcp) => return Ok(vec![address]),
            Some(Host::Address(address)) if rules.has(Transport::Udp) => return Ok(vec![address]),
            Some(Host::Address(_)) => return Err(LookupError::Denied),
            None => {
                self.denials.tell(Sort::Lookup, &format!("`{text}` is no name to look up"));
                return Err(LookupError::Invalid);
            }
        };
        if !rules.may_look_up(&name) {
            self.denials.tell(Sort::Lookup, &format!("the lookup of {name} is not granted"));
            return Err(LookupError::Denied);
        }
        let found = self.resolve(&name).await.map_err(|_| LookupError::Unknown)?;
        let (kept, told): (Vec<_>, Vec<_>) =
            found.into_iter().partition(|address| rules.kept(&name, *address).is_some());
        if rules.is_listed(&name) {
            self.learn(&name, &told);
        }
        match (kept.first(), told.is_empty()) {
            (Some(address), true) => {
                self.tell_private(&name, *address);
                Err(LookupError::Denied)
            }
            (None, true) => Err(LookupError::Unknown),
            (_, false) => Ok(told),
        }
    }

    /// Returns where a request to the server may be sent.
    pub(crate) async fn addresses(
        &self,
        scheme: Scheme,
        host: &Host,
        port: u16,
    ) -> Result<Vec<SocketAddr>, RequestError> {
        let rules = self.rules();
        if !rules.may_request(scheme, host, port) {
            self.denials.tell(Sort::Http, &format!("{scheme}://{host}:{port} is not granted"));
            return Err(RequestError::Denied);
        }
        let name = match host {
            Host::Address(address) => return Ok(vec![SocketAddr::new(*address, port)]),
            Host::Name(name) => name,
        };
        let found = self.resolve(name).await.map_err(|error| {
            tracing::debug!(name, %error, "a granted name cannot be resolved");
            RequestError::Unknown
        })?;
        let (kept, reachable): (Vec<_>, Vec<_>) = found
            .into_iter()
            .partition(|address| rules.unreachable(scheme, name, port, *address).is_some());
        match (kept.first(), reachable.is_empty()) {
            (Some(address), true) => {
                self.tell_private(name, *address);
                Err(RequestError::Denied)
            }
            (None, true) => Err(RequestError::Unknown),
            (_, false) => Ok(reachable.into_iter().map(|ip| SocketAddr::new(ip, port)).collect()),
        }
    }

    fn tell_private(&self, name: &str, address: IpAddr) {
        let special = policy::special(address).unwrap_or("special");
        self.denials.tell(
            Sort::Private,
            &format!("{name} stands for {address}, which is {special}; a name may not"),
        );
    }

    fn learnt(&self) -> MutexGuard<'_, VecDeque<(Box<str>, IpAddr)>> {
        // Every change below is whole before anything can panic.
        self.learnt.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn learn(&self, name: &str, addresses: &[IpAddr]) {
        let mut learnt = self.learnt();
        for address in addresses {
            if learnt.iter().any(|(known, ip)| ip == address && &**known == name) {
                continue;
            }
            if learnt.len() == LEARNT {
                learnt.pop_front();
            }
            learnt.push_back((name.into(), *address));
        }
    }

    /// Tells whether bytes that are sent have to be counted.
    pub(crate) fn counts_bytes(&self) -> bool {
        self.bytes.limit.is_some()
    }

    /// Takes from what the guest may still send, and tells whether it may.
    pub(crate) fn spend(&self, bytes: usize) -> bool {
        match self.bytes.take(bytes as u64) {
            Taken::Granted => true,
            Taken::Over => false,
            Taken::FirstOver(limit) => {
                let limit = Bytes(limit);
                self.denials.tell(
                    Sort::Egress,
                    &format!("sending more than the {limit} that this task may send"),
                );
                false
            }
        }
    }

    /// Tells whether the guest has wanted to send more than it may.
    pub(crate) fn is_spent(&self) -> bool {
        self.bytes.over.load(Ordering::Relaxed)
    }

    /// Gives back what was taken and then not sent.
    pub(crate) fn give_back(&self, bytes: usize) {
        self.bytes.give_back(bytes as u64);
    }

    /// Takes one of the requests that the guest may make, and tells whether it may.
    pub(crate) fn spend_request(&self) -> bool {
        match self.requests.take(1) {
            Taken::Granted => true,
            Taken::Over => false,
            Taken::FirstOver(limit) => {
                self.denials.tell(
                    Sort::Egress,
                    &format!("a request after the {limit} that this task may make"),
                );
                false
            }
        }
    }
}

/// What a guest may use up. Once it has wanted more, it gets no more at all.
struct Allowance {
    limit: Option<u64>,
    used: AtomicU64,
    over: AtomicBool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Taken {
    Granted,
    Over,
    /// It is over for the first time; with the limit.
    FirstOver(u64),
}

impl Allowance {
    const fn new(limit: Option<u64>) -> Self {
        Self { limit, used: AtomicU64::new(0), over: AtomicBool::new(false) }
    }

    fn take(&self, amount: u64) -> Taken {
        let Some(limit) = self.limit else { return Taken::Granted };
        if self.over.load(Ordering::Relaxed) {
            return Taken::Over;
        }
        let taken = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            used.checked_add(amount).filter(|used| *used <= limit)
        });
        match taken {
            Ok(_) => Taken::Granted,
            Err(_) if self.over.swap(true, Ordering::Relaxed) => Taken::Over,
            Err(_) => Taken::FirstOver(limit),
        }
    }

    fn give_back(&self, amount: u64) {
        if self.limit.is_some() {
            self.used.fetch_sub(amount, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn rules(tcp: &[&str], http: &[&str], private: &[&str]) -> Rules {
        Rules {
            tcp: tcp.iter().map(|text| text.parse().unwrap()).collect(),
            http: http.iter().map(|text| text.parse().unwrap()).collect(),
            private: private.iter().map(|text| text.parse().unwrap()).collect(),
            ..Rules::default()
        }
    }

    fn verdict<'a>(rules: &'a Rules, peer: &str, learnt: &[(&str, &str)]) -> Verdict<'a> {
        let learnt = learnt.iter().map(|(name, ip)| ((*name).into(), ip.parse().unwrap()));
        rules.verdict(Transport::Tcp, peer.parse().unwrap(), &learnt.collect())
    }

    #[test]
    fn an_address_is_granted_by_a_rule_that_has_it() {
        let rules = rules(&["127.0.0.1:80", "10.0.0.0/8:5432", "[fd00::/8]:*"], &[], &[]);
        for peer in ["127.0.0.1:80", "[::ffff:127.0.0.1]:80", "10.255.0.1:5432", "[fd12::1]:9"] {
            assert_eq!(verdict(&rules, peer, &[]), Verdict::Granted, "{peer}");
        }
        for peer in ["127.0.0.1:81", "127.0.0.2:80", "11.0.0.1:5432", "[::1]:80", "8.8.8.8:80"] {
            assert_eq!(verdict(&rules, peer, &[]), Verdict::Denied, "{peer}");
        }
    }

    #[test]
    fn a_name_grants_public_addresses_that_it_stands_for() {
        let rules = rules(&["example.com:80", "*.example.org:80", "localhost:81"], &[], &[]);
        let named = Verdict::IfNamed(vec!["example.com"]);
        assert_eq!(verdict(&rules, "93.184.215.14:80", &[]), named);
        assert_eq!(verdict(&rules, "93.184.215.14:82", &[]), Verdict::Denied);
        // Whoever answers for the name may say what it likes.
        for peer in [
            "127.0.0.1:80",
            "10.0.0.1:80",
            "169.254.169.254:80",
            "[::1]:80",
            "[fd00::1]:80",
            "[::ffff:10.0.0.1]:80",
            "[64:ff9b::a00:1]:80",
        ] {
            let ip = peer.parse::<SocketAddr>().unwrap().ip().to_canonical().to_string();
            let learnt = [("example.com", &*ip), ("a.example.org", &*ip)];
            assert_eq!(verdict(&rules, peer, &learnt), Verdict::Denied, "{peer}");
        }
        assert_eq!(verdict(&rules, "127.0.0.1:81", &[]), Verdict::IfNamed(vec!["localhost"]));
        assert_eq!(verdict(&rules, "10.0.0.1:81", &[]), Verdict::Denied);
        // Of names below one only those count that the guest has looked up.
        let learnt = [("a.example.org", "93.184.215.15")];
        assert_eq!(verdict(&rules, "93.184.215.15:80", &learnt), Verdict::Granted);
        assert_eq!(verdict(&rules, "93.184.215.15:82", &learnt), Verdict::Denied);
        let other = [("a.example.net", "93.184.215.15")];
        assert_eq!(verdict(&rules, "93.184.215.15:80", &other), named);
    }

    #[test]
    fn names_may_stand_for_the_private_addresses_that_are_granted() {
        let rules = rules(&["db.corp:5432"], &["http://api.corp"], &["10.1.0.0/16"]);
        let named = Verdict::IfNamed(vec!["db.corp"]);
        assert_eq!(verdict(&rules, "10.1.2.3:5432", &[]), named);
        assert_eq!(verdict(&rules, "10.2.2.3:5432", &[]), Verdict::Denied);
        let unreachable = |address: &str| {
            rules.unreachable(Scheme::Http, "api.corp", 80, address.parse().unwrap())
        };
        assert_eq!(unreachable("10.1.2.3"), None);
        assert_eq!(unreachable("10.2.2.3"), Some("private"));
        assert_eq!(unreachable("127.0.0.1"), Some("loopback"));
        assert_eq!(unreachable("93.184.215.14"), None);
    }

    #[test]
    fn requests_go_to_granted_servers_and_peers() {
        let rules = rules(
            &["files.example.com:8080", "127.0.0.1:3000"],
            &["https://api.example.com", "http://*.example.org:*"],
            &[],
        );
        let may = |scheme, host: &str, port| {
            Host::read(host).is_some_and(|host| rules.may_request(scheme, &host, port))
        };
        assert!(may(Scheme::Https, "API.example.com.", 443));
        assert!(!may(Scheme::Http, "api.example.com", 443));
        assert!(!may(Scheme::Https, "api.example.com", 80));
        assert!(!may(Scheme::Https, "www.example.com", 443));
        assert!(may(Scheme::Http, "a.b.example.org", 1234));
        assert!(!may(Scheme::Http, "example.org", 80));
        assert!(may(Scheme::Http, "files.example.com", 8080), "a peer over any scheme");
        assert!(may(Scheme::Https, "files.example.com", 8080));
        assert!(may(Scheme::Http, "127.0.0.1", 3000));
        assert!(may(Scheme::Http, "[::ffff:127.0.0.1]", 3000));
    }

    #[test]
    fn hosts_in_odd_forms_are_none() {
        for odd in [
            "127.1",
            "2130706433",
            "0x7f000001",
            "0x7f.0.0.1",
            "0177.0.0.1",
            "127.0.0.01",
            "127.0.0.1.",
            "1.2.3.4.5",
            "[::1%251]",
            "[::1%1]",
            "::1%1",
            "[::1",
            "[127.0.0.1]",
            "user@localhost",
            "*.example.com",
            "10.0.0.0/8",
            "a..b",
            "localhost..",
            "lo\u{441}alhost",
            "",
            ".",
            &"a".repeat(254),
        ] {
            assert_eq!(Host::read(odd), None, "{odd}");
        }
        let address = |text: &str| Some(Host::Address(text.parse().unwrap()));
        assert_eq!(Host::read("[::ffff:7f00:1]"), address("127.0.0.1"));
        assert_eq!(Host::read("::1"), address("::1"));
        assert_eq!(Host::read("LocalHost."), Some(Host::Name("localhost".into())));
    }

    fn network(grant: Grant, addresses: &'static [&'static str]) -> Network {
        let resolver = Resolver::Function(Arc::new(|_| {
            Ok(addresses.iter().map(|address| address.parse().unwrap()).collect())
        }));
        Network::new(grant.open().unwrap(), resolver, Denials::new(None, None))
    }

    #[tokio::test]
    async fn lookups_are_those_of_listed_names_unless_told_otherwise() {
        let grant = |lookup| Grant {
            tcp: vec!["*.example.com:80".parse().unwrap()],
            udp: vec!["ntp.example.org:123".parse().unwrap()],
            http: vec!["http://api.example.net".parse().unwrap()],
            lookup,
            ..Grant::default()
        };
        let found = &["1.2.3.4"];
        let asked = async |lookup, name| network(grant(lookup), found).look_up(name).await;
        assert!(asked(Lookup::Listed, "A.example.com.").await.is_ok());
        assert!(asked(Lookup::Listed, "ntp.example.org").await.is_ok());
        for name in ["example.com", "api.example.net", "data.evil.example"] {
            assert_eq!(asked(Lookup::Listed, name).await, Err(LookupError::Denied), "{name}");
            assert!(asked(Lookup::Any, name).await.is_ok(), "{name}");
        }
        assert_eq!(asked(Lookup::None, "a.example.com").await, Err(LookupError::Denied));
        assert_eq!(asked(Lookup::Any, "127.1").await, Err(LookupError::Invalid));
        assert!(asked(Lookup::None, "::1").await.is_ok(), "an address is no name");
        let nothing = network(Grant::default(), found);
        assert_eq!(nothing.look_up("::1").await, Err(LookupError::Denied));
    }

    #[tokio::test]
    async fn what_was_looked_up_may_be_connected_to_and_private_answers_are_kept() {
        let grant = || Grant { tcp: vec!["*.example.com:80".parse().unwrap()], ..Grant::default() };
        let mixed = network(grant(), &["127.0.0.1", "1.2.3.4"]);
        let peer = "1.2.3.4:80".parse().unwrap();
        assert!(!mixed.may_use(peer, SocketAddrUse::TcpConnect).await, "not looked up yet");
        let told = mixed.look_up("a.example.com").await.unwrap();
        assert_eq!(told, ["1.2.3.4".parse::<IpAddr>().unwrap()]);
        assert!(mixed.may_use(peer, SocketAddrUse::TcpConnect).await);
        let loopback = "127.0.0.1:80".parse().unwrap();
        assert!(!mixed.may_use(loopback, SocketAddrUse::TcpConnect).await);
        let inward = network(grant(), &["169.254.169.254"]);
        assert_eq!(inward.look_up("a.example.com").await, Err(LookupError::Denied));
        for used in [SocketAddrUse::TcpListen, SocketAddrUse::TcpAccept, SocketAddrUse::UdpSend] {
            assert!(!mixed.may_use(peer, used).await, "{used:?}");
        }
        assert!(mixed.may_use("0.0.0.0:0".parse().unwrap(), SocketAddrUse::UdpBind).await);
        assert!(!mixed.may_use("0.0.0.0:1".parse().unwrap(), SocketAddrUse::UdpBind).await);
        assert!(!mixed.may_use("127.0.0.1:0".parse().unwrap(), SocketAddrUse::TcpBind).await);
    }

    #[tokio::test]
    async fn datagrams_come_from_those_alone_that_were_sent_some() {
        let grant = Grant { udp: vec!["ntp.example.org:123".parse().unwrap()], ..Grant::default() };
        let network = network(grant, &["1.2.3.4"]);
        let peer = "1.2.3.4:123".parse().unwrap();
        assert!(!network.may_use(peer, SocketAddrUse::UdpReceive).await);
        assert!(network.may_use(peer, SocketAddrUse::UdpSend).await);
        assert!(network.may_use(peer, SocketAddrUse::UdpReceive).await);
        let other = "1.2.3.5:123".parse().unwrap();
        assert!(!network.may_use(other, SocketAddrUse::UdpSend).await);
        assert!(!network.may_use(peer, SocketAddrUse::TcpConnect).await, "another rule");
    }

    #[test]
    fn what_is_learnt_has_a_bound() {
        let network = network(Grant::default(), &[]);
        for n in 0..1_000_u32 {
            network.learn(&format!("{n}.example.com"), &[IpAddr::from(n.to_be_bytes())]);
            network.learn(&format!("{n}.example.com"), &[IpAddr::from(n.to_be_bytes())]);
        }
        let learnt = network.learnt();
        assert_eq!(learnt.len(), LEARNT);
        assert_eq!(&*learnt[0].0, "744.example.com");
    }

    #[test]
    fn an_allowance_that_was_passed_once_is_over() {
        let none = Allowance::new(None);
        assert_eq!(none.take(u64::MAX), Taken::Granted);
        let ten = Allowance::new(Some(10));
        assert_eq!(ten.take(4), Taken::Granted);
        assert_eq!(ten.take(6), Taken::Granted);
        ten.give_back(1);
        assert_eq!(ten.take(1), Taken::Granted);
        assert_eq!(ten.take(u64::MAX), Taken::FirstOver(10));
        ten.give_back(10);
        assert_eq!(ten.take(1), Taken::Over);
        assert_eq!(Allowance::new(Some(0)).take(1), Taken::FirstOver(0));
    }
}
