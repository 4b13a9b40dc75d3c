//! Dispatch, in a world of which the state is the real one: it changes by events only, and dispatch follows as a
//! manager's does.

mod cost;
mod keys;
mod model;
mod steps;
mod turns;
mod workers;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::*;
use crate::counts::Counts;
use crate::event::{Event, HandedOut, JobSubmitted, NextState, StampedEvent, Via, WorkflowRef};
use crate::fence::{AttemptFence, Term};
use crate::ids::{Bytes, Claim, Incarnation, JobId, WorkerId};
use crate::job::draft::{Draft, JobDefaults, LimitDraft, WorkflowDraft, check};
use crate::job::spec::ConcurrencyLimit;
use crate::job::{Ending, WorkflowState};
use crate::manager::WorkerKey;
use crate::manager::indexes::Indexes;
use crate::message::Subscription;
use crate::state::{AttemptKey, Changes, WorkflowChange};

const STEP: Duration = Duration::from_secs(30);

fn name(text: &str) -> Name {
    Name::new(text).expect("tests use good names")
}

fn subscription(queues: &[&str], kinds: &[&str]) -> Subscription {
    let names = |texts: &[&str]| texts.iter().map(|text| name(text)).collect();
    Subscription { queues: names(queues), kinds: names(kinds) }
}

fn worker_key(number: u32) -> WorkerKey {
    WorkerKey::at(number).expect("workers are counted from 1")
}

/// A job, written short.
fn job(queue: &str, kind: &str, priority: i32, limits: &[(&str, u32)]) -> Draft {
    Draft {
        queue: Some(queue.into()),
        priority,
        limits: limits.iter().map(|(key, max)| LimitDraft::new(key, *max)).collect(),
        ..Draft::of_kind(kind, Bytes::from([]))
    }
}

struct World {
    state: State,
    dispatch: Dispatch,
    counts: Counts,
    changes: Changes,
    now: Wall,
    ids: u128,
    /// The turn of each workflow, counted in workflows. One that is handed back keeps its turn.
    turns: BTreeMap<WorkflowKey, u64>,
    turn: u64,
    /// Since when each workflow counts as waiting: when it got in line, moved by all the time for which it ran since.
    waiting_since: BTreeMap<WorkflowKey, Wall>,
    handed_at: BTreeMap<WorkflowKey, Wall>,
    workers: BTreeMap<WorkerKey, Worker>,
    next_worker: WorkerKey,
    holders: BTreeMap<AttemptKey, WorkerKey>,
}

struct Worker {
    group: GroupKey,
    subscription: Subscription,
    slots: u32,
}

impl World {
    fn new() -> Self {
        Self {
            state: State::new(1),
            dispatch: Dispatch::new(AgingRule::default(), 2),
            counts: Counts::new(3),
            changes: Changes::default(),
            now: Wall::from_ms(1_700_000_000_000),
            ids: 0,
            turns: BTreeMap::new(),
            turn: 0,
            waiting_since: BTreeMap::new(),
            handed_at: BTreeMap::new(),
            workers: BTreeMap::new(),
            next_worker: WorkerKey::FIRST,
            holders: BTreeMap::new(),
        }
    }

    /// Returns the first workflow that changed by it.
    fn happen(&mut self, event: Event) -> Option<WorkflowKey> {
        let mut changes = core::mem::take(&mut self.changes);
        changes.clear();
        let stamped = StampedEvent { at: self.now, event };
        self.state.apply(&stamped, &mut changes);
        changes.workflows.iter().for_each(|change| self.note_turn(change));
        let first = changes.workflows.first().map(|change| change.workflow);
        // Ended jobs go at once, so that the keys of their workflows are used again.
        changes.archived.append(&mut changes.ended);
        let mut indexes = Indexes {
            state: &mut self.state,
            dispatch: &mut self.dispatch,
            counts: &mut self.counts,
            snapshot: None,
            soft: None,
        };
        indexes.update(&stamped.event, &mut changes);
        self.changes = changes;
        first
    }

    /// Notes a change in the model: whose turn it is, and for how long it has waited.
    fn note_turn(&mut self, change: &WorkflowChange) {
        let key = change.workflow;
        change.ended.and_then(|ended| self.holders.remove(&ended));
        match self.state.workflow(key).state {
            WorkflowState::Ready if change.ended.is_none() => {
                self.turn += 1;
                self.turns.insert(key, self.turn);
                self.waiting_since.insert(key, self.now);
            }
            WorkflowState::Ready => {
                let ran = self.now.since(self.handed_at[&key]);
                let since = self.waiting_since.get_mut(&key).expect("it was in line before");
                *since = *since + ran;
            }
            WorkflowState::Running => {
                self.handed_at.insert(key, self.now);
            }
            _ => {}
        }
    }

    fn submit(&mut self, draft: Draft) -> WorkflowKey {
        let spec = check(draft, &Limits::default(), &JobDefaults::default()).expect("tests submit good jobs");
        self.submit_spec(&Arc::new(spec))
    }

