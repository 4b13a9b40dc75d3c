//! Overall deadlines that are far away.
//!
//! Nearly every job ends long before its overall deadline. Taking a timer out of the wheel means touching its
//! neighbours, which nobody has touched since they were set; so deadlines that are far away only go into a list of
//! their time slice, and ending a job only lowers the count of that slice. When a slice comes near, what is still open
//! in it gets a timer. A slice of which most has ended is cleaned, so that one long job does not keep the rest.

use std::collections::BTreeMap;

use crate::state::JobKey;

/// About four seconds.
const SLICE_BITS: u32 = 12;
const CLEAN_FROM: usize = 256;

/// Which slice a deadline is in.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Slice(u64);

#[derive(Debug, Default)]
pub(super) struct Deadlines {
    slices: BTreeMap<Slice, Entries>,
}

/// A job, and what tells it from another one that got its key later.
pub(super) type Entry = (JobKey, u32);

#[derive(Debug, Default)]
struct Entries {
    list: Vec<Entry>,
    open: usize,
}

impl Slice {
    fn start_ms(self) -> u64 {
        self.0 << SLICE_BITS
    }
}

impl Deadlines {
    /// Notes a deadline, unless it is so near that it needs a timer at once.
    pub(super) fn insert(&mut self, at_ms: u64, now_ms: u64, entry: Entry) -> Option<Slice> {
        let slice = Slice(at_ms >> SLICE_BITS);
        if slice.start_ms() <= now_ms {
            return None;
        }
        let entries = self.slices.entry(slice).or_default();
        entries.list.push(entry);
        entries.open += 1;
        Some(slice)
    }

    /// The job has ended. `is_open` tells which of the others in its slice are still waited for.
    pub(super) fn remove(&mut self, slice: Slice, is_open: impl Fn(&Entry) -> bool) {
        let Some(entries) = self.slices.get_mut(&slice) else { return };
        entries.open -= 1;
        if entries.open == 0 {
            self.slices.remove(&slice);
        } else if entries.list.len() >= CLEAN_FROM && entries.open < entries.list.len() / 2 {
            entries.list.retain(is_open);
        }
    }

    /// The first slice, if it is near.
    pub(super) fn pop_near(&mut self, now_ms: u64) -> Option<(Slice, Vec<Entry>)> {
        let first = self.slices.first_entry().filter(|first| first.key().start_ms() <= now_ms)?;
        let (slice, entries) = first.remove_entry();
        Some((slice, entries.list))
    }

    /// When the first slice comes near.
    pub(super) fn next_ms(&self) -> Option<u64> {
        self.slices.first_key_value().map(|(slice, _)| slice.start_ms())
    }

    #[cfg(test)]
    fn kept(&self) -> usize {
        self.slices.values().map(|entries| entries.list.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_near_needs_a_timer_and_what_is_far_waits_in_its_slice() {
        let mut deadlines = Deadlines::default();
        assert_eq!(deadlines.insert(5_000, 4_096, (1, 1)), None);
        let far = deadlines.insert(100_000, 0, (2, 2)).unwrap();
        assert_eq!(deadlines.insert(100_001, 0, (3, 3)), Some(far));
        let starts = deadlines.next_ms().unwrap();
        assert!(starts <= 100_000 && starts > 100_000 - 4_096);
        assert_eq!(deadlines.pop_near(starts - 1), None);
        assert_eq!(deadlines.pop_near(starts), Some((far, vec![(2, 2), (3, 3)])));
        assert_eq!(deadlines.next_ms(), None);
    }

    #[test]
    fn a_slice_goes_with_its_last_job() {
        let mut deadlines = Deadlines::default();
        let slice = deadlines.insert(100_000, 0, (1, 1)).unwrap();
        deadlines.insert(100_000, 0, (2, 2)).unwrap();
        deadlines.remove(slice, |_| true);
        assert_eq!(deadlines.kept(), 2);
        deadlines.remove(slice, |_| true);
        assert_eq!((deadlines.kept(), deadlines.next_ms()), (0, None));
    }

    #[test]
    fn one_long_job_does_not_keep_the_thousands_that_ended() {
        let mut deadlines = Deadlines::default();
        let slice = deadlines.insert(100_000, 0, (0, 0)).unwrap();
        for key in 1..10_000 {
            deadlines.insert(100_000, 0, (key, key)).unwrap();
        }
        for ended in 1..10_000 {
            deadlines.remove(slice, |(key, _)| *key == 0 || *key > ended);
        }
        assert!(deadlines.kept() < 2 * CLEAN_FROM, "{} are kept", deadlines.kept());
        assert_eq!(deadlines.pop_near(100_000).unwrap().1[0], (0, 0));
    }
}
