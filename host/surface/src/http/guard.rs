//! Who gets in over the network: what is asked is meant for this host, comes from nobody
//! else's page, and from somebody with a token.
//!
//! It stands before every route, also those that there are not. A browser runs the pages
//! of strangers on the machine that the host is on, so an address of loopback protects
//! from nothing: such a page can have a name of its own stand for 127.0.0.1, and can send
//! forms anywhere. It cannot choose the headers `Host` and `Origin`, though, nor send
//! JSON or a token without asking first, which nobody here answers.

use std::{
    future::ready,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    str,
    sync::Arc,
    time::Duration,
};

use axum::{
    body::{Body, Bytes, HttpBody},
    http::{
        Extensions, HeaderMap, HeaderName, HeaderValue, Method, Request,
        header::{
            AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HOST, ORIGIN, RETRY_AFTER,
            TRANSFER_ENCODING, WWW_AUTHENTICATE,
        },
        request::Parts,
        uri::Authority,
    },
    response::{IntoResponse, Response},
};
use futures::{StreamExt as _, stream};
use http_body_util::Limited;
use tokio::time::{Instant, sleep, timeout_at};

use super::{
    BODY_BYTES,
    rate::{Buckets, Rate},
    room::{Room, Rooms},
};
use crate::{
    access::Principal,
    error::{Failure, Reason},
    tokens::{Leave, Tokens},
};

/// What is answered without a token: whether the host lives, and is ready. Nothing else
/// is told there.
const OPEN: [&str; 2] = ["/v1/live", "/v1/ready"];
/// How often an address may come without a token, or with a wrong one. Nobody guesses 256
/// bits; this is for the log, and for whoever asks in a loop with an old token.
const FAILURES: Rate = Rate { burst: 10, per_second: 1 };
/// How often somebody may ask unless told otherwise: what no client in order comes to.
const REQUESTS: Rate = Rate { burst: 20_000, per_second: 10_000 };
/// How much more comes through of a body that is too long, in bytes, so that the route sees
/// it and says so: more than a connection reads at once.
const LEEWAY_BYTES: usize = 1 << 20;
/// How long a body may take: the largest over a slow network. Routes may be less patient.
const BODY_TIME: Duration = Duration::from_secs(60);

/// How old the last look may be at whether somebody may still ask whose answer goes on for
/// long. Each is a look at a file.
const LOOK_TIME: Duration = Duration::from_secs(1);
/// How often it is looked where nothing of the answer goes by here: as often as a stream
/// with nothing to say beats.
const LOOK_EVERY: Duration = Duration::from_secs(15);

/// Lets in over the network who may come in. Cheap to clone; all clones count together.
#[derive(Clone, Debug)]
pub struct Guard {
    tokens: Tokens,
    names: Arc<[Name]>,
    failures: Arc<Buckets<IpAddr>>,
    requests: Arc<Buckets<String>>,
    rooms: Arc<Rooms>,
}

/// A name of this host, and the port that it is asked at; any where there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Name {
    host: String,
    port: Option<u16>,
}

/// Where a connection is from and to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Connected {
    pub(super) peer: IpAddr,
    pub(super) local: SocketAddr,
    pub(super) tls: bool,
}

impl Guard {
    /// Returns one that lets in who has one of the tokens.
    pub fn new(tokens: Tokens) -> Self {
        Self {
            tokens,
            names: Arc::default(),
            failures: Arc::new(Buckets::new(FAILURES)),
            requests: Arc::new(Buckets::new(REQUESTS)),
            rooms: Arc::new(Rooms::new()),
        }
    }

