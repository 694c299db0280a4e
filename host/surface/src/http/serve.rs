//! Connections: who may have one, how many there are, and how they end.

use std::{convert::Infallible, io, net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Router,
    body::Body,
    http::{Request, Response, header},
    response::IntoResponse,
};
use futures::future::join_all;
use hyper::{
    body::Incoming,
    server::conn::http1,
    service::{Service as _, service_fn},
};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use rustix::process::geteuid;
use rustls::ServerConfig;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
    pin,
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_rustls::TlsAcceptor;

use super::{
    Surface,
    bridge::BRIDGES,
    guard::{Connected, Guard, Standing},
    operated, routes,
    stall::Stall,
};
use crate::{
    api::Api,
    error::{Failure, Reason},
};

/// How many connections there are at a time on a socket: each follower of a job has one,
/// and a file descriptor of the host with it.
const CONNECTIONS: usize = 256;
/// How many there are over the network, where pages and programs follow many jobs, and
/// each may take 200 KiB: what is read ahead, what waits to be sent, and what encryption
/// needs of both. The places are those of each door, so that the network takes none of the
/// socket's, where the operator gets in.
const TCP_CONNECTIONS: usize = 2_048;
/// How many more are told that there are too many. Others are closed at once.
const TURNED_AWAY: usize = 16;
/// How long it may take until a connection is encrypted.
const HANDSHAKE_TIME: Duration = Duration::from_secs(10);
/// How long what is sent may wait with not a byte of it taken: longer than a network fails
/// for a moment.
const STALL_TIME: Duration = Duration::from_secs(60);
/// How long a request's head may take, and how long a connection may be kept with no
/// request on it.
const HEAD_TIME: Duration = Duration::from_secs(15);
/// The longest head of a request, in bytes: a path of a file is up to 12 KiB of it.
const HEAD_BYTES: usize = 64 << 10;
/// How long answers that are under way have to be sent when the host ends.
const FAREWELL: Duration = Duration::from_secs(5);
/// How long nobody is let in after that could not be done: it takes a descriptor, and
/// one may be free again by then.
const PAUSE: Duration = Duration::from_millis(100);

/// Where somebody can connect.
#[derive(Debug)]
pub enum Door {
    /// A socket in the file system. Processes of this user, and of root, are the operator
    /// there; no others are served, whoever else can reach it.
    Unix(UnixListener),
    /// A port, where a guard decides who gets in, and as whom.
    Tcp {
        /// The port.
        listener: TcpListener,
        /// What encrypts, if anything does.
        tls: Option<Arc<ServerConfig>>,
        /// The guard.
        guard: Guard,
    },
}

/// Somebody who has connected.
enum Visitor {
    Unix(UnixStream),
    Tcp { stream: TcpStream, connected: Connected, tls: Option<TlsAcceptor>, guard: Guard },
}

impl Door {
    fn places(&self) -> usize {
        match self {
            Self::Unix(_) => CONNECTIONS,
            Self::Tcp { .. } => TCP_CONNECTIONS,
        }
    }

    /// Lets the next one in that may be.
    async fn accept(&self) -> io::Result<Visitor> {
        match self {
            Self::Unix(listener) => accept_unix(listener).await.map(Visitor::Unix),
            Self::Tcp { listener, tls, guard } => {
                let (stream, peer) = accept_tcp(listener).await?;
                // What it says is small and waited for. Where that cannot be had, it only
                // takes longer.
                let _ = stream.set_nodelay(true);
                let connected =
                    Connected { peer: peer.ip(), local: stream.local_addr()?, tls: tls.is_some() };
                let (tls, guard) = (tls.clone().map(TlsAcceptor::from), guard.clone());
                Ok(Visitor::Tcp { stream, connected, tls, guard })
            }
        }
    }
}

impl From<UnixListener> for Door {
    fn from(listener: UnixListener) -> Self {
        Self::Unix(listener)
    }
}

/// Serves whoever connects, until the shutdown resolves; those who wait are then
/// answered with what there is.
pub async fn serve(doors: Vec<Door>, api: Api, shutdown: impl Future<Output = ()>) {
    let (close, closing) = watch::channel(false);
    let surface = Surface::new(api, closing.clone());
    let bridges = surface.bridges.clone();
    let routes = routes(surface);
    let attended = doors.into_iter().map(|door| attend(door, routes.clone(), closing.clone()));
    let shut = async {
        shutdown.await;
        close.send_replace(true);
        // Agents have connections that are no longer those of a door.
        if timeout(FAREWELL, bridges.acquire_many(BRIDGES)).await.is_err() {
            tracing::warn!("agents were cut off that did not end in time");
        }
    };
    tokio::join!(join_all(attended), shut);
}

/// Serves whoever comes in at a door, until the host closes.
async fn attend(door: Door, routes: Router, closing: watch::Receiver<bool>) {
    let full = Router::new().fallback(turn_away);
    let places = Arc::new(Semaphore::new(door.places()));
    let doorstep = Arc::new(Semaphore::new(TURNED_AWAY));
    let mut connections = JoinSet::new();
    let shut = closed(closing.clone());
    pin!(shut);
    loop {
        let accepted = tokio::select! {
            () = &mut shut => break,
            // What has ended is let go of.
            Some(_) = connections.join_next() => continue,
            accepted = door.accept() => accepted,
        };
        let visitor = match accepted {
            Ok(visitor) => visitor,
            Err(error) => {
                tracing::warn!("nobody can be let in: {error}");
                sleep(PAUSE).await;
                continue;
            }
        };
        let (answering, place) = match places.clone().try_acquire_owned() {
            Ok(place) => (Answering::Asked(routes.clone()), Some(place)),
            Err(_) => {
                let place = doorstep.clone().try_acquire_owned().ok();
                (Answering::TurnedAway(full.clone()), place)
            }
        };
        if let Some(place) = place {
            connections.spawn(receive(visitor, answering, closing.clone(), place));
        }
    }
    drop(door);
    let all = async { while connections.join_next().await.is_some() {} };
    if timeout(FAREWELL, all).await.is_err() {
        tracing::warn!("connections were cut that did not end in time");
    }
}

