//! Records in a file, for one process at a time.
//!
//! The file is small and written as a whole, beside its place and then renamed, so that it is whole whenever a process
//! dies. A lock on a file next to it keeps a second process out; who comes after a process that died finds its runs
//! open, and takes them over at once.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use onward_core::schedule::RECORDS_KEPT;
use onward_core::time::Wall;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use super::store::{
    ENDED_TOLD, EndedRun, EntryColumns, JobRecords, OpenRun, RecordBook, RunEnd, ScheduleEntry, ScheduleStore,
    StoreError, ms, wall,
};

/// Records in a file.
#[derive(Clone, Debug)]
pub struct FileStore(Sender<Ask>);

/// A process that is about to end may still hold the lock: it is looked at so often, with this between two looks.
const PREDECESSOR_LOOKS: u32 = 200;
const PREDECESSOR_LOOK: Duration = Duration::from_millis(10);

type Change = Box<dyn FnOnce(&mut Jobs) -> bool + Send>;

/// A change of the jobs, which says whether it is to be written; and who is told when it is.
struct Ask {
    change: Change,
    reply: oneshot::Sender<Result<(), StoreError>>,
}

impl std::fmt::Debug for Ask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ask").finish_non_exhaustive()
    }
}

type Jobs = BTreeMap<String, StoredJob>;

#[derive(Clone, Default, Serialize, Deserialize)]
struct StoredJob {
    horizon_ms: i64,
    /// Each with the end of its claim.
    open: Vec<(i64, i64)>,
    /// The newest, oldest first.
    records: VecDeque<StoredRecord>,
}

#[derive(Clone, Serialize, Deserialize)]
struct StoredRecord {
    due_ms: i64,
    last_due_ms: i64,
    count: i64,
    record: String,
    reason: String,
    outcome: Option<String>,
}

impl StoredJob {
    fn kept(&self) -> RecordBook {
        let open = self.open.iter().map(|(due, until)| OpenRun { due: wall(*due), claimed_until: wall(*until) });
        let ended = self.records.iter().rev().filter_map(|record| {
            Some(EndedRun { due: wall(record.due_ms), end: RunEnd::of_word(record.outcome.as_deref()?) })
        });
        let mut ended: Vec<EndedRun> = ended.take(ENDED_TOLD).collect();
        ended.reverse();
        RecordBook { horizon: wall(self.horizon_ms), open: open.collect(), ended }
    }

    fn keep(&mut self, kept: &RecordBook) {
        self.horizon_ms = ms(kept.horizon);
        self.open = kept.open.iter().map(|run| (ms(run.due), ms(run.claimed_until))).collect();
    }

    fn record(&mut self, entry: &ScheduleEntry) {
        if self.records.len() == RECORDS_KEPT {
            self.records.pop_front();
        }
        let EntryColumns { due_ms, last_due_ms, count, record, reason, .. } = entry.columns();
        let (record, reason) = (record.to_owned(), reason.to_owned());
        self.records.push_back(StoredRecord { due_ms, last_due_ms, count, record, reason, outcome: None });
    }
}

