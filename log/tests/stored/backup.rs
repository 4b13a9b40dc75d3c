//! Backups of a log that is being written, and folders made from them.

#![allow(clippy::print_stdout, reason = "the seed of a case that fails must be seen")]

use core::ops::ControlFlow::{Break, Continue};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread;

use onward_core::event::{Event, JobSubmitted, StampedEvent};
use onward_core::fence::Term;
use onward_core::ids::{JobId, Seq};
use onward_core::job::Draft;
use onward_core::job::draft::{JobDefaults, check};
use onward_core::limits::Limits;
use onward_core::payload::{self, Payload};
use onward_core::time::Wall;
use onward_log::{
    Archive, ArchivedJob, Batch, BatchId, BatchKey, Blob, BlobDigest, EmbeddedArchive, EmbeddedLog, Error, EventLog,
    Log, OnLoss, Snapshot, backup, restore,
};

use crate::samples::Draw;

/// A leader, and all that it ever wrote.
struct Leader {
    log: EmbeddedLog,
    archive: EmbeddedArchive,
    draw: Draw,
    term: Term,
    batches: Vec<Batch>,
    /// Blobs by the batch that brought them.
    blobs: BTreeMap<u64, Vec<(BlobDigest, Vec<u8>)>>,
}

impl Leader {
    fn new(folder: &Path, seed: u64) -> Self {
        let (mut log, archive) = (EmbeddedLog::open(folder).unwrap(), EmbeddedArchive::open(folder).unwrap());
        let term = log.seize_seat().unwrap().term;
        Self { log, archive, draw: Draw::new(seed), term, batches: Vec::new(), blobs: BTreeMap::new() }
    }

    fn last(&self) -> u64 {
        self.batches.last().map_or(0, |batch| batch.first.0 + batch.events.len() as u64 - 1)
    }

    /// Appends a batch, with a blob now and then, and puts a job into the archive.
    fn act(&mut self) {
        let first = self.last() + 1;
        let mut events = self.draw.batch(10);
        events.iter_mut().zip(first..).for_each(|(stamped, at)| stamped.at = Wall::from_ms(at));
        let batch = Batch { term: self.term, id: BatchId(first), first: Seq(first), events };
        let blobs: Vec<(BlobDigest, Vec<u8>)> = (0..self.draw.below(3))
            .map(|n| {
                let mut digest = [n as u8; 32];
                digest[..8].copy_from_slice(&first.to_le_bytes());
                (digest, self.draw.bytes(30_000))
            })
            .collect();
        let given: Vec<_> = blobs.iter().map(|(digest, bytes)| Blob { digest: *digest, bytes }).collect();
        let key = BatchKey { term: batch.term, id: batch.id, first: batch.first };
        // Archived before the log names it, so a backup that has the batch has the job.
        self.archive.put(&[job(first.into(), &given)]).unwrap();
        self.log.append_events(key, &batch.events, &given).unwrap();
        self.batches.push(batch);
        self.blobs.insert(first, blobs);
    }

    fn snapshot(&mut self) {
        let (covers, term) = (Seq(self.last()), self.term);
        for (index, chunk) in [&b"one"[..], b"two"].into_iter().enumerate() {
            self.log.put_chunk(term, covers, index as u32, chunk).unwrap();
        }
        self.log.finish_snapshot(term, covers, 2).unwrap();
    }

    fn backup(&self, to: &Path) -> Result<(), Error> {
        backup(&self.log, &self.archive, &[("settings", b"x = 1".to_vec()), ("", Vec::new())], to, |_, _| Continue(()))
            .map(drop)
    }
}

fn job<'a>(id: u128, blobs: &'a [Blob<'a>]) -> ArchivedJob<'a> {
    ArchivedJob { id, ended_at_ms: 5, expires_at_ms: Some(9), row: b"row", blobs }
}

#[test]
fn a_backup_that_is_given_up_at_any_moment_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let mut leader = Leader::new(&folder.path().join("old"), 1);
    (0..10).for_each(|_| leader.act());
    let (to, file) = (tempfile::tempdir().unwrap(), "copy");
    let mut moments = 0;
    loop {
        let mut left = moments;
        let progress = |_, _| match left {
            0 => Break(()),
            _ => {
                left -= 1;
                Continue(())
            }
        };
        let made = backup(&leader.log, &leader.archive, &[], &to.path().join(file), progress);
        let found = std::fs::read_dir(to.path()).unwrap().count();
        if made.is_ok() {
            assert_eq!(found, 1, "it was not given up");
            break;
        }
        assert_eq!((made, found), (Err(Error::GivenUp), 0), "after {moments} pieces of progress");
        moments += 1;
    }
    assert!(moments > 10, "each table is one, and so is the end: {moments}");
}

