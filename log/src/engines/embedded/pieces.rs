//! How a blob lies in the file: a row in a small table that says its length and checksum, and its content in pieces.
//!
//! redb gives a value that is larger than a page a run of pages of its own, rounded up to a power of two: 1 MiB and a
//! few bytes would take 2 MiB. So a piece fills such a run to the brim, and the next, smaller one takes the rest.
//! Listing what is there reads the small table only.

use core::ops::RangeInclusive;

use ::redb::{Key, ReadableTable, Table, Value};

use crate::{Blob, Error};

use super::fault::StoreFault;

/// Length and CRC-32 of a blob.
pub(crate) type BlobLabel = (u64, u32);

const PAGE: usize = 4096;
/// The largest order of a piece: at most 64 KiB.
const MAX_ORDER: usize = 4;
/// Bytes for the key, and for redb's own words about a run of pages.
const OVERHEAD: usize = 96;

/// The key by which a blob's label and pieces are found. `'static` stands for a key type of redb.
pub(crate) trait PieceKey: Copy {
    type Label: Key + 'static;
    type Piece: Key + 'static;
    fn label(&self) -> <Self::Label as Value>::SelfType<'_>;
    fn piece(&self, index: u32) -> <Self::Piece as Value>::SelfType<'_>;
    fn of_label(label: <Self::Label as Value>::SelfType<'_>) -> Self;
    fn of_piece(piece: <Self::Piece as Value>::SelfType<'_>) -> Self;
}

/// The place of a blob in the log: its digest alone.
impl PieceKey for [u8; 32] {
    type Label = &'static [u8; 32];
    type Piece = (&'static [u8; 32], u32);
    fn label(&self) -> &[u8; 32] {
        self
    }
    fn piece(&self, index: u32) -> (&[u8; 32], u32) {
        (self, index)
    }
    fn of_label(digest: &[u8; 32]) -> Self {
        *digest
    }
    fn of_piece((digest, _): (&[u8; 32], u32)) -> Self {
        *digest
    }
}

/// The place of a blob in the archive: its job too, with which it goes.
impl PieceKey for (u128, [u8; 32]) {
    type Label = (u128, &'static [u8; 32]);
    type Piece = (u128, &'static [u8; 32], u32);
    fn label(&self) -> (u128, &[u8; 32]) {
        (self.0, &self.1)
    }
    fn piece(&self, index: u32) -> (u128, &[u8; 32], u32) {
        (self.0, &self.1, index)
    }
    fn of_label((job, digest): (u128, &[u8; 32])) -> Self {
        (job, *digest)
    }
    fn of_piece((job, digest, _): (u128, &[u8; 32], u32)) -> Self {
        (job, *digest)
    }
}

fn lengths(mut rest: usize) -> impl Iterator<Item = usize> {
    core::iter::from_fn(move || {
        let fits = |order: &usize| (PAGE << order) - OVERHEAD <= rest;
        let piece = (0..=MAX_ORDER).rev().find(fits).map_or(rest, |order| (PAGE << order) - OVERHEAD);
        rest -= piece;
        (piece > 0).then_some(piece)
    })
}

/// Far more than anybody sends. A label that says more is damaged, and must not keep us counting.
const MAX_BYTES: u64 = 1 << 32;

fn checked(length: u64) -> Result<usize, StoreFault> {
    usize::try_from(length).ok().filter(|_| length <= MAX_BYTES).ok_or_else(damaged)
}

fn indices(length: usize) -> RangeInclusive<u32> {
    // An empty blob has no piece: 1..=0 is an empty range.
    1..=lengths(length).count() as u32
}

/// Puts a blob. One that is there already is left as it is: under one digest there is one content.
pub(crate) fn put<P: PieceKey>(
    labels: &mut Table<'_, P::Label, BlobLabel>,
    pieces: &mut Table<'_, P::Piece, &'static [u8]>,
    place: P,
    blob: &Blob<'_>,
) -> Result<(), StoreFault> {
    if labels.get(place.label())?.is_some() {
        return Ok(());
    }
    labels.insert(place.label(), (blob.bytes.len() as u64, crc32fast::hash(blob.bytes)))?;
    let mut rest = blob.bytes;
    for (index, length) in indices(rest.len()).zip(lengths(rest.len())) {
        let (piece, after) = rest.split_at(length);
        pieces.insert(place.piece(index), piece)?;
        rest = after;
    }
    Ok(())
}

pub(crate) fn get<P: PieceKey>(
    labels: &impl ReadableTable<P::Label, BlobLabel>,
    pieces: &impl ReadableTable<P::Piece, &'static [u8]>,
    place: P,
) -> Result<Option<Vec<u8>>, StoreFault> {
    let Some(label) = labels.get(place.label())? else { return Ok(None) };
    let (length, crc) = label.value();
    let length = checked(length)?;
    let mut bytes = Vec::new();
    for index in indices(length) {
        bytes.extend_from_slice(pieces.get(place.piece(index))?.ok_or_else(damaged)?.value());
    }
    if bytes.len() == length && crc32fast::hash(&bytes) == crc { Ok(Some(bytes)) } else { Err(damaged()) }
}

/// Removes a blob. Gives whether it was there.
pub(crate) fn remove<P: PieceKey>(
    labels: &mut Table<'_, P::Label, BlobLabel>,
    pieces: &mut Table<'_, P::Piece, &'static [u8]>,
    place: P,
) -> Result<bool, StoreFault> {
    let Some(length) = labels.remove(place.label())?.map(|label| label.value().0) else { return Ok(false) };
    for index in indices(checked(length)?) {
        pieces.remove(place.piece(index))?;
    }
    Ok(true)
}

/// Whether blobs are whole, told by their pieces as these come in the order of their table.
pub(crate) struct Inspection<'a, P, L> {
    labels: &'a L,
    /// The blob whose pieces come, how long they are so far, and their checksum.
    current: Option<(P, u64, crc32fast::Hasher)>,
    /// The number of blobs with a label that had pieces.
    seen: u64,
    damaged: Vec<P>,
}

impl<'a, P: PieceKey + PartialEq, L: ReadableTable<P::Label, BlobLabel>> Inspection<'a, P, L> {
    pub(crate) const fn new(labels: &'a L) -> Self {
        Self { labels, current: None, seen: 0, damaged: Vec::new() }
    }

    pub(crate) fn piece(&mut self, place: P, bytes: &[u8]) -> Result<(), StoreFault> {
        if self.current.as_ref().is_none_or(|(current, ..)| *current != place) {
            self.end()?;
        }
        let (_, length, crc) = self.current.get_or_insert_with(|| (place, 0, crc32fast::Hasher::new()));
        *length += bytes.len() as u64;
        crc.update(bytes);
        Ok(())
    }

    fn end(&mut self) -> Result<(), StoreFault> {
        let Some((place, length, crc)) = self.current.take() else { return Ok(()) };
        let label = self.labels.get(place.label())?.map(|label| label.value());
        self.seen += u64::from(label.is_some());
        // Without a label it is not found any more.
        if label != Some((length, crc.finalize())) {
            self.damaged.push(place);
        }
        Ok(())
    }

    /// All blobs that are not whole, those without any piece included.
    pub(crate) fn finish(mut self, pieces: &impl ReadableTable<P::Piece, &'static [u8]>) -> Result<Vec<P>, StoreFault> {
        self.end()?;
        if self.seen < self.labels.len()? {
            for label in self.labels.iter()? {
                let (key, label) = label?;
                let place = P::of_label(key.value());
                if label.value().0 > 0 && pieces.get(place.piece(1))?.is_none() {
                    self.damaged.push(place);
                }
            }
        }
        Ok(self.damaged)
    }
}

fn damaged() -> StoreFault {
    Error::Corrupt { what: "a blob is not whole".to_owned() }.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_make_up_the_whole_and_fill_their_pages() {
        for length in [0, 1, 4000, 4001, 5000, 65_440, 65_441, 1 << 20, (1 << 20) + 1, 3_333_333] {
            let all: Vec<usize> = lengths(length).collect();
            assert_eq!(all.iter().sum::<usize>(), length);
            let taken: usize = all.iter().map(|piece| (piece + OVERHEAD).next_power_of_two().max(PAGE)).sum();
            assert!(taken <= length + PAGE + all.len() * OVERHEAD, "{length} bytes take {taken}");
            assert!(all.len() <= length.div_ceil((PAGE << MAX_ORDER) - OVERHEAD) + MAX_ORDER + 1);
        }
    }
}
