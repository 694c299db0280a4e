//! A server over streamable HTTP, under `/mcp`.
//!
//! Up to revision 2025-11-25 a client has a session of the transport. It belongs to the
//! principal that began it: to anybody else it is not there. What a client works for does
//! not hang on it, so one that begins anew finds its jobs again. From 2026-07-28 on there
//! are none, and each request stands for itself.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    task::{Poll, ready},
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{Request, State},
    http::{HeaderMap, Method, StatusCode, header},
    response::{IntoResponse, Response},
    routing::any,
};
use backlot_registry::Caller;
use futures::{Stream, StreamExt as _, stream::poll_fn};
use http_body_util::{BodyExt as _, Limited};
use rmcp::{
    model::{
        ClientJsonRpcMessage, ClientRequest, ErrorCode, JsonRpcError, JsonRpcMessage,
        ServerJsonRpcMessage,
    },
    transport::{
        StreamableHttpServerConfig, StreamableHttpService,
        streamable_http_server::session::{
            ServerSseMessage, SessionId, SessionManager,
            local::{LocalSessionManager, LocalSessionManagerError, SessionConfig},
        },
    },
};
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    message::{self, MESSAGE_BYTES, Malformed},
    server::{Server, Shared},
    told::Handover,
};
use crate::{
    access::{Principal, Role},
    api::Api,
    error::{Failure, Reason},
    http::{SESSION_HEADER, caller},
};

/// How many sessions of the transport there are at a time, and how many of one principal.
/// Past that the one that was used least recently ends, whose client begins anew.
const SESSIONS: usize = 256;
const SESSIONS_OF_ONE: usize = 64;
/// How long a session is kept that is not used. A person may be away for a while.
const IDLE: Duration = Duration::from_secs(30 * 60);
/// How long a message may take to come. It is as long as one of 16 MiB over a slow line.
const BODY_TIME: Duration = Duration::from_secs(30);
/// How long answers have to be sent when the host ends, before streams are cut.
const FAREWELL: Duration = Duration::from_secs(1);
/// How often a stream that says nothing shows that it is there.
const HEARTBEAT: Duration = Duration::from_secs(15);

const SESSION_ID: &str = "mcp-session-id";
const REVISION: &str = "mcp-protocol-version";

tokio::task_local! {
    /// Who asks, for what is called in the middle of a request.
    static ASKER: Principal;
}

/// Returns what answers under `/mcp`. Whoever let a request in has put its principal into
/// the request's extensions, and has checked where it comes from. Once the closing is true,
/// what waits answers with what there is, and then what is still open ends.
pub fn router(api: Api, closing: watch::Receiver<bool>) -> Router {
    let shared = Shared::new(api);
    let cut = CancellationToken::new();
    let mut sessions = LocalSessionManager::default();
    sessions.session_config = session_config();
    let sessions = Arc::new(Sessions { sessions, owners: Mutex::default() });
    let mut config = StreamableHttpServerConfig::default()
        .disable_allowed_hosts()
        .disable_allowed_origins()
        .with_sse_keep_alive(Some(HEARTBEAT))
        .with_max_request_body_bytes(MESSAGE_BYTES)
        .with_cancellation_token(cut.clone());
    config.sse_retry = Some(Duration::from_secs(3));
    let of = shared.clone();
    let begin = move || {
        let asker = ASKER.try_with(Clone::clone).map_err(std::io::Error::other)?;
        Ok(Server::new(of.clone(), asker, CancellationToken::new()))
    };
    let service = StreamableHttpService::new(begin, sessions.clone(), config);
    let front = Front { service, sessions, ending: Arc::default(), closing, shared, cut };
    Router::new().route("/mcp", any(answer)).with_state(front)
}

fn session_config() -> SessionConfig {
    let mut config = SessionConfig::default();
    config.keep_alive = Some(IDLE);
    config
}

#[derive(Clone)]
struct Front {
    service: StreamableHttpService<Server, Sessions>,
    sessions: Arc<Sessions>,
    /// What ends the streams when the host does, once there was a request.
    ending: Arc<OnceLock<()>>,
    closing: watch::Receiver<bool>,
    shared: Shared,
    /// Cuts what is still there after that.
    cut: CancellationToken,
}

