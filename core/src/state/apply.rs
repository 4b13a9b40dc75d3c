//! Applying events. No decision is taken here: an event that does not fit the state is a bug, and panics.

use core::time::Duration;
use std::sync::Arc;

use crate::event::{Event, ExtensionDecided, HandedOut, NextState, StampedEvent, WorkflowRef};
use crate::fence::GateEpoch;
use crate::grant::Fraction;
use crate::ids::{Claim, JobId, Seq, WorkerId};
use crate::job::end::JobEnd;
use crate::job::{Cause, Ending, WorkflowState, transition};
use crate::payload::{Digest, Payload};
use crate::refusal::RefusalKind;
use crate::schedule::PassedInstants;
use crate::time::Wall;
use crate::timeout::TimeoutReason;

use super::records::*;
use super::{AttemptKey, JobKey, State, WorkflowKey, hash_workflow};

/// Records that an event touched, for the indexes over the state.
#[derive(Debug, Default)]
pub struct Changes {
    pub submitted: Vec<JobKey>,
    pub workflows: Vec<WorkflowChange>,
    pub ended: Vec<JobKey>,
    /// Jobs that are gone after this event: their keys are still valid until [`State::remove_archived`].
    pub archived: Vec<JobKey>,
    /// A job whose dead letter was dropped.
    pub released: Vec<JobKey>,
    /// Stored content that no job refers to any more. It may have come back since.
    pub unreferenced: Vec<Digest>,
}

/// A workflow whose state changed.
#[derive(Clone, Copy, Debug)]
pub struct WorkflowChange {
    pub workflow: WorkflowKey,
    /// The attempt that ended by it.
    pub ended: Option<AttemptKey>,
    /// The workflow's state before; a new one had none.
    pub from: Option<WorkflowState>,
}

impl Changes {
    pub fn clear(&mut self) {
        self.submitted.clear();
        self.workflows.clear();
        self.ended.clear();
        self.archived.clear();
        self.released.clear();
        self.unreferenced.clear();
    }
}

