//! An embedded node's data into a database: log, archive, keys, tokens and output, byte for byte.
//!
//! No node runs meanwhile: the folder is locked, and nobody can lead the log in the database before all of it is there
//! ([`onward_postgres::Import`]). Given up in between, it begins anew the next time. Afterwards the folder says where its
//! data went, so that no node goes on with the jobs that it had.

use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use onward_core::ids::Seq;
use onward_core::payload::Payload;
use onward_log::{
    Archive, ArchivedJob, Blob, BlobDigest, EmbeddedArchive, EmbeddedLog, Error, Log, LogChange, OnLoss, OpenedPair,
    Snapshot, StoredRow, Tail, codec,
};
use onward_postgres::{Database, Import, ImportError, OutputKey};

use super::postgres::{EMBEDDED_LOG, OpenedDatabase};
use super::{DatabaseUrl, OpenError};
use crate::api::receipt::KEY_FILE;
use crate::auth::{FileError, read_or_make_key, tokens_of_folder, write_secret};
use crate::outputs::{self, OutputFolder, OutputRules, OutputStore as _};

/// The file in a data folder whose data went elsewhere, which says where.
const MOVED: &str = "moved";

/// Bytes that go in one statement, roughly.
const STATEMENT_BYTES: usize = 4 << 20;
const READ_EVENTS: usize = 10_000;
const PAGE: usize = 500;

/// Content by its digest.
type Content = (BlobDigest, Vec<u8>);

/// The progress of a migration: events and archived jobs, of so many.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MigrationProgress {
    pub done: u64,
    pub total: u64,
}

/// The data that were taken over.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MigrationSummary {
    /// The last event of the log.
    pub last_event: u64,
    pub archived_jobs: u64,
    pub outputs: u64,
    pub tokens: u64,
    /// Payloads and results that the folder had lost or damaged: their jobs are there without them, as they were.
    pub missing: u64,
    /// All of it was there already, by an earlier migration of the same folder.
    pub was_there: bool,
}

