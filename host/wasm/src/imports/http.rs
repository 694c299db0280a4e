//! `wasi:http`: requests to granted servers only.
//!
//! The host is resolved once, and the connection goes to one of the addresses that
//! were looked at, so that no second lookup can lead elsewhere. A redirect is an
//! answer like any other: a guest that follows it makes a request of its own. TLS
//! trusts what the system trusts.
//!
//! Secrets are put into a request here, and hidden in what a server answers that
//! may have got one. Such a server is asked not to compress, as nothing would be
//! found in what it says then.

use std::{
    io,
    net::SocketAddr,
    os::fd::AsRawFd as _,
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, header::ACCEPT_ENCODING};
use http_body_util::BodyExt as _;
use hyper::body::{Body, Frame, SizeHint};
use rustls::pki_types::ServerName;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::{Instant, Sleep, sleep, timeout},
};
use tokio_rustls::TlsConnector;
use wasmtime::component::Linker;
use wasmtime_wasi_http::{
    Error, RequestOptions, WasiBody, WasiHttpCtx, WasiHttpCtxView, WasiHttpHooks, WasiHttpView,
    io::TokioIo,
};

use crate::{
    descriptors,
    network::{Host, Network, RequestError},
    policy::Scheme,
    policy::Sort,
    secret::{Masker, Secrets},
    store::Guest,
};

/// How long a step of a request may take when the guest names no time: what
/// wasmtime-wasi-http allows. A deadline of the task ends it sooner.
const PATIENCE: Duration = Duration::from_secs(600);
/// The headers of one message. Servers take 8 to 16 KiB.
const FIELD_BYTES: usize = 16 << 10;
/// What one write to a body may bring. Two of them are held for each body that a
/// guest has made, whether or not it is ever sent.
const CHUNK_BYTES: usize = 64 << 10;

pub(super) fn add(linker: &mut Linker<Guest>) -> wasmtime::Result<()> {
    wasmtime_wasi_http::p2::add_only_http_to_linker_async(linker)?;
    wasmtime_wasi_http::p3::add_to_linker(linker)
}

impl WasiHttpView for Guest {
    fn http(&mut self) -> WasiHttpCtxView<'_> {
        WasiHttpCtxView {
            hooks: &mut self.http.sender,
            table: &mut self.table,
            ctx: &mut self.http.ctx,
        }
    }
}

/// The HTTP side of one guest.
pub(crate) struct Http {
    ctx: WasiHttpCtx,
    sender: Sender,
}

impl Http {
    pub(crate) fn new(network: Arc<Network>, secrets: Option<Arc<Secrets>>) -> Self {
        let mut ctx = WasiHttpCtx::new();
        ctx.set_field_size_limit(FIELD_BYTES);
        Self { ctx, sender: Sender { network, secrets } }
    }
}

#[derive(Clone)]
struct Sender {
    network: Arc<Network>,
    secrets: Option<Arc<Secrets>>,
}

type Done = Box<dyn Future<Output = Result<(), Error>> + Send>;
type Sent = Result<(http::Response<WasiBody>, Done), Error>;

impl WasiHttpHooks for Sender {
    fn send_request(
        &mut self,
        request: http::Request<WasiBody>,
        options: Option<RequestOptions>,
        _processed: Done,
    ) -> Box<dyn Future<Output = Sent> + Send> {
        Box::new(self.clone().send(request, options))
    }

    fn p2_outgoing_body_chunk_size(&mut self) -> usize {
        CHUNK_BYTES
    }

    fn p3_outgoing_body_chunk_size(&mut self) -> usize {
        CHUNK_BYTES
    }
}

/// A server, as a request names it.
struct Server {
    scheme: Scheme,
    host: Host,
    port: u16,
}

impl Server {
    /// Reads the server from the request. `None` is told if it is none that could be
    /// granted: its host has a form of its own, or somebody's name before it.
    fn of(uri: &http::Uri) -> Result<Option<Self>, Error> {
        let scheme = match uri.scheme() == Some(&http::uri::Scheme::HTTP) {
            true => Scheme::Http,
            false => Scheme::Https,
        };
        let authority = uri.authority().ok_or(Error::HttpRequestUriInvalid)?;
        let port = match (authority.port(), authority.port_u16()) {
            (None, _) => scheme.port(),
            (Some(_), Some(port)) => port,
            (Some(_), None) => return Err(Error::HttpRequestUriInvalid),
        };
        if authority.as_str().contains('@') {
            return Ok(None);
        }
        Ok(Host::read(authority.host()).map(|host| Self { scheme, host, port }))
    }
}

