//! What is remembered of workers that have gone: the incarnation that they were, replaced ones, probation, and how often
//! they were evicted. Ten seconds of absence must not make a new worker of an old one; an hour does.
//!
//! The log keeps what was decided about a worker, and who it is. When it went is soft: after a takeover the hour begins
//! anew.

use std::collections::{BTreeMap, BTreeSet};

use crate::effect::Effects;
use crate::event::Event;
use crate::ids::{Incarnation, WorkerId};
use crate::time::Awake;

use super::Manager;

/// Something about workers that ends by itself: the first to end is at hand, and so is each worker.
#[derive(Debug)]
pub(super) struct ExpiringWorkers<T> {
    ends: BTreeSet<(Awake, WorkerId)>,
    of: BTreeMap<WorkerId, (Awake, T)>,
}

impl<T> Default for ExpiringWorkers<T> {
    fn default() -> Self {
        Self { ends: BTreeSet::new(), of: BTreeMap::new() }
    }
}

impl<T> ExpiringWorkers<T> {
    pub(super) fn len(&self) -> usize {
        self.of.len()
    }

    fn contains(&self, id: &WorkerId) -> bool {
        self.of.contains_key(id)
    }

    pub(super) fn next(&self) -> Option<Awake> {
        self.ends.first().map(|(at, _)| *at)
    }

    /// How many have not ended by now.
    pub(super) fn lasting(&self, now: Awake) -> usize {
        self.len() - self.ends.iter().take_while(|(at, _)| *at <= now).count()
    }

    /// In the place of what was known of this worker.
    pub(super) fn insert(&mut self, id: WorkerId, until: Awake, what: T) {
        self.remove(&id);
        self.ends.insert((until, id.clone()));
        self.of.insert(id, (until, what));
    }

    pub(super) fn remove(&mut self, id: &WorkerId) -> Option<T> {
        let (until, what) = self.of.remove(id)?;
        self.ends.remove(&(until, id.clone()));
        Some(what)
    }

    /// The first to end.
    pub(super) fn pop(&mut self) -> Option<WorkerId> {
        let (_, id) = self.ends.pop_first()?;
        self.of.remove(&id);
        Some(id)
    }

    /// Takes out one that has ended by now.
    pub(super) fn pop_ended(&mut self, now: Awake) -> Option<WorkerId> {
        self.next().filter(|at| *at <= now)?;
        self.pop()
    }
}

/// Workers that have gone, with the incarnation that they were then, where that is known.
pub(super) type DepartedWorkers = ExpiringWorkers<Option<Incarnation>>;

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
        if self.state.worker(id).is_some() && !self.departed.contains(id) {
            self.forget_later(id.clone(), None, fx);
        }
    }

    fn forget_later(&mut self, id: WorkerId, incarnation: Option<Incarnation>, fx: &mut Effects) {
        self.departed.insert(id, self.awake + self.rules.eviction.remember_for, incarnation);
        if self.departed.len() > self.rules.limits.workers {
            self.forget_first_departed(fx);
        }
    }

    /// The worker is back. If it is not who it was when it went, that one may not come back.
    pub(super) fn recall_departed(&mut self, id: &WorkerId, incarnation: &Incarnation, fx: &mut Effects) {
        let logged = || self.state.worker(id).and_then(|record| record.incarnation.clone());
        let went = self.departed.remove(id).flatten().or_else(logged);
        if let Some(old) = went.filter(|went| went != incarnation) {
            self.emit(Event::IncarnationReplaced { worker: id.clone(), old }, fx);
        }
    }

    pub(super) fn forget_departed(&mut self, fx: &mut Effects) {
        let mut bite = self.bite;
        while !bite.is_over() && self.departed.next().is_some_and(|at| at <= self.awake) {
            bite.spend(1);
            self.forget_first_departed(fx);
        }
    }

    fn forget_first_departed(&mut self, fx: &mut Effects) {
        let Some(worker) = self.departed.pop() else { return };
        // One that an operator drained stays drained.
        if self.state.worker(&worker).is_some_and(|record| !record.drained) {
            self.emit(Event::WorkerForgotten { worker }, fx);
        }
    }

    /// After a takeover nobody knows when they went: the time of those that hold nothing begins anew.
    pub(super) fn resume_departed(&mut self) {
        let until = self.awake + self.rules.eviction.remember_for;
        let gone = self.state.workers().filter(|(id, _)| self.workers.find(id).is_none());
        let gone: Vec<WorkerId> = gone.map(|(id, _)| id.clone()).collect();
        gone.into_iter().for_each(|id| self.departed.insert(id, until, None));
    }
}