    /// Returns it for a host that is also called by those names, as `name` or `name:port`.
    /// Without a port, that is the one it listens at, or none where a proxy is before it.
    ///
    /// # Errors
    ///
    /// [`Reason::Invalid`] when one is no name.
    pub fn with_names<'a>(self, names: impl IntoIterator<Item = &'a str>) -> Result<Self, Failure> {
        let read = |name: &str| match split(name) {
            Some((host, port)) => Ok(Name { host: host.to_owned(), port }),
            None => Err(Failure::invalid(format!("{name:?} is no name of a host"))),
        };
        let names = names.into_iter().map(read).collect::<Result<_, _>>()?;
        Ok(Self { names, ..self })
    }

    /// Returns it so that each who has a token may ask that often.
    #[must_use]
    pub fn with_rate(self, rate: Rate) -> Self {
        Self { requests: Arc::new(Buckets::new(rate)), ..self }
    }

    /// Returns the request with who asks it, and bounds on its body.
    ///
    /// # Errors
    ///
    /// What is answered where it is not let in.
    pub(super) async fn admit<B>(
        &self,
        request: Request<B>,
        connected: Connected,
    ) -> Result<Request<Body>, Response>
    where
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<axum::BoxError>,
    {
        let (mut head, body) = request.into_parts();
        let admitted = self.check(&head, connected, Instant::now());
        let marks = admitted.map_err(Refusal::into_response)?;
        let who = marks.get::<Principal>().map(|principal| principal.name().to_owned());
        head.extensions.extend(marks);
        let body = match (declared(&head.headers), who) {
            (Some(bytes), Some(who)) => {
                let room = self.rooms.take(&who, bytes).await;
                let room = room.map_err(IntoResponse::into_response)?;
                bounded(Body::new(Limited::new(body, BODY_BYTES + LEEWAY_BYTES)), room)
            }
            // What nobody in particular asks has none that is looked at.
            (None, _) | (Some(_), None) => Body::empty(),
        };
        Ok(Request::from_parts(head, body))
    }

    /// Checks all that the head of a request says, and returns what it is marked with.
    fn check(
        &self,
        head: &Parts,
        connected: Connected,
        now: Instant,
    ) -> Result<Extensions, Refusal> {
        self.is_meant_for(head, connected)?;
        self.is_no_strangers(&head.headers, connected)?;
        let mut marks = Extensions::new();
        let is_look = matches!(head.method, Method::GET | Method::HEAD);
        if is_look && OPEN.contains(&head.uri.path()) {
            return Ok(marks);
        }
        let leave = self.who(&head.headers, connected, now)?;
        let principal = leave.principal().clone();
        let often = self.requests.take(principal.name(), now);
        often.map_err(|after| Refusal::too_many("asks too often", after))?;
        if !is_look {
            is_json(&head.headers)?;
        }
        marks.insert(principal);
        marks.insert(Standing(leave));
        Ok(marks)
    }

    /// Refuses what is meant for a host of another name.
    fn is_meant_for(&self, head: &Parts, connected: Connected) -> Result<(), Failure> {
        // Where the address itself has a name, it is to be as good as that of the header.
        let named = head.uri.authority().map(Authority::as_str);
        let host = only(&head.headers, &HOST)?.or(named);
        let host = host.ok_or_else(|| bad("there is no header `host`"))?;
        let default = if connected.tls { HTTPS } else { HTTP };
        for name in [host, named.unwrap_or(host)] {
            if !self.is_own(name, default, connected) {
                return Err(foreign(format!("this host is not {:?}", brief(name))));
            }
        }
        Ok(())
    }

    /// Refuses what the page of another host asks.
    fn is_no_strangers(&self, headers: &HeaderMap, connected: Connected) -> Result<(), Failure> {
        let mut origins = headers.get_all(ORIGIN).iter();
        let Some(origin) = origins.next() else { return Ok(()) };
        let text = str::from_utf8(origin.as_bytes()).unwrap_or_default();
        let is_own = match text.split_once("://") {
            Some(("http", name)) => self.is_own(name, HTTP, connected),
            Some(("https", name)) => self.is_own(name, HTTPS, connected),
            _ => false,
        };
        match is_own && origins.next().is_none() {
            true => Ok(()),
            false => Err(foreign(format!("pages of {:?} may not ask this host", brief(text)))),
        }
    }

    /// Tells whether a name, as of `host:port`, is this host's.
    fn is_own(&self, name: &str, default: u16, connected: Connected) -> bool {
        let Some((host, named)) = split(name) else { return false };
        let (port, own) = (named.unwrap_or(default), connected.local.port());
        if is_loopback(host) || is_address(host, connected.local.ip()) {
            return port == own;
        }
        self.names.iter().any(|it| {
            it.host.eq_ignore_ascii_case(host)
                && match it.port {
                    Some(wanted) => port == wanted,
                    // Whoever stands before the host listens at the usual port.
                    None => port == own || port == HTTP || port == HTTPS,
                }
        })
    }

    /// Returns who asks. A token that is right is always good, also where somebody else at
    /// the same address has tried too many that are not.
    fn who(
        &self,
        headers: &HeaderMap,
        connected: Connected,
        now: Instant,
    ) -> Result<Leave, Refusal> {
        let token = bearer(headers);
        if let Some(leave) = token.and_then(|token| self.tokens.let_in(token)) {
            return Ok(leave);
        }
        let peer = network(connected.peer);
        if let Err(after) = self.failures.take(&peer, now) {
            return Err(Refusal::too_many("asks too often without a token that is good", after));
        }
        let why = match headers.contains_key(AUTHORIZATION) {
            true => "the token is none of this host's, or has expired",
            false => "there is no token",
        };
        Err(Failure::new(Reason::Unauthorized, why).into())
    }
}

