//! What the service manager hands over, and what it is told.
//!
//! Of systemd's: sockets that it has made and listens at (`LISTEN_FDS`), and a socket on
//! which it hears how its service is doing (`NOTIFY_SOCKET`).

use std::{
    env,
    ffi::OsStr,
    io,
    net::TcpListener,
    os::{
        linux::net::SocketAddrExt as _,
        unix::{
            ffi::OsStrExt as _,
            net::{SocketAddr, UnixDatagram, UnixListener},
        },
    },
};

use listenfd::ListenFd;

/// Sockets that somebody else made, and that this process is to listen at.
#[derive(Debug, Default)]
pub struct Inherited {
    /// Those in the file system.
    pub unix: Vec<UnixListener>,
    /// Those of the network.
    pub tcp: Vec<TcpListener>,
}

impl Inherited {
    /// Takes the sockets that were handed to this process. There are none the next time.
    ///
    /// # Errors
    ///
    /// When what was handed over is no socket that can be listened at.
    pub(crate) fn take() -> io::Result<Self> {
        // Without it they may be another process's, as variables are passed on.
        if env::var_os("LISTEN_PID").is_none() {
            return Ok(Self::default());
        }
        let mut handed = ListenFd::from_env();
        let mut inherited = Self::default();
        for nth in 0..handed.len() {
            match handed.take_unix_listener(nth) {
                Ok(Some(listener)) => inherited.unix.push(listener),
                // It is there still, and of another family.
                Ok(None) | Err(_) => inherited.tcp.extend(handed.take_tcp_listener(nth)?),
            }
        }
        Ok(inherited)
    }
}

/// Tells the service manager something, where there is one that listens.
pub(crate) fn notify(state: &str) {
    let Some(socket) = env::var_os("NOTIFY_SOCKET").filter(|it| !it.is_empty()) else { return };
    if let Err(error) = send(&socket, state) {
        tracing::warn!(%error, "the service manager cannot be told");
    }
}

fn send(socket: &OsStr, state: &str) -> io::Result<()> {
    let address = match socket.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(socket)?,
    };
    let datagram = UnixDatagram::unbound()?;
    // A service manager that does not read is not waited for.
    datagram.set_nonblocking(true)?;
    datagram.send_to_addr(state.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_manager_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let named = UnixDatagram::bind(&path).unwrap();
        send(path.as_os_str(), "READY=1").unwrap();
        let name = format!("backlot-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let nameless = UnixDatagram::bind_addr(&address).unwrap();
        send(OsStr::new(&format!("@{name}")), "STOPPING=1").unwrap();
        let mut told = [0; 16];
        let read = named.recv(&mut told).unwrap();
        assert_eq!(&told[..read], b"READY=1");
        let read = nameless.recv(&mut told).unwrap();
        assert_eq!(&told[..read], b"STOPPING=1");
        assert!(send(OsStr::new("/nonexistent/notify"), "").is_err());
    }
}
