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
//!
//! A slot may hold millions of entries, and both spreading and popping them stop when the caller's [`Bite`] is over. What
//! is not spread yet stays linked in a list of its own, and time stands still until that is empty.

use crate::bite::Bite;
use crate::key::Key;
use crate::list::{Links, List, ListNode};
use crate::pages::Pages;

const BITS: u32 = 6;
const SLOTS: usize = 1 << BITS;
const LEVELS: usize = u64::BITS.div_ceil(BITS) as usize;

/// Names a timer from `insert` until it is popped or removed. After that it may name another one, so whoever keeps a key
/// forgets it at that moment.
pub type TimerKey<T> = Key<Timer<T>>;

/// An entry of the wheel.
#[derive(Clone, Debug)]
pub struct Timer<T> {
    at_ms: u64,
    /// Links in the list of the timer's slot, or of the timers that are to be spread.
    links: Links<Self>,
    item: T,
}

impl<T> ListNode<Self> for Timer<T> {
    #[inline]
    fn links(&self) -> &Links<Self> {
        &self.links
    }

    #[inline]
    fn links_mut(&mut self) -> &mut Links<Self> {
        &mut self.links
    }
}

#[derive(Clone, Debug)]
pub struct Wheel<T> {
    now_ms: u64,
    /// Per level, which slots hold anything.
    used: [u64; LEVELS],
    slots: Box<[[List<Timer<T>>; SLOTS]; LEVELS]>,
    timers: Pages<Timer<T>>,
    /// The entries whose slot time has entered and that are still to be spread.
    spreading: List<Timer<T>>,
    /// The last tick of that slot: what is inserted up to it goes behind them.
    spreading_to_ms: u64,
}

/// Moving so many entries to another slot takes about as long as one unit of a bite.
const MOVES_PER_UNIT: u32 = 16;

#[derive(Clone, Copy)]
struct Place {
    level: usize,
    slot: usize,
}

impl<T: Copy> Wheel<T> {
    pub fn new(start_ms: u64) -> Self {
        Self {
            now_ms: start_ms,
            used: [0; LEVELS],
            slots: Box::new([[List::EMPTY; SLOTS]; LEVELS]),
            timers: Pages::new(),
            spreading: List::EMPTY,
            spreading_to_ms: 0,
        }
    }

    pub fn len(&self) -> usize {
        self.timers.len()
    }

    pub fn is_empty(&self) -> bool {
        self.timers.is_empty()
    }

    /// A deadline that the wheel's time has already passed is due at once, after what is due at that time already.
    pub fn insert(&mut self, at_ms: u64, item: T) -> TimerKey<T> {
        let key = self.timers.insert(Timer { at_ms, links: Links::UNLINKED, item });
        self.append(key);
        key
    }

    /// Panics on a key that names nothing.
    pub fn remove(&mut self, key: TimerKey<T>) -> T {
        let place = self.place_of(self.timers[key].at_ms);
        self.unlink(place, key);
        self.timers.remove(key).item
    }

    /// The earliest entry that is due at `now_ms`, with the deadline it was inserted with.
    ///
    /// By tick, and in order of insertion within a tick. To be called until it answers `None`; entries that the caller
    /// inserts meanwhile take part. `now_ms` must not go back: one before the wheel's time answers `None`. So does every
    /// call once the bite is over, which what is found spends a unit of; [`Self::next`] then says that there is more.
    pub fn pop_due(&mut self, now_ms: u64, bite: &mut Bite) -> Option<(u64, T)> {
        if now_ms < self.now_ms {
            return None;
        }
        loop {
            if !self.spreading.is_empty() {
                self.spread(bite);
                if !self.spreading.is_empty() {
                    return None;
                }
            }
            let Some(place) = self.first() else { break };
            let start_ms = self.start_of(place);
            if start_ms > now_ms {
                break;
            }
            if bite.is_over() {
                return None;
            }
            self.now_ms = start_ms;
            let slot = &mut self.slots[place.level][place.slot];
            if place.level == 0 {
                bite.spend(1);
                let head = slot.head().expect("a slot in use is not empty");
                self.unlink(place, head);
                let timer = self.timers.remove(head);
                return Some((timer.at_ms, timer.item));
            }
            self.used[place.level] &= !(1 << place.slot);
            self.spreading = core::mem::replace(slot, List::EMPTY);
            self.spreading_to_ms = start_ms | ((1 << (place.level as u32 * BITS)) - 1);
        }
        self.now_ms = now_ms;
        None
    }

