//! Health of a process's own loops: a loop is healthy while it gets things done, not while it turns.
//!
//! Trusted is how an iteration ended, and for how long is the loop's `freshness`. Only real progress refreshes it, and
//! finding nothing to do after the source was really asked. A loop that catches every error and sleeps, one that finds
//! rows and never publishes them, and one whose iterations end without a report are all seen for what they are.
//!
//! A forward step inside a long iteration refreshes it as well; a beat inside one only says that it does not hang. A
//! wait that the loop's owner chose (a poll, a backoff, a restart) is no stall, however long it is.
//!
//! | state | when | live | ready |
//! |---|---|---|---|
//! | Starting | no success yet, inside the grace | yes | no |
//! | Healthy | inside its budget, and fresh | yes | yes |
//! | Finished | it has done all that it was there for | yes | yes |
//! | Degraded | outside its budget or not fresh, but some of it works, or it is recovering | yes | no |
//! | Failing | outside its budget or not fresh, and nothing works | yes | no |
//! | Restarting | it crashed, and has not succeeded since | yes | no |
//! | Stalled | an iteration hangs, or none comes | no | no |
//! | Stopping | it was told to stop, and no iteration hangs | yes | no |
//! | Dead | it is gone, and nobody will start it again | no | no |
//!
//! What that means for an orchestrator's probes, beside other signs, is in [`probes`](super::probes).

use super::window::SlidingCounts;
use crate::time::Awake;
use core::time::Duration;

mod status;

pub use status::{LoopFailure, LoopReason, LoopState, LoopStatus};

/// Failures tolerated. The last one named spends it; only a recovery refills it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum FailureBudget {
    /// `n` failures in a row.
    Consecutive(u32),
    /// `n` failures inside a window.
    Window { n: u32, within: Duration },
    /// A share of the iterations inside a window, if there were at least `min_sample`.
    Ratio { ratio: f64, min_sample: u32, within: Duration },
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LoopRule {
    pub critical: bool,
    pub budget: FailureBudget,
    /// The time for which one success counts.
    pub freshness: Duration,
    /// Successes in a row that refill a spent budget.
    pub recovery: u32,
    /// The time from the start in which failures spend nothing, unless a success ends it earlier.
    pub startup_grace: Duration,
    /// An iteration that goes on for longer without a step or a beat hangs, and so does a loop that is due for longer
    /// and does not begin.
    pub max_iteration: Duration,
}

impl Default for LoopRule {
    fn default() -> Self {
        Self {
            critical: true,
            budget: FailureBudget::Consecutive(3),
            freshness: Duration::from_secs(60),
            recovery: 2,
            startup_grace: Duration::from_secs(30),
            max_iteration: Duration::from_secs(60),
        }
    }
}

/// The end of an iteration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Iteration {
    /// The number of things that were done. None done is [`Skipped`](Self::Skipped).
    Progress(u64),
    /// The source was really asked, and there was nothing to do.
    Idle,
    /// Nothing was asked, or nothing could be done yet. Refreshes nothing, spends nothing.
    Skipped,
    /// Some of it failed. Spends budget, refreshes nothing.
    Degraded { ok: u64, failed: u64 },
    /// All of it failed; `code` says how, in snake_case.
    Failed { code: &'static str },
}

/// The health of one loop, in a fixed size.
#[derive(Clone, Debug)]
pub struct LoopHealth {
    rule: LoopRule,
    started_at: Awake,
    ending: Option<LoopEnding>,
    activity: Activity,
    /// The instant of a crash after which nothing has succeeded yet.
    crashed_at: Option<Awake>,
    last_success: Option<Awake>,
    last_failure: Option<LoopFailure>,
    /// The iteration that ended last got something done.
    partly_works: bool,
    healthy_since: Awake,
    spent_at: Option<Awake>,
    failures_in_row: u32,
    successes_in_row: u32,
    /// Iterations inside the budget's window: good and bad ones.
    counts: SlidingCounts,
}

#[derive(Clone, Copy, Debug)]
enum Activity {
    /// The loop is between two iterations, since this instant.
    Resting(Awake),
    /// An iteration is under way, which began, stepped or beat last at this instant.
    Turning(Awake),
    /// The loop is due at this instant.
    Waiting(Awake),
    /// Crashed, and to be started again at this instant.
    Restarting(Awake),
}

#[derive(Clone, Copy, Debug)]
enum LoopEnding {
    Stopping(Awake),
    Finished(Awake),
    Died(Awake),
}

impl LoopHealth {
    pub fn started(rule: LoopRule, now: Awake) -> Self {
        Self {
            rule,
            started_at: now,
            ending: None,
            activity: Activity::Resting(now),
            crashed_at: None,
            last_success: None,
            last_failure: None,
            partly_works: false,
            healthy_since: now,
            spent_at: None,
            failures_in_row: 0,
            successes_in_row: 0,
            counts: empty_counts(&rule.budget),
        }
    }

