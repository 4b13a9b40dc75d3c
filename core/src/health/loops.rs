//! Health of a process's own loops: a loop is healthy while it gets things done, not while it turns.
//!
//! Trusted is how an iteration ended, and for how long is the loop's `freshness`. Only real progress refreshes it, and
//! finding nothing to do after the source was really asked. A loop that catches every error and sleeps, one that finds
//! rows and never publishes them, and one whose iterations end without a report are all seen for what they are.
//!
//! | state | when | live | ready |
//! |---|---|---|---|
//! | Starting | no success yet, inside the grace | yes | no |
//! | Healthy | inside its budget, and fresh | yes | yes |
//! | Degraded | outside its budget or not fresh, but some of it works, or it is recovering | yes | no |
//! | Failing | outside its budget or not fresh, and nothing works | yes | no |
//! | Stalled | an iteration hangs, or none comes | no | no |
//! | Stopping | it was told to stop | yes | no |
//! | Dead | it is gone, and nobody will start it again | no | no |
//!
//! Liveness fails where a restart helps, and only there: a restart does not bring back a dependency.
//! Loops that are not critical are shown, and fail neither.

use super::window::SlidingCounts;
use crate::time::Awake;
use core::time::Duration;

/// Failures tolerated. The last one named spends it; only a recovery refills it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Budget {
    /// `n` failures in a row.
    Consecutive(u32),
    /// `n` failures inside a window.
    Window { n: u32, within: Duration },
    /// So large a share of the iterations inside a window, if there were at least `min_sample`.
    Ratio { ratio: f64, min_sample: u32, within: Duration },
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LoopRule {
    pub critical: bool,
    pub budget: Budget,
    /// How long one success lasts.
    pub freshness: Duration,
    /// Successes in a row that refill a spent budget.
    pub recovery: u32,
    /// Until the first success, or until this is over, failures spend nothing.
    pub startup_grace: Duration,
    /// An iteration that takes longer hangs.
    pub max_iteration: Duration,
}

impl Default for LoopRule {
    fn default() -> Self {
        Self {
            critical: true,
            budget: Budget::Consecutive(3),
            freshness: Duration::from_secs(60),
            recovery: 2,
            startup_grace: Duration::from_secs(30),
            max_iteration: Duration::from_secs(60),
        }
    }
}

/// How an iteration ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Iteration {
    /// So many things were done. None done is no progress.
    Progress(u64),
    /// Nothing to do; `asked` if the source was really asked and not merely assumed to be empty.
    Idle { asked: bool },
    /// Some of it failed. Spends budget, refreshes nothing.
    Degraded { ok: u64, failed: u64 },
    /// All of it failed; `code` says how, in snake_case.
    Failed { code: &'static str },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum LoopState {
    Starting,
    Healthy,
    Degraded,
    Stalled,
    Failing,
    Stopping,
    Dead,
}

