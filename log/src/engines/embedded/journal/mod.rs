//! A journal in front of redb: an append is one write and one sync, at a place where the disk has room already.
//!
//! The file has two *halves*. Entries are appended to one of them; when it is full the other is begun anew, under a
//! higher *generation*. What is still needed of it, being neither in redb nor covered by a finished snapshot, goes into
//! redb before, piece by piece; normally snapshots are faster than that, and no row ever does.
//!
//! **What must hold.** A row leaves the journal only if it is durable in redb or covered by a finished snapshot. In redb
//! lie the older rows and in the journal the newer ones; a row that is in both counts once. Between the two there may
//! be a gap if a snapshot covers what is missing; then what lies before the gap is not shown any more.
//!
//! **In doubt.** After a sync that failed, the system's cache may show what the disk never got. So everything that is
//! needed and can be read is then put into redb, and both halves begin a new generation, before anything else is done:
//! what was not found will not be found later either.
//!
//! **Damage.** What a loss of power can leave is read up to its torn end; anything else is a [`Loss`], told by
//! witnesses (see `format`), by the file's length, by where a half says that it begins, and by redb, which notes with
//! each of its commits how far the log reached. What no witness speaks of is not noticed: the newest entries, if damage
//! came before the system wrote the mark behind them and before the next commit of redb.
//!
//! `format` knows the bytes, `opened` makes a journal of them, and this module says where they go. Only an index is kept
//! in memory.

mod file;
mod format;
mod opened;

use core::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use ::redb::StorageBackend;
use onward_core::ids::Seq;

use crate::Error;

use super::fault::is_full;

pub(crate) use file::{JournalFile, NAME};
use format::{ENTRY, EntryPlace, HEAD, HalfHead, Header, JournalFormat, Note, put_entry, put_mark};
pub(crate) use opened::Before;
pub use opened::Loss;

/// The most bytes that are written again, if snapshots do not keep up.
pub(crate) const HALF_BYTES: u64 = 32 << 20;

/// Rows of a half go into redb in half as many pieces as this, while the second half of the other is written.
const PIECES: u64 = 32;

/// Largest plausible half; a header with a larger one is not ours.
const MAX_HALF_BYTES: u64 = 1 << 40;

/// The number of bytes that are appended before the note at the beginning is brought up to date.
const NOTE_EVERY: u64 = 16 << 10;

/// The room that is taken ahead: little for a log that is hardly used.
const FIRST_STEP: u64 = 64 << 10;
const LAST_STEP: u64 = 1 << 20;

pub(crate) type JournalBackend = Arc<dyn StorageBackend>;

pub(crate) struct Journal {
    storage: JournalBackend,
    log: u64,
    half_bytes: u64,
    /// The length of the file: everything up to here has its place on the disk.
    allocated: u64,
    /// The heads of both halves.
    heads: [HalfHead; 2],
    /// The note in the first head: the file's length and the last synced event; below, its slot, and where `end` was
    /// then.
    noted: Note,
    noted_slot: usize,
    noted_at: u64,
    /// A length up to this one may not be on the disk, whatever the system's cache shows: a sync has failed since the
    /// file grew, or an earlier life of the log let it grow.
    unsure_length: u64,
    /// The last event that was appended and synced in this life.
    synced: Option<u64>,
    step: u64,
    /// Rows that are shown, oldest first.
    index: VecDeque<RowPlace>,
    generation: u64,
    /// The half that is appended to, where, and what the next entry links to.
    half: u64,
    end: u64,
    chain: u32,
    /// The value of `end` when rows of the other half last went into redb.
    moved_at: u64,
    /// Set when the disk and the cache may differ.
    has_failed: bool,
    /// The format in which the journal was found. Only the newest is appended to.
    format: JournalFormat,
    /// Another one is opened on the same file.
    is_replaced: Cell<bool>,
    /// Reused from append to append.
    buffer: Vec<u8>,
}

/// The place of a row in the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct RowPlace {
    first: u64,
    events: u32,
    half: u64,
    at: u64,
    length: usize,
}

impl RowPlace {
    const fn next(&self) -> u64 {
        self.first.saturating_add(self.events as u64)
    }
}

/// The reason why an entry was not appended.
#[derive(Debug)]
pub(crate) enum NotAppended {
    /// Nothing was written of it.
    Unwritten(Error),
    InDoubt(Error),
}

impl Journal {
    /// Begins the journal of a log that has none yet.
    pub(crate) fn begin(storage: JournalBackend, log: u64, half_bytes: u64, next: Seq) -> Result<Self, Error> {
        // More than a head, which is what a crash at this very point may leave, is somebody's rows.
        if storage.len().map_err(about)? > HEAD as u64 {
            return Err(foreign());
        }
        let mut journal = Self::empty(storage, log, half_bytes, 0);
        journal.begin_file(next)?;
        Ok(journal)
    }

