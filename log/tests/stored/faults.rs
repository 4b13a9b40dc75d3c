//! What goes wrong on request, and who is kept out.

use core::time::Duration;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use onward_core::event::StampedEvent;
use onward_core::ids::Seq;
use onward_log::engines::memory::AppendFault;
use onward_log::{BatchId, BatchKey, Blob, EmbeddedLog, Error, EventLog, Log, LogChange, MemoryLog, OnLoss};
use redb::backends::InMemoryBackend;
use redb::{ReadableDatabase, ReadableTable, StorageBackend, TableHandle};

use crate::samples::Draw;

fn first_batch(log: &mut impl Log) -> (BatchKey, Vec<StampedEvent>) {
    let term = log.seize_seat().unwrap().term;
    (BatchKey { term, id: BatchId(5), first: Seq(1) }, Draw::new(0).batch(3))
}

#[test]
fn each_fault_does_what_it_says_once() {
    for (fault, stored, changed) in [
        (AppendFault::Fails, false, Some(LogChange::No)),
        (AppendFault::Full, false, Some(LogChange::No)),
        (AppendFault::RequestLost, false, Some(LogChange::Maybe)),
        (AppendFault::AnswerLost, true, Some(LogChange::Maybe)),
        (AppendFault::Slow(Duration::from_secs(2)), true, None),
    ] {
        let mut log = MemoryLog::new();
        let (key, events) = first_batch(&mut log);
        log.inject(fault);
        let answer = log.append_events(key, &events, &[]);
        assert_eq!(answer.as_ref().err().map(Error::changed), changed, "{fault:?}");
        assert_eq!(matches!(answer, Err(Error::Full { .. })), fault == AppendFault::Full);
        assert_eq!(log.tail().unwrap().last.0 > 0, stored, "{fault:?}");
        let delay = if let AppendFault::Slow(delay) = fault { delay } else { Duration::ZERO };
        assert_eq!((log.take_delay(), log.take_delay()), (delay, Duration::ZERO));
        // Asked again, there is one answer, and one row.
        log.append_events(key, &events, &[]).unwrap();
        let read = log.read_events(Seq(1), usize::MAX).unwrap();
        assert_eq!((read.len(), &read[0].events), (1, &events), "{fault:?}");
    }
}

#[test]
fn faults_come_in_the_order_given() {
    let mut log = MemoryLog::new();
    let (key, events) = first_batch(&mut log);
    log.inject(AppendFault::Full);
    log.inject(AppendFault::AnswerLost);
    log.inject(AppendFault::RequestLost);
    assert!(matches!(log.append_events(key, &events, &[]), Err(Error::Full { .. })));
    for _ in 0..2 {
        assert!(matches!(log.append_events(key, &events, &[]), Err(Error::Unknown { .. })));
    }
    assert_eq!(log.append_events(key, &events, &[]), Ok(()));
}

#[test]
fn a_folder_that_is_in_use_is_refused_and_says_which() {
    let folder = tempfile::tempdir().unwrap();
    let mut first = EmbeddedLog::open(folder.path()).unwrap();
    let (key, events) = first_batch(&mut first);
    let refused = EmbeddedLog::open(folder.path()).unwrap_err();
    assert_eq!(refused, Error::Locked { folder: folder.path().display().to_string() });
    assert!(refused.to_string().contains("another process has the data folder"), "{refused}");
    first.append_events(key, &events, &[]).unwrap();
    drop(first);
    assert_eq!(EmbeddedLog::open(folder.path()).unwrap().tail().unwrap().last.0, events.len() as u64);
}

/// The lock holds before there is a file that redb could lock.
#[test]
fn a_folder_is_locked_while_its_log_is_being_made() {
    let folder = tempfile::tempdir().unwrap();
    let lock = std::fs::File::create(folder.path().join("onward.lock")).unwrap();
    lock.lock().unwrap();
    assert!(matches!(EmbeddedLog::open(folder.path()), Err(Error::Locked { .. })));
    assert!(!folder.path().join("onward.redb").exists());
    drop(lock);
    EmbeddedLog::open(folder.path()).unwrap();
}

