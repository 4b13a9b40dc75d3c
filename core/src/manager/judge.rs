//! Verdicts on workers and what follows from them: routing, eviction, hold, probation. And on this manager itself.
//!
//! A worker is judged when a signal may have changed, and at the instants at which one changes by time alone; never by
//! going through all of them. The count that the hold needs is kept as verdicts change.

use crate::effect::{Effect, Effects, Notice};
use crate::event::Event;
use crate::health::hold::{forget_at, hold};
use crate::health::progress::{flow, worker as worker_progress};
use crate::health::verdict::{evict_at, judge, manager_ready, readmit_after, worker_ready};
use crate::health::{
    FlowSample, Hold, Judgement, NotLive, ProgressRule, ProgressVerdict, Tally, Verdict, WorkerSample,
};
use crate::job::Ending;
use crate::message::{CancelWhy, ToWorker};
use crate::time::Awake;
use crate::wheel::TimerKey;

use super::Manager;
use super::timers::Soon;
use super::workers::{Counted, Link, Worker, WorkerKey};

/// How many workers count for the hold.
#[derive(Debug, Default)]
pub(super) struct HoldState {
    tracked: usize,
    failing: usize,
    /// An eviction was withheld, and the reason for that is still there.
    active: bool,
}

/// What this manager has handed out lately.
#[derive(Debug, Default)]
pub(super) struct Flow {
    handed_out: Option<Box<Tally>>,
    last: Option<Awake>,
    demand_since: Option<Awake>,
}

impl Flow {
    pub(super) fn dispatched(&mut self, rule: &ProgressRule, now: Awake, count: u32) {
        let tally = self.handed_out.get_or_insert_with(|| Box::new(Tally::new(rule)));
        for _ in 0..count {
            tally.succeeded(now);
        }
        self.last = Some(now);
    }
}

impl Manager {
    /// A signal of this worker may have changed: it is judged before this step ends.
    pub(super) fn touch(&mut self, key: WorkerKey) {
        let worker = self.workers.at_mut(key);
        if !worker.touched {
            worker.touched = true;
            self.to_judge.push(key);
        }
    }

    pub(super) fn judge_touched(&mut self, fx: &mut Effects) {
        while let Some(key) = self.to_judge.pop() {
            // A worker may have been forgotten since; its key may even be another's by now, which does no harm.
            if self.workers.get(key).is_some_and(|worker| worker.touched) {
                self.workers.at_mut(key).touched = false;
                self.judge_worker(key, fx);
                self.arm_worker(key);
            }
        }
        if self.hold.active && hold(self.hold.tracked, self.hold.failing) == Hold::Clear {
            self.hold.active = false;
            self.report(Notice::HoldEnded, fx);
        }
    }

    pub(super) fn probe_answered(&mut self, key: WorkerKey, probe: u32) {
        let now = self.awake;
        let worker = self.workers.at_mut(key);
        if let Link::Session { liveness, .. } = &mut worker.link
            && liveness.answered(probe, now)
            && !worker.judged.signals.live
        {
            self.touch(key);
        }
    }

    fn live_signal(&self, worker: &Worker) -> Result<(), NotLive> {
        match &worker.link {
            Link::Session { liveness, .. } => liveness.judge(&self.rules.liveness, self.awake),
            Link::Http { liveness, .. } => liveness.judge(&self.rules.liveness, self.awake),
            // It has as long as its leases to be heard of; until then it is not judged.
            Link::Expected => Ok(()),
        }
    }

    /// Nothing is to be said of a worker that has not been heard of since the takeover: its leases wait for it.
    fn progress_signal(&self, worker: &Worker) -> ProgressVerdict {
        let (Some(work), false) = (&worker.work, matches!(worker.link, Link::Expected)) else {
            return worker_progress(&self.rules.progress, self.awake, &WorkerSample::default());
        };
        let (succeeded, failed, failed_jobs) = work.tally.counts(self.awake);
        // Only where nothing moves does it matter since when; then the attempts are few or the worker is in trouble.
        let oldest_unmoving = match (work.unmoving, work.moving, succeeded) {
            (0, ..) => None,
            (_, 0, 0) => self.oldest_unmoving(worker),
            _ => None,
        };
        let sample = WorkerSample {
            succeeded,
            failed,
            failed_jobs,
            moving: work.moving,
            unmoving: work.unmoving,
            last_step: work.last_step,
            oldest_unmoving,
            first_failure: work.tally.first_failure(),
        };
        worker_progress(&self.rules.progress, self.awake, &sample)
    }

