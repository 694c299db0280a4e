//! The disk as SQLite sees it: tables of functions, and pointers.
//!
//! Each function takes its arguments apart, asks [`Shared`] and puts the answer where
//! SQLite wants it. None unwinds into SQLite.
#![allow(unsafe_code, reason = "SQLite asks through pointers")]

use std::{
    ffi::{CStr, CString, c_char, c_int, c_void},
    panic::{AssertUnwindSafe, catch_unwind},
    ptr, slice,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use rusqlite::ffi;

use super::{
    locks::Level,
    state::{Answer, HandleId, Opening, Regions, Shared},
};

/// A disk that SQLite knows by a name, until this is dropped. Files that are open then
/// remain what they are.
pub(super) struct Registration {
    name: String,
    shared: Arc<Shared>,
    vfs: *mut ffi::sqlite3_vfs,
}

// SAFETY: the pointer is only given to SQLite, which locks around its list of disks.
unsafe impl Send for Registration {}
// SAFETY: as above.
unsafe impl Sync for Registration {}

pub(super) fn register() -> Registration {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let name = format!("forgetful-{}", COUNT.fetch_add(1, Ordering::Relaxed));
    let shared = Arc::new(Shared::default());
    let c_name = CString::new(name.clone()).expect("a name without a zero");
    // What SQLite has been given stays where it is, for connections keep pointing to it
    // and do not say until when. It is a few hundred bytes a disk, without its files.
    let vfs = Box::into_raw(Box::new(ffi::sqlite3_vfs {
        iVersion: 1,
        szOsFile: size_of::<File>() as c_int,
        mxPathname: 512,
        pNext: ptr::null_mut(),
        zName: c_name.into_raw(),
        pAppData: Box::into_raw(Box::new(Arc::downgrade(&shared))).cast(),
        xOpen: Some(open),
        xDelete: Some(delete),
        xAccess: Some(access),
        xFullPathname: Some(full_pathname),
        xDlOpen: None,
        xDlError: None,
        xDlSym: None,
        xDlClose: None,
        xRandomness: Some(randomness),
        xSleep: Some(sleep),
        xCurrentTime: Some(current_time),
        xGetLastError: None,
        xCurrentTimeInt64: None,
        xSetSystemCall: None,
        xGetSystemCall: None,
        xNextSystemCall: None,
    }));
    // SAFETY: the table is complete for its version and is never freed.
    let code = unsafe { ffi::sqlite3_vfs_register(vfs, 0) };
    assert_eq!(code, ffi::SQLITE_OK, "SQLite takes no further disk");
    Registration { name, shared, vfs }
}

impl Registration {
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // SAFETY: it was registered, and the table that it points to is never freed.
        unsafe { ffi::sqlite3_vfs_unregister(self.vfs) };
    }
}

/// What SQLite has of an open file. It makes room for one, and begins with its methods.
#[repr(C)]
struct File {
    base: ffi::sqlite3_file,
    handle: *mut Handle,
}

struct Handle {
    disk: Arc<Shared>,
    id: HandleId,
    /// Kept until SQLite says that it looks at shared memory no more.
    regions: Option<Arc<Regions>>,
}

static METHODS: ffi::sqlite3_io_methods = ffi::sqlite3_io_methods {
    iVersion: 2,
    xClose: Some(close),
    xRead: Some(read),
    xWrite: Some(write),
    xTruncate: Some(truncate),
    xSync: Some(sync),
    xFileSize: Some(file_size),
    xLock: Some(lock),
    xUnlock: Some(unlock),
    xCheckReservedLock: Some(check_reserved_lock),
    xFileControl: Some(file_control),
    xSectorSize: Some(sector_size),
    xDeviceCharacteristics: Some(device_characteristics),
    xShmMap: Some(shm_map),
    xShmLock: Some(shm_lock),
    xShmBarrier: Some(shm_barrier),
    xShmUnmap: Some(shm_unmap),
    xFetch: None,
    xUnfetch: None,
};

