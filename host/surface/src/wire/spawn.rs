//! What a spawn asks for.

use std::path::{Path, PathBuf};

use backlot_jobs::{RetryPolicy, StartAt};
use backlot_registry::Kind;
use http::Uri;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{RetryView, TraceParent, at_most, check_session};
use crate::error::Failure;

/// Asks for a job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SpawnRequest {
    /// What sort of job it is. This, or a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 64)]
    pub kind: Option<String>,
    /// The absolute path of the component that does it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub file: Option<PathBuf>,
    /// Its input; what a program reads from its stdin.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<String>,
    /// The arguments of a program.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// The line that it is shown under.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 4096)]
    pub label: Option<String>,
    /// The session that it works for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 256)]
    pub session: Option<String>,
    /// A key under which it is spawned once.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 1024)]
    pub key: Option<String>,
    /// How many attempts it may have, the first included.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub attempts: Option<u32>,
    /// What is tried again without being asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetryView>,
    /// Whether all its attempts run the version that is current now.
    #[serde(skip_serializing_if = "is_not")]
    pub pin: bool,
    /// It starts after so many milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after_ms: Option<u64>,
    /// It starts at that time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at_ms: Option<u64>,
    /// It is started whenever a cron expression says so, in local time.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 1024)]
    pub cron: Option<String>,
    /// Whether it waits where there is no place for it.
    #[serde(skip_serializing_if = "is_not")]
    pub queue: bool,
    /// Whether its ending is owed to its session. Where it is left out, it is if the
    /// session was named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub announce: Option<bool>,
    /// Where its ending is told, as a URL of `https` or `http`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = "uri", max_length = 2048)]
    pub webhook: Option<String>,
    /// The trace that it belongs to, as W3C's `traceparent` has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 256)]
    pub traceparent: Option<String>,
    /// What its runs may reach and use.
    #[serde(skip_serializing_if = "Grant::is_empty")]
    pub grant: Grant,
    /// What the caller takes the host to work with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expects: Option<Expects>,
}

/// What runs may reach and use, as the command line writes it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Grant {
    /// Folders, `HOST[::GUEST][:ro|rw]`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub dirs: Vec<String>,
    /// Environment variables, `NAME=VALUE`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// Peers over TCP, `HOST:PORT`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub net: Vec<String>,
    /// Peers over UDP, `HOST:PORT`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub udp: Vec<String>,
    /// Servers over HTTP, by URL.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub http: Vec<String>,
    /// Special addresses that granted names may stand for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub private: Vec<String>,
    /// How much linear memory, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
    /// How much CPU time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_ms: Option<u64>,
    /// How long a run may take.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<u64>,
    /// How long a run may take to wind down.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grace_ms: Option<u64>,
    /// How large the folder that the job works in may become, in bytes; 0 for none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub work_folder: Option<u64>,
}

impl Grant {
    /// Tells whether it names anything that is outside of the sandbox.
    pub fn reaches_out(&self) -> bool {
        let Self { dirs, env, net, udp, http, private, .. } = self;
        [dirs, env, net, udp, http, private].into_iter().any(|asked| !asked.is_empty())
    }

    /// Returns what it asks more of than tasks get that nobody says anything about, where
    /// that is a limit which somebody who is not the operator could hurt others by.
    pub(crate) fn much(&self) -> Option<&'static str> {
        if self.memory.is_some_and(|bytes| bytes > MUCH_MEMORY) {
            return Some("memory than 256 MiB");
        }
        if self.work_folder.is_some_and(|bytes| bytes > MUCH_WORK_FOLDER) {
            return Some("room in a work folder than 1 GiB");
        }
        if self.grace_ms.is_some_and(|ms| ms > MUCH_GRACE_MS) {
            return Some("time to wind down than a minute");
        }
        None
    }

    /// Tells whether it grants nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// What a caller takes the host to work with: what it would use itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Expects {
    /// The plugin folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub plugins: Option<PathBuf>,
    /// The policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub policy: Option<PathBuf>,
}

/// What does a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A kind of the host.
    Kind(Kind),
    /// A component file, by its absolute path.
    File(PathBuf),
}

