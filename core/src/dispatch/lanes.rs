//! Lanes: what is parked, by shelf and set of limits. Room in a key lets one workflow per shelf go back.
//!
//! ```text
//! key ──▶ shelf ──▶ lanes (of the sets that name the key), by the turn of their head ──▶ workflows in order
//! ```
//!
//! All of a lane is blocked by the same keys, so it waits under one of them as a whole: the one that was found full
//! last. When that key has room, the head of the first lane goes back to its shelf. If it turns out there that another
//! of its keys is full, it returns, and its whole lane moves to that key. So a move costs the same however long the
//! lane is.
//!
//! One goes per shelf, because nobody knows which shelf a free worker will take from; and not more than one, because
//! the room may be gone before the second gets its turn. Whoever was let go and then leaves its shelf (handed out,
//! cancelled, parked under another key) hands the turn on to the next of its shelf.
//!
//! What is parked costs nothing until its key has room. Then it costs one look per lane that another key blocks, and
//! that lane is out of the way until the other key has room. Only where many sets name the same two keys, which are
//! full by turns, do as many lanes move each time.
//!
//! Workflows that name one key with different bounds are each judged by the smallest among their own and those of its
//! holders; behind a parked one with a lower bound they keep their turn, until that one is gone.

use std::collections::BTreeSet;

use crate::key::Key;
use crate::state::WorkflowKey;

use super::keys::{LimitKey, LimitSet};
use super::shelves::Shelf;
use super::{Dispatch, Entry, Place, TurnQueue};

/// The parked workflows of one shelf and one set. There is none without any.
#[derive(Debug)]
pub(super) struct ParkedLane {
    pub(super) shelf: Key<Shelf>,
    pub(super) set: Key<LimitSet>,
    pub(super) queue: TurnQueue,
    /// The key under which the lane waits.
    pub(super) key: Key<LimitKey>,
    /// The head's turn, as the key has it.
    pub(super) order: u64,
}

/// Lanes that wait under one key for one shelf.
#[derive(Debug)]
pub(super) struct ParkedLanes {
    /// Lanes by the turn of their head.
    pub(super) lanes: BTreeSet<(u64, Key<ParkedLane>)>,
    /// The workflow that was let go and is still on its shelf. No turn in the lanes is lower.
    pub(super) released: Option<WorkflowKey>,
}

impl ParkedLanes {
    const NOTHING: Self = Self { lanes: BTreeSet::new(), released: None };
}

impl Dispatch {
    /// Moves the head of a shelf, and all of its lane, under the key that has no room for it.
    pub(super) fn park(&mut self, workflow: WorkflowKey, key: Key<LimitKey>) {
        let shelf = self.entries[workflow].shelf;
        let turn = self.unplace(workflow);
        let order = self.join_lane(workflow, key);
        // Whoever was let go meanwhile goes back behind this one: else it would be woken first.
        let parked = self.keys[key].parked.get_mut(&shelf).expect("its lane was just put there");
        if let Some(later) = parked.released
            && self.entries[later].order > order
        {
            parked.released = None;
            self.shelves[shelf].queue.remove(self.entries[later].order, later);
            self.reindex(shelf);
            self.join_lane(later, key);
        }
        self.offer_next(turn);
    }

    /// Puts the workflow at its place in its lane, and the lane under `key`. Returns the turn of the lane's head.
    fn join_lane(&mut self, workflow: WorkflowKey, key: Key<LimitKey>) -> u64 {
        #[cfg(test)]
        {
            self.parks += 1;
        }
        let entry = &mut self.entries[workflow];
        entry.place = Place::Parked;
        entry.key = None;
        let Entry { shelf, limits, order, .. } = *entry;
        let set = limits.expect("what is parked has limits");
        let found = self.limit_sets[set].lanes.get(&shelf).copied();
        let at = found.unwrap_or_else(|| {
            let lane = self.lanes.insert(ParkedLane { shelf, set, queue: TurnQueue::EMPTY, key, order });
            self.limit_sets[set].lanes.insert(shelf, lane);
            lane
        });
        let lane = &mut self.lanes[at];
        lane.queue.insert(order, workflow);
        let (before, under) = (lane.order, lane.key);
        let head = before.min(order);
        if found.is_some() {
            if (head, key) == (before, under) {
                return head;
            }
            self.withdraw_lane(under, shelf, (before, at));
            if under != key {
                self.offer_next(Some((under, shelf)));
            }
        }
        let lane = &mut self.lanes[at];
        (lane.order, lane.key) = (head, key);
        self.keys[key].parked.entry(shelf).or_insert(ParkedLanes::NOTHING).lanes.insert((head, at));
        head
    }

