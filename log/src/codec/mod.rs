//! How a batch is stored: one row, in bytes that outlive the program that wrote them.
//!
//! ```text
//! ┌─────────┬──────────────┬────────────────────────────────────────────────────┐
//! │ version │ CRC-32 (LE)  │ term · batch id · first · count · events           │
//! │ 1 byte  │ of the rest  │ as that version says: [`v2`]                       │
//! └─────────┴──────────────┴────────────────────────────────────────────────────┘
//! ```
//!
//! The version comes first and stays there in every format to come, so that an older program refuses a newer row by
//! name instead of misreading it. Every version that was ever released stays readable; each has a golden file in
//! `tests/golden`, and a change to what a version writes turns that test red.
//!
//! **Growing.** Within format 2 records gain fields and lists gain variants. Behind a checksum that matches, a number
//! that is not known was written by a newer version ([`DecodeError::NewerVersion`]), which is no damage: nothing is lost,
//! and a newer program reads it. What is written is always format 2; rows of format 1 are replaced with the next
//! snapshot, or stay as they are in the archive.
//!
//! Decoding trusts nothing. Whatever the bytes are, the answer is a batch or an error, and memory is never taken on
//! the word of a count.

mod bytes;
#[macro_use]
mod tail;
mod v2;

use onward_core::event::StampedEvent;
use onward_core::manager::SnapshotRecord;
use onward_core::state::JobImage;

use bytes::{Reader, Stored as _};

use crate::Batch;
use crate::head::BatchKey;

/// The newest format that this program reads, and the one that it writes.
pub const KNOWN: u8 = 2;

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
}

const PREFIX: usize = 5;

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

/// Appends the row to `out`, straight from the events.
pub fn encode(key: BatchKey, events: &[StampedEvent], out: &mut Vec<u8>) {
    framed(out, |out| v2::put_batch(key, events, out));
}

pub fn decode(row: &[u8]) -> Result<Batch, DecodeError> {
    v2::get_batch(unframe(row)?)
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

fn framed(out: &mut Vec<u8>, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[KNOWN, 0, 0, 0, 0]);
    body(out);
    let crc = crc32fast::hash(&out[start + PREFIX..]);
    out[start + 1..start + PREFIX].copy_from_slice(&crc.to_le_bytes());
}

fn unframe(row: &[u8]) -> Result<Reader<'_>, DecodeError> {
    let Some((&version, rest)) = row.split_first() else { return Err(DecodeError::Corrupt("an empty row")) };
    let format = match version {
        0 => return Err(DecodeError::Corrupt("format 0 never was")),
        1 => Format::One,
        2 => Format::Two,
        found => return Err(DecodeError::NewerFormat { found, known: KNOWN }),
    };
    let Some((crc, bytes)) = rest.split_first_chunk::<4>() else {
        return Err(DecodeError::Corrupt("a row that is cut off"));
    };
    if u32::from_le_bytes(*crc) != crc32fast::hash(bytes) {
        return Err(DecodeError::Corrupt("the checksum does not match"));
    }
    Ok(Reader { bytes, format })
}