/// How much linear memory a task has of which nothing is said, in bytes.
const MUCH_MEMORY: u64 = 256 << 20;
/// How much a work folder takes where no policy says more, in bytes.
const MUCH_WORK_FOLDER: u64 = 1 << 30;
/// How long somebody may have a stop wait, in milliseconds.
const MUCH_GRACE_MS: u64 = 60_000;
/// The longest label that is taken, in bytes. A line of it is shown.
const LABEL: usize = 4 << 10;
/// The longest name of a session, in bytes.
pub(super) const SESSION: usize = 256;
/// The longest key, in bytes: room for a digest and a name, and little for an index.
pub(crate) const KEY: usize = 1 << 10;
/// The longest address that an ending is told at, in bytes: what servers take.
const WEBHOOK: usize = 2 << 10;
/// The longest trace, in bytes. Those of the version that there is have 55.
const TRACE: usize = 256;
/// The longest cron expression, in bytes.
const CRON: usize = 1 << 10;

impl SpawnRequest {
    /// Checks what the types cannot say.
    ///
    /// # Errors
    ///
    /// When it names nothing to do, or two things, or two times, or what it says cannot
    /// be.
    pub fn check(&self) -> Result<(), Failure> {
        self.target()?;
        self.start()?;
        at_most("label", self.label.as_deref(), LABEL)?;
        self.session.as_deref().map(check_session).transpose()?;
        self.key.as_deref().map(|key| check_key("key", key)).transpose()?;
        at_most("cron", self.cron.as_deref(), CRON)?;
        if self.attempts == Some(0) {
            return Err(Failure::invalid("`attempts` is 0, and the first one counts"));
        }
        if let Some(policy) = self.retry_policy() {
            policy.check()?;
        }
        self.webhook.as_deref().map(check_webhook).transpose()?;
        at_most("traceparent", self.traceparent.as_deref(), TRACE)?;
        if let Some(Err(error)) = self.traceparent.as_deref().map(str::parse::<TraceParent>) {
            return Err(Failure::invalid(format!("`traceparent`: {error}")));
        }
        Ok(())
    }

    /// Returns what does the job.
    ///
    /// # Errors
    ///
    /// When it names none or two, or one that cannot be.
    pub fn target(&self) -> Result<Target, Failure> {
        match (&self.kind, &self.file) {
            (Some(kind), None) => match Kind::new(kind) {
                Ok(kind) => Ok(Target::Kind(kind)),
                Err(error) => Err(Failure::invalid(format!("`kind`: {error}"))),
            },
            (None, Some(file)) => absolute("file", file).map(|()| Target::File(file.clone())),
            (None, None) => Err(Failure::invalid("what is to run? Give `kind` or `file`")),
            (Some(_), Some(_)) => {
                Err(Failure::invalid("`kind` and `file` are both given, and one runs"))
            }
        }
    }

    /// Returns when it is to start.
    ///
    /// # Errors
    ///
    /// When it names two times.
    pub fn start(&self) -> Result<StartAt, Failure> {
        match (self.after_ms, self.at_ms, &self.cron) {
            (None, None, None) => Ok(StartAt::Now),
            (Some(ms), None, None) => Ok(StartAt::After(ms)),
            (None, Some(ms), None) => Ok(StartAt::At(ms)),
            (None, None, Some(cron)) => Ok(StartAt::Cron(cron.clone())),
            _ => Err(Failure::invalid("of `after_ms`, `at_ms` and `cron`, one can be given")),
        }
    }

    /// Returns what is tried again without being asked.
    pub fn retry_policy(&self) -> Option<RetryPolicy> {
        self.retry.as_ref().map(RetryView::policy)
    }

    /// Returns whether its ending is owed to its session. Where nothing is said of that,
    /// it is if the session was named: whoever does that looks after it.
    pub fn is_announced(&self) -> bool {
        self.announce.unwrap_or(self.session.is_some())
    }
}

/// Checks a key under which something is done once.
pub(crate) fn check_key(field: &str, key: &str) -> Result<(), Failure> {
    at_most(field, Some(key), KEY)?;
    match key.is_empty() {
        true => Err(Failure::invalid(format!("`{field}` is empty"))),
        false => Ok(()),
    }
}

