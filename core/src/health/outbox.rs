//! Health of an outbox: rows that wait to be published, and the loop that publishes them.
//!
//! Trusted is what was published, never that rows were found. A row that fails too often is parked, so that it does not
//! hold up the others; parked rows past a limit, and a row that has waited too long, are unhealthy however well the
//! loop turns.

use super::loops::Iteration;
use core::time::Duration;

/// What an outbox cycle came to. Failures without a single success are no healthy idling.
pub const fn outbox_iteration(published: u64, failed: u64) -> Iteration {
    match (published, failed) {
        (0, 0) => Iteration::Idle { asked: true },
        (0, _) => Iteration::Failed { code: "nothing_published" },
        (published, 0) => Iteration::Progress(published),
        (ok, failed) => Iteration::Degraded { ok, failed },
    }
}

/// What of an outbox's backlog is tolerated.
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
    use super::*;

    #[test]
    fn outbox_iterations() {
        let table = [
            (0, 0, Iteration::Idle { asked: true }),
            (5, 0, Iteration::Progress(5)),
            (0, 5, Iteration::Failed { code: "nothing_published" }),
            (4, 1, Iteration::Degraded { ok: 4, failed: 1 }),
        ];
        for (published, failed, iteration) in table {
            assert_eq!(outbox_iteration(published, failed), iteration, "{published} published, {failed} failed");
        }
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
