//! Writes that no sync has brought to the disk yet.
//!
//! After a sync that failed, Linux takes what it could not write for written: it goes on showing it, and the next sync
//! says that all is well. Whoever believed that would lose it, and all that was built on it, with the power. So it is
//! remembered what each sync was to store, and after one that failed all of that is written again, and synced, before
//! the file is used again.

use core::ops::Bound;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use ::redb::{BackendError, StorageBackend};

/// Unsynced writes of one file, however often it is opened. Clones are the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct UnsyncedRanges(Arc<Mutex<Writes>>);

#[derive(Debug, Default)]
struct Writes {
    /// Ranges of bytes by their beginning, without overlaps.
    ranges: BTreeMap<u64, u64>,
    /// A sync failed, and was not made up for.
    is_in_doubt: bool,
}

impl Writes {
    fn add(&mut self, mut begin: u64, mut end: u64) {
        if let Some((&before, &until)) = self.ranges.range(..begin).next_back()
            && until >= begin
        {
            (begin, end) = (before, end.max(until));
        }
        while let Some((&next, &until)) = self.ranges.range(begin..).next()
            && next <= end
        {
            self.ranges.remove(&next);
            end = end.max(until);
        }
        self.ranges.insert(begin, end);
    }
}

impl UnsyncedRanges {
    fn writes(&self) -> MutexGuard<'_, Writes> {
        self.0.lock().expect("nothing panics while it holds this")
    }

    /// The file, opened again. If a sync failed before, what it was to store is stored first. In between `forget_cache`
    /// is called: what is written over a page of the cache that could not be written may never reach the disk either.
    pub(crate) fn on<B: StorageBackend>(
        &self,
        storage: B,
        forget_cache: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<TrackedStorage<B>> {
        let tracked = TrackedStorage { storage, unsynced: self.clone() };
        if self.writes().is_in_doubt {
            tracked.write_again(forget_cache)?;
        }
        Ok(tracked)
    }
}

/// Storage that remembers what it has not synced.
#[derive(Debug)]
pub(crate) struct TrackedStorage<B> {
    storage: B,
    unsynced: UnsyncedRanges,
}

impl<B: StorageBackend> TrackedStorage<B> {
    /// All of it is in memory for a moment: no more than the commits wrote that were not synced.
    fn write_again(&self, forget_cache: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let (ranges, len) = (self.unsynced.writes().ranges.clone(), self.storage.len()?);
        let mut kept = Vec::new();
        for (begin, end) in ranges {
            let mut bytes = vec![0; end.min(len).saturating_sub(begin) as usize];
            self.storage.read(begin, &mut bytes)?;
            kept.push((begin, bytes));
        }
        forget_cache()?;
        for (begin, bytes) in kept {
            self.storage.write(begin, &bytes)?;
        }
        self.storage.sync_data()?;
        *self.unsynced.writes() = Writes::default();
        Ok(())
    }
}

impl<B: StorageBackend> StorageBackend for TrackedStorage<B> {
    fn len(&self) -> io::Result<u64> {
        self.storage.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.storage.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.storage.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        let synced = {
            let mut writes = self.unsynced.writes();
            if writes.is_in_doubt {
                return Err(io::Error::other("a sync failed before: the file must be opened anew"));
            }
            core::mem::take(&mut writes.ranges)
        };
        self.storage.sync_data().inspect_err(|_| {
            let mut writes = self.unsynced.writes();
            writes.is_in_doubt = true;
            synced.into_iter().for_each(|(begin, end)| writes.add(begin, end));
        })
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.unsynced.writes().add(offset, offset + data.len() as u64);
        self.storage.write(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        self.storage.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.storage.try_lock_range(start, end)
    }

    fn try_lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.storage.try_lock_shared_range(start, end)
    }

    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.storage.lock_range(start, end)
    }

    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.storage.lock_shared_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.storage.unlock_range(start, end)
    }

    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.storage.query_lock_range(start, end)
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::{AtomicBool, Ordering};

    use ::redb::backends::InMemoryBackend;

    use super::*;

    #[test]
    fn after_a_sync_that_failed_none_succeeds_until_the_file_is_opened_anew() {
        #[derive(Debug)]
        struct Sick(InMemoryBackend, AtomicBool);
        impl StorageBackend for Sick {
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
                if self.1.swap(false, Ordering::Relaxed) { Err(io::Error::other("sick")) } else { Ok(()) }
            }
            fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
                self.0.write(offset, data)
            }
        }

        let unsynced = UnsyncedRanges::default();
        let sick = Sick(InMemoryBackend::new(), AtomicBool::new(true));
        sick.set_len(8).unwrap();
        let file = unsynced.on(sick, || Ok(())).unwrap();
        file.write(0, b"content").unwrap();
        assert!(file.sync_data().is_err());
        assert!(file.sync_data().is_err(), "the page cache takes for written what it could not write");

        let mut cache_is_forgotten = false;
        let file = unsynced.on(file.storage, || {
            cache_is_forgotten = true;
            Ok(())
        });
        assert!(cache_is_forgotten);
        file.unwrap().sync_data().unwrap();
    }

    #[test]
    fn ranges_that_touch_become_one() {
        let mut writes = Writes::default();
        for (begin, end) in [(10, 20), (30, 40), (50, 60), (20, 30), (55, 58), (5, 7), (38, 52)] {
            writes.add(begin, end);
        }
        assert_eq!(writes.ranges.into_iter().collect::<Vec<_>>(), [(5, 7), (10, 60)]);
    }
}
