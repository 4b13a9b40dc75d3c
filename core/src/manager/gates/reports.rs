//! Reports to gates.

use core::time::Duration;
use std::ops::Bound;
use std::sync::Arc;

use crate::effect::{Effect, Effects, ManagerNotice};
use crate::event::Event;
use crate::gate::message::{FinalStatus, Frame, FromDatacenter, Hello, JobOutline, JobReport, Outcome, WorkflowCounts};
use crate::health::DatacenterCounts;
use crate::health::Verdict;
use crate::ids::{Claim, JobId, Name, StreamId};
use crate::job::retry::next;
use crate::job::{Ending, JobSpec, Next, WorkflowState};
use crate::payload::Payload;
use crate::state::{AttemptKey, EndedAttempt, JobImage, JobKey};
use crate::time::Wall;
use crate::timeout::TimeoutReason;

use super::super::Manager;
use super::{GateStream, Round};

/// Reports in one frame.
const REPORTS_PER_FRAME: usize = 256;

impl Manager {
    pub(in crate::manager) fn handle_gate_opened(&mut self, stream: StreamId, datacenter: Name, fx: &mut Effects) {
        if self.gates.life == 0 {
            self.gates.life = self.draw().max(1);
        }
        let epochs = self.gates.jobs.iter().filter_map(|id| self.state.job(self.state.find(*id)?).epoch());
        let hello = Hello { datacenter, life: self.gates.life, epoch: epochs.max(), counts: self.datacenter_counts() };
        self.gates.streams.insert(stream, GateStream::default());
        self.send_to_gate(stream, FromDatacenter::Hello(hello), fx);
    }

    pub(super) fn send_to_gate(&mut self, stream: StreamId, message: FromDatacenter, fx: &mut Effects) {
        if !self.gates.streams.contains_key(&stream) {
            return;
        }
        self.gates.number += 1;
        let frame = Box::new(Frame { term: self.seat.term(), number: self.gates.number, message });
        self.push(Effect::SendGate { stream, frame }, fx);
    }

    fn send_to_leaders(&mut self, message: &FromDatacenter, fx: &mut Effects) {
        for stream in self.gates.leaders() {
            self.send_to_gate(stream, message.clone(), fx);
        }
    }

    /// Counts of this manager and its workers. Other managers of the datacenter are known to the shell alone, which
    /// adds them.
    fn datacenter_counts(&self) -> DatacenterCounts {
        let own = self.own_judgement();
        let mut counts = DatacenterCounts {
            managers: 1,
            managers_live: 1,
            managers_ready: u32::from(own.signals.ready),
            managers_stuck: u32::from(own.verdict == Verdict::Stuck),
            ..DatacenterCounts::default()
        };
        self.workers().for_each(|worker| worker.count(&mut counts));
        counts
    }

    /// Does what is due for gates: rounds of reports, and jobs that end without a gate's word.
    pub(in crate::manager) fn fire_for_gates(&mut self, fx: &mut Effects) {
        if self.gates.is_idle() {
            return;
        }
        self.fire_fallbacks(fx);
        if self.gates.has_leader() && self.gates.report_at <= self.now.mono {
            self.gates.report_at = self.now.mono + self.rules.gate.progress_every;
            self.send_to_leaders(&FromDatacenter::Health(self.datacenter_counts()), fx);
            let finals = self.gates.next_finals();
            finals.into_iter().for_each(|status| self.send_to_leaders(&FromDatacenter::Final(Box::new(status)), fx));
            if self.gates.rounds.iter().all(|round| round.to.is_some()) {
                self.gates.rounds.push_back(Round { to: None, after: None, is_transfer: false });
            }
        }
        self.report_next(fx);
    }

