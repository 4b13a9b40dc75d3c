//! A whole job as a plain record: what an archive keeps of it, and what a snapshot is made of.
//!
//! An image owns everything and knows no key of this process, so it means the same wherever it is read.

use core::time::Duration;

use crate::event::Via;
use crate::fence::AttemptFence;
use crate::grant::Fraction;
use crate::ids::{Bytes, Claim, Incarnation, JobId, Name, Seq, WorkerId};
use crate::input::ReplayFrom;
use crate::job::fingerprint::Fingerprint;
use crate::job::transition::job_state;
use crate::job::{Ending, JobSpec, JobState, WorkflowState};
use crate::payload::Payload;
use crate::refusal::Refusal;
use crate::time::Wall;
use crate::timeout::TimeoutReason;

use super::standing::{FenceStanding, answer_over, compare};
use super::{Attempt, WorkerRecord, hash_workflow};
use super::{EndedAttempt, Job, JobKey, JobMore, KeyRecord, Members, Past, State, Workflow, WorkflowKey};

#[derive(Clone, PartialEq, Debug)]
pub struct JobImage {
    pub id: JobId,
    pub spec: JobSpec,
    pub created_at: Wall,
    pub started_at: Option<Wall>,
    pub ended_at: Option<Wall>,
    pub cancel_asked: bool,
    pub timed_out: Option<TimeoutReason>,
    pub more: Option<Box<JobMore>>,
    /// The fingerprint of an idempotency key that is still remembered.
    pub fingerprint: Option<Fingerprint>,
    /// Workflows in the order of the specification.
    pub workflows: Vec<WorkflowImage>,
}

#[derive(Clone, PartialEq, Debug)]
pub struct WorkflowImage {
    pub state: WorkflowState,
    pub counted: u32,
    pub handouts: u32,
    pub last_fence: AttemptFence,
    pub ready_at: Wall,
    pub due_at: Wall,
    pub wall_due: bool,
    pub predecessors_left: u16,
    pub past: Option<PastImage>,
    pub attempt: Option<AttemptImage>,
}

/// The kept record of attempts that ended.
#[derive(Clone, PartialEq, Debug)]
pub struct PastImage {
    /// The oldest first.
    pub attempts: Vec<EndedAttempt>,
    pub dropped: u32,
    pub checkpoint: Option<Bytes>,
}

/// The running attempt. Its fence is the newest of its workflow.
#[derive(Clone, PartialEq, Debug)]
pub struct AttemptImage {
    pub worker: WorkerId,
    pub incarnation: Incarnation,
    pub via: Via,
    pub handed_at: Wall,
    pub lease: Duration,
    pub grants: u32,
    pub last_grant_progress: Option<Fraction>,
    pub quiet: Option<(Wall, Duration)>,
    pub quiet_used: Duration,
    pub mark: Option<(u64, Option<u64>)>,
    pub granted_until: Wall,
}

impl JobImage {
    /// Every payload and every result.
    pub fn payloads(&self) -> impl Iterator<Item = &Payload> {
        let given = self.spec.workflows.iter().map(|workflow| &workflow.payload);
        let past = self.workflows.iter().filter_map(|workflow| workflow.past.as_ref());
        given.chain(past.flat_map(|past| past.attempts.iter().filter_map(EndedAttempt::result)))
    }

    pub fn state(&self) -> JobState {
        job_state(self.workflows.iter().map(|workflow| workflow.state))
    }

    pub fn has_ended(&self) -> bool {
        self.ended_at.is_some()
    }

    /// The job's place among the dead letters, if it is one.
    pub fn died(&self) -> Option<Seq> {
        self.more.as_ref()?.died
    }

    /// The job that this request made of it.
    pub fn retried_as(&self, request: &Name) -> Option<JobId> {
        let mut retries = self.more.iter().flat_map(|more| &more.retried_as);
        retries.find(|(known, _)| known == request).map(|(_, job)| *job)
    }

