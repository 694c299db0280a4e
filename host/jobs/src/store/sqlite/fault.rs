//! What SQLite says when it cannot, and what that means for whoever asked.

use std::path::Path;

use rusqlite::{ErrorCode, ffi};

use crate::store::StoreError;

/// Why a statement gave nothing.
#[derive(Debug)]
pub(super) enum Fault {
    /// SQLite says so.
    Sql(rusqlite::Error),
    /// A row is there but cannot be read.
    Row {
        /// Which.
        row: String,
        /// What is wrong with it.
        why: String,
    },
}

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sql(error)
    }
}

impl Fault {
    /// Returns what it says of a file.
    pub(super) fn at(&self, file: &Path) -> StoreError {
        let path = file.to_owned();
        match self {
            Self::Sql(error) => of_sqlite(error, file),
            Self::Row { row, why } => {
                StoreError::Damaged { path, why: format!("{row} cannot be read: {why}") }
            }
        }
    }

    /// Tells whether the file as such is damaged, and not just a row in it.
    pub(super) fn is_of_file(&self) -> bool {
        let code = match self {
            Self::Sql(error) => error.sqlite_error_code(),
            Self::Row { .. } => None,
        };
        matches!(code, Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase))
    }

    /// Tells whether somebody else has what it takes.
    pub(super) fn is_busy(&self) -> bool {
        let code = match self {
            Self::Sql(error) => error.sqlite_error_code(),
            Self::Row { .. } => None,
        };
        matches!(code, Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
    }
}

fn of_sqlite(error: &rusqlite::Error, file: &Path) -> StoreError {
    let path = file.to_owned();
    let rusqlite::Error::SqliteFailure(failure, said) = error else {
        // Not from the system: a value is not of the type that it was written with.
        return StoreError::Damaged { path, why: error.to_string() };
    };
    let why = said.clone().unwrap_or_else(|| failure.to_string());
    match failure.code {
        ErrorCode::DiskFull => StoreError::Full { path },
        // The file that readers and writers share grows only for want of space.
        _ if failure.extended_code == ffi::SQLITE_IOERR_SHMSIZE => StoreError::Full { path },
        ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase => StoreError::Damaged { path, why },
        ErrorCode::ReadOnly | ErrorCode::PermissionDenied => StoreError::ReadOnly { path, why },
        ErrorCode::CannotOpen => StoreError::Io {
            path,
            why: format!(
                "{why}: its folder must be there, and this user must be able to write in it"
            ),
        },
        ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked => StoreError::Io {
            path,
            why: "another process keeps it locked: a tool that looks at it or copies it, with a \
                  transaction open? End that, and ask again; nothing was changed"
                .to_owned(),
        },
        _ => StoreError::Io { path, why },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(code: i32) -> StoreError {
        let error = rusqlite::Error::SqliteFailure(ffi::Error::new(code), None);
        Fault::Sql(error).at(Path::new("/data/jobs.db"))
    }

    #[test]
    fn every_failure_says_whose_move_it_is() {
        assert!(matches!(said(ffi::SQLITE_FULL), StoreError::Full { .. }));
        assert!(matches!(said(ffi::SQLITE_IOERR_SHMSIZE), StoreError::Full { .. }));
        assert!(matches!(said(ffi::SQLITE_CORRUPT), StoreError::Damaged { .. }));
        assert!(matches!(said(ffi::SQLITE_NOTADB), StoreError::Damaged { .. }));
        assert!(matches!(said(ffi::SQLITE_READONLY), StoreError::ReadOnly { .. }));
        assert!(matches!(said(ffi::SQLITE_PERM), StoreError::ReadOnly { .. }));
        assert!(matches!(said(ffi::SQLITE_IOERR), StoreError::Io { .. }));
        for (code, hint) in [
            (ffi::SQLITE_BUSY, "another process"),
            (ffi::SQLITE_CANTOPEN, "its folder must be there"),
        ] {
            let said = said(code).to_string();
            assert!(said.starts_with("/data/jobs.db: ") && said.contains(hint), "{said}");
            assert!(!said.contains("database is locked"), "{said}");
        }
    }
}
