//! The persisted state of one datacenter: a fold over events.
//!
//! Nothing here knows a clock or a rule. [`State::apply`] is the only writer; it is called with events that were just
//! decided and with the same events read back from the log, and gives the same state both times: [`State::dump`] makes
//! that comparable to the byte. What may be lost in a crash (beats, probes, who is connected) is not here.

mod apply;
mod check;
mod dump;
mod gate;
mod image;
mod job_ids;
mod records;
mod schedules;
mod standing;
pub(crate) mod stored;
mod submitted;

use core::cell::Cell;
use core::ops::Range;
use core::slice::from_ref;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::{HashMap, HashTable};
use prefetch_index::prefetch_index;

use crate::fence::Term;
use crate::ids::{Claim, JobId, Name, Seq, WorkerId};
use crate::job::fingerprint::Fingerprint;
use crate::job::transition::job_state;
use crate::job::{Ending, JobState, WorkflowState};
use crate::key::Key;
use crate::pages::Pages;
use crate::payload::{Digest, Payload, StoredContent};
use crate::refusal::Refusal;
use crate::time::Wall;

pub use apply::{Changes, WorkflowChange};
pub use gate::{WITHDRAWN, gate_key};
pub use image::{AttemptImage, JobImage, PastImage, WorkflowImage};
pub use records::*;
pub use schedules::{FAILURES_TOLERATED, RecordCounts, Schedule, SchedulePlan, ScheduleTrouble};

use job_ids::{JobIds, hash_workflow};
use standing::{FenceStanding, answer_over, compare};
use stored::StoredCounts;

/// Keys into the pages. They are local to one process: the same job may lie elsewhere after a replay from a snapshot.
pub type JobKey = Key<Job>;
pub type WorkflowKey = Key<Workflow>;
pub type AttemptKey = Key<Attempt>;

#[derive(Debug)]
pub struct State {
    term: Term,
    newest: Wall,
    seq: Seq,
    jobs: Pages<Job>,
    job_ids: JobIds,
    /// Found last. Most look-ups in a row are about one job.
    found: Cell<Option<JobKey>>,
    workflows: Pages<Workflow>,
    attempts: Pages<Attempt>,
    /// Running attempts by workflow: small, and asked with every beat.
    running: HashTable<AttemptKey>,
    unique: HashMap<Name, JobKey, FixedState>,
    idempotency: HashMap<Name, KeyRecord, FixedState>,
    /// Idempotency keys of ended jobs, in the order in which they expire.
    expiring: VecDeque<(Wall, Name)>,
    /// The number of keys that have expired, so that each has a number of its own.
    expired: u64,
    paused: BTreeSet<Name>,
    workers: BTreeMap<WorkerId, WorkerRecord>,
    /// Jobs with dead letters, in the order in which they died.
    dead: BTreeMap<Seq, JobKey>,
    open_jobs: usize,
    stored: StoredCounts,
    schedules: BTreeMap<Name, Schedule>,
}

/// The job behind an idempotency key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyRecord {
    pub job: JobId,
    pub fingerprint: Fingerprint,
}

/// The standing of a claim against the state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClaimStanding {
    /// The claim is that of the running attempt.
    Current(AttemptKey),
    /// The newest attempt of its workflow, and it has ended.
    Ended(WorkflowKey),
    /// A newer attempt was handed out since.
    Superseded(WorkflowKey),
    NeverHandedOut,
    NoSuchWorkflow,
    NoSuchJob,
}

impl State {
    /// `seed` decides where things lie in hash tables; it never shows.
    pub fn new(seed: u64) -> Self {
        let hasher = FixedState::with_seed(seed);
        Self {
            term: Term::default(),
            newest: Wall::ZERO,
            seq: Seq::default(),
            jobs: Pages::new(),
            job_ids: JobIds::default(),
            found: Cell::new(None),
            workflows: Pages::new(),
            attempts: Pages::new(),
            running: HashTable::new(),
            unique: HashMap::with_hasher(hasher.clone()),
            idempotency: HashMap::with_hasher(hasher),
            expiring: VecDeque::new(),
            expired: 0,
            paused: BTreeSet::new(),
            workers: BTreeMap::new(),
            dead: BTreeMap::new(),
            open_jobs: 0,
            stored: StoredCounts::default(),
            schedules: BTreeMap::new(),
        }
    }

    pub fn term(&self) -> Term {
        self.term
    }

    /// The newest stamp applied.
    pub fn newest(&self) -> Wall {
        self.newest
    }

    pub fn seq(&self) -> Seq {
        self.seq
    }

    pub fn job_count(&self) -> usize {
        self.jobs.len()
    }

