//! Dispatch against a model that keeps no index at all: it scans the state, and takes the best of what it finds.
//!
//! The model says of every single look what is looked at: of each priority the first turn competes, by what it has waited.
//! One that turns out to be blocked competes until somebody has looked at it, and is passed over from then on. So what
//! dispatch has put aside is the one thing that the model takes from it, and only for what really is blocked.
//!
//! The state is the real one and changes by events only, the way a manager drives both.

use core::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::event::{Event, HandedOut, JobSubmitted, NextState, StampedEvent, Via, WorkflowRef};
use crate::fence::{AttemptFence, Term};
use crate::ids::{Bytes, Claim, Incarnation, JobId, WorkerId};
use crate::job::draft::{Draft, JobDefaults, LimitDraft, WorkflowDraft, check};
use crate::job::spec::ConcurrencyLimit;
use crate::job::{Ending, WorkflowState};
use crate::manager::WorkerKey;
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

/// One job, written short.
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
    changes: Changes,
    now: Wall,
    ids: u128,
    /// When each workflow got in line, counted in workflows. Whoever is handed back keeps it.
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

    fn happen(&mut self, event: Event) {
        let mut changes = core::mem::take(&mut self.changes);
        changes.clear();
        self.state.apply(&StampedEvent { at: self.now, event }, &mut changes);
        for key in &changes.submitted {
            let job = self.state.job(*key);
            for (index, workflow) in job.workflows.as_slice().iter().enumerate() {
                let kind = &job.spec.workflows[index].kind;
                self.dispatch.admit(*workflow, &job.spec, kind, || self.state.is_paused(&job.spec.queue));
            }
        }
        for WorkflowChange { workflow: key, ended, .. } in &changes.workflows {
            self.place(*key, *ended);
        }
        // Ended jobs go at once, so that the keys of their workflows are used again.
        for key in &changes.ended {
            self.state.remove_archived(*key, &mut Vec::new());
        }
        self.changes = changes;
    }

    fn place(&mut self, key: WorkflowKey, ended: Option<AttemptKey>) {
        ended.and_then(|ended| self.holders.remove(&ended));
        match self.state.workflow(key).state {
            WorkflowState::Waiting | WorkflowState::Cancelling => {}
            WorkflowState::Delayed => self.dispatch.away(key),
            WorkflowState::Ready => {
                if ended.is_none() {
                    self.turn += 1;
                    self.turns.insert(key, self.turn);
                    self.waiting_since.insert(key, self.now);
                } else {
                    let ran = self.now.since(self.handed_at[&key]);
                    let since = self.waiting_since.get_mut(&key).expect("it was in line before");
                    *since = *since + ran;
                }
                self.dispatch.ready(key, ended.is_some());
            }
            WorkflowState::Running => {
                self.handed_at.insert(key, self.now);
                self.dispatch.held(key);
            }
            _ => self.dispatch.retire(key),
        }
    }

    fn submit(&mut self, draft: Draft) -> WorkflowKey {
        let spec = check(draft, &Limits::default(), &JobDefaults::default()).expect("tests submit good jobs");
        self.submit_spec(&Arc::new(spec))
    }

    fn submit_spec(&mut self, spec: &Arc<JobSpec>) -> WorkflowKey {
        self.ids += 1;
        let id = JobId::from_u128(self.ids);
        let submitted =
            JobSubmitted { id, spec: spec.clone(), fingerprint: None, retry_of: None, taken_over: Arc::default() };
        self.happen(Event::JobSubmitted(submitted));
        self.changes.workflows[0].workflow
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
        self.happen(Event::AttemptEnded { claim, ending, then });
        self.freed(holder);
    }

    fn cancel(&mut self, job: JobId) {
        self.happen(Event::CancelAsked { job, epoch: None });
    }

    fn cancel_workflow(&mut self, key: WorkflowKey) {
        self.cancel(self.reference(key).job);
    }

    fn pause(&mut self, queue: &Name, paused: bool) {
        let queue = queue.clone();
        self.dispatch.set_paused(&queue, paused);
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

    /// How many workflows hold each key, and the smallest bound among them.
    fn running(&self) -> BTreeMap<Name, (u32, u32)> {
        let mut running = BTreeMap::new();
        for key in self.find(|state| !state.is_terminal()) {
            let is_held = self.state.workflow(key).state.is_held();
            for limit in self.spec(key).limits.iter().filter(|limit| is_held || self.keeps(key, limit)) {
                let (count, smallest) = running.entry(limit.key.clone()).or_insert((0, u32::MAX));
                (*count, *smallest) = (*count + 1, limit.max.min(*smallest));
            }
        }
        running
    }

    /// Whether an open workflow keeps this key between its attempts.
    fn keeps(&self, key: WorkflowKey, limit: &ConcurrencyLimit) -> bool {
        limit.ordered && self.state.workflow(key).handouts > 0
    }

    /// Everything that a worker with this subscription may take.
    fn eligible(&self, subscription: &Subscription) -> Vec<WorkflowKey> {
        let running = self.running();
        let mut found = self.wanted(subscription);
        found.retain(|key| !self.is_blocked(*key, &running));
        found
    }

    /// What is ready for such a worker, blocked or not.
    fn wanted(&self, subscription: &Subscription) -> Vec<WorkflowKey> {
        let mut found = self.find(|state| state == WorkflowState::Ready);
        found.retain(|key| {
            let spec = self.spec(*key);
            let kind = &spec.workflows[usize::from(self.state.workflow(*key).index)].kind;
            subscription.queues.contains(&spec.queue)
                && subscription.kinds.contains(kind)
                && !self.state.is_paused(&spec.queue)
        });
        found
    }

    fn is_blocked(&self, key: WorkflowKey, running: &BTreeMap<Name, (u32, u32)>) -> bool {
        let mut limits = self.spec(key).limits.iter().filter(|limit| !self.keeps(key, limit));
        limits.any(|limit| running.get(&limit.key).is_some_and(|(count, least)| *count >= limit.max.min(*least)))
    }

    /// The model: what is looked at next for a worker with this subscription, by going through all that is ready.
    fn looked_at_next(&self, subscription: &Subscription) -> Option<WorkflowKey> {
        let running = self.running();
        let mut heads: BTreeMap<i8, WorkflowKey> = BTreeMap::new();
        for key in self.wanted(subscription) {
            let was_found_blocked = self.dispatch.entries[key].place == Place::Parked;
            if was_found_blocked && self.is_blocked(key, &running) {
                continue;
            }
            let head = heads.entry(self.spec(key).priority).or_insert(key);
            if self.turns[&key] < self.turns[head] {
                *head = key;
            }
        }
        heads.into_values().min_by_key(|key| (Reverse(self.effective(*key)), self.turns[key]))
    }

    fn effective(&self, key: WorkflowKey) -> i64 {
        let waited_s = self.now.since(self.waiting_since[&key]).as_secs();
        i64::from(self.spec(key).priority) + (waited_s / 30).min(50) as i64
    }

    /// What every group would take, against the model; and the counts that dispatch shows, against the state.
    fn compare(&mut self, bounds: Bounds) {
        let groups: BTreeMap<GroupKey, Subscription> =
            self.workers.values().map(|worker| (worker.group, worker.subscription.clone())).collect();
        for (group, subscription) in groups {
            self.pick_as_the_model_does(group, &subscription, bounds);
        }
        let running = self.running();
        for key in self.find(|state| state == WorkflowState::Ready) {
            if let Some(BlockReason::Limit { key, running: shown, .. }) = self.dispatch.blocked(key) {
                assert_eq!(running.get(key).map_or(0, |(count, _)| *count), shown, "running under {key}");
            }
        }
        self.check_lanes(bounds);
    }

    /// Whatever is parked is in one lane, every lane waits under one key, and nobody can be forgotten there.
    fn check_lanes(&self, bounds: Bounds) {
        let Dispatch { entries, keys, lanes, limit_sets, .. } = &self.dispatch;
        let parked = entries.0.iter().flatten().filter(|entry| entry.place == Place::Parked).count();
        assert_eq!(lanes.iter().map(|(_, lane)| lane.queue.len()).sum::<usize>(), parked, "parked and in a lane");
        assert_eq!(limit_sets.iter().map(|(_, set)| set.lanes.len()).sum::<usize>(), lanes.len(), "lanes of sets");
        let waiting = keys.iter().flat_map(|(_, key)| key.parked.values().map(|parked| parked.lanes.len()));
        assert_eq!(waiting.sum::<usize>(), lanes.len(), "lanes under keys");
        for (at, lane) in lanes.iter() {
            let head = lane.queue.head().expect("an empty lane is kept");
            assert_eq!(lane.order, entries[head].order, "the lane's place");
            assert!(keys[lane.key].parked[&lane.shelf].lanes.contains(&(lane.order, at)), "the lane is not at its key");
            assert_eq!(limit_sets[lane.set].lanes.get(&lane.shelf), Some(&at), "the lane is not in its set");
        }
        for (key, limit) in keys.iter() {
            for (shelf, parked) in &limit.parked {
                let first = parked.lanes.first();
                if let Some(released) = parked.released.map(|released| &entries[released]) {
                    let is_at = (released.place, released.key, released.shelf);
                    assert_eq!(is_at, (Place::Shelf, Some(key), *shelf), "it was let go");
                    assert!(first.is_none_or(|(order, _)| *order > released.order), "a later one was let go");
                    continue;
                }
                let (_, lane) = first.expect("an idle line is kept");
                let bound = limit_sets[lanes[*lane].set].bound(key);
                assert!(!limit.has_room(bound), "{} has room and nobody was let go", limit.name);
            }
        }
        if bounds == Bounds::OnePerKey {
            let mut named = BTreeMap::new();
            for (key, max) in limit_sets.iter().flat_map(|(_, set)| &set.keys) {
                assert_eq!(named.insert(key, max).unwrap_or(max), max, "the test is to name one bound per key");
            }
        }
    }

    fn pick_as_the_model_does(
        &mut self,
        group: GroupKey,
        subscription: &Subscription,
        bounds: Bounds,
    ) -> Option<WorkflowKey> {
        if bounds == Bounds::Mixed {
            let eligible = self.eligible(subscription);
            let picked = self.pick(group);
            match picked {
                Some(key) => assert!(eligible.contains(&key), "{key:?} is not in {eligible:?}"),
                // Turns may be kept behind one with a lower bound, but only while somebody runs who will give them on.
                None => assert!(eligible.is_empty() || !self.running().is_empty(), "nobody will wake {eligible:?}"),
            }
            return picked;
        }
        loop {
            let next = self.looked_at_next(subscription);
            let is_blocked = next.is_some_and(|key| self.is_blocked(key, &self.running()));
            let mut budget = 1;
            let picked = self.dispatch.pick(group, &self.state, self.now, &mut budget);
            if !is_blocked {
                assert_eq!((picked, budget), (next, 1), "eligible: {:?}", self.eligible(subscription));
                return picked;
            }
            assert_eq!((picked, budget), (None, 0), "{next:?} is looked at, and blocked");
            let put_aside = next.map(|key| self.dispatch.entries[key].place);
            assert_eq!(put_aside, Some(Place::Parked), "{next:?} was to be looked at, and not another");
        }
    }

    /// Lets every group that says so meet its workers, as a manager does.
    fn serve(&mut self) {
        while let Some(group) = self.dispatch.pop_dirty() {
            for tier in [Tier::Route, Tier::Investigate] {
                while self.dispatch.has_worker(group, tier) {
                    let Some(key) = self.pick(group) else { break };
                    let worker = self.dispatch.next_worker(group, tier).expect("the ring has one");
                    let attempt = self.hand_out(key);
                    self.holders.insert(attempt, worker);
                    if self.busy(worker) == self.workers[&worker].slots {
                        self.dispatch.withdraw(worker);
                    }
                }
            }
        }
    }

    fn busy(&self, worker: WorkerKey) -> u32 {
        self.holders.values().filter(|holder| **holder == worker).count() as u32
    }

    fn freed(&mut self, worker: Option<WorkerKey>) {
        if let Some(worker) = worker
            && let Some(free) = self.workers.get(&worker)
        {
            self.dispatch.offer(worker, free.group, tier_of(worker));
        }
    }

    /// Runs everything to its end and lets everybody go: nothing may be left in any table.
    fn drain(&mut self, bounds: Bounds) {
        for queue in self.state.paused().clone() {
            self.pause(&queue, false);
        }
        let everything = subscription(&QUEUES, &KINDS);
        let worker = self.join(everything.clone(), 1);
        let group = self.workers[&worker].group;
        while self.state.open_jobs() > 0 {
            for key in self.find(|state| state == WorkflowState::Delayed) {
                self.happen(Event::WorkflowDue(self.reference(key)));
            }
            while let Some(key) = self.pick_as_the_model_does(group, &everything, bounds) {
                self.hand_out(key);
            }
            let held = self.find(WorkflowState::is_held);
            assert!(!held.is_empty(), "jobs are open and nothing can run");
            for key in held {
                self.end(key, How::Succeed);
            }
        }
        for worker in self.workers.keys().copied().collect::<Vec<_>>() {
            self.leave(worker);
        }
        let Dispatch { queue_kinds, queue_kind_ids, shelves, keys, key_ids, groups, group_ids, shares, dirty, .. } =
            &self.dispatch;
        let Dispatch { limit_sets, limit_set_ids, kept, lanes, .. } = &self.dispatch;
        assert_eq!((queue_kinds.len(), queue_kind_ids.len(), shelves.len()), (0, 0, 0), "queue_kinds, shelves");
        assert_eq!((keys.len(), key_ids.len(), lanes.len()), (0, 0, 0), "keys, lanes");
        assert_eq!((limit_sets.len(), limit_set_ids.len(), kept.len()), (0, 0, 0), "sets of limits");
        assert_eq!((groups.len(), group_ids.len(), shares.len(), dirty.len()), (0, 0, 0, 0), "groups");
        assert!(self.dispatch.entries.0.iter().all(Option::is_none), "entries");
    }
}

