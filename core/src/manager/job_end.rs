//! What becomes of a job if it is over by what is about to be decided. It goes into the event, which may be applied by
//! a version with other rules.

use crate::event::NextState;
use crate::job::end::{JobEnd, is_dead_by};
use crate::job::{Ending, WorkflowState};
use crate::state::{JobKey, Workflow, WorkflowKey};
use crate::timeout::TimeoutReason;

use super::Manager;

impl Manager {
    /// The job's end by the end of an attempt of this workflow; none if the workflow goes on.
    pub(super) fn end_by_attempt(&self, key: WorkflowKey, ending: &Ending, then: NextState) -> Option<JobEnd> {
        let becomes = match then {
            NextState::Ready | NextState::Delayed { .. } => return None,
            NextState::Succeeded => WorkflowState::Succeeded,
            NextState::Failed => WorkflowState::Failed,
            NextState::TimedOut => WorkflowState::TimedOut,
            NextState::Cancelled => WorkflowState::Cancelled,
        };
        let workflow = self.state.workflow(key);
        let ends_job = then == NextState::TimedOut;
        let timed_out = ends_job.then_some(TimeoutReason::Stuck);
        Some(self.job_end(workflow.job, timed_out, |other, workflow| match () {
            () if other == key => (becomes, if ending.counts() { workflow.counted } else { workflow.counted - 1 }),
            () if ends_job => after_timeout(workflow),
            () => (workflow.state, workflow.counted),
        }))
    }

    /// The job's end by a cancel, if nobody runs any of it.
    pub(super) fn end_by_cancel(&self, key: JobKey) -> JobEnd {
        self.job_end(key, None, |_, workflow| (workflow.state, workflow.counted))
    }

    /// The job's end by its overall deadline.
    pub(super) fn end_by_timeout(&self, key: JobKey, reason: TimeoutReason) -> JobEnd {
        self.job_end(key, Some(reason), |_, workflow| after_timeout(workflow))
    }

    /// `after` gives the state of each workflow, and how many of its attempts count, once the event is applied.
    fn job_end(
        &self,
        key: JobKey,
        timed_out: Option<TimeoutReason>,
        after: impl Fn(WorkflowKey, &Workflow) -> (WorkflowState, u32),
    ) -> JobEnd {
        let job = self.state.job(key);
        // Whoever was asked to stop is not timed out.
        let timed_out = timed_out.filter(|_| !job.cancel_asked).or(job.timed_out);
        let dead = self.state.workflows_of(job).any(|(key, workflow)| {
            let (state, counted) = after(key, workflow);
            is_dead_by(state, counted, timed_out, job.spec.retry.max_attempts)
        });
        JobEnd::new(self.log_now(), job.spec.idempotency_key().is_some(), dead)
    }
}

/// A workflow of a job that is timed out: what is open ends, and an attempt that ends by it does not count.
fn after_timeout(workflow: &Workflow) -> (WorkflowState, u32) {
    match workflow.state {
        WorkflowState::Cancelling => (WorkflowState::Cancelled, workflow.counted),
        WorkflowState::Running => (WorkflowState::TimedOut, workflow.counted - 1),
        WorkflowState::Waiting | WorkflowState::Delayed | WorkflowState::Ready => {
            (WorkflowState::TimedOut, workflow.counted)
        }
        ended => (ended, workflow.counted),
    }
}