    fn oldest_unmoving(&self, worker: &Worker) -> Option<Awake> {
        let unmoving = self.live.from(worker.head()).filter_map(|key| {
            let live = self.live.get(key)?;
            (live.motion == crate::beat::Motion::Unmoving).then(|| live.clock.handed_at())
        });
        unmoving.min()
    }

    /// The verdict as of now, readiness included.
    pub(super) fn judgement(&self, key: WorkerKey) -> (Judgement, ProgressVerdict) {
        let worker = self.workers.at(key);
        let progress = self.progress_signal(worker);
        let accepting = worker.accepting && !worker.drained && !worker.evicted;
        let ready = worker_ready(accepting, self.free_slots(key));
        (judge(self.live_signal(worker), ready, &progress), progress)
    }

    fn judge_worker(&mut self, key: WorkerKey, fx: &mut Effects) {
        let (judged, _) = self.judgement(key);
        let now = self.awake;
        let worker = self.workers.at_mut(key);
        let before = core::mem::replace(&mut worker.judged, judged);
        if before.verdict != judged.verdict {
            worker.since = now;
        }
        let is_trouble = |verdict| !matches!(verdict, Verdict::Healthy | Verdict::Busy);
        let is_news = before.verdict != judged.verdict && (is_trouble(before.verdict) || is_trouble(judged.verdict));
        let failing = matches!(judged.verdict, Verdict::Suspect | Verdict::Stuck);
        let counted = match &worker.link {
            Link::Session { .. } if worker.evicted => Counted::No,
            Link::Session { .. } if failing => Counted::Failing,
            Link::Session { .. } => Counted::Fine,
            Link::Http { .. } | Link::Expected => Counted::No,
        };
        let (evicted, id) = (worker.evicted, worker.id.clone());
        self.recount(key, counted);
        if is_news {
            self.report(Notice::VerdictChanged { worker: id.clone(), from: before.verdict, to: judged }, fx);
        }
        let recovered = before.verdict == Verdict::Suspect && judged.verdict != Verdict::Suspect;
        if !evicted && recovered && self.state.worker(&id).is_some_and(|record| record.grants > 0) {
            self.emit(Event::GrantsReset { worker: id }, fx);
        }
        let worker = self.workers.at_mut(key);
        worker.was_stuck |= judged.verdict == Verdict::Stuck;
        if !evicted && worker.was_stuck && judged.signals.live && judged.verdict != Verdict::Stuck {
            self.begin_probation(key, fx);
        }
        self.update_offer(key);
    }

    fn begin_probation(&mut self, key: WorkerKey, fx: &mut Effects) {
        let worker = self.workers.at_mut(key);
        worker.evicted = false;
        worker.was_stuck = false;
        if worker.probation {
            return;
        }
        worker.probation = true;
        let worker = worker.id.clone();
        self.emit(Event::ProbationBegan { worker }, fx);
    }

    /// Keeps the hold's counts.
    pub(super) fn recount(&mut self, key: WorkerKey, counted: Counted) {
        let before = core::mem::replace(&mut self.workers.at_mut(key).counted, counted);
        let weigh = |counted| match counted {
            Counted::No => (0, 0),
            Counted::Fine => (1, 0),
            Counted::Failing => (1, 1),
        };
        let ((was_tracked, was_failing), (tracked, failing)) = (weigh(before), weigh(counted));
        self.hold.tracked = self.hold.tracked + tracked - was_tracked;
        self.hold.failing = self.hold.failing + failing - was_failing;
    }

    fn is_held(&mut self, worker_counts: bool, fx: &mut Effects) -> bool {
        let held = worker_counts && hold(self.hold.tracked, self.hold.failing) == Hold::Held;
        if held && !self.hold.active {
            self.hold.active = true;
            self.report(Notice::HoldBegan { failing: self.hold.failing, tracked: self.hold.tracked }, fx);
        }
        held
    }

    pub fn holding_eviction(&self) -> bool {
        self.hold.active && hold(self.hold.tracked, self.hold.failing) == Hold::Held
    }

