//! What lies in the file: three tables, and how they are read and written inside a transaction.

use ::redb::{Database, ReadableDatabase, ReadableTable, TableDefinition, TableError, WriteTransaction};
use onward_core::fence::Term;
use onward_core::ids::Seq;

use crate::head::{Head, trimmed};
use crate::{Batch, Error, Snapshot, codec};

use super::fault::Fault;

/// A batch by the sequence number of its first event.
const BATCHES: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("batches");
/// A chunk by what its snapshot covers, and its index.
const CHUNKS: TableDefinition<'_, (u64, u32), &[u8]> = TableDefinition::new("chunks");
const FACTS: TableDefinition<'_, &str, u64> = TableDefinition::new("facts");

/// The format of the tables; that of a row is in the row.
const FORMAT: &str = "format";
const KNOWN: u8 = 1;
const TERM: &str = "term";
/// Of the newest finished snapshot. Absent if there is none.
const SNAPSHOT_COVERS: &str = "snapshot_covers";
const SNAPSHOT_CHUNKS: &str = "snapshot_chunks";

/// Makes the tables in a new file, refuses one that is too new, and finds out where the log ends.
pub(super) fn prepare(database: &Database) -> Result<Head, Fault> {
    let read = database.begin_read()?;
    let facts = match read.open_table(FACTS) {
        Ok(facts) => facts,
        Err(TableError::TableDoesNotExist(_)) => {
            let write = database.begin_write()?;
            write.open_table(FACTS)?.insert(FORMAT, u64::from(KNOWN))?;
            write.open_table(BATCHES)?;
            write.open_table(CHUNKS)?;
            write.commit()?;
            return Ok(Head::default());
        }
        Err(error) => return Err(error.into()),
    };
    let fact = |name: &str| -> Result<Option<u64>, Fault> { Ok(facts.get(name)?.map(|value| value.value())) };
    match fact(FORMAT)? {
        Some(found) if found == u64::from(KNOWN) => {}
        Some(found) if found > u64::from(KNOWN) => {
            return Err(Error::NewerFormat { found: u8::try_from(found).unwrap_or(u8::MAX), known: KNOWN }.into());
        }
        _ => return Err(corrupt("the file does not say its format")),
    }
    let mut head = Head::default();
    head.tail.term = Term::new(fact(TERM)?.unwrap_or(0));
    if let Some((at, row)) = read.open_table(BATCHES)?.last()? {
        let at = Seq(at.value());
        head.found(&trimmed(codec::decode(row.value())?, at, at)?);
    }
    if let (Some(covers), Some(chunks)) = (fact(SNAPSHOT_COVERS)?, fact(SNAPSHOT_CHUNKS)?) {
        let chunks = u32::try_from(chunks).map_err(|_| corrupt("a snapshot with too many chunks"))?;
        head.snapshot = Some(Snapshot { covers: Seq(covers), chunks });
    }
    // At most one other snapshot has chunks, and they were stored in order.
    let finished = head.snapshot.map_or(0, |snapshot| snapshot.covers.0);
    if let Some((key, _)) = read.open_table(CHUNKS)?.last()? {
        let (covers, index) = key.value();
        if covers > finished {
            head.chunk_put(Seq(covers), index);
        }
    }
    Ok(head)
}

pub(super) fn put_term(transaction: &WriteTransaction, term: Term) -> Result<(), Fault> {
    transaction.open_table(FACTS)?.insert(TERM, term.get())?;
    Ok(())
}

pub(super) fn put_batch(transaction: &WriteTransaction, first: Seq, row: &[u8]) -> Result<(), Fault> {
    transaction.open_table(BATCHES)?.insert(first.0, row)?;
    Ok(())
}

pub(super) fn read(database: &Database, from: Seq, max_events: usize, last: Seq) -> Result<Vec<Batch>, Fault> {
    let rows = database.begin_read()?.open_table(BATCHES)?;
    if let Some((oldest, _)) = rows.first()?
        && from.0 < oldest.value()
    {
        return Err(Error::Truncated { first: Seq(oldest.value()) }.into());
    }
    if from > last {
        return Ok(Vec::new());
    }
    let start = rows.range(..=from.0)?.next_back().transpose()?.map_or(from.0, |(at, _)| at.value());
    let (mut batches, mut events, mut next) = (Vec::new(), 0, None);
    for row in rows.range(start..)? {
        let (at, row) = row?;
        let at = Seq(at.value());
        let batch = codec::decode(row.value())?;
        if next.is_some_and(|next| next != at) {
            return Err(corrupt("a batch is missing"));
        }
        next = Some(Seq(at.0.saturating_add(batch.events.len() as u64)));
        let batch = trimmed(batch, at, from)?;
        events += batch.events.len();
        batches.push(batch);
        if events >= max_events {
            break;
        }
    }
    Ok(batches)
}

pub(super) fn put_chunk(
    transaction: &WriteTransaction,
    finished: Option<Snapshot>,
    covers: Seq,
    index: u32,
    row: &[u8],
) -> Result<(), Fault> {
    let mut chunks = transaction.open_table(CHUNKS)?;
    if index == 0 {
        let kept = finished.map(|snapshot| snapshot.covers.0);
        chunks.retain(|(covers, _), _| Some(covers) == kept)?;
    }
    chunks.insert((covers.0, index), row)?;
    Ok(())
}

/// In one transaction: the new snapshot counts, and everything else that was stored as a snapshot goes.
pub(super) fn finish_snapshot(transaction: &WriteTransaction, snapshot: Snapshot) -> Result<(), Fault> {
    let mut facts = transaction.open_table(FACTS)?;
    facts.insert(SNAPSHOT_COVERS, snapshot.covers.0)?;
    facts.insert(SNAPSHOT_CHUNKS, u64::from(snapshot.chunks))?;
    transaction.open_table(CHUNKS)?.retain(|(covers, _), _| covers == snapshot.covers.0)?;
    Ok(())
}

pub(super) fn chunk(database: &Database, snapshot: Option<Snapshot>, index: u32) -> Result<Vec<u8>, Fault> {
    let none = Error::WrongSnapshot { what: "the newest one has no such chunk" };
    let snapshot = snapshot.filter(|snapshot| index < snapshot.chunks).ok_or(none)?;
    let chunks = database.begin_read()?.open_table(CHUNKS)?;
    let row = chunks.get((snapshot.covers.0, index))?.ok_or_else(|| corrupt("a chunk of the snapshot is missing"))?;
    Ok(codec::decode_opaque(row.value())?.to_vec())
}

pub(super) fn truncate(transaction: &WriteTransaction, covers: Seq, max_batches: usize) -> Result<bool, Fault> {
    let mut rows = transaction.open_table(BATCHES)?;
    let mut removed = 0;
    loop {
        // A batch is covered if the next one begins no later than the first event that is not.
        let covered = rows.range(..=covers.0.saturating_add(1))?.nth(1).transpose()?.is_some();
        if !covered {
            return Ok(false);
        }
        if removed == max_batches {
            return Ok(true);
        }
        rows.pop_first()?;
        removed += 1;
    }
}

fn corrupt(what: &str) -> Fault {
    Error::Corrupt { what: what.to_owned() }.into()
}