const fn tier_of(worker: WorkerKey) -> Tier {
    if worker.index().is_multiple_of(3) { Tier::Investigate } else { Tier::Route }
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum How {
    Succeed,
    Requeue,
    Backoff,
}

/// Whether all workflows that name a key give it the same bound.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Bounds {
    OnePerKey,
    Mixed,
}

const QUEUES: [&str; 3] = ["mail", "video", "bulk"];
const KINDS: [&str; 2] = ["send", "cut"];
const KEYS: [(&str, u32); 5] = [("a", 1), ("b", 1), ("c", 2), ("d", 2), ("e", 3)];

/// Numbers are taken modulo what there is.
#[derive(Clone, Debug)]
enum Op {
    Submit { queue: usize, kind: usize, priority: i32, keys: Vec<(usize, u32, bool)>, shape: Shape },
    HandOut { worker: usize },
    End { held: usize, how: How },
    Due { delayed: usize },
    Cancel { job: usize },
    Pause { queue: usize },
    Resume { queue: usize },
    Join { queues: u8, kinds: u8, slots: u32 },
    Leave { worker: usize },
    Wait { seconds: u64 },
}

#[derive(Clone, Copy, Debug)]
enum Shape {
    Single,
    Delayed,
    /// The second workflow waits for the first.
    Chain,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let any = || 0..64_usize;
    let priority = prop_oneof![8 => Just(0), 3 => Just(1), 2 => Just(-5), 1 => -100..=100];
    let shape = prop_oneof![6 => Just(Shape::Single), 1 => Just(Shape::Delayed), 1 => Just(Shape::Chain)];
    let keys = prop::collection::vec((0..KEYS.len(), 1..=3_u32, prop::bool::weighted(0.3)), 0..=3);
    let how = prop_oneof![4 => Just(How::Succeed), 3 => Just(How::Requeue), 1 => Just(How::Backoff)];
    let submit = (any(), any(), priority, keys, shape).prop_map(|(queue, kind, priority, keys, shape)| Op::Submit {
        queue,
        kind,
        priority,
        keys,
        shape,
    });
    let op = prop_oneof![
        12 => submit,
        9 => any().prop_map(|worker| Op::HandOut { worker }),
        7 => (any(), how).prop_map(|(held, how)| Op::End { held, how }),
        2 => any().prop_map(|delayed| Op::Due { delayed }),
        2 => any().prop_map(|job| Op::Cancel { job }),
        1 => any().prop_map(|queue| Op::Pause { queue }),
        2 => any().prop_map(|queue| Op::Resume { queue }),
        1 => (1..8_u8, 1..4_u8, 1..=2_u32).prop_map(|(queues, kinds, slots)| Op::Join { queues, kinds, slots }),
        1 => any().prop_map(|worker| Op::Leave { worker }),
        3 => (0..100_u64).prop_map(|seconds| Op::Wait { seconds }),
    ];
    prop::collection::vec(op, 0..200)
}

