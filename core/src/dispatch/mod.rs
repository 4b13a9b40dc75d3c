//! Which workflow goes to which worker, without ever scanning the backlog.
//!
//! ```text
//! workflow ──▶ shelf (queue, kind, priority): a line in order of readiness
//!                │ head
//!                ▼
//! worker  ──▶ group (all workers with the same subscription): the shelves that it may take from, by their heads
//! ```
//!
//! A group looks at one head per shelf. A head whose concurrency key is full is *parked* under that key, in one lane
//! with all that name the same limits, so that it is not looked at again until the key has room; a paused queue's
//! shelves are in no group's index. So a pick costs the logarithm of the number of shelves, whatever lies behind their
//! heads; and a lane moves from key to key as a whole, whatever lies in it.
//!
//! Priority ages: a head counts one level more per `age_step` that it has waited, up to `max_age`. Within one priority
//! whoever has the first turn has waited longest, but for what ran and was handed back, which keeps its turn and not the
//! time for which it ran. So comparing heads is enough.
//!
//! All of this is derived from the state. It is rebuilt by replaying events and never stored.

mod groups;
mod keys;
mod lanes;
mod matching;
mod shared;
mod shelves;
mod turn_queue;

use core::ops::{Index, IndexMut};
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::HashTable;

use crate::ids::{ClientId, Name};
use crate::intern::Interner;
use crate::job::{JobSpec, Outline, Policy};
use crate::key::Key;
use crate::limits::{Limit, LimitMet, Limits};
use crate::pages::Pages;
use crate::state::{State, Workflow, WorkflowKey};
use crate::table::Table;
use crate::time::{Wall, span_ms};

use groups::{Group, RingSlots};
use keys::{LimitKey, LimitSet};
use lanes::ParkedLane;
use matching::Matching;
use shelves::{QueueKind, Shelf};
use turn_queue::TurnQueue;

pub(crate) use groups::{GroupKey, Tier};
pub use shelves::Demand;

/// The rule by which waiting raises priority.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AgingRule {
    /// The wait that raises priority by one level.
    pub step: Duration,
    pub max_levels: u32,
}

impl Default for AgingRule {
    fn default() -> Self {
        Self { step: Duration::from_secs(30), max_levels: 50 }
    }
}

impl AgingRule {
    /// The priority that a workflow competes with after waiting.
    pub fn effective(&self, priority: i8, waited: Duration) -> i32 {
        let levels = span_ms(waited) / span_ms(self.step).max(1);
        i32::from(priority) + levels.min(u64::from(self.max_levels)) as i32
    }
}

#[derive(Debug)]
pub(crate) struct Dispatch {
    aging: AgingRule,
    hasher: FixedState,
    entries: Entries,
    order: u64,
    queue_kinds: Pages<QueueKind>,
    queue_kind_ids: HashTable<Key<QueueKind>>,
    shelves: Pages<Shelf>,
    keys: Pages<LimitKey>,
    key_ids: HashTable<Key<LimitKey>>,
    policies: Interner<Arc<Policy>>,
    outlines: Interner<Arc<Outline>>,
    limit_sets: Pages<LimitSet>,
    limit_set_ids: HashTable<Key<LimitSet>>,
    /// Workflows that have begun under ordered keys and have not ended, each with the set of those.
    kept: BTreeMap<WorkflowKey, Key<LimitSet>>,
    lanes: Pages<ParkedLane>,
    groups: Pages<Group>,
    group_ids: HashTable<GroupKey>,
    /// The number of groups that each client has brought in.
    shares: BTreeMap<ClientId, usize>,
    ring_slots: RingSlots,
    dirty: Vec<GroupKey>,
    matching: Matching,
    /// The number of times that a workflow was put into a lane.
    #[cfg(test)]
    parks: u64,
}

/// The place of one workflow, as far as dispatch cares.
#[derive(Clone, Copy, Debug)]
struct Entry {
    shelf: Key<Shelf>,
    /// Concurrency limits of the workflow, if it has any.
    limits: Option<Key<LimitSet>>,
    /// The workflow's turn: lower was ready earlier. Kept while it is handed out, so that it has the same turn if it
    /// comes back.
    order: u64,
    place: Place,
    /// While on its shelf after having been parked: the key that let it go.
    key: Option<Key<LimitKey>>,
    holds_keys: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    /// The workflow waits for no worker.
    Away,
    Shelf,
    Parked,
}

/// The entries of all workflows that were admitted and are not retired.
#[derive(Debug)]
struct Entries(Table<Workflow, Option<Entry>>);

impl Entries {
    fn get(&self, workflow: WorkflowKey) -> Option<&Entry> {
        self.0.get(workflow)?.as_ref()
    }
}

impl Index<WorkflowKey> for Entries {
    type Output = Entry;

    #[inline]
    fn index(&self, workflow: WorkflowKey) -> &Entry {
        self.0[workflow].as_ref().expect("the workflow was admitted")
    }
}

impl IndexMut<WorkflowKey> for Entries {
    #[inline]
    fn index_mut(&mut self, workflow: WorkflowKey) -> &mut Entry {
        self.0[workflow].as_mut().expect("the workflow was admitted")
    }
}