impl State {
    /// Applies one event. Jobs in `changes.archived` must be passed to [`State::remove_archived`] afterwards.
    pub fn apply(&mut self, stamped: &StampedEvent, changes: &mut Changes) {
        let at = stamped.at;
        self.newest = self.newest.max(at);
        self.seq = Seq(self.seq.0 + 1);
        match &stamped.event {
            Event::TermBegan { term } => self.term = *term,
            Event::JobSubmitted(submitted) => self.submit(at, submitted, changes),
            Event::WorkflowDue(workflow) => self.due(at, workflow, changes),
            Event::HandedOut(handed) => self.hand_out(at, handed, changes),
            Event::AttemptEnded { claim, ending, then, end, note } => {
                self.end_attempt(at, claim, (ending, note.as_ref()), (*then, *end), changes);
            }
            Event::CancelAsked { job, epoch, end } => {
                let key = self.expect_job(*job);
                self.jobs[key].cancel_asked = true;
                if epoch.is_some() {
                    self.more(key).epoch = *epoch;
                }
                self.record(at, key, LedgerFact::CancelAsked { epoch: *epoch });
                self.end_open(at, key, Cause::CancelAsked, *end, changes);
            }
            Event::JobTimedOut { job, reason, end, epoch } => {
                let key = self.expect_job(*job);
                self.raise_epoch(key, *epoch);
                self.time_out(at, key, (*reason, *epoch), *end, changes);
            }
            Event::LocallyTimedOut { job, reason, stuck } => {
                self.time_out_locally(at, self.expect_job(*job), *reason, *stuck);
            }
            Event::LocalTimeoutOver { job } => self.end_local_timeout(at, self.expect_job(*job)),
            Event::GateAnswered { job } => self.note_gate_answer(at, self.expect_job(*job)),
            Event::TimeGiven { job, until } => self.give_time(at, self.expect_job(*job), *until),
            Event::JobWithdrawn { job, key_until } => self.withdraw(*job, *key_until),
            Event::QuietBegan { claim, allowed } => {
                let attempt = self.expect_attempt(claim);
                self.attempts[attempt].quiet = Some((at, *allowed));
                self.count_of(at, claim, LedgerFact::QuietBegan { workflow: claim.workflow, allowed: *allowed });
            }
            Event::QuietEnded { claim, used } => {
                let attempt = self.expect_attempt(claim);
                let attempt = &mut self.attempts[attempt];
                attempt.quiet = None;
                attempt.quiet_used += *used;
                self.count_of(at, claim, LedgerFact::QuietEnded { workflow: claim.workflow, used: *used });
            }
            Event::Checkpointed { claim, data } => {
                let workflow = self.attempts[self.expect_attempt(claim)].workflow;
                self.past(workflow).checkpoint = Some(data.clone());
            }
            Event::ProgressMarked { claim, watermark, total } => {
                let attempt = self.expect_attempt(claim);
                self.attempts[attempt].mark = Some((*watermark, *total));
            }
            Event::ExtensionDecided(decided) => self.extension(at, decided),
            Event::JobExtended { job, by, reason, request } => {
                let key = self.expect_job(*job);
                let more = self.more(key);
                more.extensions += *by;
                let total = more.extensions;
                more.by_hand.push(HandExtension { request: request.clone(), by: *by, total });
                let fact = LedgerFact::ExtendedByHand { by: *by, reason: reason.clone(), request: request.clone() };
                self.record(at, key, fact);
            }
            Event::ClaimRefused { claim, verb, refusal } => {
                let fact = LedgerFact::Refused {
                    workflow: claim.workflow,
                    fence: claim.fence,
                    verb: *verb,
                    refusal: *refusal,
                };
                self.record_of(at, claim, fact);
                self.mark_refused(claim, *refusal);
            }
            Event::WorkerEvicted { worker, incarnation, readmit_at, taken_until, without_session } => {
                let record = self.workers.entry(worker.clone()).or_default();
                record.evictions += 1;
                record.evicted = Some((incarnation.clone(), *readmit_at));
                record.taken_until = *taken_until;
                record.evicted_without_session = *without_session;
                record.probation = false;
            }
            Event::IncarnationReplaced { worker, old } => {
                let replaced = &mut self.workers.entry(worker.clone()).or_default().replaced;
                if replaced.len() == REPLACED_KEPT {
                    replaced.remove(0);
                }
                replaced.push(old.clone());
            }
            Event::IncarnationSeen { worker, incarnation } => {
                self.workers.entry(worker.clone()).or_default().incarnation = Some(incarnation.clone());
            }
            Event::ProbationBegan { worker } => {
                let record = self.workers.entry(worker.clone()).or_default();
                record.probation = true;
                record.evicted = None;
                record.taken_until = Wall::ZERO;
                record.evicted_without_session = false;
            }
            Event::ProbationEnded { worker } => self.with_worker(worker, |record| record.probation = false),
            Event::GrantsReset { worker } => self.with_worker(worker, |record| record.reset_grants(at)),
            Event::WorkerDrained { worker } => self.workers.entry(worker.clone()).or_default().drained = true,
            Event::WorkerUndrained { worker } => self.with_worker(worker, |record| record.drained = false),
            Event::WorkerForgotten { worker } => {
                self.workers.remove(worker);
            }
            Event::QueuePaused { queue } => {
                self.paused.insert(queue.clone());
            }
            Event::QueueResumed { queue } => {
                self.paused.remove(queue);
            }
            Event::DeadLetterDropped { job } => {
                let key = self.expect_job(*job);
                self.jobs[key].dead = false;
                let died = self.more(key).died.take().expect("a dead letter has its place");
                self.dead.remove(&died);
                changes.released.push(key);
            }
            Event::JobsArchived { jobs } => {
                changes.archived.extend(jobs.iter().map(|job| self.expect_job(*job)));
            }
            Event::KeysExpired { keys } => {
                for key in keys {
                    self.idempotency.remove(key);
                    self.expiring.pop_front();
                    self.expired += 1;
                }
            }
            Event::ScheduleSet(set) => self.set_schedule(at, set, &mut changes.unreferenced),
            Event::ScheduleRemoved { schedule } => self.remove_schedule(schedule, &mut changes.unreferenced),
            Event::SchedulePaused { schedule } => self.pause_schedule(schedule, true),
            Event::ScheduleResumed { schedule } => self.pause_schedule(schedule, false),
            Event::InstantsPassed { schedule, reason, first, last, count } => {
                let passed = PassedInstants { reason: *reason, first: *first, last: *last, count: *count };
                self.pass_instants(at, schedule, &passed);
            }
            Event::InstantWaits { schedule, due } => self.await_turn(schedule, *due),
        }
    }

