//! The outbox on SQLite.
//!
//! SQLite has one writer at a time, so that a claim needs no lock of its own: it is an immediate transaction. Calls run on
//! tokio's threads for blocking work, and wait there for other writers of the file.
//!
//! The SQLite that comes with this crate is used, and not the system's: Debian 12 has 3.40, which lacks `octet_length`.
//! Programs that only insert rows may use any version since 3.38.

use core::time::Duration;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use rusqlite::types::Value;
use rusqlite::{Connection, Row as Columns, TransactionBehavior, named_params, params};
use uuid::Uuid;

use super::{
    ClaimRule, ClaimSettlement, DEPTH_COUNTED, Missing, RowClaim, RowFilter, RowInfo, RowState, UnpublishedRows,
};
use crate::Row;
use crate::error::OutboxError;
use crate::row::{random_uuid, read_headers};

const CLAIM: &str = include_str!("claim.sql");
const LOOK: &str = include_str!("look.sql");

const PARK: &str = "UPDATE onward_outbox
    SET parked_at = :now, claimed_by = NULL, claimed_until = NULL,
      last_error = 'claimed ' || attempts || ' times, and no holder came back to say what became of it'
    WHERE claimed_by IS NOT NULL AND claimed_until <= :now AND attempts >= :max_attempts";

const KEEP: &str = "INSERT OR IGNORE INTO onward_outbox_published
      (id, dedup, topic, key, payload, headers, created_at, published_at)
    SELECT id, dedup, topic, key, payload, headers, created_at, ?3 FROM onward_outbox WHERE id = ?1 AND claimed_by = ?2";

const SHAPE: &str = "SELECT id, dedup, topic, key, payload, headers, created_at, next_at, attempts, claimed_by,
    claimed_until, parked_at, last_error FROM onward_outbox LIMIT 0";

/// The time that a call waits for other writers of the file.
const WAITS: Duration = Duration::from_secs(15);

#[derive(Debug)]
pub(crate) struct SqliteRows {
    connection: Arc<Mutex<Connection>>,
}

impl SqliteRows {
    /// Opens the file, and makes it and the table if there is none and it may.
    pub(crate) async fn open(path: &Path, missing: Missing) -> Result<Self, OutboxError> {
        let path = path.to_owned();
        // For SQLite itself no name is a database of its own, which is gone with the connection.
        if path.as_os_str().is_empty() {
            return Err(OutboxError::Url("sqlite:".into()));
        }
        let opened = tokio::task::spawn_blocking(move || {
            if missing == Missing::Refuse && !path.exists() {
                return Err(OutboxError::Missing(format!("file {}", path.display())));
            }
            let connection = Connection::open(&path).map_err(|error| OutboxError::Unreachable(error.to_string()))?;
            connection.busy_timeout(WAITS).map_err(refused)?;
            if missing == Missing::Refuse && !connection.table_exists(None, "onward_outbox").map_err(refused)? {
                return Err(OutboxError::Missing(format!("table onward_outbox in {}", path.display())));
            }
            // Writers of the file then do not keep its readers waiting. It is a property of the file.
            connection.execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL").map_err(refused)?;
            connection.execute_batch(super::SQLITE_SCHEMA).map_err(refused)?;
            connection.prepare(SHAPE).map_err(|error| OutboxError::Table(error.to_string()))?;
            Ok::<_, OutboxError>(connection)
        });
        let connection = opened.await.map_err(|error| OutboxError::Unreachable(error.to_string()))??;
        Ok(Self { connection: Arc::new(Mutex::new(connection)) })
    }

    pub(crate) async fn claim(&self, rule: &ClaimRule) -> Result<RowClaim, OutboxError> {
        let rule = *rule;
        self.transaction(move |connection| {
            let (token, now) = (random_uuid(), now_ms());
            let parked =
                connection.execute(PARK, named_params! { ":now": now, ":max_attempts": rule.max_attempts })? as u64;
            let mut claim = connection.prepare_cached(CLAIM)?;
            let rows = claim.query_map(
                named_params! {
                    ":token": token.simple().to_string(), ":now": now, ":until": now + ms(rule.lease),
                    ":rows": rule.rows, ":bytes": i64::try_from(rule.bytes).unwrap_or(i64::MAX), ":hold": rule.hold,
                },
                |columns| read_row(columns, now),
            )?;
            Ok(RowClaim { token, rows: rows.collect::<Result<_, _>>()?, parked })
        })
        .await
    }

