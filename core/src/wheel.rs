//! Deadlines by the million: a hierarchical timing wheel with millisecond ticks.
//!
//! The wheel has a *time*, the tick up to which everything was handed out. It moves only inside [`Wheel::pop_due`], to
//! the next tick that has something due, or to the caller's `now` when nothing is left. Nothing is visited in between,
//! so a year of silence costs no more than a millisecond of it.
//!
//! Level `l` has 64 slots of `64^l` ms. An entry lives on the level of the highest base-64 digit in which its tick
//! differs from the wheel's time, in the slot of that digit. Hence, at any moment:
//!
//! - the place of an entry is a function of its tick and of the wheel's time, so that `remove` need not be told it, and
//!   entries of one tick always share a slot, in the order in which they came;
//! - everything on a level is due before anything on the levels above it, so that the lowest slot of the lowest level
//!   in use holds the earliest entry.
//!
//! When time enters a slot above the lowest level, its entries are spread over the levels below. 11 levels span every
//! `u64`, so there is no deadline too far away.

use crate::pages::Pages;
use core::num::NonZeroU32;

const BITS: u32 = 6;
const SLOTS: usize = 1 << BITS;
const LEVELS: usize = u64::BITS.div_ceil(BITS) as usize;

/// Names an entry from `insert` until it is popped or removed. After that it may name another one, so whoever keeps a
/// key forgets it (or sets it to `NONE`) at that moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TimerKey(u32);

impl TimerKey {
    /// Never returned by `insert`.
    pub const NONE: Self = Self(u32::MAX);

    pub const fn is_none(self) -> bool {
        self.0 == Self::NONE.0
    }
}

impl Default for TimerKey {
    fn default() -> Self {
        Self::NONE
    }
}

/// A member of its slot's circular list.
#[derive(Clone, Debug)]
struct Node<T> {
    at_ms: u64,
    next: u32,
    /// Stored plus one: the unused zero lets the slab mark a vacant entry without spending a word on it.
    prev: NonZeroU32,
    item: T,
}

#[derive(Clone, Debug)]
pub struct Wheel<T> {
    now_ms: u64,
    /// Per level, which slots hold anything.
    used: [u64; LEVELS],
    /// First entry of each slot; meaningless where the bit in `used` is clear.
    heads: Box<[[u32; SLOTS]; LEVELS]>,
    nodes: Pages<Node<T>>,
}

#[derive(Clone, Copy)]
struct Place {
    level: usize,
    slot: usize,
}

impl<T: Copy> Wheel<T> {
    pub fn new(start_ms: u64) -> Self {
        Self { now_ms: start_ms, used: [0; LEVELS], heads: Box::new([[0; SLOTS]; LEVELS]), nodes: Pages::new() }
    }

    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// A deadline that the wheel's time has already passed is due at once, after what is due at that time already.
    pub fn insert(&mut self, at_ms: u64, item: T) -> TimerKey {
        let key = self.nodes.insert(Node { at_ms, next: 0, prev: NonZeroU32::MIN, item });
        self.append(key);
        TimerKey(key)
    }

    /// Panics on a key that names nothing.
    pub fn remove(&mut self, key: TimerKey) -> T {
        let place = self.place_of(self.nodes[key.0].at_ms);
        self.unlink(place, key.0);
        self.nodes.remove(key.0).item
    }

    /// The earliest entry that is due at `now_ms`, with the deadline it was inserted with.
    ///
    /// By tick, and in order of insertion within a tick. To be called until it answers `None`; entries that the caller
    /// inserts meanwhile take part. `now_ms` must not go back: one before the wheel's time answers `None`.
    pub fn pop_due(&mut self, now_ms: u64) -> Option<(u64, T)> {
        if now_ms < self.now_ms {
            return None;
        }
        while let Some(place) = self.first() {
            let start_ms = self.start_of(place);
            if start_ms > now_ms {
                break;
            }
            self.now_ms = start_ms;
            let head = self.heads[place.level][place.slot];
            if place.level == 0 {
                self.unlink(place, head);
                let node = self.nodes.remove(head);
                return Some((node.at_ms, node.item));
            }
            self.spread(place, head);
        }
        self.now_ms = now_ms;
        None
    }

