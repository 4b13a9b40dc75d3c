//! Messages for others, held back until they may be seen.
//!
//! The thread that makes an event durable also lets go what waited for it: the machine need not be woken first.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use onward_core::ids::Seq;

use super::Host;
use super::seat::SeatDeadline;

/// The machine's end of the line: what waits for nothing goes at once, unless it would overtake something or the seat's
/// deadline is over; all else goes in order, by the committer.
pub(crate) struct OutgoingSender<H: Host> {
    /// Messages that are not handed over yet.
    outs: Vec<(Seq, H::Outgoing)>,
    handed: u64,
    /// The number of handed-over messages that the committer has let go.
    delivered: Arc<AtomicU64>,
    seat: SeatDeadline,
}

/// The other end: what waits for the log, in the order in which it was decided.
pub(super) struct OutgoingQueue<H: Host> {
    queue: VecDeque<(Seq, H::Outgoing)>,
    /// Messages that are being let go: all but those that go first.
    others: Vec<H::Outgoing>,
    durable: Seq,
    delivered: Arc<AtomicU64>,
}

pub(super) fn channel<H: Host>(durable: Seq, seat: SeatDeadline) -> (OutgoingSender<H>, OutgoingQueue<H>) {
    let delivered = Arc::<AtomicU64>::default();
    let waiting = OutgoingQueue { queue: VecDeque::new(), others: Vec::new(), durable, delivered: delivered.clone() };
    (OutgoingSender { outs: Vec::new(), handed: 0, delivered, seat }, waiting)
}

impl<H: Host> OutgoingSender<H> {
    pub(crate) fn put(&mut self, after: Seq, out: H::Outgoing, durable: Seq, host: &H) {
        if after <= durable && self.is_clear() && self.seat.is_ahead() {
            host.deliver(out);
        } else {
            self.outs.push((after, out));
        }
    }

    fn is_clear(&self) -> bool {
        self.outs.is_empty() && self.delivered.load(Ordering::Acquire) == self.handed
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.outs.is_empty()
    }

    /// Takes the messages that are to be handed to the committer.
    pub(crate) fn take(&mut self) -> Vec<(Seq, H::Outgoing)> {
        self.handed += self.outs.len() as u64;
        // The next are likely to be as many.
        let next = Vec::with_capacity(self.outs.len());
        core::mem::replace(&mut self.outs, next)
    }
}

impl<H: Host> OutgoingQueue<H> {
    pub(super) fn add(&mut self, outs: Vec<(Seq, H::Outgoing)>) {
        self.queue.extend(outs);
    }

    pub(super) fn made_durable(&mut self, seq: Seq) {
        self.durable = seq;
    }

    /// Whether a message is there that waits for no event any more.
    pub(super) fn has_ready(&self) -> bool {
        self.queue.front().is_some_and(|(after, _)| *after <= self.durable)
    }

    /// Drops all messages: nobody will ever see them.
    pub(super) fn drop_all(&mut self) {
        self.queue.clear();
    }

    /// Lets messages go, those first for whom others wait: whoever is let go may get the core at once, and an answer to
    /// one who has submitted a job should not hold up the worker who is to do it. Each still gets what is its own in
    /// order.
    pub(super) fn release(&mut self, host: &H) {
        let ready = self.queue.iter().take_while(|(after, _)| *after <= self.durable).count();
        for (_, out) in self.queue.drain(..ready) {
            if H::goes_first(&out) {
                host.deliver(out);
            } else {
                self.others.push(out);
            }
        }
        for other in self.others.drain(..) {
            host.deliver(other);
        }
        // Only now: none of them may be overtaken by one that the machine lets go itself.
        self.delivered.fetch_add(ready as u64, Ordering::Release);
    }
}
