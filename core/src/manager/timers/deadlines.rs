//! Overall deadlines that are far away.
//!
//! Nearly every job ends long before its overall deadline. Taking a timer out of the wheel means touching its
//! neighbours, which nobody has touched since they were set; so deadlines that are far away only go into a batch of
//! their time slice, and ending a job only lowers the count of its batch. When a slice comes near, what is still open in
//! it gets a timer, batch by batch. A batch goes with the last of its jobs: one long job keeps a batch, not a slice.

use std::collections::BTreeMap;

use crate::key::Key;
use crate::list::{Links, List, ListNode};
use crate::pages::Pages;
use crate::state::JobKey;

/// About four seconds.
const SLICE_BITS: u32 = 12;
/// Small, because one long job keeps all of it.
const BATCH: usize = 16;

pub(super) type DeadlineBatchKey = Key<DeadlineBatch>;

#[derive(Debug, Default)]
pub(super) struct Deadlines {
    /// The batches of each slice, by the number of the slice. The last is being filled.
    slices: BTreeMap<u64, List<DeadlineBatch>>,
    batches: Pages<DeadlineBatch>,
    /// The number of open jobs of each batch. Apart from the batches, so that ending a job touches none of them.
    open: Vec<u8>,
}

/// A job, and what tells it from another one that got its key later.
pub(super) type DeadlineEntry = (JobKey, u32);

#[derive(Debug)]
pub(super) struct DeadlineBatch {
    slice: u64,
    links: Links<Self>,
    len: u8,
    entries: [DeadlineEntry; BATCH],
}

impl ListNode<Self> for DeadlineBatch {
    fn links(&self) -> &Links<Self> {
        &self.links
    }

    fn links_mut(&mut self) -> &mut Links<Self> {
        &mut self.links
    }
}

impl Deadlines {
    /// Notes a deadline, unless it is so near that it needs a timer at once.
    pub(super) fn insert(&mut self, at_ms: u64, now_ms: u64, entry: DeadlineEntry) -> Option<DeadlineBatchKey> {
        let slice = at_ms >> SLICE_BITS;
        if slice << SLICE_BITS <= now_ms {
            return None;
        }
        let batches = self.slices.entry(slice).or_insert(List::EMPTY);
        if let Some(filling) = batches.last(&self.batches)
            && let batch = &mut self.batches[filling]
            && usize::from(batch.len) < BATCH
        {
            batch.entries[usize::from(batch.len)] = entry;
            batch.len += 1;
            self.open[filling.index()] += 1;
            return Some(filling);
        }
        let key = self.batches.insert(DeadlineBatch { slice, links: Links::UNLINKED, len: 1, entries: [entry; BATCH] });
        batches.push_back(&mut self.batches, key);
        if self.open.len() <= key.index() {
            self.open.resize(key.index() + 1, 0);
        }
        self.open[key.index()] = 1;
        Some(key)
    }

    /// A job of this batch has ended.
    pub(super) fn remove(&mut self, key: DeadlineBatchKey) {
        let open = &mut self.open[key.index()];
        *open -= 1;
        if *open > 0 {
            return;
        }
        let slice = self.batches[key].slice;
        let batches = self.slices.get_mut(&slice).expect("a batch is in the list of its slice");
        batches.remove(&mut self.batches, key);
        if batches.is_empty() {
            self.slices.remove(&slice);
        }
        self.batches.remove(key);
    }

    /// The first batch of the first slice, if that is near, with what was noted in it, whether or not it has ended since.
    /// In the order in which it was noted.
    pub(super) fn pop_near(&mut self, now_ms: u64) -> Option<(DeadlineBatchKey, Vec<DeadlineEntry>)> {
        let mut slice = self.slices.first_entry().filter(|first| first.key() << SLICE_BITS <= now_ms)?;
        let key = slice.get().head().expect("a slice without batches is forgotten");
        slice.get_mut().remove(&mut self.batches, key);
        if slice.get().is_empty() {
            slice.remove();
        }
        let batch = self.batches.remove(key);
        Some((key, batch.entries[..usize::from(batch.len)].to_vec()))
    }

    /// The instant when the first slice comes near.
    pub(super) fn next_ms(&self) -> Option<u64> {
        self.slices.first_key_value().map(|(slice, _)| slice << SLICE_BITS)
    }

