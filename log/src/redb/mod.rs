//! A log in one file, by [redb](https://docs.rs/redb): nothing to install, and the default.
//!
//! A commit is one transaction and one sync. What is on the disk after a power loss is what some commit left there:
//! redb never overwrites what the last one needs, and the checksums of its pages tell whether the newest arrived whole.
//!
//! **In doubt, look.** A commit that fails leaves it open whether the disk has it. Then the file is opened anew, as
//! after a crash, which settles it: what is found is synced before it is believed, and what is not found never will
//! be. Only if the file cannot be opened either is the answer [`Error::Unknown`]; the next call tries again. One doubt
//! no program can settle: a system may forget that a write failed and later show from its cache what the disk never
//! got. A disk that reports errors should be replaced.
//!
//! **One process.** A lock on the folder, and redb's own on the file, keep a second process out. So the end of the log
//! can be remembered between calls, and handles ([`RedbLog::clone`]) share that memory.

mod fault;
mod folder;
mod rows;

use core::fmt;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use ::redb::{Database, DatabaseError, Durability, StorageBackend, WriteTransaction};
use onward_core::event::Stamped;
use onward_core::fence::Term;
use onward_core::ids::Seq;

use crate::head::{Admitted, Head};
use crate::{Batch, BatchKey, Error, Log, Snapshot, Tail, codec};

use fault::{Fault, found_while_open};

/// Rows are read once, at a takeover, and written once; a large cache would hold what nobody asks for.
const CACHE_BYTES: usize = 32 << 20;

/// A handle. Its clones are further handles on the same file, each with the same rights.
#[derive(Clone, Debug)]
pub struct RedbLog(Arc<Mutex<Inner>>);

struct Inner {
    /// `None` after a failure, until the file was opened anew.
    database: Option<Database>,
    /// Whether a commit failed and nobody could look yet what became of it.
    in_doubt: bool,
    open: Box<dyn FnMut() -> Result<Database, Error> + Send>,
    head: Head,
    /// Reused from append to append.
    row: Vec<u8>,
    /// Held for as long as the log is open.
    _lock: Option<File>,
}

impl RedbLog {
    /// Opens the log in `folder`, or makes one there: the file is `onward.redb`.
    pub fn open(folder: impl AsRef<Path>) -> Result<Self, Error> {
        let (lock, file) = folder::prepare(folder.as_ref())?;
        let place = folder.as_ref().display().to_string();
        let open = move || {
            let opened = Database::builder().set_cache_size(CACHE_BYTES).open(&file);
            opened.map_err(|error| found_while_open(error, &place))
        };
        Self::start(Box::new(open), Some(lock))
    }

    /// A log on storage of one's own making, as for tests of what a disk may do. `storage` is called again after a
    /// failure, and must give the same bytes each time.
    pub fn on_storage<B: StorageBackend>(
        mut storage: impl FnMut() -> io::Result<B> + Send + 'static,
    ) -> Result<Self, Error> {
        let open = move || {
            let storage = storage().map_err(|error| found_while_open(DatabaseError::from(error), "storage"))?;
            let opened = Database::builder().set_cache_size(CACHE_BYTES).create_with_backend(storage);
            opened.map_err(|error| found_while_open(error, "storage"))
        };
        Self::start(Box::new(open), None)
    }

    fn start(open: Box<dyn FnMut() -> Result<Database, Error> + Send>, lock: Option<File>) -> Result<Self, Error> {
        let mut inner =
            Inner { database: None, in_doubt: false, open, head: Head::default(), row: Vec::new(), _lock: lock };
        inner.reopen()?;
        Ok(Self(Arc::new(Mutex::new(inner))))
    }

    /// Ready to be used: opened anew if something failed before.
    fn ready(&self) -> Result<MutexGuard<'_, Inner>, Error> {
        let mut inner = self.0.lock().expect("nothing panics while it holds the log");
        if inner.database.is_none()
            && let Err(error) = inner.reopen()
        {
            // Whoever asks again about a batch in doubt must not hear that it was not stored.
            return Err(if inner.in_doubt { Error::Unknown { cause: error.to_string() } } else { error });
        }
        Ok(inner)
    }
}

impl Inner {
    fn reopen(&mut self) -> Result<(), Error> {
        let database = (self.open)()?;
        self.head = rows::prepare(&database).map_err(Fault::into_error)?;
        self.database = Some(database);
        self.in_doubt = false;
        Ok(())
    }

    fn reading<T>(&mut self, read: impl FnOnce(&Database, &Head) -> Result<T, Fault>) -> Result<T, Error> {
        let database = self.database.as_ref().expect("it is ready");
        read(database, &self.head).map_err(|fault| {
            if fault.is_storage() {
                self.database = None;
            }
            fault.into_error()
        })
    }

