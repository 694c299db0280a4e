//! The keys of a section: read the same way for a kind, for the defaults and,
//! where they mean the same, for a manifest.

use std::{
    collections::{HashMap, HashSet},
    path::{Component, Path, PathBuf},
    time::Duration,
};

use crate::{
    limits::{Bytes, MEMORY},
    policy::{
        document::{List, Reader, Said, Value},
        grant::{Clocks, DirGrant, Egress, Lookup, Random},
        limit::{Each, Limit, Unit, nanoseconds},
        net::{Origin, Peer, Range, Scheme},
    },
};

/// How many secrets a kind may have, and how many servers one may go to.
const SECRETS: usize = 64;

/// What one section of a policy says: `[defaults]`, or that of a kind.
#[derive(Debug, Default)]
pub(super) struct Section {
    /// What it is called in the file: `[kind.fetch]`.
    pub(super) name: String,
    /// The line that it begins at.
    pub(super) line: usize,
    pub(super) dirs: List<DirGrant>,
    pub(super) env: List<EnvRule>,
    pub(super) common: Common,
    pub(super) private: List<Range>,
    pub(super) random: Option<Said<Random>>,
    pub(super) secrets: List<SecretRule>,
    pub(super) tasks: Option<Said<usize>>,
    pub(super) stop: Option<Said<StopRule>>,
    pub(super) digest: List<String>,
}

/// What sections and manifests say alike.
#[derive(Debug, Default)]
pub(super) struct Common {
    pub(super) tcp: List<Peer>,
    pub(super) udp: List<Peer>,
    pub(super) http: List<Origin>,
    pub(super) lookup: Option<Said<Lookup>>,
    pub(super) clocks: Option<Said<Clocks>>,
    pub(super) egress: Option<Said<Egress>>,
    pub(super) limits: Each<Said<u64>>,
}

/// A variable that may be seen.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct EnvRule {
    pub(super) name: String,
    /// What it has to be; the host's own where nothing is said.
    pub(super) value: Option<String>,
}

impl std::fmt::Debug for EnvRule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EnvRule").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Where a secret may stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SecretRule {
    pub(super) name: String,
    pub(super) variable: String,
    pub(super) header: String,
    pub(super) to: Vec<Said<Origin>>,
}

/// The bounds of the stop ladder, as far as they are said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct StopRule {
    pub(super) ask: Option<Duration>,
    pub(super) grace: Option<Duration>,
}

/// The keys of [`Common`] but for the limits.
pub(super) const COMMON: [&str; 6] = ["tcp", "udp", "http", "lookup", "clocks", "egress"];
/// The keys that only sections have.
const OWN: [&str; 8] = ["dirs", "env", "private", "random", "secrets", "tasks", "stop", "digest"];

impl Common {
    /// Reads the key, if it is one of these.
    pub(super) fn read(&mut self, reader: &mut Reader, key: &str, value: &Value<'_>) -> bool {
        let line = reader.line_of(value);
        match key {
            "tcp" => self.tcp = reader.parsed(key, value),
            "udp" => self.udp = reader.parsed(key, value),
            "http" => self.http = reader.parsed(key, value),
            "lookup" => {
                let read = |text: &str| match text {
                    "none" => Ok(Lookup::None),
                    "listed" => Ok(Lookup::Listed),
                    "any" => Ok(Lookup::Any),
                    _ => Err(format!("`{text}` is none of \"none\", \"listed\" and \"any\"")),
                };
                self.lookup = reader.read(key, value, read).map(|value| Said { value, line });
            }
            "clocks" => {
                let read = |text: &str| match text {
                    "precise" => Ok(Clocks::Precise),
                    "coarse" => Ok(Clocks::Coarse),
                    "hidden" => Ok(Clocks::Hidden),
                    _ => Err(format!("`{text}` is none of \"precise\", \"coarse\" and \"hidden\"")),
                };
                self.clocks = reader.read(key, value, read).map(|value| Said { value, line });
            }
            "egress" => self.egress = egress(reader, value).map(|value| Said { value, line }),
            _ => match Limit::of_key(key) {
                Some(limit) => {
                    let read = read_limit(reader, limit, value);
                    self.limits[limit.at()] = read.map(|value| Said { value, line });
                }
                None => return false,
            },
        }
        true
    }
}

/// Returns the keys that a section of a policy has.
pub(super) fn keys() -> Vec<&'static str> {
    OWN.into_iter().chain(COMMON).chain(Limit::ALL.map(Limit::key)).collect()
}

impl Section {
    /// Reads a section of a policy whose folder that is.
    pub(super) fn read(
        reader: &mut Reader,
        name: String,
        line: usize,
        value: &Value<'_>,
        folder: &Path,
    ) -> Self {
        let mut section = Self { line, ..Self::default() };
        if let Some(table) = reader.table(&name, value) {
            for (key, value) in table {
                section.key(reader, &name, key.span(), key.get_ref(), value, folder);
            }
        }
        section.name = name;
        section
    }

