//! Health of an outbox: rows that wait to be published, and the loop that publishes them.
//!
//! Trusted is what was published, never that rows were found. A row that fails too often is parked, so that it does not
//! hold up the others; parked rows past a limit, and a row that has waited too long, are unhealthy however well the
//! loop turns.

use super::loops::Iteration;
use core::time::Duration;

/// The findings and results of one turn of an outbox.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OutboxTurn {
    pub published: u64,
    /// Rows that the publisher refused, each for a reason of its own.
    pub refused: u64,
    /// Rows that were given back because the publisher was unavailable: nobody's fault, so no attempt of theirs.
    pub given_back: u64,
    /// Rows that were left to their leases because the publisher panicked with them: one of them may be to blame.
    pub crashed: u64,
    /// Rows neither published nor parked that nobody took in this turn, above all those that wait for their retry.
    /// Rows behind a parked row of their key are not among them: the limit on parked rows speaks for them. Nor are rows
    /// that are claimed.
    pub waiting: u64,
    /// Rows that were seen under a claim of somebody else, or of an earlier turn that could not settle them.
    pub claimed: u64,
}

impl OutboxTurn {
    /// Failures without a single success are no healthy idling, and neither is a backlog that nobody may touch yet: an
    /// outage in which every row waits for its retry must not look like an empty outbox between two failures. The same
    /// holds for one that is empty only because another poller has claimed what it cannot publish either.
    pub const fn iteration(self) -> Iteration {
        let failed = self.refused.saturating_add(self.given_back).saturating_add(self.crashed);
        match (self.published, failed) {
            (0, 0) if self.waiting > 0 || self.claimed > 0 => Iteration::Skipped,
            (0, 0) => Iteration::Idle,
            (0, _) if self.crashed > 0 => Iteration::Failed { code: "publisher_panicked" },
            (0, _) if self.given_back > 0 => Iteration::Failed { code: "publisher_unavailable" },
            (0, _) => Iteration::Failed { code: "nothing_published" },
            (published, 0) => Iteration::Progress(published),
            (ok, failed) => Iteration::Degraded { ok, failed },
        }
    }

    /// All rows that could be published are in other hands. The outbox was asked, so this poller is fresh: it is not to
    /// blame for being left nothing. It is no success either, which would end failures in a row.
    pub const fn is_all_claimed(self) -> bool {
        matches!(self.iteration(), Iteration::Skipped) && self.waiting == 0
    }
}

/// The limits within which an outbox's backlog is tolerated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OutboxRule {
    pub max_parked: u64,
    pub max_unpublished_age: Duration,
}

impl Default for OutboxRule {
    fn default() -> Self {
        Self { max_parked: 100, max_unpublished_age: Duration::from_secs(300) }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum OutboxProblem {
    TooManyParked,
    OldestTooOld,
}

impl OutboxProblem {
    pub const fn code(self) -> &'static str {
        match self {
            Self::TooManyParked => "too_many_parked",
            Self::OldestTooOld => "oldest_too_old",
        }
    }
}

/// `oldest_unpublished` is the age of the oldest row that is neither published nor parked.
pub fn outbox_backlog(
    rule: &OutboxRule,
    parked: u64,
    oldest_unpublished: Option<Duration>,
) -> Result<(), OutboxProblem> {
    if parked > rule.max_parked {
        Err(OutboxProblem::TooManyParked)
    } else if oldest_unpublished.is_some_and(|age| age > rule.max_unpublished_age) {
        Err(OutboxProblem::OldestTooOld)
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::loops::{LoopHealth, LoopReason, LoopRule, LoopState};
    use super::*;
    use crate::time::Awake;

    #[test]
    fn outbox_iterations() {
        let unavailable = Iteration::Failed { code: "publisher_unavailable" };
        let refused = Iteration::Failed { code: "nothing_published" };
        let panicked = Iteration::Failed { code: "publisher_panicked" };
        // published, refused, given back, crashed; waiting, claimed -> is all claimed
        let table = [
            ((0, 0, 0, 0), (0, 0), Iteration::Idle, false),
            ((0, 0, 0, 0), (1, 0), Iteration::Skipped, false),
            ((0, 0, 0, 0), (0, 1), Iteration::Skipped, true),
            ((0, 0, 0, 0), (1, 1), Iteration::Skipped, false),
            ((5, 0, 0, 0), (0, 0), Iteration::Progress(5), false),
            ((5, 0, 0, 0), (9, 0), Iteration::Progress(5), false),
            ((5, 0, 0, 0), (0, 9), Iteration::Progress(5), false),
            ((0, 5, 0, 0), (0, 0), refused, false),
            ((0, 5, 0, 0), (9, 9), refused, false),
            ((0, 0, 5, 0), (0, 0), unavailable, false),
            ((0, 1, 5, 0), (9, 0), unavailable, false),
            ((0, 1, 0, 2), (0, 2), panicked, false),
            ((4, 1, 0, 0), (0, 0), Iteration::Degraded { ok: 4, failed: 1 }, false),
            ((4, 1, 2, 3), (9, 3), Iteration::Degraded { ok: 4, failed: 6 }, false),
        ];
        for ((published, refused, given_back, crashed), (waiting, claimed), iteration, is_all_claimed) in table {
            let turn = OutboxTurn { published, refused, given_back, crashed, waiting, claimed };
            assert_eq!((turn.iteration(), turn.is_all_claimed()), (iteration, is_all_claimed), "{turn:?}");
        }
    }

    /// Rows back off for longer than the poller waits, so most turns of an outage find nothing that is due. Were those
    /// idle, they would come between the failures, and three failures in a row would never come.
    #[test]
    fn an_outage_with_all_rows_in_backoff_turns_red_within_the_budget_and_green_after() {
        let at = |second: u64| Awake::from_ms(second * 1000);
        let mut health = LoopHealth::started(LoopRule::default(), at(0));
        let mut run = |second: u64, turn: OutboxTurn| {
            health.begin(at(second));
            health.end(at(second), turn.iteration());
            health.state(at(second))
        };
        assert_eq!(run(0, OutboxTurn { published: 10, ..OutboxTurn::default() }).state, LoopState::Healthy);
        let failed = OutboxTurn { given_back: 10, ..OutboxTurn::default() };
        let in_backoff = OutboxTurn { waiting: 10, ..OutboxTurn::default() };
        // One turn a second; retries after 2, 4, 8 seconds and so on.
        let retries = [1, 3, 7, 15, 31];
        for second in 1..40 {
            let status = run(second, if retries.contains(&second) { failed } else { in_backoff });
            let expected = if second < 7 { LoopState::Healthy } else { LoopState::Failing };
            assert_eq!(status.state, expected, "after {second} s: {status:?}");
        }
        assert_eq!(run(40, OutboxTurn { published: 10, ..OutboxTurn::default() }).reason, LoopReason::Recovering);
        assert_eq!(run(41, OutboxTurn::default()).state, LoopState::Healthy, "published, and nothing is left");
    }

    #[test]
    fn outbox_backlogs() {
        use OutboxProblem::*;
        let table = [
            (0, None, Ok(())),
            (100, Some(300), Ok(())),
            (101, None, Err(TooManyParked)),
            (0, Some(301), Err(OldestTooOld)),
            (101, Some(301), Err(TooManyParked)),
        ];
        for (parked, age, expected) in table {
            let backlog = outbox_backlog(&OutboxRule::default(), parked, age.map(Duration::from_secs));
            assert_eq!(backlog, expected, "{parked} parked, oldest {age:?}");
        }
    }
}
