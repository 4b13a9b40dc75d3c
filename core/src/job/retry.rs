//! How an attempt ended, whether that counts against its workflow, and what follows.

use core::time::Duration;
use std::sync::Arc;

use crate::backoff::Backoff;
use crate::payload::Payload;

use super::spec::{OnStuck, Retry};

/// The end of an attempt.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ending {
    /// Reported by the handler.
    Succeeded { result: Payload },
    /// Reported by the handler.
    Failed { error: Arc<str>, retryable: bool, delay: Option<Duration> },
    /// Given back by the worker, as when it drains.
    Released { delay: Option<Duration> },
    /// No beat renewed the lease.
    LeaseExpired,
    /// No forward step for `stuck_after`.
    Stuck,
    /// The worker was evicted.
    Evicted,
    /// The worker came back as another incarnation.
    Crashed,
    /// The worker says that it never got it.
    NeverArrived,
    /// A cancel was confirmed, or its lease ran out.
    Cancelled,
    /// The job reached a deadline.
    TimedOut,
}

impl Ending {
    /// An attempt counts if it ended in failure, stuck, lease expiry, crash or eviction.
    pub const fn counts(&self) -> bool {
        match self {
            Self::Failed { .. } | Self::LeaseExpired | Self::Stuck | Self::Evicted | Self::Crashed => true,
            Self::Succeeded { .. } | Self::Released { .. } | Self::NeverArrived => false,
            Self::Cancelled | Self::TimedOut => false,
        }
    }

    /// Whether the end says something about the worker that held the attempt: error, lease expiry, stuck, timeout; not
    /// cancel or release.
    pub const fn is_workers_failure(&self) -> bool {
        matches!(self, Self::Failed { .. } | Self::LeaseExpired | Self::Stuck | Self::TimedOut)
    }

    /// The holder itself said so; repeating it must answer the same again.
    pub const fn is_reported(&self) -> bool {
        matches!(self, Self::Succeeded { .. } | Self::Failed { .. } | Self::Released { .. })
    }

    pub const fn kind(&self) -> EndingKind {
        match self {
            Self::Succeeded { .. } => EndingKind::Succeeded,
            Self::Failed { .. } => EndingKind::Failed,
            Self::Released { .. } => EndingKind::Released,
            Self::LeaseExpired => EndingKind::LeaseExpired,
            Self::Stuck => EndingKind::Stuck,
            Self::Evicted => EndingKind::Evicted,
            Self::Crashed => EndingKind::Crashed,
            Self::NeverArrived => EndingKind::NeverArrived,
            Self::Cancelled => EndingKind::Cancelled,
            Self::TimedOut => EndingKind::TimedOut,
        }
    }

    pub const fn code(&self) -> &'static str {
        self.kind().code()
    }
}

/// An ending without what it carries.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum EndingKind {
    Succeeded,
    Failed,
    Released,
    LeaseExpired,
    Stuck,
    Evicted,
    Crashed,
    NeverArrived,
    Cancelled,
    TimedOut,
}

impl EndingKind {
    pub const ALL: [Self; 10] = [
        Self::Succeeded,
        Self::Failed,
        Self::Released,
        Self::LeaseExpired,
        Self::Stuck,
        Self::Evicted,
        Self::Crashed,
        Self::NeverArrived,
        Self::Cancelled,
        Self::TimedOut,
    ];

    pub const fn code(self) -> &'static str {
        match self {
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Released => "released",
            Self::LeaseExpired => "lease_expired",
            Self::Stuck => "stuck",
            Self::Evicted => "evicted",
            Self::Crashed => "crashed",
            Self::NeverArrived => "never_arrived",
            Self::Cancelled => "cancelled",
            Self::TimedOut => "timed_out",
        }
    }
}

/// The fate of the workflow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    Succeed,
    /// Back to its place in the queue.
    Requeue,
    /// Ready again after this long.
    Wait(Duration),
    /// Failed for good.
    DeadLetter,
    /// The job ends as timed out, reason stuck.
    TimeOut,
    Cancel,
}

