//! A data folder of the version before: it opens, it means what it did, and it goes on in the format of today.
//!
//! `golden/folder-1` is what a node left that was killed: rows and journal of format 1, with jobs that are done, dead,
//! delayed, ready and half done, and two that are archived.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use onward_core::ids::Seq;
use onward_core::job::JobState;
use onward_core::manager::{Manager, SnapshotRecord};
use onward_core::payload::{Digest, Payload};
use onward_core::settings::Settings;
use onward_core::time::{Mono, Now, Wall};
use onward_log::{Archive, BatchId, BatchKey, EmbeddedArchive, EmbeddedLog, EventLog, Log, codec};

fn older() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let golden = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/folder-1"));
    for file in ["onward.redb", "onward.journal", "archive.redb"] {
        fs::copy(golden.join(file), folder.path().join(file)).unwrap();
    }
    folder
}

fn machine() -> Manager {
    let now = Now { mono: Mono::ZERO, wall: Wall::from_ms(0) };
    Manager::new(Settings::default().check().unwrap(), 1, now)
}

/// All of it, as a takeover would read it.
fn replayed(log: &mut EmbeddedLog) -> Manager {
    let mut manager = machine();
    let snapshot = log.snapshot().unwrap();
    for index in 0..snapshot.map_or(0, |snapshot| snapshot.chunks) {
        let records = codec::decode_records(&log.chunk(index).unwrap()).unwrap();
        records.into_iter().for_each(|record| manager.restore(record));
    }
    if snapshot.is_some() {
        manager.finish_restore().unwrap();
    }
    let from = Seq(snapshot.map_or(1, |snapshot| snapshot.covers.0 + 1));
    for batch in log.read_events(from, usize::MAX).unwrap() {
        batch.events.iter().for_each(|stamped| manager.apply(stamped));
    }
    manager
}

fn records(manager: &mut Manager) -> Vec<SnapshotRecord> {
    manager.begin_snapshot();
    let part = manager.snapshot_next(usize::MAX);
    assert!(part.done);
    part.records
}

fn states(records: &[SnapshotRecord]) -> Vec<String> {
    let job = |record: &SnapshotRecord| match record {
        SnapshotRecord::Job(job) => {
            Some(format!("{} {:?}", job.image.spec.workflows[0].kind.as_str(), job.image.state()))
        }
        _ => None,
    };
    let mut states: Vec<String> = records.iter().filter_map(job).collect();
    states.sort();
    states
}

#[test]
fn a_folder_of_format_1_opens_and_goes_on_in_format_2() {
    let folder = older();
    let mut log = EmbeddedLog::open(folder.path()).unwrap();
    let last = log.tail().unwrap().last;
    let before = records(&mut replayed(&mut log));
    // What has ended well is in the archive.
    let expected = ["import Failed", "import Ready", "other Ready", "report Delayed", "resize Running"];
    assert_eq!(states(&before), expected);

    // It can be written, and its rows are replaced with the next snapshot.
    let term = log.seize_seat().unwrap().term;
    let stamp = log.read_events(last, 1).unwrap()[0].events[0].clone();
    let event = onward_core::event::Event::TermBegan { term };
    let events = [onward_core::event::StampedEvent { at: stamp.at, event }];
    log.append_events(BatchKey { term, id: BatchId(1), first: Seq(last.0 + 1) }, &events, &[]).unwrap();
    drop(log);
    let mut log = EmbeddedLog::open(folder.path()).unwrap();
    assert_eq!(log.tail().unwrap().last, Seq(last.0 + 1), "behind what the older version wrote");
    let mut manager = replayed(&mut log);
    let (covers, now) = (manager.newest(), records(&mut manager));
    let mut chunk = Vec::new();
    codec::encode_records(&now, &mut chunk);
    assert_eq!(chunk[0], 2, "in the format of today");
    log.put_chunk(term, covers, 0, &chunk).unwrap();
    log.finish_snapshot(term, covers, 1).unwrap();
    while log.truncate(term, 100).unwrap() {}
    drop(log);
    let mut log = EmbeddedLog::open(folder.path()).unwrap();
    assert_eq!((log.tail().unwrap().last, log.snapshot().unwrap().unwrap().covers), (covers, covers));
    let again = records(&mut replayed(&mut log));
    assert_eq!(again[1..], now[1..]);
    assert_eq!(states(&again), expected);
}

#[test]
fn an_archive_of_format_1_is_read_with_its_contents() {
    let folder = older();
    let archive = EmbeddedArchive::open(folder.path()).unwrap();
    let images: BTreeMap<String, _> = archive
        .scan(None, 100, usize::MAX)
        .unwrap()
        .rows
        .into_iter()
        .map(|(_, row)| codec::decode_image(&row).unwrap())
        .map(|image| (image.spec.workflows[0].kind.as_str().to_owned(), image))
        .collect();
    assert_eq!(images.keys().collect::<Vec<_>>(), ["big", "resize"]);
    let (big, small) = (&images["big"], &images["resize"]);
    assert!([big, small].iter().all(|image| image.state() == JobState::Succeeded));
    assert_eq!(small.spec.workflows[0].payload, Payload::from(b"{\"n\": 1}".as_slice()));
    assert_eq!(small.spec.idempotency_key().unwrap().as_str(), "key-done");
    let content = |payload: &Payload| match payload {
        Payload::Stored(stored) => archive.blob(big.id.as_u128(), &stored.digest.0).unwrap().expect("it is kept"),
        Payload::Inline(_) => panic!("it is too large for the row"),
    };
    let payload = content(&big.spec.workflows[0].payload);
    assert_eq!(payload, format!("{{\"text\": \"{}\"}}", "x".repeat(6000)).into_bytes());
    let result = big.workflows[0].past.as_ref().unwrap().attempts[0].result().unwrap();
    assert_eq!(Digest::of(&content(result)), Digest::of(format!("{{\"text\": \"{}\"}}", "y".repeat(6000)).as_bytes()));
}
