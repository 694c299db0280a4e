//! The file that a store is in: how it is made, opened and looked over. Whatever is
//! wrong with a file, it is left as it is.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use rusqlite::{Connection, OpenFlags, config::DbConfig};

use super::{SqliteOptions, fault::Fault};
use crate::store::StoreError;

/// Says whose database it is, in the header of the file: `blot`.
pub(super) const APPLICATION: i64 = 0x626c_6f74;

/// The steps from an empty database to the format of today, one for each version.
const MIGRATIONS: [&str; 2] =
    [include_str!("migrations/001.sql"), include_str!("migrations/002.sql")];

/// How many prepared statements a connection keeps. There are about forty.
const STATEMENTS: usize = 64;

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    /// It writes.
    Writing,
    /// It reads, beside one that writes perhaps.
    Reading,
}

/// Opens a store, and makes it if there is none.
pub(super) fn open(file: &Path, options: &SqliteOptions) -> Result<Connection, StoreError> {
    if options.vfs.is_none() && !is_there(file)? {
        create(file)?;
    }
    let mut flags = OpenFlags::SQLITE_OPEN_READ_WRITE;
    if options.vfs.is_some() {
        flags |= OpenFlags::SQLITE_OPEN_CREATE;
    }
    let connection = connect(file, flags, options, Use::Writing).map_err(|fault| fault.at(file))?;
    let tell = |error: rusqlite::Error| Fault::from(error).at(file);
    if options.vfs.is_some() && page_count(&connection).map_err(tell)? == 0 {
        migrate(&connection, 0).map_err(|fault| fault.at(file))?;
    }
    let format = look_over(&connection, file, options)?;
    if connection.is_readonly("main").map_err(tell)? {
        let why = "its file is write-protected, or on a medium that is: make it writable, or use \
                   another data folder";
        return Err(StoreError::ReadOnly { path: file.to_owned(), why: why.to_owned() });
    }
    migrate(&connection, format).map_err(|fault| fault.at(file))?;
    prepare_to_write(&connection, file).map_err(|fault| fault.at(file))??;
    Ok(connection)
}

/// Opens a store that others write, or nobody.
pub(super) fn open_to_read(file: &Path, options: &SqliteOptions) -> Result<Reading, StoreError> {
    let reading = reading_of(file, options)?;
    let connection = reading.connect(file, options)?;
    let format = look_over(&connection, file, options)?;
    if (format as usize) < MIGRATIONS.len() {
        let why = format!(
            "it is in the older format {format}, and to be read it must be brought up to date: \
             start the host on it once"
        );
        return Err(StoreError::ReadOnly { path: file.to_owned(), why });
    }
    Ok(reading)
}

/// How a file is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reading {
    /// Beside whoever writes it.
    Shared,
    /// Where nothing can be written, the writer's log is read as well if what readers
    /// share lies beside it.
    Protected,
    /// Nothing can be written, nor needs to be, for the file is complete by itself.
    Immutable,
}

impl Reading {
    /// Opens a connection that reads so.
    pub(super) fn connect(
        self,
        file: &Path,
        options: &SqliteOptions,
    ) -> Result<Connection, StoreError> {
        self.try_connect(file, options).map_err(|fault| fault.at(file))
    }

    fn try_connect(self, file: &Path, options: &SqliteOptions) -> Result<Connection, Fault> {
        let read_only = OpenFlags::SQLITE_OPEN_READ_ONLY;
        match self {
            Self::Shared => connect(file, OpenFlags::SQLITE_OPEN_READ_WRITE, options, Use::Reading),
            Self::Protected => connect(file, read_only, options, Use::Reading),
            Self::Immutable => {
                let flags = read_only | OpenFlags::SQLITE_OPEN_URI;
                connect(&immutable(file), flags, options, Use::Reading)
            }
        }
    }
}

