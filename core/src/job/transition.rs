//! The lifecycle of a workflow, and of a job as a function of its workflows.
//!
//! ```text
//!   Waiting ──predecessors done──▶ Ready ──handed out──▶ Running ──▶ Succeeded | Failed | TimedOut
//!      │                            ▲  ▲                  │ │ │
//!      │                       due  │  └── requeued ──────┘ │ └─ cancel asked ─▶ Cancelling ─▶ Cancelled
//!      │                         Delayed ◀── backoff ───────┘                        │
//!      └── predecessor failed ─▶ Cancelled                              a late Succeeded still succeeds
//! ```
//!
//! While it is cancelling, a failure, a release and the end of the lease all end it as cancelled; the error is kept with
//! the attempt. Logs of the first version may have it fail there, and so that move stays legal.
//!
//! A cancelled workflow that nobody runs has nobody to confirm it: it passes through Cancelling to Cancelled at once.

use core::fmt;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum WorkflowState {
    Waiting,
    Delayed,
    Ready,
    Running,
    Cancelling,
    Succeeded,
    Cancelled,
    Failed,
    TimedOut,
}

impl WorkflowState {
    pub const ALL: [Self; 9] = [
        Self::Waiting,
        Self::Delayed,
        Self::Ready,
        Self::Running,
        Self::Cancelling,
        Self::Succeeded,
        Self::Cancelled,
        Self::Failed,
        Self::TimedOut,
    ];

    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Cancelled | Self::TimedOut)
    }

    /// Whether a worker holds an attempt of the workflow.
    pub const fn is_held(self) -> bool {
        matches!(self, Self::Running | Self::Cancelling)
    }

    pub const fn word(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Delayed => "delayed",
            Self::Ready => "ready",
            Self::Running => "running",
            Self::Cancelling => "cancelling",
            Self::Succeeded => "succeeded",
            Self::Cancelled => "cancelled",
            Self::Failed => "failed",
            Self::TimedOut => "timed_out",
        }
    }
}

/// A job's state uses the same words; it is derived by [`job_state`] and never stored.
pub type JobState = WorkflowState;

/// The reason why a workflow changes its state.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Cause {
    PredecessorsDone,
    PredecessorFailed,
    Due,
    HandedOut,
    Succeeded,
    FailedForGood,
    Backoff,
    Requeued,
    CancelAsked,
    CancelConfirmed,
    TimedOut,
}

impl Cause {
    pub const ALL: [Self; 11] = [
        Self::PredecessorsDone,
        Self::PredecessorFailed,
        Self::Due,
        Self::HandedOut,
        Self::Succeeded,
        Self::FailedForGood,
        Self::Backoff,
        Self::Requeued,
        Self::CancelAsked,
        Self::CancelConfirmed,
        Self::TimedOut,
    ];
}

/// Only a bug can ask for this.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IllegalTransition {
    pub from: WorkflowState,
    pub cause: Cause,
}

impl fmt::Display for IllegalTransition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a workflow cannot leave {} by {:?}", self.from.word(), self.cause)
    }
}

/// The one transition function. Nothing else writes a workflow's state.
pub const fn transition(from: WorkflowState, cause: Cause) -> Result<WorkflowState, IllegalTransition> {
    use WorkflowState as S;
    Ok(match (from, cause) {
        (S::Waiting, Cause::PredecessorsDone) => S::Ready,
        (S::Waiting, Cause::PredecessorFailed) => S::Cancelled,
        (S::Delayed, Cause::Due) => S::Ready,
        (S::Ready, Cause::HandedOut) => S::Running,
        (S::Running | S::Cancelling, Cause::Succeeded) => S::Succeeded,
        (S::Running | S::Cancelling, Cause::FailedForGood) => S::Failed,
        (S::Running, Cause::Backoff) => S::Delayed,
        (S::Running, Cause::Requeued) => S::Ready,
        (S::Waiting | S::Delayed | S::Ready, Cause::CancelAsked) => S::Cancelled,
        (S::Running, Cause::CancelAsked) => S::Cancelling,
        (S::Cancelling, Cause::CancelConfirmed) => S::Cancelled,
        (S::Waiting | S::Delayed | S::Ready | S::Running, Cause::TimedOut) => S::TimedOut,
        (from, cause) => return Err(IllegalTransition { from, cause }),
    })
}