    /// Takes a parked workflow out of its lane. Returns the key under which that waits, or did.
    fn leave_lane(&mut self, workflow: WorkflowKey, at: Key<ParkedLane>) -> Key<LimitKey> {
        let lane = &mut self.lanes[at];
        lane.queue.remove(self.entries[workflow].order, workflow);
        let (key, shelf, before) = (lane.key, lane.shelf, lane.order);
        let Some((order, _)) = lane.queue.first() else {
            self.withdraw_lane(key, shelf, (before, at));
            let lane = self.lanes.remove(at);
            self.limit_sets[lane.set].lanes.remove(&shelf);
            return key;
        };
        if order != before {
            self.lanes[at].order = order;
            self.withdraw_lane(key, shelf, (before, at)).lanes.insert((order, at));
        }
        key
    }

    fn withdraw_lane(
        &mut self,
        key: Key<LimitKey>,
        shelf: Key<Shelf>,
        lane: (u64, Key<ParkedLane>),
    ) -> &mut ParkedLanes {
        let parked = self.keys[key].parked.get_mut(&shelf).expect("a lane waits under its key");
        parked.lanes.remove(&lane);
        parked
    }

    fn lane_of(&self, entry: &Entry) -> Key<ParkedLane> {
        self.limit_sets[entry.limits.expect("what is parked has limits")].lanes[&entry.shelf]
    }

    /// The key under which a parked workflow waits.
    pub(super) fn waits_under(&self, parked: &Entry) -> Key<LimitKey> {
        self.lanes[self.lane_of(parked)].key
    }

    pub(super) fn unpark(&mut self, workflow: WorkflowKey, entry: &Entry) {
        let key = self.leave_lane(workflow, self.lane_of(entry));
        // The next one may have a higher bound.
        self.offer_next(Some((key, entry.shelf)));
    }

    /// The workflow that `key` had let go has left `shelf`.
    pub(super) fn end_turn(&mut self, key: Key<LimitKey>, shelf: Key<Shelf>) {
        let parked = self.keys[key].parked.get_mut(&shelf);
        parked.expect("it is kept for the one that was let go").released = None;
    }

    /// Lets the next workflow under this key go, if there is room, because the one in front for this shelf is gone.
    pub(super) fn offer_next(&mut self, turn: Option<(Key<LimitKey>, Key<Shelf>)>) {
        let Some((key, shelf)) = turn else { return };
        self.release_next(key, shelf);
        let parked = &mut self.keys[key].parked;
        if parked.get(&shelf).is_some_and(|parked| parked.lanes.is_empty() && parked.released.is_none()) {
            parked.remove(&shelf);
        }
    }

    /// Puts the first workflow that waits under `key` for `shelf` back there, unless one was let go already.
    pub(super) fn release_next(&mut self, key: Key<LimitKey>, shelf: Key<Shelf>) {
        let limit = &self.keys[key];
        let Some(parked) = limit.parked.get(&shelf) else { return };
        if parked.released.is_some() {
            return;
        }
        let Some((_, at)) = parked.lanes.first().copied() else { return };
        let lane = &self.lanes[at];
        if !limit.has_room(self.limit_sets[lane.set].bound(key)) {
            return;
        }
        let first = lane.queue.head().expect("a lane is not empty");
        self.keys[key].parked.get_mut(&shelf).expect("it waits there").released = Some(first);
        self.leave_lane(first, at);
        let entry = &mut self.entries[first];
        entry.place = Place::Shelf;
        entry.key = Some(key);
        self.shelves[shelf].queue.insert(entry.order, first);
        self.reindex(shelf);
    }
}
