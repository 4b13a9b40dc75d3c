//! What lies in the journal, as bytes and nothing else.
//!
//! ```text
//! half  = header, entry, entry, …, mark, what was there before
//! header: magic · format · id of the log · length of a half · generation · first · CRC-32 │ note
//! note:   length of the file · last event · CRC-32: this long it was and this far it reached, at least
//! entry:  length · events · first · generation · link · CRC-32 of the row · CRC-32 of these fields │ row
//! mark:   an entry without a row: all events before its `first` were synced
//! ```
//!
//! The *link* of an entry is the checksum of the one before it, or of the header. So an entry counts only behind the
//! very one that it was written behind, and what an earlier generation left, or a write that was torn, is never taken
//! for one. Reading trusts nothing: whatever the bytes are, what comes out is what was written, up to some entry.
//!
//! **A torn end, or damage.** One write is on its way at a time. So an entry, or a mark, proves that everything before it
//! was synced, and each can be recognized by itself, wherever it lies: its checksum begins with the id of the log, which
//! no payload knows. If something cannot be read and such a *witness* is found behind it, that was no loss of power. So
//! it is if the file is shorter or ends earlier than the note at its beginning says. Mark and note are written after
//! the sync of what they speak of, and are not synced themselves: they reach the disk with the next entry, or when the
//! system pleases. The newest entry may therefore have no witness yet, if power was lost soon after it; then its
//! loss cannot be told from a write that was torn.
//!
//! Format 1 had no marks, and entries that could be checked only behind their predecessors. It is read, and not written.

use crate::Error;

pub(super) const HEADER: usize = 72;
pub(super) const ENTRY: usize = 36;
/// Where the note is in a header. That of the first half counts.
pub(super) const NOTE_AT: usize = 48;

const MAGIC: [u8; 8] = *b"onwardjl";
const KNOWN: u32 = 2;
/// The length of a note.
const NOTE: usize = 20;
/// Of the fields of a header before its checksum.
const HEADER_FIELDS: usize = 44;
/// Of the fields of an entry before their checksum.
const ENTRY_FIELDS: usize = ENTRY - 4;
/// A generation that is further ahead was never begun.
const GENERATIONS_AHEAD: u64 = 1 << 32;

#[path = "format_1.rs"]
mod format_1;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Format {
    One,
    Two,
}

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
    pub(super) format: Format,
    pub(super) header: Header,
    pub(super) spans: Vec<Span>,
    /// Where the next entry goes, and what it links to.
    pub(super) end: usize,
    pub(super) chain: u32,
    /// The last event that was certainly synced, by the spans and by witnesses behind them.
    pub(super) synced: u64,
}

/// How long the file was for certain, and the last event that was synced.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Note {
    pub(super) length: u64,
    pub(super) synced: u64,
}

/// Appends a header to `out`, and gives what the first entry links to.
pub(super) fn put_header(header: &Header, note: Note, out: &mut Vec<u8>) -> u32 {
    let start = out.len();
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&KNOWN.to_le_bytes());
    for number in [header.log, header.half_bytes, header.generation, header.first] {
        out.extend_from_slice(&number.to_le_bytes());
    }
    let crc = crc32fast::hash(&out[start..]);
    out.extend_from_slice(&crc.to_le_bytes());
    put_note(header.log, note, out);
    out.resize(start + HEADER, 0);
    crc
}

pub(super) fn put_note(log: u64, note: Note, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(&note.length.to_le_bytes());
    out.extend_from_slice(&note.synced.to_le_bytes());
    let crc = seeded(log, &out[start..]);
    out.extend_from_slice(&crc.to_le_bytes());
}

/// `None` if it is damaged.
pub(super) fn note(header: &[u8], log: u64) -> Option<Note> {
    let bytes = header.get(NOTE_AT..NOTE_AT + NOTE)?;
    let (fields, crc) = (&bytes[..NOTE - 4], number32(bytes, NOTE - 4));
    let note = Note { length: number64(fields, 0), synced: number64(fields, 8) };
    (crc == seeded(log, fields)).then_some(note)
}

/// What an entry is written with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) log: u64,
    pub(super) generation: u64,
    /// The checksum before it.
    pub(super) link: u32,
    pub(super) first: u64,
}

/// Appends an entry to `out`, and gives what the next one links to.
pub(super) fn put_entry(place: &Place, events: u32, row: &[u8], out: &mut Vec<u8>) -> u32 {
    let start = out.len();
    out.extend_from_slice(&(row.len() as u32).to_le_bytes());
    out.extend_from_slice(&events.to_le_bytes());
    out.extend_from_slice(&place.first.to_le_bytes());
    out.extend_from_slice(&place.generation.to_le_bytes());
    out.extend_from_slice(&place.link.to_le_bytes());
    out.extend_from_slice(&crc32fast::hash(row).to_le_bytes());
    let crc = seeded(place.log, &out[start..]);
    out.extend_from_slice(&crc.to_le_bytes());
    out.extend_from_slice(row);
    crc
}

