//! What was offered and not written yet: by attempt, the end of it, and all together within a limit.

use std::collections::HashMap;

use onward_core::fence::Term;
use onward_core::ids::Claim;

use super::{CUT_BYTES, KEEP_BYTES, MAX_WAITING_BYTES};

/// Output of an attempt since the part that is written.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct UnwrittenOutput {
    /// Bytes before `data` that are not here.
    pub skipped: u64,
    pub data: Vec<u8>,
}

impl UnwrittenOutput {
    fn add(&mut self, skipped: u64, data: &[u8]) {
        if skipped > 0 {
            // Kept output has no holes: positions in it could not be told apart otherwise.
            self.skipped = self.skipped.saturating_add(self.data.len() as u64).saturating_add(skipped);
            self.data.clear();
        }
        self.data.extend_from_slice(data);
        if self.data.len() > CUT_BYTES {
            let over = self.data.len() - KEEP_BYTES;
            self.data.drain(..over);
            self.skipped = self.skipped.saturating_add(over as u64);
        }
    }
}

/// Output of an attempt, and the term under which the oldest of it was admitted.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct OfferedOutput {
    pub(super) term: Term,
    pub(super) printed: UnwrittenOutput,
}

#[derive(Default, Debug)]
pub(super) struct Waiting {
    printed: HashMap<Claim, OfferedOutput>,
    bytes: usize,
    /// Bytes lost of attempts that may print more: the next output says so.
    lost: HashMap<Claim, u64>,
}

/// Bytes that an attempt takes up here, besides those of its output.
const EACH_BYTES: usize = 256;
/// Losses that are remembered by attempt. Of others only the sum is known.
const MAX_LOST: usize = 4_096;

impl Waiting {
    /// False if there was no room.
    pub(super) fn add(&mut self, term: Term, claim: Claim, skipped: u64, data: &[u8]) -> bool {
        if data.is_empty() {
            self.lost(claim, skipped);
            return true;
        }
        let new = if self.printed.contains_key(&claim) { 0 } else { EACH_BYTES };
        if self.bytes + new + data.len() > MAX_WAITING_BYTES {
            self.lost(claim, skipped.saturating_add(data.len() as u64));
            return false;
        }
        let skipped = skipped.saturating_add(self.lost.remove(&claim).unwrap_or(0));
        let new_one = || OfferedOutput { term, printed: UnwrittenOutput::default() };
        let OfferedOutput { printed, .. } = self.printed.entry(claim).or_insert_with(new_one);
        let before = printed.data.len();
        printed.add(skipped, data);
        self.bytes = self.bytes + new + printed.data.len() - before;
        true
    }

    pub(super) fn lost(&mut self, claim: Claim, bytes: u64) {
        if self.lost.len() < MAX_LOST || self.lost.contains_key(&claim) {
            let lost = self.lost.entry(claim).or_default();
            *lost = lost.saturating_add(bytes);
        }
    }

    /// What was taken is lost. Whatever has come of the attempt since is behind it.
    pub(super) fn lost_taken(&mut self, claim: Claim, bytes: u64) {
        match self.printed.get_mut(&claim) {
            Some(OfferedOutput { printed, .. }) => printed.skipped = printed.skipped.saturating_add(bytes),
            None => self.lost(claim, bytes),
        }
    }

    /// Puts back output that was taken and could not be written yet; whatever has come of the attempt since is behind it.
    /// False if there is no room: then it is lost.
    pub(super) fn put_back(&mut self, claim: Claim, OfferedOutput { term, printed: mut older }: OfferedOutput) -> bool {
        let new = if self.printed.contains_key(&claim) { 0 } else { EACH_BYTES };
        if self.bytes + new + older.data.len() > MAX_WAITING_BYTES {
            self.lost_taken(claim, older.skipped.saturating_add(older.data.len() as u64));
            return false;
        }
        let OfferedOutput { printed: newer, .. } = self.printed.remove(&claim).unwrap_or_default();
        older.add(newer.skipped, &newer.data);
        self.bytes = self.bytes + new + older.data.len() - newer.data.len();
        self.printed.insert(claim, OfferedOutput { term, printed: older });
        true
    }

    pub(super) fn contains(&self, claim: &Claim) -> bool {
        self.printed.contains_key(claim)
    }

    pub(super) fn bytes_of_output(&self) -> u64 {
        self.printed.values().map(|offered| offered.printed.data.len() as u64).sum()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.printed.is_empty()
    }

