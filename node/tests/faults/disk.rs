//! A disk in memory whose operations can be made to fail, one of them or all from one on; or to wait.
//!
//! It holds the three files of a node's storage. What was written before an operation that fails stays, and of a write
//! that fails the first sectors may have been written, as on a disk that is full.

use core::pin::pin;
use std::io::{self, ErrorKind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use onward_log::{EmbeddedArchive, EmbeddedLog, Error, OnLoss};
use redb::StorageBackend;
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::waiting::PATIENCE;

/// Small, so that rows move on to redb and halves turn within a few jobs.
const HALF_BYTES: u64 = 16 << 10;
const SECTOR: usize = 512;
/// `EIO`: the standard library has no name for it.
const EIO: i32 = 5;
const ENOSPC: i32 = 28;

/// Clones are the same disk.
#[derive(Clone, Debug, Default)]
pub struct Disk(Arc<SharedDisk>);

#[derive(Debug, Default)]
struct SharedDisk {
    state: Mutex<State>,
    released: Condvar,
    /// Notified after each operation, and when one begins to wait.
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    files: [Vec<u8>; 3],
    /// Writes, changes of length and syncs so far.
    ops: u64,
    fault: Option<Fault>,
    /// The number of operations that the fault has met.
    met: u64,
    /// All files together.
    most_bytes: Option<usize>,
    /// Such operations on this file wait.
    held: Option<(Which, Op)>,
    /// The archive was given another length and not synced since. Until then nobody can read it.
    is_growing: bool,
    /// And one of them does.
    is_waited_for: bool,
    /// Bytes of the archive that were written since its last sync; below, the most that ever were.
    unsynced: usize,
    most_unsynced: usize,
}

impl State {
    fn size(&self) -> usize {
        self.files.iter().map(Vec::len).sum()
    }

    /// Counts a file that cannot grow to this length as a failure.
    fn check_room(&mut self, which: Which, len: usize) -> io::Result<()> {
        let grows_by = len.saturating_sub(self.files[which as usize].len());
        if grows_by > 0 && self.most_bytes.is_some_and(|most| self.size() + grows_by > most) {
            self.met += 1;
            return Err(failed(Kind::Full));
        }
        Ok(())
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Which {
    Log,
    Journal,
    Archive,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// Never fails and is not counted, but may wait.
    Read,
    Write,
    SetLen,
    Sync,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Io,
    Full,
}

/// The operations that fail, and the way in which they do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// The first of them, counted from the beginning of the disk.
    pub from: u64,
    /// Each of those that follow, or one in so many.
    pub every: u64,
    /// The number of matching operations that fail.
    pub times: u64,
    pub kind: Kind,
    /// Only these operations; all if none is named.
    pub op: Option<Op>,
    /// Half of a write that fails is written, in whole sectors.
    pub is_short: bool,
}

impl Disk {
    pub fn log(&self) -> Result<EmbeddedLog, Error> {
        let (log, journal) = (self.clone(), self.clone());
        let log = move || Ok(File(log.clone(), Which::Log));
        EmbeddedLog::on_storage(log, move || Ok(File(journal.clone(), Which::Journal)), HALF_BYTES, OnLoss::Refuse)
    }

    pub fn archive(&self) -> Result<EmbeddedArchive, Error> {
        let disk = self.clone();
        EmbeddedArchive::on_storage(move || Ok(File(disk.clone(), Which::Archive)))
    }

    /// Two databases without tables, as a node makes them under another name before it gives them theirs.
    pub fn formatted() -> Self {
        let disk = Self::default();
        for which in [Which::Log, Which::Archive] {
            drop(redb::Database::builder().create_with_backend(File(disk.clone(), which)).unwrap());
        }
        disk.state().ops = 0;
        disk
    }

    pub fn ops(&self) -> u64 {
        self.state().ops
    }

    /// Breaks the disk from the next operation on.
    pub fn break_with(&self, kind: Kind, op: Option<Op>) {
        let mut state = self.state();
        state.fault = Some(Fault { from: state.ops + 1, every: 1, times: u64::MAX, kind, op, is_short: false });
    }

    pub fn set_fault(&self, fault: Fault) {
        let mut state = self.state();
        (state.fault, state.met) = (Some(fault), 0);
    }

    /// The files cannot grow by more than this, all together.
    pub fn set_room(&self, bytes: usize) {
        let mut state = self.state();
        state.most_bytes = Some(state.size() + bytes);
    }

    /// Nothing fails any more. Says how often something did.
    pub fn heal(&self) -> u64 {
        let mut state = self.state();
        (state.fault, state.most_bytes) = (None, None);
        core::mem::take(&mut state.met)
    }

    /// The archive waits with its next commit until [`Self::release`], and can be read.
    pub fn hold_archive(&self) {
        self.hold(Which::Archive, Op::Sync);
    }

    /// The archive waits until [`Self::release`] when it needs more room, and cannot be read.
    pub fn hold_growing_archive(&self) {
        self.hold(Which::Archive, Op::SetLen);
    }

    fn hold(&self, which: Which, op: Op) {
        let mut state = self.state();
        (state.held, state.is_waited_for) = (Some((which, op)), false);
    }

    /// Waits until an operation waits for [`Self::release`].
    pub async fn until_waited_for(&self) {
        self.until(|state| state.is_waited_for).await;
    }

    /// Waits until there were so many operations since the beginning of the disk.
    pub async fn until_ops(&self, ops: u64) {
        self.until(|state| state.ops >= ops).await;
    }

    async fn until(&self, holds: impl Fn(&State) -> bool) {
        let looking = async {
            loop {
                let mut changed = pin!(self.0.changed.notified());
                changed.as_mut().enable();
                if holds(&self.state()) {
                    return;
                }
                changed.await;
            }
        };
        timeout(PATIENCE, looking).await.expect("somebody uses the disk");
    }

    pub fn release(&self) {
        self.state().held = None;
        self.0.released.notify_all();
    }

    /// Changes every byte of a file that is part of this pattern. Says how often it was there.
    pub fn damage(&self, which: Which, pattern: &[u8]) -> usize {
        let mut state = self.state();
        let (file, mut at, mut found) = (&mut state.files[which as usize], 0, 0);
        while at + pattern.len() <= file.len() {
            if file[at..].starts_with(pattern) {
                file[at..at + pattern.len()].iter_mut().for_each(|byte| *byte ^= 1);
                (at, found) = (at + pattern.len(), found + 1);
            } else {
                at += 1;
            }
        }
        found
    }

    /// The most bytes that the archive ever wrote between two syncs: about the size of its largest commit.
    pub fn largest_archive_commit(&self) -> usize {
        self.state().most_unsynced
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap()
    }

    /// Waits for as long as such operations are held.
    fn wait(&self, which: Which, op: Op) -> MutexGuard<'_, State> {
        let is_held = |state: &mut State| {
            let is_held = state.held == Some((which, op)) && !(op == Op::Sync && state.is_growing);
            if is_held {
                state.is_waited_for = true;
                self.0.changed.notify_waiters();
            }
            is_held
        };
        self.0.released.wait_while(self.state(), is_held).unwrap()
    }

    /// Counts an operation; says how it fails, if it does.
    fn begin(&self, which: Which, op: Op) -> (MutexGuard<'_, State>, Option<Fault>) {
        let mut state = self.wait(which, op);
        state.ops += 1;
        self.0.changed.notify_waiters();
        let fault = state.fault.filter(|fault| {
            let is_due = state.ops >= fault.from && (state.ops - fault.from).is_multiple_of(fault.every);
            is_due && state.met < fault.times && fault.op.is_none_or(|failing| failing == op)
        });
        state.met += u64::from(fault.is_some());
        (state, fault)
    }
}

/// The bytes of a write that get through if it ends after so many: a sector is written as a whole or not at all.
const fn whole_sectors(offset: usize, length: usize) -> usize {
    ((offset + length) / SECTOR * SECTOR).saturating_sub(offset)
}

fn failed(kind: Kind) -> io::Error {
    io::Error::from_raw_os_error(match kind {
        Kind::Io => EIO,
        Kind::Full => ENOSPC,
    })
}

/// One of the files.
#[derive(Debug)]
struct File(Disk, Which);

impl StorageBackend for File {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.state().files[self.1 as usize].len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let (state, from) = (self.0.wait(self.1, Op::Read), offset as usize);
        let bytes = state.files[self.1 as usize].get(from..from + out.len());
        out.copy_from_slice(bytes.ok_or(ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let (mut state, fault) = self.0.begin(self.1, Op::SetLen);
        if let Some(fault) = fault {
            return Err(failed(fault.kind));
        }
        state.check_room(self.1, len as usize)?;
        state.is_growing |= self.1 == Which::Archive;
        state.files[self.1 as usize].resize(len as usize, 0);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let (mut state, fault) = self.0.begin(self.1, Op::Sync);
        if self.1 == Which::Archive {
            (state.unsynced, state.is_growing) = (0, false);
        }
        fault.map_or(Ok(()), |fault| Err(failed(fault.kind)))
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let (mut state, fault) = self.0.begin(self.1, Op::Write);
        let written = match fault {
            None => data.len(),
            Some(fault) if fault.is_short => whole_sectors(offset as usize, data.len() / 2),
            Some(_) => 0,
        };
        state.check_room(self.1, offset as usize + written)?;
        if self.1 == Which::Archive {
            state.unsynced += written;
            state.most_unsynced = state.most_unsynced.max(state.unsynced);
        }
        let (file, from) = (&mut state.files[self.1 as usize], offset as usize);
        if written > 0 && file.len() < from + written {
            file.resize(from + written, 0);
        }
        file[from..from + written].copy_from_slice(&data[..written]);
        fault.map_or(Ok(()), |fault| Err(failed(fault.kind)))
    }
}
