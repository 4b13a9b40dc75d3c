//! A disk that keeps its word about syncs and gives none about anything else.
//!
//! What was written and not synced is, after a power loss, there or not: any subset of the sectors of any of the
//! writes, or of their bytes if it is told so, in whatever order they were made, and the file as long as at the last sync
//! or as at any point since.
//!
//! It holds two files, redb's and the journal. Power is lost for both at once, and what one of them synced says nothing
//! about the other.

use std::collections::BTreeSet;
use std::io::{self, ErrorKind};
use std::sync::{Arc, Mutex, MutexGuard};

use redb::StorageBackend;

use crate::samples::Draw;

/// The size that most disks write whole or not at all.
const SECTOR: usize = 512;

/// Clones are the same disk. As storage it is its first file, redb's.
#[derive(Clone, Debug)]
pub struct Disk(Arc<Mutex<Platter>>);

/// The second file of a disk.
#[derive(Clone, Debug)]
pub struct JournalOf(pub Disk);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Which {
    Redb,
    Journal,
}

#[derive(Debug, Default)]
struct Platter {
    files: [File; 2],
    /// Writes, changes of length and syncs so far.
    ops: u64,
    trouble: Option<Trouble>,
    is_off: bool,
    tears_anywhere: bool,
}

#[derive(Debug, Default)]
struct File {
    /// Bytes as a program sees them.
    seen: Vec<u8>,
    /// Bytes as they are for sure.
    synced: Vec<u8>,
    unsynced: Vec<Op>,
    lies: bool,
    /// A sync that fails gives up what it was to bring to the disk, and goes on showing it.
    forgets: bool,
    syncs: u64,
    /// Places where writes began.
    written_at: BTreeSet<u64>,
}

#[derive(Debug)]
enum Op {
    Write { at: usize, data: Vec<u8> },
    Length(usize),
}

/// The trouble to come, and when.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trouble {
    /// Power is lost during the operation with this number.
    CutAt(u64),
    /// The operation with this number fails; those after it do not.
    FailAt(u64),
    /// All operations from that one on fail.
    FailFrom(u64),
    /// Both files together cannot grow beyond this.
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
        self.platter().size()
    }

    /// The number of times that a file was synced.
    pub fn syncs(&self, which: Which) -> u64 {
        self.platter().files[which as usize].syncs
    }

    /// The places where writes to the journal began since the last call.
    pub fn take_journal_writes(&self) -> BTreeSet<u64> {
        core::mem::take(&mut self.platter().files[Which::Journal as usize].written_at)
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

    /// Lets syncs of this file be answered and not done from now on.
    pub fn lie(&self, which: Which) {
        self.platter().files[which as usize].lies = true;
    }

    /// Lets a failed sync of this file not be made up for by the next, from now on.
    pub fn forget_failed_syncs(&self, which: Which) {
        self.platter().files[which as usize].forgets = true;
    }

    /// Lets a write that is on its way when power is lost be torn between any two bytes, and not only between
    /// sectors.
    pub fn tear_anywhere(&self) {
        self.platter().tears_anywhere = true;
    }

    /// Forgets the cache: bytes that a failed sync has given up are not seen any more.
    pub fn forget_cache(&self, which: Which) {
        let mut platter = self.platter();
        let file = &mut platter.files[which as usize];
        file.seen = file.synced.clone();
        for op in &file.unsynced {
            match op {
                Op::Length(length) => file.seen.resize(*length, 0),
                Op::Write { at, data } => put(&mut file.seen, *at, data),
            }
        }
    }

    /// Power is lost, if it was not before, and comes back.
    pub fn lose_power(&self, draw: &mut Draw) {
        let mut platter = self.platter();
        // Whether most, few, or half of what was in flight arrived.
        let arrives = [1, 8, 15][draw.below(3) as usize];
        let unit = if platter.tears_anywhere { 1 } else { SECTOR };
        for file in &mut platter.files {
            file.lose_power(draw, arrives, unit);
        }
        platter.is_off = false;
        platter.trouble = None;
    }
}

impl File {
    /// Nothing of the journal arrives, and every other write of redb's.
    fn forget(&mut self, which: Which) {
        for (index, op) in core::mem::take(&mut self.unsynced).into_iter().enumerate() {
            if let Op::Write { at, data } = op
                && which == Which::Redb
                && index % 2 == 1
            {
                put(&mut self.synced, at, &data);
            }
        }
    }

