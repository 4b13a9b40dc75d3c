//! The persisted state of the gates: a fold over their events.
//!
//! Nothing here knows a clock or a rule. What may be lost in a crash (reports, streams, who was heard) is not here: every
//! datacenter says it again.

use core::fmt::Write;
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::fence::Term;
use crate::ids::{JobId, Name, Seq};
use crate::job::fingerprint::Fingerprint;
use crate::job::{JobSpec, JobState};
use crate::payload::{Digest, Payload};
use crate::state::stored::StoredCounts;
use crate::state::{HandExtension, Ledger, LedgerFact};
use crate::time::Wall;
use crate::timeout::{ExtensionTotals, overall_deadline};

use super::event::{EndCause, Event, JobRebuilt, JobSubmitted, StampedEvent, TargetEnd, TargetEnded};
use super::message::{JobOutline, Outcome};

#[derive(Debug, Default)]
pub struct State {
    pub(super) term: Term,
    pub(super) newest: Wall,
    pub(super) seq: Seq,
    /// The least number of our epochs.
    pub(super) raised: u64,
    pub(super) datacenters: BTreeMap<Name, DatacenterRecord>,
    pub(super) jobs: BTreeMap<JobId, Job>,
    unique: BTreeMap<Name, JobId>,
    idempotency: BTreeMap<Name, JobId>,
    /// Ended jobs, in the order in which they may be forgotten.
    ended: BTreeSet<(Wall, JobId)>,
    stored: StoredCounts,
}

/// The newest leader that was heard of a datacenter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DatacenterRecord {
    pub term: Term,
    pub life: u64,
}

#[derive(Clone, PartialEq, Debug)]
pub struct Job {
    pub id: JobId,
    pub outline: JobOutline,
    /// None of a job that was rebuilt. Without payloads once every target has the job.
    pub spec: Option<Arc<JobSpec>>,
    /// The fingerprint of a job with an idempotency key.
    pub fingerprint: Option<Fingerprint>,
    pub created_at: Wall,
    /// The instant at which the job can first run.
    pub started_at: Wall,
    /// Decisions about it have at least this number.
    pub n: u64,
    /// Empty while it waits for a datacenter.
    pub targets: Vec<Target>,
    /// The most that any datacenter has reported.
    pub extended: ExtensionTotals,
    /// Extensions that were given here, by the request that asked for each.
    pub by_hand: Vec<HandExtension>,
    /// Every decision about its time; none before the first.
    pub ledger: Option<Box<Ledger>>,
    pub decided: Option<Decision>,
    pub ended_at: Option<Wall>,
    /// Once it has ended: until when it is kept.
    pub kept_until: Wall,
}

/// The job ends everywhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Decision {
    pub at: Wall,
    pub why: EndCause,
}

/// A datacenter of a job.
#[derive(Clone, PartialEq, Debug)]
pub struct Target {
    pub datacenter: Name,
    /// The datacenter has the job, durably.
    pub confirmed: bool,
    pub ended_at: Option<Wall>,
    pub end: Option<TargetEnd>,
}

impl Target {
    fn new(datacenter: &Name) -> Self {
        Self { datacenter: datacenter.clone(), confirmed: false, ended_at: None, end: None }
    }
}

impl Job {
    pub fn has_ended(&self) -> bool {
        self.ended_at.is_some()
    }

    pub fn target(&self, datacenter: &Name) -> Option<(usize, &Target)> {
        self.targets.iter().enumerate().find(|(_, target)| target.datacenter == *datacenter)
    }

    /// All extensions: the most of any datacenter, and what was given here.
    pub fn extensions(&self) -> ExtensionTotals {
        let given: Duration = self.by_hand.iter().map(|given| given.by).sum();
        ExtensionTotals { grants: self.extended.grants, by_hand: self.extended.by_hand + given }
    }

    /// The end of the job's overall time.
    pub fn deadline(&self) -> Wall {
        overall_deadline(self.started_at, self.outline.timeout, self.extensions(), self.outline.max_extension)
    }

    pub fn extended_by(&self, request: &Name) -> Option<&HandExtension> {
        self.by_hand.iter().find(|given| given.request == *request)
    }

