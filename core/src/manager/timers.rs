//! What is due.
//!
//! A timer is armed at the earliest instant at which something could be due and looks again when it fires: beats move
//! deadlines all the time and never touch a timer.

use crate::effect::{Effects, Notice};
use crate::event::{Event, WorkflowRef};
use crate::ids::JobId;
use crate::job::WorkflowState;
use crate::state::{AttemptKey, JobKey, WorkflowKey};
use crate::time::{Awake, Mono, Wall};
use crate::timeout::{TimeoutReason, fires_at, overall_deadline};
use crate::wheel::TimerKey;

use super::Manager;
use super::deadlines::{BatchKey, Entry};
use super::polls::PollKey;
use super::workers::WorkerKey;

/// On awake time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AwakeTimer {
    Worker(WorkerKey),
    Poll(PollKey),
}

/// On monotonic time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum MonoTimer {
    Overall(JobKey),
    Due(WorkflowKey),
}

/// How the overall deadline of a job is watched.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Overall {
    #[default]
    Not,
    /// It is near: by a timer.
    Timer(TimerKey<MonoTimer>),
    /// It is far: noted in a batch, with what tells this job from another under its key.
    Noted(BatchKey, u32),
}

/// What the next wake-up is for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Why {
    /// The seat wants to be confirmed.
    Seat,
    /// A lease, a stuck clock, or a change in how an attempt counts.
    Attempt,
    /// A probe, or a worker whose verdict may change.
    Worker,
    /// A poll's wait is over.
    Poll,
    /// A job's overall deadline.
    Overall,
    /// The end of a delay.
    Due,
    /// An idempotency key may be forgotten.
    KeyExpiry,
    /// More can be handed out than one step does.
    Assign,
    /// More was kept than one step takes, or a call has waited for the seat as long as it may.
    Kept,
    /// There are more dead letters than are kept.
    DeadLetters,
    /// A schedule has something due, or its runs have changed.
    Schedule,
}

/// Arming the timers of a whole batch takes about as long as so many events.
const UNITS_PER_BATCH: u32 = 4;

impl Manager {
    /// When to step again if nothing happens, and why. Never in the past.
    pub fn next_wakeup(&self) -> Option<(Mono, Why)> {
        if self.replaying || self.seat_state() == super::SeatState::Lost {
            return None;
        }
        let mut seat = (self.seat_pulse(), Why::Seat);
        match self.seat_state() {
            super::SeatState::Unconfirmed => {
                let refused_at = self.kept.oldest_call().map(|came_at| came_at + self.rules.seat_ttl);
                if let Some(at) = refused_at.filter(|at| *at < seat.0) {
                    seat = (at, Why::Kept);
                }
            }
            _ if !self.kept.is_empty() => return Some((self.now.mono, Why::Kept)),
            _ => {}
        }
        let first = if self.may_decide() { self.next_timer(seat) } else { seat };
        if first.0 <= self.now.mono && self.log_is_behind() {
            // What is due goes on when the log has caught up.
            return Some((seat.0.max(self.now.mono), seat.1));
        }
        Some((first.0.max(self.now.mono), first.1))
    }

