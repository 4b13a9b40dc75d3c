//! A log in two files, by [redb](https://docs.rs/redb) and a journal in front of it: nothing to install, and the default.
//!
//! An append goes to the journal: one write and one sync. What must be found by a name, the term, snapshots and blobs,
//! is in redb, and so are the rows that the journal has no room for any more; a batch with blobs goes there in one
//! transaction with them. What is on the disk after a power loss is what some commit left there: redb never overwrites
//! what the last one needs, the journal nothing that is not in redb or covered by a snapshot, and the checksums of both
//! tell whether the newest arrived whole.
//!
//! **In doubt, look.** A commit that fails leaves it open whether the disk has it. Then both files are opened anew, as
//! after a crash, which settles it: what is found is made durable before it is believed, and what is not found never
//! will be. Only if they cannot be opened either is the answer [`Error::Unknown`]; the next call tries again. After a
//! sync that failed the system may show what the disk never got: so everything that a sync was to store is written again
//! first, and so are the newest rows of the journal. What no program can make up for is a file system that itself loses
//! what it has said to be stored: a disk that reports errors should be replaced.
//!
//! **One process.** A lock on the folder, and redb's own on its file, keep a second process out. So the end of the log
//! can be remembered between calls, and handles ([`EmbeddedLog::clone`]) share that memory.
//!
//! **Blobs** lie beside the batches and are written by the same transaction. They are read by transactions of their own,
//! which see what the last commit left and wait for none.
//!
//! **Opening.** The journal is read to its end. redb's commits bring the map of free pages with them, at the price of a
//! second sync, so that the file opens at once after a crash; but not those with blobs, because somebody waits for them:
//! if the newest was such a one, redb reads the whole file, about a second for each gigabyte of blobs.

pub mod archive;
pub(crate) mod fault;
mod files;
pub(crate) mod folder;
pub(crate) mod journal;
pub mod pair;
pub(crate) mod pieces;
pub(crate) mod rows;
pub(crate) mod store;
mod unsynced;

use std::io;
use std::path::Path;
use std::sync::Arc;

use ::redb::{Database, ReadTransaction, StorageBackend, WriteTransaction};
use onward_core::fence::Term;
use onward_core::ids::Seq;

use crate::head::AppendAdmission;
use crate::{BatchKey, Blob, BlobDigest, BlobReader, Error, Log, LogRow, Snapshot, StoredRow, Tail, codec};

use fault::found_while_open;
use files::LogFiles;
use journal::{JournalFile, NotAppended, PendingRows};
use store::{Open, RedbFile, Repair, Writer};
use unsynced::UnsyncedRanges;

pub use archive::{ArchiveEntry, EmbeddedArchive};
pub use folder::make_folder;
pub use journal::Loss;
pub use pair::OpenedPair;

/// Rows are read once, at a takeover, and written once; a large cache would hold what nobody asks for.
const CACHE_BYTES: usize = 32 << 20;

/// The way to treat acknowledged events that are not there any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnLoss {
    /// The log is not opened, and left as it is.
    Refuse,
    /// The log goes on with what is left, and says what is not: [`EmbeddedLog::accepted_loss`].
    Accept,
}

/// A handle. Its clones are further handles on the same file, each with the same rights.
#[derive(Clone, Debug)]
pub struct EmbeddedLog(Arc<RedbFile<LogFiles>>);

impl EmbeddedLog {
    /// Opens the log in `folder`, or makes one there: the files are `onward.redb` and `onward.journal`.
    pub fn open(folder: impl AsRef<Path>) -> Result<Self, Error> {
        Self::open_or(folder, OnLoss::Refuse)
    }

    /// Opens, as [`Self::open`] does, a folder whose files may be damaged.
    pub fn open_or(folder: impl AsRef<Path>, on_loss: OnLoss) -> Result<Self, Error> {
        let folder = folder.as_ref().to_owned();
        let (lock, open) = folder::LOG.prepare(&folder, CACHE_BYTES)?;
        let prepare = files::prepare(move || Ok(Arc::new(JournalFile::open(&folder)?)), journal::HALF_BYTES, on_loss);
        Ok(Self(Arc::new(RedbFile::start(open, prepare, Some(lock))?)))
    }

    /// A log on storage of one's own making, as for tests of what a disk may do: one for redb, and one for a journal
    /// of two halves of this many bytes. Each is called again after a failure, and must give the same bytes each time.
    pub fn on_storage<B: StorageBackend, J: StorageBackend>(
        storage: impl FnMut() -> io::Result<B> + Send + 'static,
        mut journal: impl FnMut() -> io::Result<J> + Send + 'static,
        half_bytes: u64,
        on_loss: OnLoss,
    ) -> Result<Self, Error> {
        let open = on_storage(storage, CACHE_BYTES);
        let prepare = files::prepare(move || Ok(Arc::new(journal()?)), half_bytes, on_loss);
        Ok(Self(Arc::new(RedbFile::start(open, prepare, None)?)))
    }

    /// The loss that was found when the log was opened, and was accepted.
    pub fn accepted_loss(&self) -> Result<Option<Loss>, Error> {
        Ok(self.0.ready()?.state.accepted.clone())
    }

