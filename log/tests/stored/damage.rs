//! Damage to the journal, of every kind and anywhere: either all that was acknowledged is there, or the log says what
//! is lost and does not open. After a kill, damage to the newest entries and the mark behind them may look like a write
//! that was torn. `ONWARD_SOAK_CASES` sets the number of cases.

use core::ops::Range;
use std::io;
use std::sync::{Arc, Mutex};

use onward_core::event::StampedEvent;
use onward_core::fence::Term;
use onward_core::ids::Seq;
use onward_log::{BatchId, BatchKey, Blob, EmbeddedLog, Error, EventLog, Log, LogRow, OnLoss};
use redb::StorageBackend;

use crate::samples::Draw;

const CASES: u64 = 400;
const HALVES: [u64; 3] = [4 << 10, 24 << 10, 256 << 10];
/// The length of a mark, which lies behind the newest entry.
const MARK: usize = 36;
/// Bytes that are appended between two notes of how far the journal reaches.
const NOTE_EVERY: usize = 16 << 10;
const SECTOR: usize = 512;

#[derive(Clone, Debug, Default)]
struct Bytes(Arc<Mutex<HeldFile>>);

#[derive(Clone, Debug, Default)]
struct HeldFile {
    bytes: Vec<u8>,
    /// The newest write that was longer than a mark, and how many there were.
    newest: Range<usize>,
    writes: u64,
}

impl StorageBackend for Bytes {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.lock().unwrap().bytes.len() as u64)
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let from = offset as usize;
        let bytes = &self.0.lock().unwrap().bytes;
        out.copy_from_slice(bytes.get(from..from + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.lock().unwrap().bytes.resize(len as usize, 0);
        Ok(())
    }
    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let (mut held, range) = (self.0.lock().unwrap(), offset as usize..offset as usize + data.len());
        held.bytes[range.clone()].copy_from_slice(data);
        if data.len() > MARK {
            held.newest = range;
            held.writes += 1;
        }
        Ok(())
    }
}

impl Bytes {
    fn copy(&self) -> Self {
        Self(Arc::new(Mutex::new(self.0.lock().unwrap().clone())))
    }
}

/// A log, what it was told, and copies of its journal from earlier.
struct WrittenLog {
    redb: Bytes,
    journal: Bytes,
    /// Every batch that was acknowledged.
    batches: Vec<(u64, Vec<StampedEvent>)>,
    /// The places in the journal where each of them was written, if it was.
    places: Vec<Option<Range<usize>>>,
    covers: u64,
    older: Vec<Vec<u8>>,
}

fn opened(redb: &Bytes, journal: &Bytes, half_bytes: u64, on_loss: OnLoss) -> Result<EmbeddedLog, Error> {
    let (redb, journal) = (redb.clone(), journal.clone());
    EmbeddedLog::on_storage(move || Ok(redb.clone()), move || Ok(journal.clone()), half_bytes, on_loss)
}

/// The way in which the process ended: with time to close the log, or not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    Closed,
    Killed,
}

impl WrittenLog {
    fn new(draw: &mut Draw, half_bytes: u64, end: End) -> Self {
        let (redb, journal) = (Bytes::default(), Bytes::default());
        let mut written = Self { redb, journal, batches: Vec::new(), places: Vec::new(), covers: 0, older: Vec::new() };
        let mut log = opened(&written.redb, &written.journal, half_bytes, OnLoss::Refuse).unwrap();
        let mut term = log.seize_seat().unwrap().term;
        for _ in 0..10 + draw.below(50) {
            written.append(&mut log, draw, term);
            match draw.below(20) {
                0 => {
                    written.covers += 1 + draw.below(written.last() - written.covers);
                    log.put_chunk(term, Seq(written.covers), 0, b"state").unwrap();
                    log.finish_snapshot(term, Seq(written.covers), 1).unwrap();
                }
                1 => while log.truncate(term, 3).unwrap() {},
                2 => {
                    drop(log);
                    log = opened(&written.redb, &written.journal, half_bytes, OnLoss::Refuse).unwrap();
                    term = log.seize_seat().unwrap().term;
                }
                3 | 4 => written.older.push(written.journal.0.lock().unwrap().bytes.clone()),
                _ => {}
            }
        }
        if end == End::Killed {
            (written.redb, written.journal) = (written.redb.copy(), written.journal.copy());
        }
        drop(log);
        written
    }