unsafe extern "C" fn open(
    vfs: *mut ffi::sqlite3_vfs,
    name: *const c_char,
    file: *mut ffi::sqlite3_file,
    flags: c_int,
    out_flags: *mut c_int,
) -> c_int {
    let file = file.cast::<File>();
    // SAFETY: SQLite made room for a file. Without methods it will not close it, which
    // is what has to be the case when it could not be opened.
    unsafe { (*file).base.pMethods = ptr::null() };
    answer(|| {
        // SAFETY: SQLite passes the table that was registered, and a name or none.
        let (disk, name) = unsafe { (disk(vfs)?, text(name)?) };
        let has = |flag| flags & flag != 0;
        let journals =
            ffi::SQLITE_OPEN_MAIN_JOURNAL | ffi::SQLITE_OPEN_SUPER_JOURNAL | ffi::SQLITE_OPEN_WAL;
        let opening = Opening {
            create: has(ffi::SQLITE_OPEN_CREATE),
            exclusive: has(ffi::SQLITE_OPEN_EXCLUSIVE),
            delete_on_close: has(ffi::SQLITE_OPEN_DELETEONCLOSE),
            syncs_folder: has(ffi::SQLITE_OPEN_CREATE) && has(journals),
        };
        let id = disk.open(name, &opening)?;
        let handle = Box::into_raw(Box::new(Handle { disk, id, regions: None }));
        // SAFETY: SQLite made room for a file, and may want to know its flags.
        unsafe {
            file.write(File { base: ffi::sqlite3_file { pMethods: &raw const METHODS }, handle });
            if !out_flags.is_null() {
                *out_flags = flags;
            }
        }
        Ok(())
    })
}

unsafe extern "C" fn delete(
    vfs: *mut ffi::sqlite3_vfs,
    name: *const c_char,
    sync_folder: c_int,
) -> c_int {
    answer(|| {
        // SAFETY: SQLite passes the table that was registered, and a name.
        let (disk, name) = unsafe { (disk(vfs)?, text(name)?) };
        disk.delete(name.ok_or(ffi::SQLITE_IOERR_DELETE)?, sync_folder != 0)
    })
}

unsafe extern "C" fn access(
    vfs: *mut ffi::sqlite3_vfs,
    name: *const c_char,
    flags: c_int,
    result: *mut c_int,
) -> c_int {
    answer(|| {
        // SAFETY: SQLite passes the table that was registered, and a name.
        let (disk, name) = unsafe { (disk(vfs)?, text(name)?) };
        let size = disk.look(name.ok_or(ffi::SQLITE_IOERR_ACCESS)?)?;
        // An empty file is none, as on Unix: so a journal that has been cut is not hot.
        let is = size.is_some_and(|size| flags != ffi::SQLITE_ACCESS_EXISTS || size > 0);
        // SAFETY: SQLite passes where the result is to be.
        unsafe { *result = c_int::from(is) };
        Ok(())
    })
}

unsafe extern "C" fn full_pathname(
    _: *mut ffi::sqlite3_vfs,
    name: *const c_char,
    room: c_int,
    out: *mut c_char,
) -> c_int {
    answer(|| {
        // SAFETY: SQLite passes a name that ends with a zero.
        let name = unsafe { CStr::from_ptr(name) }.to_bytes_with_nul();
        if name.len() > length(room)? {
            return Err(ffi::SQLITE_CANTOPEN);
        }
        // SAFETY: SQLite passes room for so many bytes, and they are not more.
        unsafe { ptr::copy_nonoverlapping(name.as_ptr(), out.cast(), name.len()) };
        Ok(())
    })
}

unsafe extern "C" fn randomness(
    _: *mut ffi::sqlite3_vfs,
    length: c_int,
    out: *mut c_char,
) -> c_int {
    let Ok(room) = usize::try_from(length) else { return 0 };
    // SAFETY: SQLite passes room for so many bytes.
    unsafe { ptr::write_bytes(out, 0, room) };
    // SAFETY: as above, and they have been written.
    let out = unsafe { slice::from_raw_parts_mut(out.cast::<u8>(), room) };
    // SQLite takes its randomness from the default disk, so what this is matters little.
    if getrandom::fill(out).is_ok() { length } else { 0 }
}

unsafe extern "C" fn sleep(_: *mut ffi::sqlite3_vfs, microseconds: c_int) -> c_int {
    thread::sleep(Duration::from_micros(microseconds.unsigned_abs().into()));
    microseconds
}

unsafe extern "C" fn current_time(_: *mut ffi::sqlite3_vfs, out: *mut f64) -> c_int {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    // SAFETY: SQLite passes where the time is to be, as a Julian day.
    unsafe { *out = 2_440_587.5 + since.as_secs_f64() / 86_400.0 };
    ffi::SQLITE_OK
}

