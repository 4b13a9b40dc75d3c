//! The fate of a job that is over: whether it is a dead letter, and until when its idempotency key is remembered.
//!
//! Both are decided with the event by which a job may end, and are part of it, so that applying that event needs no rule.
//! Logs of older versions do not say, and mean what the rules were then.

use core::time::Duration;

use crate::time::Wall;
use crate::timeout::TimeoutReason;

use super::WorkflowState;

/// The time past the end of its job for which an idempotency key is remembered.
pub const IDEMPOTENCY_KEPT: Duration = Duration::from_secs(24 * 3600);

/// The fate of a job if it is over by an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct JobEnd {
    /// Set if the job is a dead letter.
    pub dead: bool,
    /// The instant from which the job's idempotency key may be forgotten; zero if it has none.
    pub key_until: Wall,
}

impl JobEnd {
    pub fn new(ended_at: Wall, has_key: bool, dead: bool) -> Self {
        let key_until = if has_key { ended_at + IDEMPOTENCY_KEPT } else { Wall::ZERO };
        Self { dead, key_until }
    }
}

/// Whether a workflow in this state makes its job a dead letter, once that is over. `counted` are its attempts that
/// count, and `timed_out` says why the job was timed out, if it was.
pub fn is_dead_by(state: WorkflowState, counted: u32, timed_out: Option<TimeoutReason>, max_attempts: u32) -> bool {
    match state {
        WorkflowState::Failed => true,
        // Not one that was to end the first time that it was stuck.
        WorkflowState::TimedOut => timed_out == Some(TimeoutReason::Stuck) && counted >= max_attempts,
        WorkflowState::Waiting
        | WorkflowState::Delayed
        | WorkflowState::Ready
        | WorkflowState::Running
        | WorkflowState::Cancelling
        | WorkflowState::Succeeded
        | WorkflowState::Cancelled => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_a_dead_letter_by_what_failed_for_good_or_was_stuck_too_often() {
        use TimeoutReason::{Overall, Stuck};
        for (state, counted, timed_out, dead) in [
            (WorkflowState::Failed, 1, None, true),
            (WorkflowState::Failed, 0, Some(Overall), true),
            (WorkflowState::TimedOut, 3, Some(Stuck), true),
            (WorkflowState::TimedOut, 4, Some(Stuck), true),
            (WorkflowState::TimedOut, 2, Some(Stuck), false),
            (WorkflowState::TimedOut, 3, Some(Overall), false),
            (WorkflowState::TimedOut, 3, None, false),
            (WorkflowState::Succeeded, 3, None, false),
            (WorkflowState::Cancelled, 3, None, false),
        ] {
            assert_eq!(is_dead_by(state, counted, timed_out, 3), dead, "{state:?} after {counted}, {timed_out:?}");
        }
    }

    #[test]
    fn a_key_is_remembered_for_a_day() {
        let ended_at = Wall::from_ms(1_000);
        assert_eq!(JobEnd::new(ended_at, true, false).key_until, Wall::from_ms(1_000 + 86_400_000));
        assert_eq!(JobEnd::new(ended_at, false, true), JobEnd { dead: true, key_until: Wall::ZERO });
    }
}
