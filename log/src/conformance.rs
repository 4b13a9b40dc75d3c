//! What every engine promises, asked of each in the same words.
//!
//! An engine's tests say how one of its logs is made and found again ([`Bed`]), and ask everything with one line:
//! `onward_log::conformance_tests!(my_engine, MyBed);`. Rows have bytes that mean nothing: what they say is no engine's
//! business.

pub mod archive;

use onward_core::fence::Term;
use onward_core::ids::Seq;

use crate::{BatchId, BatchKey, Blob, BlobDigest, BlobReader, Error, Log, LogRow, Snapshot, Tail};

/// An engine under test: handles on one log, and the log as another process finds it later.
pub trait Bed {
    type Log: Log;
    fn new() -> Self;
    fn handle(&self) -> Self::Log;
    fn restart(self) -> Self;
}

/// A module with a test for each promise; or one test for all of them, where each process that runs tests would have to
/// start a server: `conformance_tests!(in one test: my_test, MyBed);`.
#[macro_export]
macro_rules! conformance_tests {
    (in one test: $test:ident, $bed:ident) => {
        #[test]
        fn $test() {
            $crate::conformance_tests! { @list all $bed }
        }
    };
    ($module:ident, $bed:ident) => {
        mod $module {
            $crate::conformance_tests! { @list each $bed }
        }
    };
    (@list $how:ident $bed:ident) => {
        $crate::conformance_tests! { @$how $bed;
            a_new_log_is_empty
            terms_rise_and_are_remembered
            an_old_term_appends_no_more_from_any_handle
            of_two_who_saw_the_same_term_one_gets_the_seat
            a_seat_is_confirmed_by_its_holder_alone
            a_term_that_was_never_given_out_is_refused
            gaps_and_overlaps_are_refused
            a_batch_that_is_tried_again_is_stored_once
            a_retry_under_a_stale_term_is_refused_though_it_was_stored
            reading_begins_with_the_row_that_holds_what_is_asked_for
            reading_stops_at_whole_rows
            everything_is_there_after_a_restart
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
    };
    (@each $bed:ident; $($name:ident)*) => {
        $(#[test] fn $name() { $crate::conformance::$name::<super::$bed>(); })*
    };
    (@all $bed:ident; $($name:ident)*) => {
        $($crate::conformance::$name::<$bed>();)*
    };
}

fn key(term: Term, first: u64) -> BatchKey {
    BatchKey { term, id: BatchId(first), first: Seq(first) }
}

/// The body of a row of so many events. What it says is nobody's business here.
fn body(first: u64, count: usize) -> Vec<u8> {
    (0..count * 7).map(|at| (at as u64 ^ first) as u8).collect()
}

fn append(log: &mut impl Log, key: BatchKey, count: usize) -> Result<(), Error> {
    append_with(log, key, (key.first.0, count), &[])
}

/// `bytes`: those of a row of so many events that begins there.
fn append_with(log: &mut impl Log, key: BatchKey, bytes: (u64, usize), blobs: &[Blob<'_>]) -> Result<(), Error> {
    let body = body(bytes.0, bytes.1);
    log.append(key, LogRow { count: bytes.1 as u32, body: &body }, blobs)
}

fn batch(term: Term, first: u64, count: usize) -> (BatchKey, usize, Vec<u8>) {
    (key(term, first), count, body(first, count))
}

fn seize(log: &mut impl Log) -> Result<Tail, Error> {
    let seen = log.tail()?.term;
    log.take_seat(seen)
}

/// Takes the seat and appends batches of these sizes.
fn filled(log: &mut impl Log, sizes: &[usize]) -> Term {
    let term = seize(log).unwrap().term;
    let mut next = log.tail().unwrap().last.0 + 1;
    for &size in sizes {
        append(log, key(term, next), size).unwrap();
        next += size as u64;
    }
    term
}

fn all(log: &mut impl Log) -> Vec<(BatchKey, usize, Vec<u8>)> {
    read(log, 1, usize::MAX)
}

fn read(log: &mut impl Log, from: u64, max_events: usize) -> Vec<(BatchKey, usize, Vec<u8>)> {
    let rows = log.read(Seq(from), max_events).unwrap();
    rows.iter().map(|row| (row.key, row.count as usize, row.body().to_vec())).collect()
}

pub fn a_new_log_is_empty<B: Bed>() {
    let mut log = B::new().handle();
    assert_eq!(log.tail().unwrap(), Tail::default());
    assert_eq!(all(&mut log), []);
    assert_eq!(log.snapshot().unwrap(), None);
    assert!(log.chunk(0).is_err());
}

pub fn terms_rise_and_are_remembered<B: Bed>() {
    let bed = B::new();
    let (mut one, mut other) = (bed.handle(), bed.handle());
    let first = one.take_seat(Term::default()).unwrap().term;
    let second = other.take_seat(first).unwrap().term;
    assert!(Term::default() < first && first < second);
    assert_eq!(one.tail().unwrap().term, second);
    drop((one, other));
    let mut log = bed.restart().handle();
    assert_eq!(log.tail().unwrap().term, second);
    assert!(log.take_seat(second).unwrap().term > second);
}

pub fn of_two_who_saw_the_same_term_one_gets_the_seat<B: Bed>() {
    let bed = B::new();
    let (mut one, mut other) = (bed.handle(), bed.handle());
    let seen = filled(&mut one, &[2]);
    let current = one.take_seat(seen).unwrap().term;
    assert_eq!(other.take_seat(seen), Err(Error::SeatTaken { seen, current }));
    let never = Term::new(current.get() + 7);
    assert_eq!(other.take_seat(never), Err(Error::SeatTaken { seen: never, current }), "a term that nobody has seen");
    append(&mut one, key(current, 3), 1).unwrap();
    drop((one, other));
    let mut log = bed.restart().handle();
    assert_eq!(log.take_seat(seen), Err(Error::SeatTaken { seen, current }), "it is remembered");
    assert_eq!(log.tail().unwrap(), Tail { term: current, last: Seq(3) }, "who lost has changed nothing");
}

pub fn a_seat_is_confirmed_by_its_holder_alone<B: Bed>() {
    let bed = B::new();
    let (mut one, mut other) = (bed.handle(), bed.handle());
    let refused = |given, current| Err(Error::StaleTerm { given, current });
    assert_eq!(one.confirm(Term::default()), refused(Term::default(), Term::default()), "nobody sits");
    let first = filled(&mut one, &[2]);
    assert_eq!((one.confirm(first), one.confirm(first)), (Ok(()), Ok(())));
    let second = other.take_seat(first).unwrap().term;
    assert_eq!((one.confirm(first), other.confirm(second)), (refused(first, second), Ok(())));
    assert_eq!(one.tail().unwrap().last, Seq(2), "no event came of it");
    drop((one, other));
    assert_eq!(bed.restart().handle().confirm(first), refused(first, second));
}

pub fn an_old_term_appends_no_more_from_any_handle<B: Bed>() {
    let bed = B::new();
    let (mut old, mut new) = (bed.handle(), bed.handle());
    let first = filled(&mut old, &[2]);
    let second = seize(&mut new).unwrap().term;
    let stale = Err(Error::StaleTerm { given: first, current: second });
    for log in [&mut old, &mut new] {
        assert_eq!(append_with(log, key(first, 3), (3, 1), &[]), stale);
        assert_eq!(append_with(log, key(first, 9), (3, 1), &[]), stale, "the term is looked at first");
    }
    assert_eq!(old.tail().unwrap().last, Seq(2), "nothing was stored");
    // The fence is the term's, not the handle's.
    append_with(&mut old, key(second, 3), (3, 1), &[]).unwrap();
    assert_eq!(all(&mut new), [batch(first, 1, 2), batch(second, 3, 1)]);
}

pub fn a_term_that_was_never_given_out_is_refused<B: Bed>() {
    let mut log = B::new().handle();
    for never in [0, 1] {
        let (given, current) = (Term::new(never), Term::default());
        assert_eq!(append_with(&mut log, key(given, 1), (1, 1), &[]), Err(Error::StaleTerm { given, current }));
    }
    let current = seize(&mut log).unwrap().term;
    let given = Term::new(2);
    assert_eq!(append_with(&mut log, key(given, 1), (1, 1), &[]), Err(Error::StaleTerm { given, current }));
    assert_eq!(all(&mut log), []);
}

pub fn gaps_and_overlaps_are_refused<B: Bed>() {
    let mut log = B::new().handle();
    let term = filled(&mut log, &[3]);
    for wrong in [0, 1, 2, 3, 5, u64::MAX] {
        let key = BatchKey { term, id: BatchId(77), first: Seq(wrong) };
        let refused = Err(Error::WrongSequence { given: Seq(wrong), expected: Seq(4) });
        assert_eq!(append_with(&mut log, key, (9, 2), &[]), refused);
    }
    assert_eq!(all(&mut log), [batch(term, 1, 3)]);
    append_with(&mut log, key(term, 4), (4, 1), &[]).unwrap();
}

pub fn a_batch_that_is_tried_again_is_stored_once<B: Bed>() {
    let bed = B::new();
    let mut log = bed.handle();
    let term = filled(&mut log, &[1, 3]);
    append_with(&mut log, key(term, 2), (2, 3), &[]).unwrap();
    assert_eq!(log.tail().unwrap().last, Seq(4));
    drop(log);
    let mut log = bed.restart().handle();
    append_with(&mut log, key(term, 2), (2, 3), &[]).unwrap();
    assert_eq!(all(&mut log), [batch(term, 1, 1), batch(term, 2, 3)]);
    // Another batch at the same place is not a retry.
    let other = BatchKey { id: BatchId(99), ..key(term, 2) };
    assert!(matches!(append_with(&mut log, other, (5, 3), &[]), Err(Error::WrongSequence { .. })));
}

pub fn a_retry_under_a_stale_term_is_refused_though_it_was_stored<B: Bed>() {
    let bed = B::new();
    let mut log = bed.handle();
    let old = filled(&mut log, &[1]);
    seize(&mut bed.handle()).unwrap();
    assert!(matches!(append_with(&mut log, key(old, 1), (1, 1), &[]), Err(Error::StaleTerm { .. })));
}

pub fn reading_begins_with_the_row_that_holds_what_is_asked_for<B: Bed>() {
    let mut log = B::new().handle();
    let term = filled(&mut log, &[2, 3, 1]);
    let whole = [batch(term, 1, 2), batch(term, 3, 3), batch(term, 6, 1)];
    for (from, row) in [(0, 0), (1, 0), (2, 0), (3, 1), (4, 1), (5, 1), (6, 2), (7, 3), (8, 3)] {
        assert_eq!(read(&mut log, from, usize::MAX), whole[row..], "from {from}");
    }
    assert_eq!(read(&mut log, 4, 1), whole[1..2]);
    assert_eq!(read(&mut log, 5, 2), whole[1..], "the first brings one event only of those that were asked for");
}

pub fn reading_stops_at_whole_rows<B: Bed>() {
    let mut log = B::new().handle();
    filled(&mut log, &[2, 3, 1]);
    for (max_events, rows) in [(0, 1), (1, 1), (2, 1), (3, 2), (5, 2), (6, 3), (7, 3)] {
        assert_eq!(log.read(Seq(1), max_events).unwrap().len(), rows, "{max_events} events");
    }
}

pub fn everything_is_there_after_a_restart<B: Bed>() {
    let mut bed = B::new();
    let mut expected = Vec::new();
    for round in 0..3 {
        let mut log = bed.handle();
        let first = log.tail().unwrap().last.0 + 1;
        let term = filled(&mut log, &[1, 40]);
        expected.push(batch(term, first, 1));
        expected.push(batch(term, first + 1, 40));
        drop(log);
        bed = bed.restart();
        let mut log = bed.handle();
        assert_eq!(all(&mut log), expected, "round {round}");
        assert_eq!(log.tail().unwrap().last, Seq(expected.iter().map(|(_, count, _)| *count as u64).sum()));
    }
}

pub fn a_snapshot_counts_once_it_is_finished<B: Bed>() {
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

pub fn snapshot_chunks_come_in_order<B: Bed>() {
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

pub fn snapshot_steps_can_be_tried_again<B: Bed>() {
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

pub fn a_snapshot_must_be_newer_and_within_the_log<B: Bed>() {
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

pub fn old_terms_cannot_touch_snapshots<B: Bed>() {
    let bed = B::new();
    let mut log = bed.handle();
    let old = filled(&mut log, &[2, 3]);
    log.put_chunk(old, Seq(5), 0, b"x").unwrap();
    let new = seize(&mut bed.handle()).unwrap().term;
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

pub fn truncation_removes_what_the_snapshot_covers<B: Bed>() {
    let mut log = B::new().handle();
    let term = filled(&mut log, &[2, 2, 2, 2]);
    assert!(!log.truncate(term, 9).unwrap(), "without a snapshot everything is needed");
    assert_eq!(all(&mut log).len(), 4);
    snapshot_of(&mut log, term, 6);
    assert!(log.truncate(term, 1).unwrap(), "more is left");
    assert_eq!(log.read(Seq(1), 9).err(), Some(Error::Truncated { first: Seq(3) }));
    assert_eq!(log.read(Seq(3), usize::MAX).unwrap().len(), 3);
    assert!(!log.truncate(term, 9).unwrap());
    assert_eq!(log.read(Seq(6), 9).err(), Some(Error::Truncated { first: Seq(7) }));
    assert_eq!(read(&mut log, 7, usize::MAX), [batch(term, 7, 2)]);
    assert!(!log.truncate(term, 9).unwrap());
}

pub fn truncation_in_the_middle_of_a_batch_keeps_it<B: Bed>() {
    let mut log = B::new().handle();
    let term = filled(&mut log, &[2, 4, 2]);
    snapshot_of(&mut log, term, 5);
    assert!(!log.truncate(term, 9).unwrap());
    assert_eq!(read(&mut log, 6, usize::MAX), [batch(term, 3, 4), batch(term, 7, 2)]);
    assert!(log.read(Seq(2), 1).is_err());
}

pub fn a_truncated_log_goes_on_after_a_restart<B: Bed>() {
    let bed = B::new();
    let mut log = bed.handle();
    let term = filled(&mut log, &[2, 2, 3]);
    snapshot_of(&mut log, term, 7);
    while log.truncate(term, 1).unwrap() {}
    let tail = log.tail().unwrap();
    drop(log);
    let mut log = bed.restart().handle();
    assert_eq!(log.tail().unwrap(), tail);
    assert_eq!(read(&mut log, 8, 9), [], "all that is needed is in the snapshot");
    filled(&mut log, &[1]);
    assert_eq!(log.read(Seq(8), 9).unwrap().len(), 1);
}

fn digest(name: u8) -> BlobDigest {
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
    append_with(log, key(term, next), (next, 1), &blobs)
}

pub fn blobs_of_every_size_come_with_their_batch<B: Bed>() {
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

pub fn a_refused_batch_leaves_no_blob<B: Bed>() {
    let mut log = B::new().handle();
    let term = filled(&mut log, &[2]);
    let bytes = content(1, 9000);
    let blob = Blob { digest: digest(1), bytes: &bytes };
    assert!(append_with(&mut log, key(term, 9), (9, 1), &[blob]).is_err());
    assert!(append_with(&mut log, key(Term::new(9), 3), (3, 1), &[blob]).is_err());
    assert_eq!((log.blob(&digest(1)).unwrap(), log.blobs(None, 9).unwrap()), (None, Vec::new()));
}

pub fn a_blob_that_is_there_is_put_again_without_harm<B: Bed>() {
    let mut log = B::new().handle();
    let term = filled(&mut log, &[1]);
    for _ in 0..2 {
        with_blobs(&mut log, term, &[(1, 9000), (2, 10), (1, 9000)]).unwrap();
    }
    // The newest batch once more, as by a leader in doubt.
    let bytes = content(3, 5000);
    for _ in 0..2 {
        append_with(&mut log, key(term, 4), (4, 1), &[Blob { digest: digest(3), bytes: &bytes }]).unwrap();
    }
    assert_eq!(log.tail().unwrap().last, Seq(4));
    assert_eq!(log.blobs(None, 9).unwrap(), [digest(1), digest(2), digest(3)]);
    for (name, length) in [(1, 9000), (2, 10), (3, 5000)] {
        assert_eq!(log.blob(&digest(name)).unwrap(), Some(content(name, length)));
    }
}

pub fn blobs_are_listed_in_order_from_anywhere<B: Bed>() {
    let mut log = B::new().handle();
    let term = filled(&mut log, &[1]);
    assert_eq!(log.blobs(None, 9).unwrap(), Vec::<BlobDigest>::new());
    with_blobs(&mut log, term, &[(7, 70_000), (3, 1), (5, 200_000), (1, 4096)]).unwrap();
    let listed = |names: &[u8]| names.iter().copied().map(digest).collect::<Vec<_>>();
    assert_eq!(log.blobs(None, 9).unwrap(), listed(&[1, 3, 5, 7]));
    assert_eq!(log.blobs(None, 2).unwrap(), listed(&[1, 3]));
    assert_eq!(log.blobs(Some(&digest(3)), 9).unwrap(), listed(&[5, 7]));
    assert_eq!(log.blobs(Some(&digest(4)), 1).unwrap(), listed(&[5]), "after one that is not there");
    assert_eq!(log.blobs(Some(&digest(7)), 9).unwrap(), listed(&[]));
}

pub fn only_the_seat_drops_blobs<B: Bed>() {
    let bed = B::new();
    let mut log = bed.handle();
    let old = filled(&mut log, &[1]);
    with_blobs(&mut log, old, &[(1, 9000), (2, 200_000), (3, 10)]).unwrap();
    let new = seize(&mut bed.handle()).unwrap().term;
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

pub fn truncation_keeps_blobs<B: Bed>() {
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

pub fn a_reader_of_blobs_can_be_sent_to_other_threads<B: Bed>() {
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
