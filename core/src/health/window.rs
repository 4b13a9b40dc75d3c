//! Counts of two things over a sliding window, in twelve buckets: bounded memory, whatever the load.
//!
//! Buckets lie on multiples of their width, and a bucket leaves the window as a whole. So what happened leaves it up to
//! a twelfth of the window early, and never late.

use crate::time::{Awake, span_ms};
use core::time::Duration;

const BUCKETS: usize = 12;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SlidingCounts {
    /// Number of the newest bucket ever written; bucket `n` lies at `n % BUCKETS`.
    newest: u64,
    width_ms: u32,
    good: [u16; BUCKETS],
    bad: [u16; BUCKETS],
}

impl SlidingCounts {
    pub(super) fn new(window: Duration) -> Self {
        let width = span_ms(window).div_ceil(BUCKETS as u64).clamp(1, u64::from(u32::MAX));
        Self { newest: 0, width_ms: width as u32, good: [0; BUCKETS], bad: [0; BUCKETS] }
    }

    pub(super) fn good(&mut self, now: Awake) {
        let at = self.advance(now);
        self.good[at] = self.good[at].saturating_add(1);
    }

    pub(super) fn bad(&mut self, now: Awake) {
        let at = self.advance(now);
        self.bad[at] = self.bad[at].saturating_add(1);
    }

    /// (good, bad) inside the window.
    pub(super) fn sum(&self, now: Awake) -> (u32, u32) {
        let current = self.number(now);
        self.buckets()
            .filter(|(number, ..)| in_window(*number, current))
            .fold((0, 0), |(good, bad), (_, g, b)| (good + u32::from(g), bad + u32::from(b)))
    }

    /// The instant when the oldest bucket that counts leaves the window.
    pub(super) fn next_decay(&self, now: Awake) -> Option<Awake> {
        let current = self.number(now);
        let oldest =
            self.buckets().filter(|(n, g, b)| in_window(*n, current) && (*g > 0 || *b > 0)).map(|(n, ..)| n).min();
        oldest.map(|number| Awake::from_ms((number + BUCKETS as u64).saturating_mul(u64::from(self.width_ms))))
    }

    /// The bucket that `now` falls into. Time that seems to run back falls into the newest one.
    pub(super) fn number(&self, now: Awake) -> u64 {
        (now.as_ms() / u64::from(self.width_ms)).max(self.newest)
    }

    fn buckets(&self) -> impl Iterator<Item = (u64, u16, u16)> {
        let oldest = (self.newest + 1).saturating_sub(BUCKETS as u64);
        (oldest..=self.newest).map(|number| {
            let at = (number % BUCKETS as u64) as usize;
            (number, self.good[at], self.bad[at])
        })
    }

    fn advance(&mut self, now: Awake) -> usize {
        let current = self.number(now);
        let passed = (current - self.newest).min(BUCKETS as u64);
        for number in current - passed + 1..=current {
            let at = (number % BUCKETS as u64) as usize;
            self.good[at] = 0;
            self.bad[at] = 0;
        }
        self.newest = current;
        (current % BUCKETS as u64) as usize
    }
}

/// Whether the counts of bucket `number` still count when `current` is the newest.
pub(super) const fn in_window(number: u64, current: u64) -> bool {
    number + BUCKETS as u64 > current
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(seconds: u64) -> Awake {
        Awake::from_ms(seconds * 1000)
    }

    #[test]
    fn counts_leave_with_their_bucket() {
        let mut counts = SlidingCounts::new(Duration::from_secs(60));
        for at in [1, 4, 5] {
            counts.good(s(at));
        }
        counts.bad(s(33));
        counts.good(s(59));
        // at -> (good, bad), next decay
        let table = [
            (59, (4, 1), Some(60)),
            (60, (2, 1), Some(65)),
            (64, (2, 1), Some(65)),
            (65, (1, 1), Some(90)),
            (90, (1, 0), Some(115)),
            (114, (1, 0), Some(115)),
            (115, (0, 0), None),
            (9999, (0, 0), None),
        ];
        for (at, sum, decay) in table {
            assert_eq!((counts.sum(s(at)), counts.next_decay(s(at))), (sum, decay.map(s)), "at {at} s");
        }
    }

    #[test]
    fn old_buckets_are_cleared_before_they_are_used_again() {
        for gap in [11, 12, 13, 59, 60, 61, 119, 120, 121, 6000] {
            let mut counts = SlidingCounts::new(Duration::from_secs(60));
            counts.good(s(7));
            counts.bad(s(12));
            counts.good(s(7 + gap));
            let kept = u32::from(7 + gap < 65);
            let kept_bad = u32::from(7 + gap < 70);
            assert_eq!(counts.sum(s(7 + gap)), (1 + kept, kept_bad), "gap {gap}");
        }
    }

    #[test]
    fn counts_saturate() {
        let mut counts = SlidingCounts::new(Duration::from_secs(60));
        for _ in 0..70_000 {
            counts.bad(s(1));
        }
        assert_eq!(counts.sum(s(1)), (0, 65_535));
    }
}