    /// When `pop_due` has to be called next, and an item that this is for.
    ///
    /// Never later than the earliest deadline, and exact if that is on the lowest level. Otherwise it is the start of
    /// its slot: a wakeup that pops nothing, but brings the entry closer. After `pop_due(now)` answered `None`, it lies
    /// after `now`. For an entry inserted late it is the wheel's time, which means at once.
    pub fn next(&self) -> Option<(u64, T)> {
        let place = self.first()?;
        Some((self.start_of(place), self.nodes[self.heads[place.level][place.slot]].item))
    }

    fn first(&self) -> Option<Place> {
        let level = self.used.iter().position(|slots| *slots != 0)?;
        Some(Place { level, slot: self.used[level].trailing_zeros() as usize })
    }

    #[inline]
    fn place_of(&self, at_ms: u64) -> Place {
        let tick = at_ms.max(self.now_ms);
        let level = ((tick ^ self.now_ms) | 1).ilog2() / BITS;
        Place { level: level as usize, slot: (tick >> (level * BITS)) as usize % SLOTS }
    }

    /// The first tick of a slot: the digits of the wheel's time above its level, then its own, then zeros.
    fn start_of(&self, place: Place) -> u64 {
        let shift = place.level as u32 * BITS;
        let above = self.now_ms.checked_shr(shift + BITS).unwrap_or(0).checked_shl(shift + BITS).unwrap_or(0);
        above | (place.slot as u64) << shift
    }

    fn append(&mut self, key: u32) {
        let place = self.place_of(self.nodes[key].at_ms);
        let (used, bit) = (&mut self.used[place.level], 1 << place.slot);
        let head = &mut self.heads[place.level][place.slot];
        if *used & bit == 0 {
            *used |= bit;
            *head = key;
            self.link(key, key);
            return;
        }
        let head = *head;
        let tail = self.prev(head);
        self.link(tail, key);
        self.link(key, head);
    }

    fn unlink(&mut self, place: Place, key: u32) {
        let (prev, next) = (self.prev(key), self.nodes[key].next);
        if next == key {
            self.used[place.level] &= !(1 << place.slot);
            return;
        }
        self.link(prev, next);
        let head = &mut self.heads[place.level][place.slot];
        if *head == key {
            *head = next;
        }
    }

    /// Empties a slot that time has entered, in order, onto the levels below.
    fn spread(&mut self, place: Place, head: u32) {
        self.used[place.level] &= !(1 << place.slot);
        let tail = self.prev(head);
        let mut key = head;
        loop {
            let next = self.nodes[key].next;
            self.append(key);
            if key == tail {
                break;
            }
            key = next;
        }
    }

    fn prev(&self, key: u32) -> u32 {
        self.nodes[key].prev.get() - 1
    }

