//! Connections: who may have one, how many there are, and how they end.

use std::{io, sync::Arc, time::Duration};

use axum::{Router, http::header, response::IntoResponse};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use rustix::process::geteuid;
use tokio::{
    net::{UnixListener, UnixStream},
    pin,
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    task::JoinSet,
    time::{sleep, timeout},
};

use super::{Surface, operated, routes};
use crate::{
    api::Api,
    error::{Failure, Reason},
};

/// How many connections there are at a time: each follower of a job has one, and a file
/// descriptor of the host with it.
const CONNECTIONS: usize = 256;
/// How many more are told that there are too many. Others are closed at once.
const TURNED_AWAY: usize = 16;
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

/// Serves whoever connects, until the shutdown resolves; those who wait are then
/// answered with what there is.
///
/// Only processes of this user, and of root, are served, whoever else can reach the
/// socket.
pub async fn serve(listener: UnixListener, api: Api, shutdown: impl Future<Output = ()>) {
    let (close, closing) = watch::channel(false);
    let service = operated(routes(Surface::new(api, closing.clone())));
    let full = Router::new().fallback(turn_away);
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    let doorstep = Arc::new(Semaphore::new(TURNED_AWAY));
    let mut connections = JoinSet::new();
    pin!(shutdown);
    loop {
        let accepted = tokio::select! {
            () = &mut shutdown => break,
            // What has ended is let go of.
            Some(_) = connections.join_next() => continue,
            accepted = accept(&listener) => accepted,
        };
        let stream = match accepted {
            Ok(stream) => stream,
            Err(error) => {
                tracing::warn!("nobody can be let in: {error}");
                sleep(PAUSE).await;
                continue;
            }
        };
        let (service, place) = match places.clone().try_acquire_owned() {
            Ok(place) => (service.clone(), Some(place)),
            Err(_) => (full.clone(), doorstep.clone().try_acquire_owned().ok()),
        };
        if let Some(place) = place {
            connections.spawn(converse(stream, service, closing.clone(), place));
        }
    }
    drop(listener);
    close.send_replace(true);
    let all = async { while connections.join_next().await.is_some() {} };
    if timeout(FAREWELL, all).await.is_err() {
        tracing::warn!("connections were cut that did not end in time");
    }
}

/// Lets the next one in that may be.
async fn accept(listener: &UnixListener) -> io::Result<UnixStream> {
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

/// Answers what is asked on a connection.
async fn converse(
    stream: UnixStream,
    service: Router,
    closing: watch::Receiver<bool>,
    _place: OwnedSemaphorePermit,
) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME)
        .max_buf_size(HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
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
