//! Events of the log. State changes only by applying these, so a replay gives the same state.
//!
//! An event records a decision with everything that it depended on (the jittered delay, the granted time), so that
//! applying it needs no rule, no clock and no randomness. Beats, probes and lease renewals are not here: they are soft.

use core::time::Duration;
use std::sync::Arc;

use crate::fence::{AttemptFence, GateEpoch, Term};
use crate::grant::{Denial, ExtensionReason};
use crate::ids::{Bytes, Claim, Incarnation, JobId, Name, WorkerId};
use crate::job::end::JobEnd;
use crate::job::fingerprint::Fingerprint;
use crate::job::{Ending, JobSpec};
use crate::refusal::RefusalKind;
use crate::schedule::RecordReason;
use crate::state::SchedulePlan;
use crate::time::Wall;
use crate::timeout::TimeoutReason;

/// An event and the log time at which it was decided.
#[derive(Clone, PartialEq, Debug)]
pub struct StampedEvent {
    pub at: Wall,
    pub event: Event,
}

/// A workflow of a job.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct WorkflowRef {
    pub job: JobId,
    pub workflow: u16,
}

#[derive(Clone, PartialEq, Debug)]
pub enum Event {
    /// A manager took the seat.
    TermBegan {
        term: Term,
    },
    JobSubmitted(JobSubmitted),
    /// The delay of a workflow is over.
    WorkflowDue(WorkflowRef),
    HandedOut(HandedOut),
    /// An attempt ended, and what becomes of its workflow.
    AttemptEnded {
        claim: Claim,
        ending: Ending,
        then: NextState,
        /// The fate of the job if it is over by this; none where the workflow goes on. Older logs do not say.
        end: Option<JobEnd>,
        /// The last note of an attempt that a clock ended: its handler had no chance to give a reason.
        note: Option<Arc<str>>,
    },
    /// A client or a gate asked for a cancel: what nobody runs is cancelled, what runs is cancelling.
    CancelAsked {
        job: JobId,
        epoch: Option<GateEpoch>,
        /// The end of the job if it is over by this, because nobody runs any of it; older logs do not say.
        end: Option<JobEnd>,
    },
    /// The job ends: every workflow that is open.
    JobTimedOut {
        job: JobId,
        reason: TimeoutReason,
        /// Older logs do not say.
        end: Option<JobEnd>,
        /// The epoch of the gate that declared it for all datacenters.
        epoch: Option<GateEpoch>,
    },
    /// A job of a gate would have ended here; the gate decides.
    LocallyTimedOut {
        job: JobId,
        reason: TimeoutReason,
        /// The attempt that is stuck.
        stuck: Option<Claim>,
    },
    /// The attempt that was stuck has made a forward step.
    LocalTimeoutOver {
        job: JobId,
    },
    /// A gate has said something about a job that has timed out here; logged now and then.
    GateAnswered {
        job: JobId,
    },
    /// A gate has given a job time until then: globally there is more of it.
    TimeGiven {
        job: JobId,
        until: Wall,
    },
    /// A gate has taken back the submit of a job that never came: if it comes now, it is refused.
    JobWithdrawn {
        job: JobId,
        /// The instant from which the key may be forgotten.
        key_until: Wall,
    },
    QuietBegan {
        claim: Claim,
        allowed: Duration,
    },
    QuietEnded {
        claim: Claim,
        used: Duration,
    },
    Checkpointed {
        claim: Claim,
        data: Bytes,
    },
    /// The coarse mark: how far the handler was, so that a takeover knows.
    ProgressMarked {
        claim: Claim,
        watermark: u64,
        total: Option<u64>,
    },
    ExtensionDecided(Box<ExtensionDecided>),
    JobExtended {
        job: JobId,
        by: Duration,
        reason: Box<str>,
        request: Name,
    },
    /// A claim was used after its attempt had gone to another; logged once per attempt and kind.
    ClaimRefused {
        claim: Claim,
        verb: Verb,
        refusal: RefusalKind,
    },
    WorkerEvicted {
        worker: WorkerId,
        incarnation: Incarnation,
        readmit_at: Wall,
        /// The latest end of the leases that were taken from it; zero if there were none.
        taken_until: Wall,
        /// Set if the worker had no session, and so does not count for the hold; older logs do not say.
        without_session: bool,
    },
    /// The worker came back as another incarnation; this one may not come back.
    IncarnationReplaced {
        worker: WorkerId,
        old: Incarnation,
    },
    /// The worker speaks as this incarnation from now on; once for each life of it.
    IncarnationSeen {
        worker: WorkerId,
        incarnation: Incarnation,
    },
    /// The worker gets one attempt at a time until one succeeds.
    ProbationBegan {
        worker: WorkerId,
    },
    ProbationEnded {
        worker: WorkerId,
    },
    /// Recovered from Suspect: its grants start anew.
    GrantsReset {
        worker: WorkerId,
    },
    WorkerDrained {
        worker: WorkerId,
    },
    WorkerUndrained {
        worker: WorkerId,
    },
    WorkerForgotten {
        worker: WorkerId,
    },
    QueuePaused {
        queue: Name,
    },
    QueueResumed {
        queue: Name,
    },
    /// The dead letter was replayed or dropped; the job may be archived.
    DeadLetterDropped {
        job: JobId,
    },
    JobsArchived {
        jobs: Vec<JobId>,
    },
    KeysExpired {
        keys: Vec<Name>,
    },
    ScheduleSet(Box<ScheduleSet>),
    ScheduleRemoved {
        schedule: Name,
    },
    SchedulePaused {
        schedule: Name,
    },
    ScheduleResumed {
        schedule: Name,
    },
    /// No run starts for these due instants in a row. One that starts is part of [`JobSubmitted`].
    InstantsPassed {
        schedule: Name,
        reason: RecordReason,
        first: Wall,
        last: Wall,
        count: u64,
    },
    /// A due instant waits for an earlier run to end.
    InstantWaits {
        schedule: Name,
        due: Wall,
    },
}