    /// Makes the file anew: nothing that was in it counts, nor is there.
    pub(crate) fn begin_file(&mut self, next: Seq) -> Result<(), Error> {
        (self.generation, self.format) = (self.generation + 1, JournalFormat::Three);
        (self.noted, self.noted_slot, self.heads) = (Note::default(), 0, [HalfHead::EMPTY; 2]);
        let header = self.header(next.0);
        self.heads[0].put_header(&header);
        let begun = || -> io::Result<()> {
            self.storage.set_len(0)?;
            self.storage.set_len(HEAD as u64)?;
            self.storage.write(0, self.heads[0].bytes())?;
            self.storage.sync_data()
        };
        begun().map_err(about)?;
        (self.allocated, self.unsure_length) = (HEAD as u64, 0);
        self.half = 0;
        self.forget_all();
        Ok(())
    }

    fn empty(storage: JournalBackend, log: u64, half_bytes: u64, allocated: u64) -> Self {
        Self {
            storage,
            log,
            half_bytes,
            allocated,
            heads: [HalfHead::EMPTY; 2],
            noted: Note::default(),
            noted_slot: 0,
            noted_at: 0,
            unsure_length: allocated,
            synced: None,
            step: FIRST_STEP,
            index: VecDeque::new(),
            generation: 0,
            half: 0,
            end: 0,
            chain: 0,
            moved_at: 0,
            has_failed: false,
            format: JournalFormat::Three,
            is_replaced: Cell::new(false),
            buffer: Vec::new(),
        }
    }

    /// Writes the newest row once more and syncs it. A process that ended while it appended may have left it in the
    /// system's cache only; after this it is on the disk, also if an earlier sync failed and was forgotten.
    pub(crate) fn rewrite_newest(&mut self) -> Result<(), Error> {
        let newest = self.index.back().copied();
        if let Some(row) = newest {
            let mut bytes = vec![0; ENTRY + row.length];
            let at = row.at - ENTRY as u64;
            self.storage.read(at, &mut bytes).and_then(|()| self.storage.write(at, &bytes)).map_err(about)?;
        }
        self.rewrite_heads()?;
        if let Some(row) = newest.filter(|_| self.end > 0) {
            self.leave_witness(row.next() - 1);
        }
        Ok(())
    }

    /// Both slots of both heads are on the disk, so that one of them can be written.
    fn rewrite_heads(&self) -> Result<(), Error> {
        for (base, head) in [0, self.half_bytes].into_iter().zip(&self.heads) {
            if self.allocated >= base + HEAD as u64 {
                self.storage.write(base, head.bytes()).map_err(about)?;
            }
        }
        self.storage.sync_data().map_err(about)
    }

    /// Begins anew after a failure, and once all rows are in redb: nothing that was written before counts any more.
    pub(crate) fn begin_anew(&mut self, next: Seq) -> Result<(), Error> {
        if self.allocated < HEAD as u64 {
            self.storage.set_len(HEAD as u64).map_err(about)?;
            self.allocated = HEAD as u64;
        }
        self.rewrite_heads()?;
        for half in [1 - self.half, self.half] {
            let base = half * self.half_bytes;
            if self.allocated < base + HEAD as u64 {
                continue;
            }
            self.generation += 1;
            let header = self.header(next.0);
            let head = &mut self.heads[half as usize];
            head.put_header(&header);
            self.storage.write(base, head.bytes()).map_err(about)?;
        }
        self.storage.sync_data().map_err(about)?;
        self.format = JournalFormat::Three;
        self.forget_all();
        Ok(())
    }

    fn header(&self, first: u64) -> Header {
        Header { log: self.log, half_bytes: self.half_bytes, generation: self.generation, first }
    }

    /// Whether a row of this length can be here at all.
    pub(crate) fn takes(&self, length: usize) -> bool {
        (HEAD + ENTRY + length) as u64 <= self.half_bytes
    }

    /// Whether a row of this length can be here without another half.
    pub(crate) fn has_room(&self, length: usize) -> bool {
        self.end + (HEAD + ENTRY + length) as u64 <= self.half_bytes
    }

    /// The rows that must be in redb before the other half is begun.
    pub(crate) fn needed_of_other(&self, covers: Seq) -> PendingRows {
        self.needed(covers, |row| row.half != self.half)
    }

