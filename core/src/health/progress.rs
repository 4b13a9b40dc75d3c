//! Progress: does the node get done what it took?
//!
//! Trusted are forward steps and outcomes of the last `window`, never activity: a loop that retries the same thing
//! forever is active. A worker is compared with what it was given, a manager or gate with what it could have moved on.
//! "Idle" is said only where there was nothing to do, or too little to say anything about.
//!
//! Worker: `rate = (succeeded + moving) / (succeeded + failed + moving + unmoving)`.
//! A held attempt is *moving* if it made a forward step inside the window, is in a quiet section, or is under a live
//! grant; one younger than the window without a step counts nowhere, nor does one that was cancelled and would be
//! unmoving. *Failed* are error, lease expiry, stuck and timeout; not cancel or release.
//!
//! | what there is to count | signal |
//! |---|---|
//! | nothing | idle |
//! | a rate from 0.8 on, or fewer than 5 samples of which none is unmoving | normal |
//! | a lower rate | slow; degraded below 0.3 |
//! | a rate of zero, with an unmoving attempt, or with 5 failures over 3 jobs | degraded, and stuck when it has lasted |
//! | a rate of zero otherwise | idle: that says more about the jobs than about the worker |
//!
//! How long a rate of zero may last is the attempts' own matter: each has its job's `stuck_after`, and none is taken for
//! stuck, nor its worker because of it, before that is over. Where everything fails it is the rule's `stuck_after`.

use super::signal::ProgressSignal;
use super::window::{SlidingCounts, in_window};
use crate::time::Awake;
use core::time::Duration;

#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ProgressRule {
    pub window: Duration,
    /// The rate of a node that does well.
    pub expected: f64,
    /// Share of the expected rate from which on it is normal.
    pub normal_at: f64,
    /// Share of the expected rate from which on it is slow, and not degraded.
    pub slow_at: f64,
    /// The time that a rate of zero may last where no attempt says it.
    pub stuck_after: Duration,
    /// A rate below normal says nothing before there are so many samples, or an attempt that does not move.
    pub min_samples: u32,
    /// Fewer failures than this, or over fewer jobs than `min_failed_jobs`, say more about the jobs than about the worker.
    pub min_failures: u32,
    /// The least number of failed jobs, at most [`MAX_FAILED_JOBS`].
    pub min_failed_jobs: u32,
}

