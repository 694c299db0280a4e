//! The operator's policy: a file that says what tasks may reach, by kind.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use backlot_registry::Kind;

use crate::policy::{
    contradictions,
    document::{PolicyError, Reader, Said, Value},
    rules::Rules,
    section::{self, Section, lexical},
};

/// The largest policy that is read, in bytes. One with a section for each of a
/// thousand kinds is smaller.
const POLICY_BYTES: usize = 1 << 20;
/// How many kinds a policy may have sections for.
const KINDS: usize = 1000;
/// The tables of a policy.
const KEYS: [&str; 4] = ["host", "defaults", "kind", "secret"];

/// What the operator of a host lets tasks reach and use. Cheap to clone.
///
/// The default is no policy: whoever starts a task is its operator.
#[derive(Clone, Debug, Default)]
pub struct Policy(pub(super) Option<Arc<File>>);

/// What a policy file says.
#[derive(Debug)]
pub(super) struct File {
    pub(super) source: Arc<str>,
    pub(super) tasks: Option<Said<usize>>,
    pub(super) tasks_per_owner: Option<Said<usize>>,
    pub(super) defaults: Option<Arc<Section>>,
    pub(super) kinds: BTreeMap<Kind, Arc<Section>>,
    pub(super) secrets: BTreeMap<String, Said<SecretSource>>,
}

/// Where the value of a secret is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretSource {
    /// In an environment variable of the host.
    Env(String),
    /// In a file, less the line break at its end.
    File(PathBuf),
}

impl Policy {
    /// The tables of the same file that are about the host and not about what tasks get.
    /// They are left to whoever sets it up: a file that has them alone is no policy.
    pub const OTHERS: [&str; 4] = ["serve", "mcp", "webhooks", "telemetry"];

    /// Reads a policy. `source` is what its lines are called by, and `folder`, an
    /// absolute path, what its paths are relative to.
    ///
    /// # Errors
    ///
    /// All that is wrong with it, each with its line.
    pub fn parse(text: &str, source: &str, folder: &Path) -> Result<Self, PolicyError> {
        let (mut reader, table) = Reader::open(text, source, POLICY_BYTES)?;
        let mut file = File {
            source: reader.source(),
            tasks: None,
            tasks_per_owner: None,
            defaults: None,
            kinds: BTreeMap::new(),
            secrets: BTreeMap::new(),
        };
        let is_other = |key: &str| Self::OTHERS.contains(&key);
        let has_others_alone =
            !table.is_empty() && table.iter().all(|(key, _)| is_other(key.get_ref()));
        for (key, value) in &table {
            let line = reader.line_of(key);
            match key.get_ref().as_ref() {
                "host" => file.host(&mut reader, value),
                name @ "defaults" => {
                    let name = format!("[{name}]");
                    let section = Section::read(&mut reader, name, line, value, folder);
                    file.defaults = Some(Arc::new(section));
                }
                "kind" => file.kinds(&mut reader, value, folder),
                "secret" => file.secrets(&mut reader, value, folder),
                other if is_other(other) => {}
                other => {
                    let known: Vec<&str> = KEYS.into_iter().chain(Self::OTHERS).collect();
                    reader.unknown(key.span(), other, "a policy", &known);
                }
            }
        }
        contradictions::tell(&file, &mut reader);
        match reader.is_right() {
            true if has_others_alone => Ok(Self::default()),
            true => Ok(Self(Some(Arc::new(file)))),
            false => Err(reader.error()),
        }
    }

    /// Tells whether there is a policy at all.
    pub fn is_some(&self) -> bool {
        self.0.is_some()
    }

    /// Returns what the policy says of tasks of that kind.
    pub fn rules(&self, kind: &Kind) -> Rules {
        Rules::of(self, kind)
    }

    /// Returns the kinds that it has sections for, in order.
    pub fn kinds(&self) -> impl Iterator<Item = &Kind> {
        self.0.iter().flat_map(|file| file.kinds.keys())
    }

    /// Returns how many tasks may be live at a time.
    pub fn tasks(&self) -> Option<usize> {
        self.0.as_ref()?.tasks.as_ref().map(|tasks| tasks.value)
    }

    /// Returns how many tasks of one owner may be live at a time.
    pub fn tasks_per_owner(&self) -> Option<usize> {
        self.0.as_ref()?.tasks_per_owner.as_ref().map(|tasks| tasks.value)
    }

    /// Returns how many tasks of a kind may be live at a time, for kinds whose
    /// sections say nothing of it.
    pub fn tasks_per_kind(&self) -> Option<usize> {
        let defaults = self.0.as_ref()?.defaults.as_ref()?;
        defaults.tasks.as_ref().map(|tasks| tasks.value)
    }

