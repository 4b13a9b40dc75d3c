//! The table, behind one set of questions that PostgreSQL and SQLite answer alike.
//!
//! A *claim* is a lease on rows, under a token of its own. Attempts count when rows are claimed, so that a row that kills
//! whoever holds it is counted all the same. Whatever happens to claimed rows afterwards names the token, and changes
//! nothing once another claim has taken their place.

mod postgres;
#[cfg(feature = "sqlite")]
mod sqlite;

use core::time::Duration;

use uuid::Uuid;

use crate::Row;
use crate::error::OutboxError;
pub(crate) use postgres::{NotifyListener, PostgresRows};
#[cfg(feature = "sqlite")]
pub(crate) use sqlite::SqliteRows;

/// The table of PostgreSQL.
pub const POSTGRES_SCHEMA: &str = include_str!("postgres/schema.sql");
/// A trigger for the table of PostgreSQL that wakes pollers, which else look once per poll.
pub const POSTGRES_NOTIFY: &str = include_str!("postgres/notify.sql");
/// The table of SQLite.
#[cfg(feature = "sqlite")]
pub const SQLITE_SCHEMA: &str = include_str!("sqlite/schema.sql");

/// The largest number that [`UnpublishedRows::depth`] counts to.
pub const DEPTH_COUNTED: u64 = 100_000;

/// The fate of an outbox whose table is not there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Missing {
    Make,
    Refuse,
}

/// The rule by which a claim takes rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ClaimRule {
    pub lease: Duration,
    pub rows: u32,
    /// Payload bytes after which no row is added.
    pub bytes: u64,
    /// Rows that were claimed so often and never settled are parked.
    pub max_attempts: u32,
    /// Whether a parked row holds its key.
    pub hold: bool,
}

/// Rows that are ours until the lease ends, by their ids.
#[derive(Debug)]
pub(crate) struct RowClaim {
    pub token: Uuid,
    pub rows: Vec<Row>,
    /// Rows that were parked instead, because nobody who claimed them has lived to settle them.
    pub parked: u64,
}

/// The results for the rows of a claim.
#[derive(Debug, Default)]
pub(crate) struct ClaimSettlement {
    pub published: Vec<i64>,
    /// Rows whose attempt does not count.
    pub given_back: Vec<i64>,
    pub refused: Vec<RowRefusal>,
}

impl ClaimSettlement {
    pub(crate) fn len(&self) -> usize {
        self.published.len() + self.given_back.len() + self.refused.len()
    }
}

#[derive(Debug)]
pub(crate) struct RowRefusal {
    pub id: i64,
    pub error: String,
    /// The time until the row's next attempt.
    pub retry_after: Duration,
    pub park: bool,
}

/// The rows in the outbox that are not published.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct UnpublishedRows {
    /// Rows that are neither published nor parked, counted up to [`DEPTH_COUNTED`].
    pub depth: u64,
    /// Rows that were given up on, until somebody replays or drops them.
    pub parked: u64,
    /// The age of the oldest row that is neither published, nor parked, nor held by a parked row of its key.
    pub oldest: Option<Duration>,
    /// Whether there is a row that nobody has claimed, is not parked, and is not held by a parked row of its key.
    pub waiting: bool,
    /// Whether there is a row under a claim that has not run out.
    pub claimed: bool,
}

/// The state of a row of the outbox.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum RowState {
    /// Not published yet.
    Waiting,
    /// Refused, and to be tried again.
    Refused,
    /// Claimed by a poller.
    Claimed,
    /// Given up on: replay or drop it.
    Parked,
}

impl RowState {
    pub const fn code(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Refused => "refused",
            Self::Claimed => "claimed",
            Self::Parked => "parked",
        }
    }

    fn read(parked: bool, claimed: bool, attempts: u32) -> Self {
        match (parked, claimed, attempts) {
            (true, ..) => Self::Parked,
            (_, true, _) => Self::Claimed,
            (_, _, 1..) => Self::Refused,
            _ => Self::Waiting,
        }
    }
}

