//! The overall deadline of a job.
//!
//! A job ends when `started_at + timeout + extensions` is over, wherever it is. `started_at` is when it could first
//! run (its submission, or the end of its delay) and is stamped once: queueing counts, and neither a retry nor a new
//! leader moves it. Extensions are the sum of the grants that its workers earned, capped so that a hundred workers cannot
//! stretch a job without end, and of what an operator gave, which is not. The stuck clock of an attempt is in [`crate::beat`].
//!
//! **Who decides.** A job submitted straight to a manager is decided here, on the datacenter's leader, once: the first
//! terminal state written wins. A job that came from a gate is decided by that gate for all its datacenters; the manager
//! then reports what this module finds instead of acting on it, and acts only if no gate answers for long
//! (`manager/gates`).

use core::time::Duration;

use crate::time::Wall;

/// The reason why a job was timed out.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum TimeoutReason {
    Overall,
    Stuck,
}

impl TimeoutReason {
    pub const fn code(self) -> &'static str {
        match self {
            Self::Overall => "timeout",
            Self::Stuck => "stuck",
        }
    }
}

/// More time, by who gave it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ExtensionTotals {
    /// Earned by workers.
    pub grants: Duration,
    /// Extensions by operators.
    pub by_hand: Duration,
}

/// The instant, in log time, at which the job is over. The cap is on what workers earn.
pub fn overall_deadline(started_at: Wall, timeout: Duration, extended: ExtensionTotals, cap: Duration) -> Wall {
    started_at + timeout + extended.grants.min(cap) + extended.by_hand
}

/// The instant at which a deadline fires. After a takeover downtime counts, but what began before it does not fire
/// until the new leader has had time to hear from anyone.
pub fn fires_at(deadline: Wall, started_at: Wall, seat_taken: Wall, takeover_grace: Duration) -> Wall {
    if started_at < seat_taken { deadline.max(seat_taken + takeover_grace) } else { deadline }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Wall {
        Wall::from_ms(seconds * 1000)
    }

    #[test]
    fn extensions_add_up_to_their_cap() {
        // (started, timeout, grants, by hand, cap) -> deadline, in seconds
        for (started, timeout, grants, by_hand, cap, deadline) in [
            (100, 300, 0, 0, 300, 400),
            (100, 300, 58, 0, 300, 458),
            (100, 300, 900, 0, 300, 700),
            (0, 60, 10, 0, 0, 60),
            (0, 60, 10, 600, 0, 660),
            (100, 300, 900, 900, 300, 1_600),
        ] {
            let secs = Duration::from_secs;
            let extended = ExtensionTotals { grants: secs(grants), by_hand: secs(by_hand) };
            assert_eq!(overall_deadline(at(started), secs(timeout), extended, secs(cap)), at(deadline));
        }
    }

    #[test]
    fn downtime_counts_but_does_not_fire_before_the_grace() {
        let grace = Duration::from_secs(15);
        // (deadline, started, seat taken) -> fires, in seconds
        for (deadline, started, taken, fires) in
            [(50, 10, 100, 115), (114, 99, 100, 115), (200, 10, 100, 200), (102, 100, 100, 102), (103, 101, 100, 103)]
        {
            assert_eq!(fires_at(at(deadline), at(started), at(taken), grace), at(fires), "{deadline} from {started}");
        }
    }
}
