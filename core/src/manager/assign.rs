//! Handing out work: who has room meets what is ready.

use core::time::Duration;

use crate::bite::Bite;
use crate::dispatch::{GroupKey, Tier};
use crate::effect::Effects;
use crate::event::{Event, HandedOut, Via, WorkflowRef};
use crate::fence::AttemptFence;
use crate::health::verdict::verdict;
use crate::health::{Action, Signals};
use crate::ids::{Claim, Name};
use crate::message::{Assignment, ToWorker};
use crate::payload::Payload;
use crate::state::{AttemptKey, WorkflowKey};

use super::Manager;
use super::workers::{Link, WorkerKey};

/// How many workflows one step hands out or finds blocked at most. What is left goes on at once, in the next step,
/// so that a long list never keeps a beat waiting.
const MATCHES_PER_STEP: u32 = 4096;
/// The same for a step that was asked for something else, while matching goes on.
const MATCHES_BESIDE_INPUT: u32 = 64;

impl Manager {
    pub(super) fn assign(&mut self, fx: &mut Effects) {
        let goes_on = core::mem::take(&mut self.assign_again);
        if !self.may_decide() {
            return;
        }
        let is_beside = goes_on && self.bite != Bite::WHOLE;
        let mut budget = if is_beside { MATCHES_BESIDE_INPUT } else { MATCHES_PER_STEP };
        while let Some(group) = self.dispatch.pop_dirty() {
            self.serve(group, Tier::Route, &mut budget, fx);
            if self.dispatch.has_worker(group, Tier::Investigate) {
                self.slow_groups.push(group);
            }
            if budget == 0 {
                self.dispatch.mark_dirty(group);
                break;
            }
        }
        // Slow workers are asked last: only for what nobody else had room for.
        while let Some(group) = self.slow_groups.pop() {
            if budget == 0 {
                self.dispatch.mark_dirty(group);
            } else {
                self.serve(group, Tier::Investigate, &mut budget, fx);
            }
        }
        self.assign_again = self.dispatch.has_dirty();
    }

    fn serve(&mut self, group: GroupKey, tier: Tier, budget: &mut u32, fx: &mut Effects) {
        let now = self.log_now();
        while *budget > 0 && self.dispatch.has_worker(group, tier) {
            let Some(workflow) = self.dispatch.pick(group, &self.state, now, budget) else { return };
            *budget = budget.saturating_sub(1);
            self.prefetch_behind(group, workflow);
            let worker = self.dispatch.next_worker(group, tier).expect("the ring is not empty");
            self.hand_out(workflow, worker, fx);
        }
    }

    /// Most of what is kept of a workflow was last touched when it was submitted. It is asked for while others are
    /// handed out: if each piece were waited for when its turn comes, a long backlog would slow every hand-out.
    fn prefetch_behind(&mut self, group: GroupKey, picked: WorkflowKey) {
        let coming = self.dispatch.behind(group, picked, self.coming.len());
        self.coming.rotate_right(1);
        self.coming[0] = coming;
        if let Some(coming) = coming {
            self.dispatch.prefetch(coming);
        }
        if let Some(job) = self.state.prefetch(self.coming) {
            self.timers.prefetch(job);
        }
    }

    fn hand_out(&mut self, key: WorkflowKey, worker: WorkerKey, fx: &mut Effects) {
        let workflow = self.state.workflow(key);
        let fence = AttemptFence::new(self.seat.term(), workflow.handouts + 1).expect("checked when it was requeued");
        let claim = Claim { job: self.state.job(workflow.job).id, workflow: workflow.index, fence };
        let known = self.workers.at(worker);
        let (lease, via) = match &known.link {
            Link::Http { poll, .. } => {
                let open = &self.polls[poll.expect("without an open poll there is no room")];
                (open.lease, Via::Http { poll: open.id.clone() })
            }
            Link::Session { .. } | Link::Expected => (self.rules.lease.initial, Via::Session),
        };
        let handed = HandedOut {
            workflow: WorkflowRef { job: claim.job, workflow: claim.workflow },
            fence,
            worker: known.id.clone(),
            incarnation: known.incarnation.clone(),
            lease,
            via,
        };
        self.state.hint(self.state.workflow(key).job);
        self.emit(Event::HandedOut(handed), fx);
        let attempt = self.state.workflow(key).running_attempt();
        self.begin_attempt(attempt, worker);
        self.durability.count_handout();
        let assignment = self.assignment(attempt, lease);
        match &self.workers.at(worker).link {
            Link::Session { session, .. } => self.send(*session, ToWorker::Assign(assignment), fx),
            Link::Http { poll: Some(poll), .. } => self.hand_to_poll(*poll, assignment),
            Link::Http { poll: None, .. } | Link::Expected => unreachable!("there is room, so it asked for work"),
        }
        self.update_offer(worker);
    }

    /// What a worker needs to run an attempt.
    pub(super) fn assignment(&self, key: AttemptKey, lease: Duration) -> Assignment {
        let attempt = self.state.attempt(key);
        let workflow = self.state.workflow(attempt.workflow);
        let job = self.state.job(workflow.job);
        let deadline = self.overall_deadline(workflow.job).unwrap_or(self.log_now());
        let spec = &job.spec.workflows[usize::from(workflow.index)];
        let inputs = |index: &u16| -> (Name, Payload) {
            let before = job.workflows.as_slice()[usize::from(*index)];
            let result = self.state.result(before).expect("a predecessor has succeeded").clone();
            (job.spec.workflows[usize::from(*index)].name.clone(), result)
        };
        Assignment {
            claim: self.state.claim_of(key),
            attempt: workflow.counted,
            queue: job.spec.queue.clone(),
            workflow: spec.clone(),
            headers: job.spec.headers(),
            inputs: spec.after.iter().map(inputs).collect(),
            checkpoint: workflow.past.as_ref().and_then(|past| past.checkpoint.clone()),
            lease,
            deadline_remaining: deadline.since(self.log_now()),
        }
    }

    /// How many more attempts a worker may be handed now.
    pub(super) fn free_slots(&self, key: WorkerKey) -> u32 {
        let worker = self.workers.at(key);
        if worker.evicted || worker.drained || !worker.accepting {
            return 0;
        }
        let free = match &worker.link {
            Link::Session { .. } => worker.slots.saturating_sub(worker.held),
            Link::Http { poll: Some(poll), .. } => self.polls[*poll].room(),
            Link::Http { poll: None, .. } | Link::Expected => 0,
        };
        if worker.probation { free.min(1u32.saturating_sub(worker.held)) } else { free }
    }

    /// Puts a worker where its verdict says, by the room that it has now: drained never, slow last.
    pub(super) fn update_offer(&mut self, key: WorkerKey) {
        let worker = self.workers.at(key);
        let ready = self.free_slots(key) > 0;
        let tier = match verdict(Signals { ready, ..worker.judged.signals }).action() {
            Action::Route => Some(Tier::Route),
            Action::Investigate => Some(Tier::Investigate),
            Action::Drain | Action::Evict => None,
        };
        match tier.zip(worker.group) {
            Some((tier, group)) => self.dispatch.offer(key, group, tier),
            None => self.dispatch.withdraw(key),
        }
    }
}