#[test]
fn a_copy_made_while_the_log_is_written_is_a_prefix_of_it_and_whole() {
    let cases = std::env::var("ONWARD_SOAK_CASES").map_or(40, |text| text.parse::<u64>().expect("a number"));
    // Each takes long, on real files.
    for seed in (0..cases).step_by(10) {
        println!("seed {seed}");
        let folder = tempfile::tempdir().unwrap();
        let mut leader = Leader::new(&folder.path().join("old"), seed);
        (0..20).for_each(|_| leader.act());
        leader.snapshot();
        let (before, covers) = (leader.batches.len(), Seq(leader.last()));
        let (log, archive) = (leader.log.clone(), leader.archive.clone());
        let (file, new) = (folder.path().join("copy"), folder.path().join("new"));
        let is_over = AtomicBool::new(false);
        let mut told = Vec::new();
        let (acts, acted) = channel();
        let leader = thread::scope(|scope| {
            let is_over = &is_over;
            let writer = scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    leader.act();
                    acts.send(()).unwrap();
                }
                leader
            });
            let progress = |done, total| {
                if told.is_empty() {
                    // The first of these may have begun before the copy did; the second has not.
                    while acted.try_recv().is_ok() {}
                    acted.recv().unwrap();
                    acted.recv().unwrap();
                }
                told.push((done, total));
                Continue(())
            };
            backup(&log, &archive, &[("settings", b"x = 1".to_vec())], &file, progress).unwrap();
            is_over.store(true, Ordering::Relaxed);
            writer.join().unwrap()
        });
        let (last, total) = *told.last().unwrap();
        assert!(last == total && told.is_sorted() && told[0] == (0, total), "seed {seed}: {told:?}");

        assert_eq!(restore(&file, &new, OnLoss::Refuse).unwrap().extras, [("settings".to_owned(), b"x = 1".to_vec())]);
        let (mut copy, archive) = (EmbeddedLog::open(&new).unwrap(), EmbeddedArchive::open(&new).unwrap());
        // What the snapshot covers may be left out.
        let from = match copy.read_events(Seq(1), 1) {
            Err(Error::Truncated { first }) => first,
            read => read.unwrap()[0].first,
        };
        assert!(from.0 <= covers.0 + 1, "seed {seed}: {from:?}");
        let rest = copy.read_events(from, usize::MAX).unwrap();
        let left_out = leader.batches.iter().position(|batch| batch.first == from).unwrap();
        let read = &leader.batches[..left_out + rest.len()];
        assert_eq!(rest, read[left_out..], "seed {seed}: a prefix");
        assert!(read.len() >= before, "seed {seed}: what was there when it began");
        assert!(leader.batches.len() > read.len(), "seed {seed}: the log grew while it was copied");
        let mut expected: Vec<_> = read.iter().flat_map(|batch| &leader.blobs[&batch.first.0]).cloned().collect();
        expected.sort();
        let listed = copy.blobs(None, usize::MAX).unwrap();
        assert_eq!(listed, expected.iter().map(|(digest, _)| *digest).collect::<Vec<_>>(), "seed {seed}");
        for (digest, bytes) in &expected {
            assert_eq!(copy.blob(digest).unwrap().as_ref(), Some(bytes), "seed {seed}");
        }
        assert_eq!(copy.snapshot().unwrap(), Some(Snapshot { covers, chunks: 2 }));
        assert_eq!((copy.chunk(0).unwrap(), copy.chunk(1).unwrap()), (b"one".to_vec(), b"two".to_vec()));
        for batch in read {
            let id = u128::from(batch.first.0);
            assert_eq!(archive.get(id).unwrap().as_deref(), Some(&b"row"[..]), "seed {seed}");
            for (digest, bytes) in &leader.blobs[&batch.first.0] {
                assert_eq!(archive.blob(id, digest).unwrap().as_ref(), Some(bytes));
            }
        }
        let rows = archive.scan(None, usize::MAX, usize::MAX).unwrap().rows.len() as u64;
        assert_eq!(archive.count().unwrap(), rows);
        assert_eq!(archive.expire(9, 0, usize::MAX).unwrap() as u64, rows, "its order is there too");
    }
}

