//! The data folder: one process at a time, and files that are either whole or not there.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use ::redb::Database;
use ::redb::backends::FileBackend;

use crate::{Error, changes};

use super::fault::found_while_open;
use super::store::Open;
use super::unsynced::UnsyncedRanges;

/// The names of one of our files, and of the lock that guards its making.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Names {
    pub(crate) file: &'static str,
    pub(crate) unfinished: &'static str,
    lock: &'static str,
}

pub(crate) const LOG: Names = Names { file: "onward.redb", unfinished: "onward.redb.new", lock: "onward.lock" };
pub(crate) const ARCHIVE: Names = Names { file: "archive.redb", unfinished: "archive.redb.new", lock: "archive.lock" };

/// The file that marks a folder which is being restored. While it is there, no other file is to be believed.
pub(crate) const RESTORING: &str = "restoring";

impl Names {
    /// Locks the folder, and makes the file if there is none. It is made under another name and renamed, so that a
    /// crash in between leaves nothing that looks finished.
    pub(crate) fn prepare(&self, folder: &Path, cache_bytes: usize) -> Result<(File, Open), Error> {
        let lock = self.lock(folder)?;
        let about = |error| about(folder, &error);
        if folder.join(RESTORING).try_exists().map_err(about)? {
            return Err(Error::HalfRestored { folder: folder.display().to_string() });
        }
        let file = folder.join(self.file);
        if !file.try_exists().map_err(about)? {
            let unfinished = folder.join(self.unfinished);
            changes::remove_if_there(&unfinished).map_err(about)?;
            changes::make_private(&unfinished).map_err(about)?;
            let made = Database::create(&unfinished);
            drop(made.map_err(|error| found_while_open(error, &folder.display().to_string()))?);
            changes::rename(&unfinished, &file).map_err(about)?;
            changes::sync(folder).map_err(about)?;
        }
        Ok((lock, opening(file, folder.display().to_string(), cache_bytes)))
    }

    /// Locks the folder for one process at a time. Makes it if there is none.
    pub(crate) fn lock(&self, folder: &Path) -> Result<File, Error> {
        let about = |error| about(folder, &error);
        make_folder(folder)?;
        let path = folder.join(self.lock);
        let lock = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path).map_err(about)?;
        match lock.try_lock() {
            Ok(()) => Ok(lock),
            Err(TryLockError::WouldBlock) => Err(Error::Locked { folder: folder.display().to_string() }),
            Err(TryLockError::Error(error)) => Err(about(error)),
        }
    }
}

/// Makes a data folder, for its owner only, if there is none.
pub fn make_folder(folder: &Path) -> Result<(), Error> {
    if folder.is_dir() {
        return Ok(());
    }
    let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.and_then(|()| changes::sync(parent(folder))).map_err(|error| about(folder, &error))
}

fn opening(file: PathBuf, place: String, cache_bytes: usize) -> Open {
    let (unsynced, mut is_first) = (UnsyncedRanges::default(), true);
    Box::new(move || {
        let about = |error| about(&file, &error);
        let opened = OpenOptions::new().read(true).write(true).open(&file).map_err(about)?;
        if is_first {
            forget_cache(&opened).map_err(about)?;
            is_first = false;
        }
        if opened.metadata().map_err(about)?.len() == 0 {
            // redb would take it for a new one.
            return Err(Error::Corrupt { what: format!("{} is empty", file.display()) });
        }
        let again = opened.try_clone().map_err(about)?;
        let storage = FileBackend::new(opened).map_err(|error| found_while_open(error, &place))?;
        let storage = unsynced.on(storage, || forget_cache(&again)).map_err(about)?;
        // Before redb locks the file: closing a handle may end the locks of others.
        drop(again);
        let opened = Database::builder().set_cache_size(cache_bytes).create_with_backend(storage);
        opened.map_err(|error| found_while_open(error, &place))
    })
}

/// Has the file read from the disk from now on: a sync of an earlier process may have failed, and what it could not
/// write the system goes on showing. What is merely on its way stays.
fn forget_cache(file: &File) -> io::Result<()> {
    file.sync_data()?;
    Ok(rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed)?)
}

/// A failure outside of redb, and where.
pub(crate) fn about(place: &Path, error: &io::Error) -> Error {
    let cause = format!("{}: {error}", place.display());
    if super::fault::is_full(error.kind()) { Error::Full { cause } } else { Error::Io { cause } }
}

pub(crate) fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
