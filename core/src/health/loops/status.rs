//! The states of a loop, and their reasons.

use crate::time::Awake;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum LoopState {
    Starting,
    Healthy,
    Finished,
    Degraded,
    Failing,
    Restarting,
    Stalled,
    Stopping,
    Dead,
}

impl LoopState {
    pub const ALL: [Self; 9] = [
        Self::Starting,
        Self::Healthy,
        Self::Finished,
        Self::Degraded,
        Self::Failing,
        Self::Restarting,
        Self::Stalled,
        Self::Stopping,
        Self::Dead,
    ];

    pub const fn code(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Healthy => "healthy",
            Self::Finished => "finished",
            Self::Degraded => "degraded",
            Self::Failing => "failing",
            Self::Restarting => "restarting",
            Self::Stalled => "stalled",
            Self::Stopping => "stopping",
            Self::Dead => "dead",
        }
    }

    /// Whether a process with a critical loop in this state may be sent work.
    pub const fn is_ready(self) -> bool {
        matches!(self, Self::Healthy | Self::Finished)
    }

    /// Whether a restart of the process would not help. It helps a loop that hangs, or that is gone; it does not bring
    /// back a dependency.
    pub const fn is_live(self) -> bool {
        !matches!(self, Self::Stalled | Self::Dead)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum LoopReason {
    NoSuccessYet,
    WithinBudgetAndFresh,
    /// The loop has done all that it was there for.
    AllDone,
    BudgetSpent,
    /// Successes come again, not yet enough of them.
    Recovering,
    NotFresh,
    NeverSucceeded,
    /// The loop crashed; it is started again, or was and has not succeeded since.
    Crashed,
    IterationTooLong,
    NotTurning,
    ToldToStop,
    Gone,
}

impl LoopReason {
    pub const fn code(self) -> &'static str {
        match self {
            Self::NoSuccessYet => "no_success_yet",
            Self::WithinBudgetAndFresh => "within_budget_and_fresh",
            Self::AllDone => "all_done",
            Self::BudgetSpent => "budget_spent",
            Self::Recovering => "recovering",
            Self::NotFresh => "not_fresh",
            Self::NeverSucceeded => "never_succeeded",
            Self::Crashed => "crashed",
            Self::IterationTooLong => "iteration_too_long",
            Self::NotTurning => "not_turning",
            Self::ToldToStop => "told_to_stop",
            Self::Gone => "gone",
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LoopStatus {
    pub state: LoopState,
    pub reason: LoopReason,
    /// Since when the reason holds.
    pub since: Awake,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LoopFailure {
    pub at: Awake,
    pub code: &'static str,
}
