use core::ops::ControlFlow::Continue;

use onward_core::event::{Event, StampedEvent};
use onward_core::ids::Seq;
use onward_core::time::Wall;

use crate::{Archive, ArchivedJob, BatchId, BatchKey, EmbeddedArchive, EventLog, Log};

use super::*;

/// A job is copied to the archive, and only then does the log say that it moved. Here both happen while a backup
/// is made, at the worst moment.
#[test]
fn a_job_that_moves_meanwhile_is_never_in_neither() {
    let folder = tempfile::tempdir().unwrap();
    let mut log = EmbeddedLog::open(folder.path().join("old")).unwrap();
    let archive = EmbeddedArchive::open(folder.path().join("old")).unwrap();
    let term = log.seize_seat().unwrap().term;
    let moved = [StampedEvent { at: Wall::from_ms(1), event: Event::TermBegan { term } }];
    let (file, new) = (folder.path().join("copy"), folder.path().join("new"));
    let same = (log.clone(), archive.clone());
    let between = || {
        archive.put(&[ArchivedJob { id: 1, ended_at_ms: 1, expires_at_ms: None, row: b"", blobs: &[] }]).unwrap();
        log.append_events(BatchKey { term, id: BatchId(1), first: Seq(1) }, &moved, &[]).unwrap();
    };
    backup_and(&same.0, &same.1, &[], &file, |_, _| Continue(()), between).unwrap();
    restore(&file, &new, OnLoss::Refuse).unwrap();
    let says_moved = EmbeddedLog::open(&new).unwrap().tail().unwrap().last > Seq(0);
    let is_archived = EmbeddedArchive::open(&new).unwrap().get(1).unwrap().is_some();
    assert_eq!((says_moved, is_archived), (false, true), "in the log as before, and in the archive");
}