    pub(crate) async fn settle(&self, token: Uuid, what: &ClaimSettlement, keep: bool) -> Result<u64, OutboxError> {
        let token = token.simple().to_string();
        let (published, given_back) = (what.published.clone(), what.given_back.clone());
        let refusals: Vec<(i64, String, i64, bool)> =
            what.refused.iter().map(|one| (one.id, one.error.clone(), ms(one.retry_after), one.park)).collect();
        self.transaction(move |connection| {
            let now = now_ms();
            let mut changed = 0;
            let mut keep_it = connection.prepare_cached(KEEP)?;
            let mut delete =
                connection.prepare_cached("DELETE FROM onward_outbox WHERE id = ?1 AND claimed_by = ?2")?;
            for id in published {
                if keep {
                    keep_it.execute(params![id, token, now])?;
                }
                changed += delete.execute(params![id, token])?;
            }
            let mut give_back = connection.prepare_cached(
                "UPDATE onward_outbox SET attempts = attempts - 1, claimed_by = NULL, claimed_until = NULL
                 WHERE id = ?1 AND claimed_by = ?2",
            )?;
            for id in given_back {
                changed += give_back.execute(params![id, token])?;
            }
            let mut refuse = connection.prepare_cached(
                "UPDATE onward_outbox SET claimed_by = NULL, claimed_until = NULL, last_error = ?3, next_at = ?4,
                 parked_at = ?5 WHERE id = ?1 AND claimed_by = ?2",
            )?;
            for (id, error, after, park) in refusals {
                changed += refuse.execute(params![id, token, error, now + after, park.then_some(now)])?;
            }
            Ok(changed as u64)
        })
        .await
    }

    pub(crate) async fn renew(&self, token: Uuid, lease: Duration) -> Result<Vec<i64>, OutboxError> {
        self.transaction(move |connection| {
            let mut renew = connection.prepare_cached(
                "UPDATE onward_outbox SET claimed_until = ?2 WHERE claimed_by IS NOT NULL AND claimed_by = ?1 RETURNING id",
            )?;
            let ids = renew.query_map(params![token.simple().to_string(), now_ms() + ms(lease)], |row| row.get(0))?;
            ids.collect()
        })
        .await
    }

    pub(crate) async fn look(&self, hold: bool) -> Result<UnpublishedRows, OutboxError> {
        self.call(move |connection| {
            let params = named_params! { ":now": now_ms(), ":hold": hold, ":counted": DEPTH_COUNTED as i64 };
            connection.prepare_cached(LOOK)?.query_row(params, |row| {
                Ok(UnpublishedRows {
                    depth: row.get::<_, i64>(0)? as u64,
                    parked: row.get::<_, i64>(1)? as u64,
                    oldest: row.get::<_, Option<i64>>(2)?.map(span),
                    waiting: row.get(3)?,
                    claimed: row.get(4)?,
                })
            })
        })
        .await
    }