    /// The job that this request made of it as a dead letter, if it asked for the same then.
    pub fn replayed_as(&self, request: &Name, from: ReplayFrom) -> Option<Result<JobId, Refusal>> {
        let has_success = self.workflows.iter().any(|workflow| workflow.state == WorkflowState::Succeeded);
        self.more.as_ref()?.repeated_as(request, from == ReplayFrom::Failed && has_success)
    }

    /// The machine's answer to this outcome, or to a beat if there is none, if it still held this job, which
    /// has ended.
    pub fn answer(&self, claim: &Claim, outcome: Option<&Ending>) -> Result<(), Refusal> {
        let workflow = self.workflows.get(usize::from(claim.workflow)).ok_or(Refusal::UnknownWorkflow)?;
        let standing = compare(claim.fence, workflow.last_fence);
        if standing == FenceStanding::NeverHandedOut {
            return Err(Refusal::UnknownAttempt);
        }
        let kept = workflow.past.iter().flat_map(|past| &past.attempts);
        let ended = kept.rev().find(|ended| ended.fence == claim.fence);
        answer_over(standing, workflow.state, ended, outcome)
    }
}

impl State {
    pub fn image(&self, key: JobKey) -> JobImage {
        let job = &self.jobs[key];
        let known = job.spec.idempotency_key().and_then(|name| self.idempotency.get(name));
        JobImage {
            id: job.id,
            spec: job.spec.clone(),
            created_at: job.created_at,
            started_at: job.started_at.get(),
            ended_at: job.ended_at.get(),
            cancel_asked: job.cancel_asked,
            timed_out: job.timed_out,
            more: job.more.clone(),
            fingerprint: known.filter(|known| known.job == job.id).map(|known| known.fingerprint),
            workflows: self.workflows_of(job).map(|(_, workflow)| self.workflow_image(workflow)).collect(),
        }
    }

    fn workflow_image(&self, workflow: &Workflow) -> WorkflowImage {
        WorkflowImage {
            state: workflow.state,
            counted: workflow.counted,
            handouts: workflow.handouts,
            last_fence: workflow.last_fence,
            ready_at: workflow.ready_at,
            due_at: workflow.due_at,
            wall_due: workflow.wall_due,
            predecessors_left: workflow.predecessors_left,
            past: workflow.past.as_ref().map(|past| past.image()),
            attempt: workflow.attempt.map(|attempt| {
                let attempt = &self.attempts[attempt];
                AttemptImage {
                    worker: attempt.worker.clone(),
                    incarnation: attempt.incarnation.clone(),
                    via: attempt.via.clone(),
                    handed_at: attempt.handed_at,
                    lease: attempt.lease,
                    grants: attempt.grants,
                    last_grant_progress: attempt.last_grant_progress,
                    quiet: attempt.quiet,
                    quiet_used: attempt.quiet_used,
                    mark: attempt.mark,
                    granted_until: attempt.granted_until,
                }
            }),
        }
    }

    /// Puts a job back as its image has it.
    pub(crate) fn restore_job(&mut self, image: JobImage) -> JobKey {
        let JobImage { id, mut spec, fingerprint, more, .. } = image;
        spec.workflows.iter_mut().for_each(|workflow| self.stored.hold(&mut workflow.payload));
        if let Some(fingerprint) = fingerprint {
            self.restore_idempotency(&mut spec, KeyRecord { job: id, fingerprint });
        }
        let job_key = self.jobs.next_key();
        let open = image.workflows.iter().filter(|workflow| !workflow.state.is_terminal()).count();
        let mut members: Vec<WorkflowKey> = Vec::with_capacity(image.workflows.len());
        for (index, workflow) in image.workflows.into_iter().enumerate() {
            members.push(self.restore_workflow(id, job_key, index as u16, workflow));
        }
        if let Some(unique) = spec.unique_key().filter(|_| open > 0) {
            self.unique.insert(unique.clone(), job_key);
        }
        let died = more.as_ref().and_then(|more| more.died);
        if let Some(seq) = died {
            self.dead.insert(seq, job_key);
        }
        self.open_jobs += usize::from(open > 0);
        let job = Job {
            id,
            spec,
            created_at: image.created_at,
            started_at: image.started_at.into(),
            ended_at: image.ended_at.into(),
            workflows: Members::from(members.into_iter()),
            open: open as u16,
            cancel_asked: image.cancel_asked,
            dead: died.is_some(),
            timed_out: image.timed_out,
            more,
        };
        assert_eq!(self.jobs.insert(job), job_key);
        self.job_ids.insert(id, job_key);
        job_key
    }

