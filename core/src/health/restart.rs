//! Whether a loop that crashed is started again, and after which wait.
//!
//! Waits double with each crash of the window, with full jitter. A loop that crashes too often inside the window is not
//! started again: whatever is wrong with it, another start of the same process does not help, and a crash loop that
//! nobody sees is worse than a loop that is gone.

use super::window::SlidingCounts;
use crate::backoff::Backoff;
use crate::time::Awake;
use core::time::Duration;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RestartRule {
    pub backoff: Backoff,
    /// Crashes inside the window after which the loop is started again; one more, and it is not.
    pub most: u32,
    pub within: Duration,
}

impl Default for RestartRule {
    fn default() -> Self {
        let backoff = Backoff { base: Duration::from_secs(1), max: Duration::from_secs(30) };
        Self { backoff, most: 5, within: Duration::from_secs(300) }
    }
}

/// The crashes of one loop, in a fixed size.
#[derive(Clone, Copy, Debug)]
pub struct Restarts {
    rule: RestartRule,
    crashes: SlidingCounts,
}

impl Restarts {
    pub fn new(rule: RestartRule) -> Self {
        Self { rule, crashes: SlidingCounts::new(rule.within) }
    }

    /// The wait before the next start; `None` if there is none. `draw` is uniform over all of `u64`.
    pub fn crashed(&mut self, now: Awake, draw: u64) -> Option<Duration> {
        self.crashes.bad(now);
        let (_, crashes) = self.crashes.sum(now);
        (crashes <= self.rule.most).then(|| self.rule.backoff.delay(crashes, draw))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_until_there_is_no_next_start() {
        let backoff = Backoff { base: Duration::from_secs(1), max: Duration::from_secs(3) };
        let rule = RestartRule { backoff, most: 3, within: Duration::from_secs(120) };
        // seconds of crashes -> waits in seconds
        let table: [(&[u64], &[Option<u64>]); 4] = [
            (&[0, 1, 2, 3, 4], &[Some(1), Some(2), Some(3), None, None]),
            (&[0, 121, 242, 363, 484], &[Some(1), Some(1), Some(1), Some(1), Some(1)]),
            (&[0, 60, 119, 130], &[Some(1), Some(2), Some(3), Some(3)]),
            (&[0, 60, 110, 119], &[Some(1), Some(2), Some(3), None]),
        ];
        for (crashes, waits) in table {
            let mut restarts = Restarts::new(rule);
            let got: Vec<_> = crashes.iter().map(|at| restarts.crashed(Awake::from_ms(at * 1000), u64::MAX)).collect();
            let waits: Vec<_> = waits.iter().map(|wait| wait.map(Duration::from_secs)).collect();
            assert_eq!(got, waits, "{crashes:?}");
        }
        assert_eq!(Restarts::new(rule).crashed(Awake::ZERO, 0), Some(Duration::ZERO), "full jitter");
    }
}
