//! Counts for people and their dashboards. No decision reads them; they begin anew with every term.
//!
//! They are kept as things happen, so that reading them costs as much as there are queues and kinds, however many jobs
//! there are. How many jobs of a queue are in which state is exact, replayed jobs included; everything that only rises
//! counts from the beginning of the term.

use core::hash::BuildHasher;
use core::time::Duration;

use foldhash::fast::FixedState;
use hashbrown::HashTable;

use crate::grant::Denial;
use crate::ids::Name;
use crate::job::{EndingKind, JobState};
use crate::key::Key;
use crate::pages::Pages;
use crate::time::span_ms;

/// A queue without jobs is forgotten when there are more queues than this.
const QUEUES_KEPT: usize = 1_000;
/// Kinds that are counted by name; the others are counted together.
const KINDS_KEPT: usize = 100;

#[derive(Debug)]
pub struct Counts {
    queues: ByName<QueueCounts>,
    kinds: ByName<KindCounts>,
    other_kinds: KindCounts,
    /// Counts of queues that were forgotten.
    forgotten: QueueCounts,
    grants: u64,
    denials: [u64; Denial::ALL.len()],
}

/// Counts of one queue.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct QueueCounts {
    /// Jobs in memory, by state.
    pub jobs: [u64; JobState::ALL.len()],
    pub submitted: u64,
    /// Ended jobs by state; only terminal states are ever counted.
    pub ended: [u64; JobState::ALL.len()],
    /// Spans from when a workflow could first run until its first hand-out.
    pub wait: Histogram,
}

/// Counts of one kind.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct KindCounts {
    /// Attempts that ended, by how they did.
    pub attempts: [u64; EndingKind::ALL.len()],
    /// Spans from the hand-out of an attempt to its end.
    pub run: Histogram,
}

/// Numbers of spans by their length.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Histogram {
    /// The last is for those that are longer than every bound.
    buckets: [u64; BOUNDS_MS.len() + 1],
    sum_ms: u64,
}

/// Inclusive upper bounds.
const BOUNDS_MS: [u64; 12] = [5, 25, 100, 500, 1_000, 5_000, 15_000, 60_000, 300_000, 900_000, 3_600_000, 14_400_000];

impl Histogram {
    pub fn observe(&mut self, span: Duration) {
        let ms = span_ms(span);
        self.buckets[BOUNDS_MS.partition_point(|bound| *bound < ms)] += 1;
        self.sum_ms += ms;
    }

    /// Each bound, and how many were no longer than that.
    pub fn cumulative(&self) -> impl Iterator<Item = (Duration, u64)> + '_ {
        let mut so_far = 0;
        BOUNDS_MS.iter().zip(&self.buckets).map(move |(bound, count)| {
            so_far += count;
            (Duration::from_millis(*bound), so_far)
        })
    }

    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    pub fn sum(&self) -> Duration {
        Duration::from_millis(self.sum_ms)
    }

    fn add(&mut self, other: &Self) {
        add_all(&mut self.buckets, &other.buckets);
        self.sum_ms += other.sum_ms;
    }
}

impl QueueCounts {
    /// A job of this queue changed its state; it is new if it had none.
    pub fn moved(&mut self, from: Option<JobState>, to: JobState) {
        if let Some(from) = from {
            self.jobs[from as usize] -= 1;
        }
        self.jobs[to as usize] += 1;
    }

    fn is_empty(&self) -> bool {
        self.jobs.iter().all(|count| *count == 0)
    }

    pub fn add(&mut self, other: &Self) {
        add_all(&mut self.jobs, &other.jobs);
        self.submitted += other.submitted;
        add_all(&mut self.ended, &other.ended);
        self.wait.add(&other.wait);
    }
}

impl KindCounts {
    pub fn ended(&mut self, ending: EndingKind, after: Duration) {
        self.attempts[ending as usize] += 1;
        self.run.observe(after);
    }

    pub fn add(&mut self, other: &Self) {
        add_all(&mut self.attempts, &other.attempts);
        self.run.add(&other.run);
    }
}

fn add_all(these: &mut [u64], those: &[u64]) {
    these.iter_mut().zip(those).for_each(|(one, other)| *one += other);
}

impl Counts {
    pub fn new(seed: u64) -> Self {
        Self {
            queues: ByName::new(seed),
            kinds: ByName::new(seed),
            other_kinds: KindCounts::default(),
            forgotten: QueueCounts::default(),
            grants: 0,
            denials: [0; Denial::ALL.len()],
        }
    }

    pub fn queue(&mut self, name: &Name) -> &mut QueueCounts {
        let key = self.queues.find(name).unwrap_or_else(|| self.queues.insert(name.clone()));
        self.queues.at(key)
    }

    /// A job of this queue, in this state, has left the memory.
    pub fn left(&mut self, queue: &Name, state: JobState) {
        let Some(key) = self.queues.find(queue) else { return };
        let counts = self.queues.at(key);
        counts.jobs[state as usize] -= 1;
        if counts.is_empty() && self.queues.len() > QUEUES_KEPT {
            let gone = self.queues.remove(key);
            self.forgotten.add(&gone);
        }
    }

