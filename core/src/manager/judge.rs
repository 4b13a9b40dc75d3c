//! Verdicts on workers, and on this manager itself. What follows from a bad one is decided in `evict`.
//!
//! A worker is judged when a signal may have changed, and at the instants at which one changes by time alone; never by
//! going through all of them. The counts of those that are away and of those that count for the hold are kept as
//! verdicts change.
//!
//! A worker without a session that holds nothing and has no poll open is between two polls, which takes nothing from its
//! verdict, until it has not called for `answer_within`. Then it is *away*, and nobody judges it.

use crate::effect::{Effects, ManagerNotice};
use crate::event::Event;
use crate::health::progress::flow;
use crate::health::verdict::{evict_at, judge, manager_ready, worker_ready};
use crate::health::{Judgement, ProgressSignal, Signals, Verdict};
use crate::message::ToWorker;
use crate::time::Awake;

use core::time::Duration;

use super::Manager;
use super::fleet::{HoldStanding, WorkerKey, WorkerTransport};

/// The measures by which a manager is judged from outside. The progress window is its own; instants are told as
/// durations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OwnHealth {
    /// The log has answered lately.
    pub has_quorum: bool,
    /// Set while the manager serves calls.
    pub serving: bool,
    /// Workers, without those that are away.
    pub workers: usize,
    pub free_slots: u64,
    /// Handed out within the progress window.
    pub done: u64,
    /// Workflows that could be handed out at the moment, and are not.
    pub demand: u64,
    /// The time for which there has been demand without anything handed out.
    pub unserved_for: Duration,
}

impl Manager {
    pub(super) fn judge_touched(&mut self, fx: &mut Effects) {
        while let Some(key) = self.fleet.pop_touched() {
            self.judge_worker(key, fx);
            self.arm_worker(key);
        }
        self.end_hold_if_clear(fx);
    }

    /// Judges a worker that was suspect and is heard of at once, and not when the step ends: what it asks for next
    /// counts.
    pub(super) fn judge_if_suspect(&mut self, key: WorkerKey, fx: &mut Effects) {
        if self.fleet.worker(key).judged.verdict == Verdict::Suspect {
            self.judge_worker(key, fx);
        }
    }

    pub(super) fn handle_probe_answer(&mut self, key: WorkerKey, probe: u32, fx: &mut Effects) {
        let now = self.awake;
        let worker = self.fleet.worker_mut(key);
        if let WorkerTransport::Session { liveness, .. } = &mut worker.link
            && liveness.answered(probe, now)
            && !worker.judged.signals.live
        {
            self.judge_if_suspect(key, fx);
            self.fleet.touch(key);
        }
    }

    /// The verdict as of now, readiness included. One that is away keeps the verdict that it had.
    pub(super) fn judgement(&self, key: WorkerKey) -> Judgement {
        let worker = self.fleet.worker(key);
        if worker.is_absent(&self.rules.liveness, self.awake) {
            let signals = Signals { live: false, ready: false, progress: ProgressSignal::Idle };
            return Judgement { signals, ..worker.judged };
        }
        let progress = self.fleet.progress(worker, &self.rules.progress, self.awake);
        let accepting = worker.accepting && !worker.drained && !worker.evicted;
        let between_polls = matches!(worker.link, WorkerTransport::Http { poll: None, .. }) && worker.held() == 0;
        let ready = worker_ready(accepting, if between_polls { 1 } else { self.free_slots(key) });
        judge(worker.live_signal(&self.rules.liveness, self.awake), ready, &progress)
    }

    pub(super) fn judge_worker(&mut self, key: WorkerKey, fx: &mut Effects) {
        let away = self.fleet.worker(key).is_absent(&self.rules.liveness, self.awake);
        self.fleet.set_away(key, away);
        if away {
            return self.offers().update(key);
        }
        let judged = self.judgement(key);
        let now = self.awake;
        let worker = self.fleet.worker_mut(key);
        let before = worker.set_judgement(judged, now);
        let is_trouble = |verdict| !matches!(verdict, Verdict::Healthy | Verdict::Busy);
        let is_news = before.verdict != judged.verdict && (is_trouble(before.verdict) || is_trouble(judged.verdict));
        let failing = matches!(judged.verdict, Verdict::Suspect | Verdict::Stuck);
        let counted = match &worker.link {
            WorkerTransport::Session { .. } if worker.evicted => HoldStanding::No,
            WorkerTransport::Session { .. } if failing => HoldStanding::Failing,
            WorkerTransport::Session { .. } => HoldStanding::Fine,
            WorkerTransport::Http { .. } | WorkerTransport::Expected => HoldStanding::No,
        };
        let id = worker.id.clone();
        self.fleet.recount(key, counted);
        if is_news {
            self.report(ManagerNotice::VerdictChanged { worker: id.clone(), from: before.verdict, to: judged }, fx);
        }
        let recovered = before.verdict == Verdict::Suspect && judged.verdict != Verdict::Suspect;
        if recovered && self.state.worker(&id).is_some_and(|record| record.grants > 0) {
            self.emit(Event::GrantsReset { worker: id }, fx);
        }
        let worker = self.fleet.worker_mut(key);
        worker.was_stuck |= judged.verdict == Verdict::Stuck;
        if !worker.evicted && worker.was_stuck && judged.signals.live && judged.verdict != Verdict::Stuck {
            self.begin_probation(key, fx);
        }
        self.offers().update(key);
    }

