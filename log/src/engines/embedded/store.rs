//! A redb file that one thread writes and many read, and that is opened anew after a failure.
//!
//! A transaction of redb does not borrow the database, so the slot that holds it is locked for an instant only: to
//! begin a transaction, or to take the database out after a failure. Readers therefore never wait for a commit, which
//! holds the writer's lock until the disk has synced. A read that is under way when the file is closed fails, and is
//! asked again of the file as it was opened anew.

use core::fmt;
use std::fs::File;
use std::sync::{Mutex, MutexGuard, RwLock};

use ::redb::{Database, Durability, ReadTransaction, ReadableDatabase, WriteTransaction};

use crate::Error;

use super::fault::StoreFault;

pub(crate) type Open = Box<dyn FnMut() -> Result<Database, Error> + Send>;

/// Makes the tables in a new file, refuses one that is too new, and finds out what must be remembered; by what was
/// remembered before, if the file is opened anew.
pub(crate) type Prepare<S> = Box<dyn FnMut(&Database, Option<&S>) -> Result<S, StoreFault> + Send>;

/// `S` is what is remembered of the file between calls.
pub(crate) struct RedbFile<S> {
    // Dropped before the writer, which has the folder's lock.
    slot: RwLock<Slot>,
    writer: Mutex<Writer<S>>,
}

/// The provision of a commit for the next time that the file is opened after a crash. The newest commit counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Repair {
    /// Nothing, for one sync a commit: after a crash, redb reads the whole file.
    Full,
    /// Two syncs a commit, and the map of free pages with it: after a crash, the file opens at once.
    Quick,
}

#[derive(Default)]
struct Slot {
    /// `None` after a failure, until the file was opened anew.
    database: Option<Database>,
    /// The number of times that the file was opened.
    opened: u64,
}

pub(crate) struct Writer<S> {
    pub(crate) state: S,
    /// Reused from commit to commit.
    pub(crate) row: Vec<u8>,
    /// Set while a commit has failed and nobody could look yet what became of it.
    in_doubt: bool,
    open: Open,
    prepare: Prepare<S>,
    /// Held for as long as the file is open.
    _lock: Option<File>,
}

impl<S> RedbFile<S> {
    pub(crate) fn start(mut open: Open, mut prepare: Prepare<S>, lock: Option<File>) -> Result<Self, Error> {
        let database = open()?;
        let state = prepare(&database, None).map_err(StoreFault::into_error)?;
        let slot = RwLock::new(Slot { database: Some(database), opened: 1 });
        Ok(Self {
            slot,
            writer: Mutex::new(Writer { state, row: Vec::new(), in_doubt: false, open, prepare, _lock: lock }),
        })
    }

