//! What others will see, held back until it may be seen.
//!
//! Whoever makes something durable also lets go what waited for it: the machine need not be woken first.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use onward_core::effect::Answer;
use onward_core::ids::{Seq, SessionId};
use onward_core::input::Input;
use onward_core::message::ToWorker;
use tokio::sync::{Notify, oneshot};

use super::session::{Outbox, PutResult};
use super::{Command, Deliver, Refused, Shared};

/// Something for others, complete in itself: whoever holds it can let it go.
pub(super) enum Outgoing {
    Deliver(Deliver),
    Ring(Arc<Notify>),
    Say { session: SessionId, outbox: Outbox, message: ToWorker },
    Reply { reply: oneshot::Sender<Result<Answer, Refused>>, answer: Result<Answer, Refused> },
}

impl Outgoing {
    pub(super) fn deliver(self, shared: &Shared) {
        match self {
            Self::Deliver(deliver) => deliver(),
            Self::Ring(bell) => bell.notify_one(),
            Self::Say { session, outbox, message } => {
                if outbox.put(message) == PutResult::CutOff {
                    shared.stats.sessions_cut_off.add(1);
                    shared.send(Command::Input(Input::SessionClosed { session }));
                }
            }
            Self::Reply { reply, answer } => {
                // Who does not wait any more has said so by CallGone.
                let _ = reply.send(answer);
            }
        }
    }
}

/// The machine's end of the line: what waits for nothing goes at once, unless it would overtake something; all else
/// goes in order, by the committer.
pub(super) struct OutgoingSender {
    /// Not handed over yet.
    outs: Vec<(Seq, Outgoing)>,
    handed: u64,
    /// How many of those the committer has let go.
    delivered: Arc<AtomicU64>,
}

/// The other end: what waits for the log, in the order in which it was decided.
pub(super) struct OutgoingQueue {
    queue: VecDeque<(Seq, Outgoing)>,
    /// Of what is being let go: all but what sessions are told.
    others: Vec<Outgoing>,
    durable: Seq,
    delivered: Arc<AtomicU64>,
}

pub(super) fn channel(durable: Seq) -> (OutgoingSender, OutgoingQueue) {
    let delivered = Arc::<AtomicU64>::default();
    let waiting = OutgoingQueue { queue: VecDeque::new(), others: Vec::new(), durable, delivered: delivered.clone() };
    (OutgoingSender { outs: Vec::new(), handed: 0, delivered }, waiting)
}

impl OutgoingSender {
    pub(super) fn put(&mut self, after: Seq, out: Outgoing, durable: Seq, shared: &Shared) {
        if after <= durable && self.is_clear() {
            out.deliver(shared);
        } else {
            self.outs.push((after, out));
        }
    }

    fn is_clear(&self) -> bool {
        self.outs.is_empty() && self.delivered.load(Ordering::Acquire) == self.handed
    }

    pub(super) fn is_empty(&self) -> bool {
        self.outs.is_empty()
    }

    /// To be handed to the committer.
    pub(super) fn take(&mut self) -> Vec<(Seq, Outgoing)> {
        self.handed += self.outs.len() as u64;
        // The next are likely to be as many.
        let next = Vec::with_capacity(self.outs.len());
        core::mem::replace(&mut self.outs, next)
    }
}

impl OutgoingQueue {
    pub(super) fn add(&mut self, outs: Vec<(Seq, Outgoing)>, shared: &Shared) {
        self.queue.extend(outs);
        self.release(shared);
    }

    pub(super) fn made_durable(&mut self, seq: Seq, shared: &Shared) {
        self.durable = seq;
        self.release(shared);
    }

    /// Nobody will ever see these.
    pub(super) fn drop_all(&mut self) {
        self.queue.clear();
    }