    /// Looks after all whose timer has fired.
    pub(super) fn check_due_workers(&mut self, fx: &mut Effects) {
        while let Some(key) = self.fleet.pop_due() {
            self.check_worker(key, fx);
        }
    }

    /// Looks after one worker: probe it, judge it, and do what its verdict asks for by now.
    fn check_worker(&mut self, key: WorkerKey, fx: &mut Effects) {
        self.probe_if_due(key, fx);
        self.judge_worker(key, fx);
        if self.evict_if_due(key, fx) || self.forget_if_due(key, fx) {
            return;
        }
        self.readmit_if_due(key, fx);
        let worker = self.fleet.worker(key);
        // One that is away is forgotten by how long it has held nothing: that is still needed.
        if worker.judged.signals.live && !matches!(worker.link, WorkerTransport::Expected) {
            self.fleet.forget_old_work(key, self.awake);
        }
        self.arm_worker(key);
    }

    fn probe_if_due(&mut self, key: WorkerKey, fx: &mut Effects) {
        let now = self.awake;
        let WorkerTransport::Session { session, liveness } = &mut self.fleet.worker_mut(key).link else { return };
        if !liveness.is_closed() && liveness.next_probe_at(&self.rules.liveness) <= now {
            let probe = liveness.probe_due(now, &self.rules.liveness);
            let session = *session;
            self.send(session, ToWorker::Probe { probe }, fx);
        }
    }

    /// Arms the worker's timer at the next instant at which it needs looking after.
    pub(super) fn arm_worker(&mut self, key: WorkerKey) {
        let now = self.awake;
        let worker = self.fleet.worker(key);
        let rules = &self.rules;
        let mut at = Awake::MAX;
        let mut consider = |candidate: Option<Awake>| {
            if let Some(candidate) = candidate {
                at = at.min(candidate.max(now + core::time::Duration::from_millis(1)));
            }
        };
        match &worker.link {
            WorkerTransport::Session { liveness, .. } if !liveness.is_closed() => {
                consider(Some(liveness.next_probe_at(&rules.liveness)));
                consider(liveness.next_change(&rules.liveness, now));
            }
            WorkerTransport::Http { liveness, .. } => {
                consider(Some(liveness.live_until(&rules.liveness)).filter(|at| *at > now));
            }
            WorkerTransport::Session { .. } | WorkerTransport::Expected => {}
        }
        self.fleet.next_progress_change(worker, &rules.progress, now).into_iter().for_each(&mut consider);
        if worker.evicted {
            consider(self.readmit_at(worker).filter(|at| *at > now));
        } else if !worker.is_away()
            && let Some(due) = evict_at(&rules.eviction, worker.judged.verdict, worker.failing_since())
        {
            consider(Some(if due <= now { now + rules.hold.recheck_every } else { due }));
        }
        consider(self.forget_worker_at(worker));
        let worker = self.fleet.worker_mut(key);
        self.timers.arm_worker(key, at, &mut worker.timer, &mut worker.armed);
    }

    /// Judges every worker anew: what an operator may ask for, and what nothing else does.
    pub fn judge_all(&self) -> impl Iterator<Item = Verdict> + '_ {
        self.fleet.iter().map(|(key, _)| self.judgement(key).verdict)
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
        open + self.durability.open_handouts()
    }

    /// Since when there is something to hand out that is not.
    pub(super) fn note_demand(&mut self) {
        let open = self.durability.has_open_handouts() || (self.dispatch.has_dirty() && self.demand() > 0);
        self.flow.note_demand(open, self.own_awake());
    }

    /// The measures by which others judge this manager.
    pub fn own_health(&self) -> OwnHealth {
        let now = self.own_awake();
        let sample = self.flow.sample(now, self.demand());
        let unserved_since = if sample.demand > 0 { sample.last_done.max(sample.demand_since) } else { None };
        OwnHealth {
            has_quorum: self.rules.quorum.has_quorum(self.now.mono, self.seat.confirmed_at()),
            serving: self.serving(),
            workers: self.fleet.present(),
            free_slots: self.fleet.iter().map(|(key, _)| u64::from(self.free_slots(key))).sum(),
            done: sample.done,
            demand: sample.demand,
            unserved_for: unserved_since.map_or(Duration::ZERO, |since| now.since(since)),
        }
    }

    /// This manager as a gate would judge it.
    pub fn own_judgement(&self) -> Judgement {
        self.own_judgement_while(true)
    }

    /// This manager's judgement. Whether the node still wants calls, or is about to stop, only the shell knows.
    pub fn own_judgement_while(&self, accepting: bool) -> Judgement {
        let now = self.own_awake();
        let progress = flow(&self.rules.progress, now, &self.flow.sample(now, self.demand()));
        let quorum = self.rules.quorum.has_quorum(self.now.mono, self.seat.confirmed_at());
        judge(Ok(()), manager_ready(quorum, accepting && self.serving(), self.fleet.present()), &progress)
    }
}
