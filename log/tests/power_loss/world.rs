//! A leader that appends, changes and takes snapshots, what it was told of them, and a comparison of the two.

use std::collections::{BTreeMap, BTreeSet};

use onward_core::event::StampedEvent;
use onward_core::fence::Term;
use onward_core::ids::Seq;
use onward_core::time::Wall;
use onward_log::{
    Batch, BatchId, BatchKey, Blob, BlobDigest, EmbeddedLog, Error, EventLog, Log, LogChange, OnLoss, Snapshot,
};

use crate::disk::{Disk, JournalOf, Which};
use crate::samples::Draw;

pub struct World {
    pub draw: Draw,
    pub disk: Disk,
    half_bytes: u64,
    log: Option<EmbeddedLog>,
    term: Term,
    /// Every batch that was acknowledged, from the first on.
    batches: Vec<Batch>,
    /// Chunks of the newest snapshot that was acknowledged, and what it covers.
    snapshot: Option<(Seq, Vec<Vec<u8>>)>,
    unfinished: Option<(Seq, Vec<Vec<u8>>)>,
    /// The blobs that are there, by what their content is made from.
    blobs: BTreeSet<u64>,
    in_doubt: Option<Doubt>,
    pub seen: BTreeMap<&'static str, u64>,
}

/// A request that may or may not have been carried out.
#[derive(Debug)]
enum Doubt {
    Seat(Term),
    Batch(Batch, Vec<u64>),
    Dropped(Vec<u64>),
    Finished,
    /// A chunk, or a truncation: nothing that counts is changed by either.
    Harmless,
}

/// Small, so that each is begun again and again, and large enough that some cases stay in one.
const HALVES: [u64; 4] = [2 << 10, 8 << 10, 24 << 10, 256 << 10];

fn opened(disk: &Disk, half_bytes: u64) -> Result<EmbeddedLog, Error> {
    let (redb, journal) = (disk.clone(), JournalOf(disk.clone()));
    // Another process does not see what a failed sync of this one has given up.
    disk.forget_cache(Which::Redb);
    EmbeddedLog::on_storage(move || Ok(redb.clone()), move || Ok(journal.clone()), half_bytes, OnLoss::Refuse)
}

/// Something is not as it should be.
pub type Wrong = String;

impl World {
    pub fn new(seed: u64) -> Self {
        let (disk, half_bytes) = (Disk::new(), HALVES[(seed % HALVES.len() as u64) as usize]);
        let mut log = opened(&disk, half_bytes).expect("an honest disk so far");
        let term = log.seize_seat().expect("an honest disk so far").term;
        Self {
            draw: Draw::new(seed),
            disk,
            half_bytes,
            log: Some(log),
            term,
            batches: Vec::new(),
            snapshot: None,
            unfinished: None,
            blobs: BTreeSet::new(),
            in_doubt: None,
            seen: BTreeMap::new(),
        }
    }

    fn log(&mut self) -> &mut EmbeddedLog {
        self.log.as_mut().expect("it is open")
    }

    fn saw(&mut self, what: &'static str) {
        *self.seen.entry(what).or_default() += 1;
    }

    fn last(&self) -> u64 {
        self.batches.last().map_or(0, |batch| batch.first.0 + batch.events.len() as u64 - 1)
    }