/// A row as an operator sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct RowInfo {
    pub id: i64,
    pub dedup: Uuid,
    pub topic: String,
    pub key: Option<String>,
    pub state: RowState,
    pub attempts: u32,
    pub age: Duration,
    pub payload_bytes: u64,
    pub last_error: Option<String>,
}

/// A filter for rows; fields that are not given match all.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct RowFilter {
    /// Only these ids, if there are any.
    pub ids: Vec<i64>,
    pub topic: Option<String>,
    pub key: Option<String>,
    pub parked_only: bool,
    /// Only rows after this id.
    pub after: i64,
}

impl RowFilter {
    pub fn ids(ids: impl Into<Vec<i64>>) -> Self {
        Self { ids: ids.into(), ..Self::default() }
    }

    pub fn topic(mut self, topic: impl Into<String>) -> Self {
        self.topic = Some(topic.into());
        self
    }

    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    pub fn parked(mut self) -> Self {
        self.parked_only = true;
        self
    }

    pub fn after(mut self, id: i64) -> Self {
        self.after = id;
        self
    }
}

/// Either database.
#[derive(Debug)]
pub(crate) enum Store {
    Postgres(Box<PostgresRows>),
    #[cfg(feature = "sqlite")]
    Sqlite(SqliteRows),
}

/// Asks a question in one line: the same of either database.
macro_rules! ask {
    ($store:expr, $one:ident => $answer:expr) => {
        match $store {
            Store::Postgres($one) => $answer,
            #[cfg(feature = "sqlite")]
            Store::Sqlite($one) => $answer,
        }
    };
}

impl Store {
    pub(crate) async fn claim(&self, rule: &ClaimRule) -> Result<RowClaim, OutboxError> {
        let mut claim = ask!(self, one => one.claim(rule).await)?;
        claim.rows.sort_by_key(|row| row.id);
        Ok(claim)
    }

    /// The number of rows that were still ours.
    pub(crate) async fn settle(&self, token: Uuid, what: &ClaimSettlement, keep: bool) -> Result<u64, OutboxError> {
        ask!(self, one => one.settle(token, what, keep).await)
    }

    /// The lease of what is still ours begins anew; the ids of that.
    pub(crate) async fn renew(&self, token: Uuid, lease: Duration) -> Result<Vec<i64>, OutboxError> {
        ask!(self, one => one.renew(token, lease).await)
    }

    pub(crate) async fn look(&self, hold: bool) -> Result<UnpublishedRows, OutboxError> {
        ask!(self, one => one.look(hold).await)
    }

    /// Forgets some of the rows that were published longer ago.
    pub(crate) async fn prune(&self, kept_for: Duration) -> Result<u64, OutboxError> {
        ask!(self, one => one.prune(kept_for).await)
    }

    /// The database, if what is deleted there stays in its indexes until it is vacuumed.
    pub(crate) fn to_vacuum(&self) -> Option<&PostgresRows> {
        match self {
            Self::Postgres(one) => Some(one),
            #[cfg(feature = "sqlite")]
            Self::Sqlite(_) => None,
        }
    }

    pub(crate) async fn list(&self, filter: &RowFilter, limit: u32) -> Result<Vec<RowInfo>, OutboxError> {
        ask!(self, one => one.list(filter, limit).await)
    }

    pub(crate) async fn replay(&self, filter: &RowFilter) -> Result<Vec<i64>, OutboxError> {
        ask!(self, one => one.replay(filter).await)
    }

    pub(crate) async fn drop_parked(&self, filter: &RowFilter) -> Result<Vec<i64>, OutboxError> {
        ask!(self, one => one.drop_parked(filter).await)
    }
}

#[cfg(all(test, feature = "sqlite"))]
pub(crate) mod tests;
