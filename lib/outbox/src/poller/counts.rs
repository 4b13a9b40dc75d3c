//! Counts of a poller's work since it started, for metrics.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Mutex, PoisonError};

use onward_core::health::outbox::OutboxTurn;

#[derive(Debug, Default)]
pub(crate) struct PollerCounts {
    pub(crate) published: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) given_back: AtomicU64,
    pub(crate) parked: AtomicU64,
    /// Rows that another poller had claimed before they were settled.
    pub(crate) lost: AtomicU64,
    /// The publisher's last answer was that it is.
    pub(crate) unavailable: AtomicBool,
    /// The problem of the newest claim that had one.
    problem: Mutex<Option<String>>,
}

impl PollerCounts {
    pub(crate) fn set_problem(&self, problem: Option<String>) {
        *self.problem.lock().unwrap_or_else(PoisonError::into_inner) = problem;
    }

    pub(crate) fn problem(&self) -> Option<String> {
        self.problem.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn add(&self, turn: &OutboxTurn) {
        self.published.fetch_add(turn.published, Relaxed);
        self.refused.fetch_add(turn.refused, Relaxed);
        self.given_back.fetch_add(turn.given_back, Relaxed);
    }
}
