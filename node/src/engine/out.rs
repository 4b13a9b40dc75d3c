//! What others will see, held back until it may be seen.
//!
//! The thread that makes something durable also lets go what waited for it: the machine need not be woken first.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use onward_core::effect::Answer;
use onward_core::ids::{Seq, SessionId};
use onward_core::input::Input;
use tokio::sync::{Notify, oneshot};

use super::session::{Outbox, Put, Said};
use super::{Ask, Deliver, Refused, Shared};

/// Something for others, complete in itself: whoever holds it can let it go.
#[expect(clippy::large_enum_variant, reason = "most are for a worker")]
pub(super) enum Out {
    Deliver(Deliver),
    Ring(Arc<Notify>),
    Say { session: SessionId, outbox: Outbox, said: Said },
    Reply { reply: oneshot::Sender<Result<Answer, Refused>>, answer: Result<Answer, Refused> },
}

impl Out {
    pub(super) fn let_go(self, shared: &Shared) {
        match self {
            Self::Deliver(deliver) => deliver(),
            Self::Ring(bell) => bell.notify_one(),
            Self::Say { session, outbox, said } => {
                if outbox.put(said) == Put::CutOff {
                    shared.stats.sessions_cut_off.add(1);
                    shared.ask(Ask::Input(Input::SessionClosed { session }));
                }
            }
            Self::Reply { reply, answer } => {
                // Who does not wait any more has said so by CallGone.
                let _ = reply.send(answer);
            }
        }
    }
}

/// How many the log's thread has let go, so that the machine knows whether one is left that must not be overtaken.
#[derive(Clone, Default)]
pub(super) struct LetGo(Arc<AtomicU64>);

impl LetGo {
    pub(super) fn count(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

/// What waits at the log's thread, in the order in which it was decided.
pub(super) struct Waiting {
    queue: VecDeque<(Seq, Out)>,
    durable: Seq,
    let_go: LetGo,
}

impl Waiting {
    pub(super) fn new(durable: Seq, let_go: LetGo) -> Self {
        Self { queue: VecDeque::new(), durable, let_go }
    }

    pub(super) fn add(&mut self, outs: Vec<(Seq, Out)>, shared: &Shared) {
        self.queue.extend(outs);
        self.release(shared);
    }

    pub(super) fn made_durable(&mut self, seq: Seq, shared: &Shared) {
        self.durable = seq;
        self.release(shared);
    }

    fn release(&mut self, shared: &Shared) {
        let ready = self.queue.iter().take_while(|(after, _)| *after <= self.durable).count();
        for (_, out) in self.queue.drain(..ready) {
            out.let_go(shared);
        }
        // Only now: none of them may be overtaken by one that the machine lets go itself.
        self.let_go.0.fetch_add(ready as u64, Ordering::Release);
    }
}
