//! `wasi:filesystem/types.open-at`: regular files and folders only.
//!
//! Opening a FIFO blocks its thread until somebody opens the other end, and
//! neither a socket nor a device is part of what a folder grant is for. So
//! files are opened without blocking, and what turns out to be anything else is
//! closed again and refused.

use std::{io, os::fd::AsFd, path::Path};

use cap_fs_ext::{OpenOptionsFollowExt as _, OpenOptionsMaybeDirExt as _};
use cap_primitives::fs::{FollowSymlinks, OpenOptions, OpenOptionsExt as _};
use wasmtime::{
    StoreContextMut,
    component::{Accessor, Linker, Resource},
    error::Context as _,
};
use wasmtime_wasi::{
    FsPerms, OpenMode,
    filesystem::{Descriptor, Dir, File},
    p2::bindings::filesystem::types as p2,
    p3::bindings::filesystem::types as p3,
};

use crate::store::Guest;

const OPEN_AT: &str = "[method]descriptor.open-at";

type Params2 = (Resource<Descriptor>, p2::PathFlags, String, p2::OpenFlags, p2::DescriptorFlags);
type Params3 = (Resource<Descriptor>, p3::PathFlags, String, p3::OpenFlags, p3::DescriptorFlags);
type Answer2 = (Result<Resource<Descriptor>, p2::ErrorCode>,);
type Answer3 = (Result<Resource<Descriptor>, p3::ErrorCode>,);

pub(super) fn add(linker: &mut Linker<Guest>) -> wasmtime::Result<()> {
    linker
        .instance("wasi:filesystem/types@0.2.12")?
        .func_wrap_async(OPEN_AT, |store, params| Box::new(open2(store, params)))?;
    linker
        .instance("wasi:filesystem/types@0.3.0")?
        .func_wrap_concurrent(OPEN_AT, |guest, params| Box::pin(open3(guest, params)))
}

async fn open2(
    mut store: StoreContextMut<'_, Guest>,
    (fd, path_flags, path, open_flags, flags): Params2,
) -> wasmtime::Result<Answer2> {
    let open = Open {
        follow: path_flags.contains(p2::PathFlags::SYMLINK_FOLLOW),
        create: open_flags.contains(p2::OpenFlags::CREATE),
        exclusive: open_flags.contains(p2::OpenFlags::EXCLUSIVE),
        truncate: open_flags.contains(p2::OpenFlags::TRUNCATE),
        directory: open_flags.contains(p2::OpenFlags::DIRECTORY),
        read: flags.contains(p2::DescriptorFlags::READ),
        write: flags.contains(p2::DescriptorFlags::WRITE),
        sync: flags.intersects(
            p2::DescriptorFlags::FILE_INTEGRITY_SYNC
                | p2::DescriptorFlags::DATA_INTEGRITY_SYNC
                | p2::DescriptorFlags::REQUESTED_WRITE_SYNC,
        ),
    };
    let Descriptor::Dir(dir) = store.data().table.get(&fd)? else {
        return Ok((Err(p2::ErrorCode::NotDirectory),));
    };
    let answer = match open.at(dir.clone(), path).await? {
        Ok(opened) => Ok(store.data_mut().table.push(opened)?),
        Err(Refused::Invalid) => Err(p2::ErrorCode::Invalid),
        Err(Refused::NotDirectory) => Err(p2::ErrorCode::NotDirectory),
        Err(Refused::NotPermitted) => Err(p2::ErrorCode::NotPermitted),
        Err(Refused::Unsupported) => Err(p2::ErrorCode::Unsupported),
        Err(Refused::Io(error)) => Err(p2::ErrorCode::from(&error)),
    };
    Ok((answer,))
}

