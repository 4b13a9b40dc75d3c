//! The work of a manager when timers fire, and its next wake-up.

use crate::effect::{Effects, ManagerNotice, TimeoutAuthority};
use crate::event::{Event, WorkflowRef};
use crate::fence::GateEpoch;
use crate::job::WorkflowState;
use crate::state::{AttemptKey, JobKey, WorkflowKey};
use crate::time::Mono;
use crate::timeout::TimeoutReason;

use super::timers::{AwakeTimer, Earliest, MonoTimer, Why};
use super::{Manager, SeatState};

impl Manager {
    /// The next instant to step if nothing happens, and the reason. Never in the past.
    pub fn next_wakeup(&self) -> Option<(Mono, Why)> {
        if self.replaying || self.seat_state() == SeatState::Lost {
            return None;
        }
        let mut seat = Earliest { at: self.seat_pulse(), why: Why::Seat };
        match self.seat_state() {
            SeatState::Unconfirmed => {
                if let Some(came_at) = self.kept.oldest_call() {
                    seat.consider(came_at + self.rules.seat_ttl, Why::Kept);
                }
            }
            _ if !self.kept.is_empty() => return Some((self.now.mono, Why::Kept)),
            _ => {}
        }
        let first = if self.may_decide() { self.next_timer(seat) } else { seat };
        let is_due = first.at <= self.now.mono;
        // Timers that are due go on when the log has caught up.
        let next = if is_due && self.log_is_behind() { seat } else { first };
        Some((next.at.max(self.now.mono), next.why))
    }

    /// The first of all timers and of `first`.
    fn next_timer(&self, mut first: Earliest) -> Earliest {
        if self.dispatch.goes_on() {
            return Earliest { at: self.now.mono, why: Why::Assign };
        }
        if self.too_many_dead_letters() {
            return Earliest { at: self.now.mono, why: Why::DeadLetters };
        }
        let now = self.now;
        self.timers.consider_next(&mut first, now, |awake| self.seat.mono_of(awake));
        if let Some(at) = self.fleet.departed().next() {
            first.consider(self.seat.mono_of(at), Why::Worker);
        }
        if let Some(at) = self.agendas.next() {
            first.consider(now.mono + at.since(now.wall), Why::Schedule);
        }
        if let Some(at) = self.gates.next(|at| self.seat.clock().mono_at(at)) {
            first.consider(at, Why::Gate);
        }
        if let Some((at, _)) = self.state.next_key_expiry() {
            first.consider(self.seat.clock().mono_at(at), Why::KeyExpiry);
        }
        first
    }

    /// Lets timers fire that are due: a bite of each kind, so that none waits for all of another. What is left is due at
    /// once, in the next step.
    pub(super) fn fire_due(&mut self, fx: &mut Effects) {
        if !self.may_decide() {
            return;
        }
        let mut bite = self.bite;
        while let Some(key) = self.timers.pop_attempt(self.awake, &mut bite) {
            bite.spend(self.others_of_job(self.state.attempt(key).workflow));
            self.handle_attempt_timer(key, fx);
        }
        let mut bite = self.bite;
        while let Some(timer) = self.timers.pop_awake(self.awake, &mut bite) {
            match timer {
                AwakeTimer::Worker(key) => self.fleet.note_timer_fired(key),
                AwakeTimer::Poll(key) => {
                    self.polls.note_timer_fired(key);
                    self.poll_over(key);
                }
            }
        }
        // An attempt whose clock is over ends by that, before its worker is judged by what it holds.
        self.check_due_workers(fx);
        self.forget_departed(fx);
        self.bring_deadlines_near();
        let mut bite = self.bite;
        while let Some(timer) = self.timers.pop_mono(self.now.mono, &mut bite) {
            match timer {
                MonoTimer::Overall(key) => {
                    bite.spend(self.state.job(key).workflows.as_slice().len() as u32 - 1);
                    self.handle_overall_timer(key, fx);
                }
                MonoTimer::Due(key) => self.end_delay(key, fx),
            }
        }
        let mut bite = self.bite;
        while !bite.is_over()
            && let Some(key) = self.timers.first_wall_delay(self.now.wall)
        {
            bite.spend(1);
            self.end_delay(key, fx);
        }
        self.expire_keys(fx);
        self.check_schedules(fx);
        self.fire_for_gates(fx);
    }

