//! The format of the journal, as bytes and nothing else.
//!
//! ```text
//! half  = head, entry, entry, …, mark, what was there before
//! head:   slot, slot
//! slot:   header │ note
//! header: magic · format · id of the log · length of a half · generation · first · CRC-32
//! note:   length of the file · last event · CRC-32: this long it was and this far it reached, at least
//! entry:  length · events · first · generation · link · CRC-32 of the row · CRC-32 of these fields │ row
//! mark:   an entry without a row: all events before its `first` were synced
//! ```
//!
//! **Two slots.** The header with the higher generation is that of the half, and the next one is written over the other;
//! notes take turns as well. One of the two is on its way to the disk at a time, so that a write may be torn between any
//! two bytes: what it was to replace is still there, whole.
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
//! loss cannot be told from a write that was torn. The first entry of a half is written together with the header and is
//! no witness of itself: it may be whole where the header is torn.
//!
//! Format 2 had one slot, and format 1 neither notes nor marks, and entries that could be checked only behind their
//! predecessors. They are read, and not written.

use crate::Error;

/// Length of a head.
pub(super) const HEAD: usize = 2 * SLOT;
pub(super) const ENTRY: usize = 36;

const SLOT: usize = 72;
/// The place of the note in a slot. Notes of the first half count.
const NOTE_AT: usize = 48;

const MAGIC: [u8; 8] = *b"onwardjl";
const KNOWN: u32 = 3;
/// The length of a note.
const NOTE: usize = 20;
/// The length of the fields of a header before its checksum.
const HEADER_FIELDS: usize = 44;
/// The length of the fields of an entry before their checksum.
const ENTRY_FIELDS: usize = ENTRY - 4;
/// A generation that is further ahead was never begun.
const GENERATIONS_AHEAD: u64 = 1 << 32;

#[path = "format_1.rs"]
mod format_1;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum JournalFormat {
    One,
    Two,
    Three,
}

/// The header of a half.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Header {
    /// The number of the log that it belongs to.
    pub(super) log: u64,
    pub(super) half_bytes: u64,
    /// Rises with every half that is begun.
    pub(super) generation: u64,
    /// The first event in it.
    pub(super) first: u64,
}

/// The place of a row in its half.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct RowSpan {
    pub(super) first: u64,
    pub(super) events: u32,
    /// The place of the row's bytes.
    pub(super) at: usize,
    pub(super) length: usize,
}

impl RowSpan {
    /// The sequence number after its last event.
    pub(super) const fn next(&self) -> u64 {
        self.first.saturating_add(self.events as u64)
    }
}

/// The findings in a half.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct HalfContent {
    pub(super) format: JournalFormat,
    pub(super) header: Header,
    pub(super) spans: Vec<RowSpan>,
    /// The place of the next entry; below, the checksum that it links to.
    pub(super) end: usize,
    pub(super) chain: u32,
    /// The last event that was certainly synced, by the spans and by witnesses behind them.
    pub(super) synced: u64,
}

/// The length that the file had for certain, and the last event that was synced.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Note {
    pub(super) length: u64,
    pub(super) synced: u64,
}

/// The beginning of a half, as it is on the disk or on its way there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct HalfHead([u8; HEAD]);

impl HalfHead {
    pub(super) const EMPTY: Self = Self([0; HEAD]);

    /// The head of a half of which at least a part is there.
    pub(super) fn of(half: &[u8]) -> Self {
        let mut head = [0; HEAD];
        let length = half.len().min(HEAD);
        head[..length].copy_from_slice(&half[..length]);
        Self(head)
    }

    pub(super) const fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Puts a header of a higher generation beside the one that counts now, and gives what the first entry links to.
    pub(super) fn put_header(&mut self, header: &Header) -> u32 {
        let kept = newest_slot(&self.0).ok().flatten().map_or(1, |(slot, _)| slot);
        let slot = &mut self.0[(1 - kept) * SLOT..][..SLOT];
        slot[..8].copy_from_slice(&MAGIC);
        slot[8..12].copy_from_slice(&KNOWN.to_le_bytes());
        let numbers = [header.log, header.half_bytes, header.generation, header.first];
        for (at, number) in (12..).step_by(8).zip(numbers) {
            slot[at..at + 8].copy_from_slice(&number.to_le_bytes());
        }
        let crc = crc32fast::hash(&slot[..HEADER_FIELDS]);
        slot[HEADER_FIELDS..NOTE_AT].copy_from_slice(&crc.to_le_bytes());
        if note_of(slot, header.log).is_none() {
            put_note(slot, header.log, Note::default());
        }
        crc
    }

    /// Puts a note into a slot; gives where it lies, and its bytes.
    pub(super) fn put_note(&mut self, slot: usize, log: u64, note: Note) -> (u64, &[u8]) {
        let at = slot * SLOT + NOTE_AT;
        put_note(&mut self.0[slot * SLOT..], log, note);
        (at as u64, &self.0[at..at + NOTE])
    }

