//! The journal as a file. The folder's lock keeps other processes out, so the file needs none of its own.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use ::redb::StorageBackend;

use crate::changes;

pub(crate) const NAME: &str = "onward.journal";

#[derive(Debug)]
pub(crate) struct JournalFile(File);

impl JournalFile {
    /// Opens it, or makes an empty one: whether it should have been there is for the log to say.
    pub(crate) fn open(folder: &Path) -> io::Result<Self> {
        let path = folder.join(NAME);
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
        // Also if it was there: whoever made it may have come to an end before this.
        changes::sync(folder)?;
        Ok(Self(file))
    }
}

impl StorageBackend for JournalFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(out, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write_all_at(data, offset)
    }
}
