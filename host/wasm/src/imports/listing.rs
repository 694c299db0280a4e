//! `wasi:filesystem/types.read-directory` of WASI 0.3, without a parked thread.
//!
//! wasmtime-wasi keeps a thread for each listing until it is read to its end, so
//! a guest that lists and does not read takes the threads of everybody. Here a
//! listing is read whole, on a thread that then goes on.

use std::{
    io, mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use cap_primitives::fs::{FileTypeExt as _, read_base_dir};
use tokio::{sync::oneshot, task::JoinHandle};
use wasmtime::{
    StoreContextMut,
    component::{
        Destination, FutureReader, Linker, Resource, StreamProducer, StreamReader, StreamResult,
        VecBuffer,
    },
};
use wasmtime_wasi::{
    filesystem::Descriptor,
    p3::bindings::filesystem::types::{DescriptorType, DirectoryEntry, ErrorCode},
};

use super::Shadows;
use crate::store::Guest;

const READ_DIRECTORY: &str = "[method]descriptor.read-directory";

/// How many entries one listing holds: some tens of megabytes at most.
const ENTRIES: usize = 100_000;

type Answer = (StreamReader<DirectoryEntry>, FutureReader<Result<(), ErrorCode>>);

pub(super) fn add(linker: &mut Linker<Guest>) -> Shadows {
    let mut types = linker.instance("wasi:filesystem/types@0.3.0")?;
    Ok(vec![types.func_wrap(READ_DIRECTORY, read_directory)])
}

fn read_directory(
    mut store: StoreContextMut<'_, Guest>,
    (fd,): (Resource<Descriptor>,),
) -> wasmtime::Result<(Answer,)> {
    let (end, ended) = oneshot::channel();
    let stream = match store.data().table.get(&fd)? {
        Descriptor::Dir(dir) => {
            let dir = Arc::clone(&dir.dir);
            let listing = tokio::task::spawn_blocking(move || list(&dir));
            StreamReader::new(&mut store, Listing { listing, end: Some(end) })?
        }
        Descriptor::File(_) => {
            // The reader waits for it below, so it is there to take it.
            let _ = end.send(Err(ErrorCode::NotDirectory));
            StreamReader::new(&mut store, Vec::new())?
        }
    };
    let ended = async move { wasmtime::error::Ok(ended.await.unwrap_or(Err(ErrorCode::Io))) };
    let ended = FutureReader::new(&mut store, ended)?;
    Ok(((stream, ended),))
}

/// A listing on its way to the guest.
struct Listing {
    listing: JoinHandle<(Vec<DirectoryEntry>, Result<(), ErrorCode>)>,
    end: Option<oneshot::Sender<Result<(), ErrorCode>>>,
}

impl StreamProducer<Guest> for Listing {
    type Item = DirectoryEntry;
    type Buffer = VecBuffer<DirectoryEntry>;

    fn poll_produce<'a>(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        _store: StoreContextMut<'a, Guest>,
        mut destination: Destination<'a, Self::Item, Self::Buffer>,
        finish: bool,
    ) -> Poll<wasmtime::Result<StreamResult>> {
        if finish && !self.listing.is_finished() {
            return Poll::Ready(Ok(StreamResult::Cancelled));
        }
        let (mut entries, result) = ready!(Pin::new(&mut self.listing).poll(cx))
            .unwrap_or_else(|_| (Vec::new(), Err(ErrorCode::Io)));
        destination.set_buffer(mem::take(&mut entries).into());
        if let Some(end) = self.end.take() {
            // A guest that does not ask how the listing ended need not hear it.
            let _ = end.send(result);
        }
        Poll::Ready(Ok(StreamResult::Dropped))
    }
}

impl Drop for Listing {
    fn drop(&mut self) {
        self.listing.abort();
    }
}

fn list(dir: &std::fs::File) -> (Vec<DirectoryEntry>, Result<(), ErrorCode>) {
    let mut entries = Vec::new();
    let result = list_into(dir, &mut entries);
    (entries, result)
}

fn list_into(dir: &std::fs::File, entries: &mut Vec<DirectoryEntry>) -> Result<(), ErrorCode> {
    let code = |error: io::Error| ErrorCode::from(&error);
    for entry in read_base_dir(dir).map_err(code)? {
        let entry = entry.map_err(code)?;
        let Ok(name) = entry.file_name().into_string() else {
            return Err(ErrorCode::IllegalByteSequence);
        };
        if entries.len() == ENTRIES {
            return Err(ErrorCode::Overflow);
        }
        let type_ = kind(entry.file_type().map_err(code)?);
        entries.push(DirectoryEntry { type_, name });
    }
    Ok(())
}

fn kind(of: cap_primitives::fs::FileType) -> DescriptorType {
    match of {
        of if of.is_file() => DescriptorType::RegularFile,
        of if of.is_dir() => DescriptorType::Directory,
        of if of.is_symlink() => DescriptorType::SymbolicLink,
        of if of.is_block_device() => DescriptorType::BlockDevice,
        of if of.is_char_device() => DescriptorType::CharacterDevice,
        of if of.is_fifo() => DescriptorType::Fifo,
        of if of.is_socket() => DescriptorType::Socket,
        _ => DescriptorType::Other(None),
    }
}
