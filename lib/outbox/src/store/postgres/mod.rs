//! The outbox on PostgreSQL.
//!
//! Behind a pooler that gives out a server connection per transaction (PgBouncer's transaction mode) nothing may live
//! longer than a transaction: settings are `SET LOCAL`, the lock that orders claims ends with its transaction, and
//! statements are sent without a name. A transaction is one flight of messages, so that it never waits for us.
//!
//! Claims are made one at a time: each holds an advisory lock of the table while it looks and takes. What it sees is
//! therefore all claims there are, and a key has one claim however many pollers share the work. Inserts, and the settling
//! of what is claimed, wait for nobody.

mod tls;

use core::time::Duration;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::timeout;
use tokio_postgres::config::SslMode;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{AsyncMessage, Client, Config, NoTls};
use uuid::Uuid;

use super::{Backlog, Claim, ClaimRule, DEPTH_COUNTED, RowFilter, RowInfo, RowState, Settlement};
use crate::Row;
use crate::error::OutboxError;
use crate::row::{random_uuid, read_headers};

const CLAIM: &str = include_str!("claim.sql");
const PARK: &str = include_str!("park.sql");
const SETTLE: &str = include_str!("settle.sql");
const LOOK: &str = include_str!("look.sql");

/// The advisory lock of this table's claims: the letters `onwd`, and the table.
const CLAIM_LOCK: &str = "(1869511524::bigint << 32) + 'onward_outbox'::regclass::oid::bigint";

/// How the statements are meant to be carried out, whatever the statistics of so restless a table say.
const PLANNING: &str = "SET LOCAL enable_seqscan = off; SET LOCAL enable_nestloop = off; SET LOCAL jit = off";

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

/// How long the database may take to answer. Longer than claims wait for each other.
const ANSWERED_WITHIN: Duration = Duration::from_secs(15);
const CLAIM_WAITS_MS: u32 = 10_000;

type Param<'a> = (&'a (dyn ToSql + Sync), Type);

#[derive(Debug)]
pub(crate) struct Postgres {
    config: Config,
    /// The connection in use, until it breaks.
    client: Mutex<Option<Arc<Client>>>,
}

impl Postgres {
    /// Connects, and makes the table if there is none.
    pub(crate) async fn open(url: &str) -> Result<Self, OutboxError> {
        let store = Self { config: parse(url)?, client: Mutex::default() };
        let client = store.client().await?;
        let found = store.answered(client.query_typed("SELECT to_regclass('onward_outbox') IS NOT NULL", &[])).await?;
        if !found[0].get::<_, bool>(0) {
            // Two that start together make it once.
            let make = format!("BEGIN; SELECT pg_advisory_xact_lock(1869511524); {}; COMMIT", super::POSTGRES_SCHEMA);
            store.answered(client.batch_execute(&make)).await?;
        }
        match store.answered(client.batch_execute(SHAPE)).await {
            Err(OutboxError::Refused(why)) => Err(OutboxError::Table(why)),
            other => other.map(|()| store),
        }
    }

    pub(crate) async fn claim(&self, rule: &ClaimRule) -> Result<Claim, OutboxError> {
        let client = self.client().await?;
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
            .answered(async {
                let (begun, parked, rows, committed) = flight.await;
                begun?;
                let both = (parked?, rows?);
                committed.map(|()| both)
            })
            .await?;
        Ok(Claim { token, rows: rows.iter().map(read_row).collect(), parked: parked.len() as u64 })
    }

    pub(crate) async fn settle(&self, token: Uuid, what: &Settlement, keep: bool) -> Result<u64, OutboxError> {
        let client = self.client().await?;
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
        let rows = self.answered(client.query_typed(SETTLE, &params)).await?;
        Ok(rows[0].get::<_, i64>(0) as u64)
    }

