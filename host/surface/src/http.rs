//! Jobs as JSON over HTTP.
//!
//! Every answer is JSON, and what went wrong is a problem of RFC 9457; only the content of
//! files is what it is. Whoever is connected to the socket is the operator, and over the
//! network it is who the token says; a header narrows either to a session, which then is all
//! there is.

mod ask;
mod bridge;
mod chunks;
mod events;
mod follow;
mod guard;
mod host;
mod jobs;
mod kinds;
mod listen;
mod metrics;
mod output;
mod rate;
mod readers;
mod room;
mod routes;
mod serve;
mod sessions;
mod stall;
mod stream;
mod table;
mod tasks;
mod tls;

use std::{future::pending, sync::Arc};

use axum::{
    Extension, Json, Router,
    http::{
        HeaderValue, Uri,
        header::{CONTENT_TYPE, RETRY_AFTER},
    },
    middleware::from_fn_with_state,
    response::{IntoResponse, Response},
    routing::get,
};
use tokio::sync::{Semaphore, watch};

pub(crate) use self::{ask::caller, bridge::PROTOCOL, routes::addresses};
pub use self::{
    ask::{BODY_BYTES, SESSION_HEADER},
    guard::Guard,
    listen::{BindRefused, Bound, ListenError, Warning, listen_tcp, may_bind},
    rate::Rate,
    routes::description,
    serve::{Door, serve},
    tls::{TlsError, tls_config},
};
use self::{chunks::Chunks, readers::Readers};
use crate::{
    access::Principal,
    api::Api,
    error::{Failure, Reason},
    mcp,
};

/// The media type of what went wrong (RFC 9457).
const PROBLEM: HeaderValue = HeaderValue::from_static("application/problem+json");

/// Returns what answers requests to a host, all of them the operator's.
pub fn router(api: Api) -> Router {
    // Nobody will tell it to close.
    operated(routes(Surface::new(api, watch::channel(false).1)))
}

/// Takes whoever asks for the operator.
fn operated(routes: Router) -> Router {
    routes.layer(Extension(Principal::operator("operator")))
}

fn routes(surface: Surface) -> Router {
    let mcp = mcp::router(surface.api.clone(), surface.closing.clone());
    routes::table()
        .router
        // What goes on behind it is no HTTP, and is described nowhere else either.
        .route("/v1/mcp", get(bridge::open).head(no_method))
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .layer(from_fn_with_state(surface.clone(), metrics::count))
        .with_state(surface)
        .merge(mcp)
}

/// What the routes share.
#[derive(Clone)]
struct Surface {
    api: Api,
    readers: Arc<Readers>,
    /// What was read last for those who follow output.
    chunks: Arc<Chunks>,
    /// Places for streams.
    streams: Arc<Semaphore>,
    /// Places for kinds that are being drained.
    drains: Arc<Semaphore>,
    /// Places for agents that another process stands before.
    bridges: Arc<Semaphore>,
    closing: watch::Receiver<bool>,
}

impl Surface {
    fn new(api: Api, closing: watch::Receiver<bool>) -> Self {
        Self {
            api,
            readers: Arc::default(),
            chunks: Arc::default(),
            streams: Arc::new(stream::places()),
            drains: Arc::new(kinds::drains()),
            bridges: Arc::new(Semaphore::new(bridge::BRIDGES as usize)),
            closing,
        }
    }

    /// Tells whether what waits is to answer with what there is.
    fn is_closing(&self) -> bool {
        *self.closing.borrow()
    }

    /// Waits until what waits is to answer with what there is.
    async fn closing(&self) {
        let mut closing = self.closing.clone();
        if closing.wait_for(|is_closing| *is_closing).await.is_err() {
            pending::<()>().await;
        }
    }
}

async fn no_route(uri: Uri) -> Failure {
    let path: String = uri.path().chars().take(256).collect();
    Failure::new(Reason::NoRoute, format!("there is no {path}"))
}

async fn no_method(uri: Uri) -> Failure {
    let path: String = uri.path().chars().take(256).collect();
    Failure::new(Reason::NoMethod, format!("{path} takes no such requests"))
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let status = self.reason.status();
        if status.is_server_error() {
            tracing::warn!(code = self.reason.code(), "a request failed: {self}");
        }
        let retry = self.reason.retry_after();
        let retry = retry.map(|after| [(RETRY_AFTER, HeaderValue::from(after.as_secs()))]);
        let mut response = (status, retry, Json(self.reply())).into_response();
        response.headers_mut().insert(CONTENT_TYPE, PROBLEM);
        response
    }
}

/// Drives what changes something to its end, also where who asked for it goes away.
pub(crate) async fn to_the_end<T: Send + 'static>(
    work: impl Future<Output = Result<T, Failure>> + Send + 'static,
) -> Result<T, Failure> {
    let done = tokio::spawn(work).await;
    done.unwrap_or_else(|error| {
        tracing::error!("a request was not done: {error}");
        Err(Failure::new(Reason::Internal, "the host failed over it"))
    })
}
