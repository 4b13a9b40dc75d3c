//! The thread that moves ended jobs to the archive, apart from the log: neither a commit nor reopening grows with
//! history. A job leaves memory only once it is safely there.
//!
//! **Each term hands over its own.** Jobs that ended under an earlier term and are not archived as far as the log knows
//! are handed over again by the next one, and only what was stored for the term that reigns is reported: content is
//! dropped from the log when that term has made `JobsArchived` durable, so whoever copies a job finds its content.
//!
//! **Content that is missing or damaged is an error,** and of its own job only. A job whose content is neither in the log
//! nor in the archive, whole, is not stored: a copy without it would look whole. It stays in memory, and the node's log
//! names it. A disk that fails is another matter: then everything waits and is tried again.
//!
//! **A commit is bounded in bytes,** because all of it is in memory at once, and a job within the limits can have a
//! gigabyte of results. The content of a large job goes ahead of its row in commits of its own; a crash in between
//! leaves content that the next copy finds there.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use onward_core::fence::Term;
use onward_core::ids::JobId;
use onward_core::job::draft::MAX_SPAN;
use onward_core::payload::{Digest, Payload};
use onward_core::settings::{BadSetting, in_range, span_in_range};
use onward_core::state::JobImage;
use onward_core::time::span_ms;
use onward_log::{Archive, ArchivedJob, Blob, Error, codec};

use super::vitals::DieOnPanic;
use super::{Command, EngineState};
use crate::clock;
use crate::cluster::leader::LeaderView;

/// The limits on finished jobs that are kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ArchiveRules {
    /// The time for which jobs are kept that do not say their own.
    pub retain: Duration,
    /// More than this are not kept, whatever their age; the oldest go first.
    pub max_jobs: u64,
}

impl Default for ArchiveRules {
    fn default() -> Self {
        Self { retain: Duration::from_secs(7 * 24 * 3600), max_jobs: 5_000_000 }
    }
}

impl ArchiveRules {
    pub fn check(&self) -> Vec<BadSetting> {
        let mut bad = Vec::new();
        span_in_range(&mut bad, "archive.retain", self.retain, Duration::from_millis(1)..=MAX_SPAN);
        in_range(&mut bad, "archive.max_jobs", self.max_jobs, 1..=u64::MAX);
        bad
    }
}

/// Bytes, with the digest that they are found by.
type Content = ([u8; 32], Vec<u8>);

pub(super) struct ToArchive {
    /// The term that hands them over.
    pub(super) term: Term,
    pub(super) images: Vec<Vec<JobImage>>,
    /// The number of further jobs that wait.
    pub(super) behind: usize,
}

/// The size of a batch that means more jobs are waiting: then the archivist works for a quarter of the time.
const MANY: usize = 1_000;
/// The number of waiting jobs, all of them in memory, at which it is time to keep up: the archivist works for most of
/// the time.
const MANY_BEHIND: usize = 100_000;
/// Rows and content of one commit, roughly.
const COMMIT_BYTES: usize = 8 << 20;
const EXPIRE_AT_ONCE: usize = 1_000;

pub(super) fn spawn(
    archive: Arc<dyn Archive>,
    rules: ArchiveRules,
    shared: Arc<EngineState>,
) -> std::io::Result<(Sender<ToArchive>, JoinHandle<()>)> {
    let (sender, batches) = channel();
    let archivist = Archivist { archive, rules, shared };
    let thread = thread::Builder::new().name("onward-archive".into()).spawn(move || archivist.run(&batches))?;
    Ok((sender, thread))
}

struct Archivist {
    archive: Arc<dyn Archive>,
    rules: ArchiveRules,
    shared: Arc<EngineState>,
}