    #[cfg(test)]
    fn kept(&self) -> usize {
        self.batches.len() * BATCH
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(number: u32) -> DeadlineEntry {
        (JobKey::at(number).expect("keys begin at 1"), number)
    }

    #[test]
    fn what_is_near_needs_a_timer_and_what_is_far_waits_in_its_slice() {
        let mut deadlines = Deadlines::default();
        assert_eq!(deadlines.insert(5_000, 4_096, entry(1)), None);
        let far = deadlines.insert(100_000, 0, entry(2)).unwrap();
        assert_eq!(deadlines.insert(100_001, 0, entry(3)), Some(far));
        let starts = deadlines.next_ms().unwrap();
        assert!(starts <= 100_000 && starts > 100_000 - 4_096);
        assert_eq!(deadlines.pop_near(starts - 1), None);
        assert_eq!(deadlines.pop_near(starts), Some((far, vec![entry(2), entry(3)])));
        assert_eq!(deadlines.pop_near(starts), None);
        assert_eq!((deadlines.kept(), deadlines.next_ms()), (0, None));
    }

    #[test]
    fn a_slice_goes_with_its_last_job() {
        let mut deadlines = Deadlines::default();
        let batch = deadlines.insert(100_000, 0, entry(1)).unwrap();
        deadlines.insert(100_000, 0, entry(2)).unwrap();
        deadlines.remove(batch);
        assert_eq!(deadlines.kept(), BATCH);
        deadlines.remove(batch);
        assert_eq!((deadlines.kept(), deadlines.next_ms()), (0, None));
    }

    #[test]
    fn a_batch_leaves_its_chain_from_either_end_and_from_between() {
        let of = |batch: usize| (0..BATCH).map(move |n| entry((1 + batch * BATCH + n) as u32));
        for gone in [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2], [2, 0, 3, 1]] {
            let mut deadlines = Deadlines::default();
            let mut keys = [DeadlineBatchKey::FIRST; 4];
            for (batch, key) in keys.iter_mut().enumerate() {
                of(batch).for_each(|entry| *key = deadlines.insert(100_000, 0, entry).unwrap());
            }
            let mut left = vec![0, 1, 2, 3];
            for batch in gone {
                of(batch).for_each(|_| deadlines.remove(keys[batch]));
                left.retain(|known| *known != batch);
                let later = deadlines.insert(100_000, 0, entry(99)).unwrap();
                let mut noted: Vec<DeadlineEntry> = left.iter().flat_map(|batch| of(*batch)).collect();
                noted.push(entry(99));
                let mut near = Deadlines::default();
                core::mem::swap(&mut near, &mut deadlines);
                let popped = std::iter::from_fn(|| near.pop_near(100_000));
                let entries: Vec<DeadlineEntry> = popped.flat_map(|(_, entries)| entries).collect();
                assert_eq!(entries, noted, "{gone:?} without {batch}, then one in {later:?}");
                // Once more from the start, without what is gone.
                for batch in &left {
                    of(*batch).for_each(|entry| keys[*batch] = deadlines.insert(100_000, 0, entry).unwrap());
                }
            }
            assert_eq!((deadlines.kept(), deadlines.next_ms()), (0, None));
        }
    }

    #[test]
    fn one_long_job_does_not_keep_the_thousands_that_ended() {
        let mut deadlines = Deadlines::default();
        let batches: Vec<DeadlineBatchKey> =
            (1..=10_000).map(|key| deadlines.insert(100_000, 0, entry(key)).unwrap()).collect();
        batches[1..].iter().for_each(|batch| deadlines.remove(*batch));
        assert_eq!(deadlines.kept(), BATCH);
        let (batch, noted) = deadlines.pop_near(100_000).unwrap();
        assert_eq!((batch, noted[0]), (batches[0], entry(1)));
    }

    #[test]
    fn a_slice_that_is_near_comes_batch_by_batch_and_those_behind_may_still_end() {
        let mut deadlines = Deadlines::default();
        let batches: Vec<DeadlineBatchKey> =
            (1..=4 * BATCH as u32).map(|key| deadlines.insert(100_000, 0, entry(key)).unwrap()).collect();
        let (first, noted) = deadlines.pop_near(100_000).unwrap();
        assert_eq!((first, noted.len()), (batches[0], BATCH));
        batches[BATCH..2 * BATCH].iter().for_each(|batch| deadlines.remove(*batch));
        batches[3 * BATCH..].iter().for_each(|batch| deadlines.remove(*batch));
        let (third, noted) = deadlines.pop_near(100_000).unwrap();
        assert_eq!((third, noted[0].1), (batches[2 * BATCH], 1 + 2 * BATCH as u32));
        assert_eq!((deadlines.pop_near(100_000), deadlines.kept(), deadlines.next_ms()), (None, 0, None));
    }
}
