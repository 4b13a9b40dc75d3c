//! Instants that wait for the end of an earlier run, in this process.
//!
//! A store has records behind a horizon and none before it, so an instant that waits has none yet, and neither has one
//! that came when all places were taken: its record is written when those before it have theirs.

use std::collections::VecDeque;

use onward_core::schedule::{MAX_WAITING, PassedInstants, RecordReason};
use onward_core::time::Wall;

#[derive(Default)]
pub(super) struct InstantQueue {
    waiting: VecDeque<Wall>,
    /// Instants that had come by then, and do not wait, found no place.
    full_until: Option<Wall>,
}

impl InstantQueue {
    /// Gives places to instants that have come by `now`, as far as there are some.
    pub(super) fn admit(&mut self, due: &[Wall], now: Wall, starts_at: impl Fn(Wall) -> Wall) {
        self.forget_decided(due);
        for one in due {
            if self.waiting.contains(one) || self.is_refused(starts_at(*one)) {
                continue;
            }
            if self.waiting.len() < MAX_WAITING {
                self.waiting.push_back(*one);
            } else {
                self.full_until = Some(now);
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The first of `due`, up to one that waits, if they found no place.
    pub(super) fn refused(&self, due: &[Wall], starts_at: impl Fn(Wall) -> Wall) -> Option<PassedInstants> {
        let is_refused = |one: &&Wall| !self.waiting.contains(one) && self.is_refused(starts_at(**one));
        let refused = &due[..due.iter().take_while(is_refused).count()];
        let (first, last) = (*refused.first()?, *refused.last()?);
        Some(PassedInstants { reason: RecordReason::QueueFull, first, last, count: refused.len() as u64 })
    }

    /// The first of `due`, if it is its turn.
    pub(super) fn take(&mut self, due: &[Wall]) -> Option<Wall> {
        self.forget_decided(due);
        self.waiting.pop_front_if(|first| due.first() == Some(first))
    }

    /// Another process may have decided some.
    fn forget_decided(&mut self, due: &[Wall]) {
        while self.waiting.pop_front_if(|first| due.first().is_some_and(|due| *first < *due)).is_some() {}
    }

    fn is_refused(&self, starts_at: Wall) -> bool {
        self.full_until.is_some_and(|full| starts_at <= full)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(range: std::ops::RangeInclusive<u64>) -> Vec<Wall> {
        range.map(|second| Wall::from_ms(second * 1_000)).collect()
    }

    #[test]
    fn who_finds_no_place_is_refused_when_those_before_have_had_their_turn() {
        let (mut queue, places) = (InstantQueue::default(), MAX_WAITING as u64);
        let at = |second: u64| Wall::from_ms(second * 1_000);
        let same = |due| due;
        queue.admit(&seconds(1..=places + 10), at(places + 10), same);
        assert_eq!(queue.refused(&seconds(1..=places + 10), same), None, "the first waits");
        assert_eq!(queue.take(&seconds(1..=places + 10)), Some(at(1)));
        // There is a place again: for what comes now, and not for what came before.
        queue.admit(&seconds(2..=places + 12), at(places + 12), same);
        for second in 2..=places {
            assert_eq!(queue.refused(&seconds(second..=places + 12), same), None);
            assert_eq!(queue.take(&seconds(second..=places + 12)), Some(at(second)));
        }
        let passed = |first, last| {
            let (first, last, count) = (at(first), at(last), last - first + 1);
            Some(PassedInstants { reason: RecordReason::QueueFull, first, last, count })
        };
        assert_eq!(queue.refused(&seconds(places + 1..=places + 12), same), passed(places + 1, places + 10));
        assert_eq!(queue.refused(&seconds(places + 11..=places + 12), same), None);
        assert_eq!(queue.take(&seconds(places + 11..=places + 12)), Some(at(places + 11)));
        assert_eq!(queue.refused(&seconds(places + 12..=places + 12), same), passed(places + 12, places + 12));
        assert_eq!(queue.refused(&seconds(places + 13..=places + 13), same), None);
        assert_eq!(queue.take(&seconds(places + 13..=places + 13)), None);
    }

    #[test]
    fn what_another_process_has_decided_keeps_nobody_waiting() {
        let mut queue = InstantQueue::default();
        queue.admit(&seconds(1..=5), Wall::from_ms(5_000), |due| due);
        assert_eq!(queue.take(&seconds(3..=5)), Some(Wall::from_ms(3_000)));
    }
}
