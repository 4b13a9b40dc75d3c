//! A queue: workflows in the order of their turns.
//!
//! Nearly all come with the highest turn of all or the lowest, which costs nothing. A turn in between happens where
//! several are handed back, or where one waited under another key meanwhile; those lie beside the queue, sorted.
//!
//! The queue lies in few pieces, so that those behind the head are known without touching what is kept of any of them.
//! A piece has a bound: a ring that grows is copied to another place, and nobody is served meanwhile. Whoever leaves
//! from the middle leaves a gap, which goes when it comes to the front or when half of its piece are gaps.

use std::collections::{BTreeSet, VecDeque};

use crate::state::WorkflowKey;

/// Spots in a piece: a copy of so many takes some microseconds.
const PIECE: usize = if cfg!(test) { 16 } else { 8_192 };

#[derive(Debug)]
pub(super) struct TurnQueue {
    /// The piece with the lowest turns; empty only if all are. Its first spot is no gap.
    head: Piece,
    /// The others by turn, none of them empty.
    rest: VecDeque<Piece>,
    /// Spots of all pieces that are no gaps.
    in_pieces: usize,
    between: BTreeSet<(u64, WorkflowKey)>,
}

/// Spots by turn.
#[derive(Debug)]
struct Piece {
    spots: VecDeque<Spot>,
    gaps: usize,
}

#[derive(Clone, Copy, Debug)]
struct Spot {
    /// The turn in halves: a spot takes 12 bytes, not 16.
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

impl Piece {
    const EMPTY: Self = Self { spots: VecDeque::new(), gaps: 0 };

    /// A piece of its own for one that no other has room for.
    fn of(spot: Spot) -> Self {
        let mut spots = VecDeque::with_capacity(PIECE);
        spots.push_back(spot);
        Self { spots, gaps: 0 }
    }

    #[inline]
    fn has_room(&self) -> bool {
        self.spots.len() < PIECE
    }

    #[inline]
    fn first_turn(&self) -> Option<u64> {
        self.spots.front().map(Spot::turn)
    }

    #[inline]
    fn last_turn(&self) -> Option<u64> {
        self.spots.back().map(Spot::turn)
    }

    fn remove(&mut self, turn: u64) {
        let at = match self.spots.front() {
            Some(first) if first.turn() == turn => 0,
            _ => self.spots.binary_search_by_key(&turn, Spot::turn).expect("it is in the queue"),
        };
        self.spots[at].key = None;
        self.gaps += 1;
        self.drop_gaps_in_front();
        if self.gaps > self.spots.len() / 2 {
            self.spots.retain(|spot| spot.key.is_some());
            self.gaps = 0;
        }
        if self.spots.capacity() > 4 * self.spots.len() + 16 {
            self.spots.shrink_to(2 * self.spots.len());
        }
    }

    #[inline]
    fn drop_gaps_in_front(&mut self) {
        while self.spots.front().is_some_and(|first| first.key.is_none()) {
            self.spots.pop_front();
            self.gaps -= 1;
        }
    }
}

impl TurnQueue {
    pub(super) const EMPTY: Self =
        Self { head: Piece::EMPTY, rest: VecDeque::new(), in_pieces: 0, between: BTreeSet::new() };

    /// The lowest turn and who has it.
    #[inline]
    pub(super) fn first(&self) -> Option<(u64, WorkflowKey)> {
        let front = self.head.spots.front().and_then(|spot| Some((spot.turn(), spot.key?)));
        match self.between.first() {
            Some(between) if front.is_none_or(|front| *between < front) => Some(*between),
            _ => front,
        }
    }

    /// The workflow with the lowest turn.
    #[inline]
    pub(super) fn head(&self) -> Option<WorkflowKey> {
        self.first().map(|(_, key)| key)
    }

    /// The workflow about `places` behind the head, where that is near enough to be worth a look.
    #[inline]
    pub(super) fn behind(&self, places: usize) -> Option<WorkflowKey> {
        let in_head = self.head.spots.len();
        if places < in_head {
            return self.head.spots[places].key;
        }
        self.rest.front()?.spots.get(places - in_head)?.key
    }

    pub(super) fn len(&self) -> usize {
        self.in_pieces + self.between.len()
    }

    pub(super) fn insert(&mut self, turn: u64, key: WorkflowKey) {
        let spot = Spot::new(turn, key);
        let last = self.rest.back_mut().unwrap_or(&mut self.head);
        if last.last_turn().is_none_or(|last| last < turn) {
            if last.has_room() {
                last.spots.push_back(spot);
            } else {
                self.rest.push_back(Piece::of(spot));
            }
        } else if self.head.first_turn().is_some_and(|first| turn < first) {
            if self.head.has_room() {
                self.head.spots.push_front(spot);
            } else {
                let second = core::mem::replace(&mut self.head, Piece::of(spot));
                self.rest.push_front(second);
            }
        } else {
            self.between.insert((turn, key));
            return;
        }
        self.in_pieces += 1;
    }

    pub(super) fn remove(&mut self, turn: u64, key: WorkflowKey) {
        if !self.between.is_empty() && self.between.remove(&(turn, key)) {
            return;
        }
        self.in_pieces -= 1;
        // How many of the others begin at or before this turn: the last of them has it.
        let begun = match self.rest.front().and_then(Piece::first_turn) {
            Some(second) if second <= turn => self.rest.partition_point(|piece| piece.first_turn() <= Some(turn)),
            _ => 0,
        };
        if let Some(at) = begun.checked_sub(1) {
            self.rest[at].remove(turn);
            if self.rest[at].spots.is_empty() {
                self.rest.remove(at);
            }
            return;
        }
        self.head.remove(turn);
        if self.head.spots.is_empty()
            && let Some(next) = self.rest.pop_front()
        {
            self.head = next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    impl TurnQueue {
        fn check(&self) -> Result<(), TestCaseError> {
            prop_assert!(self.rest.is_empty() || !self.head.spots.is_empty());
            prop_assert!(self.rest.iter().all(|piece| !piece.spots.is_empty()));
            for piece in std::iter::once(&self.head).chain(&self.rest) {
                let spots = &piece.spots;
                prop_assert!(spots.len() <= PIECE && piece.gaps <= spots.len() / 2);
                prop_assert!(spots.capacity() <= (4 * spots.len() + 16).max(PIECE));
                prop_assert!(spots.front().is_none_or(|first| first.key.is_some()));
            }
            Ok(())
        }
    }

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
                line.check()?;
            }
        }
    }
}
