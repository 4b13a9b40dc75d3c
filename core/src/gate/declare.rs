//! When a gate declares that a job has timed out in every datacenter.
//!
//! | what | declared as |
//! |---|---|
//! | the overall time, extensions included, is over | overall |
//! | stuck reports meet the policy: `any` one; a `majority` of the targets; `all` of them | stuck |
//! | every target that has not finished is stuck or silent, and at least one is stuck | stuck |
//!
//! All of them timed out counts so, with no rule of its own: where all are stuck, every policy is met; and a target that is
//! late has time while some remains globally, which it is told. Once none does, the first row holds, whatever the others do.
//!
//! **What is no reason.** Silence alone: a partition is no stuck job, and the first report after healing decides. What a gate
//! believes that hears no datacenter at all: it may be the one that is cut off, and declares nothing but overall
//! timeouts. A datacenter's overall timeout: its extensions may be fewer than another's.

use crate::job::TimeoutPolicy;
use crate::timeout::TimeoutReason;

use super::message::Outcome;

/// A target of a job, as it bears on a timeout.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TargetSight {
    /// The job has ended there; stuck if the datacenter timed it out for that.
    Finished {
        outcome: Outcome,
        stuck: bool,
    },
    Open {
        stuck: bool,
        silent: bool,
    },
}

impl TargetSight {
    const fn is_stuck(self) -> bool {
        matches!(self, Self::Finished { stuck: true, .. } | Self::Open { stuck: true, .. })
    }
}

/// A job as far as it is known at one instant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct JobSight<'a> {
    pub policy: TimeoutPolicy,
    pub targets: &'a [TargetSight],
    /// `started_at + timeout + extensions` has come.
    pub is_overdue: bool,
    /// Set if at least one datacenter is heard.
    pub hears_any: bool,
}

pub fn declare(job: &JobSight<'_>) -> Option<TimeoutReason> {
    if job.is_overdue {
        return Some(TimeoutReason::Overall);
    }
    let mut open = job.targets.iter().filter(|target| matches!(target, TargetSight::Open { .. })).peekable();
    if !job.hears_any || open.peek().is_none() {
        return None;
    }
    let stuck = job.targets.iter().filter(|target| target.is_stuck()).count();
    let meets_policy = match job.policy {
        TimeoutPolicy::Any => stuck > 0,
        TimeoutPolicy::Majority => stuck * 2 > job.targets.len(),
        TimeoutPolicy::All => stuck == job.targets.len(),
    };
    let has_open_stuck = open.clone().any(|target| target.is_stuck());
    let none_moves = open.all(|target| target.is_stuck() || matches!(target, TargetSight::Open { silent: true, .. }));
    (meets_policy || (none_moves && has_open_stuck)).then_some(TimeoutReason::Stuck)
}

#[cfg(test)]
mod tests {
    use super::*;
    use TimeoutPolicy::{All, Any, Majority};
    use TimeoutReason::{Overall, Stuck};

    const RUNS: TargetSight = TargetSight::Open { stuck: false, silent: false };
    const STUCK: TargetSight = TargetSight::Open { stuck: true, silent: false };
    const SILENT: TargetSight = TargetSight::Open { stuck: false, silent: true };
    const STUCK_AND_SILENT: TargetSight = TargetSight::Open { stuck: true, silent: true };
    const DONE: TargetSight = TargetSight::Finished { outcome: Outcome::Succeeded, stuck: false };
    const ENDED_STUCK: TargetSight = TargetSight::Finished { outcome: Outcome::TimedOut, stuck: true };
    const ENDED_LATE: TargetSight = TargetSight::Finished { outcome: Outcome::TimedOut, stuck: false };

    fn decided(policy: TimeoutPolicy, targets: &[TargetSight]) -> Option<TimeoutReason> {
        declare(&JobSight { policy, targets, is_overdue: false, hears_any: true })
    }

    #[test]
    fn the_policy_counts_stuck_reports() {
        let table: &[(TimeoutPolicy, &[TargetSight], Option<TimeoutReason>)] = &[
            (Any, &[RUNS], None),
            (Any, &[STUCK], Some(Stuck)),
            (Majority, &[STUCK], Some(Stuck)),
            (All, &[STUCK], Some(Stuck)),
            (Any, &[STUCK, RUNS, RUNS], Some(Stuck)),
            (Majority, &[STUCK, RUNS, RUNS], None),
            (Majority, &[STUCK, STUCK, RUNS], Some(Stuck)),
            (Majority, &[STUCK, RUNS], None),
            (Majority, &[STUCK, STUCK, RUNS, RUNS], None),
            (All, &[STUCK, STUCK, RUNS], None),
            (All, &[STUCK, STUCK, STUCK], Some(Stuck)),
            // One that ended as stuck has reported it, in the clearest way there is.
            (Any, &[ENDED_STUCK, RUNS], Some(Stuck)),
            (Majority, &[ENDED_STUCK, STUCK, RUNS], Some(Stuck)),
            (All, &[ENDED_STUCK, RUNS], None),
            (Any, &[ENDED_LATE, RUNS], None),
        ];
        for (policy, targets, expected) in table {
            assert_eq!(decided(*policy, targets), *expected, "{policy:?} {targets:?}");
        }
    }

    #[test]
    fn one_of_one_two_of_two_and_three_of_three_are_declared_by_every_policy() {
        for policy in [Any, Majority, All] {
            for targets in 1..=3 {
                assert_eq!(decided(policy, &[STUCK; 3][..targets]), Some(Stuck), "{policy:?}, {targets}");
            }
        }
    }

    #[test]
    fn whoever_is_stuck_beside_silent_ones_ends_the_job_and_silence_alone_does_not() {
        for policy in [Any, Majority, All] {
            assert_eq!(decided(policy, &[SILENT]), None);
            assert_eq!(decided(policy, &[SILENT, SILENT, SILENT]), None);
            assert_eq!(decided(policy, &[SILENT, DONE]), None);
            assert_eq!(decided(policy, &[STUCK, SILENT, SILENT]), Some(Stuck));
            assert_eq!(decided(policy, &[STUCK_AND_SILENT, SILENT, STUCK]), Some(Stuck));
            assert_eq!(decided(policy, &[STUCK, DONE, SILENT]), Some(Stuck));
        }
        assert_eq!(decided(All, &[STUCK, SILENT, RUNS]), None);
        assert_eq!(decided(All, &[ENDED_STUCK, SILENT]), None, "none that is open is stuck");
        assert_eq!(decided(All, &[STUCK, DONE]), Some(Stuck), "every one that has not finished");
        assert_eq!(decided(Any, &[ENDED_STUCK, DONE]), None, "nothing is open");
    }

    #[test]
    fn a_gate_that_hears_nobody_declares_overall_timeouts_alone() {
        let targets = [STUCK_AND_SILENT, SILENT];
        let mut sight = JobSight { policy: Any, targets: &targets, is_overdue: false, hears_any: false };
        assert_eq!(declare(&sight), None);
        sight.is_overdue = true;
        assert_eq!(declare(&sight), Some(Overall));
    }
}
