//! The timers of jobs and workflows: overall deadlines, and delays.
//!
//! The handler borrows the timers, and reads the rules, the state and the clock of the seat.

use crate::settings::Rules;
use crate::state::{JobKey, State, WorkflowKey};
use crate::time::{Now, Wall};
use crate::timeout::{fires_at, overall_deadline};

use super::Manager;
use super::seat::Seat;
use super::timers::Timers;

pub(super) struct JobTimers<'a> {
    pub rules: &'a Rules,
    pub state: &'a State,
    pub seat: &'a Seat,
    pub timers: &'a mut Timers,
    pub now: Now,
}

impl Manager {
    pub(super) fn job_timers(&mut self) -> JobTimers<'_> {
        JobTimers { rules: &self.rules, state: &self.state, seat: &self.seat, timers: &mut self.timers, now: self.now }
    }
}

impl JobTimers<'_> {
    /// The workflow waits: for a while, or for an instant of the wall clock.
    pub(super) fn arm_delay(&mut self, key: WorkflowKey) {
        let workflow = self.state.workflow(key);
        if workflow.wall_due {
            let job = self.state.job(workflow.job).id;
            self.timers.arm_wall_delay(key, workflow.due_at, job, workflow.index);
        } else {
            self.timers.arm_delay(key, self.seat.clock().mono_at(workflow.due_at));
        }
    }

    pub(super) fn disarm_delay(&mut self, key: WorkflowKey) {
        let state = self.state;
        self.timers.disarm_delay(key, || {
            let workflow = state.workflow(key);
            (workflow.due_at, state.job(workflow.job).id, workflow.index)
        });
    }

    /// Watches the overall deadline of a job that has started, once.
    pub(super) fn watch_overall(&mut self, key: JobKey) {
        if self.timers.watches_overall(key) {
            return;
        }
        let Some(at) = self.overall_fires_at(key) else { return };
        let at = self.seat.clock().mono_at(at);
        self.timers.watch_overall(key, self.state.job(key).id, at, self.now.mono);
    }

    /// The instant when the overall timer of a job is to fire.
    pub(super) fn overall_fires_at(&self, key: JobKey) -> Option<Wall> {
        let (deadline, started) = (deadline_of(self.state, key)?, self.state.job(key).started_at.get()?);
        Some(fires_at(deadline, started, self.seat.taken_at(), self.rules.takeover_grace))
    }
}

/// The instant in log time at which the job is over, extensions included.
pub(super) fn deadline_of(state: &State, key: JobKey) -> Option<Wall> {
    let job = state.job(key);
    let started = job.started_at.get()?;
    let deadline = overall_deadline(started, job.spec.timeout, job.extended(), job.spec.max_extension);
    Some(job.gate().map_or(deadline, |tie| tie.deadline(deadline)))
}