impl Dispatch {
    pub fn new(aging: AgingRule, seed: u64) -> Self {
        Self {
            aging,
            hasher: FixedState::with_seed(seed),
            entries: Entries(Table::new(None)),
            order: 0,
            queue_kinds: Pages::new(),
            queue_kind_ids: HashTable::new(),
            shelves: Pages::new(),
            keys: Pages::new(),
            key_ids: HashTable::new(),
            policies: Interner::new(seed),
            outlines: Interner::new(seed),
            limit_sets: Pages::new(),
            limit_set_ids: HashTable::new(),
            kept: BTreeMap::new(),
            lanes: Pages::new(),
            groups: Pages::new(),
            group_ids: HashTable::new(),
            shares: BTreeMap::new(),
            ring_slots: RingSlots::default(),
            dirty: Vec::new(),
            matching: Matching::default(),
            #[cfg(test)]
            parks: 0,
        }
    }

    /// Whether there is room for the shelves and keys of new jobs. Checked before anything is changed.
    pub fn room_for<'a>(
        &self,
        limits: &Limits,
        jobs: impl Iterator<Item = &'a JobSpec> + Clone,
    ) -> Result<(), LimitMet> {
        // Most jobs share theirs with others. Which do is counted only where the sum would be too much.
        let workflows: usize = jobs.clone().map(|spec| spec.workflows.len()).sum();
        if limits.check(Limit::Shelves, self.shelves.len() + workflows).is_err() {
            let wanted = jobs.clone().flat_map(|spec| spec.workflows.iter().map(move |workflow| (spec, workflow)));
            let new: BTreeSet<(&Name, &Name, i8)> = wanted
                .map(|(spec, workflow)| (&spec.queue, &workflow.kind, spec.priority))
                .filter(|(queue, kind, priority)| !self.has_shelf(queue, kind, *priority))
                .collect();
            limits.check(Limit::Shelves, self.shelves.len() + new.len())?;
        }
        let keys: usize = jobs.clone().map(|spec| spec.limits.len()).sum();
        if limits.check(Limit::LimitKeys, self.keys.len() + keys).is_err() {
            let wanted = jobs.flat_map(|spec| spec.limits.iter().map(|limit| &limit.key));
            let new: BTreeSet<&Name> = wanted.filter(|key| !self.has_key(key)).collect();
            limits.check(Limit::LimitKeys, self.keys.len() + new.len())?;
        }
        Ok(())
    }

    /// A new workflow. It waits for nothing until [`Self::ready`] says so.
    pub fn admit(&mut self, workflow: WorkflowKey, spec: &JobSpec, kind: &Name, paused: impl FnOnce() -> bool) {
        let queue_kind = self.acquire_queue_kind(&spec.queue, kind, paused);
        let shelf = self.acquire_shelf(queue_kind, spec.priority);
        let limits = self.acquire_set(&spec.limits);
        *self.entries.0.entry(workflow) =
            Some(Entry { shelf, limits, order: 0, place: Place::Away, key: None, holds_keys: false });
    }

    /// The workflow waits for a worker. `again`: it was handed out before and keeps its turn.
    pub fn ready(&mut self, workflow: WorkflowKey, again: bool) {
        self.give_back_keys(workflow);
        let entry = &mut self.entries[workflow];
        if entry.place != Place::Away {
            return;
        }
        if !again || entry.order == 0 {
            self.order += 1;
            entry.order = self.order;
        }
        entry.place = Place::Shelf;
        entry.key = None;
        let (shelf, order) = (entry.shelf, entry.order);
        self.shelves[shelf].queue.insert(order, workflow);
        self.reindex(shelf);
    }

    /// The turn of a workflow: lower was ready earlier. 0 if it never was ready, or has ended.
    pub fn turn(&self, workflow: WorkflowKey) -> u64 {
        self.entries.get(workflow).map_or(0, |entry| entry.order)
    }

    /// Gives an admitted workflow the turn that it had elsewhere.
    pub fn set_turn(&mut self, workflow: WorkflowKey, turn: u64) {
        self.entries[workflow].order = turn;
    }

    pub fn newest_turn(&self) -> u64 {
        self.order
    }

    pub fn set_newest_turn(&mut self, turn: u64) {
        self.order = turn;
    }

    /// The workflow was handed out: it holds its keys until it is ready, away or retired, and ordered ones until it is
    /// retired.
    pub fn held(&mut self, workflow: WorkflowKey) {
        if self.entries[workflow].holds_keys {
            return;
        }
        let turn = self.unplace(workflow);
        self.begin_order(workflow);
        self.take_keys(workflow);
        self.offer_next(turn);
    }

    /// The workflow waits for something else than a worker.
    pub fn away(&mut self, workflow: WorkflowKey) {
        let turn = self.unplace(workflow);
        self.give_back_keys(workflow);
        self.offer_next(turn);
    }

    /// The workflow has ended. Its key may be reused.
    pub fn retire(&mut self, workflow: WorkflowKey) {
        self.away(workflow);
        self.end_order(workflow);
        let Entry { limits, shelf, .. } = self.entries.0[workflow].take().expect("the workflow was admitted");
        self.release_set(limits);
        self.release_shelf(shelf);
    }

    /// Takes the workflow out of its line. Returns the key that had let it go and the shelf, where the next one is to be
    /// offered its turn.
    fn unplace(&mut self, workflow: WorkflowKey) -> Option<(Key<LimitKey>, Key<Shelf>)> {
        let entry = self.entries[workflow];
        match entry.place {
            Place::Away => return None,
            Place::Shelf => {
                self.shelves[entry.shelf].queue.remove(entry.order, workflow);
                self.reindex(entry.shelf);
            }
            Place::Parked => self.unpark(workflow, &entry),
        }
        let entry_now = &mut self.entries[workflow];
        entry_now.place = Place::Away;
        entry_now.key = None;
        let key = entry.key?;
        self.end_turn(key, entry.shelf);
        Some((key, entry.shelf))
    }

    /// The best workflow that a group may take now, or none. Heads whose keys are full are parked on the way; each
    /// costs one of `budget`, and none is given once that is used up.
    pub fn pick(&mut self, group: GroupKey, state: &State, now: Wall, budget: &mut u32) -> Option<WorkflowKey> {
        while *budget > 0 {
            let shelf = self.best_shelf(group, state, now)?;
            let head = self.head_of(shelf);
            match self.full_key(head) {
                None => return Some(head),
                Some(key) => {
                    self.park(head, key);
                    *budget -= 1;
                }
            }
        }
        None
    }

    /// A workflow that will have its turn after the one that was picked, with about `turns` between them or more: from
    /// the same shelf, or from the same lane if that one was parked.
    pub fn behind(&self, group: GroupKey, picked: WorkflowKey, turns: usize) -> Option<WorkflowKey> {
        let Entry { shelf, limits, key, .. } = self.entries[picked];
        let lane = key.and(limits).and_then(|limits| self.limit_sets[limits].lanes.get(&shelf));
        let line = lane.map_or(&self.shelves[shelf].queue, |lane| &self.lanes[*lane].queue);
        // Shelves mostly take turns.
        let shelves: usize = self.groups[group].levels.iter().map(|level| level.shelves.len()).sum();
        line.behind(1 + turns / shelves.max(1))
    }

    /// Has what is kept here of a workflow brought into the caches, and does not wait for it.
    pub fn prefetch(&self, workflow: WorkflowKey) {
        self.entries.0.prefetch(workflow);
    }

    /// The first of a shelf that groups have in their index.
    fn head_of(&self, shelf: Key<Shelf>) -> WorkflowKey {
        self.shelves[shelf].queue.head().expect("an indexed shelf is not empty")
    }

    fn best_shelf(&self, group: GroupKey, state: &State, now: Wall) -> Option<Key<Shelf>> {
        let levels = &self.groups[group].levels;
        let mut firsts = levels.iter().filter_map(|level| Some((level.priority, *level.shelves.first()?)));
        let (priority, (mut best_order, mut best)) = firsts.next()?;
        let Some((next_priority, next)) = firsts.next() else { return Some(best) };
        let effective = |priority: i8, shelf: Key<Shelf>| {
            let head = self.head_of(shelf);
            self.aging.effective(priority, now.since(state.workflow(head).ready_at))
        };
        let mut best_priority = effective(priority, best);
        for (priority, (order, shelf)) in core::iter::once((next_priority, next)).chain(firsts) {
            let challenger = effective(priority, shelf);
            if challenger > best_priority || (challenger == best_priority && order < best_order) {
                (best_priority, best_order, best) = (challenger, order, shelf);
            }
        }
        Some(best)
    }

    /// The reason why a ready workflow does not run, where dispatch knows.
    pub fn blocked(&self, workflow: WorkflowKey) -> Option<BlockReason<'_>> {
        let entry = &self.entries[workflow];
        let queue_kind = &self.queue_kinds[self.shelves[entry.shelf].queue_kind];
        let key = match entry.place {
            Place::Away => return None,
            _ if queue_kind.paused => return Some(BlockReason::QueuePaused),
            Place::Parked => Some(self.waits_under(entry)),
            // A workflow is parked only once a worker has looked at it, and a full key keeps it back all the same.
            Place::Shelf => self.full_key(workflow),
        };
        match key.map(|key| &self.keys[key]) {
            Some(key) => Some(BlockReason::Limit { key: &key.name, running: key.running, keeper: key.keeper }),
            None if queue_kind.groups.is_empty() => Some(BlockReason::NoCapableWorker),
            None => None,
        }
    }
}

/// The obstacle between a ready workflow and a worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BlockReason<'a> {
    QueuePaused,
    /// `keeper`: the workflow that keeps the key until it ends, because it asked for order.
    Limit {
        key: &'a Name,
        running: u32,
        keeper: Option<WorkflowKey>,
    },
    NoCapableWorker,
}

#[cfg(test)]
mod tests;