impl LoopState {
    pub const fn code(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Healthy => "healthy",
            Self::Degraded => "degraded",
            Self::Stalled => "stalled",
            Self::Failing => "failing",
            Self::Stopping => "stopping",
            Self::Dead => "dead",
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum LoopReason {
    NoSuccessYet,
    WithinBudgetAndFresh,
    BudgetSpent,
    /// Successes come again, not yet enough of them.
    Recovering,
    NotFresh,
    NeverSucceeded,
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
            Self::BudgetSpent => "budget_spent",
            Self::Recovering => "recovering",
            Self::NotFresh => "not_fresh",
            Self::NeverSucceeded => "never_succeeded",
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

/// What is known of one loop, in a fixed size.
#[derive(Clone, Debug)]
pub struct LoopHealth {
    rule: LoopRule,
    started_at: Awake,
    stopping_at: Option<Awake>,
    died_at: Option<Awake>,
    /// Of the iteration under way.
    began_at: Option<Awake>,
    last_end: Option<Awake>,
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

impl LoopHealth {
    pub fn started(rule: LoopRule, now: Awake) -> Self {
        Self {
            rule,
            started_at: now,
            stopping_at: None,
            died_at: None,
            began_at: None,
            last_end: None,
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
        self.began_at = Some(now);
    }

    pub fn end(&mut self, now: Awake, iteration: Iteration) {
        match iteration {
            Iteration::Progress(1..) | Iteration::Idle { asked: true } => self.success(now),
            Iteration::Progress(0) | Iteration::Idle { asked: false } => self.ended(now, false),
            Iteration::Degraded { ok, .. } => self.failure(now, "degraded", ok > 0),
            Iteration::Failed { code } => self.failure(now, code, false),
        }
    }

    /// The iteration under way was dropped, or returned without a report. Says nothing if there is none.
    pub fn abandoned(&mut self, now: Awake) {
        if self.began_at.is_some() {
            self.failure(now, "not_reported", false);
        }
    }

    pub fn panicked(&mut self, now: Awake) {
        self.failure(now, "panicked", false);
    }

    pub fn stopping(&mut self, now: Awake) {
        self.stopping_at.get_or_insert(now);
    }

    /// The loop is gone, and nobody will start it again.
    pub fn died(&mut self, now: Awake) {
        self.died_at.get_or_insert(now);
    }

    pub fn rule(&self) -> &LoopRule {
        &self.rule
    }

    /// The latest, whether or not it was tolerated.
    pub fn last_failure(&self) -> Option<LoopFailure> {
        self.last_failure
    }

    pub fn state(&self, now: Awake) -> LoopStatus {
        let status = |state, reason, since| LoopStatus { state, reason, since };
        if let Some(at) = self.died_at {
            return status(LoopState::Dead, LoopReason::Gone, at);
        }
        if let Some(at) = self.stopping_at {
            return status(LoopState::Stopping, LoopReason::ToldToStop, at);
        }
        if self.in_grace(now) {
            return status(LoopState::Starting, LoopReason::NoSuccessYet, self.started_at);
        }
        let (stalls_at, reason) = self.stalls_at();
        if now >= stalls_at {
            return status(LoopState::Stalled, reason, stalls_at);
        }
        let unwell = if self.partly_works { LoopState::Degraded } else { LoopState::Failing };
        if let Some(at) = self.spent_at {
            let recovering = self.successes_in_row > 0;
            let reason = if recovering { LoopReason::Recovering } else { LoopReason::BudgetSpent };
            return status(unwell, reason, at);
        }
        match self.last_success.map(|at| at + self.rule.freshness) {
            None => status(unwell, LoopReason::NeverSucceeded, self.grace_ends()),
            Some(stale_at) if now >= stale_at => status(unwell, LoopReason::NotFresh, stale_at),
            Some(_) => status(LoopState::Healthy, LoopReason::WithinBudgetAndFresh, self.healthy_since),
        }
    }

    /// When `state` changes if nothing is reported until then.
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
        self.last_success = Some(now);
        if self.spent_at.is_some() && self.successes_in_row >= self.rule.recovery {
            self.spent_at = None;
            self.counts = empty_counts(&self.rule.budget);
        }
        if !was_healthy {
            self.healthy_since = now;
        }
        self.ended(now, true);
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
        self.began_at = None;
        self.last_end = Some(now);
        self.partly_works = partly_works;
    }

    fn budget_spent(&self, now: Awake) -> bool {
        match self.rule.budget {
            Budget::Consecutive(n) => self.failures_in_row >= n,
            Budget::Window { n, .. } => self.counts.sum(now).1 >= n,
            Budget::Ratio { ratio, min_sample, .. } => {
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

    /// When the iteration under way hangs, or when the next is overdue.
    fn stalls_at(&self) -> (Awake, LoopReason) {
        match self.began_at {
            Some(began) => (began + self.rule.max_iteration, LoopReason::IterationTooLong),
            None => (self.last_end.unwrap_or(self.started_at) + self.rule.freshness, LoopReason::NotTurning),
        }
    }
}

fn empty_counts(budget: &Budget) -> SlidingCounts {
    SlidingCounts::new(match budget {
        Budget::Consecutive(_) => Duration::ZERO,
        Budget::Window { within, .. } | Budget::Ratio { within, .. } => *within,
    })
}

/// What an orchestrator is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Probes {
    /// No: restart me.
    pub live: bool,
    /// No: send me nothing.
    pub ready: bool,
}

pub fn probes<'a>(loops: impl IntoIterator<Item = &'a LoopHealth>, now: Awake) -> Probes {
    let mut probes = Probes { live: true, ready: true };
    for state in loops.into_iter().filter(|l| l.rule.critical).map(|l| l.state(now).state) {
        probes.ready &= state == LoopState::Healthy;
        probes.live &= !matches!(state, LoopState::Stalled | LoopState::Dead);
    }
    probes
}

/// What to do with the heartbeat file. It stands for readiness, so it must not outlive it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum ReadyFile {
    /// Beside it, then renamed over it.
    Write,
    Remove,
    Leave,
}

/// `at_start`: one that is there is of a predecessor.
pub const fn ready_file(at_start: bool, ready: bool, present: bool) -> ReadyFile {
    match (at_start, ready, present) {
        (false, true, _) => ReadyFile::Write,
        (_, _, true) => ReadyFile::Remove,
        (_, _, false) => ReadyFile::Leave,
    }
}

#[cfg(test)]
mod tests;
