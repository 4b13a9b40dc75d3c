//! Inputs of a manager machine. A closed list: nothing else changes it.

use core::time::Duration;
use std::sync::Arc;

use crate::fence::{GateEpoch, Term};
use crate::gate::message::{Placement, ToDatacenter};
use crate::health::overload::OverloadLevel;
use crate::ids::{Claim, ClientId, Incarnation, JobId, Name, RequestId, Seq, SessionId, StreamId, WorkerId};
use crate::job::{Draft, JobSpec, JobState};
use crate::message::{Beat, ExtensionRequest, FromWorker, Settlement, Subscription};
use crate::schedule::{MissedPolicy, Overlap, Timing};
use crate::state::JobImage;
use crate::time::Wall;

#[derive(Clone, PartialEq, Debug)]
pub enum Input {
    /// Nothing happened but time.
    Wake,
    /// The seat of the log was taken under this term; always the first input.
    SeatTaken {
        term: Term,
    },
    /// The term of the log was read after this question was asked.
    SeatConfirmed {
        term: Term,
        question: u64,
    },
    /// Another term was seen. This machine is to be dropped.
    SeatLost,
    /// Everything that was queued during a gap of ours has been fed in.
    QueueEmptied,
    /// Everything up to this event is durable.
    Durable {
        seq: Seq,
    },
    /// The overload detector changed its mind.
    Load(OverloadLevel),
    /// A call that waits for one answer.
    Call {
        request: RequestId,
        call: Call,
    },
    /// The caller's connection closed. `delivered`: its answer had been sent in full.
    CallGone {
        request: RequestId,
        delivered: bool,
    },
    Session {
        session: SessionId,
        message: FromWorker,
    },
    SessionClosed {
        session: SessionId,
    },
    /// The worker of this attempt cannot be given what the attempt needs, and a new session would change nothing.
    Undeliverable {
        claim: Claim,
        why: Arc<str>,
    },
    /// Ended jobs that are safely in the archive.
    Archived {
        jobs: Vec<JobId>,
    },
    /// A stream to a gate is open, and the gate has proven to be one. This is the datacenter that we speak for.
    GateOpened {
        stream: StreamId,
        datacenter: Name,
    },
    GateClosed {
        stream: StreamId,
    },
    Gate {
        stream: StreamId,
        message: Box<ToDatacenter>,
    },
    /// The archive's copy of a job, as `Effect::FindArchived` asked for it.
    ArchivedFound {
        stream: StreamId,
        question: Box<GateQuestion>,
        image: Option<Box<JobImage>>,
    },
    /// Due instants of a schedule, as `Effect::FindDue` asked for them.
    Due(DueInstants),
}

/// The question of a gate about a job that is not in memory.
#[derive(Clone, PartialEq, Debug)]
pub enum GateQuestion {
    /// The end of the job.
    Final { job: JobId },
    /// Whether it has ended long ago; if it never was here, it is submitted.
    Submit(Box<Placement>),
    /// The same; if it never was here, it is withdrawn.
    Withdraw { job: JobId, epoch: GateEpoch },
}

impl GateQuestion {
    pub fn job(&self) -> JobId {
        match self {
            Self::Final { job } | Self::Withdraw { job, .. } => *job,
            Self::Submit(placement) => placement.job,
        }
    }
}

/// The due instants of a schedule that follow one another from an instant on, with none left out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DueInstants {
    pub schedule: Name,
    /// The revision of the timing that they were computed from.
    pub revision: Seq,
    /// The instant that all of them are later than.
    pub after: Wall,
    pub instants: Vec<Wall>,
    /// Set if the schedule is never due again after these.
    pub is_end: bool,
    /// Set if the timing cannot be searched on this node, by which the schedule is never due here.
    pub is_unsearchable: bool,
}