#[test]
fn the_seat_of_a_copy_is_nobodys() {
    let folder = tempfile::tempdir().unwrap();
    let (file, new) = (folder.path().join("copy"), folder.path().join("new"));
    let mut leader = Leader::new(&folder.path().join("old"), 1);
    leader.act();
    leader.backup(&file).unwrap();
    restore(&file, &new, OnLoss::Refuse).unwrap();
    let mut copy = EmbeddedLog::open(&new).unwrap();
    let key = BatchKey { term: leader.term, id: BatchId(9), first: Seq(leader.last() + 1) };
    assert!(matches!(copy.append_events(key, &leader.draw.batch(3), &[]), Err(Error::StaleTerm { .. })));
    assert!(copy.seize_seat().unwrap().term > leader.term);
    // And the old log goes on as if nothing had been.
    leader.act();
}

#[test]
fn a_copy_of_a_truncated_log_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let (file, new) = (folder.path().join("copy"), folder.path().join("new"));
    let mut leader = Leader::new(&folder.path().join("old"), 1);
    (0..5).for_each(|_| leader.act());
    leader.snapshot();
    leader.log.truncate(leader.term, 9).unwrap();
    leader.backup(&file).unwrap();
    restore(&file, &new, OnLoss::Refuse).unwrap();
    let mut copy = EmbeddedLog::open(&new).unwrap();
    assert_eq!(copy.tail().unwrap().last, Seq(leader.last()));
    assert_eq!(copy.snapshot().unwrap().unwrap().covers, Seq(leader.last()));
    assert!(copy.read_events(Seq(1), 9).is_err());
}

#[test]
fn nothing_is_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let (file, old, new) = (folder.path().join("copy"), folder.path().join("old"), folder.path().join("new"));
    let mut leader = Leader::new(&old, 1);
    leader.act();
    std::fs::write(&file, "mine").unwrap();
    assert_eq!(leader.backup(&file), Err(Error::Exists { path: file.display().to_string() }));
    assert_eq!(std::fs::read(&file).unwrap(), b"mine");
    std::fs::remove_file(&file).unwrap();
    leader.backup(&file).unwrap();
    let left = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(left.map(|name| name.into_string().unwrap()).all(|name| !name.contains("unfinished")));

    assert!(matches!(restore(&file, &old, OnLoss::Refuse), Err(Error::Locked { .. })), "a node runs there");
    let last = leader.last();
    drop(leader);
    assert!(matches!(restore(&file, &old, OnLoss::Refuse), Err(Error::Occupied { found: "onward.redb", .. })));
    assert_eq!(EmbeddedLog::open(&old).unwrap().tail().unwrap().last.0, last);
    drop(EmbeddedArchive::open(&new).unwrap());
    assert!(matches!(restore(&file, &new, OnLoss::Refuse), Err(Error::Occupied { found: "archive.redb", .. })));
}

/// The second begins, and ends, while the first is in the middle of it.
#[test]
fn two_backups_under_one_name_do_not_share_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let (file, old, new) = (folder.path().join("copy"), folder.path().join("old"), folder.path().join("new"));
    let mut leader = Leader::new(&old, 1);
    (0..10).for_each(|_| leader.act());
    let mut second = None;
    let first = backup(&leader.log, &leader.archive, &[("settings", b"first".to_vec())], &file, |_, _| {
        second.get_or_insert_with(|| leader.backup(&file));
        Continue(())
    })
    .map(drop);
    assert_eq!(second, Some(Ok(())), "it was done first");
    assert_eq!(first, Err(Error::Exists { path: file.display().to_string() }));
    let extras = restore(&file, &new, OnLoss::Refuse).unwrap().extras;
    assert_eq!(extras[1], ("settings".to_owned(), b"x = 1".to_vec()), "all of it is the second's");
    assert_eq!(EmbeddedLog::open(&new).unwrap().tail().unwrap().last.0, leader.last());
    let left = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(left.map(|name| name.into_string().unwrap()).all(|name| !name.contains("unfinished")));
}