    /// One durable transaction. `took_effect` tells, by what is found after a failure, whether it was stored after all.
    fn commit(
        &mut self,
        write: impl FnOnce(&WriteTransaction, &[u8]) -> Result<(), Fault>,
        took_effect: impl FnOnce(&Head) -> bool,
    ) -> Result<(), Error> {
        let database = self.database.as_ref().expect("it is ready");
        let (fault, was_committing) = match written(database, &self.row, write) {
            Err(fault) => (fault, false),
            Ok(transaction) => match transaction.commit() {
                Ok(()) => return Ok(()),
                Err(error) => (Fault::from(error), true),
            },
        };
        // Dropping it first: the file can be opened once at a time.
        self.database = None;
        if !was_committing {
            return Err(fault.into_error());
        }
        self.in_doubt = true;
        match self.reopen() {
            Err(still) => Err(Error::Unknown { cause: format!("{fault}; and then: {still}") }),
            Ok(()) if took_effect(&self.head) => Ok(()),
            Ok(()) => Err(fault.into_error()),
        }
    }
}

fn written(
    database: &Database,
    row: &[u8],
    write: impl FnOnce(&WriteTransaction, &[u8]) -> Result<(), Fault>,
) -> Result<WriteTransaction, Fault> {
    let mut transaction = database.begin_write()?;
    transaction.set_durability(Durability::Immediate).expect("no savepoints are used");
    write(&transaction, row)?;
    Ok(transaction)
}

impl Log for RedbLog {
    fn tail(&mut self) -> Result<Tail, Error> {
        Ok(self.ready()?.head.tail)
    }

    fn take_seat(&mut self) -> Result<Tail, Error> {
        let inner = &mut *self.ready()?;
        let term = inner.head.next_term();
        inner.commit(|transaction, _| rows::put_term(transaction, term), |head| head.tail.term == term)?;
        inner.head.tail.term = term;
        Ok(inner.head.tail)
    }

    fn append(&mut self, key: BatchKey, events: &[Stamped]) -> Result<(), Error> {
        let inner = &mut *self.ready()?;
        if inner.head.admit(key, events)? == Admitted::AlreadyThere {
            return Ok(());
        }
        inner.row.clear();
        codec::encode(key, events, &mut inner.row);
        inner.commit(
            |transaction, row| rows::put_batch(transaction, key.first, row),
            |head| head.newest_batch == Some(key),
        )?;
        inner.head.appended(key, events);
        Ok(())
    }

    fn read(&mut self, from: Seq, max_events: usize) -> Result<Vec<Batch>, Error> {
        self.ready()?.reading(|database, head| rows::read(database, from.max(Seq(1)), max_events, head.tail.last))
    }

    fn put_chunk(&mut self, term: Term, covers: Seq, index: u32, chunk: &[u8]) -> Result<(), Error> {
        let inner = &mut *self.ready()?;
        inner.head.admit_chunk(term, covers, index)?;
        inner.row.clear();
        codec::encode_opaque(chunk, &mut inner.row);
        let finished = inner.head.snapshot;
        let stored = Some(Snapshot { covers, chunks: index + 1 });
        inner.commit(
            |transaction, row| rows::put_chunk(transaction, finished, covers, index, row),
            |head| head.unfinished == stored,
        )?;
        inner.head.chunk_put(covers, index);
        Ok(())
    }

    fn finish_snapshot(&mut self, term: Term, covers: Seq, chunks: u32) -> Result<(), Error> {
        let inner = &mut *self.ready()?;
        if inner.head.admit_finish(term, covers, chunks)? == Admitted::AlreadyThere {
            return Ok(());
        }
        let snapshot = Snapshot { covers, chunks };
        inner.commit(
            |transaction, _| rows::finish_snapshot(transaction, snapshot),
            |head| head.snapshot == Some(snapshot),
        )?;
        inner.head.snapshot = Some(snapshot);
        inner.head.unfinished = None;
        Ok(())
    }

    fn snapshot(&mut self) -> Result<Option<Snapshot>, Error> {
        Ok(self.ready()?.head.snapshot)
    }

    fn chunk(&mut self, index: u32) -> Result<Vec<u8>, Error> {
        self.ready()?.reading(|database, head| rows::chunk(database, head.snapshot, index))
    }

    fn truncate(&mut self, term: Term, max_batches: usize) -> Result<bool, Error> {
        let inner = &mut *self.ready()?;
        inner.head.holds_seat(term)?;
        let Some(snapshot) = inner.head.snapshot else { return Ok(false) };
        let mut more = false;
        inner.commit(
            |transaction, _| {
                more = rows::truncate(transaction, snapshot.covers, max_batches)?;
                Ok(())
            },
            // What was truncated shows in no number; asking again is harmless.
            |_| false,
        )?;
        Ok(more)
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inner")
            .field("open", &self.database.is_some())
            .field("head", &self.head)
            .finish_non_exhaustive()
    }
}
