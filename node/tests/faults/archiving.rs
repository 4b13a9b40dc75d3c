//! Ended jobs move to the archive with all of their content, whatever happens on the way.

use onward_core::job::JobState;
use onward_core::payload::Digest;
use onward_log::memory::Fault;
use onward_log::{Archive, Log, MemoryLog};

use crate::disk::{Disk, Which};
use crate::rig::{archived_content, cancel, start, submit, submit_workflows, succeed_one, until};

const MIB: usize = 1 << 20;

static PAYLOAD: [u8; 10_000] = [7; 10_000];
static RESULT: [u8; 20_000] = [8; 20_000];

/// The archive is at a job when the term ends; the next term hands it over once more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_a_second_term_hands_over_again_keeps_its_content() {
    let (disk, log) = (Disk::default(), MemoryLog::new());
    let archive = disk.archive().unwrap();
    let engine = start(log.clone(), Some(archive.clone())).unwrap();
    let job = submit(&engine, &PAYLOAD).await.unwrap();
    disk.hold(Which::Archive);
    succeed_one(&engine, &RESULT).await.unwrap();
    // What is asked for behind it is done behind it: the archive's thread has the job now.
    let behind = disk.ops();
    assert_eq!(engine.stats().archived.get(), 0);
    log.inject(Fault::Full);
    submit(&engine, &PAYLOAD).await.unwrap_err();
    until("a second term", || engine.stats().terms.get() == 2).await;
    while submit(&engine, b"small").await.is_err() {}
    disk.release();
    until("it is archived", || engine.stats().archived.get() >= 1).await;
    assert!(disk.ops() > behind);

    // The archive takes one batch after the other, so with this one all that were handed over before are done.
    let last = succeed_one(&engine, &RESULT).await.unwrap();
    until("the last one is archived", || archive.get(last.as_u128()).unwrap().is_some()).await;
    let (payload, result) = archived_content(&engine, job).await.expect("its content is kept");
    assert!(*payload == PAYLOAD && *result == RESULT);
    engine.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_whose_content_is_missing_is_not_archived_and_holds_up_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let (log, archive) = (MemoryLog::new(), Archive::open(folder.path()).unwrap());
    let engine = start(log.clone(), Some(archive.clone())).unwrap();
    let damaged = submit(&engine, &PAYLOAD).await.unwrap();
    let mut hand = log.clone();
    let term = hand.tail().unwrap().term;
    hand.drop_blobs(term, &[Digest::of(&PAYLOAD).0]).unwrap();
    engine.call(cancel(damaged)).await.unwrap();
    let whole = submit(&engine, &RESULT).await.unwrap();
    engine.call(cancel(whole)).await.unwrap();
    until("the other is archived", || archive.get(whole.as_u128()).unwrap().is_some()).await;
    let state = engine.read(move |view| view.manager.job(damaged).map(|job| job.state)).await;
    assert_eq!(state, Ok(Some(JobState::Cancelled)), "it stays in memory");
    assert_eq!(archive.get(damaged.as_u128()).unwrap(), None, "half of a job is none");
    engine.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_whose_content_is_damaged_is_not_archived_and_holds_up_no_other() {
    let disk = Disk::default();
    let engine = start(disk.log().unwrap(), Some(disk.archive().unwrap())).unwrap();
    let damaged = submit(&engine, &PAYLOAD).await.unwrap();
    engine.stop();
    drop(engine);
    assert!(disk.damage(Which::Log, &PAYLOAD[..100]) > 0);

    let archive = disk.archive().unwrap();
    let engine = start(disk.log().unwrap(), Some(archive.clone())).unwrap();
    engine.call(cancel(damaged)).await.unwrap();
    let whole = submit(&engine, &RESULT).await.unwrap();
    engine.call(cancel(whole)).await.unwrap();
    until("the other is archived", || archive.get(whole.as_u128()).unwrap().is_some()).await;
    let state = engine.read(move |view| view.manager.job(damaged).map(|job| job.state)).await;
    assert_eq!(state, Ok(Some(JobState::Cancelled)), "it stays in memory");
    assert_eq!(archive.get(damaged.as_u128()).unwrap(), None, "half of a job is none");
    engine.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_with_much_content_is_archived_in_commits_of_a_bounded_size() {
    const RESULTS: usize = 24;
    let disk = Disk::default();
    let archive = disk.archive().unwrap();
    let engine = start(MemoryLog::new(), Some(archive.clone())).unwrap();
    let job = submit_workflows(&engine, RESULTS).await.unwrap();
    for n in 0..RESULTS {
        succeed_one(&engine, &vec![n as u8; MIB]).await.unwrap();
    }
    until("it is archived", || archive.get(job.as_u128()).unwrap().is_some()).await;
    assert!(disk.largest_archive_commit() < 12 * MIB, "{} MiB", disk.largest_archive_commit() / MIB);
    for n in 0..RESULTS {
        let result = vec![n as u8; MIB];
        assert!(archive.blob(job.as_u128(), &Digest::of(&result).0).unwrap() == Some(result), "result {n}");
    }
    engine.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_jobs_with_content_that_end_together_are_archived_in_commits_of_a_bounded_size() {
    const JOBS: usize = 24;
    let disk = Disk::default();
    let archive = disk.archive().unwrap();
    let engine = start(MemoryLog::new(), Some(archive.clone())).unwrap();
    // While the archive is at the first, the others wait.
    disk.hold(Which::Archive);
    let mut jobs = Vec::new();
    for n in 0..JOBS {
        let job = submit(&engine, &vec![n as u8; MIB]).await.unwrap();
        engine.call(cancel(job)).await.unwrap();
        jobs.push(job);
    }
    disk.release();
    until("all are archived", || engine.stats().archived.get() == JOBS as u64).await;
    assert!(disk.largest_archive_commit() < 12 * MIB, "{} MiB", disk.largest_archive_commit() / MIB);
    for (n, job) in jobs.into_iter().enumerate() {
        let payload = vec![n as u8; MIB];
        assert!(archive.blob(job.as_u128(), &Digest::of(&payload).0).unwrap() == Some(payload), "job {n}");
    }
    engine.stop();
}
