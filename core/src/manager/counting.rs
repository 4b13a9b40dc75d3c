//! Counting what happened, as it is applied.

use crate::job::JobState;
use crate::job::transition::most_advanced;
use crate::state::{Job, WorkflowChange};

use super::indexes::Indexes;

impl Indexes<'_> {
    /// Workflows of one job have moved, by one event.
    pub(super) fn count_moves(&mut self, moves: &[WorkflowChange]) {
        let Some(first) = moves.first() else { return };
        let key = self.state.workflow(first.workflow).job;
        let job = self.state.job(key);
        let (before, after) = match job.workflows.as_slice() {
            [only] => (first.from, self.state.workflow(*only).state),
            _ => self.states_around(job, moves),
        };
        let queue = self.counts.queue(&job.spec.queue);
        if before != Some(after) {
            queue.moved(before, after);
        }
        if self.soft.is_none() {
            return;
        }
        if before.is_none() {
            queue.submitted += 1;
        } else if before != Some(after) && after.is_terminal() {
            queue.ended[after as usize] += 1;
        }
        for moved in moves {
            let workflow = self.state.workflow(moved.workflow);
            if moved.ended.is_some() {
                let ended = workflow.past.as_ref().and_then(|past| past.last()).expect("its attempt has just ended");
                let kind = &job.spec.workflows[usize::from(workflow.index)].kind;
                self.counts.kind(kind).ended(ended.ending.kind(), ended.ended_at.since(ended.started_at));
            } else if workflow.state == JobState::Running && workflow.handouts == 1 {
                let started_at = self.state.attempt(workflow.running_attempt()).handed_at;
                self.counts.queue(&job.spec.queue).wait.observe(started_at.since(workflow.ready_at));
            }
        }
    }

    /// The state of a job with several workflows before these moves, and now.
    fn states_around(&self, job: &Job, moves: &[WorkflowChange]) -> (Option<JobState>, JobState) {
        let mut workflows = [0i32; JobState::ALL.len()];
        for (_, workflow) in self.state.workflows_of(job) {
            workflows[workflow.state as usize] += 1;
        }
        let state = |workflows: &[i32; JobState::ALL.len()]| {
            most_advanced(JobState::ALL.into_iter().filter(|state| workflows[*state as usize] > 0))
        };
        let after = state(&workflows).expect("a job has at least one workflow");
        for moved in moves {
            workflows[self.state.workflow(moved.workflow).state as usize] -= 1;
            if let Some(from) = moved.from {
                workflows[from as usize] += 1;
            }
        }
        (state(&workflows), after)
    }
}
