//! `backlot:producer/host`: what the contract itself offers to a guest.

use wasmtime::component::{Access, Accessor, HasSelf, Linker};

use crate::{bindings::host, link::Link, store::Guest};

pub(super) fn add(linker: &mut Linker<Guest>) -> wasmtime::Result<()> {
    host::add_to_linker::<Guest, HasSelf<Guest>>(linker, |guest| guest)
}

impl host::Host for Guest {}

impl host::HostWithStore<Guest> for HasSelf<Guest> {
    async fn cancelled(accessor: &Accessor<Guest, Self>) -> wasmtime::Result<Option<String>> {
        let link = accessor.with(|mut access| link(access.get()).cloned())?;
        Ok(link.told().await)
    }

    fn stop_requested(
        mut access: Access<'_, Guest, Self>,
    ) -> wasmtime::Result<Option<Option<String>>> {
        Ok(link(access.get())?.look())
    }

    fn report(mut access: Access<'_, Guest, Self>, detail: String) -> wasmtime::Result<()> {
        link(access.get())?.host.report(&detail);
        Ok(())
    }
}

/// Returns the guest's link. An instance that only describes itself has none.
fn link(guest: &Guest) -> wasmtime::Result<&std::sync::Arc<Link>> {
    guest.link.as_ref().ok_or_else(|| {
        wasmtime::format_err!("`describe` has no task: it must not call `backlot:producer/host`")
    })
}
