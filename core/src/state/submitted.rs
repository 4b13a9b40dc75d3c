//! Applying a submission: the records of a new job, and what it takes over from the job that it repeats.

use crate::event::JobSubmitted;
use crate::job::{Start, WorkflowState};
use crate::time::Wall;

use super::apply::{Changes, WorkflowChange};
use super::records::*;
use super::{KeyRecord, State};

impl State {
    pub(super) fn submit(&mut self, at: Wall, submitted: &JobSubmitted, changes: &mut Changes) {
        let (spec, taken_over) = (&submitted.spec, &submitted.taken_over);
        let job_key = self.jobs.next_key();
        let mut successes = self.take_over(submitted).into_iter();
        let is_taken = |index: &u16| taken_over.binary_search(index).is_ok();
        let new_workflow = |index: usize| {
            let past = is_taken(&(index as u16)).then(|| Box::new(successes.next().expect("there is one for each")));
            let after = spec.workflows[index].after.iter().filter(|before| !is_taken(before)).count() as u16;
            let (state, due_at, wall_due) = match spec.start {
                _ if past.is_some() => (WorkflowState::Succeeded, at, false),
                _ if after > 0 => (WorkflowState::Waiting, at, false),
                Start::AtOnce => (WorkflowState::Ready, at, false),
                Start::After(delay) => (WorkflowState::Delayed, at + delay, false),
                Start::At(wall) => (WorkflowState::Delayed, wall, true),
            };
            let key = self.workflows.insert(Workflow {
                job: job_key,
                attempt: None,
                counted: 0,
                handouts: 0,
                last_fence: crate::fence::AttemptFence::NONE,
                ready_at: at,
                due_at,
                index: index as u16,
                predecessors_left: after,
                state,
                wall_due,
                past,
            });
            changes.workflows.push(WorkflowChange { workflow: key, ended: None, from: None });
            key
        };
        let count = spec.workflows.len();
        let workflows = Members::from((0..count).map(new_workflow));
        let started_at = matches!(spec.start, Start::AtOnce).then_some(at).into();
        // A copy of its own: it lies with the job, and shares what is large.
        let mut own = (**spec).clone();
        own.workflows.iter_mut().for_each(|workflow| self.stored.hold(&mut workflow.payload));
        let job = Job {
            id: submitted.id,
            spec: own,
            created_at: at,
            started_at,
            ended_at: Stamp::NOT_YET,
            workflows,
            open: (count - taken_over.len()) as u16,
            cancel_asked: false,
            dead: false,
            timed_out: None,
            more: None,
        };
        assert_eq!(self.jobs.insert(job), job_key);
        self.job_ids.insert(submitted.id, job_key);
        self.open_jobs += 1;
        if let Some(key) = spec.unique_key() {
            self.unique.insert(key.clone(), job_key);
        }
        if let (Some(key), Some(fingerprint)) = (spec.idempotency_key(), submitted.fingerprint) {
            self.idempotency.insert(key.clone(), KeyRecord { job: submitted.id, fingerprint });
        }
        if let Some(retry_of) = &submitted.retry_of {
            self.more(job_key).retry_of = Some(retry_of.job);
            if let Some(original) = self.find(retry_of.job) {
                let more = self.more(original);
                more.retried_as.push((retry_of.request.clone(), submitted.id));
                more.took_over.push((retry_of.request.clone(), !submitted.taken_over.is_empty()));
            }
        }
        if let Some(origin) = &submitted.gate {
            self.tie_to_gate(job_key, origin);
        }
        if let Some(run) = &submitted.scheduled {
            self.start_run(at, job_key, submitted.id, run);
        }
        changes.submitted.push(job_key);
    }

    /// The successes that a new job takes over from the one that it repeats. Their content is from now on its own, too.
    fn take_over(&mut self, submitted: &JobSubmitted) -> Vec<Past> {
        let mut successes: Vec<EndedAttempt> =
            submitted.taken_over.iter().map(|index| self.success_to_take_over(submitted, *index)).collect();
        successes.iter_mut().filter_map(EndedAttempt::result_mut).for_each(|result| self.stored.hold(result));
        let past = |success| {
            let mut past = Past::default();
            past.push(success);
            past
        };
        successes.into_iter().map(past).collect()
    }

    fn success_to_take_over(&self, submitted: &JobSubmitted, index: u16) -> EndedAttempt {
        let original = submitted.retry_of.as_ref().expect("what is taken over is that of a job that is named").job;
        let original = &self.jobs[self.find(original).expect("a dead letter is in memory until it is replayed")];
        let workflow = &self.workflows[original.workflows.as_slice()[usize::from(index)]];
        let success = workflow.past.as_ref().and_then(|past| past.last()).filter(|ended| ended.result().is_some());
        EndedAttempt { refused: 0, ..success.expect("a success is the last attempt of its workflow").clone() }
    }
}
