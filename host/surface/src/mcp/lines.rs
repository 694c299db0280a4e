//! A server over a pair of streams: one message a line, as stdio has it.
//!
//! What is no message is answered with an error, and the connection goes on. The end of what
//! is read ends the server: what waits then answers with what there is, and no job is stopped
//! for it. Nothing but messages is ever written.

use std::{
    collections::HashMap,
    io, mem,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use rmcp::{
    ErrorData, RoleServer,
    model::{
        ClientJsonRpcMessage, ClientNotification, ClientRequest, ErrorCode, GetExtensions as _,
        GetMeta as _, JsonRpcMessage, ProtocolVersion, RequestId, ServerJsonRpcMessage,
    },
    service::serve_server_with_ct,
    transport::Transport,
};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader},
    pin,
    sync::{mpsc, oneshot},
    task::JoinHandle,
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use super::{
    message::{self, MESSAGE_BYTES, Malformed},
    server::{Server, Shared},
    told::Handover,
};
use crate::{
    access::Principal,
    api::Api,
    error::{Failure, Reason},
};

/// How many requests are under way on a connection at a time. A client has a few; each that
/// waits costs a task and an answer.
const REQUESTS: usize = 64;
/// How many messages wait to be written. Whoever writes more waits for the reader.
const QUEUE: usize = 16;
/// How long what is written last may take when the connection ends.
const FAREWELL: Duration = Duration::from_secs(1);
/// What is answered where too many requests are under way. The protocol leaves it to servers.
const BUSY: ErrorCode = ErrorCode(-32_000);

/// Serves one client over a pair of streams, as that principal, until what is read ends or
/// the closing resolves; what is asked then is answered with what there is.
///
/// # Errors
///
/// When the client's first message makes no session.
pub async fn serve_stream(
    api: Api,
    principal: Principal,
    read: impl AsyncRead + Send + 'static,
    write: impl AsyncWrite + Send + 'static,
    closing: impl Future<Output = ()>,
) -> Result<(), Failure> {
    let shared = Shared::new(api);
    let gone = CancellationToken::new();
    let server = Server::new(shared.clone(), principal, gone.clone());
    let lines = Lines::new(Box::pin(read), Box::pin(write), gone.clone());
    let end = CancellationToken::new();
    let serving = async {
        match Box::pin(serve_server_with_ct(server, lines, end.clone())).await {
            Ok(running) => {
                let _ = running.waiting().await;
                Ok(())
            }
            // Who came and went has asked nothing.
            Err(_) if gone.is_cancelled() || end.is_cancelled() => Ok(()),
            Err(error) => Err(Failure::new(Reason::BadRequest, error.to_string())),
        }
    };
    pin!(serving, closing);
    let served = tokio::select! {
        served = &mut serving => served,
        () = closing => {
            // Answers come first, and the end after them.
            shared.closing.cancel();
            end.cancel();
            serving.await
        }
    };
    // What was told is not to be told again only because this ends.
    let _ = timeout(FAREWELL, shared.told.settled()).await;
    served
}

/// Messages over a pair of streams.
struct Lines<R> {
    read: BufReader<R>,
    /// The line that is being read.
    line: Vec<u8>,
    /// Whether the rest of a line is passed over, which was too long.
    is_passing: bool,
    /// What is to be answered before anything else is read.
    reply: Option<ServerJsonRpcMessage>,
    /// Whether a client has said who it is.
    has_begun: bool,
    requests: Requests,
    out: Option<mpsc::Sender<Outgoing>>,
    writer: Option<JoinHandle<()>>,
    gone: CancellationToken,
}

/// The requests that are under way, with what follows on their answers.
#[derive(Clone, Default)]
struct Requests(Arc<Mutex<HashMap<RequestId, Handover>>>);

