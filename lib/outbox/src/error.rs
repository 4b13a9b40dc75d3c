//! What can go wrong between the outbox and its database.

use core::time::Duration;

use crate::RowError;

/// Why the database did not do what was asked. Claims end by themselves, so that asking again is always safe.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OutboxError {
    #[error(
        "`{0}` is no database that an outbox can be in: write postgres://user@host/database or sqlite:/path/to/file"
    )]
    Url(String),
    #[error("no connection to the database: {0}; nothing was changed")]
    Unreachable(String),
    #[error("the database refused: {0}; nothing was changed")]
    Refused(String),
    #[error(
        "the table onward_outbox is not as this outbox needs it: {0}; `onward_outbox::store` has the SQL that makes it"
    )]
    Table(String),
    #[error(
        "the database did not answer within {0:?}; whether it did what was asked is not known, and asking again is safe"
    )]
    Unanswered(Duration),
}

/// Why a row was not written. The transaction goes on if the row was at fault; if the database was, PostgreSQL has ended it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EnqueueError {
    #[error(transparent)]
    Row(#[from] RowError),
    #[error("the row could not be written: {0}")]
    Postgres(#[from] tokio_postgres::Error),
    #[cfg(feature = "sqlite")]
    #[error("the row could not be written: {0}")]
    Sqlite(#[from] rusqlite::Error),
}