impl Sender {
    async fn send(
        self,
        mut request: http::Request<WasiBody>,
        options: Option<RequestOptions>,
    ) -> Sent {
        let option = |pick: fn(&RequestOptions) -> Option<Duration>| {
            options.as_ref().and_then(pick).unwrap_or(PATIENCE)
        };
        let Some(server) = Server::of(request.uri())? else {
            let host = request.uri().authority().map_or("", |authority| authority.as_str());
            let what = format!("a request to `{host}`, which is no whole name or address");
            self.network.denials().tell(Sort::Http, &what);
            return Err(Error::HttpRequestDenied);
        };
        // The scheme and the authority are for proxies; the peer gets the path.
        *request.uri_mut() = match request.uri().path_and_query() {
            Some(path) => http::Uri::from(path.clone()),
            None => http::Uri::from_static("/"),
        };
        let secrets = self.secrets_for(&server);
        let connected = async {
            let addresses = self.addresses(&server).await?;
            if let Some(secrets) = &secrets {
                prepare(secrets, &server, request.headers_mut())?;
            }
            // Before there is a connection: a request that may not be made shows nowhere.
            let request = self.counted(request)?;
            Ok::<_, Error>((connect(&server, &addresses).await?, request))
        };
        let (stream, request) = timeout(option(|o| o.connect_timeout), connected)
            .await
            .map_err(|_| Error::ConnectionTimeout)??;
        let (response, connection) = match exchange(stream, request, &option).await {
            Ok(answer) => answer,
            // The server saw a request that was broken off.
            Err(_) if self.network.is_spent() => return Err(Error::HttpRequestDenied),
            Err(error) => return Err(error),
        };
        let patience = option(|o| o.between_bytes_timeout);
        let response = response.map(|body| Timed::new(body, patience));
        let response = match secrets {
            None => response.map(http_body_util::BodyExt::boxed_unsync),
            Some(secrets) => {
                let (mut head, body) = response.into_parts();
                secrets.mask_headers(&mut head.headers);
                http::Response::from_parts(head, Masked::new(body, secrets).boxed_unsync())
            }
        };
        let done: Done = Box::new(async move {
            match connection {
                Some(connection) => connection.await.map_err(Error::from),
                None => Ok(()),
            }
        });
        Ok((response, done))
    }

    /// Returns the secrets if the server may get one, and so may tell it.
    fn secrets_for(&self, server: &Server) -> Option<Arc<Secrets>> {
        let secrets = self.secrets.as_ref()?;
        secrets.may_go_to(server.scheme, &server.host, server.port).then(|| Arc::clone(secrets))
    }

    /// Returns where the request may go.
    async fn addresses(&self, server: &Server) -> Result<Vec<SocketAddr>, Error> {
        let Server { scheme, host, port } = server;
        match self.network.addresses(*scheme, host, *port).await {
            Ok(addresses) => Ok(addresses),
            Err(RequestError::Denied) => Err(Error::HttpRequestDenied),
            Err(RequestError::Unknown) => Err(Error::DnsError { rcode: None, info_code: None }),
        }
    }

    /// Counts the request, and returns it with its body counted where that has a limit.
    fn counted(&self, request: http::Request<WasiBody>) -> Result<http::Request<WasiBody>, Error> {
        if !self.network.spend_request() {
            return Err(Error::HttpRequestDenied);
        }
        if !self.network.counts_bytes() {
            return Ok(request);
        }
        if !self.network.spend(head_bytes(&request)) {
            return Err(Error::HttpRequestDenied);
        }
        let network = Arc::clone(&self.network);
        Ok(request.map(|body| Counted { body, network }.boxed_unsync()))
    }
}

async fn connect(server: &Server, addresses: &[SocketAddr]) -> Result<Box<dyn Stream>, Error> {
    let stream = TcpStream::connect(addresses).await.map_err(Error::Connect)?;
    if !descriptors::is_for_guests(stream.as_raw_fd()) {
        return Err(Error::Connect(rustix::io::Errno::NFILE.into()));
    }
    if server.scheme == Scheme::Http {
        return Ok(Box::new(stream));
    }
    let name = match &server.host {
        Host::Name(name) => ServerName::try_from(name.clone()),
        Host::Address(address) => Ok(ServerName::from(*address)),
    };
    let name = name.map_err(|_| Error::HttpRequestUriInvalid)?;
    let connector = TlsConnector::from(tls_config().map_err(Error::Tls)?);
    Ok(Box::new(connector.connect(name, stream).await.map_err(Error::Tls)?))
}

/// Puts the secrets into the headers of a request.
fn prepare(secrets: &Secrets, server: &Server, headers: &mut HeaderMap) -> Result<(), Error> {
    let Server { scheme, host, port } = server;
    secrets
        .fill(headers, *scheme, host, *port)
        .map_err(|error| Error::InternalError(Some(error.to_string())))?;
    if headers.contains_key(ACCEPT_ENCODING) {
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    }
    Ok(())
}

/// Returns about how many bytes the request line and the headers are on the wire.
fn head_bytes(request: &http::Request<WasiBody>) -> usize {
    const LINE: usize = "  HTTP/1.1\r\n\r\n".len();
    let path = request.uri().path_and_query().map_or(1, |path| path.as_str().len());
    LINE + request.method().as_str().len() + path + fields_bytes(request.headers())
}

fn fields_bytes(fields: &HeaderMap) -> usize {
    fields.iter().map(|(name, value)| name.as_str().len() + value.len() + ": \r\n".len()).sum()
}

