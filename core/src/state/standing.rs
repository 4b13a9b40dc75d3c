//! What becomes of a word under a fence: the one place where an attempt's fence is compared, and the one home of what is
//! said to somebody whose attempt is over. The machine asks for jobs that it holds, [`super::JobImage`] for others.

use core::cmp::Ordering;

use crate::fence::AttemptFence;
use crate::job::{Ending, WorkflowState};
use crate::refusal::Refusal;

use super::EndedAttempt;

/// The standing of a fence against the newest of its workflow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FenceStanding {
    Newest,
    Superseded,
    NeverHandedOut,
}

pub(super) fn compare(fence: AttemptFence, newest: AttemptFence) -> FenceStanding {
    match fence.cmp(&newest) {
        // Before the first hand-out there is no attempt to speak for.
        Ordering::Equal if fence == AttemptFence::NONE => FenceStanding::NeverHandedOut,
        Ordering::Equal => FenceStanding::Newest,
        Ordering::Less => FenceStanding::Superseded,
        Ordering::Greater => FenceStanding::NeverHandedOut,
    }
}

/// `ended` is the attempt, if it is still kept; `said` is the outcome that its holder reports, if it does.
pub(super) fn answer_over(
    standing: FenceStanding,
    workflow: WorkflowState,
    ended: Option<&EndedAttempt>,
    said: Option<&Ending>,
) -> Result<(), Refusal> {
    match ended {
        // Said before and accepted: the answer is the same again.
        Some(ended) if said == Some(&ended.ending) => Ok(()),
        Some(ended) if ended.ending.is_reported() => Err(Refusal::AlreadyEnded),
        _ if standing == FenceStanding::Newest && workflow.is_terminal() => Err(Refusal::AlreadyEnded),
        _ => Err(Refusal::StaleAttempt),
    }
}