    /// The first of all timers and of `first`.
    fn next_timer(&self, mut first: (Mono, Why)) -> (Mono, Why) {
        if self.assign_again {
            return (self.now.mono, Why::Assign);
        }
        if self.too_many_dead_letters() {
            return (self.now.mono, Why::DeadLetters);
        }
        let mut consider = |at: Mono, why: Why| {
            if at < first.0 {
                first = (at, why);
            }
        };
        if let Some((at, _)) = self.attempt_timers.next() {
            consider(self.seat.mono_of(Awake::from_ms(at)), Why::Attempt);
        }
        if let Some((at, timer)) = self.awake_timers.next() {
            let why = match timer {
                AwakeTimer::Worker(_) => Why::Worker,
                AwakeTimer::Poll(_) => Why::Poll,
            };
            consider(self.seat.mono_of(Awake::from_ms(at)), why);
        }
        if let Some((at, timer)) = self.mono_timers.next() {
            let why = match timer {
                MonoTimer::Overall(_) => Why::Overall,
                MonoTimer::Due(_) => Why::Due,
            };
            consider(Mono::from_ms(at), why);
        }
        if let Some(at) = self.departed.next() {
            consider(self.seat.mono_of(at), Why::Worker);
        }
        if let Some(at) = self.deadlines.next_ms() {
            consider(Mono::from_ms(at), Why::Overall);
        }
        if let Some((at, ..)) = self.wall_due.first() {
            consider(self.now.mono + at.since(self.now.wall), Why::Due);
        }
        if let Some(at) = self.agendas.next() {
            consider(self.now.mono + at.since(self.now.wall), Why::Schedule);
        }
        if let Some((at, _)) = self.state.next_key_expiry() {
            consider(self.seat.clock().mono_at(at), Why::KeyExpiry);
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
        while let Some((_, key)) = self.attempt_timers.pop_due(self.awake.as_ms(), &mut bite) {
            bite.spend(self.others_of_job(self.state.attempt(key).workflow));
            self.handle_attempt_timer(key, fx);
        }
        let mut bite = self.bite;
        while let Some((_, timer)) = self.awake_timers.pop_due(self.awake.as_ms(), &mut bite) {
            match timer {
                AwakeTimer::Worker(key) => {
                    self.workers.at_mut(key).timer = None;
                    self.to_check.push(key);
                }
                AwakeTimer::Poll(key) => {
                    self.poll_timer_fired(key);
                    self.poll_over(key);
                }
            }
        }
        // An attempt whose clock is over ends by that, before its worker is judged by what it holds.
        self.check_due_workers(fx);
        self.forget_departed(fx);
        self.bring_deadlines_near();
        let mut bite = self.bite;
        while let Some((_, timer)) = self.mono_timers.pop_due(self.now.mono.as_ms(), &mut bite) {
            match timer {
                MonoTimer::Overall(key) => {
                    bite.spend(self.state.job(key).workflows.as_slice().len() as u32 - 1);
                    self.handle_overall_timer(key, fx);
                }
                MonoTimer::Due(key) => {
                    self.workflow_timers[key] = None;
                    self.end_delay(key, fx);
                }
            }
        }
        let mut bite = self.bite;
        while let Some((.., key)) =
            self.wall_due.first().filter(|(at, ..)| *at <= self.now.wall && !bite.is_over()).copied()
        {
            bite.spend(1);
            self.end_delay(key, fx);
        }
        self.expire_keys(fx);
        self.check_schedules(fx);
    }

    /// How many more workflows the job of this one has: its end may end them all.
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
        self.overall[key] = Overall::Not;
        let Some(at) = self.overall_fires_at(key) else { return };
        if self.log_now() < at {
            return self.arm_overall(key);
        }
        let job = self.state.job(key);
        let (id, running) = (job.id, self.attempts_of(key));
        self.emit(Event::JobTimedOut { job: id, reason: TimeoutReason::Overall }, fx);
        self.report(Notice::JobTimedOut { job: id }, fx);
        self.stop_timed_out(running, fx);
    }

    /// The instant in log time at which the job is over, extensions included.
    pub(super) fn overall_deadline(&self, key: JobKey) -> Option<Wall> {
        let job = self.state.job(key);
        let started = job.started_at.get()?;
        Some(overall_deadline(started, job.spec.timeout, job.extended(), job.spec.max_extension))
    }

    /// When the overall timer of a job is to fire.
    fn overall_fires_at(&self, key: JobKey) -> Option<Wall> {
        let (deadline, started) = (self.overall_deadline(key)?, self.state.job(key).started_at.get()?);
        Some(fires_at(deadline, started, self.seat.taken_at(), self.rules.takeover_grace))
    }

    fn expire_keys(&mut self, fx: &mut Effects) {
        let keys = self.state.expired_keys(self.log_now(), self.bite.left() as usize);
        if !keys.is_empty() {
            self.emit(Event::KeysExpired { keys }, fx);
        }
    }

