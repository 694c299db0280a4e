//! `wasi:filesystem/types` where it changes something in a work folder, whose quota
//! holds.
//!
//! What is not in one goes straight to wasmtime-wasi. Descriptors are opened in
//! [`files`](super::files), which does the same for what opening creates.

use std::{
    fs::File,
    io, mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use futures::future::BoxFuture;
use rustix::io::Errno;
use tokio::sync::oneshot;
use tokio_util::task::AbortOnDropHandle;
use wasmtime::{
    AsContextMut as _, StoreContextMut,
    component::{
        Access, Accessor, FutureReader, Linker, Resource, Source, StreamConsumer, StreamReader,
        StreamResult,
    },
};
use wasmtime_wasi::{
    TrappableError,
    filesystem::{Descriptor, Dir, WasiFilesystem, WasiFilesystemView},
    p2::{
        DynOutputStream, OutputStream, Pollable, StreamError, StreamResult as Written,
        bindings::filesystem::types::{self as p2, Host as _, HostDescriptor as _},
    },
    p3::bindings::filesystem::types::{self as p3, HostDescriptorWithStore as _},
};

use super::Shadows;
use crate::{
    account::{Place, Turn},
    store::Guest,
    work_folder::WorkFolder,
};

/// What one write has at most: it is held until it is written.
const PIECE_BYTES: usize = 64 << 10;

const WRITE: &str = "[method]descriptor.write";
const WRITE_VIA_STREAM: &str = "[method]descriptor.write-via-stream";
const APPEND_VIA_STREAM: &str = "[method]descriptor.append-via-stream";
const SET_SIZE: &str = "[method]descriptor.set-size";
const CREATE_DIRECTORY_AT: &str = "[method]descriptor.create-directory-at";
const REMOVE_DIRECTORY_AT: &str = "[method]descriptor.remove-directory-at";
const SYMLINK_AT: &str = "[method]descriptor.symlink-at";
const UNLINK_FILE_AT: &str = "[method]descriptor.unlink-file-at";
const LINK_AT: &str = "[method]descriptor.link-at";
const RENAME_AT: &str = "[method]descriptor.rename-at";
const ERROR_CODE: &str = "filesystem-error-code";

type Fd = Resource<Descriptor>;
type Answer2<T = ()> = wasmtime::Result<(Result<T, p2::ErrorCode>,)>;
type Answer3 = wasmtime::Result<(Result<(), p3::ErrorCode>,)>;
type Ended3 = FutureReader<Result<(), p3::ErrorCode>>;
type Rename = (Fd, String, Fd, String);

pub(super) fn add(linker: &mut Linker<Guest>) -> Shadows {
    let mut p2 = linker.instance("wasi:filesystem/types@0.2.12")?;
    let mut shadows = vec![
        p2.func_wrap_async(WRITE, |store, params| Box::new(write2(store, params))),
        p2.func_wrap(WRITE_VIA_STREAM, |store, (fd, at)| stream2(store, fd, Place::At(at))),
        p2.func_wrap(APPEND_VIA_STREAM, |store, (fd,)| stream2(store, fd, Place::End)),
        p2.func_wrap(ERROR_CODE, error_code2),
        p2.func_wrap_async(SET_SIZE, |store, params| Box::new(set_size2(store, params))),
        p2.func_wrap_async(CREATE_DIRECTORY_AT, |store, (fd, path)| {
            Box::new(change2(store, fd, Change::CreateDirectory(path)))
        }),
        p2.func_wrap_async(REMOVE_DIRECTORY_AT, |store, (fd, path)| {
            Box::new(change2(store, fd, Change::RemoveDirectory(path)))
        }),
        p2.func_wrap_async(SYMLINK_AT, |store, (fd, target, path)| {
            Box::new(change2(store, fd, Change::Symlink { target, path }))
        }),
        p2.func_wrap_async(UNLINK_FILE_AT, |store, (fd, path)| {
            Box::new(change2(store, fd, Change::Unlink(path)))
        }),
        p2.func_wrap_async(LINK_AT, |store, params| Box::new(link2(store, params))),
        p2.func_wrap_async(RENAME_AT, |store, params| Box::new(rename2(store, params))),
    ];
    let mut p3 = linker.instance("wasi:filesystem/types@0.3.0")?;
    shadows.extend([
        p3.func_wrap(WRITE_VIA_STREAM, |store, (fd, data, at)| {
            stream3(store, fd, data, Place::At(at))
        }),
        p3.func_wrap(APPEND_VIA_STREAM, |store, (fd, data)| stream3(store, fd, data, Place::End)),
        p3.func_wrap_concurrent(SET_SIZE, |guest, params| Box::pin(set_size3(guest, params))),
        p3.func_wrap_concurrent(CREATE_DIRECTORY_AT, |guest, (fd, path)| {
            Box::pin(change3(guest, fd, Change::CreateDirectory(path)))
        }),
        p3.func_wrap_concurrent(REMOVE_DIRECTORY_AT, |guest, (fd, path)| {
            Box::pin(change3(guest, fd, Change::RemoveDirectory(path)))
        }),
        p3.func_wrap_concurrent(SYMLINK_AT, |guest, (fd, target, path)| {
            Box::pin(change3(guest, fd, Change::Symlink { target, path }))
        }),
        p3.func_wrap_concurrent(UNLINK_FILE_AT, |guest, (fd, path)| {
            Box::pin(change3(guest, fd, Change::Unlink(path)))
        }),
        p3.func_wrap_concurrent(LINK_AT, |guest, params| Box::pin(link3(guest, params))),
        p3.func_wrap_concurrent(RENAME_AT, |guest, params| Box::pin(rename3(guest, params))),
    ]);
    Ok(shadows)
}

/// A change in a folder, but for those that are about two.
enum Change {
    CreateDirectory(String),
    RemoveDirectory(String),
    Symlink { target: String, path: String },
    Unlink(String),
}

impl Change {
    fn make(self, turn: &mut Turn, dir: &File) -> io::Result<()> {
        match self {
            Self::CreateDirectory(path) => turn.create_dir(dir, path.as_ref()),
            Self::RemoveDirectory(path) => turn.remove_dir(dir, path.as_ref()),
            Self::Symlink { target, path } => turn.symlink(target.as_ref(), dir, path.as_ref()),
            Self::Unlink(path) => turn.unlink(dir, path.as_ref()),
        }
    }
}

/// What a change in two folders is about.
enum Pair {
    /// Neither is in the work folder.
    Outside,
    /// One is, and it is a file system of its own.
    Apart,
    Inside(WorkFolder, Arc<File>, Arc<File>),
}

impl Guest {
    /// Returns the work folder, if the folder is that or one in it.
    pub(super) fn work_of(&self, dir: &Dir) -> Option<WorkFolder> {
        self.work.clone().filter(|_| WorkFolder::has(dir.open_mode))
    }

    /// Returns the file with the work folder, if it is a file in that.
    fn file_at_work(&self, fd: &Fd) -> wasmtime::Result<Option<(WorkFolder, Arc<File>)>> {
        Ok(match (self.table.get(fd)?, &self.work) {
            (Descriptor::File(file), Some(work)) if WorkFolder::has(file.open_mode) => {
                Some((work.clone(), Arc::clone(&file.file)))
            }
            _ => None,
        })
    }

    /// Returns the folder with the work folder, if it is that or one in it.
    fn dir_at_work(&self, fd: &Fd) -> wasmtime::Result<Option<(WorkFolder, Arc<File>)>> {
        Ok(match self.table.get(fd)? {
            Descriptor::Dir(dir) => self.work_of(dir).map(|work| (work, Arc::clone(&dir.dir))),
            Descriptor::File(_) => None,
        })
    }

    fn dirs_at_work(&self, one: &Fd, other: &Fd) -> wasmtime::Result<Pair> {
        Ok(match (self.dir_at_work(one)?, self.dir_at_work(other)?) {
            (None, None) => Pair::Outside,
            (Some((work, one)), Some((_, other))) => Pair::Inside(work, one, other),
            (Some(_), None) | (None, Some(_)) => Pair::Apart,
        })
    }
}

/// Returns what WASI 0.2 says of an error.
pub(super) fn code2(error: &io::Error) -> p2::ErrorCode {
    match Errno::from_io_error(error) {
        Some(Errno::DQUOT) => p2::ErrorCode::Quota,
        _ => p2::ErrorCode::from(error),
    }
}

/// Returns what WASI 0.3 says of an error.
pub(super) fn code3(error: &io::Error) -> p3::ErrorCode {
    match Errno::from_io_error(error) {
        Some(Errno::DQUOT) => p3::ErrorCode::Quota,
        _ => p3::ErrorCode::from(error),
    }
}

fn answer2<T>(came: io::Result<io::Result<T>>) -> Answer2<T> {
    Ok((came.flatten().map_err(|error| code2(&error)),))
}

fn answer3(came: io::Result<io::Result<()>>) -> Answer3 {
    Ok((came.flatten().map_err(|error| code3(&error)),))
}

/// Returns the answer of wasmtime-wasi, whose errors can be traps.
fn passed_on<T, E: std::error::Error + Send + Sync + 'static>(
    came: Result<T, TrappableError<E>>,
) -> wasmtime::Result<(Result<T, E>,)> {
    match came {
        Ok(value) => Ok((Ok(value),)),
        Err(error) => Ok((Err(error.downcast()?),)),
    }
}

