//! From three signals to one verdict, and from a verdict to one action.
//!
//! | live | ready | progress | verdict | action |
//! |---|---|---|---|---|
//! | yes | yes | idle, normal | Healthy | route |
//! | yes | no | idle, normal | Busy | drain |
//! | yes | yes | slow, degraded | Slow | investigate: routed to last |
//! | yes | no | slow, degraded | Degraded | drain |
//! | yes | any | stuck | Stuck | drain, and evict when `stuck_grace` is over |
//! | no | any | any | Suspect | evict when `suspect_grace` is over |
//!
//! Every eviction is subject to the hold: see [`mod@super::hold`].

use super::liveness::NotLive;
use super::overload::OverloadLevel;
use super::progress::{ProgressReason, ProgressVerdict};
use super::signal::{ProgressSignal, Signals};
use crate::time::{Awake, Mono};
use core::time::Duration;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Verdict {
    Healthy,
    Busy,
    Slow,
    Degraded,
    Stuck,
    Suspect,
}

impl Verdict {
    pub const ALL: [Self; 6] = [Self::Healthy, Self::Busy, Self::Slow, Self::Degraded, Self::Stuck, Self::Suspect];
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Action {
    Route,
    /// No new work; what it holds may end.
    Drain,
    /// Routed to last, and shown.
    Investigate,
    /// Fence, cancel and requeue the node's attempts. Not at once: see [`evict_at`].
    Evict,
}

/// Total: every combination of signals has its verdict.
pub const fn verdict(signals: Signals) -> Verdict {
    match signals {
        Signals { live: false, .. } => Verdict::Suspect,
        Signals { progress: ProgressSignal::Stuck, .. } => Verdict::Stuck,
        Signals { ready: true, progress: ProgressSignal::Idle | ProgressSignal::Normal, .. } => Verdict::Healthy,
        Signals { ready: false, progress: ProgressSignal::Idle | ProgressSignal::Normal, .. } => Verdict::Busy,
        Signals { ready: true, progress: ProgressSignal::Slow | ProgressSignal::Degraded, .. } => Verdict::Slow,
        Signals { ready: false, progress: ProgressSignal::Slow | ProgressSignal::Degraded, .. } => Verdict::Degraded,
    }
}

impl Verdict {
    /// The action to take at once. A Stuck node is drained, and evicted when its grace is over; a Suspect one gets no
    /// work, and is evicted when its grace is over. Both subject to the hold.
    pub const fn action(self) -> Action {
        match self {
            Self::Healthy => Action::Route,
            Self::Slow => Action::Investigate,
            Self::Busy | Self::Degraded | Self::Stuck => Action::Drain,
            Self::Suspect => Action::Evict,
        }
    }

    pub const fn code(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Busy => "busy",
            Self::Slow => "slow",
            Self::Degraded => "degraded",
            Self::Stuck => "stuck",
            Self::Suspect => "suspect",
        }
    }
}

impl Action {
    pub const fn code(self) -> &'static str {
        match self {
            Self::Route => "route",
            Self::Drain => "drain",
            Self::Investigate => "investigate",
            Self::Evict => "evict",
        }
    }
}

/// The reason why a node takes no new work.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum NotReady {
    NotAccepting,
    NoFreeSlot,
    /// The log has not answered lately: what this manager would decide may not stand.
    NoQuorum,
    NoWorker,
    NoDatacenter,
    Overloaded,
}

impl NotReady {
    pub const fn code(self) -> &'static str {
        match self {
            Self::NotAccepting => "not_accepting",
            Self::NoFreeSlot => "no_free_slot",
            Self::NoQuorum => "no_quorum",
            Self::NoWorker => "no_worker",
            Self::NoDatacenter => "no_datacenter",
            Self::Overloaded => "overloaded",
        }
    }
}

pub const fn worker_ready(accepting: bool, free_slots: u32) -> Result<(), NotReady> {
    if !accepting {
        Err(NotReady::NotAccepting)
    } else if free_slots == 0 {
        Err(NotReady::NoFreeSlot)
    } else {
        Ok(())
    }
}

