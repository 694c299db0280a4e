//! `wasi:sockets/ip-name-lookup`: only granted names may be looked up.
//!
//! A lookup itself carries data out, so an open resolver would be an open
//! network.

use std::sync::Arc;

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
    sockets::{WasiSockets, WasiSocketsView},
};

use crate::{grant, store::Guest};

const RESOLVE: &str = "resolve-addresses";

type Answer2 = (Result<Resource<p2::ResolveAddressStream>, network::ErrorCode>,);
type Answer3 = (Result<Vec<types::IpAddress>, p3::ErrorCode>,);

pub(super) fn add(linker: &mut Linker<Guest>) -> wasmtime::Result<()> {
    linker
        .instance("wasi:sockets/ip-name-lookup@0.2.12")?
        .func_wrap_async(RESOLVE, |store, params| Box::new(resolve2(store, params)))?;
    linker
        .instance("wasi:sockets/ip-name-lookup@0.3.0")?
        .func_wrap_concurrent(RESOLVE, |guest, (name,)| Box::pin(resolve3(guest, name)))
}

/// The lookup itself waits here, so that a guest has one under way and not as
/// many as it likes; what wasmtime-wasi then asks again is mostly cached.
async fn resolve2(
    mut store: StoreContextMut<'_, Guest>,
    (network, name): (Resource<Network>, String),
) -> wasmtime::Result<Answer2> {
    if !store.data().grant.net().may_resolve(&name) {
        return Ok((Err(network::ErrorCode::AccessDenied),));
    }
    if grant::lookup(&name).await.is_err() {
        return Ok((Err(network::ErrorCode::NameUnresolvable),));
    }
    match p2::Host::resolve_addresses(&mut store.data_mut().sockets(), network, name) {
        Ok(stream) => Ok((Ok(stream),)),
        Err(error) => Ok((Err(error.downcast()?),)),
    }
}

async fn resolve3(accessor: &Accessor<Guest>, name: String) -> wasmtime::Result<Answer3> {
    let (granted, lookups) = accessor.with(|mut access| {
        let guest = access.get();
        (guest.grant.net().may_resolve(&name), Arc::clone(&guest.lookups))
    });
    if !granted {
        return Ok((Err(p3::ErrorCode::AccessDenied),));
    }
    // Never closed, so a permit comes when one is free.
    let _turn = lookups.acquire().await;
    if grant::lookup(&name).await.is_err() {
        return Ok((Err(p3::ErrorCode::NameUnresolvable),));
    }
    let sockets = accessor.with_getter::<WasiSockets>(WasiSocketsView::sockets);
    Ok((p3::HostWithStore::<Guest>::resolve_addresses(&sockets, name).await?,))
}