    /// An iteration before it that never reported has failed.
    pub fn begin(&mut self, now: Awake) {
        self.abandoned(now);
        self.activity = Activity::Turning(now);
    }

    pub fn end(&mut self, now: Awake, iteration: Iteration) {
        match iteration {
            Iteration::Progress(1..) | Iteration::Idle => self.success(now),
            Iteration::Progress(0) | Iteration::Skipped => self.ended(now, false),
            Iteration::Degraded { ok, .. } => self.failure(now, "degraded", ok > 0),
            Iteration::Failed { code } => self.failure(now, code, false),
        }
    }

    /// What is kept elsewhere of an earlier process, or of others that do the same work, counts as this loop's own: it
    /// succeeded last at `last_success`, and has not failed since. Failures after that are for the caller to report.
    pub fn restore(&mut self, now: Awake, last_success: Awake) {
        self.failures_in_row = 0;
        self.successes_in_row = 0;
        self.spent_at = None;
        self.counts = empty_counts(&self.rule.budget);
        self.last_success = self.last_success.max(Some(last_success));
        self.crashed_at = None;
        self.healthy_since = now;
        self.ended(now, false);
    }

    /// A forward step of an iteration that goes on. It refreshes, and refills no budget: an iteration that steps and then
    /// fails has failed.
    pub fn step(&mut self, now: Awake) {
        self.refresh(now);
        self.beat(now);
    }

    /// The iteration under way is active. That keeps it from hanging and refreshes nothing.
    pub fn beat(&mut self, now: Awake) {
        match &mut self.activity {
            Activity::Resting(at) | Activity::Turning(at) => *at = now.max(*at),
            Activity::Waiting(_) | Activity::Restarting(_) => {}
        }
    }

    /// The next iteration was chosen to begin at `until`. Waiting for it is no stall, but refreshes nothing either.
    pub fn waiting(&mut self, now: Awake, until: Awake) {
        self.abandoned(now);
        self.activity = Activity::Waiting(until);
    }

    /// The iteration under way was dropped, or returned without a report. Says nothing if there is none.
    pub fn abandoned(&mut self, now: Awake) {
        if matches!(self.activity, Activity::Turning(_)) {
            self.failure(now, "not_reported", false);
        }
    }

    /// The loop crashed, which is a failure of its own, and is started again at `until`.
    pub fn restarting(&mut self, now: Awake, until: Awake, code: &'static str) {
        self.failure(now, code, false);
        self.crashed_at = Some(now);
        self.activity = Activity::Restarting(until);
    }

    pub fn stopping(&mut self, now: Awake) {
        self.ending.get_or_insert(LoopEnding::Stopping(now));
    }

    /// The loop ended because it has done all that it was there for. One that crashed or was told to stop before that
    /// has not.
    pub fn finished(&mut self, now: Awake) {
        self.ending.get_or_insert(LoopEnding::Finished(now));
    }

    /// The loop is gone, and nobody will start it again.
    pub fn died(&mut self, now: Awake) {
        if !matches!(self.ending, Some(LoopEnding::Finished(_) | LoopEnding::Died(_))) {
            self.ending = Some(LoopEnding::Died(now));
        }
    }

    pub fn rule(&self) -> &LoopRule {
        &self.rule
    }

    /// The latest, whether or not it was tolerated.
    pub fn last_failure(&self) -> Option<LoopFailure> {
        self.last_failure
    }

    /// The end of the latest success, or the latest forward step.
    pub fn last_success(&self) -> Option<Awake> {
        self.last_success
    }

    /// Failures in a row that count against the budget.
    pub fn failures_in_row(&self) -> u32 {
        self.failures_in_row
    }

