//! Grants made ready: folders opened once, and what every start with them shares.

use std::{collections::HashSet, fmt, io, path::PathBuf, sync::Arc};

use http::HeaderName;
use wasmtime_wasi::{FsPerms, OpenMode, WasiCtxBuilder, filesystem::Dir};

use crate::{
    clocks,
    denial::Denials,
    link::Link,
    network::Rules,
    policy::{Access, Clocks, DirGrant, EnvGrant, Grant, Hints, Random},
    random,
    secret::{NoRandomness, Secrets, Vault},
};

/// A grant whose folders are open. Cheap to clone.
///
/// A folder is opened once; what its path names later does not matter.
#[derive(Clone)]
pub struct OpenGrant {
    inner: Arc<Inner>,
    hints: Option<Arc<Hints>>,
}

#[derive(Default)]
struct Inner {
    dirs: Vec<OpenDir>,
    env: Vec<EnvGrant>,
    rules: Rules,
    clocks: Clocks,
    random: Random,
    vault: Option<Arc<Vault>>,
}

pub(crate) struct OpenDir {
    host: PathBuf,
    access: Access,
    pub(crate) dir: Dir,
    pub(crate) guest: String,
}

/// Why a grant could not be made ready.
#[derive(Debug, thiserror::Error)]
pub enum OpenGrantError {
    /// A folder could not be opened.
    #[error("the granted folder `{}` cannot be opened: {source}", path.display())]
    Folder {
        /// The folder on the host.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Two folders are to be seen under one path.
    #[error("two folders are granted as `{0}`; give one of them another guest path")]
    SameGuestPath(String),
    /// One variable has two values. They are not repeated.
    #[error("the variable `{0}` is granted twice; give it one value")]
    SameVariable(String),
    /// More folders than a guest has room for.
    #[error(
        "{0} folders are granted, and a task has room for {FOLDERS}; grant a folder above them"
    )]
    TooManyFolders(usize),
    /// A secret is too short to be told from what is none.
    #[error(
        "the secret `{0}` has fewer than {SECRET_BYTES} bytes, so it cannot be told from other text; take a longer one"
    )]
    ShortSecret(String),
    /// A secret is to stand in a header that there cannot be.
    #[error("the secret `{0}` is for the header `{1}`, which is no name of a header")]
    Header(String, String),
}

/// How many folders one task may be granted. A guest takes a handle for each
/// when it starts, out of those that [`Limits::host_objects`](crate::Limits) allows.
const FOLDERS: usize = 256;
/// How many bytes a secret has at least: it is looked for in all that a guest says.
const SECRET_BYTES: usize = 8;

impl Grant {
    /// Opens the folders of the grant.
    ///
    /// # Errors
    ///
    /// When a folder cannot be opened, or what is granted does not fit together.
    pub fn open(mut self) -> Result<OpenGrant, OpenGrantError> {
        if self.dirs.len() > FOLDERS {
            return Err(OpenGrantError::TooManyFolders(self.dirs.len()));
        }
        let mut names = HashSet::new();
        let variables = self.env.iter().map(|variable| &variable.name);
        let mut variables = variables.chain(self.secrets.iter().map(|secret| &secret.variable));
        if let Some(twice) = variables.find(|name| !names.insert(*name)) {
            return Err(OpenGrantError::SameVariable(twice.clone()));
        }
        for secret in &self.secrets {
            if secret.value.len() < SECRET_BYTES {
                return Err(OpenGrantError::ShortSecret(secret.name.clone()));
            }
            if HeaderName::from_bytes(secret.header.as_bytes()).is_err() {
                let (name, header) = (secret.name.clone(), secret.header.clone());
                return Err(OpenGrantError::Header(name, header));
            }
        }
        let rules = Rules::of(&mut self);
        let mut dirs: Vec<OpenDir> = Vec::with_capacity(self.dirs.len());
        for grant in self.dirs {
            if dirs.iter().any(|dir| dir.guest == grant.guest) {
                return Err(OpenGrantError::SameGuestPath(grant.guest));
            }
            dirs.push(open(grant)?);
        }
        let vault = (!self.secrets.is_empty()).then(|| Arc::new(Vault::new(self.secrets)));
        let (clocks, random) = (self.clocks, self.random);
        let inner = Inner { dirs, env: self.env, rules, clocks, random, vault };
        Ok(OpenGrant { inner: Arc::new(inner), hints: None })
    }
}

fn open(grant: DirGrant) -> Result<OpenDir, OpenGrantError> {
    let opened = cap_std::fs::Dir::open_ambient_dir(&grant.host, cap_std::ambient_authority());
    let opened = match grant.below.as_os_str().is_empty() {
        true => opened,
        // Which leaves the folder by no link.
        false => opened.and_then(|dir| dir.open_dir(&grant.below)),
    };
    let host = grant.host.join(&grant.below);
    let dir = match opened {
        Ok(dir) => dir,
        Err(source) => return Err(OpenGrantError::Folder { path: host, source }),
    };
    let (perms, mode) = match grant.access {
        Access::ReadOnly => (FsPerms::ReadOnly, OpenMode::READ),
        Access::ReadWrite => (FsPerms::ReadWrite, OpenMode::READ | OpenMode::WRITE),
    };
    let dir = Dir::new(dir.into_std_file(), perms, mode, false);
    Ok(OpenDir { host, access: grant.access, dir, guest: grant.guest })
}

