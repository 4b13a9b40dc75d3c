//! What lies in the journal, as bytes and nothing else.
//!
//! ```text
//! half  = header, entry, entry, …, what was there before
//! header: magic · format · id of the log · length of a half · generation · first · CRC-32
//! entry:  length · events · first · generation · CRC-32 · row
//! ```
//!
//! The checksum of an entry is over the checksum before it, too: of the entry before, or of the header. So an entry
//! counts only behind the very one that it was written behind, and what an earlier generation left, or a write that
//! was torn, is never taken for one. Reading trusts nothing: whatever the bytes are, what comes out is what was
//! written, up to some entry.

use crate::Error;

pub(super) const HEADER: usize = 48;
pub(super) const ENTRY: usize = 28;

const MAGIC: [u8; 8] = *b"onwardjl";
const KNOWN: u32 = 1;

/// What a half says of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Header {
    /// Of the log that it belongs to.
    pub(super) log: u64,
    pub(super) half_bytes: u64,
    /// Rises with every half that is begun.
    pub(super) generation: u64,
    /// The first event in it.
    pub(super) first: u64,
}

/// Where a row lies in its half.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Span {
    pub(super) first: u64,
    pub(super) events: u32,
    /// Of the row's bytes.
    pub(super) at: usize,
    pub(super) length: usize,
}

impl Span {
    /// The sequence number after its last event.
    pub(super) const fn next(&self) -> u64 {
        self.first.saturating_add(self.events as u64)
    }
}

/// What was found in a half.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Found {
    pub(super) header: Header,
    pub(super) spans: Vec<Span>,
    /// Where the next entry goes, and what its checksum goes on from.
    pub(super) end: usize,
    pub(super) chain: u32,
    /// The first event of an entry that is damaged though a whole one lies behind it. One write is on its way at a time,
    /// so no loss of power does that to the newest half; but to one that was begun again above what it held, it does.
    pub(super) damaged: Option<u64>,
}

/// Appends a header to `out`, and gives what the checksum of the first entry goes on from.
pub(super) fn put_header(header: &Header, out: &mut Vec<u8>) -> u32 {
    let start = out.len();
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&KNOWN.to_le_bytes());
    for number in [header.log, header.half_bytes, header.generation, header.first] {
        out.extend_from_slice(&number.to_le_bytes());
    }
    let crc = crc32fast::hash(&out[start..]);
    out.extend_from_slice(&crc.to_le_bytes());
    crc
}

/// Appends an entry to `out`, and gives what the checksum of the next one goes on from.
pub(super) fn put_entry(generation: u64, chain: u32, first: u64, events: u32, row: &[u8], out: &mut Vec<u8>) -> u32 {
    let start = out.len();
    out.extend_from_slice(&(row.len() as u32).to_le_bytes());
    out.extend_from_slice(&events.to_le_bytes());
    out.extend_from_slice(&first.to_le_bytes());
    out.extend_from_slice(&generation.to_le_bytes());
    let crc = checksum(chain, &out[start..], row);
    out.extend_from_slice(&crc.to_le_bytes());
    out.extend_from_slice(row);
    crc
}

fn checksum(chain: u32, fields: &[u8], row: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&chain.to_le_bytes());
    crc.update(fields);
    crc.update(row);
    crc.finalize()
}

/// `None` for a half that was never begun.
pub(super) fn header(half: &[u8]) -> Result<Option<(Header, u32)>, Error> {
    let Some(bytes) = half.get(..HEADER).filter(|bytes| bytes.iter().any(|byte| *byte != 0)) else { return Ok(None) };
    let (fields, crc) = (&bytes[..HEADER - 4], number32(bytes, HEADER - 4));
    if bytes[..8] != MAGIC || crc != crc32fast::hash(fields) {
        return Err(Error::Corrupt { what: "onward.journal does not begin as a journal does".to_owned() });
    }
    let format = number32(bytes, 8);
    if format != KNOWN {
        let found = u8::try_from(format).unwrap_or(u8::MAX);
        return Err(Error::NewerFormat { found, known: KNOWN as u8 });
    }
    let [log, half_bytes, generation, first] = [12, 20, 28, 36].map(|at| number64(bytes, at));
    Ok(Some((Header { log, half_bytes, generation, first }, crc)))
}

/// Everything up to the first entry that is torn, of another generation or out of sequence.
pub(super) fn scan(half: &[u8]) -> Result<Option<Found>, Error> {
    let Some((header, mut chain)) = header(half)? else { return Ok(None) };
    let (mut spans, mut end, mut next, mut damaged) = (Vec::new(), HEADER, header.first, None);
    while let Some(entry) = Entry::at(half, end).filter(|entry| entry.follows(&header, next)) {
        let span = entry.span(end);
        if !entry.is_whole(chain) {
            let behind = Entry::at(half, span.at + span.length).filter(|behind| behind.follows(&header, span.next()));
            damaged = behind.is_some_and(|behind| behind.is_whole(entry.crc)).then_some(next);
            break;
        }
        (chain, next, end) = (entry.crc, span.next(), span.at + span.length);
        spans.push(span);
    }
    Ok(Some(Found { header, spans, end, chain, damaged }))
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
    /// If there is room for what it claims to be.
    fn at(half: &'a [u8], at: usize) -> Option<Self> {
        let (fields, rest) = half.get(at..)?.split_at_checked(ENTRY)?;
        let length = usize::try_from(number32(fields, 0)).ok()?;
        let row = rest.get(..length).filter(|row| !row.is_empty())?;
        let (events, first, generation) = (number32(fields, 4), number64(fields, 8), number64(fields, 16));
        Some(Self { fields: &fields[..ENTRY - 4], events, first, generation, crc: number32(fields, 24), row })
    }

    fn follows(&self, header: &Header, next: u64) -> bool {
        self.generation == header.generation && self.first == next && self.events > 0
    }

    fn is_whole(&self, chain: u32) -> bool {
        self.crc == checksum(chain, self.fields, self.row)
    }

    fn span(&self, at: usize) -> Span {
        Span { first: self.first, events: self.events, at: at + ENTRY, length: self.row.len() }
    }
}

fn number32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(core::array::from_fn(|n| bytes[at + n]))
}

fn number64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(core::array::from_fn(|n| bytes[at + n]))
}

#[cfg(test)]
#[path = "format_tests.rs"]
mod tests;
