//! What a plugin asks for: the file beside its component.

use std::sync::Arc;

use crate::policy::{
    decide::Ask,
    document::{List, PolicyError, Reader},
    grant::{Access, Lookup},
    limit::Limit,
    section::{self, COMMON, Common, twice},
};

/// The largest manifest that is read, in bytes. It comes with the plugin, from
/// whoever wrote that.
const MANIFEST_BYTES: usize = 64 << 10;

/// What a plugin asks for. Cheap to clone.
///
/// A key that is missing asks for nothing of that sort; without `lookup`, `clocks`,
/// `egress` and limits, what is the default for everybody is asked for. Without
/// `work-folder` that is none, unless the start asks for one.
#[derive(Clone, Debug)]
pub struct Manifest(pub(super) Arc<Asks>);

impl PartialEq for Manifest {
    /// Tells whether both were read from the same text.
    fn eq(&self, other: &Self) -> bool {
        self.0.text == other.0.text
    }
}

/// Tells whether a list names anything.
fn asks<T>(list: &List<T>) -> bool {
    list.as_ref().is_some_and(|list| !list.value.is_empty())
}

#[derive(Debug)]
pub(super) struct Asks {
    text: Box<str>,
    pub(super) source: Arc<str>,
    pub(super) dirs: List<DirAsk>,
    pub(super) env: List<String>,
    pub(super) common: Common,
    pub(super) secrets: List<String>,
}

/// A folder that is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DirAsk {
    /// The path under which the guest wants to see it; any where that is `None`.
    pub(super) guest: Option<String>,
    pub(super) access: Access,
}

impl Manifest {
    /// Reads a manifest. `source` is what its lines are called by.
    ///
    /// # Errors
    ///
    /// All that is wrong with it, each with its line.
    pub fn parse(text: &str, source: &str) -> Result<Self, PolicyError> {
        let (mut reader, table) = Reader::open(text, source, MANIFEST_BYTES)?;
        let mut asks = Asks {
            text: text.into(),
            source: reader.source(),
            dirs: None,
            env: None,
            common: Common::default(),
            secrets: None,
        };
        for (key, value) in &table {
            match key.get_ref().as_ref() {
                key @ "dirs" => {
                    asks.dirs =
                        reader.list(key, value, |reader, value| reader.read(key, value, dir));
                    twice(&mut reader, &asks.dirs, |dir| {
                        let guest = dir.guest.as_deref().unwrap_or("*");
                        (guest, format!("the folder `{guest}` is asked for twice"))
                    });
                }
                key @ "env" => {
                    asks.env = reader.list(key, value, |reader, value| {
                        reader.read(key, value, section::variable)
                    });
                    twice(&mut reader, &asks.env, |name| {
                        (name.as_str(), format!("the variable `{name}` is asked for twice"))
                    });
                }
                key @ "secrets" => {
                    asks.secrets = reader.list(key, value, |reader, value| {
                        reader.read(key, value, section::secret_name)
                    });
                    twice(&mut reader, &asks.secrets, |name| {
                        (name.as_str(), format!("the secret `{name}` is asked for twice"))
                    });
                }
                key @ ("private" | "random" | "tasks" | "stop" | "digest") => {
                    let what = format!("{key} is for the operator's policy, not for a manifest");
                    reader.wrong(reader.line(value.span().start), what);
                }
                key if asks.common.read(&mut reader, key, value) => {}
                other => reader.unknown(key.span(), other, "a manifest", &keys()),
            }
        }
        asks.tell_of_names(&mut reader);
        match reader.is_right() {
            true => Ok(Self(Arc::new(asks))),
            false => Err(reader.error()),
        }
    }

    /// Returns what is asked for, without the sorts that the manifest asks nothing of: for
    /// a start that several kinds share what it asks for.
    pub(super) fn narrow(&self, ask: Ask) -> Ask {
        let Asks { dirs, env, common, secrets, .. } = &*self.0;
        Ask {
            dirs: ask.dirs.filter(|_| asks(dirs)),
            env: ask.env.filter(|_| asks(env)),
            tcp: ask.tcp.filter(|_| asks(&common.tcp)),
            udp: ask.udp.filter(|_| asks(&common.udp)),
            http: ask.http.filter(|_| asks(&common.http)),
            private: ask
                .private
                .filter(|_| asks(&common.tcp) || asks(&common.udp) || asks(&common.http)),
            secrets: ask.secrets.filter(|_| asks(secrets)),
            ..ask
        }
    }

    /// Returns what was read.
    pub fn text(&self) -> &str {
        &self.0.text
    }

    /// Returns the name of the file.
    pub fn source(&self) -> &str {
        &self.0.source
    }
}

impl Asks {
    fn tell_of_names(&self, reader: &mut Reader) {
        let Some(none) = self.common.lookup.as_ref().filter(|it| it.value == Lookup::None) else {
            return;
        };
        for (key, list) in [("tcp", &self.common.tcp), ("udp", &self.common.udp)] {
            let entries = list.iter().flat_map(|list| &list.value);
            if let Some(peer) = entries.into_iter().find(|peer| peer.value.host.is_names()) {
                let what = format!(
                    "lookup is \"none\", and {key} lists {} in line {}, a name that could not be \
                     looked up",
                    peer.value, peer.line
                );
                reader.wrong(none.line, what);
            }
        }
    }