/// Whether somebody who was let in may still ask.
#[derive(Clone, Debug)]
pub(super) struct Standing(Leave);

impl Standing {
    /// Returns an answer that ends early where who is answered may not ask any more. What
    /// is there as a whole is answered.
    pub(super) fn bound(self, answer: Response) -> Response {
        if answer.body().size_hint().exact().is_some() {
            return answer;
        }
        let mut looked = Instant::now();
        answer.map(|body| {
            Body::from_stream(body.into_data_stream().take_while(move |_| {
                // A stream says something every few seconds, so this is all that there is
                // to be looked at.
                let is_due = looked.elapsed() >= LOOK_TIME;
                let may_go_on = !is_due || self.0.is_good();
                if is_due {
                    looked = Instant::now();
                }
                ready(may_go_on)
            }))
        })
    }

    /// Waits until who was let in may not ask any more.
    pub(super) async fn lost(&self) {
        while self.0.is_good() {
            sleep(LOOK_EVERY).await;
        }
    }
}

const HTTP: u16 = 80;
const HTTPS: u16 = 443;

/// Why somebody is not let in.
#[derive(Debug)]
struct Refusal {
    failure: Failure,
    retry_after: Option<Duration>,
}

impl Refusal {
    fn too_many(what: &str, after: Duration) -> Self {
        let failure = Failure::new(Reason::TooMany, format!("who asks {what}"));
        Self { failure, retry_after: Some(after) }
    }

    fn into_response(self) -> Response {
        let is_unauthorized = self.failure.reason == Reason::Unauthorized;
        let mut response = self.failure.into_response();
        let headers = response.headers_mut();
        if is_unauthorized {
            let how = HeaderValue::from_static("Bearer realm=\"backlot\"");
            headers.insert(WWW_AUTHENTICATE, how);
        }
        if let Some(after) = self.retry_after {
            // In whole seconds, of which there is at least one.
            let seconds = after.as_secs() + u64::from(after.subsec_nanos() > 0);
            headers.insert(RETRY_AFTER, seconds.max(1).into());
        }
        response
    }
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        Self { failure, retry_after: None }
    }
}

fn bad(why: &str) -> Failure {
    Failure::new(Reason::BadRequest, why)
}

fn foreign(why: String) -> Failure {
    Failure::new(Reason::Foreign, why).with_hint(
        "use the address that the host listens at; other names that it is to be called by are \
         given to it when it is started",
    )
}

/// Returns the beginning of what somebody has sent, to be told.
fn brief(text: &str) -> String {
    text.chars().take(64).collect()
}

/// Returns the value of a header that there is once, if at all.
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, Failure> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(bad(&format!("there are several headers `{name}`")));
    }
    match value.to_str() {
        Ok(text) => Ok(Some(text)),
        Err(_) => Err(bad(&format!("the header `{name}` cannot be read"))),
    }
}

