//! A log in memory, for the simulator and for tests of what stands above a log. It forgets with its last handle.
//!
//! It keeps the same rows as any other engine, and it can be told to fail: the next append, in a way that is sure or
//! in one that leaves the caller in doubt; or every read of a blob. It never waits; a slow answer is a delay that whoever owns the clock has to
//! let pass.

use core::ops::Bound;
use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use onward_core::fence::Term;
use onward_core::ids::Seq;

use crate::head::{AppendAdmission, Head};
use crate::{BatchKey, Blob, BlobDigest, BlobReader, Error, Log, LogRow, Snapshot, StoredRow, Tail, codec};

/// A handle. Its clones are further handles on the same log, each with the same rights.
#[derive(Clone, Debug, Default)]
pub struct MemoryLog(Arc<Mutex<Store>>);

/// The fault that an append meets. Each happens once, in the order given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AppendFault {
    /// Nothing is stored, and the caller knows.
    Fails,
    /// Nothing is stored, and the caller knows why.
    Full,
    /// Nothing is stored, and the caller does not know.
    RequestLost,
    /// The row is stored, and the caller does not know.
    AnswerLost,
    /// The row is stored, and the answer takes this long: see [`MemoryLog::take_delay`].
    Slow(Duration),
}

#[derive(Debug, Default)]
struct Store {
    head: Head,
    rows: BTreeMap<Seq, Vec<u8>>,
    chunks: BTreeMap<(Seq, u32), Vec<u8>>,
    blobs: BTreeMap<BlobDigest, Vec<u8>>,
    faults: VecDeque<AppendFault>,
    blobs_fail: bool,
    is_in_doubt: bool,
    delay: Duration,
}

impl MemoryLog {
    pub fn new() -> Self {
        Self::default()
    }

    /// The next append meets this, after those that were asked for before.
    pub fn inject(&self, fault: AppendFault) {
        self.store().faults.push_back(fault);
    }

    /// Sets whether reading a blob fails from now on, as on a disk that cannot be read.
    pub fn fail_blobs(&self, fails: bool) {
        self.store().blobs_fail = fails;
    }

    /// Sets whether the fate of writes is unknown from now on; they are stored all the same. Reads are answered, as
    /// by a store that was cut off from others.
    pub fn doubt(&self, is_in_doubt: bool) {
        self.store().is_in_doubt = is_in_doubt;
    }

    /// The time that the answers since the last call should have taken.
    pub fn take_delay(&self) -> Duration {
        core::mem::take(&mut self.store().delay)
    }

    fn store(&self) -> MutexGuard<'_, Store> {
        self.0.lock().expect("nothing panics while it holds the log")
    }
}

fn in_doubt() -> Error {
    Error::Unknown { cause: "injected".to_owned() }
}

impl Store {
    fn known(&self) -> Result<(), Error> {
        if self.is_in_doubt { Err(in_doubt()) } else { Ok(()) }
    }

    fn blob(&self, digest: &BlobDigest) -> Result<Option<Vec<u8>>, Error> {
        if self.blobs_fail {
            return Err(Error::Io { cause: "injected".to_owned() });
        }
        Ok(self.blobs.get(digest).cloned())
    }
}

impl Log for MemoryLog {
    fn tail(&mut self) -> Result<Tail, Error> {
        Ok(self.store().head.tail)
    }

    fn take_seat(&mut self, seen: Term) -> Result<Tail, Error> {
        let store = &mut *self.store();
        store.head.tail.term = store.head.next_term(seen)?;
        store.known().map(|()| store.head.tail)
    }

    fn confirm(&mut self, term: Term) -> Result<(), Error> {
        let store = self.store();
        store.known()?;
        store.head.holds_seat(term)
    }

