//! What follows from a bad verdict: eviction, hold, readmission and probation; and when a worker is forgotten.
//!
//! An evicted worker is trusted again as a new incarnation, or when its time is over and what was taken from it has
//! ended: it said so, settled or released it, or its lease would be over by now. Then it is on probation.
//!
//! The hold counts workers with a session. Those that were evicted lately, or missed until they were forgotten, and are
//! not back count as failing, or a failure that rolls through the fleet would never be the failure of most.

use crate::effect::{Effect, Effects, Notice};
use crate::event::Event;
use crate::health::hold::{forget_at, hold};
use crate::health::verdict::{evict_at, readmit_after};
use crate::health::{Hold, Verdict};
use crate::ids::WorkerId;
use crate::job::Ending;
use crate::message::CancelWhy;
use crate::time::{Awake, Wall};

use super::Manager;
use super::memory::ExpiringWorkers;
use super::workers::{HoldStanding, Link, UnconfirmedAttempt, Worker, WorkerKey};

/// How many workers count for the hold.
#[derive(Debug, Default)]
pub(super) struct HoldState {
    tracked: usize,
    failing: usize,
    /// Evicted lately, or missed until they were forgotten, and not back.
    lost: ExpiringWorkers<()>,
    /// An eviction was withheld, and the reason for that is still there.
    active: bool,
}

impl Manager {
    pub(super) fn begin_probation(&mut self, key: WorkerKey, fx: &mut Effects) {
        let worker = self.workers.at_mut(key);
        worker.evicted = false;
        worker.was_stuck = false;
        let (id, already) = (worker.id.clone(), worker.probation);
        worker.probation = true;
        self.back_in_hold(&id);
        if !already {
            self.emit(Event::ProbationBegan { worker: id }, fx);
        }
    }

    /// Keeps the hold's counts.
    pub(super) fn recount(&mut self, key: WorkerKey, counted: HoldStanding) {
        let before = core::mem::replace(&mut self.workers.at_mut(key).counted, counted);
        let weigh = |counted| match counted {
            HoldStanding::No => (0, 0),
            HoldStanding::Fine => (1, 0),
            HoldStanding::Failing => (1, 1),
        };
        let ((was_tracked, was_failing), (tracked, failing)) = (weigh(before), weigh(counted));
        self.hold.tracked = self.hold.tracked + tracked - was_tracked;
        self.hold.failing = self.hold.failing + failing - was_failing;
    }

    /// Tracked, and failing of those.
    fn hold_counts(&self) -> (usize, usize) {
        let lost = self.hold.lost.lasting(self.awake);
        (self.hold.tracked + lost, self.hold.failing + lost)
    }

    fn is_held(&mut self, worker_counts: bool, fx: &mut Effects) -> bool {
        let (tracked, failing) = self.hold_counts();
        let held = worker_counts && hold(tracked, failing) == Hold::Held;
        if held && !self.hold.active {
            self.hold.active = true;
            self.report(Notice::HoldBegan { failing, tracked }, fx);
        }
        held
    }

    pub fn holding_eviction(&self) -> bool {
        let (tracked, failing) = self.hold_counts();
        self.hold.active && hold(tracked, failing) == Hold::Held
    }

    pub(super) fn end_hold_if_clear(&mut self, fx: &mut Effects) {
        if self.hold.active && !self.holding_eviction() {
            self.hold.active = false;
            self.report(Notice::HoldEnded, fx);
        }
    }

    /// Returns whether the worker is gone.
    pub(super) fn evict_if_due(&mut self, key: WorkerKey, fx: &mut Effects) -> bool {
        let worker = self.workers.at(key);
        let due = evict_at(&self.rules.eviction, worker.judged.verdict, worker.failing_since())
            .is_some_and(|at| at <= self.awake);
        if worker.evicted || worker.away || !due {
            return false;
        }
        let counts = worker.is_session();
        if self.is_held(counts, fx) {
            return false;
        }
        let worker = self.workers.at(key);
        if worker.held == 0 && worker.judged.verdict == Verdict::Suspect && worker.session().is_none() {
            // Gone, and holding nothing: there is nobody to keep work from.
            if counts {
                self.lost_to_hold(self.workers.at(key).id.clone());
            }
            self.forget_worker(key, fx);
            return true;
        }
        self.evict(key, fx);
        false
    }

