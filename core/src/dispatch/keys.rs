//! Concurrency keys, and the sets of them that workflows name.
//!
//! Workflows that name the same keys with the same bounds, in the same order, share one [`LimitSet`]. What blocks one
//! of them blocks all, which is what lets dispatch move them together: see [`super::lanes`].
//!
//! A workflow that is handed out takes its keys and gives them back when its attempt ends; an *ordered* key it keeps
//! until it has ended itself. So from its first hand-out on a workflow is split: its ordered keys lie in a set that it
//! keeps, and what can block it is a set of the others. Two cannot wait for each other: whoever begins has found all of
//! its keys free, so a key that it has given back and misses is kept by one that began after it.

use core::hash::{BuildHasher, Hash, Hasher};
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::ids::Name;
use crate::job::spec::ConcurrencyLimit;
use crate::key::Key;
use crate::state::WorkflowKey;

use super::Dispatch;
use super::lanes::{ParkedLane, ParkedLanes};
use super::shelves::Shelf;

#[derive(Debug)]
pub(super) struct LimitKey {
    pub(super) name: Name,
    /// Hash of the name.
    hash: u64,
    /// Sets that name it.
    sets: u32,
    /// Workflows that hold the key: those that workers hold, and the one that keeps the key in order between its
    /// attempts.
    pub(super) running: u32,
    /// Bounds of these workflows, each with how many have it.
    bounds: BTreeMap<u32, u32>,
    /// The workflow that keeps it in order.
    pub(super) keeper: Option<WorkflowKey>,
    /// Parked lanes by shelf.
    pub(super) parked: BTreeMap<Key<Shelf>, ParkedLanes>,
}

impl LimitKey {
    /// Whether one more workflow may hold the key: by its own bound, and by that of every holder.
    pub(super) fn has_room(&self, bound: u32) -> bool {
        let smallest = self.bounds.first_key_value().map_or(bound, |(smallest, _)| bound.min(*smallest));
        self.running < smallest
    }

    fn take(&mut self, bound: u32) {
        self.running += 1;
        *self.bounds.entry(bound).or_default() += 1;
    }

    fn give_back(&mut self, bound: u32) {
        self.running -= 1;
        let count = self.bounds.get_mut(&bound).expect("it was taken under this bound");
        *count -= 1;
        if *count == 0 {
            self.bounds.remove(&bound);
        }
    }
}

#[derive(Debug)]
pub(super) struct LimitSet {
    /// Hash of names and bounds.
    hash: u64,
    /// Workflows that name it and have not ended.
    members: u32,
    /// Limits as the jobs gave them; jobs share them.
    limits: Arc<[ConcurrencyLimit]>,
    /// Each key with its bound, as the jobs gave them.
    pub(super) keys: Box<[(Key<LimitKey>, u32)]>,
    /// The lanes of its parked members, by shelf.
    pub(super) lanes: BTreeMap<Key<Shelf>, Key<ParkedLane>>,
}

impl LimitSet {
    /// The most workflows that may hold one of the set's keys at once, as this set says.
    pub(super) fn bound(&self, key: Key<LimitKey>) -> u32 {
        let found = self.keys.iter().find(|(known, _)| *known == key);
        found.expect("a lane waits under a key of its own").1
    }
}

impl Dispatch {
    /// The set with this content; none if there are no limits.
    pub(super) fn acquire_set(&mut self, limits: &Arc<[ConcurrencyLimit]>) -> Option<Key<LimitSet>> {
        if limits.is_empty() {
            return None;
        }
        let hash = self.hash_limits(limits);
        if let Some(set) = self.find_set(hash, limits) {
            self.limit_sets[set].members += 1;
            return Some(set);
        }
        let keys = limits.iter().map(|limit| (self.acquire_key(&limit.key), limit.max)).collect();
        let limits = limits.clone();
        let set = self.limit_sets.insert(LimitSet { hash, members: 1, limits, keys, lanes: BTreeMap::new() });
        let sets = &self.limit_sets;
        self.limit_set_ids.insert_unique(hash, set, |set| sets[*set].hash);
        Some(set)
    }

