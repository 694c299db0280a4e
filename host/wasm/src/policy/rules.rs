//! What a policy says of one kind, and which line says it.

use std::sync::Arc;

use backlot_registry::Kind;

use crate::policy::{
    decide::Denial,
    document::Said,
    file::{File, Policy, SecretSource},
    section::Section,
};

/// What a policy says of tasks of one kind: its own section, and for keys that it
/// lacks the defaults. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Rules {
    pub(super) kind: Kind,
    /// `None` where there is no policy.
    pub(super) file: Option<Arc<File>>,
    pub(super) merged: Merged,
}

/// A section over another.
#[derive(Clone, Debug, Default)]
pub(super) struct Merged {
    pub(super) own: Option<Arc<Section>>,
    pub(super) defaults: Option<Arc<Section>>,
}

/// What a section says under a key.
pub(super) struct Given<'a, T> {
    pub(super) said: &'a Said<T>,
    pub(super) section: &'a Section,
}

impl<T> Clone for Given<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Given<'_, T> {}

impl Merged {
    /// Returns what holds of a key, and the section that says so.
    pub(super) fn pick<T>(
        &self,
        of: impl Fn(&Section) -> Option<&Said<T>>,
    ) -> Option<Given<'_, T>> {
        let sections = [&self.own, &self.defaults].into_iter().flatten();
        sections.into_iter().find_map(|section| Some(Given { said: of(section)?, section }))
    }

    /// Returns the entries of a list, none where the key is missing.
    pub(super) fn list<T>(
        &self,
        of: impl Fn(&Section) -> Option<&Said<Vec<Said<T>>>>,
    ) -> &[Said<T>] {
        self.pick(of).map_or(&[], |given| &given.said.value)
    }
}

impl Rules {
    pub(super) fn of(policy: &Policy, kind: &Kind) -> Self {
        let file = policy.0.clone();
        let merged = file.as_ref().map_or_else(Merged::default, |file| Merged {
            own: file.kinds.get(kind).cloned(),
            defaults: file.defaults.clone(),
        });
        Self { kind: kind.clone(), file, merged }
    }

    /// Returns the kind that they are about.
    pub fn kind(&self) -> &Kind {
        &self.kind
    }

    /// Tells whether there is a policy. Without one, whoever starts a task is the
    /// operator.
    pub fn has_policy(&self) -> bool {
        self.file.is_some()
    }

    /// Returns how many tasks of the kind may be live at a time.
    pub fn tasks(&self) -> Option<usize> {
        self.merged.pick(|section| section.tasks.as_ref()).map(|tasks| tasks.said.value)
    }

    /// Tells whether a component with that digest may be loaded as the kind.
    ///
    /// # Errors
    ///
    /// When the policy lists others.
    pub fn admits(&self, digest: &str) -> Result<(), Denial> {
        let Some(listed) = self.merged.pick(|section| section.digest.as_ref()) else {
            return Ok(());
        };
        match listed.said.value.iter().any(|one| one.value == digest) {
            true => Ok(()),
            false => Err(Denial::Digest {
                kind: self.kind.clone(),
                digest: digest.to_owned(),
                at: self.at(&listed, "digest"),
            }),
        }
    }

    /// Returns the name of the file.
    pub(super) fn source(&self) -> &str {
        self.file.as_ref().map_or("the policy", |file| &file.source)
    }

    /// Returns where the value of a secret is.
    pub(super) fn secret(&self, name: &str) -> SecretSource {
        let source = self.file.as_ref().and_then(|file| file.secrets.get(name));
        source.map_or_else(|| SecretSource::Env(String::new()), |said| said.value.clone())
    }

    /// Returns what to call the section of the kind, whether or not it is there.
    fn own(&self) -> String {
        format!("[kind.{}]", self.kind)
    }

    /// Returns where a key stands: `backlot.toml:12 ([kind.fetch] tcp)`.
    pub(super) fn at<T>(&self, given: &Given<'_, T>, key: &str) -> String {
        format!("{}:{} ({} {key})", self.source(), given.said.line, given.section.name)
    }

    /// Returns how to add a key that is missing.
    pub(super) fn add(&self, key: &str) -> String {
        match &self.merged.own {
            Some(own) => {
                format!("add {key} to {}, which begins at {}:{}", own.name, self.source(), own.line)
            }
            None => format!("add {} with {key} to {}", self.own(), self.source()),
        }
    }

    /// Returns how to have a key say something else than it does.
    pub(super) fn change<T>(&self, given: &Given<'_, T>, key: &str, change: &str) -> String {
        match given.section.name == self.own() {
            true => format!("{change} there"),
            false => format!("{change} there, or give {} its own {key}", self.own()),
        }
    }

    /// Returns why the policy does not grant an entry of a list, and what would
    /// have it grant it. The entry is written as it would stand there.
    pub(super) fn lacks<T>(
        &self,
        given: Option<Given<'_, T>>,
        key: &str,
        shown: &str,
        written: &str,
    ) -> (String, String) {
        match given {
            Some(given) => (
                format!("{} does not list {shown}", self.at(&given, key)),
                self.change(&given, key, &format!("add {written}")),
            ),
            None => (
                format!("{} grants {} no {key}", self.source(), self.kind),
                self.add(&format!("{key} = [{written}]")),
            ),
        }
    }
}