/// Splits `host` or `host:port`. An IPv6 address has brackets.
fn split(name: &str) -> Option<(&str, Option<u16>)> {
    let end = match name.starts_with('[') {
        true => name.find(']')? + 1,
        false => name.find(':').unwrap_or(name.len()),
    };
    let (host, rest) = name.split_at(end);
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._[:]".contains(&byte);
    if host.is_empty() || !host.bytes().all(plain) {
        return None;
    }
    match rest.strip_prefix(':') {
        None if rest.is_empty() => Some((host, None)),
        // `parse` would take a sign as well.
        Some(digits) if digits.bytes().all(|it| it.is_ascii_digit()) => {
            Some((host, Some(digits.parse().ok()?)))
        }
        _ => None,
    }
}

fn is_loopback(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost") || matches!(host, "127.0.0.1" | "[::1]")
}

/// Tells whether a host is the address that the connection came in at.
fn is_address(host: &str, address: IpAddr) -> bool {
    let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let named = match bare {
        Some(inner) => inner.parse().map(IpAddr::V6),
        None => host.parse().map(IpAddr::V4),
    };
    named.is_ok_and(|it| it.to_canonical() == address.to_canonical())
}

/// Returns whom failures are counted for: an address, or the network that a single machine
/// has to itself in IPv6.
fn network(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) => {
            IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)))
        }
        address => address,
    }
}

/// Returns the token that is sent, if there is one, and one only.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let sent = only(headers, &AUTHORIZATION).ok()??;
    let (scheme, token) = sent.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// Refuses a body that is not said to be JSON: a page can send others without asking.
fn is_json(headers: &HeaderMap) -> Result<(), Failure> {
    let refused = |why: &str| Failure::new(Reason::MediaType, why);
    let several = |_| refused("there are several media types, or none that can be read");
    match only(headers, &CONTENT_TYPE).map_err(several)? {
        None if declared(headers).is_none() => Ok(()),
        None => Err(refused("what is sent has no media type")),
        Some(named) => {
            let essence = named.split(';').next().unwrap_or_default().trim();
            match essence.eq_ignore_ascii_case("application/json") {
                true => Ok(()),
                false => Err(refused("what is sent is not said to be JSON")),
            }
        }
    }
}

/// Returns how many bytes a body has at most, where there is one.
fn declared(headers: &HeaderMap) -> Option<u64> {
    if headers.contains_key(TRANSFER_ENCODING) {
        // It says so when it ends.
        return Some(BODY_BYTES as u64);
    }
    // What is no length was refused before.
    let length = headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().unwrap_or(u64::MAX);
    (length > 0).then_some(length)
}

/// Returns a body that comes in time, or fails; the room for it is given free with it.
fn bounded(body: Body, room: Option<Room>) -> Body {
    let until = Instant::now() + BODY_TIME;
    let pieces = (body.into_data_stream(), room);
    Body::from_stream(stream::try_unfold(pieces, move |(mut pieces, room)| async move {
        match timeout_at(until, pieces.next()).await {
            Ok(Some(Ok(bytes))) => Ok(Some((bytes, (pieces, room)))),
            Ok(Some(Err(error))) => Err(error),
            Ok(None) => Ok(None),
            Err(elapsed) => Err(axum::Error::new(elapsed)),
        }
    }))
}

#[cfg(test)]
mod tests {
    use backlot_jobs::DataFolder;

    use super::*;
    use crate::{access::Role, tokens::NewToken};

    struct Fixture {
        guard: Guard,
        token: String,
        _scratch: tempfile::TempDir,
    }

    fn fixture() -> Fixture {
        let scratch = tempfile::tempdir().unwrap();
        let tokens = Tokens::open(&DataFolder::open(scratch.path()).unwrap()).unwrap();
        let new =
            NewToken { name: "ann".into(), role: Role::User, session: None, expires_ms: None };
        let (_, token) = tokens.add(new).unwrap();
        Fixture { guard: Guard::new(tokens), token, _scratch: scratch }
    }

    fn connected() -> Connected {
        let local = "127.0.0.1:7710".parse().unwrap();
        Connected { peer: [127, 0, 0, 1].into(), local, tls: false }
    }