    fn hash_limits(&self, limits: &[ConcurrencyLimit]) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        for limit in limits {
            limit.key.hash(&mut hasher);
            limit.max.hash(&mut hasher);
            limit.ordered.hash(&mut hasher);
        }
        hasher.finish()
    }

    fn find_set(&self, hash: u64, limits: &Arc<[ConcurrencyLimit]>) -> Option<Key<LimitSet>> {
        let found = self.limit_set_ids.find(hash, |set| {
            let known = &self.limit_sets[*set].limits;
            Arc::ptr_eq(known, limits) || known == limits
        });
        found.copied()
    }

    pub(super) fn release_set(&mut self, set: Option<Key<LimitSet>>) {
        let Some(set) = set else { return };
        let known = &mut self.limit_sets[set];
        known.members -= 1;
        if known.members > 0 {
            return;
        }
        let entry = self.limit_set_ids.find_entry(known.hash, |known| *known == set);
        entry.expect("every set is in the index").remove();
        for (key, _) in self.limit_sets.remove(set).keys {
            self.release_key(key);
        }
    }

    fn acquire_key(&mut self, name: &Name) -> Key<LimitKey> {
        let hash = self.hasher.hash_one(name);
        if let Some(key) = self.key_ids.find(hash, |key| self.keys[*key].name == *name) {
            let key = *key;
            self.keys[key].sets += 1;
            return key;
        }
        let limit = LimitKey {
            name: name.clone(),
            hash,
            sets: 1,
            running: 0,
            bounds: BTreeMap::new(),
            keeper: None,
            parked: BTreeMap::new(),
        };
        let key = self.keys.insert(limit);
        let keys = &self.keys;
        self.key_ids.insert_unique(hash, key, |key| keys[*key].hash);
        key
    }

    pub(super) fn has_key(&self, name: &Name) -> bool {
        self.key_ids.find(self.hasher.hash_one(name), |key| self.keys[*key].name == *name).is_some()
    }

    fn release_key(&mut self, key: Key<LimitKey>) {
        let limit = &mut self.keys[key];
        limit.sets -= 1;
        if limit.sets > 0 {
            return;
        }
        let entry = self.key_ids.find_entry(limit.hash, |known| *known == key);
        entry.expect("every key is in the index").remove();
        self.keys.remove(key);
    }

    /// The first of a workflow's keys that has no room for it.
    pub(super) fn full_key(&self, workflow: WorkflowKey) -> Option<Key<LimitKey>> {
        let set = self.entries[workflow].limits?;
        let full = |(key, max): &&(Key<LimitKey>, u32)| !self.keys[*key].has_room(*max);
        self.limit_sets[set].keys.iter().find(full).map(|(key, _)| *key)
    }

    /// The workflow is held by a worker.
    pub(super) fn take_keys(&mut self, workflow: WorkflowKey) {
        let entry = &mut self.entries[workflow];
        entry.holds_keys = true;
        let Some(limits) = entry.limits else { return };
        for (key, max) in &self.limit_sets[limits].keys {
            self.keys[*key].take(*max);
        }
    }

    /// The workflow is no longer held: its keys have room for others.
    pub(super) fn give_back_keys(&mut self, workflow: WorkflowKey) {
        let entry = &mut self.entries[workflow];
        if core::mem::take(&mut entry.holds_keys)
            && let Some(set) = entry.limits
        {
            self.give_back_set(set);
        }
    }

    /// The workflow has been handed out, now or before: it keeps its ordered keys until it has ended, and only the others
    /// can block it.
    pub fn begin_order(&mut self, workflow: WorkflowKey) {
        let Some(before) = self.entries[workflow].limits else { return };
        if !self.limit_sets[before].limits.iter().any(|limit| limit.ordered) {
            return;
        }
        let limits = self.limit_sets[before].limits.iter().cloned();
        let (ordered, others): (Vec<_>, Vec<_>) = limits.partition(|limit| limit.ordered);
        let kept = self.acquire_set(&ordered.into()).expect("there is an ordered one");
        self.entries[workflow].limits = self.acquire_set(&others.into());
        self.release_set(Some(before));
        for (key, max) in &self.limit_sets[kept].keys {
            self.keys[*key].take(*max);
            self.keys[*key].keeper = Some(workflow);
        }
        self.kept.insert(workflow, kept);
    }

    /// The workflow has ended: the next may begin under its ordered keys.
    pub(super) fn end_order(&mut self, workflow: WorkflowKey) {
        let Some(kept) = self.kept.remove(&workflow) else { return };
        for (key, _) in &self.limit_sets[kept].keys {
            self.keys[*key].keeper = None;
        }
        self.give_back_set(kept);
        self.release_set(Some(kept));
    }

    fn give_back_set(&mut self, set: Key<LimitSet>) {
        for at in 0..self.limit_sets[set].keys.len() {
            let (key, max) = self.limit_sets[set].keys[at];
            self.keys[key].give_back(max);
            // Sorted by turn: where shelves lie must not show in who is asked first.
            let first =
                |(shelf, parked): (&Key<Shelf>, &ParkedLanes)| (parked.lanes.first().map(|(order, _)| *order), *shelf);
            let mut waiting: Vec<_> = self.keys[key].parked.iter().map(first).collect();
            waiting.sort_unstable();
            waiting.into_iter().for_each(|(_, shelf)| self.release_next(key, shelf));
        }
    }
}
