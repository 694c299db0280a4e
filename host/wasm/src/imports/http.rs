//! `wasi:http`: requests to granted peers only.
//!
//! The host is resolved, the addresses are those of a granted peer, and the
//! connection goes to one of them, so that no second lookup can lead elsewhere.
//! TLS trusts what the system trusts.

use std::{
    io,
    os::fd::AsRawFd as _,
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::uri::Scheme;
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

use crate::{descriptors, grant::NetPolicy, store::Guest};

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
    pub(crate) fn new(policy: NetPolicy) -> Self {
        let mut ctx = WasiHttpCtx::new();
        ctx.set_field_size_limit(FIELD_BYTES);
        Self { ctx, sender: Sender(policy) }
    }
}

struct Sender(NetPolicy);

type Done = Box<dyn Future<Output = Result<(), Error>> + Send>;
type Sent = Result<(http::Response<WasiBody>, Done), Error>;

impl WasiHttpHooks for Sender {
    fn send_request(
        &mut self,
        request: http::Request<WasiBody>,
        options: Option<RequestOptions>,
        _processed: Done,
    ) -> Box<dyn Future<Output = Sent> + Send> {
        Box::new(send(self.0.clone(), request, options))
    }

    fn p2_outgoing_body_chunk_size(&mut self) -> usize {
        CHUNK_BYTES
    }

    fn p3_outgoing_body_chunk_size(&mut self) -> usize {
        CHUNK_BYTES
    }
}

async fn send(
    policy: NetPolicy,
    mut request: http::Request<WasiBody>,
    options: Option<RequestOptions>,
) -> Sent {
    let option = |pick: fn(&RequestOptions) -> Option<Duration>| {
        options.as_ref().and_then(pick).unwrap_or(PATIENCE)
    };
    let tls = request.uri().scheme() != Some(&Scheme::HTTP);
    let authority = request.uri().authority().ok_or(Error::HttpRequestUriInvalid)?;
    let host = authority.host().to_owned();
    let port = match (authority.port(), authority.port_u16()) {
        (None, _) => {
            if tls {
                443
            } else {
                80
            }
        }
        (Some(_), Some(port)) => port,
        (Some(_), None) => return Err(Error::HttpRequestUriInvalid),
    };

    let stream = timeout(option(|o| o.connect_timeout), connect(&policy, &host, port, tls))
        .await
        .map_err(|_| Error::ConnectionTimeout)??;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;

    // The scheme and the authority are for proxies; the peer gets the path.
    *request.uri_mut() = match request.uri().path_and_query() {
        Some(path) => http::Uri::from(path.clone()),
        None => http::Uri::from_static("/"),
    };
    let mut connection = Some(connection);
    let response = {
        let reply = timeout(option(|o| o.first_byte_timeout), sender.send_request(request));
        tokio::pin!(reply);
        // The reply comes only while the connection is driven.
        std::future::poll_fn(|cx| {
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
        .await?
    };
    let patience = option(|o| o.between_bytes_timeout);
    let response = response.map(|body| Timed::new(body, patience).boxed_unsync());
    let done: Done = Box::new(async move {
        match connection {
            Some(connection) => connection.await.map_err(Error::from),
            None => Ok(()),
        }
    });
    Ok((response, done))
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

async fn connect(
    policy: &NetPolicy,
    host: &str,
    port: u16,
    tls: bool,
) -> Result<Box<dyn Stream>, Error> {
    let addresses = policy.resolve(host, port).await.map_err(|error| {
        tracing::debug!(host, %error, "a granted host name cannot be resolved");
        Error::DnsError { rcode: None, info_code: None }
    })?;
    if addresses.is_empty() {
        return Err(Error::HttpRequestDenied);
    }
    let stream = TcpStream::connect(&*addresses).await.map_err(Error::Connect)?;
    if !descriptors::is_for_guests(stream.as_raw_fd()) {
        return Err(Error::Connect(rustix::io::Errno::NFILE.into()));
    }
    if !tls {
        return Ok(Box::new(stream));
    }
    let name = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    let name = ServerName::try_from(name).map_err(|_| Error::HttpRequestUriInvalid)?;
    let connector = TlsConnector::from(tls_config().map_err(Error::Tls)?);
    Ok(Box::new(connector.connect(name, stream).await.map_err(Error::Tls)?))
}

/// Returns the client's TLS settings; the system's roots are read once.
fn tls_config() -> io::Result<Arc<rustls::ClientConfig>> {
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