#[test]
fn a_file_that_something_else_has_open_is_refused_too() {
    let folder = tempfile::tempdir().unwrap();
    drop(EmbeddedLog::open(folder.path()).unwrap());
    let other = redb::Database::open(folder.path().join("onward.redb")).unwrap();
    assert!(matches!(EmbeddedLog::open(folder.path()), Err(Error::Locked { .. })));
    drop(other);
    EmbeddedLog::open(folder.path()).unwrap();
}

#[test]
fn a_file_that_was_never_finished_is_made_anew() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("onward.redb.new"), b"half a file").unwrap();
    EmbeddedLog::open(folder.path().join("inner/one")).unwrap();
    let mut log = EmbeddedLog::open(folder.path()).unwrap();
    assert_eq!(log.tail().unwrap().last, Seq(0));
    assert!(!folder.path().join("onward.redb.new").exists());
}

#[test]
fn something_else_under_our_name_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("onward.redb");
    std::fs::write(&file, b"a shopping list").unwrap();
    EmbeddedLog::open(folder.path()).unwrap_err();
    assert_eq!(std::fs::read(file).unwrap(), b"a shopping list");
}

const FACTS: redb::TableDefinition<'_, &str, u64> = redb::TableDefinition::new("facts");
const BATCHES: redb::TableDefinition<'_, u64, &[u8]> = redb::TableDefinition::new("batches");

/// Changes redb's file behind the back of a log that has two batches there, one of them with a blob.
fn tampered(change: impl FnOnce(&redb::WriteTransaction)) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let mut log = EmbeddedLog::open(folder.path()).unwrap();
    let (key, events) = first_batch(&mut log);
    log.append_events(key, &events, &[]).unwrap();
    let second = BatchKey { first: Seq(log.tail().unwrap().last.0 + 1), ..key };
    log.append_events(second, &events, &[Blob { digest: [9; 32], bytes: b"large" }]).unwrap();
    drop(log);
    let database = redb::Database::open(folder.path().join("onward.redb")).unwrap();
    let transaction = database.begin_write().unwrap();
    change(&transaction);
    transaction.commit().unwrap();
    folder
}

#[test]
fn a_file_or_a_row_of_a_newer_format_is_refused_by_name() {
    let newer = tampered(|transaction| {
        transaction.open_table(FACTS).unwrap().insert("format", 4).unwrap();
    });
    assert_eq!(EmbeddedLog::open(newer.path()).unwrap_err(), Error::NewerFormat { found: 4, known: 3 });
    let newer = tampered(|transaction| {
        transaction.open_table(BATCHES).unwrap().insert(100, &[9, 1, 2, 3][..]).unwrap();
    });
    assert_eq!(EmbeddedLog::open(newer.path()).unwrap_err(), Error::NewerFormat { found: 9, known: 2 });
}

