//! Effects that a gate machine wants carried out. Each names the event that must be durable first.

use core::time::Duration;

use crate::effect::AcceptedJob;
use crate::fence::Term;
use crate::ids::{JobId, Name, RequestId, Seq, StreamId};
use crate::limits::LimitMet;
use crate::payload::Digest;
use crate::refusal::Refusal;
use crate::time::WallStep;
use crate::timeout::TimeoutReason;

use super::event::StampedEvent;
use super::message::{StaleToken, ToDatacenter};

/// Filled by one step and emptied by the shell, as those of a manager are.
#[derive(Debug, Default)]
pub struct Effects {
    pub events: Vec<StampedEvent>,
    pub list: Vec<PendingEffect>,
}

impl Effects {
    pub fn clear(&mut self) {
        self.events.clear();
        self.list.clear();
    }
}

/// An effect that others can see, held back until the newest event that it could have seen is durable.
#[derive(Clone, PartialEq, Debug)]
pub struct PendingEffect {
    pub after: Seq,
    pub effect: Effect,
}

#[derive(Clone, PartialEq, Debug)]
pub enum Effect {
    /// Payloads of a submit that lie in the store are read and sent along.
    Send {
        stream: StreamId,
        message: ToDatacenter,
    },
    /// The stream is of no use; the datacenter may dial again.
    CloseStream {
        stream: StreamId,
    },
    Reply {
        request: RequestId,
        answer: Result<Answer, Refusal>,
    },
    /// No job held here refers to this stored content any more. Look again first, at [`super::Gate::refers_to`] and at what
    /// is being submitted: it may have come back meanwhile.
    Unreferenced {
        digest: Digest,
    },
    /// Confirm the seat by a write, answer with the term that holds it and the number of the question, then feed what is
    /// queued, then say `Input::Drained`.
    ConfirmSeat {
        question: u64,
    },
    Report(GateNotice),
}

#[derive(Clone, PartialEq, Debug)]
pub enum Answer {
    /// Jobs in the order of the submission.
    Submitted(Vec<AcceptedJob>),
    Done,
    Extended {
        total: Duration,
    },
}

/// Worth a line in the node's own log.
#[derive(Clone, PartialEq, Debug)]
pub enum GateNotice {
    WallClockStepped(WallStep),
    GapNoticed {
        gap: Duration,
    },
    /// A datacenter has another leader.
    LeaderTransferred {
        datacenter: Name,
        term: Term,
    },
    /// A datacenter speaks under a lower term than before: it was restored from a backup.
    DatacenterRestored {
        datacenter: Name,
        term: Term,
    },
    /// A stream claimed to be of another datacenter than it was authenticated for.
    WrongDatacenter {
        proven: Name,
        said: Name,
    },
    /// A datacenter that was not known before came, and there is no room for it.
    TooManyDatacenters {
        datacenter: Name,
        met: LimitMet,
    },
    /// A job ends in every datacenter.
    TimeoutDeclared {
        job: JobId,
        reason: TimeoutReason,
    },
    /// A datacenter refused a decision, and was sent another.
    Corrected {
        job: JobId,
        datacenter: Name,
        stale: StaleToken,
    },
    /// A job that this gate did not know was taken over from a report.
    JobRebuilt {
        job: JobId,
        datacenter: Name,
    },
}
