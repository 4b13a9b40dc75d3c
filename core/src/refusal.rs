//! Why a call was refused. A refusal changes nothing, is counted per kind, and says what to do.

use core::fmt;

use crate::ids::JobId;
use crate::job::{Invalid, JobState};
use crate::late::LateReport;
use crate::limits::LimitMet;

/// Every refusal that a manager gives.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refusal {
    Invalid(Invalid),
    Limited(LimitMet),
    UnknownJob,
    UnknownWorkflow,
    /// The claim names a hand-out that never was.
    UnknownAttempt,
    UnknownWorker,
    /// The attempt was superseded, or its lease is over.
    StaleAttempt,
    /// The attempt ended, and not in the way that this call says.
    AlreadyEnded,
    StaleIncarnation,
    StaleEpoch,
    /// A decision was based on what another leader had reported.
    StaleTerm,
    NotTerminal(JobState),
    /// The idempotency key, or the request id, was used for something else.
    Conflict,
    /// Another job that has not ended holds the unique key.
    UniqueKeyTaken(JobId),
    /// Two submissions of one batch have the same unique key.
    UniqueKeyTwice,
    NoLeader,
    Overloaded,
    QuietSpent,
    NotADeadLetter,
    UnknownSchedule,
    /// The job is not in memory. It may be in the archive: whoever can read that answers by the report, and else it is
    /// [`Self::UnknownJob`].
    NotInMemory {
        report: Box<LateReport>,
    },
    /// A submission of several is at fault: which, counted from zero, and how. None of them was stored.
    InBatch {
        index: usize,
        cause: Box<Refusal>,
    },
}

/// A refusal without its details, for counting.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum RefusalKind {
    Invalid,
    Limited,
    UnknownJob,
    UnknownWorkflow,
    UnknownAttempt,
    UnknownWorker,
    StaleAttempt,
    AlreadyEnded,
    StaleIncarnation,
    StaleEpoch,
    NotTerminal,
    Conflict,
    UniqueKeyTaken,
    NoLeader,
    Overloaded,
    /// A checkpoint came too soon for a manager of the first version. Not given any more.
    TooSoon,
    QuietSpent,
    NotADeadLetter,
    UnknownSchedule,
    StaleTerm,
}

impl RefusalKind {
    pub const ALL: [Self; 20] = [
        Self::Invalid,
        Self::Limited,
        Self::UnknownJob,
        Self::UnknownWorkflow,
        Self::UnknownAttempt,
        Self::UnknownWorker,
        Self::StaleAttempt,
        Self::AlreadyEnded,
        Self::StaleIncarnation,
        Self::StaleEpoch,
        Self::NotTerminal,
        Self::Conflict,
        Self::UniqueKeyTaken,
        Self::NoLeader,
        Self::Overloaded,
        Self::TooSoon,
        Self::QuietSpent,
        Self::NotADeadLetter,
        Self::UnknownSchedule,
        Self::StaleTerm,
    ];

    /// The kind's bit in a stored set of kinds. Stored data depends on these: a new kind gets a new one, and none is
    /// used again.
    pub const fn bit(self) -> u32 {
        1 << match self {
            Self::Invalid => 0,
            Self::Limited => 1,
            Self::UnknownJob => 2,
            Self::UnknownWorkflow => 3,
            Self::UnknownAttempt => 4,
            Self::UnknownWorker => 5,
            Self::StaleAttempt => 6,
            Self::AlreadyEnded => 7,
            Self::StaleIncarnation => 8,
            Self::StaleEpoch => 9,
            Self::NotTerminal => 10,
            Self::Conflict => 11,
            Self::UniqueKeyTaken => 12,
            Self::NoLeader => 13,
            Self::Overloaded => 14,
            Self::TooSoon => 15,
            Self::QuietSpent => 16,
            Self::NotADeadLetter => 17,
            Self::UnknownSchedule => 18,
            Self::StaleTerm => 19,
        }
    }

    /// The stable word of the API.
    pub const fn code(self) -> &'static str {
        match self {
            Self::Invalid => "invalid",
            Self::Limited => "limited",
            Self::UnknownJob => "unknown_job",
            Self::UnknownWorkflow => "unknown_workflow",
            Self::UnknownAttempt => "unknown_attempt",
            Self::UnknownWorker => "unknown_worker",
            Self::StaleAttempt => "stale_attempt",
            Self::AlreadyEnded => "already_ended",
            Self::StaleIncarnation => "stale_incarnation",
            Self::StaleEpoch => "stale_epoch",
            Self::NotTerminal => "not_terminal",
            Self::Conflict => "conflict",
            Self::UniqueKeyTaken => "unique_key_taken",
            Self::NoLeader => "no_leader",
            Self::Overloaded => "overloaded",
            Self::TooSoon => "too_soon",
            Self::QuietSpent => "quiet_spent",
            Self::NotADeadLetter => "not_a_dead_letter",
            Self::UnknownSchedule => "unknown_schedule",
            Self::StaleTerm => "stale_term",
        }
    }
}

impl Refusal {
    /// The refusal of a single submission, without saying which it was.
    pub fn of_single(self) -> Self {
        match self {
            Self::InBatch { cause, .. } => *cause,
            other => other,
        }
    }

    /// The refusal where there is no archive in which a job could be.
    pub fn without_archive(self) -> Self {
        match self {
            Self::NotInMemory { .. } => Self::UnknownJob,
            other => other,
        }
    }

