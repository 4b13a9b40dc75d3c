//! The engine as the host of a manager: what the run loop asks of what is around its machine.

use std::sync::atomic::Ordering;
use std::time::Duration;

use onward_core::manager::Manager;
use onward_health::Pulse;

use super::outgoing::Outgoing;
use super::{Command, EngineState};
use crate::run_loop::{CommitAnswer, Host, RunQueue};

impl Host for EngineState {
    type Machine = Manager;
    type Command = Command;
    type Outgoing = Outgoing;

    fn run_queue(&self) -> &RunQueue<Command> {
        &self.run_queue
    }

    fn deliver(&self, out: Outgoing) {
        out.deliver(self);
    }

    fn goes_first(out: &Outgoing) -> bool {
        matches!(out, Outgoing::SendToWorker { .. })
    }

    fn answer(&self, answer: CommitAnswer) {
        self.send(Command::FromLog(answer));
    }

    fn log_pulse(&self) -> &Pulse {
        &self.vitals.log
    }

    fn commit_begun(&self) {
        self.stats.commits_begun.add(1);
    }

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