    /// The worst of its targets, once all have ended; that of the decision where it has none.
    pub fn outcome(&self) -> Option<Outcome> {
        self.ended_at?;
        let worst = self.targets.iter().filter_map(|target| target.end.as_ref().map(|end| end.outcome)).max();
        worst.or_else(|| self.decided.map(|decision| decision.why.outcome()))
    }

    pub fn state(&self) -> JobState {
        match (self.outcome(), self.decided) {
            (Some(outcome), _) => outcome.state(),
            (None, Some(_)) => JobState::Cancelling,
            (None, None) if self.targets.is_empty() => JobState::Waiting,
            (None, None) if self.targets.iter().any(|target| target.confirmed) => JobState::Running,
            (None, None) => JobState::Ready,
        }
    }

    fn record(&mut self, at: Wall, fact: LedgerFact) {
        self.ledger.get_or_insert_default().push(at, fact);
    }

    fn unique_key(&self) -> Option<&Name> {
        self.spec.as_ref()?.unique_key()
    }

    fn idempotency_key(&self) -> Option<&Name> {
        self.spec.as_ref()?.idempotency_key()
    }

    fn payloads(&self) -> impl Iterator<Item = &Payload> {
        let given = self.spec.iter().flat_map(|spec| spec.workflows.iter().map(|workflow| &workflow.payload));
        given.chain(self.targets.iter().filter_map(|target| target.end.as_ref()?.result.as_ref()))
    }
}

impl State {
    pub fn term(&self) -> Term {
        self.term
    }

    pub fn seq(&self) -> Seq {
        self.seq
    }

    pub fn job(&self, id: JobId) -> Option<&Job> {
        self.jobs.get(&id)
    }

    /// Jobs in the order of their ids.
    pub fn jobs(&self) -> impl DoubleEndedIterator<Item = &Job> {
        self.jobs.values()
    }

    /// The newest first, beginning before `before`.
    pub fn jobs_before(&self, before: Option<JobId>) -> impl Iterator<Item = &Job> {
        let end = before.unwrap_or(JobId::from_u128(u128::MAX));
        self.jobs.range(..end).rev().map(|(_, job)| job)
    }

    pub fn job_count(&self) -> usize {
        self.jobs.len()
    }

    pub fn open_jobs(&self) -> usize {
        self.jobs.len() - self.ended.len()
    }

    pub(super) fn ended_jobs(&self) -> usize {
        self.ended.len()
    }

    /// The ended job that may be forgotten first, and when.
    pub(super) fn first_ended(&self) -> Option<(Wall, JobId)> {
        self.ended.first().copied()
    }