    pub(super) fn arm_due(&mut self, key: WorkflowKey) {
        let workflow = self.state.workflow(key);
        if self.replaying {
            return;
        }
        if workflow.wall_due {
            let job = self.state.job(workflow.job).id;
            self.wall_due.insert((workflow.due_at, job, workflow.index, key));
            return;
        }
        let at = self.seat.clock().mono_at(workflow.due_at);
        let timer = self.mono_timers.insert(at.as_ms(), MonoTimer::Due(key));
        *self.workflow_timers.entry(key) = Some(timer);
    }

    pub(super) fn disarm_due(&mut self, key: WorkflowKey) {
        if self.replaying {
            return;
        }
        if !self.wall_due.is_empty() {
            let workflow = self.state.workflow(key);
            let job = self.state.job(workflow.job).id;
            self.wall_due.remove(&(workflow.due_at, job, workflow.index, key));
        }
        if let Some(timer) = self.workflow_timers.entry(key).take() {
            self.mono_timers.remove(timer);
        }
    }

    /// Watches the overall deadline of a job that has started, once.
    pub(super) fn arm_overall(&mut self, key: JobKey) {
        if self.replaying || self.overall.get(key).is_some_and(|overall| *overall != Overall::Not) {
            return;
        }
        let Some(at) = self.overall_fires_at(key) else { return };
        let at = self.seat.clock().mono_at(at).as_ms();
        let entry = (key, mark_of(self.state.job(key).id));
        *self.overall.entry(key) = match self.deadlines.insert(at, self.now.mono.as_ms(), entry) {
            Some(batch) => Overall::Noted(batch, entry.1),
            None => Overall::Timer(self.mono_timers.insert(at, MonoTimer::Overall(key))),
        };
    }

    pub(super) fn disarm_overall(&mut self, key: JobKey) {
        let Some(overall) = self.overall.get_mut(key) else { return };
        match core::mem::take(overall) {
            Overall::Not => {}
            Overall::Timer(timer) => {
                self.mono_timers.remove(timer);
            }
            Overall::Noted(batch, _) => self.deadlines.remove(batch),
        }
    }

    /// What is open in a slice of time that has come near gets a timer.
    fn bring_deadlines_near(&mut self) {
        let mut bite = self.bite;
        while !bite.is_over()
            && let Some((batch, noted)) = self.deadlines.pop_near(self.now.mono.as_ms())
        {
            bite.spend(UNITS_PER_BATCH);
            let open = |(key, mark): &Entry| self.overall[*key] == Overall::Noted(batch, *mark);
            let open: Vec<JobKey> = noted.iter().filter(|entry| open(entry)).map(|(key, _)| *key).collect();
            // All are let go before one is armed, which may note it again in a batch of the same key.
            open.iter().for_each(|key| self.overall[*key] = Overall::Not);
            open.iter().for_each(|key| self.arm_overall(*key));
        }
    }

    /// After a takeover: everything that the log says is running, delayed or ended gets its timer or its effect. In the
    /// order of ids, which are nearly sorted as they lie: keys into the pages may be others than those of the machine
    /// before, and must not show.
    pub(super) fn resume(&mut self) {
        let mut jobs: Vec<JobKey> = self.state.jobs().map(|(key, _)| key).collect();
        jobs.sort_by_key(|key| self.state.job(*key).id);
        for key in jobs {
            let job = self.state.job(key);
            if job.has_ended() {
                if !job.dead {
                    self.to_archive.push(job.id);
                }
                continue;
            }
            let delayed: Vec<WorkflowKey> = self
                .state
                .workflows_of(job)
                .filter(|(_, workflow)| workflow.state == WorkflowState::Delayed)
                .map(|(key, _)| key)
                .collect();
            self.arm_overall(key);
            for workflow in delayed {
                self.arm_due(workflow);
            }
        }
        let mut attempts: Vec<AttemptKey> = self.state.attempts().map(|(key, _)| key).collect();
        attempts.sort_by_key(|key| self.state.claim_of(*key));
        for key in attempts {
            self.resume_attempt(key);
        }
        self.resume_departed();
        self.resume_hold();
        self.resume_schedules();
    }
}

/// Tells a job from another that got its key after it.
fn mark_of(id: JobId) -> u32 {
    id.as_u128() as u32
}
