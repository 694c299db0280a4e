//! What a component may import, one host interface per file.
//!
//! WASI 0.2 and 0.3 are wasmtime's own, both linked. Where Backlot promises
//! more than they do, a file here stands in front of them.

pub(crate) mod files;
pub(crate) mod host;
pub(crate) mod http;
pub(crate) mod names;
pub(crate) mod preopens;
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
    // What follows replaces single interfaces and functions of the above.
    linker.allow_shadowing(true);
    preopens::add(&mut linker)?;
    names::add(&mut linker)?;
    files::add(&mut linker)?;
    linker.allow_shadowing(false);
    Ok(linker)
}
