//! Verdicts on workers, and on this manager itself. What follows from a bad one is decided in `evict`.
//!
//! A worker is judged when a signal may have changed, and at the instants at which one changes by time alone; never by
//! going through all of them. The counts of those that are away and of those that count for the hold are kept as
//! verdicts change.
//!
//! A worker without a session that holds nothing and has no poll open is between two polls, which takes nothing from its
//! verdict, until it has not called for `answer_within`. Then it is *away*, and nobody judges it.

use crate::beat::Motion;
use crate::effect::{Effects, Notice};
use crate::event::Event;
use crate::health::progress::{flow, worker as worker_progress};
use crate::health::verdict::{evict_at, judge, manager_ready, worker_ready};
use crate::health::{
    Judgement, NotLive, Progress, ProgressVerdict, Signals, UnmovingAttempt, Verdict, WorkerSample,
};
use crate::message::ToWorker;
use crate::time::Awake;

use super::Manager;
use super::live::LiveAttempt;
use super::workers::{HoldStanding, Link, Worker, WorkerKey};

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
        self.end_hold_if_clear(fx);
    }

    /// One that was suspect and is heard of is judged now, and not when the step ends: what it asks for next counts.
    pub(super) fn judge_if_suspect(&mut self, key: WorkerKey, fx: &mut Effects) {
        if self.workers.at(key).judged.verdict == Verdict::Suspect {
            self.judge_worker(key, fx);
        }
    }

    pub(super) fn handle_probe_answer(&mut self, key: WorkerKey, probe: u32, fx: &mut Effects) {
        let now = self.awake;
        let worker = self.workers.at_mut(key);
        if let Link::Session { liveness, .. } = &mut worker.link
            && liveness.answered(probe, now)
            && !worker.judged.signals.live
        {
            self.judge_if_suspect(key, fx);
            self.touch(key);
        }
    }

    /// One that cannot be asked is never silent: its leases speak for it, or it is away.
    pub(super) fn live_signal(&self, worker: &Worker) -> Result<(), NotLive> {
        match &worker.link {
            Link::Session { liveness, .. } => liveness.judge(&self.rules.liveness, self.awake),
            // It has as long as its leases to be heard of; until then it is not judged.
            Link::Http { .. } | Link::Expected => Ok(()),
        }
    }

    /// Neither works nor asks for work, and has not said so for a while, or said goodbye; or it was not heard of since a
    /// takeover, and its leases are over.
    pub(super) fn is_away(&self, worker: &Worker) -> bool {
        match &worker.link {
            Link::Http { liveness, poll: None } if worker.held == 0 => {
                liveness.is_away(&self.rules.liveness, self.awake)
            }
            Link::Expected => worker.held == 0,
            _ => false,
        }
    }

    /// Nothing is to be said of a worker that has not been heard of since the takeover: its leases wait for it.
    fn progress_signal(&self, worker: &Worker) -> ProgressVerdict {
        let (Some(work), false) = (&worker.work, matches!(worker.link, Link::Expected)) else {
            return worker_progress(&self.rules.progress, self.awake, &WorkerSample::default());
        };
        let (succeeded, failed, failed_jobs) = work.tally.counts(self.awake);
        let mut sample = WorkerSample {
            succeeded,
            failed,
            failed_jobs,
            moving: work.moving,
            unmoving: work.unmoving.len(),
            last_step: work.last_step,
            oldest_unmoving: None,
            first_failure: work.tally.first_failure(),
        };
        // Only where nothing moves does it matter since when. An attempt whose clock is over ends by that, in this step
        // or, where very many do, in one of the next: its worker is no longer judged by it, whichever it is.
        if sample.unmoving > 0 && work.moving == 0 && succeeded == 0 {
            sample.oldest_unmoving = sample.first_of(work.unmoving.first_of_each_patience(self.awake));
            let one_by_one = || WorkerSample { oldest_unmoving: sample.first_of(self.unmoving(worker)), ..sample };
            debug_assert_eq!(
                worker_progress(&self.rules.progress, self.awake, &sample),
                worker_progress(&self.rules.progress, self.awake, &one_by_one()),
            );
        }
        worker_progress(&self.rules.progress, self.awake, &sample)
    }

    /// Each of them, one by one: what [`HeldWork::unmoving`] has in order.
    fn unmoving<'a>(&'a self, worker: &'a Worker) -> impl Iterator<Item = UnmovingAttempt> + 'a {
        let held = worker.attempts(&self.live).map(|key| &self.live[key]);
        held.filter(|live| live.motion == Motion::Unmoving)
            .map(LiveAttempt::unmoving)
            .filter(|unmoving| unmoving.stuck_at > self.awake)
    }

    /// The verdict as of now, readiness included. One that is away keeps the verdict that it had.
    pub(super) fn judgement(&self, key: WorkerKey) -> Judgement {
        let worker = self.workers.at(key);
        if self.is_away(worker) {
            let signals = Signals { live: false, ready: false, progress: Progress::Idle };
            return Judgement { signals, ..worker.judged };
        }
        let progress = self.progress_signal(worker);
        let accepting = worker.accepting && !worker.drained && !worker.evicted;
        let between_polls = matches!(worker.link, Link::Http { poll: None, .. }) && worker.held == 0;
        let ready = worker_ready(accepting, if between_polls { 1 } else { self.free_slots(key) });
        judge(self.live_signal(worker), ready, &progress)
    }

    pub(super) fn judge_worker(&mut self, key: WorkerKey, fx: &mut Effects) {
        let away = self.is_away(self.workers.at(key));
        self.set_away(key, away);
        if away {
            return self.update_offer(key);
        }
        let judged = self.judgement(key);
        let now = self.awake;
        let worker = self.workers.at_mut(key);
        let before = core::mem::replace(&mut worker.judged, judged);
        if before.verdict != judged.verdict {
            worker.since = now;
        }
        if let Some(work) = &mut worker.work {
            let stuck = judged.signals.progress == Progress::Stuck;
            work.stuck_since = if stuck { work.stuck_since.or(Some(now)) } else { None };
        }
        let is_trouble = |verdict| !matches!(verdict, Verdict::Healthy | Verdict::Busy);
        let is_news = before.verdict != judged.verdict && (is_trouble(before.verdict) || is_trouble(judged.verdict));
        let failing = matches!(judged.verdict, Verdict::Suspect | Verdict::Stuck);
        let counted = match &worker.link {
            Link::Session { .. } if worker.evicted => HoldStanding::No,
            Link::Session { .. } if failing => HoldStanding::Failing,
            Link::Session { .. } => HoldStanding::Fine,
            Link::Http { .. } | Link::Expected => HoldStanding::No,
        };
        let id = worker.id.clone();
        self.recount(key, counted);
        if is_news {
            self.report(Notice::VerdictChanged { worker: id.clone(), from: before.verdict, to: judged }, fx);
        }
        let recovered = before.verdict == Verdict::Suspect && judged.verdict != Verdict::Suspect;
        if recovered && self.state.worker(&id).is_some_and(|record| record.grants > 0) {
            self.emit(Event::GrantsReset { worker: id }, fx);
        }
        let worker = self.workers.at_mut(key);
        worker.was_stuck |= judged.verdict == Verdict::Stuck;
        if !worker.evicted && worker.was_stuck && judged.signals.live && judged.verdict != Verdict::Stuck {
            self.begin_probation(key, fx);
        }
        self.update_offer(key);
    }

    /// Keeps the count of those that are away.
    pub(super) fn set_away(&mut self, key: WorkerKey, away: bool) {
        let before = core::mem::replace(&mut self.workers.at_mut(key).away, away);
        self.away = self.away + usize::from(away) - usize::from(before);
    }

    /// How many workers there are to work with.
    pub(super) fn present_workers(&self) -> usize {
        self.workers.len() - self.away
    }

    /// Looks after all whose timer has fired.
    pub(super) fn check_due_workers(&mut self, fx: &mut Effects) {
        let mut due = core::mem::take(&mut self.to_check);
        due.drain(..).for_each(|key| self.check_worker(key, fx));
        self.to_check = due;
    }

    /// Looks after one worker: probe it, judge it, and do what its verdict asks for by now.
    fn check_worker(&mut self, key: WorkerKey, fx: &mut Effects) {
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
            Link::Http { liveness, .. } => {
                consider(Some(liveness.live_until(&rules.liveness)).filter(|at| *at > now));
            }
            Link::Session { .. } | Link::Expected => {}
        }
        if worker.work.is_some() {
            consider(self.progress_signal(worker).changes_at);
            consider(worker.work.as_ref().and_then(|work| work.tally.next_decay(now)));
        }
        if worker.evicted {
            consider(self.readmit_at(worker).filter(|at| *at > now));
        } else if !worker.away
            && let Some(due) = evict_at(&rules.eviction, worker.judged.verdict, worker.failing_since())
        {
            consider(Some(if due <= now { now + rules.hold.recheck_every } else { due }));
        }
        consider(self.forget_worker_at(worker));
        let worker = self.workers.at_mut(key);
        self.timers.arm_worker(key, at, &mut worker.timer, &mut worker.armed);
    }

    /// Judges every worker anew: what an operator may ask for, and what nothing else does.
    pub fn judge_all(&self) -> impl Iterator<Item = Verdict> + '_ {
        self.workers.iter().map(|(key, _)| self.judgement(key).verdict)
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

    /// This manager as a gate would judge it.
    pub fn own_judgement(&self) -> Judgement {
        self.own_judgement_while(true)
    }

    /// Whether the node still wants calls, or is about to stop, only the shell knows.
    pub fn own_judgement_while(&self, accepting: bool) -> Judgement {
        let now = self.own_awake();
        let progress = flow(&self.rules.progress, now, &self.flow.sample(now, self.demand()));
        let quorum = self.rules.quorum.has_quorum(self.now.mono, self.seat.confirmed_at());
        judge(Ok(()), manager_ready(quorum, accepting && self.serving(), self.present_workers()), &progress)
    }
}
