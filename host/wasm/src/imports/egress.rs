//! `wasi:sockets` where what a guest sends is counted.
//!
//! A guest whose grant has no limit on that goes straight to wasmtime-wasi. TCP is
//! counted by a stream in front of the socket's own: past the limit it is closed.

use std::{
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use futures::{Stream as _, channel::mpsc};
use tokio::sync::oneshot;
use wasmtime::{
    StoreContextMut,
    component::{
        Access, Accessor, Destination, FutureConsumer, FutureReader, Linker, Resource, Source,
        StreamConsumer, StreamProducer, StreamReader, StreamResult,
    },
};
use wasmtime_wasi::{
    p2::{
        DynInputStream, DynOutputStream, OutputStream, Pollable, StreamError,
        StreamResult as Written, TcpSocket as Tcp2,
        bindings::sockets::{network, tcp, udp},
        pipe::ClosedOutputStream,
    },
    p3::bindings::sockets::types as p3,
    sockets::{TcpSocket, UdpSocket, WasiSockets, WasiSocketsView},
};

use super::Shadows;
use crate::{network::Network, store::Guest};

/// What one piece of a counted stream has at most: it is held until the socket
/// takes it.
const PIECE_BYTES: usize = 64 << 10;

type Streams2 =
    (Result<(Resource<DynInputStream>, Resource<DynOutputStream>), network::ErrorCode>,);
type Sent2 = (Result<u64, network::ErrorCode>,);
type Sent3 = (Result<(), p3::ErrorCode>,);
type Params3 = (Resource<UdpSocket>, Vec<u8>, Option<p3::IpSocketAddress>);

pub(super) fn add(linker: &mut Linker<Guest>) -> Shadows {
    let tcp = linker
        .instance("wasi:sockets/tcp@0.2.12")?
        .func_wrap("[method]tcp-socket.finish-connect", finish_connect2);
    let udp = linker
        .instance("wasi:sockets/udp@0.2.12")?
        .func_wrap("[method]outgoing-datagram-stream.send", send_datagrams2);
    let mut types = linker.instance("wasi:sockets/types@0.3.0")?;
    Ok(vec![
        tcp,
        udp,
        types.func_wrap("[method]tcp-socket.send", send_stream3),
        types.func_wrap_concurrent("[method]udp-socket.send", |guest, params| {
            Box::pin(send_datagram3(guest, params))
        }),
    ])
}

/// Returns the guest's network, if what it sends is counted.
fn counting(guest: &Guest) -> Option<Arc<Network>> {
    guest.network.counts_bytes().then(|| Arc::clone(&guest.network))
}

fn finish_connect2(
    mut store: StoreContextMut<'_, Guest>,
    (socket,): (Resource<Tcp2>,),
) -> wasmtime::Result<Streams2> {
    let guest = store.data_mut();
    let (input, output) = match tcp::HostTcpSocket::finish_connect(&mut guest.sockets(), socket) {
        Ok(streams) => streams,
        Err(error) => return Ok((Err(error.downcast()?),)),
    };
    if let Some(network) = counting(guest) {
        let stream = guest.table.get_mut(&output)?;
        let inner = mem::replace(stream, Box::new(ClosedOutputStream));
        *stream = Box::new(Counted { inner, network, over: false });
    }
    Ok((Ok((input, output)),))
}

/// An output stream whose bytes are counted.
struct Counted {
    inner: DynOutputStream,
    network: Arc<Network>,
    over: bool,
}

#[wasmtime_wasi::async_trait]
impl OutputStream for Counted {
    fn write(&mut self, bytes: Bytes) -> Written<()> {
        if self.over {
            return Err(StreamError::Closed);
        }
        if !self.network.spend(bytes.len()) {
            self.over = true;
            let error = wasmtime::format_err!("the limit on what this task may send is reached");
            return Err(StreamError::LastOperationFailed(error));
        }
        self.inner.write(bytes)
    }

    fn flush(&mut self) -> Written<()> {
        self.inner.flush()
    }

    fn check_write(&mut self) -> Written<usize> {
        match self.over {
            true => Err(StreamError::Closed),
            false => self.inner.check_write(),
        }
    }

    async fn cancel(&mut self) {
        self.inner.cancel().await;
    }
}

#[wasmtime_wasi::async_trait]
impl Pollable for Counted {
    async fn ready(&mut self) {
        if !self.over {
            self.inner.ready().await;
        }
    }
}

fn send_datagrams2(
    mut store: StoreContextMut<'_, Guest>,
    (stream, datagrams): (Resource<udp::OutgoingDatagramStream>, Vec<udp::OutgoingDatagram>),
) -> wasmtime::Result<Sent2> {
    let guest = store.data_mut();
    let network = counting(guest);
    let mut sizes = Vec::new();
    if let Some(network) = &network {
        sizes.extend(datagrams.iter().map(|datagram| datagram.data.len()));
        if !network.spend(sizes.iter().sum()) {
            return Ok((Err(network::ErrorCode::AccessDenied),));
        }
    }
    let sent = udp::HostOutgoingDatagramStream::send(&mut guest.sockets(), stream, datagrams);
    if let Some(network) = &network {
        let sent = sent.as_ref().map_or(0, |sent| usize::try_from(*sent).unwrap_or(usize::MAX));
        network.give_back(sizes.iter().skip(sent).sum());
    }
    match sent {
        Ok(sent) => Ok((Ok(sent),)),
        Err(error) => Ok((Err(error.downcast()?),)),
    }
}

async fn send_datagram3(
    accessor: &Accessor<Guest>,
    (socket, data, peer): Params3,
) -> wasmtime::Result<Sent3> {
    let network = accessor.with(|mut access| counting(access.get()));
    if network.is_some_and(|network| !network.spend(data.len())) {
        return Ok((Err(p3::ErrorCode::AccessDenied),));
    }
    let sockets = accessor.with_getter::<WasiSockets>(WasiSocketsView::sockets);
    match <WasiSockets as p3::HostUdpSocketWithStore<Guest>>::send(&sockets, socket, data, peer)
        .await
    {
        Ok(()) => Ok((Ok(()),)),
        Err(error) => Ok((Err(error.downcast()?),)),
    }
}

type Ended3 = FutureReader<Result<(), p3::ErrorCode>>;

/// Sends a stream. One that is counted goes through the host: what arrives at the
/// counter is handed on to another stream, which is the socket's.
fn send_stream3(
    mut store: StoreContextMut<'_, Guest>,
    (socket, data): (Resource<TcpSocket>, StreamReader<u8>),
) -> wasmtime::Result<(Ended3,)> {
    let Some(network) = counting(store.data()) else {
        return Ok((send(&mut store, socket, data)?,));
    };
    // One piece is on its way at a time: the sender of it has a place of its own.
    let (sender, pieces) = mpsc::channel(0);
    let (over, mut is_over) = oneshot::channel();
    data.pipe(&mut store, Counter { sender, network, over: Some(over) })?;
    let counted = StreamReader::new(&mut store, Pieces(pieces))?;
    let sent = send(&mut store, socket, counted)?;
    let (end, ended) = oneshot::channel();
    sent.pipe(&mut store, Ending(Some(end)))?;
    let ended = async move {
        let ended = ended.await.unwrap_or(Ok(()));
        // The counter says that it stopped before the socket can hear of it. It may
        // also be there still, when it is the socket that has ended.
        Ok::<_, wasmtime::Error>(match is_over.try_recv() {
            Ok(()) => Err(p3::ErrorCode::AccessDenied),
            Err(_) => ended,
        })
    };
    Ok((FutureReader::new(&mut store, ended)?,))
}

fn send(
    store: &mut StoreContextMut<'_, Guest>,
    socket: Resource<TcpSocket>,
    data: StreamReader<u8>,
) -> wasmtime::Result<Ended3> {
    use wasmtime::AsContextMut as _;
    let access = Access::<_, WasiSockets>::new(store.as_context_mut(), WasiSocketsView::sockets);
    <WasiSockets as p3::HostTcpSocketWithStore<Guest>>::send(access, socket, data)
}

/// Counts what a guest sends, and hands it on.
struct Counter {
    sender: mpsc::Sender<Bytes>,
    network: Arc<Network>,
    over: Option<oneshot::Sender<()>>,
}

impl StreamConsumer<Guest> for Counter {
    type Item = u8;

    fn poll_consume(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        store: StoreContextMut<'_, Guest>,
        source: Source<'_, u8>,
        finish: bool,
    ) -> Poll<wasmtime::Result<StreamResult>> {
        match self.sender.poll_ready(cx) {
            Poll::Ready(Ok(())) => {}
            // The socket takes no more.
            Poll::Ready(Err(_)) => return Poll::Ready(Ok(StreamResult::Dropped)),
            Poll::Pending if finish => return Poll::Ready(Ok(StreamResult::Cancelled)),
            Poll::Pending => return Poll::Pending,
        }
        let mut source = source.as_direct(store);
        let bytes = source.remaining();
        let bytes = &bytes[..bytes.len().min(PIECE_BYTES)];
        // An empty write asks whether there is room, and there is.
        if bytes.is_empty() {
            return Poll::Ready(Ok(StreamResult::Completed));
        }
        if !self.network.spend(bytes.len()) {
            if let Some(over) = self.over.take() {
                // Who does not wait for the end need not hear of it.
                let _ = over.send(());
            }
            self.sender.close_channel();
            return Poll::Ready(Ok(StreamResult::Dropped));
        }
        let piece = Bytes::copy_from_slice(bytes);
        let size = piece.len();
        if self.sender.start_send(piece).is_err() {
            return Poll::Ready(Ok(StreamResult::Dropped));
        }
        source.mark_read(size);
        Poll::Ready(Ok(StreamResult::Completed))
    }
}

/// What was counted, on its way to the socket.
struct Pieces(mpsc::Receiver<Bytes>);

impl StreamProducer<Guest> for Pieces {
    type Item = u8;
    type Buffer = Bytes;

    fn poll_produce<'a>(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        _store: StoreContextMut<'a, Guest>,
        mut destination: Destination<'a, u8, Bytes>,
        finish: bool,
    ) -> Poll<wasmtime::Result<StreamResult>> {
        let next = Pin::new(&mut self.0).poll_next(cx);
        if finish && next.is_pending() {
            return Poll::Ready(Ok(StreamResult::Cancelled));
        }
        Poll::Ready(Ok(match ready!(next) {
            Some(piece) => {
                destination.set_buffer(piece);
                StreamResult::Completed
            }
            None => StreamResult::Dropped,
        }))
    }
}

/// How the socket's stream has ended.
struct Ending(Option<oneshot::Sender<Result<(), p3::ErrorCode>>>);

impl FutureConsumer<Guest> for Ending {
    type Item = Result<(), p3::ErrorCode>;

    fn poll_consume(
        mut self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
        store: StoreContextMut<'_, Guest>,
        mut source: Source<'_, Self::Item>,
        _finish: bool,
    ) -> Poll<wasmtime::Result<()>> {
        let mut ended = None;
        source.read(store, &mut ended)?;
        if let (Some(end), Some(ended)) = (self.0.take(), ended) {
            // Who does not wait for the end need not hear of it.
            let _ = end.send(ended);
        }
        Poll::Ready(Ok(()))
    }
}
