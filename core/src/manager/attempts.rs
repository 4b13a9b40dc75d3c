//! Running attempts: beats, outcomes, and every way in which an attempt ends.

use core::time::Duration;
use std::sync::Arc;

use crate::beat::{AttemptClock, QuietSpent};
use crate::effect::{Answer, Effects, ManagerNotice};
use crate::event::{Event, NextState, Verb, Via};
use crate::fence::AttemptFence;
use crate::health::HttpLiveness;
use crate::ids::{Claim, Name};
use crate::job::draft::{DraftProblem, Invalid, MAX_SPAN};
use crate::job::retry::next;
use crate::job::{Ending, Next, WorkflowState};
use crate::late::{LateQuestion, LateReport};
use crate::limits::Limit;
use crate::message::{Beat, BeatAccepted, BeatAnswer, CancelWhy, EndReport, SettleAnswer, Settlement, ToWorker};
use crate::refusal::Refusal;
use crate::state::{AttemptKey, ClaimStanding, WorkflowKey};

use super::Manager;
use super::fleet::{FleetWorker, WorkerKey, WorkerTransport};

/// Whom the end of an attempt speaks against.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Blame {
    Worker,
    Nobody,
}

impl Manager {
    pub(super) fn handle_beat_call(&mut self, beats: Vec<Beat>, fx: &mut Effects) -> Result<Answer, Refusal> {
        Ok(Answer::Beats(self.handle_beats(beats, None, fx)?))
    }

    pub(super) fn handle_settle_call(&mut self, list: Vec<Settlement>, fx: &mut Effects) -> Result<Answer, Refusal> {
        Ok(Answer::Settled(self.handle_settlements(list, None, fx)?))
    }

    /// `by` is the worker whose session it came on; claims that came by HTTP are proven by their receipt.
    pub(super) fn handle_beats(
        &mut self,
        beats: Vec<Beat>,
        by: Option<WorkerKey>,
        fx: &mut Effects,
    ) -> Result<Vec<BeatAnswer>, Refusal> {
        self.within(Limit::FrameItems, beats.len())?;
        let mut answers = Vec::with_capacity(beats.len());
        for beat in beats {
            let claim = beat.claim;
            let answer = self.handle_beat(beat, by, fx);
            self.count_refusal(&answer);
            answers.push(BeatAnswer { claim, answer });
        }
        Ok(answers)
    }

    pub(super) fn handle_settlements(
        &mut self,
        list: Vec<Settlement>,
        by: Option<WorkerKey>,
        fx: &mut Effects,
    ) -> Result<Vec<SettleAnswer>, Refusal> {
        self.within(Limit::FrameItems, list.len())?;
        let mut answers = Vec::with_capacity(list.len());
        for settlement in list {
            let claim = settlement.claim;
            let answer = self.handle_settlement(settlement, by, fx);
            self.count_refusal(&answer);
            answers.push(SettleAnswer { claim, answer });
        }
        Ok(answers)
    }

    fn count_refusal<T>(&mut self, answer: &Result<T, Refusal>) {
        if let Err(refusal) = answer {
            self.refusals.note(refusal);
        }
    }

    fn handle_beat(&mut self, beat: Beat, by: Option<WorkerKey>, fx: &mut Effects) -> Result<BeatAccepted, Refusal> {
        self.check_beat(&beat)?;
        let key = self.current(&beat.claim, Verb::Beat, by, fx)?;
        self.watch().note_call(key);
        let now = self.awake;
        if self.state.workflow(self.fleet.live_mut(key).workflow).state == WorkflowState::Cancelling {
            // The attempt was asked to stop: being active earns no more time.
            let lease_remaining = self.fleet.live_mut(key).clock.lease_end().since(now);
            return Ok(BeatAccepted { lease_remaining, cancel: true, quiet: None });
        }
        let live = self.fleet.live_mut(key);
        let (worker, before, was_quiet) = (live.worker, live.clock.lease_end(), live.clock.quiet_until().is_some());
        let quiet = self.begin_quiet(key, &beat, fx)?;
        if let Some(data) = beat.checkpoint {
            self.handle_checkpoint(key, beat.claim, data, fx);
        }
        let renews = self.rules.lease.enabled;
        let live = self.fleet.live_mut(key);
        let reported = beat.watermark.is_some_and(|units| live.clock.progress(now, units, beat.total));
        let stepped =
            live.clock.beat(now, if renews { live.lease } else { Duration::ZERO }, live.require_progress) || reported;
        if beat.note.is_some() {
            live.note = beat.note;
        }
        let lease_end = live.clock.lease_end();
        self.fleet.move_lease(worker, before, Some(lease_end), now);
        if stepped {
            self.end_local_stuck(key, fx);
            self.watch().note_step(key);
        } else if was_quiet || quiet.is_some() {
            // A quiet section moves, though it is no step.
            self.end_local_stuck_if_covered(key, fx);
            self.watch().update_motion(key);
        }
        self.mark_progress(key, beat.claim, fx);
        self.watch().arm(key);
        Ok(BeatAccepted { lease_remaining: lease_end.since(now), cancel: false, quiet })
    }

