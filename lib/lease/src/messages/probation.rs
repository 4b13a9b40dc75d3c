//! When the loop takes one message at a time, and how long it waits between tries.

use core::time::Duration;

use onward_core::backoff::Backoff;

/// Waits of a loop on probation.
const WAITS: Backoff = Backoff { base: Duration::from_secs(1), max: Duration::from_secs(120) };
/// Most tries of one message in place, before another one has its turn: it may be this message that cannot succeed.
pub(super) const TRIES_IN_PLACE: u32 = 12;

/// Failures in a row, and what follows from them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Probation {
    budget: u32,
    failures: u32,
    /// A message is tried in place.
    pub(super) in_place: bool,
}

impl Probation {
    pub(super) fn new(budget: u32) -> Self {
        Self { budget: budget.max(1), failures: 0, in_place: false }
    }

    pub(super) fn is_on(&self) -> bool {
        self.failures >= self.budget
    }

    pub(super) fn succeeded(&mut self) {
        self.failures = 0;
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
}