/// The time for which an answer of the log is proof that a manager has a quorum. Judged by the manager about itself, so
/// its own absence counts: while it was away, another may have taken the seat.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QuorumRule {
    pub log_answer_within: Duration,
}

impl Default for QuorumRule {
    fn default() -> Self {
        Self { log_answer_within: Duration::from_secs(5) }
    }
}

impl QuorumRule {
    pub fn has_quorum(&self, now: Mono, log_answered: Option<Mono>) -> bool {
        log_answered.is_some_and(|at| now.since(at) < self.log_answer_within)
    }
}

/// Whether a manager may be routed to. Whether `/readyz` answers 200 is another question: a manager without workers
/// stores jobs.
pub const fn manager_ready(has_quorum: bool, accepting: bool, workers: usize) -> Result<(), NotReady> {
    if !has_quorum {
        Err(NotReady::NoQuorum)
    } else if !accepting {
        Err(NotReady::NotAccepting)
    } else if workers == 0 {
        Err(NotReady::NoWorker)
    } else {
        Ok(())
    }
}

pub const fn gate_ready(reachable_datacenters: usize, overload: OverloadLevel) -> Result<(), NotReady> {
    if reachable_datacenters == 0 {
        return Err(NotReady::NoDatacenter);
    }
    match overload {
        OverloadLevel::Normal | OverloadLevel::Busy => Ok(()),
        OverloadLevel::Stressed | OverloadLevel::Overloaded => Err(NotReady::Overloaded),
    }
}

/// The reason of the signal that decided.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum VerdictReason {
    NotLive(NotLive),
    NotReady(NotReady),
    Progress(ProgressReason),
}

