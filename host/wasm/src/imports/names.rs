//! `wasi:sockets/ip-name-lookup`: only granted names may be looked up.
//!
//! A lookup itself carries data out, so an open resolver would be an open
//! network. Names are ASCII, as they are on the wire.

use std::{net::IpAddr, sync::Arc, vec};

use wasmtime::{
    StoreContextMut,
    component::{Accessor, Linker, Resource, ResourceType},
};
use wasmtime_wasi::{
    p2::{DynPollable, Network as Network2, Pollable, bindings::sockets::network, subscribe},
    p3::bindings::sockets::{ip_name_lookup as p3, types},
};

use super::Shadows;
use crate::{network::LookupError, store::Guest};

const RESOLVE: &str = "resolve-addresses";
const STREAM: &str = "resolve-address-stream";

type Answer2 = (Result<Resource<Found>, network::ErrorCode>,);
type Next2 = (Result<Option<network::IpAddress>, network::ErrorCode>,);
type Answer3 = (Result<Vec<types::IpAddress>, p3::ErrorCode>,);

pub(super) fn add(linker: &mut Linker<Guest>) -> Shadows {
    let mut names = linker.instance("wasi:sockets/ip-name-lookup@0.2.12")?;
    let mut shadows = vec![
        names.resource(STREAM, ResourceType::host::<Found>(), |mut store, rep| {
            store.data_mut().table.delete(Resource::<Found>::new_own(rep))?;
            Ok(())
        }),
        names.func_wrap_async(RESOLVE, |store, params| Box::new(resolve2(store, params))),
        names.func_wrap("[method]resolve-address-stream.resolve-next-address", next2),
        names.func_wrap("[method]resolve-address-stream.subscribe", subscribe2),
    ];
    let mut names = linker.instance("wasi:sockets/ip-name-lookup@0.3.0")?;
    shadows.push(
        names.func_wrap_concurrent(RESOLVE, |guest, (name,)| Box::pin(resolve3(guest, name))),
    );
    Ok(shadows)
}

/// The answer to a lookup: all of it, as the call has waited for it.
struct Found(vec::IntoIter<IpAddr>);

#[wasmtime_wasi::async_trait]
impl Pollable for Found {
    async fn ready(&mut self) {}
}

/// The lookup itself waits here, so that a guest has one under way and not as
/// many as it likes.
async fn resolve2(
    mut store: StoreContextMut<'_, Guest>,
    (network, name): (Resource<Network2>, String),
) -> wasmtime::Result<Answer2> {
    // It is what permits the call, so it has to be one.
    store.data().table.get(&network)?;
    let network = Arc::clone(&store.data().network);
    Ok((match network.look_up(&name).await {
        Ok(found) => Ok(store.data_mut().table.push(Found(found.into_iter()))?),
        Err(LookupError::Denied) => Err(network::ErrorCode::AccessDenied),
        Err(LookupError::Invalid) => Err(network::ErrorCode::InvalidArgument),
        Err(LookupError::Unknown) => Err(network::ErrorCode::NameUnresolvable),
    },))
}

fn next2(
    mut store: StoreContextMut<'_, Guest>,
    (found,): (Resource<Found>,),
) -> wasmtime::Result<Next2> {
    let found = store.data_mut().table.get_mut(&found)?;
    Ok((Ok(found.0.next().map(Into::into)),))
}

fn subscribe2(
    mut store: StoreContextMut<'_, Guest>,
    (found,): (Resource<Found>,),
) -> wasmtime::Result<(Resource<DynPollable>,)> {
    Ok((subscribe(&mut store.data_mut().table, found)?,))
}

async fn resolve3(accessor: &Accessor<Guest>, name: String) -> wasmtime::Result<Answer3> {
    let network = accessor.with(|mut access| Arc::clone(&access.get().network));
    Ok((match network.look_up(&name).await {
        Ok(found) => Ok(found.into_iter().map(Into::into).collect()),
        Err(LookupError::Denied) => Err(p3::ErrorCode::AccessDenied),
        Err(LookupError::Invalid) => Err(p3::ErrorCode::InvalidArgument),
        Err(LookupError::Unknown) => Err(p3::ErrorCode::NameUnresolvable),
    },))
}