    /// The instant at which `pop_due` has to be called next, and an item that this is for.
    ///
    /// Never later than the earliest deadline, and exact if that is on the lowest level. Otherwise it is the start of
    /// its slot: a wakeup that pops nothing, but brings the entry closer. After `pop_due(now)` answered `None`, it lies
    /// after `now`. For an entry inserted late it is the wheel's time, which means at once; so it is after a bite that was
    /// over before all entries of a slot were spread, wherever they belong.
    pub fn next(&self) -> Option<(u64, T)> {
        if let Some(first) = self.spreading.head() {
            return Some((self.now_ms, self.timers[first].item));
        }
        let place = self.first()?;
        let head = self.slots[place.level][place.slot].head()?;
        Some((self.start_of(place), self.timers[head].item))
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

    fn append(&mut self, key: TimerKey<T>) {
        if !self.spreading.is_empty() && self.timers[key].at_ms <= self.spreading_to_ms {
            return self.spreading.push_back(&mut self.timers, key);
        }
        self.place(key);
    }

    /// Puts an entry behind all that are in its slot.
    fn place(&mut self, key: TimerKey<T>) {
        let place = self.place_of(self.timers[key].at_ms);
        self.used[place.level] |= 1 << place.slot;
        self.slots[place.level][place.slot].push_back(&mut self.timers, key);
    }

    /// Takes an entry out of its slot, or of those that are to be spread. Only a list's first member must be known to be
    /// in it: the others are taken out of the ring that they are in.
    fn unlink(&mut self, place: Place, key: TimerKey<T>) {
        if self.spreading.head() == Some(key) {
            return self.spreading.remove(&mut self.timers, key);
        }
        let slot = &mut self.slots[place.level][place.slot];
        slot.remove(&mut self.timers, key);
        if slot.is_empty() {
            self.used[place.level] &= !(1 << place.slot);
        }
    }

    /// Takes entries of the slot that time has entered, in order, to the levels below, as many as the bite allows.
    fn spread(&mut self, bite: &mut Bite) {
        let most = bite.left().saturating_mul(MOVES_PER_UNIT);
        let mut moved = 0;
        while let Some(key) = self.spreading.head()
            && moved < most
        {
            self.spreading.remove(&mut self.timers, key);
            self.place(key);
            moved += 1;
        }
        bite.spend(moved.div_ceil(MOVES_PER_UNIT));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const DAY_MS: u64 = 24 * 3_600_000;

    fn drain(wheel: &mut Wheel<u32>, now_ms: u64) -> Vec<(u64, u32)> {
        std::iter::from_fn(|| pop(wheel, now_ms)).collect()
    }

    fn pop(wheel: &mut Wheel<u32>, now_ms: u64) -> Option<(u64, u32)> {
        wheel.pop_due(now_ms, &mut Bite::of(u32::MAX))
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
                    assert_eq!(pop(&mut wheel, at - 1), None, "{start} + {span} fired early");
                    assert_eq!(wheel.next(), Some((at, 7)), "one tick away is exact");
                }
                assert_eq!(pop(&mut wheel, at), Some((at, 7)), "{start} + {span}");
                assert_eq!((pop(&mut wheel, u64::MAX), wheel.len(), wheel.next()), (None, 0, None));
            }
        }
    }

    #[test]
    fn a_tick_keeps_the_order_of_insertion_across_levels() {
        let mut wheel = Wheel::new(0);
        wheel.insert(70_000, 0);
        wheel.insert(70_001, 1);
        assert_eq!(pop(&mut wheel, 65_600), None);
        wheel.insert(70_000, 2);
        assert_eq!(pop(&mut wheel, 69_999), None);
        wheel.insert(70_000, 3);
        assert_eq!(drain(&mut wheel, 80_000), [(70_000, 0), (70_000, 2), (70_000, 3), (70_001, 1)]);
    }

    #[test]
    fn a_slot_that_is_not_spread_yet_is_gone_on_with_at_once() {
        const TICK: u64 = 100;
        let mut wheel = Wheel::new(0);
        for item in 0..=MOVES_PER_UNIT {
            wheel.insert(TICK, item);
        }
        assert_eq!(wheel.pop_due(TICK, &mut Bite::of(1)), None);
        let slot_ms = 64;
        assert_eq!(wheel.next().map(|(wake_ms, _)| wake_ms), Some(slot_ms), "though nothing is due before the tick");
        let mut rest = Bite::of(u32::MAX);
        for item in 0..=MOVES_PER_UNIT {
            assert_eq!(wheel.pop_due(TICK, &mut rest), Some((TICK, item)));
        }
    }

    #[test]
    fn what_is_inserted_while_popping_takes_part() {
        let mut wheel = Wheel::new(0);
        wheel.insert(500, 0);
        wheel.insert(500, 1);
        wheel.insert(900, 2);
        assert_eq!(pop(&mut wheel, 1_000), Some((500, 0)));
        wheel.insert(20, 3);
        wheel.insert(700, 4);
        wheel.insert(1_001, 5);
        assert_eq!(drain(&mut wheel, 1_000), [(500, 1), (20, 3), (700, 4), (900, 2)]);
        assert_eq!(wheel.next(), Some((1_001, 5)));
    }

    #[test]
    fn a_late_insert_asks_for_a_wakeup_at_once_and_time_does_not_go_back() {
        let mut wheel = Wheel::new(0);
        assert_eq!(pop(&mut wheel, 1_000), None);
        let late = wheel.insert(10, 1);
        assert_eq!(wheel.next(), Some((1_000, 1)));
        assert_eq!(pop(&mut wheel, 999), None);
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
            if pop(&mut wheel, wake).is_some() {
                assert_eq!(wake, 365 * DAY_MS);
            }
        }
        assert!((1..=LEVELS).contains(&wakeups), "{wakeups}");
    }

    #[test]
    fn very_many_of_one_tick_come_in_bites_and_in_order_however_they_are_spread() {
        const ALL: u32 = 100_000;
        let mut wheel = Wheel::new(1);
        for n in 0..ALL {
            wheel.insert(DAY_MS, n);
        }
        let (mut fired, mut bites) = (Vec::new(), 0);
        while !wheel.is_empty() {
            let (wake_ms, _) = wheel.next().expect("there is more");
            let mut bite = Bite::of(100);
            let before = fired.len();
            while let Some((at_ms, n)) = wheel.pop_due(wake_ms, &mut bite) {
                assert_eq!(at_ms, DAY_MS);
                fired.push(n);
            }
            assert!(fired.len() - before <= 100);
            bites += 1;
        }
        assert!(fired.into_iter().eq(0..ALL));
        // Popping them takes 1,000 bites, and moving them down four levels 63 each.
        assert!((1_200..1_300).contains(&bites), "{bites}");
    }

    #[test]
    fn what_is_removed_or_inserted_while_a_slot_is_spread_keeps_its_place() {
        let mut wheel = Wheel::new(0);
        let keys: Vec<TimerKey<u32>> = (0..100).map(|n| wheel.insert(5_000, n)).collect();
        // Time enters the slot, and 32 are moved.
        assert_eq!(wheel.pop_due(5_000, &mut Bite::of(2)), None);
        for gone in [0, 31, 32, 33, 99] {
            assert_eq!(wheel.remove(keys[gone]), gone as u32);
        }
        wheel.insert(5_000, 100);
        wheel.insert(4_999, 101);
        wheel.insert(9_000, 102);
        let left = (1..=100).filter(|n| ![31, 32, 33, 99].contains(n)).map(|n| (5_000, n));
        let expected: Vec<(u64, u32)> = std::iter::once((4_999, 101)).chain(left).collect();
        assert_eq!(drain(&mut wheel, 5_000), expected);
        assert_eq!(drain(&mut wheel, 9_000), [(9_000, 102)]);
    }

    #[test]
    fn an_entry_costs_its_deadline_and_two_links() {
        assert_eq!(Pages::<Timer<u32>>::ENTRY_BYTES, 24);
        assert_eq!(Pages::<Timer<u64>>::ENTRY_BYTES, 24);
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
            bite: u32,
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
            3 => (spans(), prop_oneof![3 => Just(usize::MAX), 1 => 0..4_usize], prop_oneof![2 => Just(u32::MAX), 1 => 0..4_u32])
                .prop_map(|(span_ms, most, bite)| Call::Advance { span_ms, most, bite }),
            2 => Just(Call::Sleep),
        ]
    }

    /// A deadline, and the timer that was set for it.
    type Set = (u64, TimerKey<u32>);

    /// Entries by (tick, order of insertion), and the wheel's time.
    #[derive(Default)]
    struct Model {
        entries: BTreeMap<(u64, u32), Set>,
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

        fn nth(&self, nth: usize) -> Option<((u64, u32), Set)> {
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
            let (mut most, mut bite) = (0, Bite::of(u32::MAX));
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
                Call::Advance { span_ms, most: limit, bite: units } => {
                    now_ms = now_ms.saturating_add(span_ms);
                    (most, bite) = (limit, Bite::of(units));
                }
                Call::Sleep => {
                    now_ms = wheel.next().map_or(now_ms, |(wake_ms, _)| wake_ms.max(now_ms));
                    most = usize::MAX;
                }
            }
            for _ in 0..most {
                let popped = wheel.pop_due(now_ms, &mut bite);
                if popped.is_none() && bite.is_over() {
                    // Time may have come up to a slot, not past anything in it.
                    let wake_ms = wheel.next().map_or(now_ms, |(wake_ms, _)| wake_ms);
                    prop_assert!(wake_ms <= now_ms || model.entries.keys().all(|(tick, _)| *tick > now_ms));
                    model.now_ms = wheel.now_ms;
                    break;
                }
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
                let is_exact = wake_ms == *earliest || (wake_ms ^ model.now_ms) >= 64;
                let is_at_once = !wheel.spreading.is_empty() && wake_ms == wheel.now_ms;
                prop_assert!(is_exact || is_at_once, "inexact on the lowest level");
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
