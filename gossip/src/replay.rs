//! Replays: a datagram counts once, and only in the life of its sender that it was sent in.
//!
//! A sender numbers its datagrams, to whomever they go, from 1 on in each life. Datagrams may overtake each other, so the
//! last [`WINDOW`] numbers are remembered one by one; what is older than those is refused unseen. A later life of a sender
//! begins anew, and what an earlier one said is refused from then on.
//!
//! Windows outlive the members that they belong to: forgetting a node that is down must not make its old datagrams new.

use core::net::SocketAddr;
use std::collections::BTreeMap;

/// The number of the latest numbers that are told apart. A sender numbers what it sends to all others together, so two
/// datagrams to one receiver may lie as far apart as there are members.
pub const WINDOW: u64 = 1_024;
const WORDS: usize = (WINDOW / 64) as usize;

/// The numbers of one life of one sender that were seen.
#[derive(Clone, Debug)]
pub struct ReplayWindow {
    highest: u64,
    /// A bit for each number above `highest - WINDOW`, in a ring.
    seen: [u64; WORDS],
}

impl Default for ReplayWindow {
    fn default() -> Self {
        Self { highest: 0, seen: [0; WORDS] }
    }
}

impl ReplayWindow {
    /// Admits a number if it is new; from now on it is not.
    pub fn admit(&mut self, number: u64) -> bool {
        if number == 0 || self.highest.saturating_sub(number) >= WINDOW {
            return false;
        }
        if number > self.highest {
            let fresh = (number - self.highest).min(WINDOW);
            for skipped in 0..fresh {
                self.clear(number - skipped);
            }
            self.highest = number;
        }
        let (word, bit) = place(number);
        let is_new = self.seen[word] & bit == 0;
        self.seen[word] |= bit;
        is_new
    }

    fn clear(&mut self, number: u64) {
        let (word, bit) = place(number);
        self.seen[word] &= !bit;
    }
}

const fn place(number: u64) -> (usize, u64) {
    let at = number % WINDOW;
    ((at / 64) as usize, 1 << (at % 64))
}

/// The windows of all senders, one per address.
#[derive(Debug)]
pub struct Replays {
    senders: BTreeMap<SocketAddr, Sender>,
    max: usize,
    heard: u64,
}

#[derive(Debug)]
struct Sender {
    incarnation: u64,
    window: ReplayWindow,
    /// Rises with every datagram of anybody: the lowest was heard the longest ago.
    heard: u64,
}

impl Replays {
    /// `max` senders are remembered; beyond that, the one that was silent for the longest is forgotten.
    pub const fn new(max: usize) -> Self {
        Self { senders: BTreeMap::new(), max, heard: 0 }
    }

    /// Admits a datagram if it was not seen before, and is not of a life that is over.
    pub fn admit(&mut self, sender: SocketAddr, incarnation: u64, number: u64) -> bool {
        self.heard += 1;
        if !self.senders.contains_key(&sender) && self.senders.len() >= self.max {
            let oldest = self.senders.iter().min_by_key(|(_, known)| known.heard).map(|(address, _)| *address);
            oldest.map(|address| self.senders.remove(&address));
        }
        let new = || Sender { incarnation, window: ReplayWindow::default(), heard: 0 };
        let known = self.senders.entry(sender).or_insert_with(new);
        if incarnation < known.incarnation {
            return false;
        }
        if incarnation > known.incarnation {
            *known = new();
        }
        known.heard = self.heard;
        known.window.admit(number)
    }

    pub fn len(&self) -> usize {
        self.senders.len()
    }

    pub fn is_empty(&self) -> bool {
        self.senders.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_counts_once_in_any_order_within_the_window() {
        let mut window = ReplayWindow::default();
        // number, whether it is new
        let table = [
            (0, false),
            (1, true),
            (1, false),
            (3, true),
            (2, true),
            (2, false),
            (3, false),
            (WINDOW + 2, true),
            (2, false),
            (4, true),
            (4, false),
            (3 * WINDOW, true),
            (WINDOW + 3, false),
            (2 * WINDOW, false),
            (2 * WINDOW + 1, true),
            (u64::MAX, true),
            (u64::MAX, false),
            (u64::MAX - WINDOW + 1, true),
            (u64::MAX - WINDOW, false),
        ];
        for (row, (number, is_new)) in table.into_iter().enumerate() {
            assert_eq!(window.admit(number), is_new, "row {row}: {number}");
        }
    }

    #[test]
    fn the_window_agrees_with_a_set_of_numbers() {
        let (mut window, mut seen, mut highest) = (ReplayWindow::default(), std::collections::BTreeSet::new(), 0u64);
        let mut state = 1u64;
        for _ in 0..50_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let number = (highest + 40).saturating_sub((state >> 33) % (WINDOW + 200)).max(1);
            let expected = number + WINDOW > highest && seen.insert(number);
            assert_eq!(window.admit(number), expected, "{number} after {highest}");
            highest = highest.max(number);
        }
    }

    #[test]
    fn a_later_life_begins_anew_and_an_earlier_one_is_over() {
        let mut replays = Replays::new(8);
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
        assert!(replays.admit(at(1), 10, 5));
        assert!(!replays.admit(at(1), 10, 5));
        assert!(replays.admit(at(2), 10, 5), "another sender");
        assert!(replays.admit(at(1), 11, 5), "another life");
        assert!(!replays.admit(at(1), 10, 6), "a life that is over");
        assert!(!replays.admit(at(1), 11, 5));
    }

    #[test]
    fn no_more_senders_than_allowed_are_remembered_and_the_most_silent_goes_first() {
        let mut replays = Replays::new(2);
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
        assert!(replays.admit(at(1), 1, 1) && replays.admit(at(2), 1, 1) && replays.admit(at(1), 1, 2));
        assert!(replays.admit(at(3), 1, 1));
        assert_eq!(replays.len(), 2);
        assert!(!replays.admit(at(1), 1, 2), "it was heard later than the second");
    }
}
