//! The log as two files: older rows in redb, newer ones in the journal, and what is remembered of both between calls.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io;

use ::redb::{Database, ReadTransaction, ReadableTable};
use onward_core::ids::Seq;

use crate::head::Head;
use crate::{Error, StoredRow};

use super::OnLoss;
use super::fault::StoreFault;
use super::journal::{Before, Journal, JournalBackend, Loss, NAME, PendingRows};
use super::rows::{self, BATCHES, Facts};
use super::store::Prepare;

#[derive(Debug)]
pub(super) struct LogFiles {
    pub(super) head: Head,
    /// The last event in redb; there may be rows up to it, or none any more.
    pub(super) stored: Seq,
    pub(super) journal: Journal,
    /// The loss that was found when the log was opened, and was accepted.
    pub(super) accepted: Option<Loss>,
}

/// The way in which both files are opened, together: see [`Prepare`].
pub(super) fn prepare(
    mut storage: impl FnMut() -> io::Result<JournalBackend> + Send + 'static,
    half_bytes: u64,
    on_loss: OnLoss,
) -> Prepare<LogFiles> {
    Box::new(move |database, before: Option<&LogFiles>| {
        let storage = storage().map_err(super::journal::about)?;
        let Some(before) = before else { return LogFiles::open(database, storage, half_bytes, false, on_loss) };
        before.journal.give_up_file();
        // A loss while the log is open is none that anybody has accepted.
        let mut files = LogFiles::open(database, storage, half_bytes, before.journal.has_failed(), OnLoss::Refuse)?;
        files.accepted.clone_from(&before.accepted);
        Ok(files)
    })
}

impl LogFiles {
    fn open(
        database: &Database,
        storage: JournalBackend,
        half_bytes: u64,
        has_failed: bool,
        on_loss: OnLoss,
    ) -> Result<Self, StoreFault> {
        let (mut head, Facts { journal, reached }) = rows::found(database)?;
        let stored = head.tail.last;
        let covers = covers(&head);
        let (journal, mut loss) = if let Some(number) = journal {
            Journal::open(storage, number, half_bytes, Before { stored, covers })?
        } else {
            let number = RandomState::new().build_hasher().finish();
            let journal = Journal::begin(storage, number, half_bytes, Seq(stored.0 + 1))?;
            rows::make_tables(database, number)?;
            (journal, None)
        };
        if let Some(newest) = journal.newest() {
            let (at, row) = newest?;
            head.found(&StoredRow::read(row)?.at(at)?);
        }
        if loss.is_none() {
            loss = missing_at_end(&head, covers, reached);
        }
        if let Some(loss) = loss.as_mut().filter(|_| reached.is_some()) {
            loss.to = loss.to.max(reached.filter(|reached| *reached >= loss.from));
        }
        if on_loss == OnLoss::Refuse
            && let Some(loss) = loss
        {
            return Err(Error::Lost(loss).into());
        }
        // Everything up to there is in the snapshot, if not in a row.
        head.tail.last = head.tail.last.max(covers);
        let mut files = Self { head, stored, journal, accepted: loss };
        if files.accepted.is_some() {
            files.move_to_redb(database)?;
            files.journal.begin_file(Seq(files.head.tail.last.0 + 1))?;
        } else if has_failed || files.journal.is_of_older_format() {
            files.rewrite_by_redb(database)?;
        } else {
            files.journal.rewrite_newest()?;
            files.journal.drop_covered(covers, usize::MAX);
        }
        Ok(files)
    }

    /// Moves all rows to redb and begins the journal anew, because the journal's cache may differ from its disk.
    fn rewrite_by_redb(&mut self, database: &Database) -> Result<(), StoreFault> {
        self.move_to_redb(database)?;
        self.journal.begin_anew(Seq(self.head.tail.last.0 + 1))?;
        Ok(())
    }

