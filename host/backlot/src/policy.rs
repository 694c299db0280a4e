//! Policies on disk, and the values that one refers to.

use std::{
    collections::HashMap,
    env, io,
    path::{Path, PathBuf},
};

use backlot_wasm::{Policy, PolicyError, SecretSource, Sources, small_text};

/// The most that is read of a policy, in bytes. It is refused well before that.
const FILE_BYTES: u64 = 2 << 20;
/// The longest secret that is read, in bytes: more than any server takes in a header.
const SECRET_BYTES: u64 = 64 << 10;

/// Why a policy cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PolicyFileError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// What it says is wrong.
    #[error(transparent)]
    Wrong(#[from] PolicyError),
}

/// Reads a policy. Paths in it are relative to the folder that it is in.
///
/// # Errors
///
/// When it cannot be read, or with all that is wrong with it.
pub fn read_policy(path: &Path) -> Result<Policy, PolicyFileError> {
    let fail = |source| PolicyFileError::Read { path: path.to_owned(), source };
    let text = small_text(path, FILE_BYTES).map_err(fail)?;
    let whole = std::path::absolute(path).map_err(fail)?;
    let folder = whole.parent().unwrap_or(&whole);
    Ok(Policy::parse(&text, &path.display().to_string(), folder)?)
}

/// Returns what the policy refers to: the host's variables and the secrets, as far
/// as they have values that are text.
pub fn sources(policy: &Policy) -> Sources {
    let env = policy.variables().filter_map(|name| Some((name.to_owned(), env::var(name).ok()?)));
    let secrets = policy.secrets().filter_map(|(name, source)| {
        let value = match source {
            SecretSource::Env(variable) => env::var(variable).ok()?,
            SecretSource::File(path) => {
                let text = small_text(path, SECRET_BYTES).ok()?;
                // Editors end a file with a line break.
                text.strip_suffix('\n').map_or(text.as_str(), |it| it.trim_end_matches('\r')).into()
            }
        };
        // One that is empty was forgotten.
        (!value.is_empty()).then(|| (name.to_owned(), value))
    });
    Sources { env: env.collect::<HashMap<_, _>>(), secrets: secrets.collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_is_read_with_its_paths_and_its_secrets() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("key"), "hunter2\n").unwrap();
        std::fs::write(at("empty"), "\n").unwrap();
        let text = "secret.a.file = 'key'\nsecret.b.file = 'none'\nsecret.c.file = 'empty'";
        std::fs::write(at("p.toml"), text).unwrap();
        let policy = read_policy(&at("p.toml")).unwrap();
        let secrets = sources(&policy).secrets;
        assert_eq!(secrets, HashMap::from([("a".to_owned(), "hunter2".to_owned())]));
        let folder_error = read_policy(folder.path()).unwrap_err().to_string();
        assert!(folder_error.ends_with("it is a folder"), "{folder_error}");
        std::fs::write(at("p.toml"), b"\xff").unwrap();
        assert!(read_policy(&at("p.toml")).unwrap_err().to_string().contains("UTF-8"));
    }
}