    /// The second half of archiving: indexes over the state have let go of the job.
    pub fn remove_archived(&mut self, key: JobKey, unreferenced: &mut Vec<Digest>) {
        let job = self.jobs.remove(key);
        if let Some(died) = job.more.as_ref().and_then(|more| more.died) {
            // Of a log that did not take it for a dead letter.
            self.dead.remove(&died);
        }
        let mut release = |payload: &Payload| {
            if let Some(stored) = payload.as_stored()
                && self.stored.release(&stored.digest)
            {
                unreferenced.push(stored.digest);
            }
        };
        job.spec.workflows.iter().for_each(|workflow| release(&workflow.payload));
        for workflow in job.workflows.as_slice() {
            let workflow = self.workflows.remove(*workflow);
            // A success is the last attempt of its workflow, so it is among those kept.
            workflow
                .past
                .iter()
                .flat_map(|past| past.attempts())
                .filter_map(|ended| ended.result())
                .for_each(&mut release);
        }
        self.job_ids.remove(job.id, key);
    }

    fn due(&mut self, at: Wall, workflow: &WorkflowRef, changes: &mut Changes) {
        let job = self.expect_job(workflow.job);
        let key = self.jobs[job].workflows.as_slice()[usize::from(workflow.workflow)];
        let started = &mut self.jobs[job].started_at;
        *started = Some(started.get().unwrap_or(at)).into();
        self.workflows[key].ready_at = at;
        self.set_state(key, Cause::Due, None, changes);
    }

    fn hand_out(&mut self, at: Wall, handed: &HandedOut, changes: &mut Changes) {
        let job = self.expect_job(handed.workflow.job);
        let key = self.jobs[job].workflows.as_slice()[usize::from(handed.workflow.workflow)];
        let claim = Claim { job: handed.workflow.job, workflow: handed.workflow.workflow, fence: handed.fence };
        let attempt = self.start_attempt(Attempt {
            claim,
            workflow: key,
            worker: handed.worker.clone(),
            incarnation: handed.incarnation.clone(),
            via: handed.via.clone(),
            handed_at: at,
            lease: handed.lease,
            grants: 0,
            last_grant_progress: None,
            granted_until: Wall::ZERO,
            quiet: None,
            quiet_used: Duration::ZERO,
            mark: None,
        });
        let workflow = &mut self.workflows[key];
        assert!(handed.fence > workflow.last_fence, "a fence only rises");
        workflow.last_fence = handed.fence;
        workflow.handouts += 1;
        workflow.counted += 1;
        workflow.attempt = Some(attempt);
        self.set_state(key, Cause::HandedOut, None, changes);
    }

