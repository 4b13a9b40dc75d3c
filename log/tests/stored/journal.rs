//! The journal in front of redb: what lies where, and what is made of a journal that is not as it was left.

use core::ops::ControlFlow::Continue;
use std::fs;
use std::path::Path;

use onward_core::event::{Event, StampedEvent};
use onward_core::fence::Term;
use onward_core::ids::Seq;
use onward_core::time::Wall;
use onward_log::{
    BatchId, BatchKey, Blob, EmbeddedArchive, EmbeddedLog, Error, EventLog, Log, OnLoss, backup, restore,
};
use redb::{ReadableDatabase, ReadableTableMetadata};

use crate::samples::Draw;
use crate::storage::in_memory;

const BATCHES: redb::TableDefinition<'_, u64, &[u8]> = redb::TableDefinition::new("batches");

/// Appends one batch of two events, and a blob if one is given.
fn append(log: &mut EmbeddedLog, blob: Option<u8>) {
    let tail = log.tail().unwrap();
    let key = BatchKey { term: tail.term, id: BatchId(tail.last.0), first: Seq(tail.last.0 + 1) };
    let blob = blob.map(|name| Blob { digest: [name; 32], bytes: b"large" });
    log.append_events(key, &events_behind(tail.last), blob.as_slice()).unwrap();
}

fn events_behind(last: Seq) -> Vec<StampedEvent> {
    /// The number of variants when the journal of format 2 was kept that is read below.
    const VARIANTS_THEN: usize = 27;
    let mut events = Draw::new(last.0).batch_of(VARIANTS_THEN, 2);
    events.resize(2, events[0].clone());
    events
}

/// Opens what a killed process left: three batches, a snapshot up to event 4, a batch with a blob, and six more.
#[test]
fn a_journal_of_format_2_opens_with_all_of_its_rows_and_goes_on_in_format_3() {
    let folder = tempfile::tempdir().unwrap();
    let golden = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/journal-2"));
    for file in ["onward.redb", "onward.journal"] {
        fs::copy(golden.join(file), folder.path().join(file)).unwrap();
    }
    let rows = |log: &mut EmbeddedLog| -> Vec<Vec<StampedEvent>> {
        log.read_events(Seq(7), usize::MAX).unwrap().into_iter().map(|batch| batch.events).collect()
    };
    // As text: what events are drawn from a seed changes with the events that there are.
    let text = golden.join("events.txt");
    let mut expected = rows(&mut EmbeddedLog::open(folder.path()).unwrap());
    if std::env::var_os("ONWARD_WRITE_GOLDEN").is_some() {
        fs::write(&text, format!("{expected:#?}\n")).unwrap();
    }
    assert!(format!("{expected:#?}\n") == fs::read_to_string(&text).unwrap(), "not the rows that it was left with");
    for again in 0..3 {
        let mut log = EmbeddedLog::open(folder.path()).unwrap();
        assert!(rows(&mut log) == expected, "{again}");
        let last = log.tail().unwrap().last;
        append(&mut log, None);
        expected.push(events_behind(last));
    }
    let journal = fs::read(folder.path().join("onward.journal")).unwrap();
    assert_eq!([journal[8], journal[72 + 8]], [3, 3], "both slots");
}

fn snapshot(log: &mut EmbeddedLog, term: Term, covers: u64) {
    log.put_chunk(term, Seq(covers), 0, b"state").unwrap();
    log.finish_snapshot(term, Seq(covers), 1).unwrap();
}

fn rows_in_redb(folder: &Path) -> u64 {
    let file = redb::ReadOnlyDatabase::open(folder.join("onward.redb")).unwrap();
    file.begin_read().unwrap().open_table(BATCHES).unwrap().len().unwrap()
}

/// A folder with ten batches in its journal.
fn filled() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let mut log = EmbeddedLog::open(folder.path()).unwrap();
    log.seize_seat().unwrap();
    (0..10).for_each(|_| append(&mut log, None));
    folder
}

#[test]
fn a_row_enters_redb_with_a_blob_only_and_takes_those_before_it_along() {
    let folder = filled();
    assert_eq!(rows_in_redb(folder.path()), 0);
    let mut log = EmbeddedLog::open(folder.path()).unwrap();
    append(&mut log, Some(1));
    append(&mut log, None);
    drop(log);
    assert_eq!(rows_in_redb(folder.path()), 11);
    assert_eq!(EmbeddedLog::open(folder.path()).unwrap().read_events(Seq(1), usize::MAX).unwrap().len(), 12);
}

/// The folder as a process that was killed now would leave it.
fn killed(folder: &Path) -> tempfile::TempDir {
    let left = tempfile::tempdir().unwrap();
    for file in ["onward.redb", "onward.journal"] {
        fs::copy(folder.join(file), left.path().join(file)).unwrap();
    }
    left
}