    pub fn state(&self, now: Awake) -> LoopStatus {
        let status = |state, reason, since| LoopStatus { state, reason, since };
        match self.ending {
            Some(LoopEnding::Died(at)) => return status(LoopState::Dead, LoopReason::Gone, at),
            Some(LoopEnding::Finished(at)) => return status(LoopState::Finished, LoopReason::AllDone, at),
            Some(LoopEnding::Stopping(_)) | None => {}
        }
        let (stalls_at, reason) = self.stalls_at();
        if let Some(LoopEnding::Stopping(at)) = self.ending {
            // No other iteration comes, and that is right; the one under way may hang all the same.
            let hangs = matches!(self.activity, Activity::Turning(_)) && now >= stalls_at && !self.in_grace(now);
            return match hangs {
                true => status(LoopState::Stalled, reason, stalls_at),
                false => status(LoopState::Stopping, LoopReason::ToldToStop, at),
            };
        }
        let restarting = match self.activity {
            Activity::Restarting(_) if now < stalls_at => self.crashed_at,
            _ => None,
        };
        if let Some(at) = restarting {
            return status(LoopState::Restarting, LoopReason::Crashed, at);
        }
        if self.in_grace(now) {
            return status(LoopState::Starting, LoopReason::NoSuccessYet, self.started_at);
        }
        if now >= stalls_at {
            return status(LoopState::Stalled, reason, stalls_at);
        }
        let unwell = if self.partly_works { LoopState::Degraded } else { LoopState::Failing };
        if let Some(at) = self.spent_at {
            let recovering = self.successes_in_row > 0;
            let reason = if recovering { LoopReason::Recovering } else { LoopReason::BudgetSpent };
            return status(unwell, reason, at);
        }
        match (self.last_success.map(|at| at + self.rule.freshness), self.crashed_at) {
            (None, _) => status(unwell, LoopReason::NeverSucceeded, self.grace_ends()),
            (Some(stale_at), _) if now >= stale_at => status(unwell, LoopReason::NotFresh, stale_at),
            (Some(_), Some(at)) => status(LoopState::Restarting, LoopReason::Crashed, at),
            (Some(_), None) => status(LoopState::Healthy, LoopReason::WithinBudgetAndFresh, self.healthy_since),
        }
    }

    /// The instant when `state` changes if nothing is reported until then.
    pub fn next_change(&self, now: Awake) -> Option<Awake> {
        let current = self.state(now);
        let candidates =
            [Some(self.grace_ends()), Some(self.stalls_at().0), self.last_success.map(|at| at + self.rule.freshness)];
        candidates.into_iter().flatten().filter(|at| *at > now && self.state(*at) != current).min()
    }

    fn success(&mut self, now: Awake) {
        let was_healthy = self.state(now).state == LoopState::Healthy;
        self.counts.good(now);
        self.failures_in_row = 0;
        self.successes_in_row = self.successes_in_row.saturating_add(1);
        if self.spent_at.is_some() && self.successes_in_row >= self.rule.recovery {
            self.spent_at = None;
            self.counts = empty_counts(&self.rule.budget);
        }
        self.last_success = Some(now);
        self.crashed_at = None;
        if !was_healthy {
            self.healthy_since = now;
        }
        self.ended(now, true);
    }

    fn refresh(&mut self, now: Awake) {
        if self.state(now).state != LoopState::Healthy {
            self.healthy_since = now;
        }
        self.last_success = Some(now);
        self.crashed_at = None;
    }

    fn failure(&mut self, now: Awake, code: &'static str, partly_works: bool) {
        self.last_failure = Some(LoopFailure { at: now, code });
        if !self.in_grace(now) {
            self.successes_in_row = 0;
            self.failures_in_row = self.failures_in_row.saturating_add(1);
            self.counts.bad(now);
            if self.spent_at.is_none() && self.budget_spent(now) {
                self.spent_at = Some(now);
            }
        }
        self.ended(now, partly_works);
    }

    fn ended(&mut self, now: Awake, partly_works: bool) {
        self.activity = Activity::Resting(now);
        self.partly_works = partly_works;
    }

    fn budget_spent(&self, now: Awake) -> bool {
        match self.rule.budget {
            FailureBudget::Consecutive(n) => self.failures_in_row >= n,
            FailureBudget::Window { n, .. } => self.counts.sum(now).1 >= n,
            FailureBudget::Ratio { ratio, min_sample, .. } => {
                let (good, bad) = self.counts.sum(now);
                good + bad >= min_sample && f64::from(bad) >= ratio * f64::from(good + bad)
            }
        }
    }

    fn in_grace(&self, now: Awake) -> bool {
        self.last_success.is_none() && now < self.grace_ends()
    }

    fn grace_ends(&self) -> Awake {
        self.started_at + self.rule.startup_grace
    }

    /// The instant when the iteration under way hangs, or the next is overdue.
    fn stalls_at(&self) -> (Awake, LoopReason) {
        match self.activity {
            Activity::Turning(at) => (at + self.rule.max_iteration, LoopReason::IterationTooLong),
            Activity::Resting(at) => (at + self.rule.freshness, LoopReason::NotTurning),
            Activity::Waiting(until) | Activity::Restarting(until) => {
                (until + self.rule.max_iteration, LoopReason::NotTurning)
            }
        }
    }
}

fn empty_counts(budget: &FailureBudget) -> SlidingCounts {
    SlidingCounts::new(match budget {
        FailureBudget::Consecutive(_) => Duration::ZERO,
        FailureBudget::Window { within, .. } | FailureBudget::Ratio { within, .. } => *within,
    })
}

#[cfg(test)]
mod tests;