unsafe extern "C" fn close(file: *mut ffi::sqlite3_file) -> c_int {
    answer(|| {
        // SAFETY: the file was opened, which put the handle there, and SQLite closes it
        // once and does not come back to it.
        let handle = unsafe { Box::from_raw((*file.cast::<File>()).handle) };
        handle.disk.close(handle.id);
        Ok(())
    })
}

unsafe extern "C" fn read(
    file: *mut ffi::sqlite3_file,
    into: *mut c_void,
    room: c_int,
    at: ffi::sqlite3_int64,
) -> c_int {
    answer(|| {
        let (room, at) = (length(room)?, offset(at)?);
        // What is not there is zeros, and SQLite is told.
        // SAFETY: SQLite passes room for so many bytes.
        unsafe { ptr::write_bytes(into.cast::<u8>(), 0, room) };
        // SAFETY: the file is open, and the bytes are SQLite's to give, and written.
        let (handle, into) =
            unsafe { (handle(file), slice::from_raw_parts_mut(into.cast::<u8>(), room)) };
        let read = handle.disk.read(handle.id, at, into)?;
        if read < room { Err(ffi::SQLITE_IOERR_SHORT_READ) } else { Ok(()) }
    })
}

unsafe extern "C" fn write(
    file: *mut ffi::sqlite3_file,
    bytes: *const c_void,
    count: c_int,
    at: ffi::sqlite3_int64,
) -> c_int {
    answer(|| {
        // SAFETY: the file is open, and SQLite passes so many bytes.
        let (handle, bytes) =
            unsafe { (handle(file), slice::from_raw_parts(bytes.cast::<u8>(), length(count)?)) };
        handle.disk.write(handle.id, offset(at)?, bytes)
    })
}

unsafe extern "C" fn truncate(file: *mut ffi::sqlite3_file, size: ffi::sqlite3_int64) -> c_int {
    answer(|| {
        // SAFETY: the file is open.
        let handle = unsafe { handle(file) };
        handle.disk.resize(handle.id, offset(size)?)
    })
}

unsafe extern "C" fn sync(file: *mut ffi::sqlite3_file, _: c_int) -> c_int {
    answer(|| {
        // SAFETY: the file is open.
        let handle = unsafe { handle(file) };
        handle.disk.sync(handle.id)
    })
}

unsafe extern "C" fn file_size(
    file: *mut ffi::sqlite3_file,
    out: *mut ffi::sqlite3_int64,
) -> c_int {
    answer(|| {
        // SAFETY: the file is open.
        let handle = unsafe { handle(file) };
        let size = handle.disk.size(handle.id)?;
        // SAFETY: SQLite passes where the size is to be.
        unsafe { *out = size as ffi::sqlite3_int64 };
        Ok(())
    })
}

unsafe extern "C" fn lock(file: *mut ffi::sqlite3_file, level: c_int) -> c_int {
    answer(|| {
        // SAFETY: the file is open.
        let handle = unsafe { handle(file) };
        match level_of(level) {
            Some(level) => handle.disk.raise(handle.id, level),
            None => Ok(()),
        }
    })
}

unsafe extern "C" fn unlock(file: *mut ffi::sqlite3_file, level: c_int) -> c_int {
    answer(|| {
        // SAFETY: the file is open.
        let handle = unsafe { handle(file) };
        handle.disk.lower(handle.id, level_of(level))
    })
}

unsafe extern "C" fn check_reserved_lock(file: *mut ffi::sqlite3_file, out: *mut c_int) -> c_int {
    answer(|| {
        // SAFETY: the file is open.
        let handle = unsafe { handle(file) };
        let reserved = handle.disk.is_reserved(handle.id)?;
        // SAFETY: SQLite passes where the result is to be.
        unsafe { *out = c_int::from(reserved) };
        Ok(())
    })
}

unsafe extern "C" fn file_control(_: *mut ffi::sqlite3_file, _: c_int, _: *mut c_void) -> c_int {
    ffi::SQLITE_NOTFOUND
}

unsafe extern "C" fn sector_size(_: *mut ffi::sqlite3_file) -> c_int {
    4096
}

unsafe extern "C" fn device_characteristics(_: *mut ffi::sqlite3_file) -> c_int {
    // As on Unix: what lies beside a write is not harmed by it.
    ffi::SQLITE_IOCAP_POWERSAFE_OVERWRITE
}

