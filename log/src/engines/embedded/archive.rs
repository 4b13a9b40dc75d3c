//! The archive in a file of its own, `archive.redb`.
//!
//! Rows are opaque. Beside a row lie the blobs of its job, and go with it. Two small tables keep the order in
//! which jobs expire and in which they ended; the number of jobs is kept, and not counted.
//!
//! **Opening.** Each commit stores redb's map of free pages with it, at the price of a second sync, so that the file
//! opens at once after a crash, however long the history is. Archiving is done in batches by a thread that nobody
//! waits for; the log, which everybody waits for, does without.
//!
//! **In doubt, look**, as the [log](super) does: a counter of commits tells whether the last one arrived.

pub(crate) mod order;

use core::ops::Bound;
use std::collections::HashSet;
use std::io;
use std::path::Path;
use std::sync::Arc;

use ::redb::{
    Database, Durability, ReadTransaction, ReadableDatabase, ReadableTable, StorageBackend, Table, TableDefinition,
    TableError, WriteTransaction,
};
use onward_core::fence::Term;

use crate::engines::embedded::fault::StoreFault;
use crate::engines::embedded::pieces::{self, BlobLabel};
use crate::engines::embedded::rows::{corrupt, known_format};
use crate::engines::embedded::store::{RedbFile, Repair};
use crate::engines::embedded::{folder, on_storage};
use crate::{Archive, ArchivedJob, Blob, BlobDigest, Error, ScanPage, codec};
use order::{Order, OrderTable};

/// A page of a dashboard, and the inner nodes of the tree.
const CACHE_BYTES: usize = 32 << 20;

/// Jobs: when each ended and when it expires ([`NEVER`] if it does not), and its row, framed.
pub(crate) const JOBS: TableDefinition<'_, u128, (u64, u64, &[u8])> = TableDefinition::new("jobs");
pub(crate) const ENDED: OrderTable = TableDefinition::new("ended_in");
pub(crate) const EXPIRES: OrderTable = TableDefinition::new("expire_in");
pub(crate) const BLOBS: TableDefinition<'_, (u128, &[u8; 32]), BlobLabel> = TableDefinition::new("job_blobs");
pub(crate) const PIECES: TableDefinition<'_, (u128, &[u8; 32], u32), &[u8]> = TableDefinition::new("job_blob_pieces");
pub(crate) const FACTS: TableDefinition<'_, &str, u64> = TableDefinition::new("facts");

pub(crate) const FORMAT: &str = "archive_format";
/// 1 had a row for each job in both orders.
pub(crate) const KNOWN: u8 = 2;
/// The orders of format 1, which the first opening brings into the form of today.
pub(crate) const ENDED_1: TableDefinition<'_, (u64, u128), ()> = TableDefinition::new("ended");
pub(crate) const EXPIRES_1: TableDefinition<'_, (u64, u128), ()> = TableDefinition::new("expires");
const COUNT: &str = "count";
/// The number of commits.
const COMMITS: &str = "commits";
const NEVER: u64 = u64::MAX;

/// A handle. Its clones are further handles on the same file, for whichever threads. Reads wait for no write.
#[derive(Clone, Debug)]
pub struct EmbeddedArchive(Arc<RedbFile<Commits>>);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Commits(u64);

/// A job as the archive keeps it; see [`ArchivedJob`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ArchiveEntry {
    pub id: u128,
    pub ended_at_ms: u64,
    pub expires_at_ms: Option<u64>,
    pub row: Vec<u8>,
}

impl EmbeddedArchive {
    /// Opens the archive in `folder`, or makes one there: the file is `archive.redb`.
    pub fn open(folder: impl AsRef<Path>) -> Result<Self, Error> {
        let (lock, open) = folder::ARCHIVE.prepare(folder.as_ref(), CACHE_BYTES)?;
        Ok(Self(Arc::new(RedbFile::start(open, Box::new(|database, _| prepare(database)), Some(lock))?)))
    }

    /// Opens an archive as [`EmbeddedLog::on_storage`](crate::EmbeddedLog::on_storage) opens a log.
    pub fn on_storage<B: StorageBackend>(
        storage: impl FnMut() -> io::Result<B> + Send + 'static,
    ) -> Result<Self, Error> {
        let open = on_storage(storage, CACHE_BYTES);
        Ok(Self(Arc::new(RedbFile::start(open, Box::new(|database, _| prepare(database)), None)?)))
    }