/// What a connection is answered with.
enum Answering {
    /// What it asks for.
    Asked(Router),
    /// That there is no place.
    TurnedAway(Router),
}

async fn accept_tcp(listener: &TcpListener) -> io::Result<(TcpStream, SocketAddr)> {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset};
    loop {
        match listener.accept().await {
            // One that is gone already has nothing to ask, and is nothing to pause for.
            Err(error) if matches!(error.kind(), ConnectionAborted | ConnectionReset) => {}
            accepted => return accepted,
        }
    }
}

async fn accept_unix(listener: &UnixListener) -> io::Result<UnixStream> {
    loop {
        let (stream, _) = listener.accept().await?;
        // One that is gone already has nothing to ask.
        let Ok(peer) = stream.peer_cred() else { continue };
        if may_connect(peer.uid(), geteuid().as_raw()) {
            return Ok(stream);
        }
        tracing::warn!(uid = peer.uid(), pid = peer.pid(), "a process of another user was refused");
    }
}

fn may_connect(peer: u32, own: u32) -> bool {
    const ROOT: u32 = 0;
    peer == own || peer == ROOT
}

/// Says that there is no place, and that it is to be tried on another connection.
async fn turn_away() -> impl IntoResponse {
    ([(header::CONNECTION, "close")], Failure::new(Reason::Busy, "too many are connected"))
}

/// Serves somebody who has connected, on whose place that is.
async fn receive(
    visitor: Visitor,
    answering: Answering,
    closing: watch::Receiver<bool>,
    _place: OwnedSemaphorePermit,
) {
    match visitor {
        Visitor::Unix(stream) => {
            let entry = match answering {
                Answering::Asked(routes) => Entry::open(operated(routes)),
                Answering::TurnedAway(full) => Entry::open(full),
            };
            converse(Stall::new(stream, STALL_TIME), entry, closing).await;
        }
        Visitor::Tcp { stream, connected, tls, guard } => {
            let entry = match answering {
                Answering::Asked(routes) => Entry::guarded(routes, guard, connected),
                Answering::TurnedAway(full) => Entry::open(full),
            };
            let stream = Stall::new(stream, STALL_TIME);
            let Some(tls) = tls else { return converse(stream, entry, closing).await };
            let encrypted = tokio::select! {
                encrypted = timeout(HANDSHAKE_TIME, tls.accept(stream)) => encrypted,
                // Who has asked nothing yet is owed no answer.
                () = closed(closing.clone()) => return,
            };
            match encrypted {
                Ok(Ok(stream)) => converse(stream, entry, closing).await,
                Ok(Err(error)) => tracing::debug!("a connection was not encrypted: {error}"),
                Err(_) => tracing::debug!("a connection was not encrypted in time"),
            }
        }
    }
}

/// Who is at the other end of a connection, and what answers.
struct Entry {
    routes: TowerToHyperService<Router>,
    guard: Option<(Guard, Connected)>,
}

impl Entry {
    /// Whoever it is may ask.
    fn open(routes: Router) -> Self {
        Self { routes: TowerToHyperService::new(routes), guard: None }
    }

    /// Whom the guard lets in may ask.
    fn guarded(routes: Router, guard: Guard, connected: Connected) -> Self {
        Self { routes: TowerToHyperService::new(routes), guard: Some((guard, connected)) }
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        let request = match &self.guard {
            None => request.map(Body::new),
            Some((guard, connected)) => match guard.admit(request, *connected).await {
                Ok(request) => request,
                Err(refusal) => return refusal,
            },
        };
        let standing = request.extensions().get::<Standing>().cloned();
        let response = match self.routes.call(request).await {
            Ok(response) => response,
            Err(impossible) => match impossible {},
        };
        match standing {
            Some(standing) => standing.bound(response),
            None => response,
        }
    }
}

/// Answers what is asked on a connection.
async fn converse(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    entry: Entry,
    closing: watch::Receiver<bool>,
) {
    let entry = Arc::new(entry);
    let answer = service_fn(move |request| {
        let entry = entry.clone();
        async move { Ok::<_, Infallible>(entry.answer(request).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME)
        .max_buf_size(HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), answer)
        .with_upgrades();
    pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = closed(closing) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        // Who is at the other end came to an end, or sent what is no request.
        tracing::debug!("a connection ended: {error}");
    }
}

async fn closed(mut closing: watch::Receiver<bool>) {
    // Whoever would tell is gone where it cannot be waited for.
    let _ = closing.wait_for(|is_closing| *is_closing).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_user_and_root_may_connect() {
        assert!(may_connect(1000, 1000));
        assert!(may_connect(0, 1000));
        assert!(!may_connect(1001, 1000));
        assert!(!may_connect(1000, 0));
    }
}