    fn append(&mut self, log: &mut EmbeddedLog, draw: &mut Draw, term: Term) {
        let first = self.last() + 1;
        let events = draw.batch(6);
        let blob = draw.chance(25).then_some(Blob { digest: [1; 32], bytes: b"large" });
        let key = BatchKey { term, id: BatchId(draw.number()), first: Seq(first) };
        let before = self.journal.0.lock().unwrap().writes;
        log.append_events(key, &events, blob.as_slice()).unwrap();
        let journal = self.journal.0.lock().unwrap();
        self.places.push((journal.writes > before).then(|| journal.newest.clone()));
        drop(journal);
        self.batches.push((first, events));
    }

    /// The place of the mark behind the newest entry.
    fn mark(&self) -> Range<usize> {
        let end = self.places.iter().rev().flatten().next().map_or(0, |newest| newest.end);
        end..end + MARK
    }

    /// Checks a silent loss: only what could have been torn is missing, the newest entries, from a damaged one on, and
    /// no more of them than come between two notes.
    fn check_torn(&self, last: u64, damage: &Damage, case: &str) {
        let first = self.batches.iter().position(|(first, _)| *first > last).expect("something is missing");
        let lost: Vec<&Range<usize>> = self.places[first..].iter().map(|place| place.as_ref().expect(case)).collect();
        assert!(damage.hits(lost[0]) && damage.hits(&self.mark()), "{case}: events from {last} on are gone");
        let (all, longest) =
            (lost.iter().map(|place| place.len()).sum::<usize>(), lost.iter().map(|place| place.len()));
        assert!(all <= NOTE_EVERY + longest.max().unwrap_or(0), "{case}: {all} bytes are gone");
    }

    fn last(&self) -> u64 {
        self.batches.last().map_or(0, |(first, events)| first + events.len() as u64 - 1)
    }

    /// Checks that the log says to have what was acknowledged. Gives how far it reaches.
    fn check(&self, log: &mut EmbeddedLog) -> u64 {
        let last = log.tail().unwrap().last.0;
        let needed = self.batches.iter().filter(|(first, events)| first + events.len() as u64 - 1 > self.covers);
        let expected: Vec<&StampedEvent> = needed
            .flat_map(|(first, events)| (*first..).zip(events))
            .filter(|(seq, _)| *seq > self.covers && *seq <= last)
            .map(|(_, stamped)| stamped)
            .collect();
        let read = log.read_events(Seq(self.covers + 1), usize::MAX).unwrap();
        let read: Vec<&StampedEvent> = read.iter().flat_map(|batch| &batch.events).collect();
        assert!(read == expected, "events after {} are not those that were acknowledged", self.covers);
        last
    }
}

#[derive(Debug)]
enum Damage {
    Flip(usize, u8),
    Zero(Range<usize>),
    Stale(usize, Range<usize>),
    Cut(usize),
}

impl Damage {
    fn draw(draw: &mut Draw, written: &WrittenLog) -> Self {
        let held = written.journal.0.lock().unwrap();
        // Nearly always where something is.
        let used = held.bytes.iter().rposition(|byte| *byte != 0).unwrap_or(0) + 1;
        let at = draw.below(used as u64) as usize;
        let to = |length: usize| at..(at + length).min(held.bytes.len());
        match draw.below(4) {
            0 => Self::Flip(at, 1 << draw.below(8)),
            1 => Self::Zero(to(1 + draw.below(2000) as usize)),
            2 if !written.older.is_empty() => {
                // Blocks that did not arrive. Not the one with the note: then all of it is an older file.
                let (from, blocks) = (at / SECTOR * SECTOR, 1 + draw.below(6) as usize);
                let range = from.max(SECTOR)..(from.max(SECTOR) + blocks * SECTOR).min(held.bytes.len());
                Self::Stale(draw.below(written.older.len() as u64) as usize, range)
            }
            _ => Self::Cut(at),
        }
    }

    /// Whether the damage removes the mark behind the newest entry.
    fn hits(&self, mark: &Range<usize>) -> bool {
        match self {
            Self::Flip(at, _) => mark.contains(at),
            Self::Zero(range) | Self::Stale(_, range) => range.start < mark.end && mark.start < range.end,
            Self::Cut(length) => *length < mark.end,
        }
    }

    fn apply(&self, written: &WrittenLog) {
        let bytes = &mut written.journal.0.lock().unwrap().bytes;
        match self {
            Self::Flip(at, bit) => bytes[*at] ^= bit,
            Self::Zero(range) => bytes[range.clone()].fill(0),
            Self::Cut(length) => bytes.truncate(*length),
            Self::Stale(which, range) => {
                for at in range.clone() {
                    bytes[at] = written.older[*which].get(at).copied().unwrap_or(0);
                }
            }
        }
    }
}

