//! Each change to files and folders fails in turn, while a log and an archive are made, backed up and restored: what is
//! said to be done is, and what failed can be done again.

use core::cell::Cell;
use core::ops::ControlFlow::Continue;
use std::time::SystemTime;

use onward_core::event::{Event, StampedEvent};
use onward_core::ids::Seq;
use onward_core::time::Wall;

use crate::changes::faults;
use crate::{Archive, ArchivedJob, BatchId, BatchKey, EmbeddedArchive, EventLog, Log};

use super::*;

const JOB: ArchivedJob<'_> = ArchivedJob { id: 7, ended_at_ms: 1, expires_at_ms: None, row: b"row", blobs: &[] };

fn filled(folder: &Path) -> Result<(EmbeddedLog, EmbeddedArchive), Error> {
    let (mut log, archive) = (EmbeddedLog::open(folder)?, EmbeddedArchive::open(folder)?);
    if log.tail()?.last == Seq(0) {
        let term = log.seize_seat()?.term;
        let events = [StampedEvent { at: Wall::from_ms(1), event: Event::TermBegan { term } }];
        log.append_events(BatchKey { term, id: BatchId(1), first: Seq(1) }, &events, &[])?;
    }
    archive.put(&[JOB])?;
    Ok((log, archive))
}

fn is_whole(folder: &Path) -> bool {
    let last = EmbeddedLog::open(folder).unwrap().tail().unwrap().last;
    last == Seq(1) && EmbeddedArchive::open(folder).unwrap().get(JOB.id).unwrap().as_deref() == Some(JOB.row)
}

#[test]
fn whichever_change_fails_a_data_folder_is_made_at_the_next_try() {
    faults::each(|fault| {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        let made = filled(&data).map(drop);
        faults::heal();
        assert!(made.is_ok() || filled(&data).is_ok(), "{fault:?}");
        assert!(is_whole(&data), "{fault:?}");
    });
}

/// After a loss of power, a file is not there whose name was not durable.
#[test]
fn a_file_is_not_made_before_its_name_is_durable() {
    let is_refused = Cell::new(false);
    faults::each(|fault| {
        let folder = tempfile::tempdir().unwrap();
        let made = EmbeddedArchive::open(folder.path());
        faults::heal();
        let has_name = folder.path().join("archive.redb").exists();
        assert!(made.is_err() || has_name, "{fault:?}");
        is_refused.set(is_refused.get() || (made.is_err() && has_name));
    });
    assert!(is_refused.get(), "that its name could not be made durable was not noticed");
}

#[test]
fn whichever_change_fails_a_backup_is_whole_or_not_there() {
    let folder = tempfile::tempdir().unwrap();
    let (log, archive) = filled(&folder.path().join("data")).unwrap();
    faults::each(|fault| {
        let folder = tempfile::tempdir().unwrap();
        let (file, new) = (folder.path().join("copy"), folder.path().join("new"));
        let made = backup(&log, &archive, &[], &file, |_, _| Continue(()));
        faults::heal();
        // That it is durable could not be said, and it is there all the same.
        let is_unsure = matches!(made, Err(Error::Unknown { .. }));
        assert_eq!(file.exists(), made.is_ok() || is_unsure, "{fault:?}: {made:?}");
        if !file.exists() {
            backup(&log, &archive, &[], &file, |_, _| Continue(()))
                .unwrap_or_else(|error| panic!("{fault:?}: {error}"));
        }
        restore(&file, &new, OnLoss::Refuse).unwrap_or_else(|error| panic!("{fault:?}: {error}"));
        assert!(is_whole(&new), "{fault:?}");
    });
}

#[test]
fn whichever_change_fails_a_restore_is_done_at_the_next_try() {
    let folder = tempfile::tempdir().unwrap();
    let (log, archive) = filled(&folder.path().join("data")).unwrap();
    let file = folder.path().join("copy");
    backup(&log, &archive, &[], &file, |_, _| Continue(())).unwrap();
    faults::each(|fault| {
        let folder = tempfile::tempdir().unwrap();
        let new = folder.path().join("new");
        let restored = restore(&file, &new, OnLoss::Refuse);
        faults::heal();
        match restored {
            Ok(_) => {}
            // It could not be said that it is durable.
            Err(Error::Unknown { .. }) if !new.join(RESTORING).exists() => {}
            Err(_) => {
                assert!(
                    !new.join(LOG.file).exists() || EmbeddedLog::open(&new).is_err(),
                    "{fault:?}: half of it opens"
                );
                restore(&file, &new, OnLoss::Refuse).unwrap_or_else(|error| panic!("{fault:?}: {error}"));
            }
        }
        assert!(is_whole(&new), "{fault:?}");
    });
}

#[test]
fn what_a_crash_left_of_a_backup_goes_with_the_next_one_and_nothing_else_does() {
    let folder = tempfile::tempdir().unwrap();
    let (log, archive) = filled(&folder.path().join("data")).unwrap();
    let long_ago = SystemTime::now() - 2 * LEFT_BEHIND_AFTER;
    let put = |name: &str, content: &[u8], at: SystemTime| {
        let path = folder.path().join(name);
        fs::write(&path, content).unwrap();
        File::options().write(true).open(&path).unwrap().set_modified(at).unwrap();
        path
    };
    let left = ["a.0123456789abcdef.unfinished", "b.c.00000000000000ff.unfinished"];
    let left = [put(left[0], b"redb and so on", long_ago), put(left[1], b"", long_ago)];
    let in_use = put("d.0123456789abcdef.unfinished", b"redb", long_ago);
    let others = [
        put("e.0123456789abcdef.unfinished", b"redb", SystemTime::now()),
        put("f.0123456789abcdef.unfinished", b"a letter", long_ago),
        put("g.unfinished", b"redb", long_ago),
        put("h.0123456789abcdef", b"redb", long_ago),
    ];
    let lock = File::open(&in_use).unwrap();
    lock.lock().unwrap();
    backup(&log, &archive, &[], &folder.path().join("copy"), |_, _| Continue(())).unwrap();
    assert!(left.iter().all(|path| !path.exists()));
    assert!(in_use.exists() && others.iter().all(|path| path.exists()));
}
