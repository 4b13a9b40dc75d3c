//! Whether a worker that asks for more time gets it, and how much.
//!
//! The worker's word is trusted for two things only: how far it has come, and why it asks. Everything else comes from
//! the manager's own books. Each grant is half of the one before and their number is limited, so that a worker cannot
//! live on asking; a grant after the first must be earned by progress. A probe answer earns nothing.
//!
//! A request is checked in this order, and the first thing that is wrong is the answer:
//!
//! | | denied because |
//! |---|---|
//! | 1 | the worker is unknown |
//! | 2 | the request is malformed: progress is not within 0..=1, or the reason is unknown |
//! | 3 | an attempt it names is stale |
//! | 4 | the worker is Suspect, or evicted |
//! | 5 | all grants are spent: the worker's since its reset, or an attempt's ever |
//! | 6 | an attempt made no progress since its last grant |
//!
//! A request that names several attempts is denied if any of them is a reason to. What a grant moves (the health
//! deadline, and the deadlines of jobs) is not decided here.

use crate::time::span_ms;
use core::fmt;
use core::str::FromStr;
use core::time::Duration;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GrantRule {
    pub base: Duration,
    pub min: Duration,
    /// The limit of grants to a worker since its reset, and of grants to an attempt ever.
    pub max_grants: u32,
}

impl Default for GrantRule {
    fn default() -> Self {
        Self { base: Duration::from_secs(30), min: Duration::from_secs(1), max_grants: 5 }
    }
}

