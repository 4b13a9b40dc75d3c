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
//! What dispatch follows depends on the state and the change alone: [`admit_job`], [`reindex_workflow`] and
//! [`reindex_queue`] need no manager.

use crate::dispatch::Dispatch;
use crate::event::Event;
use crate::job::WorkflowState;
use crate::state::{Changes, JobKey, State, WorkflowChange};

use super::Manager;

/// The workflows of a new job, which wait for nothing yet.
pub(crate) fn admit_job(dispatch: &mut Dispatch, state: &State, key: JobKey) {
    let job = state.job(key);
    for (workflow, spec) in job.workflows.as_slice().iter().zip(job.spec.workflows.iter()) {
        dispatch.admit(*workflow, &job.spec, &spec.kind, || state.is_paused(&job.spec.queue));
    }
}

/// Puts a workflow where its state says.
pub(crate) fn reindex_workflow(dispatch: &mut Dispatch, state: &State, change: &WorkflowChange) {
    let key = change.workflow;
    match state.workflow(key).state {
        WorkflowState::Waiting | WorkflowState::Cancelling => {}
        WorkflowState::Delayed => dispatch.away(key),
        WorkflowState::Ready => dispatch.ready(key, change.ended.is_some()),
        WorkflowState::Running => dispatch.held(key),
        WorkflowState::Succeeded | WorkflowState::Failed | WorkflowState::Cancelled | WorkflowState::TimedOut => {
            dispatch.retire(key);
        }
    }
}

/// Shows or hides the queue that an event is about.
pub(crate) fn reindex_queue(dispatch: &mut Dispatch, event: &Event) {
    match event {
        Event::QueuePaused { queue } => dispatch.set_paused(queue, true),
        Event::QueueResumed { queue } => dispatch.set_paused(queue, false),
        _ => {}
    }
}

impl Manager {
    /// Brings everything that is derived in line with what an event changed.
    pub(super) fn update_indexes(&mut self, event: &Event, changes: &mut Changes) {
        for key in changes.submitted.drain(..) {
            if let Some(snapshot) = &mut self.snapshot {
                snapshot.pass(key);
            }
            admit_job(&mut self.dispatch, &self.state, key);
        }
        self.count_moves(&changes.workflows);
        for change in changes.workflows.drain(..) {
            self.update_workflow(&change);
        }
        for key in changes.ended.drain(..) {
            self.timers.unwatch_overall(key);
            if self.replaying {
                continue;
            }
            let job = self.state.job(key);
            let (id, is_run) = (job.id, job.more.as_ref().is_some_and(|more| more.scheduled.is_some()));
            if job.dead { &mut self.newly_dead } else { &mut self.to_archive }.push(id);
            if is_run {
                self.follow_run(id);
            }
        }
        for key in changes.released.drain(..) {
            if !self.replaying {
                self.to_archive.push(self.state.job(key).id);
            }
        }
        for key in changes.archived.drain(..) {
            self.counts.left(&self.state.job(key).spec.queue, self.state.job_state(key));
            self.state.remove_archived(key, &mut changes.unreferenced);
        }
        if !self.replaying {
            self.unreferenced.append(&mut changes.unreferenced);
        }
        reindex_queue(&mut self.dispatch, event);
    }

    fn update_workflow(&mut self, change: &WorkflowChange) {
        let key = change.workflow;
        if change.from == Some(WorkflowState::Delayed) {
            self.disarm_due(key);
        }
        if let Some(ended) = change.ended {
            self.finish_attempt(ended);
        }
        reindex_workflow(&mut self.dispatch, &self.state, change);
        match self.state.workflow(key).state {
            WorkflowState::Delayed => self.arm_due(key),
            WorkflowState::Ready => self.arm_overall(self.state.workflow(key).job),
            WorkflowState::Cancelling if !self.replaying => {
                let attempt = self.state.workflow(key).running_attempt();
                self.update_motion(attempt);
                self.arm_attempt(attempt);
            }
            _ => {}
        }
    }
}
