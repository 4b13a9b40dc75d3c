//! What must never happen, checked after every step.

use std::collections::{BTreeMap, BTreeSet};

use onward_core::effect::{Answer, Effect, PendingEffect};
use onward_core::event::{Event, NextState, StampedEvent};
use onward_core::fence::AttemptFence;
use onward_core::ids::{Claim, JobId, Seq};
use onward_core::job::spec::ConcurrencyLimit;
use onward_core::job::{Ending, JobState};
use onward_core::manager::Manager;
use onward_core::message::{BeatAnswer, SettleAnswer, ToWorker};
use onward_core::time::Mono;

use super::due::DueWitness;

type Workflow = (JobId, u16);

/// The story of the log so far, read independently of the machine.
#[derive(Default)]
pub struct Witness {
    /// Fences of all hand-outs, each with its event.
    fences: BTreeMap<Workflow, Vec<(Seq, AttemptFence)>>,
    /// Attempts whose end was reported by their holder and accepted.
    reported: BTreeSet<Claim>,
    terminal: BTreeMap<Workflow, AttemptFence>,
    archived: BTreeSet<JobId>,
    stamps: Vec<u64>,
    due: DueWitness,
}

impl Witness {
    pub fn read<'a>(log: impl IntoIterator<Item = &'a StampedEvent>) -> Self {
        let mut witness = Self::default();
        for stamped in log {
            witness.note(stamped);
        }
        witness
    }

    pub fn note(&mut self, stamped: &StampedEvent) {
        let at = stamped.at.as_ms();
        assert!(self.stamps.last().is_none_or(|last| *last <= at), "log time went back");
        self.stamps.push(at);
        self.due.note(stamped);
        match &stamped.event {
            Event::HandedOut(handed) => {
                let key = (handed.workflow.job, handed.workflow.workflow);
                assert!(!self.terminal.contains_key(&key), "an ended workflow was handed out");
                let before = self.fences.entry(key).or_default();
                assert!(before.last().is_none_or(|(_, before)| *before < handed.fence), "a fence did not rise");
                before.push((Seq(self.stamps.len() as u64), handed.fence));
            }
            Event::AttemptEnded { claim, ending, then, .. } => {
                let key = (claim.job, claim.workflow);
                assert_eq!(self.newest(key, Seq(u64::MAX)), Some(claim.fence), "a stale attempt was ended");
                if ending.is_reported() {
                    self.reported.insert(*claim);
                }
                if matches!(then, NextState::Succeeded | NextState::Failed | NextState::TimedOut | NextState::Cancelled)
                {
                    let before = self.terminal.insert(key, claim.fence);
                    assert_eq!(before, None, "two outcomes for one workflow");
                }
                if matches!(ending, Ending::Succeeded { .. }) {
                    assert_eq!(*then, NextState::Succeeded, "a success was not kept");
                }
            }
            Event::JobsArchived { jobs } => self.archived.extend(jobs),
            _ => {}
        }
    }

    /// Looks at what a step wants to say, with what the log knew before and after it.
    pub fn check_effects(&self, effects: &[PendingEffect]) {
        for waiting in effects {
            match &waiting.effect {
                Effect::Send { message: ToWorker::BeatAnswers(answers), .. } => {
                    self.check_beats(answers, waiting.after)
                }
                Effect::Reply { answer: Ok(Answer::Beats(answers)), .. } => self.check_beats(answers, waiting.after),
                Effect::Send { message: ToWorker::SettleAnswers(answers), .. } => self.check_settled(answers),
                Effect::Reply { answer: Ok(Answer::Settled(answers)), .. } => self.check_settled(answers),
                _ => {}
            }
        }
    }

    /// A step takes several inputs where some were kept, so what counts is the newest fence when the beat was heard.
    fn check_beats(&self, answers: &[BeatAnswer], heard: Seq) {
        for BeatAnswer { claim, answer } in answers {
            if answer.is_ok() {
                let newest = self.newest((claim.job, claim.workflow), heard);
                assert_eq!(newest, Some(claim.fence), "a beat under a stale fence was accepted");
            }
        }
    }

    /// The newest fence of a workflow as of an event.
    fn newest(&self, workflow: Workflow, as_of: Seq) -> Option<AttemptFence> {
        let mut handed_out = self.fences.get(&workflow)?.iter().rev();
        handed_out.find(|(seq, _)| *seq <= as_of).map(|(_, fence)| *fence)
    }

    fn check_settled(&self, answers: &[SettleAnswer]) {
        for SettleAnswer { claim, answer } in answers {
            if answer.is_ok() {
                assert!(self.reported.contains(claim), "an outcome was accepted that the log does not have");
            }
        }
    }

    pub fn check_acknowledged(&self, acknowledged: &BTreeSet<JobId>, manager: &Manager) {
        for job in acknowledged {
            let known = manager.state().find(*job).is_some() || self.archived.contains(job);
            assert!(known, "acknowledged job {job} was lost");
        }
    }
}