/// Format 1 had no blobs, and format 2 no journal.
#[test]
fn a_folder_of_an_older_format_is_read_and_goes_on_in_the_new_one() {
    let older = |format| {
        let folder = tampered(|transaction| {
            let mut facts = transaction.open_table(FACTS).unwrap();
            facts.insert("format", format).unwrap();
            assert!(facts.remove("journal").unwrap().is_some());
            if format == 1 {
                delete_blobs(transaction);
            }
        });
        std::fs::remove_file(folder.path().join("onward.journal")).unwrap();
        folder
    };
    for (format, appends) in [1, 2].into_iter().flat_map(|format| [(format, 1), (format, 3)]) {
        let older = older(format);
        let mut expected = 2;
        for life in 0..3 {
            let mut log = EmbeddedLog::open(older.path()).unwrap();
            for digest in [1, 2, 3].iter().take(appends) {
                let tail = log.seize_seat().unwrap();
                let key = BatchKey { term: tail.term, id: BatchId(0), first: Seq(tail.last.0 + 1) };
                let blobs = [Blob { digest: [*digest; 32], bytes: b"large" }];
                // With blobs and without, in all orders.
                let blobs = if (life + usize::from(*digest)).is_multiple_of(2) { &blobs[..] } else { &[] };
                log.append_events(key, &Draw::new(1).batch(2), blobs).unwrap();
                expected += 1;
            }
            assert_eq!(log.read_events(Seq(1), usize::MAX).unwrap().len(), expected, "format {format}");
        }
        let file = redb::ReadOnlyDatabase::open(older.path().join("onward.redb")).unwrap();
        let facts = file.begin_read().unwrap().open_table(FACTS).unwrap();
        assert_eq!(facts.get("format").unwrap().unwrap().value(), 3, "older programs refuse it");
    }
}

fn delete_blobs(transaction: &redb::WriteTransaction) {
    for name in ["blobs", "blob_pieces"] {
        let table = transaction.list_tables().unwrap().find(|table| table.name() == name).unwrap();
        assert!(transaction.delete_table(table).unwrap());
    }
}

const LABELS: redb::TableDefinition<'_, &[u8; 32], (u64, u32)> = redb::TableDefinition::new("blobs");
const PIECES: redb::TableDefinition<'_, (&[u8; 32], u32), &[u8]> = redb::TableDefinition::new("blob_pieces");

#[test]
fn a_damaged_blob_is_never_given_out() {
    let content = vec![7; 9000];
    let (length, crc) = (content.len() as u64, crc32fast::hash(&content));
    for (label, piece) in [((length, crc ^ 1), 1), ((length + 1, crc), 1), ((u64::MAX, crc), 1), ((length, crc), 2)] {
        let folder = tampered(|transaction| {
            transaction.open_table(LABELS).unwrap().insert(&[1; 32], label).unwrap();
            transaction.open_table(PIECES).unwrap().insert((&[1; 32], piece), &content[..]).unwrap();
        });
        let read = EmbeddedLog::open(folder.path()).unwrap().blob(&[1; 32]);
        assert!(matches!(read, Err(Error::Corrupt { .. })), "{label:?}, piece {piece}: {read:?}");
    }
}

#[test]
fn damage_is_named_and_not_read_past() {
    let damaged = tampered(|transaction| {
        let mut rows = transaction.open_table(BATCHES).unwrap();
        let mut row = rows.get(1).unwrap().unwrap().value().to_vec();
        *row.last_mut().unwrap() ^= 1;
        rows.insert(1, &row[..]).unwrap();
    });
    let read = EmbeddedLog::open(damaged.path()).unwrap().read_events(Seq(1), 9);
    assert_eq!(read, Err(Error::Corrupt { what: "the checksum does not match".to_owned() }));

    let moved = tampered(|transaction| {
        let mut rows = transaction.open_table(BATCHES).unwrap();
        let row = rows.get(1).unwrap().unwrap().value().to_vec();
        rows.insert(500, &row[..]).unwrap();
    });
    assert!(matches!(EmbeddedLog::open(moved.path()), Err(Error::Corrupt { .. })), "a row in the wrong place");
}

#[test]
fn a_number_that_is_missing_is_not_taken_for_none() {
    let termless = tampered(|transaction| drop(transaction.open_table(FACTS).unwrap().remove("term").unwrap()));
    assert!(matches!(EmbeddedLog::open(termless.path()), Err(Error::Corrupt { .. })), "terms begin anew");
    let half = tampered(|transaction| drop(transaction.open_table(FACTS).unwrap().insert("snapshot_covers", 1)));
    assert!(matches!(EmbeddedLog::open(half.path()), Err(Error::Corrupt { .. })), "a snapshot without chunks");
}

