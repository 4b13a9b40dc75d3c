//! How a term begins: the seat is taken, then the machine is built from the newest snapshot and what came after it.

use std::thread;
use std::time::Duration;

use onward_core::fence::Term;
use onward_core::ids::Seq;
use onward_core::manager::Manager;
use onward_core::payload::Digest;
use onward_log::{Changed, Error, Log, codec};

use super::Shared;
use super::machine::Start;
use crate::clock;

const READ_EVENTS: usize = 50_000;

/// The seat was taken and the log replayed.
pub(super) struct Begun {
    pub(super) log: Box<dyn Log>,
    pub(super) manager: Manager,
    pub(super) term: Term,
    pub(super) last: Seq,
    /// Up to where the newest snapshot reaches.
    pub(super) snapshot: Seq,
}

pub(super) fn begin_term(start: &mut Start, shared: &Shared) -> Result<Begun, Error> {
    let mut log = (start.log)()?;
    let tail = loop {
        match log.take_seat() {
            Err(error) if error.changed() == Changed::Maybe => thread::sleep(Duration::from_millis(200)),
            known => break known?,
        }
    };
    let mut seed = [0u8; 8];
    getrandom::fill(&mut seed).expect("the system has randomness");
    let mut manager = Manager::new(start.rules.clone(), u64::from_ne_bytes(seed), clock::now());
    let snapshot = restore(&mut *log, &mut manager)?;
    let mut next = Seq(manager.newest().0 + 1);
    loop {
        let batches = log.read(next, READ_EVENTS)?;
        if batches.is_empty() {
            break;
        }
        for stamped in batches.iter().flat_map(|batch| &batch.events) {
            manager.apply(stamped);
        }
        next = Seq(manager.newest().0 + 1);
    }
    sweep(&mut *log, &manager, tail.term)?;
    *shared.blobs.lock().expect("no thread panics while it holds this") = Some(log.blob_reader());
    shared.stats.terms.add(1);
    Ok(Begun { log, manager, term: tail.term, last: tail.last, snapshot })
}

/// Puts the newest snapshot into a new machine. Says up to where it reaches.
fn restore(log: &mut dyn Log, manager: &mut Manager) -> Result<Seq, Error> {
    let Some(snapshot) = log.snapshot()? else { return Ok(Seq::default()) };
    for index in 0..snapshot.chunks {
        codec::decode_records(&log.chunk(index)?)?.into_iter().for_each(|record| manager.restore(record));
    }
    let reached = manager.finish_restore().map_err(|cut| Error::Corrupt { what: cut.to_string() })?;
    if reached != snapshot.covers {
        let what = format!("a snapshot up to {reached:?} is stored as one up to {:?}", snapshot.covers);
        return Err(Error::Corrupt { what });
    }
    Ok(reached)
}

/// Content that no job refers to: a crash came between the event that gave it up and its deletion.
fn sweep(log: &mut dyn Log, manager: &Manager, term: Term) -> Result<(), Error> {
    const PAGE: usize = 1_000;
    let mut after = None;
    loop {
        let digests = log.blobs(after.as_ref(), PAGE)?;
        let Some(last) = digests.last().copied() else { return Ok(()) };
        let lost: Vec<_> =
            digests.into_iter().filter(|digest| manager.state().stored_refs(&Digest(*digest)) == 0).collect();
        if !lost.is_empty() {
            log.drop_blobs(term, &lost)?;
        }
        after = Some(last);
    }
}
