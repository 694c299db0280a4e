//! How names are looked up.

use std::{fmt, io, net::IpAddr, sync::Arc, time::Duration};

/// How long a name may take to resolve. A resolver that is slower than that
/// holds a thread of everybody's.
const PATIENCE: Duration = Duration::from_secs(10);

/// How names are looked up.
#[derive(Clone, Default)]
pub enum Resolver {
    /// As the system does.
    #[default]
    System,
    /// By a function: for hosts with a directory of their own, and for tests. It is
    /// called on the guests' threads, so it must not block.
    Function(Arc<Directory>),
}

/// A function that looks names up.
pub type Directory = dyn Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync;

impl Resolver {
    /// Returns the addresses that a name stands for now.
    ///
    /// # Errors
    ///
    /// When it stands for none, or the resolver does not answer in time.
    pub async fn look_up(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        let found: Vec<IpAddr> = match self {
            Self::System => {
                let found = tokio::net::lookup_host((name, 0));
                let found = tokio::time::timeout(PATIENCE, found).await;
                let found = found.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
                found.map(|address| address.ip()).collect()
            }
            Self::Function(function) => function(name)?,
        };
        Ok(found.into_iter().map(|address| address.to_canonical()).collect())
    }
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::System => "System",
            Self::Function(_) => "Function",
        })
    }
}