#[derive(Clone, PartialEq, Debug)]
pub enum Call {
    /// All or nothing.
    Submit(Vec<Submission>),
    Cancel {
        job: JobId,
        epoch: Option<GateEpoch>,
    },
    /// Cancel those of these jobs that match. The caller has looked for them a few at a time, and goes on behind them.
    CancelWhere {
        filter: Filter,
        jobs: Vec<JobId>,
    },
    /// A new job like this ended one.
    Retry {
        job: JobId,
        new_id: JobId,
        request: Name,
    },
    /// The same for a job that has left memory: its image comes along.
    RetryArchived {
        image: Box<JobImage>,
        new_id: JobId,
        request: Name,
    },
    Extend {
        job: JobId,
        by: Duration,
        reason: Box<str>,
        request: Name,
    },
    Poll(Poll),
    Beat(Vec<Beat>),
    Settle(Vec<Settlement>),
    RequestExtension(ExtensionRequest),
    /// The input of a running attempt that is called so, where it travelled by reference.
    FetchInput {
        claim: Claim,
        workflow: Name,
    },
    PauseQueue(Name),
    ResumeQueue(Name),
    DrainWorker(WorkerId),
    UndrainWorker(WorkerId),
    /// A worker without a session wants no more work. What it holds stays its own.
    Goodbye {
        worker: WorkerId,
        incarnation: Incarnation,
    },
    ReplayDeadLetter {
        job: JobId,
        new_id: JobId,
        request: Name,
        from: ReplayFrom,
    },
    DropDeadLetter {
        job: JobId,
    },
    /// A new schedule, or another plan for one that is there.
    SetSchedule(Box<ScheduleDraft>),
    RemoveSchedule(Name),
    PauseSchedule(Name),
    ResumeSchedule(Name),
    /// A run at once, besides those that are due. The same request gives the same run.
    RunSchedule {
        schedule: Name,
        request: Option<Name>,
    },
}

/// A schedule as written. That the timing makes sense was checked where calendars are known.
#[derive(Clone, PartialEq, Debug)]
pub struct ScheduleDraft {
    pub schedule: Name,
    pub timing: Timing,
    pub job: Draft,
    pub overlap: Overlap,
    pub missed: MissedPolicy,
    pub jitter: Duration,
    pub critical: bool,
    /// Left as it is if not given; a new one is not paused.
    pub paused: Option<bool>,
}

/// The workflows of a dead letter that run again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ReplayFrom {
    /// Workflows that have not succeeded. The results of the others are taken over into the new job.
    #[default]
    Failed,
    /// All of them.
    Start,
}

#[derive(Clone, PartialEq, Debug)]
pub struct Submission {
    pub id: JobId,
    pub draft: Draft,
}

/// Ask for work without a session. Answered as soon as there is some, or when `wait` is over.
#[derive(Clone, PartialEq, Debug)]
pub struct Poll {
    pub worker: WorkerId,
    pub incarnation: Incarnation,
    pub subscription: Subscription,
    pub max: u32,
    pub wait: Duration,
    pub lease: Duration,
    /// The same id again gives the same leases.
    pub id: Option<Name>,
    pub client: ClientId,
}

/// Jobs by what they are; what is not given matches all.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Filter {
    pub queue: Option<Name>,
    pub kind: Option<Name>,
    pub tag: Option<Name>,
    pub state: Option<JobState>,
    /// Submitted then or later.
    pub since: Option<Wall>,
    /// Only jobs with an attempt that has made no forward step for this long, and did not announce a silence.
    pub not_moving: Option<Duration>,
}

impl Filter {
    /// Whether the filter admits the job. Conditions that are cheap to know are asked first.
    pub fn admits(
        &self,
        spec: &JobSpec,
        created_at: Wall,
        state: impl FnOnce() -> JobState,
        stands_still: impl FnOnce(Duration) -> bool,
    ) -> bool {
        self.since.is_none_or(|since| created_at >= since)
            && self.queue.as_ref().is_none_or(|queue| spec.queue == *queue)
            && self.kind.as_ref().is_none_or(|kind| spec.workflows.iter().any(|workflow| workflow.kind == *kind))
            && self.tag.as_ref().is_none_or(|tag| spec.tags().contains(tag))
            && self.state.is_none_or(|wanted| state() == wanted)
            && self.not_moving.is_none_or(stands_still)
    }

    /// Nothing of an archived job runs, so nothing of it stands still.
    pub fn admits_archived(&self, image: &JobImage) -> bool {
        self.admits(&image.spec, image.created_at, || image.state(), |_| false)
    }
}