    /// Does one thing that a leader does. `Ok(false)`: it failed, and the disk must be looked at.
    pub fn act(&mut self) -> Result<bool, Wrong> {
        let (result, doubt) = match self.draw.below(18) {
            0..8 => self.append(),
            8 => {
                let next = Term::new(self.term.get() + 1);
                (self.log().seize_seat().map(|tail| self.term = tail.term), Doubt::Seat(next))
            }
            9..12 => self.put_chunk(),
            12 => self.finish_snapshot(),
            13 => {
                let (term, max) = (self.term, self.draw.below(4) as usize);
                (self.log().truncate(term, max).map(|_| ()), Doubt::Harmless)
            }
            14 => return self.append_stale(),
            15..17 => self.drop_blobs(),
            _ => {
                self.reopen()?;
                return Ok(true);
            }
        };
        match result {
            Ok(()) => return Ok(true),
            Err(
                error
                @ (Error::StaleTerm { .. } | Error::WrongSequence { .. } | Error::Corrupt { .. } | Error::Lost(_)),
            ) => {
                return Err(format!("a disk that fails is no reason for this: {error}"));
            }
            Err(Error::WrongSnapshot { .. }) => return Ok(true),
            Err(error) => {
                self.saw(match error {
                    Error::Full { .. } => "full",
                    Error::Unknown { .. } => "in doubt",
                    _ => "failed",
                });
                if error.changed() == LogChange::Maybe {
                    self.in_doubt = Some(doubt);
                }
            }
        }
        Ok(false)
    }

    fn append(&mut self) -> (Result<(), Error>, Doubt) {
        let first = self.last() + 1;
        let size = if self.draw.chance(8) { 400 } else { 20 };
        let mut events = self.draw.batch(size);
        events.iter_mut().zip(first..).for_each(|(stamped, at)| stamped.at = Wall::from_ms(at));
        let batch = Batch { term: self.term, id: BatchId(self.draw.number()), first: Seq(first), events };
        // Few enough names that one is sometimes there already, or was dropped before.
        let names: Vec<u64> = (0..self.draw.below(4).saturating_sub(1)).map(|_| self.draw.below(40)).collect();
        let syncs = self.disk.syncs(Which::Redb);
        self.disk.take_journal_writes();
        let result = self.append_with(&batch, &names);
        if result.is_ok() {
            self.saw_where(&names, syncs);
            self.batches.push(batch.clone());
            self.blobs.extend(&names);
            self.saw("acknowledged");
        }
        (result, Doubt::Batch(batch, names))
    }

    /// Notes which of the two files stored the batch, and how many syncs it took.
    fn saw_where(&mut self, names: &[u64], syncs: u64) {
        let by_redb = self.disk.syncs(Which::Redb) > syncs;
        let writes = self.disk.take_journal_writes();
        if writes.is_empty() {
            self.saw(if names.is_empty() { "too large for a half" } else { "with blobs" });
            return;
        }
        self.saw("journalled");
        if writes.contains(&0) {
            self.saw("first half begun again");
        }
        if writes.contains(&self.half_bytes) {
            self.saw("second half begun");
        }
        if by_redb {
            self.saw("moved for room");
        }
    }

    fn append_with(&mut self, batch: &Batch, names: &[u64]) -> Result<(), Error> {
        let contents: Vec<_> = names.iter().map(|&name| (digest(name), content(name))).collect();
        let blobs: Vec<_> = contents.iter().map(|(digest, bytes)| Blob { digest: *digest, bytes }).collect();
        self.log().append_events(key(batch), &batch.events, &blobs)
    }

    fn drop_blobs(&mut self) -> (Result<(), Error>, Doubt) {
        let (limit, term) = (self.draw.below(6) as usize, self.term);
        let names: Vec<u64> = self.blobs.iter().copied().take(limit).collect();
        let digests: Vec<BlobDigest> = names.iter().copied().map(digest).collect();
        let result = self.log().drop_blobs(term, &digests);
        if result.is_ok() {
            self.blobs.retain(|name| !names.contains(name));
            self.saw("blobs dropped");
        }
        (result, Doubt::Dropped(names))
    }

    /// An old leader, and one that is asked twice.
    fn append_stale(&mut self) -> Result<bool, Wrong> {
        let key = BatchKey { term: Term::new(self.term.get() - 1), id: BatchId(0), first: Seq(self.last() + 1) };
        let events: Vec<StampedEvent> = self.draw.batch(2);
        match self.log().append_events(key, &events, &[]) {
            Err(Error::StaleTerm { .. }) => {}
            other => return Err(format!("an old leader was told {other:?}")),
        }
        let Some(again) = self.batches.last().filter(|batch| batch.term == self.term).cloned() else {
            return Ok(true);
        };
        self.log()
            .append_events(self::key(&again), &again.events, &[])
            .map(|()| true)
            .map_err(|error| format!("what is stored was asked for again, and refused: {error}"))
    }

