//! Groups: workers with the same subscription, and the shelves that they may take from.

use core::hash::BuildHasher;
use core::ops::{Index, IndexMut};
use std::collections::BTreeSet;

use crate::ids::ClientId;
use crate::key::Key;
use crate::limits::{Limit, LimitMet, Limits};
use crate::list::{Links, List, ListNode};
use crate::manager::{FleetWorker, WorkerKey};
use crate::message::Subscription;
use crate::table::Table;

use super::Dispatch;
use super::shelves::{QueueKind, Shelf};

pub(crate) type GroupKey = Key<Group>;

/// Whom to ask first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Tier {
    Route,
    /// Slow workers: only when nobody else has room.
    Investigate,
}

#[derive(Debug)]
pub(crate) struct Group {
    subscription: Subscription,
    /// The client that brought the group in: it counts towards this client's share for as long as anybody uses it.
    client: ClientId,
    workers: u32,
    queue_kinds: Box<[Key<QueueKind>]>,
    /// Non-empty shelves, by priority; in a level, by the turn of their head.
    pub(super) levels: Vec<Level>,
    /// Workers with room, in turn.
    rings: [List<FleetWorker>; 2],
    pub(super) dirty: bool,
}

#[derive(Debug)]
pub(super) struct Level {
    pub(super) priority: i8,
    pub(super) shelves: BTreeSet<(u64, Key<Shelf>)>,
}

/// A worker's place in the ring of its group.
#[derive(Clone, Copy, Debug)]
pub(super) struct RingSlot {
    links: Links<FleetWorker>,
    group: GroupKey,
    tier: Tier,
}

impl ListNode<FleetWorker> for RingSlot {
    #[inline]
    fn links(&self) -> &Links<FleetWorker> {
        &self.links
    }

    #[inline]
    fn links_mut(&mut self) -> &mut Links<FleetWorker> {
        &mut self.links
    }
}

/// The places of all workers that may be asked.
#[derive(Debug)]
pub(super) struct RingSlots(Table<FleetWorker, Option<RingSlot>>);

impl Default for RingSlots {
    fn default() -> Self {
        Self(Table::new(None))
    }
}

impl RingSlots {
    fn get(&self, worker: WorkerKey) -> Option<&RingSlot> {
        self.0.get(worker)?.as_ref()
    }
}

impl Index<WorkerKey> for RingSlots {
    type Output = RingSlot;

    #[inline]
    fn index(&self, worker: WorkerKey) -> &RingSlot {
        self.0[worker].as_ref().expect("the worker is in a ring")
    }
}

impl IndexMut<WorkerKey> for RingSlots {
    #[inline]
    fn index_mut(&mut self, worker: WorkerKey) -> &mut RingSlot {
        self.0[worker].as_mut().expect("the worker is in a ring")
    }
}

impl Group {
    pub(super) fn has_workers(&self) -> bool {
        self.rings.iter().any(|ring| !ring.is_empty())
    }

    pub(super) fn list(&mut self, priority: i8, order: u64, shelf: Key<Shelf>) {
        let at = match self.levels.iter().position(|level| level.priority == priority) {
            Some(at) => at,
            None => {
                self.levels.push(Level { priority, shelves: BTreeSet::new() });
                self.levels.len() - 1
            }
        };
        self.levels[at].shelves.insert((order, shelf));
    }

    pub(super) fn unlist(&mut self, priority: i8, order: u64, shelf: Key<Shelf>) {
        let level = self.levels.iter_mut().find(|level| level.priority == priority);
        level.expect("an indexed shelf has its level").shelves.remove(&(order, shelf));
    }
}

