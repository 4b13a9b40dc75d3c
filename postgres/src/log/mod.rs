//! The log on PostgreSQL: the seat, appends, and reading. `upkeep` has what else the seat's holder changes.

mod upkeep;

use std::sync::Arc;
use std::time::Instant;

use onward_core::fence::Term;
use onward_core::ids::Seq;
use onward_log::{
    AppendAdmission, BatchId, BatchKey, Blob, BlobDigest, BlobReader, Error, Head, Log, LogChange, LogRow, Snapshot,
    StoredRow, Tail,
};
use tokio_postgres::Row as Answer;

use crate::Holder;
use crate::connection::{Connection, Pool};
use crate::failure::RequestFailure;

const APPEND: &str = include_str!("../../sql/append.sql");
const TAKE_SEAT: &str = include_str!("../../sql/take_seat.sql");
const CONFIRM: &str =
    "update onward.seat set beat = beat + 1 where log = $1::text and term = $2::bigint and term > 0 returning 1";
const MAKE: &str = "insert into onward.seat (log) values ($1::text) on conflict do nothing returning 1";
const HEAD: &str = include_str!("../../sql/head.sql");
const READ: &str = include_str!("../../sql/read.sql");
const OLDEST: &str = "select first from onward.batch where log = $1::text order by first limit 1";
const BLOB: &str = "select bytes from onward.blob where log = $1::text and digest = $2::bytea";

/// The number of times that something is decided anew because the log changed between the look and the change.
const TRIES: usize = 8;

/// A handle on one log, with a connection of its own. It is used from one thread at a time, outside of an async runtime: it
/// waits for its answers.
#[derive(Debug)]
pub struct PostgresLog {
    name: String,
    holder: Holder,
    connection: Connection,
    pool: Arc<Pool>,
    /// The beginning of the newest batch, as far as this handle knows.
    newest: Option<Seq>,
    /// An append whose outcome is not known.
    in_doubt: Option<BatchKey>,
}

/// Facts that were read of a log at one moment.
#[derive(Debug)]
struct Standing {
    head: Head,
    beat: i64,
}

impl PostgresLog {
    pub(crate) fn open(name: &str, holder: Holder, connection: Connection, pool: Arc<Pool>) -> Result<Self, Error> {
        let mut log = Self { name: name.to_owned(), holder, connection, pool, newest: None, in_doubt: None };
        let deadline = log.connection.deadline(0);
        log.connection.change(MAKE, &[&log.name], deadline).map_err(RequestFailure::of_change)?;
        Ok(log)
    }

    fn standing(&mut self, deadline: Instant) -> Result<Standing, RequestFailure> {
        let rows = self.connection.look(HEAD, &[&self.name], deadline)?;
        let row = rows.first().ok_or_else(|| RequestFailure::Refused { cause: "the log's seat is gone".into() })?;
        let standing = standing(row);
        self.newest = standing.head.newest_batch.map(|batch| batch.first);
        Ok(standing)
    }

    /// Confirms by a write that the term holds the seat: everything that was stored before it is as durable as this.
    fn confirm_until(&mut self, term: Term, deadline: Instant) -> Result<(), Error> {
        let confirmed = self.connection.change(CONFIRM, &[&self.name, &signed(term.get())], deadline);
        if !confirmed.map_err(RequestFailure::of_change)?.is_empty() {
            return Ok(());
        }
        let standing = self.standing(deadline).map_err(RequestFailure::of_change)?;
        standing.head.holds_seat(term)?;
        Err(Error::Unknown { cause: "the seat changed while it was looked at".into() })
    }

