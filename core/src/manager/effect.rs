//! Effects that a manager machine wants carried out. Each names the event that must be durable first.

use core::time::Duration;
use std::sync::Arc;

use crate::event::{NextState, StampedEvent};
use crate::fence::GateEpoch;
use crate::gate::message::{Frame, StaleToken};
use crate::health::{Judgement, Verdict};
use crate::ids::{Claim, JobId, Name, RequestId, Seq, SessionId, StreamId, WorkerId};
use crate::input::GateQuestion;
use crate::job::EndingKind;
use crate::message::{Assignment, BeatAnswer, ExtensionAnswer, SettleAnswer, ToWorker};
use crate::payload::{Digest, Payload};
use crate::refusal::Refusal;
use crate::schedule::Timing;
use crate::state::ScheduleTrouble;
use crate::time::{Wall, WallStep};
use crate::timeout::TimeoutReason;

/// Filled by one step and emptied by the shell: append `events` as one batch, then let each effect go when the event
/// that it waits for is durable. Buffers are reused from step to step.
#[derive(Debug, Default)]
pub struct Effects {
    pub events: Vec<StampedEvent>,
    pub list: Vec<PendingEffect>,
}

/// An effect that others can see, held back until the newest event that it could have seen is durable.
#[derive(Clone, PartialEq, Debug)]
pub struct PendingEffect {
    pub after: Seq,
    pub effect: Effect,
}

#[derive(Clone, PartialEq, Debug)]
pub enum Effect {
    Send {
        session: SessionId,
        message: ToWorker,
    },
    CloseSession {
        session: SessionId,
    },
    Reply {
        request: RequestId,
        answer: Result<Answer, Refusal>,
    },
    /// Copy this ended job to the archive, then say so by `Input::Archived`.
    Archive {
        job: JobId,
    },
    /// No job held here refers to this stored content any more. Whoever deletes it looks again first, at
    /// `State::stored_refs` and at what is being submitted: it may have come back meanwhile.
    Unreferenced {
        digest: Digest,
    },
    /// Confirm the seat by a write, answer with the term that holds it and the number of the question, then feed what is
    /// queued, then say `Input::Drained`.
    ConfirmSeat {
        question: u64,
    },
    /// Say this to a gate. A result that lies in the store is read and sent along.
    SendGate {
        stream: StreamId,
        frame: Box<Frame>,
    },
    /// Look for the job of this question in the archive, and answer with `Input::ArchivedFound`.
    FindArchived {
        stream: StreamId,
        question: Box<GateQuestion>,
    },
    /// Compute the due instants of this timing that are later than `after`: all up to `until`, and
    /// [`DUE_AHEAD`](crate::schedule::DUE_AHEAD) more, but not more than
    /// [`DUE_PER_LOT`](crate::schedule::DUE_PER_LOT) in all. Answer with `Input::Due`.
    FindDue {
        schedule: Name,
        revision: Seq,
        timing: Timing,
        after: Wall,
        until: Wall,
    },
    Report(ManagerNotice),
}

#[derive(Clone, PartialEq, Debug)]
pub enum Answer {
    /// Jobs in the order of the submission.
    Submitted(Vec<AcceptedJob>),
    Done,
    /// The number of jobs that a filter cancelled.
    Cancelled {
        jobs: usize,
    },
    Retried {
        job: JobId,
    },
    Extended {
        total: Duration,
    },
    Leases(Vec<Assignment>),
    Beats(Vec<BeatAnswer>),
    Settled(Vec<SettleAnswer>),
    Extension(ExtensionAnswer),
    /// An input, or the place of its bytes.
    Input(Payload),
    /// The number of attempts that a worker which said goodbye still holds.
    Left {
        held: u32,
    },
    /// Whether the schedule is a new one.
    ScheduleSet {
        is_new: bool,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AcceptedJob {
    pub id: JobId,
    /// The idempotency key was known: this is the job of the first submission.
    pub duplicate: bool,
}

/// Worth a line in the node's own log.
#[derive(Clone, PartialEq, Debug)]
pub enum ManagerNotice {
    WallClockStepped(WallStep),
    GapNoticed {
        gap: Duration,
    },
    HoldBegan {
        failing: usize,
        tracked: usize,
    },
    HoldEnded,
    WorkerEvicted {
        worker: WorkerId,
    },
    /// A verdict changed from or to one that means trouble. That workers are full, and then not, is not worth a line.
    VerdictChanged {
        worker: WorkerId,
        from: Verdict,
        to: Judgement,
    },
    /// An attempt ended by a clock, or by the restart of its worker.
    AttemptLost {
        claim: Claim,
        kind: Name,
        worker: WorkerId,
        ending: EndingKind,
        then: NextState,
        /// The last thing that its handler said of itself.
        note: Option<Arc<str>>,
    },
    /// A job was ended by a timeout.
    JobTimedOut {
        job: JobId,
        reason: TimeoutReason,
        by: TimeoutAuthority,
    },
    /// A gate's job would have ended here by a timeout; a gate decides.
    LocallyTimedOut {
        job: JobId,
        reason: TimeoutReason,
    },
    /// A gate decided under a stale token: nothing was done, and it was told what is current.
    GateCorrected {
        job: JobId,
        stale: StaleToken,
    },
    /// A job ended in the dead letters, by the failure of this kind.
    DeadLetter {
        job: JobId,
        kind: Name,
        error: Arc<str>,
    },
    DeadLetterOverflow {
        job: JobId,
    },
    /// Somebody has to look at a schedule from now on.
    ScheduleFailing {
        schedule: Name,
        why: ScheduleTrouble,
        /// Runs in a row that have failed.
        failures: u32,
    },
    /// A schedule is in trouble no longer.
    ScheduleRecovered {
        schedule: Name,
    },
}

/// The authority that ended a job by a timeout.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TimeoutAuthority {
    /// This datacenter, about a job that no gate decides about.
    Datacenter,
    /// A gate, under this epoch.
    Gate(GateEpoch),
    /// This datacenter, about a gate's job, since no gate has answered.
    Fallback,
}

impl Effects {
    pub fn clear(&mut self) {
        self.events.clear();
        self.list.clear();
    }
}
