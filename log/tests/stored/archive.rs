//! What the archive promises, and a comparison with a list in memory.

#![allow(clippy::print_stdout, reason = "the seed of a case that fails must be seen")]

use core::ops::ControlFlow::Continue;

use onward_log::conformance::archive::ArchiveBed;
use onward_log::{Archive, ArchivedJob, Blob, EmbeddedArchive, EmbeddedLog, Error, archive_conformance_tests};
use redb::TableHandle;

use crate::model::Model;
use crate::samples::Draw;

fn job(id: u128, ended_at_ms: u64, expires_at_ms: Option<u64>, row: &[u8]) -> ArchivedJob<'_> {
    ArchivedJob { id, ended_at_ms, expires_at_ms, row, blobs: &[] }
}

fn ids(archive: &EmbeddedArchive) -> Vec<u128> {
    archive.scan(None, usize::MAX, usize::MAX).unwrap().rows.into_iter().map(|(id, _)| id).collect()
}

/// An archive in a folder of its own.
struct EmbeddedArchiveBed {
    archive: EmbeddedArchive,
    folder: tempfile::TempDir,
}

impl ArchiveBed for EmbeddedArchiveBed {
    type Archive = EmbeddedArchive;
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self { archive: EmbeddedArchive::open(folder.path()).unwrap(), folder }
    }
    fn handle(&self) -> EmbeddedArchive {
        self.archive.clone()
    }
    fn restart(self) -> Self {
        let Self { archive, folder } = self;
        drop(archive);
        Self { archive: EmbeddedArchive::open(folder.path()).unwrap(), folder }
    }
}

archive_conformance_tests!(embedded, EmbeddedArchiveBed);

#[test]
fn what_was_put_is_there_after_a_restart_beside_a_log() {
    let folder = tempfile::tempdir().unwrap();
    let log = EmbeddedLog::open(folder.path()).unwrap();
    let archive = EmbeddedArchive::open(folder.path()).unwrap();
    assert_eq!((archive.count().unwrap(), archive.get(1).unwrap(), ids(&archive)), (0, None, vec![]));
    let large = vec![7; 200_000];
    let blobs = [Blob { digest: [1; 32], bytes: &large }, Blob { digest: [2; 32], bytes: b"small" }];
    archive.put(&[job(1, 10, None, b"one"), ArchivedJob { blobs: &blobs, ..job(2, 9, Some(50), b"") }]).unwrap();
    archive.put(&[]).unwrap();
    let refused = EmbeddedArchive::open(folder.path()).unwrap_err();
    assert!(matches!(refused, Error::Locked { .. }), "{refused}");
    drop((log, archive));
    let archive = EmbeddedArchive::open(folder.path()).unwrap();
    assert_eq!(archive.get_many(&[2, 3, 1, 2]).unwrap(), [Some(vec![]), None, Some(b"one".to_vec()), Some(vec![])]);
    assert_eq!((archive.get(1).unwrap(), archive.count().unwrap()), (Some(b"one".to_vec()), 2));
    assert_eq!(archive.blob(2, &[1; 32]).unwrap(), Some(large));
    assert_eq!((archive.blob(1, &[1; 32]).unwrap(), archive.blob(2, &[3; 32]).unwrap()), (None, None));
}

#[test]
fn removing_takes_everything_of_a_job() {
    let folder = tempfile::tempdir().unwrap();
    let archive = EmbeddedArchive::open(folder.path()).unwrap();
    let blob = [Blob { digest: [1; 32], bytes: b"blob" }];
    archive.put(&[ArchivedJob { blobs: &blob, ..job(1, 10, Some(20), b"") }, job(2, 5, Some(30), b"")]).unwrap();
    assert_eq!((archive.remove(1).unwrap(), archive.remove(1).unwrap()), (true, false));
    assert_eq!(
        (archive.count().unwrap(), archive.get(1).unwrap(), archive.blob(1, &[1; 32]).unwrap()),
        (1, None, None)
    );
    assert_eq!(archive.expire(20, 1, 9).unwrap(), 0);
    assert_eq!(archive.expire(30, 1, 9).unwrap(), 1);
}

/// Changes an archive's file behind its back.
fn tampered(change: impl FnOnce(&redb::WriteTransaction)) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    EmbeddedArchive::open(folder.path()).unwrap().put(&[job(1, 10, None, b"row")]).unwrap();
    let database = redb::Database::open(folder.path().join("archive.redb")).unwrap();
    let transaction = database.begin_write().unwrap();
    change(&transaction);
    transaction.commit().unwrap();
    folder
}

const FACTS: redb::TableDefinition<'_, &str, u64> = redb::TableDefinition::new("facts");
const JOBS: redb::TableDefinition<'_, u128, (u64, u64, &[u8])> = redb::TableDefinition::new("jobs");

#[test]
fn newer_formats_and_damage_are_named() {
    let newer = tampered(|transaction| {
        transaction.open_table(FACTS).unwrap().insert("archive_format", 3).unwrap();
    });
    assert_eq!(EmbeddedArchive::open(newer.path()).unwrap_err(), Error::NewerFormat { found: 3, known: 2 });
    let damaged = tampered(|transaction| {
        transaction.open_table(JOBS).unwrap().insert(1, (10, u64::MAX, &[1, 0, 0, 0, 0, 7][..])).unwrap();
    });
    let archive = EmbeddedArchive::open(damaged.path()).unwrap();
    assert!(matches!(archive.get(1), Err(Error::Corrupt { .. })));
    assert!(matches!(archive.scan(None, 9, 9), Err(Error::Corrupt { .. })));
    let other = tampered(|transaction| {
        assert_eq!(FACTS.name(), "facts");
        transaction.open_table(FACTS).unwrap().remove("archive_format").unwrap();
    });
    assert!(matches!(EmbeddedArchive::open(other.path()), Err(Error::Corrupt { .. })), "some other file of redb's");
    let uncounted = tampered(|transaction| drop(transaction.open_table(FACTS).unwrap().remove("count").unwrap()));
    assert!(
        matches!(EmbeddedArchive::open(uncounted.path()), Err(Error::Corrupt { .. })),
        "jobs, and none are counted"
    );
}

