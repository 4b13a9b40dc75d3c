//! The store where a job keeps the records of its due instants.
//!
//! A store gives each instant one record, whoever asks: records are added *behind a horizon*, and only by whoever knows
//! it. Of several processes that find the same instants due, one moves the horizon; the others are told that they came
//! too late, look again, and find nothing left to do. So one of any number of replicas fires.
//!
//! A run that was begun has an end, or a claim that runs out: then its process died with it, and the run is given to
//! the next that looks. A restart loses nothing, and a run that was interrupted is repeated.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use onward_core::schedule::{PassedInstants, RecordReason};
use onward_core::time::Wall;

use crate::clock::lock;

/// The reason why a store could not do what it was asked. Whether it did is not known; asking again is safe.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the store of schedules: {0}")]
pub struct StoreError(pub String);

/// A job, as a store knows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JobRecords {
    /// Every due instant up to here has its record.
    pub horizon: Wall,
    /// Runs that have not ended, oldest first.
    pub open: Vec<OpenRun>,
    /// The newest runs that have ended, whoever ran them, oldest first: [`ENDED_TOLD`] of them at most. By these every
    /// process knows how the job is, and one that was restarted how it was.
    pub ended: Vec<EndedRun>,
}

/// How many runs that have ended a store tells of.
pub const ENDED_TOLD: usize = 16;

/// A run that has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EndedRun {
    pub due: Wall,
    pub end: RunEnd,
}

/// A run that was begun.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpenRun {
    pub due: Wall,
    /// The end of the run's claim; after it, its process is taken for dead.
    pub claimed_until: Wall,
}

/// The record of due instants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ScheduleEntry {
    Fired { due: Wall, reason: RecordReason, claimed_until: Wall },
    Passed(PassedInstants),
}

impl ScheduleEntry {
    pub(super) fn last(&self) -> Wall {
        match self {
            Self::Fired { due, .. } => *due,
            Self::Passed(passed) => passed.last,
        }
    }

    /// The columns of the entry.
    pub(super) fn columns(&self) -> EntryColumns {
        let (due, count, reason, claimed_until) = match *self {
            Self::Fired { due, reason, claimed_until } => (due, 1, reason, Some(claimed_until)),
            Self::Passed(passed) => (passed.first, passed.count, passed.reason, None),
        };
        EntryColumns {
            due_ms: ms(due),
            last_due_ms: ms(self.last()),
            count: i64::try_from(count).unwrap_or(i64::MAX),
            record: reason.kind().word(),
            reason: reason.code(),
            claimed_until_ms: claimed_until.map(ms),
        }
    }
}

/// An entry as files and tables have it.
#[derive(Clone, Copy, Debug)]
pub(super) struct EntryColumns {
    pub(super) due_ms: i64,
    pub(super) last_due_ms: i64,
    pub(super) count: i64,
    pub(super) record: &'static str,
    pub(super) reason: &'static str,
    /// End of the claim of a run that has not ended.
    #[cfg_attr(
        not(any(feature = "postgres", feature = "sqlite")),
        expect(dead_code, reason = "a file has open runs apart from its entries")
    )]
    pub(super) claimed_until_ms: Option<i64>,
}

/// The tables of PostgreSQL and of SQLite.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(super) const SCHEMA: &str = include_str!("schema.sql");

/// Databases have no unsigned numbers.
pub(super) fn ms(at: Wall) -> i64 {
    i64::try_from(at.as_ms()).unwrap_or(i64::MAX)
}

/// The instant for a number of a database.
pub(super) fn wall(ms: i64) -> Wall {
    Wall::from_ms(u64::try_from(ms).unwrap_or(0))
}

/// The end of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RunEnd {
    Succeeded,
    Failed,
}

impl RunEnd {
    pub const fn word(self) -> &'static str {
        match self {
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
        }
    }

    /// What a file or a table has of it.
    pub(super) fn of_word(word: &str) -> Self {
        if word == Self::Succeeded.word() { Self::Succeeded } else { Self::Failed }
    }
}

/// Keeps the records of jobs.
pub trait ScheduleStore: Send + Sync + 'static {
    /// The records of this job. A job that is new begins here, with `now` as its horizon.
    fn open(&self, job: &str, now: Wall) -> impl Future<Output = Result<JobRecords, StoreError>> + Send;

    /// Adds these, in order, if the horizon still is `after`: all of them, and the horizon is that of the last. Says
    /// whether it did.
    fn add(
        &self,
        job: &str,
        after: Wall,
        entries: Vec<ScheduleEntry>,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Claims an open run whose claim is this one. Says whether it did: another may have been quicker.
    fn reclaim(&self, job: &str, run: OpenRun, until: Wall) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// The run of this instant has ended.
    fn end(&self, job: &str, due: Wall, end: RunEnd) -> impl Future<Output = Result<(), StoreError>> + Send;
}