    /// Workers first: whoever is let go may get the core at once, and an answer to one who has submitted a job should not
    /// hold up the worker who is to do it. Each still gets what is its own in order.
    fn release(&mut self, shared: &Shared) {
        let ready = self.queue.iter().take_while(|(after, _)| *after <= self.durable).count();
        for (_, out) in self.queue.drain(..ready) {
            match out {
                Outgoing::Say { .. } => out.deliver(shared),
                other => self.others.push(other),
            }
        }
        for other in self.others.drain(..) {
            other.deliver(shared);
        }
        // Only now: none of them may be overtaken by one that the machine lets go itself.
        self.delivered.fetch_add(ready as u64, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use onward_core::settings::Rules;
    use onward_log::MemoryLog;

    use super::*;
    use crate::engine::{Engine, Start};

    struct Seen {
        sender: Sender<u32>,
        seen: Receiver<u32>,
    }

    impl Seen {
        fn new() -> Self {
            let (sender, seen) = channel();
            Self { sender, seen }
        }

        fn out(&self, name: u32) -> Outgoing {
            let sender = self.sender.clone();
            Outgoing::Deliver(Box::new(move || sender.send(name).expect("the test listens")))
        }

        fn now(&self) -> Vec<u32> {
            self.seen.try_iter().collect()
        }
    }

    #[test]
    fn what_waits_goes_in_order_once_it_may_and_nothing_overtakes_it() {
        let log = MemoryLog::new();
        let engine = Engine::start(Start::new(Rules::default(), move || Ok(Box::new(log.clone())))).expect("it starts");
        let (shared, seen) = (&*engine.0, Seen::new());
        let (mut sender, mut queue) = super::channel(Seq(10));
        sender.put(Seq(10), seen.out(1), Seq(10), shared);
        assert_eq!(seen.now(), [1], "it waits for nothing");

        sender.put(Seq(12), seen.out(2), Seq(10), shared);
        sender.put(Seq(10), seen.out(3), Seq(10), shared);
        let outs = sender.take();
        assert_eq!(outs.len(), 2);
        // The machine may hear that all is durable before the committer has come to these.
        sender.put(Seq(12), seen.out(4), Seq(12), shared);
        assert!(seen.now().is_empty(), "those before it have not been let go");
        queue.add(outs, shared);
        assert!(seen.now().is_empty());
        queue.made_durable(Seq(11), shared);
        assert!(seen.now().is_empty());
        queue.made_durable(Seq(12), shared);
        assert_eq!(seen.now(), [2, 3]);
        queue.add(sender.take(), shared);
        assert_eq!(seen.now(), [4], "what comes late need not wait");
        sender.put(Seq(12), seen.out(5), Seq(12), shared);
        assert_eq!(seen.now(), [5]);
        engine.stop();
    }

    #[test]
    fn workers_come_first_and_each_in_order() {
        let log = MemoryLog::new();
        let engine = Engine::start(Start::new(Rules::default(), move || Ok(Box::new(log.clone())))).expect("it starts");
        let (shared, seen) = (&*engine.0, Seen::new());
        let (outbox, mut told) = Outbox::unread();
        let say =
            |probe| Outgoing::Say { session: SessionId(1), outbox: outbox.clone(), message: ToWorker::Probe { probe } };
        let (mut sender, mut queue) = super::channel(Seq(0));
        // First in the line, and yet sees what both of the session's messages are.
        let look = Outgoing::Deliver(Box::new({
            let sender = seen.sender.clone();
            move || {
                while let Ok(ToWorker::Probe { probe }) = told.try_recv() {
                    sender.send(probe).expect("the test listens");
                }
            }
        }));
        for out in [look, seen.out(10), say(1), seen.out(11), say(2)] {
            sender.put(Seq(1), out, Seq(0), shared);
        }
        sender.put(Seq(2), say(3), Seq(0), shared);
        queue.add(sender.take(), shared);
        queue.made_durable(Seq(1), shared);
        assert_eq!(seen.now(), [1, 2, 10, 11]);
        engine.stop();
    }
}