    /// The row of each, in the order asked, as they were at one moment.
    pub fn get_many(&self, ids: &[u128]) -> Result<Vec<Option<Vec<u8>>>, Error> {
        self.0.read(|view| {
            let jobs = view.open_table(JOBS)?;
            ids.iter().map(|&id| row(&jobs, id)).collect()
        })
    }

    /// Jobs from the oldest id after `after` upwards, with all that is kept of them but their content: at most `max_rows`,
    /// and no more once their rows have `max_bytes`. For another engine to keep.
    pub fn entries(&self, after: Option<u128>, max_rows: usize, max_bytes: usize) -> Result<Vec<ArchiveEntry>, Error> {
        self.0.read(|view| {
            let above = after.map_or(Bound::Unbounded, Bound::Excluded);
            let (mut entries, mut bytes) = (Vec::new(), 0);
            for job in view.open_table(JOBS)?.range::<u128>((above, Bound::Unbounded))? {
                let (id, job) = job?;
                let (ended_at_ms, expires_at, _) = job.value();
                let row = unframed(job.value())?;
                bytes += row.len();
                let expires_at_ms = (expires_at != NEVER).then_some(expires_at);
                entries.push(ArchiveEntry { id: id.value(), ended_at_ms, expires_at_ms, row });
                if entries.len() >= max_rows || bytes >= max_bytes {
                    break;
                }
            }
            Ok(entries)
        })
    }

    /// Removes a job. Gives whether it was there.
    pub fn remove(&self, id: u128) -> Result<bool, Error> {
        if self.get(id)?.is_none() {
            return Ok(false);
        }
        let mut was_there = false;
        self.commit(|tables| {
            was_there = tables.remove(&[id])? == 1;
            Ok(())
        })?;
        Ok(was_there)
    }

    /// A view of what the last commit left.
    pub(crate) fn view(&self) -> Result<ReadTransaction, Error> {
        self.0.view()
    }

