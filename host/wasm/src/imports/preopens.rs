//! `wasi:filesystem/preopens`: the granted folders, opened by the host once, and the work
//! folder of a job.

use wasmtime::component::{HasData, Linker, Resource, ResourceTable};
use wasmtime_wasi::{
    filesystem::Descriptor, p2::bindings::filesystem::preopens as p2,
    p3::bindings::filesystem::preopens as p3,
};

use super::Shadows;
use crate::{
    grant::OpenGrant,
    store::Guest,
    work_folder::{GUEST_PATH, WorkFolder},
};

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
    work: Option<&'a WorkFolder>,
    table: &'a mut ResourceTable,
}

fn view(guest: &mut Guest) -> View<'_> {
    View { grant: guest.network.grant(), work: guest.work.as_ref(), table: &mut guest.table }
}

impl View<'_> {
    fn directories(&mut self) -> wasmtime::Result<Vec<(Resource<Descriptor>, String)>> {
        let granted = self.grant.dirs().iter().map(|open| (&open.dir, open.guest.as_str()));
        let work = self.work.map(|work| (work.dir(), GUEST_PATH));
        let mut found = Vec::with_capacity(self.grant.dirs().len() + 1);
        for (dir, guest) in granted.chain(work) {
            found.push((self.table.push(Descriptor::Dir(dir.clone()))?, guest.to_owned()));
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