fn opens_without_repair(folder: &Path) -> bool {
    let opened =
        redb::Database::builder().set_repair_callback(redb::RepairSession::abort).create(folder.join("onward.redb"));
    match opened {
        Ok(_) => true,
        Err(redb::DatabaseError::RepairAborted) => false,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn after_a_crash_redb_need_not_read_its_whole_file_unless_a_blob_came_last() {
    let folder = filled();
    let mut log = EmbeddedLog::open(folder.path()).unwrap();
    let term = log.seize_seat().unwrap().term;
    assert!(opens_without_repair(killed(folder.path()).path()), "the seat");
    snapshot(&mut log, term, 8);
    append(&mut log, None);
    assert!(opens_without_repair(killed(folder.path()).path()), "a snapshot");
    append(&mut log, Some(1));
    let left = killed(folder.path());
    assert!(!opens_without_repair(left.path()), "whoever brought the blob waits for one sync only");
    log.drop_blobs(term, &[[1; 32]]).unwrap();
    let left = killed(folder.path());
    assert!(opens_without_repair(left.path()), "the blob is gone");
    assert_eq!(EmbeddedLog::open(left.path()).unwrap().tail().unwrap().last, log.tail().unwrap().last);
}

#[test]
fn a_backup_has_what_is_in_the_journal_and_a_restored_folder_has_none() {
    let folder = filled();
    let (log, archive) = (EmbeddedLog::open(folder.path()).unwrap(), EmbeddedArchive::open(folder.path()).unwrap());
    let (file, new) = (folder.path().join("copy"), folder.path().join("new"));
    backup(&log, &archive, &[], &file, |_, _| Continue(())).unwrap();
    restore(&file, &new, OnLoss::Refuse).unwrap();
    assert!(!new.join("onward.journal").exists());
    assert_eq!(EmbeddedLog::open(&new).unwrap().read_events(Seq(1), usize::MAX).unwrap().len(), 10);
    // The rows of another log are not taken for those of the one that is restored.
    fs::remove_file(new.join("onward.redb")).unwrap();
    fs::remove_file(new.join("archive.redb")).unwrap();
    let occupied = Error::Occupied { folder: new.display().to_string(), found: "onward.journal" };
    assert_eq!(restore(&file, &new, OnLoss::Refuse), Err(occupied));
}

fn refused(folder: &Path, says: &str) {
    let before = fs::read(folder.join("onward.journal")).unwrap_or_default();
    match EmbeddedLog::open(folder) {
        Err(error @ (Error::Corrupt { .. } | Error::Lost(_))) => assert!(error.to_string().contains(says), "{error}"),
        other => panic!("{says}: {other:?}"),
    }
    assert_eq!(fs::read(folder.join("onward.journal")).unwrap_or_default(), before, "{says}: it was left alone");
}

#[test]
fn a_journal_that_is_not_the_one_of_this_log_is_refused() {
    let says = "onward.journal is missing, or is not the journal of this log";
    let (one, other) = (filled(), filled());
    let journal = |folder: &tempfile::TempDir| folder.path().join("onward.journal");
    fs::copy(journal(&other), journal(&one)).unwrap();
    refused(one.path(), says);
    fs::remove_file(journal(&one)).unwrap();
    refused(one.path(), "onward.journal is missing, or its beginning is; events from 1 on are lost, if there were any");
    fs::write(journal(&one), b"a shopping list that is somewhat longer than the header of a journal").unwrap();
    refused(one.path(), "onward.journal does not begin as a journal does");
    // And a journal whose log is lost is not overwritten by another.
    fs::remove_file(other.path().join("onward.redb")).unwrap();
    refused(other.path(), says);
}

#[test]
fn damage_is_named_with_what_is_lost_and_a_torn_end_is_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let mut log = EmbeddedLog::open(folder.path()).unwrap();
    log.seize_seat().unwrap();
    (0..10).for_each(|_| append(&mut log, None));
    let left = killed(folder.path());
    let path = left.path().join("onward.journal");
    let whole = fs::read(&path).unwrap();
    // Behind the newest entry is a mark, which says that the entry was synced.
    let mark = whole.iter().rposition(|byte| *byte != 0).unwrap() + 1 - 36;
    for (at, lost) in [(200, "events 1 to 20 are lost, 20 or more"), (mark - 1, "events 19 to 20 are lost, 2 or more")]
    {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x55;
        fs::write(&path, &damaged).unwrap();
        refused(left.path(), lost);
    }
    fs::write(&path, &whole[..mark]).unwrap();
    refused(left.path(), "bytes long, and was 65680");
    // As if power had been lost before either of them arrived whole.
    let mut torn = whole.clone();
    torn[mark - 5] ^= 0x55;
    torn[mark..].fill(0);
    fs::write(&path, &torn).unwrap();
    let mut log = EmbeddedLog::open(left.path()).unwrap();
    assert_eq!(log.tail().unwrap().last, Seq(18));
    append(&mut log, None);
    drop(log);
    assert_eq!(EmbeddedLog::open(left.path()).unwrap().read_events(Seq(1), usize::MAX).unwrap().len(), 10);
}

/// A note can be damaged as well as what it speaks of.
#[test]
fn a_log_that_was_closed_says_twice_how_far_it_reached() {
    for note in [48, 72 + 48] {
        let folder = filled();
        let path = folder.path().join("onward.journal");
        let mut damaged = fs::read(&path).unwrap();
        let mark = damaged.iter().rposition(|byte| *byte != 0).unwrap() + 1 - 36;
        damaged[mark - 5] ^= 0x55;
        damaged[mark..].fill(0);
        damaged[note] ^= 1;
        fs::write(&path, &damaged).unwrap();
        refused(folder.path(), "events 19 to 20 are lost, 2 or more");
    }
}

#[test]
fn a_loss_that_is_accepted_is_said_once_and_the_log_goes_on_with_what_is_left() {
    let folder = filled();
    let path = folder.path().join("onward.journal");
    let mut damaged = fs::read(&path).unwrap();
    let middle = damaged.iter().rposition(|byte| *byte != 0).unwrap() / 2;
    damaged[middle] ^= 1;
    fs::write(&path, &damaged).unwrap();
    let Err(Error::Lost(loss)) = EmbeddedLog::open(folder.path()) else { panic!("it is damaged") };
    let mut log = EmbeddedLog::open_or(folder.path(), OnLoss::Accept).unwrap();
    assert_eq!(log.accepted_loss(), Ok(Some(loss.clone())));
    assert_eq!((log.tail().unwrap().last.0 + 1, loss.to), (loss.from.0, Some(Seq(20))));
    assert_eq!(log.read_events(Seq(1), usize::MAX).unwrap().len() as u64 * 2, log.tail().unwrap().last.0);
    log.seize_seat().unwrap();
    append(&mut log, None);
    let last = log.tail().unwrap().last;
    drop(log);
    let mut log = EmbeddedLog::open_or(folder.path(), OnLoss::Accept).unwrap();
    assert_eq!((log.accepted_loss(), log.tail().unwrap().last), (Ok(None), last));
}

#[test]
fn a_journal_that_is_older_than_its_log_is_refused() {
    let folder = filled();
    let path = folder.path().join("onward.journal");
    let older = fs::read(&path).unwrap();
    let mut log = EmbeddedLog::open(folder.path()).unwrap();
    append(&mut log, None);
    // With its next commit redb knows how far the log has come.
    log.seize_seat().unwrap();
    drop(log);
    fs::write(&path, older).unwrap();
    refused(folder.path(), "onward.journal ends with event 20; events 21 to 22 are lost, 2 or more");
}

/// Rows are equally long and no row enters redb, so what an earlier generation left lies just behind the newest.
#[test]
fn what_an_earlier_generation_left_does_not_count() {
    let open = in_memory(2048);
    let mut log = open();
    let term = log.seize_seat().unwrap().term;
    let events = [StampedEvent { at: Wall::from_ms(1), event: Event::TermBegan { term } }];
    for first in 1..=300 {
        log.append_events(BatchKey { term, id: BatchId(1), first: Seq(first) }, &events, &[]).unwrap();
        if first % 10 == 0 {
            snapshot(&mut log, term, first - 5);
            while log.truncate(term, 9).unwrap() {}
        }
        drop(log);
        log = open();
        assert_eq!(log.tail().unwrap().last, Seq(first));
        let from = (first.saturating_sub(10) / 10 * 10 + 6).min(first);
        assert_eq!(log.read_events(Seq(from), usize::MAX).unwrap().len() as u64, first - from + 1);
    }
}

/// Covered rows are not moved when their half is begun again, so those before them, in redb, are of no use.
#[test]
fn rows_before_a_gap_that_a_snapshot_covers_are_not_shown() {
    let open = in_memory(4096);
    let mut log = open();
    let term = log.seize_seat().unwrap().term;
    append(&mut log, Some(1));
    (0..3).for_each(|_| append(&mut log, None));
    snapshot(&mut log, term, 8);
    assert_eq!(log.read_events(Seq(1), usize::MAX).unwrap().len(), 4, "nothing was truncated yet");
    let mut first = Seq(1);
    while first == Seq(1) {
        append(&mut log, None);
        if let Err(Error::Truncated { first: now }) = log.read_events(Seq(1), 1) {
            first = now;
        }
    }
    assert!(first > Seq(3) && first <= Seq(9), "{first:?}");
    let all = log.read_events(first, usize::MAX).unwrap();
    drop(log);
    let mut log = open();
    assert_eq!(
        log.read_events(Seq(9), usize::MAX).unwrap(),
        all[all.len() - log.read_events(Seq(9), 999).unwrap().len()..]
    );
    assert!(matches!(log.read_events(Seq(1), 1), Err(Error::Truncated { .. })));
    while log.truncate(term, 1).unwrap() {}
    assert_eq!(log.read_events(Seq(8), 1), Err(Error::Truncated { first: Seq(9) }));
    // All of it in redb, behind what was there before the gap.
    append(&mut log, Some(2));
    drop(log);
    let mut log = open();
    assert_eq!(log.read_events(Seq(9), usize::MAX).unwrap().len(), (log.tail().unwrap().last.0 as usize - 8) / 2);
}