    fn submit_spec(&mut self, spec: &Arc<JobSpec>) -> WorkflowKey {
        self.ids += 1;
        let id = JobId::from_u128(self.ids);
        let submitted = JobSubmitted {
            id,
            spec: spec.clone(),
            fingerprint: None,
            retry_of: None,
            taken_over: Arc::default(),
            scheduled: None,
            gate: None,
        };
        self.happen(Event::JobSubmitted(submitted)).expect("a job has a workflow")
    }

    fn reference(&self, key: WorkflowKey) -> WorkflowRef {
        let workflow = self.state.workflow(key);
        WorkflowRef { job: self.state.job(workflow.job).id, workflow: workflow.index }
    }

    fn hand_out(&mut self, key: WorkflowKey) -> AttemptKey {
        let handout = self.state.workflow(key).handouts + 1;
        self.happen(Event::HandedOut(HandedOut {
            workflow: self.reference(key),
            fence: AttemptFence::new(Term::new(1), handout).expect("tests hand out seldom"),
            worker: WorkerId::new("worker").expect("a good name"),
            incarnation: Incarnation::new("1").expect("a good name"),
            lease: STEP,
            via: Via::Session,
        }));
        self.state.workflow(key).running_attempt()
    }

    fn end(&mut self, key: WorkflowKey, how: How) {
        let attempt = self.state.workflow(key).running_attempt();
        let claim: Claim = self.state.claim_of(attempt);
        let cancelling = self.state.workflow(key).state == WorkflowState::Cancelling;
        let (ending, then) = match how {
            How::Succeed => (Ending::Succeeded { result: Bytes::from([]).into() }, NextState::Succeeded),
            _ if cancelling => (Ending::Cancelled, NextState::Cancelled),
            How::Requeue => (Ending::NeverArrived, NextState::Ready),
            How::Backoff => (Ending::Released { delay: Some(STEP) }, NextState::Delayed { until: self.now + STEP }),
        };
        let holder = self.holders.get(&attempt).copied();
        self.happen(Event::AttemptEnded { claim, ending, then, end: None, note: None });
        self.freed(holder);
    }

    fn cancel(&mut self, job: JobId) {
        self.happen(Event::CancelAsked { job, epoch: None, end: None });
    }

    fn cancel_workflow(&mut self, key: WorkflowKey) {
        self.cancel(self.reference(key).job);
    }

    fn pause(&mut self, queue: &Name, paused: bool) {
        let queue = queue.clone();
        self.happen(if paused { Event::QueuePaused { queue } } else { Event::QueueResumed { queue } });
    }

    fn join(&mut self, subscription: Subscription, slots: u32) -> WorkerKey {
        let state = &self.state;
        let is_paused = |queue: &str| state.is_paused(&name(queue));
        let group =
            self.dispatch.join(&subscription, ClientId::default(), &Limits::default(), is_paused).expect("few join");
        let worker = self.next_worker;
        self.next_worker = worker.next().expect("few join");
        self.workers.insert(worker, Worker { group, subscription, slots });
        worker
    }

    fn group(&mut self, queues: &[&str], kinds: &[&str]) -> GroupKey {
        let worker = self.join(subscription(queues, kinds), 1);
        self.workers[&worker].group
    }

    fn leave(&mut self, worker: WorkerKey) {
        let gone = self.workers.remove(&worker).expect("it joined");
        self.dispatch.withdraw(worker);
        self.dispatch.leave(gone.group);
        self.holders.retain(|_, holder| *holder != worker);
    }

    fn pick(&mut self, group: GroupKey) -> Option<WorkflowKey> {
        let mut budget = u32::MAX;
        self.dispatch.pick(group, &self.state, self.now, &mut budget)
    }

    /// Hands out everything that a group may take, and says what it was.
    fn take_all(&mut self, group: GroupKey) -> Vec<WorkflowKey> {
        let mut taken = Vec::new();
        while let Some(key) = self.pick(group) {
            self.hand_out(key);
            taken.push(key);
        }
        taken
    }

    fn find(&self, wanted: impl Fn(WorkflowState) -> bool) -> Vec<WorkflowKey> {
        let all = self.state.jobs().flat_map(|(_, job)| self.state.workflows_of(job));
        all.filter(|(_, workflow)| wanted(workflow.state)).map(|(key, _)| key).collect()
    }

    fn spec(&self, key: WorkflowKey) -> &JobSpec {
        &self.state.job(self.state.workflow(key).job).spec
    }
}

const QUEUES: [&str; 3] = ["mail", "video", "bulk"];
const KINDS: [&str; 2] = ["send", "cut"];
const KEYS: [(&str, u32); 5] = [("a", 1), ("b", 1), ("c", 2), ("d", 2), ("e", 3)];

#[derive(Clone, Copy, PartialEq, Debug)]
enum How {
    Succeed,
    Requeue,
    Backoff,
}
