//! `wasi:filesystem/types`: regular files and folders only, and not too many.
//!
//! Opening a FIFO blocks its thread until somebody opens the other end, and
//! neither a socket nor a device is part of what a folder grant is for. So
//! whatever has to open a path does it without blocking, and what turns out to
//! be anything else is closed again and refused.

use std::{
    io,
    os::fd::{AsFd, AsRawFd as _},
    path::Path,
    sync::{Arc, Weak},
    time::{Duration, SystemTime},
};

use cap_fs_ext::{OpenOptionsFollowExt as _, OpenOptionsMaybeDirExt as _};
use cap_primitives::fs::{FollowSymlinks, OpenOptions, OpenOptionsExt as _, SystemTimeSpec};
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

use super::{
    Shadows,
    work_folder::{code2, code3},
};
use crate::{
    account::{Creates, Turn},
    denial::Denials,
    descriptors,
    policy::Sort,
    store::Guest,
    text,
    work_folder::{self, WorkFolder},
};

const OPEN_AT: &str = "[method]descriptor.open-at";
const SET_TIMES_AT: &str = "[method]descriptor.set-times-at";

type Params2 = (Resource<Descriptor>, p2::PathFlags, String, p2::OpenFlags, p2::DescriptorFlags);
type Params3 = (Resource<Descriptor>, p3::PathFlags, String, p3::OpenFlags, p3::DescriptorFlags);
type Answer2 = (Result<Resource<Descriptor>, p2::ErrorCode>,);
type Answer3 = (Result<Resource<Descriptor>, p3::ErrorCode>,);