    fn end_attempt(
        &mut self,
        at: Wall,
        claim: &Claim,
        (ending, note): (&Ending, Option<&Arc<str>>),
        (then, end): (NextState, Option<JobEnd>),
        changes: &mut Changes,
    ) {
        let attempt = self.expect_attempt(claim);
        let ran = at.since(self.attempts[attempt].handed_at);
        let (key, job) = self.close_attempt(at, attempt, ending.clone(), note.cloned());
        self.end_local_stuck(job, claim);
        if !ending.is_reported() && !matches!(ending, Ending::Cancelled) {
            let fact = LedgerFact::AttemptEnded { workflow: claim.workflow, fence: claim.fence, ending: ending.kind() };
            self.record(at, job, fact);
        }
        if matches!(ending, Ending::Succeeded { .. }) && !self.workers.is_empty() {
            let ended = self.workflows[key].past.as_ref().and_then(|past| past.last());
            let worker = ended.expect("the attempt just ended").worker.clone();
            self.with_worker(&worker, |record| record.reset_grants(at));
        }
        let cause = match then {
            NextState::Succeeded => Cause::Succeeded,
            NextState::Ready => {
                // Running was not waiting.
                let workflow = &mut self.workflows[key];
                workflow.ready_at = workflow.ready_at + ran;
                Cause::Requeued
            }
            NextState::Delayed { until } => {
                self.workflows[key].due_at = until;
                self.workflows[key].wall_due = false;
                Cause::Backoff
            }
            NextState::Failed => Cause::FailedForGood,
            NextState::TimedOut => Cause::TimedOut,
            NextState::Cancelled => Cause::CancelConfirmed,
        };
        self.set_state(key, cause, Some(attempt), changes);
        if then == NextState::TimedOut {
            // A stuck attempt that ends its job ends all of it.
            self.time_out(at, job, (TimeoutReason::Stuck, None), end, changes);
            return;
        }
        self.release_dependents(at, job, self.workflows[key].index, changes);
        self.end_job_if_done(at, job, end, changes);
    }

    /// Takes the attempt out of the running ones and into the past of its workflow.
    fn close_attempt(
        &mut self,
        at: Wall,
        attempt: AttemptKey,
        mut ending: Ending,
        note: Option<Arc<str>>,
    ) -> (WorkflowKey, JobKey) {
        if let Ending::Succeeded { result } = &mut ending {
            self.stored.hold(result);
        }
        let ended = self.attempts.remove(attempt);
        let hash = hash_workflow(ended.claim.job, ended.claim.workflow);
        let entry = self.running.find_entry(hash, |known| *known == attempt);
        entry.expect("every running attempt is in the index").remove();
        let key = ended.workflow;
        let workflow = &mut self.workflows[key];
        workflow.attempt = None;
        if !ending.counts() && !matches!(ending, Ending::Succeeded { .. }) {
            workflow.counted -= 1;
        }
        let number = workflow.handouts;
        let job = workflow.job;
        self.past(key).push(EndedAttempt {
            number,
            fence: ended.claim.fence,
            worker: ended.worker,
            started_at: ended.handed_at,
            ended_at: at,
            ending,
            refused: 0,
            note,
        });
        (key, job)
    }

    /// A workflow that succeeded lets its dependents go; one that ended otherwise cancels all that wait for it.
    fn release_dependents(&mut self, at: Wall, job: JobKey, index: u16, changes: &mut Changes) {
        if self.jobs[job].spec.workflows.len() == 1 {
            return;
        }
        let mut ended = vec![index];
        while let Some(index) = ended.pop() {
            let state = self.workflows[self.jobs[job].workflows.as_slice()[usize::from(index)]].state;
            if !state.is_terminal() {
                continue;
            }
            for dependent in 0..self.jobs[job].spec.workflows.len() {
                let key = self.jobs[job].workflows.as_slice()[dependent];
                let waits = self.workflows[key].state == WorkflowState::Waiting
                    && self.jobs[job].spec.workflows[dependent].after.binary_search(&index).is_ok();
                if !waits {
                    continue;
                }
                if state == WorkflowState::Succeeded {
                    let workflow = &mut self.workflows[key];
                    workflow.predecessors_left -= 1;
                    if workflow.predecessors_left == 0 {
                        workflow.ready_at = at;
                        self.set_state(key, Cause::PredecessorsDone, None, changes);
                    }
                } else {
                    self.set_state(key, Cause::PredecessorFailed, None, changes);
                    ended.push(dependent as u16);
                }
            }
        }
    }

