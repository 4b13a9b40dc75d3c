//! Following, and then leading.
//!
//! A machine *follows* for as long as it takes: it is built from the newest snapshot and from what came after it, and
//! applies what the holder of the seat writes. It decides nothing, and whoever asks it something is told that it does
//! not lead. It *leads* from the moment at which it has taken the seat, and what was appended up to then is in it. The
//! seat is taken by comparing with the term that was last seen: who comes second learns that, and goes on following.
//!
//! What was read may turn out not to be in the log: a batch whose commit nobody acknowledged can be seen, and be gone once
//! another server has taken the database's place. So whatever came after the newest batch that was applied is applied only
//! if that batch is still the same, in the same answer of the log; else the follower is built anew. Likewise a snapshot
//! counts only if no newer one has taken its place while its chunks were read.
//!
//! One thread reads and decodes while another builds, since this is what a restart waits for.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use onward_core::fence::Term;
use onward_core::ids::Seq;
use onward_core::time::Mono;
use onward_log::{Error, Log, RowIdentity, Snapshot, StoredRow};

use super::StateMachine;
use crate::clock;

const READ_EVENTS: usize = 10_000;
/// Pieces that are read ahead of what builds the machine.
const AHEAD: usize = 4;
/// The number of times that a log is read anew whose snapshot was replaced meanwhile.
const READ_ANEW: usize = 8;

/// A machine that has all that was read of its log, and decides nothing.
pub(crate) struct Follower<M> {
    pub(super) log: Box<dyn Log>,
    pub(crate) machine: M,
    /// Up to where the snapshot reached that it was built from.
    snapshot: Seq,
    pub(super) seen: Term,
    /// The newest batch that was applied.
    applied: Option<RowIdentity>,
}

/// The result of reading on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CatchUp {
    /// Everything in the log is in the machine.
    Complete,
    /// The log no longer has what comes next, or has something else than what was applied: read it anew.
    Outdated,
}

/// The seat was taken, and all that the log holds is in the machine.
pub(crate) struct NewTerm<M> {
    pub(crate) log: Box<dyn Log>,
    pub(crate) machine: M,
    pub(crate) term: Term,
    /// The instant when the write began by which the seat was taken.
    pub(crate) taken_at: Mono,
    pub(crate) last: Seq,
    /// Up to where the newest snapshot reaches.
    pub(crate) snapshot: Seq,
}

/// The result of a try for the seat.
pub(crate) enum SeatBid<M> {
    Leads(NewTerm<M>),
    /// Another node was faster.
    Follows(Follower<M>),
}

impl<M: StateMachine> Follower<M> {
    /// Builds a machine from the log as it is now, beginning with an empty one.
    pub(crate) fn read(mut log: Box<dyn Log>, empty: impl Fn() -> M) -> Result<Self, Error> {
        // Before anything is read: a term that begins meanwhile is one that was not seen.
        let seen = log.tail()?.term;
        let mut tries = READ_ANEW;
        loop {
            let (begun_with, mut machine) = (log.snapshot()?, empty());
            let built = read_and_build(&mut *log, &mut machine);
            // Whoever leads may finish a snapshot at any moment, and with it goes what was just being read.
            let is_replaced = built.is_err() && log.snapshot()? != begun_with;
            match built {
                Err(_) if is_replaced && tries > 0 => tries -= 1,
                Err(error) => return Err(error),
                Ok((snapshot, applied)) => return Ok(Self { log, machine, snapshot, seen, applied }),
            }
        }
    }

    /// The newest event that was applied.
    pub(crate) fn newest(&self) -> Seq {
        self.machine.newest()
    }

    /// Applies what was written since.
    pub(crate) fn catch_up(&mut self) -> Result<CatchUp, Error> {
        let tail = self.log.tail()?;
        let has_moved = tail.term != self.seen || tail.last != self.machine.newest();
        self.seen = tail.term;
        if has_moved { self.read_on() } else { Ok(CatchUp::Complete) }
    }

    fn read_on(&mut self) -> Result<CatchUp, Error> {
        match self.read_behind_applied() {
            Err(Error::Truncated { .. }) => Ok(CatchUp::Outdated),
            read => read,
        }
    }

    fn read_behind_applied(&mut self) -> Result<CatchUp, Error> {
        loop {
            let next = Seq(self.machine.newest().0 + 1);
            // The newest batch that was applied and what follows it come in one answer, so they are of one history.
            let from = self.applied.map_or(next, |applied| applied.key.first);
            let known = usize::try_from(next.0.saturating_sub(from.0)).unwrap_or(usize::MAX);
            let rows = self.log.read(from, READ_EVENTS.saturating_add(known))?;
            if self.applied.is_some() && rows.first().map(StoredRow::identity) != self.applied {
                return Ok(CatchUp::Outdated);
            }
            for row in rows.iter().filter(|row| row.next() > next) {
                let skip = usize::try_from(next.0.saturating_sub(row.key.first.0)).unwrap_or(usize::MAX);
                M::decode_events(row)?.iter().skip(skip).for_each(|event| self.machine.apply(event));
                self.applied = Some(row.identity());
            }
            if self.machine.newest().0 + 1 == next.0 {
                return Ok(CatchUp::Complete);
            }
        }
    }

