//! Shelves: workflows of one queue, kind and priority, in order of readiness.

use core::hash::BuildHasher;

use crate::ids::Name;
use crate::key::Key;
use crate::state::WorkflowKey;

use super::{Dispatch, GroupKey, TurnQueue};

/// A queue and a kind: the pair that subscriptions name.
#[derive(Debug)]
pub(super) struct QueueKind {
    pub(super) queue: Name,
    pub(super) kind: Name,
    pub(super) paused: bool,
    /// Groups whose workers take it.
    pub(super) groups: Vec<GroupKey>,
    /// Shelves by priority.
    pub(super) shelves: Vec<(i8, Key<Shelf>)>,
}

#[derive(Debug)]
pub(super) struct Shelf {
    pub(super) queue_kind: Key<QueueKind>,
    pub(super) priority: i8,
    pub(super) queue: TurnQueue,
    /// Workflows that have not ended.
    members: u32,
    /// The head's turn as the groups' indexes have it; `None` if they do not have this shelf.
    pub(super) indexed: Option<u64>,
}

/// The work of one queue and kind that waits, and the workers that could take it.
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
    pub(super) fn acquire_queue_kind(
        &mut self,
        queue: &Name,
        kind: &Name,
        paused: impl FnOnce() -> bool,
    ) -> Key<QueueKind> {
        let hash = self.hash_queue_kind(queue, kind);
        if let Some(key) = self.find_queue_kind(hash, queue, kind) {
            return key;
        }
        let key = self.queue_kinds.insert(QueueKind {
            queue: queue.clone(),
            kind: kind.clone(),
            paused: paused(),
            groups: Vec::new(),
            shelves: Vec::new(),
        });
        let (queue_kinds, hasher) = (&self.queue_kinds, &self.hasher);
        self.queue_kind_ids
            .insert_unique(hash, key, |key| hasher.hash_one((&queue_kinds[*key].queue, &queue_kinds[*key].kind)));
        key
    }

    fn find_queue_kind(&self, hash: u64, queue: &Name, kind: &Name) -> Option<Key<QueueKind>> {
        let found = self.queue_kind_ids.find(hash, |key| {
            let queue_kind = &self.queue_kinds[*key];
            queue_kind.kind == *kind && queue_kind.queue == *queue
        });
        found.copied()
    }

    /// The name of a kind as jobs or workers brought it before, so that it need not be kept twice.
    pub(super) fn shared_kind(&self, queue: &Name, kind: &Name) -> Option<&Name> {
        Some(&self.queue_kinds[self.find_queue_kind(self.hash_queue_kind(queue, kind), queue, kind)?].kind)
    }

    fn hash_queue_kind(&self, queue: &Name, kind: &Name) -> u64 {
        self.hasher.hash_one((queue, kind))
    }

    /// Frees the queue and kind if nothing waits on it and nobody takes it.
    pub(super) fn release_queue_kind(&mut self, key: Key<QueueKind>) {
        let queue_kind = &self.queue_kinds[key];
        if !queue_kind.groups.is_empty() || !queue_kind.shelves.is_empty() {
            return;
        }
        let hash = self.hash_queue_kind(&queue_kind.queue, &queue_kind.kind);
        let entry = self.queue_kind_ids.find_entry(hash, |known| *known == key);
        entry.expect("every queue_kind is in the index").remove();
        self.queue_kinds.remove(key);
    }

    pub(super) fn acquire_shelf(&mut self, queue_kind: Key<QueueKind>, priority: i8) -> Key<Shelf> {
        if let Some((_, key)) = self.queue_kinds[queue_kind].shelves.iter().find(|(known, _)| *known == priority) {
            self.shelves[*key].members += 1;
            return *key;
        }
        let key =
            self.shelves.insert(Shelf { queue_kind, priority, queue: TurnQueue::EMPTY, members: 1, indexed: None });
        self.queue_kinds[queue_kind].shelves.push((priority, key));
        key
    }

    pub(super) fn has_shelf(&self, queue: &Name, kind: &Name, priority: i8) -> bool {
        let found = self.queue_kind_ids.find(self.hash_queue_kind(queue, kind), |key| {
            let queue_kind = &self.queue_kinds[*key];
            queue_kind.kind == *kind && queue_kind.queue == *queue
        });
        found.is_some_and(|key| self.queue_kinds[*key].shelves.iter().any(|(known, _)| *known == priority))
    }

    pub(super) fn release_shelf(&mut self, key: Key<Shelf>) {
        let shelf = &mut self.shelves[key];
        shelf.members -= 1;
        if shelf.members > 0 {
            return;
        }
        let Shelf { queue_kind, priority, .. } = self.shelves.remove(key);
        self.queue_kinds[queue_kind].shelves.retain(|(known, _)| *known != priority);
        self.release_queue_kind(queue_kind);
    }

    /// Brings the groups' indexes in line with the head of a shelf.
    pub(super) fn reindex(&mut self, key: Key<Shelf>) {
        let shelf = &mut self.shelves[key];
        let queue_kind = &self.queue_kinds[shelf.queue_kind];
        let wanted = shelf.queue.first().map(|(order, _)| order).filter(|_| !queue_kind.paused);
        let before = core::mem::replace(&mut shelf.indexed, wanted);
        if wanted == before {
            return;
        }
        for group_key in &queue_kind.groups {
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
        let of_queue: Vec<Key<QueueKind>> =
            self.queue_kinds.iter().filter(|(_, queue_kind)| queue_kind.queue == *queue).map(|(key, _)| key).collect();
        let mut shelves = Vec::new();
        for key in of_queue {
            self.queue_kinds[key].paused = paused;
            shelves.extend(self.queue_kinds[key].shelves.iter().map(|(_, shelf)| *shelf));
        }
        // Sorted by turn: where shelves lie must not show in who is asked first.
        shelves.sort_by_cached_key(|shelf| self.shelves[*shelf].queue.first().map_or(0, |(turn, _)| turn));
        shelves.into_iter().for_each(|shelf| self.reindex(shelf));
    }

    /// Every queue and kind in use. For health and for people, not for dispatch.
    pub fn demand(&self) -> impl Iterator<Item = Demand<'_>> {
        self.queue_kinds.iter().map(|(_, queue_kind)| Demand {
            queue: &queue_kind.queue,
            kind: &queue_kind.kind,
            paused: queue_kind.paused,
            ready: queue_kind.shelves.iter().map(|(_, shelf)| self.shelves[*shelf].queue.len() as u64).sum(),
            capable: !queue_kind.groups.is_empty(),
        })
    }

    /// The first of every shelf and lane, with its queue. For people, not for dispatch.
    pub fn heads(&self) -> impl Iterator<Item = (&Name, WorkflowKey)> {
        let shelves = self.shelves.iter().map(|(_, shelf)| (shelf.queue_kind, shelf.queue.head()));
        let lanes = self.lanes.iter().map(|(_, lane)| (self.shelves[lane.shelf].queue_kind, lane.queue.head()));
        shelves.chain(lanes).filter_map(|(queue_kind, head)| Some((&self.queue_kinds[queue_kind].queue, head?)))
    }

    pub fn groups_of(&self, queue: &Name, kind: &Name) -> &[GroupKey] {
        let found = self.queue_kind_ids.find(self.hash_queue_kind(queue, kind), |key| {
            let queue_kind = &self.queue_kinds[*key];
            queue_kind.kind == *kind && queue_kind.queue == *queue
        });
        found.map_or(&[], |key| &self.queue_kinds[*key].groups)
    }
}