impl Archivist {
    fn run(self, batches: &Receiver<ToArchive>) {
        let _die = DieOnPanic(&self.shared.vitals.archive);
        loop {
            match batches.recv_timeout(self.shared.pacing.expire_every) {
                Ok(batch) => {
                    let begun = Instant::now();
                    let Some((ToArchive { term, behind, .. }, jobs)) = self.store_until_done(batch, batches) else {
                        return;
                    };
                    self.shared.vitals.archive.recover();
                    let work = begun.elapsed();
                    let rest = self.shared.pacing.archive_rest;
                    let rest = match jobs.len() {
                        ..MANY => rest,
                        _ if behind >= MANY_BEHIND => rest.min(work / 4),
                        _ => rest.min(work * 3),
                    };
                    self.shared.send(Command::Archived { term, jobs });
                    thread::sleep(rest);
                    self.shared.send(Command::ArchiveReady { term });
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.shared.vitals.archive.begin();
            let expired = self.expire();
            self.shared.vitals.archive.rest();
            if let Err(error) = expired {
                tracing::warn!(%error, "old jobs could not be removed from the archive; trying again later");
            }
        }
    }

    /// Stores these jobs, trying again as long as it takes; or those of a newer term, which hands over the same again.
    /// Gives the batch with those that are stored; nothing if the node stops.
    fn store_until_done(&self, mut batch: ToArchive, batches: &Receiver<ToArchive>) -> Option<(ToArchive, Vec<JobId>)> {
        let mut progress = Progress::default();
        loop {
            if let Some(newer) = batches.try_iter().last() {
                (batch, progress) = (newer, Progress::default());
            }
            self.shared.vitals.archive.begin();
            let stored = self.put(&batch, &mut progress);
            self.shared.vitals.archive.rest();
            match stored {
                Ok(()) => return Some((batch, progress.stored)),
                // Whoever leads now has these jobs too, and stores them itself.
                Err(Error::StaleTerm { .. }) => return Some((batch, progress.stored)),
                Err(error) => {
                    self.shared.vitals.archive.fail(&error);
                    tracing::error!(%error, "the archive does not store; ended jobs stay in memory");
                }
            }
            if self.shared.is_stopping() {
                return None;
            }
            match batches.recv_timeout(self.shared.pacing.archive_rest) {
                Ok(newer) => (batch, progress) = (newer, Progress::default()),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        }
    }

    /// Stores all of which the content is found whole, from where an earlier try came to.
    fn put(&self, batch: &ToArchive, progress: &mut Progress) -> Result<(), Error> {
        let archive = &*self.archive.under(batch.term);
        let (mut commit, mut bytes) = (Vec::new(), 0);
        for image in batch.images.iter().flatten().skip(progress.done) {
            if bytes >= COMMIT_BYTES {
                self.commit(archive, &commit, progress)?;
                commit.clear();
                bytes = 0;
            }
            let entry = self.entry_of(archive, image)?;
            bytes += entry.bytes();
            commit.push(entry);
        }
        self.commit(archive, &commit, progress)
    }

    fn commit(&self, archive: &dyn Archive, entries: &[Entry<'_>], progress: &mut Progress) -> Result<(), Error> {
        let whole = || entries.iter().filter(|entry| entry.is_whole);
        let blobs: Vec<Vec<Blob<'_>>> = whole().map(|entry| as_blobs(&entry.blobs)).collect();
        let jobs = whole().zip(&blobs).map(|(Entry { image, row, .. }, blobs)| {
            let ended_at_ms = image.ended_at.unwrap_or(image.created_at).as_ms();
            let retain = image.spec.extras.as_ref().and_then(|extras| extras.retain).unwrap_or(self.rules.retain);
            let expires_at_ms = Some(ended_at_ms.saturating_add(span_ms(retain)));
            ArchivedJob { id: image.id.as_u128(), ended_at_ms, expires_at_ms, row, blobs }
        });
        archive.put(&jobs.collect::<Vec<_>>())?;
        progress.stored.extend(whole().map(|entry| entry.image.id));
        progress.done += entries.len();
        Ok(())
    }

    /// The job with all of its content that is not in the archive yet. What is more than a commit may have is in the
    /// archive when this returns.
    fn entry_of<'a>(&self, archive: &dyn Archive, image: &'a JobImage) -> Result<Entry<'a>, Error> {
        let mut row = Vec::new();
        codec::encode_image(image, &mut row);
        let mut entry = Entry { image, row, blobs: Vec::new(), is_whole: true };
        let job = image.id;
        for stored in image.payloads().filter_map(Payload::as_stored) {
            match self.content(job, &stored.digest)? {
                ContentSource::InLog(bytes) => entry.blobs.push((stored.digest.0, bytes)),
                ContentSource::Archived => {}
                ContentSource::Missing => {
                    let digest = stored.digest;
                    tracing::error!(%job, ?digest, "content of an ended job is missing; the job is not archived");
                    return Ok(entry.not_whole());
                }
                ContentSource::Damaged(error) => {
                    let digest = stored.digest;
                    tracing::error!(%job, ?digest, %error, "content of an ended job is damaged; the job is not archived");
                    return Ok(entry.not_whole());
                }
            }
            if entry.blobs.len() > 1 && entry.bytes() >= COMMIT_BYTES {
                archive.put_blobs(job.as_u128(), &as_blobs(&entry.blobs))?;
                entry.blobs.clear();
            }
        }
        Ok(entry)
    }

    fn content(&self, job: JobId, digest: &Digest) -> Result<ContentSource, Error> {
        let reader = self.shared.blob_reader();
        let reader = reader.ok_or_else(|| Error::Io { cause: "the log is closed".to_owned() })?;
        let in_log = match reader.blob(&digest.0) {
            Ok(Some(bytes)) => return Ok(ContentSource::InLog(bytes)),
            Ok(None) => ContentSource::Missing,
            Err(error) => ContentSource::damaged(error)?,
        };
        // If it was copied before: what the archive has it keeps.
        match self.archive.blob(job.as_u128(), &digest.0) {
            Ok(Some(_)) => Ok(ContentSource::Archived),
            Ok(None) => Ok(in_log),
            Err(error) => ContentSource::damaged(error),
        }
    }

    fn expire(&self) -> Result<(), Error> {
        let LeaderView::Leading { term } = *self.shared.leader_view.borrow() else { return Ok(()) };
        if !self.shared.serves.load(Ordering::Relaxed) {
            return Ok(());
        }
        let (now, archive) = (clock::now().wall.as_ms(), self.archive.under(term));
        loop {
            match archive.expire(now, self.rules.max_jobs, EXPIRE_AT_ONCE) {
                Ok(EXPIRE_AT_ONCE) if !self.shared.is_stopping() => {}
                // Another removes them.
                Ok(_) | Err(Error::StaleTerm { .. }) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }
}

/// The progress of a batch.
#[derive(Default)]
struct Progress {
    /// Jobs that need no further look.
    done: usize,
    stored: Vec<JobId>,
}

/// A job on its way into the archive.
struct Entry<'a> {
    image: &'a JobImage,
    row: Vec<u8>,
    blobs: Vec<Content>,
    /// All of its content was found.
    is_whole: bool,
}

impl Entry<'_> {
    fn bytes(&self) -> usize {
        self.row.len() + self.blobs.iter().map(|(_, bytes)| bytes.len()).sum::<usize>()
    }

    fn not_whole(self) -> Self {
        Self { row: Vec::new(), blobs: Vec::new(), is_whole: false, ..self }
    }
}

fn as_blobs(contents: &[Content]) -> Vec<Blob<'_>> {
    contents.iter().map(|(digest, bytes)| Blob { digest: *digest, bytes }).collect()
}

/// The place where content of a job was found.
enum ContentSource {
    InLog(Vec<u8>),
    /// In the archive, with its job.
    Archived,
    Missing,
    Damaged(Error),
}

impl ContentSource {
    /// Damage is there for good, and to this content; any other failure is the disk's.
    fn damaged(error: Error) -> Result<Self, Error> {
        if error.is_permanent() { Ok(Self::Damaged(error)) } else { Err(error) }
    }
}