    pub(super) fn ended_in_order(&self) -> impl Iterator<Item = (Wall, JobId)> + '_ {
        self.ended.iter().copied()
    }

    pub fn datacenter(&self, name: &Name) -> Option<DatacenterRecord> {
        self.datacenters.get(name).copied()
    }

    pub fn unique_holder(&self, key: &Name) -> Option<JobId> {
        self.unique.get(key).copied()
    }

    /// The job of an idempotency key, and what was submitted under it.
    pub fn idempotency(&self, key: &Name) -> Option<(JobId, Option<Fingerprint>)> {
        let job = &self.jobs[self.idempotency.get(key)?];
        Some((job.id, job.fingerprint))
    }

    /// The number of payloads and results of the jobs held here that lie in the store under this digest.
    pub fn stored_refs(&self, digest: &Digest) -> u32 {
        self.stored.refs(digest)
    }

    /// Applies one event. No decision is taken here: an event that does not fit the state is a bug, and panics.
    /// Stored content that nothing refers to any more is added to `unreferenced`.
    pub(super) fn apply(&mut self, stamped: &StampedEvent, unreferenced: &mut Vec<Digest>) {
        let at = stamped.at;
        self.newest = self.newest.max(at);
        self.seq = Seq(self.seq.0 + 1);
        match &stamped.event {
            Event::TermBegan { term } => self.term = *term,
            Event::EpochRaised { n } => self.raised = *n,
            Event::DatacenterSeen { datacenter, term, life } => {
                self.datacenters.insert(datacenter.clone(), DatacenterRecord { term: *term, life: *life });
            }
            Event::JobSubmitted(submitted) => self.submit(at, submitted),
            Event::JobRebuilt(rebuilt) => self.rebuild(at, rebuilt),
            Event::JobPlaced { job, targets } => {
                let job = self.expect(*job);
                job.targets = targets.iter().map(Target::new).collect();
                job.outline.targets.clone_from(targets);
            }
            Event::TargetConfirmed { job, datacenter } => {
                self.expect_target(*job, datacenter).confirmed = true;
                self.drop_payloads_if_placed(*job, unreferenced);
            }
            Event::TargetEnded(ended) => self.end_target(at, ended, unreferenced),
            Event::ExtensionsSeen { job, extended } => {
                let job = self.expect(*job);
                job.extended = *extended;
                let ExtensionTotals { grants, by_hand } = *extended;
                job.record(at, LedgerFact::ExtensionsReported { grants, by_hand });
            }
            Event::JobExtended { job, by, reason, request } => {
                let job = self.expect(*job);
                let fact = LedgerFact::ExtendedByHand { by: *by, reason: reason.clone(), request: request.clone() };
                job.record(at, fact);
                let so_far = job.extensions();
                let total = so_far.grants + so_far.by_hand + *by;
                job.by_hand.push(HandExtension { request: request.clone(), by: *by, total });
            }
            Event::EndDecided { job, why, kept_until } => {
                let decided = self.expect(*job);
                decided.decided = Some(Decision { at, why: *why });
                decided.record(
                    at,
                    match why {
                        EndCause::TimedOut(reason) => LedgerFact::TimedOut { reason: *reason, epoch: None },
                        EndCause::Cancelled => LedgerFact::CancelAsked { epoch: None },
                    },
                );
                if decided.targets.is_empty() {
                    self.end_job(at, *job, *kept_until, unreferenced);
                }
            }
            Event::JobsForgotten { jobs } => jobs.iter().for_each(|job| self.forget(*job, unreferenced)),
        }
    }

    fn submit(&mut self, at: Wall, submitted: &JobSubmitted) {
        let JobSubmitted { id, spec, fingerprint, started_at, targets } = submitted;
        let mut spec = spec.clone();
        if spec.workflows.iter().any(|workflow| workflow.payload.as_stored().is_some()) {
            let own = Arc::make_mut(&mut spec);
            own.workflows.iter_mut().for_each(|workflow| self.stored.hold(&mut workflow.payload));
        }
        self.insert(Job {
            id: *id,
            outline: outline_of(&spec, targets),
            fingerprint: *fingerprint,
            spec: Some(spec),
            created_at: at,
            started_at: *started_at,
            n: 0,
            targets: targets.iter().map(Target::new).collect(),
            extended: ExtensionTotals::default(),
            by_hand: Vec::new(),
            ledger: None,
            decided: None,
            ended_at: None,
            kept_until: Wall::ZERO,
        });
    }

    fn rebuild(&mut self, at: Wall, rebuilt: &JobRebuilt) {
        let JobRebuilt { id, outline, started_at, n, extended } = rebuilt;
        self.insert(Job {
            id: *id,
            outline: outline.clone(),
            spec: None,
            fingerprint: None,
            created_at: at,
            started_at: *started_at,
            n: *n,
            // They were placed by whoever submitted it: each says so itself, or that it knows nothing of it.
            targets: outline.targets.iter().map(|name| Target { confirmed: true, ..Target::new(name) }).collect(),
            extended: *extended,
            by_hand: Vec::new(),
            ledger: None,
            decided: None,
            ended_at: None,
            kept_until: Wall::ZERO,
        });
    }

    /// Puts a job where it is looked up by.
    fn insert(&mut self, job: Job) {
        if let Some(key) = job.unique_key().filter(|_| !job.has_ended()) {
            self.unique.insert(key.clone(), job.id);
        }
        if let Some(key) = job.idempotency_key() {
            self.idempotency.insert(key.clone(), job.id);
        }
        if job.has_ended() {
            self.ended.insert((job.kept_until, job.id));
        }
        let before = self.jobs.insert(job.id, job);
        assert!(before.is_none(), "a job comes once");
    }

    /// Restores a job from a snapshot.
    pub(super) fn restore_job(&mut self, mut job: Job) {
        if job.payloads().any(|payload| payload.as_stored().is_some()) {
            if let Some(spec) = &mut job.spec {
                let own = Arc::make_mut(spec);
                own.workflows.iter_mut().for_each(|workflow| self.stored.hold(&mut workflow.payload));
            }
            let ends = job.targets.iter_mut().filter_map(|target| target.end.as_mut()?.result.as_mut());
            ends.for_each(|result| self.stored.hold(result));
        }
        self.insert(job);
    }

    fn end_target(&mut self, at: Wall, ended: &TargetEnded, unreferenced: &mut Vec<Digest>) {
        let TargetEnded { job, datacenter, end, kept_until } = ended;
        let mut end = end.clone();
        if let Some(result) = &mut end.result {
            self.stored.hold(result);
        }
        let target = self.expect_target(*job, datacenter);
        assert!(target.end.is_none(), "a target ends once");
        target.ended_at = Some(at);
        target.end = Some(end);
        self.drop_payloads_if_placed(*job, unreferenced);
        if self.jobs[job].targets.iter().all(|target| target.end.is_some()) {
            self.end_job(at, *job, *kept_until, unreferenced);
        }
    }

    fn end_job(&mut self, at: Wall, id: JobId, kept_until: Wall, unreferenced: &mut Vec<Digest>) {
        self.drop_payloads(id, unreferenced);
        let job = self.expect(id);
        job.ended_at = Some(at);
        job.kept_until = kept_until;
        let unique = job.unique_key().cloned();
        if let Some(unique) = unique {
            self.unique.remove(&unique);
        }
        self.ended.insert((kept_until, id));
    }

    /// Drops the payloads once every target has the job, or has ended without it: nobody needs them then.
    fn drop_payloads_if_placed(&mut self, id: JobId, unreferenced: &mut Vec<Digest>) {
        if self.jobs[&id].targets.iter().all(|target| target.confirmed || target.end.is_some()) {
            self.drop_payloads(id, unreferenced);
        }
    }

    fn drop_payloads(&mut self, id: JobId, unreferenced: &mut Vec<Digest>) {
        let job = self.jobs.get_mut(&id).expect("an event names a job that is there");
        let Some(spec) = &mut job.spec else { return };
        if spec.workflows.iter().all(|workflow| workflow.payload.is_empty()) {
            return;
        }
        for workflow in Arc::make_mut(spec).workflows.iter_mut() {
            let payload = core::mem::take(&mut workflow.payload);
            release(&mut self.stored, &payload, unreferenced);
        }
    }

    fn forget(&mut self, id: JobId, unreferenced: &mut Vec<Digest>) {
        let job = self.jobs.remove(&id).expect("an event names a job that is there");
        self.ended.remove(&(job.kept_until, id));
        if let Some(key) = job.idempotency_key() {
            self.idempotency.remove(key);
        }
        job.payloads().for_each(|payload| release(&mut self.stored, payload, unreferenced));
    }

    fn expect(&mut self, id: JobId) -> &mut Job {
        self.jobs.get_mut(&id).expect("an event names a job that is there")
    }

    fn expect_target(&mut self, id: JobId, datacenter: &Name) -> &mut Target {
        let targets = &mut self.expect(id).targets;
        targets.iter_mut().find(|target| target.datacenter == *datacenter).expect("an event names a target of the job")
    }

    /// The whole state, in an order that is the same for equal states.
    pub fn dump(&self) -> String {
        let mut text = String::new();
        let head = (self.term, self.newest, self.seq, self.raised, &self.datacenters);
        writeln!(text, "{head:?}").expect("text takes everything");
        for job in self.jobs.values() {
            writeln!(text, "{job:?}").expect("text takes everything");
        }
        writeln!(text, "{:?} {:?} {:?}", self.unique, self.idempotency, self.ended).expect("text takes everything");
        let stored: BTreeSet<_> = self.stored.iter().map(|(stored, refs)| (stored.digest, refs)).collect();
        writeln!(text, "{stored:?}").expect("text takes everything");
        text
    }
}

fn release(stored: &mut StoredCounts, payload: &Payload, unreferenced: &mut Vec<Digest>) {
    if let Some(content) = payload.as_stored()
        && stored.release(&content.digest)
    {
        unreferenced.push(content.digest);
    }
}

fn outline_of(spec: &JobSpec, targets: &[Name]) -> JobOutline {
    JobOutline {
        kind: spec.workflows[0].kind.clone(),
        queue: spec.queue.clone(),
        targets: targets.into(),
        policy: spec.extras.as_ref().map_or_else(Default::default, |extras| extras.timeout_policy),
        timeout: spec.timeout,
        max_extension: spec.max_extension,
    }
}