    pub fn kind(&self) -> RefusalKind {
        match self {
            Self::Invalid(_) => RefusalKind::Invalid,
            Self::Limited(_) => RefusalKind::Limited,
            Self::UnknownJob | Self::NotInMemory { .. } => RefusalKind::UnknownJob,
            Self::UnknownWorkflow => RefusalKind::UnknownWorkflow,
            Self::UnknownAttempt => RefusalKind::UnknownAttempt,
            Self::UnknownWorker => RefusalKind::UnknownWorker,
            Self::StaleAttempt => RefusalKind::StaleAttempt,
            Self::AlreadyEnded => RefusalKind::AlreadyEnded,
            Self::StaleIncarnation => RefusalKind::StaleIncarnation,
            Self::StaleEpoch => RefusalKind::StaleEpoch,
            Self::StaleTerm => RefusalKind::StaleTerm,
            Self::NotTerminal(_) => RefusalKind::NotTerminal,
            Self::Conflict => RefusalKind::Conflict,
            Self::UniqueKeyTaken(_) | Self::UniqueKeyTwice => RefusalKind::UniqueKeyTaken,
            Self::NoLeader => RefusalKind::NoLeader,
            Self::Overloaded => RefusalKind::Overloaded,
            Self::QuietSpent => RefusalKind::QuietSpent,
            Self::NotADeadLetter => RefusalKind::NotADeadLetter,
            Self::UnknownSchedule => RefusalKind::UnknownSchedule,
            Self::InBatch { cause, .. } => cause.kind(),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(invalid) => invalid.fmt(f),
            Self::Limited(met) => write!(f, "limit met: {met}; wait, or raise the limit"),
            Self::UnknownJob | Self::NotInMemory { .. } => {
                f.write_str("no job has this id; it is wrong, or the job ended so long ago that it is no longer kept")
            }
            Self::UnknownWorkflow => f.write_str("the job has no such workflow"),
            Self::UnknownAttempt => f.write_str("no such attempt was ever handed out"),
            Self::UnknownWorker => f.write_str("no such worker is known; say hello first"),
            Self::StaleAttempt => f.write_str("this attempt lost its lease; stop, its work belongs to a successor"),
            Self::AlreadyEnded => f.write_str("this attempt has already ended in another way"),
            Self::StaleIncarnation => f.write_str("another incarnation of this worker has its place; stop"),
            Self::StaleEpoch => f.write_str("a newer gate epoch leads, or has decided about this job"),
            Self::StaleTerm => f.write_str("the decision was based on the reports of another leader; evaluate again"),
            Self::NotTerminal(state) => write!(f, "the job is {}; it must have ended first", state.word()),
            Self::Conflict => f.write_str("this key was already used for a different request"),
            Self::UniqueKeyTaken(job) => write!(f, "job {job} holds this unique key and has not ended"),
            Self::UniqueKeyTwice => {
                f.write_str("two jobs of this batch have the same unique key; submit one at a time")
            }
            Self::NoLeader => f.write_str("this manager does not hold the seat; try another, or again"),
            Self::Overloaded => f.write_str("the manager is overloaded; try again later"),
            Self::QuietSpent => f.write_str("the quiet budget of this attempt is used up; report progress instead"),
            Self::NotADeadLetter => f.write_str("the job has no dead letter"),
            Self::UnknownSchedule => f.write_str("no schedule has this name; list them to see which there are"),
            Self::InBatch { index, cause } => write!(f, "submission {index}: {cause}; none of this batch was stored"),
        }
    }
}

/// The number of refusals of each kind.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RefusalCounts([u64; RefusalKind::ALL.len()]);

impl RefusalCounts {
    pub fn count(&mut self, kind: RefusalKind) {
        self.0[kind as usize] += 1;
    }

    /// Counts a refusal that was given. A job that is not in memory may be in the archive: whoever looks there counts.
    pub fn note(&mut self, refusal: &Refusal) {
        if !matches!(refusal, Refusal::NotInMemory { .. }) {
            self.count(refusal.kind());
        }
    }

    /// The sum of both.
    #[must_use]
    pub fn and(mut self, others: &Self) -> Self {
        self.0.iter_mut().zip(others.0).for_each(|(count, other)| *count += other);
        self
    }

    pub fn of(&self, kind: RefusalKind) -> u64 {
        self.0[kind as usize]
    }

    pub fn listed(&self) -> impl Iterator<Item = (RefusalKind, u64)> + '_ {
        RefusalKind::ALL.into_iter().map(|kind| (kind, self.of(kind)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_the_bit_that_is_stored_for_it() {
        // In data that is stored already: the list may grow at its end, and never change.
        let stored = [
            "invalid",
            "limited",
            "unknown_job",
            "unknown_workflow",
            "unknown_attempt",
            "unknown_worker",
            "stale_attempt",
            "already_ended",
            "stale_incarnation",
            "stale_epoch",
            "not_terminal",
            "conflict",
            "unique_key_taken",
            "no_leader",
            "overloaded",
            "too_soon",
            "quiet_spent",
            "not_a_dead_letter",
            "unknown_schedule",
            "stale_term",
        ];
        let mut found = RefusalKind::ALL.map(|kind| (kind.bit(), kind.code()));
        found.sort_unstable();
        let expected = (0..).zip(stored).map(|(place, code)| (1 << place, code));
        assert!(found.into_iter().eq(expected), "{found:?}");
    }
}