    fn check_beat(&self, beat: &Beat) -> Result<(), Refusal> {
        self.within(Limit::NoteBytes, beat.note.as_ref().map_or(0, |note| note.len()))?;
        self.within(Limit::CheckpointBytes, beat.checkpoint.as_ref().map_or(0, |data| data.len()))?;
        match beat.quiet {
            Some(value) if value > MAX_SPAN => {
                let problem = DraftProblem::SpanOutOfRange { value, min: Duration::ZERO, max: MAX_SPAN };
                Err(Refusal::Invalid(Invalid { field: "quiet_s", problem }))
            }
            _ => Ok(()),
        }
    }

    /// Ends the quiet section that this beat interrupts, and begins the one that it asks for. Refuses before it changes.
    fn begin_quiet(&mut self, key: AttemptKey, beat: &Beat, fx: &mut Effects) -> Result<Option<Duration>, Refusal> {
        let (now, budget) = (self.awake, self.rules.quiet_budget);
        let live = self.fleet.live_mut(key);
        let asked = beat.quiet.filter(|quiet| !quiet.is_zero());
        let mut clock = live.clock;
        let ended = clock.end_quiet(now);
        let allowed = match asked {
            Some(max) => Some(clock.begin_quiet(now, max, budget).map_err(|QuietSpent| Refusal::QuietSpent)?),
            None => None,
        };
        live.clock = clock;
        if let Some(used) = ended {
            self.note_quiet_end(key, beat.claim, used, allowed.is_some(), fx);
        }
        if let Some(allowed) = allowed {
            self.note_quiet_begin(key, beat.claim, allowed, fx);
        }
        Ok(allowed)
    }

    /// Logs the watermark now and then, so that a takeover knows how far the handler was.
    fn mark_progress(&mut self, key: AttemptKey, claim: Claim, fx: &mut Effects) {
        let (now, every) = (self.awake, self.rules.mark_every);
        let live = self.fleet.live_mut(key);
        let Some((watermark, total)) = live.clock.watermark() else { return };
        let mark = self.state.attempt(key).mark;
        if mark == Some((watermark, total)) || (mark.is_some() && now < live.marked_at + every) {
            return;
        }
        live.marked_at = now;
        self.emit(Event::ProgressMarked { claim, watermark, total }, fx);
    }

    fn handle_settlement(
        &mut self,
        settlement: Settlement,
        by: Option<WorkerKey>,
        fx: &mut Effects,
    ) -> Result<(), Refusal> {
        let Settlement { claim, report, checkpoint } = settlement;
        self.within(Limit::CheckpointBytes, checkpoint.as_ref().map_or(0, |data| data.len()))?;
        let verb = self.check_report(&report)?;
        let ending = report.into_ending();
        self.confirm_ended(&claim, by, fx);
        if self.state.answer_if_over(&claim, Some(&ending)) == Some(Ok(())) {
            return Ok(());
        }
        let key = match self.current(&claim, verb, by, fx) {
            Ok(key) => key,
            Err(Refusal::NotInMemory { .. }) => {
                let question = LateQuestion::Claim { claim, outcome: Some(ending) };
                return Err(LateReport::refusal(claim.job, question));
            }
            Err(refusal) => return Err(refusal),
        };
        self.watch().note_call(key);
        self.replace_checkpoint(key, checkpoint);
        self.end(key, ending, fx);
        Ok(())
    }

    fn check_report(&self, report: &EndReport) -> Result<Verb, Refusal> {
        let (verb, delay) = match report {
            EndReport::Succeed { result } => {
                self.within(Limit::ResultBytes, result.len())?;
                (Verb::Succeed, None)
            }
            EndReport::Fail { error, delay, .. } => {
                self.within(Limit::ErrorBytes, error.len())?;
                (Verb::Fail, *delay)
            }
            EndReport::Release { delay } => (Verb::Release, *delay),
        };
        match delay {
            Some(value) if value > MAX_SPAN => {
                let problem = DraftProblem::SpanOutOfRange { value, min: Duration::ZERO, max: MAX_SPAN };
                Err(Refusal::Invalid(Invalid { field: "delay_s", problem }))
            }
            _ => Ok(verb),
        }
    }