    /// Looks after one worker: probe it, judge it, and do what its verdict asks for by now.
    pub(super) fn tend_worker(&mut self, key: WorkerKey, fx: &mut Effects) {
        self.probe_if_due(key, fx);
        self.judge_worker(key, fx);
        if self.evict_if_due(key, fx) || self.forget_if_due(key, fx) {
            return;
        }
        self.readmit_if_due(key, fx);
        let worker = self.workers.at_mut(key);
        // One that is away is forgotten by how long it has held nothing: that is still needed.
        let here = worker.judged.signals.live && !matches!(worker.link, Link::Expected);
        if here && worker.held == 0 && worker.work.as_ref().is_some_and(|work| work.tally.is_empty(self.awake)) {
            worker.work = None;
        }
        self.arm_worker(key);
    }

    fn probe_if_due(&mut self, key: WorkerKey, fx: &mut Effects) {
        let now = self.awake;
        let Link::Session { session, liveness } = &mut self.workers.at_mut(key).link else { return };
        if !liveness.is_closed() && liveness.next_probe_at(&self.rules.liveness) <= now {
            let probe = liveness.probe_due(now, &self.rules.liveness);
            let session = *session;
            self.send(session, ToWorker::Probe { probe }, fx);
        }
    }

    /// Returns whether the worker is gone.
    fn evict_if_due(&mut self, key: WorkerKey, fx: &mut Effects) -> bool {
        let worker = self.workers.at(key);
        let due =
            evict_at(&self.rules.eviction, worker.judged.verdict, worker.since).is_some_and(|at| at <= self.awake);
        if worker.evicted || !due {
            return false;
        }
        let counts = worker.is_session();
        if matches!(worker.link, Link::Http { .. }) && worker.judged.verdict == Verdict::Suspect {
            // Its leases are over by definition; it is forgotten when it stays away.
            return false;
        }
        if self.is_held(counts, fx) {
            return false;
        }
        let worker = self.workers.at(key);
        if worker.held == 0 && worker.session().is_none() {
            // Gone, and holding nothing: there is nobody to keep work from.
            self.forget_worker(key, fx);
            return true;
        }
        self.evict(key, fx);
        false
    }

    fn evict(&mut self, key: WorkerKey, fx: &mut Effects) {
        let worker = self.workers.at(key);
        let (id, incarnation, connected) = (worker.id.clone(), worker.incarnation.clone(), worker.session().is_some());
        let evictions = self.state.worker(&id).map_or(0, |record| record.evictions) + 1;
        let readmit_at = self.log_now() + readmit_after(&self.rules.eviction, evictions);
        self.emit(Event::WorkerEvicted { worker: id.clone(), incarnation, readmit_at }, fx);
        let held = self.held_by_worker(key);
        let claims: Vec<_> = held.iter().map(|attempt| self.state.claim_of(*attempt)).collect();
        for (attempt, claim) in held.into_iter().zip(&claims) {
            self.end(attempt, Ending::Evicted, fx);
            self.send_cancel(key, *claim, CancelWhy::Evicted, fx);
        }
        let worker = self.workers.at_mut(key);
        worker.evicted = true;
        worker.probation = false;
        let rare = worker.rare();
        rare.readmit_at = readmit_at;
        rare.unconfirmed = if connected { claims } else { Vec::new() };
        self.recount(key, Counted::No);
        self.update_offer(key);
        self.report(Notice::WorkerEvicted { worker: id }, fx);
    }

    /// An evicted worker gets work again as a new incarnation, or when its time is over and what it held has stopped.
    pub(super) fn readmit_if_due(&mut self, key: WorkerKey, fx: &mut Effects) {
        let worker = self.workers.at(key);
        if !worker.evicted {
            return;
        }
        let another_life = !self.is_evicted_as(&worker.id, &worker.incarnation);
        let rare = worker.rare.as_ref().expect("an evicted worker has its time");
        let served = rare.readmit_at <= self.log_now() && rare.unconfirmed.is_empty();
        if self.live_signal(worker).is_ok() && (another_life || served) {
            self.workers.at_mut(key).work = None;
            self.begin_probation(key, fx);
            self.touch(key);
        }
    }