    pub fn open_jobs(&self) -> usize {
        self.open_jobs
    }

    pub fn find(&self, id: JobId) -> Option<JobKey> {
        let last = self.found.get();
        if last.and_then(|last| self.jobs.get(last)).is_some_and(|job| job.id == id) {
            return last;
        }
        let key = self.job_ids.find(id, |key| self.jobs[key].id == id)?;
        self.found.set(Some(key));
        Some(key)
    }

    #[inline]
    pub fn job(&self, key: JobKey) -> &Job {
        &self.jobs[key]
    }

    #[inline]
    pub fn workflow(&self, key: WorkflowKey) -> &Workflow {
        &self.workflows[key]
    }

    #[inline]
    pub fn attempt(&self, key: AttemptKey) -> &Attempt {
        &self.attempts[key]
    }

    /// Has what hand-outs will need brought into the caches, and does not wait for it. Each workflow is to be named
    /// first, then second, third and fourth: where one thing refers to the next, it goes one further each time, and
    /// finds there what it asked for before. Returns the job of the second, if there is one.
    pub fn prefetch(&self, [first, second, third, fourth]: [Option<WorkflowKey>; 4]) -> Option<JobKey> {
        let job_of = |key: Option<WorkflowKey>| self.workflows.get(key?).map(|workflow| workflow.job);
        if let Some(first) = first {
            self.workflows.prefetch(first);
        }
        let coming = job_of(second);
        if let Some(coming) = coming {
            self.jobs.prefetch(coming);
        }
        if let Some(job) = job_of(third).and_then(|job| self.jobs.get(job)) {
            prefetch_index(from_ref(&job.spec), 0);
        }
        if let Some(workflow) = fourth.and_then(|fourth| self.workflows.get(fourth))
            && let Some(job) = self.jobs.get(workflow.job)
        {
            job.spec.policy.prefetch();
            prefetch_index(&*job.spec.workflows, usize::from(workflow.index));
        }
        coming
    }

    pub fn jobs(&self) -> impl Iterator<Item = (JobKey, &Job)> {
        self.jobs.iter()
    }

    pub fn attempts(&self) -> impl Iterator<Item = (AttemptKey, &Attempt)> {
        self.attempts.iter()
    }

    pub fn attempt_count(&self) -> usize {
        self.attempts.len()
    }

