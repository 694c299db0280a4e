//! A program that makes requests, without Backlot: wasmtime-wasi-http, and what has to
//! be brought to it to send a request over a connection of its own.

use std::{future::poll_fn, path::Path, pin::Pin, task::Poll};

use ::backlot::wasm::EngineConfig;
use http_body_util::BodyExt as _;
use tokio::net::TcpStream;
use wasmtime::{
    Result, Store, UpdateDeadline,
    component::{Component, Linker, ResourceTable},
};
use wasmtime_wasi::{WasiCtx, WasiCtxView, WasiView, p2::bindings::CommandPre};
use wasmtime_wasi_http::{
    Error, RequestOptions, WasiBody, WasiHttpCtx, WasiHttpCtxView, WasiHttpHooks, WasiHttpView,
    io::TokioIo,
};

pub(crate) struct BareHttp {
    engine: wasmtime::Engine,
    program: CommandPre<Guest>,
}

struct Guest {
    wasi: WasiCtx,
    http: WasiHttpCtx,
    hooks: Hooks,
    table: ResourceTable,
}

impl WasiView for Guest {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView { ctx: &mut self.wasi, table: &mut self.table }
    }
}

impl WasiHttpView for Guest {
    fn http(&mut self) -> WasiHttpCtxView<'_> {
        WasiHttpCtxView { hooks: &mut self.hooks, table: &mut self.table, ctx: &mut self.http }
    }
}

impl BareHttp {
    pub(crate) fn new(runtime: tokio::runtime::Handle, program: &Path) -> Result<Self> {
        let engine = wasmtime::Engine::new(&EngineConfig::new(runtime).settings())?;
        let mut linker = Linker::new(&engine);
        wasmtime_wasi::p2::add_to_linker_async(&mut linker)?;
        wasmtime_wasi_http::p2::add_only_http_to_linker_async(&mut linker)?;
        let component = Component::from_file(&engine, program)?;
        let program = CommandPre::new(linker.instantiate_pre(&component)?)?;
        Ok(Self { engine, program })
    }

    /// Runs the program with these arguments.
    pub(crate) async fn run(&self, args: &[String]) -> Result<()> {
        let guest = Guest {
            wasi: WasiCtx::builder().arg("fetch").args(args).build(),
            http: WasiHttpCtx::new(),
            hooks: Hooks,
            table: ResourceTable::new(),
        };
        let mut store = Store::new(&self.engine, guest);
        store.set_epoch_deadline(1);
        store.epoch_deadline_callback(|_| Ok(UpdateDeadline::Yield(1)));
        let program = self.program.instantiate_async(&mut store).await?;
        let ended = program.wasi_cli_run().call_run(&mut store).await?;
        ended.map_err(|()| wasmtime::format_err!("the program failed"))
    }
}

struct Hooks;

type Done = Box<dyn Future<Output = Result<(), Error>> + Send>;
type Sent = Result<(http::Response<WasiBody>, Done), Error>;

impl WasiHttpHooks for Hooks {
    fn send_request(
        &mut self,
        request: http::Request<WasiBody>,
        _options: Option<RequestOptions>,
        _processed: Done,
    ) -> Box<dyn Future<Output = Sent> + Send> {
        Box::new(send(request))
    }
}

/// Does what wasmtime-wasi-http's own sender does, less its timeouts and TLS.
async fn send(mut request: http::Request<WasiBody>) -> Sent {
    let authority = request.uri().authority().ok_or(Error::HttpRequestUriInvalid)?;
    let stream = TcpStream::connect(authority.as_str()).await.map_err(Error::Connect)?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let path = request.uri().path_and_query().cloned();
    *request.uri_mut() = path.map_or_else(|| http::Uri::from_static("/"), http::Uri::from);
    let mut connection = Some(connection);
    let mut reply = std::pin::pin!(sender.send_request(request));
    // The reply comes only while the connection is driven.
    let response = poll_fn(|cx| {
        if let Some(driven) = connection.as_mut()
            && let Poll::Ready(result) = Pin::new(driven).poll(cx)
        {
            connection = None;
            if let Err(error) = result {
                return Poll::Ready(Err(Error::from(error)));
            }
        }
        reply.as_mut().poll(cx).map_err(Error::from)
    })
    .await?;
    let done: Done = Box::new(async move {
        match connection {
            Some(connection) => connection.await.map_err(Error::from),
            None => Ok(()),
        }
    });
    Ok((response.map(|body| body.map_err(Error::from).boxed_unsync()), done))
}
