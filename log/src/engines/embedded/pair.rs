//! Log and archive of one data folder, opened together: where one is gone, the other tells.
//!
//! In a new folder the log is made first, and the archive before the log has its first event. So a log with events has an
//! archive beside it, and an archive has a log, also after a crash at any time; else somebody or something has taken one
//! away. An empty one in its place would look as if there had been nothing.

use std::path::Path;

use crate::{EmbeddedArchive, EmbeddedLog, Error, OnLoss};
use onward_core::ids::Seq;

use super::folder::{ARCHIVE, LOG, RESTORING, about};
use super::journal::NAME;
use crate::Log as _;

/// Both parts of a store.
#[derive(Debug)]
pub struct OpenedPair {
    pub log: EmbeddedLog,
    pub archive: EmbeddedArchive,
    /// The part that was gone, and what is lost with it, if that was accepted. There is an empty one in its place.
    pub accepted_absence: Option<&'static str>,
}

const NO_ARCHIVE: &str = "archive.redb is gone, and with it all jobs that had ended and were archived";
const NO_LOG: &str = "onward.redb and onward.journal are gone, though archive.redb is there, and with them all jobs that \
                      were not archived";

impl OpenedPair {
    /// Opens both, or makes both in a folder that has neither.
    pub fn open(folder: &Path, on_loss: OnLoss) -> Result<Self, Error> {
        let is_there = |name: &str| folder.join(name).try_exists().map_err(|error| about(folder, &error));
        let had_archive = is_there(ARCHIVE.file)?;
        let is_log_gone = had_archive && !is_there(LOG.file)? && !is_there(NAME)?;
        let mut absence = None;
        // What a restore has left is not to be believed, which opening it says.
        if is_log_gone && !is_there(RESTORING)? {
            absence = Some(NO_LOG);
        }
        refuse(absence, on_loss)?;
        let mut log = EmbeddedLog::open_or(folder, on_loss)?;
        if !had_archive && log.tail()?.last > Seq(0) {
            absence = Some(NO_ARCHIVE);
        }
        refuse(absence, on_loss)?;
        let archive = EmbeddedArchive::open(folder)?;
        Ok(Self { log, archive, accepted_absence: absence })
    }
}

fn refuse(absence: Option<&'static str>, on_loss: OnLoss) -> Result<(), Error> {
    match absence {
        Some(what) if on_loss == OnLoss::Refuse => Err(Error::Gone { what }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use onward_core::fence::Term;
    use tempfile::{TempDir, tempdir};

    use super::*;
    use crate::engines::embedded::journal;
    use crate::{BatchId, BatchKey, LogRow};

    /// A folder with one event, if so.
    fn used(has_event: bool) -> TempDir {
        let folder = tempdir().unwrap();
        let OpenedPair { mut log, .. } = OpenedPair::open(folder.path(), OnLoss::Refuse).unwrap();
        let term = log.take_seat(Term::default()).unwrap().term;
        if has_event {
            log.append(BatchKey { term, first: Seq(1), id: BatchId(1) }, LogRow { count: 1, body: b"x" }, &[]).unwrap();
        }
        folder
    }

    fn gone(folder: &TempDir) -> Option<&'static str> {
        match OpenedPair::open(folder.path(), OnLoss::Refuse) {
            Ok(pair) => {
                assert_eq!(pair.accepted_absence, None);
                None
            }
            Err(Error::Gone { what }) => Some(what),
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn a_part_that_is_gone_is_missed_where_there_was_something() {
        const PARTS: [&str; 3] = [LOG.file, journal::NAME, ARCHIVE.file];
        for (has_event, removed, expected) in [
            (true, &PARTS[2..], Some(NO_ARCHIVE)),
            (true, &PARTS[..2], Some(NO_LOG)),
            // An archive is made after the log, so there was one.
            (false, &PARTS[..2], Some(NO_LOG)),
            // A first start that was killed between the two.
            (false, &PARTS[2..], None),
            (true, &PARTS[..0], None),
            (true, &PARTS[..], None),
        ] {
            let folder = used(has_event);
            for name in removed {
                fs::remove_file(folder.path().join(name)).unwrap();
            }
            assert_eq!(gone(&folder), expected, "{has_event}, without {removed:?}");
            assert_eq!(gone(&folder), expected, "refusing has made nothing");
            if expected.is_none() {
                continue;
            }
            let accepted = OpenedPair::open(folder.path(), OnLoss::Accept).unwrap();
            assert_eq!(accepted.accepted_absence, expected);
            drop(accepted);
            assert_eq!(gone(&folder), None, "it was accepted once");
        }
    }

    #[test]
    fn a_journal_whose_log_is_gone_is_not_called_gone_with_it() {
        for on_loss in [OnLoss::Refuse, OnLoss::Accept] {
            let folder = used(true);
            fs::remove_file(folder.path().join(LOG.file)).unwrap();
            let opened = OpenedPair::open(folder.path(), on_loss);
            assert!(matches!(opened, Err(Error::Corrupt { .. })), "{on_loss:?}: {opened:?}");
            assert!(folder.path().join(journal::NAME).exists(), "{on_loss:?}");
        }
    }

    #[test]
    fn a_restore_that_did_not_finish_is_called_that() {
        let folder = used(true);
        fs::remove_file(folder.path().join(LOG.file)).unwrap();
        fs::remove_file(folder.path().join(journal::NAME)).unwrap();
        fs::write(folder.path().join(RESTORING), "").unwrap();
        assert!(matches!(OpenedPair::open(folder.path(), OnLoss::Accept), Err(Error::HalfRestored { .. })));
    }
}