/// Finds out how a file can be read.
fn reading_of(file: &Path, options: &SqliteOptions) -> Result<Reading, StoreError> {
    if options.vfs.is_none() && !is_there(file)? {
        let why = "there is no store of jobs: a host makes one when it starts".to_owned();
        return Err(StoreError::Io { path: file.to_owned(), why });
    }
    let can_read = |reading: Reading| -> Result<bool, StoreError> {
        let connection = reading.try_connect(file, options);
        let read = connection.and_then(|connection| Ok(page_count(&connection)?));
        match read.map_err(|fault| (fault.is_busy(), fault.at(file))) {
            Ok(_) => Ok(true),
            Err((false, StoreError::ReadOnly { .. } | StoreError::Io { .. })) => Ok(false),
            Err((_, error)) => Err(error),
        }
    };
    if can_read(Reading::Shared)? {
        return Ok(Reading::Shared);
    }
    if can_read(Reading::Protected)? {
        return Ok(Reading::Protected);
    }
    // Without its log, the file is what it was some time ago.
    if has_log(file) {
        let log = beside(file, "-wal");
        let why = format!(
            "its last changes are in {}, which cannot be read where nothing can be written: copy \
             both to where you may write",
            log.display()
        );
        return Err(StoreError::ReadOnly { path: file.to_owned(), why });
    }
    Ok(Reading::Immutable)
}

/// Tells whether the file is there.
///
/// # Errors
///
/// When it is there, but holds nothing.
fn is_there(file: &Path) -> Result<bool, StoreError> {
    let damaged = |why: &str| StoreError::Damaged { path: file.to_owned(), why: why.to_owned() };
    match fs::metadata(file) {
        Ok(found) if !found.is_file() => Err(damaged("it is no file")),
        // SQLite would take it for a new database.
        Ok(found) if found.len() == 0 => Err(damaged("it is empty (0 bytes)")),
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // Taken for that of the new file, it would be played into it.
            if has_log(file) {
                let log = beside(file, "-wal");
                let why = format!("it is gone, and only {} is left of it", log.display());
                return Err(damaged(&why));
            }
            Ok(false)
        }
        Err(error) => Err(StoreError::Io { path: file.to_owned(), why: error.to_string() }),
    }
}

/// Tells whether there are changes that are not in the file itself yet.
fn has_log(file: &Path) -> bool {
    fs::metadata(beside(file, "-wal")).is_ok_and(|log| log.len() > 0)
}

/// Makes an empty store. It is whole before it has its name.
fn create(file: &Path) -> Result<(), StoreError> {
    let new = Temporary::beside(file, "new").map_err(|error| make_error(file, &error))?;
    let tell = |fault: Fault| fault.at(file);
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE;
    let connection =
        Connection::open_with_flags(new.path(), flags | OpenFlags::SQLITE_OPEN_NO_MUTEX)
            .map_err(|error| tell(error.into()))?;
    migrate(&connection, 0).map_err(tell)?;
    connection.close().map_err(|(_, error)| tell(error.into()))?;
    match new.put_at(file) {
        // Somebody else has made one at the same time.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(io_error(file, &error)),
        Ok(()) => Ok(()),
    }
}

fn connect(
    name: &Path,
    flags: OpenFlags,
    options: &SqliteOptions,
    to: Use,
) -> Result<Connection, Fault> {
    let flags = flags | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = match &options.vfs {
        None => Connection::open_with_flags(name, flags),
        Some(vfs) => Connection::open_with_flags_and_vfs(name, flags, vfs.as_str()),
    };
    let set_up = |connection: &Connection| -> Result<(), rusqlite::Error> {
        connection.busy_timeout(options.busy)?;
        connection.set_prepared_statement_cache_capacity(STATEMENTS);
        // What turns out to be damaged is not written to when it is closed.
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
        // A statement is planned once, and not for each value that it is given.
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
        if to == Use::Reading {
            connection.pragma_update(None, "query_only", true)?;
            connection.pragma_update(None, "cache_size", -4_096)?;
        }
        Ok(())
    };
    let connection = connection?;
    set_up(&connection)?;
    Ok(connection)
}

/// Returns the address under which SQLite takes a file for one that nobody writes.
fn immutable(file: &Path) -> PathBuf {
    let mut address = String::from("file:");
    for byte in file.as_os_str().as_encoded_bytes() {
        match byte {
            b'/' | b'.' | b'-' | b'_' => address.push(char::from(*byte)),
            byte if byte.is_ascii_alphanumeric() => address.push(char::from(*byte)),
            byte => address += &format!("%{byte:02X}"),
        }
    }
    (address + "?immutable=1").into()
}