    fn key(
        &mut self,
        reader: &mut Reader,
        name: &str,
        span: std::ops::Range<usize>,
        key: &str,
        value: &Value<'_>,
        folder: &Path,
    ) {
        let line = reader.line_of(value);
        match key {
            "dirs" => {
                self.dirs = reader.list(key, value, |reader, value| {
                    let mut dir: DirGrant = reader.parse(key, value)?;
                    dir.host = lexical(&folder.join(&dir.host));
                    Some(dir)
                });
                twice(reader, &self.dirs, |dir| {
                    (dir.guest.as_str(), format!("two folders are granted as `{}`", dir.guest))
                });
            }
            "env" => {
                self.env =
                    reader.list(key, value, |reader, value| reader.read(key, value, env_rule));
                twice(reader, &self.env, |env| {
                    (env.name.as_str(), format!("the variable `{}` is granted twice", env.name))
                });
            }
            "private" => {
                self.private = reader.parsed(key, value);
                for range in self.private.iter().flat_map(|list| &list.value) {
                    if !range.value.has_special() {
                        let what = format!(
                            "private: {} has no special-purpose address, and others need no such grant",
                            range.value
                        );
                        reader.wrong(range.line, what);
                    }
                }
            }
            "random" => self.random = random(reader, value).map(|value| Said { value, line }),
            "secrets" => {
                self.secrets = reader.list(key, value, secret);
                if self.secrets.as_ref().is_some_and(|list| list.value.len() > SECRETS) {
                    reader.wrong(line, format!("secrets has more than {SECRETS} entries"));
                    self.secrets = None;
                }
                twice(reader, &self.secrets, |secret| {
                    let variable = secret.variable.as_str();
                    (variable, format!("the variable `{variable}` stands for two secrets"))
                });
            }
            "tasks" => self.tasks = tasks(reader, key, value).map(|value| Said { value, line }),
            "stop" => self.stop = stop(reader, value).map(|value| Said { value, line }),
            "digest" => {
                self.digest =
                    reader.list(key, value, |reader, value| reader.read(key, value, digest));
                if self.digest.as_ref().is_some_and(|list| list.value.is_empty())
                    && reader.is_right()
                {
                    let what =
                        "digest lists none, so nothing could be loaded; leave it out to load any";
                    reader.wrong(line, what);
                }
            }
            _ if self.common.read(reader, key, value) => {}
            _ => reader.unknown(span, key, name, &keys()),
        }
    }
}

/// Tells of entries that are there twice.
pub(super) fn twice<'l, T>(
    reader: &mut Reader,
    list: &'l List<T>,
    name: impl Fn(&'l T) -> (&'l str, String),
) {
    let mut first = HashMap::new();
    for entry in list.iter().flat_map(|list| &list.value) {
        let (key, what) = name(&entry.value);
        match first.get(key) {
            Some(first) => {
                reader.wrong(entry.line, format!("{what}; the first is in line {first}"));
            }
            None => {
                first.insert(key, entry.line);
            }
        }
    }
}

/// Returns the absolute path without `.`, `..` and doubled slashes, told from its
/// text alone.
pub(super) fn lexical(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                // Above the root there is the root.
                plain.pop();
            }
            part => plain.push(part),
        }
    }
    plain
}

fn env_rule(text: &str) -> Result<EnvRule, String> {
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, Some(value.to_owned())),
        None => (text, None),
    };
    // Neither is repeated: any part can be a secret.
    match () {
        () if name.is_empty() => Err("a variable has no name; write NAME or NAME=VALUE".to_owned()),
        () if text.contains('\0') => Err("variables have no NUL".to_owned()),
        () => Ok(EnvRule { name: name.to_owned(), value }),
    }
}

/// Reads the name of a variable.
pub(super) fn variable(text: &str) -> Result<String, String> {
    match text {
        "" => Err("a variable has no name".to_owned()),
        _ if text.contains(['=', '\0']) => {
            Err("a variable's name has no `=` and no NUL; write NAME".to_owned())
        }
        _ => Ok(text.to_owned()),
    }
}

/// Reads the name of a secret.
pub(super) fn secret_name(text: &str) -> Result<String, String> {
    let is_name = !text.is_empty()
        && text.len() <= 64
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'));
    match is_name {
        true => Ok(text.to_owned()),
        false => Err(format!(
            "`{text}` is no name of a secret; use letters, digits, `-` and `_`, at most 64"
        )),
    }
}

fn header(text: &str) -> Result<String, String> {
    let is_token = !text.is_empty()
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b));
    let lower = text.to_ascii_lowercase();
    match lower.as_str() {
        _ if !is_token => Err(format!("`{text}` is no name of a header")),
        // Those say where a request goes and where it ends.
        "host" | "content-length" | "transfer-encoding" | "connection" => {
            Err(format!("a secret cannot stand in the header `{text}`"))
        }
        _ => Ok(lower),
    }
}