impl Dispatch {
    /// A worker with this subscription appears. Every subscription in use has one group.
    pub fn join(
        &mut self,
        subscription: &Subscription,
        client: ClientId,
        limits: &Limits,
        is_paused: impl Fn(&str) -> bool,
    ) -> Result<GroupKey, LimitMet> {
        let hash = self.hasher.hash_one(subscription);
        let found = self.group_ids.find(hash, |key| self.groups[*key].subscription == *subscription).copied();
        if let Some(key) = found {
            self.groups[key].workers += 1;
            return Ok(key);
        }
        limits.check(Limit::SubscriptionPairs, subscription.queues.len().saturating_mul(subscription.kinds.len()))?;
        limits.check(Limit::Subscriptions, self.groups.len() + 1)?;
        let share = self.shares.get(&client).copied().unwrap_or(0) + 1;
        limits.check(Limit::SubscriptionsPerClient, share)?;
        self.shares.insert(client, share);
        let mut queue_kinds = BTreeSet::new();
        for queue in &subscription.queues {
            for kind in &subscription.kinds {
                queue_kinds.insert(self.acquire_queue_kind(queue, kind, || is_paused(queue.as_str())));
            }
        }
        let key = self.groups.insert(Group {
            subscription: subscription.clone(),
            client,
            workers: 1,
            queue_kinds: queue_kinds.iter().copied().collect(),
            levels: Vec::new(),
            rings: [List::EMPTY; 2],
            dirty: false,
        });
        let (groups, hasher) = (&self.groups, &self.hasher);
        self.group_ids.insert_unique(hash, key, |key| hasher.hash_one(&groups[*key].subscription));
        for queue_kind in queue_kinds {
            self.queue_kinds[queue_kind].groups.push(key);
            for (priority, shelf) in &self.queue_kinds[queue_kind].shelves {
                if let Some(order) = self.shelves[*shelf].indexed {
                    self.groups[key].list(*priority, order, *shelf);
                }
            }
        }
        Ok(key)
    }

    /// A worker of this group is gone.
    pub fn leave(&mut self, key: GroupKey) {
        let group = &mut self.groups[key];
        group.workers -= 1;
        if group.workers > 0 {
            return;
        }
        if group.dirty {
            self.dirty.retain(|dirty| *dirty != key);
        }
        let group = self.groups.remove(key);
        let share = self.shares.get_mut(&group.client).expect("whoever brought it in has a share");
        *share -= 1;
        if *share == 0 {
            self.shares.remove(&group.client);
        }
        let hash = self.hasher.hash_one(&group.subscription);
        let entry = self.group_ids.find_entry(hash, |known| *known == key);
        entry.expect("every group is in the index").remove();
        for queue_kind in group.queue_kinds {
            self.queue_kinds[queue_kind].groups.retain(|known| *known != key);
            self.release_queue_kind(queue_kind);
        }
    }

    /// The worker has room and may be asked in this tier.
    pub fn offer(&mut self, worker: WorkerKey, group: GroupKey, tier: Tier) {
        if self.ring_slots.get(worker).is_some_and(|slot| slot.tier == tier && slot.group == group) {
            return;
        }
        self.withdraw(worker);
        *self.ring_slots.0.entry(worker) = Some(RingSlot { links: Links::UNLINKED, group, tier });
        self.groups[group].rings[tier as usize].push_back(&mut self.ring_slots, worker);
        self.mark_dirty(group);
    }

    /// The worker has no room, or may not be asked.
    pub fn withdraw(&mut self, worker: WorkerKey) {
        let Some(RingSlot { group, tier, .. }) = self.ring_slots.get(worker).copied() else { return };
        self.groups[group].rings[tier as usize].remove(&mut self.ring_slots, worker);
        self.ring_slots.0[worker] = None;
    }

    /// The worker whose turn it is; it goes to the end of the ring.
    pub fn next_worker(&mut self, group: GroupKey, tier: Tier) -> Option<WorkerKey> {
        let ring = &mut self.groups[group].rings[tier as usize];
        let worker = ring.head()?;
        ring.rotate(&self.ring_slots);
        Some(worker)
    }

    pub fn has_worker(&self, group: GroupKey, tier: Tier) -> bool {
        !self.groups[group].rings[tier as usize].is_empty()
    }

    /// The workers of a group that have room and may be asked.
    pub fn offering(&self, group: GroupKey) -> impl Iterator<Item = WorkerKey> + '_ {
        self.groups[group].rings.iter().flat_map(|ring| ring.iter(&self.ring_slots))
    }

    /// A group in which a workflow and a worker may have met since this was last asked.
    pub fn pop_dirty(&mut self) -> Option<GroupKey> {
        let group = self.dirty.pop()?;
        self.groups[group].dirty = false;
        Some(group)
    }

    pub fn mark_dirty(&mut self, key: GroupKey) {
        let group = &mut self.groups[key];
        if !group.dirty {
            group.dirty = true;
            self.dirty.push(key);
        }
    }

    pub fn has_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }
}
