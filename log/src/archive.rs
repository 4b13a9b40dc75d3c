//! Finished jobs, apart from the log: neither a commit of the log nor its reopening grows with history.
//!
//! A job is copied here first, and only then does the log say that it was archived; so after a crash in between it is
//! in both, and copying it again is harmless ([`Archive::put`] is asked again without a thought): what is finished does not
//! change, and whoever copies it copies the same. A copy that brings less content than the one before takes nothing away
//! from it. Where several nodes share an archive, only the one that holds the seat of the log changes it: by a handle
//! for its term ([`Archive::under`]).
//!
//! Rows are opaque. Beside a row lie the blobs of its job, and go with it.

use std::sync::Arc;

use onward_core::fence::Term;

use crate::{Blob, BlobDigest, Error};

#[derive(Clone, Copy, Debug)]
pub struct ArchivedJob<'a> {
    pub id: u128,
    pub ended_at_ms: u64,
    /// `None`: only the number of jobs may push it out.
    pub expires_at_ms: Option<u64>,
    pub row: &'a [u8],
    pub blobs: &'a [Blob<'a>],
}

/// The findings of one scan.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ScanPage {
    /// The newest first.
    pub rows: Vec<(u128, Vec<u8>)>,
    /// Set if there are older jobs, which a bound has kept out.
    pub has_more: bool,
}

/// The place where finished jobs are kept. Asked from several threads; reads wait for no write.
pub trait Archive: Send + Sync + core::fmt::Debug {
    /// Stores all of these or none, durably. The row of a job that is there already is replaced by the one given; blobs
    /// are added to those that are there, and none goes.
    fn put(&self, jobs: &[ArchivedJob<'_>]) -> Result<(), Error>;

    /// Stores content ahead of its job, durably: a job that has more than one [`Self::put`] should hold. It belongs to the
    /// job from then on, and goes with it once [`Self::put`] has stored that.
    fn put_blobs(&self, id: u128, blobs: &[Blob<'_>]) -> Result<(), Error>;

    /// The row of a job.
    fn get(&self, id: u128) -> Result<Option<Vec<u8>>, Error>;

    /// Content of a job, by its digest.
    fn blob(&self, id: u128, digest: &BlobDigest) -> Result<Option<Vec<u8>>, Error>;

    /// Rows from the newest id before `before` downwards: at most `max_rows`, and no more once they have `max_bytes`,
    /// but one at least if there is one.
    fn scan(&self, before: Option<u128>, max_rows: usize, max_bytes: usize) -> Result<ScanPage, Error>;

    /// The number of jobs.
    fn count(&self) -> Result<u64, Error>;

    /// Removes at most `max_rows` jobs: those that expired by `now_ms`, and then, as long as there are more than
    /// `keep_at_most`, those that ended first. Says how many; fewer than `max_rows` means that nothing is left to do.
    fn expire(&self, now_ms: u64, keep_at_most: u64, max_rows: usize) -> Result<usize, Error>;

    /// A handle that changes nothing once this term has lost the seat of the log that the archive belongs to: then each
    /// change is [`Error::StaleTerm`]. An archive that only one process can open needs no term.
    fn under(&self, term: Term) -> Arc<dyn Archive>;
}