#[test]
fn what_is_no_backup_is_said_to_be_what_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let (old, new) = (folder.path().join("old"), folder.path().join("new"));
    let mut leader = Leader::new(&old, 1);
    leader.act();
    drop(leader);
    let (text, empty, other) = (folder.path().join("text"), folder.path().join("empty"), folder.path().join("other"));
    std::fs::write(&text, "a shopping list, and a long one at that. ".repeat(500)).unwrap();
    std::fs::write(&empty, "").unwrap();
    let database = redb::Database::create(&other).unwrap();
    let transaction = database.begin_write().unwrap();
    transaction.open_table(redb::TableDefinition::<u8, u8>::new("shopping")).unwrap();
    transaction.commit().unwrap();
    drop(database);
    for (path, says) in [
        (&old.join("onward.redb"), "the log of a data folder"),
        (&old.join("archive.redb"), "the archive of a data folder"),
        (&text, "some other kind"),
        (&empty, "empty"),
        (&other, "shopping"),
        (&old, "a folder"),
    ] {
        match restore(path, &new, OnLoss::Refuse) {
            Err(Error::NotABackup { found, .. }) => assert!(found.contains(says), "{found:?} is not {says:?}"),
            other => panic!("{}: {other:?}", path.display()),
        }
        assert!(!new.exists(), "nothing was changed");
    }
    assert!(matches!(restore(&folder.path().join("none"), &new, OnLoss::Refuse), Err(Error::Io { .. })));
}

/// A backup of one batch, changed behind our back.
fn tampered(folder: &Path, change: impl FnOnce(&redb::WriteTransaction)) -> std::path::PathBuf {
    let file = folder.join("copy");
    let mut leader = Leader::new(&folder.join("old"), 1);
    leader.act();
    leader.act();
    leader.backup(&file).unwrap();
    let database = redb::Database::open(&file).unwrap();
    let transaction = database.begin_write().unwrap();
    change(&transaction);
    transaction.commit().unwrap();
    file
}

#[test]
fn newer_formats_are_refused_by_name_in_every_part() {
    for (table, name, known) in
        [("backup", "backup_format", 1), ("log_facts", "format", 3), ("archive_facts", "archive_format", 2)]
    {
        let folder = tempfile::tempdir().unwrap();
        let file = tampered(folder.path(), |transaction| {
            let facts = redb::TableDefinition::<&str, u64>::new(table);
            transaction.open_table(facts).unwrap().insert(name, known + 1).unwrap();
        });
        let known = known as u8;
        let new = folder.path().join("new");
        assert_eq!(
            restore(&file, &new, OnLoss::Refuse),
            Err(Error::NewerFormat { found: known + 1, known }),
            "{table}"
        );
        assert!(!new.exists(), "nothing was changed");
    }
}

#[test]
fn a_damaged_backup_is_refused_and_leaves_nothing_behind() {
    const BATCHES: redb::TableDefinition<'_, u64, &[u8]> = redb::TableDefinition::new("log_batches");
    const JOBS: redb::TableDefinition<'_, u128, (u64, u64, &[u8])> = redb::TableDefinition::new("archive_jobs");
    let changes: [fn(&redb::WriteTransaction); 3] = [
        |transaction| drop(transaction.open_table(BATCHES).unwrap().pop_first().unwrap()),
        |transaction| drop(transaction.open_table(BATCHES).unwrap().insert(1, &[1, 2, 3, 4, 5, 6][..]).unwrap()),
        |transaction| drop(transaction.open_table(JOBS).unwrap().pop_last().unwrap()),
    ];
    for change in changes {
        let folder = tempfile::tempdir().unwrap();
        let file = tampered(folder.path(), change);
        let new = folder.path().join("new");
        assert!(matches!(restore(&file, &new, OnLoss::Refuse), Err(Error::Corrupt { .. })));
        assert_eq!(EmbeddedLog::open(&new).unwrap().tail().unwrap().last, Seq(0), "an empty folder as before");
    }
}

/// Content of three pieces.
static CONTENT: [u8; 70_000] = [7; 70_000];