    /// A view of everything that was appended up to now, and no more, in redb alone.
    pub(crate) fn view(&self) -> Result<ReadTransaction, Error> {
        // Nothing is in doubt for whoever only wants to read.
        self.view_of_all().map_err(|error| match error {
            Error::Unknown { cause } => Error::Io { cause },
            error => error,
        })
    }

    fn view_of_all(&self) -> Result<ReadTransaction, Error> {
        let mut writer = self.0.ready()?;
        let (moved, stored) = (writer.state.needed_of_all(), writer.state.stored);
        if let Some(last) = moved.last() {
            let put = |transaction: &WriteTransaction| {
                rows::put_reached(transaction, last)?;
                rows::put_rows(transaction, stored, &moved)
            };
            self.0.commit(&mut writer, Repair::Quick, put, |files, _| Ok(files.stored >= last))?;
            writer.state.moved(last);
        }
        self.0.view_locked(&writer)
    }

    /// Appends with one write and one sync, and now and then what it takes to have room for it.
    fn append_to_journal(
        &self,
        writer: &mut Writer<LogFiles>,
        key: BatchKey,
        count: u32,
        row: &[u8],
    ) -> Result<(), Error> {
        if !writer.state.journal.has_room(row.len()) {
            let left = writer.state.needed_of_other();
            self.move_rows(writer, &left)?;
            writer.state.journal.switch_half();
        } else if let Some(due) = writer.state.rows_to_migrate() {
            self.move_rows(writer, &due)?;
        }
        match writer.state.journal.append(key.first, count, row) {
            Ok(()) => Ok(()),
            Err(NotAppended::Unwritten(error)) => Err(error),
            Err(NotAppended::InDoubt(error)) => {
                self.0.resolve_in_doubt(writer, error.into(), |files, _| Ok(files.head.newest_batch == Some(key)))
            }
        }
    }

    /// Moves rows from the journal into redb; they are the oldest of the journal.
    fn move_rows(&self, writer: &mut Writer<LogFiles>, moved: &PendingRows) -> Result<(), Error> {
        let Some(last) = moved.last() else { return Ok(()) };
        let (stored, reached) = (writer.state.stored, writer.state.head.tail.last);
        let put = |transaction: &WriteTransaction| {
            rows::put_reached(transaction, reached)?;
            rows::put_rows(transaction, stored, moved)
        };
        self.0.commit(writer, Repair::Quick, put, |files, _| Ok(files.stored >= last))?;
        writer.state.stored = last;
        writer.state.journal.forget_up_to(last);
        Ok(())
    }

    /// Appends in one transaction with the blobs, and with the rows of the journal, which come before.
    fn append_to_redb(
        &self,
        writer: &mut Writer<LogFiles>,
        key: BatchKey,
        row: &[u8],
        blobs: &[Blob<'_>],
    ) -> Result<(), Error> {
        let (moved, stored) = (writer.state.needed_of_all(), writer.state.stored);
        self.0.commit(
            writer,
            // Somebody waits for this one.
            Repair::Full,
            |transaction| {
                rows::put_rows(transaction, stored, &moved)?;
                rows::put_batch(transaction, key.first, row, blobs)
            },
            |files, _| Ok(files.head.newest_batch == Some(key)),
        )
    }
}

pub(crate) fn on_storage<B: StorageBackend>(
    mut storage: impl FnMut() -> io::Result<B> + Send + 'static,
    cache_bytes: usize,
) -> Open {
    let unsynced = UnsyncedRanges::default();
    Box::new(move || {
        let storage = storage().and_then(|storage| unsynced.on(storage, || Ok(())));
        let storage = storage.map_err(|error| found_while_open(error.into(), "storage"))?;
        let opened = Database::builder().set_cache_size(cache_bytes).create_with_backend(storage);
        opened.map_err(|error| found_while_open(error, "storage"))
    })
}

impl Log for EmbeddedLog {
    fn tail(&mut self) -> Result<Tail, Error> {
        Ok(self.0.ready()?.state.head.tail)
    }

    fn take_seat(&mut self, seen: Term) -> Result<Tail, Error> {
        let mut writer = self.0.ready()?;
        let (term, reached) = (writer.state.head.next_term(seen)?, writer.state.head.tail.last);
        self.0.commit(
            &mut writer,
            Repair::Quick,
            |transaction| {
                rows::put_reached(transaction, reached)?;
                rows::put_term(transaction, term)
            },
            |files, _| Ok(files.head.tail.term == term),
        )?;
        writer.state.head.tail.term = term;
        Ok(writer.state.head.tail)
    }

    /// The folder's lock is what keeps others out, and the system takes it from us with our process only; so nothing
    /// that could be written here would say more than that, and an idle node leaves its disk in peace. What is said is
    /// said under the writer's lock: behind a commit that hangs, and not at all by a store that failed and does not open
    /// again.
    fn confirm(&mut self, term: Term) -> Result<(), Error> {
        self.0.ready()?.state.head.holds_seat(term)
    }