/// Checks that a file is a store that can be used, and returns its format.
pub(super) fn look_over(
    connection: &Connection,
    file: &Path,
    options: &SqliteOptions,
) -> Result<u32, StoreError> {
    let damaged = |why: String| StoreError::Damaged { path: file.to_owned(), why };
    let tell = |fault: Fault| fault.at(file);
    let header = |name: &str| {
        connection
            .pragma_query_value(None, name, |row| row.get::<_, i64>(0))
            .map_err(|error| tell(error.into()))
    };
    let application = header("application_id")?;
    if application != APPLICATION {
        let why = format!(
            "it is another program's database (application id {application:#x}, and {APPLICATION:#x} \
             was wanted)"
        );
        return Err(damaged(why));
    }
    let version = header("user_version")?;
    let known = MIGRATIONS.len();
    let format = match usize::try_from(version) {
        Ok(format) if (1..=known).contains(&format) => format,
        Ok(_) if version > 0 => {
            let found = u32::try_from(version).unwrap_or(u32::MAX);
            return Err(StoreError::Newer { path: file.to_owned(), found, known: known as u32 });
        }
        _ => return Err(damaged(format!("there is no format {version}"))),
    };
    let found = schema_of(connection).map_err(tell)?;
    let wanted = wanted_schema(format).map_err(tell)?;
    for (name, sql) in wanted {
        match found.get(&name) {
            Some(found) if *found == sql => {}
            Some(_) => return Err(damaged(format!("`{name}` is not as format {format} has it"))),
            None => return Err(damaged(format!("`{name}` is missing from it"))),
        }
    }
    let page = header("page_size")?.cast_unsigned();
    let pages = page_count(connection).map_err(|error| tell(error.into()))?;
    let length = fs::metadata(file).map_or(0, |found| found.len());
    // A crash may leave a part of a page where the log has the whole of it.
    if length.checked_rem(page).is_some_and(|rest| rest > 0) && !has_log(file) {
        return Err(damaged("it ends in the middle of a page".to_owned()));
    }
    if pages.saturating_mul(page) <= options.check_up_to {
        check(connection, "quick_check(1)").map_err(tell)?.map_err(damaged)?;
    }
    Ok(format as u32)
}

/// Has SQLite look the whole file over. What it finds is the inner error.
pub(super) fn check(connection: &Connection, how: &str) -> Result<Result<(), String>, Fault> {
    let found: String = connection.query_row(&format!("PRAGMA {how}"), [], |row| row.get(0))?;
    Ok(if found == "ok" { Ok(()) } else { Err(found) })
}

fn page_count(connection: &Connection) -> Result<u64, rusqlite::Error> {
    connection
        .pragma_query_value(None, "page_count", |row| Ok(row.get::<_, i64>(0)?.cast_unsigned()))
}

/// Returns the tables and indexes of a database, and how they were made.
fn schema_of(connection: &Connection) -> Result<BTreeMap<String, Option<String>>, Fault> {
    let mut statement = connection.prepare("SELECT name, sql FROM sqlite_schema")?;
    let objects = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    Ok(objects.collect::<Result<_, _>>()?)
}

fn wanted_schema(format: usize) -> Result<BTreeMap<String, Option<String>>, Fault> {
    let pattern = Connection::open_in_memory()?;
    for migration in MIGRATIONS.iter().take(format) {
        pattern.execute_batch(migration)?;
    }
    schema_of(&pattern)
}

/// Brings a database to the format of today.
fn migrate(connection: &Connection, format: u32) -> Result<(), Fault> {
    if format as usize == MIGRATIONS.len() {
        return Ok(());
    }
    let steps = || -> Result<(), rusqlite::Error> {
        connection.execute_batch("BEGIN IMMEDIATE")?;
        // Another process may have been here since.
        let format: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
        for (step, migration) in (0..).zip(MIGRATIONS) {
            if step >= format {
                connection.execute_batch(migration)?;
            }
        }
        connection.pragma_update(None, "application_id", APPLICATION)?;
        connection.pragma_update(None, "user_version", MIGRATIONS.len() as i64)?;
        connection.execute_batch("COMMIT")
    };
    // Closing the connection undoes what was begun.
    Ok(steps()?)
}

