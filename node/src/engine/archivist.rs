//! The thread that moves ended jobs to the archive, apart from the log: neither a commit nor reopening grows with
//! history. A job leaves memory only once it is safely there.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use onward_core::ids::JobId;
use onward_core::job::draft::MAX_SPAN;
use onward_core::payload::Payload;
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
    pub(super) images: Vec<Vec<JobImage>>,
    /// How many more are waiting.
    pub(super) behind: usize,
}

/// Between two batches, so that many jobs share a commit and the log has the disk for itself most of the time.
const REST: Duration = Duration::from_secs(1);
/// With so many jobs in a batch more are waiting: then it works for a quarter of the time.
const MANY: usize = 1_000;
/// With so many more waiting, for they are in memory, it is time to keep up, and it works for most of the time.
const MANY_BEHIND: usize = 100_000;
const TRY_AGAIN: Duration = Duration::from_secs(1);
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
                Ok(ToArchive { images, behind }) => {
                    let begun = Instant::now();
                    let images: Vec<&JobImage> = images.iter().flatten().collect();
                    let jobs = self.keep(&images);
                    let work = begun.elapsed();
                    let rest = match jobs.len() {
                        ..MANY => REST,
                        _ if behind >= MANY_BEHIND => REST.min(work / 4),
                        _ => REST.min(work * 3),
                    };
                    self.shared.ask(Ask::Archived { jobs });
                    thread::sleep(rest);
                    self.shared.ask(Ask::ArchiveReady);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if let Err(error) = self.expire() {
                tracing::warn!(%error, "old jobs could not be removed from the archive; trying again later");
            }
        }
    }

    /// Stores these jobs, trying again as long as it takes or until the node stops. Gives those that are stored.
    fn keep(&self, images: &[&JobImage]) -> Vec<JobId> {
        loop {
            match self.put(images) {
                Ok(()) => return images.iter().map(|image| image.id).collect(),
                Err(error) => tracing::error!(%error, "the archive does not store; ended jobs stay in memory"),
            }
            if self.shared.is_stopping() {
                return Vec::new();
            }
            thread::sleep(TRY_AGAIN);
        }
    }

    fn put(&self, images: &[&JobImage]) -> Result<(), Error> {
        let mut rows = Vec::with_capacity(images.len());
        let mut blobs: Vec<Vec<Content>> = Vec::with_capacity(images.len());
        for image in images {
            let mut row = Vec::new();
            codec::encode_image(image, &mut row);
            rows.push(row);
            blobs.push(self.blobs_of(image)?);
        }
        let blobs: Vec<Vec<Blob<'_>>> = blobs
            .iter()
            .map(|blobs| blobs.iter().map(|(digest, bytes)| Blob { digest: *digest, bytes }).collect())
            .collect();
        let jobs = images.iter().zip(&rows).zip(&blobs).map(|((image, row), blobs)| {
            let ended_at_ms = image.ended_at.unwrap_or(image.created_at).as_ms();
            let retain = image.spec.extras.as_ref().and_then(|extras| extras.retain).unwrap_or(self.rules.retain);
            let expires_at_ms = Some(ended_at_ms.saturating_add(span_ms(retain)));
            ArchivedJob { id: image.id.as_u128(), ended_at_ms, expires_at_ms, row, blobs }
        });
        self.archive.put(&jobs.collect::<Vec<_>>())
    }

    fn blobs_of(&self, image: &JobImage) -> Result<Vec<Content>, Error> {
        let mut found = Vec::new();
        for payload in payloads(image) {
            if let Payload::Stored(stored) = payload
                && let Some(reader) = self.shared.blob_reader()
                && let Some(bytes) = reader.blob(&stored.digest.0)?
            {
                found.push((stored.digest.0, bytes));
            }
        }
        Ok(found)
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

/// Every payload and result of a job.
fn payloads(image: &JobImage) -> impl Iterator<Item = &Payload> {
    let given = image.spec.workflows.iter().map(|workflow| &workflow.payload);
    let past = image.workflows.iter().filter_map(|workflow| workflow.past.as_ref());
    given.chain(past.flat_map(|past| past.attempts.iter().filter_map(|ended| ended.result())))
}