    fn evict(&mut self, key: WorkerKey, fx: &mut Effects) {
        let worker = self.workers.at(key);
        let (id, incarnation, counts) = (worker.id.clone(), worker.incarnation.clone(), worker.is_session());
        let evictions = self.state.worker(&id).map_or(0, |record| record.evictions) + 1;
        let readmit_at = self.log_now() + readmit_after(&self.rules.eviction, evictions);
        let held = self.held_by_worker(key);
        let unconfirmed: Vec<UnconfirmedAttempt> = held
            .iter()
            .map(|attempt| {
                let until = self.live.at(*attempt).clock.lease_end();
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
        let worker = self.workers.at_mut(key);
        worker.evicted = true;
        worker.probation = false;
        let eviction = worker.eviction_info();
        eviction.readmit_at = readmit_at;
        eviction.unconfirmed = unconfirmed;
        self.recount(key, HoldStanding::No);
        if counts {
            self.lost_to_hold(id.clone());
        }
        self.update_offer(key);
        self.report(Notice::WorkerEvicted { worker: id }, fx);
    }

    /// It goes on counting as failing for a while, unless it comes back.
    fn lost_to_hold(&mut self, id: WorkerId) {
        while self.hold.lost.pop_ended(self.awake).is_some() {}
        self.hold.lost.insert(id, self.awake + self.rules.hold.evicted_within, ());
    }

    /// After a takeover the log knows who was evicted lately and is not back, and who of them had a session. What is older
    /// does not say: one that has none then counts until it calls.
    pub(super) fn resume_hold(&mut self) {
        let (now, within) = (self.log_now(), self.rules.hold.evicted_within);
        let mut lost = Vec::new();
        for (id, record) in self.state.workers() {
            let evicted = record.evicted.as_ref().filter(|_| !record.evicted_without_session);
            let Some((_, readmit_at)) = evicted else { continue };
            let ago = (now + readmit_after(&self.rules.eviction, record.evictions)).since(*readmit_at);
            lost.extend((ago < within).then(|| (id.clone(), self.awake + (within - ago))));
        }
        lost.into_iter().for_each(|(id, until)| self.hold.lost.insert(id, until, ()));
    }

    pub(super) fn back_in_hold(&mut self, id: &WorkerId) {
        self.hold.lost.remove(id);
    }

    /// An evicted worker gets work again as a new incarnation, or when its time is over and what it held has stopped.
    pub(super) fn readmit_if_due(&mut self, key: WorkerKey, fx: &mut Effects) {
        let worker = self.workers.at(key);
        if !worker.evicted || self.is_away(worker) || self.live_signal(worker).is_err() {
            return;
        }
        let another_life = !self.is_evicted_as(&worker.id, &worker.incarnation);
        if another_life || self.readmit_at(worker).is_some_and(|at| at <= self.awake) {
            let worker = self.workers.at_mut(key);
            worker.work = None;
            worker.eviction = None;
            self.begin_probation(key, fx);
            self.touch(key);
        }
    }

    /// When an evicted worker has waited long enough, if nothing more is heard of what was taken from it.
    pub(super) fn readmit_at(&self, worker: &Worker) -> Option<Awake> {
        let eviction = worker.eviction.as_ref().filter(|_| worker.evicted)?;
        let time_is_over = self.awake + eviction.readmit_at.since(self.log_now());
        let ends = eviction.unconfirmed.iter().map(|open| open.until);
        Some(ends.fold(time_is_over.max(eviction.taken_until), Awake::max))
    }

    /// Returns whether the worker is gone.
    pub(super) fn forget_if_due(&mut self, key: WorkerKey, fx: &mut Effects) -> bool {
        let Some(at) = self.forget_worker_at(self.workers.at(key)) else { return false };
        if at > self.awake {
            return false;
        }
        if let Some(session) = self.workers.at(key).session() {
            self.push(Effect::CloseSession { session }, fx);
        }
        self.forget_worker(key, fx);
        true
    }

    pub(super) fn forget_worker_at(&self, worker: &Worker) -> Option<Awake> {
        if worker.held > 0 {
            return None;
        }
        let empty_since = worker.work.as_ref().and_then(|work| work.empty_since).unwrap_or(worker.since);
        let idle = match &worker.link {
            Link::Http { liveness, poll: None } => liveness.forget_at(&self.rules.liveness),
            Link::Http { .. } => return None,
            Link::Session { .. } if worker.judged.signals.live => return None,
            Link::Session { .. } => forget_at(&self.rules.hold, worker.since, Some(empty_since))?,
            Link::Expected => empty_since + self.rules.liveness.forget_after,
        };
        Some(self.readmit_at(worker).map_or(idle, |at| idle.max(at)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;
    use crate::time::{Mono, Now};

    #[test]
    fn those_that_no_longer_count_for_the_hold_do_not_stay_in_memory() {
        let now = Now { mono: Mono::from_ms(0), wall: Wall::from_ms(0) };
        let mut manager = Manager::new(Settings::default().check().expect("valid settings"), 7, now);
        for minute in 0..100 {
            manager.awake = Awake::from_ms(minute * 60_000);
            manager.lost_to_hold(WorkerId::new(format!("w{minute}")).expect("valid"));
        }
        assert_eq!(manager.hold.lost.len(), 5, "one a minute, for five minutes");
    }
}