/// The same on few shelves and with few keys, so that many wait together and for several keys at once.
fn crowded_ops() -> impl Strategy<Value = Vec<Op>> {
    ops().prop_map(|mut ops| {
        for op in &mut ops {
            if let Op::Submit { queue, kind, priority, keys, .. } = op {
                (*queue, *priority) = (0, 0);
                *kind = usize::from(*kind % 8 == 0);
                keys.iter_mut().for_each(|(key, ..)| *key %= 3);
            }
        }
        ops
    })
}

fn nth<T: Copy>(from: &[T], index: usize) -> Option<T> {
    (!from.is_empty()).then(|| from[index % from.len()])
}

impl World {
    /// `serving`: workers that join are offered, and get their work from [`Self::serve`] only.
    fn run(&mut self, op: Op, bounds: Bounds, serving: bool) {
        match op {
            Op::Submit { queue, kind, priority, keys, shape } => {
                let mut limits = BTreeMap::new();
                for (key, max, ordered) in keys {
                    let max = if bounds == Bounds::Mixed { max } else { KEYS[key].1 };
                    let limit = LimitDraft { ordered: ordered && max == 1, ..LimitDraft::new(KEYS[key].0, max) };
                    limits.insert(key, limit);
                }
                let kind = KINDS[kind % KINDS.len()];
                let mut draft = job(QUEUES[queue % QUEUES.len()], kind, priority, &[]);
                draft.limits = limits.into_values().collect();
                match shape {
                    Shape::Single => {}
                    Shape::Delayed => draft.delay = Some(STEP),
                    Shape::Chain => {
                        draft.workflows[0].name = Some("first".into());
                        draft.workflows.push(WorkflowDraft {
                            name: Some("second".into()),
                            kind: kind.into(),
                            after: vec!["first".into()],
                            ..WorkflowDraft::default()
                        });
                    }
                }
                self.submit(draft);
            }
            Op::HandOut { worker } if !serving => {
                let workers: Vec<WorkerKey> = self.workers.keys().copied().collect();
                let Some(worker) = nth(&workers, worker) else { return };
                let Worker { group, ref subscription, .. } = self.workers[&worker];
                if let Some(key) = self.pick_as_the_model_does(group, &subscription.clone(), bounds) {
                    self.hand_out(key);
                    let running = self.running();
                    for limit in self.spec(key).limits.iter() {
                        let (count, smallest) = running[&limit.key];
                        assert!(count <= smallest, "{count} hold {limit:?}, where one allows {smallest}");
                    }
                }
            }
            Op::HandOut { .. } => {}
            Op::End { held, how } => {
                if let Some(key) = nth(&self.find(WorkflowState::is_held), held) {
                    self.end(key, how);
                }
            }
            Op::Due { delayed } => {
                if let Some(key) = nth(&self.find(|state| state == WorkflowState::Delayed), delayed) {
                    self.happen(Event::WorkflowDue(self.reference(key)));
                }
            }
            Op::Cancel { job } => {
                let jobs: Vec<JobId> =
                    self.state.jobs().filter(|(_, job)| !job.cancel_asked).map(|(_, job)| job.id).collect();
                if let Some(job) = nth(&jobs, job) {
                    self.cancel(job);
                }
            }
            Op::Pause { queue } => self.pause(&name(QUEUES[queue % QUEUES.len()]), true),
            Op::Resume { queue } => self.pause(&name(QUEUES[queue % QUEUES.len()]), false),
            Op::Join { queues, kinds, slots } => {
                let chosen = |mask: u8, all: &[&str]| -> Vec<Name> {
                    all.iter().enumerate().filter(|(at, _)| mask >> at & 1 == 1).map(|(_, text)| name(text)).collect()
                };
                let subscription = Subscription { queues: chosen(queues, &QUEUES), kinds: chosen(kinds, &KINDS) };
                let worker = self.join(subscription, slots);
                if serving {
                    self.freed(Some(worker));
                }
            }
            Op::Leave { worker } => {
                let workers: Vec<WorkerKey> = self.workers.keys().copied().collect();
                if let Some(worker) = nth(&workers, worker) {
                    self.leave(worker);
                }
            }
            Op::Wait { seconds } => self.now = self.now + Duration::from_secs(seconds),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(1_000) })]

    /// `eager` asks every group after every step, which parks all that can be; otherwise heads pile up unlooked at.
    #[test]
    fn picks_what_a_scan_of_everything_would(ops in prop_oneof![ops(), crowded_ops()], eager in any::<bool>()) {
        let mut world = World::new();
        world.join(subscription(&QUEUES, &KINDS), 1);
        for op in ops {
            world.run(op, Bounds::OnePerKey, false);
            if eager {
                world.compare(Bounds::OnePerKey);
            }
        }
        world.compare(Bounds::OnePerKey);
        world.drain(Bounds::OnePerKey);
    }

    #[test]
    fn mixed_bounds_are_kept_and_nobody_is_forgotten(
        ops in prop_oneof![ops(), crowded_ops()],
        eager in any::<bool>(),
    ) {
        let mut world = World::new();
        world.join(subscription(&QUEUES, &KINDS), 1);
        for op in ops {
            world.run(op, Bounds::Mixed, false);
            if eager {
                world.compare(Bounds::Mixed);
            }
        }
        world.compare(Bounds::Mixed);
        world.drain(Bounds::Mixed);
    }

    /// No wake-up is lost: once all dirty groups were served, no worker with room has anything that it could take.
    #[test]
    fn a_worker_with_room_never_sits_beside_work_for_it(ops in prop_oneof![ops(), crowded_ops()]) {
        let mut world = World::new();
        let first = world.join(subscription(&QUEUES, &KINDS), 2);
        world.freed(Some(first));
        for op in ops {
            world.run(op, Bounds::OnePerKey, true);
            world.serve();
            for (worker, Worker { subscription, slots, .. }) in &world.workers {
                if world.busy(*worker) < *slots {
                    assert_eq!(world.eligible(subscription), [], "worker {worker:?} has room");
                }
            }
        }
        world.drain(Bounds::OnePerKey);
    }
}