async fn open3(
    accessor: &Accessor<Guest>,
    (fd, path_flags, path, open_flags, flags): Params3,
) -> wasmtime::Result<Answer3> {
    let open = Open {
        follow: path_flags.contains(p3::PathFlags::SYMLINK_FOLLOW),
        create: open_flags.contains(p3::OpenFlags::CREATE),
        exclusive: open_flags.contains(p3::OpenFlags::EXCLUSIVE),
        truncate: open_flags.contains(p3::OpenFlags::TRUNCATE),
        directory: open_flags.contains(p3::OpenFlags::DIRECTORY),
        read: flags.contains(p3::DescriptorFlags::READ),
        write: flags.contains(p3::DescriptorFlags::WRITE),
        sync: flags.intersects(
            p3::DescriptorFlags::FILE_INTEGRITY_SYNC
                | p3::DescriptorFlags::DATA_INTEGRITY_SYNC
                | p3::DescriptorFlags::REQUESTED_WRITE_SYNC,
        ),
    };
    let dir = accessor.with(|mut access| match access.get().table.get(&fd) {
        Ok(Descriptor::Dir(dir)) => Ok(Some(dir.clone())),
        Ok(Descriptor::File(_)) => Ok(None),
        Err(error) => Err(error),
    })?;
    let Some(dir) = dir else { return Ok((Err(p3::ErrorCode::NotDirectory),)) };
    let answer = match open.at(dir, path).await? {
        Ok(opened) => Ok(accessor.with(|mut access| access.get().table.push(opened))?),
        Err(Refused::Invalid) => Err(p3::ErrorCode::Invalid),
        Err(Refused::NotDirectory) => Err(p3::ErrorCode::NotDirectory),
        Err(Refused::NotPermitted) => Err(p3::ErrorCode::NotPermitted),
        Err(Refused::Unsupported) => Err(p3::ErrorCode::Unsupported),
        Err(Refused::Io(error)) => Err(p3::ErrorCode::from(&error)),
    };
    Ok((answer,))
}

/// What a guest asks for when it opens a path.
#[derive(Clone, Copy)]
struct Open {
    follow: bool,
    create: bool,
    exclusive: bool,
    truncate: bool,
    directory: bool,
    read: bool,
    write: bool,
    sync: bool,
}

/// Why a path was not opened.
#[derive(Debug)]
enum Refused {
    Invalid,
    NotDirectory,
    NotPermitted,
    Unsupported,
    Io(io::Error),
}

impl Open {
    /// Opens `path` in `dir`, on a thread where it may block.
    async fn at(self, dir: Dir, path: String) -> wasmtime::Result<Result<Descriptor, Refused>> {
        tokio::task::spawn_blocking(move || self.now(&dir, Path::new(&path)))
            .await
            .context("a file could not be opened")
    }

    fn now(self, dir: &Dir, path: &Path) -> Result<Descriptor, Refused> {
        if self.sync {
            return Err(Refused::Unsupported);
        }
        if self.directory && (self.create || self.exclusive || self.truncate) {
            return Err(Refused::Invalid);
        }
        let writes = self.write || self.create || self.truncate;
        // Without a write flag a file is opened for reading, whatever was asked
        // for; the mode below keeps the guest to what it asked for.
        let reads = self.read || !self.write;
        if writes && dir.perms == FsPerms::ReadOnly {
            return Err(Refused::NotPermitted);
        }
        let mut options = OpenOptions::new();
        options
            .read(reads)
            .write(writes)
            .truncate(self.truncate)
            .create(self.create && !self.exclusive)
            .create_new(self.create && self.exclusive)
            .maybe_dir(true)
            .follow(if self.follow { FollowSymlinks::Yes } else { FollowSymlinks::No })
            .custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed());
        let opened = cap_primitives::fs::open(&dir.dir, path, &options).map_err(Refused::Io)?;
        let mode = match (reads, writes) {
            (true, true) => OpenMode::READ | OpenMode::WRITE,
            (false, true) => OpenMode::WRITE,
            (_, false) => OpenMode::READ,
        };
        let kind = rustix::fs::fstat(opened.as_fd())
            .map(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode))
            .map_err(|errno| Refused::Io(errno.into()))?;
        match kind {
            rustix::fs::FileType::Directory => {
                Ok(Descriptor::Dir(Dir::new(opened, dir.perms, mode, false)))
            }
            rustix::fs::FileType::RegularFile if self.directory => Err(Refused::NotDirectory),
            rustix::fs::FileType::RegularFile => {
                Ok(Descriptor::File(File::new(opened, dir.perms, mode, false)))
            }
            _ => Err(Refused::NotPermitted),
        }
    }
}