impl FileStore {
    /// Opens a store, and makes it where there is none. Refused while another process has it open.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, StoreError> {
        let path = path.into();
        let fault =
            |what: &str, error: &dyn std::fmt::Display| StoreError(format!("{what} {}: {error}", path.display()));
        let lock = File::create(beside(&path, "lock")).map_err(|error| fault("cannot open the lock of", &error))?;
        let mut patience = PREDECESSOR_LOOKS;
        while let Err(error) = lock.try_lock() {
            if patience == 0 {
                return Err(fault("another process has it open, or it cannot be locked:", &error));
            }
            patience -= 1;
            thread::sleep(PREDECESSOR_LOOK);
        }
        let mut jobs: Jobs = match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| fault("cannot read", &error))?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Jobs::new(),
            Err(error) => return Err(fault("cannot read", &error)),
        };
        // Whoever had claimed these is no more, or the lock would be held.
        jobs.values_mut().flat_map(|job| &mut job.open).for_each(|(_, until)| *until = 0);
        let (sender, asks) = channel::<Ask>();
        let work = move || {
            let _lock = lock;
            while let Ok(Ask { change, reply }) = asks.recv() {
                let mut changed = jobs.clone();
                let written = if change(&mut changed) { write(&path, &changed) } else { Ok(()) };
                if written.is_ok() {
                    jobs = changed;
                }
                // Whoever asked may have gone.
                let _ = reply.send(written);
            }
        };
        let thread = thread::Builder::new().name("onward-schedule-store".into()).spawn(work);
        thread.map_err(|error| StoreError(format!("cannot start its thread: {error}")))?;
        Ok(Self(sender))
    }

    /// The answer of a change, once it is on the disk.
    async fn ask<T: Send + 'static>(
        &self,
        change: impl FnOnce(&mut Jobs) -> (T, bool) + Send + 'static,
    ) -> Result<T, StoreError> {
        let gone = || StoreError("its thread is gone".to_owned());
        let (answer, mut answered) = oneshot::channel();
        let (reply, written) = oneshot::channel();
        let change = move |jobs: &mut Jobs| {
            let (value, has_changed) = change(jobs);
            // It is read only if the change was written.
            let _ = answer.send(value);
            has_changed
        };
        self.0.send(Ask { change: Box::new(change), reply }).map_err(|_| gone())?;
        // The answer comes from a thread; a test whose time stands still must not take that for having nothing to do.
        let written = tokio::task::spawn_blocking(move || written.blocking_recv()).await;
        written.map_err(|_| gone())?.map_err(|_| gone())??;
        answered.try_recv().map_err(|_| gone())
    }
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(ending);
    name.into()
}

/// Written, then renamed: whoever reads finds all of it.
fn write(path: &Path, jobs: &Jobs) -> Result<(), StoreError> {
    let bytes = serde_json::to_vec(jobs).expect("plain data");
    let new = beside(path, "new");
    let written = File::create(&new).and_then(|mut file| {
        file.write_all(&bytes)?;
        file.sync_all()?;
        fs::rename(&new, path)?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
    });
    written.map_err(|error| StoreError(format!("cannot write {}: {error}", path.display())))
}

impl ScheduleStore for FileStore {
    async fn open(&self, job: &str, now: Wall) -> Result<JobRecords, StoreError> {
        let job = job.to_owned();
        self.ask(move |jobs| {
            let is_new = !jobs.contains_key(&job);
            let known = jobs.entry(job).or_insert_with(|| StoredJob { horizon_ms: ms(now), ..StoredJob::default() });
            (known.kept().records(), is_new)
        })
        .await
    }

    async fn add(&self, job: &str, after: Wall, entries: Vec<ScheduleEntry>) -> Result<bool, StoreError> {
        let job = job.to_owned();
        self.ask(move |jobs| {
            let known = jobs.entry(job).or_default();
            let mut kept = known.kept();
            let is_added = kept.add(after, &entries);
            if is_added {
                known.keep(&kept);
                entries.iter().for_each(|entry| known.record(entry));
            }
            (is_added, is_added)
        })
        .await
    }

    async fn reclaim(&self, job: &str, run: OpenRun, until: Wall) -> Result<bool, StoreError> {
        let job = job.to_owned();
        self.ask(move |jobs| {
            let known = jobs.entry(job).or_default();
            let mut kept = known.kept();
            let is_ours = kept.reclaim(run, until);
            known.keep(&kept);
            (is_ours, is_ours)
        })
        .await
    }

    async fn end(&self, job: &str, due: Wall, end: RunEnd) -> Result<(), StoreError> {
        let job = job.to_owned();
        self.ask(move |jobs| {
            let known = jobs.entry(job).or_default();
            let mut kept = known.kept();
            kept.end(due, end);
            known.keep(&kept);
            if let Some(record) = known.records.iter_mut().rev().find(|record| record.due_ms == ms(due)) {
                record.outcome = Some(end.word().to_owned());
            }
            ((), true)
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_second_process_is_kept_out() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("schedules.json");
        let _first = FileStore::open(&path).unwrap();
        let error = FileStore::open(&path).unwrap_err().to_string();
        assert!(error.contains("another process has it open"), "{error}");
        fs::write(folder.path().join("broken.json"), "{").unwrap();
        let error = FileStore::open(folder.path().join("broken.json")).unwrap_err().to_string();
        assert!(error.contains("cannot read") && error.contains("broken.json"), "{error}");
    }
}
