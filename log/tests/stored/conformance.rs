//! What every engine promises, asked of each in the same words.

use onward_core::event::StampedEvent;
use onward_core::fence::Term;
use onward_core::ids::Seq;
use onward_core::time::Wall;
use onward_log::{Batch, BatchId, BatchKey, Blob, BlobReader, Digest, Error, Log, MemoryLog, RedbLog, Snapshot, Tail};

use crate::samples::Draw;

/// An engine under test: handles on one log, and the log as another process finds it later.
trait Bed {
    type Log: Log;
    fn new() -> Self;
    fn handle(&self) -> Self::Log;
    fn restart(self) -> Self;
}

struct Memory(MemoryLog);

impl Bed for Memory {
    type Log = MemoryLog;
    fn new() -> Self {
        Self(MemoryLog::new())
    }
    fn handle(&self) -> MemoryLog {
        self.0.clone()
    }
    /// It lives in this process; what survives is another handle.
    fn restart(self) -> Self {
        Self(self.0.clone())
    }
}

struct Redb {
    log: RedbLog,
    folder: tempfile::TempDir,
}

impl Bed for Redb {
    type Log = RedbLog;
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self { log: RedbLog::open(folder.path()).unwrap(), folder }
    }
    fn handle(&self) -> RedbLog {
        self.log.clone()
    }
    fn restart(self) -> Self {
        let Self { log, folder } = self;
        drop(log);
        Self { log: RedbLog::open(folder.path()).unwrap(), folder }
    }
}

/// With halves of the journal that take a batch or two, so that rows lie in either file.
struct SmallHalves {
    log: RedbLog,
    open: Box<dyn Fn() -> RedbLog>,
}

impl Bed for SmallHalves {
    type Log = RedbLog;
    fn new() -> Self {
        let open = Box::new(crate::storage::in_memory(512));
        Self { log: open(), open }
    }
    fn handle(&self) -> RedbLog {
        self.log.clone()
    }
    fn restart(self) -> Self {
        let Self { log, open } = self;
        drop(log);
        Self { log: open(), open }
    }
}

