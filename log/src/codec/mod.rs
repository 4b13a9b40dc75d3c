//! What a manager stores (and a gate, by [`gate`]), in bytes that outlive the program that wrote them: events in the body of a
//! [row](crate::row), records of a snapshot in its chunks, whole jobs in the archive.
//!
//! Engines know none of this: the codec stands above them, and another machine brings its own. Every version that was
//! ever released stays readable; each has a golden file in `tests/golden`, and a change to what a version writes turns
//! that test red. The tables of the format are in `v2.rs`.
//!
//! **Growing.** Within format 2 records gain fields and lists gain variants. Behind a checksum that matches, a number
//! that is not known was written by a newer version ([`DecodeError::NewerVersion`]), which is no damage: nothing is lost,
//! and a newer program reads it. What is written is always format 2; rows of format 1 are replaced with the next
//! snapshot, or stay as they are in the archive.
//!
//! Decoding trusts nothing. Whatever the bytes are, the answer is a batch or an error, and memory is never taken on
//! the word of a count.

mod bytes;
pub mod gate;
#[macro_use]
mod tail;
mod v2;

use onward_core::event::StampedEvent;
use onward_core::fence::Term;
use onward_core::ids::Seq;
use onward_core::manager::SnapshotRecord;
use onward_core::state::JobImage;

use bytes::{FieldReader, StoredForm as _};

pub use crate::row::{DecodeError, KNOWN};
use crate::row::{LogRow, StoredRow, framed};
use crate::{BatchId, BatchKey, Blob, Error, Log, Tail};

/// The formats that are read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Format {
    One,
    Two,
}

impl Format {
    const fn has_tails(self) -> bool {
        matches!(self, Self::Two)
    }

    /// The format with a number that the row's own check has let pass.
    const fn of(number: u8) -> Self {
        if number == 1 { Self::One } else { Self::Two }
    }
}

/// A row, or the rest of it from some sequence number on, as a manager reads it.
#[derive(Clone, PartialEq, Debug)]
pub struct Batch {
    pub term: Term,
    pub id: BatchId,
    /// The sequence number of the first of `events`.
    pub first: Seq,
    pub events: Vec<StampedEvent>,
}

/// Appends the events to `out`: the body of a row.
pub fn encode_events(events: &[StampedEvent], out: &mut Vec<u8>) {
    v2::put_events(events, out);
}

pub fn decode_row(row: &StoredRow) -> Result<Batch, DecodeError> {
    let from = FieldReader { bytes: row.body(), format: Format::of(row.format) };
    let BatchKey { term, id, first } = row.key;
    Ok(Batch { term, id, first, events: v2::get_events(row.count, from)? })
}

/// Appends a whole row to `out`, as an engine stores it.
pub fn encode(key: BatchKey, events: &[StampedEvent], out: &mut Vec<u8>) {
    let mut body = Vec::new();
    encode_events(events, &mut body);
    row_of(events.len(), &body).put(key, out);
}

/// Decodes a row that [`encode`] wrote.
pub fn decode(row: &[u8]) -> Result<Batch, DecodeError> {
    decode_row(&StoredRow::read(row.to_vec())?)
}

/// Any log, for those who speak in events.
pub trait EventLog: Log {
    /// Begins a new term whoever holds the seat: for tools and tests, which are alone with a log or mean it.
    fn seize_seat(&mut self) -> Result<Tail, Error> {
        let seen = self.tail()?.term;
        self.take_seat(seen)
    }

    /// Appends events as [`Log::append`] appends a row.
    fn append_events(&mut self, key: BatchKey, events: &[StampedEvent], blobs: &[Blob<'_>]) -> Result<(), Error> {
        let mut body = Vec::new();
        encode_events(events, &mut body);
        self.append(key, row_of(events.len(), &body), blobs)
    }

    /// Reads as [`Log::read`] does, but the first batch begins at `from`.
    fn read_events(&mut self, from: Seq, max_events: usize) -> Result<Vec<Batch>, Error> {
        let rows = self.read(from, max_events)?;
        rows.iter().map(|row| Ok(begun_at(decode_row(row)?, from))).collect()
    }
}

impl<L: Log + ?Sized> EventLog for L {}

fn row_of(count: usize, body: &[u8]) -> LogRow<'_> {
    LogRow { count: u32::try_from(count).expect("a batch is bounded"), body }
}

/// The batch without the events that lie before `from`.
fn begun_at(mut batch: Batch, from: Seq) -> Batch {
    let skip = from.0.saturating_sub(batch.first.0);
    if skip > 0 {
        let skip = usize::try_from(skip).unwrap_or(usize::MAX).min(batch.events.len());
        batch.events.drain(..skip);
        batch.first = from;
    }
    batch
}

/// A whole job, under the same prefix: a row of an archive.
pub fn encode_image(image: &JobImage, out: &mut Vec<u8>) {
    framed(out, |out| image.put(out));
}

pub fn decode_image(row: &[u8]) -> Result<JobImage, DecodeError> {
    v2::get_whole(unframe(row)?)
}

/// Some records of a snapshot, under the same prefix: what one chunk holds.
pub fn encode_records(records: &[SnapshotRecord], out: &mut Vec<u8>) {
    framed(out, |out| bytes::put_list(records, out));
}

pub fn decode_records(chunk: &[u8]) -> Result<Vec<SnapshotRecord>, DecodeError> {
    v2::get_whole(unframe(chunk)?)
}

/// Bytes that are stored as they are, under the same prefix: a chunk of a snapshot.
pub fn encode_opaque(bytes: &[u8], out: &mut Vec<u8>) {
    framed(out, |out| out.extend_from_slice(bytes));
}

pub fn decode_opaque(row: &[u8]) -> Result<&[u8], DecodeError> {
    Ok(unframe(row)?.bytes)
}

fn unframe(row: &[u8]) -> Result<FieldReader<'_>, DecodeError> {
    let (format, bytes) = crate::row::unframe(row)?;
    Ok(FieldReader { bytes, format: Format::of(format) })
}
