//! A disk that does not return when it is read: callers are answered in time, and what waits for it is bounded.

use core::time::Duration;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use onward_core::ids::JobId;
use onward_core::payload::{Digest, Payload};
use onward_core::settings::Settings;
use onward_log::{Damage, Error, MemoryLog};
use onward_node::engine::{BackupError, BackupMade, Engine, EngineRefusal, EngineStart, MAX_BACKUPS, MAX_DISK_READS};
use tokio::runtime::Builder;
use tokio::task::{JoinSet, spawn_blocking, yield_now};
use tokio::time::{advance, timeout};

use crate::disk::Disk;
use crate::rig::{archived_content, cancel, start_of, submit, succeed_one};
use crate::waiting::{PATIENCE, until_seen};

static PAYLOAD: [u8; 10_000] = [7; 10_000];
static RESULT: [u8; 20_000] = [8; 20_000];
const SEAT_TTL: Duration = Duration::from_millis(1_500);

fn start_with_short_seat(mut start: EngineStart) -> Engine {
    let gap_after = SEAT_TTL - Duration::from_millis(1);
    start.rules = Settings { seat_ttl: SEAT_TTL, gap_after, ..Settings::default() }.check().unwrap();
    Engine::start(start).unwrap()
}

/// An archived job, and an archive that cannot be read: its file grows, and the disk does not return from that.
async fn with_an_archive_that_hangs(disk: &Disk) -> (Engine, JobId) {
    let engine = start_with_short_seat(start_of(MemoryLog::new(), Some(disk.archive().unwrap())));
    let archived = let_archive_hang(disk, &engine).await;
    (engine, archived)
}

async fn let_archive_hang(disk: &Disk, engine: &Engine) -> JobId {
    submit(engine, &PAYLOAD).await.unwrap();
    let archived = succeed_one(engine, &RESULT).await.unwrap();
    until_seen("it is archived", || engine.stats().archived.get() == 1).await;
    let large = submit(engine, &[9; 1 << 20]).await.unwrap();
    disk.hold_growing_archive();
    engine.call(cancel(large)).await.unwrap();
    disk.until_waited_for().await;
    archived
}

/// Checks that a read is refused in time; gives the time that it took.
async fn refused_in_time<T: core::fmt::Debug>(
    what: &str,
    read: impl Future<Output = Result<T, EngineRefusal>>,
) -> Duration {
    let begun = Instant::now();
    let answer = read.await;
    let Err(EngineRefusal::Unavailable(why)) = answer else { panic!("{what}: {answer:?}") };
    assert!(why.contains("storage has not answered"), "{what}: {why}");
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

/// A node whose log and archive are on this disk, and whose backups are given up soon.
fn start_with_backups(disk: &Disk) -> Engine {
    let (log, archive) = (disk.log().unwrap(), disk.archive().unwrap());
    let mut start = start_of(log.clone(), Some(archive.clone()));
    start.pacing.backup_stall = STALL;
    start.backup = Some(Arc::new(move |to, progress| {
        onward_log::backup(&log, &archive, &[], to, |_, _| progress.advance())?;
        Ok(BackupMade { bytes: 0, damage: Damage::default() })
    }));
    Engine::start(start).unwrap()
}

const STALL: Duration = Duration::from_millis(300);

fn is_given_up(answer: &Result<BackupMade, BackupError>) -> bool {
    matches!(answer, Err(BackupError::Refused(EngineRefusal::Unavailable(why))) if why.contains("given up"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_of_a_disk_that_hangs_is_refused_in_time_and_leaves_nothing_behind() {
    let disk = Disk::formatted();
    let (engine, folder) = (start_with_backups(&disk), tempfile::tempdir().unwrap());
    let_archive_hang(&disk, &engine).await;
    let file = folder.path().join("a.backup");
    let answer = timeout(PATIENCE / 4, engine.backup(file.clone())).await;
    let mut flood = JoinSet::new();
    for n in 0..2 * MAX_BACKUPS {
        let (engine, file) = (engine.clone(), folder.path().join(format!("{n}.backup")));
        flood.spawn(async move { engine.backup(file).await });
    }
    let flood = timeout(PATIENCE / 4, flood.join_all()).await;
    disk.release();
    let answer = answer.expect("nobody waits for a disk that hangs");
    assert!(is_given_up(&answer), "{answer:?}");
    let refused = |answer: &&Result<BackupMade, BackupError>| {
        answer.as_ref().is_err_and(|error| error.to_string().contains("being made already"))
    };
    let flood = flood.expect("nobody waits");
    assert_eq!(
        flood.iter().filter(|answer| is_given_up(answer)).count(),
        MAX_BACKUPS - 1,
        "the first still hangs: {flood:?}"
    );
    assert_eq!(flood.iter().filter(refused).count(), MAX_BACKUPS + 1, "{flood:?}");
    // As soon as the disk has returned, a backup can be made again; none that was given up gets its name.
    let made = async {
        loop {
            match engine.backup(file.clone()).await {
                Err(BackupError::Refused(_)) => yield_now().await,
                made => break made,
            }
        }
    };
    timeout(PATIENCE, made).await.expect("the disk is back").unwrap();
    let names =
        || std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>();
    until_seen("what was written of the others goes", || names() == ["a.backup"]).await;
    engine.stop();
}

/// Waits until the thread of a backup has taken so many steps, and whoever waits for it knows.
async fn until_steps(taken: &AtomicUsize, steps: usize) {
    while taken.load(Ordering::Relaxed) < steps {
        yield_now().await;
    }
    for _ in 0..100 {
        yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_backup_that_goes_on_is_waited_for_however_long_it_takes() {
    let (steps, (go_on, told)) = (Arc::new(AtomicUsize::new(0)), channel::<()>());
    let (taken, told) = (steps.clone(), Mutex::new(told));
    let mut start = start_of(MemoryLog::new(), None);
    start.pacing.backup_stall = STALL;
    start.backup = Some(Arc::new(move |_, progress| {
        while told.lock().unwrap().recv().is_ok() {
            let told = progress.advance();
            taken.fetch_add(1, Ordering::Relaxed);
            if told.is_break() {
                return Err(Error::GivenUp);
            }
        }
        Ok(BackupMade { bytes: 7, damage: Damage::default() })
    }));
    let engine = Engine::start(start).unwrap();
    let make = || {
        let engine = engine.clone();
        tokio::spawn(async move { engine.backup("/unused".into()).await })
    };
    let making = make();
    for step in 1..=5 {
        go_on.send(()).unwrap();
        until_steps(&steps, step).await;
        advance(STALL - Duration::from_millis(1)).await;
    }
    assert!(!making.is_finished(), "it goes on");
    advance(Duration::from_millis(2)).await;
    let answer = making.await.unwrap();
    assert!(is_given_up(&answer), "{answer:?}");

    // The thread learns that nobody wants it any more, and the next one is not hurt by that.
    go_on.send(()).unwrap();
    until_steps(&steps, 6).await;
    let making = make();
    go_on.send(()).unwrap();
    until_steps(&steps, 7).await;
    drop(go_on);
    assert_eq!(making.await.unwrap().unwrap().bytes, 7);
    engine.stop();
}