impl GrantRule {
    /// The time granted after `n` grants: `max(min, base / 2^n)`.
    pub fn grant(&self, n: u32) -> Duration {
        let ms = span_ms(self.base).checked_shr(n).unwrap_or(0);
        Duration::from_millis(ms.max(span_ms(self.min)))
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ExtensionReason {
    LongWorkflow,
    GcPause,
    ResourceContention,
}

impl ExtensionReason {
    pub const ALL: [Self; 3] = [Self::LongWorkflow, Self::GcPause, Self::ResourceContention];

    pub const fn code(self) -> &'static str {
        match self {
            Self::LongWorkflow => "long_workflow",
            Self::GcPause => "gc_pause",
            Self::ResourceContention => "resource_contention",
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("unknown reason; allowed: long_workflow, gc_pause, resource_contention")]
pub struct UnknownReason;

impl FromStr for ExtensionReason {
    type Err = UnknownReason;

    fn from_str(code: &str) -> Result<Self, UnknownReason> {
        Self::ALL.into_iter().find(|reason| reason.code() == code).ok_or(UnknownReason)
    }
}

/// The part of the work that is done: a number within 0..=1, never NaN.
///
/// Held as the bits of a float, which order like the number itself where there is no sign.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Fraction(u64);

impl Fraction {
    pub fn new(value: f64) -> Option<Self> {
        // The sum turns a negative zero into zero.
        (0.0..=1.0).contains(&value).then(|| Self((value + 0.0).to_bits()))
    }

    pub const fn get(self) -> f64 {
        f64::from_bits(self.0)
    }
}

impl fmt::Debug for Fraction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fraction({})", self.get())
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum Denial {
    #[error("no such worker; register before asking for more time")]
    UnknownWorker,
    #[error("malformed request: {0}")]
    Malformed(MalformedRequest),
    #[error("an attempt in the request is no longer this worker's; name the attempts it holds")]
    StaleAttempt,
    #[error("the worker is Suspect; it has to answer probes again before it can ask")]
    WorkerSuspect,
    #[error("the worker is evicted; its attempts were requeued")]
    WorkerEvicted,
    #[error("the worker has spent its grants; completing an attempt resets them")]
    WorkerGrantsSpent,
    #[error("an attempt in the request has spent its grants for good")]
    AttemptGrantsSpent,
    #[error("no progress since the last grant; ask again when there is some")]
    NoProgress,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum MalformedRequest {
    #[error("progress must be a number from 0 to 1")]
    ProgressOutOfRange,
    #[error("the reason must be one of long_workflow, gc_pause, resource_contention")]
    UnknownReason,
}

impl Denial {
    pub const ALL: [Self; 9] = [
        Self::UnknownWorker,
        Self::Malformed(MalformedRequest::ProgressOutOfRange),
        Self::Malformed(MalformedRequest::UnknownReason),
        Self::StaleAttempt,
        Self::WorkerSuspect,
        Self::WorkerEvicted,
        Self::WorkerGrantsSpent,
        Self::AttemptGrantsSpent,
        Self::NoProgress,
    ];

    /// The denial's place in [`Self::ALL`].
    pub fn index(self) -> usize {
        Self::ALL.iter().position(|denial| *denial == self).expect("all are listed")
    }

    pub const fn code(self) -> &'static str {
        match self {
            Self::UnknownWorker => "unknown_worker",
            Self::Malformed(MalformedRequest::ProgressOutOfRange) => "progress_out_of_range",
            Self::Malformed(MalformedRequest::UnknownReason) => "unknown_reason",
            Self::StaleAttempt => "stale_attempt",
            Self::WorkerSuspect => "worker_suspect",
            Self::WorkerEvicted => "worker_evicted",
            Self::WorkerGrantsSpent => "worker_grants_spent",
            Self::AttemptGrantsSpent => "attempt_grants_spent",
            Self::NoProgress => "no_progress",
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WorkerFacts {
    pub suspect: bool,
    pub evicted: bool,
    /// Since the worker last completed an attempt successfully, or recovered from Suspect.
    pub grants_used: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AttemptFacts {
    /// Ever.
    pub grants_used: u32,
    /// Progress at the attempt's last grant; `None` before the first.
    pub last_progress: Option<Fraction>,
}

/// A request, and what the manager's books say about those it names.
#[derive(Clone, Copy, Debug)]
pub struct GrantFacts<'a> {
    pub worker: Option<WorkerFacts>,
    pub progress: f64,
    pub reason: Result<ExtensionReason, UnknownReason>,
    /// All attempts that the worker holds, if the request names none. `None` stands for a stale one.
    pub attempts: &'a [Option<AttemptFacts>],
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grant {
    pub grant: Duration,
    /// The number of the grant among the worker's, counted from 1.
    pub number: u32,
    /// The number of grants that could follow: the least of what is left to the worker and to each attempt.
    pub remaining: u32,
}

pub fn decide(rule: &GrantRule, facts: &GrantFacts<'_>) -> Result<Grant, Denial> {
    let worker = facts.worker.ok_or(Denial::UnknownWorker)?;
    let progress = Fraction::new(facts.progress).ok_or(Denial::Malformed(MalformedRequest::ProgressOutOfRange))?;
    facts.reason.map_err(|UnknownReason| Denial::Malformed(MalformedRequest::UnknownReason))?;
    if facts.attempts.contains(&None) {
        return Err(Denial::StaleAttempt);
    }
    if worker.suspect {
        return Err(Denial::WorkerSuspect);
    }
    if worker.evicted {
        return Err(Denial::WorkerEvicted);
    }
    if worker.grants_used >= rule.max_grants {
        return Err(Denial::WorkerGrantsSpent);
    }
    let attempts = || facts.attempts.iter().flatten();
    if attempts().any(|attempt| attempt.grants_used >= rule.max_grants) {
        return Err(Denial::AttemptGrantsSpent);
    }
    if attempts().any(|attempt| attempt.last_progress.is_some_and(|last| progress <= last)) {
        return Err(Denial::NoProgress);
    }
    let most_used = attempts().map(|attempt| attempt.grants_used).fold(worker.grants_used, u32::max);
    Ok(Grant {
        grant: rule.grant(worker.grants_used),
        number: worker.grants_used + 1,
        remaining: rule.max_grants - most_used - 1,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn fraction(value: f64) -> Fraction {
        Fraction::new(value).expect("within 0..=1")
    }

    #[test]
    fn each_grant_is_half_of_the_one_before_down_to_the_minimum() {
        let rule = GrantRule::default();
        let table = [30_000, 15_000, 7_500, 3_750, 1_875].map(ms);
        assert_eq!([0, 1, 2, 3, 4].map(|n| rule.grant(n)), table);
        assert_eq!(table.iter().sum::<Duration>(), ms(58_125));
        assert_eq!(rule.max_grants as usize, table.len());
        assert_eq!([5, 63, 64, u32::MAX].map(|n| rule.grant(n)), [ms(1_000); 4]);
    }

    #[test]
    fn reasons_are_known_by_their_code() {
        for (code, reason) in [
            ("long_workflow", Ok(ExtensionReason::LongWorkflow)),
            ("gc_pause", Ok(ExtensionReason::GcPause)),
            ("resource_contention", Ok(ExtensionReason::ResourceContention)),
            ("LongWorkflow", Err(UnknownReason)),
            ("gc_pause ", Err(UnknownReason)),
            ("", Err(UnknownReason)),
        ] {
            assert_eq!(code.parse(), reason, "{code:?}");
        }
    }

    #[test]
    fn a_fraction_lies_within_zero_and_one() {
        for value in [0.0, -0.0, f64::MIN_POSITIVE, 0.5, 1.0] {
            assert_eq!(Fraction::new(value).map(Fraction::get), Some(value));
        }
        assert_eq!(fraction(-0.0), fraction(0.0));
        for value in [f64::NAN, -f64::NAN, -f64::MIN_POSITIVE, 1.0 + f64::EPSILON, f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!(Fraction::new(value), None, "{value}");
        }
    }

    /// Starts with everything wrong, and mends one thing per row: the denial must be the first that is left.
    #[test]
    fn the_first_thing_that_is_wrong_is_the_answer() {
        let rule = GrantRule::default();
        let spent = AttemptFacts { grants_used: 5, last_progress: Some(fraction(0.5)) };
        let unmoved = AttemptFacts { grants_used: 1, last_progress: Some(fraction(0.5)) };
        let moved = AttemptFacts { grants_used: 1, last_progress: Some(fraction(0.4)) };
        let fresh = AttemptFacts { grants_used: 0, last_progress: None };
        let stale = [Some(spent), None];
        let (held_spent, held_unmoved) = ([Some(unmoved), Some(spent)], [Some(fresh), Some(unmoved)]);
        let held = [Some(fresh), Some(moved)];
        let bad = WorkerFacts { suspect: true, evicted: true, grants_used: 5 };
        let evicted = WorkerFacts { suspect: false, ..bad };
        let worn = WorkerFacts { evicted: false, ..evicted };
        let good = WorkerFacts { grants_used: 2, ..worn };
        let (known, unknown) = (Ok(ExtensionReason::GcPause), Err(UnknownReason));

        type Row<'a> = (Option<WorkerFacts>, f64, Result<ExtensionReason, UnknownReason>, &'a [Option<AttemptFacts>]);
        let rows: [(Row<'_>, Result<Grant, &str>); 11] = [
            ((None, f64::NAN, unknown, &stale), Err("unknown_worker")),
            ((Some(bad), f64::NAN, unknown, &stale), Err("progress_out_of_range")),
            ((Some(bad), -0.1, unknown, &stale), Err("progress_out_of_range")),
            ((Some(bad), 0.5, unknown, &stale), Err("unknown_reason")),
            ((Some(bad), 0.5, known, &stale), Err("stale_attempt")),
            ((Some(bad), 0.5, known, &held_spent), Err("worker_suspect")),
            ((Some(evicted), 0.5, known, &held_spent), Err("worker_evicted")),
            ((Some(worn), 0.5, known, &held_spent), Err("worker_grants_spent")),
            ((Some(good), 0.5, known, &held_spent), Err("attempt_grants_spent")),
            ((Some(good), 0.5, known, &held_unmoved), Err("no_progress")),
            ((Some(good), 0.5, known, &held), Ok(Grant { grant: ms(7_500), number: 3, remaining: 2 })),
        ];
        for ((worker, progress, reason, attempts), expected) in rows {
            let answer = decide(&rule, &GrantFacts { worker, progress, reason, attempts });
            assert_eq!(answer.map_err(Denial::code), expected);
        }
    }

    fn ask(worker_used: u32, progress: f64, attempts: &[Option<AttemptFacts>]) -> Result<Grant, Denial> {
        decide(
            &GrantRule::default(),
            &GrantFacts {
                worker: Some(WorkerFacts { suspect: false, evicted: false, grants_used: worker_used }),
                progress,
                reason: Ok(ExtensionReason::LongWorkflow),
                attempts,
            },
        )
    }

    #[test]
    fn the_first_grant_of_an_attempt_needs_no_progress_and_the_next_needs_more_than_before() {
        let last = |progress| [Some(AttemptFacts { grants_used: 1, last_progress: Some(fraction(progress)) })];
        assert!(ask(0, 0.0, &[Some(AttemptFacts { grants_used: 0, last_progress: None })]).is_ok());
        assert_eq!(ask(1, 0.0, &last(0.0)), Err(Denial::NoProgress));
        assert_eq!(ask(1, 0.6, &last(0.6)), Err(Denial::NoProgress));
        assert_eq!(ask(1, 0.5, &last(0.6)), Err(Denial::NoProgress));
        assert!(ask(1, 0.6 + f64::EPSILON, &last(0.6)).is_ok());
        // The worker was reset since, but this attempt got its grant: it still has to move.
        assert_eq!(ask(0, 0.6, &last(0.6)), Err(Denial::NoProgress));
    }

    #[test]
    fn what_remains_is_the_least_of_worker_and_attempts() {
        let used = |grants_used| Some(AttemptFacts { grants_used, last_progress: None });
        for (worker, attempts, grant_ms, remaining) in [
            (0, vec![], 30_000, 4),
            (4, vec![used(0)], 1_875, 0),
            (0, vec![used(3), used(1)], 30_000, 1),
            (2, vec![used(4)], 7_500, 0),
        ] {
            let expected = Grant { grant: ms(grant_ms), number: worker + 1, remaining };
            assert_eq!(ask(worker, 0.5, &attempts), Ok(expected), "worker {worker}, attempts {attempts:?}");
        }
    }

    #[test]
    fn every_denial_has_its_own_code() {
        let codes = [
            Denial::UnknownWorker,
            Denial::Malformed(MalformedRequest::ProgressOutOfRange),
            Denial::Malformed(MalformedRequest::UnknownReason),
            Denial::StaleAttempt,
            Denial::WorkerSuspect,
            Denial::WorkerEvicted,
            Denial::WorkerGrantsSpent,
            Denial::AttemptGrantsSpent,
            Denial::NoProgress,
        ]
        .map(Denial::code);
        assert_eq!(codes.iter().collect::<std::collections::BTreeSet<_>>().len(), codes.len());
    }

    proptest! {
        #[test]
        fn fractions_order_like_their_numbers(a in -0.5..1.5_f64, b in -0.5..1.5_f64) {
            prop_assert_eq!(Fraction::new(a).is_some(), (0.0..=1.0).contains(&a));
            if let (Some(x), Some(y)) = (Fraction::new(a), Fraction::new(b)) {
                prop_assert_eq!(x.partial_cmp(&y), a.partial_cmp(&b));
            }
        }
    }
}
