//! What may be written next. One home for the rule, whatever engine keeps the rows.

use onward_core::event::StampedEvent;
use onward_core::fence::Term;
use onward_core::ids::Seq;

use crate::{Batch, BatchId, Error, Snapshot, Tail};

/// Under which term, as which batch, and beginning where.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BatchKey {
    pub term: Term,
    pub id: BatchId,
    pub first: Seq,
}

/// What an engine must know before it writes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Head {
    pub(crate) tail: Tail,
    pub(crate) newest_batch: Option<BatchKey>,
    pub(crate) snapshot: Option<Snapshot>,
    pub(crate) unfinished: Option<Snapshot>,
}

/// What to do about a request that is in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Admitted {
    Write,
    /// It was written before, and its answer was lost.
    AlreadyThere,
}

impl Head {
    pub(crate) fn holds_seat(&self, given: Term) -> Result<(), Error> {
        let current = self.tail.term;
        // A term that was never given out is as good as a stale one.
        if given == current && given != Term::default() { Ok(()) } else { Err(Error::StaleTerm { given, current }) }
    }

    pub(crate) fn next_term(&self) -> Term {
        Term::new(self.tail.term.get() + 1)
    }

    pub(crate) fn admit(&self, key: BatchKey, events: &[StampedEvent]) -> Result<Admitted, Error> {
        assert!(!events.is_empty(), "a batch without events has no place in the log");
        self.holds_seat(key.term)?;
        if self.newest_batch == Some(key) {
            return Ok(Admitted::AlreadyThere);
        }
        let expected = Seq(self.tail.last.0 + 1);
        if key.first == expected {
            Ok(Admitted::Write)
        } else {
            Err(Error::WrongSequence { given: key.first, expected })
        }
    }

    pub(crate) fn appended(&mut self, key: BatchKey, events: &[StampedEvent]) {
        self.newest_batch = Some(key);
        self.tail.last = Seq(key.first.0.saturating_add(events.len() as u64 - 1));
        self.tail.newest = events.iter().map(|event| event.at).fold(self.tail.newest, Ord::max);
    }

    /// As [`Self::appended`], for a row that was read when the log was opened.
    pub(crate) fn found(&mut self, batch: &Batch) {
        self.appended(BatchKey { term: batch.term, id: batch.id, first: batch.first }, &batch.events);
    }

    pub(crate) fn admit_chunk(&self, term: Term, covers: Seq, index: u32) -> Result<(), Error> {
        self.holds_seat(term)?;
        self.admit_cover(covers)?;
        let given = self.unfinished.filter(|unfinished| unfinished.covers == covers).map_or(0, |one| one.chunks);
        let may = index == 0 || index == given || index + 1 == given;
        if may { Ok(()) } else { Err(Error::WrongSnapshot { what: "chunks come in order, from 0" }) }
    }

    pub(crate) fn chunk_put(&mut self, covers: Seq, index: u32) {
        self.unfinished = Some(Snapshot { covers, chunks: index + 1 });
    }

    pub(crate) fn admit_finish(&self, term: Term, covers: Seq, chunks: u32) -> Result<Admitted, Error> {
        self.holds_seat(term)?;
        let finished = Some(Snapshot { covers, chunks });
        if self.snapshot == finished {
            return Ok(Admitted::AlreadyThere);
        }
        self.admit_cover(covers)?;
        if self.unfinished == finished {
            Ok(Admitted::Write)
        } else {
            Err(Error::WrongSnapshot { what: "not all of its chunks were stored, or others than these" })
        }
    }

    pub(crate) fn finished(&mut self) {
        self.snapshot = self.unfinished.take();
    }

    /// A snapshot that covers no more than the newest one would put that one at risk for nothing.
    fn admit_cover(&self, covers: Seq) -> Result<(), Error> {
        if covers > self.tail.last {
            return Err(Error::WrongSnapshot { what: "it covers events that the log does not have" });
        }
        if covers <= self.snapshot.map_or(Seq::default(), |newest| newest.covers) {
            return Err(Error::WrongSnapshot { what: "it covers no more than the newest one" });
        }
        Ok(())
    }
}

/// Cuts off what lies before `from`, and checks that a row is where it should be.
pub(crate) fn trimmed(mut batch: Batch, stored_at: Seq, from: Seq) -> Result<Batch, Error> {
    if batch.first != stored_at || batch.events.is_empty() {
        return Err(Error::Corrupt { what: format!("the row at {} is not the batch that belongs there", stored_at.0) });
    }
    let skip = from.0.saturating_sub(batch.first.0);
    if skip > 0 {
        let skip = usize::try_from(skip).unwrap_or(usize::MAX).min(batch.events.len());
        batch.events.drain(..skip);
        batch.first = from;
    }
    Ok(batch)
}