    fn put_chunk(&mut self) -> (Result<(), Error>, Doubt) {
        if self.unfinished.is_none() || self.draw.chance(8) {
            self.unfinished = Some((Seq(1 + self.draw.below(self.last().max(1))), Vec::new()));
        }
        let chunk = self.draw.bytes(5000);
        let term = self.term;
        let (covers, mut chunks) = self.unfinished.take().expect("just made");
        let result = self.log().put_chunk(term, covers, chunks.len() as u32, &chunk);
        if result.is_ok() {
            chunks.push(chunk);
            self.unfinished = Some((covers, chunks));
        }
        (result, Doubt::Harmless)
    }

    fn finish_snapshot(&mut self) -> (Result<(), Error>, Doubt) {
        let Some((covers, chunks)) = self.unfinished.clone() else { return (Ok(()), Doubt::Harmless) };
        let term = self.term;
        let result = self.log().finish_snapshot(term, covers, chunks.len() as u32);
        if result.is_ok() {
            self.snapshot = self.unfinished.take();
            self.saw("snapshot");
        }
        (result, Doubt::Finished)
    }

    /// Asks again for what is in doubt, as a leader does, on a disk that may still fail.
    pub fn ask_again(&mut self) -> Result<(), Wrong> {
        let Some(Doubt::Batch(batch, names)) = &self.in_doubt else { return Ok(()) };
        let (batch, names) = (batch.clone(), names.clone());
        match self.append_with(&batch, &names) {
            Ok(()) => {
                self.in_doubt = None;
                self.batches.push(batch);
                self.blobs.extend(&names);
                self.saw("asked again: stored");
            }
            Err(Error::Unknown { .. }) => self.saw("asked again: still in doubt"),
            // While the disk cannot be read, nobody can know that it was not stored; and once it can, it is well.
            Err(error) => return Err(format!("about a batch in doubt it was said: {error}")),
        }
        Ok(())
    }

    /// The process ends, and power with it.
    pub fn lose_power(&mut self) -> Result<(), Wrong> {
        self.log = None;
        self.disk.lose_power(&mut self.draw);
        self.reopen()
    }

    /// Another process begins. What it finds must be what was acknowledged, and perhaps what was in doubt.
    pub fn reopen(&mut self) -> Result<(), Wrong> {
        self.log = None;
        let opened = opened(&self.disk, self.half_bytes);
        self.log = match opened {
            // The cut came while it was opened: nothing was asked for, and nothing can be said yet.
            _ if self.disk.is_off() => {
                self.saw("cut while opening");
                return self.lose_power();
            }
            Ok(log) => Some(log),
            Err(Error::Io { .. } | Error::Full { .. }) if self.disk.trouble().is_some() => {
                self.saw("failed while opening");
                self.disk.set_trouble(None);
                return self.reopen();
            }
            Err(error) => return Err(format!("the log cannot be opened: {error}")),
        };
        self.saw("opened again");
        self.check()
    }

    /// The same process goes on after a failure; the log opens its file by itself.
    pub fn check(&mut self) -> Result<(), Wrong> {
        match self.in_doubt.take() {
            Some(Doubt::Seat(term)) if self.tail()?.term == term => self.term = term,
            Some(Doubt::Batch(batch, names)) => {
                let stored = self.tail()?.last.0 > self.last();
                self.saw(if stored { "doubt: stored" } else { "doubt: not stored" });
                if stored {
                    self.batches.push(batch);
                    self.blobs.extend(&names);
                }
            }
            Some(Doubt::Dropped(names)) => {
                let gone = match names.first() {
                    Some(&name) => self.log().blob(&digest(name)).map_err(wrong)?.is_none(),
                    None => false,
                };
                if gone {
                    self.blobs.retain(|name| !names.contains(name));
                }
            }
            Some(Doubt::Finished) => {
                let found = self.log().snapshot().map_err(wrong)?.map(|found| found.covers);
                if self.unfinished.as_ref().map(|(covers, _)| *covers) == found {
                    self.snapshot = self.unfinished.clone();
                }
            }
            Some(Doubt::Seat(_) | Doubt::Harmless) | None => {}
        }
        self.unfinished = None;
        self.check_snapshot()?;
        self.check_blobs()?;
        self.check_batches()
    }

