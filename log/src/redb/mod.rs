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

//! **Blobs** lie beside the batches and are written by the same transaction. They are read by transactions of their own,
//! which see what the last commit left and wait for none.
//!
//! **Opening.** After a crash redb reads the whole file once, blobs too. The alternative is a second sync in every
//! commit, as the [archive](crate::archive) has it; a log holds what is in flight, and not history.

pub(crate) mod fault;
pub(crate) mod folder;
pub(crate) mod pieces;
pub(crate) mod rows;
pub(crate) mod store;

use std::io;
use std::path::Path;
use std::sync::Arc;

use ::redb::{Database, ReadTransaction, StorageBackend};
use onward_core::event::Stamped;
use onward_core::fence::Term;
use onward_core::ids::Seq;

use crate::head::{Admitted, Head};
use crate::{Batch, BatchKey, Blob, BlobReader, Digest, Error, Log, Snapshot, Tail, codec};

use fault::found_while_open;
use store::{Open, Repair, Store};

/// Rows are read once, at a takeover, and written once; a large cache would hold what nobody asks for.
const CACHE_BYTES: usize = 32 << 20;

/// A handle. Its clones are further handles on the same file, each with the same rights.
#[derive(Clone, Debug)]
pub struct RedbLog(Arc<Store<Head>>);

impl RedbLog {
    /// Opens the log in `folder`, or makes one there: the file is `onward.redb`.
    pub fn open(folder: impl AsRef<Path>) -> Result<Self, Error> {
        let (lock, open) = folder::LOG.prepare(folder.as_ref(), CACHE_BYTES)?;
        // A second sync would halve the rate of appends, and what a log keeps is bounded by what is in flight.
        Ok(Self(Arc::new(Store::start(open, rows::prepare, Repair::Full, Some(lock))?)))
    }

    /// A log on storage of one's own making, as for tests of what a disk may do. `storage` is called again after a
    /// failure, and must give the same bytes each time.
    pub fn on_storage<B: StorageBackend>(
        storage: impl FnMut() -> io::Result<B> + Send + 'static,
    ) -> Result<Self, Error> {
        let open = on_storage(storage, CACHE_BYTES);
        Ok(Self(Arc::new(Store::start(open, rows::prepare, Repair::Full, None)?)))
    }

    /// What the last commit left.
    pub(crate) fn view(&self) -> Result<ReadTransaction, Error> {
        self.0.view()
    }
}

pub(crate) fn on_storage<B: StorageBackend>(
    mut storage: impl FnMut() -> io::Result<B> + Send + 'static,
    cache_bytes: usize,
) -> Open {
    Box::new(move || {
        let storage = storage().map_err(|error| found_while_open(error.into(), "storage"))?;
        let opened = Database::builder().set_cache_size(cache_bytes).create_with_backend(storage);
        opened.map_err(|error| found_while_open(error, "storage"))
    })
}

impl Log for RedbLog {
    fn tail(&mut self) -> Result<Tail, Error> {
        Ok(self.0.ready()?.state.tail)
    }

    fn take_seat(&mut self) -> Result<Tail, Error> {
        let mut writer = self.0.ready()?;
        let term = writer.state.next_term();
        self.0.commit(
            &mut writer,
            |transaction| rows::put_term(transaction, term),
            |head, _| Ok(head.tail.term == term),
        )?;
        writer.state.tail.term = term;
        Ok(writer.state.tail)
    }