impl OpenDir {
    /// Returns it as a grant of it is written.
    pub(crate) fn line(&self) -> String {
        format!("{}::{}:{}", self.host.display(), self.guest, self.access)
    }
}

impl fmt::Debug for OpenGrant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenGrant").field("env", &self.inner.env).finish_non_exhaustive()
    }
}

impl OpenGrant {
    /// Returns the grant of nothing.
    pub fn none() -> Self {
        Self { inner: Arc::default(), hints: None }
    }

    /// Returns the grant with what is said to whoever meets its limits.
    pub fn with_hints(self, hints: Hints) -> Self {
        Self { hints: Some(Arc::new(hints)), ..self }
    }

    pub(crate) fn dirs(&self) -> &[OpenDir] {
        &self.inner.dirs
    }

    pub(crate) fn rules(&self) -> &Rules {
        &self.inner.rules
    }

    /// Returns where the denials of a task with this grant are told.
    pub(crate) fn denials(&self, link: Option<Arc<Link>>) -> Denials {
        Denials::new(self.hints.clone(), link)
    }

    /// Returns the secrets of one start, if any are granted.
    pub(crate) fn secrets(&self) -> Result<Option<Arc<Secrets>>, NoRandomness> {
        let Some(vault) = &self.inner.vault else { return Ok(None) };
        Secrets::new(Arc::clone(vault)).map(Arc::new).map(Some)
    }

    /// Gives a guest its variables, clocks and random numbers.
    pub(crate) fn apply(&self, wasi: &mut WasiCtxBuilder) {
        for variable in &self.inner.env {
            wasi.env(&variable.name, &variable.value);
        }
        clocks::apply(self.inner.clocks, wasi);
        random::apply(self.inner.random, wasi);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::SecretGrant;

    #[test]
    fn a_folder_is_opened_once_and_needs_to_be_one() {
        let here = tempfile::tempdir().unwrap();
        let file = here.path().join("file");
        std::fs::write(&file, "").unwrap();
        let grant = |path: &std::path::Path| Grant {
            dirs: vec![format!("{}::/d", path.display()).parse().unwrap()],
            ..Grant::default()
        };
        assert!(grant(here.path()).open().is_ok());
        for bad in [file, here.path().join("missing")] {
            let Err(error) = grant(&bad).open() else { panic!("{} was opened", bad.display()) };
            assert!(error.to_string().contains(&*bad.to_string_lossy()), "{error}");
        }
        let twice = Grant {
            dirs: [grant(here.path()).dirs, grant(here.path()).dirs].concat(),
            ..Grant::default()
        };
        assert!(matches!(twice.open(), Err(OpenGrantError::SameGuestPath(path)) if path == "/d"));
    }

    #[test]
    fn a_variable_has_one_value_and_folders_have_a_bound() {
        let env = vec!["A=1".parse().unwrap(), "B=1".parse().unwrap(), "A=2".parse().unwrap()];
        let twice = Grant { env, ..Grant::default() };
        assert!(matches!(twice.open(), Err(OpenGrantError::SameVariable(name)) if name == "A"));
        let dirs = (0..=FOLDERS).map(|n| format!("/::/d{n}").parse().unwrap()).collect();
        let many = Grant { dirs, ..Grant::default() };
        assert!(matches!(many.open(), Err(OpenGrantError::TooManyFolders(257))));
    }

    #[test]
    fn a_secret_is_long_and_has_a_header_and_a_variable_of_its_own() {
        let secret = SecretGrant {
            name: "github".into(),
            variable: "TOKEN".into(),
            header: "authorization".into(),
            to: Vec::new(),
            value: "hunter22".into(),
        };
        let open = |secret| {
            Grant {
                env: vec!["OTHER=1".parse().unwrap()],
                secrets: vec![secret],
                ..Grant::default()
            }
            .open()
        };
        assert!(open(secret.clone()).is_ok());
        let error = |secret| open(secret).err().map(|error| error.to_string()).unwrap_or_default();
        let short = error(SecretGrant { value: "hunter2".into(), ..secret.clone() });
        assert!(short.contains("`github`") && !short.contains("hunter2"), "{short}");
        let header = error(SecretGrant { header: "a b".into(), ..secret.clone() });
        assert!(header.contains("`a b`"), "{header}");
        let twice = error(SecretGrant { variable: "OTHER".into(), ..secret });
        assert!(twice.contains("`OTHER` is granted twice"), "{twice}");
    }
}
