//! Secrets that a guest can use and never has.
//!
//! A guest has a placeholder, made afresh for each start. In the granted header of a
//! request to a granted server the host puts the secret in its place, and nowhere
//! else. What such a server answers is looked through for the secret on its way
//! in, and so is all that the guest says on its way out.
//!
//! What is found is the secret itself, byte for byte and whole. Not found are a part
//! of it, an encoding of it (Base64, percent signs, JSON escapes, compression) and
//! what else a server may make of it; so a server has to be granted that can be
//! trusted with the secret.

use std::{
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use backlot_registry::{Channel, Outcome, Refusal, Sink, StopRefusal, Stream, TaskHost};
use http::{HeaderMap, HeaderName, HeaderValue};
use memchr::{memchr, memmem};

use crate::{
    network::{Host, is_server},
    policy::{Scheme, SecretGrant},
};

/// What stands where a secret stood.
const MASK: u8 = b'*';

/// The secrets of a grant, made ready: what every start with it shares.
pub(crate) struct Vault {
    grants: Vec<SecretGrant>,
    patterns: Arc<[Pattern]>,
    /// The same in lower case, which is what HTTP makes of the names of headers.
    lower_patterns: Arc<[Pattern]>,
}

impl Vault {
    /// Returns the vault of these secrets; none of them is empty.
    pub(crate) fn new(grants: Vec<SecretGrant>) -> Self {
        let patterns = |of: fn(&str) -> Vec<u8>| {
            grants.iter().map(|grant| Pattern::new(of(&grant.value))).collect()
        };
        Self {
            patterns: patterns(|value| value.as_bytes().to_vec()),
            lower_patterns: patterns(|value| value.to_ascii_lowercase().into_bytes()),
            grants,
        }
    }
}

/// The secrets of one start.
pub(crate) struct Secrets {
    vault: Arc<Vault>,
    /// For each secret what the guest has in its place.
    placeholders: Vec<String>,
    /// For each stream and channel of the task what looks through it.
    maskers: [Arc<Mutex<Masker>>; 4],
}

/// The streams and channels of a task, in the order of their maskers.
const OUTLETS: [(Stream, Channel); 4] = [
    (Stream::Output, Channel::Out),
    (Stream::Output, Channel::Err),
    (Stream::Log, Channel::Out),
    (Stream::Log, Channel::Err),
];

/// There is no randomness to be had for placeholders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no placeholders for secrets can be made: the system gives no random bytes")]
pub(crate) struct NoRandomness;

/// The secret of that name cannot stand in a header.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the secret `{0}` cannot stand in a header: it has bytes that none may have")]
pub(crate) struct NoHeaderValue(String);

impl Secrets {
    /// Returns the secrets of a new start.
    pub(crate) fn new(vault: Arc<Vault>) -> Result<Self, NoRandomness> {
        let random = rustls::crypto::ring::default_provider().secure_random;
        let mut placeholders = Vec::with_capacity(vault.grants.len());
        for grant in &vault.grants {
            let mut bytes = [0; 16];
            random.fill(&mut bytes).map_err(|_| NoRandomness)?;
            let bytes = u128::from_le_bytes(bytes);
            placeholders.push(format!("backlot-secret-{}-{bytes:032x}", grant.name));
        }
        let masker = || Arc::new(Mutex::new(Masker::new(Arc::clone(&vault.patterns))));
        let maskers = [masker(), masker(), masker(), masker()];
        Ok(Self { vault, placeholders, maskers })
    }

    /// Returns the variables that hold the placeholders, and those.
    pub(crate) fn variables(&self) -> impl Iterator<Item = (&str, &str)> {
        self.all().map(|(grant, placeholder)| (grant.variable.as_str(), placeholder))
    }

    fn all(&self) -> impl Iterator<Item = (&SecretGrant, &str)> {
        self.vault.grants.iter().zip(self.placeholders.iter().map(String::as_str))
    }

    /// Tells whether a secret may go to the server, and so may come back from it.
    pub(crate) fn may_go_to(&self, scheme: Scheme, host: &Host, port: u16) -> bool {
        self.vault.grants.iter().any(|grant| goes_to(grant, scheme, host, port))
    }

    /// Puts the secrets that may go to the server in the places of their placeholders.
    pub(crate) fn fill(
        &self,
        headers: &mut HeaderMap,
        scheme: Scheme,
        host: &Host,
        port: u16,
    ) -> Result<(), NoHeaderValue> {
        for (grant, placeholder) in self.all() {
            if !goes_to(grant, scheme, host, port) {
                continue;
            }
            for (name, value) in headers.iter_mut() {
                if !name.as_str().eq_ignore_ascii_case(&grant.header) {
                    continue;
                }
                let Some(filled) = filled(value.as_bytes(), placeholder, &grant.value) else {
                    continue;
                };
                *value = HeaderValue::from_bytes(&filled)
                    .map_err(|_| NoHeaderValue(grant.name.clone()))?;
                value.set_sensitive(true);
            }
        }
        Ok(())
    }

    /// Returns what hides the secrets in the body of one answer.
    pub(crate) fn masker(&self) -> Masker {
        Masker::new(Arc::clone(&self.vault.patterns))
    }

    /// Hides the secrets in the headers or trailers of an answer.
    pub(crate) fn mask_headers(&self, headers: &mut HeaderMap) {
        for value in headers.values_mut() {
            if let Some(masked) = masked(&self.vault.patterns, value.as_bytes()) {
                // A value stays one when bytes of it become others that it may have.
                *value = HeaderValue::from_bytes(&masked)
                    .unwrap_or_else(|_| HeaderValue::from_static("*"));
            }
        }
        let lower = &self.vault.lower_patterns;
        if headers.keys().all(|name| masked(lower, name.as_str().as_bytes()).is_none()) {
            return;
        }
        let mut renamed = HeaderMap::with_capacity(headers.len());
        for (name, value) in &*headers {
            let name = match masked(lower, name.as_str().as_bytes()) {
                Some(masked) => HeaderName::from_bytes(&masked).ok(),
                None => Some(name.clone()),
            };
            if let Some(name) = name {
                renamed.append(name, value.clone());
            }
        }
        *headers = renamed;
    }

    /// Hides the secrets in a text that is said at once.
    pub(crate) fn mask_text(&self, text: String) -> String {
        match masked(&self.vault.patterns, text.as_bytes()) {
            // A whole secret is whole characters, so nothing is cut in two.
            Some(masked) => String::from_utf8_lossy(&masked).into_owned(),
            None => text,
        }
    }

    /// Hides the secrets in what a run came to.
    pub(crate) fn mask_outcome(&self, outcome: Outcome) -> Outcome {
        Outcome {
            ending: outcome.ending,
            detail: outcome.detail.map(|text| self.mask_text(text)),
            output: outcome.output.map(|text| self.mask_text(text)),
        }
    }

    /// Hides the secrets in the reason why nothing was started.
    pub(crate) fn mask_refusal(&self, refusal: Refusal) -> Refusal {
        match refusal {
            Refusal::InvalidInput(why) => Refusal::InvalidInput(self.mask_text(why)),
            Refusal::Unavailable(why) => Refusal::Unavailable(self.mask_text(why)),
            Refusal::NotGranted(why) => Refusal::NotGranted(self.mask_text(why)),
            Refusal::Broken(why) => Refusal::Broken(self.mask_text(why)),
        }
    }

    /// Hides the secrets in the reason why a stop was refused.
    pub(crate) fn mask_stop_refusal(&self, refusal: StopRefusal) -> StopRefusal {
        match refusal {
            StopRefusal::NotNow(why) => StopRefusal::NotNow(self.mask_text(why)),
            StopRefusal::Broken(why) => StopRefusal::Broken(self.mask_text(why)),
            StopRefusal::Crashed(why) => StopRefusal::Crashed(self.mask_text(why)),
        }
    }

    /// Writes what is still held back of all streams, as nothing can follow.
    pub(crate) fn flush(&self, host: &TaskHost) {
        for ((stream, channel), masker) in OUTLETS.into_iter().zip(&self.maskers) {
            let rest = lock(masker).finish();
            sink(host, stream).write_as(channel, &rest);
        }
    }
}

fn goes_to(grant: &SecretGrant, scheme: Scheme, host: &Host, port: u16) -> bool {
    grant.to.iter().any(|server| is_server(server, scheme, host, port))
}

/// Returns the value with the secret in the places of the placeholder, if it has any.
fn filled(value: &[u8], placeholder: &str, secret: &str) -> Option<Vec<u8>> {
    let mut filled = Vec::new();
    let mut from = 0;
    for at in memmem::find_iter(value, placeholder) {
        filled.extend_from_slice(&value[from..at]);
        filled.extend_from_slice(secret.as_bytes());
        from = at + placeholder.len();
    }
    filled.extend_from_slice(&value[from..]);
    (from > 0).then_some(filled)
}

fn sink(host: &TaskHost, stream: Stream) -> Sink {
    match stream {
        Stream::Output => host.output(),
        Stream::Log => host.log(),
    }
}

/// Where one channel of a task goes, with its secrets hidden.
#[derive(Clone)]
pub(crate) struct Outlet {
    sink: Sink,
    channel: Channel,
    masker: Option<Arc<Mutex<Masker>>>,
}

impl Outlet {
    /// Returns the outlet of a stream's channel.
    pub(crate) fn new(
        host: &TaskHost,
        secrets: Option<&Secrets>,
        stream: Stream,
        channel: Channel,
    ) -> Self {
        let masker = secrets.and_then(|secrets| {
            let index = OUTLETS.iter().position(|outlet| *outlet == (stream, channel))?;
            secrets.maskers.get(index).cloned()
        });
        Self { sink: sink(host, stream), channel, masker }
    }

    /// Takes bytes. The end of them may wait for what follows, if a secret could
    /// begin there.
    pub(crate) fn write(&self, bytes: &[u8]) {
        match &self.masker {
            None => self.sink.write_as(self.channel, bytes),
            Some(masker) => {
                // Locked until it is written, so that pieces stay in their order.
                let mut masker = lock(masker);
                self.sink.write_as(self.channel, &masker.mask(bytes));
            }
        }
    }
}

fn lock(masker: &Mutex<Masker>) -> MutexGuard<'_, Masker> {
    // A masker is whole after each call, whatever panics beside it.
    masker.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Hides secrets in a stream of bytes that comes in any pieces: every byte that
/// belongs to one becomes an asterisk, so that offsets stay what they were.
///
/// What comes out is the same however the bytes were split. Held back are only the
/// last bytes with which a secret could begin, fewer than the longest has.
pub(crate) struct Masker {
    patterns: Arc<[Pattern]>,
    /// For each pattern how much of it the bytes so far end with.
    matched: Vec<usize>,
    held: Vec<u8>,
}

impl Masker {
    fn new(patterns: Arc<[Pattern]>) -> Self {
        Self { matched: vec![0; patterns.len()], patterns, held: Vec::new() }
    }

    /// Takes bytes, and returns those that are known to be no part of a secret, or
    /// hidden.
    pub(crate) fn mask(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut out = mem::take(&mut self.held);
        let before = out.len();
        out.extend_from_slice(bytes);
        for (pattern, matched) in self.patterns.iter().zip(&mut self.matched) {
            pattern.scan(bytes, matched, |end| {
                // What has matched before this piece is held, so it is in here.
                let end = before + end;
                out[end.saturating_sub(pattern.bytes.len())..end].fill(MASK);
            });
        }
        let keep = self.matched.iter().copied().max().unwrap_or(0);
        self.held = out.split_off(out.len().saturating_sub(keep));
        out
    }

    /// Returns how many bytes are held back.
    pub(crate) fn held(&self) -> usize {
        self.held.len()
    }

    /// Returns what was held back, when nothing follows.
    pub(crate) fn finish(&mut self) -> Vec<u8> {
        self.matched.fill(0);
        mem::take(&mut self.held)
    }
}

/// Returns the bytes with the patterns hidden, if there are any in them.
fn masked(patterns: &Arc<[Pattern]>, bytes: &[u8]) -> Option<Vec<u8>> {
    if !patterns.iter().any(|pattern| memmem::find(bytes, &pattern.bytes).is_some()) {
        return None;
    }
    let mut masker = Masker::new(Arc::clone(patterns));
    let mut out = masker.mask(bytes);
    out.extend_from_slice(&masker.finish());
    Some(out)
}

/// One secret, to be looked for in time that is linear in what is looked through
/// (Knuth, Morris and Pratt).
struct Pattern {
    bytes: Vec<u8>,
    /// For each length of a beginning the longest shorter one that it ends with.
    borders: Vec<usize>,
}

impl Pattern {
    fn new(bytes: Vec<u8>) -> Self {
        let mut borders = vec![0; bytes.len() + 1];
        let mut border = 0;
        for end in 1..bytes.len() {
            while border > 0 && bytes[border] != bytes[end] {
                border = borders[border];
            }
            border += usize::from(bytes[border] == bytes[end]);
            borders[end + 1] = border;
        }
        Self { bytes, borders }
    }

    /// Goes on from a state and calls `found` with the end of each occurrence.
    fn scan(&self, text: &[u8], matched: &mut usize, mut found: impl FnMut(usize)) {
        let mut at = 0;
        while at < text.len() {
            if *matched == 0 {
                match self.bytes.first().and_then(|first| memchr(*first, &text[at..])) {
                    Some(skip) => at += skip,
                    None => return,
                }
            }
            while *matched > 0 && self.bytes[*matched] != text[at] {
                *matched = self.borders[*matched];
            }
            *matched += usize::from(self.bytes[*matched] == text[at]);
            at += 1;
            if *matched == self.bytes.len() {
                found(at);
                *matched = self.borders[*matched];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(name: &str, value: &str) -> SecretGrant {
        SecretGrant {
            name: name.into(),
            variable: name.to_uppercase(),
            header: "authorization".into(),
            to: vec!["https://api.example.com".parse().unwrap()],
            value: value.into(),
        }
    }

    fn secrets(values: &[&str]) -> Secrets {
        let grants = values.iter().map(|value| secret("one", value)).collect();
        Secrets::new(Arc::new(Vault::new(grants))).unwrap()
    }

    fn server() -> (Scheme, Host, u16) {
        (Scheme::Https, Host::read("api.example.com").unwrap(), 443)
    }

    /// The plain way to the same: each place is looked at.
    fn whole(patterns: &[&[u8]], text: &[u8]) -> Vec<u8> {
        let mut out = text.to_vec();
        for pattern in patterns {
            for at in 0..text.len() {
                if text[at..].starts_with(pattern) {
                    out[at..at + pattern.len()].fill(MASK);
                }
            }
        }
        out
    }

    fn in_pieces(patterns: &[&[u8]], pieces: &[&[u8]]) -> Vec<u8> {
        let patterns = patterns.iter().map(|bytes| Pattern::new(bytes.to_vec())).collect();
        let mut masker = Masker::new(patterns);
        let mut out = Vec::new();
        for piece in pieces {
            out.extend(masker.mask(piece));
        }
        out.extend(masker.finish());
        out
    }

    #[test]
    fn a_secret_is_hidden_however_it_is_split() {
        let text = b"a secretsecret sec secretsecre";
        let patterns: &[&[u8]] = &[b"secretsecret", b"tsec"];
        let wanted = whole(patterns, text);
        assert_eq!(wanted, b"a ************ sec secre****re");
        for first in 0..=text.len() {
            for second in first..=text.len() {
                let pieces = [&text[..first], &text[first..second], &text[second..]];
                assert_eq!(in_pieces(patterns, &pieces), wanted, "{first} {second}");
            }
        }
    }

    proptest::proptest! {
        #[test]
        fn pieces_are_masked_as_the_whole_is(
            patterns in proptest::collection::vec("[ab]{1,6}", 0..4),
            pieces in proptest::collection::vec("[abc]{0,9}", 0..9),
        ) {
            let patterns: Vec<&[u8]> = patterns.iter().map(String::as_bytes).collect();
            let text = pieces.concat();
            let pieces: Vec<&[u8]> = pieces.iter().map(String::as_bytes).collect();
            let out = in_pieces(&patterns, &pieces);
            proptest::prop_assert_eq!(out, whole(&patterns, text.as_bytes()));
        }
    }

    #[test]
    fn only_what_may_begin_a_secret_is_held_back() {
        let mut masker = Masker::new([Pattern::new(b"hunter22".to_vec())].into());
        assert_eq!(masker.mask(b"nothing of it"), b"nothing of it");
        assert_eq!(masker.mask(b"a hunt"), b"a ");
        assert_eq!(masker.held(), 4);
        assert_eq!(masker.mask(b"ing"), b"hunting");
        assert_eq!(masker.mask(b"hunter2"), b"");
        assert_eq!(masker.finish(), b"hunter2");
        assert_eq!(masker.mask(b"2"), b"2", "what came before is over");
    }

    #[test]
    fn placeholders_are_fresh_and_stand_in_for_the_secret_in_one_header() {
        let (one, other) = (secrets(&["hunter22"]), secrets(&["hunter22"]));
        let placeholder = &one.placeholders[0];
        assert!(placeholder.starts_with("backlot-secret-one-") && placeholder.len() == 51);
        assert_ne!(placeholder, &other.placeholders[0]);
        assert_eq!(one.variables().collect::<Vec<_>>(), [("ONE", placeholder.as_str())]);

        let twice = format!("Bearer {placeholder},{placeholder}");
        let headers = || {
            HeaderMap::from_iter([
                ("authorization".parse().unwrap(), twice.parse().unwrap()),
                ("x-other".parse::<HeaderName>().unwrap(), placeholder.parse().unwrap()),
            ])
        };
        let (scheme, host, port) = server();
        let mut sent = headers();
        one.fill(&mut sent, scheme, &host, port).unwrap();
        assert_eq!(sent["authorization"], "Bearer hunter22,hunter22");
        assert!(sent["authorization"].is_sensitive());
        assert_eq!(sent["x-other"], placeholder);
        let elsewhere = Host::read("example.com").unwrap();
        for (scheme, host, port) in
            [(scheme, &elsewhere, port), (Scheme::Http, &host, port), (scheme, &host, 444)]
        {
            let mut sent = headers();
            one.fill(&mut sent, scheme, host, port).unwrap();
            assert_eq!(sent, headers(), "to others the placeholder goes as it is");
            assert!(!one.may_go_to(scheme, host, port));
        }
        let mut guessed = HeaderMap::new();
        guessed.insert("authorization", other.placeholders[0].parse().unwrap());
        one.fill(&mut guessed, Scheme::Https, &host, 443).unwrap();
        assert_eq!(guessed["authorization"], other.placeholders[0], "another start's is none");
    }

    #[test]
    fn a_secret_that_is_no_header_value_is_refused_and_not_shown() {
        let bad = secrets(&["hunter\n22"]);
        let mut headers = HeaderMap::new();
        headers.insert("authorization", bad.placeholders[0].parse().unwrap());
        let (scheme, host, port) = server();
        let error = bad.fill(&mut headers, scheme, &host, port).unwrap_err().to_string();
        assert!(error.contains("`one`") && !error.contains("hunter"), "{error}");
    }

    #[test]
    fn an_answer_hides_the_secret_in_the_names_and_values_of_headers() {
        let secrets = secrets(&["Hunter22"]);
        let mut headers = HeaderMap::from_iter([
            ("x-echo".parse::<HeaderName>().unwrap(), "Bearer Hunter22.".parse().unwrap()),
            ("x-hunter22".parse().unwrap(), "1".parse().unwrap()),
        ]);
        secrets.mask_headers(&mut headers);
        assert_eq!(headers["x-echo"], "Bearer ********.");
        assert_eq!(headers["x-********"], "1");
        assert_eq!(headers.len(), 2);
    }

    #[test]
    fn what_is_said_at_once_is_masked_whole() {
        let secrets = secrets(&["hunter22", "€uro-secret"]);
        assert_eq!(secrets.mask_text("x hunter22 €uro-secret".into()), "x ******** *************");
        assert_eq!(secrets.mask_text("hunter2".into()), "hunter2");
        let failed = secrets.mask_outcome(Outcome::failed("not hunter22"));
        assert_eq!(failed.detail.as_deref(), Some("not ********"));
        let refused = secrets.mask_refusal(Refusal::Broken("hunter22".into()));
        assert_eq!(refused, Refusal::Broken("********".into()));
        let not_now = secrets.mask_stop_refusal(StopRefusal::NotNow("hunter22".into()));
        assert_eq!(not_now, StopRefusal::NotNow("********".into()));
    }
}
