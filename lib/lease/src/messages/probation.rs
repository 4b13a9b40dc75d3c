//! When the loop takes one message at a time, how long it waits between tries, and which tries count.

use core::time::Duration;
use std::collections::HashMap;

use onward_core::backoff::Backoff;

use crate::mailbox::MessageId;

/// Waits of a loop on probation.
const WAITS: Backoff = Backoff { base: Duration::from_secs(1), max: Duration::from_secs(120) };
/// Longest wait of a loop on probation.
pub(super) const LONGEST_WAIT: Duration = WAITS.max;
/// Tries of one message on probation of which the last counts: it may be this message that cannot succeed.
pub(super) const TRIES_TO_ONE: u32 = 12;
/// Most messages whose releases are counted. Where more fail in turn, these reach their limit and make room.
const MAX_RELEASED: usize = 1_000;

/// Failures in a row, and what follows from them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Probation {
    budget: u32,
    failures: u32,
    /// A message is tried in place.
    pub(super) in_place: bool,
    /// Releases of each message since the last success, or since a try of it counted.
    released: HashMap<MessageId, u32>,
}

impl Probation {
    pub(super) fn new(budget: u32) -> Self {
        Self { budget: budget.max(1), failures: 0, in_place: false, released: HashMap::new() }
    }

    pub(super) fn is_on(&self) -> bool {
        self.failures >= self.budget
    }

    pub(super) fn succeeded(&mut self) {
        self.failures = 0;
        self.released.clear();
    }

    /// Whether a message that failed on probation is released once more, and its try not counted. Without an end to that,
    /// a lone message that always fails would never be buried.
    pub(super) fn may_release(&mut self, message: &MessageId) -> bool {
        if !self.released.contains_key(message) && self.released.len() >= MAX_RELEASED {
            return true;
        }
        let releases = self.released.entry(message.clone()).or_default();
        *releases += 1;
        let may = *releases < TRIES_TO_ONE;
        if !may {
            self.released.remove(message);
        }
        may
    }

    /// Returns how long to wait before the next try, if the loop is on probation now. Half of it is jitter.
    pub(super) fn failed(&mut self, draw: u64) -> Option<Duration> {
        self.failures = self.failures.saturating_add(1);
        let beyond = (self.failures + 1).checked_sub(self.budget).filter(|beyond| *beyond > 0)?;
        Some(WAITS.ceiling(beyond) / 2 + WAITS.delay(beyond, draw) / 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_is_spent_by_failures_in_a_row_and_refilled_by_one_success() {
        let mut probation = Probation::new(3);
        let secs = Duration::from_secs;
        for (draw, wait) in
            [(0, None), (0, None), (u64::MAX, Some(secs(1))), (u64::MAX, Some(secs(2))), (0, Some(secs(2)))]
        {
            assert_eq!(probation.failed(draw), wait);
        }
        assert!(probation.is_on());
        for _ in 0..20 {
            probation.failed(0);
        }
        assert_eq!(probation.failed(u64::MAX), Some(secs(120)));
        probation.succeeded();
        assert_eq!((probation.is_on(), probation.failed(0)), (false, None));
    }

    #[test]
    fn the_twelfth_try_of_a_message_counts_and_a_success_begins_anew() {
        let mut probation = Probation::new(1);
        let (one, other) = (MessageId::new("one"), MessageId::new("other"));
        let releases_of =
            |probation: &mut Probation, message| (0..99).take_while(|_| probation.may_release(message)).count();
        assert_eq!((releases_of(&mut probation, &one), releases_of(&mut probation, &one)), (11, 11));
        assert!(probation.may_release(&one) && probation.may_release(&other));
        assert_eq!(releases_of(&mut probation, &one), 10, "those of another message are its own");
        probation.may_release(&one);
        probation.succeeded();
        assert_eq!(releases_of(&mut probation, &one), 11);
        for number in 0..MAX_RELEASED + 9 {
            assert!(probation.may_release(&MessageId::new(number.to_string())));
        }
        assert_eq!(probation.released.len(), MAX_RELEASED);
    }
}