    fn append(&mut self, key: BatchKey, events: &[Stamped], blobs: &[Blob<'_>]) -> Result<(), Error> {
        let mut writer = self.0.ready()?;
        if writer.state.admit(key, events)? == Admitted::AlreadyThere {
            return Ok(());
        }
        let mut row = core::mem::take(&mut writer.row);
        row.clear();
        codec::encode(key, events, &mut row);
        self.0.commit(
            &mut writer,
            |transaction| rows::put_batch(transaction, key.first, &row, blobs),
            |head, _| Ok(head.newest_batch == Some(key)),
        )?;
        writer.state.appended(key, events);
        writer.row = row;
        Ok(())
    }

    fn read(&mut self, from: Seq, max_events: usize) -> Result<Vec<Batch>, Error> {
        let writer = self.0.ready()?;
        self.0.read_still(&writer, |view, head| rows::read(view, from.max(Seq(1)), max_events, head.tail.last))
    }

    fn blob(&mut self, digest: &Digest) -> Result<Option<Vec<u8>>, Error> {
        self.0.read(|view| rows::blob(view, digest))
    }

    fn blob_reader(&self) -> BlobReader {
        let store = self.0.clone();
        BlobReader::new(move |digest| store.read(|view| rows::blob(view, digest)))
    }

    fn blobs(&mut self, after: Option<&Digest>, max: usize) -> Result<Vec<Digest>, Error> {
        self.0.read(|view| rows::blobs(view, after, max))
    }

    fn drop_blobs(&mut self, term: Term, digests: &[Digest]) -> Result<(), Error> {
        let mut writer = self.0.ready()?;
        writer.state.holds_seat(term)?;
        if !self.0.read_still(&writer, |view, _| rows::has_any(view, digests))? {
            return Ok(());
        }
        self.0.commit(
            &mut writer,
            |transaction| rows::drop_blobs(transaction, digests),
            |_, view| Ok(!rows::has_any(view, digests)?),
        )
    }

    fn put_chunk(&mut self, term: Term, covers: Seq, index: u32, chunk: &[u8]) -> Result<(), Error> {
        let mut writer = self.0.ready()?;
        writer.state.admit_chunk(term, covers, index)?;
        let mut row = Vec::new();
        codec::encode_opaque(chunk, &mut row);
        let finished = writer.state.snapshot;
        let stored = Some(Snapshot { covers, chunks: index + 1 });
        self.0.commit(
            &mut writer,
            |transaction| rows::put_chunk(transaction, finished, covers, index, &row),
            // The newest chunk may be sent again with other content, so its number alone says nothing.
            |head, view| Ok(head.unfinished == stored && rows::chunk(view, stored, index)? == chunk),
        )?;
        writer.state.chunk_put(covers, index);
        Ok(())
    }

    fn finish_snapshot(&mut self, term: Term, covers: Seq, chunks: u32) -> Result<(), Error> {
        let mut writer = self.0.ready()?;
        if writer.state.admit_finish(term, covers, chunks)? == Admitted::AlreadyThere {
            return Ok(());
        }
        let snapshot = Snapshot { covers, chunks };
        self.0.commit(
            &mut writer,
            |transaction| rows::finish_snapshot(transaction, snapshot),
            |head, _| Ok(head.snapshot == Some(snapshot)),
        )?;
        writer.state.snapshot = Some(snapshot);
        writer.state.unfinished = None;
        Ok(())
    }

    fn snapshot(&mut self) -> Result<Option<Snapshot>, Error> {
        Ok(self.0.ready()?.state.snapshot)
    }

    fn chunk(&mut self, index: u32) -> Result<Vec<u8>, Error> {
        let writer = self.0.ready()?;
        self.0.read_still(&writer, |view, head| rows::chunk(view, head.snapshot, index))
    }

    fn truncate(&mut self, term: Term, max_batches: usize) -> Result<bool, Error> {
        let mut writer = self.0.ready()?;
        writer.state.holds_seat(term)?;
        let Some(snapshot) = writer.state.snapshot else { return Ok(false) };
        let mut more = false;
        self.0.commit(
            &mut writer,
            |transaction| {
                more = rows::truncate(transaction, snapshot.covers, max_batches)?;
                Ok(())
            },
            // What was truncated shows in no number; asking again is harmless.
            |_, _| Ok(false),
        )?;
        Ok(more)
    }
}
