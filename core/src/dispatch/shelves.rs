//! Shelves: workflows of one queue, kind and priority, in order of readiness.

use core::hash::BuildHasher;

use crate::ids::Name;
use crate::key::Key;
use crate::state::WorkflowKey;

use super::{Dispatch, GroupKey, Line};

/// One queue and kind: what subscriptions speak of.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) queue: Name,
    pub(super) kind: Name,
    pub(super) paused: bool,
    /// Groups whose workers take it.
    pub(super) groups: Vec<GroupKey>,
    /// By priority.
    pub(super) shelves: Vec<(i8, Key<Shelf>)>,
}

#[derive(Debug)]
pub(super) struct Shelf {
    pub(super) pair: Key<Pair>,
    pub(super) priority: i8,
    pub(super) line: Line,
    /// Workflows that have not ended.
    members: u32,
    /// The head's turn as the groups' indexes have it; `None` if they do not have this shelf.
    pub(super) indexed: Option<u64>,
}

/// How much work of one queue and kind waits, and who could take it.
#[derive(Clone, Copy, Debug)]
pub struct Demand<'a> {
    pub queue: &'a Name,
    pub kind: &'a Name,
    pub paused: bool,
    /// Ready and not blocked by a key.
    pub ready: u64,
    /// Any worker subscribes to it.
    pub capable: bool,
}

impl Dispatch {
    pub(super) fn acquire_pair(&mut self, queue: &Name, kind: &Name, paused: impl FnOnce() -> bool) -> Key<Pair> {
        let hash = self.hash_pair(queue, kind);
        if let Some(key) = self.find_pair(hash, queue, kind) {
            return key;
        }
        let key = self.pairs.insert(Pair {
            queue: queue.clone(),
            kind: kind.clone(),
            paused: paused(),
            groups: Vec::new(),
            shelves: Vec::new(),
        });
        let (pairs, hasher) = (&self.pairs, &self.hasher);
        self.pair_ids.insert_unique(hash, key, |key| hasher.hash_one((&pairs[*key].queue, &pairs[*key].kind)));
        key
    }

    fn find_pair(&self, hash: u64, queue: &Name, kind: &Name) -> Option<Key<Pair>> {
        let found = self.pair_ids.find(hash, |key| {
            let pair = &self.pairs[*key];
            pair.kind == *kind && pair.queue == *queue
        });
        found.copied()
    }

    /// The name of a kind as jobs or workers brought it before, so that it need not be kept twice.
    pub(super) fn shared_kind(&self, queue: &Name, kind: &Name) -> Option<&Name> {
        Some(&self.pairs[self.find_pair(self.hash_pair(queue, kind), queue, kind)?].kind)
    }

    fn hash_pair(&self, queue: &Name, kind: &Name) -> u64 {
        self.hasher.hash_one((queue, kind))
    }

    /// Frees the pair if nothing waits on it and nobody takes it.
    pub(super) fn release_pair(&mut self, key: Key<Pair>) {
        let pair = &self.pairs[key];
        if !pair.groups.is_empty() || !pair.shelves.is_empty() {
            return;
        }
        let hash = self.hash_pair(&pair.queue, &pair.kind);
        let entry = self.pair_ids.find_entry(hash, |known| *known == key);
        entry.expect("every pair is in the index").remove();
        self.pairs.remove(key);
    }

    pub(super) fn acquire_shelf(&mut self, pair: Key<Pair>, priority: i8) -> Key<Shelf> {
        if let Some((_, key)) = self.pairs[pair].shelves.iter().find(|(known, _)| *known == priority) {
            self.shelves[*key].members += 1;
            return *key;
        }
        let key = self.shelves.insert(Shelf { pair, priority, line: Line::EMPTY, members: 1, indexed: None });
        self.pairs[pair].shelves.push((priority, key));
        key
    }

    pub(super) fn has_shelf(&self, queue: &Name, kind: &Name, priority: i8) -> bool {
        let found = self.pair_ids.find(self.hash_pair(queue, kind), |key| {
            let pair = &self.pairs[*key];
            pair.kind == *kind && pair.queue == *queue
        });
        found.is_some_and(|key| self.pairs[*key].shelves.iter().any(|(known, _)| *known == priority))
    }

    pub(super) fn release_shelf(&mut self, key: Key<Shelf>) {
        let shelf = &mut self.shelves[key];
        shelf.members -= 1;
        if shelf.members > 0 {
            return;
        }
        let Shelf { pair, priority, .. } = self.shelves.remove(key);
        self.pairs[pair].shelves.retain(|(known, _)| *known != priority);
        self.release_pair(pair);
    }

    /// Brings the groups' indexes in line with the head of a shelf.
    pub(super) fn reindex(&mut self, key: Key<Shelf>) {
        let shelf = &mut self.shelves[key];
        let pair = &self.pairs[shelf.pair];
        let wanted = shelf.line.first().map(|(order, _)| order).filter(|_| !pair.paused);
        let before = core::mem::replace(&mut shelf.indexed, wanted);
        if wanted == before {
            return;
        }
        for group_key in &pair.groups {
            let group = &mut self.groups[*group_key];
            if let Some(order) = before {
                group.unlist(shelf.priority, order, key);
            }
            if let Some(order) = wanted {
                group.list(shelf.priority, order, key);
                if group.has_workers() && !group.dirty {
                    group.dirty = true;
                    self.dirty.push(*group_key);
                }
            }
        }
    }

    /// Pausing takes a queue's shelves out of every index; resuming puts them back.
    pub fn set_paused(&mut self, queue: &Name, paused: bool) {
        let of_queue: Vec<Key<Pair>> =
            self.pairs.iter().filter(|(_, pair)| pair.queue == *queue).map(|(key, _)| key).collect();
        let mut shelves = Vec::new();
        for key in of_queue {
            self.pairs[key].paused = paused;
            shelves.extend(self.pairs[key].shelves.iter().map(|(_, shelf)| *shelf));
        }
        // By turn: where shelves lie must not show in who is asked first.
        shelves.sort_by_cached_key(|shelf| self.shelves[*shelf].line.first().map_or(0, |(turn, _)| turn));
        shelves.into_iter().for_each(|shelf| self.reindex(shelf));
    }

    /// Every queue and kind in use. For health and for people, not for dispatch.
    pub fn demand(&self) -> impl Iterator<Item = Demand<'_>> {
        self.pairs.iter().map(|(_, pair)| Demand {
            queue: &pair.queue,
            kind: &pair.kind,
            paused: pair.paused,
            ready: pair.shelves.iter().map(|(_, shelf)| self.shelves[*shelf].line.len() as u64).sum(),
            capable: !pair.groups.is_empty(),
        })
    }

    /// The first of every shelf and lane, with its queue. For people, not for dispatch.
    pub fn heads(&self) -> impl Iterator<Item = (&Name, WorkflowKey)> {
        let shelves = self.shelves.iter().map(|(_, shelf)| (shelf.pair, shelf.line.head()));
        let lanes = self.lanes.iter().map(|(_, lane)| (self.shelves[lane.shelf].pair, lane.line.head()));
        shelves.chain(lanes).filter_map(|(pair, head)| Some((&self.pairs[pair].queue, head?)))
    }

    pub fn groups_of(&self, queue: &Name, kind: &Name) -> &[GroupKey] {
        let found = self.pair_ids.find(self.hash_pair(queue, kind), |key| {
            let pair = &self.pairs[*key];
            pair.kind == *kind && pair.queue == *queue
        });
        found.map_or(&[], |key| &self.pairs[*key].groups)
    }
}