    /// Sends one frame of reports; the next goes in the next step.
    fn report_next(&mut self, fx: &mut Effects) {
        let Some(mut round) = self.gates.rounds.pop_front() else { return };
        let from = round.after.map_or(Bound::Unbounded, Bound::Excluded);
        let jobs: Vec<JobId> =
            self.gates.jobs.range((from, Bound::Unbounded)).take(REPORTS_PER_FRAME).copied().collect();
        let reports: Vec<JobReport> = jobs.iter().filter_map(|id| self.job_report(self.state.find(*id)?)).collect();
        let is_last = jobs.len() < REPORTS_PER_FRAME;
        round.after = jobs.last().copied();
        if !reports.is_empty() {
            let wrap = if round.is_transfer { FromDatacenter::LeaderTransfer } else { FromDatacenter::Progress };
            match round.to {
                Some(stream) => self.send_to_gate(stream, wrap(reports), fx),
                None => self.send_to_leaders(&wrap(reports), fx),
            }
        }
        if !is_last {
            self.gates.rounds.push_front(round);
        }
    }

    /// A job of a gate, as it is now.
    pub(super) fn job_report(&self, key: JobKey) -> Option<JobReport> {
        let job = self.state.job(key);
        let tie = job.gate()?;
        let running = self.state.workflows_of(job).filter_map(|(_, workflow)| self.fleet.get_live(workflow.attempt?));
        let mut workflows = WorkflowCounts::default();
        let mut attempts = 0;
        for (_, workflow) in self.state.workflows_of(job) {
            count(&mut workflows, workflow.state);
            attempts += workflow.handouts;
        }
        let now = self.log_now();
        Some(JobReport {
            job: job.id,
            outline: outline(&job.spec),
            epoch: job.epoch(),
            elapsed: job.started_at.get().filter(|at| *at <= now).map(|at| now.since(at) + tie.waited),
            extended: job.extended(),
            since_progress: running.map(|live| self.awake.since(live.clock.last_step())).min(),
            state: self.state.job_state(key),
            timed_out: job.timed_out.or(tie.local.map(|local| local.reason)),
            workflows,
            attempts,
        })
    }

    /// Logs that a local authority would have ended the job, and reports it until a gate answers.
    pub(in crate::manager) fn time_out_locally(
        &mut self,
        key: JobKey,
        reason: TimeoutReason,
        stuck: Option<Claim>,
        fx: &mut Effects,
    ) {
        let job = self.state.job(key);
        if job.gate().is_none_or(|tie| tie.local.is_some()) {
            return;
        }
        let id = job.id;
        self.emit(Event::LocallyTimedOut { job: id, reason, stuck }, fx);
        self.report(ManagerNotice::LocallyTimedOut { job: id, reason }, fx);
        self.gates.answered.remove(&id);
        self.arm_fallback(key);
        if let Some(report) = self.job_report(key) {
            self.send_to_leaders(&FromDatacenter::TimedOut(Box::new(report)), fx);
        }
    }

    /// Whether a gate decides about this stuck attempt: it does where the job would end by it.
    pub(in crate::manager) fn leave_stuck_to_gate(&mut self, key: AttemptKey, fx: &mut Effects) -> bool {
        let live = self.fleet.live(key);
        if live.is_left_to_gate {
            return true;
        }
        let workflow = self.state.workflow(live.workflow);
        let (job_key, job) = (workflow.job, self.state.job(workflow.job));
        let ends_job = job.gate().is_some()
            && next(&Ending::Stuck, workflow.counted, &job.spec.retry, job.spec.on_stuck, 0) == Next::TimeOut;
        if ends_job {
            let claim = self.state.claim_of(key);
            self.fleet.live_mut(key).is_left_to_gate = true;
            self.time_out_locally(job_key, TimeoutReason::Stuck, Some(claim), fx);
        }
        ends_job
    }

    /// A grant or a quiet section covers the attempt: while one does, nothing is stuck.
    pub(in crate::manager) fn end_local_stuck_if_covered(&mut self, key: AttemptKey, fx: &mut Effects) {
        let live = self.fleet.live(key);
        if live.clock.stuck_at(live.stuck_after) > self.awake {
            self.end_local_stuck(key, fx);
        }
    }

    /// The attempt, if it was stuck, is so no longer.
    pub(in crate::manager) fn end_local_stuck(&mut self, key: AttemptKey, fx: &mut Effects) {
        if !core::mem::take(&mut self.fleet.live_mut(key).is_left_to_gate) {
            return;
        }
        let claim = self.state.claim_of(key);
        let Some(job) = self.state.find(claim.job) else { return };
        if self.is_local_stuck(job, claim) {
            self.emit(Event::LocalTimeoutOver { job: claim.job }, fx);
            self.local_timeout_over(job, fx);
        }
    }