    pub(crate) async fn renew(&self, token: Uuid, lease: Duration) -> Result<Vec<i64>, OutboxError> {
        let client = self.client().await?;
        let params: [Param<'_>; 2] = [(&token, Type::UUID), (&ms(lease), Type::INT8)];
        ids(&self.answered(client.query_typed(RENEW, &params)).await?)
    }

    pub(crate) async fn look(&self, hold: bool) -> Result<Backlog, OutboxError> {
        let client = self.client().await?;
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
        let rows = self.answered(flight).await?;
        let count = |at| rows[0].get::<_, i64>(at) as u64;
        Ok(Backlog {
            depth: count(0),
            parked: count(1),
            oldest: rows[0].get::<_, Option<i64>>(2).map(span),
            waiting: rows[0].get(3),
        })
    }

    pub(crate) async fn prune(&self, kept_for: Duration) -> Result<u64, OutboxError> {
        let client = self.client().await?;
        self.answered(client.execute_typed(PRUNE, &[(&ms(kept_for), Type::INT8)])).await
    }

    pub(crate) async fn list(&self, filter: &RowFilter, limit: u32) -> Result<Vec<RowInfo>, OutboxError> {
        let client = self.client().await?;
        let text = format!(
            "SELECT id, dedup, topic, key, parked_at IS NOT NULL,
               claimed_by IS NOT NULL AND claimed_until > statement_timestamp(), attempts,
               (extract(epoch FROM statement_timestamp() - created_at) * 1000)::bigint,
               octet_length(payload)::bigint, last_error
             FROM onward_outbox WHERE {MATCHES} ORDER BY id LIMIT {limit}"
        );
        let rows = self.answered(client.query_typed(&text, &filter_params(filter))).await?;
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
        let client = self.client().await?;
        let mut ids = ids(&self.answered(client.query_typed(text, &filter_params(filter))).await?)?;
        ids.sort_unstable();
        Ok(ids)
    }

    /// The connection in use, or a new one.
    async fn client(&self) -> Result<Arc<Client>, OutboxError> {
        if let Some(client) = self.in_use().as_ref().filter(|client| !client.is_closed()) {
            return Ok(client.clone());
        }
        let client = Arc::new(connect(&self.config, |_| {}).await?);
        *self.in_use() = Some(client.clone());
        Ok(client)
    }

    fn in_use(&self) -> MutexGuard<'_, Option<Arc<Client>>> {
        self.client.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection that does not answer is given up: what it was asked may still happen, and its answer must not be
    /// taken for that to a later question.
    async fn answered<T>(
        &self,
        question: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, OutboxError> {
        match timeout(ANSWERED_WITHIN, question).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) if error.as_db_error().is_some() => Err(OutboxError::Refused(told(&error))),
            Ok(Err(error)) => {
                *self.in_use() = None;
                Err(OutboxError::Unreachable(told(&error)))
            }
            Err(_) => {
                *self.in_use() = None;
                Err(OutboxError::Unanswered(ANSWERED_WITHIN))
            }
        }
    }
}

/// A connection that listens. It must be one of its own to the database itself: a pooler does not pass notifications on.
#[derive(Debug)]
pub(crate) struct Listener {
    client: Client,
}

impl Listener {
    /// Calls `wake` whenever somebody has committed rows, for as long as this lives.
    pub(crate) async fn open(url: &str, wake: impl Fn() + Send + 'static) -> Result<Self, OutboxError> {
        let client = connect(&parse(url)?, move |message| {
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
        match timeout(ANSWERED_WITHIN, self.client.batch_execute(question)).await {
            Ok(answer) => answer.map_err(|error| OutboxError::Unreachable(told(&error))),
            Err(_) => Err(OutboxError::Unanswered(ANSWERED_WITHIN)),
        }
    }
}

fn parse(url: &str) -> Result<Config, OutboxError> {
    let mut config: Config = url.parse().map_err(|error: tokio_postgres::Error| OutboxError::Url(told(&error)))?;
    config.connect_timeout(ANSWERED_WITHIN);
    if config.get_application_name().is_none() {
        config.application_name("onward-outbox");
    }
    Ok(config)
}

/// TLS where the URL asks for it by `sslmode=require`, and then with a certificate that is checked.
async fn connect(config: &Config, seen: impl Fn(AsyncMessage) + Send + 'static) -> Result<Client, OutboxError> {
    let unreachable = |error: tokio_postgres::Error| OutboxError::Unreachable(told(&error));
    let opening = async {
        match config.get_ssl_mode() {
            SslMode::Require => {
                let (client, connection) = config.connect(tls::Rustls::new()).await.map_err(unreachable)?;
                drive(connection, seen);
                Ok(client)
            }
            _ => {
                let (client, connection) = config.connect(NoTls).await.map_err(unreachable)?;
                drive(connection, seen);
                Ok(client)
            }
        }
    };
    timeout(ANSWERED_WITHIN, opening).await.unwrap_or(Err(OutboxError::Unanswered(ANSWERED_WITHIN)))
}

/// Carries the connection's messages until its client is dropped.
fn drive<S>(
    mut connection: tokio_postgres::Connection<tokio_postgres::Socket, S>,
    seen: impl Fn(AsyncMessage) + Send + 'static,
) where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    tokio::spawn(async move {
        loop {
            match core::future::poll_fn(|context| connection.poll_message(context)).await {
                Some(Ok(message)) => seen(message),
                // Whoever asks next is told.
                Some(Err(error)) => return tracing::debug!(error = %told(&error), "outbox_connection_lost"),
                None => return,
            }
        }
    });
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

/// An error with its causes, which the driver does not name by itself.
fn told(error: &impl std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text += &format!(": {error}");
        cause = error.source();
    }
    text
}
