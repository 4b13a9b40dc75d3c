//! A queue: workflows in the order of their turns.
//!
//! Nearly all come with the highest turn of all or the lowest, which costs nothing. A turn in between happens where
//! several are handed back, or where one waited under another key meanwhile; those lie beside the queue, sorted.
//!
//! The queue lies in one piece, so that those behind the head are known without touching what is kept of any of them.
//! Whoever leaves from its middle leaves a gap, which goes when it comes to the front or when half of all are gaps.

use std::collections::{BTreeSet, VecDeque};

use crate::state::WorkflowKey;

#[derive(Debug)]
pub(super) struct TurnQueue {
    /// By turn. The first is no gap.
    queue: VecDeque<Spot>,
    gaps: usize,
    between: BTreeSet<(u64, WorkflowKey)>,
}

#[derive(Clone, Copy, Debug)]
struct Spot {
    /// In halves: a spot takes 12 bytes, not 16.
    turn: [u32; 2],
    /// None in a gap.
    key: Option<WorkflowKey>,
}

impl Spot {
    #[inline]
    fn new(turn: u64, key: WorkflowKey) -> Self {
        Self { turn: [(turn >> 32) as u32, turn as u32], key: Some(key) }
    }

    #[inline]
    fn turn(&self) -> u64 {
        u64::from(self.turn[0]) << 32 | u64::from(self.turn[1])
    }
}

impl TurnQueue {
    pub(super) const EMPTY: Self = Self { queue: VecDeque::new(), gaps: 0, between: BTreeSet::new() };

    /// The lowest turn and who has it.
    #[inline]
    pub(super) fn first(&self) -> Option<(u64, WorkflowKey)> {
        let front = self.queue.front().and_then(|spot| Some((spot.turn(), spot.key?)));
        match self.between.first() {
            Some(between) if front.is_none_or(|front| *between < front) => Some(*between),
            _ => front,
        }
    }

    /// Who has the lowest turn.
    #[inline]
    pub(super) fn head(&self) -> Option<WorkflowKey> {
        self.first().map(|(_, key)| key)
    }

    /// Who is about `places` behind the head.
    #[inline]
    pub(super) fn behind(&self, places: usize) -> Option<WorkflowKey> {
        self.queue.get(places)?.key
    }

    pub(super) fn len(&self) -> usize {
        self.queue.len() - self.gaps + self.between.len()
    }

    pub(super) fn insert(&mut self, turn: u64, key: WorkflowKey) {
        let spot = Spot::new(turn, key);
        if self.queue.back().is_none_or(|last| last.turn() < turn) {
            self.queue.push_back(spot);
        } else if self.queue.front().is_some_and(|first| turn < first.turn()) {
            self.queue.push_front(spot);
        } else {
            self.between.insert((turn, key));
        }
    }

    pub(super) fn remove(&mut self, turn: u64, key: WorkflowKey) {
        if !self.between.is_empty() && self.between.remove(&(turn, key)) {
            return;
        }
        let at = match self.queue.front() {
            Some(first) if first.turn() == turn => 0,
            _ => self.queue.binary_search_by_key(&turn, Spot::turn).expect("it is in the line"),
        };
        self.queue[at].key = None;
        self.gaps += 1;
        while self.queue.front().is_some_and(|first| first.key.is_none()) {
            self.queue.pop_front();
            self.gaps -= 1;
        }
        if self.gaps > self.queue.len() / 2 {
            self.queue.retain(|spot| spot.key.is_some());
            self.gaps = 0;
        }
        if self.queue.capacity() > 4 * self.queue.len() + 16 {
            self.queue.shrink_to(2 * self.queue.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn behaves_like_a_sorted_map(calls in prop::collection::vec((0..6_u8, any::<u16>()), 0..2_000)) {
            let mut line = TurnQueue::EMPTY;
            let key = |arg: u16| WorkflowKey::at(1 + u32::from(arg)).expect("above zero");
            let mut model = BTreeMap::new();
            let mut newest = 1_u64 << 32;
            for (call, arg) in calls {
                let victim = model.keys().nth(usize::from(arg) % model.len().max(1)).copied();
                match (call, victim) {
                    (0, Some(turn)) => line.remove(turn, model.remove(&turn).expect("just seen")),
                    (1 | 2, Some(_)) => {
                        let (turn, key) = model.pop_first().expect("not empty");
                        line.remove(turn, key);
                    }
                    (3, _) => {
                        // One comes back with an old turn.
                        let turn = newest - u64::from(arg);
                        if let std::collections::btree_map::Entry::Vacant(free) = model.entry(turn) {
                            line.insert(turn, *free.insert(key(arg)));
                        }
                    }
                    _ => {
                        newest += 1 + u64::from(arg % 3);
                        line.insert(newest, *model.entry(newest).or_insert(key(arg)));
                    }
                }
                prop_assert_eq!(line.first(), model.first_key_value().map(|(turn, key)| (*turn, *key)));
                prop_assert_eq!(line.len(), model.len());
                prop_assert!(line.queue.capacity() <= 4 * line.queue.len() + 16 && line.gaps <= line.queue.len() / 2);
            }
        }
    }
}
