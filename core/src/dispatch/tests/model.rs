//! The model: it keeps no index at all, scans the state, and takes the best of what it finds.
//!
//! It says of every single look what is looked at: of each priority the first turn competes, by what it has waited. One
//! that turns out to be blocked competes until somebody has looked at it, and is passed over from then on. So what
//! dispatch has put aside is the one thing that the model takes from it, and only for what really is blocked.

use core::cmp::Reverse;

use super::*;

/// Whether all workflows that name a key give it the same bound.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Bounds {
    OnePerKey,
    Mixed,
}

impl World {
    /// The number of workflows that hold each key, and the smallest bound among them.
    pub(super) fn running(&self) -> BTreeMap<Name, (u32, u32)> {
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
    pub(super) fn keeps(&self, key: WorkflowKey, limit: &ConcurrencyLimit) -> bool {
        limit.ordered && self.state.workflow(key).handouts > 0
    }

    /// All workflows that a worker with this subscription may take.
    pub(super) fn eligible(&self, subscription: &Subscription) -> Vec<WorkflowKey> {
        let running = self.running();
        let mut found = self.wanted(subscription);
        found.retain(|key| !self.is_blocked(*key, &running));
        found
    }

    /// Workflows that are ready for such a worker, blocked or not.
    pub(super) fn wanted(&self, subscription: &Subscription) -> Vec<WorkflowKey> {
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

    pub(super) fn is_blocked(&self, key: WorkflowKey, running: &BTreeMap<Name, (u32, u32)>) -> bool {
        let mut limits = self.spec(key).limits.iter().filter(|limit| !self.keeps(key, limit));
        limits.any(|limit| running.get(&limit.key).is_some_and(|(count, least)| *count >= limit.max.min(*least)))
    }

    /// The model: what is looked at next for a worker with this subscription, by going through all that is ready.
    pub(super) fn looked_at_next(&self, subscription: &Subscription) -> Option<WorkflowKey> {
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

    pub(super) fn effective(&self, key: WorkflowKey) -> i64 {
        let waited_s = self.now.since(self.waiting_since[&key]).as_secs();
        i64::from(self.spec(key).priority) + (waited_s / 30).min(50) as i64
    }

    /// Compares the workflows that every group would take with the model, and the counts that dispatch shows with the
    /// state.
    pub(super) fn compare(&mut self, bounds: Bounds) {
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
        self.state.check();
    }

    /// Checks that every parked workflow is in one lane, and every lane waits under one key, so that none is forgotten
    /// there.
    pub(super) fn check_lanes(&self, bounds: Bounds) {
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

    pub(super) fn pick_as_the_model_does(
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
    pub(super) fn serve(&mut self) {
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

    pub(super) fn busy(&self, worker: WorkerKey) -> u32 {
        self.holders.values().filter(|holder| **holder == worker).count() as u32
    }

    pub(super) fn freed(&mut self, worker: Option<WorkerKey>) {
        if let Some(worker) = worker
            && let Some(free) = self.workers.get(&worker)
        {
            self.dispatch.offer(worker, free.group, tier_of(worker));
        }
    }

    /// Runs everything to its end and lets everybody go: nothing may be left in any table.
    pub(super) fn drain(&mut self, bounds: Bounds) {
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

pub(super) const fn tier_of(worker: WorkerKey) -> Tier {
    if worker.index().is_multiple_of(3) { Tier::Investigate } else { Tier::Route }
}
