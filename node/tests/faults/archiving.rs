//! Ended jobs move to the archive with all of their content, whatever happens on the way.

use onward_core::ids::JobId;
use onward_core::job::JobState;
use onward_core::payload::Digest;
use onward_log::engines::memory::AppendFault;
use onward_log::{Archive, Blob, EmbeddedArchive, Log, MemoryLog};
use onward_node::engine::Engine;

use crate::disk::{Disk, Which};
use crate::rig::{archived_content, cancel, start, submit, submit_workflows, succeed_one, until_handed_over};
use crate::waiting::until_seen;

const MIB: usize = 1 << 20;

static PAYLOAD: [u8; 10_000] = [7; 10_000];
static RESULT: [u8; 20_000] = [8; 20_000];

/// An engine with a log of its own and its archive on this disk.
fn started<L: Log + Clone + 'static>(log: L, disk: &Disk) -> (Engine, EmbeddedArchive) {
    let archive = disk.archive().unwrap();
    (start(log, Some(archive.clone())).unwrap(), archive)
}

async fn until_archived(archive: &EmbeddedArchive, job: JobId) {
    until_seen("it is archived", || archive.get(job.as_u128()).unwrap().is_some()).await;
}

/// The archive is at a job when the term ends; the next term hands it over once more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_a_second_term_hands_over_again_keeps_its_content() {
    let (disk, log) = (Disk::default(), MemoryLog::new());
    let (engine, archive) = started(log.clone(), &disk);
    let job = submit(&engine, &PAYLOAD).await.unwrap();
    disk.hold_archive();
    succeed_one(&engine, &RESULT).await.unwrap();
    disk.until_waited_for().await;
    log.inject(AppendFault::Full);
    submit(&engine, &PAYLOAD).await.unwrap_err();
    until_seen("a second term", || engine.stats().terms.get() == 2).await;
    while submit(&engine, b"small").await.is_err() {}
    until_handed_over(&engine).await;
    assert_eq!(archive.get(job.as_u128()).unwrap(), None, "the archive is still at it for the first term");
    disk.release();

    // The archive takes one batch after the other, so with this one all that were handed over before are done.
    until_archived(&archive, job).await;
    let last = succeed_one(&engine, &RESULT).await.unwrap();
    until_archived(&archive, last).await;
    let (payload, result) = archived_content(&engine, job).await.expect("its content is kept");
    assert!(*payload == PAYLOAD && *result == RESULT);
    engine.stop();
}

/// While the archive's file grows, whoever reads it waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_term_does_not_wait_for_an_archive_that_needs_more_room() {
    let (disk, log) = (Disk::default(), MemoryLog::new());
    let (engine, archive) = started(log.clone(), &disk);
    let job = submit(&engine, &mib_of(7)).await.unwrap();
    disk.hold_growing_archive();
    engine.call(cancel(job)).await.unwrap();
    disk.until_waited_for().await;
    log.inject(AppendFault::Full);
    submit(&engine, b"small").await.unwrap_err();
    until_seen("a second term", || engine.stats().terms.get() == 2).await;
    while submit(&engine, b"small").await.is_err() {}
    disk.release();
    until_archived(&archive, job).await;
    engine.stop();
}

/// Behind the back of whoever uses the log.
fn drop_blob(log: &MemoryLog, digest: [u8; 32]) {
    let mut hand = log.clone();
    let term = hand.tail().unwrap().term;
    hand.drop_blobs(term, &[digest]).unwrap();
}