    /// The sum of both notes, and the slot with the newer one. `None` if both are damaged.
    pub(super) fn note(&self, log: u64) -> Option<(usize, Note)> {
        match [0, 1].map(|slot| note_of(&self.0[slot * SLOT..], log)) {
            [None, None] => None,
            [Some(note), None] => Some((0, note)),
            [None, Some(note)] => Some((1, note)),
            [Some(one), Some(other)] => {
                let note = Note { length: one.length.max(other.length), synced: one.synced.max(other.synced) };
                Some((usize::from(other.synced > one.synced), note))
            }
        }
    }
}

fn put_note(slot: &mut [u8], log: u64, note: Note) {
    let bytes = &mut slot[NOTE_AT..NOTE_AT + NOTE];
    bytes[..8].copy_from_slice(&note.length.to_le_bytes());
    bytes[8..16].copy_from_slice(&note.synced.to_le_bytes());
    let crc = seeded(log, &bytes[..NOTE - 4]);
    bytes[NOTE - 4..].copy_from_slice(&crc.to_le_bytes());
}

/// `None` if it is damaged.
fn note_of(slot: &[u8], log: u64) -> Option<Note> {
    let bytes = &slot[NOTE_AT..NOTE_AT + NOTE];
    let (fields, crc) = (&bytes[..NOTE - 4], number32(bytes, NOTE - 4));
    let note = Note { length: number64(fields, 0), synced: number64(fields, 8) };
    (crc == seeded(log, fields)).then_some(note)
}

/// The place for which an entry is written.
#[derive(Clone, Copy, Debug)]
pub(super) struct EntryPlace {
    pub(super) log: u64,
    pub(super) generation: u64,
    /// The checksum before it.
    pub(super) link: u32,
    pub(super) first: u64,
}

/// Appends an entry to `out`, and gives what the next one links to.
pub(super) fn put_entry(place: &EntryPlace, events: u32, row: &[u8], out: &mut Vec<u8>) -> u32 {
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

pub(super) fn put_mark(place: &EntryPlace, out: &mut Vec<u8>) {
    put_entry(place, 0, &[], out);
}

fn seeded(log: u64, bytes: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&log.to_le_bytes());
    crc.update(bytes);
    crc.finalize()
}

/// A header, the format that it is written in, and its checksum.
type FoundHeader = (JournalFormat, Header, u32);

/// `None` for a half that was never begun.
pub(super) fn header(half: &[u8]) -> Result<Option<FoundHeader>, Error> {
    if half.len() < NOTE_AT || half.iter().take(HEAD).all(|byte| *byte == 0) {
        return Ok(None);
    }
    match newest_slot(half)? {
        Some((_, header)) => Ok(Some(header)),
        None => Err(Error::Corrupt { what: "onward.journal does not begin as a journal does".to_owned() }),
    }
}

/// The slot whose header counts. Where an older format has no second slot, an entry begins, which is not like a header.
fn newest_slot(half: &[u8]) -> Result<Option<(usize, FoundHeader)>, Error> {
    let mut newest: Option<(usize, FoundHeader)> = None;
    for slot in 0..2 {
        let Some(found) = half.get(slot * SLOT..).map(header_of_slot).transpose()?.flatten() else { continue };
        if newest.is_none_or(|(_, (_, newest, _))| found.1.generation > newest.generation) {
            newest = Some((slot, found));
        }
    }
    Ok(newest)
}

/// `None` if it is torn or damaged, or was never written.
fn header_of_slot(slot: &[u8]) -> Result<Option<FoundHeader>, Error> {
    let Some(bytes) = slot.get(..NOTE_AT) else { return Ok(None) };
    let crc = number32(bytes, HEADER_FIELDS);
    if bytes[..8] != MAGIC || crc != crc32fast::hash(&bytes[..HEADER_FIELDS]) {
        return Ok(None);
    }
    let format = match number32(bytes, 8) {
        1 => JournalFormat::One,
        2 => JournalFormat::Two,
        KNOWN => JournalFormat::Three,
        format => {
            let found = u8::try_from(format).unwrap_or(u8::MAX);
            return Err(Error::NewerFormat { found, known: KNOWN as u8 });
        }
    };
    let [log, half_bytes, generation, first] = [12, 20, 28, 36].map(|at| number64(bytes, at));
    Ok(Some((format, Header { log, half_bytes, generation, first }, crc)))
}

/// Finds everything up to the first entry that is torn, damaged, of another generation or out of sequence.
pub(super) fn scan(half: &[u8]) -> Result<Option<HalfContent>, Error> {
    let Some((format, header, chain)) = header(half)? else { return Ok(None) };
    let end = match format {
        JournalFormat::One => return Ok(Some(format_1::scan(half, header, chain))),
        JournalFormat::Two => SLOT,
        JournalFormat::Three => HEAD,
    };
    let last = header.first.saturating_sub(1);
    let mut found = HalfContent { format, header, spans: Vec::new(), end, chain, synced: last };
    let mut next = header.first;
    while let Some(entry) = Entry::at(half, found.end, header.log) {
        let follows = entry.generation == header.generation && entry.link == found.chain && entry.first == next;
        let Some(row) = entry.row.filter(|row| follows && !row.is_empty() && entry.events > 0) else { break };
        let span = RowSpan { first: next, events: entry.events, at: found.end + ENTRY, length: row.len() };
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
            let events = if entry.row.is_some() && at != HEAD { u64::from(entry.events) } else { 0 };
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