    /// Returns where a key stands: `fetch.toml:3 (tcp)`.
    pub(super) fn at(&self, line: usize, key: &str) -> String {
        format!("{}:{line} ({key})", self.source)
    }

    /// Returns why the plugin does not ask for an entry of a list, and what would
    /// have it ask. The entry is written as it would stand there.
    pub(super) fn lacks<T>(
        &self,
        list: &List<T>,
        key: &str,
        shown: &str,
        written: &str,
    ) -> (String, String) {
        match list {
            Some(list) => (
                format!("{} does not list {shown}", self.at(list.line, key)),
                format!("add {written} there"),
            ),
            None => (
                format!("{} asks for no {key}", self.source),
                format!("add {key} = [{written}] to it"),
            ),
        }
    }

    /// Returns what of a folder the plugin asks for under that path.
    pub(super) fn dir(&self, guest: &str) -> Option<Access> {
        let dirs = self.dirs.iter().flat_map(|list| &list.value);
        let asks = dirs.filter(|dir| dir.value.guest.as_deref().is_none_or(|path| path == guest));
        asks.map(|dir| dir.value.access).max()
    }
}

fn keys() -> Vec<&'static str> {
    ["dirs", "env", "secrets"].into_iter().chain(COMMON).chain(Limit::ALL.map(Limit::key)).collect()
}

fn dir(text: &str) -> Result<DirAsk, String> {
    let (path, access) = match text.rsplit_once(':') {
        Some((path, "ro")) => (path, Access::ReadOnly),
        Some((path, "rw")) => (path, Access::ReadWrite),
        _ => (text, Access::ReadOnly),
    };
    let guest = match path.trim_end_matches('/') {
        _ if path.contains("::") || path.contains('\0') => "",
        "" if path.starts_with('/') => "/",
        trimmed => trimmed,
    };
    match guest {
        "" => Err(format!(
            "`{text}` is no folder that a plugin can ask for; write the path under which it sees \
             it, or * for any, and :ro or :rw"
        )),
        "*" => Ok(DirAsk { guest: None, access }),
        guest => Ok(DirAsk { guest: Some(guest.to_owned()), access }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(text: &str) -> Vec<String> {
        match Manifest::parse(text, "m.toml") {
            Ok(_) => Vec::new(),
            Err(error) => error.to_string().lines().map(str::to_owned).collect(),
        }
    }

    #[test]
    fn every_key_is_read() {
        let text = r#"
            dirs = ["/in", "/out/:rw", "*:ro"]
            env = ["LANG"]
            tcp = ["db.example.com:5432"]
            udp = ["1.1.1.1:53"]
            http = ["https://api.example.com"]
            lookup = "any"
            clocks = "coarse"
            egress = { bytes = "1MiB" }
            secrets = ["github"]
            memory = "64MiB"
            deadline = "1m"
            work-folder = "256MiB"
        "#;
        let manifest = Manifest::parse(text, "m.toml").unwrap();
        let asks = &manifest.0;
        assert_eq!(asks.dir("/out"), Some(Access::ReadWrite));
        assert_eq!(asks.dir("/elsewhere"), Some(Access::ReadOnly));
        assert_eq!(asks.common.limits[Limit::Memory.at()].as_ref().map(|it| it.line), Some(11));
        let narrow = Manifest::parse("dirs = ['/in']", "m.toml").unwrap();
        assert_eq!((narrow.0.dir("/in"), narrow.0.dir("/in/x")), (Some(Access::ReadOnly), None));
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        for (text, wanted) in [
            ("\ndir = []", "2: a manifest has no key `dir`; did you mean `dirs`?"),
            ("kind = 1", "1: a manifest has no key `kind`; it has dirs, env, secrets, tcp"),
            ("private = []", "1: private is for the operator's policy, not for a manifest"),
            ("stop = {}", "1: stop is for the operator's policy, not for a manifest"),
            (
                "dirs = [\"/host::/in\"]",
                "1: dirs: `/host::/in` is no folder that a plugin can ask for",
            ),
            ("dirs = [\":ro\"]", "1: dirs: `:ro` is no folder that a plugin can ask for"),
            (
                "dirs = [\"/a\",\n\"/a/:rw\"]",
                "2: the folder `/a` is asked for twice; the first is in line 1",
            ),
            (
                "dirs = [\"*\",\"*:rw\"]",
                "1: the folder `*` is asked for twice; the first is in line 1",
            ),
            ("env = [\"A=1\"]", "1: env: a variable's name has no `=` and no NUL; write NAME"),
            (
                "env = [\"A\",\"A\"]",
                "1: the variable `A` is asked for twice; the first is in line 1",
            ),
            (
                "secrets = [\"a\",\"a\"]",
                "1: the secret `a` is asked for twice; the first is in line 1",
            ),
            ("secrets = [{}]", "1: secrets is a table, wanted a text"),
            (
                "lookup = \"none\"\ntcp = [\"a:1\"]",
                "1: lookup is \"none\", and tcp lists a:1 in line 2",
            ),
            ("memory = \"5GiB\"", "1: memory is 5 GiB, and no task can have more than 4 GiB"),
        ] {
            let told = told(text);
            assert_eq!(told.len(), 1, "{text}\n{told:#?}");
            assert!(told[0].starts_with(&format!("m.toml:{wanted}")), "{text}\n{}", told[0]);
        }
        assert_eq!(told(&"#".repeat(MANIFEST_BYTES + 1)).len(), 1);
        assert_eq!(told(""), [""; 0]);
    }
}
