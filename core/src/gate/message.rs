//! Messages between the leader of a datacenter and a gate.
//!
//! The leader dials every gate; the gate that leads answers. A stream lives no longer than either's tenure.
//!
//! ```text
//! leader of a datacenter                                gate
//!   │── hello (datacenter, term, highest epoch, counts) ──▶│  the highest term of each datacenter is kept
//!   │◀─ welcome (epoch) ──────────────────────────────────│  from now on it is reported to
//!   │── leader transfer (all open jobs) ──────────────────▶│  a new leader: `started_at` kept, term higher
//!   │◀─ submit (job, epoch, draft) ───────────────────────│  resent until answered
//!   │── submitted ────────────────────────────────────────▶│  durable there; the gate may forget the payload
//!   │── progress (every 10 s, many jobs in a frame) ──────▶│  soft: a report proves contact, no more
//!   │── timed out (stuck, or overall) ────────────────────▶│  logged there, resent until answered
//!   │◀─ remaining | heard ────────────────────────────────│  more time globally; or: known, not decided
//!   │◀─ global timeout (epoch, term) | cancel (epoch) ────│  resent until the datacenter's final status is there
//!   │── correction (what is current) ─────────────────────▶│  a stale token: nothing was done; evaluated, sent again
//!   │── final (outcome, result) ──────────────────────────▶│  resent until heard
//!   │◀─ final heard ──────────────────────────────────────│
//!   │◀─ withdraw ── withdrawn | final ────────────────────▶│  undoes a submit whose answer was lost, durably
//!   │◀─ ask ── progress | final | unknown ────────────────▶│  what became of these jobs?
//! ```
//!
//! **Tokens.** What a datacenter says carries the *term* of its leader, and a number that rises with every frame of one
//! life of it: what is older than something that was heard changes nothing. What a gate decides carries the gate's *epoch*; a
//! global timeout echoes, besides, the term of the leader whose reports it was based on. Terms and epochs are
//! never compared with each other.
//!
//! **Every report rebuilds.** A gate that knows nothing of a job takes all that it needs from any report about it:
//! targets, policy, timeout, extensions, elapsed time, and the highest epoch that the datacenter has seen.

use core::time::Duration;
use std::sync::Arc;

use crate::fence::{GateEpoch, Term};
use crate::health::DatacenterCounts;
use crate::ids::{JobId, Name};
use crate::job::{Draft, JobState, TimeoutPolicy};
use crate::payload::Payload;
use crate::refusal::RefusalKind;
use crate::timeout::{ExtensionTotals, TimeoutReason};

/// Something that a datacenter's leader says, under its term.
#[derive(Clone, PartialEq, Debug)]
pub struct Frame {
    pub term: Term,
    /// Rises with every frame of one life of the leader, over all its streams.
    pub number: u64,
    pub message: FromDatacenter,
}

#[derive(Clone, PartialEq, Debug)]
pub enum FromDatacenter {
    /// The first of every stream.
    Hello(Hello),
    /// Health by which routing goes.
    Health(DatacenterCounts),
    /// Open jobs, as they are now. Soft: not answered, not repeated.
    Progress(Vec<JobReport>),
    /// The same, by a leader that has taken over.
    LeaderTransfer(Vec<JobReport>),
    /// The datacenter would have ended this job, if it could: `timed_out` of the report says why. Repeated until answered.
    TimedOut(Box<JobReport>),
    /// The answer to a submit.
    Submitted { job: JobId, answer: Result<(), SubmitRefusal> },
    /// The job is not there and never will be.
    Withdrawn { job: JobId },
    /// The job has ended there. Repeated until heard.
    Final(Box<FinalStatus>),
    /// A decision came under a stale token, and nothing was done.
    Correction(Box<Correction>),
    /// The datacenter has no such job, neither in memory nor in the archive.
    Unknown { job: JobId },
}

#[derive(Clone, PartialEq, Debug)]
pub struct Hello {
    /// Must be the one that the stream was authenticated for.
    pub datacenter: Name,
    /// The life of the leader's process. Two lives with one term are a datacenter that was restored from a backup.
    pub life: u64,
    /// The highest epoch that decided about any of its open jobs.
    pub epoch: Option<GateEpoch>,
    pub counts: DatacenterCounts,
}

/// The facts that a gate must know to decide about a job, whoever submitted it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JobOutline {
    pub kind: Name,
    pub queue: Name,
    pub targets: Box<[Name]>,
    pub policy: TimeoutPolicy,
    pub timeout: Duration,
    pub max_extension: Duration,
}