fn digest(text: &str) -> Result<String, String> {
    let digits = text.strip_prefix("sha256:").unwrap_or_default();
    match digits.len() == 64 && digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        true => Ok(text.to_ascii_lowercase()),
        false => Err(format!(
            "`{text}` is no digest; write sha256: and 64 hexadecimal digits, as `backlot check` \
             prints them"
        )),
    }
}

fn random(reader: &mut Reader, value: &Value<'_>) -> Option<Random> {
    match value.get_ref().as_str() {
        Some("system") => Some(Random::System),
        Some(_) => {
            reader.wrong(reader.line_of(value), "random is \"system\", or a number, the seed");
            None
        }
        None => reader.number("random", value).map(Random::Seeded),
    }
}

fn egress(reader: &mut Reader, value: &Value<'_>) -> Option<Egress> {
    let mut egress = Egress::default();
    for (key, value) in reader.table("egress", value)? {
        match key.get_ref().as_ref() {
            "bytes" => egress.bytes = reader.size("egress.bytes", value),
            "requests" => egress.requests = reader.number("egress.requests", value),
            other => reader.unknown(key.span(), other, "egress", &["bytes", "requests"]),
        }
    }
    Some(egress)
}

fn stop(reader: &mut Reader, value: &Value<'_>) -> Option<StopRule> {
    let mut stop = StopRule::default();
    for (key, value) in reader.table("stop", value)? {
        match key.get_ref().as_ref() {
            "ask" => stop.ask = reader.duration("stop.ask", value),
            "grace" => stop.grace = reader.duration("stop.grace", value),
            other => reader.unknown(key.span(), other, "stop", &["ask", "grace"]),
        }
    }
    Some(stop)
}

/// Reads how many tasks there may be.
pub(super) fn tasks(reader: &mut Reader, key: &str, value: &Value<'_>) -> Option<usize> {
    match usize::try_from(reader.number(key, value)?).ok()? {
        0 => {
            reader.wrong(
                reader.line_of(value),
                format!("{key} is 0, so nothing could be started; the least is 1"),
            );
            None
        }
        tasks => Some(tasks),
    }
}

fn read_limit(reader: &mut Reader, limit: Limit, value: &Value<'_>) -> Option<u64> {
    let key = limit.key();
    let read = match limit.unit() {
        Unit::Bytes => reader.size(key, value),
        Unit::Nanoseconds => reader.duration(key, value).map(nanoseconds),
        Unit::Things => reader.number(key, value),
    }?;
    let why = match read {
        0 if limit.is_needed() => {
            format!("{key} is 0, so no task could live; leave it out for the default")
        }
        _ if limit == Limit::Memory && read > MEMORY => {
            format!("memory is {}, and no task can have more than {}", Bytes(read), Bytes(MEMORY))
        }
        _ => return Some(read),
    };
    reader.wrong(reader.line_of(value), why);
    None
}

fn secret(reader: &mut Reader, value: &Value<'_>) -> Option<SecretRule> {
    const KEYS: [&str; 4] = ["name", "variable", "header", "to"];
    let line = reader.line_of(value);
    let (mut name, mut var, mut head, mut to) = (None, None, None, None);
    let mut missing: HashSet<&str> = KEYS.into_iter().collect();
    for (key, value) in reader.table("secrets", value)? {
        missing.remove(key.get_ref().as_ref());
        match key.get_ref().as_ref() {
            key @ "name" => name = reader.read(key, value, secret_name),
            key @ "variable" => var = reader.read(key, value, variable),
            key @ "header" => head = reader.read(key, value, header),
            key @ "to" => to = reader.parsed::<Origin>(key, value),
            other => reader.unknown(key.span(), other, "a secret of a kind", &KEYS),
        }
    }
    for key in KEYS.into_iter().filter(|key| missing.contains(key)) {
        reader.wrong(line, format!("a secret of a kind needs the key `{key}`"));
    }
    let to = to?;
    let many = to.value.len() > SECRETS;
    if to.value.is_empty() || many {
        let why = match many {
            true => format!("to has more than {SECRETS} entries"),
            false => "to lists no server, so the secret could go nowhere".to_owned(),
        };
        reader.wrong(to.line, why);
        return None;
    }
    for origin in &to.value {
        if origin.value.scheme == Scheme::Http && !origin.value.host.is_loopback() {
            let what = format!(
                "to: {} would carry the secret in the clear; only servers of this machine may be \
                 spoken to so",
                origin.value
            );
            reader.wrong(origin.line, what);
        }
    }
    Some(SecretRule { name: name?, variable: var?, header: head?, to: to.value })
}