    pub(super) fn take(&mut self) -> HashMap<Claim, OfferedOutput> {
        self.bytes = 0;
        core::mem::take(&mut self.printed)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{TERM, claim};
    use super::*;

    /// Newer output waits with the older, and goes where that may go.
    #[test]
    fn output_has_the_term_under_which_the_oldest_of_it_was_admitted() {
        let mut waiting = Waiting::default();
        waiting.add(Term::new(1), claim(1), 0, b"one ");
        waiting.add(Term::new(2), claim(1), 0, b"two ");
        let taken = waiting.take().remove(&claim(1)).unwrap();
        assert_eq!(taken.term, Term::new(1));
        waiting.add(Term::new(3), claim(1), 0, b"three");
        waiting.put_back(claim(1), taken);
        let printed = UnwrittenOutput { skipped: 0, data: b"one two three".to_vec() };
        assert_eq!(waiting.take()[&claim(1)], OfferedOutput { term: Term::new(1), printed });
    }

    #[test]
    fn output_of_one_attempt_comes_together_in_order() {
        let mut waiting = Waiting::default();
        assert!(
            waiting.add(TERM, claim(1), 0, b"one ")
                && waiting.add(TERM, claim(2), 5, b"other")
                && waiting.add(TERM, claim(1), 0, b"two")
        );
        let taken = waiting.take();
        assert_eq!(taken[&claim(1)].printed, UnwrittenOutput { skipped: 0, data: b"one two".to_vec() });
        assert_eq!(taken[&claim(2)].printed, UnwrittenOutput { skipped: 5, data: b"other".to_vec() });
        assert!(waiting.is_empty());
    }

    #[test]
    fn only_the_end_waits_and_the_rest_is_counted() {
        let mut waiting = Waiting::default();
        for n in 0..5u8 {
            assert!(waiting.add(TERM, claim(1), 0, &vec![n; KEEP_BYTES]));
        }
        let taken = waiting.take().remove(&claim(1)).unwrap().printed;
        assert_eq!(taken.skipped + taken.data.len() as u64, 5 * KEEP_BYTES as u64);
        assert!(
            taken.data.len() >= KEEP_BYTES && taken.data.len() <= CUT_BYTES && taken.data.ends_with(&[4; KEEP_BYTES])
        );
    }

    #[test]
    fn what_is_put_back_stands_before_what_came_since_and_takes_no_more_room_than_there_is() {
        let mut waiting = Waiting::default();
        waiting.add(TERM, claim(1), 3, b"one ");
        let taken = waiting.take().remove(&claim(1)).unwrap();
        waiting.add(TERM, claim(1), 0, b"two");
        assert!(waiting.put_back(claim(1), taken) && waiting.contains(&claim(1)) && !waiting.contains(&claim(2)));
        assert_eq!(waiting.bytes, EACH_BYTES + b"one two".len());
        assert_eq!(waiting.take()[&claim(1)].printed, UnwrittenOutput { skipped: 3, data: b"one two".to_vec() });

        // Newer output with a hole before it makes the older one worthless.
        waiting.add(TERM, claim(1), 5, b"new");
        assert!(waiting.put_back(
            claim(1),
            OfferedOutput { term: TERM, printed: UnwrittenOutput { skipped: 1, data: b"old".to_vec() } }
        ));
        assert_eq!(waiting.take()[&claim(1)].printed, UnwrittenOutput { skipped: 9, data: b"new".to_vec() });

        let older = UnwrittenOutput { skipped: 0, data: vec![b'x'; KEEP_BYTES] };
        let crowd = (0..).take_while(|n| waiting.add(TERM, claim(*n), 0, &older.data)).count();
        assert!(!waiting.put_back(claim(0), OfferedOutput { term: TERM, printed: older }), "there is no room");
        assert!(waiting.bytes <= MAX_WAITING_BYTES);
        let taken = waiting.take();
        assert_eq!((taken.len(), taken[&claim(0)].printed.skipped), (crowd, KEEP_BYTES as u64), "and that is said");
    }

    #[test]
    fn what_is_before_a_hole_is_given_up() {
        let mut waiting = Waiting::default();
        waiting.add(TERM, claim(1), 0, b"before");
        waiting.add(TERM, claim(1), 10, b"after");
        assert_eq!(waiting.take()[&claim(1)].printed, UnwrittenOutput { skipped: 16, data: b"after".to_vec() });
    }

    #[test]
    fn what_does_not_fit_is_dropped_and_the_next_says_how_much_is_missing() {
        let mut waiting = Waiting::default();
        let full = vec![b'x'; KEEP_BYTES];
        let mut taken_in = 0;
        while waiting.add(TERM, claim(taken_in), 0, &full) {
            taken_in += 1;
        }
        assert_eq!(taken_in as usize, MAX_WAITING_BYTES / (KEEP_BYTES + EACH_BYTES));
        assert!(!waiting.add(TERM, claim(0), 0, &full), "also of an attempt that has some waiting");
        assert_eq!(waiting.take().len(), taken_in as usize);
        assert!(waiting.add(TERM, claim(taken_in), 1, b"next") && waiting.add(TERM, claim(0), 0, b"next"));
        let taken = waiting.take();
        assert_eq!(
            taken[&claim(taken_in)].printed,
            UnwrittenOutput { skipped: KEEP_BYTES as u64 + 1, data: b"next".to_vec() }
        );
        assert_eq!(taken[&claim(0)].printed.skipped, KEEP_BYTES as u64);
    }

    #[test]
    fn a_crowd_of_small_ones_and_mad_figures_stay_within_the_limits() {
        let mut waiting = Waiting::default();
        let crowd = (0..).take_while(|n| waiting.add(TERM, claim(*n), u64::MAX, b"x")).count();
        assert_eq!(crowd, MAX_WAITING_BYTES / (EACH_BYTES + 1));
        assert!(waiting.add(TERM, claim(1 << 40), u64::MAX, b""), "nothing takes no room");
        for n in 0..2 * MAX_LOST as u64 {
            waiting.lost(claim(n), u64::MAX);
        }
        assert_eq!(waiting.lost.len(), MAX_LOST);
        waiting.take();
        assert!(waiting.add(TERM, claim(0), u64::MAX, b"x"));
    }
}
