//! What every archive promises, asked of each in the same words: `onward_log::archive_conformance_tests!(my, MyBed);`.

use crate::{Archive, ArchivedJob, Blob};

/// An archive under test: a handle on it, and the archive as another process finds it later.
pub trait ArchiveBed {
    type Archive: Archive;
    fn new() -> Self;
    fn handle(&self) -> Self::Archive;
    fn restart(self) -> Self;
}

/// A module with a test for each promise; or one test for all of them, where each process that runs tests would have to
/// start a server: `archive_conformance_tests!(in one test: my_test, MyBed);`.
#[macro_export]
macro_rules! archive_conformance_tests {
    (in one test: $test:ident, $bed:ident) => {
        #[test]
        fn $test() {
            $crate::archive_conformance_tests! { @list all $bed }
        }
    };
    ($module:ident, $bed:ident) => {
        mod $module {
            $crate::archive_conformance_tests! { @list each $bed }
        }
    };
    (@list $how:ident $bed:ident) => {
        $crate::archive_conformance_tests! { @$how $bed;
            what_was_put_is_there_after_a_restart
            a_job_that_is_put_again_is_there_once
            a_job_that_is_put_again_with_less_content_loses_none
            content_that_comes_before_its_job_belongs_to_it_and_goes_with_it
            a_scan_goes_from_the_newest_id_down_and_is_bounded
            jobs_go_by_age_first_and_then_by_number_the_oldest_ended_first
        }
    };
    (@each $bed:ident; $($name:ident)*) => {
        $(#[test] fn $name() { $crate::conformance::archive::$name::<super::$bed>(); })*
    };
    (@all $bed:ident; $($name:ident)*) => {
        $($crate::conformance::archive::$name::<$bed>();)*
    };
}

fn job(id: u128, ended_at_ms: u64, expires_at_ms: Option<u64>, row: &[u8]) -> ArchivedJob<'_> {
    ArchivedJob { id, ended_at_ms, expires_at_ms, row, blobs: &[] }
}

fn ids(archive: &impl Archive) -> Vec<u128> {
    archive.scan(None, usize::MAX, usize::MAX).unwrap().rows.into_iter().map(|(id, _)| id).collect()
}

pub fn what_was_put_is_there_after_a_restart<B: ArchiveBed>() {
    let bed = B::new();
    let archive = bed.handle();
    assert_eq!((archive.count().unwrap(), archive.get(1).unwrap(), ids(&archive)), (0, None, vec![]));
    let large = vec![7; 200_000];
    let blobs = [Blob { digest: [1; 32], bytes: &large }, Blob { digest: [2; 32], bytes: b"small" }];
    archive.put(&[job(1, 10, None, b"one"), ArchivedJob { blobs: &blobs, ..job(2, 9, Some(50), b"") }]).unwrap();
    archive.put(&[]).unwrap();
    drop(archive);
    let archive = bed.restart().handle();
    assert_eq!((archive.get(1).unwrap(), archive.get(2).unwrap()), (Some(b"one".to_vec()), Some(vec![])));
    assert_eq!((archive.get(3).unwrap(), archive.count().unwrap(), ids(&archive)), (None, 2, vec![2, 1]));
    assert_eq!(archive.blob(2, &[1; 32]).unwrap(), Some(large));
    assert_eq!((archive.blob(1, &[1; 32]).unwrap(), archive.blob(2, &[3; 32]).unwrap()), (None, None));
}

pub fn a_job_that_is_put_again_is_there_once<B: ArchiveBed>() {
    let archive = B::new().handle();
    let blob = [Blob { digest: [1; 32], bytes: b"blob" }];
    for _ in 0..2 {
        archive.put(&[ArchivedJob { blobs: &blob, ..job(1, 10, Some(20), b"same") }, job(2, 11, None, b"x")]).unwrap();
    }
    assert_eq!((archive.count().unwrap(), ids(&archive)), (2, vec![2, 1]));
    assert_eq!(archive.blob(1, &[1; 32]).unwrap().unwrap(), b"blob");
    // Its old place in the order of expiry is gone too.
    archive.put(&[job(1, 10, Some(90), b"later")]).unwrap();
    assert_eq!(archive.expire(50, 9, 9).unwrap(), 0);
    assert_eq!(archive.get(1).unwrap().unwrap(), b"later");
}

