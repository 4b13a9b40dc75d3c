//! How a term begins: the seat is taken, then the machine is built from the newest snapshot and what came after it.
//! One thread reads and decodes while another builds, since this is what a restart waits for.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Instant;

use onward_core::fence::Term;
use onward_core::ids::Seq;
use onward_core::manager::{Manager, SnapshotRecord};
use onward_core::payload::Digest;
use onward_log::{Batch, Changed, Error, Log, Snapshot, codec};

use super::Shared;
use super::Start;
use crate::clock;

const READ_EVENTS: usize = 10_000;
/// Pieces that are read ahead of what builds the machine.
const AHEAD: usize = 4;

/// The seat was taken and the log replayed.
pub(super) struct NewTerm {
    pub(super) log: Box<dyn Log>,
    pub(super) manager: Manager,
    pub(super) term: Term,
    pub(super) last: Seq,
    /// Up to where the newest snapshot reaches.
    pub(super) snapshot: Seq,
}

/// In doubt it is tried again for a while: whoever starts a node may have to come and do it once more.
pub(super) fn begin_first_term(start: &mut Start, shared: &Shared) -> Result<NewTerm, Error> {
    let since = Instant::now();
    loop {
        match begin_term(start, shared) {
            Err(error) if error.changed() == Changed::Maybe && since.elapsed() < start.rules.seat_ttl => {
                thread::sleep(start.pacing.ask_again);
            }
            known => return known,
        }
    }
}

pub(super) fn begin_term(start: &mut Start, shared: &Shared) -> Result<NewTerm, Error> {
    let mut log = (start.log)()?;
    // In doubt too, the next attempt takes the seat anew: a term may go unused.
    let tail = log.take_seat()?;
    let mut seed = [0u8; 8];
    getrandom::fill(&mut seed).expect("the system has randomness");
    let mut manager = Manager::new(start.rules.clone(), u64::from_ne_bytes(seed), clock::now());
    let snapshot = thread::scope(|scope| {
        let (sender, pieces) = sync_channel(AHEAD);
        let log = &mut *log;
        thread::Builder::new()
            .name("onward-replay".into())
            .spawn_scoped(scope, move || read_all(log, &sender))
            .map_err(|error| Error::Io { cause: format!("cannot start a thread: {error}") })?;
        build(&pieces, &mut manager)
    })?;
    if manager.newest() != tail.last {
        let what = format!("the log ends at {:?}, and could be read up to {:?} only", tail.last, manager.newest());
        return Err(Error::Corrupt { what });
    }
    match sweep(&mut *log, &manager, tail.term) {
        Err(error @ (Error::StaleTerm { .. } | Error::Unknown { .. })) => return Err(error),
        // What nobody needs takes room, and nothing else.
        Err(error) => {
            tracing::warn!(%error, "content that nothing refers to could not be dropped; the next term tries again")
        }
        Ok(()) => {}
    }
    shared.stay_above(manager.state().jobs().map(|(_, job)| job.id).max());
    *shared.blobs.lock().expect("no thread panics while it holds this") = Some(log.blob_reader());
    shared.stats.terms.add(1);
    Ok(NewTerm { log, manager, term: tail.term, last: tail.last, snapshot })
}

/// What a log holds, in the order in which a machine is built from it.
enum Piece {
    Records(Vec<SnapshotRecord>),
    /// There are no more records; they were of this snapshot.
    Restored(Option<Snapshot>),
    Batches(Vec<Batch>),
}

/// Gives what it reads to whoever builds; ends early if nobody does any more.
fn read_all(log: &mut dyn Log, pieces: &SyncSender<Result<Piece, Error>>) {
    let give = |piece| pieces.send(Ok(piece)).is_ok();
    if let Err(error) = read_pieces(log, give) {
        // Nobody is there who could be told.
        let _ = pieces.send(Err(error));
    }
}

fn read_pieces(log: &mut dyn Log, give: impl Fn(Piece) -> bool) -> Result<(), Error> {
    let snapshot = log.snapshot()?;
    for index in 0..snapshot.map_or(0, |snapshot| snapshot.chunks) {
        if !give(Piece::Records(codec::decode_records(&log.chunk(index)?)?)) {
            return Ok(());
        }
    }
    let mut goes_on = give(Piece::Restored(snapshot));
    let mut next = snapshot.map_or(Seq(1), |snapshot| Seq(snapshot.covers.0 + 1));
    while goes_on {
        let batches = log.read(next, READ_EVENTS)?;
        let Some(last) = batches.last() else { break };
        next = Seq(last.first.0 + last.events.len() as u64);
        goes_on = give(Piece::Batches(batches));
    }
    Ok(())
}

/// Puts everything into a new machine. Says up to where the snapshot reaches.
fn build(pieces: &Receiver<Result<Piece, Error>>, manager: &mut Manager) -> Result<Seq, Error> {
    let mut reached = Seq::default();
    for piece in pieces {
        match piece? {
            Piece::Records(records) => records.into_iter().for_each(|record| manager.restore(record)),
            Piece::Restored(None) => {}
            Piece::Restored(Some(snapshot)) => {
                reached = manager.finish_restore().map_err(|cut| Error::Corrupt { what: cut.to_string() })?;
                if reached != snapshot.covers {
                    let what = format!("a snapshot up to {reached:?} is stored as one up to {:?}", snapshot.covers);
                    return Err(Error::Corrupt { what });
                }
            }
            Piece::Batches(batches) => {
                for stamped in batches.iter().flat_map(|batch| &batch.events) {
                    manager.apply(stamped);
                }
            }
        }
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