/// A job in one datacenter.
#[derive(Clone, PartialEq, Debug)]
pub struct JobReport {
    pub job: JobId,
    pub outline: JobOutline,
    /// The highest epoch that decided about it.
    pub epoch: Option<GateEpoch>,
    /// Since it could first run, the time before it came here included; none before that.
    pub elapsed: Option<Duration>,
    /// Extensions here: earned by workers, and given by operators.
    pub extended: ExtensionTotals,
    /// Since the newest forward step of what runs; none where nothing does.
    pub since_progress: Option<Duration>,
    pub state: JobState,
    /// The datacenter would have ended it for this.
    pub timed_out: Option<TimeoutReason>,
    pub workflows: WorkflowCounts,
    /// Hand-outs of all its workflows.
    pub attempts: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WorkflowCounts {
    pub total: u32,
    pub succeeded: u32,
    pub failed: u32,
}

/// The end of a job in one datacenter, or as a whole.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Outcome {
    // The worst last: the outcome of a job is the worst of its targets'.
    Succeeded,
    Cancelled,
    Failed,
    TimedOut,
}

impl Outcome {
    pub const fn of(state: JobState) -> Option<Self> {
        match state {
            JobState::Succeeded => Some(Self::Succeeded),
            JobState::Failed => Some(Self::Failed),
            JobState::Cancelled => Some(Self::Cancelled),
            JobState::TimedOut => Some(Self::TimedOut),
            JobState::Waiting | JobState::Ready | JobState::Delayed | JobState::Running | JobState::Cancelling => None,
        }
    }

    pub const fn state(self) -> JobState {
        match self {
            Self::Succeeded => JobState::Succeeded,
            Self::Failed => JobState::Failed,
            Self::Cancelled => JobState::Cancelled,
            Self::TimedOut => JobState::TimedOut,
        }
    }
}

#[derive(Clone, PartialEq, Debug)]
pub struct FinalStatus {
    /// The job's report when it ended; `timed_out` says why it was timed out, if it was.
    pub report: JobReport,
    pub outcome: Outcome,
    /// The result of its last workflow that succeeded. Content in the store travels with its bytes.
    pub result: Option<Payload>,
    /// The last error that was reported.
    pub error: Option<Arc<str>>,
}

/// The reason why a decision was refused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum StaleToken {
    /// The decision was based on what another leader had reported.
    Term,
    /// A newer epoch has decided, or leads.
    Epoch,
}

impl StaleToken {
    pub const fn code(self) -> &'static str {
        match self {
            Self::Term => "stale_term",
            Self::Epoch => "stale_epoch",
        }
    }
}

/// The current report where a decision was refused. The term is the frame's.
#[derive(Clone, PartialEq, Debug)]
pub struct Correction {
    pub stale: StaleToken,
    pub report: JobReport,
}

/// The reason why a datacenter did not take a job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SubmitRefusal {
    /// The gate has withdrawn it.
    Withdrawn,
    Refused {
        kind: RefusalKind,
        text: Box<str>,
    },
}

impl SubmitRefusal {
    /// Whether the same submit may be taken later, if need be from a gate that leads under a newer epoch.
    pub const fn is_transient(&self) -> bool {
        use RefusalKind::{Limited, NoLeader, Overloaded, StaleEpoch};
        matches!(self, Self::Refused { kind: Overloaded | Limited | NoLeader | StaleEpoch, .. })
    }
}

#[derive(Clone, PartialEq, Debug)]
pub enum ToDatacenter {
    /// This gate leads, under this epoch, and wants reports.
    Welcome {
        epoch: GateEpoch,
    },
    Submit(Box<Placement>),
    /// A client's. It carries the epoch only.
    Cancel {
        job: JobId,
        epoch: GateEpoch,
    },
    GlobalTimeout {
        job: JobId,
        epoch: GateEpoch,
        term: Term,
        reason: TimeoutReason,
    },
    /// Undoes a submit whose answer was lost.
    Withdraw {
        job: JobId,
        epoch: GateEpoch,
    },
    /// The answer to an overall timeout: globally there is more time.
    Remaining {
        job: JobId,
        epoch: GateEpoch,
        remaining: Duration,
    },
    /// The timeout is known here; nothing was decided yet.
    Heard {
        job: JobId,
    },
    FinalHeard {
        jobs: Vec<JobId>,
    },
    /// Asks about the fate of these jobs.
    Ask {
        jobs: Vec<JobId>,
    },
}

/// A job for one datacenter.
#[derive(Clone, PartialEq, Debug)]
pub struct Placement {
    pub job: JobId,
    pub epoch: GateEpoch,
    /// Set if the job may have been sent before.
    pub again: bool,
    /// The time for which the job could have run already.
    pub waited: Duration,
    /// The job with `datacenters` as they were chosen, and without keys: those are held at the gate.
    pub draft: Draft,
}
