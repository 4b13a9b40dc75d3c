//! A log that shows from outside whether an append is under way, even of a process that was killed: a file holds `1`
//! while one is, else `0`. The test that kills nodes looks at it; no other log is wrapped in one.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use onward_core::fence::Term;
use onward_core::ids::Seq;
use onward_log::{BatchKey, Blob, BlobDigest, BlobReader, Error, Log, LogRow, Snapshot, StoredRow, Tail};

/// Where it is shown. Clones are the same file.
#[derive(Clone, Debug)]
pub(crate) struct CommitMark(Arc<File>);

impl CommitMark {
    pub(crate) fn make(path: &Path) -> Result<Self, Error> {
        let made = File::create(path).map_err(|error| Error::Io { cause: format!("{}: {error}", path.display()) })?;
        Ok(Self(Arc::new(made)))
    }

    pub(crate) fn on(&self, log: Box<dyn Log>) -> Box<dyn Log> {
        Box::new(MarkedLog { log, mark: self.clone() })
    }

    fn show(&self, state: [u8; 1]) {
        if let Err(error) = self.0.write_all_at(&state, 0) {
            tracing::warn!(%error, "cannot write the commit mark");
        }
    }
}

struct MarkedLog {
    log: Box<dyn Log>,
    mark: CommitMark,
}

impl Log for MarkedLog {
    /// One that failed may be under way still: it is asked again, or the term ends.
    fn append(&mut self, key: BatchKey, row: LogRow<'_>, blobs: &[Blob<'_>]) -> Result<(), Error> {
        self.mark.show(*b"1");
        self.log.append(key, row, blobs)?;
        self.mark.show(*b"0");
        Ok(())
    }

    fn tail(&mut self) -> Result<Tail, Error> {
        self.log.tail()
    }

    fn take_seat(&mut self, seen: Term) -> Result<Tail, Error> {
        self.log.take_seat(seen)
    }

    fn confirm(&mut self, term: Term) -> Result<(), Error> {
        self.log.confirm(term)
    }

    fn read(&mut self, from: Seq, max_events: usize) -> Result<Vec<StoredRow>, Error> {
        self.log.read(from, max_events)
    }

    fn blob(&mut self, digest: &BlobDigest) -> Result<Option<Vec<u8>>, Error> {
        self.log.blob(digest)
    }

    fn blob_reader(&self) -> BlobReader {
        self.log.blob_reader()
    }

    fn blobs(&mut self, after: Option<&BlobDigest>, max: usize) -> Result<Vec<BlobDigest>, Error> {
        self.log.blobs(after, max)
    }

    fn drop_blobs(&mut self, term: Term, digests: &[BlobDigest]) -> Result<(), Error> {
        self.log.drop_blobs(term, digests)
    }

    fn put_chunk(&mut self, term: Term, covers: Seq, index: u32, chunk: &[u8]) -> Result<(), Error> {
        self.log.put_chunk(term, covers, index, chunk)
    }

    fn finish_snapshot(&mut self, term: Term, covers: Seq, chunks: u32) -> Result<(), Error> {
        self.log.finish_snapshot(term, covers, chunks)
    }

    fn snapshot(&mut self) -> Result<Option<Snapshot>, Error> {
        self.log.snapshot()
    }

    fn chunk(&mut self, index: u32) -> Result<Vec<u8>, Error> {
        self.log.chunk(index)
    }

    fn truncate(&mut self, term: Term, max_batches: usize) -> Result<bool, Error> {
        self.log.truncate(term, max_batches)
    }
}

#[cfg(test)]
mod tests {
    use onward_log::engines::memory::AppendFault;
    use onward_log::{BatchId, MemoryLog};

    use super::*;

    #[test]
    fn an_append_that_is_not_known_to_be_over_is_shown() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mark");
        let shown = || std::fs::read_to_string(&path).unwrap();
        let under = MemoryLog::new();
        let mut log = CommitMark::make(&path).unwrap().on(Box::new(under.clone()));
        let term = log.take_seat(Term::default()).unwrap().term;
        assert_eq!(shown(), "", "there was none");
        let row = LogRow { count: 1, body: b"x" };
        let key = BatchKey { term, id: BatchId(1), first: Seq(1) };
        under.inject(AppendFault::Full);
        assert!(log.append(key, row, &[]).is_err());
        assert_eq!(shown(), "1");
        log.append(key, row, &[]).unwrap();
        assert_eq!(shown(), "0");
    }
}