#[test]
fn waiting_raises_priority_by_one_level_per_30_s_and_by_50_at_most() {
    // How long the older one has waited, its priority, the priority of a fresh one, and whether the older goes first.
    let table = [
        (0, 0, 0, true),
        (29, 0, 1, false),
        (30, 0, 1, true),
        (59, 0, 2, false),
        (60, 0, 2, true),
        (60, 2, 0, true),
        (24 * 60 + 59, 0, 50, false),
        (25 * 60, 0, 50, true),
        (25 * 60, 0, 51, false),
        (100_000_000, 0, 51, false),
        (100_000_000, -100, -50, true),
        (100_000_000, -100, -49, false),
        (100_000_000, 100, 100, true),
    ];
    for (waited_s, priority, fresh_priority, older_first) in table {
        for fresh_kind in KINDS {
            let mut world = World::new();
            let older = world.submit(job("mail", "send", priority, &[]));
            world.now = world.now + Duration::from_secs(waited_s);
            let fresh = world.submit(job("mail", fresh_kind, fresh_priority, &[]));
            let group = world.group(&["mail"], &KINDS);
            let expected = if older_first { [older, fresh] } else { [fresh, older] };
            assert_eq!(world.take_all(group), expected, "{priority} after {waited_s} s against {fresh_priority}");
        }
    }
}

#[test]
fn the_best_priority_goes_first_and_then_the_oldest_whatever_the_kind_and_queue() {
    let mut world = World::new();
    let jobs = [("mail", "send", 0), ("bulk", "cut", 7), ("mail", "cut", 0), ("mail", "send", 7), ("bulk", "cut", -3)];
    let [plain, high, other_kind, high_later, low] =
        jobs.map(|(queue, kind, p)| world.submit(job(queue, kind, p, &[])));
    let plain_later = world.submit(job("mail", "send", 0, &[]));
    let group = world.group(&["mail", "bulk"], &KINDS);
    assert_eq!(world.take_all(group), [high, high_later, plain, other_kind, plain_later, low]);
}

#[test]
fn a_group_takes_only_what_it_subscribes_to() {
    let mut world = World::new();
    let jobs = [("mail", "send"), ("mail", "cut"), ("video", "send"), ("video", "cut")];
    let [mail_send, mail_cut, video_send, video_cut] = jobs.map(|(queue, kind)| world.submit(job(queue, kind, 0, &[])));
    let video = world.group(&["video"], &KINDS);
    let cut = world.group(&["mail", "video"], &["cut"]);
    let all = world.group(&["mail", "video"], &KINDS);
    assert_eq!(world.take_all(video), [video_send, video_cut]);
    assert_eq!(world.take_all(cut), [mail_cut]);
    assert_eq!(world.take_all(all), [mail_send]);
}