impl VerdictReason {
    pub const fn code(self) -> &'static str {
        match self {
            Self::NotLive(reason) => reason.code(),
            Self::NotReady(reason) => reason.code(),
            Self::Progress(reason) => reason.code(),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Judgement {
    pub signals: Signals,
    pub verdict: Verdict,
    pub reason: VerdictReason,
}

/// The verdict, with the reason of the signal that decided. Where readiness and progress are both bad, progress is named:
/// it is the one that somebody has to look into.
pub fn judge(live: Result<(), NotLive>, ready: Result<(), NotReady>, progress: &ProgressVerdict) -> Judgement {
    let signals = Signals { live: live.is_ok(), ready: ready.is_ok(), progress: progress.progress };
    let verdict = verdict(signals);
    let reason = match (live, ready) {
        (Err(reason), _) => VerdictReason::NotLive(reason),
        (Ok(()), Err(reason)) if verdict == Verdict::Busy => VerdictReason::NotReady(reason),
        _ => VerdictReason::Progress(progress.reason),
    };
    Judgement { signals, verdict, reason }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EvictionRule {
    pub suspect_grace: Duration,
    pub stuck_grace: Duration,
    /// The time for which a node evicted for the first time gets no work; doubles with each eviction.
    pub backoff: Duration,
    pub max_backoff: Duration,
    /// The time after a node has gone for which its evictions, its probation and its replaced incarnations are
    /// remembered.
    pub remember_for: Duration,
}

impl Default for EvictionRule {
    fn default() -> Self {
        Self {
            suspect_grace: Duration::from_secs(10),
            stuck_grace: Duration::from_secs(30),
            backoff: Duration::from_secs(60),
            max_backoff: Duration::from_secs(3600),
            remember_for: Duration::from_secs(3600),
        }
    }
}

/// The instant when a node that has had this verdict since `since` is to be evicted, unless held then.
pub fn evict_at(rule: &EvictionRule, verdict: Verdict, since: Awake) -> Option<Awake> {
    match verdict {
        Verdict::Suspect => Some(since + rule.suspect_grace),
        Verdict::Stuck => Some(since + rule.stuck_grace),
        Verdict::Healthy | Verdict::Busy | Verdict::Slow | Verdict::Degraded => None,
    }
}

/// The time after its latest eviction when a node may come back, if its old attempts are confirmed ended by then.
/// `evictions` counts the latest. A new incarnation need not wait.
pub fn readmit_after(rule: &EvictionRule, evictions: u32) -> Duration {
    let Some(doublings) = evictions.checked_sub(1) else { return Duration::ZERO };
    let factor = 1u32.checked_shl(doublings).unwrap_or(u32::MAX);
    rule.backoff.saturating_mul(factor).min(rule.max_backoff)
}

/// A gate in poor health should not lead the others. Where none may stand, each that lives may
/// ([`candidate`](crate::candidate)).
pub const fn may_stand_for_election(signals: Signals) -> bool {
    matches!(verdict(signals), Verdict::Healthy)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn signals(live: bool, ready: bool, progress: ProgressSignal) -> Signals {
        Signals { live, ready, progress }
    }

    #[test]
    fn the_whole_matrix() {
        use Action::*;
        use ProgressSignal::{Idle, Normal};
        use Verdict::*;
        const YES: bool = true;
        const NO: bool = false;
        let table = [
            (YES, YES, Idle, Healthy, Route),
            (YES, YES, Normal, Healthy, Route),
            (YES, YES, ProgressSignal::Slow, Slow, Investigate),
            (YES, YES, ProgressSignal::Degraded, Slow, Investigate),
            (YES, YES, ProgressSignal::Stuck, Stuck, Drain),
            (YES, NO, Idle, Busy, Drain),
            (YES, NO, Normal, Busy, Drain),
            (YES, NO, ProgressSignal::Slow, Degraded, Drain),
            (YES, NO, ProgressSignal::Degraded, Degraded, Drain),
            (YES, NO, ProgressSignal::Stuck, Stuck, Drain),
            (NO, YES, Idle, Suspect, Evict),
            (NO, YES, Normal, Suspect, Evict),
            (NO, YES, ProgressSignal::Slow, Suspect, Evict),
            (NO, YES, ProgressSignal::Degraded, Suspect, Evict),
            (NO, YES, ProgressSignal::Stuck, Suspect, Evict),
            (NO, NO, Idle, Suspect, Evict),
            (NO, NO, Normal, Suspect, Evict),
            (NO, NO, ProgressSignal::Slow, Suspect, Evict),
            (NO, NO, ProgressSignal::Degraded, Suspect, Evict),
            (NO, NO, ProgressSignal::Stuck, Suspect, Evict),
        ];
        for (live, ready, progress, expected, action) in table {
            let signals = signals(live, ready, progress);
            assert_eq!((verdict(signals), expected.action()), (expected, action), "{signals:?}");
        }
        for (live, ready) in [(YES, YES), (YES, NO), (NO, YES), (NO, NO)] {
            for progress in ProgressSignal::ALL {
                let rows = table.iter().filter(|row| (row.0, row.1, row.2) == (live, ready, progress)).count();
                assert_eq!(rows, 1, "{live} {ready} {progress:?}");
            }
        }
    }

    #[test]
    fn the_reason_is_of_the_signal_that_decided() {
        use NotLive::Silent;
        use NotReady::NoFreeSlot;
        use ProgressReason::*;
        // live, ready, progress -> verdict, reason
        let table = [
            (Ok(()), Ok(()), (ProgressSignal::Normal, RateAsExpected), "healthy", "rate_as_expected"),
            (Ok(()), Ok(()), (ProgressSignal::Idle, NothingToCount), "healthy", "nothing_to_count"),
            (Ok(()), Err(NoFreeSlot), (ProgressSignal::Normal, RateAsExpected), "busy", "no_free_slot"),
            (Ok(()), Ok(()), (ProgressSignal::Slow, RateBelowExpected), "slow", "rate_below_expected"),
            (Ok(()), Err(NoFreeSlot), (ProgressSignal::Slow, RateBelowExpected), "degraded", "rate_below_expected"),
            (Ok(()), Err(NoFreeSlot), (ProgressSignal::Stuck, NoForwardStep), "stuck", "no_forward_step"),
            (Err(Silent), Err(NoFreeSlot), (ProgressSignal::Stuck, OnlyFailures), "suspect", "silent"),
        ];
        for (live, ready, (progress, reason), verdict, code) in table {
            let judged = judge(live, ready, &ProgressVerdict { progress, reason, changes_at: None });
            assert_eq!((judged.verdict.code(), judged.reason.code()), (verdict, code));
        }
    }

    #[test]
    fn readiness() {
        use NotReady::*;
        for (accepting, free, ready) in [
            (true, 1, Ok(())),
            (true, 0, Err(NoFreeSlot)),
            (false, 1, Err(NotAccepting)),
            (false, 0, Err(NotAccepting)),
        ] {
            assert_eq!(worker_ready(accepting, free), ready, "accepting {accepting}, {free} free");
        }
        for (quorum, accepting, workers, ready) in [
            (true, true, 1, Ok(())),
            (false, true, 1, Err(NoQuorum)),
            (true, false, 1, Err(NotAccepting)),
            (true, true, 0, Err(NoWorker)),
        ] {
            assert_eq!(manager_ready(quorum, accepting, workers), ready, "{quorum} {accepting} {workers}");
        }
        for (reached, overload, ready) in [
            (1, OverloadLevel::Normal, Ok(())),
            (1, OverloadLevel::Busy, Ok(())),
            (1, OverloadLevel::Stressed, Err(Overloaded)),
            (1, OverloadLevel::Overloaded, Err(Overloaded)),
            (0, OverloadLevel::Normal, Err(NoDatacenter)),
        ] {
            assert_eq!(gate_ready(reached, overload), ready, "{reached} {overload:?}");
        }
    }

    #[test]
    fn a_log_that_answered_within_five_seconds_is_a_quorum() {
        let rule = QuorumRule::default();
        for (answered, now, expected) in
            [(None, 0, false), (Some(1000), 1000, true), (Some(1000), 5999, true), (Some(1000), 6000, false)]
        {
            assert_eq!(
                rule.has_quorum(Mono::from_ms(now), answered.map(Mono::from_ms)),
                expected,
                "{answered:?} {now}"
            );
        }
    }

    #[test]
    fn suspect_goes_after_ten_seconds_and_stuck_after_thirty() {
        let table = [
            (Verdict::Healthy, None),
            (Verdict::Busy, None),
            (Verdict::Slow, None),
            (Verdict::Degraded, None),
            (Verdict::Stuck, Some(37_000)),
            (Verdict::Suspect, Some(17_000)),
        ];
        for (verdict, at) in table {
            let evicted = evict_at(&EvictionRule::default(), verdict, Awake::from_ms(7_000));
            assert_eq!(evicted, at.map(Awake::from_ms), "{verdict:?}");
        }
    }

    #[test]
    fn the_wait_doubles_per_eviction_up_to_an_hour() {
        let table =
            [(0, 0), (1, 60), (2, 120), (3, 240), (6, 1920), (7, 3600), (8, 3600), (33, 3600), (u32::MAX, 3600)];
        for (evictions, wait) in table {
            let rule = EvictionRule::default();
            assert_eq!(readmit_after(&rule, evictions), Duration::from_secs(wait), "{evictions} evictions");
        }
    }

    #[test]
    fn only_a_healthy_gate_stands() {
        for live in [true, false] {
            for ready in [true, false] {
                for progress in ProgressSignal::ALL {
                    let stands = live && ready && matches!(progress, ProgressSignal::Idle | ProgressSignal::Normal);
                    assert_eq!(
                        may_stand_for_election(signals(live, ready, progress)),
                        stands,
                        "{live} {ready} {progress:?}"
                    );
                }
            }
        }
    }
}
