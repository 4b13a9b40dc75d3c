//! Messages that leave a manager, and how they are carried out.

use std::sync::Arc;

use onward_core::effect::Answer;
use onward_core::ids::{SessionId, StreamId};
use onward_core::input::Input;
use onward_core::message::ToWorker;
use tokio::sync::{Notify, oneshot};

use super::gate_stream::{ForGate, GateSender as GateOutbox};
use super::session::SessionSender;
use super::{Command, Deliver, EngineRefusal, EngineState};
use crate::outbox::PutResult;

/// Something for others, complete in itself: whoever holds it can let it go.
pub(super) enum Outgoing {
    Deliver(Deliver),
    Ring(Arc<Notify>),
    SendToWorker { session: SessionId, outbox: SessionSender, message: ToWorker },
    SendToGate { stream: StreamId, outbox: GateOutbox, message: ForGate },
    Reply { reply: oneshot::Sender<Result<Answer, EngineRefusal>>, answer: Result<Answer, EngineRefusal> },
}

impl Outgoing {
    pub(super) fn deliver(self, shared: &EngineState) {
        match self {
            Self::Deliver(deliver) => deliver(),
            Self::Ring(bell) => bell.notify_one(),
            Self::SendToWorker { session, outbox, message } => {
                if outbox.put(message) == PutResult::CutOff {
                    shared.stats.sessions_cut_off.add(1);
                    shared.send(Command::Input(Input::SessionClosed { session }));
                }
            }
            Self::SendToGate { stream, outbox, message } => {
                if outbox.put(message) == PutResult::CutOff {
                    shared.send(Command::Input(Input::GateClosed { stream }));
                }
            }
            Self::Reply { reply, answer } => {
                // A caller that does not wait any more has said so by CallGone.
                let _ = reply.send(answer);
            }
        }
    }
}
