//! Files in memory that outlive the log on them.

use std::io;
use std::sync::Arc;

use onward_log::{EmbeddedLog, OnLoss};
use redb::StorageBackend;
use redb::backends::InMemoryBackend;

#[derive(Clone, Debug)]
struct SharedDisk(Arc<InMemoryBackend>);

impl StorageBackend for SharedDisk {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read(offset, out)
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write(offset, data)
    }
}

/// Two files in memory, and how a log on them is opened.
pub fn in_memory(half_bytes: u64) -> impl Fn() -> EmbeddedLog + use<> {
    let files = [(); 2].map(|()| SharedDisk(Arc::new(InMemoryBackend::new())));
    move || {
        let [redb, journal] = files.clone();
        EmbeddedLog::on_storage(move || Ok(redb.clone()), move || Ok(journal.clone()), half_bytes, OnLoss::Refuse)
            .unwrap()
    }
}