    /// The running attempt that a claim speaks for, or why it may not.
    pub(super) fn current(
        &mut self,
        claim: &Claim,
        verb: Verb,
        by: Option<WorkerKey>,
        fx: &mut Effects,
    ) -> Result<AttemptKey, Refusal> {
        let refusal = match self.running(claim) {
            Ok(key) if by.is_none_or(|by| self.fleet.live_mut(key).worker == by) => return Ok(key),
            // Somebody else's: a claim that came on a session is that session's worker's or nobody's.
            Ok(_) => return Err(Refusal::StaleAttempt),
            Err(refusal) => refusal,
        };
        let known = self.state.ended_attempt(claim);
        if known.is_some_and(|ended| ended.refused & refusal.kind().bit() == 0) {
            self.emit(Event::ClaimRefused { claim: *claim, verb, refusal: refusal.kind() }, fx);
        }
        Err(refusal)
    }

    /// The running attempt that a claim names, whoever holds it; or why it names none.
    pub(super) fn running(&self, claim: &Claim) -> Result<AttemptKey, Refusal> {
        match self.state.standing(claim) {
            ClaimStanding::Current(key) => Ok(key),
            ClaimStanding::NoSuchJob => Err(LateReport::of_claim(claim)),
            ClaimStanding::NoSuchWorkflow => Err(Refusal::UnknownWorkflow),
            ClaimStanding::NeverHandedOut => Err(Refusal::UnknownAttempt),
            ClaimStanding::Superseded(_) | ClaimStanding::Ended(_) => match self.state.answer_if_over(claim, None) {
                Some(Err(refusal)) => Err(refusal),
                _ => unreachable!("whoever says nothing of an outcome cannot repeat one"),
            },
        }
    }

    /// Ends a running attempt, with what that says about its worker.
    pub(super) fn end(&mut self, key: AttemptKey, ending: Ending, fx: &mut Effects) {
        let blame = if ending.is_workers_failure() { Blame::Worker } else { Blame::Nobody };
        self.end_blaming(key, ending, blame, fx);
    }

    /// Ends a running attempt: the one place that decides what becomes of its workflow.
    pub(super) fn end_blaming(&mut self, key: AttemptKey, ending: Ending, blame: Blame, fx: &mut Effects) {
        let live = self.fleet.live_mut(key);
        let (worker, workflow) = (live.worker, live.workflow);
        let is_lost = matches!(ending, Ending::Stuck | Ending::LeaseExpired | Ending::Crashed);
        let note: Option<Arc<str>> = live.note.take().filter(|_| is_lost).map(Arc::from);
        let (claim, job) = (self.state.claim_of(key), self.state.workflow(workflow).job);
        let was_local_stuck = self.is_local_stuck(job, claim);
        let then = self.next_state(workflow, &ending);
        let succeeded = matches!(ending, Ending::Succeeded { .. });
        let failed = blame == Blame::Worker && then != NextState::Cancelled;
        let mut others = match then {
            NextState::TimedOut => self.attempts_of(job),
            _ => Vec::new(),
        };
        others.retain(|(other, _)| *other != claim);
        if !succeeded {
            self.flush_checkpoint(key, claim, fx);
        }
        let lost = is_lost.then(|| ManagerNotice::AttemptLost {
            claim,
            kind: self.kind_of(workflow),
            worker: self.state.attempt(key).worker.clone(),
            ending: ending.kind(),
            then,
            note: note.clone(),
        });
        let end = self.end_by_attempt(workflow, &ending, then);
        self.emit(Event::AttemptEnded { claim, ending, then, end, note }, fx);
        if was_local_stuck && !self.state.job(job).has_ended() {
            self.local_timeout_over(job, fx);
        }
        if let Some(lost) = lost {
            self.report(lost, fx);
        }
        self.stop_timed_out(others, fx);
        if succeeded {
            self.count_success(worker, fx);
        } else if failed {
            self.fleet.count_failure(worker, claim, self.awake);
        }
    }

    fn kind_of(&self, key: WorkflowKey) -> Name {
        let workflow = self.state.workflow(key);
        self.state.job(workflow.job).spec.workflows[usize::from(workflow.index)].kind.clone()
    }

    /// The job of these attempts was timed out, and they ended with it: whoever runs them is told to stop.
    pub(super) fn stop_timed_out(&mut self, attempts: Vec<(Claim, WorkerKey)>, fx: &mut Effects) {
        for (claim, worker) in attempts {
            self.send_cancel(worker, claim, CancelWhy::TimedOut, fx);
            // One that was cancelling ended as cancelled, which is nobody's failure.
            if self.state.ended_attempt(&claim).is_some_and(|ended| ended.ending.is_workers_failure()) {
                self.fleet.count_failure(worker, claim, self.awake);
            }
        }
    }

