//! From an event to the indexes over the state. Whatever is derived from the state follows it here, and nowhere else.
//!
//! | what changed | what follows |
//! |---|---|
//! | a job was submitted | dispatch admits its workflows; a snapshot under way passes it by |
//! | a workflow changed its state | its attempt's soft side ends, dispatch moves it, its timers are set or taken back; counts |
//! | a job ended | its overall deadline is no longer watched; it goes to the archive or among the dead letters; the schedule that started it is looked at |
//! | a dead letter was dropped | the job goes to the archive |
//! | a job was archived | it leaves the state, and content that nobody else refers to is named |
//! | a queue was paused or resumed | its shelves leave the groups' indexes, or come back |
//!
//! The handler borrows every part that follows the state, and nothing else. While events come from the log the soft
//! parts are left out: nothing is armed, sent or judged then, and a state with its dispatch and its counts can be led
//! by events alone.

use crate::counts::Counts;
use crate::dispatch::Dispatch;
use crate::event::Event;
use crate::job::WorkflowState;
use crate::settings::Rules;
use crate::state::{Changes, JobKey, State, WorkflowChange};
use crate::time::{Awake, Now};

use super::fleet::Fleet;
use super::follow_ups::FollowUps;
use super::job_timers::JobTimers;
use super::offers::Offers;
use super::polls::Polls;
use super::schedules::Agendas;
use super::seat::Seat;
use super::snapshot::OpenSnapshot;
use super::timers::Timers;
use super::watch::AttemptWatch;

/// Everything that is derived from the state, in one place.
pub(crate) struct Indexes<'a> {
    pub state: &'a mut State,
    pub dispatch: &'a mut Dispatch,
    pub counts: &'a mut Counts,
    /// The snapshot under way.
    pub snapshot: Option<&'a mut OpenSnapshot>,
    /// None while events come from the log.
    pub soft: Option<SoftIndexes<'a>>,
}

/// Indexes that a crash loses without harm, and that follow the state all the same.
pub(crate) struct SoftIndexes<'a> {
    pub rules: &'a Rules,
    pub seat: &'a Seat,
    pub fleet: &'a mut Fleet,
    pub polls: &'a Polls,
    pub timers: &'a mut Timers,
    pub agendas: &'a mut Agendas,
    pub follow_ups: &'a mut FollowUps,
    pub now: Now,
    pub awake: Awake,
}

impl Indexes<'_> {
    /// Brings everything that is derived in line with what an event changed.
    pub(crate) fn update(&mut self, event: &Event, changes: &mut Changes) {
        for key in changes.submitted.drain(..) {
            if let Some(snapshot) = &mut self.snapshot {
                snapshot.pass(key);
            }
            self.admit_job(key);
        }
        self.count_moves(&changes.workflows);
        for change in changes.workflows.drain(..) {
            self.update_workflow(&change);
        }
        for key in changes.ended.drain(..) {
            if let Some(soft) = &mut self.soft {
                soft.end_job(self.state, key);
            }
        }
        for key in changes.released.drain(..) {
            if let Some(soft) = &mut self.soft {
                soft.follow_ups.to_archive.push(self.state.job(key).id);
            }
        }
        for key in changes.archived.drain(..) {
            self.counts.left(&self.state.job(key).spec.queue, self.state.job_state(key));
            self.state.remove_archived(key, &mut changes.unreferenced);
        }
        if let Some(soft) = &mut self.soft {
            soft.follow_ups.unreferenced.append(&mut changes.unreferenced);
        }
        match event {
            Event::QueuePaused { queue } => self.dispatch.set_paused(queue, true),
            Event::QueueResumed { queue } => self.dispatch.set_paused(queue, false),
            _ => {}
        }
    }

    /// The workflows of a new job, which wait for nothing yet.
    fn admit_job(&mut self, key: JobKey) {
        let state = &*self.state;
        let job = state.job(key);
        for (workflow, spec) in job.workflows.as_slice().iter().zip(job.spec.workflows.iter()) {
            self.dispatch.admit(*workflow, &job.spec, &spec.kind, || state.is_paused(&job.spec.queue));
        }
    }

    fn update_workflow(&mut self, change: &WorkflowChange) {
        if let Some(soft) = &mut self.soft {
            soft.leave(self.state, self.dispatch, change);
        }
        self.reindex_workflow(change);
        if let Some(soft) = &mut self.soft {
            soft.enter(self.state, change);
        }
    }

    /// Puts a workflow where its state says.
    fn reindex_workflow(&mut self, change: &WorkflowChange) {
        let key = change.workflow;
        match self.state.workflow(key).state {
            WorkflowState::Waiting | WorkflowState::Cancelling => {}
            WorkflowState::Delayed => self.dispatch.away(key),
            WorkflowState::Ready => self.dispatch.ready(key, change.ended.is_some()),
            WorkflowState::Running => self.dispatch.held(key),
            WorkflowState::Succeeded | WorkflowState::Failed | WorkflowState::Cancelled | WorkflowState::TimedOut => {
                self.dispatch.retire(key);
            }
        }
    }
}

impl SoftIndexes<'_> {
    /// The workflow is no longer what it was.
    fn leave(&mut self, state: &State, dispatch: &mut Dispatch, change: &WorkflowChange) {
        if change.from == Some(WorkflowState::Delayed) {
            self.job_timers(state).disarm_delay(change.workflow);
        }
        if let Some(holder) = change.ended.and_then(|ended| self.watch(state).finish(ended)) {
            Offers { fleet: self.fleet, polls: self.polls, dispatch }.update(holder);
        }
    }

    /// The workflow is what its state says.
    fn enter(&mut self, state: &State, change: &WorkflowChange) {
        let key = change.workflow;
        let workflow = state.workflow(key);
        match workflow.state {
            WorkflowState::Delayed => self.job_timers(state).arm_delay(key),
            WorkflowState::Ready => self.job_timers(state).watch_overall(workflow.job),
            WorkflowState::Cancelling => {
                let (attempt, mut watch) = (workflow.running_attempt(), self.watch(state));
                watch.update_motion(attempt);
                watch.arm(attempt);
            }
            _ => {}
        }
    }

    fn end_job(&mut self, state: &State, key: JobKey) {
        self.timers.unwatch_overall(key);
        let job = state.job(key);
        let ended = if job.dead { &mut self.follow_ups.newly_dead } else { &mut self.follow_ups.to_archive };
        ended.push(job.id);
        if job.gate().is_some() {
            self.follow_ups.ended_for_gates.push(job.id);
        }
        if job.more.as_ref().is_some_and(|more| more.scheduled.is_some()) {
            self.agendas.follow_run(state, job.id, &mut self.follow_ups.newly_failing);
        }
    }

    fn job_timers<'b>(&'b mut self, state: &'b State) -> JobTimers<'b> {
        JobTimers { rules: self.rules, state, seat: self.seat, timers: self.timers, now: self.now }
    }

    fn watch<'b>(&'b mut self, state: &'b State) -> AttemptWatch<'b> {
        AttemptWatch { rules: self.rules, state, fleet: self.fleet, timers: self.timers, now: self.awake }
    }
}
