//! The deadline until which decisions may leave.
//!
//! A holder of the seat may be wrong about it: this process may have been frozen, or the log may not have answered,
//! and another leads since. So the right to let something go has a deadline: `seat_ttl` after the beginning of the last
//! write that returned, an append or a beat on the seat. Past it nothing that depends on the state leaves, whatever was
//! decided, until another write has confirmed the seat. The clock goes on while the computer sleeps.
//!
//! The machine has a deadline of its own for what it decides, by when that was decided; this one is about the moment at
//! which it leaves. Where the log is in doubt, the deadline is over at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use onward_core::time::Mono;

use crate::clock;

/// The end of the time for which the seat is confirmed, in milliseconds of [`Mono`]. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct SeatDeadline {
    until: Arc<AtomicU64>,
    ttl: Duration,
}

impl SeatDeadline {
    /// The deadline of a seat that was taken by a write that began then.
    pub(super) fn of_seat_taken(at: Mono, ttl: Duration) -> Self {
        let deadline = Self { until: Arc::default(), ttl };
        deadline.confirmed_as_of(at);
        deadline
    }

    /// A write has returned that began then.
    pub(super) fn confirmed_as_of(&self, at: Mono) {
        self.until.store((at + self.ttl).as_ms(), Ordering::Release);
    }

    /// Takes the confirmation back: nobody knows whether the seat is still ours.
    pub(super) fn unconfirm(&self) {
        self.until.store(0, Ordering::Release);
    }

    pub(super) fn is_ahead(&self) -> bool {
        clock::mono().as_ms() <= self.until.load(Ordering::Acquire)
    }
}