#[test]
fn what_is_handed_back_keeps_its_turn_and_what_backs_off_gets_a_new_one() {
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let mut world = World::new();
        let jobs = [0; 4].map(|_| world.submit(job("mail", "send", 0, &[])));
        let other_kind = world.submit(job("mail", "cut", 0, &[]));
        let last = world.submit(job("mail", "send", 0, &[]));
        let group = world.group(&["mail"], &KINDS);
        for key in jobs {
            assert_eq!(world.pick(group), Some(key));
            world.hand_out(key);
        }
        world.end(jobs[3], How::Backoff);
        assert_eq!(world.pick(group), Some(other_kind), "what backs off is not there");
        world.happen(Event::WorkflowDue(world.reference(jobs[3])));
        for at in order {
            world.end(jobs[at], How::Requeue);
        }
        let expected = [jobs[0], jobs[1], jobs[2], other_kind, last, jobs[3]];
        assert_eq!(world.take_all(group), expected, "handed back in order {order:?}");
    }
}

#[test]
fn pausing_hides_a_queue_and_resuming_shows_it_as_it_was() {
    let mut world = World::new();
    let (mail, group) = (name("mail"), world.group(&["mail", "bulk"], &KINDS));
    let before = world.submit(job("mail", "send", 5, &[]));
    let other = world.submit(job("bulk", "send", 0, &[]));
    world.pause(&mail, true);
    let during = world.submit(job("mail", "send", 5, &[]));
    let new_kind = world.submit(job("mail", "cut", 9, &[]));
    let late_group = world.group(&["mail"], &KINDS);
    assert_eq!(world.pick(late_group), None);
    assert_eq!(world.take_all(group), [other]);
    world.pause(&mail, true);
    assert_eq!(world.pick(group), None, "pausing twice is pausing");
    world.pause(&mail, false);
    assert_eq!(world.pick(late_group), Some(new_kind));
    assert_eq!(world.take_all(group), [new_kind, before, during]);
}

#[test]
fn a_pair_that_first_appears_while_its_queue_is_paused_is_paused() {
    let mut world = World::new();
    world.pause(&name("mail"), true);
    let by_job = world.submit(job("mail", "send", 0, &[]));
    let group = world.group(&["mail"], &KINDS);
    let by_worker = world.submit(job("mail", "cut", 0, &[]));
    assert_eq!(world.pick(group), None);
    world.pause(&name("mail"), false);
    assert_eq!(world.take_all(group), [by_job, by_worker]);
}

#[test]
fn a_ready_workflow_says_what_it_waits_for() {
    let mut world = World::new();
    let first = world.submit(job("mail", "send", 0, &[("db", 1)]));
    let second = world.submit(job("mail", "send", 0, &[("db", 1)]));
    assert_eq!(world.dispatch.blocked(second), Some(BlockReason::NoCapableWorker));
    let elsewhere = world.group(&["bulk"], &KINDS);
    assert_eq!(world.pick(elsewhere), None);
    assert_eq!(world.dispatch.blocked(second), Some(BlockReason::NoCapableWorker));
    let group = world.group(&["mail"], &["send"]);
    assert_eq!(world.dispatch.blocked(first), None, "a worker may take it");
    assert_eq!(world.take_all(group), [first]);
    assert_eq!(world.dispatch.blocked(first), None, "it waits for nothing");
    let db = name("db");
    assert_eq!(world.dispatch.blocked(second), Some(BlockReason::Limit { key: &db, running: 1, keeper: None }));
    world.pause(&name("mail"), true);
    assert_eq!(world.dispatch.blocked(second), Some(BlockReason::QueuePaused));
    world.pause(&name("mail"), false);
    world.end(first, How::Succeed);
    assert_eq!(world.dispatch.blocked(second), None);
}

#[test]
fn demand_counts_what_is_ready_and_not_parked() {
    let mut world = World::new();
    let group = world.group(&["mail"], &["send", "cut"]);
    for _ in 0..3 {
        world.submit(job("mail", "send", 0, &[("db", 1)]));
    }
    world.submit(job("video", "cut", 1, &[]));
    world.submit(job("video", "cut", 2, &[]));
    world.pause(&name("video"), true);
    world.take_all(group);
    let shown = |demand: Demand<'_>| (demand.queue.to_string(), demand.kind.to_string(), demand.ready, demand.capable);
    let demand: BTreeSet<_> = world.dispatch.demand().map(shown).collect();
    let row = |queue: &str, kind: &str, ready, capable| (queue.to_owned(), kind.to_owned(), ready, capable);
    let expected = [row("mail", "cut", 0, true), row("mail", "send", 0, true), row("video", "cut", 2, false)];
    assert_eq!(demand, BTreeSet::from(expected));
    assert!(world.dispatch.demand().all(|demand| demand.paused == (demand.queue.as_str() == "video")));
    assert_eq!(world.dispatch.groups_of(&name("mail"), &name("cut")), [group]);
    assert!(world.dispatch.groups_of(&name("video"), &name("cut")).is_empty());
    assert!(world.dispatch.groups_of(&name("unheard"), &name("of")).is_empty());
}

#[test]
fn a_bound_of_one_gives_order_also_over_kinds_and_hand_backs() {
    let mut world = World::new();
    let group = world.group(&["mail"], &KINDS);
    let jobs: [WorkflowKey; 6] =
        core::array::from_fn(|at| world.submit(job("mail", KINDS[at % 2], 0, &[("account", 1)])));
    for (at, key) in jobs.into_iter().enumerate() {
        assert_eq!(world.take_all(group), [key], "number {at}");
        world.end(key, How::Requeue);
        assert_eq!(world.take_all(group), [key], "number {at} again");
        world.end(key, How::Succeed);
    }
}

#[test]
fn as_many_run_as_the_bound_says_and_others_pass_by() {
    let mut world = World::new();
    let group = world.group(&["mail"], &KINDS);
    let bounded: Vec<WorkflowKey> = (0..5).map(|_| world.submit(job("mail", "send", 9, &[("db", 2)]))).collect();
    let free = world.submit(job("mail", "send", 0, &[]));
    assert_eq!(world.take_all(group), [bounded[0], bounded[1], free]);
    world.end(bounded[1], How::Succeed);
    assert_eq!(world.take_all(group), [bounded[2]]);
    world.cancel_workflow(bounded[0]);
    assert_eq!(world.pick(group), None, "a cancel that nobody confirmed frees nothing");
    world.end(bounded[0], How::Requeue);
    world.end(bounded[2], How::Backoff);
    assert_eq!(world.take_all(group), [bounded[3], bounded[4]]);
}

