//! The data folder: one process at a time, and a file that is either whole or not there.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use ::redb::Database;

use crate::Error;

use super::fault::found_while_open;

const FILE: &str = "onward.redb";
const UNFINISHED: &str = "onward.redb.new";
const LOCK: &str = "onward.lock";

/// Locks the folder, and makes the file if there is none. It is made under another name and renamed, so that a crash
/// in between leaves nothing that looks like a log.
pub(super) fn prepare(folder: &Path) -> Result<(File, PathBuf), Error> {
    let about = |error: io::Error| Error::Io { cause: format!("{}: {error}", folder.display()) };
    if !folder.is_dir() {
        fs::create_dir_all(folder).map_err(about)?;
        sync_folder(folder.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new(".")))
            .map_err(about)?;
    }
    let lock = OpenOptions::new().create(true).truncate(false).write(true).open(folder.join(LOCK)).map_err(about)?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(Error::Locked { folder: folder.display().to_string() }),
        Err(TryLockError::Error(error)) => return Err(about(error)),
    }
    let file = folder.join(FILE);
    if !file.exists() {
        let unfinished = folder.join(UNFINISHED);
        match fs::remove_file(&unfinished) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(about(error)),
            _ => {}
        }
        let made = Database::create(&unfinished);
        drop(made.map_err(|error| found_while_open(error, &folder.display().to_string()))?);
        fs::rename(&unfinished, &file).map_err(about)?;
        sync_folder(folder).map_err(about)?;
    }
    Ok((lock, file))
}

/// The name of a new file is not durable before its folder is.
fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}