/// Terminal when all workflows are, and then the worst outcome wins; cancelling if any is; running if any runs;
/// else the most advanced of ready, delayed, waiting.
pub fn job_state(workflows: impl Iterator<Item = WorkflowState>) -> JobState {
    most_advanced(workflows).expect("a job has at least one workflow")
}

/// The state that [`job_state`] gives; none without workflows.
pub fn most_advanced(workflows: impl Iterator<Item = WorkflowState>) -> Option<JobState> {
    use WorkflowState as S;
    const fn rank(state: WorkflowState) -> u8 {
        match state {
            S::Cancelling => 9,
            S::Running => 8,
            S::Ready => 7,
            S::Delayed => 6,
            S::Waiting => 5,
            S::TimedOut => 4,
            S::Failed => 3,
            S::Cancelled => 2,
            S::Succeeded => 1,
        }
    }
    workflows.max_by_key(|state| rank(*state))
}

#[cfg(test)]
mod tests {
    use super::WorkflowState as S;
    use super::*;

    /// Every legal move; every other pair must be refused.
    const LEGAL: &[(S, Cause, S)] = &[
        (S::Waiting, Cause::PredecessorsDone, S::Ready),
        (S::Waiting, Cause::PredecessorFailed, S::Cancelled),
        (S::Waiting, Cause::CancelAsked, S::Cancelled),
        (S::Waiting, Cause::TimedOut, S::TimedOut),
        (S::Delayed, Cause::Due, S::Ready),
        (S::Delayed, Cause::CancelAsked, S::Cancelled),
        (S::Delayed, Cause::TimedOut, S::TimedOut),
        (S::Ready, Cause::HandedOut, S::Running),
        (S::Ready, Cause::CancelAsked, S::Cancelled),
        (S::Ready, Cause::TimedOut, S::TimedOut),
        (S::Running, Cause::Succeeded, S::Succeeded),
        (S::Running, Cause::FailedForGood, S::Failed),
        (S::Running, Cause::Backoff, S::Delayed),
        (S::Running, Cause::Requeued, S::Ready),
        (S::Running, Cause::CancelAsked, S::Cancelling),
        (S::Running, Cause::TimedOut, S::TimedOut),
        (S::Cancelling, Cause::Succeeded, S::Succeeded),
        (S::Cancelling, Cause::FailedForGood, S::Failed),
        (S::Cancelling, Cause::CancelConfirmed, S::Cancelled),
    ];

    #[test]
    fn all_transitions_legal_and_illegal() {
        for from in S::ALL {
            for cause in Cause::ALL {
                let expected = LEGAL.iter().find(|row| row.0 == from && row.1 == cause).map(|row| row.2);
                assert_eq!(transition(from, cause).ok(), expected, "{from:?} by {cause:?}");
            }
        }
    }

    #[test]
    fn nothing_leaves_a_terminal_state() {
        for from in S::ALL.into_iter().filter(|state| state.is_terminal()) {
            assert!(Cause::ALL.into_iter().all(|cause| transition(from, cause).is_err()));
        }
    }

    #[test]
    fn a_job_is_a_function_of_its_workflows() {
        let table: &[(&[S], S)] = &[
            (&[S::Succeeded], S::Succeeded),
            (&[S::Succeeded, S::Cancelled], S::Cancelled),
            (&[S::Cancelled, S::Failed, S::Succeeded], S::Failed),
            (&[S::Failed, S::TimedOut, S::Cancelled], S::TimedOut),
            (&[S::Succeeded, S::Waiting], S::Waiting),
            (&[S::Waiting, S::Delayed], S::Delayed),
            (&[S::Delayed, S::Ready, S::Waiting], S::Ready),
            (&[S::Ready, S::Running, S::Failed], S::Running),
            (&[S::Running, S::Cancelling], S::Cancelling),
            (&[S::TimedOut, S::Waiting], S::Waiting),
        ];
        for (workflows, job) in table {
            assert_eq!(job_state(workflows.iter().copied()), *job, "{workflows:?}");
        }
    }
}
