//! A row: one batch as an engine keeps it. What its body says is the affair of whoever appends it, and reads it again.
//!
//! ```text
//! ┌─────────┬──────────────┬────────────────────────────────┬──────────────────────────────────┐
//! │ version │ CRC-32 (LE)  │ term · batch id · first · count│ body                             │
//! │ 1 byte  │ of the rest  │ numbers, seven bits a byte     │ as that version's codec says     │
//! └─────────┴──────────────┴────────────────────────────────┴──────────────────────────────────┘
//! ```
//!
//! The version comes first and stays there in every format to come, so that an older program refuses a newer row by
//! name instead of misreading it. Chunks of snapshots and rows of an archive stand behind the same five bytes.

use onward_core::fence::Term;
use onward_core::ids::Seq;

use crate::head::BatchKey;
use crate::{BatchId, Error};

/// The newest format that this program reads, and the one that it writes.
pub const KNOWN: u8 = 2;

const PREFIX: usize = 5;

/// The reason why bytes that were stored cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DecodeError {
    #[error("written in format {found}, and this program knows {known}; use a newer onward")]
    NewerFormat { found: u8, known: u8 },
    /// Within a format that is known: a variant, or a field that must not be passed over.
    #[error("written by a newer version, which knows {what} number {number}; use a newer onward")]
    NewerVersion { what: &'static str, number: u64 },
    #[error("damaged: {0}")]
    Corrupt(&'static str),
}

const CUT_OFF: DecodeError = DecodeError::Corrupt("the row ends too early");

/// A row to append: this many events, in these bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogRow<'a> {
    pub count: u32,
    pub body: &'a [u8],
}

impl LogRow<'_> {
    /// Appends the row to `out` as it is stored, with its key.
    pub fn put(&self, key: BatchKey, out: &mut Vec<u8>) {
        put_row(KNOWN, key, self, out);
    }
}

fn put_row(format: u8, key: BatchKey, row: &LogRow<'_>, out: &mut Vec<u8>) {
    framed_as(format, out, |out| {
        put_number(key.term.get(), out);
        put_number(key.id.0, out);
        put_number(key.first.0, out);
        put_number(u64::from(row.count), out);
        out.extend_from_slice(row.body);
    });
}

/// A row that was read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoredRow {
    pub key: BatchKey,
    pub count: u32,
    /// The format that its body is in.
    pub format: u8,
    bytes: Vec<u8>,
    /// The place where the body begins.
    at: usize,
}

/// The identity of a row, and of its content: after a database was replaced by one that lacks the newest batches, the
/// same term may write others of the same key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RowIdentity {
    pub key: BatchKey,
    pub count: u32,
    checksum: u32,
}

impl StoredRow {
    /// Reads a row that [`LogRow::put`] wrote.
    pub fn read(bytes: Vec<u8>) -> Result<Self, DecodeError> {
        let (format, mut rest) = unframe(&bytes)?;
        let term = Term::new(take_number(&mut rest)?);
        let id = BatchId(take_number(&mut rest)?);
        let first = Seq(take_number(&mut rest)?);
        let count = take_number(&mut rest)?;
        let count = u32::try_from(count).map_err(|_| DecodeError::Corrupt("a row with too many events"))?;
        let at = bytes.len() - rest.len();
        Ok(Self { key: BatchKey { term, id, first }, count, format, bytes, at })
    }

    /// A row of an engine that keeps key, count and format apart.
    pub fn of_parts(key: BatchKey, count: u32, format: u8, body: Vec<u8>) -> Result<Self, DecodeError> {
        known(format)?;
        Ok(Self { key, count, format, bytes: body, at: 0 })
    }

    pub fn body(&self) -> &[u8] {
        &self.bytes[self.at..]
    }

    /// Appends the row to `out` as it is stored, in the format that it is in: for another engine to keep.
    pub fn put(&self, out: &mut Vec<u8>) {
        put_row(self.format, self.key, &LogRow { count: self.count, body: self.body() }, out);
    }

    /// Tells it from a row that another history has in its place.
    pub fn identity(&self) -> RowIdentity {
        RowIdentity { key: self.key, count: self.count, checksum: crc32fast::hash(self.body()) }
    }

    /// The sequence number behind its last event.
    pub const fn next(&self) -> Seq {
        Seq(self.key.first.0.saturating_add(self.count as u64))
    }

    /// The number of its events that have this sequence number or a higher one.
    pub(crate) fn events_from(&self, from: Seq) -> usize {
        usize::try_from(self.next().0.saturating_sub(from.0.max(self.key.first.0))).unwrap_or(usize::MAX)
    }

    /// The row, if it belongs where it was found.
    pub(crate) fn at(self, stored_at: Seq) -> Result<Self, Error> {
        if self.key.first == stored_at && self.count > 0 {
            return Ok(self);
        }
        Err(Error::Corrupt { what: format!("the row at {} is not the batch that belongs there", stored_at.0) })
    }
}

pub(crate) fn framed(out: &mut Vec<u8>, body: impl FnOnce(&mut Vec<u8>)) {
    framed_as(KNOWN, out, body);
}

fn framed_as(format: u8, out: &mut Vec<u8>, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[format, 0, 0, 0, 0]);
    body(out);
    let crc = crc32fast::hash(&out[start + PREFIX..]);
    out[start + 1..start + PREFIX].copy_from_slice(&crc.to_le_bytes());
}

/// The format, and what stands behind the prefix.
pub(crate) fn unframe(row: &[u8]) -> Result<(u8, &[u8]), DecodeError> {
    let Some((&version, rest)) = row.split_first() else { return Err(DecodeError::Corrupt("an empty row")) };
    known(version)?;
    let Some((crc, bytes)) = rest.split_first_chunk::<4>() else {
        return Err(DecodeError::Corrupt("a row that is cut off"));
    };
    if u32::from_le_bytes(*crc) != crc32fast::hash(bytes) {
        return Err(DecodeError::Corrupt("the checksum does not match"));
    }
    Ok((version, bytes))
}

const fn known(version: u8) -> Result<(), DecodeError> {
    match version {
        0 => Err(DecodeError::Corrupt("format 0 never was")),
        1..=KNOWN => Ok(()),
        found => Err(DecodeError::NewerFormat { found, known: KNOWN }),
    }
}

pub(crate) fn put_number(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Seven bits a byte, lowest first; the top bit says that more follow.
pub(crate) fn take_number(from: &mut &[u8]) -> Result<u64, DecodeError> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = from.split_first().ok_or(CUT_OFF)?;
        *from = rest;
        let bits = u64::from(byte & 0x7f);
        if bits << shift >> shift != bits {
            break;
        }
        number |= bits << shift;
        if byte < 0x80 {
            return Ok(number);
        }
    }
    Err(DecodeError::Corrupt("a number above 64 bits"))
}