impl Requests {
    fn lock(&self) -> MutexGuard<'_, HashMap<RequestId, Handover>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A message that is to be written.
struct Outgoing {
    message: ServerJsonRpcMessage,
    /// Told once it was.
    written: oneshot::Sender<()>,
}

/// What was read of a stream.
enum Line {
    Whole(Vec<u8>),
    TooLong,
    End,
}

impl<R: AsyncRead + Send + Unpin> Lines<R> {
    fn new(read: R, write: Pin<Box<dyn AsyncWrite + Send>>, gone: CancellationToken) -> Self {
        let (out, queue) = mpsc::channel(QUEUE);
        Self {
            read: BufReader::new(read),
            line: Vec::new(),
            is_passing: false,
            reply: None,
            has_begun: false,
            requests: Requests::default(),
            out: Some(out),
            writer: Some(tokio::spawn(write_all(write, queue, gone.clone()))),
            gone,
        }
    }

    /// Reads a line. What was read of it stays where this is dropped.
    async fn next_line(&mut self) -> Line {
        loop {
            let available = match self.read.fill_buf().await {
                Ok(available) => available,
                Err(error) => {
                    tracing::debug!("a client cannot be read from: {error}");
                    return Line::End;
                }
            };
            if available.is_empty() {
                // The last line may lack its end.
                return match (self.is_passing, mem::take(&mut self.line)) {
                    (false, line) if !line.is_empty() => Line::Whole(line),
                    _ => Line::End,
                };
            }
            let end = available.iter().position(|byte| *byte == b'\n');
            let taken = end.map_or(available.len(), |end| end + 1);
            let is_too_long = self.line.len() + taken > MESSAGE_BYTES;
            if !self.is_passing && !is_too_long {
                self.line.extend_from_slice(&available[..taken]);
            }
            self.read.consume(taken);
            let was_passing = self.is_passing;
            self.is_passing = end.is_none() && (was_passing || is_too_long);
            if was_passing {
                continue;
            }
            if is_too_long {
                self.line = Vec::new();
                return Line::TooLong;
            }
            if end.is_some() {
                return Line::Whole(mem::take(&mut self.line));
            }
        }
    }

    /// Returns the message if it is for the server, or what is answered to it.
    fn admit(
        &mut self,
        message: ClientJsonRpcMessage,
    ) -> Result<Option<ClientJsonRpcMessage>, Malformed> {
        let mut message = message;
        match &mut message {
            JsonRpcMessage::Request(request) => {
                let refuse = |code, why: String| {
                    let (id, error) = (request.id.clone(), ErrorData::new(code, why, None));
                    Err(Malformed { id: Some(id), error })
                };
                let mut under_way = self.requests.lock();
                if under_way.contains_key(&request.id) {
                    // Whose answer would be whose?
                    let why = "a request with this id is under way".to_owned();
                    return refuse(ErrorCode::INVALID_REQUEST, why);
                }
                if under_way.len() >= REQUESTS {
                    let why = format!("{REQUESTS} requests are under way: wait for an answer");
                    return refuse(BUSY, why);
                }
                let handover = Handover::default();
                under_way.insert(request.id.clone(), handover.clone());
                drop(under_way);
                self.has_begun |= begins(&request.request);
                request.request.extensions_mut().insert(handover);
            }
            JsonRpcMessage::Notification(notification) => {
                if let ClientNotification::CancelledNotification(cancelled) =
                    &notification.notification
                    && let Some(id) = &cancelled.params.request_id
                {
                    // It is not answered any more.
                    self.requests.lock().remove(id);
                }
            }
            JsonRpcMessage::Response(_) | JsonRpcMessage::Error(_) => {}
        }
        // Before a client has said who it is, there is nobody to notify.
        let is_request = matches!(message, JsonRpcMessage::Request(_));
        Ok((self.has_begun || is_request).then_some(message))
    }
}

/// Tells whether a session begins with a request.
fn begins(request: &ClientRequest) -> bool {
    match request {
        ClientRequest::InitializeRequest(_) => true,
        ClientRequest::PingRequest(_) | ClientRequest::DiscoverRequest(_) => false,
        request => {
            let meta = request.get_meta();
            let version = meta.protocol_version();
            meta.missing_required_keys(&ProtocolVersion::V_2026_07_28).is_empty()
                && version.is_some_and(|it| ProtocolVersion::KNOWN_VERSIONS.contains(&it))
        }
    }
}

impl<R: AsyncRead + Send + Unpin> Transport<RoleServer> for Lines<R> {
    type Error = io::Error;

