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
    /// Reads a policy. `source` is what its lines are called by, and `folder`, an
    /// absolute path, what its paths are relative to.
    ///
    /// # Errors
    ///
    /// All that is wrong with it, each with its line.
    pub fn parse(text: &str, source: &str, folder: &Path) -> Result<Self, PolicyError> {
        const KEYS: [&str; 4] = ["host", "defaults", "kind", "secret"];
        let (mut reader, table) = Reader::open(text, source, POLICY_BYTES)?;
        let mut file = File {
            source: reader.source(),
            tasks: None,
            tasks_per_owner: None,
            defaults: None,
            kinds: BTreeMap::new(),
            secrets: BTreeMap::new(),
        };
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
                other => reader.unknown(key.span(), other, "a policy", &KEYS),
            }
        }
        contradictions::tell(&file, &mut reader);
        match reader.is_right() {
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
