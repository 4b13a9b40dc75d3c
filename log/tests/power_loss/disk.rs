//! A disk that keeps its word about syncs and gives none about anything else.
//!
//! What was written and not synced is, after a power loss, there or not: any subset of the sectors of any of the
//! writes, in whatever order they were made, and the file as long as at the last sync or as at any point since.

use std::io::{self, ErrorKind};
use std::sync::{Arc, Mutex, MutexGuard};

use redb::StorageBackend;

use crate::samples::Draw;

/// What a disk writes whole or not at all.
const SECTOR: usize = 512;

/// Clones are the same disk.
#[derive(Clone, Debug)]
pub struct Disk(Arc<Mutex<Platter>>);

#[derive(Debug, Default)]
struct Platter {
    /// As a program sees it.
    seen: Vec<u8>,
    /// As it is for sure.
    synced: Vec<u8>,
    unsynced: Vec<Op>,
    /// Writes, changes of length and syncs so far.
    ops: u64,
    trouble: Option<Trouble>,
    is_off: bool,
    lies: bool,
}

#[derive(Debug)]
enum Op {
    Write { at: usize, data: Vec<u8> },
    Length(usize),
}

/// What will go wrong, and when.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trouble {
    /// Power is lost during the operation with this number.
    CutAt(u64),
    /// That operation fails; those after it do not.
    FailAt(u64),
    /// All operations from that one on fail.
    FailFrom(u64),
    /// The file cannot grow beyond this.
    FullAbove(usize),
}

impl Disk {
    pub fn new() -> Self {
        Self(Arc::new(Mutex::new(Platter::default())))
    }

    fn platter(&self) -> MutexGuard<'_, Platter> {
        self.0.lock().unwrap()
    }

    pub fn ops(&self) -> u64 {
        self.platter().ops
    }

    pub fn size(&self) -> usize {
        self.platter().seen.len()
    }

    pub fn set_trouble(&self, trouble: Option<Trouble>) {
        self.platter().trouble = trouble;
    }

    pub fn trouble(&self) -> Option<Trouble> {
        self.platter().trouble
    }

    pub fn is_off(&self) -> bool {
        self.platter().is_off
    }

    /// From now on a sync is answered and not done.
    pub fn lie(&self) {
        self.platter().lies = true;
    }

    /// Power is lost, if it was not before, and comes back.
    pub fn lose_power(&self, draw: &mut Draw) {
        let mut platter = self.platter();
        let mut lengths = vec![platter.synced.len()];
        // Whether most, few, or half of what was in flight arrived.
        let arrives = [1, 8, 15][draw.below(3) as usize];
        for op in core::mem::take(&mut platter.unsynced) {
            match op {
                Op::Length(length) => lengths.push(length),
                Op::Write { at, data } => {
                    let mut from = 0;
                    while from < data.len() {
                        let to = data.len().min(from + SECTOR - (at + from) % SECTOR);
                        if draw.below(16) < arrives {
                            put(&mut platter.synced, at + from, &data[from..to]);
                        }
                        from = to;
                    }
                }
            }
        }
        let length = lengths[draw.below(lengths.len() as u64) as usize];
        platter.synced.resize(length, 0);
        platter.seen = platter.synced.clone();
        platter.is_off = false;
        platter.trouble = None;
    }
}

fn put(file: &mut Vec<u8>, at: usize, data: &[u8]) {
    if file.len() < at + data.len() {
        file.resize(at + data.len(), 0);
    }
    file[at..at + data.len()].copy_from_slice(data);
}

fn failed(kind: ErrorKind) -> io::Error {
    io::Error::new(kind, "a simulated disk")
}

impl Platter {
    fn check_power(&self) -> io::Result<()> {
        if self.is_off { Err(failed(ErrorKind::BrokenPipe)) } else { Ok(()) }
    }

    /// Counts an operation. `unsynced` is what it leaves on its way to the disk, even if power is lost meanwhile.
    fn begin(&mut self, unsynced: Option<Op>) -> io::Result<()> {
        self.check_power()?;
        self.ops += 1;
        match self.trouble {
            Some(Trouble::CutAt(at)) if self.ops >= at => self.is_off = true,
            Some(Trouble::FailAt(at)) if self.ops == at => return Err(failed(ErrorKind::Other)),
            Some(Trouble::FailFrom(at)) if self.ops >= at => return Err(failed(ErrorKind::Other)),
            Some(Trouble::FullAbove(most)) => {
                if let Some(Op::Length(length)) = unsynced
                    && length > most
                {
                    return Err(failed(ErrorKind::StorageFull));
                }
            }
            _ => {}
        }
        self.unsynced.extend(unsynced);
        self.check_power()
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        let platter = self.platter();
        platter.check_power()?;
        Ok(platter.seen.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let platter = self.platter();
        platter.check_power()?;
        let from = offset as usize;
        let bytes = platter.seen.get(from..from + out.len()).ok_or_else(|| failed(ErrorKind::UnexpectedEof))?;
        out.copy_from_slice(bytes);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut platter = self.platter();
        platter.begin(Some(Op::Length(len as usize)))?;
        platter.seen.resize(len as usize, 0);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut platter = self.platter();
        platter.begin(None)?;
        if platter.lies {
            return Ok(());
        }
        for op in core::mem::take(&mut platter.unsynced) {
            match op {
                Op::Length(length) => platter.synced.resize(length, 0),
                Op::Write { at, data } => put(&mut platter.synced, at, &data),
            }
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut platter = self.platter();
        platter.begin(Some(Op::Write { at: offset as usize, data: data.to_vec() }))?;
        put(&mut platter.seen, offset as usize, data);
        Ok(())
    }
}
