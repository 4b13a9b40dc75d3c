//! What lies in the file: five tables, and how they are read and written inside a transaction.

use core::ops::Bound;

use ::redb::{
    Database, ReadTransaction, ReadableDatabase, ReadableTable, TableDefinition, TableError, WriteTransaction,
};
use onward_core::fence::Term;
use onward_core::ids::Seq;

use crate::head::Head;
use crate::{Blob, BlobDigest, Error, Snapshot, StoredRow, codec};

use super::fault::StoreFault;
use super::journal::PendingRows;
use super::pieces::{self, BlobLabel};

/// A batch by the sequence number of its first event.
pub(crate) const BATCHES: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("batches");
/// A chunk by what its snapshot covers, and its index.
pub(crate) const CHUNKS: TableDefinition<'_, (u64, u32), &[u8]> = TableDefinition::new("chunks");
/// Blobs: the label of each by its digest; pieces hold the content.
pub(crate) const BLOBS: TableDefinition<'_, &[u8; 32], BlobLabel> = TableDefinition::new("blobs");
pub(crate) const PIECES: TableDefinition<'_, (&[u8; 32], u32), &[u8]> = TableDefinition::new("blob_pieces");
pub(crate) const FACTS: TableDefinition<'_, &str, u64> = TableDefinition::new("facts");

/// The format of the tables; that of a row is in the row. Format 1 knew no blobs, and format 2
/// no journal.
pub(crate) const FORMAT: &str = "format";
pub(crate) const KNOWN: u8 = 3;
/// The number that the journal must have. Absent if there is none yet, as in a folder that was just restored.
pub(crate) const JOURNAL: &str = "journal";
pub(crate) const TERM: &str = "term";
/// The event that the newest finished snapshot covers. Absent if there is none.
const SNAPSHOT_COVERS: &str = "snapshot_covers";
const SNAPSHOT_CHUNKS: &str = "snapshot_chunks";
/// The last event that the log had, with the journal's, when redb committed last: it may not have fewer any more.
/// Absent in a file that was not written since this is noted.
const REACHED: &str = "reached";

/// Facts of redb about the journal.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Facts {
    /// The journal's number.
    pub(super) journal: Option<u64>,
    pub(super) reached: Option<Seq>,
}

/// The end of the log as far as redb knows, and its facts about the journal. Refuses a file that is too new.
pub(super) fn found(database: &Database) -> Result<(Head, Facts), StoreFault> {
    let read = database.begin_read()?;
    let facts = match read.open_table(FACTS) {
        Ok(facts) => facts,
        Err(TableError::TableDoesNotExist(_)) => return Ok((Head::default(), Facts::default())),
        Err(error) => return Err(error.into()),
    };
    let fact = |name: &str| -> Result<Option<u64>, StoreFault> { Ok(facts.get(name)?.map(|value| value.value())) };
    known_format(fact(FORMAT)?, KNOWN)?;
    let mut head = Head::default();
    head.tail.term = Term::new(fact(TERM)?.unwrap_or(0));
    if let Some((at, row)) = read.open_table(BATCHES)?.last()? {
        // Counted from none, a term would be given out a second time.
        fact(TERM)?.ok_or_else(|| corrupt("there are rows, and no term that they could be of"))?;
        let at = Seq(at.value());
        head.found(&StoredRow::read(row.value().to_vec())?.at(at)?);
    }
    match (fact(SNAPSHOT_COVERS)?, fact(SNAPSHOT_CHUNKS)?) {
        (Some(covers), Some(chunks)) => {
            let chunks = u32::try_from(chunks).map_err(|_| corrupt("a snapshot with too many chunks"))?;
            head.snapshot = Some(Snapshot { covers: Seq(covers), chunks });
        }
        (None, None) => {}
        _ => return Err(corrupt("of the snapshot's two numbers one is missing")),
    }
    // At most one other snapshot has chunks, and they were stored in order.
    let finished = head.snapshot.map_or(0, |snapshot| snapshot.covers.0);
    if let Some((key, _)) = read.open_table(CHUNKS)?.last()? {
        let (covers, index) = key.value();
        if covers > finished {
            head.chunk_put(Seq(covers), index);
        }
    }
    Ok((head, Facts { journal: fact(JOURNAL)?, reached: fact(REACHED)?.map(Seq) }))
}

/// Makes the tables of a new file, and those that one of an older format lacks. From then on there is a journal.
pub(super) fn make_tables(database: &Database, journal: u64) -> Result<(), StoreFault> {
    let write = database.begin_write()?;
    write.open_table(FACTS)?.insert(FORMAT, u64::from(KNOWN))?;
    write.open_table(FACTS)?.insert(JOURNAL, journal)?;
    write.open_table(BATCHES)?;
    write.open_table(CHUNKS)?;
    write.open_table(BLOBS)?;
    write.open_table(PIECES)?;
    write.commit()?;
    Ok(())
}

/// A file says its format, and one that is too new is refused by it.
pub(crate) fn known_format(found: Option<u64>, known: u8) -> Result<u8, StoreFault> {
    match found.map(|found| u8::try_from(found).unwrap_or(u8::MAX)) {
        Some(found) if found > known => Err(Error::NewerFormat { found, known }.into()),
        None | Some(0) => Err(corrupt("the file does not say its format")),
        Some(found) => Ok(found),
    }
}

pub(super) fn put_reached(transaction: &WriteTransaction, last: Seq) -> Result<(), StoreFault> {
    transaction.open_table(FACTS)?.insert(REACHED, last.0)?;
    Ok(())
}

pub(super) fn put_term(transaction: &WriteTransaction, term: Term) -> Result<(), StoreFault> {
    transaction.open_table(FACTS)?.insert(TERM, term.get())?;
    Ok(())
}

