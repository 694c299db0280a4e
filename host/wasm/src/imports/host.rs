//! `backlot:producer/host`: what the contract itself offers to a guest.
//!
//! How it is imported is part of a version of the contract, and is there.

use std::sync::Arc;

use wasmtime::component::Linker;

use crate::{contract::Version, link::Link, store::Guest};

/// Adds it in every version.
pub(super) fn add(linker: &mut Linker<Guest>) -> wasmtime::Result<()> {
    Version::ALL.iter().try_for_each(|version| version.add_host(linker))
}

/// Returns the guest's link. An instance that has no run has none.
pub(crate) fn link(guest: &Guest) -> wasmtime::Result<&Arc<Link>> {
    guest.link.as_ref().ok_or_else(|| {
        wasmtime::format_err!("it has no task, and must not call `backlot:producer/host`")
    })
}