    /// The number of other workflows that the job of this one has: its end may end them all.
    fn others_of_job(&self, key: WorkflowKey) -> u32 {
        let job = self.state.job(self.state.workflow(key).job);
        job.workflows.as_slice().len() as u32 - 1
    }

    fn end_delay(&mut self, key: WorkflowKey, fx: &mut Effects) {
        let workflow = self.state.workflow(key);
        let at = WorkflowRef { job: self.state.job(workflow.job).id, workflow: workflow.index };
        self.emit(Event::WorkflowDue(at), fx);
    }

    fn handle_overall_timer(&mut self, key: JobKey, fx: &mut Effects) {
        let Some(at) = self.job_timers().overall_fires_at(key) else { return };
        if self.log_now() < at {
            return self.job_timers().watch_overall(key);
        }
        if self.state.job(key).gate().is_some() {
            return self.time_out_locally(key, TimeoutReason::Overall, None, fx);
        }
        self.end_timed_out(key, TimeoutReason::Overall, None, fx);
    }

    /// The job ends, by its own clock or by a gate's word.
    pub(super) fn end_timed_out(
        &mut self,
        key: JobKey,
        reason: TimeoutReason,
        epoch: Option<GateEpoch>,
        fx: &mut Effects,
    ) {
        let job = self.state.job(key);
        let (id, running) = (job.id, self.attempts_of(key));
        let by = match epoch {
            Some(epoch) => TimeoutAuthority::Gate(epoch),
            None if job.gate().is_some() => TimeoutAuthority::Fallback,
            None => TimeoutAuthority::Datacenter,
        };
        let end = Some(self.end_by_timeout(key, reason));
        self.emit(Event::JobTimedOut { job: id, reason, end, epoch }, fx);
        self.report(ManagerNotice::JobTimedOut { job: id, reason, by }, fx);
        self.stop_timed_out(running, fx);
    }

    fn expire_keys(&mut self, fx: &mut Effects) {
        let keys = self.state.expired_keys(self.log_now(), self.bite.left() as usize);
        if !keys.is_empty() {
            self.emit(Event::KeysExpired { keys }, fx);
        }
    }

    /// Arms a timer for each job that is open in a slice of time that has come near.
    fn bring_deadlines_near(&mut self) {
        let mut bite = self.bite;
        while let Some(near) = self.timers.pop_near(self.now.mono, &mut bite) {
            near.into_iter().for_each(|key| self.job_timers().watch_overall(key));
        }
    }

    /// Takes up work after a takeover: everything that the log says is running, delayed or ended gets its timer or its
    /// effect. In the order of ids, which are nearly sorted as they lie: keys into the pages may be others than those
    /// of the machine before, and must not show.
    pub(super) fn resume(&mut self) {
        let mut jobs: Vec<JobKey> = self.state.jobs().map(|(key, _)| key).collect();
        jobs.sort_by_key(|key| self.state.job(*key).id);
        for key in jobs {
            let job = self.state.job(key);
            if job.has_ended() {
                if !job.dead {
                    self.follow_ups.to_archive.push(job.id);
                }
                if job.gate().is_some() {
                    self.follow_ups.ended_for_gates.push(job.id);
                }
                continue;
            }
            let delayed: Vec<WorkflowKey> = self
                .state
                .workflows_of(job)
                .filter(|(_, workflow)| workflow.state == WorkflowState::Delayed)
                .map(|(key, _)| key)
                .collect();
            self.job_timers().watch_overall(key);
            if self.state.job(key).gate().is_some() {
                self.resume_for_gates(key);
            }
            for workflow in delayed {
                self.job_timers().arm_delay(workflow);
            }
        }
        let mut attempts: Vec<AttemptKey> = self.state.attempts().map(|(key, _)| key).collect();
        attempts.sort_by_key(|key| self.state.claim_of(*key));
        for key in attempts {
            self.resume_attempt(key);
        }
        self.gates.note_takeover();
        self.resume_departed();
        self.resume_hold();
        self.resume_schedules();
    }
}
