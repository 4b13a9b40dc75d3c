//! What holds in every state. Tests of every sort ask for it; nothing else does, because it looks at everything.

use std::collections::BTreeMap;

use crate::job::WorkflowState;
use crate::payload::{Digest, Payload};
use crate::schedule::{MAX_WAITING, RECORDS_KEPT};

use super::{EndedAttempt, Job, JobKey, State, WorkflowKey};

impl State {
    /// Panics if an index does not say what the records say, or if a record contradicts itself.
    pub fn check(&self) {
        let (mut open, mut unique, mut dead, mut workflows, mut running) = (0, 0, 0, 0, 0);
        let mut stored: BTreeMap<Digest, u32> = BTreeMap::new();
        for (key, job) in self.jobs() {
            assert_eq!(self.find(job.id), Some(key), "{} is not found by its id", job.id);
            self.check_job(key, job);
            open += usize::from(!job.has_ended());
            unique += usize::from(!job.has_ended() && job.spec.unique_key().is_some());
            dead += usize::from(job.dead);
            workflows += job.workflows.as_slice().len();
            running += self.workflows_of(job).filter(|(_, workflow)| workflow.attempt.is_some()).count();
            self.payloads_of(job).filter_map(Payload::as_stored).for_each(|content| {
                *stored.entry(content.digest).or_default() += 1;
            });
        }
        self.check_schedules(&mut stored);
        assert_eq!(self.job_ids.len(), self.jobs.len(), "ids of jobs that are gone");
        assert_eq!(self.workflows.len(), workflows, "workflows without a job");
        assert_eq!((self.attempts.len(), self.running.len()), (running, running), "attempts without a workflow");
        assert_eq!(self.open_jobs, open, "open jobs are counted wrongly");
        assert_eq!(self.unique.len(), unique, "unique keys of jobs that ended");
        assert_eq!(self.dead.len(), dead, "dead letters");
        let counted: BTreeMap<Digest, u32> = self.stored.iter().map(|(content, refs)| (content.digest, refs)).collect();
        assert_eq!(counted, stored, "references to stored content are counted wrongly");
        let expiry = self.expiring.iter().map(|(at, _)| *at);
        assert!(expiry.is_sorted(), "keys do not expire in their order");
    }

    fn check_job(&self, key: JobKey, job: &Job) {
        let id = job.id;
        let mut open = 0;
        for (index, workflow) in job.workflows.as_slice().iter().enumerate() {
            assert_eq!(usize::from(self.workflow(*workflow).index), index, "{id}: a workflow is out of order");
            assert_eq!(self.workflow(*workflow).job, key, "{id}: a workflow of another job");
            open += usize::from(self.workflow(*workflow).is_open());
            self.check_workflow(*workflow, job);
        }
        assert_eq!(usize::from(job.open), open, "{id}: open workflows are counted wrongly");
        assert_eq!(job.ended_at.get().is_some(), job.has_ended(), "{id}: it ended, or it did not");
        if let Some(unique) = job.spec.unique_key().filter(|_| !job.has_ended()) {
            assert_eq!(self.unique.get(unique), Some(&key), "{id} is open and does not hold its unique key");
        }
        let died = job.more.as_ref().and_then(|more| more.died);
        assert_eq!(died.is_some(), job.dead, "{id}: a dead letter has its place");
        if let Some(died) = died {
            assert!(job.has_ended() && self.dead.get(&died) == Some(&key), "{id}: it is not among the dead letters");
        }
    }

    fn check_workflow(&self, key: WorkflowKey, job: &Job) {
        let (id, workflow) = (job.id, self.workflow(key));
        assert_eq!(workflow.attempt.is_some(), workflow.state.is_held(), "{id}: who is held has an attempt");
        assert!(workflow.counted <= workflow.handouts, "{id}: more attempts count than were handed out");
        if let Some(attempt) = workflow.attempt {
            let claim = self.claim_of(attempt);
            assert_eq!(self.attempt(attempt).workflow, key, "{id}: an attempt of another workflow");
            let expected = (id, workflow.index, workflow.last_fence);
            assert_eq!(
                (claim.job, claim.workflow, claim.fence),
                expected,
                "{id}: the newest attempt is the running one"
            );
            assert_eq!(self.running_attempt(id, workflow.index), Some(attempt), "{id}: its attempt is not found");
        }
        if workflow.state == WorkflowState::Waiting {
            let before = job.spec.workflows[usize::from(workflow.index)].after.iter();
            let state = |index: &u16| self.workflow(job.workflows.as_slice()[usize::from(*index)]).state;
            let left = before.filter(|index| state(index) != WorkflowState::Succeeded).count();
            assert_eq!(usize::from(workflow.predecessors_left), left, "{id}: what it waits for is counted wrongly");
        }
    }

    fn check_schedules(&self, stored: &mut BTreeMap<Digest, u32>) {
        for (name, schedule) in self.schedules() {
            let template = schedule.plan.job.workflows.iter();
            template.filter_map(|workflow| workflow.payload.as_stored()).for_each(|content| {
                *stored.entry(content.digest).or_default() += 1;
            });
            assert!(schedule.waiting.iter().is_sorted(), "{name}: instants wait out of order");
            assert!(schedule.waiting.iter().all(|due| *due <= schedule.horizon), "{name}: one waits that is not known");
            assert!(schedule.records.list.len() <= RECORDS_KEPT, "{name}: too many records");
            assert!(schedule.waiting.len() <= MAX_WAITING, "{name}: too many wait");
            let counted = schedule.counts.fired + schedule.counts.skipped + schedule.counts.missed;
            let recorded = schedule.records.list.iter().map(|record| record.count).sum::<u64>();
            assert_eq!(counted, recorded + schedule.records.dropped, "{name}: instants are counted wrongly");
            for open in &schedule.open {
                let job = self.find(*open).unwrap_or_else(|| panic!("{name}: its run {open} is gone and did not end"));
                assert!(!self.job(job).has_ended(), "{name}: its run {open} has ended");
            }
        }
    }

    fn payloads_of<'a>(&'a self, job: &'a Job) -> impl Iterator<Item = &'a Payload> {
        let given = job.spec.workflows.iter().map(|workflow| &workflow.payload);
        let past = self.workflows_of(job).filter_map(|(_, workflow)| workflow.past.as_ref());
        given.chain(past.flat_map(|past| past.attempts().filter_map(EndedAttempt::result)))
    }
}
