//! Records in PostgreSQL, for any number of processes.
//!
//! Each question is one statement, so that it is whole or did not happen, also behind a pooler. Two processes that find
//! the same instants due update the same row of `onward_schedules`: the second waits for the first, finds that the
//! horizon has moved, and adds nothing. That an instant has one record is a primary key besides.

use onward_core::schedule::RECORDS_KEPT;
use onward_core::time::Wall;
use onward_database::{DatabaseError, Param, SharedConnection};
use tokio_postgres::types::Type;

use super::store::{
    ENDED_TOLD, EndedRun, EntryColumns, JobRecords, OpenRun, RunEnd, SCHEMA, ScheduleEntry, ScheduleStore, StoreError,
    ms, wall,
};

/// The letters `onws`: a lock so that of processes that start together, one makes the tables.
const SCHEMA_LOCK: u32 = 1_869_511_539;

const SHAPE: &str =
    "SELECT s.job, s.horizon_ms, r.due_ms, r.last_due_ms, r.count, r.record, r.reason, r.claimed_until_ms,
    r.outcome FROM onward_schedules s, onward_schedule_records r LIMIT 0";

/// `$2`: how many that have ended.
const OPEN: &str = "SELECT s.horizon_ms, r.due_ms, r.claimed_until_ms, r.outcome
    FROM onward_schedules s LEFT JOIN LATERAL (
      (SELECT due_ms, claimed_until_ms, outcome FROM onward_schedule_records
        WHERE job = s.job AND claimed_until_ms IS NOT NULL)
      UNION ALL
      (SELECT due_ms, claimed_until_ms, outcome FROM onward_schedule_records
        WHERE job = s.job AND claimed_until_ms IS NULL AND outcome IS NOT NULL ORDER BY due_ms DESC LIMIT $2)
    ) r ON true WHERE s.job = $1 ORDER BY r.due_ms";

const BEGIN: &str = "INSERT INTO onward_schedules (job, horizon_ms) VALUES ($1, $2) ON CONFLICT (job) DO NOTHING";

/// `$1` job, `$2` the horizon as it is known, `$3` as it will be, `$4` to `$9` the entries, `$10` how many are kept.
const ADD: &str = "WITH moved AS (
      UPDATE onward_schedules SET horizon_ms = greatest(horizon_ms, $3) WHERE job = $1 AND horizon_ms = $2 RETURNING job),
    added AS (
      INSERT INTO onward_schedule_records (job, due_ms, last_due_ms, count, record, reason, claimed_until_ms)
      SELECT moved.job, e.* FROM moved,
        unnest($4::bigint[], $5::bigint[], $6::bigint[], $7::text[], $8::text[], $9::bigint[]) AS e),
    forgotten AS (
      DELETE FROM onward_schedule_records WHERE job IN (SELECT job FROM moved) AND claimed_until_ms IS NULL
      AND due_ms <= (SELECT due_ms FROM onward_schedule_records WHERE job = $1 ORDER BY due_ms DESC OFFSET $10 LIMIT 1))
    SELECT EXISTS (SELECT FROM moved)";

const RECLAIM: &str =
    "UPDATE onward_schedule_records SET claimed_until_ms = $4 WHERE job = $1 AND due_ms = $2 AND claimed_until_ms = $3";

const END: &str =
    "UPDATE onward_schedule_records SET claimed_until_ms = NULL, outcome = $3 WHERE job = $1 AND due_ms = $2";

/// Records in PostgreSQL, which any number of processes share: one of them fires.
#[derive(Debug)]
pub struct PostgresStore {
    database: SharedConnection,
}

impl PostgresStore {
    /// Opens a store by a URL such as `postgres://app@db/shop`, on PostgreSQL 13 or newer, also behind a pooler such as
    /// PgBouncer. Connects, and makes the tables `onward_schedules` and `onward_schedule_records` if there are none.
    ///
    /// TLS is used where the URL says `sslmode=require`, and the server must then have a certificate that browsers trust.
    pub async fn open(url: &str) -> Result<Self, StoreError> {
        let store = Self { database: SharedConnection::at(url, "onward-schedules")? };
        let client = store.database.client().await?;
        let found = client.query_typed("SELECT to_regclass('onward_schedule_records') IS NOT NULL", &[]);
        if !store.database.answered(found).await?[0].get::<_, bool>(0) {
            let make = format!("BEGIN; SELECT pg_advisory_xact_lock({SCHEMA_LOCK}); {SCHEMA} COMMIT");
            store.database.answered(client.batch_execute(&make)).await?;
        }
        store.database.answered(client.batch_execute(SHAPE)).await?;
        Ok(store)
    }

