//! What attempts print, on PostgreSQL: the end of it, in parts.

use std::sync::{Mutex, MutexGuard, PoisonError};

use onward_core::fence::Term;
use onward_log::Error;
use uuid::Uuid;

use crate::connection::Connection;
use crate::failure::RequestFailure;

const SCAN: &str = "select job, workflow, fence, sum(octet_length(bytes))::bigint, max(written_at) from onward.output
    where log = $1::text group by job, workflow, fence order by max(written_at)";
const WRITE: &str = include_str!("../sql/output_write.sql");
const READ: &str = "select start, bytes from onward.output
    where log = $1::text and job = $2::uuid and workflow = $3::int and fence = $4::bigint order by start";
const WRITTEN_AT: &str = "select max(written_at) from onward.output
    where log = $1::text and job = $2::uuid and workflow = $3::int and fence = $4::bigint";
const REMOVE: &str = "delete from onward.output
    where log = $1::text and job = $2::uuid and workflow = $3::int and fence = $4::bigint returning 1";

/// A part that has grown to this grows no more: adding to it rewrites it.
const PART_BYTES: i32 = 8 << 10;

/// The attempt that has printed something.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct OutputKey {
    pub job: u128,
    pub workflow: u16,
    pub fence: u64,
}

/// The size of an attempt's kept output, and the time since when it is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OutputFound {
    pub key: OutputKey,
    pub bytes: u64,
    pub written_at_ms: u64,
}

/// The output that belongs to one log, over a connection of its own: nothing else waits for it.
#[derive(Debug)]
pub struct PostgresOutputs {
    name: String,
    keep_bytes: i64,
    connection: Mutex<Connection>,
}

impl PostgresOutputs {
    pub(crate) fn new(name: &str, keep_bytes: usize, connection: Connection) -> Self {
        let keep_bytes = i64::try_from(keep_bytes).unwrap_or(i64::MAX);
        Self { name: name.to_owned(), keep_bytes, connection: Mutex::new(connection) }
    }

    /// All attempts of which something is kept, those that printed longest ago first.
    pub fn scan(&self) -> Result<Vec<OutputFound>, Error> {
        let mut connection = self.connection();
        let deadline = connection.read_deadline();
        let rows = connection.look(SCAN, &[&self.name], deadline).map_err(RequestFailure::of_look)?;
        let found = rows.iter().map(|row| OutputFound {
            key: OutputKey {
                job: row.get::<_, Uuid>(0).as_u128(),
                workflow: u16::try_from(row.get::<_, i32>(1)).unwrap_or_default(),
                fence: row.get::<_, i64>(2).cast_unsigned(),
            },
            bytes: row.get::<_, i64>(3).unsigned_abs(),
            written_at_ms: row.get::<_, i64>(4).unsigned_abs(),
        });
        Ok(found.collect())
    }

    /// Adds what was printed after so many bytes that were not kept; says how many bytes are stored of it all. After
    /// [`Error::Unknown`] they may be there. `None`, and nothing is added, if output of a later term is stored.
    pub fn write(
        &self,
        key: OutputKey,
        term: Term,
        skipped: u64,
        data: &[u8],
        now_ms: u64,
    ) -> Result<Option<u64>, Error> {
        let mut connection = self.connection();
        let deadline = connection.deadline(data.len());
        let (job, workflow, fence) = (Uuid::from_u128(key.job), i32::from(key.workflow), key.fence.cast_signed());
        let (skipped, now, term) = (signed(skipped), signed(now_ms), term.get().cast_signed());
        let rows = connection.change(
            WRITE,
            &[&self.name, &job, &workflow, &fence, &skipped, &data, &now, &PART_BYTES, &self.keep_bytes, &term],
            deadline,
        );
        Ok(rows.map_err(RequestFailure::of_change)?.first().map(|row| row.get::<_, i64>(0).unsigned_abs()))
    }

    /// The kept output of an attempt: the number of bytes before it, and the bytes, as many as are to be kept.
    pub fn read(&self, key: OutputKey) -> Result<Option<(u64, Vec<u8>)>, Error> {
        let mut connection = self.connection();
        let deadline = connection.deadline(0);
        let (job, workflow, fence) = (Uuid::from_u128(key.job), i32::from(key.workflow), key.fence.cast_signed());
        let rows =
            connection.look(READ, &[&self.name, &job, &workflow, &fence], deadline).map_err(RequestFailure::of_look)?;
        let Some(first) = rows.first() else { return Ok(None) };
        let start = first.get::<_, i64>(0).unsigned_abs();
        let mut data = Vec::new();
        for row in &rows {
            let at = row.get::<_, i64>(0).unsigned_abs();
            if at != start + data.len() as u64 {
                return Err(Error::Corrupt { what: format!("output of an attempt has a hole before byte {at}") });
            }
            data.extend_from_slice(row.get(1));
        }
        let over = data.len().saturating_sub(usize::try_from(self.keep_bytes).unwrap_or(usize::MAX));
        data.drain(..over);
        Ok(Some((start + over as u64, data)))
    }

    /// The time that was given with the newest write of an attempt's output; none if nothing is kept.
    pub fn written_at(&self, key: OutputKey) -> Result<Option<u64>, Error> {
        let mut connection = self.connection();
        let deadline = connection.deadline(0);
        let (job, workflow, fence) = (Uuid::from_u128(key.job), i32::from(key.workflow), key.fence.cast_signed());
        let rows = connection
            .look(WRITTEN_AT, &[&self.name, &job, &workflow, &fence], deadline)
            .map_err(RequestFailure::of_look)?;
        Ok(rows.first().and_then(|row| row.get::<_, Option<i64>>(0)).map(i64::unsigned_abs))
    }

    /// Removes what is kept of an attempt; false if nothing was.
    pub fn remove(&self, key: OutputKey) -> Result<bool, Error> {
        let mut connection = self.connection();
        let deadline = connection.deadline(0);
        let (job, workflow, fence) = (Uuid::from_u128(key.job), i32::from(key.workflow), key.fence.cast_signed());
        let rows = connection.change(REMOVE, &[&self.name, &job, &workflow, &fence], deadline);
        Ok(!rows.map_err(RequestFailure::of_change)?.is_empty())
    }

    fn connection(&self) -> MutexGuard<'_, Connection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