    fn send(
        &mut self,
        message: ServerJsonRpcMessage,
    ) -> impl Future<Output = io::Result<()>> + Send + 'static {
        let (out, requests) = (self.out.clone(), self.requests.clone());
        async move {
            let id = match &message {
                JsonRpcMessage::Response(response) => Some(response.id.clone()),
                JsonRpcMessage::Error(error) => error.id.clone(),
                JsonRpcMessage::Request(_) | JsonRpcMessage::Notification(_) => None,
            };
            let closed = || io::Error::from(io::ErrorKind::BrokenPipe);
            let (written, is_written) = oneshot::channel();
            let out = out.ok_or_else(closed)?;
            out.send(Outgoing { message, written }).await.map_err(|_| closed())?;
            let is_written = is_written.await;
            // The place is taken for as long as the answer is.
            let handover = id.and_then(|id| requests.lock().remove(&id));
            is_written.map_err(|_| closed())?;
            if let Some(handover) = handover {
                handover.given();
            }
            Ok(())
        }
    }

    async fn receive(&mut self) -> Option<ClientJsonRpcMessage> {
        loop {
            if self.reply.is_some() {
                // Nothing is lost where this is dropped while it waits for room.
                let place = self.out.as_ref()?.reserve().await.ok()?;
                if let Some(message) = self.reply.take() {
                    place.send(Outgoing { message, written: oneshot::channel().0 });
                }
            }
            let gone = self.gone.clone();
            let line = tokio::select! {
                biased;
                () = gone.cancelled() => Line::End,
                line = self.next_line() => line,
            };
            let read = match line {
                Line::Whole(line) if line.trim_ascii().is_empty() => continue,
                Line::Whole(line) => message::read(line.trim_ascii(), None),
                Line::TooLong => Err(Malformed {
                    id: None,
                    error: ErrorData::invalid_request(
                        format!("a message has {MESSAGE_BYTES} bytes at most"),
                        None,
                    ),
                }),
                Line::End => {
                    // What waits answers, and then it is over.
                    self.gone.cancel();
                    return None;
                }
            };
            match read.and_then(|message| self.admit(message)) {
                Ok(Some(message)) => return Some(message),
                Ok(None) => {}
                Err(Malformed { id, error }) => {
                    self.reply = Some(ServerJsonRpcMessage::error(error, id));
                }
            }
        }
    }

    async fn close(&mut self) -> io::Result<()> {
        drop(self.out.take());
        if let Some(mut writer) = self.writer.take()
            && timeout(FAREWELL, &mut writer).await.is_err()
        {
            // Nobody reads any more.
            writer.abort();
        }
        Ok(())
    }
}

/// Writes messages, one a line, until there are no more or nobody reads them.
async fn write_all(
    mut write: Pin<Box<dyn AsyncWrite + Send>>,
    mut queue: mpsc::Receiver<Outgoing>,
    gone: CancellationToken,
) {
    while let Some(Outgoing { message, written }) = queue.recv().await {
        let mut line = match serde_json::to_vec(&message) {
            Ok(line) => line,
            Err(error) => {
                tracing::error!("a message cannot be written as JSON: {error}");
                continue;
            }
        };
        line.push(b'\n');
        let done = async {
            write.write_all(&line).await?;
            write.flush().await
        };
        if let Err(error) = done.await {
            tracing::debug!("a client cannot be written to: {error}");
            gone.cancel();
            return;
        }
        // It may be that nobody wants to know.
        let _ = written.send(());
    }
    let _ = write.shutdown().await;
}
