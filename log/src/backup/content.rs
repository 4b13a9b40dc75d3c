//! Content that is damaged, and whose it is.

use core::fmt;
use std::collections::{BTreeSet, HashSet};

use ::redb::{ReadTransaction, ReadableTable, TableDefinition, TableError, TableHandle};
use onward_core::event::Event;
use onward_core::ids::JobId;
use onward_core::job::Ending;
use onward_core::manager::SnapshotRecord;
use onward_core::payload::Payload;

use crate::engines::embedded::fault::StoreFault;
use crate::engines::embedded::rows;
use crate::{BlobDigest, codec};

/// Payloads and results that were copied and cannot be read.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Damage {
    pub blobs: u64,
    /// Jobs that name them.
    pub jobs: BTreeSet<JobId>,
}

impl Damage {
    pub const fn is_none(&self) -> bool {
        self.blobs == 0
    }

    pub(super) fn add(&mut self, more: Self) {
        self.blobs += more.blobs;
        self.jobs.extend(more.jobs);
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMED: usize = 10;
        write!(f, "{} payloads or results over 4 KiB cannot be read", self.blobs)?;
        for (n, job) in self.jobs.iter().take(NAMED).enumerate() {
            write!(f, "{} {job}", if n == 0 { ", of job" } else { "," })?;
        }
        match self.jobs.len().saturating_sub(NAMED) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

/// The jobs of a log that name one of these. What cannot be read names nobody.
pub(super) fn jobs_naming(
    source: &ReadTransaction,
    prefix: &str,
    digests: &HashSet<BlobDigest>,
    mut went_on: impl FnMut() -> Result<(), StoreFault>,
) -> Result<BTreeSet<JobId>, StoreFault> {
    let mut jobs = BTreeSet::new();
    let mut look = |job, payload: &Payload| {
        if payload.as_stored().is_some_and(|stored| digests.contains(&stored.digest.0)) {
            jobs.insert(job);
        }
    };
    rows_of(source, prefix, rows::BATCHES, |row| {
        for stamped in codec::decode(row).into_iter().flat_map(|batch| batch.events) {
            match &stamped.event {
                Event::JobSubmitted(submitted) => {
                    submitted.spec.workflows.iter().for_each(|workflow| look(submitted.id, &workflow.payload));
                }
                Event::AttemptEnded { claim, ending: Ending::Succeeded { result }, .. } => look(claim.job, result),
                _ => {}
            }
        }
        went_on()
    })?;
    rows_of(source, prefix, rows::CHUNKS, |row| {
        let records = codec::decode_opaque(row).and_then(codec::decode_records);
        for record in records.into_iter().flatten() {
            if let SnapshotRecord::Job(record) = record {
                record.image.payloads().for_each(|payload| look(record.image.id, payload));
            }
        }
        went_on()
    })?;
    Ok(jobs)
}

/// None of a table that the source lacks, being older.
fn rows_of<K: ::redb::Key + 'static>(
    source: &ReadTransaction,
    prefix: &str,
    table: TableDefinition<'_, K, &'static [u8]>,
    mut look: impl FnMut(&[u8]) -> Result<(), StoreFault>,
) -> Result<(), StoreFault> {
    let name = format!("{prefix}{}", table.name());
    let table = match source.open_table(TableDefinition::<K, &[u8]>::new(&name)) {
        Err(TableError::TableDoesNotExist(_)) => return Ok(()),
        table => table?,
    };
    for row in table.iter()? {
        look(row?.1.value())?;
    }
    Ok(())
}
