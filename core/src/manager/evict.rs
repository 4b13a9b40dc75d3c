//! What follows from a bad verdict: eviction, hold, readmission and probation; and when a worker is forgotten.
//!
//! An evicted worker is trusted again as a new incarnation, or when its time is over and what was taken from it has
//! ended: it said so, settled or released it, or its lease would be over by now. Then it is on probation.
//!
//! The hold counts workers with a session ([`super::fleet`]).

use crate::effect::{Effect, Effects, ManagerNotice};
use crate::event::Event;
use crate::health::Verdict;
use crate::health::hold::forget_at;
use crate::health::verdict::{evict_at, readmit_after};
use crate::ids::WorkerId;
use crate::job::Ending;
use crate::message::CancelWhy;
use crate::time::{Awake, Wall};

use super::Manager;
use super::fleet::{FleetWorker, HoldCounts, HoldStanding, UnconfirmedAttempt, WorkerKey, WorkerTransport};

impl Manager {
    pub(super) fn begin_probation(&mut self, key: WorkerKey, fx: &mut Effects) {
        let worker = self.fleet.worker_mut(key);
        worker.evicted = false;
        worker.was_stuck = false;
        let (id, already) = (worker.id.clone(), worker.probation);
        worker.probation = true;
        self.fleet.hold_mut().find_again(&id);
        if !already {
            self.emit(Event::ProbationBegan { worker: id }, fx);
        }
    }

    /// Whether an eviction that is due has to be withheld: where a worker counts for the hold, and most fail.
    fn is_withheld(&mut self, worker_counts: bool, fx: &mut Effects) -> bool {
        if !worker_counts {
            return false;
        }
        let (withheld, began) = self.fleet.hold_mut().withhold(self.awake);
        if let Some(HoldCounts { tracked, failing }) = began {
            self.report(ManagerNotice::HoldBegan { failing, tracked }, fx);
        }
        withheld
    }

    pub fn holding_eviction(&self) -> bool {
        self.fleet.hold().is_on(self.awake)
    }

    pub(super) fn end_hold_if_clear(&mut self, fx: &mut Effects) {
        if self.fleet.hold_mut().end_if_clear(self.awake) {
            self.report(ManagerNotice::HoldEnded, fx);
        }
    }

    /// Returns whether the worker is gone.
    pub(super) fn evict_if_due(&mut self, key: WorkerKey, fx: &mut Effects) -> bool {
        let worker = self.fleet.worker(key);
        let due = evict_at(&self.rules.eviction, worker.judged.verdict, worker.failing_since())
            .is_some_and(|at| at <= self.awake);
        if worker.evicted || worker.is_away() || !due {
            return false;
        }
        let counts = worker.is_session();
        if self.is_withheld(counts, fx) {
            return false;
        }
        let worker = self.fleet.worker(key);
        if worker.held() == 0 && worker.judged.verdict == Verdict::Suspect && worker.session().is_none() {
            // Gone, and holding nothing: there is nobody to keep work from.
            if counts {
                self.lost_to_hold(self.fleet.worker(key).id.clone());
            }
            self.forget_worker(key, fx);
            return true;
        }
        self.evict(key, fx);
        false
    }

    fn evict(&mut self, key: WorkerKey, fx: &mut Effects) {
        let worker = self.fleet.worker(key);
        let (id, incarnation, counts) = (worker.id.clone(), worker.incarnation.clone(), worker.is_session());
        let evictions = self.state.worker(&id).map_or(0, |record| record.evictions) + 1;
        let readmit_at = self.log_now() + readmit_after(&self.rules.eviction, evictions);
        let held = self.fleet.held_by(key);
        let unconfirmed: Vec<UnconfirmedAttempt> = held
            .iter()
            .map(|attempt| {
                let until = self.fleet.live_mut(*attempt).clock.lease_end();
                UnconfirmedAttempt { claim: self.state.claim_of(*attempt), until }
            })
            .collect();
        let last = unconfirmed.iter().map(|open| open.until).max();
        let taken_until = last.map_or(Wall::ZERO, |until| self.log_now() + until.since(self.awake));
        let worker = id.clone();
        let without_session = !counts;
        self.emit(Event::WorkerEvicted { worker, incarnation, readmit_at, taken_until, without_session }, fx);
        for (attempt, open) in held.into_iter().zip(&unconfirmed) {
            self.end(attempt, Ending::Evicted, fx);
            self.send_cancel(key, open.claim, CancelWhy::Evicted, fx);
        }
        let worker = self.fleet.worker_mut(key);
        worker.evicted = true;
        worker.probation = false;
        let eviction = worker.eviction_info();
        eviction.readmit_at = readmit_at;
        eviction.unconfirmed = unconfirmed;
        self.fleet.recount(key, HoldStanding::No);
        if counts {
            self.lost_to_hold(id.clone());
        }
        self.offers().update(key);
        self.report(ManagerNotice::WorkerEvicted { worker: id }, fx);
    }