/// A job whose content is not whole has ended, and so does another.
async fn only_the_whole_one_is_archived(engine: &Engine, archive: &EmbeddedArchive, damaged: JobId) {
    engine.call(cancel(damaged)).await.unwrap();
    let whole = submit(engine, &RESULT).await.unwrap();
    engine.call(cancel(whole)).await.unwrap();
    until_archived(archive, whole).await;
    let state = engine.read(move |view| view.manager.job(damaged).map(|job| job.state)).await;
    assert_eq!(state, Ok(Some(JobState::Cancelled)), "it stays in memory");
    assert_eq!(archive.get(damaged.as_u128()).unwrap(), None, "half of a job is none");
    engine.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_whose_content_is_missing_is_not_archived_and_holds_up_no_other() {
    let log = MemoryLog::new();
    let (engine, archive) = started(log.clone(), &Disk::default());
    let damaged = submit(&engine, &PAYLOAD).await.unwrap();
    drop_blob(&log, Digest::of(&PAYLOAD).0);
    only_the_whole_one_is_archived(&engine, &archive, damaged).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_whose_content_is_damaged_is_not_archived_and_holds_up_no_other() {
    let disk = Disk::default();
    let (engine, archive) = started(disk.log().unwrap(), &disk);
    let damaged = submit(&engine, &PAYLOAD).await.unwrap();
    engine.stop();
    drop((engine, archive));
    assert!(disk.damage(Which::Log, &PAYLOAD[..100]) > 0);

    let (engine, archive) = started(disk.log().unwrap(), &disk);
    only_the_whole_one_is_archived(&engine, &archive, damaged).await;
}

/// Begins as if a copy had been broken off once, and the log had lost the content since.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_whose_content_is_in_the_archive_already_needs_none_of_the_log() {
    let log = MemoryLog::new();
    let (engine, archive) = started(log.clone(), &Disk::default());
    let job = submit(&engine, &PAYLOAD).await.unwrap();
    let digest = Digest::of(&PAYLOAD).0;
    archive.put_blobs(job.as_u128(), &[Blob { digest, bytes: &PAYLOAD }]).unwrap();
    drop_blob(&log, digest);
    engine.call(cancel(job)).await.unwrap();
    until_archived(&archive, job).await;
    assert!(archive.blob(job.as_u128(), &digest).unwrap().is_some_and(|kept| kept == PAYLOAD));
    engine.stop();
}

/// No commit was as large as all of it, and each job has what was given to it.
fn assert_archived_in_portions<'a>(
    disk: &Disk,
    archive: &EmbeddedArchive,
    contents: impl IntoIterator<Item = (&'a JobId, usize)>,
) {
    assert!(disk.largest_archive_commit() < 12 * MIB, "{} MiB", disk.largest_archive_commit() / MIB);
    for (job, n) in contents {
        let content = mib_of(n);
        assert!(archive.blob(job.as_u128(), &Digest::of(&content).0).unwrap() == Some(content), "content {n}");
    }
}

fn mib_of(n: usize) -> Vec<u8> {
    vec![n as u8; MIB]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_with_much_content_is_archived_in_commits_of_a_bounded_size() {
    const RESULTS: usize = 24;
    let disk = Disk::default();
    let (engine, archive) = started(MemoryLog::new(), &disk);
    let job = submit_workflows(&engine, RESULTS).await.unwrap();
    for n in 0..RESULTS {
        succeed_one(&engine, &mib_of(n)).await.unwrap();
    }
    until_archived(&archive, job).await;
    assert_archived_in_portions(&disk, &archive, [&job; RESULTS].into_iter().zip(0..));
    engine.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_jobs_with_content_that_end_together_are_archived_in_commits_of_a_bounded_size() {
    const JOBS: usize = 24;
    let disk = Disk::default();
    let (engine, archive) = started(MemoryLog::new(), &disk);
    // While the archive is at the first, the others wait.
    disk.hold_archive();
    let mut jobs = Vec::new();
    for n in 0..JOBS {
        let job = submit(&engine, &mib_of(n)).await.unwrap();
        engine.call(cancel(job)).await.unwrap();
        jobs.push(job);
    }
    disk.release();
    until_seen("all are archived", || engine.stats().archived.get() == JOBS as u64).await;
    assert_archived_in_portions(&disk, &archive, jobs.iter().zip(0..));
    engine.stop();
}
