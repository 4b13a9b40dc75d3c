//! The outbox on PostgreSQL.
//!
//! Behind a pooler that gives out a server connection per transaction (PgBouncer's transaction mode) nothing may live
//! longer than a transaction: settings are `SET LOCAL`, the lock that orders claims ends with its transaction, and
//! statements are sent without a name. A transaction is one flight of messages, so that it never waits for us.
//!
//! Claims are made one at a time: each holds an advisory lock of the table while it looks and takes. What it sees is
//! therefore all claims there are, and a key has one claim however many pollers share the work. Inserts, and the settling
//! of what is claimed, wait for nobody.
//!
//! What was published is deleted, and stays at the front of the primary key until it is vacuumed: `vacuum.rs`. No claim
//! starts behind a row that an earlier one saw, as a shortcut past all that. A transaction may commit later under a lower
//! id, and a row of its key that comes after it would overtake it.

mod vacuum;

use core::time::Duration;

use onward_database::{ANSWERED_WITHIN, Param, SharedConnection, answered_within};
use tokio_postgres::types::Type;
use tokio_postgres::{AsyncMessage, Client};
use uuid::Uuid;

use super::{
    ClaimRule, ClaimSettlement, DEPTH_COUNTED, Missing, RowClaim, RowFilter, RowInfo, RowState, UnpublishedRows,
};
use crate::Row;
use crate::error::OutboxError;
use crate::row::{random_uuid, read_headers};

pub(super) const CLAIM: &str = include_str!("claim.sql");
const PARK: &str = include_str!("park.sql");
const SETTLE: &str = include_str!("settle.sql");
pub(super) const LOOK: &str = include_str!("look.sql");

/// The advisory lock of this table's claims: the letters `onwd`, and the table.
const CLAIM_LOCK: &str = "(1869511524::bigint << 32) + 'onward_outbox'::regclass::oid::bigint";

/// Settings that fix the way of the statements, whatever the statistics of so restless a table say. A bitmap scan
/// visits the rows of every dead entry of an index, each time; a plain one marks the entries that it finds dead, and the
/// next one passes them by.
pub(super) const PLANNING: &str = "SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; \
    SET LOCAL enable_nestloop = off; SET LOCAL jit = off";

const RENEW: &str = "UPDATE onward_outbox
    SET claimed_until = statement_timestamp() + $2::bigint * interval '1 millisecond'
    WHERE claimed_by IS NOT NULL AND claimed_by = $1::uuid RETURNING id";

const PRUNE: &str = "DELETE FROM onward_outbox_published WHERE id = ANY (ARRAY(
    SELECT id FROM onward_outbox_published WHERE published_at < statement_timestamp() - $1::bigint * interval '1 millisecond'
    ORDER BY published_at LIMIT 10000))";

/// `$1` ids (none: all), `$2` topic, `$3` key, `$4` parked only, `$5` after this id.
const MATCHES: &str = "(cardinality($1::bigint[]) = 0 OR id = ANY ($1)) AND ($2::text IS NULL OR topic = $2)
    AND ($3::text IS NULL OR key = $3) AND (NOT $4::bool OR parked_at IS NOT NULL) AND id > $5::bigint";

/// The columns that are used, so that a table of another shape is found when the outbox starts.
const SHAPE: &str = "SELECT id, dedup, topic, key, payload, headers, created_at, next_at, attempts, claimed_by,
    claimed_until, parked_at, last_error FROM onward_outbox LIMIT 0";

/// The time that claims wait for each other: shorter than the database may take to answer.
const CLAIM_WAITS_MS: u32 = 10_000;

/// The name that the database's own lists show.
const PROGRAM: &str = "onward-outbox";

#[derive(Debug)]
pub(crate) struct PostgresRows {
    database: SharedConnection,
}

impl PostgresRows {
    /// Connects, and makes the table if there is none and it may.
    pub(crate) async fn open(url: &str, missing: Missing) -> Result<Self, OutboxError> {
        let store = Self { database: SharedConnection::at(url, PROGRAM)? };
        let client = store.database.client().await?;
        let found =
            store.database.answered(client.query_typed("SELECT to_regclass('onward_outbox') IS NOT NULL", &[])).await?;
        if !found[0].get::<_, bool>(0) {
            if missing == Missing::Refuse {
                return Err(OutboxError::Missing("table onward_outbox in this database".into()));
            }
            // Two that start together make it once.
            let make = format!("BEGIN; SELECT pg_advisory_xact_lock(1869511524); {}; COMMIT", super::POSTGRES_SCHEMA);
            store.database.answered(client.batch_execute(&make)).await?;
        }
        match store.database.answered(client.batch_execute(SHAPE)).await.map_err(OutboxError::from) {
            Err(OutboxError::Refused(why)) => Err(OutboxError::Table(why)),
            other => other.map(|()| store),
        }
    }

