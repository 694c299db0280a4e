//! Grants made ready: folders opened once, peers checked at every connection.

use std::{
    collections::HashSet,
    fmt, io,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use wasmtime_wasi::{FsPerms, OpenMode, WasiCtxBuilder, filesystem::Dir, sockets::SocketAddrUse};

use crate::policy::{Access, DirGrant, EnvGrant, Grant, Peer, PeerHost};

/// A grant whose folders are open. Cheap to clone.
///
/// A folder is opened once; what its path names later does not matter.
#[derive(Clone)]
pub struct OpenGrant(Arc<Inner>);

struct Inner {
    dirs: Vec<OpenDir>,
    env: Vec<EnvGrant>,
    net: NetPolicy,
}

pub(crate) struct OpenDir {
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
}

/// How many folders one task may be granted. A guest takes a handle for each
/// when it starts, out of those that [`Limits::host_objects`](crate::Limits) allows.
const FOLDERS: usize = 256;

impl Grant {
    /// Opens the folders of the grant.
    ///
    /// # Errors
    ///
    /// When a folder cannot be opened, or two would be seen under one path.
    pub fn open(self) -> Result<OpenGrant, OpenGrantError> {
        if self.dirs.len() > FOLDERS {
            return Err(OpenGrantError::TooManyFolders(self.dirs.len()));
        }
        let mut names = HashSet::new();
        if let Some(twice) = self.env.iter().find(|variable| !names.insert(&variable.name)) {
            return Err(OpenGrantError::SameVariable(twice.name.clone()));
        }
        let mut dirs: Vec<OpenDir> = Vec::with_capacity(self.dirs.len());
        for grant in self.dirs {
            if dirs.iter().any(|dir| dir.guest == grant.guest) {
                return Err(OpenGrantError::SameGuestPath(grant.guest));
            }
            dirs.push(open(grant)?);
        }
        let net = NetPolicy(self.tcp.into());
        Ok(OpenGrant(Arc::new(Inner { dirs, env: self.env, net })))
    }
}

fn open(grant: DirGrant) -> Result<OpenDir, OpenGrantError> {
    let opened = cap_std::fs::Dir::open_ambient_dir(&grant.host, cap_std::ambient_authority());
    let opened = match grant.below.as_os_str().is_empty() {
        true => opened,
        // Which leaves the folder by no link.
        false => opened.and_then(|dir| dir.open_dir(&grant.below)),
    };
    let dir = opened
        .map_err(|source| OpenGrantError::Folder { path: grant.host.join(&grant.below), source })?;
    let (perms, mode) = match grant.access {
        Access::ReadOnly => (FsPerms::ReadOnly, OpenMode::READ),
        Access::ReadWrite => (FsPerms::ReadWrite, OpenMode::READ | OpenMode::WRITE),
    };
    Ok(OpenDir { dir: Dir::new(dir.into_std_file(), perms, mode, false), guest: grant.guest })
}

impl fmt::Debug for OpenGrant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenGrant").field("env", &self.0.env).finish_non_exhaustive()
    }
}

impl OpenGrant {
    /// Returns the grant of nothing.
    pub fn none() -> Self {
        Self(Arc::new(Inner { dirs: Vec::new(), env: Vec::new(), net: NetPolicy(Arc::new([])) }))
    }

    pub(crate) fn dirs(&self) -> &[OpenDir] {
        &self.0.dirs
    }

    pub(crate) fn env(&self) -> &[EnvGrant] {
        &self.0.env
    }

    pub(crate) fn net(&self) -> &NetPolicy {
        &self.0.net
    }
}

/// The TCP peers that a guest may connect to.
#[derive(Clone)]
pub(crate) struct NetPolicy(Arc<[Peer]>);

impl NetPolicy {
    /// Opens the guest's sockets as far as the policy allows. A context that was
    /// not touched allows none.
    pub(crate) fn apply(&self, wasi: &mut WasiCtxBuilder) {
        if self.0.is_empty() {
            return;
        }
        wasi.allow_tcp(true);
        // Names are checked by the import itself, addresses at each connection.
        wasi.allow_ip_name_lookup(true);
        let policy = self.clone();
        wasi.socket_addr_check(move |address, used| {
            let policy = policy.clone();
            Box::pin(async move {
                match used {
                    SocketAddrUse::TcpConnect => policy.permits(address).await,
                    // The bind that the system does on its own before a connection.
                    SocketAddrUse::TcpBind => address.ip().is_unspecified() && address.port() == 0,
                    SocketAddrUse::TcpListen
                    | SocketAddrUse::TcpAccept
                    | SocketAddrUse::UdpBind
                    | SocketAddrUse::UdpSend
                    | SocketAddrUse::UdpReceive => false,
                }
            })
        });
    }