async fn write2(
    mut store: StoreContextMut<'_, Guest>,
    (fd, bytes, at): (Fd, Vec<u8>, u64),
) -> Answer2<u64> {
    match store.data().file_at_work(&fd)? {
        Some((work, file)) => {
            answer2(work.turn(move |turn| turn.write(&file, Place::At(at), &bytes)).await)
        }
        None => passed_on(store.data_mut().filesystem().write(fd, bytes, at).await),
    }
}

async fn set_size2(mut store: StoreContextMut<'_, Guest>, (fd, size): (Fd, u64)) -> Answer2 {
    match store.data().file_at_work(&fd)? {
        Some((work, file)) => answer2(work.turn(move |turn| turn.set_size(&file, size)).await),
        None => passed_on(store.data_mut().filesystem().set_size(fd, size).await),
    }
}

async fn change2(mut store: StoreContextMut<'_, Guest>, fd: Fd, change: Change) -> Answer2 {
    if let Some((work, dir)) = store.data().dir_at_work(&fd)? {
        return answer2(work.turn(move |turn| change.make(turn, &dir)).await);
    }
    let mut wasi = store.data_mut().filesystem();
    passed_on(match change {
        Change::CreateDirectory(path) => wasi.create_directory_at(fd, path).await,
        Change::RemoveDirectory(path) => wasi.remove_directory_at(fd, path).await,
        Change::Symlink { target, path } => wasi.symlink_at(fd, target, path).await,
        Change::Unlink(path) => wasi.unlink_file_at(fd, path).await,
    })
}