    fn head(method: &str, uri: &str, headers: &[(&str, &str)]) -> Parts {
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    /// Returns the word for why a head is not let in.
    fn refused(guard: &Guard, head: &Parts, connected: Connected, now: Instant) -> &'static str {
        let checked = guard.check(head, connected, now);
        checked.map_or_else(|refusal| refusal.failure.reason.code(), |_| "let in")
    }

    #[test]
    fn c83_a_host_is_called_by_its_own_names() {
        let Fixture { guard, _scratch, .. } = fixture();
        let guard = guard.with_names(["host.lan", "proxied.example:8443"]).unwrap();
        let asked = |host: &str, connected| {
            let head = head("GET", "/v1/live", &[("host", host)]);
            refused(&guard, &head, connected, Instant::now())
        };
        let lan = "192.168.1.5:7710".parse().unwrap();
        let lan = Connected { local: lan, ..connected() };
        let mapped = "[::ffff:192.168.1.5]:7710".parse().unwrap();
        let mapped = Connected { local: mapped, ..connected() };
        let own = [
            "localhost:7710",
            "LocalHost:7710",
            "127.0.0.1:7710",
            "[::1]:7710",
            "host.lan",
            "HOST.lan:7710",
            "host.lan:443",
            "proxied.example:8443",
        ];
        for host in own {
            assert_eq!(asked(host, connected()), "let in", "{host}");
            assert_eq!(asked(host, lan), "let in", "{host}");
        }
        assert_eq!(asked("192.168.1.5:7710", lan), "let in");
        assert_eq!(asked("192.168.1.5:7710", mapped), "let in");
        let foreign = [
            "evil.test",
            "evil.test:7710",
            "localhost.evil.test:7710",
            "localhost.:7710",
            "localhost",
            "localhost:80",
            "localhost:7711",
            "localhost:",
            "localhost:+7710",
            "localhost:77100",
            "localhost:7710:7710",
            "a@localhost:7710",
            "localhost:7710@evil.test",
            "127.0.0.1.evil.test:7710",
            "127.1:7710",
            "0x7f000001:7710",
            "0.0.0.0:7710",
            "192.168.1.5:7710",
            "::1",
            "[::1",
            "[::1]x:7710",
            "host.lan:7711",
            "proxied.example",
            "",
        ];
        for host in foreign {
            assert_eq!(asked(host, connected()), "foreign", "{host}");
        }
        // At the usual port it is left out.
        let usual = Connected { local: "127.0.0.1:443".parse().unwrap(), tls: true, ..connected() };
        assert_eq!(asked("localhost", usual), "let in");
        assert_eq!(asked("localhost", Connected { tls: false, ..usual }), "foreign");
    }

    #[test]
    fn one_host_is_named() {
        let Fixture { guard, _scratch, .. } = fixture();
        let asked = |uri: &str, hosts: &[(&str, &str)]| {
            refused(&guard, &head("GET", uri, hosts), connected(), Instant::now())
        };
        let own = ("host", "localhost:7710");
        assert_eq!(asked("/v1/live", &[]), "bad_request");
        assert_eq!(asked("/v1/live", &[own, own]), "bad_request");
        assert_eq!(asked("http://localhost:7710/v1/live", &[own]), "let in");
        assert_eq!(asked("http://localhost:7710/v1/live", &[]), "let in");
        assert_eq!(asked("http://evil.test/v1/live", &[own]), "foreign");
        let evil = ("host", "evil.test");
        assert_eq!(asked("http://localhost:7710/v1/live", &[evil]), "foreign");
    }