/// Flips one bit wherever these bytes lie in the file. redb was closed, so it does not check the file by itself.
fn flip(file: &std::path::Path, bytes: &[u8]) {
    let mut whole = std::fs::read(file).unwrap();
    let found: Vec<usize> = (0..whole.len() - bytes.len()).filter(|at| whole[*at..].starts_with(bytes)).collect();
    assert!(!found.is_empty(), "it is in the file");
    found.into_iter().for_each(|at| whole[at] ^= 1);
    std::fs::write(file, whole).unwrap();
}

#[test]
fn a_flipped_bit_in_a_row_or_a_blob_of_redb_is_damage_and_never_something_else() {
    let folder = tempfile::tempdir().unwrap();
    let mut log = EmbeddedLog::open(folder.path()).unwrap();
    let (key, mut events) = first_batch(&mut log);
    let queue = onward_core::ids::Name::new("a queue with a name of its own").unwrap();
    events[0].event = onward_core::event::Event::QueuePaused { queue };
    log.append_events(key, &events, &[Blob { digest: [9; 32], bytes: b"content like no other" }]).unwrap();
    drop(log);
    let file = folder.path().join("onward.redb");
    flip(&file, b"content like no other");
    let mut log = EmbeddedLog::open(folder.path()).unwrap();
    let error = log.blob(&[9; 32]).unwrap_err();
    assert!(matches!(error, Error::Corrupt { .. }) && error.is_permanent(), "{error}");
    drop(log);
    flip(&file, b"a queue with a name of its own");
    let error = EmbeddedLog::open(folder.path()).unwrap_err();
    assert!(matches!(error, Error::Corrupt { .. }) && error.is_permanent(), "{error}");
}

/// A file as one of those sees it that opened it, the newest of them last.
#[derive(Debug)]
struct OpenedLog {
    file: Arc<Opens>,
    nth: u64,
}

#[derive(Debug, Default)]
struct Opens {
    bytes: InMemoryBackend,
    newest: AtomicU64,
    next_sync_fails: AtomicBool,
    /// Writes of those who are not the newest.
    late_writes: AtomicU64,
}

impl StorageBackend for OpenedLog {
    fn len(&self) -> io::Result<u64> {
        self.file.bytes.len()
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.bytes.read(offset, out)
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.bytes.set_len(len)
    }
    fn sync_data(&self) -> io::Result<()> {
        if self.file.next_sync_fails.swap(false, Ordering::Relaxed) { Err(io::ErrorKind::Other.into()) } else { Ok(()) }
    }
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let is_late = self.nth != self.file.newest.load(Ordering::Relaxed);
        self.file.late_writes.fetch_add(u64::from(is_late), Ordering::Relaxed);
        self.file.bytes.write(offset, data)
    }
}

/// A note that it would leave at its end was left by its successor since, or a newer one.
#[test]
fn a_journal_that_was_opened_anew_is_left_alone_by_the_one_before() {
    let (redb, journal) = (Arc::<Opens>::default(), Arc::<Opens>::default());
    let open = |file: Arc<Opens>| {
        move || Ok(OpenedLog { nth: 1 + file.newest.fetch_add(1, Ordering::Relaxed), file: file.clone() })
    };
    let mut log = EmbeddedLog::on_storage(open(redb), open(journal.clone()), 64 << 10, OnLoss::Refuse).unwrap();
    let (mut key, events) = first_batch(&mut log);
    for fails in [false, false, true, false] {
        journal.next_sync_fails.store(fails, Ordering::Relaxed);
        log.append_events(key, &events, &[]).unwrap();
        key.first = Seq(log.tail().unwrap().last.0 + 1);
    }
    assert_eq!(journal.newest.load(Ordering::Relaxed), 2, "in doubt it was opened anew");
    drop(log);
    assert_eq!(journal.late_writes.load(Ordering::Relaxed), 0);
}