    fn link(&mut self, prev: u32, next: u32) {
        self.nodes[prev].next = next;
        self.nodes[next].prev = NonZeroU32::MIN.saturating_add(prev);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const DAY_MS: u64 = 24 * 3_600_000;

    fn drain(wheel: &mut Wheel<u32>, now_ms: u64) -> Vec<(u64, u32)> {
        std::iter::from_fn(|| wheel.pop_due(now_ms)).collect()
    }

    #[test]
    fn fires_at_its_tick_however_far_and_whichever_level_it_crosses() {
        let spans = [0, 1, 63, 64, 65, 4_095, 4_096, 4_097, 262_144, DAY_MS, 365 * DAY_MS, 1 << 48, 1 << 60, u64::MAX];
        for start in [0, 1, 63, 64, 1_000_003, (1 << 36) - 1, 1 << 47, u64::MAX - 5] {
            for span in spans {
                let at = u64::saturating_add(start, span);
                let mut wheel = Wheel::new(start);
                wheel.insert(at, 7);
                if at > start {
                    assert_eq!(wheel.pop_due(at - 1), None, "{start} + {span} fired early");
                    assert_eq!(wheel.next(), Some((at, 7)), "one tick away is exact");
                }
                assert_eq!(wheel.pop_due(at), Some((at, 7)), "{start} + {span}");
                assert_eq!((wheel.pop_due(u64::MAX), wheel.len(), wheel.next()), (None, 0, None));
            }
        }
    }

    #[test]
    fn a_tick_keeps_the_order_of_insertion_across_levels() {
        let mut wheel = Wheel::new(0);
        wheel.insert(70_000, 0);
        wheel.insert(70_001, 1);
        assert_eq!(wheel.pop_due(65_600), None);
        wheel.insert(70_000, 2);
        assert_eq!(wheel.pop_due(69_999), None);
        wheel.insert(70_000, 3);
        assert_eq!(drain(&mut wheel, 80_000), [(70_000, 0), (70_000, 2), (70_000, 3), (70_001, 1)]);
    }

    #[test]
    fn what_is_inserted_while_popping_takes_part() {
        let mut wheel = Wheel::new(0);
        wheel.insert(500, 0);
        wheel.insert(500, 1);
        wheel.insert(900, 2);
        assert_eq!(wheel.pop_due(1_000), Some((500, 0)));
        wheel.insert(20, 3);
        wheel.insert(700, 4);
        wheel.insert(1_001, 5);
        assert_eq!(drain(&mut wheel, 1_000), [(500, 1), (20, 3), (700, 4), (900, 2)]);
        assert_eq!(wheel.next(), Some((1_001, 5)));
    }

    #[test]
    fn a_late_insert_asks_for_a_wakeup_at_once_and_time_does_not_go_back() {
        let mut wheel = Wheel::new(0);
        assert_eq!(wheel.pop_due(1_000), None);
        let late = wheel.insert(10, 1);
        assert_eq!(wheel.next(), Some((1_000, 1)));
        assert_eq!(wheel.pop_due(999), None);
        assert_eq!(wheel.remove(late), 1);
        wheel.insert(1_500, 2);
        assert_eq!(drain(&mut wheel, 1_500), [(1_500, 2)]);
    }

    #[test]
    fn a_far_deadline_is_reached_in_few_wakeups() {
        let mut wheel = Wheel::new(123);
        wheel.insert(365 * DAY_MS, 1);
        let mut wakeups = 0;
        while let Some((wake, 1)) = wheel.next() {
            wakeups += 1;
            if wheel.pop_due(wake).is_some() {
                assert_eq!(wake, 365 * DAY_MS);
            }
        }
        assert!((1..=LEVELS).contains(&wakeups), "{wakeups}");
    }

    #[test]
    fn an_entry_costs_its_deadline_and_two_links() {
        assert_eq!(Pages::<Node<u32>>::ENTRY_BYTES, 24);
        assert_eq!(Pages::<Node<u64>>::ENTRY_BYTES, 24);
    }

    #[derive(Clone, Copy, Debug)]
    enum Call {
        Insert {
            span_ms: u64,
        },
        InsertLate {
            by_ms: u64,
        },
        InsertLike {
            nth: usize,
        },
        Remove {
            nth: usize,
        },
        /// Pops at most `most` entries at a time that lies `span_ms` ahead.
        Advance {
            span_ms: u64,
            most: usize,
        },
        /// Sleeps exactly as long as `next` says.
        Sleep,
    }

    fn spans() -> impl Strategy<Value = u64> {
        prop_oneof![
            4 => 0..70_u64,
            4 => 0..5_000_u64,
            2 => 0..400_000_u64,
            1 => DAY_MS - 3..DAY_MS + 3,
            1 => 365 * DAY_MS - 3..365 * DAY_MS + 3,
            1 => any::<u64>().prop_map(|n| n >> 10),
        ]
    }

    fn calls() -> impl Strategy<Value = Call> {
        prop_oneof![
            6 => spans().prop_map(|span_ms| Call::Insert { span_ms }),
            1 => (0..100_u64).prop_map(|by_ms| Call::InsertLate { by_ms }),
            2 => any::<usize>().prop_map(|nth| Call::InsertLike { nth }),
            3 => any::<usize>().prop_map(|nth| Call::Remove { nth }),
            3 => (spans(), prop_oneof![3 => Just(usize::MAX), 1 => 0..4_usize])
                .prop_map(|(span_ms, most)| Call::Advance { span_ms, most }),
            2 => Just(Call::Sleep),
        ]
    }

    /// Entries by (tick, order of insertion), and the wheel's time.
    #[derive(Default)]
    struct Model {
        entries: BTreeMap<(u64, u32), (u64, TimerKey)>,
        now_ms: u64,
        inserted: u32,
    }

    impl Model {
        fn insert(&mut self, wheel: &mut Wheel<u32>, at_ms: u64) {
            let item = self.inserted;
            self.inserted += 1;
            let key = wheel.insert(at_ms, item);
            self.entries.insert((at_ms.max(self.now_ms), item), (at_ms, key));
        }

        fn nth(&self, nth: usize) -> Option<((u64, u32), (u64, TimerKey))> {
            self.entries.iter().nth(nth % self.entries.len().max(1)).map(|(key, entry)| (*key, *entry))
        }

        fn pop_due(&mut self, now_ms: u64) -> Option<(u64, u32)> {
            let due = self.entries.first_entry().filter(|first| first.key().0 <= now_ms);
            let Some(first) = due else {
                self.now_ms = now_ms;
                return None;
            };
            let ((tick, item), (at_ms, _)) = first.remove_entry();
            self.now_ms = tick;
            Some((at_ms, item))
        }
    }

    /// Returns what fired, for comparison with another run.
    fn check(start_ms: u64, calls: &[Call]) -> Result<Vec<(u64, u32)>, TestCaseError> {
        let mut wheel = Wheel::new(start_ms);
        let mut model = Model { now_ms: start_ms, ..Model::default() };
        let mut now_ms = start_ms;
        let mut fired = Vec::new();
        for call in calls {
            let mut most = 0;
            match *call {
                Call::Insert { span_ms } => model.insert(&mut wheel, now_ms.saturating_add(span_ms)),
                Call::InsertLate { by_ms } => model.insert(&mut wheel, now_ms.saturating_sub(by_ms)),
                Call::InsertLike { nth } => {
                    let at_ms = model.nth(nth).map_or(now_ms, |(_, (at_ms, _))| at_ms);
                    model.insert(&mut wheel, at_ms);
                }
                Call::Remove { nth } => {
                    if let Some((key, (_, timer))) = model.nth(nth) {
                        model.entries.remove(&key);
                        prop_assert_eq!(wheel.remove(timer), key.1);
                    }
                }
                Call::Advance { span_ms, most: limit } => {
                    now_ms = now_ms.saturating_add(span_ms);
                    most = limit;
                }
                Call::Sleep => {
                    now_ms = wheel.next().map_or(now_ms, |(wake_ms, _)| wake_ms.max(now_ms));
                    most = usize::MAX;
                }
            }
            for _ in 0..most {
                let popped = wheel.pop_due(now_ms);
                prop_assert_eq!(popped, model.pop_due(now_ms));
                let Some((at_ms, item)) = popped else {
                    prop_assert!(wheel.next().is_none_or(|(wake_ms, _)| wake_ms > now_ms));
                    break;
                };
                prop_assert!(at_ms <= now_ms);
                fired.push((at_ms, item));
            }
            prop_assert_eq!(wheel.len(), model.entries.len());
            prop_assert_eq!(wheel.next().is_some(), !model.entries.is_empty());
            if let (Some((wake_ms, item)), Some(((earliest, _), _))) = (wheel.next(), model.entries.first_key_value()) {
                prop_assert!(wake_ms <= *earliest, "{} would be overslept until {}", earliest, wake_ms);
                prop_assert!(wake_ms >= model.now_ms);
                prop_assert!(wake_ms == *earliest || (wake_ms ^ model.now_ms) >= 64, "inexact on the lowest level");
                prop_assert!(model.entries.keys().any(|(_, inserted)| *inserted == item));
            }
        }
        Ok(fired)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]
        #[test]
        fn behaves_like_a_sorted_map(
            start_ms in prop_oneof![0..5_000_u64, any::<u64>().prop_map(|n| n >> 16)],
            calls in prop::collection::vec(calls(), 0..300),
        ) {
            prop_assert_eq!(check(start_ms, &calls)?, check(start_ms, &calls)?);
        }
    }
}
