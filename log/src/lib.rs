//! The fenced log: the truth of one datacenter, and the engine's word on who may write it; and the archive beside it.
//!
//! A manager's state lives in memory as a fold over events. This crate keeps those events. It asks little of an
//! engine, and that little exactly:
//!
//! - **The seat.** [`Log::take_seat`] begins a new *term*, higher than any before, durably, if the term that the caller
//!   has seen is still the newest: of two who saw the same one wins, and the other learns whom to follow
//!   ([`Error::SeatTaken`]). From then on an append of an earlier term is refused, from whichever handle or process it
//!   comes. Who leads is decided here and nowhere else; everything that gossip says is only a hint on when to try.
//! - **Confirming.** Whoever holds the seat must know that it still does. An append that returned says so, and where
//!   nothing is appended [`Log::confirm`] does: by the same way as an append, never by a read, because a store that was
//!   cut off from the others goes on answering reads.
//! - **Appending.** [`Log::append`] stores a batch as *one row*, if the term still holds and the batch begins at the
//!   next sequence number. All of a batch is stored or nothing of it. When `append` returned `Ok`, the batch survives
//!   a power loss.
//! - **Asking again.** An append whose answer was lost ([`Error::Unknown`]) is repeated with the same sequence number
//!   and the same [`BatchId`] until there is an answer. It is stored once, however often it is asked for.
//! - **Blobs.** Payloads and results that are too large for the fold are stored beside the batch that names them, by the
//!   SHA-256 of their content, and durable with it: a batch that is there has its blobs. They are read one by one
//!   ([`Log::blob`]), from other threads too and while a commit is under way ([`BlobReader`]), and stay until they are
//!   dropped ([`Log::drop_blobs`]); truncation does not touch them.
//! - **Reading.** [`Log::read`] gives rows from a sequence number on, in order and without a gap.
//! - **Snapshots.** Opaque chunks, tagged with the sequence number that they cover. A snapshot counts only once it is
//!   finished; until then, and in a crash at any point, the one before it stays the newest. [`Log::truncate`] removes
//!   what the newest finished one covers.
//!
//! Sequence numbers count events, from 1, as [`Seq`] does. A batch is found by the number of its first event.
//!
//! **Whom to believe after an error.** Every [`Error`] says whether the log may have changed ([`Error::changed`]). If
//! nothing changed, what was decided in memory beyond the log is not true: drop the machine and rebuild it by reading.
//!
//! Beside the log, in the same folder, finished jobs are kept in an [`archive`], which has no seat and no terms; and
//! [`backup`](mod@backup) makes one file of both, while they are written, and a folder of such a file.
//!
//! **Rows are bytes.** An engine knows of a row under which key it was appended and how many events it has, and nothing
//! of what they say; so any machine can have a log on any engine. A manager's events are made into bytes by [`codec`].
//!
//! Data flows through the modules in this order: [`codec`] turns events into bytes; [`group`] gathers what waits while a
//! commit is under way; `head` decides whether a row may be appended, the same for every engine; [`engines`] keep the
//! row, in the form that [`row`] gives it, and the blobs with it. The trait is synchronous: a node gives its log a
//! thread of its own. `conformance` (a feature) is what each engine is asked.

pub mod archive;
pub mod backup;
mod blob;
pub mod changes;
pub mod codec;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod engines;
mod error;
pub mod group;
mod head;
pub mod row;

use onward_core::fence::Term;
use onward_core::ids::Seq;

pub use archive::{Archive, ArchivedJob, ScanPage};
pub use backup::{Damage, RestoreSummary, backup, restore};
pub use blob::{Blob, BlobDigest, BlobReader, OwnedBlob};
pub use codec::{Batch, EventLog};
pub use engines::embedded::{ArchiveEntry, EmbeddedArchive, EmbeddedLog, Loss, OnLoss, OpenedPair, make_folder};
pub use engines::memory::MemoryLog;
pub use error::{Error, LogChange};
pub use group::{AppendGroup, GroupCommit};
pub use head::{AppendAdmission, BatchKey, Head};
pub use row::{LogRow, RowIdentity, StoredRow};