pub(super) fn put_batch(
    transaction: &WriteTransaction,
    first: Seq,
    row: &[u8],
    blobs: &[Blob<'_>],
) -> Result<(), StoreFault> {
    transaction.open_table(BATCHES)?.insert(first.0, row)?;
    if blobs.is_empty() {
        return Ok(());
    }
    let (mut labels, mut contents) = (transaction.open_table(BLOBS)?, transaction.open_table(PIECES)?);
    for blob in blobs {
        pieces::put(&mut labels, &mut contents, blob.digest, blob)?;
    }
    Ok(())
}

pub(super) fn blob(view: &ReadTransaction, digest: &BlobDigest) -> Result<Option<Vec<u8>>, StoreFault> {
    pieces::get(&view.open_table(BLOBS)?, &view.open_table(PIECES)?, *digest)
}

pub(super) fn has_any(view: &ReadTransaction, digests: &[BlobDigest]) -> Result<bool, StoreFault> {
    let labels = view.open_table(BLOBS)?;
    for digest in digests {
        if labels.get(digest)?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

pub(super) fn drop_blobs(transaction: &WriteTransaction, digests: &[BlobDigest]) -> Result<(), StoreFault> {
    let (mut labels, mut contents) = (transaction.open_table(BLOBS)?, transaction.open_table(PIECES)?);
    for digest in digests {
        pieces::remove(&mut labels, &mut contents, *digest)?;
    }
    Ok(())
}

pub(super) fn blobs(
    view: &ReadTransaction,
    after: Option<&BlobDigest>,
    max: usize,
) -> Result<Vec<BlobDigest>, StoreFault> {
    let from = after.map_or(Bound::Unbounded, Bound::Excluded);
    let labels = view.open_table(BLOBS)?;
    let rows = labels.range::<&[u8; 32]>((from, Bound::Unbounded))?.take(max);
    rows.map(|row| Ok(*row?.0.value())).collect()
}

/// Rows of the journal, behind those that end with `stored`. What lies before a gap is needed by nobody, and goes: here
/// there is none.
pub(super) fn put_rows(transaction: &WriteTransaction, stored: Seq, moved: &PendingRows) -> Result<(), StoreFault> {
    let mut rows = transaction.open_table(BATCHES)?;
    if moved.first().is_some_and(|first| first.0 > stored.0.saturating_add(1)) {
        rows.retain(|_, _| false)?;
    }
    for row in moved.iter() {
        let (first, row) = row?;
        rows.insert(first.0, &row[..])?;
    }
    Ok(())
}

pub(super) fn put_chunk(
    transaction: &WriteTransaction,
    finished: Option<Snapshot>,
    covers: Seq,
    index: u32,
    row: &[u8],
) -> Result<(), StoreFault> {
    let mut chunks = transaction.open_table(CHUNKS)?;
    if index == 0 {
        let kept = finished.map(|snapshot| snapshot.covers.0);
        chunks.retain(|(covers, _), _| Some(covers) == kept)?;
    }
    chunks.insert((covers.0, index), row)?;
    Ok(())
}

/// Finishes a snapshot in one transaction: it counts, and everything else that was stored as a snapshot goes.
pub(super) fn finish_snapshot(transaction: &WriteTransaction, snapshot: Snapshot) -> Result<(), StoreFault> {
    let mut facts = transaction.open_table(FACTS)?;
    facts.insert(SNAPSHOT_COVERS, snapshot.covers.0)?;
    facts.insert(SNAPSHOT_CHUNKS, u64::from(snapshot.chunks))?;
    transaction.open_table(CHUNKS)?.retain(|(covers, _), _| covers == snapshot.covers.0)?;
    Ok(())
}

pub(super) fn chunk(view: &ReadTransaction, snapshot: Option<Snapshot>, index: u32) -> Result<Vec<u8>, StoreFault> {
    let none = Error::WrongSnapshot { what: "the newest one has no such chunk" };
    let snapshot = snapshot.filter(|snapshot| index < snapshot.chunks).ok_or(none)?;
    let chunks = view.open_table(CHUNKS)?;
    let row = chunks.get((snapshot.covers.0, index))?.ok_or_else(|| corrupt("a chunk of the snapshot is missing"))?;
    Ok(codec::decode_opaque(row.value())?.to_vec())
}

/// Says how many it removed, and whether there are more. `next` is where the journal begins, if it has rows.
pub(super) fn truncate(
    transaction: &WriteTransaction,
    covers: Seq,
    next: Option<Seq>,
    max_batches: usize,
) -> Result<(usize, bool), StoreFault> {
    let mut rows = transaction.open_table(BATCHES)?;
    let mut removed = 0;
    while begins_covered(&rows, covers, next)? {
        if removed == max_batches {
            return Ok((removed, true));
        }
        rows.pop_first()?;
        removed += 1;
    }
    Ok((removed, false))
}

/// A batch is covered if the next one begins no later than the first event that is not.
pub(super) fn begins_covered(
    rows: &impl ReadableTable<u64, &'static [u8]>,
    covers: Seq,
    next: Option<Seq>,
) -> Result<bool, StoreFault> {
    let mut oldest = rows.range::<u64>(..)?;
    if oldest.next().transpose()?.is_none() {
        return Ok(false);
    }
    let second = oldest.next().transpose()?.map(|(at, _)| Seq(at.value()));
    Ok(second.or(next).is_some_and(|next| next.0 <= covers.0.saturating_add(1)))
}

pub(crate) fn corrupt(what: &str) -> StoreFault {
    Error::Corrupt { what: what.to_owned() }.into()
}