    #[test]
    fn c83_the_pages_of_others_do_not_ask() {
        let Fixture { guard, _scratch, .. } = fixture();
        let asked = |method: &str, origins: &[&str]| {
            let mut headers = vec![("host", "localhost:7710")];
            headers.extend(origins.iter().map(|it| ("origin", *it)));
            let head = head(method, "/v1/live", &headers);
            refused(&guard, &head, connected(), Instant::now())
        };
        for own in ["http://localhost:7710", "http://127.0.0.1:7710", "https://[::1]:7710"] {
            assert_eq!(asked("GET", &[own]), "let in", "{own}");
        }
        let foreign = [
            "null",
            "",
            "http://evil.test",
            "http://evil.test:7710",
            "http://localhost.evil.test:7710",
            "http://localhost",
            "http://localhost:7711",
            "http://localhost:7710/",
            "ftp://localhost:7710",
            "localhost:7710",
            "http://a@localhost:7710",
            "file://",
            "chrome-extension://localhost:7710",
        ];
        for origin in foreign {
            for method in ["GET", "POST", "OPTIONS", "DELETE"] {
                assert_eq!(asked(method, &[origin]), "foreign", "{method} {origin}");
            }
        }
        assert_eq!(asked("GET", &["http://localhost:7710", "http://evil.test"]), "foreign");
    }

    #[test]
    fn who_has_a_token_is_let_in() {
        let Fixture { guard, token, _scratch } = fixture();
        let host = ("host", "localhost:7710");
        let asked = |path: &str, tokens: &[&str]| {
            let mut headers = vec![host];
            headers.extend(tokens.iter().map(|it| ("authorization", *it)));
            refused(&guard, &head("GET", path, &headers), connected(), Instant::now())
        };
        let good = format!("Bearer {token}");
        assert_eq!(asked("/v1/jobs", &[&good]), "let in");
        assert_eq!(asked("/v1/jobs", &[&format!("bearer  {token}")]), "let in");
        assert_eq!(asked("/v1/live", &[]), "let in");
        for path in ["/v1/jobs", "/", "/nothing", "/v1/live/", "/v1/live?a=/v1/live", "//v1/live"] {
            let open = path.starts_with("/v1/live?");
            assert_eq!(asked(path, &[]), if open { "let in" } else { "unauthorized" }, "{path}");
        }
        for bad in [&token[..], "Bearer", "Bearer ", &format!("Basic {token}"), &good[..40]] {
            let code = asked("/v1/jobs", &[bad]);
            assert!(matches!(code, "unauthorized" | "too_many"), "{bad}: {code}");
        }
        let code = asked("/v1/jobs", &[&good, &good]);
        assert!(matches!(code, "unauthorized" | "too_many"), "{code}");
        // In the address it is no token, and there is no way to leave it out.
        let code = asked(&format!("/v1/jobs?token={token}"), &[]);
        assert!(matches!(code, "unauthorized" | "too_many"), "{code}");
    }

    #[test]
    fn failures_are_counted_by_address_and_harm_nobody_else() {
        let Fixture { guard, token, _scratch } = fixture();
        let now = Instant::now();
        let host = ("host", "localhost:7710");
        let none = head("GET", "/v1/jobs", &[host]);
        let good = format!("Bearer {token}");
        let good = head("GET", "/v1/jobs", &[host, ("authorization", &good)]);
        let at = connected();
        for _ in 0..10 {
            assert_eq!(refused(&guard, &none, at, now), "unauthorized");
        }
        let refusal = guard.check(&none, at, now).unwrap_err();
        let response = refusal.into_response();
        assert_eq!(response.status(), 429);
        assert_eq!(response.headers()[RETRY_AFTER], "1");
        assert_eq!(refused(&guard, &good, at, now), "let in");
        let other = Connected { peer: [127, 0, 0, 2].into(), ..at };
        assert_eq!(refused(&guard, &none, other, now), "unauthorized");
        let later = now + Duration::from_secs(1);
        assert_eq!(refused(&guard, &none, at, later), "unauthorized");
        assert_eq!(refused(&guard, &none, at, later), "too_many");
    }

    #[test]
    fn who_asks_too_often_is_told_when_to_come_back() {
        let Fixture { guard, token, _scratch } = fixture();
        let guard = guard.with_rate(Rate { burst: 3, per_second: 2 });
        let good = format!("Bearer {token}");
        let headers = [("host", "localhost:7710"), ("authorization", &good)];
        let (head, now) = (head("GET", "/v1/jobs", &headers), Instant::now());
        for _ in 0..3 {
            assert_eq!(refused(&guard, &head, connected(), now), "let in");
        }
        assert_eq!(refused(&guard, &head, connected(), now), "too_many");
        let later = now + Duration::from_millis(500);
        assert_eq!(refused(&guard, &head, connected(), later), "let in");
    }