impl Event {
    /// The schedule that this is about, besides those that started the jobs it is about.
    pub fn schedule(&self) -> Option<&Name> {
        match self {
            Self::JobSubmitted(submitted) => submitted.scheduled.as_ref().map(|run| &run.schedule),
            Self::ScheduleSet(set) => Some(&set.schedule),
            Self::ScheduleRemoved { schedule }
            | Self::SchedulePaused { schedule }
            | Self::ScheduleResumed { schedule }
            | Self::InstantsPassed { schedule, .. }
            | Self::InstantWaits { schedule, .. } => Some(schedule),
            _ => None,
        }
    }

    /// Every job that this is about: those that applying it makes, changes or removes.
    pub fn for_each_job(&self, visit: &mut impl FnMut(JobId)) {
        match self {
            Self::JobSubmitted(submitted) => {
                visit(submitted.id);
                submitted.retry_of.iter().for_each(|retry| visit(retry.job));
            }
            Self::WorkflowDue(workflow) => visit(workflow.job),
            Self::HandedOut(handed) => visit(handed.workflow.job),
            Self::AttemptEnded { claim, .. }
            | Self::QuietBegan { claim, .. }
            | Self::QuietEnded { claim, .. }
            | Self::Checkpointed { claim, .. }
            | Self::ProgressMarked { claim, .. }
            | Self::ClaimRefused { claim, .. } => visit(claim.job),
            Self::CancelAsked { job, .. }
            | Self::JobTimedOut { job, .. }
            | Self::LocallyTimedOut { job, .. }
            | Self::LocalTimeoutOver { job }
            | Self::GateAnswered { job }
            | Self::TimeGiven { job, .. }
            | Self::JobExtended { job, .. }
            | Self::DeadLetterDropped { job } => visit(*job),
            Self::ExtensionDecided(decided) => decided.claims.iter().for_each(|claim| visit(claim.job)),
            Self::JobsArchived { jobs } => jobs.iter().for_each(|job| visit(*job)),
            Self::TermBegan { .. }
            | Self::WorkerEvicted { .. }
            | Self::IncarnationReplaced { .. }
            | Self::IncarnationSeen { .. }
            | Self::ProbationBegan { .. }
            | Self::ProbationEnded { .. }
            | Self::GrantsReset { .. }
            | Self::WorkerDrained { .. }
            | Self::WorkerUndrained { .. }
            | Self::WorkerForgotten { .. }
            | Self::QueuePaused { .. }
            | Self::QueueResumed { .. }
            | Self::KeysExpired { .. }
            | Self::JobWithdrawn { .. }
            | Self::ScheduleSet(_)
            | Self::ScheduleRemoved { .. }
            | Self::SchedulePaused { .. }
            | Self::ScheduleResumed { .. }
            | Self::InstantsPassed { .. }
            | Self::InstantWaits { .. } => {}
        }
    }
}