    /// Tells whether the guest may look up `name`.
    pub(crate) fn may_resolve(&self, name: &str) -> bool {
        let name = name.trim_end_matches('.');
        self.0.iter().any(|grant| grant.host.is_named(name))
    }

    /// Returns the addresses that the guest may reach as `host` and `port`;
    /// none when the peer is not granted.
    pub(crate) async fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        let host = host.trim_start_matches('[').trim_end_matches(']').trim_end_matches('.');
        let address: Option<IpAddr> = host.parse().ok();
        let granted =
            self.0.iter().filter(|grant| grant.ports.contains(port)).any(|grant| match address {
                Some(address) => grant.host.has(address),
                None => grant.host.is_named(host),
            });
        match (granted, address) {
            (false, _) => Ok(Vec::new()),
            (true, Some(address)) => Ok(vec![SocketAddr::new(address, port)]),
            (true, None) => {
                Ok(lookup(host).await?.into_iter().map(|ip| SocketAddr::new(ip, port)).collect())
            }
        }
    }

    /// Tells whether the guest may connect to `peer`: an address that is granted,
    /// or one that a granted name stands for now.
    async fn permits(&self, peer: SocketAddr) -> bool {
        let ip = peer.ip().to_canonical();
        for grant in self.0.iter().filter(|grant| grant.ports.contains(peer.port())) {
            let found = match &grant.host {
                PeerHost::Range(range) => range.contains(ip),
                PeerHost::Name(name) => names(name, ip).await,
                // Which of them the guest has looked up is not known here.
                PeerHost::Below(_) => false,
            };
            if found {
                return true;
            }
        }
        false
    }
}

/// Tells whether `host` stands for `ip` now.
async fn names(host: &str, ip: IpAddr) -> bool {
    match lookup(host).await {
        Ok(addresses) => addresses.iter().any(|address| address.to_canonical() == ip),
        Err(error) => {
            tracing::debug!(host, %error, "a granted host name cannot be resolved");
            false
        }
    }
}

/// How long a name may take to resolve. A resolver that is slower than that
/// holds a thread of everybody's.
const LOOKUP: Duration = Duration::from_secs(10);

/// Returns the addresses that a name stands for now.
pub(crate) async fn lookup(name: &str) -> io::Result<Vec<IpAddr>> {
    let found = tokio::time::timeout(LOOKUP, tokio::net::lookup_host((name, 0)))
        .await
        .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    Ok(found.map(|address| address.ip()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(peers: &[&str]) -> NetPolicy {
        NetPolicy(peers.iter().map(|peer| peer.parse().unwrap()).collect())
    }

    #[tokio::test]
    async fn only_granted_peers_may_be_connected_to() {
        let policy = policy(&["127.0.0.1:80", "localhost:81"]);
        assert!(policy.permits("127.0.0.1:80".parse().unwrap()).await);
        assert!(policy.permits("127.0.0.1:81".parse().unwrap()).await, "by name");
        assert!(!policy.permits("127.0.0.1:82".parse().unwrap()).await);
        assert!(!policy.permits("127.0.0.2:80".parse().unwrap()).await);
        assert!(policy.permits("[::ffff:127.0.0.1]:80".parse().unwrap()).await, "mapped");
    }

    #[tokio::test]
    async fn only_granted_names_may_be_resolved() {
        let policy = policy(&["localhost:81"]);
        assert!(policy.may_resolve("LOCALHOST") && policy.may_resolve("localhost."));
        assert!(!policy.may_resolve("secret.example.com"));
        assert!(policy.resolve("localhost", 80).await.unwrap().is_empty(), "another port");
        assert!(!policy.resolve("localhost.", 81).await.unwrap().is_empty());
        assert!(!policy.resolve("localhost", 81).await.unwrap().is_empty());
    }

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
}