    fn next_state(&mut self, key: WorkflowKey, ending: &Ending) -> NextState {
        let workflow = self.state.workflow(key);
        let job = self.state.job(workflow.job);
        if workflow.state == WorkflowState::Cancelling {
            // What was done in time counts; all else is what was asked for, and a reported error is kept with it.
            return match ending {
                Ending::Succeeded { .. } => NextState::Succeeded,
                _ => NextState::Cancelled,
            };
        }
        let counted = if ending.counts() { workflow.counted } else { workflow.counted - 1 };
        let spent = workflow.handouts >= AttemptFence::MAX_HANDOUTS;
        let (retry, on_stuck) = (job.spec.retry, job.spec.on_stuck);
        let draw = if matches!(ending, Ending::Succeeded { .. }) { 0 } else { self.draw() };
        match next(ending, counted, &retry, on_stuck, draw) {
            Next::Succeed => NextState::Succeeded,
            Next::Requeue | Next::Wait(_) if spent => NextState::Failed,
            Next::Requeue => NextState::Ready,
            Next::Wait(delay) => NextState::Delayed { until: self.log_now() + delay },
            Next::DeadLetter => NextState::Failed,
            Next::TimeOut => NextState::TimedOut,
            Next::Cancel => NextState::Cancelled,
        }
    }

    fn count_success(&mut self, worker: WorkerKey, fx: &mut Effects) {
        self.fleet.count_success(worker, self.awake);
        if self.fleet.get(worker).is_some_and(|known| known.probation) {
            let known = self.fleet.worker_mut(worker);
            known.probation = false;
            let id = known.id.clone();
            self.emit(Event::ProbationEnded { worker: id }, fx);
            self.offers().update(worker);
        }
    }

    /// Takes up an attempt after a takeover: it gets its logged lease and `seat_ttl` to be heard of.
    pub(super) fn resume_attempt(&mut self, key: AttemptKey) {
        let attempt = self.state.attempt(key);
        let worker = match self.fleet.find(&attempt.worker) {
            Some(worker) => worker,
            None => {
                let link = match attempt.via {
                    Via::Session => WorkerTransport::Expected,
                    Via::Http { .. } => {
                        let granted_until = self.logged_grant(&attempt.worker, &attempt.incarnation);
                        let liveness = HttpLiveness::first_called(self.awake, granted_until);
                        WorkerTransport::Http { liveness, poll: None }
                    }
                };
                let worker = FleetWorker::new(attempt.worker.clone(), attempt.incarnation.clone(), link, self.awake);
                self.add_worker(worker)
            }
        };
        let attempt = self.state.attempt(key);
        let mut clock =
            AttemptClock::resume(self.awake, attempt.lease + self.rules.seat_ttl, attempt.mark, attempt.quiet_used);
        let quiet = attempt.quiet;
        if let Some((began, allowed)) = quiet {
            let used = self.log_now().since(began).min(allowed);
            clock.resume_quiet(self.awake, used, allowed - used);
        }
        let granted_until = self.awake + attempt.granted_until.since(self.log_now());
        if granted_until > self.awake {
            clock.grant(granted_until);
        }
        self.watch().begin(key, clock, worker);
        self.resume_stuck(key);
        if let Some((began, allowed)) = quiet {
            let since = self.awake - self.log_now().since(began);
            self.resume_quiet_notes(key, since, allowed);
        }
    }

    pub(super) fn handle_attempt_timer(&mut self, key: AttemptKey, fx: &mut Effects) {
        let now = self.awake;
        let live = self.fleet.live_mut(key);
        live.timer = None;
        let (worker, workflow, stuck_after) = (live.worker, live.workflow, live.stuck_after);
        let quiet_used = if live.clock.quiet_over(now) { live.clock.end_quiet(now) } else { None };
        let (lease_end, stuck_at) = (live.clock.lease_end(), live.clock.stuck_at(stuck_after));
        let claim = self.state.claim_of(key);
        if let Some(used) = quiet_used {
            self.note_quiet_end(key, claim, used, false, fx);
        }
        self.note_due(key, claim, fx);
        if self.state.workflow(workflow).state == WorkflowState::Cancelling {
            if lease_end <= now {
                self.end(key, Ending::Cancelled, fx);
            } else {
                self.watch().update_motion(key);
                self.watch().arm(key);
            }
            return;
        }
        if lease_end <= now && lease_end <= stuck_at {
            self.end(key, Ending::LeaseExpired, fx);
            self.send_cancel(worker, claim, CancelWhy::LeaseExpired, fx);
        } else if stuck_at <= now && !self.leave_stuck_to_gate(key, fx) {
            self.end(key, Ending::Stuck, fx);
            self.send_cancel(worker, claim, CancelWhy::Stuck, fx);
        } else {
            self.watch().update_motion(key);
            self.watch().arm(key);
        }
    }

    pub(super) fn send_cancel(&mut self, worker: WorkerKey, claim: Claim, why: CancelWhy, fx: &mut Effects) {
        if let Some(session) = self.session_of(worker) {
            self.send(session, ToWorker::Cancel { claim, why }, fx);
        }
    }
}
