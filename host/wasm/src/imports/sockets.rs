//! `wasi:sockets`: sockets reach granted peers only, and nobody reaches them.
//!
//! A socket takes a descriptor, and the last ones are the host's.

use std::sync::Arc;

use wasmtime::{
    StoreContextMut,
    component::{Linker, Resource},
};
use wasmtime_wasi::{
    WasiCtxBuilder,
    p2::{
        TcpSocket as Tcp2, UdpSocket as Udp2,
        bindings::sockets::{network, tcp_create_socket, udp_create_socket},
    },
    p3::bindings::sockets::types as p3,
    sockets::{TcpSocket, UdpSocket, WasiSocketsView as _},
};

use super::Shadows;
use crate::{
    descriptors,
    network::{Network, Transport},
    policy::Sort,
    store::Guest,
};

/// Opens a guest's sockets as far as its grant has peers for them. A context that
/// was not touched allows none.
pub(crate) fn open(network: &Arc<Network>, wasi: &mut WasiCtxBuilder) {
    let rules = network.grant().rules();
    let (tcp, udp) = (rules.has(Transport::Tcp), rules.has(Transport::Udp));
    if !tcp && !udp {
        return;
    }
    wasi.allow_tcp(tcp);
    wasi.allow_udp(udp);
    let network = Arc::clone(network);
    wasi.socket_addr_check(move |address, used| {
        let network = Arc::clone(&network);
        Box::pin(async move { network.may_use(address, used).await })
    });
}

type Made2<T> = (Result<Resource<T>, network::ErrorCode>,);
type Made3<T> = (Result<Resource<T>, p3::ErrorCode>,);

pub(super) fn add(linker: &mut Linker<Guest>) -> Shadows {
    let tcp = linker
        .instance("wasi:sockets/tcp-create-socket@0.2.12")?
        .func_wrap("create-tcp-socket", |store, (family,)| tcp2(store, family));
    let udp = linker
        .instance("wasi:sockets/udp-create-socket@0.2.12")?
        .func_wrap_async("create-udp-socket", |store, (family,)| Box::new(udp2(store, family)));
    let mut types = linker.instance("wasi:sockets/types@0.3.0")?;
    Ok(vec![
        tcp,
        udp,
        types.func_wrap("[static]tcp-socket.create", |store, (family,)| tcp3(store, family)),
        types.func_wrap_async("[static]udp-socket.create", |store, (family,)| {
            Box::new(udp3(store, family))
        }),
    ])
}

/// Tells whether sockets of that sort are any use to the guest.
fn is_granted(store: &StoreContextMut<'_, Guest>, transport: Transport) -> bool {
    let network = &store.data().network;
    if network.grant().rules().has(transport) {
        return true;
    }
    let (sort, name) = match transport {
        Transport::Tcp => (Sort::Tcp, "tcp"),
        Transport::Udp => (Sort::Udp, "udp"),
    };
    network.denials().tell(sort, &format!("{name} is not granted"));
    false
}

fn tcp2(
    mut store: StoreContextMut<'_, Guest>,
    family: network::IpAddressFamily,
) -> wasmtime::Result<Made2<Tcp2>> {
    if !is_granted(&store, Transport::Tcp) {
        return Ok((Err(network::ErrorCode::AccessDenied),));
    }
    if !descriptors::are_left() {
        return Ok((Err(network::ErrorCode::NewSocketLimit),));
    }
    let made = tcp_create_socket::Host::create_tcp_socket(&mut store.data_mut().sockets(), family);
    made2(made)
}

async fn udp2(
    mut store: StoreContextMut<'_, Guest>,
    family: network::IpAddressFamily,
) -> wasmtime::Result<Made2<Udp2>> {
    if !is_granted(&store, Transport::Udp) {
        return Ok((Err(network::ErrorCode::AccessDenied),));
    }
    if !descriptors::are_left() {
        return Ok((Err(network::ErrorCode::NewSocketLimit),));
    }
    let mut sockets = store.data_mut().sockets();
    made2(udp_create_socket::Host::create_udp_socket(&mut sockets, family).await)
}

fn made2<T>(made: wasmtime_wasi::p2::SocketResult<Resource<T>>) -> wasmtime::Result<Made2<T>> {
    match made {
        Ok(socket) => Ok((Ok(socket),)),
        Err(error) => Ok((Err(error.downcast()?),)),
    }
}

fn tcp3(
    mut store: StoreContextMut<'_, Guest>,
    family: p3::IpAddressFamily,
) -> wasmtime::Result<Made3<TcpSocket>> {
    if !is_granted(&store, Transport::Tcp) {
        return Ok((Err(p3::ErrorCode::AccessDenied),));
    }
    if !descriptors::are_left() {
        return Ok((Err(none_left()),));
    }
    made3(p3::HostTcpSocket::create(&mut store.data_mut().sockets(), family))
}

async fn udp3(
    mut store: StoreContextMut<'_, Guest>,
    family: p3::IpAddressFamily,
) -> wasmtime::Result<Made3<UdpSocket>> {
    if !is_granted(&store, Transport::Udp) {
        return Ok((Err(p3::ErrorCode::AccessDenied),));
    }
    if !descriptors::are_left() {
        return Ok((Err(none_left()),));
    }
    made3(p3::HostUdpSocket::create(&mut store.data_mut().sockets(), family).await)
}

fn made3<T>(
    made: wasmtime_wasi::p3::sockets::SocketResult<Resource<T>>,
) -> wasmtime::Result<Made3<T>> {
    match made {
        Ok(socket) => Ok((Ok(socket),)),
        Err(error) => Ok((Err(error.downcast()?),)),
    }
}

fn none_left() -> p3::ErrorCode {
    p3::ErrorCode::Other(Some("the host has no descriptors left for guests".to_owned()))
}
