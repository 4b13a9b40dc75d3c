//! Who workers are, and what they still hold.
//!
//! A worker is its id; an incarnation is one life of it. A new incarnation replaces the old: what that held ends at
//! once, and whoever still speaks as the old one is refused. The same incarnation on a new session is the same worker
//! come back: it keeps what it still holds, and what it does not hold never arrived. One that says goodbye holds
//! nothing: what was on its way to it goes to another at once, and not when somebody misses it.

use crate::dispatch::GroupKey;
use crate::effect::{Effect, Effects};
use crate::event::Event;
use crate::health::SessionLiveness;
use crate::ids::{Claim, ClientId, Incarnation, SessionId, WorkerId};
use crate::job::Ending;
use crate::limits::Limit;
use crate::message::{CancelWhy, FromWorker, Hello, Subscription, ToWorker};
use crate::refusal::Refusal;
use crate::state::ClaimStanding;
use crate::time::Awake;

use super::Manager;
use super::fleet::{FleetWorker, UnconfirmedAttempt, WorkerKey, WorkerTransport};

impl Manager {
    pub(super) fn handle_message(&mut self, session: SessionId, message: FromWorker, fx: &mut Effects) {
        if let FromWorker::Hello(hello) = message {
            if let Err(refusal) = self.handle_hello(session, hello, fx) {
                self.refusals.note(&refusal);
                self.send(session, ToWorker::Rejected(refusal), fx);
                self.push(Effect::CloseSession { session }, fx);
            }
            return;
        }
        let Some(worker) = self.fleet.find_session(session) else {
            return self.refuse_session(session, Refusal::UnknownWorker, fx);
        };
        let taken = match message {
            FromWorker::Hello(_) => unreachable!("handled above"),
            FromWorker::Capacity { slots, accepting } => self.handle_capacity(worker, slots, accepting),
            FromWorker::Beats(beats) => self.handle_beats(beats, Some(worker), fx).map(|answers| {
                self.send(session, ToWorker::BeatAnswers(answers), fx);
            }),
            FromWorker::Settle(list) => self.handle_settlements(list, Some(worker), fx).map(|answers| {
                self.send(session, ToWorker::SettleAnswers(answers), fx);
            }),
            FromWorker::ProbeAnswer { probe } => {
                self.handle_probe_answer(worker, probe, fx);
                Ok(())
            }
            FromWorker::RequestExtension(asked) => self.handle_extension(&asked, Some(worker), fx).map(|answer| {
                self.send(session, ToWorker::ExtensionAnswer(answer), fx);
            }),
            FromWorker::Ended(claims) => self.handle_ended(worker, claims, fx),
            FromWorker::Goodbye => {
                self.handle_goodbye(worker, session, fx);
                Ok(())
            }
        };
        if let Err(refusal) = taken {
            self.refuse_session(session, refusal, fx);
        }
    }

    fn refuse_session(&mut self, session: SessionId, refusal: Refusal, fx: &mut Effects) {
        self.refusals.note(&refusal);
        self.send(session, ToWorker::Refused(refusal), fx);
    }

