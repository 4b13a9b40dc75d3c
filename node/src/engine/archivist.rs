//! The thread that moves ended jobs to the archive, apart from the log: neither a commit nor reopening grows with
//! history. A job leaves memory only once it is safely there.
//!
//! **Each term hands over its own.** Jobs that ended under an earlier term and are not archived as far as the log knows
//! are handed over again by the next one, and only what was stored for the term that reigns is reported: content is
//! dropped from the log when that term has made `JobsArchived` durable, so whoever copies a job finds its content.
//!
//! **Content that is missing is an error.** A job whose content is neither in the log nor in the archive is not stored:
//! a copy without it would look whole. It stays in memory, and the node's log says so.

use std::sync::Arc;
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

use super::{Ask, Shared};
use crate::clock;

/// What is kept of finished jobs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ArchiveRules {
    /// For jobs that do not say for how long.
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
    /// How many more are waiting.
    pub(super) behind: usize,
}

/// With so many jobs in a batch more are waiting: then it works for a quarter of the time.
const MANY: usize = 1_000;
/// With so many more waiting, for they are in memory, it is time to keep up, and it works for most of the time.
const MANY_BEHIND: usize = 100_000;
const EXPIRE_EVERY: Duration = Duration::from_secs(10);
const EXPIRE_AT_ONCE: usize = 1_000;

pub(super) fn spawn(
    archive: Archive,
    rules: ArchiveRules,
    shared: Arc<Shared>,
) -> std::io::Result<(Sender<ToArchive>, JoinHandle<()>)> {
    let (sender, inbox) = channel();
    let archivist = Archivist { archive, rules, shared };
    let thread = thread::Builder::new().name("onward-archive".into()).spawn(move || archivist.run(&inbox))?;
    Ok((sender, thread))
}

struct Archivist {
    archive: Archive,
    rules: ArchiveRules,
    shared: Arc<Shared>,
}

impl Archivist {
    fn run(self, inbox: &Receiver<ToArchive>) {
        loop {
            match inbox.recv_timeout(EXPIRE_EVERY) {
                Ok(batch) => {
                    let begun = Instant::now();
                    let Some((ToArchive { term, behind, .. }, jobs)) = self.keep(batch, inbox) else { return };
                    let work = begun.elapsed();
                    let rest = self.shared.pacing.archive_rest;
                    let rest = match jobs.len() {
                        ..MANY => rest,
                        _ if behind >= MANY_BEHIND => rest.min(work / 4),
                        _ => rest.min(work * 3),
                    };
                    self.shared.ask(Ask::Archived { term, jobs });
                    thread::sleep(rest);
                    self.shared.ask(Ask::ArchiveReady { term });
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if let Err(error) = self.expire() {
                tracing::warn!(%error, "old jobs could not be removed from the archive; trying again later");
            }
        }
    }

    /// Stores these jobs, trying again as long as it takes; or those of a newer term, which hands over the same again.
    /// Gives the batch with those that are stored; nothing if the node stops.
    fn keep(&self, mut batch: ToArchive, inbox: &Receiver<ToArchive>) -> Option<(ToArchive, Vec<JobId>)> {
        loop {
            batch = inbox.try_iter().last().unwrap_or(batch);
            match self.put(batch.images.iter().flatten()) {
                Ok(jobs) => return Some((batch, jobs)),
                Err(error) => tracing::error!(%error, "the archive does not store; ended jobs stay in memory"),
            }
            if self.shared.is_stopping() {
                return None;
            }
            match inbox.recv_timeout(self.shared.pacing.archive_rest) {
                Ok(newer) => batch = newer,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        }
    }

    /// Stores all of which the content is found; gives these.
    fn put<'a>(&self, images: impl Iterator<Item = &'a JobImage>) -> Result<Vec<JobId>, Error> {
        let mut found = Vec::new();
        for image in images {
            match self.blobs_of(image)? {
                Ok(blobs) => {
                    let mut row = Vec::new();
                    codec::encode_image(image, &mut row);
                    found.push((image, row, blobs));
                }
                Err(Missing(digest)) => {
                    let job = image.id;
                    tracing::error!(%job, ?digest, "content of an ended job is missing; the job is not archived");
                }
            }
        }
        let blobs: Vec<Vec<Blob<'_>>> = found
            .iter()
            .map(|(_, _, blobs)| blobs.iter().map(|(digest, bytes)| Blob { digest: *digest, bytes }).collect())
            .collect();
        let jobs = found.iter().zip(&blobs).map(|((image, row, _), blobs)| {
            let ended_at_ms = image.ended_at.unwrap_or(image.created_at).as_ms();
            let retain = image.spec.extras.as_ref().and_then(|extras| extras.retain).unwrap_or(self.rules.retain);
            let expires_at_ms = Some(ended_at_ms.saturating_add(span_ms(retain)));
            ArchivedJob { id: image.id.as_u128(), ended_at_ms, expires_at_ms, row, blobs }
        });
        self.archive.put(&jobs.collect::<Vec<_>>())?;
        Ok(found.iter().map(|(image, ..)| image.id).collect())
    }

    /// All content of a job that is not in the archive with it yet.
    fn blobs_of(&self, image: &JobImage) -> Result<Result<Vec<Content>, Missing>, Error> {
        let reader = self.shared.blob_reader();
        let reader = reader.ok_or_else(|| Error::Io { cause: "the log is closed".to_owned() })?;
        let mut found = Vec::new();
        for stored in payloads(image).filter_map(Payload::as_stored) {
            let digest = stored.digest.0;
            match reader.blob(&digest)? {
                Some(bytes) => found.push((digest, bytes)),
                // It was copied before, and what the archive has it keeps.
                None if self.archive.blob(image.id.as_u128(), &digest)?.is_some() => {}
                None => return Ok(Err(Missing(stored.digest))),
            }
        }
        Ok(Ok(found))
    }

    fn expire(&self) -> Result<(), Error> {
        let now = clock::now().wall.as_ms();
        while self.archive.expire(now, self.rules.max_jobs, EXPIRE_AT_ONCE)? == EXPIRE_AT_ONCE {
            if self.shared.is_stopping() {
                break;
            }
        }
        Ok(())
    }
}

/// Content that is nowhere to be found.
struct Missing(Digest);

/// Every payload and result of a job.
fn payloads(image: &JobImage) -> impl Iterator<Item = &Payload> {
    let given = image.spec.workflows.iter().map(|workflow| &workflow.payload);
    let past = image.workflows.iter().filter_map(|workflow| workflow.past.as_ref());
    given.chain(past.flat_map(|past| past.attempts.iter().filter_map(|ended| ended.result())))
}