    /// Ready to be used: opened anew if something failed before.
    pub(crate) fn ready(&self) -> Result<MutexGuard<'_, Writer<S>>, Error> {
        let mut writer = self.writer.lock().expect("nothing panics while it holds the store");
        let is_open = self.slot.read().expect(SLOT).database.is_some();
        if !is_open && let Err(error) = self.reopen(&mut writer) {
            // Whoever asks again about a batch in doubt must not hear that it was not stored.
            return Err(if writer.in_doubt { Error::Unknown { cause: error.cause() } } else { error });
        }
        Ok(writer)
    }

    /// Reads what the last commit left, without waiting for one that is under way.
    pub(crate) fn read<T>(&self, read: impl Fn(&ReadTransaction) -> Result<T, StoreFault>) -> Result<T, Error> {
        let mut fault = match self.attempt(&read)? {
            Ok(value) => return Ok(value),
            Err(fault) => fault,
        };
        if fault.is_storage() {
            // Once more, if it was a failure of the writer's that closed the file, or of a file that opens again.
            fault = match self.attempt(&read)? {
                Ok(value) => return Ok(value),
                Err(again) => again,
            };
        }
        Err(fault.into_error())
    }

    fn attempt<T>(
        &self,
        read: &impl Fn(&ReadTransaction) -> Result<T, StoreFault>,
    ) -> Result<Result<T, StoreFault>, Error> {
        let (opened, transaction) = self.begin_read()?;
        let result = transaction.and_then(|transaction| read(&transaction));
        if result.as_ref().is_err_and(StoreFault::is_storage) {
            let _writer = self.writer.lock().expect("nothing panics while it holds the store");
            self.close(Some(opened));
        }
        Ok(result)
    }

    fn begin_read(&self) -> Result<(u64, Result<ReadTransaction, StoreFault>), Error> {
        let begun = || {
            let slot = self.slot.read().expect(SLOT);
            let database = slot.database.as_ref()?;
            Some((slot.opened, database.begin_read().map_err(StoreFault::from)))
        };
        if let Some(begun) = begun() {
            return Ok(begun);
        }
        let _writer = self.ready().map_err(|error| match error {
            Error::Unknown { cause } => Error::Io { cause },
            error => error,
        })?;
        Ok(begun().expect("the writer's lock keeps it open"))
    }

    /// A view of what the last commit left, for as long as the caller likes. If the file is closed after a failure, it
    /// ends.
    pub(crate) fn view(&self) -> Result<ReadTransaction, Error> {
        self.begin_read()?.1.map_err(StoreFault::into_error)
    }

    /// The same, for whoever writes: no commit comes in between.
    pub(crate) fn view_locked(&self, _writer: &MutexGuard<'_, Writer<S>>) -> Result<ReadTransaction, Error> {
        let begun = self.slot.read().expect(SLOT).database.as_ref().expect(READY).begin_read();
        begun.map_err(|error| StoreFault::from(error).into_error())
    }

    /// Reads together with what is remembered: no commit comes in between.
    pub(crate) fn read_locked<T>(
        &self,
        writer: &MutexGuard<'_, Writer<S>>,
        read: impl FnOnce(&ReadTransaction, &S) -> Result<T, StoreFault>,
    ) -> Result<T, Error> {
        let begun = self.slot.read().expect(SLOT).database.as_ref().expect(READY).begin_read();
        begun.map_err(StoreFault::from).and_then(|transaction| read(&transaction, &writer.state)).map_err(|fault| {
            if fault.is_storage() {
                self.close(None);
            }
            fault.into_error()
        })
    }

    /// Runs one durable transaction. `took_effect` tells, by what is found after a failure, whether it was stored after
    /// all.
    pub(crate) fn commit(
        &self,
        writer: &mut Writer<S>,
        repair: Repair,
        write: impl FnOnce(&WriteTransaction) -> Result<(), StoreFault>,
        took_effect: impl FnOnce(&S, &ReadTransaction) -> Result<bool, StoreFault>,
    ) -> Result<(), Error> {
        match self.written(repair, write) {
            Err(fault) => {
                self.close(None);
                Err(fault.into_error())
            }
            Ok(transaction) => match transaction.commit() {
                Ok(()) => Ok(()),
                Err(error) => self.resolve_in_doubt(writer, error.into(), took_effect),
            },
        }
    }

    /// Looks whether a transaction that failed was stored after all.
    pub(crate) fn resolve_in_doubt(
        &self,
        writer: &mut Writer<S>,
        fault: StoreFault,
        took_effect: impl FnOnce(&S, &ReadTransaction) -> Result<bool, StoreFault>,
    ) -> Result<(), Error> {
        // First of all, because the file can be opened once at a time.
        self.close(None);
        writer.in_doubt = true;
        let found = self.reopen(writer).and_then(|()| {
            let view = self.slot.read().expect(SLOT).database.as_ref().expect(READY).begin_read();
            view.map_err(StoreFault::from)
                .and_then(|view| took_effect(&writer.state, &view))
                .map_err(StoreFault::into_error)
        });
        match found {
            Err(still) => Err(Error::Unknown { cause: format!("{fault}; and then: {}", still.cause()) }),
            Ok(true) => Ok(()),
            Ok(false) => Err(fault.into_error()),
        }
    }

    fn written(
        &self,
        repair: Repair,
        write: impl FnOnce(&WriteTransaction) -> Result<(), StoreFault>,
    ) -> Result<WriteTransaction, StoreFault> {
        let mut transaction = self.slot.read().expect(SLOT).database.as_ref().expect(READY).begin_write()?;
        transaction.set_durability(Durability::Immediate).expect("no savepoints are used");
        transaction.set_quick_repair(repair == Repair::Quick);
        write(&transaction)?;
        Ok(transaction)
    }

    fn reopen(&self, writer: &mut Writer<S>) -> Result<(), Error> {
        let database = (writer.open)()?;
        writer.state = (writer.prepare)(&database, Some(&writer.state)).map_err(StoreFault::into_error)?;
        writer.in_doubt = false;
        let mut slot = self.slot.write().expect(SLOT);
        slot.database = Some(database);
        slot.opened += 1;
        Ok(())
    }

    /// Only the holder of the writer's lock closes; of a particular opening, if one is named.
    fn close(&self, opened: Option<u64>) {
        let mut slot = self.slot.write().expect(SLOT);
        if opened.is_none_or(|opened| opened == slot.opened) {
            let database = slot.database.take();
            drop(slot);
            drop(database);
        }
    }
}

const SLOT: &str = "nothing panics while it holds the slot";
const READY: &str = "it is ready";

impl<S: fmt::Debug> fmt::Debug for RedbFile<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.writer.try_lock().ok();
        f.debug_struct("Store").field("state", &state.as_ref().map(|writer| &writer.state)).finish_non_exhaustive()
    }
}