    /// Each is there whole, and no other.
    fn check_blobs(&mut self) -> Result<(), Wrong> {
        let mut expected: Vec<BlobDigest> = self.blobs.iter().copied().map(digest).collect();
        expected.sort();
        if self.log().blobs(None, usize::MAX).map_err(wrong)? != expected {
            return Err("the blobs are not those of the batches".to_owned());
        }
        for name in self.blobs.clone() {
            if self.log().blob(&digest(name)).map_err(wrong)? != Some(content(name)) {
                return Err(format!("blob {name} is another"));
            }
        }
        if !self.blobs.is_empty() {
            self.saw("blobs");
        }
        Ok(())
    }

    fn tail(&mut self) -> Result<onward_log::Tail, Wrong> {
        self.log().tail().map_err(wrong)
    }

    fn check_snapshot(&mut self) -> Result<(), Wrong> {
        let found = self.log().snapshot().map_err(wrong)?;
        let expected =
            self.snapshot.as_ref().map(|(covers, chunks)| Snapshot { covers: *covers, chunks: chunks.len() as u32 });
        if found != expected {
            return Err(format!("the newest snapshot is {found:?}, and not {expected:?}"));
        }
        for (index, chunk) in self.snapshot.clone().into_iter().flat_map(|(_, chunks)| chunks).enumerate() {
            if self.log().chunk(index as u32).map_err(wrong)? != chunk {
                return Err(format!("chunk {index} is another"));
            }
        }
        Ok(())
    }

    fn check_batches(&mut self) -> Result<(), Wrong> {
        let tail = self.tail()?;
        if (tail.term, tail.last) != (self.term, Seq(self.last())) {
            return Err(format!("{tail:?}, and not term {} and last {}", self.term, self.last()));
        }
        let first = match self.log().read_events(Seq(1), 0) {
            Err(Error::Truncated { first }) => first,
            Err(error) => return Err(wrong(error)),
            Ok(_) => Seq(1),
        };
        let needed = self.snapshot.as_ref().map_or(1, |(covers, _)| covers.0 + 1);
        let newest = self.batches.last().map_or(1, |batch| batch.first.0);
        if first.0 > needed.min(newest) {
            return Err(format!("events from {needed} on are needed, and they begin at {first:?}"));
        }
        let from = self.batches.iter().position(|batch| batch.first == first).unwrap_or(self.batches.len());
        if self.log().read_events(first, usize::MAX).map_err(wrong)? != self.batches[from..] {
            return Err("the batches are not those that were acknowledged".to_owned());
        }
        if from > 0 {
            self.saw("truncated");
        }
        Ok(())
    }

    /// Checks that the log can be written again, whatever happened.
    pub fn goes_on(&mut self) -> Result<(), Wrong> {
        self.term = self.log().seize_seat().map_err(wrong)?.term;
        for _ in 0..3 {
            let (result, _) = self.append();
            result.map_err(wrong)?;
        }
        self.reopen()
    }
}

fn digest(name: u64) -> BlobDigest {
    let mut draw = Draw::new(name);
    core::array::from_fn(|_| draw.below(256) as u8)
}

fn content(name: u64) -> Vec<u8> {
    let mut draw = Draw::new(name);
    let most = if name.is_multiple_of(8) { 90_000 } else { 9_000 };
    draw.bytes(most)
}

fn key(batch: &Batch) -> BatchKey {
    BatchKey { term: batch.term, id: batch.id, first: batch.first }
}

fn wrong(error: Error) -> Wrong {
    error.to_string()
}
