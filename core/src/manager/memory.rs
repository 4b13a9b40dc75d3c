//! What is remembered of workers that have gone: the incarnation that they were, replaced ones, probation, and how often
//! they were evicted. Ten seconds of absence must not make a new worker of an old one; an hour does.
//!
//! The log keeps what was decided about a worker, and who it is. When it went is soft: after a takeover the hour begins
//! anew.

use crate::effect::Effects;
use crate::event::Event;
use crate::ids::{Incarnation, WorkerId};

use super::Manager;

impl Manager {
    /// The worker has gone.
    pub(super) fn remember_departed(&mut self, id: WorkerId, incarnation: Incarnation, fx: &mut Effects) {
        if self.state.worker(&id).is_some_and(|record| record.grants > 0) {
            // Whoever comes back is not the one that asked.
            self.emit(Event::GrantsReset { worker: id.clone() }, fx);
        }
        self.forget_later(id, Some(incarnation), fx);
    }

    /// An operator no longer drains a worker that has gone. If that alone kept what is known of it, its time begins now.
    pub(super) fn remember_undrained(&mut self, id: &WorkerId, fx: &mut Effects) {
        if self.state.worker(id).is_some() && !self.fleet.departed().contains(id) {
            self.forget_later(id.clone(), None, fx);
        }
    }

    fn forget_later(&mut self, id: WorkerId, incarnation: Option<Incarnation>, fx: &mut Effects) {
        self.fleet.departed_mut().insert(id, self.awake + self.rules.eviction.remember_for, incarnation);
        if self.fleet.departed().len() > self.rules.limits.workers {
            self.forget_first_departed(fx);
        }
    }

    /// The worker is back. If it is not who it was when it went, that one may not come back.
    pub(super) fn recall_departed(&mut self, id: &WorkerId, incarnation: &Incarnation, fx: &mut Effects) {
        let logged = || self.state.worker(id).and_then(|record| record.incarnation.clone());
        let went = self.fleet.departed_mut().remove(id).flatten().or_else(logged);
        if let Some(old) = went.filter(|went| went != incarnation) {
            self.emit(Event::IncarnationReplaced { worker: id.clone(), old }, fx);
        }
    }

    pub(super) fn forget_departed(&mut self, fx: &mut Effects) {
        let mut bite = self.bite;
        while !bite.is_over() && self.fleet.departed().next().is_some_and(|at| at <= self.awake) {
            bite.spend(1);
            self.forget_first_departed(fx);
        }
    }

    fn forget_first_departed(&mut self, fx: &mut Effects) {
        let Some(worker) = self.fleet.departed_mut().pop() else { return };
        // One that an operator drained stays drained.
        if self.state.worker(&worker).is_some_and(|record| !record.drained) {
            self.emit(Event::WorkerForgotten { worker }, fx);
        }
    }

    /// Begins the time of departed workers that hold nothing anew after a takeover, because nobody knows when they
    /// went.
    pub(super) fn resume_departed(&mut self) {
        let until = self.awake + self.rules.eviction.remember_for;
        let gone = self.state.workers().filter(|(id, _)| self.fleet.find(id).is_none());
        let gone: Vec<WorkerId> = gone.map(|(id, _)| id.clone()).collect();
        gone.into_iter().for_each(|id| self.fleet.departed_mut().insert(id, until, None));
    }
}