    pub(crate) async fn prune(&self, kept_for: Duration) -> Result<u64, OutboxError> {
        self.transaction(move |connection| {
            let gone = connection.execute(
                "DELETE FROM onward_outbox_published WHERE id IN (SELECT id FROM onward_outbox_published
                 WHERE published_at < ?1 ORDER BY published_at LIMIT 10000)",
                params![now_ms() - ms(kept_for)],
            )?;
            Ok(gone as u64)
        })
        .await
    }

    pub(crate) async fn list(&self, filter: &RowFilter, limit: u32) -> Result<Vec<RowInfo>, OutboxError> {
        let (matches, given) = matching(filter);
        self.call(move |connection| {
            let now = now_ms();
            let mut list = connection.prepare(&format!(
                "SELECT id, dedup, topic, key, parked_at IS NOT NULL, claimed_by IS NOT NULL AND claimed_until > {now},
                 attempts, {now} - created_at, octet_length(payload), last_error
                 FROM onward_outbox WHERE {matches} ORDER BY id LIMIT {limit}"
            ))?;
            let rows = list.query_map(rusqlite::params_from_iter(given), read_info)?;
            rows.collect()
        })
        .await
    }

    pub(crate) async fn replay(&self, filter: &RowFilter) -> Result<Vec<i64>, OutboxError> {
        let change = "UPDATE onward_outbox SET parked_at = NULL, attempts = 0, next_at = 0, last_error = NULL";
        self.change(change, filter).await
    }

    pub(crate) async fn drop_parked(&self, filter: &RowFilter) -> Result<Vec<i64>, OutboxError> {
        self.change("DELETE FROM onward_outbox", filter).await
    }

    /// Changes parked rows.
    async fn change(&self, what: &'static str, filter: &RowFilter) -> Result<Vec<i64>, OutboxError> {
        let (matches, given) = matching(filter);
        self.transaction(move |connection| {
            let text = format!("{what} WHERE parked_at IS NOT NULL AND {matches} RETURNING id");
            let mut change = connection.prepare(&text)?;
            let ids = change.query_map(rusqlite::params_from_iter(given), |row| row.get(0))?;
            let mut ids: Vec<i64> = ids.collect::<Result<_, _>>()?;
            ids.sort_unstable();
            Ok(ids)
        })
        .await
    }

    /// Runs a transaction that locks the file first: nobody else writes between its question and its answer.
    async fn transaction<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, OutboxError> {
        self.call(move |connection| {
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let answer = work(&transaction)?;
            transaction.commit()?;
            Ok(answer)
        })
        .await
    }

    async fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, OutboxError> {
        let connection = self.connection.clone();
        let done = tokio::task::spawn_blocking(move || {
            // A call that panicked has rolled its transaction back.
            work(&mut connection.lock().unwrap_or_else(PoisonError::into_inner)).map_err(refused)
        });
        done.await.map_err(|error| OutboxError::Refused(error.to_string()))?
    }
}

/// The condition, and what is given to it.
fn matching(filter: &RowFilter) -> (String, Vec<Value>) {
    let mut text = format!("id > {}", filter.after);
    let mut given = Vec::new();
    if !filter.ids.is_empty() {
        let ids: Vec<String> = filter.ids.iter().map(i64::to_string).collect();
        text += &format!(" AND id IN ({})", ids.join(", "));
    }
    for (column, wanted) in [("topic", &filter.topic), ("key", &filter.key)] {
        if let Some(wanted) = wanted {
            given.push(Value::Text(wanted.clone()));
            text += &format!(" AND {column} = ?{}", given.len());
        }
    }
    if filter.parked_only {
        text += " AND parked_at IS NOT NULL";
    }
    (text, given)
}

fn read_row(columns: &Columns<'_>, now: i64) -> rusqlite::Result<Row> {
    Ok(Row {
        id: columns.get(0)?,
        dedup: read_dedup(&columns.get::<_, String>(1)?),
        topic: columns.get(2)?,
        key: columns.get(3)?,
        payload: columns.get_ref(4)?.as_bytes()?.to_vec(),
        headers: read_headers(&columns.get::<_, String>(5)?),
        attempts: columns.get(6)?,
        age: span(now - columns.get::<_, i64>(7)?),
    })
}

fn read_info(columns: &Columns<'_>) -> rusqlite::Result<RowInfo> {
    let attempts = columns.get(6)?;
    Ok(RowInfo {
        id: columns.get(0)?,
        dedup: read_dedup(&columns.get::<_, String>(1)?),
        topic: columns.get(2)?,
        key: columns.get(3)?,
        state: RowState::read(columns.get(4)?, columns.get(5)?, attempts),
        attempts,
        age: span(columns.get(7)?),
        payload_bytes: columns.get::<_, i64>(8)? as u64,
        last_error: columns.get(9)?,
    })
}

/// A UUID, written with dashes or without.
fn read_dedup(text: &str) -> Uuid {
    Uuid::parse_str(&text.replace('-', "")).expect("the table has a CHECK for it")
}

fn now_ms() -> i64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, ms)
}

fn ms(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}

fn span(ms: i64) -> Duration {
    Duration::from_millis(u64::try_from(ms).unwrap_or(0))
}

fn refused(error: rusqlite::Error) -> OutboxError {
    OutboxError::Refused(error.to_string())
}
