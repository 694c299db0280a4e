//! Copies of a store: made while it is written, and put back in its place.

use std::{fs, io, path::Path};

use rusqlite::{Connection, OpenFlags, backup::Backup};

use super::{
    SqliteOptions,
    fault::Fault,
    file::{
        Temporary, beside, check, io_error, look_over, make_error, open_to_read, sync_folder_of,
    },
};
use crate::store::StoreError;

/// Copies what a connection sees at this moment into a new file, which has its name
/// once it is whole and was looked over.
pub(super) fn copy(from: &Connection, file: &Path, to: &Path) -> Result<(), StoreError> {
    if fs::symlink_metadata(to).is_ok() {
        return Err(exists(to));
    }
    let copy = Temporary::beside(to, "copy").map_err(|error| make_error(to, &error))?;
    write(from, file, copy.path(), to)?;
    copy.put_at(to).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => exists(to),
        _ => io_error(to, &error),
    })
}

/// Puts a backup in the place of a store that nobody uses. What was there is kept
/// beside it, as `<name>.before-restore-<n>`. It blocks.
///
/// # Errors
///
/// When `from` is no store that this version can use, when somebody has `to` open, and
/// when something cannot be written. Nothing has changed then.
pub fn restore(from: &Path, to: &Path) -> Result<(), StoreError> {
    let options = SqliteOptions { check_up_to: u64::MAX, ..SqliteOptions::default() };
    let (from, to) = (absolute(from)?, absolute(to)?);
    let source = open_to_read(&from, &options)?.connect(&from, &options)?;
    must_be_unused(&to)?;
    let copy = Temporary::beside(&to, "restored").map_err(|error| make_error(&to, &error))?;
    write(&source, &from, copy.path(), &to)?;
    drop(source);
    let kept = put_aside(&to)?;
    copy.put_at(&to).map_err(|error| {
        let error = io_error(&to, &error);
        match kept {
            None => error,
            // It is easily put back by hand, and nothing is lost.
            Some(kept) => StoreError::Io {
                path: to.clone(),
                why: format!("{error}; what was there is {}", kept.display()),
            },
        }
    })
}

/// Writes a copy, and has it looked over. What goes wrong is told of `to`.
fn write(from: &Connection, file: &Path, copy: &Path, to: &Path) -> Result<(), StoreError> {
    let tell = |error: rusqlite::Error| Fault::from(error).at(to);
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE;
    let mut target =
        Connection::open_with_flags(copy, flags | OpenFlags::SQLITE_OPEN_NO_MUTEX).map_err(tell)?;
    // All pages at once: between two parts, whoever writes would have it begin anew.
    Backup::new(from, &mut target)
        .and_then(|backup| backup.step(-1))
        .map_err(|error| Fault::from(error).at(file))?;
    // So that it is one file, and can be read where nothing can be written.
    target.pragma_update(None, "journal_mode", "DELETE").map_err(tell)?;
    look_over(&target, to, &SqliteOptions { check_up_to: 0, ..SqliteOptions::default() })?;
    let damaged = |why| StoreError::Damaged {
        path: file.to_owned(),
        why: format!("a copy of it is not whole: {why}"),
    };
    check(&target, "integrity_check(1)").map_err(|fault| fault.at(to))?.map_err(damaged)?;
    target.close().map_err(|(_, error)| tell(error))?;
    let synced = fs::File::open(copy).and_then(|copy| copy.sync_all());
    synced.map_err(|error| io_error(to, &error))
}

fn exists(to: &Path) -> StoreError {
    let why = "it is there already and is not overwritten: choose another name".to_owned();
    StoreError::Io { path: to.to_owned(), why }
}

pub(super) fn absolute(path: &Path) -> Result<std::path::PathBuf, StoreError> {
    std::path::absolute(path).map_err(|error| io_error(path, &error))
}

/// Checks that no process has a store open.
fn must_be_unused(file: &Path) -> Result<(), StoreError> {
    if !file.exists() {
        return Ok(());
    }
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let asked = Connection::open_with_flags(file, flags).and_then(|connection| {
        connection
            .set_db_config(rusqlite::config::DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
        connection.busy_timeout(std::time::Duration::ZERO)?;
        // Whoever has it open shares a lock on it, which nobody else may then have alone.
        connection.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
        connection.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))?;
        connection.execute_batch("BEGIN EXCLUSIVE; ROLLBACK")
    });
    match asked.map_err(Fault::from) {
        Err(fault) if fault.is_busy() => {
            let why = "somebody has it open: stop the host that does, and try again".to_owned();
            Err(StoreError::Io { path: file.to_owned(), why })
        }
        // One that is damaged is what backups are for.
        _ => Ok(()),
    }
}

/// Gives what is there another name, with what belongs to it, and returns that.
fn put_aside(file: &Path) -> Result<Option<std::path::PathBuf>, StoreError> {
    // The file before its log: without the log, it would pass for the whole.
    let parts = ["", "-wal", "-journal", "-shm"];
    let is_there = |file: &Path| fs::symlink_metadata(file).is_ok();
    if !parts.iter().any(|part| is_there(&beside(file, part))) {
        return Ok(None);
    }
    let mut names = (1..).map(|number: u64| beside(file, &format!(".before-restore-{number}")));
    let Some(kept) = names.find(|kept| !parts.iter().any(|part| is_there(&beside(kept, part))))
    else {
        return Ok(None);
    };
    for part in parts {
        let (old, new) = (beside(file, part), beside(&kept, part));
        if is_there(&old) {
            fs::rename(&old, &new).map_err(|error| io_error(&old, &error))?;
        }
    }
    sync_folder_of(file).map_err(|error| io_error(file, &error))?;
    Ok(Some(kept))
}