#[test]
fn a_workflow_with_two_keys_is_woken_by_the_second_and_hands_its_turn_on() {
    let mut world = World::new();
    let group = world.group(&["mail"], &["send"]);
    let [a, b] = ["a", "b"].map(|key| world.submit(job("mail", "send", 9, &[(key, 1)])));
    let both = world.submit(job("mail", "send", 0, &[("a", 1), ("b", 1)]));
    let only_a = world.submit(job("mail", "send", 0, &[("a", 1)]));
    assert_eq!(world.take_all(group), [a, b]);
    world.end(a, How::Succeed);
    assert_eq!(world.take_all(group), [only_a], "the room that the first cannot use goes to the next");
    world.end(b, How::Succeed);
    assert_eq!(world.pick(group), None, "the first of its keys is full again");
    world.end(only_a, How::Succeed);
    assert_eq!(world.take_all(group), [both]);
}

#[test]
fn turns_are_kept_over_different_keys() {
    let mut world = World::new();
    let group = world.group(&["mail"], &["send"]);
    let [a, b] = ["a", "b"].map(|key| world.submit(job("mail", "send", 9, &[(key, 1)])));
    let waiting = ["a", "b", "b"].map(|key| world.submit(job("mail", "send", 0, &[(key, 1)])));
    assert_eq!(world.take_all(group), [a, b]);
    world.end(a, How::Succeed);
    world.end(b, How::Succeed);
    assert_eq!(world.pick(group), Some(waiting[0]), "the key that had room last does not matter");
    world.hand_out(waiting[1]);
    world.end(waiting[1], How::Succeed);
    assert_eq!(world.pick(group), Some(waiting[0]), "nor how often the other had room since");
}

#[test]
fn what_comes_back_to_a_full_key_is_woken_before_the_later_one_that_was_let_go() {
    let mut world = World::new();
    let group = world.group(&["mail"], &["send"]);
    let first = world.submit(job("mail", "send", 0, &[("a", 1)]));
    let free = world.submit(job("mail", "send", 0, &[]));
    let later = world.submit(job("mail", "send", 0, &[("a", 1)]));
    assert_eq!(world.take_all(group), [first, free]);
    world.end(first, How::Requeue);
    world.end(free, How::Requeue);
    let urgent = world.submit(job("mail", "send", 9, &[("a", 1)]));
    assert_eq!(world.pick(group), Some(urgent));
    world.hand_out(urgent);
    assert_eq!(world.pick(group), Some(free), "which parks the first, and does not look at the later one");
    world.end(urgent, How::Succeed);
    assert_eq!(world.take_all(group), [first, free]);
    world.end(first, How::Succeed);
    assert_eq!(world.take_all(group), [later]);
}

#[test]
fn cancelling_what_was_let_go_or_is_parked_wakes_the_next() {
    for at in 0..2 {
        let mut world = World::new();
        let group = world.group(&["mail"], &["send"]);
        let jobs = [0; 4].map(|_| world.submit(job("mail", "send", 0, &[("a", 1)])));
        assert_eq!(world.take_all(group), [jobs[0]]);
        if at == 0 {
            world.end(jobs[0], How::Succeed);
            world.cancel_workflow(jobs[1]);
        } else {
            world.cancel_workflow(jobs[1]);
            world.end(jobs[0], How::Succeed);
        }
        assert_eq!(world.take_all(group), [jobs[2]]);
        world.end(jobs[2], How::Succeed);
        assert_eq!(world.take_all(group), [jobs[3]]);
    }
}

#[test]
fn behind_a_lower_bound_a_higher_one_keeps_its_turn_until_the_lower_is_gone() {
    for cancelled in [false, true] {
        let mut world = World::new();
        let group = world.group(&["mail"], &["send"]);
        let running = [0; 3].map(|_| world.submit(job("mail", "send", 0, &[("db", 3)])));
        let low = world.submit(job("mail", "send", 0, &[("db", 1)]));
        let high = world.submit(job("mail", "send", 0, &[("db", 3)]));
        assert_eq!(world.take_all(group), running);
        world.end(running[0], How::Succeed);
        assert_eq!(world.pick(group), None, "the higher bound has room, and it is not its turn");
        if cancelled {
            world.cancel_workflow(low);
            assert_eq!(world.pick(group), Some(high), "the one in front is gone");
        } else {
            world.end(running[1], How::Succeed);
            world.end(running[2], How::Succeed);
            assert_eq!(world.take_all(group), [low], "beside it nobody else may hold the key");
            world.end(low, How::Succeed);
            assert_eq!(world.take_all(group), [high]);
        }
    }
}

#[test]
fn a_lane_that_moves_to_another_key_no_longer_keeps_others_waiting() {
    let mut world = World::new();
    let group = world.group(&["mail"], &["send"]);
    let running = [("a", 3), ("a", 3), ("a", 3), ("b", 1)].map(|limit| world.submit(job("mail", "send", 9, &[limit])));
    let low = world.submit(job("mail", "send", 0, &[("a", 1), ("b", 1)]));
    let high = world.submit(job("mail", "send", 0, &[("a", 3)]));
    assert_eq!(world.take_all(group), running);
    world.end(running[0], How::Succeed);
    assert_eq!(world.pick(group), None, "the higher bound has room, and it is not its turn");
    world.end(running[1], How::Succeed);
    world.end(running[2], How::Succeed);
    assert_eq!(world.take_all(group), [high], "what is in front waits for another key");
    world.end(running[3], How::Succeed);
    world.end(high, How::Succeed);
    assert_eq!(world.take_all(group), [low]);
}

#[test]
fn another_of_the_same_limits_takes_its_lane_along() {
    let mut world = World::new();
    let group = world.group(&["mail"], &["send"]);
    let running = [("a", 3), ("a", 3), ("a", 3)].map(|limit| world.submit(job("mail", "send", 9, &[limit])));
    let low = world.submit(job("mail", "send", 0, &[("b", 1), ("a", 1)]));
    let high = world.submit(job("mail", "send", 0, &[("a", 3)]));
    assert_eq!(world.take_all(group), running, "which parks both under the one key");
    let other = world.submit(job("mail", "send", 9, &[("b", 1)]));
    assert_eq!(world.take_all(group), [other]);
    world.end(running[0], How::Succeed);
    assert_eq!(world.pick(group), None, "the higher bound has room, and it is not its turn");
    let second = world.submit(job("mail", "send", 0, &[("b", 1), ("a", 1)]));
    assert_eq!(world.take_all(group), [high], "the lower one is found to wait for the other key");
    let b = name("b");
    for key in [low, second] {
        assert_eq!(world.dispatch.blocked(key), Some(BlockReason::Limit { key: &b, running: 1, keeper: None }));
    }
    for key in [running[1], running[2], high, other] {
        world.end(key, How::Succeed);
    }
    assert_eq!(world.take_all(group), [low]);
    world.end(low, How::Succeed);
    assert_eq!(world.take_all(group), [second]);
}

