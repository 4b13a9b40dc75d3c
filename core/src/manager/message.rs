//! The protocol between a manager and a worker's session. Read it top to bottom:
//!
//! ```text
//! worker                                              manager
//!   │── Hello (who, which incarnation, which queues       │
//!   │   and kinds, how many slots, what it still holds) ─▶│  an older incarnation's attempts end at once
//!   │◀─ Welcome (term, what it may keep) ─────────────────│  what it holds and may not keep: Cancel
//!   │◀─ Assign … Assign ──────────────────────────────────│  at most one per free slot, best verdict first
//!   │── Beats (watermark, note, quiet, checkpoint) ──────▶│  renew leases; only forward steps reset stuck clocks
//!   │◀─ BeatAnswers (remaining, cancel) ──────────────────│
//!   │── Settle (succeed | fail | release) ───────────────▶│  one fenced step: result, ack and free slot
//!   │◀─ SettleAnswers, and the next Assign ───────────────│
//!   │◀─ Probe ──── ProbeAnswer ──────────────────────────▶│  liveness; an answer never renews a lease
//!   │── RequestExtension ────────────────────────────────▶│  more time, if earned
//!   │◀─ ExtensionAnswer ──────────────────────────────────│
//!   │◀─ Cancel ─── Ended ────────────────────────────────▶│  stop this attempt; it has stopped
//!   │── Capacity (slots, accepting) ─────────────────────▶│  credit; accepting = false drains
//!   │── Goodbye ─────────────────────────────────────────▶│  it holds nothing; what is on its way goes to others
//!   │◀─ Goodbye ──────────────────────────────────────────│  that is durable, and the session ends
//! ```
//!
//! Everything that names an attempt carries its [`Claim`]. A claim whose fence is not the newest is refused, whoever
//! sends it. Messages may be lost with a session and repeated on the next one: repeating an accepted outcome is
//! answered as before.

use core::time::Duration;
use std::sync::Arc;

use crate::fence::Term;
use crate::grant::Denial;
use crate::ids::{Bytes, Claim, ClientId, Incarnation, Name, WorkerId};
use crate::job::spec::Headers;
use crate::job::{Ending, WorkflowSpec};
use crate::payload::Payload;
use crate::refusal::Refusal;

#[derive(Clone, PartialEq, Debug)]
pub enum FromWorker {
    Hello(Hello),
    Capacity {
        slots: u32,
        accepting: bool,
    },
    Beats(Vec<Beat>),
    Settle(Vec<Settlement>),
    ProbeAnswer {
        probe: u32,
    },
    RequestExtension(ExtensionRequest),
    /// Attempts that have stopped, in answer to a cancel.
    Ended(Vec<Claim>),
    /// The worker holds nothing, and leaves.
    Goodbye,
}

#[derive(Clone, PartialEq, Debug)]
pub enum ToWorker {
    Welcome {
        term: Term,
    },
    /// The session is of no use; the worker must not come back as this incarnation.
    Rejected(Refusal),
    Assign(Assignment),
    BeatAnswers(Vec<BeatAnswer>),
    SettleAnswers(Vec<SettleAnswer>),
    ExtensionAnswer(ExtensionAnswer),
    Probe {
        probe: u32,
    },
    Cancel {
        claim: Claim,
        why: CancelWhy,
    },
    /// A message that could not be taken at all, such as one before the hello.
    Refused(Refusal),
    /// The worker is not expected to hold anything, and the session ends.
    Goodbye,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hello {
    pub worker: WorkerId,
    pub incarnation: Incarnation,
    pub subscription: Subscription,
    pub slots: u32,
    /// Attempts that this incarnation still runs, or whose outcome it has not seen accepted.
    pub holding: Vec<Claim>,
    /// The client that opened the session. It does not travel: the shell knows it.
    pub client: ClientId,
}

/// The work that a worker takes: every combination of these queues and kinds.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Subscription {
    pub queues: Vec<Name>,
    pub kinds: Vec<Name>,
}

/// Work for one slot. Names, payload and headers are shared with the job, not copied.
#[derive(Clone, PartialEq, Debug)]
pub struct Assignment {
    pub claim: Claim,
    /// 1 for the first attempt that counts.
    pub attempt: u32,
    pub queue: Name,
    pub workflow: WorkflowSpec,
    pub headers: Headers,
    /// Results of the workflows that this one waited for, by name. Those that are too large together for one frame travel
    /// by reference, and are fetched by the claim.
    pub inputs: Vec<(Name, Payload)>,
    pub checkpoint: Option<Bytes>,
    pub lease: Duration,
    pub deadline_remaining: Duration,
}

/// The handler is active; and, where given, how far it is.
#[derive(Clone, PartialEq, Debug)]
pub struct Beat {
    pub claim: Claim,
    pub watermark: Option<u64>,
    pub total: Option<u64>,
    pub note: Option<Box<str>>,
    /// Begin a quiet section of at most this long.
    pub quiet: Option<Duration>,
    pub checkpoint: Option<Bytes>,
}

impl Beat {
    pub fn plain(claim: Claim) -> Self {
        Self { claim, watermark: None, total: None, note: None, quiet: None, checkpoint: None }
    }

    pub fn progress(claim: Claim, watermark: u64) -> Self {
        Self { watermark: Some(watermark), ..Self::plain(claim) }
    }
}

#[derive(Clone, PartialEq, Debug)]
pub struct BeatAnswer {
    pub claim: Claim,
    pub answer: Result<BeatAccepted, Refusal>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BeatAccepted {
    pub lease_remaining: Duration,
    /// The handler should stop.
    pub cancel: bool,
    /// The time allowed of a quiet section that was asked for.
    pub quiet: Option<Duration>,
}

#[derive(Clone, PartialEq, Debug)]
pub struct Settlement {
    pub claim: Claim,
    pub report: EndReport,
    /// The place where the next attempt is to go on. A success needs none.
    pub checkpoint: Option<Bytes>,
}

impl Settlement {
    /// A settlement without a checkpoint.
    pub fn new(claim: Claim, report: EndReport) -> Self {
        Self { claim, report, checkpoint: None }
    }
}

/// The report of an attempt's holder about its end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EndReport {
    Succeed { result: Payload },
    Fail { error: Arc<str>, retryable: bool, delay: Option<Duration> },
    Release { delay: Option<Duration> },
}

impl EndReport {
    /// The attempt's end, if this is accepted.
    pub fn into_ending(self) -> Ending {
        match self {
            Self::Succeed { result } => Ending::Succeeded { result },
            Self::Fail { error, retryable, delay } => Ending::Failed { error, retryable, delay },
            Self::Release { delay } => Ending::Released { delay },
        }
    }
}

#[derive(Clone, PartialEq, Debug)]
pub struct SettleAnswer {
    pub claim: Claim,
    pub answer: Result<(), Refusal>,
}

#[derive(Clone, PartialEq, Debug)]
pub struct ExtensionRequest {
    /// None named means all that the worker holds.
    pub claims: Vec<Claim>,
    /// The reason as received: an unknown word is denied as malformed.
    pub reason: Box<str>,
    pub progress: f64,
    pub estimated_remaining: Option<Duration>,
}

#[derive(Clone, PartialEq, Debug)]
pub struct ExtensionAnswer {
    pub claims: Vec<Claim>,
    pub result: Result<Duration, Denial>,
    /// The time until the worker's health deadline.
    pub remaining: Duration,
    pub remaining_extensions: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CancelWhy {
    Asked,
    TimedOut,
    Stuck,
    LeaseExpired,
    Evicted,
    /// The worker holds something that is not, or no longer, its own.
    Stale,
}
