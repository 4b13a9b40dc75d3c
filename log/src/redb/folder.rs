//! The data folder: one process at a time, and files that are either whole or not there.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use ::redb::Database;

use crate::{Error, changes};

use super::fault::found_while_open;
use super::store::Open;

/// What one of our files is called, and the lock that guards its making.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Names {
    pub(crate) file: &'static str,
    pub(crate) unfinished: &'static str,
    lock: &'static str,
}

pub(crate) const LOG: Names = Names { file: "onward.redb", unfinished: "onward.redb.new", lock: "onward.lock" };
pub(crate) const ARCHIVE: Names = Names { file: "archive.redb", unfinished: "archive.redb.new", lock: "archive.lock" };

/// In a folder that is being restored. While it is there, what else is there is not to be believed.
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

    /// One process at a time. Makes the folder if there is none.
    pub(crate) fn lock(&self, folder: &Path) -> Result<File, Error> {
        let about = |error| about(folder, &error);
        if !folder.is_dir() {
            DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(about)?;
            changes::sync(parent(folder)).map_err(about)?;
        }
        let path = folder.join(self.lock);
        let lock = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path).map_err(about)?;
        match lock.try_lock() {
            Ok(()) => Ok(lock),
            Err(TryLockError::WouldBlock) => Err(Error::Locked { folder: folder.display().to_string() }),
            Err(TryLockError::Error(error)) => Err(about(error)),
        }
    }
}

fn opening(file: PathBuf, place: String, cache_bytes: usize) -> Open {
    Box::new(move || {
        forget_cache(&file).map_err(|error| about(&file, &error))?;
        let opened = Database::builder().set_cache_size(cache_bytes).open(&file);
        opened.map_err(|error| found_while_open(error, &place))
    })
}

/// Has the file read from the disk from now on. What a failed sync could not write the system goes on showing, and the
/// next sync is answered well without it: whoever believed that would lose it, and what was built on it, with the power.
fn forget_cache(path: &Path) -> io::Result<()> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    // What is merely on its way stays.
    file.sync_data()?;
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
    Ok(())
}

/// A failure outside of redb, and where.
pub(crate) fn about(place: &Path, error: &io::Error) -> Error {
    let cause = format!("{}: {error}", place.display());
    if super::fault::is_full(error.kind()) { Error::Full { cause } } else { Error::Io { cause } }
}

pub(crate) fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
