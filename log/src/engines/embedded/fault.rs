//! What redb says when something is wrong, in the words of a log.

use core::fmt;
use std::io::ErrorKind;

use ::redb::{CommitError, DatabaseError, StorageError, TableError, TransactionError};

use crate::Error;
use crate::row::DecodeError;

/// Inside a transaction: redb's own trouble, which may pass if the file is opened anew, or ours.
#[derive(Debug)]
pub(crate) enum StoreFault {
    Storage(StorageError),
    Ours(Error),
}

impl StoreFault {
    pub(crate) const fn is_storage(&self) -> bool {
        matches!(self, Self::Storage(_))
    }

    pub(crate) fn into_error(self) -> Error {
        match self {
            Self::Ours(error) => error,
            Self::Storage(StorageError::Io(error)) if is_full(error.kind()) => Error::Full { cause: error.to_string() },
            Self::Storage(StorageError::Corrupted(what)) => Error::Corrupt { what },
            Self::Storage(error) => Error::Io { cause: error.to_string() },
        }
    }
}

pub(crate) fn is_full(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge)
}

pub(crate) fn found_while_open(error: DatabaseError, folder: &str) -> Error {
    match error {
        DatabaseError::DatabaseAlreadyOpen => Error::Locked { folder: folder.to_owned() },
        DatabaseError::Storage(error) => StoreFault::Storage(error).into_error(),
        DatabaseError::UpgradeRequired(format) => {
            Error::Corrupt { what: format!("redb's file format {format} is too old for this program") }
        }
        error => Error::Io { cause: error.to_string() },
    }
}

impl fmt::Display for StoreFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Storage(error) => error.fmt(f),
            Self::Ours(error) => error.fmt(f),
        }
    }
}

impl From<StorageError> for StoreFault {
    fn from(error: StorageError) -> Self {
        Self::Storage(error)
    }
}

impl From<TransactionError> for StoreFault {
    fn from(error: TransactionError) -> Self {
        match error {
            TransactionError::Storage(error) => Self::Storage(error),
            error => Error::Io { cause: error.to_string() }.into(),
        }
    }
}

impl From<TableError> for StoreFault {
    fn from(error: TableError) -> Self {
        match error {
            TableError::Storage(error) => Self::Storage(error),
            error => Error::Corrupt { what: error.to_string() }.into(),
        }
    }
}

impl From<CommitError> for StoreFault {
    fn from(error: CommitError) -> Self {
        match error {
            CommitError::Storage(error) => Self::Storage(error),
            error => Error::Io { cause: error.to_string() }.into(),
        }
    }
}

impl From<Error> for StoreFault {
    fn from(error: Error) -> Self {
        Self::Ours(error)
    }
}

impl From<DecodeError> for StoreFault {
    fn from(error: DecodeError) -> Self {
        Self::Ours(error.into())
    }
}