async fn link2(
    mut store: StoreContextMut<'_, Guest>,
    (fd, flags, path, new_fd, new_path): (Fd, p2::PathFlags, String, Fd, String),
) -> Answer2 {
    match store.data().dirs_at_work(&fd, &new_fd)? {
        Pair::Outside => {
            let mut wasi = store.data_mut().filesystem();
            passed_on(wasi.link_at(fd, flags, path, new_fd, new_path).await)
        }
        Pair::Apart => Ok((Err(p2::ErrorCode::CrossDevice),)),
        Pair::Inside(..) if flags.contains(p2::PathFlags::SYMLINK_FOLLOW) => {
            Ok((Err(p2::ErrorCode::Invalid),))
        }
        Pair::Inside(work, dir, new_dir) => {
            answer2(linked(work, (dir, path), (new_dir, new_path)).await)
        }
    }
}

async fn rename2(
    mut store: StoreContextMut<'_, Guest>,
    (fd, path, new_fd, new_path): Rename,
) -> Answer2 {
    match store.data().dirs_at_work(&fd, &new_fd)? {
        Pair::Outside => {
            let mut wasi = store.data_mut().filesystem();
            passed_on(wasi.rename_at(fd, path, new_fd, new_path).await)
        }
        Pair::Apart => Ok((Err(p2::ErrorCode::CrossDevice),)),
        Pair::Inside(work, dir, new_dir) => {
            answer2(renamed(work, (dir, path), (new_dir, new_path)).await)
        }
    }
}

async fn linked(
    work: WorkFolder,
    (dir, path): (Arc<File>, String),
    (new_dir, new_path): (Arc<File>, String),
) -> io::Result<io::Result<()>> {
    work.turn(move |turn| turn.hard_link((&dir, path.as_ref()), (&new_dir, new_path.as_ref())))
        .await
}

async fn renamed(
    work: WorkFolder,
    (dir, path): (Arc<File>, String),
    (new_dir, new_path): (Arc<File>, String),
) -> io::Result<io::Result<()>> {
    work.turn(move |turn| turn.rename((&dir, path.as_ref()), (&new_dir, new_path.as_ref()))).await
}

fn stream2(
    mut store: StoreContextMut<'_, Guest>,
    fd: Fd,
    place: Place,
) -> Answer2<Resource<DynOutputStream>> {
    let Some((work, file)) = store.data().file_at_work(&fd)? else {
        let mut wasi = store.data_mut().filesystem();
        return passed_on(match place {
            Place::At(at) => wasi.write_via_stream(fd, at),
            Place::End => wasi.append_via_stream(fd),
        });
    };
    let stream: DynOutputStream =
        Box::new(Writes2 { pen: Pen { work, file, place }, state: State::Ready });
    Ok((Ok(store.data_mut().table.push(stream)?),))
}