    /// Some of them, if it is time: from the middle of this half on a piece now and then, so that few are left at its
    /// end, when everybody would wait for all of them.
    pub(crate) fn rows_to_migrate(&self, covers: Seq) -> Option<PendingRows> {
        let piece = self.half_bytes / PIECES;
        let is_due = self.end > self.half_bytes / 2 && self.end - self.moved_at >= piece;
        if !is_due || self.index.front()?.half == self.half {
            return None;
        }
        let mut due = self.needed_of_other(covers);
        let mut bytes = 0;
        let enough = due.rows.iter().position(|row| {
            bytes += row.length as u64;
            bytes >= 2 * piece
        });
        due.rows.truncate(enough.map_or(usize::MAX, |last| last + 1));
        (!due.is_empty()).then_some(due)
    }

    /// Forgets rows up to `last`, which are in redb.
    pub(crate) fn forget_up_to(&mut self, last: Seq) {
        let moved = self.index.partition_point(|row| row.next() <= last.0.saturating_add(1));
        self.index.drain(..moved);
        self.moved_at = self.end;
    }

    /// The rows that must be in redb before the journal is done without. The newest is among them, covered or not.
    pub(crate) fn needed_of_all(&self, covers: Seq) -> PendingRows {
        self.needed(covers, |_| true)
    }

    fn needed(&self, covers: Seq, which: impl Fn(&RowPlace) -> bool) -> PendingRows {
        let newest = self.index.back();
        let is_needed =
            |row: &&RowPlace| which(row) && (row.next() > covers.0.saturating_add(1) || newest == Some(row));
        PendingRows { rows: self.index.iter().filter(is_needed).copied().collect(), storage: self.storage.clone() }
    }

    /// Goes on in the other half. What was needed of it is in redb.
    pub(crate) fn switch_half(&mut self) {
        self.half = 1 - self.half;
        (self.end, self.moved_at, self.noted_at) = (0, 0, 0);
        let half = self.half;
        self.index.retain(|row| row.half != half);
    }

    /// All rows are in redb.
    pub(crate) fn forget_all(&mut self) {
        self.index.clear();
        (self.end, self.moved_at, self.noted_at) = (0, 0, 0);
    }

    pub(crate) fn append(&mut self, first: Seq, events: u32, row: &[u8]) -> Result<(), NotAppended> {
        let (begins, base) = (self.end == 0, self.half * self.half_bytes);
        self.buffer.clear();
        let (mut chain, mut generation) = (self.chain, self.generation);
        let mut head = self.heads[self.half as usize];
        if begins {
            generation += 1;
            chain = head.put_header(&Header { generation, ..self.header(first.0) });
            self.buffer.extend_from_slice(head.bytes());
        }
        let place = EntryPlace { log: self.log, generation, link: chain, first: first.0 };
        chain = put_entry(&place, events, row, &mut self.buffer);
        let (from, length) = (base + self.end, self.buffer.len() as u64);
        // With room for the mark behind it.
        let end = (from + length + ENTRY as u64).min(base + self.half_bytes);
        self.allocate(end, base).map_err(|error| NotAppended::Unwritten(about(error)))?;
        let written = self.storage.write(from, &self.buffer).and_then(|()| self.storage.sync_data());
        if let Err(error) = written {
            (self.has_failed, self.unsure_length) = (true, self.allocated);
            return Err(NotAppended::InDoubt(about(error)));
        }
        (self.generation, self.chain, self.heads[self.half as usize]) = (generation, chain, head);
        self.end += length;
        let at = base + self.end - row.len() as u64;
        self.index.push_back(RowPlace { first: first.0, events, half: self.half, at, length: row.len() });
        self.leave_witness(first.0.saturating_add(u64::from(events) - 1));
        Ok(())
    }

    /// Leaves a witness after a sync: everything up to this event is on the disk, and so is a length that the file was
    /// given before it. It is said behind the newest entry, where a page is written anyway, and now and then at the
    /// beginning. This is not synced, and if it cannot be written nothing is lost but a way to tell damage from a torn
    /// end.
    fn leave_witness(&mut self, synced: u64) {
        self.synced = Some(synced);
        if self.end + ENTRY as u64 <= self.half_bytes {
            self.buffer.clear();
            let first = synced.saturating_add(1);
            put_mark(
                &EntryPlace { log: self.log, generation: self.generation, link: self.chain, first },
                &mut self.buffer,
            );
            let _ = self.storage.write(self.half * self.half_bytes + self.end, &self.buffer);
        }
        let length = if self.allocated > self.unsure_length { self.allocated } else { self.noted.length };
        if self.noted.length < length || self.end >= self.noted_at + NOTE_EVERY {
            self.note(Note { length, synced });
        }
    }

