//! The head of a log: what may be written next. One home for the rule, whatever engine keeps the rows.

use onward_core::fence::Term;
use onward_core::ids::Seq;

use crate::row::StoredRow;
use crate::{BatchId, Error, Snapshot, Tail};

/// The key of a batch: its term, its id, and its first event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BatchKey {
    pub term: Term,
    pub id: BatchId,
    pub first: Seq,
}

/// The facts that an engine must know before it writes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Head {
    pub tail: Tail,
    pub newest_batch: Option<BatchKey>,
    pub snapshot: Option<Snapshot>,
    pub unfinished: Option<Snapshot>,
}

/// The way to treat a request that is in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AppendAdmission {
    Write,
    /// The row was written before, and its answer was lost.
    AlreadyThere,
}

impl Head {
    pub fn holds_seat(&self, given: Term) -> Result<(), Error> {
        let current = self.tail.term;
        // A term that was never given out is as good as a stale one.
        if given == current && given != Term::default() { Ok(()) } else { Err(Error::StaleTerm { given, current }) }
    }

    /// The term that whoever has seen `seen` may begin: nobody else has begun one since.
    pub(crate) fn next_term(&self, seen: Term) -> Result<Term, Error> {
        let current = self.tail.term;
        if seen == current { Ok(Term::new(current.get() + 1)) } else { Err(Error::SeatTaken { seen, current }) }
    }

    pub fn admit(&self, key: BatchKey, count: u32) -> Result<AppendAdmission, Error> {
        assert!(count > 0, "a batch without events has no place in the log");
        self.holds_seat(key.term)?;
        if self.newest_batch == Some(key) {
            return Ok(AppendAdmission::AlreadyThere);
        }
        let expected = Seq(self.tail.last.0 + 1);
        if key.first == expected {
            Ok(AppendAdmission::Write)
        } else {
            Err(Error::WrongSequence { given: key.first, expected })
        }
    }

    pub fn appended(&mut self, key: BatchKey, count: u32) {
        self.newest_batch = Some(key);
        self.tail.last = Seq(key.first.0.saturating_add(u64::from(count) - 1));
    }

    /// Takes in, as [`Self::appended`] does, a row that was read when the log was opened.
    pub(crate) fn found(&mut self, row: &StoredRow) {
        self.appended(row.key, row.count);
    }

    pub fn admit_chunk(&self, term: Term, covers: Seq, index: u32) -> Result<(), Error> {
        self.holds_seat(term)?;
        self.admit_cover(covers)?;
        let given = self.unfinished.filter(|unfinished| unfinished.covers == covers).map_or(0, |one| one.chunks);
        let may = index == 0 || index == given || index + 1 == given;
        if may { Ok(()) } else { Err(Error::WrongSnapshot { what: "chunks come in order, from 0" }) }
    }

    pub(crate) fn chunk_put(&mut self, covers: Seq, index: u32) {
        self.unfinished = Some(Snapshot { covers, chunks: index + 1 });
    }

    pub fn admit_finish(&self, term: Term, covers: Seq, chunks: u32) -> Result<AppendAdmission, Error> {
        self.holds_seat(term)?;
        let finished = Some(Snapshot { covers, chunks });
        if self.snapshot == finished {
            return Ok(AppendAdmission::AlreadyThere);
        }
        self.admit_cover(covers)?;
        if self.unfinished == finished {
            Ok(AppendAdmission::Write)
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