    fn restore_workflow(&mut self, id: JobId, job: JobKey, index: u16, image: WorkflowImage) -> WorkflowKey {
        let workflow = self.workflows.next_key();
        let attempt = image.attempt.map(|attempt| {
            let claim = Claim { job: id, workflow: index, fence: image.last_fence };
            self.start_attempt(Attempt {
                claim,
                workflow,
                worker: attempt.worker,
                incarnation: attempt.incarnation,
                via: attempt.via,
                handed_at: attempt.handed_at,
                lease: attempt.lease,
                grants: attempt.grants,
                last_grant_progress: attempt.last_grant_progress,
                granted_until: attempt.granted_until,
                quiet: attempt.quiet,
                quiet_used: attempt.quiet_used,
                mark: attempt.mark,
            })
        });
        let past = image.past.map(|mut past| {
            past.attempts.iter_mut().filter_map(EndedAttempt::result_mut).for_each(|result| self.stored.hold(result));
            Box::new(Past::of_image(past))
        });
        self.workflows.insert(Workflow {
            job,
            attempt,
            counted: image.counted,
            handouts: image.handouts,
            last_fence: image.last_fence,
            ready_at: image.ready_at,
            due_at: image.due_at,
            index,
            predecessors_left: image.predecessors_left,
            state: image.state,
            wall_due: image.wall_due,
            past,
        })
    }

    /// A job and the list of keys that expire each bring the name of a key: one of them is kept.
    fn restore_idempotency(&mut self, spec: &mut JobSpec, record: KeyRecord) {
        let Some(name) = spec.keys.as_mut().and_then(|keys| keys.idempotency.as_mut()) else { return };
        match self.idempotency.get_key_value(name) {
            Some((known, _)) => name.clone_from(known),
            None => {
                self.idempotency.insert(name.clone(), record);
            }
        }
    }

    /// Puts the next key to expire back; in the order in which they do.
    pub(crate) fn restore_key(&mut self, expires_at: Wall, name: Name, record: KeyRecord) {
        let name = match self.idempotency.get_key_value(&name) {
            Some((known, _)) => known.clone(),
            None => {
                self.idempotency.insert(name.clone(), record);
                name
            }
        };
        self.expiring.push_back((expires_at, name));
    }

    pub(crate) fn restore_head(&mut self, term: crate::fence::Term, newest: Wall, seq: Seq) {
        assert!(self.seq == Seq::default() && self.jobs.is_empty(), "a snapshot is restored into a new machine");
        (self.term, self.newest, self.seq) = (term, newest, seq);
    }

    pub(crate) fn restore_worker(&mut self, worker: WorkerId, record: WorkerRecord) {
        self.workers.insert(worker, record);
    }

    pub(crate) fn restore_paused(&mut self, queue: Name) {
        self.paused.insert(queue);
    }

    /// Takes an attempt into the running ones.
    pub(super) fn start_attempt(&mut self, attempt: Attempt) -> super::AttemptKey {
        let claim = attempt.claim;
        let key = self.attempts.insert(attempt);
        let attempts = &self.attempts;
        self.running.insert_unique(hash_workflow(claim.job, claim.workflow), key, |key| {
            let claim = &attempts[*key].claim;
            hash_workflow(claim.job, claim.workflow)
        });
        key
    }
}
