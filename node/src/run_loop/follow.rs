//! Following, and then leading.
//!
//! A machine *follows* for as long as it takes: it is built from the newest snapshot and from what came after it, and
//! applies what the holder of the seat writes. It decides nothing, and whoever asks it something is told that it does
//! not lead. It *leads* from the moment at which it has taken the seat, and what was appended up to then is in it. The
//! seat is taken by comparing with the term that was last seen: who comes second learns that, and goes on following.
//!
//! What was read may turn out not to be in the log: a batch whose commit nobody acknowledged can be seen, and be gone once
//! another server has taken the database's place. So whatever came after the newest batch that was applied is applied only
//! if that batch is still the same; else the follower is built anew.
//!
//! One thread reads and decodes while another builds, since this is what a restart waits for.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use onward_core::fence::Term;
use onward_core::ids::Seq;
use onward_core::time::Mono;
use onward_log::{BatchKey, Error, Log, Snapshot};

use super::StateMachine;
use crate::clock;

const READ_EVENTS: usize = 10_000;
/// Pieces that are read ahead of what builds the machine.
const AHEAD: usize = 4;

/// A machine that has all that was read of its log, and decides nothing.
pub(crate) struct Follower<M> {
    log: Box<dyn Log>,
    pub(super) machine: M,
    /// Up to where the snapshot reached that it was built from.
    snapshot: Seq,
    seen: Term,
    /// The newest batch that was applied.
    applied: Option<BatchKey>,
}

/// What became of reading on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CatchUp {
    /// All that the log holds is in the machine.
    Complete,
    /// The log no longer has what comes next, or has something else than what was applied: read it anew.
    Outdated,
}

/// The seat was taken, and all that the log holds is in the machine.
pub(crate) struct NewTerm<M> {
    pub(crate) log: Box<dyn Log>,
    pub(crate) machine: M,
    pub(crate) term: Term,
    /// When the write began by which the seat was taken.
    pub(crate) taken_at: Mono,
    pub(crate) last: Seq,
    /// Up to where the newest snapshot reaches.
    pub(crate) snapshot: Seq,
}

/// What became of a try for the seat.
pub(crate) enum Tried<M> {
    Leads(NewTerm<M>),
    /// Somebody else was faster.
    Follows(Follower<M>),
}

impl<M: StateMachine> Follower<M> {
    /// Builds an empty machine from the log as it is now.
    pub(crate) fn read(mut log: Box<dyn Log>, mut machine: M) -> Result<Self, Error> {
        // Before anything is read: a term that begins meanwhile is one that was not seen.
        let seen = log.tail()?.term;
        let (snapshot, applied) = thread::scope(|scope| {
            let (sender, pieces) = sync_channel(AHEAD);
            let log = &mut *log;
            thread::Builder::new()
                .name("onward-replay".into())
                .spawn_scoped(scope, move || read_all::<M>(log, &sender))
                .map_err(|error| Error::Io { cause: format!("cannot start a thread: {error}") })?;
            build(&pieces, &mut machine)
        })?;
        Ok(Self { log, machine, snapshot, seen, applied })
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
        if let Some(applied) = self.applied
            && self.log.read(applied.first, 1)?.first().map(|row| row.key) != Some(applied)
        {
            return Ok(CatchUp::Outdated);
        }
        loop {
            let from = Seq(self.machine.newest().0 + 1);
            let rows = self.log.read(from, READ_EVENTS)?;
            if rows.is_empty() {
                return Ok(CatchUp::Complete);
            }
            for row in &rows {
                let skip = usize::try_from(from.0.saturating_sub(row.key.first.0)).unwrap_or(usize::MAX);
                M::decode_events(row)?.iter().skip(skip).for_each(|event| self.machine.apply(event));
                self.applied = Some(row.key);
            }
        }
    }

    /// Takes the seat, unless another has since the log was last looked at.
    pub(crate) fn lead(mut self) -> Result<Tried<M>, Error> {
        let taken_at = clock::mono();
        let tail = match self.log.take_seat(self.seen) {
            Ok(tail) => tail,
            Err(Error::SeatTaken { current, .. }) => {
                self.seen = current;
                return Ok(Tried::Follows(self));
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
        Ok(Tried::Leads(NewTerm { log, machine, term: tail.term, taken_at, last: tail.last, snapshot }))
    }
}

/// What a log holds, in the order in which a machine is built from it.
enum Piece<M: StateMachine> {
    Records(Vec<M::Record>),
    /// There are no more records; they were of this snapshot.
    Restored(Option<Snapshot>),
    /// Events, and the newest batch that they are of.
    Events(Vec<M::Event>, BatchKey),
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
        goes_on = rows.last().is_some_and(|row| give(Piece::Events(events, row.key)));
    }
    Ok(())
}

/// Puts everything into a new machine. Says up to where the snapshot reaches, and which batch was the newest.
fn build<M: StateMachine>(
    pieces: &Receiver<Result<Piece<M>, Error>>,
    machine: &mut M,
) -> Result<(Seq, Option<BatchKey>), Error> {
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