impl Default for ProgressRule {
    fn default() -> Self {
        Self {
            window: Duration::from_secs(60),
            expected: 1.0,
            normal_at: 0.8,
            slow_at: 0.3,
            stuck_after: Duration::from_secs(120),
            min_samples: 5,
            min_failures: 5,
            min_failed_jobs: 3,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum ProgressReason {
    NothingToCount,
    /// Nothing but failures, too few or over too few jobs to blame the worker.
    TooFewFailures,
    /// A rate below normal, of so little that it says nothing.
    TooFewSamples,
    RateAsExpected,
    RateBelowExpected,
    RateFarBelowExpected,
    /// Attempts are held, and none moves.
    NoForwardStep,
    /// Every attempt of the node fails.
    OnlyFailures,
    /// There is something to move on, and nothing moves.
    DemandNotServed,
}

impl ProgressReason {
    pub const fn code(self) -> &'static str {
        match self {
            Self::NothingToCount => "nothing_to_count",
            Self::TooFewFailures => "too_few_failures",
            Self::TooFewSamples => "too_few_samples",
            Self::RateAsExpected => "rate_as_expected",
            Self::RateBelowExpected => "rate_below_expected",
            Self::RateFarBelowExpected => "rate_far_below_expected",
            Self::NoForwardStep => "no_forward_step",
            Self::OnlyFailures => "only_failures",
            Self::DemandNotServed => "demand_not_served",
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProgressVerdict {
    pub progress: ProgressSignal,
    pub reason: ProgressReason,
    /// The instant when the same sample turns stuck by time alone.
    pub changes_at: Option<Awake>,
}

/// The work of a worker inside the window, and the attempts that it holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WorkerSample {
    pub succeeded: u32,
    pub failed: u32,
    /// Distinct jobs among the failures.
    pub failed_jobs: u32,
    pub moving: u32,
    pub unmoving: u32,
    pub last_step: Option<Awake>,
    /// The unmoving attempt whose stuck clock runs out first.
    pub oldest_unmoving: Option<UnmovingAttempt>,
    /// The first of the unbroken run of failures.
    pub first_failure: Option<Awake>,
}

impl WorkerSample {
    /// The unmoving attempt that makes the worker stuck first, as [`Self::oldest_unmoving`] has it.
    pub fn first_of(&self, unmoving: impl IntoIterator<Item = UnmovingAttempt>) -> Option<UnmovingAttempt> {
        unmoving.into_iter().min_by_key(|unmoving| unmoving.stuck_at(self.since()))
    }

    /// The last instant at which something moved, or began to fail.
    fn since(&self) -> Option<Awake> {
        self.last_step.max(self.first_failure)
    }
}

/// An unmoving attempt, with its job's own patience.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnmovingAttempt {
    /// The instant when the attempt's own stuck clock runs out.
    pub stuck_at: Awake,
    pub stuck_after: Duration,
}

impl UnmovingAttempt {
    /// The instant when the attempt makes its worker stuck, of which nothing else was heard after `since`.
    fn stuck_at(&self, since: Option<Awake>) -> Awake {
        since.map_or(self.stuck_at, |since| self.stuck_at.max(since + self.stuck_after))
    }
}

pub fn worker(rule: &ProgressRule, now: Awake, s: &WorkerSample) -> ProgressVerdict {
    let done = u64::from(s.succeeded) + u64::from(s.moving);
    let undone = u64::from(s.failed) + u64::from(s.unmoving);
    if done + undone == 0 {
        return steady(ProgressSignal::Idle, ProgressReason::NothingToCount);
    }
    if done > 0 {
        let rated = rated(rule, done, undone);
        let says_little = s.unmoving == 0 && done + undone < u64::from(rule.min_samples);
        return match rated.progress {
            ProgressSignal::Slow | ProgressSignal::Degraded if says_little => {
                steady(ProgressSignal::Normal, ProgressReason::TooFewSamples)
            }
            _ => rated,
        };
    }
    if s.unmoving > 0 {
        let stuck_at = s.oldest_unmoving.map(|unmoving| unmoving.stuck_at(s.since()));
        return zero(now, ProgressReason::NoForwardStep, stuck_at);
    }
    if s.failed < rule.min_failures || s.failed_jobs < rule.min_failed_jobs {
        return steady(ProgressSignal::Idle, ProgressReason::TooFewFailures);
    }
    zero(now, ProgressReason::OnlyFailures, s.since().map(|since| since + rule.stuck_after))
}

/// Hand-outs of a manager, or jobs forwarded by a gate, inside the window, against those that it still could have made.
/// Manager: the sum over kinds of `min(ready, routable free slots for that kind)`. Gate: received and routable.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FlowSample {
    pub done: u64,
    pub demand: u64,
    pub last_done: Option<Awake>,
    /// Since when demand has been more than zero.
    pub demand_since: Option<Awake>,
}

pub fn flow(rule: &ProgressRule, now: Awake, s: &FlowSample) -> ProgressVerdict {
    match (s.done, s.demand) {
        (0, 0) => steady(ProgressSignal::Idle, ProgressReason::NothingToCount),
        (0, _) => {
            let since = s.last_done.max(s.demand_since);
            zero(now, ProgressReason::DemandNotServed, since.map(|since| since + rule.stuck_after))
        }
        (done, demand) => rated(rule, done, demand),
    }
}

/// Some of it gets done: never stuck.
fn rated(rule: &ProgressRule, done: u64, undone: u64) -> ProgressVerdict {
    let rate = done as f64 / (done as f64 + undone as f64);
    if rate >= rule.normal_at * rule.expected {
        steady(ProgressSignal::Normal, ProgressReason::RateAsExpected)
    } else if rate >= rule.slow_at * rule.expected {
        steady(ProgressSignal::Slow, ProgressReason::RateBelowExpected)
    } else {
        steady(ProgressSignal::Degraded, ProgressReason::RateFarBelowExpected)
    }
}

/// Nothing gets done: degraded, and stuck when that has lasted. Without an instant to count from it stays degraded.
fn zero(now: Awake, reason: ProgressReason, stuck_at: Option<Awake>) -> ProgressVerdict {
    match stuck_at {
        Some(stuck_at) if stuck_at <= now => steady(ProgressSignal::Stuck, reason),
        changes_at => ProgressVerdict { progress: ProgressSignal::Degraded, reason, changes_at },
    }
}

const fn steady(progress: ProgressSignal, reason: ProgressReason) -> ProgressVerdict {
    ProgressVerdict { progress, reason, changes_at: None }
}

/// The number of distinct failed jobs that are told apart; more are counted as this many.
pub const MAX_FAILED_JOBS: usize = 4;

/// A worker's attempts inside the window, in a fixed size.
///
/// The run of failures is unbroken until an attempt succeeds, or until the window has emptied of failures: a worker that
/// failed once yesterday has not been failing since.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tally {
    counts: SlidingCounts,
    first_failure: Option<Awake>,
    /// The jobs that failed last, the latest first. The first `known_jobs` are in use.
    jobs: [FailedJob; MAX_FAILED_JOBS],
    known_jobs: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct FailedJob {
    key: u64,
    /// Bucket of its last failure, so that job and failure leave the window together.
    bucket: u64,
}

impl Tally {
    pub fn new(rule: &ProgressRule) -> Self {
        Self {
            counts: SlidingCounts::new(rule.window),
            first_failure: None,
            jobs: [FailedJob::default(); MAX_FAILED_JOBS],
            known_jobs: 0,
        }
    }

    pub fn succeeded(&mut self, now: Awake) {
        self.counts.good(now);
        self.first_failure = None;
    }

    pub fn failed(&mut self, now: Awake, job_key: u64) {
        let (_, failures) = self.counts.sum(now);
        if failures == 0 || self.first_failure.is_none() {
            self.first_failure = Some(now);
        }
        self.counts.bad(now);
        self.remember(FailedJob { key: job_key, bucket: self.counts.number(now) });
    }

    /// Succeeded, failed, and distinct jobs among the failed (at most [`MAX_FAILED_JOBS`]), inside the window.
    pub fn counts(&self, now: Awake) -> (u32, u32, u32) {
        let (succeeded, failed) = self.counts.sum(now);
        let current = self.counts.number(now);
        let jobs =
            self.jobs[..usize::from(self.known_jobs)].iter().filter(|job| in_window(job.bucket, current)).count();
        (succeeded, failed, jobs as u32)
    }

    /// First failure of the unbroken run. Says nothing while `counts` has no failures.
    pub fn first_failure(&self) -> Option<Awake> {
        self.first_failure
    }

    pub fn is_empty(&self, now: Awake) -> bool {
        self.counts.sum(now) == (0, 0)
    }

    /// The instant when `counts` changes by time alone.
    pub fn next_decay(&self, now: Awake) -> Option<Awake> {
        self.counts.next_decay(now)
    }

    /// Moves the job to the front; the one that failed longest ago drops out.
    fn remember(&mut self, job: FailedJob) {
        let known = usize::from(self.known_jobs);
        let place = self.jobs[..known].iter().position(|old| old.key == job.key);
        let end = place.unwrap_or(known.min(MAX_FAILED_JOBS - 1));
        if place.is_none() && known < MAX_FAILED_JOBS {
            self.known_jobs += 1;
        }
        self.jobs.copy_within(..end, 1);
        self.jobs[0] = job;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ProgressReason::*;
    use ProgressSignal::*;

    fn s(seconds: u64) -> Awake {
        Awake::from_ms(seconds * 1000)
    }

    #[test]
    fn worker_rate_table() {
        // succeeded, failed, failed jobs, moving, unmoving -> signal
        let table = [
            (0, 0, 0, 0, 0, Idle, NothingToCount),
            (1, 0, 0, 0, 0, Normal, RateAsExpected),
            (0, 0, 0, 1, 0, Normal, RateAsExpected), // one healthy four-hour job
            (4, 1, 1, 0, 0, Normal, RateAsExpected),
            (0, 0, 0, 4, 1, Normal, RateAsExpected),
            (79, 21, 5, 0, 0, Slow, RateBelowExpected),
            (1, 1, 1, 1, 1, Slow, RateBelowExpected),
            (1, 2, 2, 0, 0, Normal, TooFewSamples), // two bad payloads out of three
            (1, 3, 3, 0, 0, Normal, TooFewSamples),
            (0, 2, 2, 1, 0, Normal, TooFewSamples), // the third runs, and moves
            (1, 4, 3, 0, 0, Degraded, RateFarBelowExpected),
            (2, 3, 3, 0, 0, Slow, RateBelowExpected),
            (0, 0, 0, 1, 1, Slow, RateBelowExpected), // two samples: one does not move
            (1, 0, 0, 0, 3, Degraded, RateFarBelowExpected),
            (3, 7, 3, 0, 0, Slow, RateBelowExpected),
            (29, 71, 9, 0, 0, Degraded, RateFarBelowExpected),
            (1, 4, 1, 0, 999, Degraded, RateFarBelowExpected),
            (0, 1, 1, 0, 0, Idle, TooFewFailures), // one failing job is not the worker's fault,
            (0, 90, 1, 0, 0, Idle, TooFewFailures), // however often it fails
            (0, 90, 2, 0, 0, Idle, TooFewFailures),
            (0, 4, 4, 0, 0, Idle, TooFewFailures),
            (0, 5, 3, 0, 0, Degraded, OnlyFailures),
            (0, 0, 0, 0, 1, Degraded, NoForwardStep),
            (0, 1, 1, 0, 1, Degraded, NoForwardStep),
        ];
        for (succeeded, failed, failed_jobs, moving, unmoving, progress, reason) in table {
            let sample = WorkerSample { succeeded, failed, failed_jobs, moving, unmoving, ..WorkerSample::default() };
            let verdict = worker(&ProgressRule::default(), s(1000), &sample);
            assert_eq!((verdict.progress, verdict.reason), (progress, reason), "{sample:?}");
            assert_eq!(verdict.changes_at, None, "{sample:?}");
        }
    }

    #[test]
    fn what_is_expected_scales_the_thresholds() {
        let rule = ProgressRule { expected: 0.5, ..ProgressRule::default() };
        for (succeeded, failed, progress) in [(4, 6, Normal), (39, 61, Slow), (15, 85, Slow), (14, 86, Degraded)] {
            let sample = WorkerSample { succeeded, failed, ..WorkerSample::default() };
            assert_eq!(worker(&rule, s(0), &sample).progress, progress, "{succeeded}/{failed}");
        }
    }

    #[test]
    fn stuck_when_the_attempts_clock_is_over_or_120_s_after_step_and_first_failure() {
        let unmoving = WorkerSample { unmoving: 1, ..WorkerSample::default() };
        let failing = WorkerSample { failed: 5, failed_jobs: 3, ..WorkerSample::default() };
        let both = WorkerSample { unmoving: 1, ..failing };
        let blameless = WorkerSample { failed: 4, failed_jobs: 3, ..WorkerSample::default() };
        // sample, last step, (the attempt's clock is over at, its job's stuck_after), first failure -> stuck at
        let table = [
            (unmoving, None, Some((130, 120)), None, Some(130)),
            (unmoving, Some(40), Some((130, 120)), None, Some(160)),
            (unmoving, Some(5), Some((130, 120)), None, Some(130)),
            (unmoving, Some(5), Some((130, 120)), Some(50), Some(170)),
            (unmoving, Some(5), Some((910, 900)), Some(50), Some(950)),
            (unmoving, Some(5), Some((20, 10)), None, Some(20)),
            (both, Some(5), Some((910, 900)), Some(50), Some(950)),
            (unmoving, None, None, Some(20), None),
            (failing, None, None, Some(20), Some(140)),
            (failing, Some(90), None, Some(20), Some(210)),
            (failing, None, None, None, None),
            (blameless, None, None, Some(20), None),
        ];
        for (sample, step, unmoving, failure, stuck_at) in table {
            let clock = |(at, after)| UnmovingAttempt { stuck_at: s(at), stuck_after: Duration::from_secs(after) };
            let sample = WorkerSample {
                last_step: step.map(s),
                oldest_unmoving: unmoving.map(clock),
                first_failure: failure.map(s),
                ..sample
            };
            let judge = |at| worker(&ProgressRule::default(), at, &sample);
            let Some(stuck_at) = stuck_at.map(s) else {
                assert_ne!(judge(s(9999)).progress, Stuck, "{sample:?}");
                continue;
            };
            let before = judge(Awake::from_ms(stuck_at.as_ms() - 1));
            assert_eq!((before.progress, before.changes_at), (Degraded, Some(stuck_at)), "{sample:?}");
            let then = judge(stuck_at);
            assert_eq!((then.progress, then.changes_at, then.reason), (Stuck, None, before.reason), "{sample:?}");
        }
    }

    #[test]
    fn of_several_unmoving_attempts_the_first_whose_clock_runs_out_counts() {
        let clock = |at, after| UnmovingAttempt { stuck_at: s(at), stuck_after: Duration::from_secs(after) };
        // since, clocks -> which is first
        let table = [
            (None, [(120, 120), (179, 120)], 0),
            (None, [(900, 900), (179, 120)], 1),
            (Some(100), [(120, 120), (150, 30)], 1), // 100 + 120 is later than 150
            (None, [(130, 100), (130, 100)], 0),
        ];
        for (since, clocks, first) in table {
            let clocks = clocks.map(|(at, after)| clock(at, after));
            let sample = WorkerSample { last_step: since.map(s), ..WorkerSample::default() };
            assert_eq!(sample.first_of(clocks), Some(clocks[first]), "{since:?} {clocks:?}");
        }
        assert_eq!(WorkerSample::default().first_of([]), None);
    }

    #[test]
    fn flow_table() {
        // done, demand, last done, demand since -> at 60 s; stuck at
        let table = [
            (0, 0, None, None, Idle, NothingToCount, None),
            (0, 0, Some(1), Some(1), Idle, NothingToCount, None),
            (7, 0, Some(59), None, Normal, RateAsExpected, None),
            (80, 20, Some(59), Some(1), Normal, RateAsExpected, None),
            (79, 21, Some(59), Some(1), Slow, RateBelowExpected, None),
            (30, 70, Some(59), Some(1), Slow, RateBelowExpected, None),
            (1, 9, Some(59), Some(1), Degraded, RateFarBelowExpected, None),
            (0, 1, None, Some(1), Degraded, DemandNotServed, Some(121)),
            (0, 9, Some(30), Some(1), Degraded, DemandNotServed, Some(150)),
            (0, 9, Some(1), Some(30), Degraded, DemandNotServed, Some(150)),
        ];
        for (done, demand, last_done, demand_since, progress, reason, stuck_at) in table {
            let sample = FlowSample { done, demand, last_done: last_done.map(s), demand_since: demand_since.map(s) };
            let rule = ProgressRule::default();
            let expected = ProgressVerdict { progress, reason, changes_at: stuck_at.map(s) };
            assert_eq!(flow(&rule, s(60), &sample), expected, "{sample:?}");
            if let Some(at) = stuck_at {
                assert_eq!(flow(&rule, s(at), &sample).progress, Stuck, "{sample:?}");
            }
        }
    }

    #[derive(Clone, Copy)]
    enum End {
        Ok,
        Failed(u64),
    }
    use End::*;

    fn tally(ends: &[(u64, End)]) -> Tally {
        let mut tally = Tally::new(&ProgressRule::default());
        for &(at, end) in ends {
            match end {
                Ok => tally.succeeded(s(at)),
                Failed(job) => tally.failed(s(at), job),
            }
        }
        tally
    }

    #[test]
    fn tally_counts_outcomes_and_distinct_failed_jobs_inside_the_window() {
        // ends, at -> (succeeded, failed, jobs), first failure
        type Row = (&'static [(u64, End)], u64, (u32, u32, u32), Option<u64>);
        let table: [Row; 10] = [
            (&[], 0, (0, 0, 0), None),
            (&[(1, Ok), (2, Ok)], 30, (2, 0, 0), None),
            (&[(1, Failed(7)), (2, Failed(7)), (3, Failed(8))], 30, (0, 3, 2), Some(1)),
            (&[(1, Failed(7)), (2, Ok), (3, Failed(8))], 30, (1, 2, 2), Some(3)),
            (&[(1, Failed(7)), (20, Failed(8))], 61, (0, 1, 1), Some(1)),
            (&[(1, Failed(7)), (20, Failed(7))], 61, (0, 1, 1), Some(1)),
            // A run goes on over the edge of the window, but not over an empty one.
            (&[(1, Failed(7)), (50, Failed(8)), (100, Failed(9))], 100, (0, 2, 2), Some(1)),
            (&[(1, Failed(7)), (61, Failed(9))], 61, (0, 1, 1), Some(61)),
            (
                &[(1, Failed(1)), (1, Failed(2)), (1, Failed(3)), (1, Failed(4)), (1, Failed(5)), (9, Failed(2))],
                9,
                (0, 6, 4),
                Some(1),
            ),
            (
                &[(1, Failed(1)), (1, Failed(2)), (1, Failed(3)), (1, Failed(4)), (1, Failed(5)), (9, Failed(2))],
                62,
                (0, 1, 1),
                Some(1),
            ),
        ];
        for (row, (ends, at, counts, first_failure)) in table.into_iter().enumerate() {
            let tally = tally(ends);
            assert_eq!(tally.counts(s(at)), counts, "row {row}");
            assert_eq!(tally.first_failure(), first_failure.map(s), "row {row}");
            assert_eq!(tally.is_empty(s(at)), counts == (0, 0, 0), "row {row}");
        }
    }

    #[test]
    fn tally_decays_exactly_when_it_says() {
        let tally = tally(&[(1, Ok), (12, Failed(1)), (13, Failed(2)), (31, Failed(1)), (47, Ok)]);
        for from in 47..130 {
            let now = tally.counts(s(from));
            let first = (from..130).find(|at| tally.counts(s(*at)) != now).map(s);
            assert_eq!(tally.next_decay(s(from)), first, "from {from} s");
        }
    }

    #[test]
    fn a_tally_stays_small() {
        assert!(size_of::<Tally>() <= 160);
    }
}