#[test]
fn a_pick_stops_where_its_budget_ends_and_the_next_goes_on_from_there() {
    let mut world = World::new();
    let group = world.group(&["mail"], &["send"]);
    let first = world.submit(job("mail", "send", 9, &[("a", 1)]));
    assert_eq!(world.take_all(group), [first]);
    for _ in 0..5 {
        world.submit(job("mail", "send", 0, &[("a", 1)]));
    }
    let free = world.submit(job("mail", "send", 0, &[]));
    for (mut budget, left, picked) in [(3, 0, None), (2, 0, None), (2, 2, Some(free)), (0, 0, None)] {
        let given = budget;
        assert_eq!(world.dispatch.pick(group, &world.state, world.now, &mut budget), picked, "with {given}");
        assert_eq!(budget, left, "of {given}");
    }
}

#[test]
fn who_comes_next_is_known_for_a_single_shelf_for_many_and_for_a_lane() {
    let mut world = World::new();
    let group = world.group(&["q"], &["a", "b", "c"]);
    let alone: Vec<_> = (0..6).map(|_| world.submit(job("q", "a", 0, &[]))).collect();
    assert_eq!(world.pick(group), Some(alone[0]));
    let behind = |world: &World, picked| world.dispatch.behind(group, picked, 4);
    assert_eq!(behind(&world, alone[0]), Some(alone[5]));
    world.hand_out(alone[0]);
    assert_eq!(behind(&world, alone[1]), None);

    // Three shelves that take turns: the second of this one comes after four others.
    let others = ["b", "c"].map(|kind| [(); 3].map(|()| world.submit(job("q", kind, 0, &[]))));
    assert_eq!(behind(&world, alone[1]), Some(alone[3]));
    assert_eq!(behind(&world, others[0][0]), Some(others[0][2]));

    let mut world = World::new();
    let group = world.group(&["q"], &["a"]);
    let lane: Vec<_> = (0..8).map(|_| world.submit(job("q", "a", 0, &[("k", 1)]))).collect();
    assert_eq!(world.take_all(group), [lane[0]]);
    world.end(lane[0], How::Succeed);
    assert_eq!(world.pick(group), Some(lane[1]));
    assert_eq!(world.dispatch.behind(group, lane[1], 4), Some(lane[7]), "behind the head of its lane");
}

#[test]
fn workers_are_asked_in_turn_and_slow_ones_apart() {
    let mut world = World::new();
    let group = world.group(&["mail"], &KINDS);
    let dispatch = &mut world.dispatch;
    assert_eq!((dispatch.next_worker(group, Tier::Route), dispatch.has_worker(group, Tier::Route)), (None, false));
    for (worker, tier) in [(4, Tier::Route), (2, Tier::Investigate), (7, Tier::Route), (1, Tier::Route)] {
        dispatch.offer(worker_key(worker), group, tier);
    }
    let turns = |dispatch: &mut Dispatch, tier, count| -> Vec<usize> {
        (0..count).map(|_| dispatch.next_worker(group, tier).expect("the ring has workers").index()).collect()
    };
    assert_eq!(turns(dispatch, Tier::Route, 4), [4, 7, 1, 4]);
    assert_eq!(turns(dispatch, Tier::Investigate, 2), [2, 2]);
    dispatch.offer(worker_key(7), group, Tier::Route);
    assert_eq!(turns(dispatch, Tier::Route, 1), [7], "offering again does not change the turn");
    dispatch.withdraw(worker_key(1));
    dispatch.withdraw(worker_key(1));
    assert_eq!(turns(dispatch, Tier::Route, 3), [4, 7, 4]);
    dispatch.offer(worker_key(7), group, Tier::Investigate);
    assert_eq!(turns(dispatch, Tier::Investigate, 3), [2, 7, 2]);
    assert_eq!(turns(dispatch, Tier::Route, 2), [4, 4]);
    dispatch.withdraw(worker_key(4));
    assert!(!dispatch.has_worker(group, Tier::Route) && dispatch.has_worker(group, Tier::Investigate));
    dispatch.withdraw(worker_key(99));
    assert!(Tier::Route < Tier::Investigate, "whom to ask first");
}

#[test]
fn a_group_is_dirty_when_work_and_a_worker_may_have_met() {
    let mut world = World::new();
    let group = world.group(&["mail"], &["send"]);
    let bystander = world.group(&["bulk"], &["send"]);
    world.dispatch.offer(worker_key(2), bystander, Tier::Route);
    assert_eq!(world.dispatch.pop_dirty(), Some(bystander));

    let first = world.submit(job("mail", "send", 0, &[("db", 1)]));
    assert_eq!(world.dispatch.pop_dirty(), None, "there is no worker");
    world.dispatch.offer(worker_key(1), group, Tier::Investigate);
    assert_eq!((world.dispatch.pop_dirty(), world.dispatch.pop_dirty()), (Some(group), None), "a worker has come");
    world.dispatch.offer(worker_key(1), group, Tier::Investigate);
    assert_eq!(world.dispatch.pop_dirty(), None, "it was there before");
    assert_eq!(world.take_all(group), [first]);
    assert_eq!(world.dispatch.pop_dirty(), None, "taking work brings none");

    let second = world.submit(job("mail", "send", 0, &[("db", 1)]));
    assert_eq!((world.dispatch.pop_dirty(), world.dispatch.pop_dirty()), (Some(group), None), "work has come");
    assert_eq!(world.pick(group), None);
    world.submit(job("mail", "cut", 0, &[]));
    assert_eq!(world.dispatch.pop_dirty(), None, "nobody takes that kind");
    world.end(first, How::Succeed);
    assert_eq!((world.dispatch.pop_dirty(), world.dispatch.pop_dirty()), (Some(group), None), "a key has room");

    world.pause(&name("mail"), true);
    assert_eq!(world.dispatch.pop_dirty(), None);
    world.pause(&name("mail"), false);
    assert_eq!((world.dispatch.pop_dirty(), world.dispatch.pop_dirty()), (Some(group), None), "resumed");
    world.dispatch.withdraw(worker_key(1));
    world.cancel_workflow(second);
    world.submit(job("mail", "send", 0, &[]));
    assert_eq!(world.dispatch.pop_dirty(), None, "the worker has no room any more");
}

