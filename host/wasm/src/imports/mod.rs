//! What a component may import, one host interface per file.
//!
//! WASI 0.2 and 0.3 are wasmtime's own, both linked. Where Backlot promises
//! more than they do, a file here stands in front of them.

pub(crate) mod egress;
pub(crate) mod files;
pub(crate) mod host;
pub(crate) mod http;
pub(crate) mod listing;
pub(crate) mod names;
pub(crate) mod preopens;
pub(crate) mod sockets;
pub(crate) mod stdio;

use wasmtime::{Engine, component::Linker};

use crate::store::Guest;

/// Returns a linker with everything that a component may import.
pub(crate) fn linker(engine: &Engine) -> wasmtime::Result<Linker<Guest>> {
    let mut linker = Linker::new(engine);
    wasmtime_wasi::p2::add_to_linker_async(&mut linker)?;
    wasmtime_wasi::p3::add_to_linker(&mut linker)?;
    http::add(&mut linker)?;
    host::add(&mut linker)?;
    // What follows replaces single interfaces and functions of the above. Under
    // a name that is not there yet it would replace nothing, and the sandbox
    // would be open; so each has to be in the way first.
    for (name, add) in [
        ("preopens", preopens::add as fn(&mut Linker<Guest>) -> wasmtime::Result<()>),
        ("names", names::add),
        ("files", files::add),
        ("listing", listing::add),
        ("sockets", sockets::add),
        ("egress", egress::add),
    ] {
        if add(&mut linker).is_ok() {
            return Err(wasmtime::format_err!("the import filter `{name}` filters nothing"));
        }
        linker.allow_shadowing(true);
        add(&mut linker)?;
        linker.allow_shadowing(false);
    }
    Ok(linker)
}