    /// Returns the secrets, and where the value of each is.
    pub fn secrets(&self) -> impl Iterator<Item = (&str, &SecretSource)> {
        let secrets = self.0.iter().flat_map(|file| &file.secrets);
        secrets.map(|(name, source)| (name.as_str(), &source.value))
    }

    /// Returns the variables of the host that tasks may see; some are there more
    /// than once.
    pub fn variables(&self) -> impl Iterator<Item = &str> {
        let sections = self.0.iter().flat_map(|file| file.kinds.values().chain(&file.defaults));
        let rules = sections.flat_map(|section| &section.env).flat_map(|list| &list.value);
        rules.filter(|rule| rule.value.value.is_none()).map(|rule| rule.value.name.as_str())
    }
}

impl File {
    fn host(&mut self, reader: &mut Reader, value: &Value<'_>) {
        for (key, value) in reader.table("[host]", value).into_iter().flatten() {
            let line = reader.line_of(value);
            let mut tasks =
                |key| section::tasks(reader, key, value).map(|value| Said { value, line });
            match key.get_ref().as_ref() {
                key @ "tasks" => self.tasks = tasks(key),
                key @ "tasks-per-owner" => self.tasks_per_owner = tasks(key),
                other => reader.unknown(key.span(), other, "[host]", &["tasks", "tasks-per-owner"]),
            }
        }
    }

    fn kinds(&mut self, reader: &mut Reader, value: &Value<'_>, folder: &Path) {
        let kinds = reader.table("kind", value).into_iter().flatten();
        for (nth, (key, value)) in kinds.enumerate() {
            let line = reader.line_of(key);
            if nth == KINDS {
                reader.wrong(line, format!("there are more than {KINDS} kinds"));
                return;
            }
            let name = format!("[kind.{}]", key.get_ref());
            match Kind::new(key.get_ref()) {
                Ok(kind) => {
                    let section = Section::read(reader, name, line, value, folder);
                    self.kinds.insert(kind, Arc::new(section));
                }
                Err(error) => reader.wrong(line, error.to_string()),
            }
        }
    }

    fn secrets(&mut self, reader: &mut Reader, value: &Value<'_>, folder: &Path) {
        for (key, value) in reader.table("secret", value).into_iter().flatten() {
            let line = reader.line_of(key);
            let name = match section::secret_name(key.get_ref()) {
                Ok(name) => name,
                Err(why) => {
                    reader.wrong(line, why);
                    continue;
                }
            };
            let of = format!("[secret.{name}]");
            let Some(table) = reader.table(&of, value) else { continue };
            let (mut env, mut path) = (None, None);
            for (key, value) in table {
                match key.get_ref().as_ref() {
                    key @ "env" => env = Some(reader.read(key, value, section::variable)),
                    key @ "file" => path = Some(reader.read(key, value, file_path)),
                    other => reader.unknown(key.span(), other, &of, &["env", "file"]),
                }
            }
            let source = match (env, path) {
                (Some(env), None) => env.map(SecretSource::Env),
                (None, Some(path)) => {
                    path.map(|path| SecretSource::File(lexical(&folder.join(path))))
                }
                (Some(_), Some(_)) => {
                    reader
                        .wrong(line, format!("{of} has two sources; keep one of `env` and `file`"));
                    None
                }
                (None, None) => {
                    reader.wrong(line, format!("{of} has no source; give it `env` or `file`"));
                    None
                }
            };
            // One that is wrong is defined all the same.
            let source = source.unwrap_or(SecretSource::Env(String::new()));
            self.secrets.insert(name, Said { value: source, line });
        }
    }
}

