//! Handing out work: who has room meets what is ready.

use core::time::Duration;

use crate::beat::AttemptClock;
use crate::bite::Bite;
use crate::dispatch::{GroupKey, Tier};
use crate::effect::Effects;
use crate::event::{Event, HandedOut, Via, WorkflowRef};
use crate::fence::AttemptFence;
use crate::ids::{Claim, Name};
use crate::message::{Assignment, ToWorker};
use crate::payload::Payload;
use crate::state::{AttemptKey, WorkflowKey};

use super::Manager;
use super::fleet::{WorkerKey, WorkerTransport};
use super::job_timers::deadline_of;

/// The most workflows that one step hands out or finds blocked. The rest goes on at once, in the next step,
/// so that a long list never keeps a beat waiting.
const MATCHES_PER_STEP: u32 = 4096;
/// The same for a step that was asked for something else, while matching goes on.
const MATCHES_BESIDE_INPUT: u32 = 64;

impl Manager {
    pub(super) fn assign(&mut self, fx: &mut Effects) {
        let goes_on = self.dispatch.begin_matching();
        if !self.may_decide() {
            return;
        }
        let is_beside = goes_on && self.bite != Bite::WHOLE;
        let mut budget = if is_beside { MATCHES_BESIDE_INPUT } else { MATCHES_PER_STEP };
        while let Some(group) = self.dispatch.pop_dirty() {
            self.serve(group, Tier::Route, &mut budget, fx);
            if self.dispatch.has_worker(group, Tier::Investigate) {
                self.dispatch.put_aside(group);
            }
            if budget == 0 {
                self.dispatch.mark_dirty(group);
                break;
            }
        }
        // Slow workers are asked last: only for what nobody else had room for.
        while let Some(group) = self.dispatch.pop_aside() {
            if budget == 0 {
                self.dispatch.mark_dirty(group);
            } else {
                self.serve(group, Tier::Investigate, &mut budget, fx);
            }
        }
        self.dispatch.end_matching();
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
        let coming = self.dispatch.prefetch_behind(group, picked);
        if let Some(job) = self.state.prefetch(coming) {
            self.timers.prefetch(job);
        }
    }

    fn hand_out(&mut self, key: WorkflowKey, worker: WorkerKey, fx: &mut Effects) {
        let workflow = self.state.workflow(key);
        let fence = AttemptFence::new(self.seat.term(), workflow.handouts + 1).expect("checked when it was requeued");
        let claim = Claim { job: self.state.job(workflow.job).id, workflow: workflow.index, fence };
        let known = self.fleet.worker(worker);
        let (lease, via) = match &known.link {
            WorkerTransport::Http { poll, .. } => {
                let open = self.polls.at(poll.expect("without an open poll there is no room"));
                (open.lease, Via::Http { poll: open.id.clone() })
            }
            WorkerTransport::Session { .. } | WorkerTransport::Expected => (self.rules.lease.initial, Via::Session),
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
        let clock = AttemptClock::start(self.awake, lease);
        self.watch().begin(attempt, clock, worker);
        self.durability.count_handout();
        let assignment = self.assignment(attempt, lease);
        match &self.fleet.worker(worker).link {
            WorkerTransport::Session { session, .. } => self.send(*session, ToWorker::Assign(assignment), fx),
            WorkerTransport::Http { poll: Some(poll), .. } => self.polls.assign(*poll, assignment),
            WorkerTransport::Http { poll: None, .. } | WorkerTransport::Expected => {
                unreachable!("there is room, so it asked for work")
            }
        }
        self.offers().update(worker);
    }

    /// Everything that a worker needs to run an attempt.
    pub(super) fn assignment(&self, key: AttemptKey, lease: Duration) -> Assignment {
        let attempt = self.state.attempt(key);
        let workflow = self.state.workflow(attempt.workflow);
        let job = self.state.job(workflow.job);
        let deadline = deadline_of(&self.state, workflow.job).unwrap_or(self.log_now());
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
}