    fn commit(&self, change: impl FnOnce(&mut Tables<'_>) -> Result<(), StoreFault>) -> Result<(), Error> {
        let mut writer = self.0.ready()?;
        let next = Commits(writer.state.0 + 1);
        self.0.commit(
            &mut writer,
            Repair::Quick,
            |transaction| {
                let mut tables = Tables::open(transaction)?;
                change(&mut tables)?;
                tables.facts.insert(COUNT, tables.count)?;
                tables.facts.insert(COMMITS, next.0)?;
                Ok(())
            },
            |found, _| Ok(*found == next),
        )?;
        writer.state = next;
        Ok(())
    }
}

impl Archive for EmbeddedArchive {
    fn put(&self, jobs: &[ArchivedJob<'_>]) -> Result<(), Error> {
        if jobs.is_empty() {
            return Ok(());
        }
        // In their order, so that neighbours in the tree come one after the other; of one job the row that comes last.
        let mut jobs: Vec<&ArchivedJob<'_>> = jobs.iter().collect();
        jobs.sort_by_key(|job| job.id);
        self.commit(|tables| tables.put(&jobs))
    }

    fn put_blobs(&self, id: u128, blobs: &[Blob<'_>]) -> Result<(), Error> {
        if blobs.is_empty() {
            return Ok(());
        }
        self.commit(|tables| tables.put_blobs(id, blobs))
    }

    fn get(&self, id: u128) -> Result<Option<Vec<u8>>, Error> {
        self.0.read(|view| row(&view.open_table(JOBS)?, id))
    }

    fn blob(&self, id: u128, digest: &BlobDigest) -> Result<Option<Vec<u8>>, Error> {
        self.0.read(|view| pieces::get(&view.open_table(BLOBS)?, &view.open_table(PIECES)?, (id, *digest)))
    }

    fn scan(&self, before: Option<u128>, max_rows: usize, max_bytes: usize) -> Result<ScanPage, Error> {
        self.0.read(|view| {
            let below = before.map_or(Bound::Unbounded, Bound::Excluded);
            let (mut scanned, mut bytes) = (ScanPage::default(), 0);
            for job in view.open_table(JOBS)?.range::<u128>((Bound::Unbounded, below))?.rev() {
                let (id, job) = job?;
                if scanned.rows.len() == max_rows {
                    scanned.has_more = true;
                    break;
                }
                let row = unframed(job.value())?;
                bytes += row.len();
                if bytes > max_bytes && !scanned.rows.is_empty() {
                    scanned.has_more = true;
                    break;
                }
                scanned.rows.push((id.value(), row));
            }
            Ok(scanned)
        })
    }

    fn count(&self) -> Result<u64, Error> {
        self.0.read(|view| fact(view, COUNT))
    }

    fn expire(&self, now_ms: u64, keep_at_most: u64, max_rows: usize) -> Result<usize, Error> {
        let due = self.0.read(|view| {
            let oldest = view.open_table(EXPIRES)?.first()?.map(|(key, _)| key.value().0);
            Ok(fact(view, COUNT)? > keep_at_most || oldest.is_some_and(|at| at <= now_ms))
        })?;
        if !due || max_rows == 0 {
            return Ok(0);
        }
        let mut removed = 0;
        self.commit(|tables| {
            let due = tables.next_to_go(now_ms, keep_at_most, max_rows)?;
            removed = tables.remove(&due)?;
            if removed == due.len() { Ok(()) } else { Err(corrupt("a job is listed and not there")) }
        })?;
        Ok(removed)
    }

    /// The folder is locked: nobody else leads.
    fn under(&self, _term: Term) -> Arc<dyn Archive> {
        Arc::new(self.clone())
    }
}

fn prepare(database: &Database) -> Result<Commits, StoreFault> {
    let view = database.begin_read()?;
    let format = match view.open_table(FACTS) {
        Ok(facts) => Some(known_format(facts.get(FORMAT)?.map(|format| format.value()), KNOWN)?),
        Err(TableError::TableDoesNotExist(_)) => None,
        Err(error) => return Err(error.into()),
    };
    if format != Some(KNOWN) {
        let mut transaction = database.begin_write()?;
        transaction.set_durability(Durability::Immediate).expect("no savepoints are used");
        transaction.set_quick_repair(true);
        let mut tables = Tables::open(&transaction)?;
        tables.facts.insert(FORMAT, u64::from(KNOWN))?;
        if format.is_none() {
            tables.facts.insert(COUNT, 0)?;
            tables.facts.insert(COMMITS, 0)?;
        } else {
            for (order, old) in [(&mut tables.ended, ENDED_1), (&mut tables.expires, EXPIRES_1)] {
                let old = transaction.open_table(old)?;
                let entries = old.iter()?.map(|entry| entry.map(|(key, _)| key.value()));
                order.add(entries.collect::<Result<_, _>>()?)?;
            }
        }
        drop(tables);
        transaction.delete_table(ENDED_1)?;
        transaction.delete_table(EXPIRES_1)?;
        transaction.commit()?;
    }
    let view = database.begin_read()?;
    // Without it, the jobs would be counted from none.
    fact(&view, COUNT)?;
    Ok(Commits(fact(&view, COMMITS)?))
}

fn fact(view: &ReadTransaction, name: &str) -> Result<u64, StoreFault> {
    let value = view.open_table(FACTS)?.get(name)?.map(|value| value.value());
    value.ok_or_else(|| corrupt("the archive lacks a number of its own"))
}

fn row(jobs: &impl ReadableTable<u128, (u64, u64, &'static [u8])>, id: u128) -> Result<Option<Vec<u8>>, StoreFault> {
    jobs.get(id)?.map(|job| unframed(job.value())).transpose()
}

fn unframed((_, _, row): (u64, u64, &[u8])) -> Result<Vec<u8>, StoreFault> {
    Ok(codec::decode_opaque(row)?.to_vec())
}

/// All tables, in a transaction.
struct Tables<'a> {
    jobs: Table<'a, u128, (u64, u64, &'static [u8])>,
    ended: Order<'a>,
    expires: Order<'a>,
    blobs: Table<'a, (u128, &'static [u8; 32]), BlobLabel>,
    pieces: Table<'a, (u128, &'static [u8; 32], u32), &'static [u8]>,
    facts: Table<'a, &'static str, u64>,
    count: u64,
}