    fn append_once(&mut self, key: BatchKey, row: LogRow<'_>, blobs: &[Blob<'_>]) -> Result<(), Error> {
        let count = i32::try_from(row.count).expect("a batch has fewer events than that");
        let mut bytes = Vec::with_capacity(row.body.len() + 64);
        row.put(key, &mut bytes);
        let (digests, contents): (Vec<&[u8]>, Vec<&[u8]>) =
            blobs.iter().map(|blob| (&blob.digest[..], blob.bytes)).unzip();
        let size = bytes.len() + contents.iter().map(|content| content.len()).sum::<usize>();
        let deadline = self.connection.deadline(size);
        for _ in 0..TRIES {
            let before = match self.newest {
                _ if key.first == Seq(1) => Seq::default(),
                Some(newest) if newest < key.first => newest,
                _ => self.standing(deadline).map_err(RequestFailure::of_change)?.newest_first(),
            };
            let stored = self.connection.change(
                APPEND,
                &[
                    &self.name,
                    &signed(key.term.get()),
                    &signed(key.first.0),
                    &signed(before.0),
                    &count,
                    &signed(key.id.0),
                    &bytes,
                    &digests,
                    &contents,
                ],
                deadline,
            );
            if !stored.map_err(RequestFailure::of_change)?.is_empty() {
                self.newest = Some(key.first);
                return Ok(());
            }
            let standing = self.standing(deadline).map_err(RequestFailure::of_change)?;
            match standing.head.admit(key, row.count)? {
                // Seen here is not yet seen by the standby: the wait for it may have been cancelled.
                AppendAdmission::AlreadyThere => return self.confirm_until(key.term, deadline),
                AppendAdmission::Write => {}
            }
        }
        Err(Error::Unknown { cause: "the log changes while it is looked at".into() })
    }
}

impl Standing {
    fn newest_first(&self) -> Seq {
        self.head.newest_batch.map_or(Seq::default(), |batch| batch.first)
    }
}

impl Log for PostgresLog {
    fn tail(&mut self) -> Result<Tail, Error> {
        let deadline = self.connection.deadline(0);
        Ok(self.standing(deadline).map_err(RequestFailure::of_look)?.head.tail)
    }

    fn take_seat(&mut self, seen: Term) -> Result<Tail, Error> {
        let deadline = self.connection.deadline(0);
        let Holder { id, name, address } = &self.holder;
        let taken = self.connection.change(TAKE_SEAT, &[&self.name, &signed(seen.get()), id, name, address], deadline);
        let taken = taken.map_err(RequestFailure::of_change)?.first().map(|row| Term::new(unsigned(row.get(0))));
        // In a later statement: by now every batch is seen that came before the term changed.
        let tail = self.standing(deadline).map_err(RequestFailure::of_change)?.head.tail;
        match taken {
            Some(term) if term == tail.term => Ok(tail),
            _ => Err(Error::SeatTaken { seen, current: tail.term }),
        }
    }

    fn confirm(&mut self, term: Term) -> Result<(), Error> {
        let deadline = self.connection.deadline(0);
        self.confirm_until(term, deadline)
    }