/// Sets up the connection that writes.
fn prepare_to_write(connection: &Connection, file: &Path) -> Result<Result<(), StoreError>, Fault> {
    let mode: String =
        connection.pragma_update_and_check(None, "journal_mode", "wal", |row| row.get(0))?;
    if mode != "wal" {
        let why = format!(
            "its file system does not let processes share memory (journal mode {mode}): keep the \
             data folder on a local disk"
        );
        return Ok(Err(StoreError::Io { path: file.to_owned(), why }));
    }
    for (name, value) in [
        // One sync for each commit, before it is answered.
        ("synchronous", "FULL"),
        ("fullfsync", "ON"),
        ("checkpoint_fullfsync", "ON"),
        ("foreign_keys", "ON"),
        ("cache_size", "-65536"),
        ("temp_store", "MEMORY"),
        // The writer decides when.
        ("wal_autocheckpoint", "0"),
    ] {
        connection.pragma_update(None, name, value)?;
    }
    // A log that is kept is overwritten, which a sync is done with sooner than with a
    // file that grows.
    connection.pragma_update(None, "journal_size_limit", super::writer::LOG_KEPT)?;
    Ok(Ok(()))
}

/// Returns the path of a file beside another, which has its name and more.
pub(super) fn beside(file: &Path, more: &str) -> PathBuf {
    let mut name = file.file_name().map(OsString::from).unwrap_or_default();
    name.push(more);
    file.with_file_name(name)
}

pub(super) fn io_error(file: &Path, error: &io::Error) -> StoreError {
    let path = file.to_owned();
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => StoreError::Full { path },
        io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied => {
            StoreError::ReadOnly { path, why: error.to_string() }
        }
        _ => StoreError::Io { path, why: error.to_string() },
    }
}

/// Says why a file could not be made.
pub(super) fn make_error(file: &Path, error: &io::Error) -> StoreError {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied => StoreError::Io {
            path: file.to_owned(),
            why: format!(
                "{error}: its folder must be there, and this user must be able to write in it"
            ),
        },
        _ => io_error(file, error),
    }
}

/// A database that is not done. Dropped before that, it is deleted.
pub(super) struct Temporary(PathBuf);

impl Temporary {
    /// Makes an empty file beside another, under a name that nobody else uses. Nobody but
    /// this user may read it, nor the log that SQLite will keep beside it, which has the
    /// mode of its database.
    pub(super) fn beside(file: &Path, what: &str) -> io::Result<Self> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Relaxed);
        let temporary = Self(beside(file, &format!(".{what}-{}-{number}", std::process::id())));
        // One of an earlier process of that number may have been left.
        temporary.delete();
        let mut empty = fs::OpenOptions::new();
        empty.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut empty, 0o600);
        empty.open(&temporary.0)?;
        Ok(temporary)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Gives it its name, unless that is taken.
    pub(super) fn put_at(self, file: &Path) -> io::Result<()> {
        match fs::hard_link(&self.0, file) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Err(error),
            // Some file systems have no links. There, of two at once, the last one wins.
            Err(_) => match fs::symlink_metadata(file) {
                Ok(_) => return Err(io::ErrorKind::AlreadyExists.into()),
                Err(_) => fs::rename(&self.0, file)?,
            },
        }
        sync_folder_of(file)
    }

    fn delete(&self) {
        for more in ["", "-journal", "-wal", "-shm"] {
            // What is not there need not be deleted, and what cannot be is in nobody's way.
            let _ = fs::remove_file(beside(&self.0, more));
        }
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        self.delete();
    }
}

/// Has the names in a file's folder survive a crash of the machine.
pub(super) fn sync_folder_of(file: &Path) -> io::Result<()> {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    // Only on Unix is a folder a file.
    if cfg!(unix) { fs::File::open(folder)?.sync_all() } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c72_a_store_on_a_medium_that_cannot_be_written_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("a b%20?c#d&é'\"");
        fs::create_dir(&folder).unwrap();
        let (file, options) = (folder.join("jobs.db"), SqliteOptions::default());
        let connection = open(&file, &options).unwrap();
        connection.pragma_update(None, "wal_checkpoint", "TRUNCATE").unwrap();
        drop(connection);
        let left = || fs::read_dir(&folder).unwrap().count();
        for more in ["-wal", "-shm"] {
            fs::remove_file(beside(&file, more)).unwrap();
        }
        for reading in [Reading::Immutable, Reading::Protected] {
            let connection = reading.connect(&file, &options).unwrap();
            assert_eq!(look_over(&connection, &file, &options).unwrap(), 2);
            connection.execute_batch("INSERT INTO result VALUES (1, '')").unwrap_err();
            assert!(left() == 1 || reading == Reading::Protected);
        }
    }
}
