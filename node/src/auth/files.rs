//! Files that hold secrets: for their owner only, and whole or not there.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use onward_log::changes;

use super::{SecretError, Secrets};

#[derive(Debug, thiserror::Error)]
#[error("{}: {what}", path.display())]
pub struct FileError {
    pub path: PathBuf,
    pub what: String,
}

impl FileError {
    pub(crate) fn new(path: &Path, what: impl ToString) -> Self {
        Self { path: path.to_owned(), what: what.to_string() }
    }
}

/// Writes `content` under another name, syncs it and renames it, so that nobody ever sees half of it.
pub fn write_secret(path: &Path, content: &[u8]) -> Result<(), FileError> {
    let about = |error: io::Error| FileError::new(path, format!("cannot be written: {error}"));
    let unfinished = path.with_added_extension("new");
    // One that was left behind may have other rights.
    match changes::remove_file(&unfinished) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(about(error)),
        _ => {}
    }
    let options = OpenOptions::new().write(true).create_new(true).mode(0o600).clone();
    let mut file = changes::open(&options, &unfinished).map_err(about)?;
    changes::write_all(&mut file, content).and_then(|()| changes::sync_all(&file)).map_err(about)?;
    changes::rename(&unfinished, path).map_err(about)?;
    let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder).and_then(|folder| changes::sync_all(&folder)).map_err(about)
}

/// Keys as files of a folder.
#[derive(Clone, Debug)]
pub struct SecretFolder(pub PathBuf);

impl Secrets for SecretFolder {
    fn key(&self, name: &str) -> Result<[u8; 32], SecretError> {
        Ok(read_or_make_key(&self.0.join(name))?)
    }
}

/// The 32 bytes in `path`, made at random if there is no such file yet.
pub fn read_or_make_key(path: &Path) -> Result<[u8; 32], FileError> {
    match fs::read(path) {
        Ok(bytes) => bytes.try_into().map_err(|bytes: Vec<u8>| {
            let what = format!("holds {} bytes where a key has 32; restore it from a copy, or remove it", bytes.len());
            FileError::new(path, what)
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let key = random_32();
            write_secret(path, &key)?;
            Ok(key)
        }
        Err(error) => Err(FileError::new(path, format!("cannot be read: {error}"))),
    }
}

pub(super) fn random_32() -> [u8; 32] {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).expect("the system has randomness");
    bytes
}