    fn append(&mut self, key: BatchKey, row: LogRow<'_>, blobs: &[Blob<'_>]) -> Result<(), Error> {
        assert!(row.count > 0, "a batch without events has no place in the log");
        let was_in_doubt = self.in_doubt.take() == Some(key);
        let appended = self.append_once(key, row, blobs);
        match appended {
            Err(Error::Full { cause } | Error::Io { cause }) if was_in_doubt => {
                self.in_doubt = Some(key);
                Err(Error::Unknown { cause })
            }
            Err(error) => {
                self.in_doubt = (error.changed() == LogChange::Maybe).then_some(key);
                Err(error)
            }
            Ok(()) => Ok(()),
        }
    }

    fn read(&mut self, from: Seq, max_events: usize) -> Result<Vec<StoredRow>, Error> {
        let from = from.max(Seq(1));
        let max_events = i64::try_from(max_events).unwrap_or(i64::MAX).clamp(1, i64::MAX / 2);
        for _ in 0..TRIES {
            let deadline = self.connection.read_deadline();
            let rows = self.connection.look(READ, &[&self.name, &signed(from.0), &max_events], deadline);
            let rows = rows.map_err(RequestFailure::of_look)?;
            if !rows.is_empty() {
                return rows.iter().map(stored_row).collect();
            }
            let standing = self.standing(deadline).map_err(RequestFailure::of_look)?;
            if from > standing.head.tail.last {
                return Ok(Vec::new());
            }
            let oldest = self.connection.look(OLDEST, &[&self.name], deadline).map_err(RequestFailure::of_look)?;
            let oldest = oldest.first().map_or(Seq::default(), |row| Seq(unsigned(row.get(0))));
            if from < oldest {
                return Err(Error::Truncated { first: oldest });
            }
            // It was appended since.
        }
        Err(Error::Corrupt { what: format!("there is no batch that has event {}", from.0) })
    }

    fn blob(&mut self, digest: &BlobDigest) -> Result<Option<Vec<u8>>, Error> {
        let deadline = self.connection.read_deadline();
        let rows =
            self.connection.look(BLOB, &[&self.name, &&digest[..]], deadline).map_err(RequestFailure::of_look)?;
        Ok(rows.first().map(|row| row.get(0)))
    }

    fn blob_reader(&self) -> BlobReader {
        let (pool, name) = (self.pool.clone(), self.name.clone());
        BlobReader::new(move |digest| {
            let rows = pool.look(BLOB, &[&name, &&digest[..]]).map_err(RequestFailure::of_look)?;
            Ok(rows.first().map(|row| row.get(0)))
        })
    }

    fn blobs(&mut self, after: Option<&BlobDigest>, max: usize) -> Result<Vec<BlobDigest>, Error> {
        self.list_blobs(after, max)
    }

    fn drop_blobs(&mut self, term: Term, digests: &[BlobDigest]) -> Result<(), Error> {
        self.remove_blobs(term, digests)
    }

    fn put_chunk(&mut self, term: Term, covers: Seq, index: u32, chunk: &[u8]) -> Result<(), Error> {
        self.store_chunk(term, covers, index, chunk)
    }

    fn finish_snapshot(&mut self, term: Term, covers: Seq, chunks: u32) -> Result<(), Error> {
        self.complete_snapshot(term, covers, chunks)
    }

    fn snapshot(&mut self) -> Result<Option<Snapshot>, Error> {
        let deadline = self.connection.read_deadline();
        Ok(self.standing(deadline).map_err(RequestFailure::of_look)?.head.snapshot)
    }

    fn chunk(&mut self, index: u32) -> Result<Vec<u8>, Error> {
        self.read_chunk(index)
    }

    fn truncate(&mut self, term: Term, max_batches: usize) -> Result<bool, Error> {
        self.remove_covered(term, max_batches)
    }
}

fn standing(row: &Answer) -> Standing {
    let number = |at| row.get::<_, Option<i64>>(at).map(unsigned);
    let count = |at| row.get::<_, Option<i32>>(at).map(|count| count.unsigned_abs());
    let mut head = Head::default();
    head.tail.term = Term::new(number(0).unwrap_or_default());
    head.snapshot = number(2).zip(count(3)).map(|(covers, chunks)| Snapshot { covers: Seq(covers), chunks });
    if let (Some(first), Some(count), Some(term), Some(id)) = (number(4), count(5), number(6), number(7)) {
        head.appended(BatchKey { term: Term::new(term), id: BatchId(id), first: Seq(first) }, count);
    }
    head.unfinished = number(8).zip(count(9)).map(|(covers, chunks)| Snapshot { covers: Seq(covers), chunks });
    Standing { head, beat: row.get(1) }
}

/// A row that is what its place says.
fn stored_row(row: &Answer) -> Result<StoredRow, Error> {
    let (first, stored) = (Seq(unsigned(row.get(0))), StoredRow::read(row.get(1))?);
    if stored.key.first == first {
        return Ok(stored);
    }
    Err(Error::Corrupt { what: format!("the row at {} is not the batch that belongs there", first.0) })
}

/// PostgreSQL has no unsigned numbers; the bits are the same.
const fn signed(number: u64) -> i64 {
    number.cast_signed()
}

const fn unsigned(number: i64) -> u64 {
    number.cast_unsigned()
}
