//! The distance of the log behind the machine's decisions.
//!
//! A step's events are handed out to be made durable. Until they are, the step is remembered here: when it was decided,
//! because an append that returned confirms the seat as of then; and how many hand-outs it had, because only a durable
//! one counts as work that this manager has got done.

use std::collections::VecDeque;

use crate::ids::Seq;
use crate::time::Mono;

/// The number of events that wait for the log before it counts as behind: several bites, and a few milliseconds of its
/// work.
const BEHIND: u64 = 8_192;

#[derive(Debug, Default)]
pub(crate) struct Durability {
    durable: Seq,
    /// Steps whose events are not durable yet, oldest first.
    unsynced: VecDeque<UnsyncedStep>,
    /// Hand-outs of this step.
    handouts: u32,
}

/// A step whose events were handed out to be made durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct UnsyncedStep {
    seq: Seq,
    pub(crate) decided_at: Mono,
    pub(crate) handouts: u32,
}

impl Durability {
    /// The event up to which everything is durable.
    pub(crate) fn durable(&self) -> Seq {
        self.durable
    }

    /// Events up to this one came from the log.
    pub(crate) fn set_replayed(&mut self, seq: Seq) {
        self.durable = seq;
    }

    /// Whether so many events wait for the log that nothing is decided in bulk until it has caught up.
    pub(crate) fn is_behind(&self, newest: Seq) -> bool {
        newest.0.saturating_sub(self.durable.0) >= BEHIND
    }

    pub(crate) fn count_handout(&mut self) {
        self.handouts += 1;
    }

    /// Hand-outs that are not durable yet.
    pub(crate) fn open_handouts(&self) -> u64 {
        self.unsynced.iter().map(|step| u64::from(step.handouts)).sum::<u64>() + u64::from(self.handouts)
    }

    pub(crate) fn has_open_handouts(&self) -> bool {
        self.handouts > 0 || self.unsynced.iter().any(|step| step.handouts > 0)
    }

    /// The step ends, and `newest` is its last event, or that of a step before.
    pub(crate) fn end_step(&mut self, newest: Seq, now: Mono) {
        let handouts = core::mem::take(&mut self.handouts);
        let marked = self.unsynced.back().map_or(self.durable, |step| step.seq);
        if newest > marked {
            self.unsynced.push_back(UnsyncedStep { seq: newest, decided_at: now, handouts });
        }
    }

    /// Notes that everything up to this event is durable; a message from before may come late.
    pub(crate) fn advance(&mut self, seq: Seq) {
        self.durable = self.durable.max(seq);
    }

    /// The oldest step that has become durable, once.
    pub(crate) fn pop_synced(&mut self) -> Option<UnsyncedStep> {
        self.unsynced.front().filter(|step| step.seq <= self.durable)?;
        self.unsynced.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Mono {
        Mono::from_ms(ms)
    }

    #[test]
    fn a_step_is_synced_once_and_not_before_its_last_event_is() {
        let mut durability = Durability::default();
        durability.count_handout();
        durability.end_step(Seq(3), at(10));
        durability.end_step(Seq(5), at(20));
        durability.advance(Seq(4));
        assert_eq!(durability.pop_synced(), Some(UnsyncedStep { seq: Seq(3), decided_at: at(10), handouts: 1 }));
        assert_eq!(durability.pop_synced(), None);
        durability.advance(Seq(2));
        assert_eq!(durability.durable(), Seq(4), "what was durable stays so");
        durability.advance(Seq(5));
        assert_eq!(durability.pop_synced().map(|step| step.decided_at), Some(at(20)));
        assert_eq!(durability.pop_synced(), None);
    }

    #[test]
    fn a_step_without_events_is_not_waited_for() {
        let mut durability = Durability::default();
        durability.set_replayed(Seq(7));
        durability.end_step(Seq(7), at(10));
        durability.end_step(Seq(8), at(20));
        durability.end_step(Seq(8), at(30));
        durability.advance(Seq(8));
        assert_eq!(durability.pop_synced().map(|step| step.decided_at), Some(at(20)));
        assert_eq!(durability.pop_synced(), None);
    }

    #[test]
    fn hand_outs_are_open_until_they_are_durable() {
        let mut durability = Durability::default();
        durability.count_handout();
        assert!(durability.has_open_handouts(), "that of this very step");
        durability.end_step(Seq(1), at(1));
        durability.count_handout();
        durability.count_handout();
        durability.end_step(Seq(3), at(2));
        assert_eq!(durability.open_handouts(), 3);
        durability.advance(Seq(1));
        durability.pop_synced();
        assert_eq!(durability.open_handouts(), 2);
        durability.advance(Seq(3));
        durability.pop_synced();
        assert!(!durability.has_open_handouts());
    }

    #[test]
    fn the_log_is_behind_from_so_many_events_on() {
        let mut durability = Durability::default();
        durability.set_replayed(Seq(100));
        assert!(!durability.is_behind(Seq(99 + BEHIND)));
        assert!(durability.is_behind(Seq(100 + BEHIND)));
        durability.advance(Seq(101));
        assert!(!durability.is_behind(Seq(100 + BEHIND)));
    }
}