    /// The job was late here, and was given time here.
    pub(in crate::manager) fn end_local_overall_if_extended(&mut self, key: JobKey, fx: &mut Effects) {
        if self.is_late(key) && self.job_timers().overall_fires_at(key).is_some_and(|at| at > self.log_now()) {
            let job = self.state.job(key).id;
            self.emit(Event::LocalTimeoutOver { job }, fx);
            self.local_timeout_over(key, fx);
        }
    }

    /// Nothing would have ended the job here any more: what was passed over while something would have is watched again.
    /// That is every other attempt that is stuck, and the overall deadline, whose timer may have fired meanwhile. A job that
    /// is late is so at once: attempts that are stuck and move in turn do not postpone the fallback for ever.
    pub(in crate::manager) fn local_timeout_over(&mut self, job: JobKey, fx: &mut Effects) {
        let running = self.state.workflows_of(self.state.job(job)).filter_map(|(_, workflow)| workflow.attempt);
        let left: Vec<AttemptKey> =
            running.filter(|key| self.fleet.get_live(*key).is_some_and(|live| live.is_left_to_gate)).collect();
        for key in left {
            self.fleet.live_mut(key).is_left_to_gate = false;
            self.watch().arm(key);
        }
        self.arm_fallback(job);
        if self.job_timers().overall_fires_at(job).is_some_and(|at| at <= self.log_now()) {
            return self.time_out_locally(job, TimeoutReason::Overall, None, fx);
        }
        self.job_timers().watch_overall(job);
    }

    /// Whether this attempt is why the job would have ended here.
    pub(in crate::manager) fn is_local_stuck(&self, job: JobKey, claim: Claim) -> bool {
        let local = self.state.job(job).gate().and_then(|tie| tie.local);
        local.is_some_and(|local| local.stuck == Some(claim))
    }

    /// Takes up an attempt after a takeover: one that was stuck and left to a gate still is.
    pub(in crate::manager) fn resume_stuck(&mut self, key: AttemptKey) {
        let claim = self.state.claim_of(key);
        let job = self.state.workflow(self.state.attempt(key).workflow).job;
        if self.is_local_stuck(job, claim) {
            self.fleet.live_mut(key).is_left_to_gate = true;
        }
    }

    /// Takes up an open job after a takeover that a gate decides about.
    pub(in crate::manager) fn resume_for_gates(&mut self, key: JobKey) {
        self.gates.jobs.insert(self.state.job(key).id);
        self.arm_fallback(key);
    }

    pub(super) fn arm_fallback(&mut self, key: JobKey) {
        let id = self.state.job(key).id;
        let at = self.fallback_at(key);
        self.gates.set_fallback(id, at);
    }

    /// The instant when the job ends without a gate's word, if it has timed out here.
    fn fallback_at(&self, key: JobKey) -> Option<Wall> {
        let job = self.state.job(key);
        let tie = job.gate()?;
        let timed_out = tie.local?.at;
        let logged = tie.answered_at;
        let heard = match self.gates.answered.get(&job.id) {
            Some(heard) => *heard,
            // It answered a leader before us, which need not have logged the last of it.
            None if logged > timed_out => (logged + self.answers_logged_every()).min(self.seat.taken_at()),
            None => Wall::ZERO,
        };
        Some(timed_out.max(logged).max(heard) + self.rules.gate.fallback_after)
    }

    /// The interval at which it is logged that a gate answers about a job that has timed out here.
    pub(super) fn answers_logged_every(&self) -> Duration {
        self.rules.gate.fallback_after / 4
    }

