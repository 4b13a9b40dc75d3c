//! A disk that does not return when it is read: callers are answered in time, and what waits for it is bounded.

use core::time::Duration;
use std::time::Instant;

use onward_core::ids::JobId;
use onward_core::payload::{Digest, Payload};
use onward_core::settings::Settings;
use onward_log::MemoryLog;
use onward_node::engine::{Engine, MAX_DISK_READS, Refused};
use tokio::runtime::Builder;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::timeout;

use crate::disk::Disk;
use crate::rig::{archived_content, cancel, start_of, submit, succeed_one};
use crate::waiting::{PATIENCE, until_seen};

static PAYLOAD: [u8; 10_000] = [7; 10_000];
static RESULT: [u8; 20_000] = [8; 20_000];
const SEAT_TTL: Duration = Duration::from_millis(1_500);

/// An archived job, and an archive that cannot be read: its file grows, and the disk does not return from that.
async fn with_an_archive_that_hangs(disk: &Disk) -> (Engine, JobId) {
    let gap_after = SEAT_TTL - Duration::from_millis(1);
    let mut start = start_of(MemoryLog::new(), Some(disk.archive().unwrap()));
    start.rules = Settings { seat_ttl: SEAT_TTL, gap_after, ..Settings::default() }.check().unwrap();
    let engine = Engine::start(start).unwrap();
    submit(&engine, &PAYLOAD).await.unwrap();
    let archived = succeed_one(&engine, &RESULT).await.unwrap();
    until_seen("it is archived", || engine.stats().archived.get() == 1).await;
    let large = submit(&engine, &[9; 1 << 20]).await.unwrap();
    disk.hold_growing_archive();
    engine.call(cancel(large)).await.unwrap();
    disk.until_waited_for().await;
    (engine, archived)
}

/// It is refused, and in time; says after how long.
async fn refused_in_time<T: core::fmt::Debug>(what: &str, read: impl Future<Output = Result<T, Refused>>) -> Duration {
    let begun = Instant::now();
    let answer = read.await;
    let Err(Refused::Unavailable(why)) = answer else { panic!("{what}: {answer:?}") };
    assert!(why.contains("disk has not answered"), "{what}: {why}");
    begun.elapsed()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_reads_from_a_disk_that_hangs_is_refused_in_time_and_served_once_it_returns() {
    let disk = Disk::default();
    let (engine, archived) = with_an_archive_that_hangs(&disk).await;
    let result = Payload::stored(Digest::of(&RESULT), RESULT.len() as u32);
    let reads = async {
        tokio::join!(
            refused_in_time("a job of the archive", engine.archived(archived)),
            refused_in_time("a list of the archive", engine.archived_before(None, 100)),
            refused_in_time("content of the archive", engine.content(archived, &result)),
            refused_in_time("a cancel of an archived job", engine.call(cancel(archived))),
        )
    };
    let outcome = timeout(PATIENCE / 4, reads).await;
    // Whatever became of them: a thread that hangs keeps a test from ending.
    disk.release();
    let spans = outcome.expect("nobody waits for a disk that hangs");
    for span in [spans.0, spans.1, spans.2, spans.3] {
        assert!(span >= SEAT_TTL, "a disk that takes its time is waited for: {span:?}");
    }

    let (payload, result) = archived_content(&engine, archived).await.expect("it is served again");
    assert!(*payload == PAYLOAD && *result == RESULT);
    engine.stop();
}

#[test]
fn a_flood_of_reads_takes_no_more_threads_than_it_may() {
    // One more thread than reads may have: that one is free for others.
    let mut runtime = Builder::new_multi_thread();
    runtime.worker_threads(2).max_blocking_threads(MAX_DISK_READS + 1).enable_all();
    runtime.build().unwrap().block_on(async {
        let disk = Disk::default();
        let (engine, archived) = with_an_archive_that_hangs(&disk).await;
        let mut flood = JoinSet::new();
        for _ in 0..4 * MAX_DISK_READS {
            let engine = engine.clone();
            flood.spawn(async move { refused_in_time("a read", engine.archived(archived)).await });
        }
        let refused = timeout(PATIENCE / 4, flood.join_all()).await;
        // They were given up, and their threads hang.
        let other = timeout(PATIENCE / 4, spawn_blocking(|| ())).await;
        disk.release();
        assert!(refused.is_ok(), "nobody waits for a disk that hangs");
        assert!(other.is_ok(), "all threads hang");
        assert!(engine.archived(archived).await.unwrap().is_some(), "it is served again");
        engine.stop();
    });
}