    fn lose_power(&mut self, draw: &mut Draw, arrives: u64, unit: usize) {
        let mut lengths = vec![self.synced.len()];
        for op in core::mem::take(&mut self.unsynced) {
            match op {
                Op::Length(length) => lengths.push(length),
                Op::Write { at, data } => {
                    let mut from = 0;
                    while from < data.len() {
                        let to = data.len().min(from + unit - (at + from) % unit);
                        if draw.below(16) < arrives {
                            put(&mut self.synced, at + from, &data[from..to]);
                        }
                        from = to;
                    }
                }
            }
        }
        let length = lengths[draw.below(lengths.len() as u64) as usize];
        self.synced.resize(length, 0);
        self.seen = self.synced.clone();
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

    fn size(&self) -> usize {
        self.files.iter().map(|file| file.seen.len()).sum()
    }

    /// Counts an operation. `unsynced` is what it leaves on its way to the disk, even if power is lost meanwhile.
    fn begin(&mut self, which: Which, unsynced: Option<Op>) -> io::Result<()> {
        self.check_power()?;
        self.ops += 1;
        match self.trouble {
            Some(Trouble::CutAt(at)) if self.ops >= at => self.is_off = true,
            Some(Trouble::FailAt(at)) if self.ops == at => return Err(failed(ErrorKind::Other)),
            Some(Trouble::FailFrom(at)) if self.ops >= at => return Err(failed(ErrorKind::Other)),
            Some(Trouble::FullAbove(most)) => {
                let others = self.size() - self.files[which as usize].seen.len();
                if let Some(Op::Length(length)) = unsynced
                    && length > self.files[which as usize].seen.len()
                    && length + others > most
                {
                    return Err(failed(ErrorKind::StorageFull));
                }
            }
            _ => {}
        }
        self.files[which as usize].unsynced.extend(unsynced);
        self.check_power()
    }
}

impl Disk {
    fn len_of(&self, which: Which) -> io::Result<u64> {
        let platter = self.platter();
        platter.check_power()?;
        Ok(platter.files[which as usize].seen.len() as u64)
    }

    fn read_of(&self, which: Which, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let platter = self.platter();
        platter.check_power()?;
        let (seen, from) = (&platter.files[which as usize].seen, offset as usize);
        let bytes = seen.get(from..from + out.len()).ok_or_else(|| failed(ErrorKind::UnexpectedEof))?;
        out.copy_from_slice(bytes);
        Ok(())
    }

    fn set_len_of(&self, which: Which, len: u64) -> io::Result<()> {
        let mut platter = self.platter();
        platter.begin(which, Some(Op::Length(len as usize)))?;
        platter.files[which as usize].seen.resize(len as usize, 0);
        Ok(())
    }

    fn sync_of(&self, which: Which) -> io::Result<()> {
        let mut platter = self.platter();
        let begun = platter.begin(which, None);
        let is_off = platter.is_off;
        let file = &mut platter.files[which as usize];
        if let Err(error) = begun {
            if file.forgets && !is_off {
                file.forget(which);
            }
            return Err(error);
        }
        file.syncs += 1;
        if file.lies {
            return Ok(());
        }
        for op in core::mem::take(&mut file.unsynced) {
            match op {
                Op::Length(length) => file.synced.resize(length, 0),
                Op::Write { at, data } => put(&mut file.synced, at, &data),
            }
        }
        Ok(())
    }

    fn write_of(&self, which: Which, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut platter = self.platter();
        platter.begin(which, Some(Op::Write { at: offset as usize, data: data.to_vec() }))?;
        let file = &mut platter.files[which as usize];
        file.written_at.insert(offset);
        put(&mut file.seen, offset as usize, data);
        Ok(())
    }
}

macro_rules! storage {
    ($of:ty, $disk:expr, $which:expr) => {
        impl StorageBackend for $of {
            fn len(&self) -> io::Result<u64> {
                $disk(self).len_of($which)
            }
            fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
                $disk(self).read_of($which, offset, out)
            }
            fn set_len(&self, len: u64) -> io::Result<()> {
                $disk(self).set_len_of($which, len)
            }
            fn sync_data(&self) -> io::Result<()> {
                $disk(self).sync_of($which)
            }
            fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
                $disk(self).write_of($which, offset, data)
            }
        }
    };
}

storage!(Disk, |disk: &Disk| disk.clone(), Which::Redb);
storage!(JournalOf, |journal: &JournalOf| journal.0.clone(), Which::Journal);
