//! When a snapshot is taken, and how far it is. The machine gives a few records at a time, between its other work; the
//! committer encodes and stores them. Appends wait while it stores one, so it is given time for them in between.

use std::time::{Duration, Instant};

use onward_core::ids::Seq;
use onward_health::Pulse;
use onward_log::Error;

use super::committer::CommitRequest;
use super::{Host, StateMachine};

/// The number of batches of the log that are removed at once: appends wait meanwhile.
pub(super) const TRUNCATE_AT_ONCE: usize = 64;
/// The number of records that share a chunk.
const RECORDS: usize = 2_000;
/// The number of records that are taken in one turn: everything else waits meanwhile.
const A_FEW: usize = 64;
/// The rest between two chunks, as a multiple of the time that the last one took.
const REST: u32 = 2;
const LONGEST_REST: Duration = Duration::from_millis(20);

pub(crate) struct Snapshots<M: StateMachine> {
    every: u64,
    newest: Seq,
    stage: Stage<M>,
    /// The pulse at one part of a snapshot, until that is stored.
    pulse: Pulse,
}

enum Stage<M: StateMachine> {
    Idle,
    Taking {
        covers: Seq,
        next: u32,
        pace: Pace,
        /// Records of the next chunk.
        records: Vec<M::Record>,
        last: bool,
    },
    /// The snapshot is there, and what it covers is removed from the log.
    Truncating,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Pace {
    /// A chunk is on its way since then.
    Storing(Instant),
    /// The next one may go then.
    Resting(Instant),
}

impl Pace {
    fn allows(self, now: Instant) -> bool {
        matches!(self, Self::Resting(until) if until <= now)
    }
}

impl<M: StateMachine> Snapshots<M> {
    /// `newest`: up to where the newest snapshot reaches.
    pub(crate) fn after(newest: Seq, every: u64, pulse: Pulse) -> Self {
        pulse.rest();
        Self { every, newest, stage: Stage::Idle, pulse }
    }

    /// The next request to the log, if there is one. A snapshot costs as much as there is to store, so the more there
    /// is the later it is due; replaying twice as many events takes about as long as reading them.
    pub(crate) fn advance<H: Host<Machine = M>>(&mut self, now: Instant, machine: &mut M) -> Option<CommitRequest<H>> {
        match &mut self.stage {
            Stage::Idle => {
                let events = machine.newest().0 - self.newest.0;
                if events < self.every.max(2 * machine.size()) {
                    return None;
                }
                let covers = machine.begin_snapshot();
                let (pace, records) = (Pace::Resting(now), Vec::new());
                self.stage = Stage::Taking { covers, next: 0, pace, records, last: false };
                self.advance(now, machine)
            }
            Stage::Taking { covers, next, pace, records, last } if pace.allows(now) => {
                let covers = *covers;
                if *last {
                    *pace = Pace::Storing(now);
                    self.pulse.begin();
                    return Some(CommitRequest::FinishSnapshot { covers, chunks: *next });
                }
                let (some, is_last) = machine.next_records(A_FEW);
                records.extend(some);
                *last = is_last;
                if !*last && records.len() < RECORDS {
                    return None;
                }
                *pace = Pace::Storing(now);
                self.pulse.begin();
                let index = *next;
                *next += 1;
                Some(CommitRequest::Chunk { covers, index, records: core::mem::take(records) })
            }
            Stage::Taking { .. } | Stage::Truncating => None,
        }
    }

    pub(crate) fn chunk_stored(&mut self, now: Instant) {
        self.pulse.rest();
        if let Stage::Taking { pace: pace @ Pace::Storing(_), .. } = &mut self.stage
            && let Pace::Storing(since) = *pace
        {
            *pace = Pace::Resting(now + ((now - since) * REST).min(LONGEST_REST));
        }
    }

    /// The time for which there is nothing to do here, if it is known.
    pub(crate) fn rest(&self, now: Instant) -> Option<Duration> {
        match self.stage {
            Stage::Taking { pace: Pace::Resting(until), .. } => Some(until.saturating_duration_since(now)),
            _ => None,
        }
    }

    pub(crate) fn finished(&mut self) {
        self.pulse.rest();
        self.pulse.recover();
        if let Stage::Taking { covers, .. } = self.stage {
            self.newest = covers;
            self.stage = Stage::Truncating;
        }
    }

    pub(crate) fn truncated(&mut self) {
        self.stage = Stage::Idle;
    }

    /// Gives a snapshot up. The next is begun after as many events as if this one had been taken.
    pub(crate) fn failed(&mut self, error: &Error, machine: &mut M) {
        self.pulse.rest();
        self.pulse.fail(error);
        machine.abandon_snapshot();
        self.newest = machine.newest();
        self.stage = Stage::Idle;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_loop::toy::{Toy, ToyHost};

    #[test]
    fn between_two_chunks_the_log_has_time_for_others() {
        let mut toy = Toy::default();
        (0..2).for_each(|number| toy.apply(&number));
        let mut snapshots = Snapshots::after(Seq::default(), 0, Pulse::default());
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        assert!(matches!(snapshots.advance::<ToyHost>(at(0), &mut toy), Some(CommitRequest::Chunk { index: 0, .. })));
        assert!(snapshots.advance::<ToyHost>(at(100), &mut toy).is_none(), "it is being stored");
        assert_eq!(snapshots.rest(at(100)), None, "who knows for how long");
        snapshots.chunk_stored(at(4));
        assert_eq!(snapshots.rest(at(5)), Some(Duration::from_millis(7)), "twice as long as it took");
        assert!(snapshots.advance::<ToyHost>(at(11), &mut toy).is_none());
        assert_eq!(snapshots.rest(at(13)), Some(Duration::ZERO));
        assert!(matches!(
            snapshots.advance::<ToyHost>(at(12), &mut toy),
            Some(CommitRequest::FinishSnapshot { chunks: 1, .. })
        ));
        snapshots.chunk_stored(at(1_000));
        assert_eq!(snapshots.rest(at(1_000)), Some(LONGEST_REST), "and not for ever");
    }
}