    fn handle_hello(&mut self, session: SessionId, hello: Hello, fx: &mut Effects) -> Result<(), Refusal> {
        self.within(Limit::WorkerSlots, hello.slots as usize)?;
        self.within(Limit::FrameItems, hello.holding.len())?;
        if self.fleet.find_session(session).is_some_and(|key| self.fleet.worker(key).id != hello.worker) {
            return Err(Refusal::Conflict);
        }
        let known = self.fleet.find(&hello.worker);
        if known.is_none() {
            self.within(Limit::Workers, self.fleet.len() + 1)?;
        }
        if self.was_replaced(&hello.worker, &hello.incarnation) {
            return Err(Refusal::StaleIncarnation);
        }
        let group = self.join(&hello.subscription, hello.client)?;
        let granted_until = self.grant_of_this_life(known, &hello.worker, &hello.incarnation);
        let link =
            WorkerTransport::Session { session, liveness: SessionLiveness::connected(self.awake, granted_until) };
        let key = match known {
            None => self.welcome_worker(FleetWorker::new(hello.worker, hello.incarnation, link, self.awake), fx),
            Some(key) => {
                self.close_old_session(key, session, fx);
                self.watch().note_heard(key);
                if self.fleet.worker(key).incarnation != hello.incarnation {
                    self.replace_incarnation(key, hello.incarnation, fx);
                }
                self.fleet.relink(key, link);
                key
            }
        };
        self.regroup(key, group);
        let worker = self.fleet.worker_mut(key);
        worker.slots = hello.slots;
        worker.accepting = true;
        self.send(session, ToWorker::Welcome { term: self.seat.term() }, fx);
        self.reconcile(key, &hello.holding, fx);
        self.readmit_if_due(key, fx);
        self.judge_if_suspect(key, fx);
        self.fleet.touch(key);
        Ok(())
    }

    /// The group of a subscription. A worker belongs to exactly one; [`Self::regroup`] leaves the one before.
    pub(super) fn join(&mut self, subscription: &Subscription, client: ClientId) -> Result<GroupKey, Refusal> {
        let state = &self.state;
        let is_paused = |queue: &str| state.paused().contains(queue);
        self.dispatch.join(subscription, client, &self.rules.limits, is_paused).map_err(Refusal::Limited)
    }

    pub(super) fn regroup(&mut self, key: WorkerKey, group: GroupKey) {
        self.dispatch.withdraw(key);
        if let Some(before) = self.fleet.worker_mut(key).group.replace(group) {
            self.dispatch.leave(before);
        }
    }

    /// The end of the live grant that the same incarnation was given: a reconnect takes nothing back.
    pub(super) fn grant_of_this_life(
        &self,
        known: Option<WorkerKey>,
        id: &WorkerId,
        incarnation: &Incarnation,
    ) -> Awake {
        let known = known.map(|key| self.fleet.worker(key)).filter(|worker| worker.incarnation == *incarnation);
        match known.map(|worker| &worker.link) {
            Some(WorkerTransport::Session { liveness, .. }) => liveness.granted_until(),
            Some(WorkerTransport::Http { liveness, .. }) => liveness.granted_until(),
            Some(WorkerTransport::Expected) | None => self.logged_grant(id, incarnation),
        }
    }

    /// The end of the live grant that the log remembers of this incarnation; zero if there is none.
    pub(super) fn logged_grant(&self, id: &WorkerId, incarnation: &Incarnation) -> Awake {
        let granted = self.state.worker(id).and_then(|record| record.granted.as_ref());
        match granted.filter(|(granted, _)| granted == incarnation) {
            Some((_, until)) if *until > self.log_now() => self.awake + until.since(self.log_now()),
            _ => Awake::ZERO,
        }
    }

    /// Takes a worker into the books that speaks for the first time, or again after it had gone.
    pub(super) fn welcome_worker(&mut self, worker: FleetWorker, fx: &mut Effects) -> WorkerKey {
        self.recall_departed(&worker.id, &worker.incarnation, fx);
        self.note_incarnation(&worker.id, &worker.incarnation, fx);
        // One without a session counts for no hold, evicted or not.
        if !worker.is_session() || self.state.worker(&worker.id).is_none_or(|record| record.evicted.is_none()) {
            self.fleet.hold_mut().find_again(&worker.id);
        }
        self.add_worker(worker)
    }

    /// Takes a worker into the books, with what the log remembers of it.
    pub(super) fn add_worker(&mut self, mut worker: FleetWorker) -> WorkerKey {
        if let Some(record) = self.state.worker(&worker.id) {
            worker.drained = record.drained;
            worker.probation = record.probation;
            if let Some((_, readmit_at)) = &record.evicted {
                worker.evicted = true;
                worker.eviction_info().readmit_at = *readmit_at;
                worker.eviction_info().taken_until = self.awake + record.taken_until.since(self.log_now());
            }
        }
        self.fleet.insert(worker)
    }