type Connection = hyper::client::conn::http1::Connection<TokioIo<Box<dyn Stream>>, WasiBody>;

/// Sends the request and returns the head of the answer, with the connection if
/// there is more to come over it.
async fn exchange(
    stream: Box<dyn Stream>,
    request: http::Request<WasiBody>,
    option: &impl Fn(fn(&RequestOptions) -> Option<Duration>) -> Duration,
) -> Result<(http::Response<hyper::body::Incoming>, Option<Connection>), Error> {
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let mut connection = Some(connection);
    let reply = timeout(option(|o| o.first_byte_timeout), sender.send_request(request));
    let mut reply = std::pin::pin!(reply);
    // The reply comes only while the connection is driven.
    let response = std::future::poll_fn(|cx| {
        if let Some(driven) = connection.as_mut()
            && let Poll::Ready(result) = Pin::new(driven).poll(cx)
        {
            connection = None;
            if let Err(error) = result {
                return Poll::Ready(Err(Error::from(error)));
            }
        }
        reply.as_mut().poll(cx).map(|reply| match reply {
            Ok(reply) => reply.map_err(Error::from),
            Err(_) => Err(Error::ConnectionReadTimeout),
        })
    })
    .await?;
    Ok((response, connection))
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Returns the client's TLS settings; the system's roots are read once.
///
/// # Errors
///
/// When the system trusts no certificate, or none of its own can be read.
pub fn tls_config() -> io::Result<Arc<rustls::ClientConfig>> {
    static CONFIG: OnceLock<Arc<rustls::ClientConfig>> = OnceLock::new();
    if let Some(config) = CONFIG.get() {
        return Ok(Arc::clone(config));
    }
    let mut roots = rustls::RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        return Err(io::Error::other("the system has no trusted certificates"));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::clone(CONFIG.get_or_init(|| Arc::new(config))))
}

/// A response body that fails when its peer is silent for too long.
struct Timed {
    body: hyper::body::Incoming,
    patience: Duration,
    silence: Pin<Box<Sleep>>,
}

impl Timed {
    fn new(body: hyper::body::Incoming, patience: Duration) -> Self {
        Self { body, patience, silence: Box::pin(sleep(patience)) }
    }
}

impl Body for Timed {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Ready(frame) => {
                // A time past the clock's range means no timeout in practice.
                if let Some(then) = Instant::now().checked_add(self.patience) {
                    self.silence.as_mut().reset(then);
                }
                Poll::Ready(frame.map(|frame| frame.map_err(Error::from)))
            }
            Poll::Pending => match self.silence.as_mut().poll(cx) {
                Poll::Ready(()) => Poll::Ready(Some(Err(Error::ConnectionReadTimeout))),
                Poll::Pending => Poll::Pending,
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A request body whose bytes are counted.
struct Counted {
    body: WasiBody,
    network: Arc<Network>,
}

impl Body for Counted {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        let Some(Ok(frame)) = frame else { return Poll::Ready(frame) };
        let bytes = match frame.data_ref() {
            Some(data) => data.len(),
            None => frame.trailers_ref().map_or(0, fields_bytes),
        };
        Poll::Ready(Some(match self.network.spend(bytes) {
            true => Ok(frame),
            false => Err(Error::HttpRequestDenied),
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A response body whose secrets are hidden.
struct Masked {
    body: Timed,
    secrets: Arc<Secrets>,
    masker: Masker,
    /// What comes when all that is held back was given out.
    next: Option<Frame<Bytes>>,
    ended: bool,
}

impl Masked {
    fn new(body: Timed, secrets: Arc<Secrets>) -> Self {
        let masker = secrets.masker();
        Self { body, secrets, masker, next: None, ended: false }
    }
}

impl Body for Masked {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        let this = &mut *self;
        loop {
            if let Some(frame) = this.next.take() {
                return Poll::Ready(Some(Ok(frame)));
            }
            if this.ended {
                return Poll::Ready(None);
            }
            let masked = match ready!(Pin::new(&mut this.body).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => this.masker.mask(&data),
                    Err(mut frame) => {
                        if let Some(trailers) = frame.trailers_mut() {
                            this.secrets.mask_headers(trailers);
                        }
                        this.next = Some(frame);
                        this.masker.finish()
                    }
                },
                // The beginning of a secret does not go out because the rest is lost.
                Some(Err(error)) => {
                    this.ended = true;
                    return Poll::Ready(Some(Err(error)));
                }
                None => {
                    this.ended = true;
                    this.masker.finish()
                }
            };
            if !masked.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(masked.into()))));
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        let nothing_waits = self.next.is_none() && self.masker.held() == 0;
        nothing_waits && (self.ended || self.body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        let (hint, held) = (self.body.size_hint(), self.masker.held() as u64);
        let mut with_held = SizeHint::new();
        with_held.set_lower(hint.lower() + held);
        if let Some(upper) = hint.upper() {
            with_held.set_upper(upper + held);
        }
        with_held
    }
}