/// A job that has ended does not change, so a put with less content has lost something.
pub fn a_job_that_is_put_again_with_less_content_loses_none<B: ArchiveBed>() {
    let archive = B::new().handle();
    let [payload, result] = [Blob { digest: [1; 32], bytes: b"payload" }, Blob { digest: [2; 32], bytes: b"result" }];
    for blobs in [&[payload][..], &[result], &[]] {
        archive.put(&[ArchivedJob { blobs, ..job(1, 10, None, b"same") }]).unwrap();
    }
    for blob in [payload, result] {
        assert_eq!(archive.blob(1, &blob.digest).unwrap().unwrap(), blob.bytes);
    }
    // Of two that are put together both count, too.
    let (one, other) = ([payload], [result]);
    archive.put(&[&one, &other].map(|blobs| ArchivedJob { blobs, ..job(2, 10, None, b"same") })).unwrap();
    assert!([payload, result].iter().all(|blob| archive.blob(2, &blob.digest).unwrap().is_some()));
    assert_eq!(archive.expire(0, 0, 9).unwrap(), 2);
    assert_eq!(archive.blob(1, &[1; 32]).unwrap(), None, "they go with their job");
}

pub fn content_that_comes_before_its_job_belongs_to_it_and_goes_with_it<B: ArchiveBed>() {
    let archive = B::new().handle();
    let blobs = [1, 2, 3].map(|n| Blob { digest: [n; 32], bytes: b"some" });
    for blob in &blobs[..2] {
        archive.put_blobs(1, &[*blob]).unwrap();
    }
    assert_eq!((archive.count().unwrap(), archive.get(1).unwrap()), (0, None), "content is no job");
    // As after a crash: the same once more, and then the rest with the row.
    archive.put_blobs(1, &blobs[..2]).unwrap();
    archive.put(&[ArchivedJob { blobs: &blobs[2..], ..job(1, 10, None, b"row") }]).unwrap();
    assert!(blobs.iter().all(|blob| archive.blob(1, &blob.digest).unwrap().as_deref() == Some(blob.bytes)));
    assert_eq!(archive.expire(0, 0, 9).unwrap(), 1);
    assert!(blobs.iter().all(|blob| archive.blob(1, &blob.digest).unwrap().is_none()));
}

pub fn a_scan_goes_from_the_newest_id_down_and_is_bounded<B: ArchiveBed>() {
    let archive = B::new().handle();
    let rows: Vec<_> = (1..=9).map(|id| (id, vec![id as u8; 100])).collect();
    archive.put(&rows.iter().map(|(id, row)| job(*id, 5, None, row)).collect::<Vec<_>>()).unwrap();
    let scanned = |before, max_rows, max_bytes| {
        let scanned = archive.scan(before, max_rows, max_bytes).unwrap();
        let id = |(id, row): (u128, Vec<u8>)| (row == vec![id as u8; 100]).then_some(id).unwrap();
        (scanned.rows.into_iter().map(id).collect::<Vec<_>>(), scanned.has_more)
    };
    assert_eq!(scanned(None, 3, usize::MAX), (vec![9, 8, 7], true));
    assert_eq!(scanned(Some(7), 3, usize::MAX), (vec![6, 5, 4], true));
    assert_eq!(scanned(Some(3), 9, usize::MAX), (vec![2, 1], false));
    assert_eq!(scanned(Some(3), 2, usize::MAX), (vec![2, 1], false), "as many as may be, and no more are there");
    assert_eq!(scanned(Some(1), 9, usize::MAX), (vec![], false));
    assert_eq!(scanned(None, 9, 250), (vec![9, 8], true), "the third did not fit");
    assert_eq!(scanned(None, 9, 200), (vec![9, 8], true));
    assert_eq!(scanned(Some(3), 9, 200), (vec![2, 1], false));
    assert_eq!(scanned(None, 9, 0), (vec![9], true), "one at least, or it would never end");
    assert_eq!(scanned(None, 0, 250), (vec![], true));
}

pub fn jobs_go_by_age_first_and_then_by_number_the_oldest_ended_first<B: ArchiveBed>() {
    let archive = B::new().handle();
    let blob = [Blob { digest: [1; 32], bytes: b"blob" }];
    archive
        .put(&[
            job(1, 40, None, b""),
            ArchivedJob { blobs: &blob, ..job(2, 10, None, b"") },
            job(3, 20, Some(100), b""),
            job(4, 50, Some(101), b""),
            job(5, 30, Some(99), b""),
            job(6, 60, None, b""),
        ])
        .unwrap();
    assert_eq!(archive.expire(98, 6, 9).unwrap(), 0, "neither old nor too many");
    assert_eq!(archive.expire(100, 6, 0).unwrap(), 0);
    assert_eq!(archive.expire(100, 6, 1).unwrap(), 1, "in bites");
    assert_eq!(ids(&archive), [6, 4, 3, 2, 1], "the one that expired first");
    assert_eq!(archive.expire(100, 3, 9).unwrap(), 2, "one by age, one by number");
    assert_eq!(ids(&archive), [6, 4, 1], "of the rest the one that ended first");
    assert_eq!((archive.blob(2, &[1; 32]).unwrap(), archive.count().unwrap()), (None, 3), "its blobs go with it");
    assert_eq!(archive.expire(0, 0, 9).unwrap(), 3);
    assert_eq!((ids(&archive), archive.count().unwrap()), (vec![], 0));
}