#[test]
fn damage_is_refused_with_what_is_lost_or_loses_nothing() {
    let cases = std::env::var("ONWARD_SOAK_CASES").map_or(CASES, |text| text.parse().expect("a number"));
    let (mut refused, mut harmless, mut torn) = (0, 0, 0);
    for seed in 0..cases {
        let mut draw = Draw::new(seed);
        let (half, end) = (HALVES[draw.below(3) as usize], if draw.chance(2) { End::Closed } else { End::Killed });
        let written = WrittenLog::new(&mut draw, half, end);
        let damage = Damage::draw(&mut draw, &written);
        let case = format!("seed {seed}: {damage:?} of a log of {} with halves of {half}, {end:?}", written.last());
        damage.apply(&written);
        match opened(&written.redb.copy(), &written.journal.copy(), half, OnLoss::Refuse) {
            Ok(mut log) => {
                let last = written.check(&mut log);
                if end == End::Killed && last < written.last() && !matches!(damage, Damage::Cut(_)) {
                    torn += 1;
                    written.check_torn(last, &damage, &case);
                } else {
                    harmless += 1;
                    assert_eq!(last, written.last(), "{case}");
                }
                continue;
            }
            Err(Error::Lost(loss)) => {
                assert!(loss.from.0 <= written.last() + 1, "{case}: {loss}");
                assert!(loss.to.is_none_or(|to| to.0 <= written.last()), "{case}: {loss}");
            }
            Err(error) => panic!("{case}: {error}"),
        }
        refused += 1;
        let mut log = opened(&written.redb, &written.journal, half, OnLoss::Accept).expect(&case);
        let loss = log.accepted_loss().unwrap().expect(&case);
        let last = written.check(&mut log);
        assert_eq!(loss.from.0, last + 1, "{case}: what is not lost is there");
        let term = log.seize_seat().unwrap().term;
        let key = BatchKey { term, id: BatchId(1), first: Seq(last + 1) };
        log.append_events(key, &draw.batch(3), &[]).unwrap();
        let last = log.tail().unwrap().last;
        drop(log);
        let mut log = opened(&written.redb, &written.journal, half, OnLoss::Refuse).expect(&case);
        assert_eq!(log.tail().unwrap().last, last, "{case}: what was accepted is not said again");
        assert_eq!(log.accepted_loss().unwrap(), None);
    }
    let counts = format!("{refused} refused, {harmless} harmless and {torn} like a torn write of {cases}");
    assert!(refused * 4 > cases && harmless * 10 > cases && torn * 10 < cases, "{counts}");
}

/// What redb has noted goes as far as the beginning of the half, since rows are moved to it from the middle of one on.
#[test]
fn no_more_than_comes_between_two_notes_is_lost_unnoticed_in_any_half() {
    const HALF: usize = 128 << 10;
    const FILLED: usize = 56 << 10;
    // Each half for the first time, and then begun again where the file grows no more.
    for begun in 1..=4 {
        let (redb, journal) = (Bytes::default(), Bytes::default());
        let mut log = opened(&redb, &journal, HALF as u64, OnLoss::Refuse).unwrap();
        let term = log.seize_seat().unwrap().term;
        let (mut places, mut seq, mut begins) = (Vec::new(), 0, 0);
        while begins < begun || places.iter().map(ExactSizeIterator::len).sum::<usize>() < FILLED {
            seq += 1;
            let key = BatchKey { term, id: BatchId(seq), first: Seq(seq) };
            log.append(key, LogRow { count: 1, body: &[7; 1_000] }, &[]).unwrap();
            let place = journal.0.lock().unwrap().newest.clone();
            if place.start % HALF == 0 {
                places.clear();
                begins += 1;
            }
            places.push(place);
        }
        let (redb, journal) = (redb.copy(), journal.copy());
        drop(log);
        let (end, longest) = (places[places.len() - 1].end, places[0].len());
        let first_lost = places.iter().rfind(|place| place.start + NOTE_EVERY + longest < end).unwrap().start;
        journal.0.lock().unwrap().bytes[first_lost..end + MARK].fill(0);
        let opened = opened(&redb, &journal, HALF as u64, OnLoss::Refuse);
        assert!(matches!(opened, Err(Error::Lost(_))), "half {begun}: {opened:?}");
    }
}