/// Says which error of a file a stream has failed of.
fn error_code2(
    mut store: StoreContextMut<'_, Guest>,
    (error,): (Resource<wasmtime::Error>,),
) -> wasmtime::Result<(Option<p2::ErrorCode>,)> {
    let of_file = store.data().table.get(&error)?.downcast_ref::<io::Error>();
    match of_file.map(code2) {
        Some(code) => Ok((Some(code),)),
        None => Ok((store.data_mut().filesystem().filesystem_error_code(error)?,)),
    }
}

/// Where a stream is in its file.
#[derive(Clone)]
struct Pen {
    work: WorkFolder,
    file: Arc<File>,
    place: Place,
}

impl Pen {
    /// Writes all of it.
    async fn write(self, bytes: Bytes) -> io::Result<u64> {
        let Self { work, file, place } = self;
        work.turn(move |turn| turn.write(&file, place, &bytes)).await.flatten()
    }

    fn moved(&mut self, written: u64) {
        if let Place::At(at) = &mut self.place {
            *at = at.saturating_add(written);
        }
    }
}

/// A stream of WASI 0.2 into a file.
struct Writes2 {
    pen: Pen,
    state: State,
}

enum State {
    Ready,
    Writing(AbortOnDropHandle<io::Result<u64>>),
    Failed(io::Error),
    Closed,
}

impl Writes2 {
    fn over(&mut self, came: io::Result<u64>) {
        self.state = match came {
            Ok(written) => {
                self.pen.moved(written);
                State::Ready
            }
            Err(error) => State::Failed(error),
        };
    }

    /// Returns what there is to say of the last write, once.
    fn failure(&mut self) -> Written<()> {
        match mem::replace(&mut self.state, State::Closed) {
            State::Failed(error) => Err(StreamError::LastOperationFailed(error.into())),
            State::Closed => Err(StreamError::Closed),
            other => {
                self.state = other;
                Ok(())
            }
        }
    }
}

#[wasmtime_wasi::async_trait]
impl OutputStream for Writes2 {
    fn write(&mut self, bytes: Bytes) -> Written<()> {
        match self.state {
            State::Ready => {}
            State::Closed => return Err(StreamError::Closed),
            State::Writing(_) | State::Failed(_) => {
                return Err(StreamError::trap("a write before `check-write` has permitted it"));
            }
        }
        let writing = tokio::spawn(self.pen.clone().write(bytes));
        self.state = State::Writing(AbortOnDropHandle::new(writing));
        Ok(())
    }

    /// The same, without a task of its own.
    async fn blocking_write_and_flush(&mut self, bytes: Bytes) -> Written<()> {
        self.ready().await;
        self.failure()?;
        let came = self.pen.clone().write(bytes).await;
        self.over(came);
        self.failure()
    }

    fn flush(&mut self) -> Written<()> {
        // Nothing is held back.
        self.failure()
    }

    fn check_write(&mut self) -> Written<usize> {
        self.failure()?;
        Ok(match self.state {
            State::Writing(_) => 0,
            _ => PIECE_BYTES,
        })
    }

    async fn cancel(&mut self) {
        // What was taken is written.
        self.ready().await;
        self.state = State::Closed;
    }
}

#[wasmtime_wasi::async_trait]
impl Pollable for Writes2 {
    async fn ready(&mut self) {
        if let State::Writing(writing) = &mut self.state {
            let came = writing.await.map_err(io::Error::other).flatten();
            self.over(came);
        }
    }
}

async fn set_size3(accessor: &Accessor<Guest>, (fd, size): (Fd, u64)) -> Answer3 {
    match accessor.with(|mut access| access.get().file_at_work(&fd))? {
        Some((work, file)) => answer3(work.turn(move |turn| turn.set_size(&file, size)).await),
        None => {
            let wasi = accessor.with_getter::<WasiFilesystem>(WasiFilesystemView::filesystem);
            passed_on(WasiFilesystem::set_size(&wasi, fd, size).await)
        }
    }
}

async fn change3(accessor: &Accessor<Guest>, fd: Fd, change: Change) -> Answer3 {
    if let Some((work, dir)) = accessor.with(|mut access| access.get().dir_at_work(&fd))? {
        return answer3(work.turn(move |turn| change.make(turn, &dir)).await);
    }
    let wasi = &accessor.with_getter::<WasiFilesystem>(WasiFilesystemView::filesystem);
    passed_on(match change {
        Change::CreateDirectory(path) => WasiFilesystem::create_directory_at(wasi, fd, path).await,
        Change::RemoveDirectory(path) => WasiFilesystem::remove_directory_at(wasi, fd, path).await,
        Change::Symlink { target, path } => {
            WasiFilesystem::symlink_at(wasi, fd, target, path).await
        }
        Change::Unlink(path) => WasiFilesystem::unlink_file_at(wasi, fd, path).await,
    })
}

