//! Hold: no mass eviction.
//!
//! When most nodes of a kind fail together, the cause is more likely ours (network, database, a bad release) than theirs,
//! and evicting them would turn a disturbance into an outage. So all of them are held, and it is looked at again every
//! `recheck_every`. A hold stops eviction and nothing else: leases still expire, and their work is handed out again.
//!
//! Counted are the tracked nodes of one kind. Nodes that were evicted within `evicted_within` and are not back are among
//! them, and fail: a failure that rolls through the nodes must not be smaller at every step for what it did before. Workers that call over HTTP are not: nobody asks them, so their silence
//! says nothing about the others.

use crate::time::Awake;
use core::time::Duration;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Hold {
    Clear,
    /// Systemic failure, holding eviction.
    Held,
}

impl Hold {
    pub const fn code(self) -> &'static str {
        match self {
            Self::Clear => "clear",
            Self::Held => "systemic_failure",
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HoldRule {
    pub recheck_every: Duration,
    /// A held node that is not live and holds nothing is not waited for longer than this.
    pub forget_after: Duration,
    /// A node that was evicted within this and is not back counts as tracked and failing.
    pub evicted_within: Duration,
}

impl Default for HoldRule {
    fn default() -> Self {
        Self {
            recheck_every: Duration::from_secs(1),
            forget_after: Duration::from_secs(15 * 60),
            evicted_within: Duration::from_secs(5 * 60),
        }
    }
}

/// `failing` are those of the `tracked` that would be evicted now.
pub const fn hold(tracked: usize, failing: usize) -> Hold {
    if failing > tracked.saturating_sub(failing) { Hold::Held } else { Hold::Clear }
}

/// The instant when a held node that is not live is forgotten; never while it holds an attempt (`empty_since` is none).
pub fn forget_at(rule: &HoldRule, not_live_since: Awake, empty_since: Option<Awake>) -> Option<Awake> {
    Some(not_live_since.max(empty_since?) + rule.forget_after)
}

#[cfg(test)]
mod tests {
    use super::*;
    use Hold::*;

    #[test]
    fn more_than_half_is_held() {
        // tracked, failing -> hold
        let table = [
            (0, 0, Clear),
            (1, 0, Clear),
            (1, 1, Held),
            (2, 1, Clear),
            (2, 2, Held),
            (3, 1, Clear),
            (3, 2, Held),
            (4, 2, Clear),
            (4, 3, Held),
            (5, 2, Clear),
            (5, 3, Held),
            (1000, 500, Clear),
            (1000, 501, Held),
            (usize::MAX, usize::MAX, Held),
        ];
        for (tracked, failing, expected) in table {
            assert_eq!(hold(tracked, failing), expected, "{failing} of {tracked}");
        }
    }

    #[test]
    fn forgotten_fifteen_minutes_after_it_was_both_gone_and_empty() {
        let rule = HoldRule::default();
        let min = |minutes: u64| Awake::from_ms(minutes * 60_000);
        // not live since, empty since -> forgotten at, in minutes
        for (gone, empty, at) in
            [(2, Some(2), Some(17)), (2, Some(5), Some(20)), (5, Some(0), Some(20)), (2, None, None)]
        {
            assert_eq!(forget_at(&rule, min(gone), empty.map(min)), at.map(min), "gone {gone}, empty {empty:?}");
        }
    }
}
