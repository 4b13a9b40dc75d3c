//! Term after term on a log that fails: callers hear why, and the disk is left in peace between two attempts.

use core::fmt::Debug;
use core::time::Duration;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Instant;

use onward_core::settings::{Rules, Settings};
use onward_log::engines::memory::AppendFault;
use onward_log::{Error, EventLog, MemoryLog};
use onward_node::engine::{Engine, EngineRefusal};
use tokio::time::timeout;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata};

use crate::disk::{Disk, Kind, Op};
use crate::rig::{start, start_of, submit};
use crate::waiting::until_seen;

const LONG: Duration = Duration::from_secs(60);

/// Counts what the node's own log would have as errors about a fault that was injected into a [`MemoryLog`]. The disks of
/// other tests in this process fail in other words.
struct ErrorLines;

/// Whether a line is about such a fault.
struct IsInjected(bool);

impl Visit for IsInjected {
    fn record_debug(&mut self, _: &Field, value: &dyn Debug) {
        self.0 |= format!("{value:?}").contains("injected");
    }
}

static ERROR_LINES: AtomicU64 = AtomicU64::new(0);

impl tracing::Subscriber for ErrorLines {
    fn enabled(&self, about: &Metadata<'_>) -> bool {
        *about.level() == Level::ERROR
    }

    fn event(&self, event: &Event<'_>) {
        let mut is_injected = IsInjected(false);
        event.record(&mut is_injected);
        ERROR_LINES.fetch_add(u64::from(is_injected.0), Ordering::Relaxed);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Taking the seat works, and then nothing can be appended: not even the beginning of the term.
#[tokio::test]
async fn a_term_whose_first_append_fails_is_tried_once_a_second() {
    tracing::subscriber::set_global_default(ErrorLines).expect("nobody else counts here");
    let log = MemoryLog::new();
    let begun = Instant::now();
    let engine = start(log.clone(), None).unwrap();
    for _ in 0..10_000 {
        log.inject(AppendFault::Full);
    }
    let refused = timeout(LONG, submit(&engine, b"x")).await.expect("it is answered");
    assert!(matches!(refused, Err(EngineRefusal::Unavailable(_))), "{refused:?}");
    until_seen("a fourth term", || engine.stats().terms.get() >= 4).await;
    assert!(begun.elapsed() >= Duration::from_secs(3), "four terms in {:?}", begun.elapsed());
    let lines = ERROR_LINES.load(Ordering::Relaxed);
    assert!((1..200).contains(&lines), "the same trouble was said {lines} times");
    engine.stop();
}

#[tokio::test]
async fn a_seat_that_is_taken_away_is_fought_for_once_a_second() {
    let log = MemoryLog::new();
    let begun = Instant::now();
    let mut with = start_of(log.clone(), None);
    with.rules = short_seat();
    let engine = Engine::start(with).unwrap();
    let mut other = log;
    for terms in 2..=4 {
        other.seize_seat().unwrap();
        // It learns that by the first thing that it wants to store.
        let _ = submit(&engine, b"x").await;
        until_seen("another term", || engine.stats().terms.get() >= terms).await;
    }
    assert!(begun.elapsed() >= Duration::from_secs(3), "four terms in {:?}", begun.elapsed());
    engine.stop();
}

fn short_seat() -> Rules {
    let (seat_ttl, gap_after) = (Duration::from_millis(1_500), Duration::from_millis(1_400));
    Settings { seat_ttl, gap_after, ..Settings::default() }.check().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_no_sync_succeeds_callers_hear_why_and_afterwards_all_is_well() {
    let disk = Disk::default();
    let mut with = start_of(disk.log().unwrap(), Some(disk.archive().unwrap()));
    with.rules = short_seat();
    let engine = Engine::start(with).unwrap();
    let first = submit(&engine, &[1; 10_000]).await.unwrap();
    disk.break_with(Kind::Io, Some(Op::Sync));
    for payload in [&b"small"[..], &[2; 10_000]] {
        let refused = timeout(Duration::from_secs(20), submit(&engine, payload)).await;
        let refused = refused.expect("nobody waits for a disk that does not come back");
        let Err(EngineRefusal::Unavailable(why)) = refused else { panic!("{refused:?}") };
        assert!(why.contains("Input/output error"), "{why}");
        let trouble = engine.trouble().unwrap_or_default();
        assert!(trouble.contains("Input/output error"), "{trouble}");
        assert!(!trouble.contains("was stored"), "who only reads is told as well, and has nothing to store: {trouble}");
    }
    disk.heal();
    let again = async { while submit(&engine, b"again").await.is_err() {} };
    timeout(LONG, again).await.expect("it serves again");
    assert_eq!(engine.trouble(), None);
    assert!(engine.read(move |view| view.manager.job(first).is_some()).await.unwrap());
    engine.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_stops_although_its_disk_fails() {
    for (kind, op) in [(Kind::Io, None), (Kind::Io, Some(Op::Sync)), (Kind::Full, Some(Op::Write))] {
        let disk = Disk::default();
        let mut with = start_of(disk.log().unwrap(), Some(disk.archive().unwrap()));
        with.rules = short_seat();
        let engine = Engine::start(with).unwrap();
        submit(&engine, b"x").await.unwrap();
        disk.break_with(kind, op);
        let under_way = tokio::spawn({
            let engine = engine.clone();
            async move { submit(&engine, b"y").await }
        });
        let (stopped, has_stopped) = channel();
        thread::spawn(move || {
            engine.stop();
            stopped.send(()).unwrap();
        });
        until_seen("it has stopped", || has_stopped.try_recv().is_ok()).await;
        assert!(timeout(LONG, under_way).await.expect("it is answered").unwrap().is_err());
    }
}

#[test]
fn a_start_on_a_disk_that_fails_says_so() {
    let disk = Disk::default();
    let log = disk.log().unwrap();
    disk.break_with(Kind::Io, Some(Op::Sync));
    let mut with = start_of(log, None);
    with.rules = short_seat();
    let (started, has_started) = channel();
    thread::spawn(move || started.send(Engine::start(with).err()).unwrap());
    let failed = has_started.recv_timeout(LONG).expect("it is not tried for ever");
    assert!(matches!(failed, Some(Error::Unknown { .. } | Error::Io { .. })), "{failed:?}");
}