pub(super) fn add(linker: &mut Linker<Guest>) -> Shadows {
    let mut p2 = linker.instance("wasi:filesystem/types@0.2.12")?;
    let mut shadows = vec![
        p2.func_wrap_async(OPEN_AT, |store, params| Box::new(open2(store, params))),
        p2.func_wrap_async(SET_TIMES_AT, |store, params| Box::new(set_times2(store, params))),
    ];
    let mut p3 = linker.instance("wasi:filesystem/types@0.3.0")?;
    shadows.extend([
        p3.func_wrap_concurrent(OPEN_AT, |guest, params| Box::pin(open3(guest, params))),
        p3.func_wrap_concurrent(SET_TIMES_AT, |guest, params| Box::pin(set_times3(guest, params))),
    ]);
    Ok(shadows)
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
    let dir = dir.clone();
    if !store.data_mut().files.has_room() {
        return Ok((Err(p2::ErrorCode::Quota),));
    }
    let guest = store.data();
    let (denials, work) = (guest.network.denials().clone(), guest.work_of(&dir));
    let answer = match open.watched(&denials, work, dir, path).await? {
        Ok(opened) => {
            let guest = store.data_mut();
            guest.files.count(&opened);
            Ok(guest.table.push(opened)?)
        }
        Err(Refused::Invalid) => Err(p2::ErrorCode::Invalid),
        Err(Refused::NotDirectory) => Err(p2::ErrorCode::NotDirectory),
        Err(Refused::NotPermitted) => Err(p2::ErrorCode::NotPermitted),
        Err(Refused::Unsupported) => Err(p2::ErrorCode::Unsupported),
        Err(Refused::Io(error)) => Err(code2(&error)),
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
    let (has_room, denials, work) = accessor.with(|mut access| {
        let guest = access.get();
        (guest.files.has_room(), guest.network.denials().clone(), guest.work_of(&dir))
    });
    if !has_room {
        return Ok((Err(p3::ErrorCode::Quota),));
    }
    let answer = match open.watched(&denials, work, dir, path).await? {
        Ok(opened) => Ok(accessor.with(|mut access| {
            let guest = access.get();
            guest.files.count(&opened);
            guest.table.push(opened)
        })?),
        Err(Refused::Invalid) => Err(p3::ErrorCode::Invalid),
        Err(Refused::NotDirectory) => Err(p3::ErrorCode::NotDirectory),
        Err(Refused::NotPermitted) => Err(p3::ErrorCode::NotPermitted),
        Err(Refused::Unsupported) => Err(p3::ErrorCode::Unsupported),
        Err(Refused::Io(error)) => Err(code3(&error)),
    };
    Ok((answer,))
}

/// What a guest asks for when it opens a path.
#[derive(Clone, Copy, Default)]
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
    /// Opens as [`Open::at`] does, and tells the audit of what the folder does not permit.
    async fn watched(
        self,
        denials: &Denials,
        work: Option<WorkFolder>,
        dir: Dir,
        path: String,
    ) -> wasmtime::Result<Result<Descriptor, Refused>> {
        let shown = text::line(&path);
        let opened = self.at(work, dir, path).await?;
        let what = match &opened {
            Err(Refused::NotPermitted) => "is not granted in that way",
            Err(Refused::Io(error)) if error.kind() == io::ErrorKind::PermissionDenied => {
                "leads out of the folder, or is closed to the host"
            }
            Ok(_) | Err(_) => return Ok(opened),
        };
        denials.audit(Sort::Folder, &format!("{shown}: {what}"));
        Ok(opened)
    }

    /// Opens `path` in `dir`, on a thread where it may block. In a work folder it takes
    /// its turn.
    async fn at(
        self,
        work: Option<WorkFolder>,
        dir: Dir,
        path: String,
    ) -> wasmtime::Result<Result<Descriptor, Refused>> {
        let opened = match work {
            Some(work) => work.turn(move |turn| self.now(Some(turn), &dir, Path::new(&path))).await,
            None => tokio::task::spawn_blocking(move || self.now(None, &dir, Path::new(&path)))
                .await
                .map_err(io::Error::other),
        };
        opened.context("a file could not be opened")
    }

    fn now(
        self,
        mut turn: Option<&mut Turn>,
        dir: &Dir,
        path: &Path,
    ) -> Result<Descriptor, Refused> {
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
            .maybe_dir(true)
            .follow(if self.follow { FollowSymlinks::Yes } else { FollowSymlinks::No })
            .custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed());
        // Before, as opening may create or truncate; and after, as others open as well.
        let none_left = || Refused::Io(rustix::io::Errno::NFILE.into());
        if !descriptors::are_left() {
            return Err(none_left());
        }
        let opened = match turn.as_deref_mut() {
            Some(turn) => {
                let creates = match (self.create, self.exclusive) {
                    (true, true) => Creates::New,
                    (true, false) => Creates::WhatIsMissing,
                    (false, _) => Creates::Nothing,
                };
                turn.open(&dir.dir, path, &options, creates, self.truncate)
            }
            None => {
                options
                    .truncate(self.truncate)
                    .create(self.create && !self.exclusive)
                    .create_new(self.create && self.exclusive);
                cap_primitives::fs::open(&dir.dir, path, &options)
            }
        }
        .map_err(Refused::Io)?;
        if !descriptors::is_for_guests(opened.as_raw_fd()) {
            return Err(none_left());
        }
        let mode = match (reads, writes) {
            (true, true) => OpenMode::READ | OpenMode::WRITE,
            (false, true) => OpenMode::WRITE,
            (_, false) => OpenMode::READ,
        };
        let mode = work_folder::marked_as(dir.open_mode, mode);
        let kind = rustix::fs::fstat(opened.as_fd())
            .map(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode))
            .map_err(|errno| Refused::Io(errno.into()))?;
        match kind {
            rustix::fs::FileType::Directory => {
                Ok(Descriptor::Dir(Dir::new(opened, dir.perms, mode, false)))
            }
            rustix::fs::FileType::RegularFile if self.directory => Err(Refused::NotDirectory),
            rustix::fs::FileType::RegularFile => {
                let file = File::new(opened, dir.perms, mode, false);
                if let Some(turn) = turn {
                    turn.opened(&file.file).map_err(Refused::Io)?;
                }
                Ok(Descriptor::File(file))
            }
            _ => Err(Refused::NotPermitted),
        }
    }
}

/// The files and folders that one guest holds open.
///
/// wasmtime-wasi keeps them; here they are only counted.
pub(crate) struct OpenFiles {
    limit: usize,
    opened: Vec<Weak<std::fs::File>>,
}

impl OpenFiles {
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit, opened: Vec::new() }
    }

    fn has_room(&mut self) -> bool {
        if self.opened.len() >= self.limit {
            self.opened.retain(|file| file.strong_count() > 0);
        }
        self.opened.len() < self.limit
    }

    fn count(&mut self, opened: &Descriptor) {
        self.opened.push(Arc::downgrade(match opened {
            Descriptor::File(file) => &file.file,
            Descriptor::Dir(dir) => &dir.dir,
        }));
    }
}

type Times2 = (Resource<Descriptor>, p2::PathFlags, String, p2::NewTimestamp, p2::NewTimestamp);
type Times3 = (Resource<Descriptor>, p3::PathFlags, String, p3::NewTimestamp, p3::NewTimestamp);