impl Front {
    /// Has what waits answer, and streams end, when the host does.
    fn heed_closing(&self) {
        self.ending.get_or_init(|| {
            let (mut closing, cut) = (self.closing.clone(), self.cut.clone());
            let waits = self.shared.closing.clone();
            tokio::spawn(async move {
                if closing.wait_for(|is_closing| *is_closing).await.is_ok() {
                    waits.cancel();
                    sleep(FAREWELL).await;
                    cut.cancel();
                }
            });
        });
    }
}

async fn answer(State(front): State<Front>, request: Request) -> Result<Response, Failure> {
    let asker = request.extensions().get::<Principal>().cloned();
    let asker = asker.ok_or_else(|| Failure::new(Reason::Forbidden, "who asks?"))?;
    let asker = narrowed(asker, request.headers())?;
    front.heed_closing();
    if let Some(id) = request.headers().get(SESSION_ID) {
        let id = id.to_str().unwrap_or_default();
        if !front.sessions.is_of(id, &asker) {
            // As one that never was.
            return Ok((StatusCode::NOT_FOUND, "Not Found: Session not found").into_response());
        }
    }
    let request = match *request.method() == Method::POST {
        true => match checked(request, &front.shared).await {
            Ok(request) => request,
            Err(refused) => return Ok(refused),
        },
        false => request,
    };
    let (mut parts, body) = request.into_parts();
    let handover = Handover::default();
    parts.extensions.insert(handover.clone());
    let request = Request::from_parts(parts, body);
    let response = ASKER.scope(asker, front.service.handle(request)).await;
    let (parts, body) = response.into_parts();
    // What follows on the answer follows once all of it was taken to be sent. A call that
    // was cancelled has a response without one.
    let mut pieces = body.into_data_stream();
    let mut has_answer = false;
    let pieces = poll_fn(move |context| {
        let piece = ready!(pieces.poll_next_unpin(context));
        match &piece {
            Some(Ok(bytes)) => has_answer |= is_answer(bytes),
            None if has_answer => handover.given(),
            Some(Err(_)) | None => {}
        }
        Poll::Ready(piece)
    });
    Ok(Response::from_parts(parts, Body::from_stream(pieces)))
}

/// Returns who asks, narrowed to a session where a header says so.
fn narrowed(asker: Principal, headers: &HeaderMap) -> Result<Principal, Failure> {
    if !headers.contains_key(SESSION_HEADER) {
        return Ok(asker);
    }
    match (caller(&asker, headers)?, asker.role()) {
        (Caller::Session(session), Role::Observer) => {
            Ok(Principal::observer(asker.name(), Some(session)))
        }
        (Caller::Session(session), _) => Ok(Principal::user(asker.name(), session)),
        (Caller::Operator | Caller::Anyone, _) => Ok(asker),
    }
}

/// Tells whether a piece of a response has an answer: no notification has such a key, and in
/// a text its quotes would be escaped.
fn is_answer(piece: &[u8]) -> bool {
    const KEY: &[u8] = b"\"result\":";
    piece.windows(KEY.len()).any(|bytes| bytes == KEY)
}

