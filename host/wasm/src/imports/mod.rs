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
pub(crate) mod work_folder;

use wasmtime::{Engine, component::Linker};

use crate::store::Guest;

/// What came of adding single functions, or whole interfaces.
type Shadows = wasmtime::Result<Vec<wasmtime::Result<()>>>;

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
        ("preopens", preopens::add as fn(&mut Linker<Guest>) -> Shadows),
        ("names", names::add),
        ("files", files::add),
        ("work folder", work_folder::add),
        ("listing", listing::add),
        ("sockets", sockets::add),
        ("egress", egress::add),
    ] {
        replace(&mut linker, name, add)?;
    }
    Ok(linker)
}

/// Puts a filter in front of what is there, all of it.
fn replace(
    linker: &mut Linker<Guest>,
    name: &str,
    add: fn(&mut Linker<Guest>) -> Shadows,
) -> wasmtime::Result<()> {
    if add(linker)?.iter().any(Result::is_ok) {
        return Err(wasmtime::format_err!("a part of the import filter `{name}` filters nothing"));
    }
    linker.allow_shadowing(true);
    add(linker)?.into_iter().collect::<wasmtime::Result<()>>()?;
    linker.allow_shadowing(false);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_of_which_a_part_is_in_front_of_nothing_is_refused() {
        let linker = || {
            let mut linker = Linker::new(&Engine::default());
            linker.root().func_wrap("there", |_, (): ()| Ok(())).unwrap();
            linker
        };
        let there = |linker: &mut Linker<Guest>| {
            Ok(vec![linker.root().func_wrap("there", |_, (): ()| Ok(()))])
        };
        replace(&mut linker(), "a", there).unwrap();
        let partly = |linker: &mut Linker<Guest>| {
            let mut root = linker.root();
            Ok(["there", "missing"].map(|name| root.func_wrap(name, |_, (): ()| Ok(()))).into())
        };
        let error = replace(&mut linker(), "b", partly).unwrap_err();
        assert_eq!(error.to_string(), "a part of the import filter `b` filters nothing");
    }
}