    /// Takes the seat, unless another has since the log was last looked at.
    pub(crate) fn lead(mut self) -> Result<SeatBid<M>, Error> {
        let taken_at = clock::mono();
        let tail = match self.log.take_seat(self.seen) {
            Ok(tail) => tail,
            Err(Error::SeatTaken { current, .. }) => {
                self.seen = current;
                return Ok(SeatBid::Follows(self));
            }
            Err(error) => return Err(error),
        };
        // Whoever held the seat may have appended until it was taken.
        if self.read_on()? == CatchUp::Outdated {
            return Err(Error::Io {
                cause: "what this node had read is no longer in the log; it reads it anew".into(),
            });
        }
        let newest = self.machine.newest();
        if newest != tail.last {
            let what = format!("the log ends at {:?}, and could be read up to {newest:?} only", tail.last);
            return Err(Error::Corrupt { what });
        }
        let Self { log, machine, snapshot, .. } = self;
        Ok(SeatBid::Leads(NewTerm { log, machine, term: tail.term, taken_at, last: tail.last, snapshot }))
    }
}

/// A piece of the log, in the order in which a machine is built from it.
enum Piece<M: StateMachine> {
    Records(Vec<M::Record>),
    /// The end of the records; they were of this snapshot.
    Restored(Option<Snapshot>),
    /// Events, and the newest batch that they are of.
    Events(Vec<M::Event>, RowIdentity),
}

/// Reads on a thread of its own, and builds meanwhile.
fn read_and_build<M: StateMachine>(log: &mut dyn Log, machine: &mut M) -> Result<(Seq, Option<RowIdentity>), Error> {
    thread::scope(|scope| {
        let (sender, pieces) = sync_channel(AHEAD);
        thread::Builder::new()
            .name("onward-replay".into())
            .spawn_scoped(scope, move || read_all::<M>(log, &sender))
            .map_err(|error| Error::Io { cause: format!("cannot start a thread: {error}") })?;
        build(&pieces, machine)
    })
}

/// Gives what it reads to whoever builds; ends early if nobody does any more.
fn read_all<M: StateMachine>(log: &mut dyn Log, pieces: &SyncSender<Result<Piece<M>, Error>>) {
    let give = |piece| pieces.send(Ok(piece)).is_ok();
    if let Err(error) = read_pieces(log, give) {
        // Nobody is there who could be told.
        let _ = pieces.send(Err(error));
    }
}

fn read_pieces<M: StateMachine>(log: &mut dyn Log, give: impl Fn(Piece<M>) -> bool) -> Result<(), Error> {
    let snapshot = log.snapshot()?;
    for index in 0..snapshot.map_or(0, |snapshot| snapshot.chunks) {
        if !give(Piece::Records(M::decode_records(&log.chunk(index)?)?)) {
            return Ok(());
        }
    }
    if log.snapshot()? != snapshot {
        return Err(Error::WrongSnapshot { what: "a newer one took its place while it was read" });
    }
    let mut goes_on = give(Piece::Restored(snapshot));
    let mut next = snapshot.map_or(Seq(1), |snapshot| Seq(snapshot.covers.0 + 1));
    while goes_on {
        let rows = log.read(next, READ_EVENTS)?;
        let mut events = Vec::new();
        for row in &rows {
            let skip = usize::try_from(next.0.saturating_sub(row.key.first.0)).unwrap_or(usize::MAX);
            events.extend(M::decode_events(row)?.into_iter().skip(skip));
            next = row.next();
        }
        goes_on = rows.last().is_some_and(|row| give(Piece::Events(events, row.identity())));
    }
    Ok(())
}

/// Puts everything into a new machine. Says up to where the snapshot reaches, and which batch was the newest.
fn build<M: StateMachine>(
    pieces: &Receiver<Result<Piece<M>, Error>>,
    machine: &mut M,
) -> Result<(Seq, Option<RowIdentity>), Error> {
    let (mut reached, mut applied) = (Seq::default(), None);
    for piece in pieces {
        match piece? {
            Piece::Records(records) => records.into_iter().for_each(|record| machine.restore(record)),
            Piece::Restored(None) => {}
            Piece::Restored(Some(snapshot)) => {
                reached = machine.finish_restore()?;
                if reached != snapshot.covers {
                    let what = format!("a snapshot up to {reached:?} is stored as one up to {:?}", snapshot.covers);
                    return Err(Error::Corrupt { what });
                }
            }
            Piece::Events(events, newest) => {
                events.iter().for_each(|event| machine.apply(event));
                applied = Some(newest);
            }
        }
    }
    Ok((reached, applied))
}