    async fn ask(&self, text: &str, params: &[Param<'_>]) -> Result<Vec<tokio_postgres::Row>, StoreError> {
        let client = self.database.client().await?;
        Ok(self.database.answered(client.query_typed(text, params)).await?)
    }

    async fn change(&self, text: &str, params: &[Param<'_>]) -> Result<u64, StoreError> {
        let client = self.database.client().await?;
        Ok(self.database.answered(client.execute_typed(text, params)).await?)
    }
}

impl ScheduleStore for PostgresStore {
    async fn open(&self, job: &str, now: Wall) -> Result<JobRecords, StoreError> {
        let asked: [Param<'_>; 2] = [(&job, Type::TEXT), (&(ENDED_TOLD as i64), Type::INT8)];
        let mut rows = self.ask(OPEN, &asked).await?;
        if rows.is_empty() {
            self.change(BEGIN, &[(&job, Type::TEXT), (&ms(now), Type::INT8)]).await?;
            rows = self.ask(OPEN, &asked).await?;
        }
        let first = rows.first().ok_or_else(|| StoreError(format!("job `{job}` was removed just now")))?;
        let (mut open, mut ended) = (Vec::new(), Vec::new());
        for row in &rows {
            let Some(due) = row.get::<_, Option<i64>>(1).map(wall) else { continue };
            match (row.get::<_, Option<i64>>(2), row.get::<_, Option<&str>>(3)) {
                (Some(until), _) => open.push(OpenRun { due, claimed_until: wall(until) }),
                (None, outcome) => ended.push(EndedRun { due, end: RunEnd::of_word(outcome.unwrap_or_default()) }),
            }
        }
        Ok(JobRecords { horizon: wall(first.get(0)), open, ended })
    }

    async fn add(&self, job: &str, after: Wall, entries: Vec<ScheduleEntry>) -> Result<bool, StoreError> {
        let columns: Vec<EntryColumns> = entries.iter().map(ScheduleEntry::columns).collect();
        let horizon = columns.iter().map(|one| one.last_due_ms).max().unwrap_or(ms(after));
        let of = |read: fn(&EntryColumns) -> i64| columns.iter().map(read).collect::<Vec<i64>>();
        let texts = |read: fn(&EntryColumns) -> &'static str| columns.iter().map(read).collect::<Vec<&str>>();
        let (due, last, count) = (of(|one| one.due_ms), of(|one| one.last_due_ms), of(|one| one.count));
        let (record, reason) = (texts(|one| one.record), texts(|one| one.reason));
        let claimed: Vec<Option<i64>> = columns.iter().map(|one| one.claimed_until_ms).collect();
        let params: [Param<'_>; 10] = [
            (&job, Type::TEXT),
            (&ms(after), Type::INT8),
            (&horizon, Type::INT8),
            (&due, Type::INT8_ARRAY),
            (&last, Type::INT8_ARRAY),
            (&count, Type::INT8_ARRAY),
            (&record, Type::TEXT_ARRAY),
            (&reason, Type::TEXT_ARRAY),
            (&claimed, Type::INT8_ARRAY),
            (&(RECORDS_KEPT as i64), Type::INT8),
        ];
        Ok(self.ask(ADD, &params).await?[0].get(0))
    }

    async fn reclaim(&self, job: &str, run: OpenRun, until: Wall) -> Result<bool, StoreError> {
        let params: [Param<'_>; 4] = [
            (&job, Type::TEXT),
            (&ms(run.due), Type::INT8),
            (&ms(run.claimed_until), Type::INT8),
            (&ms(until), Type::INT8),
        ];
        Ok(self.change(RECLAIM, &params).await? == 1)
    }

    async fn end(&self, job: &str, due: Wall, end: RunEnd) -> Result<(), StoreError> {
        let params: [Param<'_>; 3] = [(&job, Type::TEXT), (&ms(due), Type::INT8), (&end.word(), Type::TEXT)];
        self.change(END, &params).await.map(drop)
    }
}

impl From<DatabaseError> for StoreError {
    fn from(error: DatabaseError) -> Self {
        Self(error.to_string())
    }
}