    /// An eviction that the log remembers ends with the incarnation that it was of.
    pub(super) fn is_evicted_as(&self, id: &WorkerId, incarnation: &Incarnation) -> bool {
        let record = self.state.worker(id).and_then(|record| record.evicted.as_ref());
        record.is_some_and(|(evicted, _)| evicted == incarnation)
    }

    fn close_old_session(&mut self, key: WorkerKey, new: SessionId, fx: &mut Effects) {
        if let Some(old) = self.fleet.worker(key).session()
            && old != new
        {
            self.push(Effect::CloseSession { session: old }, fx);
        }
    }

    /// A new life: what the old one held has crashed with it.
    pub(super) fn replace_incarnation(&mut self, key: WorkerKey, incarnation: Incarnation, fx: &mut Effects) {
        for attempt in self.fleet.held_by(key) {
            self.end(attempt, Ending::Crashed, fx);
        }
        let now = self.awake;
        let worker = self.fleet.worker_mut(key);
        let old = core::mem::replace(&mut worker.incarnation, incarnation.clone());
        worker.since = now;
        let worker = worker.id.clone();
        self.fleet.forget_work(key);
        self.emit(Event::IncarnationReplaced { worker: worker.clone(), old }, fx);
        self.note_incarnation(&worker, &incarnation, fx);
    }

    /// The log learns who the worker is once for each life: after a takeover, a process of an earlier life must not pass
    /// for a newer one. One that comes back as who it was costs nothing, so that a whole fleet may do so at once.
    fn note_incarnation(&mut self, worker: &WorkerId, incarnation: &Incarnation, fx: &mut Effects) {
        let logged = self.state.worker(worker).and_then(|record| record.incarnation.as_ref());
        if logged != Some(incarnation) {
            let (worker, incarnation) = (worker.clone(), incarnation.clone());
            self.emit(Event::IncarnationSeen { worker, incarnation }, fx);
        }
    }

    /// Whether a newer incarnation of this worker has been here. The log remembers it over takeovers.
    pub(super) fn was_replaced(&self, worker: &WorkerId, incarnation: &Incarnation) -> bool {
        self.state.worker(worker).is_some_and(|record| record.replaced.contains(incarnation))
    }

    /// Compares what we think it holds with what it says it holds.
    fn reconcile(&mut self, key: WorkerKey, holding: &[Claim], fx: &mut Effects) {
        for attempt in self.fleet.held_by(key) {
            if !holding.contains(&self.state.claim_of(attempt)) {
                self.end(attempt, Ending::NeverArrived, fx);
            }
        }
        let stale: Vec<Claim> = holding.iter().filter(|claim| !self.holds(key, claim)).copied().collect();
        let (now, length) = (self.awake, self.rules.lease.extension);
        let worker = self.fleet.worker_mut(key);
        if worker.evicted {
            // Whatever we remember of what was taken from it: what it says it still runs has not ended.
            let known = core::mem::take(&mut worker.eviction_info().unconfirmed);
            let end_of = |claim: &Claim| known.iter().find(|open| open.claim == *claim).map(|open| open.until);
            let open = stale.iter().map(|claim| (*claim, end_of(claim).unwrap_or(now + length)));
            worker.eviction_info().taken_until = now;
            worker.eviction_info().unconfirmed =
                open.map(|(claim, until)| UnconfirmedAttempt { claim, until }).collect();
        }
        for claim in stale {
            self.send_cancel(key, claim, CancelWhy::Stale, fx);
        }
        for attempt in self.fleet.held_by(key) {
            let workflow = self.state.workflow(self.fleet.live_mut(attempt).workflow);
            if workflow.state == crate::job::WorkflowState::Cancelling {
                self.send_cancel(key, self.state.claim_of(attempt), CancelWhy::Asked, fx);
            }
        }
    }