    /// Moves every open workflow of a job by `cause`; what is cancelling already has its own end before it.
    fn end_open(&mut self, at: Wall, job: JobKey, cause: Cause, end: Option<JobEnd>, changes: &mut Changes) {
        for member in 0..self.jobs[job].workflows.as_slice().len() {
            let key = self.jobs[job].workflows.as_slice()[member];
            match (self.workflows[key].state, cause) {
                (state, _) if state.is_terminal() => {}
                (WorkflowState::Cancelling, Cause::CancelAsked) => {}
                (WorkflowState::Running, Cause::TimedOut) => {
                    let attempt = self.workflows[key].running_attempt();
                    self.close_attempt(at, attempt, Ending::TimedOut, None);
                    self.set_state(key, Cause::TimedOut, Some(attempt), changes);
                }
                (WorkflowState::Cancelling, _) => {
                    let attempt = self.workflows[key].running_attempt();
                    self.close_attempt(at, attempt, Ending::Cancelled, None);
                    self.set_state(key, Cause::CancelConfirmed, Some(attempt), changes);
                }
                _ => self.set_state(key, cause, None, changes),
            }
        }
        self.end_job_if_done(at, job, end, changes);
    }

    /// `epoch` is that of the gate that decided it.
    fn time_out(
        &mut self,
        at: Wall,
        key: JobKey,
        (reason, epoch): (TimeoutReason, Option<GateEpoch>),
        end: Option<JobEnd>,
        changes: &mut Changes,
    ) {
        if !self.jobs[key].cancel_asked {
            self.jobs[key].timed_out = Some(reason);
        }
        self.record(at, key, LedgerFact::TimedOut { reason, epoch });
        self.end_open(at, key, Cause::TimedOut, end, changes);
    }

    /// The only writer of a workflow's state.
    fn set_state(&mut self, key: WorkflowKey, cause: Cause, ended: Option<AttemptKey>, changes: &mut Changes) {
        let workflow = &mut self.workflows[key];
        let to = transition(workflow.state, cause).unwrap_or_else(|illegal| panic!("{illegal}"));
        let from = Some(workflow.state);
        workflow.state = to;
        let job = workflow.job;
        if to.is_terminal() {
            self.jobs[job].open -= 1;
        }
        changes.workflows.push(WorkflowChange { workflow: key, ended, from });
    }

    fn end_job_if_done(&mut self, at: Wall, key: JobKey, end: Option<JobEnd>, changes: &mut Changes) {
        let job = &mut self.jobs[key];
        if job.open > 0 || job.ended_at != Stamp::NOT_YET {
            return;
        }
        job.ended_at = Some(at).into();
        self.open_jobs -= 1;
        changes.ended.push(key);
        let job = &self.jobs[key];
        if let Some(unique) = job.spec.unique_key() {
            self.unique.remove(unique);
        }
        let end = end.unwrap_or_else(|| self.end_by_older_log(at, job));
        if let Some(idempotency) = job.spec.idempotency_key() {
            self.expiring.push_back((end.key_until, idempotency.clone()));
        }
        if end.dead {
            self.jobs[key].dead = true;
            let seq = self.seq;
            self.more(key).died = Some(seq);
            self.dead.insert(seq, key);
        }
        self.end_run(at, key);
    }

    /// The end of a job by an event that does not say: a day for its key, and a dead letter by what failed. The
    /// rules of those who wrote such logs, whatever the rules are now.
    fn end_by_older_log(&self, at: Wall, job: &Job) -> JobEnd {
        let dead = self.workflows_of(job).any(|(_, workflow)| job.died_by(workflow));
        JobEnd::new(at, job.spec.idempotency_key().is_some(), dead)
    }