    /// Counts the worker as failing for a while, unless it comes back.
    fn lost_to_hold(&mut self, id: WorkerId) {
        self.fleet.hold_mut().lose(id, self.awake, self.rules.hold.evicted_within);
    }

    /// Takes up the hold after a takeover: the log knows who was evicted lately and is not back, and who of them had a
    /// session. What is older does not say: one that has none then counts until it calls.
    pub(super) fn resume_hold(&mut self) {
        let (now, within) = (self.log_now(), self.rules.hold.evicted_within);
        let mut lost = Vec::new();
        for (id, record) in self.state.workers() {
            let evicted = record.evicted.as_ref().filter(|_| !record.evicted_without_session);
            let Some((_, readmit_at)) = evicted else { continue };
            let ago = (now + readmit_after(&self.rules.eviction, record.evictions)).since(*readmit_at);
            lost.extend((ago < within).then(|| (id.clone(), self.awake + (within - ago))));
        }
        lost.into_iter().for_each(|(id, until)| self.fleet.hold_mut().resume_lost(id, until));
    }

    /// An evicted worker gets work again as a new incarnation, or when its time is over and what it held has stopped.
    pub(super) fn readmit_if_due(&mut self, key: WorkerKey, fx: &mut Effects) {
        let worker = self.fleet.worker(key);
        let liveness = &self.rules.liveness;
        let is_here = !worker.is_absent(liveness, self.awake) && worker.live_signal(liveness, self.awake).is_ok();
        if !worker.evicted || !is_here {
            return;
        }
        let another_life = !self.is_evicted_as(&worker.id, &worker.incarnation);
        if another_life || self.readmit_at(worker).is_some_and(|at| at <= self.awake) {
            self.fleet.forget_work(key);
            self.fleet.worker_mut(key).eviction = None;
            self.begin_probation(key, fx);
            self.fleet.touch(key);
        }
    }

    /// The instant when an evicted worker has waited long enough, if nothing more is heard of the attempts that were
    /// taken from it.
    pub(super) fn readmit_at(&self, worker: &FleetWorker) -> Option<Awake> {
        let eviction = worker.eviction.as_ref().filter(|_| worker.evicted)?;
        let time_is_over = self.awake + eviction.readmit_at.since(self.log_now());
        let ends = eviction.unconfirmed.iter().map(|open| open.until);
        Some(ends.fold(time_is_over.max(eviction.taken_until), Awake::max))
    }

    /// Returns whether the worker is gone.
    pub(super) fn forget_if_due(&mut self, key: WorkerKey, fx: &mut Effects) -> bool {
        let Some(at) = self.forget_worker_at(self.fleet.worker(key)) else { return false };
        if at > self.awake {
            return false;
        }
        if let Some(session) = self.fleet.worker(key).session() {
            self.push(Effect::CloseSession { session }, fx);
        }
        self.forget_worker(key, fx);
        true
    }

    pub(super) fn forget_worker_at(&self, worker: &FleetWorker) -> Option<Awake> {
        if worker.held() > 0 {
            return None;
        }
        let empty_since = worker.empty_since();
        let idle = match &worker.link {
            WorkerTransport::Http { liveness, poll: None } => liveness.forget_at(&self.rules.liveness),
            WorkerTransport::Http { .. } => return None,
            WorkerTransport::Session { .. } if worker.judged.signals.live => return None,
            WorkerTransport::Session { .. } => forget_at(&self.rules.hold, worker.since, Some(empty_since))?,
            WorkerTransport::Expected => empty_since + self.rules.liveness.forget_after,
        };
        Some(self.readmit_at(worker).map_or(idle, |at| idle.max(at)))
    }
}
