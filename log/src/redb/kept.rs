//! The log as two files: older rows in redb, newer ones in the journal, and what is remembered of both between calls.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io;

use ::redb::{Database, ReadTransaction, ReadableTable};
use onward_core::ids::Seq;

use crate::head::{Head, trimmed};
use crate::{Batch, Error, codec};

use super::fault::Fault;
use super::journal::{Journal, Rows, Storage};
use super::rows::{self, BATCHES};
use super::store::Prepare;

#[derive(Debug)]
pub(super) struct Kept {
    pub(super) head: Head,
    /// The last event in redb; there may be rows up to it, or none any more.
    pub(super) stored: Seq,
    pub(super) journal: Journal,
}

/// How both files are opened, together: see [`Prepare`].
pub(super) fn prepare(
    mut storage: impl FnMut() -> io::Result<Storage> + Send + 'static,
    half_bytes: u64,
) -> Prepare<Kept> {
    Box::new(move |database, before| {
        let storage = storage().map_err(super::journal::about)?;
        let has_failed = before.is_some_and(|before: &Kept| before.journal.has_failed());
        Kept::open(database, storage, half_bytes, has_failed)
    })
}

impl Kept {
    fn open(database: &Database, storage: Storage, half_bytes: u64, has_failed: bool) -> Result<Self, Fault> {
        let (mut head, journal) = rows::found(database)?;
        let stored = head.tail.last;
        let covers = covers(&head);
        let journal = if let Some(number) = journal {
            Journal::open(storage, number, stored, covers)?
        } else {
            let number = RandomState::new().build_hasher().finish();
            let journal = Journal::begin(storage, number, half_bytes, Seq(stored.0 + 1))?;
            rows::make_tables(database, number)?;
            journal
        };
        if let Some(newest) = journal.newest() {
            let (at, row) = newest?;
            head.found(&trimmed(codec::decode(&row)?, at, at)?);
        }
        if head.tail.last < covers {
            return Err(rows::corrupt("the log ends before its snapshot does"));
        }
        let mut kept = Self { head, stored, journal };
        if has_failed {
            kept.settle_by_redb(database)?;
        } else {
            kept.journal.settle()?;
            kept.journal.drop_covered(covers, usize::MAX);
        }
        Ok(kept)
    }

    /// What the journal shows may not be what its disk has.
    fn settle_by_redb(&mut self, database: &Database) -> Result<(), Fault> {
        let moved = self.needed_of_all();
        if !moved.is_empty() {
            let transaction = database.begin_write()?;
            rows::put_rows(&transaction, self.stored, &moved)?;
            transaction.commit()?;
        }
        self.stored = self.head.tail.last;
        self.journal.begin_anew(Seq(self.stored.0 + 1))?;
        Ok(())
    }

    pub(super) fn needed_of_all(&self) -> Rows {
        self.journal.needed_of_all(covers(&self.head))
    }

    pub(super) fn needed_of_other(&self) -> Rows {
        self.journal.needed_of_other(covers(&self.head))
    }

    pub(super) fn due_of_other(&self) -> Option<Rows> {
        self.journal.due_of_other(covers(&self.head))
    }

    /// Everything up to `last` is in redb, and nothing is needed of the journal.
    pub(super) fn moved(&mut self, last: Seq) {
        self.stored = last;
        self.journal.forget_all();
    }

    /// Whether a read goes from redb's rows to those of the journal, or finds a gap that a snapshot covers.
    fn is_joined(&self) -> bool {
        self.journal.first().is_none_or(|first| first.0 == self.stored.0.saturating_add(1))
    }

    pub(super) fn read(&self, view: &ReadTransaction, from: Seq, max_events: usize) -> Result<Vec<Batch>, Fault> {
        let stored = view.open_table(BATCHES)?;
        let oldest = if self.is_joined() { stored.first()?.map(|(at, _)| Seq(at.value())) } else { None };
        if let Some(oldest) = oldest.or(self.journal.first())
            && from < oldest
        {
            return Err(Error::Truncated { first: oldest }.into());
        }
        let mut read = Reading { from, max_events, next: None, events: 0, batches: Vec::new() };
        if from > self.head.tail.last {
            return Ok(read.batches);
        }
        if oldest.is_some() && from <= self.stored {
            let start = stored.range(..=from.0)?.next_back().transpose()?.map_or(from.0, |(at, _)| at.value());
            for row in stored.range(start..)? {
                let (at, row) = row?;
                if read.takes_last(Seq(at.value()), row.value())? {
                    return Ok(read.batches);
                }
            }
        }
        for row in self.journal.rows_from(from) {
            let (at, row) = row?;
            if read.takes_last(at, &row)? {
                break;
            }
        }
        Ok(read.batches)
    }

    /// Drops covered rows of the journal once redb has none: the oldest go first.
    pub(super) fn drop_covered(&mut self, max_batches: usize) -> bool {
        self.journal.drop_covered(covers(&self.head), max_batches).1
    }
}

fn covers(head: &Head) -> Seq {
    head.snapshot.map_or(Seq::default(), |snapshot| snapshot.covers)
}

struct Reading {
    from: Seq,
    max_events: usize,
    next: Option<Seq>,
    events: usize,
    batches: Vec<Batch>,
}

impl Reading {
    /// Whether it was the last that was asked for.
    fn takes_last(&mut self, at: Seq, row: &[u8]) -> Result<bool, Fault> {
        let batch = codec::decode(row)?;
        if self.next.is_some_and(|next| next != at) {
            return Err(rows::corrupt("a batch is missing"));
        }
        self.next = Some(Seq(at.0.saturating_add(batch.events.len() as u64)));
        let batch = trimmed(batch, at, self.from)?;
        self.events += batch.events.len();
        self.batches.push(batch);
        Ok(self.events >= self.max_events)
    }
}