    fn extension(&mut self, at: Wall, decided: &ExtensionDecided) {
        let ExtensionDecided { worker, claims, reason, progress, result, live_until, repeats, incarnation } = decided;
        if result.is_ok() {
            let record = self.workers.entry(worker.clone()).or_default();
            record.grants += 1;
            record.granted = incarnation.clone().map(|incarnation| (incarnation, *live_until));
        }
        let mut jobs: Vec<JobKey> = Vec::with_capacity(claims.len());
        for claim in claims {
            let Some(job) = self.find(claim.job) else { continue };
            if !jobs.contains(&job) {
                jobs.push(job);
            }
            if result.is_ok() {
                let attempt = self.expect_attempt(claim);
                let attempt = &mut self.attempts[attempt];
                attempt.grants += 1;
                attempt.last_grant_progress = Fraction::new(*progress);
                attempt.granted_until = attempt.granted_until.max(*live_until);
            }
        }
        for job in jobs {
            let (worker, reason, progress) = (worker.clone(), *reason, *progress);
            let fact = match result {
                Ok(by) => {
                    self.more(job).extensions += *by;
                    LedgerFact::Granted { worker, by: *by, reason, progress }
                }
                Err(denial) => {
                    let fact = LedgerFact::Denied { worker, denial: *denial, reason, progress };
                    let id = self.jobs[job].id;
                    let of_job = claims.iter().filter(|claim| claim.job == id);
                    let began = of_job.filter_map(|claim| self.running_attempt(id, claim.workflow));
                    let since = began.map(|attempt| self.attempts[attempt].handed_at).min().unwrap_or(at);
                    self.more(job).ledger.count(at, since, repeats.saturating_add(1), fact, same_denial);
                    continue;
                }
            };
            self.record(at, job, fact);
        }
    }

    fn mark_refused(&mut self, claim: &Claim, refusal: RefusalKind) {
        let key = self.workflow_of(claim).expect("refusals are logged for known workflows");
        let past = self.workflows[key].past.as_mut().expect("refusals are logged for ended attempts");
        if let Some(ended) = past.find_mut(claim.fence) {
            ended.refused |= refusal.bit();
        }
    }

    fn record_of(&mut self, at: Wall, claim: &Claim, fact: LedgerFact) {
        let key = self.expect_job(claim.job);
        self.record(at, key, fact);
    }

    /// Records a fact that is counted in one entry per attempt.
    fn count_of(&mut self, at: Wall, claim: &Claim, fact: LedgerFact) {
        let since = self.attempts[self.expect_attempt(claim)].handed_at;
        let key = self.expect_job(claim.job);
        self.more(key).ledger.count(at, since, 1, fact, quiet_in_all);
    }

    pub(super) fn record(&mut self, at: Wall, job: JobKey, fact: LedgerFact) {
        self.more(job).ledger.push(at, fact);
    }

    pub(super) fn more(&mut self, job: JobKey) -> &mut JobMore {
        self.jobs[job].more.get_or_insert_with(Box::default)
    }

    fn past(&mut self, workflow: WorkflowKey) -> &mut Past {
        self.workflows[workflow].past.get_or_insert_with(Box::default)
    }

    fn with_worker(&mut self, worker: &WorkerId, change: impl FnOnce(&mut WorkerRecord)) {
        if let Some(record) = self.workers.get_mut(worker) {
            change(record);
            if *record == WorkerRecord::default() {
                self.workers.remove(worker);
            }
        }
    }

    fn expect_job(&self, id: JobId) -> JobKey {
        self.find(id).expect("an event names a job that is there")
    }

    fn expect_attempt(&self, claim: &Claim) -> AttemptKey {
        let attempt = self.running_attempt(claim.job, claim.workflow).expect("an event names a running attempt");
        assert_eq!(self.attempts[attempt].claim.fence, claim.fence, "an event names the newest attempt");
        attempt
    }
}

/// The newer of two denials of one kind.
fn same_denial(known: &LedgerFact, new: &LedgerFact) -> Option<LedgerFact> {
    match (known, new) {
        (LedgerFact::Denied { worker: a, denial: b, .. }, LedgerFact::Denied { worker, denial, .. }) => {
            (a == worker && b == denial).then(|| new.clone())
        }
        _ => None,
    }
}

/// The sum of two facts: of two beginnings the newer, and of two ends what was used in all.
fn quiet_in_all(known: &LedgerFact, new: &LedgerFact) -> Option<LedgerFact> {
    match (known, new) {
        (LedgerFact::QuietBegan { workflow: of, .. }, LedgerFact::QuietBegan { workflow, .. }) => {
            (of == workflow).then(|| new.clone())
        }
        (LedgerFact::QuietEnded { workflow: of, used: before }, LedgerFact::QuietEnded { workflow, used }) => {
            (of == workflow).then(|| LedgerFact::QuietEnded { workflow: *workflow, used: *before + *used })
        }
        _ => None,
    }
}