    #[test]
    fn a_network_of_ipv6_counts_as_one() {
        let of = |address: &str| network(address.parse().unwrap()).to_string();
        assert_eq!(of("10.0.0.7"), "10.0.0.7");
        assert_eq!(of("::ffff:10.0.0.7"), "10.0.0.7");
        assert_eq!(of("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
    }

    #[test]
    fn c83_what_changes_something_is_json() {
        let Fixture { guard, token, _scratch } = fixture();
        let good = format!("Bearer {token}");
        let asked = |method: &str, headers: &[(&str, &str)]| {
            let own = [("host", "localhost:7710"), ("authorization", good.as_str())];
            let head = head(method, "/v1/jobs", &[&own, headers].concat());
            refused(&guard, &head, connected(), Instant::now())
        };
        let (length, chunked) = (("content-length", "2"), ("transfer-encoding", "chunked"));
        for method in ["POST", "PUT", "DELETE", "PATCH"] {
            assert_eq!(asked(method, &[]), "let in");
            assert_eq!(asked(method, &[("content-length", "0")]), "let in");
            for kind in ["application/json", "Application/JSON; charset=utf-8"] {
                assert_eq!(asked(method, &[length, ("content-type", kind)]), "let in");
                assert_eq!(asked(method, &[chunked, ("content-type", kind)]), "let in");
            }
            assert_eq!(asked(method, &[length]), "media_type");
            assert_eq!(asked(method, &[chunked]), "media_type");
            for kind in [
                "text/plain",
                "application/json, text/plain",
                "",
                "text/plain;application/json",
                "application/jsonp",
                "multipart/form-data; boundary=a",
            ] {
                assert_eq!(
                    asked(method, &[length, ("content-type", kind)]),
                    "media_type",
                    "{kind}"
                );
                assert_eq!(asked(method, &[("content-type", kind)]), "media_type", "{kind}");
            }
            let json = ("content-type", "application/json");
            assert_eq!(asked(method, &[length, json, json]), "media_type");
        }
        // Nothing changes by a look, which may say of itself what it likes.
        assert_eq!(asked("GET", &[("content-type", "text/plain")]), "let in");
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_comes_in_time_or_not_at_all() {
        let Fixture { guard, _scratch, .. } = fixture();
        let largest = BODY_BYTES as u64;
        let mut taken = Vec::new();
        for who in ["ann", "ann", "ann", "ann", "bob", "bob", "bob", "bob"] {
            taken.push(guard.rooms.take(who, largest).await.unwrap().unwrap());
        }
        assert_eq!(guard.rooms.take("eve", largest).await.unwrap_err().reason, Reason::Busy);
        // Room is given free with the body, and what does not come is given up.
        let silent = Body::from_stream(stream::pending::<Result<Bytes, axum::Error>>());
        let silent = bounded(silent, taken.pop());
        let since = Instant::now();
        axum::body::to_bytes(silent, usize::MAX).await.unwrap_err();
        assert_eq!(since.elapsed(), BODY_TIME);
        assert!(guard.rooms.take("eve", largest).await.unwrap().is_some());
        let whole = bounded(Body::from("abc"), None);
        assert_eq!(axum::body::to_bytes(whole, usize::MAX).await.unwrap(), "abc");
    }

    #[tokio::test]
    async fn who_has_no_token_takes_no_room() {
        let Fixture { guard, _scratch, .. } = fixture();
        let length = BODY_BYTES.to_string();
        for _ in 0..16 {
            let request = Request::get("/v1/live").header("host", "localhost:7710");
            let request = request.header("content-length", &length);
            let silent = Body::from_stream(stream::pending::<Result<Bytes, axum::Error>>());
            let admitted = guard.admit(request.body(silent).unwrap(), connected()).await.unwrap();
            assert_eq!(admitted.into_body().size_hint().exact(), Some(0));
        }
    }
}