    /// Writes a note into the other slot. The note before was synced since, and stays.
    fn note(&mut self, note: Note) {
        let slot = 1 - self.noted_slot;
        let (at, bytes) = self.heads[0].put_note(slot, self.log, note);
        if self.storage.write(at, bytes).is_ok() {
            (self.noted, self.noted_slot, self.noted_at) = (note, slot, self.end);
        }
    }

    /// Takes room ahead, so that a sync has no file system to bring up to date but seldom.
    fn allocate(&mut self, end: u64, base: u64) -> io::Result<()> {
        if end <= self.allocated {
            return Ok(());
        }
        let from = self.allocated.max(base);
        let to = end.max((from + self.step).min(base + self.half_bytes));
        let zeros = vec![0; usize::try_from(to - from).unwrap_or(0)];
        let taken = self.storage.set_len(to).and_then(|()| self.storage.write(from, &zeros));
        if let Err(error) = taken {
            // What has a length and no room would fail later, in the middle of an entry. If this fails as well, it does.
            let _ = self.storage.set_len(self.allocated);
            return Err(error);
        }
        self.allocated = to;
        self.step = (self.step * 2).min(LAST_STEP);
        Ok(())
    }

    /// Whether the journal has to be begun anew before it can be appended to.
    pub(crate) fn is_of_older_format(&self) -> bool {
        self.format != JournalFormat::Three
    }

    pub(crate) const fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// Leaves the file alone from now on: it belongs to another journal.
    pub(crate) fn give_up_file(&self) {
        self.is_replaced.set(true);
    }

    /// The first event of the rows that are here.
    pub(crate) fn first(&self) -> Option<Seq> {
        self.index.front().map(|row| Seq(row.first))
    }

    /// The newest row.
    pub(crate) fn newest(&self) -> Option<Result<(Seq, Vec<u8>), Error>> {
        self.index.back().map(|row| read(&self.storage, row))
    }

    /// Rows from the one on that holds `from`, or from the first.
    pub(crate) fn rows_from(&self, from: Seq) -> impl Iterator<Item = Result<(Seq, Vec<u8>), Error>> {
        let start = self.index.partition_point(|row| row.next() <= from.0);
        self.index.range(start..).map(|row| read(&self.storage, row))
    }

    /// Drops up to `max` rows that are covered, the oldest first and never the newest. Gives how many, and whether
    /// there are more.
    pub(crate) fn drop_covered(&mut self, covers: Seq, max: usize) -> (usize, bool) {
        let covered = self.index.partition_point(|row| row.next() <= covers.0.saturating_add(1));
        let covered = covered.min(self.index.len().saturating_sub(1));
        let dropped = covered.min(max);
        self.index.drain(..dropped);
        (dropped, covered > dropped)
    }
}

/// Leaves a note at the end, so that the next to open the file can tell whether all of it is there.
impl Drop for Journal {
    fn drop(&mut self) {
        if let Some(synced) = self.synced.filter(|synced| *synced > self.noted.synced && !self.is_replaced.get()) {
            // A length that is not noted yet may not be on the disk.
            let note = Note { synced, ..self.noted };
            self.note(note);
            if self.storage.sync_data().is_ok() {
                self.note(note);
            }
        }
    }
}

/// Rows on their way into redb.
pub(crate) struct PendingRows {
    rows: Vec<RowPlace>,
    storage: JournalBackend,
}

impl PendingRows {
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub(crate) fn first(&self) -> Option<Seq> {
        self.rows.first().map(|row| Seq(row.first))
    }

    /// The last event in them.
    pub(crate) fn last(&self) -> Option<Seq> {
        self.rows.last().map(|row| Seq(row.next() - 1))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Result<(Seq, Vec<u8>), Error>> {
        self.rows.iter().map(|row| read(&self.storage, row))
    }
}

fn read(storage: &JournalBackend, row: &RowPlace) -> Result<(Seq, Vec<u8>), Error> {
    let mut bytes = vec![0; row.length];
    storage.read(row.at, &mut bytes).map_err(about)?;
    Ok((Seq(row.first), bytes))
}

pub(crate) fn about(error: io::Error) -> Error {
    let cause = format!("{NAME}: {error}");
    if is_full(error.kind()) { Error::Full { cause } } else { Error::Io { cause } }
}

fn foreign() -> Error {
    Error::Corrupt { what: format!("{NAME} is missing, or is not the journal of this log") }
}

impl core::fmt::Debug for Journal {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let rows = self.index.len();
        let place = (self.generation, self.half, self.end);
        f.debug_struct("Journal").field("rows", &rows).field("place", &place).finish_non_exhaustive()
    }
}
