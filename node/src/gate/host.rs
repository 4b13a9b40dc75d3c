//! The engine of a gate as the host of its machine, and how what leaves the machine is carried out.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use onward_core::gate::Gate;
use onward_core::gate::effect::Answer;
use onward_core::gate::message::ToDatacenter;
use onward_core::ids::StreamId;
use onward_health::Pulse;
use tokio::sync::{Notify, oneshot};

use super::{Command, Deliver, GateState};
use crate::engine::EngineRefusal;
use crate::outbox::{BacklogSender, PutResult};
use crate::run_loop::{CommitAnswer, Host, RunQueue};

/// Something for others, complete in itself.
pub(super) enum Outgoing {
    Deliver(Deliver),
    Ring(Arc<Notify>),
    SendToDatacenter { stream: StreamId, outbox: BacklogSender<ToDatacenter>, message: ToDatacenter },
    Reply { reply: oneshot::Sender<Result<Answer, EngineRefusal>>, answer: Result<Answer, EngineRefusal> },
}

impl Host for GateState {
    type Machine = Gate;
    type Command = Command;
    type Outgoing = Outgoing;

    fn run_queue(&self) -> &RunQueue<Command> {
        &self.run_queue
    }

    fn deliver(&self, out: Outgoing) {
        match out {
            Outgoing::Deliver(deliver) => deliver(),
            Outgoing::Ring(bell) => bell.notify_one(),
            Outgoing::SendToDatacenter { stream, outbox, message } => {
                if outbox.put(message) == PutResult::CutOff {
                    self.stats.streams_cut_off.add(1);
                    self.send(Command::Close { stream });
                }
            }
            Outgoing::Reply { reply, answer } => {
                // Whoever asked may be gone, which is fine.
                let _ = reply.send(answer);
            }
        }
    }

    /// Decisions are on their way before those who look at them are answered.
    fn goes_first(out: &Outgoing) -> bool {
        matches!(out, Outgoing::SendToDatacenter { .. })
    }

    fn answer(&self, answer: CommitAnswer) {
        self.send(Command::FromLog(answer));
    }

    fn log_pulse(&self) -> &Pulse {
        &self.vitals.log
    }

    fn commit_begun(&self) {}

    fn committed(&self, events: usize, took: Duration) {
        self.stats.committed(events, took);
    }

    fn set_trouble(&self, why: String) {
        match why.as_str() {
            "" => self.vitals.log.recover(),
            why => self.vitals.log.fail(why),
        }
        *self.trouble.lock().expect("no thread panics while it holds this") = why;
    }

    fn seat_ttl(&self) -> Duration {
        self.rules.seat_ttl
    }

    fn ask_again(&self) -> Duration {
        self.pacing.ask_again
    }

    fn is_given_up(&self) -> bool {
        self.is_given_up.load(Ordering::Relaxed)
    }
}
