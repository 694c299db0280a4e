//! `wasi:sockets/ip-name-lookup`: only granted names may be looked up.
//!
//! A lookup itself carries data out, so an open resolver would be an open
//! network.

use wasmtime::{
    StoreContextMut,
    component::{Accessor, Linker, Resource},
};
use wasmtime_wasi::{
    p2::{
        Network,
        bindings::sockets::{ip_name_lookup as p2, network},
    },
    p3::bindings::sockets::{ip_name_lookup as p3, types},
    sockets::{WasiSockets, WasiSocketsView as _},
};

use crate::store::Guest;

const RESOLVE: &str = "resolve-addresses";

type Answer2 = (Result<Resource<p2::ResolveAddressStream>, network::ErrorCode>,);
type Answer3 = (Result<Vec<types::IpAddress>, p3::ErrorCode>,);

pub(super) fn add(linker: &mut Linker<Guest>) -> wasmtime::Result<()> {
    linker.instance("wasi:sockets/ip-name-lookup@0.2.12")?.func_wrap(RESOLVE, resolve2)?;
    linker
        .instance("wasi:sockets/ip-name-lookup@0.3.0")?
        .func_wrap_concurrent(RESOLVE, |guest, (name,)| Box::pin(resolve3(guest, name)))
}

fn resolve2(
    mut store: StoreContextMut<'_, Guest>,
    (network, name): (Resource<Network>, String),
) -> wasmtime::Result<Answer2> {
    let guest = store.data_mut();
    if !guest.grant.net().may_resolve(&name) {
        return Ok((Err(network::ErrorCode::AccessDenied),));
    }
    match p2::Host::resolve_addresses(&mut guest.sockets(), network, name) {
        Ok(stream) => Ok((Ok(stream),)),
        Err(error) => Ok((Err(error.downcast()?),)),
    }
}

async fn resolve3(accessor: &Accessor<Guest>, name: String) -> wasmtime::Result<Answer3> {
    if !accessor.with(|mut access| access.get().grant.net().may_resolve(&name)) {
        return Ok((Err(p3::ErrorCode::AccessDenied),));
    }
    let sockets =
        accessor.with_getter::<WasiSockets>(wasmtime_wasi::sockets::WasiSocketsView::sockets);
    Ok((p3::HostWithStore::<Guest>::resolve_addresses(&sockets, name).await?,))
}
