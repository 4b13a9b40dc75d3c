//! Format 1 of the journal, for reading.
//!
//! ```text
//! header: magic · format · id of the log · length of a half · generation · first · CRC-32
//! entry:  length · events · first · generation · CRC-32 │ row
//! ```
//!
//! The checksum of an entry is over the checksum before it, its fields and its row. So two entries, one behind the other,
//! are needed for a witness.

use super::{HalfContent, Header, JournalFormat, RowSpan, number32, number64};

const HEADER: usize = 48;
const ENTRY: usize = 28;

pub(super) fn scan(half: &[u8], header: Header, chain: u32) -> HalfContent {
    let (spans, last) = (Vec::new(), header.first.saturating_sub(1));
    let mut found = HalfContent { format: JournalFormat::One, header, spans, end: HEADER, chain, synced: last };
    let mut next = header.first;
    while let Some(entry) = Entry::at(half, found.end).filter(|entry| entry.is_of(&header) && entry.first == next) {
        if !entry.is_whole(found.chain) {
            break;
        }
        let span = RowSpan { first: next, events: entry.events, at: found.end + ENTRY, length: entry.row.len() };
        (next, found.end, found.chain) = (span.next(), span.at + span.length, entry.crc);
        found.spans.push(span);
    }
    found.synced = next.saturating_sub(1);
    for at in found.end..half.len().saturating_sub(ENTRY - 1) {
        if number64(half, at + 16) == header.generation
            && let Some(entry) = Entry::at(half, at).filter(|entry| entry.first >= next && entry.is_of(&header))
            && let Some(behind) = Entry::at(half, at + ENTRY + entry.row.len())
            && behind.first == entry.first.saturating_add(u64::from(entry.events))
            && behind.is_of(&header)
            && behind.is_whole(entry.crc)
        {
            found.synced = found.synced.max(behind.first.saturating_add(u64::from(behind.events)) - 1);
        }
    }
    found
}

struct Entry<'a> {
    fields: &'a [u8],
    events: u32,
    first: u64,
    generation: u64,
    crc: u32,
    row: &'a [u8],
}

impl<'a> Entry<'a> {
    /// The entry at this place, if there is room for the length that it claims.
    fn at(half: &'a [u8], at: usize) -> Option<Self> {
        let (fields, rest) = half.get(at..)?.split_at_checked(ENTRY)?;
        let length = usize::try_from(number32(fields, 0)).ok()?;
        let row = rest.get(..length).filter(|row| !row.is_empty())?;
        let (events, first, generation) = (number32(fields, 4), number64(fields, 8), number64(fields, 16));
        Some(Self { fields: &fields[..ENTRY - 4], events, first, generation, crc: number32(fields, 24), row })
    }

    fn is_of(&self, header: &Header) -> bool {
        self.generation == header.generation && self.events > 0
    }

    fn is_whole(&self, chain: u32) -> bool {
        let mut crc = crc32fast::Hasher::new();
        crc.update(&chain.to_le_bytes());
        crc.update(self.fields);
        crc.update(self.row);
        self.crc == crc.finalize()
    }
}