    pub fn workflows_of<'a>(&'a self, job: &'a Job) -> impl Iterator<Item = (WorkflowKey, &'a Workflow)> {
        job.workflows.as_slice().iter().map(|key| (*key, &self.workflows[*key]))
    }

    pub fn job_state(&self, key: JobKey) -> JobState {
        job_state(self.workflows_of(&self.jobs[key]).map(|(_, workflow)| workflow.state))
    }

    /// The workflow that a claim names, whether or not the claim is good.
    pub fn workflow_of(&self, claim: &Claim) -> Option<WorkflowKey> {
        let job = &self.jobs[self.find(claim.job)?];
        job.workflows.as_slice().get(usize::from(claim.workflow)).copied()
    }

    pub fn standing(&self, claim: &Claim) -> ClaimStanding {
        if let Some(key) = self.running_attempt(claim.job, claim.workflow) {
            let attempt = &self.attempts[key];
            return match compare(claim.fence, attempt.claim.fence) {
                FenceStanding::Newest => ClaimStanding::Current(key),
                FenceStanding::Superseded => ClaimStanding::Superseded(attempt.workflow),
                FenceStanding::NeverHandedOut => ClaimStanding::NeverHandedOut,
            };
        }
        let Some(job) = self.find(claim.job) else { return ClaimStanding::NoSuchJob };
        let Some(key) = self.jobs[job].workflows.as_slice().get(usize::from(claim.workflow)).copied() else {
            return ClaimStanding::NoSuchWorkflow;
        };
        match compare(claim.fence, self.workflows[key].last_fence) {
            FenceStanding::Newest => ClaimStanding::Ended(key),
            FenceStanding::Superseded => ClaimStanding::Superseded(key),
            FenceStanding::NeverHandedOut => ClaimStanding::NeverHandedOut,
        }
    }

    /// The answer to a caller that speaks for an attempt which is over, with the outcome that it reports, if it does.
    /// `None` where the claim stands otherwise.
    pub fn answer_if_over(&self, claim: &Claim, said: Option<&Ending>) -> Option<Result<(), Refusal>> {
        let (key, standing) = match self.standing(claim) {
            ClaimStanding::Ended(key) => (key, FenceStanding::Newest),
            ClaimStanding::Superseded(key) => (key, FenceStanding::Superseded),
            _ => return None,
        };
        Some(answer_over(standing, self.workflows[key].state, self.ended_attempt(claim), said))
    }

    fn running_attempt(&self, job: JobId, workflow: u16) -> Option<AttemptKey> {
        let is_it = |key: &AttemptKey| {
            let claim = &self.attempts[*key].claim;
            claim.job == job && claim.workflow == workflow
        };
        self.running.find(hash_workflow(job, workflow), is_it).copied()
    }

    #[inline]
    pub fn claim_of(&self, key: AttemptKey) -> Claim {
        self.attempts[key].claim
    }

    /// Says which job is spoken of next, so that it need not be looked up.
    pub fn hint(&self, key: JobKey) {
        self.found.set(Some(key));
    }

    /// The ended attempt with this fence, if it is still kept.
    pub fn ended_attempt(&self, claim: &Claim) -> Option<&EndedAttempt> {
        let workflow = &self.workflows[self.workflow_of(claim)?];
        workflow.past.as_ref()?.attempts().rev().find(|ended| ended.fence == claim.fence)
    }

    /// The result of a workflow that succeeded.
    pub fn result(&self, key: WorkflowKey) -> Option<&Payload> {
        self.workflows[key].past.as_ref()?.last()?.result()
    }

    /// The workflows of a job that have succeeded. Their results are kept for as long as the job is.
    pub fn succeeded_workflows(&self, job: JobKey) -> Arc<[u16]> {
        let all = self.workflows_of(&self.jobs[job]);
        all.filter(|(_, workflow)| workflow.state == WorkflowState::Succeeded)
            .map(|(_, workflow)| workflow.index)
            .collect()
    }

    pub fn unique_holder(&self, key: &Name) -> Option<JobId> {
        self.unique.get(key).map(|job| self.jobs[*job].id)
    }

    pub fn idempotency(&self, key: &Name) -> Option<KeyRecord> {
        self.idempotency.get(key).copied()
    }

    pub fn idempotency_keys(&self) -> usize {
        self.idempotency.len()
    }

    /// The idempotency keys that will expire, by their numbers.
    pub(crate) fn expiring_span(&self) -> Range<u64> {
        self.expired..self.expired + self.expiring.len() as u64
    }

    pub(crate) fn expiring_at(&self, number: u64) -> (Wall, &Name, KeyRecord) {
        let (at, name) = &self.expiring[(number - self.expired) as usize];
        (*at, name, self.idempotency[name])
    }

    /// Every job has a key below this.
    pub(crate) fn job_keys_end(&self) -> JobKey {
        self.jobs.keys_end()
    }

    pub(crate) fn has_job(&self, key: JobKey) -> bool {
        self.jobs.get(key).is_some()
    }

    /// The idempotency key that expires next.
    pub fn next_key_expiry(&self) -> Option<(Wall, &Name)> {
        self.expiring.front().map(|(at, key)| (*at, key))
    }

    /// The idempotency keys that have expired by now, in the order in which they did, at most so many.
    pub fn expired_keys(&self, now: Wall, max: usize) -> Vec<Name> {
        self.expiring.iter().take(max).take_while(|(at, _)| *at <= now).map(|(_, key)| key.clone()).collect()
    }

    pub fn is_paused(&self, queue: &Name) -> bool {
        self.paused.contains(queue)
    }

    pub fn paused(&self) -> &BTreeSet<Name> {
        &self.paused
    }

    pub fn worker(&self, id: &WorkerId) -> Option<&WorkerRecord> {
        self.workers.get(id)
    }

    pub fn workers(&self) -> impl Iterator<Item = (&WorkerId, &WorkerRecord)> {
        self.workers.iter()
    }

    /// Jobs with dead letters, oldest first.
    pub fn dead_letters(&self) -> impl Iterator<Item = JobKey> + '_ {
        self.dead.values().copied()
    }

    /// The number of payloads and results of the jobs held here that lie in the store under this digest.
    pub fn stored_refs(&self, digest: &Digest) -> u32 {
        self.stored.refs(digest)
    }

    /// All content in the store that the jobs held here refer to, each once, in no order.
    pub fn stored(&self) -> impl Iterator<Item = &StoredContent> {
        self.stored.iter().map(|(stored, _)| stored)
    }

    pub fn dead_letter_count(&self) -> usize {
        self.dead.len()
    }
}

impl Workflow {
    pub fn is_open(&self) -> bool {
        !self.state.is_terminal()
    }

    /// The attempt of a workflow that somebody holds.
    #[inline]
    pub fn running_attempt(&self) -> AttemptKey {
        self.attempt.expect("a workflow that is held has an attempt")
    }
}

impl Job {
    pub fn has_ended(&self) -> bool {
        self.open == 0
    }
}
