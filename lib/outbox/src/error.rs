//! Errors between the outbox and its database.

use core::time::Duration;

use onward_database::DatabaseError;

use crate::RowError;

/// The reason why the database did not do what was asked. Claims end by themselves, so that asking again is always
/// safe.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OutboxError {
    #[error(
        "`{0}` is no database that an outbox can be in: write postgres://user@host/database or sqlite:/path/to/file"
    )]
    Url(String),
    #[error(
        "there is no {0}; nothing was made. A poller makes it when it starts, and so does `onward outbox schema`'s SQL"
    )]
    Missing(String),
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

impl From<DatabaseError> for OutboxError {
    fn from(error: DatabaseError) -> Self {
        match error {
            DatabaseError::Url(why) => Self::Url(format!("postgres:… ({why})")),
            DatabaseError::Unreachable(why) => Self::Unreachable(why),
            DatabaseError::Refused(why) => Self::Refused(why),
            DatabaseError::Unanswered(within) => Self::Unanswered(within),
        }
    }
}

/// The reason why a row was not written. The transaction goes on if the row was at fault; if the database was,
/// PostgreSQL has ended it.
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