#[test]
fn damaged_content_is_refused_with_its_jobs_and_a_loss_can_be_accepted() {
    type LogPieces = redb::TableDefinition<'static, (&'static [u8; 32], u32), &'static [u8]>;
    type JobPieces = redb::TableDefinition<'static, (u128, &'static [u8; 32], u32), &'static [u8]>;
    const LOG_PIECES: LogPieces = redb::TableDefinition::new("log_blob_pieces");
    const JOB_PIECES: JobPieces = redb::TableDefinition::new("archive_job_blob_pieces");
    const LABELS: redb::TableDefinition<'_, &[u8; 32], (u64, u32)> = redb::TableDefinition::new("log_blobs");
    let job = JobId::from_u128(1);
    let digest = payload::Digest::of(&CONTENT).0;
    // A flipped byte in the log, and in the archive; pieces that are missing; another label.
    let changes: [fn(&redb::WriteTransaction, &[u8; 32]); 4] = [
        |transaction, digest| {
            let mut flipped = CONTENT[..65_440].to_vec();
            flipped[3_000] ^= 4;
            transaction.open_table(LOG_PIECES).unwrap().insert((digest, 1), &flipped[..]).unwrap();
        },
        |transaction, digest| {
            let mut flipped = CONTENT[..65_440].to_vec();
            flipped[0] ^= 1;
            transaction.open_table(JOB_PIECES).unwrap().insert((1, digest, 1), &flipped[..]).unwrap();
        },
        |transaction, _| {
            transaction.open_table(LOG_PIECES).unwrap().retain(|_, _| false).unwrap();
            // As many rows as there were.
            let mut pieces = transaction.open_table(LOG_PIECES).unwrap();
            (1..=3).for_each(|n| drop(pieces.insert((&[9; 32], n), &b"x"[..]).unwrap()));
        },
        |transaction, digest| drop(transaction.open_table(LABELS).unwrap().insert(digest, (5, 5)).unwrap()),
    ];
    for (n, change) in changes.into_iter().enumerate() {
        let folder = tempfile::tempdir().unwrap();
        let (file, new) = (folder.path().join("copy"), folder.path().join("new"));
        let old = folder.path().join("old");
        let (mut log, archive) = (EmbeddedLog::open(&old).unwrap(), EmbeddedArchive::open(&old).unwrap());
        let term = log.seize_seat().unwrap().term;
        let draft = Draft::of_kind("k", Payload::stored(payload::Digest(digest), CONTENT.len() as u32));
        let spec = check(draft, &Limits::default(), &JobDefaults::default()).unwrap();
        let submitted = JobSubmitted {
            id: job,
            spec: spec.into(),
            fingerprint: None,
            retry_of: None,
            taken_over: Default::default(),
            scheduled: None,
            gate: None,
        };
        let event = StampedEvent { at: Wall::from_ms(1), event: Event::JobSubmitted(submitted) };
        let blobs = [Blob { digest, bytes: &CONTENT }];
        archive.put(&[ArchivedJob { id: 1, ended_at_ms: 1, expires_at_ms: None, row: b"row", blobs: &blobs }]).unwrap();
        log.append_events(BatchKey { term, id: BatchId(1), first: Seq(1) }, &[event], &blobs).unwrap();
        assert!(backup(&log, &archive, &[], &file, |_, _| Continue(())).unwrap().is_none());
        let database = redb::Database::open(&file).unwrap();
        let transaction = database.begin_write().unwrap();
        change(&transaction, &digest);
        transaction.commit().unwrap();
        drop(database);

        let refused = restore(&file, &new, OnLoss::Refuse).unwrap_err();
        assert!(
            matches!(&refused, Error::DamagedBackup { damage, .. } if damage.jobs.contains(&job)),
            "{n}: {refused}"
        );
        assert!(refused.to_string().contains(&job.to_string()), "{refused}");
        assert_eq!(EmbeddedLog::open(&new).unwrap().tail().unwrap().last, Seq(0), "an empty folder as before");
        let other = folder.path().join("other");
        let restored = restore(&file, &other, OnLoss::Accept).unwrap();
        assert!(restored.damage.jobs.contains(&job));
        assert_eq!(EmbeddedLog::open(&other).unwrap().tail().unwrap().last, Seq(1), "the rest is there");
    }
}

#[test]
fn a_restore_that_did_not_finish_opens_as_nothing_and_can_be_done_again() {
    let folder = tempfile::tempdir().unwrap();
    let (file, new) = (folder.path().join("copy"), folder.path().join("new"));
    let mut leader = Leader::new(&folder.path().join("old"), 1);
    leader.act();
    leader.backup(&file).unwrap();
    // As a crash leaves it: the archive is there, the log is not.
    restore(&file, &new, OnLoss::Refuse).unwrap();
    std::fs::write(new.join("restoring"), "").unwrap();
    std::fs::rename(new.join("onward.redb"), new.join("onward.redb.new")).unwrap();
    let half = Error::HalfRestored { folder: new.display().to_string() };
    assert_eq!(EmbeddedLog::open(&new).unwrap_err(), half);
    assert_eq!(EmbeddedArchive::open(&new).unwrap_err(), half);
    restore(&file, &new, OnLoss::Refuse).unwrap();
    assert_eq!(EmbeddedLog::open(&new).unwrap().tail().unwrap().last, Seq(leader.last()));
    assert_eq!(EmbeddedArchive::open(&new).unwrap().count().unwrap(), 1);
}
