//! Records in a file of SQLite, for any number of processes of one computer.
//!
//! SQLite has one writer at a time, and a change is an immediate transaction: nobody moves the horizon between the
//! question and the answer. Calls run on tokio's threads for blocking work, and wait there for other writers.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use onward_core::schedule::RECORDS_KEPT;
use onward_core::time::Wall;
use rusqlite::{Connection, OptionalExtension, TransactionBehavior, params};

use super::store::{
    ENDED_TOLD, EndedRun, EntryColumns, JobRecords, OpenRun, RunEnd, SCHEMA, ScheduleEntry, ScheduleStore, StoreError,
    ms, wall,
};
use crate::clock::lock;

/// The time that a call waits for other writers of the file.
const WAITS: Duration = Duration::from_secs(15);

/// Records in a file of SQLite, which any number of processes of one computer share: one of them fires.
#[derive(Clone, Debug)]
pub struct SqliteStore {
    connection: Arc<Mutex<Connection>>,
}

impl SqliteStore {
    /// Makes the file, and the tables `onward_schedules` and `onward_schedule_records`, if there are none. It may be a file
    /// that the program keeps other things in.
    pub async fn open(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        let path = path.as_ref().to_owned();
        let opened = tokio::task::spawn_blocking(move || {
            let opening = || {
                let connection = Connection::open(&path)?;
                connection.busy_timeout(WAITS)?;
                connection.execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL")?;
                connection.execute_batch(SCHEMA)?;
                Ok::<_, rusqlite::Error>(connection)
            };
            let failed = |error: rusqlite::Error| StoreError(format!("cannot open {}: {error}", path.display()));
            opening().map_err(failed)
        });
        let connection = opened.await.map_err(|error| StoreError(error.to_string()))??;
        Ok(Self { connection: Arc::new(Mutex::new(connection)) })
    }

    /// Runs a transaction that locks the file first: nobody else writes between its question and its answer.
    async fn transaction<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let connection = Arc::clone(&self.connection);
        let done = tokio::task::spawn_blocking(move || {
            // A call that panicked has rolled its transaction back.
            let mut connection = lock(&connection);
            let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let answer = work(&transaction)?;
            transaction.commit()?;
            Ok::<_, rusqlite::Error>(answer)
        });
        let done = done.await.map_err(|error| StoreError(error.to_string()))?;
        done.map_err(|error| StoreError(format!("{error}; nothing was changed")))
    }
}

impl ScheduleStore for SqliteStore {
    async fn open(&self, job: &str, now: Wall) -> Result<JobRecords, StoreError> {
        let job = job.to_owned();
        self.transaction(move |connection| {
            let horizon = "SELECT horizon_ms FROM onward_schedules WHERE job = ?1";
            let known: Option<i64> = connection.query_row(horizon, [&job], |row| row.get(0)).optional()?;
            if known.is_none() {
                let begin = "INSERT INTO onward_schedules (job, horizon_ms) VALUES (?1, ?2)";
                connection.execute(begin, params![job, ms(now)])?;
            }
            let mut open = connection.prepare_cached(
                "SELECT due_ms, claimed_until_ms FROM onward_schedule_records
                 WHERE job = ?1 AND claimed_until_ms IS NOT NULL ORDER BY due_ms",
            )?;
            let open =
                open.query_map([&job], |row| Ok(OpenRun { due: wall(row.get(0)?), claimed_until: wall(row.get(1)?) }))?;
            let open = open.collect::<Result<_, _>>()?;
            let mut ended = connection.prepare_cached(
                "SELECT due_ms, outcome FROM onward_schedule_records
                 WHERE job = ?1 AND outcome IS NOT NULL ORDER BY due_ms DESC LIMIT ?2",
            )?;
            let ended = ended.query_map(params![job, ENDED_TOLD as i64], |row| {
                Ok(EndedRun { due: wall(row.get(0)?), end: RunEnd::of_word(&row.get::<_, String>(1)?) })
            })?;
            let mut ended = ended.collect::<Result<Vec<_>, _>>()?;
            ended.reverse();
            Ok(JobRecords { horizon: known.map_or(now, wall), open, ended })
        })
        .await
    }

    async fn add(&self, job: &str, after: Wall, entries: Vec<ScheduleEntry>) -> Result<bool, StoreError> {
        let job = job.to_owned();
        let columns: Vec<EntryColumns> = entries.iter().map(ScheduleEntry::columns).collect();
        self.transaction(move |connection| {
            let horizon = columns.iter().map(|one| one.last_due_ms).max().unwrap_or(ms(after));
            let moved =
                "UPDATE onward_schedules SET horizon_ms = max(horizon_ms, ?3) WHERE job = ?1 AND horizon_ms = ?2";
            if connection.execute(moved, params![job, ms(after), horizon])? == 0 {
                return Ok(false);
            }
            let mut add = connection.prepare_cached(
                "INSERT INTO onward_schedule_records (job, due_ms, last_due_ms, count, record, reason, claimed_until_ms)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
            )?;
            for one in &columns {
                let EntryColumns { due_ms, last_due_ms, count, record, reason, claimed_until_ms } = one;
                add.execute(params![job, due_ms, last_due_ms, count, record, reason, claimed_until_ms])?;
            }
            connection.execute(
                "DELETE FROM onward_schedule_records WHERE job = ?1 AND claimed_until_ms IS NULL AND due_ms <= (
                 SELECT due_ms FROM onward_schedule_records WHERE job = ?1 ORDER BY due_ms DESC LIMIT 1 OFFSET ?2)",
                params![job, RECORDS_KEPT as i64],
            )?;
            Ok(true)
        })
        .await
    }

    async fn reclaim(&self, job: &str, run: OpenRun, until: Wall) -> Result<bool, StoreError> {
        let job = job.to_owned();
        self.transaction(move |connection| {
            let reclaim = "UPDATE onward_schedule_records SET claimed_until_ms = ?4
                WHERE job = ?1 AND due_ms = ?2 AND claimed_until_ms = ?3";
            let given = params![job, ms(run.due), ms(run.claimed_until), ms(until)];
            Ok(connection.execute(reclaim, given)? == 1)
        })
        .await
    }

    async fn end(&self, job: &str, due: Wall, end: RunEnd) -> Result<(), StoreError> {
        let job = job.to_owned();
        self.transaction(move |connection| {
            let end_run = "UPDATE onward_schedule_records SET claimed_until_ms = NULL, outcome = ?3
                WHERE job = ?1 AND due_ms = ?2";
            connection.execute(end_run, params![job, ms(due), end.word()]).map(drop)
        })
        .await
    }
}