/// Leases as they were after the step before, to see that none shrinks.
#[derive(Default)]
pub struct Leases(BTreeMap<Claim, Mono>);

impl Leases {
    pub fn check(&mut self, manager: &Manager, now: Mono) {
        let mut current = BTreeMap::new();
        for (_, job) in manager.state().jobs() {
            let view = manager.job(job.id).expect("it is there");
            for attempt in view.workflows.iter().filter_map(|workflow| workflow.running.as_ref()) {
                let end = now + attempt.lease_remaining;
                if let Some(before) = self.0.get(&attempt.claim)
                    && *before > now
                {
                    assert!(end >= *before, "the lease of {:?} shrank from {before:?} to {end:?}", attempt.claim);
                }
                current.insert(attempt.claim, end);
            }
        }
        self.0 = current;
    }

    pub fn forget(&mut self) {
        self.0.clear();
    }
}

/// Checks that counts which are kept as things happen equal a count of all jobs.
fn check_counts(manager: &Manager) {
    let state = manager.state();
    let mut found: BTreeMap<&str, [u64; JobState::ALL.len()]> = BTreeMap::new();
    for (key, job) in state.jobs() {
        found.entry(job.spec.queue.as_str()).or_default()[state.job_state(key) as usize] += 1;
    }
    let counted = manager.counts().queues().map(|(_, queue, counts)| (queue.as_str(), counts.jobs));
    let counted: BTreeMap<&str, _> = counted.filter(|(_, jobs)| jobs.iter().any(|count| *count > 0)).collect();
    assert_eq!(counted, found, "jobs are counted wrongly by queue and state");
}

/// Bounds that hold in every state.
pub fn check_bounds(manager: &Manager) {
    check_counts(manager);
    let state = manager.state();
    state.check();
    let mut running: BTreeMap<&str, (u32, u32)> = BTreeMap::new();
    for (key, job) in state.jobs() {
        let view = manager.job(job.id).expect("it is there");
        if let (Some(started), Some(deadline)) = (view.started_at, view.deadline) {
            let most = job.spec.timeout + job.spec.max_extension + job.extended().by_hand;
            assert!(deadline <= started + most, "a job was extended past its bound");
        }
        assert_eq!(state.job_state(key).is_terminal(), view.ended_at.is_some());
        for workflow in view.workflows.iter().filter(|workflow| workflow.state.is_held()) {
            assert!(workflow.counted <= job.spec.retry.max_attempts, "more attempts than allowed");
        }
        for workflow in view.workflows.iter().filter(|workflow| !workflow.state.is_terminal()) {
            let has_begun = workflow.running.is_some() || !workflow.ended.is_empty();
            let holds = |limit: &&ConcurrencyLimit| workflow.state.is_held() || (limit.ordered && has_begun);
            for limit in job.spec.limits.iter().filter(holds) {
                let entry = running.entry(limit.key.as_str()).or_insert((0, limit.max));
                entry.0 += 1;
            }
        }
    }
    for (key, (count, max)) in running {
        assert!(count <= max, "{count} workflows hold the key {key}, which allows {max}");
    }
    for (_, attempt) in state.attempts() {
        assert!(attempt.grants <= 5, "an attempt got more than five grants");
        assert!(attempt.quiet_used <= manager.rules().quiet_budget, "the quiet budget was overdrawn");
    }
    for worker in manager.workers() {
        assert!(!worker.connected || worker.evicted || worker.free + worker.held <= worker.slots.max(worker.held));
        assert!(!(worker.probation && worker.held > 1 && worker.free > 0), "probation allows one at a time");
    }
}