/// Refuses what no ending can be told at. Whether it may be is decided when it is.
fn check_webhook(webhook: &str) -> Result<(), Failure> {
    at_most("webhook", Some(webhook), WEBHOOK)?;
    let bad = |why: &str| Failure::invalid(format!("`webhook` {why}"));
    // A reader of addresses drops what is behind it.
    if webhook.contains('#') {
        return Err(bad("has a fragment, which no server is told"));
    }
    let address: Uri = webhook.parse().map_err(|_| bad("is no URL"))?;
    if !matches!(address.scheme_str(), Some("https" | "http")) {
        return Err(bad("is no URL of `https` or `http`"));
    }
    match address.authority() {
        Some(at) if at.as_str().contains('@') => Err(bad("names a user, who would be recorded")),
        Some(at) if !at.host().is_empty() => Ok(()),
        _ => Err(bad("names no server")),
    }
}

/// Refuses a path that means something else to the host than to who asks.
pub(super) fn absolute(field: &str, path: &Path) -> Result<(), Failure> {
    match path.is_absolute() {
        true => Ok(()),
        false => Err(Failure::invalid(format!("`{field}` is {path:?}, which is not absolute"))),
    }
}

fn is_not(value: &bool) -> bool {
    !value
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::tests::check;

    fn asked(json: &str) -> SpawnRequest {
        serde_json::from_str(json).unwrap()
    }

    fn refused(json: &str) -> String {
        asked(json).check().unwrap_err().message
    }

    #[test]
    fn little_is_asked_for_in_few_words() {
        let request = SpawnRequest { kind: Some("grep".into()), ..SpawnRequest::default() };
        check(&request, "{\n  \"kind\": \"grep\"\n}");
        request.check().unwrap();
        assert_eq!(request.target(), Ok(Target::Kind(Kind::new("grep").unwrap())));
        assert_eq!(request.start(), Ok(StartAt::Now));
        assert!(!request.is_announced());
        assert!(asked(r#"{"session":"chat"}"#).is_announced());
        assert!(!asked(r#"{"session":"chat","announce":false}"#).is_announced());
    }

    #[test]
    fn everything_can_be_asked_for() {
        let lines = |text: &str| vec![text.to_owned()];
        let request = SpawnRequest {
            kind: None,
            file: Some("/tools/x.wasm".into()),
            input: Some("stdin".into()),
            args: lines("--verbose"),
            label: Some("a label".into()),
            session: Some("chat".into()),
            key: Some("once".into()),
            attempts: Some(2),
            retry: Some(RetryView::default()),
            pin: true,
            after_ms: None,
            at_ms: Some(5),
            cron: None,
            queue: true,
            announce: Some(false),
            webhook: Some("https://example.com/ended".into()),
            traceparent: Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".into()),
            grant: Grant {
                dirs: lines("/srv::/src:ro"),
                env: lines("A=b"),
                net: lines("example.com:80"),
                udp: lines("1.1.1.1:53"),
                http: lines("https://example.com"),
                private: lines("10.0.0.0/8"),
                memory: Some(1 << 20),
                cpu_ms: Some(1),
                deadline_ms: Some(2),
                grace_ms: Some(3),
                work_folder: Some(1_048_576),
            },
            expects: Some(Expects {
                plugins: Some("/plugins".into()),
                policy: Some("/policy.toml".into()),
            }),
        };
        check(
            &request,
            r#"
{
  "file": "/tools/x.wasm",
  "input": "stdin",
  "args": [
    "--verbose"
  ],
  "label": "a label",
  "session": "chat",
  "key": "once",
  "attempts": 2,
  "retry": {
    "on": [
      "work",
      "launch"
    ],
    "first_ms": 1000,
    "factor": 2.0,
    "max_ms": 300000,
    "jitter": 0.2
  },
  "pin": true,
  "at_ms": 5,
  "queue": true,
  "announce": false,
  "webhook": "https://example.com/ended",
  "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
  "grant": {
    "dirs": [
      "/srv::/src:ro"
    ],
    "env": [
      "A=b"
    ],
    "net": [
      "example.com:80"
    ],
    "udp": [
      "1.1.1.1:53"
    ],
    "http": [
      "https://example.com"
    ],
    "private": [
      "10.0.0.0/8"
    ],
    "memory": 1048576,
    "cpu_ms": 1,
    "deadline_ms": 2,
    "grace_ms": 3,
    "work_folder": 1048576
  },
  "expects": {
    "plugins": "/plugins",
    "policy": "/policy.toml"
  }
}"#,
        );
        request.check().unwrap();
        assert_eq!(request.target(), Ok(Target::File("/tools/x.wasm".into())));
        assert_eq!(request.start(), Ok(StartAt::At(5)));
        assert_eq!(request.retry_policy(), Some(RetryPolicy::default()));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        assert_eq!(refused("{}"), "what is to run? Give `kind` or `file`");
        assert_eq!(
            refused(r#"{"kind":"a","file":"/b"}"#),
            "`kind` and `file` are both given, and one runs"
        );
        assert!(refused(r#"{"kind":"A"}"#).starts_with("`kind`: \"A\" is not a kind"));
        assert_eq!(refused(r#"{"file":"b"}"#), "`file` is \"b\", which is not absolute");
        assert_eq!(
            refused(r#"{"kind":"a","after_ms":1,"cron":"@hourly"}"#),
            "of `after_ms`, `at_ms` and `cron`, one can be given"
        );
        assert_eq!(
            refused(r#"{"kind":"a","attempts":0}"#),
            "`attempts` is 0, and the first one counts"
        );
        assert!(refused(r#"{"kind":"a","retry":{"jitter":2}}"#).contains("`jitter`"));
        let long = "a".repeat(KEY + 1);
        assert_eq!(
            refused(&format!(r#"{{"kind":"a","key":"{long}"}}"#)),
            "`key` has 1025 bytes, and 1024 are the most"
        );
        for field in ["label", "session", "cron"] {
            let long = "a".repeat(LABEL + 1);
            refused(&format!(r#"{{"kind":"a","{field}":"{long}"}}"#));
        }
    }

    #[test]
    fn where_an_ending_is_told() {
        let told = |webhook: &str| {
            let webhook = Some(webhook.to_owned());
            let request = SpawnRequest { webhook, ..asked(r#"{"kind":"a"}"#) };
            request.check().map_err(|failure| failure.message)
        };
        for good in ["https://a.example/b?c=d", "http://127.0.0.1:80", "https://[::1]/x"] {
            told(good).unwrap();
        }
        let long = format!("https://a.example/{}", "b".repeat(WEBHOOK));
        let bad = [
            ("", "is no URL"),
            ("/b", "is no URL of"),
            ("a.example", "is no URL of"),
            ("ftp://a.example/", "is no URL of"),
            ("https://", "is no URL"),
            ("https://:80/", "names no server"),
            ("https://me:secret@a.example/", "names a user"),
            ("https://a.example/#b", "has a fragment"),
            ("https://a b/", "is no URL"),
            (&long, "has 2066 bytes"),
        ];
        for (webhook, why) in bad {
            let told = told(webhook).unwrap_err();
            assert!(told.starts_with(&format!("`webhook` {why}")), "{webhook}: {told}");
        }
    }

    #[test]
    fn which_trace_it_belongs_to() {
        let told = refused(r#"{"kind":"a","traceparent":"x"}"#);
        assert!(told.starts_with("`traceparent`: \"x\" is no traceparent"), "{told}");
        let trace = "cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-";
        let long = format!(r#"{{"kind":"a","traceparent":"{trace}{}"}}"#, "a".repeat(TRACE));
        assert!(refused(&long).starts_with("`traceparent` has "), "{}", refused(&long));
    }

    #[test]
    fn the_rest_of_a_retry_policy_is_as_usual() {
        let policy = asked(r#"{"retry":{"on":["interrupted"],"first_ms":5}}"#).retry_policy();
        let usual = RetryPolicy::default();
        let on = vec![backlot_jobs::Failure::Interrupted];
        assert_eq!(policy, Some(RetryPolicy { on, first_ms: 5, ..usual }));
    }

    #[test]
    fn when_it_starts() {
        assert_eq!(asked(r#"{"after_ms":1}"#).start(), Ok(StartAt::After(1)));
        assert_eq!(asked(r#"{"cron":"@hourly"}"#).start(), Ok(StartAt::Cron("@hourly".into())));
    }
}
