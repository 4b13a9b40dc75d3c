//! An import: what another engine has kept, as it is, under the same keys, terms and numbers.
//!
//! All or nothing. While an import goes on, the seat's row says so, and nobody can take the seat; the last statement makes
//! the log one that can be led. What an import that did not end has left is removed by the next one. Each import has a
//! name of its own in the seat's row, and one that another has taken the place of changes nothing any more.

use core::time::Duration;
use std::thread;
use std::time::Instant;

use onward_core::fence::Term;
use onward_core::ids::Seq;
use onward_log::{Blob, Error, LogChange, Snapshot, StoredRow, Tail};
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use crate::connection::Connection;
use crate::failure::{OpenError, RequestFailure};
use crate::{Database, OutputKey, StoredToken};

const BEGIN: &str = include_str!("../sql/import_begin.sql");
const PUT_BATCHES: &str = include_str!("../sql/import_batches.sql");
const PUT_CHUNK: &str = include_str!("../sql/import_chunk.sql");
const PUT_BLOBS: &str = include_str!("../sql/import_blobs.sql");
const PUT_KEY: &str = include_str!("../sql/import_key.sql");
const PUT_TOKEN: &str = include_str!("../sql/import_token.sql");
const PUT_OUTPUT: &str = include_str!("../sql/import_output.sql");
const FINISH: &str = include_str!("../sql/import_finish.sql");
const IS_DONE: &str = "update onward.seat set beat = beat + 1
    where log = $1::text and not is_importing and holder is null and term = $2::bigint returning 1";

/// Statements that remove the log's rows from every table before an import begins.
const TABLES: [&str; 10] = [
    "delete from onward.batch where log = $1::text",
    "delete from onward.blob where log = $1::text",
    "delete from onward.chunk where log = $1::text",
    "delete from onward.archive where log = $1::text",
    "delete from onward.archive_blob where log = $1::text",
    "delete from onward.archive_count where log = $1::text",
    "delete from onward.secret where log = $1::text",
    "delete from onward.token where log = $1::text",
    "delete from onward.token_changes where log = $1::text",
    "delete from onward.output where log = $1::text",
];

/// The time that one statement may take that removes much.
const REMOVED_WITHIN: Duration = Duration::from_secs(3_600);

/// The time, and the number of times, for which the same is asked again in doubt.
const IN_DOUBT_FOR: Duration = Duration::from_secs(60);
const ASK_AGAIN: Duration = Duration::from_millis(200);

