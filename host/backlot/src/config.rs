//! Configuration: from what was said to what is checked.

use std::{env, io, path::PathBuf};

use backlot_registry as registry;
use backlot_wasm::{Compiler, Policy, Profile, Resolver};

/// How a [`Host`](crate::Host) is set up. The defaults suit one machine and
/// tasks of unknown origin.
#[derive(Clone, Debug)]
pub struct Config {
    /// The folder whose `<kind>.wasm` files are the kinds.
    pub plugins: PathBuf,
    /// When a kind is loaded anew whose file has changed.
    pub reload: Reload,
    /// The folder that compiled code is kept in, for this user alone; `None` keeps
    /// none.
    pub cache: Option<PathBuf>,
    /// Who compiles components.
    pub compiler: Compiler,
    /// The folder that output is spilled to.
    pub spill: PathBuf,
    /// What the engine is made for: starting tasks fast, or holding many.
    pub profile: Profile,
    /// How many tasks of components can live at a time, where that is fewer than
    /// the machine holds.
    pub instances: Option<u32>,
    /// Memory over all guests, in bytes; three quarters of the machine's when
    /// `None`.
    pub guest_memory: Option<u64>,
    /// Threads that guests run on; as many as there are cores when `None`.
    pub threads: Option<usize>,
    /// How names are looked up for guests.
    pub resolver: Resolver,
    /// What tasks may reach and use, by their kinds. The variables and secrets that it
    /// names are read when the host starts.
    pub policy: Policy,
    /// Bounds, caps and retention of the registry. The policy may lower the caps.
    pub registry: registry::Config,
}

/// When a kind is loaded anew whose file has changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reload {
    /// When somebody asks for it.
    #[default]
    Asked,
    /// As soon as it has changed. All kinds are loaded when the host starts.
    Watch,
    /// Within a second or two, without asking the system to tell of changes.
    Poll,
}

/// Why a configuration is not usable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// No instance could ever live.
    #[error("`instances` is 0, so no component could run; the least is 1")]
    NoInstances,
    /// No guest could ever run.
    #[error("`threads` is 0, so no component could run; the least is 1")]
    NoThreads,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            plugins: default_plugins(),
            reload: Reload::default(),
            cache: default_cache(),
            compiler: Compiler::default(),
            spill: env::temp_dir(),
            profile: Profile::default(),
            instances: None,
            guest_memory: None,
            threads: None,
            resolver: Resolver::default(),
            policy: Policy::default(),
            registry: registry::Config::default(),
        }
    }
}

impl Config {
    /// Checks what can be checked without touching the machine.
    ///
    /// # Errors
    ///
    /// The first value that makes the host unusable.
    pub fn check(&self) -> Result<(), ConfigError> {
        match () {
            () if self.instances == Some(0) => Err(ConfigError::NoInstances),
            () if self.threads == Some(0) => Err(ConfigError::NoThreads),
            () => Ok(()),
        }
    }
}

/// Returns where kinds are looked for when nothing was said: beside the
/// program's folder, where a build of the workspace puts them, or else in the
/// person's data folder.
fn default_plugins() -> PathBuf {
    let beside = env::current_exe()
        .ok()
        .and_then(|program| Some(program.parent()?.parent()?.join("plugins")))
        .filter(|folder| folder.is_dir());
    let data = || Some(home("XDG_DATA_HOME", ".local/share")?.join("backlot/plugins"));
    beside.or_else(data).unwrap_or_else(|| PathBuf::from("plugins"))
}

/// Returns where compiled code is kept when nothing was said.
fn default_cache() -> Option<PathBuf> {
    Some(home("XDG_CACHE_HOME", ".cache")?.join("backlot"))
}

/// Returns the person's own policy, if there is one. What is in the working
/// directory belongs to whoever made that.
pub(crate) fn default_policy() -> Option<PathBuf> {
    let file = home("XDG_CONFIG_HOME", ".config")?.join("backlot/backlot.toml");
    // One that cannot be looked at is there, and is told to be unreadable.
    match file.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        _ => Some(file),
    }
}

/// Returns the folder that a variable names, or else one below the person's own.
fn home(variable: &str, below: &str) -> Option<PathBuf> {
    // Relative ones are to be ignored, says the XDG Base Directory Specification.
    let named = |variable| env::var_os(variable).map(PathBuf::from).filter(|it| it.is_absolute());
    named(variable).or_else(|| Some(named("HOME")?.join(below)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unusable_numbers_are_refused_by_name() {
        let config = Config { instances: Some(0), ..Config::default() };
        assert_eq!(config.check(), Err(ConfigError::NoInstances));
        let config = Config { threads: Some(0), ..Config::default() };
        assert_eq!(config.check(), Err(ConfigError::NoThreads));
        assert_eq!(Config::default().check(), Ok(()));
    }
}