    /// All rows that are needed, and where the log ends with them.
    fn move_to_redb(&mut self, database: &Database) -> Result<(), StoreFault> {
        let transaction = database.begin_write()?;
        let moved = self.needed_of_all();
        rows::put_rows(&transaction, self.stored, &moved)?;
        rows::put_reached(&transaction, self.head.tail.last)?;
        transaction.commit()?;
        self.stored = moved.last().unwrap_or(self.stored);
        Ok(())
    }

    pub(super) fn needed_of_all(&self) -> PendingRows {
        self.journal.needed_of_all(covers(&self.head))
    }

    pub(super) fn needed_of_other(&self) -> PendingRows {
        self.journal.needed_of_other(covers(&self.head))
    }

    pub(super) fn rows_to_migrate(&self) -> Option<PendingRows> {
        self.journal.rows_to_migrate(covers(&self.head))
    }

    /// Notes that everything up to `last` is in redb, and nothing is needed of the journal.
    pub(super) fn moved(&mut self, last: Seq) {
        self.stored = last;
        self.journal.forget_all();
    }

    /// Whether a read goes from redb's rows to those of the journal, or finds a gap that a snapshot covers.
    fn is_joined(&self) -> bool {
        self.journal.first().is_none_or(|first| first.0 == self.stored.0.saturating_add(1))
    }

    pub(super) fn read(
        &self,
        view: &ReadTransaction,
        from: Seq,
        max_events: usize,
    ) -> Result<Vec<StoredRow>, StoreFault> {
        let stored = view.open_table(BATCHES)?;
        let oldest = if self.is_joined() { stored.first()?.map(|(at, _)| Seq(at.value())) } else { None };
        if let Some(oldest) = oldest.or(self.journal.first())
            && from < oldest
        {
            return Err(Error::Truncated { first: oldest }.into());
        }
        let mut read = Reading { from, max_events, next: None, events: 0, rows: Vec::new() };
        if from > self.head.tail.last {
            return Ok(read.rows);
        }
        if oldest.is_some() && from <= self.stored {
            let start = stored.range(..=from.0)?.next_back().transpose()?.map_or(from.0, |(at, _)| at.value());
            for row in stored.range(start..)? {
                let (at, row) = row?;
                if read.takes_last(Seq(at.value()), row.value().to_vec())? {
                    return Ok(read.rows);
                }
            }
        }
        for row in self.journal.rows_from(from) {
            let (at, row) = row?;
            if read.takes_last(at, row)? {
                break;
            }
        }
        Ok(read.rows)
    }

    /// Drops covered rows of the journal once redb has none: the oldest go first.
    pub(super) fn drop_covered(&mut self, max_batches: usize) -> bool {
        self.journal.drop_covered(covers(&self.head), max_batches).1
    }
}

/// The loss of rows at the end, if they end before the log did, as far as redb knows. One that was last written before
/// redb was told how far the log reached has at least a row for the last event of its snapshot.
fn missing_at_end(head: &Head, covers: Seq, reached: Option<Seq>) -> Option<Loss> {
    let last = head.tail.last;
    let is_missing = reached.map_or(last < covers, |reached| last.max(covers) < reached);
    let what = || format!("{NAME} ends with event {}", last.0);
    is_missing.then(|| Loss { what: what(), from: Seq(last.max(covers).0 + 1), to: reached })
}

fn covers(head: &Head) -> Seq {
    head.snapshot.map_or(Seq::default(), |snapshot| snapshot.covers)
}

struct Reading {
    from: Seq,
    max_events: usize,
    next: Option<Seq>,
    events: usize,
    rows: Vec<StoredRow>,
}

impl Reading {
    /// Takes a row. Gives whether it was the last that was asked for.
    fn takes_last(&mut self, at: Seq, row: Vec<u8>) -> Result<bool, StoreFault> {
        let row = StoredRow::read(row)?;
        if self.next.is_some_and(|next| next != at) {
            return Err(rows::corrupt("a batch is missing"));
        }
        let row = row.at(at)?;
        self.next = Some(row.next());
        self.events += row.events_from(self.from);
        self.rows.push(row);
        Ok(self.events >= self.max_events)
    }
}
