//! `wasi:filesystem/preopens`: the granted folders, opened by the host once.

use wasmtime::component::{HasData, Linker, Resource, ResourceTable};
use wasmtime_wasi::{
    filesystem::Descriptor, p2::bindings::filesystem::preopens as p2,
    p3::bindings::filesystem::preopens as p3,
};

use super::Shadows;
use crate::{grant::OpenGrant, store::Guest};

pub(super) fn add(linker: &mut Linker<Guest>) -> Shadows {
    Ok(vec![
        p2::add_to_linker::<Guest, Preopens>(linker, view),
        p3::add_to_linker::<Guest, Preopens>(linker, view),
    ])
}

struct Preopens;

impl HasData for Preopens {
    type Data<'a> = View<'a>;
}

struct View<'a> {
    grant: &'a OpenGrant,
    table: &'a mut ResourceTable,
}

fn view(guest: &mut Guest) -> View<'_> {
    View { grant: guest.network.grant(), table: &mut guest.table }
}

impl View<'_> {
    fn directories(&mut self) -> wasmtime::Result<Vec<(Resource<Descriptor>, String)>> {
        let mut found = Vec::with_capacity(self.grant.dirs().len());
        for open in self.grant.dirs() {
            let dir = Descriptor::Dir(open.dir.clone());
            found.push((self.table.push(dir)?, open.guest.clone()));
        }
        Ok(found)
    }
}

impl p2::Host for View<'_> {
    fn get_directories(&mut self) -> wasmtime::Result<Vec<(Resource<Descriptor>, String)>> {
        self.directories()
    }
}

impl p3::Host for View<'_> {
    fn get_directories(&mut self) -> wasmtime::Result<Vec<(Resource<Descriptor>, String)>> {
        self.directories()
    }
}