type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// [`ScheduleStore`], without its type.
pub(super) trait AnyStore: Send + Sync {
    fn open<'a>(&'a self, job: &'a str, now: Wall) -> Answer<'a, JobRecords>;
    fn add<'a>(&'a self, job: &'a str, after: Wall, entries: Vec<ScheduleEntry>) -> Answer<'a, bool>;
    fn reclaim<'a>(&'a self, job: &'a str, run: OpenRun, until: Wall) -> Answer<'a, bool>;
    fn end<'a>(&'a self, job: &'a str, due: Wall, end: RunEnd) -> Answer<'a, ()>;
}

impl<S: ScheduleStore> AnyStore for S {
    fn open<'a>(&'a self, job: &'a str, now: Wall) -> Answer<'a, JobRecords> {
        Box::pin(ScheduleStore::open(self, job, now))
    }

    fn add<'a>(&'a self, job: &'a str, after: Wall, entries: Vec<ScheduleEntry>) -> Answer<'a, bool> {
        Box::pin(ScheduleStore::add(self, job, after, entries))
    }

    fn reclaim<'a>(&'a self, job: &'a str, run: OpenRun, until: Wall) -> Answer<'a, bool> {
        Box::pin(ScheduleStore::reclaim(self, job, run, until))
    }

    fn end<'a>(&'a self, job: &'a str, due: Wall, end: RunEnd) -> Answer<'a, ()> {
        Box::pin(ScheduleStore::end(self, job, due, end))
    }
}

/// Records in memory: what every job has unless it is given another store. A restart forgets them, and what was due
/// while the process was away is not known to it.
#[derive(Clone, Debug, Default)]
pub struct MemoryStore(Arc<Mutex<BTreeMap<String, RecordBook>>>);

/// The records of one job.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct RecordBook {
    pub(super) horizon: Wall,
    pub(super) open: Vec<OpenRun>,
    pub(super) ended: Vec<EndedRun>,
}

impl RecordBook {
    fn new(now: Wall) -> Self {
        Self { horizon: now, open: Vec::new(), ended: Vec::new() }
    }

    pub(super) fn records(&self) -> JobRecords {
        JobRecords { horizon: self.horizon, open: self.open.clone(), ended: self.ended.clone() }
    }

    pub(super) fn add(&mut self, after: Wall, entries: &[ScheduleEntry]) -> bool {
        if self.horizon != after {
            return false;
        }
        for entry in entries {
            if let ScheduleEntry::Fired { due, claimed_until, .. } = *entry {
                self.open.push(OpenRun { due, claimed_until });
            }
            self.horizon = self.horizon.max(entry.last());
        }
        true
    }

    pub(super) fn reclaim(&mut self, run: OpenRun, until: Wall) -> bool {
        let known = self.open.iter_mut().find(|open| **open == run);
        known.map(|open| open.claimed_until = until).is_some()
    }

    pub(super) fn end(&mut self, due: Wall, end: RunEnd) {
        self.open.retain(|open| open.due != due);
        self.ended.retain(|ended| ended.due != due);
        let place = self.ended.partition_point(|ended| ended.due < due);
        self.ended.insert(place, EndedRun { due, end });
        let over = self.ended.len().saturating_sub(ENDED_TOLD);
        self.ended.drain(..over);
    }
}

impl MemoryStore {
    pub fn new() -> Self {
        Self::default()
    }

    fn with<T>(&self, job: &str, change: impl FnOnce(&mut RecordBook) -> T) -> Result<T, StoreError> {
        let mut jobs = lock(&self.0);
        let kept = jobs.get_mut(job).ok_or_else(|| StoreError(format!("job `{job}` was not opened")))?;
        Ok(change(kept))
    }
}

impl ScheduleStore for MemoryStore {
    async fn open(&self, job: &str, now: Wall) -> Result<JobRecords, StoreError> {
        let mut jobs = lock(&self.0);
        Ok(jobs.entry(job.to_owned()).or_insert_with(|| RecordBook::new(now)).records())
    }

    async fn add(&self, job: &str, after: Wall, entries: Vec<ScheduleEntry>) -> Result<bool, StoreError> {
        self.with(job, |kept| kept.add(after, &entries))
    }

    async fn reclaim(&self, job: &str, run: OpenRun, until: Wall) -> Result<bool, StoreError> {
        self.with(job, |kept| kept.reclaim(run, until))
    }

    async fn end(&self, job: &str, due: Wall, end: RunEnd) -> Result<(), StoreError> {
        self.with(job, |kept| kept.end(due, end))
    }
}

#[cfg(test)]
mod tests;