fn file_path(text: &str) -> Result<PathBuf, String> {
    match text.is_empty() || text.contains('\0') {
        true => Err("this is no path of a file".to_owned()),
        false => Ok(text.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(text: &str) -> Vec<String> {
        match Policy::parse(text, "p.toml", Path::new("/etc/b")) {
            Ok(_) => Vec::new(),
            Err(error) => error.to_string().lines().map(str::to_owned).collect(),
        }
    }

    /// The policy of the documentation.
    const WHOLE: &str = r#"
[host]
tasks = 1000
tasks-per-owner = 100

[defaults]
memory = "256MiB"

[kind.fetch]
dirs = ["./data::/in:ro", "/var/out::/out:rw"]
env = ["LANG", "MODE=fast"]
tcp = ["db.example.com:5432", "10.0.0.0/8:5432"]
udp = ["1.1.1.1:53"]
http = ["https://api.example.com", "http://localhost:8080", "https://api.github.com"]
private = ["127.0.0.0/8"]
lookup = "listed"
clocks = "precise"
random = "system"
egress = { bytes = "10MiB", requests = 100 }
secrets = [
    { name = "github", variable = "GITHUB_TOKEN", header = "Authorization", to = ["https://api.github.com"] },
    { name = "local", variable = "LOCAL", header = "x-key", to = ["http://localhost:8080"] },
]
memory = "64MiB"
table-elements = 1000
deadline = "1m"
cpu = "10s"
final-output = "1MiB"
input = 65536
host-call = "1MiB"
open-files = 16
host-objects = 64
work-folder = "16MiB"
tasks = 10
stop = { ask = "1s", grace = "5s" }
digest = ["sha256:AAaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"]

[secret.github]
env = "GITHUB_TOKEN"

[secret.local]
file = "local.key"
"#;

    #[test]
    fn every_key_is_read() {
        let policy = Policy::parse(WHOLE, "p.toml", Path::new("/etc/b")).unwrap();
        assert_eq!((policy.tasks(), policy.tasks_per_owner()), (Some(1000), Some(100)));
        assert_eq!(policy.kinds().map(Kind::as_str).collect::<Vec<_>>(), ["fetch"]);
        assert_eq!(policy.variables().collect::<Vec<_>>(), ["LANG"]);
        let secrets: Vec<_> = policy.secrets().collect();
        let file = SecretSource::File("/etc/b/local.key".into());
        let env = SecretSource::Env("GITHUB_TOKEN".into());
        assert_eq!(secrets, [("github", &env), ("local", &file)]);
        let rules = policy.rules(&"fetch".parse().unwrap());
        assert_eq!(rules.tasks(), Some(10));
        let section = rules.merged.own.as_ref().unwrap();
        let dirs = &section.dirs.as_ref().unwrap().value;
        assert_eq!(dirs[0].value.host, Path::new("/etc/b/data"));
        assert_eq!(section.secrets.as_ref().unwrap().value[0].value.header, "authorization");
        assert!(section.common.limits.iter().all(Option::is_some));
        assert!(rules.admits(&format!("sha256:{}", "a".repeat(64))).is_ok());
        let other = format!("sha256:{}", "b".repeat(64));
        assert_eq!(
            rules.admits(&other).unwrap_err().to_string(),
            format!(
                "{other} may not be loaded as `fetch`: p.toml:36 ([kind.fetch] digest) does not \
                 list it; add \"{other}\" there if you trust it"
            )
        );
    }

    #[test]
    fn what_is_about_the_host_alone_is_no_policy() {
        let is_policy =
            |text: &str| Policy::parse(text, "p.toml", Path::new("/")).unwrap().is_some();
        let others = "[serve]\nanything = 1\n[mcp]\n[webhooks]\n[telemetry]\n";
        assert!(!is_policy(others));
        assert!(is_policy(&format!("{others}[kind.a]\n")));
        assert!(is_policy(&format!("{others}[defaults]\n")));
        // Who writes an empty one has begun with nothing.
        assert!(is_policy(""));
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        let no_names = "private is about the addresses that names stand for, and tcp, udp and http \
                        list no name; an address is granted by listing it there";
        for (text, wanted) in [
            // Keys and types.
            ("[kinds.a]", "1: a policy has no key `kinds`; did you mean `kind`?"),
            (
                "x = 1",
                "1: a policy has no key `x`; it has host, defaults, kind, secret, serve, mcp, \
                 webhooks, telemetry",
            ),
            ("[server]", "1: a policy has no key `server`; did you mean `serve`?"),
            ("host = 1", "1: [host] is a number, wanted a table"),
            ("[host]\ntask = 1", "2: [host] has no key `task`; did you mean `tasks`?"),
            ("[kind.a]\ndris = []", "2: [kind.a] has no key `dris`; did you mean `dirs`?"),
            (
                "[kind.a]\nopen_files = 1",
                "2: [kind.a] has no key `open_files`; did you mean `open-files`?",
            ),
            ("[kind.a]\ndirs = \"/a\"", "2: dirs is a text, wanted a list"),
            ("[kind.a]\nenv = [1]", "2: env is a number, wanted a text"),
            ("[kind.a]\nenv = [\n  \"A\",\n  true]", "4: env is true or false, wanted a text"),
            ("[kind]\na = 1.5", "2: [kind.a] is a fraction, wanted a table"),
            ("[kind.a]\ntasks = -1", "2: tasks is -1, wanted a whole number that is not negative"),
            (
                "[kind.a]\nmemory = 2020-01-01",
                "2: memory is a time, wanted a size such as \"64MiB\" or 65536",
            ),
            (
                "[kind.a]\ncpu = 5",
                "2: cpu is a number, wanted a duration such as \"500ms\" or \"60s\"",
            ),
            (
                "[kind.a]\negress = { byte = 1 }",
                "2: egress has no key `byte`; did you mean `bytes`?",
            ),
            (
                "[kind.a]\nstop = { grce = \"1s\" }",
                "2: stop has no key `grce`; did you mean `grace`?",
            ),
            ("[kind.a]\nrandom = \"no\"", "2: random is \"system\", or a number, the seed"),
            ("[kind.a]\n[kind.a]", "2: duplicate key"),
            ("[kind.A]", "1: \"A\" is not a kind: use lower-case letters and digits"),
            // Values.
            (
                "[kind.a]\ndirs = [\"::\"]",
                "2: dirs: `::` is not a folder grant: the host folder is missing",
            ),
            (
                "[kind.a]\nenv = [\"=secret\"]",
                "2: env: a variable has no name; write NAME or NAME=VALUE",
            ),
            (
                "[kind.a]\ntcp = [\"db\"]",
                "2: tcp: `db` is not a network grant: the port is missing",
            ),
            (
                "[kind.a]\nudp = [\"db:0\"]",
                "2: udp: `db:0` is not a network grant: the port is a number",
            ),
            (
                "[kind.a]\nhttp = [\"db\"]",
                "2: http: `db` is not an HTTP server: the scheme is missing",
            ),
            (
                "[kind.a]\nhttp=['http://a']\nprivate = [\"x\"]",
                "3: private: `x` is not a range of addresses",
            ),
            (
                "[kind.a]\nlookup = \"all\"",
                "2: lookup: `all` is none of \"none\", \"listed\" and \"any\"",
            ),
            (
                "[kind.a]\nclocks = \"\"",
                "2: clocks: `` is none of \"precise\", \"coarse\" and \"hidden\"",
            ),
            ("[kind.a]\nmemory = \"1 bag\"", "2: memory: `1 bag` is no size; write one such as"),
            ("[kind.a]\nmemory = \"99999999999GiB\"", "2: memory: the size is too large"),
            ("[kind.a]\ncpu = \"5\"", "2: cpu: `5` is no duration; write one such as"),
            (
                "[kind.a]\ndigest = [\"sha256:1\"]",
                "2: digest: `sha256:1` is no digest; write sha256: and 64",
            ),
            ("[kind.a]\ndigest = []", "2: digest lists none, so nothing could be loaded"),
            ("[secret.'a b']\nenv = \"A\"", "1: `a b` is no name of a secret"),
            ("[secret.a]\nfile = \"\"", "2: file: this is no path of a file"),
            // Limits that no task could live in, or no engine can give.
            ("[host]\ntasks = 0", "2: tasks is 0, so nothing could be started; the least is 1"),
            ("[kind.a]\ntasks = 0", "2: tasks is 0, so nothing could be started; the least is 1"),
            ("[kind.a]\nmemory = 0", "2: memory is 0, so no task could live"),
            ("[kind.a]\ndeadline = \"0s\"", "2: deadline is 0, so no task could live"),
            (
                "[kind.a]\nmemory = \"5GiB\"",
                "2: memory is 5 GiB, and no task can have more than 4 GiB",
            ),
            // Contradictions.
            (
                "[kind.a]\ndirs = [\n'/a::/d',\n'/b::/d/:rw']",
                "4: two folders are granted as `/d`; the first is in line 3",
            ),
            (
                "[kind.a]\nenv = [\"A\", \"A=1\"]",
                "2: the variable `A` is granted twice; the first is in line 2",
            ),
            (
                "secret.s.env='S'\n[kind.a]\nhttp=['https://h']\nenv=['V']\n\
                 secrets=[{name='s',variable='V',header='h',to=['https://h']}]",
                "5: the variable `V` stands for a secret, and is granted in line 4 as well",
            ),
            (
                "secret.s.env='S'\n[kind.a]\nhttp=['https://h']\n\
                 secrets=[{name='s',variable='V',header='h',to=['https://h']},\n\
                 {name='s',variable='V',header='i',to=['https://h']}]",
                "5: the variable `V` stands for two secrets; the first is in line 4",
            ),
            (
                "[kind.a]\nhttp=['https://h']\n\
                 secrets=[{name='s',variable='V',header='h',to=['https://h']}]",
                "3: there is no secret `s`; define it in [secret.s]",
            ),
            ("[secret.s]", "1: [secret.s] has no source; give it `env` or `file`"),
            ("[secret.s]\nenv='A'\nfile='b'", "1: [secret.s] has two sources; keep one"),
            (
                "secret.s.env='S'\n[kind.a]\nhttp=['https://h:8443']\n\
                 secrets=[{name='s',variable='V',header='h',to=['https://h']}]",
                "4: the secret `s` goes to https://h, and no request of [kind.a] does; add \
                 \"https://h\" to its http",
            ),
            (
                "secret.s.env='S'\n[kind.a]\nhttp=['http://h']\n\
                 secrets=[{name='s',variable='V',header='h',to=['http://h']}]",
                "4: to: http://h would carry the secret in the clear",
            ),
            (
                "secret.s.env='S'\n[kind.a]\nhttp=['https://h']\n\
                 secrets=[{name='s',variable='V',header='host',to=['https://h']}]",
                "4: header: a secret cannot stand in the header `host`",
            ),
            (
                "[kind.a]\nsecrets=[{name='s',variable='V',header='h'}]",
                "2: a secret of a kind needs the key `to`",
            ),
            (
                "[kind.a]\nhttp=['http://a']\nprivate=[\n'10.0.0.0/8',\n'8.8.8.8']",
                "5: private: 8.8.8.8 has no special-purpose address, and others need no such grant",
            ),
            ("[kind.a]\ntcp=['10.0.0.1:1']\nprivate=['10.0.0.0/8']", &format!("3: {no_names}")),
            ("[defaults]\nprivate=['10.0.0.0/8']\n[kind.a]\ntcp=[]", &format!("2: {no_names}")),
            (
                "[defaults]\nlookup='none'\n[kind.a]\ntcp=['1.1.1.1:1','a:1']",
                "2: lookup is \"none\", and tcp lists a:1 in line 4, a name that could not be looked up",
            ),
            (
                "[kind.a]\nudp=['a:1']\nlookup='none'",
                "3: lookup is \"none\", and udp lists a:1 in line 2, a name that could not be looked up",
            ),
        ] {
            let told = told(text);
            assert_eq!(told.len(), 1, "{text}\n{told:#?}");
            let wanted = format!("p.toml:{wanted}");
            assert!(told[0].starts_with(&wanted), "{text}\n{}\n{wanted}", told[0]);
        }
    }

    #[test]
    fn what_fits_together_is_no_contradiction() {
        for text in [
            "",
            WHOLE,
            "[kind.a]",
            "[defaults]\nprivate=['10.0.0.0/8']\n[kind.a]\ntcp=['a:1']\n[kind.b]",
            "[kind.a]\nlookup='none'\ntcp=['1.1.1.1:1']\nhttp=['https://a']",
            "[kind.a]\nfinal-output=0\ninput=0\nopen-files=0\nwork-folder=0\negress={requests=0}\nstop={ask='0s'}",
            "[kind.a]\nmemory='4GiB'\ntable-elements=1000000",
            "secret.s.env='S'\n[kind.a]\ntcp=['*.h:443']\n\
             secrets=[{name='s',variable='V',header='h',to=['https://a.h']}]",
            "secret.s.env='S'\n[defaults]\nhttp=['https://h']\n\
             secrets=[{name='s',variable='V',header='h',to=['https://h']}]\n[kind.a]\nmemory=1",
            "[[kind.a.secrets]]\nname='s'\nvariable='V'\nheader='h'\nto=['http://127.0.0.1:80']\n\
             [kind.a]\nhttp=['http://127.0.0.0/8:*']\n[secret.s]\nenv='S'",
        ] {
            assert_eq!(told(text), [""; 0], "{text}");
        }
    }

    #[test]
    fn all_of_a_file_is_told_at_once_in_order() {
        let told = told("[kind.a]\ndris = []\nmemory = 0\n[kind.B]\n[secret.s]\nfoo = 1\n[kind.a]");
        let lines: Vec<&str> = told.iter().filter_map(|line| line.split(": ").next()).collect();
        assert_eq!(lines, ["p.toml:2", "p.toml:3", "p.toml:4", "p.toml:5", "p.toml:6", "p.toml:7"]);
    }

    #[test]
    fn no_value_of_a_variable_is_told() {
        for text in ["[kind.a]\nenv=['=hunter2']", "[kind.a]\nenv=['A=hunter2','A=hunter2']"] {
            let told = told(text).join("\n");
            assert!(!told.is_empty() && !told.contains("hunter2"), "{told}");
        }
        let policy = Policy::parse("[kind.a]\nenv=['A=hunter2']", "p", Path::new("/")).unwrap();
        assert!(!format!("{policy:?}").contains("hunter2"));
    }
}