macro_rules! conformance {
    ($($name:ident)*) => {
        mod memory {
            $(#[test] fn $name() { super::$name::<super::Memory>(); })*
        }
        mod redb {
            $(#[test] fn $name() { super::$name::<super::Redb>(); })*
        }
        mod small_halves {
            $(#[test] fn $name() { super::$name::<super::SmallHalves>(); })*
        }
    };
}

conformance! {
    a_new_log_is_empty
    terms_rise_by_one_and_are_remembered
    an_old_term_appends_no_more_from_any_handle
    a_term_that_was_never_given_out_is_refused
    gaps_and_overlaps_are_refused
    a_batch_that_is_tried_again_is_stored_once
    a_retry_under_a_stale_term_is_refused_though_it_was_stored
    reading_begins_where_it_is_asked_to
    reading_stops_at_whole_rows
    everything_is_there_after_a_restart
    log_time_is_the_newest_stamp
    a_snapshot_counts_once_it_is_finished
    snapshot_chunks_come_in_order
    snapshot_steps_can_be_tried_again
    a_snapshot_must_be_newer_and_within_the_log
    old_terms_cannot_touch_snapshots
    truncation_removes_what_the_snapshot_covers
    truncation_in_the_middle_of_a_batch_keeps_it
    a_truncated_log_goes_on_after_a_restart
    blobs_of_every_size_come_with_their_batch
    a_refused_batch_leaves_no_blob
    a_blob_that_is_there_is_put_again_without_harm
    blobs_are_listed_in_order_from_anywhere
    only_the_seat_drops_blobs
    truncation_keeps_blobs
    a_reader_of_blobs_can_be_sent_to_other_threads
}

fn key(term: Term, first: u64) -> BatchKey {
    BatchKey { term, id: BatchId(first), first: Seq(first) }
}

/// Stamped as a log is: time never goes back.
fn events(first: u64, count: usize) -> Vec<StampedEvent> {
    let mut draw = Draw::new(first);
    (first..).take(count).map(|at| StampedEvent { at: Wall::from_ms(at), ..draw.stamped() }).collect()
}

fn batch(term: Term, first: u64, events: &[StampedEvent]) -> Batch {
    Batch { term, id: BatchId(first), first: Seq(first), events: events.to_vec() }
}

/// Takes the seat and appends batches of these sizes.
fn filled(log: &mut impl Log, sizes: &[usize]) -> Term {
    let term = log.take_seat().unwrap().term;
    let mut next = log.tail().unwrap().last.0 + 1;
    for &size in sizes {
        log.append(key(term, next), &events(next, size), &[]).unwrap();
        next += size as u64;
    }
    term
}

fn all(log: &mut impl Log) -> Vec<Batch> {
    log.read(Seq(1), usize::MAX).unwrap()
}

fn a_new_log_is_empty<B: Bed>() {
    let mut log = B::new().handle();
    assert_eq!(log.tail().unwrap(), Tail::default());
    assert_eq!(all(&mut log), []);
    assert_eq!(log.snapshot().unwrap(), None);
    assert!(log.chunk(0).is_err());
}

fn terms_rise_by_one_and_are_remembered<B: Bed>() {
    let bed = B::new();
    let (mut one, mut other) = (bed.handle(), bed.handle());
    assert_eq!(one.take_seat().unwrap().term, Term::new(1));
    assert_eq!(other.take_seat().unwrap().term, Term::new(2));
    assert_eq!(one.tail().unwrap().term, Term::new(2));
    drop((one, other));
    let mut log = bed.restart().handle();
    assert_eq!(log.tail().unwrap().term, Term::new(2));
    assert_eq!(log.take_seat().unwrap().term, Term::new(3));
}

fn an_old_term_appends_no_more_from_any_handle<B: Bed>() {
    let bed = B::new();
    let (mut old, mut new) = (bed.handle(), bed.handle());
    let first = filled(&mut old, &[2]);
    let second = new.take_seat().unwrap().term;
    let stale = Err(Error::StaleTerm { given: first, current: second });
    for log in [&mut old, &mut new] {
        assert_eq!(log.append(key(first, 3), &events(3, 1), &[]), stale);
        assert_eq!(log.append(key(first, 9), &events(3, 1), &[]), stale, "the term is looked at first");
    }
    assert_eq!(old.tail().unwrap().last, Seq(2), "nothing was stored");
    // The fence is the term's, not the handle's.
    old.append(key(second, 3), &events(3, 1), &[]).unwrap();
    assert_eq!(all(&mut new), [batch(first, 1, &events(1, 2)), batch(second, 3, &events(3, 1))]);
}

fn a_term_that_was_never_given_out_is_refused<B: Bed>() {
    let mut log = B::new().handle();
    for never in [0, 1] {
        let (given, current) = (Term::new(never), Term::default());
        assert_eq!(log.append(key(given, 1), &events(1, 1), &[]), Err(Error::StaleTerm { given, current }));
    }
    let current = log.take_seat().unwrap().term;
    let given = Term::new(2);
    assert_eq!(log.append(key(given, 1), &events(1, 1), &[]), Err(Error::StaleTerm { given, current }));
    assert_eq!(all(&mut log), []);
}

fn gaps_and_overlaps_are_refused<B: Bed>() {
    let mut log = B::new().handle();
    let term = filled(&mut log, &[3]);
    for wrong in [0, 1, 2, 3, 5, u64::MAX] {
        let key = BatchKey { term, id: BatchId(77), first: Seq(wrong) };
        let refused = Err(Error::WrongSequence { given: Seq(wrong), expected: Seq(4) });
        assert_eq!(log.append(key, &events(9, 2), &[]), refused);
    }
    assert_eq!(all(&mut log), [batch(term, 1, &events(1, 3))]);
    log.append(key(term, 4), &events(4, 1), &[]).unwrap();
}

fn a_batch_that_is_tried_again_is_stored_once<B: Bed>() {
    let bed = B::new();
    let mut log = bed.handle();
    let term = filled(&mut log, &[1, 3]);
    log.append(key(term, 2), &events(2, 3), &[]).unwrap();
    assert_eq!(log.tail().unwrap().last, Seq(4));
    drop(log);
    let mut log = bed.restart().handle();
    log.append(key(term, 2), &events(2, 3), &[]).unwrap();
    assert_eq!(all(&mut log), [batch(term, 1, &events(1, 1)), batch(term, 2, &events(2, 3))]);
    // Another batch at the same place is not a retry.
    let other = BatchKey { id: BatchId(99), ..key(term, 2) };
    assert!(matches!(log.append(other, &events(5, 3), &[]), Err(Error::WrongSequence { .. })));
}

fn a_retry_under_a_stale_term_is_refused_though_it_was_stored<B: Bed>() {
    let bed = B::new();
    let mut log = bed.handle();
    let old = filled(&mut log, &[1]);
    bed.handle().take_seat().unwrap();
    assert!(matches!(log.append(key(old, 1), &events(1, 1), &[]), Err(Error::StaleTerm { .. })));
}

fn reading_begins_where_it_is_asked_to<B: Bed>() {
    let mut log = B::new().handle();
    let term = filled(&mut log, &[2, 3, 1]);
    let whole: Vec<StampedEvent> = all(&mut log).into_iter().flat_map(|batch| batch.events).collect();
    assert_eq!(whole, [events(1, 2), events(3, 3), events(6, 1)].concat());
    for from in 0..=8 {
        let read = log.read(Seq(from), usize::MAX).unwrap();
        let expected = whole.get(from.max(1) as usize - 1..).unwrap_or(&[]);
        assert_eq!(read.first().map(|batch| batch.first), (!expected.is_empty()).then_some(Seq(from.max(1))));
        assert_eq!(read.into_iter().flat_map(|batch| batch.events).collect::<Vec<_>>(), expected, "from {from}");
    }
    let (id, first, events) = (BatchId(3), Seq(4), events(3, 3)[1..].to_vec());
    assert_eq!(log.read(Seq(4), 1).unwrap(), [Batch { term, id, first, events }]);
}

fn reading_stops_at_whole_rows<B: Bed>() {
    let mut log = B::new().handle();
    filled(&mut log, &[2, 3, 1]);
    for (max_events, rows) in [(0, 1), (1, 1), (2, 1), (3, 2), (5, 2), (6, 3), (7, 3)] {
        assert_eq!(log.read(Seq(1), max_events).unwrap().len(), rows, "{max_events} events");
    }
}

fn everything_is_there_after_a_restart<B: Bed>() {
    let mut bed = B::new();
    let mut expected = Vec::new();
    for round in 0..3 {
        let mut log = bed.handle();
        let first = log.tail().unwrap().last.0 + 1;
        let term = filled(&mut log, &[1, 40]);
        expected.push(batch(term, first, &events(first, 1)));
        expected.push(batch(term, first + 1, &events(first + 1, 40)));
        drop(log);
        bed = bed.restart();
        let mut log = bed.handle();
        assert_eq!(all(&mut log), expected, "round {round}");
        assert_eq!(log.tail().unwrap().last, Seq(expected.iter().map(|batch| batch.events.len() as u64).sum()));
    }
}

fn log_time_is_the_newest_stamp<B: Bed>() {
    let bed = B::new();
    let mut log = bed.handle();
    let term = log.take_seat().unwrap().term;
    let mut stamped = events(1, 2);
    (stamped[0].at, stamped[1].at) = (Wall::from_ms(500), Wall::from_ms(400));
    log.append(key(term, 1), &stamped, &[]).unwrap();
    assert_eq!(log.tail().unwrap().newest, Wall::from_ms(500));
    drop(log);
    assert_eq!(bed.restart().handle().tail().unwrap().newest, Wall::from_ms(500));
}

fn a_snapshot_counts_once_it_is_finished<B: Bed>() {
    let bed = B::new();
    let mut log = bed.handle();
    let term = filled(&mut log, &[2, 3]);
    log.put_chunk(term, Seq(2), 0, b"first").unwrap();
    assert_eq!(log.snapshot().unwrap(), None);
    log.finish_snapshot(term, Seq(2), 1).unwrap();
    let old = Some(Snapshot { covers: Seq(2), chunks: 1 });
    log.put_chunk(term, Seq(5), 0, b"second").unwrap();
    log.put_chunk(term, Seq(5), 1, b"").unwrap();
    assert_eq!((log.snapshot().unwrap(), log.chunk(0).unwrap()), (old, b"first".to_vec()));
    drop(log);
    let bed = bed.restart();
    let mut log = bed.handle();
    assert_eq!((log.snapshot().unwrap(), log.chunk(0).unwrap()), (old, b"first".to_vec()));
    log.finish_snapshot(term, Seq(5), 2).unwrap();
    drop(log);
    let mut log = bed.restart().handle();
    assert_eq!(log.snapshot().unwrap(), Some(Snapshot { covers: Seq(5), chunks: 2 }));
    assert_eq!((log.chunk(0).unwrap(), log.chunk(1).unwrap()), (b"second".to_vec(), Vec::new()));
    assert!(matches!(log.chunk(2), Err(Error::WrongSnapshot { .. })));
}

fn snapshot_chunks_come_in_order<B: Bed>() {
    let mut log = B::new().handle();
    let term = filled(&mut log, &[2, 3]);
    let is_refused = |result| matches!(result, Err(Error::WrongSnapshot { .. }));
    assert!(is_refused(log.finish_snapshot(term, Seq(2), 0)), "no chunks at all");
    assert!(is_refused(log.put_chunk(term, Seq(2), 1, b"x")));
    for index in 0..3 {
        log.put_chunk(term, Seq(2), index, b"old").unwrap();
    }
    assert!(is_refused(log.put_chunk(term, Seq(2), 4, b"x")));
    assert!(is_refused(log.put_chunk(term, Seq(2), 1, b"x")), "long gone");
    assert!(is_refused(log.put_chunk(term, Seq(3), 3, b"x")), "of another snapshot");
    assert!(is_refused(log.finish_snapshot(term, Seq(2), 2)));
    // Beginning anew leaves nothing of what was given up.
    log.put_chunk(term, Seq(2), 0, b"new").unwrap();
    assert!(is_refused(log.finish_snapshot(term, Seq(2), 3)));
    log.finish_snapshot(term, Seq(2), 1).unwrap();
    assert_eq!(log.chunk(0).unwrap(), b"new");
    assert!(log.chunk(1).is_err());
}

fn snapshot_steps_can_be_tried_again<B: Bed>() {
    let mut log = B::new().handle();
    let term = filled(&mut log, &[2]);
    for (index, chunk) in [(0, b"a"), (0, b"a"), (1, b"b"), (1, b"b")] {
        log.put_chunk(term, Seq(2), index, chunk).unwrap();
    }
    for _ in 0..2 {
        log.finish_snapshot(term, Seq(2), 2).unwrap();
    }
    assert_eq!((log.chunk(0).unwrap(), log.chunk(1).unwrap()), (b"a".to_vec(), b"b".to_vec()));
}

fn a_snapshot_must_be_newer_and_within_the_log<B: Bed>() {
    let mut log = B::new().handle();
    let term = filled(&mut log, &[2, 3]);
    let is_refused = |result| matches!(result, Err(Error::WrongSnapshot { .. }));
    assert!(is_refused(log.put_chunk(term, Seq(0), 0, b"x")));
    assert!(is_refused(log.put_chunk(term, Seq(6), 0, b"x")));
    log.put_chunk(term, Seq(4), 0, b"x").unwrap();
    log.finish_snapshot(term, Seq(4), 1).unwrap();
    for older in [1, 4] {
        assert!(is_refused(log.put_chunk(term, Seq(older), 0, b"y")));
    }
    assert_eq!(log.chunk(0).unwrap(), b"x");
}

fn old_terms_cannot_touch_snapshots<B: Bed>() {
    let bed = B::new();
    let mut log = bed.handle();
    let old = filled(&mut log, &[2, 3]);
    log.put_chunk(old, Seq(5), 0, b"x").unwrap();
    let new = bed.handle().take_seat().unwrap().term;
    let stale = Error::StaleTerm { given: old, current: new };
    assert_eq!(log.put_chunk(old, Seq(5), 0, b"y"), Err(stale.clone()));
    assert_eq!(log.finish_snapshot(old, Seq(5), 1), Err(stale.clone()));
    assert_eq!(log.truncate(old, 9), Err(stale));
    // What it left may be finished by its successor, who can see how far it came.
    log.finish_snapshot(new, Seq(5), 1).unwrap();
    assert_eq!(log.chunk(0).unwrap(), b"x");
}

fn snapshot_of(log: &mut impl Log, term: Term, covers: u64) {
    log.put_chunk(term, Seq(covers), 0, b"state").unwrap();
    log.finish_snapshot(term, Seq(covers), 1).unwrap();
}

fn truncation_removes_what_the_snapshot_covers<B: Bed>() {
    let mut log = B::new().handle();
    let term = filled(&mut log, &[2, 2, 2, 2]);
    assert!(!log.truncate(term, 9).unwrap(), "without a snapshot everything is needed");
    assert_eq!(all(&mut log).len(), 4);
    snapshot_of(&mut log, term, 6);
    assert!(log.truncate(term, 1).unwrap(), "more is left");
    assert_eq!(log.read(Seq(1), 9), Err(Error::Truncated { first: Seq(3) }));
    assert_eq!(log.read(Seq(3), usize::MAX).unwrap().len(), 3);
    assert!(!log.truncate(term, 9).unwrap());
    assert_eq!(log.read(Seq(6), 9), Err(Error::Truncated { first: Seq(7) }));
    assert_eq!(log.read(Seq(7), usize::MAX).unwrap(), [batch(term, 7, &events(7, 2))]);
    assert!(!log.truncate(term, 9).unwrap());
}

fn truncation_in_the_middle_of_a_batch_keeps_it<B: Bed>() {
    let mut log = B::new().handle();
    let term = filled(&mut log, &[2, 4, 2]);
    snapshot_of(&mut log, term, 5);
    assert!(!log.truncate(term, 9).unwrap());
    let read = log.read(Seq(6), usize::MAX).unwrap();
    assert_eq!((read.len(), read[0].first, read[0].events.len()), (2, Seq(6), 1));
    assert!(log.read(Seq(2), 1).is_err());
}

fn a_truncated_log_goes_on_after_a_restart<B: Bed>() {
    let bed = B::new();
    let mut log = bed.handle();
    let term = filled(&mut log, &[2, 2, 3]);
    snapshot_of(&mut log, term, 7);
    while log.truncate(term, 1).unwrap() {}
    let tail = log.tail().unwrap();
    drop(log);
    let mut log = bed.restart().handle();
    assert_eq!(log.tail().unwrap(), tail);
    assert_eq!(log.read(Seq(8), 9).unwrap(), [], "all that is needed is in the snapshot");
    filled(&mut log, &[1]);
    assert_eq!(log.read(Seq(8), 9).unwrap().len(), 1);
}

fn digest(name: u8) -> Digest {
    [name; 32]
}

fn content(name: u8, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at as u8).wrapping_mul(31) ^ name).collect()
}

/// Appends one event that brings these blobs.
fn with_blobs(log: &mut impl Log, term: Term, blobs: &[(u8, usize)]) -> Result<(), Error> {
    let next = log.tail().unwrap().last.0 + 1;
    let contents: Vec<_> = blobs.iter().map(|&(name, length)| (digest(name), content(name, length))).collect();
    let blobs: Vec<_> = contents.iter().map(|(digest, bytes)| Blob { digest: *digest, bytes }).collect();
    log.append(key(term, next), &events(next, 1), &blobs)
}

fn blobs_of_every_size_come_with_their_batch<B: Bed>() {
    let bed = B::new();
    let mut log = bed.handle();
    let term = filled(&mut log, &[2]);
    let sizes = [0, 1, 4000, 4096, 5000, 65_440, 65_536, 100_000, 1 << 20, (1 << 20) + 1];
    let blobs: Vec<_> = (1..).zip(sizes).collect();
    with_blobs(&mut log, term, &blobs[..4]).unwrap();
    with_blobs(&mut log, term, &blobs[4..]).unwrap();
    drop(log);
    let bed = bed.restart();
    let mut log = bed.handle();
    let reader = log.blob_reader();
    for (name, length) in blobs {
        assert_eq!(log.blob(&digest(name)).unwrap(), Some(content(name, length)), "{length} bytes");
        assert_eq!(reader.blob(&digest(name)).unwrap(), Some(content(name, length)), "{length} bytes");
    }
    assert_eq!((log.blob(&digest(99)).unwrap(), reader.blob(&digest(99)).unwrap()), (None, None));
}

fn a_refused_batch_leaves_no_blob<B: Bed>() {
    let mut log = B::new().handle();
    let term = filled(&mut log, &[2]);
    let bytes = content(1, 9000);
    let blob = Blob { digest: digest(1), bytes: &bytes };
    assert!(log.append(key(term, 9), &events(9, 1), &[blob]).is_err());
    assert!(log.append(key(Term::new(9), 3), &events(3, 1), &[blob]).is_err());
    assert_eq!((log.blob(&digest(1)).unwrap(), log.blobs(None, 9).unwrap()), (None, Vec::new()));
}

fn a_blob_that_is_there_is_put_again_without_harm<B: Bed>() {
    let mut log = B::new().handle();
    let term = filled(&mut log, &[1]);
    for _ in 0..2 {
        with_blobs(&mut log, term, &[(1, 9000), (2, 10), (1, 9000)]).unwrap();
    }
    // The newest batch once more, as by a leader in doubt.
    let bytes = content(3, 5000);
    for _ in 0..2 {
        log.append(key(term, 4), &events(4, 1), &[Blob { digest: digest(3), bytes: &bytes }]).unwrap();
    }
    assert_eq!(log.tail().unwrap().last, Seq(4));
    assert_eq!(log.blobs(None, 9).unwrap(), [digest(1), digest(2), digest(3)]);
    for (name, length) in [(1, 9000), (2, 10), (3, 5000)] {
        assert_eq!(log.blob(&digest(name)).unwrap(), Some(content(name, length)));
    }
}

fn blobs_are_listed_in_order_from_anywhere<B: Bed>() {
    let mut log = B::new().handle();
    let term = filled(&mut log, &[1]);
    assert_eq!(log.blobs(None, 9).unwrap(), Vec::<Digest>::new());
    with_blobs(&mut log, term, &[(7, 70_000), (3, 1), (5, 200_000), (1, 4096)]).unwrap();
    let listed = |names: &[u8]| names.iter().copied().map(digest).collect::<Vec<_>>();
    assert_eq!(log.blobs(None, 9).unwrap(), listed(&[1, 3, 5, 7]));
    assert_eq!(log.blobs(None, 2).unwrap(), listed(&[1, 3]));
    assert_eq!(log.blobs(Some(&digest(3)), 9).unwrap(), listed(&[5, 7]));
    assert_eq!(log.blobs(Some(&digest(4)), 1).unwrap(), listed(&[5]), "after one that is not there");
    assert_eq!(log.blobs(Some(&digest(7)), 9).unwrap(), listed(&[]));
}

fn only_the_seat_drops_blobs<B: Bed>() {
    let bed = B::new();
    let mut log = bed.handle();
    let old = filled(&mut log, &[1]);
    with_blobs(&mut log, old, &[(1, 9000), (2, 200_000), (3, 10)]).unwrap();
    let new = bed.handle().take_seat().unwrap().term;
    for names in [vec![digest(1)], vec![digest(99)], vec![]] {
        assert_eq!(log.drop_blobs(old, &names), Err(Error::StaleTerm { given: old, current: new }));
    }
    assert_eq!(log.blob(&digest(1)).unwrap(), Some(content(1, 9000)), "nothing was dropped");
    log.drop_blobs(new, &[digest(2), digest(99), digest(1)]).unwrap();
    log.drop_blobs(new, &[digest(2)]).unwrap();
    drop(log);
    let mut log = bed.restart().handle();
    assert_eq!((log.blob(&digest(1)).unwrap(), log.blob(&digest(2)).unwrap()), (None, None));
    assert_eq!(log.blobs(None, 9).unwrap(), [digest(3)]);
    // And it may come back.
    with_blobs(&mut log, new, &[(2, 200_000)]).unwrap();
    assert_eq!(log.blob(&digest(2)).unwrap(), Some(content(2, 200_000)));
}

fn truncation_keeps_blobs<B: Bed>() {
    let mut log = B::new().handle();
    let term = filled(&mut log, &[2]);
    with_blobs(&mut log, term, &[(1, 9000)]).unwrap();
    filled(&mut log, &[2]);
    let term = log.tail().unwrap().term;
    snapshot_of(&mut log, term, 5);
    assert!(!log.truncate(term, 9).unwrap());
    assert!(log.read(Seq(3), 1).is_err());
    assert_eq!(log.blob(&digest(1)).unwrap(), Some(content(1, 9000)), "a job in the snapshot may name it");
}

fn a_reader_of_blobs_can_be_sent_to_other_threads<B: Bed>() {
    fn is_shared<T: Clone + Send + Sync + 'static>(value: T) -> T {
        value
    }
    let mut log = B::new().handle();
    let reader: BlobReader = is_shared(log.blob_reader());
    let term = filled(&mut log, &[1]);
    with_blobs(&mut log, term, &[(1, 9000)]).unwrap();
    let read = std::thread::spawn(move || reader.blob(&digest(1))).join().unwrap();
    assert_eq!(read.unwrap(), Some(content(1, 9000)));
}