#[test]
fn a_group_lives_as_long_as_its_workers() {
    let mut world = World::new();
    let one = world.join(subscription(&["mail"], &KINDS), 1);
    let two = world.join(subscription(&["mail"], &KINDS), 1);
    let group = world.workers[&one].group;
    assert_eq!(world.workers[&two].group, group, "the same subscription is the same group");
    let key = world.submit(job("mail", "send", 0, &[]));
    world.freed(Some(two));
    world.leave(one);
    assert_eq!(world.pick(group), Some(key));
    world.leave(two);
    assert_eq!(world.dispatch.pop_dirty(), None, "nobody is left to be asked");
    assert_eq!(world.dispatch.blocked(key), Some(BlockReason::NoCapableWorker));
    let group = world.group(&["mail"], &["send"]);
    assert_eq!(world.take_all(group), [key]);
}

#[test]
fn a_subscription_over_the_limit_is_refused_and_leaves_nothing() {
    let mut world = World::new();
    let wide = subscription(&QUEUES, &KINDS);
    let limits = Limits { subscription_pairs: 5, ..Limits::default() };
    let met = world.dispatch.join(&wide, ClientId::default(), &limits, |_| false).expect_err("six queue_kinds");
    assert_eq!(met.limit, Limit::SubscriptionPairs);
    let limits = Limits { subscriptions: 0, ..Limits::default() };
    let met = world.dispatch.join(&wide, ClientId::default(), &limits, |_| false).expect_err("no group may be");
    assert_eq!(met.limit, Limit::Subscriptions);
    assert_eq!((world.dispatch.queue_kinds.len(), world.dispatch.groups.len()), (0, 0));
}

#[test]
fn room_is_asked_for_what_is_new() {
    let world = World::new();
    let spec = |draft| check(draft, &Limits::default(), &JobDefaults::default()).expect("a good job");
    let two = [spec(job("mail", KINDS[0], 0, &[("a", 1)])), spec(job("mail", KINDS[1], 0, &[("b", 1)]))];
    let room = |shelves, limit_keys| {
        world
            .dispatch
            .room_for(&Limits { shelves, limit_keys, ..Limits::default() }, two.iter())
            .map_err(|met| met.limit)
    };
    assert_eq!(room(2, 2), Ok(()));
    assert_eq!(room(1, 2), Err(Limit::Shelves));
    assert_eq!(room(2, 1), Err(Limit::LimitKeys));
    let same = [two[0].clone(), two[0].clone()];
    assert!(world.dispatch.room_for(&Limits { shelves: 1, limit_keys: 1, ..Limits::default() }, same.iter()).is_ok());
}

/// Cost is counted in heads that turned out to be blocked, which is all that a pick may look at in vain.
#[test]
fn a_blocked_backlog_is_looked_at_once() {
    const BACKLOG: u64 = 100_000;
    let mut world = World::new();
    let group = world.group(&["mail"], &KINDS);
    let draft = job("mail", "send", 9, &[("db", 1)]);
    let spec = Arc::new(check(draft, &Limits::default(), &JobDefaults::default()).expect("a good job"));
    let mut running = world.submit_spec(&spec);
    for _ in 0..BACKLOG {
        world.submit_spec(&spec);
    }
    assert_eq!(world.take_all(group), [running]);
    assert_eq!(world.dispatch.parks, BACKLOG, "each was seen once");

    for _ in 0..100 {
        let free = world.submit(job("mail", "cut", 0, &[]));
        assert_eq!(world.take_all(group), [free]);
        world.end(free, How::Succeed);
    }
    assert_eq!(world.dispatch.parks, BACKLOG, "nobody looks at what is parked");

    for _ in 0..100 {
        world.end(running, How::Succeed);
        let next = world.take_all(group);
        assert_eq!(next.len(), 1);
        running = next[0];
    }
    assert_eq!(world.dispatch.parks, BACKLOG, "room for one wakes one, and it goes");

    for _ in 0..100 {
        let urgent = world.submit(job("mail", "cut", 100, &[("db", 1)]));
        world.end(running, How::Succeed);
        assert_eq!(world.pick(group), Some(urgent));
        world.hand_out(urgent);
        running = urgent;
    }
    assert_eq!(world.pick(group), None);
    assert_eq!(world.dispatch.parks, BACKLOG + 1, "one was woken in vain, however often there was room");
}

/// As above, where two keys are full by turns: all that waits for both moves as one.
#[test]
fn a_backlog_behind_two_keys_that_are_full_by_turns_is_moved_as_one() {
    const BACKLOG: usize = 10_000;
    let mut world = World::new();
    let group = world.group(&["mail"], &KINDS);
    let mut holders = ["a", "b"].map(|key| world.submit(job("mail", "send", 9, &[(key, 1)])));
    assert_eq!(world.take_all(group), holders);
    // Two kinds of two priorities are four shelves.
    let shelves = [("send", 0), ("cut", 0), ("send", 1), ("cut", 1)];
    let specs = shelves.map(|(kind, priority)| {
        let draft = job("mail", kind, priority, &[("a", 1), ("b", 1)]);
        Arc::new(check(draft, &Limits::default(), &JobDefaults::default()).expect("a good job"))
    });
    let waiting: Vec<WorkflowKey> = (0..BACKLOG).map(|at| world.submit_spec(&specs[at % 4])).collect();
    assert_eq!(world.pick(group), None);
    assert_eq!(world.dispatch.parks, BACKLOG as u64, "each was seen once");
    assert_eq!(world.dispatch.lanes.len(), shelves.len());

    for round in 0..200 {
        let parks = world.dispatch.parks;
        let (at, name) = [(0, "a"), (1, "b")][round % 2];
        world.end(holders[at], How::Succeed);
        assert_eq!(world.pick(group), None, "the other key is full");
        holders[at] = world.submit(job("mail", "send", 9, &[(name, 1)]));
        assert_eq!(world.take_all(group), [holders[at]]);
        let looked_at = world.dispatch.parks - parks;
        assert!(looked_at <= shelves.len() as u64, "{looked_at} were looked at in round {round}");
    }

    // A lane in which one is cancelled moves on with the rest.
    world.cancel_workflow(waiting[2]);
    for holder in holders {
        world.end(holder, How::Succeed);
    }
    for expected in [3, 6, 7, 10] {
        assert_eq!(world.take_all(group), [waiting[expected]], "in order");
        world.end(waiting[expected], How::Succeed);
    }
    world.check_lanes(Bounds::OnePerKey);
}