/// The reason why nothing was migrated. No node can lead what is in the database.
#[derive(Debug, thiserror::Error)]
pub enum MigrateError {
    #[error("{} is no data folder of a node with embedded storage: it has no {EMBEDDED_LOG}", folder.display())]
    NoNode { folder: PathBuf },
    #[error("what was in {} has been moved to {to} before", folder.display())]
    Moved { folder: PathBuf, to: String },
    #[error("{error} ({url})")]
    Database { url: DatabaseUrl, error: OpenError },
    #[error("{0}")]
    Import(#[from] ImportError),
    #[error("{0}")]
    Folder(#[from] Error),
    #[error("{0}")]
    File(#[from] FileError),
    #[error("the output of attempts cannot be read: {0}")]
    Output(#[from] io::Error),
}

/// The place where the data of this folder went, if they did.
pub(super) fn moved_to(folder: &Path) -> Result<Option<String>, FileError> {
    let path = folder.join(MOVED);
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok(Some(text.trim().to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(FileError { path, what: format!("cannot be read: {error}") }),
    }
}

/// Takes over all that is in `folder` into a database that holds nothing of this datacenter yet.
pub fn migrate(
    folder: &Path,
    url: &DatabaseUrl,
    datacenter: &str,
    mut progress: impl FnMut(MigrationProgress),
) -> Result<MigrationSummary, MigrateError> {
    // Opening a folder that has no log would make one.
    if !folder.join(EMBEDDED_LOG).exists() {
        return Err(MigrateError::NoNode { folder: folder.to_owned() });
    }
    if let Some(to) = moved_to(folder)? {
        return Err(MigrateError::Moved { folder: folder.to_owned(), to });
    }
    let source = Source::open(folder)?;
    let about = |error| MigrateError::Database { url: url.clone(), error };
    let OpenedDatabase(database) = OpenedDatabase::open(url).map_err(about)?;
    let migrated = match database.begin_import(datacenter) {
        Err(ImportError::NotEmpty(found)) if found == source.tail => {
            MigrationSummary { last_event: found.last.0, was_there: true, ..MigrationSummary::default() }
        }
        begun => Migration { import: begun?, database, datacenter, source, done: MigrationSummary::default() }
            .run(&mut progress)?,
    };
    write_secret(&folder.join(MOVED), format!("{url}\n").as_bytes())?;
    Ok(migrated)
}

/// The data to be taken over. The folder is locked for as long as this is there.
struct Source {
    folder: PathBuf,
    log: EmbeddedLog,
    archive: EmbeddedArchive,
    tail: Tail,
    snapshot: Option<Snapshot>,
}

impl Source {
    fn open(folder: &Path) -> Result<Self, Error> {
        let OpenedPair { mut log, archive, .. } = OpenedPair::open(folder, OnLoss::Refuse)?;
        let (tail, snapshot) = (log.tail()?, log.snapshot()?);
        // Nobody leads under no term; a node that never served has none.
        let tail = Tail { term: tail.term.max(onward_core::fence::Term::new(1)), ..tail };
        Ok(Self { folder: folder.to_owned(), log, archive, tail, snapshot })
    }

    /// The rows that a database needs: all behind the snapshot, and the one that says where the log ends.
    fn rows(&mut self, from: Seq) -> Result<Vec<StoredRow>, Error> {
        match self.log.read(from, READ_EVENTS) {
            Err(Error::Truncated { first }) => self.log.read(first, READ_EVENTS),
            read => read,
        }
    }

    /// Content that is there and whole; none if not.
    fn whole(found: Result<Option<Vec<u8>>, Error>) -> Result<Option<Vec<u8>>, Error> {
        match found {
            Err(error) if error.is_permanent() => Ok(None),
            found => found,
        }
    }
}

struct Migration<'a> {
    datacenter: &'a str,
    source: Source,
    database: Database,
    import: Import,
    done: MigrationSummary,
}

impl Migration<'_> {
    fn run(mut self, progress: &mut dyn FnMut(MigrationProgress)) -> Result<MigrationSummary, MigrateError> {
        let covers = self.source.snapshot.map_or(0, |snapshot| snapshot.covers.0);
        let events = self.source.tail.last.0.saturating_sub(covers);
        let mut state = MigrationProgress { done: 0, total: events + self.source.archive.count()? };
        let mut step = |more: u64| {
            state.done += more;
            progress(state);
        };
        step(0);
        self.chunks()?;
        self.batches(&mut step)?;
        self.contents()?;
        self.archive(&mut step)?;
        self.keys_and_tokens()?;
        self.outputs()?;
        let Self { source, import, mut done, .. } = self;
        import.finish(source.tail, source.snapshot)?;
        done.last_event = source.tail.last.0;
        Ok(done)
    }

    fn chunks(&mut self) -> Result<(), MigrateError> {
        let Some(snapshot) = self.source.snapshot else { return Ok(()) };
        for index in 0..snapshot.chunks {
            self.import.put_chunk(snapshot.covers, index, &self.source.log.chunk(index)?)?;
        }
        Ok(())
    }

    fn batches(&mut self, step: &mut dyn FnMut(u64)) -> Result<(), MigrateError> {
        // The row with the last event that the snapshot covers may be the newest.
        let mut next = self.source.snapshot.map_or(Seq(1), |snapshot| snapshot.covers);
        while next <= self.source.tail.last {
            let rows = self.source.rows(next)?;
            let Some(last) = rows.last() else { break };
            let reached = last.next();
            for some in rows.chunk_by(by_bytes(|row: &StoredRow| row.body().len())) {
                self.import.put_rows(some)?;
            }
            step(reached.0 - next.0);
            next = reached;
        }
        Ok(())
    }

    fn contents(&mut self) -> Result<(), MigrateError> {
        let mut after: Option<BlobDigest> = None;
        loop {
            let digests = self.source.log.blobs(after.as_ref(), PAGE)?;
            let Some(last) = digests.last().copied() else { return Ok(()) };
            let (mut some, mut bytes): (Vec<Content>, usize) = (Vec::new(), 0);
            for digest in digests {
                match Source::whole(self.source.log.blob(&digest))? {
                    Some(content) => {
                        bytes += content.len();
                        some.push((digest, content));
                    }
                    None => self.done.missing += 1,
                }
                if bytes >= STATEMENT_BYTES {
                    self.import.put_blobs(&as_blobs(&some))?;
                    (some, bytes) = (Vec::new(), 0);
                }
            }
            self.import.put_blobs(&as_blobs(&some))?;
            after = Some(last);
        }
    }

    fn archive(&mut self, step: &mut dyn FnMut(u64)) -> Result<(), MigrateError> {
        let target = self.database.archive(self.datacenter);
        let mut after = None;
        loop {
            let entries = self.source.archive.entries(after, PAGE, STATEMENT_BYTES)?;
            let Some(last) = entries.last().map(|entry| entry.id) else { return Ok(()) };
            for entry in &entries {
                // Content first, and some at a time, since one job can have much of it.
                for stored in
                    codec::decode_image(&entry.row).map_err(Error::from)?.payloads().filter_map(Payload::as_stored)
                {
                    let digest = stored.digest.0;
                    match Source::whole(self.source.archive.blob(entry.id, &digest))? {
                        Some(bytes) => until_known(|| target.put_blobs(entry.id, &[Blob { digest, bytes: &bytes }]))?,
                        None => self.done.missing += 1,
                    }
                }
            }
            let jobs: Vec<ArchivedJob<'_>> = entries
                .iter()
                .map(|entry| ArchivedJob {
                    id: entry.id,
                    ended_at_ms: entry.ended_at_ms,
                    expires_at_ms: entry.expires_at_ms,
                    row: &entry.row,
                    blobs: &[],
                })
                .collect();
            until_known(|| target.put(&jobs))?;
            self.done.archived_jobs += jobs.len() as u64;
            step(jobs.len() as u64);
            after = Some(last);
        }
    }

    fn keys_and_tokens(&mut self) -> Result<(), MigrateError> {
        self.import.put_key(KEY_FILE, &read_or_make_key(&self.source.folder.join(KEY_FILE))?)?;
        for token in tokens_of_folder(&self.source.folder)? {
            self.import.put_token(&token)?;
            self.done.tokens += 1;
        }
        Ok(())
    }

    fn outputs(&mut self) -> Result<(), MigrateError> {
        let folder = self.source.folder.join(outputs::FOLDER);
        if !folder.exists() {
            return Ok(());
        }
        let kept = OutputFolder::new(folder, OutputRules::default());
        for (written_at_ms, claim, _) in kept.found()? {
            let Some(found) = kept.read(&claim)? else { continue };
            let key = OutputKey { job: claim.job.as_u128(), workflow: claim.workflow, fence: claim.fence.get() };
            self.import.put_output(key, found.skipped, &found.data, written_at_ms)?;
            self.done.outputs += 1;
        }
        Ok(())
    }
}

/// A rule for [`slice::chunk_by`]: the next belongs to the same chunk until that has grown to what goes in one
/// statement.
fn by_bytes<T>(size: impl Fn(&T) -> usize) -> impl FnMut(&T, &T) -> bool {
    let mut bytes = 0;
    move |one, _| {
        bytes += size(one);
        let goes_on = bytes < STATEMENT_BYTES;
        bytes = if goes_on { bytes } else { 0 };
        goes_on
    }
}

fn as_blobs(contents: &[Content]) -> Vec<Blob<'_>> {
    contents.iter().map(|(digest, bytes)| Blob { digest: *digest, bytes }).collect()
}

/// Storing the same again changes nothing.
fn until_known(mut store: impl FnMut() -> Result<(), Error>) -> Result<(), Error> {
    const FOR: Duration = Duration::from_secs(60);
    let since = Instant::now();
    loop {
        match store() {
            Err(error) if error.changed() == LogChange::Maybe && since.elapsed() < FOR => {
                thread::sleep(Duration::from_millis(200));
            }
            known => return known,
        }
    }
}