    fn fire_fallbacks(&mut self, fx: &mut Effects) {
        let mut bite = self.bite;
        while !bite.is_over()
            && let Some((at, id)) = self.gates.fallbacks.first().copied()
            && at <= self.log_now()
        {
            bite.spend(1);
            self.gates.set_fallback(id, None);
            let Some(key) = self.state.find(id) else { continue };
            match self.fallback_at(key) {
                Some(at) if at > self.log_now() => self.gates.set_fallback(id, Some(at)),
                Some(_) => {
                    let local = self.state.job(key).gate().and_then(|tie| tie.local);
                    let reason = local.map_or(TimeoutReason::Overall, |local| local.reason);
                    self.end_timed_out(key, reason, None, fx);
                }
                None => {}
            }
        }
    }

    /// Jobs of gates that have ended in this step.
    pub(in crate::manager) fn report_ends_to_gates(&mut self, fx: &mut Effects) {
        while let Some(id) = self.follow_ups.ended_for_gates.pop() {
            self.gates.forget(id);
            let Some(status) = self.state.find(id).and_then(|key| self.final_status(key)) else { continue };
            let status = Box::new(status);
            self.gates.keep_final(status.clone());
            self.send_to_leaders(&FromDatacenter::Final(status), fx);
        }
    }

    /// The final status of a job that is still in memory.
    pub(super) fn final_status(&self, key: JobKey) -> Option<FinalStatus> {
        let job = self.state.job(key);
        let outcome = Outcome::of(self.state.job_state(key))?;
        let report = self.job_report(key)?;
        let pasts = self.state.workflows_of(job).filter_map(|(_, workflow)| workflow.past.as_ref());
        let (result, error) = last_words(pasts.filter_map(|past| past.last()));
        Some(FinalStatus { report, outcome, result, error })
    }
}

/// The final status of a job that is in the archive. None if no gate decided about it.
pub(super) fn final_of_image(image: &JobImage) -> Option<FinalStatus> {
    let more = image.more.as_ref()?;
    let tie = more.gate.as_ref()?;
    let outcome = Outcome::of(image.state())?;
    let mut workflows = WorkflowCounts::default();
    image.workflows.iter().for_each(|workflow| count(&mut workflows, workflow.state));
    let elapsed = image.started_at.zip(image.ended_at).map(|(from, to)| to.since(from) + tie.waited);
    let report = JobReport {
        job: image.id,
        outline: outline(&image.spec),
        epoch: more.epoch,
        elapsed,
        extended: more.extended(),
        since_progress: None,
        state: image.state(),
        timed_out: image.timed_out,
        workflows,
        attempts: image.workflows.iter().map(|workflow| workflow.handouts).sum(),
    };
    let pasts = image.workflows.iter().filter_map(|workflow| workflow.past.as_ref());
    let (result, error) = last_words(pasts.filter_map(|past| past.attempts.last()));
    Some(FinalStatus { report, outcome, result, error })
}

/// The last result and the last error of these attempts, each the last of its workflow.
fn last_words<'a>(attempts: impl Iterator<Item = &'a EndedAttempt>) -> (Option<Payload>, Option<Arc<str>>) {
    let (mut result, mut error) = (None, None);
    for attempt in attempts {
        match &attempt.ending {
            Ending::Succeeded { result: own } => result = Some(own.clone()),
            Ending::Failed { error: own, .. } => error = Some(own.clone()),
            _ => {}
        }
    }
    (result, error)
}

fn outline(spec: &JobSpec) -> JobOutline {
    let extras = spec.extras.as_ref();
    JobOutline {
        kind: spec.workflows[0].kind.clone(),
        queue: spec.queue.clone(),
        targets: extras.map_or_else(Box::default, |extras| extras.datacenters.clone()),
        policy: extras.map_or_else(Default::default, |extras| extras.timeout_policy),
        timeout: spec.timeout,
        max_extension: spec.max_extension,
    }
}

fn count(counts: &mut WorkflowCounts, state: WorkflowState) {
    counts.total += 1;
    match state {
        WorkflowState::Succeeded => counts.succeeded += 1,
        WorkflowState::Failed | WorkflowState::TimedOut | WorkflowState::Cancelled => counts.failed += 1,
        WorkflowState::Waiting
        | WorkflowState::Delayed
        | WorkflowState::Ready
        | WorkflowState::Running
        | WorkflowState::Cancelling => {}
    }
}