    /// Returns whether the worker is gone.
    fn forget_if_due(&mut self, key: WorkerKey, fx: &mut Effects) -> bool {
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

    fn forget_worker_at(&self, worker: &Worker) -> Option<Awake> {
        if worker.held > 0 {
            return None;
        }
        let empty_since = worker.work.as_ref().and_then(|work| work.empty_since).unwrap_or(worker.since);
        let idle = match &worker.link {
            Link::Http { liveness, poll } if *poll == crate::state::NO_KEY => liveness.forget_at(&self.rules.liveness),
            Link::Http { .. } => return None,
            Link::Session { .. } if worker.judged.signals.live => return None,
            Link::Session { .. } => forget_at(&self.rules.hold, worker.since, Some(empty_since))?,
            Link::Expected => empty_since + self.rules.liveness.forget_after,
        };
        if worker.evicted {
            let left = worker.rare.as_ref().map_or(self.log_now(), |rare| rare.readmit_at).since(self.log_now());
            return Some(idle.max(self.awake + left));
        }
        Some(idle)
    }

    /// Arms the worker's timer at the next instant at which it needs looking after.
    pub(super) fn arm_worker(&mut self, key: WorkerKey) {
        let now = self.awake;
        let worker = self.workers.at(key);
        let rules = &self.rules;
        let mut at = Awake::MAX;
        let mut consider = |candidate: Option<Awake>| {
            if let Some(candidate) = candidate {
                at = at.min(candidate.max(now + core::time::Duration::from_millis(1)));
            }
        };
        match &worker.link {
            Link::Session { liveness, .. } if !liveness.is_closed() => {
                consider(Some(liveness.next_probe_at(&rules.liveness)));
                consider(liveness.next_change(&rules.liveness, now));
            }
            Link::Http { liveness, .. } => consider(liveness.next_change(&rules.liveness, now)),
            Link::Session { .. } | Link::Expected => {}
        }
        if worker.work.is_some() {
            consider(self.progress_signal(worker).changes_at);
            consider(worker.work.as_ref().and_then(|work| work.tally.next_decay(now)));
        }
        if worker.evicted {
            let left = worker.rare.as_ref().map_or(self.log_now(), |rare| rare.readmit_at).since(self.log_now());
            consider((!left.is_zero()).then(|| now + left));
        } else if let Some(due) = evict_at(&rules.eviction, worker.judged.verdict, worker.since) {
            let http_suspect = matches!(worker.link, Link::Http { .. }) && worker.judged.verdict == Verdict::Suspect;
            consider((!http_suspect).then(|| if due <= now { now + rules.hold.recheck_every } else { due }));
        }
        consider(self.forget_worker_at(worker));
        let worker = self.workers.at_mut(key);
        if !worker.timer.is_none() {
            if worker.armed <= at {
                return;
            }
            self.soon.remove(worker.timer);
            worker.timer = TimerKey::NONE;
        }
        if at < Awake::MAX {
            worker.armed = at;
            worker.timer = self.soon.insert(at.as_ms(), Soon::Worker(key));
        }
    }

    /// Judges every worker anew: what an operator may ask for, and what nothing else does.
    pub fn judge_all(&self) -> impl Iterator<Item = Verdict> + '_ {
        self.workers.iter().map(|(key, _)| self.judgement(key).0.verdict)
    }

    /// Ready work that workers with room could take, and hand-outs that are not durable yet.
    pub(super) fn demand(&self) -> u64 {
        let mut open = 0;
        for demand in self.dispatch.demand().filter(|demand| demand.ready > 0 && demand.capable && !demand.paused) {
            let groups = self.dispatch.groups_of(demand.queue, demand.kind);
            let free: u64 = groups
                .iter()
                .flat_map(|group| self.dispatch.offering(*group))
                .map(|worker| u64::from(self.free_slots(worker)))
                .sum();
            open += demand.ready.min(free);
        }
        open + self.unsynced.iter().map(|step| u64::from(step.handouts)).sum::<u64>() + u64::from(self.handouts)
    }

    /// Since when there is something to hand out that is not.
    pub(super) fn note_demand(&mut self) {
        let handed_out = self.handouts > 0 || self.unsynced.iter().any(|step| step.handouts > 0);
        let open = handed_out || (self.dispatch.has_dirty() && self.demand() > 0);
        if !open {
            self.flow.demand_since = None;
        } else if self.flow.demand_since.is_none() {
            self.flow.demand_since = Some(self.awake);
        }
    }

    /// This manager as a gate would judge it.
    pub fn own_judgement(&self) -> Judgement {
        let now = self.awake;
        let done = self.flow.handed_out.as_ref().map_or(0, |tally| u64::from(tally.counts(now).0));
        let sample =
            FlowSample { done, demand: self.demand(), last_done: self.flow.last, demand_since: self.flow.demand_since };
        let progress = flow(&self.rules.progress, now, &sample);
        let quorum = self.rules.quorum.has_quorum(self.now.mono, self.seat.confirmed_at());
        judge(Ok(()), manager_ready(quorum, self.serving(), self.workers.len()), &progress)
    }
}