/// Tells a batch that is tried again from another that came in between. Any number that its writer does not use twice
/// within a term will do.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BatchId(pub u64);

/// The end of a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tail {
    /// The term that holds the seat; 0 if nobody ever sat.
    pub term: Term,
    /// The newest event; 0 if there is none.
    pub last: Seq,
}

/// A finished snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Snapshot {
    /// Every event up to this one is in it. Read on from the next.
    pub covers: Seq,
    pub chunks: u32,
}

/// See the [crate] for what each of these promises.
pub trait Log: Send {
    /// The end of the log, and the term that holds its seat.
    fn tail(&mut self) -> Result<Tail, Error>;

    /// Begins a new term, if `seen` is still the newest; else [`Error::SeatTaken`] says which one is. After
    /// [`Error::Unknown`] look at the tail and call it again: a term may go unused, and no harm is done.
    fn take_seat(&mut self, seen: Term) -> Result<Tail, Error>;

    /// Confirms by a write that `term` holds the seat at this moment; [`Error::StaleTerm`] if another does. What it
    /// writes need not outlive a loss of power: a term that another begins is durable, and that is what counts.
    fn confirm(&mut self, term: Term) -> Result<(), Error>;

    /// Appends `row`, its events beginning at `key.first`, and stores `blobs` with it: all or nothing. A blob that
    /// is there already is left as it is. Asked again, the same blobs are given again.
    ///
    /// # Panics
    /// An empty batch has no sequence number; asking to store one is a bug.
    fn append(&mut self, key: BatchKey, row: LogRow<'_>, blobs: &[Blob<'_>]) -> Result<(), Error>;

    /// Whole rows, from the one on that holds `from`, until they have at least `max_events` events from `from` on. Empty
    /// at the end of the log.
    fn read(&mut self, from: Seq, max_events: usize) -> Result<Vec<StoredRow>, Error>;

    /// The content of a blob; `None` if it was never stored, or was dropped.
    fn blob(&mut self, digest: &BlobDigest) -> Result<Option<Vec<u8>>, Error>;

    /// A reader of blobs for other threads, and for as long as they like.
    fn blob_reader(&self) -> BlobReader;

    /// Up to `max` digests of blobs that are stored, in order, beginning after `after`. A manager that has read its
    /// log drops those that nothing names.
    fn blobs(&mut self, after: Option<&BlobDigest>, max: usize) -> Result<Vec<BlobDigest>, Error>;

    /// Drops blobs that nothing names any more. What is not there needs no dropping.
    fn drop_blobs(&mut self, term: Term, digests: &[BlobDigest]) -> Result<(), Error>;

    /// Stores one chunk of a snapshot that will cover everything up to `covers`. Chunks come in order from 0; the
    /// newest may be sent again; chunk 0 gives up whatever other snapshot was unfinished.
    fn put_chunk(&mut self, term: Term, covers: Seq, index: u32, chunk: &[u8]) -> Result<(), Error>;

    /// Makes the snapshot of `chunks` chunks the newest, and drops the one before it.
    fn finish_snapshot(&mut self, term: Term, covers: Seq, chunks: u32) -> Result<(), Error>;

    /// The newest finished snapshot.
    fn snapshot(&mut self) -> Result<Option<Snapshot>, Error>;

    /// A chunk of the newest finished snapshot.
    fn chunk(&mut self, index: u32) -> Result<Vec<u8>, Error>;

    /// Removes up to `max_batches` batches that the newest finished snapshot covers, the oldest first, and says
    /// whether there are more. The newest batch of the log always stays: it says where the log ends.
    fn truncate(&mut self, term: Term, max_batches: usize) -> Result<bool, Error>;
}