/// Returns a request whose body is a message, or what is answered to it.
async fn checked(request: Request, shared: &Shared) -> Result<Request, Response> {
    let (parts, body) = request.into_parts();
    let is_json = parts.headers.get(header::CONTENT_TYPE).and_then(|it| it.to_str().ok());
    let is_json = is_json.is_some_and(|it| {
        it.split(';').next().is_some_and(|it| it.trim().eq_ignore_ascii_case("application/json"))
    });
    if !is_json {
        let why = "Unsupported Media Type: Content-Type must be application/json";
        return Err((StatusCode::UNSUPPORTED_MEDIA_TYPE, why).into_response());
    }
    let read = timeout(BODY_TIME, Limited::new(body, MESSAGE_BYTES).collect()).await;
    let bytes: Bytes = match read {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => {
            let why = format!("more than {MESSAGE_BYTES} bytes were sent");
            return Err(Failure::new(Reason::TooLarge, why).into_response());
        }
        Ok(Err(error)) => {
            let why = format!("what was sent cannot be read: {error}");
            return Err(Failure::new(Reason::BadRequest, why).into_response());
        }
        Err(_) => {
            let why = "what was sent did not come in time";
            return Err(Failure::new(Reason::TooSlow, why).into_response());
        }
    };
    let revision = parts.headers.get(REVISION).and_then(|revision| revision.to_str().ok());
    match message::read(&bytes, revision) {
        Ok(message) => {
            if is_call(&message) {
                // Its headers are held against what the kind asks for.
                shared.kinds_are_known().await;
            }
            Ok(Request::from_parts(parts, Body::from(bytes)))
        }
        Err(Malformed { id, error }) => {
            let status = match error.code {
                ErrorCode::METHOD_NOT_FOUND => StatusCode::NOT_FOUND,
                _ => StatusCode::BAD_REQUEST,
            };
            Err((status, axum::Json(JsonRpcError::new(id, error))).into_response())
        }
    }
}

fn is_call(message: &ClientJsonRpcMessage) -> bool {
    let JsonRpcMessage::Request(request) = message else { return false };
    matches!(&request.request, ClientRequest::CallToolRequest(_))
}

/// The sessions of the transport, and whose they are.
struct Sessions {
    sessions: LocalSessionManager,
    owners: Mutex<HashMap<SessionId, Owner>>,
}

struct Owner {
    principal: Principal,
    used: Instant,
}

impl Sessions {
    fn owners(&self) -> MutexGuard<'_, HashMap<SessionId, Owner>> {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells whether there is such a session of that principal, which uses it now.
    fn is_of(&self, id: &str, asker: &Principal) -> bool {
        let mut owners = self.owners();
        let owner = owners.get_mut(id).filter(|owner| owner.principal == *asker);
        owner.map(|owner| owner.used = Instant::now()).is_some()
    }

    /// Returns a session that has to end for another one to begin, if one has to.
    fn surplus(&self, asker: &Principal) -> Option<SessionId> {
        let owners = self.owners();
        let least = |of_one: bool| {
            let candidates = owners.iter().filter(|(_, it)| !of_one || it.principal == *asker);
            candidates.min_by_key(|(_, owner)| owner.used).map(|(id, _)| id.clone())
        };
        let own = owners.values().filter(|owner| owner.principal == *asker).count();
        match () {
            () if own >= SESSIONS_OF_ONE => least(true),
            () if owners.len() >= SESSIONS => least(false),
            () => None,
        }
    }
}

impl SessionManager for Sessions {
    type Error = LocalSessionManagerError;
    type Transport = <LocalSessionManager as SessionManager>::Transport;

    async fn create_session(&self) -> Result<(SessionId, Self::Transport), Self::Error> {
        let asker = ASKER.try_with(Clone::clone).ok();
        if let Some(surplus) = asker.as_ref().and_then(|asker| self.surplus(asker)) {
            tracing::debug!("a session over MCP ends for another one");
            let _ = self.close_session(&surplus).await;
        }
        let (id, transport) = self.sessions.create_session().await?;
        if let Some(principal) = asker {
            self.owners().insert(id.clone(), Owner { principal, used: Instant::now() });
        }
        Ok((id, transport))
    }

    async fn initialize_session(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<ServerJsonRpcMessage, Self::Error> {
        self.sessions.initialize_session(id, message).await
    }

    async fn has_session(&self, id: &SessionId) -> Result<bool, Self::Error> {
        self.sessions.has_session(id).await
    }

    async fn close_session(&self, id: &SessionId) -> Result<(), Self::Error> {
        self.owners().remove(id);
        self.sessions.close_session(id).await
    }

    async fn create_stream(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        self.sessions.create_stream(id, message).await
    }

    async fn accept_message(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<(), Self::Error> {
        self.sessions.accept_message(id, message).await
    }

    async fn create_standalone_stream(
        &self,
        id: &SessionId,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        self.sessions.create_standalone_stream(id).await
    }

    async fn resume(
        &self,
        id: &SessionId,
        last_event_id: String,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        self.sessions.resume(id, last_event_id).await
    }
}