    pub fn kind(&mut self, name: &Name) -> &mut KindCounts {
        match self.kinds.find(name) {
            Some(key) => self.kinds.at(key),
            None if self.kinds.len() < KINDS_KEPT => {
                let key = self.kinds.insert(name.clone());
                self.kinds.at(key)
            }
            None => &mut self.other_kinds,
        }
    }

    pub fn extension(&mut self, result: &Result<Duration, Denial>) {
        match result {
            Ok(_) => self.grants += 1,
            Err(denial) => self.denials[denial.index()] += 1,
        }
    }

    /// Each with a number that it keeps while it is counted here: low ones were there early.
    pub fn queues(&self) -> impl Iterator<Item = (u32, &Name, &QueueCounts)> {
        self.queues.iter()
    }

    pub fn forgotten_queues(&self) -> &QueueCounts {
        &self.forgotten
    }

    pub fn kinds(&self) -> impl Iterator<Item = (&Name, &KindCounts)> {
        self.kinds.iter().map(|(_, name, counts)| (name, counts))
    }

    /// Kinds that are not counted by name.
    pub fn other_kinds(&self) -> &KindCounts {
        &self.other_kinds
    }

    pub fn grants(&self) -> u64 {
        self.grants
    }

    pub fn denials(&self) -> impl Iterator<Item = (Denial, u64)> + '_ {
        Denial::ALL.into_iter().zip(self.denials)
    }
}

/// Things by name. Mostly the same is asked for as last time, which costs one comparison.
#[derive(Debug)]
struct ByName<T> {
    entries: Pages<(Name, T)>,
    ids: HashTable<Key<(Name, T)>>,
    hasher: FixedState,
    last: Option<Key<(Name, T)>>,
}

impl<T: Default> ByName<T> {
    fn new(seed: u64) -> Self {
        Self { entries: Pages::new(), ids: HashTable::new(), hasher: FixedState::with_seed(seed), last: None }
    }

    fn len(&self) -> usize {
        self.entries.len()
    }

    fn find(&mut self, name: &Name) -> Option<Key<(Name, T)>> {
        if self.last.and_then(|last| self.entries.get(last)).is_some_and(|(known, _)| known == name) {
            return self.last;
        }
        let hash = self.hasher.hash_one(name);
        let found = *self.ids.find(hash, |key| self.entries[*key].0 == *name)?;
        self.last = Some(found);
        Some(found)
    }

    /// The name must be new.
    fn insert(&mut self, name: Name) -> Key<(Name, T)> {
        let hash = self.hasher.hash_one(&name);
        let key = self.entries.insert((name, T::default()));
        let (entries, hasher) = (&self.entries, &self.hasher);
        self.ids.insert_unique(hash, key, |key| hasher.hash_one(&entries[*key].0));
        self.last = Some(key);
        key
    }

    fn at(&mut self, key: Key<(Name, T)>) -> &mut T {
        &mut self.entries[key].1
    }

    fn remove(&mut self, key: Key<(Name, T)>) -> T {
        let (name, value) = self.entries.remove(key);
        let entry = self.ids.find_entry(self.hasher.hash_one(&name), |known| *known == key);
        entry.expect("every name is in the index").remove();
        value
    }

    /// Each with its number, counted from zero.
    fn iter(&self) -> impl Iterator<Item = (u32, &Name, &T)> {
        self.entries.iter().map(|(key, (name, value))| (key.index() as u32 - 1, name, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        Name::new(text).unwrap()
    }

    #[test]
    fn a_span_is_counted_under_the_first_bound_that_it_does_not_exceed() {
        let mut histogram = Histogram::default();
        for ms in [0, 5, 6, 14_400_000, 14_400_001] {
            histogram.observe(Duration::from_millis(ms));
        }
        let cumulative: Vec<u64> = histogram.cumulative().map(|(_, count)| count).collect();
        assert_eq!(cumulative, [2, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 4]);
        assert_eq!((histogram.count(), histogram.sum()), (5, Duration::from_millis(28_800_012)));
    }

    #[test]
    fn an_empty_queue_is_forgotten_only_where_there_are_many_and_nothing_counted_is_lost() {
        let mut counts = Counts::new(7);
        let all = QUEUES_KEPT + 50;
        for queue in 0..all {
            let counts = counts.queue(&name(&format!("q{queue}")));
            counts.submitted += 1;
            counts.moved(None, JobState::Ready);
        }
        for queue in 0..all {
            counts.left(&name(&format!("q{queue}")), JobState::Ready);
        }
        assert_eq!(counts.queues().count(), QUEUES_KEPT);
        let submitted: u64 = counts.queues().map(|(_, _, queue)| queue.submitted).sum();
        assert_eq!(submitted + counts.forgotten_queues().submitted, all as u64);
        assert_eq!(counts.queue(&name("q0")).submitted, 0, "it was forgotten, and begins anew");
    }

    #[test]
    fn kinds_beyond_the_limit_are_counted_together() {
        let mut counts = Counts::new(7);
        for _ in 0..2 {
            for kind in 0..KINDS_KEPT + 5 {
                counts.kind(&name(&format!("k{kind}"))).ended(EndingKind::Failed, Duration::from_secs(2));
            }
        }
        assert_eq!(counts.kinds().count(), KINDS_KEPT);
        assert!(counts.kinds().all(|(_, kind)| kind.run.count() == 2));
        assert_eq!(counts.other_kinds().attempts[EndingKind::Failed as usize], 10);
    }
}
