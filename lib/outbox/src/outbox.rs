//! The outbox itself: a table in somebody's database.

use std::sync::Arc;

use crate::error::OutboxError;
use crate::poller::Poller;
use crate::publisher::Publisher;
#[cfg(feature = "sqlite")]
use crate::store::SqliteRows;
use crate::store::{Missing, PostgresRows, RowFilter, RowInfo, Store, UnpublishedRows};

/// The most rows that [`Outbox::list`] gives.
pub const MAX_LISTED: u32 = 1_000;

/// An outbox in a database. Cheap to clone; clones share a connection.
#[derive(Clone, Debug)]
pub struct Outbox {
    pub(crate) store: Arc<Store>,
}

impl Outbox {
    /// Opens an outbox by the URL of either database: `postgres://…`, or `sqlite:` and the path of a file. Makes the
    /// table if there is none.
    pub async fn open(url: &str) -> Result<Self, OutboxError> {
        Self::open_with(url, Missing::Make).await
    }

    /// Opens an outbox as [`open`](Self::open) does, for programs that only look at what should be there: makes neither
    /// a file nor a table.
    pub async fn open_existing(url: &str) -> Result<Self, OutboxError> {
        Self::open_with(url, Missing::Refuse).await
    }

    async fn open_with(url: &str, missing: Missing) -> Result<Self, OutboxError> {
        if url.starts_with("postgres://") || url.starts_with("postgresql://") {
            return Ok(Self { store: Arc::new(Store::Postgres(Box::new(PostgresRows::open(url, missing).await?))) });
        }
        #[cfg(feature = "sqlite")]
        if let Some(path) = url.strip_prefix("sqlite:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            return Ok(Self { store: Arc::new(Store::Sqlite(SqliteRows::open(path.as_ref(), missing).await?)) });
        }
        // A URL may hold a password, which belongs into no message.
        let kind = url.split_once(':').map_or(url, |(kind, _)| kind);
        Err(OutboxError::Url(format!("{kind}:…")))
    }

    /// Opens an outbox on PostgreSQL 13 or newer, also behind a pooler such as PgBouncer. Connects; makes the table if
    /// there is none.
    ///
    /// TLS is used where the URL says `sslmode=require`, and the server must then have a certificate that browsers trust.
    pub async fn postgres(url: &str) -> Result<Self, OutboxError> {
        Ok(Self { store: Arc::new(Store::Postgres(Box::new(PostgresRows::open(url, Missing::Make).await?))) })
    }

    /// Opens an outbox in a file of SQLite. Makes the file, and the table, if there is none.
    #[cfg(feature = "sqlite")]
    pub async fn sqlite(path: impl AsRef<std::path::Path>) -> Result<Self, OutboxError> {
        Ok(Self { store: Arc::new(Store::Sqlite(SqliteRows::open(path.as_ref(), Missing::Make).await?)) })
    }

    /// The poller that publishes the rows of this outbox, as a loop of a [`Supervisor`](onward_health::Supervisor).
    pub fn publish_to(self, publisher: impl Publisher) -> Poller {
        Poller::new(self, Arc::new(publisher))
    }

    /// The rows that are left to publish, where a parked row holds its key.
    pub async fn backlog(&self) -> Result<UnpublishedRows, OutboxError> {
        self.store.look(true).await
    }

    /// Rows by their ids, the oldest first; at most [`MAX_LISTED`].
    pub async fn list(&self, filter: &RowFilter, limit: u32) -> Result<Vec<RowInfo>, OutboxError> {
        self.store.list(filter, limit.min(MAX_LISTED)).await
    }

    /// Parked rows that match are tried again, with all their attempts; their ids.
    pub async fn replay(&self, filter: &RowFilter) -> Result<Vec<i64>, OutboxError> {
        self.store.replay(filter).await
    }

    /// Parked rows that match are deleted, unpublished; their ids.
    pub async fn drop_parked(&self, filter: &RowFilter) -> Result<Vec<i64>, OutboxError> {
        self.store.drop_parked(filter).await
    }
}
