//! What is remembered of workers that have gone: replaced incarnations, probation, and how often they were evicted.
//! Ten seconds of absence must not make a new worker of an old one; an hour does.

use std::collections::VecDeque;

use crate::effect::Effects;
use crate::event::Event;
use crate::ids::WorkerId;
use crate::time::Awake;

use super::Manager;

/// Workers that have gone and of which the log remembers something, with when that ends; the oldest first.
#[derive(Debug, Default)]
pub(super) struct Departed(VecDeque<(Awake, WorkerId)>);

impl Departed {
    pub(super) fn next(&self) -> Option<Awake> {
        self.0.front().map(|(at, _)| *at)
    }
}

impl Manager {
    /// The worker has gone.
    pub(super) fn remember_departed(&mut self, id: WorkerId, fx: &mut Effects) {
        let Some(record) = self.state.worker(&id) else { return };
        if record.grants > 0 {
            // Whoever comes back is not the one that asked.
            self.emit(Event::GrantsReset { worker: id.clone() }, fx);
        }
        if self.state.worker(&id).is_none() {
            return;
        }
        self.departed.0.push_back((self.awake + self.rules.eviction.remember_for, id));
        if self.departed.0.len() > self.rules.limits.workers {
            self.forget_first_departed(fx);
        }
    }

    /// The worker is back.
    pub(super) fn recall_departed(&mut self, id: &WorkerId) {
        self.departed.0.retain(|(_, departed)| departed != id);
    }

    pub(super) fn forget_departed(&mut self, fx: &mut Effects) {
        let mut bite = self.bite;
        while !bite.is_over() && self.departed.next().is_some_and(|at| at <= self.awake) {
            bite.spend(1);
            self.forget_first_departed(fx);
        }
    }

    fn forget_first_departed(&mut self, fx: &mut Effects) {
        let Some((_, worker)) = self.departed.0.pop_front() else { return };
        // One that an operator drained stays drained.
        if self.state.worker(&worker).is_some_and(|record| !record.drained) {
            self.emit(Event::WorkerForgotten { worker }, fx);
        }
    }

    /// After a takeover nobody knows when they went: the time of those that hold nothing begins anew.
    pub(super) fn resume_departed(&mut self) {
        let until = self.awake + self.rules.eviction.remember_for;
        let gone = self.state.workers().filter(|(id, _)| self.workers.find(id).is_none());
        self.departed.0 = gone.map(|(id, _)| (until, id.clone())).collect();
    }
}
