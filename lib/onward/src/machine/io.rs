//! Inputs and effects of the machine.

use core::time::Duration;

use onward_core::backoff::Backoff;
use onward_core::ids::{Bytes, Claim, Incarnation, WorkerId};
use onward_core::lease::LostPolicy;
use onward_core::message::{Assignment, CancelWhy, FromWorker, Subscription};
use onward_core::payload::Payload;
use onward_core::time::Mono;
use onward_proto::manager::{ManagerMessage, RemoteRefusal};

/// The name and incarnation of a worker, and the work that it takes.
#[derive(Clone, Debug)]
pub struct Identity {
    pub worker: WorkerId,
    pub incarnation: Incarnation,
    pub subscription: Subscription,
    pub slots: u32,
}

/// The behaviour of a worker on its session.
#[derive(Clone, Debug)]
pub struct SessionConfig {
    /// The least time between two beats of an attempt on the wire, however often its handler beats. A third of the
    /// lease where that is less.
    pub beat_every: Duration,
    pub reconnect: Backoff,
    pub on_lost: LostPolicy,
    /// A manager that does not welcome within this is left for another.
    pub welcome_within: Duration,
    /// An executor that lets a ready task wait for longer is starved, and nothing more is taken meanwhile.
    pub starved_after: Duration,
    /// A worker that leaves waits no longer than this for the manager's goodbye.
    pub goodbye_within: Duration,
}

impl Default for SessionConfig {
    fn default() -> Self {
        Self {
            beat_every: Duration::from_secs(1),
            reconnect: Backoff { base: Duration::from_millis(200), max: Duration::from_secs(5) },
            on_lost: LostPolicy::Cancel,
            welcome_within: Duration::from_secs(10),
            starved_after: Duration::from_secs(2),
            goodbye_within: Duration::from_secs(5),
        }
    }
}

#[derive(Clone, PartialEq, Debug)]
pub enum Input {
    Connected,
    /// The session ended, or could not be opened.
    Disconnected,
    FromManager(ManagerMessage),
    /// A report of a handler.
    Reported {
        claim: Claim,
        report: HandlerReport,
    },
    Extension {
        claim: Claim,
        reason: Box<str>,
        progress: f64,
        estimated_remaining: Option<Duration>,
    },
    /// A handler is done, and has left nothing behind that still runs.
    Finished {
        claim: Claim,
        outcome: HandlerOutcome,
    },
    /// The time for which a task that could run has been waiting for the handlers' executor.
    ExecutorLag(Duration),
    /// Take nothing more, finish what runs.
    Drain,
    /// Stop what runs, too, and give it back.
    Abandon,
    Wake,
}

/// The report of a handler while it works. Every one of these is a beat.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct HandlerReport {
    pub progress: Option<(u64, Option<u64>)>,
    pub note: Option<Box<str>>,
    pub quiet: Option<Duration>,
    pub checkpoint: Option<Bytes>,
}

/// The end of a handler.
#[derive(Clone, PartialEq, Debug)]
pub enum HandlerOutcome {
    Succeeded(Payload),
    Failed {
        error: Box<str>,
        retryable: bool,
        delay: Option<Duration>,
    },
    Released {
        delay: Option<Duration>,
    },
    /// The handler was told to stop, and did.
    Stopped,
}

#[derive(Clone, PartialEq, Debug)]
pub enum Effect {
    Dial,
    /// End the session that is open; `Disconnected` needs no saying.
    HangUp,
    /// The same, and whatever hints say, another manager is dialled next: this one does not serve.
    Leave,
    /// Send on the session that is open.
    Send(FromWorker),
    Start(Assignment),
    /// Make the handler stop; its end is still waited for.
    Cancel {
        claim: Claim,
        why: CancelWhy,
    },
    /// The lease lasts until then, as far as the worker can know.
    Lease {
        claim: Claim,
        until: Mono,
    },
    ExtensionAnswered {
        claim: Claim,
        answer: Result<ExtensionGrant, RemoteRefusal>,
    },
    /// The manager has taken the outcome, or has refused it for good.
    Settled {
        claim: Claim,
        answer: Result<(), RemoteRefusal>,
    },
    /// Something was not taken, and the worker goes on.
    Noted(RemoteRefusal),
    /// Nothing is held any more after a drain, and the manager knows, or does not answer: the session can be closed.
    Drained,
    /// The worker must not come back as this incarnation.
    Rejected(RemoteRefusal),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExtensionGrant {
    pub extension: Duration,
    /// The time until the worker's health deadline.
    pub remaining: Duration,
    pub remaining_extensions: u32,
}