/// `counted` is the number of attempts that count, this one included if it does. `draw` is 64 random bits.
pub fn next(ending: &Ending, counted: u32, retry: &Retry, on_stuck: OnStuck, draw: u64) -> Next {
    let spent = counted >= retry.max_attempts;
    let backoff = || Next::Wait(Backoff { base: retry.base, max: retry.max }.delay(counted.max(1), draw));
    match ending {
        Ending::Succeeded { .. } => Next::Succeed,
        Ending::Failed { retryable: false, .. } => Next::DeadLetter,
        Ending::Failed { .. } if spent => Next::DeadLetter,
        Ending::Failed { delay: Some(delay), .. } => Next::Wait(*delay),
        Ending::Failed { .. } => backoff(),
        Ending::Stuck if on_stuck == OnStuck::TimeOut || spent => Next::TimeOut,
        Ending::Stuck => backoff(),
        Ending::LeaseExpired | Ending::Evicted | Ending::Crashed if spent => Next::DeadLetter,
        Ending::LeaseExpired | Ending::Evicted | Ending::Crashed | Ending::NeverArrived => Next::Requeue,
        Ending::Released { delay: Some(delay) } if !delay.is_zero() => Next::Wait(*delay),
        Ending::Released { .. } => Next::Requeue,
        Ending::Cancelled | Ending::TimedOut => Next::Cancel,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn failed(retryable: bool, delay: Option<Duration>) -> Ending {
        Ending::Failed { error: "no".into(), retryable, delay }
    }

    #[test]
    fn what_counts_as_an_attempt() {
        let table = [
            (Ending::Succeeded { result: Payload::default() }, false),
            (failed(true, None), true),
            (failed(false, None), true),
            (Ending::Stuck, true),
            (Ending::LeaseExpired, true),
            (Ending::Crashed, true),
            (Ending::Evicted, true),
            (Ending::Released { delay: None }, false),
            (Ending::NeverArrived, false),
            (Ending::Cancelled, false),
            (Ending::TimedOut, false),
        ];
        for (ending, counts) in table {
            assert_eq!(ending.counts(), counts, "{}", ending.code());
        }
    }

    #[test]
    fn what_follows_an_attempt() {
        let retry = Retry { max_attempts: 3, base: MINUTE, max: MINUTE };
        let full = |ending: &Ending, counted, on_stuck| next(ending, counted, &retry, on_stuck, u64::MAX);
        let result = Ending::Succeeded { result: Payload::default() };
        let table = [
            (result, 1, OnStuck::Retry, Next::Succeed),
            (failed(true, None), 1, OnStuck::Retry, Next::Wait(MINUTE)),
            (failed(true, Some(2 * MINUTE)), 2, OnStuck::Retry, Next::Wait(2 * MINUTE)),
            (failed(true, Some(2 * MINUTE)), 3, OnStuck::Retry, Next::DeadLetter),
            (failed(false, None), 1, OnStuck::Retry, Next::DeadLetter),
            (Ending::Stuck, 1, OnStuck::Retry, Next::Wait(MINUTE)),
            (Ending::Stuck, 3, OnStuck::Retry, Next::TimeOut),
            (Ending::Stuck, 1, OnStuck::TimeOut, Next::TimeOut),
            (Ending::LeaseExpired, 2, OnStuck::Retry, Next::Requeue),
            (Ending::LeaseExpired, 3, OnStuck::Retry, Next::DeadLetter),
            (Ending::Evicted, 1, OnStuck::Retry, Next::Requeue),
            (Ending::Crashed, 3, OnStuck::Retry, Next::DeadLetter),
            (Ending::NeverArrived, 9, OnStuck::Retry, Next::Requeue),
            (Ending::Released { delay: None }, 9, OnStuck::Retry, Next::Requeue),
            (Ending::Released { delay: Some(MINUTE) }, 0, OnStuck::Retry, Next::Wait(MINUTE)),
            (Ending::Cancelled, 0, OnStuck::Retry, Next::Cancel),
        ];
        for (ending, counted, on_stuck, expected) in table {
            assert_eq!(full(&ending, counted, on_stuck), expected, "{} after {counted}", ending.code());
        }
    }
}