async fn link3(
    accessor: &Accessor<Guest>,
    (fd, flags, path, new_fd, new_path): (Fd, p3::PathFlags, String, Fd, String),
) -> Answer3 {
    match accessor.with(|mut access| access.get().dirs_at_work(&fd, &new_fd))? {
        Pair::Outside => {
            let wasi = accessor.with_getter::<WasiFilesystem>(WasiFilesystemView::filesystem);
            passed_on(WasiFilesystem::link_at(&wasi, fd, flags, path, new_fd, new_path).await)
        }
        Pair::Apart => Ok((Err(p3::ErrorCode::CrossDevice),)),
        Pair::Inside(..) if flags.contains(p3::PathFlags::SYMLINK_FOLLOW) => {
            Ok((Err(p3::ErrorCode::Invalid),))
        }
        Pair::Inside(work, dir, new_dir) => {
            answer3(linked(work, (dir, path), (new_dir, new_path)).await)
        }
    }
}

async fn rename3(accessor: &Accessor<Guest>, (fd, path, new_fd, new_path): Rename) -> Answer3 {
    match accessor.with(|mut access| access.get().dirs_at_work(&fd, &new_fd))? {
        Pair::Outside => {
            let wasi = accessor.with_getter::<WasiFilesystem>(WasiFilesystemView::filesystem);
            passed_on(WasiFilesystem::rename_at(&wasi, fd, path, new_fd, new_path).await)
        }
        Pair::Apart => Ok((Err(p3::ErrorCode::CrossDevice),)),
        Pair::Inside(work, dir, new_dir) => {
            answer3(renamed(work, (dir, path), (new_dir, new_path)).await)
        }
    }
}

fn stream3(
    mut store: StoreContextMut<'_, Guest>,
    fd: Fd,
    data: StreamReader<u8>,
    place: Place,
) -> wasmtime::Result<(Ended3,)> {
    let Some((work, file)) = store.data().file_at_work(&fd)? else {
        let wasi = Access::<_, WasiFilesystem>::new(
            store.as_context_mut(),
            WasiFilesystemView::filesystem,
        );
        return Ok((match place {
            Place::At(at) => WasiFilesystem::write_via_stream(wasi, fd, data, at)?,
            Place::End => WasiFilesystem::append_via_stream(wasi, fd, data)?,
        },));
    };
    let (end, ended) = oneshot::channel();
    let pen = Pen { work, file, place };
    data.pipe(&mut store, Writes3 { pen, writing: None, end: Some(end) })?;
    // It is told nothing when the data has come to its end, and all of it is written.
    let ended = async move { wasmtime::error::Ok(ended.await.unwrap_or(Ok(()))) };
    Ok((FutureReader::new(&mut store, ended)?,))
}

/// A stream of WASI 0.3 into a file.
struct Writes3 {
    pen: Pen,
    writing: Option<Piece>,
    end: Option<oneshot::Sender<Result<(), p3::ErrorCode>>>,
}

/// A piece that is being written.
struct Piece {
    size: usize,
    writing: BoxFuture<'static, io::Result<u64>>,
}

impl StreamConsumer<Guest> for Writes3 {
    type Item = u8;

    fn poll_consume(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        store: StoreContextMut<'_, Guest>,
        source: Source<'_, u8>,
        _finish: bool,
    ) -> Poll<wasmtime::Result<StreamResult>> {
        let mut source = source.as_direct(store);
        let me = &mut *self;
        let piece = me.writing.get_or_insert_with(|| {
            let bytes = source.remaining();
            let bytes = Bytes::copy_from_slice(&bytes[..bytes.len().min(PIECE_BYTES)]);
            Piece { size: bytes.len(), writing: Box::pin(me.pen.clone().write(bytes)) }
        });
        // Also when it is to finish: what has begun is written, and has to be counted.
        let came = ready!(piece.writing.as_mut().poll(cx));
        let size = piece.size;
        me.writing = None;
        Poll::Ready(Ok(match came {
            Ok(written) => {
                me.pen.moved(written);
                source.mark_read(size);
                StreamResult::Completed
            }
            Err(error) => {
                if let Some(end) = me.end.take() {
                    // Who does not wait for the end need not hear of it.
                    let _ = end.send(Err(code3(&error)));
                }
                StreamResult::Dropped
            }
        }))
    }
}