    fn append(&mut self, key: BatchKey, row: LogRow<'_>, blobs: &[Blob<'_>]) -> Result<(), Error> {
        let mut writer = self.0.ready()?;
        if writer.state.head.admit(key, row.count)? == AppendAdmission::AlreadyThere {
            return Ok(());
        }
        let mut bytes = core::mem::take(&mut writer.row);
        bytes.clear();
        row.put(key, &mut bytes);
        let by_journal = blobs.is_empty() && writer.state.journal.takes(bytes.len());
        if by_journal {
            self.append_to_journal(&mut writer, key, row.count, &bytes)?;
        } else {
            self.append_to_redb(&mut writer, key, &bytes, blobs)?;
        }
        writer.state.head.appended(key, row.count);
        if !by_journal {
            let last = writer.state.head.tail.last;
            writer.state.moved(last);
        }
        writer.row = bytes;
        Ok(())
    }

    fn read(&mut self, from: Seq, max_events: usize) -> Result<Vec<StoredRow>, Error> {
        let writer = self.0.ready()?;
        self.0.read_locked(&writer, |view, files| files.read(view, from.max(Seq(1)), max_events))
    }

    fn blob(&mut self, digest: &BlobDigest) -> Result<Option<Vec<u8>>, Error> {
        self.0.read(|view| rows::blob(view, digest))
    }

    fn blob_reader(&self) -> BlobReader {
        let store = self.0.clone();
        BlobReader::new(move |digest| store.read(|view| rows::blob(view, digest)))
    }

    fn blobs(&mut self, after: Option<&BlobDigest>, max: usize) -> Result<Vec<BlobDigest>, Error> {
        self.0.read(|view| rows::blobs(view, after, max))
    }

    fn drop_blobs(&mut self, term: Term, digests: &[BlobDigest]) -> Result<(), Error> {
        let mut writer = self.0.ready()?;
        writer.state.head.holds_seat(term)?;
        if !self.0.read_locked(&writer, |view, _| rows::has_any(view, digests))? {
            return Ok(());
        }
        self.0.commit(
            &mut writer,
            Repair::Quick,
            |transaction| rows::drop_blobs(transaction, digests),
            |_, view| Ok(!rows::has_any(view, digests)?),
        )
    }

    fn put_chunk(&mut self, term: Term, covers: Seq, index: u32, chunk: &[u8]) -> Result<(), Error> {
        let mut writer = self.0.ready()?;
        writer.state.head.admit_chunk(term, covers, index)?;
        let mut row = Vec::new();
        codec::encode_opaque(chunk, &mut row);
        let finished = writer.state.head.snapshot;
        let stored = Some(Snapshot { covers, chunks: index + 1 });
        self.0.commit(
            &mut writer,
            Repair::Quick,
            |transaction| rows::put_chunk(transaction, finished, covers, index, &row),
            // The newest chunk may be sent again with other content, so its number alone says nothing.
            |files, view| Ok(files.head.unfinished == stored && rows::chunk(view, stored, index)? == chunk),
        )?;
        writer.state.head.chunk_put(covers, index);
        Ok(())
    }

    fn finish_snapshot(&mut self, term: Term, covers: Seq, chunks: u32) -> Result<(), Error> {
        let mut writer = self.0.ready()?;
        if writer.state.head.admit_finish(term, covers, chunks)? == AppendAdmission::AlreadyThere {
            return Ok(());
        }
        let (snapshot, reached) = (Snapshot { covers, chunks }, writer.state.head.tail.last);
        self.0.commit(
            &mut writer,
            Repair::Quick,
            |transaction| {
                rows::put_reached(transaction, reached)?;
                rows::finish_snapshot(transaction, snapshot)
            },
            |files, _| Ok(files.head.snapshot == Some(snapshot)),
        )?;
        writer.state.head.snapshot = Some(snapshot);
        writer.state.head.unfinished = None;
        Ok(())
    }

    fn snapshot(&mut self) -> Result<Option<Snapshot>, Error> {
        Ok(self.0.ready()?.state.head.snapshot)
    }

    fn chunk(&mut self, index: u32) -> Result<Vec<u8>, Error> {
        let writer = self.0.ready()?;
        self.0.read_locked(&writer, |view, files| rows::chunk(view, files.head.snapshot, index))
    }

    fn truncate(&mut self, term: Term, max_batches: usize) -> Result<bool, Error> {
        let mut writer = self.0.ready()?;
        writer.state.head.holds_seat(term)?;
        let Some(Snapshot { covers, .. }) = writer.state.head.snapshot else { return Ok(false) };
        let next = writer.state.journal.first();
        let (mut removed, mut more) = (0, false);
        let covered =
            |view: &ReadTransaction, _: &LogFiles| rows::begins_covered(&view.open_table(rows::BATCHES)?, covers, next);
        if self.0.read_locked(&writer, covered)? {
            self.0.commit(
                &mut writer,
                Repair::Quick,
                |transaction| {
                    (removed, more) = rows::truncate(transaction, covers, next, max_batches)?;
                    Ok(())
                },
                // Truncation shows in no number; asking again is harmless.
                |_, _| Ok(false),
            )?;
        }
        Ok(more || writer.state.drop_covered(max_batches - removed))
    }
}