pub(super) fn put_mark(place: &Place, out: &mut Vec<u8>) {
    put_entry(place, 0, &[], out);
}

fn seeded(log: u64, bytes: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&log.to_le_bytes());
    crc.update(bytes);
    crc.finalize()
}

/// `None` for a half that was never begun.
pub(super) fn header(half: &[u8]) -> Result<Option<(Format, Header, u32)>, Error> {
    let zeros = half.iter().take(HEADER).all(|byte| *byte == 0);
    let Some(bytes) = half.get(..NOTE_AT).filter(|_| !zeros) else { return Ok(None) };
    let crc = number32(bytes, HEADER_FIELDS);
    if bytes[..8] != MAGIC || crc != crc32fast::hash(&bytes[..HEADER_FIELDS]) {
        return Err(Error::Corrupt { what: "onward.journal does not begin as a journal does".to_owned() });
    }
    let format = match number32(bytes, 8) {
        1 => Format::One,
        KNOWN => Format::Two,
        format => {
            let found = u8::try_from(format).unwrap_or(u8::MAX);
            return Err(Error::NewerFormat { found, known: KNOWN as u8 });
        }
    };
    let [log, half_bytes, generation, first] = [12, 20, 28, 36].map(|at| number64(bytes, at));
    Ok(Some((format, Header { log, half_bytes, generation, first }, crc)))
}

/// Everything up to the first entry that is torn, damaged, of another generation or out of sequence.
pub(super) fn scan(half: &[u8]) -> Result<Option<Found>, Error> {
    let Some((format, header, chain)) = header(half)? else { return Ok(None) };
    if format == Format::One {
        return Ok(Some(format_1::scan(half, header, chain)));
    }
    let last = header.first.saturating_sub(1);
    let mut found = Found { format, header, spans: Vec::new(), end: HEADER, chain, synced: last };
    let mut next = header.first;
    while let Some(entry) = Entry::at(half, found.end, header.log) {
        let follows = entry.generation == header.generation && entry.link == found.chain && entry.first == next;
        let Some(row) = entry.row.filter(|row| follows && !row.is_empty() && entry.events > 0) else { break };
        let span = Span { first: next, events: entry.events, at: found.end + ENTRY, length: row.len() };
        (next, found.end, found.chain) = (span.next(), span.at + span.length, entry.crc);
        found.spans.push(span);
    }
    found.synced = witness(half, found.end, header.log, header.generation).max(next.saturating_sub(1));
    Ok(Some(found))
}

/// The last event that was certainly synced, by entries and marks of this generation or a later one from `from` on,
/// wherever they lie; 0 if there are none. Those of earlier generations are what was there before.
pub(super) fn witness(half: &[u8], from: usize, log: u64, generation: u64) -> u64 {
    let mut synced = 0;
    for (at, fields) in (from..).zip(half.get(from..).unwrap_or_default().windows(ENTRY)) {
        // Nearly all that is not an entry ends here.
        if number64(fields, 16).wrapping_sub(generation) >= GENERATIONS_AHEAD {
            continue;
        }
        if let Some(entry) = Entry::at(half, at, log) {
            let events = if entry.row.is_some() { u64::from(entry.events) } else { 0 };
            synced = synced.max(entry.first.saturating_add(events).saturating_sub(1));
        }
    }
    synced
}

/// Fields whose checksum is right, and the row if it is whole.
struct Entry<'a> {
    events: u32,
    first: u64,
    generation: u64,
    link: u32,
    crc: u32,
    row: Option<&'a [u8]>,
}

impl<'a> Entry<'a> {
    fn at(half: &'a [u8], at: usize, log: u64) -> Option<Self> {
        let (fields, rest) = half.get(at..)?.split_at_checked(ENTRY)?;
        let crc = number32(fields, ENTRY_FIELDS);
        if crc != seeded(log, &fields[..ENTRY_FIELDS]) {
            return None;
        }
        let row = usize::try_from(number32(fields, 0)).ok().and_then(|length| rest.get(..length));
        let row = row.filter(|row| crc32fast::hash(row) == number32(fields, 28));
        let (events, first, generation) = (number32(fields, 4), number64(fields, 8), number64(fields, 16));
        Some(Self { events, first, generation, link: number32(fields, 24), crc, row })
    }
}

fn number32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(*bytes[at..].first_chunk().expect(FIELDS))
}

fn number64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(*bytes[at..].first_chunk().expect(FIELDS))
}

const FIELDS: &str = "as many bytes as there are fields";

#[cfg(test)]
#[path = "format_tests.rs"]
mod tests;