    fn holds(&self, key: WorkerKey, claim: &Claim) -> bool {
        match self.state.standing(claim) {
            ClaimStanding::Current(attempt) => self.fleet.get_live(attempt).is_some_and(|live| live.worker == key),
            _ => false,
        }
    }

    fn handle_capacity(&mut self, key: WorkerKey, slots: u32, accepting: bool) -> Result<(), Refusal> {
        self.within(Limit::WorkerSlots, slots as usize)?;
        let worker = self.fleet.worker_mut(key);
        worker.slots = slots;
        worker.accepting = accepting;
        self.offers().update(key);
        Ok(())
    }

    /// The worker confirms that cancelled attempts have stopped.
    fn handle_ended(&mut self, key: WorkerKey, claims: Vec<Claim>, fx: &mut Effects) -> Result<(), Refusal> {
        self.within(Limit::FrameItems, claims.len())?;
        for claim in claims {
            self.confirm_ended(&claim, Some(key), fx);
            if let ClaimStanding::Current(attempt) = self.state.standing(&claim)
                && self.holds(key, &claim)
            {
                let cancelling = self.state.workflow(self.fleet.live_mut(attempt).workflow).state
                    == crate::job::WorkflowState::Cancelling;
                // Stopping what nobody cancelled is giving it back.
                self.end(attempt, if cancelling { Ending::Cancelled } else { Ending::Released { delay: None } }, fx);
            }
        }
        self.fleet.touch(key);
        Ok(())
    }

    /// Any word about its end confirms that an evicted worker's attempt has stopped. What came without a session is
    /// the word of the worker that held it.
    pub(super) fn confirm_ended(&mut self, claim: &Claim, by: Option<WorkerKey>, fx: &mut Effects) {
        let held_by = || self.state.ended_attempt(claim).and_then(|ended| self.fleet.find(&ended.worker));
        if let Some(key) = by.or_else(held_by)
            && let Some(eviction) = &mut self.fleet.worker_mut(key).eviction
            && !eviction.unconfirmed.is_empty()
        {
            eviction.unconfirmed.retain(|open| open.claim != *claim);
            self.readmit_if_due(key, fx);
        }
    }

    /// Handles a goodbye like a hello that holds nothing, of a worker that wants nothing.
    fn handle_goodbye(&mut self, key: WorkerKey, session: SessionId, fx: &mut Effects) {
        self.fleet.worker_mut(key).accepting = false;
        self.offers().update(key);
        self.reconcile(key, &[], fx);
        self.send(session, ToWorker::Goodbye, fx);
        self.push(Effect::CloseSession { session }, fx);
        self.fleet.close_session(key);
        if self.fleet.worker(key).evicted {
            self.fleet.touch(key);
        } else {
            // The worker drained itself and left: nothing is owed to it.
            self.forget_worker(key, fx);
        }
    }

    /// Handles a session that closed without a goodbye: whatever the worker wanted when it was heard of last, it is
    /// missed from now on.
    pub(super) fn handle_session_closed(&mut self, session: SessionId) {
        let Some(key) = self.fleet.find_session(session) else { return };
        self.fleet.close_session(key);
        self.fleet.touch(key);
    }

    /// Removes a worker that holds nothing.
    pub(super) fn forget_worker(&mut self, key: WorkerKey, fx: &mut Effects) {
        self.dispatch.withdraw(key);
        let worker = self.fleet.remove(key);
        if let Some(group) = worker.group {
            self.dispatch.leave(group);
        }
        if let Some(timer) = worker.timer {
            self.timers.disarm(timer);
        }
        if worker.was_stuck && !worker.evicted && !worker.probation {
            // Going away makes nobody well: it begins when it comes back.
            self.emit(Event::ProbationBegan { worker: worker.id.clone() }, fx);
        }
        self.remember_departed(worker.id, worker.incarnation, fx);
    }
}