impl<'a> Tables<'a> {
    fn open(transaction: &'a WriteTransaction) -> Result<Self, StoreFault> {
        let facts = transaction.open_table(FACTS)?;
        let count = facts.get(COUNT)?.map_or(0, |count| count.value());
        Ok(Self {
            jobs: transaction.open_table(JOBS)?,
            ended: Order(transaction.open_table(ENDED)?),
            expires: Order(transaction.open_table(EXPIRES)?),
            blobs: transaction.open_table(BLOBS)?,
            pieces: transaction.open_table(PIECES)?,
            facts,
            count,
        })
    }

    /// Puts jobs in the order of their ids.
    fn put(&mut self, jobs: &[&ArchivedJob<'_>]) -> Result<(), StoreFault> {
        let (mut before, mut now) = (Times::default(), Times::default());
        let mut row = Vec::new();
        for (job, next) in jobs.iter().zip(jobs[1..].iter().map(Some).chain([None])) {
            self.put_blobs(job.id, job.blobs)?;
            if next.is_some_and(|next| next.id == job.id) {
                continue;
            }
            // The last millisecond there is stands for never.
            let expires_at = job.expires_at_ms.unwrap_or(NEVER);
            row.clear();
            codec::encode_opaque(job.row, &mut row);
            let replaced = self.jobs.insert(job.id, (job.ended_at_ms, expires_at, &row[..]))?;
            now.push(job.id, job.ended_at_ms, expires_at);
            if let Some((ended_at, expires_at, _)) = replaced.as_ref().map(|job| job.value()) {
                before.push(job.id, ended_at, expires_at);
            } else {
                self.count += 1;
            }
        }
        self.forget(before)?;
        self.ended.add(now.ended)?;
        self.expires.add(now.expires)
    }

    fn put_blobs(&mut self, id: u128, blobs: &[Blob<'_>]) -> Result<(), StoreFault> {
        for blob in blobs {
            pieces::put(&mut self.blobs, &mut self.pieces, (id, blob.digest), blob)?;
        }
        Ok(())
    }

    /// Says how many were there.
    fn remove(&mut self, ids: &[u128]) -> Result<usize, StoreFault> {
        let mut before = Times::default();
        for id in ids {
            if let Some((ended_at, expires_at, _)) = self.jobs.remove(id)?.as_ref().map(|job| job.value()) {
                before.push(*id, ended_at, expires_at);
            }
        }
        let removed = before.ended.len();
        self.count = self.count.checked_sub(removed as u64).ok_or_else(|| corrupt("more jobs than were counted"))?;
        for (_, id) in &before.ended {
            self.remove_blobs(*id)?;
        }
        self.forget(before)?;
        Ok(removed)
    }

    fn forget(&mut self, times: Times) -> Result<(), StoreFault> {
        self.ended.remove(times.ended)?;
        self.expires.remove(times.expires)
    }

    fn remove_blobs(&mut self, id: u128) -> Result<(), StoreFault> {
        let mut digests: Vec<BlobDigest> = Vec::new();
        for blob in self.blobs.range((id, &[0; 32])..=(id, &[u8::MAX; 32]))? {
            digests.push(*blob?.0.value().1);
        }
        for digest in digests {
            pieces::remove(&mut self.blobs, &mut self.pieces, (id, digest))?;
        }
        Ok(())
    }

    /// The jobs to go: those that have expired, and then those that ended first as long as there are too many; at most
    /// `max`.
    fn next_to_go(&self, now_ms: u64, keep_at_most: u64, max: usize) -> Result<Vec<u128>, StoreFault> {
        let mut due = self.expires.first(max, |at| at <= now_ms)?;
        let too_many = self.count.saturating_sub(keep_at_most).saturating_sub(due.len() as u64);
        let more = (max - due.len()).min(usize::try_from(too_many).unwrap_or(usize::MAX));
        if more > 0 {
            let expired: HashSet<u128> = due.iter().copied().collect();
            let oldest = self.ended.first(due.len() + more, |_| true)?;
            due.extend(oldest.into_iter().filter(|id| !expired.contains(id)).take(more));
        }
        Ok(due)
    }
}

/// Instants at which jobs ended, and at which they expire if they do.
#[derive(Default)]
struct Times {
    ended: Vec<(u64, u128)>,
    expires: Vec<(u64, u128)>,
}

impl Times {
    fn push(&mut self, id: u128, ended_at: u64, expires_at: u64) {
        self.ended.push((ended_at, id));
        if expires_at != NEVER {
            self.expires.push((expires_at, id));
        }
    }
}