async fn set_times2(
    store: StoreContextMut<'_, Guest>,
    (fd, path_flags, path, accessed, modified): Times2,
) -> wasmtime::Result<(Result<(), p2::ErrorCode>,)> {
    let stamp = |stamp| match stamp {
        p2::NewTimestamp::NoChange => Stamp::Keep,
        p2::NewTimestamp::Now => Stamp::Now,
        p2::NewTimestamp::Timestamp(at) => {
            Stamp::At(at.seconds.try_into().unwrap_or(i64::MAX), at.nanoseconds)
        }
    };
    let times = Times {
        follow: path_flags.contains(p2::PathFlags::SYMLINK_FOLLOW),
        accessed: stamp(accessed),
        modified: stamp(modified),
    };
    let Descriptor::Dir(dir) = store.data().table.get(&fd)? else {
        return Ok((Err(p2::ErrorCode::NotDirectory),));
    };
    Ok((match times.at(dir.clone(), path).await? {
        Ok(()) => Ok(()),
        Err(Refused::Io(error)) => Err(code2(&error)),
        Err(_) => Err(p2::ErrorCode::NotPermitted),
    },))
}

async fn set_times3(
    accessor: &Accessor<Guest>,
    (fd, path_flags, path, accessed, modified): Times3,
) -> wasmtime::Result<(Result<(), p3::ErrorCode>,)> {
    let stamp = |stamp| match stamp {
        p3::NewTimestamp::NoChange => Stamp::Keep,
        p3::NewTimestamp::Now => Stamp::Now,
        p3::NewTimestamp::Timestamp(at) => Stamp::At(at.seconds, at.nanoseconds),
    };
    let times = Times {
        follow: path_flags.contains(p3::PathFlags::SYMLINK_FOLLOW),
        accessed: stamp(accessed),
        modified: stamp(modified),
    };
    let dir = accessor.with(|mut access| match access.get().table.get(&fd) {
        Ok(Descriptor::Dir(dir)) => Ok(Some(dir.clone())),
        Ok(Descriptor::File(_)) => Ok(None),
        Err(error) => Err(error),
    })?;
    let Some(dir) = dir else { return Ok((Err(p3::ErrorCode::NotDirectory),)) };
    Ok((match times.at(dir, path).await? {
        Ok(()) => Ok(()),
        Err(Refused::Io(error)) => Err(code3(&error)),
        Err(_) => Err(p3::ErrorCode::NotPermitted),
    },))
}

/// The times that a guest gives to a path.
#[derive(Clone, Copy)]
struct Times {
    follow: bool,
    accessed: Stamp,
    modified: Stamp,
}

#[derive(Clone, Copy)]
enum Stamp {
    Keep,
    Now,
    /// Seconds since the epoch, and nanoseconds.
    At(i64, u32),
}

impl Times {
    async fn at(self, dir: Dir, path: String) -> wasmtime::Result<Result<(), Refused>> {
        tokio::task::spawn_blocking(move || self.now(&dir, Path::new(&path)))
            .await
            .context("the times of a file could not be set")
    }

    fn now(self, dir: &Dir, path: &Path) -> Result<(), Refused> {
        if dir.perms == FsPerms::ReadOnly {
            return Err(Refused::NotPermitted);
        }
        if !self.follow {
            let (accessed, modified) = (self.accessed.spec()?, self.modified.spec()?);
            return cap_primitives::fs::set_times_nofollow(&dir.dir, path, accessed, modified)
                .map_err(Refused::Io);
        }
        let opened = Open { follow: true, read: true, ..Open::default() }.now(None, dir, path)?;
        let file = match &opened {
            Descriptor::File(file) => &file.file,
            Descriptor::Dir(dir) => &dir.dir,
        };
        let times = rustix::fs::Timestamps {
            last_access: self.accessed.timespec(),
            last_modification: self.modified.timespec(),
        };
        rustix::fs::futimens(file, &times).map_err(|errno| Refused::Io(errno.into()))
    }
}

impl Stamp {
    fn timespec(self) -> rustix::fs::Timespec {
        match self {
            Self::Keep => rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
            Self::Now => rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW },
            Self::At(tv_sec, nanoseconds) => {
                rustix::fs::Timespec { tv_sec, tv_nsec: nanoseconds.into() }
            }
        }
    }

    fn spec(self) -> Result<Option<SystemTimeSpec>, Refused> {
        let invalid = || Refused::Io(io::ErrorKind::InvalidInput.into());
        match self {
            Self::Keep => Ok(None),
            Self::Now => Ok(Some(SystemTimeSpec::SymbolicNow)),
            Self::At(seconds, nanoseconds) => {
                let whole = Duration::from_secs(seconds.unsigned_abs());
                let whole = match seconds < 0 {
                    true => SystemTime::UNIX_EPOCH.checked_sub(whole),
                    false => SystemTime::UNIX_EPOCH.checked_add(whole),
                };
                let at = whole
                    .and_then(|at| at.checked_add(Duration::from_nanos(nanoseconds.into())))
                    .ok_or_else(invalid)?;
                Ok(Some(SystemTimeSpec::Absolute(cap_primitives::time::SystemTime::from_std(at))))
            }
        }
    }
}