    fn append(&mut self, key: BatchKey, row: LogRow<'_>, blobs: &[Blob<'_>]) -> Result<(), Error> {
        assert!(row.count > 0, "a batch without events has no place in the log");
        let mut store = self.store();
        let fault = store.faults.pop_front();
        match fault {
            Some(AppendFault::Fails) => return Err(Error::Io { cause: "injected".to_owned() }),
            Some(AppendFault::Full) => return Err(Error::Full { cause: "injected".to_owned() }),
            Some(AppendFault::RequestLost) => return Err(in_doubt()),
            Some(AppendFault::Slow(delay)) => store.delay += delay,
            Some(AppendFault::AnswerLost) | None => {}
        }
        if store.head.admit(key, row.count)? == AppendAdmission::Write {
            let mut bytes = Vec::new();
            row.put(key, &mut bytes);
            store.rows.insert(key.first, bytes);
            for blob in blobs {
                store.blobs.entry(blob.digest).or_insert_with(|| blob.bytes.to_vec());
            }
            store.head.appended(key, row.count);
        }
        if fault == Some(AppendFault::AnswerLost) { Err(in_doubt()) } else { store.known() }
    }

    fn read(&mut self, from: Seq, max_events: usize) -> Result<Vec<StoredRow>, Error> {
        let store = self.store();
        let from = from.max(Seq(1));
        if let Some((&oldest, _)) = store.rows.first_key_value()
            && from < oldest
        {
            return Err(Error::Truncated { first: oldest });
        }
        let Some((&start, _)) = store.rows.range(..=from).next_back().filter(|_| from <= store.head.tail.last) else {
            return Ok(Vec::new());
        };
        let (mut rows, mut events) = (Vec::new(), 0);
        for (&at, row) in store.rows.range(start..) {
            let row = StoredRow::read(row.clone())?.at(at)?;
            events += row.events_from(from);
            rows.push(row);
            if events >= max_events {
                break;
            }
        }
        Ok(rows)
    }

    fn blob(&mut self, digest: &BlobDigest) -> Result<Option<Vec<u8>>, Error> {
        self.store().blob(digest)
    }

    fn blob_reader(&self) -> BlobReader {
        let log = self.clone();
        BlobReader::new(move |digest| log.store().blob(digest))
    }

    fn blobs(&mut self, after: Option<&BlobDigest>, max: usize) -> Result<Vec<BlobDigest>, Error> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        Ok(self
            .store()
            .blobs
            .range::<BlobDigest, _>((from, Bound::Unbounded))
            .take(max)
            .map(|(digest, _)| *digest)
            .collect())
    }

    fn drop_blobs(&mut self, term: Term, digests: &[BlobDigest]) -> Result<(), Error> {
        let store = &mut *self.store();
        store.head.holds_seat(term)?;
        for digest in digests {
            store.blobs.remove(digest);
        }
        Ok(())
    }

    fn put_chunk(&mut self, term: Term, covers: Seq, index: u32, chunk: &[u8]) -> Result<(), Error> {
        let store = &mut *self.store();
        store.head.admit_chunk(term, covers, index)?;
        if index == 0 {
            let kept = store.head.snapshot.map(|snapshot| snapshot.covers);
            store.chunks.retain(|(covers, _), _| Some(*covers) == kept);
        }
        let mut row = Vec::new();
        codec::encode_opaque(chunk, &mut row);
        store.chunks.insert((covers, index), row);
        store.head.chunk_put(covers, index);
        Ok(())
    }

    fn finish_snapshot(&mut self, term: Term, covers: Seq, chunks: u32) -> Result<(), Error> {
        let store = &mut *self.store();
        if store.head.admit_finish(term, covers, chunks)? == AppendAdmission::Write {
            store.head.finished();
            store.chunks.retain(|(of, _), _| *of == covers);
        }
        Ok(())
    }

    fn snapshot(&mut self) -> Result<Option<Snapshot>, Error> {
        Ok(self.store().head.snapshot)
    }

    fn chunk(&mut self, index: u32) -> Result<Vec<u8>, Error> {
        let store = self.store();
        let none = Error::WrongSnapshot { what: "the newest one has no such chunk" };
        let snapshot = store.head.snapshot.filter(|snapshot| index < snapshot.chunks).ok_or(none)?;
        let row = store.chunks.get(&(snapshot.covers, index));
        let row = row.ok_or_else(|| Error::Corrupt { what: format!("chunk {index} of the snapshot is missing") })?;
        Ok(codec::decode_opaque(row)?.to_vec())
    }

    fn truncate(&mut self, term: Term, max_batches: usize) -> Result<bool, Error> {
        let store = &mut *self.store();
        store.head.holds_seat(term)?;
        let Some(snapshot) = store.head.snapshot else { return Ok(false) };
        let mut removed = 0;
        loop {
            // A batch is covered if the next one begins no later than the first event that is not.
            let mut covered = store.rows.range((Bound::Unbounded, Bound::Included(Seq(snapshot.covers.0 + 1))));
            if covered.nth(1).is_none() {
                return Ok(false);
            }
            if removed == max_batches {
                return Ok(true);
            }
            store.rows.pop_first();
            removed += 1;
        }
    }
}
