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
mod serve;
mod sessions;
mod stall;
mod stream;
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
    routing::{delete, get, post, put},
};
use tokio::sync::{Semaphore, watch};

pub(crate) use self::{ask::caller, bridge::PROTOCOL};
pub use self::{
    ask::{BODY_BYTES, SESSION_HEADER},
    guard::Guard,
    listen::{BindRefused, Bound, ListenError, Warning, listen_tcp, may_bind},
    rate::Rate,
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
    Router::new()
        .route("/v1/jobs", post(jobs::spawn).get(jobs::list))
        // Whoever asks for the head alone is told nothing, and nothing is settled by it.
        .route("/v1/jobs/{id}", get(jobs::look).head(no_method).delete(jobs::remove))
        .route("/v1/jobs/{id}/output", get(output::read))
        .route("/v1/jobs/{id}/stream", get(follow::stream))
        .route("/v1/jobs/{id}/stop", post(jobs::stop))
        .route("/v1/jobs/{id}/retry", post(jobs::retry))
        .route("/v1/jobs/{id}/answer", post(jobs::answer))
        .route("/v1/jobs/{id}/files", get(jobs::files))
        .route("/v1/jobs/{id}/files/{*path}", get(jobs::file))
        .route("/v1/prune", post(host::prune))
        .route("/v1/backup", post(host::backup))
        .route("/v1/health", get(host::health))
        .route("/v1/sessions/{id}", put(sessions::open))
        .route("/v1/sessions/{id}", delete(sessions::remove))
        .route("/v1/sessions/{id}/entries", get(sessions::entries).post(sessions::append))
        .route("/v1/sessions/{id}/owed", get(sessions::owed))
        .route("/v1/sessions/{id}/settle", post(sessions::settle))
        .route("/v1/events", get(events::stream))
        .route("/v1/tasks", get(tasks::list))
        .route("/v1/tasks/{id}", get(tasks::look))
        .route("/v1/tasks/{id}/stop", post(tasks::stop))
        .route("/v1/kinds", get(kinds::list))
        .route("/v1/kinds/{kind}", get(kinds::look))
        .route("/v1/kinds/{kind}/load", post(kinds::load))
        .route("/v1/kinds/{kind}/drain", post(kinds::drain))
        .route("/v1/kinds/{kind}/unload", post(kinds::unload))
        .route("/v1/kinds/{kind}/rollback", post(kinds::rollback))
        .route("/v1/reload", post(kinds::reload))
        .route("/v1/mcp", get(bridge::open).head(no_method))
        .route("/v1/live", get(host::live))
        .route("/v1/ready", get(host::ready))
        .route("/v1/shutdown", post(host::shutdown))
        .route("/metrics", get(metrics::page))
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