#[derive(Clone, PartialEq, Debug)]
pub struct JobSubmitted {
    pub id: JobId,
    pub spec: Arc<JobSpec>,
    /// Kept where the job has an idempotency key.
    pub fingerprint: Option<Fingerprint>,
    pub retry_of: Option<RetryOf>,
    /// Workflows that do not run, because they have succeeded in the job that this one repeats: their results are taken
    /// over from there. Sorted. That job is in memory when this is applied.
    pub taken_over: Arc<[u16]>,
    /// The schedule and the due instant of a run that a schedule starts. This is the record of the instant.
    pub scheduled: Option<Box<ScheduledRun>>,
    /// The origin of a job that a gate submitted, and decides about.
    pub gate: Option<Box<GateOrigin>>,
}

/// The gate's part in a job that it submitted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GateOrigin {
    pub epoch: GateEpoch,
    /// The time for which the job could have run before it came.
    pub waited: Duration,
}

/// The due instant that a job is the run of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ScheduledRun {
    pub schedule: Name,
    pub due: Wall,
    pub reason: RecordReason,
}

/// A schedule is new, or has a new plan.
#[derive(Clone, PartialEq, Debug)]
pub struct ScheduleSet {
    pub schedule: Name,
    pub plan: Arc<SchedulePlan>,
    pub paused: bool,
    /// Nothing is due by this plan up to here, but for what waits.
    pub horizon: Wall,
}

/// The job that this one repeats, asked for by a request that may itself be repeated.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RetryOf {
    pub job: JobId,
    pub request: Name,
}

#[derive(Clone, PartialEq, Debug)]
pub struct HandedOut {
    pub workflow: WorkflowRef,
    pub fence: AttemptFence,
    pub worker: WorkerId,
    pub incarnation: Incarnation,
    pub lease: Duration,
    pub via: Via,
}

/// The way in which a worker speaks to us.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Via {
    Session,
    /// By calls. `poll` is the id of the poll that the attempt was handed to, so that repeating the poll gives the same
    /// leases.
    Http {
        poll: Option<Name>,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NextState {
    Succeeded,
    Ready,
    Delayed { until: Wall },
    Failed,
    TimedOut,
    Cancelled,
}

/// A request for more time, and its answer. Kept in the ledger of every job that it names.
#[derive(Clone, PartialEq, Debug)]
pub struct ExtensionDecided {
    pub worker: WorkerId,
    pub claims: Vec<Claim>,
    pub reason: Option<ExtensionReason>,
    pub progress: f64,
    pub result: Result<Duration, Denial>,
    /// The health deadline that the grant has set; zero where none was given.
    pub live_until: Wall,
    /// The number of further such answers that this stands for, which were not logged by themselves.
    pub repeats: u32,
    /// The worker that asked; older logs do not say.
    pub incarnation: Option<Incarnation>,
}

/// The use that somebody tried to make of a claim.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Verb {
    Beat,
    Succeed,
    Fail,
    Release,
    RequestExtension,
}

impl Verb {
    pub const fn code(self) -> &'static str {
        match self {
            Self::Beat => "beat",
            Self::Succeed => "succeed",
            Self::Fail => "fail",
            Self::Release => "release",
            Self::RequestExtension => "request_extension",
        }
    }
}