/// The reason why an import did not begin, or did not go on. The log cannot be led.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ImportError {
    /// The log has been led by somebody, or has tokens.
    #[error("the database holds a node's data already (its log ends at event {}, under term {})", .0.last.0, .0.term)]
    NotEmpty(Tail),
    #[error("another import into this database has begun since")]
    Superseded,
    #[error("{0}")]
    Database(#[from] Error),
    #[error("{0}")]
    Open(#[from] OpenError),
}

/// An import into one log that is under way.
#[derive(Debug)]
pub struct Import {
    name: String,
    id: Uuid,
    connection: Connection,
}

impl Database {
    /// Begins an import into the log of this name, which must hold nothing, or what an import has left that did not end.
    pub fn begin_import(&self, name: &str) -> Result<Import, ImportError> {
        // It exists, so that its row can be locked.
        let mut log = self.log(name)?;
        let connection = Connection::new(self.connector.clone())?;
        let mut import = Import { name: name.to_owned(), id: crate::session::random_uuid()?, connection };
        let begun = import.until_known(|import, name| {
            let deadline = import.connection.deadline(0);
            import.connection.change(BEGIN, &[&name, &import.id], deadline).map_err(RequestFailure::of_change)
        })?;
        if begun == 0 {
            return Err(ImportError::NotEmpty(onward_log::Log::tail(&mut log)?));
        }
        for table in TABLES {
            import.until_known(|import, name| {
                let deadline = Instant::now() + REMOVED_WITHIN;
                import.connection.change(table, &[&name], deadline).map_err(RequestFailure::of_change)
            })?;
        }
        Ok(import)
    }
}

impl Import {
    /// Batches of the log, in their order.
    pub fn put_rows(&mut self, rows: &[StoredRow]) -> Result<(), ImportError> {
        let number = |number: u64| number.cast_signed();
        let firsts: Vec<i64> = rows.iter().map(|row| number(row.key.first.0)).collect();
        let counts: Vec<i32> = rows.iter().map(|row| row.count.cast_signed()).collect();
        let terms: Vec<i64> = rows.iter().map(|row| number(row.key.term.get())).collect();
        let ids: Vec<i64> = rows.iter().map(|row| number(row.key.id.0)).collect();
        let stored = rows.iter().map(|row| {
            let mut bytes = Vec::new();
            row.put(&mut bytes);
            bytes
        });
        let stored: Vec<Vec<u8>> = stored.collect();
        let bytes = stored.iter().map(Vec::len).sum();
        self.put(PUT_BATCHES, &[&firsts, &counts, &terms, &ids, &stored], bytes)
    }

    /// A chunk of the newest snapshot.
    pub fn put_chunk(&mut self, covers: Seq, index: u32, chunk: &[u8]) -> Result<(), ImportError> {
        self.put(PUT_CHUNK, &[&covers.0.cast_signed(), &index.cast_signed(), &chunk], chunk.len())
    }

    /// Content that batches or the snapshot name.
    pub fn put_blobs(&mut self, blobs: &[Blob<'_>]) -> Result<(), ImportError> {
        let digests: Vec<&[u8]> = blobs.iter().map(|blob| &blob.digest[..]).collect();
        let contents: Vec<&[u8]> = blobs.iter().map(|blob| blob.bytes).collect();
        let bytes = contents.iter().map(|bytes| bytes.len()).sum();
        self.put(PUT_BLOBS, &[&digests, &contents], bytes)
    }

    pub fn put_key(&mut self, name: &str, key: &[u8; 32]) -> Result<(), ImportError> {
        self.put(PUT_KEY, &[&name, &&key[..]], 0)
    }

    pub fn put_token(&mut self, token: &StoredToken) -> Result<(), ImportError> {
        let created = i64::try_from(token.created_at_ms).unwrap_or(i64::MAX);
        self.put(PUT_TOKEN, &[&token.name, &token.scopes, &created, &token.hint, &&token.sha256[..]], 0)
    }

    /// Puts the kept output of an attempt, after so many bytes that are not kept.
    pub fn put_output(
        &mut self,
        key: OutputKey,
        skipped: u64,
        data: &[u8],
        written_at_ms: u64,
    ) -> Result<(), ImportError> {
        let (job, workflow, fence) = (Uuid::from_u128(key.job), i32::from(key.workflow), key.fence.cast_signed());
        let [skipped, at] = [skipped, written_at_ms].map(|number| i64::try_from(number).unwrap_or(i64::MAX));
        self.put(PUT_OUTPUT, &[&job, &workflow, &fence, &skipped, &data, &at], data.len())
    }

    /// Ends the import: the log can be led from now on, under a term above this one.
    pub fn finish(mut self, tail: Tail, snapshot: Option<Snapshot>) -> Result<(), ImportError> {
        let term = tail.term.max(Term::new(1)).get().cast_signed();
        let covers = snapshot.map(|snapshot| snapshot.covers.0.cast_signed());
        let chunks = snapshot.map(|snapshot| snapshot.chunks.cast_signed());
        let finished = self.until_known(|import, name| {
            let deadline = import.connection.deadline(0);
            let params: [&(dyn ToSql + Sync); 5] = [&name, &import.id, &term, &covers, &chunks];
            let finished = import.connection.change(FINISH, &params, deadline).map_err(RequestFailure::of_change)?;
            if !finished.is_empty() {
                return Ok(finished);
            }
            // By an earlier try whose answer was lost: this write comes after it, and is as durable.
            import.connection.change(IS_DONE, &[&name, &term], deadline).map_err(RequestFailure::of_change)
        })?;
        if finished == 0 { Err(ImportError::Superseded) } else { Ok(()) }
    }

    /// Stores something, if this import still goes on.
    fn put(&mut self, text: &'static str, given: &[&(dyn ToSql + Sync)], bytes: usize) -> Result<(), ImportError> {
        let goes_on = self.until_known(|import, name| {
            let deadline = import.connection.deadline(bytes);
            let mut params: Vec<&(dyn ToSql + Sync)> = vec![&name, &import.id];
            params.extend(given);
            import.connection.change(text, &params, deadline).map_err(RequestFailure::of_change)
        })?;
        if goes_on == 0 { Err(ImportError::Superseded) } else { Ok(()) }
    }

    /// Asks until there is an answer, and says how many rows it has. What is asked here is carried out once, however often.
    fn until_known(
        &mut self,
        mut ask: impl FnMut(&mut Self, &str) -> Result<Vec<tokio_postgres::Row>, Error>,
    ) -> Result<usize, ImportError> {
        let (name, since) = (self.name.clone(), Instant::now());
        loop {
            match ask(self, &name) {
                Err(error) if error.changed() == LogChange::Maybe && since.elapsed() < IN_DOUBT_FOR => {
                    thread::sleep(ASK_AGAIN);
                }
                known => return Ok(known?.len()),
            }
        }
    }
}
