//! Connections to a host, which are kept for the next request.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use http::{
    Method, Request, Response,
    header::{CONNECTION, CONTENT_TYPE, HOST, UPGRADE},
};
use http_body_util::Full;
use hyper::{
    body::Incoming,
    client::conn::http1::{self, SendRequest},
};
use hyper_util::rt::TokioIo;
use tokio::{
    net::UnixStream,
    time::{Instant, sleep},
};

use super::{ClientError, is_nobody};
use crate::http::SESSION_HEADER;

/// How long a connection is kept with nothing on it: less than a host keeps it, so that
/// nothing is sent on one that is being closed.
const KEPT: Duration = Duration::from_secs(5);
/// How often a host that lets nobody in at the moment is tried again, and after what
/// time.
const TRIES: usize = 50;
const AGAIN: Duration = Duration::from_millis(20);

/// What is asked of a host.
#[derive(Debug)]
pub(super) struct Asking {
    method: Method,
    path: String,
    body: Option<Bytes>,
    session: Option<String>,
    /// What the connection is changed to.
    upgrade: Option<&'static str>,
}

impl Asking {
    pub(super) fn new(method: Method, path: String) -> Self {
        Self { method, path, body: None, session: None, upgrade: None }
    }

    pub(super) fn with(self, json: Bytes) -> Self {
        Self { body: Some(json), ..self }
    }

    /// Returns it so that the connection is changed to something else.
    pub(super) fn changing_to(self, protocol: &'static str) -> Self {
        Self { upgrade: Some(protocol), ..self }
    }

    /// Returns it as that session asks it, where one does.
    pub(super) fn by(self, session: Option<String>) -> Self {
        Self { session, ..self }
    }

    fn request(&self) -> Result<Request<Full<Bytes>>, ClientError> {
        let request = Request::builder().method(self.method.clone()).uri(&self.path);
        let mut request = request.header(HOST, "localhost");
        if let Some(session) = &self.session {
            request = request.header(SESSION_HEADER, session.as_bytes());
        }
        if let Some(protocol) = self.upgrade {
            request = request.header(CONNECTION, "upgrade").header(UPGRADE, protocol);
        }
        if self.body.is_some() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let request = request.body(Full::new(self.body.clone().unwrap_or_default()));
        request.map_err(ClientError::broken("cannot be asked that"))
    }
}

/// What asks over one connection.
pub(super) type Sender = SendRequest<Full<Bytes>>;

/// Connections to one socket.
#[derive(Debug)]
pub(super) struct Connections {
    socket: PathBuf,
    /// One that nobody uses, since when.
    idle: Mutex<Option<(Sender, Instant)>>,
}

impl Connections {
    pub(super) async fn open(socket: &Path) -> Result<Self, ClientError> {
        let connections = Self { socket: socket.to_owned(), idle: Mutex::default() };
        let first = connections.connect().await?;
        connections.keep(first);
        Ok(connections)
    }

    /// Asks, and returns the head of the answer with the connection that it comes over.
    pub(super) async fn ask(
        &self,
        asking: &Asking,
    ) -> Result<(Response<Incoming>, Sender), ClientError> {
        let broken = ClientError::broken("broke off");
        let request = asking.request()?;
        let request = match self.idle().await {
            None => request,
            Some(mut kept) => match kept.try_send_request(request).await {
                Ok(answer) => return Ok((answer, kept)),
                // Only what was never sent can be sent once more.
                Err(mut error) => match error.take_message() {
                    Some(request) => request,
                    None => return Err(broken(error.into_error())),
                },
            },
        };
        let mut new = self.connect().await?;
        let answer = new.send_request(request).await.map_err(broken)?;
        Ok((answer, new))
    }

    /// Takes the connection that nobody uses, if it is fresh.
    async fn idle(&self) -> Option<Sender> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).take();
        let (mut sender, since) = idle?;
        (since.elapsed() < KEPT && sender.ready().await.is_ok()).then_some(sender)
    }

    /// Keeps a connection whose last answer was read.
    pub(super) fn keep(&self, sender: Sender) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let before = idle.replace((sender, Instant::now()));
        drop(idle);
        drop(before);
    }

    async fn connect(&self) -> Result<Sender, ClientError> {
        let fail = |error: io::Error| match is_nobody(&error) {
            true => ClientError::NoHost { path: self.socket.clone() },
            false => ClientError::broken("cannot be reached")(error),
        };
        let mut stream = UnixStream::connect(&self.socket).await;
        for _ in 0..TRIES {
            // So many wait to be let in that there is no room for one more.
            let is_crowded = |error: &io::Error| error.kind() == io::ErrorKind::WouldBlock;
            if !stream.as_ref().is_err_and(is_crowded) {
                break;
            }
            sleep(AGAIN).await;
            stream = UnixStream::connect(&self.socket).await;
        }
        let io = TokioIo::new(stream.map_err(fail)?);
        let (sender, connection) =
            http1::handshake(io).await.map_err(ClientError::broken("cannot be reached"))?;
        // It ends with the sender, and what goes wrong with it is told there.
        tokio::spawn(async move {
            if let Err(error) = connection.with_upgrades().await {
                tracing::debug!("a connection to the host ended: {error}");
            }
        });
        Ok(sender)
    }
}
