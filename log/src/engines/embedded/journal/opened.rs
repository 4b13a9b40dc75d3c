//! A journal as an earlier life of its log left it, and what can be told to be missing from it.

use core::fmt;

use onward_core::ids::Seq;

use crate::Error;

use super::format::{self, HEAD, HalfContent, HalfHead, Header, JournalFormat, RowSpan, scan, witness};
use super::{Journal, JournalBackend, MAX_HALF_BYTES, NAME, RowPlace, about, foreign};

/// Acknowledged events that are not there any more.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Loss {
    /// The sign by which the loss was noticed.
    pub what: String,
    /// The first event that is lost; all that come after it are.
    pub from: Seq,
    /// The last event that is known to have been there.
    pub to: Option<Seq>,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, from, to } = self;
        match to.filter(|to| to >= from) {
            Some(to) => {
                let count = to.0 - from.0 + 1;
                write!(f, "{what}; events {} to {} are lost, {count} or more", from.0, to.0)
            }
            None => write!(f, "{what}; events from {} on are lost, if there were any", from.0),
        }
    }
}

/// The place where the log goes on: the last event in redb, and the one that a finished snapshot covers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Before {
    pub(crate) stored: Seq,
    pub(crate) covers: Seq,
}

impl Journal {
    /// Reads what an earlier life of this log left. Of its rows, those count that are newer than the last event in
    /// redb; a gap is allowed where a snapshot covers what is missing. Whatever else is missing is a loss, and the rows
    /// up to there are what is left.
    pub(crate) fn open(
        storage: JournalBackend,
        log: u64,
        half_bytes: u64,
        before: Before,
    ) -> Result<(Self, Option<Loss>), Error> {
        let allocated = storage.len().map_err(about)?;
        let read = |from: u64, length: u64| -> Result<Vec<u8>, Error> {
            let end = allocated.min(from.saturating_add(length));
            let mut bytes = vec![0; usize::try_from(end.saturating_sub(from)).map_err(|_| foreign())?];
            if !bytes.is_empty() {
                storage.read(from, &mut bytes).map_err(about)?;
            }
            Ok(bytes)
        };
        // The first half is always begun, and says how long it is.
        let start = read(0, HEAD as u64)?;
        let mut opened = JournalScan { before, what: None, synced: 0, is_cut: false };
        let mut noted = None;
        let head = HalfHead::of(&start);
        let half_bytes = match format::header(&start) {
            Ok(Some((format, header, _))) if header.log == log && header.half_bytes <= MAX_HALF_BYTES => {
                noted = head.note(log);
                if noted.is_none() && format != JournalFormat::One {
                    opened.damaged(format!("the note at the beginning of {NAME} is damaged"), ());
                }
                // The head has its length before it is written.
                if format == JournalFormat::Three && allocated < HEAD as u64 {
                    opened.damaged(format!("{NAME} is {allocated} bytes long, and was {HEAD} or more"), ());
                }
                header.half_bytes
            }
            Ok(Some(_)) => return Err(foreign()),
            Ok(None) => opened.damaged(format!("{NAME} is missing, or its beginning is"), half_bytes),
            Err(Error::Corrupt { what }) => opened.damaged(what, half_bytes),
            Err(error) => return Err(error),
        };
        let mut journal = Self::empty(storage.clone(), log, half_bytes, allocated);
        (journal.noted_slot, journal.noted) = noted.unwrap_or_default();
        opened.synced = journal.noted.synced;
        if allocated < journal.noted.length {
            opened.damaged(format!("{NAME} is {allocated} bytes long, and was {}", journal.noted.length), ());
        }
        let halves = [read(0, half_bytes)?, read(half_bytes, half_bytes)?];
        journal.heads = [head, HalfHead::of(&halves[1])];
        let mut found: Vec<(u64, HalfContent)> = Vec::new();
        for (half, bytes) in (0..).zip(&halves) {
            match scan(bytes) {
                Ok(Some(one)) if (one.header.log, one.header.half_bytes) == (log, half_bytes) => {
                    found.push((half, one))
                }
                Ok(Some(_)) => return Err(foreign()),
                Ok(None) => {}
                // The header of the second half may be torn where there was none before; that of the first was synced
                // before anything else. What was in it has witnesses.
                Err(Error::Corrupt { .. }) if half == 1 => {}
                Err(Error::Corrupt { what }) => opened.damaged(what, ()),
                Err(error) => return Err(error),
            }
        }
        found.sort_by_key(|(_, found)| found.header.generation);
        let newest = found.last().map_or(0, |(_, found)| found.header.generation);
        for (half, bytes) in (0..).zip(&halves) {
            if found.iter().all(|(known, _)| *known != half) {
                opened.synced = opened.synced.max(witness(bytes, 0, log, newest + 1));
            }
        }
        for (half, found) in &found {
            (journal.generation, journal.format) = (found.header.generation, found.format);
            opened.take_half(&mut journal, *half, found);
        }
        if let Some((half, newest)) = found.last() {
            journal.half = *half;
            // If none of its rows is needed, it is begun anew with the next one.
            if journal.index.back().is_some_and(|row| row.half == *half) {
                (journal.end, journal.chain) = (newest.end as u64, newest.chain);
            }
        }
        let loss = opened.loss(&journal);
        Ok((journal, loss))
    }
}

/// State while the halves are looked at, the older one first.
struct JournalScan {
    before: Before,
    /// The first thing that was noticed to be wrong.
    what: Option<String>,
    /// The last event that was certainly synced.
    synced: u64,
    /// A row is missing, so what comes after it is of no use.
    is_cut: bool,
}

impl JournalScan {
    fn damaged<T>(&mut self, what: String, instead: T) -> T {
        self.what.get_or_insert(what);
        instead
    }

    fn take_half(&mut self, journal: &mut Journal, half: u64, found: &HalfContent) {
        let Header { first, .. } = found.header;
        self.synced = self.synced.max(found.synced).max(first.saturating_sub(1));
        for span in &found.spans {
            self.take_span(journal, half, span);
        }
    }

    fn take_span(&mut self, journal: &mut Journal, half: u64, span: &RowSpan) {
        let Before { stored, covers } = self.before;
        if self.is_cut || span.next() <= stored.0.saturating_add(1) {
            return;
        }
        let expected = journal.index.back().map_or(stored.0.saturating_add(1), RowPlace::next);
        if span.first > expected && span.first <= covers.0.saturating_add(1) {
            journal.index.clear();
        } else if span.first != expected {
            self.is_cut = true;
            let what = format!("{NAME} goes on at {}, and what comes next is {expected}", span.first);
            return self.damaged(what, ());
        }
        let at = half * journal.half_bytes + span.at as u64;
        journal.index.push_back(RowPlace { first: span.first, events: span.events, half, at, length: span.length });
    }

    fn loss(self, journal: &Journal) -> Option<Loss> {
        let Before { stored, covers } = self.before;
        let last = journal.index.back().map_or(stored.0, |row| row.next() - 1).max(covers.0);
        if self.what.is_none() && self.synced <= last {
            return None;
        }
        let what = self.what.unwrap_or_else(|| format!("{NAME} is damaged behind event {last}"));
        let to = (self.synced > last).then_some(Seq(self.synced));
        Some(Loss { what, from: Seq(last.saturating_add(1)), to })
    }
}