unsafe extern "C" fn shm_map(
    file: *mut ffi::sqlite3_file,
    nth: c_int,
    size: c_int,
    extend: c_int,
    out: *mut *mut c_void,
) -> c_int {
    answer(|| {
        // SAFETY: the file is open.
        let handle = unsafe { handle(file) };
        let regions = match &handle.regions {
            Some(regions) if handle.disk.size(handle.id).is_ok() => regions,
            Some(_) => return Err(ffi::SQLITE_IOERR),
            None => handle.regions.insert(handle.disk.regions(handle.id)?),
        };
        let region = regions.find(length(nth)?, length(size)?, extend != 0);
        // SAFETY: SQLite passes where the address is to be.
        unsafe { *out = region.cast() };
        Ok(())
    })
}

unsafe extern "C" fn shm_lock(
    file: *mut ffi::sqlite3_file,
    first: c_int,
    count: c_int,
    flags: c_int,
) -> c_int {
    answer(|| {
        // SAFETY: the file is open.
        let Handle { disk, id, .. } = unsafe { handle(file) };
        let first = length(first)?;
        let slots = first..first + length(count)?;
        if slots.end > ffi::SQLITE_SHM_NLOCK as usize {
            return Err(ffi::SQLITE_IOERR_SHMLOCK);
        }
        if flags & ffi::SQLITE_SHM_UNLOCK != 0 {
            disk.free(*id, slots)
        } else if flags & ffi::SQLITE_SHM_SHARED != 0 {
            disk.share(*id, slots)
        } else {
            disk.exclude(*id, slots)
        }
    })
}

unsafe extern "C" fn shm_barrier(file: *mut ffi::sqlite3_file) {
    answer(|| {
        // SAFETY: the file is open.
        unsafe { handle(file) }.disk.barrier();
        Ok(())
    });
}

unsafe extern "C" fn shm_unmap(file: *mut ffi::sqlite3_file, _: c_int) -> c_int {
    answer(|| {
        // SAFETY: the file is open.
        let handle = unsafe { handle(file) };
        handle.disk.free_all(handle.id);
        handle.regions = None;
        Ok(())
    })
}

/// Returns the code of an answer, be it that there is none because of a panic.
fn answer(ask: impl FnOnce() -> Answer) -> c_int {
    match catch_unwind(AssertUnwindSafe(ask)) {
        Ok(Ok(())) => ffi::SQLITE_OK,
        Ok(Err(code)) => code,
        Err(_) => ffi::SQLITE_INTERNAL,
    }
}

/// Returns the disk of a table.
///
/// # Safety
///
/// The table was made by [`register`].
unsafe fn disk(vfs: *mut ffi::sqlite3_vfs) -> Answer<Arc<Shared>> {
    // SAFETY: neither the table nor what it points to is ever freed.
    let disk = unsafe { &*(*vfs).pAppData.cast::<Weak<Shared>>() };
    disk.upgrade().ok_or(ffi::SQLITE_CANTOPEN)
}

/// Returns the handle of a file, which has it alone until its call returns.
///
/// # Safety
///
/// The file was opened by [`open`] and is not closed, and the calls for a file come one
/// after another, as SQLite makes them.
unsafe fn handle<'a>(file: *mut ffi::sqlite3_file) -> &'a mut Handle {
    // SAFETY: what was opened has a handle until it is closed.
    unsafe { &mut *(*file.cast::<File>()).handle }
}

/// Returns the text of a name, if there is one.
///
/// # Safety
///
/// It is null or ends with a zero, and outlives what it is used for.
unsafe fn text<'a>(name: *const c_char) -> Answer<Option<&'a str>> {
    if name.is_null() {
        return Ok(None);
    }
    // SAFETY: it ends with a zero.
    let name = unsafe { CStr::from_ptr(name) };
    name.to_str().map(Some).map_err(|_| ffi::SQLITE_CANTOPEN)
}

fn length(count: c_int) -> Answer<usize> {
    usize::try_from(count).map_err(|_| ffi::SQLITE_IOERR)
}

fn offset(at: ffi::sqlite3_int64) -> Answer<usize> {
    usize::try_from(at).map_err(|_| ffi::SQLITE_IOERR)
}

fn level_of(level: c_int) -> Option<Level> {
    match level {
        ffi::SQLITE_LOCK_SHARED => Some(Level::Shared),
        ffi::SQLITE_LOCK_RESERVED => Some(Level::Reserved),
        ffi::SQLITE_LOCK_PENDING => Some(Level::Pending),
        ffi::SQLITE_LOCK_EXCLUSIVE => Some(Level::Exclusive),
        _ => None,
    }
}