    pub(crate) async fn claim(&self, rule: &ClaimRule) -> Result<RowClaim, OutboxError> {
        let client = self.database.client().await?;
        let begin = format!(
            "BEGIN; SET LOCAL lock_timeout = {CLAIM_WAITS_MS}; {PLANNING}; SELECT pg_advisory_xact_lock({CLAIM_LOCK})"
        );
        let token = random_uuid();
        let (lease, rows, bytes) = (ms(rule.lease), rule.rows as i32, i64::try_from(rule.bytes).unwrap_or(i64::MAX));
        let max_attempts = rule.max_attempts as i32;
        let park: [Param<'_>; 1] = [(&max_attempts, Type::INT4)];
        let claim: [Param<'_>; 5] = [
            (&token, Type::UUID),
            (&lease, Type::INT8),
            (&rows, Type::INT4),
            (&bytes, Type::INT8),
            (&rule.hold, Type::BOOL),
        ];
        let flight = async {
            tokio::join!(
                client.batch_execute(&begin),
                client.query_typed(PARK, &park),
                client.query_typed(CLAIM, &claim),
                client.batch_execute("COMMIT"),
            )
        };
        let (parked, rows) = self
            .database
            .answered(async {
                let (begun, parked, rows, committed) = flight.await;
                begun?;
                let both = (parked?, rows?);
                committed.map(|()| both)
            })
            .await?;
        Ok(RowClaim { token, rows: rows.iter().map(read_row).collect(), parked: parked.len() as u64 })
    }

    pub(crate) async fn settle(&self, token: Uuid, what: &ClaimSettlement, keep: bool) -> Result<u64, OutboxError> {
        let client = self.database.client().await?;
        let ids: Vec<i64> = what.refused.iter().map(|one| one.id).collect();
        let waits: Vec<i64> = what.refused.iter().map(|one| ms(one.retry_after)).collect();
        let errors: Vec<String> = what.refused.iter().map(|one| storable(&one.error)).collect();
        let parked: Vec<bool> = what.refused.iter().map(|one| one.park).collect();
        let params: [Param<'_>; 8] = [
            (&token, Type::UUID),
            (&what.published, Type::INT8_ARRAY),
            (&keep, Type::BOOL),
            (&what.given_back, Type::INT8_ARRAY),
            (&ids, Type::INT8_ARRAY),
            (&waits, Type::INT8_ARRAY),
            (&errors, Type::TEXT_ARRAY),
            (&parked, Type::BOOL_ARRAY),
        ];
        let rows = self.database.answered(client.query_typed(SETTLE, &params)).await?;
        Ok(rows[0].get::<_, i64>(0) as u64)
    }

    pub(crate) async fn renew(&self, token: Uuid, lease: Duration) -> Result<Vec<i64>, OutboxError> {
        let client = self.database.client().await?;
        let params: [Param<'_>; 2] = [(&token, Type::UUID), (&ms(lease), Type::INT8)];
        ids(&self.database.answered(client.query_typed(RENEW, &params)).await?)
    }

    pub(crate) async fn look(&self, hold: bool) -> Result<UnpublishedRows, OutboxError> {
        let client = self.database.client().await?;
        let begin = format!("BEGIN READ ONLY; {PLANNING}");
        let params: [Param<'_>; 2] = [(&hold, Type::BOOL), (&(DEPTH_COUNTED as i64), Type::INT8)];
        let flight = async {
            let (begun, rows, ended) = tokio::join!(
                client.batch_execute(&begin),
                client.query_typed(LOOK, &params),
                client.batch_execute("COMMIT"),
            );
            begun?;
            let rows = rows?;
            ended.map(|()| rows)
        };
        let rows = self.database.answered(flight).await?;
        let count = |at| rows[0].get::<_, i64>(at) as u64;
        Ok(UnpublishedRows {
            depth: count(0),
            parked: count(1),
            oldest: rows[0].get::<_, Option<i64>>(2).map(span),
            waiting: rows[0].get(3),
            claimed: rows[0].get(4),
        })
    }

    pub(crate) async fn prune(&self, kept_for: Duration) -> Result<u64, OutboxError> {
        let client = self.database.client().await?;
        Ok(self.database.answered(client.execute_typed(PRUNE, &[(&ms(kept_for), Type::INT8)])).await?)
    }

    pub(crate) async fn list(&self, filter: &RowFilter, limit: u32) -> Result<Vec<RowInfo>, OutboxError> {
        let client = self.database.client().await?;
        let text = format!(
            "SELECT id, dedup, topic, key, parked_at IS NOT NULL,
               claimed_by IS NOT NULL AND claimed_until > statement_timestamp(), attempts,
               (extract(epoch FROM statement_timestamp() - created_at) * 1000)::bigint,
               octet_length(payload)::bigint, last_error
             FROM onward_outbox WHERE {MATCHES} ORDER BY id LIMIT {limit}"
        );
        let rows = self.database.answered(client.query_typed(&text, &filter_params(filter))).await?;
        Ok(rows.iter().map(read_info).collect())
    }

    pub(crate) async fn replay(&self, filter: &RowFilter) -> Result<Vec<i64>, OutboxError> {
        let text = format!(
            "UPDATE onward_outbox SET parked_at = NULL, attempts = 0, next_at = statement_timestamp(), last_error = NULL
             WHERE parked_at IS NOT NULL AND {MATCHES} RETURNING id"
        );
        self.change(&text, filter).await
    }

    pub(crate) async fn drop_parked(&self, filter: &RowFilter) -> Result<Vec<i64>, OutboxError> {
        self.change(
            &format!("DELETE FROM onward_outbox WHERE parked_at IS NOT NULL AND {MATCHES} RETURNING id"),
            filter,
        )
        .await
    }

    async fn change(&self, text: &str, filter: &RowFilter) -> Result<Vec<i64>, OutboxError> {
        let client = self.database.client().await?;
        let mut ids = ids(&self.database.answered(client.query_typed(text, &filter_params(filter))).await?)?;
        ids.sort_unstable();
        Ok(ids)
    }
}

/// A connection that listens. It must be one of its own to the database itself: a pooler does not pass notifications on.
#[derive(Debug)]
pub(crate) struct NotifyListener {
    client: Client,
}

impl NotifyListener {
    /// Calls `wake` whenever somebody has committed rows, for as long as this lives.
    pub(crate) async fn open(url: &str, wake: impl Fn() + Send + 'static) -> Result<Self, OutboxError> {
        let database = SharedConnection::at(url, PROGRAM)?;
        let client = database
            .connect(move |message| {
                if matches!(message, AsyncMessage::Notification(_)) {
                    wake();
                }
            })
            .await?;
        let listener = Self { client };
        listener.ask("LISTEN onward_outbox").await.map(|()| listener)
    }

    /// Whether the connection is still there.
    pub(crate) async fn check(&self) -> Result<(), OutboxError> {
        self.ask("SELECT 1").await
    }

    async fn ask(&self, question: &str) -> Result<(), OutboxError> {
        Ok(answered_within(ANSWERED_WITHIN, self.client.batch_execute(question)).await?)
    }
}

fn read_row(row: &tokio_postgres::Row) -> Row {
    Row {
        id: row.get(0),
        dedup: row.get(1),
        topic: row.get(2),
        key: row.get(3),
        payload: row.get(4),
        headers: read_headers(row.get(5)),
        attempts: row.get::<_, i32>(6).unsigned_abs(),
        age: span(row.get(7)),
    }
}

fn read_info(row: &tokio_postgres::Row) -> RowInfo {
    let attempts = row.get::<_, i32>(6).unsigned_abs();
    RowInfo {
        id: row.get(0),
        dedup: row.get(1),
        topic: row.get(2),
        key: row.get(3),
        state: RowState::read(row.get(4), row.get(5), attempts),
        attempts,
        age: span(row.get(7)),
        payload_bytes: row.get::<_, i64>(8) as u64,
        last_error: row.get(9),
    }
}

fn filter_params(filter: &RowFilter) -> [Param<'_>; 5] {
    [
        (&filter.ids, Type::INT8_ARRAY),
        (&filter.topic, Type::TEXT),
        (&filter.key, Type::TEXT),
        (&filter.parked_only, Type::BOOL),
        (&filter.after, Type::INT8),
    ]
}

fn ids(rows: &[tokio_postgres::Row]) -> Result<Vec<i64>, OutboxError> {
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// PostgreSQL stores no NUL in a text.
fn storable(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

fn ms(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}

fn span(ms: i64) -> Duration {
    Duration::from_millis(u64::try_from(ms).unwrap_or(0))
}
