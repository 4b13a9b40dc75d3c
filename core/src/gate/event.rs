//! Events that a gate writes to its log. State changes only by applying these.
//!
//! Reports are not here, they are soft; but what was decided by them is, and what a decision needs that may not come
//! again: extensions, who has confirmed, how each datacenter ended.

use core::time::Duration;
use std::sync::Arc;

use crate::fence::Term;
use crate::ids::{JobId, Name};
use crate::job::JobSpec;
use crate::job::fingerprint::Fingerprint;
use crate::payload::Payload;
use crate::time::Wall;
use crate::timeout::{ExtensionTotals, TimeoutReason};

use super::message::{JobOutline, Outcome};

/// An event and the log time at which it was decided.
#[derive(Clone, PartialEq, Debug)]
pub struct StampedEvent {
    pub at: Wall,
    pub event: Event,
}

#[derive(Clone, PartialEq, Debug)]
pub enum Event {
    /// A gate took the seat.
    TermBegan {
        term: Term,
    },
    /// A datacenter has seen a higher epoch than ours: this gate's log was restored from a backup.
    EpochRaised {
        n: u64,
    },
    /// A datacenter has a leader under this term.
    DatacenterSeen {
        datacenter: Name,
        term: Term,
        life: u64,
    },
    JobSubmitted(Box<JobSubmitted>),
    /// A job that was not known, taken from a report.
    JobRebuilt(Box<JobRebuilt>),
    /// A job that waited for a datacenter has its targets.
    JobPlaced {
        job: JobId,
        targets: Box<[Name]>,
    },
    /// The datacenter has the job, durably.
    TargetConfirmed {
        job: JobId,
        datacenter: Name,
    },
    TargetEnded(Box<TargetEnded>),
    /// The most that any datacenter has granted.
    ExtensionsSeen {
        job: JobId,
        extended: ExtensionTotals,
    },
    JobExtended {
        job: JobId,
        by: Duration,
        reason: Box<str>,
        request: Name,
    },
    /// The job ends in every datacenter that has not finished. Nothing undoes this.
    EndDecided {
        job: JobId,
        why: EndCause,
        /// The end of the time that the job is kept if it is over by this, because no datacenter has it.
        kept_until: Wall,
    },
    JobsForgotten {
        jobs: Vec<JobId>,
    },
}

#[derive(Clone, PartialEq, Debug)]
pub struct JobSubmitted {
    pub id: JobId,
    pub spec: Arc<JobSpec>,
    /// Kept where the job has an idempotency key.
    pub fingerprint: Option<Fingerprint>,
    /// The instant at which the job can first run.
    pub started_at: Wall,
    /// Empty where it waits for a datacenter.
    pub targets: Box<[Name]>,
}

#[derive(Clone, PartialEq, Debug)]
pub struct JobRebuilt {
    pub id: JobId,
    pub outline: JobOutline,
    pub started_at: Wall,
    /// Decisions about it have at least this number.
    pub n: u64,
    pub extended: ExtensionTotals,
}

/// A job has ended in one of its datacenters.
#[derive(Clone, PartialEq, Debug)]
pub struct TargetEnded {
    pub job: JobId,
    pub datacenter: Name,
    pub end: TargetEnd,
    /// The end of the time that the job is kept if it is over by this.
    pub kept_until: Wall,
}

#[derive(Clone, PartialEq, Debug)]
pub struct TargetEnd {
    pub outcome: Outcome,
    pub cause: TargetCause,
    pub error: Option<Arc<str>>,
    pub result: Option<Payload>,
    pub attempts: u32,
}

/// The cause of a target's end.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum TargetCause {
    /// The datacenter said so.
    Reported,
    /// The datacenter timed it out for this.
    TimedOut(TimeoutReason),
    /// The job never ran there: the submit was withdrawn.
    Withdrawn,
    /// The job never ran there: the datacenter refused it for good.
    Refused,
    /// The datacenter had it and knows nothing of it any more.
    Lost,
}

impl TargetCause {
    pub const fn code(self) -> &'static str {
        match self {
            Self::Reported => "reported",
            Self::TimedOut(reason) => reason.code(),
            Self::Withdrawn => "withdrawn",
            Self::Refused => "refused",
            Self::Lost => "lost",
        }
    }
}

/// The cause for which a job ends everywhere.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum EndCause {
    TimedOut(TimeoutReason),
    Cancelled,
}

impl EndCause {
    /// The outcome of a target that never ran the job.
    pub const fn outcome(self) -> Outcome {
        match self {
            Self::TimedOut(_) => Outcome::TimedOut,
            Self::Cancelled => Outcome::Cancelled,
        }
    }
}

impl Event {
    /// Every job that this is about: those that applying it makes, changes or removes.
    pub fn for_each_job(&self, visit: &mut impl FnMut(JobId)) {
        match self {
            Self::TermBegan { .. } | Self::EpochRaised { .. } | Self::DatacenterSeen { .. } => {}
            Self::JobSubmitted(submitted) => visit(submitted.id),
            Self::JobRebuilt(rebuilt) => visit(rebuilt.id),
            Self::TargetEnded(ended) => visit(ended.job),
            Self::JobPlaced { job, .. }
            | Self::TargetConfirmed { job, .. }
            | Self::ExtensionsSeen { job, .. }
            | Self::JobExtended { job, .. }
            | Self::EndDecided { job, .. } => visit(*job),
            Self::JobsForgotten { jobs } => jobs.iter().for_each(|job| visit(*job)),
        }
    }
}