/// Begins with an archive as format 1 was: a row for each job in both orders.
#[test]
fn an_archive_of_the_first_format_is_brought_into_the_form_of_today() {
    const ENDED: redb::TableDefinition<'_, (u64, u128), ()> = redb::TableDefinition::new("ended");
    const EXPIRES: redb::TableDefinition<'_, (u64, u128), ()> = redb::TableDefinition::new("expires");
    let folder = tempfile::tempdir().unwrap();
    let database = redb::Database::create(folder.path().join("archive.redb")).unwrap();
    let transaction = database.begin_write().unwrap();
    let mut row = Vec::new();
    onward_log::codec::encode_opaque(b"old", &mut row);
    for (id, ended, expires) in [(1_u128, 10, 90), (2, 10, u64::MAX), (3, 9, 80)] {
        transaction.open_table(JOBS).unwrap().insert(id, (ended, expires, &row[..])).unwrap();
        transaction.open_table(ENDED).unwrap().insert((ended, id), ()).unwrap();
        if expires != u64::MAX {
            transaction.open_table(EXPIRES).unwrap().insert((expires, id), ()).unwrap();
        }
    }
    for (name, value) in [("archive_format", 1), ("count", 3), ("commits", 1)] {
        transaction.open_table(FACTS).unwrap().insert(name, value).unwrap();
    }
    transaction.commit().unwrap();
    drop(database);
    let archive = EmbeddedArchive::open(folder.path()).unwrap();
    assert_eq!((archive.count().unwrap(), archive.get(2).unwrap()), (3, Some(b"old".to_vec())));
    assert_eq!(archive.expire(85, 9, 9).unwrap(), 1, "3 has expired");
    assert_eq!(archive.get(3).unwrap(), None);
    archive.put(&[job(4, 10, None, b"new")]).unwrap();
    assert_eq!(archive.expire(85, 2, 9).unwrap(), 1, "1 ended first");
    assert!(archive.remove(2).unwrap());
    assert_eq!(ids(&archive), [4]);
    drop(archive);
    assert_eq!(ids(&EmbeddedArchive::open(folder.path()).unwrap()), [4]);
}

#[test]
fn of_jobs_that_ended_at_once_each_goes_once_and_in_the_order_of_their_ids() {
    let folder = tempfile::tempdir().unwrap();
    let archive = EmbeddedArchive::open(folder.path()).unwrap();
    // Stored by turns, so that no row has neighbours only; and more than a row takes.
    for turn in 0..3 {
        let jobs: Vec<_> = (0..100).map(|at| job(3 * at + turn, 7, Some(9), b"")).collect();
        archive.put(&jobs).unwrap();
    }
    for removed in [0, 299, 150] {
        assert!(archive.remove(removed).unwrap());
    }
    assert_eq!(archive.expire(9, 999, 120).unwrap(), 120);
    let mut left: Vec<_> = (121..299).filter(|id| *id != 150).collect();
    left.reverse();
    assert_eq!(ids(&archive), left);
    assert_eq!(archive.expire(0, 57, 999).unwrap(), left.len() - 57, "the rest by number");
    assert_eq!(ids(&archive), left[..57]);
    assert_eq!(archive.expire(9, 0, 999).unwrap(), 57);
    assert_eq!((archive.count().unwrap(), archive.expire(9, 0, 999).unwrap()), (0, 0));
}

#[test]
fn it_does_as_a_list_would() {
    let cases = std::env::var("ONWARD_SOAK_CASES").map_or(100, |text| text.parse::<u64>().expect("a number"));
    // Each takes long, on real files.
    for seed in (0..cases).step_by(10) {
        println!("seed {seed}");
        let folder = tempfile::tempdir().unwrap();
        let mut archive = EmbeddedArchive::open(folder.path()).unwrap();
        let (mut draw, mut model) = (Draw::new(seed), Model::default());
        for _ in 0..60 {
            let change = model.draw(&mut draw);
            let expected = model.apply(&change);
            assert_eq!(change.carry_out(&archive).unwrap(), expected, "seed {seed}: {change:?}");
            if draw.chance(20) {
                drop(archive);
                archive = EmbeddedArchive::open(folder.path()).unwrap();
            }
        }
        model.compare(&archive).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
}

#[test]
fn only_its_owner_may_read_what_is_kept() {
    use std::os::unix::fs::PermissionsExt;
    let above = tempfile::tempdir().unwrap();
    let folder = above.path().join("data");
    let log = onward_log::EmbeddedLog::open(&folder).unwrap();
    let archive = EmbeddedArchive::open(&folder).unwrap();
    let copy = above.path().join("copy");
    onward_log::backup(&log, &archive, &[], &copy, |_, _| Continue(())).unwrap();
    let restored = above.path().join("restored");
    onward_log::restore(&copy, &restored, onward_log::OnLoss::Refuse).unwrap();
    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&folder), mode(&restored), mode(&copy)), (0o700, 0o700, 0o600));
    for folder in [&folder, &restored] {
        for name in ["onward.redb", "archive.redb", "onward.lock", "archive.lock"] {
            assert_eq!(mode(&folder.join(name)), 0o600, "{name}");
        }
    }
}
